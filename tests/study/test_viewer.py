"""The viewer's page: whole, offline, the same bytes each time, small, and honest about what it leaves out."""

import base64
import io
import json
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from course.build import UNSTABLE
from minidist.comm import launch
from minidist.comm.trace import Results, Trace
from minidist.study import line, timeline, viewer
from minidist.study.viewer import PAGE, SCRIPTS
from tests.largest import largest
from tests.study.traces import gather, remembered, ring, step

LOADS = re.compile(
    r"https?:|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\b|@import|url\(|sendBeacon|EventSource"
)
CHANGES = re.compile(r"\bDate\b|Math\.random|performance\.now|crypto")


class Reader(HTMLParser):
    """Every tag with its attributes, and the text inside of each script and style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside = [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags:
            self.inside.setdefault(len(self.tags) - 1, []).append(data)

    def texts(self, tag):
        return [
            ("".join(self.inside.get(i, [])), attrs)
            for i, (name, attrs) in enumerate(self.tags)
            if name == tag
        ]


def run_of(page):
    return json.loads(
        next(text for text, attrs in Reader(page).texts("script") if attrs.get("id") == "run")
    )


def test_the_page_needs_nothing_else():
    page = viewer(remembered()).page
    read = Reader(page)
    for tag, attrs in read.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "audio", "video")
        assert not {"src", "href", "srcset", "data", "action", "background", "poster"} & set(
            attrs
        ), (tag, attrs)
    for text, _ in read.texts("script") + read.texts("style"):
        assert not LOADS.search(text), LOADS.search(text)
        assert not CHANGES.search(text), CHANGES.search(text)
    policy = next(
        a["content"]
        for _, a in read.texts("meta")
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert len(read.texts("script")) == 1 + len(SCRIPTS)


def test_scripts_are_short_enough_to_read():
    for path in PAGE.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 250 and largest(map(len, lines)) <= 160, path


def test_what_a_notebook_is_given():
    made = viewer(remembered(), title="A step")
    data, metadata = made._repr_mimebundle_()
    assert set(data) == {"text/html", "image/png", "text/plain"}
    assert data["text/html"] == made._repr_html_()
    assert base64.b64decode(data["image/png"]) == made.picture.png == made._repr_png_()
    assert data["text/plain"] == repr(made) == made.text == made.picture.text
    assert metadata["image/png"]["alt"] == made.text


def test_the_frame_holds_the_page_and_inside_of_it_the_picture():
    made = viewer(step(), title='It\'s a <step> & "more"')
    (tag, attrs), *inner = Reader(made._repr_html_()).tags
    assert (tag, attrs["srcdoc"], attrs["sandbox"]) == ("iframe", made.page, "allow-scripts")
    assert attrs["title"] == 'It\'s a <step> & "more"'
    assert f"height:{made.height}px" in attrs["style"]
    # What a sanitizer leaves of it is the picture, with its words.
    assert [tag for tag, _ in inner] == ["img"]
    assert inner[0][1]["alt"] == made.text
    assert (
        base64.b64decode(inner[0][1]["src"].removeprefix("data:image/png;base64,"))
        == made.picture.png
    )


def test_the_page_holds_the_trace():
    trace = remembered()
    run = run_of(viewer(Results([None, None], trace, 4e-3)).page)
    assert run == run_of(viewer(trace).page)
    assert run["messages"]["count"] == len(trace) and run["spans"]["count"] == len(trace.spans)
    assert run["messages"]["bytes"] == 4096 and run["words"] == ["", "gradient", "backward", "recv"]
    assert [kind[0] for kind in run["kinds"]] == ["compute", "wait", "send", "receive"]
    assert run["memory"]["rank"] == 1 and run["memory"]["of"] == {"0": 0, "1": 1}
    assert run_of(viewer(step()).page)["memory"] is None


def test_labels_cannot_end_the_script():
    trace, evil = Trace(2), "</script><script>alert(1)</script><!-- &amp; \u2028 α"
    trace.add(0, 1, 8, 0.0, 1.0, 2.0, evil)
    made = viewer(trace, title=evil)
    assert run_of(made.page)["words"] == ["", evil]
    assert len(Reader(made.page).texts("script")) == 1 + len(SCRIPTS)
    assert Reader(made.page).texts("title")[0][0].strip() == evil


@pytest.mark.parametrize("trace", [step(), remembered(), ring(5)])
def test_same_bytes_each_time(trace):
    assert viewer(trace)._repr_mimebundle_() == viewer(trace)._repr_mimebundle_()


def test_same_bytes_in_another_process():
    """Which hashes strings with another seed."""
    page, seed = launch(lambda comm: (viewer(remembered())._repr_html_(), hash("seed")), 1)[0]
    assert page == viewer(remembered())._repr_html_()
    assert seed != hash("seed") or "PYTHONHASHSEED" in os.environ


def test_a_build_accepts_it():
    html = viewer(remembered())._repr_html_()
    assert not UNSTABLE.search(html)
    assert not re.search(r"/tmp|/home|0x[0-9a-f]{6}", html)


def test_five_thousand_messages_are_small():
    trace = Trace(32)
    rng = np.random.default_rng(0)  # nothing repeats: the worst case
    for k, (wait, busy) in enumerate(rng.uniform(1e-6, 9e-6, (5000, 2))):
        start = k * 1e-6 + wait
        trace.add(
            k % 32,
            (k * 7 + 1) % 32,
            int(rng.integers(1, 2**22)),
            start,
            start + busy,
            start + busy + wait,
            f"chunk {k % 40}",
        )
    assert len(viewer(trace).page) <= 300_000


@pytest.mark.parametrize("trace", [step(), remembered(), ring(64, steps=4)])
def test_the_picture_shows_something(trace):
    image = np.asarray(Image.open(io.BytesIO(viewer(trace).picture.png)).convert("RGBA"))[..., :3]
    for color in (line.KINDS["send"], line.KINDS["receive"]):
        wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        assert (abs(image.astype(int) - wanted).max(-1) < 60).sum() > 300


def test_the_picture_is_the_timeline_with_arrows():
    assert (
        viewer(ring(4), title="Ring").picture.png
        == timeline(ring(4), title="Ring", arrows=True).png
    )
    assert viewer(remembered()).picture.png == timeline(remembered(), arrows=True).png


@pytest.mark.parametrize(
    ("trace", "kwargs", "words"),
    [
        (ring(4, steps=5), {"most": 9}, "the first 9 of 20 messages, up to 3.81 µs"),
        (ring(130, steps=1), {}, "128 of 130 ranks"),
    ],
)
def test_what_is_left_out_is_said(trace, kwargs, words):
    made = viewer(trace, **kwargs)
    notes = [attrs for _, attrs in Reader(made.page).texts("p") if attrs.get("role") == "note"]
    assert len(notes) == 1 and f"Shown: {words}" in made.page
    assert f"shown: {words}" in made.text
    assert "Shown:" not in viewer(ring(4)).page


def test_a_picture_without_arrows_says_so():
    made = viewer(ring(16, steps=30))
    assert "shown: no arrows: 480 messages, and 300 can be told apart" in made.text
    assert "no arrows" not in "".join(f"{a}" for _, a in Reader(made.page).texts("p"))


def test_height_grows_with_the_rows_and_stays_on_a_screen():
    heights = [viewer(ring(n, steps=1)).height for n in (2, 8, 64, 130)]
    assert heights == sorted(heights) and heights[-1] < 800
    assert viewer(remembered()).height > viewer(step()).height


def test_save(tmp_path):
    made = viewer(step())
    made.save(tmp_path / "step.html")
    assert (tmp_path / "step.html").read_text(encoding="utf-8") == made.page
    with pytest.raises(ValueError, match=r"saved as \.html, not as '\.png'"):
        made.save(tmp_path / "step.png")


def test_refused():
    with pytest.raises(ValueError, match=r"ranks \[4\] are not all in this trace of 4 ranks"):
        viewer(ring(4), ranks=[4])


def test_some_ranks_and_some_time():
    made = viewer(gather(5), ranks=[0, 2], between=(2**-20, 2**-19))
    run = run_of(made.page)
    assert run["rows"] == [[0, 0], [2, 0]] and run["start"] > 0
    assert run["messages"]["count"] == 2  # those to rank 0 under way: from 1 and from 2


@pytest.mark.parametrize("theme", [line.LIGHT, line.DARK])
def test_both_themes_can_be_read(theme):
    assert line.contrast(theme["ink"], theme["card"]) > 7
    assert line.contrast(theme["muted"], theme["card"]) > 4.5
    assert line.contrast(theme["muted"], theme["wait"]) > 3  # the names in it
    assert line.contrast(theme["mark"], theme["card"]) > 4.5
    for color in (*line.KINDS.values(), *line.MEMORY.values()):
        if color != line.KINDS["wait"]:
            assert line.contrast(color, theme["card"]) > 1.9
