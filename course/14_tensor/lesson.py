# %% [markdown]
# # 14 · Tensor parallel
#
# GPT-3 is a stack of 96 layers, and a single one of them has 1.8 billion weights. On one H100 its forward and backward take 39.4 ms for a sequence of 2,048 [tokens](term:token); on the eight GPUs of a node, with every matrix cut into eight pieces, they take 7.3 ms. (All times in this lesson are modelled.) You are given a second node of the same kind and cut every matrix into sixteen. **How many milliseconds does the layer take on 16 GPUs?**

# %%
guess = 4.0  # ms: change this number

# %% [markdown]
# ## When one layer is too much
#
# The techniques so far leave a layer in one piece. [Data parallelism](term:data-parallel) gives every [rank](term:rank) a copy of the whole model and a part of the batch. [ZeRO](lesson:zero) stores a layer's weights in pieces, but brings them together again whenever the layer is computed. Neither helps with *one sequence*: some rank has to take it through the whole layer, hold all the [activations](term:activation) in between, and do all the arithmetic. Adding ranks adds samples, and a batch cannot grow without limit.
#
# [Tensor parallelism](term:tensor-parallel) cuts the matrices themselves. Each rank holds a part of every weight, all the time, and multiplies with its part only. Weights, gradients, [optimizer states](term:optimizer-states), most activations and nearly all of the arithmetic are divided by *n*, for a single sequence as well. The price is that ranks now have to talk *inside* every layer, in the middle of the computation. So everything depends on cutting in such a way that they talk as little as possible.
#
# ## On paper: 3 ranks, 6 numbers
#
# Take a tiny network of two layers. The first makes six numbers, which happen to be 1 to 6. They are squared. The second layer adds them up, and the result is 91.
#
# Give each of three ranks two *outputs* of the first layer. Squaring a number takes no knowledge of its neighbours, so each rank squares its own two. Of the second layer give each rank the weights of exactly those two *inputs* that it has: it adds up two squares. The ranks then hold 5, 25 and 61, and only now is something missing: one sum over the ranks, which is an [all-reduce](term:all-reduce) of a single number.

# %%
import torch
import torch.nn.functional as F
from IPython.display import display

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World

outputs = torch.arange(1, 7).chunk(3)  # of the first layer: two for each rank


def two_layers(comm):
    squares = outputs[comm.rank] ** 2  # needs no other rank
    partial_sum = squares.sum()[None]  # the second layer, on the inputs that are here
    return all_reduce_(comm, partial_sum)


sums = World(3).run(two_layers)
squares = [[f"{number}²" for number in own.tolist()] for own in outputs]
study.holdings(
    {
        "first layer": outputs,
        "squared": squares,
        "second layer": [["+".join(own)] for own in squares],
        "after the all-reduce": sums,
    },
    owner=lambda word: (0, 1, 2) if word == "91" else (int(word[0]) - 1) // 2,
    title="Two layers and one sum, on 3 ranks",
)

# %% [markdown]
# Now turn the order round. The *first* layer adds up the six numbers, and the result is squared: $21^2 = 441$. A rank that has two of the inputs holds only a summand: 3, 7 or 11. May it square that? The squares are 9, 49 and 121, and their sum is 179. It is not 441, because the square of a sum is not the sum of the squares. The ranks must add up *before* they square, and then, since the second layer again has its inputs in pieces, add up a second time.
#
# **A sum has to be whole before anything that is not linear.** The whole lesson follows from this sentence.
#
# ## Two ways to cut a matrix
#
# A linear layer computes $Y = XA$, where *X* has a row for each token, and each column of *A* makes one output.
#
# ![A matrix product on two ranks. Cut by columns, each rank needs the whole x and gets half of the columns of the result, without a message. Cut by rows, each rank needs only its half of the columns of x and gets a summand of the whole result; an all-reduce adds the summands.](../course/14_tensor/figures/columns_and_rows.svg)
#
# *By columns*: give each rank some of the outputs. It needs the whole *X*, and what it computes is final: some columns of *Y*. *By rows*: give each rank some of the inputs. It needs only the columns of *X* that meet its rows of *A*, but what it computes is a [partial result](term:partial-result), a tensor of the full size that still has to be added to those of the other ranks.
#
# **Why this is right.** One number of the result is $Y_{tj} = \sum_i X_{ti}A_{ij}$. Cutting by columns deals out the values of *j*, and the formula for one *j* does not mention any other. Cutting by rows deals out the values of *i*, and a sum over *i* may be done in parts.
#
# In PyTorch a linear layer stores its weight transposed, as (outputs, inputs). So "by columns" cuts dimension 0 of `weight`, and "by rows" dimension 1. It is a constant source of confusion, and the names below say *outputs* and *inputs* for this reason.


# %%
def by_outputs(comm, x, weight):
    """Columns: the whole x to some of the outputs."""
    own = weight.chunk(comm.size, 0)[comm.rank]  # (outputs/n, inputs)
    return F.linear(x, own)  # (B, outputs/n)


def by_inputs(comm, x, weight):
    """Rows: some of the inputs to a summand of the whole output."""
    own_x = x.chunk(comm.size, -1)[comm.rank]  # (B, inputs/n)
    own = weight.chunk(comm.size, 1)[comm.rank]  # (outputs, inputs/n)
    return F.linear(own_x, own)  # (B, outputs), to be added up


generator = torch.Generator().manual_seed(14)


def draw(*shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


x = draw(4, 6)
weight = draw(9, 6)
right = F.linear(x, weight)
columns = World(3).run(by_outputs, x, weight)
rows = World(3).run(by_inputs, x, weight)
print("columns side by side are the result:", torch.allclose(torch.cat(list(columns), 1), right))
print("summands added up are the result:  ", torch.allclose(sum(rows), right))

# %% [markdown]
# ## An MLP: columns, then rows
#
# The MLP of a transformer is two linear layers with a nonlinear function between them, GELU. The first widens the *H* features of a token to 4*H*, the second brings them back to *H*. Since GELU works on each number by itself, it is the squaring of our example, and we know which order is good: first by columns, then by rows. What the first layer leaves on a rank is just what the second one wants to read.
#
# The other order works too, if one is careful: with the first layer cut by rows, the 4*H* features are partial and must be added up before GELU. And what of cutting both layers by columns? Then the features have to be gathered before the second layer, which costs messages in the same place.


# %%
def columns_first(comm, x, fc, proj):
    hidden = F.gelu(by_outputs(comm, x, fc))  # (B, 4H/n), final
    own_proj = proj.chunk(comm.size, 1)[comm.rank]
    return all_reduce_(comm, F.linear(hidden, own_proj))  # (B, H)


def rows_first(comm, x, fc, proj):
    hidden = by_inputs(comm, x, fc)  # (B, 4H), a summand
    hidden = F.gelu(all_reduce_(comm, hidden))  # must be whole before GELU
    return all_reduce_(comm, by_inputs(comm, hidden, proj))  # (B, H)


def rows_first_too_late(comm, x, fc, proj):
    hidden = F.gelu(by_inputs(comm, x, fc))  # GELU of a summand
    return all_reduce_(comm, by_inputs(comm, hidden, proj))


# %% [markdown]
# Before you run them: both good versions give the serial result. **How many times as many bytes does "rows first" send as "columns first"?**

# %%
guess_bytes = 2  # times: change this number

# %%
x = draw(32, 24)
fc = draw(96, 24) / 5
proj = draw(24, 96) / 10
serial = F.linear(F.gelu(F.linear(x, fc)), proj)


def difference(found, right):
    """How far off, relative to the size of the right tensor, in words."""
    error = float((found - right).norm() / right.norm())
    return "below 1e-12" if error < 1e-12 else f"{error:.0%}"


rows = []
sent = []
for way in (columns_first, rows_first, rows_first_too_late):
    found = World(4).run(way, x, fc, proj)
    sent.append(found.trace.bytes_sent(0))
    rows.append((way.__name__, difference(found[0], serial), sent[-1]))

# %% tags=["answer"]
study.reveal(
    guess_bytes,
    sent[1] / sent[0],
    study.table(
        rows,
        ["forward on 4 ranks", "off by", "bytes that a rank sends"],
        title="Three ways through an MLP",
    ),
    unit="times",
    words="The output has B·H numbers, but the features have 4·B·H: rows first sends 4 + 1 times as much. "
    "Without the sum before GELU it is cheap again, and wrong.",
)

# %% tags=["maintainer"]
assert sent[1] == 5 * sent[0] and rows[0][1] == rows[1][1] == "below 1e-12" and "%" in rows[2][1]

# %% [markdown]
# So columns first it is, as Megatron-LM does it ([Shoeybi et al. 2019](paper:shoeybi2019)): one all-reduce for two layers, and of the narrow tensor.
#
# ## Backward: f and g
#
# Forward is done. For the backward pass we have to look closely, because autograd runs on each rank separately and knows nothing of other ranks. Two places need care, and both can be seen with single numbers.
#
# **Where a whole tensor enters the cut layer.** Let *x* be one number, the same on two ranks. Rank 0 multiplies it by 2, rank 1 by 5, and the results are added: $y = 2x + 5x = 7x$. The derivative is 7. But rank 0's autograd has seen only its own use of *x* and says 2, and rank 1's says 5. Nobody has 7 unless the ranks add up what they have. So at this place there must be an [operator](term:operator) that does nothing in forward and *all-reduces in backward*. Megatron calls it *f*.
#
# **Where partial results are added up.** Let $y = s_0 + s_1$. If $s_0$ grows by 1, so does *y*: the derivative with respect to either summand is 1 times the gradient of *y*. That gradient is already on both ranks, because everything after the sum is computed alike on both. So this operator all-reduces in forward and does *nothing in backward*. It is called *g*.
#
# ![An MLP on two ranks: the first matrix cut by columns, the second by rows. In forward, f hands x to both ranks without a message, each computes half of the features and a partial result, and g adds these by an all-reduce. In backward g hands the gradient on without a message, and f adds the two gradients of x by an all-reduce.](../course/14_tensor/figures/column_row.svg)
#
# **Why they mirror each other.** Write what happens as matrices. On two ranks *f* takes *x* to the pair (*x*, *x*): it is two identity matrices on top of each other. *g* takes a pair to its sum: it is two identity matrices side by side. Each is the transpose of the other. The backward of a linear map is the multiplication by its transpose, so the backward of *f* is what *g* does in forward, and the other way round. Such a pair is called [conjugate](term:conjugate-operators). You can use this as a recipe: whenever data change between whole, split and partial, write the change down as a matrix, and its transpose is the backward.
#
# In PyTorch such an operator is a `torch.autograd.Function` with two static methods. `ctx` carries what backward will need; backward returns a gradient for each argument of forward, and `None` for those that are not tensors.


# %%
class Copy(torch.autograd.Function):
    """f: a whole tensor goes into a cut layer."""

    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)  # a new tensor for autograd, the same memory

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None  # in place, so on a copy


class Reduce(torch.autograd.Function):
    """g: partial results become whole."""

    @staticmethod
    def forward(ctx, x, comm):
        return all_reduce_(comm, x.clone())

    @staticmethod
    def backward(ctx, grad):
        return grad, None


# %% [markdown]
# The split MLP with both of them looks like the serial one. For what comes next it takes *f* and *g* as arguments, so that we can leave one out or replace it by a wrong one. The wrong *g* is the one that people write first: "it sums in forward, so it surely sums in backward".


# %%
class ReduceBothWays(Reduce):
    """A common mistake."""

    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return all_reduce_(comm, x.clone())

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None


def no_f(x, comm):
    return x


def split_mlp(comm, x, fc, proj, f=Copy.apply, g=Reduce.apply):
    hidden = F.gelu(by_outputs(comm, f(x, comm), fc))  # (B, 4H/n)
    own_proj = proj.chunk(comm.size, 1)[comm.rank]
    return g(F.linear(hidden, own_proj), comm)  # (B, H)


def gradients(comm, x, fc, proj, **operators):
    x, fc, proj = (tensor.clone().requires_grad_() for tensor in (x, fc, proj))
    split_mlp(comm, x, fc, proj, **operators).square().sum().backward()
    # A rank has the gradient of its part of a weight, and zeros elsewhere: the sum puts them together.
    return [x.grad, all_reduce_(comm, fc.grad), all_reduce_(comm, proj.grad)]


# %% [markdown]
# **Without *f*, which gradients are wrong: those of x, of the first weight `fc`, or of the second weight `proj`?**

# %%
guess_wrong = ["x", "fc", "proj"]  # delete those that are right

# %%
oracle = World(1).run(gradients, x, fc, proj)[0]
cases = {
    "f and g": {},
    "without f": {"f": no_f},
    "g sums in backward too": {"g": ReduceBothWays.apply},
}
rows = []
for name, operators in cases.items():
    found = World(4).run(gradients, x, fc, proj, **operators)[0]
    rows.append([name] + [difference(a, b) for a, b in zip(found, oracle)])

# %% tags=["answer"]
study.reveal(
    guess_wrong,
    ["x"],
    study.table(
        rows,
        ["on 4 ranks", "x", "fc", "proj"],
        title="How far are the gradients from the serial ones?",
    ),
    words="A rank's own weights need only what the rank itself has seen. The mistake shows in the gradient of x, "
    "that is, in whatever comes before this layer.",
)

# %% tags=["maintainer"]
good = "below 1e-12"
assert rows[0][1:] == [good] * 3 and rows[1][2:] == [good] * 2 and rows[1][1] != good
assert rows[2][1:] == ["300%"] * 3

# %% [markdown]
# The table tells you how to recognise both mistakes. A *g* that sums twice makes gradients that are 300 % off, that is, four times too large on four ranks: **a factor of *n* is a sum too many.** (`torch.distributed.nn.functional.all_reduce` behaves like this, and is not wrong: it assumes that each rank has a loss of its own, and that the sum of them all counts. Here all ranks compute the *same* loss, and it counts once.)
#
# A missing *f* is harder to find, because the layer itself looks healthy. Let us stack six of these MLPs, each with a residual connection around it, all without *f*, and look at the gradient of each layer.


# %%
def deep(comm, x, fc, proj, f):
    first_weights = [fc.clone().requires_grad_() for _ in range(6)]
    for weight in first_weights:
        x = x + split_mlp(comm, x, weight, proj, f=f)
    x.square().sum().backward()
    return [all_reduce_(comm, weight.grad) for weight in first_weights]


with_f = World(4).run(deep, x, fc, proj, Copy.apply)[0]
without = World(4).run(deep, x, fc, proj, no_f)[0]
off = {}
for layer, (wrong, good) in enumerate(zip(without, with_f), 1):
    off[f"layer {layer}"] = round(100 * float((wrong - good).norm() / good.norm()), 1)
study.bars(off, unit="%", title="Without f: how far off is each layer's gradient?")

# %% tags=["maintainer"]
assert off["layer 6"] == 0 and 80 < off["layer 1"] < 100

# %% [markdown]
# The last layer's gradient is exact, and the first layer's is hardly its own any more. The residual path carries the complete gradient past every layer and keeps training alive: the loss may well go on falling, only less than it should. Nothing complains. When you compare a parallel run with a serial one, **look at the gradients from the last layer to the first: the fault lies just after the first one that is wrong.**
#
# ## The bias, once
#
# The second layer has a bias, and it belongs to the whole output, not to a summand. Adding it on every rank before the sum adds it *n* times. There are several ways to repair this. **Which of the four gives both the right output and the right gradient on all ranks?**

# %%
guess_bias = "divided by n"  # or "on every rank", "on rank 0", "once, after g"


# %%
def with_bias(comm, bias, way):
    bias = bias.clone().requires_grad_()
    partial = torch.zeros(len(bias))
    if way == "on every rank":
        y = Reduce.apply(partial + bias, comm)
    elif way == "divided by n":
        y = Reduce.apply(partial + bias / comm.size, comm)
    elif way == "on rank 0":
        y = Reduce.apply(partial + bias * (comm.rank == 0), comm)
    else:
        y = Reduce.apply(partial, comm) + bias
    y.sum().backward()
    return y[0].item(), bias.grad[0].item()


rows = []
for way in ("on every rank", "divided by n", "on rank 0", "once, after g"):
    found = World(4).run(with_bias, torch.ones(3), way)
    rows.append([way, found[0][0]] + [gradient for _, gradient in found])

# %% tags=["answer"]
study.reveal(
    guess_bias,
    "once, after g",
    study.table(
        rows,
        ["a bias of 1", "output", "gradient, rank 0", "rank 1", "rank 2", "rank 3"],
        title="All of these should be 1",
    ),
    options=["on every rank", "divided by n", "on rank 0", "once, after g"],
    words="Divided by n, each copy gets a quarter of the gradient and learns too slowly. "
    "On rank 0 alone, the copies part after the first step.",
)

# %% tags=["maintainer"]
assert rows[3][1:] == [1.0] * 5 and all(set(row[1:]) != {1.0} for row in rows[:3])

# %% [markdown]
# Added after *g*, the bias is used in the same way on every rank, and the gradient that it receives is whole. All copies take the same, right step, without a message. The first layer's bias needs no such care, because it is cut together with the outputs that it belongs to.
#
# ## Attention, by heads
#
# Attention mixes tokens: each token makes a *query*, a *key* and a *value*, compares its query with the keys of earlier tokens, and takes a weighted mean of their values. It does this several times side by side, in [heads](term:attention-head), each with its own small queries, keys and values. At the end one more matrix, the output projection, mixes the heads' results.
#
# ![Attention with four heads on two ranks. The matrix for queries, keys and values is cut by columns, so that rank 0 has heads 0 and 1, rank 1 heads 2 and 3. Each computes its heads on all tokens without a message. The output matrix is cut by rows: each rank multiplies its heads' results by its rows, and g adds the two summands.](../course/14_tensor/figures/heads.svg)
#
# Heads do not look at each other until that last matrix. So they play the part that the features play in the MLP: what happens to a head between the two matrices, softmax included, needs nothing from other heads. Cut the first matrix by columns, head by head, and the output projection by rows. Again there is one *f* before and one *g* after.


# %%
def split_attention(comm, x, qkv, proj):
    """qkv (heads, 3, H/heads, H): the query, key and value rows of each head. proj (H, H)."""
    own = qkv.chunk(comm.size)[comm.rank]  # (heads/n, 3, H/heads, H)
    x = Copy.apply(x, comm)  # f
    query = torch.einsum("bth,ash->bats", x, own[:, 0])  # (B, heads/n, T, H/heads)
    key = torch.einsum("bth,ash->bats", x, own[:, 1])
    value = torch.einsum("bth,ash->bats", x, own[:, 2])
    y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    y = y.transpose(1, 2).flatten(2)  # (B, T, H/n): this rank's heads side by side
    own_proj = proj.chunk(comm.size, 1)[comm.rank]
    return Reduce.apply(F.linear(y, own_proj), comm)  # g


def attention_and_gradient(comm, x, qkv, proj):
    x = x.clone().requires_grad_()
    y = split_attention(comm, x, qkv, proj)
    y.square().sum().backward()
    return y.detach(), x.grad


arguments = (draw(2, 8, 24), draw(6, 3, 4, 24) / 5, draw(24, 24) / 5)
right = World(1).run(attention_and_gradient, *arguments)[0]
found = World(3).run(attention_and_gradient, *arguments)[2]
for name, a, b in zip(("output", "gradient of x"), found, right):
    print(f"{name}: off by {difference(a, b)}")

# %% [markdown]
# **What breaks.** The queries, keys and values come from one fused matrix, and how its rows are ordered is a matter of taste. Above, the rows of one head lie together. GPT-2 has all of Q first, then all of K, then all of V. Load such a checkpoint and cut it into three equal pieces, and the first rank has every query and no key at all:

# %%
names = [f"{letter}{head}" for letter in "qkv" for head in range(6)]
equal_pieces = [names[6 * rank : 6 * rank + 6] for rank in range(3)]
whole_heads = [[name for name in names if int(name[1]) // 2 == rank] for rank in range(3)]
study.holdings(
    {"3H rows in 3 pieces": equal_pieces, "by heads": whole_heads},
    owner=lambda word: int(word[1]) // 2,
    title="GPT-2's fused weight, 6 heads on 3 ranks: a colour for each owner",
)

# %% [markdown]
# All shapes fit in the first cut, so nothing fails. A model trained from scratch would even learn with it, since the rows mean nothing yet; a loaded one produces rubbish from the first token. In the assignment you will take GPT-2's weight apart correctly.
#
# ## The whole layer, against the serial one
#
# Put together, a transformer layer looks like this. There are two blocks, each with one *f* and one *g*. What lies between the blocks is whole on all ranks; what lies inside is split.
#
# ![A transformer layer on n ranks, from top to bottom: x, layer norm, f, queries keys and values, attention, output projection, g, the residual sum; then layer norm, f, first matrix, GELU, second matrix, g, the residual sum. What lies between the blocks is whole on every rank: 4 N numbers are kept for backward. What lies between f and g is split: 12 N numbers in all, of which each rank keeps a part.](../course/14_tensor/figures/layer.svg)
#
# The library's model knows nothing of ranks. We make a serial `TransformerLayer` on the device `"meta"`, where tensors have shapes and no numbers, and `tensor_parallel_` puts split matrices into it. Parameters keep their serial names. `shard` takes the state dict of a serial layer apart, and `cuts` says along which dimension each parameter is cut. That is all we need for a strict comparison: the output, the gradient of *x* and the gradient of every parameter, on 2, 3 and 4 ranks. With five heads, neither 2 nor 3 nor 4 ranks get equally many; some have a head more.

# %%
from minidist.models import TransformerLayer, seeded_
from minidist.parallel.tensor import gather_from, scatter_to, shard, tensor_parallel_
from minidist.split import cuts


def split_layer(comm, hidden, heads, sequence=False, regather=False, **options):
    serial = TransformerLayer(hidden, heads, device="meta", **options)
    return tensor_parallel_(serial, comm, sequence, regather)


def step(comm, state, x, heads, sequence=False):
    """Output and all gradients of a split layer, put together again."""
    layer = split_layer(comm, x.shape[-1], heads, sequence, dtype=x.dtype)
    layer.load_state_dict(shard(state, layer, comm))
    x = x.clone().requires_grad_()
    # With `sequence` (explained below) a rank has a part of the tokens.
    y = layer(scatter_to(x, comm, 1) if sequence else x)
    if sequence:
        y = gather_from(y, comm, 1)
    y.square().sum().backward()
    found = {"output": y.detach(), "x": x.grad}
    cut = cuts(layer)
    for name, p in layer.named_parameters():
        found[name] = gather_from(p.grad, comm, *cut[name]) if name in cut else p.grad
    return found


serial_layer = seeded_(TransformerLayer(20, 5, dtype=torch.float64), 0)
state = serial_layer.state_dict()
x = draw(2, 12, 20)
x_serial = x.clone().requires_grad_()
y = serial_layer(x_serial)
y.square().sum().backward()
oracle = {"output": y.detach(), "x": x_serial.grad}
for name, p in serial_layer.named_parameters():
    oracle[name] = p.grad


# %%
def worst(found):
    """The largest difference from the serial layer, over all ranks and tensors."""
    differences = []
    for of_rank in found:
        for name, right in oracle.items():
            differences.append(float((of_rank[name] - right).abs().max()))
    return max(differences)


rows = []
for n in (2, 3, 4):
    error = worst(World(n).run(step, state, x, 5))
    rows.append((n, len(oracle), "below 1e-12" if error < 1e-12 else error))
study.table(rows, ["ranks", "tensors compared", "largest difference"], title="Split against serial")

# %% tags=["maintainer"]
assert all(row[2] == "below 1e-12" for row in rows) and len(oracle) == 14

# %% [markdown]
# ## Random numbers
#
# A layer also contains dropout, which sets random elements to zero, and this is where tensor parallelism meets random numbers. There are two rules, and they are opposites. On data that is *whole* on all ranks, all ranks must drop *the same* elements, or the copies are not copies any more. On data that is *split*, each rank must drop *others*, or the same pattern repeats *n* times and there is less chance in it than you think.
#
# `seed_group_` gives all ranks of a group the same random numbers. Inside `split_random` each rank draws numbers of its own, and afterwards everyone goes on as though one number had been drawn.

# %%
from minidist.parallel.tensor import seed_group_, split_random


def masks(comm):
    seed_group_(comm, comm.rank)  # a seed of its own: wrong for whole data
    own = torch.rand(6) > 0.4
    seed_group_(comm, 7)
    same = torch.rand(6) > 0.4
    with split_random(comm):
        different = torch.rand(6) > 0.4
    return own.int(), same.int(), different.int()


own, same, different = zip(*World(3).run(masks))
study.holdings(
    {"whole, wrong": own, "whole, right": same, "split, wrong": same, "split, right": different},
    owner=lambda word: 1 if word == "1" else (),
    title="Six elements on each rank: 1 stays, 0 is dropped",
)

# %% [markdown]
# What does the wrong seed do to a training run? We train a split layer with dropout for eight steps and watch a parameter that every rank holds as a copy, the scale of a layer norm.


# %%
def copies_of_a_norm(comm, same_seed):
    seed_group_(comm, 1 if same_seed else 100 + comm.rank)
    layer = split_layer(comm, 20, 5, dropout=0.1, dtype=torch.float64)
    data = torch.Generator().manual_seed(3)
    history = []
    for _ in range(8):
        batch = torch.randn(2, 12, 20, generator=data, dtype=torch.float64)
        layer(batch).square().mean().backward()
        with torch.no_grad():
            for p in layer.parameters():
                p -= 0.1 * p.grad
        layer.zero_grad()
        history.append(layer.norm_2.weight.detach().clone())
    return history


gaps = {}
for name, same_seed in {"different numbers": False, "same numbers": True}.items():
    ranks = World(3).run(copies_of_a_norm, same_seed)
    distances = [float((a - b).abs().max()) for a, b in zip(ranks[0], ranks[1])]
    gaps[name] = list(range(1, 9)), [max(1e-12, distance) for distance in distances]
study.curves(
    gaps,
    logy=True,
    xlabel="step",
    ylabel="largest difference between ranks 0 and 1",
    title="Copies that should be equal (0 is drawn as 1e-12)",
)

# %% tags=["maintainer"]
assert gaps["same numbers"][1] == [1e-12] * 8 and gaps["different numbers"][1][0] > 1e-6

# %% [markdown]
# With different numbers the copies part at the first step, and no message will ever bring them together again. The library refuses to start like this: its dropout asks whether `seed_group_` was called.

# %%
try:
    World(2).run(lambda comm: split_layer(comm, 20, 5, dropout=0.1)(torch.ones(2, 12, 20)))
except ValueError as why:
    print(why)

# %% [markdown]
# ## Sequence parallel
#
# Look at the picture of the layer again. Between the blocks everything is whole: each rank computes the same layer norms, the same dropout, the same sums, and keeps the same inputs of them for backward. That is *n* times the work and *n* times the memory.
#
# But layer norm and dropout treat each token by itself. So nothing prevents us from dealing out the *tokens* there: rank *r* keeps the *r*-th part of the sequence. This is [sequence parallelism](term:sequence-parallel) ([Korthikanti et al. 2023](paper:korthikanti2023)). Before a block, an [all-gather](term:all-gather) brings the tokens together; after it, the partial results are added up *and* dealt out at once, by a [reduce-scatter](term:reduce-scatter).
#
# ![One half of a transformer layer on two ranks with sequence parallelism. Layer norm and dropout work on half of the tokens each. An all-gather makes the tokens whole before the column-cut matrix; a reduce-scatter after the row-cut matrix adds the summands and leaves half of the tokens on each rank. Backward turns each into the other.](../course/14_tensor/figures/sequence_parallel.svg)
#
# **Why it costs no more bytes.** A [ring all-reduce](term:ring-all-reduce) *is* a reduce-scatter followed by an all-gather. We merely stop half-way, do the layer norm on what we have, and send the second half later. **Why the backward is right.** The recipe from above: gathering and giving to all is one matrix, adding up and dealing out is its transpose. So the backward of each is the other.
#
# One thing changes for the norm's own parameters, its scale and shift. They are whole on every rank, but a rank now uses them on its own tokens only, so its gradient is partial. The place where something whole is used by parts is exactly where *f* belongs. Forget it, and outputs are right while the copies of the scale drift apart.
#
# Here is GPT-3's layer on four GPUs of a node, in both ways, on the device `"meta"`. The World charges each operation the time that an H100 would take, which reaches only a part of what its data sheet says: 64 % of 989 TFLOP/s in a large matrix product.

# %%
from minidist.comm import Cluster

CLUSTER = Cluster.dgx_h100(nodes=2)
TOKENS = 2048
HIDDEN = 12288


def gpt3_layer(comm, algorithm="ring", batch=1, sequence=False):
    comm.algorithm = algorithm
    layer = split_layer(comm, HIDDEN, 96, sequence, dtype=torch.bfloat16)
    tokens_here = TOKENS // comm.size if sequence else TOKENS
    x = torch.empty(batch, tokens_here, HIDDEN, dtype=torch.bfloat16, device="meta")
    layer(x.requires_grad_()).sum().backward()


def run(n, **choices):
    """The trace of the layer's forward and backward on n modelled GPUs, and its ms."""
    world = World(n, cluster=CLUSTER, device="meta")
    world.run(gpt3_layer, **choices)
    return world.trace, 1e3 * world.time


whole_trace, whole_ms = run(4)
parts_trace, parts_ms = run(4, sequence=True)
study.timeline(
    {"f and g": whole_trace, "sequence parallel": parts_trace},
    ranks=[0, 1],
    memory=False,
    title="GPT-3's layer on 4 modelled GPUs: the same bytes, in smaller portions",
)

# %% tags=["maintainer"]
assert 0 < whole_ms - parts_ms < 0.4

# %% [markdown]
# Above you count four bursts of messages, two forward and two backward, and in each of them the GPUs stand still. Below there are eight bursts of half the length, and a few short ones in backward for the gradients of biases and norms. The computation below is a little shorter, because a rank's norms see a quarter of the tokens. To see what happens inside a burst, look closely:

# %%
study.viewer(parts_trace, ranks=[0, 1], title="Sequence parallel on 4 modelled GPUs")

# %% [markdown]
# ## Predict the bytes, then count
#
# Let *N* be the bytes of one tensor between the blocks, of shape (*B*, *T*, *H*). A ring all-reduce sends $2\frac{n-1}{n}N$ bytes from each rank. A layer has two blocks, and each block has one all-reduce in forward (*g*) and one in backward (*f*):
#
# $$\text{bytes of a layer} = 4\cdot 2\,\frac{n-1}{n}\,N = 8\,\frac{n-1}{n}\,N.$$
#
# The number of weights does not occur in it at all. To count it in a run, we run two layers and subtract a run of one, so that what happens at the ends drops out.

# %%
N = 8 * 240 * 96 * 4  # B = 8, T = 240, H = 96, fp32
ns = [1, 2, 4]
WAYS = {
    "f and g": {},
    "sequence": {"sequence": True},
    "gather again": {"sequence": True, "regather": True},
}


def stack(comm, count, **options):
    layers = [split_layer(comm, 96, 12, **options) for _ in range(count)]
    tokens_here = 240 // comm.size if options else 240
    x = torch.empty(8, tokens_here, 96, device="meta", requires_grad=True)
    for layer in layers:
        x = layer(x)
    x.sum().backward()


def metered(n, count, **options):
    world = World(n, cluster=CLUSTER, device="meta")
    world.run(stack, count, **options)
    return world.trace


bytes_of_layer = {}
kept_by_layer = {}
for way, options in WAYS.items():
    bytes_of_layer[way] = []
    kept_by_layer[way] = []
    for n in ns:
        one = metered(n, 1, **options)
        two = metered(n, 2, **options)
        bytes_of_layer[way].append(two.bytes_sent(0) - one.bytes_sent(0))
        peaks = [trace.memory[0].at_peak["activations"] for trace in (one, two)]
        kept_by_layer[way].append((peaks[1] - peaks[0]) / N)

study.curves(
    {
        "8 (n−1)/n · N": (ns, [8 * (n - 1) / n * N for n in ns]),
        "10 (n−1)/n · N": (ns, [10 * (n - 1) / n * N for n in ns]),
    },
    points={way: (ns, counted) for way, counted in bytes_of_layer.items()},
    yunit="B",
    xlabel="ranks, n",
    ylabel="bytes that rank 0 sends for a layer",
    title="Predicted lines, counted points",
)

# %% tags=["maintainer"]
for way, factor in {"f and g": 8, "sequence": 8, "gather again": 10}.items():
    for n, counted in zip(ns, bytes_of_layer[way]):
        assert abs(counted - factor * (n - 1) / n * N) <= 0.01 * factor * N

# %% [markdown]
# The points of "f and g" and "sequence" lie on the same line. The third kind, "gather again", is explained by the next question, which is about memory.
#
# Without dropout, a layer keeps 16 *N* for the backward pass. Count them in the picture of the layer: the inputs and outputs of two norms between the blocks, 4 in all; then inside the first block the queries, keys and values (3) and the result of attention (1), and inside the second the features before GELU (4) and after it (4), 12 in all. **Of its 16 *N*, how many does each of four GPUs keep, with *f* and *g*?**

# %%
guess_kept = 4  # in units of N: change this number

# %%
not_divided = {"f and g": 4, "sequence": 2, "gather again": 0}
predicted = {}
for way, whole in not_divided.items():
    predicted[way] = ns, [whole + (16 - whole) / n for n in ns]

# %% tags=["answer"]
study.reveal(
    guess_kept,
    7,
    study.curves(
        predicted,
        points={way: (ns, kept) for way, kept in kept_by_layer.items()},
        xlabel="ranks, n",
        ylabel="activations of a layer, in units of N",
        title="Predicted lines, metered points",
    ),
    unit="N",
    words="4 are whole on every rank, and 12 are divided by 4. The points lie a little above the lines: "
    "a norm also keeps means and deviations, and attention its sums.",
)

# %% tags=["maintainer"]
for way, (_, line) in predicted.items():
    assert all(abs(a - b) <= 0.2 for a, b in zip(kept_by_layer[way], line))

# %% [markdown]
# With *f* and *g* the four tensors around the blocks stay whole, however many ranks there are. Sequence parallelism divides them too, but there is a catch: the column-cut matrix of each block needs its *gathered* input once more in backward, to compute the gradient of its weight. If that tensor is simply kept, 2 *N* remain undivided. The third way keeps a rank's own part only and gathers again in backward: all 16 *N* are divided by *n*, for one more all-gather in each block, a quarter more bytes. Since the product for the gradient of the *input* does not need the gathered tensor, this all-gather can travel while that product runs.
#
# ## When not to use it
#
# Now for the second node. The GPUs of our layer wait for four all-reduces of *N* = 50 MB, each of them a ring, so we predict
#
# $$T = \frac{T_1}{n} + 4\left(2(n-1)\,\alpha + 2\,\frac{n-1}{n}\,N\beta\right),$$
#
# where α and β belong to the slowest link in the ring. Inside a node this is NVLink. A ring through both nodes has two edges that go through a network card.

# %%
ns = [1, 2, 4, 8, 16]
traces = []
times = []
for n in ns:
    trace, ms = run(n)
    traces.append(trace)
    times.append(ms)


def all_reduces_ms(n, hidden=HIDDEN, tokens=TOKENS):
    """Four ring all-reduces of (tokens, hidden) in bf16, on the slowest link."""
    alpha, beta = CLUSTER.link(0, 1) if n <= 8 else CLUSTER.link(0, 8)
    nbytes = tokens * hidden * 2
    return 1e3 * 4 * (2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes * beta)


# %% tags=["answer"]
study.reveal(
    guess,
    round(times[-1], 1),
    [
        study.curves(
            {
                "computing / n": (ns, [times[0] / n for n in ns]),
                "and four all-reduces": (ns, [times[0] / n + all_reduces_ms(n) for n in ns]),
            },
            points={"run": (ns, times)},
            yunit="ms",
            xlabel="GPUs, 8 in a node",
            ylabel="forward and backward",
            title="GPT-3's layer on modelled H100 cards",
        ),
        study.timeline(
            {f"{n} GPUs": trace for n, trace in zip(ns[3:], traces[3:])},
            ranks=[0, 7],
            memory=False,
            title="One node, and two",
        ),
    ],
    unit="ms",
    words="Twice the GPUs, and the layer takes 1.8 times as long: every step of the ring waits for the two slow edges. "
    "The points lie above the line because norms, sums and the adding of chunks are not divided.",
)

# %% tags=["maintainer"]
assert 39.35 < times[0] < 39.45 and 7.2 < times[3] < 7.3 and 1.8 < times[4] / times[3] < 1.9
for n, ms in zip(ns, times):
    assert 0.8 < (times[0] / n + all_reduces_ms(n)) / ms < 1.01

# %% [markdown]
# Would a better algorithm than a ring save the day? The [hierarchical all-reduce](lesson:trees) adds up inside each node first, so that only an eighth of the bytes leaves through each network card.

# %%
rows = []
ratios = []
for batch in (1, 8):
    eight = run(8, batch=batch)[1]
    ring = run(16, batch=batch)[1]
    best = run(16, algorithm="auto", batch=batch)[1]
    ratios.append(eight / best)
    rows.append((batch, f"{eight:.1f}", f"{ring:.1f}", f"{best:.1f}", f"{eight / best:.2f}"))
study.table(
    rows,
    ["sequences", "8 GPUs, ring, ms", "16, ring, ms", "16, hierarchical, ms", "times as fast as 8"],
    title="Two modelled nodes, with the best all-reduce there is",
)

# %% tags=["maintainer"]
assert all(1.3 < ratio < 1.4 for ratio in ratios)

# %% [markdown]
# It is faster than one node now, 1.3 to 1.4 times, for twice the price. And eight sequences instead of one hardly change the ratio. Why is that? Compare the two times. Forward and backward take some $72\,BTH^2$ FLOPs (a layer has $12H^2$ weights in its matrices, a weight costs 2 FLOPs a token in forward and 4 in backward), divided by *n*. With *F* FLOPs a second and *b* bytes a number,
#
# $$\frac{\text{talking}}{\text{computing}} = \frac{8\frac{n-1}{n}\,BTH\,b\,\beta}{72\,BTH^2/(nF)} = \frac{(n-1)\,b\,\beta F}{9H}.$$
#
# *B* and *T* have cancelled: **neither a larger batch nor a longer sequence helps.** What helps is a faster link, fewer ranks, or a wider layer. Move the sliders: at which width does a second node pay, and on PCIe, does a second GPU?

# %%
REACHED = CLUSTER.device.flops[torch.bfloat16] * CLUSTER.device.efficiency
LINKS = {"NVLink": CLUSTER.links["nvlink"], "PCIe": CLUSTER.links["pcie"]}
LINKS["network card"] = CLUSTER.links["nic"]


def talking_over_computing(n, hidden, link):
    return (n - 1) * 2 * LINKS[link].beta * REACHED / (9 * hidden)


def layer_ms(n, hidden, tokens, link):
    """A layer in bf16 on n ranks, all of whose links are alike."""
    computing = 1e3 * 72 * tokens * hidden**2 / (n * REACHED)
    nbytes = 2 * tokens * hidden
    steps = 2 * (n - 1)
    talking = 1e3 * 4 * steps * (LINKS[link].alpha + nbytes / n * LINKS[link].beta)
    return {"computing": computing, "with all-reduces": computing + talking}


print(f"8 GPUs on NVLink: {talking_over_computing(8, HIDDEN, 'NVLink'):.2f}")
print(f"16 GPUs, through network cards: {talking_over_computing(16, HIDDEN, 'network card'):.2f}")
study.explore(
    layer_ms,
    over="n",
    n=[1, 2, 4, 8, 16, 32],
    hidden=[1024, 2048, 4096, 8192, 12288],
    tokens=[512, 2048, 8192, 32768],
    link=list(LINKS),
    labels={"n": "ranks", "hidden": "width H"},
    start={"n": 8, "hidden": 12288, "tokens": 2048, "link": "NVLink"},
    unit="ms",
    logx=True,
    logy=True,
    xlabel="ranks, n",
    ylabel="forward and backward of a layer",
    title="A layer on modelled H100 cards, by the formula",
)

# %% tags=["maintainer"]
assert 0.2 < talking_over_computing(8, HIDDEN, "NVLink") < 0.23
assert 3.5 < talking_over_computing(16, HIDDEN, "network card") < 3.7
narrow = [layer_ms(n, 1024, 2048, "NVLink")["with all-reduces"] for n in (1, 8)]
assert narrow[1] > narrow[0] and round(REACHED / 989e12, 2) == 0.64

# %% [markdown]
# For GPT-3 on NVLink, talking costs a fifth of computing. Through network cards it costs three and a half times as much as computing, and in a layer of width 1,024 even NVLink is too slow: eight ranks take longer than one.
#
# Could one hide the messages behind computation, as [buckets](lesson:buckets) do? In forward, no: the next product needs the sum. In backward there is one chance. The gradient of a *weight* is needed by nobody until the optimizer's step, so it can be computed while *f*'s all-reduce is on its way; Megatron does this. (It then asks you to set `CUDA_DEVICE_MAX_CONNECTIONS=1`, so that the GPU starts the messages and the product in the order in which they were issued, messages first.)
#
# The rules that follow from all this: use tensor parallelism *inside a node, at most*; use it *for wide layers*; and only as much as you need to make the layer fit, since data parallelism talks less. Between nodes, put what talks seldom: a [pipeline](lesson:pipelines) sends *N* bytes once for several layers, and [Hybrid](lesson:hybrid) combines them all.
#
# ## What breaks, in one table
#
# | mistake | what you see |
# |---|---|
# | GELU on a summand | the output is wrong on any *n* above 1 |
# | no *f* | the layer's own gradients are right, those of all earlier layers are wrong |
# | *g* sums in backward as well | gradients are *n* times too large in the last layer, and worse in the layers before it |
# | the bias before *g* | the output depends on *n* |
# | fused q, k, v cut into equal pieces | training works, a loaded checkpoint produces rubbish |
# | different random numbers on whole data | copies drift apart |
# | the same random numbers on split data | nothing, only less randomness |
# | a norm on part of the tokens without *f* | outputs are right, the norms' copies drift apart |
# | whole parameters counted on every rank in a gradient's norm | clipping is too strong, the more so the more ranks |
#
# The last one belongs to the optimizer. A global norm must count what is split once on each rank, and what is whole only once in all.
#
# ## The library's file
#
# All of it is in [minidist/parallel/tensor.py](file:minidist/parallel/tensor.py), in four pieces. First, our `Copy` and `Reduce`. They are `copy_to` and `reduce_from` there, and made, like all such pairs, by one function: `conjugate` applies one map in forward and its transpose in backward. Since that backward is a `Conjugate` again, with the two maps exchanged, gradients have gradients too.

# %%
from minidist.parallel.tensor import Conjugate, copy_to, reduce_from

display(study.source(Conjugate, docstring=False))
display(study.source(copy_to, docstring=False))
study.source(reduce_from, docstring=False)

# %% [markdown]
# `same` returns the tensors as they are, and `summed` all-reduces copies of them. Second, the two linear layers. `sequence` chooses between *f* and the all-gather, and `regather` is "gather again".

# %%
from minidist.parallel.tensor import ColumnLinear, RowLinear

display(study.source(ColumnLinear.forward))
study.source(RowLinear.forward)

# %% [markdown]
# In `RowLinear` the bias is added after *g*, as we found. With `sequence` it goes through an *f* first, because a rank then adds it to its own tokens only: the same reason as for the norm, whose forward is the third piece.

# %%
from minidist.parallel.tensor import SequenceNorm

study.source(SequenceNorm.forward)

# %% [markdown]
# Scale and shift travel as a list, so their gradients share one all-reduce. The fourth piece is what `tensor_parallel_` does to a serial model: it walks through the modules, keeps the blocks' own forward, and exchanges their linear layers, dropouts and norms.

# %%
from minidist.parallel.tensor import split_

study.source(split_, docstring=False)

# %% [markdown]
# `uneven` deals out heads or features as evenly as possible. `groups` are the heads of keys and values, which can be fewer than those of queries; a group stays together. What we have not shown is `GatheredLinear`, the product that gathers again, and `materialize_part_`, which draws a weight's initial values from a seed and its name and keeps this rank's part, so that a split model starts equal to the serial one. PyTorch's own version is `parallelize_module` with the styles `ColwiseParallel`, `RowwiseParallel` and `SequenceParallel`; what other frameworks call them stands in [frameworks.md](file:docs/frameworks.md).
#
# ## In real processes, and on a cluster
#
# The same `step` in four processes, with sequence parallelism:

# %%
from minidist.comm import launch

real = launch(step, 4, state, x, 5, sequence=True)
rows = []
for rank in range(4):
    rows.append((f"rank {rank}", real.trace.messages(rank), real.trace.bytes_sent(rank)))
display(
    study.table(
        rows,
        ["", "messages sent", "bytes sent"],
        title="One step on four processes, and all gradients gathered",
    )
)
print("equal to the serial layer, below 1e-12:", worst(real) < 1e-12)

# %% [markdown]
# One rank sends a little less than the others. Of five heads rank 0 has two, so its part is larger, and in a ring of all-gathers its left neighbour, rank 3, is the one that never has to pass this part on.
#
# [examples/train_tensor.py](file:examples/train_tensor.py) trains a small GPT whose layers are split, and whose vocabulary is split as well, which is the subject of the [next lesson](lesson:vocabulary). It prints the losses of the serial run, on any number of ranks:
#
# ```
# python examples/train_tensor.py --ranks 4 --runner world
# python examples/train_tensor.py --ranks 3 --runner processes
# torchrun --nproc-per-node 4 examples/train_tensor.py
# ```
#
# On many machines tensor parallelism stays in the node, and something else crosses between them. [examples/train_gpt.py](file:examples/train_gpt.py) does so; here with two nodes of four GPUs, data parallel between them. The line is started on both, with the name of one of them in place of HOST:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_gpt.py --dp 2 --tp 4
# ```
#
# ## Takeaways
#
# - Cut the first matrix by its outputs and the second by its inputs: one all-reduce in forward, one in backward. A sum has to be whole before anything that is not linear.
# - *f* stands where whole data are used by parts, *g* where partial results become whole. Each is the transpose of the other. Without *f* everything before the layer learns from a wrong gradient.
# - What belongs to the whole output, such as the second bias, is added once, after *g*.
# - Attention splits by heads. Find out how q, k and v lie in memory before you cut.
# - Dropout draws the same numbers on whole data and different ones on split data.
# - Sequence parallelism sends the same bytes and divides what lies between the blocks; gathering again divides all activations.
# - Each rank sends $8\frac{n-1}{n}N$ bytes a layer, and the computation cannot hide them. Talking over computing is $(n-1)\,b\,\beta F/(9H)$: stay in the node.
#
# ## Further reading
#
# - paper:shoeybi2019 Section 3: columns, rows, f and g.
# - paper:korthikanti2023 Section 4.2: sequence parallelism, and the extra all-gather.
# - paper:narayanan2021 Section 3: tensor parallelism up to the size of a node, pipelines between nodes.
