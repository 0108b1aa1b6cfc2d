# %% [markdown] nbgrader={"grade_id": "top"}
# # 09 Mixed precision: exercises
#
# You round numbers to any format, and build what lets a model train in fp16: master weights, a dynamic scale, lists of
# operators, a way to find the operator that overflowed, and ranks that agree on what to skip.
#
# There are eight exercises, worth 22 points. Each of the first seven ends with a check, which draws its own numbers,
# overflows and formats and says what is wrong. Try as often as you like. The check does not show what your function
# prints; to see that, call the function in a cell of your own. The eighth is an open question, worth 2 points, which
# your teacher grades. Calls to the library's own functions (`minidist.train.amp`) are refused, and so are PyTorch's
# scaler and autocast.

# %% nbgrader={"grade_id": "setup"}
import math

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World

# %% [markdown] nbgrader={"grade_id": "round_to_spec"}
# ## 1 · Round by hand (3 points)
#
# [The lesson](lesson:precision) let PyTorch round to fp16 and bf16. Now round yourself, to any format. A format has
# some bits of exponent and some of fraction: fp16 has 5 and 10, bf16 has 8 and 7, TF32 has 8 and 10, and one kind of
# fp8 has 4 and 3.
#
# | | |
# |---|---|
# | call | `round_to(x, exponent, fraction)` |
# | `x` | any float, including 0, negative numbers, inf and −inf, but not nan |
# | `exponent`, `fraction` | how many bits of each: from 3 to 9, and from 2 to 12 |
# | returns | the nearest number of that format, as a float |
#
# **Invariants:** with bias = 2^(exponent − 1) − 1, normal numbers begin at 2^(1 − bias). Between 2^p and 2^(p+1)
# neighbours are 2^(p − fraction) apart; below 2^(1 − bias) they are as far apart as just above it. A tie goes to the
# even multiple of this step. The largest number is (2 − 2^−fraction) · 2^bias. What is larger *after rounding* becomes
# inf, with the sign of x. All this is exact: x is rounded once, and not to fp32 on the way. About 10 lines; Python's
# `math` is enough.
#
# <details><summary>Hint</summary>
#
# `math.frexp(x)` is (m, e) with x = m · 2^e and m from ½ to just below 1, so p = e − 1. Python's `round(q)` takes a tie
# to the even neighbour. Dividing by a power of two is exact, and so is multiplying by one.
#
# </details>


# %% nbgrader={"grade_id": "round_to", "solution": true}
def round_to(x, exponent, fraction):
    """Round x to the nearest number with so many bits of exponent and of fraction."""
    ### BEGIN SOLUTION
    if x == 0 or math.isinf(x):
        return x
    bias = 2 ** (exponent - 1) - 1
    power = max(math.frexp(x)[1] - 1, 1 - bias)
    step = 2.0 ** (power - fraction)
    y = round(x / step) * step
    most = (2 - 2.0**-fraction) * 2.0**bias
    return y if abs(y) <= most else math.copysign(math.inf, x)
    ### END SOLUTION


# %% nbgrader={"grade_id": "round_to_test", "points": 3}
check.round_to(round_to)

# %% [markdown] nbgrader={"grade_id": "round_to_target"}
# **Target:** your columns for fp16 and bf16 agree with PyTorch's. The last column is an fp8 with 4 and 3 bits that ends
# in inf; PyTorch has no such dtype.
#
# This cell runs your function in the notebook itself, not in a process of its own, so it is stopped after ten seconds.

# %% tags=["exact-numbers"]
numbers = [0.1, 1 + 2**-11, 1 + 3 * 2**-11, 2.0**-25, 3 * 2.0**-25, 65519.0, 65520.0, 300.0]
rows = []
with check.limit(10):
    for x in numbers:
        theirs = torch.tensor(x)
        results = [
            round_to(x, 5, 10),
            theirs.half().item(),
            round_to(x, 8, 7),
            theirs.bfloat16().item(),
            round_to(x, 4, 3),
        ]
        rows.append([f"{value:.8g}" for value in [x, *results]])
study.table(rows, ["x", "fp16, yours", "PyTorch's", "bf16, yours", "PyTorch's", "fp8, yours"])

# %% [markdown] nbgrader={"grade_id": "predict_precision_spec"}
# ## 2 · Predict, then run (2 points)
#
# - `climbs`: a weight of 1 in fp16 gets 100 updates of ¾ · 2⁻¹⁰, one after another. Where does it end?
# - `stops`: a weight of ¼ in bf16 gets updates of 2⁻⁹, one after another, without end. At which number does it stop?
# - `stuck`: 2 + 2 + 2 + …, added up one by one in fp16. At which sum does it stop growing?
# - `states`: a model of 1.5 billion parameters is trained in fp16 with fp32 masters and Adam, as in O2, but its
#   gradients are kept in fp32, so that many micro-batches can be added up in them. How many GB of model states is that?
# - `momentum`: how many GB do the model states of O2 take, with gradients in fp16, if SGD with momentum takes the place
#   of Adam?
# - `faster`: in a training step in fp32 on an H100, large matrix products take 0.8 of the time. By the data sheet they
#   run at 67 TFLOP/s in fp32 and at 989 TFLOP/s in fp16, and both reach the same fraction of that. The rest of the time
#   is bound by memory, and in fp16 it moves half the bytes. How many times as fast is the whole step in fp16?
# - `recovered`: a scale is multiplied by ¼ at each overflow, and by 2 after 2,000 good steps in a row. There are three
#   overflows in a row. After how many good steps is the scale back where it was?
#
# Write numbers or formulas. They are right within 1 %.

# %% nbgrader={"grade_id": "predict_precision", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_precision.numbers(STUDENT)
climbs = stops = stuck = states = momentum = faster = recovered = None
### BEGIN SOLUTION
climbs = 1 + 100 * 2**-10
stops = 0.5
stuck = 4096
states = 1.5 * (2 + 4 + 4 + 4 + 4)
momentum = 1.5 * (2 + 2 + 4 + 4)
faster = 1 / (0.8 * 67 / 989 + 0.2 / 2)
recovered = 3 * 2 * 2000
### END SOLUTION

# %% nbgrader={"grade_id": "predict_precision_test", "points": 2}
check.predict_precision(climbs, stops, stuck, states, momentum, faster, recovered, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_precision_target"}
# **Target:** your numbers beside those of a run.


# %%
def added(begin, update, times, dtype=torch.float16):
    w = torch.tensor(begin, dtype=dtype)
    for _ in range(times):
        w += update
    return w.item()


rows = [
    ("climbs", climbs, added(1.0, 0.75 * 2.0**-10, 100)),
    ("stops", stops, added(0.25, 2.0**-9, 1000, torch.bfloat16)),
    ("stuck", stuck, added(0.0, 2.0, 5000)),
]
study.table(rows, ["", "predicted", "run"])

# %% [markdown] nbgrader={"grade_id": "master_step_spec"}
# ## 3 · A step of the masters (3 points)
#
# The lesson's loop stepped its masters with plain SGD, and each weight had one gradient. This step has momentum: v ←
# mu·v + g, then master ← master − lr·v. Some weights have no gradient, because they are frozen or were not used. And
# some weights are **shared**: a GPT uses one matrix as its embedding and as its last layer, and where such a matrix is
# used at two places of a program, each place may compute a gradient of its own.
#
# | | |
# |---|---|
# | call | `master_step(weights, masters, momenta, grads, scale, lr, mu)` |
# | `weights` | a list of tensors in fp16 or bf16, with which the model computes |
# | `masters`, `momenta` | lists of tensors in fp32, of the same shapes |
# | `grads` | a list of tensors in the dtype of the weights, **scaled**; None where there is no gradient. **Not changed** |
# | shared | one tensor (the same object) stands at several places of `weights`, and its master and its momentum stand at the same places of their lists; at each place `grads` has a part of its gradient, or None |
# | returns | whether it stepped: True or False |
# | afterwards | weights, masters and momenta are stepped, **in place**; or, if any gradient has an inf or nan, all of them are as before |
#
# **Invariants:** after a step, a weight is its master, rounded. A gradient is unscaled in fp32. The gradient of a
# shared weight is the sum of the parts that are there, and the weight is stepped once. A weight without any gradient
# stays as it is, and so do its master and its momentum. About 15 lines.
#
# <details><summary>Hint</summary>
#
# First look at every gradient with `g.isfinite().all()`. Do not look at their sum, which may overflow although no
# gradient does. `id(master)` tells whether two places have the same master: a dictionary with such keys can collect the
# sums. `w.copy_(m)` rounds.
#
# </details>


# %% nbgrader={"grade_id": "master_step", "solution": true}
def master_step(weights, masters, momenta, grads, scale, lr, mu):
    """Unscale and look, then step and round, or skip. Returns whether it stepped."""
    ### BEGIN SOLUTION
    if not all(g is None or g.isfinite().all() for g in grads):
        return False
    totals = {}
    for m, g in zip(masters, grads):
        if g is not None:
            totals[id(m)] = totals.get(id(m), 0) + g.float() / scale
    for w, m, v in zip(weights, masters, momenta):
        total = totals.pop(id(m), None)
        if total is not None:
            v.mul_(mu).add_(total)
            m.sub_(lr * v)
            w.copy_(m)
    return True
    ### END SOLUTION


# %% nbgrader={"grade_id": "master_step_test", "points": 3}
check.master_step(master_step)

# %% [markdown] nbgrader={"grade_id": "master_step_target"}
# **Target:** a staircase that follows the line. Without masters it would stay at 0.

# %%
w = torch.ones(1, dtype=torch.float16)
m = torch.ones(1)
v = torch.zeros(1)
g = torch.tensor([-16.0], dtype=torch.float16)
seen = [0]
with check.limit(10):
    for _ in range(40):
        master_step([w], [m], [v], [g], 16.0, 2.0**-12, 0.0)
        seen.append(round((w.item() - 1) * 2**12))
study.curves(
    {"fp32": (range(41), range(41))},
    points={"your weight": (range(41), seen)},
    xlabel="updates of 2⁻¹²",
    ylabel="(weight − 1) / 2⁻¹²",
    title="Four updates make a step of fp16",
)

# %% [markdown] nbgrader={"grade_id": "scaler_spec"}
# ## 4 · A patient scale (3 points)
#
# The lesson's `next_scale` halves the scale at every overflow, so that a single bad batch costs range for the next
# 2,000 steps. Megatron-LM is more patient: at an overflow it skips the step, but leaves the scale alone until there
# have been several overflows. And it has a least scale, below which it never goes.
#
# | | |
# |---|---|
# | make | `Scaler(init, growth, backoff, interval, patience, least)` |
# | `.scale` | the scale now, a number; at first it is `init`, which is `least` or more |
# | `.scaled(loss)` | returns the loss times the scale, in **fp32**, even if the loss is in fp16; the backward begins there. The loss itself is not changed |
# | `.update(found)` | called once in each step: `found` says whether an inf or nan was found |
# | `.state()` | returns what must be saved to go on exactly here: a dict of numbers, which no later update changes |
# | `.load(state)` | goes on from there, in a scaler made with the same factors, perhaps in another process: the state came through a JSON file |
#
# **Invariants:** `interval` steps in a row without an overflow multiply the scale by `growth`; then, and after every
# overflow, the count of these steps begins again. Overflows are counted from the start, and the count begins again at
# each growth of the scale. The first `patience − 1` of them leave the scale as it is. The overflow with the number
# `patience`, and every later one, multiplies the scale by `backoff`, but never brings it below `least`. With a patience
# of 1 this is the lesson's scale. There is no upper limit. About 16 lines.
#
# <details><summary>Hint</summary>
#
# Keep two counts, one of good steps in a row and one of overflows since the last growth. Which of the two does a good
# step change, and which an overflow? When does each go back to 0? The state consists of the scale and both counts.
#
# </details>


# %% nbgrader={"grade_id": "scaler", "solution": true}
class Scaler:
    """A scale for losses that finds its own size."""

    def __init__(self, init, growth, backoff, interval, patience, least):
        ### BEGIN SOLUTION
        self.scale = init
        self.growth = growth
        self.backoff = backoff
        self.interval = interval
        self.patience = patience
        self.least = least
        self.good = 0
        self.bad = 0
        ### END SOLUTION

    def scaled(self, loss):
        """loss times the scale, in fp32."""
        ### BEGIN SOLUTION
        return loss.float() * self.scale
        ### END SOLUTION

    def update(self, found):
        """Set the next scale: `found` says whether this step had an inf or nan."""
        ### BEGIN SOLUTION
        if found:
            self.good = 0
            self.bad += 1
            if self.bad >= self.patience:
                self.scale = max(self.scale * self.backoff, self.least)
            return
        self.good += 1
        if self.good == self.interval:
            self.scale *= self.growth
            self.good = 0
            self.bad = 0
        ### END SOLUTION

    def state(self):
        """What must be saved: a dict of numbers."""
        ### BEGIN SOLUTION
        return {"scale": self.scale, "good": self.good, "bad": self.bad}
        ### END SOLUTION

    def load(self, state):
        """Go on where state() was called."""
        ### BEGIN SOLUTION
        self.scale = state["scale"]
        self.good = state["good"]
        self.bad = state["bad"]
        ### END SOLUTION


# %% nbgrader={"grade_id": "scaler_test", "points": 3}
check.scaler(Scaler)

# %% [markdown] nbgrader={"grade_id": "scaler_target"}
# **Target:** the limit above which gradients overflow sinks and rises again, and in every tenth step a bad batch
# overflows whatever the scale is. The patient scale climbs faster and stays closer to the limit; in return, it is above
# the limit for longer.

# %%
# the largest scale with which nothing overflows, as a power of two
largest = [14 + 3 * math.cos(step / 25) for step in range(160)]
powers = {"patience 1": [], "patience 2": []}
with check.limit(10):
    for patience, seen in zip((1, 2), powers.values()):
        scaler = Scaler(2.0**8, 2.0, 0.5, 4, patience, 1.0)
        for step in range(160):
            power = math.log2(scaler.scale)
            seen.append(power)
            scaler.update(power > largest[step] or step % 10 == 9)
powers["gradients overflow"] = largest
study.curves(
    {name: (range(160), seen) for name, seen in powers.items()},
    xlabel="step",
    ylabel="2 to the power",
    title="Scales that find their size",
)

# %% [markdown] nbgrader={"grade_id": "autocast_spec"}
# ## 5 · Three lists (3 points)
#
# The lesson's `Lists` only casts tensors that are given by position, and it has no gray list. Complete it.
#
# | | |
# |---|---|
# | make | `Autocast(dtype, white, black, gray)`, a `TorchFunctionMode` |
# | `dtype` | `torch.float16` or `torch.bfloat16` |
# | `white`, `black`, `gray` | sets of names; the name of a function is `func.__name__`, and a function is on a list if its whole name is in the set |
# | used | `with Autocast(…):` |
#
# **Invariants:** the tensors that a white function is given are cast to `dtype`, and those of a black function to fp32.
# Those of a gray function are cast to the widest dtype among them: if all have one dtype, they keep it, and otherwise
# they are cast to fp32. A function on no list is called as it is. Only fp32, fp16 and bf16 tensors are cast, and only
# these count for the gray list; float64 and integers are left alone. Tensors may be given by position, by name, or in a
# list or tuple. Everything else is handed on: numbers, None, inf and nan. Each function is called once, and what it
# returns is returned. Autograd records the casts. The tensors that were given are not changed, and somebody else may
# change them between two calls. About 20 lines.
#
# <details><summary>Hint</summary>
#
# Write `cast(value, to)`: for a tensor of the three dtypes it returns `value.to(to)`; for a list or tuple, the same of
# each item; for a dict, the same of each value; and anything else as it is. Call it for `args` and for `kwargs`. For a
# gray function, collect the dtypes in the same way first.
#
# </details>


# %% nbgrader={"grade_id": "autocast", "solution": true}
class Autocast(TorchFunctionMode):
    """Casts the tensors that functions are given, by three lists of names."""

    def __init__(self, dtype, white, black, gray):
        super().__init__()
        ### BEGIN SOLUTION
        self.dtype = dtype
        self.white = white
        self.black = black
        self.gray = gray
        ### END SOLUTION

    def __torch_function__(self, func, types, args=(), kwargs=None):
        ### BEGIN SOLUTION
        name = func.__name__
        found = set()

        def cast(value, to):
            if isinstance(value, torch.Tensor):
                if value.dtype not in (torch.float16, torch.bfloat16, torch.float32):
                    return value
                found.add(value.dtype)
                return value if to is None else value.to(to)
            if isinstance(value, (list, tuple)):
                return type(value)(cast(v, to) for v in value)
            return {k: cast(v, to) for k, v in value.items()} if isinstance(value, dict) else value

        both = (args, kwargs or {})
        to = None
        if name in self.white:
            to = self.dtype
        elif name in self.black:
            to = torch.float32
        elif name in self.gray:
            cast(both, None)
            to = found.pop() if len(found) == 1 else torch.float32
        args, kwargs = cast(both, to)
        return func(*args, **kwargs)
        ### END SOLUTION


# %% nbgrader={"grade_id": "autocast_test", "points": 3}
check.autocast(Autocast)

# %% [markdown] nbgrader={"grade_id": "autocast_target"}
# **Target:** products in fp16, the softmax and the loss in fp32, and gradients in fp32.

# %%
w = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
with (
    check.limit(10),
    Autocast(torch.float16, {"linear", "matmul"}, {"softmax", "mse_loss"}, {"cat"}),
):
    h = F.linear(torch.ones(4, 16), w)
    p = F.softmax(h, dim=-1)
    both = torch.cat([h, p])
    loss = F.mse_loss(both, torch.zeros(8, 16))
loss.backward()
results = {
    "linear": h,
    "softmax": p,
    "cat of both": both,
    "loss": loss,
    "the weight's gradient": w.grad,
}
study.table([(name, str(x.dtype)) for name, x in results.items()], ["result of", "dtype"])

# %% [markdown] nbgrader={"grade_id": "overflowed_spec"}
# ## 6 · Who overflowed? (3 points)
#
# A loss is nan. By the time you see it, inf and nan have run through the whole model, and the question is which
# operator made the first of them. A function mode can find out without any change to the model.
#
# | | |
# |---|---|
# | call | `overflowed(function, *given)` |
# | `function` | a function that calls functions of PyTorch. It is to be called once, as `function(*given)`, and to run to its end |
# | returns | a list with the names (`func.__name__`) of those that overflowed, in the order of their calls; if none has, an empty list |
#
# **Invariants:** a function of PyTorch has overflowed if everything that it is given is finite, and what it returns is
# not. What it is given are tensors and numbers, by position, by name, or in a list or tuple. A function that is given
# an inf or nan is not to blame for what it returns, so `masked_fill(mask, -math.inf)` is not to blame either. What it
# returns may be a tensor, or a list or tuple of several. A function that works in place (`x.mul_(1e9)`) writes into
# what it was given. Every function is called once, with its own arguments, and what it returns is returned. About 18
# lines.
#
# <details><summary>Hint</summary>
#
# A class inside your function can be the mode, and append to a list. Write a helper `finite(value)` that knows tensors,
# lists and tuples, and numbers; anything else is finite.
#
# </details>


# %% nbgrader={"grade_id": "overflowed", "solution": true}
def overflowed(function, *given):
    """The names of the functions of PyTorch that made an inf or nan of finite numbers."""

    ### BEGIN SOLUTION
    def finite(value):
        if isinstance(value, torch.Tensor):
            return bool(value.isfinite().all())
        if isinstance(value, (list, tuple)):
            return all(finite(v) for v in value)
        return not isinstance(value, float) or math.isfinite(value)

    names = []

    class Look(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            was_finite = finite([args, list(kwargs.values())])
            result = func(*args, **kwargs)
            if was_finite and not finite(result):
                names.append(func.__name__)
            return result

    with Look():
        function(*given)
    return names
    ### END SOLUTION


# %% nbgrader={"grade_id": "overflowed_test", "points": 3}
check.overflowed(overflowed)

# %% [markdown] nbgrader={"grade_id": "overflowed_target"}
# **Target:** attention in fp16 with large inputs. The mask is not to blame, and neither is the softmax. The product is,
# and it no longer overflows if its input, and not its result, is divided by √H.


# %%
def attention(q, k, mask, early):
    root = math.sqrt(q.shape[-1])
    scores = F.linear(q / root, k) if early else F.linear(q, k) / root
    return F.softmax(scores.masked_fill(mask, -math.inf), dim=-1)


q = torch.full((4, 64), 40.0, dtype=torch.float16)
mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
rows = []
with check.limit(10):
    for early in (False, True):
        names = overflowed(attention, q, q, mask, early)
        rows.append((f"divided {'before' if early else 'after'}", ", ".join(names) or "nobody"))
study.table(rows, ["the product is", "who overflowed"])

# %% [markdown] nbgrader={"grade_id": "sharded_step_spec"}
# ## 7 · Find the bug (3 points)
#
# In the lesson every replica has all gradients after they have been averaged. Here each rank owns a part of the
# parameters, and has only their gradients, as in [ZeRO](lesson:zero). The next cell was found in somebody's code. On
# one rank it is right.


# %% nbgrader={"grade_id": "sharded_step_broken"}
def sharded_step(comm, weights, grads, scale, lr):
    """Step this rank's weights, or skip; returns the next scale."""
    if not all(g.isfinite().all() for g in grads):
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale


# %%
def two_steps(comm, step):
    weights = [torch.full((2,), 1.0 + comm.rank)]
    scale = 1024.0
    for large in (1.0, math.inf if comm.rank == 1 else 1.0):
        scale = step(comm, weights, [torch.tensor([large, 1.0]) * scale], scale, 0.25)
    return weights[0], torch.tensor([scale])


after, scales = zip(*World(3).run(two_steps, sharded_step))
study.holdings(
    {"weights after two steps": list(after), "scale": list(scales)},
    arrows=False,
    title="As found: ranks disagree",
)

# %% [markdown] nbgrader={"grade_id": "sharded_step_task"}
# Two ranks have made two steps, one has made one, and their scales differ. Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `sharded_step(comm, weights, grads, scale, lr)` |
# | `weights`, `grads` | lists of this rank's own tensors, fp32; the gradients are scaled. A rank may have two empty lists, and other ranks' tensors have other shapes |
# | afterwards | w ← w − lr·g/scale on **all** ranks, in place; or, if any rank has an inf or nan, on none |
# | returns | the next scale, a number: half of it after an overflow on any rank, otherwise as it was |
# | cost | one flag: a rank sends at most 2(n − 1) messages, with at most 16(n − 1) bytes in all |
#
# A gradient may be as large as fp32 allows, so that sums and squares of finite gradients overflow: then nobody skips.
# You may call `all_reduce_(comm, x, "max")`. An answer that is right but sends more than this earns half of the points.
#
# <details><summary>Hint</summary>
#
# Every rank takes part in every collective, whatever it has found, and whether it owns anything or not. The flag is a
# tensor with one number.
#
# </details>


# %% nbgrader={"grade_id": "sharded_step", "solution": true}
def sharded_step(comm, weights, grads, scale, lr):
    """Step all ranks' weights, or none; returns the next scale."""
    ### BEGIN SOLUTION
    found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
    all_reduce_(comm, found, "max")
    if found.item():
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
    ### END SOLUTION


# %% nbgrader={"grade_id": "sharded_step_test", "points": 3}
check.sharded_step(sharded_step)

# %% [markdown] nbgrader={"grade_id": "sharded_step_target"}
# **Target:** every rank has made one step, from 1, 2, 3 to 0.75, 1.75, 2.75, and all scales are 512.

# %%
with check.limit(10):
    after, scales = zip(*World(3).run(two_steps, sharded_step))
study.holdings(
    {"weights after two steps": list(after), "scale": list(scales)},
    arrows=False,
    title="Repaired: all or none",
)

# %% [markdown] nbgrader={"grade_id": "static_scale_spec"}
# ## 8 · One scale for the whole training run? (2 points, graded by hand)
#
# The lesson looked at gradients before the first step. Now train its network, `mlp([64, 64, 64, 10])`, in fp32 on one
# micro-batch of 128 digits with Adam (learning rate 0.003) for 400 steps. The gradients that count are those of the
# lesson's loss, a sum divided by 2²². **Between which powers of two must a static scale *S* lie, so that it serves from
# the first step to the last: in fp16 no gradient overflows, and at most 1 % of those that are not zero become zero?**
#
# Answer with a plot and about eight sentences. Here you may use everything that the lesson used, including `exponents`
# of `minidist.train.amp` and `study.exponents`. Your teacher gives:
#
# - **1 point for the plot and the two bounds.** The plot shows the gradients of the first and of the last step by
#   exponent, without a scale, and what fp16 makes of them. The largest *S* follows from the largest gradient of the
#   whole run, the smallest *S* from the small gradients, and you say which step sets which bound.
# - **1 point for the choice.** You choose one *S* between the bounds and say how many powers of two it leaves on each
#   side. You also say, with a reason from your plot, what would happen to this *S* if the run were ten times as long,
#   and whether you would still take a static scale then.

# %% tags=["nbval-ignore-output"] nbgrader={"grade_id": "static_scale_plot", "solution": true}
### BEGIN SOLUTION
from IPython.display import display

from minidist.models import mlp
from minidist.tasks import digits
from minidist.train.amp import exponents

WHOLE = 2**22
task = digits(torch.float32)
network = mlp([64, 64, 64, 10])
optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
counts = {}
least = []  # of each step the smallest scale at which 1 % become zero, 2 to the power
most = []  # and the largest at which none overflows
for step in range(401):
    optimizer.zero_grad()
    loss = F.cross_entropy(network(task.x[:128]), task.y[:128])
    loss.backward()
    gradients = [p.grad * 128 / WHOLE for p in network.parameters()]
    sizes = torch.cat([g.flatten() for g in gradients]).abs().double()
    sizes = sizes[sizes > 0].sort().values
    least.append(math.floor(-25 - math.log2(sizes[len(sizes) // 100])) + 1)
    most.append(math.floor(math.log2(65504 / sizes[-1])))
    if step in (0, 400):
        counts[f"step {step}"] = exponents(gradients)
    optimizer.step()
rows = [(f"step {step}", least[step], most[step]) for step in (0, 100, 200, 300, 400)]
rows.append(("all steps", max(least), min(most)))
display(study.table(rows, ["", "smallest S = 2 to the power", "largest S = 2 to the power"]))
study.exponents(counts, title="Gradients in fp16, without a scale")
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "static_scale", "solution": true, "points": 2}
# *S* may lie between 2¹⁵ and 2³⁴. (On some processors the lower bound is 2¹⁴.) The upper bound comes from the first
# steps: the largest gradient is about 2⁻¹⁸·⁵ before the first step, and times 2³⁴ it is below 65,504, the largest
# number of fp16, while times 2³⁵ it is not. The lower bound comes from the last steps: by then the loss is small, and
# the whole hill has moved by six to ten powers of two to the left. One hundredth of the gradients are then below some
# 2⁻³⁹; they become zero unless *S* lifts them above 2⁻²⁵, half of the smallest number of fp16. Before the first step 2⁸
# would have been enough.
#
# I take *S* = 2²⁴, near the middle, which leaves nine powers of two below and ten above. If the run goes on, the
# gradients go on shrinking as the loss does, so the lower bound rises, and the upper one, set by the first steps,
# stays. From step 100 to step 400 the lower bound rose from 2¹¹ to 2¹⁴, so I expect some five powers of two more for
# ten times as many steps: 2²⁴ still serves. (A run of 4,000 steps says 2²¹.) But the margin melts from nineteen powers
# of two to thirteen, and nothing warns me when it is gone; a harder task, a single odd batch or a different loss would
# need a different *S*. So for a long run I would take a dynamic scale, which follows the hill and costs one skipped
# step in 2,000, or bf16, which needs none.
