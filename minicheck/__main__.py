"""`python -m minicheck NOTEBOOK [--against SOLVED]`: a line for each exercise, the points.

Exit code: 0 if all are right, 1 if not, 2 if the notebook cannot be checked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .notebook import check


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m minicheck", description="Check the exercises of a notebook."
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument(
        "--against", type=Path, help="the notebook with the questions (solutions/NAME/NAME.ipynb)"
    )
    args = parser.parse_args(argv)
    try:
        marks = check(args.notebook, args.against)
    except (OSError, ValueError, KeyError) as error:
        print(f"{args.notebook} cannot be checked: {error}", file=sys.stderr)
        return 2
    width = max((len(m.exercise) for m in marks), default=0)
    for m in marks:
        # by an answer, perhaps
        said = (m.wrong or "right").encode(sys.stdout.encoding or "utf-8", "backslashreplace")
        print(
            f"{m.exercise:<{width}}  {0 if m.wrong else m.points:g}/{m.points:g}  {said.decode()}"
        )
    got, of = sum(m.points for m in marks if not m.wrong), sum(m.points for m in marks)
    print(f"{'all':<{width}}  {got:g}/{of:g}")
    return int(got < of or not marks)


if __name__ == "__main__":
    sys.exit(main())
