# %% [markdown]
# # 28 · Capstone: your ring under PyTorch's
#
# PyTorch's `DistributedDataParallel` (DDP) has thousands of lines, in Python and C++: buckets, hooks, futures. None of
# them adds up gradients of several ranks. For that it calls a *process group*, which has some 30 methods.
# **How many of them does a training step of DDP call?**

# %%
guess = 10  # different methods: change this number

# %% [markdown]
# If they are few, you can write them. You have: in lesson 02.
#
# ## On paper: 3 ranks, 6 numbers
#
# The ring, once more. Chunk i is finished at rank i, then passed on. New is `op`: a group must also find a maximum.

# %%
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from minidist import collectives, study
from minidist.comm import Cluster, World, launch
from minidist.comm.processgroup import CommGroup, process_group
from minidist.comm import processgroup
from minidist.models import mlp
from minidist.tasks import digits

net = partial(mlp, [64, 32, 10], dtype=torch.float64)

# %%
COMBINE = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}


def ring(comm, x, op):
    """x, flat, combined over all ranks, in place."""
    n = comm.size
    r = comm.rank
    chunks = x.tensor_split(comm.size)
    right, left = (r + 1) % n, (r - 1) % n
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
        COMBINE[op](mine, got, out=mine)
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)


# %%
ROWS = [[1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60], [600, 500, 400, 300, 200, 100]]


def six(comm, op):
    x = torch.tensor(ROWS[comm.rank], dtype=torch.float64)
    ring(comm, x, op)
    return [str(int(number)) for number in x]


before = [[str(x) for x in row] for row in ROWS]
world = World(3)
study.holdings(
    {"before": before, "sum": world.run(six, "sum"), "max": World(3).run(six, "max")},
    arrows=False,
    title="Two rings over the same numbers",
)

# %%
assert [world.trace.messages(r) for r in range(3)] == [4, 4, 4]  # 2(n−1)
study.messages(
    world.trace,
    label="bytes",
    clock="steps",
    title="2(n−1) messages a rank, a chunk of 16 bytes each",
)

# %% [markdown]
# ## Naive first: a process group with nothing in it
#
# A process group is a class. In Python it can be written as a subclass; C++ calls the methods that are there.
# **Predict** what DDP says to one without any.

# %%
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Empty(dist.ProcessGroup):
    def __init__(self, comm):
        super().__init__(comm.rank, comm.size)
        self.comm, self.calls = comm, []


def wrap(comm, make):
    return DDP(net(), process_group=make(comm))


# %% tags=["raises-exception"]
World(2).run(wrap, Empty)

# %% [markdown]
# It looks for a backend, and there is none: no method was found in Python. So we add what is asked for, one after the
# other, and write down each call. A call returns a *work*, something to wait for. Ours is done already.


# %%
class Done(dist.Work):
    """A work that was over before it was asked for."""

    def __init__(self, result):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout=None):
        return True

    def get_future(self):
        return self.future


# %%
class Three(Empty):
    """The first of three methods, each a call of ours."""

    def allgather(self, outputs, inputs, opts=None):  # outputs[0][r] becomes rank r's inputs[0]
        self.calls.append("allgather")
        rows = collectives.all_gather(self.comm, inputs[0][None])
        for out, row in zip(outputs[0], rows):
            out.copy_(row)
        return Done(outputs)


# %%
class Three(Three):
    def broadcast(self, tensors, opts=None):
        self.calls.append("broadcast")
        collectives.broadcast_(self.comm, tensors[0], opts.rootRank)
        return Done(tensors)

    def allreduce(self, tensors, opts=None):
        self.calls.append("allreduce")
        # opts.reduceOp says which; DDP's gradients are always a sum
        ring(self.comm, tensors[0].view(-1), "sum")
        return Done(tensors)


# %% [markdown]
# Is it enough? Digits, 3 ranks of a World, a third of each batch on each. The oracle: one rank with all of it.

# %%
task = digits()


def losses(comm, model, steps=12, batch=96):
    """SGD on this rank's part of each batch; the mean loss of the ranks in each step."""
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.5), []
    for rows in torch.arange(steps * batch).view(steps, batch)[:, comm.rank :: comm.size]:
        optimizer.zero_grad()
        loss = cross_entropy(model(task.x[rows]), task.y[rows])
        loss.backward()
        optimizer.step()
        seen.append(collectives.all_reduce_(comm, loss.detach().clone(), "mean").item())
    return seen


# %%
def on_three(comm):
    model = wrap(comm, Three)
    begun = list(model.process_group.calls)
    return losses(comm, model), begun, model.process_group.calls[len(begun) :]


steps, oracle = range(1, 13), World(1).run(lambda comm: losses(comm, net()))[0]
ours, begun, calls = World(3).run(on_three)[0]
assert max(abs(a - b) for a, b in zip(ours, oracle)) < 1e-12
study.curves(
    {"one rank": (steps, oracle), "DDP on three methods": (steps, ours)},
    xlabel="step",
    ylabel="loss",
    title="PyTorch's DDP, our ring, in a World",
)

# %% [markdown]
# The lines lie on each other: equal within 1e-12. Now look at what was called.

# %%
names = ("allgather", "broadcast", "allreduce")
study.table(
    [(name, begun.count(name), calls.count(name)) for name in names],
    ["method", "when DDP is made", "in 12 steps"],
    title="What DDP asks of a process group",
)

# %%
assert set(calls) == {"allreduce", "broadcast"} and calls.count("allreduce") == 12
study.bars({"your guess": guess, "methods in a step": 1}, title="What a step of DDP calls")

# %% [markdown]
# **One**: `allreduce`. At the start ranks compare the number of their parameters (allgather, and a broadcast of their
# shapes), and take those of rank 0. After the first backward pass DDP lays its buckets out anew, in the order in which
# gradients became ready, and rank 0's order is broadcast. From then on, allreduce.
#
# ## DDP in a World: predict the bytes
#
# Everything that a World can do, it does with PyTorch's DDP now. **Predict** what each rank sends in a step for
# n = 2…8: 2,410 parameters in float64. And how many messages, if the gradients lie in 2 buckets, on 4 ranks?


# %%
def one_step(comm, cap=25.0, own=ring):
    """Of the third step, when buckets have their order: when it begins, and the size of each call."""
    sizes = []

    def counted(comm, x, op):
        sizes.append(len(x))
        own(comm, x, op)

    group = CommGroup(comm, collectives, overlap=False, all_reduce_=counted)
    model = DDP(net(), process_group=group, bucket_cap_mb=cap)
    for _ in range(3):
        start, before = comm.now(), len(sizes)
        model(task.x[:4]).sum().backward()
    return start, sizes[before:]


# %%
def sent(n, **options):
    world = World(n)
    results = world.run(one_step, **options)
    own = [m for m in world.trace if m.src == 0 and m.start >= results[0][0]]
    return sum(m.nbytes for m in own), len(own), results[0][1]


ns = [2, 3, 4, 6, 8]
predicted = [2 * (n - 1) / n * 2410 * 8 for n in ns]
counted = [sent(n)[0] for n in ns]
# n does not divide 2,410
assert all(abs(a - b) <= 2 * n * 8 for a, b, n in zip(counted, predicted, ns))
study.curves(
    {"2(n−1)/n · N": (ns, predicted)},
    points={"2(n−1)/n · N": (ns, counted)},
    xlabel="ranks",
    yunit="B",
    ylabel="a rank sends in a step",
    title="PyTorch's DDP, counted message by message",
)

# %%
caps = {"25 MiB, the default": 25.0, "1 KiB": 2**-10, "64 B": 2**-14}
rows = [(name, sent(4, cap=cap)[2], sent(4, cap=cap)[1]) for name, cap in caps.items()]
for _, buckets, messages in rows:
    assert messages == 2 * 3 * len(buckets)
study.table(
    [(name, ", ".join(map(str, sizes)), messages) for name, sizes, messages in rows],
    ["bucket_cap_mb", "numbers in each bucket", "messages a rank"],
    title="Buckets of DDP, 4 ranks",
)

# %% [markdown]
# Smaller buckets, the same bytes, more messages: each bucket pays 2(n−1) latencies. What they are good for is overlap
# (lesson 06). The last layer comes first: backward begins at the end.
#
# ## Any algorithm, any cluster
#
# `minidist.comm.processgroup.CommGroup` is our `Three` with all methods, and what does the work is handed in. So PyTorch's
# DDP runs on two modelled nodes of 8 GPUs, with the algorithms of lesson 03. **Predict** which is fastest for 19 kB.


# %%
def seconds(algorithm):
    world = World(16, cluster=Cluster.dgx_h100(nodes=2))
    results = world.run(one_step, own=partial(collectives.all_reduce_, algorithm=algorithm))
    start = results[0][0]
    return max(m.arrived for m in world.trace) - min(
        m.start for m in world.trace if m.start >= start
    )


found = {name: seconds(name) for name in ("naive", "ring", "halving_doubling")}
assert min(found, key=found.get) == "halving_doubling" and max(found, key=found.get) == "ring"
study.bars(found, unit="s", title="A bucket of PyTorch's DDP on 16 modelled GPUs")

# %% [markdown]
# Sixteen GPUs that nobody owns, and C++ that does not know it. A small bucket is all latency: 30 messages in a row lose
# even against the naive way; halving-doubling has 2·log₂16 = 8.
#
# ## Now, but later
#
# In a World a call returns when it is done (`overlap=False`). On real processes DDP shall go on with backward while
# the ring runs. So a call must return *before* it is done, with a work that knows when it is. Ours starts a job
# in a lane (`comm.stream`, lesson 06):

# %%
study.source(processgroup.start_collective)

# %% [markdown]
# For its buckets C++ waits for the future, not for Python's `wait`; that one it calls after an allgather or a
# broadcast, when DDP is made. A future that was given an exception raises it in Python only; for C++ it holds a value
# that is no tensor, and DDP crashes. A callback of `then` that raises makes it fail on both sides. Is it right? DDP on
# real processes with the lane, against gloo, PyTorch's own group for CPUs:


# %%
def on_ddp(comm, own=None):
    group = process_group(comm, collectives, all_reduce_=own) if own else dist.group.WORLD
    return losses(comm, DDP(net(), process_group=group, bucket_cap_mb=2**-10))


gloo = {n: launch(on_ddp, n, transport="gloo")[0] for n in (2, 3)}
mine = {n: launch(on_ddp, n, ring)[0] for n in (2, 3)}
assert mine[2] == gloo[2] and max(abs(a - b) for a, b in zip(mine[3], gloo[3])) < 1e-12
study.table(
    [(2, "equal, bit for bit"), (3, "below 1e-12")],
    ["ranks", "DDP's losses: our ring − gloo"],
    title="Twelve steps in float64",
)

# %% [markdown]
# On two ranks equal to the last bit: a + b = b + a. With three, (a + b) + c is not a + (b + c), and gloo adds up in
# another order.
#
# ## FSDP2: two more methods
#
# `fully_shard` keeps 1/n of each layer on each rank (lesson 13). **Predict** which collectives it calls in a step, and
# in which order, for three layers. Here are the two that you wrote in lesson 02, on chunks in place:


# %%
def all_gather_(comm, chunks):
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        comm.sendrecv(
            chunks[(r - step) % n],
            (r + 1) % n,
            chunks[(r - 1 - step) % n],
            (r - 1) % n,
            label="gather",
        )


def reduce_scatter_(comm, chunks, op):
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        mine, out = chunks[(r - 2 - step) % n], chunks[(r - 1 - step) % n]
        got = comm.sendrecv(out, (r + 1) % n, torch.empty_like(mine), (r - 1) % n, label="reduce")
        COMBINE[op](mine, got, out=mine)


# %%
OWN = dict(all_gather_=all_gather_, reduce_scatter_=reduce_scatter_)


def noted(calls):
    """Our two, which also write down that they were called."""

    def note(name, run, *args):
        calls.append(name)
        run(*args)

    return {name: partial(note, name.split("_")[-2], run) for name, run in OWN.items()}


# %%
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def sharded(net, group):
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


# %%
def strip(comm):
    calls, three = [], mlp([64, 32, 32, 10], dtype=torch.float64)
    loss = sharded(three, process_group(comm, overlap=False, **noted(calls)))(task.x[:4]).sum()
    calls.append("|")
    loss.backward()
    return calls


forward, _, backward = ", ".join(launch(strip, 2)[0]).partition(", |, ")
assert (
    forward == "gather, gather, gather"
    and backward.count("scatter") == backward.count("gather") == 3
)
study.table(
    [("forward", forward), ("backward", backward)],
    ["", "calls"],
    title="What FSDP2 asks of a group, 3 layers",
)

# %% [markdown]
# A layer is gathered, used, and freed; gathered again for backward; its gradients go to their owners. In backward the
# next layer is gathered before this one's gradients are scattered: prefetch. Does it train?


# %%
def on_fsdp(comm, own=None):
    group = process_group(comm, **own) if own else dist.group.WORLD
    return losses(comm, sharded(net(), group))


gloo = {n: launch(on_fsdp, n, transport="gloo")[0] for n in (2, 3)}
runs = {n: launch(on_fsdp, n, OWN) for n in (2, 3)}
assert runs[2][0] == gloo[2] and max(abs(a - b) for a, b in zip(runs[3][0], gloo[3])) < 1e-12
lines = {
    "one rank": (steps, oracle),
    "FSDP2, our collectives": (steps, runs[3][0]),
    "FSDP2, gloo": (steps, gloo[3]),
}
study.curves(lines, xlabel="step", ylabel="loss", title="FSDP2 on 3 ranks")

# %% [markdown]
# 32 and 10 rows do not split over 3 ranks. FSDP2 pads them, so a group sees equal chunks only.
#
# ## What sharding costs
#
# DDP: 2(n−1)/n·N. FSDP2: gathered, gathered, scattered. **Predict** its bytes and its messages in a step.


# %%
def padded(n, shapes=((32, 64), (32,), (10, 32), (10,))):
    """Numbers, with each tensor's rows rounded up to a multiple of n."""
    return sum(-(-rows // n) * n * torch.Size(rest).numel() for rows, *rest in shapes)


counted = {
    n: [m.nbytes for m in run.trace if m.src == 0 and m.label in ("gather", "reduce")]
    for n, run in runs.items()
}
for n, own in counted.items():
    assert (sum(own), len(own)) == (12 * 3 * (n - 1) / n * padded(n) * 8, 12 * 6 * (n - 1))
study.table(
    [
        (n, round(2 * (n - 1) / n * 2410 * 8), sum(own) // 12, len(own) // 12)
        for n, own in counted.items()
    ],
    ["ranks", "DDP, bytes", "FSDP2, bytes", "FSDP2, messages"],
    title="Each rank sends in a step",
)

# %%
ns = [2, 3, 4, 8, 16, 32]
lines = {
    "DDP": (ns, [2 * (n - 1) / n * 2410 * 8 for n in ns]),
    "FSDP2": (ns, [3 * (n - 1) / n * padded(n) * 8 for n in ns]),
}
study.curves(
    lines,
    points={"FSDP2": ([2, 3], [sum(counted[n]) / 12 for n in (2, 3)])},
    xlabel="ranks",
    yunit="B",
    ylabel="a rank sends in a step",
    title="One and a half times DDP's bytes, and the padding",
)

# %% [markdown]
# One and a half times as much, for 1/n of the memory. (Over gloo it is more: its reduce-scatter moves what an
# all-reduce moves.)
#
# ## Break it: the last step is forgotten
#
# Somebody's ring makes one step too few in its second half. **Predict**: what does DDP say, and which curve shows it?


# %%
def short_ring(comm, x, op):
    n = comm.size
    r = comm.rank
    chunks = x.tensor_split(comm.size)
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        got = comm.sendrecv(
            chunks[(r - 1 - step) % n], (r + 1) % n, torch.empty_like(mine), (r - 1) % n
        )
        COMBINE[op](mine, got, out=mine)
    for step in range(n - 2):  # n − 1
        comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - 1 - step) % n], (r - 1) % n)


# %%
def drift(comm, own):
    """The loss, and how far the replica is from rank 0's, in each step."""
    model, far = (
        DDP(net(), process_group=CommGroup(comm, collectives, overlap=False, all_reduce_=own)),
        [],
    )

    def look(*_):
        w = torch.cat([p.detach().flatten() for p in model.parameters()])
        far.append(float((w - collectives.broadcast_(comm, w.clone())).norm()))

    model.register_forward_pre_hook(look)
    return losses(comm, model), far


runs_4 = {
    name: World(4).run(drift, own) for name, own in (("right", ring), ("a step short", short_ring))
}
study.curves(
    {name: (steps, run[0][0]) for name, run in runs_4.items()},
    xlabel="step",
    ylabel="loss",
    title="The loss, 4 ranks",
)

# %%
assert max(runs_4["right"][3][1]) == 0 and runs_4["a step short"][3][1][-1] > 0.01
study.curves(
    {name: (steps, run[3][1]) for name, run in runs_4.items()},
    xlabel="step",
    ylabel="distance between replicas 0 and 3",
    title="The replicas drift apart, and nobody says so",
)

# %% [markdown]
# No error. The loss still falls, and looks almost right. DDP compares the replicas once, when it is made: shapes, not
# numbers. So compare parameters *bit for bit* now and then; it costs one all-reduce of a checksum.
#
# ## Break it: done before it is done
#
# A call that returns a finished work while the ring has still to run. Here the ring starts when backward has ended (a
# slow network would do the same). **Predict** what each rank learns from.

# %%
from threading import Event


def hook_of(comm, go, works, early):
    """A hook for DDP whose ring waits for `go`. early: its future does not wait for the ring."""

    def hook(state, bucket):
        x, future = bucket.buffer(), torch.futures.Future()
        works.append(
            comm.stream(lambda lane: go.wait() and collectives.all_reduce_(lane, x, "mean"))
        )
        if not early:
            works[-1].wait()
        future.set_result(x)
        return future

    return hook


# %%
def first_gradient(comm, early):
    go = Event()
    works = []
    mine = torch.arange(1400)[comm.rank :: comm.size]
    model = DDP(net(), process_group=process_group(comm, collectives))
    model.register_comm_hook(None, hook_of(comm, go, works, early))
    if not early:
        go.set()
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    gradient = model.module[0].weight.grad.clone()
    go.set()
    for work in works:
        work.wait()
    return gradient


# %%
one, rows = net(), []
cross_entropy(one(task.x[:1400]), task.y[:1400]).backward()
for words, early in (("waits", False), ("returns at once", True)):
    a, b = launch(first_gradient, 2, early)
    mean = ((a + b) / 2 - one[0].weight.grad).norm() < 1e-10
    rows.append((words, "yes" if a.equal(b) else "no", "yes" if mean else "no"))
assert rows == [("waits", "yes", "yes"), ("returns at once", "no", "yes")]
study.table(
    rows,
    ["the hook", "same gradient on both ranks?", "their mean right?"],
    title="A future that lies",
)

# %% [markdown]
# Each rank steps by its own gradient: no communication at all, and no error. What makes it vicious: on a fast network
# the ring mostly wins the race, and the run is mostly right. (`register_comm_hook` is DDP's other door: a function for
# each bucket. With a hook, DDP does not divide by n: the hook must.)
#
# ## The library's
#
# `process_group(comm, verbs, **own)` gives PyTorch all it may call: `verbs` is `minidist.collectives`, or nothing; then
# what is missing is named when it is called:


# %% tags=["raises-exception"]
def without(comm):
    return wrap(comm, lambda comm: CommGroup(comm, overlap=False, all_reduce_=ring))


World(2).run(without)

# %% [markdown]
# An average (`ReduceOp.AVG`) is a sum, divided: your functions never see it. Where FSDP2 needs groups of some ranks, on
# a mesh of two dimensions (copies × shards), they are cut out of the Comm, each with a channel of its own.

# %%
study.source(CommGroup.allreduce)

# %% [markdown]
# ## On real machines
#
# Under torchrun the Comm comes from the environment. DDP and FSDP2 are as above:
#
# ```python
# # train.py: its imports, `ring`, `net`, the data and the training loop are as above
# from minidist.comm import from_env
# comm = from_env("gloo")                                        # TorchComm: any machines
# group = process_group(comm, collectives, all_reduce_=ring)
# model = DDP(net(), process_group=group)
# ```
#
# ```
# torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# The same over gloo's sends and receives, here on two processes:

# %%
over_gloo = launch(on_ddp, 2, ring, transport="gloo")
assert over_gloo[0] == mine[2]
study.table(
    [("shared memory", len(mine[2]), "yes"), ("gloo's sockets", len(over_gloo[0]), "yes")],
    ["messages go over", "steps", "equal to gloo's own?"],
    title="DDP on our ring",
)

# %% [markdown]
# For speed on GPUs, leave this to NCCL: its kernels add up while they copy. What you have now is the knowledge of what
# it does, and the door through which a better idea would enter.
#
# ## Takeaways
#
# - A step of DDP calls one method, FSDP2 two. The rest of it is *when* to call, not *how* to add.
# - A process group is a class with a few methods; each returns a work whose future C++ waits for.
# - Equal at n = 2 bit for bit; from n = 3 on, to rounding: the order of addition is another.
# - DDP sends 2(n−1)/n·N, FSDP2 3(n−1)/n·N and padding.
# - A wrong collective need not make an error. Replicas drift, losses fall. Compare replicas bit for bit.
# - Done must mean done.
#
# ## Further reading
#
# - paper:li2020 Section 3.
# - paper:zhao2023 Section 3.
# - paper:rajbhandari2020 Section 7.
# - paper:patarasuk2009
