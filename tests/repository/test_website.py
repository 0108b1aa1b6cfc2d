"""What the site is laid out from, without a browser: GitHub's address, notebooks for Colab, the wheel that they install.

tests/browser/test_site.py looks at the pages.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from course import colab, frameworks
from course.colab import Address
from course.website import main
from tests.repository.files import ROOT
from tests.repository.sample import course

HERE = Address.of("Owner/name")


def test_where_a_repository_has_its_site():
    assert HERE.site == "https://owner.github.io/name/"
    assert Address.of("Owner/owner.github.io").site == "https://owner.github.io/"
    assert Address.of("a/b", "https://c.example").site == "https://c.example/"


@pytest.mark.parametrize("words", ["name", "a/b/c", "https://github.com/a/b", "a/", "a b/c"])
def test_an_address_that_is_none(words, tmp_path, capsys):
    with pytest.raises(ValueError, match="OWNER/NAME"):
        Address.of(words)
    with pytest.raises(SystemExit):
        main(["--root", str(tmp_path), "--address", words])
    assert "OWNER/NAME" in capsys.readouterr().err


def test_what_opens_a_notebook():
    assert HERE.colab("02_a.ipynb") == (
        "https://colab.research.google.com/github/Owner/name/blob/colab/02_a.ipynb"
    )
    assert HERE.binder("notebooks/02_a.ipynb") == (
        "https://mybinder.org/v2/gh/Owner/name/HEAD?labpath=notebooks%2F02_a.ipynb"
    )
    assert HERE.codespaces() == "https://codespaces.new/Owner/name?quickstart=1"


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/a-b/c.d", "a-b/c.d"),
        ("https://github.com/a/b.git", "a/b"),
        ("git@github.com:a/b.git", "a/b"),
        ("https://user@github.com/a/b/", "a/b"),
        ("https://gitlab.com/a/b.git", ""),
        ("/srv/a/b", ""),
        (None, ""),
    ],
)
def test_the_address_comes_from_gits_remote(tmp_path, remote, address):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    if remote:
        subprocess.run(["git", "-C", str(tmp_path), "remote", "add", "origin", remote], check=True)
    assert colab.origin(tmp_path) == address


SITE = "https://owner.github.io/name/"


@pytest.mark.parametrize(
    ("link", "leads_to"),
    [
        ("../docs/glossary.md#Virtual-clock", f"{SITE}docs/glossary.html#virtual-clock"),
        ("../notebooks/02_a.ipynb", f"{SITE}notebooks/02_a.html"),
        ("../exercises/02_a/02_a.ipynb", f"{SITE}exercises/02_a/02_a.html"),
        ("../minidist/models.py", f"{SITE}minidist/models.py.html"),
        ("#Takeaways", f"{SITE}notebooks/01_a.html#takeaways"),
        ("https://arxiv.org/abs/1", "https://arxiv.org/abs/1"),
        ("../course/01_a/figures/a.svg", "data:image/svg+xml;base64,PHN2Zy8+"),
    ],
)
def test_where_a_link_leads_from_colab(tmp_path, link, leads_to):
    picture = tmp_path / "course/01_a/figures/a.svg"
    picture.parent.mkdir(parents=True)
    picture.write_text("<svg/>")
    path = tmp_path / "notebooks/01_a.ipynb"
    assert colab.target(link, path, tmp_path, SITE) == leads_to


def test_a_notebook_for_colab_installs_the_wheel_and_is_else_the_same():
    path = ROOT / "notebooks/02_messages.ipynb"
    original = json.loads(path.read_text(encoding="utf-8"))
    made = json.loads(
        colab.notebook(path.read_text(encoding="utf-8"), path, ROOT, SITE, "m-1-none-any.whl")
    )
    install, *cells = made["cells"]
    assert f'"minidist[course] @ {SITE}m-1-none-any.whl"' in install["source"]
    assert len(cells) == len(original["cells"])
    for cell, other in zip(cells, original["cells"], strict=True):
        if cell["cell_type"] == "code":
            assert cell == other
        else:
            assert re.findall(r"\]\((?!https?:|data:)", cell["source"]) == []
    ids = [cell["id"] for cell in made["cells"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx API")  # myst_parser's own
def test_with_an_address_the_site_has_what_colab_needs(tmp_path, capfd):
    pytest.importorskip("myst_nb", reason="Sphinx with myst-nb is not installed")
    root = course(tmp_path / "course")
    from course.build import read, release, text_of, write

    write(
        root / "notebooks/07_sample.ipynb", text_of(read(root, root / "course/07_sample/lesson.py"))
    )
    task = read(root, root / "course/07_sample/assignment.py")
    write(root / "exercises/07_sample/07_sample.ipynb", release(root, task, "07_sample"))
    site = tmp_path / "site"
    assert main(["--root", str(root), "--to", str(site), "--address", "Owner/name"]) == 0
    told = capfd.readouterr().out
    assert f"Open {site / 'index.html'}" in told and "Owner/name" in told
    names = sorted(path.name for path in site.glob("colab/*"))
    assert names == ["07_sample.ipynb", "07_sample_exercises.ipynb"]
    [wheel] = site.glob("*.whl")
    assert wheel.name in (site / "colab/07_sample.ipynb").read_text(encoding="utf-8")
    assert "minidist/study/frameworks.csv" in zipfile.ZipFile(wheel).namelist()
    page = (site / "notebooks/07_sample.html").read_text(encoding="utf-8")
    for link in (HERE.colab("07_sample.ipynb"), HERE.codespaces()):
        assert f'href="{link}"' in page
    page = (site / "exercises/07_sample/07_sample.html").read_text(encoding="utf-8")
    assert f'href="{HERE.binder("exercises/07_sample/07_sample.ipynb")}"' in page


def test_the_table_of_frameworks_is_not_stale(monkeypatch, tmp_path, capsys):
    assert frameworks.main(["--check"]) == 0
    monkeypatch.setattr(frameworks, "TABLE", tmp_path / "frameworks.csv")
    assert frameworks.main(["--check"]) == 1, "there is none"
    assert frameworks.main([]) == 0
    assert frameworks.main(["--check"]) == 0


# Executes notebooks in a folder of their own, as `python run.py NOTEBOOK …` of the environment with the wheel.
RUN = """
import sys, tempfile
from pathlib import Path
import nbformat
from nbclient import NotebookClient
for path in map(Path, sys.argv[1:]):
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(nbformat.read(path, 4), timeout=120, kernel_name="python3", resources=resources).execute()
    print(path.name, flush=True)
"""
# With a solution in it, an assignment shows that its grader works as well.
SOLVED = ("02_messages", "13_zero", "17_schedules")


@pytest.mark.full
def test_lessons_run_without_a_clone(tmp_path, figure):
    """Each as Colab is given it, its first cell included, in a new environment and an empty folder."""
    site = tmp_path / "site"
    wheel = colab.wheel(site)
    lessons = sorted(ROOT.glob("notebooks/*.ipynb"))
    solved = [ROOT / "solutions" / name / f"{name}.ipynb" for name in SOLVED]
    paths = []
    for path in [*lessons, *solved]:
        text = path.read_text(encoding="utf-8")
        made = site / colab.file_name(path, ROOT)
        made.write_text(
            colab.notebook(text, path, ROOT, f"{site.as_uri()}/", wheel), encoding="utf-8"
        )
        paths.append(made)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "OMP_NUM_THREADS": "1"}

    def run(*words):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
        return done.stdout

    python = str(tmp_path / "venv" / "bin" / "python")
    run(sys.executable, "-m", "venv", "venv")
    run(python, "-m", "pip", "install", "-q", f"minidist[course] @ {(site / wheel).as_uri()}")
    (tmp_path / "run.py").write_text(RUN)
    done = run(python, "run.py", *map(str, paths)).split()
    assert done == [path.name for path in paths]
    where = run(python, "-c", "import minidist; print(minidist.__file__)").strip()
    assert Path(where).is_relative_to(tmp_path)
    figure(f"{len(lessons)} lessons and {len(solved)} solved assignments, from {wheel} alone")
