"""Graders of lesson 07: what needs the whole batch. Uneven parts, micro-batches, and batch norm over all ranks.

The models, and what a wrong gradient looks like, are those of lesson 05.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate, product

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import batch_norm, mse_loss

from ..exam import (
    HALF,
    NUMBERS,
    Case,
    Costly,
    Exam,
    Prediction,
    Report,
    Wrong,
    alone,
    close,
    few,
    holds,
    integer,
    left_open,
    near,
    normal,
    one_of,
    shuffled,
    unchanged,
)
from .data_parallel import (
    INPUTS,
    OUTPUTS,
    WORDS,
    Model,
    ReplicaExam,
    cheap,
    drawn,
    frozen,
    gradient,
    grads,
    same_gradients,
    samples,
    state,
    trainable,
    untouched,
    usual,
)

# ------------------------------------------------------------
# Parts of different sizes: samples of ranks, and what counts in micro-batches.


SIZES = (
    (1, 2, 5),
    (4, 0, 2),
    (3, 1),
    (0, 2),
    (3, 3, 2, 2),
    (0, 0, 6, 1),
    (4,),
    (3, 2, 2, 2, 2),
    (1, 0, 5, 0, 3),
)


class WeightedAverageGradients(ReplicaExam):
    """`weighted_average_gradients(comm, module, samples)`: an average in which each rank has the weight of its samples."""

    name = "weighted_average_gradients"
    right = (
        "Tried on 1 to 5 ranks that have 0 to 1500 samples, with 5 models, then in 2 and 3 real processes: the gradients "
        "are those of the serial program."
    )
    kinds = ("plain", "frozen", "routed", "tied", "plain")
    cases = tuple(
        Case(
            len(sizes),
            f"{WORDS[kind]}, ranks with {', '.join(map(str, sizes))} samples",
            (kind, sizes),
        )
        for kind, sizes in [
            *product(kinds[:1], SIZES),
            *zip(kinds[1:], SIZES),
            *zip(kinds, SIZES[4:]),
            ("nan", (4, 0, 2)),
            ("plain", (1500, 601)),
        ]
    )
    processes = (
        cases[1]._replace(what="3 real processes with 4, 0, 2 samples"),
        cases[3]._replace(what="2 real processes with 0, 2 samples"),
    )

    def draw(self, case, rng):
        (kind, sizes), total = case.given, sum(case.given[1])
        # a weight in float32 is right, if inexact
        dtype = torch.float32 if total & (total - 1) else torch.float64
        model, there = drawn(kind, rng, dtype), [r for r, size in enumerate(sizes) if size]
        nan = int(sizes[0] > 0)  # else ranks without samples have None
        self.user = there[one_of(len(there), rng)]
        parts = [samples(size, r, rng, dtype, self.user) for r, size in enumerate(sizes)]
        return [(*model, *self.spoilt(kind, r, part), nan) for r, part in enumerate(parts)]

    def run(self, comm, yours, kind, width, values, x, y, nan):
        module = Model(kind, width, values).build()
        if len(x):
            mse_loss(module(x), y).backward()
        elif nan:
            for p in module.parameters():
                p.grad = torch.full_like(p, torch.nan) if p.requires_grad else None
        yours(comm, module, len(x))
        return {"grads": grads(module), "state": state(module), "open": left_open(comm)}

    extra = 64

    def looks(self, rank, own, parts, outcome):
        sizes = [len(x) for x, _ in parts]
        n, counted = len(own), sum(g * size for g, size in zip(own, sizes))
        return {
            f"It is the plain mean, in which a sample counts more on a rank with few. The ranks have {sizes} samples.": sum(
                own
            )
            / n,
            "It is the weighted sum: divide it by the number of all samples.": counted,
            f"It is the weighted sum, divided by {n} ranks: divide it by the number of all samples.": counted
            / n,
            f"It is the weighted sum, divided by the samples of rank {rank}: divide it by all ranks' samples.": counted
            / max(1, sizes[rank]),
            f"It is rank {rank}'s own, weighted: the other ranks' shares of the average are missing.": own[
                rank
            ]
            * sizes[rank]
            / sum(sizes),
            "It is divided by n once too often: the weights add up to 1 already.": counted
            / sum(sizes)
            / n,
        } | super().looks(rank, own, parts, outcome)


def loss_fn(got: Tensor, want: Tensor) -> Tensor:
    """A mean loss that nobody expects."""
    return ((got - want).square() + 1).sqrt().mean()


# of each rank's micro-batches: how many rows one has, and how many of them count
ROWS = (
    ("plain", (((4, 4), (2, 1)), ((3, 2),), ((1, 1), (5, 3), (2, 2)))),
    ("plain", (((4, 2), (3, 3)), ((2, 0), (3, 0)), ((1, 1),))),
    ("plain", (((2, 2),), (), ((3, 1), (2, 2)))),
    ("unused", (((5, 2), (1, 1)), ((3, 3), (2, 0)), ((4, 1),))),
    ("routed", (((3, 2), (2, 2)), ((4, 3), (1, 1)), ((5, 1), (3, 0)))),
    ("nan", (((3, 2), (2, 1)), ((4, 4), (1, 1)), ((2, 2), (3, 3)))),
    ("plain", (((4, 3), (2, 2), (1, 0), (5, 1)),)),
    ("frozen", (((3, 2), (5, 4)), ((1, 1),))),
    ("tied", (((2, 1),), ((3, 3), (4, 1), (2, 0)))),
    ("plain", (((3, 3),), ((3, 3),))),
    ("frozen", (((1, 0),), ((3, 2), (2, 2)), ((4, 1),), ((2, 2), (5, 5)))),
    ("tied", ((), ((2, 2), (3, 1)), ((4, 0),), ((1, 1), (2, 1)), ((3, 3),))),
)
LEFT_OUT = (
    "there is nan in p.grad. Rows that do not count have nan in `y`, and nan · 0 is nan: leave them out before the loss. "
    "What the step before has left in p.grad may be nan, too: clear it, do not multiply it."
)


def counts_in_words(parts) -> str:
    """How many rows count in the micro-batches of each rank."""
    return ", ".join("+".join(str(count) for _, count in part) or "none" for part in parts)


class AccumulateCounted(ReplicaExam):
    """`accumulate_counted(comm, module, loss_fn, micro_batches)`: the gradient over all rows that count, averaged once."""

    name = "accumulate_counted"
    right = (
        "Tried on 1 to 5 ranks that have 0 to 4 micro-batches of different sizes, with 6 models, then in 2 and 3 real "
        "processes: the gradients are those of the serial program, and take the bytes of one average."
    )
    cases = tuple(
        Case(
            len(parts),
            f"n = {len(parts)}, {WORDS[kind]}, {counts_in_words(parts)} rows count",
            (kind, parts),
        )
        for kind, parts in ROWS
    )
    processes = (
        cases[1]._replace(what="3 real processes, one of them with no row that counts"),
        cases[7]._replace(what="2 real processes, a frozen layer"),
    )
    extra = 64  # bytes for the numbers of rows, times n

    def draw(self, case, rng):
        kind, parts = case.given
        dtype = torch.float32 if case.n == 2 else torch.float64
        model = drawn(kind, rng, dtype)
        there = [r for r, part in enumerate(parts) if sum(count for _, count in part)]
        self.user = there[one_of(len(there), rng)]
        args = []
        for r, part in enumerate(parts):
            micro = [self._rows(r, *sizes, rng, dtype) for sizes in part]
            if kind == "nan" and r == self.user:
                _, y, counted = micro[0]
                y[counted.nonzero()[0, 0]] = torch.nan
            stale = {} if kind == "routed" else self._stale(model, rng, case.n == 2)
            args.append((*model, micro, stale))
        return args

    def _rows(self, rank, rows, count, rng, dtype):
        """A micro-batch: x, y with nan in the rows that do not count, and which count."""
        x, y = samples(rows, rank, rng, dtype, self.user)
        counted = torch.zeros(rows, dtype=torch.bool)
        counted[shuffled(rng, rows)[:count]] = True
        y[~counted] = torch.nan
        return x, y, counted

    def _stale(self, model, rng, nan):
        """Gradients of the step before, with nan or without."""
        stale = {
            name: normal(rng, p.shape, dtype=p.dtype)
            for name, p in model.build().named_parameters()
            if p.requires_grad
        }
        for g in stale.values():
            g.view(-1)[0] = torch.nan if nan else g.view(-1)[0]
        return stale

    def run(self, comm, yours, kind, width, values, micro_batches, stale):
        module, log = Model(kind, width, values).build(), []
        outputs: list[StorageWeakRef] = []  # of all layers: a graph holds them, as a list may
        left = []
        for name, p in module.named_parameters():
            p.grad = stale.get(name)

        def watch(module, inputs, output):
            log.append(len(inputs[0]))
            if output.requires_grad:
                output.register_hook(lambda grad: log.append("backward"))

        def made(layer, inputs, output):
            outputs.append(StorageWeakRef(output.untyped_storage()))

        def begins(module, inputs):
            last = outputs[-1:]  # a variable may hold it
            left.append(len({ref for ref in outputs if ref not in last and not ref.expired()}))

        watching = [
            module.register_forward_pre_hook(begins),
            module.register_forward_hook(watch),
            *(layer.register_forward_hook(made) for layer in module.modules()),
        ]
        yours(comm, module, loss_fn, micro_batches)
        for handle in watching:
            handle.remove()
        return {
            "grads": grads(module),
            "state": state(module),
            "micro": micro_batches,
            "log": log,
            "left": max(left, default=0),
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        model = Model(*args[0][:3])
        parts, stale = [a[3] for a in args], [a[4] for a in args]
        x, y = counted_rows([micro for part in parts for micro in part], model.values_dtype)
        whole, other = gradient(model, x, y, loss_fn), gradient(model, x, y)
        untouched(outcome, model.values, "Taking a step is left to the optimizer.")
        for r, got in enumerate(outcome.results):
            unchanged(got["micro"], parts[r], f"rank {r}: `micro_batches`")
        found = [got["grads"] for got in outcome.results]
        if not has_nan(whole):
            for r, own in enumerate(found):
                if has_nan(own):
                    raise Wrong(f"rank {r}: {LEFT_OUT}")
        same_gradients(
            found,
            whole,
            lambda r, name, got: (
                self._looks(model, name, r, parts, stale, outcome.nbytes(r))
                | {"It is the gradient of a different loss: call `loss_fn`.": other[name]}
            ),
            f"{len(x)} rows count on all ranks together. Each of them should have the weight 1/{len(x)}, and no other row "
            "should have any.",
        )
        for r, got in enumerate(outcome.results):
            self._one_by_one(r, got["log"], parts[r])
            if got["left"]:
                raise Costly(
                    f"the gradient is right, but when a forward begins on rank {r}, {got['left']} outputs of layers are "
                    "still in memory from earlier forwards. A backward frees them: is its graph retained, or does a list "
                    "keep them?"
                )
        self._once(outcome, case.n, max(map(len, parts)), model)

    def _looks(self, model, name, rank, parts, stale, sent):
        """What a wrong gradient of a parameter may be."""
        zeros = torch.zeros_like(model.values[name])
        means = [[self._mean(model, name, micro) for micro in part] for part in parts]
        counts = [[int(counted.sum()) for *_, counted in part] for part in parts]
        n, total = len(parts), sum(map(sum, counts))
        sums = [
            sum((c * g for c, g in zip(*both, strict=True)), zeros) for both in zip(counts, means)
        ]
        want = sum(sums) / total
        alike = [sum(mine, zeros) / max(1, len(mine)) for mine in means]
        weighted = [g / max(1, sum(mine)) for g, mine in zip(sums, counts)]
        rows = [[len(x) for x, *_ in part] for part in parts]
        by_rows = sum(
            (b * g for sizes, mine in zip(rows, means) for b, g in zip(sizes, mine)), zeros
        )
        last = [
            mine[-1] * each[-1] if mine else zeros for mine, each in zip(means, counts, strict=True)
        ]
        early = (sum(sums) - sum(last)) / total
        old = "The gradient of the step before is still in it: clear it at the beginning"
        looks = {
            "Each loss is divided by the number of micro-batches, and ranks are averaged plainly: a row of a short "
            f"micro-batch counts more. {total} rows count on all ranks together: each is worth 1/{total}.": sum(
                alike
            )
            / n,
            "Within a rank the rows are weighted, but the ranks are averaged plainly: a row counts more on a rank with "
            "few.": sum(weighted) / n,
            f"It is the weighted sum: divide it by the number of all rows that count, {total}.": want
            * total,
            f"It is {n} times too small: the weights add up to 1 already, so sum over the ranks.": want
            / n,
            f"It is {n} times too large.": want * n,
            "It is weighted with the numbers of all rows: those that do not count should not be among them.": by_rows
            / sum(map(sum, rows)),
            "It comes from the last micro-batches alone: what earlier ones had added up was cleared.": sum(
                last
            )
            / total,
            "The last micro-batch is not averaged: the average was taken before its backward.": early
            + last[rank] / total,
            "Only the last micro-batch is averaged, and what was accumulated before stays each rank's own.": (
                sums[rank] - last[rank] + sum(last)
            )
            / total,
        }
        everyone = [held.get(name) for held in stale]
        if everyone[rank] is not None:
            looks |= {
                f"{old}.": want + sum(everyone),
                f"{old} (p.grad = None).": want + everyone[rank],
            }
        return looks | usual(rank, [n * g / total for g in sums], sent)

    def _mean(self, model, name, micro):
        """The gradient of a micro-batch's mean loss, zeros where nothing counts or is reached."""
        found = gradient(model, *counted_rows([micro], model.values_dtype), loss_fn)[name]
        return torch.zeros_like(model.values[name]) if found is None else found

    def _one_by_one(self, rank, log, micro_batches):
        log = log if isinstance(log, list) else []
        sizes = [len(x) for x, *_ in micro_batches]
        idle = sum(not counted.any() for *_, counted in micro_batches)
        forwards = [entry for entry in log if entry != "backward"]
        most = max(sizes, default=0)
        if any(isinstance(f, int) and f > most for f in forwards):
            raise Costly(
                f"the gradient is right, but rank {rank} runs a forward with {max(forwards)} rows: its largest "
                f"micro-batch has {most}, because no more fit into memory."
            )
        if not len(sizes) - idle <= len(forwards) <= len(sizes):
            raise Wrong(
                f"the gradient is right, but rank {rank} calls the module {len(forwards)} times, and has {len(sizes)} "
                "micro-batches: call it once for each, or not at all where nothing counts."
            )
        ahead = accumulate(-1 if entry == "backward" else 1 for entry in log)
        if max(ahead, default=0) > 1 + idle:
            raise Costly(
                f"the gradient is right, but rank {rank} begins a forward before the backward of the one before: the "
                "activations of several micro-batches are in memory at once. Run a backward after each forward."
            )

    def _once(self, outcome, n, k, model):
        try:
            cheap(outcome, n, trainable(model), frozen(model), self.extra * n)
        except Costly as costly:
            hint = " Is there an average after each micro-batch? One is enough, after the last."
            raise Costly(f"{costly}{hint if k > 1 else ''}") from None


def has_nan(gradients) -> bool:
    """Whether there is nan in one of some gradients by name; not in what is no dict."""
    tensors = gradients.values() if isinstance(gradients, dict) else ()
    return any(isinstance(g, Tensor) and bool(g.isnan().any()) for g in tensors)


def counted_rows(micro_batches, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows of several micro-batches that count, (rows, 3) and (rows, 2)."""
    xs = [torch.empty(0, INPUTS, dtype=dtype)] + [x[counted] for x, _, counted in micro_batches]
    ys = [torch.empty(0, OUTPUTS, dtype=dtype)] + [y[counted] for _, y, counted in micro_batches]
    return torch.cat(xs), torch.cat(ys)


# ------------------------------------------------------------
# Batch norm on a batch of images whose parts lie on many ranks: statistics, backward, running averages.


FORBIDDEN = (
    "minidist.parallel.data",
    "minidist.parallel.batchnorm",
    "minidist.parallel.accumulate",
    "minidist.parallel",
    "torch.nn.parallel",
)
DIMS = (0, 2, 3)  # all but the channels'
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
    Case(3, "3 real processes with 30, 11, 25 images", (30, 11, 25)),
    Case(2, "2 real processes with 1, 50 images", (1, 50)),
)
SPECIAL = (
    Case(2, "2 ranks, one channel", (24, 24)),
    Case(3, "3 ranks, one without images, nan on another", (30, 0, 25)),
)
FAR = 1e6  # a mean beside which E[x²] − E[x]² loses most of its digits
CLOSE = 1e-8  # of a variance of about 1; of numbers about 1


def shape_of(case: Case, count: int, rng: torch.Generator) -> tuple[int, ...]:
    """(B, C, H, W), where no two of C, H and W are equal."""
    channels = 1 if "one channel" in case.what else integer(rng, 4, 8)
    height = integer(rng, 2, 4)
    return count, channels, height, 5 - height


def parts_of(sizes: tuple[int, ...], x: Tensor) -> list[Tensor]:
    return list(x.split(sizes))


def wide(channels: Tensor) -> Tensor:
    """(C,) beside (B, C, H, W)."""
    return channels.view(-1, 1, 1)


def by_channel(x: Tensor) -> Tensor:
    """(B, C, H, W) as one row of channels for each value, (B·H·W, C)."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


class SyncStatistics(Exam):
    """`sync_statistics(comm, x)`: mean, variance and number of values of all ranks' images, by channel."""

    name = "sync_statistics"
    returns, given = ("mean", "var", "count"), ("x",)
    right = (
        "Tried on 1 to 5 ranks that have 0 to 64 images, with means up to a million, then in 2 and 3 real processes: the "
        "statistics are those of the whole batch, and take few bytes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(
            len(sizes),
            f"ranks with {', '.join(map(str, sizes))} images{far * ', a mean of a million'}",
            (sizes, far),
        )
        for far in (0, 1)
        for sizes in PARTS
    )
    cases += tuple(case._replace(given=(case.given, 0)) for case in SPECIAL)
    processes = tuple(case._replace(given=(case.given, 0)) for case in REAL)

    def draw(self, case, rng):
        sizes, far = case.given
        x = normal(rng, *shape_of(case, sum(sizes), rng))
        if "nan" in case.what:
            x[0, 0, 0, 0] = torch.nan
        # so that the ranks' means differ, and those of rows and columns
        drift = torch.arange(len(x), dtype=torch.float64).view(-1, 1, 1, 1) / len(x)
        drift = drift + 0.3 * torch.arange(x.shape[3], dtype=torch.float64)
        return [(part,) for part in parts_of(sizes, 2 * x + 3 * drift + (FAR if far else 0.5))]

    def wants(self, case, args):
        whole = by_channel(torch.cat([x for (x,) in args]))
        mean, var = whole.mean(0), whole.var(0, correction=0)
        return [{"mean": mean, "var": var, "count": len(whole)}] * case.n

    def value(self, case, args, rank, name, got, want):
        parts, what = [by_channel(x) for (x,) in args], f"rank {rank}: {name}"
        if name == "count":
            images = sum(len(x) for (x,) in args)
            looks = {
                "That is the number of this rank's own values.": len(parts[rank]),
                "That is the number of images: a channel has H·W values in each.": images,
            }
            if isinstance(got, Tensor) and got.numel() and (got == got.reshape(-1)[0]).all():
                got = got.reshape(-1)[0]  # one for each channel
            rule = "It should be B·H·W, added up over all ranks: one number."
            return close(got, want, what, looks, rule, 0)
        looks = lambda got: _looks(name, got, parts)
        close(got, want, what, looks, RULE[name], 1e-12 if name == "mean" else CLOSE)

    def cost(self, case, args, outcome):
        channels = args[0][0].shape[1]
        few(
            outcome,
            8 * (case.n - 1) * 6 * (channels + 1),
            f"There are {channels} channels. Are images sent? The statistics of a part are enough, and small.",
        )


RULE = {
    "mean": "The mean of a channel is Σ x over all ranks' images, rows and columns, divided by the number of values.",
    "var": "Add up, over the ranks, (x − mean)² around each rank's own mean, and count · (distance of the two means)².",
}


def _looks(name, got, parts):
    """What a wrong mean or variance looks like."""
    if got.isnan().any():
        return "The mean of no images is nan, and nan · 0 is nan: a rank without images should send zeros."
    whole, there = torch.cat(parts), [x for x in parts if len(x)]
    right = whole.var(0, correction=0)
    means = torch.stack([x.mean(0) for x in there])
    if name == "mean":
        return {
            "It is the plain mean of the means: a rank with few images counts as much as one with many.": means.mean(
                0
            ),
            "It is the variance: the order is (mean, var, count).": right,
        }
    if whole.mean(0).abs().max() > FAR / 2 and near(got, right, 0.05):
        return (
            "A few digits are right: two large numbers that are nearly equal were subtracted, as E[x²] − E[x]² does. "
            "Center first: add up (x − mean)²."
        )
    own = torch.stack([x.var(0, correction=0) for x in there])
    within = sum(len(x) * spread for x, spread in zip(there, own)) / len(whole)
    return {
        "It is the plain mean of the ranks' variances: the spread of their means is missing.": own.mean(
            0
        ),
        "The spread of the ranks' means is missing.": within,
        "It is divided by the number of values less one: batch norm divides by their number.": whole.var(
            0
        ),
        "In the spread of the means all ranks count alike: weight each with its number of values.": within
        + means.var(0, correction=0),
    }


class SyncBackward(Exam):
    """`sync_backward(comm, dy, xhat, scale, weight, count)`: dx of this rank's images, and its dweight and dbias."""

    name = "sync_backward"
    returns, given = ("dx", "dweight", "dbias"), ("dy", "xhat", "scale", "weight")
    right = (
        "Tried on 1 to 5 ranks that have 0 to 64 images, then in 2 and 3 real processes: the gradients are those of "
        "autograd through the whole batch, and take one exchange of two numbers for each channel."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(len(sizes), f"ranks with {', '.join(map(str, sizes))} images", sizes)
        for sizes in PARTS
    )
    cases += SPECIAL
    processes = REAL

    def draw(self, case, rng):
        shape = shape_of(case, sum(case.given), rng)
        self.x, self.dy = (normal(rng, *shape) for _ in range(2))
        self.x = 0.7 * self.x + wide(torch.arange(shape[1]))
        self.dy = self.dy + 0.4 + 0.5 * self.x
        if "nan" in case.what:
            self.dy[0, 0, 0, 0] = torch.nan
        self.weight = 0.5 + normal(rng, shape[1]).abs()
        rows = by_channel(self.x)
        scale = (rows.var(0, correction=0) + 1e-5).rsqrt()
        xhat = (self.x - wide(rows.mean(0))) * wide(scale)
        return [
            (dy, x, scale, self.weight, len(rows))
            for dy, x in zip(parts_of(case.given, self.dy), parts_of(case.given, xhat))
        ]

    def wants(self, case, args):
        x = self.x.clone().requires_grad_()
        batch_norm(x, None, None, self.weight, training=True, eps=1e-5).backward(self.dy)
        return [
            {"dx": dx, "dweight": (dy * xhat).sum(DIMS), "dbias": dy.sum(DIMS)}
            for dx, (dy, xhat, *_) in zip(parts_of(case.given, x.grad), args, strict=True)
        ]

    def value(self, case, args, rank, name, got, want):
        where = f"rank {rank}: {name}"
        if name != "dx":
            rule = "With y = xhat·weight + bias, dweight is Σ dy·xhat and dbias is Σ dy, over this rank's images."
            return close(got, want, where, lambda got: self._sums(args, rank, name), rule, 1e-10)
        rule = (
            "dx = scale · weight · (dy − Σdy/count − xhat · Σ(dy·xhat)/count), the sums over the images of all ranks, "
            "rows and columns."
        )
        close(got, want, where, lambda got: self._looks(args, rank), rule, 1e-10)

    def cost(self, case, args, outcome):
        n, channels = case.n, self.x.shape[1]
        most = (n - 1) * (2 * channels + 2) * 8
        hint = (
            f"Two sums of {channels} numbers can be stacked and sent in one all-reduce. Are there two of them, or are "
            "images sent?"
        )
        few(outcome, most, hint, 2 * (n - 1))

    def _sums(self, args, rank, name):
        """What a wrong gradient of weight or bias may be."""
        of_weight = [(dy * xhat).sum(DIMS) for dy, xhat, *_ in args]
        of_bias = [dy.sum(DIMS) for dy, *_ in args]
        own, other = (of_weight, of_bias) if name == "dweight" else (of_bias, of_weight)
        return {
            "It is the sum over all ranks: this rank's own is asked for, because data parallelism will add up those of all "
            "ranks later. Did the exchange overwrite it?": sum(own),
            "It is the mean over all ranks: this rank's own is asked for.": sum(own) / len(args),
            "The order is (dx, dweight, dbias).": other[rank],
            "It is divided by `count`: the gradients of weight and bias are sums.": own[rank]
            / args[rank][-1],
            "It is multiplied by weight.": own[rank] * self.weight,
        }

    def _looks(self, args, rank):
        """What a wrong dx may be."""
        dy, xhat, scale, weight, count = args[rank]
        size = max(1, dy[:, 0].numel())
        both = lambda dy, xhat, *_: torch.stack([dy.sum(DIMS), (dy * xhat).sum(DIMS)])
        inner = lambda sums, by=count: dy - wide(sums[0] / by) - xhat * wide(sums[1] / by)
        dx = lambda sums, by=count: wide(scale * weight) * inner(sums, by)
        mine, sums = both(*args[rank]), sum(both(*some) for some in args)
        first = torch.tensor([[1.0], [0.0]])
        return {
            "weight is missing: y = xhat·weight + bias.": wide(scale) * inner(sums),
            "It is multiplied by weight twice.": wide(scale * weight**2) * inner(sums),
            "dy is multiplied by weight, but the sums are not.": wide(scale)
            * (inner(sums) + dy * (wide(weight) - 1)),
            "scale is missing.": wide(weight) * inner(sums),
            "The sums are this rank's own: they run over all ranks' images.": dx(mine, size),
            "The sums are this rank's own, divided by the values of all ranks.": dx(mine),
            "The sums are divided by the number of this rank's values: `count` is the number of all.": dx(
                sums, size
            ),
            "The sums are averaged over the ranks and then divided by count: they should be added up.": dx(
                sums / len(args)
            ),
            "The sums are not divided by the number of values.": dx(sums, 1),
            "The term with xhat is missing: the variance depends on x, too.": dx(first * sums),
            "The term with Σ dy is missing: the mean depends on x, too.": dx(sums - first * sums),
            "Σ dy is exchanged, Σ dy·xhat is not.": dx(first * sums + (1 - first) * mine),
            "Σ dy·xhat is exchanged, Σ dy is not.": dx(first * mine + (1 - first) * sums),
            "A sign is wrong: both terms are subtracted from dy.": dx(-sums),
        }


class UpdateRunning(Report):
    """`update_running(running_mean, running_var, parts, momentum)`: one update a step, from micro-batches' statistics."""

    name = "update_running"
    right = (
        "Tried with 1 to 40 micro-batches of 0 to 64 values, with means up to a million: the averages move once, by the "
        "statistics of the whole batch."
    )
    forbidden = FORBIDDEN
    cases = alone(
        {
            "micro-batches of 8, 5, 3 and 8 values": ((8, 5, 3, 8), 0.1, 0.5),
            "one micro-batch": ((6,), 0.1, 0.5),
            "two of one size": ((4, 4), 0.25, 0.5),
            "micro-batches of one value": ((1, 1, 1), 0.1, 0.5),
            "one without values": ((7, 0, 2), 0.3, 0.5),
            "the first without values": ((0, 30, 5, 0), 0.1, 0.5),
            "a momentum of 1": ((9, 4, 2), 1.0, 0.5),
            "40 micro-batches": (tuple(range(40)), 0.1, 0.5),
            "a mean of a million": ((12, 64, 1, 20), 0.1, FAR),
            "a mean of a million, 40 micro-batches": (tuple(range(1, 41)), 0.2, FAR),
            "nan in one": ((5, 9, 4), 0.1, 0.5),
        }
    )

    def draw(self, case, rng):
        sizes, momentum, far = case.given
        channels = integer(rng, 3, 7)
        self.values = [
            2 * normal(rng, size, channels) + 3 * normal(rng, channels) + far for size in sizes
        ]
        if "nan" in case.what:
            self.values[0][0, 0] = torch.nan
        parts = []
        for x in self.values:
            mean = x.mean(0)
            parts.append((mean, x.var(0, correction=0) if len(x) else mean, len(x)))
        return [(normal(rng, channels) + far, normal(rng, channels).square(), parts, momentum)]

    def run(self, comm, yours, running_mean, running_var, parts, momentum):
        given = [tuple(part) for part in parts]
        returned = yours(running_mean, running_var, parts, momentum)
        return {
            "running_mean": running_mean,
            "running_var": running_var,
            "parts": given,
            "silent": returned is None,
        }

    def check(self, case, got, running_mean, running_var, parts, momentum):
        unchanged(got["parts"], parts, "`parts`")
        whole = torch.cat(self.values)
        want = {
            "running_mean": running_mean + momentum * (whole.mean(0) - running_mean),
            "running_var": running_var + momentum * (whole.var(0) - running_var),
        }
        before = {"running_mean": running_mean, "running_var": running_var}
        for name, right in want.items():
            looks = partial(self._looks, name, before[name], parts, momentum)
            close(got[name], right, name, looks, RUNNING[name], CLOSE)
        holds(got, {"silent": "it works in place, and should return nothing."})

    def _looks(self, name, before, parts, momentum, got):
        """What a wrong running average may be."""
        whole = torch.cat(self.values)
        counted = [part for part in parts if part[2]]
        means = torch.stack([mean for mean, *_ in counted])
        unbiased = [var * count / max(1, count - 1) for _, var, count in counted]
        var = whole.var(0, correction=0)
        new = {"running_mean": list(means), "running_var": unbiased}[name]
        moved = lambda to, by=momentum: before + by * (to - before)
        at_once = whole.mean(0) if name == "running_mean" else whole.var(0)
        k = len(counted)
        adjusted = 1 - (1 - momentum) ** (1 / k)
        far = whole.mean(0).abs().max() > FAR / 2
        if got.isnan().any():
            return "There is nan in it. The mean of no values is nan, and nan · 0 is nan: leave such a part out."
        if name == "running_var" and far and near(got, moved(at_once), 0.05):
            return (
                "A few digits are right: two large numbers that are nearly equal were subtracted, as E[x²] − E[x]² does. "
                "Add up count · (var + (distance of means)²)."
            )
        looks = {
            "It is as it was: is the tensor itself changed, or was a new one made (`+=` works in place)?": before,
            f"It has moved {k} times, once for each micro-batch: the step is one batch.": self._each(
                before, new, momentum
            ),
            f"It has moved {k} times, with an adjusted momentum: that forgets as much as it should, but the last part "
            "counts most. Merge the statistics first, and move once.": self._each(
                before, new, adjusted
            ),
            "It is the batch's own: the running average should only move towards that, by the momentum.": at_once,
            "The momentum is the weight of the new statistics, not of the old ones.": moved(
                at_once, 1 - momentum
            ),
            "The momentum is not used.": before + at_once,
            "All parts count alike: weight each with its number of values.": moved(sum(new) / k),
        }
        if name == "running_var":
            within = sum(count * spread for _, spread, count in counted) / len(whole)
            looks |= {
                "It is the biased variance: divide by the number of values less one.": moved(var),
                "The spread of the parts' means is missing.": moved(within),
                "The spread of the parts' means is missing, though it is right to divide by one less.": moved(
                    within * len(whole) / (len(whole) - 1)
                ),
                "In the spread of the means all parts count alike: weight each with its number of values.": moved(
                    within + means.var(0, correction=0)
                ),
                "Each part's variance was made unbiased: do that once, for the whole batch.": moved(
                    sum(count * spread for (*_, count), spread in zip(counted, unbiased))
                    / len(whole)
                    + sum(c * (mean - whole.mean(0)).square() for mean, _, c in counted)
                    / len(whole)
                ),
                "It is divided by the number of parts less one.": moved(
                    var * len(whole) / max(1, k - 1)
                ),
            }
        return looks

    def _each(self, before, new, momentum):
        for value in new:
            before = before + momentum * (value - before)
        return before


RUNNING = {
    "running_mean": "It should be running + momentum · (mean − running), where mean is the mean of all values.",
    "running_var": "It should be running + momentum · (var − running), where var is the variance of all values: "
    "Σ count · (var + (distance of the two means)²), divided by the number of all values less one.",
}


# ------------------------------------------------------------
# Numbers: what accumulation, uneven parts and batch norm do to a step.


def predict_whole_batch(n=8, parameters=10_000_000, k=4, channels=256):
    """8 ranks, 10,000,000 parameters in float32, 4 micro-batches, a batch norm of 256 channels.

    nbytes: that a rank sends for its gradients.  share: of a sample of rank 3 when ranks have 3, 3, 2 and 2.
    token: how many times too much a token of the shortest of 500, 200 and 20 counts.
    variance, unbiased: of four ranks with 5 samples each, means 1 to 4, variance 2 each.
    statistics: bytes that a rank sends in a batch norm's forward.  left: of running averages after 10 steps, momentum 0.1.
    momentum: with which k updates forget as much as one.
    """
    ring = 2 * (n - 1) / n * 4 * parameters
    gathered = (n - 1) * (2 * channels + 1) * 4
    unbiased = 3.25 * 20 / 19
    left = 0.9 ** (10 * k)
    adjusted = 1 - 0.9 ** (1 / k)
    values = {
        "nbytes": ring,
        "share": 1 / 8,
        "token": 12.0,
        "variance": 3.25,
        "unbiased": unbiased,
        "statistics": gathered,
        "left": left,
        "momentum": adjusted,
    }
    slips = {
        "nbytes": {
            ring * k: f"The average is taken once, after the last of {k} micro-batches.",
            ring / 4: NUMBERS,
            ring / 2: HALF,
        },
        "share": {
            1 / 10: "That is what it should have. The plain mean gives each rank 1/4.",
            1 / 4: "That is the share of the whole rank, which has two samples.",
            1 / 12: "That is the share of a sample of rank 0, which has three.",
        },
        "token": {
            1 / 60: "That is its weight. How many times its right weight is it, which is 1/720?",
            25.0: "That compares it with a token of the longest micro-batch. Compare it with its own right weight.",
            36.0: "Each loss is divided by 3, too.",
            1 / 12: "It counts too much, not too little.",
        },
        "variance": {
            2.0: "That is the variance within the ranks, but their means differ.",
            2 + 5 / 3: "Divide by the number of means, not by one less.",
            1.25: "That is the variance between the ranks: the variance within them is missing.",
        },
        "unbiased": {
            3.25: "That is the biased one.",
            3.25
            * 5
            / 4: "The variance of the whole batch is made unbiased, not that of one rank's part.",
            3.25 * 4 / 3: "There are 20 samples: divide by 19.",
            3.25 * 19 / 20: "It is the other way around: the unbiased variance is larger.",
        },
        "statistics": {
            2 * gathered: "An all-gather is half of an all-reduce.",
            gathered / 4: NUMBERS,
            gathered * n: "That is what all ranks send together: one rank is asked for.",
            gathered
            / n: "In an all-gather each rank passes on n−1 parts, each as long as its own.",
        },
        "left": {
            0.9**10: f"There are {k} updates in a step.",
            0.9**k: "That is after one step.",
            1 - left: "That is what is forgotten.",
            0.1 ** (10 * k): "An update keeps 1 − 0.1 of the old one.",
        },
        "momentum": {
            0.1 / k: "Nearly, but not within 1 %: (1 − m)^k should be 0.9.",
            0.9 ** (1 / k): "That is what an update keeps.",
            1 - 0.9**k: "That is what k updates forget with the old momentum.",
            0.1 ** (1 / k): "It is what is kept that multiplies: (1 − m)^k = 0.9.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_whole_batch,
    "Your bytes, shares, variances and momenta are right within 1 %.",
    {
        "n": ("{} ranks", (5, 10, 16)),
        "parameters": ("{:,} parameters", (6_000_000, 15_000_000, 20_000_000)),
        "k": ("{} micro-batches", (2, 3, 5)),
        "channels": ("a batch norm of {} channels", (64, 128, 512)),
    },
)
