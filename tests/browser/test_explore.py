"""The sliders of `explore` in a real browser: what is read out is what Python gives for that position."""

import pytest

from minidist.study import explore
from minidist.study.picture import BLUE, ORANGE, measure
from tests.browser.chromium import chromium, program, until

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

NS = [2, 4, 8, 16, 32]
SIZES = [10**k for k in range(3, 9)]


def cost(n, N):
    if n == 8:
        raise ValueError("8 ranks are none")
    return {"ring": 2 * (n - 1) * 5e-6 + N * 1e-9, "naive": n * N * 1e-9}


def parts(stage, n):
    return {"parameters": 10**9, "activations": 4 * 10**9 // (n if stage else 1), "best": f"{n}!"}


AXES = {"n": NS, "N": SIZES, "units": {"N": "B"}, "start": {"n": 4}}
LINES = explore(cost, title="A cost", over="N", unit="s", logx=True, logy=True, **AXES)
PARTS = {"stage": [0, 1], "n": [1, 2, 4], "unit": {"parameters": "B", "activations": "B"}}
STACK = explore(parts, title="Memory", stack=True, target=2 * 10**9, note="a device", **PARTS)
BARS = explore(parts, title="Bars", **PARTS)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore")
    for made in (LINES, STACK, BARS):
        made.save(folder / f"{made.title}.html")
    (folder / "framed.html").write_text(LINES._repr_html_(), encoding="utf-8")
    with chromium(folder / "profile") as page:
        for domain in ("Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.folder = folder
        yield page


def opened(page, name, width=800, height=620):
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=height,
        deviceScaleFactor=1,
        mobile=False,
    )
    page.open((page.folder / f"{name}.html").as_uri())
    wanted = f'document.title === "{name}" && document.querySelectorAll("li output").length'
    until(name, 30, lambda: page.evaluate(wanted))
    return page


def readouts(page):
    """What each name reads, of those that have a number."""
    return dict(
        page.evaluate(
            '[...document.querySelectorAll("li")].filter(e => e.querySelector("output"))'
            '.map(e => [[...e.childNodes].find(c => c.nodeType === 3).data, e.querySelector("output").textContent])'
        )
    )


def area(page, selector):
    return page.evaluate(
        f'(r => [r.x, r.y, r.width, r.height])(document.querySelector("{selector}").getBoundingClientRect())'
    )


def drag(page, slider, position, count):
    """Drag the thumb of a slider to a position, of so many."""
    x, y, wide, tall = area(page, f"#slider{slider}")
    at = page.evaluate(f'Number(document.getElementById("slider{slider}").value)')
    thumb = 16
    place = lambda k: x + thumb / 2 + (wide - thumb) * k / (count - 1)
    for kind, k in (
        ("mousePressed", at),
        ("mouseMoved", (at + position) / 2),
        ("mouseMoved", position),
        ("mouseReleased", position),
    ):
        page.mouse(kind, place(k), y + tall / 2, buttons=1)


def expected(made, **values):
    row = made.at(**values)
    return (
        {name: measure(value, "s") for name, value in row.items()}
        if row
        else {"ring": "–", "naive": "–"}
    )


def test_dragging_reads_what_python_gives(browser):
    page = opened(browser, "A cost")
    assert readouts(page) == expected(LINES)
    for i, j in ((0, 0), (4, 5), (1, 3), (2, 3), (3, 1)):
        drag(page, 0, i, len(NS))
        drag(page, 1, j, len(SIZES))
        assert readouts(page) == expected(LINES, n=NS[i], N=SIZES[j])
        assert page.evaluate('document.querySelector("label b").textContent') == str(NS[i])
        why = page.evaluate('(e => e.hidden ? "" : e.textContent)(document.getElementById("why"))')
        assert why == ("8 ranks are none" if NS[i] == 8 else "")


def test_every_position_reads_what_python_gives(browser):
    """All at once, without the mouse: the table is looked up in the order in which Python filled it in."""
    page = opened(browser, "A cost")
    for i, n in enumerate(NS):
        for j, N in enumerate(SIZES):
            page.evaluate(f"at[0] = {i}; at[1] = {j}; show()")
            assert readouts(page) == expected(LINES, n=n, N=N)


def test_keys_move_a_slider_and_say_so(browser):
    page = opened(browser, "A cost")
    page.evaluate('document.getElementById("slider1").focus()')
    before = page.evaluate("at[1]")
    code = dict(key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    for kind in ("rawKeyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, **code)
    assert page.evaluate("at[1]") == before + 1
    said = page.evaluate('document.activeElement.getAttribute("aria-valuetext")')
    assert said == measure(SIZES[before + 1], "B")
    assert readouts(page) == expected(LINES, N=SIZES[before + 1])


def test_the_chart_is_a_slider_too(browser):
    page = opened(browser, "A cost")
    x, y, wide, tall = area(page, "#chart")
    page.mouse("mousePressed", x + 70, y + tall / 2)
    page.mouse("mouseReleased", x + 70, y + tall / 2)
    assert readouts(page) == expected(LINES, N=SIZES[0])
    page.mouse("mousePressed", x + wide - 16, y + tall / 2)
    assert readouts(page) == expected(LINES, N=SIZES[-1])
    page.mouse("mouseReleased", x + wide - 16, y + tall / 2)


def test_lines_pass_through_what_python_gives(browser):
    """The height of each point, between two marks of the logarithmic axis."""
    page = opened(browser, "A cost")
    marks = page.evaluate(
        '[...document.querySelectorAll("svg line.grid")].map(e => Number(e.getAttribute("y1")))'
    )
    paths = page.evaluate(
        '[...document.querySelectorAll("#chart path")].map(e => e.getAttribute("d"))'
    )
    words = page.evaluate('[...document.querySelectorAll("svg text")].map(e => e.textContent)')
    low, high = (
        float(w.split()[0]) * {"µs": 1e-6, "ms": 1e-3, "s": 1}[w.split()[1]]
        for w in (words[0], words[1])
    )
    for path, name in zip(paths, ("ring", "naive"), strict=True):
        points = [tuple(map(float, point.split())) for point in path[1:].split("L")]
        for (_, y), N in zip(points, SIZES, strict=True):
            share = (y - marks[0]) / (marks[1] - marks[0])
            value = low * (high / low) ** share
            assert value == pytest.approx(LINES.at(N=N)[name], rel=0.02)


def test_parts_of_a_sum(browser):
    page = opened(browser, "Memory")
    for i, stage in enumerate([0, 1]):
        for j, n in enumerate([1, 2, 4]):
            page.evaluate(f"at[0] = {i}; at[1] = {j}; show()")
            here = STACK.at(stage=stage, n=n)
            total = here["parameters"] + here["activations"]
            read = readouts(page)
            assert read.pop("sum") == measure(total, "B")
            assert read == {k: v if k == "best" else measure(v, "B") for k, v in here.items()}
            wide = page.evaluate(
                '[...document.querySelectorAll(".track i")].map(e => parseFloat(e.style.width))'
            )
            top = {5: 5, 3: 5, 2: 2}[
                total // 10**9
            ]  # the next round number of GB, with room for the target
            assert wide == pytest.approx([100 / top, here["activations"] / top / 1e7])
            line = page.evaluate('parseFloat(document.querySelector(".track b").style.left)')
            assert line == pytest.approx(200 / top)


def test_bars(browser):
    page = opened(browser, "Bars")
    page.evaluate("at[0] = 1; at[1] = 2; show()")
    assert readouts(page) == {"parameters": "1 GB", "activations": "1 GB", "best": "4!"}
    page.evaluate("at[0] = 0; show()")
    wide = page.evaluate(
        '[...document.querySelectorAll(".track i")].map(e => parseFloat(e.style.width))'
    )
    assert wide == pytest.approx([20, 80])  # of 5 GB
    assert page.evaluate('document.querySelector(".scale").textContent') == "05 GB"


@pytest.mark.parametrize("made", [LINES, STACK, BARS], ids=["lines", "parts", "bars"])
@pytest.mark.parametrize("wide", [353, 800])
def test_nothing_is_cut_off(browser, made, wide):
    height = made.heights[wide > 640]
    page = opened(browser, made.title, wide, height)
    bottom = (
        'Math.max(...[...document.querySelectorAll("#chart, .scale, li, input")]'
        ".map(e => e.getBoundingClientRect().bottom))"
    )
    assert page.evaluate("document.documentElement.scrollWidth") == wide
    assert height - 90 < page.evaluate(bottom) <= height - 6
    fit = "e => e.getBoundingClientRect().height >= 24 && e.labels.length === 1"
    assert page.evaluate(f'[...document.querySelectorAll("input")].every({fit})')


def test_it_works_in_the_frame_of_a_notebook(browser):
    page = browser
    page.open((page.folder / "framed.html").as_uri())

    def seen():
        image, _ = page.pixels("iframe")
        hues = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in (BLUE, ORANGE)]
        return all((abs(image.astype(int) - hue) < 12).all(-1).sum() > 100 for hue in hues)

    for wide, height in zip((353, 1200), LINES.heights, strict=True):
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=wide,
            height=620,
            deviceScaleFactor=1,
            mobile=False,
        )
        until("the lines in the frame", 30, seen)
        assert page.pixels("iframe")[0].shape[0] == height


def test_it_says_nothing_to_the_console_and_asks_nobody(browser):
    browser.evaluate("1")
    asked = [
        p["request"]["url"] for method, p in browser.events if method == "Network.requestWillBeSent"
    ]
    assert {url.partition(":")[0] for url in asked} <= {"file", "about"}
    loud = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [event for event in browser.events if event[0] in loud] == []
