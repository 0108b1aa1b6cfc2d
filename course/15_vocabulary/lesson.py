# %% [markdown]
# # 15 · Vocabulary parallel
#
# A language model ends in a softmax over all its words. Say there are 64,000 words, and 8 ranks hold 8,000 each.
# Every rank has its own part of the logits, in float32, and the loss needs them all.
# **How many bytes must a rank send for the loss of one token**, all of them in one collective?

# %%
guess = 224_000  # bytes: 7/8 of 64,000 logits of 4 bytes. Change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Six words, two on each rank. The logits are the logarithms of 1, 2, 3, 4, 5 and 5, so exp gives whole numbers back.
# Their sum is 20. If the right word is the one with 4, its probability is 4/20, and the loss is log 20 − log 4 = log 5.
#
# How much of its part must a rank tell the others? Not its logits: its *sum* of exp. And one rank says: the 4 is mine.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from IPython.display import display

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import Cluster, World, launch
from minidist.split import bounds, uneven

# %%
words = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 5.0])
target = 3  # the fourth word


def on_paper(comm, words):
    first, end = bounds(uneven(6, comm.size))[comm.rank]
    hit = words[target] if first <= target < end else torch.tensor(0.0)
    return words[first:end], words[first:end].sum(), hit


mine = World(3).run(on_paper, words)
total, hit = sum(s for _, s, _ in mine), sum(h for *_, h in mine)
assert math.isclose(math.log(total / hit), math.log(5))
parts, sums, hits = zip(*mine)
both = [[f"sum {int(total)}", f"target {int(hit)}"]] * 3
study.holdings(
    {"exp(logits)": parts, "own sum": sums, "the target's": hits, "all-reduced": both},
    title="Two numbers a rank: log 20 − log 4",
)

# %% [markdown]
# ## What there is to split
#
# The matrix has V rows of H numbers: one for each word. It is used twice. At the beginning a token picks its row; at
# the end the hidden state is multiplied with all rows. Many models use one matrix for both: the two are **tied**.

# %%
V = 64_000
H = 5_120
n = 8
weights = V * H * 4 / 2**20
assert weights == 1250
rows = [
    (what, times * weights, times * weights / n)
    for what, times in {"weights": 1, "gradients": 1, "Adam's two": 2, "all": 4}.items()
]
study.table(
    rows, ["float32", "MiB, on one rank", "MiB, on each of 8"], title="64,000 words, H = 5,120"
)

# %% [markdown]
# 1,250 MiB, and as much again for the gradients. And the logits: 4,096 tokens of 64,000 float32 numbers are 1,000 MiB
# more, and their gradients too. It is often the largest activation of the whole model.
#
# ## Look up: mask and add
#
# Rank r holds a block of rows. V need not be a multiple of n: the first ranks have a row more.
# Every rank has all tokens. It looks up its own and gives zeros for the rest; an all-reduce adds it up.


# %%
def look_up(comm, rows, tokens, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (tokens < first) | (tokens >= end)
    found = rows[(tokens - first).masked_fill(elsewhere, 0)]  # any row that is there
    found = found.masked_fill(elsewhere[..., None], 0)
    return found.clone(), all_reduce_(comm, found)


# %%
whole = torch.tensor([[10.0 * w, 10 * w + 1] for w in range(1, 8)])  # 7 rows, H = 2
tokens = torch.tensor([6, 0, 3])
parts = list(whole.split(uneven(7, 3)))
looked = World(3).run(lambda comm, parts: look_up(comm, parts[comm.rank], tokens, 7), parts)
assert all(torch.equal(both[1], whole[tokens]) for both in looked)
owner = {str(row): r for r, part in enumerate(parts) for row in part}
study.holdings(
    {
        "own rows": [list(p) for p in parts],
        "own, masked": [list(a) for a, _ in looked],
        "sum": [list(b) for _, b in looked],
    },
    title="Tokens 6, 0 and 3 of seven words",
)

# %% [markdown]
# The sum is exact, in any dtype: all terms but one are zero. Bytes: those of an all-reduce of (tokens, H), without V.
#
# **Backward needs no message.** Every rank has the gradient of the sum, and the sum passes it on to each term. A rank
# adds the gradients of its own tokens to their rows.
#
# ## Project: nothing forward, a sum backward
#
# Each rank multiplies the hidden state x with its own rows, and has its own logits. x, though, went into *all* logits.
# What happens if the gradient of x comes from own logits alone?

# %%
random = torch.Generator().manual_seed(1)
x, table = (torch.randn(s, generator=random, dtype=torch.float64) for s in ((4, 6), (10, 6)))
dlogits = torch.randn(4, 10, generator=random, dtype=torch.float64)


def gradient_of_x(comm, added):
    cut = uneven(10, comm.size)
    partial = dlogits.split(cut, 1)[comm.rank] @ table.split(cut)[comm.rank]
    return all_reduce_(comm, partial) if added else partial


def off(a, b):
    return float((a - b).norm() / b.norm())


errors = {
    word: [off(dx, dlogits @ table) for dx in World(3).run(gradient_of_x, added)]
    for word, added in {"own": False, "added up": True}.items()
}
assert max(errors["added up"]) < 1e-12
study.bars(
    {f"rank {r}, own": round(100 * e) for r, e in enumerate(errors["own"])} | {"added up": 0},
    unit="%",
    title="How far off is the gradient of x?",
)

# %% [markdown]
# So: identity forward, all-reduce backward. It is the **f** of lesson 14, and the look-up ends in its conjugate **g**:
# all-reduce forward, identity backward. Both ends together send as much as one tensor-parallel block.
#
# ## The loss, naively
#
# Gather all logits, then do what one rank would do.


# %%
def gathered(comm, part, targets, vocab):
    logits = all_gather(comm, part.t().contiguous(), sizes=uneven(vocab, comm.size)).t()
    return F.cross_entropy(logits, targets, reduction="none")


# %%
logits = 3 * torch.randn(5, 50, generator=random, dtype=torch.float64)
targets = torch.tensor([0, 49, 17, 16, 33])
serial = F.cross_entropy(logits, targets, reduction="none")


def run(loss, n, x=logits):
    world = World(n)
    losses = world.run(
        lambda comm, x: loss(comm, x.split(uneven(50, comm.size), 1)[comm.rank], targets, 50), x
    )
    return losses, world.trace


losses, trace = run(gathered, 3)
assert all(torch.allclose(mine, serial, rtol=0, atol=1e-12) for mine in losses)
study.traffic(trace, title="Gathered: 5 tokens, 50 words, 3 ranks")

# %% [markdown]
# ## Three reductions
#
# The loss is log Σ exp(x_c) − x_t. Subtract the largest logit m first, so that exp cannot overflow: it drops out again.
# Three numbers a token are reduced: m, the sum s, and x_t, which is 0 on the ranks that do not hold the target.


# %%
def hit_of(comm, part, targets, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    local = (targets - first).masked_fill(elsewhere, 0)
    return part.gather(1, local[:, None])[:, 0].masked_fill(elsewhere, 0)


def reduced(comm, part, targets, vocab):
    m = all_reduce_(comm, part.amax(1), op="max")
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    x_t = all_reduce_(comm, hit_of(comm, part, targets, vocab))
    return m + s.log() - x_t


# %%
losses, trace = run(reduced, 3)
assert all(torch.allclose(mine, serial, rtol=0, atol=1e-12) for mine in losses)
study.traffic(trace, title="Three reductions: the same losses")

# %% [markdown]
# **Backward sends nothing.** The gradient of a logit is its softmax, exp(x_c − m)/s, minus 1 at the target. Every rank
# has m and s already.


# %%
def loss_and_gradient(comm, part, targets, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    m = all_reduce_(comm, part.amax(1), op="max")
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    here = ((targets >= first) & (targets < end)).nonzero()[:, 0]
    grad = (part - m[:, None]).exp() / s[:, None]
    grad[here, targets[here] - first] -= 1
    return grad


grad = torch.cat(run(loss_and_gradient, 3)[0], 1)
leaf = logits.clone().requires_grad_()
F.cross_entropy(leaf, targets, reduction="sum").backward()
assert torch.allclose(grad, leaf.grad, rtol=0, atol=1e-12)
plt.figure(figsize=(9, 1.6))
plt.imshow(grad, aspect="auto", cmap="RdBu", vmin=-1, vmax=1)
for edge in (17, 34):
    plt.axvline(edge - 0.5, color="black", linewidth=1)
plt.xlabel("word; black: where the next rank begins")
plt.ylabel("token")
plt.title("The gradient: −1 at the target, softmax everywhere")
plt.show()

# %% [markdown]
# ## One message
#
# s has to wait for m, so there are two rounds at least; x_t can share the second. Or is there a way without waiting?
# Let each rank subtract its *own* largest logit m_i, and send (m_i, s_i, x_t). Whoever has all of them can merge:
# exp(x_c − m) = exp(x_c − m_i) · exp(m_i − m). This is the trick of the online softmax.


# %%
def merged(comm, part, targets, vocab):
    m = part.amax(1)
    s = (part - m[:, None]).exp().sum(1)
    own = torch.stack([m, s, hit_of(comm, part, targets, vocab)])
    every_m, every_s, every_x = all_gather(comm, own[None]).unbind(1)  # (n, tokens) each
    m = every_m.amax(0)
    return m + (every_s * (every_m - m).exp()).sum(0).log() - every_x.sum(0)


# %%
rows = []
for name, way in {"gathered": gathered, "three reductions": reduced, "merged": merged}.items():
    losses, trace = run(way, 4)
    assert all(torch.allclose(mine, serial, rtol=0, atol=1e-12) for mine in losses)
    rows.append((name, trace.messages(0), trace.bytes_sent(0) / 5))
study.table(
    rows, ["way", "messages", "bytes a token"], title="4 ranks, 50 words, float64: rank 0 sends"
)

# %% [markdown]
# ## Predict the cost, then run it
#
# By rings, in float32: gathering sends $4V(n-1)/n$ bytes a token from each rank, merging $12(n-1)$. On 8 ranks that is
# 84 bytes. Lines are these formulas, points are runs on meta tensors, which have shapes and no numbers.

# %%
from minidist.parallel.vocab import VocabEmbedding, gathered_cross_entropy, vocab_cross_entropy


def meta_loss(comm, loss, vocab, count):
    part = torch.empty(
        count, uneven(vocab, comm.size)[comm.rank], device="meta", requires_grad=True
    )
    loss(part, torch.zeros(count, dtype=torch.int64, device="meta"), comm, vocab).backward()


def cost(loss, vocab, n=8, count=1024, cluster=None):
    world = World(n, device="meta", cluster=cluster)
    world.run(meta_loss, loss, vocab, count)
    return world.trace.bytes_sent(0) / count, world.time


# %%
sizes, n = [1_000, 4_000, 16_000, 64_000, 256_000], 8
lines = {
    "gathered": (sizes, [4 * v * (n - 1) / n for v in sizes]),
    "split": (sizes, [12 * (n - 1)] * len(sizes)),
}
points = {
    name: (sizes, [cost(loss, v)[0] for v in sizes])
    for name, loss in {"gathered": gathered_cross_entropy, "split": vocab_cross_entropy}.items()
}
for name, (_, found) in points.items():
    assert all(math.isclose(a, b) for a, b in zip(found, lines[name][1]))
study.curves(
    lines,
    points=points,
    logx=True,
    logy=True,
    xlabel="words, V",
    yunit="B",
    ylabel="sent by a rank for a token",
    title="8 ranks: the split loss does not know V",
)

# %%
found = {
    "gathered": cost(gathered_cross_entropy, 64_000)[0],
    "split": cost(vocab_cross_entropy, 64_000)[0],
}
assert found == {"gathered": 224_000, "split": 84}
study.bars(
    {"your guess": guess} | found, unit="B", title="64,000 words on 8 ranks: bytes for one token"
)

# %% [markdown]
# The answer: **84 bytes**; the logits would be 224,000. Three all-reduces send only 21, but six times as many messages.
# What is better? Here are the collectives alone, for 4,096 tokens, on 8 modelled H100s of one node:


# %%
def messages(comm, way, count=4096):
    one = [torch.empty(count, device="meta") for _ in range(3)]
    if way == "merged":
        return all_gather(comm, torch.stack(one)[None])
    return [all_reduce_(comm, x) for x in one]


times = {}
for way in ("three reductions", "merged"):
    world = World(8, cluster=Cluster.dgx_h100(), device="meta")
    world.run(messages, way)
    times[way] = world.time
assert times["merged"] < times["three reductions"] / 4
study.bars(times, unit="s", title="84 bytes a token in 7 messages are faster than 21 in 42")

# %% [markdown]
# ## Break it
#
# Four mistakes that everyone makes once. The logits of the second run are larger by 1,000: harmless for a softmax.
# The third run has one rank whose logits are larger by 5 than the others'.


# %%
def no_maximum(comm, part, targets, vocab):
    s = all_reduce_(comm, part.exp().sum(1))
    return s.log() - all_reduce_(comm, hit_of(comm, part, targets, vocab))


def own_maximum(comm, part, targets, vocab):
    m = part.amax(1)
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    return (
        all_reduce_(comm, m, op="max")
        + s.log()
        - all_reduce_(comm, hit_of(comm, part, targets, vocab))
    )


# %%
def log_sum(comm, part):
    m = all_reduce_(comm, part.amax(1), op="max")
    return m + all_reduce_(comm, (part - m[:, None]).exp().sum(1)).log()


def no_mask(comm, part, targets, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    nearest = part.gather(1, (targets - first).clamp(0, end - first - 1)[:, None])[:, 0]
    return log_sum(comm, part) - all_reduce_(comm, nearest)


def own_target(comm, part, targets, vocab):
    return log_sum(comm, part) - hit_of(comm, part, targets, vocab)


# %%
apart = logits.clone()
apart[:, 34:] += 5
rows = []
for name, way in {
    "right": reduced,
    "no maximum": no_maximum,
    "own maximum, not merged": own_maximum,
    "no mask": no_mask,
    "target stays on its rank": own_target,
}.items():
    wrong = [
        (run(way, 3, x)[0][2] - F.cross_entropy(x, targets, reduction="none")).abs().max()
        for x in (logits, logits + 1000, apart)
    ]
    rows.append(
        (name, *("yes" if e < 1e-9 else f"off by {e:.2f}" if e < 1e9 else f"{e}" for e in wrong))
    )
study.table(rows, ["variant", "right?", "+1,000", "one rank +5"], title="Losses on rank 2 of 3")

# %% [markdown]
# The first symptom comes late in training, when logits have grown. The others look like a model that learns badly.
# The last one differs from rank to rank: compare the losses of all ranks, bit for bit.
#
# Half precision makes it worse. exp overflows float16 above 11, and a sum of many small terms loses its digits. So the
# library keeps logits in their own type, and sums in float32. Logits of ±10,000 are no problem:


# %%
def half(comm, x):
    part = x.split(uneven(50, comm.size), 1)[comm.rank].requires_grad_()
    loss = vocab_cross_entropy(part, targets, comm, 50)
    loss.backward()
    return loss.detach(), part.grad


large = (10_000 * logits.sign() + logits).half()
loss, grad = World(3).run(half, large)[0]
expected = F.cross_entropy(large.double(), targets)
assert (
    loss.dtype == torch.float32
    and grad.dtype == torch.float16
    and math.isclose(loss, expected, rel_tol=1e-6)
)
study.table(
    [
        ("float16 logits, split", f"{loss:.2f}"),
        ("float64, on one rank", f"{expected:.2f}"),
        ("exp(10000) in float16", str(float(torch.tensor(1e4).half().exp()))),
    ],
    ["", "loss"],
)

# %% [markdown]
# ## The library's version
#
# `VocabEmbedding` holds this rank's rows. `project` is the tied projection: it begins with f, `copy_to`.

# %%
display(study.source(VocabEmbedding.forward), study.source(VocabEmbedding._own))
study.source(VocabEmbedding.project)

# %% [markdown]
# Why by rows, and not by columns? With columns a rank has a few numbers of *every* word. There is nothing to mask, and
# an all-gather takes the place of the all-reduce. **Predict** the ratio of the bytes.

# %%
from minidist.parallel.vocab import ColumnEmbedding


def looked_up(comm, layer):
    return layer(50_257, 16, comm)(torch.arange(1000)).detach()


rows, found = [], []
for name, layer in {"rows": VocabEmbedding, "columns": ColumnEmbedding}.items():
    ranks = World(4).run(looked_up, layer)
    found.append(ranks[0])
    rows.append((name, ranks.trace.messages(0), ranks.trace.bytes_sent(0)))
assert found[0].equal(found[1]) and rows[0][2] == 2 * rows[1][2]
study.table(
    rows,
    ["1,000 words, 4 ranks, split by", "messages of a rank", "bytes of a rank"],
    title="Two ways to split an embedding",
)

# %% [markdown]
# Half. But the projection that is tied to columns makes a *summand* of every logit: V numbers a word, to be added up.
# That is what we wanted to avoid. Columns are for an embedding that is tied to nothing.
#
# `vocab_cross_entropy` is one autograd function. Its forward merges as we did, with a fourth number a token where
# labels are smoothed (that loss also wants the sum of all logits). It works in blocks of tokens, so that no float32
# copy of all logits is made.

# %%
from minidist.parallel import vocab as cross_entropy

display(study.source(cross_entropy._Split.forward))
study.source(cross_entropy._Split.backward)

# %% [markdown]
# Against PyTorch, with what a real run needs: smoothed labels, padding that is ignored, and GPT-2's 50,257 words on 4
# ranks, which 4 does not divide.


# %%
def options(comm, logits, targets):
    part = logits.split(uneven(50_257, comm.size), 1)[comm.rank].requires_grad_()
    loss = vocab_cross_entropy(part, targets, comm, 50_257, label_smoothing=0.1, ignore_index=-100)
    loss.backward()
    return loss.detach(), part.grad


big = torch.randn(6, 50_257, generator=random, dtype=torch.float64).requires_grad_()
some = torch.tensor([5, -100, 50_256, 12_565, 12_564, 0])
F.cross_entropy(big, some, label_smoothing=0.1).backward()
ranks = World(4).run(options, big.detach(), some)
assert off(torch.cat([g for _, g in ranks], 1), big.grad) < 1e-12
study.table(
    [(f"rank {r}", g.shape[1], f"{loss:.4f}") for r, (loss, g) in enumerate(ranks)],
    ["", "words", "loss"],
    title="GPT-2's vocabulary on 4 ranks: PyTorch's loss and gradient",
)

# %% [markdown]
# ## Train with it
#
# The smallest language model: a word is looked up, goes through tanh, and the tied projection says which word comes
# next. It learns the Zen of Python, which ships with Python. One rank, and three.

# %%
import codecs
import contextlib
import io

with contextlib.redirect_stdout(io.StringIO()):
    import this
zen = codecs.decode(this.s, "rot13").split()
vocabulary = {word: i for i, word in enumerate(sorted(set(zen)))}
stream, vocab = torch.tensor([vocabulary[word] for word in zen]), len(vocabulary)
study.table(
    [("words", len(zen)), ("different ones, V", vocab), ("on the 3 ranks", str(uneven(vocab, 3)))],
    ["", ""],
)


# %%
def train(comm, stream, vocab, steps=40, hidden=16):
    embedding = VocabEmbedding(vocab, hidden, comm, dtype=torch.float64)
    optimizer, losses = torch.optim.Adam(embedding.parameters(), lr=0.03), []
    for _ in range(steps):
        x = embedding(stream[:-1]).tanh()
        loss = vocab_cross_entropy(embedding.project(x), stream[1:], comm, vocab)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %%
one, three = World(1).run(train, stream, vocab)[0], World(3).run(train, stream, vocab)
assert (
    all(mine == three[0] for mine in three)
    and max(abs(a - b) for a, b in zip(one, three[0])) < 1e-9
)
study.curves(
    {"1 rank": (range(40), one)},
    points={"3 ranks": (range(0, 40, 3), three[0][::3])},
    xlabel="step",
    ylabel="loss",
    title="The Zen of Python on 3 ranks: the serial run",
)

# %% [markdown]
# ## When not to
#
# Each look-up and each backward of the projection is an all-reduce of (tokens, H). That has to pay. We time both ends
# of a model, look-up, projection, loss and backward, for 8,192 tokens in bfloat16 on modelled H100s: on one, on 8 of
# one node, and on 8 of eight nodes, over the network.

# %%
from dataclasses import replace


def ends(comm, vocab, hidden):
    embedding = VocabEmbedding(vocab, hidden, comm, dtype=torch.bfloat16, device="meta")
    tokens = torch.zeros(8192, dtype=torch.int64, device="meta")
    vocab_cross_entropy(embedding.project(embedding(tokens)), tokens, comm, vocab).backward()


node = Cluster.dgx_h100()
apart = replace(Cluster.dgx_h100(nodes=8), devices=1)  # one device of each node
places = {"one H100": (1, node), "8, NVLink": (8, node), "8, network": (8, apart)}
models = {
    "bytes as tokens, V = 256, H = 768": (256, 768),
    "GPT-2, V = 50,257, H = 768": (50_257, 768),
    "padded to V = 50,304, H = 768": (50_304, 768),
    "V = 64,000, H = 5,120": (64_000, 5_120),
}


# %%
def timed(place, model):
    n, cluster = places[place]
    world = World(n, cluster=cluster, device="meta")
    world.run(ends, *models[model])
    return world.time * 1e3, world.trace.memory[0].peak / 2**20


rows = [(model, *(timed(place, model)[0] for place in places)) for model in models]
assert (
    rows[0][1] < rows[0][2] < rows[0][3]
    and all(large[2] < large[3] < large[1] for large in rows[1:])
    and 1.8 * rows[3][2] < rows[3][3] < 1.85 * rows[3][2]
)
assert 2.8 < rows[1][1] / rows[2][1] < 2.9 and 2.3 < rows[1][2] / rows[2][2] < 2.4
study.table(rows, ["ms for both ends", *places], title="8,192 tokens, by the model of the cluster")

# %%
assert rows[0][3] > 4 * rows[0][1]
study.bars(
    {f"{place}": rows[0][i + 1] / rows[0][1] for i, place in enumerate(places)},
    unit="×",
    target=1,
    note="one H100",
    title="V = 256: time against one device",
)

# %% [markdown]
# With 256 words there is nothing to save: 256 rows of 768 are 0.4 MB. Split over 8 devices of a node it takes longer
# than on one, and across nodes more than **four times** as long. Leave a small vocabulary whole on every rank. And keep
# the ranks inside a node: with 64,000 words, too, the network makes the time 1.8 times as long.
#
# GPT-2's 50,257 words take almost three times as long on one H100 as 50,304. A row of 50,257 logits is not a multiple
# of 16 bytes, and tensor cores cannot load it; nor can they load the rows of an eighth of it. So programs pad the
# vocabulary with words that nobody uses, until each rank's part is such a multiple.
#
# With a large vocabulary the time falls, and so does the memory.

# %%
peaks = {place: timed(place, "V = 64,000, H = 5,120")[1] for place in ("one H100", "8, NVLink")}
assert peaks["one H100"] > 4 * peaks["8, NVLink"]
study.bars(
    {place: round(mib) for place, mib in peaks.items()},
    unit="MiB",
    title="Peak memory of a rank, both ends",
)

# %% [markdown]
# ## On processes, and on a cluster
#
# The same `train` in three processes. The messages are the formula's: for each of 40 steps an all-reduce of the
# looked-up rows, one of the gradient of the projection's input, and an all-gather of three numbers a token: 4 + 4 + 2.

# %%
real = launch(train, 3, stream, vocab)
assert all(max(abs(a - b) for a, b in zip(losses, one)) < 1e-9 for losses in real)
assert real.trace.messages(0) == 40 * (4 + 4 + 2)
rows = [(f"rank {r}", real.trace.messages(r), real.trace.bytes_sent(r)) for r in range(3)]
study.table(rows, ["", "messages sent", "bytes sent"], title="40 steps on three processes")

# %% [markdown]
# In a script, `train(from_env(), stream, vocab)` does it under torchrun, on one machine or many:
#
# ```
# torchrun --nproc-per-node 8 script.py
# ```
#
# ## Takeaways
#
# - Split the vocabulary by rows. Look up own tokens, zeros for the rest, and add up: exact, and no message backward.
# - Projecting sends nothing forward. Backward, the gradient of the input is a sum over ranks.
# - Of a part of the logits the loss needs three numbers a token: the largest, the sum of exp, the target's. V does not
#   count.
# - Merged by exp(m_i − m), they travel in one round. The backward of the loss is silent.
# - Subtract the maximum *of all*; sum in float32.
# - It saves (n−1)/n of the matrix, its gradients, its optimizer states, and of the logits. Not for small vocabularies,
#   and not across nodes if it can be inside one.
#
# ## Further reading
#
# - paper:shoeybi2019 Section 3: the embedding, and the cross-entropy fused with the projection.
# - paper:milakov2018 The merging.
# - paper:press2017 Why the ends are tied.
