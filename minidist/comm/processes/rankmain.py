"""What a forked rank does: become a rank, run the program, report, wait for leave to go."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import linecache
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection

import torch

from ..base import Comm, PeerLost, RankMissing
from ..program import Unchanged, seed_all, seed_of
from ..trace import Trace
from .endpoint import Endpoint
from .heap import keep_freed_memory
from .packing import dumps
from .shm import ShmComm


def rank_main(rank: int, request: dict, rings, store: str, report: int, held: int, stack) -> None:
    """Never returns: ends the process."""
    try:
        _live(rank, request, rings, store, report, held, stack)
    except BaseException:  # the supervisor is gone, or a defect of ours
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        os._exit(1)


def _live(rank: int, request: dict, rings, store: str, report: int, held: int, stack) -> None:
    go = threading.Event()
    threading.Thread(target=_watch, args=(held, go), daemon=True).start()
    try:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        outcome = _run(rank, request, rings, store)
    except BaseException as error:  # before the program began
        outcome = _failure(error, Trace(request["n"]))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have closed it
            stream.flush()
    Connection(report, readable=False).send_bytes(pickle.dumps(outcome))
    go.wait()
    if store:
        from ..torchdist import close

        close()
    os._exit(0)


def _watch(held: int, go: threading.Event) -> None:
    """The supervisor writes a byte when all are done; it has died when the pipe ends."""
    if not os.read(held, 1):
        os._exit(1)
    go.set()


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


def _run(rank: int, request: dict, rings, store: str) -> dict:
    _prepare(rank, request)
    trace = Trace(request["n"])
    start = time.monotonic()
    try:
        program, args, kwargs = pickle.loads(request["payload"])
        reached = Unchanged(program, *args, *kwargs.values())
        comm, flush = _connect(rank, request, rings, store, trace)
        start = time.monotonic()
        value = program(comm, *args, **kwargs)
        flush()
        end = time.monotonic()
        return {
            "ok": True,
            "value": _result(value),
            "trace": trace,
            "span": (start, end),
            "changed": reached.changed(),
        }
    except BaseException as error:
        return _failure(error, trace)


def _connect(rank: int, request: dict, rings, store: str, trace: Trace) -> tuple[Comm, object]:
    """This rank's Comm over the chosen transport, and what to call when the program has returned."""
    n = request["n"]
    timeout = request["timeout"]
    checked = request["checked"]
    if request["transport"] == "shm":
        endpoint = Endpoint(rings, rank, timeout, checked, trace)
        return ShmComm(endpoint, list(range(n)), rank), endpoint.close
    import torch.distributed as dist

    from ..torchdist import TorchComm

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    # A rank whose program ends at once must not be missed by those who are still connecting.
    os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "1")
    # Forming the group takes a while however short the program's own waits may be.
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{store}/ranks", n),
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
