"""The exercise of lesson 03 about two kinds of links: fast ones in a node, slow ones between nodes.

With m nodes of g ranks a rank need send no more than 2(m−1)/m·N/g bytes to other nodes: Cho, Finkler, Serrano, Kung and
Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", 2019.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..compare import alike, equal_to, same, who
from ..exam import Case, Exam, Outcome, ask
from ..messages.point import DTYPES, numbers, rounded, words
from ..wrong import Wrong

NODES = ((2, 2), (1, 3), (3, 1), (1, 1), (2, 4), (3, 2), (2, 3), (4, 2))  # nodes, ranks of each
SHAPES = ((8,), (24,), (), (0,), (13,), (3, 5), (1000,))
SPLIT = 24  # bytes of a message of comm.split


class Hierarchical(Exam):
    name = "hierarchical"
    right = (
        "1…4 nodes of 1…4 ranks, 7 shapes and secret lengths, 2(m−1)/m·N/g bytes a rank between m nodes of g; "
        "then 4 and 3 real processes."
    )
    forbidden = ("minidist.collectives.hierarchical", "minidist.parallel")
    cases = tuple(
        Case(
            m * g,
            f"{m} node{'s' * (m > 1)} of {g}, {'a secret length' if s is None else words(s)}",
            (g, s),
        )
        for m, g in NODES
        for s in (*SHAPES, None)
    )
    processes = tuple(
        Case(n, f"{n} real processes in nodes of {g}, {words(s)}", (g, s))
        for n, g, s in ((4, 2, (7,)), (3, 1, (5,)), (4, 2, (3, 3)))
    )

    def draw(self, case, rng):
        per_node, shape = case.given
        shape = (int(torch.randint(100, 3000, (), generator=rng)),) if shape is None else shape
        dtype = DTYPES[int(torch.randint(3, (), generator=rng))]
        return [(numbers(shape, dtype, rng), per_node) for _ in range(case.n)]

    def run(self, comm: Comm, yours, x, per_node):
        held = x.detach()
        yours(comm, x, per_node)
        return held

    def judge(self, case, args, outcome):
        xs, (_, per_node) = [x for x, _ in args], args[0]
        total = sum(xs[1:], xs[0])
        for r, x in enumerate(outcome.results):
            alike(r, x, total, "x")
            same(r, x, total, "x", lambda x, r=r: self._guess(x, xs, r, per_node))
        self._cost(case.n, per_node, xs[0], outcome)

    def _guess(self, x, xs: list, r: int, per_node: int) -> str | None:
        node = r // per_node
        mine = sum(xs[node * per_node : (node + 1) * per_node])
        place = sum(xs[r % per_node :: per_node])
        candidates = {
            f"It is the sum of node {node} alone: the sums of the nodes were never added up.": mine,
            f"It is the sum of the ranks that are number {r % per_node} of their node: the sums in the nodes "
            "are missing.": place,
        }
        twice = {
            f"Node {node}'s sum counts {len(xs) // per_node} times: added up again where all hold it already?": mine
            * (len(xs) // per_node)
        }
        return (
            equal_to(x, candidates)
            or equal_to(x, twice)
            or who(x, xs, r)
            or rounded(x, sum(xs))
            or self._part(x, xs, r, per_node)
        )

    def _part(self, x, xs: list, r: int, per_node: int) -> str | None:
        """Which piece of a node's cut is wrong, and how."""
        parts = [
            [t.reshape(-1).tensor_split(per_node)[i] for t in (x, sum(xs), *xs)]
            for i in range(per_node)
        ]
        for i, (mine, want, *own) in enumerate(parts):
            if not mine.equal(want):
                text = who(mine, own, r)
                return f"Of {per_node} pieces, piece {i}: {text}" if text else None
        return None

    def _cost(self, n: int, g: int, x, outcome: Outcome) -> None:
        m, split = n // g, [m for m in outcome.sent if m[2] == SPLIT]
        piece = -(-x.numel() // n) * m  # padded, if need be
        across, inside = ([0] * n, [0] * n)
        for src, dst, nbytes in outcome.sent:
            (inside if src // g == dst // g else across)[src] += nbytes
        most = 2 * (m - 1) * (piece // m) * x.element_size()
        within = 2 * (g - 1) * piece * x.element_size()
        worst, least = max(across), min(across)
        if worst > most:
            r = across.index(worst)
            text = f"the numbers are right, but rank {r} sends {worst} bytes to other nodes: {most} are enough."
            if len(split) >= n * (n - 1):
                raise Wrong(
                    f"{text} comm.split(color) asks every rank: give the list of all ranks' colors, "
                    "which needs no message."
                )
            raise Wrong(f"{text} {self._why(outcome, n, g, across, inside, least)}")
        r = max(range(n), key=inside.__getitem__)
        if inside[r] > within:
            raise Wrong(
                f"the numbers are right, but rank {r} sends {inside[r]} bytes inside its node: {within} are "
                "enough, if each rank adds up one piece of g."
            )

    def _why(self, outcome: Outcome, n: int, g: int, across: list, inside: list, least: int) -> str:
        if all(set(outcome.receivers(r)) <= {(r + 1) % n} for r in range(n)):
            return "It is one flat ring over all ranks: a step between two nodes is as large as one inside."
        if least == 0:
            idle = across.index(0)
            return (
                f"Rank {idle} sends nothing there: its wire is idle. Let each rank of a node carry one piece of g "
                "across."
            )
        if max(across) > min(across) and max(inside) == min(inside):
            return "Between the nodes one desk does more than the others: a ring shares the work."
        if g > 1 and sum(inside) < sum(across):
            return "More goes between the nodes than inside them: are the two splits the wrong way round?"
        return "Add up inside the node first, and cut: what crosses should be one piece of g."


def hierarchical(yours) -> None:
    """`hierarchical(comm, x, per_node)`: fills every rank's x with the sum, with few bytes between nodes."""
    ask(Hierarchical(), yours)
