# %% [markdown] nbgrader={"grade_id": "top"}
# # 23 Send less: exercises
#
# You build a deep gradient compression that looks ahead, let ranks send as much as each of them likes, repair one that sends signs, and judge when all of this pays.
#
# Five exercises, 15 points. After each of the first four, run the check: it compares several steps with the published algorithm, on 1 to 5
# ranks of a World, then in real processes, and it counts bytes. It says what is wrong. Try as often as you like.
# What your function prints is not shown there; to see it, call it in a cell of your own. The fifth is an open question, which your teacher reads.
#
# All of `minidist.collectives` is yours; `minidist.train` and `minidist.parallel` are refused.

# %% nbgrader={"grade_id": "setup"}
import math

import torch
from IPython.display import display
from torch.nn.functional import cross_entropy

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World
from minidist.models import mlp
from minidist.tasks import digits

# %% [markdown] nbgrader={"grade_id": "compress_spec"}
# ## 1 · Look ahead (4 points)
#
# The lesson's DGC corrects for ordinary momentum, u ← mu + g, by which a weight moves u. *Nesterov's* momentum moves it
# one step further ahead: first u ← m(u + g), and then the weight moves by u + g. That is what the authors' code has.
# Write what a rank does in a step with this momentum, clipping and masking included.
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
# In this order: clip g, by one factor, to a norm of at most limit/√n (what is below stays as it is). Momentum correction: u ← m(u + g), v ← v + u + g,
# with the clipped g. The k largest of |v| are sent. There v becomes 0, and u, too: momentum factor masking. About 8 lines.
#
# <details><summary>Hint</summary>
#
# `v.abs().topk(k).indices` are the places; `v[places]` is a copy. `u.add_(g).mul_(m)` writes into u.
#
# </details>


# %% nbgrader={"grade_id": "compress", "solution": true}
def compress(u, v, g, k, m, limit, n):
    """What is sent of this step; u and v are brought up to date."""
    ### BEGIN SOLUTION
    factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
    u.add_(g * factor).mul_(m)
    v.add_(u + g * factor)
    places = v.abs().topk(k).indices
    values = v[places]
    u[places] = 0
    v[places] = 0
    return values, places
    ### END SOLUTION


# %% nbgrader={"grade_id": "compress_test", "points": 4}
check.compress(compress)

# %% [markdown] nbgrader={"grade_id": "compress_target"}
# **Target:** yours follows Nesterov's momentum in stairs, below it because of the masking. (One weight of four is sent in a step.)


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
        velocity = 0.5 * (velocity + 0.9)
        seen.append(float(far[0]))
        dense.append(dense[-1] + velocity + 0.9)
    return {"dense": (range(steps + 1), dense), "yours": (range(steps + 1), seen)}


with check.limit(10):
    lines = ways()
study.curves(
    lines,
    xlabel="step",
    ylabel="how far weight 0 has come",
    title="A weight with a steady gradient",
)

# %% [markdown] nbgrader={"grade_id": "sparse_mean_spec"}
# ## 2 · As much as each rank likes (3 points)
#
# In the lesson all ranks send equally many numbers. A rank that sends whatever is above a *threshold* does not know
# how many the others send, and `all_gather` wants tensors of one shape. So the ranks have to agree first.
#
# | | |
# |---|---|
# | call | `sparse_mean(comm, values, places, size)` |
# | `values, places` | what this rank sends: (k,) float64 and (k,) int64; each rank has a k of its own, from 0 on; **not changed** |
# | returns | the mean over the ranks, dense, (size,) float64; where a rank sends nothing, it counts as zero |
# | cost | to each of the n − 1 others 8 bytes, and 16 for each number of the rank that sends most; at most three gathers |
#
# **Invariant:** several ranks may send the same place; all count. Equal bit for bit on all ranks. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Gather how many there are; then everybody pads to the longest. A value of 0 does no harm, wherever its place is.
# `all_gather(comm, x)` puts all ranks' x under each other, in rank order. `total.index_add_(0, places, values)` adds
# up, also what comes twice. (`total[places] += values` does not.)
#
# </details>


# %% nbgrader={"grade_id": "sparse_mean", "solution": true}
def sparse_mean(comm, values, places, size):
    """The mean of all ranks' sparse vectors, dense."""
    ### BEGIN SOLUTION
    counts = all_gather(comm, torch.tensor([len(values)]))
    most = int(counts.max())
    message = torch.zeros(2, most, dtype=torch.float64)
    message[0, : len(values)] = values
    message[1, : len(values)] = places
    total = torch.zeros(size, dtype=torch.float64)
    for what, where in all_gather(comm, message[None]):
        total.index_add_(0, where.long(), what)
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
    params = list(net.parameters())
    losses = []
    N = sum(p.numel() for p in params)
    u = torch.zeros(N).double()
    v = torch.zeros(N).double()
    for epoch in range(epochs):
        for rows in torch.arange(1408).view(-1, 64)[:, comm.rank :: comm.size]:
            grads = torch.autograd.grad(cross_entropy(net(task.x[rows]), task.y[rows]), params)
            g = torch.cat([x.flatten() for x in grads])
            if dense:
                mean = all_reduce_(comm, g, "mean")
                mean = mean + u.add_(mean).mul_(0.9)
            else:
                k = round(N * (0.25, 0.06, 0.01, 0.01)[epoch])
                mean = sparse_mean(comm, *compress(u, v, g, k, 0.9, 99.0, comm.size), N)
            for p, step in zip(params, mean.split([p.numel() for p in params])):
                p.data -= 0.05 * step.view_as(p)
        losses.append(cross_entropy(net(task.test_x), task.test_y).item())
    return range(1, epochs + 1), losses


with check.limit(60):
    losses = {name: World(2).run(learns, name == "dense")[0] for name in ("dense", "yours")}
study.curves(
    losses,
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
# - `signs`: the same by signs, one bit for each number, without their scales
# - `warm`: in 90 epochs, the share of DGC's bytes that its four epochs of warm-up send (25 %, then a quarter of that in
#   each, to 0.390625 %; then 0.1 %), from 0 to 1
# - `thin`: numbers in PowerSGD's two thin matrices for a weight of 1,000 × 1,000, rank 4
# - `seconds`: how long the dense all-reduce takes, without latency
# - `crossing`: on how many ranks DGC sends as many bytes as dense, at 0.1 %
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_compress", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_compress.numbers(STUDENT)
dense = sparse = signs = warm = thin = seconds = crossing = None
### BEGIN SOLUTION
n, psi = 8, 10e6
dense = 2 * (n - 1) / n * 4 * psi
sparse = (n - 1) * 6 * 0.001 * psi
signs = (n - 1) * psi / 8
early = 0.25 + 0.0625 + 0.015625 + 0.00390625
warm = early / (early + 86 * 0.001)
thin = 4 * (1000 + 1000)
seconds = dense / 12.5e6
crossing = 2 * 4 / (6 * 0.001)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_compress_test", "points": 3}
check.predict_compress(dense, sparse, signs, warm, thin, seconds, crossing, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_compress_target"}
# **Target:** seconds on the wire in a step, from `seconds` down to a few hundredths.

# %%
study.bars(
    {
        "dense": seconds,
        "signs": signs / 12.5e6,
        "DGC, 99.9 %": sparse / 12.5e6,
    },
    unit="s",
    title="A step's messages at 100 Mbit/s, 8 ranks",
)

# %% [markdown] nbgrader={"grade_id": "sign_average_spec"}
# ## 4 · Find the bugs (3 points)
#
# One bit a number: each rank sends the signs of p = g + error, and a scale, the mean of |p|. What it has not said is
# kept in `error`, and added to the next gradient. The next cell was found in somebody's code. With one rank it is
# right. With several ranks it has two mistakes, and to mend one of them is not enough.


# %% nbgrader={"grade_id": "sign_average_broken"}
def sign_average(comm, g, error):
    """The average of all ranks' scaled signs; `error` is what is to be said later."""
    p = g + error
    positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)
    scales = all_gather(comm, p.abs().mean()[None])  # (n,)
    average = (2 * positive - 1).double().mean(0) * scales.mean()
    error.copy_(p - average)
    return average


# %%
def wanders(comm, average, steps=60):
    """How far w is from 0, where the sum of the ranks' losses has its minimum. Each rank's own is far away."""
    target = torch.tensor([1.0, -2.0, 3.0, -4.0]).double() * (2 if comm.rank == 0 else -2)
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
# Let rank 0 have p = (10, 10) and rank 1 p = (−1, −1). What is the average of what they have sent, and what does the code
# return? And whose error is `error`? Add up what all ranks have sent and what all ranks keep: is anything lost, or counted twice?
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


# %% nbgrader={"grade_id": "sign_average_test", "points": 3}
check.sign_average(sign_average)

# %% [markdown] nbgrader={"grade_id": "sign_average_target"}
# **Target:** it comes close to the minimum, and stays.

# %%
with check.limit(10):
    repaired = World(2).run(wanders, sign_average)[0]
study.curves(
    {name: (range(1, 61), far) for name, far in {"broken": broken, "repaired": repaired}.items()},
    xlabel="step",
    ylabel="distance from the minimum",
    title="Two ranks with opposite wishes",
)

# %% [markdown] nbgrader={"grade_id": "which_compression_spec"}
# ## 5 · What would you turn on? (2 points, graded by hand)
#
# A model of 1 billion weights is trained on 16 machines, one rank each, with gradients in fp32 and SGD with momentum.
# All its matrices are 4,000 × 4,000. A step computes for 0.5 s, of which the backward is 0.3 s; messages can be hidden
# behind the backward, except for DGC with local clipping, which has to wait for its end. Choosing, and multiplying by
# thin matrices, reads and writes 30 bytes of memory for each weight, at 3,350 GB/s (all modelled, without latency).
#
# **Dense, fp16, PowerSGD of rank 4, or DGC with clipping at 99.9 %: what would you turn on at 12.5 GB/s, and what at
# 125 MB/s?**
#
# First draw the time of a step against the speed of the link, from 10 MB/s to 100 GB/s, for the four ways. Then write
# five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which it can be read where each way becomes slower than computing alone, and the times of all four at both speeds |
# | ½ | a choice for each speed, with what it costs besides time: memory, exactness, steps until a given loss |
# | ½ | what the warm-up of DGC does to its numbers on 16 ranks, with a number |

# %% nbgrader={"grade_id": "which_compression_plot", "solution": true}
### BEGIN SOLUTION
PSI = 1e9
RANKS = 16
ring = 2 * (RANKS - 1) / RANKS
matrices = 4 * (4000 + 4000) / 4000**2
memory = 30 * PSI / 3.35e12


def step_times(speed, share=0.001):
    """Seconds of a step by each way."""
    gathered = (RANKS - 1) * 6 * share * PSI
    return {
        "dense": 0.2 + max(0.3, ring * 4 * PSI / speed),
        "fp16": 0.2 + max(0.3, ring * 2 * PSI / speed),
        "PowerSGD, rank 4": 0.2 + max(0.3, ring * 4 * matrices * PSI / speed) + memory,
        "DGC": 0.5 + memory + gathered / speed,
    }


speeds = [10 ** (7 + k / 4) for k in range(17)]
display(
    study.curves(
        {name: (speeds, [step_times(s)[name] for s in speeds]) for name in step_times(1e9)},
        logx=True,
        logy=True,
        xunit="B",
        yunit="s",
        xlabel="bytes per second on the link",
        ylabel="a step",
        title="1 B weights on 16 ranks (modelled)",
    )
)
rows = [(name, step_times(12.5e9)[name], step_times(125e6)[name]) for name in step_times(1e9)]
display(study.table(rows, ["", "seconds at 12.5 GB/s", "seconds at 125 MB/s"]))
print(f"DGC in its first epoch at 125 MB/s: {step_times(125e6, 0.25)['DGC']:.0f} s")
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "which_compression", "solution": true, "points": 2}
# At 12.5 GB/s dense takes 0.80 s a step, fp16 and PowerSGD 0.50 and 0.51 s, DGC 0.52 s. I turn on fp16: 0.3 s of its
# messages are hidden behind the backward, nothing is kept, and the run hardly changes. Dense needs 25 GB/s to hide.
#
# At 125 MB/s dense takes 60 s, fp16 30 s, PowerSGD 0.51 s and DGC 1.2 s. I turn on PowerSGD: 15 MB of messages take
# 0.12 s and stay hidden. It costs an error of one number for each weight (4 GB) and Q; the run is not dense training any
# more, so I would compare the loss after a fixed number of steps. DGC would need 8 GB for u and v, and more steps.
#
# DGC's warm-up sends 22.5 GB a rank in each step of the first epoch, 15 · 6 · 0.25 bytes a weight: 180 s at 125 MB/s,
# three times dense. So on 16 ranks the first epochs should be dense, or the warm-up should begin at fewer than 8 %,
# where DGC sends as much as dense.
