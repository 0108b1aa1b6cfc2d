# %% [markdown]
# # 23 · Send less
#
# Two machines train a network of 301,066 weights, which is 1.2 MB of gradients in single precision. The only link between them carries 100 Mbit/s, 12.5 MB per second. So every step waits about 96 ms for its all-reduce, and computes for a few milliseconds. The machines are not too slow. They talk too much.
#
# This lesson makes the messages smaller. Some ways are mild, such as 16 bits in place of 32. One is not: [deep gradient compression](term:deep-gradient-compression) (DGC) sends only a few numbers of each gradient and keeps the rest for later. Its authors claim that the network ends as accurate as before. We shall build it, take it apart, and look at that claim on a run with dense training beside it. **Of 1,000 weights, how many gradients need to travel in a step, if the network is to end as good as with all of them?**

# %%
guess_share = 500  # of 1,000: change this number

# %% [markdown]
# ## By hand: 3 ranks, 6 numbers
#
# The simplest idea is **[top-k](term:top-k-compression)**: a rank sends the *k* numbers of its gradient that are largest in absolute value, with their places, and zeros stand for the rest. Let there be three ranks with six weights each, *k* = 1, and for simplicity the same gradients in every step:
#
# | | g0 | g1 | g2 | g3 | g4 | g5 |
# |---|---|---|---|---|---|---|
# | rank 0 | 5 | 0 | −3 | 1 | 0 | 2 |
# | rank 1 | 0 | 1 | −4 | 0 | 3 | 2 |
# | rank 2 | 1 | 0 | −1 | 0 | 7 | 2 |
#
# Rank 0 sends its 5, rank 1 its −4, rank 2 its 7. Now look at the last column. All ranks agree that this weight has a gradient of 2, together 6. But on no rank is it the largest, so it never moves. A gradient that is small and *steady* is never heard. That is the problem with dropping what is not sent.
#
# The remedy is **[error feedback](term:error-feedback)**: what is not sent is not dropped, but added to the next gradient.
#
# ![Error feedback with a compression that sends the largest of three numbers. In each step what was kept is added to the gradient, the largest is sent, and the rest is kept. What was sent and what is kept add up to the sum of all gradients.](../course/23_compress/figures/error_feedback.svg)
#
# A weight that is never the largest by its gradient grows in what waits, until it is. **With error feedback, in which step does g5 move for the first time?**

# %%
guess_step = 2  # the step, counted from 1: change this number

# %%
import torch

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World

GRADIENTS = torch.tensor([[5.0, 0, -3, 1, 0, 2], [0, 1, -4, 0, 3, 2], [1, 0, -1, 0, 7, 2]])


def send_the_largest(comm, keeps, steps=4):
    """What all ranks together send in each step; the last row is what still waits on them."""
    waits = torch.zeros(6)
    rows = []
    for _ in range(steps):
        v = GRADIENTS[comm.rank] + waits
        place = v.abs().argmax()
        sent = torch.zeros(6)
        sent[place] = v[place]
        if keeps:
            waits = v - sent
        rows.append(all_reduce_(comm, sent))
    rows.append(all_reduce_(comm, waits.clone()))
    return rows


# %% tags=["maintainer"]
def sums_of(keeps):
    *steps, waits = World(3).run(send_the_largest, keeps)[0]
    rows = [(f"step {t}", *map(int, row)) for t, row in enumerate(steps, 1)]
    rows.append(("sent in all", *map(int, sum(steps))))
    rows.append(("still waits", *map(int, waits)))
    rows.append(("dense, 4 steps", *map(int, 4 * GRADIENTS.sum(0))))
    words = "kept" if keeps else "dropped"
    names = ["", *(f"g{i}" for i in range(6))]
    return steps, waits, study.table(rows, names, title=f"What is not sent is {words}")


dropped, _, dropped_table = sums_of(False)
kept, waiting, kept_table = sums_of(True)
first_step = next(t for t, row in enumerate(kept, 1) if row[5] != 0)
assert first_step == 4 and not any(row[5] for row in dropped)
assert (sum(kept) + waiting).equal(4 * GRADIENTS.sum(0))

# %% tags=["answer"]
study.reveal(
    guess_step,
    first_step,
    [dropped_table, kept_table],
    words="All ranks send it in step 4: three times 8. If the rest is dropped, it never moves.",
)

# %% [markdown]
# **Why it is right.** Write $e_t$ for what waits after step *t*, and $c_t$ for what is sent in it. The rule is $c_t + e_t = g_t + e_{t-1}$. Add this up over all steps. Every $e$ but the last one cancels, and
#
# $$\sum_t c_t = \sum_t g_t - e_T .$$
#
# So whatever the compression does, the weights have moved by the sum of all gradients, except for what still waits. Nothing is lost; it only comes later. This holds for each weight and for each rank alone, and you can check it in each column of the second table. The gradients themselves are computed at weights that lag a little behind, by γ times what waits. [Karimireddy et al. 2019](paper:karimireddy2019) prove that SGD then converges at the same rate as before, as long as what waits stays bounded. Their bound also says when it will not be good: the fewer numbers travel, the longer they wait.
#
# ## How sparse vectors travel
#
# An all-reduce adds vectors on their way. That is why a rank need not send more when there are more ranks. It cannot add sparse vectors: every rank has chosen other places, and a sum of two of them has up to 2*k* entries, then 4*k*, and so on. So they are [gathered](term:all-gather) instead. Each rank sends its *k* values and *k* places to the *n* − 1 others, and everybody adds up all *n*.

# %%
from minidist.collectives import all_gather


def sum_of_sparse(comm, values, places, length):
    """All ranks' sparse vectors in one dense sum, equal on all ranks."""
    message = torch.stack([values, places.to(values.dtype)])  # (2, k): one message, not two
    total = torch.zeros(length, dtype=values.dtype)
    for their_values, their_places in all_gather(comm, message[None]):  # (n, 2, k)
        total.index_add_(0, their_places.long(), their_values)
    return total


# %% [markdown]
# This costs $(n-1)\,k\,(w+p)$ bytes for each rank, where *w* is the size of a value and *p* that of a place. Keep the factor *n* − 1 in mind: it will come back.
#
# ## Momentum, for one weight
#
# Top-k with error feedback is right for plain SGD. But nearly everybody trains with momentum: the optimizer keeps a velocity, u ← 0.9u + g, and moves the weight by u. A gradient of 1 therefore moves a weight by 1 + 0.9 + 0.81 + …, which is 10 in the end, spread over the steps that follow.
#
# Suppose that a weight has a gradient of +1 for 20 steps, and −1 from then on. In every eighth step it is among the largest, and what has waited for it is sent. Dense training turns the weight around in step 25: its velocity needs five steps to change sign. **If the optimizer has the momentum and receives a gradient of 8 in every eighth step, when does the weight turn around?**

# %%
guess_turn = 25  # the step: change this number


# %%
def way_of_a_weight(every, correction, masking):
    """How far one weight has come after each of 48 steps."""
    u = 0.0  # this rank's velocity
    v = 0.0  # what waits
    velocity = 0.0  # the optimizer's, if there is no momentum correction
    way = 0.0
    seen = []
    for t in range(1, 49):
        g = 1.0 if t <= 20 else -1.0
        u = 0.9 * u + g
        v += u if correction else g
        sent = 0.0
        if t % every == 0:
            sent = v
            v = 0.0
            if masking:
                u = 0.0
        velocity = 0.9 * velocity + sent
        way += sent if correction else velocity
        seen.append(way)
    return seen


ways = {
    "dense": way_of_a_weight(1, correction=False, masking=False),
    "momentum in the optimizer": way_of_a_weight(8, correction=False, masking=False),
    "momentum correction": way_of_a_weight(8, correction=True, masking=False),
    "correction and masking": way_of_a_weight(8, correction=True, masking=True),
}
turns = {}
for name, way in ways.items():
    turns[name] = way.index(max(way)) + 1

# %% tags=["answer"]
study.reveal(
    guess_turn,
    turns["momentum in the optimizer"],
    study.curves(
        {name: (range(1, 49), way) for name, way in ways.items()},
        xlabel="step",
        ylabel="how far the weight has come",
        title="A gradient that turns after 20 steps",
    ),
    words="The gradients of steps 17 to 24 arrive in step 24 and cancel; but the velocity of earlier arrivals pushes on, until those of the next eight steps arrive.",
)

# %% tags=["maintainer"]
assert list(turns.values()) == [25, 31, 24, 24], turns

# %% [markdown]
# In the optimizer, momentum only begins when a gradient arrives. First it waits for up to eight steps, then it pushes for ten steps and more: the delay comes twice. DGC has two remedies.
#
# - **[Momentum correction](term:momentum-correction).** Each rank keeps its own velocity, u ← mu + g, and what waits gathers *velocities*: v ← v + u. The optimizer is plain SGD. Then $\sum c_t = \sum u_t - v_T$ by the same sum as before. Whenever a weight is sent, it has come exactly as far as under dense momentum: look where the curve meets the dense one at the steps 8, 16 and 24. Momentum is linear, so the ranks' velocities add up to the velocity of the sum.
# - **[Momentum factor masking](term:momentum-factor-masking).** Where v was sent, u becomes 0 too. Otherwise a velocity that was built up long ago would go on feeding v in a direction that may be out of date by the time it is sent. The price is visible: the weight does not get as far as under dense momentum. Masking is a brake, and it is meant to be one.
#
# ## Two more parts, and the whole
#
# **[Local gradient clipping](term:local-gradient-clipping).** Recurrent networks and transformers are trained with [clipping](term:gradient-clipping): if the norm of the average gradient is above a threshold *L*, the gradient is scaled down to it. Under DGC nobody has the average gradient. After the exchange it is too late, because an exploding gradient would have been added to v, and would be sent from there for many steps. So each rank clips its own gradient *before* it adds it. To which threshold? The average is a sum of *n* shares $g_r/n$. Suppose that they are independent, with mean 0 and norm *x* each. In the square of the sum's norm all mixed products vanish on average, so it is $nx^2$, and the norm of the sum is $\sqrt n\,x$. To hold the sum to *L*, each share is held to $L/\sqrt n$.
#
# **[Warm-up](term:sparsity-warm-up) of the sparsity.** In the first epochs weights change quickly, and what waits is soon out of date. So more numbers travel then: 25 % in the first epoch and a quarter of that in each epoch that follows, 6.25 %, 1.56 %, 0.4 %, until 0.1 % is reached.
#
# ![One step of deep gradient compression on one rank, six numbers, of which two are sent. The gradient is clipped. The velocity U becomes half of itself plus the gradient and is added to what is held back, V. The two largest of V are sent; there V becomes 0, and U too. Over the first epochs the share that is sent falls from 25 per cent to 0.1.](../course/23_compress/figures/dgc_parts.svg)
#
# In code, each part has a switch, so that we can see what it is for. The network's weights are one vector here.


# %%
class Dense:
    """The oracle: an all-reduce, then ordinary momentum."""

    def __init__(self, comm, length):
        self.comm = comm
        self.velocity = torch.zeros(length, dtype=torch.float64)

    def step(self, g, epoch):
        """What the weights move by, for this rank's gradient."""
        average = all_reduce_(self.comm, g.clone(), op="mean")
        self.velocity = 0.9 * self.velocity + average
        return self.velocity


class HandmadeDGC:
    def __init__(
        self,
        comm,
        length,
        sparsity=0.99,
        warm_up=(0.75,),
        limit=None,
        keep=True,
        correction=True,
        masking=True,
    ):
        self.comm = comm
        self.sparsities = (*warm_up, sparsity)
        self.limit = limit
        self.keep = keep
        self.correction = correction
        self.masking = masking
        self.u = torch.zeros(length, dtype=torch.float64)
        self.v = torch.zeros(length, dtype=torch.float64)
        self.velocity = torch.zeros(length, dtype=torch.float64)

    def step(self, g, epoch):
        n = self.comm.size
        g = g / n  # this rank's share of the average
        if self.limit is not None:
            most = self.limit / n**0.5
            g = g * min(1.0, most / float(g.norm()))
        self.u = 0.9 * self.u + g
        self.v += self.u if self.correction else g

        sparsity = self.sparsities[min(epoch, len(self.sparsities) - 1)]
        length = len(g)
        k = length - int(sparsity * length)
        places = self.v.abs().topk(k).indices
        total = sum_of_sparse(self.comm, self.v[places], places, length)

        if self.keep:
            self.v[places] = 0
        else:
            self.v.zero_()  # what was not sent is dropped
        if self.masking:
            self.u[places] = 0
        if self.correction:
            return total
        self.velocity = 0.9 * self.velocity + total  # momentum in the optimizer
        return self.velocity


# %% [markdown]
# And a loop that trains the [digits](lesson:data_parallel) with it. The network is small, 3,610 weights, and in double precision, so that the oracle can be exact.

# %%
from functools import partial

from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minidist.models import mlp
from minidist.parallel.data import Sampler
from minidist.tasks import digits

task = digits()
small_network = partial(mlp, [64, 48, 10], dtype=torch.float64)


def train(comm, make_way, seed=0, epochs=8, make_model=small_network, rate=0.1):
    """Train on this rank's share of the batches. Returns the loss on the test set."""
    model = make_model(seed)
    length = sum(p.numel() for p in model.parameters())
    way = make_way(comm, length)
    sampler = Sampler(len(task.x), 96, comm, seed=seed)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for mine in sampler:
            model.zero_grad()
            cross_entropy(model(task.x[mine]), task.y[mine]).backward()
            g = parameters_to_vector(p.grad for p in model.parameters())
            moves = way.step(g, epoch)
            weights = parameters_to_vector(model.parameters()).detach()
            vector_to_parameters(weights - rate * moves, model.parameters())
    with torch.no_grad():
        return cross_entropy(model(task.test_x), task.test_y).item()


# %% [markdown]
# **Is it right?** If everything is sent and nothing is masked, it must *be* momentum SGD. That is the first row. The second compares it with the library's `DGC`, which chooses within each tensor, on a model of a single matrix. Both on three ranks, two epochs.

# %%
from torch import nn

from minidist.parallel.compress import DGC
from minidist.parallel.data import DataParallel


def one_matrix(seed):
    torch.manual_seed(seed)
    return nn.Linear(64, 10, bias=False, dtype=torch.float64)


def by_library(comm, make_model, make_compression, data, rate=0.1, epochs=2):
    """DataParallel with a compression. Returns the time on rank 0's clock, loss and accuracy after each epoch."""
    model = make_model(0)
    compression = make_compression()
    wrapped = DataParallel(model, comm, compression=compression)
    has_momentum = isinstance(compression, DGC)  # then the optimizer has none
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.0 if has_momentum else 0.9)
    sampler = Sampler(len(data.x), 96, comm)
    seen = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        if has_momentum:
            compression.set_epoch(epoch)  # the warm-up needs it
        for mine in sampler:
            optimizer.zero_grad()
            cross_entropy(wrapped(data.x[mine]), data.y[mine]).backward()
            optimizer.step()
        with torch.no_grad():
            said = model(data.test_x)
        loss = cross_entropy(said, data.test_y).item()
        right = (said.argmax(1) == data.test_y).double().mean().item()
        seen.append((comm.now(), loss, right))
    return seen


def shown(a, b):
    return "below 1e-10" if abs(a - b) < 1e-10 else f"{abs(a - b):.2g}"


brief = partial(train, make_model=one_matrix, epochs=2)
all_sent = partial(HandmadeDGC, sparsity=0.0, warm_up=(), masking=False)
dense_loss = World(3).run(brief, Dense)[0]
all_sent_loss = World(3).run(brief, all_sent)[0]
our_loss = World(3).run(brief, HandmadeDGC)[0]
library_dgc = partial(DGC, 0.99, warm_up=(0.75,), small=0)
library_loss = World(3).run(by_library, one_matrix, library_dgc, task)[0][-1][1]
rows = [
    ("all sent, against dense", shown(all_sent_loss, dense_loss)),
    ("ours, against the library's", shown(our_loss, library_loss)),
    ("ours, against dense", shown(our_loss, dense_loss)),
]
study.table(rows, ["losses after two epochs", "difference"])

# %% tags=["maintainer"]
assert [row[1] == "below 1e-10" for row in rows] == [True, True, False]

# %% [markdown]
# The last row is a reminder: DGC as it is meant is *not* dense training. Whether it is good cannot be read off a difference of weights; for that we have to look at losses, for several seeds.
#
# ## Each part switched off
#
# Two ranks, eight epochs, 112 steps. 25 % of the numbers travel in the first epoch, then 1 %, which is 37 numbers. Each of the parts is switched off in turn. **Which is missed most: keeping what was not sent, the correction, or the masking?**

# %%
guess_part = "masking"  # or "correction", or "keeping"

# %%
without = {
    "dense": Dense,
    "DGC": HandmadeDGC,
    "no masking": partial(HandmadeDGC, masking=False),
    "no correction": partial(HandmadeDGC, correction=False),
    "no keeping": partial(HandmadeDGC, keep=False),
}
runs = {}
for name, make_way in without.items():
    runs[name] = [World(2).run(train, make_way, seed) for seed in (0, 1)]

# the mean loss of both seeds; all ranks have the same
means = {name: (some[0][0] + some[1][0]) / 2 for name, some in runs.items()}

# %% tags=["maintainer"]
worst = max(means, key=means.get).removeprefix("no ")
few = {
    f"{name}, seed {s}": round(run[0], 2)
    for name, some in runs.items()
    for s, run in enumerate(some)
}
assert max(list(few.values())[:4]) < min(list(few.values())[4:]), few

# %% tags=["answer"]
study.reveal(
    guess_part,
    worst,
    study.bars(few, title="Loss on the test set after 8 epochs, two seeds"),
    options=["masking", "correction", "keeping"],
)

# %% [markdown]
# With any of the three missing, the loss is above the worst of the full DGC, for both seeds. But notice as well that the full DGC is *not* as good as dense here. This run is too short for it. After the first epoch come 98 steps of 1 % each, so that the average weight is sent once. Here is what it has sent for that:

# %%
rows = []
for name in ("dense", "DGC"):
    trace = runs[name][0].trace
    rows.append((name, trace.messages(0), trace.bytes_sent(0), round(means[name], 2)))
study.table(rows, ["", "messages of rank 0", "bytes of rank 0", "mean loss"], title="112 steps")

# %% tags=["maintainer"]
assert 12 < rows[0][2] / rows[1][2] < 13

# %% [markdown]
# A twelfth of the bytes, and four fifths of those in the first epoch. We shall come back to this bargain with a longer run. First the other two parts.
#
# *Without warm-up* the loss suffers where little travels at a high learning rate. Here the rate is 0.2 and only 0.1 % travels, four numbers in a step, with and without four epochs of warm-up. *Without clipping* we need a task whose gradients explode. A recurrent network reads an image row by row, and its gradients pass through one and the same matrix eight times.

# %%
slowly = (0.75, 0.9375, 0.984375, 0.996)
warm = {}
for name, warm_up in [("warm-up", slowly), ("none", ())]:
    for seed in (0, 1):
        few_sent = partial(HandmadeDGC, sparsity=0.999, warm_up=warm_up)
        loss = World(2).run(train, few_sent, seed, epochs=5, rate=0.2)[0]
        warm[f"{name}, seed {seed}"] = round(loss, 2)
study.bars(warm, title="Loss after 5 epochs at a rate of 0.2, 0.1 % sent")


# %%
class ReadsRows(nn.Module):
    """A recurrent network: each row of an image changes what it remembers."""

    def __init__(self, seed, hidden=32):
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        draw = partial(torch.randn, generator=random, dtype=torch.float64)
        self.x = nn.Parameter(draw(8, hidden) / 3)
        self.h = nn.Parameter(2 * draw(hidden, hidden) / hidden**0.5)  # too large on purpose
        self.out = nn.Parameter(draw(hidden, 10) / hidden**0.5)

    def forward(self, images):
        h = torch.zeros(len(images), len(self.h), dtype=torch.float64)
        for row in images.view(-1, 8, 8).unbind(1):
            h = torch.tanh(row @ self.x + h @ self.h)
        return h @ self.out


clipped = {}
for name, limit in [("clipped", 1.0), ("not clipped", None)]:
    for seed in (0, 1):
        way = partial(HandmadeDGC, limit=limit)
        loss = World(2).run(train, way, seed, epochs=4, make_model=ReadsRows, rate=0.15)[0]
        clipped[f"{name}, seed {seed}"] = round(loss, 2)
study.bars(clipped, title="Loss of a recurrent network after 4 epochs")

# %% tags=["maintainer"]
assert 2 * max(list(warm.values())[:2]) < min(list(warm.values())[2:]), warm
assert max(list(clipped.values())[:2]) < min(list(clipped.values())[2:]), clipped

# %% [markdown]
# ## The claim: one number of a thousand
#
# Now the network of the beginning, with 301,066 weights, in single precision and by the library. Of each weight matrix the 0.1 % largest are sent; the biases, 1,034 numbers, are averaged exactly, as the authors' code does too. Both runs have the same initial weights, batches and learning rate, and 26 epochs. The World has a link of 100 Mbit/s with a latency of 0.1 ms, so that its clock tells what the messages would have taken; computing takes no time on it.

# %%
WIDTHS = [64, 512, 512, 10]
ALPHA = 1e-4  # s
BETA = 1 / 12.5e6  # s per byte: 100 Mbit/s
single = digits(torch.float32)


def network(seed):
    return mlp(WIDTHS, seed=seed, dtype=torch.float32)


def on_the_slow_link(make_compression, epochs):
    world = World(2, alpha=ALPHA, beta=BETA)
    return world.run(by_library, network, make_compression, single, rate=0.02, epochs=epochs)


def no_compression():
    return None


dense_run = on_the_slow_link(no_compression, epochs=26)
dgc_run = on_the_slow_link(DGC, epochs=26)  # 99.9 %, after four epochs of warm-up

# %% tags=["maintainer"]
from minidist.parallel.compress import wanted

matrices = [p.numel() for p in network(0).parameters() if p.numel() >= 1024]
of_a_thousand = round(1000 * sum(wanted(count, 0.999) for count in matrices) / sum(matrices), 1)
epochs_seen = range(1, 27)
loss_by_epoch = {
    "dense": (epochs_seen, [loss for _, loss, _ in dense_run[0]]),
    "DGC, 99.9 %": (epochs_seen, [loss for _, loss, _ in dgc_run[0]]),
}


def row_of(name, run):
    at_end = [sum(seen[i] for seen in run[0][-5:]) / 5 for i in (1, 2)]
    numbers = [run[0][4][1], run[0][9][1], *at_end]
    return name, *(round(x, 2) for x in numbers), run.trace.bytes_sent(0)


claim_rows = [row_of("dense", dense_run), row_of("DGC", dgc_run)]
claim_table = study.table(
    claim_rows,
    ["", "loss, epoch 5", "loss, epoch 10", "loss, end", "accuracy, end", "bytes of rank 0"],
    title="The same 364 steps; end: the mean of the last five epochs",
)
dense_end, dgc_end = (row[3:5] for row in claim_rows)
assert dgc_end[0] < dense_end[0] + 0.08 and dgc_end[1] > dense_end[1] - 0.025, claim_rows
assert claim_rows[1][1] > 3 * claim_rows[0][1]

# %% tags=["answer"]
study.reveal(
    guess_share,
    of_a_thousand,
    [
        study.curves(
            loss_by_epoch,
            logy=True,
            xlabel="epoch",
            ylabel="loss on the test set",
            title="All numbers, and one of a thousand",
            words="DGC is far behind for ten epochs and has caught up at the end.",
        ),
        claim_table,
    ],
    unit="of 1,000",
)

# %% [markdown]
# So the claim holds here, and you see on what terms. One gradient of a thousand is enough *in the end*. Over the last five epochs the two have the same mean loss and the same accuracy, up to what two or three of the 360 test images change, and DGC has sent 1/38 of the bytes, most of them during its warm-up. But it gets there later: after five epochs it is far behind, and after ten it still has about twice the loss. A run that stops early pays for the compression with accuracy. In a run of 90 epochs, such as the paper's, a few epochs of delay do not matter; [Lin et al. 2018](paper:lin2018) report that gradients shrink to between 1/270 and 1/600 of their size without loss of accuracy.
#
# One run proves little. `make proof NAME=talk-less` does it with 1.1 million weights and five seeds, and demands that the mean accuracy stay within half a point of dense training.
#
# ## The library's file
#
# [minidist/parallel/compress.py](file:minidist/parallel/compress.py) has all compressions of this lesson. A compression is an object with one method that [DataParallel](lesson:data_parallel) calls for each of its [buckets](lesson:buckets) instead of an all-reduce; what it keeps, it keeps by the name of the parameter. For DGC the heart is the choice. It is our `step`, for one tensor:

# %%
from minidist.parallel import compress

study.source(DGC._velocity)

# %%
study.source(DGC._choose)

# %% [markdown]
# The choice is made in each tensor by itself. A single threshold for all would starve those layers whose gradients are small as a whole. Tensors of fewer than 1,024 numbers, such as biases, are not worth it and are averaged exactly, but with the same momentum. Then all the tensors of a bucket go into one message:

# %%
study.source(DGC.average_)

# %% [markdown]
# What does a place cost? As an integer it would have 8 bytes, twice its value. `pack_sparse` sorts the places and sends the last 16 bits of each, and for each block of 65,536 numbers how many entries end in it. So a number travels in 6 bytes instead of 12:

# %%
study.source(compress.pack_sparse)

# %% [markdown]
# Local clipping needs the norm over all parameters, so `DGC._measure` has to see the gradients of all buckets before the first is sent. That ends the overlap with backward, as its documentation says. The rest of the file saves and loads what is kept. It belongs into a [checkpoint](lesson:survive), and each rank has to save its own, since every rank is waiting with something else.
#
# ## 16 bits, one bit
#
# *fp16* is the mildest compression: round each gradient to [half precision](lesson:precision), all-reduce, convert back. It halves the bytes, remains an all-reduce, and needs no memory of errors. Rounding is relative, so small numbers survive as well, down to the range of fp16.
#
# *Signs* are the other extreme: one bit for each number. [signSGD](term:signsgd) lets the ranks vote. Each sends the signs of its gradient, and each weight moves by a fixed amount in the direction of the majority. It is tempting, because votes can be counted and nothing needs to be scaled. Take three ranks and one weight. Rank 0 has its minimum at 12, the other two at 0, and all three losses are equally steep. The mean loss has its minimum at the mean, 4. **Where does the vote take the weight, from a start at 4?**

# %%
guess_vote = 4.0  # the weight: change this number

# %%
TARGETS = torch.tensor([[12.0, 1, -3, 3], [0, 5, 2, 0], [0, -2, 1, 6]])


def by_vote(comm, steps=80):
    """Four weights; the first is the one of the question."""
    w = TARGETS.mean(0)
    seen = [float(w[0])]
    for _ in range(steps):
        g = w - TARGETS[comm.rank]
        votes = all_reduce_(comm, torch.sign(g))
        w = w - 0.1 * torch.sign(votes)
        seen.append(float(w[0]))
    return seen


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(TARGETS.mean(0))

    def forward(self, target):
        return 0.5 * (self.w - target).square().sum()


def by_scaled_signs(comm, steps=80):
    """The library's way: signs with a scale, and error feedback."""
    module = Weights()
    model = DataParallel(module, comm, compression=compress.Sign())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    seen = [float(module.w.detach()[0])]
    for _ in range(steps):
        optimizer.zero_grad()
        model(TARGETS[comm.rank]).backward()
        optimizer.step()
        seen.append(float(module.w.detach()[0]))
    return seen


signs = {
    "majority of signs": (range(81), World(3).run(by_vote)[0]),
    "scaled, with error feedback": (range(81), World(3).run(by_scaled_signs)[0]),
}

# %% tags=["answer"]
study.reveal(
    guess_vote,
    abs(round(signs["majority of signs"][1][-1])),
    study.curves(
        signs,
        xlabel="step",
        ylabel="the first weight",
        title="Three ranks, minima at 12, 0 and 0",
        words="The vote leaves 4 and stays near 0; scaled signs with error feedback stay near 4.",
    ),
)

# %% tags=["maintainer"]
assert abs(signs["majority of signs"][1][-1]) < 0.2
assert all(abs(w - 4) < 1 for w in signs["scaled, with error feedback"][1])

# %% [markdown]
# The vote finds the *median* of what the ranks want, not the mean: two ranks with small complaints outvote one with a large complaint. Its symptom is a run without any error that converges to the wrong place. Error feedback mends this too, if the sign carries a size. With p = g + e, a rank sends
#
# $$c = \mathrm{mean}(|p|)\cdot\mathrm{sign}(p),\qquad e \leftarrow p - c,$$
#
# and the average of the ranks' *c* moves the weights. By the same sum as in the beginning, nothing is lost. The library has one scale for each tensor. The scaled signs of *n* ranks can no longer be added on the way without growing to more bits, so they are gathered, like sparse vectors.
#
# ## Two thin matrices: PowerSGD
#
# All we have compressed so far were vectors. But the gradient of a linear layer is a matrix, and often one that is close to low rank. [PowerSGD](term:powersgd) sends a matrix *M* of *a* × *b* numbers as the product of two thin ones, *P* of *a* × *r* and *Q* of *b* × *r*:
#
# ![A gradient matrix M is sent as two thin matrices. P = M Q is all-reduced and made orthonormal, Q = M transposed times P is all-reduced, and P times Q transposed stands for the sum of all ranks' matrices.](../course/23_compress/figures/powersgd.svg)
#
# **By hand.** Let *M* have the rows (2, 4) and (1, 2). Start with some *Q*, say (1, 1). Then $P = MQ = (6, 3)$, and with norm 1 this is $(2, 1)/\sqrt5$. Next $Q = M^\top P = (5, 10)/\sqrt5$. The product $PQ^\top$ has the rows (2, 4) and (1, 2): all of *M*, because its rank is 1. For other matrices $PQ^\top = PP^\top M$ is the projection of *M* onto the columns of *P*, the best that can be done with this *P*.
#
# **Why it may be all-reduced.** Both products are linear in *M*. The sum of the ranks' $M_kQ$ is $(\sum_k M_k)Q$, so after an all-reduce every rank has the *P* of the *summed* matrix, and likewise the *Q*. No rank needs the others' matrices, and nothing grows with *n*.
#
# **Why one step is enough.** Multiplying by *M* and $M^\top$ in turn is the power iteration, which turns *Q* towards the largest singular vectors. Doing it to the end in each step would be expensive. But gradients change slowly, so PowerSGD does one round and starts the next step from the last *Q*, a *warm start*. Whatever the product misses goes into error feedback.


# %%
def power_iteration(comm, M, r, rounds):
    """Which share of the mean matrix the product misses after each round."""
    generator = torch.Generator().manual_seed(0)  # the same Q on all ranks
    Q = torch.randn(M.shape[1], r, generator=generator, dtype=M.dtype)
    mean = all_reduce_(comm, M.clone(), op="mean")  # only to see the error
    missed = []
    for _ in range(rounds):
        P = all_reduce_(comm, M @ Q, op="mean")  # (a, r)
        P = torch.linalg.qr(P).Q  # orthonormal columns
        Q = all_reduce_(comm, M.T @ P, op="mean")  # (b, r)
        missed.append(float((P @ Q.T - mean).norm() / mean.norm()))
    return missed


def of_a_gradient(comm, r):
    model = small_network(0)
    mine = next(iter(Sampler(len(task.x), 96, comm)))
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    return power_iteration(comm, model[0].weight.grad, r, rounds=6)


missed = {}
for r in (1, 2, 4, 8):
    missed[f"rank {r}"] = range(1, 7), World(2).run(of_a_gradient, r)[0]
study.curves(
    missed,
    xlabel="rounds",
    ylabel="share that is missed",
    title="A gradient of 48 × 64 as two thin matrices",
)

# %% tags=["maintainer"]
assert missed["rank 8"][1][-1] < 0.2
assert all(line[-1] < line[0] for _, line in missed.values())

# %% [markdown]
# Two or three rounds find the matrices, and eight columns of 48 miss about a sixth. Rank 8 sends 8 · (48 + 64) = 896 numbers instead of 3,072, which is not much of a saving for such a small matrix. For 1,000 × 1,000 and rank 2 it is 4,000 instead of a million.
#
# ## Predict the bytes, then run
#
# Let there be *N* numbers of 4 bytes on *n* ranks. All-reduces are [rings](lesson:messages), and DGC sends 6 bytes for each of *k* = *sN* numbers:
#
# | | bytes that a rank sends in a step |
# |---|---|
# | dense | $2\frac{n-1}{n}\cdot 4N$ |
# | fp16 | $2\frac{n-1}{n}\cdot 2N$ |
# | signs | $(n-1)\cdot N/8$ |
# | PowerSGD | $2\frac{n-1}{n}\cdot 4\sum r(a+b)$ |
# | DGC | $(n-1)\cdot 6sN$ |
#
# The three that are all-reduced approach a limit as *n* grows. The two that are gathered grow without end. **From how many ranks on does DGC in its first epoch, with s = 25 %, send more than dense?**

# %%
guess_crossing = 100  # ranks: change this number

# %%
from minidist.study import predict

SHAPES = [p.shape for p in mlp(WIDTHS, device="meta").parameters()]
compressions = {
    "dense": (no_compression, predict.dense_bytes),
    "fp16": (compress.Half, predict.half_bytes),
    "signs": (compress.Sign, predict.sign_bytes),
    "DGC, 75 %": (
        partial(DGC, 0.75, warm_up=()),
        partial(predict.dgc_bytes, sparsity=0.75),
    ),
    "PowerSGD, rank 2": (
        partial(compress.PowerSGD, 2),
        partial(predict.powersgd_bytes, rank=2),
    ),
    "DGC, 99.9 %": (partial(DGC, warm_up=()), predict.dgc_bytes),
}


def two_steps(comm, make_compression):
    """On meta tensors: shapes and messages, no numbers. Returns when the second step begins."""
    model = mlp(WIDTHS, device="meta")
    # one bucket; buckets are laid out anew after the first step
    wrapped = DataParallel(model, comm, first_bucket_bytes=8 << 20, compression=make_compression())
    for _ in range(2):
        start = comm.now()
        wrapped(torch.empty(8, 64, device="meta")).sum().backward()
    return start


def counted(n, make_compression):
    """Bytes that a rank sends in the second step."""
    world = World(n, device="meta")
    starts = world.run(two_steps, make_compression)
    total = sum(m.nbytes for m in world.trace if m.start >= starts[m.src])
    return total // n


few_ranks = [2, 4]
many_ranks = [2, 4, 8, 16, 32, 64, 128]
predicted = {}
measured = {}
for name, (make_compression, formula) in compressions.items():
    predicted[name] = many_ranks, [formula(SHAPES, n) // n for n in many_ranks]
    measured[name] = few_ranks, [counted(n, make_compression) for n in few_ranks]

# %% tags=["maintainer"]
for name in compressions:
    assert measured[name][1] == predicted[name][1][:2], name
crossing = next(
    n for n in range(2, 99) if predict.dgc_bytes(SHAPES, n, 0.75) > predict.dense_bytes(SHAPES, n)
)
assert crossing == 6

# %% tags=["answer"]
study.reveal(
    guess_crossing,
    crossing,
    study.curves(
        predicted,
        points=measured,
        logx=True,
        logy=True,
        yunit="B",
        xlabel="ranks",
        ylabel="a rank sends in a step",
        title="What is gathered grows with n",
    ),
    unit="ranks",
    words="Set the two formulas equal: 6 · ¼ = 8/n, so n = 5⅓. At 99.9 % the same calculation gives 1,333 ranks.",
)

# %% [markdown]
# The points are counted in the World, and they lie on the lines. On two ranks, a step of DGC after its warm-up sends about a two-hundredth of dense. (Without the exact biases it would be 1/667, as the formula says.) On many ranks its first epoch is *more* expensive than dense training. Here are the messages of two such steps of DGC at 99.9 %, on four modelled ranks. The long bars are the broadcast of rank 0's weights, with which `DataParallel` begins. The two steps are the thin lines at the right end: zoom in, and you see the all-reduce of the biases and the gather, three messages from each rank.

# %%
look = World(4, alpha=ALPHA, beta=BETA, device="meta")
study.viewer(look.run(two_steps, compressions["DGC, 99.9 %"][0]), title="DGC on four ranks")

# %% [markdown]
# ## Seconds on a slow link
#
# A byte that is saved is worth nothing if the network then needs more steps. So here is the loss against the time on the modelled link of 100 Mbit/s, for all ways: dense and DGC from the runs above, the others for five epochs. **Which of them is the first to reach a loss of 0.25?**

# %%
guess_first = "DGC"  # or "dense", "fp16", "signs", "PowerSGD"

# %%
in_time = {"dense": dense_run, "DGC": dgc_run}
in_time["fp16"] = on_the_slow_link(compress.Half, epochs=5)
in_time["signs"] = on_the_slow_link(compress.Sign, epochs=5)
in_time["PowerSGD"] = on_the_slow_link(partial(compress.PowerSGD, 2), epochs=5)

# %% tags=["maintainer"]
reached = {
    name: next(seconds for seconds, loss, _ in run[0] if loss <= 0.25)
    for name, run in in_time.items()
}
first = min(reached, key=reached.get)
against_time = {
    name: ([s for s, _, _ in run[0]], [loss for _, loss, _ in run[0]])
    for name, run in in_time.items()
}

# %% tags=["answer"]
study.reveal(
    guess_first,
    first,
    study.curves(
        against_time,
        logx=True,
        logy=True,
        xunit="s",
        xlabel="modelled seconds on the link",
        ylabel="loss on the test set",
        title="A point for each epoch",
        words="PowerSGD is first, then signs; DGC needs about a second, fp16 and dense several seconds.",
    ),
    options=["dense", "fp16", "signs", "PowerSGD", "DGC"],
)

# %% [markdown]
# PowerSGD is first, after a quarter of a second, and signs follow. DGC needs about a second, and nearly all of it is its warm-up: the first epoch alone ends after 0.6 seconds. From the fifth on, an epoch takes 15 ms, so a long run would hardly notice the warm-up. Dense training needs twenty times as long as PowerSGD. So to a loss that is reached early, the simple ways win. But look at the right ends of the lines: DGC has finished its 26 epochs after 1.2 s, and dense training after 35 s, with the same loss.
#
# In a notebook, `launch` gives real processes a slow wire: with `rate`, what a rank sends leaves at so many bytes a second. Here is one epoch of our own code on two processes, at 400 kB/s:

# %%
from minidist.comm import launch

RATE = 400e3  # bytes per second
rows = []
real = {}
for name, way in [("dense", Dense), ("DGC, 99 %", partial(HandmadeDGC, warm_up=()))]:
    real[name] = launch(train, 2, way, 0, 1, rate=RATE)
    sent = real[name].trace.bytes_sent(0)
    rows.append((name, real[name].trace.messages(0), sent, round(sent / RATE, 3)))
study.table(
    rows,
    ["", "messages of rank 0", "bytes of rank 0", "seconds on the wire, at least"],
    title="Two processes, one epoch",
)

# %% tags=["maintainer"]
assert real["dense"].time > 0.9 * rows[0][3]
assert real["dense"].time > real["DGC, 99 %"].time

# %% [markdown]
# And a link that is really slow? `python -m benchmarks.slow_link` joins two network namespaces of one machine by 100 Mbit/s and trains 1.1 million weights until a loss of 0.20. These numbers were measured with it, beside what a World predicts:

# %%
measured_on_a_link = [
    ("dense", 48, 20.1, 18.8),
    ("fp16", 48, 10.3, 9.68),
    ("DGC, 99.9 %", 112, 6.47, 6.48),
    ("PowerSGD, rank 2", 48, 1.91, 2.01),
]
rows = []
for name, steps, seconds, world in measured_on_a_link:
    rows.append((name, steps, seconds, world, round(20.1 / seconds, 1)))
study.table(
    rows,
    ["", "steps", "seconds, measured", "seconds, World", "dense over it"],
    title="Until a loss of 0.20, at 100 Mbit/s",
)

# %% [markdown]
# On two machines of your own the same training, `benchmarks/slow_train.py`, runs as follows, once on each (its arguments are the loss to reach, the most steps, and what to compare):
#
# ```
# torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m benchmarks.slow_train 0.2 320 dense "DGC 99.9 %" PowerSGD
# ```
#
# ## When not to use it
#
# To choose the largest of *N* numbers, DGC has to read and write u, v and the gradient several times. Let that be 30 bytes of memory traffic for each number, on a modelled H100 with 3,350 GB/s. Drag the sliders: at what speed of the link does dense become as fast as DGC? Then add ranks.


# %%
def exchange(n, N, bandwidth):
    """Seconds of an exchange: the wire, and for DGC the memory as well."""
    ring = 2 * (n - 1) / n
    thin = 2 * (1000 + 1000) / 1000**2  # rank 2, if all matrices are 1,000 × 1,000
    return {
        "dense": ring * 4 * N / bandwidth,
        "fp16": ring * 2 * N / bandwidth,
        "PowerSGD, rank 2": ring * 4 * thin * N / bandwidth + 30 * N / 3350e9,
        "DGC, 99.9 %": (n - 1) * 6e-3 * N / bandwidth + 30 * N / 3350e9,
    }


study.explore(
    exchange,
    over="bandwidth",
    n=[2, 8, 64, 512, 2048],
    N=[10**6, 10**8, 10**10],
    bandwidth=[12.5e6, 125e6, 1.25e9, 12.5e9, 50e9, 450e9, 900e9],
    units={"bandwidth": "B"},
    labels={"n": "ranks", "N": "numbers", "bandwidth": "bytes per second on the link"},
    start={"n": 2, "N": 10**8, "bandwidth": 1.25e9},
    unit="s",
    logx=True,
    logy=True,
    xlabel="bytes per second on the link",
    ylabel="an exchange",
    title="Wire and memory (modelled)",
)

# %% tags=["maintainer"]
even = 4 * 3350e9 / 30
at_nvlink = exchange(2, 10**8, 450e9)
assert 4.4e11 < even < 4.5e11 and abs(at_nvlink["DGC, 99.9 %"] / at_nvlink["dense"] - 1) < 0.05

# %% [markdown]
# - **On a fast link.** On two ranks the lines meet at about 450 GB/s, which is [NVLink](term:nvlink). There, choosing takes as long as sending everything.
# - **On many ranks.** What is gathered grows with *n*. DGC at 99.9 % sends as much as dense on 1,333 ranks, and its warm-up on six.
# - **Where backward hides the messages.** With [buckets and overlap](lesson:buckets) a rank may not wait for them at all, and saving what nobody waits for saves nothing. Local clipping even forbids the overlap.
# - **In a short run.** Fine-tuning, for instance, may end before DGC has caught up. fp16 or PowerSGD lose less.
# - **With an optimizer other than SGD.** Momentum correction is derived from the linearity of momentum. Adam divides by a root of squares, which is not linear, so DGC as it stands does not apply to it; fp16 and PowerSGD can be combined with any optimizer.
# - **Where memory is short.** u and v are two more numbers for each weight, on every rank.
# - **Where the result must be that of one machine.** All but dense change the run, so a bug in them cannot be found by comparing it with the serial program.
#
# [Send seldom](lesson:local_sgd) saves the same bytes in another way: it meets less often, and saves the latencies too.
#
# ## Takeaways
#
# - Send what is largest and keep the rest: what was sent plus what waits is the sum of all gradients, so nothing is lost.
# - With momentum, gather velocities and not gradients (correction), forget the velocity of what was sent (masking), clip each rank's share to $L/\sqrt n$ before it is kept, and begin gently (warm-up). Each part matters, and each can be switched off.
# - One number of a thousand was enough to reach the loss of dense training in 26 epochs, but not in ten.
# - Sparse vectors and signs are gathered, so their bytes grow with *n*; fp16 and PowerSGD are all-reduced.
# - The majority of signs finds the median. With a scale and error feedback, signs find the mean.
# - Count the bytes *and* look at the loss, against time. Either of them alone says nothing.
#
# ## Further reading
#
# - paper:lin2018 Section 3, Algorithms 4 and 5.
# - paper:vogels2019 Algorithms 1 and 2.
# - paper:karimireddy2019 Why plain signs fail, and the proof for error feedback.
