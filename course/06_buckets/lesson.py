# %% [markdown]
# # 06 · Buckets and overlap
#
# In the [last lesson](lesson:data_parallel) we averaged gradients one after another, when the backward pass was over. Let us see what that costs on a modelled cluster of four H100 cards. A model of 8 million weights takes 3.6 ms for forward and backward. Averaging its 16 gradients takes another 4.3 ms, in which all four cards do little but wait. More than half of what was paid for them is wasted.
#
# This lesson gets most of it back without sending a single byte less. **How short can the step of 7.9 ms become?**

# %%
guess = 7.9  # ms: change this number

# %% [markdown]
# ## On paper: six gradients, one a second
#
# A backward pass makes six gradients, one per second. A message takes 1 s to start and ½ s for each gradient in it, and the wire carries one message at a time. If we wait for the end of the backward and then send six messages, we are done after 6 + 6 · 1½ = 15 s.
#
# Two ideas come to mind. The first is to *put several gradients into one message*. All six together start once instead of six times, and we are done after 6 + 1 + 3 = 10 s. The second is to *send while the backward still runs*, since the wire is idle all that time. The first gradient is ready after 1 s and has arrived after 2½. The second has been ready since 2 s but finds the wire busy; it leaves at 2½ and arrives at 4. From then on the wire never rests, and the last of the six arrives after 1 + 6 · 1½ = 10 s.
#
# Each idea alone saves 5 s of the 15. Do they save 10 together? They are at odds: one large message cannot leave before the last gradient is ready, and six small ones, which can leave early, pay for six starts. So let us meet in the middle and send pairs. The first pair is complete after 2 s, takes 1 + 2 · ½ = 2 s, and has arrived at 4. At that very moment the second pair is complete, and it arrives at 6; the third arrives at 8. Two messages out of three have cost no time at all, because they travelled while the backward was busy with the next pair.
#
# ![Backward through six layers, last layer first, one second each. Above, one all-reduce of all six gradients starts when the backward is over, at 6 seconds, and ends at 10. Below, three buckets of two layers: they start at 2, 4 and 6 seconds, as soon as their two gradients are there, and end at 4, 6 and 8. Two seconds are saved.](../course/06_buckets/figures/buckets_over_backward.svg)
#
# The small function below does this calculation for messages of any size. `shares` says how many gradients each message carries. A message starts when its last gradient is ready *and* the wire is free, whichever comes later.

# %%
import torch

from minidist import study


def message_times(shares, overlap):
    """(start, end) of each message, in seconds."""
    ready = 0  # when the last gradient of this message is ready
    wire_free = 0 if overlap else sum(shares)  # without overlap nothing leaves before the end
    times = []
    for share in shares:
        ready += share  # one gradient a second
        start = max(ready, wire_free)
        end = start + 1 + share / 2
        times.append((start, end))
        wire_free = end
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
# This is the whole lesson in one table. A group of gradients that travel together is called a [bucket](term:bucket), sending while computing is called [overlap](term:overlap), and the questions are how to do both correctly, and how large a bucket should be.
#
# ## The naive step, measured
#
# Our model has 8 layers of 1,024 × 1,024, and each of four GPUs has a batch of 2,560. We need no GPU to study it: on the device `"meta"`, tensors have no numbers, and the World charges each operation the time that an H100 would need. (A GPU reaches only part of the speed on its data sheet, and the World allows for that.) A message takes 20 µs to start, and the wires carry 25 GB/s.

# %%
from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.comm.cluster import H100, Cluster
from minidist.models import mlp

ALPHA = 20e-6  # seconds
BETA = 1 / 25e9  # seconds per byte
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
    """Run a program on modelled H100 cards without numbers. The World knows its time and its messages."""
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
latencies = 16 * 6 * ALPHA
on_the_wire = 1.5 * 8 * 4 * 1024 * 1025 * BETA
adding = 16 * 4 * H100.launch + H100.moving((3 * 3 / 4 + 2) * 8 * 4 * 1024 * 1025)
assert [round(1e3 * t, 1) for t in (latencies, on_the_wire, adding)] == [1.9, 2.0, 0.4]
assert abs(computing + latencies + on_the_wire + adding - one_by_one.time) < 0.02e-3

# %% [markdown]
# In each rank's row the tall bars are its computation, the forward in blue and the backward in pink, and the short ones below are what it sends and receives. (Two of the four ranks are shown, as all four do the same. There are too many messages for arrows.) The curve at the bottom is rank 0's memory: activations pile up during the forward and are given back, layer by layer, during the backward, which leaves a gradient in the place of each.
#
# In the second half of the picture the GPUs stand nearly still. Where do these 4.3 ms go? We can account for all of them.
#
# - **Starting messages, 1.9 ms.** An all-reduce on a ring of 4 ranks takes $2(n-1)$ = 6 steps, and each costs a latency of 20 µs, however little it carries. Look closely: after each large message come a few thin ones. Every other all-reduce is for a bias of 4 kB, and it takes its 120 µs like any other. Sixteen all-reduces make 16 · 120 µs.
# - **Bytes on the wire, 2.0 ms.** The gradients have *N* = 33.6 MB, and a ring sends $2\frac{n-1}{n}N$ = 50.4 MB from each rank, at 25 GB/s.
# - **Arithmetic, 0.4 ms.** These are the thin blue lines. In the first three steps the GPU adds the chunk that has arrived to its own, and at the end it divides the sum by *n*.
#
# The two ideas attack different items of this bill. Larger messages do away with latencies. Overlap does away with nothing, but it hides what is left behind work that has to be done anyway.
#
# ## Step 1: fill buckets from the back
#
# Gradients should share messages, but which should go together? The backward pass begins at the *last* layer, because the gradient of each layer is computed from the gradient of what follows it. So the gradients of the last layer are ready first, and those of the first layer last. A bucket can leave when all its gradients are there. If it held those of the first and the last layer, it could leave only at the very end. So we fill buckets in the order in which gradients appear, from the back of the model to its front, and open a new one whenever the next gradient does not fit.


# %%
def fill(parameters, bucket_bytes):
    """Lists of parameters of at most so many bytes each; the first list is ready first."""
    buckets = []
    free = 0  # bytes that still fit into the last bucket
    for p in reversed(list(parameters)):
        if not buckets or p.nbytes > free:
            buckets.append([])
            free = bucket_bytes
        buckets[-1].append(p)  # what is larger than a bucket has one of its own
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
# (The linear layers are called 0, 2 and 4, since the ReLUs between them count as 1 and 3.) Check the first row: a bias of 4 numbers has 16 bytes and a weight 64. After `4.bias`, `4.weight` and `2.bias` 32 bytes are free, too few for `2.weight`, so a new bucket begins.
#
# ## Step 2: gradients as views
#
# A bucket is one flat tensor, and one all-reduce sends it. The obvious way is to copy the gradients in, send, and copy the averages out again. Then every gradient exists twice, and every byte of it is read or written four more times: read and written on the way in, read and written on the way out.
#
# The copies can be avoided. A tensor in PyTorch can be a *view* of a part of another: it has a shape of its own but no memory of its own. Let each `p.grad` be a view of its place in the bucket. The backward pass looks at `p.grad` before it delivers a gradient. If there is none, it puts the new gradient there; if there is one, it *adds* to it, in place. So if all views start as zeros, the backward itself writes the gradients into the bucket. And when the bucket has been averaged, every `p.grad` has been averaged with it, because it is the same memory.
#
# ![Four parameters and their gradients in two buckets. In the order in which the backward makes them, last layer first, the gradients lie one after the other in flat buffers: bias 2 and weight 2 in bucket 0, bias 1 and weight 1 in bucket 1. p.grad of each parameter is a view of its place, and one all-reduce sends a whole bucket.](../course/06_buckets/figures/bucket_layout.svg)


# %%
def flat_buffer(bucket):
    """One tensor of zeros for all gradients of a bucket; each p.grad becomes a view of it."""
    sizes = [p.numel() for p in bucket]
    buffer = torch.zeros(sum(sizes), dtype=bucket[0].dtype, device=bucket[0].device)
    for p, piece in zip(bucket, buffer.split(sizes)):  # the pieces are views
        p.grad = piece.view_as(p)  # the same memory in the parameter's shape
    return buffer


tiny = mlp([2, 3, 1])
buffer = flat_buffer(fill(tiny.parameters(), 1000)[0])  # everything fits into one bucket
tiny(torch.ones(1, 2)).sum().backward()
print(buffer)
print(tiny[0].weight.grad)

# %% tags=["maintainer"]
assert torch.equal(buffer[-6:].view(3, 2), tiny[0].weight.grad)
for p in tiny.parameters():
    assert p.grad.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()

# %% [markdown]
# Read the buffer from left to right: one number for the last layer's bias, three for its weight, three for the first layer's bias, and six for its weight. The last line prints these six once more, as `tiny[0].weight.grad` sees them. We have not written a line that copies.
#
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
saved = afterwards[1].time - afterwards[40].time
assert round(1e3 * saved, 1) == 2.2 and round(1e3 * (saved - 15 * 6 * ALPHA), 1) == 0.4
assert round(1e3 * (afterwards[1].time - one_by_one.time), 1) == 0.2

# %% [markdown]
# Into a bucket of 1 MB not even one layer fits, so there are 16 buckets again and as many messages as before. The step has even become 0.2 ms *longer*. That is the price of the views: a gradient that used to be simply left in `p.grad` is now added to zeros, which had to be written first. For 16 gradients these are 32 more operations, and each costs 5 µs to launch. Adding reads two numbers and writes one, so together with the zeros every byte is moved four times more, just as often as with the copies. What the views save here is memory, since no gradient exists twice. (At the end of this lesson you will see how the library saves the traffic as well.)
#
# From there on each row is better than the one before. A single bucket saves all the latencies that can be saved, $(P-b)\cdot 2(n-1)\,\alpha$ = 15 · 120 µs = 1.8 ms. Another 0.4 ms are saved because the GPU now adds, divides and fills with zeros one large tensor instead of 16 small ones. And still the wire is idle for more than half of the step.
#
# ## Step 3: overlap
#
# To send during the backward pass, we have to know *when* a bucket is full, and we need a way to *start* something without waiting for its end.
#
# PyTorch can tell us when. A [hook](term:hook) is a function of ours that PyTorch calls at a certain moment. The one that we need is registered with `register_post_accumulate_grad_hook`. It is called in the middle of the backward, as soon as the gradient of its parameter is complete, and is handed the parameter. Let us only print, at first, to see in which order the hooks of the small model fire:


# %%
def announce(p):
    print(names[p], end="  ")


for p in small.parameters():
    p.register_post_accumulate_grad_hook(announce)
small(torch.ones(1, 4)).sum().backward()

# %% [markdown]
# It is the order in which we have filled the buckets: last layer first. So all that a hook has to do is to count how many gradients its bucket is still missing. The one that brings the count to zero starts the all-reduce. Follow the counts for the three buckets of the table above:
#
# | the hook of | still missing in buckets 0, 1, 2 | starts |
# |---|---|---|
# | (before the backward) | 3, 2, 1 | |
# | `4.bias` | 2, 2, 1 | |
# | `4.weight` | 1, 2, 1 | |
# | `2.bias` | 0, 2, 1 | bucket 0 |
# | `2.weight` | 0, 1, 1 | |
# | `0.bias` | 0, 0, 1 | bucket 1 |
# | `0.weight` | 0, 0, 0 | bucket 2 |
#
# And how do we start it? If the hook called `all_reduce_` itself, the backward would stand still until it returned, because a hook is part of the backward. Instead it calls `comm.stream(all_reduce_, buffer, "mean")`, which returns at once. The all-reduce runs on a [lane](term:lane), a second line of work of the same rank. (On a GPU a lane is a second [stream](term:stream), the queue of work that you met in [Messages](lesson:messages).) A lane has a channel of its own: the function is called with the lane's Comm in front, as `all_reduce_(lane, buffer, "mean")`, so its messages cannot be mistaken for the program's. Jobs of a lane run one after the other, in the order in which they were started. What `stream` returns is a handle, and its `wait` blocks until the job is done.
#
# With this comes an obligation. **From the moment a bucket has started until it has been waited for, it belongs to the lane.** Nobody else may read or write it. Most of what goes wrong below breaks this rule.


# %%
class Overlap:
    """Starts the all-reduce of each bucket as soon as it is full, in the order of the buckets."""

    def __init__(self, comm, buckets):
        self.comm = comm
        self.buckets = buckets
        self.buffers = [flat_buffer(bucket) for bucket in buckets]
        self.missing = [len(bucket) for bucket in buckets]
        self.works = []  # a handle for each bucket that has started: so len(works) is the next one

    def arm(self):
        """From now on hear of every gradient."""
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(self.hook_for(k))

    def hook_for(self, k):
        """The hook of a parameter in bucket k."""

        def hook(p):
            self.missing[k] -= 1
            self.start_what_is_full()

        return hook

    def start_what_is_full(self):
        # In order: a bucket that is full waits for those before it.
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] <= 0:
            self.start_next()

    def start_next(self):
        buffer = self.buffers[len(self.works)]
        self.works.append(self.comm.stream(all_reduce_, buffer, "mean"))

    def finish(self):
        """Call it after the backward and before the optimizer's step."""
        while len(self.works) < len(self.buckets):
            self.start_next()  # buckets with a parameter that no sample has reached
        for work in self.works:
            work.wait()
        self.works = []
        self.missing = [len(bucket) for bucket in self.buckets]


# %% [markdown]
# Two things in it are less simple than the counting: the `while` that starts buckets in order, and the first lines of `finish`. Both are there for models that do not behave as nicely as ours, and both will be explained when we break them. For now, a step has two lines more than before: build an `Overlap` and arm it, and call `finish` at the end.


# %%
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
# Below, each rank has two rows, one for its computation and one for its lane. (Every rank numbers its lanes from 0, so both are called lane 0.) Messages, and the sums that belong to them, have moved to the lane and far to the left. The first of them leave at 2.2 ms, when three of the eight layers have gone through the backward. (Three, although a bucket has room for two: you will find out why.) The backward itself has not become longer.
#
# You can also see what cannot be hidden: the last bucket is full only when the backward is over. So a step takes at least its computation plus one bucket. Point at the bars in the next picture and find out which bucket travels while which layer computes.

# %%
study.viewer(beside[10].trace, ranks=[0, 1], title="Buckets of 10 MB, sent during the backward")

# %% [markdown]
# The curve of the memory has changed too. The gradients' 33.6 MB are there from the start, because the buckets are, and the peak has risen from 143 to 172 MB. That is a cost of keeping gradients in buckets between steps.
#
# ### Is it right?
#
# Things that run at the same time easily go wrong, so the oracle matters more than ever. It is the serial run again, gradient by gradient, on the handwritten digits in double precision. We take three ranks, and buckets of 5 kB, which makes three of them with 3, 2 and 1 gradients. Two small functions word what we want to know: how far a result is off, and whether all ranks hold the same.

# %%
from torch.nn.functional import cross_entropy

from minidist.parallel.data import Sampler
from minidist.tasks import digits

task = digits()


def off(found, right):
    """The relative error in words. Below 1e-12 it is rounding, in double precision."""
    error = float((found - right).norm() / right.norm())
    return "below 1e-12" if error < 1e-12 else f"{error:.0%}"


def equal(ranks):
    return "yes" if all(torch.equal(x, ranks[0]) for x in ranks) else "no"


def gradients(comm, task):
    model = mlp([64, 32, 16, 10], dtype=torch.float64)
    overlap = Overlap(comm, fill(model.parameters(), 5000))
    overlap.arm()
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    overlap.finish()
    return {name: p.grad for name, p in model.named_parameters()}


serial = World(1).run(gradients, task)[0]
three = World(3).run(gradients, task)
rows = []
for name, right in serial.items():
    found = [of_rank[name] for of_rank in three]
    rows.append((name, off(found[0], right), equal(found)))
study.table(rows, ["gradient of", "off from the serial one", "equal on 3 ranks, bit for bit"])

# %% tags=["maintainer"]
assert all(row[1:] == ("below 1e-12", "yes") for row in rows)

# %% [markdown]
# ## How large should a bucket be?
#
# Two forces pull in opposite directions. Every bucket pays for six latencies, which speaks for few and large ones. And what is left over when the backward ends is the last bucket, which speaks for a small one. There is a third effect: if the wire is the slower of the two, buckets queue up behind one another, and then what counts is when the *first* can leave, and small buckets leave earlier. Somewhere in between lies the best size, and it can be calculated. We need two things.
#
# The first is when each gradient is ready. A rank that sends nothing can measure it: its hooks write down the time. The second is how long a bucket of *s* bytes takes. A ring needs $2(n-1)\left(\alpha+\frac sn\beta\right)$ for the messages. Then the GPU adds *n* − 1 chunks of *s*/*n* bytes to its own, where each sum reads two numbers and writes one, and divides all *s* bytes by *n*, which reads one number and writes one. These *n* operations cost a launch each, and the bytes that they move cost what the memory's bandwidth allows. `H100.launch` is the World's figure for the first, and `H100.moving` gives the seconds for the second.
#
# The rest is the little function from the beginning: a bucket starts when it is full *and* the wire is free, whichever comes later.


# %%
def ready_times(comm):
    """The bytes of each gradient, and when it is ready, in the order of the backward."""
    model = network(comm)
    for bucket in fill(model.parameters(), 10 * MB):
        flat_buffer(bucket)  # with views the backward adds, and that takes time
    sizes = []
    times = []

    def hook(p):
        sizes.append(p.nbytes)
        times.append(comm.now())

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    forward_backward(comm, model)
    return sizes, times


def bucket_seconds(nbytes, n=4, alpha=ALPHA):
    """How long the all-reduce of one bucket takes."""
    messages = 2 * (n - 1) * (alpha + nbytes / n * BETA)
    moved = (n - 1) * 3 * nbytes / n + 2 * nbytes  # bytes in and out of memory: sums, division
    return messages + n * H100.launch + H100.moving(moved)


def step_seconds(sizes, times, bucket_bytes, overlap=True, **ring):
    """The predicted time of a step."""
    wire_free = 0.0 if overlap else times[-1]
    filled = 0  # bytes in the bucket that is being filled
    full_at = 0.0  # when its latest gradient was ready
    for size, time in zip(sizes, times):
        if (
            filled and filled + size > bucket_bytes
        ):  # no room: this bucket is sent, a new one begins
            wire_free = max(full_at, wire_free) + bucket_seconds(filled, **ring)
            filled = 0
        filled += size
        full_at = time
    return max(full_at, wire_free) + bucket_seconds(filled, **ring)


one_rank = World(1, cluster=Cluster.uniform(1, ALPHA, BETA, H100), device="meta")
sizes, times = one_rank.run(ready_times)[0]
layer = sizes[0] + sizes[1]  # the bytes of a bias and a weight
candidates = [round(MB * 2 ** (k / 8)) for k in range(45)]  # from 1 MB to 45 MB
candidates += [k * layer for k in range(1, 9)]  # and buckets of exactly so many layers
candidates.sort()
best = min(candidates, key=lambda size: step_seconds(sizes, times, size))

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
assert abs(shortest / step_seconds(sizes, times, best) - 1) < 0.02
assert best == 2 * layer and 4.52e-3 < shortest < 4.57e-3
assert shortest < 1.0001 * min(world.time for world in beside.values())
assert round(1e3 * (step_seconds(sizes, times, best + 4096) - shortest), 1) == 0.3
assert round(1e3 * step_seconds(sizes, times, 25 * 2**20), 1) == 5.9 and 25 * 2**20 // layer == 6

# %% [markdown]
# The step has shrunk from 7.9 to 4.55 ms, of which 1 ms is more than the computation alone. As in the example on paper, each idea by itself brings about the same, down to 5.9 ms, and both together go further.
#
# The curves are not smooth but have stairs and teeth. Below 4.2 MB nothing changes, because no bucket has room for a whole layer. Each stair is a size at which one more layer fits. The teeth in the lower curve are more instructive: a bucket that holds exactly two layers is best, and one that is 4 kB larger loses 0.3 ms. It has room for two layers *and* the bias of the next one, so that the whole bucket stands waiting for 4 kB until the backward of the next layer is done. This is what you saw with 10 MB: the first bucket left only after the third layer.
#
# Does the best size depend on the network? The same function tells:

# %%
rows = []
for n in (4, 16):
    for alpha in (5e-6, 20e-6, 80e-6):
        steps = {}
        for layers in range(1, 9):
            steps[layers] = step_seconds(sizes, times, layers * layer, n=n, alpha=alpha)
        rows.append((n, round(alpha * 1e6), min(steps, key=steps.get), 1e3 * min(steps.values())))
study.table(
    rows,
    ["ranks", "α, µs", "layers in the best bucket", "step, ms"],
    title="The same model on other networks of 25 GB/s",
)

# %% tags=["maintainer"]
assert [row[2] for row in rows] == [1, 2, 4, 2, 4, 8]

# %% [markdown]
# The best size grows with $\alpha$ and with the number of ranks, because a bucket pays for $2(n-1)$ latencies. On 16 ranks with slow messages one bucket for everything is best, and overlap has nothing left to hide behind. PyTorch cannot know your network. Its default is 25 MiB, with a first bucket of 1 MiB so that the wire has something to do early. For our small model that would be too much: 25 MiB hold six of the eight layers, and the step would take 5.9 ms.
#
# ## Break it: each rank starts what is full
#
# In `start_what_is_full` there is a `while` that looks at the buckets in order. Why so complicated? Why not start a bucket as soon as *it* is full?
#
# Because hooks fire in the order of *this rank's* backward, and nothing guarantees that all ranks have the same one. Autograd goes backwards through the operations that a rank has really executed: what came last in the forward comes first in the backward. If a model has two branches, and some ranks compute them in the other order, their buckets fill in the other order. Now an all-reduce has no name on the wire. The first that rank 0 starts is matched with the first that rank 1 starts, whatever is in it.
#
# ![Two ranks whose backwards make the gradients in different orders. On rank 0 bucket 0 is full first, on rank 1 bucket 1. If each sent what is full first, the sum would mix two layers. So rank 1 holds bucket 1 back until bucket 0 is full.](../course/06_buckets/figures/one_order.svg)
#
# In the next cell three ranks have a bucket for each branch, and rank 1 runs its branches in the other order. The wrong variant differs from `Overlap` in its hook only.


# %%
class StartsWhatIsFull(Overlap):
    """Wrong: a bucket starts as soon as it is full, whatever came before it."""

    def hook_for(self, k):
        def hook(p):
            self.missing[k] -= 1
            if self.missing[k] == 0:
                self.works.append(self.comm.stream(all_reduce_, self.buffers[k], "mean"))

        return hook


def two_branches(comm, kind, widths=(5, 5), all_alike=False):
    branches = [mlp([4, width], seed, torch.float64) for seed, width in enumerate(widths)]
    # From the back, as always: bucket 0 has the branch that comes last in the forward.
    overlap = kind(comm, [list(branch.parameters()) for branch in reversed(branches)])
    overlap.arm()
    if comm.rank == 1 and not all_alike:
        branches.reverse()
    x = torch.ones(1, 4, dtype=torch.float64) + comm.rank
    loss = 0
    for branch in branches:
        loss = loss + branch(x).square().sum()
    loss.backward()
    overlap.finish()
    return torch.cat(overlap.buffers)


right = World(3).run(two_branches, Overlap, all_alike=True)[0]
rows = []
for name, kind in {"as soon as it is full": StartsWhatIsFull, "in one order": Overlap}.items():
    found = World(3).run(two_branches, kind)
    rows.append((name, off(found[1], right), equal(found)))
study.table(rows, ["a bucket starts", "rank 1's gradients are off by", "replicas equal"])

# %% tags=["maintainer"]
assert rows[0][2] == "no" and rows[1][1:] == ("below 1e-12", "yes")

# %% [markdown]
# There was no error, just wrong numbers. Ranks 0 and 2 sent their second branch first, as it was last in their forward, and rank 1 sent its first branch. Both have the same size, and branch was added to branch. If the sizes differ, the header that our messages carry catches the mistake. In the next run the second branch has 6 outputs instead of 5:

# %%
try:
    World(3).run(two_branches, StartsWhatIsFull, (5, 6))
except ValueError as error:
    for line in str(error).splitlines():
        if " at " not in line:  # leave out the lines of the library
            print(line)

# %% [markdown]
# Rank 0 is in the all-reduce of its second branch, with 6 · 4 weights and 6 biases, and sends a chunk of 10 numbers, a third of these 30. Rank 1 is in the all-reduce of its first branch, with 25 numbers, and expects 8 of them. NCCL has no such header: it hangs, or it adds the wrong numbers. So *the order of the buckets is part of the program* and must be the same on all ranks. It is not enough that a bucket is full; all buckets before it must have started. This is what the `while` sees to.
#
# ## Break it: the step that does not wait
#
# The second classic: the hooks have started everything, and the optimizer takes its step before anyone has waited. The buckets still belong to the lane then.


# %%
def train(comm, task, finish_first, steps=12):
    model = mlp([64, 32, 16, 10], dtype=torch.float64)
    overlap = Overlap(comm, fill(model.parameters(), 5000))
    overlap.arm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []  # the weights after each step
    for mine, _ in zip(Sampler(len(task.x), 60, comm), range(steps)):
        optimizer.zero_grad(set_to_none=False)  # the views stay
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        if finish_first:
            overlap.finish()
            optimizer.step()
        else:  # wrong
            optimizer.step()
            overlap.finish()
        history.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
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
# Each rank steps with what lies in the bucket at that moment: its own gradient, or a half-finished sum. So the replicas differ from the first step on. Again nothing complains, and only the comparison of the replicas shows it. On a real machine it is worse, because what lies in the bucket depends on who was faster. The wrong result then differs from run to run, and on a fast network it may even be right most of the time. Such a bug is called a race.
#
# ## Break it: hooks in every backward
#
# Often a rank's share of a batch does not fit into memory and is processed in several [micro-batches](term:micro-batch) whose gradients add up. Now the hooks already fire in the first of these backwards, and the buckets leave with gradients that are not complete.
#
# Take two ranks with two micro-batches each. The gradients of one weight are 1 and 3 on rank 0, and 5 and 7 on rank 1. They should add up to 4 and 12 and be averaged to 8. Instead, the hooks of the first backward average 1 and 5, which leaves 3 on both ranks. The second backward adds 3 on rank 0 and 7 on rank 1, and there are 6 and 10: both wrong, and not equal. Nobody averages again, because all buckets have started. (And if the second backward comes before the buckets have arrived, it even writes into what belongs to the lane.)
#
# So the hooks must be armed for the last micro-batch only. In the next run they are armed before micro-batch `armed_at` of four. To be independent of who is faster, it lets every bucket that has started arrive before the next backward begins.


# %%
def accumulate(comm, task, armed_at):
    model = mlp([64, 32, 16, 10], dtype=torch.float64)
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    overlap = Overlap(comm, fill(model.parameters(), 5000))
    for i, part in enumerate(mine.chunk(4)):
        if i == armed_at:
            overlap.arm()
        loss = cross_entropy(model(task.x[part]), task.y[part]) / 4
        loss.backward()
        for work in overlap.works:
            work.wait()
    overlap.finish()
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


right = torch.cat([gradient.view(-1) for gradient in serial.values()])
rows = []
for name, armed_at in {"in every backward": 0, "in the last two": 2, "in the last": 3}.items():
    found = World(3).run(accumulate, task, armed_at)
    rows.append((name, off(found[0], right), equal(found)))
study.table(rows, ["hooks fire", "rank 0's gradients are off by", "replicas equal"])

# %% tags=["maintainer"]
assert [row[2] for row in rows] == ["no", "no", "yes"] and rows[2][1] == "below 1e-12"

# %% [markdown]
# The more micro-batches come after the average, the larger the error. Keeping the hooks quiet in all backwards but the last is what `no_sync()` is for in PyTorch's DDP and in our `DataParallel`: a backward inside it only adds up. [What needs the whole batch](lesson:whole_batch) has the rest of the story.
#
# **Two parameters that are hard to count.** A parameter that *no sample reaches*, in an unused layer for instance, gets no gradient, so its hook never fires and its bucket is never full. If that happens on one rank only, the others start this bucket and wait for a partner that never comes. This is why `finish` starts whatever is left. (PyTorch's DDP wants to be told with `find_unused_parameters=True`.) And a parameter that is *shared by two layers*, such as the [tied weights](term:tied-weights) of a language model, calls its hook only once, when both parts of its gradient have been added. Whoever counts one gradient for each layer waits forever for the second.
#
# **When not to overlap.** On a real GPU the all-reduce competes with the backward for memory bandwidth and for some of the GPU's processors, so the computation becomes a little slower while a bucket travels; the World does not model that. And overlap cannot hide more than there is to hide behind. If communication takes longer than the whole backward, you have to send less ([Send less](lesson:compress)) or less often ([Send seldom](lesson:local_sgd)).
#
# ## The library's file
#
# [minidist/parallel/reducer.py](file:minidist/parallel/reducer.py) has the machinery of this lesson. A `Bucket` is a flat buffer with its parameters, and its set `missing` is our count. Its method `put` is called when a gradient is there:

# %%
from minidist.parallel.reducer import Bucket, Reducer

study.source(Bucket.put)

# %% [markdown]
# Here is the answer to the traffic that our views cost. The library lets the backward leave a new gradient wherever it likes, without zeros and without adding (`grad is not view`). The average needs one pass over each gradient anyway, to divide it by *n*; that is the `factor`. `torch.mul(…, out=view)` reads the gradient where it is and writes the product into the bucket. So the pass that divides also moves, and the division after the all-reduce falls away.
#
# The reducer's hook calls `put`, and then looks for buckets to start. You will recognize the `while`; `_started` is our `len(works)`:

# %%
study.source(Reducer.ready)

# %% [markdown]
# (`overlap` can be switched off, and `first` is a job that must run before anything is sent, for techniques that need all gradients first.) When the backward ends, autograd calls back, as you saw in the last lesson, and `finish` does what ours does: it completes the buckets that are late, starts them, and waits for all.

# %%
study.source(Reducer.finish)

# %% [markdown]
# Two things are new. Each bucket ends with a few extra numbers, a flag for each gradient, 1 where this rank has one and 0 where it has none. They are summed with the bucket, so every rank learns on how many ranks a parameter has a gradient at all, and `hand_out` gives the average also to those that had none. And `_agree`, after the first backward, lets rank 0 broadcast the order in which its hooks have really fired. From the next step on the buckets are laid out in this order (`_order`), since the order of registration was only a guess.
#
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
assert all(float((a - b).norm() / b.norm()) < 1e-12 for a, b in zip(real[0], one))
assert real.trace.messages(0) == 12 * 3 * 4

# %% [markdown]
# The count is the predicted one: 12 steps, 3 buckets in each, and $2(n-1)$ = 4 messages for a bucket. (The bytes differ a little because 3 does not divide the buckets evenly.)
#
# The script of the last lesson uses the library's `DataParallel`, so it has buckets and overlap already. It is [examples/train_digits.py](file:examples/train_digits.py):
#
# ```
# torchrun --nproc-per-node 4 examples/train_digits.py
# ```
#
# ## Takeaways
#
# - *P* gradients in *b* buckets save $2(n-1)(P-b)$ latencies, and not a byte.
# - Fill buckets from the last layer. If gradients are views of their bucket, nothing has to be packed or unpacked.
# - The last gradient of a bucket starts its all-reduce, while the backward goes on. A step takes at least its computation and the last bucket.
# - A bucket that has started belongs to the lane until it has been waited for. Wait before the optimizer's step, and arm the hooks for the last micro-batch only.
# - All ranks start the buckets in the same order, whatever order their hooks fire in.
# - The best size follows from α, β, *n* and the times of the backward. Calculate it.
#
# ## Further reading
#
# - paper:li2020 Sections 3.2 and 4.2: hooks, buckets, order, overlap; section 5 measures the best size.
# - paper:goyal2017 Gradients are sent as soon as they are ready.
# - paper:sergeev2018 Horovod's name for a bucket is tensor fusion.
