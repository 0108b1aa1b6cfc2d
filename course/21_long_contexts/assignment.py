# %% [markdown] nbgrader={"grade_id": "top"}
# # 21 Long contexts: exercises
#
# The tokens of one sample lie on n ranks, and attention sees them all. You say who has which tokens, build the ring forward
# and backward, the other way with all-to-alls, and the mean loss of all tokens.
#
# Six exercises, 16 points. After each, run the check: it holds your function against one rank with the whole sample, on 1 to
# 4 ranks, then in real processes. It says what is wrong. Try as often as you like. What your function prints is not shown
# there; to see it, run the function in a `World` of your own.
#
# You may call `minidist.split`, and from exercise 4 on `minidist.collectives`. What is refused here is `minidist.parallel`.
#
# Queries, keys and values of one head are matrices (T/n, D): a row for each token of this rank. n divides T everywhere
# but in exercise 1, and scores are q·kᵀ/√D.

# %% nbgrader={"grade_id": "setup"}
import torch

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_, all_to_all
from minidist.comm import World
from minidist.split import bounds, uneven

# %% [markdown] nbgrader={"grade_id": "zigzag_spec"}
# ## 1 · Who has which tokens (2 points)
#
# A causal query sees what is before it, so late tokens are more work. Cut T tokens into 2n chunks; each rank takes an early one
# and a late one, so that all have as much to do.
#
# | | |
# |---|---|
# | call | `zigzag(comm, T)` |
# | returns | the positions of this rank's tokens, int64: those of chunk r, then those of chunk 2n − 1 − r |
# | cost | no message |
#
# The chunks are those of `uneven(T, 2 * comm.size)`, also where 2n does not divide T. About 4 lines.
#
# <details><summary>Hint</summary>
#
# `bounds(…)` gives (first, end) of every chunk. `torch.arange(first, end)` counts, and `torch.cat` puts two together.
#
# </details>


# %% nbgrader={"grade_id": "zigzag", "solution": true}
def zigzag(comm, T):
    """The positions of this rank's tokens, int64."""
    ### BEGIN SOLUTION
    chunks = bounds(uneven(T, 2 * comm.size))
    early, late = chunks[comm.rank], chunks[2 * comm.size - 1 - comm.rank]
    return torch.cat([torch.arange(*early), torch.arange(*late)])
    ### END SOLUTION


# %% nbgrader={"grade_id": "zigzag_test", "points": 2}
check.zigzag(zigzag)

# %% [markdown] nbgrader={"grade_id": "zigzag_target"}
# **Target:** the pairs of a query and a key before it, or itself, are as many on each rank, nearly.

# %%
own = World(4).run(lambda comm: zigzag(comm, 64))
study.bars(
    {f"rank {r}": int((positions + 1).sum()) for r, positions in enumerate(own)},
    title="Pairs of a query and a key, 64 tokens",
)

# %% [markdown] nbgrader={"grade_id": "ring_forward_spec"}
# ## 2 · The ring, forward (4 points)
#
# Every query sees every key: no mask here. Keep your queries, and pass keys and values on to rank r + 1, until each rank has
# seen all of them. After each block only two things are kept of all keys so far: the result, and log Σ exp of the scores.
#
# | | |
# |---|---|
# | call | `ring_forward(comm, q, k, v)` |
# | `q`, `k`, `v` | of this rank's tokens, (T/n, D); **not changed** |
# | returns | `(out, lse)`: softmax(q·Kᵀ/√D)·V of the keys and values of all ranks, (T/n, D); log Σ exp of a query's scores, (T/n,) |
# | cost | n − 1 messages of a rank, each with a block of keys and values, 2·T/n·D numbers |
#
# **Invariant:** of two sets of keys, lse = log(exp lse₁ + exp lse₂), and out = out₁·exp(lse₁ − lse) + out₂·exp(lse₂ − lse).
# Scores are large: exp of them may be infinite, and that of lse, too. About 16 lines.
#
# <details><summary>Hint</summary>
#
# `torch.stack([k, v])` is one message. `scores.logsumexp(1)` and `torch.logaddexp(a, b)` subtract what is largest. Begin with
# your own block; then n − 1 times `comm.sendrecv(block, right, torch.empty_like(block), left)`.
#
# </details>


# %% nbgrader={"grade_id": "ring_forward", "solution": true}
def ring_forward(comm, q, k, v):
    """(out, lse) of this rank's queries, of the keys and values of all ranks."""
    ### BEGIN SOLUTION
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    block = torch.stack([k, v])
    out = torch.zeros_like(q)
    lse = q.new_full(q.shape[:1], -torch.inf)
    for step in range(comm.size):
        if step > 0:
            block = comm.sendrecv(block, right, torch.empty_like(block), left)
        scores = q @ block[0].T * q.shape[1] ** -0.5
        more = scores.logsumexp(1)
        both = torch.logaddexp(lse, more)
        new = scores.softmax(1) @ block[1]
        out = out * (lse - both).exp()[:, None] + new * (more - both).exp()[:, None]
        lse = both
    return out, lse
    ### END SOLUTION


# %% nbgrader={"grade_id": "ring_forward_test", "points": 4}
check.ring_forward(ring_forward)

# %% [markdown] nbgrader={"grade_id": "ring_forward_target"}
# **Target:** no error, however large the scores are.

# %%
sizes = [1, 10, 100, 1000]


def off(size):
    """The largest error of a result on 3 ranks, where scores are as large as that."""
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 12, 4, generator=random, dtype=torch.float64)
    q = size * q
    right = (q @ k.T / 2).softmax(1) @ v
    parts = World(3).run(
        lambda comm: ring_forward(comm, *(x.split(4)[comm.rank] for x in (q, k, v)))
    )
    return round(float((torch.cat([out for out, _ in parts]) - right).abs().max()), 9)


study.bars({f"scores × {s}": off(s) for s in sizes}, title="Largest error of the result")

# %% [markdown] nbgrader={"grade_id": "ring_backward_spec"}
# ## 3 · The ring, backward (4 points)
#
# The blocks come by again. What a rank adds to the gradients of a block travels behind it, and comes home at the end.
#
# | | |
# |---|---|
# | call | `ring_backward(comm, grad, q, k, v, out, lse)` |
# | `grad` | of `out`, (T/n, D) |
# | `out`, `lse` | what `ring_forward` returned; nothing is changed |
# | returns | `(dq, dk, dv)`: of this rank's q, k and v, each (T/n, D), of the losses of all ranks |
# | cost | at most 2n − 1 messages of a rank: a block, n − 1 times, and its two gradients, n times; 2·T/n·D numbers each |
#
# With P = exp(scores − lse), which is a block of the whole softmax:
#
# dv = Pᵀ·grad, dS = P ∘ (grad·vᵀ − rowsum(grad ∘ out)), dq = dS·k/√D summed over blocks, dk = dSᵀ·q/√D. About 16 lines.
#
# <details><summary>Hint</summary>
#
# Send the block and the sum for it in one message, or in two: after n steps the sum is home, with one hop more than the block
# needs. In the last hop only the sum has to travel.
#
# </details>


# %% nbgrader={"grade_id": "ring_backward", "solution": true}
def ring_backward(comm, grad, q, k, v, out, lse):
    """The gradients of this rank's queries, keys and values."""
    ### BEGIN SOLUTION
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    block, scale = torch.stack([k, v]), q.shape[1] ** -0.5
    dq, sums = torch.zeros_like(q), torch.zeros_like(block)
    rows = (grad * out).sum(1, keepdim=True)
    for step in range(comm.size):
        if step > 0:
            block = comm.sendrecv(block, right, torch.empty_like(block), left)
        P = (q @ block[0].T * scale - lse[:, None]).exp()
        dS = P * (grad @ block[1].T - rows)
        dq += dS @ block[0] * scale
        sums += torch.stack([dS.T @ q * scale, P.T @ grad])
        if comm.size > 1:
            sums = comm.sendrecv(sums, right, torch.empty_like(sums), left)
    return dq, sums[0], sums[1]
    ### END SOLUTION


# %% nbgrader={"grade_id": "ring_backward_test", "points": 4}
check.ring_backward(ring_backward)

# %% [markdown] nbgrader={"grade_id": "heads_for_tokens_spec"}
# ## 4 · Heads for tokens (2 points)
#
# The other way: before attention each rank gives away its tokens' other heads, and gets the other tokens of its own heads. Then
# attention is the serial one.
#
# | | |
# |---|---|
# | call | `heads_for_tokens(comm, x)` |
# | `x` | of this rank's tokens all heads, (a, T/n, D), where n divides a; **not changed** |
# | returns | of this rank's heads all tokens, in order, (a/n, T, D); rank r has the heads r·a/n … (r + 1)·a/n − 1 |
# | cost | one all-to-all: (n − 1)/n of x |
#
# About 3 lines.
#
# <details><summary>Hint</summary>
#
# `all_to_all` sends the r-th part of the first dimension to rank r, and returns what came, one rank's after the other's. What
# rank s sent are a/n heads of *its* tokens: they belong between the tokens of rank s − 1 and those of rank s + 1.
#
# </details>


# %% nbgrader={"grade_id": "heads_for_tokens", "solution": true}
def heads_for_tokens(comm, x):
    """Of this rank's heads all tokens, (a/n, T, D)."""
    ### BEGIN SOLUTION
    came = all_to_all(comm, x)
    return torch.cat(came.chunk(comm.size), 1)
    ### END SOLUTION


# %% nbgrader={"grade_id": "heads_for_tokens_test", "points": 2}
check.heads_for_tokens(heads_for_tokens)

# %% [markdown] nbgrader={"grade_id": "heads_for_tokens_target"}
# **Target:** rank 0 has head 0 of the tokens 0 to 3, rank 1 head 1.

# %%
x = torch.tensor([[10.0, 11, 12, 13], [20, 21, 22, 23]])[:, :, None]  # (heads, tokens, 1)
found = World(2).run(lambda comm: heads_for_tokens(comm, x.split(2, 1)[comm.rank])[:, :, 0])
study.holdings({"own heads, all tokens": [list(rows) for rows in found]}, title="Tens say the head")

# %% [markdown] nbgrader={"grade_id": "mean_loss_spec"}
# ## 5 · The mean of all tokens (2 points)
#
# Each rank has the losses of its own tokens. Some tokens do not count: padding, or a prompt. So ranks have different numbers of
# tokens that do, and one may have none.
#
# | | |
# |---|---|
# | call | `mean_loss(comm, losses, counted)` |
# | `losses` | of this rank's tokens, (T/n,); what does not count may be anything; **not changed** |
# | `counted` | which tokens count, bool, (T/n,) |
# | returns | `(loss, factor)`: the mean over the tokens of all ranks that count, the same on all; what this rank's *mean* has to be multiplied with so that the sum over the ranks is that loss |
# | cost | one all-reduce of two numbers |
#
# Both are tensors without a dimension, of the dtype of `losses`. A rank without such tokens has factor 0. About 5 lines.
#
# <details><summary>Hint</summary>
#
# A mean of means is right where all have as many. What adds up are sums, and numbers of tokens. `torch.where(counted, losses, 0)`
# is 0 where a product with 0 would be nan.
#
# </details>


# %% nbgrader={"grade_id": "mean_loss", "solution": true}
def mean_loss(comm, losses, counted):
    """The mean of all tokens that count, and this rank's share of them."""
    ### BEGIN SOLUTION
    own = counted.sum().to(losses.dtype)
    both = torch.stack([torch.where(counted, losses, 0).sum(), own])
    total, number = all_reduce_(comm, both)
    return total / number, own / number
    ### END SOLUTION


# %% nbgrader={"grade_id": "mean_loss_test", "points": 2}
check.mean_loss(mean_loss)

# %% [markdown] nbgrader={"grade_id": "predict_context_spec"}
# ## 6 · Predict (2 points)
#
# One layer of a causal GPT: 131,072 tokens on 8 ranks, 32 heads of size 128, 8 heads of keys and values, one sample, two
# bytes a number. Bytes are what **one rank** sends in **forward**.
#
# | | |
# |---|---|
# | `ring` | bytes by a ring: the blocks of keys and values of others |
# | `heads` | bytes by all-to-alls: queries, keys and values there, the results back |
# | `kept` | bytes that a rank keeps of keys and values for backward |
# | `slowest` | pairs of a query and a key that the slowest rank computes in the contiguous order, where a block on the diagonal is computed whole; for one head |
# | `gain` | how many times fewer those are in the zigzag order |
#
# Numbers within 1 % count.


# %% nbgrader={"grade_id": "predict_context", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_context.numbers(STUDENT)
ring = heads = kept = slowest = gain = None
### BEGIN SOLUTION
n = 8
T = 131_072
D = 128
ring = (n - 1) * 2 * 8 * T // n * D * 2
heads = (n - 1) / n * (2 * 32 + 2 * 8) * T // n * D * 2
kept = 2 * 8 * T // n * D * 2
slowest = n * (T // n) ** 2
gain = 4 * n / (2 * n + 1)
### END SOLUTION


# %% nbgrader={"grade_id": "predict_context_test", "points": 2}
check.predict_context(ring, heads, kept, slowest, gain, of=STUDENT)
