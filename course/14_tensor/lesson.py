# %% [markdown]
# # 14 · Tensor parallel
#
# One layer of GPT-3, 1.8 billion weights, reads 2,048 tokens. Forward and backward take 39.4 ms on one H100.
# Split over the 8 GPUs of a node they take 7.3 ms. Now you get a second node.
# **How many ms does the layer take on 16 GPUs?**

# %%
guess = 4.0  # ms: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# A network of two layers: the first makes six numbers, 1 to 6. They are squared. The second adds them up: 91.
# Give each rank two *outputs* of the first layer. Squares need no neighbour. Then give it, of the second layer, just
# the two *inputs* that it has. What is missing at the end is one sum.

# %%
from functools import partial

import torch
import torch.nn.functional as F
from IPython.display import display

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import Cluster, World, launch
from minidist.models import TransformerLayer, seeded_

made = [torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([5, 6])]
squared = [x**2 for x in made]
whole = World(3).run(
    lambda comm, squared: all_reduce_(comm, squared[comm.rank].sum()[None]), squared
)
squares = [[f"{k}²" for k in x] for x in made]
steps = {
    "layer 1": made,
    "squared": squares,
    "layer 2": [["+".join(x)] for x in squares],
    "all-reduce": whole,
}
study.holdings(
    steps,
    owner=lambda word: (0, 1, 2) if word == "91" else (int(word[0]) - 1) // 2,
    title="Two layers, one sum",
)

# %% [markdown]
# And if the *first* layer is a sum? Let it add up the six numbers, and square the result: $21^2 = 441$. A rank with two
# inputs has a part of the sum: 3, 7 or 11. It must not square that.

# %%
parts = torch.stack([x.sum() for x in made])
study.bars(
    {
        "square the parts, then add up": int((parts**2).sum()),
        "add up, then square": int(parts.sum() ** 2),
    },
    target=441,
    note="serial",
    title="A sum must be whole before anything that is not linear",
)

# %% [markdown]
# ## Step 1: two ways to split a matrix
#
# A linear layer is $Y = XA^T$. Cut A by its outputs (columns of $A^T$): each rank has all of X, and makes some columns
# of Y. Cut it by its inputs (rows of $A^T$): each rank reads some columns of X, and has one summand of Y.


# %%
def by_outputs(comm, x, weight):
    return F.linear(x, weight.chunk(comm.size)[comm.rank])  # (B, outputs/n)


def by_inputs(comm, x, weight):
    n, r = comm.size, comm.rank
    return F.linear(x.chunk(n, -1)[r], weight.chunk(n, 1)[r])  # (B, outputs), a summand


draw = partial(torch.randn, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
x, weight = draw(4, 6), draw(9, 6)
assert torch.allclose(torch.cat(list(World(3).run(by_outputs, x, weight)), 1), F.linear(x, weight))
assert torch.allclose(sum(World(3).run(by_inputs, x, weight)), F.linear(x, weight))

# %% [markdown]
# ## Step 2: an MLP
#
# H inputs, 4H features, GELU, H outputs. First by outputs, then by inputs: as on paper. Or both by inputs:
# then the features are partial, and must be summed *before* GELU. (Both by outputs ends in the same place: gather the
# features before the second layer.)


# %%
def columns_first(comm, x, fc, proj):
    hidden = F.gelu(by_outputs(comm, x, fc))  # (B, 4H/n)
    return all_reduce_(comm, F.linear(hidden, proj.chunk(comm.size, 1)[comm.rank]))  # (B, H)


def rows_first(comm, x, fc, proj, before_gelu=True):
    hidden = by_inputs(comm, x, fc)  # (B, 4H), a summand
    hidden = F.gelu(all_reduce_(comm, hidden) if before_gelu else hidden)
    return all_reduce_(comm, by_inputs(comm, hidden, proj))


# %%
x = draw(32, 24)
fc = draw(96, 24) / 5
proj = draw(24, 96) / 10
serial = F.linear(F.gelu(F.linear(x, fc)), proj)
ways = {
    "columns first": columns_first,
    "rows first": rows_first,
    "rows first, no sum before GELU": partial(rows_first, before_gelu=False),
}
rows = []
for name, way in ways.items():
    found = World(4).run(way, x, fc, proj)
    error = float((found[0] - serial).norm() / serial.norm())
    off = "below 1e-12" if error < 1e-12 else f"{error:.0%}"
    rows.append((name, off, found.trace.messages(0), found.trace.bytes_sent(0)))
assert rows[1][3] == 5 * rows[0][3] and "%" in rows[2][1]
study.table(rows, ["forward on 4 ranks", "off by", "messages of a rank", "bytes of a rank"])

# %% [markdown]
# The output has B·H numbers, the features have 4·B·H. So rows first sends 1 + 4 times as much. Columns first it is.
#
# ## Step 3: backward
#
# x is whole, and every rank uses it. Autograd sees one rank, and no message. Each rank computes what *its* features say
# of x. The gradient of x is the sum of what all say. So before a split layer stands an operator that does nothing
# forward, and all-reduces backward. Megatron calls it f. After the layer stands g: an all-reduce forward. Backward?
# Its input is a summand, and a sum hands its gradient to every summand as it is: nothing.


# %%
class Copy(torch.autograd.Function):  # f
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None


# %%
class Reduce(torch.autograd.Function):  # g
    @staticmethod
    def forward(ctx, x, comm, again=False):
        ctx.comm, ctx.again = comm, again
        return all_reduce_(comm, x.clone())

    @staticmethod
    def backward(ctx, grad):  # again: a common mistake
        return all_reduce_(ctx.comm, grad.clone()) if ctx.again else grad, None, None


# %% [markdown]
# As matrices, on two ranks: f is $\binom{I}{I}$, g is $(I\ I)$. Each is the other's transpose, and a backward is a
# transpose. They are **conjugate**: f's backward is g's forward, g's backward is f's forward.
#
# Which gradient is wrong without f? Which, if g sums backward, too? Guess before you run.


# %%
def gradients(comm, x, fc, proj, f=True, g="right"):
    x, fc, proj = (t.clone().requires_grad_() for t in (x, fc, proj))
    hidden = F.gelu(by_outputs(comm, Copy.apply(x, comm) if f else x, fc))
    partial_sum = F.linear(hidden, proj.chunk(comm.size, 1)[comm.rank])
    Reduce.apply(partial_sum, comm, g == "sums backward").square().sum().backward()
    # each rank has a part, zeros elsewhere
    return [x.grad, all_reduce_(comm, fc.grad), all_reduce_(comm, proj.grad)]


right, rows = World(1).run(gradients, x, fc, proj)[0], []
cases = {"f and g": {}, "no f": {"f": False}, "g sums backward, too": {"g": "sums backward"}}
for name, kwargs in cases.items():
    found = World(4).run(gradients, x, fc, proj, **kwargs)[0]
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, right)]
    rows.append((name, *("below 1e-12" if e < 1e-12 else f"{e:.0%}" for e in errors)))
assert rows[0][1:] == ("below 1e-12",) * 3 and "%" not in "".join(rows[1][2:])
study.table(
    rows, ["4 ranks", "x", "fc", "proj"], title="How far are the gradients from the serial ones?"
)

# %% [markdown]
# 300 % off is four times too large: n times. And without f the layer's own gradients are right. The mistake
# shows *before* it. Here are six MLPs, one after the other, each with x + mlp(x), all without f:


# %%
def deep(comm, x, fc, proj, f, layers=6):
    weights = [fc.clone().requires_grad_() for _ in range(layers)]
    for w in weights:
        hidden = F.gelu(by_outputs(comm, Copy.apply(x, comm) if f else x, w))
        x = x + Reduce.apply(F.linear(hidden, proj.chunk(comm.size, 1)[comm.rank]), comm)
    x.square().sum().backward()
    return [all_reduce_(comm, w.grad) for w in weights]


with_f, without = (World(4).run(deep, x, fc, proj, f)[0] for f in (True, False))
off = [float((a - b).norm() / b.norm()) for a, b in zip(without, with_f)]
assert off[-1] < 1e-12 < off[0]
study.bars(
    {f"layer {i}": round(100 * e, 1) for i, e in enumerate(off, 1)},
    unit="%",
    title="Without f: how far off is each layer's gradient?",
)

# %% [markdown]
# The last layer's gradient is right, the first one's is hardly its own. And nothing complains.
#
# ## The bias, once
#
# The second layer has a bias. Add it on every rank, and it is there n times. "So divide it by n": the output is right
# then. Is the gradient?


# %%
def with_bias(comm, bias, way):
    bias, zeros = bias.clone().requires_grad_(), torch.zeros_like(bias)
    share = {
        "on every rank": bias,
        "divided by n": bias / comm.size,
        "on rank 0": bias * (comm.rank == 0),
        "once, after g": zeros,
    }[way]
    y = Reduce.apply(zeros + share, comm) + (bias if way == "once, after g" else 0)
    y.sum().backward()
    return y[0].item(), bias.grad[0].item()


rows = []
for way in ["on every rank", "divided by n", "on rank 0", "once, after g"]:
    found = World(4).run(with_bias, torch.ones(3), way)
    rows.append((way, found[0][0], *(grad for _, grad in found)))
study.table(
    rows,
    ["a bias of 1", "output", *(f"gradient, rank {r}" for r in range(4))],
    title="Both should be 1",
)

# %% [markdown]
# Added after g, it is used alike on every rank, from a gradient that is whole: all copies take the same right step.
#
# ## Attention by heads
#
# Heads do not talk to each other. So deal them out: each rank has some heads' queries, keys and values (a cut by
# outputs), attends with those, and multiplies its part of the output projection (a cut by inputs). One g, one f.
# One trap: q, k and v come from one fused matrix. GPT-2 keeps all of Q first, then all of K, then all of V.

# %%
names = [f"{letter}{head}" for letter in "qkv" for head in range(6)]
cut = [names[6 * r : 6 * r + 6] for r in range(3)]
heads = [[name for name in names if int(name[1]) // 2 == r] for r in range(3)]
study.holdings(
    {"3H rows in n pieces": cut, "by heads": heads},
    owner=lambda word: int(word[1]) // 2,
    title="GPT-2's fused weight, 6 heads on 3 ranks",
)

# %% [markdown]
# In the first cut no rank has a query with its key. `minidist.models` lays the rows of one head together, q k v, q k v,
# and any cut between heads is right. In the assignment you take GPT-2's apart.
#
# ## The layer, from the library
#
# The model knows nothing of ranks. `tensor_parallel_` takes a serial `TransformerLayer`, on the device `"meta"`, where it
# has shapes and no numbers, and puts split matrices into it. The parameters keep their serial names, and get the values
# of this rank's parts. `shard` takes a serial state dict apart, `cuts` says how. Five heads on four ranks? Some ranks
# have more.
# The oracle is the serial module. We compare the output and every gradient, for n = 2, 3 and 4.

# %%
from minidist.parallel.tensor import gather_from, scatter_to, shard, tensor_parallel_
from minidist.split import cuts


def split_layer(comm, hidden, heads, sequence=False, regather=False, **options):
    serial = TransformerLayer(hidden, heads, device="meta", **options)
    return tensor_parallel_(serial, comm, sequence, regather)


def step(comm, state, x, heads, sequence=False):
    layer = split_layer(comm, x.shape[-1], heads, sequence, dtype=x.dtype)
    layer.load_state_dict(shard(state, layer, comm))
    x = x.clone().requires_grad_()
    y = layer(scatter_to(x, comm, 1) if sequence else x)
    y = gather_from(y, comm, 1) if sequence else y
    y.square().sum().backward()
    grads, how = {name: p.grad for name, p in layer.named_parameters()}, cuts(layer)
    return {"output": y.detach(), "x": x.grad} | {
        k: gather_from(g, comm, *how[k]) if k in how else g for k, g in grads.items()
    }


# %%
serial_layer, x = seeded_(TransformerLayer(20, 5, dtype=torch.float64), 0), draw(2, 12, 20)
x_serial = x.clone().requires_grad_()
y = serial_layer(x_serial)
y.square().sum().backward()
oracle = {"output": y.detach(), "x": x_serial.grad} | {
    k: p.grad for k, p in serial_layer.named_parameters()
}


def worst(oracle, found):
    return {k: max(float((rank[k] - g).abs().max()) for rank in found) for k, g in oracle.items()}


state = serial_layer.state_dict()
errors = {n: worst(oracle, World(n).run(step, state, x, 5)) for n in (2, 3, 4)}
assert max(e for some in errors.values() for e in some.values()) < 1e-12
rows = [(k, str(tuple(g.shape)), *("below 1e-12" for _ in errors)) for k, g in oracle.items()]
study.table(
    rows,
    ["", "whole shape", *(f"{n} ranks" for n in errors)],
    title="Difference from the serial layer",
)

# %% [markdown]
# ## Random numbers
#
# Dropout sets random elements to zero. On data that all ranks hold, all must drop the *same*. On data that is split,
# each must drop *others*. Two mistakes are possible:

# %%
from minidist.parallel.tensor import seed_group_, split_random


def masks(comm):
    seed_group_(comm, comm.rank)  # wrong for whole data: each rank its own
    own = torch.rand(6) > 0.4
    seed_group_(comm, 7)
    same = torch.rand(6) > 0.4
    with split_random(comm):
        split = torch.rand(6) > 0.4
    return [list(map(int, mask)) for mask in (own, same, split)]


own, same, split = zip(*World(3).run(masks))
study.holdings(
    {"whole, wrong": own, "whole, right": same, "split, wrong": same, "split, right": split},
    owner=lambda word: 1 if word == "1" else (),
    title="Six elements on each rank: 1 stays, 0 is dropped",
)

# %% [markdown]
# Split data with the same numbers: every rank's heads lose the same elements. Nothing fails; there is just less chance
# than you think. Whole data with different numbers: the copies part. How fast? Eight steps of SGD, dropout 0.1.
# We watch one parameter that should be the same everywhere, the scale of a norm.


# %%
def copies(comm, seeds, steps=8):
    seed_group_(comm, 1 if seeds == "same" else 100 + comm.rank)
    layer, found = split_layer(comm, 20, 5, dropout=0.1, dtype=torch.float64), []
    data = torch.Generator().manual_seed(3)
    for _ in range(steps):
        layer(
            torch.randn(2, 12, 20, generator=data, dtype=torch.float64)
        ).square().mean().backward()
        with torch.no_grad():
            for p in layer.parameters():
                p -= 0.1 * p.grad
        layer.zero_grad()
        found.append(layer.norm_2.weight.detach().clone())
    return found


# %%
gaps = {}
for seeds in ("different", "same"):
    ranks = World(3).run(copies, seeds)
    gaps[f"{seeds} numbers"] = (
        range(1, 9),
        [max(1e-12, float((a - b).abs().max())) for a, b in zip(*ranks[:2])],
    )
assert gaps["same numbers"][1] == [1e-12] * 8 and gaps["different numbers"][1][0] > 1e-6
study.curves(
    gaps,
    logy=True,
    xlabel="step",
    ylabel="largest difference of norm_2.weight, ranks 0 and 1",
    title="Copies that should be equal (below 1e-12 is drawn as 1e-12)",
)

# %% [markdown]
# `seed_group_` gives all ranks of a group the same numbers. `split_random` gives each its own, and afterwards everyone
# goes on as if one number had been drawn. Forget the first, and dropout says so:


# %%
def unseeded(comm):
    return split_layer(comm, 20, 5, dropout=0.1)(torch.ones(2, 12, 20))


try:
    World(2).run(unseeded)
except ValueError as why:
    print(why)

# %% [markdown]
# ## Sequence parallel
#
# Norms and dropout are still done n times, and what they keep for backward is held n times. But they work token by
# token. So let each rank keep a part of the **sequence** between the blocks. Before a block all-gather, after it
# reduce-scatter: those are the two halves of an all-reduce. Not a byte more.
#
# Here is GPT-3's layer on 4 GPUs of a node. We need no GPU: tensors on the device `"meta"` have a shape and no numbers,
# and the World charges each operation the time that it would take on an H100, which reaches a part of what its data
# sheet says.

# %%
CLUSTER = Cluster.dgx_h100(nodes=2)


def gpt3_layer(comm, algorithm="ring", batch=1, sequence=False):
    comm.algorithm = algorithm
    layer = split_layer(comm, 12288, 96, sequence, dtype=torch.bfloat16)
    x = torch.empty(
        batch, 2048 // (comm.size if sequence else 1), 12288, dtype=torch.bfloat16, device="meta"
    )
    layer(x.requires_grad_()).sum().backward()


def run(n, **kwargs):
    """The trace of a layer's forward and backward, and the ms that they take."""
    world = World(n, cluster=CLUSTER, device="meta")
    world.run(gpt3_layer, **kwargs)
    return world.trace, 1e3 * world.time


# %%
runs = {
    name: run(4, sequence=sequence)
    for name, sequence in {"f and g": False, "sequence parallel": True}.items()
}
assert abs(runs["f and g"][1] - runs["sequence parallel"][1]) < 0.4
study.timeline(
    {name: trace for name, (trace, _) in runs.items()},
    ranks=[0, 1],
    memory=False,
    title="A layer of GPT-3 on 4 GPUs: the same bytes, cut otherwise",
)

# %% [markdown]
# (mm is a matrix product; where a row is empty, its GPU waits.) Above four bursts of messages, below eight of half the
# length, and in backward short ones for gradients of biases and norms. Computing takes a little less below: the norms
# see a quarter of the tokens.
#
# ## Predict, then run
#
# Traffic first. N are the bytes of (B, T, H). A layer has two blocks, each with one all-reduce forward and one
# backward, so a rank sends $4 \cdot 2\frac{n-1}{n}N$. An MLP alone sends half of that. Rows first it is
# $\frac{15}{4}$ of the MLP's: all-reduces of $(4 + 1)N$ forward, and half of that backward, where an all-gather is
# enough. To count a layer, we count two in a row, less one.


# %%
def stack(comm, count, **kwargs):
    layers = [split_layer(comm, 96, 12, **kwargs) for _ in range(count)]
    x = torch.empty(8, 240 // (comm.size if kwargs else 1), 96, device="meta", requires_grad=True)
    for layer in layers:
        x = layer(x)
    x.sum().backward()


def metered(n, *args, **kwargs):
    world = World(n, cluster=CLUSTER, device="meta")
    world.run(stack, *args, **kwargs)
    return world.trace


# %%
from minidist.models import MLP
from minidist.parallel.tensor import RowFirstMLP


def columns_first_mlp(hidden, comm):
    return tensor_parallel_(MLP(hidden, device="meta"), comm)


def blocks(comm, block):
    x = torch.empty(8, 240, 96, device="meta", requires_grad=True)
    block(96, comm)(x).sum().backward()


def sent(n, block):
    world = World(n, device="meta")
    world.run(blocks, block)
    return world.trace.bytes_sent(0)


N, ns = 8 * 240 * 96 * 4, [1, 2, 4]
traces = {
    (n, way): [metered(n, count, **kwargs) for count in (1, 2)]
    for n in ns
    for way, kwargs in {
        "f and g": {},
        "sequence": {"sequence": True},
        "gather again": {"sequence": True, "regather": True},
    }.items()
}

# %%
lines = {
    "layer": [8 * (n - 1) / n * N for n in ns],
    "MLP, columns first": [4 * (n - 1) / n * N for n in ns],
    "MLP, rows first": [15 * (n - 1) / n * N for n in ns],
}
more = {
    way: [two.bytes_sent(0) - one.bytes_sent(0) for one, two in (traces[n, way] for n in ns)]
    for way in ("f and g", "sequence")
}
dots = {"layer": more["f and g"], "layer, sequence": more["sequence"]}
dots |= {
    "MLP, columns first": [sent(n, columns_first_mlp) for n in ns],
    "MLP, rows first": [sent(n, RowFirstMLP) for n in ns],
}
assert all(abs(a - b) <= 0.002 * b for name in lines for a, b in zip(dots[name], lines[name]))
assert all(abs(a - b) <= 0.01 * a for a, b in zip(lines["layer"], dots["layer, sequence"]))
study.curves(
    {k: (ns, v) for k, v in lines.items()},
    points={k: (ns, v) for k, v in dots.items()},
    yunit="B",
    xlabel="ranks, n",
    ylabel="bytes that rank 0 sends",
    title="Predicted lines, counted points",
)

# %% [markdown]
# Nothing in it depends on how many weights there are: wide layers pay less for each FLOP. (Sequence parallel sends H
# or 2H numbers more, for gradients of biases and norms. Do you see why? Exercise 8.)
#
# Now memory. Without dropout a layer keeps 16 N for backward: 4 around the blocks (inputs and outputs of two norms),
# 12 inside (q, k, v and what attention gives, then 4 before GELU and 4 after it). Split the inside by n. Then, with
# sequence parallel, the norms' inputs and outputs; but a block's matrices still read a gathered input, kept whole: 2 N.
# Gather it once *more* in backward, and all is divided.

# %%
whole = {"f and g": 4, "sequence": 2, "gather again": 0}  # of 16: what is not divided
lines = {way: [k + (16 - k) / n for n in ns] for way, k in whole.items()}
kept = {
    way: [
        (two.memory[0].at_peak["activations"] - one.memory[0].at_peak["activations"]) / N
        for one, two in (traces[n, way] for n in ns)
    ]
    for way in lines
}
assert all(abs(a - b) <= 0.2 for way in lines for a, b in zip(kept[way], lines[way]))
more["gather again"] = [
    two.bytes_sent(0) - one.bytes_sent(0) for one, two in (traces[n, "gather again"] for n in ns)
]
assert all(abs(a - 1.25 * b) <= 0.01 * a for a, b in zip(more["gather again"], more["sequence"]))
study.curves(
    {k: (ns, v) for k, v in lines.items()},
    points={k: (ns, v) for k, v in kept.items()},
    xlabel="ranks, n",
    ylabel="activations that a layer keeps, in units of N",
    title="Predicted lines, metered points",
)

# %% [markdown]
# (The points lie a little higher: means, deviations, and the attention's sums.) The third way sends a quarter more,
# and divides all 16 N.
#
# ## When not to use it
#
# Back to GPT-3's layer: H = 12,288, 96 heads, bf16, 2,048 tokens, on two DGX H100. Its GPUs wait for four all-reduces
# of 50 MB. Predict their time: $4\,(2(n-1)\alpha + 2\frac{n-1}{n}N\beta)$, with α and β of the ring's slowest link.

# %% tags=["exact-numbers"]
ns = [1, 2, 4, 8, 16]
traces = {n: run(n) for n in ns}
times = [traces[n][1] for n in ns]
assert 39.35 < times[0] < 39.45 and 7.2 < times[3] < 7.3 and times[4] > 1.8 * times[3]
CLUSTER


# %%
def reduces(n):
    alpha, beta = CLUSTER.link(0, 1) if n <= 8 else CLUSTER.link(0, 8)
    return 4e3 * (2 * (n - 1) * alpha + 2 * (n - 1) / n * 2048 * 12288 * 2 * beta)


lines = {
    "computing / n": [times[0] / n for n in ns],
    "and four all-reduces": [times[0] / n + reduces(n) for n in ns],
}
assert all(0.8 < line / t < 1.01 for line, t in zip(lines["and four all-reduces"], times))
study.curves(
    {name: (ns, line) for name, line in lines.items()},
    points={"run": (ns, times)},
    yunit="ms",
    xlabel="GPUs, 8 in a node",
    ylabel="forward and backward of a layer",
    title="GPT-3's layer: the ninth GPU is in another house",
)

# %%
study.timeline(
    {f"{n} GPUs": traces[n][0] for n in (8, 16)},
    ranks=[0, 7],
    memory=False,
    title="One node, and two",
)

# %%
study.bars(
    {
        "your guess": guess,
        "8 GPUs, one node": round(times[3], 1),
        "16 GPUs, two nodes": round(times[4], 1),
    },
    target=round(times[3] / 2, 1),
    note="half of 8 GPUs' time:",
    unit="ms",
    title="A layer of GPT-3",
)

# %% [markdown]
# **13.4 ms**: twice the GPUs, and 1.8 times as slow. (The points lie above the line: norms, sums and the adding of
# chunks are not divided.) A ring through both nodes waits for its two slow links at every
# step. The hierarchical all-reduce of lesson 03 sends only an eighth over each NIC. Is it worth it then?

# %%
three, rows = ((8, "ring"), (16, "ring"), (16, "auto")), []
found = {
    1: (times[3], times[4], run(16, algorithm="auto")[1]),
    8: [run(n, algorithm=algorithm, batch=8)[1] for n, algorithm in three],
}
for batch, (eight, rings, best) in found.items():
    rows.append((batch, *(f"{t:.1f}" for t in (eight, rings, best)), f"{eight / best:.2f}"))
    assert best < eight < rings and 1.3 < eight / best < 1.4
study.table(
    rows,
    ["sequences", "8, ring, ms", "16, ring, ms", "16, hierarchical, ms", "times as fast as 8"],
    title="Two nodes, with the best all-reduce there is",
)

# %% [markdown]
# Between 1.3 and 1.4 times as fast, for twice the GPUs. Messages of tensor parallelism cannot hide: the next product
# needs them. So: **inside a node, at most.** Across nodes put what talks less: a pipeline (lesson 16) sends N bytes
# once for many layers.
#
# ## The library's version
#
# Our `Copy` and `Reduce` are `copy_to` and `reduce_from`; they take lists, too, and send a list in one all-reduce. All
# such operators are one function, `conjugate`: it applies one map in forward, and its transpose in backward. That
# backward is a `conjugate` again, with the two exchanged, so that gradients have gradients, too.

# %%
from minidist.parallel.tensor import Conjugate, copy_to, reduce_from

display(study.source(Conjugate, docstring=False), study.source(copy_to, docstring=False))
study.source(reduce_from, docstring=False)

# %% [markdown]
# The two linear layers:

# %%
from minidist.parallel.tensor import ColumnLinear, RowLinear

display(study.source(ColumnLinear.forward), study.source(RowLinear.forward))

# %% [markdown]
# Why does the bias need an f in one case only? With `sequence`, each rank adds it to *its* tokens. And this is what
# happens to a serial model: its blocks keep their own forward, and get other linear layers, dropouts and norms. `seed`
# and `name` give each weight the serial model's initial value: a rank draws the whole, a block of rows at a time, and
# cuts its part out.

# %%
from minidist.parallel.tensor import split_

display(study.source(MLP.forward, docstring=False))
study.source(split_, docstring=False)

# %% [markdown]
# ## On processes, and on a cluster
#
# The same `step` in four processes, sequence parallel: equal to the serial layer. Rank 3 sends a little less: of five
# heads rank 0 has two, and in a ring of all-gathers rank 3, its left neighbour, is the one who never passes rank 0's
# part on.

# %%
real = launch(step, 4, state, x, 5, sequence=True)
assert max(worst(oracle, real).values()) < 1e-12
rows = [(f"rank {r}", real.trace.messages(r), real.trace.bytes_sent(r)) for r in range(4)]
study.table(
    rows,
    ["", "messages sent", "bytes sent"],
    title="One step on four processes, and the gradients gathered",
)

# %% [markdown]
# In a script, `step(from_env(), …)` does it under torchrun. There is one that trains a small GPT, its layers and its
# vocabulary split, and prints the losses of the serial run:
#
# ```
# torchrun --nproc-per-node 4 examples/train_tensor.py
# ```
#
# ## Takeaways
#
# - First by outputs, then by inputs: one all-reduce forward, one backward. A sum must be whole before what is not
#   linear.
# - f before, g after. Each is the other's transpose. Without f, every layer before this one gets a wrong gradient.
# - What is added to whole data, is added once. Attention splits by heads; look how q, k and v lie in memory.
# - Dropout: same numbers on whole data, different ones on split data.
# - Sequence parallel: the same bytes, norms and dropout divided by n. Gather again, and all activations are.
# - $8\frac{n-1}{n}\,B\,T\,H$ numbers a rank and layer. They cannot hide. Stay in the node.
#
# ## Further reading
#
# - paper:shoeybi2019 Section 3: columns, rows, f and g.
# - paper:korthikanti2023 Section 4.2: sequence parallelism, and the extra all-gather.
# - paper:narayanan2021 Section 3: tensor parallelism up to the size of a node, pipelines between nodes.
