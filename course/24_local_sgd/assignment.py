# %% [markdown] nbgrader={"grade_id": "top"}
# # 24 Send seldom: exercises
#
# You average ranks that have had different numbers of samples, give the averages an outer optimizer, find out how to weight ranks so that the average rests where it should, and let the period follow the learning rate.
#
# Six exercises, 17 points. After each of the first five, run the check. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The last exercise is graded by hand.
#
# All of `minidist.collectives` is yours; `minidist.train` and `minidist.parallel` are refused.

# %% nbgrader={"grade_id": "setup"}
import math

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.models import mlp
from minidist.tasks import digits

# %% [markdown] nbgrader={"grade_id": "local_sgd_spec"}
# ## 1 · Ranks that do not count equally (4 points)
#
# A machine that has seen ten times as many samples as another knows more, and the average should reflect that. Here the ranks' batches differ in size, and a rank may even have no samples in a step.
#
# | | |
# |---|---|
# | call | `local_sgd(comm, params, step, steps, H)` |
# | `params` | a list of this rank's float64 tensors, not all contiguous; the same on all ranks at the start; **changed in place** |
# | `step` | `step(t)` takes this rank's step t on `params` and returns the number of samples that it had, an int, 0 if none (then `params` stay); call it for t = 0, 1, … `steps` − 1, once each |
# | afterwards | `params` were averaged over the ranks after every H steps, and at the end |
# | an average | Σ mᵣxᵣ / Σ mᵣ, where rank r has the parameters xᵣ and has had mᵣ samples **since the last average**; some rank always has some |
# | returns | nothing |
# | cost | ⌈`steps`/H⌉ averages: the bytes of ring all-reduces of `params` and of one more number, float64; at most one message for each tensor and one for the number, in each step of a ring |
#
# **Invariant:** between two averages nothing is sent. A last period that is shorter is averaged too, and nothing is averaged twice. After an average the ranks are equal bit for bit. About 10 lines.
#
# <details><summary>Hint</summary>
#
# Nobody knows Σ mᵣ without a message. `all_reduce_(comm, x)` sums a tensor, or a list of tensors, in place on all ranks. `p.mul_(share)` scales in place, whatever the strides of p.
#
# </details>


# %% nbgrader={"grade_id": "local_sgd", "solution": true}
def local_sgd(comm, params, step, steps, H):
    """Steps alone; an average by samples after every H of them, and at the end."""
    ### BEGIN SOLUTION
    samples = 0
    for t in range(steps):
        samples += step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            total = torch.tensor(samples, dtype=torch.float64)
            all_reduce_(comm, total)
            for p in params:
                p.mul_(samples / total)
            all_reduce_(comm, params)
            samples = 0
    ### END SOLUTION


# %% nbgrader={"grade_id": "local_sgd_test", "points": 4}
check.local_sgd(local_sgd)

# %% [markdown] nbgrader={"grade_id": "local_sgd_target"}
# **Target:** the bytes fall like 1/H. The loss is the price: each of three ranks has classes of its own, and rank 0 has batches four times as large.

# %%
task = digits()


def learner(comm, rate):
    """A network, and a function that takes a step on this rank's own classes."""
    net = mlp([64, 32, 10], dtype=torch.float64)
    random = torch.Generator().manual_seed(comm.rank)
    mine = task.y.argsort(stable=True).tensor_split(comm.size)[comm.rank]
    params = list(net.parameters())
    batch = 64 if comm.rank == 0 else 16

    def step(t):
        rows = mine[torch.randint(len(mine), (batch,), generator=random)]
        grads = torch.autograd.grad(cross_entropy(net(task.x[rows]), task.y[rows]), params)
        for p, g in zip(params, grads):
            p.data -= rate * g
        return batch

    return net, step


def reaches(comm, H, steps=64):
    net, step = learner(comm, 0.3)
    local_sgd(comm, [p.data for p in net.parameters()], step, steps, H)
    return cross_entropy(net(task.test_x), task.test_y).item()


rows = []
with check.limit(20):
    for H in (1, 4, 16, 64):
        world = World(3)
        loss = world.run(reaches, H)[0]
        rows.append((H, round(loss, 2), world.trace.bytes_sent(0)))
study.table(rows, ["H", "loss", "bytes of rank 0"], title="64 steps on three ranks")

# %% [markdown] nbgrader={"grade_id": "outer_step_spec"}
# ## 2 · An outer optimizer (3 points)
#
# The lesson's slow momentum treats the way from one average to the next as a gradient. Any optimizer can use such a gradient. DiLoCo uses SGD with **Nesterov's** momentum and a learning rate of its own, η. Let x be the anchor, the parameters after the last period, and x̄ the average now:
#
# d = x − x̄,   u ← βu + d,   x ← x − η(d + βu), with the new u.
#
# | | |
# |---|---|
# | call | `outer_step(comm, anchors, params, momentum, eta, beta)`, once after each period |
# | `anchors` | a list of float64 tensors, not all contiguous: x, the same on all ranks; **changed in place** |
# | `params` | the same shapes: where this rank's local steps have ended; **changed in place** |
# | `momentum` | the same shapes: u, the same on all ranks; **changed in place** |
# | `eta, beta` | numbers |
# | afterwards | `params` and `anchors` have the new x, `momentum` the new u, bit for bit the same on all ranks |
# | returns | nothing |
# | cost | one average: the bytes of ring all-reduces of `params`; at most one message for each tensor, in each step of a ring |
#
# Note that d is not divided by a learning rate. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Average `params` in place first; then they are x̄. Each rank computes everything else by itself, and all get the same result. `a.copy_(b)` writes b into a.
#
# </details>


# %% nbgrader={"grade_id": "outer_step", "solution": true}
def outer_step(comm, anchors, params, momentum, eta, beta):
    """From the average on, with Nesterov's momentum."""
    ### BEGIN SOLUTION
    all_reduce_(comm, params, "mean")
    for x, p, u in zip(anchors, params, momentum):
        d = x - p
        u.mul_(beta).add_(d)
        x.sub_(eta * (d + beta * u))
        p.copy_(x)
    ### END SOLUTION


# %% nbgrader={"grade_id": "outer_step_test", "points": 3}
check.outer_step(outer_step)

# %% [markdown] nbgrader={"grade_id": "outer_step_target"}
# **Target:** with periods of 16 steps and classes of their own for each rank, the outer optimizer is ahead of the plain average (η = 1, β = 0).


# %%
def outer_losses(comm, eta, beta, periods=16, H=16):
    net, step = learner(comm, 0.1)
    params = [p.data for p in net.parameters()]
    anchors = [p.clone() for p in params]
    momentum = [torch.zeros_like(p) for p in params]
    losses = []
    for k in range(periods):
        for t in range(H):
            step(k * H + t)
        outer_step(comm, anchors, params, momentum, eta, beta)
        losses.append(cross_entropy(net(task.test_x), task.test_y).item())
    return range(1, periods + 1), losses


with check.limit(20):
    lines = {
        "plain average": World(3).run(outer_losses, 1.0, 0.0)[0],
        "η = 0.7, β = 0.6": World(3).run(outer_losses, 0.7, 0.6)[0],
    }
study.curves(
    lines,
    logy=True,
    xlabel="averages",
    ylabel="loss on the test set",
    title="Uneven data, H = 16",
)

# %% [markdown] nbgrader={"grade_id": "fair_weights_spec"}
# ## 3 · Where it should rest (2 points)
#
# In the lesson's tug of war, rank r has the loss ½aᵣ(w − cᵣ)², and the plain average of the ranks rests at a wrong place. Now the ranks are not equally fast, either: between two averages rank r takes Hᵣ steps, a number of its own. But we may choose how much each rank counts. The new weight is w ← Σ pᵣwᵣ, where wᵣ is what rank r has after its local steps, and Σ pᵣ = 1.
#
# **Which p make it rest at the minimum of Σ ½aᵣ(w − cᵣ)², wherever the cᵣ are?**
#
# | | |
# |---|---|
# | call | `fair_weights(steepness, rate, steps)` |
# | `steepness` | a list of n numbers above 0: aᵣ; **not changed** |
# | `rate` | γ; all γaᵣ are between 0 and 2 |
# | `steps` | a list of n ints, at least 1: Hᵣ; **not changed** |
# | returns | a list of n floats with the sum 1: pᵣ |
#
# About 6 lines.
#
# <details><summary>Hint</summary>
#
# As in the lesson, say how far rank r walks from w in its Hᵣ steps. The average rests if the displacements, weighted by p, cancel. At the minimum the gradients aᵣ(w − cᵣ) cancel. Choose p so that the first condition is the second.
#
# </details>


# %% nbgrader={"grade_id": "fair_weights", "solution": true}
def fair_weights(steepness, rate, steps):
    """Weights of an average that rests where the mean loss has its minimum."""
    ### BEGIN SOLUTION
    found = []
    for a, H in zip(steepness, steps):
        walked = 1 - (1 - rate * a) ** H
        found.append(a / walked)
    total = sum(found)
    return [w / total for w in found]
    ### END SOLUTION


# %% nbgrader={"grade_id": "fair_weights_test", "points": 2}
check.fair_weights(fair_weights)

# %% [markdown] nbgrader={"grade_id": "fair_weights_target"}
# **Target:** the tug of war of the lesson, where rank 1 takes twice as many steps as rank 0. The plain average drifts away from the minimum at 4; yours stays there.


# %%
def tug(weights, minima=(0.0, 6.0), steepness=(1.0, 2.0), rate=0.2, steps=(4, 8), periods=10):
    w = 4.0
    seen = [w]
    for _ in range(periods):
        ends = []
        for c, a, H in zip(minima, steepness, steps):
            ends.append(c + (1 - rate * a) ** H * (w - c))
        w = sum(p * end for p, end in zip(weights, ends))
        seen.append(w)
    return range(periods + 1), seen


with check.limit(10):
    yours = tug(fair_weights([1.0, 2.0], 0.2, [4, 8]))
study.curves(
    {"plain average": tug([0.5, 0.5]), "your weights": yours},
    xlabel="averages",
    ylabel="the weight",
    title="Four steps on rank 0, eight on rank 1",
)

# %% [markdown] nbgrader={"grade_id": "next_period_spec"}
# ## 4 · A period that follows the rate (3 points)
#
# The lesson derived τ from a bound on the error in a given time S, for a learning rate that stays the same:
#
# 2F/(γS) · (C + D/τ) + Bτ.
#
# When the learning rate γ is lowered, more changes than the first term. The drift term comes from steps that were taken at different points, and it grows with the **square** of the rate: B = bγ², where b is constant. Find the best τ again. Compare it with τ₀, which was best at the loss F₀ and the rate γ₀, and you have a rule for any rate.
#
# | | |
# |---|---|
# | call | `next_period(losses, rates, periods, tau_0, shrink)` |
# | `losses` | F at the beginning of each interval until now, from F₀ to the new one; above 0; **not changed** |
# | `rates` | the learning rate in each of these intervals, from γ₀ to the new one's; it stays or falls; **not changed** |
# | `periods` | τ of the intervals before the new one: one fewer; **not changed** |
# | `tau_0, shrink` | the first period, an int; a factor between 0 and 1 |
# | returns | τ of the new interval, an int |
#
# The first period is τ₀. After that, let t be what your rule gives, rounded up. Return t if it is below the last period, **or** if the new rate is lower than that of the interval before, for then the period may grow. Else return the last period times `shrink`, rounded up. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Put bγ² in the place of B before you set the derivative with respect to τ to zero. How often does γ stand under the root?
#
# </details>


# %% nbgrader={"grade_id": "next_period", "solution": true}
def next_period(losses, rates, periods, tau_0, shrink):
    """AdaComm's rule, for a rate that falls."""
    ### BEGIN SOLUTION
    if not periods:
        return tau_0
    found = math.ceil(math.sqrt(losses[-1] / losses[0] * (rates[0] / rates[-1]) ** 3) * tau_0)
    lowered = rates[-1] < rates[-2]
    return found if found < periods[-1] or lowered else math.ceil(shrink * periods[-1])
    ### END SOLUTION


# %% nbgrader={"grade_id": "next_period_test", "points": 3}
check.next_period(next_period)

# %% [markdown] nbgrader={"grade_id": "next_period_target"}
# **Target:** stairs that lead down, also where the loss stands still, and one step up when the rate falls to a quarter.

# %%
curves = {}
with check.limit(10):
    for name, losses, falls in [
        ("the loss falls", [2 * 0.5**i for i in range(10)], 99),
        ("it stands still", [2.0] * 10, 99),
        ("it falls, the rate falls in interval 6", [2 * 0.7**i for i in range(10)], 6),
    ]:
        periods = []
        rates = [0.5 if i < falls else 0.125 for i in range(10)]
        for i in range(10):
            periods.append(next_period(losses[: i + 1], rates[: i + 1], list(periods), 40, 0.5))
        curves[name] = range(10), periods
study.curves(curves, xlabel="interval", ylabel="τ", title="Your periods, from 40")

# %% [markdown] nbgrader={"grade_id": "predict_local_sgd_spec"}
# ## 5 · Predict (3 points)
#
# 8 ranks, 10 million weights in fp32, a link of 12.5 MB/s for each rank (100 Mbit/s). All-reduces are rings; leave their latency out. A step computes for 0.1 s, and nothing is sent meanwhile. A run has 1,000 steps.
#
# - `local`: bytes that each rank sends in the run, with H = 10 from the start
# - `post`: the same, post-local: the first 200 steps have H = 1, the other 800 have H = 10
# - `states`: as `local`, but with Adam, whose states are averaged along with the weights
# - `seconds`: how long a step takes on average, as in `local`
# - `period`: the H with which machines compute for 90 % of the time
# - `best`: how many times as fast as a run with H = 1 throughout a post-local run can be at most, with 200 dense steps and then an H as large as you like
# - `memory`: bytes that slow momentum needs on each rank in addition, in fp32
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_local_sgd", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_local_sgd.numbers(STUDENT)
local = post = states = seconds = period = best = memory = None
### BEGIN SOLUTION
n, psi = 8, 10e6
dense = 2 * (n - 1) / n * 4 * psi
local = 1000 / 10 * dense
post = (200 + 800 / 10) * dense
states = 3 * local
exchange = dense / 12.5e6
seconds = 0.1 + exchange / 10
period = 9 * exchange / 0.1
best = 1000 * (0.1 + exchange) / (200 * (0.1 + exchange) + 800 * 0.1)
memory = 2 * 4 * psi
### END SOLUTION

# %% nbgrader={"grade_id": "predict_local_sgd_test", "points": 3}
check.predict_local_sgd(local, post, states, seconds, period, best, memory, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_local_sgd_target"}
# **Target:** the mean seconds of a step: nearly six for dense training, and for the others ever closer to the computing alone.

# %%
study.bars(
    {
        "dense": 10 * (seconds - 0.1) + 0.1,
        "post-local, at best": (10 * (seconds - 0.1) + 0.1) / best,
        "local, H = 10": seconds,
    },
    unit="s",
    target=0.1,
    note="computing",
    title="A step at 100 Mbit/s on 8 ranks, on average",
)

# %% [markdown] nbgrader={"grade_id": "how_seldom_spec"}
# ## 6 · How seldom, and how fast? (2 points, graded by hand)
#
# Three hospitals train the digits' network together. Each has classes of its own, as in the target of exercise 1 (but with batches of 16 everywhere). A step computes for 15 ms, and an average takes 0.6 s over their line. (That is modelled: count the steps and the averages of a run, and add up.)
#
# **With which H and which learning rate of plain SGD does the average network reach a loss of 0.3 on the test set soonest?** Try at least the rates 0.1, 0.3 and 0.9 with four values of H from 1 to 16 or more, for as many steps as are needed, 400 at most.
#
# Draw the loss against modelled seconds, or the seconds until 0.3 against H, for each rate. Here you may use everything, the library's `LocalSGD` as well. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes and a legend that contains all runs; the best pair, its seconds, its steps and its number of averages; and how many times as fast it is as the best dense run |
# | ½ | what a longer period costs in steps, and how this depends on the rate: compare with γ(H − 1) |
# | ½ | what would be different if the images were dealt out evenly, and on a link on which an average takes 1 ms; with a number or a run for each |

# %% nbgrader={"grade_id": "how_seldom_plot", "solution": true}
### BEGIN SOLUTION
ORDERS = {"uneven": task.y.argsort(stable=True), "even": torch.arange(len(task.y))}


def looks(comm, H, rate, kind, steps=400):
    """The loss of the average network after every H steps (every 4 at least)."""
    net = mlp([64, 32, 10], dtype=torch.float64)
    mean = mlp([64, 32, 10], dtype=torch.float64)
    random = torch.Generator().manual_seed(comm.rank)
    mine = ORDERS[kind].tensor_split(comm.size)[comm.rank]
    params = list(net.parameters())
    seen = []
    for t in range(1, steps + 1):
        rows = mine[torch.randint(len(mine), (16,), generator=random)]
        grads = torch.autograd.grad(cross_entropy(net(task.x[rows]), task.y[rows]), params)
        for p, g in zip(params, grads):
            p.data -= rate * g
        if t % H == 0:
            all_reduce_(comm, [p.data for p in params], "mean")
        if t % max(H, 4) == 0:
            vector_to_parameters(parameters_to_vector(params).detach(), mean.parameters())
            with torch.no_grad():
                seen.append((t, cross_entropy(mean(task.test_x), task.test_y).item()))
            if seen[-1][1] <= 0.3:
                break
    return seen


HS = (1, 4, 16, 32)
steps_until = {}
for kind, rates in (("uneven", (0.1, 0.3, 0.9)), ("even", (0.9,))):
    for rate in rates:
        for H in HS:
            seen = World(3).run(looks, H, rate, kind)[0]
            steps_until[kind, rate, H] = seen[-1][0] if seen[-1][1] <= 0.3 else None

drawn = {}
for kind, rate in dict.fromkeys((kind, rate) for kind, rate, _ in steps_until):
    found = {H: steps_until[kind, rate, H] for H in HS if steps_until[kind, rate, H]}
    for link, D in (("0.6 s", 0.6), ("1 ms", 0.001)):
        times = [round(t * 0.015 + t / H * D, 2) for H, t in found.items()]
        print(
            kind,
            "rate",
            rate,
            link,
            "H: steps, seconds",
            dict(zip(found, zip(found.values(), times))),
        )
        if link == "0.6 s":
            drawn[f"{kind}, rate {rate}"] = list(found), times
study.curves(
    drawn,
    logx=True,
    logy=True,
    yunit="s",
    xlabel="H",
    ylabel="modelled time until a loss of 0.3",
    title="Three ranks, 0.6 s for an average",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "how_seldom", "solution": true, "points": 2}
# The best pair is a rate of 0.3 with H = 16: 272 steps, 17 averages, 14.3 s. The best dense run has a rate of 0.9 and needs 60 steps and 60 averages, 36.9 s. So the local run is 2.6 times as fast, although it takes 4.5 times as many steps. A rate of 0.9 with H = 16 is close, with 15.1 s.
#
# A longer period costs steps, and the higher the rate, the more it costs. With a rate of 0.3, the steps grow from 100 to 148 and 272 for H = 1, 4 and 16, with 0.9 from 60 to 136 and 288. At H = 4 that is a factor of 1.5 for γ(H − 1) = 0.9, and of 2.3 for 2.7; with a rate of 0.1, where γ(H − 1) is 0.3, it is 1.2. So the highest rate is the best one only where H is 1. With H = 32 no run arrives within 400 steps, and with a rate of 0.1 none with H = 16: the runs with a low rate are too slow to begin with.
#
# Evenly dealt images hardly drift. With a rate of 0.9 the steps grow only from 52 to 128 for H = 32, which then needs four averages and 4.3 s, instead of 32.0 s for dense: 7.4 times as fast.
#
# If an average takes 1 ms, an exchange is a fifteenth of the computing, and no more than that can be saved. Every additional step costs 15 ms. The dense run with a rate of 0.9 needs 0.96 s and H = 4 needs 2.07 s, so I would meet in every step.
