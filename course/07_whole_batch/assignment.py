# %% [markdown] nbgrader={"grade_id": "top"}
# # 07 · What needs the whole batch: exercises
#
# You build what the mean of equal parts does not give: weighted averages, accumulation over micro-batches of any size,
# and batch norm for images that lie on many ranks.
#
# There are seven exercises, worth 16 points. Each of the first six ends with a check, which compares your function with
# one rank that has the whole batch, on 1 to 5 ranks, some of them without a sample, then in real processes, and says
# what is wrong. Try as often as you like. The check does not show what your function prints; to see that, run the
# function in a `World` of your own. The seventh is an open question, worth 2 points, which your teacher grades. An
# answer that gives the right numbers but takes more messages, bytes or memory than it may earns half of the points.
#
# You may call `minidist.collectives`. Calls to the library's own data parallelism (`minidist.parallel`) and to
# PyTorch's are refused. Wait for everything that you post before you return. A nan in one rank's numbers, where they
# count, must become a nan in everybody's: it is a sign that something has gone wrong, and must not be hidden.

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
# The last batch of an epoch has ten samples, and there are four ranks, so they get 3, 3, 2 and 2. Or it has two
# samples, and two of the ranks get none. Every rank's gradient is the mean over *its own* samples. Average the
# gradients so that each rank's is weighted with the number of samples behind it.
#
# | | |
# |---|---|
# | call | `weighted_average_gradients(comm, module, samples)` |
# | `module` | its parameters have this rank's gradients in `p.grad`, float32 or float64, contiguous or not |
# | `samples` | how many samples this rank's gradients are the mean of; it may be 0 on some ranks, but never on all |
# | afterwards | `p.grad` is the gradient of the mean over the samples of all ranks, in the dtype of `p`, and bit for bit the same on every rank; weights and buffers are untouched |
# | returns | nothing; a value that you return is ignored |
# | cost | each rank sends 2(n−1)/n·N bytes, where N is the number of bytes in all gradients, and at most 64·n bytes more for the numbers of samples; nothing is sent for frozen parameters |
#
# **No samples:** where a rank has no samples, nothing that is in its `p.grad` may count. It is None there, or it holds
# nan, the mean of nothing; and 0 · nan is nan. **Missing gradients:** if no sample of a rank reaches a parameter, its
# `p.grad` is None on that rank. It counts as zeros, and is replaced by the average like all others. Frozen parameters
# (`requires_grad` is False) have no gradient on any rank. A matrix that two layers share is one parameter. About 9
# lines.
#
# <details><summary>Hint</summary>
#
# First `all_reduce_` a tensor with the number of samples, so that every rank knows the sum. Multiply each gradient by
# samples/sum, but put zeros in its place where there are no samples. Then a plain sum is the weighted average.
#
# </details>


# %% nbgrader={"grade_id": "weighted_average_gradients", "solution": true}
def weighted_average_gradients(comm, module, samples):
    """Make every p.grad the gradient of the mean over the samples of all ranks."""
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
# **Target:** no bar for yours. The plain average is a different gradient.
#
# This cell runs your function in the notebook itself, not in a process of its own, so it is stopped after ten seconds.


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
found = {"plain": World(4).run(uneven, x, y, plain_average)[0]}
with check.limit(10):
    found["weighted"] = World(4).run(uneven, x, y, weighted_average_gradients, True)[0]
study.bars(
    {word: round(float(100 * (g - serial).norm() / serial.norm()), 4) for word, g in found.items()},
    unit="%",
    title="Parts of 3, 3, 2 and 2: how far off is the gradient?",
)

# %% [markdown] nbgrader={"grade_id": "accumulate_counted_spec"}
# ## 2 · Accumulate what counts (3 points)
#
# A rank's part of the batch comes in micro-batches of different sizes, and in a micro-batch only some rows count: the
# others are padding. Every row that counts should have the same weight, whichever rank and whichever micro-batch it is
# in.
#
# | | |
# |---|---|
# | call | `accumulate_counted(comm, module, loss_fn, micro_batches)` |
# | `loss_fn` | `loss_fn(outputs, targets)` returns the mean loss of these rows |
# | `micro_batches` | a list of (x, y, counts): x (B, 3) and y (B, 2) in float32 or float64, and counts (B,), bool, which is True for the rows that count; **not changed** |
# | afterwards | `p.grad` is the gradient of the mean loss over all rows that count, on all ranks together, in the dtype of `p`, and bit for bit the same on every rank; weights and buffers are untouched |
# | returns | nothing; a value that you return is ignored |
# | cost | **one** average of 2(n−1)/n·N bytes per rank, however many micro-batches there are, and at most 64·n bytes more for the numbers of rows; nothing is sent for frozen parameters |
#
# B, 1 or more, differs from micro-batch to micro-batch, and ranks have different numbers of micro-batches. There may be
# micro-batches in which no row counts, ranks on which no row counts, and ranks without any micro-batch, but somewhere
# some row counts. Where a row does not count, **y holds nan**. As before, a parameter that no row of a rank reaches
# counts as zeros there.
#
# **Invariants:** `p.grad` may still hold the gradients of the step before, even nan: they must not count. The module is
# called once for each micro-batch, with all its rows or with those that count; where none counts, it need not be
# called. Only the activations of one micro-batch are in memory at any time, never those of two, though a variable may
# still hold the last output. About 11 lines.
#
# <details><summary>Hint</summary>
#
# Before the first backward every rank must know how many rows count on all ranks together. If there are W of them, a
# micro-batch in which w rows count contributes w/W of its mean loss, and the ranks' gradients are then summed.
# `outputs[counts]` selects the rows that count.
#
# </details>


# %% nbgrader={"grade_id": "accumulate_counted", "solution": true}
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient of the mean over all rows that count, with one average."""
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
# **Target:** four bars of nearly the same length, 2 · 3/4 · 2,096 bytes and a few more for the numbers of rows.


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
with check.limit(10):
    traffic = {f"micro-batches: {k}": traffic_of(k) for k in (1, 2, 4, 8)}
study.bars(
    traffic,
    unit="B",
    target=1.5 * N,
    note="one average",
    title="Bytes that rank 0 sends in a step",
)

# %% [markdown] nbgrader={"grade_id": "sync_statistics_spec"}
# ## 3 · The statistics of all images (2 points)
#
# For images, batch norm has one mean and one variance for each channel, taken over samples, rows and columns.
#
# | | |
# |---|---|
# | call | `mean, var, count = sync_statistics(comm, x)` |
# | `x` | this rank's images, (B, C, H, W), float64; B differs from rank to rank, and may be 0; **not changed** |
# | returns | the mean (C,) and the variance (C,) over the images of all ranks, float64, and the number of values that each of them is taken over, on all ranks together |
# | cost | each rank sends at most 6(n−1)(C+1) numbers, however many images there are |
#
# The variance divides by the number of values, not by one less. **Invariant:** the result is as exact as if one rank
# had the whole batch, also where the mean is a million and the variance 1. About 9 lines.
#
# <details><summary>Hint</summary>
#
# There are two ways. Either gather every rank's mean, Σ(x − mean)² and count, and merge them. Or all-reduce the sums
# and counts first, and then the squares around the common mean. The mean of no values is nan, so divide the sum by at
# least 1. `mean.view(-1, 1, 1)` can be subtracted from a tensor of shape (B, C, H, W).
#
# </details>


# %% nbgrader={"grade_id": "sync_statistics", "solution": true}
def sync_statistics(comm, x):
    """Mean, variance and number of values of each channel, over the images of all ranks."""
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
with check.limit(10):
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
# The layer's output is y = x̂·weight + bias, where x̂ = (x − mean)·scale with scale = 1/√(var + ε), and the layers
# above send back dy. You know dx for a layer without weight and bias. Derive it for this layer, together with the
# gradients of weight and bias.
#
# | | |
# |---|---|
# | call | `dx, dweight, dbias = sync_backward(comm, dy, xhat, scale, weight, count)` |
# | `dy, xhat` | of this rank's images, (B, C, H, W), float64; B may be 0; **not changed** |
# | `scale, weight` | (C,), float64, the same on all ranks; **not changed** |
# | `count` | the number of values in a channel, on all ranks together |
# | returns | dx of this rank's images, (B, C, H, W), with the gradient that flows through the statistics of all ranks; dweight and dbias, (C,), of this rank's images alone; all in float64 |
# | cost | one exchange of 2C numbers: an all-reduce or an all-gather |
#
# dweight and dbias are this rank's own because data parallelism will add up those of all ranks later, together with the
# gradients of all other parameters. About 7 lines.
#
# <details><summary>Hint</summary>
#
# The gradient that reaches x̂ is weight · dy. Each rank can compute both sums for its own images, over all dimensions
# but the channels. `torch.stack` makes one new tensor of the two: all-reduce that, once.
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
# **Target:** no bar for yours. The upper bar shows what happens if nobody exchanges anything, and every rank takes its
# part for the batch.

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
off = {}
with check.limit(10):
    for word, alone in {"not exchanged": True, "yours": False}.items():
        dx = torch.cat(World(3).run(norm_backward, x, dy, alone))
        off[word] = round(float(100 * (dx - leaf.grad).norm() / leaf.grad.norm()), 4)
study.bars(
    off,
    unit="%",
    title="How far is dx from PyTorch's?",
)

# %% [markdown] nbgrader={"grade_id": "update_running_spec"}
# ## 5 · Running averages of a step in micro-batches (2 points)
#
# The lesson adjusted the momentum, so that k updates forget as much as one did. But the last micro-batch still counts
# most, and the variance *between* the micro-batches is lost. Do better: keep the statistics of each micro-batch, merge
# them at the end of the step, and update once, exactly as if the whole batch had gone through the layer at once.
#
# | | |
# |---|---|
# | call | `update_running(running_mean, running_var, parts, momentum)`, on one rank, without a Comm |
# | `running_mean, running_var` | (C,), float64, changed **in place** |
# | `parts` | a list of (mean, var, count), one for each micro-batch: two tensors (C,), float64, and an integer; var is the biased variance, divided by count; **not changed** |
# | `momentum` | the weight of the new statistics: running ← running + momentum · (new − running) |
# | returns | nothing |
#
# As in PyTorch, `running_var` moves towards the **unbiased** variance of the whole batch, which divides by the number
# of all values less one. A micro-batch may have no values: then its count is 0, and its mean and variance are nan. All
# together have at least two values. **Invariant:** the result is as exact as if it were computed from all values at
# once, also where the mean is a million and the variance 4, and for 40 micro-batches. About 7 lines.
#
# <details><summary>Hint</summary>
#
# For each part, Σ(x − mean)² around its own mean is count · var. Around the common mean it is larger by count ·
# (distance between the two means)².
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
# **Target:** your curve swings around the variance of the data, 4. The other one, which moves twice in each step, by
# the micro-batches' own variances, stays at 1.

# %%
random = torch.Generator().manual_seed(7)
merged = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
one_by_one = torch.ones(1, dtype=torch.float64)
curves = {"merged, one update": [], "biased, one by one": []}
with check.limit(10):
    for _ in range(60):
        # two micro-batches of 8 values, from two files: one has the mean −1.7, the other 1.7
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
    title="Two micro-batches in each step, with different means",
)

# %% [markdown] nbgrader={"grade_id": "predict_whole_batch_spec"}
# ## 6 · Predict, then run (2 points)
#
# 8 ranks train a model of 10,000,000 parameters in float32 (4 bytes each). Every rank's part of a batch comes in 4
# micro-batches. All collectives are rings.
#
# - `nbytes`: how many bytes does each rank send in a step for its gradients?
# - `share`: four ranks have 3, 3, 2 and 2 samples, and take the plain mean of their gradients. What fraction of the
#   result comes from *one* sample of rank 3? (It should be 1/10.)
# - `token`: another run has one rank, and three micro-batches in which 500, 200 and 20 tokens count. Each loss is the
#   mean over its micro-batch, divided by 3. How many times as much as it should does a token of the last micro-batch
#   count?
# - `variance`: in a batch norm, four ranks have 5 samples each, with means of 1, 2, 3 and 4, and a (biased) variance of
#   2 on each rank. What is the biased variance of all samples?
# - `unbiased`: and what is the unbiased one, which moves the running average?
# - `statistics`: a batch norm has 256 channels. In its forward each of the 8 ranks all-gathers the mean and Σ(x −
#   mean)² of each channel, and one count, in float32. How many bytes does each rank send?
# - `left`: the momentum of a batch norm is 0.1, and nobody has adjusted it for the 4 micro-batches. What fraction of
#   today's running averages is still in them after 10 steps?
# - `momentum`: with which momentum would 4 updates forget as much as one does with 0.1?
#
# Write numbers or formulas. They are right within 1 %.

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
# **Target:** your numbers beside those of a run. (Tensors on the device `"meta"` have a shape but no numbers, so the
# ten million cost nothing.)


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
# Batch norm divides by the standard deviation of the batch, which is itself an estimate, and a bad one if there are few
# samples. Take a channel whose values are normally distributed, with variance 1. **How many samples must a rank have,
# so that the root mean square error of its own (biased) variance is at most 10 %? How large is this error for a rank
# with 2 samples, and for 8 such ranks that synchronize?**
#
# Answer with a plot and about ten sentences. For the plot, draw some thousand batches of each size with `torch.randn`.
# Your teacher gives:
#
# - **1 point for the numbers, derived.** The biased variance of k normal values has the mean 1 − 1/k and the variance
#   2(k − 1)/k². Give the mean square error as a formula, say why both belong in it, and derive the three numbers from
#   it.
# - **1 point for the plot and what it shows.** The plot has the error for at least eight sizes, from 2 to 500, as
#   measured and by the formula, with names on both axes. Say how many times as many samples it takes to halve the
#   error, and when you would synchronize and when not, if a sample is an image of 32 × 32 positions that all count.


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
# The error has two parts. The biased variance is too small by 1/k on average, and it scatters around its mean. The
# squares of the two add up: 2(k − 1)/k² + 1/k² = (2k − 1)/k², so the root mean square error is √(2k − 1)/k, which is
# nearly √(2/k). It is 10 % for k = 200 samples (0.0999). With two samples it is √3/2 = 87 %: such a batch norm hardly
# knows the scale at all. Eight ranks of two that synchronize have 16 samples and an error of √31/16 = 35 %, which is
# 2.5 times better, and still not good.
#
# The measured points lie on the formula. The line falls by a factor of two where k grows by a factor of four, so it
# takes four times as many samples to halve the error. Synchronizing therefore helps most where a rank has a handful of
# samples. With 200 on a rank nobody would notice the difference, while the two exchanges per layer still have to be
# paid for. An image of 32 × 32 positions gives 1,024 values of a channel, which would be more than enough if they were
# independent. They are not: neighbouring positions look alike, and all positions of an image share its light. So it is
# the number of images that counts, more than the number of positions, and with one or two images on a rank I would
# synchronize all the same.
