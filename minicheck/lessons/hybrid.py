"""The exercises of lesson 19, Hybrid: groups of a grid, bytes by axis, gradients and their norm, the best grid."""

from __future__ import annotations

import math
from functools import cache, partial

import torch

from minidist.comm.mesh import Grid, Mesh

from ..exam import (
    HIDDEN,
    NUMBERS,
    Case,
    Costly,
    Exam,
    Prediction,
    Report,
    Wrong,
    alone,
    bare,
    clipped,
    close,
    entries,
    few_in_all,
    integer,
    left_open,
    normal,
    number,
    real,
    shaped,
    shown,
    shuffled,
    table,
    unchanged,
    uniform,
)
from ..oracles import hybrid as oracle

# ------------------------------------------------------------
# Places: the groups of every axis of a grid.


PLACES_FORBIDDEN = ("minidist.comm.mesh", *oracle.FORBIDDEN)
GRIDS = (
    {"pp": 2, "dp": 3, "tp": 4},
    {"dp": 3, "tp": 2, "pp": 4},
    {"tp": 4, "pp": 1, "dp": 2},
    {"pp": 1, "dp": 1, "tp": 1},
    {"dp": 6},
    {"pp": 3, "dp": 2, "cp": 2, "tp": 2},
    {"tp": 2, "dp": 5},
    {"y": 2, "ep": 3, "rows": 1, "tensor": 2, "x": 2},
)


class Groups(Report):
    """`groups(sizes)`: {axis: its groups, lists of ranks}; sizes: {axis: ranks along it}, from the outside in."""

    name = "groups"
    right = "Grids of 1 to 5 axes in several orders, with any names, axes of one rank: every group of every axis."
    forbidden = PLACES_FORBIDDEN
    cases = table(lambda sizes: " × ".join(f"{a} {n}" for a, n in sizes.items()), GRIDS)
    cases += (Case(1, "sizes that are drawn"),)

    def draw(self, case, rng):
        if case.given:
            return [(dict(case.given),)]
        sizes = torch.randperm(4, generator=rng)[:3].tolist()
        axes = [("dp", "pp", "tp")[i] for i in shuffled(rng, 3)]
        return [({axis: 2 + size for axis, size in zip(axes, sizes)},)]

    def run(self, comm, yours, sizes):
        given = dict(sizes)
        found = yours(sizes)
        return found, list(sizes.items()) == list(given.items())

    def check(self, case, report, sizes):
        got, untouched = report
        want = oracle.lines(sizes)
        unchanged(untouched, True, "`sizes`")
        entries(got, tuple(want), "the result")
        for axis, groups in want.items():
            self._axis(axis, got[axis], groups, sizes)

    def _axis(self, axis, got, want, sizes):
        got = bare(got)
        shaped(got, [[int]], f"{axis}: the result", "a list of groups, lists of integers")
        found = [list(group) for group in got]
        if sorted(found) == want:
            return
        if sorted(map(sorted, found)) == want:
            raise Wrong(
                f"{axis}: the right ranks, in another order: walk along the axis, so that a group's first rank "
                f"is at 0: {want[0]}."
            )
        raise Wrong(
            f"{axis}: the groups are {_short(found)}, and should be {_short(want)}. A group of {axis} has {sizes[axis]} "
            f"ranks that differ along {axis} alone. The last axis is innermost, whatever its name: its neighbours have "
            "neighbouring numbers."
        )


def _short(groups):
    return f"{', '.join(map(str, groups[:3]))}{', …' * (len(groups) > 3)}"


# ------------------------------------------------------------
# Traffic: bytes of each axis in a step, against messages that are really sent.


TRAFFIC_FORBIDDEN = ("minidist.comm.mesh", "minidist.collectives", *oracle.FORBIDDEN)
counted = cache(oracle.counted)
LARGE = "a model of tens of gigabytes"
WORDS = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
FACTORS = {
    "tp": "How many rings are there, how many all-reduces has a layer, forward and backward, and what do all ranks of a "
    "ring send together? bf16 has 2 bytes, and an axis of one rank sends nothing.",
    "pp": "How many pipelines are there, how many edges has each, and what goes over an edge, there and back, in each "
    "micro-batch? bf16 has 2 bytes.",
    "dp": "How many rings are there, how large is a rank's part of the weights, how often is it reduced in a step, and "
    "what do all ranks of a ring send together? bf16 has 2 bytes, and an axis of one rank sends nothing.",
}


class StepBytes(Report):
    """`step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers)`: {axis: bytes all ranks send in a step}."""

    name = "step_bytes"
    right = "Ten grids, three of them drawn, each beside the trace of a step that sends these messages: to the byte."
    forbidden = TRAFFIC_FORBIDDEN
    cases = table(
        "dp {} × pp {} × tp {}, {} micro-batches",
        (
            (3, 4, 5, 7),
            (2, 2, 2, 3),
            (1, 1, 1, 2),
            (5, 1, 1, 2),
            (1, 3, 1, 4),
            (1, 1, 4, 2),
            (2, 3, 2, 1),
        ),
    )
    cases += tuple(Case(1, f"a grid that is drawn, number {k}") for k in (1, 2, 3))
    cases += (Case(1, LARGE, (2, 2, 3, 2)),)

    def draw(self, case, rng):
        one = partial(integer, rng)
        d, p, t, M = case.given or (one(1, 4), one(2, 4), one(2, 4), one(2, 5))
        if M == 7:  # 60 ranks take a second to count: once for all answers
            return [(d, p, t, M, 11, 20, p)]
        large = 3**7 if case.what == LARGE else 1
        return [(d, p, t, M, large * one(3, 20), large * one(10, 41), p * one(1, 4))]

    def run(self, comm, yours, *given):
        return yours(*given)

    def check(self, case, got, *drawn):
        *grid, tokens, hidden, layers = drawn
        large = 3**7 if case.what == LARGE else 1  # every message has so many times so many numbers
        small = counted(*grid, tokens // large, hidden // large, layers)
        want = {axis: large**2 * nbytes for axis, nbytes in small.items()}
        entries(got, tuple(want), "the result")
        given = f"(tokens {tokens}, hidden {hidden}, layers {layers})"
        for axis, nbytes in want.items():
            value = got[axis]
            number(value, f"'{axis}'")
            value = real(value)
            if not abs(value - nbytes) < 0.5:  # divisions round
                times = f"Yours is {value / nbytes:.4g} times that. " if nbytes else ""
                yours = f"{value:,.0f}" if abs(value) < 1e18 else f"{value:g}"
                raise Wrong(
                    f"{given}: {WORDS[axis]} sends {yours} bytes by yours; the trace counts {nbytes:,}. "
                    f"{times}{FACTORS[axis]}"
                )


# ------------------------------------------------------------
# Gradients: each kind over its own axis, once, after the last micro-batch.
#
# Looked at: every gradient, copies equal bit for bit, all micro-batches run, bytes along each axis, messages along data.


A_NAN = "a gradient with a nan in it"
ENDS_APART = (
    5  # data ranks of the case in which tied gradients are first in one list and last in the other
)
ENOUGH = {
    "dp": "One all-reduce of all gradients is enough, after the last micro-batch, in chunks, as a ring sends.",
    "tp": "Only partial gradients have summands on other tensor ranks: one all-reduce of each, after the last "
    "micro-batch, in chunks, as a ring sends. What is whole is right already.",
    "pp": "Only tied gradients have a summand elsewhere, on the first and on the last stage: one message from either "
    "end to the other.",
}


class Synchronize(Exam):
    """`synchronize(mesh, backward, micro_batches, grads, kinds)`: a step's gradients, as the optimizer wants them."""

    name = "synchronize"
    right = (
        "Grids of 1 to 12 ranks in several orders, 1 to 4 micro-batches: every gradient, its copies equal bit for "
        "bit, no byte more than needed along any axis; 4 real processes."
    )
    forbidden = oracle.FORBIDDEN
    cases = tuple(
        Case(d * p * t, f"dp {d} × pp {p} × tp {t}, {M} micro-batches", (d, p, t, order, M))
        for d, p, t, order, M in (
            (2, 2, 3, "pp dp tp", 3),
            (1, 1, 1, "pp dp tp", 2),
            (3, 1, 1, "pp dp tp", 2),
            (1, 3, 1, "pp dp tp", 4),
            (1, 1, 3, "pp dp tp", 2),
            (2, 2, 2, "tp dp pp", 2),
            (2, 3, 1, "pp dp tp", 1),
            (ENDS_APART, 2, 1, "pp dp tp", 1),
            (2, 1, 3, "tp pp dp", 2),
        )
    )
    cases += (Case(2, A_NAN, (2, 1, 1, "pp dp tp", 1)),)
    processes = (Case(4, "4 real processes, dp 2 × pp 2", (2, 2, 1, "pp dp tp", 3)),)

    def draw(self, case, rng):
        d, p, t, order, M = case.given
        grid, drawn = Grid(d, p, t, order), []
        kinds, shapes = oracle.held(grid, rng)
        if d == ENDS_APART:
            kinds = [_tied_last(grid.place(r)["pp"] > 0, held) for r, held in enumerate(kinds)]
        part = lambda name: normal(rng, shapes[name])
        for rank in range(grid.size):
            first, made = grid.rank(**grid.place(rank) | {"tp": 0}), {}
            for name, kind in kinds[rank].items():
                same = kind == "whole" and rank != first  # whole after g: alike on all tensor ranks
                made[name] = (
                    [g.clone() for g in drawn[first][name]]
                    if same
                    else [part(name) for _ in range(M)]
                )
            drawn.append(made)
        if case.what == A_NAN:
            next(iter(drawn[1].values()))[0].view(-1)[0] = torch.nan
        return [(list(case.given), made, kinds[rank]) for rank, made in enumerate(drawn)]

    def run(self, comm, yours, given, parts, kinds):
        d, p, t, order, M = given
        grads, seen = {name: torch.zeros_like(some[0]) for name, some in parts.items()}, []
        kept = {name: g.detach() for name, g in grads.items()}

        def backward(m):
            if not 0 <= m < M:
                raise IndexError(f"there are the micro-batches 0 to {M - 1}, not {m}")
            seen.append(m)
            for name, some in parts.items():
                kept[name].add_(some[m])

        yours(Mesh(comm, d, p, t, order), backward, M, grads, dict(kinds))
        return {"seen": seen, "grads": kept, "open": left_open(comm)}

    def judge(self, case, args, outcome):
        d, p, t, order, M = case.given
        grid = Grid(d, p, t, order)
        own, kinds = (
            [{name: sum(some) for name, some in parts.items()} for _, parts, _ in args],
            [a[2] for a in args],
        )
        for r, got in enumerate(outcome.results):
            if got["seen"] != list(range(M)):
                raise Wrong(
                    f"rank {r}: backward was called for the micro-batches {got['seen']}, and should be once "
                    f"for each of 0 to {M - 1}, in order."
                )
        for r, got in enumerate(outcome.results):
            for name, kind in kinds[r].items():
                self._gradient(grid, r, name, kind, got["grads"].get(name), own, args)
        oracle.copies_agree(grid, [got["grads"] for got in outcome.results], kinds)
        self._traffic(grid, own, args, outcome)

    def _gradient(self, grid, r, name, kind, got, own, args):
        want = oracle.summed(grid, own, r, name, kind)
        what = f"rank {r} ({grid.name(r) or 'alone'}): the gradient of {name} ({kind})"
        looks = _looks_of_gradient(grid, r, name, kind, own, args)
        close(got, want, what, looks, "Which ranks have a summand of it, and which a copy?")

    def _traffic(self, grid, own, args, outcome):
        sent = oracle.by_axis(grid, outcome.sent)
        ranks = range(grid.size)
        moved = {"dp": oracle.KINDS, "tp": ("partial",), "pp": ("tied",)}
        for axis, kinds in moved.items():
            n = 2 if axis == "pp" else grid.sizes[axis]
            sizes = []
            for r in ranks:
                sizes += [g.numel() for name, g in own[r].items() if args[r][2][name] in kinds]
            most = lambda numbers, n=n: round(16 * (n - 1) / n * numbers)
            padded = sum(-(-size // n) * n for size in sizes)  # to chunks of one length
            # or a reduce and a broadcast, by rings
            if sent[axis] > most(max(padded, (1 + 1 / n) * sum(sizes))):
                raise Costly(
                    f"the numbers are right, but all ranks together send {sent[axis]} bytes along {axis}: "
                    f"{most(sum(sizes))} are enough. {ENOUGH[axis]}"
                )
        others = [axis for axis in sent if axis not in moved and sent[axis]]
        if others:
            raise Costly(
                f"the numbers are right, but {sent[others[0]]} bytes go across {others[0]}: each kind of "
                "gradient has one axis, and goes along that."
            )
        for r in ranks:
            self._messages(grid, r, outcome, list(args[r][2].values()))

    def _messages(self, grid, r, outcome, kinds):
        most = {
            "dp": 2 * (grid.dp - 1),
            "tp": 4 * (grid.tp - 1) * kinds.count("partial"),  # or a reduce and a broadcast
            "pp": 2 * kinds.count("tied"),
        }
        for axis, enough in most.items():
            messages = oracle.most(grid, r, outcome, axis)
            if messages > enough:
                words = (
                    "all its gradients fit into one all-reduce"
                    if axis == "dp"
                    else "whole tensors travel"
                )
                raise Costly(
                    f"the numbers are right, but a rank sends {messages} messages along {axis}: {words}, {enough} "
                    "messages. It takes a list, too."
                )


def _tied_last(last, kinds):
    """The same names with the tied ones last, or first. A list is averaged in chunks, each in another order: ends that
    are added before the average then differ by rounding."""
    return dict(sorted(kinds.items(), key=lambda item: (item[1] == "tied") == last))


def _looks_of_gradient(grid, r, name, kind, own, args):
    """What a wrong gradient looks like."""
    right = oracle.summed(grid, own, r, name, kind)
    last = [{k: some[-1] for k, some in parts.items()} for _, parts, _ in args]
    less = lambda **left: oracle.summed(grid, own, r, name, kind, **left)
    looks = {
        "It is the sum over the data ranks: the mean is asked for.": right * grid.dp,
        "Only the last micro-batch is in it.": oracle.summed(grid, last, r, name, kind),
    }
    if kind == "partial":
        looks |= {
            "Each tensor rank saw other tokens: sum over tp.": less(partial=False),
            "Over tp it is a sum, not a mean.": right / grid.tp,
        }
    elif kind == "tied":
        looks |= {
            "The other end of the pipeline holds it, too: sum the two.": less(tie=False),
            "Over the two ends it is a sum, not a mean.": right / 2,
            "It was added twice: on one stage there is one copy.": right * 2,
        }
    else:
        over = sum(oracle.summed(grid, own, k, name, kind) for k in oracle.line_of(grid, r, "tp"))
        looks |= {
            "It was summed over tp: copies are right already, and parts are not summands.": over,
            "It was averaged over tp: parts of a matrix are no copies.": over / grid.tp,
        }
    return looks | {
        "It is this rank's own: nothing of the other data ranks is in it. Is it written in place?": less(
            data=False
        ),
        "Nothing was exchanged at all, or not in place.": own[r][name],
    }


# ------------------------------------------------------------
# A bug to find: one norm over a grid, on which gradients are parts, copies, ends and replicas.
#
# Looked at: the norm that is returned, every gradient, both the same on all ranks, bytes along data and in all.


STAGES = 8  # of the case in which the first outweighs the others


class ClipGrid(Exam):
    """`clip_grid(mesh, grads, kinds, limit)`: scales the gradients of a model on a grid; returns its norm before."""

    name = "clip_grid"
    right = "Grids of 1 to 8 ranks, above and below the limit, zeros: each gradient counts once; 4 real processes."
    forbidden = oracle.FORBIDDEN
    # factor 0: zeros
    cases = tuple(
        Case(d * p * t, f"dp {d} × pp {p} × tp {t}, {words}", (d, p, t, order, factor))
        for d, p, t, order, factor, words in (
            (2, 2, 2, "pp dp tp", 0.5, "above the limit"),
            (1, 1, 1, "pp dp tp", 0.3, "one rank"),
            (1, 1, 3, "pp dp tp", 0.7, "copies"),
            (1, STAGES, 1, "pp dp tp", 0.6, "tied ends"),
            (4, 1, 1, "pp dp tp", 0.8, "replicas"),
            (2, 2, 2, "tp dp pp", 1.02, "just below the limit"),
            (2, 1, 2, "dp pp tp", 0, "all gradients zero"),
            (1, 2, 2, "pp dp tp", 0.5, A_NAN),
        )
    )
    processes = (Case(4, "4 real processes, pp 2 × tp 2", (1, 2, 2, "pp dp tp", 0.5)),)

    def draw(self, case, rng):
        d, p, t, order, factor = case.given
        grid = Grid(d, p, t, order)
        made = {}
        own = []
        kinds, shapes = oracle.held(grid, rng)
        for rank in range(grid.size):
            at, grads = grid.place(rank), {}
            for name, kind in kinds[rank].items():
                # what two ranks have under one key is equal
                key = (name, at["tp"] if kind in ("split", "tied") else 0)
                if key not in made:
                    scale = 0 if not factor else 3 if kind == "tied" else 1
                    made[key] = normal(rng, shapes[name]) * scale
                grads[name] = made[key].clone()
            own.append(grads)
        if p == STAGES:
            _outweighed(own, kinds)
        limit = factor * oracle.norm(grid, own, kinds) or 1.0
        if case.what.endswith(A_NAN):
            part = next(name for name, kind in kinds[0].items() if kind == "split")
            own[0][part].view(-1)[0] = torch.nan
        return [(list(case.given), grads, kinds[rank], limit) for rank, grads in enumerate(own)]

    def run(self, comm, yours, given, grads, kinds, limit):
        mine = {name: g.clone() for name, g in grads.items()}
        kept = {name: g.detach() for name, g in mine.items()}
        found = yours(Mesh(comm, *given[:4]), mine, dict(kinds), limit)
        return {
            "norm": bare(found),
            "grads": kept,
        }

    def judge(self, case, args, outcome):
        grid, limit = Grid(*case.given[:4]), args[0][3]
        own, kinds = [grads for _, grads, _, _ in args], [kinds for _, _, kinds, _ in args]
        want = oracle.norm(grid, own, kinds)
        if case.what.endswith(A_NAN):
            norms = [got["norm"] for got in outcome.results]
            if all(isinstance(norm, float) and math.isnan(norm) for norm in norms):
                return
            raise Wrong(f"the norms are {norms}, and should be nan. {HIDDEN}")
        rule = (
            "Which ranks hold a part of a gradient, and which a copy? Each stage has biases and norms of its own, and "
            "each tensor rank its own part of a tied matrix."
        )

        def told(r, name):
            kind = kinds[r][name]
            still = "Who does not count a gradient must scale it all the same: copies stay equal."
            if oracle.counts(grid, r, kind):
                still = "Nothing was scaled: in place, g.mul_(…)."
            return f"the gradient of {name} ({kind})", {1.0: still}

        where = lambda r: f"rank {r} ({grid.name(r) or 'alone'}): "
        looks = lambda r: _looks_of_norm(grid, r, own, kinds, want, limit)
        clipped(outcome, own, limit, want, where, looks, rule, told)
        oracle.copies_agree(grid, [got["grads"] for got in outcome.results], kinds)
        self._traffic(grid, outcome)

    def _traffic(self, grid, outcome):
        across = [pair for pair in outcome.sent if "dp" in grid.between(*pair[:2])]
        if across:
            raise Costly(
                f"the numbers are right, but {sum(x for *_, x in across)} bytes go between data ranks: they "
                "have the same gradients. mesh.group('pp', 'tp') are the ranks of one replica."
            )
        n = grid.pp * grid.tp
        most = grid.dp * max(2, n) * (n - 1) * 8
        hint = "one number of 8 bytes from each rank of a replica to each other."
        few_in_all(outcome, most, hint)


def _outweighed(own, kinds):
    """Each stage's square becomes less than half of the last bit of the first one's: before it they add up, after it
    they vanish, so that an order of addition shows."""
    large = _squares(own[0].values())
    for grads, held in zip(own[1:], kinds[1:], strict=True):
        small = [g for name, g in grads.items() if held[name] != "tied"]
        scale = (0.45 * math.ulp(large) / _squares(small)) ** 0.5
        for g in small:
            g *= scale


def _counted_squares(grid, own, kinds, r):
    """The squares of what this rank is the one to count."""
    return _squares(g for name, g in own[r].items() if oracle.counts(grid, r, kinds[r][name]))


def _squares(some):
    return sum(float(g.square().sum()) for g in some)


def _looks_of_norm(grid, r, own, kinds, want, limit):
    """What a wrong norm looks like."""
    counted = lambda *twice: oracle.norm(grid, own, kinds, twice)
    everywhere = counted("whole", "partial", "tied")
    tied = _squares(own[r][name] for name, kind in kinds[r].items() if kind == "tied")
    replica = [k for k in range(grid.size) if grid.place(k)["dp"] == grid.place(r)["dp"]]
    parts = {k: _counted_squares(grid, own, kinds, k) for k in replica}
    stage = sum(parts[k] for k in oracle.line_of(grid, r, "tp"))
    column = sum(parts[k] for k in oracle.line_of(grid, r, "pp"))
    return {
        "It is the norm of this stage alone: add up over the pipeline, too.": stage**0.5,
        "It is the norm of this tensor rank's line alone: add up over tp, too.": column**0.5,
        "The squares are added up over the ranks, and the root comes last: norms do not add.": sum(
            square**0.5 for square in parts.values()
        ),
        "The tied gradient was halved: with one stage there is one copy of it.": (
            want**2 - tied / 2 if grid.pp == grid.tp == 1 else 0
        )
        ** 0.5,
        "What is whole on every tensor rank (a bias after g) was counted on each: one is enough.": counted(
            "whole"
        ),
        "A partial gradient is the same on all tensor ranks once it has been summed, and was counted on each of them.": counted(
            "partial"
        ),
        "It is the norm after clipping: return what it was before.": min(want, limit),
        "It is the square: the root is missing.": want**2,
        "It is the norm of this rank's gradients alone: each would scale by another factor.": _squares(
            own[r].values()
        )
        ** 0.5,
        "What is whole on every tensor rank was counted on each of them: one of them is enough.": counted(
            "whole", "partial"
        ),
        "The tied gradient was counted on the first stage and on the last: once is enough.": counted(
            "tied"
        ),
        "Copies over tp and the tied ends were counted on every rank that holds them.": everywhere,
        "The data ranks were counted, too: they are replicas.": want * grid.dp**0.5,
        "Everything was counted wherever it is held: copies, ends and replicas.": everywhere
        * grid.dp**0.5,
    }


# ------------------------------------------------------------
# Choosing: the fastest grid of a cluster that fits into memory.


CHOOSE_FORBIDDEN = ("minidist.comm.mesh", *oracle.FORBIDDEN)
MANY = 64, 8, 64, 48, 512


def allowed(dp: int, pp: int, tp: int, node: int, heads: int, layers: int, batch: int) -> str:
    """Why a grid cannot be, in words; empty: it can."""
    if node % tp:
        return f"groups of {tp} tensor ranks do not fit into nodes of {node}: some would lie across two"
    if heads % tp:
        return f"{heads} heads do not split over {tp} tensor ranks"
    if layers % pp:
        return f"{layers} layers do not split over {pp} stages"
    if batch % dp:
        return f"{batch} sequences do not split over {dp} replicas"
    return ""


class BestGrid(Report):
    """`best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity)`: (dp, pp, tp), or None."""

    name = "best_grid"
    right = "Clusters of 1 to 96 GPUs, memory that decides, nodes of 6 and 8, one where nothing fits: the fastest grid."
    forbidden = CHOOSE_FORBIDDEN
    # gpus, node, heads, layers, batch, room
    cases = alone(
        (
            ("64 GPUs, enough memory", (*MANY, 1.0)),
            ("64 GPUs, little memory", (*MANY, 0.3)),
            ("64 GPUs, very little memory", (*MANY, 0.05)),
            ("one GPU", (1, 8, 8, 4, 16, 1.0)),
            ("48 GPUs in nodes of 6", (48, 6, 48, 24, 96, 0.3)),
            ("heads that decide", (64, 8, 12, 24, 64, 0.1)),
            ("layers that decide", (64, 8, 64, 9, 64, 0.1)),
            ("a batch that decides", (96, 8, 64, 48, 6, 1.0)),
            ("nothing fits", (*MANY, 0.0)),
            ("to the byte", (*MANY, "exact")),
        )
    )

    def draw(self, case, rng):
        gpus, node, heads, layers, batch, room = case.given
        table = [
            (*one, integer(rng, 10**9, 10**11), 1 + uniform(rng))
            for one in oracle.factors(gpus)
            if not allowed(*one, node, heads, layers, batch)
        ]
        sizes = sorted(row[3] for row in table)
        if room == "exact":
            capacity = min(table, key=lambda row: row[4])[3]
        else:
            capacity = sizes[round(room * (len(sizes) - 1))] + 1000 if room else sizes[0] - 1
        return [([gpus, node, heads, layers, batch], [list(row) for row in table], capacity)]

    def run(self, comm, yours, shape, table, capacity):
        rows, asked = {tuple(row[:3]): row[3:] for row in table}, []
        refused = []
        gpus, node, heads, layers, batch = shape

        def of(dp, pp, tp):
            if dp * pp * tp != gpus:
                why = f"{dp}·{pp}·{tp} = {dp * pp * tp} ranks, and there are {gpus} GPUs"
            elif (dp, pp, tp) not in rows:
                why = (
                    f"dp {dp}, pp {pp}, tp {tp}: {allowed(dp, pp, tp, node, heads, layers, batch)}"
                )
            else:
                why = ""
            if why:
                refused.append(why)
                raise ValueError(why)
            asked.append((dp, pp, tp))
            return rows[dp, pp, tp]

        found = yours(
            *shape,
            lambda dp, pp, tp: of(dp, pp, tp)[0],
            lambda dp, pp, tp: of(dp, pp, tp)[1],
            capacity,
        )
        return found, len(set(asked)), refused[:1]

    def check(self, case, report, shape, table, capacity):
        got, asked, refused = bare(report)
        if refused:
            raise Wrong(f"you asked about a grid that is not allowed: {refused[0]}.")
        fit = [row for row in table if row[3] <= capacity]
        best = min(fit, key=lambda row: row[4], default=None)
        if best is None:
            if got is not None:
                raise Wrong("nothing fits: it should return None.")
            return
        want = tuple(best[:3])
        three = isinstance(got, tuple | list) and len(got) == 3
        if not three or not all(isinstance(k, int | float) for k in got):
            raise Wrong(
                f"it returns {shown(got)}, and should return (dp, pp, tp), three whole numbers"
                f"{': something fits.' if got is None else '.'}"
            )
        if tuple(got) != want:
            self._other(tuple(got), want, table, capacity, shape)
        if asked < len(table):
            raise Wrong(
                f"right, but only {asked} of {len(table)} grids were looked at: on another cluster the best "
                "one may be among the rest."
            )

    def _other(self, got, want, table, capacity, shape):
        rows = {tuple(row[:3]): row[3:] for row in table}
        head = f"it returns {got}, and should return {want}. "
        if got not in rows:
            good = all(isinstance(k, int) and k > 0 for k in got)
            why = allowed(*got, *shape[1:]) if good else ""
            turned = sorted(got) == sorted(want)
            raise Wrong(
                head
                + (
                    "The order is dp, pp, tp."
                    if turned
                    else f"That cannot be: {why or 'not these'}."
                )
            )
        nbytes, seconds = rows[got]
        order = " Is the order dp, pp, tp?" * (sorted(got) == sorted(want))
        if nbytes > capacity:
            raise Wrong(f"{head}It needs {nbytes:,} bytes, and there are {capacity:,}.{order}")
        why = (
            "It has the fewest bytes, not the fewest seconds. "
            if nbytes == min(row[3] for row in table)
            else ""
        )
        full = "What fits to the last byte, fits. " if rows[want][0] == capacity else ""
        if why or full:
            order = ""
        raise Wrong(
            head + f"{why}{full}It takes {seconds:.3g} s, the other {rows[want][1]:.3g} s.{order}"
        )


# ------------------------------------------------------------
# Numbers foretold: bytes by axis, and what the worst place costs.


def predict_hybrid(d=3, p=4, t=8, layers=32, hidden=8192, tokens=4096, M=12, fast=400e9, slow=50e9):
    """dp 3 × pp 4 × tp 8; 32 layers of 8,192; 12 micro-batches of 4,096 tokens; 400 and 50 GB/s."""
    N, here = 2 * tokens * hidden, layers / p
    tensor, data = (
        8 * (t - 1) / t * N * M * here,
        2 * (d - 1) / d * 24 * hidden**2 * layers / (t * p),
    )
    pipeline = M * N
    good, bad = tensor / fast + (data + pipeline) / slow, tensor / slow + (data + pipeline) / fast
    values = {
        "replica": p * t,
        "tp_bytes": tensor,
        "dp_bytes": data,
        "pp_bytes": pipeline,
        "good": good,
        "bad": bad,
        "ratio": bad / good,
    }
    slips = {
        "replica": {
            d: "That is how many replicas there are.",
            d * p * t: "Those are all ranks.",
            t: "That is one stage of it.",
            p: "Each stage has tp ranks.",
        },
        "tp_bytes": {
            tensor / 2: "Two all-reduces forward, two backward, 2 bytes a number.",
            tensor * p: "A stage has layers/pp layers.",
            8 * N * M * here: "Nearly: the factor is 2(t−1)/t.",
            tensor * t: "That is what the group sends: one rank is asked for.",
            tensor / M: "Every micro-batch has its all-reduces.",
            tensor * 6 / 4: "Nothing is computed twice: a layer has four all-reduces, not six.",
            tensor * (4 * layers + 2) / (4 * layers): "There is no embedding and no output layer: "
            "layers only.",
        },
        "dp_bytes": {
            data / 2: NUMBERS,
            2 * data: "In bf16 a gradient has 2 bytes.",
            data * d / (2 * (d - 1)): "A ring sends 2(n−1)/n times the bytes of its buffer.",
            data * d: "That is what the group sends: one rank is asked for.",
            data * M: "Once a step: with no_sync.",
            data * t: "Each tensor rank has 1/tp of the matrices.",
            data * p: "Each stage has 1/pp of the layers.",
            data * t * p: "A rank holds 1/(pp·tp) of the parameters.",
        },
        "pp_bytes": {
            2 * M * N: "The first stage sends activations only: gradients come to it.",
            2
            * (p - 1)
            / p
            * M
            * N: "That is the mean over the stages: the first one is asked for.",
            N: "Every micro-batch is sent.",
            M * N / t: "Without sequence parallelism every tensor rank sends the whole.",
            M * N / 2: NUMBERS,
        },
        "good": {
            (tensor + data + pipeline) / fast: "Only tensor stays in the node.",
            bad: "That is the bad place.",
            tensor / fast + data / slow: "The pipeline's bytes cross the network, too.",
            tensor / fast + pipeline / slow: "Data's bytes cross the network, too.",
            max(tensor / fast, (data + pipeline) / slow): "Nothing overlaps: the seconds add up.",
            max(
                tensor / fast, data / slow, pipeline / slow
            ): "Nothing overlaps: the seconds add up.",
            (tensor + data + pipeline) / slow: "Tensor has NVLink.",
        },
        "bad": {
            (tensor + data + pipeline) / slow: "In this place data and pipeline have NVLink.",
            good: "That is the good place.",
        },
        "ratio": {
            good / bad: "Upside down.",
            fast / slow: "That is the ratio of the links: not all is tensor's.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_hybrid,
    "Ranks, bytes, seconds and their ratio, within 1 %.",
    {
        "layers": ("{} layers", (24, 40, 48)),
        "hidden": ("hidden {:,}", (4096, 6144, 12288)),
        "M": ("{} micro-batches", (6, 10, 16)),
    },
)
