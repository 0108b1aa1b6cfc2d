"""Tensor parallelism: the matrices of a layer are split over the ranks, and with them its heads and features.

copy_to, reduce_from, scatter_to, gather_from         between whole and split data; each with its conjugate
gather_sequence, reduce_scatter_sequence              the same where the sequence is split
conjugate                                             any such pair: a forward, and its transpose in backward
ColumnLinear, RowLinear                               a linear layer by its outputs, by its inputs
tensor_parallel_                                      a serial transformer's blocks, split; RowFirstMLP for comparison
shard, unshard                                        weights taken apart, and put together
seed_group_, split_random                             random numbers: alike on all ranks, or each rank's own
TensorDropout, SequenceNorm                           dropout and layer norm around the split layers

What they send, as formulas: `study.predict.tensor_layer_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..collectives import all_gather, all_reduce_, reduce_scatter
from ..comm.base import Comm, describe
from ..models import (
    MLP,
    Attention,
    Dropout,
    LayerNorm,
    Linear,
    RMSNorm,
    TransformerLayer,
    materialize_,
)
from ..split import Cut, checked_sizes, cuts, join, uneven

# ------------------------------------------------------------
# The operators between split and whole: each is an autograd function, and its backward is another one of them.
#
# A tensor is *whole* on all ranks (replicated), *split* along a dimension, or *partial*: the whole is the sum over
# the ranks. A loss that every rank computes from whole tensors counts once.
#
#     operator                   forward                    backward, its conjugate      bytes a rank, by a ring
#     copy_to            (f)     whole: nothing             all-reduce                   0 and 2(n−1)/n·N
#     reduce_from        (g)     partial: all-reduce        nothing                      2(n−1)/n·N and 0
#     scatter_to                 whole: my part             all-gather                   0 and (n−1)/n·N
#     gather_from                split: all-gather          my part                      (n−1)/n·N and 0
#     gather_sequence            split: all-gather          reduce-scatter               (n−1)/n·N and (n−1)/n·N
#     reduce_scatter_sequence    partial: reduce-scatter    all-gather                   (n−1)/n·N and (n−1)/n·N
#
# Each is a linear map, and so are all collectives that move or add. A differentiable all-reduce, where every rank has a
# loss of its own, is the pair of two sums; a broadcast goes with the sum at its root, an all-to-all with the all-to-all
# that sends everything back: `conjugate` makes an operator of any two functions.
#
# Invariant: a backward is the transpose of its forward, ⟨A·x, y⟩ = ⟨x, Aᵀ·y⟩; what is whole counts once. Sources:
# Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.2, for the last pair, there g and ḡ.


class Conjugate(Function):
    """See `conjugate`."""

    @staticmethod
    def forward(ctx, there: Callable, back: Callable, args: tuple, *xs: Tensor):
        ctx.pair = back, there, args
        return tuple(there(xs, *args))

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, None, None, *Conjugate.apply(*ctx.pair, *grads)


def conjugate(x: Tensor | list[Tensor], there: Callable, back: Callable, *args):
    """`there` of a tensor or of a list; its gradient goes through `back`, and the gradient of that through `there`.

    there, back: functions of a list of tensors and `args` that return a list, each the transpose of the other. Where they
    send, all ranks of their Comm call it, and its backward. Returns a tensor for a tensor, and a list for a list.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import conjugate
    >>> def shift(xs, comm, hops):
    ...     there, here = (comm.rank + hops) % comm.size, (comm.rank - hops) % comm.size
    ...     return [comm.sendrecv(x, there, torch.empty_like(x), here) for x in xs]
    >>> def program(comm):
    ...     x = torch.tensor(float(comm.rank), requires_grad=True)
    ...     y = conjugate(x, lambda xs: shift(xs, comm, 1), lambda xs: shift(xs, comm, -1))
    ...     (10 * comm.rank * y).backward()
    ...     return y.item(), x.grad.item()
    >>> World(3).run(program)  # values come from the left, gradients from the right
    [(2.0, 10.0), (0.0, 20.0), (1.0, 0.0)]
    """
    several = isinstance(x, list | tuple)
    ys = Conjugate.apply(there, back, args, *(x if several else [x]))
    return list(ys) if several else ys[0]


def same(xs: list[Tensor], comm: Comm) -> list[Tensor]:
    """Whole tensors as they are."""
    return [x.view_as(x) for x in xs]


def summed(xs: list[Tensor], comm: Comm) -> list[Tensor]:
    """Sums over the ranks, in one all-reduce for each dtype, of copies: others may hold the operands."""
    return all_reduce_(comm, [x.clone(memory_format=torch.contiguous_format) for x in xs])


def own_part(xs: list[Tensor], comm: Comm, dim: int, sizes: list[int] | None) -> list[Tensor]:
    """This rank's parts along `dim`, as copies: the wholes can be freed."""
    parts = [Cut(dim, checked_sizes(sizes, x.shape[dim], comm.size)).part(x, comm.rank) for x in xs]
    return [part.clone(memory_format=torch.contiguous_format) for part in parts]


def gathered(
    xs: list[Tensor], comm: Comm, dim: int, sizes: list[int] | None = None
) -> list[Tensor]:
    """All ranks' parts along `dim`, in rank order."""
    rows = [all_gather(comm, x.movedim(dim, 0).contiguous(), sizes) for x in xs]
    return [x.movedim(0, dim).contiguous() for x in rows]


def reduce_scattered(
    xs: list[Tensor], comm: Comm, dim: int, sizes: list[int] | None = None
) -> list[Tensor]:
    """This rank's parts along `dim` of the sums over the ranks."""
    rows = [reduce_scatter(comm, x.movedim(dim, 0).contiguous(), sizes=sizes) for x in xs]
    return [x.movedim(0, dim).contiguous() for x in rows]


def copy_to(x: Tensor | list[Tensor], comm: Comm):
    """f, before the parts of a split layer read `x`, which is whole: (…) → (…), without a message.

    Backward all-reduces: a rank's gradient is what its part of the layer says, the whole gradient is their sum.
    A list's gradients travel in one all-reduce for each dtype. So also for parameters that every rank holds, and uses on
    its own part of the data (SequenceNorm): backward makes their gradients whole.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import copy_to
    >>> def program(comm):
    ...     x = torch.ones(1, requires_grad=True)
    ...     ((1 + comm.rank) * copy_to(x, comm)).sum().backward()  # each rank's part of a layer
    ...     return x.grad.item()
    >>> World(3).run(program)  # 1 + 2 + 3
    [6.0, 6.0, 6.0]
    """
    return conjugate(x, same, summed, comm)


def reduce_from(x: Tensor | list[Tensor], comm: Comm):
    """g, after a split layer whose results are partial: their sum over the ranks, (…) → (…).

    Backward hands the gradient on, without a message: every rank's summand has the gradient of the sum.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import reduce_from
    >>> def program(comm):
    ...     x = torch.tensor(1.0 + comm.rank, requires_grad=True)
    ...     y = reduce_from(x, comm)
    ...     y.backward()
    ...     return y.item(), x.grad.item()
    >>> World(3).run(program)  # 1 + 2 + 3, and a gradient that nobody has to add up
    [(6.0, 1.0), (6.0, 1.0), (6.0, 1.0)]
    """
    return conjugate(x, summed, same, comm)


def scatter_to(x: Tensor, comm: Comm, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """This rank's part of `x`, which is whole: (…, F) → (…, F/n), or sizes[rank] of it; no message.

    Backward all-gathers. Raises ValueError where n does not divide F and `sizes` does not say who gets what.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import scatter_to
    >>> World(2).run(lambda comm: scatter_to(torch.arange(4), comm))
    [tensor([0, 1]), tensor([2, 3])]
    """
    return conjugate(x, own_part, gathered, comm, dim, sizes)


def gather_from(x: Tensor, comm: Comm, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """All ranks' parts, in rank order, whole: (…, F/n) → (…, F) by an all-gather. `sizes`: where parts differ.

    Backward takes this rank's part of the gradient, without a message: what follows is done alike on every rank,
    so its gradient is whole already. Where what follows is split, too, take `gather_sequence`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import gather_from
    >>> World(2).run(lambda comm: gather_from(torch.tensor([10, 11]) * comm.rank, comm))[0]
    tensor([ 0,  0, 10, 11])
    """
    return conjugate(x, gathered, own_part, comm, dim, sizes)


def gather_sequence(x: Tensor, comm: Comm, dim: int = -2, sizes: list[int] | None = None) -> Tensor:
    """Before the parts of a split layer read a sequence of which a rank has a part: (B, T/n, H) → (B, T, H).

    Forward all-gathers. Backward reduce-scatters: each rank's gradient is partial, as in `copy_to`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import gather_sequence
    >>> def program(comm):
    ...     x = torch.ones(1, 2, 3, requires_grad=True)  # two of four tokens
    ...     y = gather_sequence(x, comm)
    ...     ((1 + comm.rank) * y).sum().backward()
    ...     return tuple(y.shape), x.grad.unique()
    >>> World(2).run(program)[0]  # the gradient is the sum of what both ranks make of these tokens
    ((1, 4, 3), tensor([3.]))
    """
    return conjugate(x, gathered, reduce_scattered, comm, dim, sizes)


def reduce_scatter_sequence(
    x: Tensor, comm: Comm, dim: int = -2, sizes: list[int] | None = None
) -> Tensor:
    """After a split layer whose results are partial: of their sum this rank's part, (B, T, H) → (B, T/n, H).

    Backward all-gathers. Raises ValueError where n does not divide T and `sizes` does not say who gets what.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import reduce_scatter_sequence
    >>> y = World(2).run(lambda comm: reduce_scatter_sequence(torch.ones(1, 4, 3), comm))[0]
    >>> tuple(y.shape), y.unique()  # two of four tokens, each the sum of two summands
    ((1, 2, 3), tensor([2.]))
    """
    return conjugate(x, reduce_scattered, gathered, comm, dim, sizes)


# ------------------------------------------------------------
# Which part of a parameter a rank has: what a serial model's weights are taken apart by, and put together.
#
# A split module says how each of its parameters is cut: `module.cuts = {"weight": Cut(0, [3, 3, 2]), …}`. What is not
# named there is whole on every rank. Names are the serial module's, so a state dict of the whole model serves all n:
#
#     layer.load_state_dict(shard(serial.state_dict(), layer, comm))      taken apart
#     serial.load_state_dict(unshard(layer, comm))                        put together
#
# Seeds belong to names: a whole parameter's initial value is `initial(seed, name, shape)`, and a rank cuts its part
# out of it, block by block (`models.materialize_`). So for every n the model starts equal to the serial one, without a
# message.


def shard(
    state: Mapping[str, Tensor] | nn.Module, like: nn.Module, comm: Comm
) -> dict[str, Tensor]:
    """This rank's part of a serial model's state dict (or of the model), for `like.load_state_dict`. No message.

    Raises ValueError for a name that is missing or too much, and for a shape that is not that of the whole.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import ColumnLinear
    >>> from minidist.parallel.tensor import shard
    >>> def program(comm, state):
    ...     layer = ColumnLinear(1, 4, comm)
    ...     layer.load_state_dict(shard(state, layer, comm))
    ...     return layer.bias.tolist()
    >>> World(2).run(program, {"weight": torch.ones(4, 1), "bias": torch.arange(4.0)})
    [[0.0, 1.0], [2.0, 3.0]]
    """
    whole = state.state_dict() if isinstance(state, nn.Module) else state
    own, how = like.state_dict(), cuts(like)
    parts = {}
    if whole.keys() != own.keys():
        missing, unknown = sorted(own.keys() - whole.keys()), sorted(whole.keys() - own.keys())
        raise ValueError(f"the two models differ: missing {missing}, unknown {unknown}")
    for name, x in whole.items():
        cut, expected = how.get(name), tuple(own[name].shape)
        if cut is not None:
            expected = cut.shape(expected, sum(cut.sizes))
        if tuple(x.shape) != expected:
            raise ValueError(
                f"the whole of {name} has shape {expected} here, but {describe(x)} was given"
            )
        parts[name] = (x if cut is None else cut.part(x, comm.rank)).clone()
    return parts


@torch.no_grad()
def unshard(module: nn.Module, comm: Comm) -> dict[str, Tensor]:
    """The state dict of the serial model, on every rank: an all-gather for each parameter that is split.

    What is whole on every rank is this rank's own. All ranks must call it.

    >>> from minidist import World
    >>> from minidist.parallel import ColumnLinear
    >>> from minidist.parallel.tensor import unshard
    >>> state = World(2).run(lambda comm: unshard(ColumnLinear(3, 8, comm), comm))[1]
    >>> {name: tuple(x.shape) for name, x in state.items()}
    {'weight': (8, 3), 'bias': (8,)}
    """
    how = cuts(module)
    return {
        name: gather_from(x, comm, *how[name]) if name in how else x.clone()
        for name, x in module.state_dict().items()
    }


# ------------------------------------------------------------
# Random numbers where ranks hold the same data, and where each has its own part.
#
# Dropout on whole data must drop the same elements on every rank, or the copies part; on split data it must drop
# different ones, or what should be chance is repeated n times.
#
#     seed_group_(comm, seed)          from here on every rank of the group draws the same numbers
#     with split_random(comm):         in here each rank draws its own; outside nothing is missing or repeated
#         mask = …
#
# The numbers within are seeded by (a number drawn outside, the rank): a stream of their own, made anew each time. So
# PyTorch's default generator is all the state there is. What is computed again from a saved state of it draws the same
# numbers again, whatever was drawn in between: checkpointing needs to know nothing of it. Megatron-LM keeps a
# second generator for split data, whose state every checkpoint function must save, too (`megatron/core/tensor_parallel/
# random.py`).


_SEEDED = "seed_group_ was called"


def seed_group_(comm: Comm, seed: int) -> None:
    """Every rank of `comm` draws the same numbers from here on. Groups with other data take another seed each.

    Call it once, at the start, on every rank of the group of tensor-parallel ranks, before a layer with dropout.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import seed_group_
    >>> def program(comm):
    ...     seed_group_(comm, 1)
    ...     return torch.rand(3)
    >>> ours, theirs = World(2).run(program)
    >>> torch.equal(ours, theirs)
    True
    """
    for random in _generators(comm):
        random.manual_seed(seed)
    comm.keep(_SEEDED, lambda: seed)  # a mark only, for `TensorDropout.drawing`


def _not_seeded():
    raise ValueError(
        "dropout on the ranks of a tensor-parallel group needs random numbers that are the same on all of "
        "them: call seed_group_(comm, seed) first, with the Comm of the layer"
    )


@contextmanager
def split_random(comm: Comm) -> Iterator[None]:
    """In here each rank draws its own random numbers; afterwards all go on as if one number had been drawn.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import seed_group_, split_random
    >>> def program(comm):
    ...     seed_group_(comm, 1)
    ...     with split_random(comm):
    ...         own = torch.rand(3)
    ...     return own, torch.rand(3)
    >>> (own, after), (other, after_other) = World(2).run(program)
    >>> torch.equal(own, other), torch.equal(after, after_other)
    (False, True)
    """
    drawn = int(torch.randint(2**62, ()))
    states = [(random, random.get_state()) for random in _generators(comm)]
    try:
        for random, _ in states:
            random.manual_seed((drawn * 1_000_003 + comm.rank) % 2**63)
        yield
    finally:
        for random, state in states:
            random.set_state(state)


def _generators(comm: Comm) -> list[torch.Generator]:
    """PyTorch's default ones of the CPU and of the Comm's device."""
    generators = [torch.default_generator]
    if comm.device.type == "cuda":
        torch.cuda.init()
        generators.append(torch.cuda.default_generators[comm.device.index or 0])
    return generators


# ------------------------------------------------------------
# A linear layer on a gathered sequence that keeps only its own part of it for backward.
#
# What the sequence-parallel operators leave undivided is the gathered input (B, T, H): the layer needs it for its
# weight's gradient. Here each rank keeps its part (B, T/n, H) and gathers once more in backward, on a lane of its own,
# beside the product for the input's gradient. Then all that a transformer layer keeps is divided by n.
#
#     forward    X = all-gather(x);  Y = X·Aᵀ + b
#     backward   all-gather(x) beside dY·A;  dx = reduce-scatter(dY·A);  dA = dYᵀ·X;  db = Σ dY
#
# Cost: (n−1)/n·N bytes more than without. Source: Korthikanti et al. 2022, section 4.2.2, whose all-gather in backward
# this is, overlapped as there.


class GatheredLinear(Function):
    """See `linear_on_gathered`."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, comm: Comm) -> Tensor:
        ctx.comm = comm
        ctx.save_for_backward(x, weight)
        [whole] = gathered([x], comm, -2)
        return F.linear(whole, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        again = ctx.comm.stream(all_gather, x.movedim(-2, 0).contiguous()) if of_weight else None
        dx = dweight = None
        if of_x:
            [dx] = reduce_scattered([grad @ weight.to(grad.dtype)], ctx.comm, -2)
        flat = grad.flatten(0, -2)  # (B·T, outputs/n)
        # what was gathered is (T, …, inputs): to (…, T, inputs), then to (…·T, inputs)
        if again is not None:
            dweight = flat.t() @ again.wait().movedim(0, -2).flatten(0, -2).to(grad.dtype)
        return dx, dweight, flat.sum(0) if of_bias else None, None


def linear_on_gathered(x: Tensor, weight: Tensor, bias: Tensor, comm: Comm) -> Tensor:
    """`F.linear(gather_sequence(x, comm), weight, bias)`, (…, T/n, inputs) → (…, T, outputs/n), keeping `x` alone."""
    return GatheredLinear.apply(x, weight, bias, comm)


# ------------------------------------------------------------
# A linear layer Y = X·Aᵀ + b split over n ranks: by its outputs (the columns of Aᵀ), or by its inputs (its rows).
#
#     ColumnLinear   X whole          A = [A₁; A₂]  (by outputs)     Y split: [X·A₁ᵀ, X·A₂ᵀ]      f before it
#     RowLinear      X split          A = [A₁, A₂]  (by inputs)      Y whole: X₁·A₁ᵀ + X₂·A₂ᵀ     g after it
#
# One after the other fit together: what the first leaves split, the second reads split. So two layers, and whatever
# works element by element between them, need one all-reduce forward (g) and one backward (f).
#
# b of a ColumnLinear is split with its outputs; that of a RowLinear is whole and added once, after the sum.
# Cost of each with N bytes of whole data: one all-reduce, 2(n−1)α + 2(n−1)/n·Nβ; with sequence=True an all-gather
# in f's place and a reduce-scatter in g's, which are its two halves. Source: Shoeybi et al. 2019, section 3.


def materialize_part_(
    module: nn.Module,
    comm: Comm,
    seed: int,
    name: str,
    device: str | torch.device | None = None,
    whole: Mapping[str, Tensor] | None = None,
) -> nn.Module:
    """Give a module on "meta" this rank's part of its initial values, or of `whole`, on the Comm's device."""
    place = comm.device if device is None else device
    return materialize_(module, seed, partial(join, name), whole, comm.rank, device=place)


class ColumnLinear(Linear):
    """A linear layer of which every rank computes some outputs: (…, inputs) whole → (…, outputs/n) split.

    inputs, outputs: of the whole layer.
    sizes: outputs of each rank; as equal as can be unless given, also where n does not divide them.
    sequence: the input is split along its second last dimension, (…, T/n, inputs); n must divide T. regather: then
        keep that part for backward, and gather it once more there, instead of keeping the whole.
    seed, name: the whole weight starts as `initial(seed, name + ".weight", …)`, whatever n is; the bias alike.
    dtype, bias: as for nn.Linear. device: None is the Comm's. `weight` (outputs/n, inputs), `bias` (outputs/n): this rank's.
    Raises ValueError for sizes that do not add up to `outputs`, and for regather without sequence.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import ColumnLinear
    >>> def program(comm):
    ...     layer = ColumnLinear(4, 10, comm)
    ...     return tuple(layer.weight.shape), tuple(layer(torch.ones(2, 5, 4)).shape)
    >>> for shapes in World(3).run(program):  # ten outputs on three ranks
    ...     print(shapes)
    ((4, 4), (2, 5, 4))
    ((3, 4), (2, 5, 3))
    ((3, 4), (2, 5, 3))
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        comm: Comm,
        sizes: list[int] | None = None,
        sequence: bool = False,
        regather: bool = False,
        seed: int = 0,
        name: str = "",
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        bias: bool = True,
    ):
        if regather and not sequence:
            raise ValueError(
                f"regather=True gathers the sequence in backward, so it needs sequence=True, not {sequence}"
            )
        cut = Cut(0, checked_sizes(sizes or uneven(outputs, comm.size), outputs, comm.size))
        super().__init__(inputs, cut.sizes[comm.rank], bias, dtype=dtype, device="meta")
        self.comm = comm
        self.cuts = {"weight": cut} | ({"bias": cut} if bias else {})
        self.sequence = sequence
        self.regather = regather
        materialize_part_(self, comm, seed, name, device)

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs), whole, to this rank's outputs; with `sequence` (…, T/n, inputs) to (…, T, outputs/n)."""
        if self.regather:
            return linear_on_gathered(x, self.weight, self.bias, self.comm)
        x = gather_sequence(x, self.comm) if self.sequence else copy_to(x, self.comm)
        return self.product(x, self.weight, self.bias)  # (…, outputs/n)


class RowLinear(Linear):
    """A linear layer of which every rank reads some inputs: (…, inputs/n) split → (…, outputs) whole.

    sizes: inputs of each rank; as equal as can be unless given, also where n does not divide them.
    sequence: leave the output split along its second last dimension, (…, T/n, outputs); n must divide T.
    All else, and errors: as for ColumnLinear. `weight` (outputs, inputs/n) is this rank's; `bias` (outputs) whole on
    every rank, the same, and added once.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import ColumnLinear, RowLinear
    >>> def program(comm, x):
    ...     up, down = ColumnLinear(4, 8, comm, name="0"), RowLinear(8, 2, comm, name="2")
    ...     return down(up(x).relu()).detach()
    >>> x = torch.ones(3, 4)
    >>> ranks = World(2).run(program, x)
    >>> torch.allclose(ranks[1], mlp([4, 8, 2])(x), atol=1e-6)  # the serial model, of the same seed
    True
    >>> ranks.trace.bytes_sent(0)  # one all-reduce, of 3·2 numbers, 2(n−1)/n of their 24 bytes
    24
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        comm: Comm,
        sizes: list[int] | None = None,
        sequence: bool = False,
        seed: int = 0,
        name: str = "",
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        bias: bool = True,
    ):
        cut = Cut(1, checked_sizes(sizes or uneven(inputs, comm.size), inputs, comm.size))
        super().__init__(cut.sizes[comm.rank], outputs, bias, dtype=dtype, device="meta")
        self.comm = comm
        self.cuts = {"weight": cut}
        self.sequence = sequence
        materialize_part_(self, comm, seed, name, device)

    def forward(self, x: Tensor) -> Tensor:
        """This rank's inputs, (…, inputs/n), to (…, outputs), whole on every rank; with `sequence` to (…, T/n, outputs)."""
        y, bias = self.product(x, self.weight), self.bias  # a summand of (…, outputs)
        y = reduce_scatter_sequence(y, self.comm) if self.sequence else reduce_from(y, self.comm)
        if bias is None:
            return y
        if self.sequence:
            bias = copy_to(bias, self.comm)  # it is added to some tokens only: so is its gradient
        return y + bias.to(y.dtype)  # autocast may have lowered y


# ------------------------------------------------------------
# Dropout and layer norm around the split layers, where a rank has all of the data, or a part of the sequence.
#
# On whole data they are the serial ones, done alike on every rank: the same work n times, and the same memory.
# Sequence parallelism does them on a part of the sequence, so that what they keep for backward is divided by n. Then
#
#     dropout   draws other numbers on every rank
#     norm      has seen a part of the tokens: the gradients of its scale and shift are summed over the ranks,
#               one all-reduce of 2H numbers
#
# Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.2.


class TensorDropout(Dropout):
    """Dropout with probability p. split: the data is split, so each rank draws its own numbers; else all draw the same.

    Raises ValueError in training with p > 0 unless `seed_group_` was called: ranks would drop different parts of the
    same data.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import TensorDropout, seed_group_
    >>> def program(comm, split):
    ...     seed_group_(comm, 1)
    ...     return TensorDropout(0.5, comm, split)(torch.ones(64))
    >>> [torch.equal(*World(2).run(program, split)) for split in (False, True)]
    [True, False]
    """

    def __init__(self, p: float, comm: Comm, split: bool = False):
        super().__init__(p)
        self.comm, self.split = comm, split

    def forward(self, x: Tensor) -> Tensor:
        return self.drawing(super().forward, x)

    def drawing(self, function: Callable, *args):
        """`function(*args)`, which drops elements, with the random numbers that its data need: see `split`."""
        if not (self.training and self.p):
            return function(*args)
        self.comm.keep(_SEEDED, _not_seeded)  # raises unless seed_group_ has left its mark
        with split_random(self.comm) if self.split else nullcontext():
            return function(*args)


class SequenceNorm(LayerNorm):
    """Layer norm on a part of the sequence, (…, T/n, H): the gradients of weight and bias are those of all tokens.

    hidden: H.  like: of `nn.LayerNorm`, such as eps and dtype; device: the Comm's. Weight and bias (H,) are whole on every
    rank. All ranks call its backward, which sums their gradients.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import SequenceNorm
    >>> def program(comm, x):
    ...     norm = SequenceNorm(2, comm)
    ...     norm(x.chunk(comm.size, dim=1)[comm.rank]).sum().backward()  # 3 of the 6 tokens
    ...     return norm.bias.grad
    >>> World(2).run(program, torch.ones(1, 6, 2))[0]  # of all 6
    tensor([6., 6.])
    """

    def __init__(self, hidden: int | Sequence[int], comm: Comm, **like):
        super().__init__(hidden, **dict(device=comm.device) | like)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        """(…, T/n, H) to the same shape, each token by itself. Backward sends 2H numbers."""
        weight, bias = copy_to([self.weight, self.bias], self.comm)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class SequenceRMSNorm(RMSNorm):
    """RMS norm on a part of the sequence, (…, T/n, H): the gradient of weight is that of all tokens.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel.tensor import SequenceRMSNorm
    >>> def program(comm):
    ...     norm = SequenceRMSNorm(2, comm, eps=0.0)
    ...     norm(torch.ones(1, 3, 2)).sum().backward()  # three tokens of six
    ...     return norm.weight.grad
    >>> World(2).run(program)[0]
    tensor([6., 6.])
    """

    def __init__(self, hidden: int | Sequence[int], comm: Comm, **like):
        super().__init__(hidden, **dict(device=comm.device) | like)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, copy_to(self.weight, self.comm), self.eps)


# ------------------------------------------------------------
# A transformer's layer split over n ranks: the serial model's own code, with other linear layers, dropouts and norms in it.
# The model's code knows nothing of it: `split_` replaces its parts.
#
#     x ─┬─ norm ─ f ─ qkv (columns: whole heads) ─ attention ─ proj (rows) ─ g ─┬─ norm ─ f ─ fc ─ gelu ─ proj ─ g ─┬─
#        └───────────────────────────────────────────────────────────────────────┴───────────────────────────────────┴─
#        whole                     split over heads                       whole              split              whole
#
# A block has one all-reduce forward and one backward, a layer two and two. sequence=True keeps what is whole above as
# parts of the sequence, (B, T/n, H): f becomes an all-gather and g a reduce-scatter, the same bytes, and what the norms
# and dropouts keep is divided by n. Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022,
# section 4.2.2. With N = B·T·H numbers between blocks, a rank sends an n-th of this, by rings:
#
#     block                        forward               backward
#     MLP, attention               all-reduce            all-reduce                                4(n−1)N
#     with sequence                gather, scatter       gather, scatter; H numbers of the bias    4(n−1)N + 2(n−1)H
#     with regather                the same              an all-gather more                        5(n−1)N + 2(n−1)H
#     norm, with sequence                                all-reduce of 2H numbers                  4(n−1)H
#     MLP, rows first              all-reduce 4N + N     all-gather 4N + N                         15(n−1)N


def tensor_parallel_(
    module: nn.Module,
    comm: Comm,
    sequence: bool = False,
    regather: bool = False,
    seed: int = 0,
    name: str = "",
) -> nn.Module:
    """Split a serial TransformerLayer, Attention or MLP, or a module of them, over the ranks of `comm`, in place.

        layer = tensor_parallel_(TransformerLayer(1024, 16, device="meta"), comm)

    (B, T, H) → (B, T, H), the same on every rank. Heads (with kv_heads: heads of keys and values, each with its queries)
    and features are dealt out as evenly as possible; with more ranks than heads the last ranks have none, and add zeros.
    module: on the device "meta", each rank makes the initial values of its part; or with values, of which it keeps its
        part. They have the serial names: see `shard`, `unshard`.
    sequence: data between the blocks is split, (B, T/n, H) → (B, T/n, H). Before the first layer `scatter_to(x, comm, 1)`
        (ValueError where n does not divide T), after the last `gather_from(x, comm, 1)`.
    regather: with sequence, keep nothing whole for backward; it costs one more all-gather in the backward of each block.
    seed, name: of the initial values, which are those of the serial model with this seed and name ("" alone,
        "layers.0" in a GPT).
    With dropout call `seed_group_(comm, seed)` first. Returns `module`.
    Raises ValueError for a module without attention and MLP, for one that is split already, and, in its forward, for
    dropout without `seed_group_`.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import TransformerLayer, seeded_
    >>> from minidist.parallel import tensor_parallel_
    >>> def program(comm, x):
    ...     layer = tensor_parallel_(TransformerLayer(8, 4, device="meta"), comm)
    ...     return tuple(layer.mlp.fc.weight.shape), layer(x).detach()
    >>> x = torch.ones(1, 3, 8)
    >>> shape, y = World(2).run(program, x)[0]
    >>> shape  # of (32, 8)
    (16, 8)
    >>> torch.allclose(y, seeded_(TransformerLayer(8, 4))(x), atol=1e-5)
    True
    """
    if not any(isinstance(part, Attention | MLP) for part in module.modules()):
        raise ValueError(f"a {type(module).__name__} has no attention and no MLP to split")
    whole = {join(name, key): p for key, p in module.named_parameters()}
    split_(module, comm, sequence, regather)
    return materialize_part_(module, comm, seed, name, whole=whole)


def split_(
    module: nn.Module, comm: Comm, sequence: bool = False, regather: bool = False
) -> nn.Module:
    """Replace the linear layers, dropouts and norms of a transformer's blocks by split ones, still without values."""
    for part in list(module.modules()):
        if isinstance(part, TransformerLayer) and sequence:
            kind = SequenceRMSNorm if isinstance(part.norm_1, RMSNorm) else SequenceNorm
            shape, eps = part.norm_1.normalized_shape, part.norm_1.eps
            like = dict(eps=eps, dtype=part.norm_1.weight.dtype, device="meta")
            part.norm_1 = kind(shape, comm, **like)
            part.norm_2 = kind(shape, comm, **like)
        elif isinstance(part, Attention):
            heads = uneven(part.groups, comm.size)
            _split_block_(part, "qkv", heads, comm, sequence, regather)
            part.groups = heads[comm.rank]
            part.weights_dropout = TensorDropout(part.weights_dropout.p, comm, split=True)
        elif isinstance(part, MLP):
            _split_block_(part, "fc", uneven(part.ffn, comm.size), comm, sequence, regather)
    return module


def _split_block_(
    block: Attention | MLP,
    first: str,
    units: list[int],
    comm: Comm,
    sequence: bool,
    regather: bool,
) -> None:
    """Split a block's two linear layers, `first` by columns and `proj` by rows.

    units: how many each rank has of what stands between them, heads or features, of which none depends on another.
    """
    if isinstance(block.proj, RowLinear):
        raise ValueError(f"this {type(block).__name__} is split already")
    columns, rows = getattr(block, first), block.proj
    like: dict[str, Any] = dict(
        sequence=sequence, dtype=rows.weight.dtype, device="meta", bias=rows.bias is not None
    )
    outputs, inputs = columns.out_features // sum(units), rows.in_features // sum(units)  # a unit's
    column = ColumnLinear(
        columns.in_features,
        columns.out_features,
        comm,
        [k * outputs for k in units],
        regather=regather,
        **like,
    )
    setattr(block, first, column)
    block.proj = RowLinear(
        rows.in_features, rows.out_features, comm, [k * inputs for k in units], **like
    )
    block.dropout = TensorDropout(block.dropout.p, comm, split=sequence)


class RowFirstMLP(MLP):
    """The other way, to compare: fc by rows, so its results must be summed before GELU, which is not linear.

    Two all-reduces forward, the first of them 4H wide, and in backward an all-gather for each: 15/4 of the bytes of
    columns first. GELU is done on all 4H features by every rank.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import MLP
    >>> from minidist.parallel import tensor_parallel_
    >>> from minidist.parallel.tensor import RowFirstMLP
    >>> def sent(make):
    ...     run = World(2).run(lambda comm: make(comm)(torch.ones(1, 1, 8)).shape)
    ...     return run.trace.bytes_sent(0)
    >>> sent(lambda comm: tensor_parallel_(MLP(8, device="meta"), comm))  # 8 numbers a token
    32
    >>> sent(lambda comm: RowFirstMLP(8, comm))  # 32 and 8
    160
    """

    fc: RowLinear
    proj: RowLinear

    def __init__(self, hidden: int, comm: Comm, dtype: torch.dtype | None = None):
        super().__init__(hidden, device="meta")
        self.comm = comm
        self.fc = RowLinear(hidden, self.ffn, comm, name="fc", dtype=dtype)
        self.proj = RowLinear(self.ffn, hidden, comm, name="proj", dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        features = self.act(self._rows(self.fc, x))
        return self._rows(self.proj, features)

    def _rows(self, linear: RowLinear, x: Tensor) -> Tensor:
        return linear(scatter_to(x, self.comm, -1, linear.cuts["weight"].sizes))
