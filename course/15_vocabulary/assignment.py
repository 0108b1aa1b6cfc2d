# %% [markdown] nbgrader={"grade_id": "top"}
# # 15 Vocabulary parallel: exercises
#
# You split both ends of a language model over its words: the look-up of tokens, the projection to logits, and the loss.
#
# Seven exercises, 17 points. After each, run the check: it holds your function against one rank with the whole
# vocabulary, on 1 to 4 ranks, with parts that differ in size, then in real processes. It says what is wrong. Try as
# often as you like. What your function prints is not shown there; to see it, run the function in a `World` of your own.
#
# You may call `minidist.collectives` and `minidist.split`. What is refused here is `minidist.parallel`.
#
# Everywhere rank r holds the words `first` to `end − 1`, with `first, end = bounds(uneven(vocab, n))[r]`. V_r is their
# number, never 0 here. A token is the number of a word in the whole vocabulary.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch.nn.functional import cross_entropy

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World
from minidist.split import bounds, uneven

# %% [markdown] nbgrader={"grade_id": "look_up_spec"}
# ## 1 · Look up (2 points)
#
# The rows of an embedding lie on n ranks. Every rank has the same tokens, and wants all their rows.
#
# | | |
# |---|---|
# | call | `look_up(comm, rows, tokens, vocab)` |
# | `rows` | this rank's rows, (V_r, H); **not changed** |
# | `tokens` | int64, of any shape (…); the same on every rank; **not changed** |
# | returns | the row of each token, (…, H), the same on every rank |
# | cost | one all-reduce of (…, H): 2(n−1)/n·tokens·H numbers a rank, and none of V |
#
# **Invariant:** a row lies on one rank. It gives the row, the others give zeros, and the sum is the row. About 7 lines.
#
# <details><summary>Hint</summary>
#
# `local = tokens - first` is right for own tokens. For the others take any row that is there (`local.clamp(0, …)`), and
# then write zeros over it: `masked_fill` with a mask (…, 1).
#
# </details>


# %% nbgrader={"grade_id": "look_up", "solution": true}
def look_up(comm, rows, tokens, vocab):
    """The rows of the tokens, (…, H), on every rank."""
    ### BEGIN SOLUTION
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (tokens < first) | (tokens >= end)
    found = rows[(tokens - first).clamp(0, end - first - 1)]
    return all_reduce_(comm, found.masked_fill(elsewhere[..., None], 0))
    ### END SOLUTION


# %% nbgrader={"grade_id": "look_up_test", "points": 2}
check.look_up(look_up)

# %% [markdown] nbgrader={"grade_id": "look_up_target"}
# **Target:** all ranks hold the rows of the words 6, 0 and 3.

# %%
rows = torch.arange(7.0)[:, None] * torch.tensor([10.0, 1.0])
parts = list(rows.split(uneven(7, 3)))
found = World(3).run(
    lambda comm, parts: look_up(comm, parts[comm.rank], torch.tensor([6, 0, 3]), 7), parts
)
study.holdings(
    {"own rows": [list(p) for p in parts], "looked up": [list(y) for y in found]},
    title="Tokens 6, 0, 3",
)

# %% [markdown] nbgrader={"grade_id": "look_up_gradient_spec"}
# ## 2 · The gradient of the rows (2 points)
#
# In backward every rank has the gradient of the looked-up rows, the same one. What is the gradient of its own rows?
#
# | | |
# |---|---|
# | call | `look_up_gradient(comm, grad, tokens, vocab)` |
# | `grad` | of the result of `look_up`, (…, H); the same on every rank; **not changed** |
# | returns | the gradient of this rank's rows, (V_r, H) |
# | cost | no message |
#
# A word that occurs twice collects both gradients; one that does not occur has zeros. About 5 lines.
#
# <details><summary>Hint</summary>
#
# `torch.zeros(…).index_add_(0, which, what)` adds up what falls into the same row. `x[mask]` picks the tokens that are
# this rank's, and their gradients.
#
# </details>


# %% nbgrader={"grade_id": "look_up_gradient", "solution": true}
def look_up_gradient(comm, grad, tokens, vocab):
    """The gradient of this rank's rows, (V_r, H)."""
    ### BEGIN SOLUTION
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    mine = (tokens >= first) & (tokens < end)
    return grad.new_zeros(end - first, grad.shape[-1]).index_add_(
        0, tokens[mine] - first, grad[mine]
    )
    ### END SOLUTION


# %% nbgrader={"grade_id": "look_up_gradient_test", "points": 2}
check.look_up_gradient(look_up_gradient)

# %% [markdown] nbgrader={"grade_id": "look_up_gradient_target"}
# **Target:** word 6 occurs twice, and has 2; the words 0 and 3 have 1; all others 0.

# %%
tokens = torch.tensor([6, 0, 3, 6])
grads = World(3).run(lambda comm: look_up_gradient(comm, torch.ones(4, 1), tokens, 7)[:, 0])
study.holdings({"gradient of own rows": grads}, title="Tokens 6, 0, 3, 6, each with gradient 1")

# %% [markdown] nbgrader={"grade_id": "project_backward_spec"}
# ## 3 · Backward of the projection (2 points)
#
# The logits of a rank's words are `x @ rows.T`: no message. But backward needs one. Which?
#
# | | |
# |---|---|
# | call | `project_backward(comm, dlogits, x, rows)` |
# | `dlogits` | gradient of this rank's logits, (tokens, V_r) |
# | `x` | the input of the projection, (tokens, H), the same on every rank |
# | `rows` | this rank's rows, (V_r, H) |
# | returns | `(dx, drows)`: the gradient of x, (tokens, H), the same on every rank; that of the own rows, (V_r, H) |
# | cost | one all-reduce of (tokens, H); no argument is changed |
#
# About 3 lines.
#
# <details><summary>Hint</summary>
#
# x went into the logits of *all* words, and a rank knows only the gradients of its own: they give a partial dx. A row,
# though, went into the logits of one rank alone.
#
# </details>


# %% nbgrader={"grade_id": "project_backward", "solution": true}
def project_backward(comm, dlogits, x, rows):
    """The gradients of x, whole on every rank, and of this rank's rows."""
    ### BEGIN SOLUTION
    return all_reduce_(comm, dlogits @ rows), dlogits.T @ x
    ### END SOLUTION


# %% nbgrader={"grade_id": "project_backward_test", "points": 2}
check.project_backward(project_backward)

# %% [markdown] nbgrader={"grade_id": "project_backward_target"}
# **Target:** two equal bars.


# %%
def both(comm, dlogits, x, rows):
    cut = uneven(len(rows), comm.size)
    dx, _ = project_backward(comm, dlogits.split(cut, 1)[comm.rank], x, rows.split(cut)[comm.rank])
    return float(dx.norm())


random = torch.Generator().manual_seed(3)
dlogits, x, rows = (
    torch.randn(s, generator=random, dtype=torch.float64) for s in ((4, 50), (4, 8), (50, 8))
)
study.bars(
    {f"{n} rank{'s' * (n > 1)}": World(n).run(both, dlogits, x, rows)[0] for n in (1, 3)},
    title="Length of dx",
)

# %% [markdown] nbgrader={"grade_id": "split_loss_spec"}
# ## 4 · The loss in three reductions (4 points)
#
# The loss of a token with target t is log Σ exp(x_c) − x_t, the sum being over all V words. With m the largest logit,
# log Σ exp(x_c) = m + log Σ exp(x_c − m), and nothing overflows.
#
# | | |
# |---|---|
# | call | `split_loss(comm, part, targets, vocab)` |
# | `part` | this rank's logits, (tokens, V_r): float64, float32 or float16, up to ±10,000; **not changed** |
# | `targets` | int64, (tokens,), the same on every rank; **not changed** |
# | returns | `(losses, log_total)`, log_total being log Σ exp(x_c): both (tokens,), the same on every rank |
# | dtype | float64 for float64 logits, else float32 |
# | cost | three numbers a token are reduced: 3·2(n−1)/n (or 3(n−1), if gathered) numbers a rank, whatever V is |
#
# About 9 lines.
#
# <details><summary>Hint</summary>
#
# Three all-reduces of (tokens,): m with `op="max"`; then Σ exp(x_c − m), each rank its own words; and x_t, which is 0
# where the target is another rank's: `part.gather(1, …)`, and a mask as in exercise 1. Float16: `part.float()` first.
#
# </details>


# %% nbgrader={"grade_id": "split_loss", "solution": true}
def split_loss(comm, part, targets, vocab):
    """The losses and log Σ exp(x_c) of all tokens, on every rank."""
    ### BEGIN SOLUTION
    part = part.to(torch.promote_types(part.dtype, torch.float32))
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    hit = part.gather(1, (targets - first).clamp(0, end - first - 1)[:, None])[:, 0]
    m = all_reduce_(comm, part.amax(1), op="max")
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    hit = all_reduce_(comm, hit.masked_fill(elsewhere, 0))
    log_total = m + s.log()
    return log_total - hit, log_total
    ### END SOLUTION


# %% nbgrader={"grade_id": "split_loss_test", "points": 4}
check.split_loss(split_loss)

# %% [markdown] nbgrader={"grade_id": "split_loss_target"}
# **Target:** the bytes do not grow with V: 3 · 2 · 3/4 · 8 = 36 for each token.


# %%
def bytes_of(vocab):
    world = World(4)
    part = torch.zeros(100, vocab // 4, dtype=torch.float64)
    world.run(lambda comm, part: split_loss(comm, part, torch.arange(100), vocab), part)
    return world.trace.bytes_sent(0) / 100


study.bars(
    {f"V = {vocab:,}": bytes_of(vocab) for vocab in (400, 4_000, 40_000)},
    target=36,
    unit="B",
    title="Bytes that rank 0 sends for a token",
)

# %% [markdown] nbgrader={"grade_id": "logits_gradient_spec"}
# ## 5 · Backward without a message (3 points)
#
# Training takes the *mean* loss over the tokens that count. Padding has the target −100, and does not count.
#
# | | |
# |---|---|
# | call | `logits_gradient(comm, part, targets, vocab, log_total)` |
# | `part`, `targets` | as in exercise 4; some targets are −100, never all; nothing is changed |
# | `log_total` | log Σ exp(x_c) over all V, (tokens,), at least float32 |
# | returns | the gradient of the mean loss with respect to `part`: (tokens, V_r), `part`'s dtype |
# | cost | no message |
#
# For one token: d loss/d x_c = exp(x_c − log_total) − [c = t]. A token that is ignored has zeros. About 8 lines.
#
# <details><summary>Hint</summary>
#
# First the softmax, `(part - log_total[:, None]).exp()`, in float32 at least. Then subtract 1 at (token, target −
# first) for those targets that are this rank's. −100 is no rank's. Last, zero the ignored rows and divide by the number
# of the others: of all tokens, not only of those whose target is here.
#
# </details>


# %% nbgrader={"grade_id": "logits_gradient", "solution": true}
def logits_gradient(comm, part, targets, vocab, log_total):
    """The gradient of the mean loss for this rank's logits, (tokens, V_r)."""
    ### BEGIN SOLUTION
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    here = ((targets >= first) & (targets < end)).nonzero()[:, 0]
    grad = (part - log_total[:, None]).exp()
    grad[here, targets[here] - first] -= 1
    counts = targets != -100
    return (grad * counts[:, None] / counts.sum()).to(part.dtype)
    ### END SOLUTION


# %% nbgrader={"grade_id": "logits_gradient_test", "points": 3}
check.logits_gradient(logits_gradient)

# %% [markdown] nbgrader={"grade_id": "logits_gradient_target"}
# **Target:** 0: each token's gradient, over all words, adds up to nothing. And PyTorch's is the same.

# %%
random = torch.Generator().manual_seed(5)
logits = torch.randn(6, 20, generator=random, dtype=torch.float64).requires_grad_()
targets = torch.tensor([3, -100, 19, 0, 7, -100])
cross_entropy(logits, targets).backward()


def mine(comm, whole):
    part = whole.split(uneven(20, comm.size), 1)[comm.rank]
    return logits_gradient(comm, part, targets, 20, whole.logsumexp(1))


grad = torch.cat(World(3).run(mine, logits.detach()), 1)
sums, off_by = grad.sum(1).abs(), (grad - logits.grad).abs().amax(1)
study.table(
    [(i, int(targets[i]), f"{float(sums[i]):.6f}", f"{float(off_by[i]):.6f}") for i in range(6)],
    ["token", "target", "sum of the gradient", "off PyTorch's"],
)

# %% [markdown] nbgrader={"grade_id": "predict_vocabulary_spec"}
# ## 6 · Predict, then run (2 points)
#
# A vocabulary of 64,000 words, H = 5,120, float32 (4 bytes), 8 ranks, collectives by rings.
#
# - `saved`: how many MiB (2²⁰ bytes) of weights does a rank *not* keep, because the matrix is split?
# - `gathered`: the naive loss. How many bytes does a rank send for one token, to gather the logits?
# - `reduced`: your exercise 4, in float32. How many bytes does a rank send for one token?
# - `doubled`: the same as `reduced`, with 128,000 words?
# - `messages`: s and x_t can share an all-reduce, m comes before. How many messages does a rank send for one loss?
# - `looked_up`: the look-up's all-reduce. How many bytes does a rank send for one token?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_vocabulary", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_vocabulary.numbers(STUDENT)
saved = gathered = reduced = doubled = messages = looked_up = None
### BEGIN SOLUTION
n = 8
V = 64_000
H = 5_120
saved = V * H * 4 * (n - 1) / n / 2**20
gathered = (n - 1) / n * V * 4
reduced = doubled = 3 * 2 * (n - 1) / n * 4
messages = 2 * 2 * (n - 1)
looked_up = 2 * (n - 1) / n * H * 4
### END SOLUTION

# %% nbgrader={"grade_id": "predict_vocabulary_test", "points": 2}
check.predict_vocabulary(saved, gathered, reduced, doubled, messages, looked_up, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_vocabulary_target"}
# **Target:** your numbers beside those of a World, which sends 8,000 tokens without data (device `"meta"`).


# %%
def sent(program):
    world = World(8, device="meta")
    world.run(program)
    return world.trace.bytes_sent(0) / 8_000


def meta(*shape):
    return torch.empty(shape, device="meta")


rows = [
    ["gathered", gathered, sent(lambda comm: all_gather(comm, meta(8_000, 8_000)))],
    ["reduced", reduced, sent(lambda comm: [all_reduce_(comm, meta(8_000)) for _ in range(3)])],
    ["looked_up", looked_up, sent(lambda comm: all_reduce_(comm, meta(8_000, 5_120)))],
]
study.table(rows, ["bytes a token", "predicted", "run"])

# %% [markdown] nbgrader={"grade_id": "merged_loss_spec"}
# ## 7 · Find the bug: one message (2 points)
#
# Latency counts more than a few bytes. So gather the three numbers of every rank at once, and merge them: no rank has
# to wait for m before it sums. The next cell was found in somebody's code.


# %% nbgrader={"grade_id": "merged_loss_broken"}
def merged_loss(comm, part, targets, vocab):
    """The losses of all tokens, by one all-gather."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    hit = part.gather(1, (targets - first).clamp(0, end - first - 1)[:, None])[:, 0].masked_fill(
        elsewhere, 0
    )
    m = part.amax(1)
    s = (part - m[:, None]).exp().sum(1)
    # (n, tokens) each
    every_m, every_s, every_hit = all_gather(comm, torch.stack([m, s, hit])[None]).unbind(1)
    return every_m.amax(0) + every_s.sum(0).log() - every_hit.sum(0)


# %%
def off(shift, loss):
    """How far the losses are off, where the words of rank 1 have logits larger by `shift`."""
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 8, generator=random, dtype=torch.float64)
    logits[:, 4:] += shift
    logits[:, ::4] = logits.amax() + shift * torch.tensor([0, 1])  # the largest logit of each part
    targets = torch.arange(5)
    right = cross_entropy(logits, targets, reduction="none")
    found = World(2).run(lambda comm, x: loss(comm, x.split(4, 1)[comm.rank], targets, 8), logits)[
        0
    ]
    return round(float((found - right).abs().max()), 6)


shifts = [0, 1, 2, 4, 6]
study.curves(
    {"broken": (shifts, [off(s, merged_loss) for s in shifts])},
    ylabel="largest error of a loss",
    xlabel="largest logit of rank 1 − that of rank 0",
    title="Right while the parts are alike",
)

# %% [markdown] nbgrader={"grade_id": "merged_loss_task"}
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `merged_loss(comm, part, targets, vocab)`, float64 |
# | returns | the losses, (tokens,), the same on every rank |
# | cost | n−1 messages and 3(n−1) numbers a token from each rank |
#
# <details><summary>Hint</summary>
#
# A rank's s is a sum of exp(x_c − *its own* m). What turns exp(x_c − m_i) into exp(x_c − m)?
#
# </details>


# %% nbgrader={"grade_id": "merged_loss", "solution": true}
def merged_loss(comm, part, targets, vocab):
    """The losses of all tokens, by one all-gather."""
    ### BEGIN SOLUTION
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    hit = part.gather(1, (targets - first).clamp(0, end - first - 1)[:, None])[:, 0].masked_fill(
        elsewhere, 0
    )
    m = part.amax(1)
    s = (part - m[:, None]).exp().sum(1)
    # (n, tokens) each
    every_m, every_s, every_hit = all_gather(comm, torch.stack([m, s, hit])[None]).unbind(1)
    m = every_m.amax(0)
    return m + (every_s * (every_m - m).exp()).sum(0).log() - every_hit.sum(0)
    ### END SOLUTION


# %% nbgrader={"grade_id": "merged_loss_test", "points": 2}
check.merged_loss(merged_loss)

# %% [markdown] nbgrader={"grade_id": "merged_loss_target"}
# **Target:** no error, however much the parts differ. `vocab_cross_entropy` of the library merges as you do.

# %%
study.bars(
    {f"shift {s}": off(s, merged_loss) for s in shifts}, title="Largest error of a loss, repaired"
)
