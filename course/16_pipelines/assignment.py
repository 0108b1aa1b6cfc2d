# %% [markdown] nbgrader={"grade_id": "top"}
# # 16 Pipelines: exercises
#
# You write schedules, time them, build the stage that runs any of them, and share parameters between stages.
#
# Six exercises, 15 points. After each of the first five, run the check: it validates your lists, times them, and runs your code on 1 to 4 ranks and in real processes. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The last exercise is graded by hand.
#
# A schedule is a list of words for each stage: `F3` is the forward of micro-batch 3, `B3` its whole backward. There are S stages and M micro-batches, both numbered from 0. What is refused is the library's own `minidist.parallel`, and PyTorch's pipelines; `minidist.collectives` may be used.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch import nn
from torch.nn.functional import mse_loss

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.parallel.schedules import in_flight, parse
from minidist.parallel.simulate import grid, simulate


def lists(schedule, S, M):
    """The lists of all stages, as `grid` and `simulate` read them."""
    return [parse(" ".join(schedule(stage, S, M))) for stage in range(S)]


def gpipe(stage, S, M):
    return [f"F{m}" for m in range(M)] + [f"B{m}" for m in range(M)]


# %% [markdown] nbgrader={"grade_id": "step_time_spec"}
# ## 1 · How long does a schedule take? (3 points)
#
# In the lesson all stages were equally fast. Yours need not be. Every stage does its list in order, one action at a time, each as soon as it can. Messages take no time.
#
# | | |
# |---|---|
# | call | `step_time(lists, forward, backward)` |
# | `lists` | for each stage a list of words, such as `["F0", "F1", "B0", "B1"]` |
# | `forward`, `backward` | for each stage the seconds of one F, and of one B |
# | returns | seconds from the first action to the end of the last |
# | raises | `ValueError` if the lists hang: a stage waits for what never comes |
#
# **Invariant:** an action starts when the one before it in its list is done, and what it needs is there. `F3` needs
# `F3` of the stage before. `B3` needs `F3` of its own stage, and `B3` of the stage after. The lists may be of any order, may leave backwards out, and may name micro-batches in any order; what they need and nobody does makes them hang. About 17 lines.
#
# <details><summary>Hint</summary>
#
# Keep when each (kind, micro-batch, stage) ended, in a dictionary. Go over the stages again and again; each goes on
# with its list as far as what it needs is in the dictionary. Stop when a whole round has moved nothing.
#
# </details>


# %% nbgrader={"grade_id": "step_time", "solution": true}
def step_time(lists, forward, backward):
    """Seconds that the lists of all stages take; ValueError if they hang."""
    ### BEGIN SOLUTION
    S = len(lists)
    ended = {}
    free = [0.0] * len(lists)
    position = [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for s, words in enumerate(lists):
            while position[s] < len(words):
                kind, m = words[position[s]][0], words[position[s]][1:]
                needs = [("F", m, s - 1)] if s else []
                if kind == "B":
                    needs = [("F", m, s)] + ([("B", m, s + 1)] if s < S - 1 else [])
                if any(need not in ended for need in needs):
                    break
                start = max([free[s], *(ended[need] for need in needs)])
                free[s] = ended[kind, m, s] = start + (forward if kind == "F" else backward)[s]
                position[s], moved = position[s] + 1, True
    if any(position[s] < len(words) for s, words in enumerate(lists)):
        raise ValueError(f"the stages hang at positions {position}")
    return max(free)
    ### END SOLUTION


# %% nbgrader={"grade_id": "step_time_test", "points": 3}
check.step_time(step_time)

# %% [markdown] nbgrader={"grade_id": "step_time_target"}
# **Target:** 75 %, 60 %, … : the formula's bubble, found by your clock. F takes 1, B takes 2.

# %%
S = 4
Ms = (1, 2, 4, 8, 16, 32)
found = []
with check.limit(10):
    for M in Ms:
        seconds = step_time([gpipe(s, S, M) for s in range(S)], [1] * S, [2] * S)
        found.append(100 * (1 - 3 * M / seconds))
study.curves(
    {"(S−1)/(M+S−1)": (range(1, 33), [100 * 3 / (M + 3) for M in range(1, 33)])},
    points={"your clock": (Ms, found)},
    yunit="%",
    xlabel="micro-batches, M",
    ylabel="bubble",
    title="GPipe on 4 stages",
)

# %% [markdown] nbgrader={"grade_id": "one_f_one_b_spec"}
# ## 2 · One forward, one backward (3 points)
#
# The lesson has the lists for 4 stages and 8 micro-batches. Write the function that makes them for any S and M: as fast as GPipe, with less memory.
#
# | | |
# |---|---|
# | call | `one_f_one_b(stage, S, M)` |
# | returns | the list of words of this stage, an F and a B for each of M micro-batches |
# | time | GPipe's: (M + S − 1) times a forward and a backward |
# | memory | at any time at most S − stage micro-batches have had their F, and not their B |
#
# **Invariant:** forwards in the order of the micro-batches, and backwards too. M may be smaller than S, or 1, and so
# may S. Any list with these properties is right. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Warm up with S − 1 − stage forwards (or M, if there are fewer). Then a forward and a backward in turn, until the
# forwards are used up. Then the backwards that are left.
#
# </details>


# %% nbgrader={"grade_id": "one_f_one_b", "solution": true}
def one_f_one_b(stage, S, M):
    """This stage's list of words."""
    ### BEGIN SOLUTION
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]
    ### END SOLUTION


# %% nbgrader={"grade_id": "one_f_one_b_test", "points": 3}
check.one_f_one_b(one_f_one_b)

# %% [markdown] nbgrader={"grade_id": "one_f_one_b_target"}
# **Target:** below, a grid as wide as that of GPipe, and the staircase 4, 3, 2, 1.

# %%
with check.limit(10):
    yours = lists(one_f_one_b, 4, 6)
theirs = lists(gpipe, 4, 6)
print(grid(theirs), grid(yours), sep="\n\n")
rows = [
    (name, f"{simulate(some).time:g}", *map(in_flight, some))
    for name, some in (("GPipe", theirs), ("yours", yours))
]
study.table(rows, ["", "time", *(f"stage {s} keeps" for s in range(4))])

# %% [markdown] nbgrader={"grade_id": "predict_pipeline_spec"}
# ## 3 · Predict, then run (2 points)
#
# 8 stages, 32 micro-batches; stage 2 has a neighbour on each side. A B takes twice as long as an F, and messages take no time.
#
# - `bubble`: which share of the time does a stage wait, in GPipe? (A number between 0 and 1.)
# - `gpipe_keeps`: how many micro-batches' activations does a stage of GPipe keep at the peak?
# - `keeps`: and stage 2 in 1F1B?
# - `messages`: how many tensors does stage 2 send in a step?
# - `enough`: how many micro-batches does GPipe need at least, for a bubble of 10 % or less?
# - `longer`: how many times as long does a step take if every stage recomputes, so that a B includes another F?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_pipeline", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_pipeline.numbers(STUDENT)
bubble = gpipe_keeps = keeps = messages = enough = longer = None
### BEGIN SOLUTION
S, M = 8, 32
bubble = (S - 1) / (M + S - 1)
gpipe_keeps = M
keeps = S - 2
messages = 2 * M
enough = 9 * (S - 1)
longer = 4 / 3
### END SOLUTION

# %% nbgrader={"grade_id": "predict_pipeline_test", "points": 2}
check.predict_pipeline(bubble, gpipe_keeps, keeps, messages, enough, longer, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_pipeline_target"}
# **Target:** your numbers beside those of the lists.

# %%
with check.limit(10):
    eight = lists(one_f_one_b, 8, 32)
    plain = simulate(lists(gpipe, 8, 32))
    again = simulate(lists(gpipe, 8, 32), backward=3)
    enough_found = 50
    while simulate(lists(gpipe, 8, enough_found)).bubble > 0.1 + 1e-9:
        enough_found += 1
rows = [
    ("bubble", bubble, f"{plain.bubble:.4f}"),
    ("gpipe_keeps", gpipe_keeps, in_flight(lists(gpipe, 8, 32)[0])),
    ("keeps", keeps, in_flight(eight[2])),
    ("messages", messages, len(eight[2])),
    ("enough", enough, enough_found),
    ("longer", longer, f"{again.time / plain.time:.4f}"),
]
study.table(rows, ["", "predicted", "counted"])

# %% [markdown] nbgrader={"grade_id": "run_stage_spec"}
# ## 4 · A stage that runs its list (3 points)
#
# The stage of the lesson has no targets, no mean over micro-batches, and micro-batches of one size. Yours has all three, and it is held to what the lesson promises of memory. The list says what to do; the messages follow from it. Activations go to the right over one Comm, gradients to the
# left over another: two **channels**. Here one would do, since what is posted matches in any order. On GPUs each is an
# NCCL stream of its own, so that a gradient never stands behind an activation that nobody takes yet.
#
# | | |
# |---|---|
# | call | `run_stage(down, up, part, words, xs, ys, loss_fn)` |
# | `down`, `up` | a Comm for activations, one for gradients; the same ranks, and rank r is stage r |
# | `part` | this stage's `nn.Module`; its output has the shape of its input |
# | `words` | this stage's list, of F's and B's: **any** valid schedule |
# | `xs` | M micro-batches, the last one smaller; on stages after 0 only shape and dtype count; **not changed** |
# | `ys` | M tensors of targets; they count on the last stage |
# | `loss_fn` | `loss_fn(output, y)`: the mean loss of a micro-batch |
# | afterwards | `p.grad` is the gradient of the mean of the M losses, each counted alike |
# | memory | what stage r was sent for a micro-batch, and what it made of it, is freed when its B is done |
# | returns | nothing |
# | cost | M messages down an edge, M up; each F runs `part` once; no waiting that the list does not ask for |
#
# **How memory is checked:** by weak references to the memory of each input and output. At the second forward after a micro-batch's B nothing may hold them any more (a name such as `x` may still stand for the last one).
#
# **Waiting:** a send returns only when its receive has been posted. A stage that waits there holds up the others, and
# 1F1B hangs. So start sends with `isend`, and wait for all of them at the end. About 22 lines.
#
# <details><summary>Hint</summary>
#
# Keep `(x, y)` of each micro-batch in a dictionary, and pop it in its B. An x that was received needs
# `requires_grad_()`, so that `x.grad` is there after `y.backward(dy)`. Send `y.detach()`. On the last stage `y` becomes
# the loss, divided by M, and backward needs no dy. The number of `F12` is `int(word[1:])`.
#
# </details>


# %% nbgrader={"grade_id": "run_stage", "solution": true}
def run_stage(down, up, part, words, xs, ys, loss_fn):
    """Run this stage's list; leave the gradients in `part`."""
    ### BEGIN SOLUTION
    stage = down.rank
    last = down.size - 1
    kept = {}
    sends = []
    for word in words:
        kind, m = word[0], int(word[1:])
        if kind == "F":
            x = xs[m]
            if stage > 0:
                x = down.recv(torch.empty_like(x), stage - 1).requires_grad_()
            y = part(x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[m]) / len(xs)
            kept[m] = x, y
        else:
            x, y = kept.pop(m)
            y.backward(up.recv(torch.empty_like(y), stage + 1) if stage < last else None)
            if stage > 0:
                sends.append(up.isend(x.grad, stage - 1))
    for work in sends:
        work.wait()
    ### END SOLUTION


# %% nbgrader={"grade_id": "run_stage_test", "points": 3}
check.run_stage(run_stage)

# %% [markdown] nbgrader={"grade_id": "run_stage_target"}
# **Target:** your list on your stages, and the same numbers in both columns: gradients of three stages and of one.


# %%
def program(comm, M, schedule):
    layers = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(3)]
    for i, layer in enumerate(layers):
        torch.manual_seed(i)
        layer.reset_parameters()
    part = nn.Sequential(*layers[3 * comm.rank // comm.size : 3 * (comm.rank + 1) // comm.size])
    torch.manual_seed(9)
    xs, ys = ([torch.randn(2, 4, dtype=torch.float64) for _ in range(M)] for _ in range(2))
    down, up = comm.split([0] * comm.size), comm.split([0] * comm.size)
    run_stage(down, up, part, schedule(comm.rank, comm.size, M), xs, ys, mse_loss)
    return [float(p.grad.norm()) for p in part.parameters()]


with check.limit(20):
    pipelined = World(3).run(program, 4, one_f_one_b)
    [one] = World(1).run(program, 4, one_f_one_b)
three = [norm for part in pipelined for norm in part]
names = [f"stage {s}, {what}" for s in range(3) for what in ("weight", "bias")]
study.table(
    [(name, f"{a:.6f}", f"{b:.6f}") for name, a, b in zip(names, three, one)],
    ["length of the gradient", "3 stages", "1 stage"],
)

# %% [markdown] nbgrader={"grade_id": "sum_tied_spec"}
# ## 5 · Tied parameters of any kind (2 points)
#
# In the lesson one table lay on the first stage and on the last. A model may share more: a norm on all stages, a table on three of them, a projection between two neighbours. Sum the gradients of each tied parameter over the ranks that hold it.
#
# | | |
# |---|---|
# | call | `sum_tied(comm, holders, tied)`, on every rank, after the last backward of a step |
# | `holders` | `{name: list of the ranks that hold it}`, ranks in ascending order; **not changed** |
# | `tied` | `{name: parameter}` of those that this rank holds; perhaps empty |
# | order | both dictionaries may have the names in another order on each rank |
# | afterwards | `p.grad` is the sum of the holders' gradients, the same bits on all of them, in the parameter's dtype; a gradient that is None counts as zeros; parameters themselves are **not changed** |
# | returns | nothing |
# | cost | for a parameter of N bytes with k holders, a holder sends the 2(k−1)/k · N bytes of a ring; who holds nothing, or holds it alone, sends nothing |
#
# `all_reduce_(group, x)` of `minidist.collectives` may be used. `comm.split(colors)` with the list of all ranks' colors sends nothing itself; all ranks must call it. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Groups are made by all ranks together: all of them must go through the names in one order, also through those that they do not hold. Which order do all ranks know? A rank whose color is None is in no group, and gets None.
#
# </details>


# %% nbgrader={"grade_id": "sum_tied", "solution": true}
def sum_tied(comm, holders, tied):
    """Sum the gradient of each tied parameter over the ranks that hold it."""
    ### BEGIN SOLUTION
    for name in sorted(holders):
        colors = [0 if rank in holders[name] else None for rank in range(comm.size)]
        group = comm.split(colors)
        if group is None:
            continue
        p = tied[name]
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        all_reduce_(group, p.grad)
    ### END SOLUTION


# %% nbgrader={"grade_id": "sum_tied_test", "points": 2}
check.sum_tied(sum_tied)

# %% [markdown] nbgrader={"grade_id": "sum_tied_target"}
# **Target:** 5 for the table of stages 0 and 3 (1 + 4), 10 for the norm on all stages (1 + 2 + 3 + 4), and of the bytes that a stage sends two long bars that are equal, and two short ones: stages 1 and 2 hold only the norm.


# %%
def four_stages(comm):
    holders = {"tokens": [0, 3], "norm": [0, 1, 2, 3]}
    tied = {}
    for name, ranks in holders.items():
        if comm.rank in ranks:
            tied[name] = nn.Parameter(torch.zeros(1000 if name == "tokens" else 100))
            tied[name].grad = torch.full_like(tied[name], comm.rank + 1.0)
    sum_tied(comm, holders, tied)
    return {name: float(p.grad[0]) for name, p in tied.items()}


world = World(4)
with check.limit(10):
    sums = world.run(four_stages)
print(sums)
study.bars(
    {f"stage {s} sends": world.trace.bytes_sent(s) for s in range(4)},
    title="Bytes for two tied parameters",
)

# %% [markdown] nbgrader={"grade_id": "fit_pipeline_spec"}
# ## 6 · Which schedule fits? (2 points, graded by hand)
#
# A model lies on 8 stages, and a batch has 256 samples, cut into M micro-batches of b = 256/M samples. On every stage a forward takes 1 ms + 0.5 ms · b: the first part is launching kernels, and does not depend on b. A backward takes twice as long. Messages take no time. A sample's activations take 0.75 GB on each stage, of which its input is 0.05 GB, and 20 GB are free.
#
# There are four ways: GPipe and 1F1B, each with activations kept, or with recomputation. A stage that recomputes keeps the inputs of the micro-batches in flight and all activations of the one that is going back, and its backward includes one more forward.
#
# **Which way, with which M of 1, 2, 4, … 256, makes the shortest step that fits on every stage? And how much memory must be free before another way is faster?**
#
# First draw the time of a step against M for the four ways, and show which of them fit. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which one sees what fits and what is fastest; the way, M, and the time of the step |
# | ½ | what makes a step longer with few micro-batches, and what with many, and where the best M would be if memory were free |
# | ½ | the memory from which another way is faster, which one, and by how much; and why GPipe without recomputation never fits |

# %% nbgrader={"grade_id": "fit_pipeline_plot", "solution": true}
### BEGIN SOLUTION
S = 8
counts = [2**i for i in range(9)]
drawn = {}
fitting = {}
for recomputes in (False, True):
    how = "recomputed" if recomputes else "kept"
    units = 4 if recomputes else 3  # of a forward, for a forward and a backward
    times = {M: (M + S - 1) * units * (1e-3 + 0.5e-3 * 256 / M) for M in counts}
    drawn[f"all, {how}"] = counts, list(times.values())
    for name, most in (("GPipe", 256), ("1F1B", S)):
        fits = []
        for M in counts:
            b = 256 / M
            in_memory = min(M, most) * b * (0.05 if recomputes else 0.75)
            if recomputes:
                in_memory += b * 0.75
            if in_memory <= 20:
                fits.append(M)
        print(f"{name}, {how}, fits with M =", fits, [f"{1e3 * times[M]:.0f} ms" for M in fits])
        if fits:
            fitting[f"{name}, {how}, fits"] = fits, [times[M] for M in fits]
study.curves(
    drawn,
    points=fitting,
    logx=True,
    logy=True,
    yunit="s",
    xlabel="micro-batches, M",
    ylabel="time of a step",
    title="Eight stages, 256 samples, 20 GB",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "fit_pipeline", "solution": true, "points": 2}
# Recomputation with M = 32: a step takes 39 · 4 · 5 ms = 780 ms, with GPipe and 1F1B alike, and both fit (18.8 GB and 9.2 GB).
#
# A step has M + 7 slots, each of 3 forwards if activations are kept and of 4 if not. With few micro-batches the 7 slots of bubble are long, since each is a large micro-batch. With many the millisecond of launching kernels is paid M + 7 times. (M + 7)(1 + 128/M) is least at M = √(7 · 128) ≈ 30, so with memory to spare M = 32 and 39 · 3 · 5 ms = 585 ms would be best.
#
# GPipe keeps all 256 samples, however they are cut: 192 GB, so no M helps. 1F1B keeps 8 micro-batches on stage 0, 8 · 256/M · 0.75 GB, which fits from M = 128 on, and then a step takes 135 · 3 · 2 ms = 810 ms: the kernels have become so small that the forward which one saves is lost again. At M = 64 it needs 24 GB. With 24 GB free 1F1B without recomputation is faster: 71 · 3 · 3 ms = 639 ms, 18 % less than 780 ms. With 48 GB it could take M = 32, and 585 ms.
