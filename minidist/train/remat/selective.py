"""Selective recomputation: of what an operator list names, nothing is kept; all else is as ever.

In a transformer the scores of attention, their softmax and its dropout are most of what is kept, and cheap to compute
again from queries and keys: 5as/h of sbh(34 + 5as/h) bytes, for 4bs²h of about 72bsh² FLOPs of a layer's step (twice as
many with the product that gives the scores' own gradient). `checkpoint` would give up all of it and repeat all of it.

    core = selective(ATTENTION)              what these operators make is computed again
    y = core(layer, x)                       instead of layer(x)

No function runs twice: each tensor that is not kept has a recipe, the operators that made it (see `tape`), which are
called again below autograd, in the order of forward, once a backward, and only those that something needs.
Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 5.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .frame import Frame, Slot
from .replay import Replay
from .tape import Kept, Made, Node, Tape, uses

aten = torch.ops.aten
ATTENTION = (
    aten.ones,
    aten.triu,
    aten.bmm,
    aten.mul,
    aten.masked_fill,
    aten._softmax,
    aten.native_dropout,
)
"""What written-out attention does between queries, keys and values, and its result."""


def selective(ops: Iterable = (), *, save: Iterable | None = None) -> Callable:
    """A form of checkpointing: `form(fn, *inputs, **kwargs)` is `fn(*inputs, **kwargs)`, with less kept for backward.

    ops: operators, as `torch.ops.aten.bmm` or `.bmm.default`, whose results backward computes again; their operands
    are kept instead, as far as they are not computed again themselves. So name all between two tensors that are small.
    save: the other way round: the results of these operators are kept, those of all others computed again.
    Gradients are the same bit for bit. Only tensors count that autograd keeps: an operator in the list whose result no
    backward reads costs nothing.  A result of a listed operator must not be filled by a receive: no operator tells.
    Errors: TypeError for what is no operator, ValueError for both lists; RuntimeError in backward if an operand was
    changed in place since.
    """
    if save is not None and ops:
        raise ValueError(
            "there is one list: of the operators to compute again, or, by save=, of those not to"
        )
    named = {_packet(op) for op in (ops if save is None else save)}
    use = uses(lambda func: (func.overloadpacket in named) is (save is None))

    def form(fn: Callable, *inputs, **kwargs) -> Any:
        if not torch.is_grad_enabled():
            return fn(*inputs, **kwargs)
        frame = Selective(Tape(use, save is None))
        with frame.saving(), frame.tape:
            outputs = fn(*inputs, **kwargs)
        frame.tape = None  # what no slot needs is forgotten
        return outputs

    return form


def _packet(op):
    if isinstance(op, torch._ops.OpOverload):
        return op.overloadpacket
    if not isinstance(op, torch._ops.OpOverloadPacket):
        raise TypeError(
            f"an operator is named as torch.ops.aten.bmm, not by a {type(op).__name__}: {op}"
        )
    return op


class Recipe(Slot):
    """A slot with the recipe of its tensor, which is given up in the last backward; its operands live as long as it."""

    __slots__ = ("made",)

    def __init__(self, x: Tensor, made: Made):
        super().__init__(x)
        self.made: Made | None = made


class Selective(Frame):
    """Slots for the tensors that have a recipe; the others are kept."""

    def __init__(self, tape: Tape):
        super().__init__()
        self.tape: Tape | None = tape

    def pack(self, x: Tensor) -> Recipe | Kept:
        made = self.tape and self.tape.find(x)
        return Kept.of(x) if made is None else self.keep(Recipe(x, made))

    def unpack(self, slot: Recipe | Kept) -> Tensor:
        if isinstance(slot, Kept):
            return slot.get()
        if slot.value is None and slot.made is None:
            raise RuntimeError(
                "backward asks a second time for a tensor that is computed again only once, as the "
                "graph was not to be kept (retain_graph=True)"
            )
        return super().unpack(slot)

    def refill(self) -> None:
        slots: dict[Node, list[Recipe]] = {}
        for slot in self.living():
            if slot.made is None:
                continue  # it has its value, or had it
            slots.setdefault(slot.made.node, []).append(slot)
        nodes, results = _with_parents(slots), {}
        needed = Counter(parent for node in nodes for parent in node.parents)
        with torch.no_grad(), Replay.bare().again():
            for node in nodes:
                results[node] = node.run(results)
                for slot in slots.get(node, ()):
                    slot.value = results[node][slot.made.index]
                needed.subtract(node.parents)
                for done in (node, *node.parents):
                    if not needed[done]:
                        del results[done]
        # nobody will ask a second time
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            for slot in itertools.chain.from_iterable(slots.values()):
                slot.made = None


def _with_parents(wanted: Iterable[Node]) -> list[Node]:
    """These nodes and all that they need, in the order of forward."""
    found, left = set(), list(wanted)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.parents
    return sorted(found, key=lambda node: node.order)
