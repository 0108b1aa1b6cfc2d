"""What a rewritten lesson has beside its prose: schematics, folded answers, something to touch, links; and what it costs."""

import ast
import json
import re
import resource

import pytest

from course.build import ROOT, execute, sources

LESSONS = [source for source in sources(ROOT, []) if source.name == "lesson.py"]
NAMES = [source.parent.name for source in LESSONS]


def cells_of(name):
    return json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def tags_of(cell):
    return cell["metadata"].get("tags", [])


def is_hidden(cell):
    return cell["metadata"].get("jupyter", {}).get("source_hidden", False)


def pages_of(cell):
    """The HTML of a cell's outputs."""
    data = [output.get("data", {}) for output in cell.get("outputs", [])]
    return ["".join(each["text/html"]) for each in data if "text/html" in each]


def calls_in(source):
    """The names of the functions that a cell calls, as they are written."""
    return [
        ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
    ]


class Lesson:
    def __init__(self, name):
        self.cells = cells_of(name)
        self.code = [cell for cell in self.cells if cell["cell_type"] == "code"]
        texts = ["".join(c["source"]) for c in self.cells if c["cell_type"] == "markdown"]
        self.text = "\n".join(texts)
        self.pages = [page for cell in self.code for page in pages_of(cell)]

    @property
    def visible(self):
        return ["".join(cell["source"]) for cell in self.code if not is_hidden(cell)]

    @property
    def lines(self):
        return sum(bool(line.strip()) for source in self.visible for line in source.split("\n"))

    @property
    def schematics(self):
        return re.findall(r"!\[([^\]]*)\]\(\S+\.svg\)", self.text)

    @property
    def answers(self):
        return [page for page in self.pages if "<details" in page]

    @property
    def frames(self):
        return [page for page in self.pages if "<iframe" in page]


def test_the_lessons_are_there():
    assert len(LESSONS) == 28


@pytest.mark.parametrize("name", NAMES)
def test_the_form_of_a_lesson(name, figure):
    """At least two schematics, two folded answers, one thing to touch; no assert, and no answer, in what a reader sees."""
    lesson = Lesson(name)
    words = len(lesson.text.split())
    figure(
        f"{name}: {words:,} words, {lesson.lines} visible lines, {words / lesson.lines:.1f} words a line, "
        f"{len(lesson.schematics)} schematics, {lesson.text.count('](')} links, "
        f"{len(lesson.answers)} folded answers, {len(lesson.frames)} to touch"
    )
    assert len(lesson.schematics) >= 2 and all(lesson.schematics)
    assert len(lesson.answers) >= 2
    assert not any("<details open" in page for page in lesson.answers)
    assert len(lesson.frames) >= 1
    for source in lesson.visible:
        asserts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
        assert not asserts, source
        assert "study.reveal" not in calls_in(source), source


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_that_answers_does(name):
    for cell in Lesson(name).code:
        reveals = "study.reveal" in calls_in("".join(cell["source"]))
        assert reveals == ("answer" in tags_of(cell)), cell["source"]


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_has_words(name):
    for page in Lesson(name).pages:
        for image in re.findall(r"<img [^>]*>", page):
            assert re.search(r'alt="[^"]{10,}', image), image[:200]


@pytest.mark.full
@pytest.mark.parametrize("source", LESSONS, ids=NAMES)
def test_what_a_lesson_costs(source, tmp_path, figure):
    """CPU seconds of the kernel: 30 at most. What the ranks of `launch` take, which nobody waits for, is not in them."""

    def spent():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    execute(ROOT, source, tmp_path / "notebooks")
    seconds = spent() - before
    figure(f"{source.parent.name}: {seconds:.0f} CPU seconds to execute")
    assert seconds <= 30
