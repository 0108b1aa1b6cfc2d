"""The site in a real browser: it loads without an error, asks nobody for anything, and shows what the notebooks promise."""

import base64
import io
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_output

from course.build import read, release, text_of, write
from course.website import main
from tests.browser.chromium import chromium, program, until
from tests.repository.files import ROOT
from tests.repository.sample import ROW, course

pytest.importorskip("myst_nb", reason="Sphinx with myst-nb is not installed")

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
    pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx API"),  # myst_parser's own
]

FIRST = r"""# %% [markdown]
# # 07 · First
#
# A [virtual clock](term:virtual-clock) counts $2\frac{n-1}{n}N$ bytes; [Second](lesson:second) says why.
#
# $$\sum_{i=0}^{n-1} x_i \le \sqrt{n}$$
#
# See [the end](#The-End), [a file](file:a.py), [Li](paper:li2020).

# %%
answer = 42

# %% tags=["maintainer"]
assert answer == 42

# %% [markdown]
# ## The End
#
# <details><summary>Hint</summary>
#
# A *hint*.
#
# </details>
"""
SECOND = "# %% [markdown]\n# # 08 · Second\n#\n# Text.\n"
ANSWER = (
    '<details class="minidist-answer" data-kind="number" data-answer="42"><summary>The answer</summary>'
    "forty-two</details>"
)
GUESS = ROOT / "minidist/study/page/guess.js"
PAPERS = '[li2020]\nauthors = "Li"\ntitle = "T"\nvenue = "V"\nyear = 2020\narxiv = "2006.15704"\n'
# Pictures that lessons draw with Matplotlib alone, so that they have no words yet.
WAITING = {"notebooks/05_data_parallel.html": 1, "notebooks/15_vocabulary.html": 1}


def picture():
    """A PNG in base64, as an output holds it."""
    file = io.BytesIO()
    Figure(figsize=(1, 1)).savefig(file, format="png")
    return base64.b64encode(file.getvalue()).decode()


def two_lessons(root):
    """A course of two lessons under `root`, built as if it had been run."""
    course(root, lesson=FIRST)
    (root / "course/08_second").mkdir()
    (root / "course/08_second/lesson.py").write_text(SECOND)
    rows = ROW.format(number="07", name="sample") + ROW.format(number="08", name="second")
    (root / "course/lessons.toml").write_text(rows.replace("course/lessons.toml", "a.py"))
    (root / "course/papers.toml").write_text(PAPERS)
    (root / "a.py").write_text("print(1)\n")
    (root / "docs").mkdir()
    (root / "docs/glossary.md").write_text(
        "# Glossary\n\n## rank\n\nA.\n\n## virtual clock\n\nB.\n"
    )
    for name in ("07_sample", "08_second"):
        nb = read(root, root / "course" / name / "lesson.py")
        codes = [cell for cell in nb.cells if cell.cell_type == "code"]
        if codes:
            text_twin = {"image/png": {"alt": 'two "lines" & more'}}
            codes[0].outputs = [
                new_output("display_data", {"image/png": picture()}, metadata=text_twin),
                new_output("display_data", {"text/html": ANSWER, "text/plain": "42"}),
            ]
        write(root / "notebooks" / f"{name}.ipynb", text_of(nb))
    exercise = read(root, root / "course/07_sample/assignment.py")
    text = release(root, exercise, "07_sample")
    write(root / "exercises/07_sample/07_sample.ipynb", text)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("site")
    two_lessons(root)
    to = root / "build" / "site"
    assert main(["--root", str(root), "--to", str(to)]) == 0
    return to


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        for domain in ("Runtime", "Log", "Network", "Page"):
            page.call(f"{domain}.enable")
        yield page


def visit(page, path):
    """Open a page of the site; returns what the browser complains of, and what it asks others for."""
    page.events.clear()
    page.open(path.as_uri())
    loaded = f"location.pathname === {json.dumps(path.as_uri()[7:])} && document.readyState"
    until(str(path), 60, lambda: page.evaluate(loaded) == "complete")
    faults = []
    for method, params in page.events:
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            faults.append(params["entry"]["text"])
        if method == "Runtime.exceptionThrown":
            faults.append(params["exceptionDetails"]["text"])
        if method == "Runtime.consoleAPICalled" and params["type"] == "error":
            faults.append("console.error")
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if urlsplit(url).scheme not in ("file", "data"):
                faults.append(f"asked for {url}")
    return faults


def links(page):
    """The addresses of all links, images, scripts and styles of the page."""
    return page.evaluate(
        """[...document.querySelectorAll("a[href], link[href]")].map(e => e.href)
        .concat([...document.querySelectorAll("[src]")].map(e => e.src))"""
    )


def dead(page):
    """Links to files, or to places in them, that are not there."""
    found = []
    for link in links(page):
        parts = urlsplit(link)
        path = unquote(parts.path)
        if parts.scheme == "file" and not Path(path).is_file():
            found.append(link)
    here = """[...document.querySelectorAll('a[href^="#"]')].map(e => e.getAttribute("href"))
        .filter(h => h.length > 1 && !document.getElementById(decodeURIComponent(h.slice(1))))"""
    return found + page.evaluate(here)


def without_words(page):
    return page.evaluate(
        """[...document.querySelectorAll("img, svg[role=img]")]
        .filter(e => !(e.getAttribute("alt") || e.querySelector("title"))).length"""
    )


def opened(page):
    return page.evaluate('document.querySelectorAll("article details[open]").length')


def test_every_page_loads_and_asks_for_nothing(site, page):
    paths = sorted(site.rglob("*.html"))
    names = {path.relative_to(site).as_posix() for path in paths}
    assert {"index.html", "notebooks/07_sample.html", "docs/glossary.html", "a.py.html"} <= names
    assert {"notebooks/08_second.html", "exercises/07_sample/07_sample.html"} <= names
    for path in paths:
        assert (path.name, visit(page, path), dead(page)) == (path.name, [], [])


def test_what_the_notebook_promises_is_there(site, page):
    visit(page, site / "notebooks/07_sample.html")
    assert without_words(page) == 0
    assert page.evaluate('document.querySelector("article img").alt') == 'two "lines" & more'
    assert page.evaluate('document.querySelectorAll("article details").length') == 3
    assert opened(page) == 0, "an answer, a hint or a cell of the maintainers is open"
    page.click("details.minidist-answer summary")
    assert opened(page) == 1
    fields = page.evaluate('document.querySelectorAll("form.minidist-guess input").length')
    assert fields == int(GUESS.exists()), "a field for the guess"
    assert page.evaluate('document.querySelectorAll("math mfrac, math msqrt").length') == 2
    assert page.evaluate("document.querySelector('math[display=block]').clientHeight") > 20
    ways = page.evaluate('[...document.querySelectorAll(".related-pages a")].map(e => e.href)')
    assert [way.rpartition("/")[2] for way in ways] == ["08_second.html", "index.html"]


@pytest.mark.parametrize(
    ("words", "leads_to", "shows"),
    [
        ("virtual clock", "docs/glossary.html#virtual-clock", "virtual clock"),
        ("Second", "notebooks/08_second.html", "08 · Second"),
        ("a file", "a.py.html", "print(1)"),
        ("the end", "notebooks/07_sample.html#the-end", "The End"),
        ("exercises", "exercises/07_sample/07_sample.html", "Exercises"),
    ],
)
def test_a_link_leads_to_what_it_means(site, page, words, leads_to, shows):
    visit(page, site / "notebooks/07_sample.html")
    page.click("article a", words)
    address = (site / leads_to.partition("#")[0]).as_uri() + leads_to.partition("#")[2].join(
        ["#", ""]
    )
    where = 'document.readyState === "complete" && location.href'
    until(leads_to, 30, lambda: page.evaluate(where) in (address, address.rstrip("#")))
    assert shows in page.evaluate('document.querySelector("article").textContent')


def test_faults_are_found(page, tmp_path):
    """A page that does all that the site must not."""
    spoiled = tmp_path / "spoiled.html"
    spoiled.write_text(
        """<!doctype html><article><img src="data:image/png;base64,iVBORw0KGgo="><a href="none.html">a</a>
        <a href="#none">b</a><details open>c</details></article><script src="http://localhost:9/x.js"></script>
        <script>console.error("d"); undefined.e</script>"""
    )
    faults = visit(page, spoiled)
    assert any("asked for http://localhost:9/x.js" in fault for fault in faults)
    assert "console.error" in faults
    assert "Uncaught" in faults
    assert [link.rpartition("/")[2] for link in dead(page)] == ["none.html", "#none"]
    assert without_words(page) == 1
    assert opened(page) == 1


def test_a_link_that_leads_nowhere_fails_the_site(tmp_path, capfd):
    two_lessons(tmp_path)
    notebook = tmp_path / "notebooks/08_second.ipynb"
    notebook.write_text(notebook.read_text().replace("Text.", "[Text](../b.py)."))
    assert main(["--root", str(tmp_path), "--to", str(tmp_path / "site")]) == 1
    assert "b.py" in capfd.readouterr().err


@pytest.mark.full
def test_the_whole_course(page, tmp_path, figure):
    assert main(["--to", str(tmp_path / "site")]) == 0
    paths = sorted((tmp_path / "site").rglob("*.html"))
    found = {}
    pictures = 0
    for path in paths:
        name = path.relative_to(tmp_path / "site").as_posix()
        faults = visit(page, path) + dead(page)
        if without_words(page) > WAITING.get(name, 0):
            faults.append(f"{without_words(page)} pictures without words")
        if opened(page):
            faults.append("an answer is open")
        pictures += page.evaluate('document.querySelectorAll("article img").length')
        if faults:
            found[name] = faults
    figure(f"{len(paths)} pages, {pictures} pictures")
    assert found == {}
    assert len(paths) > len([*ROOT.glob("notebooks/*.ipynb")])
