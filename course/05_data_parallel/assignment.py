# %% [markdown] nbgrader={"grade_id": "top"}
# # 05 Data parallel: exercises
#
# You build what makes n copies of a model train like one, and find a bug in a common shortcut.
#
# Seven exercises, 17 points. After each, run the check: it holds your function against the serial program, on 1 to 5
# ranks, with tied, frozen and unused parameters, then in real processes. It says what is wrong. Try as often as you
# like. What your function prints is not shown there; to see it, run the function in a `World` of your own.
#
# You may call `minidist.collectives`: you built them in lesson 02. What is refused here is the library's data
# parallelism (`minidist.parallel`), and PyTorch's. Wait for all that you post, before you return. A nan in one rank's
# gradient is a nan in everybody's: it tells that something has gone wrong, and must not be hidden.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch import nn
from torch.nn.functional import mse_loss

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_, broadcast_
from minidist.comm import World
from minidist.models import mlp

# %% [markdown] nbgrader={"grade_id": "my_batches_spec"}
# ## 1 · Every rank's part of the batches (2 points)
#
# The samples have been shuffled, with one seed on all ranks. In which batches does a rank take part, and with which
# samples?
#
# | | |
# |---|---|
# | call | `my_batches(comm, order, batch)` |
# | `order` | the indices of the samples in their order, int64, (samples,); the same on every rank; **not changed** |
# | `batch` | samples of a batch, all ranks together |
# | returns | a list: for each batch this rank's samples, a tensor (batch/n,) |
# | raises | `ValueError` if n does not divide `batch`; its text has both numbers |
# | cost | no message |
#
# **Invariant:** batch b is what one rank alone would take, `order[b·batch : (b+1)·batch]`. Rank r has the r-th of its n
# equal pieces. So the pieces in rank order are the batch. A last batch that is not full is left out. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Cut the order into batches first, then each batch into pieces. Batch b begins at b·batch, and rank r's piece of it
# begins r·(batch/n) later. There are `len(order) // batch` full batches.
#
# </details>


# %% nbgrader={"grade_id": "my_batches", "solution": true}
def my_batches(comm, order, batch):
    """This rank's samples of each full batch."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
    size = batch // n
    starts = [b * batch + r * size for b in range(len(order) // batch)]
    return [order[start : start + size] for start in starts]
    ### END SOLUTION


# %% nbgrader={"grade_id": "my_batches_test", "points": 2}
check.my_batches(my_batches)

# %% [markdown] nbgrader={"grade_id": "my_batches_target"}
# **Target:** read batch 0 row by row, then batch 1: that is the order. Its last two samples are left out.

# %%
order = torch.tensor([7, 2, 11, 5, 0, 13, 9, 4, 1, 12, 3, 8, 6, 10])
parts = World(3).run(my_batches, order, 6)
whose = {}
for rank, mine in enumerate(parts):
    whose |= {int(i): rank for part in mine for i in part}
study.holdings(
    {f"batch {b}": [mine[b] for mine in parts] for b in range(2)},
    owner=lambda word: whose[int(word)],
    title="Your parts of 14 samples in batches of 6",
)

# %% [markdown] nbgrader={"grade_id": "start_equal_spec"}
# ## 2 · Start equal (2 points)
#
# Every rank has drawn its weights from a seed of its own. Before the first step all must have rank 0's.
#
# | | |
# |---|---|
# | call | `start_equal(comm, module)` |
# | `module` | an `nn.Module`; the same layers on every rank, with other numbers |
# | afterwards | every parameter and every buffer is rank 0's, **in place**: the same tensors with new numbers |
# | returns | nothing |
# | cost | one broadcast of each tensor; a tensor that two layers share travels once |
#
# Frozen parameters count: a model with another frozen layer is another model. About 2 lines.
#
# <details><summary>Hint</summary>
#
# `module.parameters()` and `module.buffers()` give every tensor once, those of inner modules too. `state_dict()` gives
# a shared tensor twice, and leaves out buffers that are not saved. `broadcast_` takes a list.
#
# </details>


# %% nbgrader={"grade_id": "start_equal", "solution": true}
def start_equal(comm, module):
    """Fill every parameter and buffer with rank 0's, in place."""
    ### BEGIN SOLUTION
    broadcast_(comm, [*module.parameters(), *module.buffers()])
    ### END SOLUTION


# %% nbgrader={"grade_id": "start_equal_test", "points": 2}
check.start_equal(start_equal)

# %% [markdown] nbgrader={"grade_id": "start_equal_target"}
# **Target:** three equal rows on the right: the weights, and the buffer `running_mean`.


# %%
def before_and_after(comm):
    module = nn.BatchNorm1d(2).double()
    with torch.no_grad():
        module.weight.fill_(10 * (comm.rank + 1))
        module.running_mean.fill_(comm.rank + 1)
    before = [module.weight.detach().clone(), module.running_mean.clone()]
    start_equal(comm, module)
    return before, [module.weight.detach(), module.running_mean]


results = World(3).run(before_and_after)
study.holdings(
    [torch.cat(b) for b, _ in results],
    [torch.cat(a) for _, a in results],
    title="weight and running_mean, before and after",
)

# %% [markdown] nbgrader={"grade_id": "average_gradients_spec"}
# ## 3 · Average the gradients (3 points)
#
# Every rank has run its backward. Now every gradient becomes its mean over all ranks.
#
# | | |
# |---|---|
# | call | `average_gradients(comm, module)` |
# | `module` | with `p.grad` of this rank's samples in its parameters, contiguous or not |
# | afterwards | `p.grad` is the mean over all ranks, bit for bit the same everywhere; weights and buffers untouched |
# | returns | nothing |
# | cost | 2(n−1)/n·N bytes a rank, N bytes in all gradients; nothing for what is frozen |
#
# **Missing gradients.** If no sample of a rank reaches a parameter, its `p.grad` is None there. It counts as zeros, and
# gets the mean like all others: else the ranks take different steps. Frozen parameters (`requires_grad` is False) have
# no gradient anywhere. About 5 lines.
#
# <details><summary>Hint</summary>
#
# Every rank must join every all-reduce. So put zeros where a gradient is missing (`torch.zeros_like(p)`), then
# `all_reduce_(comm, p.grad, op="mean")`. It works in place.
#
# </details>


# %% nbgrader={"grade_id": "average_gradients", "solution": true}
def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    ### BEGIN SOLUTION
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            all_reduce_(comm, p.grad, op="mean")
    ### END SOLUTION


# %% nbgrader={"grade_id": "average_gradients_test", "points": 3}
check.average_gradients(average_gradients)

# %% [markdown] nbgrader={"grade_id": "average_gradients_target"}
# **Target:** 6,000 bytes to the right: 2 · 3/4 of the 4,000 bytes that are trained. The frozen layer would be 4,000
# more.


# %%
def frozen_and_trained(comm):
    module = nn.Sequential(nn.Linear(10, 100, bias=False), nn.Linear(100, 10, bias=False))
    module[0].requires_grad_(False)
    module(torch.ones(1, 10)).sum().backward()
    average_gradients(comm, module)


world = World(4)
world.run(frozen_and_trained)
study.traffic(world.trace, title="Your average of 4,000 bytes on 4 ranks")

# %% [markdown] nbgrader={"grade_id": "weighted_average_gradients_spec"}
# ## 4 · Uneven parts (3 points)
#
# The last batch of an epoch has ten samples, and there are four ranks: 3, 3, 2 and 2. Every rank's gradient is the mean
# over *its* samples. Weigh it with their number.
#
# | | |
# |---|---|
# | call | `weighted_average_gradients(comm, module, samples)` |
# | `samples` | how many samples this rank's gradients are the mean of; it may be 0 on some ranks, never on all |
# | afterwards | `p.grad` is the gradient of the mean over all ranks' samples, the same everywhere |
# | returns | nothing |
# | cost | as before, and a few bytes for the numbers of samples |
#
# **No samples:** then nothing in `p.grad` may count. It is None there, or holds nan, the mean of nothing. And
# 0 · nan is nan. As before, a gradient that is missing counts as zeros. About 9 lines.
#
# <details><summary>Hint</summary>
#
# First `all_reduce_` a tensor with the number of samples: now every rank knows the sum. Multiply each gradient by
# samples/sum, but `zero_()` it where there are no samples. Then a plain sum is the weighted average.
#
# </details>


# %% nbgrader={"grade_id": "weighted_average_gradients", "solution": true}
def weighted_average_gradients(comm, module, samples):
    """Make every p.grad the gradient of the mean over all ranks' samples."""
    ### BEGIN SOLUTION
    everyone = all_reduce_(comm, torch.tensor(samples)).item()
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            p.grad *= samples / everyone
            all_reduce_(comm, p.grad)
    ### END SOLUTION


# %% nbgrader={"grade_id": "weighted_average_gradients_test", "points": 3}
check.weighted_average_gradients(weighted_average_gradients)

# %% [markdown] nbgrader={"grade_id": "weighted_average_gradients_target"}
# **Target:** no bar for yours. The plain average is another gradient.


# %%
def uneven(comm, x, y, average, *weigh):
    module, mine = (
        mlp([3, 5, 2], dtype=torch.float64),
        torch.arange(10).tensor_split(comm.size)[comm.rank],
    )
    mse_loss(module(x[mine]), y[mine]).backward()
    average(comm, module, *[len(mine)] * len(weigh))
    return torch.cat([p.grad.view(-1) for p in module.parameters()])


random = torch.Generator().manual_seed(4)
x, y = (torch.randn(10, k, generator=random, dtype=torch.float64) for k in (3, 2))
serial = World(1).run(uneven, x, y, average_gradients)[0]
found = {
    "plain": World(4).run(uneven, x, y, average_gradients)[0],
    "weighted": World(4).run(uneven, x, y, weighted_average_gradients, True)[0],
}
study.bars(
    {word: round(float(100 * (g - serial).norm() / serial.norm()), 4) for word, g in found.items()},
    unit="%",
    title="Parts of 3, 3, 2 and 2: how far off is the gradient?",
)

# %% [markdown] nbgrader={"grade_id": "accumulate_spec"}
# ## 5 · Accumulate (3 points)
#
# A rank's part of the batch does not fit into memory. It comes in micro-batches, and their gradients add up.
#
# | | |
# |---|---|
# | call | `accumulate(comm, module, loss_fn, micro_batches)` |
# | `loss_fn` | `loss_fn(module(x), y)`: the mean loss of a micro-batch |
# | `micro_batches` | a list of (x, y), all of one size, equally many on every rank |
# | afterwards | `p.grad` is the gradient of the mean loss over all micro-batches of all ranks |
# | returns | nothing |
# | cost | **one** average, however many micro-batches |
#
# **Invariants:** the gradients of the step before may still be in `p.grad`: they must not count. At any time the
# activations of one micro-batch are in memory, not of two; a variable may hold the last output. About 5 lines with your
# `average_gradients`.
#
# <details><summary>Hint</summary>
#
# `module.zero_grad()` first. Then forward and backward for each micro-batch: backward *adds* to `p.grad`. The mean
# over k micro-batches is the sum of their losses, each divided by k. Average at the end.
#
# </details>


# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all micro-batches of all ranks, averaged once."""
    ### BEGIN SOLUTION
    module.zero_grad()
    for x, y in micro_batches:
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    average_gradients(comm, module)
    ### END SOLUTION


# %% nbgrader={"grade_id": "accumulate_test", "points": 3}
check.accumulate(accumulate)

# %% [markdown] nbgrader={"grade_id": "accumulate_target"}
# **Target:** four bars of one length: 2 · 3/4 · 2,096 bytes.


# %%
def traffic_of(k):
    def step(comm):
        module = mlp([8, 40, 4])
        accumulate(comm, module, mse_loss, [(torch.ones(2, 8), torch.ones(2, 4))] * k)

    world = World(4)
    world.run(step)
    return world.trace.bytes_sent(0)


N = 4 * sum(p.numel() for p in mlp([8, 40, 4]).parameters())
study.bars(
    {f"micro-batches: {k}": traffic_of(k) for k in (1, 2, 4, 8)},
    unit="B",
    target=1.5 * N,
    note="one average",
    title="Bytes that rank 0 sends in a step",
)

# %% [markdown] nbgrader={"grade_id": "predict_step_spec"}
# ## 6 · Predict, then run (2 points)
#
# 8 ranks train a model of 10,000,000 parameters in float32 (4 bytes each), in 24 tensors. Every rank's part of a batch
# comes in 4 micro-batches. Gradients are averaged by ring all-reduces, as you do.
#
# - `messages`: how many messages does each rank send in a step, with one all-reduce for each tensor?
# - `nbytes`: how many bytes does each rank send in a step?
# - `coalesced`: how many messages, if all gradients travel in one buffer?
# - `rate`: somebody forgets to divide by n. The learning rate is 0.1. With which rate would the right gradient give the
#   same step (SGD, no momentum)?
# - `share`: four ranks have 3, 3, 2 and 2 samples, and take the plain mean of their gradients. Which fraction of the
#   result comes from *one* sample of rank 3? (It should be 1/10.)
#
# Write numbers or formulas, right within 1 %. Each of the 24 tensors is much longer than n.

# %% nbgrader={"grade_id": "predict_step", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_step.numbers(STUDENT)
messages = nbytes = coalesced = rate = share = None
### BEGIN SOLUTION
n = 8
N = 40_000_000
tensors = 24
messages = 2 * (n - 1) * tensors
nbytes = 2 * (n - 1) / n * N
coalesced = 2 * (n - 1)
rate = 0.1 * n
share = 1 / 4 * 1 / 2
### END SOLUTION

# %% nbgrader={"grade_id": "predict_step_test", "points": 2}
check.predict_step(messages, nbytes, coalesced, rate, share, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_step_target"}
# **Target:** your numbers beside those of a World. Tensors on the device `"meta"` have a shape and no numbers, so
# the ten million cost nothing.


# %%
def exchange(comm, together):
    sizes = [416_664] * 23 + [416_728]
    grads = [torch.empty(size, device="meta") for size in sizes]
    for some in [grads] if together else grads:
        all_reduce_(comm, some)


traces = [World(8, device="meta").run(exchange, together).trace for together in (False, True)]
rows = [
    ["messages, one by one", messages, traces[0].messages(0)],
    ["messages, coalesced", coalesced, traces[1].messages(0)],
    ["MB", nbytes / 1e6, traces[1].bytes_sent(0) / 1e6],
]
study.table(rows, ["rank 0 sends", "predicted", "run"])

# %% [markdown] nbgrader={"grade_id": "average_hooks_spec"}
# ## 7 · Find the bug (2 points)
#
# A shortcut: PyTorch calls a hook for each parameter as soon as its gradient is there. If the hook averages, then every
# `backward()` averages, and the training loop stays as it was. The next cell was found in somebody's code.


# %% nbgrader={"grade_id": "average_hooks_broken"}
def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""

    def hook(grad):
        all_reduce_(comm, grad, op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)


# %%
def gaps(comm, steps, hooks):
    """How far this rank's weights are from rank 0's after each step."""
    module = mlp([3, 5, 2], dtype=torch.float64)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    hooks(comm, module)
    found = []
    for _ in range(steps):
        x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
        optimizer.zero_grad()
        mse_loss(module(x), y).backward()
        optimizer.step()
        mine = nn.utils.parameters_to_vector(module.parameters()).detach()
        found.append(float((mine - broadcast_(comm, mine.clone())).abs().max()))
    return found


broken = World(4).run(gaps, 12, average_hooks)
study.curves(
    {f"rank {r}": (range(1, 13), broken[r]) for r in (1, 2, 3)},
    xlabel="step",
    ylabel="largest difference from rank 0's weights",
    title="Replicas that should be equal",
)

# %% [markdown] nbgrader={"grade_id": "average_hooks_task"}
# All ranks start equal, and their weights differ after the first step. Copy the function, and repair it: what it
# averages is wrong.
#
# | | |
# |---|---|
# | call | `average_hooks(comm, module)` |
# | afterwards | every `backward()` leaves the mean over all ranks in `p.grad`; weights and buffers untouched |
# | returns | nothing |
# | cost | 2(n−1)/n·N bytes a rank and backward |
#
# <details><summary>Hint</summary>
#
# The argument has a name that promises too much. What does the documentation of `register_post_accumulate_grad_hook`
# say that a hook is called with?
#
# </details>


# %% nbgrader={"grade_id": "average_hooks", "solution": true}
def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""

    ### BEGIN SOLUTION
    def hook(p):
        all_reduce_(comm, p.grad, op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
    ### END SOLUTION


# %% nbgrader={"grade_id": "average_hooks_test", "points": 2}
check.average_hooks(average_hooks)

# %% [markdown] nbgrader={"grade_id": "average_hooks_target"}
# **Target:** no difference, bit for bit. One thing is left: a parameter that only some ranks reach has a hook that only
# some ranks call, and the others wait forever. Lesson 06 does better, and hides the messages behind the backward.

# %%
repaired = World(4).run(gaps, 12, average_hooks)
study.bars(
    {"broken": max(map(max, broken)), "repaired": max(map(max, repaired))},
    title="Largest difference between replicas in 12 steps",
)
