# %% [markdown]
# # 02 · Messages
#
# Four GPUs train one model. Each has worked on its own share of the data, and each now holds 100 MB of gradients. Before any of them can take a step, all four need the *sum* of the four gradients, and the only way to get it is to send numbers over wires.
#
# This lesson builds that sum. It starts with two verbs, *send* and *receive*, and ends with the [ring all-reduce](term:ring-all-reduce), which training runs all over the world execute many times a second. On the way you will see programs that hang, and learn to read from the picture why they do.
#
# First a guess. It does not matter whether it is right: later in the lesson your number will stand beside the answer.
#
# **Four ranks hold 100 MB each, and every one of them needs the sum. How many megabytes must the busiest of them send?**

# %%
MB = 10**6
guess = 300 * MB  # bytes that the busiest rank sends: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# Three people sit at three desks. Each has a sheet with six numbers, and each wants to leave with the column sums of all three sheets. To make it visible who has contributed to a sum, the first person writes ones, the second tens and the third hundreds: a sum of 666 is complete, while 606 still lacks the contribution of the second.

# %%
import torch
from IPython.display import display

from minidist import study


def numbers(rank, length=6):
    """The sheet of one rank: 1 2 3 … for rank 0, 10 20 30 … for rank 1, and so on."""
    return torch.arange(1, length + 1) * 10**rank


before = [numbers(0), numbers(1), numbers(2)]
study.holdings(before, [sum(before)] * 3, title="All-reduce: everyone ends with the sum")

# %% [markdown]
# How would the three do it? Most people would have everyone carry their sheet to one desk, add up there, and carry the result back. That is the first algorithm that we shall program, and we shall count what passes over that one desk.
#
# ## A rank is a copy of the program
#
# A training run on many GPUs is not one program that commands many devices. It is the *same* program, started many times. Each copy is called a [rank](term:rank) and has a number from 0 to *n* − 1, where *n* is the [world size](term:world-size). On a cluster each rank drives one GPU. What one rank computes, no other rank can see: they share no memory, and the only way to learn something from another rank is a message.
#
# ![Four ranks, each with memory of its own, joined by a Comm, the only way from one memory to another. Below, rank 1 calls send and rank 2 calls recv; each waits until the other is there. Below that, three ranks call sendrecv, and all send and receive at the same time.](../course/02_messages/figures/comm.svg)
#
# In this course a program is a function whose first argument is `comm`, short for communicator. It is all that a rank knows of the outside world.

# %%
from minidist.comm import World


def hello(comm):
    return f"I am rank {comm.rank} of {comm.size}"


World(4).run(hello)

# %% [markdown]
# `World(4)` runs four ranks inside this notebook and returns a list with what each of them returned. You will use it in every lesson. It has three properties that a real cluster lacks: it gives the same result every time, it keeps a record of every message, and it explains why a program hangs. At the end of the lesson the same function will run in four real processes, unchanged.
#
# ## Send and receive
#
# There are two verbs. `comm.send(x, dst)` sends the tensor `x` to rank `dst`, and `comm.recv(x, src)` fills `x` with what rank `src` has sent. Note that the receiver must bring a tensor of the right shape and type for the numbers to go into. Everything else in this course is built on these two.
#
# Here is a first program. The ranks stand in a line. Each takes the subtotal from the rank on its left, adds its own numbers, and passes the new subtotal on to the right.


# %%
def along_the_line(comm):
    total = numbers(comm.rank)
    if comm.rank > 0:
        subtotal = torch.empty_like(total)
        comm.recv(subtotal, comm.rank - 1)  # waits until the left neighbour has sent
        total += subtotal
    if comm.rank < comm.size - 1:
        comm.send(total, comm.rank + 1)
    return total


world = World(3)
results = world.run(along_the_line)
display(study.holdings(before, results, title="Only the last rank has the whole sum"))
study.messages(world.trace, label="bytes", title="A sum passed along a line of ranks")

# %% [markdown]
# The second picture comes from `world.trace`, the record of the run. Each row is a rank and time runs to the right. A sloping arrow is a message of 48 bytes (six integers of 8 bytes), and you can see that the second message leaves only when the first has arrived, because rank 1 cannot add what it does not have.
#
# ## What a message costs
#
# The time axis of that picture is a **virtual clock**. Nothing was measured with a stopwatch; the world computed when each message would arrive on a network that it models. Which model? Think of a lorry that delivers gravel. It takes a while to get there however little it carries, and the more it carries, the longer it takes to unload. A message of $N$ bytes takes
#
# $$T(N) = \alpha + N\beta$$
#
# seconds. The [latency](term:latency) $\alpha$ is the time until the first byte arrives: software on both sides, the network card, the switch. The inverse [bandwidth](term:bandwidth) $\beta$ is the time for each byte after that, so that $1/\beta$ is what data sheets call the bandwidth. Unless told otherwise, a `World` has $\alpha$ = 5 µs and a bandwidth of 50 GB/s, about what one fast network card gives you between two nodes. The lesson [Topology and cost](lesson:topology) takes these numbers from real machines.
#
# Many designs are decided by which of the two terms is larger, so make a guess before you read on: with these two constants, **how large must a message be before its bytes cost as much as its latency?**

# %%
ALPHA = 5e-6  # seconds
BETA = 1 / 50e9  # seconds per byte

guess_even = 10_000  # bytes: change this number


# %%
def one_message(comm, nbytes):
    x = torch.empty(nbytes, dtype=torch.uint8, device=comm.device)
    if comm.rank == 0:
        comm.send(x, 1)
    else:
        comm.recv(x, 0)


sizes = [10**k for k in range(2, 10)]
run = [World(2, device="meta").run(one_message, nbytes).time for nbytes in sizes]
formula = [ALPHA + nbytes * BETA for nbytes in sizes]

# %% tags=["answer"]
picture = study.curves(
    {"α + Nβ": (sizes, formula)},
    points={"run": (sizes, run)},
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes in the message, N",
    ylabel="time of one message",
    title="The line is the formula, the points are runs",
)
study.reveal(
    guess_even,
    round(ALPHA / BETA),
    picture,
    unit="B",
    words="Nβ = α at N = α/β. Below it all messages cost nearly the same, so it pays to put many small "
    "tensors into one message; far above it only the bytes count.",
)

# %% [markdown]
# The largest of these messages carried a gigabyte, and yet the cell took no time and no memory. On the device `"meta"` a tensor has a shape and a type but no numbers. A run on meta tensors costs next to nothing and still has all its messages in the right order, so we shall use it whenever we want to know what a large run would cost.
#
# ## When everyone waits for everyone
#
# Now arrange the ranks in a circle and let each of them give its numbers to the neighbour on its right. The obvious program is this: everyone sends, then everyone receives.


# %%
def everyone_sends_first(comm):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    comm.send(numbers(comm.rank), right)
    received = torch.empty_like(numbers(left))
    comm.recv(received, left)
    return received


# %% [markdown]
# Read it once more and decide what `World(3)` will make of it.

# %%
guess_circle = "it works"  # or "it hangs", or "the numbers are wrong"

# %%
from minidist.comm import Deadlock

try:
    World(3).run(everyone_sends_first)
except Deadlock as error:
    explanation = str(error)

# %% tags=["answer"]
study.reveal(guess_circle, "it hangs", words=explanation)

# %% [markdown]
# ![Two circles of four ranks. Left: every rank first calls send to its right; rank 0 waits for rank 1 to receive, 1 for 2, 2 for 3, 3 for 0, and nobody gets to its receive. Right: every rank calls sendrecv, and all four messages pass.](../course/02_messages/figures/deadlock.svg)
#
# A send is complete when the receiver has taken the message. Rank 0 therefore waits for rank 1 to receive; but rank 1 is itself still sending, and waits for rank 2, which waits for rank 0. Nobody ever gets as far as the line with `recv`. This is a [deadlock](term:deadlock), the commonest way in which a distributed program fails. On a real cluster you would see nothing at all until a timeout, which PyTorch sets to 10 minutes for NCCL and to 30 for gloo. Here the world knows that no rank can go on, and says at once who waits for whom, and on which line.
#
# The treacherous part is that such a program often *does* work at first. Many systems copy a small message into a buffer, so that its send returns immediately, and the program passes all its tests until one day a message is too large for the buffer. `World(3, rendezvous=False)` has such a buffer, without any limit, and there the bug never shows.
#
# How do we repair it? One could let the even ranks send first and the odd ranks receive first. It works, but takes twice as long, since half of the wires always stand idle. It is better to start both operations together and then wait for both, and for that there is a third verb: `sendrecv(x, dst, into, src)`.


# %%
def shift(comm):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = torch.empty_like(numbers(left))
    comm.sendrecv(numbers(comm.rank), right, received, left)
    return received


world = World(3)
display(study.holdings(before, world.run(shift), title="Everyone has the left neighbour's numbers"))
study.messages(
    world.trace, clock="steps", label="bytes", title="sendrecv: everyone sends and receives at once"
)

# %% tags=["maintainer"]
buffered = World(3, rendezvous=False).run(everyone_sends_first)
assert all(torch.equal(x, y) for x, y in zip(World(3).run(shift), buffered, strict=True))

# %% [markdown]
# ### Posting and waiting
#
# `sendrecv` does several things at once that you can also do one by one. `isend` and `irecv` [post](term:post) an operation and return immediately with a handle; calling the handle's `wait` blocks until that operation is complete. What has been posted is there for the other side to find, no matter in which order the two sides post and wait. Only one thing is fixed: between two given ranks, messages are matched in the order in which they were posted. This is the rule of MPI, the standard that most such programs used before deep learning.


# %%
def post_both(comm):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = torch.empty_like(numbers(left))
    sending = comm.isend(numbers(comm.rank), right)  # returns at once
    receiving = comm.irecv(received, left)
    sending.wait()
    receiving.wait()
    return received


World(3).run(post_both)

# %% [markdown]
# GPUs are stricter. [NCCL](term:nccl), NVIDIA's library for messages between GPUs, executes operations on a *stream*, a queue of work on the GPU, and an operation at the head of the queue must finish before the next can start. If `isend` and `irecv` are posted separately, they stand one behind the other in that queue, and we are back at the program that hangs: the receive cannot start before the send has finished. `World(3, ordered=True)` behaves like such a stream, and reports the consequence:

# %%
try:
    World(3, ordered=True).run(post_both)
except Deadlock as error:
    print(error)

# %% [markdown]
# The way out is to tell the stream that the two belong together. `comm.batch([Send(x, right), Recv(y, left)])` posts both as one *group*, whose members start at the same time; in PyTorch the call is `batch_isend_irecv`, in NCCL itself `ncclGroupStart` and `ncclGroupEnd`. `sendrecv` always posts a group, so it is right in every world. If you remember one thing from this section, let it be that two-way traffic belongs in one group.
#
# ## The collectives
#
# Some patterns of messages are so common that they have names. A [collective](term:collective) is an operation in which every rank of a group takes part. Eight of them carry nearly all the traffic of large-scale training, and you will meet each of them again, so it is worth looking at every picture for a moment and asking: what did each rank have before, and what has it afterwards?
#
# In the pictures, a0, a1 and a2 are the three pieces, or [chunks](term:chunk), of rank 0's data, b0 to b2 those of rank 1 and c0 to c2 those of rank 2. The colour tells where a chunk comes from. The small functions in the next cell turn letters into numbers and back, so that what you see has really been sent: the digits of 111 say that a0, b0 and c0 are in the sum.


# %%
def spell(values):
    """Read off each number which chunks are in it: 20 is b1, 111 is a0+b0+c0."""
    words = []
    for value in values:
        terms = []
        for rank, digit in enumerate(reversed(str(int(value)))):
            if digit != "0":
                terms.append("abcd"[rank] + str(int(digit) - 1))
        words.append("+".join(terms))
    return words


def show(title, verb, chunks=3):
    """Run a collective on three ranks and draw what each held before and after."""
    start = [numbers(rank, chunks) for rank in range(3)]
    end = World(3).run(lambda comm: verb(comm, start[comm.rank].clone()))
    after = [None if values is None else spell(values) for values in end]
    display(study.holdings([spell(values) for values in start], after, title=title))


# %% [markdown]
# The first four only move data. In three of them one rank, the **root**, plays a special part; here it is rank 0. [Broadcast](term:broadcast) gives everyone a copy of what the root has; it is how all ranks start from the same weights. [Scatter](term:scatter) deals the root's chunks out, one to each rank. [Gather](term:gather) is its reverse and collects one chunk from each rank at the root. [All-gather](term:all-gather) does the same for everyone: afterwards all ranks have all chunks.

# %%
from minidist import collectives

show("broadcast from rank 0", collectives.broadcast_)
show("scatter from rank 0", collectives.scatter)
show("gather at rank 0", collectives.gather, chunks=1)
show("all-gather", collectives.all_gather, chunks=1)

# %% [markdown]
# The next three also add up. [Reduce](term:reduce) leaves the sum at the root, [all-reduce](term:all-reduce) leaves it on every rank: this is the operation from the beginning of the lesson. [Reduce-scatter](term:reduce-scatter) sits between the two: everything is added up, but each rank gets only its own part of the result, rank *i* the sum of everybody's chunk *i*. The rule that chunk *i* is finished at rank *i* holds throughout this course. Finally, [all-to-all](term:all-to-all) adds nothing up. Rank *i* gets chunk *i* of everyone, as if the table in the picture had been transposed.

# %%
show("reduce to rank 0", collectives.reduce_)
show("reduce-scatter", collectives.reduce_scatter)
show("all-reduce", collectives.all_reduce_)
show("all-to-all", collectives.all_to_all)

# %% [markdown]
# Here are all of them on one page, with digits that show who has contributed:
#
# ![Eight collectives on three ranks with the chunks 1 2 3, 10 20 30 and 100 200 300, before and after: broadcast, scatter, gather, all-gather, reduce, all-reduce, reduce-scatter and all-to-all.](../course/02_messages/figures/collectives.svg)
#
# A name that ends in an underscore, as everywhere in PyTorch, says that the function changes its argument in place.
#
# One more collective moves no data at all. Nobody leaves a [barrier](term:barrier) before the last rank has reached it. In the following run ranks 0 and 1 exchange a megabyte before they get there:


# %%
def late_then_barrier(comm):
    if comm.rank < 2:
        x = torch.empty(MB, dtype=torch.uint8)
        y = torch.empty(MB, dtype=torch.uint8)
        comm.sendrecv(x, 1 - comm.rank, y, 1 - comm.rank)
    came = comm.now()
    collectives.barrier(comm)
    return came, comm.now()


rows = []
for rank, (came, left) in enumerate(World(4).run(late_then_barrier)):
    rows.append((f"rank {rank}", came * 1e6, left * 1e6))
study.table(rows, ["", "came, µs", "left, µs"], title="A barrier")

# %% [markdown]
# Ranks 2 and 3 arrived at once and waited; all four leave together, two rounds of tiny messages after the last arrival.
#
# ## All-reduce, the naive way
#
# Back to the question. On paper you carried all sheets to one desk, and here is that algorithm as a program.


# %%
def naive_all_reduce(comm, x):
    """Replace x by the sum over all ranks: everything to rank 0, and back."""
    if comm.rank != 0:
        comm.send(x, 0)
        comm.recv(x, 0)
        return x
    for r in range(1, comm.size):
        arriving = torch.empty_like(x)
        comm.recv(arriving, r)
        x += arriving
    for r in range(1, comm.size):
        comm.send(x, r)
    return x


World(3).run(lambda comm: naive_all_reduce(comm, numbers(comm.rank)))

# %% [markdown]
# Every rank has 111, 222, …, so the sum is right. How much did it cost? The trace knows. We run it on 4 ranks with the 100 MB of the question, on meta tensors, and draw who sent how much to whom:


# %%
def reduce_bytes(comm, all_reduce, nbytes):
    """All-reduce a tensor of that many bytes: a program to be counted."""
    all_reduce(comm, torch.empty(nbytes // 4, dtype=torch.float32, device=comm.device))


naive = World(4, device="meta").run(reduce_bytes, naive_all_reduce, 100 * MB).trace
study.traffic(naive, title="Naive: everything goes through one desk")

# %% tags=["maintainer"]
assert naive.bytes_sent(0) == 300 * MB

# %% [markdown]
# Rank 0 receives 300 MB and sends 300 MB, while the wires between the other ranks carry nothing. With 1,000 ranks it would send 99.9 GB. Doubling the number of ranks doubles the work of rank 0 and helps nobody.
#
# ## The ring: sharing the load
#
# ![An all-reduce of N bytes on four ranks. Naive: rank 0 sends 3 N and receives 3 N, each of the others sends and receives N. Ring: every rank sends 1.5 N to its right and receives 1.5 N from its left.](../course/02_messages/figures/who_carries_the_load.svg)
#
# The way out begins with an observation. The sum of four long vectors is really 25 million separate sums, one for each position, and no two of them have anything to do with each other. There is no reason why a single rank should compute them all. So cut each tensor into *n* chunks and put each rank in charge of one: rank *i* will end up with the finished sum of everybody's chunk *i*. That is a reduce-scatter. Once it is done, every rank has one finished chunk, and an all-gather hands the finished chunks round. **An all-reduce is a reduce-scatter followed by an all-gather.** (Some texts call the first half scatter-reduce.) The rest of the lesson is about doing these two halves well.
#
# For the first half, let the ranks stand in a ring, in which each talks only to its neighbours: it sends to the right and receives from the left.
#
# ![Reduce-scatter on a ring of three ranks, in three panels. Chunk 0 sets out from rank 1 as 10 20, becomes 110 220 at rank 2 and 111 222 at rank 0; chunks 1 and 2 make the same journey one place further along.](../course/02_messages/figures/ring_reduce_scatter.svg)
#
# Follow chunk 0 with your finger. It sets out from rank 1 with that rank's numbers alone. Rank 2 adds its own and passes the partial sum on. At rank 0, which is in charge of it, the last contribution is added, and all digits are there: everyone has contributed exactly once. The other chunks make the same journey at the same time, each one place further along the ring. So in every step each rank sends one chunk and receives another, and no wire is ever idle.
#
# **Why this is right.** Chunk *i* starts at rank *i* + 1 and takes *n* − 1 steps to the right. On its way it visits every rank exactly once, and it stops at rank *i* + *n*, which on a ring is rank *i*. Two chunks are never at the same rank, because they start at different ranks and move at the same speed. That is also why each wire carries just one chunk in a step.
#
# **From the picture to the indices.** All that can go wrong now is the bookkeeping: which chunk does rank *r* pass on in step *k*? Count steps from 1. Chunk *i* is at rank *i* + 1 before step 1 and one rank further on before each later step, so before step *k* it is at rank *i* + *k*. The chunk at rank *r* is therefore *i* = *r* − *k*. What arrives from the left is the chunk that rank *r* − 1 passes on, by the same rule *r* − 1 − *k*. Everything is modulo *n*.


# %%
def ring_reduce_scatter(comm, chunks):
    """Leave the sum of everybody's chunk r in chunks[r] on rank r."""
    n = comm.size
    r = comm.rank
    right = (r + 1) % n
    left = (r - 1) % n
    for k in range(1, n):
        outgoing = chunks[(r - k) % n]
        own = chunks[(r - k - 1) % n]  # what we shall add to the partial sum that arrives
        arriving = torch.empty_like(own)
        comm.sendrecv(outgoing, right, arriving, left)
        own += arriving


# %% [markdown]
# The chunks are views into one tensor, so adding to a chunk changes the tensor itself. Let us watch it. The next cell stops the ring after each step and shows what all ranks hold:


# %%
def ring_stopped_after(comm, steps):
    x = numbers(comm.rank, comm.size)
    chunks = x.split(1)
    n = comm.size
    r = comm.rank
    for k in range(1, steps + 1):
        arriving = torch.empty_like(chunks[0])
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, arriving, (r - 1) % n)
        chunks[(r - k - 1) % n].add_(arriving)
    return x


# %% tags=["maintainer"]
def draw_contributors(word):
    """The ranks whose letters stand in a word, for the colours."""
    return ["abcd".index(term[0]) for term in word.split("+")]


def draw_film(frames, title):
    steps = {name: [spell(values) for values in ranks] for name, ranks in frames.items()}
    return study.holdings(steps, title=title, owner=draw_contributors)


# %%
frames = {"start": World(3).run(ring_stopped_after, 0)}
for steps in 1, 2:
    frames[f"after step {steps}"] = World(3).run(ring_stopped_after, steps)
draw_film(frames, "Reduce-scatter: chunk i is finished at rank i")

# %% [markdown]
# The chunks that are not finished hold leftovers, partial sums on which the rank has worked. They are of no use to anyone, and the second half overwrites them.
#
# ### The second half
#
# In the all-gather the finished chunks make one more tour of the ring, and this time nothing is added: what arrives replaces the leftover in its place. Rank *r* begins with the chunk that it has just finished, chunk *r*, and then always passes on what it received last.
#
# ![All-gather on a ring of three ranks. Rank i holds the finished chunk i. In step 1 every rank sends its own chunk to its right neighbour, in step 2 the chunk that it has just received; then all have all three.](../course/02_messages/figures/ring_all_gather.svg)


# %%
def ring_all_gather(comm, chunks):
    """Hand the finished chunks round: rank r starts with chunks[r] and ends with all of them."""
    n = comm.size
    r = comm.rank
    for k in range(n - 1):
        outgoing = chunks[(r - k) % n]
        place = chunks[(r - k - 1) % n]
        comm.sendrecv(outgoing, (r + 1) % n, place, (r - 1) % n)  # straight into its place


def ring_all_reduce(comm, x):
    """Replace x by the sum over all ranks."""
    chunks = x.tensor_split(comm.size)  # views; lengths may differ by one
    ring_reduce_scatter(comm, chunks)
    ring_all_gather(comm, chunks)
    return x


world = World(3)
display(world.run(lambda comm: ring_all_reduce(comm, numbers(comm.rank))))
study.messages(
    world.trace,
    clock="steps",
    label="bytes",
    title="Ring all-reduce: every wire works in every step",
)

# %% [markdown]
# ### Is it right?
#
# Three ranks and six numbers prove little. In this course each technique has to agree with an [oracle](term:oracle), a serial program that is so simple that nobody doubts it. Here the oracle adds up all tensors in one line. We compare on 1 to 6 ranks, and above all with lengths that *n* does not divide, and with lengths smaller than *n*, where some chunks are empty.


# %%
def agrees(comm, all_reduce, length):
    serial = sum(numbers(rank, length) for rank in range(comm.size))
    return torch.equal(all_reduce(comm, numbers(comm.rank, length)), serial)


def verdict(all_reduce, n, length):
    try:
        results = World(n).run(agrees, all_reduce, length)
    except ValueError:
        return "stopped"
    return "right" if all(results) else "wrong"


lengths = [0, 1, 3, 7, 64]
rows = []
for n in range(1, 7):
    rows.append([f"n = {n}"] + [verdict(ring_all_reduce, n, length) for length in lengths])
study.table(
    rows, ["", *(f"length {length}" for length in lengths)], title="The ring and its oracle"
)

# %% [markdown]
# ## What the ring costs
#
# First the prediction. Let *N* be the bytes of the whole tensor. In the naive algorithm rank 0 sends the result to *n* − 1 ranks, $(n-1)N$ bytes. In the ring a rank sends $n-1$ messages in the reduce-scatter and $n-1$ in the all-gather, each of them with a chunk of $N/n$ bytes:
#
# $$\text{bytes sent by every rank} = 2\,(n-1)\,\frac{N}{n} = 2\,\frac{n-1}{n}\,N.$$
#
# Look at what happens for large *n*. The factor in front of *N* is 1 for two ranks, 1.5 for four, and 1.998 for a thousand: it never reaches 2. However many ranks there are, nobody sends the tensor more than twice. Now we count in runs and lay the points over the lines.

# %%
ranks = [2, 3, 4, 6, 8, 12, 16]
N = 96 * MB  # all of these divide it


def busiest(n, all_reduce):
    trace = World(n, device="meta").run(reduce_bytes, all_reduce, N).trace
    return max(trace.bytes_sent(rank) for rank in range(n))


predicted = {
    "naive": (ranks, [(n - 1) * N for n in ranks]),
    "ring": (ranks, [2 * (n - 1) * N // n for n in ranks]),
}
counted = {
    "naive": (ranks, [busiest(n, naive_all_reduce) for n in ranks]),
    "ring": (ranks, [busiest(n, ring_all_reduce) for n in ranks]),
}
study.curves(
    predicted,
    points=counted,
    yunit="B",
    xlabel="ranks, n",
    ylabel="bytes sent by the busiest rank",
    title="All-reduce of 96 MB: predicted (lines) and counted (points)",
)

# %% tags=["maintainer"]
assert counted == predicted

# %% [markdown]
# And the question that opened the lesson, on 4 ranks with 100 MB each:

# %%
ring = World(4, device="meta").run(reduce_bytes, ring_all_reduce, 100 * MB).trace
sent = {
    "your guess": guess,
    "naive, rank 0": naive.bytes_sent(0),
    "ring, each rank": ring.bytes_sent(0),
}

# %% tags=["answer"]
study.reveal(
    guess,
    ring.bytes_sent(0),
    [
        study.bars(sent, unit="B", title="100 MB on 4 ranks: what the busiest rank sends"),
        study.traffic(ring, title="Ring: all wires carry the same"),
    ],
    unit="B",
)

# %% [markdown]
# ### Could it be done with less?
#
# No, and the argument is short enough to follow here. Take a single position of the vector and count how often a number for it is sent. Consider the moment at which the first rank holds the complete sum. Each of the other *n* − 1 ranks must have sent something by then, or else its contribution would be missing: that makes *n* − 1 sends. After that moment each of the other *n* − 1 ranks still has to receive something, or else it will never have the sum: *n* − 1 more. So every position costs at least 2(*n* − 1) sends, the whole vector $2(n-1)N$ bytes, and if *n* ranks share them perfectly, each sends $2\frac{n-1}{n}N$. The ring does exactly this. The proof in full is in [Patarasuk and Yuan 2009](paper:patarasuk2009).
#
# ## The time
#
# Bytes are not yet seconds. A rank has one wire out and one wire in, so it sends one message at a time and receives one at a time. Here are both runs on one axis of virtual time.

# %%
study.timeline({"naive": naive, "ring": ring}, title="100 MB on 4 ranks")

# %% [markdown]
# To look at a run closely, use the viewer. It shows the same trace, but you can zoom into it, drag it, and point at any message to see who sent what to whom, and on which line.

# %%
study.viewer(ring, title="The ring, message by message")

# %% [markdown]
# Now go back to the two runs on one axis. In the upper half rank 0 is busy from beginning to end and everyone else waits. It takes in *n* − 1 tensors one after another and sends *n* − 1 out, $2(n-1)N\beta$ seconds; it also waits a latency for each of the *n* − 1 that it receives and for the last one that it sends, together $n\alpha$. In the ring all wires are busy all the time. There are $2(n-1)$ steps, each as long as one message of $N/n$ bytes:
#
# $$T_\text{naive} = n\alpha + 2(n-1)N\beta, \qquad T_\text{ring} = 2(n-1)\left(\alpha + \frac{N}{n}\beta\right).$$
#
# Compare the two terms in $\alpha$, and you see what the ring pays: it saves bytes and spends messages, one after another, and their number grows with *n*. So there must be tensors that are too small for the ring.
#
# **On 16 ranks, below which size is the naive algorithm faster?**

# %%
guess_crossing = 1_000_000  # bytes: change this number

# %%
n = 16
sizes = [10**k for k in range(3, 10)]


def time_of(all_reduce):
    return [World(n, device="meta").run(reduce_bytes, all_reduce, size).time for size in sizes]


formulas = {
    "naive": (sizes, [n * ALPHA + 2 * (n - 1) * size * BETA for size in sizes]),
    "ring": (sizes, [2 * (n - 1) * (ALPHA + size / n * BETA) for size in sizes]),
}
runs = {
    "naive": (sizes, time_of(naive_all_reduce)),
    "ring": (sizes, time_of(ring_all_reduce)),
}
crossing = (2 * (n - 1) - n) * ALPHA / (2 * (n - 1) * BETA * (1 - 1 / n))

# %% tags=["answer"]
study.reveal(
    guess_crossing,
    round(crossing),
    study.curves(
        formulas,
        points=runs,
        logx=True,
        logy=True,
        xunit="B",
        yunit="s",
        xlabel="bytes to reduce, N",
        ylabel="time of an all-reduce",
        title="16 ranks: lines are the formulas, points are runs",
    ),
    unit="B",
    words="Set the two formulas equal and solve for N. At 1 GB the ring is 16 times as fast.",
)

# %% [markdown]
# **When not to use a ring.** When the tensor is small, or when there are very many ranks, all the time goes into latency. A tree needs only about $\log_2 n$ rounds instead of $2(n-1)$ steps, and wins there. Real libraries switch between the two by size. [Collectives at scale](lesson:trees) builds the trees and finds out where the lines cross.
#
# Play with the numbers yourself before you go on. With the sliders you can change the latency and the bandwidth of the network and watch the crossing move.


# %%
def all_reduce_seconds(n, N, latency, bandwidth):
    """The two formulas."""
    return {
        "naive": n * latency + 2 * (n - 1) * N / bandwidth,
        "ring": 2 * (n - 1) * (latency + N / n / bandwidth),
    }


study.explore(
    all_reduce_seconds,
    over="N",
    n=[2, 4, 8, 16, 64, 256, 1024],
    N=[10**k for k in range(3, 10)],
    latency=[1e-6, 5e-6, 20e-6],
    bandwidth=[5e9, 50e9, 400e9],
    units={"N": "B", "latency": "s", "bandwidth": "B/s"},
    labels={"n": "ranks", "N": "bytes to reduce"},
    start={"n": 16, "latency": 5e-6, "bandwidth": 50e9},
    unit="s",
    logx=True,
    logy=True,
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title="Naive or ring?",
)

# %% [markdown]
# ## Break it
#
# Learn the symptoms now, while you know the cause. The commonest mistake in a ring is a loop that is one step short. The upper picture has one step too few in the reduce-scatter, the lower one in the all-gather.


# %%
def one_step_short(comm, missing_first, missing_second):
    n = comm.size
    r = comm.rank
    x = numbers(r, n)
    chunks = x.split(1)
    for k in range(1, n - missing_first):
        arriving = torch.empty_like(chunks[0])
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, arriving, (r - 1) % n)
        chunks[(r - k - 1) % n].add_(arriving)
    for k in range(n - 1 - missing_second):
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, chunks[(r - k - 1) % n], (r - 1) % n)
    return x


display(
    draw_film(
        {"result": World(3).run(one_step_short, 1, 0)}, "One step short in the reduce-scatter"
    )
)
draw_film({"result": World(3).run(one_step_short, 0, 1)}, "One step short in the all-gather")

# %% [markdown]
# In the upper picture all ranks agree, and all are wrong: in place of the sum of chunk *i* everyone has rank *i*'s own numbers. Remember this when somebody tells you that a run must be right because the replicas are equal. Equal replicas prove nothing about the sum. In the lower picture the ranks disagree: each still has the leftover of one chunk.
#
# ### Two ranks hide bugs
#
# Here are two more wrong rings. The first turns the wrong way: it sends to the left and receives from the right, with the indices of a ring that turns to the right. The second drops the remainder where *n* does not divide the length. Before you run the table, consider which of its columns will notice.


# %%
def turned(comm, x):
    """Sends to the left and receives from the right."""
    n = comm.size
    r = comm.rank
    chunks = x.tensor_split(n)
    for k in range(1, n):
        own = chunks[(r - k - 1) % n]
        arriving = torch.empty_like(own)
        comm.sendrecv(chunks[(r - k) % n], (r - 1) % n, arriving, (r + 1) % n)
        own += arriving
    for k in range(n - 1):
        comm.sendrecv(chunks[(r - k) % n], (r - 1) % n, chunks[(r - k - 1) % n], (r + 1) % n)
    return x


def remainder_dropped(comm, x):
    whole = len(x) // comm.size * comm.size
    ring_all_reduce(comm, x[:whole])
    return x


# %%
cases = [(1, 12), (2, 12), (3, 12), (4, 12), (4, 13)]
candidates = {
    "the ring as above": ring_all_reduce,
    "turns the wrong way": turned,
    "remainder dropped": remainder_dropped,
}
rows = []
for name, candidate in candidates.items():
    rows.append([name] + [verdict(candidate, n, length) for n, length in cases])
study.table(rows, ["", *(f"n = {n}, length {length}" for n, length in cases)])

# %% [markdown]
# With two ranks the left neighbour *is* the right neighbour, so a ring that turns the wrong way passes. With a length that *n* divides there is no remainder to drop. A test of a distributed program needs at least three ranks and a length that is not a multiple of their number. Bugs in published code have survived for years because the tests had only two.
#
# The entry "stopped" needs an explanation. In that run a chunk of three numbers met a receive of four. Some libraries return a sum all the same, and it is wrong. In this package each message carries a header with its shape and type, and the receiver compares. Here is the message that it gives if rank 2 brings one number too few:

# %%
try:
    World(3).run(lambda comm: ring_all_reduce(comm, numbers(comm.rank, 5 if comm.rank == 2 else 6)))
except ValueError as error:
    print(error)

# %% [markdown]
# ## The library's file
#
# All of this is in [minidist/collectives/ring.py](file:minidist/collectives/ring.py). Its main function has the two lines that you would expect, after the cut into chunks:

# %%
from minidist.collectives import ring as library

study.source(library.all_reduce)

# %% [markdown]
# The first half differs from ours in one respect. We allocated a new tensor for what arrives in each step. The library allocates one buffer, as large as the largest chunk, and receives into it again and again. `combine` adds, or takes the maximum, or whatever the caller has asked for.

# %%
study.source(library.reduce_scatter_)

# %% [markdown]
# The second half receives straight into place, as ours does. The `label` travels with each message and is compared on arrival, so that two ranks that are in different collectives are told so at once.

# %%
study.source(library.all_gather)

# %% [markdown]
# The same file has the collectives that are made from these pieces: a broadcast that is a scatter and an all-gather, a reduce, an all-to-all, and a barrier in $\lceil\log_2 n\rceil$ rounds. Beside each stands its cost formula. What a program calls, `all_reduce_` and the others, is in [verbs.py](file:minidist/collectives/verbs.py), which checks the arguments and chooses the algorithm.
#
# Since an all-reduce *is* its two halves, `all_gather(reduce_scatter(x))` gives the same bits as `all_reduce_(x)`. It looks like a curiosity, but one of the most important ideas of the course rests on it: [ZeRO](lesson:zero) does its work *between* the two halves.


# %%
def both_ways(comm):
    x = torch.randn(12)
    halves = collectives.all_gather(comm, collectives.reduce_scatter(comm, x))
    whole = collectives.all_reduce_(comm, x.clone())
    return torch.equal(halves, whole)


World(4).run(both_ways)

# %% [markdown]
# Other libraries have the same verbs under other names:

# %%
names = [
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
    names, ["minidist", "torch.distributed", "MPI"], title="The same verbs under other names"
)

# %% [markdown]
# ## The same program in real processes
#
# So far all ranks lived in this notebook. `launch` starts real processes instead, and hands each of them a communicator over shared memory, or over gloo, the library with which PyTorch sends between CPUs. The program does not change.


# %%
from minidist.comm import launch


def random_sum(comm, length=100_003):
    generator = torch.Generator().manual_seed(comm.rank)
    x = torch.randn(length, generator=generator)
    return ring_all_reduce(comm, x)


three_runs = {
    "World": World(4).run(random_sum),
    "processes, shared memory": launch(random_sum, 4),
    "processes, gloo": launch(random_sum, 4, transport="gloo"),
}
rows = []
for rank in range(4):
    rows.append([f"rank {rank}"] + [run.trace.bytes_sent(rank) for run in three_runs.values()])
study.table(rows, ["", *three_runs], title="Bytes sent, counted in three runs of one program")

# %% tags=["maintainer"]
for results in three_runs.values():
    assert all(torch.equal(x, y) for x, y in zip(results, three_runs["World"], strict=True))

# %% [markdown]
# The sums are equal to the last bit, and the byte counts agree too. On a cluster a script takes the place of the notebook: the same functions, and `random_sum(from_env())` instead of `World(4).run(random_sum)`. [examples/ring.py](file:examples/ring.py) is this script. Here is how to run it on one machine with four ranks, and on two machines with eight each:
#
# ```
# torchrun --nproc-per-node 4 examples/ring.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/ring.py
# ```
#
# `torchrun` starts the processes and tells each its rank in an environment variable. `from_env()` reads it, takes NCCL where there are GPUs and gloo where there are none, and returns a communicator. How that communicator is built on `torch.distributed` is the subject of [minidist/comm/torchdist.py](file:minidist/comm/torchdist.py). Its core is the rule that you met above: over gloo every operation starts when it is posted, while over NCCL everything that has been posted starts together, in one group, as soon as somebody waits.
#
# Here are two warnings, in case you build such a thing yourself. Never write a fixed port into a program. Ranks that meet at port 29500 do so in every run, and the second run on the same machine stops with "address already in use". The ranks of `launch` meet in a file, and `torchrun` on a single machine looks for a free port. The second warning is to count what a library really sends. gloo has a `reduce_scatter` of its own, and it moves as many bytes as an all-reduce: on four ranks we counted 1.5 *N* for each rank with either, where the first half of the ring sends 0.75 *N*. (This package uses its own ring over gloo, too.)
#
# ## Takeaways
#
# - A rank is a copy of the program with a number. Ranks learn about each other only through messages.
# - A message of *N* bytes takes α + *N*β. Small messages cost latency, large ones cost bandwidth.
# - "Everyone sends, then everyone receives" is a deadlock. Start both together, in one group.
# - An all-reduce is a reduce-scatter followed by an all-gather. Chunk *i* is finished at rank *i*.
# - In a naive all-reduce one rank sends $(n-1)N$ bytes; in a ring each sends $2\frac{n-1}{n}N$, and no algorithm can do with less.
# - The ring takes $2(n-1)$ steps, so it is slow for small tensors on many ranks.
# - Equal replicas can all be wrong. Test with three ranks or more, and with lengths that are not multiples of their number.
#
# ## Further reading
#
# - paper:patarasuk2009 The ring, and the proof that nothing sends less (theorem 1).
# - paper:thakur2005 Which algorithm for which size.
# - paper:gibiansky2017 How the ring came to deep learning.
# - paper:sergeev2018 The ring for everyone.
# - paper:mpi2023 The verbs, defined.
