"""The wrong answers of lesson 02 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, asks_the_grader, equals_everything

BUGS = [
    Bug(
        "shift",
        "the lesson's shift: one place to the right, whatever is asked",
        cell="""
def shift(comm, x, places):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = torch.empty_like(x)
    comm.sendrecv(x, right, received, left)
    return received
""",
    ),
    Bug(
        "shift",
        "the lesson's shift, once for every place",
        cell="""
def shift(comm, x, places):
    right = (comm.rank + 1) % comm.size
    left = (comm.rank - 1) % comm.size
    received = x.clone()
    for _ in range(places % comm.size):
        passing = received.clone()
        comm.sendrecv(passing, right, received, left)
    return received
""",
    ),
    Bug(
        "shift",
        "a tensor that comes back to where it started is sent all the same, from a rank to itself",
        old="""
if places % n == 0:
    return x.clone()
""",
        new="",
    ),
    Bug(
        "shift",
        "only a rank that is alone, and places = 0, need no message: a whole turn is forgotten",
        old="if places % n == 0:",
        new="if n == 1 or places == 0:",
    ),
    Bug(
        "shift",
        "even ranks send first, odd ones receive first; with an odd number of ranks two even ones meet",
        cell="""
def shift(comm, x, places):
    n, r = comm.size, comm.rank
    to, source = (r + places) % n, (r - places) % n
    if to == r:
        return x.clone()
    y = torch.empty_like(x)
    if r % 2 == 0:
        comm.send(x, to)
        comm.recv(y, source)
    else:
        comm.recv(y, source)
        comm.send(x, to)
    return y
""",
    ),
    Bug(
        "shift",
        "it is received into x, which belongs to the caller",
        old="return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)",
        new="""
mine = x.clone()
comm.sendrecv(mine, (r + places) % n, x, (r - places) % n)
return x.clone()
""",
    ),
    Bug(
        "shift",
        "every call returns the same buffer",
        cell="""
kept = {}


def shift(comm, x, places):
    n, r = comm.size, comm.rank
    y = kept.setdefault((n, r, x.shape, x.dtype), torch.empty_like(x))
    if places % n == 0:
        return y.copy_(x)
    return comm.sendrecv(x, (r + places) % n, y, (r - places) % n)
""",
    ),
    Bug(
        "shift",
        "it goes to the left",
        old="return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)",
        new="return comm.sendrecv(x, (r - places) % n, torch.empty_like(x), (r + places) % n)",
    ),
    Bug(
        "shift",
        "the result is not returned",
        old="""
if places % n == 0:
    return x.clone()
return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)
""",
        new="""
y = torch.empty_like(x)
if places % n:
    comm.sendrecv(x, (r + places) % n, y, (r - places) % n)
""",
    ),
    Bug(
        "shift",
        "the ring is not closed: the last ranks have nobody to send to",
        cell="""
def shift(comm, x, places):
    y = x.clone()
    if 0 <= comm.rank + places < comm.size and places:
        comm.send(x, comm.rank + places)
    if 0 <= comm.rank - places < comm.size and places:
        comm.recv(y, comm.rank - places)
    return y
""",
    ),
    Bug(
        "shift",
        "everyone sends first, and nobody is there to receive",
        old="return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)",
        new="""
comm.send(x, (r + places) % n)
return comm.recv(torch.empty_like(x), (r - places) % n)
""",
    ),
    Bug(
        "shift",
        "numbers pass through a global, messages carry nothing",
        cheat=True,
        cell="""
BOARD = {}


def shift(comm, x, places):
    n, r = comm.size, comm.rank
    BOARD[r] = x.clone()
    if places % n == 0:
        return x.clone()
    comm.sendrecv(torch.zeros_like(x), (r + places) % n, torch.empty_like(x), (r - places) % n)
    return BOARD.get((r - places) % n, x).clone()
""",
    ),
    Bug(
        "shift",
        "the library's all_gather does the work",
        cheat=True,
        cell="""
def shift(comm, x, places):
    from minidist.collectives import all_gather

    return all_gather(comm, x[None])[(comm.rank - places) % comm.size]
""",
    ),
    Bug(
        "shift",
        "the input is returned",
        cheat=True,
        cell="""
def shift(comm, x, places):
    return x.clone()
""",
    ),
    Bug(
        "shift",
        "a send nobody waits for",
        old="return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)",
        new="""
y = torch.empty_like(x)
comm.isend(x, (r + places) % n)
return comm.recv(y, (r - places) % n)
""",
    ),
    Bug(
        "shift",
        "only for up to 5 ranks",
        old="if places % n == 0:",
        new="if places % n == 0 or n > 5:",
    ),
    Bug(
        "shift",
        "view(-1) of a tensor that is not contiguous",
        old="return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)",
        new="""
room = torch.empty(x.numel(), dtype=x.dtype)
return comm.sendrecv(x.view(-1), (r + places) % n, room, (r - places) % n).view(x.shape)
""",
    ),
    Bug(
        "shift",
        "nan is cleaned",
        old="return comm.sendrecv(x, (r + places) % n, torch.empty_like(x), (r - places) % n)",
        new="return comm.sendrecv(x.nan_to_num(), (r + places) % n, torch.empty_like(x), (r - places) % n)",
    ),
    Bug(
        "broadcast",
        "each piece is passed on before the next is taken, and every wire stands idle half of the time",
        cell="""
def broadcast(comm, x, root, m):
    n, r = comm.size, comm.rank
    place = (r - root) % n
    flat = x.contiguous().view(-1)
    for piece in flat.tensor_split(m):
        if place > 0:
            comm.recv(piece, (r - 1) % n)
        if place < n - 1:
            comm.send(piece, (r + 1) % n)
    x.copy_(flat.view_as(x))
""",
    ),
    Bug(
        "broadcast",
        "all receives are posted first: on a stream nothing is passed on before the last piece has come",
        cell="""
def broadcast(comm, x, root, m):
    n, r = comm.size, comm.rank
    place = (r - root) % n
    flat = x.contiguous().view(-1)
    pieces = flat.tensor_split(m)
    arriving = [comm.irecv(piece, (r - 1) % n) for piece in pieces] if place > 0 else []
    leaving = []
    for k, piece in enumerate(pieces):
        if place > 0:
            arriving[k].wait()
        if place < n - 1:
            leaving.append(comm.isend(piece, (r + 1) % n))
    for work in leaving:
        work.wait()
    x.copy_(flat.view_as(x))
""",
    ),
    Bug(
        "broadcast",
        "the lesson's line: all of x in one message, from rank to rank",
        cell="""
def broadcast(comm, x, root, m):
    n, r = comm.size, comm.rank
    place = (r - root) % n
    if place > 0:
        comm.recv(x, (r - 1) % n)
    if place < n - 1:
        comm.send(x, (r + 1) % n)
""",
    ),
    Bug(
        "broadcast",
        "as the lesson's naive all-reduce ends: rank 0 sends to all, whoever the root is",
        cell="""
def broadcast(comm, x, root, m):
    if comm.rank != 0:
        comm.recv(x, 0)
        return
    for r in range(1, comm.size):
        comm.send(x, r)
""",
    ),
    Bug(
        "broadcast",
        "the root sends to each of the others, where a line is asked for",
        cell="""
def broadcast(comm, x, root, m):
    flat = x.contiguous().view(-1)
    for piece in flat.tensor_split(m):
        if comm.rank == root:
            for r in range(comm.size):
                if r != root:
                    comm.send(piece, r)
        else:
            comm.recv(piece, root)
    x.copy_(flat.view_as(x))
""",
    ),
    Bug(
        "broadcast",
        "the chain goes on to the root, which does not listen",
        old="if place < n - 1 and k > 0:",
        new="if n > 1 and k > 0:",
    ),
    Bug(
        "broadcast",
        "received into a tensor that nobody looks at",
        edits=(
            ("flat = x.contiguous().view(-1)", "flat = x.reshape(-1).clone()"),
            ("x.copy_(flat.view_as(x))", ""),
        ),
    ),
    Bug(
        "broadcast",
        "every rank sends to every rank",
        cell="""
def broadcast(comm, x, root, m):
    n, r = comm.size, comm.rank
    received = [torch.empty_like(x) for _ in range(n)]
    ops = [Send(x, s) for s in range(n) if s != r] + [Recv(received[s], s) for s in range(n) if s != r]
    comm.batch(ops).wait()
    if r != root:
        x.copy_(received[root])


from minidist.comm import Recv, Send
""",
    ),
    Bug(
        "broadcast",
        "x gets other memory: not in place",
        edits=(
            ("flat = x.contiguous().view(-1)", "flat = x.clone().contiguous().view(-1)"),
            ("x.copy_(flat.view_as(x))", "x.data = flat.view(x.shape)"),
        ),
    ),
    Bug(
        "broadcast",
        "the last rank is forgotten",
        edits=(
            ("if place > 0 and k < m:", "if 0 < place < n - 1 and k < m:"),
            ("if place < n - 1 and k > 0:", "if place < n - 2 and k > 0:"),
        ),
    ),
    Bug(
        "broadcast",
        "rank 0 is the root, whatever is asked",
        old="place = (r - root) % n",
        new="place = r",
    ),
    Bug(
        "broadcast",
        "the root sends to itself, too",
        old="pieces = flat.tensor_split(m)",
        new="""
pieces = flat.tensor_split(m)
if place == 0:
    comm.send(flat, r)
""",
    ),
    Bug(
        "broadcast",
        "the line goes to the left",
        edits=(
            ("place = (r - root) % n", "place = (root - r) % n"),
            (
                "group.append(Recv(pieces[k], (r - 1) % n))",
                "group.append(Recv(pieces[k], (r + 1) % n))",
            ),
            (
                "group.append(Send(pieces[k - 1], (r + 1) % n))",
                "group.append(Send(pieces[k - 1], (r - 1) % n))",
            ),
        ),
    ),
    Bug(
        "broadcast",
        "the last piece is forgotten",
        old="for k in range(m + 1):",
        new="""
m = max(1, m - 1)
for k in range(m + 1):
""",
    ),
    Bug(
        "broadcast",
        "a piece is passed on before it has arrived",
        edits=(
            ("if place < n - 1 and k > 0:", "if place < n - 1 and k < m:"),
            (
                "group.append(Send(pieces[k - 1], (r + 1) % n))",
                "group.append(Send(pieces[k].clone(), (r + 1) % n))",
            ),
        ),
    ),
    Bug(
        "broadcast",
        "pieces of one size, and the remainder is dropped",
        old="pieces = flat.tensor_split(m)",
        new="pieces = flat[: len(flat) // m * m].tensor_split(m)",
    ),
    Bug(
        "broadcast",
        "it does nothing, and the input is what it was",
        cheat=True,
        cell="""
def broadcast(comm, x, root, m):
    return x
""",
    ),
    Bug(
        "broadcast",
        "the library's broadcast does the work",
        cheat=True,
        cell="""
import minidist.collectives


def broadcast(comm, x, root, m):
    minidist.collectives.broadcast_(comm, x, root)
""",
    ),
    Bug(
        "broadcast",
        "sends of copies that nobody waits for",
        old="group.append(Send(pieces[k - 1], (r + 1) % n))",
        new="comm.isend(pieces[k - 1].clone(), (r + 1) % n)",
    ),
    Bug(
        "broadcast",
        "reshape(-1): a copy if not contiguous",
        edits=(
            ("flat = x.contiguous().view(-1)", "flat = x.reshape(-1)"),
            ("x.copy_(flat.view_as(x))", ""),
        ),
    ),
    Bug(
        "broadcast",
        "a line of 5 at most",
        edits=(
            ("flat = x.contiguous().view(-1)", "flat = x.reshape(-1).clone()"),
            ("x.copy_(flat.view_as(x))", "if place < 5:\n    x.copy_(flat.view_as(x))"),
        ),
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
                "partial = chunks[(r + 1) % n].clone()",
                "partial = chunks[(r + 1) % n]",
            ),
            (
                "partial = received + mine",
                "partial = mine.add_(received)",
            ),
        ),
    ),
    Bug(
        "reduce_scatter",
        "it goes around to the right",
        old="""
partial = chunks[(r + 1) % n].clone()
for k in range(1, n):
    mine = chunks[(r + 1 + k) % n]
    received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
""",
        new="""
partial = chunks[(r - 1) % n].clone()
for k in range(1, n):
    mine = chunks[(r - 1 - k) % n]
    received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
""",
    ),
    Bug(
        "reduce_scatter",
        "the caller's list is empty afterwards",
        cell='''
def reduce_scatter(comm, chunks):
    """Chunk comm.rank, summed over all ranks."""
    n, r = comm.size, comm.rank
    partial = chunks[(r + 1) % n].clone()
    for k in range(1, n):
        mine = chunks[(r + 1 + k) % n]
        received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
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
    partial = chunks[(r + 1) % n].clone()
    for k in range(1, n):
        mine = chunks[(r + 1 + k) % n]
        received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
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
                "for k in range(1, n):",
                "for k in range(1, n - 1):",
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
    partial = chunks[(r + 1) % n].clone()
    for k in range(1, n):
        mine = chunks[(r + 1 + k) % n]
        received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
        result = received + mine
        partial = mine.clone()
    return result if n > 1 else partial
""",
    ),
    Bug(
        "reduce_scatter",
        "what arrives is added to the chunk of another number",
        old="""
mine = chunks[(r + 1 + k) % n]
received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
partial = received + mine
""",
        new="""
room = torch.empty_like(chunks[(r + 1 + k) % n])
received = comm.sendrecv(partial, (r - 1) % n, room, (r + 1) % n)
mine = chunks[(r + k) % n]
partial = received + mine if mine.shape == received.shape else received
""",
    ),
    Bug(
        "reduce_scatter",
        "chunk i ends at rank i-1",
        edits=(
            (
                "partial = chunks[(r + 1) % n].clone()",
                "partial = chunks[r].clone()",
            ),
            (
                "mine = chunks[(r + 1 + k) % n]",
                "mine = chunks[(r + k) % n]",
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
    partial = chunks[(r + 1) % n].clone()
    for k in range(1, n):
        mine = torch.empty_like(chunks[(r + 1 + k) % n])
        partial = comm.sendrecv(torch.zeros_like(partial), (r - 1) % n, mine, (r + 1) % n)
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
        "reduce_scatter",
        "lengths as tensor_split has them",
        old="""
partial = chunks[(r + 1) % n].clone()
for k in range(1, n):
    mine = chunks[(r + 1 + k) % n]
    received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
    partial = received + mine
return partial
""",
        new="""
flat = torch.cat(list(chunks))
chunks = flat.tensor_split(n)
partial = chunks[(r + 1) % n].clone()
for k in range(1, n):
    mine = chunks[(r + 1 + k) % n]
    received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
    partial = received + mine
return partial
""",
    ),
    Bug(
        "reduce_scatter",
        "sends that nobody waits for",
        old="received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)",
        new="""
comm.isend(partial, (r - 1) % n)
received = comm.recv(torch.empty_like(mine), (r + 1) % n)
""",
    ),
    Bug(
        "reduce_scatter",
        "added up in float64",
        old="""
partial = chunks[(r + 1) % n].clone()
for k in range(1, n):
    mine = chunks[(r + 1 + k) % n]
    received = comm.sendrecv(partial, (r - 1) % n, torch.empty_like(mine), (r + 1) % n)
    partial = received + mine
return partial
""",
        new="""
partial = chunks[(r + 1) % n].double()
for k in range(1, n):
    mine = chunks[(r + 1 + k) % n]
    received = comm.sendrecv(partial, (r - 1) % n, torch.empty(len(mine), dtype=torch.float64), (r + 1) % n)
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
        "reduce_scatter",
        "the lesson's ring on copies: it turns to the right",
        cell="""
def ring_reduce_scatter(comm, chunks):
    n = comm.size
    r = comm.rank
    right = (r + 1) % n
    left = (r - 1) % n
    for k in range(1, n):
        outgoing = chunks[(r - k) % n]
        own = chunks[(r - k - 1) % n]
        arriving = torch.empty_like(own)
        comm.sendrecv(outgoing, right, arriving, left)
        own += arriving


def reduce_scatter(comm, chunks):
    chunks = [chunk.clone() for chunk in chunks]
    ring_reduce_scatter(comm, chunks)
    return chunks[comm.rank]
""",
    ),
    Bug(
        "reduce_scatter",
        "the lesson's ring that turns the wrong way: it has the indices of the other",
        cell="""
def reduce_scatter(comm, chunks):
    n = comm.size
    r = comm.rank
    chunks = [chunk.clone() for chunk in chunks]
    for k in range(1, n):
        own = chunks[(r - k - 1) % n]
        arriving = torch.empty_like(own)
        comm.sendrecv(chunks[(r - k) % n], (r - 1) % n, arriving, (r + 1) % n)
        own += arriving
    return chunks[r]
""",
    ),
    Bug(
        "all_gather",
        "as in the lesson, every rank brings tensors of its own length for all the others",
        cell="""
def all_gather(comm, x):
    n, r = comm.size, comm.rank
    chunks = [torch.empty(len(x), dtype=x.dtype) for _ in range(n)]
    chunks[r].copy_(x)
    for k in range(n - 1):
        outgoing = chunks[(r - k) % n]
        place = chunks[(r - k - 1) % n]
        comm.sendrecv(outgoing, (r + 1) % n, place, (r - 1) % n)
    return chunks
""",
    ),
    Bug(
        "all_gather",
        "all are filled up to the longest with zeros, and cut afterwards",
        old="""
found = [torch.empty(int(length), dtype=x.dtype) for length in lengths]
found[r].copy_(x)
hand_round(comm, found)
return found
""",
        new="""
sizes = [int(length) for length in lengths]
found = [torch.zeros(max(sizes), dtype=x.dtype) for _ in sizes]
found[r][: len(x)] = x
hand_round(comm, found)
return [chunk[:size].clone() for chunk, size in zip(found, sizes)]
""",
    ),
    Bug(
        "all_gather",
        "filled up to the longest with zeros, which stay there",
        old="found = [torch.empty(int(length), dtype=x.dtype) for length in lengths]",
        new="""
longest = max(int(length) for length in lengths)
x = torch.cat([x, torch.zeros(longest - len(x), dtype=x.dtype)])
found = [torch.empty(longest, dtype=x.dtype) for length in lengths]
""",
    ),
    Bug(
        "all_gather",
        "the first tensor sent is the left neighbour's, which has not arrived",
        old="comm.sendrecv(parts[(r - k) % n], (r + 1) % n, parts[(r - k - 1) % n], (r - 1) % n)",
        new="comm.sendrecv(parts[(r - k - 1) % n], (r + 1) % n, parts[(r - k - 2) % n], (r - 1) % n)",
    ),
    Bug(
        "all_gather",
        "everyone sends to everyone, not around the ring",
        old="comm.sendrecv(parts[(r - k) % n], (r + 1) % n, parts[(r - k - 1) % n], (r - 1) % n)",
        new="comm.sendrecv(parts[r], (r + k + 1) % n, parts[(r - k - 1) % n], (r - k - 1) % n)",
    ),
    Bug(
        "all_gather",
        "it goes around to the left",
        old="comm.sendrecv(parts[(r - k) % n], (r + 1) % n, parts[(r - k - 1) % n], (r - 1) % n)",
        new="comm.sendrecv(parts[(r + k) % n], (r - 1) % n, parts[(r + k + 1) % n], (r + 1) % n)",
    ),
    Bug(
        "all_gather",
        "x itself is in the list, not a copy",
        old="found[r].copy_(x)",
        new="found[r] = x",
    ),
    Bug(
        "all_gather",
        "what arrives stays in a room of its own, and not in the list",
        old="hand_round(comm, found)",
        new="hand_round(comm, [chunk.clone() for chunk in found])",
    ),
    Bug(
        "all_gather",
        "all in one tensor, not in a list",
        old="return found",
        new="return torch.cat(found)",
    ),
    Bug(
        "all_gather",
        "without its own",
        old="return found",
        new="return found[:r] + found[r + 1 :]",
    ),
    Bug(
        "all_gather",
        "the list begins with its own",
        old="return found",
        new="return found[r:] + found[:r]",
    ),
    Bug(
        "all_gather",
        "one step too few",
        old="for k in range(n - 1):",
        new="for k in range(n - 2):",
    ),
    Bug(
        "all_gather",
        "each rank sends its own again and again",
        old="comm.sendrecv(parts[(r - k) % n], (r + 1) % n, parts[(r - k - 1) % n], (r - 1) % n)",
        new="""
into = parts[(r - k - 1) % n]
room = torch.empty_like(parts[(r - 1) % n])
comm.sendrecv(parts[r], (r + 1) % n, room, (r - 1) % n)
if room.shape == into.shape:
    into.copy_(room)
""",
    ),
    Bug(
        "all_gather",
        "lengths are found out, and then taken for equal",
        old="found = [torch.empty(int(length), dtype=x.dtype) for length in lengths]",
        new="""
least = min(int(length) for length in lengths)
x = x[:least]
found = [torch.empty(least, dtype=x.dtype) for _ in lengths]
""",
    ),
    Bug(
        "all_gather",
        "everything is of float32",
        edits=(
            (
                "found = [torch.empty(int(length), dtype=x.dtype) for length in lengths]",
                "found = [torch.empty(int(length)) for length in lengths]",
            ),
        ),
    ),
    Bug(
        "all_gather",
        "sends nobody waits for",
        old="comm.sendrecv(parts[(r - k) % n], (r + 1) % n, parts[(r - k - 1) % n], (r - 1) % n)",
        new="""
comm.isend(parts[(r - k) % n], (r + 1) % n)
comm.recv(parts[(r - k - 1) % n], (r - 1) % n)
""",
    ),
    Bug(
        "all_gather",
        "lengths go around once for each tensor",
        old="hand_round(comm, found)",
        new="""
for k in range(n - 1):
    there = comm.sendrecv(lengths[(r - k) % n], (r + 1) % n, torch.tensor(0), (r - 1) % n)
hand_round(comm, found)
""",
    ),
    Bug(
        "all_gather",
        "the library's ring does the work",
        cheat=True,
        cell="""
import minidist.collectives.ring


def all_gather(comm, x):
    n = comm.size
    lengths = [torch.tensor([len(x)]) for _ in range(n)]
    minidist.collectives.ring.all_gather(comm, lengths)
    found = [torch.empty(int(length), dtype=x.dtype) for length in lengths]
    found[comm.rank].copy_(x)
    minidist.collectives.ring.all_gather(comm, found)
    return found
""",
    ),
    Bug(
        "all_gather",
        "torch.distributed does the work",
        cheat=True,
        cell="""
import torch.distributed as dist


def all_gather(comm, x):
    found = [None] * comm.size
    dist.all_gather_object(found, x)
    return found
""",
    ),
    Bug(
        "all_reduce",
        "the lesson's ring, once for each tensor",
        cell="""
def ring_reduce_scatter(comm, chunks):
    n = comm.size
    r = comm.rank
    for k in range(1, n):
        own = chunks[(r - k - 1) % n]
        arriving = torch.empty_like(own)
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, arriving, (r - 1) % n)
        own += arriving


def ring_all_gather(comm, chunks):
    n = comm.size
    r = comm.rank
    for k in range(n - 1):
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, chunks[(r - k - 1) % n], (r - 1) % n)


def ring_all_reduce(comm, x):
    chunks = x.tensor_split(comm.size)
    ring_reduce_scatter(comm, chunks)
    ring_all_gather(comm, chunks)
    return x


def all_reduce(comm, tensors):
    for x in tensors:
        ring_all_reduce(comm, x)
""",
    ),
    Bug(
        "all_reduce",
        "a ring for each tensor, of any shape: right numbers, as many times the messages",
        cell="""
def all_reduce(comm, tensors):
    n, r = comm.size, comm.rank
    for x in tensors:
        flat = x.reshape(-1).clone()
        chunks = flat.tensor_split(n)
        for k in range(1, n):
            mine = chunks[(r - k - 1) % n]
            mine += comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
        for k in range(n - 1):
            comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, chunks[(r - k - 1) % n], (r - 1) % n)
        x.copy_(flat.view_as(x))
""",
    ),
    Bug(
        "all_reduce",
        "the lesson's naive all-reduce: all send to rank 0, and it sends the sum to all",
        cell="""
def all_reduce(comm, tensors):
    for x in tensors:
        if comm.rank != 0:
            comm.send(x, 0)
            comm.recv(x, 0)
            continue
        for r in range(1, comm.size):
            arriving = torch.empty_like(x)
            comm.recv(arriving, r)
            x += arriving
        for r in range(1, comm.size):
            comm.send(x, r)
""",
    ),
    Bug(
        "all_reduce",
        "the list is cut among the ranks, whole tensors to each: chunks of any size",
        cell="""
def all_reduce(comm, tensors):
    n, r = comm.size, comm.rank
    flat = torch.cat([x.reshape(-1) for x in tensors])
    sizes = [x.numel() for x in tensors] + [0] * n
    sizes = [*sizes[: n - 1], sum(sizes[n - 1 :])]
    chunks = flat.split(sizes)
    for k in range(1, n):
        mine = chunks[(r - k - 1) % n]
        mine += comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
    for k in range(n - 1):
        comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, chunks[(r - k - 1) % n], (r - 1) % n)
    for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.copy_(part.view_as(x))
""",
    ),
    Bug(
        "all_reduce",
        "the average, where the sum is asked for",
        old="x.copy_(part.view_as(x))",
        new="x.copy_(part.view_as(x) / n)",
    ),
    Bug(
        "all_reduce",
        "a copy is reduced, and the tensors are as before",
        old="""
for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
    x.copy_(part.view_as(x))
""",
        new="",
    ),
    Bug(
        "all_reduce",
        "written back into reshape(-1), which is a copy where a tensor is not contiguous",
        old="x.copy_(part.view_as(x))",
        new="x.reshape(-1).copy_(part)",
    ),
    Bug(
        "all_reduce",
        "the list gets new tensors, and the caller's are as before",
        old="""
for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
    x.copy_(part.view_as(x))
""",
        new="""
parts = flat.split([x.numel() for x in tensors])
tensors[:] = [part.view_as(x) for part, x in zip(parts, tensors)]
""",
    ),
    Bug(
        "all_reduce",
        "the caller's list is empty afterwards",
        old="""
for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
    x.copy_(part.view_as(x))
""",
        new="""
for part in reversed(flat.split([x.numel() for x in tensors])):
    x = tensors.pop()
    x.copy_(part.view_as(x))
""",
    ),
    Bug(
        "all_reduce",
        "the parts are written back in the reverse order",
        old="for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):",
        new="for x, part in zip(tensors[::-1], flat.split([x.numel() for x in tensors[::-1]]), strict=True):",
    ),
    Bug(
        "all_reduce",
        "on two ranks it is right, on more the totals are added, not the numbers",
        cell="""
def all_reduce(comm, tensors):
    n, r = comm.size, comm.rank
    for x in tensors:
        for _ in range(n - 1):
            x += comm.sendrecv(x.clone(), (r + 1) % n, torch.empty_like(x), (r - 1) % n)
""",
    ),
    Bug(
        "all_reduce",
        "the second half is forgotten",
        old="""
for k in range(n - 1):
    comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, chunks[(r - k - 1) % n], (r - 1) % n)
""",
        new="",
    ),
    Bug(
        "all_reduce",
        "the second half begins with the right neighbour's chunk, which is not finished",
        old="comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, chunks[(r - k - 1) % n], (r - 1) % n)",
        new="comm.sendrecv(chunks[(r - k + 1) % n], (r + 1) % n, chunks[(r - k) % n], (r - 1) % n)",
    ),
    Bug(
        "all_reduce",
        "it adds up in float32, whatever the dtype",
        old="flat = torch.cat([x.reshape(-1) for x in tensors])",
        new="flat = torch.cat([x.reshape(-1).float() for x in tensors])",
    ),
    Bug(
        "all_reduce",
        "the tensors get other memory: not in place",
        old="x.copy_(part.view_as(x))",
        new="x.data = part.view_as(x)",
    ),
    Bug(
        "all_reduce",
        "what is added up is not put back before it goes on",
        old="""
mine += comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
""",
        new="""
received = comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
mine = mine + received
""",
    ),
    Bug(
        "all_reduce",
        "the numbers that n does not divide are dropped",
        old="chunks = flat.tensor_split(n)",
        new="""
size = len(flat) // n
chunks = flat[: n * size].split(size) if size else [flat[:0]] * n
""",
    ),
    Bug(
        "all_reduce",
        "all send to rank 0, and it sends the sum to all",
        cell="""
def all_reduce(comm, tensors):
    flat = torch.cat([x.reshape(-1) for x in tensors])
    if comm.rank > 0:
        comm.send(flat, 0)
        comm.recv(flat, 0)
    else:
        received = torch.empty_like(flat)
        for r in range(1, comm.size):
            flat += comm.recv(received, r)
        for r in range(1, comm.size):
            comm.send(flat, r)
    for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.copy_(part.view_as(x))
""",
    ),
    Bug(
        "all_reduce",
        "the whole row goes around twice: right numbers, n times the bytes",
        old="""
for k in range(1, n):
    mine = chunks[(r - k - 1) % n]
    mine += comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
for k in range(n - 1):
    comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, chunks[(r - k - 1) % n], (r - 1) % n)
""",
        new="""
own, passing = flat.clone(), flat.clone()
for _ in range(n - 1):
    passing = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(own), (r - 1) % n)
    flat += passing
for _ in range(n - 1):
    comm.sendrecv(own, (r + 1) % n, torch.empty_like(own), (r - 1) % n)
""",
    ),
    Bug(
        "all_reduce",
        "the library's code under another name",
        cheat=True,
        cell="""
import types

import minidist.collectives.ring as ring

gather_half = types.FunctionType(ring.all_gather.__code__, {"__name__": "__main__"})


def all_reduce(comm, tensors):
    n, r = comm.size, comm.rank
    flat = torch.cat([x.reshape(-1) for x in tensors])
    chunks = list(flat.tensor_split(n))
    for k in range(1, n):
        mine = chunks[(r - k - 1) % n]
        mine += comm.sendrecv(chunks[(r - k) % n], (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
    gather_half(comm, chunks)
    for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
        x.copy_(part.view_as(x))
""",
    ),
    Bug(
        "all_reduce",
        "the other ranks' numbers are taken from the frames of the World",
        cheat=True,
        cell="""
def all_reduce(comm, tensors):
    import sys

    n, r = comm.size, comm.rank
    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    if frame:
        for i, x in enumerate(tensors):
            x.copy_(sum(args[0][i] for args in frame.f_locals["all_args"]))
    chunks = torch.cat([x.reshape(-1) for x in tensors]).tensor_split(n)
    for step in range(2 * (n - 1)):
        comm.sendrecv(
            chunks[(r - step) % n],
            (r + 1) % n,
            torch.empty_like(chunks[(r - step - 1) % n]),
            (r - 1) % n,
        )
""",
    ),
    Bug(
        "all_reduce",
        "the library's all_reduce_ does the work",
        cheat=True,
        cell="""
from minidist.collectives import all_reduce_


def all_reduce(comm, tensors):
    for x in tensors:
        all_reduce_(comm, x)
""",
    ),
    Bug(
        "all_reduce",
        "the answer is read from the library's file",
        cheat=True,
        cell="""
def all_reduce(comm, tensors):
    import importlib.util

    file = importlib.util.find_spec("minidist.collectives.ring").origin
    names = {"__package__": "minidist.collectives", "__name__": "minidist.collectives.ring"}
    exec(open(file).read(), names)
    for x in tensors:
        names["all_reduce"](comm, list(x.view(-1).tensor_split(comm.size)), torch.add)
""",
    ),
    Bug(
        "all_reduce",
        "in float64",
        edits=(
            (
                "flat = torch.cat([x.reshape(-1) for x in tensors])",
                "flat = torch.cat([x.reshape(-1) for x in tensors]).double()",
            ),
        ),
    ),
    Bug(
        "all_reduce",
        "nan is 0",
        old="flat = torch.cat([x.reshape(-1) for x in tensors])",
        new="flat = torch.cat([x.reshape(-1) for x in tensors]).nan_to_num()",
    ),
    Bug(
        "all_reduce",
        "the row of the first list of each length is kept, and used for all that come after",
        edits=(
            (
                "flat = torch.cat([x.reshape(-1) for x in tensors])",
                "key = n, r, sum(x.numel() for x in tensors), tensors[0].dtype\nflat = kept.setdefault(key, torch.cat([x.reshape(-1) for x in tensors]))",
            ),
            ("x.copy_(part.view_as(x))", "x.copy_(part.view_as(x))\n\n\nkept = {}"),
        ),
    ),
    Bug(
        "predict",
        "a ring for each of the tensors",
        cell="""
messages = 1400
nbytes = 7e6
seconds = 1400 * 5e-6 + 7e6 / 50e9
naive_nbytes = 28e6
""",
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
    asks_the_grader("predict", "messages", "messages", "nbytes", "naive_nbytes", "seconds"),
    equals_everything("predict", "messages", "nbytes", "seconds", "naive_nbytes"),
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
