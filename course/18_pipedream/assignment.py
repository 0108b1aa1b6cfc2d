# %% [markdown] nbgrader={"grade_id": "top"}
# # 18 PipeDream: exercises
#
# You write the list without a flush, find out which weights it meets, keep them, and train stages with it.
#
# Seven exercises, 17 points. After each, run the check: it reads your lists, counts your versions, and trains on 1 to 4
# stages and in real processes. It says what is wrong. Try as often as you like. What your function prints is not shown
# there; to see it, call it in a cell of your own.
#
# A list has the words of lesson 16, and one more: `U3` updates the weights with the gradient of micro-batch 3. Version
# k of a stage's weights is there after its k-th update; version 0 at the start. What is refused is the library's own
# (`minidist.parallel`), and PyTorch's pipelines.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

import minicheck as check

from minidist import study
from minidist.comm import World
from minidist.parallel.schedules import in_flight, parse
from minidist.parallel.simulate import grid, simulate
from minidist.parallel.validate import held


def lists(schedule, S, M):
    """The lists of all stages, as `grid` and `simulate` read them."""
    return [parse(" ".join(schedule(stage, S, M))) for stage in range(S)]


def one_f_one_b(stage, S, M):
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]


# %% [markdown] nbgrader={"grade_id": "no_flush_spec"}
# ## 1 · No flush (2 points)
#
# | | |
# |---|---|
# | call | `no_flush(stage, S, M)` |
# | returns | the list of words of this stage: an F, a B and a U for each of M micro-batches |
# | time | (M + S − 1) times a forward and a backward; a U takes none |
# | memory | at any time at most S − stage micro-batches have had their F, and not their B |
#
# **Invariant:** each update comes right after its backward. Forwards in order, and backwards too. Any M ≥ 1 and S ≥ 1.
# About 6 lines.
#
# <details><summary>Hint</summary>
#
# `one_f_one_b` stands above. Go over its words.
#
# </details>


# %% nbgrader={"grade_id": "no_flush", "solution": true}
def no_flush(stage, S, M):
    """This stage's list of words."""
    ### BEGIN SOLUTION
    words = []
    for word in one_f_one_b(stage, S, M):
        words.append(word)
        if word[0] == "B":
            words.append(f"U{word[1:]}")
    return words
    ### END SOLUTION


# %% nbgrader={"grade_id": "no_flush_test", "points": 2}
check.no_flush(no_flush)

# %% [markdown] nbgrader={"grade_id": "no_flush_target"}
# **Target:** waiting at the start and at the end only, and versions held: 4, 3, 2, 1.

# %%
with check.limit(10):
    yours = lists(no_flush, 4, 8)
print(grid(yours))
study.table(
    [(f"stage {s}", in_flight(yours[s]), max(held(yours)[s])) for s in range(4)],
    ["", "micro-batches in flight", "versions held"],
    title=f"{simulate(yours).time:g} slots",
)

# %% [markdown] nbgrader={"grade_id": "staleness_spec"}
# ## 2 · How late is a gradient? (2 points)
#
# | | |
# |---|---|
# | call | `staleness(words)` |
# | `words` | one stage's list of F, B and U: PipeDream's, or another; with fewer U's, or F's and B's in another order |
# | returns | for micro-batch 0, 1, …: updates between the version that its F met and the one its gradient is added to |
#
# **Invariant:** the update that uses the gradient itself does not count. About 3 lines.
#
# <details><summary>Hint</summary>
#
# The gradient is added to the version that is there when its backward is done. So count the U's between F and B.
#
# </details>


# %% nbgrader={"grade_id": "staleness", "solution": true}
def staleness(words):
    """For each micro-batch, how many updates late its gradient is."""
    ### BEGIN SOLUTION
    M = sum(word[0] == "F" for word in words)
    between = [words[words.index(f"F{m}") : words.index(f"B{m}")] for m in range(M)]
    return [sum(word[0] == "U" for word in some) for some in between]
    ### END SOLUTION


# %% nbgrader={"grade_id": "staleness_test", "points": 2}
check.staleness(staleness)

# %% [markdown] nbgrader={"grade_id": "staleness_target"}
# **Target:** each row rises to S − 1 − stage, and stays there.

# %%
with check.limit(10):
    rows = [(f"stage {s}", *staleness(no_flush(s, 4, 8))) for s in range(4)]
study.table(rows, ["micro-batch", *range(8)])

# %% [markdown] nbgrader={"grade_id": "needed_spec"}
# ## 3 · Which version? (2 points)
#
# | | |
# |---|---|
# | call | `needed(lists, vertical)` |
# | `lists` | for each stage its list of words; stage 0 first |
# | `vertical` | False: weight stashing. True: with vertical sync, too |
# | returns | for each stage a list of M numbers: the version that the backward of each micro-batch needs |
#
# **Invariant:** a backward needs the version that its forward used. With stashing alone a forward uses the newest of
# its own stage; with vertical sync the one that stage 0 used. About 8 lines.
#
# <details><summary>Hint</summary>
#
# The newest version at a place of a list is the number of U's before it.
#
# </details>


# %% nbgrader={"grade_id": "needed", "solution": true}
def needed(lists, vertical):
    """For each stage and micro-batch, the version that its backward needs."""
    ### BEGIN SOLUTION
    rows = []
    for words in lists:
        M = sum(word[0] == "F" for word in words)
        before = [words[: words.index(f"F{m}")] for m in range(M)]
        rows.append([sum(word[0] == "U" for word in some) for some in before])
    return [rows[0] if vertical else row for row in rows]
    ### END SOLUTION


# %% nbgrader={"grade_id": "needed_test", "points": 2}
check.needed(needed)

# %% [markdown] nbgrader={"grade_id": "needed_target"}
# **Target:** a staircase with stashing; with vertical sync four equal rows.

# %%
rows = []
with check.limit(10):
    some = [no_flush(s, 4, 8) for s in range(4)]
    for what, vertical in (("stashing", False), ("vertical", True)):
        for s, row in enumerate(needed(some, vertical)):
            rows.append((f"stage {s}, {what}", *row))
study.table(rows, ["micro-batch", *range(8)])

# %% [markdown] nbgrader={"grade_id": "store_spec"}
# ## 4 · A store of versions (3 points)
#
# A stage has one tensor of weights, and asks this store for it.
#
# | | |
# |---|---|
# | class | `Store(weight)`; the tensor is the caller's, and never changed |
# | `.forward(m)` | returns the newest weights, for the forward of micro-batch m |
# | `.backward(m)` | returns the weights that m's forward used; called once for each m |
# | `.update(grad, rate)` | makes the next version: the newest − rate · grad; `grad` is the caller's, too |
# | memory | alive are the newest version, and those of backwards still to come: no others, and none twice |
#
# **Invariant:** no version changes that is still needed: autograd holds the tensor that `forward` returned. About 8
# lines.
#
# <details><summary>Hint</summary>
#
# Two micro-batches may use one version: let both point to the same tensor. A tensor goes when nobody points to it.
#
# </details>


# %% nbgrader={"grade_id": "store", "solution": true}
class Store:
    """A stage's weights, in versions."""

    def __init__(self, weight):
        ### BEGIN SOLUTION
        self.newest, self.used = weight, {}
        ### END SOLUTION

    def forward(self, m):
        ### BEGIN SOLUTION
        self.used[m] = self.newest
        return self.newest
        ### END SOLUTION

    def backward(self, m):
        ### BEGIN SOLUTION
        return self.used.pop(m)
        ### END SOLUTION

    def update(self, grad, rate):
        ### BEGIN SOLUTION
        self.newest = self.newest - rate * grad
        ### END SOLUTION


# %% nbgrader={"grade_id": "store_test", "points": 3}
check.store(Store)

# %% [markdown] nbgrader={"grade_id": "store_target"}
# **Target:** backwards get what their forwards got. (Every gradient is 1, the rate is 1, the weight starts at 0.)

# %%
got = {"forward": {}, "backward": {}}
with check.limit(10):
    store = Store(torch.zeros(1))
    for word in no_flush(0, 4, 8):
        m = int(word[1:])
        if word[0] == "U":
            store.update(torch.ones(1), 1.0)
        elif word[0] == "F":
            got["forward"][m] = int(store.forward(m))
        else:
            got["backward"][m] = int(store.backward(m))
study.table(
    [(name, *(row[m] for m in range(8))) for name, row in got.items()], ["micro-batch", *range(8)]
)

# %% [markdown] nbgrader={"grade_id": "run_pipedream_spec"}
# ## 5 · A stage that never waits (4 points)
#
# Lesson 16's `run_stage`, with updates.
#
# | | |
# |---|---|
# | call | `run_pipedream(down, up, part, words, xs, ys, loss_fn, rate)` |
# | `down`, `up` | a Comm for activations, one for gradients; the same ranks, and rank r is stage r |
# | `part` | this stage's `nn.Module`; its output has the shape of its input |
# | `words` | this stage's list of F, B and U; a U comes right after its B, or a forward later |
# | `xs`, `ys` | M micro-batches, the last one smaller, and targets; numbers count on stage 0 and the last; **not changed** |
# | `loss_fn` | `loss_fn(output, y)`: the mean loss of a micro-batch |
# | afterwards | the parameters of `part` are the newest version |
# | returns | nothing |
# | cost | M messages down an edge, M up; each F runs `part` once; each B frees what its F kept |
#
# **Invariant:** the backward of a micro-batch uses the weights of its forward. Its gradient, times the rate, is
# subtracted from the *newest* weights, alone: each micro-batch has its own update. Start sends with `isend`, and wait
# for all of them at the end. About 25 lines.
#
# <details><summary>Hint</summary>
#
# A version is a dictionary {name: tensor that requires a gradient}. `functional_call(part, version, x)` runs the part
# with it. Keep `(x, y, version)` of each micro-batch. In B, `torch.autograd.grad(y, [x, *version.values()], dy)` gives
# all gradients, and adds nothing up. In U make a new dictionary. At the end copy the newest into `part`.
#
# </details>


# %% nbgrader={"grade_id": "run_pipedream", "solution": true}
def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    """Train this stage by its list; leave the newest weights in `part`."""
    ### BEGIN SOLUTION
    stage = down.rank
    last = down.size - 1
    kept = {}
    sends = []
    newest = {name: p.detach().clone().requires_grad_() for name, p in part.named_parameters()}
    for word in words:
        kind, m = word[0], int(word[1:])
        if kind == "F":
            x = down.recv(torch.empty_like(xs[m]), stage - 1) if stage > 0 else xs[m]
            x = x.detach().requires_grad_()
            y = functional_call(part, newest, x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[m])
            kept[m] = x, y, newest
        elif kind == "B":
            x, y, used = kept.pop(m)
            dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
            dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
            if stage > 0:
                sends.append(up.isend(dx, stage - 1))
        else:
            newest = {
                name: (w - rate * g).detach().requires_grad_()
                for (name, w), g in zip(newest.items(), grads)
            }
    for work in sends:
        work.wait()
    with torch.no_grad():
        for name, p in part.named_parameters():
            p.copy_(newest[name])
    ### END SOLUTION


# %% nbgrader={"grade_id": "run_pipedream_test", "points": 4}
check.run_pipedream(run_pipedream)

# %% [markdown] nbgrader={"grade_id": "run_pipedream_target"}
# **Target:** the loss falls on three stages as on one, a little later.


# %%
def program(comm, M):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(3)]
    part = nn.Sequential(*layers[3 * comm.rank // comm.size : 3 * (comm.rank + 1) // comm.size])
    xs, losses = list(torch.randn(M, 16, 4, dtype=torch.float64)), []

    def loss_fn(y, target):
        losses.append(mse_loss(y, target))
        return losses[-1]

    down, up = (comm.split([0] * comm.size) for _ in range(2))
    run_pipedream(
        down, up, part, no_flush(comm.rank, comm.size, M), xs, [x.flip(1) for x in xs], loss_fn, 0.2
    )
    return [float(loss.detach()) for loss in losses]


with check.limit(20):
    losses = {n: World(n).run(program, 80)[-1] for n in (1, 3)}
study.curves(
    {"1 stage": (range(80), losses[1]), "3 stages": (range(80), losses[3])},
    xlabel="micro-batches",
    ylabel="loss",
    title="Your stages learn",
)

# %% [markdown] nbgrader={"grade_id": "predict_pipedream_spec"}
# ## 6 · Predict, then count (2 points)
#
# 8 stages, each with 100 MB (100,000,000 bytes) of weights, and 600 micro-batches.
#
# - `versions`: how many versions does stage 2 hold at the peak, with stashing? (The newest counts.)
# - `stale`: how many updates late are its gradients?
# - `stash_bytes`: bytes of all versions at the peak, of all 8 stages together, with stashing
# - `vertical_bytes`: with vertical sync
# - `two_bytes`: with PipeDream-2BW
# - `updates`: how many updates does a stage make, with PipeDream-2BW and m = 10?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_pipedream", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_pipedream.numbers(STUDENT)
versions = stale = stash_bytes = vertical_bytes = two_bytes = updates = None
### BEGIN SOLUTION
S, each = 8, 100e6
versions = S - 2
stale = S - 1 - 2
stash_bytes = S * (S + 1) / 2 * each
vertical_bytes = S * S * each
two_bytes = 2 * S * each
updates = 600 / 10
### END SOLUTION

# %% nbgrader={"grade_id": "predict_pipedream_test", "points": 2}
check.predict_pipedream(
    versions, stale, stash_bytes, vertical_bytes, two_bytes, updates, of=STUDENT
)

# %% [markdown] nbgrader={"grade_id": "predict_pipedream_target"}
# **Target:** predicted and counted alike. Counted from lists, stage by stage.

# %%
each = 100e6
with check.limit(10):
    some = lists(no_flush, 8, 24)
# an update every 8 micro-batches
twos = [[a for a in row if a.kind != "U" or a.micro % 8 == 7] for row in some]
rows = {"stashing": held(some), "vertical sync": held(some, "first"), "2BW": held(twos, "2bw", 8)}
foretold = {"stashing": stash_bytes, "vertical sync": vertical_bytes, "2BW": two_bytes}
study.bars(
    {
        f"{name}, {what}": number
        for name in rows
        for what, number in (
            ("predicted", foretold[name]),
            ("counted", sum(each * max(row) for row in rows[name])),
        )
    },
    unit="B",
    title="The weights of 8 stages, at the peak",
)

# %% [markdown] nbgrader={"grade_id": "two_versions_spec"}
# ## 7 · Find the bug (2 points)
#
# PipeDream-2BW, on one rank. Micro-batches come in groups of m. Those of group g take their gradients at version
# max(0, g − 1), because version g is not there yet when they enter the pipeline. The next cell was found in somebody's
# code. It holds two versions, and its loss falls.


# %% nbgrader={"grade_id": "two_versions_broken"}
def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    older = newer = weight
    for g in range(0, len(xs), m):
        mean = sum(grad(older, x) for x in xs[g : g + m]) / m
        older, newer = newer, older - rate * mean
    return newer


# %%
def slope(w, x):
    return 2 * (w - 1) * x


def ends(train, groups):
    return float(train(torch.zeros(1), slope, [torch.ones(1)] * 2 * groups, 0.05, 2))


def perfect(groups):
    """Gradients that are never late."""
    w = torch.zeros(1)
    for _ in range(groups):
        w = w - 0.05 * slope(w, 1)
    return float(w)


broken = [ends(two_versions, groups) for groups in range(1, 25)]
study.curves(
    {
        "broken": (range(1, 25), broken),
        "never late": (range(1, 25), list(map(perfect, range(1, 25)))),
    },
    xlabel="updates",
    ylabel="weight",
    title="The weight should go to 1",
)

# %% [markdown] nbgrader={"grade_id": "two_versions_task"}
# It needs twice as many updates. One update late cannot cost so much. Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `two_versions(weight, grad, xs, rate, m)` |
# | `weight` | version 0; not changed |
# | `grad` | `grad(w, x)`: the gradient of micro-batch x at the weights w; called once for each, in order |
# | `xs` | micro-batches, a multiple of m |
# | returns | the newest version, after the last group |
#
# **Invariant:** version g + 1 is version g, minus rate times the *mean* gradient of group g, taken at version
# max(0, g − 1).
#
# <details><summary>Hint</summary>
#
# Which version does a gradient come from, and which one is it added to? Follow the even groups and the odd ones.
#
# </details>


# %% nbgrader={"grade_id": "two_versions", "solution": true}
def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    ### BEGIN SOLUTION
    older = newer = weight
    for g in range(0, len(xs), m):
        mean = sum(grad(older, x) for x in xs[g : g + m]) / m
        older, newer = newer, newer - rate * mean
    return newer
    ### END SOLUTION


# %% nbgrader={"grade_id": "two_versions_test", "points": 2}
check.two_versions(two_versions)

# %% [markdown] nbgrader={"grade_id": "two_versions_target"}
# **Target:** your line close to "never late", and far above the broken one. (It is a little above both: an older weight
# is farther from 1, so its gradient is larger. With a larger rate it would overshoot.)

# %%
with check.limit(10):
    repaired = [ends(two_versions, groups) for groups in range(1, 25)]
study.curves(
    {
        "repaired": (range(1, 25), repaired),
        "broken": (range(1, 25), broken),
        "never late": (range(1, 25), list(map(perfect, range(1, 25)))),
    },
    xlabel="updates",
    ylabel="weight",
    title="One update late, and no more",
)
