# %% [markdown]
# # 16 · Pipelines
#
# A model of 8 layers lies on 4 GPUs, two layers on each. A batch goes through all four, and back, in 8
# pieces (micro-batches). One GPU alone, were it large enough, would take 2.5 s for this step.
# **How many times as fast can the four be?** No layer is computed twice, and the links are fast.

# %%
guess = 4.0  # times as fast as one: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Three ranks hold one weight each: 2, 3 and 5. Six samples pass through all three. A rank receives from the left,
# multiplies, and sends to the right. Each rank is a **stage**.

# %%
from functools import partial

import torch
from IPython.display import display
from torch import nn

from minidist import study
from minidist.comm import Deadlock, World, launch
from minidist.comm.cluster import Cluster
from minidist.comm.cluster import H100


# %%
def multiply(comm, x, M):
    weight, made = [2, 3, 5][comm.rank], []
    for part in x.chunk(M):
        if comm.rank > 0:
            part = comm.recv(torch.empty_like(part), comm.rank - 1)
        made.append(weight * part)
        if comm.rank < comm.size - 1:
            comm.send(made[-1], comm.rank + 1)
    return torch.cat(made)


samples = torch.arange(1.0, 7.0)
made = World(3).run(multiply, samples, 3)
assert torch.equal(made[2], 30 * samples)
study.holdings(
    {"samples": [samples, None, None], "what each stage makes": list(made)},
    title="Through three stages",
)

# %% [markdown]
# With `M=1` all six samples travel together, and while one rank works, two wait. With `M=3` they travel as three
# **micro-batches** of two: rank 0 works on the second while rank 1 works on the first.

# %%
from minidist.parallel import schedules
from minidist.parallel.schedules import in_flight, parse
from minidist.parallel.simulate import grid, simulate
from minidist.parallel.validate import ScheduleError, validate

print(grid([parse("F0 F1 F2")] * 3))

# %% [markdown]
# Time runs to the right, and `F1` is the forward of micro-batch 1. Each stage is busy for 3 of 5 slots. The rest is
# the **bubble**: S stages take M + S − 1 slots for M slots of work.
#
# ## Step 1: forward and backward by hand
#
# Training goes back, too. A stage keeps what its forward made, receives the gradient of its output from the right,
# runs its backward, and sends the gradient of its input to the left.


# %%
def forward(comm, part, x, spans, m):
    if comm.rank > 0:
        x = comm.recv(torch.empty_like(x), comm.rank - 1).requires_grad_()
    start = comm.now()
    y = part(x)
    spans.append((f"F{m}", start, comm.now()))
    if comm.rank < comm.size - 1:
        comm.send(y.detach(), comm.rank + 1)
    return x, y


# %%
def backward(comm, x, y, spans, m):
    dy = torch.ones_like(y)  # on the last stage: the loss is the sum of its outputs
    if comm.rank < comm.size - 1:
        comm.recv(dy, comm.rank + 1)
    start = comm.now()
    y.backward(dy)
    spans.append((f"B{m}", start, comm.now()))
    if comm.rank > 0:
        comm.send(x.grad, comm.rank - 1)


# %% [markdown]
# The 8 layers are matrices of 8,192 × 8,192, and a micro-batch has 4,096 rows. On the device `"meta"` tensors have a
# shape and no numbers, and the World charges each operation the time of an H100. The links are NVLink: 450 GB/s, 5 µs.
# As in a GPT, something behind the input is learned, too, so the backward goes all the way.

# %%
H, ROWS = 8192, 4096


class Start(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.empty(H, device="meta"))

    def forward(self, x):
        return x + self.positions


def layers(count, first):
    made = [nn.utils.skip_init(nn.Linear, H, H, bias=False, device="meta") for _ in range(count)]
    return nn.Sequential(*([Start()] if first else []), *made)


# %% [markdown]
# In which order? A stage's list of words says it. The **naive** order takes one micro-batch at a time through all
# stages and back, before the next.


# %%
def naive(stage, S, M):
    return [word for m in range(M) for word in (f"F{m}", f"B{m}")]


def by_hand(comm, schedule, M):
    part = layers(8 // comm.size, comm.rank == 0)
    x = torch.empty(ROWS, H, device="meta")
    kept = {}
    spans = []
    for word in schedule(comm.rank, comm.size, M):
        m = int(word[1:])
        if word[0] == "F":
            kept[m] = forward(comm, part, x, spans, m)
        else:
            backward(comm, *kept.pop(m), spans, m)
    return spans


# %%
def run(program, *args, n=4, ordered=False):
    world = World(
        n, cluster=Cluster.uniform(n, 5e-6, 1 / 450e9, H100), device="meta", ordered=ordered
    )
    return world, world.run(program, *args)


def waits(world, ranks):
    """The bubble: the share of the time in which a stage does not compute."""
    return (
        1 - sum(end - start for spans in ranks for _, start, end in spans) / len(ranks) / world.time
    )


# %%
(alone, _), (one_by_one, spans) = run(by_hand, naive, 8, n=1), run(by_hand, naive, 8)
assert 2.5 < alone.time < 2.55 < one_by_one.time and 0.75 < waits(one_by_one, spans) < 0.76
print(
    f"one GPU {alone.time:.2f} s, four {one_by_one.time:.2f} s; a stage waits {waits(one_by_one, spans):.0%} of it"
)
study.stages({"naive": spans}, title="Naive: one stage is busy at a time")

# %% [markdown]
# Four GPUs are a little *slower* than one. They have four times the memory, and that is all.
#
# ## Step 2: GPipe
#
# Nothing forbids to start the next micro-batch early. Gradients add up, so all forwards can go first, then all
# backwards. **Predict:** 8 micro-batches, 4 stages; which share of the time is bubble?


# %%
def gpipe(stage, S, M):
    return [f"F{m}" for m in range(M)] + [f"B{m}" for m in range(M)]


filled, spans = run(by_hand, gpipe, 8)
predicted = 3 / (8 + 3)  # S − 1 slots to fill, M to work; the backwards the same
assert abs(waits(filled, spans) - predicted) < 0.02
print(f"a stage waits {waits(filled, spans):.1%} of the time, predicted {predicted:.1%}")
study.stages({"GPipe": spans}, title="GPipe: fill, work, drain, and back again")

# %% [markdown]
# The bubble is $\frac{S-1}{M+S-1}$: stages wait for S − 1 slots, however many micro-batches there are. More
# micro-batches make it small. But look at stage 0: when `B0` comes, it keeps the activations of all M.
#
# ## Step 3: 1F1B
#
# **One forward, one backward.** A backward frees memory, so let it run as soon as it can. At the start a stage **warms
# up** with a few forwards; then it takes one forward and one backward in turn; the backwards that are left come last.
# How many forwards to warm up? A first try: as many as the stage's number. The **validator** reads the lists
# before anything runs.


# %%
def actions(rows):
    return [parse(row) for row in rows]


wrong = ["F0 B0 F1 B1 F2 B2", "F0 F1 B0 F2 B1 B2", "F0 F1 F2 B0 B1 B2"]
try:
    validate(actions(wrong))
except ScheduleError as why:
    print(why)

# %% [markdown]
# The message names the first action of a circle: each waits for the other. It must be the other way round. The last
# stage can go back at once. The gradient that stage 0 waits for has to pass all the others: it needs S − 1 forwards
# to warm up, stage s needs S − 1 − s.
#
# Below are the lists for 4 stages and 8 micro-batches. Swap two words, and see what the validator says.

# %%
mine = [
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
]
validate(actions(mine))
print(grid(actions(mine)))

# %% [markdown]
# A `B` takes two slots: it computes two gradients, that of the input and that of the weights. **Predict** the bubble,
# and what each stage keeps. `simulate` runs lists on paper; `in_flight` counts forwards whose backward has not come.

# %%
rows = []
for name, schedule in {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B, yours": lambda stage, S, M: mine[stage].split(),
}.items():
    found = actions(" ".join(schedule(stage, 4, 8)) for stage in range(4))
    rows.append((name, f"{simulate(found).bubble:.1%}", *(in_flight(one) for one in found)))
study.table(
    rows,
    ["4 stages, M = 8", "bubble", *(f"stage {s} keeps" for s in range(4))],
    title="Counted from the lists",
)

# %% [markdown]
# The same bubble as GPipe's, and at most S activations instead of M.
#
# ## Break it: one queue
#
# The list is right. Let us run the one of 2 stages by hand, as we ran the others. Rank 0 sends the activation of
# micro-batch 1, rank 1 sends the gradient of micro-batch 0, and each send waits until somebody receives.


# %%
def my_words(stage, S, M):
    return ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"][stage].split()


try:
    run(by_hand, my_words, 3, n=2)
except Deadlock as why:
    print(why)

# %% [markdown]
# So post the send, and go on; wait for all sends at the end. What is posted matches in any order, and the list runs.
# But on one NCCL stream operations start in the order of posting, each when the former has finished: `ordered=True`.
# There the same program hangs. The validator knows it without running, if we tell it that all operations of a stage
# stand in one queue.


# %%
def by_posting(comm, schedule, M):
    works = []
    comm.send = lambda x, dst: works.append(comm.isend(x, dst))  # go on without waiting
    spans = by_hand(comm, schedule, M)
    for work in works:
        work.wait()
    return spans


_, posted = run(by_posting, my_words, 3, n=2)
assert [" ".join(name for name, *_ in spans) for spans in posted] == [
    "F0 F1 B0 F2 B1 B2",
    "F0 B0 F1 B1 F2 B2",
]
try:
    run(by_posting, my_words, 3, n=2, ordered=True)
except Deadlock as why:
    print(why, "\n")
try:
    validate(actions(mine), comm="stream")
except ScheduleError as why:
    print(why)

# %% [markdown]
# On a stream there are two ways out. Megatron starts each send together with the receive that comes next, as one group.
# `minidist` posts its sends, and gives every edge of the pipeline, and each direction, a **channel** of its own: over
# NCCL that is another stream. It also keeps apart what has no tags, once two stages share more than one edge.
# Its `Pipeline` runs any list; here is ours, on the same stages.

# %%
from minidist.parallel.pipeline import Pipeline


def on_stages(comm, schedule, M, v=1, L=8, rows=ROWS, recompute=False):
    chunks = [layers(L // comm.size // v, comm.rank + chunk == 0) for chunk in range(v)]
    pipeline = Pipeline(chunks, comm, schedule, lambda y, _: y.sum(), recompute)
    x = torch.empty(rows * M, H, device="meta")
    pipeline.step(M, x, x)
    return pipeline.spans, pipeline.peak


def piped(schedule, M, n=4, **kwargs):
    world, results = run(partial(on_stages, schedule=schedule, M=M, **kwargs), n=n)
    return world, [spans for spans, _ in results], [peak for _, peak in results]


world, spans, peaks = piped(lambda stage, S, M: parse(mine[stage]), 8)
assert peaks == [4, 3, 2, 1] and abs(waits(world, spans) - 3 / 11) < 0.01
study.stages({"1F1B": spans}, title="Your list on four stages")

# %% [markdown]
# ## The same gradient
#
# A pipeline changes when things are computed, not what. The oracle is a loop over the micro-batches on one rank, in
# float64. The lists run backwards in the order of the micro-batches, so even the sums are added in the same order:
# the gradients must agree **bit for bit**.

# %%
from minidist.models import mlp
from minidist.tasks import digits


def whole():
    return mlp([64, 32, 32, 32, 10], dtype=torch.float64)


def train_step(comm, schedule, x, y, M):
    model = list(whole())
    part = nn.Sequential(
        *model[len(model) * comm.rank // comm.size : len(model) * (comm.rank + 1) // comm.size]
    )
    Pipeline(part, comm, schedule, nn.functional.cross_entropy).step(M, x, y)
    return [p.grad for p in part.parameters()]


# %%
task = digits()
x = task.x[:60]
y = task.y[:60]
serial = whole()
for some_x, some_y in zip(x.chunk(6), y.chunk(6)):
    (nn.functional.cross_entropy(serial(some_x), some_y) / 6).backward()
wanted = [p.grad for p in serial.parameters()]

known = {
    "naive": schedules.naive,
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_f_one_b,
    "ZB-H1": schedules.zb_h1,
}
rows = []
for name, schedule in known.items():
    found = [g for part in World(3).run(train_step, schedule, x, y, 6) for g in part]
    rows.append((name, "bit for bit" if all(map(torch.equal, found, wanted)) else "no"))
assert all(word == "bit for bit" for _, word in rows)
study.table(rows, ["schedule, 3 stages, M = 6", "gradients equal to the serial ones"])

# %% [markdown]
# ## Predict the cost, then run
#
# Two prices: time lost in bubbles, and memory for activations. A layer keeps its input, 134 MB a micro-batch, so two
# layers keep 268 MB. Draw what the formulas say for M = 1 … 16, then run. (From here on we take the lists of
# `minidist.parallel.schedules`. To write 1F1B for any S and M is an exercise.)

# %%
Ms, fine = [1, 2, 4, 8, 16], range(1, 17)
each = 2 * ROWS * H * 4
runs = {name: [piped(known[name], M) for M in Ms] for name in ("GPipe", "1F1B")}
runs["naive"] = [piped(known["naive"], M) for M in Ms[:3]]
share = {"GPipe": (fine, [100 * 3 / (M + 3) for M in fine]), "naive": (fine, [75] * 16)}
measured = {
    name: (Ms[: len(some)], [100 * waits(world, spans) for world, spans, _ in some])
    for name, some in runs.items()
}
study.curves(
    share,
    points=measured,
    yunit="%",
    xlabel="micro-batches, M",
    ylabel="bubble",
    title="Four stages: GPipe and 1F1B wait alike",
)


# %%
def activations(world, stage=0):
    return int(world.trace.memory[stage].live["activations"].max())


memory = {
    "GPipe": (fine, [M * each for M in fine]),
    "1F1B": (fine, [min(M, 4) * each for M in fine]),
}
measured = {name: (Ms, [activations(world) for world, *_ in runs[name]]) for name in memory}
study.curves(
    memory,
    points=measured,
    yunit="B",
    xlabel="micro-batches, M",
    ylabel="activations of stage 0, at the peak",
    title="GPipe pays with memory for every micro-batch; 1F1B stops at S",
)

# %% [markdown]
# The points lie above the lines by one or two messages under way. So 1F1B can take as many micro-batches as it likes.
#
# ## Step 4: interleaved
#
# The bubble is S − 1 slots. Make the slots smaller: give each rank v **chunks** of the model instead of one piece.
# Rank 0 has layers 0 and 4, rank 1 layers 1 and 5, and so on. A micro-batch comes by v times, and the pipeline fills
# v times as fast. **Predict** the bubble for v = 2, and the messages. (In the grid, 2 stages, `F0.1` is the forward of
# micro-batch 0 through chunk 1.)

# %%
twice, spans2, peaks2 = piped(schedules.interleaved, 8, v=2)
assert abs(waits(twice, spans2) - 3 / (2 * 8 + 3)) < 0.02
big = [sum(m.nbytes > 10**6 for m in w.trace) for w in (world, twice)]
assert big == [2 * 3 * 8, 2 * 7 * 8]  # forward and back, between 4 parts or between 8
print(
    f"bubble {waits(twice, spans2):.1%}, by formula {3 / 19:.1%}; messages {big[1]} instead of {big[0]}"
)
print(grid([schedules.interleaved(stage, 2, 2) for stage in range(2)]))
study.stages({"1F1B": spans, "interleaved, v = 2": spans2}, title="Half the bubble")

# %% [markdown]
# The price: messages (112 for 48: 7 edges between parts, not 3), more activations at the start, and S must divide M.
#
# ## Step 5: zero bubble
#
# The stage before waits for the gradient of the *input*. Nobody waits for that of the *weights*. So cut `B` in two:
# `I` for the input at once, `W` for the weights when there is nothing else to do, in the bubble. Each costs about as
# much as a forward.

# %%
print(grid([schedules.zb_h1(stage, 4, 6) for stage in range(4)]))
h1, spans_h1, peaks_h1 = piped(schedules.zb_h1, 8)
assert waits(h1, spans_h1) < 0.5 * waits(world, spans) and peaks_h1 == [4, 4, 4, 4]
print(f"bubble {waits(h1, spans_h1):.1%} instead of {waits(world, spans):.1%}")
study.stages(
    {"1F1B": spans, "ZB-H1": spans_h1}, title="Zero bubble: weights' gradients fill the gaps"
)

# %% [markdown]
# (On rank 0 W is longer than I: nobody waits for the gradient of its input, and what the positions need comes in W.)
# ZB-H1 keeps at most S micro-batches, but on every stage. It waits for $(S-1)(T_F + T_I - T_W)$: a third of 1F1B's
# bubble if all three are alike. ZB-H2 keeps 2S − 1 and waits for $(S-1)(T_F + T_I - 2T_W)$: not at all, if they are.
# On real GPUs W is shorter than F. Here are the paper's published rates, and what our simulator makes of the times that
# the paper measured. (1F1B-I is interleaved. ZB-1p and ZB-2p are searched, with memory for S and 2S micro-batches.)

# %%
from minidist.study.literature import simulated

published = [
    row
    for row in study.published("zero_bubble_rates")
    if (row["model"], row["p"], row["M"]) == ("1.5B", 8, 32)
]
ours = [simulated(row) for row in published]
assert all(abs(rate.error) < 2e-4 for rate in ours)
study.table(
    [(r.schedule, f"{r.published:.4f}", f"{r.ours:.4f}", f"{r.waiting:.4f}") for r in ours],
    ["1.5 B parameters, 8 stages, M = 32", "published", "simulated", "waiting for every message"],
    title="Bubble rates",
)

# %% [markdown]
# One row needs a rule of its own: for 1F1B-I the paper's estimator does not wait for every message between two rounds
# of chunks, only for the first of each group. A real run waits for all, and has a little more bubble.
#
# ## Who gets which layers?
#
# The slowest stage sets the pace. Here the last of 8 layers is as heavy as four (in a GPT: the projection to the
# vocabulary). `partition` cuts where the largest part is smallest. **Predict** both times from the heaviest stage.

# %%
from minidist.parallel.pipeline import partition


def uneven(comm, parts):
    first, end = parts[comm.rank]
    part = layers(sum(costs[first:end]), comm.rank == 0)
    pipeline = Pipeline(part, comm, schedules.one_f_one_b, lambda y, _: y.sum())
    pipeline.step(8, *[torch.empty(8 * ROWS, H, device="meta")] * 2)
    return pipeline.spans


costs = [1, 1, 1, 1, 1, 1, 1, 4]
cuts = {"by count": partition([1] * 8, 4), "by cost": partition(costs, 4)}
cut_runs = {f"{name}: {parts}": run(uneven, parts) for name, parts in cuts.items()}
first, second = (w.time for w, _ in cut_runs.values())
assert 1.1 < first / second < 1.25  # 5 to 4, less what the others' bubbles make up
study.stages(
    {name: spans for name, (_, spans) in cut_runs.items()}, title="Cut by count, and by cost"
)

# %% [markdown]
# `by_count`, `by_parameters` and `by_time` say what a layer costs; `by_time` measures. Counting parameters misleads: an
# embedding has many, and works little. How `partition` cuts is an exercise.
#
# ## Recomputation
#
# If even S activations are too many, keep only the inputs of the stage, and run its forward again in backward.
# One more forward for three units of work: a third more time. **Predict** what stage 1 keeps with M = 8.

# %%
rows = []
for name in ("GPipe", "1F1B"):
    for again in (False, True):
        w, *_ = piped(known[name], 8, recompute=again)
        rows.append(
            (
                name,
                "again" if again else "kept",
                f"{1e3 * w.time:.0f}",
                f"{activations(w, 1) / 1e9:.2f}",
            )
        )
study.table(
    rows, ["schedule", "forward is", "ms", "GB of activations, stage 1"], title="Memory for time"
)

# %% [markdown]
# GPipe's authors recompute for this reason. With two layers a stage, a micro-batch keeps one input instead of two; with
# more layers it saves more. The micro-batch that goes back needs its whole graph. So 1F1B, which keeps few, gains less.
#
# ## When not to use it
#
# **When the model fits on one GPU.** Then data parallelism has no bubble. The same model, the same batch:

# %%
from minidist.collectives import all_reduce_


def replicas(comm):
    model = layers(8, True)
    model(torch.empty(8 * ROWS // comm.size, H, device="meta")).sum().backward()
    all_reduce_(comm, [p.grad for p in model.parameters()], op="mean")


copies, _ = run(replicas)
gigabytes = [sum(p.nbytes for p in layers(count, True).parameters()) / 1e9 for count in (8, 2)]
rows = [
    ("data parallel", f"{1e3 * copies.time:.0f}", f"{gigabytes[0]:.2f}"),
    ("1F1B, M = 8", f"{1e3 * world.time:.0f}", f"{gigabytes[1]:.2f}"),
]
study.table(
    rows, ["4 GPUs", "ms a step", "GB of weights on each"], title="Faster, if there is room"
)

# %% [markdown]
# **When the batch is small.** Micro-batches cannot be cut for ever. A GPU computes a product in tiles, the smallest of
# which have 128 rows, and a tile that is half empty takes as long as a full one. Each micro-batch also adds to all
# gradients, whatever its size. Here is a batch of 1,024 rows. **Predict** the best M.

# %%
Ms = [1, 2, 4, 8, 16, 32]
small_runs = {M: piped(known["1F1B"], M, rows=1024 // M) for M in Ms}
small = [world.time for world, *_ in small_runs.values()]
ideal = [small[0] / 4 * (M + 3) / M for M in Ms]
assert min(small) == small[3] < small[4] < small[5] and 2.25 < small[0] / small[3] < 2.35
for M in (8, 32):
    _, start, end = small_runs[M][1][1][0]  # stage 1's first forward
    print(f"a forward of {1024 // M} rows takes {1e6 * (end - start):.0f} µs")
study.curves(
    {"bubble alone": (Ms, ideal)},
    points={"run": (Ms, small)},
    yunit="s",
    xlabel="micro-batches, M",
    ylabel="time of a step",
    title="1,024 rows: the bubble shrinks, the work grows",
)

# %% [markdown]
# At M = 8 a micro-batch has 128 rows, which just fill a tile. At M = 32 it has 32, and its forward takes as long as
# that of 128. So M = 8 is best, and four GPUs are then 2.3 times as fast as one.
#
# **When layers are few.** 5 equal layers on 4 stages: one stage has two, and the others wait for it. Even without a
# bubble the four together are busy for 5 of 8 slots.
#
# ## The library's version
#
# One executor runs every list. Its step, and what it does for an `F` and for a `B`:

# %%
display(
    study.source(Pipeline.step, docstring=False), study.source(Pipeline.forward, docstring=False)
)
study.source(Pipeline._back)

# %% [markdown]
# Messages are derived from the list: `messages.receive` waits for the one that an action needs, `messages.send` starts
# the one that it makes, and goes on. The validator has looked at the lists of all stages before the first one leaves.
#
# ## On processes, and on a cluster
#
# The same step on three processes of this machine, over shared memory:

# %%
real = [g for part in launch(train_step, 3, schedules.one_f_one_b, x, y, 6) for g in part]
assert all(
    torch.allclose(g, want, rtol=0, atol=1e-12) for g, want in zip(real, wanted, strict=True)
)
print("the serial gradients, from three processes")

# %% [markdown]
# And under `torchrun`, with `train_step(from_env(), …)` at the end of a script:
#
# ```
# torchrun --nproc-per-node 4 train.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# So how many times as fast are four GPUs?

# %%
fast = {
    "naive": one_by_one,
    "GPipe": runs["GPipe"][3][0],
    "1F1B": world,
    "interleaved": twice,
    "ZB-H1": h1,
}
times = {"your guess": guess} | {name: round(alone.time / w.time, 2) for name, w in fast.items()}
assert times["naive"] < 1 and 2.8 < times["1F1B"] < 3 < times["interleaved"] < times["ZB-H1"] < 4
study.bars(times, target=4, note="four GPUs", title="Times as fast as one GPU, 8 micro-batches")

# %% [markdown]
# ## Takeaways
#
# - A naive pipeline is no faster than one GPU. Micro-batches make it one: bubble $\frac{S-1}{M+S-1}$.
# - GPipe keeps M activations. 1F1B has the same bubble and keeps S − s on stage s.
# - Interleaving divides the bubble by v, for more than v times the messages. Zero bubble splits the backward: what
#   nobody waits for fills the gaps.
# - A schedule is a list. Check it before it runs: order, deadlock, memory.
# - The gradient is the serial one, bit for bit. If yours is not, it is a bug.
# - Balance stages by time. Use pipelines for what does not fit, with many micro-batches that are not small.
#
# ## Further reading
#
# - paper:huang2019
# - paper:narayanan2019 Partition by time, 1F1B; [lesson 18](lesson:pipedream).
# - paper:narayanan2021 1F1B with a flush, and interleaved.
# - paper:qi2024
