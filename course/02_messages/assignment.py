# %% [markdown] nbgrader={"grade_id": "top"}
# # 02 Messages: exercises
#
# You build the ring all-reduce from `send` and `receive`, and find a bug in another ring.
#
# Seven exercises, 16 points. After each, run the check: it tries your function on 1 to 8 ranks, then in real
# processes, and says what is wrong. Try as often as you like. What your function prints is not shown there; to see it,
# run the function in a `World` of your own.
#
# In every exercise rank r's *right* neighbour is rank r+1, and the last rank's is rank 0. The collectives of the
# library are refused here: build with `comm.send`, `recv`, `sendrecv`, `isend`, `irecv`. Wait for all that you post,
# before you return. A nan is a number like any other: it is passed on, and counts in a sum.

# %% nbgrader={"grade_id": "setup"}
import torch

import minicheck as check

from minidist import study
from minidist.comm import World

# %% [markdown] nbgrader={"grade_id": "shift_spec"}
# ## 1 · Shift (2 points)
#
# Everyone passes a tensor to the right, all at the same time.
#
# | | |
# |---|---|
# | call | `shift(comm, x)` |
# | `x` | any shape, contiguous or not, the same on every rank; **not changed** |
# | returns | a **new** tensor: the `x` of the left neighbour |
# | cost | one message a rank |
#
# With one rank, you are your own neighbour: nothing is sent. About 5 lines.
#
# <details><summary>Hint</summary>
#
# If all ranks call `send` first, they wait there, and none comes to receive. `comm.sendrecv(x, dst, into, src)` starts
# both together; so do `isend` and `irecv`, if you wait for them afterwards. `torch.empty_like(x)` makes room. A rank
# cannot send to itself.
#
# </details>


# %% nbgrader={"grade_id": "shift", "solution": true}
def shift(comm, x):
    """The x of the left neighbour, in a new tensor."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    if n == 1:
        return x.clone()
    return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
    ### END SOLUTION


# %% nbgrader={"grade_id": "shift_test", "points": 2}
check.shift(shift)

# %% [markdown] nbgrader={"grade_id": "shift_target"}
# **Target:** four arrows, all in the same step.

# %%
world = World(4)
world.run(shift, torch.zeros(1000))
study.messages(world.trace, clock="steps", label="bytes", title="Your shift on 4 ranks")

# %% [markdown] nbgrader={"grade_id": "broadcast_spec"}
# ## 2 · Broadcast (2 points)
#
# One rank, the root, has the numbers. In the end, all have them.
#
# | | |
# |---|---|
# | call | `broadcast(comm, x, root)` |
# | `x` | any shape, contiguous or not, the same on every rank; afterwards it holds the root's numbers, **in place** |
# | returns | nothing |
# | cost | n−1 messages in all: one to each rank that has nothing yet |
#
# Who sends to whom is up to you. About 6 lines.
#
# <details><summary>Hint</summary>
#
# The simplest: the root sends to each of the others in turn; every other rank receives once, from the root.
# A chain or a tree needs as many messages.
#
# </details>


# %% nbgrader={"grade_id": "broadcast", "solution": true}
def broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place."""
    ### BEGIN SOLUTION
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.send(x, r)
    else:
        comm.recv(x, root)
    ### END SOLUTION


# %% nbgrader={"grade_id": "broadcast_test", "points": 2}
check.broadcast(broadcast)

# %% [markdown] nbgrader={"grade_id": "broadcast_target"}
# **Target:** three messages. What do you see in the root's row? Lesson 03 does it in fewer steps.

# %%
world = World(4)
world.run(broadcast, torch.zeros(1000), 1)
study.messages(world.trace, clock="steps", label="bytes", title="Your broadcast from rank 1")

# %% [markdown] nbgrader={"grade_id": "reduce_scatter_spec"}
# ## 3 · The first half of the ring: reduce-scatter (3 points)
#
# Every rank has n chunks. In the end rank r has the sum of everybody's chunk r.
#
# | | |
# |---|---|
# | call | `reduce_scatter(comm, chunks)` |
# | `chunks` | a list of n tensors with one dimension; lengths may differ, and be 0; **not changed** |
# | returns | a tensor: chunk `comm.rank`, summed over all ranks |
# | cost | n−1 messages a rank, all to the right, each of one chunk |
#
# **Invariant:** chunk i sets out from rank i+1, travels to the right, and each rank on its way adds its own chunk i.
# It arrives at rank i last, and is finished there. About 7 lines.
#
# <details><summary>Hint</summary>
#
# In step s = 0, 1, …, n−2 rank r sends what it has of chunk r−1−s and receives chunk r−2−s (mod n), to which it
# adds its own. What it has just added up is what it sends in the next step.
#
# </details>


# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    partial = chunks[(r - 1) % n].clone()
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
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
# ## 4 · The second half: all-gather (2 points)
#
# Rank r has chunk r, finished. In the end all ranks have all chunks.
#
# | | |
# |---|---|
# | call | `all_gather(comm, chunks)` |
# | `chunks` | a list of n tensors with one dimension; `chunks[r]` is right on rank r, all others are to be filled, **in place** |
# | returns | nothing |
# | cost | n−1 messages a rank, all to the right, each of one chunk |
#
# **Invariant:** in each step a rank sends what arrived in the step before; in the first, its own chunk. About 4 lines.
#
# <details><summary>Hint</summary>
#
# In step s rank r sends chunk r−s and receives chunk r−s−1 (mod n), right into `chunks[...]`.
#
# </details>


# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(comm, chunks):
    """Fill every chunks[i] with that of rank i, in place."""
    ### BEGIN SOLUTION
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)
    ### END SOLUTION


# %% nbgrader={"grade_id": "all_gather_test", "points": 2}
check.all_gather(all_gather)

# %% [markdown] nbgrader={"grade_id": "all_gather_target"}
# **Target:** three full rows, all alike.


# %%
def gathered(comm):
    chunks = [
        torch.tensor([10 * (i + 1)]) if i == comm.rank else torch.tensor([0]) for i in range(3)
    ]
    before = [c.clone() if i == comm.rank else None for i, c in enumerate(chunks)]
    all_gather(comm, chunks)
    return before, chunks


results = World(3).run(gathered)
study.holdings([b for b, _ in results], [c for _, c in results], title="Your all-gather on 3 ranks")

# %% [markdown] nbgrader={"grade_id": "all_reduce_spec"}
# ## 5 · All-reduce (3 points)
#
# The two halves together: everybody gets the sum.
#
# | | |
# |---|---|
# | call | `all_reduce(comm, x)` |
# | `x` | contiguous, any shape and length, the same on every rank; afterwards it holds the sum, **in place** |
# | returns | nothing |
# | cost | 2(n−1) messages a rank, all to the right; 2(n−1)/n·N bytes if n divides the length |
#
# Use your `reduce_scatter` and your `all_gather`. About 4 lines.
#
# <details><summary>Hint</summary>
#
# `x.view(-1)` shows x as one row of numbers, and `.tensor_split(n)` cuts it into n views, the first ones longer where n
# does not divide the length. Views share their memory with x: what is written into them, is in x. So copy the finished
# chunk into its view first (`copy_`).
#
# </details>


# %% nbgrader={"grade_id": "all_reduce", "solution": true}
def all_reduce(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    ### BEGIN SOLUTION
    chunks = x.view(-1).tensor_split(comm.size)
    chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
    all_gather(comm, chunks)
    ### END SOLUTION


# %% nbgrader={"grade_id": "all_reduce_test", "points": 3}
check.all_reduce(all_reduce)

# %% [markdown] nbgrader={"grade_id": "all_reduce_target"}
# **Target:** only the links to the right are used, and all alike: 2 · 3/4 · 4000 = 6,000 bytes over each.

# %%
world = World(4)
world.run(all_reduce, torch.zeros(1000))
study.traffic(world.trace, title="Your all-reduce of 4,000 bytes on 4 ranks")

# %% [markdown] nbgrader={"grade_id": "predict_spec"}
# ## 6 · Predict, then run (2 points)
#
# 8 ranks reduce 1,000,000 numbers in float32 (4 bytes each). A message of N bytes takes α + Nβ seconds, with α = 5 µs
# and β = 1/(50 GB/s) = 2·10⁻¹¹ s. No run is needed: a pencil is enough.
#
# - `messages`: how many messages does each rank send in the ring?
# - `nbytes`: how many bytes does each rank send in the ring?
# - `seconds`: how long does the ring take?
# - `naive_nbytes`: without a ring, all send to rank 0, which adds up and sends the sum to everyone. How many bytes does
#   rank 0 *send*?
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
world.run(all_reduce, torch.zeros(1_000_000, device="meta"))
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
# | returns | a **new** tensor: the sum of every rank's x |
# | cost | n−1 messages a rank, all to the right |
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
