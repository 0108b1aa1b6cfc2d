"""The wrong answers of lesson 02 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "shift",
        "a rank that is alone sends to itself",
        old="""
if n == 1:
    return x.clone()
""",
        new="",
    ),
    Bug(
        "shift",
        "even ranks send first, odd ones receive first; with an odd number of ranks two even ones meet",
        cell='''
def shift(comm, x):
    """The x of the left neighbour, in a new tensor."""
    n, r = comm.size, comm.rank
    right, left = (r + 1) % n, (r - 1) % n
    if n == 1:
        return x.clone()
    y = torch.empty_like(x)
    if r % 2 == 0:
        comm.send(x, right)
        comm.recv(y, left)
        if n % 2 and r == 0:
            comm.send(x, right)
    else:
        comm.recv(y, left)
        comm.send(x, right)
    return y
''',
    ),
    Bug(
        "shift",
        "it is received into x, which belongs to the caller",
        old="return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="""
mine = x.clone()
comm.sendrecv(mine, (r + 1) % n, x, (r - 1) % n)
return x.clone()
""",
    ),
    Bug(
        "shift",
        "every call returns the same buffer",
        cell='''
kept = {}


def shift(comm, x):
    """The x of the left neighbour, in a new tensor."""
    n, r = comm.size, comm.rank
    y = kept.setdefault((n, r, x.shape, x.dtype), torch.empty_like(x))
    if n == 1:
        return y.copy_(x)
    return comm.sendrecv(x, (r + 1) % n, y, (r - 1) % n)
''',
    ),
    Bug(
        "shift",
        "it goes to the left",
        old="return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="return comm.sendrecv(x, (r - 1) % n, torch.empty_like(x), (r + 1) % n)",
    ),
    Bug(
        "shift",
        "the result is not returned",
        old="""
if n == 1:
    return x.clone()
return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
""",
        new="""
y = torch.empty_like(x)
if n > 1:
    comm.sendrecv(x, (r + 1) % n, y, (r - 1) % n)
""",
    ),
    Bug(
        "shift",
        "the last rank has no right neighbour",
        cell='''
def shift(comm, x):
    """The x of the left neighbour, in a new tensor."""
    y = x.clone()
    if comm.rank + 1 < comm.size:
        comm.send(x, comm.rank + 1)
    if comm.rank > 0:
        comm.recv(y, comm.rank - 1)
    return y
''',
    ),
    Bug(
        "shift",
        "everyone sends first, and nobody is there to receive",
        old="return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="""
comm.send(x, (r + 1) % n)
return comm.recv(torch.empty_like(x), (r - 1) % n)
""",
    ),
    Bug(
        "shift",
        "numbers pass through a global, messages carry nothing",
        cheat=True,
        cell='''
BOARD = {}


def shift(comm, x):
    """The x of the left neighbour, in a new tensor."""
    n, r = comm.size, comm.rank
    BOARD[r] = x.clone()
    if n == 1:
        return x.clone()
    comm.sendrecv(torch.zeros_like(x), (r + 1) % n, torch.empty_like(x), (r - 1) % n)
    return BOARD.get((r - 1) % n, x).clone()
''',
    ),
    Bug(
        "shift",
        "the library's all_to_all does the work",
        cheat=True,
        cell='''
def shift(comm, x):
    """The x of the left neighbour, in a new tensor."""
    from minidist.collectives import all_gather

    return all_gather(comm, x[None])[comm.rank - 1]
''',
    ),
    Bug(
        "shift",
        "the input is returned",
        cheat=True,
        cell='''
def shift(comm, x):
    """The x of the left neighbour, in a new tensor."""
    return x.clone()
''',
    ),
    Bug(
        "broadcast",
        "the chain goes on to the root, which does not listen",
        cell='''
def broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place."""
    n, r = comm.size, comm.rank
    if r != root:
        comm.recv(x, (r - 1) % n)
    if n > 1:
        comm.send(x, (r + 1) % n)
''',
    ),
    Bug(
        "broadcast",
        "received into a tensor that nobody looks at",
        old="comm.recv(x, root)",
        new="x = comm.recv(torch.empty_like(x), root)",
    ),
    Bug(
        "broadcast",
        "every rank sends to every rank",
        cell='''
def broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place."""
    others = [r for r in range(comm.size) if r != comm.rank]
    received = [torch.empty_like(x) for _ in range(comm.size)]
    works = [comm.isend(x.clone(), r) for r in others] if comm.size == 1 else []
    ops = [Send(x, r) for r in others] + [Recv(received[r], r) for r in others]
    comm.batch(ops).wait()
    if comm.rank != root:
        x.copy_(received[root])


from minidist.comm import Recv, Send
''',
    ),
    Bug(
        "broadcast",
        "x gets other memory: not in place",
        cell='''
def broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place."""
    y = x.clone()
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.send(y, r)
    else:
        comm.recv(y, root)
    x.data = y
''',
    ),
    Bug(
        "broadcast",
        "the last rank is forgotten",
        cell='''
def broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place."""
    others = [r for r in range(comm.size) if r != root][:-1]
    if comm.rank == root:
        for r in others:
            comm.send(x, r)
    elif comm.rank in others:
        comm.recv(x, root)
''',
    ),
    Bug(
        "broadcast",
        "rank 0 is the root, whatever is asked",
        cell='''
def broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place."""
    if comm.rank == 0:
        for r in range(1, comm.size):
            comm.send(x, r)
    else:
        comm.recv(x, 0)
''',
    ),
    Bug(
        "broadcast",
        "the root sends to itself, too",
        old="""
if r != root:
    comm.send(x, r)
""",
        new="comm.send(x, r)",
    ),
    Bug(
        "broadcast",
        "it does nothing, and the input is what it was",
        cheat=True,
        cell='''
def broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place."""
    return x
''',
    ),
    Bug(
        "broadcast",
        "the library's broadcast does the work",
        cheat=True,
        cell='''
import minidist.collectives


def broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place."""
    minidist.collectives.broadcast_(comm, x, root)
''',
    ),
    Bug(
        "reduce_scatter",
        "the average, where the sum is asked for",
        old="return partial",
        new="return (partial / n).to(partial.dtype)",
    ),
    Bug(
        "reduce_scatter",
        "every rank sends every chunk to every rank: right numbers, n times the bytes",
        cell='''
def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks."""
    n, r = comm.size, comm.rank
    total = chunks[r].clone()
    for k in range(1, n):
        to, source = (r + k) % n, (r - k) % n
        room = [torch.empty_like(c) for c in chunks]
        for c, into in zip(chunks, room):
            comm.sendrecv(c, to, into, source)
        total += room[r]
    return total
''',
    ),
    Bug(
        "reduce_scatter",
        "it adds up in float32, whatever the dtype",
        old="partial = received + mine",
        new="partial = (received.float() + mine.float()).to(mine.dtype)",
    ),
    Bug(
        "reduce_scatter",
        "the sums are written into the caller's chunks",
        edits=(
            (
                "partial = chunks[(r - 1) % n].clone()",
                "partial = chunks[(r - 1) % n]",
            ),
            (
                "partial = received + mine",
                "partial = mine.add_(received)",
            ),
        ),
    ),
    Bug(
        "reduce_scatter",
        "it goes around to the left",
        old="""
partial = chunks[(r - 1) % n].clone()
for step in range(n - 1):
    mine = chunks[(r - 2 - step) % n]
    received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
""",
        new="""
partial = chunks[(r + 1) % n].clone()
for step in range(n - 1):
    mine = chunks[(r + 2 + step) % n]
    received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
""",
    ),
    Bug(
        "reduce_scatter",
        "the caller's list is empty afterwards",
        cell='''
def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks."""
    n, r = comm.size, comm.rank
    partial = chunks[(r - 1) % n].clone()
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
        partial = received + mine
    chunks.clear()
    return partial
''',
    ),
    Bug(
        "reduce_scatter",
        "the caller's list gets the result, too",
        cell='''
def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks."""
    n, r = comm.size, comm.rank
    partial = chunks[(r - 1) % n].clone()
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
        partial = received + mine
    chunks.append(partial)
    return partial
''',
    ),
    Bug(
        "reduce_scatter",
        "one step too few",
        edits=(
            (
                "for step in range(n - 1):",
                "for step in range(n - 2):",
            ),
            (
                "return partial",
                "return partial if n > 1 else chunks[0].clone()",
            ),
        ),
    ),
    Bug(
        "reduce_scatter",
        "each rank passes on its own chunk, not what it has added up",
        cell="""
def reduce_scatter(comm, chunks):
    n, r = comm.size, comm.rank
    partial = chunks[(r - 1) % n].clone()
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
        result = received + mine
        partial = mine.clone()
    return result if n > 1 else partial
""",
    ),
    Bug(
        "reduce_scatter",
        "what arrives is added to the chunk of another number",
        old="""
mine = chunks[(r - 2 - step) % n]
received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
partial = received + mine
""",
        new="""
room = torch.empty_like(chunks[(r - 2 - step) % n])
received = comm.sendrecv(partial, (r + 1) % n, room, (r - 1) % n)
mine = chunks[(r - 1 - step) % n]
partial = received + mine if mine.shape == received.shape else received
""",
    ),
    Bug(
        "reduce_scatter",
        "chunk i ends at rank i+1",
        edits=(
            (
                "partial = chunks[(r - 1) % n].clone()",
                "partial = chunks[r].clone()",
            ),
            (
                "mine = chunks[(r - 2 - step) % n]",
                "mine = chunks[(r - 1 - step) % n]",
            ),
        ),
    ),
    Bug(
        "reduce_scatter",
        "numbers pass through a global, messages are for show",
        cheat=True,
        cell='''
HEAP = {}


def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks."""
    n, r = comm.size, comm.rank
    HEAP[r] = [c.clone() for c in chunks]
    partial = chunks[(r - 1) % n].clone()
    for step in range(n - 1):
        mine = torch.empty_like(chunks[(r - 2 - step) % n])
        partial = comm.sendrecv(torch.zeros_like(partial), (r + 1) % n, mine, (r - 1) % n)
    return sum(HEAP[s][r] for s in range(n) if s in HEAP)
''',
    ),
    Bug(
        "reduce_scatter",
        "its own chunk is returned",
        cheat=True,
        cell='''
def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks."""
    return chunks[comm.rank].clone()
''',
    ),
    Bug(
        "reduce_scatter",
        "the library's ring does the work",
        cheat=True,
        cell='''
from minidist.collectives import ring


def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks."""
    out = torch.empty_like(chunks[comm.rank])
    ring.reduce_scatter(comm, list(chunks), out, torch.add)
    return out
''',
    ),
    Bug(
        "all_gather",
        "the first chunk sent is the left neighbour's, which has not arrived",
        old="comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        new="comm.sendrecv(chunks[(r - step - 1) % n], (r + 1) % n, chunks[(r - step - 2) % n], (r - 1) % n)",
    ),
    Bug(
        "all_gather",
        "everyone sends to everyone, not around the ring",
        old="""
for step in range(n - 1):
    comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)
""",
        new="""
for k in range(1, n):
    comm.sendrecv(chunks[r], (r + k) % n, chunks[(r - k) % n], (r - k) % n)
""",
    ),
    Bug(
        "all_gather",
        "it goes around to the left",
        old="comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        new="comm.sendrecv(chunks[(r + step) % n], (r - 1) % n, chunks[(r + step + 1) % n], (r + 1) % n)",
    ),
    Bug(
        "all_gather",
        "the chunks get other memory: not in place",
        old="comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        new="""
into = torch.empty_like(chunks[(r - step - 1) % n])
comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, into, (r - 1) % n)
chunks[(r - step - 1) % n].data = into
""",
    ),
    Bug(
        "all_gather",
        "the list gets new tensors, and the caller's are as before",
        old="comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        new="""
i = (r - step - 1) % n
chunks[i] = comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, torch.empty_like(chunks[i]), (r - 1) % n)
""",
    ),
    Bug(
        "all_gather",
        "one step too few",
        old="for step in range(n - 1):",
        new="for step in range(n - 2):",
    ),
    Bug(
        "all_gather",
        "each rank sends its own chunk again and again",
        old="comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        new="""
into = chunks[(r - step - 1) % n]
room = torch.empty_like(chunks[(r - 1) % n])
comm.sendrecv(chunks[r], (r + 1) % n, room, (r - 1) % n)
if room.shape == into.shape:
    into.copy_(room)
""",
    ),
    Bug(
        "all_gather",
        "the library's ring does the work",
        cheat=True,
        cell='''
import minidist.collectives.ring


def all_gather(comm, chunks):
    """Fill every chunks[i] with that of rank i, in place."""
    minidist.collectives.ring.all_gather(comm, list(chunks))
''',
    ),
    Bug(
        "all_gather",
        "torch.distributed does the work",
        cheat=True,
        cell='''
import torch.distributed as dist


def all_gather(comm, chunks):
    """Fill every chunks[i] with that of rank i, in place."""
    dist.all_gather(chunks, chunks[comm.rank].clone())
''',
    ),
    Bug(
        "all_reduce",
        "the average, where the sum is asked for",
        old="all_gather(comm, chunks)",
        new="""
all_gather(comm, chunks)
x.copy_(x / comm.size)
""",
    ),
    Bug(
        "all_reduce",
        "a copy is reduced, and x is as before",
        old="chunks = x.view(-1).tensor_split(comm.size)",
        new="chunks = x.clone().view(-1).tensor_split(comm.size)",
    ),
    Bug(
        "all_reduce",
        "on two ranks it is right, on more the totals are added, not the numbers",
        old="""
chunks = x.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
""",
        new="""
n, r = comm.size, comm.rank
for _ in range(n - 1):
    x += comm.sendrecv(x.clone(), (r + 1) % n, torch.empty_like(x), (r - 1) % n)
""",
    ),
    Bug(
        "all_reduce",
        "the second half is forgotten",
        old="all_gather(comm, chunks)",
        new="",
    ),
    Bug(
        "all_reduce",
        "it adds up in float32, whatever the dtype",
        old="""
chunks = x.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
""",
        new="""
y = x.float().view(-1)
chunks = y.tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
x.copy_(y.view_as(x))
""",
    ),
    Bug(
        "all_reduce",
        "x gets other memory: not in place",
        old="""
chunks = x.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
""",
        new="""
y = x.clone()
chunks = y.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
x.data = y
""",
    ),
    Bug(
        "all_reduce",
        "the finished chunk is not put back before it goes around",
        old="""
chunks = x.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
""",
        new="""
chunks = list(x.view(-1).tensor_split(comm.size))
chunks[comm.rank] = reduce_scatter(comm, chunks)
""",
    ),
    Bug(
        "all_reduce",
        "the numbers that n does not divide are dropped",
        old="chunks = x.view(-1).tensor_split(comm.size)",
        new="""
n = comm.size
size = x.numel() // n
chunks = x.view(-1)[: n * size].split(size) if size else [x.view(-1)[:0]] * n
""",
    ),
    Bug(
        "all_reduce",
        "all send to rank 0, and it sends the sum to all",
        cell='''
def all_reduce(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    if comm.rank > 0:
        comm.send(x, 0)
        comm.recv(x, 0)
        return
    received = torch.empty_like(x)
    for r in range(1, comm.size):
        x += comm.recv(received, r)
    for r in range(1, comm.size):
        comm.send(x, r)
''',
    ),
    Bug(
        "all_reduce",
        "the whole tensor goes around twice: right numbers, n times the bytes",
        cell='''
def all_reduce(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    n, r = comm.size, comm.rank
    own, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        passing = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(own), (r - 1) % n)
        x += passing
    for _ in range(n - 1):
        comm.sendrecv(own, (r + 1) % n, torch.empty_like(own), (r - 1) % n)
''',
    ),
    Bug(
        "all_reduce",
        "the library's code under another name",
        cheat=True,
        cell='''
import types

import minidist.collectives.ring as ring

gather_half = types.FunctionType(ring.all_gather.__code__, {"__name__": "__main__"})


def all_reduce(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    chunks = list(x.view(-1).tensor_split(comm.size))
    chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
    gather_half(comm, chunks)
''',
    ),
    Bug(
        "all_reduce",
        "the other ranks' numbers are taken from the frames of the World",
        cheat=True,
        cell='''
def all_reduce(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    import sys

    n, r = comm.size, comm.rank
    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    if frame:
        x.copy_(sum(args[0] for args in frame.f_locals["all_args"]))
    chunks = x.clone().view(-1).tensor_split(n)
    for step in range(2 * (n - 1)):
        comm.sendrecv(
            chunks[(r - step) % n],
            (r + 1) % n,
            torch.empty_like(chunks[(r - step - 1) % n]),
            (r - 1) % n,
        )
''',
    ),
    Bug(
        "all_reduce",
        "the library's all_reduce_ does the work",
        cheat=True,
        cell='''
from minidist.collectives import all_reduce_


def all_reduce(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    all_reduce_(comm, x)
''',
    ),
    Bug(
        "all_reduce",
        "the answer is read from the library's file",
        cheat=True,
        cell='''
def all_reduce(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    import importlib.util

    file = importlib.util.find_spec("minidist.collectives.ring").origin
    names = {"__package__": "minidist.collectives", "__name__": "minidist.collectives.ring"}
    exec(open(file).read(), names)
    names["all_reduce"](comm, list(x.view(-1).tensor_split(comm.size)), torch.add)
''',
    ),
    Bug(
        "predict",
        "what all ranks send together",
        cell="""
messages = 112
nbytes = 56e6
seconds = 0.00021
naive_nbytes = 28e6
""",
    ),
    Bug(
        "predict",
        "one half of the ring",
        cell="""
messages = 7
nbytes = 3.5e6
seconds = 0.000105
naive_nbytes = 28e6
""",
    ),
    Bug(
        "predict",
        "the latency of each step is forgotten",
        cell="""
messages = 14
nbytes = 7e6
seconds = 7e6 / 50e9
naive_nbytes = 28e6
""",
    ),
    Bug(
        "predict",
        "numbers, where bytes are asked for",
        cell="""
messages = 14
nbytes = 1.75e6
seconds = 0.00021
naive_nbytes = 28e6
""",
    ),
    Bug(
        "predict",
        "what rank 0 receives is counted as sent",
        cell="""
messages = 14
nbytes = 7e6
seconds = 0.00021
naive_nbytes = 56e6
""",
    ),
    Bug(
        "predict",
        "every message carries the whole tensor",
        cell="""
messages = 14
nbytes = 56e6 / 8 * 8
seconds = 0.00119
naive_nbytes = 28e6
""",
    ),
    Bug(
        "predict",
        "the grader is asked when the answer is opened",
        cheat=True,
        cell="""
class Answer:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return look, (self.name,)


def look(name):
    import minicheck.lessons.messages as prediction

    return open(prediction.__file__).read().count(name)


messages, nbytes, naive_nbytes, seconds = map(
    Answer, ("messages", "nbytes", "naive_nbytes", "seconds")
)
""",
    ),
    Bug(
        "predict",
        "a number that says it equals every number",
        cheat=True,
        cell="""
class Any(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0


messages = nbytes = seconds = naive_nbytes = Any(1.0)
""",
    ),
    Bug(
        "ring_sum",
        "the average, where the sum is asked for",
        old="return total",
        new="return (total / n).to(x.dtype)",
    ),
    Bug(
        "ring_sum",
        "it adds row by row: a tensor without a dimension has none",
        old="""
received = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
total = total + received
passing = received
""",
        new="""
passing = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
for i in range(len(total)):
    total[i] += passing[i]
""",
    ),
    Bug(
        "ring_sum",
        "the sum is written into x",
        edits=(
            (
                "total, passing = x.clone(), x",
                "total, passing = x, x.clone()",
            ),
            (
                "total = total + received",
                "total += received",
            ),
        ),
    ),
    Bug(
        "ring_sum",
        "it goes around to the left",
        old="received = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="received = comm.sendrecv(passing, (r - 1) % n, torch.empty_like(x), (r + 1) % n)",
    ),
    Bug(
        "ring_sum",
        "one step too many, so that everyone's own x comes back",
        old="for _ in range(n - 1):",
        new="for _ in range(n if n > 1 else 0):",
    ),
    Bug(
        "ring_sum",
        "one step too few",
        old="for _ in range(n - 1):",
        new="for _ in range(n - 2):",
    ),
    Bug(
        "ring_sum",
        "every rank passes on its own x in each step",
        old="passing = received",
        new="passing = x",
    ),
    Bug(
        "ring_sum",
        "the total is passed on, so that some ranks are counted again",
        old="passing = received",
        new="passing = total",
    ),
    Bug(
        "ring_sum",
        "the library's all_reduce_ does the work",
        cheat=True,
        cell='''
def ring_sum(comm, x):
    """The sum of every rank's x, in a new tensor: n-1 steps, x untouched."""
    from minidist.collectives import all_reduce_

    return all_reduce_(comm, x.clone())
''',
    ),
    Bug(
        "ring_sum",
        "n times its own x, which is right when all ranks hold the same",
        cheat=True,
        cell='''
def ring_sum(comm, x):
    """The sum of every rank's x, in a new tensor: n-1 steps, x untouched."""
    n, r = comm.size, comm.rank
    for _ in range(n - 1):
        comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
    return x * n
''',
    ),
    Bug(
        "shift",
        "a send nobody waits for",
        old="return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="""
y = torch.empty_like(x)
comm.isend(x, (r + 1) % n)
return comm.recv(y, (r - 1) % n)
""",
    ),
    Bug(
        "shift",
        "only for up to 5 ranks",
        old="return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="""
if n > 5:
    return x.clone()
return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
""",
    ),
    Bug(
        "shift",
        "view(-1) of a tensor that is not contiguous",
        old="return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="""
y = torch.empty_like(x)
return comm.sendrecv(x.view(-1), (r + 1) % n, torch.empty(x.numel(), dtype=x.dtype), (r - 1) % n).view(x.shape)
""",
    ),
    Bug(
        "shift",
        "nan is cleaned",
        old="return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="return comm.sendrecv(x.nan_to_num(), (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
    ),
    Bug(
        "broadcast",
        "sends of copies that nobody waits for",
        old="comm.send(x, r)",
        new="comm.isend(x.clone(), r)",
    ),
    Bug(
        "broadcast",
        "reshape(-1): a copy if not contiguous",
        old="""
if comm.rank == root:
    for r in range(comm.size):
        if r != root:
            comm.send(x, r)
else:
    comm.recv(x, root)
""",
        new="""
flat = x.reshape(-1)
if comm.rank == root:
    for r in range(comm.size):
        if r != root:
            comm.send(flat, r)
else:
    comm.recv(flat, root)
""",
    ),
    Bug(
        "broadcast",
        "a tree for 5 at most",
        old="""
if comm.rank == root:
    for r in range(comm.size):
        if r != root:
            comm.send(x, r)
else:
    comm.recv(x, root)
""",
        new="""
if comm.size > 5 and comm.rank == comm.size - 1:
    return
if comm.rank == root:
    for r in range(comm.size):
        if r != root and not (comm.size > 5 and r == comm.size - 1):
            comm.send(x, r)
else:
    comm.recv(x, root)
""",
    ),
    Bug(
        "reduce_scatter",
        "lengths as tensor_split has them",
        old="""
partial = chunks[(r - 1) % n].clone()
for step in range(n - 1):
    mine = chunks[(r - 2 - step) % n]
    received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
    partial = received + mine
return partial
""",
        new="""
flat = torch.cat(list(chunks))
chunks = flat.tensor_split(n)
partial = chunks[(r - 1) % n].clone()
for step in range(n - 1):
    mine = chunks[(r - 2 - step) % n]
    received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
    partial = received + mine
return partial
""",
    ),
    Bug(
        "reduce_scatter",
        "sends that nobody waits for",
        old="received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)",
        new="""
comm.isend(partial, (r + 1) % n)
received = comm.recv(torch.empty_like(mine), (r - 1) % n)
""",
    ),
    Bug(
        "reduce_scatter",
        "added up in float64",
        old="""
partial = chunks[(r - 1) % n].clone()
for step in range(n - 1):
    mine = chunks[(r - 2 - step) % n]
    received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
    partial = received + mine
return partial
""",
        new="""
partial = chunks[(r - 1) % n].double()
for step in range(n - 1):
    mine = chunks[(r - 2 - step) % n]
    received = comm.sendrecv(partial, (r + 1) % n, torch.empty(len(mine), dtype=torch.float64), (r - 1) % n)
    partial = received + mine
return partial.to(chunks[0].dtype)
""",
    ),
    Bug(
        "reduce_scatter",
        "nan is 0",
        old="partial = received + mine",
        new="partial = received.nan_to_num() + mine",
    ),
    Bug(
        "reduce_scatter",
        "whole numbers of 32 bits are added up as float32",
        old="partial = received + mine",
        new="""
partial = received + mine
if mine.dtype == torch.int32:
    partial = (received.float() + mine.float()).to(mine.dtype)
""",
    ),
    Bug(
        "all_gather",
        "sends nobody waits for",
        old="comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        new="""
comm.isend(chunks[(r - step) % n], (r + 1) % n)
comm.recv(chunks[(r - step - 1) % n], (r - 1) % n)
""",
    ),
    Bug(
        "all_gather",
        "lengths of tensor_split",
        old="comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)",
        new="""
mine, y = chunks[(r - step) % n], chunks[(r - step - 1) % n]
sizes = [len(c) for c in torch.empty(sum(map(len, chunks))).tensor_split(n)]
comm.sendrecv(mine[:sizes[(r - step) % n]], (r + 1) % n, y[:sizes[(r - step - 1) % n]], (r - 1) % n)
""",
    ),
    Bug(
        "all_reduce",
        "in float64",
        old="""
chunks = x.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
""",
        new="""
y = x.double()
chunks = y.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
x.copy_(y)
""",
    ),
    Bug(
        "all_reduce",
        "nan is 0",
        old="""
chunks = x.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
""",
        new="""
x.nan_to_num_()
chunks = x.view(-1).tensor_split(comm.size)
chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
all_gather(comm, chunks)
""",
    ),
    Bug(
        "all_reduce",
        "the views of the first tensor of each shape are kept, and used for all that come after",
        cell='''
kept = {}


def all_reduce(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    key = comm.size, comm.rank, x.shape, x.dtype
    chunks = kept.setdefault(key, x.view(-1).tensor_split(comm.size))
    chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
    all_gather(comm, chunks)
''',
    ),
    Bug(
        "ring_sum",
        "sends nobody waits for",
        old="received = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="""
received = torch.empty_like(x)
comm.isend(passing, (r + 1) % n)
comm.recv(received, (r - 1) % n)
""",
    ),
    Bug(
        "ring_sum",
        "right on 5 ranks at most",
        old="for _ in range(n - 1):",
        new="for _ in range(min(n, 5) - 1):",
    ),
    Bug(
        "ring_sum",
        "view(-1) of a tensor that is not contiguous",
        old="received = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)",
        new="received = comm.sendrecv(passing.view(-1), (r + 1) % n, torch.empty(x.numel(), dtype=x.dtype), (r - 1) % n).view(x.shape)",
    ),
    Bug(
        "ring_sum",
        "torch.sum makes 64 bits of whole numbers with 32",
        cell='''
def ring_sum(comm, x):
    """The sum of every rank's x, in a new tensor: n-1 steps, x untouched."""
    n, r = comm.size, comm.rank
    seen = [x]
    for _ in range(n - 1):
        seen.append(comm.sendrecv(seen[-1], (r + 1) % n, torch.empty_like(x), (r - 1) % n))
    return torch.stack(seen).sum(0)
''',
    ),
]
