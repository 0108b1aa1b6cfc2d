# %% [markdown] nbgrader={"grade_id": "top"}
# # 06 Buckets, overlap, SyncBatchNorm: exercises
#
# You build what makes data parallelism fast, and what makes batch norm right, and find a bug in micro-batches.
#
# Eight exercises, 17 points. After each, run the check: it tries your function on 1 to 5 ranks of a World whose clock
# counts computation and messages, then in real processes. It says what is wrong. Try as often as you like.
# What your function prints is not shown there; to see it, run the function in a `World` of your own.
#
# You may call `minidist.collectives`. What is refused is `minidist.parallel`, and PyTorch's data parallelism.
# Wait for all that you post, before you return (in `finish`, where there is one). A nan in one rank's numbers is a nan in
# everybody's, and must not be hidden.

# %% nbgrader={"grade_id": "setup"}
from functools import partial

import torch
from torch.nn.functional import batch_norm

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World
from minidist.comm.cluster import Cluster, Device
from minidist.models import mlp

# %% [markdown] nbgrader={"grade_id": "assign_buckets_spec"}
# ## 1 · Which gradients share a bucket? (2 points)
#
# Backward begins at the last layer. So buckets are filled from the back, and the first one is small: then the wire has
# something to do early.
#
# | | |
# |---|---|
# | call | `assign_buckets(nbytes, bucket_bytes, first_bucket_bytes)` |
# | `nbytes` | bytes of each gradient, in the order of the parameters, a list; **not changed** |
# | `bucket_bytes` | the room of a bucket; the first one has `first_bucket_bytes` |
# | returns | a list of buckets, each a list of positions in `nbytes` |
#
# **Invariant:** one bucket after the other, the positions go from the last down to 0. A bucket takes the next gradient
# as long as it fits. What does not fit opens the next bucket; if it is larger than the room, it is alone in there.
# No bucket is empty. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Go through the positions in reverse. Keep the bytes that are still free in the last bucket; begin with −1, as there is
# no bucket yet.
#
# </details>


# %% nbgrader={"grade_id": "assign_buckets", "solution": true}
def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, in the order in which they are ready."""
    ### BEGIN SOLUTION
    buckets, free = [], -1
    for i in reversed(range(len(nbytes))):
        if nbytes[i] > free:
            free = bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(i)
        free -= nbytes[i]
    return buckets
    ### END SOLUTION


# %% nbgrader={"grade_id": "assign_buckets_test", "points": 2}
check.assign_buckets(assign_buckets)

# %% [markdown] nbgrader={"grade_id": "assign_buckets_target"}
# **Target:** a first bucket of at most 100 bytes, then three of at most 300; the last holds a gradient of 400
# bytes alone.

# %%
nbytes = [400, 16, 200, 20, 240, 60, 120, 12, 60, 10]
buckets = assign_buckets(nbytes, 300, 100)
study.table(
    [(k, ", ".join(map(str, b)), sum(nbytes[i] for i in b)) for k, b in enumerate(buckets)],
    ["bucket", "gradients", "bytes"],
    title="Your buckets for 10 gradients",
)

# %% [markdown] nbgrader={"grade_id": "bucketed_spec"}
# ## 2 · One message for many gradients (2 points)
#
# Every rank has run its backward. Average all gradients, one all-reduce for each bucket.
#
# | | |
# |---|---|
# | call | `bucketed(comm, params, buckets)` |
# | `params` | a list of parameters; every `p.grad` is there, all of one dtype, contiguous or not |
# | `buckets` | lists of positions in `params`; **not changed** |
# | afterwards | every `p.grad` is the mean over all ranks, and a view of its bucket's flat tensor |
# | returns | nothing |
# | cost | 2(n−1) messages a bucket, and 2(n−1)/n·N bytes in all |
#
# **Invariant:** the gradients of a bucket lie in one flat tensor, those of two buckets in two. About 6 lines.
#
# <details><summary>Hint</summary>
#
# `torch.cat` of the flattened gradients (`reshape(-1)`), an all-reduce, `split` by the numbers of elements,
# and `view_as`. A piece of a `split` is a view.
#
# </details>


# %% nbgrader={"grade_id": "bucketed", "solution": true}
def bucketed(comm, params, buckets):
    """Make every p.grad its mean over all ranks, and a view of its bucket."""
    ### BEGIN SOLUTION
    for bucket in buckets:
        some = [params[i] for i in bucket]
        flat = torch.cat([p.grad.reshape(-1) for p in some])
        all_reduce_(comm, flat, op="mean")
        for p, piece in zip(some, flat.split([p.numel() for p in some])):
            p.grad = piece.view_as(p)
    ### END SOLUTION


# %% nbgrader={"grade_id": "bucketed_test", "points": 2}
check.bucketed(bucketed)

# %% [markdown] nbgrader={"grade_id": "bucketed_target"}
# **Target:** 12 bars in place of 36, and the same bytes: two all-reduces for six gradients. The gaps are the latencies.


# %%
def exchange(comm, buckets):
    params = list(mlp([300] * 4, device="meta").parameters())
    for p in params:
        p.grad = torch.empty_like(p)
    bucketed(comm, params, buckets)


ways = {"six buckets": [[5], [4], [3], [2], [1], [0]], "two buckets": [[5, 4, 3], [2, 1, 0]]}
worlds = {name: World(4, device="meta") for name in ways}
for name, world in worlds.items():
    world.run(exchange, ways[name])
study.timeline(
    {name: world.trace for name, world in worlds.items()},
    ranks=[0, 1],
    title="Your exchange of 1 MB",
)

# %% [markdown] nbgrader={"grade_id": "overlapped_spec"}
# ## 3 · Beside backward (3 points)
#
# The hook of a bucket's last gradient starts its all-reduce, and backward goes on.
#
# | | |
# |---|---|
# | call | `finish = overlapped(comm, params, buckets)`, once, before the first backward |
# | `params` | a list of parameters; before each backward every `p.grad` is None |
# | `buckets` | lists of positions in `params`, the same on all ranks |
# | afterwards | each backward starts buckets, on a lane: `comm.stream(all_reduce_, [gradients], "mean")` |
# | returns | `finish`, a function without arguments: afterwards every `p.grad` is the mean over all ranks |
# | cost | one all-reduce a bucket and step; as much of it as possible beside backward |
#
# **Invariants:** bucket k starts as soon as it is complete *and* all before it have started, on every rank, in whatever
# order the hooks fire there. `finish` is called after each backward, again and again. A rank may have no gradient for a
# parameter: it counts as zeros, and `finish` starts what the hooks could not. About 18 lines.
#
# <details><summary>Hint</summary>
#
# `p.register_post_accumulate_grad_hook(hook)` calls `hook(p)`. Count what is missing in each bucket, and keep a list of
# the works that were started: its length is the number of the next bucket. `all_reduce_` takes a list of tensors, sends
# it as one flat tensor, and puts the results back. In `finish`: start the rest, wait for all, and set everything back.
#
# </details>


# %% nbgrader={"grade_id": "overlapped", "solution": true}
def overlapped(comm, params, buckets):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    ### BEGIN SOLUTION
    missing, works = [len(b) for b in buckets], []

    def start():
        some = [params[i] for i in buckets[len(works)]]
        for p in some:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))

    def hook(k, p):
        missing[k] -= 1
        while len(works) < len(buckets) and missing[len(works)] == 0:
            start()

    def finish():
        while len(works) < len(buckets):
            start()
        for work in works:
            work.wait()
        works.clear()
        missing[:] = [len(b) for b in buckets]

    for k, bucket in enumerate(buckets):
        for i in bucket:
            params[i].register_post_accumulate_grad_hook(partial(hook, k))
    return finish
    ### END SOLUTION


# %% nbgrader={"grade_id": "overlapped_test", "points": 3}
check.overlapped(overlapped)

# %% [markdown] nbgrader={"grade_id": "overlapped_target"}
# **Target:** the lane's first messages leave in the middle of the computation; when it ends, one bucket is left.

# %%
device = Device("1 TFLOP/s", {torch.float32: 1e12}, 1 << 40, 1e15)
cluster = Cluster.uniform(4, 20e-6, 1 / 5e9, device)


def one_step(comm, buckets):
    model = mlp([256] * 7, device="meta")
    finish = overlapped(comm, list(model.parameters()), buckets)
    model(torch.empty(512, 256, device="meta")).sum().backward()
    finish()


buckets = [[11, 10, 9, 8], [7, 6, 5, 4], [3, 2, 1, 0]]
world = World(4, cluster=cluster, device="meta")
world.run(one_step, buckets)
study.timeline(
    {"three buckets": world.trace}, ranks=[0, 1], memory=False, title="Your step on 4 ranks"
)

# %% [markdown] nbgrader={"grade_id": "step_seconds_spec"}
# ## 4 · How long does it take? (2 points)
#
# | | |
# |---|---|
# | call | `step_seconds(nbytes, ready, n, alpha, beta)` |
# | `nbytes` | bytes of each bucket, in the order in which they start; multiples of n |
# | `ready` | when each is complete, seconds after backward began, ascending |
# | `n, alpha, beta` | ranks; seconds that a message takes to start, and seconds per byte |
# | returns | when the last bucket is averaged, seconds after backward began |
#
# All-reduces are rings, one after the other. Your formula is compared with the clock of a World, which knows none: it
# only moves messages. About 5 lines.
#
# <details><summary>Hint</summary>
#
# A ring takes 2(n−1) messages of 1/n of the bytes each. A bucket starts at the later of two times: when it is complete,
# and when the wire is free.
#
# </details>


# %% nbgrader={"grade_id": "step_seconds", "solution": true}
def step_seconds(nbytes, ready, n, alpha, beta):
    """Seconds until the last bucket is averaged."""
    ### BEGIN SOLUTION
    wire = 0.0
    for size, at in zip(nbytes, ready):
        wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)
    return wire
    ### END SOLUTION


# %% nbgrader={"grade_id": "step_seconds_test", "points": 2}
check.step_seconds(step_seconds)

# %% [markdown] nbgrader={"grade_id": "step_seconds_target"}
# **Target:** a valley. At its left many latencies, at its right a large bucket that starts late.


# %%
def split_into(b, N=400_000_000, backward=40e-3):
    return [N // b] * b, [backward * (k + 1) / b for k in range(b)]


counts = [1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 50, 80, 100, 160]
times = [step_seconds(*split_into(b), 16, 10e-6, 1 / 25e9) for b in counts]
study.curves(
    {"16 ranks": (counts, times)},
    logx=True,
    yunit="s",
    xlabel="buckets",
    ylabel="step",
    title="400 MB of gradients, 40 ms of backward",
)

# %% [markdown] nbgrader={"grade_id": "sync_statistics_spec"}
# ## 5 · The statistics of the whole batch (2 points)
#
# | | |
# |---|---|
# | call | `mean, var, count = sync_statistics(comm, x)` |
# | `x` | this rank's samples, (B, C), float64; B differs from rank to rank, and may be 0; **not changed** |
# | returns | mean (C,) and variance (C,) of all ranks' samples, and their number |
# | cost | a few numbers per channel, however many samples |
#
# The variance divides by all samples, not by one less. **Invariant:** as exact as if one rank had the whole batch, also
# where the mean is a million and the variance 1. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Two ways. Gather everyone's mean, Σ(x − mean)² and count, and merge: squares add up, plus count · (distance of the
# means)². Or all-reduce sums and counts first, and squares around the common mean afterwards. The mean of no samples
# is nan: divide by `max(1, len(x))`.
#
# </details>


# %% nbgrader={"grade_id": "sync_statistics", "solution": true}
def sync_statistics(comm, x):
    """Mean, variance and number of all ranks' samples."""
    ### BEGIN SOLUTION
    mean = x.sum(0) / max(1, len(x))
    mine = torch.stack([mean, (x - mean).square().sum(0), torch.full_like(mean, len(x))])
    means, squares, counts = all_gather(comm, mine[None]).unbind(1)
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
data = torch.arange(1.0, 7.0, dtype=torch.float64)[:, None] + 1e6
found = World(3).run(lambda comm: sync_statistics(comm, data.tensor_split([3, 5])[comm.rank]))
study.bars(
    {f"rank {r}": float(var) for r, (_, var, _) in enumerate(found)},
    target=35 / 12,
    note="variance of all six",
    title="Variance of 1,000,001 … 1,000,006, in parts of 3, 2 and 1",
)

# %% [markdown] nbgrader={"grade_id": "sync_backward_spec"}
# ## 6 · Backward through the whole batch (2 points)
#
# Batch norm's output is x̂ = (x − mean)·scale, with scale = 1/√(var + ε). The layers above send dy back.
# Mean and variance depend on every rank's samples, and so does dx:
#
# $$dx = \mathrm{scale}\cdot\left(dy - \frac{1}{m}\sum dy - \hat x\,\frac{1}{m}\sum dy\,\hat x\right)$$
#
# | | |
# |---|---|
# | call | `dx = sync_backward(comm, dy, xhat, scale, count)` |
# | `dy, xhat` | of this rank's samples, (B, C), float64; B may be 0; **not changed** |
# | `scale, count` | (C,), and m, the number of all ranks' samples |
# | returns | dx of this rank's samples, (B, C) |
# | cost | one exchange of 2C numbers |
#
# About 4 lines.
#
# <details><summary>Hint</summary>
#
# Both sums are known to each rank for its own samples. `torch.stack` them, and all-reduce once.
#
# </details>


# %% nbgrader={"grade_id": "sync_backward", "solution": true}
def sync_backward(comm, dy, xhat, scale, count):
    """The gradient of this rank's samples, through the statistics of all."""
    ### BEGIN SOLUTION
    sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
    all_reduce_(comm, sums)
    return scale * (dy - sums[0] / count - xhat * sums[1] / count)
    ### END SOLUTION


# %% nbgrader={"grade_id": "sync_backward_test", "points": 2}
check.sync_backward(sync_backward)

# %% [markdown] nbgrader={"grade_id": "sync_backward_target"}
# **Target:** no bar for yours. The upper bar: nobody exchanges anything, every rank takes its part for
# the batch.

# %%
random = torch.Generator().manual_seed(6)
x, dy = (torch.randn(12, 4, generator=random, dtype=torch.float64) for _ in range(2))


def norm_backward(comm, x, dy, alone):
    mine = slice(0, len(x)) if comm.size == 1 else slice(*((0, 5), (5, 10), (10, 12))[comm.rank])
    mean, var, count = sync_statistics(comm, x[mine])
    scale = (var + 1e-5).rsqrt()
    xhat = (x[mine] - mean) * scale
    if alone:
        return World(1).run(lambda one: sync_backward(one, dy[mine], xhat, scale, len(xhat)))[0]
    return sync_backward(comm, dy[mine], xhat, scale, count)


leaf = x.clone().requires_grad_()
batch_norm(leaf, None, None, training=True).backward(dy)
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

# %% [markdown] nbgrader={"grade_id": "predict_overlap_spec"}
# ## 7 · Predict, then run (2 points)
#
# 16 ranks, 160 gradients of 2.5 MB each (400 MB in all), in 10 equal buckets. Backward takes 40 ms and computes them at
# an even pace. α = 10 µs, β = 1/(25 GB/s), rings.
#
# - `saved`: how many messages a step does each rank save, against one all-reduce for each gradient?
# - `bucket`: how long does the all-reduce of one bucket take, in seconds?
# - `afterwards`: from the beginning of backward until all is averaged, if the 10 all-reduces come after backward?
# - `beside`: the same with overlap?
# - `slow`: with overlap, on a wire of half the speed (12.5 GB/s)?
# - `smallest`: buckets may be any size now, on the fast wire. The smallest one, in bytes, whose all-reduce is over
#   before the next bucket of this size is complete?
# - `variance`: batch norm. Four ranks have equally many samples, with means 1, 2, 3 and 4, and a variance of 2 on each
#   rank. The variance of all samples?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_overlap", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_overlap.numbers(STUDENT)
saved = bucket = afterwards = beside = slow = smallest = variance = None
### BEGIN SOLUTION
n = 16
N = 400e6
b = 10
T = 40e-3
alpha = 10e-6
beta = 1 / 25e9
saved = 2 * (n - 1) * (160 - b)
bucket = 2 * (n - 1) * (alpha + N / b / n * beta)
afterwards = T + b * bucket
beside = T + bucket
slow = T / b + b * 2 * (n - 1) * (alpha + N / b / n * 2 * beta)
smallest = 2 * (n - 1) * alpha / (T / N - 2 * (n - 1) / n * beta)
variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4
### END SOLUTION

# %% nbgrader={"grade_id": "predict_overlap_test", "points": 2}
check.predict_overlap(saved, bucket, afterwards, beside, slow, smallest, variance, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_overlap_target"}
# **Target:** your numbers beside those of a World. (No GPU: tensors on the device `"meta"` have no numbers.)


# %%
def ten_buckets(comm, overlap):
    works = []
    for _ in range(10):
        a = torch.empty(1, round(4e-3 * 1e12 / 2), device="meta")
        a @ a.T  # 4 ms of computing
        works.append(torch.empty(40_000_000, dtype=torch.uint8, device="meta"))
        works[-1] = comm.stream(all_reduce_, works[-1]) if overlap else works[-1]
    for work in works:
        if overlap:
            work.wait()
        else:
            all_reduce_(comm, work)


machine = Device("1 TFLOP/s", {torch.float32: 1e12}, 1 << 40, 1e30)
rows = []
for name, yours, overlap, rate in (
    ("afterwards", afterwards, False, 25e9),
    ("beside", beside, True, 25e9),
    ("slow", slow, True, 12.5e9),
):
    world = World(16, cluster=Cluster.uniform(16, 10e-6, 1 / rate, machine), device="meta")
    world.run(ten_buckets, overlap)
    rows.append([f"{name}, ms", 1e3 * yours, 1e3 * world.time])
study.table(rows, ["", "predicted", "run"])

# %% [markdown] nbgrader={"grade_id": "accumulate_overlapped_spec"}
# ## 8 · Find the bug (2 points)
#
# Gradients of several micro-batches add up, and are averaged once, beside the backward. The next cell was found in
# somebody's code. With one micro-batch it is right.


# %% nbgrader={"grade_id": "accumulate_overlapped_broken"}
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the computation."""
    missing, works = [len(b) for b in buckets], []

    def hook(k, p):
        missing[k] -= 1
        while len(works) < len(buckets) and missing[len(works)] <= 0:
            works.append(
                comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]], "mean")
            )

    handles = [
        params[i].register_post_accumulate_grad_hook(partial(hook, k))
        for k, bucket in enumerate(buckets)
        for i in bucket
    ]
    for backward in backwards:
        backward()
    for work in works:
        work.wait()
    for handle in handles:
        handle.remove()


# %%
def gaps(comm, accumulate, steps=10):
    """How far this rank's weights are from rank 0's after each step of two micro-batches."""
    model = mlp([3, 5, 2], dtype=torch.float64)
    params, found = list(model.parameters()), []
    optimizer = torch.optim.SGD(params, lr=0.1)

    def backward():
        loss = model(torch.randn(4, 3, dtype=torch.float64)).square().mean() / 2
        loss.backward()
        all_reduce_(comm, loss.detach(), op="mean")  # for the log

    for _ in range(steps):
        optimizer.zero_grad()
        accumulate(comm, params, [backward, backward], [[3, 2], [1, 0]])
        optimizer.step()
        mine = torch.nn.utils.parameters_to_vector(params).detach()
        found.append(float((mine - all_gather(comm, mine)[: len(mine)]).abs().max()))
    return found


broken = World(4).run(gaps, accumulate_overlapped)
study.curves(
    {"any rank": (range(1, 11), [max(step) for step in zip(*broken)])},
    xlabel="step",
    ylabel="largest difference from rank 0's weights",
    title="Replicas that should be equal",
)

# %% [markdown] nbgrader={"grade_id": "accumulate_overlapped_task"}
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `accumulate_overlapped(comm, params, backwards, buckets)` |
# | `backwards` | a list of functions; each runs the forward and backward of one micro-batch |
# | afterwards | every `p.grad` is the mean over all ranks of what all backwards have added up; no hook is left |
# | returns | nothing |
# | cost | one all-reduce a bucket, however many micro-batches, beside the last backward |
#
# <details><summary>Hint</summary>
#
# When is a bucket complete? In which backward do the hooks start it?
#
# </details>


# %% nbgrader={"grade_id": "accumulate_overlapped", "solution": true}
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last."""
    ### BEGIN SOLUTION
    missing, works = [len(b) for b in buckets], []

    def hook(k, p):
        missing[k] -= 1
        while len(works) < len(buckets) and missing[len(works)] <= 0:
            works.append(
                comm.stream(all_reduce_, [params[i].grad for i in buckets[len(works)]], "mean")
            )

    for backward in backwards[:-1]:
        backward()
    handles = [
        params[i].register_post_accumulate_grad_hook(partial(hook, k))
        for k, bucket in enumerate(buckets)
        for i in bucket
    ]
    backwards[-1]()
    for work in works:
        work.wait()
    for handle in handles:
        handle.remove()
    ### END SOLUTION


# %% nbgrader={"grade_id": "accumulate_overlapped_test", "points": 2}
check.accumulate_overlapped(accumulate_overlapped)

# %% [markdown] nbgrader={"grade_id": "accumulate_overlapped_target"}
# **Target:** no difference, bit for bit.

# %%
repaired = World(4).run(gaps, accumulate_overlapped)
study.bars(
    {"broken": max(map(max, broken)), "repaired": max(map(max, repaired))},
    title="Largest difference between replicas in 10 steps",
)
