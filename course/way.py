"""The way through the course: which lesson needs which, as a picture, and three paths through them.

    python course/way.py       # writes docs/way.svg, docs/way.md and README.md's table of lessons; `make build` does

What a lesson needs, and its minutes, stand in course/lessons.toml, the paths in course/paths.toml.

Invariant: a path never comes to a lesson before those that it needs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `python course/way.py` looks beside this file only

from course.links import Lesson, Links, enumeration  # noqa: E402
from minidist.study.picture import BLUE, CARD, EDGE, INK, MUTED, mix  # noqa: E402

PICTURE = "docs/way.svg"
PAGE = "docs/way.md"
PATHS = "course/paths.toml"
README = "README.md"
# README's table of lessons, as far as the end of its last row.
COURSE = re.compile(r"^\| # \| lesson \|.*\n\|[-:|]+\|\n(?:\|.*\n)*", re.MULTILINE)

# Where the boxes are: a column, and a height in pixels. Lessons that need the same, and that no lesson needs, share one.
PLACES: dict[tuple[str, ...], tuple[int, int]] = {
    ("walls",): (0, 100),
    ("messages",): (0, 330),
    ("precision",): (1, 10),
    ("remat",): (1, 60),
    ("operators",): (1, 150),
    ("tensor",): (1, 205),
    ("data_parallel",): (1, 335),
    ("topology",): (1, 500),
    ("eight_bits",): (2, 10),
    ("long_contexts",): (2, 150),
    ("vocabulary",): (2, 240),
    ("pipelines",): (2, 300),
    ("whole_batch", "server", "experts", "compress", "local_sgd", "large_batches"): (2, 350),
    ("buckets",): (2, 495),
    ("trees",): (2, 545),
    ("zero",): (3, 400),
    ("schedules", "pipedream"): (3, 250),
    ("hybrid",): (4, 345),
    ("capstone",): (4, 450),
    ("plan",): (5, 290),
    ("survive",): (5, 345),
    ("field_guide",): (5, 415),
}
# in pixels
STEP = 157  # from column to column
WIDE = 127  # a box
LEFT = 8  # the margin
LINE = 19  # of a box
WIDTH, HEIGHT = 930, 590


def needed(lessons: dict[str, Lesson], name: str) -> set[str]:
    """The lessons that come before, with all that these need."""
    own = set(lessons[name].needs) & set(lessons)
    return own.union(*(needed(lessons, before) for before in own))


def direct(lessons: dict[str, Lesson], name: str) -> list[str]:
    """What a lesson needs, without what one of these needs in its turn."""
    own = [before for before in lessons[name].needs if before in lessons]
    return [b for b in own if not any(b in needed(lessons, other) for other in own)]


# ------------------------------------------------------------
# The picture.


def svg(lessons: dict[str, Lesson]) -> str:
    """Boxes from left to right, and a line from each lesson to those that need it."""
    box_of = {name: names for names in PLACES for name in names}
    if set(box_of) != set(lessons):
        raise ValueError(
            f"PLACES of {Path(__file__).name} and the lessons differ: {set(box_of) ^ set(lessons)}"
        )
    lines, boxes = [], []
    for names, (column, y) in PLACES.items():
        wanted = direct(lessons, names[0])
        if any(direct(lessons, other) != wanted for other in names):
            raise ValueError(f"{enumeration(list(names))} share a box, and need different lessons")
        for before in wanted:
            lines.append(_line(box_of[before], names))
        boxes.append(_box(names, column, y, lessons))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            ' font-family="DejaVu Sans, sans-serif" font-size="13">',
            "<title>Which lesson needs which</title>",
            f"<desc>{_words(lessons)}</desc>",
            f'<rect x="0" y="0" width="{WIDTH}" height="{HEIGHT}" fill="{CARD}"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def _height(names: tuple[str, ...]) -> int:
    return 18 + LINE * len(names)


def _line(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    (a, y), (b, z) = PLACES[before], PLACES[after]
    if a == b:
        x = LEFT + a * STEP + WIDE // 2
        return f'<path d="M{x} {y + _height(before)} V{z}" fill="none" stroke="{MUTED}"/>'
    x, end = LEFT + a * STEP + WIDE, LEFT + b * STEP
    y, z = y + _height(before) // 2, z + _height(after) // 2
    bend = end - STEP + WIDE
    return f'<path d="M{x} {y} H{bend} C{bend + 20} {y} {end - 20} {z} {end} {z}" fill="none" stroke="{MUTED}"/>'


def _box(names: tuple[str, ...], column: int, y: int, lessons: dict[str, Lesson]) -> str:
    x = LEFT + column * STEP
    parts = [
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{_height(names)}" rx="6" fill="{mix(BLUE, 0.2)}" stroke="{EDGE}"/>'
    ]
    for i, name in enumerate(names):
        words = f"{lessons[name].number} {name.replace('_', ' ')}"
        parts.append(f'<text x="{x + 8}" y="{y + 23 + LINE * i}" fill="{INK}">{words}</text>')
    return "\n".join(parts)


def _words(lessons: dict[str, Lesson]) -> str:
    said = []
    for name in lessons:
        before = direct(lessons, name)
        if before:
            said.append(
                f"{name.replace('_', ' ')} needs {enumeration([b.replace('_', ' ') for b in before])}"
            )
    return "; ".join(said) + "."


# ------------------------------------------------------------
# The page.


def page(links: Links) -> str:
    """docs/way.md: the picture, what each lesson needs, and the paths."""
    lessons = links.lessons
    paths = tomllib.loads((links.root / PATHS).read_text(encoding="utf-8"))["path"]
    rows = [
        "| lesson | needs | lesson, minutes | exercises, minutes |",
        "|---|---|---|---|",
        *(_row(lesson, links) for lesson in lessons.values()),
    ]
    parts = [
        "# The way through the course",
        "A line leads from each lesson to those that need it. Lessons in one box can be taken in any order, and so can all"
        " that no line connects. The numbers are one order in which everything comes in time.",
        f"![{_words(lessons)}](way.svg)",
        "\n".join(rows),
        f"All lessons together take about {_hours(sum(each.reading for each in lessons.values()))}, all assignments "
        f"{_hours(sum(each.exercises for each in lessons.values()))}.",
        *(_path(path, links) for path in paths),
        "## While you are on it",
        "`make work` copies the assignments to a folder that is yours, and `python -m minicheck` shows which exercises are"
        " right and which is next. Words are explained in the [glossary](glossary.md), in English and Chinese, letters in the"
        " table of [symbols](symbols.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _link(links: Links, name: str) -> str:
    return links.named(links.lessons[name], "../")


def _row(lesson: Lesson, links: Links) -> str:
    before = direct(links.lessons, lesson.name)
    also = ["PyTorch"] if "PyTorch" in lesson.needs else []
    needs = ", ".join([*(links.lessons[name].number for name in before), *also]) or "–"
    return f"| {_link(links, lesson.name)} | {needs} | {lesson.reading} | {lesson.exercises} |"


def _hours(minutes: int) -> str:
    return f"{round(minutes / 60)} hours"


def _path(path: dict, links: Links) -> str:
    """A path's section. ValueError if it comes to a lesson before one that this needs."""
    seen: set[str] = set()
    exercises = path.get("exercises", False)
    total = 0
    rows = []
    for step in path["step"]:
        for name in step["lessons"]:
            missing = needed(links.lessons, name) - seen
            if missing:
                raise ValueError(
                    f"{path['title']}: {name} comes before {enumeration(sorted(missing))}, which it needs"
                )
            seen.add(name)
        own = [links.lessons[name] for name in step["lessons"]]
        minutes = sum(each.reading + exercises * each.exercises for each in own)
        total += minutes
        named = ", ".join(_link(links, name) for name in step["lessons"])
        rows.append(f"| {step['name']} | {named} | {minutes / 60:.1f} |")
    what = "lessons and their assignments" if exercises else "lessons"
    table = "\n".join([f"| | {what} | hours |", "|---|---|---|", *rows])
    text = path["text"].strip()
    return f"## {path['title']}\n\n{path['for']} About {_hours(total)}.\n\n{text}\n\n{table}"


# ------------------------------------------------------------
# The table of lessons in README.md.


def level(lessons: dict[str, Lesson], name: str) -> int:
    """1: it needs no lesson. 2: the longest way that leads to it has one or two lessons. 3: it has more."""

    def longest(name: str) -> int:
        return max((1 + longest(before) for before in direct(lessons, name)), default=0)

    steps = longest(name)
    if steps == 0:
        return 1
    return 2 if steps <= 2 else 3


def lesson_table(links: Links) -> str:
    rows = [
        "| # | lesson | what you build | level | hours | assignment |",
        "|---|---|---|--:|--:|---|",
    ]
    for name, lesson in links.lessons.items():
        folder = lesson.folder
        cells = (
            lesson.number,
            f"[{lesson.title}](notebooks/{folder}.ipynb)",
            lesson.builds,
            str(level(links.lessons, name)),
            f"{lesson.reading / 60:.1f} + {lesson.exercises / 60:.1f}",
            f"[{folder}](exercises/{folder}/{folder}.ipynb)",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def readme(links: Links) -> str:
    """README.md with its table of lessons. ValueError if it has no such table, or several."""
    text = (links.root / README).read_text(encoding="utf-8")
    tables = COURSE.findall(text)
    if len(tables) != 1:
        raise ValueError(f"{README} has {len(tables)} tables of lessons, and must have 1")
    return text.replace(tables[0], lesson_table(links))


def files(root: Path) -> dict[str, str]:
    """What is written where."""
    links = Links(root)
    return {PICTURE: svg(links.lessons), PAGE: page(links), README: readme(links)}


def main() -> int:
    for name, text in files(ROOT).items():
        (ROOT / name).write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
