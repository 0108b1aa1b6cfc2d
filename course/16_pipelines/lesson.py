# %% [markdown]
# # 16 · Pipelines
#
# A model does not fit on one GPU. It has 8 layers, and you have four GPUs, so you put two layers on each. A batch now goes through all four cards, one after the other, and its gradients come back the same way. No layer is computed twice, no weight is ever sent, and the links are fast. That is all there is to a **pipeline**, and it is the oldest way of training what is too large for one card.
#
# Whether it is *fast* depends on nothing but the order in which the cards do their work. Suppose a batch is cut into 8 pieces, and one GPU alone, were it large enough, would need 2.5 s for a step. **How many times as fast can the four be?**

# %%
guess = 4.0  # times as fast as one GPU: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Three ranks hold one weight each: 2, 3 and 5. Six samples pass through all three. A rank receives numbers from its left neighbour, multiplies them by its weight, and sends them to the right. The part of the model that lies on one rank is a [stage](term:stage); here there are S = 3 of them, and rank *s* holds stage *s*.

# %%
from functools import partial

import torch
from torch import nn

from minidist import study
from minidist.comm import Deadlock, World, launch
from minidist.comm.cluster import H100, Cluster


# %%
def multiply(comm, samples, M):
    """Send the samples through all ranks in M pieces. Returns what this stage has made of them."""
    weight = [2, 3, 5][comm.rank]
    made = []
    for x in samples.chunk(M):
        if comm.rank > 0:
            x = comm.recv(torch.empty_like(x), comm.rank - 1)
        y = weight * x
        made.append(y)
        if comm.rank < comm.size - 1:
            comm.send(y, comm.rank + 1)
    return torch.cat(made)


samples = torch.arange(1.0, 7.0)
made = World(3).run(multiply, samples, 3)
study.holdings(
    {"samples": [samples, None, None], "what each stage makes": list(made)},
    title="Through three stages",
)

# %% tags=["maintainer"]
assert torch.equal(made[2], 30 * samples)

# %% [markdown]
# With `M=1` all six samples travel together. While one rank works, the two others wait: the first has nothing left to do, the last has nothing yet. With `M=3` they travel as three [micro-batches](term:micro-batch) of two samples, and rank 0 can work on the second while rank 1 works on the first. `grid` draws who does what in each slot of time. Time runs to the right, and `F1` is the forward of micro-batch 1.

# %%
from minidist.parallel import schedules
from minidist.parallel.schedules import in_flight, parse
from minidist.parallel.simulate import grid, simulate
from minidist.parallel.validate import ScheduleError, validate

print(grid([parse("F0 F1 F2")] * 3))

# %% [markdown]
# Each stage is busy for 3 of 5 slots. The first micro-batch needs S slots to get through. Each of the other M − 1 comes out one slot after the one before it. So M slots of work take M + S − 1 slots of time, and a stage waits for S − 1 of them. The time that stages spend waiting is called the [bubble](term:bubble).
#
# ## What travels, and what stays
#
# Training also goes back. A stage has to keep what its forward made, because backward needs it. It receives the gradient of its *output* from the right, runs its own backward, and sends the gradient of its *input* to the left.
#
# ![A model of six layers cut into three stages of two layers, one on each rank. In forward a stage sends its last activations to the next rank. In backward it sends the gradient of its input to the rank before. Weights and their gradients stay where they are. The batch is cut into six micro-batches.](../course/16_pipelines/figures/stages.svg)
#
# Compare this with what you know. [Data parallelism](lesson:data_parallel) sends gradients of weights, as many bytes as the model has. A pipeline sends [activations](term:activation) and their gradients, only between neighbours. As a rule these are far fewer bytes, they travel from one rank to one other, and most of them hide behind computation. So a pipeline puts up with slow links, and it is what one runs *between* nodes.
#
# ## Forward and backward by hand
#
# To see times, we need a model that takes time. Our 8 layers are matrices of 8,192 × 8,192, and a micro-batch has 4,096 rows. On the device `"meta"` tensors have a shape and no numbers, and the World charges for each operation the time that a modelled H100 would take, at the 64 % of its peak that large products reach. The links are modelled as NVLink: 450 GB/s and 5 µs. As in a GPT, something trainable stands in front of the first layer (here one vector of positions), so that every layer has to compute the gradient of its input.

# %%
H = 8192
ROWS = 4096


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.empty(H, device="meta"))

    def forward(self, x):
        return x + self.table


def layers(count, first):
    """This many layers on the device "meta", behind the positions if they are the first ones."""
    made = [Positions()] if first else []
    for _ in range(count):
        made.append(nn.utils.skip_init(nn.Linear, H, H, bias=False, device="meta"))
    return nn.Sequential(*made)


# %% [markdown]
# In which order should a stage do its forwards and backwards? We write the answer as a list of words: `F3` is the forward of micro-batch 3, `B3` its backward. Such a list for each stage is a [schedule](term:schedule), and the following function runs any of them. It is the heart of this lesson, so read it slowly. The two lines marked *cut* are the important ones: there the graph of autograd ends on one rank, and a message carries it on.


# %%
def by_hand(comm, schedule, M, post=False, channels=False):
    """Run this stage's list. Returns (word, start, end) of everything that it has computed."""
    stage, last = comm.rank, comm.size - 1
    part = layers(8 // comm.size, first=stage == 0)
    down = up = comm  # activations go down the stages, gradients come up again
    if channels:
        down = comm.split([0] * comm.size)
        up = comm.split([0] * comm.size)
    sends = []

    def send(channel, tensor, peer):
        work = channel.isend(tensor, peer)
        if post:
            sends.append(work)  # go on, and wait at the end
        else:
            work.wait()  # until somebody receives

    kept = {}  # what a backward will need, by micro-batch
    spans = []
    for word in schedule(stage, comm.size, M):
        kind, m = word[0], int(word[1:])
        if kind == "F":
            x = torch.empty(ROWS, H, device="meta")
            if stage > 0:
                down.recv(x, stage - 1)
                x.requires_grad_()  # cut: its gradient will be sent back
            start = comm.now()
            y = part(x)
            spans.append((word, start, comm.now()))
            kept[m] = x, y
            if stage < last:
                send(down, y.detach(), stage + 1)
        else:
            x, y = kept.pop(m)  # nobody needs it any more
            dy = torch.ones_like(y)  # at the end: the loss is the sum of the outputs
            if stage < last:
                up.recv(dy, stage + 1)
            start = comm.now()
            y.backward(dy)  # cut: autograd goes on from the gradient that has come
            spans.append((word, start, comm.now()))
            if stage > 0:
                send(up, x.grad, stage - 1)
    for work in sends:
        work.wait()
    return spans


# %% [markdown]
# `run` starts it on a World of modelled H100s. `waiting` measures the bubble: the share of the time in which a stage does not compute, as a mean over the stages.


# %%
def run(program, *args, n=4, ordered=False):
    cluster = Cluster.uniform(n, 5e-6, 1 / 450e9, H100)
    world = World(n, cluster=cluster, device="meta", ordered=ordered)
    return world, world.run(program, *args)


def waiting(world, ranks):
    busy = 0
    for spans in ranks:
        for _, start, end in spans:
            busy += end - start
    return 1 - busy / len(ranks) / world.time


# %% [markdown]
# ## The naive order
#
# The simplest list takes one micro-batch at a time through all stages and back, before the next one starts. **What share of the time does each of four stages spend waiting?**

# %%
guess_naive = 0.5  # a share between 0 and 1: change this number


# %%
def naive(stage, S, M):
    words = []
    for m in range(M):
        words += [f"F{m}", f"B{m}"]
    return words


alone, _ = run(by_hand, naive, 8, n=1)
one_by_one, naive_spans = run(by_hand, naive, 8)
print(f"one GPU takes {alone.time:.2f} s, four GPUs take {one_by_one.time:.2f} s")

# %% tags=["answer"]
study.reveal(
    guess_naive,
    round(waiting(one_by_one, naive_spans), 2),
    study.stages({"naive": naive_spans}, title="Naive: one stage is busy at a time"),
    words="At any time one stage of four is busy: (S − 1)/S of the time is bubble, however many micro-batches there are.",
)

# %% tags=["maintainer"]
assert H100.efficiency == 0.64 and 2.5 < alone.time < 2.55 < one_by_one.time
assert 0.75 < waiting(one_by_one, naive_spans) < 0.76

# %% [markdown]
# Four GPUs are a little *slower* than one. They have four times the memory, and that is all you get. It is also what you get, without any warning, when you move the layers of a PyTorch model to different devices with `.to("cuda:1")`. The symptom is a monitor on which the cards take turns.
#
# ## GPipe: all forwards, then all backwards
#
# Nothing forbids starting the next micro-batch early. The gradient of a mean is the mean of the gradients, so the micro-batches' gradients simply add up, and it does not matter when each is added, as long as the optimizer waits for the last one. So let all forwards go first, one behind the other, and then all backwards. This is [GPipe](term:gpipe).
#
# **Four stages and 8 micro-batches: how much of the time is bubble?** Go back to the grid on paper, and count slots. A backward takes twice as long as a forward, because it computes two products for each one of the forward: the gradient of the input and the gradient of the weights.

# %%
guess_gpipe = 0.5  # a share between 0 and 1: change this number


# %%
def gpipe(stage, S, M):
    return [f"F{m}" for m in range(M)] + [f"B{m}" for m in range(M)]


filled, gpipe_spans = run(by_hand, gpipe, 8)
predicted = (4 - 1) / (8 + 4 - 1)

# %% tags=["answer"]
study.reveal(
    guess_gpipe,
    round(waiting(filled, gpipe_spans), 2),
    study.stages({"GPipe": gpipe_spans}, title="GPipe: fill, work, drain, and back again"),
    words=f"The formula says {predicted:.3f}. What the run has above it are messages: by hand, each is waited for.",
)

# %% tags=["maintainer"]
assert abs(waiting(filled, gpipe_spans) - predicted) < 0.02

# %% [markdown]
# **Why.** In the forward half, M micro-batches take M + S − 1 slots, as on paper. In the backward half the slots are twice as long, but there are again M + S − 1 of them. So the share of the bubble is the same in both halves, and in the whole:
#
# $$\text{bubble} = \frac{S-1}{M+S-1}.$$
#
# The stages wait for S − 1 slots, however many micro-batches there are, so *more micro-batches make the bubble small*. With M = 4S it is below a fifth. That is the good news about GPipe. Now look at stage 0 in the picture, at the moment when `B0` begins. It has run all M forwards and no backward, so it keeps the activations of all M micro-batches. The very thing that makes the bubble small fills the memory.
#
# ## 1F1B: one forward, one backward
#
# What is kept for a micro-batch can be freed as soon as its backward is done. So a stage should run a backward as early as it can, and start a new forward only when it has to. That is the idea of [1F1B](term:1f1b): after a few forwards to warm up, a stage takes *one forward and one backward in turn*. The backwards that are left come last.
#
# ![Three schedules of three stages and six micro-batches over time. Naive: one micro-batch at a time, bubble two thirds. GPipe: all six forwards, then all six backwards; the bubble is two eighths, and every stage keeps six micro-batches. 1F1B: a few forwards, then one forward and one backward in turn; the same bubble, and the stages keep three, two and one.](../course/16_pipelines/figures/stages_over_time.svg)
#
# How many forwards does a stage need to warm up? As a first try, say: as many as its number, since the first stage is first in everything. Before anything runs, the *validator* of the library can read the lists. It plays them through, stage by stage, and stops at the first action that can never happen.


# %%
def actions(rows):
    """The lists of all stages, as the validator, `grid` and `simulate` read them."""
    return [parse(row) for row in rows]


wrong = ["F0 B0 F1 B1 F2 B2", "F0 F1 B0 F2 B1 B2", "F0 F1 F2 B0 B1 B2"]
try:
    validate(actions(wrong))
except ScheduleError as error:
    print(error)

# %% [markdown]
# Each stage waits for another in a circle, and the message names the first action of it. Stage 0 wants to run `B0`, before it has sent anything but micro-batch 0, and the last stage insists on having three before it goes back.
#
# It must be the other way round, and here is the derivation. Begin at the end. The last stage can go back at once: `F0 B0 F1 B1 …`, with one micro-batch in flight and no forward to warm up. The stage before it works in the same rhythm. While the last stage runs a forward and a backward of micro-batch *m*, the stage before has to run the forward of *m* + 1, so that it is there when it is wanted; and it can run the backward of *m* only afterwards, when its gradient has come. So it is always one forward *ahead* of the stage behind it, and one backward *late*: it has one micro-batch more in flight. Going on like this to the front, stage *s* has S − *s* micro-batches in flight. One of them is the forward of its current turn; the others were its warm-up,
#
# $$w_s = S - 1 - s,$$
#
# or M forwards if there are fewer. What it keeps does not depend on M.
#
# These are the lists for 4 stages and 8 micro-batches. To write them for any S and M is an exercise. Change something in the editor: drag a word to another place, or type. It validates each list and runs the clock at once, with a backward that takes twice as long as a forward. Make stage 0 keep three micro-batches instead of four, and see what it costs in time. Then change the queue from *mailbox* to *stream*, which the next section explains.

# %%
mine = [
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
]


def as_lists(schedule, S=4, M=8):
    return actions(" ".join(schedule(stage, S, M)) for stage in range(S))


study.schedule_editor(
    {"1F1B": actions(mine), "GPipe": as_lists(gpipe), "naive": as_lists(naive)},
    8,
    title="Four stages, eight micro-batches",
)

# %% [markdown]
# **How many micro-batches does each of the four stages keep at most, with these lists?** `in_flight` counts the forwards whose backward has not come yet.

# %%
guess_kept = {"stage 0": 8, "stage 1": 8, "stage 2": 8, "stage 3": 8}  # change these numbers

# %%
found = {"naive": as_lists(naive), "GPipe": as_lists(gpipe), "1F1B": actions(mine)}
rows = []
for name, lists in found.items():
    kept = [in_flight(actions_of_stage) for actions_of_stage in lists]
    rows.append((name, f"{simulate(lists).bubble:.1%}", *kept))
kept_by_1f1b = {
    f"stage {s}": in_flight(mine_of_stage) for s, mine_of_stage in enumerate(found["1F1B"])
}

# %% tags=["answer"]
study.reveal(
    guess_kept,
    kept_by_1f1b,
    study.table(
        rows,
        ["4 stages, M = 8", "bubble", *(f"stage {s} keeps" for s in range(4))],
        title="Counted from the lists",
    ),
    words="The bubble is GPipe's to the last digit. What has changed is the memory: S − s micro-batches instead of M.",
)

# %% tags=["maintainer"]
assert list(kept_by_1f1b.values()) == [4, 3, 2, 1]

# %% [markdown]
# It is a common mistake to think that 1F1B has a smaller bubble than GPipe. It does not. It lets you *afford* more micro-batches, and these make the bubble smaller.
#
# ## Break it: one queue
#
# The lists are right, but do they run? Let us take 2 stages and 3 micro-batches, and run them by hand. In the way we have written `send`, each send waits until somebody receives.


# %%
def two_stages(stage, S, M):
    return ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"][stage].split()


try:
    run(by_hand, two_stages, 3, n=2)
except Deadlock as error:
    print(error)

# %% [markdown]
# Rank 0 wants to get rid of the activation of micro-batch 1, and rank 1 of the gradient of micro-batch 0. Each waits until the other one receives: a [deadlock](term:deadlock). GPipe never had this problem, since in each of its halves all messages go the same way.
#
# The remedy seems easy. Post the send, go on, and wait for all sends at the end. On the World, as over MPI, what is posted matches its counterpart in any order, and the list runs:

# %%
_, posted = run(partial(by_hand, post=True), two_stages, 3, n=2)
for stage, spans in enumerate(posted):
    print(f"stage {stage} has done", " ".join(word for word, _, _ in spans))

# %% [markdown]
# On GPUs it hangs nevertheless. NCCL's operations stand in a [stream](term:stream): they start in the order in which they were posted, each when the one before it has finished. `World(n, ordered=True)` behaves like this.
#
# ![Left, one queue on each stage. After a0 has travelled, send a1 is at the head of stage 0's queue and send g0 at the head of stage 1's. The receive that each waits for stands behind the other's head: nothing moves. Right, activations and gradients have a channel each: in both, sends and receives meet.](../course/16_pipelines/figures/one_queue.svg)

# %%
try:
    run(partial(by_hand, post=True), two_stages, 3, n=2, ordered=True)
except Deadlock as error:
    print(error)

# %% [markdown]
# The validator knows this without running, if we tell it that all of a stage's messages stand in one queue:

# %%
try:
    validate(actions(mine), comm="stream")
except ScheduleError as error:
    print(error)

# %% [markdown]
# There are two ways out. Megatron-LM starts each send *together* with the receive that comes next, as one group of operations, within which order does not matter. `minidist` gives every edge of the pipeline, and each of its two directions, a [channel](term:channel): a communicator of its own, and so over NCCL a stream of its own. An activation can then never stand in front of a gradient. Our `by_hand` has a switch for the simplest form, one channel down and one up, and with it the same list runs on streams:

# %%
by_channels = partial(by_hand, post=True, channels=True)
_, on_channels = run(by_channels, two_stages, 3, n=2, ordered=True)
for stage, spans in enumerate(on_channels):
    print(f"stage {stage} has done", " ".join(word for word, _, _ in spans))

# %% tags=["maintainer"]
for spans_of_all in (posted, on_channels):
    for stage, spans in enumerate(spans_of_all):
        assert [word for word, _, _ in spans] == two_stages(stage, 2, 3)

# %% [markdown]
# The library's `Pipeline` is built like this and runs any list. Here it runs our four lists on the same stages. Zoom in, and point at a message to see how little of the time it takes.

# %%
from minidist.parallel.pipeline import Pipeline


def on_stages(comm, schedule, M, rows=ROWS, recompute=False):
    """One step of the library's pipeline: what was computed when, and the most micro-batches kept."""
    part = layers(8 // comm.size, first=comm.rank == 0)
    pipeline = Pipeline(part, comm, schedule, lambda y, _: y.sum(), recompute)
    x = torch.empty(rows * M, H, device="meta")
    pipeline.step(M, x, x)
    return pipeline.spans, pipeline.peak


def piped(schedule, M, **choices):
    world, results = run(partial(on_stages, schedule=schedule, M=M, **choices))
    spans = [spans for spans, _ in results]
    peaks = [peak for _, peak in results]
    return world, spans, peaks


one_f, one_f_spans, peaks = piped(lambda stage, S, M: parse(mine[stage]), 8)
study.viewer(one_f.trace, title="1F1B on four stages, from the run")

# %% tags=["maintainer"]
assert peaks == [4, 3, 2, 1]
assert abs(waiting(one_f, one_f_spans) - 3 / 11) < 0.01

# %% [markdown]
# ## The same gradient
#
# A pipeline changes *when* things are computed, not *what*. The [oracle](term:oracle) is a loop over the micro-batches on one rank, in float64. Data parallelism agreed with the serial run up to rounding, because its sums are added in another order. Here every stage runs its backwards in the order of the micro-batches, so even the sums are added in the same order. We can ask for more: the gradients must agree *bit for bit*.

# %%
from minidist.models import mlp
from minidist.tasks import digits


def whole():
    return list(mlp([64, 32, 32, 32, 10], dtype=torch.float64))


def train_step(comm, schedule, x, y, M):
    model = whole()  # the same on every rank, of which this stage takes its share
    first = len(model) * comm.rank // comm.size
    end = len(model) * (comm.rank + 1) // comm.size
    part = nn.Sequential(*model[first:end])
    Pipeline(part, comm, schedule, nn.functional.cross_entropy).step(M, x, y)
    return [p.grad for p in part.parameters()]


task = digits()
x = task.x[:60]
y = task.y[:60]
serial = nn.Sequential(*whole())
for x_of_micro, y_of_micro in zip(x.chunk(6), y.chunk(6)):
    loss = nn.functional.cross_entropy(serial(x_of_micro), y_of_micro)
    (loss / 6).backward()  # the mean over the batch is the mean of the six means
wanted = [p.grad for p in serial.parameters()]

# %%
known = {"naive": schedules.naive, "GPipe": schedules.gpipe, "1F1B": schedules.one_f_one_b}
rows = []
for name, schedule in known.items():
    gradients = [g for stage in World(3).run(train_step, schedule, x, y, 6) for g in stage]
    equal = all(torch.equal(g, want) for g, want in zip(gradients, wanted, strict=True))
    rows.append((name, "bit for bit" if equal else "no"))
study.table(rows, ["schedule, 3 stages, M = 6", "gradients equal to the serial ones"])

# %% tags=["maintainer"]
assert all(word == "bit for bit" for _, word in rows)

# %% [markdown]
# So if a pipeline of yours differs from the serial loop at all, it is a bug. The usual ones are a loss that is divided by the size of the micro-batch but not by M (the gradient is then M times too large, which looks like a learning rate that is too high), targets that are taken in another order than the inputs, and a last micro-batch that is smaller than the others and counts as much as they do.
#
# ## Predict the cost, then run
#
# A schedule has two prices: time lost in bubbles, and memory for activations. We have a formula for each. A layer of ours keeps its input, 134 MB for a micro-batch, so that a stage keeps 268 MB for each micro-batch in flight. The lines below are the formulas for M = 1 … 16, and the points are runs. (From here on we take the lists from [schedules.py](file:minidist/parallel/schedules.py).)

# %%
Ms = [1, 2, 4, 8, 16]
fine = range(1, 17)
runs = {name: [piped(known[name], M) for M in Ms] for name in ("GPipe", "1F1B")}
runs["naive"] = [piped(known["naive"], M) for M in Ms[:3]]
bubbles = {
    "GPipe, 1F1B: (S − 1)/(M + S − 1)": (fine, [100 * 3 / (M + 3) for M in fine]),
    "naive: (S − 1)/S": (fine, [75] * 16),
}
measured = {}
for name, of_name in runs.items():
    shares = [100 * waiting(world, spans) for world, spans, _ in of_name]
    measured[name] = Ms[: len(of_name)], shares
study.curves(
    bubbles,
    points=measured,
    yunit="%",
    xlabel="micro-batches, M",
    ylabel="bubble",
    title="Four stages: GPipe and 1F1B wait alike",
)


# %%
def activations(world, stage=0):
    """The most bytes of activations that a stage has held, from the World's account of memory."""
    return int(world.trace.memory[stage].live["activations"].max())


one_micro_batch = 2 * ROWS * H * 4
memory = {
    "GPipe": (fine, [M * one_micro_batch for M in fine]),
    "1F1B": (fine, [min(M, 4) * one_micro_batch for M in fine]),
}
measured = {name: (Ms, [activations(world) for world, *_ in runs[name]]) for name in memory}
study.curves(
    memory,
    points=measured,
    yunit="B",
    xlabel="micro-batches, M",
    ylabel="activations of stage 0, at the peak",
    title="GPipe pays for every micro-batch; 1F1B stops at S",
)

# %% [markdown]
# The points of the memory lie above the lines by one or two messages that are under way. 1F1B can take as many micro-batches as it likes. Move the sliders to see how many that should be: the lines are drawn over M, and what stage 0 keeps is read out below.


# %%
def prices(S, M):
    return {
        "GPipe and 1F1B": 100 * (S - 1) / (M + S - 1),
        "naive": 100 * (S - 1) / S,
        "GPipe keeps": M,
        "1F1B keeps": min(M, S),
    }


study.explore(
    prices,
    over="M",
    xlabel="micro-batches, M",
    ylabel="bubble",
    unit={
        "GPipe and 1F1B": "%",
        "naive": "%",
        "GPipe keeps": "micro-batches",
        "1F1B keeps": "micro-batches",
    },
    S=[2, 4, 8, 16, 32],
    M=[1, 2, 4, 8, 16, 32, 64, 128],
    logx=True,
    start={"S": 8, "M": 32},
    title="What S and M cost",
)

# %% [markdown]
# Now for the question at the beginning:

# %%
times = {
    "your guess": guess,
    "naive": round(alone.time / one_by_one.time, 2),
    "GPipe": round(alone.time / runs["GPipe"][3][0].time, 2),
    "1F1B": round(alone.time / one_f.time, 2),
}

# %% tags=["answer"]
study.reveal(
    guess,
    times["1F1B"],
    study.bars(
        times, target=4, note="four GPUs", title="Times as fast as one GPU, 8 micro-batches"
    ),
    unit="times",
    words="Of 11 slots 8 are work: 4 · 8/11 = 2.91.",
)

# %% tags=["maintainer"]
assert times["naive"] < 1 and 2.8 < times["1F1B"] < 3

# %% [markdown]
# Can the bubble be smaller *without* more micro-batches? It can, if a rank holds several small pieces of the model instead of a large one, or if a backward is cut in two halves: that is the subject of [the next lesson](lesson:schedules).
#
# ## Who gets which layers?
#
# So far all stages took equally long. In a real model they do not, and *the slowest stage sets the pace*: after warming up, the others wait for it in every slot. So the layers should be cut where the *largest* part is as small as possible. Contiguous parts are a matter of S − 1 cuts, and `partition` finds the best ones; the only question is what a layer costs.
#
# Take a model that looks like a GPT: an embedding (a table with a row for each token) of 16,384 × 8,192 in front, ten of our layers, and behind them the projection to the vocabulary, 8,192 × 16,384. The embedding has as many parameters as two layers and computes nothing: it looks up rows. The projection has as many and really multiplies. We measure on the World's clock what each takes:

# %%
V = 2 * H


class Embedding(nn.Embedding):
    def forward(self, x):
        tokens = torch.empty(len(x), dtype=torch.int64, device="meta")
        return super().forward(tokens)


def gpt_like():
    """An embedding, ten layers, and a projection, as a list."""
    inner = [nn.utils.skip_init(nn.Linear, H, H, bias=False, device="meta") for _ in range(10)]
    head = nn.utils.skip_init(nn.Linear, H, V, bias=False, device="meta")
    return [Embedding(V, H, device="meta"), *inner, head]


def seconds_of_layers(comm):
    """Seconds of each layer's forward and backward on one micro-batch."""
    seconds = []
    x = torch.empty(ROWS, H, device="meta")
    for layer in gpt_like():
        x = x.detach().requires_grad_()
        start = comm.now()
        y = layer(x)
        y.backward(torch.ones_like(y))
        seconds.append(comm.now() - start)
        x = y
    return seconds


_, (seconds,) = run(seconds_of_layers, n=1)
parameters = [sum(p.numel() for p in layer.parameters()) for layer in gpt_like()]
rows = []
for name, i in [("embedding", 0), ("each of ten layers", 1), ("projection", 11)]:
    rows.append((name, f"{parameters[i] / 1e6:.0f}", f"{1e3 * seconds[i]:.1f}"))
study.table(
    rows, ["", "million parameters", "ms, forward and backward"], title="What a layer costs"
)

# %% [markdown]
# We cut it for 4 stages by the number of layers, by parameters, and by time, and run each. **How much faster than the cut by parameters is the cut by time?** You can find out on paper: count a layer as 1 and the projection as 2, cut twice, and compare the heaviest stages.

# %%
guess_cut = 1.0  # times as fast: change this number

# %%
from minidist.parallel.pipeline import partition


def uneven(comm, parts):
    first, end = parts[comm.rank]
    part = nn.Sequential(*gpt_like()[first:end])
    pipeline = Pipeline(part, comm, schedules.one_f_one_b, lambda y, _: y.sum())
    x = torch.empty(8 * ROWS, H, device="meta")
    pipeline.step(8, x, x)
    return pipeline.spans


cuts = {
    "by count": partition([1] * 12, 4),
    "by parameters": partition(parameters, 4),
    "by time": partition(seconds, 4),
}
cut_runs = {name: run(uneven, parts) for name, parts in cuts.items()}
for name, parts in cuts.items():
    heaviest = max(sum(seconds[first:end]) for first, end in parts)
    sizes = [end - first for first, end in parts]
    print(f"{name}: {sizes} layers, the heaviest stage takes {1e3 * heaviest:.0f} ms a micro-batch")

# %% tags=["answer"]
study.reveal(
    guess_cut,
    round(cut_runs["by parameters"][0].time / cut_runs["by time"][0].time, 2),
    study.stages(
        {name: spans for name, (_, spans) in cut_runs.items()},
        title="Cut by count, by parameters, by time",
    ),
    unit="times",
    words="In the steady state it is 4 against 3. In the bubble light stages are faster, so that a whole step gains a little less.",
)

# %% tags=["maintainer"]
assert 1.15 < cut_runs["by parameters"][0].time / cut_runs["by time"][0].time < 1.34
assert abs(cut_runs["by time"][0].time / cut_runs["by count"][0].time - 1) > 0.1

# %% [markdown]
# Time is the right measure, and it has to be taken on the machine. The library's `by_time` runs every layer six times, forward and backward, and takes the median of the last five; PipeDream introduced this under the name of *profiling*. Memory can overrule it: the first stage keeps S micro-batches and the last stage one, so a cut that is perfect in time may not fit on stage 0.
#
# ## Tied embeddings over stages
#
# The cut above hides a difficulty. In GPT-2, and in many models since, the embedding and the projection are *the same table*: its row for a token is what goes in for that token, and what the output is compared with. They are [tied](term:tied-embedding). But the embedding lies on the first stage, and the projection on the last. One parameter has to be in two places.
#
# ![Three stages. Stage 0 looks tokens up in the table E, stage 2 multiplies by its copy of E. In backward each of the two has a part of the gradient. An all-reduce in a group of these two stages sums the parts, so that both take the same step. Stage 1 has no part in it.](../course/16_pipelines/figures/tied.svg)
#
# So both stages hold a copy, and it is data parallelism on a small scale: equal start, equal gradients, equal steps. What is the gradient of a parameter that is used twice? The chain rule adds the contributions of both uses. Autograd does this by itself as long as both uses are in one graph. Here each stage's autograd sees one use only, and finds one *part* of the gradient. So we need
#
# 1. a broadcast at the beginning, so that the copies are equal;
# 2. a group of the two stages, and in it one all-reduce of the gradient (a *sum*, not a mean) after the last backward and before the optimizer's step.
#
# Here it is, with a table of 12 tokens. The all-reduce is the line that is easily forgotten. The library does both steps if `Pipeline` is told what is tied, and under which name; so we run it in three ways.

# %%
from minidist.collectives import all_reduce_


class LookUp(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table.clone())

    def forward(self, tokens):
        return self.table[tokens]


class Project(LookUp):
    def forward(self, x):
        return x @ self.table.T


torch.manual_seed(0)
table = torch.randn(12, 8, dtype=torch.float64)
inner = torch.randn(8, 8, dtype=torch.float64)
tokens = torch.randint(12, (24,))
following = torch.randint(12, (24,))


def middle():
    layer = nn.Linear(8, 8, bias=False, dtype=torch.float64)
    layer.weight.data.copy_(inner)
    return layer


def train_tied(comm, exchange, steps=10):
    """Three stages. exchange: None, "by hand", or "library". Returns the table after each step and its first gradient,
    of stages that have one, and the losses, of the last stage."""
    part = [LookUp(table), middle(), Project(table)][comm.rank]
    ends = comm.split([0, None, 0])  # the first stage and the last; None is in no group
    tied = {}
    if exchange == "library" and ends is not None:
        tied = {"tokens": part.table}
    pipeline = Pipeline(part, comm, loss_fn=nn.functional.cross_entropy, tied=tied)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.5)
    history = []
    gradients = []
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        of_micro_batches = pipeline.step(4, tokens, following)
        if of_micro_batches:
            losses.append(float(torch.stack(of_micro_batches).mean()))
        if exchange == "by hand" and ends is not None:
            all_reduce_(ends, part.table.grad)  # the sum of both parts
        if ends is not None:
            gradients.append(part.table.grad.clone())
        optimizer.step()
        if ends is not None:
            history.append(part.table.detach().clone())
    return history, gradients, losses


# %% [markdown]
# The oracle is one model with one table, used twice:


# %%
def serial_tied(steps=10):
    shared = nn.Parameter(table.clone())
    layer = middle()
    optimizer = torch.optim.SGD([shared, *layer.parameters()], lr=0.5)
    history = []
    for _ in range(steps):
        optimizer.zero_grad()
        for x_of_micro, y_of_micro in zip(tokens.chunk(4), following.chunk(4)):
            logits = layer(shared[x_of_micro]) @ shared.T
            (nn.functional.cross_entropy(logits, y_of_micro) / 4).backward()
        if not history:
            gradient = shared.grad.clone()
        optimizer.step()
        history.append(shared.detach().clone())
    return history, gradient


right, whole_gradient = serial_tied()
ways = {"not summed": None, "summed by hand": "by hand", "by the library": "library"}
tied_runs = {name: World(3).run(train_tied, exchange) for name, exchange in ways.items()}
rows = []
for name, result in tied_runs.items():
    row = [name]
    for stage in (0, 2):
        error = (result[stage][1][0] - whole_gradient).norm() / whole_gradient.norm()
        row.append(f"{error:.0%}" if error > 1e-12 else "below 1e-12")
    losses = result[2][2]
    rows.append((*row, f"{losses[0]:.2f}", f"{losses[-1]:.2f}"))
study.table(
    rows,
    ["gradients are", "stage 0 is off by", "stage 2 is off by", "first loss", "loss of step 10"],
    title="The table's gradient, against the serial one",
)

# %%
count = range(1, 11)
apart = {}
for name in ("not summed", "summed by hand"):
    first_stage, _, last_stage = tied_runs[name]
    gaps = [float((a - b).abs().max()) for a, b in zip(first_stage[0], last_stage[0])]
    apart[name] = count, gaps
study.curves(
    apart,
    xlabel="step",
    ylabel="largest difference of the two tables",
    title="Two copies of one table",
)

# %% tags=["maintainer"]
assert apart["not summed"][1][-1] > 0.1 and not any(apart["summed by hand"][1])
for name in ("summed by hand", "by the library"):
    assert (tied_runs[name][0][0][-1] - right[-1]).abs().max() < 1e-12
assert [row[1] == "below 1e-12" for row in rows] == [False, True, True]
assert all(result[2][2][-1] < result[2][2][0] for result in tied_runs.values())

# %% [markdown]
# Without the sum each copy takes steps of its own, and after a few of them what used to be one table has become two. Nothing crashes, and the loss even falls: an untied model trains, too. You notice when you save the model, because a checkpoint has room for one of them.
#
# **What does it cost?** The group has two ranks, so that an all-reduce sends 2(n − 1)/n · N = N bytes from each, once a *step*, not once a micro-batch. GPT-3's table has 50,257 rows of 12,288 numbers. **How many bytes of gradients in fp32 does each of the two stages send?**

# %%
guess_bytes = "100 MB"  # change this

# %% tags=["answer"]
study.reveal(
    guess_bytes,
    50_257 * 12_288 * 4,
    unit="B",
    words="At 25 GB/s, a fast link between nodes, this takes a tenth of a second, in which the next step cannot begin.",
)

# %% [markdown]
# Both stages also keep the optimizer's states of the table, and whoever computes the norm of all gradients must count it once. The library does all this for any number of tied parameters on any stages; it finds out who holds which by their names.
#
# ## Recomputation
#
# If even S activations are too many, keep only the *inputs* of a stage and run its forward again when the backward comes, as in [lesson 11](lesson:remat). One more forward on top of three units of work is a third more time. **With M = 8, does GPipe or 1F1B gain more memory from it, on stage 1?**

# %%
guess_gains = "1F1B"  # or "GPipe"

# %%
rows = []
held = {}
for name in ("GPipe", "1F1B"):
    for recompute in (False, True):
        world, *_ = piped(known[name], 8, recompute=recompute)
        held[name, recompute] = activations(world, 1)
        how = "run again" if recompute else "kept"
        rows.append((name, how, f"{1e3 * world.time:.0f}", f"{held[name, recompute] / 1e9:.2f}"))

# %% tags=["answer"]
study.reveal(
    guess_gains,
    "GPipe",
    study.table(
        rows,
        ["schedule", "forward is", "ms", "GB of activations, stage 1"],
        title="Memory for time",
    ),
    options=["GPipe", "1F1B"],
    words="The micro-batch that is going back needs its whole graph for a moment, whichever schedule it is. GPipe saves on seven others, and 1F1B on two.",
)

# %% tags=["maintainer"]
gain = {name: held[name, False] - held[name, True] for name in known if name != "naive"}
assert gain["GPipe"] > gain["1F1B"]

# %% [markdown]
# This is why GPipe's authors always recompute, and why with 1F1B one first tries without it. Our stages have two layers, so that one input is kept instead of two; with ten layers it would be one instead of ten.
#
# ## When not to use it
#
# **When the model fits on one GPU.** Then [data parallelism](lesson:data_parallel) has no bubble. Here are the same model and the same batch on the same four GPUs, once as four copies and once as four stages:


# %%
def replicas(comm):
    model = layers(8, first=True)
    model(torch.empty(8 * ROWS // comm.size, H, device="meta")).sum().backward()
    all_reduce_(comm, [p.grad for p in model.parameters()], op="mean")


copies, _ = run(replicas)
gigabytes = [sum(p.nbytes for p in layers(count, True).parameters()) / 1e9 for count in (8, 2)]
rows = [
    ("data parallel", f"{1e3 * copies.time:.0f}", f"{gigabytes[0]:.2f}"),
    ("1F1B, M = 8", f"{1e3 * one_f.time:.0f}", f"{gigabytes[1]:.2f}"),
]
study.table(
    rows, ["4 GPUs", "ms a step", "GB of weights on each"], title="Faster, if there is room"
)

# %% [markdown]
# **When the batch is small.** Micro-batches cannot be cut for ever. A GPU computes a product in tiles, the smallest of which have 128 rows, and a tile that is half empty takes as long as a full one. Each micro-batch also adds its gradient to all weights' gradients, whatever its size. Here is a batch of only 1,024 rows. **Which M is best?**

# %%
guess_M = 32  # 1, 2, 4, 8, 16 or 32

# %%
Ms = [1, 2, 4, 8, 16, 32]
small_runs = {M: piped(known["1F1B"], M, rows=1024 // M) for M in Ms}
small = [world.time for world, *_ in small_runs.values()]
without_loss = [small[0] / 4 * (M + 3) / M for M in Ms]
best = Ms[small.index(min(small))]

# %% tags=["answer"]
study.reveal(
    guess_M,
    best,
    study.curves(
        {"if only the bubble counted": (Ms, without_loss)},
        points={"run": (Ms, small)},
        logx=True,
        yunit="s",
        xlabel="micro-batches, M",
        ylabel="time of a step",
        title="1,024 rows: the bubble shrinks, the work grows",
    ),
    words="At M = 8 a micro-batch has 128 rows, which just fill a tile. With fewer rows each micro-batch takes as long, and there are more of them.",
)

# %% tags=["maintainer"]
assert best == 8 and 2.25 < small[0] / min(small) < 2.35

# %% [markdown]
# **When layers are few.** With 5 equal layers on 4 stages, one stage has two of them, and the others wait for it. Even without any bubble the four together are busy for 5 of 8 slots.
#
# ## The library's file
#
# [pipeline.py](file:minidist/parallel/pipeline.py) contains what we have built, and one executor for every kind of list. Its step is a loop over this stage's actions:

# %%
study.source(Pipeline.step, docstring=False)

# %% [markdown]
# `_plan` lays out the lists of *all* stages and validates them the first time, so that a wrong schedule raises on every rank before anything is sent. A forward is our `F` branch. What it has to keep is an `Activations`, which is also where recomputation lives:

# %%
study.source(Pipeline.forward, docstring=False)

# %% [markdown]
# A backward takes the gradient either from the loss, on the last stage, where each micro-batch has its share of the batch (so uneven ones are right, too), or from the stage behind:

# %%
study.source(Pipeline._back, docstring=False)

# %% [markdown]
# No list mentions messages. They follow from it: `messages.receive` waits for the item that an action needs, and `messages.send` starts the item that it has made and goes on. Shapes are told once, receives are posted one ahead, and every edge and direction has its channel ([Messages](file:minidist/parallel/pipeline.py)). At the end of a step the tied parameters are summed. `begin` has put aside what the gradients held before the step, so that an accumulated gradient is not summed twice:

# %%
from minidist.parallel.pipeline import Ties

study.source(Ties.end, docstring=False)

# %% [markdown]
# The rest of the file tells shapes, evaluates without gradients, and cuts the layers (`partition`, `by_time`). The lists themselves are in [schedules.py](file:minidist/parallel/schedules.py), the validator in [validate.py](file:minidist/parallel/validate.py).
#
# ## In real processes, and on a cluster
#
# Here is the step with the digits once more, on three processes of this machine:

# %%
real = launch(train_step, 3, schedules.one_f_one_b, x, y, 6)
gradients = [g for stage in real for g in stage]
close = [
    torch.allclose(g, want, rtol=0, atol=1e-12) for g, want in zip(gradients, wanted, strict=True)
]
print("the serial gradients, from three processes:", all(close))

# %% tags=["maintainer"]
assert all(close)

# %% [markdown]
# A script trains a small GPT on text in this way, with tied embeddings and any schedule: [examples/train_pipeline.py](file:examples/train_pipeline.py). Its stages may lie on several machines; the commands differ in nothing but `torchrun`'s own flags.
#
# ```
# python examples/train_pipeline.py --ranks 4 --runner world
# python examples/train_pipeline.py --ranks 3 --runner processes --schedule gpipe
# torchrun --nproc-per-node 4 examples/train_pipeline.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_pipeline.py --layers 16
# ```
#
# ## Takeaways
#
# - A pipeline sends activations and their gradients between neighbours, and never a weight. It asks little of the links.
# - The naive order is no faster than one GPU. With M micro-batches the bubble is $\frac{S-1}{M+S-1}$ of the time.
# - GPipe keeps the activations of M micro-batches. 1F1B has the same bubble and keeps S − *s* on stage *s*.
# - Sends must not wait, and activations and gradients must not stand in one queue.
# - The gradient is the serial one, bit for bit.
# - Cut the layers by measured time. Sum the gradients of tied parameters over the stages that hold them.
# - Use pipelines for what does not fit, with many micro-batches that are not small.
#
# ## Further reading
#
# - paper:huang2019 Micro-batches, the bubble, and recomputation.
# - paper:narayanan2019 Partition by measured time, and 1F1B without a flush, which is [lesson 18](lesson:pipedream).
# - paper:narayanan2021 1F1B with a flush, and a pipeline together with data and tensor parallelism.
