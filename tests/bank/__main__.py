"""`python -m tests.bank [LESSON …]`: planted and caught, for each lesson, and the seconds that it took.

Says what tests/bank/test_bank.py would refuse, and then ends with 1.
"""

import contextlib
import io
import sys
import time

from tests.bank.bank import ROOT, assignment, lessons, planted
from tests.bank.judge import bank_faults, planted_fault, solution_fault, stub_fault


def faults(folder):
    """All that is wrong in a lesson, a line each, and how many planted answers are caught."""
    sheet = assignment(folder)
    exercises = sorted(sheet.solutions.keys() & sheet.tests.keys())
    found = {bug: planted_fault(folder, bug) for bug in planted(folder) if bug.exercise in exercises}
    said = [(name, fault(folder, name)) for name in exercises for fault in (solution_fault, stub_fault)]
    lines = [f"{bug.path.name}: {bug.exercise}: {bug.why}: {fault}" for bug, fault in found.items() if fault]
    lines += [f"{name}: {fault}" for name, fault in said if fault]
    return bank_faults(folder) + lines, list(found.values()).count("")


def main(names):
    wrong = []
    for folder in [ROOT / "course" / name for name in names] or lessons():
        start = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            found, caught = faults(folder)
        wrong += found
        print(f"{folder.name}: {len(assignment(folder).tests)} exercises, {len(planted(folder))} planted, "
              f"{caught} caught, {time.monotonic() - start:.1f} s")
    print("\n".join(wrong), end="\n" * bool(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
