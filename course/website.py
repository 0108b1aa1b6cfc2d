"""The course as a web site: lessons, exercises, glossary and pages, for any browser, without a server or a network.

    make site                        # or: python course/website.py [--to build/site] [NN ...]
    make site ADDRESS=OWNER/NAME     # the repository's address on GitHub, if git's remote does not say it

Pages are made by Sphinx from the committed notebooks; nothing is executed. They are laid out beside the site as they
lie in the repository, so that relative links stay what they are, with these differences:

    a file of the library that a page links to    becomes a page that shows it, with colours and line numbers
    a picture in an output                        has its text in the page, where a screen reader finds it
    a cell whose source is hidden                 is folded
    a notebook                                    can be downloaded as it is and, where the address is known, opened by
                                                  Colab, Binder and Codespaces; for Colab the site has its wheel
    a public name of the package                  has its docstring in the reference (course/reference.py)

Invariant: what a page links to is on the site, or Sphinx says so and nothing is written.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `python course/website.py` looks beside this file only

from course import colab  # noqa: E402
from course.links import Lesson, Links  # noqa: E402

LINK = colab.LINK
COPIED = (".png", ".svg", ".jpg", ".csv")
FIRST = (
    "docs/way",
    "docs/glossary",
    "docs/symbols",
    "docs/frameworks",
    "docs/rosetta",
    "reference/index",
    "docs/install",
    "docs/troubleshooting",
)
LEAD = (
    "A course on how models are trained on many machines, and the small package that it walks through. Every technique "
    "is written from scratch on PyTorch tensors, and every collective from nothing but <em>send</em> and <em>receive</em>. "
    "You read the code, guess what it costs, run it, and see."
)
FACTS = (
    "<strong>A laptop is enough</strong><p>No GPU, no cluster, and no network once it is installed. A hundred ranks run in "
    "one notebook, on a virtual clock that traces every byte.</p>",
    "<strong>The same program, for real</strong><p>What runs in the notebook also runs in processes on your machine, and "
    "under torchrun on many, without a change.</p>",
    "<strong>Guess first</strong><p>Lessons ask for a number before they show it. Answers stay folded until you have made "
    "your guess, and the pictures on these pages can be touched.</p>",
    "<strong>Exercises that answer</strong><p>A check says at once what is wrong. Each was tried on wrong answers "
    "that were planted for it, and finds them all.</p>",
)
LANGUAGES = {".py": "python", ".toml": "toml", ".slurm": "bash", ".md": "markdown"}


def pages(root: Path, lessons: list[Lesson]) -> Iterator[Path]:
    """The notebooks and texts that are pages of the site."""
    for row in lessons:
        yield root / "notebooks" / f"{row.folder}.ipynb"
        yield root / "exercises" / row.folder / f"{row.folder}.ipynb"
    yield from sorted(root.glob("docs/*.md"))
    yield from sorted(root.glob("*.md"))


class Stage:
    """Sources for Sphinx in `folder`, from the repository in `root`: `shown` are its pages, `address` is GitHub's."""

    def __init__(self, root: Path, folder: Path, shown: list[Path], address: colab.Address | None):
        self.root = root
        self.folder = folder
        self.shown = shown
        self.address = address

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def page(self, path: Path) -> None:
        """Lay out a notebook or a text, and what it links to."""
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = notebook(text, lambda cell: self.follow(cell, path), self.ways(path))
        else:
            text = self.follow(text, path)
        self.write(path.relative_to(self.root).as_posix(), text)

    def ways(self, path: Path) -> str:
        """Buttons for the notebook `path`: its file, and what opens it elsewhere."""
        buttons = [f'<a href="{path.name}" download>Download this notebook</a>']
        if self.address:
            file = colab.file_name(path, self.root)
            place = path.relative_to(self.root).as_posix()
            for label, link in (
                ("Open in Colab", self.address.colab(file)),
                ("Binder", self.address.binder(place)),
                ("Codespaces", self.address.codespaces()),
            ):
                buttons.append(f'<a href="{html.escape(link)}">{label}</a>')
        return f'<div class="minidist-ways">{" ".join(buttons)}</div>'

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


def notebook(text: str, follow: Callable[[str], str], ways: str) -> str:
    """A notebook as the site shows it; the HTML `ways` stands below its title."""
    nb = json.loads(text)
    title, _, rest = "".join(nb["cells"][0]["source"]).partition("\n")
    nb["cells"][0]["source"] = f"{title}\n\n{ways}\n\n{rest}"
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
    """The page that the site opens with: why, where to begin, all lessons; `others` are pages without a number."""
    notebooks = []
    exercises = []
    rows = []
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
            task = f"[{row.exercises}&nbsp;min]({assignment}.ipynb)"
        rows.append(f"| {row.number} | {title} | {row.builds} | {row.reading}&nbsp;min | {task} |")
    hours = [
        round(sum(minutes) / 60) for minutes in zip(*[(r.reading, r.exercises) for r in lessons])
    ]
    parts = [
        "# minidist: large-scale training, from send and receive up",
        f'<p class="minidist-lead">{LEAD}</p>',
        begin(notebooks, others),
        *film(root),
        f'<div class="minidist-facts">{"".join(f"<div>{fact}</div>" for fact in FACTS)}</div>',
        "## The lessons",
        f"{len(lessons)} lessons take about {hours[0]} hours, and their exercises {hours[1]}. Each needs only some of those\n"
        "before it.",
        "\n".join(["| | lesson | you build | time | exercises |", "|---|---|---|---|---|", *rows]),
        toctree("Lessons", notebooks),
        toctree("Exercises", exercises),
        toctree("Pages", others),
    ]
    return "\n\n".join(parts) + "\n"


def begin(notebooks: list[str], others: list[str]) -> str:
    """Buttons that lead from the front page to where one can begin."""
    ways = [("Begin with the first lesson", name) for name in notebooks[:1]]
    for label, name in (
        ("Choose a path", "docs/way"),
        ("Install it", "docs/install"),
        ("The package", "reference/index"),
    ):
        if name in others:
            ways.append((label, name))
    links = []
    for number, (label, name) in enumerate(ways):
        first = " minidist-first" if number == 0 else ""
        links.append(f'<a class="minidist-begin{first}" href="{name}.html">{label}</a>')
    return f'<div class="minidist-buttons">{"".join(links)}</div>'


def film(root: Path) -> Iterator[str]:
    """The ring all-reduce as it moves, if its picture is there; its words are the picture's own title and description."""
    picture = root / "docs" / "ring.svg"
    if picture.exists():
        drawing = ElementTree.parse(picture).getroot()
        said = [
            drawing.findtext(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("title", "desc")
        ]
        words = " ".join(f"{said[0]}. {said[1]}".split())
        yield f"![{words}](docs/ring.svg)"


def in_order(others: list[str]) -> list[str]:
    """The pages without a number, what learners need first."""
    places = {name: place for place, name in enumerate(FIRST)}
    return sorted(others, key=lambda name: (places.get(name, len(places)), name))


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


def reference(root: Path) -> dict[str, str]:
    """The pages of the public API, by their names; a repository without the package has none."""
    if not (root / "minidist").is_dir():
        return {}
    from course.reference import pages as pages_of  # it imports the whole package

    return pages_of(root)


def build(root: Path, to: Path, numbers: list[str], address: colab.Address | None = None) -> int:
    """Write the site of the lessons `numbers` (all, if none are given) into `to`. Returns Sphinx's exit status.

    All is made in a folder beside `to`, which stays if something is wrong with it.
    """
    from sphinx.cmd.build import build_main

    lessons = [r for r in Links(root).lessons.values() if not numbers or r.number in numbers]
    shown = [path for path in pages(root, lessons) if path.exists()]
    made = to.with_name(f"{to.name}-made")
    shutil.rmtree(made, ignore_errors=True)
    stage = Stage(root, made / "source", shown, address)
    for path in shown:
        stage.page(path)
    others = [p.relative_to(root).with_suffix("").as_posix() for p in shown if p.suffix == ".md"]
    entries = {} if numbers else reference(root)
    for name, text in entries.items():
        stage.write(name, stage.follow(text, root / name))
    inside = [n.removesuffix(".md") for n in entries if n != "reference/index.md"]
    if entries:
        index = stage.folder / "reference" / "index.md"
        listed = toctree("Reference", [name.removeprefix("reference/") for name in inside])
        index.write_text(f"{index.read_text(encoding='utf-8')}\n{listed}\n", encoding="utf-8")
        others.append("reference/index")
    stage.write("index.md", front_page(root, lessons, in_order(others)))
    configuration = str(ROOT / "docs")
    doctrees = str(stage.folder / ".doctrees")
    strict = ["-q", "--fail-on-warning", "--keep-going"]
    if numbers:  # then links to the other lessons are words
        strict += ["-D", "suppress_warnings=myst.xref_missing"]
    status = build_main(
        [*strict, "-c", configuration, "-d", doctrees, str(stage.folder), str(made / "site")]
    )
    if not status:
        add_notebooks(root, made / "site", [p for p in shown if p.suffix == ".ipynb"], address)
        shutil.rmtree(to, ignore_errors=True)
        shutil.move(made / "site", to)
        shutil.rmtree(made)
    return status


def add_notebooks(root: Path, site: Path, paths: list[Path], address: colab.Address | None) -> None:
    """Put the files to download beside their pages and, where the address is known, what Colab opens."""
    for path in paths:
        shutil.copy(path, site / path.relative_to(root))
    if address:
        wheel = colab.wheel(site)
        (site / "colab").mkdir()
        for path in paths:
            text = path.read_text(encoding="utf-8")
            made = colab.notebook(text, path, root, address.site, wheel)
            (site / "colab" / colab.file_name(path, root)).write_text(made, encoding="utf-8")


def report(to: Path, seconds: float, address: colab.Address | None) -> str:
    """What was written, and how to open it."""
    files = [path for path in to.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".html" for path in files)
    size = sum(path.stat().st_size for path in files) / 1e6
    lines = [
        f"{pages} pages, {size:.0f} MB, written to {to} in {seconds:.0f} s.",
        f"Open {to / 'index.html'} in a browser: they need neither a server nor the network.",
    ]
    if address:
        lines.append(
            f"Links to Colab, Binder and Codespaces are those of {address.owner}/{address.name}, "
            f"and its site is expected at {address.site}"
        )
    else:
        lines.append(
            "Links to Colab, Binder and Codespaces were left out, because git's remote is not on GitHub: "
            "make site ADDRESS=OWNER/NAME adds them."
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the web site from the committed notebooks.")
    parser.add_argument("numbers", nargs="*", metavar="NN", help="only these lessons")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "site", metavar="DIR")
    parser.add_argument(
        "--address",
        default="",
        metavar="OWNER/NAME",
        help="the repository on GitHub, which Colab, Binder and Codespaces open; git's remote, if it is there",
    )
    parser.add_argument(
        "--site",
        default="",
        metavar="URL",
        help="where the site will be; GitHub Pages' own address",
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    root = args.root.resolve()
    try:
        words = args.address or colab.origin(root)
        address = colab.Address.of(words, args.site) if words else None
    except ValueError as error:
        parser.error(str(error))
    began = time.monotonic()
    status = build(root, args.to.resolve(), args.numbers, address)
    if not status:
        print(report(args.to, time.monotonic() - began, address))
    return status


if __name__ == "__main__":
    sys.exit(main())
