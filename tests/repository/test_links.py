"""Every link of the course leads somewhere: those that text cells mean, and those that the notebooks have."""

import json
import re
from functools import cache

import pytest

from course.build import FOLDERS, BuildError
from course.links import ADDRESSES, GLOSSARY, HEADING, LESSONS, PAPERS, Links, anchor
from course.release import released
from tests.repository.files import ROOT

MARKDOWN_LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")
IDENTIFIERS = {
    "arxiv": re.compile(r"\d{4}\.\d{4,5}"),
    "doi": re.compile(r"10\.\d{4,5}/\S+"),
    "url": re.compile(r"https://[\w.-]+/\S+"),
}
STUDENTS = ("notebooks", "exercises")  # what goes out without solutions


@cache
def handed_out():
    """The files that students have beside their notebooks."""
    return {path.relative_to(ROOT).as_posix() for path in released(ROOT)}


def headings(path):
    text = path.read_text(encoding="utf-8")
    return {anchor(heading) for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)}


def links_of(path):
    """The links in a notebook's text cells, or in a page."""
    text = path.read_text(encoding="utf-8")
    texts = [text]
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    return [link for text in texts for link in MARKDOWN_LINK.findall(text)]


def fault(link, path):
    """What is wrong with a link of the file at `path`, or None."""
    if link.startswith("https://arxiv.org/"):
        return None if IDENTIFIERS["arxiv"].fullmatch(link[22:]) else "no identifier of arXiv's"
    if link.startswith("https://doi.org/"):
        return None if IDENTIFIERS["doi"].fullmatch(link[16:]) else "no DOI"
    if link.startswith("https://"):
        return None
    if re.match(r"\w+:", link):
        return "was not resolved"
    name, _, heading = link.partition("#")
    if not name:
        return None  # a heading of the same page
    target = (path.parent / name).resolve()
    if not target.is_relative_to(ROOT) or not target.exists():
        return "is not there"
    inside = target.relative_to(ROOT).as_posix()
    if path.relative_to(ROOT).parts[0] in STUDENTS and inside not in handed_out():
        return "is not handed out to students"
    if heading and target.suffix == ".md" and heading not in headings(target):
        return "has no such heading"
    return None


def faults(path):
    found = [(link, fault(link, path)) for link in links_of(path)]
    return [f"{path.relative_to(ROOT)}: {link} {what}" for link, what in found if what]


@pytest.fixture(scope="module")
def links():
    return Links(ROOT)


def test_the_notebooks_lead_to_what_is_there(figure):
    found = [p for folder in FOLDERS for p in sorted(ROOT.glob(f"{folder}/**/*.ipynb"))]
    notebooks = [p for p in found if ".ipynb_checkpoints" not in p.parts]
    figure(f"{sum(len(links_of(p)) for p in notebooks)} links in {len(notebooks)} notebooks")
    assert [line for path in notebooks for line in faults(path)] == []


def test_the_glossary_leads_to_what_is_there(links):
    path = ROOT / GLOSSARY
    assert faults(path) == []
    inside = {link[1:] for link in links_of(path) if link.startswith("#")}
    assert inside <= set(links.terms.values())


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ("02_message.ipynb", "is not there"),
        ("../../elsewhere.md", "is not there"),
        ("../solutions/02_messages/02_messages.ipynb", "is not handed out to students"),
        ("../docs/glossary.md#rnak", "has no such heading"),
        ("term:rank", "was not resolved"),
        ("http://arxiv.org/abs/1910.02054", "was not resolved"),
        ("https://arxiv.org/abs/19.02054", "no identifier of arXiv's"),
        ("https://doi.org/1016/j.jpdc.2008.09.002", "no DOI"),
        ("02_messages.ipynb", None),
        ("../docs/glossary.md#rank", None),
        ("https://doi.org/10.1016/0040-5809%2876%2990043-5", None),
        ("#Takeaways", None),
    ],
)
def test_a_bad_link_is_found(link, what):
    assert fault(link, ROOT / "notebooks" / "01_walls.ipynb") == what


def test_every_row_makes_a_head_and_a_foot(links):
    """Its files and scripts are there, and what it needs comes before it."""
    numbers = {name: row.number for name, row in links.lessons.items()}
    assert list(numbers.values()) == [f"{number:02}" for number in range(1, 29)]
    for row in links.lessons.values():
        assert row.title in str(row)
        assert f"about {row.reading} minutes" in links.head(row, "../")
        assert links.foot(row, "../").startswith("---\n")
        assert f"about {row.exercises} minutes" in links.assignment_head(row, "../../")
        for need in set(row.needs) - {"PyTorch"}:
            assert numbers[need] < row.number, f"{row.name} needs {need}"


def test_an_exercise_has_five_minutes_a_point(links):
    for row in links.lessons.values():
        path = ROOT / "minicheck" / "questions" / f"{row.folder}.json"
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        points = sum(cell["metadata"]["nbgrader"].get("points", 0) for cell in cells)
        assert row.exercises == 5 * points, row.folder


def test_every_folder_has_a_row(links):
    folders = {path.name for path in ROOT.glob("course/[0-9]*_*")}
    assert folders <= {row.folder for row in links.lessons.values()}


def test_every_paper_has_one_identifier_that_can_be_one(links):
    for key, paper in links.papers.items():
        kinds = [kind for kind in ADDRESSES if kind in paper]
        assert IDENTIFIERS[kinds[0]].fullmatch(paper[kinds[0]]), key
        assert links.citation(key).endswith(f"{paper['year']}.")
        assert key == "apex" or re.fullmatch(rf"[a-z]+{paper['year']}[a-z]?", key), key
    addresses = [links.address(key) for key in links.papers]
    assert len(addresses) == len(set(addresses)), "a paper is there twice"
    assert list(links.papers) == sorted(links.papers)


def test_the_glossary_is_in_order_and_says_where_a_term_is_explained(links):
    text = (ROOT / GLOSSARY).read_text(encoding="utf-8")
    terms = HEADING.findall(text)
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) == len(links.terms), "two terms have the same anchor"
    assert all(re.fullmatch(r"[\w\- ]+", term) for term in terms), "Sphinx leaves other signs out"
    for entry in text.split("\n## ")[1:]:
        assert re.search(r"→ \[\d\d .*\]\(\.\./notebooks/\d\d_\w+\.ipynb\)$", entry.strip()), entry


# ------------------------------------------------------------------------------------------------- what cells mean
@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The links of a course of two lessons, of which the second is still to come."""
    root = tmp_path_factory.mktemp("links")
    row = (
        '[[lesson]]\nnumber = "{0}"\nname = "{1}"\ntitle = "The {1}"\nbuilds = "b"\nneeds = {2}\n'
        'reading = 5\nexercises = 10\nfiles = ["a.py"]\nexamples = []\n'
    )
    (root / "course" / "01_old").mkdir(parents=True)
    (root / "course/01_old/lesson.py").write_text("")
    (root / LESSONS).write_text(row.format("01", "old", []) + row.format("02", "new", ["old"]))
    (root / PAPERS).write_text(
        '[li2020]\nauthors = "Li et al."\ntitle = "T"\nvenue = "V"\nyear = 2020\narxiv = "2006.15704"\n'
        '[ho2013]\nauthors = "Ho"\ntitle = "U"\nvenue = "W"\nyear = 2013\ndoi = "10.1/a(7)b"\n'
        '[bad2000]\nauthors = "A"\narxiv = "1"\ndoi = "2"\n'
    )
    (root / "docs").mkdir()
    (root / GLOSSARY).write_text("# Glossary\n\n## virtual clock\n\n## MFU\n")
    (root / "a.py").write_text("")
    return Links(root)


LI = "- Li et al. [*T.*](https://arxiv.org/abs/2006.15704) V, 2020."
HO = "- Ho. [*U.*](https://doi.org/10.1/a%287%29b) W, 2013."


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("a [clock](term:virtual-clock).", "a [clock](../docs/glossary.md#virtual-clock)."),
        ("[MFU](term:mfu)", "[MFU](../docs/glossary.md#MFU)"),
        ("see [it](lesson:old)", "see [it](../notebooks/01_old.ipynb)"),
        ("see [it](lesson:new)", "see it"),
        ("[`x[0]`](file:a.py)", "[`x[0]`](../a.py)"),
        ("[Li](paper:li2020)", "[Li](https://arxiv.org/abs/2006.15704)"),
        ("## Further reading\n\npapers: li2020, ho2013", f"## Further reading\n\n{LI}\n{HO}"),
        ("- paper:ho2013 Why.\n- paper:li2020", f"{HO} Why.\n{LI}"),
        ("[a](b.md) `term` papers:", "[a](b.md) `term` papers:"),
    ],
)
def test_what_a_cell_means_is_written_out(small, text, resolved):
    assert small.resolve(text, "../") == resolved


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[x](term:clock)", "no term 'clock'"),
        ("[x](term:MFU)", "no term 'MFU'"),
        ("[x](lesson:middle)", "no lesson 'middle'"),
        ("[x](file:b.py)", "no file 'b.py'"),
        ("[x](file:../a.py)", "no file"),
        ("[x](paper:li2021)", "no paper 'li2021'"),
        ("papers: li2020, lo2020", "no paper 'lo2020'"),
        ("papers:", "no paper ''"),
        ("- paper:lo2020", "no paper 'lo2020'"),
        ("[x](paper:bad2000)", "bad2000 has 2 of arxiv, doi, url"),
        ("x](term:mfu)", "is no link"),
        ("[x](term:virtual clock)", "is no link"),
    ],
)
def test_what_is_unknown_is_refused(small, text, says):
    with pytest.raises(BuildError, match=re.escape(says)):
        small.resolve(text, "../")


def test_a_row_that_cannot_be_right_is_refused(small, tmp_path):
    (tmp_path / "course").mkdir()
    text = (small.root / LESSONS).read_text()
    for old, new, says in [
        ('"02"', '"01"', "not in order"),
        ('"new"', '"old"', "share a number or name"),
        ("builds", "build", "build"),
        ("['old']", "[", "lessons.toml"),
    ]:
        (tmp_path / LESSONS).write_text(text.replace(old, new))
        with pytest.raises(BuildError, match=says):
            Links(tmp_path)
    (tmp_path / LESSONS).write_text(text.replace("['old']", "['nothing']"))
    with pytest.raises(BuildError, match="new needs nothing"):
        Links(tmp_path).head(Links(tmp_path).lessons["new"], "../")
    with pytest.raises(BuildError, match=r"no file 'a\.py'"):
        Links(tmp_path).head(Links(tmp_path).lessons["old"], "../")
    with pytest.raises(BuildError, match="no row"):
        small.row("03_other")
