# %% [markdown]
# # 15 · Vocabulary parallel
#
# A language model begins and ends with its [vocabulary](term:vocabulary). At the beginning each [token](term:token), a word or a piece of one, is replaced by a row of numbers. At the end the model says for every token of the vocabulary how likely it is to come next. Say there are 64,000 of them. Then the last layer makes 64,000 numbers for each position of the text, the **logits**, and the loss needs all of them: it is a softmax, and a softmax divides by a sum over everything.
#
# [Tensor parallelism](lesson:tensor) splits the matrices of a layer over ranks. Split the last matrix over 8 ranks, and each has 8,000 of the logits, in single precision. It looks as if they had to be put together before the loss can be computed. **How many bytes does a rank have to send for the loss at one position of the text**, if one collective is to do it?

# %%
guess = 224_000  # bytes: 7/8 of 64,000 logits of 4 bytes. Change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Take a vocabulary of six tokens, two on each of three ranks. To keep the arithmetic easy, let the logits be the logarithms of 1, 2, 3, 4, 5 and 5, so that the exponential function gives these whole numbers back. Their sum is 20. If the right token is the one with 4, the model gives it the probability 4/20, and the loss is the negative logarithm of that:
#
# $$-\log \tfrac{4}{20} = \log 20 - \log 4 = \log 5.$$
#
# How much of its part did a rank have to tell the others? Not its logits. The first rank said "my sum is 3", the second "mine is 7, and the 4 is here", the third "mine is 10". *Two numbers from each rank*, and it would still be two if each held 8,000 logits. The whole lesson is in this observation; what is left is to make it exact, safe against overflow, and fast.

# %%
import math

import torch
import torch.nn.functional as F
from IPython.display import display

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import Cluster, World, launch
from minidist.split import bounds, uneven

numbers = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 5.0])  # exp of the logits
target = 3  # the fourth token


def on_paper(comm, numbers):
    """This rank's part, its sum, and the target's number, 0 if the target is another rank's."""
    first, end = bounds(uneven(6, comm.size))[comm.rank]
    has_target = first <= target < end
    own_target = numbers[target] if has_target else torch.tensor(0.0)
    return numbers[first:end], numbers[first:end].sum(), own_target


parts, sums, targets_found = zip(*World(3).run(on_paper, numbers))
total = sum(sums)
found = sum(targets_found)
study.holdings(
    {
        "exp(logits)": parts,
        "own sum": sums,
        "the target's": targets_found,
        "all-reduced": [[f"sum {int(total)}", f"target {int(found)}"]] * 3,
    },
    title="Two numbers a rank: log 20 − log 4",
)

# %% tags=["maintainer"]
assert math.isclose(math.log(total / found), math.log(5))

# %% [markdown]
# `uneven(6, 3)` says how many of six things each of three ranks gets, and `bounds` where each part begins and ends. If the vocabulary is no multiple of the number of ranks, the first ranks get one token more.
#
# ## What there is to split
#
# The matrix in question has V rows of H numbers, one row for each token; H is the width of the model. It is used twice. At the beginning a token *looks up* its row, which is called an [embedding](term:embedding). At the end the hidden state of a position, which is H numbers as well, is multiplied by every row, and the V results are the logits: the [projection](term:projection). Many models use the same matrix at both ends, and the two are then [tied](term:tied-weights).
#
# How large is it? Take 64,000 tokens and a width of 5,120, in single precision:

# %%
V = 64_000
H = 5_120
weights = V * H * 4 / 2**20
rows = []
for what, times in (("weights", 1), ("gradients", 1), ("Adam's two moments", 2), ("together", 4)):
    rows.append((what, times * weights, times * weights / 8))
study.table(
    rows, ["in float32", "MiB, on one rank", "MiB, on each of 8"], title="64,000 tokens, H = 5,120"
)

# %% tags=["maintainer"]
assert weights == 1250

# %% [markdown]
# 1,250 MiB, and as much again for the gradients. The logits are not small either: for 4,096 positions, 64,000 numbers each are 1,000 MiB, and their gradients are another 1,000. In a model with a large vocabulary they are often the largest activation of all. So we want to split the matrix *and* the logits, and never put either together.
#
# ## Look up: mask and add
#
# We cut the matrix by rows, so that each rank has the rows of a block of tokens. All ranks have all positions of the text. Each looks up the tokens whose rows it has and puts zeros for the others; an [all-reduce](term:all-reduce) adds up what the ranks have found.
#
# ![A vocabulary of eight tokens on two ranks. Rank 0 has the rows of tokens 0 to 3, rank 1 those of 4 to 7. For the tokens 1, 6 and 3, rank 0 has rows for 1 and 3 and zeros for 6, rank 1 the row for 6 and zeros for the others. An all-reduce adds the two, and both ranks have all three rows.](../course/15_vocabulary/figures/vocabulary_split.svg)
#
# **Why it is right.** The row of each token lies on exactly one rank. So of the n terms that are added, one is the row and all others are zero, and adding zeros is exact in any number format. The result is not close to the row, it *is* the row.


# %%
def look_up(comm, rows, tokens, vocab):
    """The rows of `tokens`, of which this rank has a block. Returns what it found itself, and the sum."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (tokens < first) | (tokens >= end)
    local = (tokens - first).masked_fill(elsewhere, 0)  # any row that exists; it is wiped out below
    own = rows[local].masked_fill(elsewhere[..., None], 0)
    return own.clone(), all_reduce_(comm, own)  # a copy, for all_reduce_ overwrites `own`


whole = torch.tensor([[10.0 * w, 10 * w + 1] for w in range(1, 8)])  # 7 rows, H = 2
tokens = torch.tensor([6, 0, 3])
parts = list(whole.split(uneven(7, 3)))
looked = World(3).run(lambda comm, parts: look_up(comm, parts[comm.rank], tokens, 7), parts)
study.holdings(
    {
        "own rows": [list(part) for part in parts],
        "own, masked": [list(own) for own, _ in looked],
        "sum": [list(summed) for _, summed in looked],
    },
    title="Tokens 6, 0 and 3 of a vocabulary of seven",
)

# %% tags=["maintainer"]
assert all(torch.equal(summed, whole[tokens]) for _, summed in looked)

# %% [markdown]
# The two lines with `masked_fill` are easy to get half right. The first gives every token an index that exists on this rank, for an index outside would be an error (or, with a negative one, silently another row). The second wipes out the rows that were looked up only for that reason.
#
# **What it costs.** An all-reduce of positions × H numbers. V does not occur.
#
# **Backward needs no message.** Every rank has the gradient of the sum, and the derivative of a sum with respect to each of its terms is 1, so each rank passes that gradient on to its own rows: the gradient of a token goes to the one rank that has its row, and that rank already has it.
#
# ## Project: nothing forward, a sum backward
#
# At the other end each rank multiplies the hidden state x with its own rows. That gives its own block of logits, and no message is needed. Backward is another matter, since x went into the logits of *all* ranks. Each rank can compute what its own logits contribute to the gradient of x. What if it leaves it at that?

# %%
random = torch.Generator().manual_seed(1)
x = torch.randn(4, 6, generator=random, dtype=torch.float64)  # 4 positions, H = 6
table = torch.randn(10, 6, generator=random, dtype=torch.float64)  # 10 tokens
dlogits = torch.randn(4, 10, generator=random, dtype=torch.float64)


def gradient_of_x(comm, added):
    cut = uneven(10, comm.size)
    own = dlogits.split(cut, 1)[comm.rank] @ table.split(cut)[comm.rank]
    return all_reduce_(comm, own) if added else own


def off(found, right):
    """The relative error."""
    return float((found - right).norm() / right.norm())


errors = {}
for word, added in (("own", False), ("added up", True)):
    errors[word] = [off(dx, dlogits @ table) for dx in World(3).run(gradient_of_x, added)]
percent = {f"rank {r}, own": round(100 * error) for r, error in enumerate(errors["own"])}
percent["added up"] = round(100 * max(errors["added up"]))
study.bars(
    percent,
    unit="%",
    title="How far off is the gradient of x?",
)

# %% tags=["maintainer"]
assert max(errors["added up"]) < 1e-12 and min(errors["own"]) > 0.3

# %% [markdown]
# Each rank would train everything before the projection with a gradient of its own, most of which is missing, and the copies of the model would drift apart. The contributions have to be added up: *identity forward, all-reduce backward*. That is the operator *f* of [Tensor parallel](lesson:tensor), and the look-up, *all-reduce forward and identity backward*, ends in its conjugate *g*. So there is one all-reduce of positions × H numbers forward, after the look-up, and another one backward, before the gradient of x is used. A block of a tensor-parallel transformer has two of them in forward alone.
#
# ## The loss, naively
#
# Now the logits are there, a block on each rank. The naive way is to gather them and do what one rank would do.


# %%
def gathered(comm, part, targets, vocab):
    """All logits to all ranks. all_gather joins along the first dimension, hence the transposition."""
    logits = all_gather(comm, part.t().contiguous(), sizes=uneven(vocab, comm.size)).t()
    return F.cross_entropy(logits, targets, reduction="none")


logits = 3 * torch.randn(5, 50, generator=random, dtype=torch.float64)  # 5 positions, V = 50
targets = torch.tensor([0, 49, 17, 16, 33])
serial = F.cross_entropy(logits, targets, reduction="none")


def run(loss, n, x=logits):
    """What every rank returns, and the trace."""
    world = World(n)
    results = world.run(
        lambda comm, x: loss(comm, x.split(uneven(50, comm.size), 1)[comm.rank], targets, 50), x
    )
    return results, world.trace


losses, trace = run(gathered, 3)
study.traffic(trace, title="Gathered: 5 positions, 50 tokens, 3 ranks")

# %% tags=["maintainer"]
assert all(torch.allclose(mine, serial, rtol=0, atol=1e-12) for mine in losses)

# %% [markdown]
# It is right. But in the end every rank holds all the logits, which is what we wanted to avoid, and it sends $V\frac{n-1}{n}$ numbers for each position. In single precision that is $4V\frac{n-1}{n}$ bytes. (The run is in double precision, with 8 bytes a number: 5 · 50 · 8 · 2/3 = 1,333 bytes from a rank, give or take a few because 3 does not divide 50.)
#
# ## Three reductions
#
# Write the loss of one position down. With logits $x_c$, one for each token c, and the target t,
#
# $$\text{loss} = -\log\frac{e^{x_t}}{\sum_c e^{x_c}} = \log \sum_c e^{x_c} - x_t .$$
#
# $e^{x}$ overflows soon: in single precision above 88. The usual remedy is to subtract the largest logit, $m = \max_c x_c$, from all of them. Nothing is lost, for
#
# $$\log \sum_c e^{x_c} = \log\left(e^m \sum_c e^{x_c - m}\right) = m + \log s,\qquad s = \sum_c e^{x_c - m},$$
#
# and now every exponent is at most 0, and one of them is 0, so s lies between 1 and V. The loss is $m + \log s - x_t$. Each of the three is a reduction over the vocabulary: m is a maximum, s is a sum, and $x_t$ is a sum too if the ranks that do not hold the target contribute 0. So three all-reduces of one number for each position will do.


# %%
def target_logit(comm, part, targets, vocab):
    """The logit of each position's target; 0 where another rank has it."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    local = (targets - first).masked_fill(elsewhere, 0)
    own = part.gather(1, local[:, None])[:, 0]
    return own.masked_fill(elsewhere, 0)


def reduced(comm, part, targets, vocab):
    m = all_reduce_(comm, part.amax(1), op="max")
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    x_t = all_reduce_(comm, target_logit(comm, part, targets, vocab))
    return m + s.log() - x_t


losses, trace = run(reduced, 3)
print(
    "largest difference from the serial loss:",
    "below 1e-12"
    if max(float((mine - serial).abs().max()) for mine in losses) < 1e-12
    else "too large",
)
study.traffic(trace, title="Three reductions: the same losses")

# %% tags=["maintainer"]
assert all(torch.allclose(mine, serial, rtol=0, atol=1e-12) for mine in losses)

# %% [markdown]
# **Backward sends nothing.** The derivative of the loss with respect to a logit $x_c$ is its probability, minus 1 if c is the target:
#
# $$\frac{\partial\,\text{loss}}{\partial x_c} = \frac{e^{x_c - m}}{s} - [c = t].$$
#
# (The bracket is 1 where c is the target and 0 elsewhere. The first term is the derivative of $\log \sum e^{x_c}$; m drops out, as it must.) Every rank has m and s from the forward, so it can compute the gradients of its own logits by itself.


# %%
def gradient_of_logits(comm, part, targets, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    m = all_reduce_(comm, part.amax(1), op="max")
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    grad = (part - m[:, None]).exp() / s[:, None]
    here = ((targets >= first) & (targets < end)).nonzero()[:, 0]  # positions whose target is mine
    grad[here, targets[here] - first] -= 1
    return grad


grad = torch.cat(run(gradient_of_logits, 3)[0], 1)
leaf = logits.clone().requires_grad_()
F.cross_entropy(leaf, targets, reduction="sum").backward()
print(
    "off from PyTorch's gradient by",
    "less than 1e-12" if off(grad, leaf.grad) < 1e-12 else off(grad, leaf.grad),
)

# %% tags=["maintainer"]
assert off(grad, leaf.grad) < 1e-12

# %% [markdown]
# ## One collective
#
# Three all-reduces are three times the latency, and the second has to wait for the first, because s needs m. Is there a way without waiting?
#
# Let each rank i subtract its *own* largest logit $m_i$ and send three numbers at once: $m_i$, its sum $s_i = \sum e^{x_c - m_i}$ over its own part, and the target's logit. Whoever has the numbers of all ranks can put them on one scale afterwards, because
#
# $$e^{x_c - m} = e^{x_c - m_i}\, e^{m_i - m}, \qquad\text{so}\qquad s = \sum_i s_i\, e^{m_i - m}.$$
#
# Each rank's sum is multiplied by one factor, which is at most 1. This is the trick of the [online softmax](term:online-softmax). [Operators](lesson:operators) uses it on one device, where the parts are blocks that come one after the other.
#
# ![Cross-entropy of one position over eight tokens on two ranks, target 5. Rank 0 has the logits 1, 3, 0, 2: its largest is 3, its sum 1.553. Rank 1 has 0, 5, 1, 1: 5, 1.043, and the target's logit 5. After an all-gather of three numbers a rank, both merge them: m = 5, s = 1.553·exp(3 − 5) + 1.043 = 1.254, loss = log 1.254 = 0.226.](../course/15_vocabulary/figures/split_loss.svg)
#
# Follow the picture with a calculator once: rank 0's sum was on the scale of its own maximum 3, and $e^{3-5} = 0.1353$ brings it to the common 5. (With the rounded sums you get 1.253; the picture was computed with all digits.)


# %%
def merged(comm, part, targets, vocab):
    m = part.amax(1)
    s = (part - m[:, None]).exp().sum(1)
    own = torch.stack([m, s, target_logit(comm, part, targets, vocab)])
    every_m, every_s, every_x = all_gather(comm, own[None]).unbind(1)  # (n, positions) each
    m = every_m.amax(0)
    s = (every_s * (every_m - m).exp()).sum(0)
    return m + s.log() - every_x.sum(0)


rows = []
for name, way in {"gathered": gathered, "three reductions": reduced, "merged": merged}.items():
    losses, trace = run(way, 4)
    right = all(torch.allclose(mine, serial, rtol=0, atol=1e-12) for mine in losses)
    rows.append((name, "yes" if right else "no", trace.messages(0), trace.bytes_sent(0) / 5))
study.table(
    rows,
    ["way", "serial loss?", "messages", "bytes a position"],
    title="4 ranks, 50 tokens, float64: what rank 0 sends",
)

# %% tags=["maintainer"]
assert [row[1] for row in rows] == ["yes"] * 3 and rows[2][2] < rows[1][2]

# %% [markdown]
# The all-gather has three messages where the three all-reduces have eighteen. It sends more bytes, $12(n-1)$ in single precision instead of $24\frac{n-1}{n}$, since everybody gets everybody's three numbers, and nobody adds on the way. In double precision, as here, that is 72 bytes instead of 36. (Rank 0 sends a little less than 36, and less than 300 where all logits are gathered, because 4 divides neither the 5 positions nor the 50 tokens.)
#
# ## Predict the cost, then run it
#
# By rings and in single precision, gathering sends $4V\frac{n-1}{n}$ bytes a position from each rank, and merging $12(n-1)$. In the plot the merged loss is called *split*, because its logits stay split. The lines are these formulas; the points are runs of the library's two losses, `gathered_cross_entropy` and `vocab_cross_entropy`, on meta tensors, which have shapes and no numbers.

# %%
from minidist.parallel.vocab import VocabEmbedding, gathered_cross_entropy, vocab_cross_entropy


def loss_on_meta(comm, loss, vocab, count):
    words = uneven(vocab, comm.size)[comm.rank]
    part = torch.empty(count, words, device="meta", requires_grad=True)
    loss(part, torch.zeros(count, dtype=torch.int64, device="meta"), comm, vocab).backward()


def bytes_for_one(loss, vocab, n=8, count=1024):
    world = World(n, device="meta")
    world.run(loss_on_meta, loss, vocab, count)
    return world.trace.bytes_sent(0) / count


sizes = [1_000, 4_000, 16_000, 64_000, 256_000]
n = 8
lines = {
    "gathered": (sizes, [4 * v * (n - 1) / n for v in sizes]),
    "split": (sizes, [12 * (n - 1)] * len(sizes)),
}
points = {
    "gathered": (sizes, [bytes_for_one(gathered_cross_entropy, v) for v in sizes]),
    "split": (sizes, [bytes_for_one(vocab_cross_entropy, v) for v in sizes]),
}
curve = study.curves(
    lines,
    points=points,
    logx=True,
    logy=True,
    xlabel="tokens of the vocabulary, V",
    yunit="B",
    ylabel="sent by a rank for a position",
    title="8 ranks: the split loss does not know V",
)

# %% tags=["answer"]
study.reveal(
    guess,
    points["split"][1][3],
    [
        curve,
        study.bars(
            {
                "your guess": guess,
                "gathered": points["gathered"][1][3],
                "split": points["split"][1][3],
            },
            unit="B",
            title="64,000 tokens on 8 ranks: bytes for one position",
        ),
    ],
    unit="B",
    words="Three numbers of 4 bytes to 7 others, whatever V is. The logits would be 224,000.",
)

# %% tags=["maintainer"]
for name, (_, counts) in points.items():
    assert all(math.isclose(a, b) for a, b in zip(counts, lines[name][1]))
assert points["split"][1][3] == 84 and points["gathered"][1][3] == 224_000

# %% [markdown]
# Three all-reduces would send only 21 bytes a position, a quarter, but in 42 messages instead of 7. **For 4,096 positions on 8 modelled H100s of one node, which is faster?**

# %%
guess_faster = "three reductions"  # or "merged"


# %%
def collectives_of(comm, way, count=4096):
    """The collectives alone, without the arithmetic of the loss."""
    one = [torch.empty(count, device="meta") for _ in range(3)]
    if way == "merged":
        return all_gather(comm, torch.stack(one)[None])
    return [all_reduce_(comm, x) for x in one]


times = {}
for way in ("three reductions", "merged"):
    world = World(8, cluster=Cluster.dgx_h100(), device="meta")
    world.run(collectives_of, way)
    times[way] = world.time

# %% tags=["answer"]
study.reveal(
    guess_faster,
    "merged",
    study.bars(times, unit="s", title="84 bytes a position in 7 messages, or 21 in 42"),
    options=["three reductions", "merged"],
    words="At this size a message is nearly all latency, so their number decides. Only with far more positions, or a slow wire, do the bytes count.",
)

# %% tags=["maintainer"]
assert times["merged"] < times["three reductions"] / 4

# %% [markdown]
# When do the bytes count? With the α–β model you can look for the place yourself: a ring all-reduce of N bytes takes $2(n-1)(\alpha + \frac{N}{n}\beta)$, an all-gather of 3N bytes from each rank $(n-1)(\alpha + 3N\beta)$. (In the run above a message took about 3.4 µs, and each of the 21 additions that belong to the three reductions took 5 µs, which the formulas leave out.) With 8 ranks and α = 5 µs the two are equal at 1.25 million positions if a link has 450 GB/s, and at some 69,000 if it has 25 GB/s.


# %%
def loss_seconds(n, positions, alpha, bandwidth):
    beta = 1e-9 / bandwidth  # bandwidth is in GB/s
    nbytes = 4 * positions
    return {
        "three reductions": 3 * 2 * (n - 1) * (alpha + nbytes / n * beta),
        "merged": (n - 1) * (alpha + 3 * nbytes * beta),
    }


study.explore(
    loss_seconds,
    over="positions",
    n=[2, 4, 8, 16],
    positions=[2**k for k in range(8, 22)],
    alpha=[1e-6, 5e-6, 20e-6],
    bandwidth=[12.5, 25, 100, 450],
    labels={"n": "ranks", "alpha": "latency α", "bandwidth": "bandwidth"},
    units={"alpha": "s", "bandwidth": "GB/s"},
    start={"n": 8, "alpha": 5e-6, "bandwidth": 450},
    unit="s",
    logx=True,
    logy=True,
    xlabel="positions",
    ylabel="time of the messages",
    title="Three reductions, or one all-gather?",
)

# %% [markdown]
# ## Break it
#
# Here are four mistakes that everyone makes once. *No maximum* leaves m out. *Own maximum, not merged* subtracts each rank's own $m_i$ and adds the sums as they are. *No mask* takes the nearest row of a target that another rank has. In the last one the target's logit *stays on its rank*. Each is run on three sets of logits: as before; all larger by 1,000, which is harmless for a softmax; and with the logits of one rank, the last, larger by 5.


# %%
def no_maximum(comm, part, targets, vocab):
    s = all_reduce_(comm, part.exp().sum(1))
    return s.log() - all_reduce_(comm, target_logit(comm, part, targets, vocab))


def own_maximum(comm, part, targets, vocab):
    own_m = part.amax(1)
    s = all_reduce_(comm, (part - own_m[:, None]).exp().sum(1))
    m = all_reduce_(comm, own_m, op="max")
    return m + s.log() - all_reduce_(comm, target_logit(comm, part, targets, vocab))


def log_sum(comm, part):
    """The part of the loss that is right in the next two."""
    m = all_reduce_(comm, part.amax(1), op="max")
    return m + all_reduce_(comm, (part - m[:, None]).exp().sum(1)).log()


def no_mask(comm, part, targets, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    nearest = (targets - first).clamp(0, end - first - 1)
    return log_sum(comm, part) - all_reduce_(comm, part.gather(1, nearest[:, None])[:, 0])


def stays_on_its_rank(comm, part, targets, vocab):
    return log_sum(comm, part) - target_logit(comm, part, targets, vocab)


one_larger = logits.clone()
one_larger[:, 34:] += 5
rows = []
for name, way in {
    "right": reduced,
    "no maximum": no_maximum,
    "own maximum, not merged": own_maximum,
    "no mask": no_mask,
    "target stays on its rank": stays_on_its_rank,
}.items():
    cells = []
    for x in (logits, logits + 1000, one_larger):
        found = run(way, 3, x)[0][2]  # rank 2's
        wrong = float((found - F.cross_entropy(x, targets, reduction="none")).abs().max())
        if wrong < 1e-9:
            cells.append("yes")
        else:
            cells.append(f"off by {wrong:.2f}" if math.isfinite(wrong) else str(wrong))
    rows.append((name, *cells))
broken = rows
study.table(rows, ["variant", "right?", "+1,000", "one rank +5"], title="Losses on rank 2 of 3")

# %% tags=["maintainer"]
assert broken[0][1:] == ("yes",) * 3 and broken[1][1] == "yes" and broken[1][2] in ("inf", "nan")
assert all(row[1] != "yes" for row in broken[2:])

# %% [markdown]
# The first one is the most treacherous: it is right until logits have grown, which they do late in training. The next two look like a model that learns badly. The last differs from rank to rank, which is a symptom you can look for: **compare the losses of all ranks, bit for bit.**
#
# Half precision makes it worse. In float16 the exponential function overflows above 11, and a sum of thousands of small terms loses its digits. So the library keeps the logits in their own type and computes m, s and the loss in float32. Even logits of ±10,000 are no problem then. (Expect a large loss: three of the five targets have a logit near −10,000, which is 20,000 below the largest, and the loss is the mean over the five.)


# %%
def loss_in_half(comm, x):
    part = x.split(uneven(50, comm.size), 1)[comm.rank].requires_grad_()
    loss = vocab_cross_entropy(part, targets, comm, 50)
    loss.backward()
    return loss.detach(), part.grad


large = (10_000 * logits.sign() + logits).half()
loss, half_grad = World(3).run(loss_in_half, large)[0]
expected = F.cross_entropy(large.double(), targets)
study.table(
    [
        ("float16 logits, split over 3 ranks", f"{loss:.2f}"),
        ("the same logits in float64, on one rank", f"{expected:.2f}"),
        ("exp(10000) in float16", str(float(torch.tensor(1e4).half().exp()))),
    ],
    ["", "loss"],
)

# %% tags=["maintainer"]
assert loss.dtype == torch.float32 and half_grad.dtype == torch.float16
assert math.isclose(loss, expected, rel_tol=1e-6)

# %% [markdown]
# ## Why by rows, and not by columns?
#
# One could also cut the matrix by columns, so that each rank has a few numbers of *every* row. Then nothing has to be masked in the look-up: each rank finds its columns of each token, and an all-gather puts them side by side. Cutting by rows needs an all-reduce, which is a reduce-scatter and an all-gather. **How many times the bytes of the columns do the rows send?**

# %%
guess_ratio = 1.0  # times: change this number

# %%
from minidist.parallel.vocab import ColumnEmbedding


def looked_up(comm, layer):
    return layer(50_257, 16, comm)(torch.arange(1000)).detach()


rows = []
sent = {}
results = {}
for name, layer in {"rows": VocabEmbedding, "columns": ColumnEmbedding}.items():
    ranks = World(4).run(looked_up, layer)
    results[name] = ranks[0]
    sent[name] = ranks.trace.bytes_sent(0)
    rows.append((name, ranks.trace.messages(0), sent[name]))

# %% tags=["answer"]
study.reveal(
    guess_ratio,
    sent["rows"] / sent["columns"],
    study.table(
        rows,
        ["1,000 tokens, 4 ranks, split by", "messages of a rank", "bytes of a rank"],
        title="Two ways to split an embedding",
    ),
    unit="times",
)

# %% tags=["maintainer"]
assert results["rows"].equal(results["columns"]) and sent["rows"] == 2 * sent["columns"]

# %% [markdown]
# Twice as many. Still everybody cuts by rows, because of the other end. A projection that is tied to columns has on each rank a few of the H numbers of every row, so its products are only *summands* of the logits: V numbers for each position that would have to be added up over the ranks, which is exactly what this lesson avoids. Columns are for an embedding that is tied to nothing.
#
# ## Train with it
#
# The smallest language model there is: a token is looked up, goes through tanh, and the tied projection says which token comes next. Its text is the Zen of Python, which ships with Python as the module `this`, in a simple cipher. Here a token is a word.

# %%
import codecs
import contextlib
import io

with contextlib.redirect_stdout(io.StringIO()):
    import this  # prints the text when it is imported
zen = codecs.decode(this.s, "rot13").split()
vocabulary = {word: i for i, word in enumerate(sorted(set(zen)))}
stream = torch.tensor([vocabulary[word] for word in zen])
vocab = len(vocabulary)
print(f"{len(zen)} words, {vocab} different ones; on 3 ranks {uneven(vocab, 3)}")


def train(comm, stream, vocab, steps=40, hidden=16):
    embedding = VocabEmbedding(vocab, hidden, comm, dtype=torch.float64)
    optimizer = torch.optim.Adam(embedding.parameters(), lr=0.03)
    losses = []
    for _ in range(steps):
        x = embedding(stream[:-1]).tanh()
        loss = vocab_cross_entropy(embedding.project(x), stream[1:], comm, vocab)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


one = World(1).run(train, stream, vocab)[0]
world = World(3)
three = world.run(train, stream, vocab)
study.curves(
    {"1 rank": (range(40), one)},
    points={"3 ranks": (range(0, 40, 3), three[0][::3])},
    xlabel="step",
    ylabel="loss",
    title="The Zen of Python on 3 ranks: the serial run",
)

# %% tags=["maintainer"]
assert all(mine == three[0] for mine in three)
assert max(abs(a - b) for a, b in zip(one, three[0])) < 1e-9

# %% [markdown]
# The optimizer is PyTorch's own and knows nothing of ranks: Adam treats each number by itself, and each row of the matrix has one owner, who has its whole gradient. The losses of the three ranks are equal bit for bit, and equal to the serial ones up to rounding.
#
# ## When not to use it
#
# Each look-up and each backward of the projection is an all-reduce of positions × H numbers, and the split has to save more than these messages cost. We time both ends of a model, that is look-up, projection, loss and backward, for 8,192 positions in bfloat16 on modelled H100s: on one, on 8 of one node, and on 8 that stand in eight nodes, over the network.

# %%
from dataclasses import replace


def ends(comm, vocab, hidden):
    embedding = VocabEmbedding(vocab, hidden, comm, dtype=torch.bfloat16, device="meta")
    tokens = torch.zeros(8192, dtype=torch.int64, device="meta")
    vocab_cross_entropy(embedding.project(embedding(tokens)), tokens, comm, vocab).backward()


node = Cluster.dgx_h100()
over_network = replace(Cluster.dgx_h100(nodes=8), devices=1)  # one device of each node
places = {"one H100": (1, node), "8, NVLink": (8, node), "8, network": (8, over_network)}
models = {
    "bytes as tokens, V = 256, H = 768": (256, 768),
    "GPT-2, V = 50,257, H = 768": (50_257, 768),
    "padded to V = 50,304, H = 768": (50_304, 768),
    "V = 64,000, H = 5,120": (64_000, 5_120),
}
rows = []
peaks = {}
for model, shape in models.items():
    times = []
    for place, (n, cluster) in places.items():
        world = World(n, cluster=cluster, device="meta")
        world.run(ends, *shape)
        times.append(world.time * 1e3)
        peaks[model, place] = world.trace.memory[0].peak / 2**20
    rows.append((model, *times))
timed = rows
study.table(rows, ["ms for both ends, modelled", *places], title="8,192 positions")

# %% tags=["maintainer"]
assert timed[0][1] < timed[0][2] < timed[0][3] and timed[0][3] > 4 * timed[0][1]
assert all(large[2] < large[3] < large[1] for large in timed[1:])
assert 1.8 * timed[3][2] < timed[3][3] < 1.85 * timed[3][2]
assert 2.8 < timed[1][1] / timed[2][1] < 2.9 and 2.3 < timed[1][2] / timed[2][2] < 2.4
large_ = "V = 64,000, H = 5,120"
assert peaks[large_, "one H100"] > 4 * peaks[large_, "8, NVLink"]

# %% [markdown]
# **A small vocabulary: leave it whole.** With 256 tokens there is nothing to save: 256 rows of 768 numbers are 0.4 MB. Split over the 8 devices of a node it takes longer than on one, and over the network more than four times as long.
#
# **Keep the ranks inside a node.** With 64,000 tokens the split pays even over the network, but there it takes 1.8 times as long as inside a node.
#
# **Pad the vocabulary.** GPT-2's 50,257 tokens take almost three times as long on one H100 as 50,304. A row of 50,257 logits in bfloat16 is not a multiple of 16 bytes long, and the fast path to the tensor cores wants rows that are. Nor is an eighth of it. So programs add tokens that nobody uses, until the rows of each rank's part are such a multiple.
#
# And the memory, with the large vocabulary:

# %%
large = "V = 64,000, H = 5,120"
study.bars(
    {place: round(peaks[large, place]) for place in ("one H100", "8, NVLink")},
    unit="MiB",
    title="Peak memory of a rank, both ends, 64,000 tokens",
)

# %% [markdown]
# An eighth of the whole would be 346 MiB. A rank needs more, because the tensors of positions × H numbers, the rows that were looked up and the gradient of x, are 80 MiB each and lie whole on every rank.
#
# ## The library's file
#
# [minidist/parallel/vocab.py](file:minidist/parallel/vocab.py) has what we have built. `VocabEmbedding` holds this rank's rows. Its forward is our look-up; `_own` finds the local indices and the mask, and refuses tokens that are outside the vocabulary. `reduce_from` is g: all-reduce forward, identity backward.

# %%
display(study.source(VocabEmbedding.forward), study.source(VocabEmbedding._own))

# %% [markdown]
# `project` is the tied projection. It begins with f, `copy_to`: identity forward, all-reduce backward.

# %%
study.source(VocabEmbedding.project)

# %% [markdown]
# `vocab_cross_entropy` is an autograd function, so that its backward can be written by hand: autograd would keep the exponentials of all logits. Its forward merges as ours did. `_numbers` computes what a rank has to tell of its part: `hits` are the targets' logits, `peaks` the maxima, `totals` the sums. Where labels are smoothed (PyTorch's `label_smoothing`: a part of the target's weight is spread evenly over all tokens) there is a fourth number, since that loss also wants the sum of all logits. It goes through the positions in blocks, so that no float32 copy of all logits is made at once. `counted` says which positions count, and what the comments call tokens are positions.

# %%
from minidist.parallel import vocab as vocab_file

study.source(vocab_file._Split.forward)

# %% [markdown]
# And its backward, in which there is no `comm`: softmax minus 1 at the target, from what the forward has kept. In it `dloss` is the gradient of each position's loss; `even` is what smoothing subtracts from every logit's gradient, and `more`, which is negative, what is added at the target. `once_differentiable` makes PyTorch raise an error if somebody asks for a gradient of this gradient.

# %%
study.source(vocab_file._Split.backward)

# %% [markdown]
# Here it is against PyTorch, with what a real run needs: smoothed labels, positions that do not count (padding), and GPT-2's 50,257 tokens on 4 ranks, which 4 does not divide.


# %%
def with_options(comm, logits, targets):
    part = logits.split(uneven(50_257, comm.size), 1)[comm.rank].requires_grad_()
    loss = vocab_cross_entropy(part, targets, comm, 50_257, label_smoothing=0.1, ignore_index=-100)
    loss.backward()
    return loss.detach(), part.grad


big = torch.randn(6, 50_257, generator=random, dtype=torch.float64).requires_grad_()
some = torch.tensor([5, -100, 50_256, 12_565, 12_564, 0])
right = F.cross_entropy(big, some, label_smoothing=0.1)
right.backward()
ranks = World(4).run(with_options, big.detach(), some)
study.table(
    [
        *((f"rank {r}", grad.shape[1], f"{loss:.4f}") for r, (loss, grad) in enumerate(ranks)),
        ("PyTorch, on one", 50_257, f"{right.item():.4f}"),
    ],
    ["", "tokens", "loss"],
    title="GPT-2's vocabulary on 4 ranks",
)

# %% tags=["maintainer"]
assert off(torch.cat([g for _, g in ranks], 1), big.grad) < 1e-12
assert all(math.isclose(loss, right.item(), rel_tol=1e-12) for loss, _ in ranks)

# %% [markdown]
# ## In real processes, and on a cluster
#
# The same `train` in three processes. Let us predict its messages. In each of the 40 steps there is an all-reduce of the rows that were looked up, one of the gradient of the projection's input, and an all-gather of three numbers a position. On three ranks, a ring all-reduce is 4 messages a rank and an all-gather 2, so 40 · (4 + 4 + 2) = 400.

# %%
real = launch(train, 3, stream, vocab)
rows = [(f"rank {r}", real.trace.messages(r), real.trace.bytes_sent(r)) for r in range(3)]
study.table(rows, ["", "messages sent", "bytes sent"], title="40 steps on three processes")

# %% tags=["maintainer"]
assert all(max(abs(a - b) for a, b in zip(losses, one)) < 1e-9 for losses in real)
assert real.trace.messages(0) == 40 * (4 + 4 + 2)

# %% [markdown]
# The course's script for tensor parallelism trains a small GPT whose vocabulary is split in this way. It is [examples/train_tensor.py](file:examples/train_tensor.py):
#
# ```
# python examples/train_tensor.py --ranks 4 --runner processes
# torchrun --nproc-per-node 4 examples/train_tensor.py
# ```
#
# ## Takeaways
#
# - Split the vocabulary by rows. A rank looks up its own tokens and has zeros for the rest; the sum is exact, and backward needs no message.
# - The projection sends nothing forward. Backward, the gradient of its input is a sum over the ranks.
# - Of its part of the logits a rank has to tell three numbers a position: the largest, the sum of the exponentials, and the target's. V does not occur.
# - Put on one scale by $e^{m_i - m}$, they travel in one round. The backward of the loss sends nothing.
# - Subtract the maximum of *all*, and sum in float32. Compare the losses of all ranks bit for bit.
# - It saves $\frac{n-1}{n}$ of the matrix, of its gradients and optimizer states, and of the logits. It is not for small vocabularies, and belongs inside a node.
#
# ## Further reading
#
# - paper:shoeybi2019 Section 3: the embedding, and the cross-entropy fused with the projection.
# - paper:milakov2018 The merging.
# - paper:press2017 Why the ends are tied.
