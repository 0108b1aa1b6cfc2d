# %% [markdown]
# # 09 · Mixed precision
#
# A number in single precision, [fp32](term:fp32), has 32 bits. Most of them are wasted on a gradient: nobody needs seven decimal digits of what is an estimate anyway. With 16 bits a number takes half the memory and half the time on a wire. And the [tensor cores](term:tensor-core) of a GPU, units that do nothing but multiply small matrices, multiply such numbers many times as fast. So people tried to train with 16 bits, and their networks did not learn.
#
# This lesson finds out why, in three experiments, each of which loses something different: gradients, updates, sums. Then it builds a remedy for each, and puts them together into what everybody calls [mixed precision](term:mixed-precision).
#
# Here is the first experiment. A small network learns to read digits. Its batch has 4 million samples, far too many to be processed at once, so it is cut into [micro-batches](term:micro-batch) of 128, whose gradients are added up. Forward and backward of one micro-batch run in 16 bits. **Of 100 gradients that are not zero in fp32, how many come out as exactly 0?**

# %%
guess = 1  # of 100: change this number

# %% [markdown]
# ## On paper: four formats, six numbers
#
# A floating-point number is a sign, a power of two, and a fraction:
#
# $$\pm\,1.\text{fraction}\cdot 2^{\text{exponent}}.$$
#
# Take 6.5. It lies between 4 and 8, so its exponent is 2, and 6.5 = 1.625 · 2². The 1 before the point is always there and need not be stored. What remains, 0.625 = ½ + ⅛, is 0.101 in binary, so the bits of the fraction are 101000….
#
# The bits for the exponent decide how large and how small numbers may be, the [range](term:range). The bits for the fraction decide how closely they lie, the [precision](term:precision). With 16 bits one can buy more of one or more of the other: [fp16](term:fp16) has 5 bits of exponent and 10 of fraction, [bf16](term:bf16) has 8 and 7. (TF32 has to wait until the end of the lesson.)
#
# ![The bits of four formats. fp32: 1 sign, 8 exponent, 23 fraction. TF32: 1, 8, 10. bf16: 1, 8, 7. fp16: 1, 5, 10.](../course/09_precision/figures/formats.svg)
#
# In fp16 our 6.5 is stored as `0 10001 1010000000`: sign, exponent, fraction. (Exponents may be negative, so 15 is added before they are stored, and 127 in the other formats. 17 is 10001 in binary.)
#
# ### Steps
#
# How closely do the numbers lie? Those of a toy format with 3 bits of exponent and 2 of fraction can all be drawn.
#
# ![A number line from 0 to 4 with all numbers of a toy format. The distance between neighbours halves at 2, 1 and ½. An arrow from 2.75 to 3: a tie goes to an even number of steps. Below, the part from 0 to ½ enlarged: under ¼ numbers are subnormal, and half a step above zero goes to 0.](../course/09_precision/figures/toy_format.svg)
#
# Two bits of fraction make four numbers between 1 and 2, four between 2 and 4, and four between ½ and 1. I shall call the distance between neighbours a *step*. It doubles wherever a power of two is passed.
#
# A result that falls between two numbers is [rounded](term:rounding) to the nearer one, and from the middle to the one that is an even number of steps ("ties to even"). So 2.75, between 2.5, which is 5 steps of ½, and 3, which is 6, goes to 3.
#
# Near zero the pattern must end. The smallest exponent of the toy is −2, so the smallest number with a leading 1 is ¼. Below it the 1 is given up, and numbers are $0.\text{fraction}\cdot2^{-2}$, in the same steps of 1/16 down to 0. They are called [subnormal](term:subnormal-number), and the smaller they are, the fewer digits they have left. Half a step above zero is a tie, and goes to 0.
#
# fp16 is built in the same way. Of the 32 patterns of its exponent one is reserved for zero and subnormal numbers, and one for `inf`, infinity, and `nan`, "not a number", the result of $\infty-\infty$, $0\cdot\infty$ or $\frac{0}{0}$. The others are the exponents from −14 to 15. So:
#
# - The step between $2^p$ and $2^{p+1}$ is $2^{p-10}$: 1/1024 between 1 and 2, and 2 between 2,048 and 4,096.
# - The largest number is $(2-2^{-10})\cdot2^{15}$ = 65,504. What is larger after rounding [overflows](term:overflow): it becomes infinite.
# - Below $2^{-14}$ numbers are subnormal, in steps of $2^{-24}$. Half such a step, $2^{-25}$, and whatever is smaller [underflows](term:underflow): it becomes 0.
#
# The next cell rounds six numbers to three formats. Before you run it, predict which of the 18 results will be off, and in which direction.

# %%
import math

import torch
from IPython.display import display

from minidist import study

f16 = torch.float16
f32 = torch.float32
bf16 = torch.bfloat16
torch.set_num_threads(1)  # the networks are small

# %% tags=["exact-numbers"]
numbers = {
    "1 + 2⁻⁹": 1 + 2**-9,
    "1 + 2⁻¹²": 1 + 2**-12,
    "2049": 2049.0,
    "70,000": 7e4,
    "10⁻⁸": 1e-8,
    "10⁻⁴⁰": 1e-40,
}
rows = []
for name, x in numbers.items():
    rounded = [torch.tensor(x).to(dtype).item() for dtype in (f32, f16, bf16)]
    rows.append([name] + [f"{value:.8g}" for value in rounded])
study.table(rows, ["number", "fp32", "fp16", "bf16"], title="Range and rounding")

# %% [markdown]
# Go through the rows. Next to 1 the step of bf16 is $2^{-7}$, so $2^{-9}$ is a quarter of a step and vanishes, while it is two steps of fp16. $2^{-12}$ is a quarter of a step of fp16. For fp16 the number 2049 is a tie: 1,024 steps of 2 are even, 1,025 are not. 70,000 is too large for fp16; bf16 has steps of 512 there, and takes 137. $10^{-8}$ is less than $2^{-25}$, about $3\cdot10^{-8}$, so fp16 makes it 0. And $10^{-40}$ is subnormal in fp32 and bf16: even fp32 has only five digits of it right.
#
# So fp16 is fine-grained but narrow. It ends at 65,504 and has nothing below $2^{-24}$, about $6\cdot10^{-8}$. bf16 has the range of fp32, in steps of nearly one per cent. (Rounding a number by hand is your first exercise.)
#
# ## First loss: gradients underflow
#
# The loss is a mean over the whole batch, and so is its gradient. For the gradients of the micro-batches to add up to it, each micro-batch divides the sum of its losses by the size of the *whole* batch, here 4 million or $2^{22}$, and so every gradient is divided by it as well. In fp32 this is harmless. Let us compute the gradients of one micro-batch there, and count them by their exponents.
#
# The task and the network come from the package. `digits` are handwritten digits, images of 64 pixels; `mlp([64, 64, 64, 10])` has three linear layers with ReLU between them, and turns 64 pixels into 10 logits. `exponents` counts how many numbers lie between each power of two and the next, and what fp16 would make of them.

# %%
from torch.nn.functional import cross_entropy

from minidist.models import mlp
from minidist.tasks import digits
from minidist.train.amp import exponents

task = digits(f32)
WHOLE = 2**22  # samples in the whole batch
x = task.x[:128]
y = task.y[:128]


def part_of_loss(output, y):
    """This micro-batch's part of the mean loss over the whole batch, always in fp32."""
    return cross_entropy(output.float(), y, reduction="sum") / WHOLE


def gradients(network, x, y, scale=1.0):
    """The gradients of all parameters, `scale` times as large as they should be."""
    network.zero_grad()
    loss = part_of_loss(network(x), y) * scale
    loss.backward()
    return [p.grad for p in network.parameters()]


sizes = [64, 64, 64, 10]
exact = gradients(mlp(sizes), x, y)
study.exponents(
    {"as they are": exponents(exact), "times 2¹⁶": exponents(exact, scale=2.0**16)},
    title="Gradients of a micro-batch, by exponent",
)

# %% [markdown]
# Read the upper picture. Each bar is the share of the gradients between one power of two and the next. To the left of the first dashed line, at $2^{-25}$, fp16 makes them 0: more than a third of those that are not zero. Between the lines they are subnormal. Only to the right of the second line, at $2^{-14}$, would they have all their digits, and not a single one is there. (About a quarter of the gradients are 0 in fp32 too and have no bar, mostly because a pixel is black or a neuron silent in all images.)
#
# But see how narrow the hill is. It covers 21 powers of two, and fp16 holds 40, from $2^{-24}$ to $2^{15}$. The hill merely stands in the wrong place.
#
# That suggests a remedy, and it is wonderfully cheap. The backward pass is the chain rule. It starts with the derivative of the loss by itself, which is 1, and every gradient is that number times the derivatives on the way, summed over all ways. Start with a number *S* in place of 1, and every gradient is *S* times as large. That is what happens if the loss is multiplied by *S*. So *multiply the loss by S, and divide the gradients by S afterwards*. This is [loss scaling](term:loss-scaling). If *S* is a power of two, both operations change only exponents and lose no digit.
#
# For example, the gradient $3\cdot2^{-26}$ is three quarters of the smallest step of fp16. It is rounded to a whole step, and is off by a third. Times $2^{16}$ it is $3\cdot2^{-10}$, which fp16 holds exactly, and fp32 can divide that by $2^{16}$ again. The lower picture shows all gradients times $2^{16}$, the schematic the idea.
#
# ![The number line of fp16. It has its full precision from 2⁻¹⁴ up to 65,504; below, down to 2⁻²⁴, its digits fade; what is smaller becomes 0, what is larger infinite. Above, a part of the hill of gradients lies where they become 0. Below, multiplied by S = 2¹⁶, all of it lies inside the range.](../course/09_precision/figures/loss_scaling.svg)
#
# Now let us really run forward and backward in fp16, where every intermediate result is rounded, too. `.half()` converts the parameters of a network. We try many scales. How wide will the range of good ones be?


# %%
def outcome(scale):
    """Shares of the gradients, in %: those that wrongly became 0, and those that are not finite."""
    low = gradients(mlp(sizes).half(), x.half(), y, scale)
    low = torch.cat([g.flatten().float() for g in low])
    high = torch.cat([g.flatten() for g in exact])
    zeros = (low == 0)[high != 0].float().mean().item()  # among those that are not 0 in fp32
    not_finite = (~low.isfinite()).float().mean().item()
    return round(100 * zeros), round(100 * not_finite)


powers = list(range(0, 45, 4))
outcomes = [outcome(2.0**k) for k in powers]

# %% tags=["answer"]
study.reveal(
    guess,
    outcomes[0][0],
    study.curves(
        {
            "become 0": (powers, [zeros for zeros, _ in outcomes]),
            "inf or nan": (powers, [not_finite for _, not_finite in outcomes]),
        },
        yunit="%",
        xlabel="S = 2 to the power",
        ylabel="share of the gradients",
        title="Too small a scale, too large a scale",
    ),
    unit="of 100",
    words="Without a scale a third is lost, and half of what survives is one or two steps of 2⁻²⁴ large, a "
    "bit or two. Everything from S = 2¹² to 2³² is fine. At 2⁴⁰ the very first gradients overflow, those "
    "of the logits, which are up to 2⁻²² without a scale, and all that is computed from them is inf or nan. "
    "(The 9 % that stay finite belong to neurons that are silent for all samples.)",
)

# %% tags=["maintainer"]
found = dict(zip(powers, outcomes, strict=True))
assert 30 < found[0][0] < 37 and all(found[k] == (0, 0) for k in range(12, 33, 4))
assert found[44][1] > 50
nonzero = torch.cat([g.flatten() for g in exact]).abs()
nonzero = nonzero[nonzero > 0]
assert nonzero.min().log2() > -39 and nonzero.max().log2() < -18
assert 1 / 3 < (nonzero <= 2**-25).float().mean() < 0.4
assert ((nonzero[nonzero > 2**-25] * 2**24).round() <= 2).float().mean() >= 0.5
network = mlp(sizes)
typical = torch.autograd.grad(cross_entropy(network(x), y), list(network.parameters()))
typical = torch.cat([g.flatten() for g in typical]).abs()
assert 0.0015 < typical[typical > 0].median() < 0.0025
weights = torch.cat([p.detach().flatten() for p in network.parameters()]).abs()
assert 0.075 < weights[weights > 0].median() < 0.09
assert torch.tensor(6.5).half().view(torch.int16).item() == 0b0_10001_1010000000

# %% [markdown]
# ## Second loss: updates
#
# Suppose the gradients are perfect. A weight has the value 1, and each step adds $2^{-12}$ to it, 4,096 times, so that it ought to end at 2. **Where does it end in fp16?**

# %%
guess_end = 1.9  # change this number


# %%
def walk(dtype, begin, steps=4096):
    """The weight after every 512 updates of 2⁻¹²."""
    w = torch.tensor(begin, dtype=dtype)
    seen = [begin]
    for step in range(1, steps + 1):
        w += 2.0**-12
        if step % 512 == 0:
            seen.append(w.item())
    return list(range(0, steps + 1, 512)), seen


walks = {
    "fp32": walk(f32, 1.0),
    "fp16": walk(f16, 1.0),
    "fp16, begun at ¼": walk(f16, 0.25),
}

# %% tags=["answer"]
study.reveal(
    guess_end,
    walks["fp16"][1][-1],
    study.curves(
        walks, xlabel="updates", ylabel="the weight", title="Half a step or less leaves no trace"
    ),
    words="Above 1 the steps of fp16 are 2⁻¹⁰. An update of a quarter of a step is lost, every time. Begun "
    "at ¼, where a step is 2⁻¹², the weight walks up to ½. There a step is 2⁻¹¹ and the update is half of "
    "it: a tie, which goes to the even neighbour. ½ is 1,024 steps, so the weight stays where it is.",
)

# %% tags=["maintainer"]
assert [seen[-1] for _, seen in walks.values()] == [2, 1, 0.5]

# %% [markdown]
# A weight and its update may each be representable, and still the update is lost, because the two are too far apart. When exactly? A weight between $2^p$ and $2^{p+1}$ has steps of $2^{p-10}$ in fp16, and an update of less than half a step, $2^{p-11}$, leaves no trace. That is between 1/2,048 and 1/4,096 of the weight, according to where the weight lies. In bf16, which has three bits less, it is between 1/256 and 1/512.
#
# Real updates are of that size. In our network a typical weight is 0.08. A typical gradient, of a loss averaged over 128 samples, is 0.002, which at a learning rate of 0.01 makes an update of 0.00002: one part in 4,000.
#
# What does this do to training, with plain SGD? In the next cell the weights are *remembered* in one format from step to step, and rounded to another before they *compute*; everything else is in fp32. The first three rows remember and compute in the same format. Watch what the fourth does. `lost(updates, weights, dtype)` is the share of the updates that leave their weight in that format as it is.

# %%
from minidist.train.amp import lost


def train_rounded(remembers, computes, seed, steps=160, rate=0.01):
    """The last loss, and the share of the updates that the last step lost."""
    network = mlp(sizes, seed)
    parameters = list(network.parameters())
    weights = [p.detach().to(remembers) for p in parameters]
    for _ in range(steps):
        for p, w in zip(parameters, weights):
            p.data.copy_(w.to(computes))  # rounded, in a tensor of fp32
        loss = cross_entropy(network(x), y)
        updates = [-rate * g for g in torch.autograd.grad(loss, parameters)]
        before = weights
        weights = [(w.float() + update).to(remembers) for w, update in zip(weights, updates)]
    return loss.item(), lost(updates, before, remembers)


ways = {
    "fp32": (f32, f32),
    "fp16": (f16, f16),
    "bf16": (bf16, bf16),
    "fp32, computing in bf16": (f32, bf16),
}
rows = []
losses = {}
for name, formats in ways.items():
    results = [train_rounded(*formats, seed) for seed in range(5)]
    losses[name] = [loss for loss, _ in results]
    rows.append([name] + [f"{loss:.3f}" for loss in losses[name]] + [f"{results[-1][1]:.0%}"])
study.table(
    rows,
    ["weights in", *(f"seed {seed}" for seed in range(5)), "updates lost, seed 4"],
    title="Loss after 160 steps",
)

# %% tags=["maintainer"]
spread = max(losses["fp32"]) - min(losses["fp32"])
assert all(b > a for a, b in zip(losses["fp32"], losses["fp16"]))
assert min(b - a for a, b in zip(losses["fp32"], losses["bf16"])) > spread
mastered = losses["fp32, computing in bf16"]
assert all(abs(b / a - 1) < 0.01 for a, b in zip(losses["fp32"], mastered))

# %% [markdown]
# In fp16 more than 60 % of the updates are lost, and the loss hardly suffers, since they are the small ones and training has only begun. bf16, with steps eight times as coarse, is the worse of the two. Nearly all of its updates leave no trace, and its loss, which began at about 2.35, has come less than half as far down as in fp32. And the fourth row? It computes with the coarse weights of bf16 as well, and yet its loss is that of fp32.
#
# This is the remedy. The optimizer works on a copy of the weights in fp32, the [master weights](term:master-weights), and from it the 16-bit weights for the next forward are made afresh, by rounding. Why is that better, when the forward sees the same coarse numbers? Follow three updates of 0.0003 in the picture. Without masters each is rounded by itself, and three times nothing is nothing. With masters they first *add up*, and only the sum is rounded: the 16-bit weight stays where it is for a while, and then takes a whole step at the right time. The price is 4 bytes for each parameter.
#
# ![The fp16 numbers next to 1 are 1, 1 + 1/1024 and 1 + 2/1024. Three updates of 0.0003 are added to the weight 1. In fp16 every sum is rounded back to 1. In fp32 the master weight goes to 1.0003, 1.0006 and 1.0009, and its rounding to fp16 is 1 + 1/1024 after the second one.](../course/09_precision/figures/lost_update.svg)
#
# ## Third loss: sums
#
# A sum of many numbers may leave the range. Or it may become so large that the next term is less than half a step of it, and then it never changes again. Here are examples of both:

# %%
ones = torch.tensor(0, dtype=f16)
for _ in range(4096):
    ones += 1
eights = torch.full((4096,), 8.0, dtype=f16)
logits = torch.tensor([12.0, 11.0], dtype=f16)
by_formula = (logits.exp() / logits.exp().sum())[0].item()
in_fp32 = logits.softmax(0, dtype=f32)[0].item()  # converts the logits first
softmax = math.exp(12) / (math.exp(12) + math.exp(11))
rows = [
    ("1 + 1 + … + 1, 4,096 times", "fp16", ones.item(), 4096),
    ("Σ x² of 4,096 eights", "fp16", (eights * eights).sum().item(), 4096 * 64),
    ("exp(12)", "fp16", logits.exp()[0].item(), math.exp(12)),
    ("softmax of 12 and 11", "fp16", by_formula, softmax),
    ("softmax of 12 and 11", "fp32", in_fp32, softmax),
]
study.table(
    [(name, where, f"{got:.5g}", f"{right:.5g}") for name, where, got, right in rows],
    ["", "computed in", "comes out", "right"],
)

# %% tags=["maintainer"]
assert ones == 2048 and math.isnan(by_formula)

# %% [markdown]
# The first line is worth a thought. At 2,048 the steps of fp16 are 2, so adding 1 is a tie; it goes to the even neighbour, which is 2,048 itself. The sum of the squares, 262,144, and exp(12), which is 162,755, are beyond the range. In the softmax, $e^{12}/(e^{12}+e^{11})$, infinity is then divided by infinity, and that is *nan*. (Libraries first subtract the largest logit from all of them, so that no exponential exceeds 1. But if there are 50,000, one for each word that a model knows, their sum still has the trouble of the first line.)
#
# The remedy is to compute sums, norms, softmax and losses in fp32, whatever their inputs are, as in the last line. The tensor cores of a GPU do the same inside: they multiply numbers of 16 bits and add the products up in fp32.
#
# ## The remedy, step by step
#
# Now we build the training step that has all three remedies. Follow its loop in the picture, beginning at the top right: the fp32 masters are rounded to fp16 weights; forward; the loss, in fp32 and times *S*; backward in fp16; the gradients are divided by *S* in fp32; if one of them is infinite or *nan*, the step is skipped; otherwise the masters are updated, and rounded for the next step.
#
# ![The loop of mixed precision: fp32 master weights are rounded to an fp16 copy; forward and backward run in fp16 with a scaled fp32 loss; the gradients are divided by S in fp32; if any is not finite, the step is skipped; otherwise the masters are updated and rounded again.](../course/09_precision/figures/master_weights.svg)
#
# ### Step 1: a scaled loss
#
# We have it already: `gradients(mlp(sizes).half(), x.half(), y, scale)` runs forward and backward in fp16, and its loss is computed in fp32 because `part_of_loss` converts the logits.
#
# ### Step 2: unscale
#
# Dividing by *S* sounds trivial. But if it is done in fp16, the quotients underflow, and everything that the scale has saved is lost at the last moment. So convert first, divide then.
#
# How much does it matter? We take all gradients as one long vector. Its error is the length of the difference from the vector of fp32, divided by the length of the latter; 100 % is what a gradient of nothing but zeros would have.


# %%
def unscaled(gradients, scale):
    """The gradients in fp32 and divided by the scale, and whether any of them is not finite."""
    wide = [g.float() / scale for g in gradients]
    overflow = not all(g.isfinite().all() for g in wide)
    return wide, overflow


def error_of(gradients):
    low = torch.cat([g.flatten().double() for g in gradients])
    high = torch.cat([g.flatten().double() for g in exact])
    return ((low - high).norm() / high.norm()).item()


errors = {}
for name, scale in [("S = 1", 1.0), ("S = 2¹⁶", 2.0**16)]:
    low = gradients(mlp(sizes).half(), x.half(), y, scale)
    errors[f"{name}, divided in fp16"] = error_of([g / scale for g in low])
    errors[f"{name}, divided in fp32"] = error_of(unscaled(low, scale)[0])
study.bars(
    {name: float(f"{100 * error:.2g}") for name, error in errors.items()},
    unit="%",
    target=100,
    note="all gradients zero",
    title="Error of the whole gradient",
)

# %% tags=["maintainer"]
assert errors["S = 1, divided in fp32"] > 1 and errors["S = 2¹⁶, divided in fp32"] < 0.002
rounded_once = error_of([g.half() for g in exact])
assert abs(rounded_once / errors["S = 2¹⁶, divided in fp16"] - 1) < 0.05
start = mlp(sizes)(x).detach().requires_grad_()
part_of_loss(start, y).backward()
in_steps = start.grad.half().float() * 2**24
right_digit = torch.nn.functional.one_hot(y, 10).bool()
assert 0.8 < (in_steps[~right_digit] == 0).float().mean() < 0.9
assert (in_steps[right_digit] == -4).float().mean() > 0.9
totals = in_steps.sum(1)
assert ((totals == -2) | (totals == -3)).float().mean() > 0.9

# %% [markdown]
# With a scale and a division in fp32, a thousandth is left. Divided in fp16, the same gradients are off by 8 %. Without a scale the error is larger than the gradient itself. How can that be, if two thirds of the gradients are not even zero?
#
# The damage is done at the very start of the backward pass. The gradient of a logit is *p*, the probability that the network gives to its digit, or *p* − 1 if that is the right digit, divided by the batch of $2^{22}$. An untrained network gives every digit about 0.1. In the smallest steps of fp16, $2^{-24}$, that makes nine gradients of 4 · 0.1 = 0.4 steps, and a tenth of 4 · (−0.9) = −3.6. Rounded, most of the nine become 0, and the tenth −4. The exact ones add up to zero, the rounded ones to −2 or −3 steps for nearly every sample, and every earlier layer receives that error. In the third bar the backward pass was fine and only the finished gradients were rounded. Small numbers suffer most from that, and contribute little to the length.
#
# ### Step 3: step the masters
#
# The optimizer steps the fp32 masters, and their rounding goes into the fp16 weights, in place. Here is the whole loop with plain SGD, beside its [oracle](term:oracle), a second loop that is so simple that we trust it: the same training in fp32. (Our gradients are those of the usual loss, averaged over 128 samples, divided by $2^{22}/128$. The learning rate of 0.1 is multiplied by that.)

# %%
RATE = 0.1 * WHOLE / 128


def train_by_hand(scale, steps=30):
    network = mlp(sizes).half()
    masters = [p.detach().float() for p in network.parameters()]
    losses = []
    for _ in range(steps):
        losses.append(cross_entropy(network(x.half()).float(), y).item())
        low = gradients(network, x.half(), y, scale)
        wide, overflow = unscaled(low, scale)
        if overflow:
            continue  # skip this step
        for p, master, g in zip(network.parameters(), masters, wide):
            master -= RATE * g
            p.data.copy_(master)  # rounds to fp16
    return losses


def oracle(steps=30):
    network = mlp(sizes)
    losses = []
    for _ in range(steps):
        losses.append(cross_entropy(network(x), y).item())
        for p, g in zip(network.parameters(), gradients(network, x, y)):
            p.data -= RATE * g
    return losses


# %% tags=["nbval-ignore-output"]
runs = {
    "fp32": oracle(),
    "fp16, S = 2¹⁶": train_by_hand(2.0**16),
    "fp16, S = 1": train_by_hand(1.0),
    "fp16, S = 2⁴⁰": train_by_hand(2.0**40),
}
study.curves(
    {name: (list(range(30)), losses) for name, losses in runs.items()},
    xlabel="steps",
    ylabel="loss",
    title="The same loop in fp32 and in fp16",
)

# %% tags=["maintainer"]
assert abs(runs["fp16, S = 2¹⁶"][-1] / runs["fp32"][-1] - 1) < 0.01
assert runs["fp16, S = 1"][-1] > runs["fp32"][0]
assert len(set(runs["fp16, S = 2⁴⁰"])) == 1

# %% [markdown]
# With $S=2^{16}$ the loop cannot be told apart from fp32. With *S* = 1 the gradient is mostly rounding error, and the curve looks different on every machine. With $S=2^{40}$ every step overflows and is skipped, which is safe and useless.
#
# ### Step 4: let the scale find itself
#
# Which *S* is right depends on the network, on the batch, and on how far the training has come, since gradients shrink as the loss does. A [static](term:static-loss-scaling) scale is fixed, and has to be guessed. A [dynamic](term:dynamic-loss-scaling) scale searches by itself: on an overflow, skip the step and halve *S*; after a number of good steps in a row, double it. So it stays close to the largest scale that does not overflow.
#
# ![The height of the scale over the steps. It doubles after two good steps, until a gradient overflows; that step is skipped and S is halved. A dashed line, above which gradients overflow, sinks in the course of training, and S follows it.](../course/09_precision/figures/dynamic_scale.svg)
#
# In practice *S* starts from $2^{16}$ and is doubled after 2,000 good steps. In the next run 10 are enough, and we plant overflows in steps 15, 16 and 42. Draw the curve of *S* on a piece of paper before you run the cell.


# %%
def next_scale(scale, good, overflow, interval=10):
    """The scale, and the number of good steps since it last changed."""
    if overflow:
        return scale / 2, 0
    if good + 1 == interval:
        return scale * 2, 0
    return scale, good + 1


planted = (15, 16, 42)
scales = [2.0**16]
good = 0
for step in range(60):
    scale, good = next_scale(scales[-1], good, step in planted)
    scales.append(scale)
logarithms = [round(math.log2(scale)) for scale in scales]
study.curves(
    {"scale": (list(range(61)), logarithms)},
    points={"overflow": (planted, [logarithms[k] for k in planted])},
    xlabel="step",
    ylabel="S = 2 to the power",
    title="A dynamic scale",
)

# %% tags=["maintainer"]
weight = torch.nn.Parameter(torch.ones(2))
theirs = torch.amp.GradScaler("cpu", growth_interval=10)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step, scale in enumerate(scales[1:]):
    weight.grad = torch.full((2,), math.inf if step in planted else scales[step])
    theirs.scale(torch.ones(()))
    theirs.step(optimizer)
    theirs.update()
    assert theirs.get_scale() == scale
assert round((1 - weight[0].item()) / 0.1) == 57
changes = [step for step in range(1, 61) if scales[step] != scales[step - 1]]
assert changes == [10, 16, 17, 27, 37, 43, 53]

# %% [markdown]
# Steps 0 to 9 are good, so step 10 has twice the scale. The overflows in steps 15 and 16 halve it twice, and it takes ten good steps for each doubling to come back to $2^{17}$ at step 37, where the third overflow halves it again. PyTorch's `GradScaler`, given the same overflows, goes through the same scales. Note that *S* climbs until something overflows, even if nothing is wrong. One skipped step in about 2,000 is the price.
#
# ## Break it: skip on one rank only
#
# With several [ranks](term:rank) a new question arises: who decides to skip? Suppose three ranks have [replicas](term:replica), equal copies, of a model with two weights, 1 and 2. Each computes gradients of its own, times *S* = 1,024, in fp16, and then the ranks average them. The function `all_reduce_(comm, x, "mean")` does that: it replaces the tensor `x` of each rank by the mean of all ranks' tensors ([Messages](lesson:messages) builds it). On rank 1 the second gradient is 90. Times 1,024 that is 92,160, more than fp16 can hold.
#
# Suppose every rank looks at its own gradients for infinity, then they average, and then each steps or skips according to what it has seen. **Which ranks have finite weights after this step?**

# %%
guess_finite = [0, 1, 2]  # ranks: change this list

# %%
from minidist.collectives import all_reduce_
from minidist.comm import World

SCALE = 1024


def scaled_gradient(rank):
    gradient = torch.tensor([1.0, 90.0 if rank == 1 else 3.0])
    return (gradient * SCALE).half()


def step_or_skip(scaled, overflow):
    """The weights after the step."""
    weights = torch.tensor([1.0, 2.0])
    if overflow:
        return weights
    return weights - 0.1 * scaled.float() / SCALE


def looks_then_averages(comm):
    scaled = scaled_gradient(comm.rank)
    overflow = not scaled.isfinite().all()
    all_reduce_(comm, scaled, "mean")
    return step_or_skip(scaled, overflow)


def averages_then_looks(comm):
    scaled = scaled_gradient(comm.rank)
    all_reduce_(comm, scaled, "mean")
    overflow = not scaled.isfinite().all()
    return step_or_skip(scaled, overflow)


looked_first = World(3).run(looks_then_averages)
averaged_first = World(3).run(averages_then_looks)

# %% tags=["answer"]
rows = []
for rank in range(3):
    words = []
    for weights in (looked_first[rank], averaged_first[rank]):
        words.append(", ".join(f"{w:g}" for w in weights.tolist()))
    rows.append([f"rank {rank}", *words])
study.reveal(
    guess_finite,
    [1],
    study.table(
        rows,
        ["weights after the step", "looks, then averages", "averages, then looks"],
    ),
    words="The mean is infinite on all ranks, because one of its terms is. Ranks 0 and 2 have seen nothing "
    "wrong in their own gradients and step with it. Rank 1 has skipped. The replicas are no longer equal, and "
    "from now on their scales differ, too.",
)

# %% tags=["maintainer"]
assert looked_first[0].isinf().any() and looked_first[1].tolist() == [1, 2]
assert all(weights.tolist() == [1, 2] for weights in averaged_first)

# %% [markdown]
# The mean of finite numbers and infinity is infinity, so all ranks see it if they look *after* the average, and all do the same. But not every rank sees every gradient. When each owns only a part of the parameters, as in [ZeRO](lesson:zero), an overflow shows on one rank alone. Then they have to *agree*: each makes a flag, 1 for an overflow and 0 for none, and one all-reduce of 4 bytes gives everyone the maximum of the flags. Building this is one of the exercises.
#
# ## Which operator in which precision?
#
# Converting the whole model by `.half()` is crude, since it also converts the sums of the third loss. A finer way decides for each operator, by [lists](term:operator-list):
#
# - *White* are products of matrices and convolutions. They have nearly all the FLOPs, and tensor cores add up in fp32. Their inputs are cast to fp16.
# - *Black* are exponentials, sums, softmax, norms and losses. Their inputs are cast to fp32.
# - *Gray* are operators with several inputs and no danger of their own, such as concatenation. All inputs are cast to the widest type among them.
# - All others, such as ReLU, take what comes.
#
# ![A part of a transformer under autocast. Linear layers and matrix products are white: inputs cast to fp16. Softmax, layer norm and the loss are black: cast to fp32. Concatenation is gray: all inputs become the widest. ReLU is on no list and runs in whatever comes.](../course/09_precision/figures/operator_lists.svg)
#
# Applying such lists without a change of the model is called [autocast](term:autocast). PyTorch has a hook for that, a [function mode](term:function-mode). Within its `with` block each call of one of PyTorch's functions, such as `torch.softmax`, goes to our method `__torch_function__` instead, which is handed the function and its arguments. There we may cast the arguments, and then call the function ourselves. (Inside the method the mode is off, or it would call itself for ever. `types` we do not need.)
#
# Ours has the white and the black list, and casts tensors that are given by position. The rest is left to the exercises.

# %%
from torch.overrides import TorchFunctionMode

WHITE = {"linear", "matmul", "conv2d"}
BLACK = {"softmax", "log_softmax", "cross_entropy", "sum", "exp"}


class Lists(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        dtype = None  # the function is on no list
        if function.__name__ in WHITE:
            dtype = f16
        elif function.__name__ in BLACK:
            dtype = f32
        if dtype is not None:
            args = [self.cast(argument, dtype) for argument in args]
        return function(*args, **(kwargs or {}))

    def cast(self, argument, dtype):
        if isinstance(argument, torch.Tensor) and argument.is_floating_point():
            return argument.to(dtype)
        return argument  # labels, numbers, None


network = mlp(sizes)  # its parameters are fp32, and stay so
with Lists():
    output = network(x)
    loss = cross_entropy(output, y)
(loss * 2.0**16).backward()  # scaled: the backward of the products runs in fp16
rows = [
    ("output", str(output.dtype)),
    ("loss", str(loss.dtype)),
    ("gradients of the weights", str(network[0].weight.grad.dtype)),
]
study.table(rows, ["", "dtype"], title="The model was not changed")

# %% tags=["maintainer"]
assert error_of([p.grad / 2**16 * 128 / WHOLE for p in network.parameters()]) < 2e-3

# %% [markdown]
# The products ran in fp16, the loss in fp32. And the weights are still fp32, and so are their gradients. Why? The cast, `argument.to(dtype)`, is an operator like any other. Autograd records it, and the backward of a cast is a cast back: it turns the fp16 gradient of the fp16 copy into an fp32 gradient of the weight. In other words, the parameters are their own master copies.
#
# ### Above autograd, not below
#
# That works because a function mode stands *above* autograd: the casts come first, and autograd sees them. A second hook of PyTorch, the [dispatch mode](term:dispatch-mode), stands *below*. There autograd has already recorded the call and kept the inputs that the backward will need. What comes by are the elementary operators that PyTorch's functions are made of, under the names of its C++ library, *ATen*; a linear layer arrives as `aten.addmm`, a product with something added.
#
# ![The way of a call of linear through PyTorch, twice. Left, a function mode casts x and w to fp16 before autograd keeps them, 2 bytes a number. Right, autograd keeps them in fp32, 4 bytes a number, and a dispatch mode casts them afterwards. Both products run in fp16.](../course/09_precision/figures/above_autograd.svg)
#
# Casting below makes the products just as fast, and saves no memory. Let us see it, on eight linear layers of width 1,024, each followed by a GELU, and 4,096 rows. We ask the meter of [The walls](lesson:walls) for the activations at the peak, that is, for what is kept for the backward. The tensors are on `meta`: they have shapes and no numbers.

# %%
from contextlib import nullcontext

from torch.utils._python_dispatch import TorchDispatchMode

from minidist.study import measure


class BelowAutograd(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator == torch.ops.aten.addmm.default:  # default: the variant without `out=`
            product = operator(*[argument.half() for argument in args])
            return product.float()  # as autograd has noted it
        return operator(*args, **(kwargs or {}))


def forward_backward(network, x, mode):
    with mode:
        loss = network(x).float().sum()
    loss.backward()


def kept(mode):
    """Bytes of activations at the peak."""
    layers = []
    for _ in range(8):
        layers += [torch.nn.Linear(1024, 1024, device="meta"), torch.nn.GELU()]
    x = torch.empty(4096, 1024, device="meta")
    profile = measure(forward_backward, torch.nn.Sequential(*layers), x, mode)
    return profile.at_peak["activations"]


saved = {
    "fp32": kept(nullcontext()),  # no mode at all
    "cast below autograd": kept(BelowAutograd()),
    "cast above autograd": kept(Lists()),
}
study.bars(saved, unit="B", title="Kept for the backward")

# %% tags=["maintainer"]
assert saved["cast above autograd"] < 0.6 * saved["fp32"] == 0.6 * saved["cast below autograd"]
tensor = 4096 * 1024
assert abs(saved["fp32"] - 15 * 4 * tensor) < 1e3
assert abs(saved["cast above autograd"] - (16 * 2 * tensor + 7 * 2 * 1024**2)) < 1e3

# %% [markdown]
# Each linear layer and each GELU keeps its input: 16 tensors of 4,096 × 1,024, one of which is the batch and was there anyway. The other 15 take 252 MB in fp32 and 126 MB in fp16. Above autograd the fp16 copies of the batch, 8 MB, and of the weights of seven layers, 15 MB, are kept as well. (A weight is needed for the gradient of its layer's input, and nobody wants the gradient of the batch.) Together that is 149 MB.
#
# ## Four levels
#
# NVIDIA's library *apex* gave names to four ways of combining all this, and people still use them:
#
# | level | parameters | forward | the optimizer steps | loss scaled |
# |---|---|---|---|---|
# | O0 | fp32 | fp32 | the parameters | no |
# | O1 | fp32 | by lists | the parameters | yes |
# | O2 | fp16, batch norm fp32 | fp16 | fp32 masters | yes |
# | O3 | fp16 | fp16 | the parameters | no |
#
# O1 is what we have just built, O2 is the loop of the four steps, and O3 converts everything and hopes for the best. One entry is new: why does O2 leave batch norm in fp32?
#
# Batch norm keeps a running mean of each feature, for use after training. Each batch moves it a part of the way to its own mean; PyTorch calls this part `momentum`, and here it is a hundredth. Let the mean of every batch be 10. Then the running mean creeps from 0 to 10, in smaller and smaller updates, and you can predict where it stops. Between 8 and 16 the steps of fp16 are $2^{-7}$. An update of less than half of that, 0.0039, is lost, and an update is a hundredth of what is missing. So nothing moves any more once 0.39 is missing. It is the second loss again.

# %%
from minidist.train.amp import halve_


def running_mean(wide_norms):
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(1, momentum=0.01))
    network = halve_(network, wide_norms=wide_norms)  # all to fp16, except perhaps the norms
    data = torch.tensor([[9.0], [11.0]], dtype=f16)
    seen = []
    for _ in range(1000):
        network(data)
        seen.append(network[0].running_mean.item())
    return seen


batches = list(range(1, 1001))
means = {"fp32": running_mean(True), "fp16": running_mean(False)}
study.curves(
    {name: (batches, seen) for name, seen in means.items()},
    xlabel="batches",
    ylabel="running mean",
    title="In fp16 it stops 0.39 short of 10",
)

# %% tags=["maintainer"]
assert means["fp32"][-1] > 9.99 and abs(means["fp16"][-1] - 9.61) < 0.005

# %% [markdown]
# The library makes a model ready for any level by `prepare`. After checking its arguments it does four things:
#
# 1. `halve_` converts the parameters, for O2 and O3. It is a `.half()` that can leave batch norm alone.
# 2. Two hooks convert what goes into the model to 16 bits and what comes out to fp32. PyTorch calls a forward pre-hook with a module's inputs, and a forward hook with its output; `cast` applies a function to every tensor that it finds in them.
# 3. `Masters` wraps an optimizer, for O2, so that it steps fp32 copies.
# 4. `LossScaler` is the dynamic scale, and `autocast` is our `Lists` in full. Where a level does not want them they are switched off, so that the training loop is the same for all. bf16 is never scaled; we shall see why.

# %%
from minidist.train import amp

study.source(amp.prepare, docstring=False)

# %% [markdown]
# The result has a `model`, an `optimizer`, a `scaler`, an `autocast`, and a method `step(loss)` for all the rest: backward of the scaled loss, step or skip, the next scale, `zero_grad`.
#
# Now we train our network at all levels for 40 steps, with the tiny gradients of the huge batch. The optimizer is Adam, which divides by the size of the gradients and does not mind that they are tiny, as long as its ε, which is added to that size, is smaller still. We also leave the scaler out, and try bf16. **Which of these reach the loss of O0?**

# %%
guess_reach = ["O1", "O2", "O3"]  # delete those that do not

# %%
from functools import partial

adam = partial(torch.optim.Adam, lr=3e-3, eps=1e-16)


def train(level, seed, dtype=f16, scaler=None):
    """The loss on all digits after 40 steps. scaler: instead of the level's own."""
    prepared = amp.prepare(mlp(sizes, seed), adam, level, dtype, scaler=scaler)
    random = torch.Generator().manual_seed(seed)
    for _ in range(40):
        chosen = torch.randint(len(task.x), (128,), generator=random)
        with prepared.autocast:
            loss = part_of_loss(prepared.model(task.x[chosen]), task.y[chosen])
        prepared.step(loss)
    with torch.no_grad(), prepared.autocast:
        return cross_entropy(prepared.model(task.x).float(), task.y).item()


no_scale = amp.LossScaler(enabled=False)
seeds = range(3)
reached = {
    "O0": [train("O0", seed) for seed in seeds],
    "O1": [train("O1", seed) for seed in seeds],
    "O2": [train("O2", seed) for seed in seeds],
    "O3": [train("O3", seed) for seed in seeds],
    "O2 without a scale": [train("O2", seed, scaler=no_scale) for seed in seeds],
    "O2 in bf16": [train("O2", seed, bf16) for seed in seeds],
    "O3 in bf16": [train("O3", seed, bf16) for seed in seeds],
}


# %% tags=["answer"]
def compared(loss, full):
    """A loss beside that of O0. The exact digits differ from one processor to another."""
    if math.isnan(loss):
        return "nan"
    if abs(loss / full - 1) < 0.05:
        return "as O0"
    return f"{loss / full:.0f} times O0"


full = reached["O0"]
rows = [["O0"] + [f"{loss:.2f}" for loss in full]]
for name, losses in reached.items():
    if name != "O0":
        rows.append([name] + [compared(loss, best) for loss, best in zip(losses, full)])
study.reveal(
    guess_reach,
    ["O1", "O2"],
    study.table(
        rows,
        ["level", *(f"seed {seed}" for seed in seeds)],
        title="Loss after 40 steps (as O0: within 5 %)",
    ),
    words="Lists with a scale, or masters with a scale, do as well as fp32. Without the scale the gradients "
    "are those with an error of more than 100 %, and the loss comes less than half of the way down.",
)

# %% tags=["maintainer"]
spread = max(full) - min(full)
for name, bound in [("O1", 0.01), ("O2", 0.01), ("O2 in bf16", 0.05)]:
    assert all(abs(a / b - 1) < bound for a, b in zip(reached[name], full)), name
assert all(map(math.isnan, reached["O3"]))
assert min(reached["O2 without a scale"]) > max(full) + spread
starts = [cross_entropy(mlp(sizes, seed)(task.x), task.y).item() for seed in seeds]
for start, end, best in zip(starts, reached["O2 without a scale"], full):
    assert start - end < 0.5 * (start - best)

# %% [markdown]
# ### Why O3 is nan
#
# Adam remembers two means for each parameter, *m* of its gradients and *v* of their squares, and steps by the learning rate times $m/(\sqrt v+\varepsilon)$. After the first step *v* is $(1-\beta_2)\,g^2 = 0.001\,g^2$. In O3 everything is fp16, and so are *m*, *v* and ε. Look where the numbers lie that it would have to hold; *v* is computed in fp64 here:

# %%
squares = [1e-3 * g.double() ** 2 for g in exact]
study.exponents(
    {
        "gradients": exponents(exact),
        "Adam's v after a step": exponents(squares),
    },
    title="O3: what fp16 holds of them",
)

# %% tags=["maintainer"]
hopeless = amp.prepare(mlp(sizes), adam, "O3")
hopeless.step(part_of_loss(hopeless.model(x), y))
assert not any(p.isfinite().any() for p in hopeless.model.parameters())

# %% [markdown]
# A square has twice the exponent, so its hill stands twice as far to the left. All of *v* becomes 0 and so does ε, and Adam divides by zero. Where *m* is not 0 the update is infinite, elsewhere it is 0/0. After a single step no weight of the network is finite. And this is no freak of our huge batch: gradients of $2^{-10}$ make a *v* of about $2^{-30}$, and the usual $\varepsilon=10^{-8}$ is below $2^{-25}$ as well.
#
# In **bf16** the same O3 trains, and O2 needs no scale, since bf16 has the range of fp32. This is why nearly everyone uses it today. But it needs masters more than fp16 does. O3 in bf16 gets by here because Adam's updates are about as large as the learning rate, 0.003, and that is six steps of a weight near 0.1. Large models have learning rates of about 0.0001, which is less than half a step, and you saw in the second experiment what happens then.
#
# ## TF32: what "fp32" means on a GPU
#
# You may think that you are training in fp32 when you are not. The tensor cores of NVIDIA's GPUs cannot multiply fp32 numbers, and offer [TF32](term:tf32): tensors stay in fp32 in memory, but of each number in a product only the first 10 bits of the fraction are used. The products are added up in fp32. So TF32 has the range of fp32 and the precision of fp16, and on an H100 it is seven times as fast as true fp32: 495 TFLOP/s, which is 10¹² operations a second, against 67.
#
# The rounding can be imitated on a CPU, bit by bit. Of the 23 bits of fraction the last 13 have to go: add half of their range, which carries into the tenth bit if they are at least half, and clear them. The library's `tf32` does this, and `tf32_matmul` rounds two matrices and multiplies them in fp32.

# %%
from minidist.train.amp import tf32, tf32_matmul


def bits(x):
    """The bits of a positive number in fp32: sign, exponent, and the fraction in two parts."""
    pattern = f"{x.view(torch.int32).item():032b}"  # the same bits, read as an integer
    return f"{pattern[0]} {pattern[1:9]} {pattern[9:19]} {pattern[19:]}"


tenth = torch.tensor(0.1)
print("0.1 in fp32:", bits(tenth))
print("0.1 in TF32:", bits(tf32(tenth)))

generator = torch.Generator().manual_seed(0)
a = torch.randn(256, 256, generator=generator)
b = torch.randn(256, 256, generator=generator)
exact_product = a.double() @ b.double()


def product_error(product):
    return float((product.double() - exact_product).norm() / exact_product.norm())


errors = {
    "fp32": product_error(a @ b),
    "TF32": product_error(tf32_matmul(a, b)),
    "fp16": product_error(a.half().float() @ b.half().float()),
    "bf16": product_error(a.bfloat16().float() @ b.bfloat16().float()),
}
rows = []
for name, error in errors.items():
    rows.append((name, "below 1e-6" if error < 1e-6 else f"{error:.0e}"))
study.table(
    rows,
    ["inputs rounded to", "relative error of the product"],
    title="A product of 256 × 256",
)

# %% tags=["maintainer"]
assert 0.8 < errors["TF32"] / errors["fp16"] < 1.25 and errors["bf16"] > 6 * errors["TF32"]
assert errors["fp32"] < errors["TF32"] / 500
rounding = float((tf32(a) - a).norm() / a.norm())
assert abs(rounding - 2.1e-4) < 1e-5 and 1.3 < errors["TF32"] / rounding < 1.5

# %% [markdown]
# The size of the error can be understood. With 10 bits of fraction, rounding changes a number by half a step at most, 1 part in 2,000, and typically by 1 part in 5,000, $2\cdot10^{-4}$. A product has two factors with independent errors, hence $\sqrt2$ times as much, $3\cdot10^{-4}$. TF32 and fp16 have the same fraction and the same error; bf16, with three bits less, has eight times as much; and fp32 a thousandth.
#
# For most training TF32 is harmless. PyTorch has it on for convolutions and off for matrix products, unless you say `torch.backends.cuda.matmul.allow_tf32 = True` (our `tf32_products()` does it for a `with` block). Know the state of this switch when you compare a run with a reference to the sixth digit, and when somebody tells you that fp16 is 15 times as fast as fp32. Against TF32 it is twice as fast.
#
# ## What it costs and saves
#
# ### Memory
#
# Write down how many bytes a parameter needs after the backward pass with Adam at each level: for the parameter itself, for its gradient, and for the optimizer states, that is, Adam's two means and the master if there is one. **What is the sum for O0 and for O2?**

# %%
guess_sum = {"O0": 16, "O2": 10}  # change these numbers

# %% [markdown]
# We measure it on a GPT of meta tensors, with two layers of width 256, and 8 sequences of 1,024 tokens. A first step creates Adam's states; then we measure a forward and a backward.

# %%
from minidist.models import gpt, next_token_loss


def prepared_gpt(level, hidden, sequences, length):
    """A GPT made ready for a level, and a batch for it. Both have shapes and no numbers."""
    network = gpt(2, hidden, 8, 1000, 1024, device="meta")
    prepared = amp.prepare(network, partial(torch.optim.AdamW, lr=1e-4), level)
    return prepared, torch.zeros(sequences, length, dtype=torch.long, device="meta")


def forward(prepared, tokens):
    with prepared.autocast:
        return next_token_loss(prepared.model(tokens), tokens)


def forward_and_backward(prepared, tokens):
    prepared.scaler.scale(forward(prepared, tokens)).backward()


def whole_step(prepared, tokens):
    prepared.step(forward(prepared, tokens))


rows = []
for level in ("O0", "O1", "O2", "O3"):
    prepared, tokens = prepared_gpt(level, 256, 8, 1024)
    whole_step(prepared, tokens)
    profile = measure(forward_and_backward, prepared, tokens, where="meta")  # meta tensors only
    psi = sum(p.numel() for p in prepared.model.parameters())
    at_end = profile.timeline.at(math.inf)
    kinds = ("parameters", "gradients", "optimizer states")
    per_parameter = [round(at_end[kind] / psi) for kind in kinds]
    activations = round(profile.at_peak["activations"] / 1e6)
    rows.append([level, *per_parameter, sum(per_parameter), activations])

# %% tags=["answer"]
columns = ["", "parameter", "gradient", "optimizer", "sum, bytes a parameter", "activations, MB"]
study.reveal(
    guess_sum,
    {"O0": rows[0][-2], "O2": rows[2][-2]},
    study.table(rows, columns),
    words="4 + 4 + 8 in fp32, and 2 + 2 + 12 with masters: 4 for the master and 8 for Adam's two means, which "
    "stay in fp32. What mixed precision saves is not model states but activations, and time.",
)

# %% tags=["maintainer"]
expected = {"O0": [4, 4, 8], "O1": [4, 4, 8], "O2": [2, 2, 12], "O3": [2, 2, 4]}
assert {row[0]: row[1:4] for row in rows} == expected
assert 0.6 < rows[1][-1] / rows[0][-1] < 0.65 and 0.53 < rows[2][-1] / rows[0][-1] < 0.57

# %% [markdown]
# The activations at the peak fall to 63 % in O1 and to 55 % in O2. It is not one half, since some of them stay in fp32: at both levels what the loss keeps, and in O1 also the inputs of the layer norms, which are black.
#
# ### Time
#
# By its data sheet an H100 multiplies at 989 TFLOP/s in fp16, at 495 in TF32 and at 67 in fp32, and moves 3.35 TB/s to and from its memory. Each operator has to be started by the CPU, and this **launch** takes about 5 µs.
#
# Take one linear layer with *H* × *H* weights and 4,096 rows. (The rows are all tokens of a batch: the number of sequences times their length.) A forward and a backward are three products: $xw$ for the output, one for the gradient of *x* and one for the gradient of *w*. Each of them takes $2\cdot4096\cdot H^2$ FLOPs, and moves two matrices of 4,096 × *H* and one of *H* × *H*. Computing and moving go on at the same time, so the longer of the two counts. With *R* operations a second and *s* bytes a number,
#
# $$T = 3\left(5\ \text{µs} + \max\left(\frac{2\cdot4096\,H^2}{R},\ \frac{(2\cdot4096\,H+H^2)\,s}{3.35\cdot10^{12}}\right)\right).$$
#
# **How many times as fast as fp32 is fp16, for H = 32?** For large *H* the first term of the maximum decides, and it will be nearly 989/67 = 15 times.

# %%
guess_small = 15  # times: change this number

# %%
from minidist.comm.cluster import H100

LAUNCH = 5e-6
speeds = {"fp32": (67e12, 4), "TF32": (494.5e12, 4), "fp16": (989e12, 2)}  # FLOP/s, bytes a number


def layer_seconds(width, rows=4096):
    """Forward and backward of one layer, in each format, by the formula."""
    times = {}
    for name, (rate, size) in speeds.items():
        computing = 2 * rows * width**2 / rate
        moving = (2 * rows * width + width**2) * size / 3.35e12
        times[name] = 3 * (LAUNCH + max(computing, moving))
    return times


def layer(width, dtype):
    """The input of a layer, its weights, and the gradient that comes back; meta tensors."""
    x = torch.nn.Parameter(torch.empty(4096, width, dtype=dtype, device="meta"))
    w = torch.nn.Parameter(torch.empty(width, width, dtype=dtype, device="meta"))
    return x, w, torch.empty(4096, width, dtype=dtype, device="meta")


def three_products(x, w, dy):
    (x @ w).backward(dy)


widths = [2**k for k in range(5, 15)]
fine = [round(2 ** (k / 4)) for k in range(20, 57)]
lines = {name: (fine, [layer_seconds(width)[name] for width in fine]) for name in speeds}
points = {}
for name, dtype in [("fp32", f32), ("fp16", f16)]:  # TF32 is no dtype: tensors do not show it
    # H100.ideal reaches its data sheet; no real card does
    times = [measure(three_products, *layer(w, dtype), device=H100.ideal).time for w in widths]
    points[name] = widths, times
faster = [a / b for a, b in zip(points["fp32"][1], points["fp16"][1])]

# %% tags=["answer"]
study.reveal(
    guess_small,
    round(faster[0], 1),
    study.curves(
        lines,
        points=points,
        yunit="s",
        logx=True,
        logy=True,
        xlabel="width H of the layer",
        ylabel="forward and backward",
        title="One layer on a modelled H100 that reaches its data sheet",
    ),
    unit="times",
    words="For H = 32 a product takes 0.1 µs to compute in fp32, 0.3 µs to move, and 5 µs to launch. In fp16 "
    "the first two are smaller, and the third is the same: 15.9 µs against 15.5.",
)

# %% tags=["maintainer"]
for name in ("fp32", "fp16"):
    for width, time in zip(*points[name]):
        assert abs(time / layer_seconds(width)[name] - 1) < 0.01
in_practice = [measure(three_products, *layer(widths[-1], dtype)).time for dtype in (f32, f16)]
assert 14 < in_practice[0] / in_practice[1] < 14.5 and 14 < faster[-1] < 15
assert [round(1e6 * layer_seconds(32)[name], 1) for name in ("fp32", "fp16")] == [15.9, 15.5]

# %% [markdown]
# The slider changes the number of rows. With few of them the lines lie close together: the time goes into moving the weights, where 16 bits save half at most, and into launches, where they save nothing.

# %%
study.explore(
    layer_seconds,
    over="width",
    width=widths,
    rows=[1, 32, 256, 1024, 4096, 16384],
    start={"rows": 4096},
    unit="s",
    logx=True,
    logy=True,
    xlabel="width H of the layer",
    ylabel="forward and backward",
    title="One layer on a modelled H100",
)

# %% [markdown]
# ### When not to use it
#
# *When launches set the time.* Casts, unscaling and masters are operators too, so a small model gets slower. The next table has a whole step of a GPT with two layers, once small and once large, on a modelled H100 that reaches 64 % of its data sheet in large products, as cards do in published runs. The operators are those of the small model.
#
# *fp16 where there is bf16.* bf16 needs no scale, no skipped steps, and no agreement between ranks.
#
# *On CPUs*, most of which have no units for numbers of 16 bits.

# %%
rows = []
for level in ("O0", "O1", "O2", "O3"):
    found = []
    for hidden, sequences, length in [(128, 1, 128), (4096, 8, 1024)]:
        prepared, tokens = prepared_gpt(level, hidden, sequences, length)
        whole_step(prepared, tokens)
        found.append(measure(whole_step, prepared, tokens, where="meta"))
    small, large = found
    rows.append((level, small.calls, 1e3 * small.time, 1e3 * large.time))
study.table(
    [(level, calls, f"{small:.2f}", f"{large:.1f}") for level, calls, small, large in rows],
    ["level", "operators", "H = 128, 1 × 128 tokens, ms", "H = 4,096, 8 × 1,024 tokens, ms"],
)

# %% tags=["maintainer"]
seconds = {level: (small, large) for level, _, small, large in rows}
for level in ("O1", "O2"):
    assert seconds[level][0] > 1.3 * seconds["O0"][0]
    assert seconds[level][1] < 0.12 * seconds["O0"][1]
assert 1.5 * 302 == 453 and [row[1] for row in rows] == [302, 473, 454, 304]

# %% [markdown]
# The small model starts 302 operators a step in fp32, 5 µs each, and those make up most of its time. O1 and O2 start half as many again. The large model is some 9 times as fast: its products gain a factor of 15, and everything else, which waits for memory, a factor of 2 at most.
#
# ## The library's file
#
# Everything in this lesson is in [minidist/train/amp.py](file:minidist/train/amp.py). This is the core of its autocast, which has all three lists. (A call with `out=` writes into a tensor that has its dtype already.) `self._low` casts to 16 bits, a weight only once however often it is used. The last branch is for functions on no list that are written in Python, such as multi-head attention: the products inside them are on a list, so they run with the mode in force.

# %%
study.source(amp.autocast._call)

# %% [markdown]
# You may change the lists. GELU is on none of them; here it is made black:

# %%
with amp.autocast(black=amp.BLACK | {"gelu"}):
    h = torch.nn.functional.linear(torch.ones(4, 8), torch.eye(8))
    outputs = {
        "linear, white": h,
        "gelu, black now": torch.nn.functional.gelu(h),
        "softmax, black": torch.softmax(h, 1),
        "cat with fp32, gray": torch.cat([h, torch.ones(4, 8)]),
        "relu, on no list": torch.relu(h),
    }
study.table([(name, str(t.dtype)) for name, t in outputs.items()], ["", "what comes out"])

# %% tags=["maintainer"]
with amp.autocast():
    assert torch.nn.functional.gelu(h).dtype == f16
assert [t.dtype for t in outputs.values()] == [f16, f32, f32, f32, f16]

# %% [markdown]
# When the scaler has divided the gradients, it looks at them. `_foreach_norm` finds the largest absolute value of each, which is infinite or *nan* if any number is. The ranks then agree on the flag: 4 bytes, as above. (`decide` reads it; on meta tensors, which have no numbers, it answers that nothing was found.)

# %%
study.source(amp.LossScaler._agree)

# %% [markdown]
# Then the scale adapts as ours does; `float32` rounds it as PyTorch does. It may have a smallest value as well. A few bad batches in a row halve *S* again and again, and 2,000 good steps double it only once, so without a floor small gradients could be zero for a long time.

# %%
study.source(amp.LossScaler._adapt)

# %% [markdown]
# And the masters. `gradients` converts the gradients to fp32, `_follow` takes over what others have written into the parameters, for instance from a checkpoint, and `_options` copies learning rates, which a scheduler may have changed. The inner optimizer steps the masters, and `_round` rounds them into the 16-bit weights.

# %%
study.source(amp.Masters.step)

# %% [markdown]
# ## In real processes, and on a cluster
#
# Here is O2 on two ranks in real processes, each with half of a batch. `DataParallel` (see [its lesson](lesson:data_parallel)) gives all ranks the weights of rank 0 at the start, and averages their gradients in every backward. On rank 1, in step 2, one sample is multiplied by 10³⁰, which makes fp16 overflow. With `comm=comm` the scaler asks all ranks.

# %%
from minidist.comm import launch
from minidist.parallel.data import DataParallel


def program(comm, task, bad_step):
    prepared = amp.prepare(mlp(sizes, seed=comm.rank), adam, "O2", comm=comm)
    model = DataParallel(prepared.model, comm)
    skipped = []
    for step in range(6):
        first = 64 * step + 32 * comm.rank  # of this rank's half of the batch
        x = task.x[first : first + 32].clone()
        y = task.y[first : first + 32]
        if step == bad_step and comm.rank == 1:
            x[0] *= 1e30
        prepared.step(cross_entropy(model(x), y))
        skipped.append(prepared.scaler.skipped)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return skipped, prepared.scaler.get_scale(), weights


ranks = launch(program, 2, task, 2)
rows = []
for rank, (skipped, scale, _) in enumerate(ranks):
    rows.append((f"rank {rank}", " ".join(map(str, skipped)), f"{scale:,.0f}"))
display(study.table(rows, ["", "steps skipped so far", "S"], title="Both ranks skip"))
print("replicas equal bit for bit:", torch.equal(ranks[0][2], ranks[1][2]))

# %% tags=["maintainer"]
assert all(torch.equal(w, ranks[0][2]) and w.isfinite().all() for *_, w in ranks)
assert all(skipped == [0, 0, 1, 1, 1, 1] and scale == 2.0**15 for skipped, scale, _ in ranks)

# %% [markdown]
# On a cluster, [examples/train_gpt.py](file:examples/train_gpt.py) trains a GPT in any of these ways; `--amp` sets the level, and `--half` the format:
#
# ```
# torchrun --nproc-per-node 8 examples/train_gpt.py --amp O2 --half float16
# torchrun --nproc-per-node 8 examples/train_gpt.py --amp O2 --half bfloat16
# ```
#
# ## Takeaways
#
# - fp16 holds 40 powers of two, in steps of a thousandth. Gradients lie below them: scale the loss, and unscale in fp32.
# - Updates are smaller than a step of the weight: keep master weights in fp32. Sums, softmax, norms and losses belong in fp32.
# - A dynamic scale climbs until something overflows; that step is skipped, on all ranks or on none.
# - Cast above autograd, or it saves tensors in fp32. White lists are for products, black lists for what leaves the range.
# - Model states take 16 bytes a parameter, as in fp32. What is saved is activations, and the time of large products.
# - bf16 needs no scaler, and needs master weights all the more. "fp32" on a GPU may be TF32: look at the switch.
#
# ## Further reading
#
# - paper:micikevicius2018 Master weights, loss scaling, and sums in fp32: section 3.
# - paper:kalamkar2019 bf16.
# - paper:rajbhandari2020 16 bytes a parameter: section 3.1.
# - paper:apex The levels O0 to O3.
