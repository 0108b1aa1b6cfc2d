# %% [markdown] nbgrader={"grade_id": "top"}
# # 02 Messages: exercises
#
# You take each of the lesson's algorithms one step further, find a bug in a ring of another kind, and measure a
# broadcast.
#
# There are eight exercises, worth 20 points. The last one, worth 2, is open and graded by hand. Each of the others ends
# with a check, which tries your function on 1 to 8 ranks and then in real processes, and says what is wrong. Try as
# often as you like. What your function prints is not shown by a check; to see it, run the function in a `World` of your
# own. An answer that gives the right numbers but takes more messages, bytes or time than it may earns half of the
# points. A cell that draws a picture runs your function in the notebook itself, and ends it if it takes too long.
#
# In every exercise rank r's *right* neighbour is rank r+1, and the last rank's is rank 0; r's *left* neighbour is rank
# r−1. The collectives of the library are refused here: build with `comm.send`, `recv`, `sendrecv`, `isend`, `irecv` and
# `batch`, and wait for everything that you have posted before you return. Tensors are of float64, float32, int64 or
# int32, with the same dtype on all ranks. The result has this dtype too, and you add up in it. A nan is a number like
# any other: it is passed on, and it counts in a sum. A message that would carry no numbers may be left out.

# %% nbgrader={"grade_id": "setup"}
import torch

import minicheck as check

from minidist import study
from minidist.comm import Recv, Send, World

# %% [markdown] nbgrader={"grade_id": "shift_spec"}
# ## 1 · Shift by any distance (2 points)
#
# Everyone passes a tensor to the rank that is `places` further to the right, all at the same time.
#
# | | |
# |---|---|
# | call | `shift(comm, x, places)` |
# | `x` | a tensor of any shape, which is the same on every rank; it need not be contiguous; **not changed** |
# | `places` | any integer, the same on every rank: −1 is one place to the left, and n is once around the ring |
# | returns | a **new** tensor, a different one in every call: the `x` of the rank that is `places` to the left |
# | cost | one message per rank, straight to its destination; none if the tensor comes back to where it started |
#
# A rank cannot send to itself. About 6 lines.
#
# <details><summary>Hint</summary>
#
# In Python `%` of a negative number is never negative: −1 % 4 is 3. When does a tensor end where it started?
#
# </details>


# %% nbgrader={"grade_id": "shift", "solution": true}
def shift(comm, x, places):
    """The x of the rank `places` to the left, in a new tensor."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    if places % n == 0:
        return x.clone()
    return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)
    ### END SOLUTION


# %% nbgrader={"grade_id": "shift_test", "points": 2}
check.shift(shift)

# %% [markdown] nbgrader={"grade_id": "shift_target"}
# **Target:** four arrows, all in the same step, each of which ends two ranks further to the right.

# %%
world = World(4)
with check.limit(10):
    world.run(shift, torch.zeros(1000), 2)
study.messages(world.trace, clock="steps", label="bytes", title="Your shift by 2 on 4 ranks")

# %% [markdown] nbgrader={"grade_id": "broadcast_spec"}
# ## 2 · Broadcast along a line (3 points)
#
# One rank, the root, has the numbers, and in the end all ranks have them. They travel along a line: from the root to
# its right neighbour, from there to the next rank, and so on, until they reach the root's left neighbour. If they
# travelled in one message, all wires but one would stand idle. So cut x into `m` pieces: while a rank passes one piece
# on, the next one arrives.
#
# | | |
# |---|---|
# | call | `broadcast(comm, x, root, m)` |
# | `x` | a tensor of any shape, which is the same on every rank; it need not be contiguous; afterwards it holds the root's numbers, **in place** |
# | `root` | the number of a rank, the same on every rank |
# | `m` | the number of pieces, 1 or more; `tensor_split(m)` cuts the numbers, in a row, into these pieces, of which some are empty if there are fewer than m numbers |
# | returns | nothing |
# | cost | m messages per rank, one for each piece, all to the right; the last rank of the line sends none |
# | time | as long as n−2+m messages of one piece, one after another, on the clock of `World(n, ordered=True)`, in which every rank has a stream |
#
# About 13 lines.
#
# <details><summary>Hint</summary>
#
# First work out your place in the line: 0 for the root, n−1 for the last rank. In step k a rank receives piece k and
# passes piece k−1 on. On a stream the two start together only if they are in one group, `comm.batch([Recv(…),
# Send(…)]).wait()`. A group may also have one member, or none. `x.contiguous().view(-1)` shows the numbers in a row. If
# x is not contiguous, this is a copy, and what arrives in it must go back into x.
#
# </details>


# %% nbgrader={"grade_id": "broadcast", "solution": true}
def broadcast(comm, x, root, m):
    """Fill every rank's x with the root's, in place: m pieces along the line."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    place = (r - root) % n
    flat = x.contiguous().view(-1)
    pieces = flat.tensor_split(m)
    for k in range(m + 1):
        group = []
        if place > 0 and k < m:
            group.append(Recv(pieces[k], (r - 1) % n))
        if place < n - 1 and k > 0:
            group.append(Send(pieces[k - 1], (r + 1) % n))
        comm.batch(group).wait()
    x.copy_(flat.view_as(x))
    ### END SOLUTION


# %% nbgrader={"grade_id": "broadcast_test", "points": 3}
check.broadcast(broadcast)

# %% [markdown] nbgrader={"grade_id": "broadcast_target"}
# **Target:** three pieces, one behind the other, on a line of four ranks that begins at rank 1. In step 3 all three
# wires are busy.

# %%
world = World(4)
with check.limit(10):
    world.run(broadcast, torch.zeros(3000), 1, 3)
study.messages(world.trace, clock="steps", label="bytes", title="Your broadcast from rank 1")

# %% [markdown] nbgrader={"grade_id": "reduce_scatter_spec"}
# ## 3 · Reduce-scatter on a ring that turns to the left (3 points)
#
# Every rank has n chunks, and in the end rank r has the sum of everybody's chunk r. The lesson's ring turned to the
# right and left partial sums in the caller's chunks. This one turns to the left and leaves the caller's chunks alone.
#
# | | |
# |---|---|
# | call | `reduce_scatter(comm, chunks)` |
# | `chunks` | a list of n tensors with one dimension; chunk i is equally long on all ranks, but chunk 0 may be longer than chunk 1, and any chunk may be empty; **not changed** |
# | returns | a tensor: chunk `comm.rank`, summed over all ranks |
# | cost | n−1 messages per rank, all to the **left**, each of one chunk |
#
# As in the lesson, chunk i is finished at rank i. About 7 lines.
#
# <details><summary>Hint</summary>
#
# Where must chunk i set out if it is to travel to the left, visit every rank once, and arrive at rank i last? Which
# chunk, then, is at rank r before step k? What a rank has just added up is what it sends in the next step, so one
# variable is enough for it.
#
# </details>


# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks, on a ring that turns to the left."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    partial = chunks[(r + 1) % n].clone()
    for k in range(1, n):
        mine = chunks[(r + 1 + k) % n]
        received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
        partial = received + mine
    return partial
    ### END SOLUTION


# %% nbgrader={"grade_id": "reduce_scatter_test", "points": 3}
check.reduce_scatter(reduce_scatter)

# %% [markdown] nbgrader={"grade_id": "reduce_scatter_target"}
# **Target:** on the right, each rank holds one finished chunk, its own, which is the sum of a column on the left.


# %%
def three(comm):
    chunks = [torch.tensor([10 * (comm.rank + 1) + i]) for i in range(3)]
    return chunks, reduce_scatter(comm, chunks)


with check.limit(10):
    results = World(3).run(three)
after = [[out if i == r else None for i in range(3)] for r, (_, out) in enumerate(results)]
study.holdings([chunks for chunks, _ in results], after, title="Your reduce-scatter on 3 ranks")

# %% [markdown] nbgrader={"grade_id": "all_gather_spec"}
# ## 4 · All-gather of lengths that nobody knows (3 points)
#
# Every rank has a tensor, and no rank knows how long the others' tensors are; they could be the texts in everybody's
# batch. In the end all ranks have all tensors. Whoever receives must provide a tensor of the right shape, so the
# lengths have to travel first.
#
# | | |
# |---|---|
# | call | `all_gather(comm, x)` |
# | `x` | a tensor with one dimension, whose **length differs from rank to rank** and may be 0; it need not be contiguous; **not changed** |
# | returns | a list of n tensors: the x of rank 0, of rank 1, and so on; your own among them is a copy |
# | cost | at most 2(n−1) messages per rank, all to the right |
# | bytes | those of the tensors that a rank passes on, and at most 8 for each of n−1 lengths; no tensor is padded |
#
# About 12 lines.
#
# <details><summary>Hint</summary>
#
# Use two rings, one after the other. In the first each message is one number, a length, as a tensor of int64. After it
# every rank can allocate tensors for what the others have. It is the same walk both times, so write it only once.
#
# </details>


# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(comm, x):
    """Every rank's x, in a list."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    lengths = [torch.tensor(0) for _ in range(n)]
    lengths[r].fill_(len(x))
    hand_round(comm, lengths)
    found = [torch.empty(int(length), dtype=x.dtype) for length in lengths]
    found[r].copy_(x)
    hand_round(comm, found)
    return found


def hand_round(comm, parts):
    n, r = comm.size, comm.rank
    for k in range(n - 1):
        comm.sendrecv(parts[(r - k) % n], (r + 1) % n, parts[(r - k - 1) % n], (r - 1) % n)
    ### END SOLUTION


# %% nbgrader={"grade_id": "all_gather_test", "points": 3}
check.all_gather(all_gather)

# %% [markdown] nbgrader={"grade_id": "all_gather_target"}
# **Target:** three full rows, all alike, although rank 1 had nothing to give.


# %%
def gathered(comm):
    x = torch.tensor([1, 2, 3, 40, 50]).split([3, 0, 2])[comm.rank]
    return x, torch.cat(all_gather(comm, x))


with check.limit(10):
    results = World(3).run(gathered)
before = [x if len(x) else None for x, _ in results]
study.holdings(before, [y for _, y in results], title="Your all-gather on 3 ranks")

# %% [markdown] nbgrader={"grade_id": "all_reduce_spec"}
# ## 5 · All-reduce of many tensors at once (3 points)
#
# A model has many small gradients, and each message costs its latency. So all tensors of a list go around the ring
# together: in each step a rank sends *one* message, with a part of the numbers of all of them.
#
# | | |
# |---|---|
# | call | `all_reduce(comm, tensors)` |
# | `tensors` | a list of one tensor or more, all of one dtype; the shapes are the same on every rank. A tensor may have any shape, be empty, or not be contiguous; afterwards each holds its sum over all ranks, **in place**, and the list holds the same tensors as before |
# | returns | nothing |
# | cost | 2(n−1) messages per rank for the whole list, all to the right |
# | bytes | at most 2(n−1) chunks per rank, where a chunk is an n-th of all the numbers, rounded up |
#
# About 12 lines.
#
# <details><summary>Hint</summary>
#
# Put all numbers in a row (`torch.cat` of each `reshape(-1)`), send that row around the ring, and write its parts back:
# `split` cuts it into parts of the lengths that you give it, `view_as` gives a part its shape, and `copy_` writes it
# into a tensor, contiguous or not.
#
# </details>


# %% nbgrader={"grade_id": "all_reduce", "solution": true}
def all_reduce(comm, tensors):
    """Fill every tensor of the list with the sum over all ranks, in place."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    flat = torch.cat([x.reshape(-1) for x in tensors])
    chunks = flat.tensor_split(n)
    for k in range(1, n):
        mine = chunks[(r - k - 1) % n]
        mine += comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
    for k in range(n - 1):
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, chunks[(r - k - 1) % n], (r - 1) % n)
    for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.copy_(part.view_as(x))
    ### END SOLUTION


# %% nbgrader={"grade_id": "all_reduce_test", "points": 3}
check.all_reduce(all_reduce)

# %% [markdown] nbgrader={"grade_id": "all_reduce_target"}
# **Target:** only the links to the right are used, and all of them equally: 2 · 3/4 · 4000 = 6,000 bytes over each.

# %%
world = World(4)
with check.limit(10):
    world.run(lambda comm: all_reduce(comm, [torch.zeros(30, 30), torch.zeros(100)]))
study.traffic(world.trace, title="Your all-reduce of 4,000 bytes on 4 ranks")

# %% [markdown] nbgrader={"grade_id": "predict_spec"}
# ## 6 · Predict, then run (2 points)
#
# 8 ranks reduce 100 tensors, which have 1,000,000 numbers in all, in float32 (4 bytes each), with the `all_reduce` of
# exercise 5. A message of N bytes takes α + Nβ seconds, with α = 5 µs and β = 1/(50 GB/s) = 2·10⁻¹¹ s. You need no run
# for this: a pencil is enough.
#
# - `messages`: how many messages does each rank send in the ring?
# - `nbytes`: how many bytes does each rank send in the ring?
# - `seconds`: how long does the ring take?
# - `naive_nbytes`: without a ring, all ranks send their numbers to rank 0, which adds them up and sends the sums to
#   everyone else. How many bytes does rank 0 *send*?
#
# Write numbers or formulas that are right within 1 %.

# %% nbgrader={"grade_id": "predict", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict.numbers(STUDENT)
messages = nbytes = seconds = naive_nbytes = None
### BEGIN SOLUTION
n = 8
N = 4_000_000
alpha = 5e-6
beta = 1 / 50e9
messages = 2 * (n - 1)
nbytes = 2 * (n - 1) / n * N
seconds = messages * alpha + nbytes * beta
naive_nbytes = (n - 1) * N
### END SOLUTION

# %% nbgrader={"grade_id": "predict_test", "points": 2}
check.predict(messages, nbytes, naive_nbytes, seconds, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_target"}
# **Target:** your number agrees with the clock of a World. On the device `"meta"` tensors have a shape but no numbers,
# so a million of them cost nothing.

# %%
world = World(8, device="meta")
with check.limit(30):
    world.run(all_reduce, [torch.zeros(10_000, device="meta") for _ in range(100)])
study.bars(
    {"predicted": seconds, "run": world.time}, unit="s", title="Ring all-reduce of 4 MB on 8 ranks"
)

# %% [markdown] nbgrader={"grade_id": "ring_sum_spec"}
# ## 7 · Find the bug (2 points)
#
# Here is a simpler ring: the whole tensor goes around, and everyone adds up what passes by. It moves more bytes than
# your all-reduce, but in only n−1 steps, which is best for small tensors. The next cell was found in somebody's code.
# It works on two ranks.


# %% nbgrader={"grade_id": "ring_sum_broken"}
def ring_sum(comm, x):
    """The sum of every rank's x, in a new tensor: n-1 steps, x untouched."""
    n, r = comm.size, comm.rank
    total, passing = x.clone(), x
    for _ in range(n - 1):
        received = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
        total = total + received
        passing = total
    return total


# %%
def powers(comm):
    return int(ring_sum(comm, torch.tensor(10**comm.rank)))


rows = []
for n in (1, 2, 3, 4):
    rows.append([n, World(n).run(powers)[0], sum(10**r for r in range(n))])
study.table(rows, ["ranks", "rank 0 gets", "should be"])

# %% [markdown] nbgrader={"grade_id": "ring_sum_task"}
# Rank r gave 10 to the power r, so each digit tells how often a rank was counted. Copy the function and repair it: one
# line is wrong.
#
# | | |
# |---|---|
# | call | `ring_sum(comm, x)` |
# | `x` | a tensor of any shape, which is the same on every rank; it need not be contiguous; **not changed** |
# | returns | a **new** tensor, a different one in every call: the sum of every rank's x |
# | cost | n−1 messages per rank, all to the right, each with the whole x |
#
# <details><summary>Hint</summary>
#
# Follow rank 0's number around three ranks. What does rank 1 pass on in its second step, and whose numbers are in it?
#
# </details>


# %% nbgrader={"grade_id": "ring_sum", "solution": true}
def ring_sum(comm, x):
    """The sum of every rank's x, in a new tensor: n-1 steps, x untouched."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    total, passing = x.clone(), x
    for _ in range(n - 1):
        received = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
        total = total + received
        passing = received
    return total
    ### END SOLUTION


# %% nbgrader={"grade_id": "ring_sum_test", "points": 2}
check.ring_sum(ring_sum)

# %% [markdown] nbgrader={"grade_id": "ring_sum_target"}
# **Target:** the same table, now with nothing but ones in its numbers.

# %%
rows = []
with check.limit(10):
    for n in (1, 2, 3, 4):
        rows.append([n, World(n).run(powers)[0], sum(10**r for r in range(n))])
study.table(rows, ["ranks", "rank 0 gets", "should be"])

# %% [markdown] nbgrader={"grade_id": "pieces_spec"}
# ## 8 · How many pieces? (2 points, graded by hand)
#
# 16 ranks broadcast 100 MB with your `broadcast`, on a network with α = 5 µs and 1/β = 50 GB/s. **Into how many pieces
# should the 100 MB be cut, how long does the broadcast take then, and how many times as fast is it as in one piece?**
#
# Answer with a plot and about ten sentences. A `World` on the device `"meta"` runs it in no time. Your teacher gives:
#
# - **1 point for the derivation.** A formula for the time with m pieces, with a reason for each of its two factors;
#   from it the best m as a number, and the two other numbers that are asked for.
# - **1 point for the plot and what it shows.** The time for at least eight values of m, from far below the best one to
#   far above it, as runs of your function beside the formula, with names and units on both axes; what costs time to the
#   left of the minimum, and what to the right of it; and how much is lost with half and with twice the best m.


# %% nbgrader={"grade_id": "pieces_plot", "solution": true}
### BEGIN SOLUTION
def broadcast_seconds(m, n=16, nbytes=100_000_000):
    world = World(n, device="meta")
    world.run(broadcast, torch.empty(nbytes, dtype=torch.uint8, device="meta"), 0, m)
    return world.time


counts = [1, 3, 10, 20, 37, 75, 150, 300, 1000]
study.curves(
    {"(14 + m)(α + Nβ/m)": (counts, [(14 + m) * (5e-6 + 2e-3 / m) for m in counts])},
    points={"run": (counts, [broadcast_seconds(m) for m in counts])},
    logx=True,
    logy=True,
    yunit="s",
    xlabel="pieces, m",
    ylabel="time of the broadcast",
    title="100 MB along a line of 16 ranks",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "pieces", "solution": true, "points": 2}
# The first piece needs n−1 messages to reach the end of the line, and each of the other m−1 pieces arrives one message
# later. That makes n−2+m messages, one after another. Each of them carries N/m bytes and takes α + Nβ/m. So
# T(m) = (n−2+m)(α + Nβ/m) = (n−2)α + Nβ + mα + (n−2)Nβ/m. The first two terms do not depend on m, and the sum of the last
# two is least where they are equal: m = √((n−2)Nβ/α). Here Nβ is 2 ms, so m = √(14 · 2 ms / 5 µs) = √5600 ≈ 75.
# Then T = 89 · (5 µs + 26.7 µs) = 2.82 ms. In one piece it takes 15 · 2.005 ms = 30.1 ms, so 75 pieces are 10.7 times as
# fast.
#
# The runs lie on the formula. To the left of the minimum the pieces are large, and most wires wait for the first to get to
# them: (n−2)Nβ/m is lost. To the right the pieces are so small that their latency costs more than their bytes: mα is lost.
# The minimum is flat. With 37 pieces the broadcast takes 3.01 ms, and with 150 pieces as well: 7 % more than with 75. So a
# rough m is good enough.
