# %% [markdown] nbgrader={"grade_id": "top"}
# # 19 Hybrid: exercises
#
# You lay ranks out on a grid, count what each axis sends, bring a step's gradients together, clip them, and choose the
# grid.
#
# Six exercises, 16 points. After each, run the check. It says what is wrong. Try as often as you like. What your
# function prints is not shown there; to see it, call it in a cell of your own.
#
# `minidist.collectives` is there to be used, and `Mesh` is handed to you; `minidist.parallel`, `minidist.train` and
# `minidist.study` are refused in answers, and so are `Grid` and `Mesh` in exercise 1.

# %% nbgrader={"grade_id": "setup"}
import math
from itertools import product

import torch

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import Cluster, World
from minidist.comm.mesh import Grid, Mesh

KINDS = {"fc": "split", "bias": "whole", "norm": "partial", "tokens": "tied"}

# %% [markdown] nbgrader={"grade_id": "groups_spec"}
# ## 1 · Who is in whose group? (2 points)
#
# | | |
# |---|---|
# | call | `groups(sizes)` |
# | `sizes` | `{"pp": 2, "dp": 3, "tp": 4}`: ranks along each axis, **from the outside in**; any names, any number |
# | returns | `{axis: its groups}`; a group is a list of ranks, in the order of their place on the axis |
#
# The last axis is innermost: its neighbours have neighbouring numbers. **Invariant:** each rank is in exactly one group
# of each axis. About 6 lines.
#
# <details><summary>Hint</summary>
#
# `torch.arange(n).view(…)` is the box. `box.movedim(dim, -1)` puts an axis last; then each row is a group.
#
# </details>


# %% nbgrader={"grade_id": "groups", "solution": true}
def groups(sizes):
    """{axis: its groups, lists of ranks}."""
    ### BEGIN SOLUTION
    box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    return {
        axis: box.movedim(dim, -1).reshape(-1, size).tolist()
        for dim, (axis, size) in enumerate(sizes.items())
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "groups_test", "points": 2}
check.groups(groups)

# %% [markdown] nbgrader={"grade_id": "groups_target"}
# **Target:** on two nodes of eight, with tensor innermost, no tensor group crosses. Which axis does?

# %%
nodes = Cluster.dgx_h100(nodes=2)
found = groups({"pp": 2, "dp": 2, "tp": 4})
study.table(
    [
        (
            axis,
            len(some),
            str(some[0]),
            sum(len({nodes.place(r).node for r in group}) > 1 for group in some),
        )
        for axis, some in found.items()
    ],
    ["axis", "groups", "the first", "groups that cross nodes"],
    title="16 ranks on two nodes of 8",
)

# %% [markdown] nbgrader={"grade_id": "step_bytes_spec"}
# ## 2 · What does each axis send? (3 points)
#
# | | |
# |---|---|
# | call | `step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers)` |
# | `micro_batches`, `tokens` | of a step, for each replica; tokens in each micro-batch |
# | `layers` | of the whole model, 12·hidden² weights each, cut over `pp` stages and `tp` tensor ranks |
# | returns | `{"tp": …, "pp": …, "dp": …}`: bytes that **all ranks together** send in a step |
#
# All numbers are bf16. A layer has two all-reduces of (tokens, hidden) forward and two backward. Each tensor rank sends
# its activation to its partner on the next stage, and a gradient of the same size comes back. Gradients of weights are
# all-reduced once a step. All-reduces are rings. No embedding. About 5 lines.
#
# <details><summary>Hint</summary>
#
# A ring of n ranks: each sends 2(n−1)/n of the bytes, so all n together send 2(n−1) times the bytes. How many rings are
# there at a time?
#
# </details>


# %% nbgrader={"grade_id": "step_bytes", "solution": true}
def step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers):
    """{axis: bytes that all ranks together send in a step}."""
    ### BEGIN SOLUTION
    activation = 2 * tokens * hidden
    return {
        "tp": dp * micro_batches * layers * 4 * 2 * (tp - 1) * activation,
        "pp": dp * tp * micro_batches * 2 * (pp - 1) * activation,
        "dp": 2 * (dp - 1) * 2 * 12 * hidden**2 * layers,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "step_bytes_test", "points": 3}
check.step_bytes(step_bytes)

# %% [markdown] nbgrader={"grade_id": "step_bytes_target"}
# **Target:** two lines that rise with the tokens, and one that does not. Where does tensor overtake data?

# %%
xs = [2**k for k in range(6, 15)]
lines = [step_bytes(4, 4, 4, 8, x, 4096, 32) for x in xs]
study.curves(
    {axis: ([8 * x for x in xs], [line[axis] for line in lines]) for axis in ("tp", "dp", "pp")},
    logx=True,
    logy=True,
    yunit="B",
    xlabel="tokens in a step, for each replica",
    ylabel="bytes, all ranks",
    title="32 layers of 4,096 on 4 × 4 × 4 ranks",
)

# %% [markdown] nbgrader={"grade_id": "synchronize_spec"}
# ## 3 · Each gradient along its axis (3 points)
#
# | | |
# |---|---|
# | call | `synchronize(mesh, backward, micro_batches, grads, kinds)` |
# | `mesh` | `mesh.dp`, `mesh.pp`, `mesh.tp` are Comms; `mesh.group("pp", "tp")` is one more |
# | `backward(m)` | adds the gradients of micro-batch m to `grads`; call it once for each of 0 … M−1, in order |
# | `grads` | `{name: tensor}`, zeros at the start; afterwards what the optimizer shall use, **in place** |
# | `kinds` | `{name: kind}`, see below; a rank may lack a kind |
#
# | kind | what is it | over tp, pp |
# |---|---|---|
# | `"split"` | a part of a matrix on each tensor rank | nothing |
# | `"whole"` | a bias after g: the same gradient on all tensor ranks already | nothing |
# | `"partial"` | a norm with sequence parallel: each tensor rank saw other tokens | sum over tp |
# | `"tied"` | the embedding, on the first stage and on the last, if those are two | sum of the two |
#
# In the end all kinds are averaged over dp, and replicas are equal bit for bit. **Cost:** one all-reduce along dp for
# all of them, once a step; along tp and pp no more than what the table says. About 10 lines.
#
# <details><summary>Hint</summary>
#
# `all_reduce_(comm, [a, b, …], "mean")` takes a list, and sends it as one. On the pipeline only two ranks have
# something to say to each other: `mesh.pp.sendrecv(g, other, torch.empty_like(g), other)` returns what came.
#
# </details>


# %% nbgrader={"grade_id": "synchronize", "solution": true}
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    ### BEGIN SOLUTION
    for m in range(micro_batches):
        backward(m)
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
    all_reduce_(mesh.dp, list(grads.values()), "mean")
    ### END SOLUTION


# %% nbgrader={"grade_id": "synchronize_test", "points": 3}
check.synchronize(synchronize)

# %% [markdown] nbgrader={"grade_id": "synchronize_target"}
# **Target:** nothing in the table but what has to be. (12 ranks, a gradient of 800 bytes of each kind.)


# %%
def gradients(comm):
    mesh = Mesh(comm, dp=2, pp=3, tp=2)
    kinds = {
        name: kind for name, kind in KINDS.items() if name != "tokens" or mesh.pp.rank in (0, 2)
    }
    grads = {name: torch.zeros(100, dtype=torch.float64) for name in kinds}
    synchronize(mesh, lambda m: [g.add_(1) for g in grads.values()], 4, grads, kinds)


study.mesh(
    Grid(dp=2, pp=3, tp=2),
    Cluster.dgx_h100(nodes=2),
    World(12).run(gradients).trace,
    title="Your gradients, 4 micro-batches",
)

# %% [markdown] nbgrader={"grade_id": "clip_grid_spec"}
# ## 4 · Find the bug (3 points)
#
# Clipping needs the norm of the *whole* model's gradients, each counted once. The next cell was found in somebody's
# code. With one rank it is right. On a grid it returns a number that is plausible, and too large.


# %% nbgrader={"grade_id": "clip_grid_broken"}
def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    square = sum((g * g).sum() for g in grads.values()).reshape(1)
    norm = all_reduce_(mesh.comm, square).sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm


# %%
def norm_of(comm, clip, dp, pp, tp):
    """Each kind's gradients of the whole model have the norm 1, so that the four together have 2."""
    mesh, grads = Mesh(comm, dp, pp, tp), {}
    for name, kind in KINDS.items():
        parts = (tp if kind in ("split", "tied") else 1) * (1 if kind == "tied" else pp)
        if kind != "tied" or mesh.pp.rank in (0, pp - 1):
            grads[name] = torch.full((1,), parts**-0.5, dtype=torch.float64)
    return clip(mesh, grads, KINDS, 1.0)


grids = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)]
study.bars(
    {
        f"dp {d} · pp {p} · tp {t}": World(d * p * t).run(norm_of, clip_grid, d, p, t)[0]
        for d, p, t in grids
    },
    target=2,
    note="one rank",
    title="The same gradients, on five grids",
)

# %% [markdown] nbgrader={"grade_id": "clip_grid_task"}
# Copy the function, and repair it. It is called after exercise 3's: on all data ranks the gradients are the same;
# `"whole"` and `"partial"` are the same on all tensor ranks; `"tied"`, cut over tp, is the same on the first stage and
# the last.
#
# | | |
# |---|---|
# | call | `clip_grid(mesh, grads, kinds, limit)` |
# | afterwards | every gradient on every rank times min(1, limit / (norm + 1e-6)), in place |
# | returns | the norm before, a number, the same on all ranks |
# | cost | one number of 8 bytes, summed over the ranks of **one replica**; nothing along dp |
#
# <details><summary>Hint</summary>
#
# `mesh.group("pp", "tp")` are the ranks of one replica. What is on several of them, one of them counts; but all of them
# scale it.
#
# </details>


# %% nbgrader={"grade_id": "clip_grid", "solution": true}
def clip_grid(mesh, grads, kinds, limit):
    """Scale all gradients so that the model's norm is at most `limit`; returns what it was."""
    ### BEGIN SOLUTION
    square = torch.zeros(1, dtype=torch.float64)
    for name, g in grads.items():
        copy = kinds[name] in ("whole", "partial") and mesh.tp.rank > 0
        end = kinds[name] == "tied" and mesh.pp.rank > 0
        if not copy and not end:
            square += (g * g).sum()
    norm = all_reduce_(mesh.group("pp", "tp"), square).sqrt().item()
    for g in grads.values():
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
    ### END SOLUTION


# %% nbgrader={"grade_id": "clip_grid_test", "points": 3}
check.clip_grid(clip_grid)

# %% [markdown] nbgrader={"grade_id": "clip_grid_target"}
# **Target:** one norm on all grids.

# %%
study.bars(
    {
        f"dp {d} · pp {p} · tp {t}": World(d * p * t).run(norm_of, clip_grid, d, p, t)[0]
        for d, p, t in grids
    },
    target=2,
    note="one rank",
    title="The same gradients, on five grids, repaired",
)

# %% [markdown] nbgrader={"grade_id": "best_grid_spec"}
# ## 5 · The best grid (3 points)
#
# | | |
# |---|---|
# | call | `best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity)` |
# | `node` | GPUs in a node |
# | `nbytes(dp, pp, tp)` | what a rank holds; raises an error for a grid that cannot be |
# | `seconds(dp, pp, tp)` | how long a step takes; likewise |
# | `capacity` | bytes of a GPU; what needs just as many fits |
# | returns | `(dp, pp, tp)`: of all grids that fit the fastest; `None` where none fits |
#
# A grid uses all GPUs. `tp` divides the GPUs of a node, so that no tensor group lies across two, and the heads. `pp`
# divides the layers, `dp` the batch. Look at all of them: the fastest need not be the leanest. About 8 lines.


# %% nbgrader={"grade_id": "best_grid", "solution": true}
def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    """(dp, pp, tp): the fastest grid that fits; None if there is none."""
    ### BEGIN SOLUTION
    found = []
    for tp, pp in product(range(1, node + 1), range(1, layers + 1)):
        dp = gpus // (tp * pp)
        if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:
            continue
        if nbytes(dp, pp, tp) <= capacity:
            found.append((seconds(dp, pp, tp), (dp, pp, tp)))
    return min(found)[1] if found else None
    ### END SOLUTION


# %% nbgrader={"grade_id": "best_grid_test", "points": 3}
check.best_grid(best_grid)

# %% [markdown] nbgrader={"grade_id": "best_grid_target"}
# **Target:** GPT-3 on 512 H100s, with the planner's memory and seconds (lesson 26): ZeRO 1, micro-batches of one
# sequence. The more memory a GPU has, the less is split.


# %%
def on_h100s(gigabytes):
    from minidist.study.predict import Grid as Sizes
    from minidist.study.catalog import MODELS
    from minidist.study.step import FUSED, Machine, Planner

    cluster, model = Cluster.dgx_h100(nodes=64), MODELS["gpt3-175b"]
    planner = Planner(model, cluster, FUSED, Machine(cluster.device))
    how = dict(dropout=False, attention="fused")

    def estimate(dp, pp, tp):
        return planner.estimate(Sizes(dp, tp, pp, 1 if dp > 1 else 0, 1, 1536 // dp, tp > 1, **how))

    found = best_grid(
        512,
        8,
        96,
        96,
        1536,
        lambda *at: estimate(*at).total,
        lambda *at: estimate(*at).step.total,
        gigabytes * 10**9,
    )
    return (
        None
        if found is None
        else (*found, estimate(*found).total / 1e9, estimate(*found).step.total)
    )


rows = [(gigabytes, *(on_h100s(gigabytes) or [None] * 5)) for gigabytes in (40, 80, 160, 320)]
study.table(
    rows, ["GB of a GPU", "dp", "pp", "tp", "GB used", "seconds a step"], title="GPT-3 on 512 H100s"
)

# %% [markdown] nbgrader={"grade_id": "predict_hybrid_spec"}
# ## 6 · Predict (2 points)
#
# 64 GPUs in nodes of 8, as dp 4 × pp 2 × tp 8. 32 layers, hidden 8,192, 12·hidden² weights a layer, no embedding. 12
# micro-batches of 4,096 tokens for each replica. bf16, rings, no sequence parallel. NVLink: 400 GB/s a GPU. Network:
# 50 GB/s a GPU. No latency, nothing overlaps.
#
# - `replica`: ranks that hold one copy of the model
# - `tp_bytes`, `dp_bytes`: what a rank sends along tensor, and along data, in a step
# - `pp_bytes`: what a rank of the *first* stage sends along the pipeline
# - `good`: seconds that a rank of the first stage sends for, if tensor has NVLink, data and pipeline the network
# - `bad`: the same if tensor has the network, and the other two NVLink
# - `ratio`: bad over good
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_hybrid", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_hybrid.numbers(STUDENT)
replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None
### BEGIN SOLUTION
N = 4096 * 8192 * 2
replica = 2 * 8
tp_bytes = 12 * (32 / 2) * 4 * (2 * 7 / 8) * N
dp_bytes = 2 * 3 / 4 * (12 * 8192**2 * 32 / replica) * 2
pp_bytes = 12 * N
good = tp_bytes / 400e9 + (dp_bytes + pp_bytes) / 50e9
bad = tp_bytes / 50e9 + (dp_bytes + pp_bytes) / 400e9
ratio = bad / good
### END SOLUTION

# %% nbgrader={"grade_id": "predict_hybrid_test", "points": 2}
check.predict_hybrid(replica, tp_bytes, dp_bytes, pp_bytes, good, bad, ratio, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_hybrid_target"}
# **Target:** the same bytes, the same ranks, other numbers on them.

# %%
study.bars(
    {"tensor inside the node": good, "tensor between nodes": bad},
    unit="s",
    title="A rank's messages in a step, 64 GPUs",
)
