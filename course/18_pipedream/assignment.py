# %% [markdown] nbgrader={"grade_id": "top"}
# # 18 PipeDream: exercises
#
# You write a list without a flush for stages that have room for few versions, find out how late gradients are and how many versions a stage holds if only the stages of a node agree, keep versions for vertical sync, and train stages with two versions.
#
# Eight exercises, 19 points. After each of the first seven, run the check. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The last exercise is graded by hand.
#
# A list has the words of the lesson: `F3`, `B3`, and `U3`, the update that comes after `B3`. Version k of a stage's weights is there after its k-th update, and version 0 at the start. Stages and micro-batches are numbered from 0. What is refused is the library's own `minidist.parallel`, and PyTorch's pipelines.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

import minicheck as check

from minidist import study
from minidist.comm import World
from minidist.parallel.schedules import parse
from minidist.parallel.simulate import grid, simulate
from minidist.parallel.validate import held


def lists(schedule, S, *args):
    """The lists of all stages, as `grid` and `simulate` read them."""
    return [parse(" ".join(schedule(stage, S, *args))) for stage in range(S)]


def one_f_one_b(stage, S, M):
    """The lesson's list with a flush."""
    warm = min(M, S - 1 - stage)
    words = [f"F{m}" for m in range(warm)]
    for i in range(M - warm):
        words += [f"F{warm + i}", f"B{i}"]
    return words + [f"B{m}" for m in range(M - warm, M)]


def updated(stage, S, M, m=1):
    """1F1B with an update after every m-th backward, and after the last."""
    words = []
    for word in one_f_one_b(stage, S, M):
        words.append(word)
        done = int(word[1:]) + 1
        if word[0] == "B" and (done % m == 0 or done == M):
            words.append(f"U{word[1:]}")
    return words


# %% [markdown] nbgrader={"grade_id": "no_flush_spec"}
# ## 1 · No flush, and little room (2 points)
#
# In the lesson stage s warms up with S − 1 − s forwards, and so it holds S − s versions. Now the first stages have no room for so many. Each stage says how many versions it can hold.
#
# | | |
# |---|---|
# | call | `no_flush(stage, S, M, room)` |
# | `room` | for each stage the versions that it has room for, at least 1; some may have more room than they can use |
# | returns | the list of words of this stage: an F, a B and a U for each of M micro-batches |
# | memory | at any time at most `room[stage]` micro-batches have had their F, and not their B; and never more than S − stage, because more would only make gradients later |
# | order | before the first backward as many forwards as these limits allow, but not so many that the lists of all stages hang; then one backward and one forward in turn, until the forwards are used up, then the backwards that are left; all in the order of the micro-batches; each update right after its backward |
#
# Any M ≥ 1 and S ≥ 1. A stage sees the room of all stages, for its list has to fit theirs. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Every update makes a version, so a stage holds as many versions as it has micro-batches under way. So how many forwards may come before the first backward? Then think of a stage with much room that comes after one with little: who sends it the forwards that it wants to do first?
#
# </details>


# %% nbgrader={"grade_id": "no_flush", "solution": true}
def no_flush(stage, S, M, room):
    """This stage's list of words, within its room."""
    ### BEGIN SOLUTION
    warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)
    words = [f"F{m}" for m in range(warm)]
    for m in range(M):
        if warm + m < M:
            words.append(f"F{warm + m}")
        words += [f"B{m}", f"U{m}"]
    return words
    ### END SOLUTION


# %% nbgrader={"grade_id": "no_flush_test", "points": 2}
check.no_flush(no_flush)

# %% [markdown] nbgrader={"grade_id": "no_flush_target"}
# **Target:** with room for 4, 3, 2, 1 the stages wait at the start and at the end only. With less the gradients of stage 0 are less late, and the run takes longer: with one version everywhere, almost three times as long.

# %%
rows = []
with check.limit(10):
    for room in ([4, 3, 2, 1], [3, 3, 2, 1], [2, 2, 2, 1], [1, 1, 1, 1]):
        yours = lists(no_flush, 4, 8, room)
        if room == [4, 3, 2, 1]:
            print(grid(yours))
        versions = [max(row) for row in held(yours)]
        rows.append((str(room), f"{simulate(yours).time:g}", str(versions)))
study.table(rows, ["room", "slots, 8 micro-batches", "versions held, by stage"])

# %% [markdown] nbgrader={"grade_id": "staleness_spec"}
# ## 2 · How late is a gradient, if a node agrees? (2 points)
#
# Vertical sync lets all stages use the version that stage 0 used. One can also stop half-way: only the stages of a *node* agree, with the first stage of the node, their leader.
#
# | | |
# |---|---|
# | call | `staleness(lists, leader)` |
# | `lists` | for each stage its list of words: PipeDream's, or another; with fewer U's, or U's that come later than their B, or F's and B's in another order; **not changed** |
# | `leader` | for each stage the number of its leader, itself or a stage before it: `[0, 1, 2, 3]` is stashing alone, `[0, 0, 0, 0]` vertical sync, and `[0, 0, 2, 2]` has two nodes; **not changed** |
# | returns | for each stage a list of M numbers: the updates between the version that the forward of micro-batch 0, 1, … uses and the newest one when its backward comes |
#
# **Invariant:** a leader's forward uses the newest version of its own stage, version k. The other stages of the node use their own version k for this micro-batch. The update that uses the gradient itself does not count. About 9 lines.
#
# <details><summary>Hint</summary>
#
# The newest version at a place of a list is the number of U's before it. The forward is looked up in one list, the backward in another.
#
# </details>


# %% nbgrader={"grade_id": "staleness", "solution": true}
def staleness(lists, leader):
    """For each stage and micro-batch, how many updates late its gradient is."""

    ### BEGIN SOLUTION
    def newest_at(words, word):
        before = words[: words.index(word)]
        return sum(other[0] == "U" for other in before)

    rows = []
    for words, lead in zip(lists, leader):
        M = sum(word[0] == "F" for word in words)
        used = [newest_at(lists[lead], f"F{m}") for m in range(M)]
        rows.append([newest_at(words, f"B{m}") - used[m] for m in range(M)])
    return rows
    ### END SOLUTION


# %% nbgrader={"grade_id": "staleness_test", "points": 2}
check.staleness(staleness)

# %% [markdown] nbgrader={"grade_id": "staleness_target"}
# **Target:** with stashing 3, 2, 1 and 0 in the end, with vertical sync 3 everywhere; with two nodes the first stage decides for the first node, and the third for the second.

# %%
WAYS = {"stashing": [0, 1, 2, 3], "two nodes": [0, 0, 2, 2], "vertical sync": [0, 0, 0, 0]}
rows = []
with check.limit(10):
    some = [updated(s, 4, 8) for s in range(4)]
    for name, leader in WAYS.items():
        for s, row in enumerate(staleness(some, leader)):
            rows.append((f"stage {s}, {name}", *row))
study.table(rows, ["micro-batch", *range(8)])

# %% [markdown] nbgrader={"grade_id": "needed_spec"}
# ## 3 · How many versions? (2 points)
#
# Now count what this costs in memory, from the lists.
#
# | | |
# |---|---|
# | call | `needed(lists, leader)` |
# | `lists`, `leader` | as before; **not changed** |
# | returns | for each stage one number: how many versions it holds at the peak |
#
# **Invariant:** after each action a stage holds its newest version, and each older one that an F or a B still to come will use. Both use the version that the forward of the leader used. A version that is not made yet is not held. About 14 lines.
#
# <details><summary>Hint</summary>
#
# First make a list of the version that each micro-batch uses. Then go through the words, keep the set of micro-batches that have not gone back, and look at their versions. Take the number of different ones.
#
# </details>


# %% nbgrader={"grade_id": "needed", "solution": true}
def needed(lists, leader):
    """For each stage, how many versions it holds at the peak."""
    ### BEGIN SOLUTION
    rows = []
    for words in lists:
        newest = 0
        row = {}
        for word in words:
            newest += word[0] == "U"
            if word[0] == "F":
                row[word[1:]] = newest
        rows.append(row)
    peaks = []
    for words, lead in zip(lists, leader):
        to_come = dict(rows[lead])
        newest = 0
        peak = 1
        for word in words:
            newest += word[0] == "U"
            if word[0] == "B":
                del to_come[word[1:]]
            older = {version for version in to_come.values() if version < newest}
            peak = max(peak, len(older) + 1)
        peaks.append(peak)
    return peaks
    ### END SOLUTION


# %% nbgrader={"grade_id": "needed_test", "points": 2}
check.needed(needed)

# %% [markdown] nbgrader={"grade_id": "needed_target"}
# **Target:** 10 versions with stashing, 16 with vertical sync, and 12 with two nodes. With an update for every three micro-batches there are fewer versions, and each of them is used three times.

# %%
rows = []
with check.limit(10):
    for every in (1, 3):
        some = [updated(s, 4, 12, every) for s in range(4)]
        for name, leader in WAYS.items():
            found = needed(some, leader)
            rows.append((f"{name}, an update every {every}", *found, sum(found)))
study.table(rows, ["versions held", *(f"stage {s}" for s in range(4)), "together"])

# %% [markdown] nbgrader={"grade_id": "store_spec"}
# ## 4 · A store of versions, for vertical sync (3 points)
#
# The lesson's stage with stashing needs a dictionary, and Python frees what nobody points to. With vertical sync a forward comes with a *number*: that of the version which it is to use. So a version may have to stay though no backward waits for it. A stage has one tensor of weights, and asks this store for its versions.
#
# | | |
# |---|---|
# | class | `Store(weight)`; the tensor is version 0, the caller's, and never changed |
# | `.forward(m, number)` | returns version `number`, for the forward of micro-batch m |
# | `.backward(m)` | returns the weights that m's forward used; called once for each m, in any order |
# | `.update(grad, rate)` | makes the next version: the newest − rate · grad; `grad` is the caller's, too, and is not kept |
# | numbers | never fall from one forward to the next, may stay or skip some, and are never above the newest |
# | memory | alive are the versions from the last number that was asked for (0 at first) up to the newest, and those of backwards still to come: no others, and none twice |
#
# **Invariant:** no version changes that is still needed, since autograd holds the very tensor that `forward` returned. Keep versions as tensors. Several stores may be in use at once. About 14 lines.
#
# <details><summary>Hint</summary>
#
# Two dictionaries: versions by their number, and what each micro-batch under way uses. When a forward asks for a number, older versions can leave the first; what the second points to stays.
#
# </details>


# %% nbgrader={"grade_id": "store", "solution": true}
class Store:
    """A stage's weights, in versions with numbers."""

    def __init__(self, weight):
        ### BEGIN SOLUTION
        self.newest = 0
        self.versions = {0: weight}
        self.used = {}
        ### END SOLUTION

    def forward(self, m, number):
        ### BEGIN SOLUTION
        for old in [k for k in self.versions if k < number]:
            del self.versions[old]
        self.used[m] = self.versions[number]
        return self.used[m]
        ### END SOLUTION

    def backward(self, m):
        ### BEGIN SOLUTION
        return self.used.pop(m)
        ### END SOLUTION

    def update(self, grad, rate):
        ### BEGIN SOLUTION
        new = self.versions[self.newest] - rate * grad
        self.newest += 1
        self.versions[self.newest] = new
        ### END SOLUTION


# %% nbgrader={"grade_id": "store_test", "points": 3}
check.store(Store)

# %% [markdown] nbgrader={"grade_id": "store_target"}
# **Target:** the last of four stages uses what stage 0 used, in forward and in backward, and its gradients are three updates late. (Every gradient is −1, the rate is 1, the weight starts at 0: a weight is its version's number.)

# %%
told = [max(0, m - 3) for m in range(8)]  # what stage 0 uses
got = {"told": dict(enumerate(told)), "forward": {}, "backward": {}}
with check.limit(10):
    store = Store(torch.zeros(1))
    for word in updated(3, 4, 8):
        m = int(word[1:])
        if word[0] == "U":
            store.update(-torch.ones(1), 1.0)
        elif word[0] == "F":
            got["forward"][m] = int(store.forward(m, told[m]))
        else:
            got["backward"][m] = int(store.backward(m))
study.table(
    [(name, *(row[m] for m in range(8))) for name, row in got.items()], ["micro-batch", *range(8)]
)

# %% [markdown] nbgrader={"grade_id": "two_versions_spec"}
# ## 5 · Find the bug (2 points)
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

# %% [markdown] nbgrader={"grade_id": "run_2bw_spec"}
# ## 6 · Two versions, on stages (4 points)
#
# The lesson trained stages by hand with stashing. Do it with PipeDream-2BW, and with any loss.
#
# | | |
# |---|---|
# | call | `run_2bw(down, up, part, words, xs, ys, loss_fn, rate, m)` |
# | `down`, `up` | a Comm for activations, one for gradients; the same ranks, and rank r is stage r |
# | `part` | this stage's `nn.Module`; its output has the shape of its input |
# | `words` | this stage's list: 1F1B, with a U right after the last B of each group |
# | `m` | micro-batches of a group, at least S; micro-batch i is in group i // m, and the last group may be smaller |
# | `xs`, `ys` | M micro-batches, the last one smaller, and targets; numbers count on stage 0 and the last; **not changed** |
# | `loss_fn` | `loss_fn(output, y)`: the mean loss of a micro-batch |
# | afterwards | the parameters of `part` are the newest version |
# | returns | nothing |
# | cost | M messages down an edge, M up; each F runs `part` once; each B frees what its F kept |
# | memory | in a forward two versions at most, the sum of a group's gradients, and the gradients of the last backward |
#
# **Invariant:** group g uses version max(0, g − 1) on all stages, in forward and in backward. Its U makes version g + 1: the newest, minus the rate times the mean of the gradients of the group's micro-batches, each counted once, however small it is. Start sends with `isend`, and wait for all of them at the end. A `nan` goes on its way. About 35 lines.
#
# <details><summary>Hint</summary>
#
# As in the lesson, a version is a dictionary {name: tensor that requires a gradient}, and `functional_call(part, version, x)` runs the part with it. Group g enters when version g − 1 is the newest or the one before the newest, depending on whether the update of group g − 1 has been made: keep both, and how many updates there have been. Keep `(x, y, version)` of each micro-batch. `torch.autograd.grad(y, [x, *version.values()], dy)` gives all gradients.
#
# </details>


# %% nbgrader={"grade_id": "run_2bw", "solution": true}
def run_2bw(down, up, part, words, xs, ys, loss_fn, rate, m):
    """Train this stage by its list, in groups of m; leave the newest weights in `part`."""
    ### BEGIN SOLUTION
    stage = down.rank
    last = down.size - 1
    kept = {}
    sends = []
    newest = {name: p.detach().clone().requires_grad_() for name, p in part.named_parameters()}
    versions = {0: newest}
    updates = 0
    total = None
    count = 0
    for word in words:
        kind, i = word[0], int(word[1:])
        if kind == "F":
            version = versions[max(0, i // m - 1)]
            x = down.recv(torch.empty_like(xs[i]), stage - 1) if stage > 0 else xs[i]
            x = x.detach().requires_grad_()
            y = functional_call(part, version, x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[i])
            kept[i] = x, y, version
        elif kind == "B":
            x, y, used = kept.pop(i)
            dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
            dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
            if stage > 0:
                sends.append(up.isend(dx, stage - 1))
            total = grads if total is None else [t + g for t, g in zip(total, grads)]
            count += 1
        else:
            updates += 1
            newest = {
                name: (w - rate * t / count).detach().requires_grad_()
                for (name, w), t in zip(newest.items(), total)
            }
            versions = {updates - 1: versions[updates - 1], updates: newest}
            total = None
            count = 0
    for work in sends:
        work.wait()
    with torch.no_grad():
        for name, p in part.named_parameters():
            p.copy_(newest[name])
    ### END SOLUTION


# %% nbgrader={"grade_id": "run_2bw_test", "points": 4}
check.run_2bw(run_2bw)

# %% [markdown] nbgrader={"grade_id": "run_2bw_target"}
# **Target:** the losses of three stages and those of one are the same, because a gradient is one update late on all stages, however many there are.


# %%
def program(comm, M):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(3)]
    part = nn.Sequential(*layers[3 * comm.rank // comm.size : 3 * (comm.rank + 1) // comm.size])
    xs = list(torch.randn(M, 16, 4, dtype=torch.float64))
    ys = [x.flip(1) for x in xs]
    losses = []

    def loss_fn(y, target):
        losses.append(mse_loss(y, target))
        return losses[-1]

    down, up = (comm.split([0] * comm.size) for _ in range(2))
    words = updated(comm.rank, comm.size, M, 3)
    run_2bw(down, up, part, words, xs, ys, loss_fn, 0.2, 3)
    return [float(loss.detach()) for loss in losses]


with check.limit(20):
    losses = {n: World(n).run(program, 120)[-1] for n in (1, 3)}
study.curves(
    {"1 stage": (range(120), losses[1])},
    points={"3 stages": (range(0, 120, 6), losses[3][::6])},
    xlabel="micro-batches",
    ylabel="loss",
    title="Your stages learn",
)

# %% [markdown] nbgrader={"grade_id": "predict_pipedream_spec"}
# ## 7 · Predict, then count (2 points)
#
# 8 stages, each with 100 MB (100,000,000 bytes) of weights. Stage 0 also holds the embedding, and has 200 MB. 600 micro-batches come, and Adam makes the updates. Of 2BW the groups have m = 10 micro-batches. Messages and updates take no time.
#
# - `stage_bytes`: bytes of stage 2 at the peak, with stashing: all versions of its weights (the newest counts) and Adam's two moments, each as large as the weights
# - `stash_bytes`: bytes of all versions of weights at the peak, of all 8 stages together, with stashing
# - `vertical_bytes`: the same with vertical sync
# - `two_bytes`: the same with PipeDream-2BW
# - `updates`: how many updates does a stage make, with 2BW?
# - `gain`: how many times as fast are the 600 micro-batches in 2BW's stream as in steps of 10 with a flush after each (1F1B)?
# - `rates`: how many times as large a learning rate does 2BW bear as that stage of PipeDream with stashing whose gradients are late by most updates? (By the lesson's formula for one weight.)
#
# Write numbers or formulas, right within 1 %. You may use `math`.

# %% nbgrader={"grade_id": "predict_pipedream", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_pipedream.numbers(STUDENT)
stage_bytes = stash_bytes = vertical_bytes = two_bytes = updates = gain = rates = None
### BEGIN SOLUTION
import math

S = 8
M = 600
m = 10
each = 100e6
stage_bytes = (S - 2 + 2) * each
stash_bytes = (S * (S + 1) / 2 + S) * each
vertical_bytes = S * (S + 1) * each
two_bytes = 2 * (S + 1) * each
updates = M / m
gain = M / m * (m + S - 1) / (M + S - 1)
rates = math.sin(math.pi / 6) / math.sin(math.pi / (4 * (S - 1) + 2))
### END SOLUTION

# %% nbgrader={"grade_id": "predict_pipedream_test", "points": 2}
check.predict_pipedream(
    stage_bytes, stash_bytes, vertical_bytes, two_bytes, updates, gain, rates, of=STUDENT
)

# %% [markdown] nbgrader={"grade_id": "predict_pipedream_target"}
# **Target:** your numbers beside those that are counted from lists of 8 stages, without a formula.

# %%
with check.limit(20):
    stream = [parse(" ".join(updated(s, 8, 600))) for s in range(8)]
    groups = [parse(" ".join(updated(s, 8, 600, 10))) for s in range(8)]
    step = [parse(" ".join(one_f_one_b(s, 8, 10))) for s in range(8)]
    sizes = [200e6] + [100e6] * 7
    counted = {"stashing": held(stream), "vertical": held(stream, "first")}
    counted["2bw"] = held(groups, "2bw", 10)
    peaks = {name: [max(row) for row in rows] for name, rows in counted.items()}
    together = {
        name: sum(size * peak for size, peak in zip(sizes, row)) for name, row in peaks.items()
    }


def shrinks(late, rate):
    """Whether the lesson's one weight goes to 0, with gradients that are `late` updates late."""
    w = [1.0]
    for t in range(3000):
        w.append(w[t] - rate * w[max(0, t - late)])
    return max(map(abs, w[-50:])) < 1


largest = {}
for late in (1, 7):
    low, high = 0.0, 2.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if shrinks(late, middle) else (low, middle)
    largest[late] = low
rows = [
    ("stage_bytes", stage_bytes, round(sizes[2] * (peaks["stashing"][2] + 2))),
    ("stash_bytes", stash_bytes, round(together["stashing"])),
    ("vertical_bytes", vertical_bytes, round(together["vertical"])),
    ("two_bytes", two_bytes, round(together["2bw"])),
    ("updates", updates, sum(action.kind == "U" for action in groups[0])),
    ("gain", gain, round(60 * simulate(step).time / simulate(groups).time, 3)),
    ("rates", rates, round(largest[1] / largest[7], 2)),
]
study.table(rows, ["", "predicted", "counted"])

# %% [markdown] nbgrader={"grade_id": "late_or_idle_spec"}
# ## 8 · Late, or idle? (2 points, graded by hand)
#
# A pipeline of 4 stages either waits (1F1B with a flush), or its gradients are late (2BW). Take the same batch for both: m micro-batches for one update, so that each update has an equally good gradient. A flush makes the time of an update (m + 3) · 3 slots instead of 3m, and a late gradient may need more updates. Which is worse?
#
# Let a model be two weights that do not touch each other, both from 1 to 0, with slopes of 1 and of 1/20: in each update a weight w becomes w − rate · slope · (w of d updates ago), with d = 0 for the flush and d = 1 for 2BW. The model has learned when both weights stay below 0.01.
#
# **With one and the same learning rate for both, from which rate on does the flush reach the goal sooner, for m = 4 and for m = 32? And which of the two is sooner if each may choose its best rate?**
#
# First draw the time to the goal against the learning rate, for both and for both m. Here you may use everything. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes and a legend, from which one sees the crossings; the crossings, and who is sooner at the best rates, for both m, in numbers |
# | ½ | the reasons: why a late gradient hardly costs anything at small rates, where the limits of the rate lie, and what m changes and what it does not |
# | ½ | why PipeDream with stashing, with an update for each micro-batch, cannot simply be drawn beside them; and one thing that a real model has and these two weights have not |


# %% nbgrader={"grade_id": "late_or_idle_plot", "solution": true}
### BEGIN SOLUTION
def updates_to_goal(rate, late, slopes=(1, 1 / 20), most=1500):
    """How many updates until both weights stay below 0.01; None if they do not within `most`."""
    slowest = 0
    for slope in slopes:
        w = [1.0]
        for t in range(most):
            w.append(w[t] - rate * slope * w[max(0, t - late)])
        above = [t for t, value in enumerate(w) if not abs(value) < 0.01]
        if above[-1] == most:
            return None
        slowest = max(slowest, above[-1] + 1)
    return slowest


rates_tried = [k / 100 for k in range(10, 200)]
counts = {late: {rate: updates_to_goal(rate, late) for rate in rates_tried} for late in (0, 1)}
drawn = {}
for m in (4, 32):
    for name, late, slots in (("flush", 0, 3 * (m + 3)), ("2BW", 1, 3 * m)):
        times = {rate: slots * n for rate, n in counts[late].items() if n is not None}
        drawn[m, name] = times
        best = min(times, key=times.get)
        print(f"m = {m}, {name}: best at {best}, {counts[late][best]} updates, {times[best]} slots")
    two, flush = drawn[m, "2BW"], drawn[m, "flush"]
    sooner = [rate for rate in flush if flush[rate] < two.get(rate, 1e9)]
    print(
        f"m = {m}: the flush is sooner from {sooner[0]} on, 2BW still at {max(set(two) - set(sooner))}"
    )
    print({rate: (flush[rate], two.get(rate)) for rate in (0.1, 0.5, 0.9)})
study.curves(
    {f"{name}, m = {m}": (list(row), list(row.values())) for (m, name), row in drawn.items()},
    xlabel="learning rate",
    ylabel="slots to the goal",
    logy=True,
    title="Late, or idle?",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "late_or_idle", "solution": true, "points": 2}
# With one rate for both, the flush is sooner from 0.95 on if m = 4, and from 0.92 on if m = 32. Below that 2BW wins: at a rate of 0.5 by 44 % of the time with m = 4 (2,136 slots against 3,822), by 11 % with m = 32 (17,088 against 19,110). If each takes its best rate, the flush wins for both: at 1.87 it needs 47 updates, and 2BW at 0.9 needs 96. That is 987 slots against 1,152 with m = 4, and 4,935 against 9,216 with m = 32.
#
# At a small rate hardly anything changes in one update, so the gradient of one update ago is almost the right one, and both need the same number of updates. Then only the bubble counts: 2BW is (m + 3)/m times as fast. The weight with the slope of 1 sets the limit: by the lesson's formula 2 for the flush and 1 for 2BW. Near its limit a weight swings for a long time, and the number of updates grows without end: that is where the lines cross, and why they cross at almost the same rate for any m. The other weight sets the number of updates, and needs a rate as large as possible, so with twice the rate the flush needs half as many updates.
#
# How many updates are needed does not depend on m, only what one costs. The bubble is worth a factor of 1.75 at m = 4 and of 1.09 at m = 32; being late costs a factor of two for those who go to the limit, and nothing for those who stay far below it.
#
# PipeDream with stashing makes an update for each micro-batch, so in this model, where a micro-batch has no noise, it would make m times as many updates for nothing. In truth the gradient of one micro-batch is noisier than the mean of m, and bears a smaller rate. Its stages are also late by different numbers of updates. And a real model has slopes that change while it learns, and far more than two: whether a rate is near the limit is not known beforehand. (Momentum, which these weights have not, makes late gradients worse.)
