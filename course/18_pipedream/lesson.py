# %% [markdown]
# # 18 · PipeDream
#
# In lesson 16 a pipeline ran empty before each update of the weights: a **flush**. Four GPUs waited for 27 % of the
# time. Suppose that nobody waits. Each stage updates its weights as soon as it has a gradient, and goes on.
# The bubble is gone. **What is the price?** Some of it is memory. Four stages hold a model's weights once, together.
# How many times do they hold them without a flush?

# %%
guess = 1.0  # times the model's weights, over all 4 stages: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Three ranks hold one weight each: 2, 3 and 5. Six micro-batches come. To have easy numbers, let an update add 1 to
# the weight. The order is lesson 16's 1F1B, with an update `U` after every backward.

# %%
from functools import partial

import torch
from torch import nn
from torch.func import functional_call

from minidist import study
from minidist.comm import World
from minidist.parallel.schedules import lists, one_f_one_b, pipedream, pipedream_2bw
from minidist.parallel.simulate import grid, simulate
from minidist.parallel.validate import ScheduleError, held, staleness, validate

print(grid(lists(pipedream, 3, 6)))


# %%
def meets(comm, M):
    weight, met = [2, 3, 5][comm.rank], {"F": [], "B": []}
    for kind, _, _ in pipedream(comm.rank, comm.size, M):
        if kind == "U":
            weight += 1
        else:
            met[kind].append(weight)
    return met


met = World(3).run(meets, 6)
assert met[0] == {"F": [2, 2, 2, 3, 4, 5], "B": [2, 3, 4, 5, 6, 7]} and met[2]["F"] == met[2]["B"]
study.table(
    [(f"rank {r}, {kind}", *met[r][kind]) for r in range(3) for kind in "FB"],
    ["micro-batch", *range(6)],
)

# %% [markdown]
# These are the weights that each micro-batch meets. Read rank 0. Micro-batch 3 goes forward through a weight of 3. When
# its gradient comes back, the weight is 5. Rank 2 sees no difference: its backward comes at once.
#
# How many updates lie between the two is the **staleness**. **Predict** it for 4 stages: for stage 0, and for stage 3.

# %%
late = staleness(lists(pipedream, 4, 8))
assert [max(row.values()) for row in late] == [3, 2, 1, 0]
study.table(
    [(f"stage {s}", *row.values()) for s, row in enumerate(late)], ["staleness of", *range(8)]
)

# %% [markdown]
# S − 1 − s on stage s. The first micro-batches are less stale: nothing has been updated when they come.
#
# ## Step 1: no flush
#
# What the paper calls a minibatch is one of our micro-batches: each has an update of its own. What does it gain? Here
# are 32 of them, with a flush after every 8, and without any. Below are ten, so that you can follow the numbers.
# (In the picture a slot is a second, and an update a quarter of it. In what is printed it takes no time: it would be
# 39, not 41.5.)

# %%
flushed, stream = simulate(lists(one_f_one_b, 4, 8)), simulate(lists(pipedream, 4, 32))
assert abs(4 * flushed.time / stream.time - 1.26) < 0.01
print(f"4 steps with a flush: {4 * flushed.time:g}, waiting {flushed.bubble:.1%}")
print(
    f"without: {stream.time:g}, waiting {stream.bubble:.1%}, all of it at the start and at the end"
)
fives = [row + [a._replace(micro=a.micro + 5) for a in row] for row in lists(one_f_one_b, 4, 5)]
ten = {"1F1B, a flush after five": fives, "PipeDream": lists(pipedream, 4, 10)}
study.stages(
    {name: simulate(rows, update=0.25) for name, rows in ten.items()},
    title="Ten micro-batches: the pipeline fills twice, or once",
)

# %% [markdown]
# ## Step 2: the naive way
#
# Just call the optimizer after each backward. Here are two micro-batches in flight, on one stage.


# %%
def parts():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh()).double() for _ in range(4)]


part, x = parts()[0], torch.ones(2, 4, dtype=torch.float64)
sgd = torch.optim.SGD(part.parameters(), lr=0.1)
first = part(x)
second = part(x)
first.sum().backward()
sgd.step()
try:
    second.sum().backward()
except RuntimeError as why:
    print(str(why).split(":")[0])

# %% [markdown]
# Autograd protects us. The second backward needs the weights that its forward used, and they are gone. The gradient of
# the input is dy · W: with a new W, and activations that the old one made, it is the gradient of **no** function.
#
# People silence the error with `p.data = new`. **Predict** which weights the backward then uses.


# %%
def backward_uses(layer):
    x, dy = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_(), torch.arange(8.0).reshape(2, 4)
    (before,) = torch.autograd.grad(layer(x), x, dy)
    y = layer(x)
    for p in layer.parameters():
        p.data = 2 * p.data
    (found,) = torch.autograd.grad(y, x, dy)
    return "the old ones" if torch.allclose(found, before) else "the new ones"


found = {type(layer).__name__: backward_uses(layer) for layer in (nn.Linear(4, 4), nn.LayerNorm(4))}
assert found == {"Linear": "the old ones", "LayerNorm": "the new ones"}
study.table(list(found.items()), ["layer", "after p.data = new, its backward uses"])

# %% [markdown]
# It depends on the layer, and there is no error any more. A test with an MLP passes; a transformer is wrong.
#
# ## Step 3: weight stashing
#
# **The backward uses the weights that its forward used.** So keep them. A version is a dictionary of tensors, the
# forward runs with a version, and an update makes a new one. (Two channels, as in lesson 16.)


# %%
def forward(down, part, weights, x, sends):
    if down.rank > 0:
        x = down.recv(torch.empty_like(x), down.rank - 1)
    x = x.detach().requires_grad_()
    y = functional_call(part, weights, x)
    if down.rank < down.size - 1:
        sends.append(down.isend(y.detach(), down.rank + 1))
    else:
        y = y.square().mean()  # the loss
    return x, y


# %%
def backward(up, x, y, weights, sends):
    last = up.rank == up.size - 1
    dy = None if last else up.recv(torch.empty_like(y), up.rank + 1)
    dx, *grads = torch.autograd.grad(y, [x, *weights.values()], dy)
    if up.rank > 0:
        sends.append(up.isend(dx, up.rank - 1))
    return dict(zip(weights, grads))


def updated(weights, grads, rate=0.1):
    return {name: (w - rate * grads[name]).detach().requires_grad_() for name, w in weights.items()}


# %%
def by_hand(comm, xs):
    down, up = (comm.split([0] * comm.size) for _ in range(2))
    part = parts()[comm.rank]
    sends = []
    newest = dict(part.named_parameters())
    stash = {}
    kept = {}
    grads = {}
    for kind, m, _ in pipedream(comm.rank, comm.size, len(xs)):
        if kind == "F":
            stash[m] = newest
            kept[m] = forward(down, part, newest, xs[m], sends)
        elif kind == "B":
            grads = backward(up, *kept.pop(m), stash.pop(m), sends)
        else:
            newest = updated(newest, grads)
    return [work.wait() for work in sends] and newest


# %% [markdown]
# ## The oracle: late gradients
#
# Stashing makes PipeDream a simple thing: gradient descent in which stage s is `late(s)` updates behind. That needs no
# pipeline. One rank, one loop over the micro-batches:


# %%
def serial(xs, late):
    stages = parts()
    made = [[dict(part.named_parameters())] for part in stages]  # made[s][k]: version k of stage s
    for m, x in enumerate(xs):
        used = [made[s][max(0, m - late(s))] for s in range(len(stages))]
        for part, weights in zip(stages, used):
            x = functional_call(part, weights, x)
        grads = iter(
            torch.autograd.grad(
                x.square().mean(), [w for weights in used for w in weights.values()]
            )
        )
        for versions, weights in zip(made, used):
            versions.append(updated(versions[-1], {name: next(grads) for name in weights}))
    return [versions[-1] for versions in made]


# %%
def apart(found, want):
    return max(
        (a[name] - b[name]).abs().max().item()
        for a, b in zip(found, want, strict=True)
        for name in b
    )


torch.manual_seed(1)
xs = list(torch.randn(12, 3, 4, dtype=torch.float64))
wanted = serial(xs, late=lambda s: 3 - s)
assert (
    apart(World(4).run(by_hand, xs), wanted)
    < 1e-12
    < 1e-3
    < apart(serial(xs, late=lambda s: 0), wanted)
)
print("by hand, on four stages: the weights of late gradients, 3, 2, 1 and 0 updates late")

# %% [markdown]
# That is not the serial program's result, whose gradients are never late. It is the other price; we will come to it.
#
# ## Step 4: count the versions
#
# A version is kept until the last micro-batch that used it has gone back. **Predict:** how many does stage 0 of 4 hold
# at the peak? And stage 3? (The newest counts.)

# %%
rows = held(lists(pipedream, 4, 12))
assert [max(row) for row in rows] == [4, 3, 2, 1]
edges = [action + end for action in range(len(rows[0])) for end in (0, 1)]
study.curves(
    {f"stage {s}": (edges, [v for v in row for _ in (0, 1)]) for s, row in enumerate(rows)},
    xlabel="actions of the list",
    ylabel="versions held",
    title="Stage s holds up to S − s versions",
)

# %% [markdown]
# 4 + 3 + 2 + 1 = 10 copies of a stage's weights, where a flush needs 4. Stage 0 also keeps most activations: it pays
# twice. The last stage pays nothing.
#
# The validator counts, too. It can be told what a stage may hold, or that nothing is stashed:

# %%
for rule in ({"most": 3}, {"stash": False}):
    try:
        validate(lists(pipedream, 4, 8), **rule)
    except ScheduleError as why:
        print(why)

# %% [markdown]
# ## Step 5: vertical sync
#
# With stashing, each stage agrees with itself. The stages do not agree with each other: micro-batch 5 uses version 2 on
# stage 0, and version 5 on stage 3. **Vertical sync:** a micro-batch carries the number of the version that stage 0
# used, and all stages use that one.

# %%
from minidist.parallel.validate import forward_versions

of_five = {
    rule: [row[5] for row in forward_versions(lists(pipedream, 4, 12), rule)]
    for rule in ("newest", "first")
}
assert of_five == {"newest": [2, 3, 4, 5], "first": [2, 2, 2, 2]}
most = {rule: [max(row) for row in held(lists(pipedream, 4, 12), rule)] for rule in of_five}
rows = [
    (name, *of_five[rule], *most[rule])
    for name, rule in (("stashing", "newest"), ("vertical sync", "first"))
]
study.table(rows, ["", *(f"F5 on {s}" for s in range(4)), *(f"versions on {s}" for s in range(4))])

# %% [markdown]
# One version for all, S versions on every stage, and every stage S − 1 updates late. The last stage, which needed one
# copy, now keeps S. PipeDream's authors leave it out by default.
#
# ## Step 6: PipeDream-2BW
#
# The way out: update *less often*. Add up the gradients of m ≥ S micro-batches, then update. While a new version comes
# into use, micro-batches of the one before are still under way; older ones are not. **Two versions**, on every stage.

# %%
two = partial(pipedream_2bw, m=4)
print(grid(lists(two, 4, 8)))
rows = held(lists(two, 4, 16), "2bw", 4)
assert [max(row) for row in rows] == [2, 2, 2, 2]
assert all(max(row.values()) == 1 for row in staleness(lists(two, 4, 16), "2bw", 4))
print("versions held, by stage:", *(max(row) for row in rows))

# %% [markdown]
# The micro-batches of group g use version g − 1, on all stages. So 2BW is one update late, everywhere: consistent, like
# vertical sync, with two copies instead of S.
#
# ## Predict the cost, then run
#
# The model of lesson 16: 8 matrices of 8,192 × 8,192 on 4 GPUs, with 537 MB of weights on each. `PipeDream` runs the
# lists. On the device `"meta"` tensors have no numbers, and the World counts bytes and seconds. It knows nothing of
# versions. **Predict** the four curves.

# %%
from minidist.comm.cluster import Cluster
from minidist.comm.cluster import H100
from minidist.parallel.pipedream import PipeDream, PipeDream2BW, Versions
from minidist.study.predict import most_stale, version_bytes
from minidist.parallel.pipeline import Pipeline

RULES = ("stash", "vertical", "2bw", "no stash")


def made_for(rule, part, comm, optimizer, loss_fn, m):
    if rule == "2bw":
        return PipeDream2BW(part, comm, optimizer, loss_fn, m=m)
    return PipeDream(
        part,
        comm,
        optimizer,
        loss_fn,
        vertical=rule == "vertical",
        wrong_no_stash=rule == "no stash",
    )


# %%
def train(part, comm, rule, optimizer, loss_fn, data, m):
    if rule != "flush":
        stream = made_for(rule, part, comm, optimizer, loss_fn, m)
        stream.run(data)
        return stream.spans
    pipeline = Pipeline(part, comm, loss_fn=loss_fn)
    step = optimizer(part.parameters())
    spans = []
    for at in range(0, len(data), m):
        pipeline.step(m, *(list(column) for column in zip(*data[at : at + m])))
        spans += pipeline.spans
        step.step()
        step.zero_grad()
    return spans


# %%
H = 8192
sgd = partial(torch.optim.SGD, lr=0.1)
adam = partial(torch.optim.Adam, lr=1e-3)


def cost(comm, rule, M, optimizer, rows, m):
    part = nn.Sequential(
        *(nn.Linear(H, H, bias=False, device="meta") for _ in range(8 // comm.size))
    )
    x = torch.empty(rows, H, device="meta")
    return train(part, comm, rule, optimizer, lambda y, _: y.sum(), [(x, x)] * M, m)


def costed(rule, M=32, optimizer=sgd, rows=4096, m=8):
    world = World(4, cluster=Cluster.uniform(4, 5e-6, 1 / 450e9, H100), device="meta")
    return world, world.run(cost, rule, M, optimizer, rows, m)


# %%
def weights_held(world):
    """Bytes of parameters on each rank at the peak, once the model is built."""
    return [
        int(some.live["parameters"][some.times > 0].max())
        for some in map(world.trace.memory.get, range(4))
    ]


runs = {rule: costed(rule) for rule in ("flush", *RULES)}
stages, each = range(4), 2 * H * H * 4
predicted = {rule: (stages, [version_bytes(rule, s, 4, each) for s in stages]) for rule in RULES}
measured = {rule: (stages, weights_held(runs[rule][0])) for rule in RULES}
assert all(measured[rule][1] == predicted[rule][1] for rule in RULES)
study.curves(
    predicted,
    points=measured,
    yunit="B",
    xlabel="stage",
    ylabel="weights held at the peak",
    title="What versions cost: lines predicted, points run",
)

# %% [markdown]
# To the byte. And the time, of 32 micro-batches, against four steps of 8 with a flush? **Predict** it from the bubbles.
# (Rank 0 has small gaps: nobody asks for the gradient of its input, so its backward is shorter.)

# %%
from IPython.display import display

times = {rule: world.time for rule, (world, _) in runs.items()}
gains = {rule: round(times["flush"] / time, 2) for rule, time in times.items() if rule != "flush"}
assert all(1.2 < gain < 1.28 for gain in gains.values())
display(
    study.stages(
        {rule: runs[rule][1] for rule in ("flush", "stash")}, title="Flush and stream, as they ran"
    )
)
study.bars(
    gains,
    target=4 * flushed.time / stream.time,
    note="from the bubbles",
    title="Times as fast as a flush",
)

# %% [markdown]
# ## Break it: five seeds
#
# Does it learn? An MLP of 4 layers on 4 stages, the digits, 160 micro-batches of 32. Five seeds, because one says
# little: they are five models side by side that share nothing.

# %%
from minidist.models import generator
from minidist.tasks import digits

SEEDS, task = range(5), digits()
chosen = torch.stack(
    [torch.randint(len(task.x), (160, 32), generator=generator(s, "batches")) for s in SEEDS], 1
)
data = [(task.x[own], task.y[own]) for own in chosen]


# %%
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


# %%
def learn(comm, rule, rate, data):
    part, losses = Layer(comm.rank, 64 if comm.rank < 3 else 10), []

    def loss_fn(logits, y):
        losses.append(
            nn.functional.cross_entropy(logits.permute(1, 2, 0), y.T, reduction="none").mean(0)
        )
        return losses[-1].sum()  # of five models, whose gradients do not meet

    train(part, comm, rule, partial(torch.optim.SGD, lr=rate), loss_fn, data, 4)
    return [loss.detach() for loss in losses]


# %%
torch.set_num_threads(1)  # products so small are slower on two cores
learned = {
    (rule, rate): torch.stack(World(4).run(learn, rule, rate, data)[3])
    for rate in (0.36, 0.1)
    for rule in ("flush", *RULES)
}


def smooth(losses, width=20):
    """The mean, over the last micro-batches, of the median of five seeds."""
    return losses.nan_to_num(9).median(1).values.unfold(0, width, 1).mean(1).clamp(max=4).tolist()


shown = {
    rule: (range(20, 161), smooth(learned[rule, 0.36]))
    for rule in ("flush", "stash", "vertical", "no stash")
}
last = {rule: y[-1] for rule, (_, y) in shown.items()}
assert (
    last["flush"] + 0.3 < last["stash"] < 1.7 < 2.1 < last["vertical"]
    and 2.2 < last["no stash"] < 2.4
)
assert max(shown["no stash"][1]) == 4 > 3 > max(shown["vertical"][1])
study.curves(
    shown,
    xlabel="micro-batches",
    ylabel="loss, median of five seeds (4 is 4 or more)",
    title="Learning rate 0.36",
    words="With a flush it learns. With stashing it learns, too, but later. "
    "Vertical sync stays near 2.3. Without stashing the loss bursts, and then stays at 2.3.",
)

# %% [markdown]
# To know nothing is a loss of ln 10 = 2.30. The same rate, the same batches, the same start; here is every seed, and
# a smaller rate. At 0.36 the training is chaotic: another processor adds in another order, and that alone moves some
# of these losses by a quarter. So they are drawn, not printed; who is ahead of whom stays the same.

# %%
end = {key: losses[-40:].mean(0).nan_to_num(9) for key, losses in learned.items()}
assert (
    end["stash", 0.36].max() < 2 < 2.2 < end["no stash", 0.36].min()
    and end["vertical", 0.36].min() > 2.1
)
assert (end["flush", 0.36] < end["stash", 0.36]).all() and end["no stash", 0.36].max() < 2.4
assert end["stash", 0.1].max() < min(
    end[key].min() for key in (("flush", 0.1), ("vertical", 0.1), ("stash", 0.36))
)
assert end["no stash", 0.1].min() < end["stash", 0.1].median() < end["no stash", 0.1].max()
display(
    study.curves(
        {},
        points={rule: (SEEDS, losses) for (rule, rate), losses in end.items() if rate == 0.36},
        xlabel="seed",
        ylabel="loss of the last 40 micro-batches",
        title="Learning rate 0.36, every seed",
        words="With every seed the flush is ahead of stashing, which stays below 2. Without stashing "
        "all seeds are at 2.3; with vertical sync all are near it, or above.",
    )
)
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

# %% [markdown]
# - **No stashing:** at 0.36 the loss bursts, and what is left knows nothing, with every seed. At 0.1 nobody could tell
#   it from stashing: the seeds differ more than the two do. The weights hardly move in 3 updates. That makes it such a
#   bad bug: it is there and waits for a larger rate or a deeper model.
# - **Stashing** learns with both rates, and better with the small one: late gradients want a smaller rate. There it is
#   ahead of the flush with every seed. But it has made 160 updates, and the flush 40: count updates before you compare.
# - **Vertical sync** is consistent, and learns nothing at 0.36; at 0.1 it is behind stashing with every seed. Its
#   gradients are 3 updates late on all stages, also on the last. Consistent is not fresh.
# - **2BW** makes 40 updates, as the flush does, and each is one late.
#
# Is it really the weights? The oracle of late gradients knows what every *right* rule gives:


# %%
def with_library(comm, xs, rule):
    part = parts()[comm.rank]
    pipeline = made_for(rule, part, comm, sgd, lambda y, _: y.square().mean(), 4)
    pipeline.run([(x, x) for x in xs])
    return dict(part.named_parameters()), max(pipeline.staleness), pipeline.versions.most


rows = []
for rule in ("stash", "vertical", "no stash"):
    weights, *counted = zip(*World(4).run(with_library, xs, rule))
    off = apart(weights, serial(xs, lambda s, rule=rule: most_stale(rule, s, 4)))
    assert off > 1e-4 if rule == "no stash" else off < 1e-12
    rows.append((rule, "within 1e-12" if off < 1e-12 else f"off by {off:.4f}", *sum(counted, ())))
study.table(
    rows,
    ["", "late gradients", *(f"{what} on {s}" for what in ("late", "versions") for s in stages)],
)

# %% [markdown]
# ## When not to use it
#
# **When the batch has many micro-batches.** A flush costs (S − 1)/(M + S − 1), so PipeDream is at most
# (M + S − 1)/M times as fast; a stream of 32 must fill once, too. **Predict** from which M on it is 5 % or less.

# %%
Ms, fine = [2, 4, 8, 16], range(2, 65)
gain = [costed("flush", m=M)[0].time / times["stash"] for M in Ms]
limit, filled = [(M + 3) / M for M in fine], [(M + 3) / M * 32 / (32 + 3) for M in fine if M <= 32]
assert (59 + 3) / 59 > 1.05 >= (60 + 3) / 60
study.curves(
    {"32 micro-batches": (range(2, 33), filled), "endless": (fine, limit)},
    points={"32 micro-batches": (Ms, gain)},
    xlabel="micro-batches in a batch, M",
    ylabel="times as fast as 1F1B with a flush",
    title="4 stages: a large batch needs no PipeDream",
)

# %% [markdown]
# From M = 60 on: 5 % of the time, for 2.5 times the weights, and a result that is not the serial one. Today's large
# models are trained with a flush.
#
# **When an update is dear.** Adam reads and writes every state of every weight, and PipeDream does it for every
# micro-batch. Here a micro-batch has 512 rows:

# %%
small = {
    f"{name}, {rule}": costed(rule, 16, optimizer, rows=512)[0].time
    for name, optimizer in (("SGD", sgd), ("Adam", adam))
    for rule in ("flush", "stash", "2bw")
}
assert small["Adam, stash"] > small["Adam, flush"] > small["Adam, 2bw"]
study.bars(small, unit="s", title="16 micro-batches of 512 rows")

# %% [markdown]
# With Adam, PipeDream is slower than the flush. 2BW has neither the bubble nor the updates.
#
# ## The library's version
#
# `PipeDream` is lesson 16's executor with an `update`, and a module that takes its weights from a store of versions.
# A version is copied only if somebody still needs it when the update comes. The last stage never copies.

# %%
display(
    study.source(PipeDream.update, docstring=False), study.source(PipeDream.module, docstring=False)
)
study.source(Versions.advance)

# %% [markdown]
# ## On processes, and on a cluster
#
# The same run on four processes of this machine, over shared memory:

# %%
from minidist.comm import launch

real = [weights for weights, *_ in launch(with_library, 4, xs, "stash")]
assert apart(real, wanted) < 1e-12
print("late gradients, from four processes")

# %% [markdown]
# And under `torchrun`, with `with_library(from_env(), …)` at the end of a script:
#
# ```
# torchrun --nproc-per-node 4 train.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# So how many times are the weights held?

# %%
copies = {
    rule: sum(weights_held(world)) / sum(weights_held(runs["flush"][0]))
    for rule, (world, _) in runs.items()
}
assert copies == {"flush": 1, "stash": 2.5, "vertical": 4, "2bw": 2, "no stash": 1}
study.bars({"your guess": guess} | copies, title="The model's weights, how many times, 4 stages")

# %% [markdown]
# ## Takeaways
#
# - Without a flush there is no bubble, and the weights change between a micro-batch's forward and its backward.
# - Weight stashing: backward uses the weights of its forward. Stage s holds S − s versions, S − 1 − s updates late.
# - Vertical sync: one version for all stages. S versions, S − 1 updates late, everywhere.
# - 2BW: two versions, one update late, everywhere; an update for every m ≥ S micro-batches.
# - No stashing is a gradient of no function. A small rate hides it. Test with the weights, not with the loss.
# - Late gradients are not the serial ones. With enough micro-batches, flush.
#
# ## Further reading
#
# - paper:narayanan2019 Section 3.3.
# - paper:narayanan2021a PipeDream-2BW.
# - paper:narayanan2021 Why they flush.
