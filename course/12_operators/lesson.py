# %% [markdown]
# # 12 · Operators and graphs
#
# GPT-2 has 124 million weights in 148 tensors. Backward is done, the gradients are there, and AdamW takes its step. Each weight needs about a dozen additions and multiplications, so the whole step is some 1.5 billion of them. An H100 does 67 trillion in a second. By that count the step is over in 0.02 milliseconds.
#
# It is not. In PyTorch's plain loop it takes far longer, and not because the GPU computes slowly: it hardly computes at all. This lesson finds out where the time goes, and gets most of it back. **How many milliseconds does the step take on a modelled H100, and how few could it take at best?**

# %%
guess_step = {"plain loop": 1.0, "at best": 0.02}  # milliseconds: change these numbers

# %% [markdown]
# ## On paper: six numbers
#
# PyTorch runs one [operator](term:operator) after another: an addition, a product, a square root. On a GPU each of them is a program of its own, called a [kernel](term:kernel), and starting one is a [launch](term:launch). Three numbers describe the device: how long a launch takes, how many bytes its memory moves in a second, and how many FLOPs it does in a second. Three more describe the operator: its launches, its bytes, its FLOPs.
#
# Bytes and FLOPs go on at the same time, since a GPU loads the next numbers while it computes with the last. So the longer of the two decides, and the launch comes on top:
#
# $$T = \text{launches} \cdot 5\,\text{µs} + \max\left(\frac{\text{bytes}}{\text{bandwidth}},\ \frac{\text{FLOPs}}{\text{peak}}\right).$$
#
# This is the [roofline](term:roofline) model ([Williams et al.](paper:williams2009)), with a launch added. Try it by hand on an addition of two tensors with 4,096 numbers in fp32. It reads two tensors and writes one: 12 · 4,096 bytes, which take 0.015 µs at 3.35 TB/s. The launch takes 5 µs. The kernel is starting for 99.7 % of its time.
#
# The lesson uses the data sheet of an H100, without tensor cores for fp32. A real one reaches a part of that, and so all times here are *modelled*, and are the shortest there can be. The 5 µs are an assumption about eager PyTorch; most of them are work of Python and C++ on the CPU.

# %%
import math
from functools import partial

import torch
import torch.nn.functional as F

from minidist import study
from minidist.comm import cluster

H100 = cluster.H100.ideal  # a device that reaches all of its data sheet
LAUNCH = H100.launch
BANDWIDTH = H100.bandwidth
PEAK = H100.peak(torch.float32)


def seconds(launches, nbytes, flops):
    return launches * LAUNCH + max(nbytes / BANDWIDTH, flops / PEAK)


n = 4096
cases = {
    "a + b, of n numbers": (1, 12 * n, n),
    "A + B, of n × n": (1, 12 * n**2, n**2),
    "A @ B, of n × n": (1, 12 * n**2, 2 * n**3),
}
rows = []
for name, work in cases.items():
    rows.append((name, *work, f"{1e6 * seconds(*work):,.1f}"))
study.table(rows, ["n = 4,096, fp32", "launches", "bytes", "FLOPs", "µs"], title="Modelled H100")

# %% [markdown]
# Here are three operators and three walls. The first is bound by its *launch*, the second by *memory*, the third by *compute*. Nearly everything in this lesson is the question of which of the three you are looking at, since each needs another cure.
#
# ## Which operators are bound by what?
#
# The last two lines of the table move the same bytes. What separates them is how many FLOPs they do with each byte, their [arithmetic intensity](term:arithmetic-intensity). If it is above peak/bandwidth, which is 20 FLOPs a byte here, the arithmetic takes longer than the memory. This value is called the *ridge*.
#
# A pointwise operator, such as an addition, has the same intensity at every size: 1 FLOP for 12 bytes, far below the ridge. A bigger tensor never makes it better. A product of two n × n matrices does 2n³ FLOPs on 12n² bytes, so its intensity n/6 grows with n. **From which n on is the product bound by compute rather than memory?**

# %%
guess_n = 1000  # rows of a square matrix: change this number

# %% [markdown]
# To count instead of calculating, we use the course's meter. `study.measure` runs a function, watches every operator that it calls, and adds up launches, bytes and FLOPs. Tensors on the device `"meta"` have a shape and no numbers, so any size costs nothing to try.


# %%
def cost(function, *shapes, **options):
    """What the meter counts when `function` runs on tensors of these shapes."""
    tensors = [torch.empty(*shape, device="meta", **options) for shape in shapes]
    return study.measure(function, *tensors, device=H100)


tallies = {}
for size in (32, 128, 512, 2048, 8192):
    tallies[f"n = {size}"] = cost(torch.mm, (size, size), (size, size)).total
ridge_n = 6 * PEAK / BANDWIDTH

# %% tags=["answer"]
study.reveal(
    guess_n,
    round(ridge_n),
    study.roof(tallies, H100, title="Products of n × n matrices under the roof"),
    words="n/6 = 20 gives n = 120. But the points of 128 and 512 lie below the roof: their launch takes longer than their work.",
)

# %% tags=["maintainer"]
assert [study.bound(t, H100) for t in tallies.values()] == ["launch"] * 3 + ["compute"] * 2
assert round(ridge_n) == 120

# %% [markdown]
# Read the picture like this: the slope on the left is the memory, the flat top is the arithmetic, and no operator can be above either. An operator far below the roof is waiting for something else, and that is its launch.
#
# When does a launch matter? An addition of N numbers moves 12N bytes, and these take as long as the launch if 12N / bandwidth = 5 µs. That is at N = 1.4 million. Below that, size is free: a hundred thousand numbers take as long as a thousand. The next cell asks how many of GPT-2's tensors are that small.

# %%
from minidist.models import GPT

model = GPT(12, 768, 12, 50257, 1024, device="meta")
params = list(model.parameters())
edge = LAUNCH * BANDWIDTH / 12
small = sum(p.numel() < edge for p in params)
print(f"An addition of {edge:,.0f} numbers takes as long as its launch.")
print(f"{small} of GPT-2's {len(params)} tensors are smaller.")

# %% tags=["maintainer"]
assert (small, len(params)) == (111, 148)

# %% [markdown]
# ## Fusion: three numbers in one pass
#
# There are two cures, fewer launches and fewer bytes, and one technique has both. [Fusion](term:fusion) puts the work of several operators into one kernel. It starts once. And it uses each number while it is at hand, in a register, instead of writing it to memory for the next operator to fetch back; the old word for this is *locality*.
#
# ![The sum a + b + c. As two operators, the first writes a temporary that the second reads: six passes over memory and two launches. As one operator, add3 reads three tensors and writes one: four passes and one launch.](../course/12_operators/figures/fusion.svg)
#
# The smallest case is a sum of three tensors, as in a residual block that adds attention and MLP to its input. Count the arrows in the drawing before you look at what the meter says. `fuse.add3` is the library's operator for the lower half.

# %%
from minidist.train import fuse


def written_out(a, b, c):
    return a + b + c


shapes = [(1 << 22,)] * 3
rows = []
for name, function in [("a + b + c", written_out), ("add3(a, b, c)", fuse.add3)]:
    profile = cost(function, *shapes)
    passes = profile.bytes_moved / (4 * 2**22)
    new = profile.peak / (4 * 2**22) - 3  # beside the three that were given
    rows.append((name, profile.calls, passes, new, f"{1e6 * profile.time:.1f}"))
study.table(
    rows,
    ["", "launches", "numbers moved / N", "new memory / N", "µs, modelled"],
    title="N = 4,194,304 numbers in fp32",
)

# %% tags=["maintainer"]
assert [row[1:4] for row in rows] == [(2, 6, 2), (1, 4, 1)]

# %% [markdown]
# One launch is saved, a third of the bytes, and one temporary tensor. There is a small gain in accuracy too: in fp16 the sum is rounded once, not twice.
#
# ## Bias and GELU, with a backward of their own
#
# A more useful case lies between the two matrix products of a transformer's MLP. A bias is added, and then GELU is applied: $y = z\,\Phi(z)$ with $z = x + b$, where $\Phi(z) = \frac{1}{2}(1 + \mathrm{erf}(z/\sqrt 2))$ is the probability that a normal random number is below z. Written in PyTorch that is six operators, and autograd keeps intermediate results for the way back.


# %%
def written(x, b):
    z = x + b
    return z * (torch.erf(z * 0.5**0.5) + 1) * 0.5


# %% [markdown]
# Fusing the forward is easy. What about the backward? By the product rule the derivative of $z\,\Phi(z)$ is $\Phi(z) + z\,\varphi(z)$, where φ, the derivative of Φ, is the density $e^{-z^2/2}/\sqrt{2\pi}$. Since z is x + b, its derivatives with respect to x and b are both 1, and b is shared by all rows. Hence
#
# $$dx = dy\,(\Phi(z) + z\,\varphi(z)),\qquad db = \sum_\text{rows} dx.$$
#
# The formula needs z and nothing else that was made. And even z need not be kept: x and b exist anyway, so the backward kernel can add them again. PyTorch is told that all of this is *one* operator, with a backward of its own, in three steps: define the two functions, describe their shapes, and connect them.


# %%
@torch.library.custom_op("lesson::bias_gelu", mutates_args=())
def bias_gelu(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return written(x, b)


@torch.library.custom_op("lesson::bias_gelu_backward", mutates_args=())
def bias_gelu_backward(
    dy: torch.Tensor, x: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    z = x + b  # once more, instead of keeping it
    probability = (1 + torch.erf(z * 0.5**0.5)) / 2
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    dx = dy * (probability + z * density)
    return dx, dx.sum(0)


# what comes out, for tensors without numbers
bias_gelu.register_fake(lambda x, b: torch.empty_like(x))
bias_gelu_backward.register_fake(lambda dy, x, b: (torch.empty_like(x), torch.empty_like(b)))


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def call_backward(ctx, dy):
    return bias_gelu_backward(dy, *ctx.saved_tensors)


bias_gelu.register_autograd(call_backward, setup_context=keep_inputs)

# %% [markdown]
# The [oracle](term:oracle) is PyTorch's own GELU, in double precision, result and both gradients:


# %%
def with_gradients(function):
    """A function that returns the gradients of x and b."""
    return lambda dy, x, b: torch.autograd.grad(function(x, b), (x, b), dy)


def pytorch(x, b):
    return F.gelu(x + b)


torch.manual_seed(0)
shapes = [(6, 4), (6, 4), (4,)]
dy, x, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
found = [bias_gelu(x, b), *with_gradients(bias_gelu)(dy, x, b)]
wanted = [pytorch(x, b), *with_gradients(pytorch)(dy, x, b)]
for name, ours, theirs in zip(("y", "dx", "db"), found, wanted):
    print(name, "agrees:", torch.allclose(ours, theirs, rtol=0, atol=1e-12))

# %% tags=["maintainer"]
for ours, theirs in zip(found, wanted):
    assert (ours - theirs).abs().max() < 1e-12

# %% [markdown]
# Now the cost. With N the size of x, `F.gelu(x + b)` moves 4N in the forward (an addition reads and writes, GELU reads and writes). **How many N does the fused operator move in its forward, and in its backward?** The bias is so small that it does not count.

# %%
guess_moved = {"forward": 4, "backward": 4}  # times N: change these numbers


# %%
def phases(function, rows=4096, H=3072):
    """Launches and numbers moved / N, in the forward and in the backward, and modelled µs."""
    shapes = [(rows, H), (rows, H), (H,)]
    profile = cost(with_gradients(function), *shapes, requires_grad=True)
    columns = []
    for phase in ("forward", "backward"):
        work = profile.by_phase[phase]
        columns += [work.calls, round(work.nbytes / (4 * rows * H), 1)]
    return *columns, f"{1e6 * profile.time:.0f}"


ways = {"written out": written, "F.gelu(x + b)": pytorch, "fused": bias_gelu}
rows = [(name, *phases(function)) for name, function in ways.items()]
HEAD = ["4,096 × 3,072", "launches forward", "moved / N", "launches backward", "moved / N", "µs"]

# %% tags=["answer"]
study.reveal(
    guess_moved,
    {"forward": rows[2][2], "backward": rows[2][4]},
    study.table(rows, HEAD, title="Bias and GELU on a modelled H100, fp32"),
    words="The forward reads x and writes y. The backward reads dy and x and writes dx.",
)

# %% tags=["maintainer"]
assert [row[1:5] for row in rows[1:]] == [(2, 4, 2, 4), (1, 2, 1, 3)]

# %% [markdown]
# The addition and the erf that are done twice cost no time at all, because the kernel waits for memory anyway. This is worth a rule: **in a kernel bound by memory, FLOPs are free.** It is the idea of [Memory for compute](lesson:remat) inside a single operator.
#
# A word on what was counted. The meter counts what a fused kernel *would* move. On your CPU the inside of our operator still runs step by step; a compiler can make one loop of it, and we shall come to that. On GPUs such kernels have been written by hand for years. They keep two fp16 values in one 32-bit register, so that one instruction works on both, and take erf or tanh in fp32, where it does not lose its digits. The library's kernels for GPUs are in [fuse_gpu.py](file:minidist/train/fuse_gpu.py), written in Triton, a language for kernels that looks like Python and works on blocks of numbers.
#
# The same treatment suits every chain of operators whose rows fit on the chip. LayerNorm needs the mean and variance of a row before its first result, but it can wait for them with the row in hand.

# %%
R, H = 4096, 1024
right = torch.empty(R, dtype=torch.long, device="meta")  # the tokens that should have come


def cross_entropy_plain(logits):
    return fuse.cross_entropy_plain(logits, right)


def cross_entropy_fused(logits):
    return fuse.cross_entropy(logits, right, reduction="none")


cases = {
    "add3": (fuse.add3_plain, fuse.add3, [(R, H)] * 3),
    "softmax": (fuse.softmax_plain, fuse.softmax, [(R, H)]),
    "bias + GELU": (fuse.bias_gelu_plain, fuse.bias_gelu, [(R, H), (H,)]),
    "LayerNorm": (fuse.layer_norm_plain, fuse.layer_norm, [(R, H), (H,), (H,)]),
    "cross-entropy": (cross_entropy_plain, cross_entropy_fused, [(R, H)]),
}
rows = []
for name, (plain, fused, shapes) in cases.items():
    before = cost(plain, *shapes)
    after = cost(fused, *shapes)
    moved = [round(p.bytes_moved / (4 * R * H), 1) for p in (before, after)]
    faster = f"{before.time / after.time:.1f}"
    rows.append((name, before.calls, after.calls, *moved, faster))
study.table(
    rows,
    ["4,096 × 1,024", "launches", "fused", "moved / N", "fused", "times as fast"],
    title="Forward, written out and fused, on a modelled H100",
)

# %% [markdown]
# ## Softmax in parts
#
# Softmax divides $e^{x_i}$ by the sum of them all. A *safe* softmax first subtracts the largest number m, because $e^{100}$ overflows fp32. So it reads the row once for m, once for $s = \sum e^{x_i - m}$, and once more for the result. If the row is longer than the chip's memory, each reading goes out to the slow memory. [Online softmax](term:online-softmax) ([Milakov and Gimelshein](paper:milakov2018)) takes m and s in one reading.
#
# ![Softmax of 1, 3, 2, 5 in one pass. The running maximum m and the sum s: after 1, m = 1 and s = 1. After 3, m = 3 and s = 1 · exp(1 − 3) + 1 = 1.135. After 2, s = 1.503. After 5, m = 5 and s = 1.503 · exp(3 − 5) + 1 = 1.203.](../course/12_operators/figures/online_softmax.svg)
#
# Follow the drawing from top to bottom. When 3 arrives, the sum so far was taken with m = 1, and every term in it is too large by the same factor $e^{3-1}$. So it is not lost: multiply it by $e^{1-3}$ and go on.
#
# **Why this is right.** A term that was added with the old maximum $m_1$ is $e^{x - m_1}$. Multiplied by $e^{m_1 - m}$ it becomes $e^{x - m}$, which is what it should have been. The factor does not depend on x, so one multiplication corrects the whole sum. The same holds for two parts that were summed up separately:
#
# $$m = \max(m_1, m_2),\qquad s = s_1\,e^{m_1 - m} + s_2\,e^{m_2 - m}.$$
#
# Both exponents are at most zero, so nothing overflows. Merging is associative, which means that parts can be of any size and can be merged in any order. Six numbers in three parts:


# %%
def merge(one, two):
    """The m and s of two parts of a row together."""
    m1, s1 = one
    m2, s2 = two
    m = max(m1, m2)
    return m, s1 * math.exp(m1 - m) + s2 * math.exp(m2 - m)


numbers = [1.0, 3.0, 2.0, 6.0, 5.0, 4.0]
state = (-math.inf, 0.0)  # nothing has been read
rows = []
for i in (0, 2, 4):
    # a single number is its own maximum, and exp(0) = 1
    part = merge((numbers[i], 1.0), (numbers[i + 1], 1.0))
    state = merge(state, part)
    rows.append((str(numbers[i : i + 2]), *part, *state))
study.table(rows, ["part", "its m", "its s", "m so far", "s so far"], title="Online softmax")

# %% tags=["maintainer"]
assert abs(state[1] - sum(math.exp(v - 6) for v in numbers)) < 1e-12

# %% [markdown]
# What merges can also be split over ranks: [Vocabulary parallel](lesson:vocabulary) computes its loss with this rule, and [Long contexts](lesson:long_contexts) its attention.
#
# ## Attention in tiles
#
# Attention is softmax(q kᵀ/√d) v. Its scores form a table of T × T for T tokens: at T = 16,384 that is 1 GiB for a single head in fp32, written once and read several times. The naive version in full:


# %%
def naive(q, k, v):
    scores = q @ k.T * q.shape[-1] ** -0.5  # T × T
    return scores.softmax(-1) @ v


# %% [markdown]
# The result for a query is a *weighted sum* of the rows of v, with the weights $e^{x_j - m}/s$. Leave the division for the end, and it is a sum of terms with the factor $e^{-m}$, just like s. So it can be corrected in just the same way. Then no scores need to be kept: take a tile of keys, form its scores, add its share to m, s and the result a, throw the tile away. This is [FlashAttention](paper:dao2022).
#
# ![A table of scores, queries by keys, cut into tiles. Only the tile that is being worked on exists. A row of tiles carries along m, s and a, one number, one number and d numbers for each query; after the last tile the result is a divided by s.](../course/12_operators/figures/tiles.svg)


# %%
def tiled(q, k, v, tile=128):
    results = []
    for queries in (q * q.shape[-1] ** -0.5).split(tile):
        m = queries.new_full((len(queries), 1), -math.inf)
        s = queries.new_zeros(len(queries), 1)
        a = torch.zeros_like(queries)
        for keys, values in zip(k.split(tile), v.split(tile)):
            scores = queries @ keys.T  # one tile: tile × tile
            peak = torch.maximum(m, scores.amax(-1, keepdim=True))
            correction = (m - peak).exp()  # of all that was summed up before
            weights = (scores - peak).exp()
            s = s * correction + weights.sum(-1, keepdim=True)
            a = a * correction + weights @ values
            m = peak
        results.append(a / s)
    return torch.cat(results)


# %% [markdown]
# This is exact, and not an approximation. The backward pass, which the library has, computes again what it can, as GELU's did: it keeps q, k, v, the result, and *one number for each query*, m + log s. From these each tile of probabilities is formed again as $e^{x - (m + \log s)}$.

# %%
q, k, v, up = torch.randn(4, 300, 16, dtype=torch.float64)


def gradients(attention):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(attention(*leaves), leaves, up)


print("forward agrees:", torch.allclose(tiled(q, k, v, 64), naive(q, k, v), rtol=0, atol=1e-12))
for name, ours, theirs in zip(("dq", "dk", "dv"), gradients(fuse.attention), gradients(naive)):
    print(name, "agrees:", torch.allclose(ours, theirs, rtol=0, atol=1e-12))

# %% tags=["maintainer"]
assert (tiled(q, k, v, 64) - naive(q, k, v)).abs().max() < 1e-12
for ours, theirs in zip(gradients(fuse.attention), gradients(naive)):
    assert (ours - theirs).abs().max() < 1e-12

# %% [markdown]
# ### Predict the cost, then run
#
# Take one head with d = 64, in fp32, forward and backward. At its peak the naive version holds three tables at once (the probabilities, their gradient, and that of the scores) and six tensors of T × d, so $4(3T^2 + 6Td)$ bytes. **How many megabytes do the tiles hold at T = 16,384?** There are q, k, v and the result, a gradient for each, and one number for each query.

# %%
guess_peak = {"naive": 3300, "tiles": 1000}  # MB at T = 16,384: change the second number


# %%
d = 64
lengths = [512, 1024, 2048, 4096, 8192, 16384]


def peak_of(attention, T):
    def step(q, k, v, up):
        return torch.autograd.grad(attention(q, k, v), (q, k, v), up)

    return cost(step, *[(T, d)] * 4, requires_grad=True).peak


predicted = {
    "naive": [4 * (3 * T * T + 6 * T * d) for T in lengths],
    "tiles": [4 * (8 * T * d + T) for T in lengths],
}
measured = {
    "naive": [peak_of(naive, T) for T in lengths],
    "tiles": [peak_of(fuse.attention, T) for T in lengths],
}

# %% tags=["answer"]
study.reveal(
    guess_peak,
    {name: round(peaks[-1] / 1e6) for name, peaks in measured.items()},
    study.curves(
        {name: (lengths, peaks) for name, peaks in predicted.items()},
        points={name: (lengths, peaks) for name, peaks in measured.items()},
        logx=True,
        logy=True,
        yunit="B",
        xlabel="tokens, T",
        ylabel="peak memory",
        title="Attention, one head: lines predicted, points metered",
    ),
    unit="MB",
)

# %% tags=["maintainer"]
assert measured == predicted

# %% [markdown]
# The prediction is right to the byte. Tiles grow with T, the table with T². What do they cost? The backward pass multiplies once more, to form the scores again, and that makes 14 instead of 12 units of FLOPs. The roof says why it is a good trade:


# %%
def step_of(attention, T=4096):
    """Forward and backward of 16 heads in bf16."""

    def step(q, k, v, up):
        return torch.autograd.grad(attention(q, k, v), (q, k, v), up)

    return cost(step, *[(16, T, d)] * 4, requires_grad=True, dtype=torch.bfloat16).total


steps = {"written out": step_of(fuse.attention_plain), "tiles": step_of(fuse.attention)}
study.roof(steps, H100, torch.bfloat16, title="Attention in bf16, 16 heads, T = 4,096")

# %% tags=["maintainer"]
assert steps["tiles"].flops > steps["written out"].flops
assert 0.5 < steps["tiles"].seconds / steps["written out"].seconds < 0.6

# %% [markdown]
# Both are bound by memory, but the tiles do twice the FLOPs a byte and take little more than half the time. Here k and v are read again for each tile of 64 queries; larger tiles, or a cache that holds k and v, move the point to the right.
#
# **When not to use it.** With a few hundred tokens the table is small, and the loop over tiles has nothing to save. And if you want to *look* at the attention weights, they do not exist.
#
# ## An optimizer over one flat buffer
#
# Back to the question at the beginning. AdamW in a plain loop runs eight operators for each tensor. Together they read or write 21 numbers for each weight, though only seven are needed: read weight, gradient and two states, write weight and two states.
#
# To fuse the eight operators is one step, to 7N numbers. But it still leaves a launch for each of 148 tensors, and the operator cannot take a list. So make it one tensor: let all parameters be views of a single [flat buffer](term:flat-buffer), and let their states be views of two others. AdamW is elementwise, so it does not matter where one parameter ends and the next begins.
#
# The gradients are a difficulty, because autograd puts each of them wherever there is memory. Either one more launch copies them into the buffer at the step, 2N; or they never leave it: `zero_grad(set_to_none=False)` makes them views of a buffer of zeros, to which autograd adds. `foreach`, the default of PyTorch on a GPU, is a cure for launches alone: it gives all tensors to each of the eight operators at once.

# %%
from minidist.train.flat_optim import FlatAdamW


def adamw(make, in_buffer=False):
    """The cost of a step of GPT-2's AdamW."""
    params = [torch.nn.Parameter(torch.empty_like(p)) for p in model.parameters()]
    optimizer = make(params)
    for _ in range(2):  # the first step makes the states
        for p in params:
            p.grad = torch.empty_like(p)
        if in_buffer:
            optimizer.zero_grad(set_to_none=False)
        profile = study.measure(optimizer.step, device=H100, where="meta")
    return profile


N = sum(p.numel() for p in params)
ways = {
    "plain loop": adamw(partial(torch.optim.AdamW, foreach=False)),
    "foreach": adamw(partial(torch.optim.AdamW, foreach=True)),
    "flat": adamw(FlatAdamW),
    "flat, gradients there": adamw(FlatAdamW, in_buffer=True),
}
rows = []
for name, profile in ways.items():
    moved = profile.bytes_moved / (4 * N)
    word = study.bound(profile.total, H100)
    rows.append((name, profile.calls, moved, f"{1e3 * profile.time:.2f}", word))

# %% tags=["answer"]
study.reveal(
    guess_step,
    {
        "plain loop": round(1e3 * ways["plain loop"].time, 2),
        "at best": round(1e3 * ways["flat, gradients there"].time, 2),
    },
    [
        study.table(rows, ["AdamW", "launches", "moved / N", "ms, modelled", "bound by"]),
        study.bars(
            {name: profile.time for name, profile in ways.items()},
            unit="s",
            title="A step of AdamW for GPT-2 on a modelled H100",
        ),
    ],
    unit="ms",
    words="The loop waits for launches. After foreach, only fewer bytes help, and nothing goes below 7N: each number is read and written once.",
)

# %% tags=["maintainer"]
counts = [(p.calls, p.bytes_moved / 4 / N) for p in ways.values()]
assert counts == [(8 * 148, 21), (8, 21), (2, 9), (1, 7)]

# %% [markdown]
# The last way is the step alone; the backward has read and written the buffer, where it would have written new gradients. Drag the sliders to see where the flat buffer matters: many small tensors make the loop slow, a few large ones do not.


# %%
def optimizer_seconds(weights, tensors, launch):
    def time(launches, numbers):
        return launches * launch + numbers * 4 * weights / BANDWIDTH

    return {
        "plain loop": time(8 * tensors, 21),
        "foreach": time(8, 21),
        "flat": time(1, 7),
    }


study.explore(
    optimizer_seconds,
    over="weights",
    weights=[10**k for k in range(5, 11)],
    tensors=[10, 50, 148, 500, 2000],
    launch=[1e-6, 2e-6, 5e-6, 10e-6],
    units={"launch": "s"},
    start={"weights": 10**8, "tensors": 148, "launch": 5e-6},
    unit="s",
    logx=True,
    logy=True,
    xlabel="weights of the model",
    ylabel="step of AdamW, modelled",
    title="Launches, or bytes?",
)

# %% [markdown]
# ## Graphs: who fuses?
#
# So far people did it, operator by operator. A compiler can do it for you, if it sees more than one operator at a time. What it needs is the [graph](term:graph): all operators, and which of them reads whose result. PyTorch can record it by running a function on tensors that only pretend to have numbers.
#
# Which nodes of the graph should become one kernel? Matrix products are bound by compute and have excellent kernels already. Their neighbours are bound by memory. So the simplest rule is this: **whatever stands between two products becomes one kernel.** Here are the groups of a transformer's MLP.

# %%
from itertools import groupby

from torch.fx.experimental.proxy_tensor import make_fx


def mlp(x, w1, b1, w2, b2):
    return x + (written(x @ w1, b1) @ w2 + b2)


shapes = [(1024, 768), (768, 3072), (3072,), (3072, 768), (768,)]
graph = make_fx(mlp, tracing_mode="fake")(*(torch.empty(s) for s in shapes)).graph
nodes = [node for node in graph.nodes if node.op == "call_function"]


def is_product(node):
    return node.name.startswith("mm")


groups = [list(group) for _, group in groupby(nodes, is_product)]
for group in groups:
    print(" + ".join(node.name for node in group))

# %% [markdown]
# What does a fused group move? It reads each tensor that comes from outside, once, and writes each result that somebody outside reads. Nothing else leaves the chip.


# %%
def moved(group):
    """Bytes that these operators move as one kernel."""
    read = set()
    written = set()
    for node in group:
        read |= set(node.all_input_nodes) - set(group)
        if set(node.users) - set(group):
            written.add(node)
    return 4 * sum(node.meta["val"].numel() for node in read | written)


rows = []
for group in groups:
    one_by_one = sum(moved([node]) for node in group)
    rows.append((" + ".join(node.name for node in group), len(group), one_by_one, moved(group)))
study.table(
    rows,
    ["group", "launches", "bytes, one by one", "bytes, fused"],
    title=f"{len(nodes)} launches become {len(groups)}",
)

# %% tags=["maintainer"]
assert len(nodes) == 10 and len(groups) == 4

# %% [markdown]
# ## torch.compile, on real kernels
#
# This is in short what [torch.compile](paper:ansel2024) does. It traces a function into graphs, groups the operators of each, forward and backward, and has a [backend](term:backend) write a kernel for each group: C++ on a CPU, Triton on a GPU. For you it is one line:
#
# ```python
# compiled = torch.compile(layer, fullgraph=True)
# ```
#
# The first call takes long, and on a CPU it needs a C++ compiler, so it does not run in this notebook. A benchmark in the project's repository, `benchmarks/compiled.py`, compiles a whole layer, compares all results and gradients with the eager ones, and reads in the code that was written which kernels there are:
#
# ```
# python -m benchmarks.compiled --quick
# ```
#
# This is what it wrote on a server's CPU (one thread of a machine that was busy with other things, hence the wide ranges; views are left out of the names):
#
# ```
# a layer of 256 features, 4 × 256 tokens, on cpu, forward and backward
# eager: 32 kernels: 8 mm, 4 addmm, 4 add, 4 sum, 2 native_layer_norm, 2 native_layer_norm_backward, …
# compiled: 27 kernels, 14 of libraries, of its own:
#   native_layer_norm
#   add_native_layer_norm
#   gelu
#   add
#   gelu_gelu_backward_sum
#   add_gelu_gelu_backward_native_layer_norm_native_layer_norm_backward_sum
#   …
#   eager             124.1  [123.3, 135.0]     ms
#   compiled          121.6  [114.1, 137.9]     ms
# ratio compiled_layer 1.015
# ```
#
# The command took half a minute of CPU time, most of it for compiling one layer. Read the names: each says what was fused. `add_native_layer_norm` is a residual addition together with the LayerNorm that follows, and a kernel of the backward has GELU's forward in it *again*, which is the trick that we did by hand. The 14 library calls are the twelve products (four forward, eight backward) and attention in both directions; these stay what they were. What eager PyTorch does in 18 other kernels takes 13.
#
# And the time hardly changes: 1.5 %, less than the scatter. On a CPU the products take most of the time, and they stay as they were, so there is little for fusion to win. That is no contradiction to the tables above, it *is* the roofline: first ask what bounds you. On a GPU, where the launch and the memory matter more, run the same command with `--device cuda` before you believe in any speed-up.
#
# ### Where the graph breaks
#
# Tracing must be able to follow the function. The next one looks at a *number* in the middle, to decide what to do. **Into how many graphs does the compiler cut it?** (We give it a backend of our own that counts the operators of each graph and writes no kernels. Tracing alone is quick.)

# %%
guess_graphs = 1  # change this number


# %%
def checked(x, w1, b1, w2, b2):
    h = written(x @ w1, b1)
    if h.isnan().any():  # known only when it runs
        raise ValueError("nan")
    return x + (h @ w2 + b2)


def graphs_of(function):
    """The number of operators in each graph that the compiler makes."""
    found = []

    def backend(graph, inputs):
        calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
        found.append(len(calls))
        return graph  # run it as it is

    torch.compile(function, backend=backend)(*(torch.ones(s) for s in shapes))
    return found


whole = graphs_of(mlp)
parts = graphs_of(checked)

# %% tags=["answer"]
study.reveal(
    guess_graphs,
    len(parts),
    study.table(
        [("mlp", str(whole)), ("with the if", str(parts))], ["", "operators of each graph"]
    ),
    unit="graphs",
    words="Nothing is fused across the cut, and the CPU waits for the answer before it can launch the rest.",
)

# %% tags=["maintainer"]
assert len(whole) == 1 and len(parts) == 2

# %% [markdown]
# This is a [graph break](term:graph-break). The symptom is a compiled model that is correct and no faster; `fullgraph=True` turns each break into an error that names its line. The usual causes are `.item()`, `print`, and an `if` on a tensor's value.
#
# There is another cure for launches that is often confused with this one. A [CUDA graph](term:cuda-graph) records the launches of a step and replays all of them with one call. It changes no kernel and moves the same bytes, so for our optimizer's loop it wins what `foreach` wins, and no more.
#
# **When not to compile.** When shapes change at every call, each new shape may compile again. When the step is bound by products, there is little to gain. And while you look for a bug, because the kernels are no longer those that your lines name.
#
# ## A whole layer
#
# Which operators of a GPT layer are bound by what? Take H = 768, 8 samples of 1,024 tokens, bf16, forward and backward. **Which share of the modelled time is bound by compute, in per cent?**

# %%
guess_share = 95  # per cent: change this number

# %%
from minidist.models import TransformerLayer

layer = TransformerLayer(768, 12, device="meta", dtype=torch.bfloat16)
tokens = torch.empty(8, 1024, 768, device="meta", dtype=torch.bfloat16)
profile = study.measure(lambda: layer(tokens).sum().backward(), device=H100, where="meta")
in_products = 0.0
for tally in profile.by_operator.values():
    if study.bound(tally, H100) == "compute":
        in_products += tally.seconds
share = in_products / profile.time

# %% tags=["answer"]
study.reveal(guess_share, round(100 * share), study.roofline(profile), unit="%")

# %% tags=["maintainer"]
assert round(1 / share, 1) == 1.6 and round(share, 1) == 0.6

# %% [markdown]
# About two thirds, in the rows that say "compute". The other third hardly computes and moves bytes, and that is what a compiler could win here: at most a factor of 1.6, if it removed all of it. (The meter counts all scores of causal attention, and reads each input of PyTorch's flash attention only once, the least there can be. So it says "compute" where our tiles of 64 were bound by memory.)
#
# ## A profiler beside our trace
#
# Everything up to here was modelled. On a real machine a [profiler](term:profiler) says what ran, and when. PyTorch's records every operator, on the CPU and on a GPU, and there are so many that one gets lost among them. So name the phases of a step; `record_function` puts a name around whatever runs within. Our own traces have spans with names too. If *both* use the same names, you can lay one beside the other: ours shows who waited for whose message, the profiler's shows which kernels ran in the meantime.

# %%
from contextlib import contextmanager
from time import perf_counter

from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from minidist.comm import Trace

ours = Trace(1)


@contextmanager
def phase(name):
    """What runs within is called `name`, in both traces."""
    with record_function(name):
        start = perf_counter()
        yield
        ours.spans.add(0, "main", "phase", start, perf_counter(), name)


small_layer = TransformerLayer(32, 4)
optimizer = torch.optim.SGD(small_layer.parameters(), lr=0.1)
samples = torch.randn(2, 16, 32)


def train_step():
    with phase("forward"):
        loss = small_layer(samples).square().mean()
    with phase("backward"):
        loss.backward()
    with phase("update"):
        optimizer.step()


# %% tags=["maintainer"]
import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # its own words would stand in the output

# %%
train_step()  # the first step allocates: never record it
ours = Trace(1)
with torch_profile(activities=[ProfilerActivity.CPU]) as recorded:
    train_step()

# %% [markdown]
# The table takes the phases from the profiler, and looks up which matrix products fell into each. It should find the products of the compiled layer: four in the forward, twice as many in the backward.

# %%
events = list(recorded.events())
rows = []
for name in [span.name for span in ours.spans]:
    around = next(event.time_range for event in events if event.name == name)
    products = 0
    for event in events:
        within = around.start <= event.time_range.start <= around.end
        products += within and event.name in ("aten::mm", "aten::addmm")
    rows.append((name, name, products))
study.table(
    rows,
    ["phase in our trace", "phase in the profiler's", "products within"],
    title="One step on your CPU, recorded twice",
)

# %% tags=["maintainer"]
assert rows == [("forward", "forward", 4), ("backward", "backward", 8), ("update", "update", 0)]

# %% [markdown]
# Both can be written to a file in the *Trace Event* format, with `ours.to_chrome(path)` and `recorded.export_chrome_trace(path)`, and opened at ui.perfetto.dev. The trainer does all of this for a whole run, with the phases of its pipeline and the messages as arrows; the code is [profiled.py](file:examples/profiled.py), and uses the same context manager as we do:
#
# ```
# python examples/train_gpt.py --runner processes --ranks 2 --folder run --profile 3
# torchrun --nproc-per-node 2 examples/train_gpt.py --folder run --profile 3
# ```
#
# Each rank leaves `run/profile/ours-rank0.json` and `run/profile/torch-rank0.json`, of three steps after the first. The first step is left out because it allocates memory and compiles. Be prepared for the sizes: of a model with two small layers, ours took 13 kB and the profiler's 2.4 MB. The profiler also slows down what it watches, so measure speed without it.
#
# Here is how such a trace looks in the course's own viewer. A World runs forward and backward of the layer above on a modelled H100, which reaches what a real one does of its data sheet. Each bar is an operator and includes its launch; point at it, and it says its name.

# %%
from minidist.comm import Cluster, World


def layer_step(comm):
    layer = TransformerLayer(768, 12, device="meta", dtype=torch.bfloat16)
    tokens = torch.empty(8, 1024, 768, device="meta", dtype=torch.bfloat16)
    layer(tokens).sum().backward()


world = World(1, cluster=Cluster.dgx_h100(), device="meta")
world.run(layer_step)
study.viewer(world.trace, title="One layer, forward and backward, on a modelled H100")

# %% [markdown]
# ## Above the single device
#
# A graph poses two more questions. What runs *beside* what? Messages run beside computation, as in [Buckets and overlap](lesson:buckets). And which device holds which part of each tensor? [Mesh-TensorFlow](paper:shazeer2018) lets you name the split of every dimension; [FlexFlow](paper:jia2019) *searches* for the best split, with a cost model much like our roofline. That is the level of the *task*: which parallelism, on how many devices, for memory or for speed. [Hybrid](lesson:hybrid) chooses by hand, and [Plan a run](lesson:plan) searches.
#
# ## Break it
#
# **Forget to rescale.** Here the sum so far stays as it is when a larger number comes. A row has 32 numbers, in parts of 4, and its largest stands in a different part each time.


# %%
def forgetful(x, part=4):
    m = x.new_tensor(-math.inf)
    s = x.new_zeros(())
    for some in x.split(part):
        m = torch.maximum(m, some.max())
        s = s + (some - m).exp().sum()  # and what was summed up with a smaller m?
    return m + s.log()


base = torch.linspace(1, 0, 32).double()
wrong = []
for at in range(0, 32, 4):
    x = base.index_fill(0, torch.tensor(at), 6.0)
    wrong.append(abs((forgetful(x) - x.logsumexp(0)).item()))
study.curves(
    {"no rescaling": (range(8), wrong)},
    xlabel="the part that holds the largest number",
    ylabel="error of log Σ exp",
    title="Right only if the largest number comes first",
)

# %% tags=["maintainer"]
assert wrong[0] < 1e-12 < 0.05 < wrong[-1]

# %% [markdown]
# If the largest number comes first, nothing is ever rescaled and the test passes. Test such code with rising numbers as well as falling ones.
#
# **Forget the maximum.** On paper it changes nothing, since $e^{-m}$ cancels. In fp16 the largest number is 65,504, and $e^{12}$ is larger:


# %%
def first(x):
    return f"{x.exp()[0] / x.exp().sum():.3f}"


rows = []
for top in (6.0, 10.0, 11.0, 12.0):
    x = torch.tensor([top, top - 1, 0.0], dtype=torch.float16)
    rows.append((int(top), first(x), first(x - x.max())))
study.table(rows, ["largest score", "without the maximum", "with it"], title="Softmax in fp16")

# %% tags=["maintainer"]
assert [row[1] for row in rows[2:]] == ["0.000", "nan"] and rows[-1][2] == "0.731"

# %% [markdown]
# At 12 the result is nan, which you will notice. At 11 only the *sum* is infinite, and the result is a silent 0, which you will not.
#
# ## The library's files
#
# [minidist/train/fuse.py](file:minidist/train/fuse.py) has all fused operators, each beside its naive version. Its first piece is what turns a function into an operator: it registers the function for CPUs, the Triton kernel of the same name for GPUs, and the formulas by which meters count its FLOPs and bytes.

# %%
study.source(fuse.operator, docstring=False)

# %% [markdown]
# The second is the merging rule, on rows instead of numbers. Compare it with ours: `exact` converts fp16 and bf16 to fp32 first.

# %%
study.source(fuse.merge, docstring=False)

# %% [markdown]
# The third is the inner part of our loop over tiles, of which a compiler makes one kernel. `diagonal` says that this tile of scores lies on the diagonal of a causal attention, where some keys are later than their query.

# %%
study.source(fuse.forward_tile, docstring=False)

# %% [markdown]
# The flat optimizer is [minidist/train/flat_optim.py](file:minidist/train/flat_optim.py). Its main idea is in how a group of parameters is laid out: one `cat`, and then every parameter becomes a view.

# %%
study.source(FlatAdamW._step_run, docstring=False)

# %% [markdown]
# Parameters without a gradient are left out, so that a step goes through *runs* of neighbours that have one; in ordinary training there is one run.
#
# ## On processes, and on a cluster
#
# The merging rule works between processes, too. Let each of three processes hold a third of the keys and values. They agree on m by an [all-reduce](term:all-reduce) of the maximum, and then add up the corrected sums and results.

# %%
from minidist.collectives import all_reduce_
from minidist.comm import launch


def split_keys(comm, q, k, v):
    keys = k.chunk(comm.size)[comm.rank]
    values = v.chunk(comm.size)[comm.rank]
    scores = q @ keys.T * q.shape[-1] ** -0.5
    m = all_reduce_(comm, scores.amax(-1, keepdim=True), op="max")
    weights = (scores - m).exp()
    s = all_reduce_(comm, weights.sum(-1, keepdim=True))
    a = all_reduce_(comm, weights @ values)
    return a / s


real = launch(split_keys, 3, q, k, v)
agree = [torch.allclose(out, naive(q, k, v), rtol=0, atol=1e-12) for out in real]
print("attention over 300 keys on three processes is exact:", agree)

# %% tags=["maintainer"]
assert all(agree)

# %% [markdown]
# The trainer calls PyTorch's own fused attention; `--attention explicit` writes out the scores instead, for comparison. On many machines, torchrun starts it once on each:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint host:29500 examples/train_gpt.py --batch 64 --folder run --profile 3
# ```
#
# ## Takeaways
#
# - Time is launches · 5 µs plus the larger of bytes/bandwidth and FLOPs/peak. Find out which of the three binds before you optimize.
# - Pointwise operators are bound by memory at any size, or by their launch below a million numbers. Large products are bound by compute.
# - Fusion saves launches and bytes. In a kernel bound by memory FLOPs are free, so compute again what you would have kept.
# - Two parts of a softmax merge exactly. So attention needs no T × T table, forward or backward.
# - An optimizer over a flat buffer is one launch and 7N numbers.
# - A compiler fuses what stands between two products, within one graph. On a CPU that changed the kernels and hardly the time.
# - Give phases the same names in the profiler's trace and in your own.
#
# ## Further reading
#
# - paper:williams2009 The roofline.
# - paper:milakov2018 Online softmax, algorithm 3 and section 3.1.
# - paper:dao2022 FlashAttention: algorithms 1 and 4, theorem 2 on the bytes.
# - paper:ansel2024 How `torch.compile` traces, breaks and fuses.
# - paper:jia2019 FlexFlow, a search over ways to split a graph.
# - paper:shazeer2018 Mesh-TensorFlow, splits by name.
