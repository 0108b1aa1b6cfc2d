# %% [markdown] nbgrader={"grade_id": "top"}
# # 25 Large batches: exercises
#
# You build a schedule, LARS, LAMB over shards, and what says how large a batch is worth it.
#
# Six exercises, 18 points. After each, run the check: it compares your numbers with those of the papers' algorithms,
# step by step, and counts what you send. It says what is wrong. Try as often as you like. What your function prints is
# not shown there; to see it, call it in a cell of your own. All of `minidist.collectives` is yours; `minidist.train`
# and `minidist.parallel` are refused.

# %% nbgrader={"grade_id": "setup"}
import math
from functools import partial

import torch
from torch.nn.functional import cross_entropy

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.models import mlp
from minidist.tasks import digits

torch.set_num_threads(1)
task = digits()

# %% [markdown] nbgrader={"grade_id": "learning_rate_spec"}
# ## 1 · A schedule (2 points)
#
# | | |
# |---|---|
# | call | `learning_rate(t, steps, warm, peak, floor)` |
# | `t` | the step, 0, 1, 2, …; it may be `steps` and more |
# | `warm` | steps of warm-up, from 0 to `steps` − 1; step t of them has (t + 1)/warm of the peak |
# | `floor` | what is left at the end, a part of `peak` |
# | returns | the rate, a number |
#
# **Invariant:** step `warm` has the peak, step `steps` and all after it floor · peak; between them half a cosine wave,
# (1 + cos πx)/2, stretched to go from 1 to `floor`. About 4 lines.
#
# <details><summary>Hint</summary>
#
# x = (t − warm)/(steps − warm), at most 1.
#
# </details>


# %% nbgrader={"grade_id": "learning_rate", "solution": true}
def learning_rate(t, steps, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak."""
    ### BEGIN SOLUTION
    if t < warm:
        return peak * (t + 1) / warm
    x = min(1.0, (t - warm) / (steps - warm))
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
    ### END SOLUTION


# %% nbgrader={"grade_id": "learning_rate_test", "points": 2}
check.learning_rate(learning_rate)

# %% [markdown] nbgrader={"grade_id": "learning_rate_target"}
# **Target:** a short slope, half a wave, a floor at a tenth.

# %%
study.curves(
    {"yours": (range(1200), [learning_rate(t, 1000, 50, 1e-4, 0.1) for t in range(1200)])},
    xlabel="step",
    ylabel="learning rate",
    title="5 % warm-up, 1,000 steps",
)

# %% [markdown] nbgrader={"grade_id": "lars_step_spec"}
# ## 2 · LARS (4 points)
#
# | | |
# |---|---|
# | call | `lars_step(weights, grads, velocities, lr, trust, decay, momentum)` |
# | `weights`, `grads`, `velocities` | lists of tensors; velocities are 0 at first |
# | afterwards | weights and velocities stepped, **in place**; `grads` as they were |
#
# For each matrix (2 dimensions or more), with norms ‖·‖ of the whole tensor:
#
# - ratio = trust · ‖w‖ / (‖g‖ + decay · ‖w‖), and 1 where ‖w‖ or the denominator is 0. A ‖g‖ of 0 alone is no exception
# - v ← momentum · v + lr · ratio · (g + decay · w), and w ← w − v
#
# Anything with fewer dimensions, such as a bias, is stepped plainly: ratio 1, decay 0.
#
# **Invariant:** the rate is within v, so a rate that changes does not change what v holds already. About 8 lines.
#
# <details><summary>Hint</summary>
#
# `w.sub_(…)`, `v.mul_(momentum).add_(…)`. Writing `w = w − v` makes a new tensor, which nobody sees.
#
# </details>


# %% nbgrader={"grade_id": "lars_step", "solution": true}
def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    """A step of LARS, in place."""
    ### BEGIN SOLUTION
    for w, g, v in zip(weights, grads, velocities):
        ratio, b = 1.0, 0.0
        if w.dim() > 1:
            b = decay
            if w.norm() > 0 and g.norm() + b * w.norm() > 0:
                ratio = trust * w.norm() / (g.norm() + b * w.norm())
        v.mul_(momentum).add_(lr * ratio * (g + b * w))
        w.sub_(v)
    ### END SOLUTION


# %% nbgrader={"grade_id": "lars_step_test", "points": 4}
check.lars_step(lars_step)

# %% [markdown] nbgrader={"grade_id": "lars_step_target"}
# **Target:** batches of 1,024, 30 steps in all, weights 3 times too large: SGD at 32 times the rate of a batch of 32
# bursts. Yours ends below 0.3, with your schedule.


# %%
def learns(step, lr, steps=30):
    model, rng = mlp([64, 128, 128, 10], dtype=torch.float64), torch.Generator().manual_seed(0)
    weights, losses = [p.data.mul_(3) for p in model.parameters()], []
    velocities = [torch.zeros_like(w) for w in weights]
    for t in range(steps):
        part = torch.randperm(len(task.x), generator=rng)[:1024]
        model.zero_grad()
        loss = cross_entropy(model(task.x[part]), task.y[part])
        loss.backward()
        step(
            weights,
            [p.grad for p in model.parameters()],
            velocities,
            learning_rate(t, steps, 6, lr, 0.0),
        )
        losses.append(min(20.0, loss.item()))
    return range(1, steps + 1), losses


def sgd_step(weights, grads, velocities, lr):
    for w, g, v in zip(weights, grads, velocities):
        v.mul_(0.9).add_(lr * g)
        w.sub_(v)


yours = partial(lars_step, trust=0.02, decay=1e-4, momentum=0.9)
study.curves(
    {"SGD, 32 times the rate": learns(sgd_step, 1.6), "your LARS": learns(yours, 0.4)},
    logy=True,
    xlabel="step",
    ylabel="loss (20 is 20 or more)",
    title="Batches of 1,024",
)

# %% [markdown] nbgrader={"grade_id": "lamb_step_spec"}
# ## 3 · LAMB, where each rank has a piece (5 points)
#
# | | |
# |---|---|
# | call | `lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay)` |
# | `weights`, … | this rank's pieces of all parameters, flat, float64; a piece may be empty; moments are 0 at first |
# | `grads` | pieces of the *averaged* gradient; **not changed** |
# | `plain` | for each parameter, whether it is stepped as by AdamW without decay |
# | `t` | 1 in the first step |
# | afterwards | weights, means and squares stepped, **in place** |
# | cost | 16 bytes a parameter, in **one** all-reduce a step |
#
# - m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ)
# - u = m̂/(√v̂ + eps) + decay · w, and w ← w − lr · ‖w‖/‖u‖ · u
#
# **Invariant:** the norms are those of the *whole* parameter, of all ranks' pieces; a ratio with a norm of 0 is 1, and
# none is clamped. A plain one has no ratio and no decay. About 15 lines.
#
# <details><summary>Hint</summary>
#
# Moments and updates first; then a tensor of squares, two for each parameter, and one `all_reduce_(comm, sums)`, which
# adds up in place; then the steps. Squares add up, norms do not.
#
# </details>


# %% nbgrader={"grade_id": "lamb_step", "solution": true}
def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    """A step of LAMB, in place, on this rank's pieces."""
    ### BEGIN SOLUTION
    updates = []
    for w, g, m, v, free in zip(weights, grads, means, squares, plain):
        m.mul_(betas[0]).add_((1 - betas[0]) * g)
        v.mul_(betas[1]).add_((1 - betas[1]) * g * g)
        u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        updates.append(u if free else u + decay * w)
    sums = torch.stack(
        [torch.stack([(w * w).sum(), (u * u).sum()]) for w, u in zip(weights, updates)]
    )
    all_reduce_(comm, sums)
    for w, u, free, (wide, long) in zip(weights, updates, plain, sums.sqrt().tolist()):
        ratio = 1.0 if free or wide == 0 or long == 0 else wide / long
        w.sub_(lr * ratio * u)
    ### END SOLUTION


# %% nbgrader={"grade_id": "lamb_step_test", "points": 5}
check.lamb_step(lamb_step)

# %% [markdown] nbgrader={"grade_id": "lamb_step_target"}
# **Target:** two equal bars: on 4 ranks, a step is as long, over the weights, as on one: the rate, 0.05.


# %%
def moved(comm):
    whole = torch.randn(
        64, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ) * torch.arange(64)
    mine = whole.chunk(comm.size)[comm.rank].clone()
    lamb_step(
        comm,
        [mine],
        [mine.sin()],
        [torch.zeros_like(mine)],
        [torch.zeros_like(mine)],
        [False],
        1,
        0.05,
        (0.9, 0.999),
        1e-6,
        0.01,
    )
    change = (mine - whole.chunk(comm.size)[comm.rank]).square().sum()
    return float((all_reduce_(comm, change) / whole.square().sum()).sqrt())


study.bars(
    {f"{n} rank{'s' * (n > 1)}": World(n).run(moved)[0] for n in (1, 4)},
    target=0.05,
    note="the rate",
    title="‖Δw‖/‖w‖",
)

# %% [markdown] nbgrader={"grade_id": "noise_scale_spec"}
# ## 4 · How large a batch? (3 points)
#
# | | |
# |---|---|
# | call | `noise_scale(comm, grad, b)`; n ≥ 2 ranks |
# | `grad` | this rank's gradient, flat float64, the mean over its `b` samples |
# | afterwards | `grad` is the mean over the ranks, **in place** |
# | returns | two numbers, the same on all ranks: estimates of \|G\|² and of tr(Σ) |
# | cost | the average of the gradient, and a number or two |
#
# **Invariant:** without bias. With E|g|² = |G|² + tr(Σ)/b before the average, the mean of the ranks' squares says one
# thing; |mean|², with n·b samples, another. Two equations. (Noise may make |G|² negative in one step: leave it.) About
# 6 lines.
#
# <details><summary>Hint</summary>
#
# The small one is `(grad * grad).sum()`, taken before the average, and averaged over the ranks. The small less the
# large one is tr(Σ) · (1/b − 1/(n·b)).
#
# </details>


# %% nbgrader={"grade_id": "noise_scale", "solution": true}
def noise_scale(comm, grad, b):
    """Averages `grad`; returns |G|² and tr(Σ)."""
    ### BEGIN SOLUTION
    small = all_reduce_(comm, (grad * grad).sum(), "mean").item()
    all_reduce_(comm, grad, "mean")
    big = (grad * grad).sum().item()
    trace = (small - big) / (1 / b - 1 / (comm.size * b))
    return small - trace / b, trace
    ### END SOLUTION


# %% nbgrader={"grade_id": "noise_scale_test", "points": 3}
check.noise_scale(noise_scale)

# %% [markdown] nbgrader={"grade_id": "noise_scale_target"}
# **Target:** gradients are drawn with |G|² = 400 and tr(Σ) = 6,400: 16 samples, from any number of ranks. (One step
# says little: each bar is the ratio of two means over 100 steps.)


# %%
def known(comm, b=8, steps=100):
    rng = torch.Generator().manual_seed(comm.rank)
    drawn = lambda: 1 + 4 / b**0.5 * torch.randn(400, dtype=torch.float64, generator=rng)
    found = [noise_scale(comm, drawn(), b) for _ in range(steps)]
    square, trace = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
    return trace / square


study.bars(
    {f"{n} ranks of 8": World(n).run(known)[0] for n in (2, 3, 4)},
    target=16,
    title="Noise scale, samples",
)

# %% [markdown] nbgrader={"grade_id": "predict_large_batches_spec"}
# ## 5 · Predict (2 points)
#
# - `linear`, `root`: SGD has a rate of 0.1 at a batch of 256. Its rate at 4,096, by the two rules
# - `steps`, `samples`: to some loss, with B_noise = 1,000 and 5,000 steps at the fewest, at a batch of 250
# - `ramp`: steps of a batch that grows from 32,000 to 3,200,000 tokens, linearly over 4 · 10⁹ of them
# - `warm`: steps of warm-up, 0.5 % of a training of 1.6 · 10¹² tokens in batches of 3,200,000
# - `quarter`: the rate, over the peak, when a quarter of a cosine to 10 % is over
# - `nbytes`: bytes of the tensor that LAMB all-reduces, for 50 sharded weight matrices, in float64
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_large_batches", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_large_batches.numbers(STUDENT)
linear = root = steps = samples = ramp = warm = quarter = nbytes = None
### BEGIN SOLUTION
linear = 0.1 * 16
root = 0.1 * 16**0.5
steps = 5000 * (1 + 1000 / 250)
samples = steps * 250
ramp = 4e9 / (3.2e6 - 32e3) * math.log(100)
warm = 0.005 * 1.6e12 / 3.2e6
quarter = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
nbytes = 50 * 2 * 8
### END SOLUTION

# %% nbgrader={"grade_id": "predict_large_batches_test", "points": 2}
check.predict_large_batches(linear, root, steps, samples, ramp, warm, quarter, nbytes, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_large_batches_target"}
# **Target:** your point on the line.

# %%
wide = [2.0**k for k in range(5, 15)]
law = {"5,000 · (1 + 1,000/B)": (wide, [5000 * (1 + 1000 / B) for B in wide])}
study.curves(
    law,
    points={"yours": ([250], [steps])},
    logx=True,
    logy=True,
    xlabel="batch",
    ylabel="steps",
    title="Steps to a loss",
)

# %% [markdown] nbgrader={"grade_id": "clip_copies_spec"}
# ## 6 · Find the bug (2 points)
#
# Tensor-parallel ranks hold pieces of matrices, but the *same* norms and biases of rows. The next cell clips by one
# norm over all of them. It was found in somebody's code. Its step depends on how many ranks there are.


# %% nbgrader={"grade_id": "clip_copies_broken"}
def clip_copies(comm, grads, copied, limit):
    """Scale all ranks' gradients to a norm of at most `limit`, in place; returns the norm before."""
    square = torch.zeros((), dtype=torch.float64)
    for g in grads:
        square += (g * g).sum()
    norm = float(all_reduce_(comm, square).sqrt())
    for g in grads:
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm


# %%
def norm_of(comm, clip):
    """A matrix of 120 ones, cut over the ranks, and 49 ones that all hold: a norm of 13."""
    one = partial(torch.ones, dtype=torch.float64)
    return clip(comm, [one(120 // comm.size), one(49)], [False, True], 1.0)


study.bars(
    {f"{n} rank{'s' * (n > 1)}": World(n).run(norm_of, clip_copies)[0] for n in (1, 2, 3, 4, 6)},
    target=13,
    title="The norm that it finds",
)

# %% [markdown] nbgrader={"grade_id": "clip_copies_task"}
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `clip_copies(comm, grads, copied, limit)` |
# | `grads` | this rank's gradients, float64, maybe none |
# | `copied` | for each, whether all ranks hold the same (True), or each its own piece (False) |
# | afterwards | all gradients, in place, times min(1, limit / (norm + 1e-6)), copies too |
# | returns | the norm before: each gradient of the model counted **once**; the same on all ranks |
# | cost | one number of each rank travels |
#
# <details><summary>Hint</summary>
#
# Who should count a copy?
#
# </details>


# %% nbgrader={"grade_id": "clip_copies", "solution": true}
def clip_copies(comm, grads, copied, limit):
    """Scale all ranks' gradients to a norm of at most `limit`, in place; returns the norm before."""
    ### BEGIN SOLUTION
    square = torch.zeros((), dtype=torch.float64)
    for g, same in zip(grads, copied):
        if comm.rank == 0 or not same:
            square += (g * g).sum()
    norm = float(all_reduce_(comm, square).sqrt())
    for g in grads:
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
    ### END SOLUTION


# %% nbgrader={"grade_id": "clip_copies_test", "points": 2}
check.clip_copies(clip_copies)

# %% [markdown] nbgrader={"grade_id": "clip_copies_target"}
# **Target:** 13, with any number of ranks.

# %%
study.bars(
    {f"{n} rank{'s' * (n > 1)}": World(n).run(norm_of, clip_copies)[0] for n in (1, 2, 3, 4, 6)},
    target=13,
    title="Repaired",
)
