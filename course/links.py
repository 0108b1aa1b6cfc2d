"""What ties the notebooks of the course together: their heads and feet, and the links in their text.

    course/lessons.toml    one row a lesson: from it come the head and the foot of each notebook
    course/papers.toml     one entry a paper
    docs/glossary.md       one heading a term

A text cell says what it means, and the build writes where that is:

    [rank](term:rank)                             the term's heading in the glossary
    [Messages](lesson:messages)                   the lesson's notebook, or no link while there is none
    [ring.py](file:minidist/collectives/ring.py)  the file
    [Patarasuk and Yuan 2009](paper:patarasuk2009)    the paper's address
    papers: patarasuk2009, thakur2005             on a line of its own: the list of these papers
    - paper:thakur2005 Which for which size.      one paper of such a list, with a remark

All that comes of it stands in the cells, so comparing cells finds a notebook whose row, paper or neighbour has changed.

Invariant: a link is made only to what is there, and what is unknown is a BuildError that names the cell.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

LESSONS = "course/lessons.toml"
PAPERS = "course/papers.toml"
GLOSSARY = "docs/glossary.md"
FRAMEWORKS = "docs/frameworks.md"

LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((term|lesson|file|paper):([^)\s]*)\)")
PAPER_LIST = re.compile(r"^papers: *(.*)$", re.MULTILINE)
PAPER_ITEM = re.compile(r"^- paper:(\S+)", re.MULTILINE)
LEFT = re.compile(r"\]\((?:term|lesson|file|paper):.*")
HEADING = re.compile(r"^## +(.+?) *$", re.MULTILINE)
ADDRESSES = {"arxiv": "https://arxiv.org/abs/{}", "doi": "https://doi.org/{}", "url": "{}"}


class BuildError(Exception):
    """A source that cannot become a notebook. The message names the file and the cell."""


@dataclass(frozen=True)
class Lesson:
    """A row of the table; course/lessons.toml says what its columns mean."""

    number: str
    name: str
    title: str
    builds: str
    needs: list[str]
    reading: int
    exercises: int
    files: list[str]
    examples: list[str]

    @property
    def folder(self) -> str:
        return f"{self.number}_{self.name}"

    def __str__(self) -> str:
        return f"{self.number} {self.title}"


def anchor(heading: str) -> str:
    """What follows the # in a link to a heading, where JupyterLab shows it. GitHub and Sphinx make it of small letters."""
    return heading.replace(" ", "-")


def enumeration(words: list[str]) -> str:
    """The words as a sentence lists them: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


class Links:
    """All that the notebooks under `root` may link to. A link starts in a notebook's folder, `up` leads back to `root`."""

    def __init__(self, root: Path):
        self.root = root
        table = self._table(LESSONS, "a course has one")
        try:
            rows = [Lesson(**row) for row in table.get("lesson", [])]
        except TypeError as error:
            raise BuildError(f"{LESSONS}: {error}") from None
        self.lessons = {row.name: row for row in rows}
        numbers = [row.number for row in rows]
        if numbers != sorted(set(numbers)) or len(self.lessons) != len(rows):
            raise BuildError(f"{LESSONS}: its rows are not in order, or two share a number or name")

    def _table(self, name: str, why: str) -> dict[str, Any]:
        try:
            return tomllib.loads((self.root / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BuildError(f"{name} is not there: {why}") from None
        except tomllib.TOMLDecodeError as error:
            raise BuildError(f"{name}: {error}") from None

    @cached_property
    def papers(self) -> dict[str, dict[str, Any]]:
        return self._table(PAPERS, "a lesson cites papers")

    @cached_property
    def terms(self) -> dict[str, str]:
        """The anchor of each term of the glossary, by the same in small letters."""
        path = self.root / GLOSSARY
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return {anchor(term).lower(): anchor(term) for term in HEADING.findall(text)}

    def row(self, folder: str) -> Lesson:
        """The lesson of course/`folder`."""
        for row in self.lessons.values():
            if row.folder == folder:
                return row
        raise BuildError(f"course/{folder}: {LESSONS} has no row for it")

    # ------------------------------------------------------------------------------------------------------ links
    def lesson(self, name: str, text: str, up: str) -> str:
        """A link to a lesson's notebook; the text alone while there is none."""
        if name not in self.lessons:
            raise BuildError(f"{LESSONS} has no lesson {name!r}")
        folder = self.lessons[name].folder
        if not (self.root / "course" / folder / "lesson.py").exists():
            return text
        return f"[{text}]({up}notebooks/{folder}.ipynb)"

    def file(self, name: str, text: str, up: str) -> str:
        path = Path(name)
        if ".." in path.parts or path.is_absolute() or not (self.root / path).is_file():
            raise BuildError(f"there is no file {name!r}")
        return f"[{text}]({up}{name})"

    def term(self, key: str, text: str, up: str) -> str:
        if key not in self.terms:
            raise BuildError(f"{GLOSSARY} has no term {key!r}")
        return f"[{text}]({up}{GLOSSARY}#{self.terms[key]})"

    def paper(self, key: str, text: str, up: str = "") -> str:
        return f"[{text}]({self.address(key)})"

    def address(self, key: str) -> str:
        """Where the paper can be read, from the one identifier that its entry has."""
        if key not in self.papers:
            raise BuildError(f"{PAPERS} has no paper {key!r}")
        identifiers = [kind for kind in ADDRESSES if kind in self.papers[key]]
        if len(identifiers) != 1:
            raise BuildError(
                f"{PAPERS}: {key} has {len(identifiers)} of {', '.join(ADDRESSES)}, and needs one"
            )
        kind = identifiers[0]
        address = ADDRESSES[kind].format(self.papers[key][kind])
        return address.replace("(", "%28").replace(")", "%29")  # which would end a Markdown link

    def citation(self, key: str) -> str:
        """An item of a list of papers: who, what, where, when."""
        address = self.address(key)
        paper = self.papers[key]
        for column in ("authors", "title", "venue", "year"):
            if column not in paper:
                raise BuildError(f"{PAPERS}: {key} has no {column}")
        authors = paper["authors"].rstrip(".")
        return f"- {authors}. [*{paper['title']}.*]({address}) {paper['venue']}, {paper['year']}."

    def resolve(self, text: str, up: str) -> str:
        """`text` with addresses for what its links mean, and papers for their keys."""
        make = {"term": self.term, "lesson": self.lesson, "file": self.file, "paper": self.paper}

        def list_papers(match: re.Match) -> str:
            return "\n".join(self.citation(key.strip()) for key in match[1].split(","))

        text = PAPER_LIST.sub(list_papers, text)
        text = PAPER_ITEM.sub(lambda match: self.citation(match[1]), text)
        text = LINK.sub(lambda match: make[match[2]](match[3], match[1], up), text)
        left = LEFT.search(text)
        if left:
            raise BuildError(f"{left[0]!r} is no link: it needs a text in brackets before it")
        return text

    # ---------------------------------------------------------------------------------------------- head and foot
    def exercises(self, row: Lesson, up: str) -> str:
        """A link to the assignment; a word while there is none."""
        if not (self.root / "course" / row.folder / "assignment.py").exists():
            return "exercises"
        return f"[exercises]({up}exercises/{row.folder}/{row.folder}.ipynb)"

    def files(self, names: Iterable[str], up: str) -> str:
        return ", ".join(self.file(name, name, up) for name in names)

    def named(self, row: Lesson, up: str) -> str:
        """A link to a lesson by its number and title, which says so while there is none."""
        link = self.lesson(row.name, str(row), up)
        return link if link.startswith("[") else f"{link} (still to come)"

    def neighbour(self, row: Lesson, step: int, up: str) -> str:
        """The lesson after `row` (step 1), or before it (−1): up to the first that has a notebook."""
        rows = list(self.lessons.values())
        place = rows.index(row) + step
        links: list[str] = []
        while 0 <= place < len(rows):
            link = self.named(rows[place], up)
            links.append(link)
            if link.startswith("["):
                break
            place += step
        return ", ".join(links[::step])

    def ways(self, row: Lesson, up: str) -> Iterator[str]:
        """The lesson before, the one after, and what goes with both."""
        before, after = self.neighbour(row, -1, up), self.neighbour(row, 1, up)
        if before:
            yield f"← {before}"
        yield self.exercises(row, up)
        if self.terms:
            yield f"[glossary]({up}{GLOSSARY})"
        if after:
            yield f"{after} →"

    def head(self, row: Lesson, up: str) -> str:
        """What stands below a lesson's title."""
        lessons = [
            self.named(self.lessons[name], up) if name in self.lessons else name
            for name in row.needs
        ]
        unknown = set(row.needs) - set(self.lessons) - {"PyTorch"}
        if unknown:
            raise BuildError(f"{LESSONS}: {row.name} needs {', '.join(sorted(unknown))}: no lesson")
        needs = enumeration(lessons) if lessons else "Python, and what a tensor is"
        lines = [
            f"- **You build** {row.builds}.",
            f"- **You need** {needs}.",
            f"- **Time**: about {row.reading} minutes, and {row.exercises} for the {self.exercises(row, up)}.",
            f"- **In the library**: {self.files(row.files, up)}.",
        ]
        if row.examples:
            lines.append(f"- **On many machines**: {self.files(row.examples, up)}.")
        return "\n".join([*lines, "", " · ".join(self.ways(row, up))])

    def foot(self, row: Lesson, up: str) -> str:
        """What stands at the end of a lesson."""
        library = f"In the library: {self.files(row.files, up)}."
        if (self.root / FRAMEWORKS).exists():
            library += f" In other frameworks: [the map]({up}{FRAMEWORKS})."
        return "\n".join(["---", "", " · ".join(self.ways(row, up)), "", library])

    def assignment_head(self, row: Lesson, up: str) -> str:
        """What stands below an assignment's title."""
        parts = [f"Lesson {self.named(row, up)}", f"about {row.exercises} minutes"]
        if self.terms:
            parts.append(f"[glossary]({up}{GLOSSARY})")
        return " · ".join(parts)
