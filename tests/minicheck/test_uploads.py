"""What was handed in is found, whoever collected it, and nothing is read that was not handed in."""

import os
import stat
import zipfile

import pytest

from minicheck import submission, uploads
from minicheck.submission import Unreadable
from minicheck.uploads import submissions

NAME = "06_buckets"


def put(folder, *names):
    """Files that say how they are called."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def pack(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return path


def contents(source):
    """{student: what is graded}, of a folder or a zip."""
    return {s.owner.student: s.file.read().decode() for s in submissions(source, NAME)}


NBGRADER = (
    "ann/06_buckets/06_buckets.ipynb",
    "ann/05_data_parallel/05_data_parallel.ipynb",
    "bob/06_buckets/06_buckets.ipynb",
    "bob/06_buckets/.ipynb_checkpoints/06_buckets-checkpoint.ipynb",
    "bob/06_buckets/timestamp.txt",
    "cyd/05_data_parallel/05_data_parallel.ipynb",
)
CANVAS = (
    "leeann_12_901_06_buckets.ipynb",
    "leeann_12_1002_06_buckets-1.ipynb",
    "kimbob_LATE_7_903_what_I_did.ipynb",
)
MOODLE = (
    "Ann Lee_12_assignsubmission_file_/06_buckets.ipynb",
    "Bob Kim_7_assignsubmission_file_/what_I_did.ipynb",
    "Bob Kim_7_assignsubmission_onlinetext_/onlinetext.html",
    "Cyd_9_assignsubmission_file_eve_3_assignsubmission_file_x.ipynb",
)
GITHUB = (
    "buckets-ann/exercises/06_buckets/06_buckets.ipynb",
    "buckets-ann/exercises/05_data_parallel/05_data_parallel.ipynb",
    "buckets-ann/notebooks/06_buckets.ipynb",
    "buckets-ann/README.md",
)
FLAT = ("ann.ipynb", "bob/mine.ipynb", "grades.csv", "cyd/notes.txt")


@pytest.mark.parametrize(
    ("names", "graded"),
    [
        (NBGRADER, {"ann": NBGRADER[0], "bob": NBGRADER[2]}),
        (CANVAS, {"leeann_12": CANVAS[1], "kimbob_7": CANVAS[2]}),
        (MOODLE, {"Ann Lee_12": MOODLE[0], "Bob Kim_7": MOODLE[1], "Cyd_9": MOODLE[3]}),
        (GITHUB, {"buckets-ann": GITHUB[0]}),
        (FLAT, {"ann": FLAT[0], "bob": FLAT[1]}),
    ],
    ids=["nbgrader", "canvas", "moodle", "github", "flat"],
)
def test_layouts(tmp_path, names, graded):
    put(tmp_path / "folder", *names)
    assert contents(tmp_path / "folder") == graded
    assert contents(pack(tmp_path / "all.zip", *names)) == graded
    within = [f"submissions/{name}" for name in names]
    assert contents(pack(tmp_path / "within.zip", *within, "__MACOSX/submissions/ann.ipynb")) == {
        student: f"submissions/{name}" for student, name in graded.items()
    }


def test_what_the_platforms_know(tmp_path):
    put(tmp_path / "canvas", *CANVAS)
    late, twice = sorted(submissions(tmp_path / "canvas", NAME), key=lambda s: s.owner.student)
    assert (late.owner.platform, late.owner.number, late.owner.name) == ("canvas", "7", "kimbob")
    assert late.odd == ["handed in late, says Canvas"]
    assert twice.odd == [
        "2 notebooks were handed in, and leeann_12_1002_06_buckets-1.ipynb was graded"
    ]
    put(tmp_path / "moodle", *MOODLE)
    ann = submissions(tmp_path / "moodle", NAME)[0]
    assert (ann.owner.platform, ann.owner.number, ann.owner.name) == ("moodle", "12", "Ann Lee")


def test_the_notebook_with_the_assignments_name_is_graded(tmp_path):
    put(tmp_path, "ann/zzz.ipynb", "ann/06_buckets.ipynb", "ann/06_buckets_old.ipynb")
    [ann] = submissions(tmp_path, NAME)
    assert ann.file.read() == b"ann/06_buckets.ipynb"
    assert not ann.odd


def refusals(source):
    found = {}
    for one in submissions(source, NAME):
        with pytest.raises(Unreadable) as refused:
            one.file.read()
        found[one.owner.student] = str(refused.value)
    return found


def test_no_notebook_is_told(tmp_path):
    put(tmp_path, "Ann_5_assignsubmission_file_/report.pdf", "bob/06_buckets/06_buckets.py")
    assert refusals(tmp_path) == {
        "Ann_5": "there is no notebook: report.pdf",
        "bob": "there is no notebook: 06_buckets.py",
    }


def test_no_link_is_followed(tmp_path):
    """To the solution, to another student's notebook, folder or assignment; nor is a pipe waited for."""
    secret = tmp_path / "solution.ipynb"
    secret.write_text("the solution")
    root = tmp_path / "submitted"
    put(root, "ann/06_buckets/06_buckets.ipynb")
    for name in ("bob/06_buckets/06_buckets.ipynb", "eve.ipynb", "joe/mine.ipynb"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(secret)
    (root / "cyd").mkdir()
    (root / "cyd/06_buckets").symlink_to(root / "ann/06_buckets")
    (root / "dan").symlink_to(root / "ann")
    (root / "gus").mkdir()
    (root / "gus/exercises").symlink_to(root / "ann")
    found = submissions(root, NAME)
    assert found[0].file.read() == b"ann/06_buckets/06_buckets.ipynb"
    (root / "ann/06_buckets/06_buckets.ipynb").unlink()
    os.mkfifo(root / "ann/06_buckets/06_buckets.ipynb")
    said = refusals(root)
    assert said.pop("ann") == "06_buckets.ipynb is not a regular file"
    assert set(said) == {"bob", "cyd", "dan", "eve", "gus", "joe"}
    assert all("links are not followed" in why for why in said.values())


def test_a_link_in_the_place_of_a_file_is_seen_when_it_is_read(tmp_path):
    put(tmp_path, "ann.ipynb", "bob.ipynb")
    ann = submissions(tmp_path, NAME)[0]
    (tmp_path / "ann.ipynb").unlink()
    (tmp_path / "ann.ipynb").symlink_to(tmp_path / "bob.ipynb")
    with pytest.raises(Unreadable, match=r"^ann\.ipynb is a link"):
        ann.file.read()
    put(tmp_path, f"cyd/{NAME}/{NAME}.ipynb")
    cyd = submissions(tmp_path, NAME)[2]
    (tmp_path / "cyd" / NAME).rename(tmp_path / "away")
    (tmp_path / "cyd" / NAME).symlink_to(tmp_path / "away")
    with pytest.raises(Unreadable, match=f"^{NAME} is a link"):
        cyd.file.read()


def entry(name, mode=0o644):
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    made.compress_type = zipfile.ZIP_DEFLATED
    return made


def test_a_hostile_zip(tmp_path):
    """A bomb, a link, and bytes that are not what they were: each costs its owner alone."""
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry("ann.ipynb"), "0" * 3_000_000)
        archive.writestr(entry("bob.ipynb", stat.S_IFLNK | 0o777), "/etc/passwd")
        archive.writestr("cyd.ipynb", "the notebook of cyd")
        archive.writestr("dan.ipynb", "right")
    path.write_bytes(path.read_bytes().replace(b"notebook of cyd", b"notebook of eve"))
    *bad, dan = submissions(path, NAME)
    words = ("packed to less than", "links are not followed", "cannot be unpacked")
    for one, word in zip(bad, words, strict=True):
        with pytest.raises(Unreadable, match=word):
            one.file.read()
    assert dan.file.read() == b"right"


@pytest.mark.parametrize(
    "name", ["../ann.ipynb", "ann/../../x.ipynb", "/ann.ipynb", "..\\ann.ipynb"]
)
def test_a_zip_that_leaves_its_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="outside of itself"):
        submissions(pack(tmp_path / "all.zip", "bob.ipynb", name), NAME)


def test_sizes_are_limited(tmp_path, monkeypatch):
    put(tmp_path / "folder", "ann.ipynb")
    path = pack(tmp_path / "all.zip", "ann.ipynb", "bob.ipynb")
    monkeypatch.setattr(submission, "MOST_BYTES", 8)
    for source in (tmp_path / "folder", path):
        assert "more than 8 bytes" in refusals(source)["ann"]
    monkeypatch.setattr(uploads, "MOST_FILES", 1)
    with pytest.raises(ValueError, match="too much"):
        submissions(path, NAME)
    monkeypatch.setattr(uploads, "MOST_FILES", 2)
    monkeypatch.setattr(uploads, "MOST_IN_ALL", 17)
    with pytest.raises(ValueError, match="too much"):
        submissions(path, NAME)


def test_what_is_neither_folder_nor_zip(tmp_path):
    put(tmp_path, "ann.ipynb")
    for name in ("ann.ipynb", "none"):
        with pytest.raises(ValueError, match="neither a folder nor a zip"):
            submissions(tmp_path / name, NAME)
