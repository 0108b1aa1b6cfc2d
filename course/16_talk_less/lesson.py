# %% [markdown]
# # 16 · Talk less
#
# Two machines train a network of 1.1 million weights, 4.5 MB of gradients in fp32. Between them is a link of
# 100 Mbit/s, 12.5 MB a second. A step computes for some 15 ms. Its all-reduce takes 360 ms.
# **Of 1,000 numbers in a gradient, how many must travel?** The network shall still learn.

# %%
guess = 500  # of 1,000: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Each rank sends the largest of its six numbers (by size, whatever its sign), and keeps the other five.
# The sum of what was sent is the step.

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
from minidist.tasks import digits

GRADIENTS = torch.tensor([[5.0, 0, -3, 1, 0, 2], [0, 1, -4, 0, 3, 2], [1, 0, -1, 0, 6, 2]])

def largest(comm, keeps, steps=4):
    """What moves the weights in each step, if the gradient stays the same."""
    v, rows = torch.zeros(6), []
    for _ in range(steps):
        v = GRADIENTS[comm.rank] + (v if keeps else 0)
        sent = torch.where(v.abs() == v.abs().max(), v, 0)
        v = v - sent
        rows.append(all_reduce_(comm, sent.clone()))
    return rows

# %%
for words, keeps in (("dropped", False), ("kept", True)):
    steps = World(3).run(largest, keeps)[0]
    rows = [(f"step {t}", *map(int, row)) for t, row in enumerate(steps, 1)]
    display(study.table([*rows, ("in all", *map(int, sum(steps)))], ["", *(f"g{i}" for i in range(6))],
                        title=f"The rest is {words}. Dense would be 4 · {[int(x) for x in GRADIENTS.sum(0)]}"))

# %% [markdown]
# Dropped: g5 has a gradient of 2 on every rank, 6 in all, and never moves. Kept: it comes later. **Nothing is lost, it
# only waits.** That is the first half of deep gradient compression (DGC). The second half is momentum.
#
# ## Momentum, for one weight
#
# SGD's momentum is a velocity u ← 0.9u + g. A weight has a gradient of +1 for 20 steps, then of −1. It is among the
# largest in every eighth step only. **Predict**: if what was kept arrives and the *optimizer* has the momentum, when
# does the weight turn around?

# %%
def moved(every, correct, mask, m=0.9):
    u = v = velocity = way = 0.0
    seen = []
    for t in range(1, 49):
        g = 1.0 if t <= 20 else -1.0
        u = m * u + g
        v += u if correct else g
        sent, v = (v, 0.0) if t % every == 0 else (0.0, v)
        u = 0.0 if mask and t % every == 0 else u
        velocity = m * velocity + sent
        way += sent if correct else velocity
        seen.append(way)
    return range(1, 49), seen

# %%
lines = {"dense": moved(1, False, False), "momentum in the optimizer": moved(8, False, False),
         "momentum correction": moved(8, True, False), "and masking": moved(8, True, True)}
turns = {name: way.index(max(way)) + 1 for name, (_, way) in lines.items()}
assert turns == {"dense": 25, "momentum in the optimizer": 31, "momentum correction": 24, "and masking": 24}
study.curves(lines, xlabel="step", ylabel="how far the weight has come", title="A gradient that turns after 20 steps")

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
# The weights of a network and its gradients are one vector each, as in lesson 10. A `way` makes a function that
# turns a gradient into what the weights move by. First the dense one, the oracle:

# %%
from minidist.parallel.data import DataParallel, Sampler

task = digits()

def flatten(net):
    """All weights in one vector, all gradients in another."""
    params = list(net.parameters())
    w = torch.cat([p.detach().flatten() for p in params])
    g, sizes = torch.zeros_like(w), [p.numel() for p in params]
    for p, a, b in zip(params, w.split(sizes), g.split(sizes)):
        p.data, p.grad = a.view_as(p), b.view_as(p)
    return w, g

# %%
def dense(comm, N):
    u = torch.zeros(N, dtype=torch.float64)
    return lambda g, epoch: u.mul_(0.9).add_(all_reduce_(comm, g.clone(), "mean"))

def network(seed=0):
    return mlp([64, 48, 10], seed, torch.float64)

def train(comm, way, seed=0, epochs=6, make=network, rate=0.1, batch=64):
    net = make(seed=seed)
    (w, g), sampler = flatten(net), Sampler(len(task.x), batch, comm, seed=seed)
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

# %%
def summed(comm, values, places, N):
    """The sum of all ranks' sparse vectors, dense."""
    total = torch.zeros(N, dtype=values.dtype)
    for some, where in all_gather(comm, torch.stack([values, places.to(values)])[None]):  # (n, 2, k)
        total.index_add_(0, where.long(), some)
    return total

# %% [markdown]
# Two parts more:
#
# - **Local gradient clipping.** Clipping needs the norm of the *sum*, which nobody has. n independent gradients of norm
#   x have a sum of norm about √n·x, so each rank clips its own to limit/√n, *before* it is added to what waits.
# - **Warm-up.** In the first epochs weights change quickly, and what waits is soon out of date. So 75 % are held back
#   in the first epoch, then 93.75 %, 98.4 %, 99.6 %.

# %%
def clipped(g, limit, n):
    return g if limit is None else g * min(1.0, limit / n**0.5 / (float(g.norm()) + 1e-9))

WARM_UP = (0.75, 0.9375, 0.984375, 0.996)
ALL = dict(sparsity=0.998, warm_up=WARM_UP, limit=None, keep=True, correct=True, mask=True)

def dgc(comm, N, **parts):
    own = ALL | parts
    u, v, velocity = (torch.zeros(N, dtype=torch.float64) for _ in range(3))
    return partial(dgc_step, comm, own, u, v, velocity)

# %%
def dgc_step(comm, own, u, v, velocity, g, epoch):
    g = clipped(g / comm.size, own["limit"], comm.size)
    v.add_(u.mul_(0.9).add_(g) if own["correct"] else g)
    sparsity = (*own["warm_up"], own["sparsity"])[min(epoch, len(own["warm_up"]))]
    places = v.abs().topk(max(1, round((1 - sparsity) * len(v)))).indices
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
from minidist.train.compress import DGC, Half, PowerSGD, Sign

def one_matrix(seed):
    return nn.Sequential(nn.Linear(64, 10, bias=False)).double()

def by_library(comm, epochs=3, batch=60):
    torch.manual_seed(0)
    net, sampler = one_matrix(0), Sampler(len(task.x), batch, comm)
    model = DataParallel(net, comm, compression=DGC(0.99, warm_up=(0.75, 0.9), small=0))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch), model.compression.set_epoch(epoch)
        for mine in sampler:
            optimizer.zero_grad()
            cross_entropy(model(task.x[mine]), task.y[mine]).backward()
            optimizer.step()
    return cross_entropy(net(task.test_x), task.test_y).item()

# %%
def ours(comm, way, **parts):
    torch.manual_seed(0)
    return train(comm, partial(way, **parts), epochs=3, make=one_matrix, batch=60)

rows = []
for n in (1, 2, 3):
    run = lambda *args, n=n, **parts: World(n).run(*args, **parts)[0]
    one = run(ours, dense) - run(ours, dgc, sparsity=0.0, warm_up=(), mask=False)
    other = run(by_library) - run(ours, dgc, sparsity=0.99, warm_up=(0.75, 0.9))
    assert abs(one) < 1e-10 and abs(other) < 1e-10
    rows.append((n, "below 1e-10", "below 1e-10"))
study.table(rows, ["ranks", "all sent − dense", "ours − library"], title="Losses after three epochs: differences")

# %% [markdown]
# ## Each part switched off
#
# 3,610 weights, two ranks. At the end 7 of them travel in a step. Three seeds each. **Predict** which part is missed
# most. First at a rate of 0.15, where momentum makes weights fast:

# %%
@cache
def losses(name, rate, epochs):
    way = dense if name == "dense" else partial(dgc, **OFF[name])
    return [World(2).run(train, way, seed, epochs, rate=rate)[0] for seed in range(3)]

def compared(names, *setting):
    found = {name: losses(name, *setting) for name in names}
    return found, {f"{name}, seed {seed}": loss for name, some in found.items() for seed, loss in enumerate(some)}

OFF = {"DGC": {}, "no masking": dict(mask=False), "no momentum correction": dict(correct=False),
       "no warm-up": dict(warm_up=()), "nothing kept": dict(keep=False)}
found, rows = compared(["dense", *list(OFF)[:3]], 0.15, 8)
assert all(min(found[name]) > max(found["DGC"]) > max(found["dense"]) for name in list(OFF)[1:3])
study.bars(rows, title="Loss on the test set, a rate of 0.15, 8 epochs")

# %%
found, rows = compared(["DGC", *list(OFF)[3:]], 0.1, 6)
assert min(found["nothing kept"]) > max(found["DGC"]) and sum(found["no warm-up"]) > 1.2 * sum(found["DGC"])
study.bars(rows, title="Loss on the test set, a rate of 0.1, 6 epochs")

# %% [markdown]
# Without masking or correction, every seed is worse than the worst of DGC. Warm-up shows in the mean only. And to be
# honest: *plain* top-k after the same warm-up, nothing kept and momentum in the optimizer, does well here, too: digits
# are learned by then.
#
# None of these short runs is as good as dense. In 14 epochs, at a rate of 0.05, what waits has time to arrive.
# **Predict** both numbers of DGC:

# %%
long = {name: World(2).run(train, way, 0, 14, rate=0.05) for name, way in (("dense", dense), ("DGC", dgc))}
assert long["DGC"][0] < 0.2 and 15 * long["DGC"].trace.bytes_sent() < long["dense"].trace.bytes_sent()
study.table([(name, run.trace.bytes_sent(0), round(run[0], 2)) for name, run in long.items()],
            ["", "bytes of rank 0 in 14 epochs", "loss on the test set"], title="Traffic counted, loss nearly kept")

# %% [markdown]
# A twentieth of the bytes, most of them in the warm-up, and nearly the loss. In full size (1.1 million weights, 99.9 %,
# five seeds) `make proof NAME=talk-less` asks for half a point of accuracy.
#
# Clipping needs another task. A recurrent network reads an image row by row; its gradients pass through the same matrix
# eight times and sometimes explode. One such gradient would lie in v for many steps.

# %%
class Rows(nn.Module):
    def __init__(self, seed, hidden=32):
        super().__init__()
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.x, self.h = nn.Parameter(draw(8, hidden) / 3), nn.Parameter(2 * draw(hidden, hidden) / hidden**0.5)
        self.out = nn.Parameter(draw(hidden, 10) / hidden**0.5)

    def forward(self, x):
        h = 0 * x[:, :1] @ self.h[:1]
        for row in x.view(-1, 8, 8).unbind(1):
            h = torch.tanh(row @ self.x + h @ self.h)
        return h @ self.out

# %%
def reads(limit, seed):
    way = partial(dgc, sparsity=0.98, warm_up=(0.75, 0.9375), limit=limit)
    return World(2).run(train, way, seed, epochs=5, make=Rows)[0]

clip = {f"{name}, seed {s}": reads(limit, s) for name, limit in (("clipped to 1/√2", 1.0), ("not clipped", None))
        for s in (0, 1)}
assert max(list(clip.values())[:2]) < min(list(clip.values())[2:])
study.bars(clip, title="Loss of a network that reads rows, by DGC")

# %% [markdown]
# ## Predict the bytes, then run
#
# 1.1 million weights in fp32. A value has 4 bytes. A place need not have 8: the library's `coding` sends the last 16
# bits of each, and 8 bytes for each block of 65,536. So 6 bytes for each of k = N/1,000 numbers, to n − 1 others. An
# all-reduce sends 2(n−1)/n · 4N. **Predict**: from how many ranks on does 75 % sparsity send *more* than dense?

# %%
from minidist.train.compress.cost import dense_bytes, dgc_bytes, half_bytes, powersgd_bytes, sign_bytes

WIDTHS = [64, 1024, 1024, 10]
SHAPES = [p.shape for p in mlp(WIDTHS, device="meta").parameters()]
WAYS = {"dense": (lambda: None, dense_bytes), "fp16": (Half, half_bytes), "Sign": (Sign, sign_bytes),
        "DGC, 75 %": (lambda: DGC(0.75, warm_up=()), partial(dgc_bytes, sparsity=0.75)),
        "PowerSGD, rank 2": (lambda: PowerSGD(2), partial(powersgd_bytes, rank=2)),
        "DGC, 99.9 %": (lambda: DGC(warm_up=()), dgc_bytes)}

def some_steps(comm, make):
    """When the last begins: buckets are laid out anew after the first."""
    model = DataParallel(mlp(WIDTHS, device="meta"), comm, first_bucket_bytes=8 << 20, compression=make())
    for _ in range(3):
        start = comm.now()
        model(torch.empty(8, 64, device="meta")).sum().backward()
    return start

# %%
def counted(make, n):
    world = World(n, device="meta")
    starts = world.run(some_steps, make)
    return sum(m.nbytes for m in world.trace if m.start >= starts[m.src]) // n

ns, few = [2, 4, 8, 16, 32, 64, 128], [2, 4]
said = {name: (ns, [formula(SHAPES, n) // n for n in ns]) for name, (_, formula) in WAYS.items()}
runs = {name: (few, [counted(make, n) for n in few]) for name, (make, _) in WAYS.items()}
assert all(runs[name][1] == said[name][1][:2] for name in WAYS)
study.curves(said, points=runs, logx=True, logy=True, yunit="B", xlabel="ranks", ylabel="a rank sends in a step",
             title="What is gathered grows with n; what is reduced does not")

# %%
ratio = dense_bytes(SHAPES, 2) / dgc_bytes(SHAPES, 2)
crossing = next(n for n in range(2, 99) if dgc_bytes(SHAPES, n, 0.75) > dense_bytes(SHAPES, n))
assert ratio > 400 and crossing == 6
study.bars({"your guess": guess, "DGC after its warm-up": 1}, title="Of 1,000 numbers, so many travel")

# %% [markdown]
# At n = 2 a step sends less than 1/400 of dense. At 75 %, from 6 ranks on, more than dense: in the warm-up DGC saves
# nothing on many ranks.
#
# ## Others: 16 bits, one bit, two thin matrices
#
# *Half* rounds to fp16, and keeps nothing. *Sign* sends one bit a number and a mean size, and keeps the error.
# *PowerSGD* sends a matrix as P·Qᵀ, two thin ones. Both steps are linear, so they can be all-reduced. Q starts from
# the last step:

# %%
def power(comm, M, rank, steps):
    """How far P·Qᵀ is from the mean of all ranks' matrices, after each step."""
    random = torch.Generator().manual_seed(0)
    Q, mean, errors = torch.randn(M.shape[1], rank, generator=random).double(), all_reduce_(comm, M.clone(), "mean"), []
    for _ in range(steps):
        P = all_reduce_(comm, M @ torch.linalg.qr(Q).Q, "mean")
        P = torch.linalg.qr(P).Q
        Q = all_reduce_(comm, M.T @ P, "mean")  # rank·(a + b) numbers in place of a·b
        errors.append(float((P @ Q.T - mean).norm() / mean.norm()))
    return errors

# %%
def gradient_matrix(comm, rank, steps=6):
    net, mine = network(), next(iter(Sampler(len(task.x), 64, comm)))
    cross_entropy(net(task.x[mine]), task.y[mine]).backward()
    return power(comm, net[0].weight.grad, rank, steps)

errors = {f"rank {r}": (range(1, 7), World(2).run(gradient_matrix, r)[0]) for r in (1, 2, 4, 8)}
assert errors["rank 8"][1][-1] < 0.2 and all(some[-1] < some[0] for _, some in errors.values())
study.curves(errors, xlabel="step", ylabel="share that is missed", title="A gradient of 48 × 64, as two thin matrices")

# %% [markdown]
# Rank 8 of 48 misses 16 %, and two or three steps find its matrices. What is missed is kept, and added to the next
# gradient.
#
# ## Local SGD: fewer times, not fewer numbers
#
# Take H steps alone; then average the *weights*. 1/H of the messages and of the bytes. Naive, and already right:

# %%
ORDER = task.y.argsort(stable=True)

def batches(comm, seed, steps, own_classes):
    """Samples of this rank: of all classes, or of its own few."""
    order = ORDER if own_classes else torch.arange(len(task.y))
    mine = order.tensor_split(comm.size)[comm.rank]
    random = torch.Generator().manual_seed(seed * comm.size + comm.rank)
    return [mine[torch.randint(len(mine), (16,), generator=random)] for _ in range(steps)]

def local(comm, H, steps=64):
    net, seen = mlp([64, 32, 10], dtype=torch.float64), []
    (w, g), u = flatten(net), 0
    for t, mine in enumerate(batches(comm, 0, steps, True), 1):
        g.zero_()
        cross_entropy(net(task.x[mine]), task.y[mine]).backward()
        w.sub_(0.1 * (u := 0.9 * u + g))
        seen.append(w.clone())
        if t % H == 0:
            all_reduce_(comm, w, "mean")
    return seen

# %%
def apart(H):
    ranks = World(3).run(local, H)
    return [float((ranks[1][t] - ranks[0][t]).norm()) for t in range(64)]

study.curves({f"H = {H}": (range(1, 65), apart(H)) for H in (2, 8, 32)}, xlabel="step",
             ylabel="distance between ranks 0 and 1", title="Apart, and together again")

# %% [markdown]
# Each rank has images of three or four classes only: the hard case. **Predict** the loss for H = 1 to 32. With the
# library: `LocalSGD(optimizer, comm, H)`. **Post-local** SGD is data parallel for the first `start` steps.
# **Adaptive**, `AdaComm`, begins each interval with H = ⌈√(F/F₀)·H₀⌉, F the loss there; if that is no less, half of it.

# %%
from minidist.train.local_sgd import AdaComm, LocalSGD, run_bytes

def learned(comm, H, seed=0, start=0, own_classes=True, steps=96):
    net = mlp([64, 32, 10], seed=seed, dtype=torch.float64)
    H = AdaComm(*H) if isinstance(H, tuple) else H
    optimizer = LocalSGD(torch.optim.SGD(net.parameters(), 0.1, 0.9), comm, H, start=start)
    for mine in batches(comm, seed, steps, own_classes):
        optimizer.zero_grad()
        loss = cross_entropy(net(task.x[mine]), task.y[mine])
        loss.backward()
        optimizer.step(loss=loss)
    optimizer.average()
    periods = [(i.step, i.period) for i in H.intervals] if isinstance(H, AdaComm) else []
    return cross_entropy(net(task.test_x), task.test_y).item(), periods

# %%
runs = {H: World(3).run(learned, H) for H in (1, 2, 4, 8, 16, 32)}
begin = World(3).run(learned, 1, steps=0).trace.bytes_sent()  # rank 0's weights, at the start
for H, run in runs.items():
    assert run.trace.bytes_sent() - begin == run_bytes(96, H, 2410, 3, 8)
loss = {H: run[0][0] for H, run in runs.items()}
assert loss[4] < 1.5 * loss[1] and loss[16] > 2 * loss[1]
study.curves({"Local SGD": (list(loss), list(loss.values()))}, logx=True, xlabel="H", ylabel="loss on the test set",
             title="Local SGD on ranks with classes of their own")

# %% [markdown]
# Up to H = 4 it costs nothing. From 16 on the average of three networks that went their own ways is poor. Now H from
# the loss, for ranks with classes of their own, and for ranks with all of them:

# %%
def stairs(periods):
    ends = [*(step for step, _ in periods[1:]), 96]
    return [x for (a, _), b in zip(periods, ends) for x in (a, b)], [H for _, H in periods for _ in (0, 1)]

adaptive = {"classes of their own": World(3).run(learned, (16, 16))[0],
            "all classes": World(3).run(learned, (32, 16), own_classes=False)[0]}
assert all(some[0][1] > some[1][1] > some[2][1] for _, some in adaptive.values())
study.curves({name: stairs(periods) for name, (_, periods) in adaptive.items()}, xlabel="step", ylabel="H",
             title="The adaptive H, seen moving")

# %%
ways = {"H = 1": (1, 0), "H = 16": (16, 0), "H = 16 after 32 steps": (16, 32), "adaptive from 16": ((16, 16), 0)}
found = {name: World(3).run(learned, H, start=start) for name, (H, start) in ways.items()}
assert found["H = 16"][0][0] > max(found[name][0][0] for name in ways if name != "H = 16")
study.table([(name, run.trace.messages(0), round(run[0][0], 2)) for name, run in found.items()],
            ["", "messages of rank 0", "loss"], title="96 steps on 3 ranks, classes of their own")

# %% [markdown]
# Both rescue H = 16 with fewer messages than H = 1. What happens to momentum at an average is a choice: kept (here),
# `states="reset"` or `"average"`, or a slow momentum over the averages (SlowMo).
#
# ## Break it: rank 0's weights, not the average
#
# Somebody broadcasts in place of the average: no message more, the ranks are equal. **Predict** the loss at H = 4.

# %%
from minidist.collectives import broadcast_

class FirstWins(LocalSGD):
    def average(self):
        broadcast_(self.comm, [p.data for group in self.param_groups for p in group["params"]])
        self.since = 0

def wrong(comm):
    net = mlp([64, 32, 10], dtype=torch.float64)
    optimizer = FirstWins(torch.optim.SGD(net.parameters(), 0.1, 0.9), comm, 4)
    for mine in batches(comm, 0, 96, True):
        optimizer.zero_grad()
        cross_entropy(net(task.x[mine]), task.y[mine]).backward()
        optimizer.step()
    return net(task.test_x).argmax(1).bincount(minlength=10).tolist()

counts = World(3).run(wrong)[0]
assert sum(counts[5:]) == 0
study.bars({f"says {c}": count for c, count in enumerate(counts)}, title="360 test images: what the network says")

# %% [markdown]
# No error, equal replicas. It knows the classes of rank 0, and nothing that the others have learned.
#
# ## On a slow link
#
# Everything together, on a virtual clock: `World(2, alpha, beta)`, a message takes 0.1 ms to start, the wire carries
# 1 MB/s. Only messages take time here. **Predict** the order.

# %%
def over_time(comm, compression, H, epochs=4):
    net, sampler = network(), Sampler(len(task.x), 64, comm)
    model = DataParallel(net, comm, compression=compression) if H is None else net
    own = isinstance(compression, DGC)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, 0.0 if own else 0.9)
    optimizer, seen = optimizer if H is None else LocalSGD(optimizer, comm, H), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch), compression.set_epoch(epoch) if own else None
        for mine in sampler:
            optimizer.zero_grad()
            cross_entropy(model(task.x[mine]), task.y[mine]).backward()
            optimizer.step()
        looked = comm.now(), cross_entropy(net(task.test_x), task.test_y).item()
        seen.append(looked)
    return tuple(zip(*seen))

# %%
make = {"dense": (None, None), "fp16": (Half(), None), "DGC": (DGC(0.99, small=0), None),
        "PowerSGD": (PowerSGD(2), None), "Local SGD, H = 11": (None, 11)}
worlds = {name: World(2, alpha=1e-4, beta=1e-6) for name in make}
curves = {name: worlds[name].run(over_time, *options)[0] for name, options in make.items()}
last = {name: seconds[-1] for name, (seconds, _) in curves.items()}
assert last["dense"] > 1.7 * last["fp16"] and last["fp16"] > 1.4 * max(last["PowerSGD"], last["Local SGD, H = 11"])
study.curves(curves, xunit="s", logy=True, xlabel="virtual seconds", ylabel="loss on the test set",
             title="Four epochs on a slow link")

# %% [markdown]
# (In float64, so fp16 sends a quarter.) The warm-up of DGC is dear in its first epoch, nearly free in the last, and not
# over when the others have learned the digits.
#
# And a link that is really slow? `python -m benchmarks.slow_link` joins two hosts (network namespaces) by a link of
# 100 Mbit/s and trains the 1.1 million weights until a loss of 0.20. Measured on one machine, beside a World's
# prediction:

# %%
rows = [("dense", 24.0, 19.5), ("fp16", 11.6, 10.3), ("DGC, 99.9 %", 12.7, 12.2), ("PowerSGD, rank 2", 3.28, 3.08),
        ("Local SGD, H = 8", 3.35, 2.93)]
study.table([(name, run, said, round(24.0 / run, 1)) for name, run, said in rows],
            ["", "seconds, measured", "seconds, World", "dense over it"], title="python -m benchmarks.slow_link")

# %% [markdown]
# DGC needs more steps to that loss, and its warm-up is dear: in a short run the simple ways win. In a run of 90 epochs,
# four of warm-up do not matter.
#
# In a notebook, `launch(…, rate=…)` gives real processes a slow wire: what a rank sends leaves at so many bytes a
# second.

# %%
def some(comm, H, steps=16):
    net, sampler = network(), Sampler(len(task.x), 64, comm)
    optimizer = LocalSGD(torch.optim.SGD(net.parameters(), 0.1), comm, H)
    for _, mine in zip(range(steps), sampler):
        optimizer.zero_grad()
        cross_entropy(net(task.x[mine]), task.y[mine]).backward()
        optimizer.step()

RATE, rows = 2e5, []
real = {H: launch(some, 2, H, rate=RATE) for H in (1, 8)}
for H, run in real.items():
    least = run.trace.bytes_sent(0) / RATE
    assert run.time > 0.9 * least
    rows.append((H, run.trace.messages(0), run.trace.bytes_sent(0), round(least, 2)))
assert real[8].time < real[1].time
study.table(rows, ["H", "messages of rank 0", "bytes", "seconds on the wire, at least"],
            title="16 steps on two processes, 200 kB/s")

# %% [markdown]
# Over the network, two machines (dense, then DGC, until a loss of 0.2 or 320 steps):
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
sent = {"dense, on the wire": [4 * N / s for s in speeds],
        "DGC, memory and wire": [30 * N / 3.35e12 + 6e-3 * N / s for s in speeds]}
equal = 4 * 3.35e12 / 30
assert 4.4e11 < equal < 4.5e11
study.curves({name: (speeds, times) for name, times in sent.items()}, logx=True, logy=True, xunit="B", yunit="s",
             xlabel="bytes a second on the link", ylabel="a step's exchange", title=f"Equal at {equal / 1e9:.0f} GB/s")

# %% [markdown]
# Over NVLink (450 GB/s) nothing is gained. **With many ranks**: 0.75·n·(1 − sparsity) is DGC's part of dense; at
# 99.9 % that is 1 at n = 1,333, and in the first epoch of warm-up at n = 6. **When backward hides the messages**
# (lesson 05): saving what nobody waits for saves nothing. And each of these changes the result: dense does not.
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
# ## Papers
#
# - Y. Lin et al. *Deep gradient compression.* ICLR, 2018. Section 3, Algorithms 4 and 5.
# - T. Vogels et al. *PowerSGD.* NeurIPS, 2019. Algorithms 1 and 2.
# - S. P. Karimireddy et al. *Error feedback fixes SignSGD.* ICML, 2019.
# - S. Stich. *Local SGD converges fast and communicates little.* ICLR, 2019.
# - T. Lin et al. *Don't use large mini-batches, use local SGD.* ICLR, 2020. Post-local SGD.
# - J. Wang, G. Joshi. *Adaptive communication strategies…* SysML, 2019. AdaComm, section 4.
