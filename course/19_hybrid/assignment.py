# %% [markdown] nbgrader={"grade_id": "top"}
# # 19 Hybrid: exercises
#
# The lesson built one grid, 2 × 2 × 2, with matrices alone. Here you do what a real run needs besides: grids of any shape and order, the traffic of all ranks together, the gradients of biases, norms and tied embeddings, a norm in which each of them counts once, and the choice of a grid.
#
# Seven exercises, 18 points. After each of the first six, run the check: it says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call the function in a cell of your own. The seventh is an open question, which your teacher reads.
#
# You may call `minidist.collectives`, except in exercises 2 and 5, and `Mesh` objects are handed to you where you need them. Refused in answers are `minidist.parallel`, `minidist.parallelize`, `minidist.train`, `minidist.checkpoint` and `minidist.study`; in exercises 1, 2 and 5 also the module with `Grid` and `Mesh`.

# %% nbgrader={"grade_id": "setup"}
import math
from itertools import product

import torch
from IPython.display import display

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import Cluster, World
from minidist.comm.mesh import Grid, Mesh

KINDS = {"fc": "split", "bias": "whole", "norm": "partial", "tokens": "tied"}

# %% [markdown] nbgrader={"grade_id": "groups_spec"}
# ## 1 · Who is in whose group? (2 points)
#
# In the lesson there were three axes of two ranks, in a fixed order, and the coordinates were written out by hand. A real grid has other sizes, sometimes five axes (context and expert parallelism come in lessons 20 and 21), and whoever starts the run decides on their order.
#
# | | |
# |---|---|
# | call | `groups(sizes)` |
# | `sizes` | `{"pp": 2, "dp": 3, "tp": 4}`: ranks along each axis, **from the outside in**; any names, any number of axes, sizes from 1; **not changed** |
# | returns | `{axis: its groups}`, for each axis of `sizes`; `groups` is a list of all groups of the axis, in any order; a group is a list of ranks (Python integers) |
# | cost | no ranks, no messages: you are asked about the numbers only |
#
# The last axis is innermost, whatever it is called: its neighbours have neighbouring numbers. A group lists its ranks in the order of their place on the axis, the one at place 0 first. **Invariant:** each rank is in exactly one group of each axis. About 6 lines.
#
# <details><summary>Hint</summary>
#
# `torch.arange(n).view(…)` is the box. `box.movedim(dim, -1)` makes an axis the last one; then each row along it is a group, and `reshape(-1, size)` lists the rows.
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
with check.limit(10):
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
# The lesson counted what *one* rank sends, in the mean over the stages. Whoever pays for the network asks for the total, and it is exact: no mean, no "about".
#
# | | |
# |---|---|
# | call | `step_bytes(dp, pp, tp, micro_batches, tokens, hidden, layers)` |
# | `dp`, `pp`, `tp` | ranks along each axis, from 1 |
# | `micro_batches`, `tokens` | micro-batches of a step for each replica; tokens in each micro-batch |
# | `layers` | of the whole model, a multiple of `pp`; 12·hidden² weights each, cut over the `pp` stages and `tp` tensor ranks |
# | returns | `{"tp": …, "pp": …, "dp": …}`: numbers, the bytes that **all ranks together** send in a step |
# | checked | against the trace of a step that really sends these messages, to the byte |
#
# All numbers are bf16. A layer has two all-reduces of (tokens, hidden) in the forward and two in the backward; nothing is computed twice. Each tensor rank sends its activation to its partner on the next stage, and a gradient of the same size comes back. The gradients of the weights are all-reduced once a step. All-reduces are rings. There are no embeddings, biases or norms. About 5 lines.
#
# <details><summary>Hint</summary>
#
# In a ring of n ranks each sends 2(n−1)/n times the bytes of the buffer, so all n together send 2(n−1) times its bytes. How many such rings are there at a time, and how often in a step?
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
with check.limit(10):
    lines = [step_bytes(4, 4, 4, 8, x, 4096, 32) for x in xs]
study.curves(
    {
        name: ([8 * x for x in xs], [line[axis] for line in lines])
        for name, axis in {"tensor": "tp", "data": "dp", "pipeline": "pp"}.items()
    },
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
# The lesson's `step` had matrices alone, and one micro-batch. Now all four kinds of parameters are there, in one dictionary.
#
# | | |
# |---|---|
# | call | `synchronize(mesh, backward, micro_batches, grads, kinds)` |
# | `mesh` | `mesh.dp`, `mesh.pp`, `mesh.tp` are Comms, of any sizes from 1 and in any order of the axes; you need no other |
# | `backward(m)` | adds the gradients of micro-batch m to `grads`; call it once for each of 0 … M−1, in order |
# | `grads` | `{name: tensor}`, zeros at the start; afterwards what the optimizer shall use, **in place** |
# | `kinds` | `{name: kind}`, see below; all ranks of a stage have the same names in the same order, but the names are arbitrary, there may be several of a kind, and a stage may lack a kind |
#
# | kind | what it is | what a rank holds after `backward` | missing |
# |---|---|---|---|
# | `"split"` | a part of a matrix on each tensor rank | the gradient of its part | nothing |
# | `"whole"` | a bias after g | the same gradient as the other tensor ranks | nothing |
# | `"partial"` | a norm with sequence parallelism | a summand, from its own tokens | the sum over tp |
# | `"tied"` | the embedding, on the first and on the last stage, and on no other; cut over tp | a summand, from its own use of the embedding | the sum of these two; with one stage there is nothing to add |
#
# In the end all kinds are averaged over dp, and copies are equal **bit for bit**: replicas, `"whole"` and `"partial"` on all tensor ranks, `"tied"` on both ends. A nan stays a nan. Wait for all that you post before you return.
#
# **Cost, counted:** along dp one all-reduce for all gradients together, once a step; along tp one all-reduce of each partial gradient; along pp one message from either end for each tied gradient. Nothing else. About 10 lines.
#
# <details><summary>Hint</summary>
#
# `all_reduce_(comm, [a, b, …], "mean")` takes a list, and sends it as one. On the pipeline only two ranks have something to say to each other: `mesh.pp.sendrecv(g, other, torch.empty_like(g), other)` returns what came from the other one. If this rank is number p of S, the other end is number S − 1 − p. A list is summed in chunks, each of them in another order, and the two ends have different lists: what does that mean for copies that must agree to the last bit?
#
# </details>


# %% nbgrader={"grade_id": "synchronize", "solution": true}
def synchronize(mesh, backward, micro_batches, grads, kinds):
    """Run the micro-batches; then make each gradient what one rank would have."""
    ### BEGIN SOLUTION
    for m in range(micro_batches):
        backward(m)
    all_reduce_(mesh.dp, list(grads.values()), "mean")
    for name, g in grads.items():
        if kinds[name] == "partial":
            all_reduce_(mesh.tp, g)
        if kinds[name] == "tied" and mesh.pp.size > 1:
            other = mesh.pp.size - 1 - mesh.pp.rank
            g += mesh.pp.sendrecv(g, other, torch.empty_like(g), other)
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


with check.limit(10):
    trace = World(12).run(gradients).trace
study.mesh(
    Grid(dp=2, pp=3, tp=2),
    Cluster.dgx_h100(nodes=2),
    trace,
    title="Your gradients, 4 micro-batches",
)

# %% [markdown] nbgrader={"grade_id": "clip_grid_spec"}
# ## 4 · Find the bug (3 points)
#
# Clipping needs the norm of the *whole* model's gradients, each counted once. The lesson repaired one way of counting twice; a GPT on a grid has three. The next cell was found in somebody's code. With one rank it is right. On a grid it returns a number that is plausible, and too large.


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
# Copy the function, and repair it. It is called after exercise 3's: on all data ranks the gradients are the same; `"whole"` and `"partial"` are the same on all tensor ranks; `"tied"`, cut over tp, is the same on the first stage and on the last.
#
# | | |
# |---|---|
# | call | `clip_grid(mesh, grads, kinds, limit)` |
# | `grads`, `kinds` | as in exercise 3, after it: float64, perhaps several of a kind, perhaps all zeros |
# | a nan | in any gradient makes the norm nan on all ranks |
# | afterwards | every gradient **on every rank**, copies too, times min(1, limit / (norm + 1e-6)), in place |
# | returns | the norm before, a Python number, the same on all ranks |
# | cost, counted | one number of 8 bytes, summed over the ranks of **one replica**; nothing along dp |
#
# <details><summary>Hint</summary>
#
# `mesh.group("pp", "tp")` are the ranks of one replica. Of what several of them hold as a copy, one counts; but all of them scale it.
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
with check.limit(20):
    norms = {
        f"dp {d} · pp {p} · tp {t}": World(d * p * t).run(norm_of, clip_grid, d, p, t)[0]
        for d, p, t in grids
    }
study.bars(
    norms,
    target=2,
    note="one rank",
    title="The same gradients, on five grids, repaired",
)

# %% [markdown] nbgrader={"grade_id": "best_grid_spec"}
# ## 5 · The best grid (3 points)
#
# In the lesson a grid was given. Now you choose one, with two functions that say what a grid holds and how long it takes.
#
# | | |
# |---|---|
# | call | `best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity)` |
# | `gpus`, `node` | GPUs in all; GPUs in a node |
# | `heads`, `layers`, `batch` | of the model; sequences of a step |
# | `nbytes(dp, pp, tp)` | what a rank holds, for an allowed grid; for others it may raise an error, or return a number that means nothing |
# | `seconds(dp, pp, tp)` | how long a step takes; likewise |
# | `capacity` | bytes of a GPU; a grid that needs just as many fits |
# | returns | `(dp, pp, tp)`, whole numbers: the fastest of all allowed grids that fit; `None` where none fits |
#
# **Allowed** is a grid that uses all GPUs and whose `tp` divides the GPUs of a node (so that no tensor group lies across two) and the heads, whose `pp` divides the layers, and whose `dp` divides the batch. Ask about every allowed grid, and about no other: the fastest need not be the leanest, and nothing is known about the two functions. Both are checked. About 8 lines.


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
# **Target:** a model of GPT-3's shape on 512 H100s (modelled by the lesson's formulas: ZeRO 1, checkpointing, micro-batches of one sequence, 400 TFLOP/s, nothing overlaps). The less memory a GPU has, the more stages there are. From 32 GB on, time alone decides, and more memory changes nothing.

# %%
GPUS = 512
H = 12288
L = 96
T = 2048
BATCH = 1536
PSI = 12 * H**2 * L


def held(dp, pp, tp):
    """Bytes of a rank: weights and gradients, its share of the states, and the kept inputs of layers."""
    states = PSI / (pp * tp) * (4 + 12 / dp)
    in_flight = min(pp, BATCH // dp)  # 1F1B keeps as many micro-batches
    kept = in_flight * L / pp * 2 * T * H
    one_layer = 34 * T * H / tp
    return states + kept + one_layer


def taken(dp, pp, tp):
    """Seconds of a step: computing and bubble, then the wires of each axis."""
    M = BATCH // dp
    bubble = (M + pp - 1) / M
    compute = 8 * PSI * BATCH * T / (GPUS * 400e12)
    N = 2 * T * H
    tensor = 2 * (tp - 1) / tp * N * M * 6 * L / pp / 371e9
    pipeline = 2 * (pp - 1) / pp * N * M / 48e9
    data = 2 * (dp - 1) / dp * 2 * PSI / (pp * tp) / 48e9
    return (compute + tensor) * bubble + pipeline + data


grids_found = {}
with check.limit(20):
    for gigabytes in (8, 12, 16, 20, 32, 80):
        capacity = gigabytes * 10**9
        grids_found[gigabytes] = best_grid(GPUS, 8, 96, L, BATCH, held, taken, capacity)
rows = []
for gigabytes, found in grids_found.items():
    if found is None:
        rows.append((gigabytes, None, None, None, None, None))
    else:
        rows.append((gigabytes, *found, held(*found) / 1e9, taken(*found)))
study.table(
    rows,
    ["GB of a GPU", "dp", "pp", "tp", "GB used", "seconds a step"],
    title="A model of GPT-3's shape on 512 H100s",
)

# %% [markdown] nbgrader={"grade_id": "predict_hybrid_spec"}
# ## 6 · Predict (2 points)
#
# 96 GPUs in nodes of 8, as dp 3 × pp 4 × tp 8. 32 layers, hidden 8,192, 12·hidden² weights a layer, no embedding. 12
# micro-batches of 4,096 tokens for each replica. bf16, rings, no sequence parallel. NVLink: 400 GB/s a GPU. Network:
# 50 GB/s a GPU. No latency, nothing overlaps, nothing is computed twice.
#
# - `replica`: ranks that hold one copy of the model
# - `tp_bytes`, `dp_bytes`: what a rank sends along tensor, and along data, in a step
# - `pp_bytes`: what a rank of the *first* stage sends along the pipeline
# - `good`: seconds that a rank of the first stage sends for, if tensor has NVLink, data and pipeline the network
# - `bad`: the same if tensor has the network, and the other two NVLink
# - `ratio`: bad over good
#
# Write numbers or formulas, right within 1 %. The formulas are the lesson's, but for one stage in particular and not in the mean.

# %% nbgrader={"grade_id": "predict_hybrid", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_hybrid.numbers(STUDENT)
replica = tp_bytes = dp_bytes = pp_bytes = good = bad = ratio = None
### BEGIN SOLUTION
N = 4096 * 8192 * 2
replica = 4 * 8
tp_bytes = 12 * (32 / 4) * 4 * (2 * 7 / 8) * N
dp_bytes = 2 * 2 / 3 * (12 * 8192**2 * 32 / replica) * 2
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
    title="A rank's messages in a step, 96 GPUs",
)

# %% [markdown] nbgrader={"grade_id": "shard_where_spec"}
# ## 7 · Shard over what? (2 points, graded by hand)
#
# A model of 48 layers, hidden 7,168, with 12·hidden² weights a layer, is trained on 64 GPUs in 8 nodes. A GPU has 80 GB and reaches 400 TFLOP/s; inside a node it has 371 GB/s, and to the network B. Each GPU has 8,192 tokens in a step, in one micro-batch. Three ways are proposed (all modelled, in bf16 with 16 bytes a parameter):
#
# - **full**: ZeRO 3 over all 64 ranks;
# - **hybrid**: ZeRO 3 in each node, replicas between nodes, whose gradients (each rank's shard) are all-reduced;
# - **tensor**: tensor 8 inside the node, data 8 between nodes with ZeRO 1. Its replicas have the tokens of 8 GPUs.
#
# What ZeRO and data send hides behind the computing as far as it is not longer; what tensor sends does not hide. Messages inside a node and between nodes travel at the same time.
#
# **For which B is each of the three the right choice?** First draw the time of a step against B, from 1 to 100 GB/s, for all three. Then write five to ten sentences, which also say what each holds in memory, and what would change with 1,024 tokens for each GPU.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which the bandwidths can be read at which each way begins to wait for the network; and these numbers |
# | ½ | the memory of each way, and a choice for a fast and for a slow network that follows from time *and* memory |
# | ½ | 1,024 tokens: which of the numbers move, in which direction, and why |

# %% nbgrader={"grade_id": "shard_where_plot", "solution": true}
### BEGIN SOLUTION
psi = 12 * 7168**2 * 48
bandwidths = [1e9 * b for b in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100)]


def ways(tokens, bandwidth):
    compute = 6 * psi * tokens / 400e12
    gradients = 2 * 7 / 8 * 2 * psi / 8  # bytes of an eighth of the model, over 8 nodes
    activations = 2 * 8 * tokens * 7168
    tensor = 2 * 7 / 8 * activations * 4 * 48 / 371e9
    return {
        "full: ZeRO 3 over all": max(compute, 63 / 64 * 6 * psi / bandwidth),
        "hybrid: ZeRO 3 in a node": max(compute, 7 / 8 * 6 * psi / 371e9, gradients / bandwidth),
        "tensor: tensor and data": max(compute + tensor, gradients / bandwidth),
    }


for tokens in (8192, 1024):
    found = [ways(tokens, bandwidth) for bandwidth in bandwidths]
    display(
        study.curves(
            {name: (bandwidths, [step[name] for step in found]) for name in found[0]},
            logx=True,
            logy=True,
            xunit="B",
            yunit="s",
            xlabel="bytes a second between nodes, B",
            ylabel="time of a step",
            title=f"Three ways to shard, {tokens:,} tokens for each GPU",
        )
    )
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "shard_where", "solution": true, "points": 2}
# The model has 29.6 · 10⁹ parameters. In memory *full* holds 16Ψ/64 = 7.4 GB a GPU, *hybrid* holds 16Ψ/8 = 59 GB, and *tensor* holds Ψ/8 · (4 + 12/8) = 20 GB, each without activations.
#
# Computing takes 3.6 s. *Full* sends 6Ψ bytes over the network, 175 GB, so it waits as soon as B is below 48 GB/s; at 3 GB/s a step would take 58 s. *Hybrid* sends only an eighth of the gradients, 13 GB, and waits below 3.6 GB/s; its gathers, 0.4 s on NVLink, are hidden. *Tensor* sends as much over the network as *hybrid*, and pays for its tensor all-reduces with 0.8 s that nothing hides, so it takes 4.5 s and waits below 2.9 GB/s.
#
# On a network of 50 GB/s or more I would take *full*: it is as fast as *hybrid* and leaves 72 GB for activations. Between 4 and 48 GB/s *hybrid* is the fastest if the activations fit into the 21 GB that it leaves; checkpointing helps. If they do not fit, *tensor* is only a quarter slower and leaves 60 GB. Below 3 GB/s *hybrid* and *tensor* wait for the same bytes, and *tensor* has more memory left, so I would take that.
#
# With 1,024 tokens computing takes an eighth, 0.45 s, while the bytes of parameters and gradients stay the same. So all thresholds move up eightfold: *full* would need 385 GB/s, which no network has, *hybrid* 28 GB/s, and *tensor*, whose activations shrink with the tokens, 23 GB/s. NVLink, too, is now nearly too slow for the gathers of *hybrid*, 0.42 s of 0.45 s. With few tokens for each GPU ZeRO 3 is the wrong tool for any network.
