# %% [markdown] nbgrader={"grade_id": "top"}
# # 17 Schedules: exercises
#
# You find out why lists hang, write interleaved lists for groups of any size, cut a backward in two, and hold back W's where stages have unequal room.
#
# Six exercises, 14 points. After each of the first five, run the check. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The last exercise is graded by hand.
#
# A schedule is a list of words for each stage, as in the lesson: `F3`, `B3`, `I3`, `W3`, and with chunks `F3.1` for the forward of micro-batch 3 through chunk 1. Chunk 0 is not written: `F3`, not `F3.0`. Stages, micro-batches and chunks are numbered from 0, and the parts of the model lie in a loop: chunk c of stage s is part c · S + s. What is refused is the library's own `minidist.parallel`, and PyTorch's pipelines.

# %% nbgrader={"grade_id": "setup"}
from functools import partial

import torch

import minicheck as check

from minidist import study
from minidist.parallel import schedules
from minidist.parallel.schedules import in_flight, parse
from minidist.parallel.simulate import grid, simulate


def lists(schedule, S, *args):
    """The lists of all stages, as `grid` and `simulate` read them."""
    return [parse(" ".join(schedule(stage, S, *args))) for stage in range(S)]


# %% [markdown] nbgrader={"grade_id": "what_hangs_spec"}
# ## 1 · Who is the cause? (3 points)
#
# When lists hang, the lesson's clock names every stage that does not end. Most of them are innocent: they wait for somebody who waits for somebody else. Find those who are the cause.
#
# | | |
# |---|---|
# | call | `what_hangs(lists, v)` |
# | `lists` | for each stage a list of words, with F's, B's, I's and W's; **not changed** |
# | `v` | the chunks of each stage |
# | returns | a list of pairs `(stage, word)`; `[]` if all lists come to their end |
#
# **Invariant:** each stage does its list in order, and goes on as far as it can. An action needs what the table of the lesson says, of its part of the model and the parts beside it: `F3` the activation from the part before, `B3` or `I3` the `F3` of its own part and a gradient from the part after, `W3` the gradient that its own `I3` has made. When nothing moves any more, each stage that is not done stands at a word. It waits for the stage that will still do what is missing.
#
# - If stages wait for each other **in a circle**, return this circle: each waits for the next in your list, and the last for the first. You may begin with any of them. With chunks the circle can have more than two stages.
# - If a stage waits for what **nobody** will ever do, return this stage alone. Either no list still has what is missing, or it should have been done by the stage itself, before. What must come from its own stage is looked at first.
# - If there are several causes, return any one of them.
#
# About 32 lines.
#
# <details><summary>Hint</summary>
#
# Let a word give (kind, micro-batch, part), with one kind for activations and one for gradients. The part tells the stage that must give what is missing: part % S. When nothing moves any more, begin with any stage that stands still and go from each to the one that it waits for. In the end you come to one that you have seen, or to one that waits in vain.
#
# </details>


# %% nbgrader={"grade_id": "what_hangs", "solution": true}
def what_hangs(lists, v):
    """The circle of stages that wait for each other, or the one that waits in vain; [] if all end."""
    ### BEGIN SOLUTION
    S = len(lists)
    last = S * v - 1

    def read(stage, word):
        """What a word gives, and what it needs: kind, micro-batch and part of each."""
        micro, _, chunk = word[1:].partition(".")
        part = int(chunk or 0) * S + stage
        if word[0] == "F":
            return ("activation", micro, part), [("activation", micro, part - 1)] * (part > 0)
        if word[0] == "W":
            return ("weight", micro, part), [("gradient", micro, part)]
        after = [("gradient", micro, part + 1)] * (part < last)
        return ("gradient", micro, part), [("activation", micro, part), *after]

    there = set()
    position = [0] * S
    moved = True
    while moved:
        moved = False
        for s, words in enumerate(lists):
            while position[s] < len(words):
                gives, needs = read(s, words[position[s]])
                if any(need not in there for need in needs):
                    break
                there.add(gives)
                position[s] += 1
                moved = True
    stuck = {s: words[position[s]] for s, words in enumerate(lists) if position[s] < len(words)}
    if not stuck:
        return []
    path = []
    s = min(stuck)
    while s not in path:
        path.append(s)
        needs = read(s, stuck[s])[1]
        missing = next(need for need in needs if need not in there)
        other = missing[2] % S
        to_come = [read(other, word)[0] for word in lists[other][position[other] :]]
        if other == s or missing not in to_come:
            return [(s, stuck[s])]
        s = other
    circle = path[path.index(s) :]
    return [(s, stuck[s]) for s in circle]
    ### END SOLUTION


# %% nbgrader={"grade_id": "what_hangs_test", "points": 3}
check.what_hangs(what_hangs)

# %% [markdown] nbgrader={"grade_id": "what_hangs_target"}
# **Target:** nobody in the first row. In the second, stages 2 and 3 in a circle, although all four stages hang. In the third, where each stage has two chunks, a circle that goes round all three stages.

# %%
EXAMPLES = {
    "1F1B": (1, "F0 F1 B0 B1 | F0 B0 F1 B1"),
    "two of four": (1, "F0 F1 B0 B1 | F0 F1 B0 B1 | F0 B0 F1 B1 | F0 F1 B0 B1"),
    "all the way round": (
        2,
        "F0 F0.1 F1 F1.1 B0.1 B0 B1.1 B1 | F0 F0.1 F1 F1.1 B0.1 B0 B1.1 B1 | F1 F0 F0.1 F1.1 B0.1 B0 B1.1 B1",
    ),
}
rows = []
with check.limit(10):
    for name, (v, text) in EXAMPLES.items():
        found = what_hangs([row.split() for row in text.split(" | ")], v)
        rows.append((name, ", ".join(f"stage {s} at {word}" for s, word in found) or "nobody"))
study.table(rows, ["", "who is the cause"])

# %% [markdown] nbgrader={"grade_id": "interleaved_spec"}
# ## 2 · Interleaved, in groups of any size (3 points)
#
# The lesson sends micro-batches in groups of S, so S must divide M. But a group only has to be *at least* S: its first micro-batch is back when S passes are over, and if the group is larger, it waits. So any number of micro-batches that is at least S can be cut into groups. (Megatron-LM has this as well, since a message then has more time to travel.) Write the lists for groups of given sizes.
#
# | | |
# |---|---|
# | call | `interleaved(stage, S, groups, v, ahead)` |
# | `groups` | the sizes of the groups, such as `[4, 7, 5]`: each at least S, in any order; together M micro-batches |
# | `v`, `ahead` | the chunks of each stage, 1 or more; 1 or 2 |
# | returns | the list of words of this stage: an F and a B of each micro-batch through each chunk |
# | order | a group goes through one chunk after the other, then the next group comes; of backwards, from the last chunk to the first |
# | warm-up | ahead · d + (v − 1) · G forwards, d the stages after this one, G the largest group; or all of them, if there are fewer |
# | then | one forward and one backward in turn, until the forwards are used up, then the backwards that are left |
# | time | 3M + 3(S − 1)/v, if a forward of a whole stage takes 1 and a backward 2; it follows from the order |
#
# About 16 lines.
#
# <details><summary>Hint</summary>
#
# First write down all forwards in their order, with three loops: over groups, chunks, and the micro-batches of the group. Then all backwards. Then cut and mix.
#
# </details>


# %% nbgrader={"grade_id": "interleaved", "solution": true}
def interleaved(stage, S, groups, v, ahead):
    """This stage's list of words, for groups of these sizes."""
    ### BEGIN SOLUTION
    forwards = []
    backwards = []
    first = 0
    for size in groups:
        for chunk in range(v):
            for m in range(first, first + size):
                forwards.append(f"F{m}.{chunk}" if chunk else f"F{m}")
                back = v - 1 - chunk
                backwards.append(f"B{m}.{back}" if back else f"B{m}")
        first += size
    warm = min(len(forwards), ahead * (S - 1 - stage) + (v - 1) * max(groups))
    words = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards):
        words += [forward, backward]
    return words + backwards[len(forwards) - warm :]
    ### END SOLUTION


# %% nbgrader={"grade_id": "interleaved_test", "points": 3}
check.interleaved(interleaved)

# %% [markdown] nbgrader={"grade_id": "interleaved_target"}
# **Target:** 12 micro-batches on 4 stages, cut in three ways, all in 40.5 slots if messages are free. With messages that take half a forward the largest group is the fastest, and it keeps the most chunks.

# %%
rows = []
with check.limit(10):
    for groups in ([4, 4, 4], [6, 6], [12]):
        yours = lists(interleaved, 4, groups, 2, 1)
        free, slow = (simulate(yours, forward=0.5, backward=1.0, comm=c).time for c in (0, 0.5))
        rows.append((str(groups), free, slow, in_flight(yours[0])))
study.table(rows, ["groups", "slots", "slots, slow messages", "chunks kept by stage 0"])

# %% [markdown] nbgrader={"grade_id": "split_backward_spec"}
# ## 3 · A backward in two (2 points)
#
# The lesson split the backward of one product. A stage has more than one: the gradient that `W` needs for the first is one that `I` makes on its way.
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
with check.limit(10):
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
# ## 4 · W's held back, where room is unequal (2 points)
#
# ZB-H1 supposes that every stage has room for S micro-batches. But the last stage may hold the projection to the vocabulary as well, and the first one the embedding. Each stage now says how many micro-batches it has room for. The forwards stay as in 1F1B; what is left for you is how many W's each stage holds back.
#
# | | |
# |---|---|
# | call | `zero_bubble(stage, S, M, room)` |
# | `room` | for each stage the micro-batches whose activations it can keep, at least S − stage; some may have more than they can use |
# | returns | the list of words of this stage: an F, an I and a W for each micro-batch |
# | memory | at any time at most `room[stage]` micro-batches have had their F, and not their W |
# | time | no longer than the fastest schedule within `room` in which each stage warms up as in 1F1B and holds back a fixed number of W's; F, I and W take 1 each. For M ≥ S that is 3M + S − 1 with room for S everywhere, and one more for each micro-batch that the stage with the least room is short of S |
# | order | W's in the order of the micro-batches, so that gradients are added up as in a serial loop |
#
# M may be smaller than S. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Of its room a stage needs S − stage without holding back anything. What of the rest is of use? A W that is held back and not done when the last gradient comes makes the step longer. On which stage does the last gradient arrive at the very end?
#
# </details>


# %% nbgrader={"grade_id": "zero_bubble", "solution": true}
def zero_bubble(stage, S, M, room):
    """1F1B with a backward in two halves; W's are held back as far as there is room and use."""
    ### BEGIN SOLUTION
    warm = min(M, S - 1 - stage)
    late = min(stage, room[stage] - (S - stage))
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
# **Target:** 27 slots with room for four everywhere, one more for each micro-batch that the last stage is short of, and nothing won by more room on the first.

# %%
rows = []
with check.limit(10):
    for room in ([4, 4, 4, 4], [4, 4, 4, 3], [4, 4, 4, 2], [4, 4, 4, 1], [7, 4, 4, 4]):
        yours = lists(zero_bubble, 4, 8, room)
        if room == [4, 4, 4, 2]:
            print(grid(yours))
        rows.append((str(room), f"{simulate(yours).time:g}", *map(in_flight, yours)))
study.table(rows, ["room", "time", *(f"stage {s} keeps" for s in range(4))])

# %% [markdown] nbgrader={"grade_id": "predict_schedules_spec"}
# ## 5 · Predict, then run (2 points)
#
# 8 stages, 48 micro-batches. F, I and W take 1 each, a B takes 2, and messages take no time. Interleaved means Megatron-LM's order with v = 3 chunks on each stage.
#
# - `interleaved_bubble`: which share of the time does a stage wait, interleaved? (A number between 0 and 1.)
# - `messages`: how many activations and gradients do all stages together send in a step, interleaved?
# - `stage_keeps`: what does stage 0 keep at the peak, interleaved, counted in micro-batches' activations of a whole stage?
# - `h1_bubble`: which share of the time does a stage wait, in ZB-H1?
# - `h2_keeps`: how many micro-batches does each stage keep in ZB-H2?
# - `short_w`: how many slots of bubble does ZB-H1 have if a W takes only 0.5?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_schedules", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_schedules.numbers(STUDENT)
interleaved_bubble = messages = stage_keeps = h1_bubble = h2_keeps = short_w = None
### BEGIN SOLUTION
S = 8
M = 48
v = 3
interleaved_bubble = (S - 1) / (v * M + S - 1)
messages = 2 * M * (v * S - 1)
stage_keeps = (2 * (S - 1) + (v - 1) * S + 1) / v
h1_bubble = (S - 1) / (3 * M + S - 1)
h2_keeps = 2 * S - 1
short_w = (S - 1) * (1 + 1 - 0.5)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_schedules_test", "points": 2}
check.predict_schedules(
    interleaved_bubble, messages, stage_keeps, h1_bubble, h2_keeps, short_w, of=STUDENT
)

# %% [markdown] nbgrader={"grade_id": "predict_schedules_target"}
# **Target:** your numbers beside those of the lists.

# %%
with check.limit(20):
    three = schedules.lists(partial(schedules.interleaved, v=3), 8, 48)
    h1, h2 = (schedules.lists(some, 8, 48) for some in (schedules.zb_h1, schedules.zb_h2))
    pieces = simulate(three, forward=1 / 3, backward=2 / 3)
    short = simulate(h1, weight=0.5)
sent = (
    sum(map(len, three)) - 2 * 48
)  # each action sends one; not the loss's F, not the first part's B
rows = [
    ("interleaved_bubble", interleaved_bubble, f"{pieces.bubble:.4f}"),
    ("messages", messages, sent),
    ("stage_keeps", stage_keeps, f"{in_flight(three[0]) / 3:.2f}"),
    ("h1_bubble", h1_bubble, f"{simulate(h1).bubble:.4f}"),
    ("h2_keeps", h2_keeps, in_flight(h2[0])),
    ("short_w", short_w, f"{short.time - 48 * 2.5:g}"),
]
study.table(rows, ["", "predicted", "counted"])

# %% [markdown] nbgrader={"grade_id": "between_nodes_spec"}
# ## 6 · When does interleaving between nodes lose? (2 points, graded by hand)
#
# A model lies on 8 stages, and a step has 16 micro-batches. A forward of a whole stage takes 20 ms, a backward twice as long, and a message carries 134 MB. Four schedules are possible: 1F1B, 1F1B that sends twice as many forwards ahead (your `interleaved` with v = 1 and `ahead` = 2), and interleaving with v = 2 and v = 4, `ahead` = 2, each with groups of 8.
#
# **How slow may messages be, in forwards of a stage, until each schedule stops being the fastest? Which of them do you take if each stage is a GPU of one node, with 450 GB/s, and which if each stage is on a node of its own, with 25 GB/s or with 10 GB/s for each GPU?**
#
# First draw the time of a step against the time of a message for the four. Here you may use everything, the library's `simulate` with its `comm` as well. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes and a legend, from which one sees where the lines cross; the crossings in forwards of a stage, and a schedule for each of the three links |
# | ½ | the reason: what a better bubble wins, how many messages stand on the way out and home again, and why plain 1F1B loses to 1F1B that sends twice as many ahead |
# | ½ | what changes with 64 micro-batches, in slots and as a share of the step; and what the fastest schedule costs in memory on stage 0 |

# %% nbgrader={"grade_id": "between_nodes_plot", "solution": true}
### BEGIN SOLUTION
WAYS = {
    "1F1B": (1, 1),
    "1F1B, twice ahead": (1, 2),
    "interleaved, v = 2": (2, 2),
    "interleaved, v = 4": (4, 2),
}
cs = [k / 100 for k in range(0, 101, 2)]
drawn = {}
for M in (16, 64):
    for name, (v, ahead) in WAYS.items():
        some = lists(interleaved, 8, [8] * (M // 8), v, ahead)
        times = [simulate(some, forward=1 / v, backward=2 / v, comm=c).time for c in cs]
        drawn[M, name] = times
        if M == 16:
            print(name, "keeps", in_flight(some[0]) / v, "micro-batches on stage 0")
    best = [min(WAYS, key=lambda name: drawn[M, name][i]) for i in range(len(cs))]
    for i in range(1, len(cs)):
        if best[i] != best[i - 1]:
            print(f"M = {M}: from c = {cs[i]} on {best[i]} is the fastest, after {best[i - 1]}")
for bandwidth in (450e9, 25e9, 10e9):
    c = 134e6 / bandwidth / 20e-3
    at = {name: drawn[16, name][min(50, round(50 * c))] for name in WAYS}
    print(f"{bandwidth / 1e9:g} GB/s: c = {c:.3f},", {name: round(t, 1) for name, t in at.items()})
study.curves(
    {name: (cs, drawn[16, name]) for name in WAYS},
    xlabel="time of a message, in forwards of a stage",
    ylabel="slots of a step",
    title="Eight stages, 16 micro-batches",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "between_nodes", "solution": true, "points": 2}
# With v = 4 a step is the shortest up to c = 0.16, with v = 2 from there to c = 0.62, and then 1F1B that sends twice as many ahead. Plain 1F1B is never the fastest.
#
# At 450 GB/s a message takes 0.3 ms, c = 0.015, and I take v = 4: 54 slots instead of 69. At 25 GB/s it takes 5.4 ms, c = 0.27, and I take v = 2: 66 slots, and 73 with v = 1 twice ahead. At 10 GB/s c = 0.67, and interleaving loses: 80 slots with v = 2 and 110 with v = 4, against 78.
#
# The bubble is 21/v slots, so v = 2 wins 10.5 slots over 1F1B and v = 4 wins 15.75. There are 8v − 1 edges on the way out and as many on the way home, so a step grows by 14c with v = 1, by 30c with v = 2 and by 62c with v = 4, as long as a message is hidden in every turn. From some c on it is not (with v = 4 a turn takes only 0.75 slots), and the lines become steeper. That is why v = 2 loses at 0.62 already and not at 10.5/16 = 0.66. Plain 1F1B is only just far enough ahead for messages that take no time, so it waits in every turn: 40c.
#
# With 64 micro-batches the gain without messages is the same 10.5 slots, and the trips are as long, so v = 4 gives way to v = 2 at the same c. But the step is three times as long: v = 2 saves 15 % of it with 16 micro-batches, and 5 % with 64. Once messages no longer hide in a turn, each further turn pays, and v = 2 loses from 0.54 on.
#
# On stage 0 plain 1F1B keeps 8 micro-batches, v = 4 keeps 9.75, v = 2 keeps 11.5, and 1F1B twice ahead keeps 15. Where links are slow one pays for time with memory.
