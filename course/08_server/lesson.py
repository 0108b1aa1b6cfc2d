# %% [markdown]
# # 08 · Parameter server
#
# So far all ranks were equal, and everyone waited for everyone. There is an older way of working together, in which one machine is in charge. It holds the weights. The others, the **workers**, ask it for the weights, compute a gradient, hand it in, and ask again. This is the [parameter server](term:parameter-server), on which the first very large networks were trained. For dense models on equal GPUs it has lost to the ring, and you will see exactly why. It lives on where workers come and go or are unequally fast, and where a step touches only a small part of a huge model.
#
# Take a network of 100 million weights, whose gradients take 400 MB. A GPU needs 30 ms for forward and backward, a wire carries 25 GB/s, and a message takes 10 µs to start. Sixteen workers send their gradients to one server, which averages them, takes a step, and sends the new weights to all. With a ring all-reduce such a step takes 60 ms. **How long does it take with the server?**

# %%
guess = 60  # ms: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Rank 0 is the server and holds two weights, 10 and 20. Ranks 1 and 2 are workers, whose gradients are (1, 3) and (3, 5). They [push](term:push) their gradients. The server takes the mean, (2, 4), and then a step with a learning rate of 1: the weights become 8 and 16. The workers [pull](term:pull) them.

# %%
import torch
from IPython.display import display

from minidist import study
from minidist.comm import World


def by_hand(comm):
    weights = torch.tensor([10.0, 20.0])
    gradients = torch.tensor([[0.0, 0.0], [1.0, 3.0], [3.0, 5.0]])
    if comm.rank == 0:
        mean = torch.zeros(2)
        for worker in (1, 2):
            mean += comm.recv(torch.empty(2), worker, label="push") / 2
        weights -= mean
        for worker in (1, 2):
            comm.send(weights, worker, label="pull")
    else:
        comm.send(gradients[comm.rank], 0, label="push")
        comm.recv(weights, 0, label="pull")
    return weights


results = World(3).run(by_hand)
print(list(results))
study.messages(results.trace, title="Push, mean, step, pull: the server sends and receives for all")

# %% [markdown]
# ![Two servers and three workers. The parameters lie one after the other and are cut evenly: the first half is on server 0, the second on server 1. Every worker pushes its gradients, each half to its server, and pulls the parameters of both.](../course/08_server/figures/push_and_pull.svg)
#
# ## One server
#
# Written for any number of workers and steps, the program is hardly longer. `w` holds all weights in one flat tensor, and `gradient(w)` computes this worker's gradient.


# %%
def one_server(comm, w, gradient, steps, rate=0.1):
    """Rank 0 is the server, all others are workers."""
    workers = range(1, comm.size)
    for _ in range(steps):
        if comm.rank == 0:
            for worker in workers:
                comm.send(w, worker)
            total = torch.zeros_like(w)
            for worker in workers:
                total += comm.recv(torch.empty_like(w), worker)
            w -= rate * total / len(workers)
        else:
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
    return w


# %% [markdown]
# To measure it we use meta tensors, which have no numbers, and a device for which only matrix products take time. One product that takes 30 ms stands for a worker's forward and backward. (All times in this lesson are modelled in this way.)

# %%
from minidist.comm import Cluster, Device

ALPHA = 10e-6  # s
BETA = 1 / 25e9  # s per byte
N = 400e6  # bytes of the weights
C = 30e-3  # s of computing in a step
GPU = Device("products only", {torch.float32: 1e12, torch.float64: 1e8}, 1 << 40, 1e30)


def compute(w, seconds=C):
    """Stands for forward and backward: takes that long, and returns a gradient like w."""
    a = torch.empty(1, round(seconds * 1e12 / 2), device="meta")
    a @ a.T
    return w


def timed(n, program, *arguments, slow=None):
    """Run on n ranks of a modelled cluster; rank `slow`, if given, is four times slower."""
    cluster = Cluster.uniform(n, ALPHA, BETA, GPU)
    if slow is not None:
        cluster = cluster.slow_rank(slow, 4)
    return World(n, cluster=cluster, device="meta").run(program, *arguments)


def with_large_weights(comm, program, *arguments):
    w = torch.empty(round(N) // 4, device=comm.device)
    return program(comm, w, *arguments)


four_workers = timed(5, with_large_weights, one_server, compute, 1)
times = {n: timed(n + 1, with_large_weights, one_server, compute, 1).time for n in (1, 4, 16)}

# %% tags=["answer"]
study.reveal(
    guess,
    round(1e3 * times[16]),
    [
        study.table(
            [(n, round(1e3 * seconds)) for n, seconds in times.items()],
            ["workers", "a step, ms"],
        ),
        study.viewer(
            four_workers.trace,
            title="One step of four workers: rank 0 is never idle, the others often are",
        ),
    ],
    unit="ms",
    words="400 MB take Nβ = 16 ms. The server sends 16 copies of the weights and then receives 16 "
    "gradients, 2 · 16 · 16 ms = 512 ms. The computing is hidden behind it.",
)

# %% tags=["maintainer"]
assert abs(times[16] - 0.512) < 1e-3

# %% [markdown]
# Half a second for 30 ms of work. Who sends how much to whom? Compare with a ring of four ranks and the same 400 MB.

# %%
from minidist.collectives import all_reduce_


def ring(comm, w):
    all_reduce_(comm, compute(w), op="mean")


around = timed(4, with_large_weights, ring)
display(study.traffic(four_workers.trace, title="One server: all bytes in one row and one column"))
study.traffic(around.trace, title="A ring: the same on every wire")

# %% [markdown]
# Added up over all ranks, both move about as much: 2*nN* bytes with the server, 2(*n* − 1)*N* in the ring. The difference is where. In the ring every wire carries less than 2*N*, while the server's one wire carries *nN* in each direction. Whoever is in the middle becomes the bottleneck, and the more workers there are, the worse it gets.
#
# ## Two improvements
#
# ![Bytes that the busiest wires carry in each direction for one step of four workers with N bytes of gradients. One server 4 N, two servers 2 N each, four servers N each. A ring of the four workers: 1.5 N, and no server.](../course/08_server/figures/whose_wire.svg)
#
# Two things can be done at once. A wire carries both directions at the same time, so let the server receive the gradients of worker 1 while the weights for worker 16 are still leaving: all sends and receives of a step go into one `batch`. And share the weights out: *s* servers each own a **partition** of *N*/*s* bytes, and a worker talks to all of them. Each rank begins with a different partner, so that they do not all queue at the same one.

# %%
from minidist.comm.base import Recv, Send


def serve(comm, w, servers, steps, rate=0.1):
    """Server number comm.rank: owns a part of w. The ranks from `servers` on are workers."""
    part = w.tensor_split(servers)[comm.rank]
    workers = comm.size - servers
    gradients = [torch.empty_like(part) for _ in range(workers)]
    order = [(comm.rank + i) % workers for i in range(workers)]
    for _ in range(steps):
        answers = [Send(part, servers + k) for k in order]
        pushes = [Recv(gradients[k], servers + k) for k in range(workers)]
        comm.batch(answers + pushes).wait()
        part.sub_(sum(gradients) / workers, alpha=rate)
    return part


def work(comm, w, servers, gradient, steps):
    order = [(comm.rank + i) % servers for i in range(servers)]
    parts = w.tensor_split(servers)  # views: what arrives in them is in w
    for _ in range(steps):
        comm.batch([Recv(parts[i], i) for i in order]).wait()
        pushes = gradient(w).tensor_split(servers)
        comm.batch([Send(pushes[i], i) for i in order]).wait()


def synchronous(comm, w, servers, gradient, steps, rate=0.1):
    if comm.rank < servers:
        return serve(comm, w, servers, steps, rate)
    return work(comm, w, servers, gradient, steps)


# %% [markdown]
# **Predict.** With *s* servers and *n* workers, *n* pieces of *N*/*s* bytes enter a server's wire in a step, and as many leave at the same time: $\frac ns N\beta$. The first gradients can only come when a worker has all its weights, $N\beta$ more, and has computed its gradient:
#
# $$T = C + 2\alpha + \left(\frac ns + 1\right)N\beta.$$
#
# **With how many servers is a step of 16 workers as short as the ring's?**

# %%
guess_servers = 4  # change this number

# %%
from minidist.collectives import seconds

counts = [1, 2, 4, 8, 16]
wide = [1, 2, 4, 8, 16, 32, 64]
plans = {
    "one server": lambda n: 1,
    "4 servers": lambda n: min(4, n),
    "as many as workers": lambda n: n,
}
lines = {}
points = {}
for name, servers in plans.items():
    lines[name] = wide, [C + 2 * ALPHA + (n / servers(n) + 1) * N * BETA for n in wide]
    found = []
    for n in counts:
        results = timed(n + servers(n), with_large_weights, synchronous, servers(n), compute, 2)
        found.append(results.time / 2)
    points[name] = counts, found
lines["ring"] = wide, [C + seconds("all_reduce", "ring", n, N, ALPHA, BETA) for n in wide]
points["ring"] = counts, [timed(n, with_large_weights, ring).time for n in counts]

# %% tags=["answer"]
study.reveal(
    guess_servers,
    16,
    study.curves(
        lines,
        points=points,
        logx=True,
        logy=True,
        yunit="s",
        xlabel="workers",
        ylabel="a step",
        title="The server's wire: predicted (lines), then run (points)",
    ),
    unit="servers",
    words="Only with as many servers as workers is a step as short as the ring's, and that takes twice "
    "the machines.",
)

# %% tags=["maintainer"]
for name, (_, found) in points.items():
    assert all(abs(t / want - 1) < 1e-3 for t, want in zip(found, lines[name][1])), name
assert 0.3015 < points["one server"][1][-1] < 0.3025

# %% [markdown]
# Which of the numbers helps most? Try it: the sliders change the workers, the servers, the size of the model and the time that a worker computes.


# %%
def step_seconds(n, servers, N, computing):
    """The formula of a step, and that of a ring of n workers."""
    return {
        "servers": computing + 2 * ALPHA + (n / servers + 1) * N * BETA,
        "ring": computing + seconds("all_reduce", "ring", n, N, ALPHA, BETA),
    }


study.explore(
    step_seconds,
    over="n",
    n=[1, 2, 4, 8, 16, 32, 64],
    servers=[1, 2, 4, 8, 16],
    N=[40 * 10**6, 400 * 10**6, 4 * 10**9],
    computing=[0.003, 0.03, 0.3],
    units={"N": "B", "computing": "s"},
    labels={"n": "workers", "N": "bytes of the weights", "computing": "computing of a step"},
    start={"servers": 4, "N": 400 * 10**6, "computing": 0.03},
    unit="s",
    logx=True,
    logy=True,
    xlabel="workers",
    ylabel="a step",
    title="Servers or a ring?",
)

# %% [markdown]
# You may have an idea now: if there must be as many servers as workers, could not every worker serve a share of the weights on the side? It could. Then the pushes are a reduce-scatter and the pulls are an all-gather, and what you have invented is the core of [ZeRO](lesson:zero).
#
# ### Is it right?
#
# The oracle is a serial run that adds the workers' gradients in the order of their ranks. The task is to read handwritten digits, in double precision, with three workers.

# %%
from torch import nn
from torch.nn.functional import cross_entropy

from minidist.models import mlp
from minidist.tasks import digits

task = digits()
sizes = [64, 32, 10]


def flat_weights(seed=0):
    return nn.utils.parameters_to_vector(mlp(sizes, seed, torch.float64).parameters()).detach()


def gradient_of(task, samples):
    """A function that maps weights to the gradient on the next list of samples."""
    model = mlp(sizes, dtype=torch.float64)
    rest = iter(samples)

    def gradient(w):
        parameters = list(model.parameters())
        nn.utils.vector_to_parameters(w.clone(), parameters)
        mine = next(rest)
        loss = cross_entropy(model(task.x[mine]), task.y[mine])
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])

    return gradient


def learn(comm, task, samples, servers, steps=8):
    gradient = None
    if comm.rank >= servers:
        gradient = gradient_of(task, samples[comm.rank - servers])
    return synchronous(comm, flat_weights(), servers, gradient, steps)


samples = []  # of each worker: eight lists of 20
for worker in range(3):
    firsts = [60 * step + 20 * worker for step in range(8)]
    samples.append([range(first, first + 20) for first in firsts])
oracle = flat_weights()
gradients = [gradient_of(task, of_worker) for of_worker in samples]
for _ in range(8):
    oracle.sub_(sum(gradient(oracle) for gradient in gradients) / 3, alpha=0.1)
rows = []
for servers in (1, 2, 3):
    found = torch.cat(World(3 + servers).run(learn, task, samples, servers)[:servers])
    bytes_at_each = ", ".join(str(8 * len(part)) for part in oracle.tensor_split(servers))
    rows.append((servers, bytes_at_each, "bit for bit" if torch.equal(found, oracle) else "no"))
study.table(
    rows,
    ["servers", "bytes at each", "equal to the serial run"],
    title="Eight steps of three workers",
)

# %% tags=["maintainer"]
assert all(row[2] == "bit for bit" for row in rows)

# %% [markdown]
# ## One slow worker
#
# Now suppose that one worker takes four times as long as the others: an older GPU, a busy neighbour on the same machine. Synchronous training waits for it in every step, and a ring would wait as well. But a server need not wait! It can take whichever push comes first, step at once with this one gradient, and send the new weights to that worker alone. This is **asynchronous** training.
#
# ![Two workers over 15 units of time; a step takes worker 0 two units and worker 1 five. Synchronous: worker 0 waits in every step. Asynchronous: nobody waits, and worker 1's gradients arrive old. Bounded staleness with bound 1: worker 0 may be at most one step ahead.](../course/08_server/figures/three_modes.svg)
#
# To hear whoever comes first, the server posts a receive from `ANY`, and `push.source` says afterwards who sent it. Answers go out on a communicator of their own, so that no push waits behind one. The server counts its updates in `version` and notes which version each worker has. `bound` will be explained below; with an infinite bound every worker is answered at once.

# %%
import math

from minidist.comm.base import ANY


def serve_any(comm, w, quota, bound, update):
    """Rank 0 hears quota[k] pushes of worker k (on rank k + 1), whoever comes first.

    Returns (seconds, worker, staleness, weights) of each update.
    """
    pushes = comm.split(0)
    answers = comm.split(0)
    workers = range(len(quota))
    clock = [0 for _ in workers]  # pushes heard of each worker
    has = [0 for _ in workers]  # the version of the weights that each worker has
    waiting = list(workers)  # for an answer
    gradient = torch.empty_like(w)
    log = []
    for version in range(sum(quota) + 1):
        for k in list(waiting):
            if clock[k] - min(clock) <= bound:
                waiting.remove(k)
                has[k] = version
                answers.isend(w.clone(), k + 1)
        if version < sum(quota):
            push = pushes.irecv(gradient, ANY)
            push.wait()
            k = push.source - 1
            update(w, gradient)
            clock[k] += 1
            waiting.append(k)
            log.append((pushes.now(), k, version - has[k], w.clone()))
    return log


def push_and_pull(comm, w, gradient, steps):
    pushes = comm.split(0)
    answers = comm.split(0)
    for _ in range(steps):
        answers.recv(w, 0)
        pushes.send(gradient(w), 0)
    answers.recv(w, 0)


def descend(w, gradient, rate=0.1):
    w -= rate * gradient


def asynchronous(comm, w, gradient, quota, bound=math.inf):
    if comm.rank == 0:
        return serve_any(comm, w, quota, bound, descend)
    return push_and_pull(comm, w, gradient, quota[comm.rank - 1])


# %% [markdown]
# Again there are four workers, of which the one on rank 4 is four times slower. Computing takes 100 ms now, so that we can see who waits.


# %%
def long_compute(w):
    return compute(w, 100e-3)


runs = {
    "synchronous": timed(5, with_large_weights, one_server, long_compute, 3, slow=4),
    "asynchronous": timed(
        5, with_large_weights, asynchronous, long_compute, [12, 12, 12, 3], slow=4
    ),
}
study.timeline(
    {name: results.trace for name, results in runs.items()},
    memory=False,
    title="Rank 4 is four times slower",
)

# %% [markdown]
# In about the same time the asynchronous run has used 39 gradients instead of 12. (The gaps that remain come from rank 4's port, which is slow too: its 400 MB keep the server's wire busy for a long time.) Is there a catch?
#
# ## The price is staleness
#
# While a worker computes, others change the weights. When its gradient arrives, it belongs to weights that no longer exist. The [staleness](term:staleness) of an update is the number of other updates that came in between. *n* equally fast workers take turns, so each misses *n* − 1 updates. **How stale are the gradients of the slow worker in the run above?** Its three colleagues are four times as fast.

# %%
guess_stale = 3  # updates: change this number

# %%
log = runs["asynchronous"][0]
rows = []
for k in range(4):
    stale = [staleness for _, worker, staleness, _ in log if worker == k]
    rows.append((k + 1, len(stale), " ".join(map(str, stale))))
worst = max(staleness for _, _, staleness, _ in log)

# %% tags=["answer"]
study.reveal(
    guess_stale,
    worst,
    study.table(rows, ["worker on rank", "updates", "staleness of each"]),
    unit="updates",
    words="A fast worker misses the two other fast ones, and now and then the slow one. The slow one "
    "misses nearly four rounds of three.",
)

# %% tags=["maintainer"]
assert worst == 11

# %% [markdown]
# ### How bad is it? A derivation
#
# Take the simplest case that can show anything: one weight with the loss $w^2/2$. Its gradient is *w* itself. Plain gradient descent is $w \leftarrow w - \eta w = (1-\eta)w$, which shrinks as long as $|1-\eta|<1$, so for every rate below 2. Now let the gradient be *d* updates old:
#
# $$w_{t+1} = w_t - \eta\, w_{t-d}.$$
#
# For which $\eta$ does it still shrink? Such an equation has solutions of the form $w_t = z^t$ for numbers *z*, possibly complex, with $z^{d+1} = z^d - \eta$, or
#
# $$z^d\,(z-1) = -\eta.$$
#
# The weight shrinks if every such *z* lies inside the unit circle. As $\eta$ grows from zero, the first of them reaches the circle at the limit we are looking for. There $z=e^{i\theta}$, and we compare sizes and angles on both sides. The size of the left side is $|z-1|$, the chord of the angle $\theta$, which is $2\sin\frac\theta2$. So $\eta = 2\sin\frac\theta2$. For the angles: $z^d$ has the angle $d\theta$, and $z-1$ points from 1 to *z*, at an angle of $\frac\pi2+\frac\theta2$. Together they must give $\pi$, the angle of $-\eta$:
#
# $$d\theta + \frac\pi2 + \frac\theta2 = \pi \quad\Longrightarrow\quad \theta = \frac{\pi}{2d+1}.$$
#
# Put this into $\eta = 2\sin\frac\theta2$, and you have the largest rate that converges,
#
# $$\eta_\text{max} = 2\sin\frac{\pi}{4d+2},$$
#
# which [Levin and May](paper:levin1976) found for populations of animals whose birth rate depends on the food of earlier years. For $d=0$ it is 2, as it should be, and for large *d* about $\frac{\pi}{2d}$: **ten times the staleness, a tenth of the rate.** We check it by running *d* + 1 equal workers with a rate that is a tenth below the limit, and one that is a tenth above.


# %%
def one_weight(comm, rate, momentum=0.0, updates=160):
    """|w| after each update, as the server sees it."""
    w = torch.ones(1, dtype=torch.float64)
    velocity = torch.zeros(1, dtype=torch.float64)
    workers = comm.size - 1

    def update(w, gradient):
        velocity.mul_(momentum).add_(gradient)
        w -= rate * velocity

    if comm.rank == 0:
        log = serve_any(comm, w, [updates // workers] * workers, math.inf, update)
        return [abs(float(weight)) for *_, weight in log]
    push_and_pull(comm, w, lambda w: w, updates // workers)


def grows(d, rate, momentum=0.0):
    seen = World(d + 2).run(one_weight, rate, momentum)[0]
    window = 20 + 2 * d
    return max(seen[-window:]) > max(seen[:window])


def limit(d):
    return 2 * math.sin(math.pi / (4 * d + 2))


outcomes = {"shrinks": ([], []), "grows": ([], [])}
for d in (0, 1, 3, 7, 15):
    for rate in (0.9 * limit(d), 1.1 * limit(d)):
        workers, rates = outcomes["grows" if grows(d, rate) else "shrinks"]
        workers.append(d + 1)
        rates.append(rate)
study.curves(
    {"2 sin(π/(4d+2))": (list(range(1, 17)), [limit(d) for d in range(16)])},
    points=outcomes,
    logx=True,
    logy=True,
    xlabel="workers n; staleness d = n − 1",
    ylabel="learning rate",
    title="The largest rate that converges: derived, then run",
)

# %% tags=["maintainer"]
assert len(outcomes["grows"][0]) == 5
assert all(rate < limit(n - 1) for n, rate in zip(*outcomes["shrinks"]))

# %% [markdown]
# With 16 workers the limit is 0.10, a twentieth of what it was. (The curvature of our loss is 1. In a network it is the curvature in the steepest direction that counts, and all these limits are divided by it.) So asynchronous training processes more gradients per second, but each of them is worth less.
#
# ## Bounded staleness
#
# Is there something in between? In **stale synchronous parallel** training, SSP, every worker has a clock that counts its pushes. It may go on while its clock is at most `bound` ahead of the slowest one; after that its answer is held back. This is the `if` that our server already has. Bound 0 is lock-step, bound ∞ is asynchronous. How stale can a gradient be? While one worker computes, each of the other *n* − 1 can at first be `bound` behind and at last `bound` ahead, so it makes at most 2·bound + 1 updates: the gradient misses at most $(n-1)(2\cdot\text{bound}+1)$.
#
# Here are two situations with six workers. In the first, one of them is *always* four times slower. In the second all are alike, but one step in eight takes eight times as long, by *chance*. **In which of them does a bound of 4 help much?**

# %%
guess_helps = "always slow"  # or "by chance", "both", "neither"


# %%
def hiccups(comm, bound, by_chance, steps=24):
    """Gradients per second until the first worker is done, and the stalest of them."""
    w = torch.empty(1000, device=comm.device)

    def gradient(w):
        pause = by_chance and torch.rand(()) < 1 / 8
        return compute(w, 0.8 if pause else 0.1)

    log = asynchronous(comm, w, gradient, [steps] * (comm.size - 1), bound)
    if comm.rank == 0:
        ends = []
        for k in range(comm.size - 1):
            ends.append(max(at for at, worker, *_ in log if worker == k))
        first = min(ends)
        stale = [staleness for at, _, staleness, _ in log if at <= first]
        return len(stale) / first, max(stale)


rows = []
for name, bound in {"0: lock-step": 0, "1": 1, "4": 4, "∞: asynchronous": math.inf}.items():
    always, _ = timed(7, hiccups, bound, False, slow=6)[0]
    chance, stalest = timed(7, hiccups, bound, True)[0]
    most = None if bound == math.inf else 5 * (2 * bound + 1)
    rows.append((name, round(always, 1), round(chance, 1), stalest, most))

# %% tags=["answer"]
study.reveal(
    guess_helps,
    "by chance",
    study.table(
        rows,
        [
            "bound",
            "one always slow: gradients/s",
            "by chance: gradients/s",
            "by chance: stalest",
            "stalest possible",
        ],
    ),
    words="Against chance a small bound does much: a pause now is made up for later. Against a worker that "
    "is always slow it does almost nothing: once the others are `bound` steps ahead, all go at its pace again.",
)

# %% tags=["maintainer"]
assert rows[2][1] < 1.3 * rows[0][1] and rows[2][2] > 1.4 * rows[0][2]
assert all(row[4] is None or row[3] <= row[4] for row in rows)

# %% [markdown]
# ## The race
#
# What counts in the end is the loss after a given time. Digits again, four workers, one of them four times slower. A synchronous step averages four gradients, whereas the others take four steps with one gradient each; so that all move equally far, the synchronous rate is 0.4, and the others use 0.1.


# %%
def race(comm, task, quota, bound):
    # Each rank draws its own samples.
    samples = [torch.randint(len(task.x), (20,)) for _ in range(max(quota))]
    gradient = gradient_of(task, samples)
    w = flat_weights()
    if bound is not None:
        return asynchronous(comm, w, gradient, quota, bound)
    if comm.rank > 0:
        return work(comm, w, 1, gradient, quota[0])
    log = []
    for _ in range(quota[0]):
        serve(comm, w, 1, 1, rate=0.4)
        log.append((comm.now(), None, 0, w.clone()))
    return log


@torch.no_grad()
def loss_of(w):
    model = mlp(sizes, dtype=torch.float64)
    nn.utils.vector_to_parameters(w, model.parameters())
    return cross_entropy(model(task.x), task.y).item()


cluster = Cluster.uniform(5, ALPHA, 1e-9, GPU).slow_rank(4, 4)
lines = {}
rows = []
for name, quota, bound in [
    ("synchronous", [14] * 4, None),
    ("SSP, bound 3", [15] * 4, 3),
    ("asynchronous", [45, 45, 45, 12], math.inf),
]:
    log = World(5, cluster=cluster).run(race, task, quota, bound)[0]
    sampled = log[:: max(1, len(log) // 20)]
    lines[name] = [at for at, *_ in sampled], [loss_of(w) for *_, w in sampled]
    first = next(at for at, loss in zip(*lines[name]) if loss < 1.75)
    stalest = max(staleness for _, _, staleness, _ in log)
    rows.append((name, sum(quota), f"{1e3 * first:.0f} ms", stalest))
display(
    study.curves(lines, xunit="s", xlabel="virtual time", ylabel="loss", title="One slow worker")
)
study.table(rows, ["", "gradients", "a loss of 1.75 after", "stalest gradient"])

# %% [markdown]
# Asynchronous training gets there in a third of the time, although some of its gradients are a dozen updates old: the rate is small enough for them. SSP gains a head start of three steps, and then moves at the slow worker's pace.
#
# ## Break it: momentum
#
# Nearly everyone trains with a momentum of 0.9. With fresh gradients it *helps*: on our one weight, rates up to 3.8 converge instead of up to 2. **And with two asynchronous workers, so *d* = 1? Without momentum the limit is 1.**

# %%
guess_limit = 1.9  # change this number

# %%
rates = (3, 1, 0.3, 0.12, 0.08, 0.03, 0.01)
rows = []
for d in (0, 1, 3):
    without = next(rate for rate in rates if rate < limit(d))
    with_momentum = next(rate for rate in rates if not grows(d, rate, 0.9))
    rows.append((d, without, with_momentum))

# %% tags=["answer"]
study.reveal(
    guess_limit,
    0.1,
    study.table(
        rows,
        ["staleness", "no momentum", "momentum 0.9"],
        title=f"One weight: the largest of {', '.join(map(str, rates))} that converges",
    ),
    words="The limit is 0.1: below it lies 0.08, above it 0.12.",
)

# %% tags=["maintainer"]
assert [row[2] for row in rows] == [3, 0.08, 0.03]

# %% [markdown]
# It has fallen to a tenth. By hand: with momentum $\mu$ and a gradient that is one update old, $w_{t+1} = w_t + \mu(w_t - w_{t-1}) - \eta w_{t-1}$. The solutions $z^t$ obey $z^2 - (1+\mu)z + (\mu+\eta) = 0$, and the product of the two roots is $\mu+\eta$. If it exceeds 1, one of them is outside the circle. So $\eta < 1-\mu = 0.1$.
#
# A velocity that is made of stale gradients keeps pushing long after the goal has been passed. [Mitliagkas et al.](paper:mitliagkas2016) showed that staleness itself acts like momentum. So with asynchronous workers **lower the momentum first**, then the rate. The digits confirm it: four equal workers, the library's server, five seeds.

# %%
from minidist.parallel.server import ParameterServer


def trained(comm, task, mode, momentum=0.0, seed=0, steps=14, samples=None):
    model = mlp(sizes, seed, torch.float64)
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, 0.1, momentum), mode=mode)
    order = torch.Generator().manual_seed(10 * seed + comm.rank)

    def step(t):
        if samples is None:
            mine = torch.randint(len(task.x), (20,), generator=order)
        else:
            mine = samples[server.worker][t]
        cross_entropy(model(task.x[mine]), task.y[mine]).backward()

    report = server.train(range(steps), step)
    return nn.utils.parameters_to_vector(model.parameters()).detach(), report


rows = []
for name, mode, momentum in [
    ("synchronous, momentum 0.9", "sync", 0.9),
    ("asynchronous, no momentum", "async", 0.0),
    ("asynchronous, momentum 0.9", "async", 0.9),
]:
    losses = []
    for seed in range(5):
        w, _ = World(5).run(trained, task, mode, momentum, seed)[0]
        losses.append(round(loss_of(w), 2))
    rows.append([name, *losses])
study.table(
    rows,
    ["rate 0.1", *(f"seed {seed}" for seed in range(5))],
    title="Loss after 14 steps of each worker (2.3 is guessing)",
)

# %% tags=["maintainer"]
assert all(loss < 1.7 for row in rows[:2] for loss in row[1:])
assert all(loss > 2.2 for loss in rows[2][1:])

# %% [markdown]
# ## Break it: a worker dies
#
# On rank 2 the fourth step fails. `World(4, on_failure="continue")` lets the other ranks live on, as a real cluster would. Which of the two modes survives?

# %%
from minidist.comm.base import PeerLost


def mortal(comm, task, mode):
    model = mlp(sizes, dtype=torch.float64)
    server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, 0.1), mode=mode)

    def step(t):
        if comm.rank == 2 and t == 3:
            raise RuntimeError("out of memory")
        cross_entropy(model(task.x[:20]), task.y[:20]).backward()

    report = server.train(range(6), step)
    updates = [sum(update.rank == rank for update in report.updates) for rank in (1, 2, 3)]
    return updates, report.lost


for mode in ("async", "sync"):
    outcome = World(4, on_failure="continue").run(mortal, task, mode)[0]
    if isinstance(outcome, PeerLost):
        print(f"{mode}: {outcome}")
    else:
        print(f"{mode}: updates of ranks 1, 2, 3: {outcome[0]}; lost: {outcome[1]}")

# %% tags=["maintainer"]
assert isinstance(outcome, PeerLost) and outcome.rank == 2

# %% [markdown]
# The asynchronous run goes on and names the dead worker. It could take in a new one as well; such training is called **elastic**. A synchronous run cannot go on, because a mean of two gradients is a different step. A dead *server* ends both, for its part of the weights is gone.
#
# ## The library's file
#
# [minidist/parallel/server.py](file:minidist/parallel/server.py) has the naive server first and then `ParameterServer`, which you have just used: any model, any optimizer, several servers, and three modes called "sync", "async" and "ssp". A turn of the asynchronous server looks like ours. What it adds is a header on each push (is it the last? which parameters have gradients?), and it forgets a worker that is lost.

# %%
from minidist.parallel.server import Clocks, Server

study.source(Server._turn)

# %% [markdown]
# And this is the rule of bounded staleness:

# %%
study.source(Clocks.may_go)

# %% [markdown]
# One more prediction, because the result surprises most people. In asynchronous mode one server hears its workers in turn and makes an update every $2\alpha + N\beta$. **Do sixteen updates take longer than one synchronous step of sixteen workers, or less time?** Take 400 MB and 30 ms again.

# %%
guess_longer = "less"  # or "longer", or "the same"

# %%
from functools import partial

from minidist.study.predict import async_server_seconds, sync_server_seconds


def by_library(comm, servers, mode):
    """Five steps of a model of 400 MB; of a worker it returns when each began."""
    model = nn.Linear(10_000, 10_000, bias=False, device=comm.device)
    server = ParameterServer(model, comm, partial(torch.optim.SGD, lr=0.1), servers, mode)

    def step(batch):
        begin = comm.now()
        model.weight.grad = torch.empty_like(compute(model.weight))
        return begin

    return server.train(range(5), step)


rows = []
for servers in (1, 4, 16):
    reports = timed(16 + servers, by_library, servers, "sync")[servers:]
    begun = [max(of_step) for of_step in zip(*(report.values for report in reports))]
    predicted = sync_server_seconds(16, servers, N, ALPHA, BETA, C)
    rows.append([f"synchronous, servers: {servers}", predicted, (begun[4] - begun[2]) / 2])
updates = timed(17, by_library, 1, "async")[0].updates
predicted = 16 * async_server_seconds(16, N, ALPHA, BETA, C)
rows.append(["asynchronous, 16 updates", predicted, (updates[64].time - updates[32].time) / 2])
in_ms = [[name] + [f"{1e3 * t:.0f} ms" for t in times] for name, *times in rows]

# %% tags=["answer"]
study.reveal(
    guess_longer,
    "less",
    study.table(in_ms, ["16 workers", "predicted", "run"]),
    words="But only by 46 ms. Where nobody waits for the others, a worker computes, and its weights travel "
    "back, while the next gradient arrives. The wire into the server is full either way.",
)

# %% tags=["maintainer"]
assert all(abs(took / said - 1) < 1e-3 for _, said, took in rows)

# %% [markdown]
# So asynchrony helps against slow workers, and only more servers help against the bottleneck.
#
# ## In real processes
#
# A synchronous run in processes has the same bits as in the World. An asynchronous one is a race: who comes first depends on the machine. In a World the race takes place in virtual time and comes out the same each time, so that one can look at a bug twice. Real processes race anew each time, and all that one can say is that every push counts once.

# %%
from minidist.comm import launch

synchronous_run = launch(trained, 4, task, "sync", samples=samples, steps=8)
print("synchronous, equal to the serial run:", torch.equal(synchronous_run[0][0], oracle))
race_run = launch(trained, 4, task, "async")
counts = [sum(update.rank == rank for update in race_run[0][1].updates) for rank in range(4)]
study.table(
    [(rank, counts[rank], race_run.trace.messages(rank)) for rank in range(4)],
    ["rank", "updates", "messages sent"],
    title="Fourteen asynchronous steps on three workers, in processes",
)

# %% tags=["maintainer"]
assert all(torch.equal(w, oracle) for w, _ in synchronous_run)
once = World(4).run(trained, task, "async")
again = World(4).run(trained, task, "async")
assert torch.equal(once[0][0], again[0][0]) and once[0][1] == again[0][1]
assert all(torch.equal(w, race_run[0][0]) for w, _ in race_run)
assert loss_of(race_run[0][0]) < loss_of(flat_weights())

# %% [markdown]
# On a cluster, with [examples/train_server.py](file:examples/train_server.py):
#
# ```
# torchrun --nproc-per-node 4 examples/train_server.py --mode ssp --bound 2 --momentum 0
# ```
#
# ## When to use it, and when not
#
# **Not** for dense gradients on equal machines. One server takes 302 ms where the ring takes 60, and the ring needs no extra machine.
#
# **Yes** where a step touches only a little of a large model. An embedding table with 100 million rows of 64 numbers takes 25.6 GB. A batch of 1,000 samples with 26 words each needs at most 26,000 of these rows. A worker pulls them and pushes their gradients; a ring would average the whole table. **By which factor is the server faster, for 16 workers?**

# %%
guess_factor = 10  # change this number


# %%
def rows_in_use(comm, rows=26_000, width=64):
    """One step: each worker asks for rows of a table, gets them, and pushes their gradients."""
    ids = torch.empty(rows, dtype=torch.int64, device=comm.device)
    part = torch.empty(rows, width, device=comm.device)
    if comm.rank > 0:
        comm.send(ids, 0)
        comm.recv(part, 0)
        comm.send(part, 0)
        return
    for worker in range(1, comm.size):
        comm.recv(ids, worker)
        comm.send(part, worker)  # table[ids]
    for worker in range(1, comm.size):
        comm.recv(part, worker)  # table[ids] -= rate * gradients


few = timed(17, rows_in_use).time
whole_table = seconds("all_reduce", "ring", 16, 25.6e9, ALPHA, BETA)

# %% tags=["answer"]
study.reveal(
    guess_factor,
    round(whole_table / few),
    study.table(
        [
            ("parameter server, rows in use", f"{1e3 * few:.1f} ms"),
            ("ring, whole table", f"{whole_table:.2f} s"),
        ],
        ["an embedding of 25.6 GB", "communication of a step"],
    ),
    unit="times",
)

# %% tags=["maintainer"]
assert 150 < whole_table / few < 300

# %% [markdown]
# **Yes**, too, where workers come, go or stumble, such as spare machines at night, or phones. Bounded staleness is for pauses that come by chance.
#
# ## Takeaways
#
# - Push gradients, pull weights. One server's wire carries *nN* bytes in each direction; with *s* servers the messages of a step take $\left(\frac ns+1\right)N\beta$. That is as fast as a ring only with as many servers as workers.
# - Asynchronous: nobody waits, and a slow or dead worker holds nobody up. The price is staleness, *n* − 1 among equals.
# - Staleness *d* lowers the largest learning rate to $2\sin\frac{\pi}{4d+2}$, about $\frac{\pi}{2d}$. Momentum makes it far worse.
# - Bounded staleness evens out chance, not a machine that is always slow.
# - Asynchronous runs can be repeated only in a World.
#
# ## Further reading
#
# - paper:li2014 Partition by ranges of keys (section 4.3), push and pull (3.2), and servers that are replicated (4.4).
# - paper:dean2012 Section 4.1: Downpour, asynchronous SGD.
# - paper:ho2013 Bounded staleness.
# - paper:mitliagkas2016 Staleness acts like momentum.
# - paper:levin1976 The limit that we derived.
