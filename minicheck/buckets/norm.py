"""The exercises of lesson 05 about batch norm on a batch whose parts lie on many ranks: statistics, and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike, unchanged
from ..exam import Case, Exam, Outcome, ask
from ..wrong import Wrong
from .work import FORBIDDEN

PARTS = (
    (20, 20, 20),
    (30, 11, 25),
    (40, 0, 1),
    (24, 24),
    (1, 50),
    (0, 30),
    (9, 30, 1, 22),
    (64,),
    (25, 1, 0, 0, 40),
)
REAL = (
    Case(3, "3 real processes with 30, 11, 25 samples", (30, 11, 25)),
    Case(2, "2 real processes with 1, 50 samples", (1, 50)),
)
FAR = 1e6  # a mean beside which E[x²] − E[x]² loses most of its digits
CLOSE = 1e-8  # of a variance of about 1; of numbers about 1


def parts_of(sizes: tuple[int, ...], x: Tensor) -> list[Tensor]:
    return list(x.split(sizes))


def close(got: Tensor, want: Tensor, slack: float = CLOSE) -> bool:
    if got.shape != want.shape:
        return False
    return not want.numel() or bool(
        (got.double() - want.double()).abs().max() <= slack * want.abs().max().clamp(min=1)
    )


class SyncStatistics(Exam):
    name = "sync_statistics"
    right = (
        "1 to 5 ranks with 0 to 64 samples, means up to a million: as of the whole batch, and few bytes; "
        "then 2 and 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(
            len(sizes),
            f"ranks with {', '.join(map(str, sizes))} samples{far * ', a mean of a million'}",
            (sizes, far),
        )
        for far in (0, 1)
        for sizes in PARTS
    )
    processes = tuple(case._replace(given=(case.given, 0)) for case in REAL)

    def draw(self, case, rng):
        sizes, far = case.given
        channels = int(torch.randint(3, 8, (), generator=rng))
        x = torch.randn(sum(sizes), channels, generator=rng, dtype=torch.float64)
        # so that the ranks' means differ
        drift = torch.arange(len(x), dtype=torch.float64)[:, None] / len(x)
        return [(part,) for part in parts_of(sizes, 2 * x + 3 * drift + (FAR if far else 0.5))]

    def run(self, comm: Comm, yours, x):
        return {"found": yours(comm, x), "x": x}

    def judge(self, case, args, outcome):
        parts = [x for (x,) in args]
        whole, n = torch.cat(parts), case.n
        mean, var = whole.mean(0), whole.var(0, correction=0)
        for r, got in enumerate(outcome.results):
            unchanged(r, got["x"], parts[r], "x")
            found = got["found"]
            if not isinstance(found, tuple | list) or len(found) != 3:
                kind = "None. Is there a `return`?" if found is None else "something else."
                raise Wrong(f"rank {r}: the result should be (mean, var, count), and is {kind}")
            alike(r, found[0], mean, "mean")
            alike(r, found[1], var, "var")
            for name, mine, want in (("mean", found[0], mean), ("var", found[1], var)):
                if not close(mine, want, 1e-12 if name == "mean" else CLOSE):
                    c = int((mine - want).abs().nan_to_num(torch.inf).argmax())
                    raise Wrong(
                        f"rank {r}: {name}[{c}] is {mine[c].item():.12g}, and should be {want[c].item():.12g}. "
                        f"{_looks(name, mine, parts, r)}"
                    )
            self._count(r, found[2], parts)
        self._cheap(outcome, n, whole.shape[1])

    def _count(self, rank: int, count, parts: list[Tensor]) -> None:
        count = count.item() if isinstance(count, Tensor) and count.numel() == 1 else count
        want = sum(map(len, parts))
        if isinstance(count, bool) or not isinstance(count, int | float) or count != want:
            hint = " That is this rank's own." if count == len(parts[rank]) else ""
            shown = count if isinstance(count, int | float) else "no number"
            raise Wrong(
                f"rank {rank}: count is {shown}, and should be {want}, the samples of all ranks.{hint}"
            )

    def _cheap(self, outcome: Outcome, n: int, channels: int) -> None:
        most = 8 * (n - 1) * 6 * (channels + 1)
        for r in range(n):
            if outcome.nbytes(r) > most:
                raise Wrong(
                    f"the statistics are right, but rank {r} sends {outcome.nbytes(r)} bytes: more than "
                    f"{most}, which {channels} channels need at most. Are samples sent? Statistics of a part "
                    "are as small as those of the whole."
                )


def _looks(name: str, got: Tensor, parts: list[Tensor], rank: int) -> str:
    """What a wrong mean or variance looks like."""
    if got.isnan().any():
        return (
            "The mean of no samples is nan, and nan · 0 is nan: a rank without samples sends zeros."
        )
    whole, own = torch.cat(parts), parts[rank]
    if name == "mean" and close(got, whole.mean(0), 1e-5):
        return "Its first digits are right: is something computed in float32?"
    if (
        name == "var"
        and whole.mean(0).abs().max() > FAR / 2
        and close(got, whole.var(0, correction=0), 0.05)
    ):
        return (
            "A few digits are right: two large numbers that are nearly equal were subtracted, as E[x²] − E[x]² "
            "does. Center first: add up (x − mean)²."
        )
    looks = {}
    if len(own):
        looks[f"It is rank {rank}'s own."] = (
            own.mean(0) if name == "mean" else own.var(0, correction=0)
        )
    looks |= (_means if name == "mean" else _variances)(
        whole, [x for x in parts if len(x)], len(parts)
    )
    rule = {
        "mean": "The mean is Σ x over all ranks' samples, divided by their number.",
        "var": "Add up, over the ranks, (x − mean)² around each rank's own mean, and count · (distance of means)².",
    }
    return next((text for text, x in looks.items() if close(got, x)), rule[name])


def _means(whole: Tensor, there: list[Tensor], n: int) -> dict[str, Tensor]:
    """What a wrong mean may be. there: the parts of the ranks that have samples."""
    means = torch.stack([x.mean(0) for x in there])
    return {
        "It is the plain mean of the means: a rank with few samples counts as much as one with many.": means.mean(
            0
        ),
        "It is a sum of means.": means.sum(0),
        "It is a sum.": whole.sum(0),
        f"It is divided by {n}: by the ranks, not by the samples.": whole.sum(0) / n,
        f"It is divided by {n} once too often.": whole.mean(0) / n,
        "It is the variance: the order is (mean, var, count).": whole.var(0, correction=0),
        f"It is the sum of the means, divided by {n} ranks, also those without samples.": means.sum(
            0
        )
        / n,
    }


def _variances(whole: Tensor, there: list[Tensor], n: int) -> dict[str, Tensor]:
    """What a wrong variance may be."""
    means = torch.stack([x.mean(0) for x in there])
    sizes = torch.tensor([float(len(x)) for x in there], dtype=torch.float64)[:, None] / len(whole)
    spread = torch.stack([x.var(0, correction=0) for x in there])
    within, between = (sizes * spread).sum(0), (sizes * (means - whole.mean(0)).square()).sum(0)
    total = (within + between) * len(whole)
    return {
        "It is the plain mean of the ranks' variances: what lies between their means is missing.": spread.mean(
            0
        ),
        "What lies between the ranks' means is missing.": within,
        f"It is the sum of the ranks' variances, divided by {n}.": spread.sum(0) / n,
        "It is a sum of squares: divide it by the number of samples.": total,
        "It is divided by the samples less one: batch norm divides by all of them.": total
        / (len(whole) - 1),
        "It is the variance between the ranks alone.": between,
        "It is the square root: the standard deviation.": (within + between).sqrt(),
        "It is the mean of the squares, without the square of the mean.": whole.square().mean(0),
        "Between the means, a rank counts as much as any other: weigh with the samples.": within
        + means.var(0, correction=0),
    }


class SyncBackward(Exam):
    name = "sync_backward"
    right = (
        "1 to 5 ranks with 0 to 64 samples: as autograd's through the whole batch, and one exchange of two "
        "numbers a channel; then 2 and 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(len(sizes), f"ranks with {', '.join(map(str, sizes))} samples", sizes)
        for sizes in PARTS
    )
    processes = REAL

    def draw(self, case, rng):
        channels, count = int(torch.randint(3, 8, (), generator=rng)), sum(case.given)
        self.x, self.dy = (
            torch.randn(count, channels, generator=rng, dtype=torch.float64) for _ in range(2)
        )
        self.x, self.dy = 0.7 * self.x + torch.arange(channels), self.dy + 0.4 + 0.5 * self.x
        scale = (self.x.var(0, correction=0) + 1e-5).rsqrt()
        normal = (self.x - self.x.mean(0)) * scale
        return [
            (dy, x, scale, count)
            for dy, x in zip(parts_of(case.given, self.dy), parts_of(case.given, normal))
        ]

    def run(self, comm: Comm, yours, dy, normal, scale, count):
        before = [t.clone() for t in (dy, normal, scale)]
        dx = yours(comm, dy, normal, scale, count)
        return {
            "dx": dx,
            "kept": [t.equal(b) for t, b in zip((dy, normal, scale), before, strict=True)],
        }

    def judge(self, case, args, outcome):
        x = self.x.clone().requires_grad_()
        torch.nn.functional.batch_norm(x, None, None, training=True, eps=1e-5).backward(self.dy)
        for r, (got, want) in enumerate(
            zip(outcome.results, parts_of(case.given, x.grad), strict=True)
        ):
            for name, kept in zip(("dy", "xhat", "scale"), got["kept"], strict=True):
                if not kept:
                    raise Wrong(
                        f"rank {r}: {name} was changed, and belongs to the caller: work on a copy."
                    )
            alike(r, got["dx"], want, "dx")
            if not close(got["dx"], want, 1e-10):
                raise Wrong(f"rank {r}: dx is wrong. {self._looks(args, r, got['dx'])}")
        self._cheap(outcome, case.n, self.x.shape[1])

    def _looks(self, args: list[tuple], rank: int, got: Tensor) -> str:
        dy, normal, scale, count = args[rank]
        n, size = len(args), max(1, len(dy))
        one, two = (
            sum(f(a) for a in args) for f in (lambda a: a[0].sum(0), lambda a: (a[0] * a[1]).sum(0))
        )
        mine = dy.sum(0)
        mine2 = (dy * normal).sum(0)
        zero = 0 * one

        def dx(a, b, by=count, factor=scale):
            return factor * (dy - a / by - normal * b / by)

        texts = {
            "The sums are this rank's own: they run over all ranks' samples.": dx(
                mine, mine2, size
            ),
            f"The sums are this rank's own, divided by all {count} samples.": dx(mine, mine2),
            "The sums are divided by this rank's samples: `count` has those of all ranks.": dx(
                one, two, size
            ),
            "The means over the ranks are divided by count: add up, do not average.": dx(
                one / n, two / n
            ),
            f"The sums are divided by {n} ranks, not by the samples.": dx(one, two, n),
            "The sums are not divided by the number of samples.": dx(one, two, 1),
            "Only dy, scaled: mean and variance depend on x, too.": dx(zero, zero),
            "The term with xhat is missing: the variance depends on x, too.": dx(one, zero),
            "The term with Σ dy is missing: the mean depends on x, too.": dx(zero, two),
            "Σ dy is exchanged, Σ dy·xhat is not.": dx(one, mine2),
            "Σ dy·xhat is exchanged, Σ dy is not.": dx(mine, two),
            "`scale` is missing.": dx(one, two, factor=1.0),
            "It is divided by `scale`: multiply.": dx(one, two, factor=1 / scale),
            "`scale` is there twice.": dx(one, two, factor=scale**2),
            "A sign: both terms are taken off dy.": dx(-one, -two),
            "A sign: the term with Σ dy is taken off, too.": dx(-one, two),
            "A sign: the term with xhat is taken off, too.": dx(one, -two),
            "Σ dy·xhat is to be multiplied with xhat.": scale * (dy - one / count - two / count),
            "Σ dy and Σ dy·xhat are swapped.": dx(two, one),
        }
        for text, x in texts.items():
            if close(got, x, 1e-10):
                return text
        return "dx = scale · (dy − Σdy/count − xhat · Σ(dy·xhat)/count), the sums over the samples of all ranks."

    def _cheap(self, outcome: Outcome, n: int, channels: int) -> None:
        most = 2 * 2 * (n - 1) * -(-channels // n) * 8 + 8 * 2 * (n - 1)
        for r in range(n):
            if outcome.nbytes(r) > most:
                raise Wrong(
                    f"dx is right, but rank {r} sends {outcome.nbytes(r)} bytes, and two sums of {channels} "
                    f"numbers need {most} at most. Are samples sent, or do all send to one?"
                )
            if outcome.messages(r) > 2 * 2 * (n - 1):
                raise Wrong(
                    f"dx is right, but rank {r} sends {outcome.messages(r)} messages: two all-reduces, or "
                    "better one of both sums, are enough."
                )


def sync_statistics(yours) -> None:
    """`sync_statistics(comm, x)`: mean, variance and number of all ranks' samples."""
    ask(SyncStatistics(), yours)


def sync_backward(yours) -> None:
    """`sync_backward(comm, dy, xhat, scale, count)`: dx of this rank's samples."""
    ask(SyncBackward(), yours)
