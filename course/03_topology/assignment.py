# %% [markdown] nbgrader={"grade_id": "top"}
# # 03 Topology and cost: exercises
#
# You build the broadcasts and all-reduces that do what a ring cannot, write down what they cost, and find who is slow.
#
# Eight exercises, 18 points. After each, run the check: it tries your function on hidden sizes, in Worlds and in real
# processes, and says what is wrong. It also counts messages and bytes, and looks at the World's clock. Try as often as
# you like. What your function prints is not shown there; to see it, run the function in a `World` of your own.
#
# The collectives of the library are refused, except where an exercise says so: build with `comm.send`, `recv`,
# `sendrecv`, `isend`, `irecv`, and wait for all that you post, before you return. A nan is passed on as any number. N is the number of bytes of the whole tensor; a message of N bytes takes α + Nβ.

# %% nbgrader={"grade_id": "setup"}
import math

import torch
from IPython.display import display

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.comm import World
from minidist.comm.cluster import Cluster

# %% [markdown] nbgrader={"grade_id": "tree_broadcast_spec"}
# ## 1 · Broadcast by a tree (3 points)
#
# One rank, the root, has the numbers. In every round, everyone who has them sends them to one who has not. So in each
# round twice as many have them.
#
# | | |
# |---|---|
# | call | `tree_broadcast(comm, x, root)` |
# | `x` | any shape, contiguous or not, the same on every rank; afterwards it holds the root's numbers, **in place** |
# | returns | nothing |
# | cost | n−1 messages in all, and ⌈log2 n⌉ rounds: on a clock with α = 0 they take ⌈log2 n⌉ · Nβ |
#
# Any n, any root. **Invariant:** after round k = 0, 1, 2, … the first 2^(k+1) ranks have x, counted from the root on:
# root, root+1, root+2, … (mod n). About 8 lines.
#
# <details><summary>Hint</summary>
#
# Let `place = (comm.rank - root) % comm.size`: the root has place 0. With `reach` = 1, 2, 4, … below n: a place below
# `reach` has x, and sends it to place + reach, if there is such a place. A place from `reach` to 2·reach−1 receives it
# in this round. And place p is rank (root + p) % n.
#
# </details>


# %% nbgrader={"grade_id": "tree_broadcast", "solution": true}
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    ### BEGIN SOLUTION
    n = comm.size
    place = (comm.rank - root) % comm.size
    reach = 1
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(x, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            comm.recv(x, (root + place - reach) % n)
        reach *= 2
    ### END SOLUTION


# %% nbgrader={"grade_id": "tree_broadcast_test", "points": 3}
check.tree_broadcast(tree_broadcast)

# %% [markdown] nbgrader={"grade_id": "tree_broadcast_target"}
# **Target:** three rounds: one arrow, two arrows, four. Compare with lesson 02, where the root sent all seven itself.

# %%
world = World(8)
world.run(tree_broadcast, torch.zeros(1000), 0)
study.messages(world.trace, clock="steps", label=None, title="Your broadcast on 8 ranks")

# %% [markdown] nbgrader={"grade_id": "halving_doubling_spec"}
# ## 2 · All-reduce by halving and doubling (3 points)
#
# As few steps as a tree, and as few bytes as a ring.
#
# | | |
# |---|---|
# | call | `halving_doubling(comm, x)` |
# | `x` | contiguous, any shape and length, the same on every rank; afterwards it holds the sum, **in place** |
# | n | a power of 2 |
# | returns | nothing |
# | cost | 2·log2 n messages a rank; 2(n−1)/n·N bytes if n divides the length |
#
# **Halving.** In each step you have a part of x, at first all of it. You and a partner cut it into two halves; one of
# you keeps the first, the other the second. Send the half that the partner keeps, and add what comes to yours. Partners
# are n/2 ranks apart, then n/4, …, then 1. In the end each rank has the whole sum of 1/n of x.
#
# **Doubling.** The same steps backwards: send the half that you kept, receive the half that you gave away.
# About 12 lines.
#
# <details><summary>Hint</summary>
#
# With a `distance` that is a power of 2, `comm.rank ^ distance` is the partner, and `comm.rank & distance` says whether
# you are the upper one of the two. `part.tensor_split(2)` gives two halves that share their memory with x, also of an
# odd length. Keep a list of what was kept and what was given, and walk it backwards.
#
# </details>


# %% nbgrader={"grade_id": "halving_doubling", "solution": true}
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place; n is a power of 2."""
    ### BEGIN SOLUTION
    part = x.view(-1)
    distance = comm.size // 2
    steps = []
    while distance:
        partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)
        keep, give = (high, low) if comm.rank & distance else (low, high)
        keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)
        steps.append((partner, keep, give))
        part, distance = keep, distance // 2
    for partner, keep, give in reversed(steps):
        comm.sendrecv(keep, partner, give, partner)
    ### END SOLUTION


# %% nbgrader={"grade_id": "halving_doubling_test", "points": 3}
check.halving_doubling(halving_doubling)

# %% [markdown] nbgrader={"grade_id": "halving_doubling_target"}
# **Target:** a butterfly. Six steps on 8 ranks, where a ring has 14, and 7,000 bytes from each rank, as in a ring.

# %%
world = World(8)
world.run(halving_doubling, torch.zeros(1000))
assert all(world.trace.bytes_sent(r) == 7000 for r in range(8))
study.messages(
    world.trace, clock="steps", label=None, title="Your all-reduce of 4,000 bytes on 8 ranks"
)

# %% [markdown] nbgrader={"grade_id": "all_reduce_seconds_spec"}
# ## 3 · What they cost (2 points)
#
# Write the three costs of an all-reduce as formulas. The check compares them with the clock of a World, on numbers that
# you do not know.
#
# | | |
# |---|---|
# | call | `all_reduce_seconds(algorithm, n, nbytes, alpha, beta)` |
# | `algorithm` | `"ring"`, `"tree"` (added up along a tree to a root, and back by a tree) or `"halving_doubling"` |
# | n | any for the ring, a power of 2 for the others; 1 costs nothing |
# | `nbytes` | N, the bytes of the whole tensor; n divides it |
# | returns | seconds, a float |
#
# <details><summary>Hint</summary>
#
# A ring: 2(n−1) steps, each with a chunk of N/n bytes. A tree: 2·log2 n steps, each with all N. Halving and doubling:
# 2·log2 n steps, in which each rank sends 2(n−1)/n·N bytes altogether. `math.log2` exists.
#
# </details>


# %% nbgrader={"grade_id": "all_reduce_seconds", "solution": true}
def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    """Seconds of an all-reduce of nbytes on n ranks."""
    ### BEGIN SOLUTION
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return 2 * math.log2(n) * (alpha + nbytes * beta)
    return 2 * math.log2(n) * alpha + 2 * (n - 1) / n * nbytes * beta
    ### END SOLUTION


# %% nbgrader={"grade_id": "all_reduce_seconds_test", "points": 2}
check.all_reduce_seconds(all_reduce_seconds)

# %% [markdown] nbgrader={"grade_id": "all_reduce_seconds_target"}
# **Target:** the points stand on the line. The points are your `halving_doubling`, run; the line is your formula.

# %%
ALPHA, BETA = 5e-6, 1 / 50e9  # of every World, unless told otherwise
sizes, fine = [10**k for k in range(3, 10, 2)], [10 ** (k / 4) for k in range(12, 37)]
names = ["tree", "ring", "halving_doubling"]
lines = {
    name: (fine, [all_reduce_seconds(name, 64, nbytes, ALPHA, BETA) for nbytes in fine])
    for name in names
}
points = []
for nbytes in sizes:
    world = World(64, device="meta")
    world.run(
        lambda comm: halving_doubling(comm, torch.empty(nbytes, dtype=torch.uint8, device="meta"))
    )
    points.append(world.time)
study.curves(
    lines,
    points={"halving_doubling": (sizes, points)},
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title="64 ranks",
)

# %% [markdown] nbgrader={"grade_id": "predict_cost_spec"}
# ## 4 · Predict (2 points)
#
# 512 ranks, α = 5 µs, β = 1/(50 GB/s) = 2·10⁻¹¹ s, every link alike. A pencil is enough.
#
# - `ring`: how long does a ring all-reduce take whose bytes hardly count?
# - `tree`: how long a tree's?
# - `crossover`: from how many bytes on is the ring the faster of the two?
# - `across`: 512 ranks are 64 nodes of 8. A gigabyte (10⁹ bytes) is reduced: first in each node, cut into 8 pieces;
#   then each piece by a ring over the 64 nodes; then in the nodes again. How many bytes does each rank send to other
#   nodes?
# - `late`: each rank is late in one step of a thousand, by accident. How likely is it that a step of all 512 has to
#   wait for somebody?
#
# Write numbers or formulas, in seconds and bytes, right within 1 %.

# %% nbgrader={"grade_id": "predict_cost", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_cost.numbers(STUDENT)
ring = tree = crossover = across = late = None
### BEGIN SOLUTION
n = 512
alpha = 5e-6
beta = 1 / 50e9
ring = 2 * (n - 1) * alpha
tree = 2 * math.log2(n) * alpha
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta)
across = 2 * 63 / 64 * 1e9 / 8
late = 1 - 0.999**n
### END SOLUTION

# %% nbgrader={"grade_id": "predict_cost_test", "points": 2}
check.predict_cost(ring, tree, crossover, across, late, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_cost_target"}
# **Target:** the lines cross where you said. How large is a bucket of gradients? 25 MB is PyTorch's: on 512 ranks
# a ring is only just worth it.

# %%
fine = [crossover * 10 ** (k / 10) for k in range(-18, 21)]
lines = {
    name: (fine, [all_reduce_seconds(name, 512, N, ALPHA, BETA) for N in fine])
    for name in ("tree", "ring")
}
there = all_reduce_seconds("ring", 512, crossover, ALPHA, BETA)
study.curves(
    lines,
    points={"your crossover": ([crossover], [there])},
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title="512 ranks",
)

# %% [markdown] nbgrader={"grade_id": "bandwidth_spec"}
# ## 5 · Bandwidth, two ways (1 point)
#
# A run of a collective took so many seconds. How good is that? `nccl-tests`, which everyone uses, prints two numbers.
# **Algorithm bandwidth** is N over seconds, which falls as n grows even when nothing is wrong. **Bus bandwidth** is
# what the wires carried: it can be compared with what they are sold for, whatever n is.
#
# | | |
# |---|---|
# | call | `bandwidth(verb, n, nbytes, seconds)` |
# | `verb` | `"all_reduce"`, `"reduce_scatter"`, `"all_gather"`, `"all_to_all"`, `"broadcast"` or `"reduce"` |
# | `nbytes` | N, the bytes of the **whole** tensor: of an all-gather, what each rank has in the end |
# | returns | (algorithm bandwidth, bus bandwidth), bytes per second |
#
# Bus bandwidth is algorithm bandwidth times a factor: the least bytes that the busiest rank *must* send, or
# receive, as a part of N.
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
    part = (n - 1) / n
    factor = {
        "all_reduce": 2 * part,
        "reduce_scatter": part,
        "all_gather": part,
        "all_to_all": part,
    }.get(verb, 1)
    return nbytes / seconds, factor * nbytes / seconds
    ### END SOLUTION


# %% nbgrader={"grade_id": "bandwidth_test", "points": 1}
check.bandwidth(bandwidth)

# %% [markdown] nbgrader={"grade_id": "bandwidth_target"}
# **Target:** one line falls, the other stays near the 50 GB/s of the wires. The ring has not become worse: it has more
# to do.

# %%
ns = [2, 3, 4, 6, 8, 12, 16, 24, 32]
found = [
    bandwidth("all_reduce", n, 1e9, all_reduce_seconds("ring", n, 1e9, ALPHA, BETA)) for n in ns
]
lines = {
    "algorithm bandwidth": (ns, [a / 1e9 for a, _ in found]),
    "bus bandwidth": (ns, [b / 1e9 for _, b in found]),
}
study.curves(
    lines, yunit="GB/s", xlabel="ranks, n", ylabel="bandwidth", title="A ring all-reduce of 1 GB"
)

# %% [markdown] nbgrader={"grade_id": "hierarchical_spec"}
# ## 6 · All-reduce in nodes (3 points)
#
# Ranks 0 to g−1 are a node with fast links, ranks g to 2g−1 the next, and so on: m nodes of g ranks. Between the nodes
# the links are slow. So as little as possible should go there, and each rank should carry its part of it.
#
# | | |
# |---|---|
# | call | `hierarchical(comm, x, per_node)` |
# | `per_node` | g; it divides n |
# | `x` | contiguous, any shape and length, the same on every rank; afterwards it holds the sum, **in place** |
# | returns | nothing |
# | cost | to other nodes 2(m−1)/m·N/g bytes a rank; inside the node 2(g−1)/g·N |
#
# Three steps: reduce-scatter inside the node; all-reduce of what you have then with the ranks of the same place in the
# other nodes; all-gather inside the node. About 7 lines.
#
# Here you may use `reduce_scatter`, `all_reduce_` and `all_gather` of `minidist.collectives`, on groups of your own:
# `comm.split(colors)`, with a list of every rank's color, gives you the Comm of those who have your color. It sends
# nothing. The library's own hierarchical all-reduce is refused.
#
# <details><summary>Hint</summary>
#
# Rank r is in node r // g, at place r % g. Lengths that g does not divide: `reduce_scatter(inner, x, sizes=sizes)` and
# `all_gather(inner, mine, sizes=sizes)` take the lengths of the g pieces, and `x.view(-1).tensor_split(g)` has pieces
# of all but equal lengths. Write the result into x with `copy_`.
#
# </details>


# %% nbgrader={"grade_id": "hierarchical", "solution": true}
def hierarchical(comm, x, per_node):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    ### BEGIN SOLUTION
    inner = comm.split([r // per_node for r in range(comm.size)])
    outer = comm.split([r % per_node for r in range(comm.size)])
    flat = x.view(-1)
    sizes = [len(piece) for piece in flat.tensor_split(per_node)]
    mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
    flat.copy_(all_gather(inner, mine, sizes=sizes))
    ### END SOLUTION


# %% nbgrader={"grade_id": "hierarchical_test", "points": 3}
check.hierarchical(hierarchical)

# %% [markdown] nbgrader={"grade_id": "hierarchical_target"}
# **Target:** between the nodes only the two diagonals, with 2 kB each: of 8,000 bytes every rank carries one piece of
# 4 across, and 2(m−1)/m = 1. A flat ring would send 14 kB over one wire.

# %%
world = World(8)
world.run(hierarchical, torch.zeros(2000), 4)
study.traffic(world.trace, title="Your all-reduce of 8,000 bytes on 2 nodes of 4")

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

# %% [markdown] nbgrader={"grade_id": "pipeline_spec"}
# ## 8 · Find the bug (2 points)
#
# Where x is large, a tree is slow: it sends all of it ⌈log2 n⌉ times, one after the other. A **pipeline** is a chain
# that passes x on in pieces. While the first piece travels from rank 1 to rank 2, the second travels to rank 1. With
# many pieces all wires work all the time, and x arrives in hardly more than Nβ, on any number of ranks.
#
# The next cell was found in somebody's code. All numbers arrive. It is too slow.


# %% nbgrader={"grade_id": "pipeline_broken"}
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        if comm.rank < comm.size - 1:
            comm.send(piece, comm.rank + 1)


# %%
def in_steps(pipeline):
    """A World that ran it: 4 ranks, 12 pieces of 10 bytes. Its clock counts bytes, one after the other."""
    world = World(4, alpha=0, beta=1)
    world.run(pipeline, torch.zeros(120, dtype=torch.uint8), 12)
    return world


broken = in_steps(pipeline)
display(
    study.bars(
        {"broken": broken.time / 10},
        target=4 - 2 + 12,
        note="n−2+pieces =",
        title="Steps of a piece each",
    )
)
study.messages(
    broken.trace,
    label=None,
    title="The first and the last piece take the same way. When does a wire rest?",
)

# %% [markdown] nbgrader={"grade_id": "pipeline_task"}
# Copy the function, and repair it. A rank has a wire out and a wire in: both can work at once.
#
# | | |
# |---|---|
# | call | `pipeline(comm, x, pieces)` |
# | `x` | contiguous, one dimension; afterwards it holds rank 0's numbers, **in place** |
# | `pieces` | into how many pieces x is cut; some may be empty |
# | returns | nothing |
# | cost | `pieces` messages from each rank but the last, to the right; n−2+pieces steps of a piece each |
#
# <details><summary>Hint</summary>
#
# Look at rank 1. While it sends a piece, it receives nothing. Which verb starts a send and does not wait for its end?
# Keep what it returns, and wait for all of it when the loop is over.
#
# </details>


# %% nbgrader={"grade_id": "pipeline", "solution": true}
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    ### BEGIN SOLUTION
    leaving = []
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        if comm.rank < comm.size - 1:
            leaving.append(comm.isend(piece, comm.rank + 1))
    for work in leaving:
        work.wait()
    ### END SOLUTION


# %% nbgrader={"grade_id": "pipeline_test", "points": 2}
check.pipeline(pipeline)

# %% [markdown] nbgrader={"grade_id": "pipeline_target"}
# **Target:** half the time, and no wire that rests between its first piece and its last.

# %%
repaired = in_steps(pipeline)
display(
    study.bars(
        {"broken": broken.time / 10, "repaired": repaired.time / 10},
        target=14,
        note="n−2+pieces =",
        title="Steps of a piece each",
    )
)
study.timeline({"broken": broken.trace, "repaired": repaired.trace}, title="4 ranks, 12 pieces")
