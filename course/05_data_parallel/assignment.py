# %% [markdown] nbgrader={"grade_id": "top"}
# # 05 Data parallel: exercises
#
# The lesson built data parallelism for a well-behaved model, on ranks that start and end together. Here you build what a long run on a real cluster needs besides. Such a run is restarted in the middle of an epoch, with a different number of ranks; its model has frozen layers, layers of two dtypes, and layers that only some ranks use; and it looks for replicas that have drifted apart.
#
# There are seven exercises, worth 18 points. Each of the first six ends with a check, which compares your function with the serial program, on 1 to 5 ranks in a World and then in real processes, and says what is wrong. Try as often as you like. The check does not show what your function prints; to see that, run the function in a `World` of your own. The seventh is an open question, worth 2 points, which your teacher grades. An answer that gives the right numbers but takes more messages or bytes than it may earns half of the points.
#
# You may call `minidist.collectives`, which you built in [Messages](lesson:messages). Calls to the library's own data parallelism (`minidist.parallel`) and to PyTorch's are refused. Wait for everything that you post before you return. A nan in one rank's gradient must become a nan in everybody's: it is a sign that something has gone wrong, and must not be hidden.

# %% nbgrader={"grade_id": "setup"}
from hashlib import sha256
from itertools import pairwise

import torch
from IPython.display import display
from torch import nn

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_, broadcast_
from minidist.comm import World
from minidist.models import mlp

# %% [markdown] nbgrader={"grade_id": "my_batches_spec"}
# ## 1 · The batches that are still to come (3 points)
#
# The lesson's sampler drops the samples that do not fill a batch, and begins every epoch with its first sample. Now no sample is dropped, and a run may be restarted in the middle of an epoch, perhaps with a different number of ranks. All ranks know the order of the samples, and how many of them are done.
#
# | | |
# |---|---|
# | call | `my_batches(comm, order, batch, done)` |
# | `order` | the samples of the epoch in their order, int64, (samples,), perhaps empty; the same on every rank; **not changed** |
# | `batch` | how many samples a batch has, on all ranks together |
# | `done` | how many samples of this epoch have been trained on already, on all ranks together: any number from 0 to `len(order)` |
# | returns | a list with one tensor for each batch that is to come: this rank's samples, int64, (batch/n,) |
# | raises | `ValueError` if n does not divide `batch`; its message contains both numbers |
# | cost | no messages |
#
# **Invariants.** The batches follow the order from `order[done]` on. Each batch is cut into n equal pieces, and rank r gets the r-th of them, so that the pieces of rank 0, rank 1 and so on, one after another, are the batch. The last batch is full: where the order ends, the batch goes on with `order[0]`, and starts over as often as needed if the order is shorter than what is missing. If everything is done, no batch is to come, and the list is empty. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Work out places first, and look up samples last. Rank r's piece of the b-th batch that is to come begins at place done + b·batch + r·(batch/n). Taken modulo the length, a place beyond the end becomes a place at the beginning.
#
# </details>


# %% nbgrader={"grade_id": "my_batches", "solution": true}
def my_batches(comm, order, batch, done):
    """This rank's samples of each batch still to come; the last batch is filled up from the beginning of the order."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
    size = batch // n
    parts = []
    for first in range(done, len(order), batch):
        start = first + r * size
        places = torch.arange(start, start + size) % len(order)
        parts.append(order[places])
    return parts
    ### END SOLUTION


# %% nbgrader={"grade_id": "my_batches_test", "points": 3}
check.my_batches(my_batches)

# %% [markdown] nbgrader={"grade_id": "my_batches_target"}
# **Target:** the first four of 14 samples are done. Read batch 0 from rank 0 to rank 2, then batch 1: you see the order from its fifth sample on, and at the end its first two samples again.
#
# This cell runs your function in the notebook itself, not in a process of its own, so it is stopped after ten seconds.

# %%
order = torch.tensor([7, 2, 11, 5, 0, 13, 9, 4, 1, 12, 3, 8, 6, 10])
with check.limit(10):
    parts = World(3).run(my_batches, order, 6, 4)
study.holdings(
    {f"batch {b}": [mine[b] for mine in parts] for b in range(2)},
    title="Your parts of what is to come, on 3 ranks",
)

# %% [markdown] nbgrader={"grade_id": "start_equal_spec"}
# ## 2 · Start equal, after a failure (2 points)
#
# A machine has failed, and its ranks are replaced by new ones, which have drawn random weights and taken no step. The other ranks have been trained. No rank knows which rank is which: each knows only how many steps its own weights have been trained. All of them go on from the weights of the rank with the most steps.
#
# | | |
# |---|---|
# | call | `start_equal(comm, module, steps)` |
# | `module` | an `nn.Module`, with the same layers on every rank but different numbers in them |
# | `steps` | how many steps this rank's weights have been trained, an int below 2⁴² |
# | afterwards | every parameter and every buffer holds the numbers of the rank with the most steps, **in place**: the tensors are the same, and so is their `requires_grad`. If several ranks have the most steps, the lowest of them is copied |
# | returns | on every rank, the number of steps of the rank that was copied |
# | cost | one broadcast of each tensor, and a number or two from each rank; a tensor that two layers share travels once |
#
# Frozen parameters count: a model with a different frozen layer is a different model. Buffers may hold integers that no float can represent, and tensors need not be contiguous. About 6 lines.
#
# <details><summary>Hint</summary>
#
# An all-reduce with `op="max"` tells everyone the largest number of steps, and one with `op="min"` the lowest rank that has it, if the others contribute n; `broadcast_(comm, x, root=r)` sends from rank r. `module.parameters()` and `module.buffers()` give every tensor once, those of inner modules too; `state_dict()` gives a shared tensor twice, and leaves out buffers that are not saved.
#
# </details>


# %% nbgrader={"grade_id": "start_equal", "solution": true}
def start_equal(comm, module, steps):
    """Copy all parameters and buffers of the rank with the most steps, in place. Returns its steps."""
    ### BEGIN SOLUTION
    most = all_reduce_(comm, torch.tensor(steps), op="max").item()
    candidate = comm.rank if steps == most else comm.size
    root = all_reduce_(comm, torch.tensor(candidate), op="min").item()
    broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)
    return most
    ### END SOLUTION


# %% nbgrader={"grade_id": "start_equal_test", "points": 2}
check.start_equal(start_equal)

# %% [markdown] nbgrader={"grade_id": "start_equal_target"}
# **Target:** three equal rows on the right: the weights of rank 1, which has taken 40 steps, and its buffer `running_mean`.


# %%
def before_and_after(comm, start):
    module = nn.BatchNorm1d(2).double()
    with torch.no_grad():
        module.weight.fill_(10 * (comm.rank + 1))
        module.running_mean.fill_(comm.rank + 1)
    before = torch.cat([module.weight.detach(), module.running_mean])
    start(comm, module, [0, 40, 7][comm.rank])
    return before, torch.cat([module.weight.detach(), module.running_mean])


with check.limit(10):
    results = World(3).run(before_and_after, start_equal)
study.holdings(
    [before for before, _ in results],
    [after for _, after in results],
    title="weight and running_mean, before and after",
)

# %% [markdown] nbgrader={"grade_id": "average_gradients_spec"}
# ## 3 · Average the gradients, in one buffer (3 points)
#
# Every rank has run its backward. Now every gradient becomes its mean over all ranks, in as few messages as possible.
#
# | | |
# |---|---|
# | call | `average_gradients(comm, module)` |
# | `module` | its parameters have the gradients of this rank's samples in `p.grad`, of one dtype or several, contiguous or not |
# | afterwards | `p.grad` is the mean over all ranks, in the dtype of `p`, and bit for bit the same on every rank; weights and buffers are untouched |
# | returns | nothing; a value that you return is ignored |
# | cost | each rank sends 2(n−1) messages for each dtype, however many parameters there are, and 2(n−1)/n·N bytes, where N is the number of bytes in all gradients; nothing is sent for frozen parameters |
#
# **Missing gradients.** If no sample of a rank reaches a parameter, its `p.grad` is None on that rank. It counts as zeros, and is replaced by the mean like all others, or else the ranks take different steps. Frozen parameters (`requires_grad` is False) have no gradient on any rank. A matrix that two layers share is one parameter. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Every rank must join every all-reduce with the same tensors. So put zeros where a gradient is missing (`torch.zeros_like(p)`), and only then collect the gradients. `all_reduce_` takes a list, which it sends in one buffer for each dtype; it works in place.
#
# </details>


# %% nbgrader={"grade_id": "average_gradients", "solution": true}
def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks, with one all-reduce for each dtype."""
    ### BEGIN SOLUTION
    trained = [p for p in module.parameters() if p.requires_grad]
    for p in trained:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    all_reduce_(comm, [p.grad for p in trained], op="mean")
    ### END SOLUTION


# %% nbgrader={"grade_id": "average_gradients_test", "points": 3}
check.average_gradients(average_gradients)

# %% [markdown] nbgrader={"grade_id": "average_gradients_target"}
# **Target:** 6,000 bytes to the right, which is 2 · 3/4 of the 4,000 bytes that are trained, in 6 messages. With the frozen layer it would be 12,000 bytes, and with an all-reduce for each layer 12 messages.


# %%
def frozen_and_trained(comm, average):
    frozen = nn.Linear(10, 100, bias=False).requires_grad_(False)
    module = nn.Sequential(frozen, nn.Linear(100, 5, bias=False), nn.Linear(5, 100, bias=False))
    module(torch.ones(1, 10)).sum().backward()
    average(comm, module)


world = World(4)
with check.limit(10):
    world.run(frozen_and_trained, average_gradients)
study.traffic(
    world.trace,
    title=f"Your average of 4,000 bytes on 4 ranks: {world.trace.messages(0)} messages of rank 0",
)

# %% [markdown] nbgrader={"grade_id": "first_difference_spec"}
# ## 4 · Which tensor has drifted? (3 points)
#
# "Compare the replicas, bit for bit", the lesson said, and used a hash of the weights. One hash says that something differs, but not what. Find out which tensor it is, without sending any tensor.
#
# | | |
# |---|---|
# | call | `first_difference(comm, module)` |
# | returns | the name of the first tensor whose **bytes** are not the same on all ranks, or None if there is none; the same on every rank |
# | the order | as `named_parameters()` gives them, then as `named_buffers()` does |
# | afterwards | everything is as it was |
# | cost | each rank sends at most 64 bytes for each tensor, however large it is |
#
# Only bytes count. A number that differs in its last bit is a difference, two numbers that have changed places are one, and so are 0.0 and −0.0, though `==` calls them equal. A nan with the same bytes on all ranks is no difference. Buffers may hold large integers, and may be left out of `state_dict()`; tensors need not be contiguous, and may have no dimension. About 12 lines.
#
# <details><summary>Hint</summary>
#
# `x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()` gives the bytes of any tensor, and `sha256(…).digest()` a digest of 32 bytes (Python's own `hash` differs from process to process). The first eight of them are an integer: `int.from_bytes(…, "little", signed=True)`. If the smallest and the largest of all ranks' integers are equal, all are.
#
# </details>


# %% nbgrader={"grade_id": "first_difference", "solution": true}
def first_difference(comm, module):
    """The name of the first tensor whose bytes differ between ranks, or None."""
    ### BEGIN SOLUTION
    named = [*module.named_parameters(), *module.named_buffers()]
    digests = []
    for _, x in named:
        content = x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = sha256(content).digest()
        digests.append(int.from_bytes(digest[:8], "little", signed=True))
    least = all_reduce_(comm, torch.tensor(digests), op="min")
    most = all_reduce_(comm, torch.tensor(digests), op="max")
    for i, (name, _) in enumerate(named):
        if least[i] != most[i]:
            return name
    return None
    ### END SOLUTION


# %% nbgrader={"grade_id": "first_difference_test", "points": 3}
check.first_difference(first_difference)

# %% [markdown] nbgrader={"grade_id": "first_difference_target"}
# **Target:** a bar far below the line. In this network one weight of `3.weight` differs in its last bit on rank 2.


# %%
def one_bit(comm, find):
    module = nn.Sequential(nn.Linear(64, 200), nn.Tanh(), nn.BatchNorm1d(200), nn.Linear(200, 10))
    for p in module.parameters():
        nn.init.constant_(p, 0.5)
    if comm.rank == 2:
        with torch.no_grad():
            module[3].weight[4, 5].nextafter_(torch.tensor(1.0))
    return find(comm, module)


world = World(4)
with check.limit(10):
    found = world.run(one_bit, first_difference)
study.bars(
    {"your bytes": world.trace.bytes_sent(0)},
    target=4 * sum(p.numel() for p in [*nn.Linear(64, 200).parameters()]),
    note="the first layer",
    unit="B",
    title=f"Found on the four ranks: {', '.join(map(str, found))}",
)

# %% [markdown] nbgrader={"grade_id": "predict_step_spec"}
# ## 5 · Predict, then run (2 points)
#
# 8 ranks train a model of 10,000,000 parameters in float32 (4 bytes each), in 24 tensors. A quarter of the tensors are frozen, and they have a fifth of the parameters. The gradients are averaged by ring all-reduces. A message costs 5 µs before its first byte. An epoch has 1,000 samples, and a batch has 12 on each rank.
#
# - `messages`: how many messages does each rank send in a step, with one all-reduce for each tensor?
# - `nbytes`: how many bytes does each rank send in a step?
# - `saved`: by how many seconds is a step shorter if all gradients travel in one buffer?
# - `rate`: somebody divides the loss by n, and then takes the *mean* of the gradients. The learning rate is 0.1. With which rate would the right gradient give the same step (SGD, no momentum)?
# - `twice`: how many samples does an epoch see twice, with the sampler of exercise 1?
#
# Write numbers or formulas. They are right within 1 %. Each of the tensors has many more numbers than there are ranks.

# %% nbgrader={"grade_id": "predict_step", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_step.numbers(STUDENT)
messages = nbytes = saved = rate = twice = None
### BEGIN SOLUTION
n = 8
N = 40_000_000 * 4 / 5
tensors = 24 * 3 / 4
messages = 2 * (n - 1) * tensors
nbytes = 2 * (n - 1) / n * N
saved = 2 * (n - 1) * (tensors - 1) * 5e-6
rate = 0.1 / n
twice = -1000 % (12 * n)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_step_test", "points": 2}
check.predict_step(messages, nbytes, saved, rate, twice, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_step_target"}
# **Target:** your numbers beside those of a World with 8 ranks, as in the text above, whatever numbers your name has given you. Tensors on the device `"meta"` have a shape but no numbers, so millions of parameters cost nothing.


# %%
def exchange(comm, together):
    sizes = [444_440] * 17 + [444_520]
    grads = [torch.empty(size, device="meta") for size in sizes]
    if together:
        all_reduce_(comm, grads)
    else:
        for grad in grads:
            all_reduce_(comm, grad)


worlds = [World(8, device="meta") for _ in range(2)]
for world, together in zip(worlds, (False, True)):
    world.run(exchange, together)
rows = [
    ["messages", messages, worlds[0].trace.messages(0)],
    ["MB", nbytes / 1e6, worlds[1].trace.bytes_sent(0) / 1e6],
    ["ms that one buffer saves", saved * 1e3, round(1e3 * (worlds[0].time - worlds[1].time), 4)],
]
study.table(rows, ["of rank 0, in a step", "predicted", "run"])

# %% [markdown] nbgrader={"grade_id": "average_hooks_spec"}
# ## 6 · Find the bug (3 points)
#
# The next cell is the lesson's hook, with the lesson's mistake repaired: it averages `p.grad`, not `p`. It trains an `mlp` as it should. Then somebody added a layer that only some samples use, as models with experts have, and it failed.


# %% nbgrader={"grade_id": "average_hooks_broken"}
def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""

    def hook(p):
        all_reduce_(comm, p.grad, op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


# %%
class Routed(nn.Module):
    """`rare` is used for samples whose first number is above zero, and `often` for all."""

    def __init__(self):
        super().__init__()
        self.often = mlp([3, 5, 2], dtype=torch.float64)
        self.rare = mlp([3, 2], dtype=torch.float64)

    def forward(self, x):
        chosen = x[x[:, 0] > 0]
        y = self.often(x).sum(0)
        return y + self.rare(chosen).sum(0) if len(chosen) else y


def train(comm, hooks, steps):
    """How far this rank's weights are from rank 0's after each step. Only rank 0 has samples for the rare layer."""
    module = Routed()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    hooks(comm, module)
    gaps = []
    for _ in range(steps):
        x = torch.randn(4, 3, dtype=torch.float64)
        x[:, 0] = x[:, 0].abs() * (1 if comm.rank == 0 else -1)
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()
        mine = nn.utils.parameters_to_vector(module.parameters()).detach()
        gaps.append(float((mine - broadcast_(comm, mine.clone())).abs().max()))
    return gaps


try:
    World(2).run(train, average_hooks, 1)
except Exception as error:
    print(type(error).__name__, error, sep=": ")

# %% [markdown] nbgrader={"grade_id": "average_hooks_task"}
# Which rank calls which hook, and when? Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `average_hooks(comm, module)`, once; then the program calls `backward()` as often as it likes, also twice before it clears the gradients |
# | `module` | has frozen, shared, and unused parameters; every rank's backward reaches at least one parameter that is trained |
# | afterwards | when a `backward()` returns, every `p.grad` has become its mean over all ranks, the same bit for bit on every rank; where a rank's backward has not reached the parameter, it counts as zeros there; weights and buffers are untouched |
# | returns | nothing; a value that you return is ignored |
# | cost | each rank sends 2(n−1)/n·N bytes in each backward |
#
# <details><summary>Hint</summary>
#
# A parameter that this rank does not reach has no hook that could tell. When a backward ends, it is known which these are: `torch.autograd.Variable._execution_engine.queue_callback(f)`, called in a hook, calls `f()` at the end of this backward, as the lesson's `_has_gradient` does. It is needed once for each backward, not once for each parameter.
#
# </details>


# %% nbgrader={"grade_id": "average_hooks", "solution": true}
def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""
    ### BEGIN SOLUTION
    trained = [p for p in module.parameters() if p.requires_grad]
    queued = []

    def average():
        queued.clear()
        for p in trained:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            all_reduce_(comm, p.grad, op="mean")

    def hook(p):
        if not queued:
            torch.autograd.Variable._execution_engine.queue_callback(average)
            queued.append(p)

    for p in trained:
        p.register_post_accumulate_grad_hook(hook)
    ### END SOLUTION


# %% nbgrader={"grade_id": "average_hooks_test", "points": 3}
check.average_hooks(average_hooks)

# %% [markdown] nbgrader={"grade_id": "average_hooks_target"}
# **Target:** no difference in 12 steps, bit for bit. The price is time: nothing travels before the backward ends. [Buckets and overlap](lesson:buckets) wins this time back.

# %%
with check.limit(10):
    gaps = World(4).run(train, average_hooks, 12)
study.bars(
    {f"rank {rank}": max(gaps[rank]) for rank in (1, 2, 3)},
    title="Largest difference from rank 0's weights in 12 steps",
)

# %% [markdown] nbgrader={"grade_id": "how_many_ranks_spec"}
# ## 7 · How many ranks are worth it? (2 points, graded by hand)
#
# On one rank a step with a batch of 256 samples takes 120 ms; assume that n ranks, each with 256/n samples, compute for 120/n ms. The model has 25,000,000 trained parameters in float32, in 160 tensors. The gradients are averaged by ring all-reduces after the backward, over links with α = 20 µs and 10 GB/s (modelled, all alike).
#
# **Doubling the number of ranks doubles the price of an hour. Up to how many ranks, of 1, 2, 4, … 128, does each doubling still save at least a quarter of the time of a step?** Answer for one all-reduce for each tensor, and for one buffer.
#
# First plot the time of a step against n, for both, together with the parts that it consists of. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which both numbers can be read; and both numbers |
# | ½ | what limits each of the two: which part of the time grows with n, which falls, and which stays |
# | ½ | one thing that this model of a step leaves out, and whether it makes your number larger or smaller, with a reason |

# %% nbgrader={"grade_id": "how_many_ranks_plot", "solution": true}
### BEGIN SOLUTION
ns = [1, 2, 4, 8, 16, 32, 64, 128]
computing = [0.120 / n for n in ns]
transfer = [2 * (n - 1) / n * 100e6 / 10e9 for n in ns]
latency = [2 * (n - 1) * 20e-6 for n in ns]  # of one all-reduce
steps = {
    "a step, one by one": [c + t + 160 * a for c, t, a in zip(computing, transfer, latency)],
    "a step, one buffer": [c + t + a for c, t, a in zip(computing, transfer, latency)],
}
parts = {"computing": computing, "bytes": transfer, "latencies of one buffer": latency}
display(
    study.curves(
        {name: (ns[1:], seconds[1:]) for name, seconds in (steps | parts).items()},
        logx=True,
        logy=True,
        yunit="s",
        xlabel="ranks, n",
        ylabel="time",
        title="A step that takes 120 ms on one rank",
    )
)
for name, seconds in steps.items():
    savings = [f"{1 - after / before:.0%}" for before, after in pairwise(seconds)]
    print(f"{name}: each doubling saves", ", ".join(savings))
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "how_many_ranks", "solution": true, "points": 2}
# Two ranks if each tensor is averaged by itself, and eight with one buffer.
#
# The time of computing falls as 1/n. The time of the bytes rises quickly, from 10 ms on two ranks towards 20 ms, which is 2Nβ, and then stays there, however many ranks there are. The latencies are 2(n−1)α for one buffer, and 160 times that one by one; they grow with n without end. One by one they are 6.4 ms on two ranks, and 19 ms on four, where computing is still 30 ms: the second doubling saves only 16 %. With one buffer they are below a millisecond up to 16 ranks, and the limit is the bytes: on 16 ranks computing takes 7.5 ms and the bytes 19 ms, and even if computing were free, a step could not be shorter than that.
#
# The model leaves out overlap. A library sends the gradients while the backward is still running, so that only what does not fit beside the backward costs time; with overlap eight would become more. It also leaves out that a GPU is less efficient with 256/16 samples than with 256, so that computing falls more slowly than 1/n; that makes the number smaller.
