"""The viewer's page in a real browser: it draws, answers to mouse and keyboard, and asks nobody for anything."""

import numpy as np
import pytest

from minidist.study import viewer
from minidist.study.frames import LIGHT
from minidist.study.picture import MEANING, mix
from tests.browser.chromium import chromium, program, until
from tests.study.traces import remembered

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

CANVAS = "#chart"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of `remembered()`, open in a tab."""
    folder = tmp_path_factory.mktemp("viewer")
    viewer(remembered(), title="A step").save(folder / "step.html")
    with chromium(folder / "profile") as page:
        for domain in ("Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.open((folder / "step.html").as_uri())
        until(
            "the page", 30, lambda: page.evaluate('document.getElementById("range")?.textContent')
        )
        until("the picture", 30, lambda: where(page, MEANING["send"]).any())
        yield page


def where(page, color):
    """Which pixels of the canvas have this colour."""
    image, _ = page.pixels(CANVAS)
    return (abs(image.astype(int) - [int(color[i : i + 2], 16) for i in (1, 3, 5)]) < 12).all(-1)


def middle(page, color):
    """A point in the page that has this colour, in the middle of its rows and columns."""
    _, (left, top) = page.pixels(CANVAS)
    y, x = np.argwhere(where(page, color)).mean(0)
    return left + x, top + y


def words(page, name):
    return page.evaluate(f'document.getElementById("{name}").textContent')


def tooltip(page):
    return "" if page.evaluate('document.getElementById("tip").hidden') else words(page, "tip")


def visible(page):
    """The visible range, in the unit of the page."""
    return [float(word.split()[0].replace(",", "")) for word in words(page, "range").split(" to ")]


def test_it_draws_bars_and_memory(page):
    for color in ("compute", "send", "receive", "wait"):
        assert where(page, MEANING[color]).sum() > 500, color
    assert visible(page) == [0, 4000]


def test_pointing_at_a_message_tells_its_bytes_and_times(page):
    page.mouse("mouseMoved", *middle(page, MEANING["send"]))
    told = until("the tooltip", 5, lambda: tooltip(page))
    for word in (
        "rank 0 → rank 1, 0: gradient",
        "4,096 B",
        "starts 1,000.000 µs, arrives 3,000.000 µs",
        "wire busy 1,000.000 µs, 4.1 MB/s",
    ):
        assert word in told


def test_a_click_marks_both_ends(page):
    count = lambda: where(page, LIGHT["mark"]).sum()
    before = count()
    x, y = middle(page, MEANING["send"])
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.mouse(kind, x, y)
    assert words(page, "told").startswith("rank 0 → rank 1")
    page.mouse("mouseMoved", 2, 2)
    until("the marks", 5, lambda: count() > before + 300)
    rows = np.flatnonzero(where(page, LIGHT["mark"]).any(1))
    assert rows[-1] - rows[0] > 60  # from the wire of rank 0 to that of rank 1
    page.evaluate('document.getElementById("chart").focus()')
    page.press("Escape")
    until("no marks", 5, lambda: count() <= before)


def test_wheel_keys_and_buttons_change_what_is_visible(page):
    x, y = middle(page, MEANING["send"])
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300)
    low, high = until("a zoom", 5, lambda: visible(page) != [0, 4000] and visible(page))
    assert 0 < low < 1500 < high < 4000  # around the pointer, which is at 1.5 ms
    page.evaluate('document.getElementById("chart").focus()')
    page.press("+")
    nearer = visible(page)
    assert low < nearer[0] < nearer[1] < high
    for kind, shift in (
        ("mousePressed", 0),
        ("mouseMoved", -40),
        ("mouseMoved", -80),
        ("mouseReleased", -80),
    ):
        page.mouse(kind, x + shift, y, buttons=1)
    moved = visible(page)
    assert moved[0] > nearer[0] and moved[1] - moved[0] == pytest.approx(
        nearer[1] - nearer[0], abs=0.01
    )
    page.click("#out")
    assert visible(page)[1] - visible(page)[0] > moved[1] - moved[0]
    page.click("#fit")
    assert visible(page) == [0, 4000]


def test_the_legend_hides(page):
    page.click("#legend button", "send")
    until("no sends", 5, lambda: not where(page, MEANING["send"]).any())
    page.click("#legend button", "send")
    until("sends", 5, lambda: where(page, MEANING["send"]).any())


def test_search_counts_and_steps(page):
    page.click("#search")
    for letter in "0 > 1":
        page.press(letter)
    assert words(page, "hits") == "1 message, 0 spans"
    page.press("Enter")
    assert words(page, "told").startswith("rank 0 → rank 1")
    page.evaluate('document.getElementById("search").select()')
    for letter in "backward":
        page.press(letter)
    assert words(page, "hits") == "0 messages, 2 spans"
    page.press("Escape")  # empties the box
    assert words(page, "hits") == ""
    page.evaluate('document.getElementById("chart").focus()')
    page.press("Escape")
    page.press("n")
    assert words(page, "told").startswith("rank 0 → rank 1")
    page.press("Escape")
    assert words(page, "told").startswith("drag to move")


@pytest.mark.parametrize("rank", [1, 0])
def test_memory_of_a_rank(page, rank):
    image, (left, top) = page.pixels(CANVAS)
    high, wide = image.shape[:2]
    if rank == 0:  # a click on the name of a rank: the first row is rank 0's
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            page.mouse(kind, left + 30, top + 90)
    assert page.evaluate('document.getElementById("of").value') == str(rank)
    page.mouse("mouseMoved", left + wide / 2 - 60, top + high - 12)
    said = until("the tooltip", 5, lambda: tooltip(page))
    assert said.startswith(f"rank {rank} holds 1,500 B") and "activations: 500 B" in said


def test_what_is_held_for_no_time_is_a_hair(page):
    """The 4,000 B of rank 1 at 2 ms: their colour is a hair wide, and does not reach to the next moment."""
    page.evaluate('document.getElementById("of").value = "1"')
    page.evaluate('document.getElementById("of").dispatchEvent(new Event("change"))')
    held = where(page, mix(MEANING["other"], 0.85))
    assert 1 <= (held.sum(0) > 20).sum() <= 2


def test_it_says_nothing_to_the_console_and_asks_nobody(page):
    page.evaluate("1")
    asked = [
        p["request"]["url"] for method, p in page.events if method == "Network.requestWillBeSent"
    ]
    assert [url.partition(":")[0] for url in asked] == ["file"]
    loud = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [event for event in page.events if event[0] in loud] == []
