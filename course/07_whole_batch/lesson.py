# %% [markdown]
# # 07 · What needs the whole batch
#
# [Data parallelism](lesson:data_parallel) rests on one sentence: the gradient of a batch is the mean of the gradients of its parts. We have used it as if it were always true. It is true only when every sample has a loss of its own, when all parts are equally large, and when the parts are complete. Each of these conditions fails in ordinary training runs, quietly, without an error message.
#
# In this lesson you will meet the three cases. A batch is too large for memory and is processed in several **micro-batches**. The parts are of *different sizes*, because sentences are. And a layer, **batch norm**, looks at all samples of the batch at once, so that no part can be computed without the others.
#
# Start with a guess about the second. Two ranks train a language model. In this step rank 0 has 1,000 tokens that count, and rank 1, whose sentences are short, has 10. Both compute their mean loss and average the gradients, as we have always done. **How many times as much as a token of rank 0 does a token of rank 1 count?**

# %%
guess = 1  # times as much: change this number

# %% [markdown]
# ## Micro-batches
#
# ### On paper: 6 samples, 3 at a time
#
# A batch has six samples with gradients 1 to 6, and memory holds the activations of only three. So run forward and backward on the first three, then on the others, and let the gradients add up; PyTorch's `backward` *adds* to `p.grad`, so nothing special has to be done. The first backward leaves the mean of 1, 2 and 3, which is 2. The second adds the mean of 4, 5 and 6, which is 5. The sum is 7, and the right answer is 3.5. So each loss has to be divided by the number of micro-batches, here 2, before its backward: 1 + 2.5 = 3.5.
#
# This is [gradient accumulation](term:gradient-accumulation). It gives the gradient of a large batch in the memory of a small one. How much memory does it save? Activations are kept from the forward until the backward has used them, so at any time only one micro-batch has any. Take a network with five hidden layers of 64 in double precision. Each hidden layer keeps its output, so for each sample there are 5 · 64 numbers of 8 bytes, 2,560 bytes. For a batch of 1,200 in *k* micro-batches that makes 1,200/*k* · 2,560 bytes, and to these we add the batch itself, which stays in memory throughout.
#
# The next cell has the naive form, the oracle, and this prediction. `measure` runs a function and follows all tensors that are alive meanwhile; we ask it for the activations at the moment of the highest peak. `off` words an error, and calls it "below 1e-12" where it is nothing but rounding.

# %%
import torch
from IPython.display import display
from torch.nn.functional import cross_entropy

from minidist import study
from minidist.models import mlp
from minidist.parallel.data import Sampler
from minidist.study.meter import measure
from minidist.tasks import digits

task = digits()


def accumulated_gradients(model, x, y, k):
    """The gradients of the mean loss over x, in k micro-batches of equal size."""
    for part_x, part_y in zip(x.chunk(k), y.chunk(k)):
        loss = cross_entropy(model(part_x), part_y) / k
        loss.backward()
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


def off(found, right):
    """The relative error in words. Below 1e-12 it is rounding, in double precision."""
    error = float((found - right).norm() / right.norm())
    return "below 1e-12" if error < 1e-12 else f"{error:.0%}"


x = task.x[:1200].clone()
y = task.y[:1200].clone()
sizes = [64, 64, 64, 64, 64, 64, 10]
right = accumulated_gradients(mlp(sizes, dtype=torch.float64), x, y, 1)
rows = []
for k in (1, 2, 4, 8):
    predicted = 1200 // k * 5 * 64 * 8 + x.nbytes + y.nbytes
    profile = measure(accumulated_gradients, mlp(sizes, dtype=torch.float64), x, y, k)
    measured = profile.at_peak["activations"]
    rows.append((k, predicted, measured, profile.flops, off(profile.result, right)))
study.table(
    rows,
    ["k", "bytes of activations, predicted", "measured", "FLOPs", "gradients off by"],
    title="One batch of 1,200, in k micro-batches",
)

# %% tags=["maintainer"]
assert all(row[4] == "below 1e-12" for row in rows) and len({row[3] for row in rows}) == 1
assert all(row[2] - row[1] == 8 for row in rows)

# %% [markdown]
# The prediction is right to the last 8 bytes, and these are the loss. As *k* grows, the activations shrink towards the size of the batch, the work stays the same, and so do the gradients.
#
# It sounds as if it were free. The price is speed. Each micro-batch launches all operations again and reads all weights from memory again, and a GPU needs large matrices to keep its many processors busy. So *k* small products take longer than one large one. Choose the largest micro-batch that fits.
#
# **The learning rate stays what it was.** The step is still a step of the large batch, so whatever rate suits the large batch is right. People who accumulate in order to have a larger batch than before do have to adapt the rate, not because they accumulate but because the batch has grown ([Large batches](lesson:large_batches)).
#
# ### With several ranks
#
# Now each of several ranks has its share of the batch, and processes it in micro-batches. When should the ranks average? There are three popular ways, and only one of them is both right and cheap.
#
# - *once*: average `p.grad` after the last micro-batch.
# - *every*: average `p.grad` after every backward.
# - *hook*: average during the last backward, each gradient as it arrives. The tempting hook for this is `Tensor.register_hook`. Its function is called with the gradient that *this* backward is about to add to `p.grad`, and whatever it returns is added instead.
#
# Decide for each of the three whether the replicas stay equal and whether the gradient is right. **Which ways are right?**

# %%
guess_right = ["once", "every", "hook"]  # delete those that are wrong

# %%
from minidist.collectives import all_reduce_
from minidist.comm import World


def average(comm, model):
    for p in model.parameters():
        all_reduce_(comm, p.grad, op="mean")


def accumulate(comm, task, way, k=3):
    def average_what_is_added(added):
        return all_reduce_(comm, added.clone(), op="mean")

    model = mlp([64, 32, 10], dtype=torch.float64)
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    for i, part in enumerate(mine.chunk(k)):
        if way == "hook" and i == k - 1:
            for p in model.parameters():
                p.register_hook(average_what_is_added)
        loss = cross_entropy(model(task.x[part]), task.y[part]) / k
        loss.backward()
        if way == "every":
            average(comm, model)
    if way == "once":
        average(comm, model)
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


right = World(1).run(accumulate, task, "once", 1)[0]
rows = []
for way in ("once", "every", "hook"):
    ranks = World(4).run(accumulate, task, way)
    replicas = "equal" if all(torch.equal(g, ranks[0]) for g in ranks) else "drift apart"
    rows.append((way, ranks.trace.bytes_sent(0), replicas, off(ranks[0], right)))

# %% tags=["answer"]
study.reveal(
    guess_right,
    ["once", "every"],
    study.table(
        rows,
        ["the average is taken", "bytes sent by rank 0", "replicas", "rank 0's gradient off by"],
        title="Three micro-batches on each of 4 ranks",
    ),
    words="Averaging after every backward is right: averaging gradients that are already equal does "
    "not change them. But it sends three times as much.",
)

# %% tags=["maintainer"]
assert [row[2:] for row in rows[:2]] == [("equal", "below 1e-12")] * 2
assert rows[2][2] == "drift apart"

# %% [markdown]
# Follow one weight through the three ways, on two ranks with two micro-batches each. Rank 0 adds up 1 and 3, and rank 1 adds up 5 and 11, so the right average is (4 + 16)/2 = 10.
#
# | | after the first backward | after the second | in the end |
# |---|---|---|---|
# | once | 1 and 5 | 4 and 16, averaged | 10 and 10 |
# | every | 1 and 5, averaged: 3 and 3 | 3 + 3 = 6 and 3 + 11 = 14, averaged | 10 and 10 |
# | hook | 1 and 5 | 3 and 11 are averaged *before* they are added: 1 + 7 and 5 + 7 | 8 and 12 |
#
# Averaging early does no harm in the second row, because an average of equal numbers is the number itself: the 3 that both ranks have comes out of the last average as it went in. In the third row the first micro-batches have never been averaged, and each rank keeps its own.
#
# ![Two ranks, a batch in three micro-batches each. Above, without no_sync: an all-reduce after every backward. Below, with no_sync around the first two: their backwards only add to .grad, and the third one's all-reduce averages the sum. The gradient is the same, with a third of the bytes.](../course/07_whole_batch/figures/accumulation.svg)
#
# The library's wrapper averages at the end of each backward, unless the backward runs inside `no_sync()`. So the pattern is: all micro-batches but the last inside `no_sync`, the last one outside. PyTorch's DDP has a method of the same name for the same purpose.

# %%
from minidist.comm.cluster import H100, Cluster
from minidist.parallel.data import DataParallel


def with_no_sync(comm, task, k=3):
    model = DataParallel(mlp([64, 32, 10], dtype=torch.float64), comm)
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    *first, last = mine.chunk(k)
    with model.no_sync():
        for part in first:
            (cross_entropy(model(task.x[part]), task.y[part]) / k).backward()
    (cross_entropy(model(task.x[last]), task.y[last]) / k).backward()  # averages all that is there
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


cards = Cluster.uniform(4, 20e-6, 1 / 25e9, H100)  # so that the World's clock counts computation
found = World(4, cluster=cards).run(with_no_sync, task)
print("off from the serial gradient:", off(found[0], right))
study.viewer(found, ranks=[0, 1], title="Three backwards, and one average")

# %% tags=["maintainer"]
assert all(off(gradient, right) == "below 1e-12" for gradient in found)

# %% [markdown]
# In the first 0.2 ms network and wrapper are made: the ranks compare their models, and rank 0's weights are broadcast. Then forward (blue) and backward (pink) alternate three times without a message. Only when the last backward has ended do the [lanes](term:lane) begin to talk: $2(n-1)$ = 6 messages for the one bucket that this small model fills. (The memory is nearly all taken by the digits, which each rank has a copy of.)
#
# ## Parts of different sizes
#
# ### On paper: 3, 2 and 1 samples
#
# Three ranks hold 3, 2 and 1 of the six samples whose gradients are 1 to 6. Their means are 2, 4.5 and 6, and the mean of the means is 4.17 instead of 3.5. What went wrong? A mean is a sum divided by a number. Adding means over different numbers of samples mixes fractions with different denominators. Bring them to a common one: multiply each mean by its number of samples, which gives back the sum, add up the sums, and divide by the number of all samples. Here that is (3 · 2 + 2 · 4.5 + 1 · 6)/6 = 21/6 = 3.5. In general it is the [weighted average](term:weighted-average),
#
# $$g = \frac{\sum_r w_r\, g_r}{\sum_r w_r},$$
#
# where $w_r$ is the number of samples behind rank *r*'s gradient $g_r$.
#
# ![Rank 0 has six samples with a mean gradient of 2, rank 1 two samples with a mean gradient of 6. The plain average is 4, and every sample of rank 1 counts three times as much. Weighted by the samples it is 3, the mean over all eight.](../course/07_whole_batch/figures/uneven_batches.svg)
#
# In the picture the six samples of rank 0 share one half of the plain average, so each counts for a twelfth. The two of rank 1 share the other half and count for a quarter each. Weighted, all eight count for an eighth.
#
# In a program the ranks first have to learn the sum of the weights, which takes an all-reduce of a single number. Then each scales its mean by its share $w_r/\sum w$, and a plain *sum* over the ranks is the weighted average.


# %%
def two_averages(comm, parts):
    own = parts[comm.rank]
    plain = all_reduce_(comm, own.mean(), op="mean")
    total = all_reduce_(comm, torch.tensor(float(len(own))))
    share = len(own) / total
    weighted = all_reduce_(comm, own.mean() * share)  # without `op` it sums
    return plain.item(), weighted.item()


parts = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0]), torch.tensor([6.0])]
plain, weighted = World(3).run(two_averages, parts)[0]
study.bars(
    {"mean of the means": plain, "weighted": weighted},
    target=3.5,
    note="mean of all six",
    title="Parts of 3, 2 and 1 samples",
)

# %% [markdown]
# ### Where it happens
#
# With a sampler that deals equal parts you may think that this is somebody else's problem. It is not, for three reasons. The *last batch* of an epoch is smaller, unless it is dropped. In *language*, sequences are padded to a common length, and the padding does not count: what has to be counted is tokens, and each rank has its own number of them. And in *accumulation* the micro-batches of one rank may differ in the same way, so that dividing each loss by *k* is wrong for the same reason.
#
# Look at the gradient of a last batch. Ten samples on four ranks make parts of 3, 3, 2 and 2.


# %%
def last_batch(comm, task, weighted):
    model = mlp([64, 32, 10], dtype=torch.float64)
    mine = torch.arange(10).tensor_split(comm.size)[comm.rank]
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    share = 1 / comm.size
    if weighted:
        total = all_reduce_(comm, torch.tensor(float(len(mine)), dtype=torch.float64))
        share = len(mine) / total
    for p in model.parameters():
        all_reduce_(comm, p.grad.mul_(share))
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


whole = World(1).run(last_batch, task, False)[0]
rows = []
for name, weighted in {"plain average": False, "weighted average": True}.items():
    rows.append((name, off(World(4).run(last_batch, task, weighted)[0], whole)))
study.table(rows, ["parts of 3, 3, 2 and 2", "gradient off by"])

# %% tags=["maintainer"]
assert [error for _, error in rows] == ["20%", "below 1e-12"]

# %% [markdown]
# Each sample should count for 1/10. In the plain average a sample of rank 0 counts for ¼ · ⅓ = 1/12 and one of rank 3 for ¼ · ½ = 1/8, which is not far from it. Still the gradient is off by a fifth of its length, because the gradients of these ten samples are about three times as long as their mean: they point in different directions and largely cancel, and a small change of their weights disturbs what is left a good deal.
#
# Now the question from the beginning. Rank 0 has 1,000 tokens, rank 1 has 10. In the plain average each rank's mean has a weight of one half, so a token of rank 0 counts $\frac{1}{2}\cdot\frac{1}{1000}$ and a token of rank 1 $\frac12\cdot\frac1{10}$.

# %%
tokens = [1000, 10]
weight_of_a_token = [1 / 2 / count for count in tokens]

# %% tags=["answer"]
study.reveal(
    guess,
    round(weight_of_a_token[1] / weight_of_a_token[0]),
    study.bars(
        {
            "a token of rank 0": weight_of_a_token[0],
            "a token of rank 1": weight_of_a_token[1],
            "any token, weighted": 1 / sum(tokens),
        },
        title="What a token counts in the averaged loss",
    ),
    unit="times",
    words="The ten tokens of the short sentences have as much influence as the other thousand together.",
)

# %% [markdown]
# A model trained like this hears short sentences a hundred times as loudly. It is a real bug with a history: for years, popular training code divided each micro-batch's loss by *k*, and the losses of accumulated and unaccumulated runs did not agree until somebody looked.
#
# ### Micro-batches and ranks together
#
# What if micro-batches *and* ranks are uneven? Let micro-batch *i* of rank *r* have $w_{ri}$ tokens that count, let the rank have $w_r$ of them altogether and all ranks *W*. We want every token to have a weight of 1/*W*, so the mean loss of this micro-batch must enter with a factor of $w_{ri}/W$. No rank knows *W* without asking. But the factor can be taken apart,
#
# $$\frac{w_{ri}}{W} = \frac{w_{ri}}{w_r}\cdot\frac{w_r}{W}.$$
#
# The first part a rank knows by itself: it multiplies the loss of each micro-batch by its share of the rank's own tokens, in the place of 1/*k*. The second part is the weighted average over the ranks that we have just built. `DataParallel` takes it when it is told this rank's $w_r$ as `model.weight`, and it finds the sum of the weights on its own.


# %%
def short_and_long(comm, task, lengths, weighted):
    """Gradients of a batch whose micro-batches have different numbers of samples."""
    model = DataParallel(mlp([64, 32, 10], dtype=torch.float64), comm)
    own = lengths[comm.rank]  # the sizes of this rank's micro-batches
    mine = torch.arange(74).split([sum(of_rank) for of_rank in lengths])[comm.rank]
    if weighted:
        model.weight = sum(own)  # the second factor
    micro_batches = mine.split(own)
    for i, micro in enumerate(micro_batches):
        share = len(micro) / sum(own) if weighted else 1 / len(own)  # the first factor
        loss = share * cross_entropy(model(task.x[micro]), task.y[micro])
        if i < len(micro_batches) - 1:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


lengths = [[30, 4], [2, 12], [25, 1]]  # of the micro-batches of each of three ranks
whole = World(1).run(short_and_long, task, [[74]], True)[0]
rows = []
for name, weighted in {"all alike": False, "weighted": True}.items():
    found = World(3).run(short_and_long, task, lengths, weighted)
    rows.append((name, off(found[0], whole)))
study.table(rows, ["micro-batches of 30, 4 · 2, 12 · 25, 1", "gradient off by"])

# %% tags=["maintainer"]
assert rows[1][1] == "below 1e-12" and rows[0][1] != "below 1e-12"

# %% [markdown]
# Without weights each of the six micro-batches counts for a sixth, also the last one, which is a single sample. It should count for 1/74 and counts 12 times as much, and the gradient is wrong by more than its own length.
#
# ## Batch norm
#
# ### The layer that mixes samples
#
# So far every sample had a loss of its own. [Batch norm](term:batch-norm) breaks this. For each channel (in our networks, for each output of a linear layer) it subtracts the mean $\mu$ *over the batch* and divides by the standard deviation $\sigma$ *of the batch*,
#
# $$\hat x = \frac{x-\mu}{\sigma},\qquad \sigma = \sqrt{\mathrm{var}+\varepsilon},$$
#
# where a tiny $\varepsilon$ keeps it from dividing by zero. So what comes out for one sample depends on all the others. Split the batch, and each part is normalized by its own mean and deviation. The ranks no longer compute parts of the same function.
#
# Take six numbers, 1 to 6, on three ranks with two each. The variance is the mean squared distance from the mean; for all six it is 35/12 = 2.92. **What variance does each rank see on its own two?**

# %%
guess_variance = 2.9  # change this number

# %%
parts = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), torch.tensor([[5.0], [6.0]])]


def own_variance(comm, parts):
    # correction=0 divides by the number of values, as batch norm does; PyTorch's default is one less
    return parts[comm.rank].var(0, correction=0).item()


def mean_of_variances(comm, parts):
    return all_reduce_(comm, parts[comm.rank].var(0, correction=0), op="mean").item()


def from_sums_of_squares(comm, parts):
    x = parts[comm.rank]
    sums = torch.stack([x.sum(0), (x * x).sum(0), torch.full_like(x[0], len(x))])
    total, squares, count = all_reduce_(comm, sums)
    return (squares / count - (total / count) ** 2).item()


ways = {
    "rank 0's own": own_variance,
    "mean of the variances": mean_of_variances,
    "E[x²] − E[x]²": from_sums_of_squares,
}

# %% tags=["answer"]
study.reveal(
    guess_variance,
    World(3).run(own_variance, parts)[0],
    study.bars(
        {name: World(3).run(way, parts)[0] for name, way in ways.items()},
        target=35 / 12,
        note="variance of all six",
        title="Variance of 1 … 6, in parts of two",
    ),
    words="Two neighbours hardly differ. Even the mean of all ranks' variances misses what lies between "
    "the ranks.",
)

# %% [markdown]
# The two numbers of a rank lie ½ to the left and to the right of their mean, so their variance is ¼, on every rank. And what do they become? Divided by a deviation of ½, the smaller one becomes −1 and the larger one +1, on every rank:
#
# | | rank 0: 1, 2 | rank 1: 3, 4 | rank 2: 5, 6 |
# |---|---|---|---|
# | each rank by itself | −1, 1 | −1, 1 | −1, 1 |
# | normalized by the whole batch | −1.46, −0.88 | −0.29, 0.29 | 0.88, 1.46 |
#
# A batch norm of two samples tells only which of the two is larger. After it 1, 3 and 5 cannot be told apart.
#
# ### Step 1: merge the statistics
#
# The third bar is right: exchange the sum, the sum of squares and the count, and use $E[x^2]-E[x]^2$, the mean of the squares less the square of the mean. For our six numbers that is 91/6 − 3.5² = 2.92. This is what most people write, and on these numbers it works. Now add 10,000 to all six numbers. The variance stays what it is. But the squares are about 10⁸, and there the numbers that single precision can represent are 8 apart. The difference of two such squares cannot show a variance of 2.92. Subtracting rounded numbers that are nearly equal leaves little but their rounding errors; this is called [cancellation](term:cancellation).
#
# So subtract the mean *first*, and square small numbers. Each rank can do that only with its own mean. But what we need can be put together from such pieces. Let rank *r* have $m_r$ numbers with mean $\mu_r$, and let $Q_r$ be the sum of their squared distances from $\mu_r$. Around the common mean $\mu$ the squared distances of these numbers add up to
#
# $$\sum_i (x_i-\mu)^2 = \sum_i \bigl((x_i-\mu_r) + (\mu_r-\mu)\bigr)^2 = Q_r + m_r(\mu_r-\mu)^2.$$
#
# Expanding the square gives three terms. The first adds up to $Q_r$, and the last is the same for all $m_r$ numbers. The mixed term is $2(\mu_r-\mu)\sum_i (x_i-\mu_r)$, and it vanishes because distances from one's own mean add up to zero. With $m=\sum_r m_r$ numbers altogether,
#
# $$\mu = \frac{1}{m}\sum_r m_r\mu_r,\qquad \mathrm{var} = \frac{1}{m}\sum_r \left(Q_r + m_r(\mu_r-\mu)^2\right).$$
#
# In words, the variance of the whole is the mean variance *within* the parts plus the variance *between* their means, with each part weighted by its size. In our example each part has ¼ within, and the means 1.5, 3.5 and 5.5 have a variance of 8/3: together 2.92. The mean of the variances had forgotten the second term.
#
# So each rank sends three numbers for a channel, $\mu_r$, $Q_r$ and $m_r$, and everyone can merge them. No large squares are ever subtracted. The formula is from [Chan, Golub and LeVeque 1982](paper:chan1982).
#
# ![SyncBatchNorm on two ranks. Rank 0 has 1 and 3: mean 2, squared distances 2, count 2. Rank 1 has 5, 7 and 9: mean 7, squared distances 8, count 3. Forward: an all-gather gives everyone both triples; merged they are mean 5 and variance 8. Backward: an all-reduce sums two numbers for each channel.](../course/07_whole_batch/figures/sync_batch_norm.svg)
#
# Check the forward half of the picture with pencil and paper: 1, 3, 5, 7 and 9 have the mean 5, and their squared distances from it are 16, 4, 0, 4 and 16, together 40. The merged sum is 2 + 8 for what lies within the ranks and 2 · 3² + 3 · 2² for what lies between them.

# %%
from minidist.collectives import all_gather


def statistics(comm, x):
    """Mean and variance (C,) over all ranks' samples, and their number. x: (B, C), B may differ."""
    mean = x.mean(0)
    squares = (x - mean).square().sum(0)  # Q_r
    count = torch.full_like(mean, len(x))  # m_r
    own = torch.stack([mean, squares, count])[None]  # (1, 3, C)
    means, squares, counts = all_gather(comm, own).unbind(1)  # (n, 3, C), taken apart: each (n, C)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return mean, variance, total


ways["merged"] = lambda comm, parts: statistics(comm, parts[comm.rank])[1].item()
shifted = [part + 10_000 for part in parts]
uneven = [torch.cat(parts[:2]), parts[2][:1], parts[2][1:]]
rows = []
for name, way in ways.items():
    rows.append([name] + [f"{World(3).run(way, data)[0]:.3f}" for data in (parts, uneven, shifted)])
rows.append(["right", "2.917", "2.917", "2.917"])
study.table(
    rows,
    ["", "1 … 6", "parts of 4, 1 and 1", "all + 10,000"],
    title="Four variances, in single precision",
)

# %% tags=["maintainer"]
assert abs(World(3).run(ways["merged"], shifted)[0] - 35 / 12) < 1e-3
assert torch.tensor(1e8).nextafter(torch.tensor(2e8)) - torch.tensor(1e8) == 8
assert abs(sum(x * x for x in range(1, 7)) / 6 - 3.5**2 - 35 / 12) < 1e-12
by_all = ((torch.arange(1.0, 7.0) - 3.5) / (35 / 12) ** 0.5).tolist()
assert ", ".join(f"{x:.2f}" for x in by_all) == "-1.46, -0.88, -0.29, 0.29, 0.88, 1.46"

# %% [markdown]
# In the second column rank 0 has 1 to 4, with a variance of 1.25, and each of the others has a single number, which has no variance at all; the mean of the three is 0.417. In the third column the squares have cancelled to nothing. The merged statistics are right everywhere.
#
# ### Step 2: the backward
#
# If the output of one sample depends on all the others, then so does its gradient. Let $dy_i$ be the gradient that comes back for output $\hat x_i$. What we want is the gradient of an input, $dx_j=\sum_i dy_i\,\frac{\partial\hat x_i}{\partial x_j}$, summed over *all* samples, of all ranks, because $x_j$ moves all of their outputs. It does so in three ways.
#
# 1. *It moves its own output.* $\hat x_j$ contains $x_j/\sigma$, so a small change of $x_j$ moves $\hat x_j$ by $1/\sigma$ times as much.
# 2. *It moves the mean.* $\mu$ moves by $1/m$ times as much, and with it *every* $\hat x_i$ by $-\frac{1}{m\sigma}$.
# 3. *It moves the deviation.* The variance is the mean of $(x_i-\mu)^2$. Its derivative by $x_j$ is $\frac2m(x_j-\mu)$; that $\mu$ moves as well changes nothing, again because distances from the mean add up to zero. From $\sigma=\sqrt{\mathrm{var}+\varepsilon}$ follows $\frac{\partial\sigma}{\partial x_j}=\frac{1}{2\sigma}\cdot\frac2m(x_j-\mu)=\frac{\hat x_j}{m}$. And $\hat x_i$ changes with $\sigma$ by $-\frac{x_i-\mu}{\sigma^2}=-\frac{\hat x_i}{\sigma}$. So every $\hat x_i$ moves by $-\frac{\hat x_i\,\hat x_j}{m\sigma}$.
#
# Multiply each by $dy_i$ and add up. The first contributes $dy_j$ alone, the other two contribute a sum over all samples ([Ioffe and Szegedy](paper:ioffe2015) have it in section 3):
#
# $$dx_j = \frac{1}{\sigma}\left(dy_j - \frac{1}{m}\sum_i dy_i - \hat x_j\,\frac{1}{m}\sum_i dy_i\,\hat x_i\right).$$
#
# There is a way to see that it must be so. Add a constant to all $x$, and nothing changes behind the layer; stretch them all around their mean, and nothing changes either, but for $\varepsilon$. A gradient must not point where nothing changes. So the formula takes out of $dy$ what all samples have in common, and what is proportional to $\hat x$.
#
# Try it on the five numbers of the picture, where $\sigma=\sqrt8$ and the $\hat x$ are −1.41, −0.71, 0, 0.71 and 1.41. Let only the last output have a gradient, $dy$ = (0, 0 | 0, 0, 1). Then $\frac1m\sum dy$ = 0.2 and $\frac1m\sum dy\,\hat x$ = 0.28, and the formula gives $dx$ = (0.07, 0 | −0.07, −0.14, 0.14). Look at the first number. No gradient came back to rank 0 from its own outputs, and yet its first sample has one, because it has a hand in what happened to the 9 on rank 1. Rank 0 can know this only if the two sums are taken over *all* ranks. So the backward needs one all-reduce, of two numbers for each channel.
#
# Below is the layer, without the trainable scale and shift. A `torch.autograd.Function` is an operation with a backward of our own: `forward` keeps in `ctx` what `backward` will need, and `backward` returns a gradient for each argument of `forward`, None for those that have none. (The losses of all ranks are simply summed here. The average comes later, from `DataParallel`, as for any other layer.) `exchanged=False` forgets the all-reduce in the backward.


# %%
class Synchronized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, comm, exchanged):
        mean, variance, ctx.count = statistics(comm, x)
        scale = (variance + 1e-5).rsqrt()  # 1/σ
        normalized = (x - mean) * scale
        ctx.save_for_backward(normalized, scale)
        ctx.comm = comm
        ctx.exchanged = exchanged
        return normalized

    @staticmethod
    def backward(ctx, dy):
        normalized, scale = ctx.saved_tensors
        sums = torch.stack([dy.sum(0), (dy * normalized).sum(0)])  # over this rank's samples
        count = torch.full_like(scale, len(dy))
        if ctx.exchanged:
            all_reduce_(ctx.comm, sums)  # over all ranks'
            count = ctx.count
        dx = scale * (dy - sums[0] / count - normalized * sums[1] / count)
        return dx, None, None


# %% tags=["maintainer"]
def picture_gradients(comm):
    own = [[1.0, 3.0], [5.0, 7.0, 9.0]][comm.rank]
    x = torch.tensor(own, dtype=torch.float64).view(-1, 1).requires_grad_()
    dy = torch.tensor([[0.0, 0.0], [0.0, 0.0, 1.0]][comm.rank], dtype=torch.float64).view(-1, 1)
    Synchronized.apply(x, comm, True).backward(dy)
    return [round(value, 2) + 0.0 for value in x.grad.flatten().tolist()]


assert World(2).run(picture_gradients) == [[0.07, 0.0], [-0.07, -0.14, 0.14]]

# %% [markdown]
# The oracle is PyTorch's batch norm on a single rank with all twelve samples. Our three ranks have 5, 6 and 1 of them. By itself the third would be hopeless: a single sample is its own mean, and all that comes out of a batch norm is zero.

# %%
generator = torch.Generator().manual_seed(5)
X = torch.randn(12, 4, generator=generator, dtype=torch.float64)
DY = torch.randn(12, 4, generator=generator, dtype=torch.float64)
slices = [slice(0, 5), slice(5, 11), slice(11, 12)]


def outputs_and_gradients(comm, exchanged):
    x = X[slices[comm.rank]].clone().requires_grad_()
    y = Synchronized.apply(x, comm, exchanged)
    y.backward(DY[slices[comm.rank]])
    return torch.stack([y.detach(), x.grad])


whole_x = X.clone().requires_grad_()
whole_y = torch.nn.functional.batch_norm(whole_x, None, None, training=True)
whole_y.backward(DY)
rows = []
for name, exchanged in {"exchanged": True, "forgotten": False}.items():
    found_y, found_dx = torch.cat(World(3).run(outputs_and_gradients, exchanged), 1)
    rows.append((name, off(found_y, whole_y.detach()), off(found_dx, whole_x.grad)))
study.table(
    rows,
    ["sums of the backward", "outputs off by", "gradients off by"],
    title="Parts of 5, 6 and 1, beside PyTorch on one rank",
)

# %% tags=["maintainer"]
assert rows == [("exchanged", "below 1e-12", "below 1e-12"), ("forgotten", "below 1e-12", "65%")]

# %% [markdown]
# Without the exchange in the backward the outputs are right and the loss is right, but the gradient is wrong. This is the worst kind of bug: training goes on, a little worse than it should, and nothing that we usually look at tells us why.
#
# ### Does it matter?
#
# Take four ranks with two samples each, so a batch of eight. We train for forty steps, once with PyTorch's batch norm on each rank and once with the library's [synchronized](term:synchronized-batch-norm) one, each from three seeds. (`SyncBatchNorm.convert` puts the synchronized layer in the place of every batch norm of a network. `Sampler` and `DataParallel` are as before, and `model.eval()` makes batch norm use the averages that it has gathered in training.) Which of the two will be like the serial run?

# %%
from torch import nn

from minidist.parallel.batchnorm import SyncBatchNorm


def network_with_batch_norm():
    layers = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    return layers.double()


def train_digits(comm, task, seed, sync, batch=8, steps=40):
    torch.manual_seed(seed)
    network = network_with_batch_norm()
    if sync:
        network = SyncBatchNorm.convert(network, comm)
    model = DataParallel(network, comm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for mine, _ in zip(Sampler(len(task.x), batch, comm, seed), range(steps)):
        optimizer.zero_grad()
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()
        optimizer.step()
    model.eval()
    right = model(task.test_x).argmax(1) == task.test_y
    return float(right.double().mean())


settings = {
    "4 ranks, each its own": (4, False),
    "4 ranks, synchronized": (4, True),
    "1 rank, batch of 8": (1, False),
}
found = {}
rows = []
for name, (ranks, sync) in settings.items():
    found[name] = [World(ranks).run(train_digits, task, seed, sync)[0] for seed in range(3)]
    rows.append([name] + [f"{accuracy:.1f}" for accuracy in found[name]])
study.table(
    rows,
    ["batch norm", *(f"seed {seed}" for seed in range(3))],
    title="Accuracy on the test set, 2 samples a rank",
)

# %% tags=["maintainer"]
assert max(found["4 ranks, each its own"]) < min(found["4 ranks, synchronized"])
for a, b in zip(found["1 rank, batch of 8"], found["4 ranks, synchronized"]):
    assert abs(a - b) < 0.01

# %% [markdown]
# The worst synchronized run beats the best unsynchronized one, and each comes out like the run of one rank with the whole batch. (The table has one decimal, since another processor rounds differently and changes the next.)
#
# **When not to use it.** Synchronizing costs two small messages for each layer and step, one in the forward and one in the backward, and they cannot be hidden, since the next layer needs the result. With 32 samples on each rank a part knows its variance well enough; [Goyal et al. 2017](paper:goyal2017) trained on ImageNet with batch norm left local, on purpose. In detection and segmentation, where one image fills a GPU, it is needed ([Peng et al. 2018](paper:peng2018)). Language models use layer norm, which looks at one token at a time, and have no such problem at all.
#
# ### Micro-batches and batch norm
#
# One pitfall is left, and it combines two parts of this lesson. Accumulation cannot give batch norm the whole batch, because the micro-batches are processed one after another. Two things change.
#
# First, each micro-batch is normalized by its own statistics, so outputs and gradients are those of a different function. Nothing can mend that.
#
# Second, there are the [running averages](term:running-average), the mean and the variance that batch norm gathers during training for use in evaluation. Each forward moves them a little towards the statistics of its batch, by a fraction *q* that PyTorch calls the momentum: of the old average 1 − *q* is kept. With *k* micro-batches there are *k* such updates in a step instead of one, and $(1-q)^k$ is kept. With *q* = 0.1 and *k* = 16 that is 19 % instead of 90 %, so an evaluation rests on the last ten or so micro-batches, less than a step, and not on the last ten or so batches. If you want the averages to forget as slowly as before, take a momentum *q*′ with
#
# $$(1-q')^k = 1-q \quad\Longrightarrow\quad q' = 1-(1-q)^{1/k}.$$
#
# `batch_norm_gap` shows both effects. It runs copies of a network on a batch, one on the whole and one on *k* micro-batches, with the same random targets, and reports how far apart their gradients are and what is left of the old averages after the step.

# %%
from minidist.parallel import accumulate as accumulation

torch.manual_seed(0)
network = network_with_batch_norm()
rows = []
for k in (1, 4, 16):
    gap = accumulation.batch_norm_gap(network, task.x[:64], k)
    adjusted = accumulation.batch_norm_gap(network, task.x[:64], k, adjusted=True)
    row = (f"{gap.gradients:.0%}", f"{gap.forgotten[1]:.2f}", f"{adjusted.forgotten[1]:.2f}")
    rows.append((k, *row))
study.table(
    rows,
    [
        "micro-batches",
        "gradients off by",
        "left of the old averages",
        "the same, momentum adjusted",
    ],
    title="A batch of 64 through batch norm, momentum 0.1",
)

# %% [markdown]
# Micro-batches of four samples, in the last row, give a gradient that has little to do with that of the batch, and no momentum changes this. The last column shows what the new momentum does mend: after *k* updates as much is left of the old averages as after one before.
#
# ## The library's files
#
# [minidist/parallel/accumulate.py](file:minidist/parallel/accumulate.py) has the weighted accumulation, with the loop that you have seen. It also takes micro-batches in which nothing counts: it leaves them out, since a mean over nothing is 0/0. `nullcontext()` is the `with` that does nothing, for the last micro-batch, whose backward lets the ranks talk:

# %%
study.source(accumulation.accumulate, docstring=False)

# %% [markdown]
# [minidist/parallel/batchnorm.py](file:minidist/parallel/batchnorm.py) has the layer. Its `statistics` is ours for images as well: `dims` are all dimensions but the channels', so that a channel's mean is taken over samples and positions. `wide` holds half-precision numbers in single precision while they are added up. A rank may have no samples at all, hence `max(1, count)`.

# %%
from minidist.parallel import batchnorm

study.source(batchnorm.statistics, docstring=False)

# %% [markdown]
# `SyncBatchNorm.convert` works on CPUs too; PyTorch's own needs GPUs. Its running averages come from the whole batch, so they are equal on all ranks.
#
# A last warning for those who combine both parts of the lesson. With uneven parts we scaled each rank's gradient *after* the backward, by $w_r$. But a synchronized batch norm has mixed the ranks' gradients *inside* the backward: what reaches rank 0's weights contains terms from the losses of all ranks, and they would all be scaled by rank 0's weight. So scale the losses instead, before the backward. With *B* samples on *n* ranks let each rank take $\frac nB$ times the *sum* of its samples' losses, and average plainly. The average divides by *n*, so each sample's loss counts for 1/*B*, whichever way its gradient has taken.
#
# ## In real processes

# %%
from minidist.comm import launch

real = launch(short_and_long, 3, task, lengths, True)
rows = [
    (f"rank {rank}", real.trace.messages(rank), real.trace.bytes_sent(rank)) for rank in range(3)
]
display(
    study.table(
        rows, ["", "messages sent", "bytes sent"], title="Uneven micro-batches on three processes"
    )
)
print("off from the serial gradient:", off(real[0], whole))

# %% tags=["maintainer"]
assert all(off(gradient, whole) == "below 1e-12" for gradient in real)

# %% [markdown]
# Of each rank's messages $2(n-1)$ = 4 sum up the weights and 4 average the gradients. The others compare the models and broadcast the first weights, for which rank 0 sends most.
#
# On a cluster, [examples/train_digits.py](file:examples/train_digits.py) keeps the last, smaller batch of each epoch with `--keep-last` and weights it:
#
# ```
# torchrun --nproc-per-node 4 examples/train_digits.py --keep-last
# ```
#
# ## Takeaways
#
# - Accumulation gives the gradient of a large batch in the memory of a small one. Divide the losses, and average once, after the last micro-batch.
# - Parts of different sizes need the weighted average. Count what counts: samples, or tokens that are not padding.
# - Batch norm mixes samples, so it needs statistics of the whole batch, forward *and* backward.
# - The variance of the whole is what lies within the parts and what lies between them. Merge centered sums; $E[x^2]-E[x]^2$ cancels.
# - With micro-batches batch norm computes another function, and its running averages forget *k* times as fast.
#
# ## Further reading
#
# - paper:goyal2017 Section 3: subtleties and pitfalls of distributed SGD; batch norm stays local, on 32 images, by choice.
# - paper:ioffe2015 Section 3 has the backward.
# - paper:peng2018 Batch norm across GPUs, and why: section 3.3.
# - paper:chan1982 How to merge means and variances.
# - paper:li2020 `no_sync`: section 3.2.4.
