# %% [markdown]
# # 02 · Messages
#
# Four ranks each hold 100 MB of gradients. Every rank needs the sum of all four.
# **How many bytes must the busiest rank send?**
#
# Write your guess into the next cell. The answer stands on a plot further down, beside your guess.

# %%
MB = 10**6
guess = 300 * MB  # bytes that the busiest rank sends: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Rank 0 holds ones, rank 1 tens, rank 2 hundreds. So a sum tells who is in it: 666 is complete, 606 lacks rank 1.

# %%
import torch
from IPython.display import display

from minidist import study
from minidist.comm import Deadlock, World, from_env, launch


def numbers(comm, length=6):
    return torch.arange(1, length + 1) * 10**comm.rank


before = World(3).run(numbers)
study.holdings(before, [sum(before)] * 3, title="All-reduce: everyone has the sum")

# %% [markdown]
# On paper you would carry all numbers to one desk, add them there, and carry the result back. Keep that picture.
# It is the naive algorithm, and we shall count what passes over the desk.
#
# ## A rank
#
# A **rank** is one copy of the program, with a number from 0 to n−1. On a cluster each rank drives one GPU.
# Ranks share no memory: what one knows, another learns by a message. All that a program is given is `comm`.


# %%
def hello(comm):
    return f"I am rank {comm.rank} of {comm.size}"


World(4).run(hello)

# %% [markdown]
# `World(4)` runs four ranks in this notebook and returns what each of them returned, in rank order.
#
# ## Send and receive
#
# There are two verbs. `send(x, dst)` sends a tensor, `recv(x, src)` fills one. All else is built on them.
# Here a sum is passed along a line of ranks. The world keeps a trace: every message, its bytes, and when it
# travelled on a **virtual clock**.


# %%
def along_the_line(comm):
    total = numbers(comm)
    if comm.rank > 0:
        total += comm.recv(torch.empty_like(total), comm.rank - 1)
    if comm.rank < comm.size - 1:
        comm.send(total, comm.rank + 1)
    return total


world = World(3)
display(
    study.holdings(before, world.run(along_the_line), title="Only the last rank has the whole sum")
)
study.messages(world.trace, label="bytes", title="A sum passed along a line of ranks")

# %% [markdown]
# ## What a message costs
#
# A message of $N$ bytes takes $\alpha + N\beta$ seconds: the bytes leave one after another, in $N\beta$, and arrive a
# latency $\alpha$ later. The sender is free after $N\beta$, the receiver after $\alpha + N\beta$.
# By default a `World` has an α of 5 µs, and the β of a 50 GB/s link. The line is the formula, the points are runs.

# %%
ALPHA, BETA = 5e-6, 1 / 50e9


def one_message(comm, nbytes):
    x = torch.empty(nbytes, dtype=torch.uint8, device=comm.device)
    if comm.rank == 0:
        comm.send(x, 1)
    else:
        comm.recv(x, 0)


sizes, fine = [10**k for k in range(2, 10)], [round(10 ** (k / 8)) for k in range(16, 73)]
formula = {"α + Nβ": (fine, [ALPHA + n * BETA for n in fine])}
times = {"run": (sizes, [World(2, device="meta").run(one_message, n).time for n in sizes])}
study.curves(
    formula,
    points=times,
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes in the message, N",
    ylabel="time of one message",
    title="Small messages all cost the same",
)

# %% [markdown]
# The 1 GB message needed no memory. On the device `"meta"` tensors have a shape and no data,
# so a large run fits into a laptop.
#
# ## A deadlock
#
# Let every rank give its numbers to its right neighbour. The obvious program: everyone sends, then receives.


# %%
def everyone_sends_first(comm):
    mine = numbers(comm)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    comm.send(mine, right)
    return comm.recv(torch.empty_like(mine), left)


try:
    World(3).run(everyone_sends_first)
except Deadlock as why:
    print(why)

# %% [markdown]
# A send ends when its receiver takes the message. Here nobody gets as far as receiving: each waits for the next,
# in a circle. A real cluster would say nothing until a timeout, by default after 10 to 30 minutes.
# The world sees that no rank can go on, and says who waits where.
#
# Some systems copy a small message into a buffer, so that its send ends at once. There the same program passes
# all its tests, until a message is too large for the buffer. `World(n, rendezvous=False)` has such a buffer, and an
# endless one: there the bug never shows.
#
# One could let even ranks send first and odd ranks receive first. Better: start both together and wait for both.
# That is `sendrecv`. Now every wire works in the same step.


# %%
def shift(comm):
    mine = numbers(comm)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    return comm.sendrecv(mine, right, torch.empty_like(mine), left)


world, buffered = World(3), World(3, rendezvous=False).run(everyone_sends_first)
assert all(torch.equal(x, y) for x, y in zip(world.run(shift), buffered))
display(study.holdings(before, world.run(shift), title="Everyone has its left neighbour's numbers"))
study.messages(
    world.trace, clock="steps", label="bytes", title="sendrecv: everyone sends and receives at once"
)

# %% [markdown]
# `sendrecv` does three things that one can do alone. `isend` and `irecv` **post** a message and return at once, with
# a handle; its `wait` waits. What is posted is there for the other side, in whatever order a rank posts
# and waits. Only this is fixed: from one rank to another, messages match in the order of posting. That is MPI's rule.
#
# A stream of NCCL, the library for GPUs, is stricter: it starts an operation when all that was posted before has
# finished, unless they were posted as one group. `World(n, ordered=True)` has such streams. Below, the same
# program is right in one World and hangs in the other: who stands before whom?


# %%
def post_both(comm):
    mine = numbers(comm)
    theirs = torch.empty_like(mine)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    sending = comm.isend(mine, right)
    receiving = comm.irecv(theirs, left)
    sending.wait()
    receiving.wait()
    return theirs


assert all(torch.equal(x, y) for x, y in zip(World(3).run(post_both), World(3).run(shift)))
try:
    World(3, ordered=True).run(post_both)
except Deadlock as why:
    print(why)

# %% [markdown]
# There `comm.batch([Send(mine, right), Recv(theirs, left)])` posts both as a group. `sendrecv` does that, too, so it is
# right everywhere.
#
# ## The collectives
#
# A **collective** is a pattern in which every rank takes part. We name rank 0's chunks a0, a1, …, rank 1's b0, b1, …
# The helpers below make them as numbers, and read the names back from any sum: 20 is b1, 111 is a0+b0+c0.


# %%
def letters(comm, chunks=3):
    return numbers(comm, chunks)  # chunk i of rank r is (i + 1)·10^r


def spell(values):
    digits = [reversed(str(int(v))) for v in values]
    return [
        "+".join("abcd"[r] + str(int(d) - 1) for r, d in enumerate(ds) if d != "0") for ds in digits
    ]


def draw(title, verb, chunks=3):
    start = [spell(x) for x in World(3).run(letters, chunks)]
    end = World(3).run(lambda comm: verb(comm, letters(comm, chunks)))
    return display(study.holdings(start, [x if x is None else spell(x) for x in end], title=title))


# %% [markdown]
# Four of them only move data. One rank is the **root**, here rank 0. **Broadcast** copies its tensor to everyone.
# **Scatter** deals it out, a piece to each. **Gather** collects a piece from each at the root. **All-gather** does so
# on every rank.

# %%
from minidist.collectives import (
    all_gather,
    all_reduce_,
    all_to_all,
    barrier,
    broadcast_,
    gather,
    reduce_,
    reduce_scatter,
    scatter,
)

draw("broadcast from rank 0", broadcast_)
draw("scatter from rank 0", scatter)
draw("gather at rank 0", gather, chunks=1)
draw("all-gather", all_gather, chunks=1)

# %% [markdown]
# The next ones add up. **Reduce** leaves the sum at the root, **all-reduce** on every rank: our question.
# **Reduce-scatter** leaves the sum of chunk i at rank i. **All-to-all** adds nothing: rank i gets everyone's chunk i.
#
# Last, a **barrier** moves no data: nobody leaves before the last one has come. In the table ranks 0 and 1 are late,
# because they first exchange 1 MB.

# %%
draw("reduce to rank 0", reduce_)
draw("all-reduce", all_reduce_)
draw("reduce-scatter", reduce_scatter)
draw("all-to-all", all_to_all)


# %%
def late_then_barrier(comm):
    if comm.rank < 2:
        x, y = torch.empty(2, MB, dtype=torch.uint8)
        comm.sendrecv(x, 1 - comm.rank, y, 1 - comm.rank)
    came = comm.now()
    barrier(comm)
    return came, comm.now()


rows = [
    (f"rank {r}", came * 1e6, left * 1e6)
    for r, (came, left) in enumerate(World(4).run(late_then_barrier))
]
study.table(rows, ["", "came, µs", "left, µs"], title="barrier")

# %% [markdown]
# ## All-reduce, the naive way
#
# Everything to rank 0's desk, then back. First whether the sum is right; then, with the question's 100 MB on 4 ranks,
# who sends how much to whom.


# %%
def naive_all_reduce(comm, x):
    if comm.rank != 0:
        comm.send(x, 0)
        return comm.recv(x, 0)
    for r in range(1, comm.size):
        x += comm.recv(torch.empty_like(x), r)
    for r in range(1, comm.size):
        comm.send(x, r)
    return x


summed = World(3).run(lambda comm: naive_all_reduce(comm, numbers(comm)))
assert all(torch.equal(x, sum(before)) for x in summed)


# %%
def reduce_bytes(comm, all_reduce, nbytes):
    all_reduce(comm, torch.empty(nbytes // 4, dtype=torch.float32, device=comm.device))


naive = World(4, device="meta").run(reduce_bytes, naive_all_reduce, 100 * MB).trace
assert naive.bytes_sent(0) == 300 * MB
study.traffic(naive, title="Naive: all through one desk")

# %% [markdown]
# Rank 0 sends 300 MB and receives 300 MB. The wires between the others are idle.
#
# ## The ring, first half: scatter-reduce
#
# Papers on the ring call it so; it is the **reduce-scatter** from above.
# Cut every tensor into n chunks. Each rank talks to its neighbours only, and all talk at once.
# In step k rank r sends chunk r−k to the right, and adds what comes from the left to its chunk r−k−1 (modulo n).


# %%
def ring_step(comm, chunks, k, combine):
    n, r = comm.size, comm.rank
    out, into = (r - k) % n, (r - k - 1) % n
    received = torch.empty_like(chunks[into])
    comm.sendrecv(chunks[out], (r + 1) % n, received, (r - 1) % n)
    combine(chunks[into], received)


def scatter_reduce(comm, chunks):
    for k in range(1, comm.size):
        ring_step(comm, chunks, k, torch.Tensor.add_)


# %% [markdown]
# To watch it, run step by step and keep what each rank holds in between. Follow chunk 0, the first column:
# it sets out from rank 1, collects at every stop, and is finished at rank 0. **Chunk i is finished at rank i.**


# %%
def film(comm, steps, combine, x=None):
    x = letters(comm, comm.size) if x is None else x[comm.rank]
    return [x.clone()] + [ring_step(comm, x.split(1), k, combine) or x.clone() for k in steps]


def strip(frames, names, title):
    steps = {name: [spell(rank[i]) for rank in frames] for i, name in enumerate(names)}
    return study.holdings(
        steps, title=title, owner=lambda word: ["abcd".index(term[0]) for term in word.split("+")]
    )


first_half = World(3).run(film, [1, 2], torch.Tensor.add_)
strip(
    first_half,
    ["start", "after step 1", "after step 2"],
    "Scatter-reduce: chunk i is finished at rank i",
)

# %% [markdown]
# ## The ring, second half: all-gather
#
# The finished chunks go round once more. The step is the same, with k from n on.
# What arrives now replaces the old chunk.


# %%
def gather_all(comm, chunks):
    for k in range(comm.size, 2 * comm.size - 1):
        ring_step(comm, chunks, k, torch.Tensor.copy_)


halfway = [states[-1] for states in first_half]
second_half = World(3).run(film, [3, 4], torch.Tensor.copy_, halfway)
strip(
    second_half,
    ["halfway", "after step 3", "after step 4"],
    "All-gather: the finished chunks go round",
)

# %% [markdown]
# ## The whole ring
#
# `tensor_split` also cuts lengths that n does not divide. The chunks are views, so `x` itself is filled.
# The picture has the messages of a run with 3 ranks and 6 numbers.
#
# The table compares with the **oracle**, the serial sum: on one rank and on many, for lengths that n does not divide,
# and for lengths below n, where some chunks are empty.


# %%
def ring_all_reduce(comm, x):
    chunks = x.tensor_split(comm.size)
    scatter_reduce(comm, chunks)
    gather_all(comm, chunks)
    return x


world = World(3)
assert all(
    torch.equal(x, sum(before))
    for x in world.run(lambda comm: ring_all_reduce(comm, numbers(comm)))
)
study.messages(
    world.trace,
    clock="steps",
    label="bytes",
    title="Ring all-reduce: every wire works in every step",
)


# %%
def oracle(comm, all_reduce, length):
    serial = sum(torch.arange(1, length + 1) * 10**r for r in range(comm.size))
    return torch.equal(all_reduce(comm, numbers(comm, length)), serial)


def verdict(all_reduce, n, length):
    try:
        return "right" if all(World(n).run(oracle, all_reduce, length)) else "wrong"
    except ValueError:
        return "stopped"


rows = [
    [f"n = {n}", *(verdict(ring_all_reduce, n, length) for length in [0, 1, 3, 7, 64])]
    for n in range(1, 7)
]
study.table(
    rows, ["", "length 0", "1", "3", "7", "64"], title="Ring all-reduce against the serial sum"
)

# %% [markdown]
# ## Predict, then count
#
# Let N be the bytes of the whole tensor. In the naive way rank 0 sends $(n-1)N$. In the ring each of
# $2(n-1)$ messages has $N/n$ bytes, so **every rank sends $2\frac{n-1}{n}N$**: never twice the tensor,
# however many ranks there are. The lines are these formulas, the points are counted in runs.
# Then the question itself, with your guess.

# %%
ns, N = [2, 3, 4, 6, 8, 12, 16], 96 * MB  # all of them divide N


def busiest(n, all_reduce):
    trace = World(n, device="meta").run(reduce_bytes, all_reduce, N).trace
    return max(trace.bytes_sent(r) for r in range(n))


predicted = {
    "naive": (ns, [(n - 1) * N for n in ns]),
    "ring": (ns, [2 * (n - 1) * N // n for n in ns]),
}
runs = {"naive": naive_all_reduce, "ring": ring_all_reduce}
counted = {name: (ns, [busiest(n, run) for n in ns]) for name, run in runs.items()}
assert counted == predicted
study.curves(
    predicted,
    points=counted,
    yunit="B",
    xlabel="ranks, n",
    ylabel="bytes sent by the busiest rank",
    title="All-reduce of 96 MB: the ring hardly grows with n",
)

# %%
answer = World(4, device="meta").run(reduce_bytes, ring_all_reduce, 100 * MB).trace
sent = {
    "your guess": guess,
    "naive, rank 0": naive.bytes_sent(0),
    "ring, each rank": answer.bytes_sent(0),
}
display(study.bars(sent, unit="B", title="100 MB on 4 ranks: bytes that the busiest rank sends"))
study.traffic(answer, title="Ring: all wires carry equally much")

# %% [markdown]
# **150 MB.** Nothing that is made of sends and receives can do with less: Patarasuk and Yuan proved it.
#
# ## The time
#
# A rank sends one message at a time, and receives one at a time. So fewer bytes at the busiest **rank** take less time.
# Both runs on one axis of virtual time:

# %%
study.timeline({"naive": naive, "ring": answer}, title="100 MB on 4 ranks")

# %% [markdown]
# Rank 0's desk takes $2(n-1)N\beta + n\alpha$, the ring $2(n-1)\left(\alpha + \frac{N}{n}\beta\right)$.
# Rank 0 waits α for each of the $n-1$ messages that it receives; of those that it sends, for the last one's alone.
# The ring saves bytes and pays in messages: $2(n-1)$ of them, one after another.
# Before you run the cell: which is faster for 1 kB on 16 ranks, and where do the lines cross?

# %%
n = 16
sizes = [10**k for k in range(3, 10)]
fine = [round(10 ** (k / 8)) for k in range(24, 73)]
formula = {
    "naive": (fine, [2 * (n - 1) * N * BETA + n * ALPHA for N in fine]),
    "ring": (fine, [2 * (n - 1) * (ALPHA + N / n * BETA) for N in fine]),
}
times = {
    name: (sizes, [World(n, device="meta").run(reduce_bytes, run, N).time for N in sizes])
    for name, run in runs.items()
}
study.curves(
    formula,
    points=times,
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title="16 ranks: the ring loses below 124 kB, and wins 16-fold at 1 GB",
)

# %% [markdown]
# Lesson 03 is about this: trees, and when to use which.
#
# ## Break it
#
# The commonest mistake is one step short. Above in the scatter-reduce, below in the all-gather:


# %%
def one_step_short(comm, first, second):
    n, x = comm.size, letters(comm, comm.size)
    for k in [*range(1, n - first), *range(n, 2 * n - 1 - second)]:
        ring_step(comm, x.split(1), k, torch.Tensor.add_ if k < n else torch.Tensor.copy_)
    return [x]


display(strip(World(3).run(one_step_short, 1, 0), ["result"], "One step short in the first half"))
strip(World(3).run(one_step_short, 0, 1), ["result"], "One step short in the second half")

# %% [markdown]
# Above, the ranks agree, and all are wrong: chunk i has rank i's own numbers only. Equal replicas prove nothing about
# the sum. Below, rank r still holds its old partial sum of chunk r+1. Each symptom points at its cause.
#
# **Two ranks hide bugs.** Of two ranks, the left neighbour is the right one too. And a length that n divides leaves no
# remainder. Here are two more bugs, and what a test sees of them.


# %%
def turned(comm, x):  # to the left, from the right
    n = comm.size
    r = comm.rank
    chunks = x.tensor_split(comm.size)
    for k in range(1, 2 * n - 1):
        out, into = chunks[(r - k) % n], chunks[(r - k - 1) % n]
        received = comm.sendrecv(out, (r - 1) % n, torch.empty_like(into), (r + 1) % n)
        if k < n:
            into.add_(received)
        else:
            into.copy_(received)
    return x


def remainder_dropped(comm, x):
    ring_all_reduce(comm, x[: len(x) // comm.size * comm.size])
    return x


# %%
cases = [(1, 12), (2, 12), (3, 12), (4, 12), (4, 13)]
bugs = {
    "the ring as above": ring_all_reduce,
    "turns the wrong way": turned,
    "remainder dropped": remainder_dropped,
}
rows = [[name, *(verdict(bug, n, length) for n, length in cases)] for name, bug in bugs.items()]
study.table(rows, ["", *(f"n = {n}, length {length}" for n, length in cases)])

# %% [markdown]
# Test with at least 3 ranks, and with a length that n does not divide.
#
# What is "stopped"? Chunks of 3 and 4 numbers met. Unchecked, some libraries return a sum all the same, a wrong one.
# Here every message carries a header with its shape and type, and the receiver compares. Once more, with a rank 2
# that brings one number too few:

# %%
try:
    World(3).run(lambda comm: ring_all_reduce(comm, numbers(comm, 5 if comm.rank == 2 else 6)))
except ValueError as why:
    print(why)

# %% [markdown]
# ## The library's version
#
# `minidist.collectives` has the same ring. Its first half adds in place, with one buffer for all steps; its second
# half receives straight into place. (A reduce-scatter alone leaves its input as it is, and takes a second buffer.)
#
# All-reduce is its two halves, one after the other: `all_gather(reduce_scatter(x))` equals `all_reduce_(x)`,
# bit for bit. ZeRO, in lesson 13, lives on this.

# %%
from minidist.collectives import ring


def both_ways(comm, length=12):
    x = torch.randn(length)
    return all_gather(comm, reduce_scatter(comm, x)), all_reduce_(comm, x)


assert all(torch.equal(halves, whole) for halves, whole in World(4).run(both_ways))
display(
    study.source(ring.all_reduce), study.source(ring.reduce_scatter_), study.source(ring.all_gather)
)

# %%
words = [
    ("send, recv", "send, recv", "MPI_Send, MPI_Recv"),
    ("isend, irecv", "isend, irecv", "MPI_Isend, MPI_Irecv"),
    ("batch", "batch_isend_irecv", "MPI_Startall"),
    ("sendrecv", "batch_isend_irecv", "MPI_Sendrecv"),
    ("broadcast_", "broadcast", "MPI_Bcast"),
    ("scatter", "scatter", "MPI_Scatter"),
    ("gather", "gather", "MPI_Gather"),
    ("all_gather", "all_gather", "MPI_Allgather"),
    ("reduce_", "reduce", "MPI_Reduce"),
    ("all_reduce_", "all_reduce", "MPI_Allreduce"),
    ("reduce_scatter", "reduce_scatter", "MPI_Reduce_scatter"),
    ("barrier", "barrier", "MPI_Barrier"),
    ("all_to_all", "all_to_all", "MPI_Alltoall"),
    ("comm.split", "new_group", "MPI_Comm_split"),
]
study.table(
    words, ["minidist", "torch.distributed", "MPI"], title="The same verbs under other names"
)

# %% [markdown]
# ## The same program on processes
#
# So far all ranks lived in this notebook. `launch` runs the same function in four processes, over shared memory, or
# over gloo, with which torch.distributed sends between CPUs. The sums are equal bit for bit, and the bytes are the
# same. They are counted on our own sends: gloo's `reduce_scatter`, for one, moves as much as a whole all-reduce.


# %%
def random_sum(comm, length=100_003):
    x = torch.randn(length, generator=torch.Generator().manual_seed(comm.rank))
    return ring_all_reduce(comm, x)


three = {
    "World": World(4).run(random_sum),
    "processes, shared memory": launch(random_sum, 4),
    "processes, gloo": launch(random_sum, 4, transport="gloo"),
}
for results in three.values():
    assert all(torch.equal(x, y) for x, y in zip(results, three["World"]))
rows = [
    (f"rank {r}", *(results.trace.bytes_sent(r) for results in three.values())) for r in range(4)
]
study.table(rows, ["", *three], title="Bytes sent, counted in three runs of one program")

# %% [markdown]
# On a cluster a script runs it: these functions, `from minidist.comm import from_env`, and `random_sum(from_env())`.
# On one machine, or on each of two:
#
# ```
# torchrun --nproc-per-node 4 my_ring.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 my_ring.py
# ```
#
# ## torchdist, read aloud
#
# How does a Comm stand on torch.distributed? `torchrun` starts the processes and tells each its rank.
# `from_env` reads it from the environment, or says how to start. It takes NCCL (NVIDIA's library for
# messages between GPUs) where there are GPUs, and stops if they are fewer than the ranks; without a GPU it takes gloo.
# It joins the process group, and leaves it at exit. With `seed=` it seeds this rank's random numbers.
#
# From then on every verb comes down to one method: start these operations together.
# Over gloo (`TorchWork`) each becomes an `isend` or an `irecv` of torch (`post_bytes`). A sender sends a header, then the
# values. A receiver first posts a receive for the header, in the Comm's inbox; only when the two sides agree does it
# receive the values.
#
# NCCL is stricter: its stream is ordered, and ungrouped two-way traffic hangs there, like `post_both` in an ordered
# World. So what is posted waits until somebody waits for it (`start`). Then each operation posts its header
# (`post_headers`), over gloo, and all values start in one group, `batch_isend_irecv`. The headers are compared when the
# program waits: nobody's values stand still for them.

# %%
from minidist.comm.torchdist import GroupedWork, TorchComm, TorchWork

display(study.source(from_env, docstring=False))
display(
    study.source(TorchWork.__init__),
    study.source(TorchComm.post_bytes),
    study.source(GroupedWork.post_headers),
    study.source(TorchComm.start),
)

# %% [markdown]
# ## Takeaways
#
# - A rank is a copy of the program with a number. Ranks know of each other by messages only.
# - Everyone sends, then receives: a deadlock. Start both together.
# - In a naive all-reduce one rank sends $(n-1)N$ bytes. In the ring each sends $2\frac{n-1}{n}N$, the least possible.
# - The ring is reduce-scatter, then all-gather. Chunk i is finished at rank i.
# - It takes $2(n-1)$ steps, so it is slow for small tensors on many ranks.
# - Equal replicas can all be wrong. Test with 3 ranks and more, and with odd lengths.
#
# ## Further reading
#
# - paper:patarasuk2009 The ring, and the proof that it sends the least.
# - paper:thakur2005 Which algorithm for which size.
# - paper:gibiansky2017 The ring comes to deep learning.
# - paper:sergeev2018 The ring for everyone.
# - paper:mpi2023 The verbs.
