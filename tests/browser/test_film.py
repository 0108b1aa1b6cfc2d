"""The film at the head of the README: as an image it plays, and it stands at its end for those who want no motion."""

import base64
import io
import re
import time

import numpy as np
import pytest
from PIL import Image

from course.film import LOOP, PICTURE
from tests.browser.chromium import chromium, program
from tests.repository.files import ROOT

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]


def shot(page):
    """What is seen now."""
    image = base64.b64decode(page.call("Page.captureScreenshot")["data"])
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).astype(int)


def test_it_plays_as_an_image_and_stands_still_for_those_who_want_that(tmp_path):
    text = (ROOT / PICTURE).read_text(encoding="utf-8")
    end = re.sub(r"<style>.*</style>", "", text, flags=re.DOTALL)
    assert end != text
    (tmp_path / "film.svg").write_text(text, encoding="utf-8")
    (tmp_path / "end.svg").write_text(end, encoding="utf-8")
    (tmp_path / "page.html").write_text('<img src="film.svg" alt="">', encoding="utf-8")
    (tmp_path / "profile").mkdir()
    with chromium(tmp_path / "profile") as page:

        def seen(name):
            page.open((tmp_path / name).as_uri())
            time.sleep(1)
            return shot(page)

        first = seen("page.html")
        time.sleep(LOOP / 6)
        assert (first != shot(page)).any()
        still = seen("end.svg")
        assert (seen("film.svg") != still).any()
        reduced = {"name": "prefers-reduced-motion", "value": "reduce"}
        page.call("Emulation.setEmulatedMedia", features=[reduced])
        assert (seen("film.svg") == still).all()
