"""Submissions that take more than their share: memory, processes, files, output."""

from tests.hostile.submission import ALL, PREDICT, SHIFT, UNSET, Hostile, inside, solutions

SPENT = "memory|killed|ended|large|process|time|too|longer|permitted|unavailable|room"


def spent(name: str, tries: str, code: str) -> Hostile:
    """Who is not stopped while he takes more than any machine should lend to one, has the right `shift` afterwards."""
    cell = f"assert boxed()\n{code.strip()}\n{solutions()['shift']}"
    return Hostile(name, tries, shift=cell, loses=SHIFT, says=SPENT)


BANK = [
    # ------------------------------------------------------------
    # Memory.
    spent(
        "memory_of_tensors",
        "Five tensors of 3 GiB each, all written to.",
        "import torch\n\nheld = [torch.ones(3 << 28) for _ in range(5)]",
    ),
    spent(
        "memory_of_lists",
        "A list that doubles, up to 16 GiB.",
        "held = [0]\nwhile len(held) < 1 << 31:\n    held += held",
    ),
    spent(
        "memory_of_maps",
        "Anonymous maps, shared and private, each page written to.",
        """
import mmap

held = []
for _ in range(20):
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        one = mmap.mmap(-1, 1 << 28, flags=flags | mmap.MAP_ANONYMOUS)
        for at in range(0, 1 << 28, 4096):
            one[at] = 1
        held.append(one)
""",
    ),
    spent(
        "memory_of_files",
        "Files in memory, by memfd_create, which no folder shows.",
        """
held = []
for _ in range(40):
    held.append(os.memfd_create("x"))
    for _ in range(256):
        os.write(held[-1], bytes(1 << 20))
""",
    ),
    spent(
        "memory_of_many",
        "Forty children that each take what one may.",
        """
import time

pids = []
for _ in range(40):
    pids.append(os.fork())
    if pids[-1] == 0:
        held = bytearray(1 << 28)
        for at in range(0, len(held), 4096):
            held[at] = 1
        time.sleep(600)
time.sleep(5)
assert all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in pids)
""",
    ),
    spent(
        "memory_errors_caught",
        "It goes on to allocate where memory ends.",
        """
held = []
while len(held) < 640:
    try:
        held.append(b"x" * (1 << 24))
    except MemoryError:
        pass
""",
    ),
    Hostile(
        "memory_when_examined",
        "The function takes 3 GiB and more while it is examined.",
        shift=inside("assert boxed()\nheld = [torch.ones(3 << 28) for _ in range(5)]"),
        keeps=PREDICT,
    ),
    spent(
        "stack",
        "A recursion without an end, and without Python's limit.",
        """
import sys, threading

sys.setrecursionlimit(20_000_000)
threading.stack_size(1 << 30)

def down(x):
    return down([x])

down(0)
""",
    ),
    # ------------------------------------------------------------
    # Files.
    spent(
        "disk_full",
        "It fills every folder that it may write to.",
        """
import subprocess

places = [".", "/tmp", "/dev/shm", "/var/tmp", "/run", os.path.expanduser("~"), OUT["course"]]
for line in open("/proc/mounts"):
    places.append(line.split()[1])
written = 0
for place in places:
    try:
        with open(os.path.join(place, TOKEN), "wb") as file:
            for _ in range(1 << 13):
                written += file.write(bytes(1 << 20))
    except OSError:
        pass
    if written > 10 << 30:
        break
assert written > 10 << 30, f"no room for more than {written} bytes"
""",
    ),
    Hostile(
        "sparse_file",
        "A file of a tebibyte that takes no room until it is copied.",
        before="""
for place in (".", "/tmp", "/dev/shm"):
    try:
        with open(f"{place}/{TOKEN}", "wb") as file:
            file.truncate(1 << 40)
    except OSError:
        pass
""",
        keeps=ALL,
    ),
    Hostile(
        "many_files",
        "A hundred thousand files in each folder, and as many open ones as it may have.",
        before="""
for place in (".", "/tmp", "/dev/shm"):
    try:
        for i in range(100_000):
            os.close(os.open(f"{place}/{TOKEN}{i}", os.O_CREAT | os.O_WRONLY))
    except OSError:
        pass
""",
        after="""
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
""",
        keeps=ALL,
    ),
    # ------------------------------------------------------------
    # Processes.
    spent(
        "forks",
        "Each process makes two, twelve times.",
        """
import time

first = os.getpid()
for _ in range(12):
    os.fork()
time.sleep(10)
if os.getpid() != first:
    time.sleep(600)
""",
    ),
    Hostile(
        "threads",
        "Ten thousand threads that wait.",
        before="""
import threading, time

assert boxed()
try:
    for _ in range(10_000):
        threading.Thread(target=time.sleep, args=(9999,), daemon=True).start()
except (RuntimeError, MemoryError):
    pass
""",
    ),
    Hostile(
        "zombies",
        "Children that have ended and are never waited for.",
        before="""
assert boxed()
try:
    for _ in range(5000):
        if os.fork() == 0:
            os._exit(0)
except OSError:
    pass
""",
    ),
    Hostile(
        "limits_raised",
        "It sets the limits of its process to none, its priority to the highest, and its share to all.",
        before="""
import resource

for number in range(16):
    try:
        resource.setrlimit(number, (-1, -1))
        resource.prlimit(os.getppid(), number, (0, 0))
    except (OSError, ValueError):
        pass
for act in (
    lambda: os.nice(-20),
    lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99)),
    lambda: os.sched_setaffinity(1, {0}),
    lambda: open("/proc/self/oom_score_adj", "w").write("-1000"),
    lambda: open("/sys/fs/cgroup/cgroup.procs", "w").write("0"),
):
    try:
        act()
    except OSError:
        pass
""",
        keeps=ALL,
    ),
    Hostile(
        "limits_to_nothing",
        "It sets the limits of its process to nothing, so that all that follows fails.",
        shift="""
import resource

for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_DATA):
    resource.setrlimit(number, (0, 0))
""",
        loses=SHIFT,
    ),
    # ------------------------------------------------------------
    # Output.
    Hostile(
        "printed",
        "It prints 100 MB, to both streams, with escapes and with bytes that are no text.",
        before="""
import sys

for _ in range(100):
    print("right " * (1 << 17))
    os.write(2, b"\\xff\\x1b[2J" * (1 << 16))
""",
        keeps=ALL,
    ),
    Hostile(
        "printed_without_end",
        "It prints until it is stopped.",
        shift="import sys\n\nwhile True:\n    print('x' * (1 << 20))\n    os.write(2, bytes(1 << 20))",
        loses=SHIFT,
        keeps=PREDICT,
    ),
    Hostile(
        "large_answer",
        "An answer of a gigabyte.",
        shift="""
LARGE = bytes(1 << 30)

def shift(comm, x, places):
    return LARGE
""",
        loses=SHIFT,
        says=SPENT,
    ),
    Hostile(
        "large_result",
        "The function returns a gigabyte, a thousand million empty lists, and itself.",
        shift="""
def shift(comm, x, places):
    rows = [[]] * 100_000_000
    return [torch.empty(1 << 28), rows]
""",
        keeps=PREDICT,
        loses=SHIFT,
    ),
    Hostile(
        "large_when_opened",
        "A small answer that becomes a list of a hundred thousand million where it is opened.",
        shift="""
class Bomb:
    def __reduce__(self):
        return list, ((b"",) * 1,), None, iter([0]), None

    def __reduce_ex__(self, protocol):
        return eval, ("[0] * 10**11",)

def shift(comm, x, places, bomb=Bomb()):
    return x
""",
        keeps=PREDICT,
        loses=SHIFT,
    ),
    Hostile(
        "deep_answer",
        "An answer of a million lists, one in the other.",
        shift="""
DEEP = []
for _ in range(1_000_000):
    DEEP = [DEEP]

def shift(comm, x, places):
    return DEEP
""",
        predict=f"{UNSET}\nmessages = nbytes = seconds = naive_nbytes = DEEP",
        loses=ALL,
    ),
    Hostile(
        "deep_result",
        "The function returns a list that holds itself, and one that is too deep to write down.",
        shift="""
def shift(comm, x, places):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    deep[0].append(deep)
    return deep
""",
        keeps=PREDICT,
        loses=SHIFT,
    ),
    Hostile(
        "large_numbers",
        "A number of a hundred million digits, which takes long to write down.",
        predict="messages = 1 << (1 << 29)\nnbytes = 10**100_000\nseconds = float('nan')\nnaive_nbytes = -float('inf')",
        keeps=SHIFT,
        loses=PREDICT,
    ),
    Hostile(
        "large_source",
        "A function whose source, by the lines that the interpreter keeps, is a gigabyte.",
        shift="""
import linecache

def shift(comm, x, places):
    raise ValueError("see this line")

name = shift.__code__.co_filename
linecache.cache[name] = (1, None, ["right " * (1 << 20)] * 1000, name)
""",
        loses=SHIFT,
    ),
]
