# %% [markdown] nbgrader={"grade_id": "top"}
# # 08 Parameter server: exercises
#
# You build servers: one that works in step with its workers, one that answers on demand, and one that keeps a bound on
# staleness. You find out why a run never ends, and how many workers are of use.
#
# There are seven exercises, worth 18 points. Each of the first six ends with a check, which tries your function in a
# World whose clock counts computing and messages, then in real processes where ranks are involved, and says what is
# wrong. Try as often as you like. The check does not show what your function prints; to see that, run the function in a
# `World` of your own. The seventh is an open question, worth 2 points, which your teacher grades.
#
# Calls to the library's own servers (`minidist.parallel`) are refused. Wait for everything that you post before you
# return. Weights are of dtype float64 or float32, and gradients and results have the same dtype. A nan in a gradient
# becomes a nan in the weights, and must not be hidden.

# %% nbgrader={"grade_id": "setup"}
import math

import torch

import minicheck as check

from minidist import study
from minidist.comm import Cluster, Deadlock, Device, World
from minidist.comm.base import ANY, Recv, Send

# %% [markdown] nbgrader={"grade_id": "pieces_spec"}
# ## 1 · Who holds what? (2 points)
#
# Imagine all parameters laid end to end on one line. Cut this line into s shares, one for each server. A cut may go
# through the middle of a parameter.
#
# | | |
# |---|---|
# | call | `pieces(sizes, s)` |
# | `sizes` | how many numbers each parameter has: a list of integers, each at least 1; **not changed** |
# | `s` | how many servers there are, 1 or more |
# | returns | a list with one list for each server, of tuples `(param, first, end)`: the server holds elements first … end − 1 of parameter number `param` |
#
# **Invariants:** server 0 holds the first numbers of the line, server 1 the next, and so on. The shares are equal; if s
# does not divide the total, the first total % s servers hold one number more. What a server holds of one parameter is
# one piece, and no piece is empty: a server that holds nothing has an empty list. About 10 lines.
#
# <details><summary>Hint</summary>
#
# On the line, a server's share runs from `low` to `high`, and a parameter from `begin` to `begin + size`. What do the
# two have in common? It runs from the larger of the two starts to the smaller of the two ends.
#
# </details>


# %% nbgrader={"grade_id": "pieces", "solution": true}
def pieces(sizes, s):
    """For each server, the (param, first, end) of its pieces."""
    ### BEGIN SOLUTION
    found = []
    low = 0
    total = sum(sizes)
    for server in range(s):
        high = low + total // s + (server < total % s)
        begin = 0
        mine = []
        for param, size in enumerate(sizes):
            first, end = max(low, begin), min(high, begin + size)
            if first < end:
                mine.append((param, first - begin, end - begin))
            begin += size
        found.append(mine)
        low = high
    return found
    ### END SOLUTION


# %% nbgrader={"grade_id": "pieces_test", "points": 2}
check.pieces(pieces)

# %% [markdown] nbgrader={"grade_id": "pieces_target"}
# **Target:** four equal bars, although most of the network is one matrix.
#
# This cell runs your function in the notebook itself, not in a process of its own, so it is stopped after ten seconds.

# %%
sizes = [64 * 256, 256, 256 * 10, 10]
with check.limit(10):
    yours = pieces(sizes, 4)
study.bars(
    {f"server {i}": sum(end - first for _, first, end in part) for i, part in enumerate(yours)},
    target=sum(sizes) / 4,
    note="a quarter",
    title="Numbers that each server holds",
)

# %% [markdown] nbgrader={"grade_id": "synchronous_spec"}
# ## 2 · Several servers, in step (3 points)
#
# The lesson's servers take the plain mean of the workers' gradients. Now the workers' batches differ in size, and some
# are empty.
#
# | | |
# |---|---|
# | call | `synchronous(comm, servers, w, gradient, steps, rate)` on all ranks |
# | `servers` | ranks 0 … servers − 1 are servers, and all others are workers |
# | `w` | all weights in one flat tensor, of the same length everywhere. The servers' count, and are equal; a worker may find any numbers in its own, even inf or nan, which are to be overwritten |
# | `gradient(w)` | on workers: returns `(total, samples)`, the sum of the gradients of this worker's samples at w, flat, and the number of these samples, perhaps 0. It is to be called once in each step |
# | returns | on server i: its part of the weights after all steps, which is part i of `w.tensor_split(servers)` |
# | cost | with n workers and s servers (n/s + 1)·Nβ in each step, and the computing. A quarter of the points is for the bytes and another quarter for the time |
#
# **Invariants:** in each step all workers compute their gradients with the same weights w; then w ← w − rate · the mean
# over all samples of all workers. If nobody has a sample, w stays as it is. A server sends its own part of w and
# nothing else, and receives gradients of its own part and numbers of samples and nothing else. A worker's step consists
# of a pull, its gradient, and a push. About 20 lines.
#
# <details><summary>Hint</summary>
#
# A server needs one `comm.batch([Send(…), …, Recv(…), …])` in each step, so that gradients come in while the weights of
# other workers still go out. A worker needs two. To keep the workers from queueing at server 0, let each of them begin
# with a different server. The pieces of `tensor_split` are views, so you can receive straight into them. The number of
# samples can travel in the same message as the gradient, as one more number at its end.
#
# </details>


# %% nbgrader={"grade_id": "synchronous", "solution": true}
def synchronous(comm, servers, w, gradient, steps, rate):
    """A server's part of the weights after all steps."""
    ### BEGIN SOLUTION
    parts, n = w.tensor_split(servers), comm.size - servers
    if comm.rank >= servers:
        order = [(comm.rank + i) % servers for i in range(servers)]
        for _ in range(steps):
            comm.batch([Recv(parts[i], i) for i in order]).wait()
            total, samples = gradient(w)
            count = w.new_tensor([samples])
            pushes = [torch.cat([part, count]) for part in total.tensor_split(servers)]
            comm.batch([Send(pushes[i], i) for i in order]).wait()
        return None
    mine = parts[comm.rank]
    pushed = [mine.new_empty(len(mine) + 1) for _ in range(n)]
    for _ in range(steps):
        sends = [Send(mine, servers + (comm.rank + i) % n) for i in range(n)]
        comm.batch(sends + [Recv(push, servers + k) for k, push in enumerate(pushed)]).wait()
        added = sum(pushed)
        mine -= rate * added[:-1] / added[-1].clamp(min=1)
    return mine
    ### END SOLUTION


# %% nbgrader={"grade_id": "synchronous_test", "points": 3}
check.synchronous(synchronous)

# %% [markdown] nbgrader={"grade_id": "synchronous_target"}
# **Target:** your points lie on the line.


# %%
def serve_meta(comm, s):
    w = torch.empty(25_000_000, device=comm.device)  # 100 MB
    synchronous(comm, s, w, lambda w: (w, 1), 2, 0.1)


def two_steps(n, s):
    world = World(n + s, alpha=1e-5, beta=1 / 25e9, device="meta")
    world.run(serve_meta, s)
    return world.time / 2


counts = [1, 2, 4, 8]
with check.limit(10):
    times = [two_steps(8, s) for s in counts]
study.curves(
    {"(8/s + 1)·Nβ": (counts, [(8 / s + 1) * 4e-3 for s in counts])},
    points={"yours": (counts, times)},
    xlabel="servers",
    ylabel="a step",
    yunit="s",
    title="8 workers, 100 MB",
)

# %% [markdown] nbgrader={"grade_id": "asynchronous_spec"}
# ## 3 · First come, first served (3 points)
#
# | | |
# |---|---|
# | call | `asynchronous(comm, w, gradient, steps, rate)` on all ranks |
# | `w` | the weights, flat. Those of rank 0 count: it is the server, and steps them **in place**. A worker's are to be overwritten |
# | `gradient(w)` | on workers, which are ranks 1, 2, …: returns the gradient at w, flat. It is to be called once in each of this worker's steps |
# | `steps` | a list: how many steps ranks 1, 2, … take, each at least 1; they may differ |
# | returns | on rank 0: a list with `(rank, staleness)`, two integers, for each update, in the order of the updates |
# | cost | no worker waits for another. A quarter of the points is for the bytes and another quarter for the time |
#
# **Invariants:** every push is an update of its own. It is answered at once with the weights as they are after it, if
# that worker has more steps to take. The **staleness** d of an update is the number of updates between the weights that
# the gradient was computed with and those that it is applied to. The staler a gradient, the smaller its step: w ← w −
# rate/(1 + d) · g. About 17 lines.
#
# <details><summary>Hint</summary>
#
# After `push = comm.irecv(g, ANY)` and `push.wait()`, `push.source` is the rank that sent it. Count the updates, and
# remember for each worker what the count was when it was last sent weights.
#
# </details>


# %% nbgrader={"grade_id": "asynchronous", "solution": true}
def asynchronous(comm, w, gradient, steps, rate):
    """On rank 0: (rank, staleness) of each update."""
    ### BEGIN SOLUTION
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    g = torch.empty_like(w)
    left = [0, *steps]
    has = [0] * comm.size
    log = []
    for rank in range(1, comm.size):
        comm.send(w, rank)
    for version in range(sum(steps)):
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        stale = version - has[rank]
        w -= rate / (1 + stale) * g
        log.append((rank, stale))
        left[rank] -= 1
        if left[rank]:
            has[rank] = version + 1
            comm.send(w, rank)
    return log
    ### END SOLUTION


# %% nbgrader={"grade_id": "asynchronous_test", "points": 3}
check.asynchronous(asynchronous)

# %% [markdown] nbgrader={"grade_id": "asynchronous_target"}
# **Target:** three full rows. The fourth worker is five times slower, and nobody waits for it.

# %%
machine = Device("1 MFLOP/s", {torch.float64: 1e6}, 1 << 40, 1e18)


def busy(w):
    x = torch.empty(500, dtype=torch.float64)
    x @ x  # 1 ms
    return 0.1 * w


def on_demand(comm, serve, *given):
    return serve(comm, torch.ones(4, dtype=torch.float64), busy, *given)


def slow_worker(serve, *given):
    cluster = Cluster.uniform(5, 1e-5, 1e-9, machine).slow_rank(4, 5)
    return World(5, cluster=cluster).run(on_demand, serve, *given)


with check.limit(10):
    run = slow_worker(asynchronous, [15, 15, 15, 3], 0.1)
print("Staleness of rank 4:", [stale for rank, stale in run[0] if rank == 4])
study.timeline(run.trace, memory=False, title="Your server")

# %% [markdown] nbgrader={"grade_id": "bounded_spec"}
# ## 4 · A bound (3 points)
#
# This server is stale synchronous parallel (SSP), with one addition: a few slow machines are left out of account and
# hold nobody up. A worker's **clock** is the number of its pushes that the server has applied. A worker may begin
# another step while its clock is at most `bound` ahead of the slowest worker's clock, where the `spare` slowest workers
# do not count: with `spare` 1 the second slowest decides.
#
# | | |
# |---|---|
# | call | `bounded(comm, w, gradient, steps, rate, bound, spare)` on all ranks |
# | `w`, `gradient`, `rate` | as in exercise 3, but every update is w ← w − rate · g, however stale it is |
# | `steps` | how many steps every worker takes: an integer |
# | `bound` | 0 or more |
# | `spare` | 0 or more, and less than the number of workers |
# | returns | on rank 0: a list with `(rank, staleness)` for each update, as in exercise 3 |
# | cost | as in exercise 3, and for the same shares of the points |
#
# **Invariants:** after each update the server sends the new weights to *every* worker that may now go on and has steps
# left, because a push of one worker may set another one free. Nobody waits without need. About 20 lines.
#
# <details><summary>Hint</summary>
#
# Keep a list of the workers that are waiting for weights; at first this is all of them. After each update go through
# it, and compare each worker's clock with one of the sorted clocks. What does the clock of a worker that has taken all
# its steps do to this comparison?
#
# </details>


# %% nbgrader={"grade_id": "bounded", "solution": true}
def bounded(comm, w, gradient, steps, rate, bound, spare):
    """On rank 0: (rank, staleness) of each update. The `spare` slowest workers hold nobody up."""
    ### BEGIN SOLUTION
    if comm.rank > 0:
        for _ in range(steps):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    workers = range(1, comm.size)
    clock = dict.fromkeys(workers, 0)
    has = {}
    waiting = list(workers)
    log = []
    g = torch.empty_like(w)
    for version in range(steps * len(workers)):
        slowest = sorted(clock.values())[spare]
        for rank in [rank for rank in waiting if clock[rank] - slowest <= bound]:
            waiting.remove(rank)
            has[rank] = version
            comm.send(w, rank)
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        w -= rate * g
        log.append((rank, version - has[rank]))
        clock[rank] += 1
        if clock[rank] < steps:
            waiting.append(rank)
    return log
    ### END SOLUTION


# %% nbgrader={"grade_id": "bounded_test", "points": 3}
check.bounded(bounded)

# %% [markdown] nbgrader={"grade_id": "bounded_target"}
# **Target:** with no spare worker your dots lie below the line. One of the four workers is five times slower; with one
# spare worker nobody waits for it, and its gradients are staler than the line allows.

# %%
stalest = {}
with check.limit(10):
    for spare in (0, 1):
        logs = [slow_worker(bounded, 10, 0.1, bound, spare)[0] for bound in range(5)]
        worst = [max(stale for _, stale in log) for log in logs]
        stalest[f"yours, spare {spare}"] = range(5), worst
study.curves(
    {"(n−1)(2·bound + 1)": (range(5), [3 * (2 * bound + 1) for bound in range(5)])},
    points=stalest,
    xlabel="bound",
    ylabel="stalest gradient",
    title="How stale can a gradient be?",
)

# %% [markdown] nbgrader={"grade_id": "predict_server_spec"}
# ## 5 · Predict, then run (3 points)
#
# There are 32 workers, with gradients of 1 GB, 40 ms of computing, α = 10 µs and β = 1/(50 GB/s).
#
# - `half`: how many seconds does a synchronous step take with one server, which sends and receives at the same time, if
#   the weights travel in fp32 (1 GB) and the gradients in fp16 (half as many bytes)?
# - `ring`: how many seconds does a step take if there is no server, and a ring averages the gradients (in fp32) after
#   the computing?
# - `servers`: how many servers bring the time on the wires, (n/s + 1)·Nβ, down to 100 ms?
# - `into`: how many bytes does each of these servers then receive in a step?
# - `gradients`: one worker becomes three times slower. While it computes one gradient, how many do all 32 workers
#   compute together, its own included, if nobody waits? (Messages take no time here.)
# - `bound`: what is the largest bound for SSP with which no gradient can miss more than 200 updates of other workers?
# - `workers`: a model has one weight and the loss 4·w²/2, so its gradient is 4w. With equal asynchronous workers and a
#   rate of 0.05, what is the largest number of workers with which it converges?
#
# Write numbers or formulas. They are right within 1 %.

# %% nbgrader={"grade_id": "predict_server", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_server.numbers(STUDENT)
half = ring = servers = into = gradients = bound = workers = None
### BEGIN SOLUTION
n = 32
N = 1e9
C = 40e-3
alpha = 10e-6
beta = 1 / 50e9
# the weights of the last worker, its computing, its push
half = C + 2 * alpha + (n + 1 / 2) * N * beta
ring = C + 2 * (n - 1) * (alpha + N / n * beta)
servers = n / (100e-3 / (N * beta) - 1)
into = n * N / servers
gradients = (n - 1) * 3 + 1
bound = int((200 / (n - 1) - 1) / 2)
# the staleness with which 0.05 is the limit
stale = (math.pi / math.asin(4 * 0.05 / 2) - 2) / 4
workers = int(stale) + 1
### END SOLUTION

# %% nbgrader={"grade_id": "predict_server_test", "points": 3}
check.predict_server(half, ring, servers, into, gradients, bound, workers, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_server_target"}
# **Target:** two pairs of equal bars.


# %%
def exchange(comm, servers):
    w = torch.empty(250_000_000, device=comm.device)
    synchronous(comm, servers, w, lambda w: (w, 1), 1, 0.1)


# this run has gradients in fp32, so half a push is added to your first number
predicted = {1: half + 0.5e9 / 50e9, round(servers): 0.04 + 0.1}
runs = {}
with check.limit(10):
    for count, seconds in predicted.items():
        world = World(32 + count, alpha=10e-6, beta=1 / 50e9, device="meta")
        world.run(exchange, count)
        name = f"{count} server{'s' * (count > 1)}"
        runs |= {f"{name}, predicted": seconds, f"{name}, run": world.time + 0.04}
study.bars(runs, unit="s", target=ring, note="ring", title="A step of 32 workers")

# %% [markdown] nbgrader={"grade_id": "leavers_spec"}
# ## 6 · Find the bug (2 points)
#
# Here is SSP again, without spare workers, but now the workers have different numbers of steps, as in exercise 3. The
# next cell was found in somebody's code. When all numbers of steps are equal, it is right.


# %% nbgrader={"grade_id": "leavers_broken"}
def leavers(comm, w, gradient, steps, rate, bound):
    """On rank 0: (rank, staleness) of each update. steps: a list, those of ranks 1, 2, …"""
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    workers = range(1, comm.size)
    clock = dict.fromkeys(workers, 0)
    has = {}
    waiting = list(workers)
    log = []
    g = torch.empty_like(w)
    for version in range(sum(steps)):
        for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= bound]:
            waiting.remove(rank)
            has[rank] = version
            comm.send(w, rank)
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        w -= rate * g
        log.append((rank, version - has[rank]))
        clock[rank] += 1
        if clock[rank] < steps[rank - 1]:
            waiting.append(rank)
    return log


# %%
try:
    World(3).run(on_demand, leavers, [6, 2], 0.1, 1)
except Deadlock as error:
    for line in str(error).splitlines():
        if not line.strip().startswith("at "):  # where in the code it waits
            print(line)

# %% [markdown] nbgrader={"grade_id": "leavers_task"}
# Rank 0 waits for a push, and rank 1 waits for weights. Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `leavers(comm, w, gradient, steps, rate, bound)` on all ranks |
# | `steps` | a list: how many steps ranks 1, 2, … take, each at least 1 |
# | everything else | as in exercise 4, without `spare`; a worker that has taken all its steps holds nobody up |
#
# <details><summary>Hint</summary>
#
# Whose clock is the smallest when rank 2 has left? Whose clock should decide?
#
# </details>


# %% nbgrader={"grade_id": "leavers", "solution": true}
def leavers(comm, w, gradient, steps, rate, bound):
    """On rank 0: (rank, staleness) of each update. Workers that have left hold nobody up."""
    ### BEGIN SOLUTION
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    workers = range(1, comm.size)
    clock = dict.fromkeys(workers, 0)
    has = {}
    waiting = list(workers)
    log = []
    g = torch.empty_like(w)
    for version in range(sum(steps)):
        for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= bound]:
            waiting.remove(rank)
            has[rank] = version
            comm.send(w, rank)
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        w -= rate * g
        log.append((rank, version - has[rank]))
        clock[rank] += 1
        if clock[rank] < steps[rank - 1]:
            waiting.append(rank)
        else:
            del clock[rank]
    return log
    ### END SOLUTION


# %% nbgrader={"grade_id": "leavers_test", "points": 2}
check.leavers(leavers)

# %% [markdown] nbgrader={"grade_id": "leavers_target"}
# **Target:** the run ends, and rank 1 takes its last steps alone.

# %%
with check.limit(10):
    run = World(3).run(on_demand, leavers, [6, 2], 0.1, 1)
study.table(
    [(i, rank, stale) for i, (rank, stale) in enumerate(run[0])], ["update", "rank", "staleness"]
)

# %% [markdown] nbgrader={"grade_id": "more_workers_spec"}
# ## 7 · When is another worker of no use? (2 points, graded by hand)
#
# One asynchronous server has n equal workers. The weights take 200 MB, a worker computes a gradient in 120 ms, and every
# wire carries 25 GB/s in each direction, with α = 10 µs (all modelled). The server receives one gradient while it sends
# weights to another worker, and its own step takes no time.
#
# With fresh gradients you would use a rate of 0.1. With stale ones you use half of the largest rate that converges,
# if that is less; as in the lesson, the steepest curvature of the loss is 1. In the directions in which the loss is flat,
# how far the training gets depends on the sum of the rates of all its updates. So its **progress** per second is the number
# of updates per second times the rate.
#
# **With how many workers is the progress per second greatest? What fraction of it is left with twice as many workers, and
# with four times as many?**
#
# First plot the updates per second and the progress per second against n, from 1 to at least 40 workers. Into the same
# picture draw the updates per second that you measure for at least four values of n: let the library's `ParameterServer`
# train in a World, on meta tensors, as the lesson does near its end. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | the plot, with axes, units and a legend, in which the measured points lie on the curve; and the three numbers |
# | ½ | what limits the progress for few workers, for more, and for very many: where one range ends and the next begins, and why the progress changes with n there as it does |
# | ½ | what a second server would change, and what SSP with a bound of 1 would change, for these workers; each with a reason |


# %% nbgrader={"grade_id": "more_workers_plot", "solution": true}
### BEGIN SOLUTION
from functools import partial

from minidist.parallel.server import ParameterServer

NBYTES = 200e6
COMPUTING = 120e-3
ALPHA = 10e-6
BETA = 1 / 25e9
GPU = Device("products only", {torch.float32: 1e12}, 1 << 40, 1e30)


def updates_per_second(n):
    turn = COMPUTING + 2 * (ALPHA + NBYTES * BETA)  # of one worker: pull, compute, push
    return min(n / turn, 1 / (NBYTES * BETA))


def rate(n):
    largest = 2 * math.sin(math.pi / (4 * (n - 1) + 2))
    return min(0.1, largest / 2)


def train(comm, steps):
    model = torch.nn.Linear(10_000, 5_000, bias=False, device=comm.device)
    server = ParameterServer(model, comm, partial(torch.optim.SGD, lr=0.1), mode="async")

    def step(batch):
        a = torch.empty(1, round(COMPUTING * 1e12 / 2), device=comm.device)
        a @ a.T
        model.weight.grad = torch.empty_like(model.weight)

    return server.train(range(steps), step)


def measured(n):
    cluster = Cluster.uniform(n + 1, ALPHA, BETA, GPU)
    report = World(n + 1, cluster=cluster, device="meta").run(train, 6)[0]
    first, last = report.updates[2 * n], report.updates[5 * n]
    return 3 * n / (last.time - first.time)


wide = range(1, 41)
few = [1, 4, 9, 17, 24]
progress = {n: updates_per_second(n) * rate(n) for n in wide}
best = max(progress, key=progress.get)
for n in (best, 2 * best, 4 * best):
    share = progress[n] / progress[best]
    print(f"{n} workers: a progress of {progress[n]:.1f} per second, {share:.0%} of the best")
study.curves(
    {
        "updates": (wide, [updates_per_second(n) for n in wide]),
        "progress: updates × rate": (wide, list(progress.values())),
    },
    points={"updates, measured": (few, [measured(n) for n in few])},
    logx=True,
    logy=True,
    xlabel="workers, n",
    ylabel="per second",
    title="One asynchronous server, 200 MB, 120 ms of computing",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "more_workers", "solution": true, "points": 2}
# Progress is greatest with nine workers, 6.1 per second. With 18 workers 92 % of it is left, and with 36 only 45 %.
#
# Up to eight workers, computing is the limit, and every worker adds its full share. It makes an update in 136 ms: 120 ms
# of computing, and 8 ms each for its pull and its push. Its gradients miss *n* − 1 updates, at most seven, and half of the
# largest rate, sin(π/(4*n* − 2)), is still above 0.1. From nine workers on, it is below 0.1, and staleness is the limit: the
# updates per second still grow as *n*, but the rate falls nearly as 1/*n*. Their product hardly changes, because
# *n* · sin(π/(4*n* − 2)) tends to π/4: each worker brings more gradients, and makes all of them worth less. At 136/8 = 17
# workers the server's wire is full, at 125 updates per second, and the wire is the limit. More workers only wait longer
# in the queue. They add no updates, but they do add staleness, so the progress falls as 1/*n*.
#
# With a second server each wire carries half as much, so the wires are full only with 34 workers, and the flat part of the
# curve is twice as long. The maximum stays where it is, because staleness sets it and not the wire, so I would not pay for a
# second server. SSP with a bound of 1 changes nothing. Equal workers take turns, so none is ever more than one step
# ahead of another, nobody is held back, and each gradient misses *n* − 1 updates as before.
