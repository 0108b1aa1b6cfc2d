"""The backward in two: first the gradient that the stage before waits for, later those of the weights.

    loss ─ addmm ─ gelu ─ addmm ─ x          the spine: from the outputs to the inputs
             └ W₂ b₂        └ W₁ b₁          a joint: a node of it with a way aside, to parameters alone

I goes down the spine. A node computes only what is asked for: a matrix product the gradient of its input, not of its
weight; what comes to each joint is kept. W starts at every joint and goes aside, which is the other half of the work:
the FLOPs of both are those of the whole. What W will not use (GELU's input, attention's scores) is let go after I.

Without an input that wants a gradient, on the first stage, the spine is what leads to more than one parameter.
A parameter with several joints (used twice in one part) gets its gradient in I: from a joint one cannot go aside to
it and leave out the way down the spine. A hook on a tensor at a joint hears of both halves.
Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node


class Joint:
    """A node where ways to parameters leave the spine, or an end that is not on it.

    edges: into it.  leaves: the parameters, as bits.  grads: what comes in by each edge, known after I.
    """

    def __init__(self, edges: list[GradientEdge], leaves: int):
        self.edges, self.leaves = edges, leaves
        self.parameters: list[Tensor] = []
        self.grads: list[Tensor | None] = []


class Graph:
    """The nodes that `ends` lead to, with, as bits of a number, the leaves (parameters, inputs) below each."""

    def __init__(self, ends: Sequence[GradientEdge]):
        self.below: dict[Node, int] = {}  # of each node, in an order in which successors come first
        self.into: dict[Node, set[int]] = {}  # which of a node's gradients are asked for
        self.leaves: list[Tensor] = []
        for end in ends:
            self.into.setdefault(end.node, set()).add(end.output_nr)
            self._visit(end.node)

    def _visit(self, root: Node) -> None:
        stack = [(root, False)]
        while stack:
            node, left = stack.pop()
            if left:
                self.below[node] = functools.reduce(
                    int.__or__, (self.below[n] for n, _ in after(node)), 0
                )
            elif node not in self.below and hasattr(node, "variable"):
                self.below[node] = 1 << len(self.leaves)
                self.leaves.append(node.variable)
            elif node not in self.below:
                stack.append((node, True))
                for successor, number in after(node):
                    self.into.setdefault(successor, set()).add(number)
                    stack.append((successor, False))

    def edges(self, node: Node) -> list[GradientEdge]:
        """The edges into a node."""
        return [GradientEdge(node, number, None) for number in sorted(self.into[node])]

    def named(self, bits: int) -> list[Tensor]:
        """The leaves of these bits."""
        return [leaf for i, leaf in enumerate(self.leaves) if bits >> i & 1]


class Halves:
    """The backward from `ends`, the graph's, to `inputs` (leaves that want a gradient) and to its parameters."""

    def __init__(self, ends: Sequence[GradientEdge], inputs: Sequence[Tensor]):
        self.ends = list(ends)
        self.inputs = list(inputs)
        graph = Graph(ends)
        mine = sum(1 << i for i, leaf in enumerate(graph.leaves) if any(leaf is x for x in inputs))
        spine = {node: None for node, below in graph.below.items() if _on_spine(below, mine)}
        aside = {
            node: _union(graph.below[n] for n, _ in after(node) if n not in spine) & ~mine
            for node in spine
        }
        self._joints = [
            Joint(graph.edges(node), leaves) for node, leaves in aside.items() if leaves
        ]
        self._direct = {
            i: Joint([end], graph.below[end.node])
            for i, end in enumerate(ends)
            if end.node not in spine
        }
        once = twice = 0
        for joint in (*self._joints, *self._direct.values()):
            once, twice = once | joint.leaves, twice | once & joint.leaves
        for joint in (*self._joints, *self._direct.values()):
            joint.parameters = graph.named(joint.leaves & ~twice)
        self._shared = graph.named(twice)
        self._passed = [node for node in spine if not aside[node]]

    def input(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """I. The gradients of the inputs; None of one that the ends do not depend on."""
        targets = [
            *self.inputs,
            *self._shared,
            *(edge for joint in self._joints for edge in joint.edges),
        ]
        found = (
            torch.autograd.grad(self.ends, targets, grads, retain_graph=True, allow_unused=True)
            if targets
            else ()
        )
        rest = iter(found)
        mine, self._early = ([next(rest) for _ in some] for some in (self.inputs, self._shared))
        for joint in self._joints:
            joint.grads = [next(rest) for _ in joint.edges]
        for i, joint in self._direct.items():
            joint.grads = [grads[i]]
        for node in self._passed:
            release(node)
        self.ends, self._passed = [], []
        return mine

    def weight(self) -> None:
        """W. Gradients accumulate in the parameters."""
        for leaf, grad in zip(self._shared, self._early, strict=True):
            torch.autograd.backward(leaf, grad)
        for joint in (*self._direct.values(), *reversed(self._joints)):
            asked = [
                (edge, grad)
                for edge, grad in zip(joint.edges, joint.grads, strict=True)
                if grad is not None
            ]
            if asked and joint.parameters:
                edges, grads = zip(*asked, strict=True)
                torch.autograd.backward(edges, grads, inputs=joint.parameters)
        self._joints = []
        self._direct = {}
        self._shared = []


def _on_spine(below: int, inputs: int) -> bool:
    return bool(below & inputs) if inputs else below.bit_count() > 1


def _union(bits: Iterator[int]) -> int:
    return functools.reduce(int.__or__, bits, 0)


def after(node: Node) -> list[tuple[Node, int]]:
    """The nodes that a node passes gradients to, each with the number of its output."""
    return [
        (successor, number) for successor, number in node.next_functions if successor is not None
    ]


@functools.cache
def _saved(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved")]


def release(node: Node) -> None:
    """Let go of what a node has saved for a backward that will not come again."""
    for name in _saved(type(node)):
        found = getattr(node, name)
        for saved in found if isinstance(found, list | tuple) else [found]:
            with suppress(RuntimeError):  # an optional argument that was not given
                # the value goes to a hook, which drops it
                saved.register_hooks(lambda _: None, lambda _: None)
