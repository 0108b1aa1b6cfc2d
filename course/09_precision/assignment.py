# %% [markdown] nbgrader={"grade_id": "top"}
# # 09 Mixed precision: exercises
#
# You round numbers to any format, and build what lets a model train in fp16: masters, a scale, lists, and ranks that
# agree.
#
# Six exercises, 17 points. After each, run the check: it draws numbers, overflows and formats of its own, and says
# what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a
# cell of your own. What is refused is the library's own (`minidist.train.amp`), and PyTorch's scaler and autocast.

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
# A format has some bits of exponent and some of fraction: fp16 has 5 and 10, bf16 8 and 7, an fp8 4 and 3.
#
# | | |
# |---|---|
# | call | `round_to(x, exponent, fraction)` |
# | `x` | a float: any, also 0, negative or inf (not nan) |
# | returns | the nearest number of that format, as a float |
#
# **Invariant:** with bias = 2^(exponent − 1) − 1, normal numbers begin at 2^(1 − bias). Between 2^p and 2^(p+1)
# neighbours are 2^(p − fraction) apart; below 2^(1 − bias), as far apart as just above it. A tie goes to the even
# multiple of the step. The largest number is (2 − 2^−fraction) · 2^bias. What is larger *after rounding* is inf, with
# the sign of x. About 10 lines; Python's `math` is enough.
#
# <details><summary>Hint</summary>
#
# `math.frexp(x)` is (m, e) with x = m · 2^e and m from ½ to 1, so p = e − 1. Python's `round(q)` takes a tie to the
# even one. Dividing by a power of two, and multiplying with it, is exact.
#
# </details>


# %% nbgrader={"grade_id": "round_to", "solution": true}
def round_to(x, exponent, fraction):
    """x as the nearest number with so many bits of exponent and of fraction."""
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
# **Target:** your columns for fp16 and bf16 are torch's. The last one, an fp8 of 4 and 3 bits, is yours alone.

# %% tags=["exact-numbers"]
numbers = [0.1, 1 + 2**-11, 1 + 3 * 2**-11, 2.0**-25, 3 * 2.0**-25, 65519.0, 65520.0, 300.0]
rows = [
    (
        f"{x:.8g}",
        *(
            f"{v:.8g}"
            for v in (
                round_to(x, 5, 10),
                torch.tensor(x).half().item(),
                round_to(x, 8, 7),
                torch.tensor(x).bfloat16().item(),
                round_to(x, 4, 3),
            )
        ),
    )
    for x in numbers
]
study.table(rows, ["x", "fp16, yours", "torch's", "bf16, yours", "torch's", "fp8, yours"])

# %% [markdown] nbgrader={"grade_id": "predict_precision_spec"}
# ## 2 · Predict, then run (2 points)
#
# - `kept`: a weight of 1 in fp16 gets 100 updates of 2⁻¹⁰. Where does it end?
# - `lost`: and with 100 updates of 2⁻¹²?
# - `stuck`: 2 + 2 + 2 + …, one by one, in fp16. At which sum does it stop to grow?
# - `states`: GB of model states for 1.5 billion parameters in fp16, with fp16 gradients, fp32 masters, and Adam: O2.
# - `all_half`: and at level O3?
# - `faster`: by its data sheet, an H100 has 989 TFLOP/s in fp16, 67 in fp32. How many times as fast is a large matrix
#   product, if both reach the same part of that?
# - `recovered`: two overflows in a row, with factors 2 and ½ and an interval of 2,000. After how many good steps is the
#   scale what it was before?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_precision", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_precision.numbers(STUDENT)
kept = lost = stuck = states = all_half = faster = recovered = None
### BEGIN SOLUTION
kept = 1 + 100 * 2**-10
lost = 1.0
stuck = 4096
states = 1.5 * (2 + 2 + 4 + 4 + 4)
all_half = 1.5 * (2 + 2 + 2 + 2)
faster = 989 / 67
recovered = 2 * 2000
### END SOLUTION

# %% nbgrader={"grade_id": "predict_precision_test", "points": 2}
check.predict_precision(kept, lost, stuck, states, all_half, faster, recovered, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_precision_target"}
# **Target:** your numbers beside those of a run.


# %%
def added(begin, update, times):
    w = torch.tensor(begin, dtype=torch.float16)
    for _ in range(times):
        w += update
    return w.item()


rows = [
    ("kept", kept, added(1.0, 2.0**-10, 100)),
    ("lost", lost, added(1.0, 2.0**-12, 100)),
    ("stuck", stuck, added(0.0, 2.0, 5000)),
]
study.table(rows, ["", "predicted", "run"])

# %% [markdown] nbgrader={"grade_id": "master_step_spec"}
# ## 3 · A step of masters (3 points)
#
# The model computes in half; the optimizer steps fp32 masters. SGD with momentum: v ← mu·v + g, master ← master −
# lr·v.
#
# | | |
# |---|---|
# | call | `master_step(weights, masters, momenta, grads, scale, lr, mu)` |
# | `weights` | tensors in fp16 or bf16: the model's own |
# | `masters`, `momenta` | tensors in fp32, of the same shapes |
# | `grads` | tensors in the dtype of the weights, **scaled**; None where a weight had none. **Not changed** |
# | returns | whether it stepped: True or False |
# | afterwards | all three stepped, **in place**; or, if a gradient is inf or nan, all as before |
#
# **Invariant:** a weight is its master, rounded. A gradient is unscaled in fp32. A weight whose gradient is None
# stays as it is, and its momentum too. About 10 lines.
#
# <details><summary>Hint</summary>
#
# Ask all gradients first: `g.isfinite().all()`. Not their sum: it may overflow though no gradient does. `w.copy_(m)`
# rounds.
#
# </details>


# %% nbgrader={"grade_id": "master_step", "solution": true}
def master_step(weights, masters, momenta, grads, scale, lr, mu):
    """Unscale, look, skip or step, round. Returns whether it stepped."""
    ### BEGIN SOLUTION
    if not all(g is None or g.isfinite().all() for g in grads):
        return False
    for w, m, v, g in zip(weights, masters, momenta, grads):
        if g is not None:
            v.mul_(mu).add_(g.float() / scale)
            m.sub_(lr * v)
            w.copy_(m)
    return True
    ### END SOLUTION


# %% nbgrader={"grade_id": "master_step_test", "points": 3}
check.master_step(master_step)

# %% [markdown] nbgrader={"grade_id": "master_step_target"}
# **Target:** a staircase that follows the line. Without masters it would stay at 0.

# %%
w, m, v = (torch.ones(1, dtype=d) for d in (torch.float16, torch.float32, torch.float32))
v.zero_()
seen = [0]
for _ in range(40):
    master_step([w], [m], [v], [torch.tensor([-16.0], dtype=torch.float16)], 16.0, 2.0**-12, 0.0)
    seen.append(round((w.item() - 1) * 2**12))
study.curves(
    {"fp32": (range(41), range(41))},
    points={"your weight": (range(41), seen)},
    xlabel="steps of 2⁻¹²",
    ylabel="where the fp16 weight is: 1 and so many 2⁻¹²",
    title="A quarter of a step at a time",
)

# %% [markdown] nbgrader={"grade_id": "scaler_spec"}
# ## 4 · A dynamic scale (3 points)
#
# | | |
# |---|---|
# | make | `Scaler(init, growth, backoff, interval)` |
# | `.scale` | the scale now, a number; `init` at first |
# | `.scaled(loss)` | the loss times the scale, in **fp32**, also if the loss is in fp16; backward begins here |
# | `.update(found)` | once a step: was an inf or nan found? |
# | `.state()` | what must be saved to go on exactly here: numbers by name, which no later update changes |
# | `.load(state)` | go on from there, perhaps in another process: the state came through a JSON file |
#
# **Invariant:** an overflow multiplies the scale by `backoff`. `interval` steps in a row without one, counted from
# the last change of the scale, multiply it by `growth`. About 14 lines.


# %% nbgrader={"grade_id": "scaler", "solution": true}
class Scaler:
    """A scale for losses that finds its own size."""

    def __init__(self, init, growth, backoff, interval):
        ### BEGIN SOLUTION
        self.scale = init
        self.growth = growth
        self.backoff = backoff
        self.interval = interval
        self.good = 0
        ### END SOLUTION

    def scaled(self, loss):
        """loss times the scale, in fp32."""
        ### BEGIN SOLUTION
        return loss.float() * self.scale
        ### END SOLUTION

    def update(self, found):
        """Choose the next scale: found says whether this step had an inf or nan."""
        ### BEGIN SOLUTION
        self.good = 0 if found else self.good + 1
        if found:
            self.scale *= self.backoff
        elif self.good == self.interval:
            self.scale, self.good = self.scale * self.growth, 0
        ### END SOLUTION

    def state(self):
        """What to save: numbers by name."""
        ### BEGIN SOLUTION
        return {"scale": self.scale, "good": self.good}
        ### END SOLUTION

    def load(self, state):
        """Go on where state() was called."""
        ### BEGIN SOLUTION
        self.scale, self.good = state["scale"], state["good"]
        ### END SOLUTION


# %% nbgrader={"grade_id": "scaler_test", "points": 3}
check.scaler(Scaler)

# %% [markdown] nbgrader={"grade_id": "scaler_target"}
# **Target:** a saw. Gradients overflow above a limit that sinks and rises again: your scale keeps just below it.

# %%
scale = Scaler(2.0**4, 2.0, 0.5, 4)
limit = [2 ** (14 + 3 * math.cos(k / 25)) for k in range(160)]
seen = []
for most in limit:
    seen.append(scale.scale)
    scale.update(scale.scale > most)
both = {"your scale": seen, "gradients overflow": limit}
study.curves(
    {name: (range(160), [math.log2(s) for s in some]) for name, some in both.items()},
    xlabel="step",
    ylabel="2 to the power",
    title="A scale that finds its size",
)

# %% [markdown] nbgrader={"grade_id": "autocast_spec"}
# ## 5 · Lists (3 points)
#
# | | |
# |---|---|
# | make | `Autocast(dtype, white, black, gray)`, a `TorchFunctionMode` |
# | `dtype` | `torch.float16` or `torch.bfloat16` |
# | `white`, `black`, `gray` | sets of names; the name of a function is `func.__name__` |
# | used | `with Autocast(…):` |
#
# **Invariant:** the tensors that a white function is given are cast to `dtype`, those of a black one to fp32, those
# of a gray one to the widest dtype among them: if all are of one, to that one, else to fp32. What is on no list is
# called as it is. Only fp32, fp16 and bf16 are cast, or count for gray: float64 and integers are left alone.
# Tensors may come by position, by name, or in a list or tuple. All else is handed on; what the function returns, is
# returned. Autograd records the casts. About 20 lines.
#
# <details><summary>Hint</summary>
#
# Write `cast(value, to)`: for a tensor of the three dtypes `value.to(to)`; for a list or tuple the same of each
# item; for a dict the same of each value; anything else as it is. Call it for `args` and for `kwargs`. For gray,
# collect dtypes in the same way first.
#
# </details>


# %% nbgrader={"grade_id": "autocast", "solution": true}
class Autocast(TorchFunctionMode):
    """Casts what functions are given, by three lists of names."""

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
        name, found = func.__name__, set()

        def cast(value, to):
            if isinstance(value, torch.Tensor):
                if value.dtype not in (torch.float16, torch.bfloat16, torch.float32):
                    return value
                found.add(value.dtype)
                return value if to is None else value.to(to)
            if isinstance(value, (list, tuple)):
                return type(value)(cast(v, to) for v in value)
            return {k: cast(v, to) for k, v in value.items()} if isinstance(value, dict) else value

        both, to = (args, kwargs or {}), None
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
# **Target:** products in fp16, the softmax and the loss in fp32, gradients in fp32.

# %%
w = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
with Autocast(torch.float16, {"linear", "matmul"}, {"softmax", "mse_loss"}, {"cat"}):
    h = F.linear(torch.ones(4, 16), w)
    p = F.softmax(h, dim=-1)
    both = torch.cat([h, p])
    loss = F.mse_loss(both, torch.zeros(8, 16))
loss.backward()
rows = [
    (name, str(x.dtype))
    for name, x in {
        "linear": h,
        "softmax": p,
        "cat of both": both,
        "loss": loss,
        "the weight's gradient": w.grad,
    }.items()
]
study.table(rows, ["result of", "dtype"])

# %% [markdown] nbgrader={"grade_id": "sharded_step_spec"}
# ## 6 · Find the bug (3 points)
#
# Each rank owns a part of the parameters, and only their gradients (as in ZeRO, lesson 13). The next cell was found
# in somebody's code. On one rank it is right.


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
    weights, scale = [torch.full((2,), 1.0 + comm.rank)], 1024.0
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
# | `weights`, `grads` | this rank's own, fp32; the gradients are scaled. A rank may have two empty lists |
# | afterwards | w ← w − lr·g/scale on **all** ranks, in place; or, if any rank has an inf or nan, on none |
# | returns | the next scale: half of it after an overflow on any rank, else as it was |
# | cost | one flag: a rank sends at most 2(n − 1) messages, of 8 bytes |
#
# `all_reduce_(comm, x, "max")` may be called.
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
after, scales = zip(*World(3).run(two_steps, sharded_step))
study.holdings(
    {"weights after two steps": list(after), "scale": list(scales)},
    arrows=False,
    title="Repaired: all or none",
)
