# %% [markdown]
# # 13 · ZeRO and offload
#
# A model of 7.5 billion parameters, trained with Adam in fp16, needs 16 bytes for each: 120 GB on every GPU. Data
# parallelism does not help: each replica holds all of it. With ZeRO on 64 GPUs it is 1.9 GB on each. The numbers stay
# the same, nothing is approximated. **What is the price in traffic?** Guess: the bytes that ZeRO sends, over those of
# plain data parallelism.

# %%
guess = 10.0  # times the bytes of data parallelism: change this number

# %%
from minidist import study

names = ("data parallel", "stage 1", "stage 2", "stage 3")
held = {
    name: study.predict.states(7_500_000_000, "adam", "fp16", zero=z, data=64)
    for z, name in enumerate(names)
}
assert [round(s.total / 10**9, 1) for s in held.values()] == [120, 31.4, 16.6, 1.9]
study.stacked(
    {name: s.bytes for name, s in held.items()},
    unit="B",
    title="7.5 B parameters on 64 GPUs: on each, by formula",
)


# %%
def keeps(rank, z):
    """Weights w, gradients g and states s of three parts: what a rank keeps at stage z."""
    kinds = (("w", z < 3), ("g", z < 2), ("s", z < 1))
    return [
        f"{kind}{part}" if whole or part == rank else None
        for kind, whole in kinds
        for part in range(3)
    ]


study.holdings(
    {name: [keeps(rank, z) for rank in range(3)] for z, name in enumerate(names)},
    arrows=False,
    owner=lambda word: int(word[1]),
    title="Who keeps which part of weights w, gradients g, states s",
)

# %% [markdown]
# Those are the paper's numbers, by its formula. **Three quarters are optimizer states**: an fp32 copy of the weight, a
# momentum, a variance, 12 bytes. Nobody needs them but the step. Each *stage* of ZeRO shares out one thing more: states
# (1), gradients (2), weights (3). The second picture shows it for three ranks, each with its colour. This lesson builds
# the stages, and counts.
#
# ## On paper: 3 ranks, 6 numbers
#
# Six parameters of 8, 7, 6, 5, 4 and 3 bytes. Each gets one **owner**, who keeps its states. Which rank owns what?
# The order of the model, two for each, gives 15, 11 and 7 bytes. **Largest first, each to the rank that has least:**


# %%
def owners(nbytes, n):  # the rank that owns each parameter
    loads, owner = [0] * n, [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += nbytes[i]
    return owner


sizes = [8, 7, 6, 5, 4, 3]
owner = owners(sizes, 3)
assert owner == [0, 1, 2, 2, 1, 0]
study.stacked(
    {f"rank {r}": {f"{b} bytes": b for b, o in zip(sizes, owner) if o == r} for r in range(3)},
    title="11 bytes for each",
)

# %% [markdown]
# Now a step. Six weights, all 1; a rate of 1; rank 0 owns the first two, and so on. Each rank has six gradients from
# its own samples. An **owner** needs two columns of the mean, and nothing else. It steps two weights, and passes them
# on.

# %%
import torch
from minidist.collectives import (
    all_gather,
    all_gather_,
    all_reduce_,
    broadcast_,
    reduce_scatter,
    reduce_scatter_,
)
from minidist.comm import Cluster, World


def by_hand(comm):
    gradients = torch.arange(6.0) * (comm.rank + 1)
    mean = reduce_scatter(comm, gradients) / comm.size  # two numbers
    mine = torch.ones(2) - mean  # two steps
    return [str([int(v) for v in x]) for x in (gradients, mean, mine, all_gather(comm, mine))]


rows = [(f"rank {r}", *row) for r, row in enumerate(World(3).run(by_hand))]
study.table(rows, ["", "own gradients", "reduce-scatter, mean", "step", "all-gather"])

# %% [markdown]
# A reduce-scatter and an all-gather. In lesson 02 those two, one after the other, *were* the all-reduce. So stage 1
# should send what data parallelism sends. Let us see.
#
# ## Step 1: the naive stage 1
#
# The oracle is the serial program: the digits, in float64, with two optimizers. Each rank starts from another seed, and
# the first thing it does is to take rank 0's weights. A `stage` is given a model, and returns it with its `step()`:
# plain data parallelism averages, and steps everything. The naive stage 1 steps what it owns, and broadcasts that.

# %%
from functools import cache, partial
from itertools import pairwise
from torch import nn
from torch.nn.functional import cross_entropy
from minidist.parallel.data import Sampler
from minidist.comm.cluster import H100
from minidist.tasks import digits


def network(widths, seed=0, dtype=torch.float32, device="cpu"):
    torch.manual_seed(seed)
    layers = [
        layer
        for a, b in pairwise(widths)
        for layer in (nn.Linear(a, b, False, device, dtype), nn.Tanh())
    ]
    return nn.Sequential(*layers[:-1])


# %%
task, WIDTHS = digits(), [64, 40, 30, 20, 10]
KINDS = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
}


def train(comm, stage, kind, steps=6):
    model = network(WIDTHS, comm.rank, torch.float64)
    broadcast_(comm, [p.data for p in model.parameters()])
    model, step = stage(comm, model, KINDS[kind])
    for _, mine in zip(range(steps), Sampler(len(task.x), 60, comm)):
        model.zero_grad()
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        step()
    return model(task.x).detach()  # what it says of every digit


# %%
def plain(comm, model, optimizer):
    inner = optimizer(model.parameters())

    def step():
        for p in model.parameters():
            all_reduce_(comm, p.grad, "mean")
        inner.step()

    return model, step


wanted = {kind: World(1).run(train, plain, kind)[0] for kind in KINDS}


# %%
def naive(comm, model, optimizer):
    params = list(model.parameters())
    owner = owners([p.nbytes for p in params], comm.size)
    inner = optimizer([p for p, o in zip(params, owner) if o == comm.rank])

    def step():
        for p in params:
            all_reduce_(comm, p.grad, "mean")
        inner.step()
        for p, o in zip(params, owner):
            broadcast_(comm, p.data, o, algorithm="tree")

    return model, step


# %%
@cache
def off(stage, n=3):
    """The largest difference from the serial program, on any rank, with any optimizer."""
    return max(
        float((own - wanted[kind]).abs().max())
        for kind in KINDS
        for own in World(n).run(train, stage, kind)
    )


@cache
def sent(stage, n=3):  # numbers, by all ranks in a step, over (n − 1)Ψ
    two, none = (World(n).run(train, stage, "AdamW", steps).trace.bytes_sent() for steps in (2, 0))
    return (two - none) / (2 * 8 * (n - 1) * sum(a * b for a, b in pairwise(WIDTHS)))


assert off(naive) < 1e-12
print(f"numbers sent: {sent(plain):.2f} (n−1)Ψ without ZeRO, {sent(naive):.2f} (n−1)Ψ now")

# %% [markdown]
# Equal to the serial program, and half as much again is sent. All ranks get all averages, and n − 1 of n throw them
# away.
#
# ## Step 2: a flat buffer
#
# Send a gradient to its owner alone. For that, order everything by owner: **one flat buffer**, rank 0's part first. The
# parameters become views of it. The parts are uneven: our collectives do not mind.


# %%
def flatten(params, owner, n):
    """The order, and the flat buffer in n chunks; parameters become views of it."""
    order = sorted(range(len(params)), key=owner.__getitem__)  # stable
    flat = torch.cat([params[i].data.flatten() for i in order])
    for i, piece in zip(order, flat.split([params[i].numel() for i in order])):
        params[i].data = piece.view_as(params[i])
    return order, list(
        flat.split([sum(params[i].numel() for i in order if owner[i] == r) for r in range(n)])
    )


# %%
def stage_1(comm, model, optimizer):
    params = list(model.parameters())
    owner = owners([p.nbytes for p in params], comm.size)
    order, chunks = flatten(params, owner, comm.size)
    mine = [params[i] for i in order if owner[i] == comm.rank]
    inner = optimizer(mine)

    def step():
        grads = list(
            torch.cat([params[i].grad.flatten() for i in order]).split([len(c) for c in chunks])
        )
        reduce_scatter_(comm, grads)  # this rank's chunk becomes the sum
        finish(comm, model, mine, grads[comm.rank] / comm.size, inner, chunks)

    return model, step


# %%
def finish(comm, model, mine, mean, inner, chunks):
    model.zero_grad()
    for p, grad in zip(mine, mean.split([p.numel() for p in mine])):
        p.grad = grad.view_as(p)
    inner.step()
    all_gather_(comm, chunks)


assert off(stage_1) < 1e-12 and off(stage_1, 4) < 1e-12
study.bars(
    {"data parallel": sent(plain), "naive": sent(naive), "flat buffer": sent(stage_1)},
    title="Numbers sent in a step, over (n − 1)Ψ",
    target=2,
    note="all-reduce",
)

# %% [markdown]
# Stage 1 sends nothing more. It costs nothing but the trouble to write it.
#
# ## Step 3: stage 2, in hooks
#
# A gradient that another rank owns is needed until it has been sent. **So send it as soon as it is there, and drop
# it.** PyTorch calls our hook when a gradient is complete (lesson 06).


# %%
def stage_2(comm, model, optimizer):
    params = list(model.parameters())
    owner = owners([p.nbytes for p in params], comm.size)
    _, chunks = flatten(params, owner, comm.size)
    inner = optimizer([p for p, o in zip(params, owner) if o == comm.rank])
    for p, o in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(to_owner, comm, o))

    def step():
        inner.step()
        all_gather_(comm, chunks)

    return model, step


# %%
from minidist.collectives import reduce_


def to_owner(comm, owner, p):
    reduce_(comm, p.grad, owner, algorithm="tree")
    p.grad = p.grad / comm.size if comm.rank == owner else None


assert off(stage_2) < 1e-12 and off(stage_2, 4) < 1e-12 and abs(sent(stage_2) - 2) < 0.01

# %% [markdown]
# Did it help? The World follows the memory of every rank. On the device `"meta"` tensors have no numbers, and the model
# may be large: 12 layers of 1,024 × 1,024, four H100s. **Predict** the curve of gradients in a step of each stage.


# %%
def steps_of(comm, stage, widths, rows):
    """Two steps; the times when the second began, its backward ended, and it ended."""
    model, step = stage(comm, network(widths, device="meta"), torch.optim.Adam)
    x = torch.empty(rows, widths[0], dtype=next(model.parameters()).dtype, device="meta")
    for _ in range(2):
        model.zero_grad()
        begin = comm.now()
        model(x).float().square().mean().backward()
        end, _ = comm.now(), x.neg()  # so that the update begins later
        step()
    return begin, end, comm.now()


# %%
@cache
def on_meta(n, *args, beta=1 / 450e9):
    world = World(n, cluster=Cluster.uniform(n, 5e-6, beta, H100), device="meta")
    return world, world.run(steps_of, *args)


def over_time(world, times, kind="gradients"):  # a curve of live bytes of rank 0 in the last step
    line, (begin, _, end) = world.trace.memory[0], times[0]
    at = [(end - begin) * k / 400 for k in range(401)]
    return at, [line.at(begin + t)[kind] for t in at]


seen = {
    name: on_meta(4, stage, (1024,) * 13, 2048)
    for name, stage in (("stage 1", stage_1), ("stage 2", stage_2))
}
study.curves(
    {name: over_time(*run) for name, run in seen.items()},
    xunit="s",
    yunit="B",
    xlabel="time in a step",
    ylabel="gradients on rank 0",
    title="Stage 2 frees gradients while backward runs",
)

# %% [markdown]
# Stage 1 holds all gradients when backward ends, and for a moment the means beside them. Stage 2 holds those that it
# owns, and the one on its way. But every gradient now waits for its message: the step is longer. The library puts
# gradients into buckets, and sends them beside backward, as in lesson 06.
#
# ## Step 4: stage 3
#
# What is left is the weights, whole on each rank. A layer's weight is used for a moment, twice: in its forward, and in
# its backward. **Keep a part. Gather, use, free.** Autograd keeps what we save for backward: so save the part. The
# optimizer is any optimizer, on parts: it never learns that they are parts.

# %%
from minidist.split import uneven


def whole(comm, part, shape):
    return all_gather(comm, part, sizes=uneven(shape.numel(), comm.size)).view(shape)


def my_part(comm, weight):
    return weight.detach().flatten().split(uneven(weight.numel(), comm.size))[comm.rank].clone()


def mean_part(comm, dw):
    """This rank's part of the mean of the ranks' gradients."""
    return reduce_scatter(comm, dw.flatten(), sizes=uneven(dw.numel(), comm.size)) / comm.size


# %%
class Gathered(torch.autograd.Function):  # x·Wᵀ, of a W that is cut into parts
    @staticmethod
    def forward(ctx, x, part, comm, shape):
        ctx.save_for_backward(x, part)
        ctx.comm, ctx.shape = comm, shape
        return x @ whole(comm, part, shape).T  # and the whole is gone

    @staticmethod
    def backward(ctx, dy):
        x, part = ctx.saved_tensors
        dx = dy @ whole(ctx.comm, part, ctx.shape)  # gathered a second time
        return dx, mean_part(ctx.comm, dy.T @ x), None, None


# %%
class Sharded(nn.Module):
    def __init__(self, comm, weight, function):
        super().__init__()
        self.comm = comm
        self.shape = weight.shape
        self.function = function
        self.part = nn.Parameter(my_part(comm, weight))

    def forward(self, x):
        return self.function.apply(x, self.part, self.comm, self.shape)


def stage_3(comm, model, optimizer, function=Gathered):
    model = nn.Sequential(
        *(Sharded(comm, f.weight, function) if isinstance(f, nn.Linear) else f for f in model)
    )
    return model, optimizer(model.parameters()).step


# %%
assert off(stage_3) < 1e-12 and off(stage_3, 4) < 1e-12
price = {
    name: sent(stage) / sent(plain) for name, stage in zip(names[1:], (stage_1, stage_2, stage_3))
}
assert [round(more, 2) for more in price.values()] == [1, 1, 1.5]
study.bars(
    {"your guess": guess} | price,
    target=1,
    note="data parallel",
    title="Numbers sent in a step, over those of data parallelism",
)

# %% [markdown]
# ## Break it: never free
#
# Gathering twice is a waste, somebody says, and saves the whole weight for backward. **Predict** what changes: the
# numbers, the traffic, the memory?


# %%
class NeverFrees(Gathered):
    @staticmethod
    def forward(ctx, x, part, comm, shape):
        weight = whole(comm, part, shape)
        ctx.save_for_backward(x, weight)
        ctx.comm = comm
        return x @ weight.T

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return dy @ weight, mean_part(ctx.comm, dy.T @ x), None, None


# %%
from IPython.display import display

never = partial(stage_3, function=NeverFrees)
steps = {
    name: on_meta(3, stage, (2048,) * 13, 256)
    for name, stage in (("frees", stage_3), ("never frees", never))
}
last = {name: world.trace.memory[0].since(times[0][0]) for name, (world, times) in steps.items()}
assert (
    off(never) < 1e-12
    and abs(sent(never) - 2) < 0.01
    and last["never frees"].peak > 1.35 * last["frees"].peak
)
for name, line in last.items():
    display(
        study.memory_timeline(
            line, title=f"A stage 3 that {name}: a step of 12 layers on rank 0 of 3"
        )
    )

# %% [markdown]
# The numbers are right, and less is sent: 2Ψ for 3Ψ. **Only the memory tells.** The whole weights sit among the
# activations, where the graph keeps them. Whoever tests a sharded optimizer by its numbers tests nothing. Here is the
# extreme case, an "optimizer" that shards nothing, among the right ones:

# %%
KEPT = ["parameters", "gradients", "optimizer states"]


def kept_by(stage):
    world, times = on_meta(4, stage, (1024,) * 13, 2048)
    live = world.trace.memory[0].at(times[0][1])  # when backward ends
    return [f"{live[kind] / 1e6:.1f}" for kind in KEPT]


these = {"shards nothing": plain, "stage 1": stage_1, "stage 2": stage_2, "stage 3": stage_3}
rows = [
    (name, "within 1e-12" if off(stage) < 1e-12 else "wrong", *kept_by(stage))
    for name, stage in these.items()
]
study.table(
    rows,
    ["", "results", *(f"{kind}, MB" for kind in KEPT)],
    title="Rank 0 of 4, when backward ends",
)

# %% [markdown]
# ## The library's version
#
# `ShardedOptimizer` is our stages 1 and 2, with buckets, param groups, state dicts and clipping; `FullySharded` is
# stage 3; and `zero_kept` is the formula, which knows of neither. `FullySharded` frees by resizing a storage to 0:
# whatever autograd keeps of the weight is empty, until it is gathered again. With `half` they train in fp16, with fp32
# masters (lesson 09). Each averages the gradients itself: a `DataParallel` around it is refused, and copies of the
# shards on other ranks, which keep the gathers within a node, are `FullySharded(module, comm, replicas=other)`, hybrid
# sharding. Made again over the same parameters, the newer one replaces the older, so that a cell may run twice: this
# is what `_claim` is for.

# %%
from minidist.parallel import FullySharded, OffloadedOptimizer, ShardedOptimizer
from minidist.parallel.zero import Flat
from minidist.study.predict import zero_kept

display(study.source(zero_kept))
display(study.source(ShardedOptimizer.step, docstring=False))
study.source(Flat.release)

# %%
from minidist.parallel.data import DataParallel
from minidist.train.amp import Masters


def library(comm, model, optimizer, z, half=None, **options):
    if z == 3:
        model = FullySharded(model, comm, half, blocks=nn.Linear, **options)
        return model, optimizer(model.parameters()).step
    model, wide = (model.half(), torch.float32) if half else (model, None)
    if z == 0:
        return DataParallel(model, comm), Masters(model.parameters(), optimizer).step
    return model, ShardedOptimizer(model.parameters(), optimizer, comm, z, wide).step


# %%
from minidist.comm import launch


def stages(comm):
    return [train(comm, partial(library, z=z), "AdamW") for z in (1, 2, 3)]


real = launch(stages, 3)
assert all(float((found - wanted["AdamW"]).abs().max()) < 1e-12 for own in real for found in own)
print("stages 1, 2 and 3 on three processes: the results of the serial program, within 1e-12")

# %% [markdown]
# Those were three processes of this machine. Under `torchrun`, with `stages(from_env())` at the end of a script:
#
# ```
# torchrun --nproc-per-node 4 train.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# ## Predict the cost, then run
#
# Mixed precision, three H100s, 6 layers, 14 million parameters. The first bar of each stage is a formula that knows of
# no run, those below it were counted. **Predict** the traffic behind the bars, in multiples of Ψ(n − 1)/n numbers.

# %%
HALF = torch.float16
PSI = 6 * 1536 * 1536
bars = {}
notes = {}
formulas = [
    study.predict.states(PSI).bytes,
    zero_kept(1, PSI, PSI // 3),
    zero_kept(2, PSI, PSI // 3),
    zero_kept(3, PSI, PSI // 3, low=4),
]
for z, (name, formula) in enumerate(zip(names, formulas)):
    bars[f"{name}, formula"], notes[f"{name}, formula"] = formula, f"{2 + z // 3} Ψ(n−1)/n"
    world, times = on_meta(3, partial(library, z=z, half=HALF), (1536,) * 7, 256)
    for r in range(3):
        live = world.trace.memory[r].at(times[r][1])  # when backward ends
        # in the second step
        nbytes = sum(m.nbytes for m in world.trace if m.src == r and m.start >= times[r][0])
        row = f"{name}, rank {r}"
        bars[row] = {kind: live[kind] for kind in KEPT}
        notes[row] = f"{nbytes / (2 * PSI * 2 / 3):.2f} Ψ(n−1)/n"
        assert all(live[kind] - b in (0, 12 * (z == 0)) for kind, b in formula.items())
study.stacked(
    bars, unit="B", notes=notes, title="Bytes on each of 3 ranks, and numbers sent in a step"
)

# %% [markdown]
# To the byte, with one exception: data parallelism carries 12 bytes of flags in its bucket of gradients. Stage 3 keeps
# an fp32 shard as *the* parameter, and rounds it to fp16 when it gathers: 4 + 4 + 8 for the paper's 2 + 2 + 12. The sum
# is the same, 16Ψ/n.
#
# What does one buy with more ranks? **Predict** the curves: which stage gains from the 65th GPU?


# %%
def per_parameter(z, n):
    world, times = on_meta(n, partial(library, z=z, half=HALF), (64,) * 5, 8)
    return sum(world.trace.memory[0].at(times[0][1])[kind] for kind in KEPT) / (4 * 64 * 64)


ns = [2**k for k in range(9)]
few = (1, 2, 4)
B = 2**28
lines = {
    f"stage {z}": (ns, [study.predict.states(B, zero=z, data=n).total / B for n in ns])
    for z in (1, 2, 3)
}
points = {f"stage {z}": (few, [per_parameter(z, n) for n in few]) for z in (1, 2, 3)}
assert all(points[name][1] == line[:3] for name, (_, line) in lines.items())
study.curves(
    lines,
    points=points,
    logx=True,
    logy=True,
    xlabel="ranks",
    ylabel="bytes a parameter, on each",
    title="What stays whole is the floor: 4, 2 and nothing",
)

# %% [markdown]
# ## Prefetch
#
# Gathering just in time makes a GPU wait for each layer. `FullySharded` gathers the *next* block on a lane (lesson 06)
# while this one computes, `prefetch=1`. Six layers of 4,096 × 4,096, four H100s. **Predict** what it costs in memory.

# %%
ahead = {
    k: on_meta(4, partial(library, z=3, half=HALF, prefetch=k), (4096,) * 7, 4096)
    for k in (0, 1, 2)
}
spent = {k: times[0][2] - times[0][0] for k, (_, times) in ahead.items()}
most = {k: max(over_time(*run, "parameters")[1]) for k, run in ahead.items()}
assert spent[1] < 0.85 * spent[0] and spent[2] > 0.97 * spent[1] and most[0] < most[1]
rows = [(k, f"{1e3 * spent[k]:.2f}", f"{most[k] / 1e6:.0f}") for k in ahead]
display(study.table(rows, ["prefetch", "a step, ms", "parameters at the peak, MB"]))
pair = {f"prefetch = {k}": ahead[k][0].trace for k in (0, 1)}
study.timeline(
    pair, ranks=[0], memory=False, title="Two steps of stage 3, gathering just in time and ahead"
)

# %% [markdown]
# One block ahead, 34 MB more, and most of the traffic hides behind the products. Two ahead gain nothing here. (In the
# first forward nothing is gathered ahead: the order of the blocks is learned there.)
#
# ## Offload
#
# A host has more memory than its GPUs: 512 GB in a DGX-1 with eight V100. Put the optimizer's states there, 12Ψ, and
# let the host's cores do the step. Gradients go down, 2Ψ bytes, and parameters come up, 2Ψ. Then **one** V100 of 32 GB
# holds 10 B parameters. `"exact"` waits for the host. `"delayed"` computes on, with parameters one step old:


# %%
def uses(comm, mode):
    p, seen = nn.Parameter(torch.zeros(1)), []
    host = OffloadedOptimizer([p], torch.optim.SGD, comm, mode, warmup=0, lr=1.0)
    for _ in range(6):
        seen.append(int(p))
        p.grad = -torch.ones(1)  # each update adds 1
        host.step()
    return seen


rows = [(mode, *World(1).run(uses, mode)[0]) for mode in ("exact", "delayed")]
assert rows == [("exact", 0, 1, 2, 3, 4, 5), ("delayed", 0, 0, 1, 2, 3, 4)]
study.table(rows, ["updates that forward k has seen", *range(6)])

# %% [markdown]
# One update late: it is not the serial program any more. (PipeDream-2BW, in lesson 18, is late by one, too.)
#
# How fast is it? The paper says: **about 40 TFLOP/s on one V100, with a model of 10 B**. Our model does nothing but
# large products, in which our V100 reaches 102 of its data sheet's 125 TFLOP/s, so our speed is an upper bound. It has
# 32 layers of 17,696 × 17,696, and each gradient goes down while backward runs. A step: forward; then backward and,
# beside it, 2Ψ bytes down the link (12 GB/s), the longer of the two; then the host's Adam, 88 bytes a parameter with
# its conversions, at the 153.6 GB/s of the host's memory; then 2Ψ bytes up. **Predict**: is the GPU waiting for the
# link, or for the host's memory? `offload_step_seconds` says it to the layer; then run.

# %%
LAYERS = 32
H = 17_696  # tensor cores load rows of a multiple of 16 bytes: 17,700 would run at the speed of fp32
BIG, machine = LAYERS * H * H, Cluster.dgx1_v100()


def big(comm, rows, mode):
    model = nn.Sequential(
        *(nn.Linear(H, H, bias=False, dtype=HALF, device="meta") for _ in range(LAYERS))
    )
    host = OffloadedOptimizer(
        model.parameters(), torch.optim.Adam, comm, mode, 0, torch.float32, in_backward=True
    )
    x = torch.empty(rows, H, dtype=HALF, device="meta")
    for _ in range(4):
        start, y = comm.now(), model(x)
        y.backward(y.detach())
        host.step()
    return comm.now() - start


# %%
from minidist.comm.cluster import V100
from minidist.study.predict import offload_step_seconds, offload_update_seconds


def tflops(tokens, mode, moved):
    """By formula. moved: bytes a parameter that Adam reads and writes on the host."""
    # a forward; backward has two, but for the first layer, which has one
    product = V100.computing(2 * BIG * tokens, HALF)
    update = offload_update_seconds(BIG, moved, 153.6e9)
    back = (2 - 1 / LAYERS) * product
    return (
        6
        * BIG
        * tokens
        / 1e12
        / offload_step_seconds(product, back, update, 2 * BIG, LAYERS, 5.7e-6, 1 / 12e9, mode, True)
    )


assert round(offload_update_seconds(BIG, 76, 153.6e9), 1) == 5.7 and round(2 * BIG / 12e9, 1) == 1.7

fine, modes = range(512, 8193, 256), ("exact", "delayed")
lines = {
    mode + word: (fine, [tflops(t, mode, moved) for t in fine])
    for word, moved in (("", 76), (", Adam in one pass", 28))
    for mode in modes
}

# %%
tokens = (2048, 8192)
worlds = {}
points = {}
for mode in modes:
    worlds[mode] = [World(1, cluster=machine, device="meta") for _ in tokens]
    points[mode] = (
        tokens,
        [6 * BIG * t / w.run(big, t, mode)[0] / 1e12 for t, w in zip(tokens, worlds[mode])],
    )
    assert all(world.trace.memory[0].peak < 32e9 for world in worlds[mode])
    assert all(abs(speed / tflops(t, mode, 76) - 1) < 0.03 for t, speed in zip(*points[mode]))
display(
    study.timeline(
        {mode: worlds[mode][1].trace for mode in modes},
        memory=False,
        title="Four steps of 8,192 tokens: GPU, host's Adam (lane 1), gradients going down (lane 2)",
    )
)
study.curves(
    lines,
    points=points,
    xlabel="tokens in a step",
    ylabel="TFLOP/s of one V100",
    title="10 B parameters on one GPU: the host decides",
)

# %% [markdown]
# (In the first 2 s the masters are made and go down.) The GPU waits for the host's memory: Adam takes 5.7 s there, the
# link 1.7 s each way. 40 TFLOP/s is within reach, given some thousands of tokens a step: the host's work is the same
# for any batch.
# PyTorch's Adam goes over memory many times, 76 bytes a parameter; in one pass it would be 28. That is why the authors
# wrote their own.
#
# With several GPUs each host steps its rank's shard: a `ShardedOptimizer` takes an `OffloadedOptimizer`. And
# `FullySharded(…, offload=True)` keeps all shards on the host. **Predict** the bytes on a GPU, and on a rank's host.


# %%
def hosted(comm, model, optimizer, z):
    host = partial(
        OffloadedOptimizer, optimizer_class=optimizer, comm=comm, master_dtype=torch.float32
    )
    return (
        library(comm, model.half(), host, z)
        if z < 3
        else library(comm, model, optimizer, 3, HALF, offload=True)
    )


rows, psi = [], 8 * 512 * 512
for z, n, words, sums in (
    (1, 1, "4Ψ 12Ψ", (4, 12)),
    (2, 4, "2Ψ+2Ψ/n 12Ψ/n", (2.5, 3)),
    (3, 4, "0 16Ψ/n", (0, 4)),
):
    world = World(n, cluster=machine, device="meta")
    end = world.run(steps_of, partial(hosted, z=z), [512] * 9, 8)[0][1]  # of backward, on rank 0
    found = [
        sum(line.at(end)[kind] for kind in KEPT)
        for line in (world.trace.memory[0], world.trace.host[0].memory)
    ]
    # the host's Adam counts its steps, too
    assert all(0 <= got - a * psi <= 32 for got, a in zip(found, sums))
    rows.append((f"stage {z}, n = {n}", *words.split(), *(f"{got / psi:.2f}" for got in found)))
study.table(
    rows, ["", "GPU, formula", "host, formula", "GPU, bytes a parameter", "host, bytes a parameter"]
)

# %% [markdown]
# ## When not to use it
#
# **Stage 3, on slow links.** Data parallelism sends 2Ψ numbers, stage 3 sends 3Ψ, all in forward and backward; the
# first product must wait for the first gather. The same six layers, with other wires. **Predict** how many times as
# long stage 3 takes at 450 GB/s, and at 3 GB/s.


# %%
def slower(speed):
    took = [
        on_meta(4, partial(library, z=z, half=HALF), (4096,) * 7, 4096, beta=1 / speed)[1][0]
        for z in (0, 3)
    ]
    return (took[1][1] - took[1][0]) / (took[0][1] - took[0][0])


speeds = (450e9, 25e9, 3e9)
ratios = [slower(speed) for speed in speeds]
assert ratios[0] < 1.1 and 1.4 < ratios[-1] < 1.5
study.curves(
    {"3Ψ over 2Ψ": (speeds, [1.5] * len(speeds))},
    points={"forward and backward, run": (speeds, ratios)},
    xlabel="bytes a second, on each link",
    xunit="B",
    ylabel="stage 3 over data parallelism",
    logx=True,
    title="Forward and backward of six layers, 4 GPUs",
)

# %% [markdown]
# Over NVLink, inside a node, it costs 8 % more. Over a slow network it is nearly half as much time again: use
# it inside the node, or not at all. And where the model fits with stage 1, stage 1 is enough: it costs nothing.
#
# **Offload, when GPUs are plenty.** With n ranks the states are 12Ψ/n. From some n on they fit, and the bus is slow.
#
# ## Takeaways
#
# - Adam in mixed precision keeps 16 bytes a parameter; 12 of them are needed in the step alone.
# - Stage 1: 4Ψ + 12Ψ/n bytes. A reduce-scatter and an all-gather are an all-reduce: 2Ψ sent, nothing more.
# - Stage 2: 2Ψ + 14Ψ/n bytes. Gradients go to their owners during backward, and are freed.
# - Stage 3: 16Ψ/n bytes. Gather, use, free, forward and backward: 3Ψ sent. Prefetch hides it, for one block of memory.
# - An optimizer that shards nothing, a stage 3 that never frees: right numbers. Test the bytes.
# - Offload: states and step on the host, each rank's shard on its own. Give it large batches. Delayed, it is one update
#   late.
#
# ## Further reading
#
# - paper:rajbhandari2020 Sections 5 and 7.
# - paper:ren2021 Sections 3 to 6.
# - paper:zhao2023 Sections 3, 4.
