"""The course as a web site: lessons, exercises, glossary and pages, for any browser, without a server or a network.

    make site          # or: python course/website.py [--to build/site] [NN ...]

Pages are made by Sphinx from the committed notebooks; nothing is executed. They are laid out beside the site as they
lie in the repository, so that relative links stay what they are, with these differences:

    a file of the library that a page links to    becomes a page that shows it, with colours and line numbers
    a picture in an output                        has its text in the page, where a screen reader finds it
    a cell whose source is hidden                 is folded

Invariant: what a page links to is on the site, or Sphinx says so and nothing is written.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `python course/website.py` looks beside this file only

from course.links import Lesson, Links  # noqa: E402

LINK = re.compile(r"(\]\(|<img src=\")([^)\s\"]+)([)\"])")
COPIED = (".png", ".svg", ".jpg", ".csv")
LANGUAGES = {".py": "python", ".toml": "toml", ".slurm": "bash", ".md": "markdown"}


def pages(root: Path, lessons: list[Lesson]) -> Iterator[Path]:
    """The notebooks and texts that are pages of the site."""
    for row in lessons:
        yield root / "notebooks" / f"{row.folder}.ipynb"
        yield root / "exercises" / row.folder / f"{row.folder}.ipynb"
    yield from root.glob("docs/*.md")
    yield root / "README.md"
    yield root / "CONTRIBUTING.md"


class Stage:
    """Sources for Sphinx in `folder`, from the repository in `root`: `shown` are its pages."""

    def __init__(self, root: Path, folder: Path, shown: list[Path]):
        self.root = root
        self.folder = folder
        self.shown = shown

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def page(self, path: Path) -> None:
        """Lay out a notebook or a text, and what it links to."""
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = notebook(text, lambda cell: self.follow(cell, path))
        else:
            text = self.follow(text, path)
        self.write(path.relative_to(self.root).as_posix(), text)

    def follow(self, text: str, page: Path) -> str:
        """The text of a page; its links lead to what they mean on the site."""
        return LINK.sub(lambda m: f"{m[1]}{self.target(m[2], page)}{m[3]}", text)

    def target(self, link: str, page: Path) -> str:
        if re.match(r"\w+:", link):
            return link
        address, hash_sign, heading = link.partition("#")
        path = (page.parent / address).resolve()
        if path in self.shown or not path.is_file() or path.suffix == ".ipynb":
            return address + hash_sign + heading.lower()  # JupyterLab keeps its capitals
        name = path.relative_to(self.root).as_posix()
        if path.suffix in COPIED:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self.folder / name)
            return link
        self.write(f"{name}.md", source_page(name, path.read_text(encoding="utf-8")))
        return f"{link}.md"


def source_page(name: str, text: str) -> str:
    """A page that shows a file."""
    language = LANGUAGES.get(Path(name).suffix, "text")
    fence = "`" * 9
    return (
        f"---\norphan: true\n---\n\n# {name}\n\n{fence}{{code-block}} {language}\n:linenos:\n\n"
        f"{text.rstrip()}\n{fence}\n"
    )


def notebook(text: str, follow: Callable[[str], str]) -> str:
    """A notebook as the site shows it."""
    nb = json.loads(text)
    for cell in nb["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = follow("".join(cell["source"]))
        elif cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"]["tags"] = [*cell["metadata"].get("tags", []), "hide-input"]
        for output in cell.get("outputs", []):
            picture = output.get("data", {}).get("image/png")
            if picture and "text/html" not in output["data"]:
                words = output["metadata"].get("image/png", {}).get("alt")
                output["data"] = {"text/html": image(picture, words)}
    return json.dumps(nb, ensure_ascii=False)


def image(picture: str | list[str], words: str | None) -> str:
    """An <img> of a PNG in base64, with its text."""
    data = "".join(picture).replace("\n", "")
    text = "" if words is None else f' alt="{html.escape(words)}"'
    return f'<img src="data:image/png;base64,{data}"{text}>'


def front_page(root: Path, lessons: list[Lesson], others: list[str]) -> str:
    """The page that the site opens with: a table of the lessons; `others` are pages without a number."""
    rows = []
    notebooks = []
    exercises = []
    for row in lessons:
        lesson = f"notebooks/{row.folder}"
        assignment = f"exercises/{row.folder}/{row.folder}"
        title = row.title
        task = ""
        if (root / f"{lesson}.ipynb").exists():
            notebooks.append(lesson)
            title = f"[{row.title}]({lesson}.ipynb)"
        if (root / f"{assignment}.ipynb").exists():
            exercises.append(assignment)
            task = f"[exercises]({assignment}.ipynb)"
        rows.append(f"| {row.number} | {title} | {row.builds} | {task} |")
    parts = [
        "# minidist",
        "A course on large-scale training, and the small package that it walks through. Every technique is written from\n"
        "scratch on PyTorch tensors; every collective is built from nothing but *send* and *receive*.",
        "\n".join(["| | lesson | you build | |", "|---|---|---|---|", *rows]),
        toctree("Lessons", notebooks),
        toctree("Exercises", exercises),
        toctree("Pages", others),
    ]
    return "\n\n".join(parts) + "\n"


def toctree(caption: str, documents: list[str]) -> str:
    lines = [
        "```{toctree}",
        f":caption: {caption}",
        ":hidden:",
        ":maxdepth: 1",
        "",
        *documents,
        "```",
    ]
    return "\n".join(lines)


def build(root: Path, to: Path, numbers: list[str]) -> int:
    """Write the site of the lessons `numbers` (all, if none are given) into `to`. Returns Sphinx's exit status."""
    from sphinx.cmd.build import build_main

    lessons = [r for r in Links(root).lessons.values() if not numbers or r.number in numbers]
    shown = [path for path in pages(root, lessons) if path.exists()]
    stage = Stage(root, to.with_name(f"{to.name}-source"), shown)
    for folder in (stage.folder, to):
        shutil.rmtree(folder, ignore_errors=True)
    for path in shown:
        stage.page(path)
    others = [p.relative_to(root).with_suffix("").as_posix() for p in shown if p.suffix == ".md"]
    stage.write("index.md", front_page(root, lessons, sorted(others)))
    configuration = str(ROOT / "docs")
    doctrees = str(stage.folder / ".doctrees")
    strict = ["-q", "--fail-on-warning", "--keep-going"]
    return build_main([*strict, "-c", configuration, "-d", doctrees, str(stage.folder), str(to)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the web site from the committed notebooks.")
    parser.add_argument("numbers", nargs="*", metavar="NN", help="only these lessons")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "site", metavar="DIR")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    status = build(args.root.resolve(), args.to.resolve(), args.numbers)
    if not status:
        print(f"{args.to / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
