# %% [markdown]
# # 06 · Buckets and overlap
#
# In the [last lesson](lesson:data_parallel) we averaged gradients one after another, when the backward pass was over. Let us see what that costs on a modelled cluster of four H100 cards. A model of 8 million weights takes 3.6 ms for forward and backward. Averaging its 16 gradients takes another 4.3 ms, in which all four cards do nothing but wait. More than half of what was paid for them is wasted.
#
# This lesson gets most of it back without sending a single byte less. **How short can the step of 7.9 ms become?**

# %%
guess = 7.9  # ms: change this number

# %% [markdown]
# ## On paper: six gradients, one a second
#
# A backward pass makes six gradients, one per second. A message takes 1 s to start and ½ s for each gradient in it, and the wire carries one message at a time. If we wait for the end of the backward and then send six messages, we are done after 6 + 6 · 1½ = 15 s.
#
# Two ideas come to mind. *Put several gradients into one message*: all six together start once instead of six times, and take 6 + 1 + 3 = 10 s. And *send while the backward still runs*: the wire is idle all that time, so why not use it? But the two ideas are at odds. One large message cannot leave before the last gradient is ready. Six small ones can leave early, but pay for six starts. What about pairs?
#
# The small function below computes when each message starts and ends. `shares` says how many gradients each message carries.

# %%
import torch

from minidist import study


def message_times(shares, overlap):
    """(start, end) of each message, in seconds."""
    ready = 0  # when the gradients of this message are there
    wire_free = 0 if overlap else sum(shares)
    times = []
    for share in shares:
        ready += share  # one gradient a second
        start = max(ready, wire_free)
        wire_free = start + 1 + share / 2
        times.append((start, wire_free))
    return times


cuts = {"one by one": [1] * 6, "in pairs": [2, 2, 2], "all in one": [6]}
rows = []
for name, shares in cuts.items():
    afterwards = message_times(shares, overlap=False)[-1][1]
    beside = message_times(shares, overlap=True)[-1][1]
    rows.append((name, afterwards, beside))
study.table(
    rows,
    ["six gradients", "sent after the backward, s", "sent during it, s"],
    title="When the last message has arrived",
)

# %% [markdown]
# Pairs, sent during the backward, are done after 8 s: only the last of the three messages is not hidden. This is the whole lesson in one table. A group of gradients that travel together is called a [bucket](term:bucket), sending while computing is called [overlap](term:overlap), and the question is how to do both correctly, and how large a bucket should be.
#
# ![Backward through six layers, last layer first. Above, without overlap: one all-reduce of all gradients starts when the backward is over, until 13.8 units of time. Below, three buckets of two layers: each all-reduce starts as soon as its gradients are there and runs beside the backward; only the last one is left at the end, until 10.6 units.](../course/06_buckets/figures/buckets_over_backward.svg)
#
# ## The naive step, measured
#
# Our model has 8 layers of 1,024 × 1,024, and each of four GPUs has a batch of 2,560. We need no GPU to study it: on the device `"meta"`, tensors have no numbers, and the World charges each operation the time that an H100 would need. (A GPU reaches only part of the speed on its data sheet, and the World allows for that.) A message takes 20 µs to start, and the wires carry 25 GB/s.

# %%
from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.comm.cluster import H100, Cluster
from minidist.models import mlp

ALPHA = 20e-6
BETA = 1 / 25e9
MB = 10**6


def network(comm):
    return mlp([1024] * 9, device=comm.device)


def forward_backward(comm, model):
    x = torch.empty(2560, 1024, device=comm.device)
    model(x).sum().backward()


def naive(comm, average=True):
    model = network(comm)
    forward_backward(comm, model)
    if average:
        for p in model.parameters():
            all_reduce_(comm, p.grad, op="mean")


def run(program, *arguments, ranks=4):
    cluster = Cluster.uniform(ranks, ALPHA, BETA, H100)
    world = World(ranks, cluster=cluster, device="meta")
    world.run(program, *arguments)
    return world


one_by_one = run(naive)
computing = run(naive, False).time
print(
    f"{1e3 * one_by_one.time:.1f} ms, of which forward and backward take {1e3 * computing:.1f} ms"
)
study.viewer(one_by_one.trace, ranks=[0, 1], title="Compute, then talk")

# %% tags=["maintainer"]
assert 7.81e-3 < one_by_one.time < 7.91e-3 and 3.50e-3 < computing < 3.60e-3

# %% [markdown]
# Look closely at the second half of the picture: after each large message comes a small one. Every other all-reduce is for a bias of 4 kB, and it takes $2(n-1)$ = 6 steps like any other, 120 µs of pure latency.
#
# ## Step 1: fill buckets from the back
#
# So gradients should share messages, but which should go together? The backward pass begins at the *last* layer, so the gradients of the last layer are ready first. A bucket can leave when all its gradients are there; if it held the first and the last layer, it would have to wait for both. So we fill buckets in the order in which gradients appear, from the back of the model to its front.


# %%
def fill(parameters, bucket_bytes):
    """Lists of parameters of at most so many bytes each; the first list is ready first."""
    buckets = []
    free = 0
    for p in reversed(list(parameters)):
        if not buckets or p.nbytes > free:
            buckets.append([])
            free = bucket_bytes
        buckets[-1].append(p)
        free -= p.nbytes
    return buckets


small = mlp([4, 4, 4, 4])
names = {p: name for name, p in small.named_parameters()}
rows = []
for k, bucket in enumerate(fill(small.parameters(), 128)):
    inside = ", ".join(names[p] for p in bucket)
    rows.append((k, inside, sum(p.nbytes for p in bucket)))
study.table(
    rows, ["bucket", "gradients", "bytes"], title="Three layers of 4 × 4, buckets of 128 bytes"
)

# %% [markdown]
# ## Step 2: gradients as views
#
# A bucket is one flat tensor, and one all-reduce sends it. The obvious way is to copy the gradients in, send, and copy the results out, which moves every byte through memory twice more. There is a better way. A tensor in PyTorch can be a *view* of a part of another. If each `p.grad` is a view of its piece of the bucket, then the backward pass, which adds to `p.grad` in place, fills the bucket by itself, and the averaged bucket needs no unpacking either.
#
# ![Four parameters and their gradients in two buckets. In the order in which the backward makes them, last layer first, the gradients lie one after the other in flat buffers; p.grad of each parameter is a view of its place, and one all-reduce sends a whole bucket.](../course/06_buckets/figures/bucket_layout.svg)


# %%
def flat_buffer(bucket):
    """One tensor of zeros for all gradients of a bucket; each p.grad becomes a view of it."""
    sizes = [p.numel() for p in bucket]
    buffer = torch.zeros(sum(sizes), dtype=bucket[0].dtype, device=bucket[0].device)
    for p, piece in zip(bucket, buffer.split(sizes)):
        p.grad = piece.view_as(p)
    return buffer


tiny = mlp([2, 3, 1])
[buffer] = [flat_buffer(bucket) for bucket in fill(tiny.parameters(), 1000)]
tiny(torch.ones(1, 2)).sum().backward()
print(buffer)
print(tiny[0].weight.grad)  # the last six numbers of the buffer

# %% tags=["maintainer"]
assert torch.equal(buffer[-6:].view(3, 2), tiny[0].weight.grad)
for p in tiny.parameters():
    assert p.grad.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()

# %% [markdown]
# There is one rule to obey from here on: nothing may set `p.grad` to None, since that would cut the gradient off from its bucket. PyTorch's `zero_grad` does so by default; `zero_grad(set_to_none=False)` does not.
#
# The exchange is now one all-reduce for each bucket. With *P* gradients in *b* buckets a rank sends $2(n-1)\,b$ messages instead of $2(n-1)\,P$. A layer here takes 4.2 MB. **How many messages does a rank send with buckets of 10 MB?** (There are 4 ranks and 8 layers.)

# %%
guess_messages = 96  # as one by one: change this number


# %%
def bucketed(comm, bucket_bytes):
    model = network(comm)
    buffers = [flat_buffer(bucket) for bucket in fill(model.parameters(), bucket_bytes)]
    forward_backward(comm, model)
    for buffer in buffers:
        all_reduce_(comm, buffer, op="mean")


bucket_sizes = [1, 5, 10, 20, 40]  # MB
afterwards = {}
rows = [("one by one", 16, one_by_one.trace.messages(0), round(1e3 * one_by_one.time, 2))]
for size in bucket_sizes:
    world = run(bucketed, size * MB)
    afterwards[size] = world
    count = len(fill(network(world).parameters(), size * MB))
    rows.append((f"{size} MB", count, world.trace.messages(0), round(1e3 * world.time, 2)))

# %% tags=["answer"]
study.reveal(
    guess_messages,
    afterwards[10].trace.messages(0),
    study.table(rows, ["buckets of", "buckets", "messages a rank", "step, ms"]),
    unit="messages",
    words="Two layers fit into 10 MB, so there are 4 buckets, and 6 messages for each.",
)

# %% tags=["maintainer"]
for size, world in afterwards.items():
    assert world.trace.messages(0) == 6 * len(fill(network(world).parameters(), size * MB))

# %% [markdown]
# Buckets of 1 MB save nothing, because not even one layer fits into them. One bucket for everything saves all the latencies that can be saved, $(P-b)\cdot 2(n-1)\,\alpha$. And still the wire is idle for more than half of the step.
#
# ## Step 3: overlap
#
# To send during the backward pass, we have to know when a bucket is full. PyTorch tells us: `register_post_accumulate_grad_hook` calls a function of ours as soon as the gradient of a parameter is complete. The function counts how many gradients its bucket is still missing, and the last one starts the all-reduce.
#
# How do we start something and go on computing? With `comm.stream(f, …)`, which runs `f` on a **lane**, a second line of work of the same rank with its own channel for messages. (On a GPU this is a second CUDA stream.) It returns at once, with a handle to `wait` on. All handles must be waited on before the optimizer takes its step.


# %%
class Overlap:
    """Starts the all-reduce of each bucket as soon as it is full, in the order of the buckets."""

    def __init__(self, comm, buckets):
        self.comm = comm
        self.buckets = buckets
        self.buffers = [flat_buffer(bucket) for bucket in buckets]
        self.missing = [len(bucket) for bucket in buckets]
        self.works = []  # of the buckets that have started

    def arm(self):
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(self.hook_for(k))

    def hook_for(self, k):
        def hook(p):
            self.missing[k] -= 1
            self.start_what_is_full()

        return hook

    def start_what_is_full(self):
        # This bucket and none before it may still be missing a gradient.
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] <= 0:
            self.start_next()

    def start_next(self):
        buffer = self.buffers[len(self.works)]
        self.works.append(self.comm.stream(all_reduce_, buffer, "mean"))

    def finish(self):
        """Call it before the optimizer's step."""
        while len(self.works) < len(self.buckets):
            self.start_next()  # buckets with a parameter that no sample has reached
        for work in self.works:
            work.wait()
        self.works = []
        self.missing = [len(bucket) for bucket in self.buckets]


def overlapping(comm, bucket_bytes):
    model = network(comm)
    overlap = Overlap(comm, fill(model.parameters(), bucket_bytes))
    overlap.arm()
    forward_backward(comm, model)
    overlap.finish()


beside = {size: run(overlapping, size * MB) for size in bucket_sizes}
study.timeline(
    {
        "10 MB, after the backward": afterwards[10].trace,
        "10 MB, during it": beside[10].trace,
    },
    ranks=[0, 1],
    memory=False,
    title="A lane talks while its rank computes",
)

# %% [markdown]
# Each rank has two rows now, one for its computation and one for its lane. Point at the bars in the next picture and find out which bucket travels while which layer computes. You will also find what cannot be hidden: the last bucket is full only when the backward is over. So a step takes at least its computation plus one bucket.

# %%
study.viewer(beside[10].trace, ranks=[0, 1], title="Buckets of 10 MB, sent during the backward")

# %% [markdown]
# ### Is it right?
#
# Things that run at the same time easily go wrong, so the oracle matters more than ever. It is the serial run again, gradient by gradient, on the handwritten digits in double precision. We take three ranks, and small buckets of 1 kB so that there are several.

# %%
from torch.nn.functional import cross_entropy

from minidist.parallel.data import Sampler
from minidist.tasks import digits

task = digits()


def relative_error(found, right):
    return float((found - right).norm() / right.norm())


def gradients(comm, task):
    model = mlp([64, 32, 16, 10], dtype=torch.float64)
    overlap = Overlap(comm, fill(model.parameters(), 1000))
    overlap.arm()
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    overlap.finish()
    return {name: p.grad for name, p in model.named_parameters()}


serial = World(1).run(gradients, task)[0]
three = World(3).run(gradients, task)
rows = []
for name, right in serial.items():
    error = max(relative_error(found[name], right) for found in three)
    equal = all(torch.equal(found[name], three[0][name]) for found in three)
    rows.append(
        (
            name,
            str(tuple(right.shape)),
            "below 1e-12" if error < 1e-12 else f"{error:.0%}",
            "bit for bit" if equal else "no",
        )
    )
study.table(rows, ["parameter", "shape", "off from the serial one", "equal on 3 ranks"])

# %% tags=["maintainer"]
assert all(row[2:] == ("below 1e-12", "bit for bit") for row in rows)

# %% [markdown]
# ## How large should a bucket be?
#
# Small buckets pay many latencies; large ones start late and leave much for the end. Somewhere between lies the best size, and it can be calculated. We need two things. The first is when each gradient is ready, which we measure on a rank that sends nothing. The second is how long a bucket takes: a ring's $2(n-1)\left(\alpha+\frac sn\beta\right)$ for *s* bytes, plus the time that the GPU needs to add up *n* − 1 chunks and to divide the sum. The rest is the little function from the beginning, in which a bucket starts when it is full *and* the wire is free.


# %%
def ready_times(comm):
    """The bytes of each gradient, and when it is ready, in the order of the backward."""
    model = network(comm)
    for bucket in fill(model.parameters(), 10 * MB):
        flat_buffer(bucket)
    sizes = []
    times = []

    def hook(p):
        sizes.append(p.nbytes)
        times.append(comm.now())

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    forward_backward(comm, model)
    return sizes, times


def bucket_seconds(nbytes, n=4):
    ring = 2 * (n - 1) * (ALPHA + nbytes / n * BETA)
    # A sum reads two numbers and writes one; the division reads one and writes one.
    moved = (n - 1) * 3 * nbytes / n + 2 * nbytes
    return ring + n * H100.launch + H100.moving(moved)


def step_seconds(sizes, times, bucket_bytes, overlap):
    """The predicted time of a step."""
    wire_free = 0.0 if overlap else times[-1]
    filled = 0  # bytes in the bucket that is being filled
    full_at = 0.0  # when its last gradient was ready
    for size, time in zip(sizes, times):
        if filled and filled + size > bucket_bytes:
            wire_free = max(full_at, wire_free) + bucket_seconds(filled)
            filled = 0
        filled += size
        full_at = time
    return max(full_at, wire_free) + bucket_seconds(filled)


one_rank = World(1, cluster=Cluster.uniform(1, ALPHA, BETA, H100), device="meta")
sizes, times = one_rank.run(ready_times)[0]
layer = sizes[0] + sizes[1]  # bytes of a bias and a weight
candidates = sorted(
    {round(MB * 2 ** (k / 8)) for k in range(45)} | {k * layer for k in range(1, 9)}
)
best = min(candidates, key=lambda size: (step_seconds(sizes, times, size, True), -size))

# %% [markdown]
# Before you look at the answer, think about the shape of the curve. Is the best bucket nearer to 1 MB or to 40 MB? And will the curve be smooth?

# %%
lines = {}
points = {}
for name, overlap, worlds in [
    ("after the backward", False, afterwards),
    ("during it", True, beside),
]:
    predicted = [step_seconds(sizes, times, size, overlap) for size in candidates]
    lines[name] = candidates, predicted
    points[name] = [size * MB for size in bucket_sizes], [world.time for world in worlds.values()]
shortest = run(overlapping, best).time
points["predicted to be the best"] = [best], [shortest]

# %% tags=["answer"]
curves = study.curves(
    lines,
    points=points,
    logx=True,
    xunit="B",
    yunit="s",
    xlabel="size of a bucket",
    ylabel="time of a step",
    title="The best bucket: predicted (lines), then run (points)",
)
bars = study.bars(
    {
        "your guess": guess / 1e3,
        "one by one, afterwards": one_by_one.time,
        "one bucket, afterwards": afterwards[40].time,
        "one by one, overlapped": beside[1].time,
        "the best bucket, overlapped": shortest,
    },
    unit="s",
    target=computing,
    note="computing alone",
    title="A step of 4 ranks",
)
study.reveal(
    guess,
    round(1e3 * shortest, 2),
    [curves, bars],
    unit="ms",
    words="Prediction and run agree to within 2 %. The best bucket holds exactly two layers, 8.4 MB.",
)

# %% tags=["maintainer"]
for overlap, worlds in [(False, afterwards), (True, beside)]:
    for size, world in worlds.items():
        assert abs(world.time / step_seconds(sizes, times, size * MB, overlap) - 1) < 0.02
assert abs(shortest / step_seconds(sizes, times, best, True) - 1) < 0.02
assert best == 2 * layer and 4.52e-3 < shortest < 4.57e-3
assert shortest < 1.0001 * min(world.time for world in beside.values())

# %% [markdown]
# The step has shrunk from 7.9 to 4.55 ms. The curve has teeth, and one of them is instructive: a bucket of 10 MB has room for two layers *and* the 4 kB bias of the next. The whole bucket then waits 0.3 ms for these 4 kB.
#
# PyTorch's default is 25 MiB, with a first bucket of 1 MiB so that the wire has something to do early. The best size depends on the network: it grows with $\alpha$, and with the speed of the wire.
#
# ## Break it: each rank starts what is full
#
# In `start_what_is_full` there is a `while` that looks at the buckets in order. Why so complicated? Why not start a bucket as soon as *it* is full? Because hooks fire in the order of *this rank's* backward, and nothing guarantees that all ranks have the same order. Take a model with two branches, and let odd ranks run them in the other order.

# %%
from torch import nn


class Branches(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.branches = nn.ModuleList()
        for seed, width in enumerate(widths):
            self.branches.append(mlp([4, width], seed, torch.float64))

    def forward(self, x, first):
        one = self.branches[first](x).square().sum()
        other = self.branches[1 - first](x).square().sum()
        return one + other


class StartsWhatIsFull(Overlap):
    """Wrong: a bucket starts as soon as it is full, whatever came before it."""

    def hook_for(self, k):
        def hook(p):
            self.missing[k] -= 1
            if self.missing[k] == 0:
                self.works.append(self.comm.stream(all_reduce_, self.buffers[k], "mean"))

        return hook


def branches(comm, kind, widths, order_differs=True):
    model = Branches(widths)
    overlap = kind(comm, [list(branch.parameters()) for branch in model.branches])
    overlap.arm()
    x = torch.ones(1, 4, dtype=torch.float64) + comm.rank
    model(x, first=comm.rank % 2 if order_differs else 0).backward()
    overlap.finish()
    return torch.cat(overlap.buffers)


right = World(3).run(branches, Overlap, [5, 5], order_differs=False)[0]
rows = []
for name, kind in {"as soon as it is full": StartsWhatIsFull, "in one order": Overlap}.items():
    found = World(3).run(branches, kind, [5, 5])
    error = relative_error(found[1], right)
    equal = all(torch.equal(gradient, found[0]) for gradient in found)
    rows.append(
        (name, "below 1e-12" if error < 1e-12 else f"{error:.0%}", "yes" if equal else "no")
    )
study.table(rows, ["a bucket starts", "rank 1's gradients are off by", "replicas equal"])

# %% tags=["maintainer"]
assert rows[0][2] == "no" and rows[1][1:] == ("below 1e-12", "yes")

# %% [markdown]
# There was no error, just wrong numbers. Rank 1 sent its first branch while the others sent their second, both have the same size, and branch was added to branch. If the sizes differ, the header that our messages carry catches the mistake:

# %%
try:
    World(3).run(branches, StartsWhatIsFull, [5, 6])
except ValueError as error:
    for line in str(error).splitlines():
        if " at " not in line:  # leave out the lines of the library
            print(line)

# %% [markdown]
# ![Two ranks whose backwards make the gradients in different orders. On rank 0 bucket 0 is full first, on rank 1 bucket 1. If each sent what is full first, the sum would mix two layers. So rank 1 holds bucket 1 back until bucket 0 is full.](../course/06_buckets/figures/one_order.svg)
#
# NCCL has no such header: it hangs, or it adds the wrong numbers. So **the order of the buckets is part of the program** and must be the same on all ranks. A bucket that is full is not enough; all buckets before it must have started.
#
# ## Break it: the step that does not wait
#
# The second classic: the hooks have started everything, and the optimizer takes its step before anyone has waited.


# %%
def train(comm, task, finish_first, steps=12):
    model = mlp([64, 32, 16, 10], dtype=torch.float64)
    overlap = Overlap(comm, fill(model.parameters(), 1000))
    overlap.arm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for mine, _ in zip(Sampler(len(task.x), 60, comm), range(steps)):
        optimizer.zero_grad(set_to_none=False)
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        if finish_first:
            overlap.finish()
            optimizer.step()
        else:
            optimizer.step()
            overlap.finish()
        history.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    return history


gaps = {}
runs = {}
for name, finish_first in {"waits first": True, "steps first": False}.items():
    runs[name] = World(3).run(train, task, finish_first)
    differences = []
    for a, b in zip(runs[name][0], runs[name][1]):
        differences.append(max(1e-12, float((a - b).abs().max())))
    gaps[name] = list(range(1, 13)), differences
study.curves(
    gaps,
    logy=True,
    xlabel="step",
    ylabel="largest difference between rank 0 and rank 1",
    title="Replicas that should be equal (0 is drawn as 1e-12)",
)

# %% tags=["maintainer"]
assert all(torch.equal(a, b) for a, b in zip(runs["waits first"][0], runs["waits first"][1]))
assert gaps["steps first"][1][-1] > 1e-3

# %% [markdown]
# Each rank steps with what lies in the bucket at that moment: its own gradient, or a half-finished sum. Again nothing complains. Only the comparison of the replicas shows it.
#
# ## Break it: hooks in every backward
#
# Often a rank's share of a batch does not fit into memory and is processed in several [micro-batches](term:micro-batch) whose gradients add up. Now the hooks already fire in the first of these backwards. They send a gradient that is not complete, and the rest is added to a sum that has been averaged. So the hooks must be armed for the last micro-batch only. In the next run they are armed before micro-batch `armed_at` of four. (The all-reduce of the loss stands for anything else that a program sends in between; it gives the buckets time to travel.)


# %%
def accumulate(comm, task, armed_at):
    model = mlp([64, 32, 16, 10], dtype=torch.float64)
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    overlap = Overlap(comm, fill(model.parameters(), 1000))
    for i, part in enumerate(mine.chunk(4)):
        if i == armed_at:
            overlap.arm()
        loss = cross_entropy(model(task.x[part]), task.y[part]) / 4
        loss.backward()
        all_reduce_(comm, loss.detach(), op="mean")
    overlap.finish()
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


right = torch.cat([gradient.view(-1) for gradient in serial.values()])
rows = []
for name, armed_at in {"in every backward": 0, "in the last two": 2, "in the last": 3}.items():
    found = World(3).run(accumulate, task, armed_at)
    error = max(relative_error(gradient, right) for gradient in found)
    equal = all(torch.equal(gradient, found[0]) for gradient in found)
    rows.append(
        (name, "below 1e-12" if error < 1e-12 else f"{error:.0%}", "yes" if equal else "no")
    )
study.table(rows, ["hooks fire", "gradients are off by", "replicas equal"])

# %% tags=["maintainer"]
assert [row[2] for row in rows] == ["no", "no", "yes"] and rows[2][1] == "below 1e-12"

# %% [markdown]
# This is what `no_sync()` is for in PyTorch's DDP and in our `DataParallel`: a backward inside it only adds up. [What needs the whole batch](lesson:whole_batch) has the rest of the story.
#
# Two special cases deserve a sentence each, because both have hung real runs. A parameter that *no sample reaches*, an unused layer for instance, never calls its hook, so its bucket is never full; `finish` must start what is left, or all ranks wait forever. And a parameter that is *shared by two layers* calls its hook only once, when both parts of its gradient are in.
#
# **When not to overlap.** The all-reduce competes with the backward for the GPU's memory bandwidth and some of its processors, so the computation becomes a little slower while a bucket travels. If the network is so slow that communication takes longer than the whole backward, overlap can hide only as much as the backward lasts, and you have to send less ([Send less](lesson:compress)) or less often ([Send seldom](lesson:local_sgd)).
#
# ## The library's file
#
# [minidist/parallel/reducer.py](file:minidist/parallel/reducer.py) has the machinery of this lesson. `Bucket.put` makes a gradient a view of its bucket; the pass over memory that scales it by 1/*n* also moves it, so nothing is copied for the sake of the bucket.

# %%
from minidist.parallel.reducer import Bucket, Reducer

study.source(Bucket.put)

# %% [markdown]
# The hook calls `ready`, in which you will recognize the `while`:

# %%
study.source(Reducer.ready)

# %% [markdown]
# And at the end of the backward `finish` starts the rest and waits. It also carries flags that say on how many ranks a parameter has a gradient at all, and after the first backward it lays the buckets out anew, in the order in which rank 0's hooks actually fired.

# %%
study.source(Reducer.finish)

# %% [markdown]
# ## In real processes
#
# We run the same `train` with real lanes, which are threads. The replicas are equal bit for bit, and equal to the serial run to rounding.

# %%
from minidist.comm import launch

real = launch(train, 3, task, True)
rows = [
    (f"rank {rank}", real.trace.messages(rank), real.trace.bytes_sent(rank)) for rank in range(3)
]
study.table(
    rows, ["", "messages sent", "bytes sent"], title="Twelve steps on three processes, overlapped"
)

# %% tags=["maintainer"]
one = World(1).run(train, task, True)[0]
assert all(torch.equal(history[-1], real[0][-1]) for history in real)
assert all(relative_error(a, b) < 1e-12 for a, b in zip(real[0], one))

# %% [markdown]
# The script of the last lesson uses the library's `DataParallel`, so it has buckets and overlap already. It is [examples/train_digits.py](file:examples/train_digits.py):
#
# ```
# torchrun --nproc-per-node 4 examples/train_digits.py
# ```
#
# ## Takeaways
#
# - *P* gradients in *b* buckets save $2(n-1)(P-b)$ latencies, and not a byte.
# - Fill buckets from the last layer. Let gradients be views of them, and nothing is copied.
# - The last gradient of a bucket starts its all-reduce, while the backward goes on. A step takes at least its computation and the last bucket.
# - All ranks start the buckets in the same order, whatever order their hooks fire in. Wait before the optimizer's step. Arm the hooks for the last micro-batch only.
# - The best size follows from α, β and the times of the backward. Calculate it.
#
# ## Further reading
#
# - paper:li2020 Sections 3.2 and 4.2: hooks, buckets, order, overlap; section 5 measures the best size.
# - paper:goyal2017 Gradients are sent as soon as they are ready.
# - paper:sergeev2018 Horovod's name for a bucket is tensor fusion.
