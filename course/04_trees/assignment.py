# %% [markdown] nbgrader={"grade_id": "top"}
# # 04 Collectives at scale: exercises
#
# You build the broadcasts and all-reduces that do what a ring cannot, for any root, any number of ranks and nodes of
# any size, and write down what they cost.
#
# Seven exercises, 16 points. After each of the first six, run the check: it tries your function on hidden sizes, in
# Worlds and in real processes, and says what is wrong. It also counts messages and bytes, and looks at the World's
# clock. Try as often as you like. What your function prints is not shown there; to see it, run the function in a `World`
# of your own. The last exercise is read by a person.
#
# The collectives of the library are refused, except where an exercise says so: build with `comm.send`, `recv`,
# `sendrecv`, `isend`, `irecv`, and wait for all that you post, before you return. Tensors are of float32, float64, int32
# or int64, and sums are formed in the dtype of x, exactly. A nan is passed on as any number. Some x are empty, and some
# Worlds have one rank. N is the number of bytes of the whole tensor; a message of N bytes takes α + Nβ.

# %% nbgrader={"grade_id": "setup"}
import math

import torch
from IPython.display import display

import minicheck as check

from minidist import study
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.comm import World

# %% [markdown] nbgrader={"grade_id": "tree_broadcast_spec"}
# ## 1 · Broadcast by a tree (2 points)
#
# The tree of [the lesson](lesson:trees) grows from rank 0, and receives into contiguous memory. Now let any rank be
# the root. In every round, everyone who has the numbers sends them to one who has not, so that in each round twice as
# many have them.
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


# %% nbgrader={"grade_id": "tree_broadcast_test", "points": 2}
check.tree_broadcast(tree_broadcast)

# %% [markdown] nbgrader={"grade_id": "tree_broadcast_target"}
# **Target:** three rounds: one arrow, two arrows, four. Compare with [Messages](lesson:messages), where the root sent all seven itself.

# %%
world = World(8)
world.run(tree_broadcast, torch.zeros(1000), 0)
study.messages(world.trace, clock="steps", label=None, title="Your broadcast on 8 ranks")

# %% [markdown] nbgrader={"grade_id": "halving_doubling_spec"}
# ## 2 · All-reduce by halving and doubling, for any n (3 points)
#
# As few steps as a tree, and as few bytes as a ring: in the lesson this worked where n is a power of 2. On other numbers
# of ranks somebody has no partner. Let p be the largest power of 2 that is not above n. The n−p ranks that are too
# many are **folded**: each gives its x to one of the p, its twin, which adds it to its own and acts for both. The p
# halve and double. In the end each twin tells the rank that it acted for the sum.
#
# | | |
# |---|---|
# | call | `halving_doubling(comm, x)` |
# | `x` | contiguous, any shape and length, the same on every rank; afterwards it holds the sum, **in place** |
# | n | any |
# | returns | nothing |
# | cost | 2·log2 p messages and 2(p−1)/p·N bytes for each of the p ranks, if p divides the length; and 2 messages of N bytes for each of the n−p others, one to its twin and one from it |
#
# **Halving.** In each step you have a part of x, at first all of it. You and a partner cut it into two halves; one of
# you keeps the first, the other the second. Send the half that the partner keeps, and add what comes to yours.
#
# **Doubling.** The same steps backwards: send the half that you kept, receive the half that you gave away.
# About 20 lines.
#
# <details><summary>Hint</summary>
#
# If the last n−p ranks are folded, and rank p + i into rank i, the others keep their numbers: `comm.rank ^ p` is the
# twin, if there is such a rank, and `comm.rank ^ distance` the partner. `n.bit_length()` is the number of binary digits
# of n. `part.tensor_split(2)` gives two halves that share their memory with x, also of an odd length.
#
# </details>


# %% nbgrader={"grade_id": "halving_doubling", "solution": true}
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    ### BEGIN SOLUTION
    part = x.view(-1)
    actors = 2 ** (comm.size.bit_length() - 1)
    twin = comm.rank ^ actors
    if comm.rank >= actors:
        comm.send(part, twin)
        comm.recv(part, twin)
        return
    if twin < comm.size:
        part += comm.recv(torch.empty_like(part), twin)
    distance = actors // 2
    steps = []
    while distance:
        partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)
        keep, give = (high, low) if comm.rank & distance else (low, high)
        keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)
        steps.append((partner, keep, give))
        part, distance = keep, distance // 2
    for partner, keep, give in reversed(steps):
        comm.sendrecv(keep, partner, give, partner)
    if twin < comm.size:
        comm.send(x.view(-1), twin)
    ### END SOLUTION


# %% nbgrader={"grade_id": "halving_doubling_test", "points": 3}
check.halving_doubling(halving_doubling)

# %% [markdown] nbgrader={"grade_id": "halving_doubling_target"}
# **Target:** a butterfly between two folds. Six steps on 10 ranks, and one before and one after them, where a ring has
# 18.

# %%
world = World(10)
world.run(halving_doubling, torch.zeros(1000))
assert world.trace.messages() == 8 * 6 + 2 * 2
study.messages(
    world.trace, clock="steps", label=None, title="Your all-reduce of 4,000 bytes on 10 ranks"
)

# %% [markdown] nbgrader={"grade_id": "all_reduce_seconds_spec"}
# ## 3 · What they cost (2 points)
#
# Write the costs of four all-reduces as formulas. The check compares them with the clock of a World, on numbers that you
# do not know.
#
# | | |
# |---|---|
# | call | `all_reduce_seconds(algorithm, n, nbytes, alpha, beta)` |
# | `algorithm` | `"ring"`; `"tree"`, up to a root and back; `"recursive_doubling"`, in which partners exchange all of x in every step; or `"halving_doubling"`, with the folding of exercise 2 |
# | n | any for the ring and for halving and doubling, a power of 2 for the others; 1 costs nothing |
# | `nbytes` | N, the bytes of the whole tensor; n and p divide it |
# | returns | seconds, a float, right but for rounding |
#
# <details><summary>Hint</summary>
#
# For each: how many steps follow one another, and how many bytes does a rank send in all of them together? For the last,
# first without the ranks that are folded: who takes part? Then add what the folding takes, before and after: a rank that
# has nothing to fold is ready earlier, and waits for a partner that is not.
#
# </details>


# %% nbgrader={"grade_id": "all_reduce_seconds", "solution": true}
def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    """Seconds of an all-reduce of nbytes on n ranks."""
    ### BEGIN SOLUTION
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    actors = 2 ** (n.bit_length() - 1)
    steps = 2 * math.log2(actors)
    if algorithm == "tree":
        return steps * (alpha + nbytes * beta)
    if algorithm == "recursive_doubling":
        return steps / 2 * (alpha + nbytes * beta)
    fold = 2 * (alpha + nbytes * beta) if actors < n else 0
    return steps * alpha + 2 * (actors - 1) / actors * nbytes * beta + fold
    ### END SOLUTION


# %% nbgrader={"grade_id": "all_reduce_seconds_test", "points": 2}
check.all_reduce_seconds(all_reduce_seconds)

# %% [markdown] nbgrader={"grade_id": "all_reduce_seconds_target"}
# **Target:** the points stand on the line. The points are your `halving_doubling`, run; the line is your formula. And
# look what two ranks more than 64 cost.

# %%
ALPHA, BETA = 5e-6, 1 / 50e9  # of every World, unless told otherwise
sizes, fine = [10**k for k in range(3, 10, 2)], [10 ** (k / 4) for k in range(12, 37)]
lines = {
    f"{name}, {n} ranks": (fine, [all_reduce_seconds(name, n, N, ALPHA, BETA) for N in fine])
    for name, n in [("ring", 64), ("halving_doubling", 64), ("halving_doubling", 66)]
}
points = []
for nbytes in sizes:
    world = World(66, device="meta")
    world.run(
        lambda comm: halving_doubling(comm, torch.empty(nbytes, dtype=torch.uint8, device="meta"))
    )
    points.append(world.time)
study.curves(
    lines,
    points={"halving_doubling, 66 ranks": (sizes, points)},
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title="Two ranks more than 64",
)

# %% [markdown] nbgrader={"grade_id": "predict_trees_spec"}
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
# - `folded`: half as many ranks again are added, so that there are 768. How long does halving and doubling take for a
#   megabyte (10⁶ bytes)?
#
# Write numbers or formulas, in seconds and bytes, right within 1 %.

# %% nbgrader={"grade_id": "predict_trees", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_trees.numbers(STUDENT)
ring = tree = crossover = across = folded = None
### BEGIN SOLUTION
n = 512
alpha = 5e-6
beta = 1 / 50e9
ring = 2 * (n - 1) * alpha
tree = 2 * math.log2(n) * alpha
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta)
across = 2 * 63 / 64 * 1e9 / 8
folded = 2 * math.log2(n) * alpha + 2 * (n - 1) / n * 1e6 * beta + 2 * (alpha + 1e6 * beta)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_trees_test", "points": 2}
check.predict_trees(ring, tree, crossover, across, folded, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_trees_target"}
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

# %% [markdown] nbgrader={"grade_id": "hierarchical_spec"}
# ## 5 · All-reduce in nodes of any size (3 points)
#
# A scheduler gives you what is free: a whole node of eight here, five GPUs of a node there, and numbers the ranks as it
# likes. Inside a node links are fast, between nodes they are slow. So as little as possible should go between them, and
# several ranks of a node should carry their part of it at the same time: as many as the smallest node has.
#
# | | |
# |---|---|
# | call | `hierarchical(comm, x, nodes)` |
# | `nodes` | a list, the same on every rank: `nodes[r]` is the number of rank r's node, from 0 on. Nodes need not have equally many ranks, and their ranks need not be neighbours |
# | `x` | contiguous, any shape and length, the same on every rank; afterwards it holds the sum, **in place** |
# | returns | nothing |
# | cost | m nodes, the smallest of g ranks: to other nodes 2(m−1)/m·N/g bytes a rank at most; inside its node 2(g−1)/g·N in a node of g ranks, and 2N in a larger one |
#
# Three steps: reduce-scatter inside the node, into g pieces; all-reduce of what you have then with the ranks of the same
# place in the other nodes; all-gather inside the node. About 10 lines.
#
# Here you may use `reduce_scatter`, `all_reduce_` and `all_gather` of `minidist.collectives`, on groups of your own:
# `comm.split(colors)`, with a list of every rank's color, gives you the Comm of those who have your color. It sends
# nothing. The library's own hierarchical all-reduce is refused.
#
# <details><summary>Hint</summary>
#
# Rank r's place in its node is the number of ranks before it that are in the same node. `reduce_scatter(inner, x,
# sizes=sizes)` and `all_gather(inner, mine, sizes=sizes)` take the length of each rank's piece, and a length may be 0:
# in a node of more than g ranks some have no piece. `x.view(-1).tensor_split(g)` has pieces of all but equal lengths.
# Write the result into x with `copy_`.
#
# </details>


# %% nbgrader={"grade_id": "hierarchical", "solution": true}
def hierarchical(comm, x, nodes):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    ### BEGIN SOLUTION
    pieces = min(map(nodes.count, nodes))
    places = [nodes[:r].count(nodes[r]) for r in range(comm.size)]
    inner = comm.split(nodes)
    outer = comm.split(places)
    flat = x.view(-1)
    sizes = [len(piece) for piece in flat.tensor_split(pieces)]
    sizes += [0] * (inner.size - pieces)
    mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
    flat.copy_(all_gather(inner, mine, sizes=sizes))
    ### END SOLUTION


# %% nbgrader={"grade_id": "hierarchical_test", "points": 3}
check.hierarchical(hierarchical)

# %% [markdown] nbgrader={"grade_id": "hierarchical_target"}
# **Target:** three ranks of each node talk to their likes in the other, with 2.7 kB each: of 8,000 bytes each
# carries one piece of 3 across, and 2(m−1)/m = 1. The fourth and the fifth rank of the larger node carry nothing.

# %%
world = World(8)
world.run(hierarchical, torch.zeros(2000), [0, 0, 0, 0, 0, 1, 1, 1])
study.traffic(world.trace, title="Your all-reduce of 8,000 bytes on nodes of 5 and 3")

# %% [markdown] nbgrader={"grade_id": "pipeline_spec"}
# ## 6 · Find the bug (2 points)
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

# %% [markdown] nbgrader={"grade_id": "pieces_spec"}
# ## 7 · How many pieces? (2 points)
#
# A broadcast of 64 MB on 16 ranks, α = 5 µs, β = 1/(50 GB/s), with your `pipeline`. **How many pieces should x be cut
# into, and what does it cost to cut it into ten times as few, or ten times as many?** Draw the time against the number of
# pieces, on logarithmic axes, as a formula and as runs in a World. Below the picture, answer in five sentences at most.
#
# A person reads this. One point: a number of pieces that follows from a formula, which is written down and derived in a
# line or two. One point: a picture with both axes named, in which runs and formula agree, and a reason why time is lost
# on either side. Half a point each where the number or the reason is there, and what it follows from is not.

# %%
# your picture

# %% [markdown] nbgrader={"grade_id": "pieces", "solution": true, "points": 2}
# The chain takes n−2+k steps of a piece each, and a step takes α + N/k·β. The product has the terms (n−2)N/k·β, which
# falls with the number of pieces k, and kα, which rises; they are equal, and the sum is least, at
# k = √((n−2)Nβ/α) = √(14 · 1.28 ms / 5 µs) ≈ 60. Then it takes 2 ms, where one wire alone would need 1.3. With 6 pieces
# most wires rest while the first piece is on its way: 4.4 ms. With 600 pieces every piece pays a latency that its bytes
# do not fill: 4.4 ms as well.
