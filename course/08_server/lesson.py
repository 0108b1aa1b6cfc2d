# %% [markdown]
# # 08 · Parameter server
#
# A network of 100 M weights has gradients of 400 MB. A GPU computes a step in 30 ms. Wires carry 25 GB/s, and a message
# takes 10 µs to start. 16 GPUs train together. Each sends its gradients to one **master**, which averages them, steps,
# and sends the new weights to all. **How long does a step take, in ms?** (Averaged by a ring: 60 ms.)

# %%
guess = 60  # ms: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Rank 0 is the **server**: it holds two weights, 10 and 20. Ranks 1 and 2 are **workers**, with two gradients each.
# They **push** gradients; the server takes the mean and steps (here with rate 1); they **pull** the weights.
# What does everyone hold afterwards?

# %%
import math
from functools import partial

import torch
from IPython.display import display
from torch import nn
from torch.nn.functional import cross_entropy

from minidist import study
from minidist.collectives import all_reduce_, seconds
from minidist.comm import Cluster, Device, World, launch
from minidist.comm.base import ANY, PeerLost, Recv, Send


# %%
def by_hand(comm):
    w, g = torch.tensor([10.0, 20.0]), torch.tensor([[0.0, 0.0], [1.0, 3.0], [3.0, 5.0]])[comm.rank]
    if comm.rank > 0:
        comm.send(g, 0, label="push")
        return g, g, comm.recv(torch.empty(2), 0, label="pull")
    mean = sum(comm.recv(torch.empty(2), worker, label="push") for worker in (1, 2)) / 2
    for worker in (1, 2):
        comm.send(w - mean, worker, label="pull")
    return w, mean, w - mean


ranks = World(3).run(by_hand)
steps = dict(zip(["before", "pushed, and their mean", "pulled"], zip(*ranks)))
display(study.holdings(steps, title="Push, mean, step, pull"))
study.messages(ranks.trace, title="The server sends and receives for all")

# %% [markdown]
# Four messages, all of them on the server's wire.
#
# ## Step 1: one server
#
# `w` is all weights, flat. `gradient(w)` is this worker's.


# %%
def one_server(comm, w, gradient, steps, rate=0.1):
    workers = range(1, comm.size)
    for _ in range(steps):
        if comm.rank == 0:
            for worker in workers:
                comm.send(w, worker)
            w -= (
                rate
                * sum(comm.recv(torch.empty_like(w), worker) for worker in workers)
                / len(workers)
            )
        else:
            comm.send(gradient(comm.recv(w, 0)), 0)
    return w


# %% [markdown]
# To measure it we need no GPU: tensors on the device `"meta"` have no numbers, and the World's clock counts messages
# and products. A product of 30 ms, `mm` in the pictures, stands for forward and backward. First 4 workers.

# %%
ALPHA = 10e-6
BETA = 1 / 25e9
N = 400e6
C = 30e-3  # s, s/B, B, s
# nothing else takes time
GPU = Device("products", {torch.float32: 1e12, torch.float64: 1e8}, 1 << 40, 1e30)


def compute(w, took=C):
    a = torch.empty(1, round(took * 1e12 / 2), device="meta")
    a @ a.T
    return w


def timed(n, program, *args, slow=None):
    cluster = Cluster.uniform(n, ALPHA, BETA, GPU)
    cluster = cluster if slow is None else cluster.slow_rank(slow, 4)
    return World(n, cluster=cluster, device="meta").run(program, *args)


# %%
def meta(comm, program, *args):
    w = torch.empty(round(N) // 4, device=comm.device)
    return program(comm, w, *args)


four = timed(5, meta, one_server, compute, 1)
naive = {n: timed(n + 1, meta, one_server, compute, 1).time for n in (1, 4, 16)}
assert abs(naive[16] - 0.512) < 1e-3
print(
    f"1 worker: {1e3 * naive[1]:.0f} ms. 4 workers: {1e3 * naive[4]:.0f} ms. 16 workers: {1e3 * naive[16]:.0f} ms."
)
study.timeline(
    four.trace,
    memory=False,
    title="One step of four workers: rank 0 is never idle, the others often",
)

# %% [markdown]
# **512 ms.** 400 MB take Nβ = 16 ms. The server sends 16 copies, then receives 16: 2 · 16 · 16 ms. The computing hides
# behind it. Who sends how much, and to whom? Beside it a ring of four, with the same 400 MB.


# %%
def ring(comm, w):
    all_reduce_(comm, compute(w), op="mean")


around = timed(4, meta, ring)
busiest = [
    max(
        max(sum(m.nbytes for m in trace if r == m.src), sum(m.nbytes for m in trace if r == m.dst))
        for r in range(trace.n)
    )
    for trace in (four.trace, around.trace)
]
assert busiest == [4 * N, 6 * N / 4]
display(study.traffic(four.trace, title="One server: all bytes on one row and one column"))
study.traffic(around.trace, title="A ring: the same on every wire")

# %% [markdown]
# All ranks together move about as much: 2nN and 2(n−1)N bytes. But the server's wire carries n · N each way, and a
# ring's at most 2N.
#
# ## Step 2: both ways at once, and several servers
#
# A wire carries both ways at once, so put all sends and receives of a step into one `batch`: worker 1's gradients come
# while worker 16's weights leave. And share the weights out: s servers each own a **partition** of N/s bytes.
# A worker talks to all of them. Each begins with another one, so that nobody queues.


# %%
def serve(comm, w, s, steps, rate=0.1):
    """Server number comm.rank of s, for its part of w. The ranks from s on are workers."""
    mine, n = w.tensor_split(s)[comm.rank], comm.size - s
    grads = [torch.empty_like(mine) for _ in range(n)]
    order = [s + (comm.rank + i) % n for i in range(n)]
    for _ in range(steps):
        answers = [Send(mine, worker) for worker in order]
        comm.batch(answers + [Recv(g, s + k) for k, g in enumerate(grads)]).wait()
        mine.sub_(sum(grads) / n, alpha=rate)
    return mine


# %%
def work(comm, w, s, gradient, steps):
    order = [(comm.rank + i) % s for i in range(s)]
    parts = w.tensor_split(s)  # views: what arrives in them is in w
    for _ in range(steps):
        comm.batch([Recv(parts[i], i) for i in order]).wait()
        pushes = gradient(w).tensor_split(s)
        comm.batch([Send(pushes[i], i) for i in order]).wait()


def synchronous(comm, w, s, gradient, steps, rate=0.1):
    return serve(comm, w, s, steps, rate) if comm.rank < s else work(comm, w, s, gradient, steps)


# %% [markdown]
# ## Predict, then run
#
# On a server's wire n pieces of N/s bytes come in, and as many go out, at the same time. The first gradients come when
# a worker has all its weights, N bytes, and has computed:
#
# $$C + 2\alpha + \left(\frac{n}{s} + 1\right)N\beta$$
#
# **With 16 workers, how many servers make it as short as a ring's step?** 2? 4? 16?


# %%
def predicted(n, s):
    return C + 2 * ALPHA + (n / s + 1) * N * BETA


counts, wide = (1, 2, 4, 8, 16), [1, 2, 4, 8, 16, 32, 64]
plans = {
    "one server": lambda n: 1,
    "4 servers": lambda n: min(4, n),
    "as many as workers": lambda n: n,
}
lines = {name: (wide, [predicted(n, s(n)) for n in wide]) for name, s in plans.items()}
lines["ring"] = wide, [C + seconds("all_reduce", "ring", n, N, ALPHA, BETA) for n in wide]
points = {
    name: (counts, [timed(n + s(n), meta, synchronous, s(n), compute, 2).time / 2 for n in counts])
    for name, s in plans.items()
}
points["ring"] = counts, [timed(n, meta, ring).time for n in counts]

# %%
for name, (_, found) in points.items():
    assert all(abs(t / want - 1) < 1e-3 for t, want in zip(found, lines[name][1])), name
display(
    study.curves(
        lines,
        points=points,
        logx=True,
        logy=True,
        yunit="s",
        xlabel="workers",
        ylabel="a step",
        title="The master's wire: predicted, then run",
    )
)
last = {name: found[-1] for name, (_, found) in points.items()}
assert 0.3015 < last["one server"] < 0.3025
study.bars(
    {"your guess": guess / 1e3, "one server, one after the other": naive[16]} | last,
    unit="s",
    target=C,
    note="computing alone",
    title="A step of 16 workers",
)

# %% [markdown]
# One server gets slower with every worker, in proportion. Only with **as many servers as workers** is a step as short
# as the ring's, and that takes twice the machines. (Or every worker serves 1/n of the weights, too: then pushes are a
# reduce-scatter, pulls an all-gather. That is lesson 13.)
#
# ## Is it right?
#
# The oracle is a serial run that adds the same parts in the order of the ranks. Digits, float64, three workers.

# %%
from minidist.models import mlp
from minidist.tasks import digits

task, network = digits(), [64, 32, 10]


def flat(seed=0):
    return nn.utils.parameters_to_vector(mlp(network, seed, torch.float64).parameters()).detach()


# %%
def gradient_of(task, samples):
    """A function: w → the gradient of the next list of samples."""
    model, rest = mlp(network, dtype=torch.float64), iter(samples)

    def gradient(w):
        params, mine = list(model.parameters()), next(rest)
        nn.utils.vector_to_parameters(w.clone(), params)
        loss = cross_entropy(model(task.x[mine]), task.y[mine])
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, params)])

    return gradient


# %%
def learn(comm, task, parts, s, steps=8):
    gradient = gradient_of(task, parts[comm.rank - s]) if comm.rank >= s else None
    return synchronous(comm, flat(), s, gradient, steps)


parts = [[range(60 * t + 20 * k, 60 * t + 20 * k + 20) for t in range(8)] for k in range(3)]
oracle, gradients = flat(), [gradient_of(task, mine) for mine in parts]
for _ in range(8):
    oracle.sub_(sum(gradient(oracle) for gradient in gradients) / 3, alpha=0.1)
found = {s: torch.cat(World(3 + s).run(learn, task, parts, s)[:s]) for s in (1, 2, 3)}
assert all(torch.equal(w, oracle) for w in found.values())
rows = [
    (s, ", ".join(str(8 * len(part)) for part in oracle.tensor_split(s)), "bit for bit")
    for s in found
]
study.table(
    rows,
    ["servers", "bytes at each", "equal to the serial run"],
    title="Eight steps of three workers",
)

# %% [markdown]
# ## One slow worker
#
# A worker takes four times as long: an old GPU, a neighbour on the machine. Synchronous training waits for it in
# every step, and a ring would as well. A server need not. It can take whatever push comes first, step at once, and
# answer that worker alone.
#
# ## Step 3: asynchronous
#
# A receive from `ANY` takes the first push to come; `push.source` says whose. Answers go out on a Comm of their own:
# then no push waits behind one. `version` counts updates. With `bound = ∞` everyone is answered at once; bounds are
# step 4.


# %%
def asynchronous(comm, w, quota, bound, step):
    """Rank 0 hears quota[k] pushes of worker k. Returns (seconds, worker, staleness, weights) of each update."""
    pushes = comm.split(0)
    answers = comm.split(0)
    g = torch.empty_like(w)
    clock = [0] * len(quota)
    has = [0] * len(quota)
    waiting = list(range(len(quota)))
    log = []
    for version in range(sum(quota) + 1):
        for k in [k for k in waiting if clock[k] - min(clock) <= bound]:
            waiting.remove(k)
            has[k] = version
            answers.isend(w.clone(), k + 1)
        if version < sum(quota):
            log.append(hear(pushes, g, w, version, clock, has, waiting, step))
    return log


# %%
def hear(pushes, g, w, version, clock, has, waiting, step):
    push = pushes.irecv(g, ANY)
    push.wait()
    k = push.source - 1
    step(w, g)
    clock[k] += 1
    waiting.append(k)
    return pushes.now(), k, version - has[k], w.clone()


def descend(w, g, rate=0.1):
    w -= rate * g


# %%
def push_and_pull(comm, w, gradient, steps):
    pushes, answers = comm.split(0), comm.split(0)
    for _ in range(steps):
        pushes.send(gradient(answers.recv(w, 0)), 0)
    answers.recv(w, 0)


def any_first(comm, w, gradient, quota, bound=math.inf):
    if comm.rank == 0:
        return asynchronous(comm, w, quota, bound, descend)
    return push_and_pull(comm, w, gradient, quota[comm.rank - 1])


# %%
lazy = partial(compute, took=100e-3)  # computing dominates now, so that one can see who waits
runs = {
    "synchronous": timed(5, meta, one_server, lazy, 3, slow=4),
    "asynchronous": timed(5, meta, any_first, lazy, [12, 12, 12, 3], slow=4),
}
study.timeline(
    {name: run.trace for name, run in runs.items()},
    memory=False,
    title="Rank 4 is four times slower",
)

# %% [markdown]
# In about the same time 39 gradients instead of 12. (The gaps: rank 4's port is slow, too, and its 400 MB hold the
# server's wire.)
#
# ## What it costs: staleness
#
# While a worker computes, others change the weights. Its gradient belongs to weights that are gone. The **staleness**
# of an update is the number of updates in between. Equal workers take turns: everyone misses n − 1.
# **And here? Predict it for a fast worker, and for the slow one.**

# %%
log = runs["asynchronous"][0]
rows = [
    (
        k + 1,
        sum(who == k for _, who, *_ in log),
        " ".join(str(stale) for _, who, stale, _ in log if who == k),
    )
    for k in range(4)
]
assert max(stale for _, who, stale, _ in log if who == 3) == 11
study.table(rows, ["worker on rank", "updates", "staleness of each"])

# %% [markdown]
# A fast worker misses the two others, and now and then the slow one. That one misses nearly four rounds of three.
#
# How bad is it? Take one weight, and the loss w²/2: its gradient
# is w, and the step w ← w − ηw′, where w′ is the weight of d updates ago. Fresh gradients (d = 0) converge up to η = 2.
# For any d the limit is
#
# $$\eta < 2\sin\frac{\pi}{4d + 2}$$
#
# (Levin and May). For large d that is about π/2d. **With 16 workers, d = 15: what is left of 2?**
# We run n = d + 1 equal workers, with a tenth less and a tenth more than the limit. Does the weight shrink or grow?


# %%
def one_weight(comm, rate, momentum=0.0, updates=160):
    w = torch.ones(1, dtype=torch.float64)
    v = torch.zeros(1, dtype=torch.float64)
    n = comm.size - 1

    def step(w, g):
        v.mul_(momentum).add_(g)
        w -= rate * v

    if comm.rank > 0:
        return push_and_pull(comm, w, lambda w: w, updates // n)
    return [abs(float(w)) for *_, w in asynchronous(comm, w, [updates // n] * n, math.inf, step)]


# %%
def grows(d, rate, momentum=0.0):
    seen, some = World(d + 2).run(one_weight, rate, momentum)[0], 20 + 2 * d
    return max(seen[-some:]) > max(seen[:some])


def limit(d):
    return 2 * math.sin(math.pi / (4 * d + 2))


# %%
found = {"shrinks": ([], []), "grows": ([], [])}
for d in (0, 1, 3, 7, 15):
    for rate in (0.9 * limit(d), 1.1 * limit(d)):
        xs, ys = found["grows" if grows(d, rate) else "shrinks"]
        xs.append(d + 1)
        ys.append(rate)
assert (
    all(rate < limit(n - 1) for n, rate in zip(*found["shrinks"])) and len(found["grows"][0]) == 5
)
study.curves(
    {"predicted limit": (range(1, 17), [limit(d) for d in range(16)])},
    points=found,
    logx=True,
    logy=True,
    xlabel="workers n; staleness n − 1",
    ylabel="learning rate",
    title="The largest rate that converges: predicted, then run",
)

# %% [markdown]
# 0.10: a twentieth. The price of staleness is **a smaller rate**. (The curvature is 1 here; in a network it is that of
# the steepest direction.)
#
# ## Step 4: bounded staleness
#
# **Stale synchronous parallel** (SSP): a worker's clock counts its pushes. It may go on while it is at most `bound`
# ahead of the slowest clock; otherwise its answer waits. That is the `if` in our server already. Bound 0 is lock-step.
# A gradient then misses at most (n−1)(2·bound + 1) others.
#
# Six workers. First one of them is always four times slower. Then all are alike, but one step in eight takes eight
# times as long, by chance. **Which bound helps in which case?** Predict before you look.


# %%
def hiccups(comm, w, bound, sometimes, steps=24):
    def gradient(w):
        return compute(w, 0.8 if sometimes and torch.rand(()) < 1 / 8 else 0.1)

    log = any_first(comm, w, gradient, [steps] * (comm.size - 1), bound)
    if comm.rank == 0:
        first = min(max(at for at, who, *_ in log if who == k) for k in range(comm.size - 1))
        done = [(stale, k) for at, k, stale, _ in log if at <= first]
        return len(done) / first, max(stale for stale, _ in done)


def gradients_a_second(bound, sometimes):
    small = lambda comm: hiccups(comm, torch.empty(1000, device=comm.device), bound, sometimes)
    return timed(7, small, slow=None if sometimes else 6)[0]


# %%
bounds, rows = {"0: lock-step": 0, "1": 1, "4": 4, "∞: asynchronous": math.inf}, []
for name, bound in bounds.items():
    (always, _), (chance, stale) = gradients_a_second(bound, False), gradients_a_second(bound, True)
    rows.append(
        (
            name,
            round(always, 1),
            round(chance, 1),
            stale,
            None if bound == math.inf else 5 * (2 * bound + 1),
        )
    )
    assert bound == math.inf or stale <= 5 * (2 * bound + 1)
assert rows[2][1] < 1.3 * rows[0][1] and rows[2][2] > 1.4 * rows[0][2]
study.table(
    rows,
    [
        "bound",
        "one always slow: gradients/s",
        "by chance: gradients/s",
        "by chance: stalest",
        "stalest possible",
    ],
)

# %% [markdown]
# Against **chance** a small bound does much: a pause now is made up for later. Against a worker that is **always** slow
# it does nearly nothing: once `bound` steps ahead, everyone walks at its pace again.
#
# ## The race
#
# Digits, four workers, one four times slower. A synchronous step averages four gradients; the others take four steps
# with one gradient each. So that all move equally far, the rates are 0.4 and 0.1. **Who is first at a loss of 1.75?**


# %%
def race(comm, task, quota, bound):
    # each rank draws its own
    samples = [torch.randint(len(task.x), (20,)) for _ in range(max(quota))]
    gradient = gradient_of(task, samples)
    w = flat()
    log = []
    if bound is not None:
        return any_first(comm, w, gradient, quota, bound)
    if comm.rank > 0:
        return work(comm, w, 1, gradient, quota[0])
    for _ in range(quota[0]):
        serve(comm, w, 1, 1, rate=0.4)
        log.append((comm.now(), None, 0, w.clone()))
    return log


# %%
@torch.no_grad()
def loss_of(w):
    model = mlp(network, dtype=torch.float64)
    nn.utils.vector_to_parameters(w, model.parameters())
    return cross_entropy(model(task.x), task.y).item()


# %%
cluster = Cluster.uniform(5, ALPHA, 1e-9, GPU).slow_rank(4, 4)
lines = {}
rows = []
modes = {
    "synchronous": ([14] * 4, None),
    "SSP, bound 3": ([15] * 4, 3),
    "asynchronous": ([45, 45, 45, 12], math.inf),
}
for name, (quota, bound) in modes.items():
    log = World(5, cluster=cluster).run(race, task, quota, bound)[0]
    some = log[:: max(1, len(log) // 20)]
    lines[name] = [at for at, *_ in some], [loss_of(w) for *_, w in some]
    first = next(at for at, loss in zip(*lines[name]) if loss < 1.75)
    rows.append((name, sum(quota), f"{1e3 * first:.0f} ms", max(stale for _, _, stale, _ in log)))
display(
    study.curves(lines, xunit="s", xlabel="virtual time", ylabel="loss", title="One slow worker")
)
study.table(rows, ["", "gradients", "a loss of 1.75 after", "stalest gradient"])

# %% [markdown]
# Asynchronous training is there in a third of the time, with gradients up to 12 updates old. SSP has a head start of
# three steps, and then the pace of the slow worker.
#
# ## Break it: momentum
#
# Most people train with momentum 0.9. On one weight, with fresh gradients, it *helps*: rates up to 3.8 converge.
# **And with two workers, so d = 1? Predict the limit.** The second table is the digits with four equal workers and the
# library's `ParameterServer` (we look into it below): loss after 14 steps of each, five seeds.

# %%
RATES = (3, 1, 0.3, 0.12, 0.08, 0.03, 0.01)

rows = [
    (
        d,
        next(rate for rate in RATES if rate < limit(d)),
        next(rate for rate in RATES if not grows(d, rate, 0.9)),
    )
    for d in (0, 1, 3)
]
assert [row[2] for row in rows] == [3, 0.08, 0.03]
study.table(
    rows,
    ["staleness", "no momentum", "momentum 0.9"],
    title=f"One weight: the largest of {RATES} that converges",
)

# %%
from minidist.parallel.server import ParameterServer


def trained(comm, task, mode, momentum=0.0, seed=0, steps=14, rate=0.1, samples=None):
    model = mlp(network, seed, torch.float64)
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, rate, momentum), mode=mode)
    order = torch.Generator().manual_seed(10 * seed + comm.rank)

    def step(t):
        mine = (
            torch.randint(len(task.x), (20,), generator=order)
            if samples is None
            else samples[server.worker][t]
        )
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()

    report = server.train(range(steps), step)
    return nn.utils.parameters_to_vector(model.parameters()).detach(), report


# %%
ways = {
    "synchronous, momentum 0.9": ("sync", 0.9),
    "asynchronous, no momentum": ("async", 0.0),
    "asynchronous, momentum 0.9": ("async", 0.9),
}
losses = {
    name: [loss_of(World(5).run(trained, task, *how, seed)[0][0]) for seed in range(5)]
    for name, how in ways.items()
}
assert max(losses["synchronous, momentum 0.9"] + losses["asynchronous, no momentum"]) < 1.7
assert min(losses["asynchronous, momentum 0.9"]) > 2.2
study.table(
    [(name, *(round(loss, 2) for loss in some)) for name, some in losses.items()],
    ["rate 0.1", *(f"seed {seed}" for seed in range(5))],
    title="Loss (2.3 is guessing)",
)

# %% [markdown]
# By hand, d = 1: w ← w + 0.9·(w − w″) − ηw″ with w″ the weight before w. Its two modes have the product 0.9 + η, which
# must stay below 1. So the limit is **0.1**; without momentum it was 1.
#
# A velocity made of stale gradients pushes on after the goal is passed. Staleness itself acts like momentum
# (Mitliagkas et al.): with asynchronous workers **lower momentum first**, then the rate.
#
# ## Break it: a worker dies
#
# On rank 2 the fourth step fails. `on_failure="continue"` leaves the others running. Who ends?


# %%
def mortal(comm, task, mode):
    model = mlp(network, dtype=torch.float64)
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, 0.1), mode=mode)

    def step(t):
        if comm.rank == 2 and t == 3:
            raise RuntimeError("out of memory")
        cross_entropy(model(task.x[:20]), task.y[:20]).backward()

    report = server.train(range(6), step)
    return [sum(u.rank == r for u in report.updates) for r in (1, 2, 3)], report.lost


# %%
for mode in ("async", "sync"):
    outcome = World(4, on_failure="continue").run(mortal, task, mode)[0]
    if mode == "async":
        counts, lost = outcome
        assert counts == [6, 3, 6] and list(lost) == [2]
        print(f"asynchronous: updates of ranks 1, 2, 3: {counts}. Lost: {lost}")
    else:
        assert isinstance(outcome, PeerLost) and outcome.rank == 2
        print(f"synchronous: {outcome}")

# %% [markdown]
# The asynchronous run goes on, and names the dead: workers are **elastic**. A synchronous run cannot: a mean of two is
# another step. A dead *server* ends both, for its part of the weights is gone.
#
# ## The library's version
#
# `ParameterServer` takes any model and any of `torch.optim`; modes "sync", "async", "ssp"; several servers in each.
# Here is an asynchronous turn, and the rule of SSP.

# %%
from minidist.parallel.server import Clocks
from minidist.parallel.server import Server

display(study.source(Server._turn), study.source(Clocks.may_go))

# %% [markdown]
# Ours, and: a push brings a header (is it the last? which parameters have gradients?); a lost worker is forgotten.
# `step` in the same file is our first version, for a model with any optimizer.
#
# A worker pushes to one server after the other, so with several servers a step of a long run takes up to
# (n/s + 2 − 1/s)Nβ, a little more than ours. In asynchronous mode one server hears its workers in turn, and makes an
# update every 2α + Nβ. **Which takes longer: sixteen updates, or a step of sixteen workers?** 400 MB and 30 ms again.

# %%
from minidist.study.predict import async_server_seconds, sync_server_seconds


def library(comm, servers, mode):
    """Of all servers and workers, their report of five steps; a worker's holds when each began."""
    model = nn.Linear(10_000, 10_000, bias=False, device=comm.device)
    server = ParameterServer(model, comm, partial(torch.optim.SGD, lr=0.1), servers, mode)

    def step(batch):
        begin = comm.now()
        model.weight.grad = torch.empty_like(compute(model.weight))
        return begin

    return server.train(range(5), step)


rows = []
for s in (1, 4, 16):
    reports = timed(16 + s, library, s, "sync")[s:]
    begun = [max(times) for times in zip(*(report.values for report in reports))]
    said = sync_server_seconds(16, s, N, ALPHA, BETA, C)
    rows.append((f"synchronous, servers: {s}", said, (begun[4] - begun[2]) / 2))
updates = timed(17, library, 1, "async")[0].updates
said = 16 * async_server_seconds(16, N, ALPHA, BETA, C)
rows.append(("asynchronous, 16 updates", said, (updates[64].time - updates[32].time) / 2))
assert all(abs(took / said - 1) < 1e-3 for _, said, took in rows)
study.table(
    [(name, *(f"{1e3 * t:.0f} ms" for t in times)) for name, *times in rows],
    ["16 workers", "predicted", "run"],
)

# %% [markdown]
# The step takes 46 ms longer. Where nobody waits for the others, a worker computes, and the weights travel back, while
# the next gradient arrives. But the wire into the server is full either way: asynchrony helps against slow workers, and
# only more servers help against the bottleneck.
#
# ## On processes
#
# Synchronous: the bits of the World, and of our own server. Asynchronous: who comes first is a race. In a World the
# race is in virtual time: the same bits every time, so that one can look at a bug twice. Real processes race anew each
# time; every push counts once.

# %%
real = launch(trained, 4, task, "sync", samples=parts, steps=8)
assert all(torch.equal(w, oracle) for w, _ in real)
once, again = (World(4).run(trained, task, "async") for _ in range(2))
# weights; order and times of all updates
assert torch.equal(once[0][0], again[0][0]) and once[0][1] == again[0][1]
real = launch(trained, 4, task, "async")
updates, begin = real[0][1].updates, loss_of(flat())
assert all(torch.equal(w, real[0][0]) for w, _ in real) and loss_of(real[0][0]) < begin
rows = [
    (rank, sum(u.rank == rank for u in updates), real.trace.messages(rank)) for rank in range(4)
]
study.table(
    rows, ["rank", "updates", "messages sent"], title="Fourteen asynchronous steps on three workers"
)

# %% [markdown]
# Under torchrun:
#
# ```
# torchrun --nproc-per-node 4 examples/train_server.py --mode ssp --bound 2 --momentum 0
# ```
#
# ## When to use it, and when not
#
# **Not** for dense gradients on equal machines: one server 302 ms, the ring 60, and it needs no server.
#
# **Yes** where a step touches little of a large model. An embedding of 100 M rows of 64 numbers has 25.6 GB. A batch
# of 1,000 samples with 26 words each needs 26,000 rows. A worker pulls these, and pushes their gradients. A ring
# averages the whole table. **Predict the factor** for 16 workers and one server.


# %%
def sparse(comm, rows=26_000, width=64):
    ids = torch.empty(rows, dtype=torch.int64, device=comm.device)
    part = torch.empty(rows, width, device=comm.device)
    if comm.rank > 0:
        comm.send(ids, 0)
        comm.send(comm.recv(part, 0), 0)  # rows in, their gradients out
        return
    for worker in range(1, comm.size):
        comm.recv(ids, worker)
        comm.send(part, worker)  # table[ids]
    for worker in range(1, comm.size):
        comm.recv(part, worker)  # table[ids] -= rate * gradients


# %%
few, all_rows = timed(17, sparse).time, seconds("all_reduce", "ring", 16, 25.6e9, ALPHA, BETA)
assert 150 < all_rows / few < 300
study.table(
    [
        ("parameter server, rows in use", f"{1e3 * few:.1f} ms"),
        ("ring, whole table", f"{all_rows:.2f} s"),
        ("factor", f"{all_rows / few:.0f}"),
    ],
    ["an embedding of 25.6 GB", "communication of a step"],
)

# %% [markdown]
# And yes where workers come, go or stumble: spare machines, phones. Bounded staleness is for pauses by chance.
#
# ## Takeaways
#
# - Push gradients, pull weights. One server's wire carries nN each way: (n/s + 1)Nβ a step with s servers.
#   As short as a ring only with s = n.
# - Asynchronous: nobody waits, a slow or dead worker holds nobody up. The price is staleness, n − 1 among equals.
# - Staleness d lowers the largest rate to about π/2d of 1/curvature. Momentum makes it far worse.
# - SSP bounds it: (n−1)(2·bound + 1). It evens out chance, not a machine that is always slow.
# - Repeatable in a World only.
#
# ## Further reading
#
# - paper:li2014 Partition by ranges of keys (section 4.3), push and pull (3.2), and servers that are replicated (4.4), so
#   that one may die.
# - paper:dean2012 Section 4.1: Downpour, asynchronous SGD.
# - paper:ho2013
# - paper:mitliagkas2016
# - paper:levin1976 The limit.
