# %% [markdown] nbgrader={"grade_id": "top"}
# # 10 Eight bits: exercises
#
# You find the scales that fit a matrix into eight bits, let ranks agree on one, and compute a linear layer with them,
# forward and backward.
#
# Five exercises, 15 points. After each, run the check: it draws matrices and sizes of its own, and says what is wrong.
# Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. What
# is refused is the library's own (`minidist.train.fp8`).

# %% nbgrader={"grade_id": "setup"}
import math

import torch

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World

# %% [markdown] nbgrader={"grade_id": "block_scales_spec"}
# ## 1 · A scale for each block (3 points)
#
# A matrix is cut into blocks of `rows` × `columns`, from its first number on; where the size does not divide, the last
# blocks are smaller. Each block is divided by a scale of its own, so that it fits a format whose largest number is
# `most`: 448 of E4M3, 57,344 of E5M2.
#
# | | |
# |---|---|
# | call | `block_scales(x, rows, columns, most)` |
# | `x` | (M, K), fp32. **Not changed** |
# | returns | (⌈M / rows⌉, ⌈K / columns⌉), fp32 |
#
# **Invariant:** a block's scale s is the smallest power of two with |x| ≤ most · s for each x of the block; 1 where all
# are 0. About 10 lines.
#
# <details><summary>Hint</summary>
#
# `x.split(rows, 0)` cuts into strips, also where the last is smaller. The exponent is the logarithm to base 2 of
# amax / most, rounded up.
#
# </details>


# %% nbgrader={"grade_id": "block_scales", "solution": true}
def block_scales(x, rows, columns, most):
    """The smallest power of two for each block, so that its numbers are within most."""
    ### BEGIN SOLUTION
    found = []
    for strip in x.split(rows, 0):
        line = []
        for block in strip.split(columns, 1):
            amax = block.abs().max().item()
            exponent = math.ceil(math.log2(amax / most)) if amax else 0
            line.append(2.0**exponent)
        found.append(line)
    return torch.tensor(found)
    ### END SOLUTION


# %% nbgrader={"grade_id": "block_scales_test", "points": 3}
check.block_scales(block_scales)

# %% [markdown] nbgrader={"grade_id": "block_scales_target"}
# **Target:** one number is a million times as large as the others. With one scale nearly all of them become 0; with a
# scale a row only its neighbours do; with a scale for 4 columns only three.

# %%
random = torch.Generator().manual_seed(0)
outlier = torch.rand(8, 16, generator=random) + 0.5
outlier[2, 5] = 1e6
rows = []
for name, block in {"the matrix": (8, 16), "a row": (1, 16), "4 of a row": (1, 4)}.items():
    wide = block_scales(outlier, *block, 448.0)
    for dim, side in enumerate(block):
        wide = wide.repeat_interleave(side, dim)
    low = (outlier / wide).to(torch.float8_e4m3fn).float()
    rows.append((name, (8 // block[0]) * (16 // block[1]), (low == 0).sum().item()))
study.table(rows, ["a scale for", "scales", "numbers that become 0"])

# %% [markdown] nbgrader={"grade_id": "agreed_scale_spec"}
# ## 2 · Ranks agree (3 points)
#
# Each data-parallel rank has some rows of a matrix, a batch's activations. All round with the scale of the whole.
#
# | | |
# |---|---|
# | call | `agreed_scale(comm, x, most)` |
# | `x` | this rank's rows, (its number, K), fp32; a rank may have none. **Not changed** |
# | returns | the scale of all rows, a float, the same on every rank |
# | cost | a rank sends at most 2(n − 1) messages, of 8 bytes |
#
# **Invariant:** what one rank with all rows would find: the smallest power of two with |x| ≤ most · s, and 1 where all
# are 0 or there are no rows. `all_reduce_(comm, x, "max")` may be called. About 6 lines.


# %% nbgrader={"grade_id": "agreed_scale", "solution": true}
def agreed_scale(comm, x, most):
    """The scale of what all ranks have together."""
    ### BEGIN SOLUTION
    amax = torch.zeros(1)
    if x.numel():
        amax[0] = x.abs().max()
    all_reduce_(comm, amax, "max")
    amax = amax.item()
    return 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0
    ### END SOLUTION


# %% nbgrader={"grade_id": "agreed_scale_test", "points": 3}
check.agreed_scale(agreed_scale)

# %% [markdown] nbgrader={"grade_id": "agreed_scale_target"}
# **Target:** the largest number is 900, on rank 1. All ranks divide by 4, since 900 / 448 is more than 2.


# %%
def part(comm):
    x = torch.full((2, 3), 1.0 + comm.rank)
    if comm.rank == 1:
        x[0, 0] = -900.0
    return agreed_scale(comm, x, 448.0)


study.table(
    [(f"rank {r}", scale) for r, scale in enumerate(World(3).run(part))], ["", "divides by"]
)

# %% [markdown] nbgrader={"grade_id": "eight_bit_linear_spec"}
# ## 3 · A linear layer in eight bits (4 points)
#
# y = x·Wᵀ, and its two gradients. Each of `x`, `w` and `dy` is divided by a scale (one for the tensor, the smallest power
# of two that fits), rounded to its format, and multiplied by the scale again; then fp32 multiplies.
#
# | | |
# |---|---|
# | call | `eight_bit_linear(x, w, dy)` |
# | `x`, `w`, `dy` | (T, in), (out, in), (T, out), fp32. **Not changed** |
# | formats | `x` and `w`: `torch.float8_e4m3fn`, up to 448. `dy`: `torch.float8_e5m2`, up to 57,344 |
# | returns | y, dx, dW: (T, out), (T, in), (out, in), fp32 |
#
# **Invariant:** dx = dy·W, dW = dyᵀ·x, of what was rounded, in all three products. About 12 lines, with a function of
# your own that rounds.
#
# <details><summary>Hint</summary>
#
# `x.to(torch.float8_e5m2).float()` rounds to the nearest number of the format. `torch.finfo(dtype).max` is its largest.
#
# </details>


# %% nbgrader={"grade_id": "eight_bit_linear", "solution": true}
def eight_bit_linear(x, w, dy):
    """y, dx and dW, with all operands in eight bits."""

    ### BEGIN SOLUTION
    def rounded(x, dtype):
        most = torch.finfo(dtype).max
        amax = x.abs().max().item()
        scale = 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0
        return (x / scale).to(dtype).float() * scale

    x = rounded(x, torch.float8_e4m3fn)
    w = rounded(w, torch.float8_e4m3fn)
    dy = rounded(dy, torch.float8_e5m2)
    return x @ w.t(), dy @ w, dy.t() @ x
    ### END SOLUTION


# %% nbgrader={"grade_id": "eight_bit_linear_test", "points": 4}
check.eight_bit_linear(eight_bit_linear)

# %% [markdown] nbgrader={"grade_id": "eight_bit_linear_target"}
# **Target:** gradients of 2⁻³⁰ come through with the same relative error as those of 1, some percent.

# %%
random = torch.Generator().manual_seed(0)
x = torch.randn(64, 32, generator=random)
w = torch.randn(48, 32, generator=random)
dy = torch.randn(64, 48, generator=random)
rows = []
for exponent in (0, -10, -20, -30):
    small = dy * 2.0**exponent
    _, dx, dw = eight_bit_linear(x, w, small)
    errors = [(dx - small @ w).norm() / (small @ w).norm()]
    errors += [(dw - small.t() @ x).norm() / (small.t() @ x).norm()]
    rows.append((f"2^{exponent}", *(f"{100 * error.item():.1f} %" for error in errors)))
study.table(rows, ["gradients of", "error of dx", "of dW"])

# %% [markdown] nbgrader={"grade_id": "delayed_scale_spec"}
# ## 4 · Delayed scaling (3 points)
#
# To know amax before rounding, a tensor is read once more. The first recipe for eight bits took the amax of earlier
# steps instead.
#
# | | |
# |---|---|
# | make | `DelayedScale(length, most)` |
# | `.scale` | the scale now, a float |
# | `.see(x)` | a tensor is rounded now: its amax is written down. `x`: fp32. **Not changed** |
# | `.step()` | the step is over |
#
# **Invariant:** the scale is the smallest power of two that fits the largest amax of the last `length` steps that count,
# without the one that is going on; 1 where there is none, or all were zeros. Of several tensors of a step the largest
# amax counts. A step that has seen nothing does not count, nor one that has seen an inf or a nan. About 16 lines.


# %% nbgrader={"grade_id": "delayed_scale", "solution": true}
class DelayedScale:
    """A scale from the steps before."""

    def __init__(self, length, most):
        ### BEGIN SOLUTION
        self.length = length
        self.most = most
        self.steps = []
        self.now = []
        ### END SOLUTION

    @property
    def scale(self):
        """The scale of this step."""
        ### BEGIN SOLUTION
        amax = max(self.steps, default=0.0)
        return 2.0 ** math.ceil(math.log2(amax / self.most)) if amax else 1.0
        ### END SOLUTION

    def see(self, x):
        """Write down the amax of a tensor."""
        ### BEGIN SOLUTION
        self.now.append(x.abs().max().item())
        ### END SOLUTION

    def step(self):
        """The end of a step."""
        ### BEGIN SOLUTION
        if self.now and all(math.isfinite(amax) for amax in self.now):
            self.steps = [*self.steps, max(self.now)][-self.length :]
        self.now = []
        ### END SOLUTION


# %% nbgrader={"grade_id": "delayed_scale_test", "points": 3}
check.delayed_scale(DelayedScale)

# %% [markdown] nbgrader={"grade_id": "delayed_scale_target"}
# **Target:** the scale follows one step late. Where amax jumps, the step is rounded with a scale that is too small.

# %%
history = DelayedScale(4, 448.0)
sizes = [448.0 * 2 ** (3 * math.sin(k / 4) + 4 * (k > 24)) for k in range(48)]
used = []
for size in sizes:
    used.append(history.scale)
    history.see(torch.full((2, 2), size))
    history.step()
both = {"your scale times 448": [448 * scale for scale in used], "amax": sizes}
study.curves(
    {name: (range(48), [math.log2(x) for x in values]) for name, values in both.items()},
    xlabel="step",
    ylabel="2 to the power",
    title="Above your scale, numbers are cut off",
)

# %% [markdown] nbgrader={"grade_id": "predict_eight_bits_spec"}
# ## 5 · Predict (2 points)
#
# A linear layer from 5,120 numbers to 13,824, on 8 data-parallel ranks. A rank has 8,192 tokens. Scales are in fp32. The
# smallest number of E4M3 with all its digits, the smallest normal one, is 2⁻⁶; the smallest at all is 2⁻⁹.
#
# - `sixteen`: how many bytes does a rank keep of x for backward, in 16 bits?
# - `blocks`: in eight bits, with a scale for each block of 1 × 128, together with these scales?
# - `weight_scales`: how many scales has W, in blocks of 128 × 128?
# - `agreed`: forward and backward, with one scale a tensor, ranks agree on those of x and dy: two all-reduces of a number,
#   by rings. How many bytes do all ranks together send?
# - `span`: how many times as large as the smallest number that stays normal may a tensor's largest be, in E4M3 and with
#   the right scale?
#
# Write numbers or formulas, right within 1 %.
#
# <details><summary>Hint</summary>
#
# A ring cuts a tensor into n pieces. Each is sent n − 1 times until it has gone by all ranks, and n − 1 times more until
# all have the result. Of one number all pieces but one are empty.
#
# </details>

# %% nbgrader={"grade_id": "predict_eight_bits", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_eight_bits.numbers(STUDENT)
sixteen = blocks = weight_scales = agreed = span = None
### BEGIN SOLUTION
n = 8
tokens = 8_192
inputs = 5_120
outputs = 13_824
sixteen = 2 * tokens * inputs
blocks = tokens * inputs + 4 * tokens * inputs / 128
weight_scales = (inputs / 128) * (outputs / 128)
agreed = 2 * 2 * (n - 1) * 4
span = 448 / 2**-6
### END SOLUTION

# %% nbgrader={"grade_id": "predict_eight_bits_test", "points": 2}
check.predict_eight_bits(sixteen, blocks, weight_scales, agreed, span, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_eight_bits_target"}
# **Target:** the bytes of two such all-reduces, counted on several numbers of ranks. Your prediction is beside its own.


# %%
def agree_twice(comm):
    for _ in ("x", "dy"):
        all_reduce_(comm, torch.ones(1), "max")


rows = []
for ranks in (6, 8, 16, 32):
    counted = World(ranks).run(agree_twice).trace.bytes_sent()
    yours = agreed if agreed and math.isclose(agreed, counted, rel_tol=0.01) else ""
    rows.append((ranks, yours, counted))
study.table(rows, ["ranks", "bytes, predicted", "counted"])
