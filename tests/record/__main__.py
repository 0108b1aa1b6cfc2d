"""The record of what the package does: `python -m tests.record write` makes it, `compare` tells every difference.

    python -m tests.record compare                  all parts
    python -m tests.record write planner            one: techniques, planner, answers

Whoever changes a figure on purpose writes that part anew, and says why in the commit.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import torch

from tests.record import answers, planner, record

FOLDER = Path(__file__).parent
PARTS = {"techniques": record.techniques, "planner": planner.rows, "answers": answers.verdicts}
CLOSE = 1e-5  # of computed numbers: one unit of the last digit that is kept


def differences(before, after, where=""):
    """Each place at which the two differ, in words."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            place = f"{where} · {key}" if where else str(key)
            if key not in after:
                yield f"{place}: is gone"
            elif key not in before:
                yield f"{place}: is new"
            else:
                yield from differences(before[key], after[key], place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}[{i}]")
    elif isinstance(before, float) and isinstance(after, float | int):
        if not (before == after or math.isclose(before, after, rel_tol=CLOSE, abs_tol=1e-9)):
            yield f"{where}: {before!r} was recorded, and it is {after!r}"
    elif before != after:
        yield f"{where}: {before!r} was recorded, and it is {after!r}"


def written(part):
    return json.loads((FOLDER / f"{part}.json").read_text(encoding="utf-8"))


def packed(part):
    """A part as it is written, and read again: numbers and lists as JSON has them."""
    return json.loads(json.dumps(PARTS[part](), ensure_ascii=False))


def write(part):
    """One line for each row, so that a difference is a difference of lines."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    rows = [
        f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in packed(part).items()
    ]
    head = f'"commit": "{commit.stdout.strip()}"'
    (FOLDER / f"{part}.json").write_text(
        "{\n" + ",\n".join([head, *rows]) + "\n}\n", encoding="utf-8"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"the parts are {', '.join(PARTS)}, not {', '.join(unknown)}")
    torch.set_num_threads(1)  # another number adds in another order
    different = 0
    for part in options.parts or PARTS:
        if options.what == "write":
            write(part)
            continue
        before = written(part)
        commit = before.pop("commit")
        lines = sorted(differences(before, packed(part)))
        different += len(lines)
        print(f"{part}: {len(before)} rows, {len(lines)} differences since {commit[:7]}")
        for line in lines:
            print(f"    {line}")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
