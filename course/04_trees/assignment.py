# %% [markdown] nbgrader={"grade_id": "top"}
# # 04 Collectives at scale: exercises
#
# You build broadcasts and all-reduces that do what a ring cannot, for any root, any number of ranks and nodes of any
# size, and you write down what they cost.
#
# There are seven exercises, worth 16 points. The last one, worth 2, is open and graded by hand. Each of the others ends
# with a check, which tries your function on hidden sizes, in Worlds and then in real processes, and says what is wrong.
# It also counts messages and bytes, and looks at the World's clock. Try as often as you like. What your function prints
# is not shown by a check; to see it, run the function in a `World` of your own. An answer that gives the right numbers
# but takes more messages, bytes or time than it may earns half of the points, unless the exercise says otherwise. A
# cell that draws a picture runs your function in the notebook itself, and ends it if it takes too long.
#
# The collectives of the library are refused, except where an exercise allows some of them: build with `comm.send`,
# `recv`, `sendrecv`, `isend`, `irecv` and `batch`, and wait for everything that you have posted before you return.
# Tensors are of float32, float64, int32 or int64, and you add up in the dtype of x. A nan is passed on, and counts in a
# sum, like any other number. Some tensors are empty, and some Worlds have only one rank. N is the number of bytes of
# the whole tensor; a message of N bytes takes α + Nβ.

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
# The tree of [the lesson](lesson:trees) grows from rank 0 and receives into contiguous memory. Now any rank may be the
# root. In every round everyone who has the numbers sends them to someone who does not, so that each round doubles the
# number of those who have them.
#
# | | |
# |---|---|
# | call | `tree_broadcast(comm, x, root)` |
# | `x` | a tensor of any shape, which is the same on every rank; it need not be contiguous; afterwards it holds the root's numbers, **in place** |
# | `root` | the number of any rank, the same on every rank |
# | returns | nothing |
# | cost | n−1 messages in all, each with the whole x, in ⌈log2 n⌉ rounds: on a clock with α = 0 they take ⌈log2 n⌉ · Nβ |
#
# It must work for any n and any root. In one such tree, after round k = 0, 1, 2, … the first 2^(k+1) ranks have x,
# counted from the root on: root, root + 1, root + 2, … (mod n). About 8 lines.
#
# <details><summary>Hint</summary>
#
# Let `place = (comm.rank - root) % comm.size`, so that the root has place 0. Let `reach` be 1, 2, 4, … as long as it is
# below n. A place below `reach` has x already, and sends it to place + reach, if there is such a place. A place from
# `reach` to 2·reach − 1 receives it in this round. And place p is rank (root + p) % n.
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
# **Target:** three rounds, with one arrow, two arrows, and four. Compare this with [Messages](lesson:messages), where
# the root sent all seven messages itself.

# %%
world = World(8)
with check.limit(10):
    world.run(tree_broadcast, torch.zeros(1000), 0)
study.messages(world.trace, clock="steps", label=None, title="Your broadcast on 8 ranks")

# %% [markdown] nbgrader={"grade_id": "halving_doubling_spec"}
# ## 2 · All-reduce by halving and doubling, for any n (3 points)
#
# Halving and doubling takes as few steps as a tree and as few bytes as a ring, but in the lesson it worked only if n
# was a power of 2. With other numbers of ranks somebody has no partner. Let p be the largest power of 2 that is not
# above n. The n−p ranks that are too many are **folded**: each of them gives its x to one of the p ranks, its twin,
# which adds it to its own and acts for both. The p ranks halve and double. In the end each twin tells the sum to the
# rank for which it has acted.
#
# | | |
# |---|---|
# | call | `halving_doubling(comm, x)` |
# | `x` | contiguous, of any shape and length, the same on every rank; afterwards it holds the sum over all ranks, **in place** |
# | n | any number |
# | returns | nothing |
# | cost | 2·log2 p messages and 2(p−1)/p·N bytes for each of the p ranks, where a half of an odd length may be rounded up; and for each of the n−p others one message of N bytes to its twin and one back |
#
# **Halving.** In each step you have a part of x, which is at first the whole of it. You and a partner cut it into two
# halves, of which one of you keeps the first and the other the second. Send the half that the partner keeps, and add
# what arrives to yours.
#
# **Doubling.** Take the same steps backwards: send the half that you have kept, and receive the half that you have
# given away. About 20 lines.
#
# <details><summary>Hint</summary>
#
# If the last n−p ranks are folded, rank p + i into rank i, the others keep their numbers: `comm.rank ^ p` is the twin,
# if there is such a rank, and `comm.rank ^ distance` is the partner. `n.bit_length()` is the number of binary digits of
# n. `part.tensor_split(2)` gives two halves that share their memory with x, even if the length is odd.
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
# **Target:** a butterfly between two folds. On 10 ranks it takes six steps, with one before them and one after them; a
# ring takes 18.

# %%
world = World(10)
with check.limit(10):
    world.run(halving_doubling, torch.zeros(1000))
study.messages(
    world.trace, clock="steps", label=None, title="Your all-reduce of 4,000 bytes on 10 ranks"
)

# %% [markdown] nbgrader={"grade_id": "all_reduce_seconds_spec"}
# ## 3 · What they cost (2 points)
#
# Write down the costs of four all-reduces as formulas. The check compares them with the clock of a World, on numbers
# that you do not know.
#
# | | |
# |---|---|
# | call | `all_reduce_seconds(algorithm, n, nbytes, alpha, beta)` |
# | `algorithm` | `"ring"`; `"tree"`, up to a root and back; `"recursive_doubling"`, in which partners exchange all of x in every step; or `"halving_doubling"`, with the folding of exercise 2 |
# | `n` | any number for the ring and for halving and doubling, a power of 2 for the other two; with n = 1 an all-reduce costs nothing |
# | `nbytes` | N, the bytes of the whole tensor; it is a multiple of n and of p |
# | returns | the seconds, a float, right except for rounding |
#
# About 10 lines.
#
# <details><summary>Hint</summary>
#
# Ask of each algorithm how many steps follow one another, and how many bytes a rank sends in all of them together. For
# the last one, first leave the folding out: who takes part? Then add the time that the folding takes, before and after.
# A rank that has nothing to fold is ready earlier, but it waits for a partner that is not.
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
# **Target:** the points stand on the line. The points are runs of your `halving_doubling`, and the line is your
# formula. Look also at what two ranks more than 64 cost.

# %%
ALPHA, BETA = 5e-6, 1 / 50e9  # of every World, unless told otherwise
sizes = [10**k for k in range(3, 10, 2)]
fine = [10 ** (k / 4) for k in range(12, 37)]
lines = {}
with check.limit(10):
    for name, n in [("ring", 64), ("halving_doubling", 64), ("halving_doubling", 66)]:
        times = [all_reduce_seconds(name, n, nbytes, ALPHA, BETA) for nbytes in fine]
        lines[f"{name}, {n} ranks"] = (fine, times)


def run_seconds(n, nbytes):
    """How long your halving_doubling takes in a World."""
    world = World(n, device="meta")
    with check.limit(30):
        world.run(halving_doubling, torch.empty(nbytes, dtype=torch.uint8, device="meta"))
    return world.time


points = [run_seconds(66, nbytes) for nbytes in sizes]
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
# There are 512 ranks, with α = 5 µs and β = 1/(50 GB/s) = 2·10⁻¹¹ s, and all links are alike. A pencil is enough.
#
# - `ring`: how long does a ring all-reduce take if its bytes hardly count?
# - `tree`: and how long does a tree take then, up to a root and back?
# - `crossover`: from how many bytes on is the ring the faster of the two?
# - `across`: the 512 ranks are 64 nodes of 8. They all-reduce a gigabyte (10⁹ bytes): first inside each node, where it
#   is cut into 8 pieces; then each piece by a ring over the 64 nodes; and then inside the nodes again. How many bytes
#   does each rank send to other nodes?
# - `folded`: half as many ranks again are added, so that there are 768. How long does halving and doubling take for a
#   megabyte (10⁶ bytes)?
#
# Write numbers or formulas, in seconds and bytes, that are right within 1 %.

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
# **Target:** the lines cross where you said. PyTorch collects gradients in buckets of 25 MB: on 512 ranks that is only
# just enough for a ring to be worth it.

# %%
fine = [crossover * 10 ** (k / 10) for k in range(-18, 21)]
lines = {}
with check.limit(10):
    for name in ("tree", "ring"):
        times = [all_reduce_seconds(name, 512, nbytes, ALPHA, BETA) for nbytes in fine]
        lines[name] = (fine, times)
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
# A scheduler gives you what is free, a whole node of eight GPUs here and five GPUs of a node there, and numbers the
# ranks as it likes. Inside a node links are fast, and between nodes they are slow. So as few bytes as possible should
# go between nodes, and several ranks of a node should carry their part of them at the same time: as many as the
# smallest node has.
#
# | | |
# |---|---|
# | call | `hierarchical(comm, x, nodes)` |
# | `nodes` | a list, the same on every rank: `nodes[r]` is the number of rank r's node, counted from 0. Nodes may differ in size, and the ranks of a node need not be neighbours |
# | `x` | contiguous, of any shape and length, the same on every rank; afterwards it holds the sum over all ranks, **in place** |
# | returns | nothing |
# | cost | with m nodes, of which the smallest has g ranks, a rank sends at most 2(m−1)/m·N/g bytes to other nodes; inside its node it sends at most 2(g−1)/g·N bytes if the node has g ranks, and 2N in a larger node. Pieces may be rounded up |
#
# There are three steps: a reduce-scatter inside the node, into g pieces; an all-reduce of what you then have with the
# ranks at the same place in the other nodes; and an all-gather inside the node. About 10 lines. Too many bytes between
# nodes earn nothing, too many inside a node half of the points.
#
# Here you may use `reduce_scatter`, `all_reduce_` and `all_gather` of `minidist.collectives`, on groups of your own:
# `comm.split(colors)`, with a list of every rank's color, gives you the Comm of those who have your color, and sends
# nothing. The library's own hierarchical all-reduce is refused.
#
# <details><summary>Hint</summary>
#
# Rank r's place in its node is the number of ranks before it that are in the same node. `reduce_scatter(inner, x,
# sizes=sizes)` and `all_gather(inner, mine, sizes=sizes)` take the length of each rank's piece, which may be 0: in a
# node of more than g ranks some have no piece. `x.view(-1).tensor_split(g)` has pieces of nearly equal lengths. Write
# the result into x with `copy_`.
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
# **Target:** three ranks of each node talk to the ranks at their place in the other node, with 2.7 kB each. Of the
# 8,000 bytes each carries one of 3 pieces across, and 2(m−1)/m is 1. The fourth and the fifth rank of the larger node
# send nothing across.

# %%
world = World(8)
with check.limit(10):
    world.run(hierarchical, torch.zeros(2000), [0, 0, 0, 0, 0, 1, 1, 1])
study.traffic(world.trace, title="Your all-reduce of 8,000 bytes on nodes of 5 and 3")

# %% [markdown] nbgrader={"grade_id": "pipeline_spec"}
# ## 6 · Find the bug (2 points)
#
# If x is large, a tree is slow, because it sends all of it ⌈log2 n⌉ times, one after the other. A **pipeline** is a
# chain that passes x on in pieces. While the first piece travels from rank 1 to rank 2, the second travels from rank 0
# to rank 1. With many pieces all wires work all the time, and x arrives in hardly more than Nβ, on any number of ranks.
#
# The next cell was found in somebody's code. All the numbers arrive, but it is too slow.


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
    """A World that has run it, on 4 ranks and with 12 pieces of 10 bytes. Its clock counts bytes."""
    world = World(4, alpha=0, beta=1)
    with check.limit(10):
        world.run(pipeline, torch.zeros(120, dtype=torch.uint8), 12)
    return world


broken = in_steps(pipeline)
display(
    study.bars(
        {"broken": broken.time / 10},
        target=4 - 2 + 12,
        note="n−2+pieces =",
        title="Steps, each of one piece",
    )
)
study.messages(
    broken.trace,
    label=None,
    title="All pieces take the same route. When does a wire rest?",
)

# %% [markdown] nbgrader={"grade_id": "pipeline_task"}
# Copy the function and repair it. A rank has one wire out and one wire in, and both can work at the same time.
#
# | | |
# |---|---|
# | call | `pipeline(comm, x, pieces)` |
# | `x` | contiguous, with one dimension, equally long on every rank; afterwards it holds rank 0's numbers, **in place** |
# | `pieces` | the number of pieces into which x is cut, some of which may be empty |
# | returns | nothing |
# | cost | `pieces` messages from each rank but the last, one for each piece, also for an empty one, to the right; in all n−2+pieces steps of one piece each |
#
# <details><summary>Hint</summary>
#
# Look at rank 1. While it sends a piece, it receives nothing. Which call starts a send and does not wait for its end?
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
# **Target:** about half the time, and no wire that rests between its first piece and its last.

# %%
repaired = in_steps(pipeline)
display(
    study.bars(
        {"broken": broken.time / 10, "repaired": repaired.time / 10},
        target=14,
        note="n−2+pieces =",
        title="Steps, each of one piece",
    )
)
study.timeline({"broken": broken.trace, "repaired": repaired.trace}, title="4 ranks, 12 pieces")

# %% [markdown] nbgrader={"grade_id": "more_ranks_spec"}
# ## 7 · Are a few more ranks worth it? (2 points, graded by hand)
#
# A job runs on 64 ranks. In each step they compute for 10 ms, and then they all-reduce 25 MB by halving and doubling,
# on a network with α = 5 µs and β = 1/(50 GB/s) whose links are all alike. Now the scheduler offers more ranks, any
# number up to 128. On n ranks computing takes 10 ms · 64/n. The all-reduce may be your `halving_doubling`, with its
# folding, or a ring. **From how many ranks on is a step shorter than on 64: with folding, and with a ring? And from how
# many ranks on is folding the better of the two?**
#
# Answer with a plot and about ten sentences. Your `all_reduce_seconds` calculates in no time, and `run_seconds`, from
# the picture of exercise 3, runs your `halving_doubling`. Your teacher gives:
#
# - **1 point for the derivation.** The time of a step on n ranks as a formula, for both, with a reason for each term;
#   which of the terms rise with n, which fall, and which stay; and from the formulas the three numbers.
# - **1 point for the plot and what it shows.** The time of a step for 64 to 128 ranks, for both, with runs of your
#   function for at least four n beside its formula, and with names and units on both axes; why one of the lines jumps,
#   and where; and which of the three numbers change, and how, if the tensor is ten times as large.


# %% nbgrader={"grade_id": "more_ranks_plot", "solution": true}
### BEGIN SOLUTION
def step(algorithm, n, nbytes=25e6):
    """Seconds of a step on n ranks."""
    return 10e-3 * 64 / n + all_reduce_seconds(algorithm, n, nbytes, ALPHA, BETA)


ns = list(range(64, 129))
lines = {
    "halving and doubling": (ns, [step("halving_doubling", n) for n in ns]),
    "ring": (ns, [step("ring", n) for n in ns]),
    "64 ranks, as now": (ns, [step("halving_doubling", 64)] * len(ns)),
}
some = [64, 65, 72, 96, 127, 128]
runs = [10e-3 * 64 / n + run_seconds(n, 25_000_000) for n in some]
for name in ("halving and doubling", "ring"):
    faster = [n for n, seconds in zip(*lines[name]) if seconds < step("halving_doubling", 64)]
    print(f"{name}: faster than on 64 from {faster[0]} ranks on")
better = [n for n in ns[1:] if step("halving_doubling", n) < step("ring", n)]
print(f"halving and doubling is the better of the two from {better[0]} ranks on")
study.curves(
    lines,
    points={"halving and doubling": (some, runs)},
    yunit="s",
    xlabel="ranks, n",
    ylabel="time of a step",
    title="10 ms of computing on 64 ranks, and an all-reduce of 25 MB",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "more_ranks", "solution": true, "points": 2}
# With a ring a step takes 640 ms/n + 2(n−1)α + 2(n−1)/n·Nβ. The first term is computing, which falls. The second is the
# latency of 2(n−1) steps one after another, which rises by 10 µs with each rank. The third is the time of the bytes,
# which hardly changes: Nβ is 0.5 ms, and the term goes from 0.98 to 0.99 ms. With halving and doubling a step takes 640
# ms/n + 2·log2 p·α + 2(p−1)/p·Nβ, and 2(α + Nβ) more if n is above p. From 64 to 127 ranks p is 64, so only computing
# changes: the all-reduce takes 0.06 + 0.98 = 1.04 ms on 64 ranks, and 2.05 ms on all the others, because the folding
# takes 1.01 ms. It is worth it as soon as computing is shorter by more than that: 640/n < 8.99, from 72 ranks on. With
# a ring a step takes 11.07 ms on 68 ranks and 10.94 ms on 69, against 11.04 ms on 64 ranks now: it is worth it from 69
# ranks on. The ring's all-reduce is shorter than the folded one until its latencies have grown too far: 2(n−1) · 5 µs +
# 0.99 ms reach 2.05 ms at 108 ranks, and from there on folding is better.
#
# The line of halving and doubling jumps up at 65 ranks, because 64 ranks then wait for one of them, which receives all
# of x from its twin before the first step and sends all of it back after the last. From there on it falls, until it
# jumps down at 128 ranks, where nobody is folded any more. The runs lie on the line. A ring knows nothing of powers of
# 2, so its line has no jump. With 250 MB the folding takes 10 ms, as long as computing, and is never worth it: only
# with 128 ranks, where there is none, is a step shorter than on 64. The ring still pays from 69 ranks on, because it
# sends nearly the same bytes as halving and doubling do on 64 ranks, and only the latencies make a difference. And
# below 128 ranks folding is then nowhere better than the ring.
