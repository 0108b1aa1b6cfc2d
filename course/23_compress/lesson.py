# %% [markdown]
# # 23 · Talk less
#
# Two machines train a network of 1.1 million weights, 4.5 MB of gradients in fp32. Between them is a link of
# 100 Mbit/s, 12.5 MB a second. A step computes for some 15 ms. Its all-reduce takes 360 ms.
# **Of 1,000 numbers in a gradient, how many must travel?** The network shall still learn.

# %%
guess = 500  # of 1,000: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Each rank sends the largest of its six numbers (by size, whatever its sign), and keeps the other five. The sum of what
# was sent is the step. Four steps, with the same gradients in each:

# %%
from functools import cache, partial
import torch
from IPython.display import display
from torch import nn
from torch.nn.functional import cross_entropy
from minidist import study
from minidist.collectives import all_gather, all_reduce_
from minidist.comm import World, launch
from minidist.models import mlp
from minidist.parallel.data import DataParallel, Sampler
from minidist.tasks import digits
from minidist.parallel.compress import DGC, Half, PowerSGD, Sign

# %%
GRADIENTS = torch.tensor([[5.0, 0, -3, 1, 0, 2], [0, 1, -4, 0, 3, 2], [1, 0, -1, 0, 7, 2]])


def largest(comm, keeps):
    """What moves the weights in each of four steps; in the last row, what all ranks have kept."""
    v, rows = torch.zeros(6), []
    for _ in range(4):
        v = GRADIENTS[comm.rank] + (v if keeps else 0)
        sent = torch.where(v.abs() == v.abs().max(), v, 0)
        v = v - sent
        rows.append(all_reduce_(comm, sent))
    return torch.stack([*rows, all_reduce_(comm, v if keeps else 0 * v)])


# %%
for words, keeps in (("dropped", False), ("kept", True)):
    *steps, waits = World(3).run(largest, keeps)[0]
    assert not keeps or (sum(steps) + waits).equal(4 * GRADIENTS.sum(0))
    lines = {
        **{f"step {t}": row for t, row in enumerate(steps, 1)},
        "sent in all": sum(steps),
        "waits": waits,
        "dense, 4 steps": 4 * GRADIENTS.sum(0),
    }
    display(
        study.table(
            [(name, *map(int, row)) for name, row in lines.items()],
            ["", *(f"g{i}" for i in range(6))],
            title=f"What was not sent is {words}",
        )
    )

# %% [markdown]
# Dropped: g5 has a gradient of 2 on every rank, and never moves. Kept: all of its 24 come in step 4. In each column,
# what was sent and what waits make dense. **Nothing is lost, it only waits.** That is the first half of deep gradient
# compression (DGC). The second half is momentum.
#
# ## Momentum, for one weight
#
# SGD's momentum is a velocity, u ← 0.9u + g; the weight moves by u. A weight has a gradient of +1 for 20 steps, then of
# −1. It is among the largest, and sent, in every eighth step only. **Predict**: if what was kept arrives and the
# *optimizer* has the momentum, in which step does the weight turn around? (Dense, in step 25.)


# %%
def moved(every, correct, mask):
    u = v = velocity = way = 0.0
    seen = []
    for t in range(1, 49):
        g = 1.0 if t <= 20 else -1.0
        u = 0.9 * u + g
        v += u if correct else g
        sent, v = (v, 0.0) if t % every == 0 else (0.0, v)
        u = 0.0 if mask and t % every == 0 else u
        velocity = 0.9 * velocity + sent
        way += sent if correct else velocity
        seen.append(way)
    return range(1, 49), seen


# %%
lines = {
    "dense": moved(1, False, False),
    "momentum in the optimizer": moved(8, False, False),
    "momentum correction": moved(8, True, False),
    "and masking": moved(8, True, True),
}
turns = {name: way.index(max(way)) + 1 for name, (_, way) in lines.items()}
assert turns == {
    "dense": 25,
    "momentum in the optimizer": 31,
    "momentum correction": 24,
    "and masking": 24,
}
study.curves(
    lines,
    xlabel="step",
    ylabel="how far the weight has come",
    title="A gradient that turns after 20 steps",
)

# %% [markdown]
# With momentum in the optimizer the weight turns last, in step 31: each arrival is repeated for ten steps and more.
#
# - **Momentum correction**: each rank keeps velocity, u ← 0.9u + g and v ← v + u, and sends v. What arrives is
#   what dense momentum would have moved by then. The optimizer has no momentum.
# - **Momentum factor masking**: where v was sent, u becomes 0 as well. Velocity of long ago pushes no more. The price:
#   the weight never gets as fast.
#
# ## Build it
#
# The weights of a network and its gradients are one vector each, as in lesson 13. A `way` makes a function that
# turns a gradient into what the weights move by. First the dense one, the oracle:


# %%
def flatten(net):
    """All weights in one vector, all gradients in another."""
    params = list(net.parameters())
    w = torch.cat([p.detach().flatten() for p in params])
    g, sizes = torch.zeros_like(w), [p.numel() for p in params]
    for p, a, b in zip(params, w.split(sizes), g.split(sizes)):
        p.data, p.grad = a.view_as(p), b.view_as(p)
    return w, g


def dense(comm, N):
    u = torch.zeros(N, dtype=torch.float64)
    return lambda g, epoch: u.mul_(0.9).add_(all_reduce_(comm, g.clone(), "mean"))


# %%
task, network = digits(), partial(mlp, [64, 48, 10], dtype=torch.float64)


def train(comm, way, seed=0, epochs=8, make=network, rate=0.1):
    net, sampler = make(seed), Sampler(len(task.x), 96, comm, seed=seed)
    w, g = flatten(net)
    step = way(comm, len(w))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for mine in sampler:
            g.zero_()
            cross_entropy(net(task.x[mine]), task.y[mine]).backward()
            w.sub_(rate * step(g, epoch))
    return cross_entropy(net(task.test_x), task.test_y).item()


# %% [markdown]
# A sparse vector is k values and their k places. An all-reduce cannot add such vectors: every rank chose other places.
# So they are **gathered**, one message with both, and each rank adds up all n.
#
# Two parts more:
#
# - **Local gradient clipping.** Clipping needs the norm of the *sum*, which nobody has. n independent gradients of norm
#   x have a sum of norm about √n·x, so each rank clips its own to limit/√n, *before* it is added to what waits.
# - **Warm-up.** In the first epochs weights change quickly, and what waits is soon out of date. So more numbers travel
#   then: 25 % in the first epoch, and a quarter of that in each that follows, until few enough.


# %%
def summed(comm, values, places, N):
    """The sum of all ranks' sparse vectors, dense."""
    total = torch.zeros(N, dtype=values.dtype)
    # (n, 2, k)
    for some, where in all_gather(comm, torch.stack([values, places.to(values)])[None]):
        total.index_add_(0, where.long(), some)
    return total


# %%
def clipped(g, limit, n):
    return g if limit is None else g * min(1.0, limit / n**0.5 / (float(g.norm()) + 1e-9))


ALL = dict(sparsity=0.99, warm_up=(0.75,), limit=None, keep=True, correct=True, mask=True)


def dgc(comm, N, **parts):
    own = ALL | parts
    u, v, velocity = (torch.zeros(N, dtype=torch.float64) for _ in range(3))
    return partial(dgc_step, comm, own, u, v, velocity)


# %%
def dgc_step(comm, own, u, v, velocity, g, epoch):
    g = clipped(g / comm.size, own["limit"], comm.size)
    v.add_(u.mul_(0.9).add_(g) if own["correct"] else g)
    sparsity = (*own["warm_up"], own["sparsity"])[min(epoch, len(own["warm_up"]))]
    places = v.abs().topk(len(v) - int(sparsity * len(v))).indices
    total = summed(comm, v[places], places, len(v))
    v[places if own["keep"] else slice(None)] = 0
    if own["mask"]:
        u[places] = 0
    return total if own["correct"] else velocity.mul_(0.9).add_(total)


# %% [markdown]
# ## Is it right?
#
# If everything is sent and nothing masked, it *is* momentum SGD. And on a model of one matrix the library's `DGC`,
# which chooses in each tensor by itself, must do the same as ours, on any number of ranks.


# %%
def by_library(comm, way, make=network, epochs=2):
    """After each epoch seconds and the loss on the test set. way: gives a model, an optimizer, a compression."""
    net = make(0)
    sampler = Sampler(len(task.x), 96, comm)
    seen = []
    model, optimizer, compression = way(comm, net)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        if isinstance(compression, DGC):
            compression.set_epoch(epoch)
        for mine in sampler:
            optimizer.zero_grad()
            cross_entropy(model(task.x[mine]), task.y[mine]).backward()
            optimizer.step()
        seen.append((comm.now(), cross_entropy(net(task.test_x), task.test_y).item()))
    return seen


# %%
def one_matrix(seed):
    torch.manual_seed(seed)
    return nn.Linear(64, 10, bias=False, dtype=torch.float64)


def compressed(comm, net, compression, momentum=0.9):
    model = DataParallel(net, comm, compression=compression)
    return model, torch.optim.SGD(net.parameters(), 0.1, momentum), compression


by_dgc = partial(compressed, compression=DGC(0.99, warm_up=(0.75,), small=0), momentum=0.0)

# %%
ours, run = partial(train, make=one_matrix, epochs=2), lambda *program: World(3).run(*program)[0]
one = run(ours, dense) - run(ours, partial(dgc, sparsity=0.0, warm_up=(), mask=False))
other = run(by_library, by_dgc, one_matrix)[-1][1] - run(ours, dgc)
assert abs(one) < 1e-10 and abs(other) < 1e-10
study.table(
    [("all sent − dense", "below 1e-10"), ("ours − library", "below 1e-10")],
    ["difference", "3 ranks"],
    title="Losses after two epochs: differences",
)

# %% [markdown]
# ## Each part switched off
#
# 3,610 weights, two ranks. 25 % travel in the first epoch, then 1 %: 36 numbers in a step. Two seeds each.
# **Predict** which part is missed most, and how many bytes dense sends for each of DGC.


# %%
@cache
def runs(name, **setting):
    way = dense if name == "dense" else partial(dgc, **OFF[name])
    return [World(2).run(train, way, seed, **setting) for seed in (0, 1)]


def losses(names, **setting):
    found = {name: runs(name, **setting) for name in names}
    return {
        f"{name}, seed {seed}": round(run[0], 2)
        for name, some in found.items()
        for seed, run in enumerate(some)
    }


OFF = {
    "DGC": {},
    "no masking": dict(mask=False),
    "no momentum correction": dict(correct=False),
    "nothing kept": dict(keep=False),
}

# %%
few = losses(["dense", *OFF])
assert max(list(few.values())[:4]) < 0.2 < min(list(few.values())[4:])
display(study.bars(few, title="Loss on the test set after 8 epochs"))
rows = [
    (name, runs(name)[0].trace.bytes_sent(0), runs(name)[0].trace.messages(0))
    for name in ("dense", "DGC")
]
assert 12 < rows[0][1] / rows[1][1] < 13
study.table(rows, ["", "bytes of rank 0", "messages"], title="112 steps")

# %% [markdown]
# A twelfth of the bytes, four fifths of them in the first epoch, and 1.7 times the loss of dense after so short a run.
# With any part missing the loss is above the worst of DGC. In full size (1.1 million weights, 99.9 %, five seeds)
# `make proof NAME=talk-less` checks that its accuracy is within half a point of dense's.
#
# **Warm-up** is seen where little travels at a high rate: 0.1 %, 4 numbers in a step. With it, 25 % in the first epoch,
# then 6.25 %, 1.6 % and 0.4 %, as in the paper.
#
# **Clipping** needs another task. A recurrent network reads an image row by row; its gradients pass through the same
# matrix eight times and sometimes explode. One such gradient would lie in v for many steps.

# %%
OFF |= {
    "warm-up": dict(sparsity=0.999, warm_up=(0.75, 0.9375, 0.984375, 0.996)),
    "no warm-up": dict(sparsity=0.999, warm_up=()),
}
few = losses(["warm-up", "no warm-up"], epochs=5, rate=0.2)
assert 2 * max(list(few.values())[:2]) < min(list(few.values())[2:])
study.bars(few, title="Loss on the test set after 5 epochs, at a rate of 0.2")


# %%
class Rows(nn.Module):
    def __init__(self, seed, hidden=32):
        super().__init__()
        draw = partial(
            torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        self.x, self.h = (
            nn.Parameter(draw(8, hidden) / 3),
            nn.Parameter(2 * draw(hidden, hidden) / hidden**0.5),
        )
        self.out = nn.Parameter(draw(hidden, 10) / hidden**0.5)

    def forward(self, x):
        h = 0 * x[:, :1] @ self.h[:1]
        for row in x.view(-1, 8, 8).unbind(1):
            h = torch.tanh(row @ self.x + h @ self.h)
        return h @ self.out


# %%
def reads(limit, seed):
    return World(2).run(train, partial(dgc, limit=limit), seed, epochs=4, make=Rows, rate=0.15)[0]


clip = {
    f"{name}, seed {s}": round(reads(limit, s), 2)
    for name, limit in (("clipped to 1/√2", 1.0), ("not clipped", None))
    for s in (0, 1)
}
assert max(list(clip.values())[:2]) < min(list(clip.values())[2:])
study.bars(clip, title="Loss of a network that reads rows, by DGC")

# %% [markdown]
# ## Others: 16 bits, one bit, two thin matrices
#
# *Half* rounds to fp16, and keeps nothing. *Sign* sends one bit a number and a mean size, and keeps the error.
# *PowerSGD* sends a matrix M as P·Qᵀ, two thin ones: P = MQ, made orthonormal, and then Q = MᵀP. Both are linear in M,
# so they can be all-reduced. Q starts from the last step:


# %%
def power(comm, M, rank, steps):
    """How far P·Qᵀ is from the mean of all ranks' matrices, after each step."""
    random = torch.Generator().manual_seed(0)
    Q = torch.randn(M.shape[1], rank, generator=random).double()
    mean = all_reduce_(comm, M.clone(), "mean")
    errors = []
    for _ in range(steps):
        P = all_reduce_(comm, M @ torch.linalg.qr(Q).Q, "mean")
        P = torch.linalg.qr(P).Q
        Q = all_reduce_(comm, M.T @ P, "mean")  # rank·(a + b) numbers in place of a·b
        errors.append(float((P @ Q.T - mean).norm() / mean.norm()))
    return errors


# %%
def gradient_matrix(comm, rank, steps=6):
    net, mine = network(0), next(iter(Sampler(len(task.x), 64, comm)))
    cross_entropy(net(task.x[mine]), task.y[mine]).backward()
    return power(comm, net[0].weight.grad, rank, steps)


errors = {f"rank {r}": (range(1, 7), World(2).run(gradient_matrix, r)[0]) for r in (1, 2, 4, 8)}
assert errors["rank 8"][1][-1] < 0.2 and all(some[-1] < some[0] for _, some in errors.values())
study.curves(
    errors,
    xlabel="step",
    ylabel="share that is missed",
    title="A gradient of 48 × 64, as two thin matrices",
)

# %% [markdown]
# Rank 8 of 48 misses 16 %, and two or three steps find its matrices. What is missed is kept, and added to the next
# gradient.
#
# ## Predict the bytes, then run
#
# The 1.1 million weights of the beginning, in fp32. A value has 4 bytes. A place need not have 8: the library sends the
# last 16 bits of each, and 8 bytes for each block of 65,536. So 6 bytes for each of k = N/1,000 numbers, to n − 1
# others. An all-reduce sends 2(n−1)/n · 4N. **Predict**: from how many ranks on does DGC at 75 %, in its first epoch,
# send *more* than dense?

# %%
from minidist.study.predict import (
    dense_bytes,
    dgc_bytes,
    half_bytes,
    powersgd_bytes,
    sign_bytes,
)

WIDTHS = [64, 1024, 1024, 10]
SHAPES = [p.shape for p in mlp(WIDTHS, device="meta").parameters()]
WAYS = {
    "dense": (None, dense_bytes),
    "fp16": (Half(), half_bytes),
    "Sign": (Sign(), sign_bytes),
    "DGC, 75 %": (DGC(0.75, warm_up=()), partial(dgc_bytes, sparsity=0.75)),
    "PowerSGD, rank 2": (PowerSGD(2), partial(powersgd_bytes, rank=2)),
    "DGC, 99.9 %": (DGC(warm_up=()), dgc_bytes),
}
ns = [2, 4, 8, 16, 32, 64, 128]
said = {name: (ns, [formula(SHAPES, n) // n for n in ns]) for name, (_, formula) in WAYS.items()}


# %%
def some_steps(comm, compression):
    """When the last begins: buckets are laid out anew after the first."""
    model = DataParallel(
        mlp(WIDTHS, device="meta"), comm, first_bucket_bytes=8 << 20, compression=compression
    )
    for _ in range(2):
        start = comm.now()
        model(torch.empty(8, 64, device="meta")).sum().backward()
    return start


def counted(n, compression):
    world = World(n, device="meta")
    starts = world.run(some_steps, compression)
    return sum(m.nbytes for m in world.trace if m.start >= starts[m.src]) // n


# %%
seen = {
    name: (ns[:2], [counted(n, compression) for n in ns[:2]])
    for name, (compression, _) in WAYS.items()
}
assert all(seen[name][1] == said[name][1][:2] for name in WAYS)
display(
    study.curves(
        said,
        points=seen,
        logx=True,
        logy=True,
        yunit="B",
        xlabel="ranks",
        ylabel="a rank sends in a step",
        title="What is gathered grows with n; what is reduced does not",
    )
)
ratio = dense_bytes(SHAPES, 2) / dgc_bytes(SHAPES, 2)
crossing = next(n for n in range(2, 99) if dgc_bytes(SHAPES, n, 0.75) > dense_bytes(SHAPES, n))
assert ratio > 400 and crossing == 6
study.bars(
    {"your guess": guess, "DGC after its warm-up": 1}, title="Of 1,000 numbers, so many travel"
)

# %% [markdown]
# At n = 2 a step sends less than 1/400 of dense. At 75 %, from 6 ranks on, more than dense: in the first epoch DGC
# saves nothing on many ranks.
#
# ## Local SGD: fewer times, not fewer numbers
#
# Take H steps alone; then average the *weights*. 1/H of the messages and of the bytes. The hard case first: each rank
# has images of three or four classes only. Naive, and already right:

# %%
ORDER = task.y.argsort(stable=True)


def batches(comm, seed, steps, own_classes):
    """Samples of this rank: of all classes, or of its own few."""
    order = ORDER if own_classes else torch.arange(len(task.y))
    mine = order.tensor_split(comm.size)[comm.rank]
    random = torch.Generator().manual_seed(seed * comm.size + comm.rank)
    return [mine[torch.randint(len(mine), (16,), generator=random)] for _ in range(steps)]


small = partial(mlp, [64, 32, 10], dtype=torch.float64)


# %%
def local(comm, H, steps=64):
    net = small(0)
    u = 0
    seen = []
    w, g = flatten(net)
    for t, mine in enumerate(batches(comm, 0, steps, True), 1):
        g.zero_()
        cross_entropy(net(task.x[mine]), task.y[mine]).backward()
        u = 0.9 * u + g
        w.sub_(0.1 * u)
        seen.append(w.clone())
        if t % H == 0:
            all_reduce_(comm, w, "mean")
    return seen


# %%
def apart(H):
    ranks = World(3).run(local, H)
    return [float((ranks[1][t] - ranks[0][t]).norm()) for t in range(64)]


study.curves(
    {f"H = {H}": (range(1, 65), apart(H)) for H in (2, 8, 32)},
    xlabel="step",
    ylabel="distance between ranks 0 and 1",
    title="Apart, and together again",
)

# %% [markdown]
# The library: `LocalSGD(optimizer, comm, H)`. **Post-local** SGD is data parallel for the first `start` steps.
# **Adaptive**, `AdaComm(H₀, steps)`, looks at the loss F after each interval of so many steps, and takes
# H = ⌈√(F/F₀)·H₀⌉; where that is not below the last H, half of the last. **Predict** the loss for H = 1 to 32.

# %%
from minidist.parallel.local_sgd import AdaComm, LocalSGD
from minidist.study.predict import local_sgd_bytes


def learned(comm, H, start=0, own_classes=True, steps=96, kind=LocalSGD):
    """The loss on the test set, how often each class is said there, and the adaptive periods."""
    net, H = small(0), AdaComm(*H) if isinstance(H, tuple) else H
    optimizer = kind(torch.optim.SGD(net.parameters(), 0.1, 0.9), comm, H, start=start)
    for mine in batches(comm, 0, steps, own_classes):
        optimizer.zero_grad()
        loss = cross_entropy(net(task.x[mine]), task.y[mine])
        loss.backward()
        optimizer.step(loss=loss)
    optimizer.average()
    says = net(task.test_x)
    return (
        cross_entropy(says, task.test_y).item(),
        says.argmax(1).bincount(minlength=10).tolist(),
        H,
    )


# %%
fixed = {H: World(3).run(learned, H) for H in (1, 4, 16, 32)}
begin = World(3).run(learned, 1, steps=0).trace.bytes_sent()  # rank 0's weights, at the start
assert all(
    run.trace.bytes_sent() - begin == local_sgd_bytes(96, H, 2410, 3, 8) for H, run in fixed.items()
)
loss = {H: run[0][0] for H, run in fixed.items()}
assert loss[4] < 1.5 * loss[1] and loss[16] > 2 * loss[1]
study.bars(
    {f"H = {H}": round(x, 2) for H, x in loss.items()},
    title="Loss on the test set, each rank its own classes",
)

# %% [markdown]
# Up to H = 4 it costs nothing. From 16 on the average of three networks that went their own ways is poor. Now H from
# the loss, for ranks with classes of their own, and for ranks with all of them:


# %%
def stairs(adaptive):
    periods = [(i.step, i.period) for i in adaptive.intervals]
    ends = [*(step for step, _ in periods[1:]), 96]
    return [x for (a, _), b in zip(periods, ends) for x in (a, b)], [
        H for _, H in periods for _ in (0, 1)
    ]


adaptive, other = (
    World(3).run(learned, (16, 16)),
    World(3).run(learned, (32, 16), own_classes=False),
)
moving = {"classes of their own": adaptive[0][2], "all classes": other[0][2]}
assert [i.period for i in adaptive[0][2].intervals[:5]] == [16, 8, 4, 2, 1]
assert [(i.period, round(i.loss, 2)) for i in other[0][2].intervals[:2]] == [(32, 2.32), (18, 0.71)]
study.curves(
    {name: stairs(H) for name, H in moving.items()},
    xlabel="step",
    ylabel="H",
    title="The adaptive H, seen moving",
)

# %%
found = {
    "H = 1": fixed[1],
    "H = 4": fixed[4],
    "H = 16": fixed[16],
    "adaptive from 16": adaptive,
    "H = 16 after 32 steps": World(3).run(learned, 16, start=32),
}
assert found["H = 16"][0][0] > max(run[0][0] for name, run in found.items() if name != "H = 16")
study.table(
    [(name, run.trace.messages(0), round(run[0][0], 2)) for name, run in found.items()],
    ["", "messages of rank 0", "loss"],
    title="96 steps on 3 ranks, classes of their own",
)

# %% [markdown]
# With all classes the root decides: in step 32, ⌈√(0.71/2.32)·32⌉ = 18. With classes of their own H is halved at every
# look. Adaptive and post-local rescue H = 16 with fewer messages than H = 1. H = 4 from the start is better here; but
# who knew? What happens to momentum at an average is a choice: kept (here), `states="reset"` or `"average"`, or a slow
# momentum over the averages (SlowMo).
#
# ## Break it: rank 0's weights, not the average
#
# Somebody broadcasts in place of the average: no message more, the ranks are equal. H = 4. **Predict** how many of the
# 360 test images are taken for a 9.

# %%
from minidist.collectives import broadcast_


class FirstWins(LocalSGD):
    def average(self):
        broadcast_(self.comm, [p.data for group in self.param_groups for p in group["params"]])
        self.since = 0


_, says, _ = World(3).run(learned, 4, kind=FirstWins)[0]
assert sum(says[5:]) == 0
study.bars(
    {f"says {c}": count for c, count in enumerate(says)},
    title="360 test images: what the network says",
)

# %% [markdown]
# No error, equal replicas. It knows the classes of rank 0, and nothing that the others have learned.
#
# ## On a slow link
#
# Everything together, on a virtual clock: `World(2, alpha, beta)`, a message takes 0.1 ms to start, the wire carries
# 1 MB/s. Only messages take time here. Three epochs of 14 steps, and eight for DGC; Local SGD with H = 7. **Predict**
# the order.


# %%
def by_local(comm, net):
    return net, LocalSGD(torch.optim.SGD(net.parameters(), 0.1, 0.9), comm, 7), None


kinds = {"dense": None, "fp16": Half(), "PowerSGD, rank 2": PowerSGD(2)}
by = {name: partial(compressed, compression=c) for name, c in kinds.items()} | {
    "Local SGD": by_local,
    "DGC": by_dgc,
}
seen = {
    name: World(2, alpha=1e-4, beta=1e-6).run(by_library, way, epochs=8 if name == "DGC" else 3)[0]
    for name, way in by.items()
}
last = {name: epochs[-1][0] for name, epochs in seen.items()}
assert last["dense"] > 3 * last["fp16"] > 4 * max(last[name] for name in list(by)[2:])
study.curves(
    {name: tuple(zip(*epochs)) for name, epochs in seen.items()},
    xunit="s",
    xlabel="virtual seconds",
    ylabel="loss on the test set",
    title="Three epochs on a slow link, eight of DGC",
)

# %% [markdown]
# (In float64, so fp16 sends a quarter.) DGC learns least in an epoch, and its first is dear. But each of its later
# epochs takes 10 ms: forty of those last as long as one of dense's.
#
# In a notebook, `launch(…, rate=…)` gives real processes a slow wire, too: what a rank sends leaves at so many bytes a
# second. 16 steps, at 400 kB/s:

# %%
RATE, rows = 4e5, []
real = {H: launch(learned, 2, H, steps=16, rate=RATE) for H in (1, 8)}
for H, run in real.items():
    least = run.trace.bytes_sent(0) / RATE
    assert run.time > 0.9 * least
    rows.append((H, run.trace.messages(0), run.trace.bytes_sent(0), round(least, 2)))
assert real[8].time < real[1].time
study.table(
    rows,
    ["H", "messages of rank 0", "bytes", "seconds on the wire, at least"],
    title="Two processes",
)

# %% [markdown]
# And a link that is really slow? `python -m benchmarks.slow_link` joins two hosts (network namespaces) by a link of
# 100 Mbit/s and trains the 1.1 million weights until a loss of 0.20. Measured on one machine, beside a World's
# prediction:

# %%
rows = [
    ("dense", 20.1, 18.8),
    ("fp16", 10.3, 9.68),
    ("DGC, 99.9 %", 6.47, 6.48),
    ("PowerSGD, rank 2", 1.91, 2.01),
    ("Local SGD, H = 8", 3.00, 3.02),
]
study.table(
    [(name, run, said, round(20.1 / run, 1)) for name, run, said in rows],
    ["", "seconds, measured", "seconds, World", "dense over it"],
    title="python -m benchmarks.slow_link",
)

# %% [markdown]
# DGC needs 112 steps to that loss, the others 48, and its warm-up is dear: in a short run the simple ways win. In a run
# of 90 epochs, four of warm-up do not matter. On your own machines (dense, then DGC, until a loss of 0.2 or 320 steps):
#
# ```
# torchrun --nproc-per-node 2 -m benchmarks.slow_train 0.2 320 dense "DGC 99.9 %"
# ```
#
# ## When not to use it
#
# **On a fast link.** Choosing the largest of N numbers reads them several times, u and v as well. Suppose 30 bytes
# through memory for each weight, on an H100, 3,350 GB/s; dense sends 4 bytes (n = 2). Where do the two lines cross?

# %%
speeds = [10.0**p for p in range(7, 13)]
N = 1_126_410
sent = {
    "dense, on the wire": [4 * N / s for s in speeds],
    "DGC, memory and wire": [30 * N / 3.35e12 + 6e-3 * N / s for s in speeds],
}
equal = 4 * 3.35e12 / 30
assert 4.4e11 < equal < 4.5e11
study.curves(
    {name: (speeds, times) for name, times in sent.items()},
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes a second on the link",
    ylabel="a step's exchange",
    title=f"Equal at {equal / 1e9:.0f} GB/s",
)

# %% [markdown]
# Over NVLink (450 GB/s) nothing is gained. **With many ranks**: 0.75·n·(1 − sparsity) is DGC's part of dense; at
# 99.9 % that is 1 at n = 1,333, and in the first epoch of warm-up at n = 6. **When backward hides the messages**
# (lesson 06): saving what nobody waits for saves nothing. And each of these changes the result: dense does not.
#
# ## Takeaways
#
# - Send the largest, keep the rest: nothing is lost, it comes later.
# - With momentum: keep velocities (correction), forget those that were sent (masking), clip before keeping (limit/√n),
#   and begin gently (warm-up). Each part can be seen to matter.
# - Sparse vectors are gathered: bytes grow with n. PowerSGD and fp16 are all-reduced: they do not.
# - Local SGD: 1/H of messages and bytes. Ranks with different data need a small H. Post-local begins dense; adaptive
#   begins long and shortens H as the loss falls.
# - Count bytes, and look at the loss. Either alone says nothing.
#
# ## Further reading
#
# - paper:lin2018 Section 3, Algorithms 4 and 5.
# - paper:vogels2019 Algorithms 1 and 2.
# - paper:karimireddy2019
# - paper:stich2019
# - paper:lin2020 Post-local SGD.
# - paper:wang2019 AdaComm, section 4.
# - paper:wang2020
