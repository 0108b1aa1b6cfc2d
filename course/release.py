"""The course as students get it: without solutions, planted bugs and the course's sources.

    make release DIR=../minidist-students          # or: python -m course.release DIR

In DIR `make lab` and `python -m minicheck exercises/NN_topic/NN_topic.ipynb` work as they do here: what is asked stands
in minicheck/questions. The graders' oracles stay, for they judge answers; no answer can reach them.

Invariant: what goes out is named here. A file that is new in the repository, or lies about in it, does not go out.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from course.questions import stale

ROOT = Path(__file__).resolve().parents[1]
RELEASED = (
    ".binder/*",
    "CITATION.cff",
    "constraints.txt",
    "course/*/figures/*.svg",
    "course/install.py",
    "course/python.sh",
    ".devcontainer/*.json",
    "Dockerfile",
    ".dockerignore",
    "docs/frameworks.md",
    "docs/glossary.md",
    "docs/gpus.md",
    "docs/install.md",
    "docs/planner.md",
    "docs/prose.png",
    "docs/ring.svg",
    "docs/rosetta.md",
    "docs/symbols.md",
    "docs/trainer.md",
    "docs/troubleshooting.md",
    "docs/way.md",
    "docs/way.svg",
    "environment.yml",
    "examples/*.*",
    "exercises/*/*.ipynb",
    ".gitignore",
    "LICENSE",
    "LICENSE-TEXTS",
    "LICENSES.md",
    "Makefile",
    "minicheck/**/*.*",
    "minidist/**/*.*",
    "notebooks/*.ipynb",
    "pyproject.toml",
    "README.md",
)
# Between these README.md speaks of what is not there.
BEGIN = "<!-- not for students -->"
END = "<!-- for all -->"
HIDDEN = re.compile(f"{BEGIN}.*?{END}\n?", re.DOTALL)


def released(root: Path) -> Iterator[Path]:
    """The files that go out, in order. ValueError if an exercise is not what was built for students."""
    spoiled = stale(root) + [
        str(path.relative_to(root))
        for path in sorted(root.glob("exercises/*/*.ipynb"))
        if path.stem == path.parent.name and worked_in(path)
    ]
    if spoiled:
        raise ValueError(
            f"somebody has worked in an exercise, or it is stale: {', '.join(spoiled)}. "
            "`git checkout exercises` takes answers out, `make build` makes them anew"
        )
    for pattern in RELEASED:
        for path in sorted(root.glob(pattern)):
            inside = path.relative_to(root)
            skipped = path.is_symlink() or "__pycache__" in inside.parts
            own = pattern != "exercises/*/*.ipynb" or path.stem == path.parent.name
            if path.is_file() and own and not skipped:
                yield path


def worked_in(exercise: Path) -> bool:
    """Whether a cell was added to it, or run; stubs that are none any more make its questions stale."""
    cells = json.loads(exercise.read_text(encoding="utf-8"))["cells"]
    return any(c.get("outputs") or not c.get("id", "").startswith("assignment-") for c in cells)


def readme(text: str) -> str:
    """README.md for students. ValueError if its marks are not pairs, or if there are none."""
    marks = re.findall("<!-- .*? -->", text)
    pairs = len(marks) // 2
    if not marks or marks != pairs * [BEGIN, END]:
        raise ValueError(
            f"README.md must hide what is not for students, each part between {BEGIN} and {END}; "
            f"its marks are {', '.join(marks) or 'not there'}"
        )
    return HIDDEN.sub("", text).rstrip() + "\n"


def release(root: Path, folder: Path) -> int:
    """Copy what goes out into `folder`, which is new or empty; returns how many files."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty")
    paths = list(released(root))
    for path in paths:
        copy = folder / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    text = readme((root / "README.md").read_text(encoding="utf-8"))
    (folder / "README.md").write_text(text, encoding="utf-8", newline="\n")
    return len(paths)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Copy the course for students, without solutions.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        count = release(args.root, args.folder)
    except (OSError, ValueError) as error:
        print(f"Nothing is released: {error}", file=sys.stderr)
        return 1
    print(f"{count} files in {args.folder}. There: make lab")
    return 0


if __name__ == "__main__":
    sys.exit(main())
