"""Two hosts on one machine: network namespaces, joined by a link that is really slow.

A veth pair joins the namespaces, and `tc tbf`, a token bucket at either end, lets through so many Mbit/s each way. It
takes root and iproute2. Whatever is started in `hosts` ends with it, after Ctrl-C, a kill or a failure, too; what a
`kill -9` leaves behind is found by `left_over` and ended by `remove`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

LINK, ADDRESSES = "slow0", ("10.77.0.1", "10.77.0.2")  # nobody else is in these namespaces
PREFIX = "minidist-"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ip(*words: str, check: bool = True) -> str:
    """Run `ip`, or `tc`, if that is the first word; returns what it prints. CalledProcessError with its words."""
    command = list(words) if words[0] == "tc" else ["ip", *words]
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


def missing() -> str | None:
    """Why there can be no slow link here; None if there can."""
    absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if absent:
        return f"iproute2 is not installed: there is no {' and no '.join(absent)}"
    if os.geteuid() != 0:
        return f"network namespaces need root, and this is user {os.geteuid()}"
    try:
        with hosts(100):
            return None
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses `{' '.join(error.cmd)}`: {error.stderr.strip()}"


def left_over() -> list[str]:
    """Namespaces that were made here, by a process that is dead."""
    names = [
        line.split()[0] for line in ip("netns", "list").splitlines() if line.startswith(PREFIX)
    ]
    return [name for name in names if not os.path.exists(f"/proc/{name.split('-')[1]}")]


def inside(name: str) -> list[int]:
    """Processes of a namespace; first those of `ip netns exec` that have yet to enter it: none slips between."""
    entering = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if f"netns\0exec\0{name}\0".encode() in path.read_bytes():
                entering.append(int(path.parent.name))
    return entering + [int(pid) for pid in ip("netns", "pids", name, check=False).split()]


def remove(names: list[str]) -> None:
    """End what runs in these namespaces, and delete them; their links go with them."""
    for name in names:
        without = 0
        # one may have started another, and has no words for a moment, while that begins
        while without < 2:
            pids = inside(name)
            without = 0 if pids else without + 1
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        ip("netns", "delete", name, check=False)


def ignore() -> None:
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)


def stop(number: int, frame) -> None:
    """A signal becomes an exception; those that come after it, while all is being removed, are ignored."""
    ignore()
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


@contextlib.contextmanager
def stopped_once() -> Iterator[None]:
    """A signal ends the block as an exception does, unless it was ignored before."""
    before = {each: signal.getsignal(each) for each in STOPS}
    for each, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def hosts(megabits: int) -> Iterator[list[str]]:
    """Two namespaces with ADDRESSES, joined by LINK at so many Mbit/s each way; deleted at the end."""
    names = [f"{PREFIX}{os.getpid()}-{side}" for side in "ab"]
    with stopped_once():
        try:
            for name in names:
                ip("netns", "add", name)
            ip(
                "link",
                "add",
                LINK,
                "netns",
                names[0],
                "type",
                "veth",
                "peer",
                "name",
                LINK,
                "netns",
                names[1],
            )
            for name, address in zip(names, ADDRESSES, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", LINK)
                ip("-n", name, "link", "set", LINK, "up")
                ip("-n", name, "link", "set", "lo", "up")
                ip(
                    "tc",
                    "-n",
                    name,
                    "qdisc",
                    "add",
                    "dev",
                    LINK,
                    "root",
                    "tbf",
                    "rate",
                    f"{megabits}mbit",
                    "burst",
                    f"{max(16, megabits // 4)}kb",
                    "latency",
                    "400ms",
                )
            yield names
        finally:
            try:
                ignore()
            finally:
                remove(names)
