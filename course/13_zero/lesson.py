# %% [markdown]
# # 13 · ZeRO and offload
#
# A model with 7.5 billion parameters is to be trained with Adam in mixed precision, on 64 GPUs with 80 GB each. Together they have 5,120 GB of memory, and the model needs 120 GB. It does not fit: data parallelism puts all 120 GB on *every* GPU. The same numbers lie there 64 times, and 63 of the 64 copies are redundant.
#
# ZeRO, the *zero redundancy optimizer*, keeps each number once. With it the same training takes 1.9 GB on each GPU, and nothing is approximated: the results are those of the serial program. It sounds as if there were a price, and the obvious one is traffic, since a GPU must now fetch what it used to have. So here is the guess for this lesson:
#
# **In a step, how many times the bytes of plain data parallelism does ZeRO send, if it shards everything?**

# %%
guess = 10.0  # times the bytes of data parallelism: change this number

# %% [markdown]
# ## Sixteen bytes for each parameter
#
# Where do 120 GB come from? In [mixed precision](lesson:precision) a parameter is stored in 16 bits, 2 bytes, and so is its gradient. The optimizer keeps three more numbers for it in 32 bits: a master copy of the weight, Adam's momentum, and Adam's variance, 12 bytes. We call these 12 the [optimizer states](term:optimizer-states). With Ψ parameters that makes 16Ψ bytes of **model states**, of which *three quarters are optimizer states*. Activations come on top; ZeRO does not touch them, and [Rematerialization](lesson:remat) does.
#
# Now ask when each of them is used. A weight is used in the forward and in the backward, by every rank. A gradient is used when it is averaged. The optimizer states are used in the optimizer's step, and at no other time. ZeRO takes them away in this order, and each step of the way is called a [stage](term:zero): stage 1 [shards](term:shard) the optimizer states, which means that each rank keeps only its part of them; stage 2 the gradients as well; stage 3 also the weights.
#
# ![Model states on four ranks as bars: 2 bytes of parameters, 2 of gradients and 12 of optimizer states for each parameter. Data parallelism keeps all 16 on every rank. Stage 1 keeps a quarter of the optimizer states on each, 7 bytes in all. Stage 2 a quarter of the gradients too, 5.5 bytes. Stage 3 a quarter of everything, 4 bytes.](../course/13_zero/figures/stages.svg)
#
# The sums at the right margin of the drawing are worth reading once with care. At stage 1 a rank keeps $2\Psi + 2\Psi + 12\Psi/n$ bytes, at stage 2 $2\Psi + 14\Psi/n$, and at stage 3 $16\Psi/n$. What stays whole is a floor that no number of ranks can lower: 4Ψ, 2Ψ, and nothing. Here are the formulas for the model of the introduction; the colours mean the same as in the drawing.

# %%
from minidist import study

STAGES = ("data parallel", "stage 1", "stage 2", "stage 3")


def model_states(psi, n, stage):
    """Bytes that a rank keeps, by kind: a formula, which knows nothing of the programs below."""
    return {
        "parameters": 2 * psi / (n if stage >= 3 else 1),
        "gradients": 2 * psi / (n if stage >= 2 else 1),
        "optimizer states": 12 * psi / (n if stage >= 1 else 1),
    }


study.stacked(
    {name: model_states(7.5e9, 64, stage) for stage, name in enumerate(STAGES)},
    unit="B",
    target=80e9,
    note="a GPU has",
    title="7.5 billion parameters on 64 GPUs: bytes on each, by formula",
)

# %% tags=["maintainer"]
paper = [sum(model_states(7.5e9, 64, stage).values()) for stage in range(4)]
assert [round(total / 1e9, 1) for total in paper] == [120, 31.4, 16.6, 1.9]
assert paper == [study.predict.states(7_500_000_000, zero=z, data=64).total for z in range(4)]

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# First the division of labour. Each parameter gets one [owner](term:owner), the rank that keeps its optimizer states and steps it. Suppose that there are six parameter tensors, of 8, 7, 6, 5, 4 and 3 bytes, and three ranks. If each rank took two of them in the order of the model, the ranks would own 15, 11 and 7 bytes, and the memory that counts is that of the fullest. A simple rule does better: **go through them from the largest to the smallest, and give each to the rank that owns least so far.**


# %%
def owners(nbytes, n):
    """The rank that owns each parameter: the largest first, each to the rank with the fewest bytes."""
    loads = [0] * n
    owner = [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += nbytes[i]
    return owner


owners([8, 7, 6, 5, 4, 3], 3)

# %% [markdown]
# Ranks 0, 1 and 2 take 8, 7 and 6 bytes; then 5 goes to rank 2, 4 to rank 1, and 3 to rank 0, so that all own 11. The rule is not always perfect, but the fullest rank never has more than 4/3 of the best possible (Graham proved it in 1969). All ranks run the same function on the same sizes, so they agree without a message.
#
# Now a step. To keep it short, six weights are single numbers, all of them 1, the learning rate is 1, and each rank owns two. Every rank has six gradients, from its own samples. What does an owner need? The mean of *two* columns, and nothing else. That is the [reduce-scatter](term:reduce-scatter) of [Messages](lesson:messages). It then steps its two weights, and everybody needs the results: an [all-gather](term:all-gather).

# %%
import torch

from minidist.collectives import all_gather, reduce_scatter
from minidist.comm import Cluster, World


def step_by_hand(comm):
    gradients = torch.arange(1.0, 7.0) * (comm.rank + 1)
    mean = reduce_scatter(comm, gradients) / comm.size  # two of the six
    stepped = torch.ones(2) - mean  # two weights, stepped by their owner
    weights = all_gather(comm, stepped)  # all six again
    columns = []
    for values in (gradients, mean, stepped, weights):
        columns.append(" ".join(str(int(value)) for value in values))
    return columns


rows = []
for rank, columns in enumerate(World(3).run(step_by_hand)):
    rows.append([f"rank {rank}", *columns])
study.table(rows, ["", "own gradients", "mean of its columns", "its weights", "all weights"])

# %% [markdown]
# **Why this is right.** Adam updates number *i* from three things: its weight, its gradient, and its own momentum and variance. No other number enters. Such an optimizer is called *elementwise*; SGD with momentum and AdamW are elementwise too. So it does not matter *who* computes the update, as long as whoever does it has those few numbers. From the same mean gradients, n ranks that each do a part get, bit for bit, what one rank gets that does everything.
#
# The argument also says when it fails. L-BFGS looks at all parameters at once, so its step cannot be dealt out. LAMB looks at the norm of a whole tensor. That is why the owners above own *whole* tensors: whatever an optimizer does within one tensor is then still right.
#
# And the price? A reduce-scatter followed by an all-gather *is* an [all-reduce](term:all-reduce). Data parallelism does one all-reduce of the gradients; stage 1 does its two halves, and steps in between. It should send exactly as much. We shall now build it and count.
#
# ## Stage 1, naive
#
# The task is to classify handwritten digits, in float64, so that a difference from the serial run of more than rounding is a mistake. Each program below is a function that takes a model and an optimizer class, prepares both, and returns the model with the `step()` that is to be called after each backward. Plain data parallelism is the first such function.

# %%
from functools import cache, partial
from itertools import pairwise

from torch import nn
from torch.nn.functional import cross_entropy

from minidist.collectives import all_gather_, all_reduce_, broadcast_, reduce_, reduce_scatter_
from minidist.parallel.data import Sampler
from minidist.tasks import digits

task = digits()
WIDTHS = [64, 40, 30, 20, 10]


def network(widths, dtype=torch.float32, device="cpu"):
    """Linear layers without biases, with a tanh between each two."""
    layers = []
    for fan_in, fan_out in pairwise(widths):
        layers.append(nn.Linear(fan_in, fan_out, bias=False, dtype=dtype, device=device))
        layers.append(nn.Tanh())
    return nn.Sequential(*layers[:-1])


adamw = partial(torch.optim.AdamW, lr=0.01)


def train(comm, program, optimizer_class=adamw, steps=6):
    """Train for a few steps with this program; returns what the model says of every digit."""
    torch.manual_seed(comm.rank)  # every rank starts from other weights …
    model = network(WIDTHS, torch.float64)
    broadcast_(comm, [p.data for p in model.parameters()])  # … and takes those of rank 0
    model, step = program(comm, model, optimizer_class)
    for _, rows in zip(range(steps), Sampler(len(task.x), 60, comm)):
        model.zero_grad()
        cross_entropy(model(task.x[rows]), task.y[rows]).backward()
        step()
    return model(task.x).detach()


def data_parallel(comm, model, optimizer_class):
    optimizer = optimizer_class(model.parameters())

    def step():
        for p in model.parameters():
            all_reduce_(comm, p.grad, "mean")
        optimizer.step()

    return model, step


# %% [markdown]
# The naive stage 1 changes little. The optimizer gets only the parameters that this rank owns, so it makes states for no others. After the step each owner broadcasts what it has stepped.


# %%
def naive_stage_1(comm, model, optimizer_class):
    params = list(model.parameters())
    owner = owners([p.nbytes for p in params], comm.size)
    optimizer = optimizer_class([p for p, rank in zip(params, owner) if rank == comm.rank])

    def step():
        for p in params:
            all_reduce_(comm, p.grad, "mean")
        optimizer.step()
        for p, rank in zip(params, owner):
            broadcast_(comm, p.data, rank, algorithm="tree")

    return model, step


# %% [markdown]
# Two functions will judge this program and all that follow. `error` compares it with the serial run, that is with `data_parallel` on a single rank, and returns the largest difference on any rank, with Adam and with momentum. `sent` counts what all ranks send in a step, in units of $(n-1)\Psi$ numbers; an all-reduce makes 2.

# %%
OPTIMIZERS = [
    partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    adamw,
]


@cache
def error(program, n=3):
    """The largest difference from the serial program, on any rank, with any of the optimizers."""
    largest = 0.0
    for optimizer_class in OPTIMIZERS:
        serial = World(1).run(train, data_parallel, optimizer_class)[0]
        for found in World(n).run(train, program, optimizer_class):
            largest = max(largest, float((found - serial).abs().max()))
    return largest


@cache
def sent(program, n=3):
    """Numbers that all ranks send in a step, in units of (n−1)Ψ."""
    two_steps = World(n).run(train, program, steps=2).trace.bytes_sent()
    no_step = World(n).run(train, program, steps=0).trace.bytes_sent()
    psi = sum(fan_in * fan_out for fan_in, fan_out in pairwise(WIDTHS))
    return (two_steps - no_step) / 2 / 8 / ((n - 1) * psi)  # of float64: 8 bytes each


def judge(*programs):
    rows = []
    for program in programs:
        verdict = "as serial" if error(program) < 1e-12 else "wrong"
        rows.append([program.__name__, verdict, f"{sent(program):.2f}"])
    return study.table(rows, ["program", "results", "numbers sent, over (n−1)Ψ"])


judge(data_parallel, naive_stage_1)

# %% [markdown]
# The results are right, and half as much again is sent. You can see why: the all-reduce gives every rank *all* averages, and each throws away those that it does not own.
#
# ## Stage 1, with a flat buffer
#
# To send a gradient to its owner alone we need a reduce-scatter, and a reduce-scatter wants the chunks for rank 0, rank 1, … next to each other in memory. So let us copy all weights into one [flat buffer](term:flat-buffer), those of rank 0 first, and turn the parameters into *views* of it. A view is a tensor without memory of its own; PyTorch's `view_as` makes one. The model notices nothing, and an all-gather into the buffer renews all parameters where they lie.


# %%
def flatten(params, owner, n):
    """Move the parameters into a flat buffer; returns their order in it, and each rank's chunk."""
    order = sorted(range(len(params)), key=lambda i: owner[i])  # rank 0's first
    flat = torch.cat([params[i].data.flatten() for i in order])
    lengths = [0] * n
    start = 0
    for i in order:
        end = start + params[i].numel()
        params[i].data = flat[start:end].view_as(params[i])
        lengths[owner[i]] += params[i].numel()
        start = end
    return order, list(flat.split(lengths))


def stage_1(comm, model, optimizer_class):
    params = list(model.parameters())
    owner = owners([p.nbytes for p in params], comm.size)
    order, chunks = flatten(params, owner, comm.size)
    lengths = [len(chunk) for chunk in chunks]
    own = [params[i] for i in order if owner[i] == comm.rank]
    optimizer = optimizer_class(own)

    def step():
        gradients = torch.cat([params[i].grad.flatten() for i in order])
        parts = list(gradients.split(lengths))
        reduce_scatter_(comm, parts)  # parts[r] becomes the sum, on rank r
        mean = parts[comm.rank] / comm.size
        model.zero_grad()
        for p, gradient in zip(own, mean.split([p.numel() for p in own])):
            p.grad = gradient.view_as(p)
        optimizer.step()
        all_gather_(comm, chunks)  # the parameters are views: they are new now

    return model, step


judge(data_parallel, naive_stage_1, stage_1)

# %% [markdown]
# Stage 1 sends what data parallelism sends, to the byte. It costs nothing but the trouble of writing it. Note that gradients and parameters must be laid out in the same order; a buffer in the order of the model would hand rank 1 the gradients of somebody else's parameters, and where the sizes happen to agree, no error would tell you.
#
# ## Stage 2: send a gradient and drop it
#
# In the step above, every rank still holds all gradients when the backward ends. But a gradient that another rank owns is needed only until it has been sent. **So send each one as soon as it is there, and free it.** PyTorch calls a function of ours at that moment if we register it with `register_post_accumulate_grad_hook`, which [Buckets and overlap](lesson:buckets) explains. The function `reduce_` adds the ranks' tensors up at one rank, here the owner.


# %%
def send_to_owner(comm, owner, p):
    """Called when the gradient of p is complete."""
    reduce_(comm, p.grad, owner, algorithm="tree")
    if comm.rank == owner:
        p.grad = p.grad / comm.size
    else:
        p.grad = None  # its memory is free


def stage_2(comm, model, optimizer_class):
    params = list(model.parameters())
    owner = owners([p.nbytes for p in params], comm.size)
    _, chunks = flatten(params, owner, comm.size)
    optimizer = optimizer_class([p for p, rank in zip(params, owner) if rank == comm.rank])
    for p, rank in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(send_to_owner, comm, rank))

    def step():
        optimizer.step()
        all_gather_(comm, chunks)

    return model, step


judge(stage_1, stage_2)

# %% [markdown]
# The same results for the same bytes. Did it help? A `World` keeps an account of the memory of each rank. On the device `"meta"` tensors have a shape and no numbers, so that we can take a larger model, 12 layers of 1,024 × 1,024 on four H100s; times and bytes are modelled. **At stage 1 gradients reach 50 MB when the backward ends. What is the most that rank 0 holds of gradients at stage 2?**

# %%
guess_gradients = 50  # MB: change this number

# %%
from minidist.comm.cluster import H100


def two_steps(comm, program, widths, tokens):
    """Two steps; the times at which the second began, at which its backward ended, and its end."""
    model, step = program(comm, network(widths, device="meta"), torch.optim.Adam)
    dtype = next(model.parameters()).dtype
    x = torch.empty(tokens, widths[0], dtype=dtype, device="meta")
    for _ in range(2):
        model.zero_grad()
        begin = comm.now()
        model(x).float().square().mean().backward()
        end = comm.now()
        x.neg()  # a moment passes, so that the state at `end` can be looked up
        step()
    return begin, end, comm.now()


@cache
def on_meta(n, *arguments, bandwidth=450e9):
    """The World after two steps, and the times of rank 0."""
    cluster = Cluster.uniform(n, 5e-6, 1 / bandwidth, H100)
    world = World(n, cluster=cluster, device="meta")
    times = world.run(two_steps, *arguments)
    return world, times[0]


def over_time(world, times, kind):
    """Live bytes of one kind on rank 0, over the last step."""
    begin, _, end = times
    at = [(end - begin) * k / 400 for k in range(401)]
    line = world.trace.memory[0]
    return at, [line.at(begin + t)[kind] for t in at]


gradients = {}
for program in (stage_1, stage_2):
    world, times = on_meta(4, program, (1024,) * 13, 2048)
    gradients[program.__name__] = over_time(world, times, "gradients")

# %% tags=["answer"]
study.reveal(
    guess_gradients,
    round(max(gradients["stage_2"][1]) / 1e6),
    study.curves(
        gradients,
        xunit="s",
        yunit="B",
        xlabel="time in a step",
        ylabel="gradients on rank 0",
        title="Stage 2 frees gradients while the backward runs",
    ),
    unit="MB",
    words="The quarter of the 50 MB that it owns; until that is complete, one more is on its way. Stage 1 holds "
    "all gradients, and for a moment the means of its own beside them.",
)

# %% [markdown]
# The price shows on the time axis: the step is longer, because the backward now stops at each gradient until its message has gone. The library puts gradients into buckets and sends them while the backward goes on, just as data parallelism does.
#
# ## Stage 3: gather, use, free
#
# What is still whole is the weights. A layer's weight is used twice in a step, in its forward and in its backward, each time for a moment. So let every rank keep only its part, its *shard*, and *gather the layer just before it is used and free it right after*. Follow the block in the drawing from top to bottom; its weights are there for two short spells.
#
# ![One block's weights under stage 3 on three ranks. At rest each rank keeps one third. An all-gather makes the block whole, forward uses it, it is freed. Later it is gathered a second time, backward makes whole gradients, a reduce-scatter leaves on each rank the averaged third that it owns, and each rank updates its third.](../course/13_zero/figures/stage3_flow.svg)
#
# Unlike before, shards are cut *through* tensors, as evenly as possible: `uneven(10, 3)` is `[4, 3, 3]`. Three small helpers do the cutting and the traffic.

# %%
from minidist.split import uneven


def own_shard(comm, weight):
    return weight.detach().flatten().split(uneven(weight.numel(), comm.size))[comm.rank].clone()


def gather_whole(comm, shard, shape):
    return all_gather(comm, shard, sizes=uneven(shape.numel(), comm.size)).view(shape)


def mean_shard(comm, gradient):
    sizes = uneven(gradient.numel(), comm.size)
    return reduce_scatter(comm, gradient.flatten(), sizes=sizes) / comm.size


# %% [markdown]
# How do we tell autograd? If the forward computed `x @ whole.T` in the ordinary way, autograd would keep `whole` for the backward, and nothing would be freed. A `torch.autograd.Function` lets us write both directions ourselves and decide what is kept: what goes into `save_for_backward`. We save the shard, and gather again. With $Y = XW^\top$ the gradients are $dX = dY\,W$ and $dW = dY^\top X$. (`None` in the return of `backward` stands for arguments that have no gradient.)


# %%
class Gathered(torch.autograd.Function):
    """x·Wᵀ for a weight W that is kept in shards."""

    @staticmethod
    def forward(ctx, x, shard, comm, shape):
        ctx.save_for_backward(x, shard)
        ctx.comm = comm
        ctx.shape = shape
        return x @ gather_whole(comm, shard, shape).T  # the whole is freed on return

    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        dx = dy @ gather_whole(ctx.comm, shard, ctx.shape)  # gathered a second time
        return dx, mean_shard(ctx.comm, dy.T @ x), None, None


class ShardedLinear(nn.Module):
    def __init__(self, comm, weight, function):
        super().__init__()
        self.comm = comm
        self.shape = weight.shape
        self.function = function
        self.shard = nn.Parameter(own_shard(comm, weight))

    def forward(self, x):
        return self.function.apply(x, self.shard, self.comm, self.shape)


def stage_3(comm, model, optimizer_class, function=Gathered):
    layers = []
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer = ShardedLinear(comm, layer.weight, function)
        layers.append(layer)
    model = nn.Sequential(*layers)
    return model, optimizer_class(model.parameters()).step


# %% [markdown]
# The last line is the prettiest part. The optimizer is given shards as its parameters, and it never learns that they are shards; there is nothing to send after its step. And with that, the question from the beginning can be answered.

# %%
price = {}
for name, program in zip(STAGES[1:], (stage_1, stage_2, stage_3)):
    price[name] = sent(program) / sent(data_parallel)

# %% tags=["answer"]
study.reveal(
    guess,
    round(price["stage 3"], 2),
    study.bars(
        price,
        target=1,
        note="data parallel",
        title="Numbers sent in a step, over those of data parallelism",
    ),
    unit="times",
    words="Two gathers and a reduce-scatter are 3Ψ(n−1)/n numbers a rank; an all-reduce is 2Ψ(n−1)/n. Stages 1 "
    "and 2 send no more than data parallelism.",
)

# %% tags=["maintainer"]
assert [round(more, 2) for more in price.values()] == [1, 1, 1.5]
for program in (naive_stage_1, stage_1, stage_2, stage_3):
    assert error(program) < 1e-12
assert error(stage_1, 4) < 1e-12  # a rank for each tensor
assert error(stage_3, 4) < 1e-12

# %% [markdown]
# ## Break it: never free
#
# "Gathering twice is a waste", says a colleague, and saves the whole weight for the backward. Look at the change and decide what will differ: the numbers, the traffic, the memory?

# %%
guess_changes = ["numbers", "traffic", "memory"]  # delete what does not change


# %%
class NeverFrees(Gathered):
    @staticmethod
    def forward(ctx, x, shard, comm, shape):
        weight = gather_whole(comm, shard, shape)
        ctx.save_for_backward(x, weight)
        ctx.comm = comm
        return x @ weight.T

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return dy @ weight, mean_shard(ctx.comm, dy.T @ x), None, None


never_frees = partial(stage_3, function=NeverFrees)
never_frees.__name__ = "never_frees"
memory = []
for program in (stage_3, never_frees):
    world, times = on_meta(3, program, (2048,) * 13, 256)
    last_step = world.trace.memory[0].since(times[0])
    memory.append(study.memory_timeline(last_step, title=f"{program.__name__}: a step on rank 0"))

# %% tags=["answer"]
study.reveal(
    guess_changes,
    ["traffic", "memory"],
    [judge(stage_3, never_frees), *memory],
    words="The results are right, and it even sends less. Only the memory tells: all whole weights pile up "
    "among the activations, where the graph keeps them.",
)

# %% [markdown]
# Remember this symptom: *right results, less traffic, and no memory saved*. A sharded optimizer that is tested by its results alone is not tested at all. The extreme case is a `ShardedOptimizer` that shards nothing; it passes every comparison of weights. **Test the bytes.**

# %%
KINDS = ["parameters", "gradients", "optimizer states"]
rows = []
for program in (data_parallel, stage_1, stage_2, stage_3):
    world, (_, end, _) = on_meta(4, program, (1024,) * 13, 2048)
    live = world.trace.memory[0].at(end)
    megabytes = [f"{live[kind] / 1e6:.1f}" for kind in KINDS]
    rows.append([program.__name__, "as serial" if error(program) < 1e-12 else "wrong", *megabytes])
study.table(
    rows,
    ["", "results", *(f"{kind}, MB" for kind in KINDS)],
    title="Four programs with equal results: rank 0 of 4 when the backward ends",
)

# %% [markdown]
# ## The library's file
#
# [minidist/parallel/zero.py](file:minidist/parallel/zero.py) has two classes. `ShardedOptimizer` is our stages 1 and 2 with buckets, parameter groups and clipping. Its step is the one that you know. `self.gradients()` waits for the averages of what this rank owns, the optimizer inside steps those, and `_gather` is the all-gather of the flat buffers. The rest is caution: somebody may have replaced a parameter's memory since the start, and then the views would be views no more.

# %%
from minidist.parallel import FullySharded, OffloadedOptimizer, ShardedOptimizer
from minidist.parallel.zero import Flat, Schedule

study.source(ShardedOptimizer.step, docstring=False)

# %% [markdown]
# `FullySharded` is stage 3. It wraps any model, without a `ShardedLinear` for each kind of layer. You tell it which modules are the *blocks* that are gathered together, for example `blocks=nn.Linear`, or the layers of a transformer; hooks before and after each block's forward and backward do the rest. How does it free a weight that autograd has saved? It keeps the tensor and takes away its memory: `allocate` grows the storage before the gather, and `release` shrinks it to zero bytes. What autograd holds is then an empty shell, until the block is gathered again. In the code below, `self.full` is the block's flat buffer, `self.chunks` are the ranks' parts of it, and `self.held` are the block's parameters; `h.put(h.piece)` gives the module this rank's piece of one in place of the whole.

# %%
study.source(Flat.allocate)

# %%
study.source(Flat.release)

# %% [markdown]
# The third piece decides *when* a block is gathered. `_use` makes a block whole, and before it waits, it starts the gathers of the blocks that will come next, `prefetch` of them. They run on a lane beside the computation. We shall measure in a moment what that is worth.

# %%
study.source(Schedule._use)

# %% [markdown]
# The same file also has the code that finds the blocks, saves and loads state dicts, and hands missing gradients on. Under other names: stage 3 is PyTorch's `fully_shard` (FSDP2), stage 1 its `ZeroRedundancyOptimizer`; DeepSpeed calls them stages, as the [ZeRO paper](paper:rajbhandari2020) does. One rule holds for all: they average the gradients themselves, so there must be no `DataParallel` around the model; this library refuses it.
#
# ## Predict the cost, then run
#
# Do the formulas hold for a real implementation? We train in mixed precision on three modelled H100s, 6 layers and 14 million parameters, and read the account of each rank when the backward ends. In each pair the first bar is the formula; the second was counted.

# %%
from minidist.parallel.data import DataParallel
from minidist.train.amp import Masters

HALF = torch.float16


def library(comm, model, optimizer_class, stage, **options):
    """The library's stages in mixed precision."""
    if stage == 3:
        model = FullySharded(model, comm, HALF, blocks=nn.Linear, **options)
        return model, optimizer_class(model.parameters()).step
    model = model.half()
    if stage == 0:
        optimizer = Masters(model.parameters(), optimizer_class)  # steps fp32 copies
        return DataParallel(model, comm), optimizer.step
    optimizer = ShardedOptimizer(model.parameters(), optimizer_class, comm, stage, torch.float32)
    return model, optimizer.step


PSI = 6 * 1536 * 1536
bars = {}
notes = {}
for stage, name in enumerate(STAGES):
    world, (begin, end, _) = on_meta(3, partial(library, stage=stage), (1536,) * 7, 256)
    live = world.trace.memory[0].at(end)
    nbytes = sum(m.nbytes for m in world.trace if m.src == 0 and m.start >= begin)
    bars[f"{name}, formula"] = model_states(PSI, 3, stage)
    bars[f"{name}, counted"] = {kind: live[kind] for kind in KINDS}
    notes[f"{name}, counted"] = f"sends {nbytes / 2 / (PSI * 2 / 3):.2f} Ψ(n−1)/n"
study.stacked(
    bars, unit="B", notes=notes, title="Model states on rank 0 of 3, and numbers sent in a step"
)

# %% tags=["maintainer"]
for name in STAGES:
    formula, counted = bars[f"{name}, formula"], bars[f"{name}, counted"]
    assert abs(sum(formula.values()) - sum(counted.values())) <= 12, (name, formula, counted)
assert [note[6:10] for note in notes.values()] == ["2.00", "2.00", "2.00", "3.00"]

# %% [markdown]
# The totals agree, but for 12 bytes: data parallelism sends a flag for each parameter, which tells whether any rank had a gradient for it. Within stage 3 the colours differ: the library keeps *the* parameter as a shard in 32 bits and rounds it when it is gathered, so that it counts 4 + 4 + 8 where the ZeRO paper, and our formula, count 2 + 2 + 12. The sum is the same.
#
# ## Prefetch
#
# If a block is gathered just in time, its GPU waits for every gather. With `prefetch=1` the next block arrives while this one is computed. Look at the first steps of both, six layers of 4,096 × 4,096 on four modelled H100s: **what does the second picture cost in memory? A block has 16.8 million weights.**

# %%
guess_prefetch = 0  # MB more at the peak: change this number

# %%
ahead = {}
for prefetch in (0, 1, 2):
    program = partial(library, stage=3, prefetch=prefetch)
    ahead[prefetch] = on_meta(4, program, (4096,) * 7, 4096)
study.timeline(
    {f"prefetch = {k}": ahead[k][0].trace for k in (0, 1)},
    ranks=[0],
    memory=False,
    title="Two steps of stage 3: gathered just in time, and one block ahead",
)

# %%
rows = []
peaks = {}
for prefetch, (world, times) in ahead.items():
    peaks[prefetch] = max(over_time(world, times, "parameters")[1]) / 1e6
    milliseconds = 1e3 * (times[2] - times[0])
    rows.append([prefetch, f"{milliseconds:.2f}", f"{peaks[prefetch]:.0f}"])

# %% tags=["answer"]
study.reveal(
    guess_prefetch,
    round(peaks[1] - peaks[0]),
    study.table(rows, ["prefetch", "a step, ms", "parameters at the peak, MB"]),
    unit="MB",
    words="One block more. Two ahead gain nothing here: one gather is shorter than one block's computation.",
)

# %% tags=["maintainer"]
assert 33 < peaks[1] - peaks[0] < 35

# %% [markdown]
# In the first forward nothing is gathered ahead, because the order of the blocks is learned there. Look closely at the second step of the run with prefetch. The waits that are left are at the two ends: the first gather of the forward has no computation before it, and the last reduce-scatter of the backward has none after it.

# %%
study.viewer(ahead[1][0].trace, title="Stage 3 with prefetch = 1, on four ranks")

# %% [markdown]
# ## When do the gathers hide?
#
# One often hears that stage 3 is for fast links only, inside a node. Others train with it over hundreds of nodes. Both are right, and a short calculation tells them apart.
#
# Take one block with $P$ parameters in 16 bits, on $n$ ranks, and let a rank take in $b$ bytes per second. Gathering the block brings it $2P\frac{n-1}{n}$ bytes. Beside the gather the GPU computes the block before it: with $T$ tokens in the micro-batch a product with $P$ weights takes $2PT$ operations, and the GPU does $F$ of them per second. In the forward the gather hides if
#
# $$\frac{2P}{b}\cdot\frac{n-1}{n} \le \frac{2PT}{F}, \qquad\text{that is}\qquad T \ge \frac{F}{b}\cdot\frac{n-1}{n}.$$
#
# In the backward there are twice the operations, for $dX$ and $dW$. And there is twice the traffic: the second gather, and the reduce-scatter. So the condition is the same. Note what has dropped out: the size of the block, and with it that of the model. *What decides is the tokens that a GPU computes with weights that it has gathered once*, in a single micro-batch; with gradient accumulation every micro-batch gathers again.
#
# A large product on a modelled H100 runs at 633 TFLOP/s. **How many tokens does each of four GPUs need, if a rank takes in 48 GB/s?**

# %%
guess_tokens = 100  # tokens of a micro-batch on each GPU: change this number


# %%
def passes(comm, program, tokens, layers=8, width=4096):
    """The seconds of the second forward and backward, without a step."""
    module = nn.Sequential(
        *(nn.Linear(width, width, bias=False, device="meta") for _ in range(layers))
    )
    model = program(comm, module)
    x = torch.empty(tokens, width, dtype=HALF, device="meta", requires_grad=True)
    for _ in range(2):
        begin = comm.now()
        y = model(x)
        y.backward(y.detach())
        model.zero_grad()
    return comm.now() - begin


def no_traffic(comm, module):
    return module.half()


def all_sharded(comm, module):
    return FullySharded(module, comm, HALF, blocks=nn.Linear)


n = 4
F = 2 * 4096 * 4096 * 4096 / H100.computing(2 * 4096 * 4096 * 4096, HALF)  # FLOP/s
points = {}
for bandwidth, tokens in (
    (450e9, (512, 2048, 8192)),
    (48e9, (2048, 8192, 32_768)),
    (3e9, (32_768,)),
):
    cluster = Cluster.uniform(n, 5e-6, 1 / bandwidth, H100)
    ratios = []
    slowdowns = []
    for T in tokens:
        sharded = World(n, cluster=cluster, device="meta").run(passes, all_sharded, T)[0]
        alone = World(1, cluster=cluster.uniform(1, 5e-6, 1, H100), device="meta")
        slowdowns.append(sharded / alone.run(passes, no_traffic, T)[0])
        ratios.append(T / (F / bandwidth * (n - 1) / n))
    points[f"{bandwidth / 1e9:.0f} GB/s, run"] = ratios, slowdowns
x = [10 ** (k / 20 - 1) for k in range(41)]

# %% tags=["answer"]
study.reveal(
    guess_tokens,
    round(F / 48e9 * (n - 1) / n),
    study.curves(
        {"predicted": (x, [max(1, 1 / ratio) for ratio in x])},
        points=points,
        logx=True,
        logy=True,
        xlabel="tokens, over those that the formula asks for",
        ylabel="time of stage 3 / computing alone",
        title="Enough tokens, and the gathers hide",
    ),
    unit="tokens",
    words="On the left of 1 the traffic decides, on the right the GPU. Runs at three very different speeds lie on "
    "one line. What lies above it is the first gather and the last reduce-scatter, which nothing can hide, and at "
    "450 GB/s, where a block takes a tenth of a millisecond, latencies and copies between 32 and 16 bits.",
)

# %% tags=["maintainer"]
for name, (ratios, slowdowns) in points.items():
    for ratio, slowdown in zip(ratios, slowdowns):
        assert 0.92 * max(1, 1 / ratio) < slowdown < 1.35 * max(1, 1 / ratio), (
            name,
            ratio,
            slowdown,
        )

# %% [markdown]
# Now the two sayings. Over a slow network of 3 GB/s a GPU would need some 158,000 tokens in a micro-batch; with 4,096 of them stage 3 waits nearly all the time, and "inside the node, or not at all" is sound advice. In a node with NVLink at 450 GB/s about a thousand tokens do. And eight nodes of DGX H100? Each GPU has a card of its own with 48 GB/s, and NCCL opens several rings, each through another card. A node then takes in up to 8 × 48 = 384 GB/s, which is nearly as much as NVLink gives, and 4,096 tokens are plenty. That is why [Hybrid parallelism](lesson:hybrid) can recommend stage 3 over eight such nodes. So the question is never "one node or several?", but *how many tokens, and how many bytes per second?* Find your own machine:


# %%
def tokens_needed(n, bandwidth, teraflops):
    """The least tokens of a micro-batch on each GPU for which the gathers hide."""
    return {"tokens": teraflops * 1e12 / (bandwidth * 1e9) * (n - 1) / n}


study.explore(
    tokens_needed,
    over="bandwidth",
    n=[2, 4, 8, 64, 1024],
    bandwidth=[3, 6, 12, 24, 48, 96, 192, 384, 450, 900],
    teraflops=[50, 100, 200, 300, 400, 633, 1000],
    units={"bandwidth": "GB/s", "teraflops": "TFLOP/s"},
    labels={"n": "ranks", "bandwidth": "a rank takes in", "teraflops": "a GPU computes at"},
    start={"n": 64, "bandwidth": 48, "teraflops": 633},
    logx=True,
    logy=True,
    xlabel="GB/s that a rank takes in",
    ylabel="tokens on each GPU",
    title="From how many tokens on do gathers hide?",
)

# %% [markdown]
# ## Hybrid sharding
#
# What if the network *is* slow, and the model does not fit into one GPU? Then shard over a group in which links are fast, the *s* GPUs of a node, and keep a copy of the sharded model in each of the *r* nodes. This is [hybrid sharding](term:hybrid-sharding), between stage 3 and data parallelism. Gathers and reduce-scatters stay inside the node. Afterwards each rank holds the mean gradient of its shard over its own node, and the ranks with the same shard average these over the nodes.
#
# ![Two nodes of four GPUs. Inside each node every GPU holds another quarter of the weights, and all-gathers and reduce-scatters run along the node. Between the nodes an all-reduce joins each GPU to the one with the same quarter, and carries a quarter of the gradients.](../course/13_zero/figures/hybrid.svg)
#
# **Why this is right.** The mean over all $n = s \cdot r$ ranks is the mean over the nodes of the means within each node, since all nodes have equally many ranks. **What it costs.** Memory: $16\Psi/s$ instead of $16\Psi/n$. Between nodes: only the all-reduce of a shard, $2\frac{r-1}{r}\cdot\frac{\Psi}{s}$ numbers a rank, and every GPU uses its own card for it. It hides behind the backward if $T \ge \frac{F}{b}\cdot\frac{r-1}{r\,s}$, where *b* is now the speed of the network: *s* times fewer tokens than before. In code it is one argument, the communicator of the ranks with the same shard:


# %%
def hybrid(comm, module):
    shards = comm.split(comm.rank // 4)  # ranks 0 to 3 in one node, 4 to 7 in the other
    replicas = comm.split(comm.rank % 4)  # 0 and 4, 1 and 5, …
    return FullySharded(module, shards, HALF, blocks=nn.Linear, replicas=replicas)


def replicated(comm, module):
    return DataParallel(module.half(), comm)


# %% [markdown]
# Two nodes of four H100s, 4,096 tokens on each, and a network of 10 GB/s for each GPU. Computing alone takes 5.2 ms. **How long do forward and backward take with stage 3 over all eight, and how long with hybrid sharding?**

# %%
guess_ms = {"stage 3 over all eight": 5, "hybrid": 5}  # ms: change these numbers

# %%
from dataclasses import replace

from minidist.comm.cluster import Level

two_nodes = replace(Cluster.dgx_h100(2), devices=4)
slow = dict(two_nodes.links)
slow["nic"] = Level(slow["nic"].alpha, 1 / 10e9)
two_nodes = replace(two_nodes, links=slow)

rows = []
milliseconds = {}
for name, program, kept in (
    ("data parallel", replicated, "16 Ψ"),
    ("stage 3 over all eight", all_sharded, "2 Ψ"),
    ("hybrid", hybrid, "4 Ψ"),
):
    world = World(8, cluster=two_nodes, device="meta")
    seconds = world.run(passes, program, 4096)[0]
    start = world.time - seconds
    crossing = [m for m in world.trace if m.src // 4 != m.dst // 4 and m.start >= start]
    most = max(sum(m.nbytes for m in crossing if m.src == rank) for rank in range(8))
    milliseconds[name] = round(1e3 * seconds, 1)
    rows.append([name, kept, f"{most / 1e6:.0f}", milliseconds[name]])

# %% tags=["answer"]
study.reveal(
    guess_ms,
    {name: milliseconds[name] for name in guess_ms},
    study.table(
        rows,
        ["", "model states, bytes", "MB through the busiest card", "forward and backward, ms"],
        title="Two nodes of four H100s, 10 GB/s between them (modelled)",
    ),
    unit="ms",
    words="The formula asks stage 3 for more than 50,000 tokens, and hybrid for 7,900: there are 4,096, so hybrid waits as "
    "well: it takes twice as long as computing alone, and stage 3 fourteen times. In a ring over all eight two cards carry everything; in hybrid each of eight carries its own quarter.",
)

# %% tags=["maintainer"]
assert 1.9 < milliseconds["hybrid"] / 5.2 < 2.3
assert 13.5 < milliseconds["stage 3 over all eight"] / 5.2 < 14.5

# %% [markdown]
# Hybrid sharding is the middle of a scale. With $s = n$ it is stage 3, with $s = 1$ data parallelism. Choose the smallest *s* for which the model fits, or the number of GPUs in a node if that is more, since inside a node sharding is nearly free.
#
# ## Why ZeRO saves nothing on a small model
#
# Somebody trains a model with 125 million parameters on eight GPUs, switches ZeRO on, and sees the memory *grow*. The formula promised a saving of $14\Psi\frac{n-1}{n}$, 1.5 GB. What it does not count is [buffers](term:temporary-buffer): memory for what is on its way. DeepSpeed's default bucket has $5 \cdot 10^8$ numbers, 1 GB in fp16, whatever the size of the model; to fill one while another is being sent takes two of them. Activations are not sharded, either.
#
# Stage 3 has buffers by nature: the block in use and the next one are whole, and so are the gradients of a block or two. They do not shrink with *n*. Here is the library's stage 3 on eight layers. The line is $16\Psi/n$, and the points are peaks of a run.


# %%
def peak_memory(n, layers=8, width=1024):
    """Bytes for each parameter, at the peak of a step on rank 0."""
    world, _ = on_meta(n, partial(library, stage=3), (width,) * (layers + 1), 8)
    return world.trace.memory[0].peak / (layers * width * width)


ns = [1, 2, 4, 8]
study.curves(
    {"formula, 16/n": (ns, [16 / n for n in ns])},
    points={"peak of a run": (ns, [peak_memory(n) for n in ns])},
    logx=True,
    xlabel="ranks, n",
    ylabel="bytes for each parameter",
    title="What is on its way does not shrink with n",
)

# %% [markdown]
# The distance between the points and the line is the buffers, and on eight ranks they are more than the formula promises for all model states together. So there is a size below which ZeRO is not worth its buffers. **For two buckets of 1 GB and eight GPUs: how many parameters must a model have, before stage 2 saves anything?**

# %%
guess_parameters = 1e6  # parameters: change this number

# %%
buffers = 2 * 1e9
break_even = buffers / (14 * 7 / 8)
sizes = [10 * 2**k for k in range(8)]  # millions of parameters
lines = {
    "data parallel": (sizes, [16e6 * size for size in sizes]),
    "stage 2 and two buckets": (sizes, [(2 + 14 / 8) * 1e6 * size + buffers for size in sizes]),
}

# %% tags=["answer"]
study.reveal(
    guess_parameters,
    round(break_even, -6),
    study.curves(
        lines,
        logx=True,
        logy=True,
        yunit="B",
        xlabel="millions of parameters",
        ylabel="model states and buffers on each GPU",
        title="Eight GPUs, buckets of 1 GB (by formula)",
    ),
    unit="parameters",
    words="14Ψ·7/8 bytes must exceed 2 GB.",
)

# %% [markdown]
# The remedies: make the buckets smaller than the model (this library reduces a bucket in rounds of a sixteenth, or of 1 MiB for each rank if that is more), wrap blocks and not the whole model, and leave ZeRO out if the model fits without it.
#
# ## Offload
#
# When GPUs are few, there is another place for the optimizer states. A host has more memory than its GPUs: a DGX-1 with eight V100s has 512 GB in the host and 256 GB on the GPUs. [Offload](term:offload) keeps the 12Ψ bytes of states in the host's memory and lets its cores take the step. In each step the gradients go down, 2Ψ bytes, and the new parameters come up, 2Ψ bytes. *One* V100 with 32 GB can then train a model of nearly 8 billion parameters, against 2 billion without; and if each gradient goes down and is freed while the backward still runs, 10 billion.
#
# Why is it the step that goes to the host, and not a layer's forward? Because the step does least with each byte. A forward does 2T operations for each parameter that it reads, Adam a dozen, and a host computes dozens of times more slowly than a GPU.
#
# ![Two timelines with a row for the GPU and one for the host. Exact: the GPU does forward and backward, gradients go down, the host updates while the GPU waits, parameters come up. Delayed: the GPU goes on with the next forward and backward while the host updates, and uses parameters that are one update old.](../course/13_zero/figures/offload.svg)
#
# In mode `"exact"` the GPU waits for the host. In mode `"delayed"` it computes on, with parameters that are one update old. To see what that means, let each update add 1 to a parameter, and record what each forward reads.


# %%
def parameter_seen(comm, mode):
    p = nn.Parameter(torch.zeros(1))
    optimizer = OffloadedOptimizer([p], torch.optim.SGD, comm, mode, warmup=0, lr=1.0)
    seen = []
    for _ in range(6):
        seen.append(int(p))
        p.grad = -torch.ones(1)
        optimizer.step()
    return seen


rows = [[mode, *World(1).run(parameter_seen, mode)[0]] for mode in ("exact", "delayed")]
study.table(rows, ["updates that forward k has seen", *range(6)])

# %% tags=["maintainer"]
assert [row[1:] for row in rows] == [[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4]]

# %% [markdown]
# Exact is the serial program. Delayed is *not*: every gradient is taken at parameters that lack the last update. It usually converges all the same, after some exact steps at the beginning (`warmup`); [PipeDream](lesson:pipedream) looks at such delays in detail.
#
# **What does it cost?** The [ZeRO-Offload paper](paper:ren2021) says that one V100 reaches about 40 TFLOP/s with a model of 10 billion parameters. Let us see whether that is plausible. The link carries 12 GB/s. The host's memory gives 153.6 GB/s, and PyTorch's Adam moves 76 bytes for each parameter, plus 12 for the conversions between 16 and 32 bits. So, with $C$ the GPU's time for the forward and $2C$ for the backward, beside which gradients go down,
#
# $$T_\text{exact} = C + \max(2C, D) + H + U, \qquad T_\text{delayed} = \max(C + \max(2C, D), H) + U,$$
#
# where $D = U = 2\Psi / 12\,\text{GB/s}$ and $H = 88\Psi / 153.6\,\text{GB/s}$. **Which of the three will a step of 2,048 tokens wait for longest: the GPU, the link, or the host?**

# %%
guess_slowest = "GPU"  # or "link", or "host"

# %%
from minidist.comm.cluster import V100

LAYERS = 32
WIDTH = 17_696
BIG = LAYERS * WIDTH * WIDTH  # 10 billion


def parts_of_a_step(tokens, moved):
    """Seconds of a forward on a modelled V100, of the link one way, and of the host's Adam."""
    return {
        "GPU, forward": V100.computing(2 * BIG * tokens, HALF),
        "link, one way": 2 * BIG / 12e9,
        "host": moved * BIG / 153.6e9,
    }


def offload_seconds(tokens, mode, moved=88):
    C, D, H = parts_of_a_step(tokens, moved).values()
    passes = C + max(2 * C, D)
    if mode == "exact":
        return passes + H + D
    return max(passes, H) + D


def offloaded_steps(comm, tokens, mode):
    """Four steps of a model of 10 B; the seconds of the last."""
    layers = [nn.Linear(WIDTH, WIDTH, False, "meta", HALF) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    optimizer = OffloadedOptimizer(
        model.parameters(), torch.optim.Adam, comm, mode, 0, torch.float32, in_backward=True
    )
    x = torch.empty(tokens, WIDTH, dtype=HALF, device="meta")
    for _ in range(4):
        start = comm.now()
        y = model(x)
        y.backward(y.detach())
        optimizer.step()
    return comm.now() - start


def teraflops(tokens, seconds):
    return 6 * BIG * tokens / seconds / 1e12


many = list(range(512, 8193, 256))
lines = {}
points = {}
traces = {}
for mode in ("exact", "delayed"):
    lines[mode] = many, [teraflops(T, offload_seconds(T, mode)) for T in many]
    one_pass = [teraflops(T, offload_seconds(T, mode, 28 + 12)) for T in many]
    lines[f"{mode}, Adam in one pass"] = many, one_pass
    speeds = []
    for T in (2048, 8192):
        world = World(1, cluster=Cluster.dgx1_v100(), device="meta")
        speeds.append(teraflops(T, world.run(offloaded_steps, T, mode)[0]))
        traces[mode] = world.trace
    points[f"{mode}, run"] = (2048, 8192), speeds

# %% tags=["answer"]
study.reveal(
    guess_slowest,
    "host",
    [
        study.bars(parts_of_a_step(2048, 88), unit="s", title="A step of 2,048 tokens, in parts"),
        study.curves(
            lines,
            points=points,
            xlabel="tokens in a step",
            ylabel="TFLOP/s of one V100",
            title="10 billion parameters on one GPU (modelled)",
        ),
    ],
    options=["GPU", "link", "host"],
    words="It is the memory of the host, not the link: Adam goes over it many times. The host's work is the same for "
    "any batch, so large batches hide it. In one pass Adam would move 28 bytes, which is why the authors wrote their own.",
)

# %% tags=["maintainer"]
for mode in ("exact", "delayed"):
    for T, speed in zip(*points[f"{mode}, run"]):
        assert abs(speed / teraflops(T, offload_seconds(T, mode)) - 1) < 0.05, (mode, T, speed)

# %% [markdown]
# With a few thousand tokens in a step, 40 TFLOP/s is within reach. Our model consists of nothing but large products, which makes it an upper bound. Here are four steps of 8,192 tokens. Lane 1 is the host's Adam, lane 2 the gradients on their way down; the first seconds, in which the masters are made, come only once.

# %%
study.timeline(
    traces, memory=False, title="Four steps of 8,192 tokens: the GPU, and the host beside it"
)

# %% [markdown]
# With several GPUs the two ideas combine. Each host steps its rank's shard alone: a `ShardedOptimizer` takes an `OffloadedOptimizer` as its optimizer, so that $12\Psi/n$ bytes lie on each rank's part of the host. `FullySharded(…, offload=True)` keeps all shards on the host, parameters too; then nothing stays on the GPU but the blocks in use. Let us count these as well.


# %%
def offloaded(comm, model, optimizer_class, stage):
    if stage == 3:
        return library(comm, model, optimizer_class, 3, offload=True)
    model = model.half()
    optimizer = ShardedOptimizer(
        model.parameters(),
        partial(
            OffloadedOptimizer,
            optimizer_class=optimizer_class,
            comm=comm,
            master_dtype=torch.float32,
        ),
        comm,
        stage,
    )
    return model, optimizer.step


psi = 8 * 512 * 512
rows = []
for stage, n, on_gpu, on_host in (
    (1, 1, "4 Ψ", "12 Ψ"),
    (2, 4, "2 Ψ + 2 Ψ/n", "12 Ψ/n"),
    (3, 4, "0", "16 Ψ/n"),
):
    world = World(n, cluster=Cluster.dgx1_v100(), device="meta")
    end = world.run(two_steps, partial(offloaded, stage=stage), (512,) * 9, 8)[0][1]
    counted = []
    for memory in (world.trace.memory[0], world.trace.host[0].memory):
        live = memory.at(end)
        counted.append(f"{sum(live[kind] for kind in KINDS) / psi:.2f}")
    rows.append([f"stage {stage}, n = {n}", on_gpu, counted[0], on_host, counted[1]])
study.table(
    rows,
    ["", "GPU, formula", "counted, bytes for each", "host, formula", "counted, bytes for each"],
    title="Offload: bytes for each parameter, on a GPU and on its host",
)

# %% tags=["maintainer"]
assert [(row[2], row[4]) for row in rows] == [("4.00", "12.00"), ("2.50", "3.00"), ("0.00", "4.00")]

# %% [markdown]
# The optimizer that does all this is in [minidist/parallel/offload.py](file:minidist/parallel/offload.py): `Hosted` is the side of the host, with its copies and its step, and `OffloadedOptimizer` decides when the GPU waits for it.
#
# ## When not to use which
#
# - *Stage 1* has hardly a drawback: it sends nothing more. Use it whenever you train with data parallelism, and the model is not tiny.
# - *Stage 2* with gradient accumulation sends gradients after every micro-batch, where stage 1 waits for the last. If the gradients fit, stay with stage 1. With pipelines the same holds even more.
# - *Stage 3* needs tokens, as derived above. With few tokens on each GPU or a slow network, take hybrid sharding, or leave the weights whole.
# - **Offload** is for few GPUs. With n ranks the states are $12\Psi/n$ bytes, and from some n on they simply fit.
# - *None of them* shrinks activations or the work of a GPU. A layer that is too large for one GPU needs [Tensor parallel](lesson:tensor).
#
# ## On real processes
#
# The library's three stages once more, in three processes of this machine, against the serial run.

# %%
from minidist.comm import launch


def in_full_precision(comm, model, optimizer_class, stage):
    if stage == 3:
        model = FullySharded(model, comm, blocks=nn.Linear)
        return model, optimizer_class(model.parameters()).step
    return model, ShardedOptimizer(model.parameters(), optimizer_class, comm, stage).step


def three_stages(comm):
    return [train(comm, partial(in_full_precision, stage=stage)) for stage in (1, 2, 3)]


serial = World(1).run(train, data_parallel)[0]
results = launch(three_stages, 3)
rows = []
for index, name in enumerate(STAGES[1:]):
    largest = max(float((found[index] - serial).abs().max()) for found in results)
    rows.append([name, "yes" if largest < 1e-12 else "no"])
study.table(rows, ["three processes", "as the serial run, within 1e-12"])

# %% [markdown]
# On a cluster, [examples/train_gpt.py](file:examples/train_gpt.py) trains a GPT with any of them. `--zero 3` is stage 3, and `--replicas 2` makes it hybrid, with as many replicas as there are nodes:
#
# ```
# torchrun --nproc-per-node 4 examples/train_gpt.py --dp 4 --zero 3
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_gpt.py --dp 16 --zero 3 --replicas 2
# ```
#
# ## Takeaways
#
# - Adam in mixed precision keeps 16 bytes for each parameter, and 12 of them are used in the step alone.
# - Stage 1 keeps $4\Psi + 12\Psi/n$ bytes. It is an all-reduce with the step in the middle, and sends nothing more.
# - Stage 2 keeps $2\Psi + 14\Psi/n$. Each gradient goes to its owner during the backward, and is freed.
# - Stage 3 keeps $16\Psi/n$: gather, use, free, in forward and backward. It sends $3\Psi$ for $2\Psi$.
# - Gathers hide if a micro-batch has $T \ge F/b$ tokens on each GPU, whatever the model.
# - Hybrid sharding gathers inside the node, and sends only $2\Psi/s$ between nodes.
# - Buffers do not shrink with n: on a small model they eat what ZeRO saves.
# - A wrong ZeRO gives right results. Count bytes: those that are held, and those that are sent.
# - Offload puts states and step on the host. It wants large batches; delayed, it is one update late.
#
# ## Further reading
#
# - paper:rajbhandari2020 Sections 5 and 7.
# - paper:ren2021 Sections 3 to 6.
# - paper:zhao2023 Sections 3 and 4, with hybrid sharding.
