# %% [markdown] nbgrader={"grade_id": "top"}
# # 02 Messages: exercises
#
# You go one step beyond the lesson with each of its algorithms, find a bug in another ring, and measure a broadcast.
#
# Eight exercises, 20 points. Seven of them, 18 points, are checked by a program: after each, run the check. It tries your
# function on 1 to 8 ranks, then in real processes, and says what is wrong. Try as often as you like. What your function
# prints is not shown there; to see it, run the function in a `World` of your own. The last exercise, 2 points, is read by
# your teacher. An answer that gives the right numbers and takes more messages, bytes or time than it may earns half.
#
# In every exercise rank r's *right* neighbour is rank r+1, and the last rank's is rank 0; r's *left* neighbour is rank r−1.
# The collectives of the library are refused here: build with `comm.send`, `recv`, `sendrecv`, `isend`, `irecv` and `batch`.
# Wait for all that you post, before you return. Tensors are of float64, float32, int64 or int32, of one dtype on all ranks,
# and the result has the same; add up in that dtype. A nan is a number like any other: it is passed on, and counts in a
# sum. A message without numbers may be left out.

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
# | `x` | any shape, contiguous or not, the same on every rank; **not changed** |
# | `places` | any integer, the same on every rank: −1 is one place to the left, and n is once around the ring |
# | returns | a **new** tensor, another one for every call: the `x` of the rank that is `places` to the left |
# | cost | one message a rank, straight to its place; none if the tensor comes back to where it started |
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
# **Target:** four arrows, all in the same step, each to the rank after the next.

# %%
world = World(4)
world.run(shift, torch.zeros(1000), 2)
study.messages(world.trace, clock="steps", label="bytes", title="Your shift by 2 on 4 ranks")

# %% [markdown] nbgrader={"grade_id": "broadcast_spec"}
# ## 2 · Broadcast along a line (3 points)
#
# One rank, the root, has the numbers. In the end, all have them. They travel along a line: from the root to its right
# neighbour, from there to the next, and so on, until the root's left neighbour has them. If they travelled as one message,
# all wires but one would stand idle. So cut x into `m` pieces: while a rank passes on one piece, the next one arrives.
#
# | | |
# |---|---|
# | call | `broadcast(comm, x, root, m)` |
# | `x` | any shape, contiguous or not, the same on every rank; afterwards it holds the root's numbers, **in place** |
# | `m` | how many pieces, 1 or more; as `tensor_split(m)` cuts the numbers in a row, some are empty if there are fewer than m |
# | returns | nothing |
# | cost | m messages a rank, one a piece, all to the right; the last rank of the line sends none |
# | time | n−2+m messages of a piece, one after another, on the clock of `World(n, ordered=True)`, where every rank has a stream |
#
# About 13 lines.
#
# <details><summary>Hint</summary>
#
# First work out your place in the line: 0 for the root, n−1 for the last. In step k a rank receives piece k and passes on
# piece k−1. On a stream both start together only in one group, `comm.batch([Recv(…), Send(…)]).wait()`, which may also
# have one member, or none. `x.contiguous().view(-1)` shows the numbers in a row; where x is not contiguous this is a copy,
# and what arrives in it must go back into x.
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
# **Target:** three pieces, one behind the other, on a line of four ranks that begins at rank 1. In step 3 all three wires
# are busy.

# %%
world = World(4)
world.run(broadcast, torch.zeros(3000), 1, 3)
study.messages(world.trace, clock="steps", label="bytes", title="Your broadcast from rank 1")

# %% [markdown] nbgrader={"grade_id": "reduce_scatter_spec"}
# ## 3 · Reduce-scatter on a ring that turns to the left (3 points)
#
# Every rank has n chunks. In the end rank r has the sum of everybody's chunk r. The ring of the lesson turned to the right
# and left partial sums in the caller's chunks; this one turns to the left and leaves the caller's chunks alone.
#
# | | |
# |---|---|
# | call | `reduce_scatter(comm, chunks)` |
# | `chunks` | a list of n tensors with one dimension, of the same lengths on every rank; chunk 0 may be longer than chunk 1, or empty; **not changed** |
# | returns | a tensor: chunk `comm.rank`, summed over all ranks |
# | cost | n−1 messages a rank, all to the **left**, each of one chunk |
#
# As ever, chunk i is finished at rank i. About 7 lines.
#
# <details><summary>Hint</summary>
#
# Where must chunk i set out, so that it visits every rank once, travels to the left, and arrives at rank i last? Then which
# chunk is at rank r before step k? What a rank has just added up is what it sends in the next step, so one variable
# for it is enough.
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
# **Target:** on the right, each rank holds one finished chunk, its own, with the sum of its column on the left.


# %%
def three(comm):
    chunks = [torch.tensor([10 * (comm.rank + 1) + i]) for i in range(3)]
    return chunks, reduce_scatter(comm, chunks)


results = World(3).run(three)
after = [[out if i == r else None for i in range(3)] for r, (_, out) in enumerate(results)]
study.holdings([chunks for chunks, _ in results], after, title="Your reduce-scatter on 3 ranks")

# %% [markdown] nbgrader={"grade_id": "all_gather_spec"}
# ## 4 · All-gather of lengths that nobody knows (3 points)
#
# Every rank has a tensor, and no rank knows how long the others' are: think of the texts in everybody's batch. In the end
# all ranks have all tensors. A receiver must bring a tensor of the right shape, so the lengths have to travel first.
#
# | | |
# |---|---|
# | call | `all_gather(comm, x)` |
# | `x` | one dimension, contiguous or not, **of another length on every rank**, which may be 0; **not changed** |
# | returns | a list of n tensors: the x of rank 0, of rank 1, and so on; your own is a copy |
# | cost | 2(n−1) messages a rank at most, all to the right |
# | bytes | those of the tensors that a rank passes on, and 8 for each of the n−1 lengths; nothing is filled up |
#
# About 12 lines.
#
# <details><summary>Hint</summary>
#
# Two rings, one after the other: in the first each message is one number, a length, as a tensor of int64. After it every
# rank can make room for all the others. It is the same walk both times, so write it once.
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
# **Target:** three full rows, all alike, and rank 1 had nothing to give.


# %%
def gathered(comm):
    x = torch.tensor([1, 2, 3, 40, 50]).split([3, 0, 2])[comm.rank]
    return x, torch.cat(all_gather(comm, x))


results = World(3).run(gathered)
before = [x if len(x) else None for x, _ in results]
study.holdings(before, [y for _, y in results], title="Your all-gather on 3 ranks")

# %% [markdown] nbgrader={"grade_id": "all_reduce_spec"}
# ## 5 · All-reduce of many tensors at once (3 points)
#
# A model has many small gradients, and each message costs its latency. So all tensors of a list go around the ring
# together, and in each step a rank sends *one* message, with a part of the numbers of them all.
#
# | | |
# |---|---|
# | call | `all_reduce(comm, tensors)` |
# | `tensors` | a list of one tensor or more, of one dtype, of the same shapes on every rank: any shape, contiguous or not, some may be empty; afterwards each holds the sum over all ranks, **in place**. The list keeps its tensors |
# | returns | nothing |
# | cost | 2(n−1) messages a rank for the whole list, all to the right |
# | bytes | at most 2(n−1) chunks a rank, where a chunk is an n-th of all the numbers, rounded up |
#
# About 12 lines.
#
# <details><summary>Hint</summary>
#
# Put all numbers in a row (`torch.cat` of each `reshape(-1)`), send that row around the ring, and write the parts back:
# `split` cuts it into the lengths that you give it, `view_as` gives a part its shape, and `copy_` writes it into a tensor,
# contiguous or not.
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
# **Target:** only the links to the right are used, and all alike: 2 · 3/4 · 4000 = 6,000 bytes over each.

# %%
world = World(4)
world.run(lambda comm: all_reduce(comm, [torch.zeros(30, 30), torch.zeros(100)]))
study.traffic(world.trace, title="Your all-reduce of 4,000 bytes on 4 ranks")

# %% [markdown] nbgrader={"grade_id": "predict_spec"}
# ## 6 · Predict, then run (2 points)
#
# 8 ranks reduce 100 tensors, which have 1,000,000 numbers together, in float32 (4 bytes each), with the `all_reduce` of
# exercise 5. A message of N bytes takes α + Nβ seconds, with α = 5 µs and β = 1/(50 GB/s) = 2·10⁻¹¹ s. No run is needed: a
# pencil is enough.
#
# - `messages`: how many messages does each rank send in the ring?
# - `nbytes`: how many bytes does each rank send in the ring?
# - `seconds`: how long does the ring take?
# - `naive_nbytes`: without a ring, all send their numbers to rank 0, which adds up and sends the sums to everyone. How many
#   bytes does rank 0 *send*?
#
# Write numbers or formulas, right within 1 %.

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
# **Target:** your number beside the clock of a World. On the device `"meta"` tensors have a shape and no numbers, so
# the million costs nothing.

# %%
world = World(8, device="meta")
world.run(all_reduce, [torch.zeros(10_000, device="meta") for _ in range(100)])
study.bars(
    {"predicted": seconds, "run": world.time}, unit="s", title="Ring all-reduce of 4 MB on 8 ranks"
)

# %% [markdown] nbgrader={"grade_id": "ring_sum_spec"}
# ## 7 · Find the bug (2 points)
#
# A simpler ring: the whole tensor goes around, and everyone adds up what passes by. It moves more bytes than yours, but
# it has only n−1 steps, which is best for small tensors. The next cell was found in somebody's code. It works on two
# ranks.


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


rows = [[n, World(n).run(powers)[0], sum(10**r for r in range(n))] for n in (1, 2, 3, 4)]
study.table(rows, ["ranks", "rank 0 gets", "should be"])

# %% [markdown] nbgrader={"grade_id": "ring_sum_task"}
# Rank r gave 10 to the power r, so each digit says how often a rank was counted. Copy the function, and repair it: one
# line is wrong.
#
# | | |
# |---|---|
# | call | `ring_sum(comm, x)` |
# | `x` | any shape, contiguous or not, the same on every rank; **not changed** |
# | returns | a **new** tensor, another one for every call: the sum of every rank's x |
# | cost | n−1 messages a rank, all to the right, each of the whole x |
#
# <details><summary>Hint</summary>
#
# Follow rank 0's number with three ranks. What does rank 1 pass on in its second step, and whose numbers are in it?
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
# **Target:** the table once more, now with ones only.

# %%
rows = [[n, World(n).run(powers)[0], sum(10**r for r in range(n))] for n in (1, 2, 3, 4)]
study.table(rows, ["ranks", "rank 0 gets", "should be"])

# %% [markdown] nbgrader={"grade_id": "pieces_spec"}
# ## 8 · How many pieces? (2 points, graded by hand)
#
# 16 ranks broadcast 100 MB with your `broadcast`, on a network with α = 5 µs and 1/β = 50 GB/s. **Into how many pieces
# should the 100 MB be cut, how long does the broadcast take then, and how many times faster is it than in one piece?**
#
# Answer with a plot and about ten sentences. A `World` on the device `"meta"` runs it in no time. Your teacher gives:
#
# - **1 point for the derivation.** A formula for the time with m pieces, with a reason for each of its two factors; from
#   it the best m as a number, and the two numbers that go with it.
# - **1 point for the plot and what it shows.** The time for at least eight values of m, from far below the best to far
#   above it, as runs of your function beside the formula, with names and units on both axes; and what costs time to the
#   left of the minimum, what to the right of it, and how much is lost by taking half or twice the best m.


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
# later: n−2+m messages, one after another. Each of them carries N/m bytes and takes α + Nβ/m. So
# T(m) = (n−2+m)(α + Nβ/m) = (n−2)α + Nβ + mα + (n−2)Nβ/m. The first two terms do not depend on m, and the sum of the last
# two is least where they are equal: m = √((n−2)Nβ/α). Here Nβ is 2 ms, so m = √(14 · 2 ms / 5 µs) = √5600 ≈ 75.
# Then T = 89 · (5 µs + 26.7 µs) = 2.82 ms. In one piece it takes 15 · 2.005 ms = 30.1 ms, 10.7 times as long.
#
# The runs lie on the formula. To the left of the minimum the pieces are large, and most wires wait for the first to get to
# them: (n−2)Nβ/m is lost. To the right the pieces are so small that their latency costs more than their bytes: mα is lost.
# The minimum is flat. With 37 pieces it takes 3.01 ms and with 150 pieces 3.01 ms, 7 % more than with 75; so a rough m is
# good enough, and the sum of the two lost terms is all that one has to keep small.
