"""The exercises of lesson 16 about sparse gradients: what a rank sends and keeps, and the mean of what all have sent.

Looked at: what is sent and kept over several steps, arguments, bytes on the wire.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike, unchanged
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from . import oracle

FORBIDDEN = (
    "minidist.parallel",
    "minidist.train",
    "minidist.study",
    "minicheck.talk_less.oracle",
)

SLIPS = {
    "no masking": "u still pushes where something was sent: momentum factor masking sets it to 0 there.",
    "no correction": "v gathers gradients, and should gather velocities: momentum correction, v ← v + u.",
    "no momentum": "u is the gradient alone: u ← m·u + g.",
    "m times g": "The gradient is multiplied with m, too: u ← m·u + g.",
    "lerp": "The gradient counts 1 − m times: u ← m·u + g, as in SGD.",
    "dropped": "What was not sent is gone from v: it should wait there.",
    "v stays": "What was sent is still in v, and would be sent again: set it to 0 there.",
    "clip: none": "The gradient was not clipped.",
    "clip: limit": "The gradient was clipped to `limit`: that is for the sum. Each rank's share is limit/√n.",
    "clip: n": "The gradient was clipped to limit/n: norms of n independent gradients add up like √n.",
    "clip: always": "A gradient below limit/√n was scaled, too: the factor is at most 1.",
    "clip: numbers": "Single numbers were clamped: clip the norm, with one factor for all.",
    "clip: v": "What waits was clipped: clip the gradient, before it is added.",
    "of g": "The places are those of the largest of g: choose among what waits, v.",
    "of u": "The places are those of the largest of u: choose among what waits, v.",
    "signed": "Large negative numbers are left: the largest of |v| are asked for.",
    "smallest": "Those are the smallest.",
    "values of g": "At these places g is sent, and all that waits should be: v.",
    "values of u": "At these places u is sent, and all that waits should be: v.",
    "zeros": "The values are zeros: take them before v becomes 0 there.",
    "absolute values": "The signs are lost: |v| chooses, v is sent.",
    "u is cleared": "All of u was set to 0: only where something was sent.",
    "inverse": "u was kept where something was sent, and cleared elsewhere: it is the other way round.",
}


class Compress(Exam):
    name = "compress"
    right = "5 to 200 numbers, 1 to 8 steps, gradients above and below the limit: what is sent, u and v."
    forbidden = FORBIDDEN
    # numbers, k, steps, momentum, limit in shares of a gradient's norm, ranks
    cases = tuple(
        Case(1, what, given)
        for what, given in {
            "one step, nothing to clip": (12, 3, 1, 0.9, 99.0, 4),
            "2 steps": (12, 3, 2, 0.9, 99.0, 4),
            "8 steps": (40, 4, 8, 0.7, 99.0, 2),
            "3 steps, clipped": (20, 2, 3, 0.9, 0.8, 4),
            "6 steps, some clipped": (200, 5, 6, 0.9, 3.0, 9),
            "everything is sent": (5, 5, 4, 0.5, 99.0, 3),
            "one of 30": (30, 1, 8, 0.9, 99.0, 2),
        }.items()
    )

    def draw(self, case, rng):
        size, k, steps, m, limit, n = case.given
        grads = [
            torch.randn(size, generator=rng, dtype=torch.float64) * (1 + t % 2)
            for t in range(steps)
        ]
        return [(grads, k, m, limit * size**0.5, n)]

    def run(self, comm: Comm, yours, grads, k, m, limit, n):
        u = torch.zeros_like(grads[0])
        v = torch.zeros_like(grads[0])
        steps = []
        # the same memory: `u.data = …` does not write into it
        mine_u, mine_v = u.detach(), v.detach()
        for g in grads:
            mine = g.clone()
            found = yours(mine_u, mine_v, mine, k, m, limit, n)
            steps.append({"found": found, "u": u.clone(), "v": v.clone(), "g": mine})
        return steps

    def judge(self, case, args, outcome):
        grads, k = args[0][:2]
        want, got = oracle.compressed(*args[0]), []
        for t, step in enumerate(outcome.results[0]):
            unchanged(0, step["g"], grads[t], f"in step {t + 1}, g")
            got.append(
                {"sent": _dense(step["found"], k, len(grads[0]), t), "u": step["u"], "v": step["v"]}
            )
            wrong = next(
                (name for name in want[t] if not _close(got[t][name], want[t][name], grads[t])),
                None,
            )
            if wrong:
                self._said(wrong, t, args[0], got)

    def _said(self, name: str, t: int, given: tuple, got: list[dict]) -> None:
        what = {
            "sent": "what is sent is wrong",
            "u": "u, afterwards, is wrong",
            "v": "v, afterwards, is wrong",
        }[name]
        for slip, text in SLIPS.items():
            other = oracle.compressed(*given, slip=slip)[: t + 1]
            if all(
                _close(a[x], b[x], given[0][0]) for a, b in zip(got, other, strict=True) for x in b
            ):
                raise Wrong(f"in step {t + 1} {what}. {text}")
        if all(
            isinstance(a[x], Tensor) and (a[x] - b[x]).abs().max() < 1e-5
            for a, b in zip(got, oracle.compressed(*given), strict=False)
            for x in b
        ):
            raise Wrong(
                f"in step {t + 1} {what}, but only by rounding: all is float64, and stays so."
            )
        if t == 0 and not got[0]["v"].any() and not got[0]["u"].any():
            raise Wrong(
                f"in step 1 {what}. Both u and v are still zeros: write into them, u.mul_(m).add_(g)."
            )
        raise Wrong(
            f"in step {t + 1} {what}. In this order: clip g, u ← m·u + g, v ← v + u, choose by |v|, send v; "
            "then u and v become 0 where something was sent, in place."
        )


def _dense(found, k: int, size: int, t: int) -> Tensor:
    """What was sent, as a dense vector."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        kind = kind_of(found)
        raise Wrong(
            f"in step {t + 1} the result is {kind}, and should be two tensors: values, places."
        )
    values, places = found
    alike(0, values, torch.zeros(k, dtype=torch.float64), "values")
    alike(0, places, torch.zeros(k, dtype=torch.int64), "places")
    if len(set(places.tolist())) < k or not 0 <= int(places.min()) <= int(places.max()) < size:
        raise Wrong(
            f"in step {t + 1} places should be {k} different ones from 0 to {size - 1}: {places.tolist()[:8]}."
        )
    return oracle.sent(values, size, places)


def _close(a, b: Tensor, scale: Tensor) -> bool:
    return (
        isinstance(a, Tensor)
        and a.shape == b.shape
        and bool((a - b).abs().max() <= 1e-9 * scale.abs().max())
    )


class SparseMean(Exam):
    name = "sparse_mean"
    right = "n = 1…5, places that several ranks send, 16 bytes a number; then 3 real processes."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {k} of {size} numbers", (k, size))
        for n, k, size in (
            (3, 4, 40),
            (2, 5, 8),
            (1, 3, 9),
            (4, 6, 12),
            (5, 1, 100),
            (3, 7, 7),
            (4, 10, 2000),
        )
    )
    processes = (Case(3, "3 real processes", (5, 30)),)

    def draw(self, case, rng):
        k, size = case.given
        return [
            (
                torch.randn(k, generator=rng, dtype=torch.float64),
                torch.randperm(size, generator=rng)[:k],
                size,
            )
            for _ in range(case.n)
        ]

    def run(self, comm: Comm, yours, values, places, size):
        mine = values.clone(), places.clone()
        return {"mean": yours(comm, *mine, size), "values": mine[0], "places": mine[1]}

    def judge(self, case, args, outcome):
        n, size = case.n, args[0][2]
        own = [oracle.sent(values, size, places) for values, places, _ in args]
        for r, got in enumerate(outcome.results):
            for name, given in (("values", args[r][0]), ("places", args[r][1])):
                unchanged(r, got[name], given, name)
            alike(r, got["mean"], own[0], "the mean")
            if not near(got["mean"], sum(own) / n):
                raise Wrong(f"rank {r}: the mean is wrong. {self._looks(r, got['mean'], own)}")
            if not got["mean"].equal(outcome.results[0]["mean"]):
                raise Wrong(
                    f"the mean is right but for rounding, which differs on rank 0 and rank {r}: add up in the "
                    "same order on every rank, or the replicas drift apart."
                )
        sent, most = outcome.nbytes(), n * (n - 1) * 16 * case.given[0]
        if sent > most:
            raise Wrong(
                f"the numbers are right, but all ranks together send {sent:,} bytes, and {most:,} are enough: "
                "k values and k places, 16 bytes a number, to n − 1 others. Are zeros sent, too?"
            )

    def _looks(self, r: int, got: Tensor, own: list[Tensor]) -> str:
        n, total = len(own), sum(own)
        looks = {
            f"It is {n} times too large: summed, not averaged?": total,
            "It is this rank's own part alone.": own[r],
            "It is this rank's own part, divided by n.": own[r] / n,
            "It is zero.": 0 * total,
            "It is divided by n twice.": total / n**2,
        }
        senders = sum((x != 0).long() for x in own)
        looks[
            "Each place is divided by the number of ranks that sent it: those that did not count as zeros, n is what "
            "to divide by."
        ] = total / senders.clamp(min=1)
        found = next((text for text, x in looks.items() if near(got, x)), None)
        if found:
            return found
        for scale, more in ((n, ""), (1, " And it is not divided by n.")):
            one = torch.stack([(got - x / scale).abs() < 1e-12 for x in own]).any(0)
            if bool(
                ((got - total / scale).abs() < 1e-9)[senders < 2].all() and one[senders > 1].all()
            ):
                return (
                    "Where several ranks sent the same place, only one of them counts: x[places] = … and "
                    f"x[places] += … write once. index_add_ adds all.{more}"
                )
        share = float(got @ total) / float(total @ total)
        if near(got, share * total):
            return f"It is the sum, times {share:.4g}, and should be times 1/n, n = {n}."
        if float((got - total / n).abs().max()) < 1e-6:
            return "It is right but for rounding: are the values sent as float32? They are float64."
        return "Does each rank's k-th value stand at that rank's own k-th place?"


def compress(yours) -> None:
    """`compress(u, v, g, k, m, limit, n)`: what a rank sends by deep gradient compression: values, places."""
    ask(Compress(), yours)


def sparse_mean(yours) -> None:
    """`sparse_mean(comm, values, places, size)`: the mean of all ranks' sparse vectors, dense."""
    ask(SparseMean(), yours)
