"""`python -m tests.bank [LESSON …]`: planted and caught, for each lesson, and the seconds that it took.

Says what tests/bank/test_bank.py would refuse, and then ends with 1.
"""

import contextlib
import io
import sys
import time

from tests.bank.bank import ROOT, Bug, assignment, lessons, planted
from tests.bank.judge import bank_faults, exercise_faults


def faults(folder):
    """All that is wrong in a lesson, a line each, and how many planted answers are caught."""
    sheet = assignment(folder)
    lines, caught = bank_faults(folder), 0
    for exercise in sorted(sheet.solutions.keys() & sheet.tests.keys()):
        for answer, fault in exercise_faults(folder, exercise).items():
            bug = isinstance(answer, Bug)
            caught += bug and not fault
            if fault:
                where = f"{exercise}: {answer.title}" if bug else exercise
                lines.append(f"{where}: {fault}")
    return lines, caught


def main(names):
    wrong = []
    for folder in [ROOT / "course" / name for name in names] or lessons():
        start = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            found, caught = faults(folder)
        wrong += found
        print(
            f"{folder.name}: {len(assignment(folder).tests)} exercises, {len(planted(folder))} planted, "
            f"{caught} caught, {time.monotonic() - start:.1f} s"
        )
    print("\n".join(wrong), end="\n" * bool(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
