"""The exercises of lesson 23, Send less: compressed gradients, sparse averages, and signs."""

from __future__ import annotations

from functools import partial

import torch

from ..exam import (
    ALL,
    HALF,
    NUMBERS,
    Case,
    Costly,
    Exam,
    Outcome,
    Prediction,
    Report,
    Wrong,
    alike,
    alone,
    close,
    few_in_all,
    normal,
    ranked,
    recognized,
    shuffled,
    unchanged,
    unpacked,
    wrong_means,
)
from ..oracles import compress as oracle

# ------------------------------------------------------------
# Sparse gradients: what a rank sends and keeps, and the mean of what all have sent.
#
# Looked at: what is sent and kept over several steps, arguments, bytes on the wire.


FORBIDDEN = (
    "minidist.parallel",
    "minidist.train",
    "minidist.checkpoint",
    "minidist.study",
    "minicheck.oracles.compress",
)

SPARSE_SLIPS = {
    "no masking": "u still pushes where something was sent: momentum factor masking sets it to 0 there.",
    "no correction": "v gathers gradients, and should gather what Nesterov's momentum moves: v ← v + u + g.",
    "ordinary": "That is ordinary momentum, as in the lesson. Nesterov's looks ahead: u ← m·(u + g), v ← v + u + g.",
    "only u": "v gathers u alone: the gradient of this step belongs to it, too: v ← v + u + g.",
    "dropped": "What was not sent is gone from v: it should wait there.",
    "v stays": "What was sent is still in v, and would be sent again: set it to 0 there.",
    "clip: none": "The gradient was not clipped.",
    "clip: limit": "The gradient was clipped to `limit`: that is for the sum. Each rank's share is limit/√n.",
    "clip: n": "The gradient was clipped to limit/n: norms of n independent gradients add up like √n.",
    "clip: always": "A gradient below limit/√n was scaled, too: the factor is at most 1.",
    "of g": "The places are those of the largest of g: choose among what waits, v.",
    "signed": "Large negative numbers are left: the largest of |v| are asked for.",
    "zeros": "The values are zeros: take them before v becomes 0 there.",
    "absolute values": "The signs are lost: |v| chooses, v is sent.",
    "u is cleared": "All of u is 0: set it to 0 only where something was sent. Or was it never written to? "
    "u.add_(g).mul_(m) writes into it.",
}
DGC = (
    "In this order: clip g, u ← m·(u + g), v ← v + u + g, choose by |v|, send v; then u and v become 0 where something was sent, "
    "in place."
)
MOSTLY_0 = "fewer than k numbers are not 0"


class Compress(Report):
    """`compress(u, v, g, k, m, limit, n)`: what a rank sends by deep gradient compression with Nesterov's momentum: values, places."""

    name = "compress"
    right = "5 to 200 numbers, 1 to 8 steps, gradients above and below the limit: what is sent, u and v."
    forbidden = FORBIDDEN
    # numbers, k, steps, momentum, limit in shares of a gradient's norm, ranks
    cases = alone(
        {
            "one step, nothing to clip": (12, 3, 1, 0.9, 99.0, 4),
            "2 steps": (12, 3, 2, 0.9, 99.0, 4),
            "8 steps": (40, 4, 8, 0.7, 99.0, 2),
            "3 steps, clipped": (20, 2, 3, 0.9, 0.8, 4),
            "6 steps, some clipped": (200, 5, 6, 0.9, 3.0, 9),
            "everything is sent": (5, 5, 4, 0.5, 99.0, 3),
            "one of 30": (30, 1, 8, 0.9, 99.0, 2),
            MOSTLY_0: (20, 4, 3, 0.9, 99.0, 2),
        }
    )

    def draw(self, case, rng):
        size, k, steps, m, limit, n = case.given
        grads = [normal(rng, size) * (1 + t % 2) for t in range(steps)]
        if case.what == MOSTLY_0:
            kept = shuffled(rng, size)[: k - 1]
            grads = [oracle.sent(g[kept], size, torch.tensor(kept)) for g in grads]
        return [(grads, k, m, limit * size**0.5, n)]

    def run(self, comm, yours, grads, k, m, limit, n):
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

    def check(self, case, report, *given):
        grads, k = given[:2]
        want = oracle.compressed(*given)
        for t, step in enumerate(report):
            unchanged(step["g"], grads[t], f"in step {t + 1}, g")
            got = step | {"sent": _dense(step["found"], k, len(grads[0]), t)}
            for name, right in want[t].items():
                what = f"in step {t + 1}: {'what is sent' if name == 'sent' else name}"
                close(got[name], right, what, partial(_slips, given, t, name), DGC)


def _slips(given, t, name, got):
    return {
        text: oracle.compressed(*given, slip=slip)[t][name] for slip, text in SPARSE_SLIPS.items()
    }


def _dense(found, k, size, t):
    """What was sent, as a dense vector."""
    where = f"in step {t + 1} "
    values, places = unpacked(found, ("values", "places"), where).values()
    alike(values, torch.zeros(k, dtype=torch.float64), f"{where}values")
    alike(places, torch.zeros(k, dtype=torch.int64), f"{where}places")
    if len(set(places.tolist())) < k or not 0 <= int(places.min()) <= int(places.max()) < size:
        raise Wrong(
            f"{where}places should be {k} different ones from 0 to {size - 1}: {places.tolist()[:8]}."
        )
    return oracle.sent(values, size, places)


def few_gathers(outcome: Outcome, what: str, gathers: int) -> None:
    """Raise Wrong for more messages than so many gathers have."""
    n, sent = len(outcome.results), outcome.messages()
    most = gathers * n * (n - 1)
    if sent > most:
        raise Costly(
            f"the numbers are right, but all ranks together send {sent} messages, and {most} are enough: {what}, one "
            "message each to every other."
        )


class SparseMean(Exam):
    """`sparse_mean(comm, values, places, size)`: the mean of all ranks' sparse vectors, dense."""

    name = "sparse_mean"
    right = "n = 1…5, ranks that send more, fewer or no numbers, places that several send, bytes; then 3 real processes."
    forbidden = FORBIDDEN
    cases = ranked(
        "n = {}, up to {} of {} numbers",
        (
            (3, 4, 40),
            (2, 5, 8),
            (1, 3, 9),
            (4, 6, 12),
            (5, 1, 100),
            (3, 7, 7),
            (4, 10, 2000),
        ),
    )
    processes = (Case(3, "3 real processes", (5, 30)),)

    def draw(self, case, rng):
        most, size = case.given
        rows = []
        for r in range(case.n):
            # the last rank sends most; where n is even, rank 0 sends nothing
            k = most - (case.n - 1 - r) * most // (2 * case.n)
            k *= r > 0 or case.n % 2
            rows.append((normal(rng, k), torch.randperm(size, generator=rng)[:k], size))
        if case.n == 1:
            rows[0][0][0] = torch.nan
        return rows

    returns = replicated = ("the mean",)
    given = ("values", "places")

    def wants(self, case, args):
        own = [oracle.sent(values, size, places) for values, places, size in args]
        return [{"the mean": sum(own) / case.n}] * case.n

    def cost(self, case, args, outcome):
        most = case.n * (case.n - 1) * (16 * case.given[0] + 8)
        hint = "8 bytes for how many, and 16 for each number of the longest, to n − 1 others. Is more sent than the longest has?"
        few_in_all(outcome, most, hint)
        few_gathers(outcome, "how many, the values and the places", 3)

    def mistakes(self, case, args, rank, name, got):
        own = [oracle.sent(values, size, places) for values, places, size in args]
        senders = sum((x != 0).long() for x in own)
        looks = wrong_means(rank, own)
        k = min(len(values) for values, _, _ in args)
        looks["What a rank sends beyond the shortest is cut off: pad to the longest."] = (
            sum(oracle.sent(v[:k], size, p[:k]) for v, p, size in args) / case.n
        )
        looks[
            "Each place is divided by the number of ranks that sent it: those that did not count as zeros, n is what "
            "to divide by."
        ] = sum(own) / senders.clamp(min=1)
        return recognized(got, looks, "") or (
            "Each rank's k-th value stands at that rank's own k-th place. Where several ranks sent the same place, all "
            "count: x[places] = … and x[places] += … write once, index_add_ adds all."
        )


# ------------------------------------------------------------
# Numbers foretold: bytes of each way to talk less, and when it pays.


def predict_compress(n=8, psi=10e6, share=0.001, epochs=90, side=1000, rank=4, speed=12.5e6):
    """8 ranks, 10 million weights in fp32, 0.1 % sent at 6 bytes each, 90 epochs of which four are warm-up, a matrix of
    1,000 × 1,000 at rank 4, a link of 100 Mbit/s.
    """
    ring, k = 2 * (n - 1) / n, psi * share
    dense = ring * 4 * psi
    sparse = (n - 1) * 6 * k
    early = 0.25 + 0.0625 + 0.015625 + 0.00390625
    warm = early / (early + (epochs - 4) * share)
    signs = (n - 1) * psi / 8
    thin = 2 * side * rank
    values = {
        "dense": dense,
        "sparse": sparse,
        "signs": signs,
        "warm": warm,
        "thin": thin,
        "seconds": dense / speed,
        "crossing": 8 / (6 * share),
    }
    slips = {
        "dense": {
            ring * psi: NUMBERS,
            dense / 2: HALF,
            8 * psi: "Nearly: the factor is 2(n−1)/n.",
            n * dense: ALL,
            4 * psi: "An all-reduce has two halves, each (n−1)/n of the bytes.",
        },
        "sparse": {
            (n - 1) * 4 * k: "A number needs its place, too: 6 bytes.",
            6 * k: "It goes to n − 1 others.",
            n * sparse: ALL,
            ring * 6 * k: "Sparse vectors are gathered, not reduced: each goes to all others.",
            (n - 1) * 6 * psi * (1 - share): "Those are the ones that are not sent.",
            (n - 1) * k: NUMBERS,
            n * 6 * k: "It sends nothing to itself.",
        },
        "signs": {
            8 * signs: "A sign is one bit, not a byte.",
            32 * signs: "A sign is one bit.",
            ring * psi / 8: "Scaled signs are gathered, not reduced: each rank's go to all others.",
            psi / 8: "They go to n − 1 others.",
            n * psi / 8: "It sends nothing to itself.",
        },
        "warm": {
            1 - warm: "That is the share of all the other epochs.",
            0.25 / (early + (epochs - 4) * share): "That is the first epoch alone; there are four.",
            4 / epochs: "Those are the epochs: bytes are asked for.",
            100 * warm: "A share from 0 to 1 is asked for.",
        },
        "thin": {
            side * rank: "There are two of them, P and Q.",
            side * side: "That is the whole matrix.",
            2 * side: f"Of rank {rank}.",
            8 * side * rank: "Numbers are asked for.",
        },
        "seconds": {
            dense / speed * 8: "The link has bits a second: that was divided by 8 already.",
            4 * psi / speed: "An all-reduce sends 2(n−1)/n of the bytes.",
        },
        "crossing": {
            1 / share: "A number needs 6 bytes for 4; and an all-reduce sends it twice.",
            4 / (6 * share): "An all-reduce has two halves.",
            2 / share: "A number needs its place: 6 for 4.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_compress,
    "Bytes, numbers, seconds and ranks, within 1 %.",
    {
        "n": ("{} ranks", (4, 5, 16)),
        "psi": ("{:,.0f} weights", (6e6, 20e6, 25e6)),
        "share": ("{:.1%} of the numbers by DGC", (0.002, 0.004, 0.005)),
        "rank": ("rank {}", (2, 3, 8)),
    },
)


# ------------------------------------------------------------
# A bug to find: signs, scaled, with error feedback; what must each rank keep?
#
# Looked at: averages and errors over several steps, bytes.


SIGNS_SLIPS = {
    "one scale": "Each rank's signs are multiplied with the mean of all scales: each has its own.",
    "average": "The error is p minus the *average*: a rank keeps what *it* has not said, p minus its own c. What the "
    "others said is no error of this rank.",
    "sign": "The error has the wrong sign: what is missing is p − c.",
    "none": "Nothing is kept: write the error into `error`, in place.",
    "not added": "The error of the step before is not in it: p = g + error.",
}
SIGNS = "p = g + error, c = mean|p|·sign(p) with sign(0) = 1, the average of c, error ← p − c, in place."


class SignAverage(Exam):
    """`sign_average(comm, g, error)`: the average of all ranks' scaled signs; what a rank has not said is kept."""

    name = "sign_average"
    right = "n = 1…4, 1 to 5 steps: averages, each rank's own error, a byte a sign; then 3 real processes."
    forbidden = FORBIDDEN
    cases = ranked(
        lambda n, steps, size: f"n = {n}, {steps} step{'s' * (steps > 1)}",
        ((1, 3, 10), (3, 1, 12), (2, 3, 9), (3, 5, 40), (4, 4, 100)),
    )
    processes = (Case(3, "3 real processes, 3 steps", (3, 12)),)

    def draw(self, case, rng):
        """Rank r's first gradient is 0 at place r."""
        steps, size = case.given
        grads = normal(rng, case.n, steps, size)
        grads[range(case.n), 0, range(case.n)] = 0
        if case.n == 1:
            grads[0, -1, 0] = torch.nan
        return [([g.clone() for g in of * (r + 1)],) for r, of in enumerate(grads)]

    def run(self, comm, yours, grads):
        error, steps = torch.zeros_like(grads[0]), []
        mine_error = error.detach()  # the same memory: `error.data = …` does not write into it
        for g in grads:
            mine = g.clone()
            mean = yours(comm, mine, mine_error)
            steps.append({"the average": mean, "g": mine, "`error`": error.clone()})
        return steps

    def judge(self, case, args, outcome):
        grads = [[a[0][t] for a in args] for t in range(case.given[0])]
        for t, r in ((t, r) for t in range(len(grads)) for r in range(case.n)):
            got = outcome.results[r][t]
            unchanged(got["g"], grads[t][r], f"rank {r}: in step {t + 1}, g")
            for name, want in _signed(grads, t, r).items():
                looks = partial(_signs_slips, grads, t, r, name)
                close(got[name], want, f"rank {r}, step {t + 1}: {name}", looks, SIGNS)
        most = len(grads) * case.n * (case.n - 1) * (case.given[1] + 8)
        few_in_all(outcome, most, "a byte a sign, and a scale of 8 bytes, to n − 1 others.")
        few_gathers(outcome, "signs and a scale", 2 * len(grads))


def _signed(grads, t, r, slip=""):
    """What rank r has after step t, by name."""
    means, errors = oracle.signed(grads[: t + 1], slip)
    return {"the average": means[t], "`error`": errors[t][r]}


def _signs_slips(grads, t, r, name, got):
    return {text: _signed(grads, t, r, slip)[name] for slip, text in SIGNS_SLIPS.items()}
