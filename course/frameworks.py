"""minidist/study/frameworks.csv, the table of docs/frameworks.md, for lesson 27: the package alone has it, too.

    python course/frameworks.py           # writes it
    python course/frameworks.py --check   # only says whether it is stale

The page is what people edit.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "frameworks.md"
TABLE = ROOT / "minidist" / "study" / "frameworks.csv"


def table(page: str) -> str:
    """The rows of the table that begins with the word technique, as CSV, without the marks of code."""
    lines = page[page.index("| technique |") :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"{len(row)} cells below {len(head)} headings: {row}")
        writer.writerow([cell.replace("`", "") for cell in row])
    return text.getvalue()


def main(arguments: list[str]) -> int:
    text = table(PAGE.read_text(encoding="utf-8"))
    if arguments == ["--check"]:
        stale = not TABLE.exists() or TABLE.read_text(encoding="utf-8") != text
        print(f"{TABLE.name} is stale: python course/frameworks.py" if stale else "not stale")
        return int(stale)
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
