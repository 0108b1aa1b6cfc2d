"""Graders of lesson 03: who should send to whom, and what it costs."""

from __future__ import annotations

import math
from functools import partial

import torch

from minidist.collectives import all_reduce_, all_to_all
from minidist.comm.base import Comm
from minidist.comm.cluster import Cluster
from minidist.comm.trace import Message, Trace
from minidist.comm.world import World

from ..exam import (
    ALL,
    HALF,
    ROUGHLY,
    Case,
    Costly,
    Outcome,
    Prediction,
    Report,
    Solo,
    Wrong,
    bare,
    equal,
    few,
    first_near,
    integer,
    near,
    number,
    ranked,
    real,
    recognized,
    typed,
    uniform,
    who,
)
from .messages import (
    COPIED,
    InPlace,
    one_to_each,
    strided,
    sum_of,
    tensors,
    words,
    wrong_part,
)

# ------------------------------------------------------------
# The shape of a broadcast: a tree, and a pipeline with a bug.
#
# The World has α = 0 and β = 1 s a byte, so its clock counts: a message of N bytes takes N seconds, a rank sends
# one at a time and receives one at a time. A broadcast in k rounds of whole tensors takes k·N seconds, however it is
# written: Thakur, Rabenseifner and Gropp 2005, on broadcast.


# first what can be wrong and be drawn, then where trees go wrong
TREE_RANKS = (4, 2, 3, 1, 5, 8, 7, 13, 16)
TREE_SHAPES = ((4,), (), (0,), (13,), (3, 5))
AGAIN = "a length that was there before, and other numbers"


def in_time(outcome: Outcome, nbytes: int, least: float, enough: int, what: str, hint) -> None:
    """Raise Wrong if a case took less than `least` messages of `nbytes`, one after the other, or more than `enough`; where
    a clock says so. hint(took): why it took longer."""
    if outcome.time is None or not nbytes:
        return
    took = outcome.time / nbytes
    if took < least:
        raise Wrong(
            f"the World's clock says {took:g} {what}, and {least:g} is the least there can be. An answer leaves the clock "
            "alone."
        )
    if took > enough:
        raise Costly(
            f"the numbers are right, but it takes {took:g} {what}: {enough} are enough. {hint(took)}"
        )


class ByteClock(InPlace):
    """An examination in a World whose clock counts bytes."""

    def world(self, n, args):
        return World(n, alpha=0.0, beta=1.0)


class TreeBroadcast(ByteClock):
    """`tree_broadcast(comm, x, root)`: fills every rank's x with the root's. n−1 messages, ⌈log2 n⌉ rounds."""

    name = "tree_broadcast"
    right = "n = 1…33, every root, n−1 messages, ⌈log2 n⌉ rounds; then 2, 3 and 5 real processes."
    # Each n with three roots, then each shape: all n with all shapes would take five times as long, and tell no more.
    cases = (
        *ranked(
            lambda n, s, root: f"n = {n}, root {root}, {words(s)}",
            [
                *(
                    (n, TREE_SHAPES[0], root)
                    for n in TREE_RANKS
                    for root in dict.fromkeys((0, n - 1, n // 2))
                ),
                *((n, s, root) for s in TREE_SHAPES[1:] for n, root in ((4, 0), (5, 4), (16, 8))),
            ],
        ),
        Case(4, f"n = 4, root 0, {AGAIN}", (TREE_SHAPES[0], 0)),
        *(
            Case(n, f"n = {n}, root, length drawn at random, nan in x", ((100, 400), None))
            for n in (6, 11, 12, 33)
        ),
    )
    processes = tuple(
        Case(n, f"{n} real processes, root {root}, {words(s)}", (s, root))
        for n, root, s in ((3, 1, (7,)), (2, 1, (5,)), (5, 2, (3, 5)))
    )

    def draw(self, case, rng):
        shape, root = case.given
        secret = root is None
        if secret:
            shape, root = (integer(rng, *shape),), integer(rng, 1, case.n)
        return [(x, root) for x in tensors(shape, case.n, rng, secret)]

    def run(self, comm, yours, x, root):
        return super().run(comm, yours, strided(x), root)

    def wants(self, case, args):
        return [{"x": args[args[0][1]][0]}] * case.n

    def cost(self, case, args, outcome):
        n, (x, root) = case.n, args[0]
        least = (n - 1).bit_length()
        one_to_each(outcome, n, x.nbytes)
        fewest = rounds(outcome.sent, root)
        if outcome.time is None:
            outcome = outcome._replace(time=float(x.nbytes * fewest))
        hint = lambda took: shape_of(outcome, n, root)
        in_time(outcome, x.nbytes, max(least, fewest), least, "rounds", hint)

    def mistakes(self, case, args, rank, name, got):
        xs, root = [x for x, _ in args], args[0][1]
        if equal(got, xs[rank]):
            if not strided(got).is_contiguous():
                return COPIED
            return f"It is rank {rank}'s own, as before: nothing arrived from root {root}."
        return who(got, xs, rank) if len(xs) < 9 else f"It is not root {root}'s."


def rounds(sent: list[tuple[int, int, int]], root: int) -> int:
    """The fewest rounds in which a tree's messages can be sent: each rank sends to the largest part of its tree first."""
    below = sorted(
        (rounds([m for m in sent if m[1] != root], dst) for src, dst, _ in sent if src == root),
        reverse=True,
    )
    return max((place + 1 + under for place, under in enumerate(below)), default=0)


def shape_of(outcome: Outcome, n: int, root: int) -> str:
    """What kind of broadcast it was, and what is slow about it."""
    sends = [outcome.messages(r) for r in range(n)]
    if sends[root] == n - 1:
        return f"Root {root} does all the work, while those who have it already are idle: let them send, too."
    if max(sends) == 1:
        return "It is a chain: each passes it on once, and is idle then. Who has it should go on sending."
    if sends[root] < (n - 1).bit_length() and n & (n - 1) == 0:
        return f"Root {root} sends {sends[root]} and is idle then. In every round, all who have it send."
    return "It is a tree, but not all who have it send in every round. Serve the largest part of the tree first."


class Pipeline(ByteClock):
    """`pipeline(comm, x, pieces)`: rank 0's x on every rank, along a chain, in n−2+pieces steps of a piece each."""

    name = "pipeline"
    right = "n = 1…9, 1 to 32 pieces, n−2+pieces steps; then 2 and 3 real processes."
    cases = (
        *(
            Case(n, f"n = {n}, {pieces} pieces of {size} numbers", (size * pieces, pieces))
            for n, pieces, size in (
                (4, 8, 2),
                (2, 4, 3),
                (1, 2, 2),
                (3, 1, 5),
                (3, 2, 4),
                (8, 32, 1),
                (5, 5, 7),
            )
        ),
        *(
            Case(n, f"n = {n}, {pieces} pieces, {size} numbers", (size, pieces))
            for n, pieces, size in ((3, 4, 7), (4, 3, 2), (2, 2, 0), (4, 6, 41))
        ),
        Case(4, f"n = 4, 8 pieces, {AGAIN}", (16, 8)),
        *(
            Case(n, f"n = {n}, numbers and pieces drawn at random, nan in x", None)
            for n in (3, 6, 9)
        ),
    )
    processes = tuple(
        Case(n, f"{n} real processes, 4 pieces, {size} numbers", (size, 4))
        for n, size in ((3, 11), (2, 8))
    )

    def draw(self, case, rng):
        secret = case.given is None
        size, pieces = case.given or [integer(rng, 1, most) for most in (100, 12)]
        return [(x, pieces) for x in tensors((size,), case.n, rng, secret)]

    def wants(self, case, args):
        return [{"x": args[0][0]}] * case.n

    def cost(self, case, args, outcome):
        n, (x, pieces) = case.n, args[0]
        for r in range(n - 1):
            if outcome.receivers(r) not in ([r + 1], []):
                raise Wrong(
                    f"the numbers are right, but rank {r} sends to {outcome.receivers(r)}: in a chain it "
                    f"sends to rank {r + 1} only."
                )
            if outcome.messages(r) != pieces or outcome.nbytes(r) != x.nbytes:
                raise (Costly if outcome.nbytes(r) >= x.nbytes else Wrong)(
                    f"the numbers are right, but rank {r} sends {outcome.messages(r)} messages with "
                    f"{outcome.nbytes(r)} bytes, and should send {pieces} pieces, {x.nbytes} bytes together."
                )
        piece = -(-x.numel() // pieces) * x.element_size()
        if n > 1:
            hint = partial(self._hint, n, pieces)
            in_time(
                outcome, piece, x.nbytes / max(1, piece), n - 2 + pieces, "steps of a piece", hint
            )

    def _hint(self, n, pieces, took):
        if took > (n - 1) * pieces - 1:
            return "Each rank waits for the last piece before it passes on the first."
        return "A rank has a wire out and a wire in: while one piece leaves, the next can arrive."

    def mistakes(self, case, args, rank, name, got):
        xs, pieces = [x for x, _ in args], args[0][1]
        i, mine, own = wrong_part(got, xs[0], xs, pieces)
        right = xs[0].tensor_split(pieces)
        if any(equal(mine, x) for x in own[1:rank]):
            return f"Piece {i} of {pieces} was passed on before the root's had arrived."
        if equal(mine, own[rank]):
            return f"Piece {i} of {pieces} is as before: it never arrived, or not into x."
        places = [j for j in range(pieces) if equal(mine, right[j])]
        return places and f"Piece {i} is the root's piece {places[0]}, in the wrong place."


# ------------------------------------------------------------
# Recursive halving and doubling: few messages and few bytes at once.
#
# 2·log2 n messages and 2(n−1)/n·N bytes a rank: Thakur, Rabenseifner and Gropp 2005, on all-reduce.


HALVING_RANKS = (4, 2, 8, 1, 16)
HALVING_SHAPES = ((8,), (16,), (), (1,), (0,), (3,), (13,), (4, 6), (1000,))


class HalvingDoubling(InPlace):
    """`halving_doubling(comm, x)`: fills every rank's x with the sum; n is a power of 2. 2·log2 n messages a rank."""

    name = "halving_doubling"
    right = (
        "n = 1…32, 9 shapes and secret lengths, 2·log2 n messages and 2(n−1)/n·N bytes a rank; "
        "then 2 and 4 real processes."
    )
    cases = (
        *(
            Case(n, f"n = {n}, {words(s)}", s)
            for n in HALVING_RANKS
            for s in HALVING_SHAPES[:: 1 if n in (4, 2, 8) else 4]
        ),
        Case(4, f"n = 4, {AGAIN}", HALVING_SHAPES[0]),
        *(Case(n, f"n = {n}, a length drawn at random, nan in x", None) for n in (4, 8, 32)),
    )
    processes = ranked(
        lambda n, s: f"{n} real processes, {words(s)}", ((4, (12,)), (2, (5,)), (4, (3, 3)))
    )

    def draw(self, case, rng):
        secret = case.given is None
        shape = (integer(rng, 100, 3000),) if secret else case.given
        return [(x,) for x in tensors(shape, case.n, rng, secret)]

    def wants(self, case, args):
        return [{"x": sum_of(args)}] * case.n

    def cost(self, case, args, outcome):
        n, (x,) = case.n, args[0]
        steps = n.bit_length() - 1
        most = 2 * sum(-(-x.numel() // 2**k) * x.element_size() for k in range(1, steps + 1))
        few(outcome, most, "In the first half what a rank sends should be halved in every step.")
        for r in range(n):
            sent = outcome.messages(r)
            if sent != 2 * steps and (x.numel() or sent > 2 * steps):
                raise (Costly if sent > 2 * steps else Wrong)(
                    f"the numbers are right, but rank {r} sends {sent} messages: 2·log2 n = {2 * steps} is "
                    f"what is asked for.{_ring(outcome, r, n)}"
                )

    def mistakes(self, case, args, rank, name, got):
        """The parts that are wrong, at the finest cut at which one of them has a simple cause."""
        n, xs = case.n, [x for (x,) in args]
        total = sum_of(args)
        for cut in sorted({1, 2, n}):
            i, mine, own = wrong_part(got, total, xs, cut)
            text = who(mine, own, rank) if n < 9 else ""
            if text:
                return f"Of {cut} parts, part {i}: {text}" if cut > 1 else text
        return "Some parts have the wrong sum: do both partners cut the same part of x, and keep different halves?"


def _ring(outcome, r, n):
    return (
        " Is it a ring?" if n > 2 and outcome.receivers(r) in ([(r + 1) % n], [(r - 1) % n]) else ""
    )


# ------------------------------------------------------------
# Numbers: what all-reduces cost, as formulas and predicted, and as bandwidth.
#
# A formula is compared with the clock of a World, which knows none: it only moves messages.


COST_RANKS = {
    "ring": (4, 2, 3, 7, 16, 1),
    "tree": (4, 2, 8, 32, 1),
    "halving_doubling": (4, 2, 8, 32, 1),
}
NEARLY = "Nearly: the factor is 2(n−1)/n."


def clock(algorithm: str, n: int, nbytes: int, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce of `nbytes` on a World of n ranks: it is run, on tensors without data."""
    world = World(n, alpha=alpha, beta=beta, device="meta")
    data = torch.empty(nbytes, dtype=torch.uint8, device="meta")
    world.run(lambda comm, x: all_reduce_(comm, x, algorithm=algorithm), data)
    return world.time


class AllReduceSeconds(Solo):
    """`all_reduce_seconds(algorithm, n, nbytes, alpha, beta)`: of "ring", "tree" and "halving_doubling"."""

    name = "all_reduce_seconds"
    right = (
        "Three algorithms, n = 1…32, bytes, α and β drawn at random: as on the clock of a World."
    )
    cases = tuple(
        Case(1, f"{name}, n = {n}", (name, n)) for name, ns in COST_RANKS.items() for n in ns
    )

    def draw(self, case, rng):
        algorithm, n = case.given
        alpha, beta, share = [
            10 ** (low + wide * uniform(rng)) for low, wide in ((-6, 2), (-11, 2), (-0.5, 1))
        ]
        # so that no term is lost in the other
        return [(algorithm, n, n * int(share * alpha / beta), alpha, beta)]

    def wants(self, case, args):
        return [{"the result": clock(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        _, _, nbytes, alpha, beta = args[0]
        got = number(got, name)
        if not near(got, want, 1e-6):
            slip = first_near(got, slips_of(*args[0]), ROUGHLY) or part_wrong(*args[0], got, want)
            raise Wrong(
                f"{nbytes} bytes, α = {alpha:.3g} s, β = {beta:.3g} s/B: your formula gives {real(got):.6g} s, the "
                f"World takes {want:.6g} s. {slip}"
            )


def slips_of(algorithm: str, n: int, nbytes: int, alpha: float, beta: float) -> dict[float, str]:
    """Wrong values and what they mean."""
    steps = 2 * (n - 1) if algorithm == "ring" else 2 * math.log2(n)
    sent = 2 * math.log2(n) * nbytes if algorithm == "tree" else 2 * (n - 1) / n * nbytes
    log, whole = 2 * math.log(n), steps * (alpha + nbytes * beta)
    right = steps * alpha + sent * beta
    slips = {
        right / 2: "That is one half: up to the sum, and not back to everyone.",
        log * alpha
        + (log * nbytes if algorithm == "tree" else sent) * beta: "The logarithm is to base 2.",
        alpha + sent * beta: "Every step costs an α, not the first alone.",
        whole: "In each step only a part of x travels, not all N bytes.",
        n * (alpha + nbytes / n * beta) * 2: "In a ring of n ranks a chunk takes n−1 steps, not n.",
        2 * (n - 1) * alpha
        + 2 * (n - 1) / n * nbytes * beta: "Those are the steps of a ring, 2(n−1).",
        steps
        * (alpha + nbytes / n * beta): "How many bytes does a rank send in all the steps together?",
        steps * alpha
        + 2 * nbytes * beta: "How many bytes does a rank send in all the steps together?",
        steps * alpha + 8 * sent * beta: "Bytes, not bits.",
        1e6 * right: "Seconds are asked for.",
    }
    return slips if n > 1 else {}


def part_wrong(
    algorithm: str, n: int, nbytes: int, alpha: float, beta: float, got: float, want: float
) -> str:
    """Which of the two terms is off, if the other fits."""
    latency = clock(algorithm, n, nbytes, alpha, 0.0)
    for value, text in ((latency, "the bytes"), (want - latency, "the latencies")):
        if n > 1 and near(got, value, ROUGHLY):
            return f"{text.capitalize()} are missing."
    return (
        "With one rank nothing is sent."
        if n == 1
        else f"It is too {'large' if got > want else 'small'}."
    )


FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


EXACTLY = 1e-12  # so that what is rounded to whole bytes per second shows


class Bandwidth(Solo):
    name = "bandwidth"
    right = "Six verbs, ranks, bytes and seconds drawn at random, as nccl-tests define it."
    cases = tuple(Case(1, verb, (verb, n)) for verb in FACTORS for n in (8, 2, 3, None))

    def draw(self, case, rng):
        verb, n = case.given
        n = n or integer(rng, 4, 2000)
        nbytes, seconds = [10 ** (low + 3 * uniform(rng)) for low in (6, -4)]
        return [(verb, n, int(nbytes), seconds)]

    returns = ("the algorithm bandwidth", "the bus bandwidth")

    def wants(self, case, args):
        verb, n, nbytes, seconds = args[0]
        want = nbytes / seconds
        return [dict(zip(self.returns, (want, FACTORS[verb](n) * want)))]

    def value(self, case, args, rank, name, got, want):
        verb, n, nbytes, seconds = args[0]
        got = number(got, name)
        if near(got, want, EXACTLY):
            return
        algorithm, bus = self.wants(case, args)[0].values()
        if name in self.returns[:1]:
            text = "Nearly: is something rounded?" if near(got, want, ROUGHLY) else ""
            text = "That is the other of the two." if near(got, bus, EXACTLY) else text
            raise Wrong(
                f"n = {n}, {nbytes} bytes in {seconds:.3g} s: the algorithm bandwidth is {real(got):.6g}, and "
                f"should be N over seconds, {want:.6g} bytes per second. {text}".rstrip()
            )
        raise Wrong(
            f"n = {n}: the bus bandwidth is {real(got) / algorithm:.4g} times the algorithm bandwidth, and should be "
            f"{want / algorithm:.4g} times. {self._why(verb, n, real(got) / algorithm)}"
        )

    def _why(self, verb, n, factor):
        one = (n - 1) / n
        if near(factor, 2 * one, ROUGHLY):
            return "An all-reduce has two halves; this verb is one, or none."
        texts = {
            one: HALF if verb == "all_reduce" else "Each must have all N bytes, and pass them on.",
            1: NEARLY
            if verb == "all_reduce"
            else "What it has already, a rank need not send: 1/n of N.",
            n / (n - 1): "It is the other way up.",
            n - 1: "N is the whole tensor, not the part of one rank.",
            n / (2 * (n - 1)): "It is the other way up.",
        }
        return first_near(factor, texts, ROUGHLY, "What must each rank send?")


def predict_cost(nodes=64, per_node=8, nbytes=1e9, alpha=5e-6, beta=1 / 50e9, p=0.001):
    """512 ranks, α = 5 µs, β = 1/(50 GB/s): seconds of a ring's and a tree's latencies, and where the two cross.

    across: bytes that a rank sends to other nodes, when 64 nodes of 8 reduce 10⁹ bytes in three steps.
    late: how likely a step waits, if each rank is late once in a thousand steps.
    """
    n = nodes * per_node
    log = math.log2(n)
    piece = nbytes / per_node
    cross = (n - 1 - log) * alpha / ((log - (n - 1) / n) * beta)
    values = {
        "ring": 2 * (n - 1) * alpha,
        "tree": 2 * log * alpha,
        "crossover": cross,
        "across": 2 * (nodes - 1) / nodes * piece,
        "late": 1 - (1 - p) ** n,
    }
    slips = {
        "ring": {
            (n - 1) * alpha: HALF,
            2 * log * alpha: "That is the tree.",
            alpha: "Each of 2(n−1) steps has an α.",
        },
        "tree": {
            log * alpha: "To the root, and back: two trees.",
            2 * (n - 1) * alpha: "That is the ring.",
            2 * math.log(n) * alpha: "The logarithm is to base 2.",
        },
        "crossover": {
            (n - 1)
            * alpha
            / (log * beta): "Nearly: a tree has latencies, too, and a ring has bytes.",
            (n - 1 - log) * alpha / (log * beta): "Nearly: the ring's bytes count, too.",
            (n - 1) * alpha / ((log - 1) * beta): "Nearly: the tree's latencies count, too.",
            cross / 4: "Bytes are asked for, not numbers.",
            cross / n: "That is one chunk: the whole tensor is asked for.",
        },
        "across": {
            2 * (nodes - 1) / nodes * nbytes: "Each rank of a node carries one piece of 8.",
            2 * piece: f"Nearly: the ring is over m = {nodes} nodes, not over all ranks: 2(m−1)/m.",
            piece: "In a ring each rank sends nearly twice its tensor: 2(m−1)/m.",
            (nodes - 1) / nodes * piece: HALF,
            2 * (nodes - 1) * piece: ALL,
        },
        "late": {
            n * p: "Two may be late at once: then they are counted twice.",
            p: "That is one rank.",
            (1 - p) ** n: "That is how likely it is that nobody is late.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_cost,
    "Seconds, bytes and odds, within 1 %.",
    {
        "nodes": ("{} nodes of 8 ranks, all of which take part", (8, 16, 32)),
        "nbytes": ("{:,.0f} bytes that are reduced", (2e9, 3e9, 4e9)),
    },
)


# ------------------------------------------------------------
# Two kinds of links: fast ones in a node, slow ones between nodes.
#
# With m nodes of g ranks a rank need send no more than 2(m−1)/m·N/g bytes to other nodes: Cho, Finkler, Serrano, Kung and
# Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", 2019.


# nodes, ranks of each
NODES = ((2, 2), (1, 3), (3, 1), (1, 1), (2, 4), (3, 2), (2, 3), (5, 1), (1, 5), (4, 2))
NODES_SHAPES = ((8,), (24,), (), (0,), (13,), (3, 5), (1000,))
SPLIT = 24  # bytes of a message of comm.split


class Hierarchical(InPlace):
    """`hierarchical(comm, x, per_node)`: fills every rank's x with the sum, with few bytes between nodes."""

    name = "hierarchical"
    right = (
        "1…5 nodes of 1…5 ranks, 7 shapes and secret lengths, 2(m−1)/m·N/g bytes a rank between m nodes of g; "
        "then 4 and 3 real processes."
    )
    forbidden = ("minidist.collectives.hierarchical", "minidist.parallel")
    cases = tuple(
        Case(
            m * g,
            f"{m} node{'s' * (m > 1)} of {g}, {'a secret length, nan in x' if s is None else words(s)}",
            (g, s),
        )
        for m, g in NODES
        for s in (*NODES_SHAPES, None)
    ) + (Case(4, f"2 nodes of 2, {AGAIN}", (2, NODES_SHAPES[0])),)
    processes = ranked(
        lambda n, g, s: f"{n} real processes in nodes of {g}, {words(s)}",
        ((4, 2, (7,)), (3, 1, (5,)), (4, 2, (3, 3))),
    )

    def draw(self, case, rng):
        per_node, shape = case.given
        secret = shape is None
        shape = (integer(rng, 100, 3000),) if secret else shape
        return [(x, per_node) for x in tensors(shape, case.n, rng, secret)]

    def wants(self, case, args):
        return [{"x": sum_of(args)}] * case.n

    def mistakes(self, case, args, rank, name, got):
        xs, per_node = [x for x, _ in args], args[0][1]
        node, nodes = rank // per_node, case.n // per_node
        mine = sum(xs[node * per_node : (node + 1) * per_node])
        looks = {
            f"It is the sum of node {node} alone: the sums of the nodes were never added up.": mine,
            f"It is the sum of the ranks that are number {rank % per_node} of their node: the sums in the nodes "
            "are missing.": sum(xs[rank % per_node :: per_node]),
            f"Node {node}'s sum counts {nodes} times: added up again where all hold it already?": mine
            * nodes,
        }
        found = recognized(got, looks, "", equal) or who(got, xs, rank)
        i, part, own = wrong_part(got, sum(xs), xs, per_node)
        text = who(part, own, rank)
        return found or (text and f"Of {per_node} pieces, piece {i}: {text}")

    def cost(self, case, args, outcome):
        n, (x, g) = case.n, args[0]
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
            raise Costly(
                f"the numbers are right, but rank {r} sends {inside[r]} bytes inside its node: {within} are "
                "enough, if each rank adds up one piece of g."
            )

    def _why(self, outcome, n, g, across, inside, least):
        if all(set(outcome.receivers(r)) <= {(r + 1) % n} for r in range(n)):
            return "It is one flat ring over all ranks: a step between two nodes is as large as one inside."
        if least == 0:
            idle = across.index(0)
            return (
                f"Rank {idle} sends nothing there: its wire is idle. Let each rank of a node carry one piece of g "
                "across."
            )
        if g > 1 and sum(inside) < sum(across):
            return "More goes between the nodes than inside them: are the two splits the wrong way round?"
        return "Add up inside the node first, and cut: what crosses should be one piece of g."


# ------------------------------------------------------------
# The one rank that all others wait for: find it in the trace of a run.
#
# The runs are made here, in Worlds of a cluster with one slow rank and some noise; the answer sees their messages only.


NOISE = 0.05  # spread of the times of messages
SLOWER = (1.5, 4.0)  # times as long, the slow rank


def busy(comm: Comm, x, two: list[int]) -> None:
    """Two ranks exchange more than all others, or smaller messages: who has the most to do, or waits for latencies, need
    not be slow."""
    if comm.rank in two:
        other = two[comm.rank == two[0]]
        for _ in range(10):
            comm.sendrecv(x, other, torch.empty_like(x), other)


def program(comm: Comm, verb, two: list[int], theirs: int, sizes: list[int]) -> None:
    """All-reduces or all-to-alls of the sizes, among which two ranks are busy with something else."""
    for size in sizes:
        busy(comm, torch.empty(theirs, dtype=torch.uint8, device=comm.device), two)
        verb(comm, torch.empty(size * comm.size, dtype=torch.uint8, device=comm.device))


VERBS = {"all-reduce": all_reduce_, "all-to-all": all_to_all}


class FindSlow(Report):
    """`find_slow(trace)`: the rank whose messages take longer than the others'."""

    name = "find_slow"
    right = (
        "4 to 9 ranks, all-reduces and all-to-alls, any rank slow, by 1.5 to 4 times, with noise."
    )
    # In a ring two ranks send slow messages only: to guess right in all of so many cases is one chance in 8,000.
    cases = tuple(
        Case(1, f"{n} ranks, {name}", (n, name, theirs))
        for name, ns, theirs in (
            ("all-reduce", range(4, 11), 10**7),
            ("all-reduce", range(5, 11), 10**3),
            ("all-to-all", (5, 4, 8), 10**7),
        )
        for n in ns
    )

    def draw(self, case, rng):
        (n, name, theirs), (low, high) = case.given, SLOWER
        self.slow, seed = [integer(rng, 0, most) for most in (n, 2**31)]
        self.factor = low + (high - low) * uniform(rng)
        # no neighbours of the slow one
        first = self.slow + 2 + integer(rng, 0, max(1, n - 4))
        self.busy = [first % n, (first + 1) % n] if n > 4 else []
        sizes = [integer(rng, 10**5, 10**7) // n for _ in range(3)]
        cluster = (
            Cluster.uniform(n, 5e-6, 1 / 50e9).slow_rank(self.slow, self.factor).jitter(NOISE, seed)
        )
        world = World(n, cluster=cluster, device="meta")
        world.run(program, VERBS[name], self.busy, theirs, sizes)
        return [(n, [tuple(m)[:6] for m in world.trace])]

    def run(self, comm, yours, n, rows):
        trace = Trace(n)
        for row in rows:
            trace.add(*row)
        return yours(trace)

    def check(self, case, got, n, rows):
        got = bare(got)
        typed(got, int, "the result", "the number of a rank, an int")
        if not 0 <= got < n:
            raise Wrong(f"there is no rank {got}: there are {n} ranks, 0 to {n - 1}.")
        if got != self.slow:
            raise Wrong(
                f"rank {got} is not slow, rank {self.slow} is: its messages take {self.factor:.2g} times as "
                f"long. {self._why(got, [Message(*row, None, 'main') for row in rows])}"
            )

    def _why(self, got, messages):
        if got in self.busy:
            return (
                f"Rank {got} has more messages than others, large ones or small ones: compare the seconds per byte, from "
                "start to sent."
            )
        if any({got, self.slow} == {m.src, m.dst} for m in messages):
            return (
                f"What rank {got} exchanges with others than rank {self.slow} is as fast as can be."
            )
        return "In a slow rank's messages each byte takes longer, in those that it sends and those that it receives."
