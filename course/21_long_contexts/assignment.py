# %% [markdown] nbgrader={"grade_id": "top"}
# # 21 Long contexts: exercises
#
# The tokens of one sample lie on n ranks, and attention sees them all. You deal out a text with its labels, build a ring for tokens in any order, its backward where heads share keys, the other way with all-to-alls, and the mean loss of all tokens. In the end you choose a way for a machine.
#
# Six exercises with 16 points are checked at once; the seventh, 2 points, is graded by hand. After each of the six, run the check: it compares what your function returns with what one rank with the whole sample finds, on 1 to 4 ranks, then in real processes. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, run the function in a `World` of your own.
#
# You may call `minidist.split`, and from exercise 4 on `minidist.collectives`. What is refused here is `minidist.parallel`. Scores are q·kᵀ/√D throughout, and numbers are in float64 unless a table says otherwise.

# %% nbgrader={"grade_id": "setup"}
import torch

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_, all_to_all
from minidist.comm import World
from minidist.split import bounds, uneven

# %% [markdown] nbgrader={"grade_id": "zigzag_spec"}
# ## 1 · Deal out a text (2 points)
#
# The lesson dealt out chunks in zigzag order. Now do it with a real text, whose length 2n need not divide, and with the labels.
#
# | | |
# |---|---|
# | call | `zigzag(comm, text)` |
# | `text` | T + 1 tokens, int64, the same on all ranks; **not changed**. The first T are what the model reads |
# | returns | `(places, tokens, labels)` of this rank, int64 each, equally long |
# | `places` | positions in the text: those of chunk r in rising order, then those of chunk 2n − 1 − r |
# | `tokens`, `labels` | the text at these places; for each of them the token that follows it in the text |
# | cost | no message |
#
# The chunks are those of `uneven(T, 2 * comm.size)`, also where 2n does not divide T and where some are empty. About 6 lines.
#
# <details><summary>Hint</summary>
#
# `bounds(…)` gives (first, end) of every chunk. `torch.arange(first, end)` counts, and `torch.cat` puts two together. A tensor can be indexed by a tensor.
#
# </details>


# %% nbgrader={"grade_id": "zigzag", "solution": true}
def zigzag(comm, text):
    """(places, tokens, labels) of this rank, int64."""
    ### BEGIN SOLUTION
    T = len(text) - 1
    chunks = bounds(uneven(T, 2 * comm.size))
    early, late = chunks[comm.rank], chunks[2 * comm.size - 1 - comm.rank]
    places = torch.cat([torch.arange(*early), torch.arange(*late)])
    return places, text[places], text[places + 1]
    ### END SOLUTION


# %% nbgrader={"grade_id": "zigzag_test", "points": 2}
check.zigzag(zigzag)

# %% [markdown] nbgrader={"grade_id": "zigzag_target"}
# **Target:** the pairs of a query and a key before it, or itself, are as many on each rank, nearly.

# %%
with check.limit(10):
    own = World(4).run(lambda comm: zigzag(comm, torch.arange(65))[0])
study.bars(
    {f"rank {r}": int((places + 1).sum()) for r, places in enumerate(own)},
    title="Pairs of a query and a key, 64 tokens",
)

# %% [markdown] nbgrader={"grade_id": "ring_forward_spec"}
# ## 2 · A ring for tokens in any order (4 points)
#
# The ring of the lesson knew from the ranks' numbers which keys a query may see. Now the tokens may lie in *any* order: zigzag, dealt out one by one, shuffled. Each rank is told the places of its own tokens and nothing about the others.
#
# | | |
# |---|---|
# | call | `ring_forward(comm, q, k, v, places)` |
# | `q`, `k`, `v` | of this rank's tokens, (T/n, D), in the order of `places`; **not changed** |
# | `places` | the positions of this rank's tokens in the sample, (T/n,), int64, in any order; **not changed** |
# | returns | `(out, lse)`, (T/n, D) and (T/n,): attention of this rank's queries to the keys of all ranks at their own place or before it, and log Σ exp of a query's scores with these |
# | cost | at most 2(n − 1) messages of a rank: n − 1 times keys and values, 2·T/n·D numbers in one message, and the T/n places, eight bytes each |
#
# **What to expect:** scores may be in the hundreds, where exp is infinite. And a query may see no key of a block at all: its log-sum-exp there is −inf, and softmax would be 0/0. About 20 lines.
#
# <details><summary>Hint</summary>
#
# Begin with your own block: each query sees at least itself there. After that the log-sum-exp of all blocks so far is finite. `scores.logsumexp(1)` of a row of −inf is −inf, and `torch.logaddexp` can take that. exp(scores − *both*), with the log-sum-exp of everything so far, needs no softmax of the block alone.
#
# </details>


# %% nbgrader={"grade_id": "ring_forward", "solution": true}
def ring_forward(comm, q, k, v, places):
    """(out, lse) of this rank's queries, of the keys of all ranks that are not after them."""
    ### BEGIN SOLUTION
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    block = torch.stack([k, v])
    theirs = places
    out = torch.zeros_like(q)
    lse = q.new_full(q.shape[:1], -torch.inf)
    for step in range(comm.size):
        if step > 0:
            block = comm.sendrecv(block, right, torch.empty_like(block), left)
            theirs = comm.sendrecv(theirs, right, torch.empty_like(theirs), left)
        scores = q @ block[0].T * q.shape[1] ** -0.5
        scores = scores.masked_fill(theirs > places[:, None], -torch.inf)
        more = scores.logsumexp(1)
        both = torch.logaddexp(lse, more)
        new = (scores - both[:, None]).exp() @ block[1]
        out = out * (lse - both).exp()[:, None] + new
        lse = both
    return out, lse
    ### END SOLUTION


# %% nbgrader={"grade_id": "ring_forward_test", "points": 4}
check.ring_forward(ring_forward)

# %% [markdown] nbgrader={"grade_id": "ring_forward_target"}
# **Target:** no error, in whatever order the tokens lie, and however large the scores are.

# %%
random = torch.Generator().manual_seed(0)
sample = torch.randn(3, 12, 4, generator=random, dtype=torch.float64)
orders = {
    "contiguous": torch.arange(12),
    "one by one": torch.arange(12).view(4, 3).T.reshape(-1),
    "shuffled": torch.randperm(12, generator=random),
}


def off(order, size):
    """The largest error of a result on 3 ranks, where scores are as large as that."""
    q, k, v = sample * torch.tensor([size, 1, 1])[:, None, None]
    scores = (q @ k.T / 2).masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), -torch.inf)

    def program(comm):
        own = order.split(4)[comm.rank]
        return ring_forward(comm, q[own], k[own], v[own], own)[0]

    with check.limit(10):
        parts = World(3).run(program)
    return round(float((torch.cat(parts) - (scores.softmax(1) @ v)[order]).abs().max()), 9)


study.bars(
    {f"{name}, scores × {size}": off(orders[name], size) for name in orders for size in (1, 1000)},
    title="Largest error of the result",
)

# %% [markdown] nbgrader={"grade_id": "ring_backward_spec"}
# ## 3 · Backward, where heads share keys (4 points)
#
# The lesson's backward had one head. Now there are *a* heads of queries and *g* heads of keys and values, and *g* divides *a*: the heads of queries h·a/g … (h + 1)·a/g − 1 all look at head h of the keys. No key is masked here: each query sees all of them.
#
# | | |
# |---|---|
# | call | `ring_backward(comm, grad, q, k, v, out, lse)` |
# | `q`, `grad`, `out` | of this rank's tokens, (a, T/n, D): queries, the gradient of the result, the result |
# | `k`, `v` | of this rank's tokens, (g, T/n, D) |
# | `lse` | log Σ exp of a query's scores with *all* keys, (a, T/n). **Nothing is changed** |
# | returns | `(dq, dk, dv)`, shaped as q, k and v: their gradients, of the sum of the losses of all ranks |
# | cost | at most 2n − 1 messages of a rank: a block, n − 1 times, and its two gradients, n times; 2·g·T/n·D numbers each, so with *g* heads, not *a*. One rank alone sends nothing |
#
# Scores may be in the thousands. About 20 lines.
#
# <details><summary>Hint</summary>
#
# `x.unflatten(0, (g, a // g))` makes (g, a/g, T/n, D) of queries, and keys (g, 1, T/n, D) fit beside them. What a head of keys owes to its a/g heads of queries adds up. For the messages: if the sums travel after every step, they are home after n of them.
#
# </details>


# %% nbgrader={"grade_id": "ring_backward", "solution": true}
def ring_backward(comm, grad, q, k, v, out, lse):
    """The gradients of this rank's queries, keys and values."""
    ### BEGIN SOLUTION
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    block, scale = torch.stack([k, v]), q.shape[-1] ** -0.5
    shape = (len(k), len(q) // len(k))
    queries, g = q.unflatten(0, shape), grad.unflatten(0, shape)
    whole = lse.unflatten(0, shape)[..., None]
    rows = (g * out.unflatten(0, shape)).sum(-1, keepdim=True)
    dq, sums = torch.zeros_like(queries), torch.zeros_like(block)
    for step in range(comm.size):
        if step > 0:
            block = comm.sendrecv(block, right, torch.empty_like(block), left)
        keys, values = block[:, :, None]
        P = (queries @ keys.mT * scale - whole).exp()
        dS = P * (g @ values.mT - rows)
        dq += dS @ keys * scale
        sums += torch.stack([(dS.mT @ queries * scale).sum(1), (P.mT @ g).sum(1)])
        if comm.size > 1:
            sums = comm.sendrecv(sums, right, torch.empty_like(sums), left)
    return dq.flatten(0, 1), sums[0], sums[1]
    ### END SOLUTION


# %% nbgrader={"grade_id": "ring_backward_test", "points": 4}
check.ring_backward(ring_backward)

# %% [markdown] nbgrader={"grade_id": "ring_backward_target"}
# **Target:** 480 bytes for each head of keys, however many heads of queries share it: five messages of 96 bytes.


# %%
def bytes_sent(g):
    """By rank 0 of 3, for 4 heads of queries and g of keys, 3 tokens of size 2 on a rank."""
    q, grad, out = torch.zeros(3, 4, 3, 2, dtype=torch.float64)
    k, v = torch.zeros(2, g, 3, 2, dtype=torch.float64)
    lse = torch.full((4, 3), 9.0, dtype=torch.float64).log()
    world = World(3)
    with check.limit(10):
        world.run(ring_backward, grad, q, k, v, out, lse)
    return world.trace.bytes_sent(0)


study.bars(
    {f"g = {g}": bytes_sent(g) for g in (1, 2, 4)},
    title="What rank 0 of 3 sends in backward",
)

# %% [markdown] nbgrader={"grade_id": "heads_for_tokens_spec"}
# ## 4 · Heads for tokens, when nothing divides (2 points)
#
# In the lesson *n* divided both the heads and the tokens. Here it need not divide either: rank r has `uneven(T, n)[r]` tokens, and is to have `uneven(a, n)[r]` heads, which may be none.
#
# | | |
# |---|---|
# | call | `heads_for_tokens(comm, x, T)` |
# | `x` | of this rank's tokens all heads, (a, T_r, D), where T_r = `uneven(T, n)[r]`; **not changed** |
# | `T` | tokens of all ranks together |
# | returns | of this rank's heads all tokens, in order, (a_r, T, D), where a_r = `uneven(a, n)[r]`; the heads are neighbours, rank 0 has the first ones |
# | cost | one all-to-all: each number is sent once, and those of a rank's own heads and tokens not at all |
#
# About 6 lines.
#
# <details><summary>Hint</summary>
#
# `all_to_all(comm, flat, sent, came)` takes a flat tensor and two lists: how many numbers go to each rank, and how many come from each. What rank s sends you are a_r heads of *its* tokens: give each piece its own shape before you join them.
#
# </details>


# %% nbgrader={"grade_id": "heads_for_tokens", "solution": true}
def heads_for_tokens(comm, x, T):
    """Of this rank's heads all tokens, (a_r, T, D)."""
    ### BEGIN SOLUTION
    a, own, D = x.shape
    heads, tokens = uneven(a, comm.size), uneven(T, comm.size)
    mine = heads[comm.rank]
    came = [mine * t * D for t in tokens]
    flat = all_to_all(comm, x.reshape(-1), [h * own * D for h in heads], came)
    parts = [part.view(mine, t, D) for part, t in zip(flat.split(came), tokens)]
    return torch.cat(parts, 1)
    ### END SOLUTION


# %% nbgrader={"grade_id": "heads_for_tokens_test", "points": 2}
check.heads_for_tokens(heads_for_tokens)

# %% [markdown] nbgrader={"grade_id": "heads_for_tokens_target"}
# **Target:** rank 0 has heads 1 and 2 of the tokens 0 to 4, rank 1 head 3.

# %%
x = torch.arange(10.0, 40, 10)[:, None, None] + torch.arange(5.0)[:, None]  # (heads, tokens, 1)
with check.limit(10):
    found = World(2).run(
        lambda comm: heads_for_tokens(comm, x.split((3, 2), 1)[comm.rank], 5)[:, :, 0]
    )
study.holdings({"own heads, all tokens": [list(rows) for rows in found]}, title="Tens say the head")

# %% [markdown] nbgrader={"grade_id": "mean_loss_spec"}
# ## 5 · The mean of all tokens (2 points)
#
# Each rank has the losses of its own tokens. Some tokens do not count: padding, or a prompt. So ranks have different numbers of tokens that do, and one may have none.
#
# | | |
# |---|---|
# | call | `mean_loss(comm, losses, counted)` |
# | `losses` | of this rank's tokens, (T/n,); what does not count may be anything; **not changed** |
# | `counted` | which tokens count, bool, (T/n,) |
# | returns | `(loss, factor)`: the mean over the tokens of all ranks that count, the same on all; the factor by which this rank's *mean* has to be multiplied so that the sum over the ranks is that loss |
# | cost | one all-reduce of two numbers |
#
# Both are tensors without a dimension, of the dtype of `losses`. A rank without such tokens has factor 0. On some rank some token counts. About 5 lines.
#
# <details><summary>Hint</summary>
#
# A mean of means is right where all have as many. What adds up are sums, and numbers of tokens. `torch.where(counted, losses, 0)` is 0 where a product with 0 would be nan.
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
# One layer of a causal GPT: 131,072 tokens on 8 ranks, 32 heads of size 128, 8 heads of keys and values, one sample, two bytes a number. Bytes are what **one rank** sends in **forward**.
#
# | | |
# |---|---|
# | `ring` | bytes by a ring: the blocks of keys and values of others |
# | `heads` | bytes by all-to-alls: queries, keys and values there, the results back |
# | `kept` | bytes that a rank keeps of keys and values for backward |
# | `slowest` | pairs of a query and a key that the slowest rank computes in the contiguous order, for one head. **Its kernel computes a block on the diagonal whole**, unlike the lesson's |
# | `balanced` | the same for a rank in the zigzag order, with the same kernel |
# | `tokens` | from how many tokens on each rank do the ring's messages hide in **backward**, in zigzag order? A rank computes 400 TFLOP/s and receives 25 GB/s; in each step it computes the five products of backward for two of four pairs of chunks, and receives a block in two bytes a number and the sum of its gradients in four |
#
# Numbers within 1 % count. Latency and merging are left out.


# %% nbgrader={"grade_id": "predict_context", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_context.numbers(STUDENT)
ring = heads = kept = slowest = balanced = tokens = None
### BEGIN SOLUTION
n = 8
T = 131_072
D = 128
ring = (n - 1) * 2 * 8 * T // n * D * 2
heads = (n - 1) / n * (2 * 32 + 2 * 8) * T // n * D * 2
kept = 2 * 8 * T // n * D * 2
slowest = n * (T // n) ** 2
balanced = (2 * n + 1) * (T // (2 * n)) ** 2
tokens = 8 / 32 * 2 * 400e12 / 25e9 * 3 / 2.5
### END SOLUTION


# %% nbgrader={"grade_id": "predict_context_test", "points": 2}
check.predict_context(ring, heads, kept, slowest, balanced, tokens, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "which_context_spec"}
# ## 7 · Which way? (2 points, graded by hand)
#
# A causal layer has 32 heads of queries and 8 heads of keys and values, of size 128, in two bytes a number. One sample lies on 32 GPUs, four nodes of eight. A GPU computes 500 TFLOP/s, receives 400 GB/s from its own node and 40 GB/s from another, and sends as fast; latency and merging are left out. Consider attention in forward, in three ways:
#
# - a zigzag ring over all 32 GPUs (each step waits for the slowest of its messages);
# - heads inside each node and a zigzag ring between the four nodes: after the all-to-all a GPU has one head of keys and its four heads of queries, for all of its node's tokens, and passes its keys and values to the same GPU of the next node;
# - heads over all 32 GPUs, with each head of keys copied so that every head of queries has one of its own (each GPU sends 31/32 of what it then has, at the speed between nodes).
#
# **For which lengths of the sample is which way the fastest? How long does each take for 131,072 tokens, and which would you take there?**
#
# First draw the time against the number of tokens, from 8,192 to 1,048,576, for the three ways, beside the time of computing alone. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which one sees who is the fastest where; the three times for 131,072 tokens |
# | ½ | why the combination hides its messages from fewer tokens on than the ring, by which factor, and what it pays for that |
# | ½ | the choice for 131,072 tokens with a reason, and the length from which on the ring over all is at least as good |

# %% nbgrader={"grade_id": "which_context_plot", "solution": true}
### BEGIN SOLUTION
RATE = 500e12  # FLOP/s
NEAR = 400e9  # bytes a second
FAR = 40e9
a = 32  # heads of queries
g = 8  # heads of keys
D = 128
n = 32
nodes = 4


def by_ring(T, ranks, heads, groups):
    """A zigzag ring with T/ranks tokens, and so many heads, on each of its ranks."""
    t = T / ranks
    computing = 2 * t * t * heads * D / RATE
    sending = 2 * t * groups * D * 2 / FAR
    return computing + (ranks - 1) * max(computing, sending)


def combined(T):
    exchanged = 7 / 8 * T / n * (2 * a + 2 * g) * D * 2
    return by_ring(T, nodes, a // 8, g // 8) + exchanged / NEAR


def by_heads(T):
    exchanged = (n - 1) / n * T / n * 4 * a * D * 2
    return 2 * T * T * a * D / n / RATE + exchanged / FAR


Ts = [2**i for i in range(13, 21)]
ways = {
    "ring over 32": lambda T: by_ring(T, n, a, g),
    "heads inside, ring between": combined,
    "heads over 32, copied": by_heads,
    "computing alone": lambda T: 2 * T * T * a * D / n / RATE,
}
for name, way in ways.items():
    print(f"{name}: {1e3 * way(131_072):.2f} ms for 131,072 tokens")
study.curves(
    {name: (Ts, [way(T) for T in Ts]) for name, way in ways.items()},
    logx=True,
    logy=True,
    yunit="s",
    xlabel="tokens of the sample",
    ylabel="attention of a layer, forward",
    title="32 GPUs in four nodes",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "which_context", "solution": true, "points": 2}
# The combination is the fastest up to about 197,000 tokens, the ring over all 32 from there on; heads over all 32 never are. For 131,072 tokens the ring takes 13.3 ms, the combination 9.0 ms, heads over all 12.0 ms, and computing alone 8.8 ms. I would take the combination.
#
# A message hides when the block beside it takes longer. Both rings pass messages of the same size between nodes, 2 · T/32 · 8 · 128 · 2 bytes and 2 · T/4 · 1 · 128 · 2 bytes, but in the ring over all there are 31 of them and in the combination three, so a block takes eight times as long there. The ring's messages hide from t = (8/32) · 2 · 500e12/40e9 = 6,250 tokens on each GPU, which is a sample of 200,000; those of the combination from 25,000, an eighth.
#
# It pays with the all-to-alls inside the node, before and after attention, which nothing hides: 7/8 · T/32 · 80 · 128 · 2 bytes at 400 GB/s, 0.18 ms for 131,072 tokens. That is little because links inside the node are fast. Once the ring over all hides everything it has nothing left to pay, and it is ahead, by less than 1.1 %. Heads over all 32 send through the slow network with nothing to hide it, and copies of keys make it more.
