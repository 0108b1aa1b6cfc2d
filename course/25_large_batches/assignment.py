# %% [markdown] nbgrader={"grade_id": "top"}
# # 25 Large batches: exercises
#
# You build a schedule that counts tokens, LARS with momentum, LAMB over shards, and an estimate of the noise scale for ranks with uneven batches, and you mend a clipping that counts copies twice. At the end you decide how many GPUs to rent.
#
# Seven exercises, 18 points. After each of the first six, run the check: it compares your numbers with those of the papers' algorithms, step by step, and counts what you send. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The seventh is an open question, graded by hand. All of `minidist.collectives` is yours; `minidist.train` and `minidist.parallel` are refused.

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
# ## 1 · A schedule that counts tokens (2 points)
#
# The lesson's schedule counts steps. With a batch that grows, steps are of different sizes, and the schedule has to count tokens.
#
# | | |
# |---|---|
# | call | `learning_rate(seen, batch, total, warm, peak, floor)` |
# | `seen` | tokens seen before this step: 0, …; it may be `total` and more |
# | `batch` | tokens of this step, at least 1; other steps may have more or fewer |
# | `warm` | tokens of warm-up, from 0 to `total` − 1 |
# | `floor` | what is left at the end, a part of `peak`, from 0 to 1 |
# | returns | the rate of this step, a number |
#
# - A step that begins within the warm-up, `seen` < `warm`, has the share of the peak that is reached when its *last* token is seen, and never more than the peak.
# - Any other step goes by where it *begins*: at `seen` = `warm` it has the peak rate, from `seen` = `total` on it has floor · peak, and between them it follows half a cosine wave, (1 + cos πx)/2, stretched to go from 1 to `floor`.
#
# With batches of one token this is the lesson's schedule. The rate must be right up to rounding in float64, and may depend on nothing but the arguments. About 4 lines.
#
# <details><summary>Hint</summary>
#
# x = (seen − warm)/(total − warm), at most 1.
#
# </details>


# %% nbgrader={"grade_id": "learning_rate", "solution": true}
def learning_rate(seen, batch, total, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak, by tokens."""
    ### BEGIN SOLUTION
    if seen < warm:
        return peak * min(1.0, (seen + batch) / warm)
    x = min(1.0, (seen - warm) / (total - warm))
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
    ### END SOLUTION


# %% nbgrader={"grade_id": "learning_rate_test", "points": 2}
check.learning_rate(learning_rate)

# %% [markdown] nbgrader={"grade_id": "learning_rate_target"}
# **Target:** a batch that grows from 10 to 90 tokens. By tokens, the schedule is a short slope and half a wave. By steps, most of the run is over before the rate has fallen to half its peak.

# %%
seen, rates = [0], []
with check.limit(10):
    while seen[-1] < 10_000:
        batch = 10 + min(80, seen[-1] // 50)
        rates.append(learning_rate(seen[-1], batch, 10_000, 500, 1e-4, 0.1))
        seen.append(seen[-1] + batch)
last = len(rates) / 10_000
study.curves(
    {"by tokens": (seen[:-1], rates), "by steps": ([i / last for i in range(len(rates))], rates)},
    xlabel="tokens; or steps, as a share of all",
    ylabel="learning rate",
    title="One schedule, counted in two ways",
)

# %% [markdown] nbgrader={"grade_id": "lars_step_spec"}
# ## 2 · LARS with momentum (3 points)
#
# The lesson's `lars_update` is a step without memory. In the paper's algorithm the rate is *within* the momentum, unlike in PyTorch's SGD, and a layer may have a norm of 0.
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
# Anything with fewer dimensions, such as a bias, is stepped plainly: ratio 1, decay 0. A nan in a gradient makes its weight nan: whoever looks at the weights must see it.
#
# **Invariant:** the rate is within v, so when the rate changes, what v already holds does not. About 8 lines.
#
# <details><summary>Hint</summary>
#
# `w.sub_(…)`, `v.mul_(momentum).add_(…)`. Writing `w = w − v` makes a new tensor, which the caller never sees.
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


# %% nbgrader={"grade_id": "lars_step_test", "points": 3}
check.lars_step(lars_step)

# %% [markdown] nbgrader={"grade_id": "lars_step_target"}
# **Target:** batches of 1,024, 30 steps in all, weights 3 times too large: SGD at 32 times the rate of a batch of 32
# explodes. Yours ends below 0.3, with your schedule from exercise 1.


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
            learning_rate(t, 1, steps, 6, lr, 0.0),
        )
        losses.append(min(20.0, loss.item()))
    return range(1, steps + 1), losses


def sgd_step(weights, grads, velocities, lr):
    for w, g, v in zip(weights, grads, velocities):
        v.mul_(0.9).add_(lr * g)
        w.sub_(v)


with check.limit(20):
    yours = learns(partial(lars_step, trust=0.02, decay=1e-4, momentum=0.9), 0.4)
    plain = learns(sgd_step, 1.6)
study.curves(
    {"SGD, 32 times the rate": plain, "your LARS": yours},
    logy=True,
    xlabel="step",
    ylabel="loss (20 is 20 or more)",
    title="Batches of 1,024",
)

# %% [markdown] nbgrader={"grade_id": "lamb_step_spec"}
# ## 3 · LAMB, where each rank has a piece (4 points)
#
# The lesson's `lamb_update` needs a whole layer. With ZeRO 3 a rank has a flat piece of each.
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
# none is clamped. A plain one has no ratio and no decay. A nan in a gradient makes its weight nan. About 15 lines.
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


# %% nbgrader={"grade_id": "lamb_step_test", "points": 4}
check.lamb_step(lamb_step)

# %% [markdown] nbgrader={"grade_id": "lamb_step_target"}
# **Target:** two equal bars: on 4 ranks, a step is as long, relative to the weights, as on one, and its relative length is the rate, 0.05.


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


with check.limit(20):
    lengths = {f"{n} rank{'s' * (n > 1)}": World(n).run(moved)[0] for n in (1, 4)}
study.bars(
    lengths,
    target=0.05,
    note="the rate",
    title="‖Δw‖/‖w‖",
)

# %% [markdown] nbgrader={"grade_id": "noise_scale_spec"}
# ## 4 · The noise scale of uneven ranks (3 points)
#
# The lesson's `two_sizes` needs ranks with equally many samples. Here each rank has a number of its own.
#
# | | |
# |---|---|
# | call | `noise_scale(comm, grad, b)`; n ≥ 2 ranks |
# | `grad` | this rank's gradient, flat, float64: the mean over its `b` samples |
# | `b` | at least 1, and in general different on each rank; B is the sum over the ranks |
# | afterwards | `grad` is the mean over all B samples, **in place** |
# | returns | two numbers, the same on all ranks: estimates of \|G\|² and of tr(Σ) |
# | cost | one average of the gradient, and at most four numbers more of each rank |
#
# Two squares give two equations. The first is the mean of the ranks' \|g\|², in which each rank counts in proportion to its samples. The second is the square of the mean gradient over all B samples. Work out with pencil and paper what each is **on average** (the square of a mean over b samples is \|G\|² + tr(Σ)/b), and solve. Noise may make \|G\|² negative in one step: leave it negative, and leave a nan a nan. About 7 lines.
#
# <details><summary>Hint</summary>
#
# In the first mean, the rank with b samples adds (b/B)·(\|G\|² + tr(Σ)/b). The b cancels in the second term, whatever it is. How often is that term added?
#
# </details>


# %% nbgrader={"grade_id": "noise_scale", "solution": true}
def noise_scale(comm, grad, b):
    """Averages `grad`; returns |G|² and tr(Σ)."""
    ### BEGIN SOLUTION
    square = float((grad * grad).sum())
    both = all_reduce_(comm, torch.tensor([b, b * square], dtype=torch.float64))
    total, small = both[0].item(), (both[1] / both[0]).item()
    grad.mul_(b / total)
    all_reduce_(comm, grad)
    big = (grad * grad).sum().item()
    trace = (small - big) * total / (comm.size - 1)
    return big - trace / total, trace
    ### END SOLUTION


# %% nbgrader={"grade_id": "noise_scale_test", "points": 3}
check.noise_scale(noise_scale)

# %% [markdown] nbgrader={"grade_id": "noise_scale_target"}
# **Target:** gradients are drawn with |G|² = 400 and tr(Σ) = 6,400: 16 samples, however they are spread over the ranks. (One step says little: each bar is the ratio of two means over 100 steps.)


# %%
def known(comm, parts, steps=100):
    b = parts[comm.rank]
    rng = torch.Generator().manual_seed(comm.rank)
    found = []
    for _ in range(steps):
        noise = torch.randn(400, dtype=torch.float64, generator=rng)
        found.append(noise_scale(comm, 1 + 4 / b**0.5 * noise, b))
    square, trace = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
    return trace / square


with check.limit(20):
    scales = {
        str(parts): World(len(parts)).run(known, parts)[0]
        for parts in ([8, 8], [12, 4], [8, 8, 8], [16, 6, 2])
    }
study.bars(scales, target=16, title="Noise scale, samples")

# %% [markdown] nbgrader={"grade_id": "predict_large_batches_spec"}
# ## 5 · Predict (2 points)
#
# - `linear`, `root`: SGD has a rate of 0.1 at a batch of 256; its rate at 4,096, by each of the two rules
# - `steps`, `samples`: what it takes to some loss at a batch of 250, with B_noise = 1,000 and 5,000 steps at the fewest
# - `ramp`: steps of a batch that grows from 32,000 to 3,200,000 tokens, linearly over 4 · 10⁹ of them
# - `warm`: steps of warm-up, 0.5 % of a training run of 1.6 · 10¹² tokens in batches of 3,200,000
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
# On a grid of ranks some gradients are pieces, which one rank holds alone. Others are copies: tensor-parallel ranks all hold the scales of norms, and the first and the last stage of a pipeline both hold a tied embedding. The next cell, which was found in somebody's code, clips by one norm over all of them. Its result depends on how many ranks there are.


# %% nbgrader={"grade_id": "clip_copies_broken"}
def clip_copies(comm, grads, held, limit):
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
    """A matrix of 120 ones, cut over the ranks, and 49 ones that the last two ranks hold: a norm of 13."""
    one = partial(torch.ones, dtype=torch.float64)
    grads, held = [one(120 // comm.size)], [1]
    if comm.rank >= comm.size - 2:
        grads.append(one(49))
        held.append(min(comm.size, 2))
    return clip(comm, grads, held, 1.0)


with check.limit(20):
    norms = {
        f"{n} rank{'s' * (n > 1)}": World(n).run(norm_of, clip_copies)[0] for n in (1, 2, 3, 4, 6)
    }
study.bars(norms, target=13, title="The norm that it finds")

# %% [markdown] nbgrader={"grade_id": "clip_copies_task"}
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `clip_copies(comm, grads, held, limit)` |
# | `grads` | this rank's gradients, float64, maybe none; other ranks may have different ones |
# | `held` | for each, how many ranks hold this gradient, the same on all of them; 1: this rank alone |
# | afterwards | all gradients, in place, times min(1, limit / (norm + 1e-6)), copies too |
# | returns | the norm before: each gradient of the model counted **once**; the same on all ranks, bit for bit; inf or nan where a gradient is |
# | cost | one number of each rank travels |
#
# The lesson's way, in which the first rank counts the copies, is no longer enough: rank 0 need not hold them, and no rank knows which others do.
#
# <details><summary>Hint</summary>
#
# If three ranks hold a copy, how much of its square should each of them add?
#
# </details>


# %% nbgrader={"grade_id": "clip_copies", "solution": true}
def clip_copies(comm, grads, held, limit):
    """Scale all ranks' gradients to a norm of at most `limit`, in place; returns the norm before."""
    ### BEGIN SOLUTION
    square = torch.zeros((), dtype=torch.float64)
    for g, ranks in zip(grads, held):
        square += (g * g).sum() / ranks
    norm = float(all_reduce_(comm, square).sqrt())
    for g in grads:
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
    ### END SOLUTION


# %% nbgrader={"grade_id": "clip_copies_test", "points": 2}
check.clip_copies(clip_copies)

# %% [markdown] nbgrader={"grade_id": "clip_copies_target"}
# **Target:** one norm of 13, on any number of ranks.

# %%
with check.limit(20):
    norms = {
        f"{n} rank{'s' * (n > 1)}": World(n).run(norm_of, clip_copies)[0] for n in (1, 2, 3, 4, 6)
    }
study.bars(norms, target=13, title="The norm that it finds")

# %% [markdown] nbgrader={"grade_id": "rented_gpus_spec"}
# ## 7 · How many GPUs do you rent? (2 points, graded by hand)
#
# A training run has been watched on a few GPUs. The law of the lesson fits it, with 5,000 steps at the fewest and a noise scale of 1,000 samples. Each GPU takes 16 samples, which means 0.5 s of computing in every step, and the all-reduce between n GPUs takes 0.2·(n − 1)/n s and is not hidden. A GPU costs 2 dollars an hour.
#
# **How many GPUs do you rent if the run has to be over within two hours? And how many if there is no deadline, but every hour in which the team waits costs another 100 dollars?**
#
# First draw the hours of the run, and what it costs in both senses, against n. Here you may use everything. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes and a legend; a number of GPUs for each of the two questions, with hours and dollars |
# | ½ | where the batches of these answers lie relative to the critical batch, and what the next doubling of the GPUs would save and cost |
# | ½ | what changes if the noise scale is wrong by a factor of 2.5 in either direction, and why it might be; which assumption of the law you trust least |


# %% nbgrader={"grade_id": "rented_gpus_plot", "solution": true}
### BEGIN SOLUTION
def hours(n, noise=1000):
    return 5000 * (1 + noise / (16 * n)) * (0.5 + 0.2 * (n - 1) / n) / 3600


counts = range(1, 301)
soon = next(n for n in counts if hours(n) <= 2)
cheapest = min(counts, key=lambda n: hours(n) * (2 * n + 100))
for n in (soon, cheapest, 2 * cheapest):
    print(f"{n} GPUs: {hours(n):.2f} h, {2 * n * hours(n):.0f} dollars for GPUs,", end=" ")
    print(f"{hours(n) * (2 * n + 100):.0f} with the team")
for noise in (400, 2500):
    late = next((n for n in counts if hours(n, noise) <= 2), None)
    best = min(counts, key=lambda n: hours(n, noise) * (2 * n + 100))
    print(f"B_noise = {noise}: {late} for the deadline, {best} for the least cost")
study.curves(
    {
        "hours": (counts, [hours(n) for n in counts]),
        "dollars for GPUs": (counts, [2 * n * hours(n) for n in counts]),
        "dollars with the team": (counts, [hours(n) * (2 * n + 100) for n in counts]),
    },
    logx=True,
    logy=True,
    xlabel="GPUs",
    ylabel="hours, dollars",
    title="Time and money (modelled)",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "rented_gpus", "solution": true, "points": 2}
# For the deadline I rent 59 GPUs: 1.99 hours, 235 dollars. Without a deadline GPUs and team together cost least with 55: 2.07 hours and 434 dollars, of which 207 are the team's.
#
# 59 GPUs have a batch of 944 and 55 a batch of 880, both just below the critical batch of 1,000, so steps and samples are about twice the least. For the second that is no accident. Hours grow with 1 + 62.5/n and dollars an hour with 2n + 100, and the product is least where 2n² = 100 · 62.5, n = 56; the all-reduce shifts it a little. With 50 dollars an hour it would be 39 GPUs. Doubling 59 to 118 saves half an hour and costs 115 dollars more for GPUs, 64 more with the team: beyond the critical batch, time becomes expensive. A single GPU is the cheapest if nobody waits, 88 dollars, and takes 44 hours.
#
# If the noise scale is 400, 24 GPUs meet the deadline, and 35 cost least. If it is 2,500, the numbers are 148 and 88. The cost is flat around its minimum: with 55 GPUs the minimum is exceeded by about 5 % in both cases. The deadline is unforgiving: with 59 GPUs and 2,500 samples the run takes 3.5 hours. The noise scale was measured early, and it grows during training, so I expect to be wrong upwards. I trust least that it stays the same on the way, and that the rate for so large a batch is found at the first attempt.
