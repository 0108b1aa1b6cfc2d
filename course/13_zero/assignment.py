# %% [markdown] nbgrader={"grade_id": "top"}
# # 13 ZeRO and offload: exercises
#
# The lesson built the stages for a run that starts afresh and takes one backward in each step, on ranks that are all alike. Here the run is less tidy. Layers are thawed in its middle, some ranks have no gradient for a layer, gradients are accumulated over several backwards, and the ranks stand in nodes that are joined by a slow network.
#
# Seven exercises, 20 points. After each of the first six, run the check: it compares your numbers with the serial ones, and then it counts: what each rank holds, and what it sends. Numbers alone cannot tell a sharded optimizer from one that shards nothing. The check says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The seventh is an open question, which your teacher reads.
#
# You may call all of `minidist.collectives`. What is refused, inside your functions, is the library's ZeRO and what is built on it (`minidist.parallel`, `minidist.train`, `minidist.checkpoint`, `minidist.study`), and PyTorch's. Wait for all that you post before you return. A nan in one rank's gradient becomes a nan in the mean, and must not be hidden: it tells that something has gone wrong. Tensors may be float32 or float64; what you make, and what you send, has the dtype of what you were given.

# %% nbgrader={"grade_id": "setup"}
from functools import partial

import torch
from IPython.display import display
from torch import nn
from torch.nn.functional import mse_loss

import minicheck as check

from minidist import study
from minidist.collectives import (
    all_gather,
    all_gather_,
    all_reduce_,
    reduce_,
    reduce_scatter,
    reduce_scatter_,
)
from minidist.comm import World
from minidist.comm.cluster import Cluster
from minidist.comm.cluster import H100
from minidist.models import mlp
from minidist.split import uneven

# %% [markdown] nbgrader={"grade_id": "owners_spec"}
# ## 1 · Who owns what, in the middle of a run? (2 points)
#
# The lesson deals all parameters out at the start. But often some layers are *frozen* at first, and thawed after a while. Then the parameters that were trained from the start have their owners, and must keep them, because their optimizer states lie there. Only the new ones are to be placed.
#
# | | |
# |---|---|
# | call | `owners(nbytes, n, placed)` |
# | `nbytes` | a list: bytes of each parameter, integers, perhaps 0; perhaps an empty list; **not changed** |
# | `n` | number of ranks |
# | `placed` | a list of the same length: the rank that owns the parameter already, or None for one that is new; **not changed** |
# | returns | a new list: the rank, 0 to n − 1, that owns each parameter, in the same order |
# | cost | no message |
#
# **Invariants.** What is placed stays. The new ones go from the largest to the smallest, each to the rank that owns the fewest bytes by then, *including what is placed there*. Among parameters of equal size, and among ranks that are equally full, you may choose; the check looks at the bytes of the fullest rank, which may not be more than this rule gives. All ranks call it, so it must give the same answer whenever it is asked. About 9 lines.
#
# <details><summary>Hint</summary>
#
# What is on each rank before the first new parameter is placed?
#
# </details>


# %% nbgrader={"grade_id": "owners", "solution": true}
def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    ### BEGIN SOLUTION
    owner = list(placed)
    loads = [0] * n
    for i, rank in enumerate(placed):
        if rank is not None:
            loads[rank] += nbytes[i]
    new = [i for i, rank in enumerate(placed) if rank is None]
    for i in sorted(new, key=lambda i: -nbytes[i]):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += nbytes[i]
    return owner
    ### END SOLUTION


# %% nbgrader={"grade_id": "owners_test", "points": 2}
check.owners(owners)

# %% [markdown] nbgrader={"grade_id": "owners_target"}
# **Target:** four bars, nearly equal, of a small GPT whose embedding is thawed last.

# %%
small_gpt = [400, *[90, 30, 30, 120, 120] * 4, 8, 8]
trained = [None, *[0] * 5, *[1] * 5, *[2] * 5, 2, 3, 3, 0, 1, 3, 3]
with check.limit(10):
    yours = owners(small_gpt, 4, trained)
study.bars(
    {
        f"rank {r}": sum(nbytes for nbytes, rank in zip(small_gpt, yours) if rank == r)
        for r in range(4)
    },
    target=sum(small_gpt) / 4,
    note="mean",
    title="Bytes owned, after the embedding has found its owner",
)

# %% [markdown] nbgrader={"grade_id": "sharded_spec"}
# ## 2 · Stage 1 when gradients are missing (4 points)
#
# In a real model not every rank's samples reach every parameter (an expert that nobody chose, a branch that was skipped). And a rank may own nothing, when there are more ranks than large tensors.
#
# | | |
# |---|---|
# | call | `sharded(comm, params, owner, optimizer)`, once |
# | `params` | a list of tensors that require gradients, all of one dtype, the same numbers on all ranks; **the list is not changed**, but each `p.data` may be given other memory |
# | `owner` | a list: the rank that owns each; a rank may own none |
# | `optimizer` | `optimizer(tensors)` makes an Adam, with `step()`, for a list of tensors; it refuses an empty list |
# | returns | `step()`, called after each backward, with the gradients of this rank's samples in `p.grad` |
# | a missing gradient | `p.grad` is None on a rank that has none: it counts as zeros. At least one rank has one. |
# | memory | between steps: the optimizer states of what this rank owns, and nothing more than before but what lies in `p.grad` |
# | cost | 2(n − 1)Ψ numbers in a step, all ranks together |
#
# **Invariants.** After `step()` every rank has in `params` the weights of the serial program, which steps with the *mean over all n ranks*, bit for bit the same on all. What is in `p.grad` after a step does not matter; the next backward sets it anew. In the check each rank's Adam has another rate, so that only the owner's step is right. About 22 lines.
#
# <details><summary>Hint</summary>
#
# Start from the lesson's flat buffer. The gradients of all ranks must be laid out alike, also where one is missing.
#
# </details>


# %% nbgrader={"grade_id": "sharded", "solution": true}
def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    ### BEGIN SOLUTION
    order = sorted(range(len(params)), key=owner.__getitem__)
    lengths = [sum(params[i].numel() for i in order if owner[i] == r) for r in range(comm.size)]
    flat = torch.cat([params[i].data.flatten() for i in order])
    for i, piece in zip(order, flat.split([params[i].numel() for i in order])):
        params[i].data = piece.view_as(params[i])
    mine = [params[i] for i in order if owner[i] == comm.rank]
    inner = optimizer(mine) if mine else None

    def gradient(p):
        return torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()

    def step():
        chunks = list(torch.cat([gradient(params[i]) for i in order]).split(lengths))
        reduce_scatter_(comm, chunks)
        mean = chunks[comm.rank] / comm.size
        for p, grad in zip(mine, mean.split([p.numel() for p in mine])):
            p.grad = grad.view_as(p)
        if inner is not None:
            inner.step()
        all_gather_(comm, list(flat.split(lengths)))

    return step
    ### END SOLUTION


# %% nbgrader={"grade_id": "sharded_test", "points": 4}
check.sharded(sharded)

# %% [markdown] nbgrader={"grade_id": "sharded_target"}
# **Target:** a quarter of the states on each of 4 ranks.


# %%
def shards_nothing(comm, params, owner, optimizer):
    inner = optimizer(params)
    return inner.step


def one_step(comm, make):
    params = list(mlp([512] * 9, device="meta").parameters())
    step = make(comm, params, [i // 2 % comm.size for i in range(len(params))], torch.optim.Adam)
    for p in params:
        p.grad = torch.empty_like(p)
    step()
    torch.empty(1, device="meta").neg()
    return comm.now()


def states_held(make):
    world = World(4, cluster=Cluster.uniform(4, 5e-6, 1 / 450e9, H100), device="meta")
    world.run(one_step, make)
    return [int(world.trace.memory[r].live["optimizer states"].max()) for r in range(4)]


with check.limit(20):
    everything = states_held(shards_nothing)[0]
    states = {f"yours, rank {r}": nbytes for r, nbytes in enumerate(states_held(sharded))}
study.bars(
    {"shards nothing": everything} | states,
    unit="B",
    target=everything / 4,
    note="a quarter",
    title="Optimizer states",
)

# %% [markdown] nbgrader={"grade_id": "to_owners_spec"}
# ## 3 · Stage 2 over several backwards (3 points)
#
# The lesson's hook assumes that there was no gradient before. With gradient accumulation there are several backwards before a step, and their gradients add up. At stage 2 the owner holds the sum so far, and nobody else holds anything.
#
# | | |
# |---|---|
# | call | `to_owners(comm, params, owner)`; once, before any backward |
# | `params`, `owner` | a list of leaf parameters, and the rank that owns each; neither list is changed, and the parameters' values are not touched |
# | afterwards | each backward *adds* to `p.grad`, at p's owner, the mean over the ranks of what this backward computed; where `p.grad` was None before the backward, the mean is all there is. Elsewhere `p.grad` is None after each backward. |
# | between | the program sets all `p.grad` to None when it has taken a step, on all ranks, without telling you |
# | memory | during a backward: the gradients that this rank owns, and one or two on their way; after it, what it owns |
# | cost | (n − 1)Ψ numbers for a backward, all ranks together; up to 1/n more is accepted |
#
# **Invariant:** what another rank owns leaves the memory while the backward runs, not after it. Every backward reaches every parameter, on every rank, in the same order. About 14 lines.
#
# <details><summary>Hint 1</summary>
#
# When the lesson's hook is called, autograd has already added the new gradient to what was there, and at the owner the two cannot be told apart. There is an earlier moment: `p.register_hook(f)` calls `f(gradient)` with the new gradient, *before* it is added to `p.grad`. (If `f` returns None, the gradient stays as it is.)
#
# </details>
#
# <details><summary>Hint 2</summary>
#
# In that earlier hook you can set aside what `p.grad` holds, and leave None there. A loop variable in a hook has its last value when the hook is called: use `partial`.
#
# </details>


# %% nbgrader={"grade_id": "to_owners", "solution": true}
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, added to what is there, and freed elsewhere."""
    ### BEGIN SOLUTION
    before = {}  # what earlier backwards have left, of the parameter that is in work

    def set_aside(p, gradient):
        before[p] = p.grad
        p.grad = None

    def hook(root, p):
        reduce_(comm, p.grad, root)
        earlier = before.pop(p)
        if comm.rank == root:
            p.grad.div_(comm.size)
            if earlier is not None:
                p.grad.add_(earlier)
        else:
            p.grad = None

    for p, root in zip(params, owner):
        p.register_hook(partial(set_aside, p))
        p.register_post_accumulate_grad_hook(partial(hook, root))
    ### END SOLUTION


# %% nbgrader={"grade_id": "to_owners_test", "points": 3}
check.to_owners(to_owners)

# %% [markdown] nbgrader={"grade_id": "to_owners_target"}
# **Target:** a line that stays low, in both of two backwards.


# %%
def two_backwards(comm, freeing):
    model = mlp([1024] * 13, device="meta")
    params = list(model.parameters())
    if freeing:
        to_owners(comm, params, [i // 2 % comm.size for i in range(len(params))])
    for _ in range(2):
        model(torch.empty(512, 1024, device="meta")).sum().backward()
    return comm.now()


def gradients_held(freeing):
    world = World(4, cluster=Cluster.uniform(4, 5e-6, 1 / 450e9, H100), device="meta")
    end = world.run(two_backwards, freeing)[0]
    line = world.trace.memory[0]
    return [k / 200 for k in range(200)], [line.at(end * k / 200)["gradients"] for k in range(200)]


with check.limit(20):
    held = {"all kept": gradients_held(False), "yours": gradients_held(True)}
study.curves(
    held,
    yunit="B",
    xlabel="share of the time",
    ylabel="gradients on rank 0 of 4",
    title="Live gradients in two backwards",
)

# %% [markdown] nbgrader={"grade_id": "sharded_linear_spec"}
# ## 4 · A layer with hybrid sharding (4 points)
#
# The lesson wrote a stage 3 layer, and let the library do hybrid sharding. Now write the layer for it. The n ranks are s shards × r replicas: you are given two communicators, of the s ranks among which a weight is cut, and of the r ranks that hold the same shard. Either may consist of this rank alone.
#
# | | |
# |---|---|
# | call | `sharded_linear(shards, replicas, x, shard, shape)` |
# | `shards` | Comm of the ranks that together have the weight: rank q of it holds part q |
# | `replicas` | Comm of the ranks, in other groups, that hold the same part as this one |
# | `x` | this rank's rows, (rows, in); requires a gradient; ranks may have different numbers of rows |
# | `shard` | this rank's part of a weight of `shape` (out, in), flat; requires a gradient. Parts are cut by `uneven(numbers, s)`: some are longer by one, some may be empty. |
# | returns | x·Wᵀ, (rows, out), with a graph |
# | backward | returns to autograd the gradient of x, of this rank's rows alone, and for `shard` its part of the *mean over all n = s·r ranks* of the weight's gradient. Autograd adds it to what `shard.grad` holds; the gradient that comes in is not changed. |
# | memory | the whole weight is there while forward uses it, and while backward does; never in between, nor afterwards |
# | cost | over `shards`: 3(s − 1)Ψ numbers for forward and backward, all ranks of a group together. Over `replicas`: an all-reduce of the shard's gradient, 2(r − 1)Ψ for all replicas together. |
#
# The mean is over ranks, not over rows: each rank counts alike. Write a class of your own beside the function. About 22 lines.
#
# <details><summary>Hint</summary>
#
# The mean over all n ranks is the mean over the replicas of the means within the groups. The only question is at which moment it travels least between the groups.
#
# </details>


# %% nbgrader={"grade_id": "sharded_linear", "solution": true}
def sharded_linear(shards, replicas, x, shard, shape):
    """x·Wᵀ, of a weight in shards, of which there are replicas."""
    ### BEGIN SOLUTION
    return Gathered.apply(x, shard, shards, replicas, shape)


def gathered(comm, shard, shape):
    return all_gather(comm, shard, sizes=uneven(shape.numel(), comm.size)).view(shape)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, shards, replicas, shape):
        ctx.save_for_backward(x, shard)
        ctx.shards = shards
        ctx.replicas = replicas
        ctx.shape = shape
        return x @ gathered(shards, shard, shape).T

    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        comm = ctx.shards
        dx = dy @ gathered(comm, shard, ctx.shape)
        dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))
        all_reduce_(ctx.replicas, dw)
        return dx, dw / (comm.size * ctx.replicas.size), None, None, None

    ### END SOLUTION


# %% nbgrader={"grade_id": "sharded_linear_test", "points": 4}
check.sharded_linear(sharded_linear)

# %% [markdown] nbgrader={"grade_id": "sharded_linear_target"}
# **Target:** a network of your layers learns, with the same losses on 1 rank, on 3 shards, and on 2 replicas of 2 shards.


# %%
def learns(comm, s, steps=30):
    torch.manual_seed(0)
    weights = [torch.randn(8, 8, dtype=torch.float64) / 3 for _ in range(3)]
    x = torch.randn(12, 8, dtype=torch.float64)
    shards = comm.split(comm.rank // s)
    replicas = comm.split(comm.rank % s)
    parts = [nn.Parameter(w.flatten().split(uneven(64, s))[shards.rank].clone()) for w in weights]
    adam = torch.optim.Adam(parts, lr=0.02)
    mine = x.split(uneven(12, comm.size))[comm.rank]
    losses = []
    for _ in range(steps):
        h = mine.clone().requires_grad_()
        for part in parts:
            h = sharded_linear(shards, replicas, h, part, torch.Size((8, 8))).tanh()
        loss = mse_loss(h, mine.flip(1).tanh())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(all_reduce_(comm, loss.detach(), "mean")))
    return losses


with check.limit(30):
    losses = {
        "1 rank": (range(30), World(1).run(learns, 1)[0]),
        "3 shards": (range(30), World(3).run(learns, 3)[0]),
        "2 replicas × 2 shards": (range(30), World(4).run(learns, 2)[0]),
    }
study.curves(losses, xlabel="step", ylabel="loss", title="Your layers learn")

# %% [markdown] nbgrader={"grade_id": "predict_zero_spec"}
# ## 5 · Predict, then count (3 points)
#
# 13 B parameters (13 · 10⁹), Adam in mixed precision, fp16 weights and gradients, 16 GPUs, shares all equal. Model states are parameters, gradients and optimizer states.
#
# - `stage_1`, `stage_2`, `stage_3`: bytes of model states on each GPU
# - `sent_2`, `sent_3`: bytes that each GPU sends in a step, at stage 2 and at stage 3; all that is sent is fp16
# - `gpus`: how many GPUs of 32 GB (32 · 10⁹ bytes) hold the model states of 100 B parameters, at stage 3?
# - `offloaded`: bytes of model states on each GPU at stage 2, when backward has ended, if the hosts keep the optimizer states and take the step, each for the part that its GPU owns
# - `over_link`: bytes that a step then moves between each GPU and its host, both ways together
# - `tokens`: a GPU computes 400 TFLOP/s (400 · 10¹² in a second) and takes in 25 GB/s from the others. From how many tokens of a micro-batch on, on each of the 16 GPUs, do stage 3's gathers hide behind the computation?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_zero", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_zero.numbers(STUDENT)
stage_1 = stage_2 = stage_3 = sent_2 = sent_3 = gpus = offloaded = over_link = tokens = None
### BEGIN SOLUTION
psi = 13e9
n = 16
stage_1 = 4 * psi + 12 * psi / n
stage_2 = 2 * psi + 14 * psi / n
stage_3 = 16 * psi / n
sent_2 = 2 * psi * (n - 1) / n * 2
sent_3 = 3 * psi * (n - 1) / n * 2
gpus = 16 * 100e9 / 32e9
offloaded = 2 * psi + 2 * psi / n
over_link = 2 * psi / n + 2 * psi / n
tokens = 400e12 / 25e9 * (n - 1) / n
### END SOLUTION

# %% nbgrader={"grade_id": "predict_zero_test", "points": 3}
check.predict_zero(
    stage_1, stage_2, stage_3, sent_2, sent_3, gpus, offloaded, over_link, tokens, of=STUDENT
)

# %% [markdown] nbgrader={"grade_id": "predict_zero_target"}
# **Target:** with the numbers above, all bars but the first end below the 80 GB of a card. Which is the lowest stage that you need?

# %%
study.bars(
    {
        "data parallel": 16 * 13e9,
        "stage 1": stage_1,
        "stage 2": stage_2,
        "stage 2, offload": offloaded,
        "stage 3": stage_3,
    },
    unit="B",
    target=80e9,
    note="a card",
    title="13 B parameters on 16 GPUs",
)

# %% [markdown] nbgrader={"grade_id": "clip_spec"}
# ## 6 · Find the bug (2 points)
#
# Gradients are clipped by the norm of *all* of them: if the root of the sum of all squares is above a limit, all are scaled down. With ZeRO each rank holds some of them. The next cell was found in somebody's code. With one rank it is right.


# %% nbgrader={"grade_id": "clip_broken"}
def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    norm = torch.stack([g.norm() for g in grads]).norm()
    norm = all_reduce_(comm, norm)
    for g in grads:
        g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
    return norm


# %%
def after(comm, clip):
    """The squared norm of this rank's share of 60 gradients, after clipping to 1."""
    torch.manual_seed(0)
    grads = list(torch.randn(60, 5).split(60 // comm.size)[comm.rank])
    clip(comm, grads, 1.0)
    return sum(float(g.square().sum()) for g in grads)


broken = {n: sum(World(n).run(after, clip)) ** 0.5 for n in (1, 2, 3, 4, 6)}
study.bars(
    {f"{n} rank{'s' * (n > 1)}": norm for n, norm in broken.items()},
    target=1,
    title="The norm after clipping to 1",
)

# %% [markdown] nbgrader={"grade_id": "clip_task"}
# With more ranks, steps become smaller. There is a second mistake, which this plot does not show. Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `clip(comm, grads, limit)`, on all ranks |
# | `grads` | a list: the gradients that this rank owns, float64 tensors of any shape; no gradient is on two ranks. **A rank that owns nothing has an empty list.** It calls `clip` like all others, and gets the same norm. |
# | `limit` | a positive number, the same on all ranks |
# | afterwards | all gradients of all ranks, in place (in the memory that they had), times min(1, limit / (norm + 1e-6)) |
# | returns | the norm before: a Python float or a tensor with one number, bit for bit the same on every rank; if any gradient holds a nan, the norm is nan on every rank, and every number that was nan still is |
# | precision | the squares are added up in float64 |
# | cost | a single number of each rank travels, as in an all-reduce of one number; that is worth a quarter of the points |
#
# <details><summary>Hint</summary>
#
# What adds up, norms or their squares? And what does `torch.stack` say of an empty list?
#
# </details>


# %% nbgrader={"grade_id": "clip", "solution": true}
def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    ### BEGIN SOLUTION
    square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
    norm = all_reduce_(comm, square).sqrt()
    for g in grads:
        g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
    return norm
    ### END SOLUTION


# %% nbgrader={"grade_id": "clip_test", "points": 2}
check.clip(clip)

# %% [markdown] nbgrader={"grade_id": "clip_target"}
# **Target:** 1, with any number of ranks.

# %%
with check.limit(10):
    repaired = {n: sum(World(n).run(after, clip)) ** 0.5 for n in (1, 2, 3, 4, 6)}
study.bars(
    {f"{n} rank{'s' * (n > 1)}": norm for n, norm in repaired.items()}, target=1, title="Repaired"
)

# %% [markdown] nbgrader={"grade_id": "which_sharding_spec"}
# ## 7 · Which sharding? (2 points, graded by hand)
#
# A model with 13 billion parameters is trained with Adam in mixed precision (fp16 weights and gradients) on four nodes of eight GPUs. Each GPU has 80 GB and computes 400 TFLOP/s. Inside a node it takes in 450 GB/s, from other nodes 25 GB/s (modelled, without latency). Traffic inside a node, traffic between nodes, and computing go on at the same time; forward and backward together take as long as the longest of the three. (So this model need not give the numbers of the lesson's formulas.)
#
# **From how many tokens on each GPU is all traffic hidden, with stage 3 over all 32 ranks, and with hybrid sharding, where each node is a replica? And which of the two would you take for micro-batches of 2,048 tokens?**
#
# For stage 3 over all, everything that a GPU takes in comes at the speed of the slower network. First draw the time of a forward and a backward against the tokens, from 256 to 32,768, for both, beside the time of computing alone. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which both numbers can be read; and both numbers |
# | ½ | the choice for 2,048 tokens, with its time in both ways, and with the bytes of model states that each GPU holds in both |
# | ½ | one thing that this model of a step leaves out, and whether it makes your numbers larger or smaller, with a reason |

# %% nbgrader={"grade_id": "which_sharding_plot", "solution": true}
### BEGIN SOLUTION
PSI = 13e9
FLOPS = 400e12
many = [2**k for k in range(8, 16)]
computing = {T: 6 * PSI * T / FLOPS for T in many}
over_all = 3 * 2 * PSI * 31 / 32 / 25e9
inside = 3 * 2 * PSI * 7 / 8 / 450e9
between = 2 * (2 * PSI / 8) * 3 / 4 / 25e9
display(
    study.curves(
        {
            "stage 3 over all": (many, [max(c, over_all) for c in computing.values()]),
            "hybrid": (many, [max(c, inside, between) for c in computing.values()]),
            "computing": (many, list(computing.values())),
        },
        logx=True,
        logy=True,
        yunit="s",
        xlabel="tokens on each GPU",
        ylabel="forward and backward",
        title="13 B parameters on four nodes of eight GPUs",
    )
)
print(f"stage 3: {over_all * FLOPS / 6 / PSI:,.0f} tokens")
print(f"hybrid, gathers inside the node: {inside * FLOPS / 6 / PSI:,.0f} tokens")
print(f"hybrid, between the nodes: {between * FLOPS / 6 / PSI:,.0f} tokens")
print(f"model states: {16 * PSI / 32 / 1e9} GB with stage 3, {16 * PSI / 8 / 1e9} GB with hybrid")
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "which_sharding", "solution": true, "points": 2}
# Stage 3 over all needs 15,500 tokens on each GPU, hybrid sharding 1,000.
#
# With stage 3 a GPU takes in 3 · 2Ψ · 31/32 bytes in a step, 3.0 s at 25 GB/s, and computing takes as long only from 15,500 tokens on. With hybrid sharding the gathers and the reduce-scatter run at 450 GB/s and take 0.15 s. Between nodes there is the all-reduce of an eighth of the gradients, 2 · 3/4 · 2Ψ/8 bytes, 0.2 s. That is the longer of the two, and computing takes as long from 1,000 tokens on.
#
# For 2,048 tokens I take hybrid sharding. Computing takes 0.4 s, and so does hybrid; stage 3 over all takes 3.0 s. The model states are 26 GB on each GPU instead of 6.5 GB, and 80 GB have room for them, unless the activations need more than 54 GB.
#
# The model leaves out that gradients can travel only in the backward, which is two thirds of computing. The all-reduce between the nodes must hide behind that alone, so hybrid sharding needs 1,500 tokens instead of 1,000; 2,048 are still enough. (For stage 3 nothing changes: a third of its traffic is in the forward, which is a third of computing.)
