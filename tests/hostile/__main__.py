"""`python -m tests.hostile [NAME …]`: mark hostile submissions, all or some, in a sandbox; a line for each.

--engine NAME: bwrap (what is not said otherwise), podman or docker. Ends with 1 if one was not marked as it should be,
or has changed, reached, read or left something outside of its sandbox.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from minicheck.sandbox import engine
from tests.hostile.bank import BANK
from tests.hostile.outside import Outside
from tests.hostile.trial import faults


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--engine", default="bwrap")
    args = parser.parse_args(argv)
    sandbox, wrong = engine(args.engine), 0
    with tempfile.TemporaryDirectory() as folder, Outside(Path(folder)) as outside:
        for name in args.names or BANK:
            start = time.monotonic()
            found = faults(BANK[name], outside, sandbox)
            print(f"{name}: {time.monotonic() - start:.1f} s", *found, sep="\n  ", flush=True)
            wrong += bool(found)
        written = outside.written()
    print(*[f"written outside: {path}" for path in written], sep="\n", end="\n" * bool(written))
    return int(bool(wrong or written))


if __name__ == "__main__":
    sys.exit(main())
