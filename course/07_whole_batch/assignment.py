# %% [markdown] nbgrader={"grade_id": "top"}
# # 07 · What needs the whole batch: exercises
#
# You build what the mean of equal parts does not give: weighted averages, accumulation over micro-batches of any size,
# and batch norm for images that lie on many ranks.
#
# Seven exercises, 16 points, of which a teacher gives 2 by hand. After each of the others, run the check: it compares your
# function with one rank that has the whole batch, on 1 to 5 ranks, some of them without a sample, then in real processes. It
# says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, run the function in
# a `World` of your own.
#
# You may call `minidist.collectives`. What is refused is `minidist.parallel`, and PyTorch's data parallelism. Wait for all
# that you post, before you return. A nan in the numbers of one rank that count is a nan in everybody's: it tells that
# something has gone wrong, and must not be hidden.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch.nn.functional import batch_norm, mse_loss

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World
from minidist.models import mlp

# %% [markdown] nbgrader={"grade_id": "weighted_average_gradients_spec"}
# ## 1 · Uneven parts, and ranks with none (3 points)
#
# The last batch of an epoch has ten samples, and there are four ranks: 3, 3, 2 and 2. Or it has two samples, and two
# ranks have none. Every rank's gradient is the mean over *its* samples. Average the gradients, each weighted with the
# number of samples behind it.
#
# | | |
# |---|---|
# | call | `weighted_average_gradients(comm, module, samples)` |
# | `module` | with `p.grad` of this rank's samples in its parameters, float32 or float64, contiguous or not |
# | `samples` | how many samples this rank's gradients are the mean of; it may be 0 on some ranks, never on all |
# | afterwards | `p.grad` is the gradient of the mean over all ranks' samples, bit for bit the same everywhere; weights and buffers untouched |
# | returns | nothing |
# | cost | 2(n−1)/n·N bytes a rank, N bytes in all gradients, and a few bytes for the numbers of samples; nothing for what is frozen |
#
# **No samples:** then nothing in `p.grad` may count. It is None there, or holds nan, the mean of nothing; and
# 0 · nan is nan. **Missing gradients:** if no sample of a rank reaches a parameter, its `p.grad` is None there. It
# counts as zeros, and gets the average like all others. Frozen parameters (`requires_grad` is False) have no gradient
# anywhere. About 9 lines.
#
# <details><summary>Hint</summary>
#
# First `all_reduce_` a tensor with the number of samples: now every rank knows the sum. Multiply each gradient by
# samples/sum, but put zeros in its place where there are no samples. Then a plain sum is the weighted average.
#
# </details>


# %% nbgrader={"grade_id": "weighted_average_gradients", "solution": true}
def weighted_average_gradients(comm, module, samples):
    """Make every p.grad the gradient of the mean over all ranks' samples."""
    ### BEGIN SOLUTION
    everyone = all_reduce_(comm, torch.tensor(samples)).item()
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            p.grad *= samples / everyone
            all_reduce_(comm, p.grad)
    ### END SOLUTION


# %% nbgrader={"grade_id": "weighted_average_gradients_test", "points": 3}
check.weighted_average_gradients(weighted_average_gradients)

# %% [markdown] nbgrader={"grade_id": "weighted_average_gradients_target"}
# **Target:** no bar for yours. The plain average is another gradient.


# %%
def uneven(comm, x, y, average, *weigh):
    module = mlp([3, 5, 2], dtype=torch.float64)
    mine = torch.arange(10).tensor_split(comm.size)[comm.rank]
    mse_loss(module(x[mine]), y[mine]).backward()
    average(comm, module, *[len(mine)] * len(weigh))
    return torch.cat([p.grad.view(-1) for p in module.parameters()])


def plain_average(comm, module):
    for p in module.parameters():
        all_reduce_(comm, p.grad, op="mean")


random = torch.Generator().manual_seed(4)
x, y = (torch.randn(10, k, generator=random, dtype=torch.float64) for k in (3, 2))
serial = World(1).run(uneven, x, y, plain_average)[0]
found = {
    "plain": World(4).run(uneven, x, y, plain_average)[0],
    "weighted": World(4).run(uneven, x, y, weighted_average_gradients, True)[0],
}
study.bars(
    {word: round(float(100 * (g - serial).norm() / serial.norm()), 4) for word, g in found.items()},
    unit="%",
    title="Parts of 3, 3, 2 and 2: how far off is the gradient?",
)

# %% [markdown] nbgrader={"grade_id": "accumulate_counted_spec"}
# ## 2 · Accumulate what counts (3 points)
#
# A rank's part of the batch comes in micro-batches, of different sizes, and in a micro-batch only some rows count: the
# others are padding. Every row that counts should have the same weight, in whichever micro-batch of whichever rank it
# lies.
#
# | | |
# |---|---|
# | call | `accumulate_counted(comm, module, loss_fn, micro_batches)` |
# | `loss_fn` | `loss_fn(outputs, targets)`: the mean loss of some rows |
# | `micro_batches` | a list of (x, y, counts): x (B, 3) and y (B, 2) in float32 or float64, and counts (B,), bool; **not changed** |
# | afterwards | `p.grad` is the gradient of the mean loss over all rows that count, of all ranks, bit for bit the same everywhere; weights and buffers untouched |
# | returns | nothing |
# | cost | **one** average of 2(n−1)/n·N bytes a rank, however many micro-batches, and a few bytes for the numbers of rows; nothing for what is frozen |
#
# B differs from micro-batch to micro-batch, and ranks have different numbers of micro-batches. There may be micro-batches
# in which no row counts, ranks on which none does, and ranks without a micro-batch; some row counts somewhere. Where a row
# does not count, **y holds nan**. As before, a parameter that no row of a rank reaches has zeros there.
#
# **Invariants:** the gradients of the step before may still be in `p.grad`, and even nan: they must not count. The module
# is called once for each micro-batch (or not at all where nothing counts), with its rows or those of them that count. At
# any time the activations of one micro-batch are in memory, not of two; a variable may hold the last output. About 11 lines.
#
# <details><summary>Hint</summary>
#
# Before the first backward every rank must know how many rows count on all ranks. With W of them, a micro-batch in which w
# count contributes w/W of its mean loss, and the ranks' gradients are then summed. Select rows with `outputs[counts]`.
#
# </details>


# %% nbgrader={"grade_id": "accumulate_counted", "solution": true}
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    ### BEGIN SOLUTION
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    for x, y, counts in micro_batches:
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
    ### END SOLUTION


# %% nbgrader={"grade_id": "accumulate_counted_test", "points": 3}
check.accumulate_counted(accumulate_counted)

# %% [markdown] nbgrader={"grade_id": "accumulate_counted_target"}
# **Target:** four bars of nearly one length: 2 · 3/4 · 2,096 bytes, and a few for the numbers of rows.


# %%
def traffic_of(k):
    def step(comm):
        module = mlp([8, 40, 4])
        part = torch.ones(2, 8), torch.ones(2, 4), torch.tensor([True, comm.rank > 0])
        accumulate_counted(comm, module, mse_loss, [part] * k)

    world = World(4)
    world.run(step)
    return world.trace.bytes_sent(0)


N = 4 * sum(p.numel() for p in mlp([8, 40, 4]).parameters())
study.bars(
    {f"micro-batches: {k}": traffic_of(k) for k in (1, 2, 4, 8)},
    unit="B",
    target=1.5 * N,
    note="one average",
    title="Bytes that rank 0 sends in a step",
)

# %% [markdown] nbgrader={"grade_id": "sync_statistics_spec"}
# ## 3 · The statistics of all images (2 points)
#
# For images batch norm has one mean and one variance for each channel, over samples, rows and columns.
#
# | | |
# |---|---|
# | call | `mean, var, count = sync_statistics(comm, x)` |
# | `x` | this rank's images, (B, C, H, W), float64; B differs from rank to rank, and may be 0; **not changed** |
# | returns | mean (C,) and variance (C,) over all ranks' images, and the number of values that each is taken over, of all ranks together |
# | cost | a few numbers per channel, however many images |
#
# The variance divides by the number of values, not by one less. **Invariant:** as exact as if one rank had the whole
# batch, also where the mean is a million and the variance 1. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Two ways. Gather everyone's mean, Σ(x − mean)² and count, and merge. Or all-reduce sums and counts first, and squares
# around the common mean afterwards. The mean of no values is nan: divide the sum by at least 1. And `mean.view(-1, 1, 1)`
# stands beside (B, C, H, W).
#
# </details>


# %% nbgrader={"grade_id": "sync_statistics", "solution": true}
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    ### BEGIN SOLUTION
    values = x[:, 0].numel()
    mean = x.sum((0, 2, 3)) / max(1, values)
    squares = (x - mean.view(-1, 1, 1)).square().sum((0, 2, 3))
    own = torch.stack([mean, squares, torch.full_like(mean, values)])
    means, squares, counts = all_gather(comm, own[None]).unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    var = (squares + counts * (means - mean).square()).sum(0) / count
    return mean, var, int(count[0])
    ### END SOLUTION


# %% nbgrader={"grade_id": "sync_statistics_test", "points": 2}
check.sync_statistics(sync_statistics)

# %% [markdown] nbgrader={"grade_id": "sync_statistics_target"}
# **Target:** three equal bars, at 2.92.

# %%
data = torch.arange(1.0, 7.0, dtype=torch.float64).view(3, 1, 1, 2) + 1e6
found = World(3).run(lambda comm: sync_statistics(comm, data.tensor_split([2, 2])[comm.rank]))
study.bars(
    {f"rank {r}": float(var) for r, (_, var, _) in enumerate(found)},
    target=35 / 12,
    note="variance of all six",
    title="Variance of 1,000,001 … 1,000,006, in parts of 4, none and 2",
)

# %% [markdown] nbgrader={"grade_id": "sync_backward_spec"}
# ## 4 · Backward, with weight and bias (2 points)
#
# The layer's output is y = x̂·weight + bias, where x̂ = (x − mean)·scale with scale = 1/√(var + ε), and the layers above send
# dy back. You know dx for a layer without weight and bias. Derive it for this one, and the gradients of weight and bias.
#
# | | |
# |---|---|
# | call | `dx, dweight, dbias = sync_backward(comm, dy, xhat, scale, weight, count)` |
# | `dy, xhat` | of this rank's images, (B, C, H, W), float64; B may be 0; **not changed** |
# | `scale, weight` | (C,), the same on all ranks; **not changed** |
# | `count` | the number of values of a channel, of all ranks together |
# | returns | dx of this rank's images, (B, C, H, W), through the statistics of all; dweight and dbias (C,) of this rank's images alone |
# | cost | one exchange of 2C numbers |
#
# dweight and dbias are this rank's own because data parallelism adds the ranks' up later, with those of all other
# parameters. About 7 lines.
#
# <details><summary>Hint</summary>
#
# x̂ receives weight · dy. Both sums are known to each rank for its own images, over all dimensions but the channels'.
# `torch.stack` makes a new tensor of them: all-reduce that, once.
#
# </details>


# %% nbgrader={"grade_id": "sync_backward", "solution": true}
def sync_backward(comm, dy, xhat, scale, weight, count):
    """The gradients of this rank's images, and its gradients of weight and bias."""
    ### BEGIN SOLUTION
    dweight = (dy * xhat).sum((0, 2, 3))
    dbias = dy.sum((0, 2, 3))
    sums = torch.stack([dbias, dweight])
    all_reduce_(comm, sums)
    of_mean, of_var = (sums / count).view(2, -1, 1, 1)
    dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
    return dx, dweight, dbias
    ### END SOLUTION


# %% nbgrader={"grade_id": "sync_backward_test", "points": 2}
check.sync_backward(sync_backward)

# %% [markdown] nbgrader={"grade_id": "sync_backward_target"}
# **Target:** no bar for yours. The upper bar: nobody exchanges anything, every rank takes its part for
# the batch.

# %%
random = torch.Generator().manual_seed(6)
x, dy = (torch.randn(12, 4, 2, 3, generator=random, dtype=torch.float64) for _ in range(2))
weight = torch.tensor([1.0, 0.5, 2.0, 1.5], dtype=torch.float64)


def norm_backward(comm, x, dy, alone):
    mine = slice(0, len(x)) if comm.size == 1 else slice(*((0, 5), (5, 10), (10, 12))[comm.rank])
    mean, var, count = sync_statistics(comm, x[mine])
    scale = (var + 1e-5).rsqrt()
    xhat = (x[mine] - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1)
    if alone:
        count = xhat[:, 0].numel()
        apart = World(1).run(lambda one: sync_backward(one, dy[mine], xhat, scale, weight, count))
        return apart[0][0]
    return sync_backward(comm, dy[mine], xhat, scale, weight, count)[0]


leaf = x.clone().requires_grad_()
batch_norm(leaf, None, None, weight, training=True).backward(dy)
off = {
    word: float(
        100
        * (torch.cat(World(3).run(norm_backward, x, dy, alone)) - leaf.grad).norm()
        / leaf.grad.norm()
    )
    for word, alone in {"not exchanged": True, "yours": False}.items()
}
study.bars(
    {word: round(error, 4) for word, error in off.items()},
    unit="%",
    title="How far is dx from PyTorch's?",
)

# %% [markdown] nbgrader={"grade_id": "update_running_spec"}
# ## 5 · Running averages of a step in micro-batches (2 points)
#
# The lesson adjusted the momentum, so that k updates forget as much as one. The last micro-batch still counts most, and the
# variance *between* the micro-batches is lost. Do better: keep the statistics of each micro-batch, merge them at the end of
# the step, and update once, exactly as if the whole batch had gone through the layer at once.
#
# | | |
# |---|---|
# | call | `update_running(running_mean, running_var, parts, momentum)`, on one rank, without a Comm |
# | `running_mean, running_var` | (C,), float64, changed **in place** |
# | `parts` | a list of (mean, var, count), one for each micro-batch: (C,), (C,) and an integer; var is the biased one, divided by count; **not changed** |
# | `momentum` | what the new statistics weigh: running ← running + momentum · (new − running) |
# | returns | nothing |
#
# As in PyTorch, what moves `running_var` is the **unbiased** variance, that of the whole batch: divided by the number of all
# values less one. A micro-batch may have no values: its count is 0, and its mean and variance are nan. All together have
# two values or more. **Invariant:** as exact as from all values at once, also where the mean is a million and the variance 4,
# and for 40 micro-batches. About 7 lines.
#
# <details><summary>Hint</summary>
#
# Σ(x − mean)² around a part's own mean is count · var. Around the common mean count · (distance of the means)² is added.
#
# </details>


# %% nbgrader={"grade_id": "update_running", "solution": true}
def update_running(running_mean, running_var, parts, momentum):
    """Move the running averages once, by the statistics of all micro-batches together."""
    ### BEGIN SOLUTION
    counted = [part for part in parts if part[2]]
    total = sum(count for _, _, count in counted)
    mean = sum(count * mean for mean, _, count in counted) / total
    squares = sum(count * (var + (own - mean).square()) for own, var, count in counted)
    running_mean += momentum * (mean - running_mean)
    running_var += momentum * (squares / (total - 1) - running_var)
    ### END SOLUTION


# %% nbgrader={"grade_id": "update_running_test", "points": 2}
check.update_running(update_running)

# %% [markdown] nbgrader={"grade_id": "update_running_target"}
# **Target:** your curve swings around the variance of the data, 4. The other, which moves twice a step by the micro-batches'
# own variances, stays at 1.

# %%
random = torch.Generator().manual_seed(7)
merged = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
one_by_one = torch.ones(1, dtype=torch.float64)
curves = {"merged, one update": [], "biased, one by one": []}
for _ in range(60):
    # two micro-batches of 8 values, from two files: with means 1.7 apart on either side
    parts = []
    for center in (-1.7, 1.7):
        values = center + torch.randn(8, 1, generator=random, dtype=torch.float64)
        parts.append((values.mean(0), values.var(0, correction=0), len(values)))
        one_by_one += 0.1 * (parts[-1][1] - one_by_one)
    update_running(*merged, parts, 0.2)
    curves["merged, one update"].append(float(merged[1]))
    curves["biased, one by one"].append(float(one_by_one))
study.curves(
    {name: (range(1, 61), values) for name, values in curves.items()},
    xlabel="step",
    ylabel="running variance",
    title="Two micro-batches a step, whose means differ",
)

# %% [markdown] nbgrader={"grade_id": "predict_whole_batch_spec"}
# ## 6 · Predict, then run (2 points)
#
# 8 ranks train a model of 10,000,000 parameters in float32 (4 bytes each). Every rank's part of a batch comes in 4
# micro-batches. All collectives are rings.
#
# - `nbytes`: how many bytes does each rank send in a step for its gradients?
# - `share`: four ranks have 3, 3, 2 and 2 samples, and take the plain mean of their gradients. Which fraction of the
#   result comes from *one* sample of rank 3? (It should be 1/10.)
# - `token`: in another run there is one rank, and three micro-batches with 500, 200 and 20 tokens that count. Each loss is
#   the mean over its micro-batch, divided by 3. How many times as much as it should does a token of the last one count?
# - `variance`: batch norm. Four ranks have 5 samples each, with means 1, 2, 3 and 4, and a (biased) variance of 2 on each
#   rank. The biased variance of all samples?
# - `unbiased`: and the unbiased one, which moves the running average?
# - `statistics`: a batch norm has 256 channels. In its forward each of the 8 ranks all-gathers mean and Σ(x − mean)² of each
#   channel and one count, in float32. How many bytes does each rank send?
# - `left`: batch norm's momentum is 0.1, and nobody has adjusted it for the 4 micro-batches. Which fraction of the running
#   averages of now is left in them after 10 steps?
# - `momentum`: with which momentum would 4 updates forget as much as one did?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_whole_batch", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_whole_batch.numbers(STUDENT)
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
### BEGIN SOLUTION
n = 8
k = 4
C = 256
nbytes = 2 * (n - 1) / n * 4 * 10_000_000
share = 1 / 4 * 1 / 2
token = (1 / 3 / 20) * 720
variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4
unbiased = variance * 20 / 19
statistics = (n - 1) * (2 * C + 1) * 4
left = (1 - 0.1) ** (10 * k)
momentum = 1 - (1 - 0.1) ** (1 / k)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_whole_batch_test", "points": 2}
check.predict_whole_batch(
    nbytes, share, token, variance, unbiased, statistics, left, momentum, of=STUDENT
)

# %% [markdown] nbgrader={"grade_id": "predict_whole_batch_target"}
# **Target:** your numbers beside those of a run. (Tensors on the device `"meta"` have no numbers, so the ten million cost
# nothing.)


# %%
def average(comm):
    all_reduce_(comm, torch.empty(10_000_000, device="meta"))


def gather(comm):
    all_gather(comm, torch.empty(1, 2 * 256 + 1, device="meta"))


def bytes_of(program):
    world = World(8, device="meta")
    world.run(program)
    return world.trace.bytes_sent(0)


norm = torch.nn.BatchNorm1d(1, momentum=0.1)
with torch.no_grad():
    norm.running_mean.fill_(1.0)
for _ in range(10 * 4):
    norm(torch.tensor([[-1.0], [1.0]]))
rows = [
    ["bytes for gradients", nbytes, bytes_of(average)],
    ["bytes for statistics", statistics, bytes_of(gather)],
    ["left after 10 steps", round(left, 4), round(float(norm.running_mean), 4)],
]
study.table(rows, ["", "predicted", "run"])

# %% [markdown] nbgrader={"grade_id": "enough_samples_spec"}
# ## 7 · How many samples are enough? (2 points, graded by hand)
#
# Batch norm divides by the standard deviation of the batch, which is itself an estimate: of few samples it is a bad one. Take
# a channel whose values are normally distributed, with variance 1. **From how many samples a rank on is the root mean square
# error of a rank's own (biased) variance at most 10 %, and how large is it for a rank with 2 samples, and for 8 such ranks
# that synchronize?**
#
# Answer with a plot and about ten sentences. Draw some thousand batches of each size with `torch.randn`. Your teacher gives:
#
# - **1 point for the number, derived.** The biased variance of k normal values has the mean 1 − 1/k and the variance
#   2(k − 1)/k². The mean square error as a formula, why both belong into it, and from it the three numbers asked for.
# - **1 point for the plot and what it shows.** The error for at least eight sizes, from 2 to 500, as measured and by the
#   formula, with names on both axes; how many times as many samples half the error takes; and when you would synchronize, and
#   when not, where a sample is an image of 32 × 32 positions that all count.


# %% nbgrader={"grade_id": "enough_samples_plot", "solution": true}
### BEGIN SOLUTION
sizes = [2, 4, 8, 16, 32, 64, 128, 256, 512]
random = torch.Generator().manual_seed(8)
errors = []
for k in sizes:
    values = torch.randn(4000, k, generator=random, dtype=torch.float64)
    errors.append(float((values.var(1, correction=0) - 1).square().mean().sqrt()))
study.curves(
    {"√(2k − 1)/k": (sizes, [(2 * k - 1) ** 0.5 / k for k in sizes])},
    points={"4,000 batches": (sizes, errors)},
    logx=True,
    logy=True,
    xlabel="samples, k",
    ylabel="root mean square error",
    title="The variance of a batch, as an estimate of 1",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "enough_samples", "solution": true, "points": 2}
# The error has two parts. The biased variance is 1/k too small on average, and it scatters around its mean. Their squares add
# up: 2(k − 1)/k² + 1/k² = (2k − 1)/k², so the root mean square error is √(2k − 1)/k, which is nearly √(2/k). It is 10 % for
# k = 200 samples (0.0999). Two samples have √3/2 = 87 %: such a batch norm hardly knows the scale at all. Eight ranks of two
# that synchronize have 16 samples and √31/16 = 35 %, better by 2.5 times, and still not good.
#
# The measured points lie on the formula. The line falls by a factor of two where k grows by four: half the error takes four
# times as many samples. So synchronizing helps most where a rank has a handful, and with 200 on a rank nobody would notice,
# while the two exchanges a layer remain. An image of 32 × 32 positions gives 1,024 values of a channel, which would be more
# than enough if they were independent. They are not, as neighbours in an image look alike, and all of an image share its
# light. So the images count, more than their pixels, and with one or two images on a rank I would synchronize all the same.
