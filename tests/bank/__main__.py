"""`python -m tests.bank [LESSON …]`: planted and caught, for each lesson, and the seconds that it took."""

import contextlib
import io
import sys
import time

from minidist.check import Wrong
from tests.bank.bank import assignment, lessons, planted, run


def caught(folder, bug):
    """Whether the grader says that a planted answer is wrong."""
    names = assignment(folder).namespace()
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            run(bug.path.read_text(encoding="utf-8"), f"<ipython {bug.path.stem}>", names)
            run(assignment(folder).tests[bug.exercise], f"<ipython test of {bug.exercise}>", names)
        except Wrong:
            return True
    return False


def main():
    missed = []
    for folder in [f for f in lessons() if f.name in sys.argv[1:] or not sys.argv[1:]]:
        start, bugs = time.monotonic(), planted(folder)
        missed += (passed := [bug for bug in bugs if not caught(folder, bug)])
        print(f"{folder.name}: {len(assignment(folder).tests)} exercises, {len(bugs)} planted, "
              f"{len(bugs) - len(passed)} caught, {time.monotonic() - start:.1f} s")
    for bug in missed:
        print(f"missed: {bug.path.name}: {bug.exercise}: {bug.why}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
