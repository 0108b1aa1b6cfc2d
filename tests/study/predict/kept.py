"""What autograd keeps, counted on its own: the storages behind every tensor that it saves."""

from fractions import Fraction

import torch

from minidist.study.predict import flops


def kept(model, fn):
    """Bytes of all storages that `fn()` saves for backward, each once, parameters and buffers of `model` apart."""
    own = {p.untyped_storage()._cdata for p in [*model.parameters(), *model.buffers()]}
    found = {}

    def pack(x):
        storage = x.untyped_storage()
        if storage._cdata not in own:
            # alive until we have counted: its address is nobody else's
            found[storage._cdata] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = fn()
    total = sum(storage.nbytes() for storage in found.values())
    del result
    return total


def shown(ours, published):
    """How a paper that prints `published` came from `ours`: {"rounded", "truncated"}, one of them, or none."""
    ours, printed = Fraction(ours), Fraction(str(published))
    step = Fraction(1, 10 ** len(str(published).partition(".")[2]))
    down = ours // step * step
    half_up = (ours / step + Fraction(1, 2)) // 1 * step
    return {word for word, value in (("rounded", half_up), ("truncated", down)) if value == printed}


def published_hardware_flops(model, batch):
    """FLOPs of a step with selective recomputation as Korthikanti et al. must have counted: 72BLsh²(1 + s/3h + V/12hL).

    Their Table 5 comes out only with the attention products of the *whole* step counted twice; one forward more,
    `flops(..., recompute="selective")`, gives 1 + 2s/9h and up to 1.3 percentage points less.
    """
    again = 12 * batch * model.context**2 * model.hidden
    return flops(model, batch) + model.layers * again
