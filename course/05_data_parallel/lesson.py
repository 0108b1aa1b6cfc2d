# %% [markdown]
# # 05 · Data parallel
#
# One rank trains a network on batches of 60 samples. Four ranks train it together, 15 samples each.
# **After five epochs, how many decimal digits of the weights agree?** (A float64 has about 16.)

# %%
guess = 3  # digits that agree: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Six samples have six gradients, say 1 to 6. The loss of a batch is the mean over its samples,
# so the gradient of the batch is the mean of the six: 3.5.
# Three ranks take two samples each. Each averages its own two. The mean of the three means is 3.5 again.

# %%
from functools import partial

import torch
from IPython.display import display
from torch.nn.functional import cross_entropy

from minidist import study
from minidist.collectives import all_reduce_, broadcast_
from minidist.comm import Deadlock, World, launch

# %%
parts = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])]
means = World(3).run(lambda comm, parts: parts[comm.rank].mean(), parts)
both = World(3).run(lambda comm, means: all_reduce_(comm, means[comm.rank], op="mean"), means)
study.holdings(
    {"gradients": parts, "own mean": means, "all-reduce": both},
    title="The mean of the means is the mean",
)

# %% [markdown]
# That is data parallelism: every rank has a copy of the model, computes the gradient of its part of the batch,
# and takes part in one all-reduce. Then all copies take the same step.
#
# ## Why the parts must be equal
#
# Now rank 0 takes three samples, rank 1 two, rank 2 one. The mean of the means counts sample 6 three times as much
# as sample 1. Multiply each mean by its number of samples, and divide by the number of all: the **weighted average**.


# %%
def averages(comm, parts):
    mean, size = parts[comm.rank].mean(), torch.tensor(float(len(parts[comm.rank])))
    plain = all_reduce_(comm, mean.clone(), op="mean")
    weighted = all_reduce_(comm, mean * size) / all_reduce_(comm, size.clone())
    return plain.item(), weighted.item()


parts = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0]), torch.tensor([6.0])]
plain, weighted = World(3).run(averages, parts)[0]
study.bars(
    {"mean of the means": plain, "weighted": weighted},
    target=3.5,
    note="mean of all six",
    title="Parts of 3, 2 and 1 samples",
)

# %% [markdown]
# ## The split of a batch
#
# So every rank should get equally many samples of every batch. A **sampler** sees to it. It shuffles with one seed
# on all ranks, cuts the order into batches, and gives each rank its part. Put together, the parts are the batch of the
# serial run. Here are 14 samples, batches of 6, on 3 ranks. The last batch has two samples; by default it is left out.

# %%
from minidist.parallel.data import DataParallel, Sampler, average_gradients


def my_parts(comm):
    return list(Sampler(14, 6, comm, drop_last=False))


batches = World(3).run(my_parts)
whose = {}
for rank, mine in enumerate(batches):
    whose |= {int(i): rank for part in mine for i in part}
study.holdings(
    {f"batch {b}": [mine[b] for mine in batches] for b in range(3)},
    owner=lambda word: whose[int(word)],
    title="Indices of the samples that each rank takes",
)

# %% [markdown]
# ## A task
#
# The data are 1,437 handwritten digits of 8 × 8 pixels; 360 others are for testing. They come with scikit-learn.
# The model is a network with one hidden layer. We compute in float64: a difference is then a mistake, not a rounding.

# %%
import matplotlib.pyplot as plt

from minidist.models import mlp
from minidist.tasks import digits

task = digits()
for ax, image, digit in zip(plt.subplots(1, 12, figsize=(9.2, 1.1))[1], task.x, task.y):
    ax.imshow(image.view(8, 8), cmap="gray_r")
    ax.set_title(int(digit), fontsize=10)
    ax.axis("off")
plt.show()

# %% [markdown]
# ## Gradients, averaged
#
# Each rank runs forward and backward on its part. Then the naive four lines: one all-reduce for each parameter.


# %%
def average(comm, model):
    for p in model.parameters():
        all_reduce_(comm, p.grad)
        p.grad /= comm.size


def gradients(comm, task, batch=60, exchange=average):
    model = mlp([64, 32, 10], dtype=torch.float64)
    mine = next(iter(Sampler(len(task.x), batch, comm)))
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    exchange(comm, model)
    return {name: p.grad for name, p in model.named_parameters()}


# %% [markdown]
# The oracle is the same program on one rank, with the whole batch. We compare gradient by gradient,
# before the exchange and after it.


# %%
def off(one, other):
    return float((one - other).norm() / other.norm())


serial = World(1).run(gradients, task)[0]
alone = World(4).run(gradients, task, exchange=lambda comm, model: None)[3]
averaged = World(4).run(gradients, task)[3]
assert all(off(averaged[name], g) < 1e-12 for name, g in serial.items())
rows = [
    (name, str(tuple(g.shape)), f"{off(alone[name], g):.0%}", "below 1e-12")
    for name, g in serial.items()
]
study.table(
    rows,
    ["parameter", "shape", "off before", "off after"],
    title="Rank 3's gradients against the serial ones",
)

# %% [markdown]
# Fifteen samples give a gradient that is about as wrong as it is long. The average of four such is the serial gradient.
#
# With uneven parts, the plain average is another gradient. Ten samples on four ranks are parts of 3, 3, 2 and 2.


# %%
def uneven(comm, task, weighted):
    model = mlp([64, 32, 10], dtype=torch.float64)
    mine = torch.arange(10).tensor_split(comm.size)[comm.rank]
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    average_gradients(comm, model, weight=len(mine) if weighted else None)
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


whole = World(1).run(uneven, task, False)[0]
errors = {
    word: off(World(4).run(uneven, task, w)[0], whole)
    for word, w in {"plain": False, "weighted": True}.items()
}
assert errors["weighted"] < 1e-12
study.bars(
    {word: round(100 * error, 6) for word, error in errors.items()},
    unit="%",
    title="Parts of 3, 3, 2 and 2: how far off is the averaged gradient?",
)

# %% [markdown]
# ## Training
#
# Two more things are needed. All copies must **start equal**: rank 0's weights are broadcast.
# And all must take the **same step**, which they do, since gradients and optimizer are the same.
# The ranks' seeds differ on purpose: without the broadcast they would start from different weights.
#
# The arguments of `train` are places where we shall break it.


# %%
def step(comm, model, optimizer, x, y, on_gradients, on_weights):
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    on_gradients(comm, model)
    optimizer.step()
    on_weights(comm, model)
    return loss.item(), torch.nn.utils.parameters_to_vector(model.parameters()).detach()


sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def nothing(comm, model): ...
def from_rank_0(comm, model):
    broadcast_(comm, list(model.parameters()))


# %%
def batches(comm, task, epochs):
    sampler = Sampler(len(task.x), 60, comm)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # a new order in every epoch, the same on all ranks
        yield from sampler


def train(
    comm, task, epochs=2, make=sgd, start=from_rank_0, on_gradients=average, on_weights=nothing
):
    model = mlp([64, 32, 10], seed=comm.rank, dtype=torch.float64)
    start(comm, model)
    optimizer = make(model.parameters())
    return [
        step(comm, model, optimizer, task.x[mine], task.y[mine], on_gradients, on_weights)
        for mine in batches(comm, task, epochs)
    ]


# %% [markdown]
# `run` trains on n ranks. It gives the loss of each batch, which is the mean of the ranks' losses,
# and every rank's weights after every step.


# %%
def run(n, **kwargs):
    ranks = World(n).run(train, task, **kwargs)
    losses = [sum(loss for loss, _ in ranks_of_step) / n for ranks_of_step in zip(*ranks)]
    return losses, [[weights for _, weights in history] for history in ranks]


def every(k, curves):
    return {name: (range(0, len(curve), k), curve[::k]) for name, curve in curves.items()}


one_loss, one = run(1, epochs=5)
four_loss, four = run(4, epochs=5)
study.curves(
    every(1, {"1 rank": one_loss}),
    points=every(4, {"4 ranks": four_loss}),
    xlabel="step",
    ylabel="loss of the batch",
    title="One curve: the same training, on 1 rank and on 4",
)


# %%
def accuracy(weights):
    model = mlp([64, 32, 10], dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    return float((model(task.test_x).argmax(1) == task.test_y).double().mean())


difference = float((one[0][-1] - four[0][-1]).abs().max() / one[0][-1].abs().max())
agree = min(12, int(-torch.tensor(max(difference, 1e-16)).log10()))
assert accuracy(four[0][-1]) > 0.95 and agree >= 12
assert all(torch.equal(history[-1], four[0][-1]) for history in four)
study.bars(
    {"your guess": guess, "after five epochs, at least": agree},
    target=16,
    note="a float64 has",
    title="Decimal digits of the weights that agree",
)

# %% [markdown]
# **At least 12**, at an accuracy above 0.95. The rest is rounding: a sum of four means is not added in the order of
# a sum over sixty.
# The four copies are equal among themselves bit for bit. Data parallelism is no approximation: it is the serial
# program, and whatever differs by more than rounding is a bug.
#
# ## Predict the cost, then count
#
# A step all-reduces N bytes of gradients in P tensors. By rings, each rank sends $2\frac{n-1}{n}N$ bytes, whatever
# the cut. But one by one they are $2(n-1)P$ messages; in one buffer, **coalesced**, they are $2(n-1)$.
# Each step of a ring costs an α. Here are 8 layers of 960 × 960 in float32: 16 tensors, 29.5 MB.


# %%
def exchange(comm, coalesced):
    grads = [torch.empty_like(p) for p in mlp([960] * 9, device="meta").parameters()]
    if coalesced:
        return all_reduce_(comm, grads)
    for grad in grads:
        all_reduce_(comm, grad)


# %%
ALPHA, BETA = 5e-6, 1 / 50e9
N = 4 * 8 * (960 * 960 + 960)
P = 16
ns = [2, 3, 4, 6, 8, 12, 16]
ways = {"one by one": (False, P), "coalesced": (True, 1)}
worlds = {name: [World(n, device="meta") for n in ns] for name in ways}
for name, (coalesced, messages) in ways.items():
    for n, world in zip(ns, worlds[name]):
        world.run(exchange, coalesced)
        assert world.trace.messages(0) == 2 * (n - 1) * messages
        assert world.trace.bytes_sent(0) == 2 * (n - 1) * N // n

# %%
formula = {
    name: (ns, [2 * (n - 1) * (messages * ALPHA + N / n * BETA) for n in ns])
    for name, (_, messages) in ways.items()
}
times = {name: (ns, [world.time for world in worlds[name]]) for name in ways}
study.curves(
    formula,
    points=times,
    yunit="s",
    xlabel="ranks, n",
    ylabel="time to average the gradients",
    title="The same bytes: 16 small all-reduces, or one",
)

# %%
study.timeline(
    {name: worlds[name][2].trace for name in ways}, title="4 ranks: the gaps are the latencies"
)

# %% [markdown]
# Bytes stay below 2N for any n. Latencies grow with n, times P. Lesson 06 looks for the best size of a buffer,
# and hides the time behind the backward pass.
#
# ## Break it: the forgotten average
#
# Leave out the division by n. The gradient is then n times as large, and so is every step.
# The run below has 12 ranks and a learning rate of 0.1. Which rate does it really have?


# %%
def only_sum(comm, model):
    all_reduce_(comm, [p.grad for p in model.parameters()])


serial_runs = {
    "1 rank, rate 0.1": run(1)[0],
    "1 rank, rate 1.2": run(1, make=partial(sgd, lr=1.2))[0],
}
summed = {"12 ranks, rate 0.1, summed": run(12, on_gradients=only_sum)[0]}
study.curves(
    every(3, serial_runs),
    points=every(3, summed),
    xlabel="step",
    ylabel="loss of the batch",
    title="Summed gradients on 12 ranks: twelve times the learning rate",
)

# %% [markdown]
# The symptom: fine on one rank, worse the more ranks there are. It looks like a bad learning rate, and it is one.
# Adam hides it: it divides each gradient by its own size, so twelve times the gradient is nearly the same step.
#
# ## Break it: weights instead of gradients
#
# Let every rank step with its own gradient, and average the weights afterwards. Is that the same?
# We measure how far the copies are from the serial run. Whatever lies below 1e-12 is rounding, and is drawn as 1e-12.


# %%
def average_weights(comm, model):
    all_reduce_(comm, list(model.parameters()), op="mean")


def apart(one, other):
    return [max(1e-12, float((a - b).abs().max())) for a, b in zip(one, other)]


makes = {
    "SGD": partial(sgd, momentum=0),
    "momentum": sgd,
    "Adam": partial(torch.optim.Adam, lr=0.003),
}
instead = dict(on_gradients=nothing, on_weights=average_weights)
off_by = {
    name: apart(run(4, make=make, **instead)[1][0], run(1, make=make)[1][0])
    for name, make in makes.items()
}
study.curves(
    every(1, off_by),
    logy=True,
    xlabel="step",
    ylabel="largest difference from the serial weights",
    title="Weights averaged instead of gradients",
)

# %% [markdown]
# SGD is linear in the gradient, with momentum too: the mean of the steps is the step of the mean. Adam is not linear,
# and so it trains another network. Clipping is not linear either.
#
# There is a worse variant. PyTorch's `register_post_accumulate_grad_hook` calls a function for each parameter as soon
# as its gradient is there. The function gets **the parameter**, not the gradient. Averaging what it gets looks right,
# and averages the weights. The gradients never meet: after every step each rank has gone its own way.
#
# ## Break it: copies that start apart
#
# And the third mistake: no broadcast at the start. How far apart are rank 0 and rank 1 in each case?


# %%
def hook_gets_parameter(comm, model):
    from_rank_0(comm, model)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: all_reduce_(comm, p, op="mean"))


cases = {
    "right": four,
    "no broadcast": run(4, epochs=5, start=nothing)[1],
    "hook averages its parameter": run(
        4, epochs=5, start=hook_gets_parameter, on_gradients=nothing
    )[1],
}
gaps = {name: apart(ranks[0], ranks[1]) for name, ranks in cases.items()}
study.curves(
    every(1, gaps),
    logy=True,
    xlabel="step",
    ylabel="largest difference between rank 0 and rank 1",
    title="Replicas that should be equal",
)

# %% [markdown]
# Without the broadcast all ranks add the same steps to different weights. The distance never shrinks and never grows:
# it is that of the start. With the hook, the ranks drift apart by a step, and are pulled together before the next.
#
# Do you see it in the result?

# %%
study.table(
    [
        (name, *(f"{accuracy(history[-1]):.2f}" for history in ranks))
        for name, ranks in cases.items()
    ],
    ["after five epochs", *(f"rank {r}" for r in range(4))],
    title="Accuracy on the test set",
)

# %% [markdown]
# Hardly: the digits forgive everything. And a real run saves rank 0's weights and looks at nothing else.
# **Compare the replicas, bit for bit.** It is cheap, and no curve shows as much.
#
# ## Accumulation
#
# If a batch does not fit into memory, cut the rank's part into k micro-batches, divide each loss by k, and let the
# gradients add up. Average once, after the last. Two other ways are common. One averages after every backward:
# right, but k times the bytes. The other puts a `Tensor.register_hook` on the last backward.
# That hook sees only what this one backward adds, not the sum.


# %%
def accumulate(comm, task, way, k=3):
    model, mine = mlp([64, 32, 10], dtype=torch.float64), next(iter(Sampler(len(task.x), 60, comm)))
    for i, part in enumerate(mine.chunk(k)):
        if way == "hook on the last backward" and i == k - 1:
            for p in model.parameters():
                p.register_hook(lambda grad: all_reduce_(comm, grad.clone(), op="mean"))
        (cross_entropy(model(task.x[part]), task.y[part]) / k).backward()
        if way == "after every backward" or (way == "once, at the end" and i == k - 1):
            average(comm, model)
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


# %%
whole = torch.cat([g.view(-1) for g in serial.values()])
rows = []
for way in ["once, at the end", "after every backward", "hook on the last backward"]:
    ranks = World(4).run(accumulate, task, way)
    equal = all(torch.equal(g, ranks[0]) for g in ranks)
    rows.append(
        (
            way,
            ranks.trace.bytes_sent(0),
            "equal" if equal else "drift apart",
            "yes" if off(ranks[0], whole) < 1e-12 else f"off by {off(ranks[0], whole):.0%}",
        )
    )
study.table(
    rows,
    ["the average is taken", "bytes sent by rank 0", "replicas", "serial gradient"],
    title="Three micro-batches on each of 4 ranks",
)

# %% [markdown]
# ## Break it: one batch more
#
# What if one rank has a batch more than the others? It waits in an all-reduce that nobody else joins.


# %%
def one_batch_more(comm, task):
    model = mlp([64, 32, 10], dtype=torch.float64)
    for _ in range(3 if comm.rank == 2 else 2):
        cross_entropy(model(task.x[:5]), task.y[:5]).backward()
        average(comm, model)


try:
    World(3).run(one_batch_more, task)
except Deadlock as why:
    print(why)

# %% [markdown]
# ## The library's version
#
# `minidist.parallel.data` has what we built. The naive average, with weights:

# %%
study.source(average_gradients, docstring=False)

# %% [markdown]
# And `DataParallel`, which wraps a module. It broadcasts parameters and buffers at the start. Its `Reducer` hears of the
# gradients by the hook that gets the parameter, and uses it well: it looks at `p.grad`. The gradients travel in a few flat
# buffers, **buckets**, while backward still runs; at its end the rest is sent, and all are waited for.
# How a bucket works, and why it starts when it does, is lesson 06. Its hooks stay with the parameters, so a cell that
# runs twice would average twice, 1.5, then 0.75: by its *claim* the newer wrapper finds the older one, which lets go.

# %%
from minidist.parallel.reducer import Reducer

display(study.source(DataParallel.__init__), study.source(Reducer._has_gradient))
study.source(Reducer.average)

# %% [markdown]
# `no_sync()` is for accumulation: a backward inside only adds up. Its gradient is the serial one. Six messages of 16
# bytes find out whether all ranks have the same model. The others are those of one broadcast (a scatter, then a ring)
# and of one all-reduce, as all gradients fit into one bucket, for three backwards:


# %%
def by_library(comm, task, k=3):
    model = DataParallel(mlp([64, 32, 10], dtype=torch.float64), comm)
    *first, last = next(iter(Sampler(len(task.x), 60, comm))).chunk(k)
    with model.no_sync():
        for part in first:
            (cross_entropy(model(task.x[part]), task.y[part]) / k).backward()
    (cross_entropy(model(task.x[last]), task.y[last]) / k).backward()
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


world = World(4)
assert all(off(grad, whole) < 1e-12 for grad in world.run(by_library, task))
study.messages(
    world.trace,
    clock="steps",
    label=None,
    title="DataParallel: broadcast, three backwards, one all-reduce",
)

# %% [markdown]
# ## On processes, and on a cluster
#
# The same `train` in four processes, its gradients coalesced. The copies are equal bit for bit there too,
# and equal to the serial run to rounding.


# %%
def average_all(comm, model):
    all_reduce_(comm, [p.grad for p in model.parameters()], op="mean")


real = launch(train, 4, task, epochs=1, on_gradients=average_all)
weights = [history[-1][1] for history in real]
assert all(torch.equal(w, weights[0]) for w in weights)
assert off(weights[0], one[0][len(real[0]) - 1]) < 1e-9
rows = [(f"rank {r}", real.trace.messages(r), real.trace.bytes_sent(r)) for r in range(4)]
study.table(rows, ["", "messages sent", "bytes sent"], title="One epoch on four processes")

# %% [markdown]
# A script of the course does the whole of it, with the library's parts, in any of the three worlds:
#
# ```
# python examples/train_digits.py --ranks 4 --runner world
# python examples/train_digits.py --ranks 4 --runner processes
# torchrun --nproc-per-node 4 examples/train_digits.py
# ```
#
# ## Takeaways
#
# - The gradient of a batch is the mean of its parts' gradients, if the parts are equal; else their weighted average.
# - Data parallelism is the serial program, to rounding. Equal start, equal gradients, equal steps: equal copies.
# - A step sends $2\frac{n-1}{n}N$ bytes a rank. Coalesce: N bytes in P tensors cost P times the latency.
# - A forgotten average is n times the learning rate. Averaged weights are right for SGD and wrong for Adam.
# - Average accumulated gradients once, after the last micro-batch.
# - Loss and accuracy forgive nearly all of these bugs. Compare replicas bit for bit, and gradients with the serial run.
#
# ## Further reading
#
# - paper:dean2012 Copies of the model on parts of the data, before all-reduce.
# - paper:goyal2017 Averages, learning rates, and a section on pitfalls in distributed SGD.
# - paper:li2020 The design of PyTorch's `DistributedDataParallel`: hooks, buckets, `no_sync`.
