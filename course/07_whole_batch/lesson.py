# %% [markdown]
# # 07 · What needs the whole batch
#
# [Data parallelism](lesson:data_parallel) rests on one sentence: the gradient of a batch is the mean of the gradients of its parts. We have used it as if it were always true. It is true only when every sample has a loss of its own, when all parts are equally large, and when the parts are complete. Each of these conditions fails in ordinary training runs, quietly, without an error message.
#
# In this lesson you will meet the three cases. A batch is too large for memory and is processed in several **micro-batches**. The parts are of **different sizes**, because sentences are. And a layer, **batch norm**, looks at all samples of the batch at once, so that no part can be computed without the others.
#
# Start with a guess about the second. Two ranks train a language model. In this step rank 0 has 1,000 tokens that count, and rank 1, whose sentences are short, has 10. Both compute their mean loss and average the gradients, as we have always done. **How many times as much as a token of rank 0 does a token of rank 1 count?**

# %%
guess = 1  # times as much: change this number

# %% [markdown]
# # Micro-batches
#
# ## On paper: 6 samples, 3 at a time
#
# A batch has six samples with gradients 1 to 6, and memory holds the activations of only three. So run forward and backward on the first three, then on the others, and let the gradients add up; PyTorch's `backward` *adds* to `p.grad`, so nothing special has to be done. The first backward leaves the mean of 1, 2 and 3, which is 2. The second adds the mean of 4, 5 and 6, which is 5. The sum is 7, and the right answer is 3.5. So each loss has to be divided by the number of micro-batches, here 2, before its backward: 1 + 2.5 = 3.5.
#
# This is [gradient accumulation](term:gradient-accumulation). It gives the gradient of a large batch in the memory of a small one. Here is the naive form, and beside it the memory that it saves, on a network whose activations take most of its memory.

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


def relative_error(found, right):
    return float((found - right).norm() / right.norm())


x = task.x[:1200].clone()
y = task.y[:1200].clone()
sizes = [64, 64, 64, 64, 64, 64, 10]
right = accumulated_gradients(mlp(sizes, dtype=torch.float64), x, y, 1)
rows = []
for k in (1, 2, 4, 8):
    model = mlp(sizes, dtype=torch.float64)
    profile = measure(accumulated_gradients, model, x, y, k)
    error = relative_error(profile.result, right)
    rows.append(
        (
            k,
            profile.at_peak["activations"],
            profile.peak,
            profile.flops,
            "below 1e-12" if error < 1e-12 else f"{error:.0%}",
        )
    )
study.table(
    rows,
    ["micro-batches", "activations at the peak, bytes", "peak, bytes", "FLOPs", "gradients off by"],
    title="One batch of 1,200, in k pieces",
)

# %% tags=["maintainer"]
assert all(row[4] == "below 1e-12" for row in rows) and len({row[3] for row in rows}) == 1

# %% [markdown]
# Activations shrink as *k* grows, the work stays the same, and so do the gradients. It sounds as if it were free. The price is speed: a GPU works better on large pieces, and *k* small products take longer than one large one.
#
# **The learning rate stays what it was.** The step is still a step of the large batch, so whatever rate suits the large batch is right. People who accumulate in order to have a larger batch than before do have to adapt the rate, not because they accumulate but because the batch has grown ([Large batches](lesson:large_batches)).
#
# ## With several ranks
#
# When should the ranks average? There are three popular ways, and only one of them is both right and cheap. Average once, after the last micro-batch. Or average after every backward. Or install a hook for the last backward that averages the gradient as it arrives; the tempting hook for that, `Tensor.register_hook`, sees what this one backward *adds*, and not the sum. Decide for each of the three whether the replicas stay equal and whether the gradient is right. **Which ways are right?**

# %%
guess_right = ["once", "every", "hook"]  # delete those that are wrong

# %%
from minidist.collectives import all_reduce_
from minidist.comm import World


def average(comm, model):
    for p in model.parameters():
        all_reduce_(comm, p.grad, op="mean")


def accumulate(comm, task, way, k=3):
    model = mlp([64, 32, 10], dtype=torch.float64)
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    for i, part in enumerate(mine.chunk(k)):
        if way == "hook" and i == k - 1:
            for p in model.parameters():
                p.register_hook(lambda added: all_reduce_(comm, added.clone(), op="mean"))
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
    error = relative_error(ranks[0], right)
    rows.append(
        (
            way,
            ranks.trace.bytes_sent(0),
            "equal" if all(torch.equal(g, ranks[0]) for g in ranks) else "drift apart",
            "yes" if error < 1e-12 else f"off by {error:.0%}",
        )
    )

# %% tags=["answer"]
study.reveal(
    guess_right,
    ["once", "every"],
    study.table(
        rows,
        ["the average is taken", "bytes sent by rank 0", "replicas", "serial gradient"],
        title="Three micro-batches on each of 4 ranks",
    ),
    words="Averaging after every backward is right: averaging gradients that are already equal does "
    "not change them. But it sends three times as much.",
)

# %% tags=["maintainer"]
assert [row[2:] for row in rows[:2]] == [("equal", "yes")] * 2 and rows[2][2] == "drift apart"

# %% [markdown]
# ![Two ranks, a batch in three micro-batches each. Above, without no_sync: an all-reduce after every backward. Below, with no_sync around the first two: their backwards only add to .grad, and the third one's all-reduce averages the sum. The gradient is the same, with a third of the bytes.](../course/07_whole_batch/figures/accumulation.svg)
#
# The library's wrapper averages at the end of each backward, unless the backward runs inside `no_sync()`. So the pattern is: all micro-batches but the last inside `no_sync`, the last one outside. PyTorch's DDP has a method of the same name for the same purpose.

# %%
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


error = max(relative_error(found, right) for found in World(4).run(with_no_sync, task))
print("the serial gradient, to rounding:", error < 1e-12)

# %%
world = World(4, device="cpu")
world.run(with_no_sync, task)
study.viewer(world.trace, title="Three backwards, and one average")

# %% [markdown]
# In the run above, the first messages compare the models and broadcast rank 0's weights. Of the three backwards, only the last one talks.
#
# # Parts of different sizes
#
# ## On paper: 3, 2 and 1 samples
#
# Three ranks hold 3, 2 and 1 of the six samples whose gradients are 1 to 6. Their means are 2, 4.5 and 6, and the mean of the means is 4.17 instead of 3.5. What went wrong? A mean is a sum divided by a number. Adding means over different numbers of samples mixes fractions with different denominators. Bring them to a common one: multiply each mean by its number of samples, which gives back the sum, add up the sums, and divide by the number of all samples. This is the **weighted average**,
#
# $$g = \frac{\sum_r w_r\, g_r}{\sum_r w_r},$$
#
# where $w_r$ is the number of samples behind rank *r*'s gradient $g_r$.


# %%
def two_averages(comm, parts):
    part = parts[comm.rank]
    count = torch.tensor(float(len(part)))
    plain = all_reduce_(comm, part.mean(), op="mean")
    weighted = all_reduce_(comm, part.mean() * count) / all_reduce_(comm, count.clone())
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
# ![Rank 0 has six samples with a mean gradient of 2, rank 1 two samples with a mean gradient of 6. The plain average is 4, and every sample of rank 1 counts three times as much. Weighted by the samples it is 3, the mean over all eight.](../course/07_whole_batch/figures/uneven_batches.svg)
#
# ## Where it happens
#
# With a sampler that deals equal parts you may think that this is somebody else's problem. It is not, for three reasons. The *last batch* of an epoch is smaller, unless it is dropped. In *language*, sequences are padded to a common length, and the padding does not count: what has to be counted is tokens, and each rank has its own number of them. And in *accumulation* the micro-batches of one rank may differ in the same way, so that dividing each loss by *k* is wrong for the same reason.
#
# Look at the gradient. Ten samples on four ranks make parts of 3, 3, 2 and 2.


# %%
def averaged(comm, task, weighted):
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


whole = World(1).run(averaged, task, False)[0]
errors = {}
for name, weighted in {"plain average": False, "weighted average": True}.items():
    errors[name] = round(100 * relative_error(World(4).run(averaged, task, weighted)[0], whole), 6)
study.bars(errors, unit="%", title="Parts of 3, 3, 2 and 2: how far off is the gradient?")

# %% [markdown]
# The plain average is off by a fifth of the gradient's length, although the parts are nearly equal. Now the question from the beginning. Rank 0 has 1,000 tokens, rank 1 has 10. In the plain average each rank's mean has a weight of one half, so a token of rank 0 counts $\frac{1}{2}\cdot\frac{1}{1000}$ and a token of rank 1 $\frac12\cdot\frac1{10}$.

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
# A model trained like this hears short sentences a hundred times as loudly. It is a real bug with a history: for years, popular training code divided each micro-batch's loss by *k*, and the losses of accumulated and unaccumulated runs did not agree until somebody looked. The cure in the library takes the numbers of tokens as weights, over micro-batches and over ranks with the same formula:

# %%
from minidist.parallel import accumulate as accumulation


def short_and_long(comm, lengths, way):
    """Gradients of a batch whose micro-batches have different numbers of samples."""
    model = mlp([64, 32, 10], dtype=torch.float64)
    if comm.size > 1:
        model = DataParallel(model, comm)
    order = torch.arange(sum(map(sum, lengths)))
    of_rank = order.split([sum(mine) for mine in lengths])
    if comm.size == 1:
        micro_batches = [order]
    else:
        micro_batches = of_rank[comm.rank].split(lengths[comm.rank])

    def loss(micro):
        return cross_entropy(model(task.x[micro]), task.y[micro])

    if way == "naive":
        accumulation.accumulate_naive(loss, micro_batches)
    else:
        weights = [len(micro) for micro in micro_batches]
        wrapped = model if comm.size > 1 else None
        accumulation.accumulate(loss, micro_batches, weights, wrapped)
    return torch.cat([p.grad.view(-1) for p in model.parameters()])


lengths = [[30, 4], [2, 12], [25, 1]]  # of the micro-batches of each of three ranks
whole = World(1).run(short_and_long, lengths, "weighted")[0]
rows = []
for way in ("naive", "weighted"):
    error = max(
        relative_error(found, whole) for found in World(3).run(short_and_long, lengths, way)
    )
    rows.append((way, "below 1e-12" if error < 1e-12 else f"{error:.0%}"))
study.table(rows, ["micro-batches of 30, 4 · 2, 12 · 25, 1", "gradient off by"])

# %% tags=["maintainer"]
assert rows[1][1] == "below 1e-12" and rows[0][1] != "below 1e-12"

# %% [markdown]
# # Batch norm
#
# ## The layer that mixes samples
#
# So far every sample had a loss of its own. [Batch norm](term:batch-norm) breaks this. For each channel it subtracts the mean *over the batch* and divides by the standard deviation *of the batch*, so that what comes out for one sample depends on all the others. Split the batch, and each part is normalized by its own mean and deviation. The ranks no longer compute parts of the same function.
#
# Take six numbers, 1 to 6, on three ranks with two each. The variance of all six is 35/12 = 2.92. **What variance does each rank see on its own two?**

# %%
guess_variance = 2.9  # change this number

# %%
parts = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), torch.tensor([[5.0], [6.0]])]


def own_variance(comm, parts):
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
# ## Step 1: merge the statistics
#
# The third bar is right: exchange the sum, the sum of squares and the count, and use $E[x^2]-E[x]^2$. This is what most people write, and on these numbers it works. Now add 10,000 to all six numbers. The variance stays what it is. But the squares are about 10⁸, of which single precision keeps only the first seven digits, and the difference of two such squares is noise. Subtracting rounded numbers that are nearly equal leaves little but their rounding errors; this is called **cancellation**.
#
# So subtract the mean *first*. Each rank can do that only with its own mean. But what we need can be put together from such pieces. Let rank *r* have $k_r$ numbers with mean $\mu_r$, and let $M_r$ be the sum of squared distances from $\mu_r$. Around the common mean $\mu$ the squared distances add up to
#
# $$\sum_i (x_i-\mu)^2 = \sum_i \bigl((x_i-\mu_r) + (\mu_r-\mu)\bigr)^2 = M_r + k_r(\mu_r-\mu)^2,$$
#
# because the mixed term contains $\sum_i (x_i-\mu_r)$, which is zero. So each rank sends three numbers for a channel, $\mu_r$, $M_r$ and $k_r$, and everyone can merge them. No large squares are ever subtracted. The formula is from [Chan, Golub and LeVeque 1982](paper:chan1982).
#
# ![SyncBatchNorm on two ranks. Rank 0 has 1 and 3: mean 2, centered squares 2, count 2. Rank 1 has 5, 7 and 9: mean 7, centered squares 8, count 3. Forward: an all-gather gives everyone both triples; merged they are mean 5 and variance 8. Backward: an all-reduce sums two numbers for each channel.](../course/07_whole_batch/figures/sync_batch_norm.svg)

# %%
from minidist.collectives import all_gather


def statistics(comm, x):
    """Mean and variance (C,) over all ranks' samples, and their number. x: (B, C), B may differ."""
    mean = x.mean(0)
    centered = (x - mean).square().sum(0)
    count = torch.full_like(mean, len(x))
    everyone = all_gather(comm, torch.stack([mean, centered, count])[None])  # (n, 3, C)
    means, squares, counts = everyone.unbind(1)  # each (n, C)
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

# %% [markdown]
# ## Step 2: the backward
#
# If the output of one sample depends on all the others, then so does its gradient. Let *m* be the number of all samples, $\sigma=\sqrt{\mathrm{var}+\varepsilon}$, and $\hat x=(x-\mu)/\sigma$ the normalized input. A gradient $dy$ comes back for each output. Changing one $x_j$ has three effects: it moves its own $\hat x_j$, it moves the mean by $1/m$, and with it every $\hat x$ by $-1/(m\sigma)$, and it moves the deviation by $\hat x_j/m$, and with it every $\hat x_i$ by $-\hat x_i\hat x_j/(m\sigma)$. Add the three up ([Ioffe and Szegedy](paper:ioffe2015) do it in section 3):
#
# $$dx = \frac{1}{\sigma}\left(dy - \frac{1}{m}\sum dy - \hat x\;\frac{1}{m}\sum dy\,\hat x\right).$$
#
# Both sums run over *all* ranks' samples, so the backward needs one all-reduce of two numbers per channel. Below is the layer as an autograd function, without the trainable scale and shift. `exchanged=False` forgets the all-reduce in the backward.


# %%
class Synchronized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, comm, exchanged):
        mean, variance, ctx.count = statistics(comm, x)
        scale = (variance + 1e-5).rsqrt()
        normalized = (x - mean) * scale
        ctx.save_for_backward(normalized, scale)
        ctx.comm = comm
        ctx.exchanged = exchanged
        return normalized

    @staticmethod
    def backward(ctx, dy):
        normalized, scale = ctx.saved_tensors
        sums = torch.stack([dy.sum(0), (dy * normalized).sum(0)])
        count = torch.full_like(scale, len(dy))
        if ctx.exchanged:
            all_reduce_(ctx.comm, sums)
            count = ctx.count
        dx = scale * (dy - sums[0] / count - normalized * sums[1] / count)
        return dx, None, None


# %% [markdown]
# The oracle is PyTorch's batch norm on a single rank with all twelve samples. Our three ranks have 5, 6 and 1 of them; a batch norm of a single sample would be hopeless.

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
exchanged = torch.cat(World(3).run(outputs_and_gradients, True), 1)
forgotten = torch.cat(World(3).run(outputs_and_gradients, False), 1)
errors = {
    "outputs": round(100 * relative_error(forgotten[0], whole_y.detach()), 1),
    "gradients, exchanged": round(100 * relative_error(exchanged[1], whole_x.grad), 1),
    "gradients, not exchanged": round(100 * relative_error(forgotten[1], whole_x.grad), 1),
}
study.bars(errors, unit="%", title="Parts of 5, 6 and 1: how far from PyTorch on one rank?")

# %% tags=["maintainer"]
assert relative_error(exchanged[0], whole_y.detach()) < 1e-12
assert relative_error(exchanged[1], whole_x.grad) < 1e-12
assert errors["gradients, not exchanged"] > 10

# %% [markdown]
# Without the exchange in the backward the outputs are right and the loss is right, but the gradient is wrong. This is the worst kind of bug: training goes on, a little worse than it should, and nothing that we usually look at tells us why.
#
# ## Does it matter?
#
# Take four ranks with two samples each, so a batch of eight. A batch norm of two samples knows little more than which of the two is larger. We train for forty steps, once with PyTorch's batch norm on each rank and once with the library's synchronized one, each from three seeds. Which of the two will be like the serial run?

# %%
from torch import nn

from minidist.parallel.batchnorm import SyncBatchNorm


def train_digits(comm, task, seed, sync, batch=8, steps=40):
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    ).double()
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


found = {
    "4 ranks, each its own": [
        World(4).run(train_digits, task, seed, False)[0] for seed in range(3)
    ],
    "4 ranks, synchronized": [World(4).run(train_digits, task, seed, True)[0] for seed in range(3)],
    "1 rank, batch of 8": [World(1).run(train_digits, task, seed, False)[0] for seed in range(3)],
}
rows = [[name] + [f"{accuracy:.1f}" for accuracy in values] for name, values in found.items()]
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
# The worst synchronized run beats the best unsynchronized one, and each comes out like the run of one rank with the whole batch.
#
# **When not to use it.** Synchronizing costs two small messages for each layer and step, one in the forward and one in the backward, and they cannot be hidden, since the next layer needs the result. With 32 samples on each rank a part knows its variance well enough; [Goyal et al. 2017](paper:goyal2017) trained on ImageNet with batch norm left local, on purpose. In detection and segmentation, where one image fills a GPU, it is needed ([Peng et al. 2018](paper:peng2018)). Language models use layer norm, which looks at one token at a time, and have no such problem at all.
#
# ## Micro-batches and batch norm
#
# One pitfall is left, and it combines two parts of this lesson. Accumulation cannot give batch norm the whole batch, because the micro-batches are processed one after another. Two things change. Each micro-batch is normalized by its own statistics, so outputs and gradients are those of a somewhat different function; nothing can mend that. And the **running averages**, which evaluation will use, are updated *k* times in a step instead of once. With a momentum *m* an update keeps 1 − *m* of the old average; after *k* updates $(1-m)^k$ is left. If you want them to forget as slowly as before, take the momentum $m'$ with
#
# $$(1-m')^k = 1-m \quad\Longrightarrow\quad m' = 1-(1-m)^{1/k}.$$

# %%
torch.manual_seed(0)
network = nn.Sequential(
    nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
).double()
rows = []
for k in (1, 4, 16):
    gap = accumulation.batch_norm_gap(network, task.x[:64], k)
    adjusted = accumulation.batch_norm_gap(network, task.x[:64], k, adjusted=True)
    rows.append(
        (
            k,
            f"{gap.gradients:.0%}",
            f"{gap.forgotten[1]:.2f}",
            f"{adjusted.forgotten[1]:.2f}",
        )
    )
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
# ## The library's files
#
# [minidist/parallel/accumulate.py](file:minidist/parallel/accumulate.py) has the weighted accumulation. Its heart is this loop, in which only the last backward lets the ranks talk:

# %%
study.source(accumulation.accumulate, docstring=False)

# %% [markdown]
# [minidist/parallel/batchnorm.py](file:minidist/parallel/batchnorm.py) has the layer. Its `statistics` is ours, for any number of dimensions and in at least single precision:

# %%
from minidist.parallel import batchnorm

study.source(batchnorm.statistics, docstring=False)

# %% [markdown]
# `SyncBatchNorm.convert` replaces all batch norms of a model. It works on CPUs too; PyTorch's own needs GPUs. Its running averages come from the whole batch, so they are equal on all ranks.
#
# A last warning for those who combine both parts of the lesson. With uneven parts, one scales gradients after the backward by the weights $w_r$. But a synchronized batch norm has mixed the gradients of all ranks *inside* the backward, and scaling afterwards comes too late. Divide each rank's summed loss by *B*/*n* before the backward instead, with *B* samples on *n* ranks altogether, and average plainly.
#
# ## In real processes

# %%
from minidist.comm import launch

real = launch(short_and_long, 3, lengths, "weighted")
error = max(relative_error(found, whole) for found in real)
display(
    study.table(
        [
            (f"rank {rank}", real.trace.messages(rank), real.trace.bytes_sent(rank))
            for rank in range(3)
        ],
        ["", "messages sent", "bytes sent"],
        title="Uneven micro-batches on three processes",
    )
)
print("the serial gradient, to rounding:", error < 1e-12)

# %% [markdown]
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
# - Merge centered sums. $E[x^2]-E[x]^2$ cancels.
# - With micro-batches batch norm computes another function, and its running averages forget *k* times as fast.
#
# ## Further reading
#
# - paper:goyal2017 Section 3: subtleties and pitfalls of distributed SGD; batch norm stays local, on 32 images, by choice.
# - paper:ioffe2015 Section 3 has the backward.
# - paper:peng2018 Batch norm across GPUs, and why: section 3.3.
# - paper:chan1982 How to merge means and variances.
# - paper:li2020 `no_sync`: section 3.2.4.
