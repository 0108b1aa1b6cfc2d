"""The site in a real browser: it loads without an error, asks nobody for anything, shows what the notebooks promise, and
can be read: on a telephone, in the dark, and aloud (quality.py).
"""

import base64
import functools
import io
import json
import re
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from matplotlib.figure import Figure
from nbformat.v4 import new_output

from course.build import read, release, text_of, write
from course.website import main
from minidist.parallel.schedules import gpipe, lists
from minidist.study import explore, schedule_editor, viewer
from tests.browser import quality
from tests.browser.chromium import chromium, program, until
from tests.repository.files import ROOT
from tests.repository.sample import ROW, course
from tests.study.traces import remembered

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


def picture():
    """A PNG in base64, as an output holds it."""
    file = io.BytesIO()
    Figure(figsize=(1, 1)).savefig(file, format="png")
    return base64.b64encode(file.getvalue()).decode()


@functools.cache
def to_touch():
    """One of each kind of picture that answers to a mouse."""
    made = [
        viewer(remembered(), title="A step"),
        explore(lambda n: {"cost": 2 * n}, title="A cost", n=[2, 4, 8]),
        schedule_editor({"GPipe": lists(gpipe, 2, 3)}, 3),
    ]
    return [picture._repr_html_() for picture in made]


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
                *[new_output("display_data", {"text/html": html}) for html in to_touch()],
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
    until(str(path), 60, lambda: page.evaluate(loaded) == "complete", every=0.05)
    return faults_told(page)


def faults_told(page):
    """What the browser has complained of since the page was opened, and what it has asked others for."""
    page.evaluate("1")  # what it tells before it answers has come with the answer
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
    assert not [*site.parent.glob("site-made"), *site.parent.glob("jupyter_execute")], "left over"
    for path in paths:
        assert (path.name, visit(page, path), dead(page)) == (path.name, [], [])


@pytest.mark.parametrize(
    "name", ["index", "notebooks/07_sample", "exercises/07_sample/07_sample", "search"]
)
def test_a_page_can_be_read(site, page, name):
    visit(page, site / f"{name}.html")
    assert quality.faults(page) == []


def test_what_the_notebook_promises_is_there(site, page):
    visit(page, site / "notebooks/07_sample.html")
    assert without_words(page) == 0
    assert page.evaluate('document.querySelector("article img").alt') == 'two "lines" & more'
    assert page.evaluate('document.querySelectorAll("article details").length') == 3
    assert page.evaluate('document.querySelectorAll("article iframe").length') == 3
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


def test_the_front_page_leads_to_the_first_lesson_and_says_how_long_it_takes(site, page):
    visit(page, site / "index.html")
    assert "5\xa0min" in page.evaluate("document.querySelector('article table').innerText")
    page.click("a.minidist-first")
    until("the first lesson", 30, lambda: page.evaluate("document.title").startswith("07 · First"))


def test_a_notebook_can_be_downloaded_as_it_is_and_is_not_opened_elsewhere(site, page):
    for name in ("notebooks/07_sample", "exercises/07_sample/07_sample"):
        visit(page, site / f"{name}.html")
        ways = page.evaluate('[...document.querySelectorAll(".minidist-ways a")].map(e => e.href)')
        assert ways == [(site / f"{name}.ipynb").as_uri()], "the address is unknown"
        original = site.parents[1] / f"{name}.ipynb"
        assert (site / f"{name}.ipynb").read_bytes() == original.read_bytes()


def test_search_finds_a_page_without_a_server(site, page):
    visit(page, site / "notebooks/08_second.html")
    page.click("input.sidebar-search")
    for letter in "clock":
        page.press(letter)
    page.press("Enter")
    found = (
        "[...document.querySelectorAll('#search-results li a')].map(e => e.getAttribute('href'))"
    )
    hits = until("a page that is found", 30, lambda: page.evaluate(found))
    assert any(hit.startswith("docs/glossary.html") for hit in hits)
    assert any(hit.startswith("notebooks/07_sample.html") for hit in hits)
    assert faults_told(page) == []
    page.click("#search-results li a")
    until("what was found", 30, lambda: "search.html" not in page.evaluate("location.pathname"))


def test_it_can_be_dark(site, page):
    visit(page, site / "notebooks/08_second.html")
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    seen = set()
    for _ in range(3):  # light, dark, and as the system has it
        page.click(".theme-toggle-content button")
        seen.add(max(page.evaluate(ground)) < 60)
    assert seen == {True, False}


def test_pictures_answer_to_the_mouse_without_a_kernel(site, page):
    visit(page, site / "notebooks/07_sample.html")
    # No frame answers before it has unpacked itself; a hand is slower than that.
    with page.frames() as frames:
        for frame in frames:
            until("a frame", 30, lambda f=frame: f.evaluate(quality.UNPACKED))
        by_title = {frame.evaluate("document.title"): frame for frame in frames}
        trace, cost, editor = map(by_title.get, ("A step", "A cost", "A schedule to change"))
        before = range_of(trace)
        click_until(page, trace, "#in", lambda: range_of(trace) != before)
        said = "document.querySelector('li output').textContent"
        assert cost.evaluate(said) == "8"
        click_until(page, cost, "input[type=range]", lambda: cost.evaluate(said) == "16", at=0.99)
        verdict = "document.getElementById('verdict').textContent"
        focus = "document.activeElement.id"
        click_until(page, editor, "#stage0", lambda: editor.evaluate(focus) == "stage0")
        page.press("Z")
        until("an error", 10, lambda: "Z" in editor.evaluate(verdict))


def range_of(trace):
    return trace.evaluate("document.getElementById('range').textContent")


def click_until(page, frame, selector, seen, at=0.5):
    """Click into a frame, at a share of the width of what `selector` finds there, until something is `seen`.

    Where a frame lies, the browser learns a moment after it has moved: a click before that is lost.
    """
    title = frame.evaluate("document.title")
    find = f"document.querySelector({json.dumps(selector)})"
    x, y, width, height = frame.evaluate(
        f"(r => [r.x, r.y, r.width, r.height])({find}.getBoundingClientRect())"
    )
    outer = f"document.querySelector('iframe[title={json.dumps(title)}]')"
    page.evaluate(f"{outer}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    left, top = page.evaluate(f"(r => [r.x, r.y])({outer}.getBoundingClientRect())")

    def clicked():
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            page.mouse(kind, left + x + at * width, top + y + height / 2)
        time.sleep(0.3)
        return seen()

    until(f"what a click on {selector} does", 30, clicked)


SPOILED = {
    "<h2>a</h2>": "0 headings of the first level",
    "<h1>a</h1><h1>b</h1>": "2 headings of the first level",
    "<h1>a</h1><h3>b</h3>": "after a heading of level 1 comes h3",
    '<h1>a</h1><img src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=" width=9>': "no words for <img",
    "<h1>a</h1><button></button>": "no words for <button",
    "<h1>a</h1><title>b</title><p><title>c</title>": "titles",
    '<h1>a</h1><p style="color: #888">b</p>': "light: contrast 3.54",
    '<h1>a</h1><p style="opacity: 0.3">b</p>': "light: contrast",
    '<h1>a</h1><p class="night" style="color: #222">b</p>': "dark: contrast",
    '<h1>a</h1><details><p style="color: #999">b</p></details>': "light: contrast",
    '<h1>a</h1><svg width=90 height=40><rect width=90 height=40 fill="#333"/><text y=20>b</text></svg>': "light: contrast",
    '<h1>a</h1><p style="font-size: 13px">b</p>': "letters of 13 pixels",
    '<h1>a</h1><div style="width: 500px">b</div>': "the page is 5",
    """<h1>a</h1><iframe sandbox=allow-scripts srcdoc='<p style="color: #999">b</p>'></iframe>""": "in a frame, light",
}
WHOLE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>t</title><style>body { background: #fff } body[data-theme="dark"] .night { background: #000 }</style><body>"""


def test_what_cannot_be_read_is_found(page, tmp_path):
    path = tmp_path / "page.html"
    good = (
        '<h1>a</h1><h2>b</h2><h3>c</h3><h2>d</h2><p style="color: #767676">e <sup style="font-size: 9px">f</sup></p>'
        '<div style="overflow-x: auto"><div style="width: 900px">g</div></div>'
    )
    path.write_text(WHOLE + good)
    visit(page, path)
    assert quality.faults(page) == []
    for spoiled, said in SPOILED.items():
        head = WHOLE.replace("<title>t</title>", "") if "<title>" in spoiled else WHOLE
        path.write_text(head + spoiled)
        visit(page, path)
        assert any(said in fault for fault in quality.faults(page)), spoiled


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The site of the whole course as it is published, and how many seconds it took."""
    to = tmp_path_factory.mktemp("whole") / "site"
    began = time.monotonic()
    assert main(["--to", str(to), "--address", "OWNER/NAME"]) == 0
    return to, time.monotonic() - began


@pytest.mark.full
def test_the_whole_course(whole, page, figure):
    site, seconds = whole
    paths = sorted(site.rglob("*.html"))
    found = {}
    titles = {}
    pictures = 0
    for path in paths:
        name = path.relative_to(site).as_posix()
        faults = visit(page, path) + dead(page)
        if opened(page):
            faults.append("an answer is open")
        other = titles.setdefault(page.evaluate("document.title"), name)
        if other != name:
            faults.append(f"has the title of {other}")
        pictures += page.evaluate('document.querySelectorAll("article img").length')
        faults += quality.faults(page)
        if faults:
            found[name] = faults
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
    figure(f"{len(paths)} pages, {pictures} pictures, {size:.0f} MB, built in {seconds:.0f} s")
    assert found == {}
    assert len(paths) > len([*ROOT.glob("notebooks/*.ipynb")])
    assert seconds <= 90


@pytest.mark.full
def test_each_lesson_opens_elsewhere_and_colab_finds_its_way_back(whole):
    """Links of notebooks for Colab lead to pages of the site, and to headings that are there."""
    site, _ = whole
    made = sorted(site.glob("colab/*.ipynb"))
    assert len(made) == len([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("exercises/*/*.ipynb")])
    ids = {}
    missing = []
    for path in made:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        links = re.findall(r"\]\(([^)\s]+)\)", text)
        assert not [link for link in links if not re.match(r"https?:|data:", link)], path.name
        for link in links:
            if link.startswith("https://owner.github.io/NAME/"):
                name, _, heading = link.removeprefix("https://owner.github.io/NAME/").partition("#")
                if name not in ids:
                    page = site / name
                    there = page.read_text(encoding="utf-8") if page.is_file() else None
                    ids[name] = there and set(re.findall(r'id="([^"]+)"', there))
                if ids[name] is None or (heading and unquote(heading) not in ids[name]):
                    missing.append((path.name, link))
    assert missing == []
    wheels = [path.name for path in site.glob("*.whl")]
    assert len(wheels) == 1 and all(wheels[0] in path.read_text(encoding="utf-8") for path in made)
