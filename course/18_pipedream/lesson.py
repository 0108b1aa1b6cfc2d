# %% [markdown]
# # 18 · PipeDream
#
# [Pipelines](lesson:pipelines) and [Schedules](lesson:schedules) fought against one thing: before each update of the weights a pipeline runs empty, and after it the pipeline has to be filled again. That is a [flush](term:flush), and with 1F1B, four stages and eight micro-batches it cost 27 % of the time.
#
# So why flush at all? Suppose that nobody waits. Each stage updates its weights as soon as it has a gradient, and goes on with the next micro-batch. The bubble is gone, after the first few slots and for good. This is **PipeDream**, and the lesson is about what it costs. One part of the price is memory, the other is the result: the gradients are no longer quite those of the weights that they change.
#
# We begin with the memory. Four stages together hold a model's weights once. **How many times do they hold them without a flush, if each gradient is to be a correct one?**

# %%
guess = 1.0  # times the model's weights, over all 4 stages: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Three ranks hold one weight each: 2, 3 and 5. Six micro-batches come. To keep the numbers easy, let every update add 1 to the weight. The order is 1F1B, with an update `U` after every backward. In the grid an update takes no time, so it has no column of its own: read a `U` after every `B`.

# %%
from functools import partial

import torch
from IPython.display import display
from torch import nn
from torch.func import functional_call

from minidist import study
from minidist.comm import World, launch
from minidist.parallel.schedules import lists, one_f_one_b, pipedream, pipedream_2bw
from minidist.parallel.simulate import grid, simulate
from minidist.parallel.validate import ScheduleError, forward_versions, held, staleness, validate

print("stage 0:", *pipedream(0, 3, 6), "\n")
print(grid(lists(one_f_one_b, 3, 6)))


# %%
def meets(comm, M):
    """The weight of this rank at each forward and at each backward."""
    weight = [2, 3, 5][comm.rank]
    met = {"F": [], "B": []}
    for action in pipedream(comm.rank, comm.size, M):
        if action.kind == "U":
            weight += 1
        else:
            met[action.kind].append(weight)
    return met


met = World(3).run(meets, 6)
rows = []
for rank in range(3):
    rows.append((f"rank {rank}, forward", *met[rank]["F"]))
    rows.append((f"rank {rank}, backward", *met[rank]["B"]))
study.table(rows, ["micro-batch", *range(6)], title="The weight that each micro-batch meets")

# %% tags=["maintainer"]
assert met[0] == {"F": [2, 2, 2, 3, 4, 5], "B": [2, 3, 4, 5, 6, 7]} and met[2]["F"] == met[2]["B"]

# %% [markdown]
# Read the two rows of rank 0. Micro-batch 3 goes forward through a weight of 3. By the time its gradient comes back, two updates have been made, and the weight is 5. On rank 2 the two rows are the same, because there the backward follows its forward at once.
#
# The number of updates between the two is the [staleness](term:staleness) of the gradient. You know it from the [parameter server](lesson:server), where it depended on chance, on how fast each worker happened to be. Here it is fixed by the schedule. **With four stages, in the middle of a long run, how stale is a gradient on stage 0, and how stale on stage 3?**

# %%
guess_stale = {"stage 0": 1, "stage 3": 1}  # updates: change these numbers

# %%
late = staleness(lists(pipedream, 4, 8))

# %% tags=["answer"]
study.reveal(
    guess_stale,
    {"stage 0": max(late[0].values()), "stage 3": max(late[3].values())},
    study.table(
        [(f"stage {s}", *row.values()) for s, row in enumerate(late)],
        ["staleness of", *range(8)],
    ),
    unit="updates",
    words="The first micro-batches are less stale: when they come, hardly anything has been updated.",
)

# %% tags=["maintainer"]
assert [max(row.values()) for row in late] == [3, 2, 1, 0]

# %% [markdown]
# **Why.** In 1F1B stage *s* has S − *s* micro-batches under way. When a micro-batch begins its forward there, it is the last of these S − *s*. The S − *s* − 1 others go back before it does, and each of them makes one update on its way. So a gradient is S − 1 − *s* updates late.
#
# ## What the missing flush is worth
#
# Here are 32 micro-batches: once in four steps of eight with a flush after each, and once in a single stream. (The paper says *minibatch* for what is a micro-batch here, because each has an update of its own.)

# %%
flushed = simulate(lists(one_f_one_b, 4, 8))
stream = simulate(lists(pipedream, 4, 32))
print(f"4 steps with a flush: {4 * flushed.time:g} slots, {flushed.bubble:.1%} waiting")
print(f"one stream: {stream.time:g} slots, {stream.bubble:.1%} waiting")

# %% tags=["maintainer"]
assert abs(4 * flushed.time / stream.time - 1.26) < 0.01

# %% [markdown]
# What waiting is left belongs to the start and the end of the run. In a run of a million micro-batches it is nothing. The picture has ten micro-batches, so that you can follow their numbers; a slot is drawn as a second, and an update as a quarter of one. Point at an action to read what it is.

# %%
fives = []
for row in lists(one_f_one_b, 4, 5):
    second = [action._replace(micro=action.micro + 5) for action in row]
    fives.append(row + second)
study.stages(
    {
        "1F1B, a flush after five": simulate(fives, update=0.25),
        "PipeDream": simulate(lists(pipedream, 4, 10), update=0.25),
    },
    title="Ten micro-batches: the pipeline fills twice, or once",
)

# %% [markdown]
# Nothing else has changed. A stage keeps the activations of as many micro-batches as in 1F1B, S − s of them, and the same messages go over the same edges. And still the slowest stage sets the pace of all the others, so the layers have to be cut by the time that they take, as in [Pipelines](lesson:pipelines); without a bubble it is the only cause of waiting that is left.
#
# In the editor you can see how the order decides the staleness. Drag `U0` of stage 0 behind `F3`, say, and count the updates between the forward and the backward of micro-batch 3. The second schedule to start from gives stage 0 one forward fewer to warm up, which makes its list that of stage 1. Its gradients are then only one update late, and the run takes 36 slots instead of 24: being late is what keeps the stages busy.

# %%
usual = lists(pipedream, 3, 6)
fewer = [usual[1], *usual[1:]]
study.schedule_editor(
    {"PipeDream": usual, "one forward fewer on stage 0": fewer},
    6,
    title="Three stages, six micro-batches, no flush",
)

# %% tags=["maintainer"]
assert (simulate(usual).time, simulate(fewer).time) == (24, 36)
assert max(staleness(fewer)[0].values()) == 1

# %% [markdown]
# ## The naive way, and why it is wrong
#
# It seems that all one has to do is to call the optimizer after each backward. Before we try it, do the arithmetic for a stage that multiplies by two weights, first by a = 2 and then by b = 3. Its input is x = 1.
#
# 1. Forward: h = a·x = 2, and the output b·h = 6. The stage keeps x and h for the backward.
# 2. While the micro-batch is away, an update makes a = 4 and b = 5.
# 3. A gradient of 1 comes back from the right. The stage computes the gradient of b, which is 1 · h = 2, and that of a, which is 1 · b · x = 5.
#
# At the old weights the gradients of (a, b) are (3, 2). At the new ones they are (5, 4). What came out is (5, 2): half of it was computed from an activation that the old weights made, the other half from a new weight. It is the gradient at no weights that this stage ever had. And the gradient of the *input*, which goes to the stage before, is a·b = 20, while the old weights say 6.
#
# Now with PyTorch, and two micro-batches under way on one stage:


# %%
def parts():
    """Four stages, each with a matrix, a LayerNorm and a tanh."""
    torch.manual_seed(0)
    made = []
    for _ in range(4):
        made.append(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh()).double())
    return made


part = parts()[0]
x = torch.ones(2, 4, dtype=torch.float64)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
first = part(x)
second = part(x)
first.sum().backward()
optimizer.step()
try:
    second.sum().backward()
except RuntimeError as why:
    print(str(why).split(":")[0])

# %% [markdown]
# Autograd protects us. It has noted which version of each tensor the forward used, and refuses to go on when an optimizer has changed it in place. That is a good error. Unfortunately it is easy to silence, and people do: with `p.data = new` the parameter moves to another piece of memory behind autograd's back. **Which weights does the backward then use: `"the old ones"`, `"the new ones"`, or `"it depends on the layer"`?**

# %%
guess_silenced = "the old ones"  # change this


# %%
def backward_uses(layer):
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    dy = torch.arange(8.0).reshape(2, 4)
    (before,) = torch.autograd.grad(layer(x), x, dy)
    y = layer(x)
    for p in layer.parameters():
        p.data = 2 * p.data
    (after,) = torch.autograd.grad(y, x, dy)
    return "the old ones" if torch.allclose(after, before) else "the new ones"


found = {type(layer).__name__: backward_uses(layer) for layer in (nn.Linear(4, 4), nn.LayerNorm(4))}

# %% tags=["answer"]
study.reveal(
    guess_silenced,
    "it depends on the layer",
    study.table(list(found.items()), ["layer", "after p.data = new, its backward uses"]),
    options=["the old ones", "the new ones", "it depends on the layer"],
    words="The graph of a Linear holds a view of the old memory. That of a LayerNorm holds the parameter itself, and reads what is in it when backward comes by.",
)

# %% tags=["maintainer"]
assert found == {"Linear": "the old ones", "LayerNorm": "the new ones"}

# %% [markdown]
# So a test with plain linear layers passes, and the transformer that you train afterwards is wrong, without any error.
#
# ## Weight stashing
#
# The remedy is one sentence: **the backward uses the weights that its forward used.** They must therefore be kept until then. This is [weight stashing](term:weight-stashing). The picture shows the first of two stages. Follow micro-batch 1: `F1` uses version 0; `U0` then makes version 1; but `B1` goes back through version 0. Its gradient is then subtracted from the *newest* weights, version 1, which gives version 2. It would make no sense to subtract it from version 0, for the work of `U0` would be lost.
#
# ![Stage 0 of two in PipeDream. F0 and F1 use version 0 of the weights. B0 uses version 0 as well, then U0 makes version 1. F2 uses version 1. B1 goes back through version 0, which was stashed; U1 makes version 2. At most two versions are held.](../course/18_pipedream/figures/weight_stashing.svg)
#
# In code, a version is a dictionary of tensors. `functional_call` runs a module with the tensors of a dictionary in place of its own parameters, and an update makes a new dictionary instead of changing the old one. As in the lesson on pipelines, activations go through one channel and gradients through another.


# %%
def forward(down, part, weights, x, sends):
    """One F. Returns the input and the output, for the backward."""
    if down.rank > 0:
        x = down.recv(torch.empty_like(x), down.rank - 1)
    x = x.detach().requires_grad_()
    y = functional_call(part, weights, x)
    if down.rank < down.size - 1:
        sends.append(down.isend(y.detach(), down.rank + 1))
    else:
        y = y.square().mean()  # the loss
    return x, y


def backward(up, x, y, weights, sends):
    """One B, through the weights of its F. Returns their gradients."""
    dy = None  # the loss needs none
    if up.rank < up.size - 1:
        dy = up.recv(torch.empty_like(y), up.rank + 1)
    dx, *grads = torch.autograd.grad(y, [x, *weights.values()], dy)
    if up.rank > 0:
        sends.append(up.isend(dx, up.rank - 1))
    return dict(zip(weights, grads))


def updated(weights, grads, rate=0.1):
    """One U: a new version. The old one stays as it is, for somebody may still need it."""
    new = {}
    for name, weight in weights.items():
        new[name] = (weight - rate * grads[name]).detach().requires_grad_()
    return new


# %% [markdown]
# What remains is bookkeeping. `newest` is the version that forwards use. `stash` remembers, for each micro-batch under way, the version that its forward used. Nothing is copied for that: two micro-batches that used the same version point to the same dictionary, and when the last of them has gone back, nobody points to it and Python frees it.


# %%
def by_hand(comm, xs):
    """Train this stage on a stream of micro-batches. Returns its newest weights."""
    down = comm.split([0] * comm.size)
    up = comm.split([0] * comm.size)
    part = parts()[comm.rank]
    newest = dict(part.named_parameters())
    sends = []
    stash = {}
    kept = {}
    for kind, m, _ in pipedream(comm.rank, comm.size, len(xs)):
        if kind == "F":
            stash[m] = newest
            kept[m] = forward(down, part, newest, xs[m], sends)
        elif kind == "B":
            grads = backward(up, *kept.pop(m), stash.pop(m), sends)
        else:
            newest = updated(newest, grads)  # added to the newest, wherever they come from
    for work in sends:
        work.wait()
    return newest


# %% [markdown]
# ## The oracle: late gradients
#
# With a flush, the oracle was the serial program. Here it cannot be, for the gradients are late. But stashing makes PipeDream a simple thing after all: it is gradient descent in which the weights of stage *s* are S − 1 − *s* updates old when the gradient is computed. To say this, one needs no pipeline, no messages and no schedule. One rank and a loop over the micro-batches are enough.


# %%
def serial(xs, late):
    """Gradient descent in which micro-batch m sees weights of stage s that are late(s) updates old."""
    stages = parts()
    made = [[dict(part.named_parameters())] for part in stages]  # made[s][k]: version k of stage s
    for m, x in enumerate(xs):
        used = []
        for s, part in enumerate(stages):
            used.append(made[s][max(0, m - late(s))])
            x = functional_call(part, used[s], x)
        tensors = [weight for weights in used for weight in weights.values()]
        grads = iter(torch.autograd.grad(x.square().mean(), tensors))
        for versions, weights in zip(made, used):
            own = {name: next(grads) for name in weights}
            versions.append(updated(versions[-1], own))
    return [versions[-1] for versions in made]


def apart(found, wanted):
    """The largest difference between two sets of weights."""
    largest = 0.0
    for mine, theirs in zip(found, wanted, strict=True):
        for name in theirs:
            largest = max(largest, (mine[name] - theirs[name]).abs().max().item())
    return largest


torch.manual_seed(1)
xs = list(torch.randn(12, 3, 4, dtype=torch.float64))
wanted = serial(xs, late=lambda s: 3 - s)
never_late = serial(xs, late=lambda s: 0)
on_stages = World(4).run(by_hand, xs)
equal = apart(on_stages, wanted) < 1e-12
print(f"from late gradients, 3, 2, 1 and 0 updates: {'below 1e-12' if equal else 'more'} apart")
print(f"from gradients that are never late: {apart(on_stages, never_late):.1e} apart")

# %% tags=["maintainer"]
assert apart(on_stages, wanted) < 1e-12 < 1e-3 < apart(on_stages, never_late)

# %% [markdown]
# The four stages agree with the loop, up to rounding at most. They do not agree with ordinary gradient descent, and no bug is to blame for that. It is the second part of the price, and we shall come to it.
#
# ## How many versions?
#
# A version is kept until the last micro-batch that used it has gone back. **How many versions does the first of four stages hold at the peak? The newest counts.**

# %%
guess_versions = 1  # change this number

# %%
rows = held(lists(pipedream, 4, 12))
steps = {}
for s, row in enumerate(rows):
    edges = [action + end for action in range(len(row)) for end in (0, 1)]
    steps[f"stage {s}"] = (edges, [versions for versions in row for _ in (0, 1)])

# %% tags=["answer"]
study.reveal(
    guess_versions,
    max(rows[0]),
    study.curves(
        steps,
        xlabel="actions of the list",
        ylabel="versions held",
        title="Stage s holds up to S − s versions",
    ),
    unit="versions",
)

# %% tags=["maintainer"]
assert [max(row) for row in rows] == [4, 3, 2, 1]

# %% [markdown]
# **Why.** Look at the moment when micro-batch *m* goes back on stage *s*. It used version *m* − (S − 1 − *s*). The newest is version *m*, because *m* updates have been made. Every version between them was used by a micro-batch that is still under way. That makes S − *s* versions.
#
# In total, $S + (S-1) + \ldots + 1 = \frac{S(S+1)}{2}$ copies of a stage's weights: 10 for four stages, where a pipeline with a flush needs 4. Note who pays. The first stage also keeps the most activations, so it pays twice, and the last one pays nothing. And note that only weights are multiplied. The optimizer's states, such as Adam's two moments, belong to the newest version and are held once.
#
# The validator counts versions, too. It can be told how many a stage has room for, or that nothing is stashed at all, and it names the first action that goes wrong:

# %%
for rule in ({"most": 3}, {"stash": False}):
    try:
        validate(lists(pipedream, 4, 8), **rule)
    except ScheduleError as why:
        print(why)

# %% [markdown]
# ## Vertical sync
#
# With stashing each stage agrees with itself. The stages do not agree with each other. Micro-batch 5 uses version 2 on the first of four stages and version 5 on the last, and the model made of these parts is one that no update ever produced. If you want one and the same version everywhere, a micro-batch has to carry a number with it: that of the version which stage 0 used. All other stages then use that version, too. This is [vertical sync](term:vertical-sync).
#
# ![Three stages of PipeDream with five micro-batches, each forward and backward in the colour of the version that it uses. With stashing, micro-batch 4 meets version 2 on stage 0, version 3 on stage 1 and version 4 on stage 2. With vertical sync it meets version 2 on all three.](../course/18_pipedream/figures/versions.svg)
#
# Follow micro-batch 4 down the stages. In the upper half it changes its colour from stage to stage; in the lower half it does not. In both, a backward has the colour of its forward: that is stashing, and vertical sync stashes as well.
#
# What does it cost? Now *every* stage uses version *m* − (S − 1) for micro-batch *m*, and the newest is still version *m* when it goes back. So every stage holds S versions, and every gradient is S − 1 updates late. The last stage, which needed one copy and was never late, now keeps S of them in order to be as late as the first.

# %%
most = {}
of_five = {}
for name, rule in (("stashing", "newest"), ("vertical sync", "first")):
    of_five[name] = [row[5] for row in forward_versions(lists(pipedream, 4, 12), rule)]
    most[name] = [max(row) for row in held(lists(pipedream, 4, 12), rule)]
study.table(
    [(name, *of_five[name], *most[name]) for name in most],
    ["", *(f"F5 on {s}" for s in range(4)), *(f"held on {s}" for s in range(4))],
    title="The version that F5 uses, and the versions held, on stages 0 to 3",
)

# %% tags=["maintainer"]
assert of_five == {"stashing": [2, 3, 4, 5], "vertical sync": [2, 2, 2, 2]}
assert most == {"stashing": [4, 3, 2, 1], "vertical sync": [4, 4, 4, 4]}

# %% [markdown]
# In symbols, if w(t) is the whole model after t updates, vertical sync is $w(t+1) = w(t) - \eta \nabla f(w(t-S+1))$, a rule about which one can prove theorems. PipeDream's authors leave it out by default all the same. We shall see why.
#
# ## PipeDream-2BW: two versions
#
# A version is made by every micro-batch, and that is why there are so many. The way out is to update *less often*: add up the gradients of a group of m ≥ S micro-batches, and update once for each group. The micro-batches of group *g* all use version *g* − 1, on all stages. That is [PipeDream-2BW](term:2bw); the name stands for *double-buffered weights*.
#
# ![PipeDream-2BW on two stages, with an update for every two micro-batches. Groups 0 and 1 use version 0, group 2 version 1, group 3 version 2, on both stages. Version 0 lies in the first buffer until version 2 takes its place, version 1 in the second until version 3 takes its place.](../course/18_pipedream/figures/two_versions.svg)
#
# Three things have to be shown.
#
# 1. *Why not version* g? Because it is made from the gradients of group *g* − 1, and some of these are still on their way when group *g* begins. To wait for them would be a flush.
# 2. *Why is version* g − 1 *there?* It is made from group *g* − 2. A stage has at most S micro-batches under way. When group *g* enters, the whole of group *g* − 1, with its m ≥ S micro-batches, lies between it and group *g* − 2, so that group must have gone back.
# 3. *Why no more than two?* Once version *g* is made, the whole of group *g* − 1 has gone back, and it was the last to use version *g* − 2. The new version can take its place: *two buffers* are enough, whatever S is.
#
# The rule is $w(t+1) = w(t) - \eta \nabla f(w(t-1))$: one update late, the same on all stages, however many there are. And there is still no flush.

# %%
two = partial(pipedream_2bw, m=4)
print("stage 0:", *two(0, 4, 8), "\n")
rows = held(lists(two, 4, 16), "2bw", 4)
late = staleness(lists(two, 4, 16), "2bw", 4)
study.table(
    [(f"stage {s}", max(rows[s]), max(late[s].values())) for s in range(4)],
    ["2BW, 4 stages, m = 4", "versions held", "updates late"],
)

# %% tags=["maintainer"]
assert [max(row) for row in rows] == [2, 2, 2, 2]
assert all(max(row.values()) == 1 for row in late)

# %% [markdown]
# ## Predict the cost, then run: memory
#
# So a stage of N bytes of weights holds (S − s)·N with stashing, S·N with vertical sync and 2·N with 2BW. We check this in a run of the library's `PipeDream`. The model is the one that you know from the two lessons before: 8 matrices of 8,192 × 8,192 on 4 modelled H100s, 537 MB of weights on each. On the device `"meta"` tensors have no numbers, and the World counts bytes and seconds. It knows nothing of versions; it only sees which tensors are alive.

# %%
from minidist.comm.cluster import Cluster
from minidist.comm.cluster import H100
from minidist.parallel.pipedream import PipeDream, PipeDream2BW
from minidist.parallel.pipeline import Pipeline
from minidist.study.predict import most_stale, version_bytes

RULES = ("stash", "vertical", "no stash", "2bw")


def pipeline_for(rule, part, comm, optimizer, loss_fn, m):
    if rule == "2bw":
        return PipeDream2BW(part, comm, optimizer, loss_fn, m=m)
    vertical = rule == "vertical"
    wrong = rule == "no stash"
    return PipeDream(part, comm, optimizer, loss_fn, vertical=vertical, wrong_no_stash=wrong)


def train(part, comm, rule, optimizer, loss_fn, data, m):
    """Train on a stream of micro-batches, or in steps of m with a flush. Returns what was done, and when."""
    if rule != "flush":
        streaming = pipeline_for(rule, part, comm, optimizer, loss_fn, m)
        streaming.run(data)
        return streaming.spans
    pipeline = Pipeline(part, comm, loss_fn=loss_fn)
    step = optimizer(part.parameters())
    spans = []
    for at in range(0, len(data), m):
        xs, ys = zip(*data[at : at + m])
        pipeline.step(m, list(xs), list(ys))
        spans += pipeline.spans
        step.step()
        step.zero_grad()
    return spans


# %%
H = 8192
sgd = partial(torch.optim.SGD, lr=0.1)
adam = partial(torch.optim.Adam, lr=1e-3)


def cost(comm, rule, M, optimizer, rows, m):
    layers = [nn.Linear(H, H, bias=False, device="meta") for _ in range(8 // comm.size)]
    x = torch.empty(rows, H, device="meta")
    data = [(x, x)] * M
    return train(nn.Sequential(*layers), comm, rule, optimizer, lambda y, _: y.sum(), data, m)


def costed(rule, M=32, optimizer=sgd, rows=4096, m=8):
    """The World and every stage's actions, with M micro-batches."""
    world = World(4, cluster=Cluster.uniform(4, 5e-6, 1 / 450e9, H100), device="meta")
    return world, world.run(cost, rule, M, optimizer, rows, m)


def weights_held(world):
    """Bytes of parameters on each rank at the peak, once the model is built."""
    peaks = []
    for rank in range(4):
        memory = world.trace.memory.get(rank)
        peaks.append(int(memory.live["parameters"][memory.times > 0].max()))
    return peaks


# %%
runs = {rule: costed(rule) for rule in ("flush", *RULES)}
stages = range(4)
each = 2 * H * H * 4  # two matrices of float32
predicted = {"flush": (stages, [each] * 4)}
for rule in RULES:
    predicted[rule] = (stages, [version_bytes(rule, s, 4, each) for s in stages])
measured = {rule: (stages, weights_held(world)) for rule, (world, _) in runs.items()}
study.curves(
    predicted,
    points=measured,
    yunit="B",
    xlabel="stage",
    ylabel="weights held at the peak",
    title="What versions cost: lines predicted, points run",
)

# %% tags=["maintainer"]
assert all(measured[rule][1] == predicted[rule][1] for rule in runs)

# %% [markdown]
# They agree to the byte. Added up over the stages, and beside your guess from the beginning:

# %%
once = sum(weights_held(runs["flush"][0]))
copies = {rule: sum(weights_held(world)) / once for rule, (world, _) in runs.items()}

# %% tags=["answer"]
study.reveal(
    guess,
    copies["stash"],
    study.bars(
        {"your guess": guess} | copies, title="The model's weights, how many times, 4 stages"
    ),
    unit="times",
    words="10 copies of a stage where 4 are the model. Without stashing it would be once, and the gradients would be wrong.",
)

# %% tags=["maintainer"]
assert copies == {"flush": 1, "stash": 2.5, "vertical": 4, "2bw": 2, "no stash": 1}

# %% [markdown]
# Move the sliders to see how it grows. With S stages a GPU holds an S-th of the model, and stashing makes that (S + 1)/2 times as much on average: **more than half of the model's bytes on the average GPU, and all of them on the first, however many stages there are.** A pipeline was to make models fit that are too large for one card, and stashing takes that back. 2BW does not.

# %%
study.explore(
    lambda S, GB: {
        "flush": GB * 1e9 / S,
        "stashing, first stage": GB * 1e9,
        "stashing, mean": GB * 1e9 * (S + 1) / 2 / S,
        "vertical sync": GB * 1e9,
        "2BW": 2 * GB * 1e9 / S,
    },
    S=[2, 4, 8, 16, 32],
    GB=[2, 10, 20, 80, 350],
    units={"GB": "GB"},
    unit="B",
    labels={"S": "stages", "GB": "weights of the model"},
    start={"S": 4, "GB": 20},
    title="Weights on one GPU",
)

# %% [markdown]
# ## Predict the cost, then run: time
#
# **How many times as fast as four steps of 8 with a flush is the stream of 32?** You have the bubbles.

# %%
guess_gain = 1.0  # times as fast: change this number

# %%
times = {rule: world.time for rule, (world, _) in runs.items()}
gains = {rule: round(times["flush"] / times[rule], 2) for rule in RULES}

# %% tags=["answer"]
study.reveal(
    guess_gain,
    gains["stash"],
    [
        study.bars(
            gains,
            target=4 * flushed.time / stream.time,
            note="from the bubbles",
            title="Times as fast as a flush",
        ),
        study.stages(
            {rule: runs[rule][1] for rule in ("flush", "stash")},
            title="Flush and stream, as they ran",
        ),
    ],
    unit="times",
    words="(8 + 3)/8 · 32/(32 + 3) from the bubbles; the run also pays for messages and for updates. Stage 0 has small gaps of its own: nobody asks for the gradient of its input, so its backward is shorter.",
)

# %% tags=["maintainer"]
assert all(1.2 < gain < 1.28 for gain in gains.values())

# %% [markdown]
# ## What late gradients do
#
# Take the simplest loss there is, $\lambda w^2/2$ with one weight. Its gradient is $\lambda w$, and an update that is *d* late is $w(t+1) = w(t) - k\,w(t-d)$ with $k = \eta\lambda$. With d = 0 this shrinks as long as k < 2. **Up to which k does it shrink with d = 3, as on the first of four stages?**

# %%
guess_k = 2.0  # change this number


# %%
def weight_after(k, d, steps=40):
    """The weight over time, from 1, with gradients that are d updates late."""
    w = [1.0]
    for t in range(steps):
        w.append(w[t] - k * w[max(0, t - d)])
    return w


def largest_k(d):
    """The largest k with which the weight has become smaller in the end, by halving an interval."""
    low, high = 0.0, 4.0
    for _ in range(14):
        k = (low + high) / 2
        shrinks = max(abs(w) for w in weight_after(k, d, 2000)[-20:]) < 1
        low, high = (k, high) if shrinks else (low, k)
    return round(low, 3)


limits = {d: largest_k(d) for d in range(5)}

# %% tags=["answer"]
study.reveal(
    guess_k,
    limits[3],
    study.curves(
        {
            "formula": (
                range(5),
                [2 * torch.tensor(torch.pi / (4 * d + 2)).sin().item() for d in range(5)],
            )
        },
        points={"tried": (list(limits), list(limits.values()))},
        xlabel="updates late, d",
        ylabel="largest k",
        title="The later the gradient, the smaller the rate",
    ),
)

# %% tags=["maintainer"]
assert all(
    abs(limits[d] - 2 * torch.tensor(torch.pi / (4 * d + 2)).sin().item()) < 0.011 for d in limits
)

# %% [markdown]
# **Why.** A late gradient still pushes to the left when the weight has passed the minimum and should be pushed to the right. So the weight swings. At the border between growing and shrinking, it is a wave, $w(t) = e^{i\omega t}$. Put it into the rule: $e^{i\omega} - 1 = -k\,e^{-i\omega d}$. The left side is $2\sin(\omega/2)$ long, at the angle $\omega/2 + \pi/2$; the right side is k long, at $\pi - \omega d$. From the angles, $\omega = \pi/(2d+1)$, and from the lengths
#
# $$k = 2\,\sin\frac{\pi}{2\,(2d+1)}.$$
#
# It is 2, 1, 0.62, 0.45 for d = 0, 1, 2, 3: roughly $\pi/(2d)$. Three updates late, one can afford less than a quarter of the learning rate. This is about a single weight with a constant slope, but it is what one sees in training.

# %%
study.explore(
    lambda k, d, t: weight_after(k, d)[t],
    over="t",
    k=[0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.1],
    d=[0, 1, 2, 3],
    t=list(range(41)),
    labels={"k": "learning rate times curvature", "d": "updates late", "t": "updates"},
    start={"k": 0.3, "d": 3},
    ylabel="weight",
    title="One weight on its way to 0",
)

# %% [markdown]
# ## Break it: leave out the stash
#
# Does it learn? We train an MLP of 4 layers on 4 stages to read digits, with 160 micro-batches of 32, once with a learning rate that late gradients can hardly bear and once with a smaller one. One seed says little, so there are five: five models side by side in one tensor, which share nothing.

# %%
from minidist.models import generator
from minidist.tasks import digits

SEEDS = range(5)
task = digits()
chosen = torch.stack(
    [torch.randint(len(task.x), (160, 32), generator=generator(s, "batches")) for s in SEEDS], 1
)
data = [(task.x[own], task.y[own]) for own in chosen]


class Layer(nn.Module):
    """A layer of five models: (5, rows, 64) to (5, rows, outputs)."""

    def __init__(self, number, outputs):
        super().__init__()
        drawn = [torch.randn(64, outputs, generator=generator(s, f"layer {number}")) for s in SEEDS]
        self.weight = nn.Parameter(torch.stack(drawn).double() / 32**0.5)
        self.bias = nn.Parameter(torch.zeros(5, 1, outputs, dtype=torch.float64))
        self.then = nn.ReLU() if outputs == 64 else nn.Identity()

    def forward(self, x):
        return self.then(torch.baddbmm(self.bias, x, self.weight))


def learn(comm, rule, rate, data):
    """The loss of each micro-batch, for each of the five models; on the last stage."""
    part = Layer(comm.rank, 64 if comm.rank < 3 else 10)
    losses = []

    def loss_fn(logits, y):
        each = nn.functional.cross_entropy(logits.permute(1, 2, 0), y.T, reduction="none").mean(0)
        losses.append(each.detach())
        return each.sum()  # of five models, whose gradients do not meet

    train(part, comm, rule, partial(torch.optim.SGD, lr=rate), loss_fn, data, 4)
    return losses


# %%
torch.set_num_threads(1)  # products so small are slower on two cores
learned = {}
for rate in (0.36, 0.1):
    for rule in ("flush", *RULES):
        if (rule, rate) != ("2bw", 0.36):
            learned[rule, rate] = torch.stack(World(4).run(learn, rule, rate, data)[3])


def smooth(losses, width=20):
    """The mean, over the last micro-batches, of the median of five seeds."""
    return losses.nan_to_num(9).median(1).values.unfold(0, width, 1).mean(1).clamp(max=4).tolist()


shown = {
    rule: (range(20, 161), smooth(learned[rule, 0.36]))
    for rule in ("flush", "stash", "vertical", "no stash")
}
study.curves(
    shown,
    xlabel="micro-batches",
    ylabel="loss, median of five seeds (4 is 4 or more)",
    title="Learning rate 0.36",
    words="With a flush it learns. With stashing it learns, too, but later. "
    "Vertical sync stays near 2.3. Without stashing the loss bursts, and then stays at 2.3.",
)

# %% tags=["maintainer"]
last = {rule: y[-1] for rule, (_, y) in shown.items()}
assert (
    last["flush"] + 0.3 < last["stash"] < 1.7 < 2.1 < last["vertical"]
    and 2.2 < last["no stash"] < 2.4
)
assert max(shown["no stash"][1]) == 4 > 3 > max(shown["vertical"][1])

# %% [markdown]
# To know nothing at all about ten digits is a loss of ln 10 = 2.30. Rate, batches and start are the same in all four. (At this rate the training is chaotic: another processor adds in another order, and that alone moves some of the losses by a quarter. Who is ahead of whom stays the same.) Here is the smaller rate, with every seed:

# %%
end = {key: losses[-40:].mean(0).nan_to_num(9) for key, losses in learned.items()}
rows = [
    (rule, *(f"{loss:.2f}" for loss in losses))
    for (rule, rate), losses in end.items()
    if rate == 0.1
]
study.table(
    rows,
    ["rule", *(f"seed {s}" for s in SEEDS)],
    title="Learning rate 0.1: loss of the last 40 micro-batches",
)

# %% tags=["maintainer"]
assert (
    end["stash", 0.36].max() < 2 < 2.2 < end["no stash", 0.36].min()
    and end["vertical", 0.36].min() > 2.1
)
assert (end["flush", 0.36] < end["stash", 0.36]).all() and end["no stash", 0.36].max() < 2.4
assert end["stash", 0.1].max() < min(
    end[key].min() for key in (("flush", 0.1), ("vertical", 0.1), ("stash", 0.36))
)
assert end["no stash", 0.1].min() < end["stash", 0.1].median() < end["no stash", 0.1].max()
assert (end["stash", 0.1] < end["vertical", 0.1]).all()
assert (end["flush", 0.1] < end["2bw", 0.1]).all()

# %% [markdown]
# - **No stashing.** At 0.36 the loss bursts, and what is left knows nothing, with every seed. At 0.1 nobody could tell it from stashing: the seeds differ by more than the two rules do, because the weights hardly move in three updates. That is what makes this such a bad bug. It is there all the time, and waits for a larger rate or a deeper model.
# - **Stashing.** It learns with both rates, and better with the smaller one, as the formula led us to expect. There it is ahead of the flush with every seed; but it has made 160 updates, and the flush 40. Count updates before you compare.
# - **Vertical sync.** It is consistent, and it does not learn at 0.36. At 0.1 it is behind stashing with every seed. Its gradients are three updates late on *all* stages, and the last ones no longer get fresh ones. Consistent is not fresh, and freshness is what counts here.
# - **2BW.** It makes 40 updates, as the flush does, and each is one update late. In so short a run it is behind the flush with every seed. Its authors report that long runs end with the same quality.
#
# The loss did not show the missing stash at the small rate. What does? The oracle. It knows the weights that every *right* rule must end with:


# %%
def with_library(comm, xs, rule):
    part = parts()[comm.rank]
    pipeline = pipeline_for(rule, part, comm, sgd, lambda y, _: y.square().mean(), 4)
    pipeline.run([(x, x) for x in xs])
    return dict(part.named_parameters()), max(pipeline.staleness), pipeline.versions.most


rows = []
differences = {}
for rule in ("stash", "vertical", "no stash"):
    weights, updates_late, versions = zip(*World(4).run(with_library, xs, rule))
    expected = serial(xs, lambda s, rule=rule: most_stale(rule, s, 4))
    differences[rule] = apart(weights, expected)
    far = f"{differences[rule]:.0e}" if differences[rule] > 1e-12 else "below 1e-12"
    rows.append((rule, far, str(updates_late), str(versions)))
study.table(rows, ["", "from late gradients", "updates late, by stage", "versions held, by stage"])

# %% tags=["maintainer"]
assert differences["no stash"] > 1e-4 and max(differences["stash"], differences["vertical"]) < 1e-12

# %% [markdown]
# How late the updates are would not have told you either, since without a stash they are as late as with one. Only the weights differ, by a thousandth after twelve micro-batches. So test an asynchronous pipeline by its weights, in double precision, with a layer that holds its parameters, such as a LayerNorm, and not by its loss.
#
# ## When not to use it
#
# **When there are many micro-batches.** A flush costs (S − 1)/(M + S − 1) of the time, so PipeDream is at most (M + S − 1)/M times as fast. **From how many micro-batches in a batch on does it gain 5 % or less, with 4 stages?**

# %%
guess_M = 8  # change this number

# %%
enough = next(M for M in range(1, 1000) if (M + 3) / M <= 1.05)
Ms = [2, 4, 8, 16]
gain = [costed("flush", m=M)[0].time / times["stash"] for M in Ms]

# %% tags=["answer"]
study.reveal(
    guess_M,
    enough,
    study.curves(
        {
            "stream of 32": (range(2, 33), [(M + 3) / M * 32 / (32 + 3) for M in range(2, 33)]),
            "endless stream": (range(2, 65), [(M + 3) / M for M in range(2, 65)]),
        },
        points={"stream of 32": (Ms, gain)},
        xlabel="micro-batches in a batch, M",
        ylabel="times as fast as 1F1B with a flush",
        title="4 stages: a large batch needs no PipeDream",
    ),
    unit="micro-batches",
    words="Lines predicted, points run. A stream of 32 has to be filled once, too.",
)

# %% tags=["maintainer"]
assert enough == 60

# %% [markdown]
# That is 5 % of the time for 2.5 times the weights, and for a result that is not the serial one. Large language models are trained with batches of hundreds of micro-batches, and with schedules that have almost no bubble *and* the right gradient, as you saw in the last lesson. (The paper on 2BW itself describes a variant with a flush, PipeDream-Flush. You know it: it is 1F1B.) The large runs that this course cites flush. PipeDream was published in 2019, when many models were convolutional networks, batches were small and links were slow.
#
# **When an update is expensive.** Adam reads and writes two states for each weight. PipeDream does so for every micro-batch, 2BW for every group. Here a micro-batch has only 512 rows, so that there is little to compute between two updates:

# %%
small = {}
for name, optimizer in (("SGD", sgd), ("Adam", adam)):
    for rule in ("flush", "stash", "2bw"):
        small[f"{name}, {rule}"] = costed(rule, 16, optimizer, rows=512)[0].time
study.bars(small, unit="s", title="16 micro-batches of 512 rows, modelled H100s")

# %% tags=["maintainer"]
assert small["Adam, stash"] > small["Adam, flush"] > small["Adam, 2bw"]

# %% [markdown]
# With Adam PipeDream is slower than the flush that it was to avoid. 2BW has neither the bubble nor the many updates. If the gradient may be late at all, it is the one to choose.
#
# **When the result has to be the serial one,** for instance to compare with a run on fewer GPUs, or when the learning rate is at its limit already.
#
# ## The library's file
#
# [pipedream.py](file:minidist/parallel/pipedream.py) builds on the executor of the lesson on pipelines. It adds three things. The first is a module that runs with the tensors of a version, as our `functional_call` did, and an update that notes how late each gradient was:

# %%
from minidist.parallel.pipedream import Versions

display(
    study.source(PipeDream.module, docstring=False), study.source(PipeDream.update, docstring=False)
)

# %% [markdown]
# The second is a store of versions. Ours made a new dictionary at every update, which copies all weights each time. The library works with any optimizer of PyTorch, and those change the parameters in place. So `advance` asks first whether somebody still needs the newest version. Only then `_part` moves the parameters to memory of their own, and what the graphs hold stays as it was. If nobody does, the step happens in place: the last stage never copies.

# %%
display(
    study.source(Versions.advance, docstring=False),
    study.source(Versions._part, docstring=False),
    study.source(Versions._seen),
)

# %% [markdown]
# The third is the way back. A backward leaves its gradients in the tensors of an *old* version, and the optimizer looks for them in the parameters. `_gathered` carries them over:

# %%
study.source(PipeDream._gathered)

# %% [markdown]
# Which version a forward uses is decided before the run, by reading the lists: `forward_versions` in [validate.py](file:minidist/parallel/validate.py), which also drew the tables above.
#
# ## In real processes, and on a cluster
#
# The same run on four processes of this machine, over shared memory:

# %%
real = [weights for weights, *_ in launch(with_library, 4, xs, "stash")]
close = apart(real, wanted) < 1e-12
print("four processes:", "the weights of late gradients" if close else "other weights")

# %% tags=["maintainer"]
assert apart(real, wanted) < 1e-12

# %% [markdown]
# Under `torchrun` a script ends with `with_library(from_env(), xs, "stash")`, where `from_env` is in [minidist.comm](file:minidist/comm/__init__.py). Each rank is one stage, on one machine or on two:
#
# ```
# torchrun --nproc-per-node 4 train.py
# torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# ## Takeaways
#
# - Without a flush there is no bubble, and the weights change between the forward and the backward of a micro-batch.
# - Weight stashing: the backward uses the weights of its forward. Stage s holds S − s versions, and its gradients are S − 1 − s updates late.
# - Vertical sync: one version for all stages. It costs S versions and S − 1 updates everywhere, and it learns less well.
# - 2BW: an update for every m ≥ S micro-batches. Two versions and one update late, everywhere.
# - Without stashing, the gradient belongs to no weights that ever were. A small rate hides it; test the weights and not the loss.
# - With gradients that are d updates late, the largest learning rate is more than d times smaller. With enough micro-batches, flush.
#
# ## Further reading
#
# - paper:narayanan2019 Weight stashing and vertical sync, section 3.3.
# - paper:narayanan2021a PipeDream-2BW, section 3.1.
# - paper:narayanan2021 Why large models are trained with a flush.
