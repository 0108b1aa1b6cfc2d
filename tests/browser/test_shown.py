"""What a notebook shows, as a browser renders it: pictures tell their words and stay readable, and answers are folded."""

import os

import nbformat.v4 as v4
import nbgrader.server_extensions.formgrader as formgrader
import pytest
from nbconvert import HTMLExporter

from minidist.study import bars, reveal, viewer
from minidist.study.frames import PAGE
from minidist.study.picture import SMALL
from tests.browser.chromium import chromium, program, until
from tests.study.traces import remembered

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

WORDS = '"Sent" & received\n  ring: 75 MB\n  tree: 100 MB'
SUMMARIES = [
    "Your guess: 100 MB. Show the answer",
    "Your guess: ranks 4 B, steps –. Show the answer",
    "You have not guessed yet. Show the answer",
    "Your guess: 8 messages. Show the answer",
    "Your guess: 7 messages. Show the answer",
]
IMAGES = """[...document.querySelectorAll("img[src^='data:image/png']")].map(e => ({
  alt: e.alt, words: %f * e.getBoundingClientRect().width * devicePixelRatio / e.naturalWidth,
  fits: e.getBoundingClientRect().width <= e.parentElement.clientWidth,
  reached: e.parentElement.scrollWidth >= e.getBoundingClientRect().width - 1,
  scrolls: getComputedStyle(e.parentElement).overflowX === "auto",
  drawn: e.complete && e.naturalWidth > 0}))""" % (SMALL / 72 * 96 * 2)
FOLDS = "[...document.querySelectorAll('details.minidist-answer')].map(e => e.innerText.trim())"
OPEN = "document.querySelectorAll('details.minidist-answer').forEach(e => { e.open = true })"


def outputs():
    traffic = bars({"ring": 75e6, "tree": 100e6}, unit="B", title='"Sent" & received')
    return [
        traffic,
        reveal(100e6, 75e6, traffic, unit="B", words="A ring sends less."),
        viewer(remembered()),
        reveal({"ranks": 4, "steps": ...}, {"ranks": 4, "steps": 6}, unit="B"),
        reveal(None, "ring", options=["ring", "tree"]),
        reveal(8, 6, unit="messages"),
        reveal(7, 6, unit="messages"),
    ]


def notebook(shown):
    cells = []
    for made in shown:
        data = {"text/html": made._repr_html_(), "text/plain": repr(made)}
        output = v4.new_output("execute_result", data=data, execution_count=1)
        cells.append(v4.new_code_cell("made", outputs=[output], execution_count=1))
    return v4.new_notebook(cells=cells)


def feedback():
    """The exporter with which nbgrader makes a student's feedback."""
    folder = os.path.dirname(formgrader.__file__)
    return HTMLExporter(
        template_name="feedback",
        extra_template_basedirs=[f"{folder}/templates"],
        extra_template_paths=[f"{folder}/static/node_modules/bootstrap/dist/css"],
    )


def page_with_fields(shown):
    """As a site shows them: no kernel, and the script that sets fields."""
    made = "\n".join(each._repr_html_() for each in shown)
    script = (PAGE / "guess.js").read_text(encoding="utf-8")
    return f"<!DOCTYPE html><meta charset='utf-8'><body>{made}<script>{script}</script>"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A tab, and the folder of its pages."""
    folder = tmp_path_factory.mktemp("shown")
    graded = {"score": 1, "max_score": 1, "late_penalty": 0, "comments": {}, "scores": {}}
    resources = {"nbgrader": graded}
    shown = outputs()
    nb = notebook(shown)
    pages = {
        "light": HTMLExporter().from_notebook_node(nb)[0],
        "dark": HTMLExporter(theme="dark").from_notebook_node(nb)[0],
        "feedback": feedback().from_notebook_node(nb, resources=resources)[0],
        "site": page_with_fields(shown),
    }
    for name, html in pages.items():
        assert "No description has been provided" not in html
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    with chromium(folder / "profile") as page:
        yield page, folder


def visit(tab, name, width=1400):
    page, folder = tab
    page.open((folder / f"{name}.html").as_uri())
    loaded = f"location.pathname.endsWith('/{name}.html') && document.readyState === 'complete'"
    until(name, 30, lambda: page.evaluate(loaded))
    resize(page, width)
    return page


def resize(page, width):
    size = dict(width=width, height=900, deviceScaleFactor=1, mobile=False)
    page.call("Emulation.setDeviceMetricsOverride", **size)


@pytest.mark.parametrize("name", ["light", "dark", "feedback", "site"])
def test_a_picture_tells_its_words_and_can_be_read(tab, name):
    page = visit(tab, name)
    page.evaluate(OPEN)
    for width in (1400, 800, 353):
        resize(page, width)
        images = page.evaluate(IMAGES)
        assert [image["alt"] for image in images] == [WORDS] * 2
        for image in images:
            assert image["drawn"] and image["words"] >= 9
            assert image["fits"] or (width < 1400 and image["scrolls"] and image["reached"])
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_paper_does_not_scroll(tab):
    page = visit(tab, "light", 640)
    page.call("Emulation.setEmulatedMedia", media="print")
    fits = [image["fits"] for image in page.evaluate(IMAGES)]
    page.call("Emulation.setEmulatedMedia", media="")
    assert fits == [True, True]


@pytest.mark.parametrize("name", ["light", "feedback"])
def test_an_answer_is_folded_until_it_is_clicked(tab, name):
    page = visit(tab, name)
    assert page.evaluate(FOLDS) == SUMMARIES
    page.click("summary", SUMMARIES[0])
    until("the answer", 5, lambda: "The answer: 75 MB" in page.evaluate(FOLDS)[0])
    assert page.evaluate(FOLDS)[1:] == SUMMARIES[1:]


def test_without_a_kernel_a_field_takes_the_guess_and_the_browser_keeps_it(tab):
    page = visit(tab, "site")
    none = "You have not guessed yet. Show the answer"
    assert page.evaluate(FOLDS) == [none] * 5
    fields = "[...document.querySelectorAll('.minidist-guess input, .minidist-guess select')]"
    assert page.evaluate(f"{fields}.map(e => e.name)") == ["", "ranks", "steps", "", "", ""]
    for place, guess in ((0, "90 MB"), (1, "3"), (5, "9")):
        page.evaluate(f"{fields}[{place}].focus()")
        for letter in guess:
            page.press(letter)
    page.evaluate(f"{fields}[3].focus()")
    page.press("t")
    guessed = [
        "Your guess: 90 MB. Show the answer",
        "Your guess: ranks 3. Show the answer",
        "Your guess: tree. Show the answer",
        none,
        "Your guess: 9 messages. Show the answer",
    ]
    assert page.evaluate(FOLDS) == guessed
    page.open("about:blank")
    assert visit(tab, "site").evaluate(FOLDS) == guessed
    page.evaluate(f"{fields}[5].focus()")
    page.press("Enter")
    page.evaluate(OPEN)
    folds = page.evaluate(FOLDS)
    assert "The answer: 6 messages" in folds[4]
    assert [line.split() for line in folds[1].splitlines()[-2:]] == [
        ["ranks", "3", "4", "B"],
        ["steps", "–", "6", "B"],
    ]
