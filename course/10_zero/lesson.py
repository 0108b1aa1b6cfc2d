# %% [markdown]
# # 10 · ZeRO and offload
#
# A model of 7.5 billion parameters, trained with Adam in fp16, needs 16 bytes for each: 120 GB on every GPU. Data
# parallelism does not help: each replica holds all of it. With ZeRO on 64 GPUs it is 1.9 GB. The numbers stay the
# same, nothing is approximated. **What is sent more?** Guess: ZeRO's bytes over those of plain data parallelism.

# %%
guess = 10.0  # times the bytes of data parallelism: change this number

# %%
from functools import cache, partial

import torch
from IPython.display import display
from torch import nn
from torch.nn.functional import cross_entropy

from minidist import study
from minidist.collectives import (all_gather, all_gather_, all_reduce_, broadcast_, reduce_, reduce_scatter,
                                  reduce_scatter_)
from minidist.comm import World, launch
from minidist.comm.cluster import Cluster
from minidist.comm.cluster.presets import H100
from minidist.models import mlp

held = {z: study.memory.states(7_500_000_000, "adam", "fp16", zero=z, data=64) for z in range(4)}
assert [round(s.total / 10**9, 1) for s in held.values()] == [120, 31.4, 16.6, 1.9]
study.stacked({f"stage {z}" if z else "data parallel": s.bytes for z, s in held.items()}, unit="B",
              title="7.5 B parameters on 64 GPUs: on each, by formula")

# %% [markdown]
# Those are the paper's numbers, by its formula. **Three quarters are optimizer states**: an fp32 copy of the weight, a
# momentum, a variance, 12 bytes. Nobody needs them but the step. Each stage shares out one thing more: states
# (1), gradients (2), parameters (3). The rest of the lesson builds the stages, and counts.
#
# ## On paper: 3 ranks, 6 numbers
#
# Six parameters of 8, 7, 6, 5, 4 and 3 bytes. Each gets one **owner**, who keeps its states. Which rank owns what?
# The order of the model, two for each, gives 15, 11 and 7 bytes. **Largest first, each to the rank that has least:**

# %%
def owners(nbytes, n):
    """The owner of each parameter."""
    loads, owner = [0] * n, [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += nbytes[i]
    return owner

sizes = [8, 7, 6, 5, 4, 3]
owner = owners(sizes, 3)
assert owner == [0, 1, 2, 2, 1, 0]
study.stacked({f"rank {r}": {f"{b} bytes": b for b, o in zip(sizes, owner) if o == r} for r in range(3)},
              title="11 bytes for each")

# %% [markdown]
# Now a step. Six weights, all 1; a rate of 1; rank 0 owns the first two, and so on. Each rank has six gradients from
# its own samples. An **owner** needs two columns of the mean, and nothing else. It steps two weights, and passes them
# on.

# %%
def by_hand(comm):
    gradients = torch.arange(6.0) * (comm.rank + 1)
    mean = reduce_scatter(comm, gradients) / comm.size  # two numbers
    mine = torch.ones(2) - mean  # two steps
    return gradients.tolist(), mean.tolist(), mine.tolist(), all_gather(comm, mine).tolist()

results = World(3).run(by_hand)
assert results[2] == ([0, 3, 6, 9, 12, 15], [8, 10], [-7, -9], [1, -1, -3, -5, -7, -9])
study.table([(f"rank {r}", *map(str, row)) for r, row in enumerate(results)],
            ["", "own gradients", "reduce-scatter, mean", "step", "all-gather"])

# %% [markdown]
# A reduce-scatter and an all-gather. In lesson 02 those two, one after the other, *were* the all-reduce. So stage 1
# should send what data parallelism sends. Let us see.
#
# ## Step 1: the naive stage 1
#
# Average all gradients, as in lesson 04. Then each rank steps what it owns, and broadcasts it.

# %%
def naive(comm, params, optimizer):
    owner = owners([p.nbytes for p in params], comm.size)
    inner = optimizer([p for p, o in zip(params, owner) if o == comm.rank])

    def step():
        for p in params:
            all_reduce_(comm, p.grad, "mean")
        inner.step()
        for p, o in zip(params, owner):
            broadcast_(comm, p.data, o, algorithm="tree")
    return step

# %% [markdown]
# The oracle is the serial program: the digits, in float64, 20 steps, two optimizers. `stage` may be any function like
# `naive`. The three ranks start from different seeds, and the first thing they do is to take rank 0's weights.

# %%
from minidist.parallel.data import Sampler
from minidist.tasks import digits

task, WIDTHS = digits(), [64, 40, 20, 10]
KINDS = {"momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9), "AdamW": partial(torch.optim.AdamW, lr=0.01)}

def plain(comm, params, optimizer):
    inner = optimizer(params)
    def step():
        for p in params:
            all_reduce_(comm, p.grad, "mean")
        inner.step()
    return step

# %%
def train(comm, stage, kind, steps=20):
    model = mlp(WIDTHS, seed=comm.rank, dtype=torch.float64)
    params = list(model.parameters())
    broadcast_(comm, [p.data for p in params])
    step = stage(comm, params, KINDS[kind])
    for _, mine in zip(range(steps), Sampler(len(task.x), 60, comm)):
        for p in params:
            p.grad = None
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        step()
    return [p.detach().clone() for p in params]

wanted = {kind: World(1).run(train, plain, kind)[0] for kind in KINDS}

# %%
@cache
def off(stage, n=3):
    """The largest difference from the serial weights, on any rank, with any optimizer."""
    return max(float((a - b).abs().max()) for kind in KINDS for own in World(n).run(train, stage, kind)
               for a, b in zip(own, wanted[kind]))

def sent(stage, n=3, steps=2):
    """Numbers sent by all ranks in a step, over (n − 1)Ψ."""
    world, psi = World(n), sum(w.numel() for w in wanted["AdamW"])
    world.run(train, stage, "AdamW", steps)
    start = World(n)
    start.run(train, stage, "AdamW", 0)
    return (world.trace.bytes_sent() - start.trace.bytes_sent()) / (8 * steps * (n - 1) * psi)

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
    lengths = [sum(params[i].numel() for i in order if owner[i] == r) for r in range(n)]
    return order, list(flat.split(lengths)), lengths

# %%
def stage_1(comm, params, optimizer):
    owner = owners([p.nbytes for p in params], comm.size)
    order, chunks, lengths = flatten(params, owner, comm.size)
    mine = [params[i] for i in order if owner[i] == comm.rank]
    inner = optimizer(mine)

    def step():
        grads = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))
        reduce_scatter_(comm, grads)  # this rank's chunk becomes the sum
        mean = grads[comm.rank] / comm.size
        return finish(comm, params, mine, mean, inner, chunks)
    return step

# %%
def finish(comm, params, mine, mean, inner, chunks):
    for p in params:
        p.grad = None
    for p, grad in zip(mine, mean.split([p.numel() for p in mine])):
        p.grad = grad.view_as(p)
    inner.step()
    all_gather_(comm, chunks)

assert off(stage_1) < 1e-12 and off(stage_1, 4) < 1e-12
assert abs(sent(stage_1) - 2) < 0.01 < 0.99 < sent(naive) - sent(plain)
study.bars({"data parallel": sent(plain), "naive": sent(naive), "flat buffer": sent(stage_1)},
           title="Numbers sent in a step, over (n − 1)Ψ", target=2, note="all-reduce")

# %% [markdown]
# Stage 1 sends nothing more. It costs nothing but the trouble to write it.
#
# ## Step 3: stage 2, in hooks
#
# A gradient that another rank owns is needed until it has been sent. **So send it as soon as it is there, and drop
# it.** PyTorch calls our hook when a gradient is complete (lesson 05).

# %%
def stage_2(comm, params, optimizer):
    owner = owners([p.nbytes for p in params], comm.size)
    _, chunks, _ = flatten(params, owner, comm.size)
    inner = optimizer([p for p, o in zip(params, owner) if o == comm.rank])
    for p, o in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(to_owner, comm, o))

    def step():
        inner.step()
        all_gather_(comm, chunks)
    return step

def to_owner(comm, owner, p):
    reduce_(comm, p.grad, owner, algorithm="tree")
    p.grad = p.grad / comm.size if comm.rank == owner else None

assert off(stage_2) < 1e-12 and off(stage_2, 4) < 1e-12 and abs(sent(stage_2) - 2) < 0.01

# %% [markdown]
# Did it help? The World follows the memory of every rank. On the device `"meta"` tensors have no numbers, and the model
# may be large: 12 layers of 1,024 × 1,024, four H100s. **Predict** the curve of gradients in a step of each stage.

# %%
def step_of(comm, stage, layers=12, steps=2):
    model = mlp([1024] * (layers + 1), device="meta")
    params, x = list(model.parameters()), torch.empty(2048, 1024, device="meta")
    step = stage(comm, params, torch.optim.Adam)
    for _ in range(steps):
        for p in params:
            p.grad = None
        begin = comm.now()
        model(x).square().mean().backward()
        end = comm.now()
        step()
    return begin, end, comm.now()

def on_meta(n, program, *args, beta=1 / 450e9):
    world = World(n, cluster=Cluster.uniform(n, 5e-6, beta, H100), device="meta")
    return world, world.run(program, *args)

# %%
def over_time(world, times, kind="gradients", rank=0):
    """A curve of live bytes in the last step."""
    line, begin, end = world.trace.memory[rank], times[rank][0], times[rank][-1]
    at = [begin + (end - begin) * k / 400 for k in range(401)]
    return [t - begin for t in at], [line.at(t)[kind] for t in at]

seen = {name: on_meta(4, step_of, stage) for name, stage in (("stage 1", stage_1), ("stage 2", stage_2))}
study.curves({name: over_time(*run) for name, run in seen.items()}, xunit="s", yunit="B", xlabel="time in a step",
             ylabel="gradients on rank 0", title="Stage 2 frees gradients while backward runs")

# %% [markdown]
# Stage 1 holds all gradients when backward ends, and for a moment the means beside them. Stage 2 holds those that it
# owns, and the one on its way. But every gradient now waits for its message: the step is longer. The library puts
# gradients into buckets, and sends them beside backward, as in lesson 05.
#
# ## Step 4: stage 3
#
# What is left is the weights, whole on each rank. A layer's weight is used for a moment, twice: in its forward, and in
# its backward. **Keep a shard. Gather, use, free.** Autograd keeps what we save for backward: so save the shard.

# %%
class Gathered(torch.autograd.Function):
    """x·Wᵀ, of a W that is cut into shards."""

    @staticmethod
    def forward(ctx, x, shard, comm, shape):
        ctx.save_for_backward(x, shard)
        ctx.comm, ctx.shape = comm, shape
        return x @ whole(comm, shard, shape).T  # and the whole is gone

    @staticmethod
    def backward(ctx, dy):
        (x, shard), comm = ctx.saved_tensors, ctx.comm
        dx = dy @ whole(comm, shard, ctx.shape)  # gathered a second time
        dw = dy.T @ x
        return dx, reduce_scatter(comm, dw.flatten(), sizes=cuts(comm, ctx.shape)) / comm.size, None, None

# %%
from minidist.split import uneven

def cuts(comm, shape):
    return uneven(shape[0] * shape[1], comm.size)

def whole(comm, shard, shape):
    return all_gather(comm, shard, sizes=cuts(comm, shape)).view(shape)

def my_shard(comm, weight):
    return nn.Parameter(weight.detach().flatten().split(cuts(comm, weight.shape))[comm.rank].clone())

class Network(nn.Module):
    def __init__(self, comm, weights, function=Gathered):
        super().__init__()
        self.comm, self.shapes, self.function = comm, [w.shape for w in weights], function
        self.shards = nn.ParameterList(my_shard(comm, w) for w in weights)

    def forward(self, x):
        for shape, shard in zip(self.shapes, self.shards):
            x = self.function.apply(x, shard, self.comm, shape).tanh()
        return x

# %% [markdown]
# The optimizer is any optimizer, on shards: it never learns that they are parts. Three layers, three ranks, 20 steps:

# %%
def stage_3(comm, function=Gathered):
    torch.manual_seed(0)
    weights = [torch.randn(a, b, dtype=torch.float64) / 8 for a, b in ((40, 64), (20, 40), (10, 20))]
    model = Network(comm, weights, function)
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _, mine in zip(range(20), Sampler(len(task.x), 60, comm)):
        adam.zero_grad()
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        adam.step()
    return [whole(comm, shard.detach(), shape) for shape, shard in zip(model.shapes, model.shards)]

class Plain:
    """One rank, no shards: autograd's own."""
    apply = staticmethod(lambda x, weight, comm, shape: x @ weight.view(shape).T)

serial = World(1).run(stage_3, Plain)[0]
apart = lambda found: max(float((a - b).abs().max()) for own in found for a, b in zip(own, serial))
assert apart(World(3).run(stage_3)) < 1e-12 and apart(World(4).run(stage_3)) < 1e-12
print("stage 3 on 3 and 4 ranks: the weights of the serial program")

# %% [markdown]
# ## Break it: never free
#
# Gathering twice is a waste, somebody says, and saves the whole weight for backward. **Predict** what changes: the
# numbers, the traffic, the memory?

# %%
class NeverFrees(Gathered):
    @staticmethod
    def forward(ctx, x, shard, comm, shape):
        weight = whole(comm, shard, shape)
        ctx.save_for_backward(x, weight)
        ctx.comm, ctx.shape = comm, shape
        return x @ weight.T

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dw = reduce_scatter(ctx.comm, (dy.T @ x).flatten(), sizes=cuts(ctx.comm, ctx.shape)) / ctx.comm.size
        return dy @ weight, dw, None, None

# %%
def large(comm, function):
    model = Network(comm, [torch.empty(2048, 2048, device="meta")] * 12, function)
    adam = torch.optim.Adam(model.parameters())
    for _ in range(2):
        begin = comm.now()
        adam.zero_grad()
        model(torch.empty(256, 2048, device="meta")).square().mean().backward()
        adam.step()
    return begin, comm.now()

runs = {"frees": on_meta(4, large, Gathered), "never frees": on_meta(4, large, NeverFrees)}
assert apart(World(3).run(stage_3, NeverFrees)) < 1e-12
peaks = {name: world.trace.memory[0].peak for name, (world, _) in runs.items()}
assert peaks["never frees"] > 1.6 * peaks["frees"]
for name, (world, _) in runs.items():
    display(study.memory_timeline(world.trace, title=f"A stage 3 that {name}, 12 layers, 2 steps"))

# %% [markdown]
# The numbers are right, and less is sent: 2Ψ for 3Ψ. **Only the memory tells.** The whole weights sit among the
# activations, where the graph keeps them. Whoever tests a sharded optimizer by its numbers tests nothing. Here is the
# extreme case, an "optimizer" that shards nothing, among the right ones:

# %%
names = ["parameters", "gradients", "optimizer states"]

def kept(stage):
    world, times = on_meta(4, step_of, stage)
    live = world.trace.memory[0].at(times[0][1])  # when backward ends
    return [f"{live[kind] / 1e6:.1f}" for kind in names]

rows = [(name, "within 1e-12" if off(stage) < 1e-12 else "wrong", *kept(stage))
        for name, stage in (("shards nothing", plain), ("stage 1", stage_1), ("stage 2", stage_2))]
assert len({row[1] for row in rows}) == 1 and float(rows[0][4]) > 3.9 * float(rows[1][4])
study.table(rows, ["", "weights", *(f"{kind}, MB" for kind in names)], title="Rank 0 of 4, when backward ends")

# %% [markdown]
# ## Predict the cost, then run
#
# Now the library, in mixed precision: fp16 weights and gradients, fp32 masters. `ShardedOptimizer` is stages 1 and 2,
# `FullySharded` stage 3. Three H100s, 6 layers, 14 million parameters. The bars on top are formulas that know of no
# run, those below were counted. **Predict** the traffic behind the bars, in multiples of Ψ(n − 1)/n numbers.

# %%
from minidist.parallel.data import DataParallel
from minidist.parallel.zero import FullySharded, ShardedOptimizer
from minidist.parallel.zero.fully import kept as kept_3
from minidist.train.amp import Masters

HALF = torch.float16

def library(comm, stage, layers=12, width=1024, rows=256, prefetch=1):
    model = mlp([width] * (layers + 1), dtype=torch.float32 if stage == 3 else HALF, device="meta")
    if stage == 3:
        model = FullySharded(model, comm, HALF, prefetch, blocks=nn.Linear)
        optimizer = torch.optim.Adam(model.parameters())
    elif stage:
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam, comm, stage, torch.float32)
    else:
        model = DataParallel(model, comm)
        optimizer = Masters(model.parameters(), torch.optim.Adam)
    return stepped(comm, model, optimizer, torch.empty(rows, width, dtype=HALF, device="meta"))

# %%
def stepped(comm, model, optimizer, x, steps=2):
    """The times when the last step, its forward, its backward and its update ended, the first being its begin."""
    for _ in range(steps):
        optimizer.zero_grad()
        times = [comm.now()]
        loss = model(x).float().square().mean()
        times.append(comm.now())
        loss.backward()
        times.append(comm.now())
        x.neg()  # so that the step begins later than backward ends
        optimizer.step()
    return *times, comm.now()

def sent_by(world, times, rank):
    """Bytes of a rank in the last step."""
    return sum(m.nbytes for m in world.trace if m.src == rank and m.start >= times[rank][0])

# %%
PARAMS, stages = 6 * 1536 * 1537, ("data parallel", "stage 1", "stage 2", "stage 3")
runs, bars, notes = {}, {}, {}
for z, stage in enumerate(stages):
    world, times = runs[stage] = on_meta(3, partial(library, layers=6, width=1536), z)
    bars[f"{stage}, formula"] = kept_3(PARAMS, 3) if z == 3 else study.memory.states(PARAMS, zero=z, data=3).bytes
    notes[f"{stage}, formula"] = f"{(2, 2, 2, 3)[z]} Ψ(n−1)/n"
    for r in range(3):
        live = world.trace.memory[r].at(times[r][2])  # when the second backward ends
        bars[name := f"{stage}, rank {r}"] = {kind: int(live[kind]) for kind in names}
        notes[name] = f"{sent_by(world, times, r) / (2 * PARAMS * 2 / 3):.2f} Ψ(n−1)/n"
        assert all(0 <= live[kind] - b <= 24 for kind, b in bars[f"{stage}, formula"].items())
study.stacked(bars, unit="B", notes=notes, title="Bytes on each of 3 ranks, and numbers sent in a step")

# %% [markdown]
# To the byte, with one exception: data parallelism carries 24 bytes of flags in its bucket of gradients. Stage 3 keeps
# an fp32 shard as *the* parameter, and rounds it to fp16 when it gathers: 4 + 4 + 8 for the paper's 2 + 2 + 12. The sum
# is the same, 16Ψ/n.
#
# So the answer is: stages 1 and 2 send nothing more, stage 3 half as much again. And what does one buy with more ranks?
# **Predict** the curves: which stage gains from the 65th GPU?

# %%
ns = [1, 2, 4, 8, 16, 32, 64, 128, 256]
lines = {f"stage {z}": (ns, [study.memory.states(256 * 10**6, zero=z, data=n).total / (256 * 10**6) for n in ns])
         for z in (1, 2, 3)}

def per_parameter(z, n):
    world, times = on_meta(n, partial(library, layers=4, width=64, rows=8), z)
    live = world.trace.memory[0].at(times[0][2])
    return sum(int(live[kind]) for kind in names) / (4 * 64 * 65)

few = (1, 2, 4)
points = {f"stage {z}": (few, [per_parameter(z, n) for n in few]) for z in (1, 2, 3)}
assert all(abs(got - dict(zip(*lines[name]))[n]) < 1e-9 for name, run in points.items() for n, got in zip(*run))
study.curves(lines, points=points, logx=True, logy=True, xlabel="ranks", ylabel="bytes a parameter, on each",
             title="What stays whole is the floor: 4, 2 and nothing")

# %% [markdown]
# ## Prefetch
#
# Gathering just in time makes a GPU wait for each layer. `FullySharded` gathers the *next* block on a lane while this
# one computes, `prefetch=1`. Six layers of 4,096 × 4,096, four H100s. **Predict** what it costs in memory.

# %%
layered = partial(library, layers=6, width=4096, rows=4096)
ahead = {k: on_meta(4, partial(layered, prefetch=k), 3) for k in (0, 1, 2)}
spent = {k: times[0][3] - times[0][0] for k, (_, times) in ahead.items()}
most = {k: max(over_time(world, times, "parameters")[1]) for k, (world, times) in ahead.items()}
assert spent[1] < 0.85 * spent[0] and spent[2] > 0.97 * spent[1] and most[0] < most[1]
rows = [(k, f"{1e3 * spent[k]:.2f}", f"{most[k] / 1e6:.0f}") for k in ahead]
display(study.table(rows, ["prefetch", "a step, ms", "parameters at the peak, MB"]))
pair = {f"prefetch = {k}": ahead[k][0].trace for k in (0, 1)}
study.timeline(pair, ranks=[0], memory=False, title="Two steps of stage 3, gathering just in time and ahead")

# %% [markdown]
# One block ahead, 34 MB more, and most of the traffic hides behind the products. Two ahead gain nothing here. (In the
# first forward nothing is gathered ahead: the order of the blocks is learned there.)
#
# ## Offload
#
# A host has more memory than its GPUs: 512 GB in a DGX-1. Put the optimizer's states there, 12Ψ, and let the host's
# cores do the step. Gradients go down while backward runs, 2Ψ bytes, and parameters come up, 2Ψ. Then **one** V100 of
# 32 GB holds 10 B parameters. `"exact"` waits for the host. `"delayed"` computes on, with parameters one step old:

# %%
from minidist.parallel.zero import OffloadedOptimizer

def uses(comm, mode):
    p, seen = nn.Parameter(torch.zeros(1)), []
    optimizer = OffloadedOptimizer([p], torch.optim.SGD, comm, mode, warmup=0, lr=1.0)
    for _ in range(6):
        seen.append(int(p))
        (-p).backward()  # each update adds 1
        optimizer.step()
        optimizer.zero_grad()
    return seen

seen = {mode: World(1).run(uses, mode)[0] for mode in ("exact", "delayed")}
assert seen == {"exact": [0, 1, 2, 3, 4, 5], "delayed": [0, 0, 1, 2, 3, 4]}
study.table([(mode, *row) for mode, row in seen.items()], ["updates that forward k has seen", *range(6)])

# %% [markdown]
# One update late: like PipeDream-2BW, and like there it is not the serial program any more.
#
# How fast is it? The paper says: **about 40 TFLOP/s on one V100, with a model of 10 B**. Our V100 multiplies at its
# data sheet's 125, so ours is an upper bound. 32 layers of 17,700 × 17,700. **Predict** a step by `step_time`, then
# run.

# %%
from minidist.parallel.zero.offload_cost import step_time, update_seconds

LAYERS, H = 32, 17_700
BIG, machine = LAYERS * H * H, Cluster.dgx1_v100()

def big(comm, rows, mode):
    model = nn.Sequential(*(nn.Linear(H, H, bias=False, dtype=HALF, device="meta") for _ in range(LAYERS)))
    host = OffloadedOptimizer(model.parameters(), torch.optim.Adam, comm, mode, 0, torch.float32, in_backward=True)
    x = torch.empty(rows, H, dtype=HALF, device="meta")
    for _ in range(4):
        start, y = comm.now(), model(x)
        y.backward(y.detach())
        host.step()
    return comm.now() - start

# %%
def tflops(tokens, mode, moved):
    product = 2 * BIG * tokens / 125e12  # a forward; backward has two, but for the first layer, which has one
    update, pcie = update_seconds(BIG, moved, 153.6e9), 1 / 12e9
    step = step_time(product, (2 - 1 / LAYERS) * product, update, 2 * BIG, LAYERS, 5.7e-6, pcie, mode, True)
    return 6 * BIG * tokens / step / 1e12

tokens, speed = (1024, 4096, 8192), {}
for mode in ("exact", "delayed"):
    for t in tokens:
        world = World(1, cluster=machine, device="meta")
        speed[mode, t] = 6 * BIG * t / world.run(big, t, mode)[0] / 1e12
        assert world.trace.memory[0].peak < 32e9 and abs(speed[mode, t] / tflops(t, mode, 76) - 1) < 0.03

# %%
fine = range(512, 8193, 256)
lines = {mode: (fine, [tflops(t, mode, 76) for t in fine]) for mode in ("exact", "delayed")}
lines |= {f"{mode}, Adam in one pass": (fine, [tflops(t, mode, 28) for t in fine]) for mode in ("exact", "delayed")}
points = {mode: (tokens, [speed[mode, t] for t in tokens]) for mode in ("exact", "delayed")}
enough = {name: next(t for t, tera in zip(*line) if tera >= 40) for name, line in lines.items()}
display(study.table(list(enough.items()), ["", "tokens in a step for 40 TFLOP/s"]))
study.curves(lines, points=points, xlabel="tokens in a step", ylabel="TFLOP/s of one V100",
             title="10 B parameters on one GPU: the host decides")

# %% [markdown]
# 40 TFLOP/s is within reach, given some thousands of tokens a step: the host's work is the same for any batch.
# PyTorch's Adam goes over memory many times, 76 bytes a parameter; in one pass it would be 28. That is why the authors
# wrote their own. With several GPUs each host steps the shard of its rank: a `ShardedOptimizer` takes an
# `OffloadedOptimizer`. And `FullySharded(…, offload=True)` keeps the weights' shards on the host, too.
#
# ## When not to use it
#
# **Stage 3, on slow links.** Data parallelism sends 2Ψ numbers, stage 3 sends 3Ψ, and the first before the first
# product. All of it falls into forward and backward. The same six layers, with other wires. **Predict** how many times
# as long stage 3 takes at 450 GB/s, and at 3 GB/s.

# %%
def slower(speed):
    took = [on_meta(4, layered, z, beta=1 / speed)[1][0] for z in (0, 3)]
    return (took[1][2] - took[1][0]) / (took[0][2] - took[0][0])

speeds = (450e9, 50e9, 12.5e9, 3e9)
ratios = [slower(speed) for speed in speeds]
assert ratios[0] < 1.1 and 1.4 < ratios[-1] < 1.5
study.curves({"3Ψ over 2Ψ": (speeds, [1.5] * len(speeds))}, points={"a step, run": (speeds, ratios)}, logx=True,
             xlabel="bytes a second, on each link", xunit="B", ylabel="stage 3 over data parallelism",
             title="Forward and backward of six layers, 4 GPUs")

# %% [markdown]
# Over NVLink, inside a node, it costs less than a tenth. Over a slow network it is nearly half as much time again: use
# it inside the node, or not at all. And where the model fits with stage 1, stage 1 is enough: it costs nothing.
#
# **Offload, when GPUs are plenty.** With n ranks the states are 12Ψ/n. From some n on they fit, and the bus is slow.
#
# ## The library's version
#
# `ShardedOptimizer` is our stages 1 and 2, with buckets, param groups, state dicts and clipping. Its stage 2 hooks are
# those of lesson 05, with another bucket; here is its step. `FullySharded` frees by resizing a storage to 0: whatever
# autograd keeps of the weight is empty, until it is gathered again.

# %%
from minidist.parallel.zero.fully.flat import Flat

display(study.source(ShardedOptimizer.step, docstring=False))
study.source(Flat.release)

# %% [markdown]
# ## On processes, and on a cluster
#
# The digits again, with stage 1, 2 and 3 of the library, on three processes of this machine, against the serial
# weights:

# %%
def with_library(comm, stage):
    model = mlp(WIDTHS, seed=comm.rank, dtype=torch.float64)
    if stage == 3:
        model = FullySharded(model, comm, blocks=nn.Linear)
        optimizer = KINDS["AdamW"](model.parameters())
    else:
        optimizer = ShardedOptimizer(model.parameters(), KINDS["AdamW"], comm, stage)
    for _, mine in zip(range(20), Sampler(len(task.x), 60, comm)):
        optimizer.zero_grad()
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        optimizer.step()
    return [p.detach() for p in (model.full_state_dict().values() if stage == 3 else model.parameters())]

real = launch(lambda comm: [with_library(comm, stage) for stage in (1, 2, 3)], 3)
assert all(float((a - b).abs().max()) < 1e-12 for own in real for found in own for a, b in zip(found, wanted["AdamW"]))
print("stages 1, 2 and 3 on three processes: the serial weights, within 1e-12")

# %% [markdown]
# And under `torchrun`, with `with_library(from_env(), 3)` at the end of a script:
#
# torchrun --nproc-per-node 4 train.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
#
# So what was sent more?

# %%
def in_a_step(stage):
    return sum(sent_by(*runs[stage], r) for r in range(3))

more = {stage: round(in_a_step(stage) / in_a_step("data parallel"), 2) for stage in stages[1:]}
assert more == {"stage 1": 1, "stage 2": 1, "stage 3": 1.5}
study.bars({"your guess": guess} | more, title="Bytes sent in a step, over those of data parallelism")

# %% [markdown]
# ## Takeaways
#
# - Adam in mixed precision keeps 16 bytes a parameter; 12 of them are needed in the step alone.
# - Stage 1: 4Ψ + 12Ψ/n bytes. A reduce-scatter and an all-gather are an all-reduce: 2Ψ sent, nothing more.
# - Stage 2: 2Ψ + 14Ψ/n bytes. Gradients go to their owners during backward, and are freed.
# - Stage 3: 16Ψ/n bytes. Gather, use, free, forward and backward: 3Ψ sent. Prefetch hides it, for one block of memory.
# - An optimizer that shards nothing, a stage 3 that never frees: right numbers. Test the bytes.
# - Offload: states and step on the host. Give it large batches. Delayed, it is one update late.
#
# ## Papers
#
# - S. Rajbhandari et al. *ZeRO: memory optimizations toward training trillion parameter models.* SC, 2020.
#   Sections 5 and 7.
# - J. Ren et al. *ZeRO-Offload: democratizing billion-scale model training.* USENIX ATC, 2021. Sections 4 and 6.
# - Y. Zhao et al. *PyTorch FSDP: experiences on scaling fully sharded data parallel.* VLDB, 2023. Sections 3, 4.
