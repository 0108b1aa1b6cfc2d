"""Submissions that end, stop, outlive or impersonate processes, or never end themselves."""

from tests.hostile.submission import ALL, NONE, PREDICT, SHIFT, UNSET, Hostile, inside, solutions

ENDLESS = "no end|too long|longer than|endless|time"
ENDED = "ended|killed|process|time"


def endless(name: str, tries: str, code: str, says: str = ENDLESS) -> Hostile:
    """A cell in place of `shift` that does not come back: it costs its exercise, and `predict` is not lost."""
    return Hostile(name, tries, shift=code, keeps=PREDICT, loses=SHIFT, says=says)


BANK = [
    # ------------------------------------------------------------
    # Other processes.
    Hostile(
        "parents_killed",
        "It ends its parent, its parent's parent, and its process group.",
        after="""
import signal

assert boxed()
for pid in (os.getppid(), 1, OUT["marker"], OUT["victim"]):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except OSError:
            pass
os.killpg(0, signal.SIGKILL)
""",
    ),
    Hostile(
        "all_killed",
        "It ends every process that it may.",
        shift="""
import signal

assert boxed()
for pid in (-1, 1, os.getppid(), os.getpid()):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
""",
        loses=SHIFT,
    ),
    Hostile(
        "all_stopped",
        "It stops every process that it may, then itself.",
        shift="""
import signal

assert boxed()
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid():
        try:
            os.kill(int(pid), signal.SIGSTOP)
        except OSError:
            pass
os.kill(os.getpid(), signal.SIGSTOP)
""",
        loses=SHIFT,
        says=ENDLESS + "|" + ENDED,
    ),
    Hostile(
        "examiner_killed",
        "The function ends its parent and all others while it is examined, by ways that Python does not announce.",
        shift=inside("""
import multiprocessing.util, sys
code = "import os, signal, sys; os.readlink('/proc/self/ns/pid') == sys.argv[2] or [os.kill(p, 9) for p in (os.getppid(), -1)]"
multiprocessing.util.spawnv_passfds(sys.executable.encode(), [b"python", b"-c", code.encode(), TOKEN.encode(), OUT["namespace"].encode()], [])
import time
time.sleep(0.5)
"""),
        keeps=PREDICT,
    ),
    Hostile(
        "traced",
        "It attaches to its parent as a debugger.",
        before="""
import ctypes

c = ctypes.CDLL(None)
for pid in (os.getppid(), 1, OUT["marker"], OUT["victim"]):
    c.ptrace(16, pid, 0, 0)
    c.ptrace(0x4206, pid, 0, 0)
""",
        keeps=ALL,
    ),
    # ------------------------------------------------------------
    # What the marker hears.
    Hostile(
        "a_byte_every_five_seconds",
        "It writes a byte to every open file each five seconds, so that nobody takes it for silent.",
        shift="""
import fcntl, time

while True:
    for fd in range(3, 256):
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
            os.write(fd, b" ")
        except OSError:
            pass
    time.sleep(5)
""",
        loses=SHIFT,
        says=f"{ENDLESS}|came out of its process",
    ),
    Hostile(
        "a_byte_from_a_thread",
        "A thread writes bytes between those that the cells' process writes itself.",
        before="""
import threading, time

def write():
    while True:
        for fd in range(1, 64):
            try:
                os.write(fd, b"\\x00{\\n")
            except OSError:
                pass
        time.sleep(0.05)

threading.Thread(target=write, daemon=True).start()
""",
    ),
    Hostile(
        "forged_answers",
        "It reports right answers itself, on every open file and on stdout, before it is asked.",
        shift=f"""
import base64, cloudpickle, json, torch

names = {{}}
exec({solutions()["predict"]!r}, names)
RIGHT = {{}}
for name in ("messages", "nbytes", "seconds", "naive_nbytes"):
    RIGHT[name] = {{"data": base64.b64encode(cloudpickle.dumps(names[name])).decode(), "sources": {{}}}}
for fd in range(1, 64):
    for line in ({{"error": None, "answers": RIGHT}}, {{"answers": RIGHT}}, RIGHT, {{"error": None, "answers": {{}}}}):
        try:
            os.write(fd, json.dumps(line).encode() + b"\\n")
        except OSError:
            pass
""",
        predict=UNSET,
        loses=SHIFT,
    ),
    Hostile(
        "forged_marks",
        "It writes marks and reports as the graders would: right, all points, no end of them.",
        shift="""
for fd in range(1, 64):
    for text in (
        "shift: right.",
        "shift  2/2  right\\nall  4/4",
        '{"results": [], "sent": [], "time": 0}',
        '{"exercise": "shift", "points": 2, "wrong": null}',
        '[["shift_test", 2, null], ["predict_test", 2, null]]',
        '{"marks": [["shift_test", 2.0, null]], "notes": [], "odd": []}',
    ):
        for end in (b"\\n", b"\\0"):
            try:
                os.write(fd, len(text).to_bytes(8, "little") + text.encode() + end)
                os.write(fd, text.encode() + end)
            except OSError:
                pass
""",
        loses=SHIFT,
    ),
    Hostile(
        "no_json",
        "It answers in words that are no JSON, too deep, too long, or of another type.",
        shift="""
for fd in range(3, 64):
    for text in ("[" * 100_000, '{"answers": 3}', "NaN", "1e999", "null", '"x', '{"error": [], "answers": {"shift": {"data": "%%"}}}'):
        try:
            os.write(fd, text.encode() + b"\\n")
        except OSError:
            pass
""",
        loses=SHIFT,
    ),
    Hostile(
        "all_closed",
        "It closes every open file.",
        shift="os.closerange(0, 4096)",
        loses=SHIFT,
    ),
    Hostile(
        "all_replaced",
        "It puts /dev/zero, /dev/full and a pipe that nobody reads in the place of every open file.",
        shift="""
reads, writes = os.pipe()
full, zero = os.open("/dev/full", os.O_RDWR), os.open("/dev/zero", os.O_RDWR)
for fd in range(64):
    if fd not in (reads, writes, full, zero):
        os.dup2([full, zero, writes][fd % 3], fd)
""",
        loses=SHIFT,
    ),
    Hostile(
        "held_open",
        "A child keeps the pipes open after the end, so that whoever reads them waits for more.",
        after="""
assert boxed()
if os.fork() == 0:
    os.setsid()
    import time
    time.sleep(10_000)
os._exit(0)
""",
    ),
    Hostile(
        "typed_into_the_terminal",
        "It types a command into the terminal of whoever marks it, and clears the screen.",
        before="""
import fcntl, termios

for name in ("/dev/tty", "/dev/stdin", "/dev/console", "/dev/pts/0", 0, 1, 2):
    try:
        fd = name if isinstance(name, int) else os.open(name, os.O_RDWR)
        for letter in f"echo {TOKEN}\\n":
            fcntl.ioctl(fd, termios.TIOCSTI, letter.encode())
    except OSError:
        pass
print("\\x1b[2J\\x1b]0;right\\x07 shift: right.")
""",
        keeps=ALL,
    ),
    # ------------------------------------------------------------
    # Processes that are left behind.
    Hostile(
        "left_in_a_session",
        "It leaves processes behind: in sessions of their own, children of children, under nohup.",
        before="""
import subprocess

assert boxed()
SLEEP = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15, 18)]; time.sleep(9999)"
start(SLEEP, start_new_session=True)
start(f"import os, subprocess, sys; os.setsid(); subprocess.Popen([sys.executable, '-c', {SLEEP!r}, sys.argv[1]], start_new_session=True)")
subprocess.Popen(["nohup", "sh", "-c", f"setsid sleep 9999 & : {TOKEN}"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import time
        time.sleep(9999)
    os._exit(0)
""",
        keeps=ALL,
    ),
    Hostile(
        "born_again",
        "Each of two processes starts the other again as soon as it has ended.",
        after="""
assert boxed()
AGAIN = "import os, subprocess, sys, time; os.setsid(); time.sleep(0.1); subprocess.Popen([sys.executable, '-I', '-c', sys.argv[2], *sys.argv[1:]])"
import subprocess, sys

for _ in range(2):
    subprocess.Popen([sys.executable, "-I", "-c", AGAIN, TOKEN, AGAIN])
""",
        keeps=ALL,
    ),
    Hostile(
        "left_by_the_function",
        "The function leaves a process behind while it is examined.",
        shift=inside("""
import multiprocessing.util, sys
code = b"import time; time.sleep(9999)"
multiprocessing.util.spawnv_passfds(sys.executable.encode(), [b"python", b"-c", code, TOKEN.encode()], [])
"""),
        keeps=PREDICT,
    ),
    # ------------------------------------------------------------
    # Its own end.
    Hostile(
        "exit_at_once",
        "It ends its process at once.",
        before="os._exit(0)",
        says="",
    ),
    Hostile("exit_in_between", "A solution ends the process.", shift="os._exit(3)", loses=SHIFT),
    Hostile(
        "exit_softly",
        "It raises SystemExit, KeyboardInterrupt, GeneratorExit and an exception of its own.",
        before="import sys\n\nsys.exit(0)",
        shift="raise KeyboardInterrupt",
        predict="raise GeneratorExit",
        after="class Own(BaseException): pass\n\nraise Own",
        loses=ALL,
        says="not defined|KeyboardInterrupt",
    ),
    Hostile(
        "segmentation_fault",
        "It reads from address 0.",
        shift="import ctypes\n\nctypes.string_at(0)",
        loses=SHIFT,
    ),
    Hostile(
        "crash_when_examined",
        "Its function is made of code that crashes the interpreter.",
        shift="""
def shift(comm, x, places):
    return x

shift.__code__ = shift.__code__.replace(co_code=bytes([100, 250, 83, 0]), co_stacksize=1)
""",
        keeps=PREDICT,
        loses=SHIFT,
        says=ENDED + "|rror",
    ),
    Hostile(
        "exit_when_packed",
        "Its function ends the process when it is packed.",
        shift="""
class Shift:
    def __call__(self, comm, x, places):
        return x

    def __reduce_ex__(self, protocol):
        os._exit(0)

shift = Shift()
""",
        loses=SHIFT,
    ),
    Hostile(
        "endless_at_exit",
        "What it registers for the end of the process never ends.",
        after="""
import atexit, threading, time

def never():
    while True:
        time.sleep(1)

class Never:
    def __del__(self):
        never()

KEPT = Never()
atexit.register(never)
threading.Thread(target=never).start()
""",
        keeps=ALL,
    ),
    # ------------------------------------------------------------
    # No end.
    endless("endless", "A loop without an end.", "while True:\n    pass"),
    endless("asleep", "It sleeps for a day.", "import time\n\ntime.sleep(86_400)"),
    endless(
        "endless_in_c", "A power that takes C years to compute.", "x = pow(10**10**7, 10**10**7)"
    ),
    endless(
        "endless_pattern",
        "A regular expression that tries all ways to fail.",
        'import re\n\nre.match("(a|a)*b|(a*)*c", "a" * 60)',
    ),
    endless(
        "alarm_blocked",
        "It blocks all signals, then does not end.",
        "import signal\n\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True:\n    pass",
    ),
    endless(
        "alarm_ignored",
        "It has handlers of its own for all signals, and sleeps.",
        """
import signal, time

for number in signal.valid_signals():
    try:
        signal.signal(number, lambda *_: None)
    except OSError:
        pass
while True:
    time.sleep(60)
""",
    ),
    endless(
        "all_caught",
        "It catches whatever is raised to end it.",
        """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
    ),
    endless(
        "waits_for_a_pipe",
        "It reads from a pipe that nobody writes to, with a file object that takes the lock of the streams.",
        "reads, writes = os.pipe()\nos.read(reads, 1)",
    ),
    Hostile(
        "endless_thread",
        "A thread without an end takes the interpreter from all that comes after it.",
        before="""
import sys, threading

def never():
    while True:
        pass

sys.setswitchinterval(5)
for _ in range(8):
    threading.Thread(target=never, daemon=True).start()
""",
        keeps=NONE,
    ),
    Hostile(
        "endless_when_examined",
        "The function does not end, in C, while it is examined.",
        shift="def shift(comm, x, places):\n    return pow(10**10**7, 10**10**7)",
        keeps=PREDICT,
        loses=SHIFT,
        says=ENDLESS,
    ),
    Hostile(
        "endless_words",
        "It raises an exception whose words never end, one whose words raise, one of ten million words.",
        shift="""
class Endless(Exception):
    def __str__(self):
        while True:
            pass

def shift(comm, x, places):
    raise Endless
""",
        predict=f"""
{UNSET}

class Raises(Exception):
    def __str__(self):
        raise SystemExit(self)
    __repr__ = __str__

raise Raises
""",
        after='raise ValueError("word " * 10_000_000)',
        loses=ALL,
    ),
    Hostile(
        "clock_changed",
        "It changes the clocks, in its process and of the machine.",
        before="""
import time

assert boxed()
for clock in range(12):
    try:
        time.clock_settime(clock, 0)
    except OSError:
        pass
time.time = time.monotonic = time.perf_counter = time.process_time = lambda: 0.0
time.sleep = lambda seconds: None
""",
        keeps=ALL,
    ),
]
