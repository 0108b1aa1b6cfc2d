# %% [markdown]
# # 27 · From here to your cluster
#
# You have a program that trains in a World, and tomorrow it starts on 64 GPUs. What will go wrong there is rarely the algorithm. A gradient is not summed, and the loss falls all the same. One process reads a slow file, and 63 others stand still. Communication that should hide behind computation does not, and nobody says why. This lesson is a guide to these three kinds of trouble, and to two smaller ones: what the thing you need is called in somebody else's framework, and how your weights get into a file that others can load.
#
# First a guess. We shall plant five bugs in the training of a small GPT, each of them easily made: gradients are too large by a factor *n*, the gradients of LayerNorm are not summed, the two gradients of a tied embedding are not added up, a part is missing from the norm by which gradients are clipped, and dropout draws other random numbers.
#
# **After 16 steps, how many of the five have a loss that is more than 5 % above that of a right run with the same options?**

# %%
guess_seen = 3  # of five: change this number

# %% [markdown]
# ## One program, three worlds
#
# The program is the one you know from [Hybrid](lesson:hybrid): a GPT, a grid, and a step. Two lines are new. `record(…)` asks PyTorch to call back for each module and each gradient, and `run.step(…)` writes down what the step has done. They change no number. The options `plant` and `slip` are where we shall put the bugs.

# %%
import math
from functools import partial

import torch
from IPython.display import display
from torch import nn

from minidist import study
from minidist.comm import World, launch
from minidist.comm.mesh import Mesh
from minidist.models import gpt
from minidist.parallelize import parallelize
from minidist.study.compare import compare, plain, record

MODEL = dict(layers=2, hidden=16, heads=2, vocab=11, context=8)


def batch(step):
    """Eight rows that count in strides of 1, 2 or 3, and the tokens that follow: the same on every rank."""
    random = torch.Generator().manual_seed(step)
    first = torch.randint(0, 11, (8, 1), generator=random)
    stride = torch.randint(1, 4, (8, 1), generator=random)
    rows = (first + stride * torch.arange(9)) % 11
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def serial_name(name, stage):
    """A stage counts its layers from 0 again. What is its name in the serial model?"""
    if name in ("loss", "norm"):
        return name
    if "." not in name:
        return stage
    part = plain(name.split(".", 1)[1])
    if part.endswith("tokens.weight"):
        part = "0.tokens.weight"  # a tied projection is the embedding
    return part


# %%
def train(comm, grid, steps=2, plant=None, slip=None, dropout=0.0, clip=None, tied=True, **options):
    """Train a GPT on a grid of ranks, and return what `record` has written down of it."""
    mesh = Mesh(comm, **grid)
    model = gpt(**MODEL, tied=tied, dropout=dropout)
    adam = partial(torch.optim.AdamW, lr=0.01)
    engine = parallelize(model, mesh, adam, **options)
    if plant is not None:
        plant(engine)  # before training
    stage = f"stage {mesh.pp.rank}" if mesh.pp.size > 1 else ""
    run = record(engine.module, steps=steps, names=partial(serial_name, stage=stage))
    for step in range(steps):
        x, y = batch(step)
        mine = slice(mesh.dp.rank, None, mesh.dp.size)  # every dp-th row
        loss = engine.backward(x[mine], y[mine])
        if slip is not None:
            slip(engine)  # after each backward
        norm = engine.clip(clip) if clip else None
        with run.step(loss=loss, norm=norm):
            engine.update()
    return run.finished


# %% [markdown]
# The same function runs in a World, in processes, and under torchrun. Here are the first two, on two data-parallel ranks. Time differs between them, of course: a World models it, processes take what they take. What must be the same is who sends what to whom. (With *N* bytes of parameters, each rank sends *N* for the average. Before the first step rank 0's weights go to rank 1 in two pieces, for which rank 0 sends *N* more and rank 1 *N*/2.)

# %%
DATA = dict(dp=2)
in_world = World(2).run(train, DATA, steps=1)
in_processes = launch(train, 2, DATA, steps=1)
display(study.traffic(in_world.trace, title="In a World"))
study.traffic(in_processes.trace, title="In two processes")

# %% tags=["maintainer"]
for rank in range(2):
    assert in_world.trace.bytes_sent(rank) == in_processes.trace.bytes_sent(rank)
    assert in_world[rank][0].keys() == in_processes[rank][0].keys()
    for key, calls in in_world[rank][0].items():
        for a, b in zip(calls, in_processes[rank][0][key], strict=True):
            # equal to the last bit where both compute with as many threads
            assert torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6), key

# %% [markdown]
# On a cluster the third runner takes over, `train(from_env(), …)` under torchrun, and nothing else in the program changes. So a bug in *what* is sent can be found on your laptop. But first you have to notice that there is one.
#
# ## Is my run right?
#
# Nobody can tell from a loss curve alone. What one needs is an [oracle](term:oracle): the serial program on the same data. Compare every tensor of the parallel run with the serial one, and find the first that differs. There is one difficulty. Even a right run differs a little.
#
# ### By hand: rounding depends on the order
#
# Take a machine whose numbers have three decimal digits, and add 100 + 0.4 + 0.4. From the left: 100 + 0.4 = 100.4, rounded to 100; again 100.4, rounded to 100. From the right: 0.4 + 0.4 = 0.8, and 100 + 0.8 = 100.8, rounded to 101. Both are right, in the sense in which such a machine can be right. An all-reduce over two ranks first adds up each rank's share of the batch by itself, so it is another order.
#
# How far may two orders be apart? Each addition rounds its result by at most a share *u* of it. This $u$ is the [unit roundoff](term:unit-roundoff), half the distance from 1 to the next number: 6e-8 in fp32 and 0.004 in bf16. A sum of *K* terms has *K* − 1 additions. If all errors pointed the same way, they would add up to *K*·*u*. But their signs are as good as random, and *K* independent errors of size *u* add up as the steps of a random walk do, to $\sqrt K\,u$.
#
# **Let us sum 65,536 random numbers between −1 and 1 in fp32, in order and in four parts. By how much, relative to the root of the sum of squares, will the two differ? In units of *u*:** the pessimist says 65,536, the random walk says 256.

# %%
guess_units = 256  # units of u: change this number


# %%
def one_by_one(terms):
    """The sum of each column, one row after the other, each addition rounded to fp32."""
    total = torch.zeros(terms.shape[1])
    for row in terms:
        total = total + row
    return total


def in_parts(terms, n=4):
    """What n data-parallel ranks do: each adds up its rows, and the n sums are added."""
    return one_by_one(torch.stack([one_by_one(part) for part in terms.chunk(n)]))


U = torch.finfo(torch.float32).eps / 2
lengths = [4**k for k in range(2, 9)]
differences = []
for K in lengths:
    terms = 2 * torch.rand(K, 64, generator=torch.Generator().manual_seed(K)) - 1
    size = math.sqrt(K / 3)  # the root of the sum of squares: their mean is 1/3
    apart = (one_by_one(terms) - in_parts(terms)).square().mean().sqrt()
    differences.append(apart.item() / (size * U))

# %% tags=["answer"]
picture = study.curves(
    {"K": (lengths, lengths), "√K": (lengths, [math.sqrt(K) for K in lengths])},
    points={"run": (lengths, differences)},
    logx=True,
    logy=True,
    xlabel="terms of the sum, K",
    ylabel="difference, in units of u",
    title="Two orders of one sum",
)
study.reveal(
    guess_units,
    round(differences[-1], -1),
    picture,
    words="In units of u. The points stay below √K = 256, and grow as it does. Random terms do not come near K·u. Equal "
    "ones can: add 0.1 a million times, and long stretches are all rounded the same way.",
)

# %% tags=["maintainer"]
assert all(
    0.02 * math.sqrt(K) < d < 2 * math.sqrt(K) for K, d in zip(lengths, differences, strict=True)
)

# %% [markdown]
# A network is a chain of such sums. Sums of 16-bit numbers are added up in fp32 at least, with unit roundoff *v* (in fp32 and fp64, *v* is *u*); the result is rounded once to the dtype, which costs *u*. One module is off by $u + v\sqrt K$. The errors of *D* modules are again independent, so they add up to $\sqrt D$ times that. With a margin of four,
#
# $$\text{allowed} = 4\left(u\sqrt D + v\sqrt{KD}\right)$$
#
# is what a number may be off, as a share of the largest number in the tensor. This is a [tolerance](term:tolerance) with a reason, which `rtol=1e-3` is not. Move the sliders. In bf16 the rounding of the results decides, and the length of the sum hardly matters; in fp32 and fp64 it is the other way round.

# %%
from minidist.study.compare import tolerance


def allowed(dtype, K, D):
    return {"allowed": tolerance(getattr(torch, dtype), K, D)}


study.explore(
    allowed,
    over="K",
    dtype=["float64", "float32", "float16", "bfloat16"],
    K=[4**k for k in range(1, 11)],
    D=[1, 4, 16, 64, 256],
    labels={"K": "terms of a sum, K", "D": "modules, D"},
    start={"dtype": "float32"},
    logx=True,
    logy=True,
    xlabel="terms of a sum, K",
    ylabel="allowed, as a share of the largest number",
    title="What rounding may change",
)

# %% [markdown]
# ### Which axes can be equal to the last bit
#
# Some ways of cutting a model do not change the order of any sum. Recomputation runs the same operators again on the same numbers. In a pipeline each micro-batch meets the same operators as before, only on another device, and its gradient is added to the same running sum. Whatever differs there, even in the last bit, is a bug. All other axes cut a sum: data, accumulation and ZeRO cut the sum over the batch, tensor parallelism the sum over a product's inputs, and context parallelism the sum in a softmax. And there is small print for pipelines. A tied embedding's two gradients come together in another order than in autograd's serial backward, and a norm over stages is a sum of the stages' sums, so for exactness one compares a model without ties and without clipping.


# %%
def serial(**options):
    return list(World(1).run(train, {}, **options))


def parallel(grid, **options):
    return list(World(math.prod(grid.values())).run(train, grid, **options))


def same_bits(one, other):
    """Whether all gradients and parameters that other ranks hold whole are one's, bit for bit."""
    for run in other:
        for alone, beside in zip(one[0], run, strict=True):
            for key in [key for key in beside if key[0] in ("gradient", "parameter")]:
                whole = alone[key][0]
                if beside[key][0].shape == whole.shape and not torch.equal(beside[key][0], whole):
                    return False
    return True


plain_run = serial()
two_micro_batches = serial(micro_batches=2, tied=False)
cases = [
    ("remat", plain_run, serial(recompute="full")),
    ("pipeline", two_micro_batches, parallel(dict(pp=2), micro_batches=2, tied=False)),
    ("data", plain_run, parallel(dict(dp=2))),
    ("zero", plain_run, parallel(dict(dp=2), zero=1)),
    ("tensor", plain_run, parallel(dict(tp=2))),
    ("accumulate", plain_run, serial(micro_batches=2)),
]
rows = []
for axis, alone, beside in cases:
    verdict = compare(alone, beside, axes=[axis]).cause
    rows.append((axis, "yes" if same_bits(alone, beside) else "no", verdict))
study.table(rows, ["axis", "equal to the last bit", "the verdict of compare"])

# %% tags=["maintainer"]
assert [row[1] for row in rows] == ["yes", "yes", "no", "no", "no", "no"]
assert {row[2] for row in rows} == {"equal"}

# %% [markdown]
# `compare` is told the axes, and allows nothing at all if every one of them can be exact; for the others its verdict "equal" means that nothing differs by more than is allowed. Note which oracle stands beside the pipeline: the serial run with the *same micro-batches*. Beside the whole batch at once it would differ, as the last row does.
#
# ### The first tensor that differs
#
# After the first mistake everything is wrong: one bad gradient makes bad weights, and these make bad outputs everywhere. So the number of wrong tensors says nothing, and the *first* one says nearly everything. Here is the order in which a step makes its tensors:
#
# ![The order of a step: weights at the start, dropout masks, outputs from the first module to the last, loss, gradients of outputs from the last module back, norm and gradients, parameters. Beside each stands the mistake that is seen there first, such as other seeds, a missing all-reduce or a wrong learning rate.](../course/27_field_guide/figures/first_difference.svg)
#
# A naive search walks through the serial record in that order, and stops at the first tensor that is off by more than its tolerance. Here that is 1.2e-5 of its largest number: the formula for fp32, K = 64 and D = 32.


# %%
KINDS = ("start", "mask", "output", "loss", "output_grad", "norm", "gradient", "parameter")


def naive_first_difference(alone, beside, share):
    """(step, kind, name) of the first tensor of rank 0 that is off by more than `share` of its largest number."""
    for step, tensors in enumerate(alone[0]):
        for kind in KINDS:
            for (its_kind, name), [whole, *_] in tensors.items():
                found = beside[0][step].get((kind, name))
                if its_kind == kind and found is not None and found[0].shape == whole.shape:
                    off = (found[0].double() - whole.double()).abs().max()
                    if off > share * whole.double().abs().max():
                        return step, kind, name
    return None


def too_large(engine):
    """The sum over the data-parallel ranks, where the mean belongs."""
    for p in engine.module.parameters():
        p.grad.mul_(2)


summed = parallel(DATA, slip=too_large)
print("right, tensor:", naive_first_difference(plain_run, parallel(dict(tp=2)), 1.2e-5))
print("right, data:  ", naive_first_difference(plain_run, parallel(DATA), 1.2e-5))
print("wrong, data:  ", naive_first_difference(plain_run, summed, 1.2e-5))

# %% [markdown]
# It raises a false alarm: the second run is right. A rank's backward starts from the mean loss of *its own* rows, so the gradients of its outputs are *n* times as large as the serial ones, until the average divides by *n*. That is no mistake, and one has to know it. The search has more weaknesses. It looks only at tensors that a rank holds whole, so it sees nothing of a split matrix. Among the gradients of parameters it begins with the embedding's, which backward computes *last*. And it says where, not why. The library's `compare` puts the parts of all ranks together, whatever the grid, and then tries hypotheses about the cause. Each is a formula that must explain the wrong tensor *P* from the right tensor *S* to within rounding: *P* = *c*·*S*; or *P* is what the rank's own backward gave, before any exchange; or *P* has *S*'s chunks in another order; or *P* = Σ *a*ᵣ*L*ᵣ, where the *L*ᵣ are the ranks' own gradients and a least-squares problem finds how often each of them is in it.

# %%
report = compare(plain_run, summed)
print(report.text)

# %% [markdown]
# ### Five bugs
#
# The factor was the first. The second is famous: under [sequence parallelism](term:sequence-parallel) each rank applies LayerNorm to its own part of the tokens, so the gradient of LayerNorm's weights is a sum over the ranks, and somebody has to add it up. We plant the bug by turning the library's sequence-parallel norm into PyTorch's own, which knows nothing of ranks.


# %%
def forget_norms(engine):
    """LayerNorm under sequence parallel without its all-reduce."""
    for module in engine.module.modules():
        if type(module).__name__ == "SequenceNorm":
            module.__class__ = nn.LayerNorm


SEQUENCE = dict(sequence_parallel=True)
print(compare(plain_run, parallel(dict(tp=2), **SEQUENCE)).text, end="\n\n")
print(compare(plain_run, parallel(dict(tp=2), **SEQUENCE, plant=forget_norms)).text)

# %% [markdown]
# The third lives in a [pipeline](lesson:pipelines). The first stage looks tokens up in the embedding, the last one multiplies by the same matrix, and each of them has only its own half of the gradient. If nobody adds the halves, the two copies drift apart, and the model has two embeddings where it should have one.


# %%
def lose_ties(engine):
    """Nobody adds up the gradients of the tied embedding. (The library keeps the groups that do in a list.)"""
    engine.pipeline.ties._groups.clear()


two_micro_batches = serial(micro_batches=2)
print(compare(two_micro_batches, parallel(dict(pp=2), micro_batches=2, plant=lose_ties)).text)

# %% [markdown]
# For the fourth, every gradient is right, and only the norm is wrong: each stage takes the norm of the parameters that it holds, and forgets to add the squares of the others. The clipping is then different on each stage.


# %%
def own_norm(engine):
    """Clip by the norm of this stage's parameters alone."""

    def clip(most):
        return nn.utils.clip_grad_norm_(engine.module.parameters(), most)

    engine.clip = clip


CLIP = dict(micro_batches=2, tied=False, clip=0.3)
print(compare(serial(**CLIP), parallel(dict(pp=2), **CLIP, plant=own_norm)).text)

# %% [markdown]
# The fifth is dropout. Where ranks hold the same data, as tensor-parallel ranks do outside of attention, they must drop the same numbers. Where they hold different data, they must not. Here all ranks agree with each other, but not with the serial run.

# %%
DROPOUT = dict(dropout=0.1)
print(compare(serial(**DROPOUT), parallel(dict(tp=2), **DROPOUT, seed=1)).text)

# %% [markdown]
# The advice to switch dropout off is meant literally. Even a *right* tensor-parallel run differs from the serial one with dropout, since each rank draws the masks of its own heads. To compare, switch dropout off; then test dropout by itself.
#
# Now back to the guess. Here are the losses of all five over 16 steps. Beside each is the right run with the same options: the same clipping, the same dropout, the same micro-batches.

# %%
SIXTEEN = dict(steps=16)


def losses(records):
    return [step["loss", "loss"][0].item() for step in records[-1]]


TWO = dict(micro_batches=2)
CLIPPED = dict(**TWO, clip=0.3)
right = losses(serial(**SIXTEEN))
runs = {  # a wrong run, and the right one with the same options
    "factor n": (losses(parallel(DATA, **SIXTEEN, slip=too_large)), right),
    "LayerNorm": (
        losses(parallel(dict(tp=2), **SIXTEEN, **SEQUENCE, plant=forget_norms)),
        right,
    ),
    "tie": (losses(parallel(dict(pp=2), **SIXTEEN, **TWO, plant=lose_ties)), right),
    "norm": (
        losses(parallel(dict(pp=2), **SIXTEEN, **CLIPPED, plant=own_norm)),
        losses(serial(**SIXTEEN, **CLIPPED)),
    ),
    "dropout": (
        losses(parallel(dict(tp=2), **SIXTEEN, **DROPOUT, seed=1)),
        losses(serial(**SIXTEEN, **DROPOUT)),
    ),
}
rows = []
seen = 0
for name, (loss, its_right) in runs.items():
    late, its_late = sum(loss[-4:]) / 4, sum(its_right[-4:]) / 4
    seen += late > 1.05 * its_late
    above = round(100 * (late / its_late - 1), 1)
    rows.append((name, f"{its_late:.2f}", f"{late:.2f}", "0 %" if above == 0 else f"{above:+} %"))

# %% tags=["answer"]
table = study.table(rows, ["bug", "loss without it", "loss with it", "difference"])
picture = study.curves(
    {"right": (list(range(16)), right)}
    | {name: (list(range(16)), loss) for name, (loss, _) in runs.items()},
    xlabel="step",
    ylabel="loss",
    title="One right run and five wrong ones",
)
study.reveal(
    guess_seen,
    seen,
    [table, picture],
    words="None. Adam divides by the size of the gradient, so a factor n and another norm hardly change its step. "
    "The others train a model that is slightly different from yours, and it learns all the same. "
    "(The mean of the last four losses is compared. The curve of the wrong norm lies low because that run clips, "
    "as its right one does.)",
)

# %% tags=["maintainer"]
assert seen == 0

# %% [markdown]
# ### What it costs, and when not to use it
#
# `record` keeps a copy of every activation and gradient for the few steps that it watches. Do not use it on the full run: take two layers, a small batch, two steps, fp32, and the *same axes* with two or three ranks on each. A bug in the exchange does not need 70 billion parameters to show. Do not compare the hundredth step either; rounding noise grows from step to step until the two runs are different runs. Where an operator itself is at fault, such as a kernel on one kind of GPU, the parallel and the serial run have the same fault, and this method is blind.
#
# ### The library's file
#
# [minidist/study/compare.py](file:minidist/study/compare.py) has four parts. The first records; this is what a forward hook notes of a module:

# %%
from minidist.study import compare as library

study.source(library.Recorder.output)

# %% [markdown]
# The second is the bound, as derived above:

# %%
study.source(library.tolerance, docstring=False)

# %% [markdown]
# The third is the search in order, step by step and kind by kind:

# %%
study.source(library.first_difference)

# %% [markdown]
# The fourth is a dozen hypotheses. Here is the simplest, a factor: it is accepted only if it explains every number of every rank, and it is given a name if it is a known one.

# %%
study.source(library.factor)

# %% [markdown]
# In your own loop, with any PyTorch model, under torchrun or without, `record(model, "runs/serial")` and `record(model, "runs/parallel", rank=rank)` write folders, and one command compares them:
#
# ```
# python -m minidist.study.compare runs/serial runs/parallel
# python -m minidist.study.compare runs/serial runs/parallel --axis pipeline
# ```
#
# ## Which rank hangs?
#
# A collective is over when all have come. If one rank does not come, all others wait, and a stack trace of any of *them* shows a healthy program in an all-reduce. The guilty one is elsewhere.
#
# Here are four ranks on a grid of 2 × 2: the tensor groups are {0, 1} and {2, 3}, the data groups {0, 2} and {1, 3}. Each does an all-reduce in its tensor group, one in its data group, one in its tensor group. Rank 3 has a bug and leaves the second one out.


# %%
from minidist.collectives import all_reduce_
from minidist.comm import Deadlock, RankMissing


def grid_step(comm, skips=None):
    mesh = Mesh(comm, dp=2, tp=2)
    x = torch.ones(4)
    all_reduce_(mesh.tp, x)
    if comm.rank != skips:
        all_reduce_(mesh.dp, x)
    all_reduce_(mesh.tp, x)


# %% [markdown]
# **Rank 3 goes straight to its third call. Which ranks will stand still?**

# %%
guess_still = "all"  # or "1 and 3", "0 and 1", …

# %%
try:
    World(4).run(grid_step, 3)
except Deadlock as error:
    explanation = str(error)

# %% tags=["answer"]
study.reveal(guess_still, "0 and 1", words=explanation)

# %% [markdown]
# Ranks 2 and 3 have ended! Rank 3's next call happened to match rank 2's, and both went home. Rank 0 waits for rank 1, which waits for rank 3. On a cluster it is rank 0's log that the launcher shows you first, and rank 0 never has anything to do with rank 3.
#
# ![Four ranks. Rank 0 waits for rank 1 in call 2 of their tensor group; rank 1 waits for rank 3 in call 1 of their data group; rank 3 does not wait. Rank 2 has ended: its call met that of rank 3.](../course/27_field_guide/figures/who_waits.svg)
#
# So the rule is: *follow the waiting until you reach a rank that does not wait.* A World knows every rank and tells you at once. With `launch` the parent asks the processes that it has started. In the next program rank 2 is busy with something slow, and the others give up after a second.

# %%
import time


def slow_reader(comm):
    x = torch.ones(4)
    if comm.rank == 2:
        time.sleep(3)  # reads a file over a slow network
    all_reduce_(comm, x)


try:
    launch(slow_reader, 3, timeout=1)
except RankMissing as error:
    said = str(error).splitlines()
print("\n".join(line.strip() for line in said if line.startswith("  rank 2")))

# %% [markdown]
# ### From a watchdog's message to the guilty rank
#
# Under torchrun, over NCCL, nobody knows all the ranks. What you get is a [watchdog](term:watchdog), a thread in each process that ends the process if an operation takes longer than the timeout (10 minutes for NCCL):
#
# ```
# [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE,
#   NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.
# ```
#
# It names a victim and a number. It is the number that helps: **call number *i* of a group is the same call on all of its ranks.** PyTorch's [flight recorder](term:flight-recorder) writes down, on each rank, the last 2,000 calls with their numbers, groups, shapes and states. When the watchdog fires, each rank's record goes to a file. (`TORCH_FR_BUFFER_SIZE` sets the length, `TORCH_FR_DUMP_TEMP_FILE` the place, and `TORCH_NCCL_DUMP_ON_TIMEOUT` must not be off. PyTorch's older names begin with `TORCH_NCCL_TRACE_` and `TORCH_NCCL_DEBUG_INFO_`.)
#
# By hand, with three ranks, the rule is a table: in each group take the first number that some rank has not finished, and look for the rank that has no entry under it, or another call. We can have real dumps here, since gloo's process group has a recorder too.

# %%
import tempfile
from pathlib import Path

import torch.distributed as dist

FOLDER = Path(tempfile.mkdtemp())


def hangs(comm, folder):
    """Rank 2 does not come to the second all-reduce. Each rank writes what its flight recorder has."""
    x = torch.ones(4)
    dist.all_reduce(x)
    if comm.rank != 2:
        work = dist.all_reduce(x, async_op=True)
    time.sleep(0.2)
    dump = torch._C._distributed_c10d._dump_fr_trace(True, False, False)
    Path(folder, f"trace_rank_{comm.rank}").write_bytes(dump)
    if comm.rank == 0:  # from here on rank 2 makes up for it, so that the notebook can go on
        comm.send(x, 2)
    if comm.rank == 2:
        comm.recv(x, 0)
        work = dist.all_reduce(x, async_op=True)
    work.wait()


_ = launch(hangs, 3, str(FOLDER), transport="gloo")

# %% [markdown]
# What is in such a file? The naive way is to open all of them and read, with 2,000 entries for each of 64 ranks. Let us read three short ones:

# %%
from minidist.comm import flight

reports = flight.read(f"{FOLDER}/trace_rank_")
rows = []
for rank, known in reports.items():
    for call in known.calls:
        rows.append((rank, call.description, call.number, call.name, "yes" if call.over else "no"))
study.table(rows, ["rank", "group", "number", "call", "over"], title="Three flight recorders")

# %% [markdown]
# Ranks 0 and 1 are in call 2; rank 2 has no call 2. The command does the same for any number of ranks and groups:

# %%
from minidist.comm.__main__ import main

status = main(["--hang", f"{FOLDER}/trace_rank_"])

# %% [markdown]
# On a cluster you would type `python -m minidist.comm --hang ~/.cache/torch/comm_lib_trace_rank_`. Its heart is one function, which says of each rank whether it is in the call, through it, or has not come:

# %%
study.source(flight._collective)

# %% [markdown]
# A dump is a pickle, and a pickle can run any function when it is loaded. The reader in [flight.py](file:minidist/comm/flight.py) therefore refuses everything but plain values. What else does it do? With `from_env(timeout=…)` each rank starts a small thread that answers when others ask, even while the program stands still, so a rank that has waited too long can print at which *line* the missing one is.
#
# What can fool you: a rank that has died has left no file; a rank in the wrong *group* shows up as two hangs; and sends and receives have numbers of their own, and may be posted long ahead, so a posted receive that is "not over" is no proof of anything.
#
# ### Before the run
#
# Many hangs are there before the first step: an interface that other nodes cannot reach, a port that is taken, 64 MB of shared memory in a container, a variable that somebody exported last year. `python -m minidist.comm --doctor` looks at all of that on the machine on which it runs. What it says of *this* machine you may see in a terminal; here are its findings for an environment that is made up.

# %%
from minidist.comm import doctor

exported = {
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "8",
    "NCCL_SOCKET_IFNAME": "lo",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_DEBUG": "INFO",
}
interfaces = {"10.0.0.7": "eth0", "192.168.3.7": "ib0"}
print(doctor.nccl_interface(exported, interfaces))
for finding in doctor.variables(exported):
    print(finding)

# %% [markdown]
# These are all the variables in which it sees harm. Each switches something off, and somebody had a reason to do so, once, while looking for a bug.

# %%
rows = [
    (name, "off" if values == doctor.OFF else "on", why) for name, values, why in doctor.HARMFUL
]
study.table(rows, ["variable", "harmful if", "what it does"])

# %% [markdown]
# Two habits that other courses teach cost whole days. One is a fixed port in the script, on which the second run on the same machine fails, or, worse, joins the first. (`--standalone` and a rendezvous endpoint choose a free one.) The other is to leave gloo's timeout at 30 minutes while looking for a bug: half an hour of silence for each attempt. Take a minute.
#
# The network is chosen by `NCCL_SOCKET_IFNAME` (and `GLOO_SOCKET_IFNAME`; `NCCL_IB_HCA` for InfiniBand cards). `NCCL_DEBUG=INFO` makes NCCL print at the start which interface it takes and which way leads from each GPU to the next. Look for `NET/Socket` where you have paid for InfiniBand.
#
# ## Why does nothing overlap?
#
# In [Buckets and overlap](lesson:buckets) communication hid behind the backward. On your cluster it does not. How do you see it, and what are the reasons? Here are two programs on two modelled H100 cards. The only difference is that the second one waits for each all-reduce as soon as it has started it.


# %%
from minidist.comm.cluster import H100, Cluster


def backward(comm, impatient=False, exchange=True):
    """Eight layers, last one first: compute a gradient, and start its all-reduce on another lane."""
    x = torch.empty(4096, 4096, dtype=torch.bfloat16, device=comm.device)
    works = []
    for _ in range(8):
        gradient = x @ x
        if not exchange:
            continue
        work = comm.stream(all_reduce_, gradient)
        if impatient:
            work.wait()
        works.append(work)
    for work in works:
        work.wait()


cluster = Cluster.uniform(2, 20e-6, 1 / 200e9, H100)
patient = World(2, cluster=cluster, device="meta").run(backward)
study.viewer(patient, title="Overlap: the lane works beside the program (modelled)")

# %% [markdown]
# What you pay for is the time that is *exposed*: the time of the step, less the time of the same step without its exchange. It can be predicted. When the backward ends, the patient program has only the last of its eight all-reduces left to wait for; the impatient one has paid for all eight. On two ranks an all-reduce of *N* bytes takes $2(\alpha + \frac N2\beta)$; adding the halves up comes on top, so both programs take a little longer than predicted.

# %%
alone = World(2, cluster=cluster, device="meta").run(backward, exchange=False)
impatient = World(2, cluster=cluster, device="meta").run(backward, impatient=True)
one_all_reduce = 2 * (20e-6 + 4096 * 4096 / 200e9)  # N/2 bytes: two to a number
rows = []
for name, run, count in (("patient", patient, 1), ("impatient", impatient, 8)):
    exposed = run.time - alone.time
    rows.append((name, f"{1e3 * count * one_all_reduce:.2f}", f"{1e3 * exposed:.2f}"))
study.table(rows, ["program", "exposed, predicted, ms", "exposed, modelled, ms"])

# %% [markdown]
# You can measure the same on a cluster: switch the exchange off for ten steps (the model is then wrong, and the time right), and subtract.
#
# On a real machine the picture comes from PyTorch's profiler, and one looks for the same thing: kernels of NCCL in one row, matrix products in another, side by side or one after the other. Give the phases the same names in the profiler's trace and in your own, as in [Operators](lesson:operators), and lay one beside the other in Perfetto. The trainer does it:
#
# ```
# torchrun --nproc-per-node 8 examples/train_gpt.py --dp 8 --folder run --profile 3
# ```
#
# Here is the smallest version on two processes: where, in the order of events, does the exchange start? The profiler sees the same phases as our trace.

# %%
from contextlib import contextmanager
from time import perf_counter

from torch.profiler import ProfilerActivity, profile, record_function

from minidist.comm import Trace


def profiled(comm, hooked):
    """One backward, whose exchange starts in a hook, or afterwards. How many started before it was over, in each record?"""
    ours = Trace(1)

    @contextmanager
    def phase(name):
        with record_function(name):
            start = perf_counter()
            yield
            ours.spans.add(0, "main", "phase", start, perf_counter(), name)

    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    works = []

    def exchange(p):
        with phase("exchange"):
            works.append(comm.stream(all_reduce_, p.grad))

    if hooked:
        for p in layers.parameters():
            p.register_post_accumulate_grad_hook(exchange)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        with phase("backward"):
            layers(torch.ones(4, 8)).sum().backward()
        if not hooked:
            for p in layers.parameters():
                exchange(p)
    for work in works:
        work.wait()
    ends = {span.name: span.end for span in ours.spans if span.name == "backward"}
    in_ours = sum(s.name == "exchange" and s.start < ends["backward"] for s in ours.spans)
    theirs = [event for event in recorded.events() if event.name in ("backward", "exchange")]
    end = next(event.time_range.end for event in theirs if event.name == "backward")
    in_theirs = sum(e.name == "exchange" and e.time_range.start < end for e in theirs)
    return in_ours, in_theirs


# %% tags=["maintainer"]
import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # its own words would stand in the output

# %%
rows = []
for hooked in (True, False):
    in_ours, in_theirs = launch(profiled, 2, hooked)[0]
    rows.append(("in a hook" if hooked else "after backward", in_ours, in_theirs))
study.table(rows, ["exchange starts", "within backward, our trace", "within backward, profiler's"])

# %% tags=["maintainer"]
assert [row[1:] for row in rows] == [(4, 4), (0, 0)]

# %% [markdown]
# If the exchange *starts* in time and still does not overlap, look at three things. Does somebody wait (`.wait()`, `.item()`, a print of the loss, `CUDA_LAUNCH_BLOCKING=1`, `TORCH_NCCL_BLOCKING_WAIT=1`)? Is there anything to hide behind (see [ZeRO](lesson:zero): a GPU of F FLOP/s whose network moves b bytes/s needs F/b tokens)? And last, in which order does the GPU *begin* its work?
#
# ### CUDA_DEVICE_MAX_CONNECTIONS
#
# The host does not hand kernels to a GPU's streams directly. It puts them into a few hardware queues, 8 unless you say otherwise, and each stream is mapped to one of them. A queue is strict: what stands in front must have *begun* before the next can. With one queue all kernels begin in the order in which they were launched.
#
# ![Four timelines. Tensor parallel with one queue: the all-reduce begins before the weight's product, and both run together. With several queues the product may begin first, and the all-reduce waits for it. Sharded weights with one queue: the gather stands behind a scatter that waits for a whole layer. With several queues it begins at once, beside the layer.](../course/27_field_guide/figures/queues.svg)
#
# Is that good or bad? It depends on the program, as a small simulation shows. A kernel can begin when those before it in its stream, and those named in `after`, are done, and when all in front of it in its queue have begun. A big matrix product takes every multiprocessor of the GPU, so a communication kernel that comes later has to wait for it to end; the other way round they run side by side, since communication takes few.


# %%
class Kernel:
    def __init__(self, name, stream, duration, after=()):
        self.name = name
        self.stream = stream  # 0 computes; all others communicate
        self.duration = duration
        self.after = after
        self.begin = None
        self.ready = None

    @property
    def end(self):
        return math.inf if self.begin is None else self.begin + self.duration


def run_on_gpu(kernels, queues):
    """Begin each kernel as early as its stream, its queue and the multiprocessors allow. Returns when all are done."""
    named = {kernel.name: kernel for kernel in kernels}
    now = 0.0
    while any(kernel.begin is None for kernel in kernels):
        candidates = []
        for i, kernel in enumerate(kernels):
            if kernel.begin is not None:
                continue
            in_front = [k for k in kernels[:i] if k.stream % queues == kernel.stream % queues]
            needed = [k for k in kernels[:i] if k.stream == kernel.stream]
            needed += [named[name] for name in kernel.after]
            if all(k.begin is not None for k in in_front) and all(k.end <= now for k in needed):
                kernel.ready = now if kernel.ready is None else kernel.ready
                candidates.append(kernel)
        full = any(k.stream == 0 and k.begin is not None and k.end > now for k in kernels)
        candidates = [k for k in candidates if not full]
        if candidates:  # the longest ready; of equals the product, which is the worst case
            first = min(candidates, key=lambda k: (k.ready, k.stream))
            first.begin = now
        else:
            now = min(k.end for k in kernels if now < k.end < math.inf)
    return max(kernel.end for kernel in kernels)


# %% [markdown]
# Two programs. In Megatron's tensor parallelism the gradient of a layer's *input* needs an all-reduce, and the gradient of its *weight* is computed meanwhile. In ZeRO 3 (PyTorch's FSDP2) a layer's weights are gathered while the layer before computes, and its gradients scattered while the next one does.


# %%
def tensor_parallel(layers=4):
    """Launched in this order: product, all-reduce of its result, and the product to hide it behind."""
    kernels = []
    for i in range(layers):
        needed = (f"all-reduce {i - 1}",) if i else ()
        kernels.append(Kernel(f"input {i}", 0, 4, needed))
        kernels.append(Kernel(f"all-reduce {i}", 1, 3, (f"input {i}",)))
        kernels.append(Kernel(f"weight {i}", 0, 4))
    return kernels


def sharded(layers=4):
    """Backward of a layer in four kernels. Launched behind it: the scatter of its gradients, the next gather."""
    kernels = [Kernel("gather 0", 2, 3)]
    for i in range(layers):
        for part in range(4):
            kernels.append(Kernel(f"layer {i}.{part}", 0, 1.5, (f"gather {i}",)))
        kernels.append(Kernel(f"scatter {i}", 3, 3, (f"layer {i}.3",)))
        if i + 1 < layers:
            kernels.append(Kernel(f"gather {i + 1}", 2, 3))
    return kernels


# %% [markdown]
# **Which of the two is faster with one queue than with eight?**

# %%
guess_queues = "both"  # or "tensor parallel", "FSDP2", "neither"

# %%
rows = []
for queues in (1, 2, 4, 8):
    rows.append((queues, run_on_gpu(tensor_parallel(), queues), run_on_gpu(sharded(), queues)))

# %% tags=["answer"]
table = study.table(rows, ["queues", "tensor parallel, ms", "FSDP2, ms"], title="Modelled")
study.reveal(
    guess_queues,
    "tensor parallel",
    table,
    words="With one queue the all-reduce begins before the weight's product, as it was launched; with more, the "
    "product may get in first. FSDP2's gather is launched behind a scatter that waits for the whole layer: in one "
    "queue it waits too.",
)

# %% tags=["maintainer"]
assert rows[0][1] < rows[3][1] and rows[0][2] > rows[3][2]

# %% [markdown]
# So Megatron's tensor parallelism wants `CUDA_DEVICE_MAX_CONNECTIONS=1`, and FSDP2 wants it unset. With tensor parallelism *and* FSDP2 there are more streams, some of which share one of eight queues by bad luck, and 16 or more are advised (32 is the most). It must be set before the process touches the GPU. This section is a model of a rule. We have not measured it: nothing in this course has run on two GPUs.
#
# ### When everything overlaps, and the better schedule is slower
#
# There is one more way to be slow that no timeline explains, since nobody in it waits for long. You have changed [1F1B](term:1f1b) for the [interleaved schedule](term:interleaved-schedule), the bubble is half as large, and a step takes *longer*. [Schedules](lesson:schedules) gave two reasons, slow links and few micro-batches. The third is memory. On S stages with v chunks each, the first stage keeps (S − 1)/v micro-batches more than the S of 1F1B. If these no longer fit, somebody turns on recomputation, and then every backward contains another forward. Let a forward take 1 and a backward 2, so that it takes 3 with recomputation:
#
# $$\text{1F1B: } 3\,(M+S-1), \qquad \text{interleaved, recomputed: } 4\left(M+\frac{S-1}{v}\right).$$
#
# The bubble is saved once in a step, and the recomputation is paid for every micro-batch. With v = 2 the second is larger as soon as M exceeds S − 1, which is nearly always. Here are both on the clock of the simulator:

# %%
from minidist.parallel import schedules
from minidist.parallel.simulate import simulate

S, M = 4, 8
rows = []
for name, schedule, v in (
    ("1F1B", schedules.one_f_one_b, 1),
    ("interleaved, v = 2", partial(schedules.interleaved, v=2), 2),
):
    lists = schedules.lists(schedule, S, M)
    kept = schedules.in_flight(lists[0]) / v  # a chunk keeps a v-th of a stage's activations
    without = simulate(lists, forward=1 / v, backward=2 / v).time
    recomputed = simulate(lists, forward=1 / v, backward=3 / v).time
    rows.append((name, kept, without, recomputed))
study.table(
    rows,
    ["4 stages, M = 8", "first stage keeps", "time, nothing recomputed", "time, all recomputed"],
    title="Modelled, in forwards of a stage",
)

# %% tags=["maintainer"]
assert [row[1:] for row in rows] == [(4, 33, 44), (5.5, 28.5, 38)]

# %% [markdown]
# So interleaving wins wherever both recompute or neither does, and loses, 38 to 33, where it alone has to. Compare schedules *at equal memory*, by what a step takes and not by its bubble.
#
# ## What is it called elsewhere?
#
# You know what you want, and the flag has another name. [docs/frameworks.md](file:docs/frameworks.md) has every technique of this course in PyTorch's DDP and FSDP2, torchtitan, DeepSpeed, Megatron-LM, Colossal-AI, Paddle Fleet, MindSpore and JAX, each name looked up in the released source. The package has its table as well, and here is a small reader of it.

# %%
import csv
from importlib.resources import files

with (files("minidist.study") / "frameworks.csv").open(encoding="utf-8") as file:
    MAP = list(csv.DictReader(file))


def elsewhere(*words):
    """The rows of the map whose technique has one of these words."""
    columns = ["technique", "FSDP2", "torchtitan", "DeepSpeed", "Megatron-LM"]
    found = [row for row in MAP if any(word in row["technique"] for word in words)]
    return study.table([[row[name] for name in columns] for row in found], columns)


elsewhere("ZeRO 3", "Tensor parallel layers", "Sequence parallel", "1F1B", "Gradient accumulation")

# %% [markdown]
# A dash means: not found. Beware of names that are alike and mean different things. Megatron's `global-batch-size` counts samples of all ranks, DeepSpeed's `train_micro_batch_size_per_gpu` those of one rank in one micro-batch. "Sequence parallel" is Megatron's word for dividing what lies between the split blocks, and in other places the name of context parallelism.
#
# ## Weights to Hugging Face, and back
#
# A trained model is of use when others can load it. The files of Hugging Face's `transformers` are the common tongue: `config.json`, and tensors in [safetensors](term:safetensors), a header with names, shapes and places, and then plain bytes. The numbers in them are the same as ours, but the *order* is not.
#
# By hand: two heads of size 2. Our matrix of queries, keys and values has a head's rows together, so that a cut between heads leaves each rank whole heads. GPT-2's has all queries first.
#
# ![Rows of one matrix in two orders. Ours: q0 k0 v0 of head 0, then q1 k1 v1 of head 1; a cut between the heads divides it among two ranks. Theirs: q0 q1, k0 k1, v0 v1. Arrows lead from each block to its place.](../course/27_field_guide/figures/heads.svg)
#
# And GPT-2 multiplies *x·W* where a linear layer multiplies *x·Wᵀ*, so each matrix is transposed, too. The naive way is to copy what fits by shape. What would a learner do who sees (3H, H) and (H, 3H)? Transpose, and be glad that it loads:


# %%
def naive_qkv(weight):
    """Theirs from ours, as far as the shapes can tell."""
    return weight.t()


def qkv(weight, heads):
    """Theirs from ours: (heads, 3, D) becomes (3, heads, D), and the whole is transposed."""
    return weight.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2).t()


# %% [markdown]
# The oracle is an attention that is written from GPT-2's own definition, and knows nothing of our order: split the result of one product into all queries, all keys and all values, and then into heads.


# %%
def attention_of_gpt2(x, c_attn, bias, heads):
    """Causal attention before its projection, as in `transformers`: x·W, then thirds, then heads."""
    queries, keys, values = (x @ c_attn + bias).chunk(3, dim=-1)
    split = lambda t: t.unflatten(-1, (heads, -1)).transpose(1, 2)
    y = nn.functional.scaled_dot_product_attention(
        split(queries), split(keys), split(values), is_causal=True
    )
    return y.transpose(1, 2).flatten(2)


model = gpt(**MODEL, dtype=torch.float64)
attention = model.layers[0].attention
x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
inputs_of_proj = []
attention.proj.register_forward_pre_hook(lambda module, args: inputs_of_proj.append(args[0]))
attention(x)
bias = qkv(attention.qkv.bias.unsqueeze(1), 2).flatten()
rows = []
for name, theirs in (
    ("transposed only", naive_qkv(attention.qkv.weight)),
    ("reordered", qkv(attention.qkv.weight, 2)),
):
    off = (attention_of_gpt2(x, theirs, bias, 2) - inputs_of_proj[0]).abs().max().item()
    rows.append((name, str(tuple(theirs.shape)), "yes" if off < 1e-12 else "no"))
study.table(rows, ["way", "shape", "the same attention"])

# %% tags=["maintainer"]
assert [row[2] for row in rows] == ["no", "yes"]

# %% [markdown]
# The wrong one loads without a complaint, and its symptom is a model that talks nonsense. LLaMA has two more such traps. Its rotary positions turn numbers *i* and *i* + D/2 of a head, ours 2*i* and 2*i* + 1, so queries and keys are reordered *within* a head: for D = 8 their rows are our rows 0 2 4 6 1 3 5 7. And its MLP has a gate and a value in two matrices, which in ours lie side by side in one. A single table says all of this: row *i* of their tensor is row `rows[i]` of ours.

# %%
from minidist.checkpoint import Checkpoints, huggingface, load

[queries, keys, values] = huggingface.qkv_rows(groups=2, queries=1, size=2, rotary=False)
print("GPT-2, two heads of 2:", queries.tolist(), keys.tolist(), values.tolist())
[queries, keys, values] = huggingface.qkv_rows(groups=1, queries=1, size=8, rotary=True)
print("LLaMA, one head of 8: ", queries.tolist(), keys.tolist(), values.tolist())

# %% [markdown]
# With this table, reading and writing are the same thing, whether the tensors are whole or sharded. We save a model from two tensor-parallel ranks, write it for `transformers` in files of at most 8,000 bytes, dealt out to the ranks, and load it on a *different* grid.


# %%
def export(comm, folder):
    """From a checkpoint of tp = 2 to a folder in Hugging Face's layout. Returns the logits of the first batch."""
    mesh = Mesh(comm, tp=comm.size)
    model = gpt(**MODEL)
    engine = parallelize(model, mesh, partial(torch.optim.AdamW, lr=0.01))
    engine.step(*batch(0))
    checkpoints = Checkpoints(folder / "ours", comm)
    checkpoints.save(1, engine.pieces())
    huggingface.write(
        checkpoints.latest(),
        folder / "theirs",
        huggingface.options_of(model),
        comm,
        shard_bytes=8_000,
    )
    return engine.logits(batch(1)[0])


def read_back(comm, folder, **grid):
    """Logits on another grid, from Hugging Face's files: each rank reads its own rows."""
    saved = huggingface.Pretrained(folder / "theirs")
    model = gpt(**saved.options, device="meta")
    engine = parallelize(model, Mesh(comm, **grid), partial(torch.optim.AdamW, lr=0.01))
    load(saved, engine.module, rename=engine.rename)
    return engine.logits(batch(1)[0])


before = World(2).run(export, FOLDER)[0]
rows = []
for grid in ({}, dict(tp=2), dict(pp=2), dict(dp=2, tp=2)):
    n = math.prod(grid.values())
    after = World(n).run(read_back, FOLDER, **grid)[0]
    rows.append((str(grid or "one rank"), "yes" if (after - before).abs().max() < 1e-5 else "no"))
display(study.table(rows, ["read on", "the same logits"]))
print(*sorted(path.name for path in (FOLDER / "theirs").iterdir()), sep="\n")

# %% tags=["maintainer"]
assert {row[1] for row in rows} == {"yes"}

# %% [markdown]
# In [minidist/checkpoint/huggingface.py](file:minidist/checkpoint/huggingface.py) the reader is a checkpoint like any other, so `load` from [Survive](lesson:survive) fills any model on any grid. This is its main path, from the rows that a rank holds to the boxes of a file:

# %%
study.source(huggingface.Pretrained.read, docstring=False)

# %% [markdown]
# The trainer has a flag for each direction. What our models cannot represent, such as scaled rotary positions, is refused with a reason; nothing is left out silently. The project's tests compare logits with those of `transformers` itself; this notebook does not, since that is a large package.
#
# ```
# torchrun --nproc-per-node 2 examples/train_gpt.py --tp 2 --weights gpt2 --text notes --folder runs/notes --export tuned
# ```
#
# ## What a simulation proves, and what it does not
#
# ![Three columns. What a World proves: numbers, the order of messages, bytes, who waits for whom, what memory holds. What it models: the time of a message and of a product, overlap, stragglers. What it cannot show: kernels, a real network, NCCL, cards that break.](../course/27_field_guide/figures/what_it_proves.svg)
#
# A World computes the real numbers in a real order, so a forgotten average, a wrong group, a chunk in the wrong place and a deadlock are found in it exactly. Time is a model: latency, bandwidth, and the efficiency that an H100 reaches, fitted on published runs. It is good enough to compare plans, and not to promise a date. It knows nothing of kernels, of a cable that is bent, or of two NCCL communicators in flight whose order differs between ranks. Real processes over gloo do not close that gap: its `reduce_scatter` moves the bytes of a whole all-reduce, for example, so we count bytes at our own sends, never at its collectives. And whatever you test, test it on three ranks at least: with two, the left neighbour is also the right one.
#
# And this is where the course itself stands, which `docs/gpus.md` in the repository keeps up to date. On *one* H100 the kernels, a World, a rank under torchrun, the trainer and saving have run and held. On two or more GPUs nothing has run: no collective over NCCL, no overlap on a device, no bandwidth. Dumps in the form of NCCL's watchdog were read; no hang over NCCL has been seen. If you have several GPUs, `make gpu` runs all of it in one go.
#
# ## On many machines
#
# ```
# python -m minidist.comm --doctor    # on each
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_gpt.py --dp 2 --pp 2 --tp 4 --zero 1 --folder run
# python -m minidist.comm --hang ~/.cache/torch/comm_lib_trace_rank_    # if it stands still
# ```
#
# An order that saves days: first the grid in a World beside the serial run; then the same with `launch`; then two layers on two GPUs, compared; then the full size for ten steps with `--profile 3`; and only then the run.
#
# ## Takeaways
#
# - A falling loss proves nothing. Compare tensors with a serial run, in the order in which a step makes them, and look at the first that differs.
# - Rounding may change 4(u√D + v√(KD)) of the largest number. In pipelines and recomputation it may change nothing.
# - Follow the waiting to the rank that does not wait. Call *i* of a group is the same call on all of its ranks.
# - Overlap needs three things: start early, wait late, and have something to hide behind. Then look at the queues.
# - Weights that load are not yet right weights. Shapes cannot tell the order of heads.
# - A World proves numbers and order. Time in it is a model.
#
# ## Further reading
#
# - paper:higham2019 Why errors of sums grow as √K (theorem 2.4).
# - paper:flightrecorder2024 PyTorch's tutorial: how to turn it on, what is in a dump.
# - paper:nccl2026 NCCL's variables, each with its values.
# - paper:bekman2024 Debugging, networks and hangs, from somebody who has trained BLOOM.
# - paper:su2021 Section 3.4.2: the rotation of rotary positions, element by element.
# - paper:korthikanti2023 Sequence parallelism, and what is replicated in it.
