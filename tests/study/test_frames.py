"""What a notebook is given of a page: the frame, the picture inside of it, and nothing that loads or changes."""

import base64
import re

import pytest

from conftest import Printed, unpacked
from course.build import UNSTABLE
from minidist import launch
from minidist.parallel.schedules import lists, one_f_one_b
from minidist.study import explore, schedule_editor, viewer
from minidist.study.frames import LIGHT, PAGE, packed
from tests.largest import largest
from tests.study.frames import CHANGES, LOADS, Reader, run_of
from tests.study.traces import remembered, step

NAME = 'It\'s a <step> & "more"'


def explorer(title="", factor=1.0):
    return explore(lambda n: {"ring": factor * n, "tree": 2.5}, title=title, n=[2, 4, 8])


def editor(title=""):
    return schedule_editor({"1F1B": lists(one_f_one_b, 2, 3)}, 3, title=title)


FRAMED = pytest.mark.parametrize(
    "made",
    [viewer(remembered(), title=NAME), explorer(NAME), editor(NAME)],
    ids=["viewer", "explorer", "editor"],
)


@FRAMED
def test_the_page_needs_nothing_else(made):
    read = Reader(made.page)
    for tag, attrs in read.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "audio", "video")
        assert not {"src", "href", "srcset", "data", "action", "background", "poster"} & set(
            attrs
        ), (tag, attrs)
    for text, attrs in read.texts("script") + read.texts("style"):
        if attrs.get("type") == "application/json":
            continue
        assert not LOADS.search(text), LOADS.search(text)
        assert not CHANGES.search(text), CHANGES.search(text)
    for page in (made.page, packed(made.page)):
        policy = next(
            a["content"]
            for _, a in Reader(page).texts("meta")
            if a.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy.startswith("default-src 'none';")
    assert "$" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", made.page, flags=re.S)


def test_scripts_are_short_enough_to_read():
    for path in PAGE.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 250 and largest(map(len, lines)) <= 160, path


@FRAMED
def test_what_a_notebook_is_given(made):
    html = made._repr_html_()
    assert html.count(base64.b64encode(made.picture.png).decode()) == 1
    assert repr(made) == made.text == made.picture.text
    assert not hasattr(made, "_repr_mimebundle_")
    assert not UNSTABLE.search(html)


@FRAMED
def test_the_frame_holds_the_page_and_inside_of_it_the_picture(made):
    html = made._repr_html_()
    (tag, attrs), *inner = Reader(html).tags
    assert (tag, attrs["sandbox"], attrs["title"]) == ("iframe", "allow-scripts", NAME)
    tall, low = made.heights
    assert low <= tall and f"height:clamp({low}px,(1100px - 100vw)*999,{tall}px)" in attrs["style"]
    assert made.page in unpacked(attrs["srcdoc"])
    # What a sanitizer leaves of it is the picture, with its words.
    assert [tag for tag, _ in inner] == ["style", "div", "img"]
    assert inner[-1][1]["alt"] == made.text
    assert html.endswith(f"{made.picture._repr_html_()}</iframe>")


@pytest.mark.parametrize("make", [lambda evil: viewer(step(), title=evil), explorer, editor])
def test_words_cannot_end_the_script(make):
    evil = "</script><script>alert(1)</script><!-- &amp; \u2028 α"
    made = make(evil)
    assert len(Reader(made.page).texts("script")) == len(Reader(make("good").page).texts("script"))
    assert Reader(made.page).texts("title")[0][0].strip() == evil


def test_same_bytes_each_time_and_in_another_process():
    """Which hashes strings with another seed."""
    make = lambda: viewer(remembered()).page + explorer()._repr_html_() + editor()._repr_html_()
    there = launch(lambda comm: make(), 1)[0]
    assert make() == make() == there


def test_a_viewer_costs_a_lesson_little():
    """The page of a small trace, packed, has less than half of its bytes; and no picture is there twice."""
    made = viewer(remembered())
    html = made._repr_html_()
    assert len(packed(made.page)) < len(made.page) / 2
    assert len(html) < len(packed(made.page)) + 1.4 * len(made.picture.png) + 1500


def test_nbval_compares_what_is_in_the_frame():
    bare = unpacked(explorer("", 1.1)._repr_html_())
    assert "atob" not in bare and '"ring"' in bare and LIGHT["card"] in bare
    near, far = (unpacked(explorer("", 1 + more)._repr_html_()) for more in (0.1001, 0.2))
    assert Printed(bare) == Printed(near)
    assert Printed(bare) != Printed(far)


def test_the_page_of_an_explorer_holds_the_table():
    run = run_of(explorer().page)
    assert [each["values"] for each in run["series"]] == [[2, 4, 8], [2.5] * 3]
    assert len(run["axes"]) == 1
