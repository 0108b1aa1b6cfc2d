"""Which parameter belongs to which block.

A parameter belongs to the innermost block around the module that uses it; one that modules of several blocks share (a
tied embedding) to the innermost block around all of these, the whole model in the end.

    whole ┬ layer 0 ┬ attention        blocks=TransformerLayer: three blocks, layer 0, layer 1, and the whole, which
          │         └ mlp              takes what is left: embeddings, the last norm
          └ layer 1 …

What a FullySharded inside has taken is its own. A block holds its parameters together, so it is whole as long as its
forward runs: the whole model's rest stays whole during all of a forward, and of a backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from .flat import Held

Chooser = type | tuple[type, ...] | Callable[[nn.Module], bool] | None


def chooser(blocks: Chooser) -> Callable[[nn.Module], bool]:
    """A predicate from module types, or as it is; None: no module is a block of its own."""
    if blocks is None:
        return lambda module: False
    if isinstance(blocks, type | tuple):
        return lambda module: isinstance(module, blocks)
    return blocks


def walk(
    module: nn.Module, name: str, inside: type, nested: list[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    """(full name, module) of `module` and all in it, parents first; those of class `inside` are put in `nested`."""
    yield name, module
    for key, child in module.named_children():
        if isinstance(child, inside):
            nested.append(child)
        else:
            yield from walk(child, f"{name}.{key}" if name else key, inside, nested)


def assign(
    modules: list[tuple[str, nn.Module]], is_block: Callable[[nn.Module], bool]
) -> dict[str, list[Held]]:
    """{name of a block: the parameters that it holds}, blocks in the order of the walk, those that hold any.

    modules: as from `walk`, the first being the whole, itself a block.
    """
    root = modules[0][0]
    names = [root] + [name for name, module in modules[1:] if is_block(module)]
    held: dict[nn.Parameter, Held] = {}
    chains: dict[nn.Parameter, list[str]] = {}
    for name, module in modules:
        chain = [block for block in names if block == root or f"{name}.".startswith(f"{block}.")]
        for attribute, p in module._parameters.items():
            if p is None:
                continue
            full = f"{name}.{attribute}" if name else attribute
            one = held.setdefault(p, Held(full, p))
            one.sites.append((module, attribute, full))
            known = chains.setdefault(p, chain)
            chains[p] = [a for a, b in zip(known, chain, strict=False) if a == b]
    found: dict[str, list[Held]] = {name: [] for name in names}
    for p, one in held.items():
        found[chains[p][-1]].append(one)
    return {name: some for name, some in found.items() if some}
