"""Processes from a notebook cell: what goes wrong in a rank is told, and nothing is left behind."""

import importlib
import linecache
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from minidist.collectives import all_reduce_
from minidist.comm import Deadlock, PeerLost, RankMissing, launch
from minidist.comm.launch import _server
from tests.comm.children import descriptors, files, left, lives, until
from tests.repository.files import ROOT
from tests.size import FULL


def pid(comm):
    return os.getpid()


def exchange(comm, n=1 << 16):
    y = torch.empty(n)
    comm.sendrecv(torch.full((n,), float(comm.rank)), 1 - comm.rank, y, 1 - comm.rank)
    return y[-1].item()


def test_results():
    results = launch(exchange, 2)
    assert results == [1.0, 0.0] and isinstance(results, list)
    assert results.trace.messages() == 2 and 0 < results.time < 5
    assert len({os.getpid(), *launch(pid, 4)}) == 5


def test_many_launches_leave_nothing_behind(figure):
    launch(pid, 2)
    before, fds = files(), descriptors()
    count = 200 if FULL else 12
    for i in range(count):
        if i % 3 == 2:
            with pytest.raises(ZeroDivisionError):
                launch(lambda comm: comm.rank / 0, 4)
        else:
            launch(exchange, 2, transport="gloo" if i % 6 == 0 else "shm")
    assert until(lambda: not left())
    assert until(lambda: files() <= before, 10)  # other tests may come and go beside this one
    assert descriptors() == fds
    figure(f"{count} launches leave no process, no file and no open descriptor")


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(transport="mpi"), "not 'mpi'"),
        (dict(timeout=0), "not 0"),
        (dict(timeout=-1.0), "not -1.0"),
        (dict(on_failure="?"), "not '?'"),
    ],
)
def test_bad_arguments(kwargs, words):
    with pytest.raises(ValueError, match=words):
        launch(pid, 2, **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (dict(timeout="5"), "a timeout is a number of seconds, such as 30, more than 0"),
        (dict(timeout=None), "not None"),
        (dict(timeout=True), "not True"),
        (dict(seed="1"), "a seed is a whole number, not '1'"),
        (dict(seed=1.5), "not 1.5"),
        (dict(checked="no"), "checked is True or False, not 'no'"),
    ],
)
def test_arguments_of_another_type(kwargs, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        launch(pid, 2, **kwargs)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(timeout=float("nan")),
        dict(timeout=float("inf")),
        dict(rate=True),
        dict(rate="fast"),
        dict(rate=float("nan")),
        dict(transport=None),
    ],
)
def test_arguments_out_of_range(kwargs):
    [value] = kwargs.values()
    with pytest.raises(ValueError, match=re.escape(repr(value))):
        launch(pid, 2, **kwargs)


# --- ranks that end, hang, or never come ---


def die(how):
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        os._exit(3)


@pytest.mark.parametrize("transport", ["shm", "gloo"])
@pytest.mark.parametrize(
    ("how", "words"), [("kill", "killed by SIGKILL"), ("exit", "ended with exit code 3")]
)
def test_a_rank_that_dies(transport, how, words):
    def program(comm):
        if comm.rank == 2:
            die(how)
        comm.recv(torch.ones(1), 2)

    start = time.monotonic()
    with pytest.raises(PeerLost, match=words) as caught:
        launch(program, 3, transport=transport)
    assert caught.value.rank == 2 and time.monotonic() - start < 20  # not the timeout, 30


def test_a_rank_that_dies_is_told_to_the_others():
    """Before it sends, in the midst of a long message, and before it receives."""

    def program(comm):
        if comm.rank == 2:
            comm.isend(torch.ones(8 << 20), 1)
            die("kill")
        if comm.rank == 1:
            time.sleep(0.5)  # so long that the sender, waiting for room, is dead
        call, length = [(comm.recv, 1), (comm.recv, 8 << 20), None, (comm.send, 8 << 20)][comm.rank]
        with pytest.raises(PeerLost) as caught:
            call(torch.ones(length), 2)
        return caught.value.rank

    results = launch(program, 4, on_failure="continue")
    assert [results[r] for r in (0, 1, 3)] == [2, 2, 2]
    assert isinstance(results[2], PeerLost) and "SIGKILL" in str(results[2])


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_who_was_told_of_a_death_is_told_again(transport):
    """gloo tells it when one waits; after that it refuses to start."""

    def program(comm):
        if comm.rank == 2:
            die("kill")
        told = []
        for call in (comm.irecv, comm.irecv, comm.isend):
            work = call(torch.ones(8 << 20), 2)
            with pytest.raises(PeerLost) as caught:
                work.wait()
            told.append(caught.value.rank)
        return told

    assert launch(program, 3, transport=transport, on_failure="continue")[:2] == [
        [2, 2, 2],
        [2, 2, 2],
    ]


def test_polling_learns_of_a_death():
    def program(comm):
        if comm.rank == 1:
            die("exit")
        work = comm.irecv(torch.ones(1), 1)
        while not work.done():
            pass
        with pytest.raises(PeerLost):
            work.wait()
        return "told"

    assert launch(program, 2, on_failure="continue")[0] == "told"


def test_a_rank_that_has_returned():
    with pytest.raises(PeerLost, match="rank 1 is lost: its program returned before") as caught:
        launch(lambda comm: comm.rank or comm.recv(torch.ones(1), 1), 2)
    assert caught.value.rank == 1
    with pytest.raises(PeerLost, match="its program returned before"):
        launch(lambda comm: comm.rank or comm.send(torch.ones(8 << 20), 1), 2)


def asleep(comm):
    time.sleep(60)  # here


def spinning(comm):
    while True:
        pass  # here


def multiplying(comm):
    x = torch.ones(7000, 7000)  # here, on a slow machine
    return x @ x  # here


def busy_elsewhere(comm):
    comm.recv(torch.ones(1), 2)  # here


@pytest.mark.parametrize(
    ("elsewhere", "transport"),
    [
        (asleep, "shm"),
        (spinning, "shm"),
        (multiplying, "shm"),
        (busy_elsewhere, "shm"),
        (asleep, "gloo"),
    ],
)
def test_a_missing_rank_is_named_with_where_it_is(elsewhere, transport):
    def program(comm):
        if comm.rank:
            return asleep(comm) if comm.rank == 2 else elsewhere(comm)
        comm.recv(torch.ones(2), 1, label="grad")

    start = time.monotonic()
    with pytest.raises(RankMissing) as caught:
        launch(program, 3, timeout=0.6, transport=transport)
    assert time.monotonic() - start < 20
    text = str(caught.value)
    if caught.value.rank == 0:
        label = " [grad]" if transport == "shm" else ""
        assert text.startswith(
            f"rank 0 waited 0.6 s for receive of (2,) float32 from rank 1{label}\n"
        ), text
    else:  # who waits for a rank that waits in vain may not be the first to give up
        assert elsewhere is busy_elsewhere
        assert text.startswith("rank 1 waited 0.6 s for receive of (1,) float32 from rank 2\n"), (
            text
        )
    rows = text.splitlines()[1:]
    assert re.fullmatch(
        r"  rank 2 is at test_launch\.py:\d+: time\.sleep\(60\)  # here", rows[-1]
    ), text
    if elsewhere is not busy_elsewhere:
        assert re.fullmatch(
            r"  rank 1 is at test_launch\.py:\d+: (.*# here.*|while True:)", rows[0]
        ), text
    assert until(lambda: not left())


def test_a_missing_rank_that_has_returned_over_gloo():
    with pytest.raises(RankMissing, match="rank 1 is at its end: its program has returned"):
        launch(
            lambda comm: comm.rank or comm.recv(torch.ones(1), 1), 2, timeout=0.5, transport="gloo"
        )


def test_a_missing_rank_and_the_others_go_on():
    def program(comm):
        if comm.rank == 1:
            time.sleep(1.5)
            return "late"
        if comm.rank == 0:
            comm.recv(torch.ones(1), 1)

    results = launch(program, 3, timeout=0.5, on_failure="continue")
    assert results[1:] == ["late", None]
    assert isinstance(results[0], RankMissing)
    assert re.search(r"rank 1 is at test_launch.py:\d+: time.sleep\(1.5\)", str(results[0]))
    assert "rank 2 is at its end" in str(results[0])


def test_progress_is_not_a_timeout():
    def program(comm):
        for _ in range(3):
            if comm.rank == 1:
                time.sleep(0.4)
            comm.sendrecv(torch.ones(1), 1 - comm.rank, torch.ones(1), 1 - comm.rank)
        return "done"

    assert launch(program, 2, timeout=1.0) == ["done", "done"]


def test_messages_never_received():
    def early(comm):
        if comm.rank == 0:
            comm.send(torch.ones(1), 1)

    def aside(comm):
        if comm.rank == 0:
            comm.split(0).send(torch.ones(1), 1)
            comm.send(torch.ones(1), 1)
        else:
            comm.split(0)
            comm.recv(torch.ones(1), 0)

    for program in (early, aside):
        with pytest.raises(Deadlock, match="never received") as caught:
            launch(program, 2)
        assert type(caught.value) is Deadlock and "rank 0" in str(caught.value)


# --- the stop button, and a notebook that is killed ---

STOPPED = """
import os, sys, time
from minidist.comm import launch

def endless(comm, rank):
    print(os.getpid(), flush=True) if comm.rank == rank else None
    while comm.rank == rank:
        pass
    time.sleep(60)

def pid(comm):
    return os.getpid()

try:
    print("first", len(launch(pid, 2)), flush=True)  # no main guard
    input()  # until the test has seen who is there
    launch(endless, 3, 0)
except KeyboardInterrupt:
    print("stopped", flush=True)
print("again", len(launch(pid, 3)), flush=True)
launch(endless, 3, 1)
"""


@pytest.fixture
def script(tmp_path):
    """Start a script; it and its whole family are gone at the end."""
    started = []

    def start(text):
        (tmp_path / "script.py").write_text(text)
        process = subprocess.Popen(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def family(process):
    import psutil

    return psutil.Process(process.pid).children(recursive=True)


def test_the_stop_button_and_a_killed_notebook(script):
    process = script(STOPPED)
    assert process.stdout.readline() == "first 2\n"
    server = family(process)
    process.stdin.write("\n")
    process.stdin.flush()
    rank = int(process.stdout.readline())
    ranks = [p for p in family(process) if p not in server]
    assert rank in [p.pid for p in ranks] and len(ranks) >= 3
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopped\n"
    assert time.monotonic() - start < 20
    assert until(lambda: not any(p.is_running() for p in ranks))
    assert process.stdout.readline() == "again 3\n"  # and nothing else was printed

    assert until(lambda: len(family(process)) >= 5)  # server, supervisor, three ranks
    time.sleep(0.2)
    everyone = family(process)
    process.kill()
    assert until(lambda: not any(p.is_running() for p in everyone), 3)


CRAMPED = """
import resource
from minidist.comm import launch
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
try:
    launch(lambda comm: comm.rank, 16)
except RuntimeError as error:
    print(error)
print(launch(lambda comm: comm.rank, 2))
"""


def test_a_machine_that_cannot_start_so_many_ranks():
    """The limit of open files stands for those of processes, and of semaphores in /dev/shm."""
    told = subprocess.run([sys.executable, "-c", CRAMPED], cwd=ROOT, capture_output=True, text=True)
    failed, then = told.stdout.splitlines()
    assert "could not start 16 ranks" in failed and "Too many open files" in failed
    assert "--doctor" in failed and then == "[0, 1]" and told.stderr == ""


def test_a_killed_supervisor():
    def program(comm):
        if comm.rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(RuntimeError, match="supervisor of the ranks died"):
        launch(program, 2)
    assert until(lambda: not left())


def has(comm, name):
    return name in sys.modules


def test_a_killed_server_is_replaced_and_loads_what_is_loaded_here(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("minidist.study")]:
        monkeypatch.delitem(sys.modules, name)
    launch(pid, 1)
    server = _server(os.getpid())[1]
    server.kill()
    server.wait()
    assert launch(has, 2, "minidist.study.picture") == [False, False]
    assert _server(os.getpid())[1].pid != server.pid
    for name in ("minidist.nowhere", "minidist.study.picture"):  # the first cannot be loaded there
        monkeypatch.setitem(sys.modules, name, None)
    assert launch(has, 2, "minidist.study.picture") == [True, True] and launch(
        has, 1, "minidist.nowhere"
    ) == [False]


def test_what_a_rank_starts_ends_with_it():
    def program(comm):
        return subprocess.Popen(["sleep", "60"]).pid

    children = launch(program, 2)
    assert until(lambda: not any(map(lives, children)))


# --- what ranks print ---


def test_prints_come_in_rank_order(capsys):
    def program(comm):
        if comm.rank < 2:  # the last rank prints first, however busy the machine is
            comm.recv(torch.zeros(1), comm.rank + 1)
            time.sleep(0.05)
        print("rank", comm.rank)
        print("error", comm.rank, file=sys.stderr)
        os.write(1, b"written %d\n" % comm.rank)
        if comm.rank > 0:
            comm.send(torch.zeros(1), comm.rank - 1)

    launch(program, 3)
    assert capsys.readouterr().out == "".join(
        f"rank {r}\nerror {r}\nwritten {r}\n" for r in range(3)
    )


def test_prints_of_a_rank_that_fails_or_dies(capsys):
    def program(comm):
        print("π" * 100_000 + f" of rank {comm.rank}")
        if comm.rank == 1:
            sys.stdout.flush()
            os._exit(1)
        time.sleep(20)

    with pytest.raises(PeerLost):
        launch(program, 2)
    out = capsys.readouterr().out
    assert out.endswith("π" * 100_000 + " of rank 1\n") and "\ufffd" not in out


def test_a_large_print_by_every_rank(capsys):
    def program(comm):
        print(("é" * 99 + "\n") * 50_000, end="")  # 10 MB
        return exchange(comm)

    assert launch(program, 2) == [1.0, 0.0]
    assert capsys.readouterr().out == ("é" * 99 + "\n") * 100_000


def test_a_rank_that_closes_its_output():
    def program(comm):
        if comm.rank == 0:
            sys.stdout.close()
        else:
            os.close(1)
        return exchange(comm)

    assert launch(program, 2) == [1.0, 0.0]


# --- what travels ---


def test_64_mib_both_ways():
    assert launch(exchange, 2, 16 << 20) == [1.0, 0.0]


def growth(comm):
    """MiB by which all-reduces of some 16 MiB, again and again, grow a rank that has done two."""
    most = []
    for k in range(8):
        x = torch.ones((4 << 20) - 1000 * k)
        for _ in range(4):
            all_reduce_(comm, x, algorithm="ring")
            most.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        del x
    return most[-1] - most[1]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is told to keep what was freed")
def test_freed_memory_is_used_again():
    """The buffer of 8 MiB that a ring needs lies where the one before it was: fresh pages would take ten times as long."""
    assert all(mebibytes < 4 for mebibytes in launch(growth, 2))


def test_large_arguments_and_results():
    x = torch.arange(1 << 20)

    def program(comm, x):
        return x + comm.rank, x[:3]

    results = launch(program, 2, x)
    assert all(
        torch.equal(whole, x + r) and part.tolist() == [0, 1, 2]
        for r, (whole, part) in enumerate(results)
    )


def test_results_keep_what_was_shared():
    def program(comm):
        x = torch.zeros(4)
        return x, x[1:3], torch.nn.Parameter(x), torch.empty(0), torch.empty(2, device="meta")

    (x, part, parameter, empty, meta), _ = launch(program, 2)
    part.fill_(1)
    assert x.tolist() == parameter.tolist() == [0, 1, 1, 0] and empty.numel() == 0 and meta.is_meta


def test_what_cannot_travel():
    with pytest.raises(TypeError, match="lock") as caught:
        launch(lambda comm, lock: 0, 2, threading.Lock())
    assert "launch sends the program" in caught.value.__notes__[0]
    with pytest.raises(TypeError, match="lock") as caught:
        launch(lambda comm: threading.Lock() if comm.rank else 0, 2)
    assert "the program's result, a lock, cannot be sent to the notebook" in caught.value.__notes__
    assert caught.value.rank == 1


class Picky(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.lock = threading.Lock()


class Silent(Exception):
    def __reduce__(self):
        raise TypeError

    def __str__(self):
        raise TypeError


@pytest.mark.parametrize(
    ("error", "words"),
    [(lambda: Picky("loss", 1), "Picky: loss"), (Silent, "Silent: <exception str() failed>")],
)
def test_an_exception_that_cannot_travel(error, words):
    def program(comm):
        raise error()

    with pytest.raises(RuntimeError) as caught:
        launch(program, 1)
    assert words in str(caught.value) and caught.value.rank == 0


def test_a_rank_has_the_notebook_s_surroundings(monkeypatch, tmp_path):
    def look(comm):
        environment = os.environ.get("COLOUR"), os.environ.get("HOMELESS")
        return os.getcwd(), *environment, sys.path[0], sys.argv, sys.stdin.read()

    monkeypatch.setenv("HOMELESS", "1")
    launch(pid, 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOUR", "blue")
    monkeypatch.delenv("HOMELESS")
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    assert launch(look, 1) == [(str(tmp_path), "blue", None, "first", sys.argv, "")]


MODULE = """
with open(__file__ + ".imported", "a") as file:
    file.write("x")

rate = 1

class Mine(Exception):
    pass

def double(x):
    return x * 2 * rate

def program(comm, fail=False):
    if fail:
        raise Mine(comm.rank)
    return double(comm.rank + 1)
"""


def test_a_module_of_the_user_s_is_not_run_again(monkeypatch, tmp_path):
    (tmp_path / "my_training.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("my_training")
    module.rate = 10  # as it is now, not as its file says
    assert launch(module.program, 2) == [20, 40]
    assert launch(lambda comm, f: f(comm.rank), 2, module.double) == [0, 20]
    with pytest.raises(module.Mine):
        launch(module.program, 2, fail=True)
    assert (tmp_path / "my_training.py.imported").read_text() == "x"
    del sys.modules["my_training"]


def test_errors_show_the_lines_of_a_cell():
    name = "/tmp/ipykernel_1/2.py"
    last = "comm.send(x, 1) if comm.rank == 0 else comm.recv(x, 0)"
    code = f"def program(comm):\n    x = torch.ones(2 + comm.rank)\n    {last}\n"
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    cell = {"torch": torch}
    exec(compile(code, name, "exec"), cell)
    with pytest.raises(ValueError) as caught:
        launch(cell["program"], 2)
    assert str(caught.value).count(f"    at line 3 of the cell: {last}") == 2
    assert f"line 3 of the cell: {last}" in str(caught.value.__cause__)
    del linecache.cache[name]


# --- checks, and their absence ---


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_unchecked(transport):
    def program(comm):
        x, y = torch.arange(6.0), torch.zeros(2, 3)
        if comm.rank == 0:
            comm.send(x, 1, label="a")
        else:
            comm.recv(y, 0, label="b")
        comm.sendrecv(x.to(torch.int32), 1 - comm.rank, y.view(torch.int32), 1 - comm.rank)
        return y.view(torch.int32).tolist()

    assert launch(program, 2, checked=False, transport=transport)[1] == [[0, 1, 2], [3, 4, 5]]


def test_unchecked_lengths_are_compared_all_the_same():
    def program(comm):
        if comm.rank == 0:
            comm.send(torch.ones(2), 1)
        else:
            comm.recv(torch.ones(3), 0)

    with pytest.raises(
        ValueError, match=r"rank 0 sends \(2,\) float32(.|\n)*rank 1 receives \(3,\) float32"
    ):
        launch(program, 2, checked=False)


def test_what_a_header_cannot_hold():
    def program(comm):
        peer = 1 - comm.rank
        with pytest.raises(ValueError, match="a meta tensor"):
            comm.isend(torch.ones(1, device="meta"), peer)
        with pytest.raises(ValueError, match="room for 512 bytes"):
            comm.isend(torch.ones([1] * 64).expand([1] * 64), peer, label="ü" * 500)
        x, y = torch.ones([1] * 20), torch.zeros([1] * 20)
        comm.batch([]).wait()
        return comm.sendrecv(x, peer, y, peer, label="ü" * 500).item()

    assert launch(program, 2) == [1, 1]


# --- threads ---


def test_two_launches_at_the_same_time_from_threads():
    results = {}

    def go(name):
        results[name] = [launch(exchange, 2) for _ in range(3)], len(launch(pid, 3))

    threads = [threading.Thread(target=go, args=(name,)) for name in "ab"]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert results == {name: ([[1.0, 0.0]] * 3, 3) for name in "ab"}
