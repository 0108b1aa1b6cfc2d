# %% [markdown]
# # 21 · Long contexts
#
# A model is to read whole books: samples of 131,072 tokens. In every lesson so far attention had at least one whole sample on one rank. Now even one sample is too much. Take a model of the size of LLaMA-3 8B, with 32 layers of width $H = 4096$. By the formula of [The walls](lesson:walls), a layer keeps about $34\,T H$ bytes for backward when attention is computed in tiles, so *one* sample of *T* tokens keeps

# %%
T = 131_072  # tokens
H = 4096
LAYERS = 32
print(f"kept by all layers:       {34 * T * H * LAYERS / 1e9:.0f} GB")
print(
    f"only the layers' inputs:  {2 * T * H * LAYERS / 1e9:.0f} GB, with everything else recomputed"
)
print(f"the layer in hand:        {34 * T * H / 1e9:.0f} GB, while it is recomputed")

# %% [markdown]
# [Data parallelism](lesson:data_parallel) does not help, because it deals out samples, and there is no smaller piece than one. [Recomputation](lesson:remat) helps once, and then we are at its end: 34 GB fit into a GPU of 80 GB if little else has to be there, the layer that is being recomputed needs 18 GB more, and a sample of twice the length needs twice as much of everything. What remains is to split the sample itself: eight ranks, each with an eighth of its tokens. This is [context parallelism](term:context-parallel). (Sequence parallelism, in [Tensor parallel](lesson:tensor), splits the tokens as well, but gathers them again before each attention.)
#
# Nearly everything in a transformer works on each token alone: norms, matrices, GELU. These do not notice the split. Only attention looks from token to token, and it is also what costs most in a long sample, because its work grows with $T^2$. In a causal model each token attends to those before it and to itself.
#
# So let us give rank 0 the first eighth, rank 1 the next, and so on, and let messages be free. **How many times as fast is causal attention on eight GPUs as on one?**

# %%
guess = 8.0  # times as fast: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 keys
#
# Begin with a single query. It has a score $x_j$ with every key j, and attention returns the weighted mean of the values $v_j$: each is multiplied by its weight $e^{x_j}$, and the sum is divided by the sum of the weights. Let the six weights be 1, 1, 2, 4, 1, 1 and the values (of one number each) 4, 8, 3, 6, 10, 20. The result is
#
# $$\frac{1\cdot4+1\cdot8+2\cdot3+4\cdot6+1\cdot10+1\cdot20}{1+1+2+4+1+1}=\frac{72}{10}=7.2.$$
#
# Now three ranks have two keys each, and each computes attention over its own two. The results are 6, 5 and 15. Their mean is 8.67, which is wrong: the second block has more weight than the others. But if each rank also says *how much weight* it has seen, 2, 6 and 2, then everything can be put right, and two blocks at a time:
#
# ![One query, six keys in three blocks. Block 0 has the sum of weights 2 and the result 6, block 1 has 6 and 5, block 2 has 2 and 15. Blocks 0 and 1 merge into the sum 8 and the result 5.25; with block 2 the sum is 10 and the result 7.2, the result of all six keys.](../course/21_long_contexts/figures/merge.svg)
#
# Read it from top to bottom. A partial result and its sum of weights are all that must be kept of a block; the keys and values themselves may go.
#
# ## Merging two partial results
#
# [Operators and graphs](lesson:operators) introduced [online softmax](term:online-softmax) for tiles of one row, with a maximum and a sum. Here we need it for *finished results* that arrive from elsewhere, so let us derive it in that form.
#
# 1. For a block A of keys write $s_A=\sum_{j\in A}e^{x_j}$ for the sum of its weights. Its result is $o_A=\frac{1}{s_A}\sum_{j\in A}e^{x_j}v_j$. So $s_A\,o_A$ is the plain sum, without the division.
# 2. Plain sums over two blocks add up. The result of both blocks together is therefore
#
# $$o=\frac{s_A\,o_A+s_B\,o_B}{s_A+s_B}.$$
#
# 3. In floating point $e^{x}$ overflows: in fp32 from $x = 89$ on. So we never store a sum, only its logarithm, the [log-sum-exp](term:log-sum-exp) $\ell_A=\log s_A$, which is no larger than the largest score plus the logarithm of the number of keys. (It is the one number for each query that the tiles kept for backward, there written as $m+\log s$.)
# 4. Divide numerator and denominator by $s = s_A + s_B = e^{\ell}$:
#
# $$\ell=\log\left(e^{\ell_A}+e^{\ell_B}\right),\qquad o=o_A\,e^{\ell_A-\ell}+o_B\,e^{\ell_B-\ell}.$$
#
# 5. Both exponents are at most zero, because $\ell$ is at least as large as either of the two. The factors lie between 0 and 1 and add up to 1. So the merged result is a weighted mean of the two partial results, and nothing overflows. `torch.logaddexp` computes the new $\ell$ safely, by taking out the larger of the two.
#
# Merging is associative and does not care about order, because adding sums does not. It also has a neutral element, with which a loop can begin: the result 0 with $\ell=-\infty$, a block without keys. Only two blocks *without keys* must not be merged in this way, because $-\infty-(-\infty)$ is not a number. In code, first one block, then the merge:

# %%
import math

import torch
from IPython.display import display

from minidist import study
from minidist.comm import World, launch


def block(q, k, v, mask=None):
    """Attention of queries (t, D) to one block of keys and values: the result, and log-sum-exp."""
    scores = q @ k.T * q.shape[1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(1)
    weights = (scores - lse[:, None]).exp()
    return weights @ v, lse


def merge(out, lse, more, lse_of_more):
    """The results for two sets of keys become the result for both together."""
    both = torch.logaddexp(lse, lse_of_more)
    out = out * (lse - both).exp()[:, None] + more * (lse_of_more - both).exp()[:, None]
    return out, both


scores = torch.tensor([1.0, 1, 2, 4, 1, 1]).log()
values = torch.tensor([4.0, 8, 3, 6, 10, 20])
query = torch.ones(1, 1)
out, lse = torch.zeros(1, 1), torch.full((1,), -torch.inf)
rows = []
for first in (0, 2, 4):
    k, v = scores[first : first + 2, None], values[first : first + 2, None]
    more, lse_of_more = block(query, k, v)  # with a query of 1, a key is its score
    out, lse = merge(out, lse, more, lse_of_more)
    sums = [round(float(x.exp()), 3) for x in (lse_of_more, lse)]
    rows.append((f"{first}, {first + 1}", float(more), sums[0], round(float(out), 4), sums[1]))
study.table(
    rows,
    ["keys", "result of the block", "its sum", "result so far", "sum so far"],
    title="The numbers of the drawing",
)

# %% tags=["maintainer"]
assert abs(float(out) - 7.2) < 1e-5

# %% [markdown]
# The last row has 7.2, as it should be.
#
# ## The naive way: gather all keys and values
#
# Before the ring, the obvious program. Each rank keeps its queries and gathers the keys and values of all others with one [all-gather](term:all-gather). Then it has all it needs. Causality is a mask: a query at position i sees the keys at positions up to i, so a rank has to know *where* its tokens are.

# %%
from minidist.collectives import all_gather


def gathered(comm, q, k, v):
    keys, values = all_gather(comm, k), all_gather(comm, v)  # (T, D) each, on every rank
    t = len(q)
    own = torch.arange(comm.rank * t, (comm.rank + 1) * t)
    mask = torch.arange(len(keys)) <= own[:, None]
    return block(q, keys, values, mask)[0]


# %% [markdown]
# This is exact and short, and it is not a bad idea: LLaMA 3 was trained in this way ([Dubey et al.](paper:dubey2024), section 3.3.2), because with few heads of keys and values these are small beside everything else. But each rank holds all keys and values at once, so *their* memory is not divided by *n*, and this program computes nothing before all of them have arrived.
#
# ## The idea of the ring
#
# A rank does not need all blocks at the same time. Because results merge, it can look at one block, keep the result so far, and forget the block. So let the blocks travel around a ring: this is [ring attention](term:ring-attention) ([Liu et al.](paper:liu2023a)).
#
# ![Four ranks in four steps. Each rank keeps its queries. In step 0 every rank has its own block of keys and values; between two steps every block moves to the next rank, and from the last rank to rank 0. After four steps each rank has had every block. Blocks of later tokens are dashed: causal attention leaves them out, so that rank 0 has one block to work on and rank 3 has four.](../course/21_long_contexts/figures/ring_attention.svg)
#
# Read along a row to see what a rank does: its queries stay, and the blocks come by. Follow a colour to see a block travel. (Dashed blocks are in the future of the rank's queries. We come back to them.) At step s rank r has the block of rank $r-s$, counted around the ring. After *n* steps every query has met every key, with $n-1$ messages from each rank.
#
# In the ring of an [all-reduce](term:ring-all-reduce) sums travel. Here the *data* travel, unchanged, and the sums stay. Why not the other way round, queries that travel? Then partial results and log-sum-exps would have to travel with them and come home at the end. Keys and values need not come home, and with grouped heads (see below) they are much smaller.


# %%
def mask_of(rank, source, t):
    """Which keys of rank `source` each query of rank `rank` sees, where t tokens are on each rank."""
    queries = torch.arange(rank * t, (rank + 1) * t)
    keys = torch.arange(source * t, (source + 1) * t)
    return keys <= queries[:, None]


def ring_forward(comm, q, k, v):
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    travelling = torch.stack([k, v])  # one message, not two
    out, lse = torch.zeros_like(q), q.new_full((len(q),), -torch.inf)
    for step in range(n):
        source = (rank - step) % n  # whose block this is
        if source <= rank:  # a later rank's keys are all in the future
            mask = mask_of(rank, source, len(q))
            out, lse = merge(out, lse, *block(q, *travelling, mask))
        if step < n - 1:
            came = torch.empty_like(travelling)
            travelling = comm.sendrecv(travelling, right, came, left, "K and V")
    return out, lse


# %% [markdown]
# The [oracle](term:oracle) is attention on one rank, with the whole sample. All programs get the same random numbers in double precision, 12 tokens of one head with $D = 4$, and each rank cuts out its rows.

# %%
generator = torch.Generator().manual_seed(0)
Q, K, V, GRAD = torch.randn(4, 12, 4, generator=generator, dtype=torch.float64)


def own(comm, x):
    return x.chunk(comm.size)[comm.rank]


def on_ranks(n, attention, q=Q, k=K, v=V):
    """Run an attention on n ranks; all tokens' results, and the trace."""
    world = World(n)
    parts = world.run(lambda comm: attention(comm, own(comm, q), own(comm, k), own(comm, v)))
    return torch.cat(parts), world.trace


def serial(q, k, v):
    causal = torch.ones(len(q), len(k), dtype=torch.bool).tril()
    return block(q, k, v, causal)[0]


def ring_attention(comm, q, k, v):
    return ring_forward(comm, q, k, v)[0]


expected = serial(Q, K, V)
for name, attention in (("gathered", gathered), ("ring", ring_attention)):
    for n in (2, 3, 4):
        found, trace = on_ranks(n, attention)
        print(name, "on", n, "ranks is the serial attention:", torch.allclose(found, expected))
study.messages(trace, clock="steps", label=None, title="A ring on 4 ranks: 3 messages from each")

# %% tags=["maintainer"]
for n in (1, 2, 3, 4):
    for attention in (gathered, ring_attention):
        assert (on_ranks(n, attention)[0] - expected).abs().max() < 1e-12

# %% [markdown]
# It is exact, like nearly everything in this course: the same sums, in another order. Attention to a window, or to a few chosen tokens, saves work by computing another function. Ring attention computes the same function in another place. Its messages, in the picture above, are the three moves between the four steps of the schematic.
#
# ## Backward: the gradients come home
#
# A rank's queries used every block, so a block's keys and values owe their gradient to all ranks. Autograd could do it if each rank kept all blocks that came by, but then all keys and values would be in everybody's memory again. Instead we do what tiled attention did in [Operators and graphs](lesson:operators): keep only q, k, v, the result and the log-sum-exp, and compute each block of weights again.
#
# Why are these enough? Take the log-sum-exp over *all* keys. Then $P = e^{x-\ell}$, for the scores of just one block, is the block's piece of the whole softmax. Write $do$ for the gradient of the result, and $dv$, $dP$ and so on for the others.
#
# - The result is $\sum_j P_j v_j$. So $dv = P^\top do$ for each block.
# - The gradient of $P$ is $dP=do\,v^\top$. Through a softmax, the gradient of the scores is $dS = P\circ(dP - c)$, where for each query $c=\sum_j P_j\,dP_j$ runs over *all* keys, in all blocks. That seems to need another round of messages. But $\sum_j P_j\,(do\cdot v_j)=do\cdot\sum_j P_jv_j=do\cdot o$, and $o$ is at hand.
# - So $dS=P\circ(do\,v^\top-\mathrm{rowsum}(do\circ o))$, and $dq=dS\,k/\sqrt D$ adds up over the blocks, $dk=dS^\top q/\sqrt D$ over the ranks.
#
# The blocks go round again. What each rank adds to the gradient of a block travels *behind* the block: a rank can pass the block on at once, but the sum only after it has worked on the block.
#
# ![The sum of gradients of block 0 on three ranks. Rank 1 starts it with what its queries add, sends it to rank 2, which adds its own part and sends it to rank 0. Rank 0 owns the block, adds its own part and has the whole gradient. The block itself travels ahead of the sum.](../course/21_long_contexts/figures/backward.svg)


# %%
def block_backward(grad, q, k, v, out, lse, mask):
    """What one block adds to dq, and to dk and dv. out and lse are of all keys."""
    scale = q.shape[1] ** -0.5
    scores = (q @ k.T * scale).masked_fill(~mask, -torch.inf)
    P = (scores - lse[:, None]).exp()
    dS = P * (grad @ v.T - (grad * out).sum(1, keepdim=True))
    return dS @ k * scale, torch.stack([dS.T @ q * scale, P.T @ grad])


def ring_backward(comm, grad, q, k, v, out, lse):
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    travelling = torch.stack([k, v])
    dq = torch.zeros_like(q)
    home = torch.zeros_like(travelling)  # of the own block
    behind = None  # the sum that follows the block that we have now
    for step in range(n):
        source = (rank - step) % n
        added = torch.zeros_like(travelling)
        if source <= rank:
            mask = mask_of(rank, source, len(q))
            of_q, added = block_backward(grad, q, *travelling, out, lse, mask)
            dq += of_q
        if step == 0:
            home = added  # waits here for what the others add
        else:
            if behind is not None:
                added = added + behind
            behind = comm.sendrecv(added, right, torch.empty_like(added), left, "dK and dV")
        if step < n - 1:
            came = torch.empty_like(travelling)
            travelling = comm.sendrecv(travelling, right, came, left, "K and V")
    if behind is not None:
        home = home + behind
    return dq, home[0], home[1]


def forward_and_backward(comm):
    q, k, v, grad = (own(comm, x) for x in (Q, K, V, GRAD))
    out, lse = ring_forward(comm, q, k, v)
    return ring_backward(comm, grad, q, k, v, out, lse)


leaves = [x.clone().requires_grad_() for x in (Q, K, V)]
by_autograd = torch.autograd.grad(serial(*leaves), leaves, GRAD)
for n in (2, 3, 4):
    of_rank = World(n).run(forward_and_backward)
    whole = [torch.cat(parts) for parts in zip(*of_rank)]
    equal = [torch.allclose(ours, theirs) for ours, theirs in zip(whole, by_autograd)]
    print(n, "ranks: dq, dk, dv are those of autograd:", *equal)

# %% tags=["maintainer"]
assert all((ours - theirs).abs().max() < 1e-12 for ours, theirs in zip(whole, by_autograd))

# %% [markdown]
# Follow the sum of rank r's block. At step 1 its right neighbour has the block and is the first to add. After $n-1$ hops the sum arrives at rank r, and `home` is waiting. So backward sends the blocks $n-1$ times and the sums $n-1$ times. In 16-bit training the sums should be in fp32, because up to *n* ranks add to them, so forward and backward together send four times the bytes of forward: once forward, once again for the block, and twice as much for the sums.
#
# ## The causal imbalance
#
# Now look at the line `if source <= rank`. Rank 0 computes one block and then stands by while $n-1$ blocks come by that are all in its future. The last rank has something to do at every step. Let us count, for every rank, the pairs of a query and a key that it has to look at: the query at position i sees $i+1$ keys.

# %%
n, tokens = 8, 64
contiguous = [torch.arange(tokens).chunk(n)[rank] for rank in range(n)]


def pairs(positions):
    return int((positions + 1).sum())


study.bars(
    {f"rank {rank}": pairs(contiguous[rank]) for rank in range(n)},
    target=tokens * (tokens + 1) // 2 / n,
    note="the mean",
    title="Pairs of a query and a key, 64 tokens on 8 ranks",
)

# %% [markdown]
# Rank r computes r whole blocks and half of the one on the diagonal, $(r+\frac{1}{2})\,(T/n)^2$ pairs. (The bars have a few more, $T/2n=4$ for each rank, because a query sees its own key too. In a long sample that makes no difference.) One rank alone would compute $\frac{1}{2}T^2$. All wait for the last rank, with $(n-\frac{1}{2})\,(T/n)^2$, so
#
# $$\text{times as fast}=\frac{T^2/2}{(n-\frac{1}{2})\,T^2/n^2}=\frac{n^2}{2n-1}.$$
#
# That is hardly more than *n*/2. Half of the GPUs' time goes into waiting. To see whether this holds when everything else takes its time too, we run the library's ring attention in a World that charges every operation what it takes on a modelled H100, with NVLink between eight of them. The layer is LLaMA-3 8B's: 32 heads of queries, each of size 128, but only 8 heads of keys and values, each of which serves four heads of queries ([grouped-query attention](term:grouped-query-attention)). On the device `"meta"` tensors have a shape and no numbers.

# %%
from minidist.comm.cluster import Cluster
from minidist.parallel import context

NODE = Cluster.dgx_h100(nodes=1)
HEADS = 32  # of queries
GROUPS = 8  # heads of keys and values
SIZE = 128  # of each head


def some_tokens(heads, t):
    return torch.empty(1, heads, t, SIZE, device="meta", dtype=torch.bfloat16)


def by_ring(comm, T, order, groups=GROUPS):
    q = some_tokens(HEADS, T // comm.size)
    k, v = some_tokens(groups, T // comm.size), some_tokens(groups, T // comm.size)
    context.ring_attention(q, k, v, comm, order=order)


def modelled(n, program, *args, cluster=NODE):
    world = World(n, cluster=cluster, device="meta")
    world.run(program, *args)
    return world


alone = modelled(1, by_ring, 524_288, "contiguous")
split = modelled(8, by_ring, 524_288, "contiguous")

# %% tags=["answer"]
study.reveal(
    guess,
    round(alone.time / split.time, 1),
    study.table(
        [
            ("one GPU", f"{alone.time:.2f} s", ""),
            ("eight, contiguous", f"{split.time:.2f} s", f"{alone.time / split.time:.1f} times"),
            ("by the formula", "", f"{8 * 8 / 15:.1f} times"),
        ],
        ["forward of one layer, 524,288 tokens", "modelled time", "as fast"],
        title="Causal attention, contiguous",
    ),
    unit="times",
    words="The last rank computes 15 times as much as the first. The formula leaves out what merging costs.",
)

# %% tags=["maintainer"]
assert 4.0 < alone.time / split.time < 64 / 15

# %% [markdown]
# ## Zigzag
#
# Early tokens are cheap and late tokens are expensive, so give every rank some of both. Cut the sample into $2n$ chunks. Rank r gets chunk r, counted from the front, and chunk $2n-1-r$, which is the r-th from the back. This order is called [zigzag](term:zigzag), after the way in which the ranks run down the chunks and back up.
#
# ![Sixteen tokens on four ranks. Contiguous, rank 0 has tokens 0 to 3 and rank 3 has 12 to 15, and they have 10, 26, 42 and 58 pairs of a query and a key. Zigzag, rank 0 has 0 1 14 15, rank 1 has 2 3 12 13, rank 2 has 4 5 10 11, rank 3 has 6 7 8 9, and each has 34 pairs.](../course/21_long_contexts/figures/zigzag.svg)
#
# **Why this is right.** Draw queries downward and keys to the right, in chunks:
#
# ![A causal table of eight chunks of queries by eight of keys on four ranks. Contiguous: rank r owns the rows 2r and 2r + 1 and computes 2, 6, 10 and 14 blocks, those on the diagonal counted half. Zigzag: rank r owns the rows r and 7 − r, and every rank computes 8.](../course/21_long_contexts/figures/causal.svg)
#
# A row of chunk c has c whole blocks to its left and half a block on the diagonal. The two rows of rank r have $r+\frac{1}{2}$ and $2n-1-r+\frac{1}{2}$ blocks: together $2n$, and r has dropped out. In sum over the run the ranks are equal. But that would not be enough, because they meet at every step: if one rank were busy in step 1 and the other in step 2, both would wait. So look at a single step, in which rank r has the block of rank s, with its early chunk s and its late chunk $2n-1-s$:
#
# - If $s<r$, both chunks of queries see the early keys, and neither sees the late ones.
# - If $s>r$, the late queries see both chunks of keys, and the early ones see neither.
# - If $s=r$, there are two diagonals and one whole pair.
#
# In every step but the first each rank computes exactly *two of four* pairs of chunks. The first step is two for everyone as well, if a diagonal counts half. So nobody waits, and the rank's time is $2n$ blocks of $(T/2n)^2$, an *n*-th of $T^2/2$ exactly.
#
# It costs not a byte more: the messages are the same. The price is that the work comes in smaller pieces, and that a rank has two runs of positions instead of one, and all that depends on positions has to know them.


# %%
def zigzag_chunks(n):
    return [(rank, 2 * n - 1 - rank) for rank in range(n)]


def chunks_to_compute(n, rank, source):
    """Pairs (query chunk, key chunk) of a step: those that are not wholly in the future."""
    found = []
    for query in zigzag_chunks(n)[rank]:
        for key in zigzag_chunks(n)[source]:
            if key <= query:
                found.append((query, key))
    return found


rows = []
for rank in range(4):
    steps = [chunks_to_compute(4, rank, (rank - step) % 4) for step in range(4)]
    rows.append([f"rank {rank}"] + [", ".join(f"{q}→{k}" for q, k in step) for step in steps])
study.table(
    rows,
    ["", "step 0 (own)", "step 1", "step 2", "step 3"],
    title="Chunks of queries → chunks of keys, zigzag on 4 ranks",
)

# %% tags=["maintainer"]
for step in range(1, 4):
    assert all(len(chunks_to_compute(4, rank, (rank - step) % 4)) == 2 for rank in range(4))

# %% [markdown]
# **By what factor is zigzag faster than the contiguous order on eight GPUs?** Divide the work of the last rank, $(n-\frac{1}{2})(T/n)^2$, by $T^2/(2n)$, before you look.

# %%
guess_gain = 1.0  # times: change this number

# %%
ns = [2, 4, 8]
gains = {8192: [], 131_072: [], 1_048_576: []}
for length in gains:
    for n in ns:
        times = [modelled(n, by_ring, length, order).time for order in ("contiguous", "zigzag")]
        gains[length].append(times[0] / times[1])
balanced = modelled(8, by_ring, 524_288, "zigzag")

# %% tags=["answer"]
study.reveal(
    guess_gain,
    round(15 / 8, 2),
    study.curves(
        {"(2n − 1)/n": (ns, [(2 * n - 1) / n for n in ns])},
        points={f"{length:,} tokens": (ns, gains[length]) for length in gains},
        xlabel="ranks, n",
        ylabel="contiguous / zigzag",
        title="What zigzag gains, predicted and run (modelled H100s)",
    ),
    unit="times",
    words="The longer the sample, the nearer the run comes to the formula.",
)

# %% tags=["maintainer"]
assert gains[1_048_576][-1] > 1.75 and gains[8192][-1] < 1

# %% [markdown]
# For a million tokens the prediction holds. For 8,192 the zigzag order is *slower*. To see why, let us add up what the last of eight ranks computes:


# %%
def time_of_last_rank(world):
    """How many blocks rank 7 computes, their milliseconds, and those of all else that it computes."""
    blocks = 0
    attention = 0.0
    rest = 0.0
    for span in world.trace.spans:
        if span.rank == 7 and span.kind == "compute":
            if "attention" in span.name:
                blocks += 1
                attention += span.end - span.start
            else:
                rest += span.end - span.start
    return blocks, f"{attention * 1e3:.2f}", f"{rest * 1e3:.2f}"


rows = [
    ("8,192", "contiguous", *time_of_last_rank(modelled(8, by_ring, 8192, "contiguous"))),
    ("8,192", "zigzag", *time_of_last_rank(modelled(8, by_ring, 8192, "zigzag"))),
    ("524,288", "contiguous", *time_of_last_rank(split)),
    ("524,288", "zigzag", *time_of_last_rank(balanced)),
]
study.table(
    rows,
    ["tokens", "order", "blocks", "in attention, ms", "in merges and copies, ms"],
    title="What rank 7 of 8 computes (modelled H100s)",
)

# %% tags=["maintainer"]
assert [row[2] for row in rows] == [8, 17, 8, 17] and NODE.device.launch == 5e-6

# %% [markdown]
# Zigzag computes 17 blocks where the last rank of the contiguous order computes 8, and merges as often. Each merge has half as many rows, so the bytes are nearly the same; but it consists of some ten small operations, and on this device each takes 5 µs to start, however little it does. With chunks of 512 tokens that costs more than the balance brings. A real kernel merges inside, and pays less. Still, **a context must be long to be worth splitting.**
#
# On the timeline one sees who waits. Above, the ranks finish their blocks one after the other, rank 0 long before rank 7; below, they work side by side, and each message travels while a block is computed.

# %%
study.timeline(
    {"contiguous": split.trace, "zigzag": balanced.trace},
    ranks=[0, 3, 7],
    memory=False,
    title="Three of eight modelled GPUs, 524,288 tokens",
)

# %%
study.viewer(balanced.trace, ranks=[0, 3, 7], title="Zigzag: zoom in and find the messages")

# %% [markdown]
# ## Does the message hide behind the block?
#
# Each step has a block to compute and a block to receive, and the library does both at once. The longer of the two counts. Let a rank have $t=T/n$ tokens, *a* heads of queries and *g* of keys and values, of size *D*, and let a number take *b* bytes.
#
# - The block to receive has $2\,t\,g\,D\,b$ bytes and takes $2\,t\,g\,D\,b\,\beta$.
# - In zigzag order half of $t\times t$ pairs are computed, at $4D$ FLOPs a pair and head: $2\,t^2aD/F$ at *F* FLOPs a second.
#
# The message is hidden if the second is longer:
#
# $$t\ \ge\ \frac ga\,b\,\beta F.$$
#
# The number of ranks has cancelled. So has the width. What counts is how many tokens *each rank* has, how fast its link is, and how few heads of keys there are. **From how many tokens per rank on does the message hide, through a network card of 48 GB/s, where each head of queries has its own keys ($g=a$)?** The rate F that the modelled GPU reaches in attention we read off the run on one of them:

# %%
RATE = 2 * 524_288**2 * HEADS * SIZE / alone.time  # FLOPs of T²/2 pairs, in a second
print(f"F = {RATE / 1e12:.0f} TFLOP/s")

# %%
guess_tokens = 1000  # tokens on each rank: change this number

# %%
far = Cluster.dgx_h100(nodes=2).link(0, 8)  # through the network cards
NETWORK = Cluster.uniform(4, far.alpha, far.beta, NODE.device)
ts = [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536]
predicted = {}
measured = {}
for groups in (32, 8):
    name = f"{groups} heads of keys"
    seconds = []
    for t in ts:
        computing = 2 * t * t * HEADS * SIZE / RATE
        sending = far.alpha + 2 * t * groups * SIZE * 2 * far.beta
        # four blocks, and a message beside each but the last
        seconds.append(computing + 3 * max(computing, sending))
    predicted[name] = ts, seconds
    worlds = [modelled(4, by_ring, 4 * t, "zigzag", groups, cluster=NETWORK) for t in ts]
    measured[name] = ts, [world.time for world in worlds]
needed = {groups: groups / HEADS * 2 * far.beta * RATE for groups in (32, 8)}

# %% tags=["answer"]
study.reveal(
    guess_tokens,
    round(needed[32], -3),
    study.curves(
        predicted,
        points=measured,
        logx=True,
        logy=True,
        yunit="s",
        xlabel="tokens on each rank",
        ylabel="forward of attention, 4 ranks",
        title="Zigzag ring through modelled network cards",
    ),
    unit="tokens",
    words=f"With 8 heads of keys a quarter suffices, {needed[8]:,.0f}. Where messages are longer the time grows with t, and where blocks are longer with t².",
)

# %% tags=["maintainer"]
for name in predicted:
    for ours, run in zip(predicted[name][1][2:], measured[name][1][2:]):
        assert 0.5 < ours / run < 1.05, (name, ours / run)

# %% [markdown]
# The points lie above the lines where blocks are small: that is the merging again, which the formula leaves out. In backward a block takes two and a half times the computing of forward (five products instead of two), and its message with the sum behind it three times the bytes, so backward needs a few more tokens than forward, a fifth more, before everything hides.
#
# ## The other way: heads for tokens
#
# There is another dimension along which attention falls apart: *heads* do not see each other. In [Tensor parallel](lesson:tensor) each rank had some heads from the start. Here each rank has some tokens, with all their heads. So exchange them: before attention give the other ranks *their* heads of your tokens, and get the other tokens of *your* heads. Then a rank has whole sequences, of fewer heads, and can run any serial attention. Afterwards the results go back. Each exchange is an [all-to-all](term:all-to-all). The method is [DeepSpeed-Ulysses](term:ulysses) ([Jacobs et al.](paper:jacobs2023)).
#
# ![A table of four parts of the tokens by four heads. Left: rank r has one part of the tokens with all heads, a row. An all-to-all turns this into the right side: rank r has all tokens of one head, a column. Attention is computed there. A second all-to-all turns the results back into rows.](../course/21_long_contexts/figures/heads.svg)
#
# An all-to-all is a transpose over ranks: what was cut by rows is then cut by columns. In code, queries, keys and values of all heads are (a, t, D), and we stack the three before the exchange, so that each rank gets one message instead of three:

# %%
from minidist.collectives import all_to_all


def heads_for_tokens(comm, x):
    """(…, a, t, D), all heads of own tokens → (…, a/n, T, D), own heads of all tokens."""
    n = comm.size
    parts = torch.stack(x.chunk(n, -3))  # part r, of the heads of rank r, goes to rank r
    came = all_to_all(comm, parts.reshape(-1)).view_as(parts)
    return torch.cat(list(came), -2)  # ranks in order: so are the tokens


def tokens_for_heads(comm, x):
    """The way back."""
    n = comm.size
    parts = torch.stack(x.chunk(n, -2))
    came = all_to_all(comm, parts.reshape(-1)).view_as(parts)
    return torch.cat(list(came), -3)


def heads_attention(comm, q, k, v):
    mine = heads_for_tokens(comm, torch.stack([q, k, v]))
    out = torch.stack([serial(*head) for head in mine.unbind(1)])  # one head after the other
    return tokens_for_heads(comm, out)


four_heads = torch.randn(3, 4, 12, 4, generator=generator, dtype=torch.float64)
expected_of_four = torch.stack([serial(*head) for head in four_heads.unbind(1)])
for n in (2, 4):
    parts = World(n).run(
        lambda comm: heads_attention(comm, *four_heads.chunk(comm.size, 2)[comm.rank])
    )
    print("heads, on", n, "ranks:", torch.allclose(torch.cat(parts, 1), expected_of_four))

# %% tags=["maintainer"]
assert (torch.cat(parts, 1) - expected_of_four).abs().max() < 1e-12

# %% [markdown]
# `serial` between the exchanges does not know that there are ranks. It has all tokens in order, so a causal mask is simple and perfectly balanced, because each head is as much work as any other. Backward needs no derivation either: the gradient of an all-to-all is the opposite all-to-all, because a message that carried numbers from rank r to rank s has to carry their gradients from s to r.
#
# ### Ring or heads: count the bytes
#
# A rank has $\mathcal Q = t\,a\,D$ numbers of queries and $\mathcal K=2\,t\,g\,D$ of keys and values. In forward
#
# - a *ring* sends the keys and values of $n-1$ blocks: $(n-1)\,\mathcal K$;
# - *heads* sends $\frac{n-1}n$ of queries, keys, values and results: $\frac{n-1}n(2\mathcal Q+\mathcal K)$.
#
# With a sample of a given length, t falls with *n*. The ring's bytes grow towards a limit: a rank sends all keys and values but one block, which is half of them on two ranks and nearly all on many. Those of heads fall, in the end like 1/*n*. The two are equal where $n\,\mathcal K=2\mathcal Q+\mathcal K$, which is $n=1+a/g$. **At which number of ranks is that, with our 32 and 8 heads?**

# %%
guess_ranks = 2  # change this number

# %%
from minidist.study import predict


def by_heads(comm, T, groups=GROUPS):
    q = some_tokens(HEADS, T // comm.size)
    k, v = some_tokens(groups, T // comm.size), some_tokens(groups, T // comm.size)
    # one fused block, with the diagonal through it: the serial causal attention
    context.heads_attention(q, k, v, comm, lambda q, k, v: context.fused_block(q, k, v, True)[0])


ns = [2, 3, 4, 5, 6, 7, 8]
length = 128 * 840  # 2 to 8 divide it
lines = {"ring": (ns, []), "heads": (ns, [])}
counted = {"ring": (ns, []), "heads": (ns, [])}
for n in ns:
    queries, keys = length // n * HEADS * SIZE * 2, 2 * length // n * GROUPS * SIZE * 2  # bytes
    lines["ring"][1].append((n - 1) * keys)
    lines["heads"][1].append((n - 1) / n * (2 * queries + keys))
    for way, args in {"ring": (by_ring, length, "contiguous"), "heads": (by_heads, length)}.items():
        trace = modelled(n, *args).trace
        counted[way][1].append(sum(trace.bytes_sent(rank) for rank in range(n)) / n)

# %% tags=["answer"]
study.reveal(
    guess_ranks,
    1 + HEADS // GROUPS,
    study.curves(
        lines,
        points=counted,
        yunit="B",
        xlabel="ranks, n",
        ylabel="bytes that a rank sends in forward (mean)",
        title="Ring and heads, predicted and counted",
    ),
    unit="ranks",
    words="With as many heads of keys as of queries they would be equal at two ranks, and heads would send less from three on.",
)

# %% tags=["maintainer"]
for n, ring, heads in zip(ns, counted["ring"][1], counted["heads"][1]):
    for way, count in (("ring", ring), ("heads", heads)):
        assert (
            round(count * n) == predict.context_bytes(n, way, 1, length, HEADS, GROUPS, SIZE, 2)[0]
        )

# %% [markdown]
# ### When which?
#
# Bytes are not everything. The ring's messages travel *while* a block is computed, and are free once a rank has enough tokens. Those of heads come before and after attention, when there is nothing else to do. On the other hand, heads runs one large kernel where the ring runs many small ones with merges between them. Let us see what the World says for eight ranks, with forward attention of our layer over a node's NVLink and over network cards:

# %%
APART = Cluster.uniform(8, far.alpha, far.beta, NODE.device)
lengths = [8192, 32_768, 131_072, 524_288]
rows = []
times = {}
for name, cluster in (("NVLink", NODE), ("network cards", APART)):
    for tokens in lengths:
        ring = modelled(8, by_ring, tokens, "zigzag", cluster=cluster).time * 1e3
        heads = modelled(8, by_heads, tokens, cluster=cluster).time * 1e3
        times[name, tokens] = ring, heads
        one = modelled(1, by_ring, tokens, "contiguous").time * 1e3
        rows.append((name, f"{tokens:,}", *(f"{ms:.2f}" for ms in (one, ring, heads))))
study.table(
    rows,
    ["links", "tokens", "one GPU, ms", "zigzag ring, ms", "heads, ms"],
    title="Attention of one layer, forward, on 8 modelled H100s",
)

# %% tags=["maintainer"]
assert all(ring > heads for ring, heads in times.values())
assert times["network cards", 524_288][0] / times["network cards", 524_288][1] < 1.1

# %% [markdown]
# With eight heads of keys on eight ranks, heads is ahead everywhere, in this model, and the longer the sample, the less it matters. (With 8,192 tokens the ring gains nothing at all over a single GPU: blocks of 512 tokens are too small.) So why use rings at all? Because the ninth rank finds no head. Heads stops at *g* ranks, the ring stops nowhere. LLaMA-3 405B was trained with 16 ranks to a context and has 8 heads of keys and values. (One may copy heads of keys until there are as many as heads of queries, for more bytes; then it stops at *a*.) [Tensor parallelism](lesson:tensor) splits the same heads, so with $n_t$ tensor ranks only $g/n_t$ of them are left to exchange.
#
# | | gathered | ring, zigzag | heads |
# |---|---|---|---|
# | bytes of a rank, forward | $(n-1)\,\mathcal K$ | $(n-1)\,\mathcal K$ | $\frac{n-1}n(2\mathcal Q+\mathcal K)$ |
# | hidden behind computing | no | yes, with enough tokens | no |
# | keys and values held | all, $n\,\mathcal K$ | its own, the one in use, the next: $3\,\mathcal K$ | all tokens of $g/n$ heads, $\mathcal K$ |
# | most ranks | any number | any number | *g* |
# | causal balance | by zigzag | by zigzag | by nature |
# | other masks, other attention | any mask | what can be cut into blocks | anything serial |
# | take it when | *g* is small, the context moderate | contexts are very long, or ranks many | $n \le g$, on fast links |
#
# The two can be combined: heads inside a node, where links are fast, and rings between nodes, where messages must hide ([Fang and Zhao](paper:fang2024)). The sliders show how the choice depends on the machine, the number of ranks and the heads. They leave out merging, so their ring is that of a kernel which merges inside, and it fares better than in the table. At first, with 32 heads of keys through network cards, heads is ahead until the ring's messages hide, at some 200,000 tokens. With 8 heads of keys they hide from 48,000 tokens on, and the ring is ahead almost everywhere. With more ranks than heads of keys there is only the ring:


# %%
def seconds(n, tokens, heads_of_keys, link):
    t = tokens / n
    cable = NODE.link(0, 1) if link == "NVLink" else far
    computing = 2 * t * t * HEADS * SIZE / RATE
    sending = cable.alpha + 2 * t * heads_of_keys * SIZE * 2 * cable.beta
    found = {"zigzag ring": 1e3 * (computing + (n - 1) * max(computing, sending))}
    exchanged = (n - 1) / n * t * (2 * HEADS + 2 * heads_of_keys) * SIZE * 2
    once = n * computing + 2 * (n - 1) * cable.alpha + exchanged * cable.beta
    found["heads"] = 1e3 * once if n <= heads_of_keys else None
    return found


study.explore(
    seconds,
    over="tokens",
    tokens=[2**k for k in range(12, 21)],
    n=[2, 4, 8, 16, 32, 64],
    heads_of_keys=[1, 4, 8, 32],
    link=["NVLink", "network"],
    labels={"n": "ranks", "heads_of_keys": "heads of keys"},
    start={"n": 8, "heads_of_keys": 32, "link": "network"},
    unit="ms",
    logx=True,
    logy=True,
    xlabel="tokens of the sample",
    ylabel="forward of attention",
    title="By the formulas, without merges: 32 heads of queries",
)

# %% [markdown]
# ## Memory: what it was for
#
# We began with a sample that did not fit. Now each rank keeps $1/n$ of every activation: of the inputs of norms, of what GELU needs, and of q, k, v and the result. We meter two transformer layers with 32,768 tokens, subtract the peak of one, and compare with the serial layer divided by *n*.

# %%
from minidist.models import TransformerLayer
from minidist.parallel.context import context_parallel_


def layers_step(comm, tokens, count):
    x = torch.empty(1, tokens // comm.size, 1024, device="meta", requires_grad=True)
    for _ in range(count):
        layer = TransformerLayer(1024, 8, device="meta")
        x = context_parallel_(layer, comm)(x)
    x.sum().backward()


def kept_by_a_layer(n):
    """Two layers' activations at the peak, less those of one."""
    peaks = [
        modelled(n, layers_step, 32_768, count).trace.memory[0].at_peak["activations"]
        for count in (1, 2)
    ]
    return peaks[1] - peaks[0]


ns = [1, 2, 4, 8]
metered = [kept_by_a_layer(n) for n in ns]
study.curves(
    {"serial / n": (ns, [metered[0] / n for n in ns])},
    points={"metered on rank 0": (ns, metered)},
    yunit="B",
    xlabel="ranks, n",
    ylabel="activations kept by a layer",
    title="A sample of 32,768 tokens, width 1,024",
)

# %% tags=["maintainer"]
assert all(abs(found * n / metered[0] - 1) < 0.001 for n, found in zip(ns, metered))

# %% [markdown]
# (One rank keeps $64\,TH$ bytes and not $34\,TH$, because numbers have four bytes here instead of two, and there is no dropout with its masks.)
#
# Model states are *not* divided: each rank has all weights, and its gradients are those of its tokens. They have to be added up over the ranks, or averaged, as in data parallelism, where each rank's loss is the mean over its own tokens. In practice [ZeRO](lesson:zero) shards them over the ranks of the context as well.
#
# ## Break it
#
# Four mistakes, each with its symptom. *Averaged* takes the mean of the blocks' results. *exp as it is* merges with sums of weights instead of their logarithms; we try it with scores of ordinary size and with large ones. *A rank's own positions* lets each rank count its tokens from 0, so that its mask is a triangle for every block. *Shifted after the split* concerns the labels: each token is to predict the next one, and if a rank shifts *its own* tokens by one, the last has no successor there.


# %%
def averaged(comm, q, k, v):
    n, rank = comm.size, comm.rank
    keys, values = all_gather(comm, k).chunk(n), all_gather(comm, v).chunk(n)
    seen = range(rank + 1)
    found = [block(q, keys[s], values[s], mask_of(rank, s, len(q)))[0] for s in seen]
    return sum(found) / len(found)


def exp_as_it_is(comm, q, k, v):
    keys, values = all_gather(comm, k), all_gather(comm, v)
    own = torch.arange(comm.rank * len(q), (comm.rank + 1) * len(q))
    weights = (q @ keys.T * q.shape[1] ** -0.5).exp()
    weights = weights * (torch.arange(len(keys)) <= own[:, None])
    return weights @ values / weights.sum(1, keepdim=True)


def own_positions(comm, q, k, v):
    n = comm.size
    keys, values = all_gather(comm, k).chunk(n), all_gather(comm, v).chunk(n)
    out, lse = torch.zeros_like(q), q.new_full((len(q),), -torch.inf)
    for source in range(n):
        mask = mask_of(0, 0, len(q))  # every block looks like the first one
        out, lse = merge(out, lse, *block(q, keys[source], values[source], mask))
    return out


rows = []
wrong = {}
for name, attention in {
    "right": ring_attention,
    "averaged": averaged,
    "exp as it is": exp_as_it_is,
    "a rank's own positions": own_positions,
}.items():
    errors = []
    for size in (1, 2000):
        found, _ = on_ranks(3, attention, q=size * Q)
        correct = serial(size * Q, K, V)
        error = float((found - correct).norm() / correct.norm())
        wrong[name, size] = error
        if math.isnan(error):
            errors.append("not a number")
        else:
            errors.append("below 1e-12" if error < 1e-12 else f"{error:.0%}")
    rows.append((name, *errors))
study.table(rows, ["", "off", "off, scores × 2,000"], title="Right and wrong, 3 ranks")

# %% tags=["maintainer"]
assert wrong["right", 1] < 1e-12 and wrong["right", 2000] < 1e-12
assert wrong["exp as it is", 1] < 1e-12 and math.isnan(wrong["exp as it is", 2000])
assert wrong["averaged", 1] > 0.1 and wrong["a rank's own positions", 1] > 0.1

# %% [markdown]
# "exp as it is" passes every test with small numbers, and fails in the third week of training, when one head has become very sure. The wrong positions are the nastiest: shapes fit, the loss falls, and tokens look into their future, so that the loss falls *too well*. The same mistake in learned or rotary position embeddings makes no noise at all: the model merely turns out worse than it should. And the labels:

# %%
text = list("ABCDEFGHIJKLM")
tokens, labels = text[:12], text[1:13]
after_split = []
for part in (tokens[0:4], tokens[4:8], tokens[8:12]):
    after_split.append(part[1:] + ["?"])
study.holdings(
    {
        "tokens": [tokens[0:4], tokens[4:8], tokens[8:12]],
        "labels, shifted first": [labels[0:4], labels[4:8], labels[8:12]],
        "shifted after the split": after_split,
    },
    arrows=False,
    title="Shift, then split",
)

# %% [markdown]
# Whoever shifts after the split loses one label on each rank. In zigzag order it is worse: where a rank's early run ends and its late run begins, the last token of the one gets the first token of the other as its label, and that is wrong. In a sample of 100,000 tokens nobody notices, and still the loss is not what one rank would find. And the *mean* of the loss is over the tokens of all ranks. Where some tokens do not count, padding for instance, the mean of the ranks' means is wrong, for the reason that you know from [What needs the whole batch](lesson:whole_batch).
#
# **When not to use it.** If whole samples fit, deal out samples: data parallelism sends nothing in the middle of a layer. If the sample nearly fits, try recomputation first, and sequence parallelism, which comes free with [tensor parallelism](lesson:tensor). And with fewer than a thousand tokens on each rank, most of the time goes into starting small operations and waiting for messages.
#
# ## The library's file
#
# [minidist/parallel/context.py](file:minidist/parallel/context.py) has the three ways. Which tokens a rank has is a list of *segments*, runs of positions, one in contiguous order and two in zigzag. `uneven(T, n)` cuts T as evenly as possible, as in [ZeRO](lesson:zero), and `bounds` makes (first, end) of each part:

# %%
study.source(context.segments, docstring=False)

# %% [markdown]
# From these `visible` finds the pairs of segments to compute, which is our `chunks_to_compute`, with a flag for the diagonal. A segment is a pair (first, end), and pairs are compared by what comes first, so `key <= query` says which segment is earlier:

# %%
study.source(context.visible, docstring=False)

# %% [markdown]
# The merge is ours, but in place and with any number of heads and samples:

# %%
study.source(context.merge_, docstring=False)

# %% [markdown]
# And here is the ring. The exchange starts *before* the block is computed, on a [lane](term:lane) of its own beside the rank's program, and is waited for afterwards: this is what hides it, as the messages of [buckets](lesson:buckets) are hidden. Results are summed up in fp32 at least.

# %%
study.source(context.Ring.forward)

# %% [markdown]
# What is left: `Ring.backward` goes round as ours did; `heads_attention` deals heads out unevenly where *n* does not divide them; `context_parallel_` gives each attention layer of a GPT one of these and tells it and the position embedding where its tokens are. One real launch, in three processes, against the serial layer:

# %%
from minidist.collectives import all_reduce_
from minidist.parallel.context import own_tokens

x = torch.randn(2, 24, 16, generator=generator, dtype=torch.float64)


def layer_of(seed=0):
    torch.manual_seed(seed)
    return TransformerLayer(16, 4, dtype=torch.float64)


def on_part(comm, x):
    """A layer on this rank's tokens: its output, and the weights' gradients added up over the ranks."""
    layer = context_parallel_(layer_of(), comm, "zigzag")
    y = layer(own_tokens(x, comm, "zigzag"))
    y.square().sum().backward()
    return y.detach(), [all_reduce_(comm, p.grad) for p in layer.parameters()]


whole = layer_of()
y = whole(x)
y.square().sum().backward()
real = launch(on_part, 3, x)
places = torch.cat(context.positions(24, 3, "zigzag")).argsort()
together = torch.cat([part for part, _ in real], 1)[:, places]
print("outputs equal:", torch.allclose(together, y))
equal = [torch.allclose(ours, p.grad) for ours, p in zip(real[0][1], whole.parameters())]
print("gradients equal:", all(equal))
rows = [
    (f"rank {rank}", real.trace.messages(rank), real.trace.bytes_sent(rank)) for rank in range(3)
]
display(study.table(rows, ["", "messages", "bytes sent"], title="One layer on three processes"))

# %% tags=["maintainer"]
assert (together - y).abs().max() < 1e-10 and all(equal)

# %% [markdown]
# Six of the 54 messages are the ring's: two blocks in forward, two blocks and two sums in backward. The other 48 add up the gradients of the layer's twelve parameters, four messages for each.
#
# The course's script takes the size of a context group as a flag, `--cp`, and its way, `--context-parallel`. It is [examples/train_gpt.py](file:examples/train_gpt.py). The first three print the same losses, to rounding; the last is for eight processes and a longer context:
#
# ```
# python examples/train_gpt.py --ranks 1 --context 1024
# python examples/train_gpt.py --ranks 4 --cp 4 --context 1024
# python examples/train_gpt.py --ranks 4 --cp 4 --context 1024 --context-parallel heads
# torchrun --nproc-per-node 8 examples/train_gpt.py --cp 4 --dp 2 --context 8192
# ```
#
# In Megatron-LM the flag is called `context_parallel_size`, in torchtitan `context_parallel_degree`; the [table of frameworks](file:docs/frameworks.md) has the others.
#
# ## Takeaways
#
# - Only attention looks from token to token. Split the tokens, and each rank keeps an *n*-th of all activations.
# - Two partial results merge exactly if each has its log-sum-exp. So blocks of keys and values can travel, and be forgotten.
# - Backward needs q, k, v, the result and log-sum-exp. The gradient of a block travels behind it and comes home.
# - A causal ring in contiguous order is $n^2/(2n-1)$ times as fast as one rank. Zigzag makes it *n*, with the same messages.
# - Messages hide from $t\ge\frac ga b\beta F$ tokens a rank on, however many ranks there are.
# - All-to-all on heads sends less beyond $1+a/g$ ranks, but stops at *g* ranks and hides nothing.
# - Tell everybody where the tokens are: masks, positions, labels, and the mean of the loss.
#
# ## Further reading
#
# - paper:liu2023a The ring, with blocks of feed-forward layers as well.
# - paper:brandon2023 Another cure for the imbalance: deal out single tokens in turn.
# - paper:jacobs2023 All-to-all on heads, section 3.
# - paper:fang2024 Both at once, on a grid of ranks.
# - paper:dubey2024 How LLaMA 3 did it: gathered keys and values, section 3.3.2.
# - paper:milakov2018 Online softmax, section 3.1.
# - paper:dao2022 FlashAttention, whose backward is the one above.
