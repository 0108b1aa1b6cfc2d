# %% [markdown]
# # 10 · Eight bits
#
# In the lesson before, a step became faster because its products read 16 bits instead of 32. An H100 can go further: by its data sheet it multiplies numbers of 8 bits twice as fast again, at 1,979 TFLOP/s, and each number that is kept for backward takes one byte instead of two. But 8 bits make only 256 patterns, for weights, activations and gradients that differ by factors of a billion.
#
# All the same, models with hundreds of billions of parameters are trained in this way. The trick is a single idea, a **scale**, and all that this lesson has to settle is who shares it, where it comes from, and which numbers are better left alone.
#
# Let us begin with a number. Take two matrices of 256 × 256 random numbers, round both to 8 bits of which 3 are the fraction, and multiply them. **How large is the error of the product, in per cent of the product?**

# %%
guess_error = 0.1  # per cent: change this number

# %% [markdown]
# ## On paper: 256 numbers
#
# [FP8](term:fp8) comes in two formats. Both have a sign, an exponent and a fraction, like the formats of [Mixed precision](lesson:precision); what differs is how the other 7 bits are divided. [E4M3](term:e4m3) has 4 bits of exponent and 3 of fraction ("M" stands for mantissa). [E5M2](term:e5m2) has 5 and 2, and is an fp16 that has lost its last 8 bits.
#
# With so few patterns one can simply list them all:

# %%
import math
from functools import partial

import torch

from minidist import study

torch.set_num_threads(1)  # the networks are small
E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
FP8 = {"E4M3": E4M3, "E5M2": E5M2}

# %%
SMALL_DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_two(x):
    return "2" + f"{math.log2(x):g}".translate(SMALL_DIGITS)


every_byte = torch.arange(256, dtype=torch.uint8)
rows = []
for name, dtype in FP8.items():
    numbers = every_byte.view(dtype).float()
    positive = numbers[numbers.isfinite() & (numbers > 0)]
    binade = positive[(positive >= 1) & (positive < 2)]
    smallest = power_of_two(positive.min())
    smallest_normal = power_of_two(torch.finfo(dtype).tiny)
    largest = f"{positive.max().item():,.0f}"
    special = f"{int(numbers.isinf().sum())} and {int(numbers.isnan().sum())}"
    limits = smallest, smallest_normal, largest
    rows.append((name, len(positive), *limits, len(binade), special))
study.table(
    rows,
    ["", "positive", "smallest", "smallest normal", "largest", "from 1 to 2", "inf and nan"],
)

# %% [markdown]
# E4M3 has eight numbers between 1 and 2, and ends at 448. It has no infinity at all: its inventors preferred to spend those patterns on larger numbers. E5M2 has four numbers between 1 and 2, and goes up to 57,344. From the smallest to the largest, E4M3 spans 18 powers of two and E5M2 spans 32; fp16 spans 40, and bf16 more than 260.
#
# Round some numbers by hand before you look. Between 16 and 32 the steps of E4M3 are 2, so 21 is a tie between 20 and 22, and goes to the one whose last bit is 0: 20. Between 32 and 64 the steps are 4. What happens to 42, to 500, and to 0.00001?


# %%
def rounded(x, dtype):
    """The nearest numbers of the format, in fp32. What lies beyond the largest becomes the largest."""
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype).float()


rows = []
for x in (0.3, 21.0, 42.0, 500.0, 1e-5):
    results = [rounded(torch.tensor(x), dtype).item() for dtype in FP8.values()]
    rows.append([f"{value:g}" for value in (x, *results)])
study.table(rows, ["number", "in E4M3", "in E5M2"], title="Rounding to eight bits")

# %% [markdown]
# The error is half a step at most: one part in 16 of the number in E4M3, and one in 8 in E5M2. Note the `clamp`. A number beyond the range would become infinite in E5M2, and what it becomes in E4M3 depends on who converts it. We cut it off instead, which is called [saturation](term:saturation). It is the lesser evil, but keep it in mind: nothing will tell you that it has happened.
#
# ## Which products, and what is emulated
#
# Nearly all of a transformer's FLOPs are in its linear layers. A linear layer multiplies three times in a step: once in forward, $y = xW^\mathsf{T}$, and twice in backward, $dx = dy\,W$ and $dW = dy^\mathsf{T}x$. These three products are what we put in 8 bits, and nothing else.
#
# ![Three rows: y is x times W transposed, both in E4M3; dx is dy in E5M2 times W in E4M3; dW is dy transposed in E5M2 times x in E4M3. All sums are in fp32, results have 16 or 32 bits. x is kept for backward in eight bits.](../course/10_eight_bits/figures/three_products.svg)
#
# Look at the colours. Activations and weights are in E4M3, because they need precision. Gradients with respect to activations are in E5M2, because they need range: their magnitudes are spread over more powers of two. This division of labour is that of [Micikevicius et al. 2022](paper:micikevicius2022). (DeepSeek-V3, whose scales belong to small blocks, takes E4M3 for gradients as well.) The tensor cores of Hopper and Ada accept E4M3 with E4M3, or E4M3 with E5M2, and that is all one needs, since no product in the picture has two gradients.
#
# What comes in has 8 bits, but the sums have 32: the rule of the lesson before.
#
# **What we run is an emulation.** A CPU has no units for FP8, so we round to 8 bits, widen the numbers again, and multiply in fp32. Does this give what a tensor core would give? A number of E4M3 has four significant bits, so the product of two has at most eight, and fp32, with 24, holds it exactly. What is lost is lost by the rounding of the inputs, and that is the same on both. Only the order of the sums differs. (In one respect real tensor cores are worse: [DeepSeek-AI 2024](paper:deepseek2024) found that Hopper's keep only about 14 bits while they add up, section 3.3.2. We do not emulate this.) The emulation has all of the rounding, then, and none of the speed. Wherever this lesson speaks of seconds, they are *modelled*.

# %%
generator = torch.Generator().manual_seed(0)
a = torch.randn(256, 256, generator=generator)
b = torch.randn(256, 256, generator=generator)


def relative_error(found, right):
    return float((found - right).norm() / right.norm())


error_of_a = relative_error(rounded(a, E4M3), a)
error_of_product = relative_error(rounded(a, E4M3) @ rounded(b, E4M3), a @ b)
positive = a.abs() @ b.abs()
error_if_positive = relative_error(rounded(a.abs(), E4M3) @ rounded(b.abs(), E4M3), positive)

# %% tags=["answer"]
study.reveal(
    guess_error,
    round(100 * error_of_product, 1),
    study.bars(
        {
            "one matrix": round(100 * error_of_a, 2),
            "the product": round(100 * error_of_product, 2),
            "of positive numbers": round(100 * error_if_positive, 2),
        },
        unit="%",
        title="Relative error in E4M3",
    ),
    unit="%",
    words="A number is off by 2.7 % on average, and each term of the sum by √2 times as much, since two numbers "
    "were rounded. Adding 256 terms does not help: the errors grow like √256, but so does the sum of random "
    "terms. Where all terms are positive the sum grows like 256, and the errors cancel in comparison.",
)

# %% tags=["maintainer"]
assert 0.026 < error_of_a < 0.0275 and 1.35 < error_of_product / error_of_a < 1.45
assert error_if_positive < error_of_product / 8

# %% [markdown]
# An error of nearly 4 % in every product of the network sounds ruinous. It is not, for the reason that lets one train with small batches: the error is different each time and points nowhere in particular, while the gradient of a small batch is itself off by about its own length. Noise of a few per cent on top of that changes little. What does harm is an error with a direction, and of those we shall meet two.
#
# ## First try: just round
#
# Here is the linear layer, in its naive form. `low` is the function that brings a matrix to 8 bits; now it is `rounded`, and soon it will be something better.


# %%
class EightBitLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, low):
        low_x = low(x, E4M3)
        low_weight = low(weight, E4M3)
        ctx.save_for_backward(low_x, low_weight)
        ctx.low = low
        return low_x @ low_weight.t()  # (T, in) · (in, out)

    @staticmethod
    def backward(ctx, dy):
        low_x, low_weight = ctx.saved_tensors
        low_dy = ctx.low(dy, E5M2)  # rounded once, used twice
        dx = low_dy @ low_weight  # (T, out) · (out, in)
        dweight = low_dy.t() @ low_x  # (out, T) · (T, in)
        return dx, dweight, None


# %% [markdown]
# We try it on one layer of a network that reads digits. As in the lesson before, the batch is processed in micro-batches, this time 1,024 of them, so all gradients are divided by 1,024. **Of 100 numbers of *dy* that are not zero, how many become 0 in E5M2?**

# %%
guess_lost = 10  # of 100: change this number

# %%
from torch.nn.functional import cross_entropy, linear

from minidist.models import mlp
from minidist.tasks import digits
from minidist.train.amp import exponents

task = digits(torch.float32)
MICRO_BATCHES = 1024
network = mlp([64, 128, 128, 10])
hidden = network[:2](task.x[:64])  # (T, in): what the second linear layer is given
hidden = hidden.detach().requires_grad_()
weight = network[2].weight


def rest_of_network(y):
    """The loss of one micro-batch, from the output of the second layer on."""
    loss = cross_entropy(network[3:](y + network[2].bias), task.y[:64])
    return loss / MICRO_BATCHES


y = linear(hidden, weight)
y.retain_grad()
rest_of_network(y).backward()
dy = y.grad
share_lost = float((rounded(dy, E5M2) == 0)[dy != 0].float().mean())

# %% tags=["answer"]
study.reveal(
    guess_lost,
    round(100 * share_lost),
    study.exponents({"dy": exponents(dy, E5M2)}, title="dy, by exponent, in E5M2"),
    unit="of 100",
    words="Not a single one is left. All of them lie below 2⁻¹⁷, which is half the smallest number of E5M2, and "
    "are rounded to 0. (About half of dy was 0 already, because a ReLU was off.)",
)

# %% tags=["maintainer"]
assert share_lost > 0.99 and 2**-19 < dy.abs().max() < 2**-17

# %% [markdown]
# This is the first loss of the lesson before, in a harsher form. There the remedy was to multiply the loss, once and for all tensors, by a number that moves the hill of gradients into the range of fp16. With 40 powers of two there was room for the gradients of all layers at once. With 32, or 18, there is hardly any. So every tensor gets a number of its own.
#
# ## A scale for each tensor
#
# By hand first. Take the four numbers 0.02, −0.5, 1.5 and 6. The largest magnitude is 6; it is called the [amax](term:amax). E4M3 reaches up to 448, so there is room for a factor of 448/6 = 74.7. We take the next smaller power of two, 64. Multiplied by 64 the numbers are 1.28, −32, 96 and 384, and E4M3 has 1.25, −32, 96 and 384. The first is off by 2 %. Without the factor 0.02 would have become 0.0195, which is off by just as much; but a number such as 0.0002 would have become 0, and now it becomes 0.00021.
#
# A [scale](term:scale) is the inverse of such a factor. A matrix is stored as values in 8 bits together with a scale, $x \approx s\cdot\hat x$; here *s* is 1/64.
#
# ![The bits of bf16, E4M3 and E5M2, and a number line. As they are, half of a tensor's magnitudes are too small for E4M3. Divided by a scale of 2⁻¹², the largest lies just below 448, and all are inside the range.](../course/10_eight_bits/figures/formats_and_scale.svg)
#
# **Why the product comes out right.** Let $x\approx s\,\hat x$ and $W\approx t\,\hat W$. Then
#
# $$y_{ij} = \sum_k x_{ik}W_{jk} \approx \sum_k s\,\hat x_{ik}\,t\,\hat W_{jk} = s\,t\sum_k \hat x_{ik}\hat W_{jk}.$$
#
# The two scales do not depend on *k*, so they come out of the sum. The tensor core multiplies the 8-bit values and adds them up, and each result is multiplied by *st* once, at the end.
#
# **Why a power of two.** Dividing by a power of two changes the exponent and leaves the fraction alone, so it loses nothing. All numbers that stay within the normal range are rounded exactly as they would have been without a scale. Many libraries divide by amax/448 instead, so that the largest number lands on 448 precisely; that is no more precise, and gains less than one power of two of range.


# %%
def scale_for(amax, dtype):
    """The smallest power of two s such that amax / s fits into the format; 1 where all numbers are 0."""
    smallest = amax / torch.finfo(dtype).max
    power = torch.exp2(smallest.log2().ceil())
    return torch.where(amax > 0, power, 1.0)


def scaled(x, dtype):
    """x rounded to eight bits with one scale for the tensor, in fp32."""
    scale = scale_for(x.abs().max(), dtype)
    return rounded(x / scale, dtype) * scale


x = torch.tensor([0.02, -0.5, 1.5, 6.0])
print("scale: 1 /", 1 / scale_for(x.abs().max(), E4M3).item())
print("values:", rounded(x * 64, E4M3).tolist())

# %% [markdown]
# Is it right? There are two oracles. The library must give the same bits. And the layer's gradients must be near those that fp32 computes, which without scales they are not.

# %%
from minidist.train import fp8


def gradients_of(multiply):
    """Gradients for the weight and for the input, if this function is the product of the second layer."""
    weight.grad = hidden.grad = None
    rest_of_network(multiply(hidden, weight)).backward()
    return weight.grad, hidden.grad


exact = gradients_of(linear)
ways = {
    "just rounded": lambda x, w: EightBitLinear.apply(x, w, rounded),
    "with scales": lambda x, w: EightBitLinear.apply(x, w, scaled),
    "the library's": lambda x, w: fp8.linear(x, w, scaling=fp8.Present("tensor")),
}
found = {name: gradients_of(multiply) for name, multiply in ways.items()}
rows = []
for name, gradients in found.items():
    errors = [relative_error(g, right) for g, right in zip(gradients, exact)]
    same = all(map(torch.equal, gradients, found["with scales"]))
    rows.append((name, *(f"{error:.0%}" for error in errors), "yes" if same else "no"))
study.table(rows, ["", "error of dW", "error of dx", "same bits as ours"])

# %% tags=["maintainer"]
assert all(map(torch.equal, found["with scales"], found["the library's"]))
assert all(relative_error(g, right) < 0.2 for g, right in zip(found["with scales"], exact))
assert relative_error(found["just rounded"][0], exact[0]) > 0.9

# %% [markdown]
# The error that remains is larger than that of a single number, because in a gradient positive and negative terms nearly cancel. It is the noise of which we spoke, and it has no direction. Note, too, that no loss scaling is left to do. The scale of *dy* follows the gradients wherever they are, in each layer for itself, and a factor in front of the loss would change it by the same factor and the values not at all.
#
# ## Who shares a scale?
#
# One scale for a whole tensor invites an objection. In large transformers a few features of the activations are much larger than all others, by a factor of a hundred or a thousand. Such an [outlier](term:outlier) sets the amax, and the scale pushes everybody else down, towards 0.
#
# The remedy is to let fewer numbers share a scale. There are three usual choices, which the library calls *grains*: the whole tensor, a row, or a block of 1 × 128 numbers (for weights, a square of 128 × 128).
#
# ![A matrix of 4 × 8 with one outlier, three times. With one scale for the tensor all 31 other numbers become zero. With a scale for each row only the 7 others of its row do. With a scale for each block of 1 by 4 only 3 neighbours do.](../course/10_eight_bits/figures/grains.svg)
#
# The picture assumes that the outlier is a million times as large. How large must it really be? If you have worked with 8-bit *integers* you will expect trouble early, because integers have the same step everywhere: an outlier of 100 makes a step of nearly 1. We plant one large number among 256 × 512 normal ones, let it grow, and measure the error of all others. **From about which size on is the error of one scale for the tensor twice what it was?**

# %%
guess_outlier = 100  # times as large as the others: change this number


# %%
def error_of_others(outlier, low):
    """The relative error of all numbers except the outlier."""
    x = torch.randn(256, 512, generator=torch.Generator().manual_seed(0))
    others = torch.ones_like(x, dtype=torch.bool)
    others[17, 300] = False
    x[17, 300] = outlier
    return relative_error(low(x)[others], x[others])


def as_integers(x):
    """Rounded to whole numbers from −127 to 127, times a scale."""
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


def with_grain(x, grain):
    return fp8.quantize(x, E4M3, grain).dequantized()


ways = {
    "integers of 8 bits, one scale": as_integers,
    "E4M3, by tensor": partial(with_grain, grain=fp8.TENSOR),
    "E4M3, by row": partial(with_grain, grain=fp8.ROW),
    "E4M3, by block": partial(with_grain, grain=fp8.TILE),
}
sizes = [2**power for power in range(2, 23)]
errors = {}
for name, low in ways.items():
    errors[name] = [error_of_others(float(size), low) for size in sizes]
by_tensor = errors["E4M3, by tensor"]
doubled = next(size for size, e in zip(sizes, by_tensor) if e > 2 * by_tensor[0])

# %% tags=["answer"]
study.reveal(
    guess_outlier,
    doubled,
    study.curves(
        {name: (sizes, [100 * e for e in found]) for name, found in errors.items()},
        logx=True,
        logy=True,
        yunit="%",
        xlabel="size of the outlier",
        ylabel="error of the other numbers",
        title="One outlier among 131,072 numbers",
    ),
    unit="times",
    words="A floating-point number carries its own little scale, its exponent. As long as the others stay in the "
    "normal range, which is 15 powers of two wide, they do not notice the outlier. Integers suffer from it at once.",
)

# %% tags=["maintainer"]
assert 2**14 <= doubled <= 2**16
assert errors["E4M3, by block"][-1] < errors["E4M3, by row"][-1] < 0.1 < by_tensor[-1]

# %% [markdown]
# This is the surprise of the lesson: in E4M3 one scale for the tensor is good enough for outliers up to many thousand. It fails where a tensor's own magnitudes span more than 15 powers of two.
#
# **Which grains can be multiplied?** Look at the formula again. A scale for each row of *x*, and one for each row of *W*, still do not depend on *k*:
#
# $$y_{ij} \approx s_i\,t_j\sum_k \hat x_{ik}\hat W_{jk}.$$
#
# So they come out of the sum as well. Scales of blocks along the row do depend on *k*. There the sum has to be cut: each piece of 128 terms is added up in the tensor core, multiplied by the scales of its two blocks, and then added to the other pieces. That costs a multiplication for each 128 terms, outside of the tensor core.

# %%
x = torch.randn(4, 512, generator=generator) * torch.tensor([[1.0], [1e3], [1e-4], [1.0]])
w = torch.randn(6, 512, generator=generator)
low_x = fp8.quantize(x, E4M3, fp8.ROW)  # values (4, 512), scale (4, 1)
low_w = fp8.quantize(w, E4M3, fp8.ROW)  # values (6, 512), scale (6, 1)
y = (low_x.values.float() @ low_w.values.float().t()) * low_x.scale * low_w.scale.t()
print("by row, scales taken out of the sum: ", f"{relative_error(y, x @ w.t()):.1%} off")

low_x = fp8.quantize(x, E4M3, fp8.TILE)  # values (4, 512), scale (4, 4)
low_w = fp8.quantize(w, E4M3, fp8.TILE)
y = torch.zeros(4, 6)
for block in range(4):
    columns = slice(128 * block, 128 * block + 128)
    partial_sum = low_x.values[:, columns].float() @ low_w.values[:, columns].float().t()
    y += partial_sum * low_x.scale[:, block, None] * low_w.scale[:, block]
print("by block, scales within the sum:     ", f"{relative_error(y, x @ w.t()):.1%} off")

# %% [markdown]
# **What breaks.** Here is a trap. Forward adds up over the inputs, along the rows of *x*. But $dW = dy^\mathsf{T}x$ adds up over the *tokens*, along the columns of *x*. A scale for each row of *x*, which is a scale for each token, depends on exactly what is added up, and does not come out of the sum. The values in 8 bits that forward has made are therefore of no use for *dW*: *x* has to be rounded a second time, with a scale for each of its columns. The same holds for *dy*, and for *W* in *dx*. Only one scale for the tensor, or a square block, is the same seen from both sides. This is the reason why weights get squares: they are rounded once.
#
# What happens if one takes them out all the same, here by their mean? There is no error message. The gradient is simply wrong:

# %%
x = torch.randn(64, 32, generator=generator) * torch.logspace(-3, 0, 64)[:, None]
dy = torch.randn(64, 48, generator=generator)
right = dy.t() @ x
by_token = fp8.quantize(x, E4M3, fp8.ROW)
by_column = fp8.quantize(x.t(), E4M3, fp8.ROW)  # x is rounded again, seen from its other side
forgotten = dy.t() @ by_token.values.float() * by_token.scale.mean()
again = dy.t() @ by_column.values.float().t() * by_column.scale.t()
print("dW with the scales of tokens: ", f"{relative_error(forgotten, right):.0%} off")
print("dW with the scales of columns:", f"{relative_error(again, right):.0%} off")

# %% tags=["maintainer"]
assert relative_error(forgotten, right) > 0.5 and relative_error(again, right) < 0.05

# %% [markdown]
# ## Where does the scale come from?
#
# To divide by the scale one must know amax, and to know amax one must have read the whole tensor. So the tensor is read from memory twice, once to find its amax and once to be rounded. This is called scaling by the *present* amax (elsewhere [current](term:current-scaling) or *dynamic* scaling).
#
# The first recipe avoided this with a bet: that a tensor's amax changes little from one step to the next. [Delayed scaling](term:delayed-scaling) takes the scale from the amax of earlier steps, and while it rounds this step's numbers it writes down their amax, for later steps. The tensor is read once. To be on the safe side it takes the largest amax of a [history](term:amax-history) of several steps, 16 in our library and 1,024 in NVIDIA's [Transformer Engine](paper:transformerengine2022).
#
# ![Bars for the amax of nine steps, and a line for what the scale has room for: the largest amax of the last three steps. In step 6 amax jumps fourfold; what lies above the line is cut off. From step 7 on the scale has room for it.](../course/10_eight_bits/figures/delayed.svg)
#
# The bet can be lost in two ways. If amax falls, the scale is too large for a while, and the numbers lie lower in the range than they might. If amax rises, the scale is too small, and the largest numbers are cut off. Let us see which of the two is worse. In the next run all numbers are multiplied by 64 in step 20 and divided by 64 again in step 40; the history has 8 steps. **By how much is the tensor off in step 20?**

# %%
guess_jump = 5  # per cent: change this number

# %%
from collections import deque


class Delayed:
    """Scales from the largest amax of the last steps."""

    def __init__(self, length):
        self.history = deque(maxlen=length)  # what is older falls out

    def __call__(self, x, dtype):
        scale = torch.tensor(1.0)  # in the first step nothing is known
        if self.history:
            scale = scale_for(max(self.history), dtype)
        self.history.append(x.abs().max())  # for the steps to come
        return rounded(x / scale, dtype) * scale


steps = list(range(60))
delayed = Delayed(8)
errors = {"present amax": [], "delayed": []}
for step in steps:
    size = 64.0 if 20 <= step < 40 else 1.0
    x = size * torch.randn(4096, generator=generator)
    errors["present amax"].append(100 * relative_error(scaled(x, E4M3), x))
    errors["delayed"].append(100 * relative_error(delayed(x, E4M3), x))

# %% tags=["answer"]
study.reveal(
    guess_jump,
    round(errors["delayed"][20]),
    study.curves(
        {name: (steps, found) for name, found in errors.items()},
        yunit="%",
        xlabel="step",
        ylabel="error",
        title="Numbers jump by 64 in step 20, and fall back in step 40",
    ),
    unit="%",
    words="When the numbers jump nearly all of them are cut off, for one step. When they fall back nothing is to be "
    "seen: for 8 steps they lie six powers of two lower, still in the normal range.",
)

# %% tags=["maintainer"]
assert errors["delayed"][20] > 80 and max(errors["delayed"][40:]) < 3 and errors["delayed"][21] < 3

# %% [markdown]
# So the two mistakes are not equally bad. A scale that is too large by a few powers of two costs nothing, again because the exponent takes care of it. One that is too small cuts off, and what it cuts off are the largest numbers, all in the same direction: an error with a direction, the first of the two that I announced. This is why one takes the *largest* amax of the history, and why some recipes leave a margin of a power of two above it.
#
# A history has other costs. It is state, which has to be saved in a checkpoint with the weights. An evaluation must not write into it. With activation checkpointing the same tensor is rounded twice in a step and should count once. An infinite amax must not be remembered. In the first step nothing is known. All of this is why delayed scaling is going out of use: torchtitan has removed it, and scales by the present amax, with a compiler that fuses the search for the amax into the kernel before. Transformer Engine still offers both.
#
# ## Ranks agree
#
# With data parallelism each rank has some rows of the batch, and finds the amax of its own rows only. Should it use that?
#
# ![Two ranks with one row each. Rank 0's largest magnitude is 6, rank 1's is 900. With scales of their own they round 0.01 to 0.0098 and 0.0078. With an all-reduce of the maximum both divide by 4 and have 0.0078, as on one rank that has both rows.](../course/10_eight_bits/figures/agreed.svg)
#
# Nothing crashes if it does. Gradients are averaged afterwards, so the replicas stay equal. But the numbers depend on how many ranks there are: the same program on one rank, or on eight, is a different run, and a difference between the two tells you nothing any more about bugs. And there are cases where it is simply wrong. Where a weight is sharded and its shards are gathered in 8 bits, one scale must fit all of them.
#
# The remedy is an all-reduce of the amax, with the maximum as its operation. In the next cell 64 rows of very different sizes lie on one, two or four ranks. We compare what all ranks have after rounding with the rounding of the whole.

# %%
from minidist.collectives import all_reduce_
from minidist.comm import World

sizes = torch.exp2(-torch.arange(64.0) / 3)
activations = torch.randn(64, 32, generator=generator) * sizes[:, None]


def my_rows_rounded(comm, x, agree):
    mine = x.chunk(comm.size)[comm.rank]
    amax = mine.abs().max().reshape(1)
    if agree:
        all_reduce_(comm, amax, "max")  # 4 bytes
    scale = scale_for(amax, E4M3)
    return rounded(mine / scale, E4M3) * scale


whole = scaled(activations, E4M3)
rows = []
for ranks in (1, 2, 4):
    differ = []
    for agree in (False, True):
        parts = World(ranks).run(my_rows_rounded, activations, agree)
        differ.append(int((torch.cat(list(parts)) != whole).sum()))
    rows.append((ranks, *differ))
study.table(
    rows,
    ["ranks", "each has its own scale", "agreed"],
    title="Of 2,048 numbers, how many are not what one rank has?",
)

# %% tags=["maintainer"]
assert all(agreed == 0 for *_, agreed in rows) and rows[0][1] == 0 < rows[1][1] < rows[2][1]

# %% [markdown]
# (With powers of two the numbers in the normal range come out the same, whichever scale is taken. Those that differ are small ones, which a larger scale pushes below it.)
#
# Who has to agree depends on the grain and on what is split. The rule is short: **ranks that hold parts of one block agree on its amax.** With one scale for the tensor, all ranks that hold a part of it must agree. With a scale for each row, only those that split the rows: with [tensor parallelism](lesson:tensor) the ranks that share a layer's inputs, and for *dW*, which sums over the tokens, the data-parallel ranks. With blocks of 128 nobody has to, as long as cuts are multiples of 128. That is one more point for blocks.
#
# ### Predict the cost, then count
#
# An all-reduce of a few bytes is all latency: $2(n-1)\alpha$ by a ring, as [Messages](lesson:messages) showed. Scaling by the present amax has to know it *now*, so there is one all-reduce for each tensor that is split. Take 48 linear layers, with data parallelism: *x* and *dy* of each are split, which makes 96 tensors. Delayed scaling needs the amax only in the next step, so all 96 can travel in one message at the end of the step:
#
# $$T_\text{present} = 96\cdot 2(n-1)\alpha, \qquad T_\text{delayed} = 2(n-1)\alpha.$$
#
# **How many milliseconds does a step take longer on 16 ranks, with α = 5 µs, if the present amax is agreed on?**

# %%
guess_agreeing = 0.1  # milliseconds: change this number


# %%
def agree_on_all(comm, tensors, in_one_message):
    amaxes = torch.ones(tensors)
    if in_one_message:
        all_reduce_(comm, amaxes, "max")
    else:
        for i in range(tensors):
            all_reduce_(comm, amaxes[i : i + 1], "max")


TENSORS = 96
ALPHA = 5e-6
ns = [2, 4, 8, 16]
lines = {
    "present": (ns, [TENSORS * 2 * (n - 1) * ALPHA for n in ns]),
    "delayed": (ns, [2 * (n - 1) * ALPHA for n in ns]),
}
points = {}
for name, in_one_message in [("present", False), ("delayed", True)]:
    worlds = [World(n) for n in ns]
    for world in worlds:
        world.run(agree_on_all, TENSORS, in_one_message)
    points[name] = ns, [world.time for world in worlds]

# %% tags=["answer"]
study.reveal(
    guess_agreeing,
    round(1e3 * points["present"][1][-1], 1),
    study.curves(
        lines,
        points=points,
        logx=True,
        logy=True,
        yunit="s",
        xlabel="ranks, n",
        ylabel="time to agree, in a step",
        title="96 amaxes, one by one or together (modelled links)",
    ),
    unit="ms",
    words="14 ms for 384 bytes. A tree would need 2 log₂ n rounds instead of 2(n − 1), and a step of a large model takes a "
    "second or more. But it is in the way of every single product, and cannot be hidden behind one.",
)

# %% tags=["maintainer"]
for name, (_, predicted) in lines.items():
    for time, counted in zip(predicted, points[name][1]):
        assert abs(counted / time - 1) < 0.01

# %% [markdown]
# That is why some trainers leave it out for activations and gradients, and accept a run that depends on the number of ranks.
#
# ## Does it train?
#
# Now for the test that counts. We train the network that reads digits with its two large layers in 8 bits, from five seeds, in seven ways. The last layer, the head, stays in fp32. (Why? See below.) The library puts all layers of a module in 8 bits by `eight_bits_`, in place; it takes the name of a grain, or a function that makes a layer's scaling. Two of the ways are wrong on purpose: gradients without a scale, and a history that is filled in the first step and never again.
#
# **Which of them reach the loss of fp32, or differ from it by less than five seeds differ among themselves?**

# %%
guess_reach = ["by block"]  # add to this list


# %%
class NoScaleForGradients(fp8.Present):
    """One scale for each tensor, but gradients are rounded as they are."""

    def __init__(self, split):
        super().__init__("tensor", split)

    def __call__(self, x, name, turned=False, recorded=True):
        if name == "grad":
            return fp8.quantize(x, E5M2, fp8.TENSOR, scale=torch.ones(1, 1))
        return super().__call__(x, name, turned, recorded)


def train(seed, scaling=None, steps_recorded=0, steps=32):
    """The loss over all digits, after training with two layers in eight bits."""
    network = mlp([64, 128, 128, 10], seed)
    scalings = []
    if scaling is not None:
        scalings = fp8.eight_bits_(network[:-1], scaling)
    # ε has to be small, because the gradients are
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, eps=1e-16)
    random = torch.Generator().manual_seed(seed)
    for step in range(steps):
        batch = torch.randint(len(task.x), (64,), generator=random)
        loss = cross_entropy(network(task.x[batch]), task.y[batch]) / MICRO_BATCHES
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < steps_recorded:
            fp8.update(scalings)  # this step's amax counts from the next step on
    with torch.no_grad():
        return cross_entropy(network(task.x), task.y).item()


history = partial(fp8.Delayed, 16)
ways = {
    "fp32": (None, 0),
    "by tensor": ("tensor", 0),
    "by row": ("row", 0),
    "by block": ("block", 0),
    "delayed": (history, 32),
    "no scale for gradients": (NoScaleForGradients, 0),
    "amax of the first step only": (history, 1),
}
reached = {name: [train(seed, *way) for seed in range(5)] for name, way in ways.items()}
spread = max(reached["fp32"]) - min(reached["fp32"])
rows = [("fp32", f"{sum(reached['fp32']) / 5:.2f}", f"spread {spread:.3f}")]
right = []
for name, losses in reached.items():
    if name != "fp32":
        above = [loss - full for loss, full in zip(losses, reached["fp32"])]
        if max(map(abs, above)) < spread:
            right.append(name)
            verdict = "within the spread of fp32"
        else:
            verdict = f"at least {min(above) / spread:.0f} times the spread above fp32"
        rows.append((name, f"{sum(losses) / 5:.2f}", verdict))

# %% tags=["answer"]
study.reveal(
    guess_reach,
    right,
    study.table(
        rows,
        ["", "mean loss", "seed by seed"],
        title="32 steps, five seeds",
    ),
    words="Without a scale the two layers get no gradient, and only the head learns. With the scales of the first step the "
    "network learns at first, and then cuts off what has grown since.",
)

# %% tags=["maintainer"]
assert right == ["by tensor", "by row", "by block", "delayed"]
for name in ("no scale for gradients", "amax of the first step only"):
    assert min(a - b for a, b in zip(reached[name], reached["fp32"])) > 2 * spread

# %% [markdown]
# All four right ways are within what the seed alone changes, and they can hardly be told apart. This is a warning: *on a small task you will not find out which grain you need.* The wrong ways, on the other hand, lose by several times the spread of the five seeds, with every seed. Their symptoms are worth remembering. Where gradients are lost the loss stalls from the start, and the gradient norm of a layer is exactly 0. Where a scale is stale the loss falls and then lags behind, the amax of the values in 8 bits sits at 448 exactly, and the share of numbers at the limit grows.
#
# ## What stays in 16 bits, or in 32
#
# Only the products of the layers' linear maps are in 8 bits. The rest stays as it was in the lesson before, for reasons that you can now give:
#
# | what | why not in 8 bits |
# |---|---|
# | master weights, optimizer | an update is much smaller than a sixteenth of its weight: it would always be lost |
# | sums of gradients, losses, norms | many terms are added up, or cancel |
# | the residual stream | every layer adds to it a little, and what is lost is lost for all later layers |
# | scores of attention | an exponential makes a large error of a small one |
# | embedding and head | their errors go straight into the loss; the head's gradients span the most powers of two |
# | biases | few FLOPs, nothing to gain |
#
# Take the scores as an example. In the table at the top 42 became 40. That is a relative error of 5 %, like any other. But the softmax takes the exponential, and $e^{42}/e^{40}$ is 7.4: the attention to this token is wrong by a factor of seven. Worse, errors that would cancel no longer do. Of two scores, one 2 too large and one 2 too small, the first gains a factor of 7.4 and the second becomes 0.14, so their mean is 3.8 times what it was. This is the second error with a direction.
#
# ## What it saves
#
# ### Memory
#
# Of *x*, the library keeps for backward one byte a number, and the scales. By blocks of 128, one scale in fp32 is added to every 128 bytes, 3 %. A hook of autograd shows each tensor that it keeps:

# %%
x = torch.randn(1024, 512, generator=generator, requires_grad=True)
w = torch.randn(384, 512, generator=generator, requires_grad=True)
rows = []
for grain in ("tensor", "row", "block"):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fp8.linear(x, w, scaling=fp8.Present(grain))
    values, scales, *_ = saved  # and the weight, with its scales
    nbytes = values.nbytes + scales.nbytes
    rows.append((f"by {grain}", values.numel(), scales.numel(), f"{nbytes / (2 * x.numel()):.1%}"))
study.table(rows, ["", "numbers of x", "scales", "bytes, of those in 16 bits"])

# %% tags=["maintainer"]
assert [row[2] for row in rows] == [1, 512, 4096] and rows[2][3] == "51.6%"

# %% [markdown]
# Parameters are not smaller. The weights in 16 or 32 bits are still there, and their 8-bit form is made afresh in each step. Of the model states nothing is saved.
#
# ### Time
#
# Is a layer twice as fast? The products are. But rounding is work, too, and what it costs is bytes moved. Let *x* have *T* × *H* numbers and the weight *H* × *H*. On an H100 as the model of this course has it, products reach 64 % of the data sheet (989 TFLOP/s in 16 bits, 1,978 in 8), memory moves at 81 % of 3.35 TB/s, and a kernel takes 5 µs to start. In 16 bits a layer costs three products:
#
# $$T_{16} = 3\left(\alpha + \frac{2TH^2}{0.64\cdot 989\cdot10^{12}}\right).$$
#
# In 8 bits the products take half of that, and *x*, *W* and *dy* must be rounded. At best this takes two kernels for each: one reads 2 bytes a number to find the amax, and one reads them again and writes 1, together 5 bytes a number. In the worst case every operator of the recipe is a kernel of its own (absolute value, maximum, division, clamp, conversion, …), each of which reads and writes everything, much of it in fp32. That is what plain PyTorch does, and so does our library, whose code is meant to be read. If one goes through its operators, scaled by tensor, one counts 72 kernels in all, and 66 bytes a number.
#
# **For T = H = 4,096, how many times as fast as 16 bits is our library, operator by operator?**

# %%
guess_faster = 1.9  # times: change this number

# %%
from minidist.comm.cluster import H100
from minidist.study import measure

RATE = H100.efficiency * 989e12
MEMORY = H100.streaming * 3.35e12


def predicted(width, tokens, bits, kernels=0, bytes_a_number=0):
    """Forward and backward of a linear layer on a modelled H100. The last two: what rounding takes."""
    products = 3 * (5e-6 + 2 * tokens * width**2 / RATE * bits / 16)
    numbers = 2 * tokens * width + width**2  # x and dy, and W
    return products + kernels * 5e-6 + bytes_a_number * numbers / MEMORY


def layer(x, w, dy, multiply):
    multiply(x, w).backward(dy)


def run(width, multiply, tokens=4096):
    """Seconds on the modelled H100. Tensors on the device "meta" have no numbers."""
    make = partial(torch.empty, dtype=torch.bfloat16, device="meta")
    x = make(tokens, width).requires_grad_()
    w = make(width, width).requires_grad_()
    return measure(layer, x, w, make(tokens, width), multiply, where="meta").time


widths = [2**k for k in range(9, 15)]
kinds = {
    "16 bits": (16,),
    "8 bits, two kernels a matrix": (8, 6, 5),
    "8 bits, operator by operator": (8, 72, 66),
}
lines = {}
for name, kind in kinds.items():
    lines[name] = widths, [predicted(width, 4096, *kind) for width in widths]
in_eight = partial(fp8.linear, scaling=fp8.Present("tensor"))
points = {
    "16 bits": (widths, [run(width, linear) for width in widths]),
    "8 bits, operator by operator": (widths, [run(width, in_eight) for width in widths]),
}
faster = run(4096, linear) / run(4096, in_eight)

# %% tags=["answer"]
study.reveal(
    guess_faster,
    round(faster, 2),
    study.curves(
        lines,
        points=points,
        logx=True,
        logy=True,
        yunit="s",
        xlabel="width H of the layer",
        ylabel="forward and backward",
        title="A linear layer with 4,096 tokens on a modelled H100",
    ),
    unit="times",
    words="It is slower, by far. Rounding moves more bytes than three products of this size take time for. With two kernels a "
    "matrix a layer of this width gains, and a narrow one still loses.",
)

# %% tags=["maintainer"]
assert 0.3 < faster < 0.45
assert abs(run(4096, linear) / predicted(4096, 4096, 16) - 1) < 0.1
assert abs(run(4096, in_eight) / predicted(4096, 4096, 8, 72, 66) - 1) < 0.05
assert 1.35 < predicted(4096, 4096, 16) / predicted(4096, 4096, 8, 6, 5) < 1.6
assert (
    1000
    < min(h for h in range(512, 4096) if predicted(h, 4096, 8, 6, 5) < predicted(h, 4096, 16))
    < 2000
)

# %% [markdown]
# (The points lie a little above the lines where the tiles of a product do not fill the 132 processors of the chip evenly, which the formula leaves out.)
#
# So 8 bits without fused kernels are a loss. `torch.compile`, which turns the recipe into a few kernels, is a part of the technique and not an extra. What do real machines say? With a compiler, [torchao](paper:torchao2024) measured on an H100 that a layer from 2,048 to 1,024 numbers with 1,024 tokens runs at 0.80 times the speed of bf16, and one from 8,192 to 16,384 with 4,096 tokens at 1.39 times. For the training of Llama 3 8B as a whole it [reports](paper:torchao2025) 1.19 times the tokens a second when scaled by tensor, and 1.10 times when scaled by row. That is the gain to expect: not 2, because of the rounding, and because only a part of a step is in these products.
#
# The slider moves the number of tokens. Products grow with $TH^2$ and rounding with $TH$, so it is the width that decides whether 8 bits pay.


# %%
def layer_seconds(width, tokens):
    return {name: predicted(width, tokens, *kind) for name, kind in kinds.items()}


study.explore(
    layer_seconds,
    over="width",
    width=[2**k for k in range(9, 15)],
    tokens=[256, 1024, 4096, 16384, 65536],
    start={"tokens": 4096},
    unit="s",
    logx=True,
    logy=True,
    xlabel="width H of the layer",
    ylabel="forward and backward",
    title="A linear layer on a modelled H100",
)

# %% [markdown]
# **When not to use it.** *Narrow layers*: below a width of about 1,000 to 2,000 the rounding eats up what the products gain. *Older GPUs*: an A100 has no units for FP8; the emulation would only cost. *Without fused kernels*, as we have seen. And *before bf16 works*: get the run right in bf16, switch to 8 bits, and compare the curves; otherwise you have one more suspect whenever the loss looks odd.
#
# Newer hardware takes over part of this lesson. Blackwell's tensor cores accept [MXFP8](term:mxfp8), in which every 32 numbers share a scale that is a power of two, stored in one byte, and multiply by these scales themselves ([Rouhani et al. 2023](paper:rouhani2023)). It is scaling by block, with smaller blocks and without the extra work.
#
# ## The library's file
#
# All of this is in [minidist/train/fp8.py](file:minidist/train/fp8.py), for all three grains, for layers that are split over ranks, and with real tensor cores where there are some. Its main path has four pieces. A matrix becomes values and scales:

# %%
study.source(fp8.quantize, docstring=False)

# %% [markdown]
# `spread` lays the scales of blocks out over their numbers. `scale_of` is our `scale_for`, with two differences: it finds the power of two by wiping the fraction off the bits of a number in fp32, which is exact, where a logarithm may be off by its last bit just at a power of two; and inf and nan come through it, so that a scaler for fp16 still sees an overflow.
#
# Where a scale comes from is decided by an object that is called with the matrix and its name. `Present` finds the amax and lets the ranks agree on it, dimension by dimension:

# %%
study.source(fp8.Present.agreed)

# %% [markdown]
# A dimension with `side is None` is covered by one block as a whole, so all who split this dimension agree: the rule of three sections above, in two lines. `turned` is for the matrix seen from its other side, for *dW*.
#
# The third piece is the layer itself. Compare it with our naive one. It keeps for backward what *dW* needs, in 8 bits, and the weight as it is, and asks `transposed` for the other side of a matrix, which is rounded again only where the blocks are not the same from both sides:

# %%
study.source(fp8.EightBitLinear.forward)

# %%
study.source(fp8.EightBitLinear.backward)

# %% [markdown]
# `once_differentiable` only says that nobody may differentiate this backward again. `dx` takes *dy* as it was rounded first; for *dW* its other side is asked for, as it was for *x*.
#
# And the end of a step with delayed scaling. All histories of all layers are agreed on in one message, and what is not finite is not remembered:

# %%
study.source(fp8.update, docstring=False)

# %% [markdown]
# The rest of the file is `product`, which multiplies on tensor cores or emulates, `aligned` and `laid_out`, which bring matrices into the form that the kernels of cuBLAS want, and `eight_bits_`, which puts `linear` in the place of each layer's product, after asking a tensor-parallel layer with whom it is split.
#
# ## In real processes, and on a cluster
#
# Two processes train with data parallelism, first with scales of their own and then with scales that they agree on: `eight_bits_` is told whose samples belong to the same batch. The first half of each batch is much darker than the second, so that the two ranks' amaxes differ. The oracle is one process with the whole batch. (We compute in double precision here, so that nothing but the rounding to 8 bits can make a difference.)

# %%
from minidist.comm import launch
from minidist.parallel.data import DataParallel


def program(comm, task, agree, steps=6):
    """Losses of a run in which the first half of each batch is 16,384 times as dark as the rest."""
    brightness = torch.ones(64, 1, dtype=torch.float64)
    brightness[:32] = 2.0**-14
    network = mlp([64, 128, 128, 10], dtype=torch.float64)
    fp8.eight_bits_(network[:-1], "tensor", tokens=comm if agree else None)
    model = DataParallel(network, comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for step in range(steps):
        batch = torch.arange(64 * step, 64 * step + 64).chunk(comm.size)[comm.rank]
        loss = cross_entropy(model(task.x[batch] * brightness[batch % 64]), task.y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(all_reduce_(comm, loss.detach().clone(), "mean").item())
    return torch.tensor(losses)


double = digits()
serial = World(1).run(program, double, True)[0]
rows = []
for name, agree in [("each has its own scales", False), ("agreed", True)]:
    losses = launch(program, 2, double, agree)[0]
    gap = float((losses - serial).abs().max())
    rows.append((name, "below 1e-9" if gap < 1e-9 else "more than 1e-6" if gap > 1e-6 else "?"))
study.table(rows, ["2 processes", "losses of six steps, off those of 1 process"])

# %% tags=["maintainer"]
assert [row[1] for row in rows] == ["more than 1e-6", "below 1e-9"]

# %% [markdown]
# The parallel program is the serial one again, although each number was rounded to one of 256.
#
# On a cluster, [examples/train_gpt.py](file:examples/train_gpt.py) trains a GPT with its layers in 8 bits; `--fp8` takes the grain, and `--amp` says what the rest is computed in:
#
# ```
# torchrun --nproc-per-node 8 examples/train_gpt.py --amp O1 --half bfloat16 --fp8 block
# torchrun --nproc-per-node 8 examples/train_gpt.py --amp O2 --half bfloat16 --fp8 tensor --dp 4 --tp 2
# ```
#
# ## Takeaways
#
# - E4M3 has 3 bits of fraction and ends at 448; E5M2 has 2 and ends at 57,344. Activations and weights take the first, gradients the second.
# - A scale moves the largest number to the top of the range. A power of two loses nothing, and one scale for each tensor makes loss scaling superfluous.
# - Scales come out of a sum if they do not depend on what is summed over. Forward and *dW* sum over different dimensions: scales of rows are rounded twice.
# - An exponent is a small scale of its own. A scale may be too large by some powers of two; too small, it cuts off the largest numbers, and nobody tells you.
# - The present amax costs reading a tensor twice. A history costs state, and one bad step whenever amax jumps.
# - Ranks that hold parts of one block agree on its amax, or the run depends on their number.
# - Products are twice as fast; a layer is so only if it is wide and rounding is fused. Masters, norms, scores, residuals and the head stay as they were.
#
# ## Further reading
#
# - paper:micikevicius2022 The two formats, section 3; which tensors, section 4.1.
# - paper:deepseek2024 Blocks, what stays in more bits, and the sums of tensor cores: section 3.3.
# - paper:transformerengine2022 The recipes: delayed, current, by block, and MXFP8.
# - paper:torchao2024 For which sizes of a layer it pays.
# - paper:rouhani2023 Formats whose blocks of 32 numbers share a scale.
