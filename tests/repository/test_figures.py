"""The schematics of the course: one style, readable, and what a lesson shows is there."""

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from minidist.study import picture
from tests.repository.files import ROOT, repository

FIGURES = repository("course/*/figures/*.svg")
SVG = "{http://www.w3.org/2000/svg}"
WIDEST, SMALLEST = 720, 13  # pixels: of a drawing, of its letters
SHOWN = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)")

GROUNDS = {picture.CARD, picture.EDGE, picture.INK, picture.MUTED, picture.FAINT, picture.WAIT}
TINTS = {picture.mix(hue, amount) for hue in picture.HUES for amount in (0.2, 0.5, 0.75)}
COLORS = GROUNDS | TINTS | set(picture.HUES) | {"none"}


def faults(text):
    """What is wrong with the drawing that is the SVG `text`."""
    root = ElementTree.fromstring(text)
    left, top, width, height = map(float, root.get("viewBox", "0 0 0 0").split())
    if not 0 < width <= WIDEST:
        yield f"the view box is {width:g} wide, and at most {WIDEST} are allowed"
    if (root.get("width"), root.get("height")) != (f"{width:g}", f"{height:g}"):
        yield "width and height are not those of the view box"
    for name in ("title", "desc"):
        if not (root.findtext(SVG + name) or "").strip():
            yield f"no {name}"
    ids = {element.get("id") for element in root.iter()}
    for element in root.iter():
        yield from wrong_attributes(element, ids)
    places = [place(element, root) for element in root.iter(SVG + "text")]
    for word, x, y, end, bottom in places:
        if x < left or y < top or end > left + width or bottom > top + height:
            yield f"{word!r} leaves the card"
    for (a, *box), (b, *other) in combinations(places, 2):
        apart = box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
        if not apart:
            yield f"{a!r} and {b!r} overlap"


def wrong_attributes(element, ids):
    """An element that is of no use here, a colour outside the palette, letters too small, another font, a lost arrow."""
    if element.tag.removeprefix(SVG) in ("script", "style", "image", "foreignObject"):
        yield f"a {element.tag.removeprefix(SVG)} in a drawing"
    for name in ("fill", "stroke"):
        if element.get(name, "none") not in COLORS:
            yield f"the {name} {element.get(name)} is not in the palette"
    if float(element.get("font-size", SMALLEST)) < SMALLEST:
        yield f"letters of {element.get('font-size')} pixels, and at least {SMALLEST} are needed"
    stack = element.get("font-family", "sans-serif")
    if stack.rpartition(",")[2].strip() not in ("sans-serif", "monospace"):
        yield f"the font {stack} falls back on neither sans-serif nor monospace"
    for name in ("marker-start", "marker-end"):
        if name in element.attrib and element.get(name)[5:-1] not in ids:
            yield f"{element.get(name)} is not defined"


def place(element, root):
    """The words of a text element, and their left, top, right and bottom: 1 pixel inside what they fill."""
    word = element.text or ""
    size = float(element.get("font-size", root.get("font-size", "16")))
    weight = element.get("font-weight", "normal")
    if "mono" in element.get("font-family", ""):
        width = 0.602 * size * len(word)
    else:
        width = 96 * picture.inches(word, size * 0.75, weight)
    x, y = float(element.get("x")), float(element.get("y"))
    x -= width * {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor", "start")]
    return word, x + 1, y - 0.72 * size, x + width - 1, y + 0.2 * size


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: f"{path.parts[1]}/{path.stem}")
def test_a_schematic(path):
    assert list(faults((ROOT / path).read_text(encoding="utf-8"))) == []


GOOD = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 100" width="480" height="100"
font-family="DejaVu Sans, sans-serif" font-size="14"><title>t</title><desc>d</desc>
<marker id="tip"/><path d="M0 0" fill="none" stroke="{picture.BLUE}" marker-end="url(#tip)"/>
<text x="16" y="28">first</text><text x="16" y="48" font-size="13">second</text></svg>"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("480", "800", "800 wide"),
        ('height="100"', 'height="90"', "not those of the view box"),
        ("<title>t</title>", "", "no title"),
        ("<desc>d</desc>", "<desc> </desc>", "no desc"),
        ('"13"', '"12"', "12 pixels"),
        ("DejaVu Sans, sans-serif", "Comic Sans", "Comic Sans"),
        (picture.BLUE, "#123456", "#123456"),
        ("(#tip)", "(#top)", "not defined"),
        ('x="16" y="48"', 'x="450" y="48"', "'second' leaves"),
        ('y="48"', 'y="30"', "'first' and 'second' overlap"),
        ("<marker", "<script/><marker", "a script"),
    ],
)
def test_a_fault_is_found(old, new, said):
    assert list(faults(GOOD)) == []
    assert old in GOOD and any(said in fault for fault in faults(GOOD.replace(old, new)))


BUILT = {"lesson.py": "../", "assignment.py": "../../"}  # from where the notebook lies to the root


def unseen(text, up, there):
    """The drawings that Markdown shows without words, or that are not among the paths `there`.

    up: the way from the notebook to the root of the repository.
    """
    for words, path in SHOWN.findall(text):
        if not words.strip() or not path.startswith(up) or path.removeprefix(up) not in there:
            yield path


def test_lessons_show_drawings_that_are_there():
    there = {path.as_posix() for path in FIGURES}
    for path in repository(*(f"course/*/{name}" for name in BUILT)):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert list(unseen(text, BUILT[path.name], there)) == [], path


def test_a_drawing_that_is_not_there_is_found():
    text = "![a ring](../course/a.svg) ![a tree](../course/b.svg) ![](../course/a.svg) ![c](course/a.svg)"
    missing = ["../course/b.svg", "../course/a.svg", "course/a.svg"]
    assert list(unseen(text, "../", {"course/a.svg"})) == missing
