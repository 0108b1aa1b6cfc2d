# %% [markdown] nbgrader={"grade_id": "top"}
# # 03 Topology and cost: exercises
#
# You measure links that do not hold still, find out who sits where, predict what shared wires cost, and find who is
# slow.
#
# Nine exercises, 17 points. After each of the first eight, run the check: it tries your function on numbers that you do
# not know, and says what is wrong. Try as often as you like. What your function prints is not shown there; to see it,
# call the function in a cell of your own. The last exercise is read by a person.
#
# The library's own functions are refused. N is the number of bytes of the whole tensor; a message of N bytes takes
# α + Nβ. Numbers that you calculate are right but for rounding; where more is allowed, the exercise says so.

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
# In [the lesson](lesson:topology) two messages told you α and β. On a real network other programs send, too, and a
# daemon wakes up now and then. So one measures several sizes, each several times.
#
# | | |
# |---|---|
# | call | `fit_link(times)` |
# | `times` | a list of (bytes, seconds), one for each message, in any order: at least three sizes, each measured 9 times |
# | returns | (α, β), in seconds and in seconds per byte, each right within 3 % |
#
# Every time is up to 1 % longer than α + Nβ. Of the nine of a size one, two or three were disturbed: they took 2 to 20
# times as long. No time is shorter than it should be. α is between 1 and 50 µs; of the smallest message's time β has a
# part that matters, and of the largest one's time α has. About 6 lines.
#
# <details><summary>Hint</summary>
#
# A disturbance only ever makes a time longer. Which of the nine times of a size is then the best? With the smallest and
# the largest size you are back at two messages and one line.
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

# %% [markdown] nbgrader={"grade_id": "find_nodes_spec"}
# ## 2 · Who shares a node? (2 points)
#
# Somebody gives you ranks, and does not say which of them sit in one machine. Measure every pair: inside a node bytes are
# faster.
#
# | | |
# |---|---|
# | call | `find_nodes(betas)` |
# | `betas` | a list of n lists: `betas[i][j]` are the seconds per byte that were measured from rank i to rank j, and 0 where i is j |
# | returns | the nodes, a list of lists of ranks: in each the ranks ascend, and so do the first ranks of the nodes |
#
# All links in nodes are alike, and all links between nodes, but for 5 % of noise; how fast either is you are not told.
# Between nodes a byte takes 2.5 to 12 times as long as inside. There are at least two nodes, and one of them at least has
# two ranks or more. Nodes need not have equally many ranks, some have one, and ranks of a node need not be neighbours.
# About 8 lines.
#
# <details><summary>Hint</summary>
#
# Of all n(n−1) numbers that are not 0, which are certain to be inside a node, and which between two? Draw the line between those.
# The node of a rank is then made of the ranks that are near to it, and itself.
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

# %% [markdown] nbgrader={"grade_id": "wire_seconds_spec"}
# ## 3 · Which wire is the busiest? (2 points)
#
# The lesson ended its section on shared wires with a question to ask of every step: which cable carries how many of
# these messages? Now answer it for any step.
#
# | | |
# |---|---|
# | call | `wire_seconds(messages, per_rack, alpha, beta)` |
# | `messages` | a list of (src, dst, bytes), all of which are ready to leave at the same time; **not changed** |
# | `per_rack` | ranks of a rack: rank r is in rack r // per_rack |
# | returns | the least seconds in which all can have arrived, a float; 0 without a message |
#
# Each rank has a port out and a port in. Each rack has one cable up to the spine and one down from it, which only
# messages to other racks use: a message then needs its sender's port, the cable up of one rack, the cable down of the
# other, and its receiver's port, all at the same time. A wire carries one message after another, and a byte
# takes β on any of them. A message arrives α after its last byte has left. A rank may send to several others, and
# receive from several; no message goes from a rank to itself.
#
# <details><summary>Hint</summary>
#
# Add up the bytes that each wire has to carry, in a dictionary: `("up", 1)` can be a key. All wires work at the
# same time, so the busiest of them decides. How often does α count?
#
# </details>


# %% nbgrader={"grade_id": "wire_seconds", "solution": true}
def wire_seconds(messages, per_rack, alpha, beta):
    """The least seconds that a step of messages takes, where each rack has a cable up and one down."""
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
# **Target:** the points stand on the line: a World in which four ranks share each cable, and your numbers. Each of
# 16 ranks sends a megabyte to the rank that sits so much further on.

# %%
ALPHA, BETA = 5e-6, 1 / 50e9


def shifted(comm, distance):
    x = torch.empty(10**6, dtype=torch.uint8, device="meta")
    comm.sendrecv(x, (comm.rank + distance) % 16, torch.empty_like(x), (comm.rank - distance) % 16)


distances, runs = list(range(1, 9)), []
links = {"nic": Level(ALPHA, BETA), "spine": Level(0.0, BETA, share=4)}
racks = Cluster("racks", links=links, nodes=16, rack=4)
for distance in distances:
    world = World(16, cluster=racks, device="meta")
    world.run(shifted, distance)
    runs.append(world.time)
mine = [
    wire_seconds([(r, (r + d) % 16, 10**6) for r in range(16)], 4, ALPHA, BETA) for d in distances
]
study.curves(
    {"your formula": (distances, mine)},
    points={"a World": (distances, runs)},
    yunit="s",
    xlabel="distance of the partner",
    ylabel="time of a step",
    title="16 ranks in racks of 4",
)

# %% [markdown] nbgrader={"grade_id": "size_for_spec"}
# ## 4 · How large to be worth it? (2 points)
#
# The lesson asked for the tensor with which a ring all-reduce uses half of the wire. Ask for any part of it, and of
# other collectives.
#
# | | |
# |---|---|
# | call | `size_for(verb, fraction, n, alpha, beta)` |
# | `verb` | `"all_reduce"`, a ring of 2(n−1) steps, each with a message of N/n bytes; `"all_gather"`, a ring of n−1 such steps; or `"broadcast"`, in which the root sends all N bytes to each of the n−1 others, and waits for each message to arrive |
# | `fraction` | between 0 and 1: the part of a wire's bandwidth, 1/β, that the bus bandwidth is to be |
# | n | at least 2 |
# | returns | N, the bytes of the whole tensor, a float that is not rounded; `math.inf` if no tensor is large enough |
#
# The factors of the bus bandwidth are those of the lesson.
#
# <details><summary>Hint</summary>
#
# Write down the time T, then the bus bandwidth, factor · N/T, set it equal to fraction/β, and solve for N. For the
# broadcast look at what becomes of the bus bandwidth when N grows without end.
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

# %% [markdown] nbgrader={"grade_id": "bandwidth_spec"}
# ## 5 · Bandwidth, as it is measured (1 point)
#
# A benchmark does not know N and T. It knows what each rank handed in, and how long each rank was busy.
#
# | | |
# |---|---|
# | call | `bandwidth(verb, n, nbytes, seconds)` |
# | `verb` | `"all_reduce"`, `"reduce_scatter"`, `"all_gather"`, `"all_to_all"`, `"broadcast"` or `"reduce"` |
# | `nbytes` | the bytes that **one rank hands in**: in an all-gather its part of the whole tensor, else all of it |
# | `seconds` | a list of n numbers: how long the collective took on each rank, from a start that they have in common |
# | returns | (algorithm bandwidth, bus bandwidth), bytes per second, not rounded |
#
# **Algorithm bandwidth** is the whole tensor's N over the seconds of the collective. Bus bandwidth is algorithm
# bandwidth times a factor: the least bytes that the busiest rank *must* send, or receive, as a part of N.
#
# <details><summary>Hint</summary>
#
# The ring sends the least that is possible: 2(n−1)/n of N in an all-reduce. Reduce-scatter and all-gather are its two
# halves. In an all-to-all each rank keeps 1/n of its own. In a broadcast all N must leave the root, in a reduce all N
# must reach it.
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
# **Target:** one line falls, the other stays near the 50 GB/s of the wires. The ring has not become worse: it has more
# to do.

# %%
ns = [2, 3, 4, 6, 8, 12, 16, 24, 32]
found = [bandwidth("all_reduce", n, 1e9, [2 * (n - 1) * (ALPHA + 1e9 / n * BETA)] * n) for n in ns]
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
# α = 5 µs, β = 1/(50 GB/s) = 2·10⁻¹¹ s. A pencil is enough.
#
# - `shared`: each rank sends 64 MB (64·10⁶ bytes) to a rank of another rack, all at the same time. 8 ranks share a cable
#   to the spine, which is as fast as a rank's port. How long does the step take?
# - `filled`: from how many bytes on does a ring all-reduce on 16 ranks use 90 % of the wires?
# - `bus`: an all-reduce of 10⁹ bytes on 16 ranks takes 50 ms. What is its bus bandwidth?
# - `late`: each rank is late in one step of a thousand, by accident. How likely is it that a step of all 512 has to
#   wait for somebody?
# - `even`: with how many ranks does a step have to wait as often as not? It need not be a whole number.
#
# Write numbers or formulas, in seconds, bytes, and bytes per second, right within 1 %.

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
# An all-reduce takes as long as its slowest rank. All ranks end late, all wait, and nobody says for whom. The trace
# knows: it has every message that was sent.
#
# | | |
# |---|---|
# | call | `find_slow(trace)` |
# | `trace` | of any program; iterate over it: messages with `src`, `dst`, `nbytes`, `start`, `sent`, `arrived` |
# | returns | the number of the slow rank, an int |
#
# One rank has a bad cable: each byte takes 1.5 to 4 times as long, in what it sends and in what it receives. From
# `start` to `sent` a message is on its sender's wire and on its receiver's. The times of all messages vary a little, by
# accident. There are at least four ranks. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Seconds per byte of a message: (sent − start) / nbytes. Every message is its sender's and its receiver's. A neighbour
# of the slow rank has slow messages, too, but not only: so take the mean over all messages of a rank.
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
# **Target:** rank 4. Could you have told from the picture? All are waiting, and all end together.

# %%
world = World(
    6, cluster=Cluster.uniform(6, ALPHA, BETA).slow_rank(4, 2.5).jitter(0.05), device="meta"
)
world.run(lambda comm: all_reduce_(comm, torch.empty(6 * 10**6, dtype=torch.uint8, device="meta")))
study.timeline(
    world.trace, title=f"Ring all-reduce on 6 ranks. The slow one is rank {find_slow(world.trace)}"
)

# %% [markdown] nbgrader={"grade_id": "renumber_spec"}
# ## 8 · Who is whose neighbour? (2 points)
#
# In the lesson a bad numbering of the ranks made a ring several times as slow. Given a bad numbering, find a good one.
#
# | | |
# |---|---|
# | call | `renumber(places)` |
# | `places` | a list: `places[r]` is (rack, node) of rank r; each rack counts its nodes from 0 on |
# | returns | a list of n numbers: the **new number of each rank**, from 0 to n−1, as `comm.split([0] * n, numbers)` takes it. Rank 0 keeps number 0, since it prints and saves |
#
# In the ring each rank sends to the one with the next number, and the last to number 0. Of its n messages as few as can
# be should go from one rack to another, and as few as can be from one node to another. Racks may have any numbers, racks
# and nodes need not have equally many ranks, and there may be one rank. About 6 lines.
#
# <details><summary>Hint</summary>
#
# Put the ranks in an order in which those of a rack follow one another, and in the rack those of a node. A ring may begin
# anywhere, so begin it with rank 0. Then mind what is asked for: not the rank at each place of the ring, but the place
# of each rank.
#
# </details>


# %% nbgrader={"grade_id": "renumber", "solution": true}
def renumber(places):
    """The new number of each rank, so that a ring crosses between racks and nodes as seldom as can be."""
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
# **Target:** the ranks of 64 GPUs were dealt out, one to each node in turn; your numbers make the ring what it was in
# order.

# %%
pod = Cluster.dgx_h100(nodes=8, oversubscription=8)
dealt = [rank % 8 * 8 + rank // 8 for rank in range(64)]  # the GPU of each rank, as it was dealt
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
# ## 9 · How many may share a cable? (2 points)
#
# A company wants to buy eight nodes of eight H100, and to save on the cables to the spine:
# `Cluster.dgx_h100(nodes=8, oversubscription=k)` lets k ranks share each of them. A step of theirs computes for 40 ms,
# then a ring all-reduces 256 MB, on ranks that are numbered in order. **Up to which k of 1, 2, 4, 8 and 16 does a step
# become less than 5 % longer than with k = 1? And which k would you buy if a scheduler deals the ranks out?** Draw the
# time of a step against k, with both numberings. Below the picture, answer in five sentences at most.
#
# A person reads this. One point: for both numberings a k that the picture shows, with how much longer the step becomes.
# One point: a picture with both axes named and their units, and a reason that says which of the ring's messages use the
# cables, and how many share one. Half a point each where the numbers are right and what they follow from is missing, or
# the other way round.

# %%
# your picture

# %% [markdown] nbgrader={"grade_id": "cables", "solution": true, "points": 2}
# In order, any k: a step takes 40 + 12.4 = 52.4 ms also with k = 16. In each step of the ring one message leaves a rack
# and one enters it, so nobody shares a cable. Dealt out, only k = 1: all eight ranks of the last node of a rack send to the
# other rack at once, and k of them, up to eight, share a cable. With k = 2 the all-reduce takes 21 ms and a step 16 % longer;
# with k = 8 it takes 84 ms. More than eight change nothing, as no more than eight cross.
