# %% [markdown] nbgrader={"grade_id": "top"}
# # 08 Parameter server: exercises
#
# You build servers: in step, on demand, and with a bound; and find out why a run never ends.
#
# Six exercises, 16 points. After each, run the check: it tries your function on a World whose clock counts computing
# and messages, then in real processes. It says what is wrong. Try as often as you like. What your function prints is
# not shown there; to see it, run the function in a `World` of your own. What is refused is `minidist.parallel`.
# Wait for all that you post, before you return. Weights are float64 or float32; a nan in a gradient is a nan in the
# weights.

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
# All parameters lie one after the other. Cut this line into s shares, also through the midst of a parameter.
#
# | | |
# |---|---|
# | call | `pieces(sizes, s)` |
# | `sizes` | numbers in each parameter, a list, each at least 1; **not changed** |
# | `s` | servers |
# | returns | for each server a list of `(param, first, end)`: it holds elements first … end − 1 of parameter `param` |
#
# **Invariants:** server 0 holds the first numbers, server 1 the next, and so on. The shares are equal; if s does not
# divide the total, the first total % s servers hold one more. No piece is empty. About 10 lines.
#
# <details><summary>Hint</summary>
#
# A server's share goes from `low` to `high` on the line, a parameter from `begin` to `begin + size`. What do both have
# in common? From the larger of the two starts to the smaller of the two ends.
#
# </details>


# %% nbgrader={"grade_id": "pieces", "solution": true}
def pieces(sizes, s):
    """For each server its (param, first, end)."""
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
# **Target:** four equal bars, though one matrix is most of the network.

# %%
sizes = [64 * 256, 256, 256 * 10, 10]
yours = pieces(sizes, 4)
study.bars(
    {f"server {i}": sum(end - first for _, first, end in mine) for i, mine in enumerate(yours)},
    target=sum(sizes) / 4,
    note="a quarter",
    title="Numbers that each server holds",
)

# %% [markdown] nbgrader={"grade_id": "synchronous_spec"}
# ## 2 · Several servers, in step (3 points)
#
# | | |
# |---|---|
# | call | `synchronous(comm, servers, w, gradient, steps, rate)` on all ranks |
# | `servers` | ranks 0 … servers − 1 serve, all others are workers |
# | `w` | all weights, flat. Those of servers count; a worker's are any numbers, perhaps inf or nan, to be overwritten |
# | `gradient(w)` | on workers: `(total, samples)`, the sum of the gradients of this worker's samples at w, flat, and how many samples they are, perhaps none; call it once in each step |
# | returns | on server i: its part after all steps, of `w.tensor_split(servers)[i]` |
# | cost | (n/s + 1)·Nβ a step for n workers and s servers, and computing; its bytes are worth a quarter of the points, its time another |
#
# **Invariant:** in each step all workers' gradients are of the same weights w; then w ← w − rate · the mean over all
# samples of all workers. If nobody has a sample, w stays as it is. What a server sends is its own part; what it receives
# are gradients of its own part and numbers of samples, nothing else. A step: pull, gradient, push. About 20 lines.
#
# <details><summary>Hint</summary>
#
# A server needs one `comm.batch([Send(…), …, Recv(…), …])` a step: the gradients come back while other workers' weights
# still go out. A worker needs two. So that workers do not queue at server 0: start with another one.
# Pieces of `tensor_split` are views: receive into them. The number of samples can travel behind the gradient, as one more
# number of the same message.
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
# **Target:** points on the line.


# %%
def serve_meta(comm, s):
    w = torch.empty(25_000_000, device=comm.device)  # 100 MB
    synchronous(comm, s, w, lambda w: (w, 1), 2, 0.1)


def two_steps(n, s):
    world = World(n + s, alpha=1e-5, beta=1 / 25e9, device="meta")
    world.run(serve_meta, s)
    return world.time / 2


counts = [1, 2, 4, 8]
study.curves(
    {"(8/s + 1)·Nβ": (counts, [(8 / s + 1) * 4e-3 for s in counts])},
    points={"yours": (counts, [two_steps(8, s) for s in counts])},
    xlabel="servers",
    ylabel="a step",
    yunit="s",
    title="8 workers, 100 MB",
)

# %% [markdown] nbgrader={"grade_id": "asynchronous_spec"}
# ## 3 · Whoever comes first (3 points)
#
# | | |
# |---|---|
# | call | `asynchronous(comm, w, gradient, steps, rate)` on all ranks |
# | `w` | the weights, flat; rank 0's count. There they are stepped **in place**; a worker's are overwritten |
# | `gradient(w)` | on workers, ranks 1, 2, …: the gradient at w, flat; once in each step of this worker |
# | `steps` | a list: the steps of ranks 1, 2, … They differ |
# | returns | on rank 0: a list of `(rank, staleness)`, of every update in order |
# | cost | nobody waits for another worker; bytes are worth a quarter of the points, the time another |
#
# **Invariant:** every push is a step of its own, and is answered at once, with the weights after it, if this worker has
# more steps. The **staleness** d of an update is the number of updates between the weights that the gradient was computed
# with and those that it is added to. The staler a gradient, the smaller its step: w ← w − rate/(1 + d) · g. About 17 lines.
#
# <details><summary>Hint</summary>
#
# `push = comm.irecv(g, ANY)`, `push.wait()`, and `push.source` is the rank that it came from. Count the updates, and
# remember for each worker the count when it was sent weights.
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
# **Target:** three full rows. The fourth worker is five times slower: nobody waits for it.

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


run = slow_worker(asynchronous, [15, 15, 15, 3], 0.1)
print("Staleness of rank 4:", [stale for rank, stale in run[0] if rank == 4])
study.timeline(run.trace, memory=False, title="Your server")

# %% [markdown] nbgrader={"grade_id": "bounded_spec"}
# ## 4 · A bound (3 points)
#
# Stale synchronous parallel, in which a few slow machines hold nobody up. A worker's **clock** is the number of its pushes
# that the server has added. A worker may begin another step while its clock is at most `bound` ahead of the slowest
# clock, the `spare` slowest ones not counted: with `spare` 1, ahead of the second slowest.
#
# | | |
# |---|---|
# | call | `bounded(comm, w, gradient, steps, rate, bound, spare)` on all ranks |
# | `w`, `gradient`, `rate` | as in 3, but every step is w ← w − rate · g |
# | `steps` | an integer, the same for all workers |
# | `bound` | 0 or more |
# | `spare` | 0 or more, fewer than there are workers |
# | returns | on rank 0: a list of `(rank, staleness)`, as in 3, and so are the points |
#
# **Invariant:** after each update the server sends the new weights to *all* who may go on now, and have steps left:
# somebody else's push may set them free. Nobody waits without need. About 20 lines.
#
# <details><summary>Hint</summary>
#
# Keep a list of those who wait for weights. At first all do. After each update go through it, and compare with a clock of
# the sorted ones. Whose clock is counted when a worker has done all its steps?
#
# </details>


# %% nbgrader={"grade_id": "bounded", "solution": true}
def bounded(comm, w, gradient, steps, rate, bound, spare):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead of all but the `spare` slowest."""
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
# **Target:** with no spare worker dots below the line. One of four workers is five times slower; with one spare worker
# nobody waits for it, and its gradients are staler than the line allows.

# %%
stalest = {}
for spare in (0, 1):
    logs = [slow_worker(bounded, 10, 0.1, bound, spare)[0] for bound in range(5)]
    stalest[f"yours, spare {spare}"] = range(5), [max(stale for _, stale in log) for log in logs]
study.curves(
    {"(n−1)(2·bound + 1)": (range(5), [3 * (2 * bound + 1) for bound in range(5)])},
    points=stalest,
    xlabel="bound",
    ylabel="stalest gradient",
    title="How stale can a gradient be?",
)

# %% [markdown] nbgrader={"grade_id": "predict_server_spec"}
# ## 5 · Predict (3 points)
#
# 32 workers, gradients of 1 GB, 40 ms of computing, α = 10 µs, β = 1/(50 GB/s).
#
# - `half`: seconds of a synchronous step with one server, which sends and receives at the same time, if weights travel in
#   fp32, 1 GB, and gradients in fp16, half as many bytes
# - `ring`: seconds of a step if a ring averages the gradients after the computing
# - `servers`: how many servers bring the time of the wires, (n/s + 1)·Nβ, down to 100 ms?
# - `into`: bytes that then come into each server in a step
# - `gradients`: one worker becomes three times slower. While it computes one gradient, how many do all 32 together, if
#   nobody waits? (Messages take no time here.)
# - `bound`: SSP: the largest bound with which no gradient can miss more than 200 updates of others
# - `workers`: asynchronous, equal workers, one weight, the loss 4·w²/2 (its gradient is 4w), a rate of 0.05: with how many
#   workers, at most, does it converge?
#
# Write numbers or formulas, right within 1 %.

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


runs = {}
for some, said in ((1, half + 0.5e9 / 50e9), (round(servers), 0.04 + 0.1)):
    world = World(32 + some, alpha=10e-6, beta=1 / 50e9, device="meta")
    world.run(exchange, some)
    name = f"{some} server{'s' * (some > 1)}"
    runs |= {f"{name}, predicted": said, f"{name}, run": world.time + 0.04}
study.bars(runs, unit="s", target=ring, note="ring", title="A step of 32 workers")

# %% [markdown] nbgrader={"grade_id": "leavers_spec"}
# ## 6 · Find the bug (2 points)
#
# SSP again, with no spare worker, but now workers have different numbers of steps, as in 3. The next cell was found in
# somebody's code. With equal numbers it is right.


# %% nbgrader={"grade_id": "leavers_broken"}
def leavers(comm, w, gradient, steps, rate, bound):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead. steps: a list, of ranks 1, 2, …"""
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
    print(*[line.partition(" at ")[0] for line in str(error).splitlines()], sep="\n")

# %% [markdown] nbgrader={"grade_id": "leavers_task"}
# Rank 0 waits for a push, and rank 1 for weights. Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `leavers(comm, w, gradient, steps, rate, bound)` on all ranks |
# | `steps` | a list: the steps of ranks 1, 2, …, each at least 1 |
# | the rest | as in 4, without `spare`; who has done all its steps holds nobody up |
#
# <details><summary>Hint</summary>
#
# Whose clock is the smallest when rank 2 has left? Whose should be?
#
# </details>


# %% nbgrader={"grade_id": "leavers", "solution": true}
def leavers(comm, w, gradient, steps, rate, bound):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead of those who still work."""
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
# **Target:** the run ends. Rank 1 takes its last steps alone.

# %%
run = World(3).run(on_demand, leavers, [6, 2], 0.1, 1)
study.table(
    [(i, rank, stale) for i, (rank, stale) in enumerate(run[0])], ["update", "rank", "staleness"]
)
