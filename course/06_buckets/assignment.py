# %% [markdown] nbgrader={"grade_id": "top"}
# # 06 · Buckets and overlap: exercises
#
# You build what makes data parallelism fast, including what the lesson left out: several dtypes, aligned buffers, and a
# limit to what is in flight. And you find two bugs in code that accumulates micro-batches.
#
# There are seven exercises, worth 15 points. Each of the first six ends with a check, which tries your function on 1 to
# 5 ranks of a World whose clock counts computation and messages, then in real processes, and says what is wrong. Try as
# often as you like. The check does not show what your function prints; to see that, run the function in a `World` of
# your own. The seventh is an open question, worth 2 points, which your teacher grades. An answer that gives the right
# numbers but takes more messages, bytes or time than it may earns half of the points.
#
# You may call `minidist.collectives`. Calls to the library's own data parallelism (`minidist.parallel`) and to
# PyTorch's are refused. Wait for everything that you post before you return (in `finish`, where there is one). A nan in
# one rank's numbers must become a nan in everybody's, and must not be hidden.

# %% nbgrader={"grade_id": "setup"}
from functools import partial

import torch
from torch.nn.functional import pad

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World
from minidist.comm.cluster import Cluster, Device
from minidist.models import mlp

# %% [markdown] nbgrader={"grade_id": "assign_buckets_spec"}
# ## 1 · Which gradients share a bucket? (2 points)
#
# In mixed precision the gradients of a model have two dtypes, but a flat tensor has only one. So several buckets are
# being filled at the same time, one for each dtype. And the first bucket of each dtype is small, so that the wire has
# something to do early.
#
# | | |
# |---|---|
# | call | `assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes)` |
# | `nbytes` | bytes of each gradient, in the order of the parameters, a list of integers, perhaps empty; **not changed** |
# | `dtypes` | the dtype of each, a list of strings, such as `"float32"`; **not changed** |
# | `bucket_bytes` | the room in a bucket; the first one of each dtype has `first_bucket_bytes` instead, which may be less or more |
# | returns | a list of buckets, each a list of positions in `nbytes` |
#
# Gradients become ready from the last position down to 0. Each goes into the bucket of its dtype that is being filled,
# if it fits; it fits if the bucket is exactly full with it. A gradient that does not fit closes that bucket for good,
# and opens the next bucket of its dtype. If it is larger than the room in a whole bucket, it is the only gradient in
# the bucket that it opens. None of this affects the buckets of other dtypes.
#
# **Invariants:** in a bucket the positions go down. The bucket that is *complete* first stands first: a bucket is complete
# when its last gradient is ready. Every position is in one bucket, once. No bucket is empty. About 10 lines.
#
# <details><summary>Hint</summary>
#
# Go through the positions in reverse. For each dtype keep the bucket that is being filled, and the bytes that are still
# free in it, in a dictionary. Sort the buckets at the end.
#
# </details>


# %% nbgrader={"grade_id": "assign_buckets", "solution": true}
def assign_buckets(nbytes, dtypes, bucket_bytes, first_bucket_bytes):
    """Positions of the gradients in each bucket, in the order in which the buckets are complete."""
    ### BEGIN SOLUTION
    buckets = []
    filling = {}  # of each dtype: the bucket that takes the next gradient, and the bytes free in it
    for i in reversed(range(len(nbytes))):
        bucket, free = filling.get(dtypes[i], ([], -1))
        if nbytes[i] > free:
            free = bucket_bytes if dtypes[i] in filling else first_bucket_bytes
            bucket = []
            buckets.append(bucket)
        bucket.append(i)
        filling[dtypes[i]] = bucket, free - nbytes[i]
    return sorted(buckets, key=lambda bucket: -bucket[-1])
    ### END SOLUTION


# %% nbgrader={"grade_id": "assign_buckets_test", "points": 2}
check.assign_buckets(assign_buckets)

# %% [markdown] nbgrader={"grade_id": "assign_buckets_target"}
# **Target:** the first bucket of each dtype has at most 100 bytes, and the others at most 300; the gradient of 400
# bytes is alone. The lowest positions of the buckets go down.
#
# This cell runs your function in the notebook itself, not in a process of its own, so it is stopped after ten seconds.

# %%
nbytes = [400, 16, 200, 20, 240, 60, 120, 12, 60, 10]
dtypes = ["float32", "bfloat16"] * 5
with check.limit(10):
    buckets = assign_buckets(nbytes, dtypes, 300, 100)
study.table(
    [
        (k, dtypes[b[0]], ", ".join(map(str, b)), sum(nbytes[i] for i in b))
        for k, b in enumerate(buckets)
    ],
    ["bucket", "dtype", "gradients", "bytes"],
    title="Your buckets for 10 gradients",
)

# %% [markdown] nbgrader={"grade_id": "bucketed_spec"}
# ## 2 · One aligned message for many gradients (2 points)
#
# Every rank has run its backward, and the gradients are wherever PyTorch has put them. Average them all, with one
# all-reduce for each bucket. GPUs move memory fastest from addresses that are multiples of 16 bytes or more, so each
# gradient is to begin at a multiple of `align` elements in its flat tensor.
#
# | | |
# |---|---|
# | call | `bucketed(comm, params, buckets, align)` |
# | `params` | a list of parameters of any shape; every `p.grad` is there, all of one dtype, float32 or float64, contiguous or not |
# | `buckets` | lists of positions in `params`, in any order, each position once; **not changed** |
# | `align` | elements, 1 or more |
# | afterwards | every `p.grad` is the mean over all ranks, bit for bit the same on every rank, and a view of its bucket's flat tensor; the parameters are untouched |
# | returns | nothing; a value that you return is ignored |
# | cost | for each bucket 2(n−1) messages per rank and 2(n−1)/n·N bytes, where N is the number of bytes in its gradients and their padding |
#
# **Invariants:** the gradients of a bucket lie in one flat tensor, in the order of the bucket, and each bucket has a
# flat tensor of its own. A gradient's storage offset is a multiple of `align`, and it takes no more room than its
# length, rounded up to such a multiple. About 7 lines.
#
# <details><summary>Hint</summary>
#
# `pad(x, (0, k))` appends k zeros to a flat x, and −length % align zeros are missing. Then `torch.cat`, an all-reduce, and `split`
# by the padded lengths. A piece of a `split` is a view, and so is the beginning of a piece.
#
# </details>


# %% nbgrader={"grade_id": "bucketed", "solution": true}
def bucketed(comm, params, buckets, align):
    """Make every p.grad its mean over all ranks, and an aligned view of its bucket."""
    ### BEGIN SOLUTION
    for bucket in buckets:
        some = [params[i] for i in bucket]
        padded = [pad(p.grad.reshape(-1), (0, -p.numel() % align)) for p in some]
        flat = torch.cat(padded)
        all_reduce_(comm, flat, op="mean")
        for p, piece in zip(some, flat.split([len(x) for x in padded])):
            p.grad = piece[: p.numel()].view_as(p)
    ### END SOLUTION


# %% nbgrader={"grade_id": "bucketed_test", "points": 2}
check.bucketed(bucketed)

# %% [markdown] nbgrader={"grade_id": "bucketed_target"}
# **Target:** 12 bars in place of 36, and nearly the same bytes: two all-reduces for six gradients. The gaps are the
# latencies.


# %%
def exchange(comm, buckets):
    params = list(mlp([300] * 4, device="meta").parameters())
    for p in params:
        p.grad = torch.empty_like(p)
    bucketed(comm, params, buckets, 8)


ways = {"six buckets": [[5], [4], [3], [2], [1], [0]], "two buckets": [[5, 4, 3], [2, 1, 0]]}
worlds = {name: World(4, device="meta") for name in ways}
with check.limit(10):
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
# The hook of a bucket's last gradient starts its all-reduce, and backward goes on. But each bucket that is under way
# holds memory, and on a slow wire the buckets pile up. So at most `most` of them may be in flight.
#
# | | |
# |---|---|
# | call | `finish = overlapped(comm, params, buckets, most)`, once, before the first backward |
# | `params` | a list of parameters; before each backward every `p.grad` is None |
# | `buckets` | lists of positions in `params`, the same on all ranks |
# | `most` | how many buckets may be in flight, 1 or more: a bucket is in flight from its start until it has been waited for |
# | afterwards | each backward starts buckets, on a lane: `comm.stream(all_reduce_, [gradients], "mean")` |
# | returns | `finish`, a function without arguments: when it returns, every `p.grad` is the mean over all ranks; the parameters are untouched |
# | cost | one all-reduce for each bucket and step; as much of it as possible beside backward |
#
# **Invariants:** bucket k starts as soon as it is complete *and* all before it have started, on every rank, in whatever
# order the hooks fire there. Before bucket k starts, bucket k − `most` has been waited for, in the hook if need be. `finish` is
# called after each backward, again and again. A rank may have no gradient for a parameter: it counts as zeros, and `finish`
# starts what the hooks could not. About 20 lines.
#
# <details><summary>Hint</summary>
#
# `p.register_post_accumulate_grad_hook(hook)` calls `hook(p)`. Count how many gradients are still missing in each
# bucket, and keep a list of the works that were started: its length is the number of the next bucket. Waiting for a
# work twice does no harm. `all_reduce_` takes a list of tensors, sends it as one flat tensor, and puts the results
# back. In `finish`, start the remaining buckets, wait for all, and set everything back.
#
# </details>


# %% nbgrader={"grade_id": "overlapped", "solution": true}
def overlapped(comm, params, buckets, most):
    """Start each bucket beside backward. Returns a function that waits until all are averaged."""
    ### BEGIN SOLUTION
    missing, works = [len(b) for b in buckets], []

    def start():
        if len(works) >= most:
            works[-most].wait()
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
# **Target:** the lane's first messages leave in the middle of the computation; when the computation ends, only one
# bucket is left.

# %%
device = Device("1 TFLOP/s", {torch.float32: 1e12}, 1 << 40, 1e15)
cluster = Cluster.uniform(4, 20e-6, 1 / 5e9, device)


def one_step(comm, buckets):
    model = mlp([256] * 7, device="meta")
    finish = overlapped(comm, list(model.parameters()), buckets, 2)
    model(torch.empty(512, 256, device="meta")).sum().backward()
    finish()


buckets = [[11, 10, 9, 8], [7, 6, 5, 4], [3, 2, 1, 0]]
world = World(4, cluster=cluster, device="meta")
with check.limit(10):
    world.run(one_step, buckets)
study.timeline(
    {"three buckets": world.trace}, ranks=[0, 1], memory=False, title="Your step on 4 ranks"
)

# %% [markdown] nbgrader={"grade_id": "step_seconds_spec"}
# ## 4 · How long does it take? (2 points)
#
# How long does a step take, with the limit of exercise 3? If bucket k is complete before bucket k − `most` is averaged,
# the hook waits for that bucket, and backward stands still. Everything that backward has yet to compute is then that
# much later.
#
# | | |
# |---|---|
# | call | `step_seconds(nbytes, ready, n, alpha, beta, most)` |
# | `nbytes` | bytes of each bucket, in the order in which they start, one or more; multiples of n; **not changed** |
# | `ready` | when each would be complete if backward never stood still, in seconds after it began, ascending; **not changed** |
# | `n, alpha, beta` | the number of ranks, 1 or more; the seconds that a message takes to start; and the seconds per byte |
# | `most` | how many buckets may be in flight, 1 or more |
# | returns | when the last bucket is averaged, in seconds after backward began |
#
# The all-reduces are rings, and run one after another. Your formula is compared, to four digits, with the clock of a
# World, which knows no formula: it only moves messages. About 9 lines.
#
# <details><summary>Hint</summary>
#
# A ring takes 2(n−1) messages of 1/n of the bytes each. A bucket starts at the later of two times: when it is complete, and
# when the wire is free. Keep the time at which each bucket ended, and how long backward has stood still so far.
#
# </details>


# %% nbgrader={"grade_id": "step_seconds", "solution": true}
def step_seconds(nbytes, ready, n, alpha, beta, most):
    """Seconds until the last bucket is averaged, with at most `most` of them in flight."""
    ### BEGIN SOLUTION
    ends = []
    stalled = 0.0
    wire = 0.0
    for size, at in zip(nbytes, ready):
        at += stalled
        if len(ends) >= most:
            stalled += max(0.0, ends[-most] - at)
            at = max(at, ends[-most])
        wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)
        ends.append(wire)
    return wire
    ### END SOLUTION


# %% nbgrader={"grade_id": "step_seconds_test", "points": 2}
check.step_seconds(step_seconds)

# %% [markdown] nbgrader={"grade_id": "step_seconds_target"}
# **Target:** a valley. On its left there is one large bucket, which starts late, and on its right there are many
# latencies. (For equal buckets at an even pace the limit changes nothing: either the wire keeps up, or it never rests.)
# The second picture has unequal buckets: four of 80 MB within 8 ms, and eight of 10 MB within the next 32 ms. With one
# in flight, backward stands still while the large ones travel, and a step takes 56 ms; with twelve it takes 41 ms.


# %%
def split_into(b, N=400_000_000, backward=40e-3):
    return [N // b] * b, [backward * (k + 1) / b for k in range(b)]


counts = [1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 50, 80, 100, 160]
with check.limit(10):
    times = [step_seconds(*split_into(b), 16, 10e-6, 1 / 25e9, 160) for b in counts]
study.curves(
    {"16 ranks": (counts, times)},
    logx=True,
    yunit="s",
    xlabel="buckets",
    ylabel="step",
    title="400 MB of gradients, 40 ms of backward",
)

# %%
uneven_bytes = [80_000_000] * 4 + [10_000_000] * 8
uneven_ready = [2e-3, 4e-3, 6e-3, 8e-3] + [8e-3 + 4e-3 * k for k in range(1, 9)]
times = {}
with check.limit(10):
    for most in (1, 2, 4, 12):
        name = f"in flight: {most}"
        times[name] = step_seconds(uneven_bytes, uneven_ready, 16, 10e-6, 1 / 25e9, most)
study.bars(
    times,
    unit="s",
    target=40e-3,
    note="backward alone",
    title="Four large buckets early, eight small ones late",
)

# %% [markdown] nbgrader={"grade_id": "predict_overlap_spec"}
# ## 5 · Predict, then run (2 points)
#
# 16 ranks average 160 gradients of 2.5 MB each (400 MB in all), in 10 equal buckets. Backward takes 40 ms and computes
# them at an even pace. α = 10 µs, β = 1/(25 GB/s), and all collectives are rings.
#
# - `saved`: how many messages does each rank save in a step, compared with one all-reduce for each gradient?
# - `bucket`: how many seconds does the all-reduce of one bucket take?
# - `afterwards`: how many seconds pass from the beginning of backward until all is averaged, if the 10 all-reduces come
#   after backward?
# - `beside`: how many seconds is it with overlap?
# - `slow`: and how many with overlap, on a wire of half the speed (12.5 GB/s)?
# - `smallest`: now the buckets may have any size, on the fast wire. How many bytes does the smallest bucket have whose
#   all-reduce is over before the next bucket of this size is complete?
#
# Write numbers or formulas. They are right within 1 %.

# %% nbgrader={"grade_id": "predict_overlap", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_overlap.numbers(STUDENT)
saved = bucket = afterwards = beside = slow = smallest = None
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
### END SOLUTION

# %% nbgrader={"grade_id": "predict_overlap_test", "points": 2}
check.predict_overlap(saved, bucket, afterwards, beside, slow, smallest, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_overlap_target"}
# **Target:** your numbers beside those of a World with 16 ranks and 10 buckets, as in the text above, whatever numbers your
# name has given you. (This needs no GPU: tensors on the device `"meta"` have a shape but no numbers.)


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
# ## 6 · Find the bugs (2 points)
#
# The gradients of several micro-batches add up, and are averaged once, beside the last backward. The next cell was
# found in somebody's code. With one micro-batch that reaches every parameter it is right. It has two bugs; the picture
# shows one of them.


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
# | `params` | a list of parameters; at first each `p.grad` is None |
# | `backwards` | a list of functions, one or more; each runs the forward and backward of one micro-batch, and is to be called once |
# | `buckets` | lists of positions in `params`, the same on all ranks |
# | afterwards | every `p.grad` is the mean over all ranks of what all backwards have added up; no hook of any kind is left; the parameters are untouched |
# | returns | nothing; a value that you return is ignored |
# | cost | one all-reduce for each bucket, however many micro-batches there are, beside the last backward |
#
# A micro-batch need not reach every parameter, and the last one may leave out what an earlier one has reached. If no
# micro-batch of a rank reaches a parameter, it counts as zeros there. The buckets start in their order on every rank,
# in whatever order hooks fire.
#
# <details><summary>Hint</summary>
#
# When is a bucket complete? In which backward do the hooks start it? And who starts it if one of its hooks never fires there?
#
# </details>


# %% nbgrader={"grade_id": "accumulate_overlapped", "solution": true}
def accumulate_overlapped(comm, params, backwards, buckets):
    """Run all backwards; average what they have added up, beside the last one."""
    ### BEGIN SOLUTION
    missing, works = [len(b) for b in buckets], []

    def start():
        some = [params[i] for i in buckets[len(works)]]
        for p in some:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))

    def hook(k, p):
        missing[k] -= 1
        while len(works) < len(buckets) and missing[len(works)] <= 0:
            start()

    for backward in backwards[:-1]:
        backward()
    handles = [
        params[i].register_post_accumulate_grad_hook(partial(hook, k))
        for k, bucket in enumerate(buckets)
        for i in bucket
    ]
    backwards[-1]()
    while len(works) < len(buckets):
        start()
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
with check.limit(10):
    repaired = World(4).run(gaps, accumulate_overlapped)
study.bars(
    {"broken": max(map(max, broken)), "repaired": max(map(max, repaired))},
    title="Largest difference between replicas in 10 steps",
)

# %% [markdown] nbgrader={"grade_id": "slowest_wire_spec"}
# ## 7 · How slow may the wire be? (2 points, graded by hand)
#
# 16 ranks have 400 MB of gradients in equal buckets, and a backward of 40 ms that computes them at an even pace. α = 10
# µs, and any number of buckets may be in flight. **What is the slowest wire, in GB/s, on which a step still takes 44 ms
# at most, 10 % more than backward alone, and with how many buckets?**
#
# Answer with a plot and about ten sentences. Your `step_seconds` and the `split_into` of exercise 4 compute a step in
# no time. Your teacher gives:
#
# - **1 point for the derivation.** On a slow wire all buckets but the first have to queue. Give a formula for the time
#   of a step with b buckets on such a wire, with a reason for each of its three terms, and derive from it the best b
#   and the slowest wire, as numbers.
# - **1 point for the plot and what it shows.** The plot has the time of a step with the best number of buckets for at
#   least eight rates of the wire, from 5 GB/s to 100 GB/s, with names and units on both axes. Say what a slower wire
#   costs and why overlap cannot hide it, why a faster one gains next to nothing, and how the best number of buckets
#   changes from one end to the other.


# %% nbgrader={"grade_id": "slowest_wire_plot", "solution": true}
### BEGIN SOLUTION
rates = [5, 7, 10, 14, 20, 30, 50, 100]  # GB/s


def best_step(rate):
    return min(step_seconds(*split_into(b), 16, 10e-6, 1 / (rate * 1e9), b) for b in counts)


study.curves(
    {
        "the best number of buckets": (rates, [best_step(rate) for rate in rates]),
        "6.9 ms + 2(n−1)/n·Nβ": (rates, [6.9e-3 + 0.75 / rate for rate in rates]),
        "backward and 10 %": (rates, [44e-3] * len(rates)),
    },
    logx=True,
    logy=True,
    yunit="s",
    xlabel="rate of the wire, GB/s",
    ylabel="step",
    title="16 ranks, 400 MB of gradients, 40 ms of backward",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "slowest_wire", "solution": true, "points": 2}
# On a slow wire the first bucket starts when it is complete, after T/b with T = 40 ms, and from then on the wire never
# rests. It carries 2(n−1)/n·N bytes in all, 750 MB, however they are cut, and starts 2(n−1) messages for each bucket.
# So the step takes T/b + b·2(n−1)α + 2(n−1)/n·Nβ. Only the first two terms depend on b. Their sum is least where they
# are equal: b = √(T/(2(n−1)α)) = √(40 ms / 0.3 ms) = 11.5, so 11 or 12 buckets, and then it is 6.9 ms. That leaves 44
# ms − 6.9 ms = 37.1 ms for 750 MB, so the wire must carry 20.2 GB/s.
#
# Below that the curve follows 6.9 ms + 750 MB/rate: with half the rate the step takes nearly twice as long, 82 ms at 10
# GB/s. Overlap hides at most what fits beside backward, and there is more to send than that. Above it the curve is
# flat, because no step is shorter than backward and the last bucket: 41.2 ms at 25 GB/s, and 40.4 ms at 100 GB/s. There
# the wire keeps up, so that only the last bucket is seen, and small buckets are best, as long as their latencies fit
# beside backward: the best of the numbers tried goes from 10 buckets at 5 GB/s to 100 at 100 GB/s.
