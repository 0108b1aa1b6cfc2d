# %% [markdown]
# # 09 · Mixed precision
#
# A small network reads digits. Its batch has 4 million samples, worked off in micro-batches of 128. Forward and
# backward run in fp16: that halves what is kept for backward, and makes matrix products up to 14 times as fast on an
# H100. **Of 100 gradients that are not zero, how many come out as exactly 0?**

# %%
guess = 1  # of 100: change this number

# %% [markdown]
# ## On paper: 3 formats, 6 numbers
#
# All three write a number as ± 1.fraction · 2^exponent. fp32 has 8 bits for the exponent and 23 for the fraction,
# fp16 has 5 and 10, **bf16** has 8 and 7. Six numbers, each rounded to each format. **Predict** which cells are
# off.
#
# Below are the bits of some fp16 numbers. An exponent field of all zeros means that no 1 stands before the point
# (**subnormal**); all ones mean inf or nan.

# %%
import math
import torch
from IPython.display import display
from torch import nn
from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World, launch
from minidist.models import gpt, mlp, next_token_loss
from minidist.tasks import digits

F = nn.functional
f32 = torch.float32
f16 = torch.float16
bf16 = torch.bfloat16
torch.set_num_threads(1)  # the networks are small

# %% tags=["exact-numbers"]
six = {
    "1 + 2⁻⁹": 1 + 2**-9,
    "1 + 2⁻¹²": 1 + 2**-12,
    "2049": 2049.0,
    "70,000": 7e4,
    "10⁻⁸": 1e-8,
    "10⁻⁴⁰": 1e-40,
}
rows = [
    (name, *(f"{torch.tensor(x).to(d).item():.8g}" for d in (f32, f16, bf16)))
    for name, x in six.items()
]
display(study.table(rows, ["number", "fp32", "fp16", "bf16"], title="Range and rounding"))


def bits(x):
    pattern = f"{torch.tensor(x, dtype=f16).view(torch.int16).item() & 0xFFFF:016b}"
    return pattern[0], pattern[1:6], pattern[6:], torch.tensor(x, dtype=f16).item()


some = {
    "1": 1.0,
    "0.1": 0.1,
    "2⁻¹⁴, the last normal one": 2.0**-14,
    "2⁻²⁴, the last of all": 2.0**-24,
    "65,504, the largest": 65504.0,
    "65,520": 65520.0,
}
study.table(
    [(name, *bits(x)[:3], f"{bits(x)[3]:.10g}") for name, x in some.items()],
    ["number", "sign", "exponent", "fraction", "as fp16"],
    title="Sixteen bits",
)

# %% [markdown]
# fp16 is fine-grained and ends early. bf16 has fp32's range, and steps of nearly 1 %. Between two powers of two
# fp16's **step** is 2⁻¹⁰ of the lower one, and never below 2⁻²⁴. A number becomes a whole number of steps; a tie goes
# to the even one. (You build this as the first exercise.)
#
# ## First loss: gradients underflow
#
# The loss is a mean over the whole batch, so a micro-batch divides its sum by 4 million: $2^{22}$. Every gradient is
# divided too. In fp32 this is harmless. Count the fp32 gradients by exponent, and what fp16 would make of them.

# %%
from minidist.train.amp import LossScaler, autocast, exponents, halve_, lost, prepare

task, WHOLE = digits(f32), 2**22
x, y = task.x[:128], task.y[:128]


def share(out, y):  # of the whole batch's loss, always in fp32
    return F.cross_entropy(out.float(), y, reduction="sum") / WHOLE


def gradients(net, x, y, scale=1.0):
    net.zero_grad()
    (share(net(x), y) * scale).backward()
    return [p.grad for p in net.parameters()]


# %%
exact = gradients(mlp([64, 64, 64, 10]), x, y)
study.exponents(
    {"as they are": exponents(exact), "times 2¹⁶": exponents(exact, scale=2.0**16)},
    title="Gradients of a micro-batch, by exponent",
)

# %% [markdown]
# A quarter is 0 in fp32, too: many pixels are always black. Of the others not one is a normal number of fp16, and 27.7
# of 75.8 would be 0: 37 in 100, if only the result were rounded. But their range is narrow: some 20 powers of two, and
# fp16 holds 40. They only lie in the wrong place. Backward is linear: multiply the loss by S, and every gradient is
# multiplied by S. Now run the backward in fp16, where each intermediate gradient is rounded, for many S.


# %%
def outcome(scale):
    low = gradients(mlp([64, 64, 64, 10]).half(), x.half(), y, scale)
    low, high = (torch.cat([g.flatten().float() for g in some]) for some in (low, exact))
    zero, there = low == 0, high != 0
    return round(100 * zero[there].float().mean().item()), round(
        100 * (~low.isfinite()).float().mean().item()
    )


found = {k: outcome(2.0**k) for k in range(0, 45, 4)}
zeros = found[0][0]
assert 30 < zeros < 37 and all(found[k] == (0, 0) for k in range(12, 33, 4)) and found[44][1] > 50
ways = {
    name: (list(found), shares)
    for name, shares in zip(("become 0", "inf or nan"), zip(*found.values()))
}
study.curves(
    ways,
    yunit="%",
    xlabel="S = 2 to the power",
    ylabel="share of the gradients",
    title="Too small a scale, too large a scale",
)

# %% [markdown]
# At S = 1 a third is zero (34 in 100 that should not be), and the rest has a bit or two. From $2^{12}$ to $2^{32}$ all
# is well.
#
# ## Second loss: updates
#
# A weight of 1, an update of 2⁻¹², 4,096 times. **Predict** where each format ends.


# %%
def walk(dtype, begin, steps=4096):
    w, seen = torch.tensor(begin, dtype=dtype), [begin]
    for step in range(1, steps + 1):
        w += 2.0**-12
        if step % 512 == 0:
            seen.append(w.item())
    return range(0, steps + 1, 512), seen


ways = {"fp32": walk(f32, 1.0), "fp16": walk(f16, 1.0), "fp16, begun at ¼": walk(f16, 0.25)}
assert [seen[-1] for _, seen in ways.values()] == [2, 1, 0.5]
study.curves(
    ways, xlabel="updates", ylabel="the weight", title="Half a step and less leaves no trace"
)

# %% [markdown]
# fp16's step at 1 is 2⁻¹⁰. An update of a quarter of it is lost, each time. Begun at ¼, where steps are finer, the
# weight walks up to ½. There the update is half a step, the tie goes to the even one, and the weight stays.
#
# In training a weight is near 0.1, and late updates are small. Train with plain SGD, all in fp32, except that the
# *weights* are rounded after each step. Five seeds at once, the three formats side by side.


# %%
def learn(dtype, steps=250, rate=0.01):
    nets = [mlp([64, 64, 64, 10], seed) for seed in range(5)]
    params = [
        torch.stack(some).detach().requires_grad_()
        for some in zip(*(net.parameters() for net in nets))
    ]
    for _ in range(steps):
        h = x.expand(5, -1, -1)
        for w, b in zip(params[::2], params[1::2]):
            h = torch.baddbmm(b[:, None], h.relu(), w.mT)  # a pixel is not below 0
        each = -h.log_softmax(2)[:, torch.arange(128), y].mean(1)
        grads = torch.autograd.grad(each.sum(), params)
        for p, g in zip(params, grads):
            p.data = (p.data - rate * g).to(dtype).float()
    return each.tolist(), lost([-rate * g for g in grads], params, dtype)


# %%
kept = {name: learn(d) for name, d in (("fp32", f32), ("fp16", f16), ("bf16", bf16))}
spread = max(kept["fp32"][0]) - min(kept["fp32"][0])
assert all(b > a for a, b in zip(kept["fp32"][0], kept["fp16"][0])) and kept["bf16"][1] > 0.8
assert min(b - a for a, b in zip(kept["fp32"][0], kept["bf16"][0])) > spread
study.table(
    [
        (name, *(f"{l:.4f}" for l in losses), f"{share:.0%}")
        for name, (losses, share) in kept.items()
    ],
    ["weights in", *(f"seed {s}" for s in range(5)), "updates lost at the end"],
    title="Loss after 250 steps",
)

# %% [markdown]
# bf16 is worse: its steps are eight times as coarse. So the weights need an fp32 **master** copy, whatever half we
# compute in.
#
# ## Third loss: sums
#
# What grows, overflows; what is added to a large sum, is lost. Each line below is computed in fp16 step by step.

# %%
total = torch.tensor(0, dtype=f16)
for _ in range(4096):
    total += 1
long = torch.full((4096,), 8.0, dtype=f16)
logits = torch.tensor([12.0, 11.0], dtype=f16)
rows = [
    ("4,096 ones, one by one", total.item(), 4096),
    ("Σ x², 4,096 eights", (long * long).sum().item(), 262144),
    ("exp(12)", logits.exp()[0].item(), math.exp(12)),
    (
        "softmax(12, 11), by its formula",
        (logits.exp() / logits.exp().sum())[0].item(),
        1 / (1 + math.exp(-1)),
    ),
    ("softmax(12, 11), in fp32", logits.softmax(0, dtype=f32)[0].item(), 1 / (1 + math.exp(-1))),
]
assert total == 2048 and math.isnan(rows[3][1])
study.table(
    [(name, f"{got:.5g}", f"{right:.5g}") for name, got, right in rows], ["", "fp16", "right"]
)

# %% [markdown]
# So softmax, norms, sums and losses are computed in fp32. (A GPU's matrix units multiply halves and add up in
# fp32 for the same reason.)
#
# ## The flow, step by step
#
# fp32 master → fp16 copy → forward → scaled fp32 loss → fp16 backward → unscale in fp32 → skip on inf or nan →
# update → the copy again.
#
# **Step 1.** Forward and backward in fp16. The loss is fp32, and scaled. **Step 2.** Divide by S. Where? In fp16 this
# would lose again what the scale has saved, so convert first. Then look whether all are finite.


# %%
def unscaled(grads, scale):
    grads = [g.float() / scale for g in grads]
    return grads, not all(g.isfinite().all() for g in grads)


def off(grads):
    low, high = (torch.cat([g.flatten().double() for g in some]) for some in (grads, exact))
    return ((low - high).norm() / high.norm()).item()


# %%
ways = {}
for name, scale in (("S = 1", 1.0), ("S = 2¹⁶", 2.0**16)):
    grads = gradients(mlp([64, 64, 64, 10]).half(), x.half(), y, scale)
    ways |= {
        f"{name}, divided in fp16": off([g / scale for g in grads]),
        f"{name}, divided in fp32": off(unscaled(grads, scale)[0]),
    }
assert ways["S = 1, divided in fp32"] > 1 and ways["S = 2¹⁶, divided in fp32"] < 0.002
study.bars(
    {name: float(f"{100 * error:.2g}") for name, error in ways.items()},
    unit="%",
    target=100,
    note="the gradient's length",
    title="Error of the whole gradient",
)

# %% [markdown]
# At S = 1 the error is larger than the gradient.
#
# **Step 3.** The optimizer steps the fp32 masters. Their rounding goes into the fp16 copy, in place.
#
# The oracle is the same loop in fp32. The rate is large because the gradients are small.


# %%
def train_by_hand(scale, steps=30):
    net, losses = mlp([64, 64, 64, 10]).half(), []
    masters = [p.detach().float() for p in net.parameters()]
    for _ in range(steps):
        grads, found = unscaled(gradients(net, x.half(), y, scale), scale)
        losses.append(F.cross_entropy(net(x.half()).float(), y).item())
        if found:
            continue
        for p, m, g in zip(net.parameters(), masters, grads):
            m -= RATE * g
            p.data.copy_(m)
    return losses


# %%
RATE = 0.1 * WHOLE / 128


def serial(steps=30):
    net, losses = mlp([64, 64, 64, 10]), []
    for _ in range(steps):
        net.zero_grad()
        share(net(x), y).backward()
        losses.append(F.cross_entropy(net(x), y).item())
        for p in net.parameters():
            p.data -= RATE * p.grad
    return losses


# %% tags=["nbval-ignore-output"]
runs = {
    "fp32": serial(),
    "fp16, S = 2¹⁶": train_by_hand(2.0**16),
    "fp16, S = 1": train_by_hand(1.0),
    "fp16, S = 2⁴⁰": train_by_hand(2.0**40),
}
assert (
    abs(runs["fp16, S = 2¹⁶"][-1] / runs["fp32"][-1] - 1) < 0.01
    and runs["fp16, S = 1"][-1] > runs["fp32"][0]
)
study.curves(
    {name: (range(30), losses) for name, losses in runs.items()},
    xlabel="steps",
    ylabel="loss",
    title="The same loop in fp32 and in fp16",
)

# %% [markdown]
# At S = 1 the curve is mostly rounding: on another machine it is another one, and no better. With S = 2⁴⁰ every step
# is skipped: safe, and useless. Which S is right changes during training.
#
# A fixed S is **static** scaling. **Step 4: a dynamic scale.** An overflow: skip, and halve S. A number of good
# steps in a row: double it. Usually that is 2,000 steps from 2¹⁶; here it is 10. Overflows are planted in steps 15,
# 16 and 42. **Draw** S before you run. Then PyTorch's own scaler is asked.


# %%
def next_scale(scale, good, found, interval=10):
    if found:
        return scale / 2, 0
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


planted = (15, 16, 42)
mine = [2.0**16]
good = 0
for step in range(60):
    scale, good = next_scale(mine[-1], good, step in planted)
    mine.append(scale)
powers = [round(math.log2(scale)) for scale in mine]
study.curves(
    {"scale": (range(61), powers)},
    points={"overflow": (planted, [powers[k] for k in planted])},
    xlabel="step",
    ylabel="S = 2 to the power",
    title="A dynamic scale",
)

# %%
w, theirs = nn.Parameter(torch.ones(2)), torch.amp.GradScaler("cpu", growth_interval=10)
optimizer = torch.optim.SGD([w], lr=0.1)
for step, scale in enumerate(mine[1:]):
    w.grad = torch.full((2,), math.inf if step in planted else mine[step])
    theirs.scale(torch.ones(()))
    theirs.step(optimizer)
    theirs.update()
    assert theirs.get_scale() == scale
stepped = round((1 - w[0].item()) / 0.1)
assert stepped == 57
print(f"torch.amp.GradScaler: the same {len(mine)} scales, and {stepped} steps of 60")

# %% [markdown]
# S always climbs until it overflows. One step in 2,000 is skipped: that is the price.
#
# ## Break it: skip on one rank only
#
# Three replicas, two weights each, six gradients. One of them overflows on rank 1. Every rank looks at its own
# gradients, averages, and steps or skips. **Predict** the weights.


# %%
def replicas(comm, look_first):
    w, g = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 90.0 if comm.rank == 1 else 3.0])
    g = (g * 1024).half()  # 90 · 1,024 is beyond fp16
    found = not g.isfinite().all()
    all_reduce_(comm, g, "mean")
    if not look_first:
        found = not g.isfinite().all()
    return w if found else w - 0.1 * g.float() / 1024


early, late = (list(World(3).run(replicas, first)) for first in (True, False))
assert (
    early[0].isinf().any()
    and early[1].tolist() == [1, 2]
    and all(w.tolist() == [1, 2] for w in late)
)
study.holdings(
    {"looks, averages": early, "averages, looks": late},
    arrows=False,
    title="Weights after the step",
)

# %% [markdown]
# Ranks 0 and 2 have stepped with an infinite gradient, rank 1 has not, and its scale will be another one from now on.
# The mean of finite numbers and inf is inf, so looking *after* the average works. But not every rank sees everything:
# if each rank owns a part of the parameters (lesson 13), only one sees the inf. Then they **agree**: one all-reduce
# of a flag, 4 bytes. To build this is an exercise.
#
# ## Which operator in which precision?
#
# Converting the whole model is crude. Lists say it by operator. **White**: matrix products. They have nearly all
# FLOPs and stay in range: cast inputs to fp16. **Black**: exp, sums, softmax, norms, losses: cast to fp32.
# **Gray**: several inputs, no danger (cat, stack): all in the widest dtype among them. All others take what comes.
#
# A *function mode* sees each call of a torch function before autograd does. (Gray, and arguments by name or in
# lists, are left to the exercise.)

# %%
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WHITE, BLACK = (
    {"linear", "matmul", "conv2d"},
    {"softmax", "log_softmax", "cross_entropy", "sum", "exp"},
)


class Lists(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = func.__name__
        if name in WHITE | BLACK:
            dtype = f16 if name in WHITE else f32
            args = [
                a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a
                for a in args
            ]
        return func(*args, **(kwargs or {}))


# %%
net = mlp([64, 64, 64, 10])
with Lists():
    out = net(x)
    loss = F.cross_entropy(out, y)
(loss * 2.0**16).backward()
assert off([p.grad / 2**16 * 128 / WHOLE for p in net.parameters()]) < 2e-3
rows = [
    ("output", out.dtype),
    ("loss", loss.dtype),
    ("gradients of the weights", net[0].weight.grad.dtype),
]
study.table(
    [(name, str(dtype)) for name, dtype in rows], ["", "dtype"], title="The model was not changed"
)

# %% [markdown]
# The cast is a function of torch as well: autograd records it, and turns the gradient back into fp32.
#
# Why not one level below, in a *dispatch mode*, which sees every operator? Autograd stands above it. It has saved what
# it was given, fp32, and would get a gradient in fp16: backward fails. (Try it: leave out the last `.float()`.) With a
# cast back it works, but what is saved? By the meter: eight layers of 1,024, 4,096 rows, on the device `"meta"`, where
# tensors have a shape and no numbers. **Predict** the three bars.


# %%
class Below(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            return func(*args, **(kwargs or {}))
        return func(*[a.half() for a in args]).float()


def forward_backward(net, x, mode):
    with mode:
        loss = net(x).float().sum()
    loss.backward()


# %%
from contextlib import nullcontext
from minidist.study import measure


def activations(mode):
    layers = [
        layer for _ in range(8) for layer in (nn.Linear(1024, 1024, device="meta"), nn.GELU())
    ]
    x = torch.empty(4096, 1024, device="meta")
    return measure(forward_backward, nn.Sequential(*layers), x, mode).at_peak["activations"]


modes = {"fp32": nullcontext(), "dispatch mode": Below(), "function mode": Lists()}
saved = {name: activations(mode) for name, mode in modes.items()}
assert saved["function mode"] < 0.6 * saved["fp32"] == 0.6 * saved["dispatch mode"]
study.bars(saved, unit="B", title="Saved for backward")

# %% [markdown]
# The dispatch mode saves what fp32 saves. The function mode saves halves (and fp16 copies of the weights).
#
# ## Four levels
#
# | level | parameters | forward | stepped | loss scaled |
# |---|---|---|---|---|
# | O0 | fp32 | fp32 | parameters | no |
# | O1 | fp32 | by lists | parameters | yes |
# | O2 | fp16, batch norm fp32 | fp16 | fp32 masters | yes |
# | O3 | fp16 | fp16 | parameters | no |
#
# Why does O2 leave batch norm in fp32? It keeps a running mean, to which each batch adds here a hundredth of the
# difference. Data of mean 10, 1,000 batches. **Predict** where the mean ends in fp16.
#
# Then our task. `prepare` makes a model ready for a level. Adam's ε is tiny, because the gradients are. **Predict**
# which rows reach the loss of O0.


# %%
def running_mean(wide_norms):
    norm, seen = halve_(nn.Sequential(nn.BatchNorm1d(1, momentum=0.01)), wide_norms=wide_norms), []
    data = torch.tensor([[9.0], [11.0]], dtype=f16)
    for _ in range(1000):
        norm(data)
        seen.append(norm[0].running_mean.item())
    return seen


means = {name: running_mean(wide) for name, wide in (("fp32", True), ("fp16", False))}
assert means["fp32"][-1] > 9.99 and means["fp16"][-1] < 9.7
study.curves(
    {name: (range(1, 1001), seen) for name, seen in means.items()},
    xlabel="batches",
    ylabel="running mean",
    title="It stops 0.39 short of 10: a hundredth of that is half a step of fp16",
)


# %%
def train(level, seed, dtype=f16, scaler=lambda: None):
    amp = prepare(mlp([64, 64, 64, 10], seed), adam, level, dtype, scaler=scaler())
    random = torch.Generator().manual_seed(seed)
    for _ in range(40):
        some = torch.randint(len(task.x), (128,), generator=random)
        with amp.autocast:
            loss = share(amp.model(task.x[some]), task.y[some])
        amp.step(loss)
    with torch.no_grad(), amp.autocast:
        return F.cross_entropy(amp.model(task.x).float(), task.y).item()


# %%
from functools import partial

adam, off_scaler = partial(torch.optim.Adam, lr=3e-3, eps=1e-16), partial(LossScaler, enabled=False)
kinds = {
    "O0": ("O0",),
    "O1": ("O1",),
    "O2": ("O2",),
    "O3": ("O3",),
    "O2, no scaler": ("O2", f16, off_scaler),
    "O2, bf16, no scaler": ("O2", bf16, off_scaler),
    "O3, bf16": ("O3", bf16),
}
reached = {
    name: [train(level, seed, *rest) for seed in range(3)] for name, (level, *rest) in kinds.items()
}
full = reached["O0"]
said = lambda a, b: (
    "nan" if math.isnan(a) else "as O0" if abs(a / b - 1) < 0.05 else f"{a / b:.0f} times"
)
rows = [(name, *map(said, losses, full)) for name, losses in reached.items() if name != "O0"]
study.table(
    [("O0", *(f"{l:.2f}" for l in full)), *rows],
    ["level", *(f"seed {s}" for s in range(3))],
    title="Loss after 40 steps (as O0: within 5 %)",
)

# %%
spread = max(full) - min(full)
for name in ("O1", "O2", "O2, bf16, no scaler"):
    assert all(
        abs(a / b - 1) < (0.05 if "bf16" in name else 0.01) for a, b in zip(reached[name], full)
    ), name
assert all(map(math.isnan, reached["O3"])) and min(reached["O2, no scaler"]) > max(full) + spread
# ε and 0.001·g² for a gradient of 2⁻¹⁰
assert not torch.tensor([1e-8, 1e-3 * (2.0**-10) ** 2]).half().any()
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
# That is why O3 ruins the run. Adam divides by $\sqrt{v}+ε$. Its $v$ is 0.001·g², no such number is in fp16, and ε
# isn't either: 0/0. In usual runs, with gradients of 2⁻¹⁰ and ε = 10⁻⁸, it is the same.
#
# And bf16 needs no scaler: it has fp32's range. O3 in bf16 gets by here, with Adam's large updates. With small ones
# it does not: see the table of updates above.
#
# ## Predict the cost: memory
#
# Write down the bytes a parameter with Adam after backward, for each level: parameters, gradients, optimizer states
# (masters are among them). Then let the meter count, on a GPT.


# %%
def model(hidden, level, sequences=8, length=1024):
    net = gpt(2, hidden, 8, 1000, 1024, device="meta")
    amp = prepare(net, partial(torch.optim.AdamW, lr=1e-4), level)
    return amp, torch.zeros(sequences, length, dtype=torch.long, device="meta")


def half_a_step(amp, tokens, inner=None):  # inner: for the meter, which should see its states
    with amp.autocast:
        loss = next_token_loss(amp.model(tokens), tokens)
    amp.scaler.scale(loss).backward()


the_other_half = lambda amp: (amp.scaler.step(amp.optimizer), amp.scaler.update())

# %%
predicted, rows = {"O0": (4, 4, 8), "O1": (4, 4, 8), "O2": (2, 2, 12), "O3": (2, 2, 4)}, []
for level, expected in predicted.items():
    amp, tokens = model(256, level)
    psi = sum(p.numel() for p in amp.model.parameters())
    half_a_step(amp, tokens)
    the_other_half(amp)
    amp.optimizer.zero_grad()
    live = measure(
        half_a_step, amp, tokens, getattr(amp.optimizer, "inner", None), where="meta"
    ).timeline.at(math.inf)
    got = [live[c] / psi for c in ("parameters", "gradients", "optimizer states")]
    at_the_step = (
        measure(the_other_half, amp, where="meta").timeline.at(math.inf)["gradients"] / psi
    )
    assert [round(b, 1) for b in (*got, at_the_step)] == [*expected, 2 if level == "O3" else 4]
    rows.append((level, *(f"{b:.0f}" for b in got), f"{sum(got):.0f}"))
study.table(rows, ["after backward", "parameters", "gradients", "states", "bytes a parameter"])

# %% [markdown]
# 16 bytes in fp32, and 2 + 2 + 4 + 4 + 4 = 16 in mixed precision. What is saved is not model states: it is
# activations and time. (At O2's step each gradient becomes fp32, and its fp16 one is freed: 2 bytes more.)
#
# ## Predict the cost: time
#
# By its data sheet, an H100 has 989 TFLOP/s in fp16, 67 in fp32 and 3.35 TB/s; an operator takes 5 µs to launch. One
# layer, 4,096 rows, H × H, forward and backward: three products of 2·4096·H² FLOPs. **Draw** both curves, then run.
# `H100.ideal` is a device that reaches all of its data sheet. No real one does, so the meter usually charges what an H100
# reaches. The last line printed says how much longer the largest layer then takes.


# %%
from minidist.comm.cluster import H100


def layer(H, dtype):
    x, w = (nn.Parameter(torch.empty(rows, H, dtype=dtype, device="meta")) for rows in (4096, H))
    return x, w, torch.empty(4096, H, dtype=dtype, device="meta")


def three_products(x, w, dy):
    (x @ w).backward(dy)


def roofline(H, peak, size):
    return 3 * (5e-6 + max(2 * 4096 * H**2 / peak, (2 * 4096 * H + H**2) * size / 3.35e12))


# %%
Hs, fine = [2**k for k in range(5, 15)], [round(2 ** (k / 4)) for k in range(20, 57)]
lines = {
    "fp32": [roofline(H, 67e12, 4) for H in fine],
    "fp16": [roofline(H, 989e12, 2) for H in fine],
}
points = {
    name: [measure(three_products, *layer(H, d), device=H100.ideal).time for H in Hs]
    for name, d in (("fp32", f32), ("fp16", f16))
}
gains = [a / b for a, b in zip(*points.values())]
reached = [measure(three_products, *layer(Hs[-1], d)).time for d in (f32, f16)]
longer = [t / ts[-1] for t, ts in zip(reached, points.values())]
assert all(1.55 < ratio < 1.65 for ratio in longer) and 14 < reached[0] / reached[1] < 14.5
assert all(
    abs(t / roofline(H, *how) - 1) < 0.01
    for name, how in (("fp32", (67e12, 4)), ("fp16", (989e12, 2)))
    for H, t in zip(Hs, points[name])
)
print(
    f"fp16 is {gains[0]:.1f} times as fast at H = {Hs[0]}, {gains[-1]:.1f} times at H = {Hs[-1]:,}"
)
print(
    f"What an H100 reaches, H = {Hs[-1]:,}: {longer[0]:.1f} times as long in fp32, {longer[1]:.1f} times in fp16;",
    f"fp16 is {reached[0] / reached[1]:.1f} times as fast",
)
study.curves(
    {name: (fine, ts) for name, ts in lines.items()},
    points={n: (Hs, ts) for n, ts in points.items()},
    yunit="s",
    logx=True,
    logy=True,
    xlabel="H",
    ylabel="time of the layer, forward and backward",
    title="One layer on an H100 that reaches its data sheet, 4,096 rows",
)

# %% [markdown]
# ## When not to use it
#
# **When launches set the time.** Casts and masters are operators, too. Below is a whole step of a GPT of two layers,
# small (one sequence of 128 tokens) and large (eight of 1,024). **fp16, where there is bf16.** Its range needs no scaler,
# no skipped step, no agreement. New GPUs do both equally fast; a V100 has fp16 only. **On a CPU**, most of which have no
# fp16 units.


# %%
def step_time(hidden, level, sequences, length):
    amp, tokens = model(hidden, level, sequences, length)
    half_a_step(amp, tokens)
    the_other_half(amp)
    amp.optimizer.zero_grad()
    return sum(
        measure(f, *args, where="meta").time
        for f, args in ((half_a_step, (amp, tokens)), (the_other_half, (amp,)))
    )


times = {
    level: [step_time(128, level, 1, 128), step_time(4096, level, 8, 1024)] for level in predicted
}
assert all(
    times[x][0] > 1.3 * times["O0"][0] and times[x][1] < 0.12 * times["O0"][1] for x in ("O1", "O2")
)
study.table(
    [(level, f"{1e3 * a:.2f}", f"{1e3 * b:.1f}") for level, (a, b) in times.items()],
    ["ms a step, by the meter", "H = 128", "H = 4,096"],
)

# %% [markdown]
# ## The library's version
#
# Its scaler agrees over `comm`, and adapts as yours. It may have a smallest scale, `LossScaler(min_scale=…)`: a few bad
# batches in a row halve S again and again, and 2,000 good steps double it once, so small gradients would be 0 for long.
# At the smallest S a step that overflows is still skipped. Its autocast has all three lists, and users change them: here
# GELU is made black. A weight that is used twice is cast once.

# %%
from minidist.train.amp import BLACK as ALL_BLACK


def dtypes(x, mode):
    with mode:
        h = F.linear(x, torch.eye(8))
        return [
            str(t.dtype).removeprefix("torch.")
            for t in (h, F.gelu(h), F.softmax(h, 1), torch.cat([h, x]))
        ]


modes = {
    "autocast()": autocast(),
    'autocast(black=BLACK | {"gelu"})': autocast(black=ALL_BLACK | {"gelu"}),
}
rows = [(name, *dtypes(torch.ones(4, 8), mode)) for name, mode in modes.items()]
assert [row[2] for row in rows] == ["float16", "float32"]
display(study.table(rows, ["", "linear", "gelu", "softmax", "cat"], title="What comes out"))
study.source(LossScaler._adapt)

# %% [markdown]
# ## On processes, and on a cluster
#
# Under `torchrun`, with `program(from_env(), …)` at the end of a script:
#
# ```
# torchrun --nproc-per-node 8 train.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```
#
# Here: O2 with `DataParallel`, two real processes. On rank 1, in step 2, a sample of 10³⁰ makes fp16 overflow. The
# gradients are averaged, and the scaler asks all ranks.

# %%
from minidist.parallel.data import DataParallel


def program(comm, task, bad_step):
    amp = prepare(mlp([64, 64, 64, 10], seed=comm.rank), adam, "O2", comm=comm)
    model, skipped = DataParallel(amp.model, comm), []
    for step in range(6):
        x, y = (t[step * 64 :][comm.rank :: comm.size][:32].clone() for t in (task.x, task.y))
        x[0] *= 1e30 if (step, comm.rank) == (bad_step, 1) else 1
        amp.step(F.cross_entropy(model(x), y))
        skipped.append(amp.scaler.skipped)
    return (
        skipped,
        amp.scaler.get_scale(),
        torch.cat([p.detach().flatten() for p in model.parameters()]),
    )


# %%
ranks = launch(program, 2, task, 2)
assert all(torch.equal(w, ranks[0][2]) and w.isfinite().all() for *_, w in ranks)
assert all(skipped == [0, 0, 1, 1, 1, 1] and scale == 2.0**15 for skipped, scale, _ in ranks)
study.table(
    [
        (f"rank {r}", " ".join(map(str, skipped)), f"{scale:,.0f}")
        for r, (skipped, scale, _) in enumerate(ranks)
    ],
    ["", "steps skipped so far", "S"],
    title="Both skip, and the replicas are equal",
)

# %%
study.bars(
    {"your guess": guess, "fp16": zeros, "fp16, S = 2¹⁶": found[16][0]},
    title="Of 100 gradients that are not zero, come out as 0",
)

# %% [markdown]
# ## Takeaways
#
# - fp16 holds 40 powers of two, in steps of a thousandth. Gradients lie below them: scale the loss, unscale in fp32.
# - Updates are smaller than a step of the weight: keep fp32 masters. Sums, softmax, norms and losses: in fp32.
# - A dynamic scale climbs until it overflows; that step is skipped, on all ranks or on none.
# - Cast above autograd, or it saves fp32. White lists are for products, black lists for what leaves the range, and
#   both are yours to change.
# - Model states take 16 bytes a parameter, as in fp32. What is saved: activations, and the time of large products.
# - bf16: no scaler, but masters all the more.
#
# ## Further reading
#
# - paper:micikevicius2018
# - paper:kalamkar2019
# - paper:rajbhandari2020 16 bytes.
# - paper:apex The levels O0 to O3.
