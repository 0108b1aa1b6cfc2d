# %% [markdown]
# # 06 · Buckets, overlap, SyncBatchNorm
#
# Four GPUs train a model of 8 million weights. A step's forward and backward take 3.6 ms on each. Averaging the
# gradients, one after the other as in lesson 05, takes another 4.3 ms. Together 7.9 ms.
# **How short can the step become, in ms?** No byte less may be sent.

# %%
guess = 7.9  # ms: change this number

# %% [markdown]
# ## On paper: 6 gradients, ready one a second
#
# A message takes 1 s to start, and ½ s for each gradient in it. The wire carries one message at a time.
# Six messages after backward: 6 + 6 · 1½ = 15 s. What if two gradients share a message? What if all six do?
# And what if a message may leave while backward goes on, **beside** it? `schedule` says when each message leaves and
# ends. (In the picture a **lane** is a rank's second line of work, for messages.)

# %%
from functools import partial

import torch
from IPython.display import display
from torch import nn
from torch.nn.functional import cross_entropy

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World, launch
from minidist.comm.cluster import Cluster
from minidist.comm.cluster import H100
from minidist.comm.trace import Trace
from minidist.models import mlp


def schedule(shares, overlap):
    ready = 0
    wire = 0 if overlap else sum(shares)
    times = []
    for share in shares:
        ready += share  # a gradient a second: now this message is complete
        start = max(ready, wire)
        wire = start + 1 + share / 2
        times.append((share, start, wire))
    return times


# %%
def drawn(shares, overlap):
    trace, g = Trace(2), 6
    for t in range(6):
        trace.spans.add(0, "main", "compute", t, t + 1, f"gradient {6 - t}")
    for share, start, end in schedule(shares, overlap):
        names = " ".join(f"g{g - i}" for i in range(share))
        trace.add(0, 1, share, start, end, end, names, "lane 0")
        g -= share
    return trace


cuts = {"one by one": [1] * 6, "in pairs": [2] * 3, "all in one": [6]}
plans = {f"{name}, afterwards": drawn(shares, False) for name, shares in cuts.items()}
for name in ("one by one", "in pairs"):
    plans[f"{name}, beside"] = drawn(cuts[name], True)
study.timeline(plans, ranks=[0], title="Six gradients, five ways to send them")

# %% [markdown]
# One message of all six saves five starts: 10 s. But nothing can leave before the last gradient is there.
# Pairs start three times, and two of the three travel while backward runs: 8 s. That is lesson 06: **buckets**,
# and **overlap**.

# %% [markdown]
# ## The naive step, measured
#
# 8 layers of 1,024 × 1,024, a batch of 2,560 on each of 4 GPUs. We need no GPU: on the device `"meta"` tensors have a
# shape and no numbers, and the World charges each operation the time that an H100 would take. A GPU reaches only a part
# of its data sheet, and the World counts with that part. A message takes 20 µs to start, the wire carries 25 GB/s.

# %%
ALPHA = 20e-6
BETA = 1 / 25e9
MB = 10**6


def network(comm):
    return mlp([1024] * 9, device=comm.device)


def backward(comm, model):
    model(torch.empty(2560, 1024, device=comm.device)).sum().backward()


# %%
def naive(comm, average=True):
    model = network(comm)
    backward(comm, model)
    for p in model.parameters() if average else []:
        all_reduce_(comm, p.grad, op="mean")


def run(program, *args):
    world = World(4, cluster=Cluster.uniform(4, ALPHA, BETA, H100), device="meta")
    world.run(program, *args)
    return world


one_by_one, computing = run(naive), run(naive, False).time
assert 7.81e-3 < one_by_one.time < 7.91e-3 and 3.50e-3 < computing < 3.60e-3
print(f"{1e3 * one_by_one.time:.1f} ms, of which forward and backward {1e3 * computing:.1f} ms")
study.timeline(
    {"one by one": one_by_one.trace}, ranks=[0, 1], memory=False, title="Compute, then talk"
)

# %% [markdown]
# Every second all-reduce is for a bias of 4 kB. It takes 2(n−1) messages like any other: 6 · 20 = 120 µs of latency.
#
# ## Step 1: buckets
#
# Put gradients together until a bucket is full. In which order? Backward begins at the *last* layer. So its gradients
# are ready first, and buckets are filled from the back.


# %%
def fill(params, room):
    """Lists of parameters, each of at most `room` bytes; those whose gradients are ready first in front."""
    buckets, free = [], 0
    for p in reversed(list(params)):
        if p.nbytes > free:
            buckets.append([])
            free = room
        buckets[-1].append(p)
        free -= p.nbytes
    return buckets


names = {p: name for name, p in mlp([4, 4, 4, 4]).named_parameters()}
rows = [
    (k, ", ".join(names[p] for p in b), sum(p.nbytes for p in b))
    for k, b in enumerate(fill(names, 128))
]
study.table(
    rows, ["bucket", "gradients", "bytes"], title="Three layers of 4 × 4, in buckets of 128 bytes"
)

# %% [markdown]
# ## Step 2: gradients as views
#
# A bucket is one flat tensor. Copy the gradients in, send, copy them out? There is a way without copies:
# let each `p.grad` *be* a piece of the bucket. Backward adds to `p.grad` in place, so it fills the bucket by itself.


# %%
def flat(bucket):
    """One tensor of zeros with room for all gradients of the bucket; each p.grad is a view of it."""
    buffer = torch.zeros(
        sum(p.numel() for p in bucket), dtype=bucket[0].dtype, device=bucket[0].device
    )
    for p, piece in zip(bucket, buffer.split([p.numel() for p in bucket])):
        p.grad = piece.view_as(p)
    return buffer


model = mlp([2, 3, 1])
[buffer] = [flat(b) for b in fill(model.parameters(), 1000)]
model(torch.ones(1, 2)).sum().backward()
assert all(
    p.grad.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    for p in model.parameters()
)
assert buffer.any() and torch.equal(buffer[-6:].view(3, 2), model[0].weight.grad)

# %% [markdown]
# From here on nobody may set `p.grad` to None: `zero_grad(set_to_none=False)`, or zero the buckets.
#
# The exchange is one all-reduce a bucket. P gradients in b buckets: 2(n−1) · b messages instead of 2(n−1) · P.
# **Predict the number of messages** for buckets of 10 MB, then run. (A layer has 4.2 MB.)


# %%
def bucketed(comm, room):
    model = network(comm)
    buffers = [flat(b) for b in fill(model.parameters(), room)]
    backward(comm, model)
    for buffer in buffers:
        all_reduce_(comm, buffer, op="mean")


ROOMS = (1, 5, 10, 20, 40)
packed = {room: run(bucketed, room * MB) for room in ROOMS}
rows = [("one by one", 16, one_by_one.trace.messages(0), 0)]
for room, world in packed.items():
    b = len(fill(network(world).parameters(), room * MB))
    assert world.trace.messages(0) == 6 * b
    rows.append((f"{room} MB", b, 6 * b, 6 * (16 - b)))
display(study.table(rows, ["buckets of", "buckets", "messages a rank", "messages saved"]))
pair = {"one by one": one_by_one.trace, "one bucket": packed[40].trace}
study.timeline(
    pair,
    ranks=[0, 1],
    memory=False,
    title="Before and after buckets: the same bytes, 6 messages for 96",
)

# %% [markdown]
# Buckets of 1 MB save nothing: not even one layer fits.
# One large bucket saves all it can: (P − 1) · 2(n−1) latencies. And the wire still rests for over half of the step.
# (Backward ends a little later than before: the GPU sets the buckets to zero, and adds to them.)
#
# ## Step 3: overlap
#
# PyTorch calls a hook when a parameter's gradient is there. The hook counts what is still missing in each bucket.
# The last gradient of a bucket starts its all-reduce with `comm.stream(f, …)`. That runs f on a **lane**: a second line
# of work of the same rank, beside its computation. It returns at once, with a work that one can `wait()` for.
# Before the optimizer's step somebody must wait.


# %%
def overlapped(comm, buckets, buffers):
    """Hooks that start each bucket as soon as it is complete. Returns the function that waits for all."""
    missing, works = [len(b) for b in buckets], []

    def start():
        works.append(comm.stream(all_reduce_, buffers[len(works)], "mean"))

    def hook(k, p):
        missing[k] -= 1
        while len(works) < len(buckets) and missing[len(works)] <= 0:  # this one, and all before it
            start()

    return finishes(buckets, hook, start, missing, works)


# %%
def finishes(buckets, hook, start, missing, works):
    for k, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(partial(hook, k))

    def finish():
        while len(works) < len(buckets):
            start()  # what no backward has reached
        for work in works:
            work.wait()
        works.clear()
        missing[:] = [len(b) for b in buckets]

    return finish


# %%
def overlapping(comm, room):
    model = network(comm)
    buckets = fill(model.parameters(), room)
    finish = overlapped(comm, buckets, [flat(b) for b in buckets])
    backward(comm, model)
    finish()


hidden = {room: run(overlapping, room * MB) for room in ROOMS}
pair = {"10 MB, afterwards": packed[10].trace, "10 MB, beside backward": hidden[10].trace}
display(
    study.timeline(pair, ranks=[0, 1], memory=False, title="A lane talks while its rank computes")
)
study.viewer(
    hidden[10].trace,
    ranks=[0, 1],
    title="Buckets of 10 MB, with overlap: point at bars and messages",
)

# %% [markdown]
# Before and after overlap. A step takes at least its computation and the last bucket's all-reduce: nothing hides what
# begins when backward ends. (In the notebook, point at the second picture: which buckets travel while which
# layers compute?)
#
# ## Is it right?
#
# The oracle is the serial run, gradient by gradient, on the digits in float64. Three ranks, buckets of 1 kB.

# %%
from minidist.parallel.data import Sampler
from minidist.tasks import digits

task = digits()


def off(one, other):
    return float((one - other).norm() / other.norm())


def gradients(comm, task, room=1000):
    model = mlp([64, 32, 16, 10], dtype=torch.float64)
    buckets = fill(model.parameters(), room)
    finish = overlapped(comm, buckets, [flat(b) for b in buckets])
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    finish()
    return {name: p.grad for name, p in model.named_parameters()}


# %%
serial, three = World(1).run(gradients, task)[0], World(3).run(gradients, task)
assert all(off(grads[name], g) < 1e-12 for grads in three for name, g in serial.items())
assert all(torch.equal(grads[name], three[0][name]) for grads in three for name in serial)
rows = [(name, str(tuple(g.shape)), "below 1e-12", "bit for bit") for name, g in serial.items()]
study.table(rows, ["parameter", "shape", "off from the serial one", "equal on 3 ranks"])

# %% [markdown]
# ## Predict the best size, then run
#
# Small buckets pay latencies. Large ones start late, and leave much for the end. Between the two lies the best.
# We know the bytes of each gradient, and when it is ready (measured on a rank that sends nothing).
# A bucket starts when it is complete and the wire is free: the `schedule` from above. It takes an all-reduce by a ring;
# and the GPU takes a little time for n − 1 sums and a division, as long as its memory needs to move their numbers.


# %%
def ready_times(comm):
    model = network(comm)
    sizes = []
    times = []
    for bucket in fill(model.parameters(), 10 * MB):
        flat(bucket)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(
            lambda p: sizes.append(p.nbytes) or times.append(comm.now())
        )
    backward(comm, model)
    return sizes, times


def bucket_seconds(s, n=4):
    ring = 2 * (n - 1) * (ALPHA + s / n * BETA)
    moved = (n - 1) * 3 * s / n + 2 * s  # a sum reads two numbers and writes one
    return ring + n * H100.launch + H100.moving(moved)


# %%
def step_seconds(sizes, times, room, overlap):
    wire = 0.0 if overlap else times[-1]
    filled = 0
    ready = 0.0
    # the last one only closes the bucket before it
    for size, time in [*zip(sizes, times), (room, 0.0)]:
        if filled and filled + size > room:
            wire = max(ready, wire) + bucket_seconds(filled)
            filled = 0
        filled, ready = filled + size, time
    return wire


sizes, times = World(1, cluster=Cluster.uniform(1, ALPHA, BETA, H100), device="meta").run(
    ready_times
)[0]
layer = sizes[0] + sizes[1]  # bytes of a bias and a weight
fine = sorted({round(MB * 2 ** (k / 8)) for k in range(45)} | {k * layer for k in range(1, 9)})
lines = {
    word: (fine, [step_seconds(sizes, times, room, overlap) for room in fine])
    for word, overlap in {"afterwards": False, "beside backward": True}.items()
}

# %%
best = max(fine, key=lambda room: (-step_seconds(sizes, times, room, True), room))
points = {
    word: ([room * MB for room in ROOMS], [world.time for world in worlds.values()])
    for word, worlds in zip(lines, (packed, hidden))
}
points["predicted to be the best"] = ([best], [run(overlapping, best).time])
for word, (rooms, found) in points.items():
    wanted = [step_seconds(sizes, times, room, word != "afterwards") for room in rooms]
    assert all(abs(t / want - 1) < 0.02 for t, want in zip(found, wanted))
display(
    study.curves(
        lines,
        points=points,
        logx=True,
        xunit="B",
        yunit="s",
        xlabel="size of a bucket",
        ylabel="time of a step",
        title="The best bucket: predicted, then run",
    )
)
shortest = points["predicted to be the best"][1][0]
assert (
    shortest < 1.0001 * min(world.time for world in hidden.values())
    and 4.52e-3 < shortest < 4.57e-3
)
assert best == 2 * layer
study.bars(
    {
        "your guess": guess / 1e3,
        "one by one": one_by_one.time,
        "one bucket": packed[40].time,
        "overlap, one by one": hidden[1].time,
        "overlap, the best bucket": shortest,
    },
    unit="s",
    target=computing,
    note="computing alone",
    title="A step of 4 ranks",
)

# %% [markdown]
# **4.55 ms** of 7.86. Prediction and run agree within 2 %. The best bucket holds exactly two layers, 8.4 MB. Into 10 MB
# go 4 kB of the next layer's bias, too, and the whole bucket waits 0.3 ms for them: hence the teeth. PyTorch's default
# is 25 MiB, with a first bucket of 1 MiB, so that the wire has something to do early. On another network the best size
# is another: it grows with α.
#
# ## Break it: everyone in his own order
#
# Hooks fire in the order of *this rank's* backward. Let a model have two branches, and let odd ranks run them in the
# other order. And let each bucket start at once, without the `while`: whoever is complete, goes.


# %%
class Branches(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.branches = nn.ModuleList(
            mlp([4, width], seed, torch.float64) for seed, width in enumerate(widths)
        )

    def forward(self, x, first):
        return sum(self.branches[i](x).square().sum() for i in (first, 1 - first))


def branches(comm, overlap, widths, differs=True):
    model = Branches(widths)
    buckets = [list(branch.parameters()) for branch in model.branches]
    buffers = [flat(b) for b in buckets]
    finish = overlap(comm, buckets, buffers)
    model(
        torch.ones(1, 4, dtype=torch.float64) + comm.rank, comm.rank % 2 if differs else 0
    ).backward()
    finish()
    return torch.cat(buffers)


# %%
def hasty(comm, buckets, buffers):
    """Wrong: each bucket starts when it is complete, whatever came before it."""
    missing, works = [len(b) for b in buckets], []

    def hook(k, p):
        missing[k] -= 1
        if missing[k] == 0:
            works.append(comm.stream(all_reduce_, buffers[k], "mean"))

    return finishes(buckets, hook, lambda: None, missing, works)


# %%
right, rows = World(3).run(branches, overlapped, [5, 5], differs=False)[0], []
for name, overlap in {"as it is complete": hasty, "in one order": overlapped}.items():
    found = World(3).run(branches, overlap, [5, 5])
    error, equal = off(found[1], right), all(torch.equal(g, found[0]) for g in found)
    rows.append(
        (name, f"{error:.0%}" if error > 1e-12 else "below 1e-12", "yes" if equal else "no")
    )
assert rows[0][2] == "no" and rows[1][1:] == ("below 1e-12", "yes")
display(study.table(rows, ["a bucket starts", "rank 1's gradients are off by", "replicas equal"]))
try:
    World(3).run(branches, hasty, [5, 6])
except ValueError as why:
    # without the library's lines
    text = [line for line in str(why).splitlines() if " at " not in line]
    print("With branches of 5 and 6:", *text, sep="\n")

# %% [markdown]
# With equal branches there is no error! Rank 1 sends the first branch while the others send the second, and branch is
# added to branch. With other sizes the checked header of our messages tells us. NCCL has no such header: it hangs, or
# adds. So **the order of the buckets is part of the program**, the same on all ranks. Complete is not enough;
# all before it must have started.
#
# ## Break it: who does not wait
#
# The hooks have started everything. What if the optimizer's step comes first, and `finish` after it?


# %%
def train(comm, task, waits, steps=12):
    model, history = mlp([64, 32, 16, 10], dtype=torch.float64), []
    buckets, optimizer = fill(model.parameters(), 1000), torch.optim.SGD(model.parameters(), lr=0.1)
    finish = overlapped(comm, buckets, [flat(b) for b in buckets])
    for mine, _ in zip(Sampler(len(task.x), 60, comm), range(steps)):
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        for act in [finish, optimizer.step] if waits else [optimizer.step, finish]:
            act()
        history.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    return history


# %%
def apart(one, other):
    return [max(1e-12, float((a - b).abs().max())) for a, b in zip(one, other)]


runs = {"waits": World(3).run(train, task, True), "steps first": World(3).run(train, task, False)}
assert all(torch.equal(a, b) for a, b in zip(runs["waits"][0], runs["waits"][1]))
gaps = {name: (range(1, 13), apart(ranks[0], ranks[1])) for name, ranks in runs.items()}
assert gaps["steps first"][1][-1] > 1e-3
study.curves(
    gaps,
    logy=True,
    xlabel="step",
    ylabel="largest difference between rank 0 and rank 1",
    title="Replicas that should be equal (below 1e-12 is drawn as 1e-12)",
)

# %% [markdown]
# Each rank steps with what lies in the bucket at that moment: its own gradient, or half a sum. There is no error.
# Only a comparison of the replicas shows it.
#
# ## Break it: hooks in every backward
#
# A rank's part comes in four micro-batches. The hooks fire in the first backward already, and send what is not all:
# the rest is added to a sum that has been averaged. (An average of the losses, for a log, gives the messages time.)
# So arm the hooks for the last one only. That is what `no_sync()` of lesson 05 is for.


# %%
def accumulate(comm, task, armed_at):
    model, *parts = (
        mlp([64, 32, 16, 10], dtype=torch.float64),
        *next(iter(Sampler(len(task.x), 60, comm))).chunk(4),
    )
    buckets = fill(model.parameters(), 1000)
    buffers = [flat(b) for b in buckets]
    for i, part in enumerate(parts):
        if i == armed_at:
            finish = overlapped(comm, buckets, buffers)
        loss = cross_entropy(model(task.x[part]), task.y[part]) / 4
        loss.backward()
        all_reduce_(comm, loss.detach(), op="mean")
    finish()
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


# %%
whole, rows = torch.cat([g.view(-1) for g in serial.values()]), []
for name, armed_at in {"in every backward": 0, "in the last two": 2, "in the last": 3}.items():
    found = World(3).run(accumulate, task, armed_at)
    error = max(off(g, whole) for g in found)
    equal = all(torch.equal(g, found[0]) for g in found)
    rows.append(
        (name, "below 1e-12" if error < 1e-12 else f"{error:.0%}", "yes" if equal else "no")
    )
assert [row[2] for row in rows] == ["no", "no", "yes"] and rows[2][1] == "below 1e-12"
study.table(rows, ["hooks fire", "gradients are off by", "replicas equal"])

# %% [markdown]
# Two more cases, in a sentence each. A parameter that no sample reaches never calls its hook, so its bucket is never
# complete: `finish` must start what is left, or all wait forever. A **tied** parameter, in two layers, calls it once,
# when both parts of its gradient are in. The library's version has both right:

# %%
from minidist.parallel.data import DataParallel


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = (
            nn.Linear(4, 4, dtype=torch.float64) for _ in range(3)
        )
        self.second.weight = self.first.weight  # tied

    def forward(self, x):
        return self.second(self.first(x).tanh()).square().sum()


def odd(comm):
    model = DataParallel(Odd(), comm, bucket_bytes=64)
    model(torch.ones(2, 4, dtype=torch.float64) * (comm.rank + 1)).backward()
    return [(name, p.grad) for name, p in model.module.named_parameters()]


per_rank = World(3).run(odd)
assert all(torch.equal(g, other) for (_, g), (_, other) in zip(per_rank[0][:3], per_rank[2][:3]))
assert [name for name, g in per_rank[1] if g is None] == ["unused.weight", "unused.bias"]

# %% [markdown]
# ## Batch norm: not a sum over samples
#
# So far each sample had a loss of its own, and gradients were averaged. **Batch norm** mixes the samples: it divides by
# the standard deviation *of the batch*. Split the batch, and each rank divides by another one.
# Six numbers on three ranks, 1 to 6. Their variance is 35/12 = 2.92. What does each rank see?

# %%
parts = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), torch.tensor([[5.0], [6.0]])]


def own_variance(comm, parts):
    return parts[comm.rank].var(0, correction=0).item()


def mean_of_variances(comm, parts):
    return all_reduce_(comm, parts[comm.rank].var(0, correction=0), op="mean").item()


def of_squares(comm, parts):
    x = parts[comm.rank]
    total, squares, count = all_reduce_(
        comm, torch.stack([x.sum(0), (x * x).sum(0), torch.full_like(x[0], len(x))])
    )
    return (squares / count - (total / count) ** 2).item()


ways = {
    "rank 0's own": own_variance,
    "mean of the variances": mean_of_variances,
    "E[x²] − E[x]²": of_squares,
}
study.bars(
    {name: World(3).run(way, parts)[0] for name, way in ways.items()},
    target=35 / 12,
    note="variance of all six",
    title="Variance of 1 … 6, in parts of two",
)

# %% [markdown]
# The mean of the variances misses what lies *between* the ranks. The third way is right.
# Is it? Add 10,000 to all six numbers. The variance stays. Guess what float32 makes of it.
#
# So merge what each rank has centered: its mean, its sum of squares around that mean, and its count.
# Squares around the common mean are those around one's own, plus the count times the distance of the means, squared.


# %%
def statistics(comm, x):
    """Mean and variance (C,) of all ranks' samples, and their number. x: (B, C), B may differ."""
    mean = x.mean(0)
    mine = torch.stack([mean, (x - mean).square().sum(0), torch.full_like(mean, len(x))])
    means, squares, counts = all_gather(comm, mine[None]).unbind(1)  # each (n, C)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    return mean, (squares + counts * (means - mean).square()).sum(0) / count, count


def merged(comm, parts):
    return statistics(comm, parts[comm.rank])[1].item()


# %%
far, uneven = [x + 10_000 for x in parts], [torch.cat(parts[:2]), parts[2][:1], parts[2][1:]]
ways["merged"] = merged
rows = [
    (name, *(f"{World(3).run(way, data)[0]:.3f}" for data in (parts, uneven, far)))
    for name, way in ways.items()
]
assert abs(World(3).run(merged, far)[0] - 35 / 12) < 1e-3
study.table(
    [*rows, ("right", *["2.917"] * 3)],
    ["", "1 … 6", "parts of 4, 1 and 1", "all + 10,000"],
    title="Four variances, in float32",
)

# %% [markdown]
# $E[x^2] - E[x]^2$ subtracts two numbers of 10⁸, of which float32 knows the first seven digits.
#
# ## Backward
#
# Every output depends on every input, through mean and variance, across ranks too. With m samples in all,
# $\sigma = \sqrt{\mathrm{var}+10^{-5}}$, $\hat x = (x-\mathrm{mean})/\sigma$, and dy from the layers above
# (Ioffe and Szegedy derive it):
#
# $$dx = \frac{1}{\sigma}\left(dy - \frac{1}{m}\sum dy - \hat x\,\frac{1}{m}\sum dy\,\hat x\right)$$
#
# The sums run over all ranks' samples: one more all-reduce. Forget it, and see.


# %%
class Synchronized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, comm, exchanged):
        mean, var, ctx.count = statistics(comm, x)
        scale = (var + 1e-5).rsqrt()
        normal = (x - mean) * scale
        ctx.save_for_backward(normal, scale)
        ctx.comm, ctx.exchanged = comm, exchanged
        return normal

    @staticmethod
    def backward(ctx, dy):
        normal, scale = ctx.saved_tensors
        sums, count = torch.stack([dy.sum(0), (dy * normal).sum(0)]), ctx.count
        sums, count = (all_reduce_(ctx.comm, sums), count) if ctx.exchanged else (sums, len(dy))
        return scale * (dy - sums[0] / count - normal * sums[1] / count), None, None


# %%
draw = partial(torch.randn, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
X, DY = draw(12, 4), draw(12, 4)
ranks_of = [slice(0, 5), slice(5, 11), slice(11, 12)]  # uneven: 5, 6 and 1 samples


def forward_backward(comm, X, DY, exchanged):
    x = X[ranks_of[comm.rank] if comm.size > 1 else slice(None)].clone().requires_grad_()
    y = Synchronized.apply(x, comm, exchanged)
    y.backward(DY[ranks_of[comm.rank] if comm.size > 1 else slice(None)])
    return torch.stack([y.detach(), x.grad])


x = X.clone().requires_grad_()
y = nn.functional.batch_norm(x, None, None, training=True)  # the oracle: PyTorch, on one rank
y.backward(DY)
y = y.detach()
both, no = (
    torch.cat(World(3).run(forward_backward, X, DY, exchanged), 1) for exchanged in (True, False)
)
assert off(both[0], y) < 1e-12 and off(both[1], x.grad) < 1e-12 and off(no[0], y) < 1e-12
errors = {
    "outputs": 0,
    "gradients, exchanged": 0,
    "gradients, not exchanged": round(100 * off(no[1], x.grad), 1),
}
study.bars(errors, unit="%", title="Parts of 5, 6 and 1 samples: how far from PyTorch on one rank?")

# %% [markdown]
# Outputs and gradients agree to 1e-12. Without the exchange the forward is right, the loss is right, and the gradient
# is not: the worst kind of bug.
#
# ## Does it matter?
#
# 4 ranks, 2 samples each: a batch of 8. A batch norm of two samples knows little more than which is larger.
# Forty steps with `nn.BatchNorm1d`, forty with the library's `SyncBatchNorm`, each from three seeds.

# %%
from minidist.parallel.batchnorm import SyncBatchNorm


def digits_net(comm, task, seed, sync, batch=8, steps=40):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    ).double()
    model = DataParallel(SyncBatchNorm.convert(net, comm) if sync else net, comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for mine, _ in zip(Sampler(len(task.x), batch, comm, seed), range(steps)):
        optimizer.zero_grad()
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        optimizer.step()
    model.eval()
    return float((model(task.test_x).argmax(1) == task.test_y).double().mean())


# %%
found = {
    word: [World(4).run(digits_net, task, seed, sync)[0] for seed in range(3)]
    for word, sync in {"each rank its own": False, "synchronized": True}.items()
}
assert max(found["each rank its own"]) < min(found["synchronized"])
serial_net = [World(1).run(digits_net, task, seed, False)[0] for seed in range(3)]
assert all(abs(a - b) < 0.01 for a, b in zip(serial_net, found["synchronized"]))
rows = [
    (name, *(f"{a:.1f}" for a in some))
    for name, some in (found | {"1 rank, batch of 8": serial_net}).items()
]
study.table(
    rows,
    ["batch norm", *(f"seed {s}" for s in range(3))],
    title="Accuracy on the test set, 2 samples a rank",
)

# %% [markdown]
# The worst synchronized run beats the best of the others, and each is that of one rank with the whole batch.
# With large parts the difference is small: 32 samples know their variance (Goyal et al.). Detection and segmentation,
# where an image fills a GPU, need it (Peng et al.).
#
# `SyncBatchNorm.convert` replaces the batch norms of a model. Running statistics come from the whole batch, too, so
# they are equal on all ranks. PyTorch has the same, for GPUs only. Uneven parts: a `DataParallel` has `model.weight`,
# this rank's number of samples, for lesson 05's weighted average. It scales gradients after backward, too late here,
# for batch norm's backward has mixed those of all ranks. Divide each rank's *summed* loss by B/n instead (B samples on
# n ranks), and leave the weight None.
#
# ## The library's version
#
# `Bucket.put` makes a gradient a view of its bucket, scaled. The hook calls `ready`; `finish` runs when backward ends.

# %%
from minidist.parallel.reducer import Bucket, Reducer

display(study.source(Bucket.put), study.source(Reducer.ready))
study.source(Reducer.finish)

# %% [markdown]
# `ready` has our `while`. `finish` starts the rest, and waits, as ours does. What it adds: dtypes, weights for uneven
# parts, flags in each bucket (on how many ranks is there a gradient at all?), and a second look at the order:
# after the first backward it lays out the buckets as rank 0's hooks fired.
#
# ## On processes
#
# The same training with real processes and real lanes, which are threads. Equal bit for bit among themselves, and the
# serial run to rounding.

# %%
real, one = launch(train, 3, task, True), World(1).run(train, task, True)[0]
assert all(torch.equal(history[-1], real[0][-1]) for history in real)
assert all(off(a, b) < 1e-12 for a, b in zip(real[0], one))
rows = [(f"rank {r}", real.trace.messages(r), real.trace.bytes_sent(r)) for r in range(3)]
study.table(
    rows, ["", "messages sent", "bytes sent"], title="Twelve steps on three processes, overlapped"
)

# %% [markdown]
# The script of lesson 05 uses `DataParallel`, so it has buckets and overlap already:
#
# ```
# torchrun --nproc-per-node 4 examples/train_digits.py
# ```
#
# ## Takeaways
#
# - P gradients in b buckets: 2(n−1)(P − b) latencies less, not a byte less.
# - Fill buckets from the last layer. Let gradients be views of them: nothing is copied.
# - The last gradient of a bucket starts it, beside backward. A step is at least the computation and the last bucket.
# - All ranks start the buckets in one order, whatever order their hooks fire in. Wait before the step.
#   Arm the hooks for the last micro-batch.
# - The best size follows from α, β and the times of backward. Calculate it.
# - Batch norm needs the statistics of the whole batch, forward *and* backward. Merge centered sums.
#
# ## Further reading
#
# - paper:li2020 Sections 3.2 and 4.2: hooks, buckets, order, overlap; section 5 measures the best size.
# - paper:ioffe2015 Section 3 has the backward.
# - paper:peng2018 Batch norm across GPUs, and why.
# - paper:goyal2017 Gradients are sent as soon as they are there; batch norm stays local, on 32 images a GPU, by choice.
