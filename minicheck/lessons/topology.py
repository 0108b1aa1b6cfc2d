"""Graders of lesson 03: what links cost, who sits where, and who is slow."""

from __future__ import annotations

import math
from itertools import product

import torch

from minidist.collectives import all_reduce_, all_to_all
from minidist.comm.base import Comm
from minidist.comm.cluster import Cluster
from minidist.comm.trace import Message, Trace
from minidist.comm.world import World

from ..exam import (
    HALF,
    ROUGHLY,
    Case,
    Prediction,
    Report,
    Solo,
    Wrong,
    bare,
    first_near,
    integer,
    near,
    number,
    real,
    shown,
    shuffled,
    typed,
    uniform,
)

# ------------------------------------------------------------
# A link measured: α and β of two ranks from messages that were often disturbed.
#
# The measurements are drawn here from constants that the answer never sees.


CLOSE = 0.03  # a right α or β is that near
REPEATS = 9


class FitLink(Solo):
    """`fit_link(times)`: (α, β) from [(bytes, seconds), …], of which some were disturbed."""

    name = "fit_link"
    right = "12 links, 3 to 6 sizes in any order, 9 messages of each, up to 3 of them disturbed: within 3 %."
    cases = tuple(Case(1, f"link {i}, {3 + i % 4} sizes", 3 + i % 4) for i in range(12))
    returns = ("α", "β")

    def draw(self, case, rng):
        self.alpha, self.beta, least, most = [
            low * (high / low) ** uniform(rng)
            for low, high in ((1e-6, 5e-5), (1e-11, 1e-9), (0.3, 0.8), (8, 16))
        ]
        sizes = [
            round(self.alpha / self.beta * least * (most / least) ** (k / (case.given - 1)))
            for k in range(case.given)
        ]
        times = []
        for nbytes in sizes:
            disturbed = integer(rng, 1, 4)
            for repeat in range(REPEATS):
                free = self.alpha + nbytes * self.beta
                longer = 1 + 0.01 * uniform(rng)
                if repeat < disturbed:
                    longer = 2 + 18 * uniform(rng)
                times.append((nbytes, free * longer))
        return [([times[place] for place in shuffled(rng, len(times))],)]

    def wants(self, case, args):
        return [{"α": self.alpha, "β": self.beta}]

    def value(self, case, args, rank, name, got, want):
        got = number(got, name)
        if not near(got, want, CLOSE):
            raise Wrong(
                f"{name} is {real(got):.4g}, and should be {want:.4g}, within 3 %. {self._why(name, real(got), args[0][0])}"
            )

    def _why(self, name, got, times):
        small, large = (pick(nbytes for nbytes, _ in times) for pick in (min, max))
        least = {n: min(t for nbytes, t in times if nbytes == n) for n in (small, large)}
        mean = {n: sum(t for nbytes, t in times if nbytes == n) / REPEATS for n in (small, large)}
        steep = (mean[large] - mean[small]) / (large - small)
        slips = {
            "α": {
                least[small]: "A small message has bytes, too: subtract the time that they take.",
                least[small]
                - small
                * least[large]
                / large: "A large message has a latency, too: β follows from the "
                "difference of two sizes.",
                mean[small] - small * steep: "A mean includes the messages that were disturbed.",
                mean[
                    small
                ]: "A mean includes the messages that were disturbed, and a small message has bytes, too.",
                self.beta: "That is β: return α first, and then β.",
                1e6 * self.alpha: "Seconds are asked for.",
            },
            "β": {
                least[large]
                / large: "A large message has a latency, too: take the difference of two sizes.",
                steep: "A mean includes the messages that were disturbed.",
                1 / self.beta: "That is the bandwidth: seconds per byte are asked for.",
                self.alpha: "That is α: return α first, and then β.",
            },
        }[name]
        return first_near(got, slips, ROUGHLY) or (
            "Each size was measured nine times: which of its messages were not disturbed?"
        )


# ------------------------------------------------------------
# Who shares a node: pairs of ranks whose bytes are faster than those of all other pairs.


def drawn_nodes(n: int, count: int, rng: torch.Generator) -> list[int]:
    """The node of each of n ranks: so many nodes, each with a rank, and one at least with two."""
    nodes = [*range(count), 0, *(integer(rng, 0, count) for _ in range(n - count - 1))]
    return [nodes[place] for place in shuffled(rng, n)]


def members(nodes: list[int]) -> list[list[int]]:
    """The ranks of each node, by their first."""
    found: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        found.setdefault(node, []).append(rank)
    return list(found.values())


class FindNodes(Report):
    """`find_nodes(betas)`: the lists of ranks that share a node, from seconds a byte of each pair."""

    name = "find_nodes"
    right = "3 to 16 ranks in 2 to 7 nodes of any size, in any order, with links inside nodes 2.5 to 12 times as fast as between them."
    cases = tuple(
        Case(1, f"{n} ranks in {count} nodes", (n, count))
        for n, count in ((4, 2), (3, 2), (8, 2), (8, 4), (8, 3), (9, 7), (12, 5), (16, 2), (16, 7))
    )

    def draw(self, case, rng):
        nodes = drawn_nodes(*case.given, rng)
        self.nodes = members(nodes)
        inside = 10 ** (-11 + 2 * uniform(rng))
        across = inside * (2.5 + 9.5 * uniform(rng))
        betas = [
            [
                0.0 if i == j else (inside if a == b else across) * (1 + 0.05 * uniform(rng))
                for j, b in enumerate(nodes)
            ]
            for i, a in enumerate(nodes)
        ]
        return [(betas,)]

    def run(self, comm, yours, betas):
        return yours(betas)

    def check(self, case, got, betas):
        want = self.nodes
        got = bare(got)
        if not isinstance(got, list | tuple) or not all(
            isinstance(node, list | tuple) for node in got
        ):
            raise Wrong(f"a list of lists of ranks is asked for, not {shown(got)}.")
        flat = [rank for node in got for rank in node]
        for rank in flat:
            typed(rank, int, "a rank", "an int")
        if sorted(flat) != list(range(len(betas))):
            missing = sorted(set(range(len(betas))) - set(flat))
            odd = sorted(rank for rank in set(flat) if rank not in range(len(betas)))
            words = (
                f"rank {missing[0]} is in no node, and a rank that is alone is a node, too"
                if missing
                else f"there is no rank {odd[0]}"
                if odd
                else "a rank is in two nodes"
            )
            raise Wrong(f"{words}: {shown(got)}.")
        found = [list(node) for node in got]
        if found == want:
            return
        if sorted(map(sorted, found)) == sorted(want):
            raise Wrong(
                f"the nodes are right, but their order is not: {shown(found)} should be {shown(want)}. The ranks of a node "
                "ascend, and so do the nodes' first ranks."
            )
        for node in found:
            for rank in node[1:]:
                if not any({node[0], rank} <= set(right) for right in want):
                    raise Wrong(
                        f"ranks {node[0]} and {rank} share no node: a byte takes {betas[node[0]][rank]:.3g} s between them, and "
                        f"{min(b for row in betas for b in filter(None, row)):.3g} s between the fastest pair."
                    )
        for node in want:
            for rank in node[1:]:
                if not any({node[0], rank} <= set(mine) for mine in found):
                    raise Wrong(
                        f"ranks {node[0]} and {rank} share a node: a byte takes {betas[node[0]][rank]:.3g} s between them, and "
                        f"{max(map(max, betas)):.3g} s between the slowest pair."
                    )


# ------------------------------------------------------------
# A step in which messages share wires: it takes as long as the busiest of them.


def loads(messages: list, per_rack: int) -> dict[str, int]:
    """Bytes that each wire carries, by its name."""
    found: dict[str, int] = {}
    for src, dst, nbytes in messages:
        wires = [f"the outgoing port of rank {src}", f"the incoming port of rank {dst}"]
        racks = src // per_rack, dst // per_rack
        if racks[0] != racks[1]:
            wires += [f"the cable up from rack {racks[0]}", f"the cable down to rack {racks[1]}"]
        for wire in wires:
            found[wire] = found.get(wire, 0) + nbytes
    return found


PATTERNS = {
    "shift": "a shift",
    "to one": "messages to one rank",
    "from one": "messages from one rank",
    "up": "messages out of one rack",
    "down": "messages into one rack",
    "inside": "messages inside racks",
    "any": "any messages",
    "none": "no message",
}


class StepSeconds(Solo):
    """`wire_seconds(messages, per_rack, alpha, beta)`: the least that a step of messages can take."""

    name = "wire_seconds"
    right = "Shifts, stars, messages into one rack and out of one, any messages and none, in racks of 3 to 5 ranks."
    cases = tuple(Case(1, PATTERNS[name], name) for name in (*PATTERNS, "any", "any"))
    given = ("`messages`",)

    def draw(self, case, rng):
        per_rack, racks = integer(rng, 3, 6), integer(rng, 3, 5)
        n = per_rack * racks
        one, distance = integer(rng, 0, n), integer(rng, 1, n)
        rack = one // per_rack
        alone = [r for r in range(n) if r // per_rack == rack]
        rest = [r for r in range(n) if r // per_rack != rack]
        pairs = {
            "shift": [(r, (r + distance) % n) for r in range(n)],
            "to one": [(r, one) for r in alone if r != one],
            "from one": [(one, r) for r in alone if r != one],
            "up": list(zip(alone, rest)),
            "down": list(zip(rest[:: len(rest) // per_rack], alone)),
            "inside": [(r, r // per_rack * per_rack + (r + 1) % per_rack) for r in alone + rest],
            "any": [(integer(rng, 0, n), integer(rng, 0, n)) for _ in range(2 * n)],
            "none": [],
        }[case.given]
        messages = [(src, dst, integer(rng, 10**5, 10**7)) for src, dst in pairs if src != dst]
        alpha, beta = [10 ** (low + uniform(rng)) for low in (-5, -11)]
        return [([*messages], per_rack, 100 * alpha, beta)]

    def wants(self, case, args):
        messages, per_rack, alpha, beta = args[0]
        busiest = max(loads(messages, per_rack).values(), default=0)
        return [{"the result": alpha + busiest * beta if messages else 0.0}]

    def value(self, case, args, rank, name, got, want):
        messages, per_rack, _, _ = args[0]
        got = number(got, name)
        if near(got, want, 1e-9):
            return
        if not messages:
            raise Wrong(f"without a message a step takes no time, not {real(got):.6g} s.")
        found = loads(messages, per_rack)
        wire = max(found, key=found.__getitem__)
        raise Wrong(
            f"{len(messages)} messages in racks of {per_rack} ranks: the result is {real(got):.6g} s, and should be {want:.6g} s. "
            f"{self._why(real(got), wire, found, args[0])}"
        )

    def _why(self, got, wire, found, given):
        messages, _, alpha, beta = given
        ends = {w: b for w, b in found.items() if "port" in w}
        cables = {w: b for w, b in found.items() if "cable" in w}
        total = sum(nbytes for _, _, nbytes in messages)
        most = max(nbytes for _, _, nbytes in messages)
        into = max(b for w, b in found.items() if "incoming" in w or "down" in w)
        out = max(b for w, b in found.items() if "outgoing" in w or "up" in w)
        slips = {
            found[wire] * beta: "The bytes are right, but the last of them arrives α later.",
            alpha
            + most * beta: "A wire that several messages share carries them one after another.",
            alpha + total * beta: "Messages on different wires travel at the same time.",
            alpha + max(ends.values()) * beta: "Messages between racks share cables, too.",
            alpha
            + max(cables.values(), default=0)
            * beta: "A rank's port is a wire, too, and carries one message after another.",
            alpha + into * beta: "What leaves occupies wires as well as what arrives.",
            alpha + out * beta: "What arrives occupies wires as well as what leaves.",
            alpha
            + max(1, len(messages))
            * most
            * beta: "Messages have different numbers of bytes: add up bytes, and do not count messages.",
        }
        return first_near(got, slips, 1e-6) or (
            f"The busiest wire is {wire}, with {found[wire]:,} bytes, and α counts once."
        )


# ------------------------------------------------------------
# Where ranks sit: a ring that crosses between nodes and racks as seldom as can be.


class Renumber(Report):
    """`renumber(places)`: a new number for each rank, so that a ring crosses between racks and nodes as seldom as can be."""

    name = "renumber"
    right = "1 to 4 racks with 1 to 4 nodes of 1 to 4 ranks, dealt out, in blocks and in any order."
    cases = tuple(
        Case(1, f"{racks} racks of {nodes} nodes of {ranks}, {how}", (racks, nodes, ranks, how))
        for racks, nodes, ranks, how in (
            (2, 2, 2, "dealt out"),
            (2, 3, 4, "any order"),
            (3, 2, 2, "any order"),
            (1, 3, 2, "any order"),
            (1, 1, 4, "any order"),
            (4, 1, 3, "dealt out"),
            (2, 4, 1, "any order"),
            (1, 1, 1, "in blocks"),
            (3, 3, 3, "some gone"),
            (4, 4, 4, "some gone"),
        )
    )

    def draw(self, case, rng):
        racks, nodes, ranks, how = case.given
        places = [(a, b) for a, b, _ in product(range(racks), range(nodes), range(ranks))]
        if how == "dealt out":
            places = [(a, b) for _, b, a in product(range(ranks), range(nodes), range(racks))]
        elif how != "in blocks":
            places = [places[i] for i in shuffled(rng, len(places))]
        if how == "some gone":
            places = places[: -len(places) // 4]
        names = shuffled(rng, 2 * racks)
        return [([(names[a], b) for a, b in places],)]

    def run(self, comm, yours, places):
        return yours(places)

    def check(self, case, got, places):
        n = len(places)
        got = bare(got)
        if not isinstance(got, list | tuple) or len(got) != n:
            raise Wrong(f"a list of {n} numbers is asked for, one for each rank, not {shown(got)}.")
        for rank, new in enumerate(got):
            typed(new, int, f"the number of rank {rank}", "an int")
        if sorted(got) != list(range(n)):
            raise Wrong(
                f"each number from 0 to {n - 1} should be given to one rank: {shown(list(got))}."
            )
        ring = [rank for _, rank in sorted(zip(got, range(n)))]
        racks = [(rack,) for rack, _ in places]
        for what, own in (("racks", racks), ("nodes", places)):
            there = len(set(own))
            least = there if there > 1 else 0
            crossed = crossings(ring, own)
            if crossed > least:
                raise Wrong(
                    f"{crossed} of the {n} messages of a step cross between {what}, and {least} are enough."
                    f"{self._why(what, got, places)}"
                )
        if got[0] != 0:
            raise Wrong(
                f"rank 0 is given the number {got[0]}, and should keep 0. A ring may begin anywhere."
            )

    def _why(self, what, got, places):
        racks = [rack for rack, _ in places]
        if all(crossings(list(got), own) <= len(set(own)) for own in (racks, places)):
            return " Is this the list of ranks in ring order? The new number of each rank is asked for: numbers[r] is rank r's."
        if what == "nodes":
            return " Each rack counts its nodes from 0, so the nodes 0 of two racks are two nodes."
        return " The ranks of a rack should follow one another."


def crossings(ring: list[int], own: list) -> int:
    """How many of a ring's messages go from one of `own` to another."""
    return sum(own[ring[i - 1]] != own[ring[i]] for i in range(len(ring)))


# ------------------------------------------------------------
# Numbers: how large a tensor must be, and bandwidth, as formulas; and predicted.


def size_of(verb: str, fraction: float, n: int, alpha: float, beta: float) -> float:
    """Bytes of the whole tensor from which on the bus bandwidth is `fraction` of 1/β."""
    if verb != "broadcast":
        return n * alpha / beta * fraction / (1 - fraction)
    left = 1 - fraction * (n - 1)
    return fraction * (n - 1) * alpha / beta / left if left > 1e-12 else math.inf


class SizeFor(Solo):
    """`size_for(verb, fraction, n, alpha, beta)`: bytes at which a collective uses that part of a wire."""

    name = "size_for"
    right = "All-reduce and all-gather by a ring, a broadcast by its root, n = 2…64, small and large parts of a wire."
    cases = tuple(
        Case(1, f"{verb}, n = {n}{', a small part' * small}", (verb, n, small))
        for verb, n, small in product(
            ("all_reduce", "all_gather", "broadcast"), (8, 2, 3, 64), (False, True)
        )
    )

    def draw(self, case, rng):
        verb, n, small = case.given
        fraction = 0.05 + 0.9 * uniform(rng)
        if small:
            fraction = 0.1 / (n - 1) + 0.8 * uniform(rng) / (n - 1)
        alpha, beta = [10 ** (low + uniform(rng)) for low in (-6, -11)]
        return [(verb, fraction, n, alpha, beta)]

    def wants(self, case, args):
        return [{"the result": size_of(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        verb, fraction, n, alpha, beta = args[0]
        got = number(got, name)
        if got == want or want != math.inf and near(got, want, 1e-9):
            return
        where = f"{fraction:.4g} of the wire, α/β = {alpha / beta:.6g} bytes: "
        if want == math.inf:
            most = 1 / (n - 1)
            raise Wrong(
                f"{where}the result is {real(got):.6g}, but no tensor is large enough. Such a broadcast uses at most "
                f"{most:.4g} of the wire: return math.inf."
            )
        half = n * alpha / beta
        part = fraction / (1 - fraction)
        slips = {
            half: "That is the size for one half of the wire.",
            half * fraction: "A message takes α as well: solve for N.",
            2 * half * fraction: "A message takes α as well: solve for N.",
            half * (1 - fraction) / fraction: "The fraction is upside down.",
            want / n: "That is one chunk: the whole tensor is asked for.",
            want
            / 2: "The time and the bus bandwidth of an all-reduce both have the factor 2, which cancels.",
            want
            * 2: "The time and the bus bandwidth of an all-reduce both have the factor 2, which cancels.",
            want * 8: "Bytes, not bits.",
            part * alpha / beta: "That is one message, or one chunk: n−1 and n are missing.",
        }
        slips = {value: words for value, words in slips.items() if not near(value, want, 1e-9)}
        if verb == "broadcast":
            slips[half * part] = (
                "That is a ring. Here the root itself sends n−1 messages of N bytes."
            )
        said = first_near(got, slips, 1e-6) or f"It is too {'large' if got > want else 'small'}."
        raise Wrong(f"{where}the result is {real(got):.6g} bytes, and should be {want:.6g}. {said}")


NEARLY = "Nearly: the factor is 2(n−1)/n."
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


EXACTLY = 1e-12  # so that what is rounded to whole bytes per second shows


def whole(verb: str, n: int, nbytes: int) -> int:
    """N, where each rank has handed in `nbytes`."""
    return n * nbytes if verb == "all_gather" else nbytes


class Bandwidth(Solo):
    """`bandwidth(verb, n, nbytes, seconds)`: algorithm and bus bandwidth, from each rank's bytes and seconds."""

    name = "bandwidth"
    right = "Six verbs, with ranks, bytes and seconds drawn at random: as nccl-tests defines it."
    cases = tuple(Case(1, verb, (verb, n)) for verb in FACTORS for n in (8, 2, 3, None))

    def draw(self, case, rng):
        verb, n = case.given
        n = n or integer(rng, 4, 2000)
        nbytes, longest = [10 ** (low + 3 * uniform(rng)) for low in (6, -4)]
        seconds = [longest * (0.5 + 0.4 * uniform(rng)) for _ in range(n)]
        seconds[integer(rng, 1, n)] = longest
        return [(verb, n, int(nbytes), seconds)]

    returns = ("the algorithm bandwidth", "the bus bandwidth")

    def wants(self, case, args):
        verb, n, nbytes, seconds = args[0]
        want = whole(verb, n, nbytes) / max(seconds)
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
            text = first_near(real(got), self._slips(verb, n, nbytes, seconds), 1e-9) or text
            raise Wrong(
                f"n = {n}, each rank hands in {nbytes} bytes, the slowest takes {max(seconds):.3g} s: the algorithm bandwidth is {real(got):.6g}, and "
                f"should be N over seconds, {want:.6g} bytes per second. {text}".rstrip()
            )
        raise Wrong(
            f"n = {n}: the bus bandwidth is {real(got) / algorithm:.4g} times the algorithm bandwidth, and should be "
            f"{want / algorithm:.4g} times. {self._why(verb, n, real(got) / algorithm)}"
        )

    def _slips(self, verb, n, nbytes, seconds):
        size = whole(verb, n, nbytes)
        found = {
            size / min(seconds): "The collective is over only when the slowest rank has finished.",
            size
            * n
            / sum(
                seconds
            ): "The collective is over only when the slowest rank has finished: a mean of the ranks' seconds is too little.",
            size / seconds[0]: "Rank 0 need not be the slowest.",
        }
        if verb == "all_gather":
            found[nbytes / max(seconds)] = (
                "In an all-gather each rank hands in only one of n parts."
            )
        return found

    def _why(self, verb, n, factor):
        one = (n - 1) / n
        if near(factor, 2 * one, ROUGHLY):
            return "That is the factor of an all-reduce, which has two halves: this verb is one of them, or neither."
        texts = {
            one: HALF if verb == "all_reduce" else "All N bytes must leave the root, or reach it.",
            1: NEARLY if verb == "all_reduce" else "A rank need not send what it keeps, 1/n of N.",
            n / (n - 1): "The fraction is upside down.",
            n - 1: "N is the whole tensor, not the part of one rank.",
            n / (2 * (n - 1)): "The fraction is upside down.",
        }
        return first_near(factor, texts, ROUGHLY, "What must each rank send?")


def predict_cost(share=8, nbytes=64e6, ranks=512, alpha=5e-6, beta=1 / 50e9, p=0.001):
    """α = 5 µs, β = 1/(50 GB/s): what a shared cable, a small tensor and a late rank cost.

    shared: seconds of a step in which each rank sends 64 MB to another rack, and 8 ranks share a cable.
    filled: bytes of a ring all-reduce on 16 ranks that uses 90 % of the wires.
    bus: bus bandwidth of an all-reduce of 10⁹ bytes on 16 ranks in 50 ms.
    late: how likely a step of 512 ranks waits, if each rank is late once in a thousand steps.
    even: with how many ranks a step waits as often as not.
    """
    n = 16
    filled = 9 * n * alpha / beta
    algorithm = 1e9 / 0.05
    bus = 2 * (n - 1) / n * algorithm
    values = {
        "shared": alpha + share * nbytes * beta,
        "filled": filled,
        "bus": bus,
        "late": 1 - (1 - p) ** ranks,
        "even": math.log(0.5) / math.log(1 - p),
    }
    slips = {
        "shared": {
            alpha + nbytes * beta: f"{share} messages share a cable, one after another.",
            share * alpha
            + nbytes * beta: "What is shared is the wire: the bytes queue, not the latencies.",
            8 * (alpha + share * nbytes * beta): "Bytes, not bits.",
        },
        "filled": {
            filled / 9: "That is the size for one half.",
            0.9 * n * alpha / beta: "A message takes α as well: solve Nβ/n = 0.9·(α + Nβ/n).",
            filled / n: "That is one chunk: the whole tensor is asked for.",
            filled / 81: "The fraction is upside down.",
            10 * n * alpha / beta: "Nearly: 0.9 / (1 − 0.9) is 9.",
        },
        "bus": {
            algorithm: "That is the algorithm bandwidth.",
            2 * algorithm: NEARLY,
            bus / 2: HALF,
            algorithm**2 / bus: "The fraction is upside down.",
            bus / 1e9: "Bytes per second are asked for.",
        },
        "late": {
            ranks * p: "Two may be late at once, and are then counted twice.",
            p: "That is one rank.",
            (1 - p) ** ranks: "That is how likely it is that nobody is late.",
        },
        "even": {
            0.5 / p: "Two may be late at once, and are then counted twice.",
            1
            / p: "With so many ranks one is late on average. But how likely is it that nobody is?",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_cost,
    "Seconds, bytes, a bandwidth and odds, within 1 %.",
    {
        "share": ("{} ranks that share a cable", (4, 6, 12)),
        "nbytes": ("{:,.0f} bytes that each rank sends over it", (32e6, 48e6, 80e6)),
        "ranks": ("{} ranks that may be late", (256, 384, 1024)),
    },
)


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
    right = "4 to 10 ranks, all-reduces and all-to-alls, with any rank slow, by 1.5 to 4 times, and noise."
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
            return f"What rank {got} exchanges with ranks other than {self.slow} is as fast as it can be."
        return "In a slow rank's messages each byte takes longer, in those that it sends and in those that it receives."
