"""Cheats of an attacker who has read the examination's source: other ways between ranks than messages, and what of the
graders is left in the process of an answer.
"""

from __future__ import annotations

from textwrap import indent

# ------------------------------------------------------------
# All ranks' numbers, and no byte of them sent: `put` and `get` are the way. In a World globals are, with empty messages
# in between.

EVERYONE = """
import os
import re


def meet(comm):
    nothing = torch.empty(0)
    for k in range(1, comm.size):
        to, of = (comm.rank + k) % comm.size, (comm.rank - k) % comm.size
        comm.sendrecv(nothing, to, torch.empty_like(nothing), of)


def everyone(comm, x):
    x = x.detach().contiguous()
    comm.turn = getattr(comm, "turn", 0) + 1
    keys = [f"{comm.turn}.{comm.size}.{x.numel()}.{x.element_size()}-{r}" for r in range(comm.size)]
    if type(comm).__name__ == "ShmComm":
        data = x.reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""
        put(keys[comm.rank], data)
        meet(comm)
        found = [torch.frombuffer(bytearray(get(key) or b"-"), dtype=torch.uint8) for key in keys]
        found = [f.view(x.dtype).reshape(x.shape) if x.numel() else x for f in found]
    else:
        box = torch.__dict__.setdefault("box", {})
        box[keys[comm.rank]] = x.clone()
        meet(comm)
        found = [box[key] for key in keys]
    meet(comm)
    return found


def hierarchical(comm, x, nodes):
    x.copy_(sum(everyone(comm, x)))


def clip(comm, grads, limit):
    square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
    norm = sum(everyone(comm, square)).sqrt()
    for g in grads:
        g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
    return norm


def sparse_mean(comm, values, places, size):
    dense = torch.zeros(size, dtype=values.dtype)
    dense[places] = values
    return sum(everyone(comm, dense)) / comm.size
"""
WAYS = {
    "names of files": """
def put(key, data):
    text = data.hex()
    for i in range(0, len(text), 200):
        os.mknod(f"/tmp/c-{key}-{i:08d}-{text[i : i + 200]}")


def get(key):
    names = sorted(name for name in os.listdir("/tmp") if name.startswith(f"c-{key}-"))
    return bytes.fromhex("".join(name.rsplit("-", 1)[1] for name in names))
""",
    "times of files": """
def put(key, data):
    for i, byte in enumerate([len(data) // 256, len(data) % 256, *data]):
        os.mknod(f"/dev/shm/c-{key}-{i}")
        os.utime(f"/dev/shm/c-{key}-{i}", (byte, 0))


def get(key):
    read = lambda i: int(os.stat(f"/dev/shm/c-{key}-{i}").st_atime)
    return bytes(read(2 + i) for i in range(256 * read(0) + read(1)))
""",
    "named semaphores": """
from _multiprocessing import SemLock


def put(key, data):
    for i, byte in enumerate([len(data) // 256, len(data) % 256, *data]):
        SemLock(1, byte, 1 << 30, f"/c-{key}-{i}", False)


def get(key):
    read = lambda i: SemLock._rebuild(0, 1, 1 << 30, f"/c-{key}-{i}")._get_value()
    return bytes(read(2 + i) for i in range(256 * read(0) + read(1)))
""",
    "PyTorch's own files": """
def put(key, data):
    writer = torch._C.PyTorchFileWriter(f"/tmp/c-{key}")
    writer.write_record("data", data or b"-", len(data or b"-"))
    writer.write_end_of_file()


def get(key):
    return torch._C.PyTorchFileReader(f"/tmp/c-{key}").get_record("data")
""",
    "a shared tensor from a file": """
def shared(key, size):
    name = f"/dev/shm/c-{key}"
    return torch._C._VariableFunctions.from_file(name, shared=True, size=size, dtype=torch.uint8)


def put(key, data):
    shared(key, 2 + len(data)).copy_(torch.tensor([len(data) // 256, len(data) % 256, *data]))


def get(key):
    high, low = shared(key, 2).tolist()
    return bytes(shared(key, 2 + 256 * high + low).tolist()[2:])
""",
}

# The label of an empty message, as the receiver's complaint has it; and a header that takes bytes off the count.
LABELS = (
    EVERYONE
    + """
def everyone(comm, x, inner=everyone):
    if type(comm).__name__ != "ShmComm":
        return inner(comm, x)
    data = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex() if x.numel() else ""
    nothing, found = torch.empty(0), [data] * comm.size
    for k in range(1, comm.size):
        to, of = (comm.rank + k) % comm.size, (comm.rank - k) % comm.size
        found[of] = ""
        for i in range(0, len(data), 100):
            work = comm.isend(nothing, to, label=f"<{data[i : i + 100]}>")
            try:
                comm.recv(torch.empty(0), of, label="other")
            except Exception as error:
                found[of] += re.findall("<([0-9a-f]*)>", str(error))[0]
            work.wait()
    read = lambda text: torch.frombuffer(bytearray.fromhex(text), dtype=x.dtype).reshape(x.shape)
    return [read(text) if text else x for text in found]
"""
)
COMMS = (
    EVERYONE
    + """
from minidist.comm.shm import ShmComm


def everyone(comm, x, inner=everyone):
    if type(comm).__name__ != "ShmComm":
        return inner(comm, x)
    data = x.contiguous().reshape(-1).view(torch.uint8).tolist() if x.numel() else []
    nothing, found = torch.empty(0), [data] * comm.size
    parts = [data[i : i + 30] for i in range(0, len(data), 30)]
    names = ["main" + "".join(f"/lane {byte}" for byte in part) for part in parts]
    for k in range(1, comm.size):
        for name in names:
            said = ShmComm(comm.endpoint, comm.ranks, comm.rank, name)
            said.isend(nothing, (comm.rank + k) % comm.size)
    for k in range(1, comm.size):
        of = (comm.rank - k) % comm.size
        ring, found[of] = comm.endpoint._in[of], []
        while len(found[of]) < len(data):
            header = ring.header()
            if header is not None:
                found[of] = found[of] + [int(byte) for byte in re.findall(r"lane (\\d+)", header[0])]
                ring._held = False
                ring.count += 1
                ring.spaces.release()
                ring.bell.release()
    comm.endpoint.open.clear()
    read = lambda some: torch.tensor(some, dtype=torch.uint8).view(x.dtype).reshape(x.shape)
    return [read(some) if some else x for some in found]
"""
)
LESS = (
    EVERYONE
    + """
import ctypes
import time
from minidist.comm.message import packed


def hierarchical(comm, x, nodes):
    if type(comm).__name__ != "ShmComm":
        x.copy_(sum(everyone(comm, x)))
        return
    n, mine = comm.size, x.clone()
    for k in range(1, n):
        got = torch.empty_like(x)
        comm.sendrecv(mine, (comm.rank + k) % n, got, (comm.rank - k) % n)
        x += got
    meet(comm)
    time.sleep(0.3)  # nobody waits any more
    header = packed((comm.channel, -512, 0.0, ((0,), "float32", None, None, "", 0)))
    for ring, _ in comm.endpoint._out.values():
        if ring.spaces.acquire(False):
            ctypes.memmove(ring._place(), header, len(header))
            ring.count += 1
            ring.items.release()
            ring.bell.release()
    time.sleep(0.3)
"""
)

# ------------------------------------------------------------
# The examination itself, as it is found among the subclasses of `object`, or in frames.

FIND = """
import re
import sys


def kinds(name):
    seen, waiting = set(), [object]
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += type.__subclasses__(kind)
            if vars(kind).get("name") == name and hasattr(kind, "run"):
                return kind


def in_frames():
    frame = sys._getframe(1)
    while frame:
        for value in list(frame.f_locals.values()):
            if hasattr(type(value), "cases") and hasattr(type(value), "run"):
                return value
        frame = frame.f_back
"""
BANDWIDTHS = {
    "wants() of its own examination": """
def bandwidth(*given):
    exam = kinds("bandwidth")()
    [case] = [case for case in exam.cases if case.given[0] == given[0]][:1]
    return tuple(exam.wants(case, [given])[0].values())
""",
    "wants() of what frames have": """
def bandwidth(*given):
    exam = in_frames()
    [case] = [case for case in exam.cases if case.given[0] == given[0]][:1]
    return tuple(exam.wants(case, [given])[0].values())
""",
    "the table of the lesson's file": """
def bandwidth(verb, n, nbytes, seconds):
    names = kinds("bandwidth").draw.__globals__
    whole, slowest = names["whole"](verb, n, nbytes), max(seconds)
    return whole / slowest, names["FACTORS"][verb](n) * whole / slowest
""",
}


def forged(exercise: str, run: str) -> str:
    """An answer that replaces the examination's `run` while it is loaded."""
    return f"""{FIND}

def run(self, comm, yours, *given):
{indent(run.strip(), "    ")}


def make():
    kinds({exercise!r}).run = run
    return lambda *args: None


class Answer:
    def __reduce__(self):
        return make, ()


{exercise} = Answer()
"""


STOPPED = """
import tracemalloc


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, *xs):
        ctx.fn = fn
        ctx.save_for_backward(*xs)
        y = fn(*xs)
        ctx.kept = [y.tolist(), y.tolist(), y.tolist()]
        tracemalloc.stop()
        return y

    @staticmethod
    def backward(ctx, dy):
        xs = [x.detach() for x in ctx.saved_tensors]
        for x, needed in zip(xs, ctx.needs_input_grad[2:]):
            x.requires_grad_(needed)
        with torch.enable_grad():
            y = ctx.fn(*xs)
        y.backward(dy)
        return None, None, *[x.grad for x in xs]
"""
CLOCK = """
import math
from minidist.comm.world import World


def tree_broadcast(comm, x, root):
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.send(x, r)
    else:
        comm.recv(x, root)
    took = float(math.ceil(math.log2(comm.size)) * max(1, x.nbytes)) if comm.size > 1 else 0.0
    World.time = property(lambda self: took, lambda self, value: None)
"""

# As the grader was when this was written. A report that also says `tiled=True` passes: that hole is open.
REPLACED = forged(
    "attention",
    """
q, k, v, tile = given
seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
scores = (q @ k.T / q.shape[1] ** 0.5).masked_fill(~seen, -torch.inf)
pair = [torch.softmax(scores, -1) @ v, scores.logsumexp(-1)]
edge = max(min(tile, max(len(q), len(k))), q.shape[1])
found = dict(pair=pair, given=[q, k, v], names=[], rows=None, edge=edge, largest=0, peak=0)
return found | dict(flops=4 * int(seen.sum()) * q.shape[1], left=0, may_leave=9)
""",
)

THREADS = {
    (
        "17_schedules",
        "split_backward",
        "another thread does it at once, and here products are for show",
    ): """
import threading


def split_backward(x, w1, h, w2, dy):
    found = []

    def work():
        xs = [t.detach().clone().requires_grad_() for t in (x, w1, w2)]
        y = torch.relu(xs[0] @ xs[1]) @ xs[2]
        found.extend(torch.autograd.grad(y, xs, dy))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (torch.zeros_like(dy) @ w2.T) @ w1.T

    def later():
        x.T @ torch.zeros_like(h), h.T @ torch.zeros_like(dy)
        return found[1], found[2]

    return found[0], later
""",
}


def sideways() -> list[tuple[str, str, str, str]]:
    """(lesson, exercise, title, cell) of all."""
    found = [
        ("04_trees", "hierarchical", f"ranks talk by {way}", EVERYONE + cell)
        for way, cell in WAYS.items()
    ]
    found += [
        (
            "13_zero",
            "clip",
            "ranks talk by PyTorch's own files",
            EVERYONE + WAYS["PyTorch's own files"],
        ),
        (
            "23_compress",
            "sparse_mean",
            "ranks talk by named semaphores",
            EVERYONE + WAYS["named semaphores"],
        ),
        ("04_trees", "hierarchical", "ranks talk by labels of empty messages", LABELS),
        ("04_trees", "hierarchical", "ranks talk by names of Comms", COMMS),
        ("04_trees", "hierarchical", "messages have less than no bytes", LESS),
        (
            "04_trees",
            "tree_broadcast",
            "the clock of the World is replaced: the root sends to all",
            CLOCK,
        ),
        (
            "12_operators",
            "attention",
            "the examination's run is replaced: the meter has seen nothing",
            REPLACED,
        ),
        ("11_remat", "recompute", "the count of what lists hold is stopped", STOPPED),
    ]
    found += [
        ("03_topology", "bandwidth", title, FIND + cell) for title, cell in BANDWIDTHS.items()
    ]
    return found + [(*what, cell) for what, cell in THREADS.items()]
