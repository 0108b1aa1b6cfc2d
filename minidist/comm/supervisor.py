"""The parent of the ranks of one `launch`: forks them, watches them, ends them, tells the notebook.

It makes the shared memory and the semaphores, so they are inherited, have no name and leave no file. It
hears each rank through a pipe whose end is the rank's death. When a rank reports that another is
missing, it asks every rank for its stack (a signal that works even inside a C call) and says where they
are instead; but if a rank's process is stopped, it is that one which the others miss, whomever each of them
was waiting for. When the notebook is gone, so are the ranks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import linecache
import os
import pickle
import re
import selectors
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection

import torch

from .base import Comm, PeerLost, RankMissing
from .message import Rings
from .program import Unchanged, dumps, located, outside, seed_all, seed_of
from .shm import Endpoint, ShmComm, keep_freed_memory
from .trace import Trace

# ------------------------------------------------------------
# What a forked rank does: become a rank, run the program, report, wait for leave to go.


def rank_main(rank: int, supervisor: Supervisor, report: int, held: int, stack) -> None:
    """Never returns: ends the process."""
    try:
        leave = threading.Thread(target=_await_leave, args=(held,), daemon=True)
        leave.start()
        trace = Trace(supervisor.request["n"])
        try:
            faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
            outcome = _run(rank, supervisor, trace)
        except BaseException as error:
            outcome = _failure(error, trace)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the program may have closed it
                stream.flush()
        Connection(report, readable=False).send_bytes(pickle.dumps(outcome))
        leave.join()
        if supervisor.store:
            from .torchdist import close

            close()
        os._exit(0)
    except BaseException:  # the supervisor is gone, or a defect of ours
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        os._exit(1)


def _await_leave(held: int) -> None:
    """The supervisor writes a byte when all are done; it has died when the pipe ends."""
    if not os.read(held, 1):
        os._exit(1)


def _prepare(rank: int, request: dict) -> None:
    """The notebook's surroundings, one thread, and this rank's random numbers."""
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.path[:], sys.argv[:] = request["path"], request["argv"]
    linecache.cache.update(request["cells"])
    if os.path.isdir(request["cwd"]):
        os.chdir(request["cwd"])
    sys.stdout, sys.stderr = [
        os.fdopen(fd, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
        for fd in (1, 2)
    ]  # what the server opened were other files
    keep_freed_memory()
    torch.set_num_threads(1)  # first: a forked child's OpenMP threads hang if its parent had some
    torch.set_default_dtype(request["dtype"])
    seed_all(seed_of(request["seed"], rank))


def _run(rank: int, supervisor: Supervisor, trace: Trace) -> dict:
    """What came of the program, in forms that the notebook can rebuild."""
    request = supervisor.request
    _prepare(rank, request)
    program, args, kwargs = pickle.loads(request["payload"])
    reached = Unchanged(program, *args, *kwargs.values())
    comm, finish = _connect(rank, supervisor, trace)
    start = time.monotonic()
    value = program(comm, *args, **kwargs)
    finish()
    end = time.monotonic()
    return {
        "ok": True,
        "value": _result(value),
        "trace": trace,
        "span": (start, end),
        "changed": reached.changed(),
    }


def _connect(rank: int, supervisor: Supervisor, trace: Trace) -> tuple[Comm, Callable]:
    """This rank's Comm over the chosen transport, and what to call when the program has returned."""
    request = supervisor.request
    n = request["n"]
    timeout = request["timeout"]
    checked = request["checked"]
    if not supervisor.store:
        endpoint = Endpoint(supervisor.rings, rank, timeout, checked, trace)
        return ShmComm(endpoint, list(range(n)), rank), endpoint.close
    import torch.distributed as dist

    from .torchdist import TorchComm

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    # A rank whose program ends at once must not be missed by those who are still connecting.
    os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "1")
    # Forming the group takes a while however short the program's own waits may be.
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{supervisor.store}/ranks", n),
        rank=rank,
        world_size=n,
        timeout=timedelta(seconds=max(timeout, 30)),
    )
    comm = TorchComm(checked=checked, timeout=timeout, trace=trace)
    return comm, comm.flush


def _result(value) -> bytes:
    try:
        return dumps(value)
    except Exception as error:
        error.add_note(
            f"the program's result, a {type(value).__name__}, cannot be sent to the notebook"
        )
        raise


def _failure(error: BaseException, trace: Trace) -> dict:
    """The exception and the lines it passed through, in forms that the notebook can rebuild."""
    frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
    missing, lost = isinstance(error, RankMissing), isinstance(error, PeerLost)
    try:
        packed = dumps(error.with_traceback(None))
        pickle.loads(packed)
    except Exception:
        # never fails, whatever the exception
        text = "".join(traceback.format_exception_only(error)).strip()
        packed = dumps(RuntimeError(text))
    gc.collect()
    return {
        "ok": False,
        "error": packed,
        "frames": frames,
        "missing": missing,
        "lost": lost,
        "trace": trace,
    }


# ------------------------------------------------------------
# The supervisor: it forks the ranks, hears them, and ends them.


class _Rank:
    """A forked rank: its process, its pipes, and the file its stack is dumped into."""

    def __init__(self, rank: int, supervisor: Supervisor):
        results, report = os.pipe()
        self.prints, out = os.pipe()
        held, self.go = os.pipe()
        self.rank, self.stack = rank, tempfile.TemporaryFile()  # noqa: SIM115
        self.outcome: dict | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)  # with what it starts, a group that can be ended as one
            supervisor.forget()
            for fd in (results, self.prints, self.go):
                os.close(fd)
            os.dup2(out, 1)
            os.dup2(out, 2)
            rank_main(rank, supervisor, report, held, self.stack)
        for fd in (report, out, held):
            os.close(fd)
        self.results = Connection(results, writable=False)

    def ask(self) -> None:
        """Ask for its stack; the handler shares the file and its position with us."""
        self.stack.seek(0)
        self.stack.truncate()
        os.kill(self.pid, signal.SIGUSR1)

    def answered(self) -> bool:
        return os.fstat(self.stack.fileno()).st_size > 0

    def where(self) -> str:
        """The line at which the rank's main thread stood when it was asked."""
        self.stack.seek(0)
        threads = self.stack.read().decode(errors="replace").strip().split("\n\n")
        # From 3.12 on, a class that is called may stand between as `File "__init__", line ???`, which is in no file.
        frames = re.findall(r'^ *File "(.*)", line (\d+) in ', threads[-1], re.MULTILINE)
        place = outside((filename, int(line)) for filename, line in frames)
        return located(*place) if place else "(it does not answer)"

    def stopped(self) -> bool:
        """Whether its process is stopped: SIGSTOP, Ctrl-Z, a debugger."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # it has died, and has not been reaped
            return False

    def reap(self) -> str:
        """Wait for the end of a dead process, and end what it has started; says how it died."""
        # macOS: nobody is left in its group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            return f"it was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"its process ended with exit code {os.waitstatus_to_exitcode(status)}"


class Supervisor:
    """Runs the ranks of one request; the notebook hears ("print", rank, bytes), then ("end", outcomes, …)."""

    def __init__(self, notebook: Connection):
        self.notebook = notebook
        self.request = pickle.loads(self.notebook.recv_bytes())
        shared = self.request["transport"] == "shm"
        self.store = (
            "" if shared else tempfile.mkdtemp(prefix="minidist-")
        )  # where gloo's ranks meet
        self.rings = Rings(self.request["n"] if shared else 1, self.request["rate"])
        self.ranks: list[_Rank] = []
        self.dead: set[int] = set()
        self.heard = 0  # outcomes, in the order in which they came
        self.until: float | None = None  # when to end the run whose cause has not been heard of
        self.selector = selectors.DefaultSelector()

    def forget(self) -> None:
        """In a forked rank: close what belongs to the supervisor, so that an end of file means what it should."""
        self.selector.close()
        self.notebook.close()
        for rank in self.ranks:
            rank.results.close()
            os.close(rank.prints)
            os.close(rank.go)

    def run(self) -> None:
        try:
            for r in range(self.request["n"]):
                self.ranks.append(_Rank(r, self))
            self.selector.register(self.notebook, selectors.EVENT_READ, self._gone)
            for rank in self.ranks:
                for pipe, heard in ((rank.results, self._hear), (rank.prints, self._print)):
                    self.selector.register(pipe, selectors.EVENT_READ, partial(heard, rank))
            going = True
            while going and any(rank.outcome is None for rank in self.ranks):
                left = None if self.until is None else max(0, self.until - time.monotonic())
                for key, _ in self.selector.select(left):
                    going &= key.data()
                going &= left != 0
            self._end(going)
            unread = self.rings.unread() if going else []
            self.notebook.send(("end", [rank.outcome for rank in self.ranks], unread))
        finally:
            self._end(False)
            shutil.rmtree(self.store, ignore_errors=True)

    def _gone(self) -> bool:
        raise EOFError("the notebook never speaks twice: it has closed its end")

    def _print(self, rank: _Rank) -> bool:
        data = os.read(rank.prints, 1 << 16)
        if data:
            self.notebook.send(("print", rank.rank, data))
        else:
            self.selector.unregister(rank.prints)
        return True

    def _hear(self, rank: _Rank) -> bool:
        """A rank's outcome, or its death. False ends the run."""
        try:
            rank.outcome = pickle.loads(rank.results.recv_bytes())
        except (EOFError, OSError):
            self.selector.unregister(rank.results)
            if rank.outcome is not None:
                return True
            self.dead.add(rank.rank)
            rank.outcome = {"ok": False, "died": rank.reap()}
        self.heard += 1
        rank.outcome["order"] = self.heard
        missing, lost = rank.outcome.get("missing"), rank.outcome.get("lost")
        if missing or lost:
            stopped = [other for other in self.ranks if other.outcome is None and other.stopped()]
            rank.outcome["stopped"] = {other.rank: other.pid for other in stopped}
            if missing and not stopped:
                rank.outcome["where"] = self._where()
        if not rank.outcome["ok"]:
            self.rings.flag(rank.rank, 2)
        if rank.outcome["ok"] or self.request["on_failure"] == "continue":
            return True
        if lost and self.store and not rank.outcome["stopped"] and not self._explained():
            self.until = self.until or time.monotonic() + 1
            return True
        return False

    def _explained(self) -> bool:
        """Whether a rank has ended in another way than by losing a connection. When a wait over gloo times out, gloo
        closes that rank's connections: its neighbours may be heard before it is."""
        return any(
            r.outcome is not None and not r.outcome["ok"] and not r.outcome.get("lost")
            for r in self.ranks
        )

    def _where(self) -> dict[int, str]:
        """Where each rank stands that has neither ended nor failed."""
        alive = [rank for rank in self.ranks if rank.outcome is None]
        for rank in alive:
            rank.ask()
        until = time.monotonic() + 1
        while time.monotonic() < until and not all(rank.answered() for rank in alive):
            time.sleep(0.01)
        time.sleep(0.1)  # an answer is written line by line
        ended = {
            r.rank: "its end: its program has returned"
            for r in self.ranks
            if r.outcome and r.outcome["ok"]
        }
        return ended | {rank.rank: rank.where() for rank in alive}

    def _end(self, gently: bool) -> None:
        """No rank is left; all they printed has been passed on."""
        alive = [rank for rank in self.ranks if rank.rank not in self.dead]
        for rank in alive:
            with contextlib.suppress(BrokenPipeError, ProcessLookupError):
                if gently:
                    os.write(rank.go, b"g")
                else:
                    os.kill(rank.pid, signal.SIGKILL)
        until = time.monotonic() + 3
        for rank in alive:
            while (
                gently
                and os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            ):
                if time.monotonic() > until:
                    os.kill(rank.pid, signal.SIGKILL)
                time.sleep(0.001)
            rank.reap()
            self.dead.add(rank.rank)
        with contextlib.suppress(ConnectionError):
            for rank in self.ranks:
                os.set_blocking(rank.prints, False)
                with contextlib.suppress(BlockingIOError, KeyError):
                    while rank.prints in self.selector.get_map():
                        self._print(rank)


def supervise(fd: int) -> None:
    """Serve the one launch whose notebook is at the other end of the socket `fd`."""
    os.setsid()  # a Ctrl-C in the terminal is the notebook's to handle
    notebook = Connection(fd)
    try:
        Supervisor(notebook).run()
    except (EOFError, ConnectionError):
        pass  # the notebook has gone, or thought better of it
    except OSError as error:  # no room for semaphores, processes or open files
        notebook.send(("failed", f"{error}"))
