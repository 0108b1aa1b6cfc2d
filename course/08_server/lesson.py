# %% [markdown]
# # 08 · Parameter server
#
# So far all ranks were equal, and everyone waited for everyone. There is an older way of working together, in which one machine is in charge. It is the only one that keeps the weights and the optimizer. The other machines, the [workers](term:worker), fetch the weights, compute a gradient on a few samples of their own, hand the gradient in, and fetch again. The machine in charge is called a [parameter server](term:parameter-server). In 2012 Google trained networks with more than a billion weights in this way, on tens of thousands of CPU cores ([Dean et al.](paper:dean2012)).
#
# For *dense* models, in which every step touches every weight, on equal GPUs, the parameter server has lost to the ring, and you will see exactly why. It lives on where workers come and go or are unequally fast, and where a step touches only a small part of a huge model.
#
# Take a network of 100 million weights, whose gradients take 400 MB. A GPU needs 30 ms for forward and backward, a wire carries 25 GB/s, and a message takes 10 µs to start. On 16 ranks a ring all-reduce sends $2\cdot\frac{15}{16}$ times 400 MB over each wire. At 25 GB/s that is 30 ms, so a step takes 60 ms. Now let sixteen workers send their gradients to one server, which averages them, takes a step, and sends the new weights to all. **How long does a step take with the server?**

# %%
guess = 60  # ms: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Rank 0 is the server and holds two weights, 10 and 20. Ranks 1 and 2 are workers and hold two gradients each, (1, 3) and (3, 5). They [push](term:push) their gradients to the server. It takes the mean, (2, 4), and then a step with a learning rate of 1: the weights become 8 and 16. The workers [pull](term:pull) them and can begin the next step.
#
# ![Three columns, one after the other. Push: worker 1 sends its gradient 1 3 and worker 2 its gradient 3 5 to the server, which holds the weights 10 20. Mean and step: the server has the mean 2 4 and the weights 8 16. Pull: it sends 8 16 to both workers.](../course/08_server/figures/by_hand.svg)
#
# In the program below the server and the workers take different branches of one function. `comm.recv` returns the tensor that it has filled, so we can add it up at once.

# %%
import math

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
# The second push starts only when the first has arrived. Worker 2 was ready at time 0 as well, but the server's loop asks for worker 1's gradient first, and a `send` waits until somebody receives it. The two pulls leave almost together, because a sender need only wait until its wire is free again. Eight bytes leave it in a fraction of a nanosecond; the 5 µs are latency.
#
# ## One server
#
# Written for any number of workers and steps, the program is hardly longer. `w` holds all weights in one flat tensor. On a worker it is only memory for what the server will send. `gradient(w)` computes this worker's gradient. A step now begins with the pull, since a worker needs weights before it can compute anything. A pull needs no request either: a worker that calls `recv` is asking, and the server's `send` is the answer.


# %%
def one_server(comm, w, gradient, steps, rate=0.1):
    """Rank 0 is the server and returns the weights in the end; all others are workers."""
    workers = range(1, comm.size)
    for _ in range(steps):
        if comm.rank > 0:
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        else:
            for worker in workers:
                comm.send(w, worker)
            total = torch.zeros_like(w)
            for worker in workers:
                total += comm.recv(torch.empty_like(w), worker)
            w -= rate * total / len(workers)
    return w


# %% [markdown]
# ### A step on a modelled cluster
#
# To find out how long a step takes we run the program on meta tensors, which have shapes but no numbers, and on a modelled cluster, in which a wire of the same kind lies between any two ranks. Computing must take time as well. A `Device` says how fast a rank computes: ours performs $10^{12}$ FLOPs per second in matrix products, and has a memory so fast that nothing else takes any time. The product of an *m* × *k* matrix with a *k* × *m* matrix takes $2m^2k$ FLOPs, so we can choose *k* such that a product takes 30 ms. One such product stands for a worker's forward and backward. All times in this lesson are modelled in this way.

# %%
from minidist.comm import Cluster, Device

ALPHA = 10e-6  # s
BETA = 1 / 25e9  # s per byte
N = 400e6  # bytes of the weights, and of the gradients
C = 30e-3  # s of computing in a step
SPEED = 1e12  # FLOP/s
GPU = Device("1 TFLOP/s", flops={torch.float32: SPEED}, memory=10**12, bandwidth=math.inf)


def compute(w, seconds=C):
    """Stands for forward and backward: takes that long, and returns a gradient like w."""
    m = 1000
    k = round(seconds * SPEED / (2 * m**2))
    matrix = torch.empty(m, k, device="meta")
    matrix @ matrix.T
    return w


def timed(n, program, *arguments, slow=None):
    """Run on n ranks of a modelled cluster; rank `slow`, if given, is four times slower."""
    cluster = Cluster.uniform(n, ALPHA, BETA, GPU)
    if slow is not None:
        cluster = cluster.slow_rank(slow, 4)
    return World(n, cluster=cluster, device="meta").run(program, *arguments)


def large(comm, program, *arguments):
    """The program, on weights of N bytes."""
    w = torch.empty(round(N) // 4, device=comm.device)
    return program(comm, w, *arguments)


four_workers = timed(5, large, one_server, compute, 1)
times = {n: timed(n + 1, large, one_server, compute, 1).time for n in (1, 4, 16)}

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
assert abs(times[1] - 0.062) < 1e-4 and abs(times[4] - 0.128) < 1e-4

# %% [markdown]
# Half a second for 30 ms of work! Follow the ranks through the picture in the answer. Orange is what a rank sends, light blue what it receives, each arrow is a message, and a dark box is computing (`mm` is PyTorch's name for a matrix product). The strip below is the memory of the rank that needs most, the server: its weights, and from 64 ms on also the sum and the gradient that is arriving. One copy of the weights takes $N\beta$ = 16 ms. The server sends *n* copies one after another and then takes in *n* gradients one after another, $2nN\beta$ in all.
#
# Where have the 30 ms of computing gone? Worker 1 has its weights after 16 ms and its gradient after 46 ms. With four workers the server is busy sending until 64 ms, so by then this gradient is waiting for the server, not the server for the gradient. The computing is hidden if $(n-1)N\beta \ge C$, here from three workers on. With a single worker nothing can overlap: 16 + 30 + 16 = 62 ms, the first row of the table.
#
# Who sends how much to whom? Compare with a ring of four ranks and the same 400 MB. In the two pictures a row is a sender and a column is a receiver.

# %%
from minidist.collectives import all_reduce_


def ring(comm, w):
    all_reduce_(comm, compute(w), op="mean")


around = timed(4, large, ring)
display(study.traffic(four_workers.trace, title="One server: all bytes in one row and one column"))
study.traffic(around.trace, title="A ring: the same on every wire")

# %% [markdown]
# Added up over all ranks, both move about as much. With the server it is 2*nN* bytes, 3.2 GB in the picture; in the ring it is 2(*n* − 1)*N*, 2.4 GB. The difference is where. In the ring every wire carries less than 2*N* in each direction, however many ranks there are. The server's one wire carries *nN* in each direction. Whoever is in the middle becomes the bottleneck, and the more workers there are, the worse it gets. (Older texts call this rank the [master](term:master).)
#
# ## Two improvements
#
# **Use both directions.** A wire carries bytes both ways at the same time, but our server uses only one way at a time: it is still sending weights to worker 16 while the gradient of worker 1 is ready and could come in. If all sends and receives of a step are posted as one `batch`, each of them goes through as soon as it can.
#
# **Share the weights out.** Let *s* servers each own a [partition](term:partition), a part of *N*/*s* bytes of the weights, with the optimizer for this part.
#
# ![Two servers and three workers. The parameters lie one after the other and are cut evenly: the first half is on server 0, the second on server 1. Every worker pushes its gradients, each half to its server, and pulls the parameters of both.](../course/08_server/figures/push_and_pull.svg)
#
# In the picture the parameters of a network with two layers, w1, b1, w2 and b2, lie on one line. It is cut into equal parts, wherever the cut falls; here it goes through w2. SGD and Adam do not mind, because they treat every number by itself. A worker cuts its gradient at the same places, pushes each part to the server that owns it, and pulls a part of the weights from each server.
#
# ![Bytes that the busiest wires carry in each direction for one step of four workers with N bytes of gradients. One server 4 N, two servers 2 N each, four servers N each. A ring of the four workers: 1.5 N, and no server.](../course/08_server/figures/whose_wire.svg)
#
# The bars show what this does for four workers. Each server's wire now carries *nN*/*s* in each direction, because every worker sends it *N*/*s*. With four servers no wire carries more than *N*. That looks even better than the ring's 1.5 *N*, but a worker cannot push before it has pulled: its *N* bytes in and its *N* bytes out come one after the other, while a ring uses both directions of every wire at once.


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
        part.sub_(sum(gradients) / workers, alpha=rate)  # part -= rate * mean
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
# The workers are numbered from 0, and worker *k* is rank `servers + k`. In `serve` the `answers` are the weights that go out, and the `pushes` are the gradients that come in. `wait` returns when all of them are through. Only then does the server change `part`, so no worker can get a mixture of old and new weights. `order` makes each rank begin with a different partner and go round from there. If all workers began with server 0, they would queue at it while the other servers had nothing to do.
#
# ### Predict the cost, then run it
#
# **One server.** Follow the worker that is served last. The copies of the weights leave the server one after another, so the last worker has its copy after $nN\beta$. It computes for a time *C* and pushes its gradient, which takes another $N\beta$. The others got their weights earlier, one copy apart, so their gradients come in one copy apart and are all there before the last. There are two messages one after the other, hence two latencies, and $T = C + 2\alpha + (n+1)N\beta$.
#
# **More servers.** With *s* servers each of them sends only *N*/*s* bytes to each worker, so the last worker has all its weights after $\frac{n}{s}N\beta$. Then it computes, and pushes *N* bytes over its own wire as before:
#
# $$T = C + 2\alpha + \left(\frac{n}{s} + 1\right)N\beta \qquad\text{for } s\le n.$$
#
# For 16 workers and one server that is 30 + 17 · 16 = 302 ms. To use both directions has saved two fifths of the 512 ms.
#
# **With how many servers is a step of 16 workers as short as the ring's, to within 5 %?**

# %%
guess_servers = 4  # change this number


# %%
def server_step(n, s, N=N, C=C):
    """Seconds of a step of n workers and s servers."""
    pull = max(n / s, 1) * N * BETA  # a worker's own wire needs N * BETA at least
    return C + 2 * ALPHA + pull + N * BETA


def ring_step(n, N=N, C=C):
    """Seconds of a step of n ranks that average their gradients by a ring."""
    return C + 2 * (n - 1) * (ALPHA + N / n * BETA)


counts = [1, 2, 4, 8, 16]  # workers
plans = {  # and the servers for them
    "one server": [1, 1, 1, 1, 1],
    "up to 4 servers": [1, 2, 4, 4, 4],
    "as many as workers": [1, 2, 4, 8, 16],
}
lines = {}
points = {}
for name, servers in plans.items():
    lines[name] = counts, [server_step(n, s) for n, s in zip(counts, servers)]
    found = []
    for n, s in zip(counts, servers):
        found.append(timed(n + s, large, synchronous, s, compute, 1).time)
    points[name] = counts, found
lines["ring"] = counts, [ring_step(n) for n in counts]
points["ring"] = counts, [timed(n, large, ring).time for n in counts]

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
    words="With 8 servers a step takes 78 ms, with 16 it takes 62, and with the ring 60. Those 16 servers are "
    "16 more machines.",
)

# %% tags=["maintainer"]
for name, (_, found) in points.items():
    assert all(abs(t / want - 1) < 1e-3 for t, want in zip(found, lines[name][1])), name
assert 0.3015 < points["one server"][1][-1] < 0.3025
assert server_step(16, 16) < 1.05 * ring_step(16) and server_step(16, 8) > 1.05 * ring_step(16)
longer = timed(20, large, synchronous, 4, compute, 6).time / 6
assert abs(longer / server_step(16, 4) - 1) < 1e-3

# %% [markdown]
# More servers still would not help: a worker's own wire has to take in *N* bytes and then to send *N*, so a step takes at least $C + 2N\beta$. The ring takes $C + 2\frac{n-1}{n}N\beta$, with half as many machines.
#
# How much a bottleneck matters depends on how long a worker computes. Move the sliders: with 16 workers, 4 servers and 300 ms of computing, a step is 15 % longer than with the ring; with 3 ms of computing it is 2.5 times as long.

# %%
study.explore(
    lambda n, servers, N, computing: {
        "servers": server_step(n, servers, N, computing),
        "ring": ring_step(n, N, computing),
    },
    over="n",
    n=[1, 2, 4, 8, 16, 32, 64],
    servers=[1, 2, 4, 8, 16],
    N=[40 * 10**6, 400 * 10**6, 4 * 10**9],
    computing=[0.003, 0.03, 0.3],
    units={"N": "B", "computing": "s"},
    labels={"n": "workers", "N": "bytes of the weights", "computing": "computing of a step"},
    start={"n": 16, "servers": 4, "N": 400 * 10**6, "computing": 0.03},
    unit="s",
    logx=True,
    logy=True,
    xlabel="workers",
    ylabel="a step",
    title="Servers or a ring?",
)

# %% tags=["maintainer"]
assert round(server_step(16, 4, C=0.3) / ring_step(16, C=0.3), 2) == 1.15
assert round(server_step(16, 4, C=0.003) / ring_step(16, C=0.003), 1) == 2.5

# %% [markdown]
# You may have an idea now: could not every rank be both, a worker and the server of an *n*-th part? It could. In the push every rank then sends part *i* of its gradient to rank *i*, which adds up what comes: a [reduce-scatter](term:reduce-scatter). In the pull rank *i* gives its new part of the weights to everyone: an [all-gather](term:all-gather). Both can be done by a ring, without an extra machine. What you have invented is the core of [ZeRO](lesson:zero).
#
# ### Is it right?
#
# The [oracle](term:oracle) is a serial run, which adds the workers' gradients in the order of their ranks, as `sum(gradients)` on the server does, and divides by their number. So even the roundings are the same, and the weights must be equal bit for bit. The task is the handwritten digits that you know from [Data parallel](lesson:data_parallel), in double precision.
#
# Our programs want all weights in one flat tensor, and a function that maps it to a flat gradient. `gradient_of` makes such a function: PyTorch's `vector_to_parameters` puts a flat tensor into a model, and `parameters_to_vector` does the reverse.

# %%
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minidist.models import mlp
from minidist.tasks import digits

task = digits()
sizes = [64, 32, 10]


def flat_weights(seed=0):
    return parameters_to_vector(mlp(sizes, seed, torch.float64).parameters()).detach()


def gradient_of(task, batches):
    """A function from flat weights to the flat gradient, at each call of the next batch."""
    model = mlp(sizes, dtype=torch.float64)
    parameters = list(model.parameters())
    remaining = iter(batches)

    def gradient(w):
        vector_to_parameters(w.clone(), parameters)  # a copy: w may change under the model
        mine = next(remaining)
        loss = cross_entropy(model(task.x[mine]), task.y[mine])
        return parameters_to_vector(torch.autograd.grad(loss, parameters))

    return gradient


# %% [markdown]
# Three workers take eight steps with 20 samples each: `samples[k][t]` are the samples of worker *k* in step *t*. Each server returns its own part of the weights, and the parts one after another are the whole.


# %%
def learn(comm, task, samples, servers, steps=8):
    gradient = None  # servers compute none
    if comm.rank >= servers:
        gradient = gradient_of(task, samples[comm.rank - servers])
    return synchronous(comm, flat_weights(), servers, gradient, steps)


samples = torch.arange(480).view(8, 3, 20).transpose(0, 1)
oracle = flat_weights()
gradients = [gradient_of(task, of_worker) for of_worker in samples]
for _ in range(8):
    mean = sum(gradient(oracle) for gradient in gradients) / 3
    oracle.sub_(mean, alpha=0.1)

rows = []
for servers in (1, 2, 3):
    parts = World(3 + servers).run(learn, task, samples, servers)[:servers]
    equal = torch.equal(torch.cat(parts), oracle)
    bytes_at_each = ", ".join(str(8 * len(part)) for part in parts)
    rows.append((servers, bytes_at_each, "bit for bit" if equal else "no"))
study.table(
    rows,
    ["servers", "bytes at each", "equal to the serial run"],
    title="Eight steps of three workers",
)

# %% tags=["maintainer"]
assert all(row[2] == "bit for bit" for row in rows)
assert len(oracle) == 64 * 32 + 32 + 32 * 10 + 10 == 2410

# %% [markdown]
# The network has 64 · 32 + 32 + 32 · 10 + 10 = 2,410 weights of 8 bytes. Three servers cannot share them evenly, so the first one holds 804 and the others 803.
#
# ## One slow worker
#
# Now suppose that one worker takes longer than the others: an older GPU, a busy neighbour on the same machine. Synchronous training waits for it in every step, and a ring would wait as well. But a server need not wait! It can take whichever push comes first, step at once with this one gradient, and send the new weights to this one worker alone. That is [asynchronous](term:asynchronous-sgd) training.
#
# ![Two workers over 15 units of time; a step takes worker 0 two units and worker 1 five. Synchronous: worker 0 waits in every step. Asynchronous: nobody waits, and worker 1's gradients arrive old. Bounded staleness with bound 1: worker 0 may be at most one step ahead.](../course/08_server/figures/three_modes.svg)
#
# Look at the first two panels; the third belongs to a later section. A box is one gradient, and it ends when the server has added it. Worker 0 needs two units of time for a gradient and worker 1 needs five. If they go in step, worker 0 waits for three of every five units, and after 15 units the server has used six gradients. If nobody waits, it has used ten in the same time.
#
# In code the server has to receive without knowing from whom. `comm.irecv(gradient, ANY)` takes the push that comes first, and afterwards the handle's `source` says whose it was. The answer is posted with `isend`, so that the server can go on to the next push. What is sent must be a copy: the next update would otherwise change the weights while they are still on their way. The server also keeps a log. `version` counts the updates, and `fetched[k]` is the version that worker *k* got last. Their difference will be our next subject.

# %%
from minidist.comm.base import ANY


def descend(w, gradient, rate=0.1):
    w -= rate * gradient


def hear(comm, w, update):
    """Take the push that comes first and update w with it. Returns the worker's number."""
    gradient = torch.empty_like(w)
    push = comm.irecv(gradient, ANY)
    push.wait()
    update(w, gradient)
    return push.source - 1  # worker k is rank k + 1


def serve_any(comm, w, steps, update):
    """Rank 0: steps[k] updates with gradients of worker k, whoever comes first.

    Returns (seconds, worker, staleness, weights) of each update.
    """
    fetched = [0] * len(steps)
    for k in range(len(steps)):
        comm.isend(w.clone(), k + 1)
    log = []
    for version in range(sum(steps)):
        k = hear(comm, w, update)
        log.append((comm.now(), k, version - fetched[k], w.clone()))
        fetched[k] = version + 1
        comm.isend(w.clone(), k + 1)
    return log


def pull_and_push(comm, w, gradient, steps):
    """A worker."""
    for _ in range(steps):
        comm.recv(w, 0)
        comm.send(gradient(w), 0)
    comm.recv(w, 0)  # the answer to the last push


def asynchronous(comm, w, gradient, steps, update=descend):
    if comm.rank == 0:
        return serve_any(comm, w, steps, update)
    return pull_and_push(comm, w, gradient, steps[comm.rank - 1])


# %% [markdown]
# Try it with four workers, of which the one on rank 4 is four times slower in all it does. Computing takes 100 ms now, so that we can see who waits. In the asynchronous run the slow worker takes three steps and each of the others twelve.


# %%
def long_compute(w):
    return compute(w, 0.1)


steps = [12, 12, 12, 3]
runs = {
    "synchronous": timed(5, large, one_server, long_compute, 3, slow=4),
    "asynchronous": timed(5, large, asynchronous, long_compute, steps, slow=4),
}
study.timeline(
    {name: results.trace for name, results in runs.items()},
    memory=False,
    title="Rank 4 is four times slower",
)

# %% tags=["maintainer"]
for name, want in [("synchronous", 3 * 0.576), ("asynchronous", 1.88)]:
    assert abs(runs[name].time - want) < 0.01, (name, runs[name].time)

# %% [markdown]
# A synchronous step takes 576 ms. The server sends three copies of the weights in 16 ms each and one in 64 ms, because rank 4's port is slow as well; rank 4 computes for 400 ms and pushes for 64. So three steps take 1.73 s and use 12 gradients. The asynchronous run has used 39 in 1.88 s: per second that is three times as many. (The gaps come from rank 4's slow port: while its 400 MB creep through, one direction of the server's wire is taken.)
#
# ### What it does not help
#
# Does asynchrony also widen the bottleneck? Take sixteen equal workers again, one server, and 30 ms of computing. A synchronous step took 302 ms. **How long do sixteen asynchronous updates take?**

# %%
guess_updates = 100  # ms: change this number

# %%
log = timed(17, large, asynchronous, compute, [5] * 16)[0]
sixteen = log[63][0] - log[47][0]  # seconds from update 48 to update 64

# %% tags=["answer"]
study.reveal(
    guess_updates,
    round(1e3 * sixteen),
    unit="ms",
    words="Each update needs one push, 400 MB through the one wire into the server, and 16 · Nβ = 256 ms. The wire "
    "is never idle, because while one push comes in, weights go out and other workers compute. The synchronous "
    "step took C + Nβ = 46 ms more: so long nothing came in at its beginning.",
)

# %% tags=["maintainer"]
assert abs(sixteen - 16 * (N * BETA + ALPHA)) < 1e-3

# %% [markdown]
# It saves a sixth. Asynchrony helps against slow workers, and only more servers help against the bottleneck. And it has a price.
#
# ## The price is staleness
#
# While a worker computes, others change the weights. When its gradient arrives, it is the gradient at weights that no longer exist. The [staleness](term:staleness) of an update is the number of other updates that came in between. Take the second panel of the picture above, and count. Version 0 are the weights at the start, and each update makes the next version.
#
# | time | push of | computed with version | added to version | staleness |
# |---|---|---|---|---|
# | 2 | worker 0 | 0 | 0 | 0 |
# | 4 | worker 0 | 1 | 1 | 0 |
# | 5 | worker 1 | 0 | 2 | 2 |
# | 6 | worker 0 | 2 | 3 | 1 |
#
# In the code the fourth column is `version`, the third is `fetched[k]`, and the log holds the difference. If *n* workers are equally fast, they take turns: between two pushes of one worker each of the others pushes once, so each misses *n* − 1 updates.
#
# **How stale are the gradients of the slow worker in the run above?** Its three colleagues are four times as fast.

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
# ### How bad is it? First by hand
#
# Take the simplest case that can show anything: one weight *w* with the loss $w^2/2$. Its gradient is *w* itself, and the minimum is at 0. Plain gradient descent with the learning rate $\eta$ is $w \leftarrow w - \eta w = (1-\eta)w$. It shrinks as long as $|1-\eta|<1$, so for every rate below 2.
#
# Now let two equal workers take turns, so that every gradient is one update old. What is subtracted is $\eta$ times the weight *before* the last update: $w_{t+1} = w_t - \eta\,w_{t-1}$. Start with 1 and 1, and try three rates:
#
# | rate | weights |
# |---|---|
# | 0.5 | 1, 1, 0.5, 0, −0.25, −0.25, −0.125, 0, … |
# | 1 | 1, 1, 0, −1, −1, 0, 1, 1, … |
# | 1.2 | 1, 1, −0.2, −1.4, −1.16, 0.52, 1.91, 1.29, … |
#
# With a rate of 0.5 the weight overshoots zero, because it hears too late that it has arrived, but the swings die out. With a rate of 1 they neither die out nor grow; after six updates everything begins again. With 1.2 they grow. So one update of staleness has halved the largest rate, from 2 to 1. Now for any staleness *d*.
#
# ### A derivation
#
# With gradients that are *d* updates old,
#
# $$w_{t+1} = w_t - \eta\, w_{t-d}.$$
#
# **Step 1: powers.** We look for solutions of the form $w_t = z^t$, with a number *z* that may be complex. Put it in and divide by $z^{t-d}$: $z^{d+1} = z^d - \eta$, or
#
# $$z^d\,(z-1) = -\eta.$$
#
# This equation has *d* + 1 roots *z*, and every sequence of weights is a sum of their powers, $w_t = c_1 z_1^t + c_2 z_2^t + \ldots$, with constants that depend on the start. (A double root contributes $t\,z^t$ as well, which changes nothing in what follows.) As $|z^t| = |z|^t$, the weight shrinks if and only if every root lies inside the unit circle, $|z| < 1$.
#
# **Step 2: where they come from.** For $\eta = 0$ the roots are 1, once, and 0, *d* times. A tiny $\eta$ moves the root at 1 inwards, to about $1-\eta$, and the others hardly away from 0, so all are inside. As $\eta$ grows they move continuously. To get out, a root must cross the circle, and the limit is the smallest $\eta$ at which one lies *on* it.
#
# **Step 3: sizes.** On the circle *z* has size 1 and some angle $\theta$: $z = e^{i\theta}$. Then $|z^d| = 1$, and the equation says $|z - 1| = \eta$. To find the size and the angle of $z-1$, take out the factor $e^{i\theta/2}$:
#
# $$e^{i\theta} - 1 = e^{i\theta/2}\left(e^{i\theta/2} - e^{-i\theta/2}\right) = e^{i\theta/2}\cdot 2i\,\sin\frac{\theta}{2}.$$
#
# So its size is $2\sin\frac{\theta}{2}$, and its angle is $\frac{\theta}{2} + \frac{\pi}{2}$, since *i* turns by $\frac{\pi}{2}$. In the picture it is the chord from 1 to *z*. We may take $0<\theta\le\pi$: at $\theta=0$ the left side is 0, and with each root its mirror image below the axis is a root too.
#
# ![The unit circle with a point z at 60 degrees. The chord from 1 to z is 2 sin(θ/2) long and points at an angle of 90 degrees plus θ/2. For d = 1 the angles of z and z − 1 add up to 180 degrees at θ = 60 degrees, where the chord has length 1.](../course/08_server/figures/unit_circle.svg)
#
# **Step 4: angles.** When complex numbers are multiplied, their angles add up. On the left $z^d$ has the angle $d\theta$ and $z-1$ the angle just found. On the right $-\eta$ is negative, so its angle is $\pi$, or $\pi$ plus a number *k* of full turns:
#
# $$d\theta + \frac{\theta}{2} + \frac{\pi}{2} = \pi + 2\pi k \quad\Longrightarrow\quad \theta = \frac{(4k+1)\,\pi}{2d+1}.$$
#
# **Step 5: the first one.** Each *k* is a point where a root crosses, at the rate $\eta = 2\sin\frac{\theta}{2}$. Up to $\theta=\pi$ this sine grows with $\theta$, so the first crossing is the one with *k* = 0, $\theta = \frac{\pi}{2d+1}$. The largest rate that converges is
#
# $$\eta_\text{max} = 2\sin\frac{\pi}{4d+2}.$$
#
# **Check it.** For *d* = 0 it is $2\sin\frac{\pi}{2} = 2$, as it should be. For *d* = 1 it is $2\sin\frac{\pi}{6} = 1$, as we found by hand; the angle is then $\frac{\pi}{3}$, a sixth of a turn, which is why everything began again after six updates. For large *d* the sine is nearly its argument, and the limit about $\frac{\pi}{2d}$: **ten times the staleness, a tenth of the rate.** [Levin and May](paper:levin1976) found this limit for populations whose growth depends on their size some generations ago.
#
# <details><summary>Could the weight shrink again at a still larger rate?</summary>
#
# No, because roots cross the circle outwards only. Take the logarithm of both sides of the equation and differentiate by $\eta$, with $z'$ for the derivative of *z*: $\left(\frac{d}{z} + \frac{1}{z-1}\right)z' = \frac{1}{\eta}$, so $\frac{z'}{z} = \frac{1}{\eta}\cdot\frac{1}{d + z/(z-1)}$. On the circle $\frac{z}{z-1} = \frac{1}{1-e^{-i\theta}}$, whose real part is always $\frac{1}{2}$. So the real part of $d + \frac{z}{z-1}$ is $d+\frac{1}{2}$, which is positive, and then the real part of $\frac{z'}{z}$ is positive too. That is the growth of $\log|z|$.
#
# </details>
#
# ### Run it
#
# *d* + 1 equal workers take turns, so apart from the first few every gradient is *d* updates old. We run the server with a rate that is a tenth below the limit and with one that is a tenth above. Whether the swings grow is seen from their largest size in a window at the start and in one at the end; the window is longer than half a swing, so that it contains a peak. (`momentum` is for a later section.)


# %%
def one_weight(comm, rate, momentum=0.0, updates=160):
    """|w| after each update, on the server."""
    w = torch.ones(1, dtype=torch.float64)
    velocity = torch.zeros_like(w)
    workers = comm.size - 1

    def update(w, gradient):
        velocity.mul_(momentum).add_(gradient)  # without momentum: the gradient
        w -= rate * velocity

    log = asynchronous(comm, w, lambda w: w, [updates // workers] * workers, update)
    if comm.rank == 0:
        return [abs(weight.item()) for *_, weight in log]


def grows(d, rate, momentum=0.0):
    swings = World(d + 2).run(one_weight, rate, momentum)[0]
    window = 20 + 2 * d
    return max(swings[-window:]) > max(swings[:window])


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
# Every run below the line has shrunk and every run above it has grown. With 16 workers the limit is 0.10, a twentieth of what it was.
#
# What does that mean for a real network? A loss $\lambda w^2/2$ has the gradient $\lambda w$, so $\eta\lambda$ stands where $\eta$ stood, and the limit is divided by the curvature $\lambda$. A network has many directions with many curvatures, and the steepest one decides. And what does it mean for the speed? *n* workers make *n* updates while one worker makes one, but each with at most $2\sin\frac{\pi}{4n-2}$ instead of 2. Multiply, and you get 2 for one worker, 2 for two, 1.78 for four, 1.62 for sixteen. **Where curvature limits the rate, asynchronous workers gain nothing at all.** They help where the rate is far below this limit anyway, because gradients of small batches are noisy.
#
# ## Bounded staleness
#
# Is there something between waiting for everyone and waiting for nobody? In [stale synchronous parallel](term:stale-synchronous-parallel) training, SSP, every worker has a *clock*, which counts its pushes. A worker may begin another step while its clock is at most `bound` ahead of the slowest clock; otherwise the server holds its answer back.
#
# The third panel of the picture above has a bound of 1. Worker 0 takes its first two steps at once, and then its clock is 2 while worker 1's is 0. Two is more than 1, so it waits until worker 1 has pushed, at time 5. It is now one ahead, may take one more step, and waits again. With bound 0 the workers go in lock-step, though each gradient is still an update of its own; with bound ∞ the mode is asynchronous.
#
# The server needs a list of the workers that wait for an answer, and after each update it looks through all of it. The push of one worker may set others free. (Here all have equally many steps; an exercise finds out what goes wrong if they have not.)


# %%
def serve_bounded(comm, w, steps, bound, update):
    """As serve_any, but a worker that is more than `bound` ahead gets no answer for a while."""
    clock = [0] * len(steps)
    fetched = [0] * len(steps)
    waiting = list(range(len(steps)))
    log = []
    for version in range(sum(steps) + 1):
        for k in [k for k in waiting if clock[k] - min(clock) <= bound]:
            waiting.remove(k)
            fetched[k] = version
            comm.isend(w.clone(), k + 1)
        if version < sum(steps):
            k = hear(comm, w, update)
            clock[k] += 1
            waiting.append(k)
            log.append((comm.now(), k, version - fetched[k], w.clone()))
    return log


def bounded(comm, w, gradient, steps, bound, update=descend):
    if comm.rank == 0:
        return serve_bounded(comm, w, steps, bound, update)
    return pull_and_push(comm, w, gradient, steps[comm.rank - 1])


# %% [markdown]
# **How stale can a gradient be?** Let a worker begin a step with clock *c*, and call the bound *b*. It was allowed to begin, so no clock is below *c* − *b*. While it computes, its own clock stays at *c*, so the slowest clock is at most *c*, and another worker may begin a step only while its clock is at most *c* + *b*. The last step that it begins ends with clock *c* + *b* + 1. From *c* − *b* to *c* + *b* + 1 it has pushed 2*b* + 1 times, and there are *n* − 1 such workers: a gradient misses at most $(n-1)(2b+1)$ updates. For the two workers of the panel that is 3.
#
# **When does it help?** Here are two situations with six workers and steps of 0.1 s. In the first, one worker is *always* four times slower. In the second all are alike, but one step in eight takes eight times as long, by *chance*. We count the gradients of the first ten seconds. **In which of them does a bound of 4 help much?**

# %%
guess_helps = "always slow"  # or "by chance", "both", "neither"


# %%
def hiccups(comm, bound, by_chance, seconds=10):
    """On the server: gradients per second, and the stalest of them."""
    w = torch.empty(1000, device=comm.device)

    def gradient(w):
        pause = by_chance and torch.rand(()) < 1 / 8  # each rank draws its own numbers
        return compute(w, 0.8 if pause else 0.1)

    steps = round(seconds / 0.1)  # more than anybody can take in that time
    log = bounded(comm, w, gradient, [steps] * (comm.size - 1), bound)
    if comm.rank == 0:
        stale = [staleness for at, _, staleness, _ in log if at < seconds]
        return len(stale) / seconds, max(stale)


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
    words="Against chance a small bound does much: a pause now is made up for later. Against a worker that is "
    "always slow it does almost nothing: once the others are `bound` steps ahead, all go at its pace again.",
)

# %% tags=["maintainer"]
assert rows[2][1] < 1.3 * rows[0][1] and rows[2][2] > 1.4 * rows[0][2]
assert all(row[4] is None or row[3] <= row[4] for row in rows)

# %% [markdown]
# The first row and the last can be predicted. In lock-step a round brings six gradients. With a worker that is always slow it takes 0.4 s: 15 gradients per second. By chance it takes 0.8 s if at least one of the six pauses, in $1-\left(\frac{7}{8}\right)^6$ = 55 % of all rounds, and 0.1 s otherwise: 0.49 s on average, 12 gradients per second. If nobody waits, five workers at 10 steps per second and one at 2.5 make 52; by chance a step takes 0.19 s on average, and six workers make 32. A bound of 4 recovers half of what chance has cost, and hardly anything of what the slow worker costs.
#
# The bound on staleness, in the last column, is a worst case: to reach 45, all others would have to be four steps behind when a worker begins and five ahead when it ends.
#
# ## The race
#
# What counts in the end is the loss after a given time. Let us race the three modes on the digits, with four workers, one of them four times slower. The modelled computer is a slow one this time, with $10^8$ FLOPs per second in double precision, at which a gradient of 20 samples takes 2 ms, and 8 ms on the slow worker. A synchronous step averages four gradients, whereas in the other modes four gradients are four steps. So that all move equally far, the synchronous rate is 0.4 and the others' is 0.1.


# %%
def race(comm, task, steps, bound):
    """The server's log; bound None: synchronous."""
    batches = torch.randint(len(task.x), (max(steps), 20))  # each rank draws its own
    gradient = gradient_of(task, batches)
    w = flat_weights()
    if bound is not None:
        return bounded(comm, w, gradient, steps, bound)
    if comm.rank > 0:
        return work(comm, w, 1, gradient, steps[0])
    log = []
    for _ in range(steps[0]):
        serve(comm, w, 1, 1, rate=0.4)
        log.append((comm.now(), None, 0, w.clone()))
    return log


@torch.no_grad()
def loss_of(w):
    """Of all 1,437 digits."""
    model = mlp(sizes, dtype=torch.float64)
    vector_to_parameters(w, model.parameters())
    return cross_entropy(model(task.x), task.y).item()


slow_computer = Device("100 MFLOP/s", {torch.float64: 1e8}, memory=10**12, bandwidth=math.inf)
cluster = Cluster.uniform(5, ALPHA, 1e-9, slow_computer).slow_rank(4, 4)
modes = {  # steps of each worker, chosen to take 0.1 s or a little more, and the bound
    "synchronous": ([14] * 4, None),
    "SSP, bound 3": ([15] * 4, 3),
    "asynchronous": ([45, 45, 45, 12], math.inf),
}
lines = {}
rows = []
for name, (steps, bound) in modes.items():
    log = World(5, cluster=cluster).run(race, task, steps, bound)[0]
    times = [at for at, _, _, _ in log]
    losses = [loss_of(w) for _, _, _, w in log]
    lines[name] = times, losses
    first = next(at for at, loss in zip(times, losses) if loss < 1.75)
    stalest = max(staleness for _, _, staleness, _ in log)
    rows.append((name, sum(steps), f"{1e3 * first:.0f} ms", stalest))
display(
    study.curves(lines, xunit="s", xlabel="virtual time", ylabel="loss", title="One slow worker")
)
study.table(rows, ["", "gradients", "a loss of 1.75 after", "stalest gradient"])

# %% [markdown]
# Asynchronous training gets there in a third of the time, although some of its gradients are a dozen updates old. A rate of 0.1 is small enough for them to help, as a rule; the largest jump upwards, at 75 ms, is a gradient of the slow worker that had missed 12 updates. SSP with a bound of 3 gains a head start, since the fast workers may take four steps before anybody has to wait, and then it moves at the slow worker's pace.
#
# ## The library's file
#
# [minidist/parallel/server.py](file:minidist/parallel/server.py) begins with a naive server of twenty lines and then has `ParameterServer`, for any model, with several servers, and with three modes called "sync", "async" and "ssp". This is how it is used, on all ranks:
#
# ```python
# server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, lr=0.1), servers=2, mode="ssp", bound=3)
# report = server.train(batches, step)
# ```
#
# The third argument makes an optimizer, because the optimizer lives on the servers: each server calls it with the pieces of parameters that it owns. `step(batch)` runs on workers and leaves gradients in the model, as a forward and a backward pass do. On a server `train` serves until all workers are done, and `report.updates` tells of each update which rank it came from and how stale it was. On a worker it is this loop:

# %%
from minidist.parallel.server import Clocks, ParameterServer, Server

study.source(ParameterServer.train)

# %% [markdown]
# Pull, step, push, as in `pull_and_push`. `with_last` tells the worker which batch is its last, so that the push can say so. In the two asynchronous modes the server runs this method once for each update:

# %%
study.source(Server._turn)

# %% [markdown]
# You will recognize `hear`, with a few additions. A push begins with a small header, `said`: whether it is the worker's last, a weight, and for each piece of the parameters whether it has a gradient at all (`there`). The header is received from `ANY`, the gradients then from the rank that it came from. If a worker dies, the receive raises `PeerLost`, and the server forgets this worker. `_note` writes the log and moves the clock. At the end all who wait are answered if they may go on, through `answers`, a communicator of its own, so that pushes and answers never queue behind each other. Whether they may is the rule of bounded staleness:

# %%
study.source(Clocks.may_go)

# %% [markdown]
# The rest of the file are `Partition`, which cuts the line of parameters, `Shard`, which is what one server holds, and `Server._round`, a synchronous step. We shall use the library from here on, because it takes any optimizer.
#
# ## Break it: momentum
#
# Nearly everyone trains with a momentum $\mu$ of 0.9. The optimizer then keeps a velocity, $v \leftarrow \mu v + g$, and moves by $-\eta v$. With fresh gradients this *helps* on our one weight: rates up to 3.8 converge instead of up to 2. **And with two asynchronous workers, so *d* = 1? Without momentum the limit is 1.**

# %%
guess_limit = 1.9  # change this number

# %%
rows = []
for rate in (0.05, 0.09, 0.11, 0.5, 0.9, 1.1):
    outcomes = ["grows" if grows(1, rate, momentum) else "shrinks" for momentum in (0, 0.9)]
    rows.append([rate, *outcomes])

# %% tags=["answer"]
study.reveal(
    guess_limit,
    0.1,
    study.table(
        rows,
        ["rate", "no momentum", "momentum 0.9"],
        title="One weight, two asynchronous workers",
    ),
)

# %% tags=["maintainer"]
assert [row[1] for row in rows] == ["shrinks"] * 5 + ["grows"]
assert [row[2] for row in rows] == ["shrinks"] * 2 + ["grows"] * 4
companion = torch.zeros(4, 4, dtype=torch.float64)  # its eigenvalues: z^2 (z - 1) (z - 0.9) = -rate
companion[1:, :3] = torch.eye(3)
for rate, most in [(0.0345, 0.9999), (0.035, 1.01)]:
    companion[0] = torch.tensor([1.9, -0.9, 0.0, -rate])
    assert (torch.linalg.eigvals(companion).abs().max() < 1) == (most < 1)

# %% [markdown]
# The limit has fallen to a tenth. Again it can be derived. Since $w_{t+1} - w_t = -\eta v_t$, the velocity's rule becomes
#
# $$w_{t+1} - w_t = \mu\,(w_t - w_{t-1}) - \eta\,g_t.$$
#
# With fresh gradients $g_t = w_t$, and powers $z^t$ solve it if $z^2 - (1+\mu-\eta)z + \mu = 0$. The root that leaves the circle first does so at $z=-1$, where $\eta = 2(1+\mu)$: this is the 3.8. With gradients that are one update old $g_t = w_{t-1}$, and the equation is
#
# $$z^2 - (1+\mu)\,z + (\mu+\eta) = 0.$$
#
# The product of its two roots is $\mu+\eta$. Unless $\eta$ is tiny they are a complex number and its mirror image, which have the same size $\sqrt{\mu+\eta}$. So they are inside the circle exactly as long as $\eta < 1-\mu = 0.1$. For a larger *d* the equation is $z^{d-1}(z-1)(z-\mu) = -\eta$; its roots have to be found numerically, and for *d* = 3 the limit is 0.035 where it was 0.445 without momentum.
#
# The reason in words: a velocity that is made of old gradients keeps pushing long after the goal has been passed. [Mitliagkas et al.](paper:mitliagkas2016) showed that random staleness itself acts like momentum, and then momentum comes on top of momentum. So with asynchronous workers *lower the momentum first*, then the rate.
#
# The digits confirm it. Each run of the next table uses 56 gradients, 14 of each of four workers or all of a single one, with the library's server and a rate of 0.1, from five seeds. (The synchronous run averages four at a time, so it takes only 14 steps.)


# %%
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
    return parameters_to_vector(model.parameters()).detach(), report


cases = {  # workers, mode, momentum, steps of each
    "4 workers, synchronous, momentum 0.9": (4, "sync", 0.9, 14),
    "4 workers, asynchronous, no momentum": (4, "async", 0.0, 14),
    "4 workers, asynchronous, momentum 0.9": (4, "async", 0.9, 14),
    "1 worker, so never stale, momentum 0.9": (1, "async", 0.9, 56),
}
rows = []
for name, (workers, mode, momentum, steps) in cases.items():
    losses = []
    for seed in range(5):
        w, _ = World(workers + 1).run(trained, task, mode, momentum, seed, steps)[0]
        losses.append(round(loss_of(w), 2))
    rows.append([name, *losses])
study.table(rows, ["rate 0.1", *(f"seed {seed}" for seed in range(5))], title="Loss at the end")

# %% tags=["maintainer"]
assert all(loss < 1.7 for row in rows[:2] for loss in row[1:])
assert all(loss > 2.2 for loss in rows[2][1:])
assert all(loss < 0.7 for loss in rows[3][1:])

# %% [markdown]
# To guess all ten digits with equal probability gives a loss of ln 10 = 2.3. The third row is worse than guessing. The fourth takes as many steps with the same rate and the same momentum, and ends far below all others. So it is the staleness of 3 that has ruined the third.
#
# ## Break it: a worker dies
#
# On rank 2 the fourth step fails. In a World the first error normally ends all ranks; `World(4, on_failure="continue")` lets the others live on, as a real cluster would, and whoever tries to receive from the dead rank gets the error `PeerLost`. Which of the two modes survives?


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
# The asynchronous run goes on without rank 2, whose three finished steps count, and names the dead worker and the reason. Such a server could take in a new worker just as easily, since that needs nothing but the weights; training in which ranks come and go is called [elastic](term:elastic-training). A synchronous run cannot go on, because the mean of two gradients is a different step from the mean of three. A dead *server* ends both, for its part of the weights is gone. [Li et al.](paper:li2014) therefore keep copies of each part on other servers.
#
# ## In real processes
#
# A synchronous run in processes has the same bits as in the World. An asynchronous one is a race: who comes first depends on the machine. In a World the race takes place in virtual time and comes out the same each time, so that one can look at a bug twice. Real processes race anew each time, and all that can be said beforehand is that every push counts once: 14 updates for each worker.

# %%
from minidist.comm import launch

synchronous_run = launch(trained, 4, task, "sync", samples=samples, steps=8)
print("synchronous, equal to the serial run:", torch.equal(synchronous_run[0][0], oracle))
race_run = launch(trained, 4, task, "async")
updates = race_run[0][1].updates
counts = [sum(update.rank == rank for update in updates) for rank in (1, 2, 3)]
print("asynchronous, updates with gradients of ranks 1, 2, 3:", counts)

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
# torchrun --nproc-per-node 4 examples/train_server.py --backend gloo --mode ssp --bound 2 --momentum 0
# ```
#
# It runs over gloo and not over NCCL, which has no way to receive from whoever comes first.
#
# ## When to use it, and when not
#
# *Not* for dense gradients on equal machines. With 16 workers one server takes 302 ms for a step where the ring takes 60, and the ring needs no extra machine.
#
# *Yes* where a step touches only a little of a large model. An embedding is a table with a row of numbers for each word, and a batch needs only the rows of the words that are in it. Take a table with 100 million rows of 64 numbers in single precision, 25.6 GB. A batch of 1,000 samples with 26 words each needs at most 26,000 of these rows, 6.7 MB. A worker sends their numbers to the server, pulls the rows, and pushes the gradients of these rows; a ring would average the gradient of the whole table. **By which factor is the communication with the server faster, for 16 workers?**

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
whole_table = ring_step(16, N=25.6e9, C=0)

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
# By hand: 26,000 rows of 256 bytes are 6.7 MB, or 0.27 ms on the wire, and pass it twice for each of 16 workers. That makes 8.5 ms; the numbers of the rows and the latencies are the rest of the 9. The ring carries $2\cdot\frac{15}{16}$ · 25.6 GB, which takes 1.9 s. (A collective could exchange only the rows in use as well. But every rank would still have to hold the whole table.)
#
# *Yes*, too, where workers come, go or stumble, such as spare machines at night, or phones. Take bounded staleness if what makes them stumble is chance.
#
# ## Takeaways
#
# - Push gradients, pull weights. One server's wire carries *nN* bytes in each direction; with *s* servers the messages of a step take $\left(\frac{n}{s}+1\right)N\beta$. That is nearly as fast as a ring only with as many servers as workers.
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
