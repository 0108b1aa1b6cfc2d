# %% [markdown]
# # 12 · Operators and graphs
#
# GPT-2 has 124 million weights in 148 tensors. Backward is done, the gradients are there, and AdamW takes its step. An
# H100 does 67 TFLOP/s in fp32, and reads or writes 3.35 TB/s. **How many milliseconds does the step take?** And how
# few could it be?

# %%
# milliseconds: PyTorch's plain loop, and the best you can imagine. Change them
guess_loop, guess_best = 1.0, 1.0

# %% [markdown]
# ## On paper: 6 numbers
#
# PyTorch runs one **operator** after the other. On a GPU each is a kernel, and starting it is a **launch**. Three
# numbers describe a device: how long a launch takes, how many bytes a second its memory moves, how many FLOPs a second
# it does. Three describe an operator: launches, bytes, FLOPs. The **roofline** makes seconds of the six:
#
# > time = launches · launch + max(bytes / bandwidth, FLOPs / peak)
#
# A real H100 reaches a part of its data sheet: its memory about 81 %, its products, in a long training run, about 64 %.
# This lesson draws the roof that the data sheet promises, so its times are the shortest there can be.

# %%
import math
from functools import partial

import torch
import torch.nn.functional as F

from IPython.display import display
from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import cluster
from minidist.models import GPT
from minidist.train import fuse
from minidist.train.flat_optim import FlatAdamW

# %%
H100 = cluster.H100.ideal  # the device that reaches all of its data sheet
launch = H100.launch
bandwidth = H100.bandwidth
peak = H100.peak(torch.float32)


def seconds(launches, nbytes, flops):
    return launches * launch + max(nbytes / bandwidth, flops / peak)


n = 4096
rows = [
    ("a + b, of n numbers", 1, 12 * n, 0),
    ("A + B, of n × n", 1, 12 * n**2, 0),
    ("A @ B, of n × n", 1, 12 * n**2, 2 * n**3),
]
study.table(
    [(*row, f"{1e6 * seconds(*row[1:]):,.1f}") for row in rows],
    ["n = 4,096, fp32", "launches", "bytes", "FLOPs", "µs"],
)

# %% [markdown]
# Three operators, three walls. The first is bound by its **launch**, the second by **memory**, the third by
# **compute**. (A launch of 5 µs is an assumption: eager PyTorch's, mostly the work of Python and C++ on the CPU.)
#
# FLOPs per byte are an operator's **arithmetic intensity**. At peak / bandwidth = 20 FLOPs a byte the two arms of the
# `max` are equal: the *ridge*. A product of n × n has 2n³/12n² = n/6. **Predict:** from which n on is it bound by
# compute?


# %%
def cost(fn, *shapes, **like):
    return study.measure(fn, *(torch.empty(*s, device="meta", **like) for s in shapes), device=H100)


sizes = [32, 128, 512, 2048, 8192]
tallies = {f"n = {n}": cost(torch.mm, (n, n), (n, n)).total for n in sizes}
assert [study.bound(t, H100) for t in tallies.values()] == ["launch"] * 3 + ["compute"] * 2
assert 6 * peak / bandwidth == 120
study.roof(tallies, H100, title="Products of n × n matrices: only large ones reach the roof")

# %% [markdown]
# From n = 120 on, by the ridge. But the points of 128 and 512 lie below the roof: their launch is longer than their
# work. (`study.measure` runs a function, and counts calls, bytes and FLOPs of its operators. On `"meta"` tensors have
# no numbers, so any size is free. The time is the roofline's.)
#
# ## When does a launch matter?
#
# An addition of N numbers moves 12N bytes. **Predict** the N at which it takes as long as its launch.

# %%
sizes = [10**k for k in range(3, 10)]
edge = launch * bandwidth / 12
measured = [cost(torch.add, (N,), (N,)).time for N in sizes]
print(f"as long as its launch: {edge:,.0f} numbers")
study.curves(
    {
        "launch": (sizes, [launch] * 7),
        "bytes": (sizes, [12 * N / bandwidth for N in sizes]),
        "both": (sizes, [seconds(1, 12 * N, 0) for N in sizes]),
    },
    points={"both": (sizes, measured)},
    logx=True,
    logy=True,
    yunit="s",
    xlabel="numbers",
    ylabel="time",
    title="An addition on an H100",
)

# %% [markdown]
# 1.4 million numbers. Far below, size costs nothing: a hundred thousand numbers take as long as a thousand. Most of
# GPT-2's 148 tensors are smaller:

# %%
model = GPT(12, 768, 12, 50257, 1024, device="meta")
params = list(model.parameters())
small = sum(p.numel() < edge for p in params)
assert (small, len(params)) == (111, 148)
print(f"{small} of {len(params)} tensors are smaller")

# %% [markdown]
# ## Step 1: three numbers in one pass
#
# Two cures: fewer launches, and fewer bytes. One operator that does the work of several has both: it starts once, and
# uses at once what it has at hand (**locality**). This is **fusion**. The smallest one: `a + b + c` is two launches,
# and the first sum goes to memory and comes back. **Predict** for both: launches, and bytes in units of N numbers.


# %%
def row(name, fn, *shapes):
    profile = cost(fn, *shapes)
    unit = 4 * math.prod(shapes[0])
    given = sum(4 * math.prod(s) for s in shapes)
    return (
        name,
        profile.calls,
        profile.bytes_moved / unit,
        (profile.peak - given) / unit,
        f"{1e6 * profile.time:.1f}",
    )


HEAD = ["", "launches", "numbers moved / N", "new memory / N", "µs"]
rows = [
    row("a + b + c", lambda a, b, c: a + b + c, *[(1 << 22,)] * 3),
    row("add3", fuse.add3, *[(1 << 22,)] * 3),
]
assert [r[1:4] for r in rows] == [(2, 6, 2), (1, 4, 1)]
study.table(rows, HEAD, title="N = 4,194,304")

# %% [markdown]
# One launch less, a third of the bytes less, one temporary less. A residual block needs it: x + attention + MLP.
#
# ## Step 2: bias and GELU, with their own backward
#
# Written out, GELU is z · (1 + erf(z/√2)) / 2, where z = x + b. Autograd keeps what each step needs.


# %%
def written(x, b):
    z = x + b
    return z * (torch.erf(z * 0.5**0.5) + 1) * 0.5


def both(fn):
    return lambda dy, x, b: torch.autograd.grad(fn(x, b), (x, b), dy)


def phases(name, fn, rows=4096, H=3072):
    p = cost(both(fn), (rows, H), (rows, H), (H,), requires_grad=True)
    work = [
        v
        for phase in ("forward", "backward")
        for v in (p.by_phase[phase].calls, round(p.by_phase[phase].nbytes / (4 * rows * H), 1))
    ]
    return name, *work, f"{1e6 * p.time:.0f}"


# %% [markdown]
# One backward for all of it knows a formula: dx = dy · (Φ(z) + z·φ(z)). It needs z, and z is x + b: so keep nothing
# but x and b, which are there anyway, and add again. Now tell PyTorch that this is *one* operator, with a backward of
# its own:


# %%
@torch.library.custom_op("lesson::bias_gelu", mutates_args=())
def bias_gelu(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return written(x, b)


@torch.library.custom_op("lesson::bias_gelu_backward", mutates_args=())
def bias_gelu_backward(
    dy: torch.Tensor, x: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    z = x + b
    slope = (1 + torch.erf(z * 0.5**0.5)) / 2 + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return dy * slope, (dy * slope).sum(0)


# %%
# shapes alone: for meta tensors, and for compilers
bias_gelu.register_fake(lambda x, b: torch.empty_like(x))
bias_gelu_backward.register_fake(lambda dy, x, b: (torch.empty_like(x), torch.empty_like(b)))
bias_gelu.register_autograd(
    lambda ctx, dy: bias_gelu_backward(dy, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)

# %% [markdown]
# The oracle, and the count. **Predict** launches and bytes of the fused one: forward, and backward.

# %%
torch.manual_seed(0)
dy, x, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((6, 4), (6, 4), (4,)))
for found, wanted in zip(both(bias_gelu)(dy, x, b), both(lambda x, b: F.gelu(x + b))(dy, x, b)):
    assert (found - wanted).abs().max() < 1e-12
rows = [
    phases("written out", written),
    phases("F.gelu(x + b)", lambda x, b: F.gelu(x + b)),
    phases("fused", bias_gelu),
]
assert [r[1:5] for r in rows[1:]] == [(2, 4, 2, 4), (1, 2, 1, 3)]
study.table(
    rows, ["4,096 × 3,072", "launches forward", "moved / N", "launches backward", "moved / N", "µs"]
)

# %% [markdown]
# The addition that is done twice costs nothing: its numbers are in registers. **In a kernel bound by memory, FLOPs are
# free.** (This counts what a fused kernel *would* move. On your CPU the inside of our operator still runs step by
# step; a compiler makes one loop of it. We come to that. On a GPU such kernels keep two fp16 values in one register,
# and take erf or tanh in fp32.)
#
# ## Step 3: LayerNorm, and all the others
#
# LayerNorm needs a row's mean and variance before the first result. But a row fits on the chip: still one pass. Here
# are the library's operators, forward, beside the same steps written out:

# %%
R, H = 4096, 1024
right = torch.empty(R, dtype=torch.long, device="meta")  # the tokens that should have come
cases = {
    "add3": (fuse.add3_plain, fuse.add3, [(R, H)] * 3),
    "softmax": (fuse.softmax_plain, fuse.softmax, [(R, H)]),
    "bias + GELU": (fuse.bias_gelu_plain, fuse.bias_gelu, [(R, H), (H,)]),
    "LayerNorm": (fuse.layer_norm_plain, fuse.layer_norm, [(R, H), (H,), (H,)]),
    "cross-entropy": (
        lambda x: fuse.cross_entropy_plain(x, right),
        lambda x: fuse.cross_entropy(x, right, reduction="none"),
        [(R, H)],
    ),
}
found = {
    name: [cost(fn, *shapes) for fn in (plain, fused)]
    for name, (plain, fused, shapes) in cases.items()
}
study.table(
    [
        (
            name,
            *(p.calls for p in pair),
            *(round(p.bytes_moved / (4 * R * H), 1) for p in pair),
            f"{pair[0].time / pair[1].time:.1f}",
        )
        for name, pair in found.items()
    ],
    ["4,096 × 1,024", "launches", "fused", "numbers moved / N", "fused", "times as fast, H100"],
)

# %% [markdown]
# ## Step 4: softmax in parts
#
# A row of softmax may be too long for a chip. Safe softmax needs the largest number m first, and then s = Σ exp(x −
# m). Two readings, then a third for the result. **Online softmax** takes m and s together, part by part. Two parts
# merge:
#
# > m = max(m₁, m₂), and s = s₁ · exp(m₁ − m) + s₂ · exp(m₂ − m)
#
# Six numbers, in three parts:


# %%
def merge(one, two):
    (m1, s1), (m2, s2) = one, two
    m = max(m1, m2)
    return m, s1 * math.exp(m1 - m) + s2 * math.exp(m2 - m)


x = [1.0, 3.0, 2.0, 6.0, 5.0, 4.0]
state, rows = (-math.inf, 0.0), []
for i in (0, 2, 4):
    part = merge((x[i], 1.0), (x[i + 1], 1.0))  # one number: it is the largest, and exp(0) = 1
    state = merge(state, part)
    rows.append((str(x[i : i + 2]), *part, *state))
assert abs(state[1] - sum(math.exp(v - 6) for v in x)) < 1e-12
study.table(rows, ["part", "its m", "its s", "m so far", "s so far"])

# %% [markdown]
# Exact, in any order: the sum so far is only *rescaled* when a larger number comes. It is a reduction like all others,
# so ranks can do it, too: lesson 15's vocabulary-parallel loss is this rule between GPUs.
#
# ## Step 5: attention in tiles
#
# softmax(q kᵀ) v has T × T scores. At T = 16,384 that is 1 GiB for one head. But the same trick carries over: the
# *result so far* is a sum too, and can be rescaled. So no scores need to be kept. The naive way first, then the loop
# over tiles of queries and keys:


# %%
def naive(q, k, v):
    return (q @ k.T * q.shape[-1] ** -0.5).softmax(-1) @ v


# %%
def tiled(q, k, v, tile=128):
    out = []
    for qi in (q * q.shape[-1] ** -0.5).split(tile):
        m = qi.new_full((len(qi), 1), -math.inf)
        s = qi.new_zeros(len(qi), 1)
        a = torch.zeros_like(qi)
        for kj, vj in zip(k.split(tile), v.split(tile)):
            scores = qi @ kj.T  # one tile
            peak = torch.maximum(m, scores.amax(-1, keepdim=True))
            p, less = (scores - peak).exp(), (m - peak).exp()
            m = peak
            s = s * less + p.sum(-1, keepdim=True)
            a = a * less + p @ vj
        out.append(a / s)
    return torch.cat(out)


# %% [markdown]
# ## The oracle
#
# It is exact, not an approximation. Forward is yours, above. Backward is the library's: it keeps q, k, v, the result
# and *one number a row*, m + log s, and forms each tile of scores again.

# %%
q, k, v, up = torch.randn(4, 300, 16, dtype=torch.float64)
assert (tiled(q, k, v, 64) - naive(q, k, v)).abs().max() < 1e-12


def gradients(attention):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(attention(*leaves), leaves, up)


apart = [(a - b).abs().max().item() for a, b in zip(gradients(fuse.attention), gradients(naive))]
assert max(apart) < 1e-12
print("dq, dk, dv of the library: those of the naive one, within 1e-12")

# %% [markdown]
# ## Predict the cost, then run
#
# One head, d = 64, fp32, forward and backward. **Predict** the bytes at the peak. Naive: three T × T at once (the
# probabilities, their gradient, that of the scores), and six T × d. Tiles: q, k, v, the result, a gradient of each,
# and one number a row.

# %%
d, lengths = 64, [512, 1024, 2048, 4096, 8192, 16384]


def peak_of(attention, T):
    step = lambda q, k, v, up: torch.autograd.grad(attention(q, k, v), (q, k, v), up)
    return cost(step, *[(T, d)] * 4, requires_grad=True).peak


predicted = {
    "naive": [4 * (3 * T * T + 6 * T * d) for T in lengths],
    "tiles": [4 * (8 * T * d + T) for T in lengths],
}
measured = {
    "naive": [peak_of(naive, T) for T in lengths],
    "tiles": [peak_of(fuse.attention, T) for T in lengths],
}
assert measured == predicted
study.curves(
    {name: (lengths, some) for name, some in predicted.items()},
    points={name: (lengths, some) for name, some in measured.items()},
    logx=True,
    logy=True,
    yunit="B",
    xlabel="T",
    ylabel="peak memory",
    title="Attention, one head: lines predicted, points metered",
)

# %% [markdown]
# To the byte: 3.2 GB against 34 MB. It costs FLOPs, since backward forms the scores again, and saves bytes. The roof
# says why that is a good trade:


# %%
def step_of(attention, T=4096):
    def step(q, k, v, up):
        return torch.autograd.grad(attention(q, k, v), (q, k, v), up)

    return cost(step, *[(16, T, d)] * 4, requires_grad=True, dtype=torch.bfloat16).total


steps = {"written out": step_of(fuse.attention_plain), "tiles": step_of(fuse.attention)}
assert (
    steps["tiles"].flops > steps["written out"].flops
    and 0.5 < steps["tiles"].seconds / steps["written out"].seconds < 0.6
)
study.roof(
    steps,
    H100,
    torch.bfloat16,
    title="Attention in bf16, 16 heads, T = 4,096, forward and backward",
)

# %% [markdown]
# Both are bound by memory. But tiles have twice the FLOPs a byte, and take little more than half the time. (Here
# k and v are read again for each tile of 64 queries. Larger tiles, or a cache that keeps k and v, move the dots to the
# right.)
#
# ## Step 6: the optimizer over one flat buffer
#
# Back to the question. AdamW is eight operators a tensor, and moves 21 numbers for each weight. **Predict** the time
# of the loop: 8 · 148 launches, and the bytes.
#
# All parameters can be views of *one* buffer, their states and gradients too. Then one operator does everything: it
# reads p, m, v and the gradient, and writes p, m, v. That is 7N.
#
# Who brings the gradients there? Autograd makes each wherever there is memory, so one more launch copies all of them at
# the step, 2N. Or they never leave: `zero_grad(set_to_none=False)` makes them views of a buffer of zeros, and autograd
# adds to what is there.


# %%
def adamw(make, brought=False):
    params = [torch.nn.Parameter(torch.empty_like(p)) for p in model.parameters()]
    optimizer = make(params)
    for _ in range(2):  # the first step makes the states
        for p in params:
            p.grad = torch.empty_like(p)
        if brought:
            optimizer.zero_grad(set_to_none=False)
        profile = study.measure(optimizer.step, device=H100, where="meta")
    return profile


# %%
N = sum(p.numel() for p in params)
ways = {
    "loop": adamw(partial(torch.optim.AdamW, foreach=False)),
    "foreach": adamw(partial(torch.optim.AdamW, foreach=True)),
    "flat": adamw(FlatAdamW),
    "flat, gradients there": adamw(FlatAdamW, brought=True),
}
assert [(p.calls, p.bytes_moved / 4 / N) for p in ways.values()] == [
    (8 * 148, 21),
    (8, 21),
    (2, 9),
    (1, 7),
]
display(
    study.table(
        [
            (
                name,
                p.calls,
                p.bytes_moved / 4 / N,
                f"{1e3 * p.time:.2f}",
                study.bound(p.total, H100),
            )
            for name, p in ways.items()
        ],
        ["AdamW", "launches", "numbers moved / N", "ms", "bound by"],
    )
)
study.bars(
    {"your guess, loop": guess_loop / 1e3}
    | {name: p.time for name, p in ways.items()}
    | {"your guess, best": guess_best / 1e3},
    unit="s",
    title="AdamW of GPT-2 on an H100, by the roofline",
)

# %% [markdown]
# The loop waits for launches; `foreach`, PyTorch's default on a GPU, gives each of the eight operators all tensors at
# once. After that, only fewer bytes help. Nothing goes below 7N: each number is read, and written, once. (The last row
# is the step alone: backward has read and written the buffer, where it would have written new gradients.)
#
# ## Graphs: who fuses?
#
# So far people did it. A compiler first needs the **graph**: all operators, and who reads whose result. Here is that
# of a transformer's MLP. An operator with a product is bound by compute; its neighbours by memory. **The rule:** what
# stands between two products becomes one kernel.

# %%
from itertools import groupby
from torch.fx.experimental.proxy_tensor import make_fx


def mlp(x, w1, b1, w2, b2):
    return x + (written(x @ w1, b1) @ w2 + b2)


shapes = (1024, 768), (768, 3072), (3072,), (3072, 768), (768,)
graph = make_fx(mlp, tracing_mode="fake")(*(torch.empty(s) for s in shapes)).graph
nodes = [node for node in graph.nodes if node.op == "call_function"]
groups = [list(some) for _, some in groupby(nodes, lambda node: node.name.startswith("mm"))]
print(*(" + ".join(node.name for node in group) for group in groups), sep="\n")

# %% [markdown]
# What does a group move? Tensors from outside, once each, and results that somebody outside reads. Nothing else leaves
# the chip. **Predict** what becomes of the second group's bytes.


# %%
def moved(group):
    read = {given for node in group for given in node.all_input_nodes} - set(group)
    kept = {node for node in group if set(node.users) - set(group)}
    return 4 * sum(node.meta["val"].numel() for node in read | kept)


rows = [
    (
        " + ".join(node.name for node in group),
        len(group),
        sum(moved([node]) for node in group),
        moved(group),
    )
    for group in groups
]
assert len(nodes) == 10 and len(groups) == 4
study.table(
    rows,
    ["group", "launches", "bytes, one by one", "bytes, fused"],
    title=f"{len(nodes)} launches become {len(groups)}",
)

# %% [markdown]
# This is, in short, what `torch.compile` does: trace, group, and have a **backend** write a kernel for each group (C++
# on a CPU, Triton on a GPU). That takes 20 s at first, so here only tracing runs: our backend counts the operators of
# each graph that it is given. **Predict:** what does the `if` do?


# %%
def checked(x, w1, b1, w2, b2):
    h = written(x @ w1, b1)
    if h.isnan().any():  # known only when it runs
        raise ValueError("nan")
    return x + (h @ w2 + b2)


def traced(fn):
    found = []
    torch.compile(fn, backend=lambda graph, _: found.append(graph.graph) or graph)(
        *(torch.ones(s) for s in shapes)
    )
    return [sum(node.op.startswith("call") for node in graph.nodes) for graph in found]


print("operators of each graph:", traced(mlp), "and, with the if,", traced(checked))

# %% [markdown]
# It cuts the graph in two, a **graph break**: nothing is fused across, and the CPU waits for the answer before it can
# launch the rest. (`fullgraph=True` makes it an error.) For real kernels, of any function of tensors:
#
# ```python
# compiled = torch.compile(mlp)
# ```
#
# A **CUDA graph** is another cure: it records launches, and replays all with one. It moves the same bytes, so for the
# loop it wins what `foreach` does, and no more.
#
# ## A whole layer
#
# Which operators of a GPT layer are bound by what? H = 768, 8 · 1,024 tokens, bf16, forward and backward. **Predict:**
# what share of the time do the products have?

# %%
from minidist.models import TransformerLayer

layer = TransformerLayer(768, 12, device="meta", dtype=torch.bfloat16)
tokens = torch.empty(8, 1024, 768, device="meta", dtype=torch.bfloat16)
profile = study.measure(lambda: layer(tokens).sum().backward(), device=H100, where="meta")
share = (
    sum(t.seconds for t in profile.by_operator.values() if study.bound(t, H100) == "compute")
    / profile.time
)
assert 0.6 < share < 0.7
study.roofline(profile)

# %% [markdown]
# Two thirds, in the rows that say "compute". The other third does almost nothing but move bytes: that is what a
# compiler can win here. (With causal attention the meter counts all scores. Of PyTorch's flash attention it counts each
# input read once, the least that there can be: so it says "compute" where our tiles of 64 were bound by memory.)
#
# Above single devices a graph poses two more questions. What runs *beside* what? Messages under computation, as in
# lesson 06. And which device holds which part of each tensor? Mesh-TensorFlow lets you name the split of every
# dimension, FlexFlow *searches* for the best one with a cost model like our roofline. That is the level of the
# **task**: which parallelism, on how many devices, memory or speed. Lessons 14 to 19 choose by hand, 26 searches.
#
# ## Break it
#
# **Forget to rescale.** One line less: the sum so far stays as it is. The row has 32 numbers, in parts of 4, and its
# largest stands in another part each time.


# %%
def forgetful(x, part=4):
    m, s = x.new_tensor(-math.inf), x.new_zeros(())
    for some in x.split(part):
        m = torch.maximum(m, some.max())
        s = s + (some - m).exp().sum()  # and what was summed up with a smaller m?
    return m + s.log()


# %%
base = torch.linspace(0, 1, 32).double()
wrong = []
for at in range(0, 32, 4):
    x = base.flip(0).index_fill(0, torch.tensor(at), 6.0)
    wrong.append(abs((forgetful(x) - x.logsumexp(0)).item()))
assert wrong[0] < 1e-12 < 0.05 < wrong[-1]
study.curves(
    {"no rescaling": (range(8), wrong)},
    xlabel="the part that holds the largest number",
    ylabel="error of log Σ exp",
    title="Right only if the largest number comes first",
)

# %% [markdown]
# With the largest number in front, a test passes. The later it comes, the worse.
#
# **Forget the maximum.** In exact numbers it changes nothing. In fp16 the largest number is 65,504, and exp(12) is
# larger:


# %%
def first(x):
    return f"{x.exp()[0] / x.exp().sum():.3f}"


rows = []
for top in (6.0, 10.0, 11.0, 12.0):
    x = torch.tensor([top, top - 1, 0.0], dtype=torch.float16)
    rows.append((int(top), first(x), first(x - x.max())))
assert [r[1] for r in rows[2:]] == ["0.000", "nan"] and rows[-1][2] == "0.731"
study.table(rows, ["largest score", "without the maximum", "with it"], title="Softmax in fp16")

# %% [markdown]
# At 11 the sum is infinite, and the result a silent 0. At 12 it is nan.
#
# ## The library's version
#
# Your loop over tiles, as the library has it: one step, of which a compiler makes one kernel. `diagonal` says that this
# tile of scores lies on the diagonal of a causal attention, where some keys are later than their query.

# %%
display(study.source(fuse.forward_tile, docstring=False))
study.source(fuse.merge, docstring=False)

# %% [markdown]
# ## On processes, and on a cluster
#
# The merging rule works between processes, too. Each of three holds a third of the keys and values, too long a text
# for one GPU. They agree on m, and then add up s and the results.

# %%
from minidist.comm import launch as launch_on


def split_keys(comm, q, k, v):
    k, v = (x.chunk(comm.size)[comm.rank] for x in (k, v))
    scores = q @ k.T * q.shape[-1] ** -0.5
    m = all_reduce_(comm, scores.amax(-1, keepdim=True), op="max")
    p = (scores - m).exp()
    return all_reduce_(comm, p @ v) / all_reduce_(comm, p.sum(-1, keepdim=True))


real = launch_on(split_keys, 3, q, k, v)
assert all((out - naive(q, k, v)).abs().max() < 1e-12 for out in real)
print(
    f"attention over 300 keys on three processes: exact, {real.trace.messages(0)} messages a rank"
)

# %% [markdown]
# Under torchrun, `split_keys(from_env(), q, k, v)` at the end of a script:
#
# ```
# torchrun --nproc-per-node 3 attention.py
# ```
#
# ## Takeaways
#
# - Time = launches · 5 µs + the larger of bytes / bandwidth and FLOPs / peak. Know which of the three it is.
# - On an H100 an operator of fewer than a million numbers is bound by its launch.
# - Fusion saves launches and bytes. In a kernel bound by memory FLOPs are free: compute again instead of keeping.
# - Two parts of a softmax merge exactly. So attention needs no T × T, forward or backward.
# - An optimizer over a flat buffer is one launch and 7N numbers: by the roofline 1.05 ms for GPT-2, not 9.04.
# - Compilers group what stands between two products, within one graph. CUDA graphs save launches alone.
#
# ## Further reading
#
# - paper:williams2009
# - paper:milakov2018
# - paper:dao2022 Algorithms 1 and 4, theorem 2.
# - paper:ansel2024 `torch.compile`.
# - paper:jia2019 FlexFlow.
# - paper:shazeer2018
