"""One run at a time in a folder: two would take each other's checkpoints for their own, and remove them."""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from socket import gethostname

from started import Refused

NAME = "lock"


@contextlib.contextmanager
def alone(folder: Path, wait: float = 5.0):
    """Nobody else is in `folder` while this is open. The lock ends with the process, however that ends.

    wait: seconds for a run that is just ending. Raises Refused, which names the other process, when they are over.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + wait
    with open(folder / NAME, "a+") as file:
        while not _locked(file):
            if time.monotonic() > until:
                file.seek(0)
                raise Refused(f"{folder} is in use by {file.read().strip()}: one run at a time")
            time.sleep(0.05)
        file.truncate(0)
        print(f"process {os.getpid()} on {gethostname()}", file=file, flush=True)
        yield


def _locked(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: then the user takes care
        pass
    return True
