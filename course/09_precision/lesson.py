# %% [markdown]
# # 09 · Mixed precision
#
# A number in single precision has 32 bits. Most of them are wasted: nobody needs seven decimal digits of a gradient that is an estimate anyway. With 16 bits a number takes half the memory and half the time on a wire, and the matrix units of a GPU multiply such numbers many times as fast. So people tried to train with 16 bits, and their networks did not learn.
#
# This lesson finds out why, in three experiments, each of which loses something different: gradients, updates, sums. Then it builds the remedy for each, and puts them together into what everybody calls [mixed precision](term:mixed-precision).
#
# Here is the first experiment. A small network learns to read digits. Its batch has 4 million samples and is processed in micro-batches of 128. Forward and backward run in 16 bits. **Of 100 gradients that are not zero, how many come out as exactly 0?**

# %%
guess = 1  # of 100: change this number

# %% [markdown]
# ## On paper: four formats, six numbers
#
# A floating-point number is a sign, a power of two, and a fraction: $\pm\,1.\text{fraction}\cdot 2^{\text{exponent}}$. The bits for the exponent decide how large and how small numbers may be, the **range**. The bits for the fraction decide how closely they lie, the **precision**. With the same 16 bits one can buy more of one or more of the other:
#
# ![The bits of four formats. fp32: 1 sign, 8 exponent, 23 fraction. TF32: 1, 8, 10. bf16: 1, 8, 7. fp16: 1, 5, 10.](../course/09_precision/figures/formats.svg)
#
# Take fp16, with 10 bits of fraction. Between 1 and 2 its numbers are $1, 1+2^{-10}, 1+2\cdot2^{-10}, \ldots$; I shall call the distance between neighbours a **step**. Between 2 and 4 the steps are twice as large, between ½ and 1 half as large. A result that falls between two numbers goes to the nearer one, and from the middle to the one whose last bit is 0 ("ties to even"). Below $2^{-14}$ the exponent cannot fall any further, and the steps stay at $2^{-24}$; such numbers are called **subnormal**. Half a step above zero, $2^{-25}$, is rounded to zero.
#
# Before you run the cell, predict which of the 18 results will be off, and in which direction.

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
# fp16 is fine-grained, but it ends at 65,504 and has nothing below $2^{-24}$, about $6\cdot10^{-8}$. bf16 has the range of fp32, with steps of nearly one per cent. (Rounding a number by hand, bit by bit, is your first exercise.)
#
# ## First loss: gradients underflow
#
# The loss is a mean over the whole batch. If the batch is processed in micro-batches, each micro-batch divides its sum by the size of the *whole* batch, here 4 million or $2^{22}$, and so all gradients are divided as well. In fp32 this is harmless. Let us compute them there and count them by their exponent.

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
# Read the upper picture. About a quarter of the gradients are 0 in fp32 too, because many pixels are always black. Of the others not a single one is a normal number of fp16, and many lie to the left of the dashed line, where fp16 has nothing but 0. But see how narrow the hill is: it covers some 20 powers of two, and fp16 holds 40. The hill merely stands in the wrong place.
#
# That suggests the remedy, and it is wonderfully cheap. The backward pass is linear: if the loss is multiplied by a number *S*, every gradient is multiplied by *S*. So **multiply the loss by S, and divide the gradients by S afterwards**. This is [loss scaling](term:loss-scaling). The lower picture shows the same gradients times $2^{16}$.
#
# ![The number line of fp16. It has its full precision from 2⁻¹⁴ up to 65,504; below, down to 2⁻²⁴, its digits fade; what is smaller becomes 0, what is larger infinite. Above, about half of the gradients lie where they become 0. Below, multiplied by S = 2¹⁶, all of them lie inside the range.](../course/09_precision/figures/loss_scaling.svg)
#
# Now let us really run the backward in fp16, where each intermediate gradient is rounded as well, and try many scales. How wide will the range of good ones be?


# %%
def outcome(scale):
    """Shares of the gradients, in %: those that wrongly became 0, and those that are not finite."""
    low = gradients(mlp(sizes).half(), x.half(), y, scale)
    low = torch.cat([g.flatten().float() for g in low])
    high = torch.cat([g.flatten() for g in exact])
    zeros = (low == 0)[high != 0].float().mean().item()
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
    words="Without a scale a third is lost, and the rest has a bit or two of precision left. Everything "
    "from S = 2¹² to 2³² is fine.",
)

# %% tags=["maintainer"]
found = dict(zip(powers, outcomes, strict=True))
assert 30 < found[0][0] < 37 and all(found[k] == (0, 0) for k in range(12, 33, 4))
assert found[44][1] > 50

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
    "at ¼, where steps are finer, the weight walks up to ½. There the update is half a step, the tie goes "
    "to the even neighbour, and the weight stays where it is.",
)

# %% tags=["maintainer"]
assert [seen[-1] for _, seen in walks.values()] == [2, 1, 0.5]

# %% [markdown]
# ![The fp16 numbers next to 1 are 1, 1 + 1/1024 and 1 + 2/1024. Three updates of 0.0003 are added to the weight 1. In fp16 every sum is rounded back to 1. In fp32 the master weight goes to 1.0003, 1.0006 and 1.0009, and its rounding to fp16 is 1 + 1/1024 after the second one.](../course/09_precision/figures/lost_update.svg)
#
# A weight and its update may each be representable, and their sum is still lost, because they are too far apart. In training a typical weight is near 0.1, and late in training updates become small. To see what this does, we train with plain SGD and everything in fp32, except that the *weights* are rounded to a format after each step. We take five seeds:

# %%
from minidist.train.amp import lost


def train_rounded(dtype, seed, steps=250, rate=0.01):
    """Train with weights that are rounded after each step: the last loss, and the updates lost."""
    network = mlp(sizes, seed)
    parameters = list(network.parameters())
    for _ in range(steps):
        loss = cross_entropy(network(x), y)
        updates = [-rate * g for g in torch.autograd.grad(loss, parameters)]
        share_lost = lost(updates, parameters, dtype)
        for p, update in zip(parameters, updates):
            p.data = (p.data + update).to(dtype).float()
    return loss.item(), share_lost


rows = []
losses = {}
for name, dtype in [("fp32", f32), ("fp16", f16), ("bf16", bf16)]:
    results = [train_rounded(dtype, seed) for seed in range(5)]
    losses[name] = [loss for loss, _ in results]
    rows.append([name] + [f"{loss:.4f}" for loss in losses[name]] + [f"{results[-1][1]:.0%}"])
study.table(
    rows,
    ["weights in", *(f"seed {seed}" for seed in range(5)), "updates lost at the end"],
    title="Loss after 250 steps",
)

# %% tags=["maintainer"]
spread = max(losses["fp32"]) - min(losses["fp32"])
assert all(b > a for a, b in zip(losses["fp32"], losses["fp16"]))
assert min(b - a for a, b in zip(losses["fp32"], losses["bf16"])) > spread

# %% [markdown]
# In fp16 62 % of the updates are lost, and the loss hardly suffers: the small ones are lost, and training has only begun. bf16 is the worse of the two, since its steps are eight times as coarse: of the way from 2.35, where the loss began, down to 1.9, it has come only a third. Nearly all updates leave no trace. The remedy: the optimizer works on a copy of the weights in fp32, the [master weights](term:master-weights), in which small updates add up. From it the 16-bit weights for the next forward are made afresh, by rounding.
#
# ## Third loss: sums
#
# Sums that grow overflow, and small numbers that are added to a large sum are lost. Each line below is computed in fp16 step by step.

# %%
ones = torch.tensor(0, dtype=f16)
for _ in range(4096):
    ones += 1
eights = torch.full((4096,), 8.0, dtype=f16)
logits = torch.tensor([12.0, 11.0], dtype=f16)
by_formula = (logits.exp() / logits.exp().sum())[0].item()
in_fp32 = logits.softmax(0, dtype=f32)[0].item()
softmax = 1 / (1 + math.exp(-1))
rows = [
    ("4,096 ones, added one by one", ones.item(), 4096),
    ("Σ x², of 4,096 eights", (eights * eights).sum().item(), 262144),
    ("exp(12)", logits.exp()[0].item(), math.exp(12)),
    ("softmax(12, 11), by its formula", by_formula, softmax),
    ("softmax(12, 11), in fp32", in_fp32, softmax),
]
study.table(
    [(name, f"{got:.5g}", f"{right:.5g}") for name, got, right in rows], ["", "fp16", "right"]
)

# %% tags=["maintainer"]
assert ones == 2048 and math.isnan(by_formula)

# %% [markdown]
# The first line is worth a thought: at 2,048 the steps of fp16 are 2, so adding 1 is a tie, and the sum never moves again. The remedy is to compute sums, norms, softmax and losses in fp32, whatever their inputs are. (The matrix units of a GPU do the same inside: they multiply halves and add up in fp32.)
#
# ## The remedy, step by step
#
# ![The loop of mixed precision: fp32 master weights are rounded to an fp16 copy; forward and backward run in fp16 with a scaled fp32 loss; the gradients are divided by S in fp32; if any is not finite, the step is skipped; otherwise the masters are updated and rounded again.](../course/09_precision/figures/master_weights.svg)
#
# Follow the loop in the picture: fp32 master → fp16 copy → forward → scaled fp32 loss → fp16 backward → unscale in fp32 → skip on infinity or nan → update → fp16 copy. We build it in four steps.
#
# **Step 1** is forward and backward in fp16 with a scaled loss, which we have.
#
# **Step 2** divides by *S*. But where? If the division is done in fp16, the quotients underflow, and everything that the scale has saved is lost at the last moment. So convert first, divide then.


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
    note="the gradient's length",
    title="Error of the whole gradient",
)

# %% tags=["maintainer"]
assert errors["S = 1, divided in fp32"] > 1 and errors["S = 2¹⁶, divided in fp32"] < 0.002

# %% [markdown]
# Without a scale the error is larger than the gradient itself. How can that be, if two thirds of the gradients are not even zero? The damage is done at the very start of the backward pass. For each sample nine of the ten logits have a gradient of about $0.1/2^{22}$, which is 0.4 of the smallest step of fp16, and most of these become 0. The tenth has $-0.9/2^{22}$, nearly four steps, and stays. The ten ought to add up to zero and now they do not, and every earlier layer receives that error. Had we rounded only the finished gradients, the error would be 8 %.
#
# **Step 3**: the optimizer steps the fp32 masters, and their rounding goes into the fp16 weights, in place. Here is the whole loop, with plain SGD, beside its oracle in fp32. (The learning rate is large because the gradients are small.)

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
            p.data.copy_(master)
    return losses


def serial(steps=30):
    network = mlp(sizes)
    losses = []
    for _ in range(steps):
        losses.append(cross_entropy(network(x), y).item())
        for p, g in zip(network.parameters(), gradients(network, x, y)):
            p.data -= RATE * g
    return losses


# %% tags=["nbval-ignore-output"]
runs = {
    "fp32": serial(),
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

# %% [markdown]
# With $S=2^{16}$ the loop cannot be told apart from fp32. With *S* = 1 the gradient is mostly rounding, and the curve looks different on every machine. With $S=2^{40}$ every step overflows and is skipped, which is safe and useless. Besides, which *S* is right changes in the course of training.
#
# **Step 4** therefore adapts the scale. A fixed *S* is called **static** scaling. A **dynamic** scale searches by itself: on an overflow skip the step and halve *S*; after a number of good steps in a row, double it. Usually that number is 2,000 and *S* starts from $2^{16}$. In the next run it is 10, and overflows are planted in steps 15, 16 and 42. Draw the curve of *S* on a piece of paper before you run the cell.


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

# %% [markdown]
# PyTorch's `GradScaler`, given the same overflows, goes through the same scales. Note that *S* always climbs until something overflows. One skipped step in 2,000 is the price, and nobody notices it.
#
# ## Break it: skip on one rank only
#
# With several ranks a new question arises: who decides to skip? Three replicas have two weights each, and rank 1's gradient overflows. Suppose every rank looks at its own gradients, then they average, and then each steps or skips according to what it has seen. **Which ranks have finite weights after this step?**

# %%
guess_finite = [0, 1, 2]  # ranks: change this list

# %%
from minidist.collectives import all_reduce_
from minidist.comm import World


def replicas(comm, look_before_averaging):
    weights = torch.tensor([1.0, 2.0])
    gradient = torch.tensor([1.0, 90.0 if comm.rank == 1 else 3.0])
    scaled = (gradient * 1024).half()  # 90 · 1,024 is beyond fp16
    overflow = not scaled.isfinite().all()
    all_reduce_(comm, scaled, "mean")
    if not look_before_averaging:
        overflow = not scaled.isfinite().all()
    if overflow:
        return weights
    return weights - 0.1 * scaled.float() / 1024


before = list(World(3).run(replicas, True))
after = list(World(3).run(replicas, False))
rows = []
for rank in range(3):
    weights = [", ".join(f"{w:g}" for w in of_rank[rank].tolist()) for of_rank in (before, after)]
    rows.append((f"rank {rank}", *weights))

# %% tags=["answer"]
study.reveal(
    guess_finite,
    [1],
    study.table(
        rows,
        ["weights after the step", "looks, then averages", "averages, then looks"],
    ),
    words="Ranks 0 and 2 have stepped with an infinite gradient, rank 1 has not, and from now on its scale "
    "differs from theirs, too.",
)

# %% tags=["maintainer"]
assert before[0].isinf().any() and before[1].tolist() == [1, 2]
assert all(weights.tolist() == [1, 2] for weights in after)

# %% [markdown]
# The mean of finite numbers and infinity is infinity, so looking *after* the average is right. But not every rank sees every gradient: when each rank owns a part of the parameters, as in [ZeRO](lesson:zero), only one of them sees the overflow. Then they have to **agree**: one all-reduce of a flag, 4 bytes. Building this is one of the exercises.
#
# ## Which operator in which precision?
#
# So far we have converted the whole model by `.half()`. That is crude, since it also converts what should stay in fp32. A finer way decides for each operator, by lists. On the **white** list are the matrix products: they have nearly all the FLOPs and stay in range, so their inputs are cast to fp16. On the **black** list are exponentials, sums, softmax, norms and losses: cast to fp32. On the **gray** list are operators with several inputs and no danger of their own, such as concatenation: they take the widest type among their inputs. All others take what comes.
#
# ![A part of a transformer under autocast. Linear layers and matrix products are white: inputs cast to fp16. Softmax, layer norm and the loss are black: cast to fp32. Concatenation is gray: all inputs become the widest. ReLU is on no list and runs in whatever comes.](../course/09_precision/figures/operator_lists.svg)
#
# How can one change what an operator does without changing the model? PyTorch offers a hook for that, a **function mode**: within a `with` block, each call of a torch function passes through a method of ours, which may change the arguments. The gray list, and arguments by name or in lists, are left to the exercises.

# %%
from torch.overrides import TorchFunctionMode

WHITE = {"linear", "matmul", "conv2d"}
BLACK = {"softmax", "log_softmax", "cross_entropy", "sum", "exp"}


class Lists(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        dtype = None
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
        return argument


network = mlp(sizes)
with Lists():
    output = network(x)
    loss = cross_entropy(output, y)
(loss * 2.0**16).backward()
rows = [
    ("output", str(output.dtype)),
    ("loss", str(loss.dtype)),
    ("gradients of the weights", str(network[0].weight.grad.dtype)),
]
study.table(rows, ["", "dtype"], title="The model was not changed")

# %% tags=["maintainer"]
assert error_of([p.grad / 2**16 * 128 / WHOLE for p in network.parameters()]) < 2e-3

# %% [markdown]
# The weights are still fp32 and so are their gradients, although the products ran in fp16. The reason is that the cast, `argument.to(dtype)`, is a torch function itself. Autograd records it, and in the backward it turns the gradient back into fp32. In other words, the parameters are their own master copies.
#
# This is also why the casts must happen *above* autograd. PyTorch has a second kind of hook below it, a *dispatch mode*, which sees every operator after autograd has made its notes. There autograd has already saved its inputs for the backward, in fp32. The casts would still speed up the products, but nothing would be saved in memory. The meter shows it on eight layers of 1,024 with 4,096 rows:

# %%
from contextlib import nullcontext

from torch.utils._python_dispatch import TorchDispatchMode

from minidist.study import measure

aten = torch.ops.aten  # PyTorch's operators, below autograd


class BelowAutograd(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator in (aten.addmm.default, aten.mm.default):
            return operator(*[argument.half() for argument in args]).float()
        return operator(*args, **(kwargs or {}))


def forward_backward(network, x, mode):
    with mode:
        loss = network(x).float().sum()
    loss.backward()


def kept(mode):
    """Bytes of activations at the peak."""
    layers = []
    for _ in range(8):
        layers.append(torch.nn.Linear(1024, 1024, device="meta"))
        layers.append(torch.nn.GELU())
    x = torch.empty(4096, 1024, device="meta")
    profile = measure(forward_backward, torch.nn.Sequential(*layers), x, mode)
    return profile.at_peak["activations"]


saved = {
    "fp32": kept(nullcontext()),
    "cast below autograd": kept(BelowAutograd()),
    "cast above autograd": kept(Lists()),
}
study.bars(saved, unit="B", title="Kept for the backward")

# %% tags=["maintainer"]
assert saved["cast above autograd"] < 0.6 * saved["fp32"] == 0.6 * saved["cast below autograd"]

# %% [markdown]
# It is not quite half: beside the 15 activations in 16 bits, 126 MB, autograd now keeps the fp16 copies of the input, 8 MB, and of seven weights, 15 MB.

# %% [markdown]
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
# You know every entry of this table except one: why does O2 leave batch norm in fp32? Because it keeps a running mean, to which each batch adds a small fraction of a difference, here a hundredth. It is the second loss again. Here are 1,000 batches of data with mean 10:

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
    title="It stops 0.39 short of 10: a hundredth of that is half a step",
)

# %% tags=["maintainer"]
assert means["fp32"][-1] > 9.99 and means["fp16"][-1] < 9.7

# %% [markdown]
# The library makes a model ready for any level by `prepare`. There is no magic in it, and you can read it before you use it:

# %%
from minidist.train import amp

study.source(amp.prepare, docstring=False)

# %% [markdown]
# `halve_` is a `.half()` that can leave the norms alone, `autocast` is our `Lists` in full, `Masters` wraps an optimizer so that it steps fp32 copies, and `LossScaler` is the dynamic scale. Now we run all levels on our task, with Adam. Its ε is tiny because the gradients are. **Which of these reach the loss of O0?**

# %%
guess_reach = ["O1", "O2", "O3"]  # delete those that do not

# %%
from functools import partial

adam = partial(torch.optim.Adam, lr=3e-3, eps=1e-16)
no_scaler = partial(amp.LossScaler, enabled=False)


def train(level, seed, dtype=f16, make_scaler=lambda: None):
    prepared = amp.prepare(mlp(sizes, seed), adam, level, dtype, scaler=make_scaler())
    random = torch.Generator().manual_seed(seed)
    for _ in range(40):
        chosen = torch.randint(len(task.x), (128,), generator=random)
        with prepared.autocast:
            loss = part_of_loss(prepared.model(task.x[chosen]), task.y[chosen])
        prepared.step(loss)
    with torch.no_grad(), prepared.autocast:
        return cross_entropy(prepared.model(task.x).float(), task.y).item()


def compared(loss, full):
    if math.isnan(loss):
        return "nan"
    if abs(loss / full - 1) < 0.05:
        return "as O0"
    return f"{loss / full:.0f} times"


ways = {
    "O0": ("O0",),
    "O1": ("O1",),
    "O2": ("O2",),
    "O3": ("O3",),
    "O2, no scaler": ("O2", f16, no_scaler),
    "O2, bf16, no scaler": ("O2", bf16, no_scaler),
    "O3, bf16": ("O3", bf16),
}
reached = {name: [train(way[0], seed, *way[1:]) for seed in range(3)] for name, way in ways.items()}
full = reached["O0"]
rows = [["O0"] + [f"{loss:.2f}" for loss in full]]
for name, losses in reached.items():
    if name != "O0":
        rows.append([name] + [compared(a, b) for a, b in zip(losses, full)])

# %% tags=["answer"]
study.reveal(
    guess_reach,
    ["O1", "O2"],
    study.table(
        rows,
        ["level", *(f"seed {seed}" for seed in range(3))],
        title="Loss after 40 steps (as O0: within 5 %)",
    ),
)

# %% tags=["maintainer"]
spread = max(full) - min(full)
for name, bound in [("O1", 0.01), ("O2", 0.01), ("O2, bf16, no scaler", 0.05)]:
    assert all(abs(a / b - 1) < bound for a, b in zip(reached[name], full)), name
assert all(map(math.isnan, reached["O3"]))
assert min(reached["O2, no scaler"]) > max(full) + spread

# %% [markdown]
# Why is O3 *nan*, and not just bad? Adam divides by $\sqrt v+\varepsilon$, where *v* is a mean of squared gradients; after the first step it is $(1-\beta_2)\,g^2 = 0.001\,g^2$. Look where these squares lie:

# %%
squares = [1e-3 * g.double() ** 2 for g in exact]
study.exponents(
    {
        "O1 and O2: gradients times 2¹⁶": exponents(exact, scale=2.0**16),
        "O3: gradients": exponents(exact),
        "O3: Adam's mean of squares after a step": exponents(squares),
    },
    title="What fp16 holds of them",
)

# %% [markdown]
# Not one of them can be represented in fp16, and neither can ε, so Adam divides by zero. In more usual runs, with gradients of $2^{-10}$ and $\varepsilon=10^{-8}$, it is just the same.
#
# And **bf16 needs no scaler**, since it has the range of fp32. This is why nearly everyone uses it today. It needs master weights all the more, though: O3 in bf16 gets by in this table thanks to Adam's large updates, but with small ones it does not, as you saw in the second experiment.
#
# ## TF32: what "fp32" means on a GPU
#
# You may think that you are training in fp32 when you are not. The matrix units of NVIDIA's GPUs cannot multiply fp32 numbers. What they offer instead is **TF32**: tensors stay in fp32 in memory, but a product reads only the first 10 bits of each fraction, like fp16, with the exponents of fp32. The sums are again fp32. It has the range of fp32 and the precision of fp16, and on an H100 it is seven times as fast as true fp32, 495 against 67 TFLOP/s.
#
# The rounding can be imitated to the last bit on a CPU, by clearing the 13 low bits of each number after adding half of their range. Let us see what it does to a product.

# %%
import struct

from minidist.train.amp import tf32, tf32_matmul


def bits(value):
    """The 32 bits of a number in fp32: sign, exponent, fraction."""
    pattern = f"{struct.unpack('>I', struct.pack('>f', value))[0]:032b}"
    return f"{pattern[0]} {pattern[1:9]} {pattern[9:19]} {pattern[19:]}"


tenth = torch.tensor(0.1)
print("0.1 in fp32:", bits(tenth.item()))
print("0.1 in TF32:", bits(tf32(tenth).item()))

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

# %% [markdown]
# TF32 has the error of fp16, a thousand times as large as with fp32. For most training that is harmless. PyTorch has it on for convolutions and off for matrix products, unless you say `torch.backends.cuda.matmul.allow_tf32 = True` (our `tf32_products()` does it for a `with` block). It matters to know the state of this switch in two situations: when you compare a run with a reference to the sixth digit, and when somebody tells you that fp16 is 15 times as fast as fp32. Against TF32 it is twice as fast.
#
# ## What it costs and saves
#
# ### Memory
#
# Write down how many bytes a parameter needs with Adam, for each level: parameter, gradient, and optimizer states, the masters among them. **What is the sum for O0 and for O2?**

# %%
guess_sum = {"O0": 16, "O2": 10}  # change these numbers

# %%
from minidist.models import gpt, next_token_loss


def prepared_gpt(hidden, level, sequences=8, length=1024):
    network = gpt(2, hidden, 8, 1000, 1024, device="meta")
    prepared = amp.prepare(network, partial(torch.optim.AdamW, lr=1e-4), level)
    return prepared, torch.zeros(sequences, length, dtype=torch.long, device="meta")


def forward_and_backward(prepared, tokens, states=None):  # states: shown to the meter
    with prepared.autocast:
        loss = next_token_loss(prepared.model(tokens), tokens)
    prepared.scaler.scale(loss).backward()


def take_step(prepared):
    prepared.scaler.step(prepared.optimizer)
    prepared.scaler.update()


rows = []
for level in ("O0", "O1", "O2", "O3"):
    prepared, tokens = prepared_gpt(256, level)
    psi = sum(p.numel() for p in prepared.model.parameters())
    forward_and_backward(prepared, tokens)
    take_step(prepared)
    prepared.optimizer.zero_grad()
    states = getattr(prepared.optimizer, "inner", None)
    profile = measure(forward_and_backward, prepared, tokens, states, where="meta")
    live = profile.timeline.at(math.inf)
    kinds = ("parameters", "gradients", "optimizer states")
    per_parameter = [round(live[kind] / psi) for kind in kinds]
    rows.append([level, *per_parameter, sum(per_parameter)])

# %% tags=["answer"]
study.reveal(
    guess_sum,
    {"O0": rows[0][-1], "O2": rows[2][-1]},
    study.table(
        rows,
        ["after the backward", "parameters", "gradients", "optimizer", "bytes a parameter"],
    ),
    words="4 + 4 + 8 in fp32, and 2 + 2 + 12 with masters. What mixed precision saves is not model "
    "states but activations, and time.",
)

# %% tags=["maintainer"]
expected = {"O0": [4, 4, 8], "O1": [4, 4, 8], "O2": [2, 2, 12], "O3": [2, 2, 4]}
assert {row[0]: row[1:4] for row in rows} == expected

# %% [markdown]
# ### Time
#
# By its data sheet an H100 multiplies at 989 TFLOP/s in fp16, at 495 in TF32 and at 67 in fp32, moves 3.35 TB/s to and from its memory, and an operator takes about 5 µs to launch. Take one layer with 4,096 rows and *H* × *H* weights. Its forward and backward are three products of $2\cdot4096\cdot H^2$ FLOPs each, and a product takes the longer of the time to compute and the time to move its matrices. That makes three curves. **How many times as fast as fp32 is fp16, for H = 32?** For large *H* it will be nearly 15 times.

# %%
guess_small = 15  # times: change this number

# %%
from minidist.comm.cluster import H100


def layer(width, dtype):
    x = torch.nn.Parameter(torch.empty(4096, width, dtype=dtype, device="meta"))
    w = torch.nn.Parameter(torch.empty(width, width, dtype=dtype, device="meta"))
    return x, w, torch.empty(4096, width, dtype=dtype, device="meta")


def three_products(x, w, dy):
    (x @ w).backward(dy)


def predicted(width, peak, itemsize):
    computing = 2 * 4096 * width**2 / peak
    moving = (2 * 4096 * width + width**2) * itemsize / 3.35e12
    return 3 * (5e-6 + max(computing, moving))


widths = [2**k for k in range(5, 15)]
fine = [round(2 ** (k / 4)) for k in range(20, 57)]
kinds = {"fp32": (67e12, 4), "TF32": (494.5e12, 4), "fp16": (989e12, 2)}
lines = {name: (fine, [predicted(width, *kind) for width in fine]) for name, kind in kinds.items()}
points = {}
for name, dtype in [("fp32", f32), ("fp16", f16)]:
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
    words="For a narrow layer the launches set the time, and they are the same in every format.",
)

# %% tags=["maintainer"]
for name in ("fp32", "fp16"):
    for width, time in zip(*points[name]):
        assert abs(time / predicted(width, *kinds[name]) - 1) < 0.01
in_practice = [measure(three_products, *layer(widths[-1], dtype)).time for dtype in (f32, f16)]
assert 14 < in_practice[0] / in_practice[1] < 14.5 and 14 < faster[-1] < 15

# %% [markdown]
# The number of rows is the batch times the length of its sequences. The slider shows how the three lines move together when there are few rows: then the time goes into moving the weights, and into the 5 µs that a launch takes in every format.


# %%
def layer_seconds(width, rows):
    """Forward and backward of one layer, in each format."""
    times = {}
    for name, (peak, itemsize) in kinds.items():
        computing = 2 * rows * width**2 / peak
        moving = (2 * rows * width + width**2) * itemsize / 3.35e12
        times[name] = 3 * (5e-6 + max(computing, moving))
    return times


study.explore(
    layer_seconds,
    over="width",
    width=[2**k for k in range(5, 15)],
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
# **When not to use it.** *When launches set the time*: casts and masters are operators too, and a small model gets slower. The table below has a whole step of a GPT with two layers, once small and once large, on a modelled H100. *fp16 where there is bf16*: bf16 needs no scaler, no skipped steps and no agreement between ranks. *On CPUs*, most of which have no units for 16 bits.


# %%
def step_time(hidden, level, sequences, length):
    prepared, tokens = prepared_gpt(hidden, level, sequences, length)
    forward_and_backward(prepared, tokens)
    take_step(prepared)
    prepared.optimizer.zero_grad()
    first = measure(forward_and_backward, prepared, tokens, where="meta").time
    return first + measure(take_step, prepared, where="meta").time


times = {}
for level in ("O0", "O1", "O2", "O3"):
    times[level] = step_time(128, level, 1, 128), step_time(4096, level, 8, 1024)
study.table(
    [(level, f"{1e3 * a:.2f}", f"{1e3 * b:.1f}") for level, (a, b) in times.items()],
    ["ms a step", "H = 128, one sequence of 128", "H = 4,096, eight of 1,024"],
)

# %% tags=["maintainer"]
for level in ("O1", "O2"):
    assert times[level][0] > 1.3 * times["O0"][0] and times[level][1] < 0.12 * times["O0"][1]

# %% [markdown]
# ## The library's file
#
# Everything in this lesson is in [minidist/train/amp.py](file:minidist/train/amp.py). Its autocast has all three lists, and you may change them; here GELU is made black:

# %%
modes = {
    "autocast()": amp.autocast(),
    'autocast(black=BLACK | {"gelu"})': amp.autocast(black=amp.BLACK | {"gelu"}),
}
rows = []
for name, mode in modes.items():
    with mode:
        h = torch.nn.functional.linear(torch.ones(4, 8), torch.eye(8))
        outputs = [
            h,
            torch.nn.functional.gelu(h),
            torch.softmax(h, 1),
            torch.cat([h, torch.ones(4, 8)]),
        ]
    rows.append([name] + [str(t.dtype).removeprefix("torch.") for t in outputs])
study.table(rows, ["", "linear", "gelu", "softmax", "cat"], title="What comes out")

# %% tags=["maintainer"]
assert [row[2] for row in rows] == ["float16", "float32"]

# %% [markdown]
# Its scaler agrees with the other ranks over a communicator, and adapts as ours does. It may have a smallest scale as well: a few bad batches in a row halve *S* again and again, and 2,000 good steps double it only once, so without a floor small gradients could be zero for a long time.

# %%
study.source(amp.LossScaler._adapt)

# %% [markdown]
# And the master copies: an optimizer's step is a step of the masters, after which the 16-bit weights are rounded anew.

# %%
study.source(amp.Masters.step)

# %% [markdown]
# ## In real processes, and on a cluster
#
# O2 with data parallelism, in two processes. On rank 1, in step 2, a sample of 10³⁰ makes fp16 overflow. The gradients are averaged, and the scaler asks all ranks.

# %%
from minidist.comm import launch
from minidist.parallel.data import DataParallel


def program(comm, task, bad_step):
    prepared = amp.prepare(mlp(sizes, seed=comm.rank), adam, "O2", comm=comm)
    model = DataParallel(prepared.model, comm)
    skipped = []
    for step in range(6):
        batch = slice(step * 64 + comm.rank * 32, step * 64 + comm.rank * 32 + 32)
        x = task.x[batch].clone()
        if (step, comm.rank) == (bad_step, 1):
            x[0] *= 1e30
        prepared.step(cross_entropy(model(x), task.y[batch]))
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
