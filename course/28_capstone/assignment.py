# %% [markdown] nbgrader={"grade_id": "top"}
# # 28 Capstone: exercises
#
# You write what lies below PyTorch: a ring along any order of ranks, a future for several jobs, the two flat collectives of FSDP2, and a hook. Then PyTorch's own `DistributedDataParallel` and `fully_shard` train on them.
#
# Seven exercises, 18 points. Each goes one step beyond the lesson, so its cells alone are not enough. After each of the first six, run the check. It says what is wrong. Try as often as you like. Where it says "PyTorch's DDP", it is PyTorch's own reducer that calls your function, on ranks of a World, and then in real processes. What your function prints is not shown there; to see it, call it in a cell of your own. The last exercise is graded by hand.
#
# `minidist.collectives` is refused in exercises 1 to 4; `minidist.parallel` and `minidist.train` always are.

# %% nbgrader={"grade_id": "setup"}
from functools import partial

import torch
from IPython.display import display
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import minicheck as check

from minidist import collectives, study
from minidist.collectives import all_reduce_
from minidist.comm import Cluster, World, launch
from minidist.comm.processgroup import CommGroup, process_group
from minidist.models import mlp
from minidist.tasks import digits


def losses(comm, model, steps=12, rate=0.5, batch=96):
    """SGD on this rank's part of each batch of digits; the mean loss of the ranks in each step."""
    task = digits()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    seen = []
    for rows in torch.arange(steps * batch).view(steps, batch):
        mine = rows[comm.rank :: comm.size]
        optimizer.zero_grad()
        loss = cross_entropy(model(task.x[mine]), task.y[mine])
        loss.backward()
        optimizer.step()
        seen.append(all_reduce_(comm, loss.detach().clone(), "mean").item())
    return seen


# %% [markdown] nbgrader={"grade_id": "ddp_ring_spec"}
# ## 1 · A ring along the wires (4 points)
#
# On a real machine, ranks whose numbers are neighbours need not be neighbours on the wires, so NCCL first looks for a good order of the ranks and lays its ring along it. Your ring is given the order.
#
# | | |
# |---|---|
# | call | `ddp_ring(comm, x, op, order)` |
# | `x` | (N,), contiguous, any dtype, the same length on all ranks, maybe shorter than n; **changed in place** |
# | `op` | `"sum"`, `"min"`, `"max"` or `"prod"` |
# | `order` | a list of all ranks, the same everywhere; each sends to the rank that stands after it, the last to the first |
# | afterwards | `x` is combined over all ranks, on every rank, bit for bit the same; a nan on any rank appears in the result |
# | returns | nothing that counts |
# | cost | 2(n−1) messages a rank, only to the next in `order`, a chunk each |
#
# DDP divides the gradients by n *before* it calls. About 12 lines.
#
# <details><summary>Hint</summary>
#
# With `order` = [2, 0, 1], rank 2 has place 0. Which of the numbers in the lesson's ring are places, and which are ranks?
#
# </details>


# %% nbgrader={"grade_id": "ddp_ring", "solution": true}
def ddp_ring(comm, x, op, order):
    """x, combined over all ranks, in place."""
    ### BEGIN SOLUTION
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    n = comm.size
    r = order.index(comm.rank)
    chunks = x.tensor_split(comm.size)
    right, left = order[(r + 1) % n], order[(r - 1) % n]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        got = comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left)
        combine(mine, got, out=mine)
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
    ### END SOLUTION


# %% nbgrader={"grade_id": "ddp_ring_test", "points": 4}
check.ddp_ring(ddp_ring)

# %% [markdown] nbgrader={"grade_id": "ddp_ring_target"}
# **Target:** PyTorch's DDP on your ring, on three ranks, learns just as one rank with all the data does. The lines
# coincide.


# %%
def on_ddp(comm, ring):
    group = CommGroup(comm, collectives, overlap=False, all_reduce_=partial(ring, order=[2, 0, 1]))
    model = mlp([64, 32, 10], dtype=torch.float64)
    return losses(comm, DistributedDataParallel(model, process_group=group))


def alone(comm):
    return losses(comm, mlp([64, 32, 10], dtype=torch.float64))


lines = {"one rank": World(1).run(alone)[0]}
with check.limit(20):
    lines["DDP on your ring"] = World(3).run(on_ddp, ddp_ring)[0]
assert max(abs(a - b) for a, b in zip(*lines.values())) < 1e-12
study.curves(
    {name: (range(1, 13), line) for name, line in lines.items()},
    xlabel="step",
    ylabel="loss",
    title="PyTorch's DDP, your ring along 2, 0, 1",
)

# %% [markdown] nbgrader={"grade_id": "later_spec"}
# ## 2 · Several jobs, one future (3 points)
#
# A process group may be asked for several all-reduces in one call, and returns *one* future for all of them (`allreduce_coalesced`). If one of them fails, the others must be done all the same, because their partners on other ranks are waiting for them.
#
# | | |
# |---|---|
# | call | `later(comm, jobs, result)` |
# | `jobs` | a list of functions; `job(lane)` communicates over `lane`, a Comm; each may raise any `Exception` |
# | `result` | any value |
# | returns | at once, a `torch.futures.Future`; its value is `result` as soon as the *last* job has ended, never before |
# | order | the jobs are done one after the other, each once, even if one before it raised |
# | errors | if jobs raise, `future.wait()` raises when all have ended, with the message of the *first* error |
#
# **Invariant:** the messages of the jobs do not mix with the program's. Two calls may be under way, each with a future of its own. About 12 lines.
#
# <details><summary>Hint</summary>
#
# `comm.stream(fn)` runs `fn(lane)` beside the program. A future has `set_result(value)` and `set_exception(error)`; here only Python waits, so the second is good enough.
#
# </details>


# %% nbgrader={"grade_id": "later", "solution": true}
def later(comm, jobs, result):
    """Do each job(lane) beside the program; one Future of `result`."""
    ### BEGIN SOLUTION
    future = torch.futures.Future()

    def beside(lane):
        errors = []
        for job in jobs:
            try:
                job(lane)
            except Exception as error:
                errors.append(error)
        if errors:
            future.set_exception(errors[0])
        else:
            future.set_result(result)

    comm.stream(beside)
    return future
    ### END SOLUTION


# %% nbgrader={"grade_id": "later_test", "points": 3}
check.later(later)

# %% [markdown] nbgrader={"grade_id": "later_target"}
# **Target:** the call is back at once, and the future is done much later. (The times are virtual, from a World in which your ring adds up 50,000 numbers twice.)


# %%
def when(comm):
    xs, token = torch.ones(2, 50_000), torch.zeros(1)
    jobs = [lambda lane, x=x: ddp_ring(lane, x, "sum", [0, 1, 2]) for x in xs]
    begin = comm.now()
    future = later(comm, jobs, xs)
    back, done = comm.now() - begin, None
    for _ in range(200):  # the program goes on with messages of its own
        comm.sendrecv(token, (comm.rank + 1) % 3, torch.empty_like(token), (comm.rank - 1) % 3)
        done = comm.now() - begin if future.done() and done is None else done
    return back, done


with check.limit(20):
    back, done = World(3).run(when)[0]
assert back == 0 < done
study.bars(
    {"the call is back after": back, "the future is done after": done},
    unit="s",
    title="Your future",
)

# %% [markdown] nbgrader={"grade_id": "gather_single_spec"}
# ## 3 · Parameters, gathered flat (2 points)
#
# FSDP2 keeps 1/n of each layer on each rank, as one flat vector, and asks for the whole just before it is needed. With mixed precision the rank keeps float32 and the layer computes in bfloat16, so only bfloat16 should travel.
#
# | | |
# |---|---|
# | call | `gather_single(comm, output, input)` |
# | `input` | this rank's part, (k,); **not changed**. It may be a view of `output`, at its place there, or a tensor of its own, maybe of another dtype |
# | `output` | (n·k,); **filled in place**, rank r's part at r·k, rounded to `output`'s dtype |
# | returns | nothing that counts |
# | cost | n−1 messages a rank, to the right neighbour, k numbers of `output`'s dtype each |
#
# About 6 lines.


# %% nbgrader={"grade_id": "gather_single", "solution": true}
def gather_single(comm, output, input):
    """Every rank's input, in rank order, in output."""
    ### BEGIN SOLUTION
    n = comm.size
    r = comm.rank
    parts = output.tensor_split(comm.size)
    parts[r].copy_(input)
    for step in range(n - 1):
        comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)
    ### END SOLUTION


# %% nbgrader={"grade_id": "gather_single_test", "points": 2}
check.gather_single(gather_single)

# %% [markdown] nbgrader={"grade_id": "gather_single_target"}
# **Target:** each column fills up.


# %%
def gathered(comm):
    output = torch.zeros(8)
    before = torch.full((2,), comm.rank + 1.0)
    gather_single(comm, output, before)
    return [str(int(x)) for x in output]


with check.limit(20):
    after = World(4).run(gathered)
study.holdings(
    [[str(r + 1)] * 2 for r in range(4)],
    after,
    title="Your gather, 4 ranks, k = 2",
)

# %% [markdown] nbgrader={"grade_id": "reduce_single_spec"}
# ## 4 · Gradients, reduced to their owners (3 points)
#
# | | |
# |---|---|
# | call | `reduce_single(comm, output, input, op)` |
# | `input` | this rank's gradients, (n·k,); **not changed** |
# | `output` | (k,), **filled in place**: numbers r·k … (r+1)·k of all ranks' inputs, combined |
# | `op` | `"sum"` or `"mean"` |
# | returns | nothing that counts |
# | cost | n−1 messages a rank, to the right neighbour, k numbers each |
#
# About 7 lines.


# %% nbgrader={"grade_id": "reduce_single", "solution": true}
def reduce_single(comm, output, input, op):
    """This rank's chunk of all inputs, combined."""
    ### BEGIN SOLUTION
    n = comm.size
    r = comm.rank
    chunks = input.tensor_split(comm.size)
    partial = chunks[(r - 1) % n]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine
    output.copy_(partial / n if op == "mean" else partial)
    ### END SOLUTION


# %% nbgrader={"grade_id": "reduce_single_test", "points": 3}
check.reduce_single(reduce_single)

# %% [markdown] nbgrader={"grade_id": "reduce_single_target"}
# **Target:** PyTorch's `fully_shard` on your two functions, in two real processes: the losses that gloo gives, bit for
# bit.


# %%
def on_fsdp(comm, gather=None, reduce=None):
    from torch.distributed import group
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    def all_gather_(comm, chunks):  # a group is asked for chunks: views of one flat tensor
        whole = torch.cat(chunks)
        gather(comm, whole, chunks[comm.rank])
        for chunk, part in zip(chunks, whole.tensor_split(comm.size)):
            chunk.copy_(part)

    def reduce_scatter_(comm, chunks, op):
        reduce(comm, chunks[comm.rank], torch.cat(chunks), op)

    own = dict(all_gather_=all_gather_, reduce_scatter_=reduce_scatter_) if gather else {}
    mine = process_group(comm, **own) if gather else group.WORLD
    net = mlp([64, 32, 10], dtype=torch.float64)
    fully_shard(net, mesh=DeviceMesh.from_group(mine, "cpu"))
    return losses(comm, net)


lines = {"gloo": launch(on_fsdp, 2, transport="gloo")[0]}
with check.limit(40):
    lines["yours"] = launch(on_fsdp, 2, gather_single, reduce_single)[0]
assert lines["gloo"] == lines["yours"]
study.curves(
    {name: (range(1, 13), line) for name, line in lines.items()},
    xlabel="step",
    ylabel="loss",
    title="PyTorch's FSDP2, your collectives",
)

# %% [markdown] nbgrader={"grade_id": "predict_capstone_spec"}
# ## 5 · Predict (2 points)
#
# 8 ranks, rings. A network of 4 layers, 6,000,000 parameters each, all in fp32. DDP has put the gradients into 5
# buckets. FSDP2 has a group for each layer (and none for the root, which has no parameters of its own), and frees each
# layer after its forward pass.
#
# - `ddp_messages`, `ddp_bytes`: what each rank sends in a step of DDP
# - `gathers`: how often FSDP2 gathers parameters in a step
# - `fsdp_messages`, `fsdp_bytes`: what each rank sends in a step of FSDP2
# - `seconds`: DDP's messages, without overlap, at α = 20 µs and β = 1/(10 GB/s)
# - `micro_bytes`: what each rank sends with DDP for 3 micro-batches and one optimizer step, if `no_sync` was
#   forgotten
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_capstone", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_capstone.numbers(STUDENT)
ddp_messages = ddp_bytes = gathers = fsdp_messages = fsdp_bytes = seconds = micro_bytes = None
### BEGIN SOLUTION
n, N = 8, 4 * 24e6
ddp_messages = 5 * 2 * (n - 1)
ddp_bytes = 2 * (n - 1) / n * N
gathers = 2 * 4
fsdp_messages = (gathers + 4) * (n - 1)
fsdp_bytes = 3 * (n - 1) / n * N
seconds = ddp_messages * 20e-6 + ddp_bytes / 10e9
micro_bytes = 3 * ddp_bytes
### END SOLUTION

# %% nbgrader={"grade_id": "predict_capstone_test", "points": 2}
check.predict_capstone(
    ddp_messages,
    ddp_bytes,
    gathers,
    fsdp_messages,
    fsdp_bytes,
    seconds,
    micro_bytes,
    of=STUDENT,
)

# %% [markdown] nbgrader={"grade_id": "predict_capstone_target"}
# **Target:** memory is paid for in bytes; a forgotten `no_sync` costs more than either.

# %%
study.bars(
    {"DDP": ddp_bytes, "FSDP2": fsdp_bytes, "DDP, 3 micro-batches, no_sync forgotten": micro_bytes},
    unit="B",
    title="Each rank sends in a step, 24 million parameters on 8 ranks",
)

# %% [markdown] nbgrader={"grade_id": "mean_hook_spec"}
# ## 6 · Find the bug (2 points)
#
# The next cell was found in somebody's code. It is meant to divide as soon as the sum is there. With one rank it is right, and with AdamW nobody saw that anything was wrong, because Adam's steps hardly change if all gradients are too long by the same factor.


# %% nbgrader={"grade_id": "mean_hook_broken"}
def mean_hook(comm, bucket):
    """A future whose value is the mean of the bucket's gradients over the ranks."""
    future = torch.futures.Future()
    future.then(lambda done: done.value() / comm.size)
    x = bucket.buffer()
    all_reduce_(comm, x)
    future.set_result(x)
    return future


# %%
def on_hook(comm, hook):
    group = CommGroup(comm, collectives, overlap=False)
    model = DistributedDataParallel(mlp([64, 32, 10], dtype=torch.float64), process_group=group)
    model.register_comm_hook(comm, lambda state, bucket: hook(state, bucket))
    return losses(comm, model)


right, broken = World(1).run(alone)[0], World(8).run(on_hook, mean_hook)[0]
study.curves(
    {"one rank": (range(1, 13), right), "DDP, broken hook": (range(1, 13), broken)},
    xlabel="step",
    ylabel="loss",
    title="SGD on eight ranks",
)

# %% [markdown] nbgrader={"grade_id": "mean_hook_task"}
# Copy the function and repair it.
#
# | | |
# |---|---|
# | call | `mean_hook(comm, bucket)`, once for each bucket in each step |
# | `bucket` | `bucket.buffer()`: this rank's gradients, flat; may be changed |
# | returns | a `torch.futures.Future`; its value: the mean over the ranks, a tensor of the same shape |
#
# <details><summary>Hint</summary>
#
# `then` does not change the future on which it is called. What does it return?
#
# </details>


# %% nbgrader={"grade_id": "mean_hook", "solution": true}
def mean_hook(comm, bucket):
    """A future whose value is the mean of the bucket's gradients over the ranks."""
    ### BEGIN SOLUTION
    future = torch.futures.Future()
    x = bucket.buffer()
    all_reduce_(comm, x, "mean")
    future.set_result(x)
    return future
    ### END SOLUTION


# %% nbgrader={"grade_id": "mean_hook_test", "points": 2}
check.mean_hook(mean_hook)

# %% [markdown] nbgrader={"grade_id": "mean_hook_target"}
# **Target:** the repaired line coincides with the line of one rank.

# %%
with check.limit(20):
    repaired = World(8).run(on_hook, mean_hook)[0]
study.curves(
    {
        name: (range(1, 13), line)
        for name, line in {"one rank": right, "broken": broken, "repaired": repaired}.items()
    },
    xlabel="step",
    ylabel="loss",
    title="SGD on eight ranks",
)

# %% [markdown] nbgrader={"grade_id": "which_below_spec"}
# ## 7 · What to hand to DDP? (2 points, graded by hand)
#
# You may hand DDP any function for its buckets. The machine is `Cluster.dgx_h100(nodes=2)`, sixteen modelled GPUs. `all_reduce_(comm, x, "sum", algorithm=…)` offers `"ring"`, `"halving_doubling"` and `"hierarchical"` (first within a node, then between nodes, then within a node again). A bucket without numbers is enough to measure the time: `World(16, cluster=…, device="meta")`, a tensor `torch.empty(N // 4, device=comm.device)` on every rank, and `world.time`.
#
# **From how many bytes of a bucket on is hierarchical better than halving-doubling, and does the ring ever win between 4 kB and 256 MB?**
#
# First plot the time against the bytes of the bucket for all three. Then write five to ten sentences, with the function that you would hand to DDP, and what it gains over the ring for DDP's default bucket of 25 MiB.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which the number can be read; the number, and the answer about the ring |
# | ½ | why: for small and for large buckets, what each of the three pays, in messages one after the other and in bytes over which wires |
# | ½ | the gain at 25 MiB, and one thing about a real step that this time of a single bucket leaves out, and whether it makes the choice more or less important |


# %% nbgrader={"grade_id": "which_below_plot", "solution": true}
### BEGIN SOLUTION
def one_bucket(comm, nbytes, algorithm):
    all_reduce_(comm, torch.empty(nbytes // 4, device=comm.device), "sum", algorithm=algorithm)


def bucket_seconds(nbytes, algorithm):
    world = World(16, cluster=Cluster.dgx_h100(nodes=2), device="meta")
    world.run(one_bucket, nbytes, algorithm)
    return world.time


sizes = [2**k for k in range(12, 29)]
times = {}
for algorithm in ("ring", "halving_doubling", "hierarchical"):
    times[algorithm] = [bucket_seconds(nbytes, algorithm) for nbytes in sizes]
display(
    study.curves(
        {name: (sizes, line) for name, line in times.items()},
        logx=True,
        logy=True,
        xunit="B",
        yunit="s",
        xlabel="a bucket",
        ylabel="time of its all-reduce",
        title="Two modelled nodes of eight GPUs",
    )
)
for nbytes in (2 * 10**6, 25 * 2**20):
    print(
        f"{nbytes / 1e6:.1f} MB:", {a: f"{1e6 * bucket_seconds(nbytes, a):.0f} µs" for a in times}
    )
pairs = zip(sizes, times["halving_doubling"], times["hierarchical"])
print("hierarchical is better from", next(nbytes for nbytes, a, b in pairs if b < a), "bytes on")
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "which_below", "solution": true, "points": 2}
# Hierarchical is better from about 3 MB on: at 2.1 MB it still needs 133 µs against 119, at 4.2 MB 151 against 170. The ring never wins between 4 kB and 256 MB; for small buckets it is seven times as slow as halving-doubling.
#
# All three send 1.875 N bytes from each rank. What differs is how many messages come one after the other, and what crosses between the nodes. A small bucket is all latency: 30 messages in a row for the ring, 16 for hierarchical, 8 for halving-doubling, which is why their times stand in about this order. For a large bucket the slow wire between the nodes decides. On the ring, one rank of each node sends all of its 1.875 N across it. With halving-doubling every rank has a partner in the other node for its largest halves, and sends N across. Hierarchical first leaves each rank of a node with an eighth of the sum, and only that eighth crosses: 0.125 N.
#
# So I would hand DDP a function that calls halving-doubling below 3 MB and hierarchical above. For the default bucket of 25 MiB it takes 335 µs in place of the ring's 1,546, a gain of 1.2 ms for each bucket.
#
# What the time of one bucket leaves out is overlap. As long as the backward that fills the next bucket takes longer than the all-reduce, even the ring is hidden, and only the last bucket of a step costs time. That makes the choice less important, except for the last bucket, for small models and for many nodes.
