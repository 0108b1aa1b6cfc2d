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
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node


class Graph:
    """The nodes that `ends` lead to, with, as bits of a number, the leaves (parameters, inputs) below each."""

    def __init__(self, ends: Sequence[GradientEdge]):
        self.below: dict[Node, int] = {}  # of each node, in an order in which successors come first
        self.leaves: list[Tensor] = []
        self._asked: dict[Node, set[int]] = {}  # which of a node's gradients are asked for
        for end in ends:
            self._asked.setdefault(end.node, set()).add(end.output_nr)
            self._visit(end.node)

    def _visit(self, root: Node) -> None:
        stack = [(root, False)]
        while stack:
            node, successors_done = stack.pop()
            if successors_done:
                self.below[node] = self.below_all(n for n, _ in after(node))
            elif node not in self.below and hasattr(node, "variable"):
                self.below[node] = 1 << len(self.leaves)
                self.leaves.append(node.variable)
            elif node not in self.below:
                stack.append((node, True))
                for successor, number in after(node):
                    self._asked.setdefault(successor, set()).add(number)
                    stack.append((successor, False))

    def below_all(self, nodes) -> int:
        """The leaves below any of these nodes."""
        return functools.reduce(int.__or__, (self.below[node] for node in nodes), 0)

    def edges(self, node: Node) -> list[GradientEdge]:
        """The edges into a node."""
        return [GradientEdge(node, number, None) for number in sorted(self._asked[node])]

    def named(self, bits: int) -> list[Tensor]:
        """The leaves of these bits."""
        return [leaf for i, leaf in enumerate(self.leaves) if bits >> i & 1]


class Joint:
    """A node where ways to parameters leave the spine, or an end that is not on it.

    edges: into it.  leaves: the parameters, as bits.  grads: what comes in by each edge, known after I.
    """

    def __init__(self, edges: list[GradientEdge], leaves: int):
        self.edges = edges
        self.leaves = leaves
        self.parameters: list[Tensor] = []
        self.grads: Sequence[Tensor | None] = []


class Halves:
    """The backward from `ends`, the graph's, to `inputs` (leaves that want a gradient) and to its parameters."""

    def __init__(self, ends: Sequence[GradientEdge], inputs: Sequence[Tensor]):
        self.ends = list(ends)
        self.inputs = list(inputs)
        graph = Graph(ends)
        wanted = graph.below_all(
            node
            for node in graph.below
            if any(getattr(node, "variable", None) is x for x in inputs)
        )
        spine = {
            node: None
            for node, below in graph.below.items()
            if (below & wanted if wanted else below.bit_count() > 1)
        }
        self._joints: list[Joint] = []
        self._passed: list[Node] = []  # nodes of the spine that are no joint
        for node in spine:
            aside = graph.below_all(n for n, _ in after(node) if n not in spine) & ~wanted
            if aside:
                self._joints.append(Joint(graph.edges(node), aside))
            else:
                self._passed.append(node)
        self._direct = {
            i: Joint([end], graph.below[end.node])
            for i, end in enumerate(ends)
            if end.node not in spine
        }
        once = twice = 0
        for joint in self._all():
            once, twice = once | joint.leaves, twice | once & joint.leaves
        for joint in self._all():
            joint.parameters = graph.named(joint.leaves & ~twice)
        self._shared = graph.named(twice)

    def _all(self) -> list[Joint]:
        """The joints in the order of the backward: outputs first."""
        return [*self._direct.values(), *reversed(self._joints)]

    def input(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """I. The gradients of the inputs; None of one that the ends do not depend on."""
        targets: list[Sequence[Any]] = [self.inputs, self._shared]
        targets += [joint.edges for joint in self._joints]
        flat = [target for group in targets for target in group]
        arrived_grads: Sequence[Tensor | None] = ()
        if flat:
            arrived_grads = torch.autograd.grad(
                self.ends, flat, grads, retain_graph=True, allow_unused=True
            )
        rest = iter(arrived_grads)
        of_inputs, self._early, *of_joints = ([next(rest) for _ in group] for group in targets)
        for joint, arrived in zip(self._joints, of_joints, strict=True):
            joint.grads = arrived
        for i, joint in self._direct.items():
            joint.grads = [grads[i]]
        for node in self._passed:
            release(node)
        self.ends, self._passed = [], []
        return of_inputs

    def weight(self) -> None:
        """W. Gradients accumulate in the parameters."""
        for leaf, grad in zip(self._shared, self._early, strict=True):
            torch.autograd.backward(leaf, grad)
        for joint in self._all():
            pairs = [pair for pair in zip(joint.edges, joint.grads) if pair[1] is not None]
            if pairs and joint.parameters:
                edges, grads = zip(*pairs, strict=True)
                torch.autograd.backward(edges, grads, inputs=joint.parameters)
        self._joints = []
        self._direct = {}
        self._shared = []


def after(node: Node) -> list[tuple[Node, int]]:
    """The nodes that a node passes gradients to, each with the number of its output."""
    return [(successor, i) for successor, i in node.next_functions if successor is not None]


@functools.cache
def _saved(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved")]


def release(node: Node) -> None:
    """Let go of what a node has saved for a backward that will not come again."""
    for name in _saved(type(node)):
        value = getattr(node, name)
        for saved in value if isinstance(value, list | tuple) else [value]:
            with suppress(RuntimeError):  # an optional argument that was not given
                # the value goes to a hook, which drops it
                saved.register_hooks(lambda _: None, lambda _: None)
