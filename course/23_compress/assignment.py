# %% [markdown] nbgrader={"grade_id": "top"}
# # 23 Talk less: exercises
#
# You build deep gradient compression, and repair one that sends signs.
#
# Four exercises, 12 points. After each, run the check: it compares several steps with the published algorithm, on 1 to 5
# ranks of a World, then in real processes, and it counts bytes. It says what is wrong. Try as often as you like.
# What your function prints is not shown there; to see it, call it in a cell of your own.
#
# All of `minidist.collectives` is yours; `minidist.train` and `minidist.parallel` are refused.

# %% nbgrader={"grade_id": "setup"}
import math

import torch
from torch.nn.functional import cross_entropy

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World
from minidist.models import mlp
from minidist.tasks import digits

# %% [markdown] nbgrader={"grade_id": "compress_spec"}
# ## 1 · What a rank sends, and keeps (4 points)
#
# | | |
# |---|---|
# | call | `values, places = compress(u, v, g, k, m, limit, n)`, once a step |
# | `u, v` | this rank's velocity, and what waits: (N,) float64, zeros at the start; **changed in place** |
# | `g` | this rank's gradient, (N,), not zero; **not changed** |
# | `k, m` | how many numbers are sent; the momentum |
# | `limit, n` | the norm to which the *sum* of n ranks' gradients is to be clipped; n |
# | returns | `values` (k,) float64 and `places` (k,) int64, in any order |
#
# In this order: clip g, by one factor, to a norm of at most limit/√n. Momentum correction: u ← mu + g, v ← v + u.
# The k largest of |v| are sent. There v becomes 0, and u, too: momentum factor masking. About 8 lines.
#
# <details><summary>Hint</summary>
#
# `v.abs().topk(k).indices` are the places; `v[places]` is a copy. `u.mul_(m).add_(g)` writes into u.
#
# </details>


# %% nbgrader={"grade_id": "compress", "solution": true}
def compress(u, v, g, k, m, limit, n):
    """What is sent of this step; u and v are brought up to date."""
    ### BEGIN SOLUTION
    factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
    u.mul_(m).add_(g * factor)
    v.add_(u)
    places = v.abs().topk(k).indices
    values = v[places]
    u[places] = 0
    v[places] = 0
    return values, places
    ### END SOLUTION


# %% nbgrader={"grade_id": "compress_test", "points": 4}
check.compress(compress)

# %% [markdown] nbgrader={"grade_id": "compress_target"}
# **Target:** yours follows momentum SGD in stairs. (One weight of four is sent in a step.)


# %%
def ways(steps=40):
    u = torch.zeros(4).double()
    v = torch.zeros(4).double()
    far = torch.zeros(4).double()
    velocity = 0.0
    g = torch.tensor([0.9, 1.0, 1.1, 1.05]).double()
    dense = [0.0]
    seen = [0.0]
    for _ in range(steps):
        values, places = compress(u, v, g, 1, 0.5, 99.0, 1)
        far[places] += values
        velocity = 0.5 * velocity + 0.9
        seen.append(float(far[0]))
        dense.append(dense[-1] + velocity)
    return {"dense": (range(steps + 1), dense), "yours": (range(steps + 1), seen)}


study.curves(
    ways(),
    xlabel="step",
    ylabel="how far weight 0 has come",
    title="A weight with a steady gradient",
)

# %% [markdown] nbgrader={"grade_id": "sparse_mean_spec"}
# ## 2 · The mean of sparse vectors (3 points)
#
# | | |
# |---|---|
# | call | `sparse_mean(comm, values, places, size)` |
# | `values, places` | what this rank sends: (k,) float64 and (k,) int64, k the same on all ranks; **not changed** |
# | returns | the mean over the ranks, dense, (size,) float64; where a rank sends nothing, it counts as zero |
# | cost | 16 bytes a number, to each of the n − 1 others |
#
# **Invariant:** several ranks may send the same place; all count. Equal bit for bit on all ranks. About 5 lines.
#
# <details><summary>Hint</summary>
#
# `all_gather(comm, x)` puts all ranks' x under each other, in rank order. `total.index_add_(0, places, values)` adds
# up, also what comes twice. (`total[places] += values` does not.)
#
# </details>


# %% nbgrader={"grade_id": "sparse_mean", "solution": true}
def sparse_mean(comm, values, places, size):
    """The mean of all ranks' sparse vectors, dense."""
    ### BEGIN SOLUTION
    total = torch.zeros(size, dtype=values.dtype)
    total.index_add_(0, all_gather(comm, places), all_gather(comm, values))
    return total / comm.size
    ### END SOLUTION


# %% nbgrader={"grade_id": "sparse_mean_test", "points": 3}
check.sparse_mean(sparse_mean)

# %% [markdown] nbgrader={"grade_id": "sparse_mean_target"}
# **Target:** your two functions train a network on two ranks; 1 % of the numbers travel, after two epochs of 25 % and
# 6 %.

# %%
task = digits()


def learns(comm, dense, epochs=4):
    net = mlp([64, 32, 10], dtype=torch.float64)
    params, losses = list(net.parameters()), []
    N = sum(p.numel() for p in params)
    u, v = torch.zeros(N).double(), torch.zeros(N).double()
    for epoch in range(epochs):
        for rows in torch.arange(1408).view(-1, 64)[:, comm.rank :: comm.size]:
            grads = torch.autograd.grad(cross_entropy(net(task.x[rows]), task.y[rows]), params)
            g = torch.cat([x.flatten() for x in grads])
            if dense:
                mean = u.mul_(0.9).add_(all_reduce_(comm, g, "mean"))
            else:
                k = round(N * (0.25, 0.06, 0.01, 0.01)[epoch])
                mean = sparse_mean(comm, *compress(u, v, g, k, 0.9, 99.0, comm.size), N)
            for p, step in zip(params, mean.split([p.numel() for p in params])):
                p.data -= 0.05 * step.view_as(p)
        losses.append(cross_entropy(net(task.test_x), task.test_y).item())
    return range(1, epochs + 1), losses


study.curves(
    {name: World(2).run(learns, name == "dense")[0] for name in ("dense", "yours")},
    xlabel="epoch",
    ylabel="loss on the test set",
    title="The digits on two ranks",
)

# %% [markdown] nbgrader={"grade_id": "predict_compress_spec"}
# ## 3 · Predict (3 points)
#
# 8 ranks, 10 million weights, gradients in fp32, a link of 12.5 MB/s for each rank (100 Mbit/s). All-reduces are rings.
#
# - `dense`: bytes that each rank sends in a step
# - `sparse`: the same by DGC, of which 0.1 % travels, 6 bytes a number, gathered by each rank from all others
# - `half`: the same as `dense`, in fp16
# - `local`: bytes that each rank sends in 1,000 steps of local SGD, H = 10, weights in fp32
# - `thin`: numbers in PowerSGD's two thin matrices for a weight of 1,000 × 1,000, rank 4
# - `seconds`: how long the dense all-reduce takes, without latency
# - `crossing`: on how many ranks DGC sends as many bytes as dense, at 0.1 %
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_compress", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_compress.numbers(STUDENT)
dense = sparse = half = local = thin = seconds = crossing = None
### BEGIN SOLUTION
n, psi = 8, 10e6
dense = 2 * (n - 1) / n * 4 * psi
sparse = (n - 1) * 6 * 0.001 * psi
half = dense / 2
local = 1000 / 10 * dense
thin = 4 * (1000 + 1000)
seconds = dense / 12.5e6
crossing = 2 * 4 / (6 * 0.001)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_compress_test", "points": 3}
check.predict_compress(dense, sparse, half, local, thin, seconds, crossing, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_compress_target"}
# **Target:** seconds on the wire in a step, from `seconds` down to a few hundredths.

# %%
study.bars(
    {
        "dense": seconds,
        "fp16": half / 12.5e6,
        "local SGD, H = 10": local / 1000 / 12.5e6,
        "DGC, 99.9 %": sparse / 12.5e6,
    },
    unit="s",
    title="A step's messages at 100 Mbit/s, 8 ranks",
)

# %% [markdown] nbgrader={"grade_id": "sign_average_spec"}
# ## 4 · Find the bug (2 points)
#
# One bit a number: each rank sends the signs of p = g + error, and a scale, the mean of |p|. What it has not said is
# kept in `error`, and added to the next gradient. The next cell was found in somebody's code. With one rank it is
# right.


# %% nbgrader={"grade_id": "sign_average_broken"}
def sign_average(comm, g, error):
    """The average of all ranks' scaled signs; `error` is what is to be said later."""
    p = g + error
    positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)
    scales = all_gather(comm, p.abs().mean()[None])  # (n,)
    average = ((2 * positive - 1) * scales[:, None]).mean(0)
    error.copy_(p - average)
    return average


# %%
def wanders(comm, average, steps=60):
    """How far w is from 0, where the sum of the ranks' losses has its minimum. Each rank's own is far away."""
    target = torch.tensor([1.0, -2.0, 3.0, -4.0]).double() * (1 if comm.rank == 0 else -1)
    w = torch.zeros(4).double() + 0.3
    error = torch.zeros(4).double()
    far = []
    for _ in range(steps):
        w -= 0.02 * average(comm, w - target, error)
        far.append(float(w.norm()))
    return far


broken = World(2).run(wanders, sign_average)[0]
study.curves(
    {"broken": (range(1, 61), broken)},
    xlabel="step",
    ylabel="distance from the minimum",
    title="Two ranks with opposite wishes",
)

# %% [markdown] nbgrader={"grade_id": "sign_average_task"}
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `sign_average(comm, g, error)`, once a step |
# | `g` | this rank's gradient, (N,) float64; **not changed** |
# | `error` | this rank's, zeros at the start; **changed in place** |
# | returns | the average over the ranks of c = mean\|p\| · sign(p), with sign(0) = 1 |
# | cost | N bytes of signs and 8 of a scale, to each of the n − 1 others |
#
# <details><summary>Hint</summary>
#
# Whose error is `error`? Add up what all ranks have sent and what all ranks keep: is anything lost, or counted twice?
#
# </details>


# %% nbgrader={"grade_id": "sign_average", "solution": true}
def sign_average(comm, g, error):
    """The average of all ranks' scaled signs; `error` is what is to be said later."""
    ### BEGIN SOLUTION
    p = g + error
    positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)
    scales = all_gather(comm, p.abs().mean()[None])  # (n,)
    sent = (2 * positive - 1) * scales[:, None]
    error.copy_(p - sent[comm.rank])
    return sent.mean(0)
    ### END SOLUTION


# %% nbgrader={"grade_id": "sign_average_test", "points": 2}
check.sign_average(sign_average)

# %% [markdown] nbgrader={"grade_id": "sign_average_target"}
# **Target:** it comes close to the minimum, and stays.

# %%
repaired = World(2).run(wanders, sign_average)[0]
study.curves(
    {name: (range(1, 61), far) for name, far in {"broken": broken, "repaired": repaired}.items()},
    xlabel="step",
    ylabel="distance from the minimum",
    title="Two ranks with opposite wishes",
)
