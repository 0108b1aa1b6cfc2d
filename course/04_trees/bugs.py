"""The wrong answers of lesson 04 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, asks_the_grader, equals_everything

BUGS = [
    Bug(
        "tree_broadcast",
        "a chain: everyone passes it on once",
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    n, place = comm.size, (comm.rank - root) % comm.size
    if place > 0:
        comm.recv(x, (comm.rank - 1) % n)
    if place < n - 1:
        comm.send(x, (comm.rank + 1) % n)
''',
    ),
    Bug(
        "tree_broadcast",
        "in every round everyone sends, those without the numbers too",
        old="""
if place < reach and place + reach < n:
    comm.send(x, (root + place + reach) % n)
elif reach <= place < 2 * reach:
    comm.recv(x, (root + place - reach) % n)
""",
        new="""
got = comm.sendrecv(x, (comm.rank + reach) % n, torch.empty_like(x), (comm.rank - reach) % n)
if reach <= place < 2 * reach:
    x.copy_(got)
""",
    ),
    Bug(
        "tree_broadcast",
        "also those send that have nothing yet",
        old="""
if place < reach and place + reach < n:
    comm.send(x, (root + place + reach) % n)
elif reach <= place < 2 * reach:
    comm.recv(x, (root + place - reach) % n)
""",
        new="""
comm.send(x, (root + place + reach) % n)
comm.recv(x, (root + place - reach) % n)
""",
    ),
    Bug(
        "tree_broadcast",
        "the nearest child is served first, the one with the largest part of the tree last",
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    n, place = comm.size, (comm.rank - root) % comm.size
    low = place & -place if place else 1 << (n - 1).bit_length()
    if place:
        comm.recv(x, (root + place - low) % n)
    distance = 1
    while distance < low:
        if place + distance < n:
            comm.send(x, (root + place + distance) % n)
        distance *= 2
''',
    ),
    Bug(
        "tree_broadcast",
        "everyone receives from the root, whoever sends",
        old="comm.recv(x, (root + place - reach) % n)",
        new="comm.recv(x, root)",
    ),
    Bug(
        "tree_broadcast",
        "what arrives goes into a new tensor, not into x",
        old="comm.recv(x, (root + place - reach) % n)",
        new="x = comm.recv(torch.empty_like(x), (root + place - reach) % n)",
    ),
    Bug(
        "tree_broadcast",
        "x gets other memory: not in place",
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    n = comm.size
    place = (comm.rank - root) % comm.size
    reach = 1
    y = x.clone()
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(y, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            comm.recv(y, (root + place - reach) % n)
        reach *= 2
    x.data = y
''',
    ),
    Bug(
        "tree_broadcast",
        "root + place is not taken modulo n",
        edits=(
            (
                "comm.send(x, (root + place + reach) % n)",
                "comm.send(x, root + place + reach)",
            ),
            (
                "comm.recv(x, (root + place - reach) % n)",
                "comm.recv(x, root + place - reach)",
            ),
        ),
    ),
    Bug(
        "tree_broadcast",
        "the number of rounds is rounded down",
        edits=(
            (
                """
n = comm.size
place = (comm.rank - root) % comm.size
reach = 1
while reach < n:
""",
                """
n, place = comm.size, (comm.rank - root) % comm.size
for k in range(int(math.log2(n))):
    reach = 2**k
""",
            ),
            ("reach *= 2", ""),
        ),
    ),
    Bug(
        "tree_broadcast",
        "places are used as ranks: the root is not added again",
        edits=(
            (
                "comm.send(x, (root + place + reach) % n)",
                "comm.send(x, place + reach)",
            ),
            (
                "comm.recv(x, (root + place - reach) % n)",
                "comm.recv(x, place - reach)",
            ),
        ),
    ),
    Bug(
        "tree_broadcast",
        "right for powers of two only: the last round sends to ranks that do not exist",
        old="if place < reach and place + reach < n:",
        new="if place < reach:",
    ),
    Bug(
        "tree_broadcast",
        "the root sends to everyone itself",
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.send(x, r)
    else:
        comm.recv(x, root)
''',
    ),
    Bug(
        "tree_broadcast",
        "the tree always grows from rank 0",
        old="""
place = (comm.rank - root) % comm.size
reach = 1
while reach < n:
    if place < reach and place + reach < n:
        comm.send(x, (root + place + reach) % n)
    elif reach <= place < 2 * reach:
        comm.recv(x, (root + place - reach) % n)
""",
        new="""
place = comm.rank
reach = 1
while reach < n:
    if place < reach and place + reach < n:
        comm.send(x, place + reach)
    elif reach <= place < 2 * reach:
        comm.recv(x, place - reach)
""",
    ),
    Bug(
        "tree_broadcast",
        "x is dealt out in pieces and gathered by everyone",
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    n, r = comm.size, comm.rank
    pieces = x.view(-1).tensor_split(n)
    for other in range(n):
        if other != root and r == root:
            comm.send(pieces[other], other)
        elif other == r != root:
            comm.recv(pieces[other], root)
    for step in range(n - 1):
        comm.sendrecv(pieces[(r - step) % n], (r + 1) % n, pieces[(r - step - 1) % n], (r - 1) % n)
''',
    ),
    Bug(
        "tree_broadcast",
        "a binary tree: everyone sends twice and is idle then",
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    n, place = comm.size, (comm.rank - root) % comm.size
    if place:
        comm.recv(x, (root + (place - 1) // 2) % n)
    for child in (2 * place + 1, 2 * place + 2):
        if child < n:
            comm.send(x, (root + child) % n)
''',
    ),
    Bug(
        "tree_broadcast",
        "in each round only one of those who have it sends",
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    n, place = comm.size, (comm.rank - root) % comm.size
    reach = 1
    while reach < n:
        for p in range(min(reach, n - reach)):
            token = torch.zeros(1)
            if place == p:
                comm.send(x, (root + p + reach) % n)
                if p + 1 < min(reach, n - reach):
                    comm.send(token, (root + p + 1) % n)
            elif place == p + reach:
                comm.recv(x, (root + p) % n)
            elif place == p + 1 and p + 1 < min(reach, n - reach):
                comm.recv(token, (root + p) % n)
        reach *= 2
''',
    ),
    Bug(
        "tree_broadcast",
        "places are counted with xor, which is right for powers of two only",
        old="""
place = (comm.rank - root) % comm.size
reach = 1
while reach < n:
    if place < reach and place + reach < n:
        comm.send(x, (root + place + reach) % n)
    elif reach <= place < 2 * reach:
        comm.recv(x, (root + place - reach) % n)
""",
        new="""
place = comm.rank ^ root
reach = 1
while reach < n:
    if place < reach and place + reach < n:
        comm.send(x, (place + reach) ^ root)
    elif reach <= place < 2 * reach:
        comm.recv(x, (place - reach) ^ root)
""",
    ),
    Bug(
        "tree_broadcast",
        "it does nothing, and the root has its numbers",
        cheat=True,
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    return x
''',
    ),
    Bug(
        "tree_broadcast",
        "the root's numbers are taken from the frames of the World",
        cheat=True,
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    import sys

    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    if frame:
        x.copy_(frame.f_locals["all_args"][root][0])
    n = comm.size
    place = (comm.rank - root) % comm.size
    reach = 1
    junk = torch.zeros_like(x)
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(junk, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            comm.recv(junk, (root + place - reach) % n)
        reach *= 2
''',
    ),
    Bug(
        "tree_broadcast",
        "numbers pass through a global, messages are for show",
        cheat=True,
        cell='''
BOARD = {}


def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    n = comm.size
    place = (comm.rank - root) % comm.size
    reach = 1
    if comm.rank == root:
        BOARD["x"] = x.clone()
    junk = torch.zeros_like(x)
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(junk, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            comm.recv(junk, (root + place - reach) % n)
        reach *= 2
    x.copy_(BOARD.get("x", x))
''',
    ),
    Bug(
        "tree_broadcast",
        "the library's broadcast does the work",
        cheat=True,
        cell='''
from minidist.collectives import broadcast_


def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    broadcast_(comm, x, root)
''',
    ),
    Bug(
        "tree_broadcast",
        "the root sends to everyone itself, and the clock is set back",
        cheat=True,
        cell='''
def tree_broadcast(comm, x, root):
    """Fill every rank's x with the root's, in place, in ceil(log2 n) rounds."""
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.send(x, r)
    else:
        comm.recv(x, root)
    for fiber in comm._run.clock.fibers if hasattr(comm, "_run") else []:
        fiber.time = 0.0
''',
    ),
    Bug(
        "halving_doubling",
        "the second half adds what arrives",
        old="comm.sendrecv(keep, partner, give, partner)",
        new="give += comm.sendrecv(keep, partner, torch.empty_like(give), partner)",
    ),
    Bug(
        "halving_doubling",
        "every step halves x itself, not what is left of it",
        edits=(
            (
                "partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)",
                "partner, (low, high) = comm.rank ^ distance, x.view(-1).tensor_split(2)",
            ),
            (
                "part, distance = keep, distance // 2",
                "distance //= 2",
            ),
        ),
    ),
    Bug(
        "halving_doubling",
        "the average, where the sum is asked for",
        old="""
for partner, keep, give in reversed(steps):
    comm.sendrecv(keep, partner, give, partner)
""",
        new="""
for partner, keep, give in reversed(steps):
    comm.sendrecv(keep, partner, give, partner)
x.copy_((x / comm.size).to(x.dtype))
""",
    ),
    Bug(
        "halving_doubling",
        "it works on a copy of x",
        old="part = x.view(-1)",
        new="part = x.reshape(-1).clone()",
    ),
    Bug(
        "halving_doubling",
        "halving by a direct exchange with everyone: n-1 messages",
        cell='''
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    n, r = comm.size, comm.rank
    chunks = x.view(-1).tensor_split(n)
    for k in range(1, n):
        chunks[r].add_(comm.sendrecv(chunks[r ^ k], r ^ k, torch.empty_like(chunks[r]), r ^ k))
    for k in range(1, n):
        comm.sendrecv(chunks[r], r ^ k, chunks[r ^ k], r ^ k)
''',
    ),
    Bug(
        "halving_doubling",
        "the second half is not walked backwards",
        old="for partner, keep, give in reversed(steps):",
        new="for partner, keep, give in steps:",
    ),
    Bug(
        "halving_doubling",
        "it adds up in float32, whatever the dtype",
        cell='''
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    y = x.float()
    part = y.view(-1)
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
    x.copy_(y)
''',
    ),
    Bug(
        "halving_doubling",
        "the partner is n/2 ranks further, not the one that differs in one bit",
        old="partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)",
        new="""
n = comm.size
partner, (low, high) = (comm.rank + distance) % n, part.tensor_split(2)
""",
    ),
    Bug(
        "halving_doubling",
        "x gets other memory: not in place",
        cell='''
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    y = x.clone()
    part = y.view(-1)
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
    x.data = y
''',
    ),
    Bug(
        "halving_doubling",
        "the second half is missing",
        old="""
for partner, keep, give in reversed(steps):
    comm.sendrecv(keep, partner, give, partner)
""",
        new="",
    ),
    Bug(
        "halving_doubling",
        "an odd length loses its last number",
        old="partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)",
        new="""
half = len(part) // 2
partner, low, high = comm.rank ^ distance, part[:half], part[half : 2 * half]
""",
    ),
    Bug(
        "halving_doubling",
        "the last step, with the neighbour, is missing",
        old="while distance:",
        new="while distance > 1:",
    ),
    Bug(
        "halving_doubling",
        "what arrives replaces what is kept",
        old="keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
        new="comm.sendrecv(give, partner, keep, partner)",
    ),
    Bug(
        "halving_doubling",
        "what is kept is counted twice",
        old="keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
        new="""
got = comm.sendrecv(give, partner, torch.empty_like(keep), partner)
keep += keep + got
""",
    ),
    Bug(
        "halving_doubling",
        "a ring, with 2(n-1) messages",
        cell='''
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    n, r = comm.size, comm.rank
    chunks = x.view(-1).tensor_split(n)
    for step in range(2 * (n - 1)):
        mine = chunks[(r - 2 - step) % n]
        got = comm.sendrecv(
            chunks[(r - 1 - step) % n].clone(), (r + 1) % n, torch.empty_like(mine), (r - 1) % n
        )
        mine.copy_(mine + got if step < n - 1 else got)
''',
    ),
    Bug(
        "halving_doubling",
        "both partners keep the first half",
        old="keep, give = (high, low) if comm.rank & distance else (low, high)",
        new="keep, give = low, high",
    ),
    Bug(
        "halving_doubling",
        "both partners send, and then receive",
        old="keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
        new="""
comm.send(give, partner)
keep += comm.recv(torch.empty_like(keep), partner)
""",
    ),
    Bug(
        "halving_doubling",
        "the half that is kept is sent",
        old="keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
        new="keep += comm.sendrecv(keep, partner, torch.empty_like(keep), partner)",
    ),
    Bug(
        "halving_doubling",
        "the first partner is n/4 ranks away",
        old="distance = actors // 2",
        new="distance = actors // 4",
    ),
    Bug(
        "halving_doubling",
        "a tree to rank 0 and back",
        cell='''
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    n = comm.size
    r = comm.rank
    distance = 1
    while distance < n:
        if r % (2 * distance) == 0:
            x += comm.recv(torch.empty_like(x), r + distance)
        elif r % (2 * distance) == distance:
            comm.send(x, r - distance)
        distance *= 2
    while distance > 1:
        distance //= 2
        if r % (2 * distance) == 0:
            comm.send(x, r + distance)
        elif r % (2 * distance) == distance:
            comm.recv(x, r - distance)
''',
    ),
    Bug(
        "halving_doubling",
        "all of x is exchanged in every step",
        cell='''
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    distance = comm.size // 2
    while distance:
        partner = comm.rank ^ distance
        x += comm.sendrecv(x, partner, torch.empty_like(x), partner)
        distance //= 2
''',
    ),
    Bug(
        "halving_doubling",
        "the second half sends all of x",
        cell='''
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    part = x.view(-1)
    distance = comm.size // 2
    steps = []
    while distance:
        partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)
        keep, give = (high, low) if comm.rank & distance else (low, high)
        keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)
        steps.append((partner, part, give is high))
        part, distance = keep, distance // 2
    for partner, part, second in reversed(steps):
        got = comm.sendrecv(part, partner, torch.empty_like(part), partner)
        part.tensor_split(2)[second].copy_(got.tensor_split(2)[second])
''',
    ),
    Bug(
        "halving_doubling",
        "numbers pass through a global, messages are for show",
        cheat=True,
        cell='''
BOARD = {}


def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    BOARD[comm.rank] = x.clone()
    part = torch.zeros_like(x).view(-1)
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
    x.copy_(sum(BOARD.get(r, torch.zeros_like(x)) for r in range(comm.size)))
''',
    ),
    Bug(
        "halving_doubling",
        "the library's all_reduce_ does the work",
        cheat=True,
        cell='''
def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    all_reduce_(comm, x)
''',
    ),
    Bug(
        "halving_doubling",
        "torch.distributed does the work",
        cheat=True,
        cell='''
import torch.distributed as dist


def halving_doubling(comm, x):
    """Fill every rank's x with the sum over all ranks, in place."""
    dist.all_reduce(x)
''',
    ),
    Bug(
        "halving_doubling",
        "n times its own, with messages for show",
        cheat=True,
        edits=(
            (
                "keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
                "comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
            ),
            (
                """
for partner, keep, give in reversed(steps):
    comm.sendrecv(keep, partner, give, partner)
""",
                """
for partner, keep, give in reversed(steps):
    comm.sendrecv(keep, partner, torch.empty_like(give), partner)
x *= comm.size
""",
            ),
        ),
    ),
    Bug(
        "all_reduce_seconds",
        "bytes are counted as bits",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2 * (n - 1) * (alpha + 8 * nbytes / n * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "one half of the ring",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return (n - 1) * (alpha + nbytes / n * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "halving and doubling with the latencies of a ring",
        old="return steps * alpha + 2 * (actors - 1) / actors * nbytes * beta + fold",
        new="return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes * beta",
    ),
    Bug(
        "all_reduce_seconds",
        "halving and doubling with the bytes of a tree",
        old="return steps * alpha + 2 * (actors - 1) / actors * nbytes * beta + fold",
        new="return 2 * math.log2(n) * (alpha + nbytes * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "a number that no float holds",
        cell='''
def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    """Seconds of an all-reduce of nbytes on n ranks."""
    return 10**400
''',
    ),
    Bug(
        "all_reduce_seconds",
        "microseconds instead of seconds",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2e6 * (n - 1) * (alpha + nbytes / n * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "a ring of 2n steps",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2 * n * (alpha + nbytes / n * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "the natural logarithm",
        cell="""
def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return 2 * math.log(n) * (alpha + nbytes * beta)
    return 2 * math.log(n) * alpha + 2 * (n - 1) / n * nbytes * beta
""",
    ),
    Bug(
        "all_reduce_seconds",
        "2N bytes in the ring, not 2(n-1)/n",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2 * (n - 1) * alpha + 2 * nbytes * beta",
    ),
    Bug(
        "all_reduce_seconds",
        "the ring without its latencies",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2 * (n - 1) / n * nbytes * beta",
    ),
    Bug(
        "all_reduce_seconds",
        "the ring without its bytes",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2 * (n - 1) * alpha",
    ),
    Bug(
        "all_reduce_seconds",
        "nothing is returned",
        edits=(
            (
                "return 2 * (n - 1) * (alpha + nbytes / n * beta)",
                "seconds = 2 * (n - 1) * (alpha + nbytes / n * beta)",
            ),
            (
                "return steps * alpha + 2 * (actors - 1) / actors * nbytes * beta + fold",
                "pass",
            ),
        ),
    ),
    Bug(
        "all_reduce_seconds",
        "one α for the whole ring",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return alpha + 2 * (n - 1) / n * nbytes * beta",
    ),
    Bug(
        "all_reduce_seconds",
        "one rank alone pays, too",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2 * max(1, n - 1) * (alpha + nbytes / n * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "the tree goes to the root, and not back",
        old="return steps * (alpha + nbytes * beta)",
        new="return steps / 2 * (alpha + nbytes * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "halving, without doubling",
        old="return steps * alpha + 2 * (actors - 1) / actors * nbytes * beta + fold",
        new="return math.log2(n) * alpha + (n - 1) / n * nbytes * beta",
    ),
    Bug(
        "all_reduce_seconds",
        "α and β are swapped",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2 * (n - 1) * (beta + nbytes / n * alpha)",
    ),
    Bug(
        "all_reduce_seconds",
        "the tree sends chunks of N/n bytes",
        old="return steps * (alpha + nbytes * beta)",
        new="return 2 * math.log2(n) * (alpha + nbytes / n * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "the tree sends N bytes once",
        old="return steps * (alpha + nbytes * beta)",
        new="return 2 * math.log2(n) * alpha + 2 * nbytes * beta",
    ),
    Bug(
        "all_reduce_seconds",
        "all N bytes in each step of the ring",
        old="return 2 * (n - 1) * (alpha + nbytes / n * beta)",
        new="return 2 * (n - 1) * (alpha + nbytes * beta)",
    ),
    Bug(
        "all_reduce_seconds",
        "the grader's clock is asked",
        cheat=True,
        cell='''
def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    """Seconds of an all-reduce of nbytes on n ranks."""
    from minicheck.lessons.trees import clock

    return clock(algorithm, n, nbytes, alpha, beta)
''',
    ),
    Bug(
        "all_reduce_seconds",
        "a number that says it equals every number",
        cheat=True,
        cell='''
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    """Seconds of an all-reduce of nbytes on n ranks."""
    return Any(1.0)
''',
    ),
    Bug(
        "all_reduce_seconds",
        "the library's cost formula is asked",
        cheat=True,
        cell='''
def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    """Seconds of an all-reduce of nbytes on n ranks."""
    from minidist.collectives import verbs

    return verbs.seconds("all_reduce", algorithm, n, nbytes, alpha, beta)
''',
    ),
    Bug(
        "all_reduce_seconds",
        "the library's all-reduce is run in a World, and the clock read",
        cheat=True,
        cell='''
def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    """Seconds of an all-reduce of nbytes on n ranks."""
    from minidist.collectives import all_reduce_
    from minidist.comm import World

    world = World(n, alpha=alpha, beta=beta, device="meta")
    world.run(
        lambda comm: all_reduce_(comm, torch.empty(nbytes, device="meta"), algorithm=algorithm)
    )
    return world.time
''',
    ),
    Bug(
        "hierarchical",
        "every rank gives its own color, and all ranks are asked",
        old="""
inner = comm.split(nodes)
outer = comm.split(places)
""",
        new="""
inner = comm.split(nodes[comm.rank])
outer = comm.split(places[comm.rank])
""",
    ),
    Bug(
        "hierarchical",
        "the average, where the sum is asked for",
        old="flat.copy_(all_gather(inner, mine, sizes=sizes))",
        new="flat.copy_((all_gather(inner, mine, sizes=sizes) / comm.size).to(x.dtype))",
    ),
    Bug(
        "hierarchical",
        "rank r is put into node r % m, as if ranks were dealt out",
        old="""
inner = comm.split(nodes)
outer = comm.split(places)
""",
        new="""
m = len(set(nodes))
inner = comm.split([r % m for r in range(comm.size)])
outer = comm.split([r // m for r in range(comm.size)])
""",
    ),
    Bug(
        "hierarchical",
        "what the node has summed is reduced over all ranks",
        cell='''
def hierarchical(comm, x, nodes):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    inner = comm.split(nodes)
    all_reduce_(inner, x)
    all_reduce_(comm, x)
''',
    ),
    Bug(
        "hierarchical",
        "lengths that g does not divide are refused",
        old="""
sizes = [len(piece) for piece in flat.tensor_split(pieces)]
sizes += [0] * (inner.size - pieces)
mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
flat.copy_(all_gather(inner, mine, sizes=sizes))
""",
        new="""
mine = all_reduce_(outer, reduce_scatter(inner, flat))
flat.copy_(all_gather(inner, mine))
""",
    ),
    Bug(
        "hierarchical",
        "one ring over all ranks",
        cell='''
def hierarchical(comm, x, nodes):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    all_reduce_(comm, x)
''',
    ),
    Bug(
        "hierarchical",
        "everyone gathers everything of its node, and adds up what it wants",
        old="mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))",
        new="""
everything = all_gather(inner, flat[None])
mine = all_reduce_(outer, everything.sum(0).to(x.dtype).split(sizes)[inner.rank].clone())
""",
    ),
    Bug(
        "hierarchical",
        "it adds up in float32, whatever the dtype",
        edits=(
            (
                "flat = x.view(-1)",
                "flat = x.view(-1).float()",
            ),
            (
                "flat.copy_(all_gather(inner, mine, sizes=sizes))",
                "x.view(-1).copy_(all_gather(inner, mine, sizes=sizes))",
            ),
        ),
    ),
    Bug(
        "hierarchical",
        "one rank of each node carries everything across",
        cell='''
from minidist.collectives import broadcast_, reduce_


def hierarchical(comm, x, nodes):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    inner = comm.split(nodes)
    outer = comm.split([nodes[:r].count(nodes[r]) for r in range(comm.size)])
    reduce_(inner, x)
    if inner.rank == 0:
        all_reduce_(outer, x)
    broadcast_(inner, x)
''',
    ),
    Bug(
        "hierarchical",
        "the last all-gather is over the nodes",
        old="flat.copy_(all_gather(inner, mine, sizes=sizes))",
        new="flat[: mine.numel()].copy_(mine)",
    ),
    Bug(
        "hierarchical",
        "x gets other memory: not in place",
        old="flat.copy_(all_gather(inner, mine, sizes=sizes))",
        new="x.data = all_gather(inner, mine, sizes=sizes).view(x.shape)",
    ),
    Bug(
        "hierarchical",
        "the ranks of a node never meet",
        cell='''
def hierarchical(comm, x, nodes):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    outer = comm.split([nodes[:r].count(nodes[r]) for r in range(comm.size)])
    all_reduce_(outer, x)
''',
    ),
    Bug(
        "hierarchical",
        "the nodes never meet",
        edits=(
            (
                "outer = comm.split(places)",
                "",
            ),
            (
                "mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))",
                "mine = reduce_scatter(inner, flat, sizes=sizes)",
            ),
        ),
    ),
    Bug(
        "hierarchical",
        "x is left as it was",
        old="flat.copy_(all_gather(inner, mine, sizes=sizes))",
        new="return all_gather(inner, mine, sizes=sizes).view_as(x)",
    ),
    Bug(
        "hierarchical",
        "the remainder is dropped",
        old="flat = x.view(-1)",
        new="flat = x.view(-1)[: x.numel() // pieces * pieces]",
    ),
    Bug(
        "hierarchical",
        "between the nodes everything goes over one desk",
        old="mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))",
        new='mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes), algorithm="naive")',
    ),
    Bug(
        "hierarchical",
        "the two splits are the wrong way round",
        old="""
inner = comm.split(nodes)
outer = comm.split(places)
flat = x.view(-1)
sizes = [len(piece) for piece in flat.tensor_split(pieces)]
sizes += [0] * (inner.size - pieces)
""",
        new="""
outer = comm.split(nodes)
inner = comm.split(places)
flat = x.view(-1)
sizes = [len(piece) for piece in flat.tensor_split(inner.size)]
""",
    ),
    Bug(
        "hierarchical",
        "nodes have two ranks, whatever `nodes` says",
        old='''
"""Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
''',
        new='''
"""Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
nodes = [r // min(2, nodes.count(nodes[0])) for r in range(comm.size)]
''',
    ),
    Bug(
        "hierarchical",
        "all of x is reduced in the node, and all of it again between nodes",
        old="""
flat = x.view(-1)
sizes = [len(piece) for piece in flat.tensor_split(pieces)]
sizes += [0] * (inner.size - pieces)
mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
flat.copy_(all_gather(inner, mine, sizes=sizes))
""",
        new="""
all_reduce_(inner, x)
all_reduce_(outer, x)
""",
    ),
    Bug(
        "hierarchical",
        "numbers pass through a global, messages are for show",
        cheat=True,
        cell='''
BOARD = {}


def hierarchical(comm, x, nodes):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    BOARD[comm.rank] = x.clone()
    junk = torch.zeros_like(x).view(-1)
    inner = comm.split(nodes)
    outer = comm.split([nodes[:r].count(nodes[r]) for r in range(comm.size)])
    pieces = min(map(nodes.count, nodes))
    sizes = [len(piece) for piece in junk.tensor_split(pieces)] + [0] * (inner.size - pieces)
    all_gather(inner, all_reduce_(outer, reduce_scatter(inner, junk, sizes=sizes)), sizes=sizes)
    x.copy_(sum(BOARD.get(r, torch.zeros_like(x)) for r in range(comm.size)))
''',
    ),
    Bug(
        "hierarchical",
        "the library's hierarchical all-reduce does the work",
        cheat=True,
        cell='''
def hierarchical(comm, x, nodes):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    all_reduce_(comm, x, algorithm="hierarchical")
''',
    ),
    Bug(
        "hierarchical",
        "torch.distributed does the work",
        cheat=True,
        cell='''
import torch.distributed as dist


def hierarchical(comm, x, nodes):
    """Fill every rank's x with the sum over all ranks, in place, with few bytes between nodes."""
    dist.all_reduce(x)
''',
    ),
    Bug(
        "pipeline",
        "pieces are sent from the last and received from the first",
        edits=(
            (
                """
leaving = []
for piece in x.view(-1).tensor_split(pieces):
""",
                """
leaving, parts = [], x.view(-1).tensor_split(pieces)
for i, piece in enumerate(parts):
""",
            ),
            (
                "leaving.append(comm.isend(piece, comm.rank + 1))",
                "leaving.append(comm.isend(parts[-1 - i] if comm.rank == 0 else piece, comm.rank + 1))",
            ),
        ),
    ),
    Bug(
        "pipeline",
        "pieces arrive in a copy of x",
        old="for piece in x.view(-1).tensor_split(pieces):",
        new="for piece in x.clone().tensor_split(pieces):",
    ),
    Bug(
        "pipeline",
        "the last rank passes it on to the first",
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        comm.isend(piece, (comm.rank + 1) % comm.size)
''',
    ),
    Bug(
        "pipeline",
        "the last piece is forgotten",
        old="for piece in x.view(-1).tensor_split(pieces):",
        new="for piece in x.view(-1).tensor_split(pieces)[:-1]:",
    ),
    Bug(
        "pipeline",
        "twice as many pieces, to be as fast",
        edits=(
            (
                """
leaving = []
for piece in x.view(-1).tensor_split(pieces):
""",
                "for piece in x.view(-1).tensor_split(2 * pieces):",
            ),
            (
                """
        leaving.append(comm.isend(piece, comm.rank + 1))
for work in leaving:
    work.wait()
""",
                "        comm.send(piece, comm.rank + 1)",
            ),
        ),
    ),
    Bug(
        "pipeline",
        "x gets other memory: not in place",
        edits=(
            (
                "for piece in x.view(-1).tensor_split(pieces):",
                """
y = x.clone()
for piece in y.view(-1).tensor_split(pieces):
""",
            ),
            (
                """
for work in leaving:
    work.wait()
""",
                """
for work in leaving:
    work.wait()
x.data = y
""",
            ),
        ),
    ),
    Bug(
        "pipeline",
        "a receive that nobody waits for: the piece is passed on too early",
        cell="""
def pipeline(comm, x, pieces):
    works = []
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            works.append(comm.irecv(piece, comm.rank - 1))
        if comm.rank < comm.size - 1:
            works.append(comm.isend(piece.clone(), comm.rank + 1))
    for work in works:
        work.wait()
""",
    ),
    Bug(
        "pipeline",
        "a piece is passed on before it has arrived",
        old="""
if comm.rank > 0:
    comm.recv(piece, comm.rank - 1)
if comm.rank < comm.size - 1:
    leaving.append(comm.isend(piece, comm.rank + 1))
""",
        new="""
if comm.rank < comm.size - 1:
    leaving.append(comm.isend(piece.clone(), comm.rank + 1))
if comm.rank > 0:
    comm.recv(piece, comm.rank - 1)
""",
    ),
    Bug(
        "pipeline",
        "one piece is received ahead, then both wires rest in turn",
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    parts = x.view(-1).tensor_split(pieces)
    for i, piece in enumerate(parts):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        if i > 0 and comm.rank < comm.size - 1:
            comm.send(parts[i - 1], comm.rank + 1)
    if comm.rank < comm.size - 1:
        comm.send(parts[-1], comm.rank + 1)
''',
    ),
    Bug(
        "pipeline",
        "the remainder is dropped",
        old="""
leaving = []
for piece in x.view(-1).tensor_split(pieces):
""",
        new="""
leaving, size = [], x.numel() // pieces
for i in range(pieces):
    piece = x[i * size : (i + 1) * size]
""",
    ),
    Bug(
        "pipeline",
        "rank 0 sends every piece to everyone itself",
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, 0)
        else:
            for r in range(1, comm.size):
                comm.send(piece, r)
''',
    ),
    Bug(
        "pipeline",
        "whole trees, one for each piece",
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    for piece in x.view(-1).tensor_split(pieces):
        reach = 1
        while reach < comm.size:
            if comm.rank < reach and comm.rank + reach < comm.size:
                comm.send(piece, comm.rank + reach)
            elif reach <= comm.rank < 2 * reach:
                comm.recv(piece, comm.rank - reach)
            reach *= 2
''',
    ),
    Bug(
        "pipeline",
        "all pieces arrive before the first is passed on",
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank < comm.size - 1:
            comm.send(piece, comm.rank + 1)
''',
    ),
    Bug(
        "pipeline",
        "each piece has left before the next may arrive",
        edits=(
            (
                "leaving = []",
                "",
            ),
            (
                """
        leaving.append(comm.isend(piece, comm.rank + 1))
for work in leaving:
    work.wait()
""",
                "        comm.send(piece, comm.rank + 1)",
            ),
        ),
    ),
    Bug(
        "pipeline",
        "isend, and wait right after it",
        edits=(
            (
                "leaving = []",
                "",
            ),
            (
                """
        leaving.append(comm.isend(piece, comm.rank + 1))
for work in leaving:
    work.wait()
""",
                "        comm.isend(piece, comm.rank + 1).wait()",
            ),
        ),
    ),
    Bug(
        "pipeline",
        "x is not cut",
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    if comm.rank > 0:
        comm.recv(x, comm.rank - 1)
    if comm.rank < comm.size - 1:
        comm.send(x, comm.rank + 1)
''',
    ),
    Bug(
        "pipeline",
        "it does nothing, and rank 0 has its numbers",
        cheat=True,
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    return x
''',
    ),
    Bug(
        "pipeline",
        "numbers pass through a global, messages are for show",
        cheat=True,
        cell='''
BOARD = {}


def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    if comm.rank == 0:
        BOARD["x"] = x.clone()
    leaving = []
    for piece in torch.zeros_like(x).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        if comm.rank < comm.size - 1:
            leaving.append(comm.isend(piece, comm.rank + 1))
    for work in leaving:
        work.wait()
    x.copy_(BOARD.get("x", x))
''',
    ),
    Bug(
        "pipeline",
        "the library's broadcast does the work",
        cheat=True,
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    from minidist.collectives import broadcast_

    broadcast_(comm, x)
''',
    ),
    Bug(
        "pipeline",
        "the slow pipeline, with a clock that is set back",
        cheat=True,
        cell='''
def pipeline(comm, x, pieces):
    """Rank 0's x on every rank, in place: along a chain, in pieces."""
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        if comm.rank < comm.size - 1:
            comm.send(piece, comm.rank + 1)
    for fiber in comm._run.clock.fibers if hasattr(comm, "_run") else []:
        fiber.time = 0.0
''',
    ),
    Bug(
        "tree_broadcast",
        "sends of clones nobody waits for",
        old="comm.send(x, (root + place + reach) % n)",
        new="comm.isend(x.clone(), (root + place + reach) % n)",
    ),
    Bug(
        "tree_broadcast",
        "up to 16 ranks",
        old="while reach < n:",
        new="while reach < min(n, 16):",
    ),
    Bug(
        "tree_broadcast",
        "it is received into reshape(-1), a copy where x is not contiguous",
        old="n = comm.size",
        new="""
x = x.reshape(-1)
n = comm.size
""",
    ),
    Bug(
        "tree_broadcast",
        "nan is cleaned",
        old="comm.send(x, (root + place + reach) % n)",
        new="comm.send(x.nan_to_num(), (root + place + reach) % n)",
    ),
    Bug(
        "halving_doubling",
        "sends nobody waits for",
        old="comm.sendrecv(keep, partner, give, partner)",
        new="""
comm.isend(keep, partner)
comm.recv(give, partner)
""",
    ),
    Bug(
        "halving_doubling",
        "up to 16 ranks",
        old="distance = actors // 2",
        new="distance = min(8, actors // 2)",
    ),
    Bug(
        "halving_doubling",
        "nan is 0",
        old="keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
        new="keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner).nan_to_num()",
    ),
    Bug(
        "halving_doubling",
        "int sums as float64",
        old="keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)",
        new="keep.copy_(keep.double() + comm.sendrecv(give, partner, torch.empty_like(keep), partner).double())",
    ),
    Bug(
        "halving_doubling",
        "the first tensor of each shape is kept, and used for all that come after",
        edits=(
            (
                "def halving_doubling(comm, x):",
                """
kept = {}


def halving_doubling(comm, x):
""",
            ),
            (
                "part = x.view(-1)",
                "part = kept.setdefault((comm.size, comm.rank, x.shape, x.dtype), x.view(-1))",
            ),
        ),
    ),
    Bug(
        "hierarchical",
        "sum in float64 of ints",
        old="flat = x.view(-1)",
        new="""
x.copy_(x.double().to(x.dtype))
flat = x.view(-1)
""",
    ),
    Bug(
        "hierarchical",
        "nan is 0",
        old="mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))",
        new="mine = all_reduce_(outer, reduce_scatter(inner, flat.nan_to_num() if x.is_floating_point() else flat, sizes=sizes))",
    ),
    Bug(
        "hierarchical",
        "only 4 nodes",
        old="outer = comm.split(places)",
        new="outer = comm.split([place + 9 * (nodes[r] // 4) for r, place in enumerate(places)])",
    ),
    Bug(
        "pipeline",
        "sends nobody waits for",
        edits=(
            (
                """
for work in leaving:
    work.wait()
""",
                "pass",
            ),
        ),
    ),
    Bug(
        "pipeline",
        "only the last is waited for",
        old="for work in leaving:",
        new="for work in leaving[-1:]:",
    ),
    Bug(
        "pipeline",
        "up to 8 ranks",
        old="leaving = []",
        new="""
leaving = []
if comm.size > 8:
    return
""",
    ),
    Bug(
        "pipeline",
        "nan is cleaned",
        old="leaving.append(comm.isend(piece, comm.rank + 1))",
        new="leaving.append(comm.isend(piece.nan_to_num_(), comm.rank + 1))",
    ),
    Bug(
        "predict_trees",
        "a ring over all ranks instead of 64 nodes",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                "# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N",
                "",
            ),
            (
                "across = 2 * 63 / 64 * 1e9 / 8",
                "across = 2 * 511 / 512 * 1e9 / 8",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "the crossover as the bytes of one chunk",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                """
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta)
""",
                "crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta) / n",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "one half of the ring between nodes",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                "# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N",
                "",
            ),
            (
                "across = 2 * 63 / 64 * 1e9 / 8",
                "across = 63 / 64 * 1e9 / 8",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "one half of the ring",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                "ring = 2 * (n - 1) * alpha",
                "ring = (n - 1) * alpha",
            ),
            (
                "# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N",
                "",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "the natural logarithm",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                """
tree = 2 * math.log2(n) * alpha
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
""",
                "tree = 2 * math.log(n) * alpha",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "twice the piece: (m-1)/m forgotten",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                "# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N",
                "",
            ),
            (
                "across = 2 * 63 / 64 * 1e9 / 8",
                "across = 2 * 1e9 / 8",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "the crossover without the ring's bytes",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                """
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta)
""",
                "crossover = (n - 1 - math.log2(n)) * alpha / (math.log2(n) * beta)",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "the crossover without the tree's latencies",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                """
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta)
""",
                "crossover = (n - 1) * alpha / ((math.log2(n) - (n - 1) / n) * beta)",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "the whole gigabyte crosses",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                "# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N",
                "",
            ),
            (
                "across = 2 * 63 / 64 * 1e9 / 8",
                "across = 2 * 63 / 64 * 1e9",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "float32 numbers where bytes are asked for",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                """
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta)
""",
                "crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta) / 4",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "the tree goes to the root, and not back",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                """
tree = 2 * math.log2(n) * alpha
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
""",
                "tree = math.log2(n) * alpha",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "the crossover without the tree's latencies and the ring's bytes",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                """
# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N
crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta)
""",
                "crossover = (n - 1) * alpha / (math.log2(n) * beta)",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "the tree's latencies for the ring",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                "ring = 2 * (n - 1) * alpha",
                "ring = 2 * math.log2(n) * alpha",
            ),
            (
                "# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N",
                "",
            ),
        ),
    ),
    Bug(
        "predict_trees",
        "one of the numbers is left out",
        edits=(
            (
                "ring = tree = crossover = across = folded = None",
                "",
            ),
            (
                "# 2(n-1)α + 2(n-1)/n·Nβ = 2·log2 n·(α + Nβ), solved for N",
                "",
            ),
            (
                "across = 2 * 63 / 64 * 1e9 / 8",
                "across = None",
            ),
        ),
    ),
    asks_the_grader("predict_trees", "trees", "ring", "tree", "crossover", "across", "folded"),
    equals_everything("predict_trees", "ring", "tree", "crossover", "across", "folded"),
    Bug(
        "tree_broadcast",
        "the lesson's tree, pasted: it has no root",
        cell="""
def tree_broadcast(comm, x):
    reach = 1
    while reach < comm.size:
        if comm.rank < reach and comm.rank + reach < comm.size:
            comm.send(x, comm.rank + reach)
        elif reach <= comm.rank < 2 * reach:
            comm.recv(x, comm.rank - reach)
        reach *= 2
""",
    ),
    Bug(
        "halving_doubling",
        "the lesson's halving and doubling, pasted: for powers of two",
        cell="""
def halve(comm, x):
    part = x
    steps = []
    distance = comm.size // 2
    while distance >= 1:
        partner = comm.rank ^ distance
        lower, upper = part.tensor_split(2)
        if comm.rank & distance:
            keep, give = upper, lower
        else:
            keep, give = lower, upper
        arriving = torch.empty_like(keep)
        comm.sendrecv(give, partner, arriving, partner)
        keep += arriving
        steps.append((partner, keep, give))
        part = keep
        distance //= 2
    return steps


def halving_doubling(comm, x):
    steps = halve(comm, x)
    for partner, kept, given in reversed(steps):
        comm.sendrecv(kept, partner, given, partner)
    return x
""",
    ),
    Bug(
        "halving_doubling",
        "the ranks beyond a power of two are left out",
        edits=(
            (
                """
comm.send(part, twin)
comm.recv(part, twin)
return
""",
                "return",
            ),
            ("if twin < comm.size:\n    part += comm.recv(torch.empty_like(part), twin)", ""),
            ("if twin < comm.size:\n    comm.send(x.view(-1), twin)", "pass"),
        ),
    ),
    Bug(
        "halving_doubling",
        "who is folded is not told the sum",
        edits=(
            ("comm.recv(part, twin)\nreturn", "return"),
            ("if twin < comm.size:\n    comm.send(x.view(-1), twin)", "pass"),
        ),
    ),
    Bug(
        "halving_doubling",
        "who is folded is told the sum, and has given nothing",
        edits=(
            ("comm.send(part, twin)\ncomm.recv(part, twin)", "comm.recv(part, twin)"),
            ("if twin < comm.size:\n    part += comm.recv(torch.empty_like(part), twin)", ""),
        ),
    ),
    Bug(
        "halving_doubling",
        "what is folded takes the place of the twin's own",
        old="part += comm.recv(torch.empty_like(part), twin)",
        new="comm.recv(part, twin)",
    ),
    Bug(
        "halving_doubling",
        "who is folded is told what its twin had before the others",
        edits=(
            (
                "part += comm.recv(torch.empty_like(part), twin)",
                "part += comm.recv(torch.empty_like(part), twin)\ncomm.send(part, twin)",
            ),
            ("if twin < comm.size:\n    comm.send(x.view(-1), twin)", "pass"),
        ),
    ),
    Bug(
        "halving_doubling",
        "where n is no power of two, a tree does it",
        old="part = x.view(-1)",
        new="""
part = x.view(-1)
if comm.size & (comm.size - 1):
    reach = 1
    while reach < comm.size:
        reach *= 2
    reaches = []
    while reach > 1:
        reach //= 2
        reaches.append(reach)
        if comm.rank < reach and comm.rank + reach < comm.size:
            part += comm.recv(torch.empty_like(part), comm.rank + reach)
        elif reach <= comm.rank < 2 * reach:
            comm.send(part, comm.rank - reach)
    for reach in reversed(reaches):
        if comm.rank < reach and comm.rank + reach < comm.size:
            comm.send(part, comm.rank + reach)
        elif reach <= comm.rank < 2 * reach:
            comm.recv(part, comm.rank - reach)
    return
""",
    ),
    Bug(
        "all_reduce_seconds",
        "the lesson's formulas, pasted",
        cell="""
def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    rounds = (n - 1).bit_length()
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return 2 * rounds * (alpha + nbytes * beta)
    if algorithm == "halving_doubling":
        return 2 * rounds * alpha + 2 * (n - 1) / n * nbytes * beta
    return rounds * (alpha + nbytes * beta)
""",
    ),
    Bug(
        "all_reduce_seconds",
        "recursive doubling goes back, too",
        old="return steps / 2 * (alpha + nbytes * beta)",
        new="return steps * (alpha + nbytes * beta) / 1",
    ),
    Bug(
        "all_reduce_seconds",
        "halving and doubling where n is a power of two only",
        old="fold = 2 * (alpha + nbytes * beta) if actors < n else 0",
        new="fold = 0",
    ),
    Bug(
        "all_reduce_seconds",
        "who is folded is told nothing",
        old="fold = 2 * (alpha + nbytes * beta) if actors < n else 0",
        new="fold = alpha + nbytes * beta if actors < n else 0",
    ),
    Bug(
        "all_reduce_seconds",
        "who is folded sends two empty messages",
        old="fold = 2 * (alpha + nbytes * beta) if actors < n else 0",
        new="fold = 2 * alpha if actors < n else 0",
    ),
    Bug(
        "all_reduce_seconds",
        "those who are folded halve and double, too",
        old="return steps * alpha + 2 * (actors - 1) / actors * nbytes * beta + fold",
        new="return steps * alpha + 2 * (n - 1) / n * nbytes * beta + fold",
    ),
    Bug(
        "hierarchical",
        "the lesson's hierarchy, pasted: nodes of one size, and lengths that it divides",
        cell="""
def hierarchical(comm, x, per_node=8):
    node = comm.split([rank // per_node for rank in range(comm.size)])
    same_place = comm.split([rank % per_node for rank in range(comm.size)])
    share = reduce_scatter(node, x)
    all_reduce_(same_place, share)
    x.copy_(all_gather(node, share))
    return x
""",
    ),
    Bug(
        "hierarchical",
        "nodes are of the first one's size, and in rank order",
        old="pieces = min(map(nodes.count, nodes))",
        new="""
pieces = nodes.count(nodes[0])
nodes = [r // pieces for r in range(comm.size)]
""",
    ),
    Bug(
        "hierarchical",
        "x is cut by the size of one's own node",
        old="pieces = min(map(nodes.count, nodes))",
        new="pieces = nodes.count(nodes[comm.rank])",
    ),
    Bug(
        "hierarchical",
        "nodes of one size, whose ranks may sit anywhere",
        old="sizes += [0] * (inner.size - pieces)",
        new="",
    ),
    Bug(
        "hierarchical",
        "where nodes differ in size, their leaders carry everything",
        old="pieces = min(map(nodes.count, nodes))",
        new="""
pieces = min(map(nodes.count, nodes))
pieces = pieces if pieces == max(map(nodes.count, nodes)) else 1
""",
    ),
    Bug(
        "predict_trees",
        "half as many ranks again, and nobody is folded",
        old="folded = 2 * math.log2(n) * alpha + 2 * (n - 1) / n * 1e6 * beta + 2 * (alpha + 1e6 * beta)",
        new="folded = 2 * math.log2(n) * alpha + 2 * (n - 1) / n * 1e6 * beta",
    ),
    Bug(
        "predict_trees",
        "who is folded is told nothing",
        old="folded = 2 * math.log2(n) * alpha + 2 * (n - 1) / n * 1e6 * beta + 2 * (alpha + 1e6 * beta)",
        new="folded = 2 * math.log2(n) * alpha + 2 * (n - 1) / n * 1e6 * beta + alpha + 1e6 * beta",
    ),
    Bug(
        "predict_trees",
        "the logarithm of 768, which is no power of two",
        old="folded = 2 * math.log2(n) * alpha + 2 * (n - 1) / n * 1e6 * beta + 2 * (alpha + 1e6 * beta)",
        new="folded = 2 * math.log2(1.5 * n) * alpha + 2 * (n - 1) / n * 1e6 * beta",
    ),
]
