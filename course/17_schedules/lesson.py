# %% [markdown]
# # 17 · Schedules
#
# [Pipelines](lesson:pipelines) ended with 1F1B: four stages, eight micro-batches, and still 27 % of the time lost in the [bubble](term:bubble). More micro-batches make it smaller, but the batch is what the optimizer wants and not what the pipeline wants, and a micro-batch that is too small wastes the GPU in another way.
#
# Nothing in a pipeline says that a stage has to work in the order of 1F1B. The order is a list, and a list can be changed. In this lesson we derive two better ones, [interleaved](term:interleaved-schedule) and **zero bubble**, from a single argument about the last gradient of a step, and we find out when they are worse.
#
# **Take four stages and eight micro-batches, and let no stage have more than four of them under way, as in 1F1B. To what share of the time can the best schedule of this lesson bring the loss down?**

# %%
guess = 27.0  # per cent, which is what 1F1B loses: change this number

# %% [markdown]
# ## On paper: a backward in two halves
#
# Take the smallest stage there is: it multiplies its input by one weight, 3. Two micro-batches have come by, with the inputs 2 and 4, so the outputs were 6 and 12. Now the gradients of the outputs come back from the right: 5 and 1.
#
# The stage owes two things. The stage *before* waits for the gradient of the input, 5 · 3 = 15 and 1 · 3 = 3. The *optimizer* waits for the gradient of the weight, 2 · 5 + 4 · 1 = 14. Both need the gradient that came in. Neither needs the other.
#
# ![A product y = x·W. Its backward has two halves. I computes the input's gradient, dx = dy·Wᵀ, and the stage before waits for it. W computes the weight's gradient, dW = xᵀ·dy, and nobody waits for it until the update.](../course/17_schedules/figures/split_backward.svg)
#
# PyTorch computes both at once, and in the last lesson `B` was both. Here we tell them apart: `I` is the backward for the *i*nput, `W` the backward for the *w*eights. For a layer that multiplies matrices, each costs about as much as the forward `F`, so that `B`, which is `I` and `W`, costs two forwards. Written out for a matrix:

# %%
from functools import partial

import torch
from IPython.display import display
from torch import nn

from minidist import study
from minidist.comm import World, launch
from minidist.comm.cluster import H100, Cluster


class Product:
    """y = x·W, with a backward in two halves."""

    def __init__(self, weight):
        self.weight = weight
        self.weight_grad = torch.zeros_like(weight)
        self.inputs = {}  # kept for W
        self.output_grads = {}  # what I leaves for W

    def whole_F(self, m, x):
        self.inputs[m] = x
        return x @ self.weight

    def half_I(self, m, dy):
        self.output_grads[m] = dy
        return dy @ self.weight.T  # goes to the stage before, at once

    def half_W(self, m):
        self.weight_grad += self.inputs.pop(m).T @ self.output_grads.pop(m)


stage = Product(torch.tensor([[3.0]]))
print("outputs:", [float(stage.whole_F(m, torch.tensor([[x]]))) for m, x in enumerate([2.0, 4.0])])
print(
    "inputs' gradients:",
    [float(stage.half_I(m, torch.tensor([[dy]]))) for m, dy in enumerate([5.0, 1.0])],
)
for m in (1, 0):  # in any order, at any time
    stage.half_W(m)
print("weight's gradient:", float(stage.weight_grad))

# %% [markdown]
# Note what `I` costs in memory: nothing is freed. The input stays until `W` has used it. A schedule that puts `W` off keeps activations longer, and we shall have to count that.
#
# ## A schedule is data
#
# A list of words for each stage says everything. From the words alone one can tell what each action needs, and from whom:
#
# | action | needs, from its own stage | needs, from a neighbour |
# |---|---|---|
# | `F3` | | the activation that `F3` of the stage before made |
# | `B3` or `I3` | `F3` | the gradient that `B3` or `I3` of the stage after made |
# | `W3` | `I3` | |
#
# (The first stage has nobody before it: its inputs come from the batch. The last has nobody after it: its first gradient comes from the loss.)
#
# So the messages need not be written down, a clock can be run over the lists, and mistakes can be found before anything runs. A clock is a few lines. Each stage does its list in order; an action starts when its stage is free and what it needs is there. If a whole round over the stages moves nothing, and somebody is not done, they wait for each other in a circle: the program would hang.

# %%
SECONDS = {"F": 1, "B": 2, "I": 1, "W": 1}


def needs(kind, m, s, S):
    """What an action of stage s needs, as (what, micro-batch, the stage that makes it)."""
    if kind == "F":
        return [("activation", m, s - 1)] if s > 0 else []
    if kind == "W":
        return [("gradient", m, s)]  # its own stage's I has to be over
    if s == S - 1:
        return [("activation", m, s)]  # the last stage's gradient comes from its own loss
    return [("activation", m, s), ("gradient", m, s + 1)]


# A W makes nothing that an action waits for.
MAKES = {"F": "activation", "B": "gradient", "I": "gradient", "W": "weight gradient"}


def clock(lists):
    """When the last action ends, and what hangs: the first word of each stage that never starts."""
    S = len(lists)
    ended = {}  # when each thing was made
    free = [0] * S  # since when each stage has nothing to do
    position = [0] * S  # how far each stage is in its list
    moved = True
    while moved:
        moved = False
        for s, words in enumerate(lists):
            while position[s] < len(words):
                kind, m = words[position[s]][0], words[position[s]][1:]
                waits_for = needs(kind, m, s, S)
                if any(item not in ended for item in waits_for):
                    break  # another stage first
                start = max([free[s]] + [ended[item] for item in waits_for])
                free[s] = start + SECONDS[kind]
                ended[MAKES[kind], m, s] = free[s]
                position[s] += 1
                moved = True
    stuck = {s: words[position[s]] for s, words in enumerate(lists) if position[s] < len(words)}
    return max(free), stuck


text = """
F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5
F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5
F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
"""
one_f_one_b = [line.split() for line in text.strip().splitlines()]
too_eager = [row[:] for row in one_f_one_b]
too_eager[0][2:4] = ["B0", "F2"]  # allowed: one forward fewer to warm up
hangs = [row[:] for row in one_f_one_b]
hangs[0][:4] = ["F0", "B0", "F1", "F2"]
hangs[1][:3] = ["F0", "F1", "B0"]
hangs[2][:4] = ["F0", "F1", "B0", "B1"]
rows = []
for name, lists in (("1F1B", one_f_one_b), ("B0 before F2", too_eager), ("B0 waits for F1", hangs)):
    time, stuck = clock(lists)
    said = ", ".join(f"stage {s} at {word}" for s, word in stuck.items())
    rows.append((name, "–" if stuck else time, said or "nobody"))
study.table(rows, ["3 stages, M = 6", "slots", "hangs"], title="A clock over lists")

# %% [markdown]
# The second row changes one thing, and it still ends, but stage 0 has sent too little ahead, and the others wait for it. In the third, stage 0 does not start `F1` before `B0` has come back, and stage 2 does not start `B0` before it has had `F1`. That is a circle, and no patience helps.
#
# The library's `validate` does this with an explanation in words, `simulate` is the clock, and `grid` prints what it finds. From here on we use these three. They take lists of actions instead of words: `parse` turns a line of words into actions, and `schedules.lists(rule, S, M)` asks one of the library's rules for the lists of all S stages. In a grid each column is one slot of time, `──` means that the action before goes on, and a dot is a slot in which a stage waits.

# %%
from minidist.parallel import schedules
from minidist.parallel.schedules import in_flight, parse
from minidist.parallel.simulate import grid, simulate
from minidist.parallel.validate import ScheduleError, validate

try:
    validate([parse(" ".join(row)) for row in hangs])
except ScheduleError as error:
    print(error, "\n")
print(grid(schedules.lists(schedules.one_f_one_b, 3, 6)))

# %% [markdown]
# ## Where the bubble comes from: follow the last gradient
#
# The grid above is 24 slots wide, and each stage works in 18 of them. Where do the other six come from? Look at the last stage. It has a simple life:
#
# 1. It waits until the first micro-batch has passed all the others: $(S-1)\,T_F$.
# 2. Then it works without a gap: $M\,(T_F + T_B)$.
# 3. When it is done, the gradient of its last micro-batch has to travel through all the other stages, and each does a whole backward on the way: $(S-1)\,T_B$.
#
# The three add up to the time of the step,
#
# $$T_\text{1F1B} = (S-1)\,T_F + M\,(T_F+T_B) + (S-1)\,T_B ,$$
#
# and what goes beyond the work of a stage, $M(T_F+T_B)$, is the bubble: $(S-1)(T_F+T_B)$. In the grid that is 2 · 3 = 6 slots.
#
# This little story is worth remembering, because each better schedule attacks one part of it. There are three ways to make the sum smaller:
#
# - *make the trips shorter*, so that the first micro-batch comes sooner and the last gradient is home sooner: *interleaving*;
# - *let the last gradient start earlier*, with something else for the last stage to do after it: *zero bubble*;
# - *make the trip home cheaper*, by doing only half of the backward on the way: zero bubble again.
#
# ## Interleaved: shorter trips
#
# Why does the first micro-batch take S − 1 slots to reach the last stage? Because each stage on the way does *all* of its layers. Suppose there are eight layers on four stages. Instead of layers 0 and 1, give stage 0 the layers 0 and 4; stage 1 gets 1 and 5, and so on. A stage now holds $v = 2$ [chunks](term:chunk-of-a-model) of one layer each. The model is cut into $v \cdot S$ parts, and a micro-batch comes by every stage v times.
#
# ![A model of six parts on three stages. In a loop, parts 0, 1, 2 are the first chunks of stages 0, 1, 2, and parts 3, 4, 5 their second chunks; from stage 2 a micro-batch goes back to stage 0. In a V, parts 3, 4, 5 lie on stages 2, 1, 0, so that parts 2 and 3 share a stage and the last part is where the first is.](../course/17_schedules/figures/chunks.svg)
#
# (The V in the lower half comes later.) A pass through one chunk takes only a v-th of the time. So, with $T_F$ and $T_B$ still for all chunks of a stage, the first micro-batch reaches the last stage after $(S-1)\,T_F/v$. Gradients come through the last parts of the model first. The last gradient to leave the last stage therefore leaves it from its chunk 0, and is home after $(S-1)\,T_B/v$. If the last stage again works without a gap, the story gives
#
# $$\text{bubble} = \frac{S-1}{v}\,(T_F + T_B), \qquad \frac{\text{bubble}}{\text{time}} = \frac{S-1}{vM + S - 1}.$$
#
# ### Which micro-batch next?
#
# It remains to find an order in which the last stage has no gap. Follow micro-batch 0. Let us call the work on one micro-batch in one chunk a *pass*. Stage 0 begins its pass, the other stages theirs, and S passes later micro-batch 0 is back at stage 0, for chunk 1. In the meantime stage 0 has time for exactly S passes. So let it take micro-batches 0 … S − 1 through chunk 0, and just when it is done with them, micro-batch 0 is there for chunk 1, followed by 1, 2 and so on. Then the next group of S.
#
# That is the whole rule for the forwards: **groups of S micro-batches; each group through chunk 0, then the same group through chunk 1, …; then the next group.** The k-th forward of a stage, counted from 0, belongs to group k // (S·v); within the group, each run of S passes is one chunk. The backwards have the same order with the chunks from the last to the first, since that is the way the gradients come.
#
# It also says why *S must divide M*: an incomplete group would be too short to fill the time until its first micro-batch comes round.
#
# ### How many forwards to warm up?
#
# The last stage first. Its first backward is that of micro-batch 0 through its last chunk, and before it come all forwards of the first group through the chunks before: $(v-1)\,S$ of them. From then on it alternates, one forward and one backward.
#
# A stage that lies d stages before the last one needs d more, as in 1F1B: its first gradient passes the d stages after it, and while it waits it can send that many forwards ahead. That makes $d + (v-1)\,S$. Megatron-LM, whose order everybody uses, warms up with $2d + (v-1)\,S$. Is the second d a waste of memory? Let us write the lists with either, and let the clock decide: once with messages that take no time, and once with messages that take a tenth of a forward.


# %%
def passes(kind, k, S, v):
    """The k-th forward, or backward, of a stage: which micro-batch, through which chunk."""
    group, within = divmod(k, S * v)
    chunk, member = divmod(within, S)
    if kind == "B":
        chunk = v - 1 - chunk  # gradients come from the last chunk first
    return f"{kind}{group * S + member}.{chunk}"


def interleaved(stage, S, M, v=2, ahead=2):
    """1F1B with v chunks on each stage, as words."""
    count = M * v
    distance = S - 1 - stage
    warm = min(count, ahead * distance + (v - 1) * S)
    words = [passes("F", k, S, v) for k in range(warm)]
    for k in range(count - warm):  # one forward, one backward
        words.append(passes("F", warm + k, S, v))
        words.append(passes("B", k, S, v))
    for k in range(count - warm, count):
        words.append(passes("B", k, S, v))
    return words


def actions(schedule, S, M, **how):
    """All stages' lists, as the library reads them."""
    return [parse(" ".join(schedule(stage, S, M, **how))) for stage in range(S)]


rows = []
for ahead in (0, 1, 2, 3):
    lists = actions(interleaved, 4, 8, ahead=ahead)
    try:
        validate(lists, v=2)
    except ScheduleError as error:
        rows.append((f"{ahead}d + S", f"hangs at {error.action}", None, None))
        continue
    free = simulate(lists, forward=0.5, backward=1.0).time
    late = simulate(lists, forward=0.5, backward=1.0, comm=0.1).time
    rows.append((f"{ahead}d + S", free, late, max(in_flight(row) for row in lists)))
warm_up = rows
study.table(
    rows,
    ["forwards to warm up", "slots", "slots, slow messages", "chunks kept by stage 0"],
    title="Interleaved, 4 stages, 8 micro-batches, v = 2 (1F1B takes 33 slots)",
)

# %% tags=["maintainer"]
assert [row[1] for row in warm_up[1:3]] == [28.5, 28.5] and warm_up[1][2] > warm_up[2][2] + 1

# %% [markdown]
# With no forward ahead but those for the earlier chunks, neighbours take turns, and the step takes 78 slots. With free messages d is enough: 28.5 slots, 24 of work and 4.5 of bubble, half of 1F1B's nine, as the formula says. The second d pays for the messages. In the alternating phase a stage that is only d ahead needs each message at the very moment at which it is made, so it waits for every one of them, in every turn. A stage that is 2d ahead has sent one forward more for each stage on the way out *and* on the way back, and every message has a whole turn to travel in. What that costs is three chunks on stage 0. And three times d is too much: stage 0 would have to begin a forward that cannot be there before it has done a backward, which is a circle.
#
# Now the chunks can be followed in a picture. It has three stages and three micro-batches, which make one group. Stage 0 takes 0, 1 and 2 through its first chunk (light). When it is done with 2, micro-batch 0 has been all the way round and is there for the second chunk (dark). The backwards come to the second chunk first. On the last stage there is no gap between its first forward and its last backward.
#
# ![1F1B and interleaved 1F1B on three stages with three micro-batches. 1F1B takes 15 units, of which a stage waits for 6. With two chunks a stage, stage 0 does the forwards 0, 1, 2 of chunk 0, then at once 0, 1, 2 of chunk 1; the backwards of chunk 1 come before those of chunk 0. The step takes 12 units, of which a stage waits for 3.](../course/17_schedules/figures/interleaved.svg)
#
# The same as text, with a column for each half of a unit; `F2.1` is the forward of micro-batch 2 through chunk 1:

# %%
lists = actions(interleaved, 3, 3)
validate(lists, v=2)
print(grid(lists))

# %% [markdown]
# ### What it costs
#
# A message leaves after every part of the model, not after every stage. With S stages there are S − 1 edges between them, with $v \cdot S$ parts there are $vS - 1$, and every edge carries an activation out and a gradient back for each micro-batch. **How many messages does interleaving with v = 2 send on 4 stages with 8 micro-batches, where 1F1B sends 48?**

# %%
guess_messages = 48  # change this number

# %% [markdown]
# We count them in a run. The stages are those of the last lesson: 8 layers of 8,192 × 8,192, micro-batches of 4,096 rows, in a World that charges each operation the time of a modelled H100, with links of 450 GB/s and 5 µs, which carry a message of 134 MB in 0.3 ms. On the device `"meta"` tensors have a shape and no numbers, so that only the clock runs. A learned offset in front of the first layer plays the part of an embedding: without something to learn before it, the first stage would not have to compute the gradient of its input.

# %%
from minidist.parallel.pipeline import Pipeline

H, ROWS = 8192, 4096


class Offset(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.empty(H, device="meta"))

    def forward(self, x):
        return x + self.offset


def layers(count, first):
    made = [nn.utils.skip_init(nn.Linear, H, H, bias=False, device="meta") for _ in range(count)]
    return nn.Sequential(*([Offset()] if first else []), *made)


def on_stages(comm, schedule, M, v, place, rows, steps):
    """Steps of a pipeline: what each stage did in the last and when, and the most activations it kept."""
    chunks = []
    for chunk in range(v):
        first = comm.rank == 0 and chunk == 0
        chunks.append(layers(8 // comm.size // v, first))
    pipeline = Pipeline(chunks, comm, schedule, lambda y, _: y.sum(), place=place)
    x = torch.empty(rows * M, H, device="meta")
    for _ in range(steps):
        pipeline.step(M, x, x)
    return pipeline.spans, pipeline.peak


def run(schedule, M=8, v=1, place="loop", rows=ROWS, bandwidth=450e9, steps=1):
    """The World, every stage's actions, and the activations that each keeps at most."""
    world = World(4, cluster=Cluster.uniform(4, 5e-6, 1 / bandwidth, H100), device="meta")
    results = world.run(on_stages, schedule, M, v, place, rows, steps)
    return world, [spans for spans, _ in results], [peak for _, peak in results]


def waiting(world, spans):
    """The share of the time in which a stage does not compute."""
    busy = sum(end - start for row in spans for _, start, end in row)
    return 1 - busy / len(spans) / world.time


def messages(world):
    """Those with an activation or a gradient; not the few bytes that tell their shapes."""
    return sum(message.nbytes > 1e6 for message in world.trace)


plain = run(schedules.one_f_one_b)
twice = run(schedules.interleaved, v=2)
study.table(
    [
        (name, f"{waiting(world, spans):.1%}", f"{wanted:.1%}", f"{1e3 * world.time:.0f}")
        for name, (world, spans, _), wanted in (
            ("1F1B", plain, 3 / (8 + 3)),
            ("interleaved, v = 2", twice, 3 / (2 * 8 + 3)),
        )
    ],
    ["4 stages, M = 8", "bubble", "by formula", "ms a step"],
    title="Run on a modelled H100",
)

# %% tags=["answer"]
study.reveal(
    guess_messages,
    messages(twice[0]),
    study.bars(
        {
            "your guess": guess_messages,
            "1F1B": messages(plain[0]),
            "interleaved, v = 2": messages(twice[0]),
        },
        title="Messages of a step, 4 stages and 8 micro-batches",
    ),
    unit="messages",
    words="Seven edges instead of three, each with 8 activations and 8 gradients: 2 · 7 · 8. More than twice as many, since the way back from the last stage to the first is new.",
)

# %% tags=["maintainer"]
assert messages(plain[0]) == 2 * 3 * 8 and messages(twice[0]) == 2 * 7 * 8
assert abs(waiting(*plain[:2]) - 3 / 11) < 0.02 and abs(waiting(*twice[:2]) - 3 / 19) < 0.02
for stage_ in range(4):
    for v_ in (1, 2, 4):
        words_ = parse(" ".join(interleaved(stage_, 4, 8, v_)))
        assert words_ == schedules.interleaved(stage_, 4, 8, v_)

# %% [markdown]
# (The run loses a little more than the formula says, which supposes that messages take no time.)
#
# Each message is as large as before: the activation of a micro-batch has the same size between any two layers. So the bytes grow with the messages. And the stages at the front keep more: stage 0 has 11 chunks in flight, each with half a stage's activations, which makes 5.5 where 1F1B has 4.
#
# ## Zero bubble: the last gradient leaves earlier
#
# Interleaving divides the bubble. The second idea attacks it at the root, and all it needs is the backward in two halves. Replace every `B` by `I W` and nothing has changed. But now the W's can move. Read the story of the last stage once more with this freedom:
#
# 1. It waits for the first micro-batch, $(S-1)\,T_F$, as before.
# 2. It works without a gap, $M\,(T_F+T_I+T_W)$. But it may *put off its W's*: let it hold back S − 1 of them, and do them at the very end, after its last `I`. Together with the W that belongs to the last `I`, that makes S. Its last gradient then leaves $S\,T_W$ before the stage itself is done.
# 3. On the trip home each stage needs only its `I`: $(S-1)\,T_I$. Stage 0 does its last `W` when the gradient has come: $T_W$.
#
# As long as $T_W$ is at most $T_I$, the trip ends last, or at the same moment as the last stage's work, and with it the step:
#
# $$T = (S-1)\,T_F + M\,(T_F+T_I+T_W) - S\,T_W + (S-1)\,T_I + T_W .$$
#
# What goes beyond the work is $(S-1)(T_F + T_I - T_W)$. If the three times are equal, that is S − 1 slots where 1F1B has 3(S − 1): **a third of the bubble.** The schedule is called [ZB-H1](term:zb-h1).
#
# ![1F1B and ZB-H1 on three stages with four micro-batches. 1F1B takes 18 units, of which 6 are bubble. In ZB-H1 the backward is I and W; the last stage puts off its W's to the end, stage 1 fills the gaps of its drain with W's, and all end together after 14 units, 2 of them bubble.](../course/17_schedules/figures/zero_bubble.svg)
#
# ### How many W's may a stage hold back?
#
# Why S − 1, and not all of them? Memory. An activation is kept from its `F` until its `W`. In 1F1B, stage s keeps S − s micro-batches at most: the first stage S, the last only one. So the last stage can put off S − 1 W's before it keeps more micro-batches than the first stage does, and stage s can put off s. If each stage uses just this room, *all stages keep S micro-batches*, as many as the fullest stage did before.
#
# That is the rule, and with it the list can be written down: 1F1B's warm-up; then in each turn `F`, `I`, and the `W` of the micro-batch s places back; what is left comes at the end.


# %%
def zb_h1(stage, S, M):
    """1F1B with a backward in two halves, `stage` W's held back."""
    warm = min(M, S - 1 - stage)
    held_back = stage
    words = [f"F{m}" for m in range(warm)]
    for i in range(M):
        if warm + i < M:
            words.append(f"F{warm + i}")
        words.append(f"I{i}")
        if i >= held_back:
            words.append(f"W{i - held_back}")
    for m in range(max(0, M - held_back), M):
        words.append(f"W{m}")
    return words


lists = actions(zb_h1, 3, 6)
validate(lists)
print(grid(lists))

# %% [markdown]
# Check the story on this grid. Stage 2 starts after 2 slots. Its last gradient, that of `I5`, is made in slot 17, counted from 1, and three W's follow. The gradient goes to stage 1, which does its `I5` in slot 18, and to stage 0, which does `I5` and `W5` in slots 19 and 20. All three stages are done at the same moment, after 20 slots instead of 24.
#
# Now it is your turn. The editor starts from 1F1B with every `B` cut in two and nothing moved. Hold back one W on stage 1 and two on stage 2, and watch the bubble shrink. It tells you the first action that is wrong, or the time and what each stage keeps. Can you get below 14 slots? (Think of when stage 2 can begin, and how much it has to do.)


# %%
def cut_in_two(stage, S, M):
    words = []
    for action in schedules.one_f_one_b(stage, S, M):
        if action.kind == "B":
            words += [f"I{action.micro}", f"W{action.micro}"]
        else:
            words.append(str(action))
    return words


study.schedule_editor(
    {
        "1F1B, B cut in two": actions(cut_in_two, 3, 4),
        "ZB-H1": actions(zb_h1, 3, 4),
        "ZB-H2": schedules.lists(schedules.zb_h2, 3, 4),
    },
    4,
    title="Hold back the W's",
)

# %% [markdown]
# (You cannot. Stage 2 begins in the third slot and has 4 · 3 slots of work. More memory does not help it either.)
#
# ### With more memory: no bubble at all
#
# What if the last stage may hold back $2(S-1)$ W's? Then its last gradient leaves earlier still, and the same sum gives a bubble of $(S-1)(T_F+T_I-2T_W)$, which is zero if the three times are equal. The other stages must have enough to do in the meantime: they warm up with twice as many forwards. This is [ZB-H2](term:zb-h2), and it keeps $2S-1$ micro-batches on every stage.
#
# The first and the last stage then no longer end together. The last starts S − 1 slots late and ends S − 1 slots late, without a gap in between. So a single step, from the first action of any stage to the last, takes as long as with ZB-H1; what is gone is the bubble within each stage's own time, from its own first action to its own last. If the optimizer's step may begin on each stage as soon as that stage is done, the next batch follows without a gap as well. (Whoever clips gradients by their global norm has to wait for all stages, and loses this; the authors of the paper let the step begin, check the norm afterwards, and take the step back in the rare case that it was wrong.)
#
# **Which loses less of the time in a run on the modelled H100, interleaving with v = 2 or ZB-H1?**

# %%
guess_run = "interleaved"  # or "ZB-H1": which one loses less, with 4 stages and M = 8?

# %%
h1 = run(schedules.zb_h1)
h2 = run(schedules.zb_h2)
both_halves = {"1F1B": plain, "interleaved, v = 2": twice, "ZB-H1": h1, "ZB-H2": h2}


def own_time(spans):
    """The longest time that a stage takes from its own first action to its own last."""
    return max(row[-1][2] - row[0][1] for row in spans)


rows = []
for name, (world, spans, peaks) in both_halves.items():
    busy = sum(end - start for row in spans for _, start, end in row) / 4
    chunks = 2 if "interleaved" in name else 1
    kept = ", ".join(f"{peak / chunks:g}" for peak in peaks)
    fullest = max(world.trace.memory[rank].peak for rank in range(4)) / 1e9
    rows.append(
        (
            name,
            f"{waiting(world, spans):.1%}",
            f"{1 - busy / own_time(spans):.1%}",
            kept,
            f"{fullest:.2f}",
        )
    )
comparison = study.table(
    rows,
    [
        "4 stages, M = 8",
        "bubble",
        "of a stage's own time",
        "kept by stages 0 to 3",
        "GB on the fullest",
    ],
    title="Waiting, and what is kept",
)

# %% tags=["answer"]
study.reveal(
    guess_run,
    "ZB-H1",
    comparison,
    options=["interleaved", "ZB-H1"],
    words="ZB-H1 loses less, and no stage has more than four micro-batches under way. ZB-H2 loses nothing of a stage's own time, with seven.",
)

# %% tags=["maintainer"]
assert waiting(*h1[:2]) < waiting(*twice[:2]) < waiting(*plain[:2])
assert h1[2] == [4, 4, 4, 4] and h2[2] == [7, 7, 7, 7] and plain[2] == [4, 3, 2, 1]

# %% [markdown]
# Look at the last two columns. ZB-H1 keeps as many micro-batches as 1F1B's first stage, four, and still needs more bytes, 4.56 GB instead of 3.89. The reason is what `I` leaves behind: for each layer, the gradient that arrived there, which `W` will need. In these stages, which are nothing but products, that gradient is as large as the input of the layer, and so a W that is held back costs twice its activation. In a transformer it is less, because what only `I` needs, such as the input of GELU, is let go after `I`. By the authors' count a layer keeps 34 bytes for each number of its input, without attention's scores, until `I`, and 32 of them until `W`.
#
# The interactive timeline shows ZB-H1 as it ran. Look at the end of stage 3: the W's that it held back. (On stage 0, W takes longer than I, because nobody waits for the gradient of its input: what the learned offset needs is computed in W.)

# %%
study.viewer(h1[0].trace, title="ZB-H1 on four modelled H100s")

# %% [markdown]
# ## A V instead of a loop
#
# ZB-H2 needs twice the memory, because the first stage has to have so many micro-batches under way before the first gradient comes back. Whose gradient comes back first? That of the last part of the model, on the last stage. What if the last part were on the *first* stage?
#
# That is the V in the figure of the chunks. Each stage holds two chunks; the parts go down the stages and up again, so stage 0 has the first part and the last. It computes the first loss itself and can begin the first backward at once. And all stages are alike: one that holds an early part, whose activations are kept long, also holds a late one, whose are kept only for a moment. [ZB-V](term:zb-v) has no bubble in a stage's own time if the three times are equal, and keeps as much as 1F1B's first stage: 2S chunks of half a size on every stage. Its order is found by the same reasoning, but is too long to write down by hand here; it is `schedules.zb_v`, and the validator knows the V as `place="V"`.

# %%
v_shape = run(schedules.zb_v, v=2, place="V")
study.stages({"ZB-H1": h1[1], "ZB-V": v_shape[1]}, title="ZB-V: down the stages and up again")

# %% [markdown]
# So what is the answer to the question at the top?

# %% tags=["answer"]
lost = {
    name: round(100 * waiting(world, spans), 1)
    for name, (world, spans, _) in (both_halves | {"ZB-V": v_shape}).items()
    if name != "ZB-H2"
}
study.reveal(
    guess,
    lost["ZB-V"],
    study.bars(
        {"your guess": guess} | lost,
        unit="%",
        title="Time lost on four stages with 8 micro-batches",
    ),
    unit="%",
    words="What ZB-V still loses is the start: the last stage cannot begin before something has come, which is 1.5 of 25.5 slots, or 5.9 %. The rest is mostly messages. (Interleaving keeps 5.5 micro-batches on the first stage, the others at most four.)",
)

# %% tags=["maintainer"]
assert lost["ZB-V"] < lost["ZB-H1"] < lost["interleaved, v = 2"] < lost["1F1B"]
assert v_shape[2] == [8, 8, 8, 8]

# %% [markdown]
# ## The same gradient
#
# A schedule changes when something is computed and not what. The oracle is a loop over the micro-batches on one rank, in double precision. All our lists run the backwards of a part in the order of the micro-batches, so even the sums are added up in the same order, and the gradients must agree *bit for bit*. That holds for the W's as well, which come later but in the same order.

# %%
from minidist.models import mlp
from minidist.tasks import digits

WIDTHS = [64, 32, 32, 32, 32, 32, 10]


def step_gradients(comm, schedule, x, y, M, v=1, place="loop"):
    """The gradients of this stage's layers, by their place in the model."""
    model = list(mlp(WIDTHS, dtype=torch.float64))
    parts = comm.size * v
    chunks, where = [], []
    for chunk in range(v):
        part = chunk * comm.size + comm.rank
        if place == "V" and chunk == 1:
            part = parts - 1 - comm.rank
        first, end = len(model) * part // parts, len(model) * (part + 1) // parts
        chunks.append(nn.Sequential(*model[first:end]))
        where += range(first, end)
    Pipeline(chunks, comm, schedule, nn.functional.cross_entropy, place=place).step(M, x, y)
    return {f"{i} {name}": p.grad for i in where for name, p in model[i].named_parameters()}


task = digits()
x, y = task.x[:60], task.y[:60]
serial = mlp(WIDTHS, dtype=torch.float64)
for micro_x, micro_y in zip(x.chunk(6), y.chunk(6)):
    (nn.functional.cross_entropy(serial(micro_x), micro_y) / 6).backward()
wanted = {
    f"{i} {name}": p.grad for i, layer in enumerate(serial) for name, p in layer.named_parameters()
}


def compared(results):
    found = {}
    for part in results:
        found |= part
    equal = all(torch.equal(found[name], grad) for name, grad in wanted.items())
    return "bit for bit" if equal else "no"


rows = []
for name, schedule, v, place in (
    ("interleaved, v = 2", schedules.interleaved, 2, "loop"),
    ("ZB-H1", schedules.zb_h1, 1, "loop"),
    ("ZB-H2", schedules.zb_h2, 1, "loop"),
    ("ZB-V", schedules.zb_v, 2, "V"),
):
    equal = [compared(World(S).run(step_gradients, schedule, x, y, 6, v, place)) for S in (1, 2, 3)]
    rows.append((name, *equal))
study.table(
    rows, ["M = 6", "1 stage", "2 stages", "3 stages"], title="Equal to the serial gradients"
)

# %% tags=["maintainer"]
assert all(word == "bit for bit" for row in rows for word in row[1:])

# %% [markdown]
# ## Predict the cost, then run: when a better schedule is slower
#
# Every formula above supposed three things: that messages take no time, that $T_F = T_I = T_W$, and that memory is there. Let us take them away, one at a time.
#
# **Messages take time.** Let a message take c slots. As long as c is small, the step becomes k · c slots longer; the last two columns of the table below give k. On the trip of the first micro-batch the stages wait for S − 1 messages, and on the trip of the last gradient for S − 1 more, which makes $2(S-1)$, 6 on four stages, unless they have something else to do. And between the trips? A stage that has enough work between a message that it sends and the answer that it waits for does not notice. So it depends on how far ahead the schedule sends.

# %%
SCHEDULES = {
    "GPipe": (schedules.gpipe, 1, "loop"),
    "1F1B": (schedules.one_f_one_b, 1, "loop"),
    "interleaved, v = 2": (partial(schedules.interleaved, v=2), 2, "loop"),
    "interleaved, v = 4": (partial(schedules.interleaved, v=4), 4, "loop"),
    "ZB-H1": (schedules.zb_h1, 1, "loop"),
    "ZB-H2": (schedules.zb_h2, 1, "loop"),
    "ZB-V": (schedules.zb_v, 2, "V"),
}


def slots(name, c=0.0, t_weight=1.0, M=8):
    """The time of a step in forwards of a stage, if a message takes c and a W t_weight."""
    schedule, v, place = SCHEDULES[name]
    lists = schedules.lists(schedule, 4, M)
    times = {"forward": 1 / v, "input": 1 / v, "weight": t_weight / v}
    return simulate(lists, comm=c, place=place, **times).time


growth = []
for name in SCHEDULES:
    free = slots(name)
    longer = [(slots(name, 0.1, M=M) - slots(name, M=M)) / 0.1 for M in (8, 16)]
    growth.append((name, free, *(round(x, 1) for x in longer)))
study.table(
    growth,
    ["4 stages", "slots, M = 8, c = 0", "k, M = 8", "k, M = 16"],
    title="What messages cost",
)

# %% tags=["maintainer"]
assert [row[2] for row in growth] == [6, 16, 14, 30, 12, 3, 13]
assert [row[3] for row in growth] == [6, 28, 14, 30, 12, 3, 13]

# %% [markdown]
# GPipe waits for its two trips and for nothing else, since all forwards are sent ahead. *1F1B pays in every turn*, and the more micro-batches there are the more it pays: it keeps just as many micro-batches under way as it needs when messages are free, and not one to spare. That is what the second d of the interleaved warm-up mends: with v = 2 only the way out and home again over all seven edges is paid for, 2 · 7 = 14, whatever M is; with v = 4 it is 2 · 15. ZB-H1 warms up with no more forwards than 1F1B, and yet it does not pay in every turn: a gradient leaves after `I`, one slot earlier than after a whole `B`, and in this slot two messages have time to travel. ZB-H2, which sends twice as many ahead, pays only for the trip out.
#
# So for each schedule the step takes the slots at c = 0 and k · c more. Interleaving with v = 4 begins with the smallest bubble after ZB-V, 26.25 slots where 1F1B takes 33, but it has fifteen edges. **At which c, in forwards of a whole stage, does it become slower than 1F1B with M = 8?**

# %%
guess_c = 1.0  # forwards: change this number

# %%
cs = [k / 100 for k in range(0, 61, 2)]
shown = ["1F1B", "interleaved, v = 2", "interleaved, v = 4", "ZB-H1", "ZB-V"]
lines = {name: (cs, [slots(name, c) for c in cs]) for name in shown}
slower = next(c for c in cs if slots("interleaved, v = 4", c) > slots("1F1B", c))

# %% tags=["answer"]
study.reveal(
    guess_c,
    slower,
    study.curves(
        lines,
        xlabel="time of a message, in forwards of a stage",
        ylabel="slots of a step",
        title="Four stages, M = 8: what messages do to each schedule",
    ),
    unit="forwards",
    words="By the table the lines would cross at (33 − 26.25)/(30 − 16) = 0.48. But with v = 4 a pass takes a quarter of a forward, and a message that takes longer than a pass is felt in every turn: from there on the line is steeper.",
)

# %% tags=["maintainer"]
assert slots("1F1B") == 33 and slots("interleaved, v = 4") == 26.25
assert 0.3 < slower <= 0.5 and slots("interleaved, v = 2", 0.6) < slots("1F1B", 0.6)
for few, limit in ((16, 2), (8, 1.4), (4, 1)):
    assert slots("interleaved, v = 2", limit - 0.1, M=few) < slots("1F1B", limit - 0.1, M=few)
    assert slots("interleaved, v = 2", limit + 0.1, M=few) > slots("1F1B", limit + 0.1, M=few)

# %% [markdown]
# With few micro-batches the limit comes sooner. 1F1B pays in every turn, and then there are few turns, whereas interleaving pays for its two trips whatever *M* is. With v = 2 it becomes slower than 1F1B at about 2 forwards if *M* = 16, at 1.4 if *M* = 8, and at 1 if *M* = 4; `slots` tells.
#
# Now the same in a run. Between nodes a link has some 25 GB/s for each GPU, not 450. A micro-batch of 4,096 rows is 134 MB, which takes 5.4 ms at 25 GB/s, and a forward of two layers on the modelled H100 takes 26 ms, five times as long. We run three schedules over links that become slower and slower. What we time is the *second* step. In the first one a stage has to be told the shape of each activation before it can get ready to receive it, so that fewer messages travel while stages compute.

# %%
BANDWIDTHS = [450e9, 100e9, 50e9, 25e9, 12.5e9]


def second_step(schedule, v, bandwidth):
    """Seconds from the first action of the second step to its last, over all stages."""
    _, spans, _ = run(schedule, v=v, bandwidth=bandwidth, steps=2)
    return max(row[-1][2] for row in spans) - min(row[0][1] for row in spans)


runs = {
    name: [second_step(schedule, v, b) for b in BANDWIDTHS]
    for name, schedule, v in (
        ("1F1B", schedules.one_f_one_b, 1),
        ("interleaved, v = 2", schedules.interleaved, 2),
        ("ZB-H1", schedules.zb_h1, 1),
    )
}
study.table(
    [
        (f"{b / 1e9:g} GB/s", *(f"{1e3 * runs[name][i]:.0f}" for name in runs))
        for i, b in enumerate(BANDWIDTHS)
    ],
    ["links of", *(f"{name}, ms" for name in runs)],
    title="The same step over slower links, modelled H100s",
)

# %% tags=["maintainer"]
MESSAGE_ = 2**27 * (1 / 25e9 - 1 / 450e9)
FELT_ = [round((times[3] - times[0]) / MESSAGE_, 1) for times in runs.values()]
assert FELT_[:2] == [16, 14] and 12 <= FELT_[2] < 13, FELT_

# %% [markdown]
# Compare this with the table of k. At 25 GB/s a message takes 5.07 ms longer than at 450. For 1F1B k is 16, so the step should take 81 ms longer, and for interleaving with v = 2 it should take 14 · 5.07 = 71 ms longer. That is what the run shows: 962 instead of 881, 832 instead of 761. ZB-H1 takes 64 ms longer, where 12 · 5.07 would be 61. None of the better schedules has lost its lead on these links, and ZB-H1 has even gained on 1F1B.
#
# **W is shorter than F.** In a transformer the forward and `I` contain attention, which has no weights; `W` contains only the products with weights. The longer the sequence, the shorter is W beside F and I. What W cannot fill remains bubble: ZB-H1's $(S-1)(T_F+T_I-T_W)$ grows as W shrinks. It is still less than 1F1B's $(S-1)(T_F+T_I+T_W)$, whatever W is; but ZB-H2's bubble, $(S-1)(T_F+T_I-2T_W)$, is zero only as long as W is not shorter than the mean of F and I. Move the sliders:

# %%
study.explore(
    lambda c, w: {name: slots(name, c, w) for name in SCHEDULES},
    c=[0.0, 0.05, 0.1, 0.2, 0.3, 0.5],
    w=[1.0, 0.8, 0.6, 0.4, 0.2],
    labels={"c": "time of a message, in forwards", "w": "time of W, in forwards"},
    start={"c": 0.0, "w": 1.0},
    title="Which schedule? Slots of a step on 4 stages, M = 8",
)

# %% [markdown]
# Here are the bubble rates that the authors of the zero-bubble paper published for their own measured times, and what our clock makes of the same times. (A bubble rate is the share of bubble in a stage's own time, for the stage that takes longest. In the names p stands for the number of stages. 1F1B-I is interleaved. ZB-1p and ZB-2p are not written by a rule. They are searched for, by letting each stage choose its next action while the clock runs, with memory for S and for 2S micro-batches; the library has the search as `simulate.search`.)

# %%
from minidist.study.literature import simulated

published = [
    row
    for row in study.published("zero_bubble_rates")
    if (row["model"], row["p"], row["M"]) == ("1.5B", 8, 32)
]
ours = [simulated(row) for row in published]
study.table(
    [(r.schedule, f"{r.published:.4f}", f"{r.ours:.4f}", f"{r.waiting:.4f}") for r in ours],
    ["1.5 B parameters, 8 stages, M = 32", "published", "simulated", "waiting for every message"],
    title="Bubble rates of Qi et al.",
)

# %% tags=["maintainer"]
assert all(abs(rate.error) < 2e-4 for rate in ours)

# %% [markdown]
# One row needs a rule of its own. For 1F1B-I the paper's estimator does not wait for every message between two rounds of chunks, only for the first of each group. A real run waits for all of them, and has a little more bubble: the last column.
#
# **When not to use them.** If M is large beside S, the bubble of 1F1B is small already: with M = 8S it is less than a ninth, and nothing is simpler. Interleave inside a node, where messages are cheap; between nodes prefer a split backward, which sends no more than 1F1B. And a split backward needs a framework that lets you split it: with activation checkpointing, for instance, the forward is computed again before `I`, and what it makes has to be kept until `W`, which takes back some of the memory that checkpointing saved.
#
# ## Break it
#
# Put off an `I` and time is lost, for somebody waits for it; put off a `W` too far and memory is lost. The worst mistake is silent: a schedule in which a `W` is *missing*. Nothing hangs, the loss falls, and one micro-batch in M never trains the weights of one stage. That is why the validator counts the work before it looks at the order.

# %%
forgotten = actions(zb_h1, 3, 4)
forgotten[2] = forgotten[2][:-1]
try:
    validate(forgotten)
except ScheduleError as error:
    print(error)
late = actions(zb_h1, 3, 4)
place = [str(action) for action in late[2]].index("I1")
late[2][place : place + 2] = parse("F2 I1")
validate(late)
print(f"I1 put off behind F2 on stage 2: {simulate(late).time:.0f} slots instead of 14")
late = actions(zb_h1, 3, 4)
late[2] = parse("F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3")
validate(late)
print(
    f"W0 put off behind I3 there: {simulate(late).time:.0f} slots, {in_flight(late[2])} kept instead of 3"
)

# %% [markdown]
# ## The library's files
#
# A schedule of the library is a function that writes one stage's list, as ours do. [schedules.py](file:minidist/parallel/schedules.py) has them all; here is the one for both zero-bubble schedules by hand, in which `ahead` is 1 for ZB-H1 and 2 for ZB-H2. (A list times a condition is the list if the condition holds, and else an empty list.)

# %%
study.source(schedules._zero_bubble)

# %% [markdown]
# What an action needs, and which stage it comes from, is read from the words, for a loop and for a V. `Item("a", m, part)` is the activation that a part of the model makes of micro-batch m, `Item("g", m, part)` the gradient that it sends back. That is all the library knows about messages; the executor of the last lesson and the validator ask the same function:

# %%
from minidist.parallel.schedules import Shape

study.source(Shape.needs)

# %% [markdown]
# The validator goes through three questions, in [validate.py](file:minidist/parallel/validate.py). First it looks at each list by itself: is everything there, once, in an order that a stage can follow? (`_mistakes` yields what is wrong with one action, after those that are done; `NOUNS` has the names of the actions for the messages.) Then it lets the stages run until nothing moves, as our `clock` does. (The third is about weights that change during a step, which is the subject of [PipeDream](lesson:pipedream).)

# %%
from minidist.parallel import validate as validation

study.source(validation._first_wrong)

# %% [markdown]
# And how does one split the backward of an arbitrary module? [halves.py](file:minidist/parallel/halves.py) walks through the graph that autograd has recorded. The way from the outputs to the inputs is its *spine*; a *joint* is a place on it where a way leads aside to parameters, such as the product with a weight. Autograd computes just the gradients that it is asked for, and these two methods use that. `input` asks for the gradients of the inputs, and for those that arrive at the joints; nothing aside is computed. `weight` starts once more from each joint, with the gradient that arrived there, and asks for the parameters alone. (`_shared` and `_early` are for a parameter that is used twice in one chunk, `_direct` for an end that lies on no way to an input, and `release` lets go of what W will not need.)

# %%
from minidist.parallel.halves import Halves

display(study.source(Halves.input, docstring=False), study.source(Halves.weight, docstring=False))

# %% [markdown]
# ## In real processes, and on a cluster
#
# Here is the step with a split backward on three processes of this machine:

# %%
print("ZB-H1 on three processes:", compared(launch(step_gradients, 3, schedules.zb_h1, x, y, 6)))

# %% tags=["maintainer"]
assert (
    compared(launch(step_gradients, 3, partial(schedules.interleaved, v=2), x, y, 6, 2))
    == "bit for bit"
)

# %% [markdown]
# The course's script trains a small GPT in a pipeline with any of the schedules that need one chunk a stage. It is [examples/train_pipeline.py](file:examples/train_pipeline.py), and it prints the losses of the serial run:
#
# ```
# python examples/train_pipeline.py --ranks 3 --runner processes --schedule zb_h1
# torchrun --nproc-per-node 4 examples/train_pipeline.py --schedule zb_h2
# torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_pipeline.py
# ```
#
# ## Takeaways
#
# - A schedule is a list for each stage. What it needs, how long it takes, whether it hangs and what it keeps can all be read from it before it runs.
# - The time of a step is the trip of the first micro-batch to the last stage, the work of that stage, and the trip of the last gradient home, less what the last stage does after that gradient has left.
# - Interleaving makes the trips v times as short, in groups of S micro-batches. It sends more than v times as many messages, and S must divide M.
# - Zero bubble cuts the backward in two. The stage before waits for I; nobody waits for W, which fills the gaps. With as many micro-batches under way as in 1F1B it leaves a third of the bubble; with twice as many, or in a V, none, as long as W takes as long as F.
# - A better schedule loses where messages are slow, where W is short, or where the bubble was small already.
#
# ## Further reading
#
# - paper:narayanan2021 Interleaved 1F1B, section 2.2.
# - paper:qi2024 The split backward, ZB-H1, ZB-H2 and the search.
