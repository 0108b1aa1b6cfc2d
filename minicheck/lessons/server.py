"""Graders of lesson 08: parameters on servers, synchronous, asynchronous, and with bounded staleness.

`Gradient` takes time on the clock of a World; `replayed` says what may follow from what.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..exam import (
    HALF,
    HIDDEN,
    Case,
    Costly,
    Exam,
    Prediction,
    Solo,
    Wrong,
    alike,
    alone,
    close,
    integers,
    left_open,
    near,
    normal,
    on_time,
    shaped,
    shuffled,
    timed,
    uniform,
)
from ..oracles.server import as_they_come, in_step, owners

# ------------------------------------------------------------
# What workers compute in lesson 08's exercises: a gradient that betrays its rank, its step and its weights.
#
# g = scale·w + offset, with numbers drawn for each rank and step. It takes time on the clock of a World, by a product of
# two vectors; nothing else does but messages.


FORBIDDEN = ("minidist.parallel", "minidist.study", "minicheck.oracles.server")
PROMISES = {"traffic": 0.25, "speed": 0.25}
ALPHA, FLOPS = 1e-5, 1e8


class Gradient:
    """`gradient(w)` of one worker. offsets[t], seconds[t]: of its step t.  seen: the weights it was called with."""

    def __init__(self, scale: float, offsets: Tensor, seconds: list[float]):
        self.scale = scale
        self.offsets = offsets
        self.seconds = seconds
        self.seen = []

    def __call__(self, w: Tensor) -> Tensor:
        t = len(self.seen)
        if t == len(self.seconds):
            raise ValueError(
                f"gradient(w) is called {t + 1} times, and this worker takes {t} step{'s' * (t > 1)}"
            )
        self.seen.append(w.clone() if isinstance(w, Tensor) else w)
        x = torch.empty(max(1, round(self.seconds[t] * FLOPS / 2)), dtype=torch.float64)
        _ = x[None] @ x[:, None]
        return self.of(w, t)

    def of(self, w: Tensor, t: int) -> Tensor:
        """Of step t at the weights w."""
        return self.scale * w + self.offsets[t]


def draw_rate(rng: torch.Generator) -> float:
    return 0.2 + 0.2 * uniform(rng)


def draw_gradient(
    rng: torch.Generator, length: int, seconds: list[float]
) -> tuple[float, Tensor, list[float]]:
    """The arguments of a `Gradient`."""
    scale = 0.2 + 0.6 * uniform(rng)
    return scale, normal(rng, len(seconds), length), seconds


def special(case: Case, w: Tensor, work: tuple, worker: int) -> tuple[Tensor, tuple]:
    """The weights and the gradient of a rank, in float32, or with nan in a step of worker 0, where the case's name says so.
    A worker's weights, which are to be overwritten, have an inf among them."""
    scale, offsets, seconds = work
    if worker >= 0:
        w[0] = math.inf
    if "nan" in case.what and worker == 0:
        offsets[-2, 0] = torch.nan
    dtype = torch.float32 if "float32" in case.what else w.dtype
    return w.to(dtype), (scale, offsets.to(dtype), seconds)


# ------------------------------------------------------------
# What must follow from an order of updates: the weights, the versions that workers had, staleness and the bound.
#
# Update i makes version i + 1. After each of them the server answers who may go on; so a worker's next weights are the
# first version, from its own push on, at which it may. Nothing that an answer reports is believed but this order, and the
# order only if all gradients fit: they are calculated here again.


class Rule(NamedTuple):
    """How the server steps, and whom it lets go on: see `Asynchronous`."""

    rate: float
    damped: bool
    bound: float
    spare: int = 0

    def step(self, stale: int) -> float:
        """By what a gradient of this staleness is multiplied."""
        return self.rate / (1 + stale * self.damped)


def replayed(args: list[tuple], results: list[dict], steps: list[int], rule: Rule) -> None:
    """Raise Wrong unless all that the ranks report follows from the order of the updates."""
    log = _log(results[0]["log"], steps)
    if results[0]["seen"]:
        raise Wrong("rank 0 is the server, but it calls gradient(w). Only workers do that.")
    for k, most in enumerate(steps):
        if len(results[k + 1]["seen"]) != most:
            called = len(results[k + 1]["seen"])
            raise Wrong(
                f"rank {k + 1}: gradient(w) is called {called} times, and should be called once in each of its {most} "
                "steps."
            )
    works = [Gradient(*some[1]) for some in args[1:]]
    states, clocks = [args[0][0]], [[0] * len(steps)]
    for i, (rank, stale) in enumerate(log):
        k, clock = rank - 1, list(clocks[-1])
        t = clock[k]
        v = _version(k, t, results[rank]["seen"][t], states, args, rule)
        pushed = max((j + 1 for j, (r, _) in enumerate(log[:i]) if r == rank), default=0)
        if states[v].isfinite().all() and not states[pushed].isfinite().all():
            raise Wrong(
                f"rank {rank}: there was nan in what it pushed before its step {t}, but in that step gradient(w) is "
                f"called with weights without nan. {HIDDEN}"
            )
        _allowed(k, t, v, clocks, log, steps, rule)
        if stale != i - v:
            hint = (
                "This push itself does not count, only those that came before it."
                if stale == i - v + 1
                else "Staleness counts the updates between the weights that a gradient was computed with and those that "
                "it is applied to."
            )
            raise Wrong(
                f"update {i}, by rank {rank}, is reported with a staleness of {stale}, which should be {i - v}: its "
                f"gradient was computed with version {v} of the weights, and is applied to version {i}. {hint}"
            )
        states.append(states[-1] - rule.step(i - v) * works[k].of(states[v], t))
        clock[k] += 1
        clocks.append(clock)
    got = results[0]["w"]
    alike(got, states[-1], "rank 0: the final w")
    if not near(got, states[-1]):
        hint = (
            HIDDEN
            if got.isfinite().all() and not states[-1].isfinite().all()
            else "The last update is missing."
            if near(got, states[-2])
            else "It is as it was at first. Is `w` itself stepped, in place?"
            if near(got, states[0])
            else f"Each push should be one update, {_formula(rule)}."
        )
        raise Wrong(f"rank 0: the final w is wrong. {hint}")


def _formula(rule):
    return "w ← w − rate/(1 + d)·g with its staleness d" if rule.damped else "w ← w − rate·g"


def _log(log, steps):
    should = "a list of (rank, staleness), two integers for each update"
    log = shaped(log, [(int, int)], "rank 0: the result", should)
    if len(log) != sum(steps):
        raise Wrong(
            f"{len(log)} updates are reported, but the workers take {sum(steps)} steps: every push is an "
            "update of its own."
        )
    for k, most in enumerate(steps):
        count = sum(rank == k + 1 for rank, _ in log)
        if count != most:
            raise Wrong(
                f"{count} updates are reported as rank {k + 1}'s, which takes {most} steps. Workers are ranks 1 "
                f"to {len(steps)}, and push.source says who has sent a push."
            )
    return log


def _version(k, t, seen, states, args, rule):
    """Which version the worker's step t was computed with."""
    alike(seen, states[0], f"rank {k + 1}: the w that gradient is called with in step {t}")
    found = next((v for v in reversed(range(len(states))) if near(seen, states[v])), None)
    if found is None:
        own = (
            "They are those that this rank began with: a step begins with a pull."
            if near(seen, args[k + 1][0])
            else HIDDEN
            if seen.isfinite().all() and not states[-1].isfinite().all()
            else f"Each push should be one update, {_formula(rule)}, and not part of a mean. And weights must not be "
            "stepped while they are being sent."
        )
        raise Wrong(
            f"rank {k + 1}: in its step {t} gradient(w) is called with weights that the server never had. "
            f"{own}"
        )
    return found


def _allowed(k, t, v, clocks, log, steps, rule):
    """The version must be the first at which worker k might begin its step t."""
    others = [rank for rank, _ in log[: len(clocks) - 1]]
    begin = 1 + max((i for i, rank in enumerate(others) if rank == k + 1), default=-1)

    def ahead(version: int) -> int:
        running = sorted(c for c, most in zip(clocks[version], steps, strict=True) if c < most)
        return clocks[version][k] - running[min(rule.spare, len(running) - 1)]

    bound = rule.bound
    whom = "the slowest worker that counts" if rule.spare else "the slowest worker"

    if v < begin:
        raise Wrong(
            f"rank {k + 1}: its step {t} is computed with version {v}, from before its own last push, which "
            f"made version {begin}."
        )
    right = next(
        (version for version in range(begin, len(clocks)) if ahead(version) <= bound), None
    )
    if right is None or v < right:
        raise Wrong(
            f"rank {k + 1} begins its step {t} when it is {ahead(v)} ahead of {whom}, but the bound is "
            f"{bound}. The workers' clocks are {clocks[v]} then."
        )
    if v > right:
        why = (
            "every push is to be answered at once"
            if bound == math.inf
            else f"among those that still work it is {ahead(right)} ahead of {whom}, and the bound is {bound}"
        )
        raise Wrong(
            f"rank {k + 1} could begin its step {t} with version {right} of the weights, when the workers' clocks are "
            f"{clocks[right]}: {why}. It gets version {v}, so it waits without need."
        )


# ------------------------------------------------------------
# The partition: which server holds which numbers.


class Pieces(Solo):
    """`pieces(sizes, s)`: for each server a list of (param, first, end)."""

    name = "pieces"
    right = (
        "Tried with up to 30 parameters on 1 to 9 servers: every number is held once and in order, in shares that are "
        "equal or differ by one number."
    )
    forbidden = FORBIDDEN
    # how many parameters, the largest, servers
    cases = alone(
        {
            "4 parameters on 2 servers": (4, 6, 2),
            "7 parameters on 3 servers": (7, 9, 3),
            "30 parameters on 4 servers": (30, 50, 4),
            "one parameter on 3 servers": (1, 20, 3),
            "one server": (5, 9, 1),
            "9 servers": (6, 40, 9),
            "a matrix larger than all others": (5, -4, 4),
            "shares that end where a parameter does": (4, 1, 2),
            "more servers than numbers": (3, 0, 7),
        }
    )

    def draw(self, case, rng):
        count, most, s = case.given
        low, high = (5, abs(most) + 5) if most else (1, 3)
        sizes = integers(rng, low, high, count)
        if most < 0:
            sizes[1] = 100 + sizes[0]
        return [(sizes, s)]

    given = ("`sizes`",)

    def wants(self, case, args):
        return [{"the result": owners(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        sizes, s = args[0]
        shown = f"sizes {sizes}, {s} server{'s' * (s > 1)}: " if len(sizes) < 9 else ""
        found = _checked(got, s, len(sizes))
        if found != want:
            _ranges(found, sizes, shown)
            _shares(found, sizes, s, shown)


def _checked(pieces, s, params):
    should = "a list of pieces for each server, each (param, first, end), three integers"
    pieces = shaped(pieces, [[(int, int, int)]], "the result", should)
    if len(pieces) != s:
        raise Wrong(f"the result has {len(pieces)} lists, but there are {s} servers.")
    for server, some in enumerate(pieces):
        for param, *_ in some:
            if not 0 <= param < params:
                raise Wrong(
                    f"server {server}: there is no parameter {param}. They are numbered from 0 to {params - 1}."
                )
    return [[tuple(piece) for piece in some] for some in pieces]


def _ranges(found, sizes, shown):
    """Every number of every parameter once, in order."""
    for server, some in enumerate(found):
        for param, first, end in some:
            if not 0 <= first <= end <= sizes[param]:
                raise Wrong(
                    f"{shown}server {server} has elements {first} to {end} of parameter {param}, which has only "
                    f"{sizes[param]}: first and end are counted within the parameter."
                )
            if first == end:
                raise Wrong(
                    f"{shown}server {server} has an empty piece of parameter {param}: leave it out."
                )
    flat = []
    for some in found:
        for param, first, end in some:
            flat += [(param, i) for i in range(first, end)]
    want = [(param, i) for param, size in enumerate(sizes) for i in range(size)]
    if sorted(flat) != want:
        lost = [
            f"element {i} of parameter {param} is held by none"
            for param, i in sorted(set(want) - set(flat))
        ]
        what = lost[0] if lost else "some are held twice"
        raise Wrong(
            f"{shown}every number should be held by one server, but {what}. Is `end` one beyond the last element?"
        )
    if flat != want:
        raise Wrong(
            f"{shown}every number is held once, but not in order: the parameters follow one another, and server 0 "
            "holds the first numbers."
        )


def _shares(found, sizes, s, shown):
    """Equal to one number, the first ones larger."""
    held = [sum(end - first for _, first, end in some) for some in found]
    if max(held) - min(held) > 1 or held != sorted(held, reverse=True):
        raise Wrong(
            f"{shown}the servers hold {held} numbers. The shares should be equal; where s does not divide the total, the "
            "first total % s servers hold one number more. Cut through a parameter where a share ends."
        )
    raise Wrong(
        f"{shown}what a server holds of one parameter should be one piece, and yours is cut further."
    )


# ------------------------------------------------------------
# The synchronous server: several of them, in step, both ways at once.


ROUNDS_BETA = (
    1e-6  # large: the wires are what takes time, and not a split that an answer begins with
)
ROUNDS_SLACK = (
    1.25  # one way after the other takes 4 / 3 at least; messages posted one by one, at most this
)
BATCH = (
    "Put all sends and receives of a server's step into one comm.batch, and do the same with a worker's pulls and with "
    "its pushes: a wire carries both directions at once."
)


def trajectory(args: list[tuple], slip: str = "") -> list[Tensor]:
    """The weights before each step and in the end; slip: with one mistake."""
    servers, w, *_, steps, rate = args[0]
    works = [(Gradient(*a[2]), a[3]) for a in args[servers:]]
    found = [w]
    for t in range(steps):
        counts = [samples[t] for _, samples in works]
        grads = [samples[t] * work.of(found[-1], t) for work, samples in works]
        total = max(1, sum(counts))
        by = {"sum": 1, "ranks": len(args), "workers": len(works)}.get(slip, total)
        if slip == "means":
            grads = [g / max(1, count) for g, count in zip(grads, counts, strict=True)]
            by = len(works)
        found.append(found[-1] - {"sign": -rate, "rate": 1}.get(slip, rate) * sum(grads) / by)
    return found


SLIPS = {
    "sum": "The step is taken with the sum of the gradients: divide it by the number of samples of all workers.",
    "workers": "The sum is divided by the number of workers. The mean is over samples, and workers have different numbers of "
    "them.",
    "ranks": "The sum is divided by the number of ranks. The mean is over the samples of all workers.",
    "means": "The workers' means are averaged plainly, but a worker with more samples should count more.",
    "sign": "The step goes uphill: it should be w − rate·g.",
    "rate": "The rate is missing.",
}


class Synchronous(Exam):
    """`synchronous(comm, servers, w, gradient, steps, rate)`: a server returns its part of the weights."""

    name = "synchronous"
    right = (
        "Tried with 1 to 4 workers, whose batches are uneven and sometimes empty, and 1 to 4 servers: the weights are the "
        "serial program's in every step, and each server's wire carries its share, as fast as it can. Then tried in real "
        "processes."
    )
    promises = PROMISES
    forbidden = FORBIDDEN
    # workers, servers, numbers, steps
    cases = tuple(
        Case(
            n + s,
            f"{n} worker{'s' * (n > 1)}, {s} server{'s' * (s > 1)}{more}",
            (n, s, size, steps),
        )
        for n, s, size, steps, more in (
            (2, 1, 3000, 2, ""),
            (1, 1, 2000, 2, ", float32"),
            (3, 1, 6000, 3, ""),
            (4, 2, 6000, 3, ""),
            (3, 3, 5000, 2, ""),
            (4, 4, 8000, 3, ""),
            (2, 3, 3100, 2, ", nan in a gradient"),
        )
    )
    processes = (
        Case(3, "3 real processes, 1 server", (2, 1, 12, 3)),
        Case(4, "4 real processes, 2 servers", (2, 2, 13, 2)),
    )

    def draw(self, case, rng):
        n, s, size, steps = case.given
        rate, first = draw_rate(rng), normal(rng, size)
        other = lambda: normal(rng, size)
        args = []
        for r in range(n + s):
            w, work = first if r < s else other(), draw_gradient(rng, size, [1e-5] * steps)
            samples = [1 + k for k in shuffled(rng, 9)[:steps]]
            if "nan" not in case.what:
                if r == s and n > 1:  # the first worker has an empty batch
                    samples[0] = 0
                if r >= s:  # and in the second step nobody has a sample
                    samples[1] *= steps < 3
            args.append((s, *special(case, w, work, r - s), samples, steps, rate))
        return args

    def world(self, n, args):
        return timed(n, ALPHA, ROUNDS_BETA, FLOPS)

    def run(self, comm, yours, servers, w, work, samples, steps, rate):
        gradient = Gradient(*work)

        def counted(w):
            t = len(gradient.seen)
            mean = gradient(w)
            return samples[t] * mean, samples[t]

        result = yours(comm, servers, w, counted, steps, rate)
        part = result if comm.rank < servers else None
        return {"part": part, "seen": gradient.seen, "open": left_open(comm)}

    def judge(self, case, args, outcome):
        n, s, _, steps = case.given
        states = trajectory(args)
        for r in range(s, n + s):
            self._called(r, outcome.results[r]["seen"], states, args, steps)
        for r in range(s):
            if outcome.results[r]["seen"]:
                raise Wrong(
                    f"rank {r} is a server, but it calls gradient(w). Only workers do that."
                )
            want = [w.tensor_split(s)[r] for w in states]
            got = outcome.results[r]["part"]
            if isinstance(got, Tensor) and got.shape == states[0].shape and s > 1:
                raise Wrong(
                    f"server {r} returns {len(got)} numbers, but its part of the weights has {len(want[0])}."
                )
            rule = (
                "Is every gradient applied to the part that it belongs to, does the sum begin anew in every step, and does "
                "a worker with more samples count more?"
            )
            looks = partial(self._looks, args=args, server=r, want=want)
            close(got, want[-1], f"rank {r}: the server's part", looks, rule)

    def _looks(self, got, args, server, want):
        part = lambda slip: trajectory(args, slip)[-1].tensor_split(args[0][0])[server]
        return {
            "It is one step behind: the last pushes are missing.": want[-2],
            "It is as it was at first: is the server's own tensor stepped?": want[0],
        } | {text: part(slip) for slip, text in SLIPS.items()}

    def _called(self, rank, seen, states, args, steps):
        if len(seen) != steps:
            raise Wrong(
                f"rank {rank}: gradient(w) is called {len(seen)} times, and should be called once in each of {steps} "
                "steps."
            )
        for t, (got, want) in enumerate(zip(seen, states, strict=False)):
            what = f"rank {rank}: the w that gradient is called with in step {t}"
            own = "These are the weights that this rank began with: a step begins with a pull."
            looks = {own: args[rank][1]}
            if t:
                text = (
                    "These are the weights of the step before: a server answers after its own step."
                )
                looks[text] = states[t - 1]
            looks |= {text: trajectory(args, slip)[t] for slip, text in SLIPS.items()}
            if t and not bool(sum(a[3][t - 1] for a in args[args[0][0] :])):
                looks["Nobody had a sample in the step before: the weights stay as they are."] = got
            rule = (
                "Is each server's part pulled into its own place in w, and is it the part as it is after the server's "
                "last step?"
            )
            close(got, want, what, looks, rule)

    def traffic(self, case, args, outcome):
        n, s, _, steps = case.given
        parts = [part.nbytes for part in args[0][1].tensor_split(s)]
        for r, part in enumerate(parts):
            into = sum(nbytes for _, dst, nbytes in outcome.sent if dst == r)
            for way, count in (("sends", outcome.nbytes(r)), ("receives", into)):
                if count < n * steps * part:
                    raise Wrong(
                        f"the weights are right, but server {r} {way} {count} bytes, and with {n} workers and "
                        f"{steps} steps its own part takes {n * steps * part}: a server hears and answers every worker "
                        "itself."
                    )
                # a Comm of one's own costs some
                if count > n * (steps + 1) * part + 64 * n * (steps + 1):
                    raise Costly(
                        f"the weights are right, but server {r} {way} {count} bytes, and {steps} steps of its part "
                        f"with {n} workers take {n * steps * part}. What else travels: parts that other servers own, or "
                        "messages that are neither weights nor gradients?"
                    )

    def speed(self, case, args, outcome):
        best = self.seconds(args, in_step)
        on_time(outcome, 0.5 * best, ROUNDS_SLACK * best, best, "the weights are", BATCH)


# ------------------------------------------------------------
# A push is a step of its own: asynchronous, bounded, and with workers that leave.
#
# The order of the updates is the answer's to say; what follows from it is replayed, see `replayed`.


ARRIVALS_BETA, SIZE = 1e-8, 9
ARRIVALS_SLACK = 1.1


def paces(kind: str, k: int, n: int, steps: int, rng: torch.Generator) -> list[float]:
    """Seconds of each step of worker k of n."""
    even = (1e-3 * (1 + 0.3 * torch.rand(steps, generator=rng))).tolist()
    if kind == "slow":
        return [t * 5 if k == 0 else t for t in even]
    if kind == "chance":
        pauses = (torch.rand(steps, generator=rng) < 0.25).tolist()
        return [t * 7 if pause else t for t, pause in zip(even, pauses, strict=True)]
    return even


class Asynchronous(Exam):
    """`asynchronous(comm, w, gradient, steps, rate)`: rank 0 returns [(rank, staleness), …] of its updates.

    given: the pace, each worker's steps, the bound, how many of the slowest do not count.
    damped: whether a gradient that is d updates old is added with the rate divided by 1 + d.
    """

    name = "asynchronous"
    damped = True
    right = (
        "Tried with 1 to 5 workers, which are equally fast, slow, or held up by chance: every push is an update of its own "
        "and is answered at once, a stale one makes a smaller step, and nobody waits. Then tried in real processes."
    )
    promises = PROMISES
    forbidden = FORBIDDEN
    cases = tuple(
        Case(len(steps) + 1, what, (kind, steps, math.inf))
        for what, kind, steps in (
            ("2 workers", "even", (4, 4)),
            ("3 workers, one slow", "slow", (3, 9, 9)),
            ("1 worker, float32", "even", (5,)),
            ("5 workers, nan in a gradient", "chance", (5, 5, 5, 5, 5)),
            ("3 workers with 2, 8 and 5 steps", "even", (2, 8, 5)),
        )
    )
    processes = (
        Case(4, "3 workers in real processes", ("even", (4, 2, 5), math.inf)),
        Case(2, "1 worker in a real process", ("even", (3,), math.inf)),
    )

    def draw(self, case, rng):
        kind, steps, *limits = case.given
        n, other = len(steps), lambda: normal(rng, SIZE)
        works = [draw_gradient(rng, SIZE, paces(kind, k, n, steps[k], rng)) for k in range(n)]
        asked = self.asked(list(steps), draw_rate(rng), *limits)
        return [
            (*special(case, other(), works[max(0, r - 1)], r - 1), *asked) for r in range(n + 1)
        ]

    def asked(self, steps, rate, bound, spare=0):
        """The last arguments of the answer."""
        return steps, rate

    def world(self, n, args):
        return timed(n, ALPHA, ARRIVALS_BETA, FLOPS)

    def run(self, comm, yours, w, work, *asked):
        gradient, held = Gradient(*work), w.detach()
        log = yours(comm, w, gradient, *asked)
        return {
            "log": log if comm.rank == 0 else None,
            "w": held if comm.rank == 0 else None,
            "seen": gradient.seen,
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        _, steps, *limits = case.given
        rule = Rule(args[0][3], self.damped, *limits)
        replayed(args, outcome.results, list(steps), rule)

    def traffic(self, case, args, outcome):
        (_, steps, *_), nbytes = case.given, args[0][0].nbytes
        for k, most in enumerate(steps):
            pushed = sum(b for src, dst, b in outcome.sent if (src, dst) == (k + 1, 0))
            pulled = sum(b for src, dst, b in outcome.sent if (src, dst) == (0, k + 1))
            for what, count, upto in (("pushes", pushed, most), ("pulls", pulled, most + 1)):
                if count < most * nbytes or count > upto * nbytes + 32 * (most + 1):
                    raise (Wrong if count < most * nbytes else Costly)(
                        f"the weights are right, but rank {k + 1} {what} {count} bytes, and {most} steps of "
                        f"{SIZE} numbers take {most * nbytes}."
                    )

    def speed(self, case, args, outcome):
        _, steps, *limits = case.given
        # one worker alone; a product has a whole length
        least = 0.99 * max(sum(seconds) for _, (_, _, seconds), *_ in args[1:])
        known = lambda comm, w, gradient, *_: as_they_come(
            comm, w, gradient, list(steps), args[0][3], *limits, damped=self.damped
        )
        best = self.seconds(args, known)
        hint = (
            "Does the server wait for one worker while another has already pushed? comm.irecv(g, ANY) takes whichever "
            "push comes first."
        )
        why = "one worker alone computes for that long. Call gradient(w) for every gradient."
        on_time(outcome, least, ARRIVALS_SLACK * best, best, "the weights are", hint, why)


class Bounded(Asynchronous):
    """`bounded(comm, w, gradient, steps, rate, bound, spare)`: nobody is more than `bound` ahead of all but the `spare` slowest."""

    name = "bounded"
    right = (
        "Tried with 1 to 5 workers, bounds from 0 to 4, and 0 to 2 spare workers: nobody begins a step more than `bound` "
        "ahead of those that count, and nobody waits without need. Then tried in real processes."
    )
    damped = False
    cases = tuple(
        Case(
            n + 1,
            f"{n} worker{'s' * (n > 1)}, bound {bound}, spare {spare}{more}",
            (kind, (steps,) * n, bound, spare),
        )
        for n, bound, spare, kind, steps, more in (
            (2, 1, 0, "slow", 6, ""),
            (3, 0, 0, "chance", 4, ""),
            (3, 2, 0, "slow", 6, ", nan in a gradient"),
            (1, 1, 0, "even", 4, ", float32"),
            (5, 1, 0, "chance", 6, ""),
            (4, 4, 0, "chance", 9, ""),
            (3, 0, 1, "slow", 6, ""),
            (4, 1, 1, "slow", 7, ""),
            (5, 0, 2, "chance", 7, ""),
        )
    )
    processes = (
        Case(4, "3 workers in real processes, bound 1, spare 1", ("even", (4, 4, 4), 1, 1)),
        Case(3, "2 workers in real processes, bound 0, spare 0", ("even", (3, 3), 0, 0)),
    )

    def asked(self, steps, rate, bound, spare=0):
        return steps[0], rate, bound, spare


class Leavers(Asynchronous):
    """`leavers(comm, w, gradient, steps, rate, bound)`: the same, with `steps` of each worker."""

    name = "leavers"
    right = (
        "Tried with workers that take 1 to 9 steps, and bounds from 0 to 4: a worker that has taken all its steps holds "
        "nobody up, and everybody else counts. Then tried in real processes."
    )
    damped = False
    cases = tuple(
        Case(
            len(steps) + 1,
            f"steps {', '.join(map(str, steps))}, bound {bound}{more}",
            (kind, steps, bound),
        )
        for steps, bound, kind, more in (
            ((6, 2), 1, "even", ""),
            ((4, 4, 4), 1, "slow", ", nan in a gradient"),
            ((2, 9), 0, "slow", ""),
            ((2, 8, 5), 0, "chance", ", float32"),
            ((9, 3, 1, 6), 2, "chance", ""),
            ((7, 1, 7), 1, "slow", ""),
            ((8, 1, 9, 9), 4, "slow", ""),
        )
    )
    processes = (
        Case(4, "3 workers in real processes", ("even", (6, 2, 3), 1)),
        Case(3, "2 workers in real processes", ("even", (1, 4), 0)),
    )

    def asked(self, steps, rate, bound, spare=0):
        return steps, rate, bound


# ------------------------------------------------------------
# Figures: a server's wire, several servers, staleness and what it costs.


MILLI = "Seconds are asked for, not milliseconds."


def predict_server(
    n=32,
    nbytes=1e9,
    compute=40e-3,
    alpha=10e-6,
    beta=1 / 50e9,
    wanted=100e-3,
    slower=3,
    missed=200,
    rate=0.05,
    curvature=4.0,
):
    """32 workers, 1 GB, 40 ms, α = 10 µs, β = 1/(50 GB/s), 100 ms, 3 times slower, 200 missed, rate 0.05, curvature 4."""
    wire = nbytes * beta
    half = compute + 2 * alpha + (n + 1 / 2) * wire
    ring = compute + 2 * (n - 1) * (alpha + wire / n)
    servers = n / (wanted / wire - 1)
    gradients = (n - 1) * slower + 1
    into, bound = n * nbytes / servers, int((missed / (n - 1) - 1) / 2)
    workers = int((math.pi / math.asin(curvature * rate / 2) - 2) / 4) + 1
    values = {
        "half": half,
        "ring": ring,
        "servers": servers,
        "into": into,
        "gradients": gradients,
        "bound": bound,
        "workers": workers,
    }
    slips = {
        "half": {
            compute
            + 2 * alpha
            + (n + 1)
            * wire: "That is the time with gradients in fp32: in fp16 the last push takes half as long.",
            compute
            + 2 * alpha
            + (n + 1)
            * wire
            / 2: "Only the gradients are halved: the weights, which go out, fill the wire as before.",
            compute
            + (1.5 * n)
            * wire: "That is one direction after the other: gradients come in while weights go out.",
            (n + 1 / 2) * wire: "The computing is missing.",
            compute
            + (n / 2 + 1)
            * wire: "Gradients come in faster than weights go out: the last worker has to wait for its weights.",
            1e3 * half: MILLI,
        },
        "ring": {
            1e3 * ring: MILLI,
            compute
            + n
            * wire: "In a ring each rank sends 2(n−1)/n of the bytes, which is never more than twice.",
            ring - compute: "The computing is missing.",
            compute + (n - 1) * (alpha + wire / n): HALF,
        },
        "servers": {
            n: "That many would bring it down to 2Nβ. How many make (n/s + 1)Nβ = 100 ms?",
            n / (wanted / wire): "The + 1 is missing.",
            n - 1: "Solve (n/s + 1)Nβ = 100 ms for s.",
        },
        "into": {
            nbytes / servers: "That is what comes from one worker.",
            n * nbytes: "That is what comes into a server that owns everything.",
            2 * into: "That is what comes in and goes out: only what comes in is asked for.",
            into / 1e9: "Bytes are asked for: 1 GB is 10⁹ bytes.",
        },
        "gradients": {
            n: "That is one gradient of each worker, as in a synchronous run.",
            slower * n: "One of the workers is the slow one.",
            (n - 1) * slower: "The slow worker computes one, too.",
        },
        "bound": {
            missed
            / (
                n - 1
            ): "So many updates of each other worker may be missed. How large is the bound, if a worker can go from `bound` "
            "behind to `bound` ahead?",
            missed
            // (
                n - 1
            ): "So many updates of each other worker may be missed. How large is the bound, if a worker can go from `bound` "
            "behind to `bound` ahead?",
            missed // (n - 1)
            - 1: "At the pull the others may be up to `bound` behind, too, so each makes up to 2·bound + 1 updates.",
            (missed / (n - 1) - 1) / 2: "A bound is a whole number.",
            bound + 1: "With that bound a gradient can miss more.",
        },
        "workers": {
            int((math.pi / math.asin(rate / 2) - 2) / 4)
            + 1: "The loss has a curvature of 4: the limit is divided by it.",
            (math.pi / math.asin(curvature * rate / 2) - 2)
            / 4: "That is a staleness, and no whole number. How many workers may there be?",
            workers
            - 1: "That is the staleness, in which a worker's own push does not count: there is one worker more.",
            workers + 1: "With so many the rate is beyond the limit.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_server,
    "Your seconds, servers, bytes, gradients, bound and workers are right within 1 %.",
    {
        "n": ("{} workers", (8, 12, 16)),
        "slower": ("one worker that becomes {} times slower", (2, 4, 5)),
        "missed": ("SSP in which no gradient misses more than {} updates", (110, 250, 300)),
    },
)
