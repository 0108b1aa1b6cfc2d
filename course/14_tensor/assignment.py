# %% [markdown] nbgrader={"grade_id": "top"}
# # 14 Tensor parallel: exercises
#
# You write f and g, the two operators that all tensor parallelism is made of. Then a linear layer, an MLP with one
# all-reduce, the share of an attention's heads, the sequence-parallel pair; and you find a bug in a layer norm.
#
# Eight exercises, 17 points. After each, run the check: it holds your function against the serial one, outputs and
# every gradient, on 1 to 4 ranks; it counts the bytes, forward alone and both ways; then it runs real processes.
# It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, run the
# function in a `World` of your own.
#
# You may call `minidist.collectives`: you built them in lesson 02. What is refused here is the library's own
# (`minidist.parallel`), and PyTorch's.

# %% nbgrader={"grade_id": "setup"}
import torch
import torch.nn.functional as F
from torch.autograd import Function

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.comm import World

# %% [markdown] nbgrader={"grade_id": "copy_to_spec"}
# ## 1 · f: whole data enter a split layer (2 points)
#
# All ranks hold the same x. Each puts it through its own part of a layer. Forward there is nothing to do. Backward each
# rank gets the gradient that *its part* says: the gradient of x is the sum of all.
#
# | | |
# |---|---|
# | call | `copy_to(x, comm)` |
# | `x` | a tensor of any shape, the same on every rank; **not changed** |
# | returns | a tensor equal to x, which autograd knows |
# | backward | gives x the sum over the ranks of the gradients that come in, which are **not changed** |
# | cost | nothing forward; one all-reduce backward |
#
# **Invariant:** ⟨f(x), y⟩ summed over the ranks = ⟨x, the gradient that f makes of y⟩: backward is the transpose.
# About 8 lines: a class with `forward` and `backward`, and a function that applies it.
#
# <details><summary>Hint</summary>
#
# `class Copy(Function)` has two static methods. `forward(ctx, x, comm)` keeps `ctx.comm = comm`, and returns x.
# `backward(ctx, grad)` returns a gradient for each argument of forward: one for x, and None for comm.
# `all_reduce_` works in place, and somebody else may read `grad`: `grad.clone()` first. Then `Copy.apply(x, comm)`.
#
# </details>


# %% nbgrader={"grade_id": "copy_to", "solution": true}
def copy_to(x, comm):
    """f: identity forward, all-reduce backward."""
    ### BEGIN SOLUTION
    return Copy.apply(x, comm)


class Copy(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None

    ### END SOLUTION


# %% nbgrader={"grade_id": "copy_to_test", "points": 2}
check.copy_to(copy_to)

# %% [markdown] nbgrader={"grade_id": "copy_to_target"}
# **Target:** three rows with the sum of all: 1 + 2 + 3 = 6, and ten and a hundred times that.


# %%
def what_each_says(comm):
    """x has three numbers; rank r's part of a layer says (r + 1) · (1, 10, 100)."""
    x, said = torch.zeros(3, requires_grad=True), (comm.rank + 1) * torch.tensor([1, 10, 100])
    (copy_to(x, comm) * said).sum().backward()
    return said, x.grad.int()


results = World(3).run(what_each_says)
study.holdings(
    {
        "each rank's gradient": [said for said, _ in results],
        "x.grad": [grad for _, grad in results],
    },
    owner=lambda word: {"1": 0, "2": 1, "3": 2}.get(word[0], ()),
    title="Backward through your f",
)

# %% [markdown] nbgrader={"grade_id": "reduce_from_spec"}
# ## 2 · g: partial results become whole (1 point)
#
# The conjugate of f. Each rank has a part of a sum. Forward adds up. Backward: what does the gradient of the sum say
# of one summand?
#
# | | |
# |---|---|
# | call | `reduce_from(x, comm)` |
# | `x` | a tensor, another one on each rank; **not changed** |
# | returns | the sum of all ranks' x, the same on every rank |
# | backward | the gradient that comes in is that of the sum, and the same on every rank |
# | cost | one all-reduce forward; nothing backward |
#
# About 8 lines.
#
# <details><summary>Hint</summary>
#
# Everything downstream is whole: every rank computes the same loss, and the same gradient of the sum.
# If y = x₀ + x₁ and x₁ grows by 1, so does y.
#
# </details>


# %% nbgrader={"grade_id": "reduce_from", "solution": true}
def reduce_from(x, comm):
    """g: all-reduce forward, identity backward."""
    ### BEGIN SOLUTION
    return Reduce.apply(x, comm)


class Reduce(Function):
    @staticmethod
    def forward(ctx, x, comm):
        return all_reduce_(comm, x.clone())

    @staticmethod
    def backward(ctx, grad):
        return grad, None

    ### END SOLUTION


# %% nbgrader={"grade_id": "reduce_from_test", "points": 1}
check.reduce_from(reduce_from)

# %% [markdown] nbgrader={"grade_id": "reduce_from_target"}
# **Target:** each operator sends 6,000 bytes to the right, 2 · 3/4 of its 4,000: f backward, g forward.


# %%
def there_and_back(comm, operator, backward):
    x = torch.ones(1000, requires_grad=True)
    y = operator(x, comm)
    if backward:
        y.sum().backward()


def sent(operator, backward):
    world = World(4)
    world.run(there_and_back, operator, backward)
    return world.trace.bytes_sent(0)


rows = [
    (name, sent(operator, False), sent(operator, True) - sent(operator, False))
    for name, operator in {"f, copy_to": copy_to, "g, reduce_from": reduce_from}.items()
]
study.table(
    rows,
    ["", "bytes forward", "bytes backward"],
    title="Your operators on 4 ranks, 4,000 bytes: rank 0 sends",
)

# %% [markdown] nbgrader={"grade_id": "row_linear_spec"}
# ## 3 · A linear layer, split by its inputs (2 points)
#
# $Y = XA^T + b$, and rank r has some of the inputs: columns of X, the same columns of A. b is whole on every rank.
#
# | | |
# |---|---|
# | call | `row_linear(x, weight, bias, comm)` |
# | `x` | (…, inputs of this rank) |
# | `weight` | (outputs, inputs of this rank) |
# | `bias` | (outputs,), the same on every rank, and to stay so |
# | returns | Y, (…, outputs), whole on every rank |
# | cost | one all-reduce of Y forward, nothing backward |
#
# **Invariant:** Y, and after backward the gradients of `x`, `weight` and `bias`, are the serial layer's (of x and
# weight this rank's part). So every rank's copy of the bias takes the same step. About 2 lines.
#
# <details><summary>Hint</summary>
#
# `F.linear(x, weight)` of this rank is one summand. The bias is no part of the sum.
#
# </details>


# %% nbgrader={"grade_id": "row_linear", "solution": true}
def row_linear(x, weight, bias, comm):
    """A linear layer split by its inputs; the bias added once."""
    ### BEGIN SOLUTION
    return reduce_from(F.linear(x, weight), comm) + bias
    ### END SOLUTION


# %% nbgrader={"grade_id": "row_linear_test", "points": 2}
check.row_linear(row_linear)

# %% [markdown] nbgrader={"grade_id": "row_linear_target"}
# **Target:** 21 + 100, whatever n is. With the bias on every rank it would grow with n.


# %%
def one_output(comm):
    # 1 … 6, weights of 1: the sum is 21
    mine = torch.arange(1.0, 7.0).tensor_split(comm.size)[comm.rank]
    return row_linear(mine, torch.ones(1, len(mine)), torch.tensor([100.0]), comm).item()


study.bars(
    {f"{n} rank{'s' * (n > 1)}": World(n).run(one_output)[0] for n in (1, 2, 3, 6)},
    target=121,
    note="serial",
    title="1 + 2 + … + 6, and a bias of 100",
)

# %% [markdown] nbgrader={"grade_id": "mlp_spec"}
# ## 4 · An MLP with one all-reduce (3 points)
#
# Two linear layers, the tanh form of GELU between them. The first is split by its outputs, the second by its inputs.
#
# | | |
# |---|---|
# | call | `mlp(x, fc, fc_bias, proj, proj_bias, comm)` |
# | `x` | (B, T, H), the same on every rank |
# | `fc`, `fc_bias` | this rank's features: (F, H) and (F,), together 4H features; F may differ from rank to rank |
# | `proj` | (H, F), this rank's columns |
# | `proj_bias` | (H,), the same on every rank |
# | returns | (B, T, H), whole on every rank |
# | cost | **one all-reduce of (B, T, H) forward, one backward** |
#
# **Invariant:** output and all five gradients are the serial MLP's (of `fc`, `fc_bias`, `proj` this rank's part).
# GELU: `F.gelu(h, approximate="tanh")`. About 3 lines, with your f and g.
#
# <details><summary>Hint</summary>
#
# Where is data whole, and read by parts? There stands f. Where are results partial? There stands g. Nowhere else is
# there anything to say: GELU works on each feature alone.
#
# </details>


# %% nbgrader={"grade_id": "mlp", "solution": true}
def mlp(x, fc, fc_bias, proj, proj_bias, comm):
    """fc by outputs, GELU, proj by inputs: one all-reduce each way."""
    ### BEGIN SOLUTION
    hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")
    return row_linear(hidden, proj, proj_bias, comm)
    ### END SOLUTION


# %% nbgrader={"grade_id": "mlp_test", "points": 3}
check.mlp(mlp)

# %% [markdown] nbgrader={"grade_id": "mlp_target"}
# **Target:** four steps. Two are the all-reduce forward (a reduce-scatter, an all-gather), two the one backward.


# %%
def both_ways(comm):
    n, draw = comm.size, torch.Generator().manual_seed(0)
    x, fc, proj = (torch.randn(*shape, generator=draw) for shape in ((1, 4, 8), (32, 8), (8, 32)))
    part = [fc.chunk(n)[comm.rank], torch.zeros(32 // n), proj.chunk(n, 1)[comm.rank]]
    mlp(
        x.requires_grad_(), *(w.clone().requires_grad_() for w in part), torch.zeros(8), comm
    ).sum().backward()


world = World(2)
world.run(both_ways)
study.messages(
    world.trace,
    clock="steps",
    label=None,
    title="Your MLP on 2 ranks: 2(n−1) messages a rank and way",
)

# %% [markdown] nbgrader={"grade_id": "my_heads_spec"}
# ## 5 · A rank's heads (2 points)
#
# GPT-2 keeps queries, keys and values in one matrix of 3H rows: first all of Q, then all of K, then all of V. In each
# third head 0 comes first, then head 1, and so on. You load such a weight, and give each rank its heads.
#
# | | |
# |---|---|
# | call | `my_heads(weight, heads, comm)` |
# | `weight` | (3H, …): the matrix (3H, H), or the bias (3H,); the same on every rank; **not changed** |
# | `heads` | how many, a divisor of H |
# | returns | (3H/n, …): of Q the rows of this rank's heads, then those of K, then those of V; a copy |
# | raises | `ValueError` if n does not divide `heads`; its text has both numbers |
# | cost | no message |
#
# Rank r has heads r·(heads/n) up to the next rank's first. **A copy:** a view would keep all 3H rows in memory.
# About 5 lines.
#
# <details><summary>Hint</summary>
#
# `weight.chunk(3)` are Q, K and V. Each has `heads` blocks of equally many rows. `torch.cat` copies.
#
# </details>


# %% nbgrader={"grade_id": "my_heads", "solution": true}
def my_heads(weight, heads, comm):
    """This rank's rows of [Q; K; V]."""
    ### BEGIN SOLUTION
    if heads % comm.size:
        raise ValueError(f"{heads} heads do not split over {comm.size} ranks")
    return torch.cat([third.chunk(comm.size)[comm.rank] for third in weight.chunk(3)])
    ### END SOLUTION


# %% nbgrader={"grade_id": "my_heads_test", "points": 2}
check.my_heads(my_heads)

# %% [markdown] nbgrader={"grade_id": "my_heads_target"}
# **Target:** six heads with one row each. Every rank has q, k and v of the *same* two heads.

# %%
names = [f"{letter}{head}" for letter in "qkv" for head in range(6)]
mine = [
    part.tolist()
    for part in World(3).run(lambda comm, rows: my_heads(rows, 6, comm), torch.arange(18))
]
study.holdings(
    {"your parts": [[names[row] for row in part] for part in mine]},
    owner=lambda word: int(word[1]) // 2,
    title="18 rows, 6 heads, 3 ranks",
)

# %% [markdown] nbgrader={"grade_id": "sequence_pair_spec"}
# ## 6 · The sequence-parallel pair (3 points)
#
# An all-reduce is a reduce-scatter and an all-gather. Between two split layers, stop half-way: every rank keeps its
# part of the *sequence*, and norms and dropout work on that.
#
# | | |
# |---|---|
# | call | `gather_sequence(x, comm)` and `reduce_scatter_sequence(x, comm)` |
# | the first | (B, T/n, H), a part on each rank → (B, T, H), all parts in rank order |
# | the second | (B, T, H), a summand on each rank → (B, T/n, H), this rank's part of the sum |
# | backward | of each is the other's forward |
# | cost | half an all-reduce each, forward, and half backward |
#
# Dimension 1 is the sequence; n divides T. x is **not changed**. About 18 lines.
#
# <details><summary>Hint</summary>
#
# `all_gather(comm, x)` and `reduce_scatter(comm, x)` work along dimension 0, and give new tensors:
# `x.transpose(0, 1).contiguous()` before, `.transpose(0, 1)` after. Two functions for the messages, two classes that
# swap them.
#
# </details>


# %% nbgrader={"grade_id": "sequence_pair", "solution": true}
def gather_sequence(x, comm):
    """(B, T/n, H) to (B, T, H); backward a reduce-scatter."""
    ### BEGIN SOLUTION
    return Gather.apply(x, comm)
    ### END SOLUTION


def reduce_scatter_sequence(x, comm):
    """(B, T, H) to (B, T/n, H); backward an all-gather."""
    ### BEGIN SOLUTION
    return Scatter.apply(x, comm)


def gathered(x, comm):
    return all_gather(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


def scattered(x, comm):
    return reduce_scatter(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


class Gather(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return gathered(x, comm)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.comm), None


class Scatter(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return scattered(x, comm)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.comm), None

    ### END SOLUTION


# %% nbgrader={"grade_id": "sequence_pair_test", "points": 3}
check.sequence_pair(gather_sequence, reduce_scatter_sequence)

# %% [markdown] nbgrader={"grade_id": "sequence_pair_target"}
# **Target:** the same bytes in both rows.


# %%
def one_block(comm, split):
    """The shell of a block without its matrices: f … g, or its sequence-parallel pair, forward and backward."""
    x = torch.ones(2, 120 // (comm.size if split else 1), 10, requires_grad=True)
    y = (
        reduce_scatter_sequence(gather_sequence(x, comm), comm)
        if split
        else reduce_from(copy_to(x, comm), comm)
    )
    y.sum().backward()
    return x.nbytes


rows = []
for name, split in {"f, g": False, "gather, reduce-scatter": True}.items():
    world = World(4)
    kept = world.run(one_block, split)[0]
    rows.append((name, world.trace.bytes_sent(0), kept))
study.table(
    rows,
    ["", "bytes sent by rank 0", "bytes held between blocks"],
    title="Two ways around a block, 4 ranks",
)

# %% [markdown] nbgrader={"grade_id": "predict_tensor_spec"}
# ## 7 · Predict (2 points)
#
# A transformer layer with H = 8,192 on 4 ranks of a node, one sequence of T = 4,096 tokens, bf16 (2 bytes).
# α = 5 µs, β = 1/(300 GB/s). Forward and backward of the one layer, ring all-reduces, f and g.
#
# - `messages`: how many does each rank send?
# - `nbytes`: how many bytes does each rank send?
# - `seconds`: how long do the all-reduces take?
# - `row_first`: an MLP block with *both* layers split by inputs: how many bytes does each rank send *forward*, of that
#   block alone?
# - `heads`: the layer gets twice as many heads, each half as wide. `nbytes` becomes?
# - `sequence`: with sequence parallel, `nbytes` becomes? (Leave out gradients of biases and norms.)
# - `weights`: how many bytes of matrices does each rank hold?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_tensor", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_tensor.numbers(STUDENT)
messages = nbytes = seconds = row_first = heads = sequence = weights = None
### BEGIN SOLUTION
n = 4
H = 8192
N = 4096 * 8192 * 2
messages = 4 * 2 * (n - 1)
nbytes = 4 * 2 * (n - 1) / n * N
seconds = messages * 5e-6 + nbytes / 300e9
row_first = 2 * (n - 1) / n * (4 * N + N)
heads = nbytes
sequence = nbytes
weights = 12 * H**2 * 2 / n
### END SOLUTION

# %% nbgrader={"grade_id": "predict_tensor_test", "points": 2}
check.predict_tensor(messages, nbytes, seconds, row_first, heads, sequence, weights, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_tensor_target"}
# **Target:** your numbers beside those of a World, on tensors without data.


# %%
def layer(comm):
    """The shell of a layer: two blocks, f … g each."""
    x = torch.empty(1, 4096, 8192, dtype=torch.bfloat16, device="meta", requires_grad=True)
    for _ in range(2):
        x = reduce_from(copy_to(x, comm), comm)
    x.sum().backward()


world = World(4, alpha=5e-6, beta=1 / 300e9, device="meta")
world.run(layer)
rows = [
    ["messages", messages, world.trace.messages(0)],
    ["MB", nbytes / 1e6, world.trace.bytes_sent(0) / 1e6],
    ["ms", 1e3 * seconds, 1e3 * world.time],
]
study.table(rows, ["one layer, rank 0", "predicted", "run"])

# %% [markdown] nbgrader={"grade_id": "sequence_norm_spec"}
# ## 8 · Find the bug (2 points)
#
# A layer norm on a part of the sequence: every rank normalizes its own tokens. The next cell was found in somebody's
# code. Its outputs are right.


# %% nbgrader={"grade_id": "sequence_norm_broken"}
def sequence_norm(x, weight, bias, comm):
    """Layer norm of this rank's tokens, (B, T/n, H)."""
    return F.layer_norm(x, weight.shape, weight, bias)


# %%
def training(comm, norm, steps=10):
    """How far the norm's weight is from rank 0's after each step; every rank has tokens of its own."""
    weight = torch.ones(6, requires_grad=True)
    bias = torch.zeros(6, requires_grad=True)
    found = []
    for _ in range(steps):
        x, target = torch.randn(2, 3, 6), torch.randn(2, 3, 6)
        (norm(x, weight, bias, comm) - target).square().sum().backward()
        with torch.no_grad():
            for p in (weight, bias):
                p -= 0.01 * p.grad
                p.grad = None
        mine = weight.detach()
        found.append(float((all_gather(comm, mine[None])[0] - mine).abs().max()))
    return found


broken = World(3).run(training, sequence_norm)
study.curves(
    {f"rank {r}": (range(1, 11), broken[r]) for r in (1, 2)},
    xlabel="step",
    ylabel="largest difference from rank 0's weight",
    title="Copies that should be equal",
)

# %% [markdown] nbgrader={"grade_id": "sequence_norm_task"}
# Copy the function, and repair it. One of your operators does it.
#
# | | |
# |---|---|
# | call | `sequence_norm(x, weight, bias, comm)` |
# | `x` | (B, T/n, H), this rank's tokens |
# | `weight`, `bias` | (H,), the same on every rank, and to stay so |
# | returns | (B, T/n, H) |
# | cost | nothing forward; backward 2 all-reduces of H numbers |
#
# **Invariant:** the gradients of `weight` and `bias` are those of *all* tokens, on every rank.
#
# <details><summary>Hint</summary>
#
# `weight` is whole on every rank. It is used on a part of the data. Who needs the sum of what all ranks say of it?
#
# </details>


# %% nbgrader={"grade_id": "sequence_norm", "solution": true}
def sequence_norm(x, weight, bias, comm):
    """Layer norm of this rank's tokens, (B, T/n, H)."""
    ### BEGIN SOLUTION
    return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))
    ### END SOLUTION


# %% nbgrader={"grade_id": "sequence_norm_test", "points": 2}
check.sequence_norm(sequence_norm)

# %% [markdown] nbgrader={"grade_id": "sequence_norm_target"}
# **Target:** no difference, bit for bit. In exercise 3 the bias needed no f: there, what each rank adds it to is whole.

# %%
repaired = World(3).run(training, sequence_norm)
study.bars(
    {"broken": max(map(max, broken)), "repaired": max(map(max, repaired))},
    title="Largest difference between copies in 10 steps",
)
