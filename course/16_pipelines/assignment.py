# %% [markdown] nbgrader={"grade_id": "top"}
# # 16 Pipelines: exercises
#
# You write schedules, time them, and build the stage that runs any of them.
#
# Seven exercises, 17 points. After each, run the check: it validates your lists, times them, and runs your stage on 1
# to 4 ranks and in real processes. It says what is wrong. Try as often as you like. What your function prints is not
# shown there; to see it, call it in a cell of your own.
#
# A schedule is a list of words for each stage: `F3` is the forward of micro-batch 3, `B3` its whole backward. There are
# S stages and M micro-batches, both numbered from 0. What is refused is the library's own (`minidist.parallel`), and
# PyTorch's pipelines.

# %% nbgrader={"grade_id": "setup"}
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import mse_loss

import minicheck as check

from minidist import study
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
# Every stage does its list in order, one action at a time, each as soon as it can. Messages take no time.
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
# `F3` of the stage before. `B3` needs `F3` of its own stage, and `B3` of the stage after. About 17 lines.
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
S, Ms = 4, (1, 2, 4, 8, 16, 32)
found = [
    100 * (1 - 3 * M / step_time([gpipe(s, S, M) for s in range(S)], [1] * S, [2] * S)) for M in Ms
]
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
# As fast as GPipe, with less memory.
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
yours, theirs = lists(one_f_one_b, 4, 6), lists(gpipe, 4, 6)
print(grid(theirs), grid(yours), sep="\n\n")
rows = [
    (name, f"{simulate(some).time:g}", *map(in_flight, some))
    for name, some in (("GPipe", theirs), ("yours", yours))
]
study.table(rows, ["", "time", *(f"stage {s} keeps" for s in range(4))])

# %% [markdown] nbgrader={"grade_id": "predict_pipeline_spec"}
# ## 3 · Predict, then run (2 points)
#
# 8 stages, 32 micro-batches. A B takes twice as long as an F, and messages take no time.
#
# - `bubble`: which share of the time does a stage wait, in GPipe? (A number between 0 and 1.)
# - `gpipe_keeps`: how many micro-batches' activations does a stage of GPipe keep at the peak?
# - `keeps`: and stage 2 in 1F1B?
# - `interleaved`: which share of the time is bubble if every rank has v = 4 chunks, interleaved?
# - `enough`: how many micro-batches does GPipe need at least, for a bubble of 10 % or less?
# - `idle`: the backward is split. F, I and W take 1 each. For how long is a stage idle in ZB-H1?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_pipeline", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_pipeline.numbers(STUDENT)
bubble = gpipe_keeps = keeps = interleaved = enough = idle = None
### BEGIN SOLUTION
S, M = 8, 32
bubble = (S - 1) / (M + S - 1)
gpipe_keeps = M
keeps = S - 2
interleaved = (S - 1) / (4 * M + S - 1)
enough = 9 * (S - 1)
idle = (S - 1) * (1 + 1 - 1)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_pipeline_test", "points": 2}
check.predict_pipeline(bubble, gpipe_keeps, keeps, interleaved, enough, idle, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_pipeline_target"}
# **Target:** your numbers beside those of the lists.


# %%
def with_chunks(stage):
    from minidist.parallel import schedules

    return schedules.interleaved(stage, 8, 32, 4), schedules.zb_h1(stage, 8, 32)


runs = [simulate(some) for some in (lists(gpipe, 8, 32), *zip(*map(with_chunks, range(8))))]
rows = [
    ("bubble", f"{bubble:.4f}", f"{runs[0].bubble:.4f}"),
    ("gpipe_keeps", gpipe_keeps, in_flight(lists(gpipe, 8, 32)[0])),
    ("keeps", keeps, in_flight(lists(one_f_one_b, 8, 32)[2])),
    ("interleaved", f"{interleaved:.4f}", f"{runs[1].bubble:.4f}"),
    (
        "enough",
        enough,
        min(M for M in range(50, 80) if simulate(lists(gpipe, 8, M)).bubble <= 0.1 + 1e-9),
    ),
    ("idle", idle, f"{runs[2].time - runs[2].busy[0]:g}"),
]
study.table(rows, ["", "predicted", "counted"])

# %% [markdown] nbgrader={"grade_id": "run_stage_spec"}
# ## 4 · A stage that runs its list (3 points)
#
# The list says what to do; the messages follow from it. Activations go to the right over one Comm, gradients to the
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
# | afterwards | `p.grad` is the gradient of the mean of the M losses; every activation is freed by its backward |
# | returns | nothing |
# | cost | M messages down an edge, M up; each F runs `part` once |
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


pipelined, [one] = World(3).run(program, 4, one_f_one_b), World(1).run(program, 4, one_f_one_b)
three = [norm for part in pipelined for norm in part]
names = [f"stage {s}, {what}" for s in range(3) for what in ("weight", "bias")]
study.table(
    [(name, f"{a:.6f}", f"{b:.6f}") for name, a, b in zip(names, three, one)],
    ["length of the gradient", "3 stages", "1 stage"],
)

# %% [markdown] nbgrader={"grade_id": "cut_spec"}
# ## 5 · Cut the model (2 points)
#
# The slowest stage sets the pace.
#
# | | |
# |---|---|
# | call | `cut(costs, S)` |
# | `costs` | what each layer costs, whole numbers of at least 0; **not changed** |
# | returns | a list of S pairs (first, end): stage s has the layers first, …, end − 1 |
# | raises | `ValueError` if there are fewer layers than stages |
#
# **Invariant:** the parts are contiguous, none is empty, together they are all layers; the largest sum of costs is as
# small as it can be. 80 layers on 8 stages should take no second. About 13 lines.
#
# <details><summary>Hint</summary>
#
# best[s][j] is the smallest largest part, if the first j layers are cut into s parts. The last part begins at some i:
# best[s][j] = min over i of max(best[s−1][i], cost of layers i … j−1). Keep the cuts beside the number: `min` of tuples
# compares the numbers first.
#
# </details>


# %% nbgrader={"grade_id": "cut", "solution": true}
def cut(costs, S):
    """(first, end) of the layers of each stage."""
    ### BEGIN SOLUTION
    L = len(costs)
    if L < S:
        raise ValueError(f"{L} layers do not make {S} stages")
    upto = [sum(costs[:j]) for j in range(L + 1)]
    best = [(upto[j], [0, j]) for j in range(L + 1)]
    for s in range(2, S + 1):
        row = [None] * (L + 1)
        for j in range(s, L + 1):
            row[j] = min(
                (max(best[i][0], upto[j] - upto[i]), [*best[i][1], j]) for i in range(s - 1, j)
            )
        best = row
    cuts = best[L][1]
    return list(pairwise(cuts))
    ### END SOLUTION


# %% nbgrader={"grade_id": "cut_test", "points": 2}
check.cut(cut)

# %% [markdown] nbgrader={"grade_id": "cut_target"}
# **Target:** the largest part is 4, not 7.

# %%
costs = [1, 1, 1, 2, 1, 1, 3, 4]
by_count = [(2 * s, 2 * s + 2) for s in range(4)]
ways = {"by count": by_count, "yours": cut(costs, 4)}
study.bars(
    {
        f"{name}, stage {s}": sum(costs[first:end])
        for name, parts in ways.items()
        for s, (first, end) in enumerate(parts)
    },
    title=f"Layers that cost {costs}, on 4 stages",
)

# %% [markdown] nbgrader={"grade_id": "split_backward_spec"}
# ## 6 · A backward in two (2 points)
#
# A stage computes `h = relu(x @ w1)`, then `y = h @ w2`. Its backward has four products. Two of them make `dx`, and the
# stage before waits for it. The other two can wait.
#
# | | |
# |---|---|
# | call | `split_backward(x, w1, h, w2, dy)` |
# | `x`, `w1`, `h`, `w2`, `dy` | (b, i), (i, h), (b, h), (h, o), (b, o); none of them changed |
# | returns | `dx`, (b, i), and a function `later()` that returns `(dw1, dw2)` |
# | cost | two products before it returns, two in `later()`: together a whole backward, and no more |
#
# No autograd: you write what autograd would do. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Of y = a @ b: da = dy @ b.T and db = a.T @ dy. The relu lets a gradient through where h > 0. What the first half has
# computed on its way, the second half can use: a function sees the variables of the function around it.
#
# </details>


# %% nbgrader={"grade_id": "split_backward", "solution": true}
def split_backward(x, w1, h, w2, dy):
    """dx now, and a function that returns (dw1, dw2) later."""
    ### BEGIN SOLUTION
    dz = (dy @ w2.T) * (h > 0)

    def later():
        return x.T @ dz, h.T @ dy

    return dz @ w1.T, later
    ### END SOLUTION


# %% nbgrader={"grade_id": "split_backward_test", "points": 2}
check.split_backward(split_backward)

# %% [markdown] nbgrader={"grade_id": "split_backward_target"}
# **Target:** two bars of the same length. Neither half does the other's work.

# %%
from torch.utils.flop_counter import FlopCounterMode

x, w1, w2, dy = (torch.randn(shape) for shape in ((32, 64), (64, 128), (128, 16), (32, 16)))
h = (x @ w1).relu()
with FlopCounterMode(display=False) as first:
    dx, later = split_backward(x, w1, h, w2, dy)
with FlopCounterMode(display=False) as second:
    later()
study.bars(
    {"dx": first.get_total_flops(), "dw1 and dw2": second.get_total_flops()},
    target=2 * 32 * 128 * (64 + 16),
    note="a forward",
    title="FLOPs of each half",
)

# %% [markdown] nbgrader={"grade_id": "zero_bubble_spec"}
# ## 7 · Find the bug (2 points)
#
# Backwards are split: `I3` computes the input's gradient, `W3` the weights'. ZB-H1 warms up as 1F1B does, and keeps
# W's back to fill the bubble with them. The next cell was found in somebody's code. The validator has nothing to say
# against it, and the gradients are right.


# %% nbgrader={"grade_id": "zero_bubble_broken"}
def zero_bubble(stage, S, M):
    """Forward, input's gradient, and the W of `late` micro-batches before."""
    warm, late = min(M, S - 1 - stage), S - 1 - stage
    words = [f"F{m}" for m in range(warm)]
    for i in range(M):
        if warm + i < M:
            words.append(f"F{warm + i}")
        words.append(f"I{i}")
        if i >= late:
            words.append(f"W{i - late}")
    return words + [f"W{m}" for m in range(max(0, M - late), M)]


# %%
broken = lists(zero_bubble, 4, 8)
print(grid(broken))
rows = [
    (
        "1F1B",
        f"{simulate(lists(one_f_one_b, 4, 8)).time:g}",
        *map(in_flight, lists(one_f_one_b, 4, 8)),
    ),
    ("broken", f"{simulate(broken).time:g}", *map(in_flight, broken)),
]
study.table(rows, ["", "time", *(f"stage {s} keeps" for s in range(4))])

# %% [markdown] nbgrader={"grade_id": "zero_bubble_task"}
# It takes as long as 1F1B, and stage 0 keeps 7 micro-batches instead of 4. Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `zero_bubble(stage, S, M)` |
# | returns | the list of words of this stage: an F, an I and a W for each micro-batch |
# | time | 3M + S − 1 for M ≥ S, where F, I and W take 1 each: a third of 1F1B's bubble |
# | memory | at any time at most min(M, S) micro-batches have had their F, and not their W |
# | order | W's in the order of the micro-batches, so that gradients are added up as in a serial loop |
#
# <details><summary>Hint</summary>
#
# Which stage waits longest for the first gradient, and so has room for W's in the end? Which stage keeps most
# micro-batches while it warms up, and so has least room for W's that are kept back?
#
# </details>


# %% nbgrader={"grade_id": "zero_bubble", "solution": true}
def zero_bubble(stage, S, M):
    """Forward, input's gradient, and the W of `late` micro-batches before."""
    ### BEGIN SOLUTION
    warm, late = min(M, S - 1 - stage), stage
    words = [f"F{m}" for m in range(warm)]
    for i in range(M):
        if warm + i < M:
            words.append(f"F{warm + i}")
        words.append(f"I{i}")
        if i >= late:
            words.append(f"W{i - late}")
    return words + [f"W{m}" for m in range(max(0, M - late), M)]
    ### END SOLUTION


# %% nbgrader={"grade_id": "zero_bubble_test", "points": 2}
check.zero_bubble(zero_bubble)

# %% [markdown] nbgrader={"grade_id": "zero_bubble_target"}
# **Target:** gaps at the start only, 4 micro-batches kept on every stage, and a time of 27.

# %%
repaired = lists(zero_bubble, 4, 8)
print(simulate(repaired).time, list(map(in_flight, repaired)))
study.stages(
    {"broken": simulate(broken), "repaired": simulate(repaired)},
    title="Simulated, a second an action",
)
