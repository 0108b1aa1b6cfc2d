# %% [markdown] nbgrader={"grade_id": "top"}
# # 28 Capstone: exercises
#
# You write what lies below PyTorch: a ring, a future, the two flat collectives of FSDP2, and a hook. Then PyTorch's own
# `DistributedDataParallel` and `fully_shard` train on them.
#
# Six exercises, 16 points. After each, run the check. Where it says "PyTorch's DDP", it is PyTorch's own reducer that
# calls your function, on ranks of a World, then in real processes. It says what is wrong. Try as often as you like.
# What your function prints is not shown there; to see it, call it in a cell of your own.
#
# `minidist.collectives` is refused, but in exercise 6; `minidist.parallel` and `minidist.train` always are.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import minicheck as check

from minidist import collectives, study
from minidist.collectives import all_reduce_
from minidist.comm import World, launch
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
# ## 1 · A ring that DDP can use (4 points)
#
# | | |
# |---|---|
# | call | `ddp_ring(comm, x, op)` |
# | `x` | (N,), contiguous, any dtype, the same length on all ranks, maybe shorter than n; **changed in place** |
# | `op` | `"sum"`, `"min"`, `"max"` or `"prod"` |
# | afterwards | `x` is combined over all ranks, on every rank, bit for bit the same; a nan of any rank is there |
# | returns | nothing that counts |
# | cost | 2(n−1) messages a rank, to the right neighbour, a chunk each |
#
# DDP divides the gradients by n *before* it calls. About 10 lines.
#
# <details><summary>Hint</summary>
#
# `x.tensor_split(n)` gives n views. Reduce-scatter: in step s send chunk r − 1 − s, and combine what comes into chunk
# r − 2 − s. All-gather: send chunk r − s. All modulo n. `comm.sendrecv(y, right, into, left)` returns `into`.
#
# </details>


# %% nbgrader={"grade_id": "ddp_ring", "solution": true}
def ddp_ring(comm, x, op):
    """x, combined over all ranks, in place."""
    ### BEGIN SOLUTION
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    n = comm.size
    r = comm.rank
    chunks = x.tensor_split(comm.size)
    right, left = (r + 1) % n, (r - 1) % n
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
# **Target:** PyTorch's DDP on your ring, on three ranks, learns as one rank with all the data. The lines lie on each
# other.


# %%
def on_ddp(comm, ring):
    group = CommGroup(comm, collectives, overlap=False, all_reduce_=ring)
    return losses(
        comm, DistributedDataParallel(mlp([64, 32, 10], dtype=torch.float64), process_group=group)
    )


def alone(comm):
    return losses(comm, mlp([64, 32, 10], dtype=torch.float64))


lines = {"one rank": World(1).run(alone)[0], "DDP on your ring": World(3).run(on_ddp, ddp_ring)[0]}
assert max(abs(a - b) for a, b in zip(*lines.values())) < 1e-12
study.curves(
    {name: (range(1, 13), line) for name, line in lines.items()},
    xlabel="step",
    ylabel="loss",
    title="PyTorch's DDP, your ring",
)

# %% [markdown] nbgrader={"grade_id": "later_spec"}
# ## 2 · Now, but later (3 points)
#
# DDP starts a bucket's all-reduce in the middle of the backward pass, and goes on computing. At the end of it, C++
# waits for a *future*. So a call must return at once.
#
# | | |
# |---|---|
# | call | `later(comm, job, result)` |
# | `job` | `job(lane)` communicates over `lane`, a Comm; it may raise |
# | `result` | any value |
# | returns | at once, a `torch.futures.Future`; its value is `result` as soon as the job has returned, never before |
# | errors | if the job raises, `future.wait()` raises, with the same words |
#
# **Invariant:** the job runs once, and its messages do not mix with those of the program. About 8 lines.
#
# <details><summary>Hint</summary>
#
# `comm.stream(fn)` runs `fn(lane)` beside the program. A future has `set_result(value)` and `set_exception(error)`.
#
# </details>


# %% nbgrader={"grade_id": "later", "solution": true}
def later(comm, job, result):
    """Start job(lane) beside the program; a Future of `result`."""
    ### BEGIN SOLUTION
    future = torch.futures.Future()

    def beside(lane):
        try:
            job(lane)
            future.set_result(result)
        except Exception as error:
            future.set_exception(error)

    comm.stream(beside)
    return future
    ### END SOLUTION


# %% nbgrader={"grade_id": "later_test", "points": 3}
check.later(later)

# %% [markdown] nbgrader={"grade_id": "later_target"}
# **Target:** back at once, done much later. (Virtual time of a World, in which your ring adds up 100,000 numbers.)


# %%
def when(comm):
    x, token = torch.ones(100_000), torch.zeros(1)
    begin = comm.now()
    future = later(comm, lambda lane: ddp_ring(lane, x, "sum"), [x])
    back, done = comm.now() - begin, None
    for _ in range(200):  # the program goes on with messages of its own
        comm.sendrecv(token, (comm.rank + 1) % 3, torch.empty_like(token), (comm.rank - 1) % 3)
        done = comm.now() - begin if future.done() and done is None else done
    return back, done


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
# FSDP2 keeps 1/n of each layer on each rank, as one flat vector, and asks for the whole just before it is needed.
#
# | | |
# |---|---|
# | call | `gather_single(comm, output, input)` |
# | `input` | this rank's part, (k,); **not changed**. FSDP2 gives a view of `output`, at its place there |
# | `output` | (n·k,); **filled in place**, rank r's part at r·k |
# | returns | nothing that counts |
# | cost | n−1 messages a rank, to the right neighbour, k numbers each |
#
# About 4 lines.


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


study.holdings(
    [[str(r + 1)] * 2 for r in range(4)],
    World(4).run(gathered),
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


lines = {
    "gloo": launch(on_fsdp, 2, transport="gloo")[0],
    "yours": launch(on_fsdp, 2, gather_single, reduce_single)[0],
}
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
# - `micro_bytes`: what each rank sends with DDP for 3 micro-batches and one optimizer step, if one forgot
#   `no_sync`
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
# **Target:** memory is paid for in bytes; a forgotten `no_sync` is dearer than either.

# %%
study.bars(
    {"DDP": ddp_bytes, "FSDP2": fsdp_bytes, "DDP, 3 micro-batches, no_sync forgotten": micro_bytes},
    unit="B",
    title="Each rank sends in a step, 24 million parameters on 8 ranks",
)

# %% [markdown] nbgrader={"grade_id": "mean_hook_spec"}
# ## 6 · Find the bug (2 points)
#
# There is a second way below DDP, without a process group: `register_comm_hook(state, hook)`. DDP calls
# `hook(state, bucket)` for each bucket; `bucket.buffer()` is its flat tensor. The value of the future that comes back
# is what DDP takes for the gradients. The next cell was found in somebody's code. With one rank it is right, and with
# AdamW nobody saw that anything was wrong: Adam does not mind if all gradients are too long by the same factor.


# %% nbgrader={"grade_id": "mean_hook_broken"}
def mean_hook(comm, bucket):
    """A future whose value is the mean of the bucket's gradients over the ranks."""
    future = torch.futures.Future()
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
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `mean_hook(comm, bucket)`, once a bucket and step |
# | `bucket` | `bucket.buffer()`: this rank's gradients, flat; may be changed |
# | returns | a `torch.futures.Future`; its value: the mean over the ranks, a tensor of the same shape |
#
# <details><summary>Hint</summary>
#
# Without a hook, who divides by n, and when? (Exercise 1 says it.)
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
# **Target:** the repaired line lies on that of one rank.

# %%
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
