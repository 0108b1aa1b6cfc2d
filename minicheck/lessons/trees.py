"""Graders of lesson 04: trees, halving, and hierarchies."""

from __future__ import annotations

import math
from functools import partial

import torch

from minidist.collectives import all_reduce_
from minidist.comm.base import Comm
from minidist.comm.world import World

from ..exam import (
    ALL,
    HALF,
    ROUGHLY,
    Case,
    Costly,
    Outcome,
    Prediction,
    Solo,
    Wrong,
    equal,
    few,
    first_near,
    integer,
    near,
    number,
    ranked,
    real,
    recognized,
    shuffled,
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
AGAIN = "a length that came before, with other numbers"


def in_time(outcome: Outcome, nbytes: int, least: float, enough: int, what: str, hint) -> None:
    """Raise Wrong if a case took less than `least` messages of `nbytes`, one after the other, or more than `enough`; where
    a clock says so. hint(took): why it took longer."""
    if outcome.time is None or not nbytes:
        return
    took = outcome.time / nbytes
    if took < least:
        raise Wrong(
            f"the World's clock shows {took:g} {what}, and {least:g} are the least that is possible: leave the clock "
            "alone."
        )
    if took > enough:
        raise Costly(
            f"the numbers are right, but it takes {took:g} {what}, and {enough} are enough. {hint(took)}"
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
        return f"Root {root} does all the work, while those who already have the numbers are idle: let them send, too."
    if max(sends) == 1:
        return "It is a chain: each rank passes the numbers on once, and is idle afterwards. Whoever has them should go on sending."
    if sends[root] < (n - 1).bit_length() and n & (n - 1) == 0:
        return f"Root {root} sends {sends[root]} messages, and is idle afterwards. In every round all who have the numbers should send."
    return "It is a tree, but not in every round do all who have the numbers send. Serve the largest part of the tree first."


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
            return "Each rank waits for the last piece before it passes the first one on."
        return "A rank has a wire out and a wire in: while one piece leaves, the next can arrive."

    def mistakes(self, case, args, rank, name, got):
        xs, pieces = [x for x, _ in args], args[0][1]
        i, mine, own = wrong_part(got, xs[0], xs, pieces)
        right = xs[0].tensor_split(pieces)
        if any(equal(mine, x) for x in own[1:rank]):
            return (
                f"Piece {i} of {pieces} was passed on before the root's numbers had arrived in it."
            )
        if equal(mine, own[rank]):
            return (
                f"Piece {i} of {pieces} is as before: it never arrived, or it did not arrive in x."
            )
        places = [j for j in range(pieces) if equal(mine, right[j])]
        return places and f"Piece {i} is the root's piece {places[0]}, in the wrong place."


# ------------------------------------------------------------
# Recursive halving and doubling: few messages and few bytes at once, and the ranks beyond a power of two folded.
#
# p, the largest power of 2 up to n, ranks take part in 2·log2 p steps with 2(p−1)/p·N bytes a rank; each of the n−p others
# gives its x to one of them, and is told the sum: Thakur, Rabenseifner and Gropp 2005, on all-reduce.


HALVING_RANKS = (4, 3, 2, 6, 8, 1, 5, 7, 16)
HALVING_SHAPES = ((8,), (16,), (), (1,), (0,), (3,), (13,), (4, 6), (1000,))


class HalvingDoubling(InPlace):
    """`halving_doubling(comm, x)`: fills every rank's x with the sum, for any n. 2·log2 p messages a rank, and the folding."""

    name = "halving_doubling"
    right = (
        "n = 1…32, 9 shapes and secret lengths, 2·log2 p messages and 2(p−1)/p·N bytes per rank, and 2 messages for "
        "each of the n−p ranks that are folded; then 2, 3 and 4 real processes."
    )
    cases = (
        *(
            Case(n, f"n = {n}, {words(s)}", s)
            for n in HALVING_RANKS
            for s in HALVING_SHAPES[:: 1 if n in (4, 3, 2, 8) else 4]
        ),
        Case(4, f"n = 4, {AGAIN}", HALVING_SHAPES[0]),
        *(Case(n, f"n = {n}, a length drawn at random, nan in x", None) for n in (4, 8, 11, 32)),
    )
    processes = ranked(
        lambda n, s: f"{n} real processes, {words(s)}", ((4, (12,)), (2, (5,)), (3, (4, 3)))
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
        folded = n - 2**steps
        most = 2 * sum(-(-x.numel() // 2**k) * x.element_size() for k in range(1, steps + 1))
        fold = x.nbytes if folded else 0
        few(
            outcome,
            most + fold,
            "In the halving a rank should send half as much in every step as in the one before.",
        )
        for r in range(n):
            sent = outcome.messages(r)
            enough = 2 * steps + (folded > 0)
            too_few = not folded and sent < enough and x.numel()
            if sent > enough or too_few:
                raise (Costly if sent > enough else Wrong)(
                    f"the numbers are right, but rank {r} sends {sent} messages, and should send "
                    f"{'at most 2·log2 p and one for the folding' if folded else '2·log2 n'}: {enough}."
                    f"{_ring(outcome, r, n)}"
                )
        in_all = 2**steps * 2 * steps + 2 * folded
        if outcome.messages() > in_all or outcome.nbytes() > 2**steps * most + 2 * folded * fold:
            raise Costly(
                f"the numbers are right, but all ranks together send {outcome.messages()} messages with "
                f"{outcome.nbytes()} bytes, and {in_all} with {2**steps * most + 2 * folded * fold} are enough. A rank that is "
                "folded sends once and receives once."
            )

    def mistakes(self, case, args, rank, name, got):
        """The parts that are wrong, at the finest cut at which one of them has a simple cause."""
        n, xs = case.n, [x for (x,) in args]
        total = sum_of(args)
        for cut in sorted({1, 2, 2 ** (n.bit_length() - 1)}):
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
# Numbers: what all-reduces cost, as formulas and predicted.
#
# A formula is compared with the clock of a World, which knows none: it only moves messages.


COST_RANKS = {
    "ring": (4, 2, 3, 7, 16, 1),
    "tree": (4, 2, 8, 32, 1),
    "recursive_doubling": (4, 2, 8, 32, 1),
    "halving_doubling": (4, 2, 8, 6, 3, 13, 32, 1),
}


def doubled(comm: Comm, x: torch.Tensor) -> None:
    """Recursive doubling: all of x is exchanged in every step."""
    distance = 1
    while distance < comm.size:
        partner = comm.rank ^ distance
        comm.sendrecv(x, partner, torch.empty_like(x), partner)
        distance *= 2


def clock(algorithm: str, n: int, nbytes: int, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce of `nbytes` on a World of n ranks: it is run, on tensors without data."""
    world = World(n, alpha=alpha, beta=beta, device="meta")
    data = torch.empty(nbytes, dtype=torch.uint8, device="meta")
    if algorithm == "recursive_doubling":
        world.run(doubled, data)
    else:
        world.run(lambda comm, x: all_reduce_(comm, x, algorithm=algorithm), data)
    return world.time


class AllReduceSeconds(Solo):
    """`all_reduce_seconds(algorithm, n, nbytes, alpha, beta)`: of four algorithms."""

    name = "all_reduce_seconds"
    right = "Four algorithms, n = 1…32, bytes, α and β drawn at random: as on the clock of a World."
    cases = tuple(
        Case(1, f"{name}, n = {n}", (name, n)) for name, ns in COST_RANKS.items() for n in ns
    )

    def draw(self, case, rng):
        algorithm, n = case.given
        alpha, beta, share = [
            10 ** (low + wide * uniform(rng)) for low, wide in ((-6, 2), (-11, 2), (-0.5, 1))
        ]
        # so that no term is lost in the other, and every step's part is a whole number of bytes
        return [(algorithm, n, 32 * n * int(1 + share * alpha / beta / 32), alpha, beta)]

    def wants(self, case, args):
        return [{"the result": clock(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        _, _, nbytes, alpha, beta = args[0]
        got = number(got, name)
        if not near(got, want, 1e-6):
            slip = first_near(got, slips_of(*args[0]), ROUGHLY) or part_wrong(*args[0], got, want)
            raise Wrong(
                f"{nbytes} bytes, α = {alpha:.3g} s, β = {beta:.3g} s/B: your formula gives {real(got):.6g} s, and "
                f"the World takes {want:.6g} s. {slip}"
            )


def slips_of(algorithm: str, n: int, nbytes: int, alpha: float, beta: float) -> dict[float, str]:
    """Wrong values and what they mean."""
    p = 2 ** (n.bit_length() - 1)
    log = math.log2(p)
    steps = {"ring": 2 * (n - 1), "recursive_doubling": log}.get(algorithm, 2 * log)
    active = n if algorithm == "ring" else p
    sent = 2 * (active - 1) / active * nbytes
    if algorithm in ("tree", "recursive_doubling"):
        sent = steps * nbytes
    natural = steps * math.log(2)
    by_log = natural * nbytes if algorithm in ("tree", "recursive_doubling") else sent
    right = steps * alpha + sent * beta
    slips = {
        right / 2: "That is one half: the way up to the sum, without the way back to everyone.",
        natural * alpha + by_log * beta: "The logarithm is to base 2.",
        alpha + sent * beta: "Every step costs an α, not only the first one.",
        steps * (alpha + nbytes * beta): "In each step only a part of x travels, not all N bytes.",
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
    if algorithm == "recursive_doubling":
        slips[2 * right] = "After the last exchange all have the sum: there is no way back."
    if p < n and algorithm == "halving_doubling":
        fold = alpha + nbytes * beta
        slips = {
            right: "The n−p ranks that are too many have to give their x away and be told the sum.",
            right
            + fold: "The ranks that are folded give their x away and are told the sum: that makes two messages.",
            right + 2 * alpha: "The whole of x is folded: N bytes each way.",
            2 * math.log2(n) * alpha
            + 2 * (n - 1) / n * nbytes * beta: "n is not a power of 2: who has no partner?",
            2 * math.ceil(math.log2(n)) * alpha
            + 2 * (n - 1) / n * nbytes * beta: "n is not a power of 2: who has no partner?",
            2 * math.log2(n) * alpha
            + 2 * (n - 1) / n * nbytes * beta
            + 2 * fold: "Only p ranks halve and double, p being the largest power of 2 up to n.",
            2 * log * alpha
            + 2 * (n - 1) / n * nbytes * beta
            + 2 * fold: "Only p ranks halve and double: 2(p−1)/p, not 2(n−1)/n.",
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


def predict_trees(nodes=64, per_node=8, nbytes=1e9, alpha=5e-6, beta=1 / 50e9, few_bytes=1e6):
    """512 ranks, α = 5 µs, β = 1/(50 GB/s): seconds of a ring's and a tree's latencies, and where the two cross.

    across: bytes that a rank sends to other nodes, when 64 nodes of 8 reduce 10⁹ bytes in three steps.
    folded: seconds in which half as many ranks again, 768, reduce 10⁶ bytes by halving and doubling.
    """
    n = nodes * per_node
    log = math.log2(n)
    piece = nbytes / per_node
    cross = (n - 1 - log) * alpha / ((log - (n - 1) / n) * beta)
    part = 2 * (n - 1) / n * few_bytes * beta
    fold = alpha + few_bytes * beta
    larger = n + n // 2
    values = {
        "ring": 2 * (n - 1) * alpha,
        "tree": 2 * log * alpha,
        "crossover": cross,
        "across": 2 * (nodes - 1) / nodes * piece,
        "folded": 2 * log * alpha + part + 2 * fold,
    }
    slips = {
        "ring": {
            (n - 1) * alpha: HALF,
            2 * log * alpha: "That is the tree.",
            alpha: "Each of 2(n−1) steps has an α.",
        },
        "tree": {
            log * alpha: "It goes up to the root and back: those are two trees.",
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
            2
            * (nodes - 1)
            / nodes
            * nbytes: f"Each rank of a node carries only one piece of {per_node}.",
            2 * piece: f"Nearly: the ring is over m = {nodes} nodes, not over all ranks: 2(m−1)/m.",
            piece: "In a ring each rank sends nearly twice its tensor: 2(m−1)/m.",
            (nodes - 1) / nodes * piece: HALF,
            2 * (nodes - 1) * piece: ALL,
        },
        "folded": {
            2 * log * alpha
            + part: "The ranks that are too many give their x away and are told the sum.",
            2 * log * alpha
            + part
            + fold: "A rank that is folded gives its x away and is told the sum: twice N.",
            2 * log * alpha + part + 2 * alpha: "The whole of x is folded: N bytes each way.",
            2 * math.log2(larger) * alpha
            + part: f"{larger} is not a power of 2: who has no partner?",
            2 * log * (alpha + few_bytes * beta)
            + 2 * fold: "What travels is halved in every step.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_trees,
    "Seconds and bytes, within 1 %.",
    {
        "nodes": ("{} nodes of 8 ranks, all of which take part", (8, 16, 32)),
        "nbytes": ("{:,.0f} bytes that are reduced over the nodes", (2e9, 3e9, 4e9)),
    },
)


# ------------------------------------------------------------
# Two kinds of links: fast ones in a node, slow ones between nodes, which need not be of one size.
#
# With m nodes, the smallest of g ranks, a rank need send no more than 2(m−1)/m·N/g bytes to other nodes: Cho, Finkler,
# Serrano, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy", 2019.


# how many ranks each node has
NODES = (
    *((2, 2), (2, 3), (3,), (1, 1, 1), (1,), (4, 4), (2, 2, 2), (3, 3), (1, 1, 1, 1, 1)),
    *((5,), (2, 2, 2, 2), (3, 1), (1, 4, 2), (3, 2, 3)),
)
NODES_SHAPES = ((8,), (24,), (), (0,), (13,), (3, 5), (1000,))
SPLIT = 24  # bytes of a message of comm.split


def ranks_of(sizes: tuple[int, ...]) -> str:
    """`2 nodes of 3 and 2 ranks, or of 2`."""
    many = f"{len(sizes)} node{'s' * (len(sizes) > 1)} of "
    if len(set(sizes)) == 1:
        return many + str(sizes[0])
    return f"{many}{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"


class Hierarchical(InPlace):
    """`hierarchical(comm, x, nodes)`: fills every rank's x with the sum, with few bytes between nodes."""

    name = "hierarchical"
    right = (
        "1…5 nodes of 1…5 ranks, equal and different in size, in the order of the ranks and in others, 7 shapes and secret "
        "lengths, 2(m−1)/m·N/g bytes per rank between m nodes, the smallest with g ranks; then 3 and 4 real processes."
    )
    forbidden = ("minidist.collectives.hierarchical", "minidist.parallel")
    cases = tuple(
        Case(
            sum(sizes),
            f"{ranks_of(sizes)}, {'in any order, a secret length, nan in x' if s is None else words(s)}",
            (sizes, s),
        )
        for sizes in NODES
        for s in (*NODES_SHAPES, None)
    ) + (Case(4, f"2 nodes of 2, {AGAIN}", (NODES[0], NODES_SHAPES[0])),)
    processes = ranked(
        lambda n, sizes, s: f"{n} real processes in {ranks_of(sizes)}, {words(s)}",
        ((4, (2, 2), (7,)), (3, (1, 1, 1), (5,)), (4, (3, 1), (3, 5))),
    )

    def draw(self, case, rng):
        sizes, shape = case.given
        secret = shape is None
        shape = (integer(rng, 100, 3000),) if secret else shape
        nodes = [node for node, size in enumerate(sizes) for _ in range(size)]
        if secret:
            nodes = [nodes[place] for place in shuffled(rng, case.n)]
        return [(x, nodes) for x in tensors(shape, case.n, rng, secret)]

    def wants(self, case, args):
        return [{"x": sum_of(args)}] * case.n

    def mistakes(self, case, args, rank, name, got):
        xs, nodes = [x for x, _ in args], args[0][1]
        places = places_of(nodes)
        node, count = nodes[rank], len(set(nodes))
        mine = sum(x for x, other in zip(xs, nodes) if other == node)
        alike = sum(x for x, place in zip(xs, places) if place == places[rank])
        looks = {
            f"It is the sum of node {node} alone: the sums of the nodes were never added up.": mine,
            f"It is the sum over the ranks at place {places[rank]} of their nodes: the sums inside the nodes "
            "are missing.": alike,
            f"Node {node}'s sum counts {count} times: is it added up again where everyone already has it?": mine
            * count,
        }
        found = recognized(got, looks, "", equal) or who(got, xs, rank)
        pieces = smallest(nodes)
        i, part, own = wrong_part(got, sum(xs), xs, pieces)
        text = who(part, own, rank)
        return found or (text and f"Of {pieces} pieces, piece {i}: {text}")

    def cost(self, case, args, outcome):
        n, (x, nodes) = case.n, args[0]
        m, g = len(set(nodes)), smallest(nodes)
        split = [message for message in outcome.sent if message[2] == SPLIT]
        piece = -(-x.numel() // (m * g)) * m  # padded, if need be
        across, inside = ([0] * n, [0] * n)
        for src, dst, nbytes in outcome.sent:
            (inside if nodes[src] == nodes[dst] else across)[src] += nbytes
        most = 2 * (m - 1) * (piece // m) * x.element_size()
        worst = max(across)
        if worst > most:
            r = across.index(worst)
            text = f"the numbers are right, but rank {r} sends {worst} bytes to other nodes, and {most} are enough."
            if len(split) >= n * (n - 1):
                raise Wrong(
                    f"{text} comm.split(color) asks every rank for its color: give it the list of all colors, "
                    "which needs no message."
                )
            raise Wrong(f"{text} {self._why(outcome, nodes, across, inside)}")
        for r in range(n):
            pieces = g - 1 if nodes.count(nodes[r]) == g else g
            within = 2 * pieces * piece * x.element_size()
            if inside[r] > within:
                raise Costly(
                    f"the numbers are right, but rank {r} sends {inside[r]} bytes inside its node, and {within} are "
                    f"enough if each rank adds up one piece of {g}, or none."
                )

    def _why(self, outcome, nodes, across, inside):
        n, g = len(nodes), smallest(nodes)
        if all(set(outcome.receivers(r)) <= {(r + 1) % n} for r in range(n)):
            return "It is one flat ring over all ranks: a step between two nodes is as large as one inside."
        idle = [r for r, place in enumerate(places_of(nodes)) if place < g and not across[r]]
        if idle:
            return (
                f"Rank {idle[0]} sends nothing there, so its wire is idle. Let {g} ranks of each node carry one piece of {g} "
                "across."
            )
        if g > 1 and sum(inside) < sum(across):
            return "More goes between the nodes than inside them: are the two splits the wrong way round?"
        return f"Add up inside the node first, and cut the sum: each rank should carry one piece of {g} across."


def places_of(nodes: list[int]) -> list[int]:
    """Each rank's place in its node: how many ranks before it are in the same one."""
    return [nodes[:rank].count(node) for rank, node in enumerate(nodes)]


def smallest(nodes: list[int]) -> int:
    """How many ranks the smallest node has."""
    return min(map(nodes.count, nodes))
