# %% [markdown] nbgrader={"grade_id": "top"}
# # 14 Tensor parallel: exercises
#
# You write *f* for several tensors at once and a *g* whose backward can be differentiated, and build on them: a linear layer split by its inputs, an MLP with one all-reduce each way, a rank's heads of a GPT-2 checkpoint, and the pair of operators for a split sequence, which the lesson described and did not write. You predict what a layer costs, find a bug in a layer norm, and decide how many GPUs a layer of LLaMA should have.
#
# Nine exercises, 17 points. After each of the first eight, run the check. It compares your function with the serial one, the outputs and every gradient, on 1 to 4 ranks (6 in exercise 5) in a World, and then in real processes; it counts messages and bytes, of forward alone and of both ways; and it says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, run the function in a `World` of your own. The ninth is an open question, which your teacher reads.
#
# You may call `minidist.collectives`, which you built in [Messages](lesson:messages). What is refused is the library's tensor parallelism (`minidist.parallel`), and PyTorch's distributed package.
#
# These rules hold for every function here, and are checked:
#
# - Results and gradients have the dtype of what was handed in, float32 or float64. A `nan` that comes in goes out.
# - What is handed in is not changed, and neither is a gradient that comes into backward. That gradient may lie in memory as a transposed tensor does.
# - `x` may have other readers, as in `x + f(x)`. What they say of it is not yours.
# - Several calls may be under way at once, on different Comms: each keeps its own.
# - Wait for all that you post before you return.

# %% nbgrader={"grade_id": "setup"}
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch.autograd import Function

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.comm import World

# %% [markdown] nbgrader={"grade_id": "copy_to_spec"}
# ## 1 · f: whole data enter a split layer, all at once (1 point)
#
# All ranks hold the same *x*, and each puts it through its own part of a layer. In forward there is nothing to do. In backward, each rank receives the gradient that *its part* of the layer says; the gradient of *x* is the sum of all of them. The lesson's *f* takes one tensor. Where several enter a layer, such as a weight and a bias, one all-reduce for each wastes messages. Write an *f* that also takes a list, and sums all its gradients at once.
#
# | | |
# |---|---|
# | call | `copy_to(x, comm)` |
# | `x` | a tensor of 0 to 4 dimensions, the same on every rank; or a list of such tensors of one dtype |
# | returns | a tensor equal to `x`, which autograd knows; or a list of tensors equal to those of `x` |
# | backward | gives `x`, or each tensor of it, the sum over the ranks of the gradients that come in |
# | cost | no message in forward; in backward **one** all-reduce of x's size, or of the size of all tensors of `x` together |
#
# **Invariant:** ⟨f(x), y⟩ summed over the ranks equals ⟨x, the gradient that f makes of y⟩: backward is the transpose. About 14 lines: a class with `forward` and `backward`, and a function that applies it.
#
# <details><summary>Hint</summary>
#
# `class Copy(Function)` has two static methods. `forward(ctx, x, comm)` keeps `ctx.comm = comm`, and returns `x`. `backward(ctx, grad)` returns a gradient for each argument of forward: one for `x`, and None for `comm`. `all_reduce_` works in place, and somebody else may read `grad`, so clone it first. Then call `Copy.apply(x, comm)`. From a list one can make a single flat tensor before *f*, and take it apart after *f*: of `cat`, `reshape`, `split` and `view` autograd knows the backward.
#
# </details>


# %% nbgrader={"grade_id": "copy_to", "solution": true}
def copy_to(x, comm):
    """f: identity forward, all-reduce backward."""
    ### BEGIN SOLUTION
    if isinstance(x, torch.Tensor):
        return Copy.apply(x, comm)
    flat = Copy.apply(torch.cat([tensor.reshape(-1) for tensor in x]), comm)
    pieces = flat.split([tensor.numel() for tensor in x])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, x)]


class Copy(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None

    ### END SOLUTION


# %% nbgrader={"grade_id": "copy_to_test", "points": 1}
check.copy_to(copy_to)

# %% [markdown] nbgrader={"grade_id": "copy_to_target"}
# **Target:** three rows with the sum of all: 1 + 2 + 3 = 6, and ten and a hundred times as much.


# %%
def what_each_says(comm):
    """x has three numbers; rank r's part of a layer says (r + 1) · (1, 10, 100)."""
    x, said = torch.zeros(3, requires_grad=True), (comm.rank + 1) * torch.tensor([1, 10, 100])
    (copy_to(x, comm) * said).sum().backward()
    return said, x.grad.int()


with check.limit(10):
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
# ## 2 · g, twice differentiable: partial results become whole (1 point)
#
# The conjugate of *f*. Each rank has a summand. Forward adds them up. What does the gradient of the sum say of one summand? The lesson's *g* answers that, but only once: whoever differentiates a gradient, as a gradient penalty does (`torch.autograd.grad(…, create_graph=True)`), gets wrong numbers from it, without an error.
#
# | | |
# |---|---|
# | call | `reduce_from(x, comm)` |
# | `x` | a tensor of 0 to 4 dimensions, a different one on each rank |
# | returns | the sum of all ranks' `x`, the same on every rank |
# | backward | the gradient that comes in is the gradient of the sum, the same on every rank |
# | backward of backward | each rank goes on with x's gradient on its own; what all ranks say of it is summed, for the gradient that came in |
# | cost | one all-reduce in forward; no message in backward; one all-reduce in the backward of backward |
#
# About 8 lines.
#
# <details><summary>Hint</summary>
#
# Everything downstream is whole: every rank computes the same loss, and the same gradient of the sum. If y = x₀ + x₁ and x₁ grows by 1, so does y. And in `backward` a whole gradient is handed to each rank's own part, as *x* is at the entrance of a split layer: which of your operators does that? PyTorch differentiates what `backward` is made of.
#
# </details>


# %% nbgrader={"grade_id": "reduce_from", "solution": true}
def reduce_from(x, comm):
    """g: all-reduce forward, f backward."""
    ### BEGIN SOLUTION
    return Reduce.apply(x, comm)


class Reduce(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return all_reduce_(comm, x.clone())

    @staticmethod
    def backward(ctx, grad):
        return copy_to(grad, ctx.comm), None

    ### END SOLUTION


# %% nbgrader={"grade_id": "reduce_from_test", "points": 1}
check.reduce_from(reduce_from)

# %% [markdown] nbgrader={"grade_id": "reduce_from_target"}
# **Target:** each operator sends 6,000 bytes to the right, 2 · 3/4 of its 4,000: *f* in backward, *g* in forward.


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


rows = []
with check.limit(10):
    for name, operator in {"f, copy_to": copy_to, "g, reduce_from": reduce_from}.items():
        forward = sent(operator, False)
        rows.append((name, forward, sent(operator, True) - forward))
study.table(
    rows,
    ["", "bytes forward", "bytes backward"],
    title="Your operators on 4 ranks, 4,000 bytes: rank 0 sends",
)

# %% [markdown] nbgrader={"grade_id": "row_linear_spec"}
# ## 3 · A linear layer, split by its inputs (2 points)
#
# The layer computes $Y = XA^T + b$, and rank *r* has some of the inputs: columns of *X*, and the same columns of *A*. The bias *b* is whole on every rank. A rank may have more inputs than another.
#
# | | |
# |---|---|
# | call | `row_linear(x, weight, bias, comm)` |
# | `x` | (…, inputs of this rank), of 1 to 4 dimensions |
# | `weight` | (outputs, inputs of this rank) |
# | `bias` | (outputs,), the same on every rank, and to stay so |
# | returns | *Y*, (…, outputs), whole on every rank |
# | cost | one all-reduce of *Y* in forward, nothing in backward |
#
# **Invariant:** *Y*, and after backward the gradients of `x`, `weight` and `bias`, are the serial layer's (of `x` and `weight`, this rank's part). So every rank's copy of the bias takes the same step. About 2 lines.
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
# **Target:** 21 + 100, whatever *n* is. With the bias added on every rank, it would grow with *n*.


# %%
def one_output(comm):
    # 1 … 6, weights of 1: the sum is 21
    mine = torch.arange(1.0, 7.0).tensor_split(comm.size)[comm.rank]
    return row_linear(mine, torch.ones(1, len(mine)), torch.tensor([100.0]), comm).item()


with check.limit(10):
    found = {f"{n} rank{'s' * (n > 1)}": World(n).run(one_output)[0] for n in (1, 2, 3, 6)}
study.bars(
    found,
    target=121,
    note="serial",
    title="1 + 2 + … + 6, and a bias of 100",
)

# %% [markdown] nbgrader={"grade_id": "mlp_spec"}
# ## 4 · An MLP with one all-reduce each way (3 points)
#
# Two linear layers with the tanh form of GELU between them. The first is split by its outputs, the second by its inputs. Now all four parameters are there, and ranks may have different numbers of features.
#
# | | |
# |---|---|
# | call | `mlp(x, fc, fc_bias, proj, proj_bias, comm)` |
# | `x` | (B, T, H), the same on every rank |
# | `fc`, `fc_bias` | this rank's features: (F, H) and (F,), together 4H features; F may differ from rank to rank |
# | `proj` | (H, F), this rank's columns |
# | `proj_bias` | (H,), the same on every rank, and to stay so |
# | returns | (B, T, H), whole on every rank |
# | cost | **one all-reduce of (B, T, H) in forward, one in backward** |
#
# **Invariant:** the output and all five gradients are the serial MLP's (of `fc`, `fc_bias` and `proj`, this rank's part). GELU is `F.gelu(h, approximate="tanh")`. About 3 lines, with your *f* and *g*.
#
# <details><summary>Hint</summary>
#
# Where are data whole, and read by parts? There stands *f*. Where are results partial? There stands *g*. Nowhere else is anything to be said, since GELU works on each feature alone.
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
# **Target:** four steps. Two are the all-reduce of forward (a reduce-scatter and an all-gather), two are the one of backward.


# %%
def both_ways(comm):
    n, draw = comm.size, torch.Generator().manual_seed(0)
    x, fc, proj = (torch.randn(*shape, generator=draw) for shape in ((1, 4, 8), (32, 8), (8, 32)))
    part = [fc.chunk(n)[comm.rank], torch.zeros(32 // n), proj.chunk(n, 1)[comm.rank]]
    mlp(
        x.requires_grad_(), *(w.clone().requires_grad_() for w in part), torch.zeros(8), comm
    ).sum().backward()


world = World(2)
with check.limit(10):
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
# GPT-2 keeps queries, keys and values in one matrix of 3H rows: first all of Q, then all of K, then all of V. In each third head 0 comes first, then head 1, and so on. You load such a weight and give each rank its heads.
#
# | | |
# |---|---|
# | call | `my_heads(weight, heads, comm)` |
# | `weight` | (3H, …): the matrix (3H, H), or the bias (3H,); the same on every rank |
# | `heads` | how many there are, a divisor of H |
# | returns | (3H/n, …): of Q the rows of this rank's heads, then those of K, then those of V; a copy |
# | raises | `ValueError` if n does not divide `heads`; its text has both numbers |
# | cost | no message |
#
# Rank *r* has the heads from r·(heads/n) up to the next rank's first. **A copy**, on a single rank too: a view would keep all 3H rows in memory. About 5 lines.
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
with check.limit(10):
    parts = World(3).run(lambda comm, rows: my_heads(rows, 6, comm), torch.arange(18))
mine = [part.tolist() for part in parts]
study.holdings(
    {"your parts": [[names[row] for row in part] for part in mine]},
    owner=lambda word: int(word[1]) // 2,
    title="18 rows, 6 heads, 3 ranks",
)

# %% [markdown] nbgrader={"grade_id": "sequence_pair_spec"}
# ## 6 · The sequence-parallel pair (3 points)
#
# An all-reduce is a reduce-scatter followed by an all-gather. Between two split layers one can stop half-way: every rank keeps its part of the *sequence*, and norms and dropout work on that. The lesson gave the rule for the backward of such operators, and you write them.
#
# | | |
# |---|---|
# | call | `gather_sequence(x, comm)` and `reduce_scatter_sequence(x, comm)` |
# | the first | (B, T/n, H), a part on each rank → (B, T, H), all parts in rank order |
# | the second | (B, T, H), a summand on each rank → (B, T/n, H), this rank's part of the sum |
# | backward | of each is the other's forward |
# | cost | each is half an all-reduce in forward and half in backward, n−1 messages each way |
#
# Dimension 1 is the sequence, and n divides T; B may be anything. About 18 lines.
#
# <details><summary>Hint</summary>
#
# `all_gather(comm, x)` and `reduce_scatter(comm, x)` work along dimension 0, and return new tensors: take `x.transpose(0, 1).contiguous()` before, and `.transpose(0, 1)` after. Write two functions for the messages, and two classes that exchange them.
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
# **Target:** the same bytes in both rows, and a quarter of what is held.


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
    with check.limit(10):
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
# A transformer layer with H = 8,192 on 4 ranks of a node, one sequence of T = 4,096 tokens, in bf16 (2 bytes). All links have α = 5 µs and β = 1/(300 GB/s). The layer runs forward and backward, with *f* and *g* and ring all-reduces.
#
# - `messages`: how many does each rank send?
# - `nbytes`: how many bytes does each rank send?
# - `seconds`: how long do the all-reduces take?
# - `row_first`: take an MLP block with *both* layers split by inputs. How many bytes does each rank send in *forward*, for that block alone?
# - `heads`: the layer gets twice as many heads, each half as wide. What does `nbytes` become?
# - `sequence`: with sequence parallelism, what does `nbytes` become? (Leave out the gradients of biases and norms.)
# - `weights`: how many bytes of matrices does each rank hold?
#
# Write numbers or formulas that are right within 1 %.

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
# **Target:** your numbers beside those of a World, on tensors without numbers.


# %%
def layer(comm):
    """The shell of a layer: two blocks, f … g each."""
    x = torch.empty(1, 4096, 8192, dtype=torch.bfloat16, device="meta", requires_grad=True)
    for _ in range(2):
        x = reduce_from(copy_to(x, comm), comm)
    x.sum().backward()


world = World(4, alpha=5e-6, beta=1 / 300e9, device="meta")
with check.limit(10):
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
# A layer norm on a part of the sequence: every rank normalizes its own tokens. The next cell was found in somebody's code. Its outputs are right.


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
# Copy the function, and repair it with one of your operators.
#
# | | |
# |---|---|
# | call | `sequence_norm(x, weight, bias, comm)` |
# | `x` | (B, T/n, H), this rank's tokens |
# | `weight`, `bias` | (H,), the same on every rank, and to stay so |
# | returns | (B, T/n, H), with the epsilon of `F.layer_norm` |
# | cost | nothing in forward; in backward 2 all-reduces of H numbers |
#
# **Invariant:** the gradients of `weight` and `bias` are those of *all* tokens, on every rank; the gradient of `x` is that of this rank's tokens.
#
# <details><summary>Hint</summary>
#
# `weight` is whole on every rank, and it is used on a part of the data. Who needs the sum of what all ranks say of it?
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
# **Target:** no difference, bit for bit. In exercise 3 the bias needed no *f*. What is different there?

# %%
with check.limit(10):
    repaired = World(3).run(training, sequence_norm)
study.bars(
    {"broken": max(map(max, broken)), "repaired": max(map(max, repaired))},
    title="Largest difference between copies in 10 steps",
)

# %% [markdown] nbgrader={"grade_id": "how_many_gpus_spec"}
# ## 9 · How many GPUs should a layer have? (2 points, graded by hand)
#
# A layer of LLaMA-2 70 B is 8,192 wide, one of the 7 B model is 4,096 wide. Forward and backward of a layer take 72·T·H² FLOPs (we count its matrices as 12H² weights, and leave out attention's own products). Take T = 4,096 tokens, bf16, and modelled GPUs that reach 600 TFLOP/s; a node has 8 of them, with α = 3 µs and 400 GB/s between them, and between nodes it is 15 µs and 50 GB/s. Each of the four all-reduces of a layer is a ring, which is as slow as its slowest link, and nothing overlaps.
#
# **Up to how many GPUs, of 1, 2, 4, 8, 16, does doubling them still make a layer at least 1.6 times as fast?** Answer for both models.
#
# First draw the time of a layer against n, for both models, with the parts of which it consists. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which both numbers can be read; and both numbers |
# | ½ | why the narrower layer gains less from the same number of GPUs, by the ratio of talking to computing; and whether longer sequences would help |
# | ½ | one reason to use more GPUs for a layer than your number says, or fewer, which a plot of times does not show |

# %% nbgrader={"grade_id": "how_many_gpus_plot", "solution": true}
### BEGIN SOLUTION
ns = [1, 2, 4, 8, 16]
TOKENS = 4096


def computing_ms(n, hidden):
    return 1e3 * 72 * TOKENS * hidden**2 / (n * 600e12)


def talking_ms(n, hidden):
    alpha, bandwidth = (3e-6, 400e9) if n <= 8 else (15e-6, 50e9)
    nbytes = TOKENS * hidden * 2
    return 1e3 * 4 * 2 * (n - 1) * (alpha + nbytes / n / bandwidth)


lines = {}
for name, hidden in {"70 B": 8192, "7 B": 4096}.items():
    computing = [computing_ms(n, hidden) for n in ns]
    talking = [talking_ms(n, hidden) for n in ns]
    total = [c + t for c, t in zip(computing, talking)]
    lines[f"{name}, a layer"] = ns, total
    lines[f"{name}, computing"] = ns, computing
    lines[f"{name}, all-reduces"] = ns[1:], talking[1:]
    gains = [f"{before / after:.2f}" for before, after in pairwise(total)]
    print(f"{name}: with each doubling a layer is", ", ".join(gains), "times as fast")
study.curves(
    lines,
    logx=True,
    logy=True,
    yunit="ms",
    xlabel="GPUs, 8 in a node",
    ylabel="forward and backward",
    title="A layer of two models",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "how_many_gpus", "solution": true, "points": 2}
# Eight GPUs for a layer of the 70 B model, and four for one of the 7 B model.
#
# Computing falls as 1/n. The all-reduces grow, from 0.7 ms on two GPUs to 1.3 ms on eight for the wide layer, and hardly any more after that, as long as the links stay the same. For the wide layer the third doubling still makes a layer 1.7 times as fast, for the narrow one only 1.5 times. The fourth crosses into a second node, where a ring waits for its slowest link, and makes either layer several times as slow.
#
# The ratio of talking to computing is (n−1)·b·β·F/(9H), apart from latencies. It is inversely proportional to H: half the width computes a quarter and sends a half. On eight GPUs it is a third for the wide layer, and nearly three quarters for the narrow one (with latencies). Longer sequences lengthen both times alike and would not help, except against the latencies, which are a small part here.
#
# Memory is a reason for more GPUs: a model whose weights, gradients and optimizer states do not fit on n cards needs more than n, however little time is saved. A reason for fewer is that GPUs which are not needed for a layer can take other samples: data parallelism talks once a step, and can hide it behind the backward.
