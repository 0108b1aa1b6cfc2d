# %% [markdown] nbgrader={"grade_id": "top"}
# # 03 Topology and cost: exercises
#
# You measure a link on a network that is never quiet, find out which ranks share a node, work out what shared wires
# cost, and find the rank that slows all others down.
#
# There are nine exercises, worth 17 points. The last one, worth 2, is open and graded by hand. Each of the others ends
# with a check, which tries your function on numbers that it draws anew each time, and says what is wrong. Try as often
# as you like. What your function prints is not shown by a check; to see it, call the function in a cell of your own. A
# cell that draws a picture runs your function in the notebook itself, and ends it if it takes too long.
#
# In your functions the library's collectives are refused, and so is its `bandwidth`. N is the number of bytes of the
# whole tensor; a message of N bytes takes α + Nβ. What you calculate must be right except for rounding, unless an
# exercise allows more.

# %% nbgrader={"grade_id": "setup"}
import math

import torch

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.comm.cluster import Cluster, Level

# %% [markdown] nbgrader={"grade_id": "fit_link_spec"}
# ## 1 · A link that is disturbed (2 points)
#
# In [the lesson](lesson:topology) two messages told you α and β. On a real network other programs send as well, and now
# and then a daemon wakes up. So one measures several sizes, each of them several times.
#
# | | |
# |---|---|
# | call | `fit_link(times)` |
# | `times` | a list of pairs (bytes, seconds), one for each message, in any order: at least three sizes, each measured nine times |
# | returns | a tuple (α, β), in seconds and in seconds per byte, each right within 3 % |
#
# Every message takes up to 1 % longer than α + Nβ. Of the nine messages of each size one, two or three were disturbed,
# and took 2 to 20 times as long. None was faster than it should be. α lies between 1 and 50 µs. At none of the sizes
# can α or Nβ be neglected. About 6 lines.
#
# <details><summary>Hint</summary>
#
# A disturbance only ever makes a message slower. Which of the nine times of a size is then the best one? With the best
# times of the smallest and the largest size you are back at two messages and one line.
#
# </details>


# %% nbgrader={"grade_id": "fit_link", "solution": true}
def fit_link(times):
    """(α, β) of a link, from messages some of which were disturbed."""
    ### BEGIN SOLUTION
    least = {}
    for nbytes, seconds in times:
        least[nbytes] = min(seconds, least.get(nbytes, math.inf))
    small, large = min(least), max(least)
    beta = (least[large] - least[small]) / (large - small)
    return least[small] - small * beta, beta
    ### END SOLUTION


# %% nbgrader={"grade_id": "fit_link_test", "points": 2}
check.fit_link(fit_link)

# %% [markdown] nbgrader={"grade_id": "fit_link_target"}
# **Target:** your line runs along the lower edge of the points. On this link α is 10 µs and a megabyte takes 20 µs.

# %%
random = torch.Generator().manual_seed(3)
times = []
for nbytes in (200_000, 500_000, 1_000_000, 2_000_000, 4_000_000):
    for factor in (1 + torch.rand(6, generator=random) / 100).tolist():
        times.append((nbytes, factor * (10e-6 + nbytes * 2e-11)))
    for factor in (2 + 4 * torch.rand(3, generator=random)).tolist():
        times.append((nbytes, factor * (10e-6 + nbytes * 2e-11)))
with check.limit(10):
    alpha, beta = fit_link(times)
sizes = [0, 4_000_000]
study.curves(
    {"your line": (sizes, [alpha + nbytes * beta for nbytes in sizes])},
    points={"messages": tuple(zip(*times))},
    xunit="B",
    yunit="s",
    xlabel="bytes of a message",
    ylabel="time",
    title=f"α = {1e6 * alpha:.0f} µs, 1/β = {1e-9 / beta:.0f} GB/s",
)

# %% [markdown] nbgrader={"grade_id": "find_nodes_spec"}
# ## 2 · Who shares a node? (2 points)
#
# You are given ranks, and nobody tells you which of them sit in the same machine. So you measure every pair: inside a
# node bytes are faster.
#
# | | |
# |---|---|
# | call | `find_nodes(betas)` |
# | `betas` | a list of n lists: `betas[i][j]` is how many seconds per byte were measured from rank i to rank j, and 0 where i is j |
# | returns | the nodes, a list of lists of ranks; the ranks of a node ascend, and so do the first ranks of the nodes |
#
# Except for noise of up to 5 %, all links inside nodes are alike, and so are all links between nodes. You are not told
# how fast either kind is, but between nodes a byte takes 2.5 to 12 times as long as inside. There are at least two
# nodes, and at least one of them has two ranks or more. Nodes may differ in size, some may have only one rank, and the
# ranks of a node need not be neighbours. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Of the n(n−1) numbers that are not 0, which one is certainly inside a node, and which one certainly between two nodes?
# Draw the line between these two. The node of a rank consists of the rank itself and of all that are near to it.
#
# </details>


# %% nbgrader={"grade_id": "find_nodes", "solution": true}
def find_nodes(betas):
    """The ranks of each node, from the seconds per byte of each pair."""
    ### BEGIN SOLUTION
    n = len(betas)
    measured = sorted(beta for row in betas for beta in row)[n:]
    limit = math.sqrt(min(measured) * max(measured))
    nodes = []
    for rank in range(n):
        node = [other for other in range(n) if betas[rank][other] < limit]
        if node[0] == rank:
            nodes.append(node)
    return nodes
    ### END SOLUTION


# %% nbgrader={"grade_id": "find_nodes_test", "points": 2}
check.find_nodes(find_nodes)

# %% [markdown] nbgrader={"grade_id": "find_nodes_target"}
# **Target:** two rows, with three ranks in each. Six ranks were dealt out to two nodes of the lesson's cluster.

# %%
machine = Cluster.dgx_h100(nodes=2)
gpus = [0, 8, 1, 9, 2, 10]  # the GPU of each rank; those below 8 are in the first node
betas = []
for src in gpus:
    betas.append([0.0 if src == dst else machine.link(src, dst)[1] for dst in gpus])
with check.limit(10):
    nodes = find_nodes(betas)
study.table([[str(node)] for node in nodes], ["ranks that share a node"])

# %% [markdown] nbgrader={"grade_id": "wire_seconds_spec"}
# ## 3 · Which wire is the busiest? (2 points)
#
# The lesson's section on shared wires ended with a question to ask of each step: which cable carries how many of these
# messages? Now answer it for any step.
#
# | | |
# |---|---|
# | call | `wire_seconds(messages, per_rack, alpha, beta)` |
# | `messages` | a list of (src, dst, bytes), all of which are ready to leave at the same time; **not changed** |
# | `per_rack` | how many ranks a rack has: rank r is in rack r // per_rack |
# | `alpha`, `beta` | α and β |
# | returns | the seconds that the step takes at least, as its busiest wire tells, a float; 0.0 if there is no message |
#
# Each rank has one port out and one port in. Each rack has one cable up to the spine and one cable down from it, which
# only messages to and from other racks use: such a message occupies its sender's port, the cable up from one rack, the
# cable down to the other, and its receiver's port. On each of these wires a byte takes β, and a wire carries no two
# bytes at once. A message arrives α after its last byte has left. A rank may send to several others and receive from
# several; no message goes from a rank to itself. About 8 lines.
#
# <details><summary>Hint</summary>
#
# Add up the bytes that each wire has to carry, in a dictionary: `("up", 1)` can be a key. All wires work at the same
# time, so the busiest of them decides. How often does α count?
#
# </details>


# %% nbgrader={"grade_id": "wire_seconds", "solution": true}
def wire_seconds(messages, per_rack, alpha, beta):
    """The seconds that a step takes at least, where each rack has one cable up and one down."""
    ### BEGIN SOLUTION
    carried = {}
    for src, dst, nbytes in messages:
        wires = [("out", src), ("in", dst)]
        if src // per_rack != dst // per_rack:
            wires += [("up", src // per_rack), ("down", dst // per_rack)]
        for wire in wires:
            carried[wire] = carried.get(wire, 0) + nbytes
    return alpha + max(carried.values()) * beta if carried else 0.0
    ### END SOLUTION


# %% nbgrader={"grade_id": "wire_seconds_test", "points": 2}
check.wire_seconds(wire_seconds)

# %% [markdown] nbgrader={"grade_id": "wire_seconds_target"}
# **Target:** the points stand on the line. The line is your formula, and the points are runs of a World in which four
# ranks share each cable to the spine. Each of 16 ranks sends a megabyte to the rank that sits so many places further
# on.

# %%
ALPHA, BETA = 5e-6, 1 / 50e9


def shifted(comm, distance):
    x = torch.empty(10**6, dtype=torch.uint8, device="meta")
    comm.sendrecv(x, (comm.rank + distance) % 16, torch.empty_like(x), (comm.rank - distance) % 16)


distances = list(range(1, 9))
runs = []
links = {"nic": Level(ALPHA, BETA), "spine": Level(0.0, BETA, share=4)}
racks = Cluster("racks", links=links, nodes=16, rack=4)
for distance in distances:
    world = World(16, cluster=racks, device="meta")
    world.run(shifted, distance)
    runs.append(world.time)
yours = []
with check.limit(10):
    for distance in distances:
        messages = [(rank, (rank + distance) % 16, 10**6) for rank in range(16)]
        yours.append(wire_seconds(messages, 4, ALPHA, BETA))
study.curves(
    {"your formula": (distances, yours)},
    points={"a World": (distances, runs)},
    yunit="s",
    xlabel="distance of the partner",
    ylabel="time of a step",
    title="16 ranks in racks of 4",
)

# %% [markdown] nbgrader={"grade_id": "size_for_spec"}
# ## 4 · How large must it be? (2 points)
#
# The lesson asked for the tensor with which a ring all-reduce uses half of the wire. Now ask for any part of it, and
# for other collectives as well.
#
# | | |
# |---|---|
# | call | `size_for(verb, fraction, n, alpha, beta)` |
# | `verb` | `"all_reduce"`, a ring of 2(n−1) steps, in each of which a rank sends N/n bytes; `"all_gather"`, a ring of n−1 such steps; or `"broadcast"`, in which the root sends all N bytes to each of the n−1 others, and waits for each message to arrive |
# | `fraction` | the bus bandwidth that is wanted, as a part of a wire's bandwidth 1/β; between 0 and 1 |
# | `n` | the number of ranks, at least 2 |
# | returns | N, the bytes of the whole tensor, a float that is not rounded; `math.inf` if no tensor is large enough |
#
# The factors of the bus bandwidth are the lesson's. About 5 lines.
#
# <details><summary>Hint</summary>
#
# Write down the time T and then the bus bandwidth, which is the factor times N/T. Set it equal to fraction/β and solve
# for N. For the broadcast, look at what becomes of the bus bandwidth as N grows without end.
#
# </details>


# %% nbgrader={"grade_id": "size_for", "solution": true}
def size_for(verb, fraction, n, alpha, beta):
    """Bytes of the whole tensor with which the bus bandwidth is that fraction of a wire's."""
    ### BEGIN SOLUTION
    if verb == "broadcast":
        times = fraction * (n - 1)
        return times / (1 - times) * alpha / beta if times < 1 else math.inf
    return fraction / (1 - fraction) * n * alpha / beta
    ### END SOLUTION


# %% nbgrader={"grade_id": "size_for_test", "points": 2}
check.size_for(size_for)

# %% [markdown] nbgrader={"grade_id": "size_for_target"}
# **Target:** the lines of the two rings coincide. The broadcast's line goes up steeply and ends before 1/3: on four ranks
# the root sends everything three times, so no tensor makes better use of its wire.

# %%
fractions = [k / 20 for k in range(1, 20)]
lines = {}
with check.limit(10):
    for verb in ("all_reduce", "all_gather", "broadcast"):
        found = [(part, size_for(verb, part, 4, ALPHA, BETA)) for part in fractions]
        lines[verb] = tuple(zip(*[pair for pair in found if pair[1] < math.inf]))
study.curves(
    lines,
    logy=True,
    yunit="B",
    xlabel="part of the wire",
    ylabel="bytes of the tensor",
    title="How large a tensor must be, on 4 ranks",
)

# %% [markdown] nbgrader={"grade_id": "bandwidth_spec"}
# ## 5 · Bandwidth, as it is measured (1 point)
#
# A benchmark does not know N and T. It knows what each rank has handed in, and how long each rank was busy.
#
# | | |
# |---|---|
# | call | `bandwidth(verb, n, nbytes, seconds)` |
# | `verb` | `"all_reduce"`, `"reduce_scatter"`, `"all_gather"`, `"all_to_all"`, `"broadcast"` or `"reduce"` |
# | `n` | the number of ranks, at least 2 |
# | `nbytes` | the bytes that **one rank hands in**: in an all-gather this is its part of the whole tensor, otherwise it is all of it |
# | `seconds` | a list of n numbers: how long the collective took on each rank, counted from a common start |
# | returns | a tuple (algorithm bandwidth, bus bandwidth), in bytes per second and not rounded |
#
# The **algorithm bandwidth** is N, the bytes of the whole tensor, divided by the seconds that the collective took. The
# bus bandwidth is the algorithm bandwidth times a factor: the number of bytes that the busiest rank *must* send, or
# receive, as a part of N. About 8 lines.
#
# <details><summary>Hint</summary>
#
# The ring sends as little as is possible: 2(n−1)/n of N in an all-reduce. Reduce-scatter and all-gather are its two
# halves. In an all-to-all each rank keeps 1/n of what it hands in. In a broadcast all N bytes must leave the root, and
# in a reduce all N bytes must reach it.
#
# </details>


# %% nbgrader={"grade_id": "bandwidth", "solution": true}
def bandwidth(verb, n, nbytes, seconds):
    """(algorithm bandwidth, bus bandwidth) in bytes per second, as nccl-tests define them."""
    ### BEGIN SOLUTION
    whole = n * nbytes if verb == "all_gather" else nbytes
    slowest = max(seconds)
    part = (n - 1) / n
    factor = {
        "all_reduce": 2 * part,
        "reduce_scatter": part,
        "all_gather": part,
        "all_to_all": part,
    }.get(verb, 1)
    return whole / slowest, factor * whole / slowest
    ### END SOLUTION


# %% nbgrader={"grade_id": "bandwidth_test", "points": 1}
check.bandwidth(bandwidth)

# %% [markdown] nbgrader={"grade_id": "bandwidth_target"}
# **Target:** one line falls, and the other stays near the 50 GB/s of the wires. The ring has not become worse: it has
# more to do.

# %%
ns = [2, 3, 4, 6, 8, 12, 16, 24, 32]
found = []
with check.limit(10):
    for n in ns:
        seconds = 2 * (n - 1) * (ALPHA + 1e9 / n * BETA)
        found.append(bandwidth("all_reduce", n, 10**9, [seconds] * n))
lines = {
    "algorithm bandwidth": (ns, [a / 1e9 for a, _ in found]),
    "bus bandwidth": (ns, [b / 1e9 for _, b in found]),
}
study.curves(
    lines, yunit="GB/s", xlabel="ranks, n", ylabel="bandwidth", title="A ring all-reduce of 1 GB"
)

# %% [markdown] nbgrader={"grade_id": "predict_cost_spec"}
# ## 6 · Predict (2 points)
#
# α = 5 µs, and β = 1/(50 GB/s) = 2·10⁻¹¹ s. A pencil is enough.
#
# - `shared`: each rank sends 64 MB (64·10⁶ bytes) to a rank of another rack, all at the same time. A cable to the spine
#   is as fast as a rank's port, and 8 ranks share it. How long does the step take?
# - `filled`: from how many bytes on does a ring all-reduce on 16 ranks use 90 % of the wires?
# - `bus`: an all-reduce of 10⁹ bytes on 16 ranks takes 50 ms. What is its bus bandwidth?
# - `late`: each rank is late in one step out of a thousand, by chance. How likely is it that a step of all 512 ranks
#   has to wait for somebody?
# - `even`: with how many ranks does a step have to wait as often as not? It need not be a whole number.
#
# Write numbers or formulas, in seconds, bytes, and bytes per second, that are right within 1 %.

# %% nbgrader={"grade_id": "predict_cost", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_cost.numbers(STUDENT)
shared = filled = bus = late = even = None
### BEGIN SOLUTION
alpha = 5e-6
beta = 1 / 50e9
shared = alpha + 8 * 64e6 * beta
filled = 0.9 / 0.1 * 16 * alpha / beta
bus = 2 * 15 / 16 * 1e9 / 0.05
late = 1 - 0.999**512
even = math.log(0.5) / math.log(0.999)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_cost_test", "points": 2}
check.predict_cost(shared, filled, bus, late, even, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "find_slow_spec"}
# ## 7 · Who is slow? (2 points)
#
# An all-reduce takes as long as its slowest rank. All ranks end late, all of them wait, and nobody says for whom. The
# trace knows, for every message is in it.
#
# | | |
# |---|---|
# | call | `find_slow(trace)` |
# | `trace` | the trace of any program; iterate over it: messages with `src`, `dst`, `nbytes` (never 0), `start`, `sent` and `arrived` |
# | returns | the number of the slow rank, an int |
#
# One rank has a bad cable: each byte that it sends or receives takes 1.5 to 4 times as long. From `start` to `sent` a
# message occupies its sender's wire and its receiver's. The times of all messages vary a little, by chance. There are
# at least four ranks, and each of them sends or receives. About 6 lines.
#
# <details><summary>Hint</summary>
#
# A message takes (sent − start) / nbytes seconds per byte, and it counts for its sender and for its receiver. A
# neighbour of the slow rank has slow messages, too, but not only slow ones. So take the mean over all messages of a
# rank.
#
# </details>


# %% nbgrader={"grade_id": "find_slow", "solution": true}
def find_slow(trace):
    """The rank whose messages, in and out, take longer than the others'."""
    ### BEGIN SOLUTION
    paces = {}
    for m in trace:
        for rank in (m.src, m.dst):
            paces.setdefault(rank, []).append((m.sent - m.start) / m.nbytes)
    return max(paces, key=lambda rank: sum(paces[rank]) / len(paces[rank]))
    ### END SOLUTION


# %% nbgrader={"grade_id": "find_slow_test", "points": 2}
check.find_slow(find_slow)

# %% [markdown] nbgrader={"grade_id": "find_slow_target"}
# **Target:** rank 4. Could you have told from the picture? All ranks wait, and all of them end together.

# %%
world = World(
    6, cluster=Cluster.uniform(6, ALPHA, BETA).slow_rank(4, 2.5).jitter(0.05), device="meta"
)
world.run(lambda comm: all_reduce_(comm, torch.empty(6 * 10**6, dtype=torch.uint8, device="meta")))
with check.limit(10):
    slow = find_slow(world.trace)
study.timeline(world.trace, title=f"Ring all-reduce on 6 ranks. The slow one is rank {slow}")

# %% [markdown] nbgrader={"grade_id": "renumber_spec"}
# ## 8 · Who is whose neighbour? (2 points)
#
# In the lesson a bad numbering of the ranks made a ring several times as slow. Given a bad numbering, find a good one.
#
# | | |
# |---|---|
# | call | `renumber(places)` |
# | `places` | a list: `places[r]` is the pair (rack, node) of rank r; each rack counts its nodes from 0 |
# | returns | a list of n integers: the **new number of each rank**, from 0 to n−1, as `comm.split([0] * n, numbers)` takes it. Rank 0 keeps the number 0, because it prints and saves |
#
# In the ring each rank sends to the one with the next number, and the last one sends to number 0. Of these n messages
# as few as possible should go from one rack to another, and as few as possible from one node to another. Racks may have
# any numbers, racks and nodes may differ in size, and there may be only one rank. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Put the ranks in an order in which the ranks of a rack follow one another, and within the rack those of a node. A ring
# may begin anywhere, so let it begin with rank 0. Then mind what is asked for: not which rank is at each place of the
# ring, but at which place each rank is.
#
# </details>


# %% nbgrader={"grade_id": "renumber", "solution": true}
def renumber(places):
    """The new number of each rank, so that a ring crosses between racks and nodes as seldom as possible."""
    ### BEGIN SOLUTION
    ring = sorted(range(len(places)), key=lambda rank: places[rank])
    first = ring.index(0)
    numbers = [0] * len(places)
    for place, rank in enumerate(ring):
        numbers[rank] = (place - first) % len(places)
    return numbers
    ### END SOLUTION


# %% nbgrader={"grade_id": "renumber_test", "points": 2}
check.renumber(renumber)

# %% [markdown] nbgrader={"grade_id": "renumber_target"}
# **Target:** the second bar is as short as the third. The ranks of 64 GPUs were dealt out, one to each node in turn,
# and with your numbers the ring is as fast as in order.

# %%
pod = Cluster.dgx_h100(nodes=8, oversubscription=8)
dealt = [rank % 8 * 8 + rank // 8 for rank in range(64)]  # the GPU of each rank, as it was dealt
with check.limit(10):
    repaired = renumber([pod.place(gpu)[:2] for gpu in dealt])
seated = [repaired[dealt.index(gpu)] for gpu in range(64)]


def ring(comm, numbers):
    comm = comm.split([0] * comm.size, numbers)
    x = torch.empty(64 * 10**6, dtype=torch.uint8, device="meta")
    all_reduce_(comm, x, algorithm="ring")


times = {}
for name, numbers in {"dealt out": dealt, "yours": seated, "in order": list(range(64))}.items():
    world = World(64, cluster=pod, device="meta", meter=False)
    world.run(ring, numbers)
    times[name] = world.time
study.bars(times, unit="s", title="A ring of 64 MB on 64 GPUs")

# %% [markdown] nbgrader={"grade_id": "cables_spec"}
# ## 9 · How many may share a cable? (2 points, graded by hand)
#
# A company wants to buy eight nodes of eight H100 and to save on the cables to the spine: in `Cluster.dgx_h100(nodes=8,
# oversubscription=k)` k ranks share each of them. In each step of its training the ranks compute for 40 ms, and then a
# ring all-reduces 256 MB. **Up to which k of 1, 2, 4, 8 and 16 does a step take less than 5 % longer than with k = 1,
# if the ranks are numbered in order, and if a scheduler deals them out, one to each node in turn? Which k would you
# buy?**
#
# Answer with a plot and about ten sentences. The picture of exercise 8 shows how to run a ring with any numbers. Your
# teacher gives:
#
# - **1 point for the plot and the two numbers.** The time of a step against k, as runs of a World, for both numberings,
#   with names and units on both axes; for each numbering the largest k that will do, and how much longer a step takes
#   with the next one, if there is one.
# - **1 point for the reason and the choice.** Which messages of a step of the ring use the cables, and how many of them
#   share one, for both numberings; why k = 16 is no worse than k = 8; and which k you would buy, with the condition on
#   which your choice depends.


# %% nbgrader={"grade_id": "cables_plot", "solution": true}
### BEGIN SOLUTION
def all_reduce_256(comm, numbers):
    comm = comm.split([0] * comm.size, numbers)
    x = torch.empty(256 * 10**6, dtype=torch.uint8, device="meta")
    all_reduce_(comm, x, algorithm="ring")


shares = [1, 2, 4, 8, 16]
steps = {}
for name, numbers in {"dealt out": dealt, "in order": list(range(64))}.items():
    seconds = []
    for share in shares:
        cluster = Cluster.dgx_h100(nodes=8, oversubscription=share)
        world = World(64, cluster=cluster, device="meta", meter=False)
        world.run(all_reduce_256, numbers)
        seconds.append(0.040 + world.time)
    steps[name] = (shares, seconds)
    longer = [f"{each / seconds[0] - 1:.0%}" for each in seconds]
    print(f"{name}: longer by", ", ".join(longer))
bound = 1.05 * steps["in order"][1][0]
study.curves(
    {"5 % longer than with k = 1": (shares, [bound] * len(shares))},
    points=steps,
    logx=True,
    yunit="s",
    xlabel="ranks that share a cable, k",
    ylabel="time of a step",
    title="40 ms of computing and a ring of 256 MB, on 64 GPUs",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "cables", "solution": true, "points": 2}
# In order, every k will do: with k = 16 a step takes 40 ms + 12.4 ms = 52.4 ms, as with k = 1. Dealt out, only k = 1
# will do. With k = 2 the all-reduce takes 21.0 ms instead of 12.4, so that a step is 16 % longer; with k = 4 it is 57 %
# longer, and with k = 8 and k = 16 it takes 124 ms, 137 % longer.
#
# In each of the 126 steps of the ring every rank sends one message to the next number. In order, the next number sits
# in the same node or, for the last rank of a node, in the next one. So only one message leaves each rack and only one
# enters it, and no cable is ever shared. Dealt out, the next number always sits in the next node. The last node of each
# rack then sends to the other rack with all of its eight ranks at once, and k of these messages share a cable, one
# after another. More than eight never do, because no more than eight messages leave a rack; the other ranks of a cable
# with k = 16 send inside the rack. That is why 16 is no worse than 8.
#
# I would buy k = 16 on one condition: that my program renumbers its ranks, as in exercise 8, whatever the scheduler
# does. If it cannot, or if other traffic than rings is planned, such as an all-to-all between racks or several jobs
# side by side, I would pay for k = 1.
