"""What the assignments ask, taken from what is handed out, so that it can be checked without the solutions.

    python course/questions.py [--check]

    exercises/NN_topic/NN_topic.ipynb  -> minicheck/questions/NN_topic.json    its code cells that nbgrader knows

It is a program of its own, and not a part of build.py: every notebook is stale when that file changes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def question_cells(notebook: dict) -> list[dict]:
    """The cells of a released notebook that ask or answer: stubs, test cells, code that is given, and open answers."""
    return [
        {key: cell[key] for key in ("cell_type", "id", "metadata", "source")}
        for cell in notebook["cells"]
        if "nbgrader" in cell["metadata"]
        and (cell["cell_type"] == "code" or cell["metadata"]["nbgrader"].get("solution"))
    ]


def text_of(exercise: Path) -> str:
    """The file of questions that belongs to an exercise. ValueError if its tests cannot be asked elsewhere."""
    cells = question_cells(json.loads(exercise.read_text(encoding="utf-8")))
    for cell in cells:
        mark = cell["metadata"]["nbgrader"]
        is_code = cell["cell_type"] == "code"
        if is_code and mark["grade"] and "check." not in "".join(cell["source"]):
            raise ValueError(
                f"{exercise}: the test cell {mark['grade_id']} asks nothing of `check`, so only nbgrader can grade it"
            )
        if not is_code and not mark["grade"]:
            raise ValueError(
                f"{exercise}: the text {mark['grade_id']} is to be answered, for no points"
            )
    whole = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def wanted(root: Path) -> dict[Path, str]:
    """Each file of questions that belongs to the course under `root`, and what it should say."""
    return {
        root / "minicheck" / "questions" / f"{path.stem}.json": text_of(path)
        for path in sorted(root.glob("exercises/*/*.ipynb"))
        if path.stem == path.parent.name
    }


def stale(root: Path) -> list[str]:
    """A line for each file that is missing, too many, or says something else."""
    should = wanted(root)
    found = set(root.glob("minicheck/questions/*.json"))
    return [
        f"{path.relative_to(root)} is stale: run `make build`"
        for path in sorted(found | set(should))
        if path not in found or path.read_text(encoding="utf-8") != should.get(path)
    ]


def write(root: Path) -> None:
    should = wanted(root)
    (root / "minicheck" / "questions").mkdir(parents=True, exist_ok=True)
    for path in root.glob("minicheck/questions/*.json"):
        if path not in should:
            path.unlink()
    for path, text in should.items():
        path.write_text(text, encoding="utf-8", newline="\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take the questions from the exercises.")
    parser.add_argument("--check", action="store_true", help="write nothing; name what is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not args.check:
        write(args.root.resolve())
    lines = stale(args.root.resolve())
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
