"""The way through the course: its picture and its page are those of the table, and no path comes to a lesson too early."""

import re
import shutil

import pytest

from course import way
from course.links import Links
from tests.repository.files import ROOT
from tests.repository.test_figures import WIDEST, faults


@pytest.fixture(scope="module")
def links():
    return Links(ROOT)


@pytest.mark.parametrize("name", way.files(ROOT))
def test_what_is_there_is_what_the_table_says(name):
    assert (ROOT / name).read_text(encoding="utf-8") == way.files(ROOT)[name], "make build"


def test_the_picture_is_readable(links):
    assert list(faults(way.svg(links.lessons))) == [
        f"the view box is {way.WIDTH} wide, and at most {WIDEST} are allowed"  # a page has room
    ]


def test_every_need_is_drawn_or_follows_from_one_that_is(links):
    for name, lesson in links.lessons.items():
        drawn = way.direct(links.lessons, name)
        follows = set(drawn).union(*(way.needed(links.lessons, before) for before in drawn))
        assert set(lesson.needs) - {"PyTorch"} <= follows
    assert way.direct(links.lessons, "pipelines") == ["data_parallel"]
    assert way.needed(links.lessons, "zero") == {
        "walls",
        "buckets",
        "topology",
        "data_parallel",
        "messages",
    }


def test_a_course_has_all_lessons(links):
    text = way.page(links)
    weeks = text.partition("## A course of ten weeks")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| Week", weeks, re.MULTILINE)) == 10
    for lesson in links.lessons.values():
        assert f"{lesson.number} {lesson.title}" in weeks


def test_lessons_that_are_drawn_wrong_are_refused(links):
    lessons = dict(links.lessons)
    lost = lessons.pop("capstone")
    with pytest.raises(ValueError, match="capstone"):
        way.svg(lessons)
    lessons["capstone"] = lost
    lessons["server"] = lost
    with pytest.raises(ValueError, match="share a box, and need different lessons"):
        way.svg(lessons)


def test_a_path_in_the_wrong_order_is_refused(links, tmp_path):
    shutil.copytree(ROOT / "course", tmp_path / "course", ignore=shutil.ignore_patterns("[0-9]*"))
    paths = tmp_path / way.PATHS
    text = paths.read_text(encoding="utf-8")
    paths.write_text(text.replace('["data_parallel"]', '["buckets"]', 1), encoding="utf-8")
    with pytest.raises(ValueError, match="buckets comes before data_parallel and topology"):
        way.page(Links(tmp_path))
