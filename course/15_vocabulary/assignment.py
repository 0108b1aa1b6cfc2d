# %% [markdown] nbgrader={"grade_id": "top"}
# # 15 Vocabulary parallel: exercises
#
# The lesson split both ends of a language model over its words, with three numbers a token for the loss. Here you do what a real run needs besides: a look-up that leaves each rank with its own positions only, the gradients of the rows, words that exist only as padding, targets that do not count, and smoothed labels in one message.
#
# Eight exercises, 19 points. After each of the first seven, run the check: it compares your function with one rank that has the whole vocabulary, on 1 to 4 ranks, with parts that differ in size, then in real processes. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, run the function in a `World` of your own. The eighth is an open question, which your teacher reads.
#
# You may call `minidist.collectives` and `minidist.split`. `minidist.parallel` is refused in answers, except in exercise 8.
#
# Everywhere rank r holds the words `first` to `end − 1`, with `first, end = bounds(uneven(vocab, n))[r]`. V_r is their number, never 0 here. A token is the number of a word in the whole vocabulary. "The same on every rank" means bit for bit, and a nan or an infinity in the arguments must not be hidden.

# %% nbgrader={"grade_id": "setup"}
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.comm import Cluster, World
from minidist.split import bounds, uneven

# %% [markdown] nbgrader={"grade_id": "look_up_spec"}
# ## 1 · Look up, and keep your share (2 points)
#
# In the lesson every rank ended with the rows of all tokens. With sequence parallelism, which [Tensor parallel](lesson:tensor) has shown, each rank goes on with its own share of the positions, and needs only their rows. So half of the all-reduce is enough.
#
# | | |
# |---|---|
# | call | `look_up(comm, rows, tokens, vocab)` |
# | `rows` | this rank's rows, (V_r, H); **not changed** |
# | `tokens` | int64, (T, …): one dimension or more, T ≥ n; the same on every rank; **not changed** |
# | returns | the rows of *this rank's share* of the tokens, (T_r, …, H), in the rows' dtype; the first dimension is cut into `uneven(T, n)`, in the order of the ranks |
# | cost | n−1 messages a rank, and no more bytes than n−1 times those of the largest share; nothing depends on V |
#
# **Invariant:** a row lies on one rank, which gives it; the others give zeros, and the sum is the row. About 7 lines.
#
# <details><summary>Hint</summary>
#
# `local = tokens - first` is right for own tokens. For the others take any row that is there (`local.clamp(0, …)`), and then write zeros over it: `masked_fill` with a mask (…, 1). `reduce_scatter(comm, x, sizes=…)` adds x up over the ranks, and leaves each with its rows of the sum.
#
# </details>


# %% nbgrader={"grade_id": "look_up", "solution": true}
def look_up(comm, rows, tokens, vocab):
    """The rows of this rank's share of the tokens, (T_r, …, H)."""
    ### BEGIN SOLUTION
    shares = uneven(len(tokens), comm.size)
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (tokens < first) | (tokens >= end)
    found = rows[(tokens - first).clamp(0, end - first - 1)]
    return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)
    ### END SOLUTION


# %% nbgrader={"grade_id": "look_up_test", "points": 2}
check.look_up(look_up)

# %% [markdown] nbgrader={"grade_id": "look_up_target"}
# **Target:** rank 0 has the rows of the words 6 and 1, rank 1 those of 0 and 4, and rank 2 that of 3.

# %%
rows = torch.arange(7.0)[:, None] * torch.tensor([10.0, 1.0])
parts = list(rows.split(uneven(7, 3)))
tokens = torch.tensor([6, 1, 0, 4, 3])
with check.limit(10):
    found = World(3).run(lambda comm, parts: look_up(comm, parts[comm.rank], tokens, 7), parts)
study.holdings(
    {"own rows": [list(p) for p in parts], "looked up": [list(y) for y in found]},
    title="Tokens 6, 1, 0, 4, 3: each rank's share",
)

# %% [markdown] nbgrader={"grade_id": "look_up_gradient_spec"}
# ## 2 · The gradient of the rows (2 points)
#
# After the lesson's look-up, with an all-reduce, every rank has all the rows that were looked up, and in backward their whole gradient. The lesson said that no message is needed; it left the code to you. What is the gradient of a rank's own rows?
#
# | | |
# |---|---|
# | call | `look_up_gradient(comm, grad, tokens, vocab)` |
# | `grad` | the gradient of the rows that were looked up, (…, H); the same on every rank; **not changed** |
# | `tokens` | int64, (…), of any shape, a single token without dimensions too; the same on every rank; **not changed** |
# | returns | the gradient of this rank's rows, (V_r, H), in the dtype of `grad` |
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
with check.limit(10):
    grads = World(3).run(lambda comm: look_up_gradient(comm, torch.ones(4, 1), tokens, 7)[:, 0])
study.holdings({"gradient of own rows": grads}, title="Tokens 6, 0, 3, 6, each with gradient 1")

# %% [markdown] nbgrader={"grade_id": "project_backward_spec"}
# ## 3 · Backward of the projection (2 points)
#
# The logits of a rank's words are `x @ rows.T`, without a message. The lesson has shown why the gradient of x needs one. A rank's rows have a gradient, too. Where does all of it lie?
#
# | | |
# |---|---|
# | call | `project_backward(comm, dlogits, x, rows)` |
# | `dlogits` | gradient of this rank's logits, (tokens, V_r) |
# | `x` | the input of the projection, (tokens, H), the same on every rank |
# | `rows` | this rank's rows, (V_r, H) |
# | returns | `(dx, drows)`: the gradient of x, (tokens, H), the same on every rank; that of the own rows, (V_r, H) |
# | dtype | that of the arguments, which are of one dtype; float64 is not rounded to float32 on the way |
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
with check.limit(10):
    lengths = {n: World(n).run(both, dlogits, x, rows)[0] for n in (1, 3)}
study.bars({"1 rank": lengths[1], "3 ranks": lengths[3]}, title="Length of dx")

# %% [markdown] nbgrader={"grade_id": "split_loss_spec"}
# ## 4 · The loss of a padded vocabulary (4 points)
#
# The lesson said that programs pad the vocabulary, so that tensor cores can load each rank's part. The words that were added do not exist, and nobody trains them. So what a projection gives for them is any number, perhaps the largest of all, and it must not count in the loss. The loss of a token with target t is log Σ exp(x_c) − x_t, where the sum is over the words that exist.
#
# | | |
# |---|---|
# | call | `split_loss(comm, part, targets, vocab, words)` |
# | `part` | this rank's logits, (tokens, V_r): float64, float32 or float16, up to ±10,000; **not changed** |
# | `targets` | int64, (tokens,), each less than `words`; the same on every rank; **not changed** |
# | `vocab`, `words` | the padded size, which is split over the ranks, and how many of them exist: 0 to `words` − 1. Every rank has at least one that exists |
# | returns | `(losses, log_total)`, log_total being log Σ exp(x_c): both (tokens,), also for a single token; the same on every rank |
# | dtype | float64 for float64 logits, else float32, and computed in it |
# | cost | at most 6(n−1) messages a rank, and three numbers a token: 3·2(n−1)/n (each all-reduce rounds its chunks up) or 3(n−1) numbers, whatever V is |
#
# About 11 lines.
#
# <details><summary>Hint</summary>
#
# exp(−∞) is 0, and −∞ is never the largest. Which of a rank's columns are padding? `torch.arange(first, end)` are the words that they stand for. For float16, convert the logits before anything else.
#
# </details>


# %% nbgrader={"grade_id": "split_loss", "solution": true}
def split_loss(comm, part, targets, vocab, words):
    """The losses and log Σ exp(x_c) of all tokens, on every rank."""
    ### BEGIN SOLUTION
    part = part.to(torch.promote_types(part.dtype, torch.float32))
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    part = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)
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
# **Target:** the bytes do not grow with V: 3 · 2 · 3/4 · 8 = 36 for each token if you all-reduce three times (72 if you gather three numbers).


# %%
def bytes_of(vocab):
    world = World(4)
    part = torch.zeros(100, vocab // 4, dtype=torch.float64)
    targets = torch.arange(100)
    world.run(lambda comm, part: split_loss(comm, part, targets, vocab, vocab - 3), part)
    return world.trace.bytes_sent(0) / 100


with check.limit(10):
    sent_bytes = {f"V = {vocab:,}": bytes_of(vocab) for vocab in (400, 4_000, 40_000)}
study.bars(
    sent_bytes,
    target=36,
    unit="B",
    title="Bytes that rank 0 sends for a token",
)

# %% [markdown] nbgrader={"grade_id": "logits_gradient_spec"}
# ## 5 · Backward without a message (3 points)
#
# The lesson's gradient was that of each loss by itself, and it found m and s anew. Training takes the *mean* loss over the tokens that count: a text that ends early is filled up with tokens of target −100, which do not. And the forward has left log Σ exp(x_c), one number a token instead of two.
#
# | | |
# |---|---|
# | call | `logits_gradient(comm, part, targets, vocab, log_total)` |
# | `part`, `targets` | as in exercise 4, but all words exist; some targets are −100, never all; nothing is changed |
# | `log_total` | log Σ exp(x_c) over all V, (tokens,), at least float32 |
# | returns | the gradient of the mean loss with respect to `part`: (tokens, V_r), `part`'s dtype, rounded to it only at the end |
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


with check.limit(10):
    grad = torch.cat(World(3).run(mine, logits.detach()), 1)
sums, off_by = grad.sum(1).abs(), (grad - logits.grad).abs().amax(1)
study.table(
    [(i, int(targets[i]), f"{float(sums[i]):.6f}", f"{float(off_by[i]):.6f}") for i in range(6)],
    ["token", "target", "sum of the gradient", "off PyTorch's"],
)

# %% [markdown] nbgrader={"grade_id": "predict_vocabulary_spec"}
# ## 6 · Predict, then run (2 points)
#
# A vocabulary of 64,000 words, H = 5,120, float32 (4 bytes), 8 ranks, collectives by rings. The lesson's way of the loss is varied here: two of its three reductions travel together.
#
# - `saved`: how many MiB (2²⁰ bytes) of weights does a rank *not* keep, because the matrix is split?
# - `gathered`: the naive loss. How many bytes does a rank send for one token, to gather the logits?
# - `reduced`: the loss by three all-reduces. How many bytes does a rank send for one token?
# - `doubled`: the same as `reduced`, with 128,000 words?
# - `messages`: s and x_t can share an all-reduce, m comes before. How many messages does a rank send for one loss?
# - `looked_up`: the all-reduce of the lesson's look-up. How many bytes does a rank send for one token?
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
# ## 7 · Find the bugs: smoothed labels in one message (2 points)
#
# With labels smoothed by ε the target's word is to have the probability 1 − ε, and ε is spread evenly over all V words, the target among them. The loss of a token becomes
#
# $$\log \sum_c e^{x_c} - (1 - \varepsilon)\, x_t - \frac{\varepsilon}{V} \sum_c x_c .$$
#
# So a rank has four numbers to tell. The next cell was found in somebody's code. It gathers all four at once, and has **two** mistakes: one shows when the parts have logits of different size, the other when they have different numbers of words.


# %% nbgrader={"grade_id": "merged_loss_broken"}
def merged_loss(comm, part, targets, vocab, smoothing):
    """The losses of all tokens, labels smoothed, by one all-gather."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    hit = part.gather(1, (targets - first).clamp(0, end - first - 1)[:, None])[:, 0]
    hit = hit.masked_fill(elsewhere, 0)
    m = part.amax(1)
    s = (part - m[:, None]).exp().sum(1)
    own = torch.stack([m, s, hit, part.mean(1)])
    # (n, tokens) each
    every_m, every_s, every_hit, every_mean = all_gather(comm, own[None]).unbind(1)
    log_total = every_m.amax(0) + every_s.sum(0).log()
    return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_mean.mean(0)


# %%
def off(shift, vocab, loss):
    """How far the losses are off on 2 ranks, where the words of rank 1 have logits larger by `shift`."""
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(5, vocab, generator=random, dtype=torch.float64)
    cut = uneven(vocab, 2)
    logits[:, cut[0] :] += shift
    largest = logits.amax()
    logits[:, 0] = largest  # of rank 0
    logits[:, -1] = largest + shift  # of rank 1
    targets = torch.arange(5)
    right = cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)
    found = World(2).run(
        lambda comm, x: loss(comm, x.split(cut, 1)[comm.rank], targets, vocab, 0.1), logits
    )
    return round(float((found[0] - right).abs().max()), 6)


def errors(loss, title):
    shifts = [0, 1, 2, 4, 6]
    return study.curves(
        {
            f"{vocab} words": (shifts, [off(shift, vocab, loss) for shift in shifts])
            for vocab in (8, 9)
        },
        ylabel="largest error of a loss",
        xlabel="largest logit of rank 1 − that of rank 0",
        title=title,
    )


errors(merged_loss, "Right for 8 words, while the parts are alike")

# %% [markdown] nbgrader={"grade_id": "merged_loss_task"}
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `merged_loss(comm, part, targets, vocab, smoothing)` |
# | `part` | this rank's logits, (tokens, V_r), float64, up to ±10,000; all words exist; **not changed** |
# | `targets` | int64, (tokens,), the same on every rank; **not changed** |
# | `smoothing` | ε, from 0 to less than 1 |
# | returns | the losses, (tokens,), also for a single token; the same on every rank |
# | cost | n−1 messages and 4(n−1) numbers a token from each rank |
#
# <details><summary>Hint</summary>
#
# A rank's s is a sum of exp(x_c − *its own* m). What turns exp(x_c − m_i) into exp(x_c − m)? And the mean of means is the mean only if all are of equally many numbers.
#
# </details>


# %% nbgrader={"grade_id": "merged_loss", "solution": true}
def merged_loss(comm, part, targets, vocab, smoothing):
    """The losses of all tokens, labels smoothed, by one all-gather."""
    ### BEGIN SOLUTION
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    hit = part.gather(1, (targets - first).clamp(0, end - first - 1)[:, None])[:, 0]
    hit = hit.masked_fill(elsewhere, 0)
    m = part.amax(1)
    s = (part - m[:, None]).exp().sum(1)
    own = torch.stack([m, s, hit, part.sum(1)])
    # (n, tokens) each
    every_m, every_s, every_hit, every_sum = all_gather(comm, own[None]).unbind(1)
    m = every_m.amax(0)
    log_total = m + (every_s * (every_m - m).exp()).sum(0).log()
    return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab
    ### END SOLUTION


# %% nbgrader={"grade_id": "merged_loss_test", "points": 2}
check.merged_loss(merged_loss)

# %% [markdown] nbgrader={"grade_id": "merged_loss_target"}
# **Target:** no error, however much the parts differ, for 8 words and for 9. `vocab_cross_entropy` of the library merges as you do.

# %%
with check.limit(10):
    repaired = errors(merged_loss, "Repaired")
repaired

# %% [markdown] nbgrader={"grade_id": "small_vocabulary_spec"}
# ## 8 · How small is a small vocabulary? (2 points, graded by hand)
#
# The lesson advised to leave a small vocabulary whole, and compared four models. **From how many words on does it pay to split them over 8 GPUs, inside a node and over the network?** Time both ends of a model on modelled H100s with the lesson's `ends` and its three places, for 8,192 positions in bfloat16, from 1,024 to 131,072 words (powers of two), with H = 1,024 and with H = 4,096. Draw the times against the number of words; then write five to ten sentences. Here the library may do the work (`minidist.parallel.vocab`).
#
# | points | for |
# |---|---|
# | 1 | a plot for each H, with axes, units and a legend, from which one can read where the lines cross; and these four numbers of words |
# | ½ | a reason for the shape of the lines, and for what changes with H and with the place |
# | ½ | advice for a model of 8,192 words with H = 4,096 whose 8 GPUs stand in eight nodes, which takes the measured memory into account as well |

# %% nbgrader={"grade_id": "small_vocabulary_plot", "solution": true}
### BEGIN SOLUTION
from IPython.display import display

from minidist.parallel.vocab import VocabEmbedding, vocab_cross_entropy


def ends(comm, vocab, hidden):
    embedding = VocabEmbedding(vocab, hidden, comm, dtype=torch.bfloat16, device="meta")
    tokens = torch.zeros(8192, dtype=torch.int64, device="meta")
    vocab_cross_entropy(embedding.project(embedding(tokens)), tokens, comm, vocab).backward()


node = Cluster.dgx_h100()
over_network = replace(Cluster.dgx_h100(nodes=8), devices=1)
places = {"one H100": (1, node), "8, NVLink": (8, node), "8, network": (8, over_network)}
sizes = [2**k for k in range(10, 18)]
memory = []
for hidden in (1024, 4096):
    lines = {}
    for place, (n, cluster) in places.items():
        times = []
        for vocab in sizes:
            world = World(n, cluster=cluster, device="meta")
            world.run(ends, vocab, hidden)
            times.append(world.time)
            if vocab == 8192:
                memory.append((hidden, place, world.trace.memory[0].peak / 2**20))
        lines[place] = (sizes, times)
    display(
        study.curves(
            lines,
            logx=True,
            logy=True,
            xlabel="words",
            yunit="s",
            ylabel="time of both ends, modelled",
            title=f"8,192 positions, H = {hidden:,}",
        )
    )
display(study.table(memory, ["H", "8,192 words on", "peak, MiB"]))
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "small_vocabulary", "solution": true, "points": 2}
# With H = 1,024 the lines cross near 1,600 words inside a node and near 6,700 over the network; with H = 4,096 near 2,000 and near 11,200.
#
# All lines are a floor and a slope. The slope is the work for each word, its products and its logits, and on eight GPUs it is an eighth. The floor is everything in which the words do not occur: the rows of the positions, the start of each kernel, and on eight GPUs also the messages, above all the two all-reduces of 8,192 × H numbers. With H = 1,024 it is 0.3 ms on one GPU, 0.8 ms on eight of a node, and 2.3 ms over the network. The lines cross where the slope has saved what the floor has grown by, so over the network they cross much later. If H grows fourfold, so do the bytes of the all-reduces, but the slope grows less than twofold, since the exponentials and sums of the logits do not know H. So the crossing moves to the right, most of all where the messages are slow.
#
# For 8,192 words, H = 4,096 and eight nodes I would leave the vocabulary whole if it fits: the split takes 6.8 ms instead of 5.3 ms. In memory it has a peak of 160 MiB instead of 448 MiB. 288 MiB of 80 GB are a bad reason to take 1.5 ms longer in each step; only if the GPU is full to the brim would I split, and then the states of the optimizer, which also shrink to an eighth, count in its favour.
