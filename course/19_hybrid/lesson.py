# %% [markdown]
# # 19 · Hybrid
#
# By now you know four ways to divide a training run: data parallelism divides the batch, tensor parallelism the matrices, a pipeline the layers, and ZeRO whatever several ranks would hold twice. Each has a limit of its own, and a model of 176 billion parameters runs into all four. So large models are trained with several of them at once. This lesson puts them together, and it turns out that they hardly notice each other. The whole difficulty is to decide *which rank does what*.
#
# That decision is worth money. Take eight GPUs in two nodes, and two layers of a GPT of width 4,096. The batch is divided in two, so are the layers, and so are the matrices; each half of the batch has 16,384 tokens. The arithmetic is the same however we number the ranks. In the best numbering, on modelled H100s, a step takes 45.0 ms. **How many milliseconds does the same step take in the worst?** (Keep your guess: the answer comes in *Where to put which axis*.)

# %%
guess_worst = 48.0  # ms: change this number

# %% [markdown]
# ## Why one technique is not enough
#
# Let us count for BLOOM, the model that will be our example, and for the A100s of 80 GB on which it was trained. Mixed precision with Adam keeps 16 bytes for each parameter, as you know from [ZeRO](lesson:zero).

# %%
parameters_of_bloom = 176e9
state_bytes = 16 * parameters_of_bloom
print(f"weights, gradients and optimizer states: {state_bytes / 1e12:.1f} TB")
print(f"that alone fills {state_bytes / 80e9:.0f} GPUs")

# %% [markdown]
# Now try each technique by itself on 384 such GPUs.
#
# - *Data parallelism* wants everything on every GPU. It does not fit, by a factor of 35.
# - *ZeRO 3* would fit. But it moves the whole model three times for every micro-batch, over whatever links there are. And it is still data parallelism: each rank needs at least one sequence of its own, so with 10,000 ranks the batch has at least 10,000 sequences, and [a batch cannot grow without limit](lesson:large_batches).
# - *Tensor parallelism* over 384 ranks would all-reduce two activations forward and two backward for each layer, over the network, and each rank would multiply slivers of matrices. Nor can the 112 heads of BLOOM's attention be dealt out to 384 ranks.
# - *A pipeline* has 70 layers to deal out, so it has at most 70 stages. Their states would fit, but the other 314 GPUs would have nothing to do, and the [bubble](lesson:pipelines) $(S-1)/(M+S-1)$ grows with each stage.
#
# All of these limits concern the *size* of one axis. None of them forbids using a little of each: 8 replicas, each a pipeline of 12 stages, each stage shared by 4 GPUs. That makes 8 · 12 · 4 = 384, and it is how BLOOM was trained. One says [3D parallelism](term:3d-parallelism) for such a product of data, pipeline and tensor.
#
# ## On paper: 8 ranks, one reshape
#
# We need a rule that tells each of 8 ranks its place on three axes. Think of the digits of a number. A clock that shows 1:05 has turned 65 minutes into (1, 5) by division with remainder. In the same way we write
#
# $$\text{rank} = 4\cdot\text{pp} + 2\cdot\text{dp} + \text{tp},$$
#
# where pp is the stage of the pipeline, dp the replica, and tp the part of the matrices, each 0 or 1. (Why tp stands last will be the question of the second half.) To a tensor library this is a *reshape*: `torch.arange(8).view(2, 2, 2)` has the rank number at each place. We call such an arrangement a [grid of ranks](term:grid-of-ranks), or a mesh. The last axis is the *innermost*: its neighbours have neighbouring numbers. The first is the outermost, and its neighbours are far apart.
#
# ![Eight ranks as a box of 2 by 2 by 2. Edges to the right join tensor partners 0 1, 2 3, 4 5, 6 7; edges downwards data partners 0 2, 1 3, 4 6, 5 7; edges into the depth pipelines 0 4, 1 5, 2 6, 3 7.](../course/19_hybrid/figures/box_of_ranks.svg)
#
# Who works with whom? A *group* of an axis is a line of the box: it contains the ranks that differ along this axis *and along no other*. Every rank lies on three lines, so it is in three groups. Before you run the next cells, find the partners of rank 5 in your head: write 5 as (pp, dp, tp), then change one digit at a time.

# %%
guess_partners = {"pipeline": 0, "data": 0, "tensor": 0}  # of rank 5: change these numbers

# %%
import torch

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World


def coordinates(rank):
    """The place of one of 8 ranks: its stage, its replica, and its part of the matrices."""
    pp = rank // 4
    dp = rank // 2 % 2
    tp = rank % 2
    return pp, dp, tp


rows = [(f"rank {rank}", *coordinates(rank)) for rank in range(8)]
study.table(rows, ["", "pp: stage", "dp: replica", "tp: part"], title="Eight ranks on three axes")

# %% [markdown]
# ## An axis is a Comm
#
# A technique does not need to know that there is a grid. Data parallelism, for one, needs a communicator with the ranks that hold the same parameters, and it makes no difference to it whether these are all ranks or every fourth of them. So each axis gets a communicator of its own. `comm.split(color)` makes it: all ranks call it with a number, called the color, and those that gave the same number form a group. Within a group the ranks are numbered anew, from 0, in their old order. So a rank's number in its pipeline group is its stage, and its number in its data group is its replica.
#
# Which color? Ranks of one data group agree in pp and in tp and differ in dp. So the color is made of the *other two* coordinates. Ranks with equal colors then differ along this axis alone, which is exactly the definition of a line.


# %%
def axes_of(comm):
    """This rank's communicator along each axis."""
    pp, dp, tp = coordinates(comm.rank)
    return {
        "pipeline": comm.split(2 * dp + tp),  # equal dp and equal tp: only pp differs
        "data": comm.split(2 * pp + tp),
        "tensor": comm.split(2 * pp + dp),
    }


# %% [markdown]
# To see who is in a group we use the trick from [Messages](lesson:messages): each rank contributes a number that shows in a sum. Rank r gives $2^r$, so the bits of the sum name the members.


# %%
def members(comm):
    """For each axis, the ranks that take part in an all-reduce along it."""
    found = {}
    for axis, group in axes_of(comm).items():
        total = all_reduce_(group, torch.tensor([2**comm.rank])).item()
        found[axis] = [rank for rank in range(8) if total >> rank & 1]
    return found


groups = World(8).run(members)
partners_of_5 = {axis: sum(group) - 5 for axis, group in groups[5].items()}
rows = []
for rank, found in enumerate(groups):
    rows.append((f"rank {rank}", *(str(group) for group in found.values())))

# %% tags=["answer"]
study.reveal(
    guess_partners,
    partners_of_5,
    study.table(rows, ["", "pipeline", "data", "tensor"], title="Who hears whom"),
    words="5 = 4·1 + 2·0 + 1 is (1, 0, 1). Change the first digit: (0, 0, 1) is rank 1. Change the second: (1, 1, 1) is "
    "rank 7. Change the third: (1, 0, 0) is rank 4.",
)

# %% tags=["maintainer"]
assert partners_of_5 == {"pipeline": 1, "data": 7, "tensor": 4}

# %% [markdown]
# The library has a class for this. `Mesh(comm, dp=2, pp=2, tp=2)` works for any sizes, for further axes and for any order, and `mesh.dp`, `mesh.pp` and `mesh.tp` are the three communicators. We shall look into its file later and use it from here on.
#
# ## Three techniques, three Comms
#
# Now the claim that the techniques hardly notice each other. Our model has two residual blocks, $y = x + W_2\,\mathrm{gelu}(W_1 x)$. The picture shows what each rank holds when all three techniques are on: a stage of the layers, a half of the matrices, and a half of the batch. (Its layers 1 and 2 are the two matrices of our first block, and 3 and 4 are the second block's.)
#
# ![Eight ranks. Stage 0 holds layers 1 and 2, stage 1 layers 3 and 4. Even ranks hold the half a of each matrix, odd ranks the half b. Two replicas compute the two halves of the batch.](../course/19_hybrid/figures/who_holds_what.svg)
#
# You have written each line of the next two cells before. In `block`, `copy_to` and `reduce_from` are the operators f and g of [Tensor parallel](lesson:tensor): f passes x on and adds up gradients in the backward, g adds up the partial results in the forward. In `through`, stage 0 sends what it has computed, and gets back the gradient of it, as in [Pipelines](lesson:pipelines).

# %%
from torch.nn.functional import gelu, linear

from minidist.parallel.tensor import copy_to, reduce_from


def block(x, fc, proj, tp):
    """A residual block of which this rank holds some rows of fc and the same columns of proj."""
    hidden = gelu(linear(copy_to(x, tp), fc))  # (b, 4H/t)
    return x + reduce_from(linear(hidden, proj), tp)  # (b, H)


def through(pp, x, part):
    """Forward and backward of one stage of two; x is the batch on stage 0, and room for it on stage 1."""
    if pp.rank == 0:
        y = part(x)
        pp.send(y.detach(), 1)
        gradient = pp.recv(torch.empty_like(y), 1)
        y.backward(gradient)
    else:
        x = pp.recv(torch.empty_like(x), 0).requires_grad_()
        loss = part(x).square().mean()
        loss.backward()
        pp.send(x.grad, 0)


# %% [markdown]
# And `step` puts them together. Read it for the three comments: each technique takes its own axis, and there is no line in which two of them meet.

# %%
from minidist.comm.mesh import Mesh


def step(comm, x, fcs, projs, average_over="dp"):
    """The gradients of this rank's half of one block's matrices, averaged over the replicas."""
    mesh = Mesh(comm, dp=2, pp=2, tp=2)
    stage = mesh.pp.rank
    # tensor: a part of each matrix
    fc = fcs[stage].chunk(2, dim=0)[mesh.tp.rank].clone().requires_grad_()
    proj = projs[stage].chunk(2, dim=1)[mesh.tp.rank].clone().requires_grad_()
    # data: a part of the samples
    samples = x.chunk(2)[mesh.dp.rank]
    # pipeline: a part of the blocks
    through(mesh.pp, samples, lambda x: block(x, fc, proj, mesh.tp))
    for p in (fc, proj):
        all_reduce_(getattr(mesh, average_over), p.grad, "mean")
    return fc.grad, proj.grad


# %% [markdown]
# **Why this is right.** Go from the inside out. The tensor ranks together compute the block's own function, and each has the right gradient for its part: that was the result of [Tensor parallel](lesson:tensor), and it holds for whatever x comes in and whatever gradient comes back. So a stage may be treated as if one rank computed it. The pipeline composes stages: stage 1 sees the x that it would have seen on one rank, and returns the gradient that autograd would have passed on. So a replica may be treated as if one rank computed it, and its gradients are those of its half of the batch. The mean over the replicas is then the gradient of the batch, by the argument of [Data parallel](lesson:data_parallel). At each level we used only *what* the level below computes, never *how*. This is why the techniques can be combined at all, and why each can be tested alone.
#
# The [oracle](term:oracle) is one rank that has everything.

# %%
generator = torch.Generator().manual_seed(15)
x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
fcs = torch.randn(2, 24, 6, generator=generator, dtype=torch.float64) / 3
projs = torch.randn(2, 6, 24, generator=generator, dtype=torch.float64) / 5

whole_fcs = fcs.clone().requires_grad_()
whole_projs = projs.clone().requires_grad_()
y = x
for fc, proj in zip(whole_fcs, whole_projs):
    y = y + linear(gelu(linear(y, fc)), proj)
y.square().mean().backward()


def relative_errors(results):
    """For each rank, how far its gradients are from the serial ones."""
    errors = []
    for rank, (fc_grad, proj_grad) in enumerate(results):
        stage, _, part = coordinates(rank)
        right_fc = whole_fcs.grad[stage].chunk(2, dim=0)[part]
        right_proj = whole_projs.grad[stage].chunk(2, dim=1)[part]
        fc_error = (fc_grad - right_fc).norm() / right_fc.norm()
        proj_error = (proj_grad - right_proj).norm() / right_proj.norm()
        errors.append(max(float(fc_error), float(proj_error)))
    return errors


three = World(8).run(step, x, fcs, projs)
print("equal to one rank within 1e-12:", max(relative_errors(three)) < 1e-12)

# %% [markdown]
# Look into the run. The viewer shows the four ranks of replica 0, and can be zoomed and dragged; point at a message to see who sent it. The tensor pair 0 and 1 talks first, for g in the forward of its block; then each of the two sends its activation to its partner on stage 1. There 4 and 5 talk twice, for g in the forward and for f in the backward, and send the gradient back. (On stage 0 f has nothing to do: nobody asks for the gradient of the samples.) Only at the very end does each rank meet its partner in the other replica, which is not in the picture.

# %%
study.viewer(three, title="One step: the four ranks of replica 0", ranks=[0, 1, 4, 5])

# %% [markdown]
# ## Copies and summands
#
# Real layers also have biases, norms and embeddings, and for these one must ask once more what a rank holds. There are four kinds of parameters, and they differ in *where the missing part of a gradient is*.
#
# ![Four kinds of parameters on two stages of two tensor ranks. Split: each rank its own half. Whole: equal gradients on both tensor ranks. Partial: two summands, added over tensor. Tied: two summands on the first and the last stage, added over the pipeline.](../course/19_hybrid/figures/kinds.svg)
#
# 1. A matrix is *split*. Each tensor rank has the full gradient of its own part. Nothing is missing.
# 2. The bias of the second matrix is added after g, when all tensor ranks hold the same activation. They hold it *whole*, and each computes the same gradient, a *copy*. Nothing is missing here either, and adding the copies up would be a mistake.
# 3. With [sequence parallelism](lesson:tensor) each tensor rank normalizes other tokens. So its gradient of the norm's weight is *partial*: a *summand*, and the sum over the tensor ranks is what one rank would have computed.
# 4. A GPT often uses one matrix twice, as the embedding at the beginning and as the output layer at the end. Such a *tied* matrix lies on the first and on the last stage. Each has a summand, from its own use; the two must exchange them and add. (Addition of *two* numbers gives the same bits in either order, so both ends have the same sum.)
#
# On top of that, all four are averaged over the replicas, once a step, when all micro-batches are done. In exact arithmetic it does not matter whether the average comes before the sums or after them. In floating point it does, for the tied matrix. A ring adds up each chunk of its buffer in another order, and the first and the last stage, which hold different layers, have the tied gradient at different places of their buffers. Whoever adds the two ends first and averages then may get two results that differ in the last bit, and from then on the two copies drift apart. If each end averages first, then both ends add the *same* two numbers.
#
# The question has a second side. Clipping needs the norm of the *whole* gradient: square all numbers, add them up, take the root. Spread over a grid, the sum becomes an all-reduce of one number. Take a model with the gradients 3 and 4, so that the norm is 5, and let two replicas hold both of them. **What does the naive code find, which lets every rank add its squares to an all-reduce over all ranks?**

# %%
guess_norm = 5.0  # change this number


# %%
def norm_over(comm, gradients, replica_only):
    """The norm of gradients that are cut over tp and copied over dp."""
    mesh = Mesh(comm, dp=2, tp=2)
    own = gradients[mesh.tp.rank]
    square = own.square().sum().reshape(1)
    group = mesh.group("pp", "tp") if replica_only else mesh.comm
    return all_reduce_(group, square).sqrt().item()


gradients = torch.tensor([[3.0], [4.0]])  # tensor rank 0 has the 3, tensor rank 1 the 4
naive_norm = World(4).run(norm_over, gradients, False)[0]
right_norm = World(4).run(norm_over, gradients, True)[0]

# %% tags=["answer"]
study.reveal(
    guess_norm,
    round(naive_norm, 3),
    study.bars(
        {"all ranks": naive_norm, "the ranks of one replica": right_norm},
        target=5,
        note="one rank",
        title="The norm of the gradients 3 and 4",
    ),
    words="√50, too large by √2: each gradient is counted once for each replica. Clipping would then shorten every step "
    "by that factor, without any error message. `mesh.group('pp', 'tp')` holds the ranks of one replica.",
)

# %% tags=["maintainer"]
assert round(naive_norm, 3) == 7.071 and right_norm == 5

# %% [markdown]
# The rule for norms follows from the four kinds: *count every parameter of the model once*. What is split is counted by everyone who holds a part. What several ranks hold as copies is counted by one of them, but scaled by all.
#
# ## A GPT: the techniques as a list
#
# With a whole GPT there are more techniques, but they remain a list. The model knows of no parallelism. `parallelize(model, mesh, optimizer, …)` takes it and applies them one after the other. The order is not arbitrary:
#
# 1. *Tensor and vocabulary parallelism* replace layers by split ones. They must come first, as all that follows wraps what is there.
# 2. *The pipeline* decides which of those layers this rank holds. Only now do parameters get their values, so that no rank ever holds the whole model.
# 3. *Checkpointing* changes what the forward of a layer keeps, and *mixed precision* changes the format in which it computes.
# 4. *ZeRO or data parallelism* come last: they divide, or average, what is left on this rank. Had ZeRO been first, its shards would cut across the stages.
#
# Here is the whole of it on a GPT of two layers, in double precision: data × pipeline × tensor, with sequence parallelism, checkpointing, clipping and ZeRO 3. The serial run is a plain loop in PyTorch.

# %%
from functools import partial

from torch.optim import AdamW

from minidist.models import gpt, next_token_loss
from minidist.parallelize import parallelize

SMALL = dict(layers=2, hidden=24, heads=4, vocab=61, context=12)


def batch(number):
    """16 rows of 12 tokens, and the tokens that follow them."""
    generator = torch.Generator().manual_seed(number)
    rows = torch.randint(0, 61, (16, 13), generator=generator)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def train(comm, dp=1, pp=1, tp=1, dtype=torch.float64, tied=True, clip=0.3, **options):
    """Three steps on a grid: the losses, and what this rank holds of the parameters."""
    mesh = Mesh(comm, dp=dp, pp=pp, tp=tp)
    model = gpt(**SMALL, tied=tied, dtype=dtype, device="meta")  # shapes without numbers
    engine = parallelize(model, mesh, partial(AdamW, lr=0.01), **options)
    losses = []
    for number in range(3):
        tokens, following = batch(number)
        tokens = tokens.chunk(dp)[mesh.dp.rank]
        following = following.chunk(dp)[mesh.dp.rank]
        losses.append(engine.step(tokens, following, max_norm=clip).item())
    pieces = []
    for piece in engine.pieces():  # where each piece lies in the parameter of the whole model
        pieces.append((piece.name.removeprefix("model/"), piece.first, piece.values.clone()))
    return losses, pieces


# %%
model = gpt(**SMALL, dtype=torch.float64)
matrices = [p for p in model.parameters() if p.dim() > 1]
vectors = [p for p in model.parameters() if p.dim() == 1]
# no weight decay for biases and norms: `parallelize` makes the same two groups
groups_of_adam = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
optimizer = AdamW(groups_of_adam, lr=0.01)
serial_losses = []
for number in range(3):
    tokens, following = batch(number)
    optimizer.zero_grad()
    loss = next_token_loss(model(tokens), following)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    serial_losses.append(loss.item())

# %% [markdown]
# `distances` compares the losses, and each piece of a parameter with the place in the serial model where it belongs.


# %%
def distances(results):
    """The largest difference from the serial run, of a loss and of a parameter."""
    serial = dict(model.named_parameters())
    loss_gap = 0.0
    parameter_gap = 0.0
    for losses, pieces in results:
        for found, right in zip(losses, serial_losses):
            loss_gap = max(loss_gap, abs(found - right))
        for name, first, values in pieces:
            if name in serial and values.numel():
                box = tuple(slice(a, a + n) for a, n in zip(first, values.shape))
                parameter_gap = max(
                    parameter_gap, float((serial[name][box].detach() - values).abs().max())
                )
    return loss_gap, parameter_gap


CUBE = dict(dp=2, pp=2, tp=2, micro_batches=4, recompute="full")
everything = World(8).run(train, **CUBE, zero=3, sequence_parallel=True)
loss_gap, parameter_gap = distances(everything)
print("losses equal within 1e-12:", loss_gap < 1e-12)
print("parameters equal within 1e-10:", parameter_gap < 1e-10)

# %% tags=["maintainer"]
assert loss_gap < 1e-12 and parameter_gap < 1e-10

# %% [markdown]
# ### And in 16 bits?
#
# In mixed precision no such bound is possible. (a + b) + c and a + (b + c) round differently, and in [bf16](term:bf16) the difference is in the third digit. We can still ask a sharper question. Take one rank with the same precision (O2: weights in bf16 with fp32 masters), and as many micro-batches in all. Each axis changes something about the order of the sums, or nothing. **Which one gives the same losses to the last bit, over all three steps: "data", "tensor" or "pipeline"?** Untied embeddings and no clipping, so that nothing else adds up.

# %%
guess_bits = "data"  # or "tensor", or "pipeline"

# %%
low = dict(dtype=torch.float32, amp="O2", tied=False, clip=None)
one_rank = World(1).run(train, micro_batches=8, **low)[0][0]
single_precision = World(1).run(train, dtype=torch.float32, tied=False, clip=None)[0][0]
grids = {
    "pipeline 2, checkpointing": (2, dict(pp=2, micro_batches=8, recompute="full")),
    "data 2": (2, dict(dp=2, micro_batches=4)),
    "tensor 2": (2, dict(tp=2, micro_batches=8)),
    "all three, ZeRO 1, checkpointing": (8, CUBE | {"zero": 1}),
}


def farthest(losses):
    return max(abs(a - b) for a, b in zip(losses, one_rank))


rows = []
for name, (ranks, options) in grids.items():
    losses = World(ranks).run(train, **low, **options)[0][0]
    first = "yes" if losses[0] == one_rank[0] else "no"
    every = "yes" if losses == one_rank else "no"
    close = "yes" if farthest(losses) < farthest(single_precision) else "no"
    rows.append((name, first, every, close))

# %% tags=["answer"]
study.reveal(
    guess_bits,
    "pipeline",
    study.table(
        rows,
        ["against O2 on one rank", "first loss equal", "all equal", "closer than fp32 is"],
        title="Three steps in O2: equal to the last bit?",
    ),
    options=["data", "tensor", "pipeline"],
    words="A pipeline moves numbers and changes none, even with every layer computed twice. Data parallelism adds the "
    "gradients in another order, which shows after the first step. Tensor parallelism adds partial activations, which "
    "shows at once. All of them differ from one rank by less than bf16 differs from fp32.",
)

# %% tags=["maintainer"]
assert [row[1:] for row in rows] == [
    ("yes", "yes", "yes"),
    ("yes", "no", "yes"),
    ("no", "no", "yes"),
    ("no", "no", "yes"),
]

# %% [markdown]
# So this is what "equal to the serial run" means for a hybrid. Show it in double precision, where a mistake cannot hide behind rounding; then, in 16 bits, ask only that the difference is no larger than rounding.
#
# ## What each axis sends
#
# We know that any grid computes the right thing. Now for the cost. Let N be the bytes of the activations of one micro-batch, (b, T, H) in bf16. In a step with M micro-batches, on d × S × t ranks, a rank sends
#
# | axis | when | bytes |
# |---|---|---|
# | tensor | 4 all-reduces a layer and micro-batch, and about 1 at each end of the model | $2\frac{t-1}{t} N\cdot M\,(4L+2)/S$ |
# | pipeline | once a micro-batch in each direction, over $S-1$ edges | $2\frac{S-1}{S} N\cdot M$ |
# | data | once a step, gradients of $Ψ/(tS)$ parameters | $2\frac{d-1}{d}\cdot 2\,Ψ/(tS)$ |
#
# (The first two are means over the stages; L counts the layers of the whole model, and Ψ its parameters.) The rows are products of things that you know. A ring sends $2\frac{n-1}{n}$ times the buffer. A layer has two all-reduces in the forward, one after attention and one after the MLP, and two in the backward. The 2 beside 4L are the ends: the embedding, split by [vocabulary](lesson:vocabulary), has an all-reduce in its forward, and the output layer has one in its backward. A stage that is neither first nor last sends an activation to the right and a gradient to the left; the first and the last send only one of the two.
#
# What matters is what is *not* in a row. The first two grow with the tokens and the third does not: gradients have the size of the parameters, however many tokens went into them. So whether tensor or data sends more is a question of how many tokens there are. **At how many tokens per replica and step does tensor overtake data**, for d = t = 2, H = 4,096, and a model of layers only, with 12H² parameters each?

# %%
H = 4096
guess_tokens = 100  # tokens: change this number

# %%
tensor_bytes_of_a_token = 4 * (2 * 1 / 2) * 2 * H  # a layer's four all-reduces, t = 2
data_bytes = (2 * 1 / 2) * 2 * 12 * H**2 / 2  # half a layer's gradients, on two replicas
crossing = data_bytes / tensor_bytes_of_a_token

# %% tags=["answer"]
study.reveal(
    guess_tokens,
    round(crossing),
    unit="tokens",
    words="Take one layer of a stage. Tensor sends 8H bytes for each token, and data 12H² bytes in all. They are equal at "
    "1.5 H tokens. Every common rule about which axis is heaviest has a number of tokens in it, said or unsaid.",
)

# %% [markdown]
# We check it on a GPT of two layers with H = 4,096, in a World on the device `"meta"`, where tensors have shapes and no numbers. The World charges each operation the time of a modelled H100 (with the efficiency that its kernels reach, not the data sheet's peak), and each message the time of its wire. Two nodes of four GPUs stand for the cluster: 371 GB/s inside a node, 48 GB/s between nodes. We run three numberings of the ranks at two sizes, two micro-batches of b = 1 or 4 sequences of 2,048 tokens; the bytes we need now, the seconds in a moment.

# %%
from dataclasses import replace

from minidist.collectives import barrier
from minidist.comm import Cluster
from minidist.comm.mesh import Grid
from minidist.comm.trace import Trace

NODES = replace(Cluster.dgx_h100(nodes=2), devices=4)
WIDE = dict(layers=2, hidden=H, heads=32, vocab=4096, context=2048, tied=False)


def timed(comm, axes, sequences, micro_batches=2, **options):
    """One step on meta tensors: when it began and ended on the virtual clock."""
    mesh = Mesh(comm, **axes)
    model = gpt(**WIDE, device="meta", dtype=torch.bfloat16)
    adam = partial(AdamW, lr=1e-3, foreach=True)
    engine = parallelize(model, mesh, adam, micro_batches=micro_batches, **options)
    tokens = torch.empty(micro_batches * sequences, 2048, dtype=torch.long, device="meta")
    barrier(comm)
    start = comm.now()
    engine.step(tokens, tokens)
    barrier(comm)
    return start, comm.now()


def run_step(cluster, axes, sequences, **options):
    """The seconds of a step, and the messages of that step alone."""
    world = World(8, cluster=cluster, device="meta")
    spans = world.run(timed, axes, sequences, **options)
    start = spans[0][0]
    step_trace = Trace(8)
    for m in world.trace:
        if m.start >= start and m.nbytes > 1000:  # without barriers, and the sum of the loss
            step_trace.add(m.src, m.dst, m.nbytes, m.start, m.sent, m.arrived)
    return max(end for _, end in spans) - start, step_trace


# %%
PLACES = {  # which axis is outermost, and so the one between the two nodes
    "pipeline between nodes": "pp dp tp",
    "data between nodes": "dp pp tp",
    "tensor between nodes": "tp pp dp",
}
SIZES = (1, 4)
runs = {}
for place, order in PLACES.items():
    for b in SIZES:
        runs[place, b] = run_step(NODES, dict(dp=2, pp=2, tp=2, order=order), b)

# %%
from minidist.study.predict import Transformer, parameters


def bytes_of_axes(b, M=2, L=2, S=2, d=2, t=2, T=2048):
    """The three rows of the table, for a rank."""
    N = 2 * b * T * H
    psi = parameters(Transformer(**WIDE))
    return {
        "tensor": 2 * (t - 1) / t * N * M * (4 * L + 2) / S,
        "data": 2 * (d - 1) / d * 2 * psi / (t * S),
        "pipeline": 2 * (S - 1) / S * N * M,
    }


tokens = [4096 * b for b in (1, 2, 3, 4, 6, 8)]
lines = {}
for axis in ("tensor", "data", "pipeline"):
    lines[axis] = tokens, [bytes_of_axes(count / 4096)[axis] for count in tokens]

grid = Grid(dp=2, pp=2, tp=2)
counted = {}
for axis, short in {"tensor": "tp", "data": "dp", "pipeline": "pp"}.items():
    per_rank = []
    for b in SIZES:
        sent = study.axis_bytes(runs["pipeline between nodes", b][1], grid, NODES)[short]
        per_rank.append(max(sent.values()) / 8)  # a message counts on each level of links it passes
    counted[axis] = [4096 * b for b in SIZES], per_rank
study.curves(
    lines,
    points=counted,
    xlabel="tokens of a replica in a step",
    yunit="B",
    ylabel="bytes that a rank sends in a step",
    title="Predicted (lines) and counted (points)",
)

# %% tags=["maintainer"]
for axis, (_, per_rank) in counted.items():
    for b, nbytes in zip(SIZES, per_rank):
        assert abs(bytes_of_axes(b)[axis] - nbytes) < 0.05 * nbytes

# %% [markdown]
# The points of "data" lie 2 % above the line, because positions and norms are not divided by tensor parallelism. "Tensor sends more than data, and data more than the pipeline" is what the textbooks say, and here it holds only between some 5,400 and some 27,000 tokens. (5,400 and not 6,144, because the two all-reduces at the ends of so short a model count for more than its embeddings do.) Below that, data sends most. Above it, even the pipeline sends more than data.
#
# Move the sliders to see how the picture changes with the width, with the layers of a stage, and with the tensor ranks.


# %%
def step_bytes_of(tokens, width, layers, tensor_ranks):
    """A rank in the middle of a pipeline, 8 replicas; layers: of one stage."""
    activation = 2 * width * tokens
    weights = 12 * width**2 * layers / tensor_ranks
    return {
        "tensor": 2 * (tensor_ranks - 1) / tensor_ranks * 4 * layers * activation,
        "data": 2 * 7 / 8 * 2 * weights,
        "pipeline": 2 * activation,
    }


study.explore(
    step_bytes_of,
    over="tokens",
    tokens=[2**k for k in range(10, 20)],
    width=[2048, 4096, 8192, 16384],
    layers=[1, 4, 16],
    tensor_ranks=[2, 4, 8],
    labels={"tokens": "tokens of a replica", "width": "H", "tensor_ranks": "tensor ranks"},
    start={"tokens": 16384, "width": 4096, "layers": 4, "tensor_ranks": 4},
    unit="B",
    logx=True,
    logy=True,
    xlabel="tokens of a replica in a step",
    ylabel="bytes that a rank sends",
    title="Which axis sends most?",
)

# %% [markdown]
# ## Where to put which axis
#
# Bytes become seconds on a wire, and a cluster has two kinds of wires that differ by a factor of eight. A node's worth of neighbouring ranks shares the fast ones. So the *order* of the axes decides whose messages are fast: the innermost axis stays inside a node, and the outermost crosses. With two nodes only the outermost matters, which leaves three possibilities.
#
# ![Two nodes of four ranks, twice. Above, the tensor pairs 0 1, 2 3, 4 5, 6 7 lie inside the nodes, and four pipelines cross. Below, the tensor pairs 0 4, 1 5, 2 6, 3 7 all cross the network.](../course/19_hybrid/figures/places.svg)
#
# Bytes are not the whole story: it also matters whether anything can be done meanwhile. Tensor's all-reduce stands between two products of the same layer, and the second product needs its result; nothing hides it. A pipeline's message travels while the stage computes the next micro-batch, unless the stage has nothing to do yet. Data's gradients can travel behind the rest of the backward, except for the last bucket. So there are three reasons to put tensor inside: it sends most, it sends most *often*, and it cannot hide.

# %%
for_table = []
for place in PLACES:
    for_table.append((place, *(f"{1e3 * runs[place, b][0]:.1f} ms" for b in SIZES)))
many_tokens = {place: 1e3 * runs[place, 4][0] for place in PLACES}
best_place = min(many_tokens, key=many_tokens.get)
worst_place = max(many_tokens, key=many_tokens.get)

# %% tags=["answer"]
study.reveal(
    guess_worst,
    round(many_tokens[worst_place], 1),
    study.table(
        for_table,
        ["a step on 8 modelled H100s", "4,096 tokens a replica", "16,384 tokens a replica"],
        title="The same arithmetic in three places",
    ),
    unit="ms",
    words=f"The question was about 16,384 tokens: worst is {worst_place}, 1.4 times as long as {best_place}. With 4,096 "
    "tokens data is the worst to have between nodes, as it sends most there. With the pipeline between nodes a "
    "step is fastest at 4,096 tokens and nearly so at 16,384. It would gain from more micro-batches: with two, a stage "
    "mostly has nothing else to do while a message travels.",
)

# %% tags=["maintainer"]
assert round(many_tokens[best_place], 1) == 45.0 and round(many_tokens[worst_place], 1) == 61.2
assert (best_place, worst_place) == ("data between nodes", "tensor between nodes")
assert max(PLACES, key=lambda place: runs[place, 1][0]) == "data between nodes"

# %% [markdown]
# The same products, the same messages, the same losses: only the numbers of the ranks differ. And *nothing reports it*. A run in the wrong place looks like a run on slow GPUs. What gives it away is a count of bytes by axis and by wire:

# %%
study.mesh(
    Grid(2, 2, 2, "tp pp dp"),
    NODES,
    runs["tensor between nodes", 4][1],
    title="Tensor between the nodes: who sent how much over which wires, in one step",
)

# %% [markdown]
# (The colour of a rank is its stage; of a row in the table, its axis.)
#
# The World has measured three placements on its own clock. Predicting such times on paper, for all grids and before a machine is rented, is the job of a planner, which you build in [Plan a run](lesson:plan).
#
# ## BLOOM's 384 GPUs
#
# Here is the real case. BLOOM was trained for three and a half months on 48 nodes of 8 A100, in 8 data × 12 pipeline × 4 tensor with ZeRO 1. Inside a node there was NVLink; to the network each node had four cards of 100 Gbit/s, so that two GPUs shared a card. This is the grid in Megatron's order, pp outermost and tp innermost. A node holds two tensor groups, which belong to two replicas of the same stage.

# %%
from minidist.study.catalog import jean_zay

JEAN_ZAY = jean_zay(48)
study.mesh(Grid(dp=8, pp=12, tp=4), JEAN_ZAY)

# %% [markdown]
# Before the training began, its authors tried dozens of shapes on the whole machine, and published the times. BLOOM's final shape has 70 layers, a width of 14,336 and 112 heads. The search has its layers and width with 64 and with 128 heads; the model itself took about 105 seconds a step.

# %%
from minidist.study.literature import published

rows = []
for row in published("bloom_topology_search"):
    if (row["layers"], row["hidden"], row["tp"]) == (70, 14336, 4):
        grid_words = f"{row['dp']} · {row['pp']} · {row['tp']}"
        rows.append((f"search, {row['heads']} heads", grid_words, row["sec_per_it"]))
rows.append(("BLOOM itself, 112 heads", "8 · 12 · 4", 105.0))
study.table(rows, ["published", "data · pipeline · tensor", "seconds a step"])

# %% [markdown]
# We can now do by hand what the table of bytes promises. A batch of BLOOM has 2,048 sequences of 2,048 tokens, so a replica has 256 of them, in 128 micro-batches of two. Every layer was computed twice (checkpointing), so a layer has six all-reduces and not four. (We leave out the two at the ends of the model.) Gradients travel in fp32, and ZeRO 1 sends the updated parameters back in 16 bits: its software all-reduced the gradients, 4 + 4 bytes a parameter there and back, and then gathered the parameters, 2 bytes more.
#
# Then the question that opened the lesson, at full size. The step took 105 s. **If the tensor groups had been spread over nodes, how many months would those 3.5 have become?**

# %%
guess_months = 4.0  # months: change this number

# %%
S = 12
M = 128
t = 4
d = 8
N = 2 * (2 * 2048 * 14336)  # bytes of a micro-batch's activations
gigabytes = {
    "tensor": 2 * (t - 1) / t * N * M * 6 * 70 / S / 1e9,
    "pipeline": 2 * (S - 1) / S * N * M / 1e9,
    "data": (d - 1) / d * (4 + 4 + 2) * parameters_of_bloom / (S * t) / 1e9,
}
NVLINK = 240  # GB/s, what the model of the cluster above gives a GPU inside a node
NETWORK = 12 / 2  # GB/s: two GPUs share a card of 12.5, of which some 12 are reached

inside = {axis: nbytes / NVLINK for axis, nbytes in gigabytes.items()}
outside = {axis: nbytes / NETWORK for axis, nbytes in gigabytes.items()}
rows = []
for axis, nbytes in gigabytes.items():
    rows.append((axis, f"{nbytes:.0f}", f"{inside[axis]:.1f}", f"{outside[axis]:.1f}"))
study.table(
    rows,
    ["axis", "GB a GPU sends", "seconds on NVLink", "seconds on the network"],
    title="BLOOM, one step: bytes, and the wires alone (by formula)",
)

# %% [markdown]
# Tensor sends nearly thirty times as much as the pipeline, and yet its 3.3 s on NVLink are less than what either of the others needs on the network, 4.6 and 5.3 s. On the network it would take longer than the whole step. What would the step have been? Take the 105 s, put tensor on the network, and data on NVLink in exchange: its groups have 8 ranks, which just fill a node. Moreover, slower layers make a slower pipeline: during the bubble everybody waits for them too, a factor of $(M+S-1)/M$.

# %%
bubble_factor = (M + S - 1) / M
extra = (outside["tensor"] - inside["tensor"]) * bubble_factor
saved = outside["data"] - inside["data"]
turned = 105 + extra - saved
months = 3.5 * turned / 105

# %% tags=["answer"]
study.reveal(
    guess_months,
    round(months),
    study.bars(
        {"as it was": 105, "tensor between nodes, by formula": round(turned)},
        unit="s",
        title="BLOOM's step in two places",
    ),
    unit="months",
    words="More than twice as long, for the same FLOPs, with the same losses.",
)

# %% tags=["maintainer"]
assert 7.5 < months < 8.5 and gigabytes["tensor"] > 25 * gigabytes["pipeline"]
assert outside["tensor"] > 105 > 20 * inside["tensor"]

# %% [markdown]
# Hence the rule by which nearly all large models are placed: **tensor inside the node, pipeline and data between nodes.** Tensor groups are then no larger than a node, 8 GPUs as a rule. The pipeline makes the model fit, and data takes the rest.
#
# ## ZeRO 3 between nodes, or inside, or both?
#
# A grid of three axes is much machinery. ZeRO 3 alone would need one axis and no change of the model. In [ZeRO and offload](lesson:zero) you read that on slow links it belongs inside the node or nowhere; yet many models of 7 to 70 billion parameters *are* trained with ZeRO 3 over many nodes. Both are true, and one line of algebra tells when.
#
# For each micro-batch ZeRO 3 gathers the weights twice and scatters the gradients once, about $3\cdot 2Ψ$ bytes, however many tokens there are. The computation is $6Ψ$ FLOPs a token. At F FLOP/s and a bandwidth of B bytes a second, gathering hides behind computing if
#
# $$\frac{6Ψ}{B} < \frac{6Ψ\cdot\text{tokens}}{F}\quad\Longleftrightarrow\quad \text{tokens} > \frac{F}{B}.$$
#
# The parameters cancel. It depends only on how many tokens *each GPU* has, and on a ratio of the hardware. (The tokens are those of one micro-batch: ZeRO 3 gathers anew for each, so accumulation does not help.) **How many tokens does a GPU need so that gathering can hide behind computing**, at 400 TFLOP/s (what a well-used H100 reaches) and 48 GB/s?

# %%
guess_hide = 1000  # tokens: change this number

# %%
rows = []
for name, bandwidth in {"NVLink": 371e9, "fast network": 48e9, "slow network": 3e9}.items():
    rows.append((name, f"{bandwidth / 1e9:.0f} GB/s", f"{400e12 / bandwidth:,.0f} tokens"))

# %% tags=["answer"]
study.reveal(
    guess_hide,
    round(400e12 / 48e9),
    study.table(rows, ["", "bandwidth", "a GPU needs"], title="When ZeRO 3 can hide"),
    unit="tokens",
    words="On a fast network four sequences of 2,048 tokens come close, and five are enough. At 3 GB/s, the slow links of "
    "lesson 13, it would be 133,333 in one micro-batch, many times what a GPU usually gets.",
)

# %% [markdown]
# Between the two there is a middle way. In [hybrid sharding](term:hybrid-sharding) (HSDP) the ranks of one node share the parameters among themselves, and the nodes are replicas of each other. All gathering stays on NVLink. Only gradients cross the network, and of those each rank sends just its own shard, a quarter of them on nodes of four. The price is memory: $16Ψ$ divided by the GPUs of a node instead of all GPUs. In `parallelize` it is `replicas=2`, for two nodes. Here is our GPT on 8 data ranks with 32,768 tokens each, on the fast network and on the slow one.


# %%
def with_network(bandwidth):
    """Our two nodes, with other wires between them."""
    links = dict(NODES.links)
    for level in ("nic", "tor", "spine"):
        links[level] = replace(links[level], beta=1 / bandwidth)
    return replace(NODES, links=links)


WAYS = {
    "ZeRO 1 over all": dict(zero=1),
    "ZeRO 3 over all": dict(zero=3),
    "hybrid: ZeRO 3 in a node": dict(zero=3, replicas=2),
}
took = {}
for name, options in WAYS.items():
    for bandwidth in (48e9, 3e9):
        seconds, _ = run_step(with_network(bandwidth), dict(dp=8), 16, micro_batches=1, **options)
        took[name, bandwidth] = 1e3 * seconds
rows = []
for name in WAYS:
    rows.append((name, f"{took[name, 48e9]:.0f} ms", f"{took[name, 3e9]:.0f} ms"))
study.table(
    rows,
    ["a step, 32,768 tokens a GPU", "48 GB/s", "3 GB/s"],
    title="Sharding over two nodes of four modelled H100s",
)

# %% tags=["maintainer"]
assert took["ZeRO 3 over all", 48e9] < took["ZeRO 1 over all", 48e9]
assert took["ZeRO 3 over all", 3e9] > 1.15 * took["ZeRO 1 over all", 3e9]
assert took["ZeRO 3 over all", 3e9] > 3.5 * took["hybrid: ZeRO 3 in a node", 3e9]
assert took["hybrid: ZeRO 3 in a node", 48e9] < took["ZeRO 3 over all", 48e9]

# %% [markdown]
# On the fast network, with nearly four times the tokens that the rule asks for, ZeRO 3 over all ranks takes no longer than ZeRO 1 and holds far less. Hybrid sharding is faster still, but a rank holds twice as much as with ZeRO 3 over both nodes, and with more nodes the difference grows. On the slow network ZeRO 3 over all ranks is the slowest of the three, and hybrid sharding is four times as fast as that. It beats even ZeRO 1, whose rings carry all gradients from node to node, where hybrid sharding carries a quarter. So: *if a node can hold the model, ZeRO 3 inside the node and replicas between nodes, above all on a slow network; if it cannot, and each GPU has enough tokens for the network, ZeRO 3 over all nodes; and with too few tokens, a grid with a pipeline*, which sends least of all.
#
# ## Break it: ranks that disagree
#
# A new launch script has another order of the axes. It has reached one of the two nodes, and not the other. **Will we see "wrong numbers", "an error", or "silence"** (on GPUs)?

# %%
guess_scripts = "an error"  # or "wrong numbers", or "silence"

# %%
from minidist.comm import Deadlock


def two_scripts(comm):
    order = "pp dp tp" if comm.rank < 4 else "dp pp tp"
    mesh = Mesh(comm, dp=2, pp=2, tp=2, order=order)
    engine = parallelize(gpt(**SMALL, device="meta"), mesh, partial(AdamW, lr=0.01))
    tokens, following = batch(0)
    engine.step(tokens.chunk(2)[mesh.dp.rank], following.chunk(2)[mesh.dp.rank])


try:
    World(8).run(two_scripts)
except (Deadlock, RuntimeError, ValueError) as error:
    lines_of_error = str(error).splitlines()

# %% tags=["answer"]
study.reveal(
    guess_scripts,
    "silence",
    options=["wrong numbers", "an error", "silence"],
    words="On GPUs nothing happens at all. The World says: "
    + " … ".join(
        line.strip(" :") for line in lines_of_error if "rank 0 is" in line or "rank 4 is" in line
    ),
)

# %% [markdown]
# Ranks 0 and 4 do mean each other. But rank 0 takes 4 for the next *stage* of its pipeline, and rank 4 takes 0 for the other *replica* and asks whether their models are alike. The World compares what the two are doing, and names both calls. NCCL does not look. What it does with calls that do not match is undefined, and as a rule it is a silent hang until a timeout. A cheap protection is to all-gather a hash of the configuration before the first step.
#
# ### A group that is wrong, and fits
#
# The next mistake is worse. Somebody averages the gradients over `mesh.tp` in place of `mesh.dp`. There are two ranks in either group, and the tensors have the same shapes.

# %%
wrong = World(8).run(step, x, fcs, projs, average_over="tp")
study.bars(
    {f"rank {rank}": round(100 * error) for rank, error in enumerate(relative_errors(wrong))},
    unit="%",
    title="Averaged over the wrong axis: error of the gradients",
)

# %% tags=["maintainer"]
assert min(relative_errors(wrong)) > 0.3

# %% [markdown]
# The two halves of a matrix have been averaged as if they were copies of each other. No message, no shape and no hang says so, and the loss may even go down for a while. Only a comparison with one rank finds it. Keep a tiny serial run among your tests, and give the axes *different* sizes there: on 2 × 2 × 2 ranks a factor that belongs to another axis looks right.
#
# ## When not to use it
#
# Each axis that you add is one more thing to place, to balance and to debug. Use as few as will do.
#
# - While the model fits with ZeRO and the tokens for each GPU exceed F/B, one axis is enough.
# - Tensor parallelism is for a layer, or its activations, that are too large for one GPU, and for more ranks than the batch has sequences. It can also save the recomputing of activations, as each rank keeps fewer of them. Small layers make slivers of matrices that no GPU multiplies well.
# - A pipeline is for models that do not fit into a node. It needs many micro-batches, so a small batch rules it out.
#
# Where exactly the limits lie for a given model and machine is what [Plan a run](lesson:plan) computes.
#
# ## The library's file
#
# [minidist/comm/mesh.py](file:minidist/comm/mesh.py) has our reshape for any axes. A place is found by division with remainder, from the innermost axis outwards:

# %%
study.source(Grid.place)

# %% [markdown]
# The color of a rank along some axes is the rank that it would be if it stood at 0 on them. That is our "number made of the other coordinates", and it works for several axes at once:

# %%
study.source(Grid.colors)

# %% [markdown]
# `Mesh.group` gives these colors to `comm.split`. Since every rank can compute the colors of *all* ranks, they are passed as a list, and no message is needed.

# %%
study.source(Mesh.group)

# %% [markdown]
# `parallelize` is in [minidist/parallelize.py](file:minidist/parallelize.py). It is long because it has many options, but it does nothing except call, in the order explained above, what you built in other lessons. Its first piece replaces each layer by a split one; here `split_` comes from [Tensor parallel](lesson:tensor), `TensorEmbedding` and `TensorHead` from [Vocabulary parallel](lesson:vocabulary).

# %%
from minidist import parallelize as library

study.source(library.split_parts_)

# %% [markdown]
# The second decides what this stage holds, by slices of the list of layers; `shape.part` says which slice belongs to which stage and chunk.

# %%
study.source(library.stage_chunks)

# %% [markdown]
# The third is [checkpointing](lesson:remat), which wraps the forward of each layer. `"full"` recomputes all of it, `"selective"` only what lies within attention:

# %%
study.source(library.forms)

# %% [markdown]
# And the last decides who shares what with this rank. (Two of its axes come in later lessons, ep in [Experts](lesson:experts) and cp in [Long contexts](lesson:long_contexts). In our grids they have size 1, so read dp wherever they stand beside it.) Look at `norm`, too. It is the rule from above in code: without ZeRO, the ranks of one replica count; with ZeRO, each rank owns another shard, so all ranks count. The docstring has hybrid sharding as a picture: of four data ranks with two replicas, neighbours share the shards, and ranks at equal places in their nodes are replicas.

# %%
study.source(library.Sharing)

# %% [markdown]
# What remains are `averaged`, which builds the optimizer (plain, ZeRO 1 or 2) and whoever averages the gradients, and `Stages`, the [pipeline](lesson:pipelines) that adds up the gradients of a tied embedding. The `Engine` that comes back has `step`, and `pieces`, which says where each of its tensors lies in the whole model: this is what a [checkpoint](lesson:survive) saves.
#
# ## In real processes, and on a cluster
#
# The same `train` on four processes, two stages of two tensor ranks:

# %%
from minidist.comm import launch

real = launch(train, 4, pp=2, tp=2, micro_batches=4, zero=1, recompute="full")
loss_gap, parameter_gap = distances(real)
print("4 processes, losses equal within 1e-12:", loss_gap < 1e-12)
print("4 processes, parameters equal within 1e-10:", parameter_gap < 1e-10)

# %% tags=["maintainer"]
assert loss_gap < 1e-12 and parameter_gap < 1e-10

# %% [markdown]
# The script of the course takes the grid as flags, [examples/train_gpt.py](file:examples/train_gpt.py). On one machine of eight GPUs, and on two:
#
# ```
# torchrun --nproc-per-node 8 examples/train_gpt.py --dp 2 --pp 2 --tp 2 --zero 1
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_gpt.py --dp 2 --pp 2 --tp 4 --zero 1
# ```
#
# `torchrun` numbers the ranks node by node, so neighbours share a node, and the innermost axis stays inside. PyTorch's own name for all this is `DeviceMesh`: `init_device_mesh("cuda", (2, 2, 4), mesh_dim_names=("pp", "dp", "tp"))` is our `Mesh`, and `mesh["tp"].get_group()` our `mesh.tp`.
#
# ## Takeaways
#
# - A grid is a reshape of the rank numbers; a group is a line of it; an axis is a Comm.
# - Each technique talks along its own axis and knows of no other. In double precision the result is the serial one.
# - Ask of each parameter: do other ranks hold a part, a copy, or a summand? Average over data, add summands, leave copies alone, and count each parameter once in a norm. Average tied gradients before you add them.
# - Tensor sends $8\frac{t-1}{t}N$ bytes a layer and micro-batch and cannot hide, so it belongs inside the node. A pipeline sends at most 2N a micro-batch. Data sends the same for any number of tokens.
# - A wrong place costs time (1.4 times here, more than twice for BLOOM), and nothing reports it. A wrong group costs the model.
# - ZeRO 3 hides behind computing if each GPU has more than F/B tokens. On slower networks shard inside the node and replicate between nodes.
#
# ## Further reading
#
# - paper:narayanan2021 Sections 2 and 3: which axis where, and what each sends.
# - paper:lescao2022 Section 3.4: BLOOM's grid.
# - paper:smith2022 Section 2: a hybrid of the same kind on 2,240 GPUs and more.
# - paper:rajbhandari2020 The memory of ZeRO's stages.
# - paper:zhao2023 PyTorch's FSDP, with hybrid sharding.
