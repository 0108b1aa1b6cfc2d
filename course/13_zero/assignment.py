# %% [markdown] nbgrader={"grade_id": "top"}
# # 13 ZeRO and offload: exercises
#
# You share out an optimizer's states, then gradients, then weights.
#
# Six exercises, 18 points. After each, run the check: it compares your numbers with the serial ones, and then it
# counts: what each rank holds, and what it sends. Numbers alone cannot tell a sharded optimizer from one that shards
# nothing. The check says what is wrong. Try as often as you like. What your function prints is not shown there; to see
# it, call it in a cell of your own. All of `minidist.collectives` is yours; `minidist.parallel` is refused.

# %% nbgrader={"grade_id": "setup"}
from functools import partial

import torch
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
# ## 1 · Who owns what? (2 points)
#
# | | |
# |---|---|
# | call | `owners(nbytes, n)` |
# | `nbytes` | bytes of each parameter; not changed |
# | returns | a list: the rank, 0 to n − 1, that owns each parameter, in the same order |
#
# **Invariant:** largest first, each to the rank that owns the fewest bytes by then. The fullest rank may own no more
# than with that rule. All ranks call it, and get the same answer. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Sort the *positions*: `sorted(range(len(nbytes)), key=…)`. Keep a list of n loads.
#
# </details>


# %% nbgrader={"grade_id": "owners", "solution": true}
def owners(nbytes, n):
    """The rank that owns each parameter."""
    ### BEGIN SOLUTION
    loads, owner = [0] * n, [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += nbytes[i]
    return owner
    ### END SOLUTION


# %% nbgrader={"grade_id": "owners_test", "points": 2}
check.owners(owners)

# %% [markdown] nbgrader={"grade_id": "owners_target"}
# **Target:** four bars, nearly equal. (A small GPT: one large embedding, and many layers.)

# %%
some = [400, *[90, 30, 30, 120, 120] * 4, 8, 8]
yours = owners(some, 4)
study.bars(
    {f"rank {r}": sum(b for b, o in zip(some, yours) if o == r) for r in range(4)},
    target=sum(some) / 4,
    note="mean",
    title="Bytes owned",
)

# %% [markdown] nbgrader={"grade_id": "sharded_spec"}
# ## 2 · Stage 1: a sharded step (4 points)
#
# | | |
# |---|---|
# | call | `sharded(comm, params, owner, optimizer)` |
# | `params` | tensors that require gradients, the same numbers on all ranks |
# | `owner` | the rank that owns each; a rank may own none |
# | `optimizer` | `optimizer(tensors)` makes an Adam, with `step()`, for a list of tensors (which may not be empty) |
# | returns | `step()`, called after each backward, with gradients of this rank's samples in `p.grad` |
# | memory | optimizer states of what this rank owns, and nothing else that stays |
# | cost | 2(n − 1)Ψ numbers in a step, all ranks together |
#
# **Invariant:** after `step()` every rank has in `params` the weights of the serial program, which steps with the
# *mean* gradients. In the check each rank's Adam has another rate, so that only the owner's step is right. About 18
# lines.
#
# <details><summary>Hint</summary>
#
# Put the weights into one flat buffer, in the order of the owners; make each `p.data` a view of it.
# `flat.split(lengths)` gives n chunks. `reduce_scatter_(comm, chunks)` adds up chunk r on rank r, in place;
# `all_gather_(comm, chunks)` fills every chunk from its rank. Gradients need a flat buffer in the same order. Give the
# optimizer the parameters that this rank owns; set their `p.grad`.
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

    def step():
        chunks = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))
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
def whole(comm, params, owner, optimizer):
    """What shards nothing."""
    inner = optimizer(params)
    return inner.step


def trained(comm, make):
    params = list(mlp([512] * 9, device="meta").parameters())
    step = make(comm, params, owners([p.nbytes for p in params], comm.size), torch.optim.Adam)
    for p in params:
        p.grad = torch.empty_like(p)
    step()
    torch.empty(1, device="meta").neg()
    return comm.now()


def held(make):
    world = World(4, cluster=Cluster.uniform(4, 5e-6, 1 / 450e9, H100), device="meta")
    world.run(trained, make)
    return [int(world.trace.memory[r].live["optimizer states"].max()) for r in range(4)]


everything = held(whole)[0]
study.bars(
    {"shards nothing": everything} | {f"yours, rank {r}": b for r, b in enumerate(held(sharded))},
    unit="B",
    target=everything / 4,
    note="a quarter",
    title="Optimizer states",
)

# %% [markdown] nbgrader={"grade_id": "to_owners_spec"}
# ## 3 · Stage 2: hooks that free (3 points)
#
# | | |
# |---|---|
# | call | `to_owners(comm, params, owner)`; once, before any backward |
# | afterwards | each backward leaves in `p.grad` the mean over the ranks at p's owner, and None elsewhere |
# | memory | during backward: the gradients that this rank owns, and one or two on their way |
# | cost | (n − 1)Ψ numbers for a backward, all ranks together, and 1/n of it more at most |
#
# **Invariant:** what another rank owns leaves the memory while backward runs, not after it. Gradients are None when a
# backward begins. About 7 lines.
#
# <details><summary>Hint</summary>
#
# `p.register_post_accumulate_grad_hook(hook)` calls `hook(p)` when p's gradient is there. `reduce_(comm, x, root)` adds
# up at `root` alone. A loop variable in a hook has its last value when the hook is called: use `partial`.
#
# </details>


# %% nbgrader={"grade_id": "to_owners", "solution": true}
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""

    ### BEGIN SOLUTION
    def hook(root, p):
        reduce_(comm, p.grad, root)
        if comm.rank == root:
            p.grad.div_(comm.size)
        else:
            p.grad = None

    for p, root in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(hook, root))
    ### END SOLUTION


# %% nbgrader={"grade_id": "to_owners_test", "points": 3}
check.to_owners(to_owners)

# %% [markdown] nbgrader={"grade_id": "to_owners_target"}
# **Target:** a line that stays low.


# %%
def backward(comm, freeing):
    model = mlp([1024] * 13, device="meta")
    params = list(model.parameters())
    if freeing:
        to_owners(comm, params, [i // 2 % comm.size for i in range(len(params))])
    model(torch.empty(512, 1024, device="meta")).sum().backward()
    return comm.now()


def gradients(freeing):
    world = World(4, cluster=Cluster.uniform(4, 5e-6, 1 / 450e9, H100), device="meta")
    end, line = world.run(backward, freeing)[0], world.trace.memory[0]
    return [k / 200 for k in range(200)], [line.at(end * k / 200)["gradients"] for k in range(200)]


study.curves(
    {"all kept": gradients(False), "yours": gradients(True)},
    yunit="B",
    xlabel="share of the time",
    ylabel="gradients on rank 0 of 4",
    title="Live gradients",
)

# %% [markdown] nbgrader={"grade_id": "sharded_linear_spec"}
# ## 4 · Stage 3: gather, use, free (4 points)
#
# | | |
# |---|---|
# | call | `sharded_linear(comm, x, shard, shape)` |
# | `x` | this rank's rows, (rows, in); requires a gradient |
# | `shard` | this rank's part of a weight of `shape` (out, in), flat; all parts in rank order are the weight, flat |
# | returns | x·Wᵀ, (rows, out), with a graph |
# | backward | gives x its gradient; gives `shard` its part of the *mean* over the ranks of the weight's gradient |
# | memory | the whole weight is there while forward uses it, and while backward does; never in between |
# | cost | 3(n − 1)Ψ numbers for forward and backward, all ranks together |
#
# **Invariant:** parts are cut by `uneven(numbers, n)`: some are longer by one, some may be empty. Write a class of your
# own above the function. About 16 lines.
#
# <details><summary>Hint</summary>
#
# A `torch.autograd.Function`: save `x` and `shard`, not the weight. `all_gather(comm, shard, sizes=…)` puts parts
# together, `reduce_scatter(comm, whole, sizes=…)` returns this rank's part of the sum. With y = x·Wᵀ the gradient of x
# is dy·W, and that of W is dyᵀ·x.
#
# </details>


# %% nbgrader={"grade_id": "sharded_linear", "solution": true}
def sharded_linear(comm, x, shard, shape):
    """x·Wᵀ, of a weight in shards."""
    ### BEGIN SOLUTION
    return Gathered.apply(x, shard, comm, shape)


def gathered(comm, shard, shape):
    return all_gather(comm, shard, sizes=uneven(shape.numel(), comm.size)).view(shape)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, comm, shape):
        ctx.save_for_backward(x, shard)
        ctx.comm, ctx.shape = comm, shape
        return x @ gathered(comm, shard, shape).T

    @staticmethod
    def backward(ctx, dy):
        (x, shard), comm = ctx.saved_tensors, ctx.comm
        dx = dy @ gathered(comm, shard, ctx.shape)
        dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))
        return dx, dw / comm.size, None, None

    ### END SOLUTION


# %% nbgrader={"grade_id": "sharded_linear_test", "points": 4}
check.sharded_linear(sharded_linear)

# %% [markdown] nbgrader={"grade_id": "sharded_linear_target"}
# **Target:** a network of your layers learns, with the same losses on 1 rank and on 3.


# %%
def learns(comm, steps=40):
    torch.manual_seed(0)
    weights = [torch.randn(8, 8, dtype=torch.float64) / 3 for _ in range(3)]
    x = torch.randn(12, 8, dtype=torch.float64)
    shards = [
        nn.Parameter(w.flatten().split(uneven(64, comm.size))[comm.rank].clone()) for w in weights
    ]
    adam = torch.optim.Adam(shards, lr=0.02)
    mine = x.split(uneven(12, comm.size))[comm.rank]
    losses = []
    for _ in range(steps):
        h = mine.clone().requires_grad_()
        for shard in shards:
            h = sharded_linear(comm, h, shard, torch.Size((8, 8))).tanh()
        loss = mse_loss(h, mine.flip(1).tanh())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(all_reduce_(comm, loss.detach(), "mean")))
    return losses


study.curves(
    {f"{n} rank{'s' * (n > 1)}": (range(40), World(n).run(learns)[0]) for n in (1, 3)},
    xlabel="step",
    ylabel="loss",
    title="Your layers learn",
)

# %% [markdown] nbgrader={"grade_id": "predict_zero_spec"}
# ## 5 · Predict, then count (3 points)
#
# 13 B parameters (13 · 10⁹), Adam in mixed precision, fp16 weights and gradients, 16 GPUs, shares all equal.
#
# - `stage_1`, `stage_2`, `stage_3`: bytes of parameters, gradients and optimizer states on each GPU
# - `sent_2`, `sent_3`: bytes that each GPU sends in a step, at stage 2 and at stage 3; all that is sent is fp16
# - `gpus`: how many GPUs of 32 GB (32 · 10⁹ bytes) hold the same of 100 B parameters, at stage 3?
# - `offloaded`: bytes on each GPU at stage 2, if optimizer states and step are the hosts', when backward has ended
# - `over_link`: bytes that a step then moves between each GPU and its host, both ways together
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_zero", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_zero.numbers(STUDENT)
stage_1 = stage_2 = stage_3 = sent_2 = sent_3 = gpus = offloaded = over_link = None
### BEGIN SOLUTION
psi, n = 13e9, 16
stage_1 = 4 * psi + 12 * psi / n
stage_2 = 2 * psi + 14 * psi / n
stage_3 = 16 * psi / n
sent_2 = 2 * psi * (n - 1) / n * 2
sent_3 = 3 * psi * (n - 1) / n * 2
gpus = 16 * 100e9 / 32e9
offloaded = 2 * psi + 2 * psi / n
over_link = 2 * psi / n + 2 * psi / n
### END SOLUTION

# %% nbgrader={"grade_id": "predict_zero_test", "points": 3}
check.predict_zero(
    stage_1, stage_2, stage_3, sent_2, sent_3, gpus, offloaded, over_link, of=STUDENT
)

# %% [markdown] nbgrader={"grade_id": "predict_zero_target"}
# **Target:** your bars end below what one card has: 80 GB. Which is the least that you need?

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
# Gradients are clipped by the norm of *all* of them. With ZeRO each rank holds some. The next cell was found in
# somebody's code. With one rank it is right.


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
    """The norm of 60 gradients, 60 / n on each rank, after clipping to 1."""
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
# With more ranks, steps become smaller. Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `clip(comm, grads, limit)` |
# | `grads` | this rank's gradients, each on one rank alone; a rank may have none |
# | afterwards | all gradients of all ranks, in place, times min(1, limit / (norm + 1e-6)) |
# | returns | the norm before: a number, the same on every rank; where a gradient is nan it is nan, and the gradient stays so |
# | cost | one number of each rank travels; that is worth a quarter of the points |
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
repaired = {n: sum(World(n).run(after, clip)) ** 0.5 for n in (1, 2, 3, 4, 6)}
study.bars(
    {f"{n} rank{'s' * (n > 1)}": norm for n, norm in repaired.items()}, target=1, title="Repaired"
)
