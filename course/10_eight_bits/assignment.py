# %% [markdown] nbgrader={"grade_id": "top"}
# # 10 Eight bits: exercises
#
# You find the scales that fit a matrix into eight bits, let ranks agree on them, compute a linear layer with a scale for
# each row, forward and backward, and keep a history of amax that survives a checkpoint.
#
# There are six exercises, worth 17 points. The last one, worth 2, is open and graded by hand. Each of the others ends with
# a check that draws matrices and sizes of its own and says what is wrong. Try as often as you like. What your function
# prints is not shown by a check; to see it, call the function in a cell of your own. The library's own functions
# (`minidist.train.fp8`) are refused.

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
# [The lesson](lesson:eight_bits) found one scale for a tensor, and left blocks to the library. Now a matrix is cut into
# blocks of `rows` × `columns`, from its first number on; where the size does not divide, the last blocks are smaller. Each
# block is divided by a scale of its own, so that it fits a format whose largest number is `most`: 448 of E4M3, 57,344 of
# E5M2.
#
# | | |
# |---|---|
# | call | `block_scales(x, rows, columns, most)` |
# | `x` | (M, K), fp32. **Not changed** |
# | returns | (⌈M / rows⌉, ⌈K / columns⌉), fp32 |
#
# **Invariant:** a block's scale s is the smallest power of two with |x| ≤ most · s for each x of the block; 1 where all
# are 0. This is exact: where amax is most · 2^k the scale is 2^k, and where amax is the next number of fp32 above that, it is
# 2^(k+1). About 10 lines.
#
# <details><summary>Hint</summary>
#
# `x.split(rows, 0)` cuts into strips, also where the last is smaller. The exponent is the logarithm to base 2 of
# amax / most, rounded up. In fp32 this quotient may be rounded to the power of two that it is just above: Python's own
# floats, `amax.item()`, have digits enough.
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
    with check.limit(10):
        wide = block_scales(outlier, *block, 448.0)
    for dim, side in enumerate(block):
        wide = wide.repeat_interleave(side, dim)
    low = (outlier / wide).to(torch.float8_e4m3fn).float()
    rows.append((name, (8 // block[0]) * (16 // block[1]), (low == 0).sum().item()))
study.table(rows, ["a scale for", "scales", "numbers that become 0"])

# %% [markdown] nbgrader={"grade_id": "agreed_scales_spec"}
# ## 2 · Ranks agree (3 points)
#
# Each data-parallel rank has some rows of a matrix of activations, one row for each token. Scaled by tensor, all of them
# round with the scale of the whole. Scaled by row, *dW* sums over the tokens and needs a scale for each *column*, of which
# again each rank has a part. Find both at once.
#
# | | |
# |---|---|
# | call | `agreed_scales(comm, x, most)` |
# | `x` | this rank's rows, (its number, K), fp32; a rank may have none. **Not changed** |
# | returns | `whole, columns`: the scale of all rows, a float; and the scales of their columns, (K,), fp32. The same on every rank |
# | cost | a rank sends at most 2(n − 1) messages, with at most 8(K + n) bytes in all |
#
# **Invariant:** what one rank with all rows would find: the smallest powers of two with |x| ≤ most · s, and 1 where all
# are 0 or there are no rows, exact as in exercise 1. You may call `all_reduce_(comm, x, "max")`; for that many messages it
# can be called once. More messages or bytes cost half of the points. About 6 lines.
#
# <details><summary>Hint</summary>
#
# The largest of the columns' largest magnitudes is that of the whole. Every rank takes part in every collective, whether it
# has rows or not: `torch.cat([x.abs(), torch.zeros(1, x.shape[1])])` always has one.
#
# </details>


# %% nbgrader={"grade_id": "agreed_scales", "solution": true}
def agreed_scales(comm, x, most):
    """The scale of what all ranks have together, and that of each column."""
    ### BEGIN SOLUTION
    amaxes = torch.cat([x.abs(), torch.zeros(1, x.shape[1])]).amax(0)
    all_reduce_(comm, amaxes, "max")
    columns = []
    for amax in amaxes.tolist():
        columns.append(2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0)
    amax = amaxes.max().item()
    whole = 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0
    return whole, torch.tensor(columns)
    ### END SOLUTION


# %% nbgrader={"grade_id": "agreed_scales_test", "points": 3}
check.agreed_scales(agreed_scales)

# %% [markdown] nbgrader={"grade_id": "agreed_scales_target"}
# **Target:** the largest number is 900, on rank 1, in the first column. All ranks divide the whole and this column by 4,
# since 900 / 448 is more than 2, and the other columns, whose largest number is 3, by 2⁻⁷.


# %%
def part(comm):
    x = torch.full((2, 3), 1.0 + comm.rank)
    if comm.rank == 1:
        x[0, 0] = -900.0
    return agreed_scales(comm, x, 448.0)


with check.limit(10):
    agreed_on = list(World(3).run(part))
rows = []
for r, (whole, columns) in enumerate(agreed_on):
    rows.append((f"rank {r}", whole, ", ".join(f"{s:g}" for s in columns.tolist())))
study.table(rows, ["", "divides the whole by", "the columns by"])

# %% [markdown] nbgrader={"grade_id": "eight_bit_linear_spec"}
# ## 3 · A linear layer, by rows (4 points)
#
# The lesson's layer has one scale for a tensor. Build it with a scale for each row, of what the product sums *along*: as the
# lesson says, only then do the scales come out of the sum. There are three products, y = x·Wᵀ, dx = dy·W and dW = dyᵀ·x, and
# each of the three matrices is in two of them.
#
# | | |
# |---|---|
# | call | `eight_bit_linear(x, w, dy)` |
# | `x`, `w`, `dy` | (T, in), (out, in), (T, out), fp32. **Not changed** |
# | rounding | a row is divided by its scale, the smallest power of two that fits (1 where all are 0), rounded, and multiplied by the scale again; then fp32 multiplies |
# | formats | `x` and `w`: `torch.float8_e4m3fn`, up to 448. `dy`: `torch.float8_e5m2`, up to 57,344 |
# | returns | y, dx, dW: (T, out), (T, in), (out, in), fp32 |
#
# **Invariant:** in each product both operands are rounded, with a scale for each of the rows (or columns) along which the
# product sums. For y these are the rows of `x` and of `w`. Which are they for dx, and for dW? Tokens, inputs and outputs may
# differ by many powers of two, and each number is compared in proportion to the magnitudes of its own terms. About 12 lines.
#
# <details><summary>Hint</summary>
#
# Write a function that rounds by rows. What needs columns is transposed before, and after. dx sums over the outputs: `w` is
# needed with a scale for each input. dW sums over the tokens.
# `x.to(torch.float8_e5m2).float()` rounds to the nearest number of the format; `torch.finfo(dtype).max` is its largest.
#
# </details>


# %% nbgrader={"grade_id": "eight_bit_linear", "solution": true}
def eight_bit_linear(x, w, dy):
    """y, dx and dW, with all operands in eight bits, by rows."""

    ### BEGIN SOLUTION
    def rounded(x, dtype):
        most = torch.finfo(dtype).max
        rows = []
        for row in x:
            amax = row.abs().max().item()
            scale = 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0
            rows.append((row / scale).to(dtype).float() * scale)
        return torch.stack(rows)

    forward = torch.float8_e4m3fn
    backward = torch.float8_e5m2
    y = rounded(x, forward) @ rounded(w, forward).t()
    dx = rounded(dy, backward) @ rounded(w.t(), forward).t()
    dw = rounded(dy.t(), backward) @ rounded(x.t(), forward).t()
    return y, dx, dw
    ### END SOLUTION


# %% nbgrader={"grade_id": "eight_bit_linear_test", "points": 4}
check.eight_bit_linear(eight_bit_linear)

# %% [markdown] nbgrader={"grade_id": "eight_bit_linear_target"}
# **Target:** some per cent in every token, however much they differ. With one scale for the tensor half of the tokens are lost
# where they differ by 2⁴⁰.

# %%
random = torch.Generator().manual_seed(0)
w = torch.randn(48, 32, generator=random)
rows = []
for exponent in (0, 10, 20, 40):
    tokens = torch.logspace(0, -exponent, 64, base=2)[:, None]
    x = torch.randn(64, 32, generator=random) * tokens
    dy = torch.randn(64, 48, generator=random)
    with check.limit(10):
        y, dx, dw = eight_bit_linear(x, w, dy)
    low = y / tokens
    right = (x / tokens) @ w.t()
    errors = [(low - right).norm() / right.norm()]
    errors += [(dw - dy.t() @ x).norm() / (dy.t() @ x).norm()]
    rows.append((f"2^{exponent}", *(f"{100 * error.item():.1f} %" for error in errors)))
study.table(rows, ["tokens differ by", "error of y, token by token", "of dW"])

# %% [markdown] nbgrader={"grade_id": "delayed_scale_spec"}
# ## 4 · Delayed scaling (3 points)
#
# The lesson's `Delayed` writes down each tensor for itself. In a real run a step has several micro-batches, each of which
# rounds a tensor with this scale; some steps see nothing, some an infinity; and the run may end and go on from a checkpoint.
#
# | | |
# |---|---|
# | make | `DelayedScale(length, most)` |
# | `.scale` | the scale now, a float |
# | `.see(x)` | a tensor is rounded now: its amax is written down. `x`: fp32. **Not changed** |
# | `.step()` | the step is over |
# | `.state()` | what a checkpoint keeps: a new list of floats, the amax of each step that counts and is not forgotten, the oldest first. It is asked for between steps, and what happens later does not change it |
# | `.load(state)` | such a list takes the place of all that was seen before |
#
# **Invariant:** the scale is the smallest power of two that fits the largest amax of the last `length` steps that count,
# without the one that is going on; 1 where there is none, or all were zeros. Of several tensors of a step the largest
# amax counts. A step that has seen nothing does not count, nor one that has seen an inf or a nan. After `load` the scales
# are those of a run that was never interrupted. About 20 lines.
#
# <details><summary>Hint</summary>
#
# Keep two lists: what the steps had, and what this one has seen so far. `math.isfinite` tells an inf and a nan.
#
# </details>


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

    def state(self):
        """The amaxes of the steps that count, for a checkpoint."""
        ### BEGIN SOLUTION
        return list(self.steps)
        ### END SOLUTION

    def load(self, state):
        """Go on from a checkpoint."""
        ### BEGIN SOLUTION
        self.steps = list(state)
        self.now = []
        ### END SOLUTION


# %% nbgrader={"grade_id": "delayed_scale_test", "points": 3}
check.delayed_scale(DelayedScale)

# %% [markdown] nbgrader={"grade_id": "delayed_scale_target"}
# **Target:** the scale follows one step late. Where amax jumps, the step is rounded with a scale that is too small.

# %%
sizes = [448.0 * 2 ** (3 * math.sin(k / 4) + 4 * (k > 24)) for k in range(48)]
used = []
with check.limit(10):
    history = DelayedScale(4, 448.0)
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
# - `row_scales`: scaled by row, how many scales does a rank compute for x, W and dy together, in forward and backward?
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
sixteen = blocks = row_scales = weight_scales = agreed = span = None
### BEGIN SOLUTION
n = 8
tokens = 8_192
inputs = 5_120
outputs = 13_824
sixteen = 2 * tokens * inputs
blocks = tokens * inputs + 4 * tokens * inputs / 128
row_scales = 2 * (tokens + inputs + outputs)
weight_scales = (inputs / 128) * (outputs / 128)
agreed = 2 * 2 * (n - 1) * 4
span = 448 / 2**-6
### END SOLUTION

# %% nbgrader={"grade_id": "predict_eight_bits_test", "points": 2}
check.predict_eight_bits(sixteen, blocks, row_scales, weight_scales, agreed, span, of=STUDENT)

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

# %% [markdown] nbgrader={"grade_id": "history_length_spec"}
# ## 6 · How long a history? (2 points, graded by hand)
#
# Suppose that the amax of a tensor is 2^z in each step, where z is drawn anew from a normal distribution with mean 0 and
# standard deviation 1 (`torch.randn`). The scale is the smallest power of two that fits the largest amax of the last *L*
# steps, in E4M3; a *margin* of *m* multiplies it by 2^m. **What is the shortest history with which at most 1 % of the steps
# cut anything off: without a margin, and with a margin of 1?**
#
# Simulate some ten thousand steps for *L* = 1, 2, 4, … 128, and answer with a plot and about eight sentences. Here you may
# use your own functions and everything that the lesson used. Your teacher gives:
#
# - **1 point for the plot and the two lengths.** The plot shows the share of steps that cut something off against *L*, for
#   both margins, with axes and a legend, on a logarithmic scale, and the line of 1 % can be found in it.
# - **½ point for the reason.** A new number is larger than the *L* before it with probability 1/(L + 1). You say why the share
#   lies below that, and compare the two at one *L*.
# - **½ point for the price.** You say what a margin costs and what a long history costs, and which of the two you would
#   take for a tensor whose amax grows slowly through a run, or falls, with a reason.

# %% nbgrader={"grade_id": "history_length_plot", "solution": true}
### BEGIN SOLUTION
amaxes = 2.0 ** torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def share_cut_off(length, margin):
    """Per cent of the steps whose amax is beyond what the scale has room for."""
    largest_before = amaxes.unfold(0, length, 1).amax(1)[:-1]
    scales = 2.0 ** ((largest_before / 448).log2().ceil() + margin)
    return 100 * float((amaxes[length:] > 448 * scales).double().mean())


lengths = [1, 2, 4, 8, 16, 32, 64, 128]
curves = {"1/(L + 1)": (lengths, [100 / (length + 1) for length in lengths])}
for margin in (0, 1):
    shares = {length: share_cut_off(length, margin) for length in lengths}
    seen = [length for length in lengths if shares[length] > 0]
    curves[f"margin {margin}"] = (seen, [shares[length] for length in seen])
    shortest = next(length for length in range(1, 129) if share_cut_off(length, margin) <= 1)
    print(f"margin {margin}: a history of {shortest} steps")
study.curves(
    curves,
    logx=True,
    logy=True,
    yunit="%",
    xlabel="history, steps",
    ylabel="steps that cut something off",
    title="amax is 2 to the power of a normal number",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "history_length", "solution": true, "points": 2}
# Without a margin a history of 40 steps is needed, with a margin of 1 a history of 7.
#
# A new amax is the largest of L + 1 numbers that are drawn alike with probability 1/(L + 1), and only then can something be cut
# off. But a scale is a power of two, rounded up, so there is nearly always some room above the largest amax of the history,
# half a power of two on average: at L = 16 a new largest comes in 5.9 % of the steps, and only 2.5 % of the steps cut
# something off. A margin of 1 makes this room one power of two larger, and a normal number that is larger than the sixteen
# before it is seldom larger by that much: 0.2 %.
#
# A margin costs range at the lower end, one power of two of the 15 in which E4M3 has all its digits, which a tensor with
# an ordinary spread never notices. A long history costs little memory, but it remembers: after one exceptional step the scale
# stays too large for L steps, and where amax falls it follows L steps late. Where amax grows slowly, the newest amax is near
# the largest, a long history helps little, and I would take a margin with a history of a few steps. Where it falls, a long
# history keeps scales that are too large, which costs range at the lower end too; again a margin with a short history is the
# better choice.
