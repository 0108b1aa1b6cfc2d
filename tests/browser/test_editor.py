"""The schedule editor in a real browser: its rules are Python's, and typing, dragging and arrow keys change the lists."""

import json
import random

import pytest

from minidist.parallel.schedules import (
    KINDS,
    Action,
    gpipe,
    in_flight,
    interleaved,
    lists,
    naive,
    one_f_one_b,
    parse_lists,
    pipedream,
    zb_h1,
    zb_v,
)
from minidist.parallel.simulate import simulate
from minidist.parallel.validate import ScheduleError, validate
from minidist.study import schedule_editor
from tests.browser.chromium import chromium, program, until

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

# S, M, v, place, the schedules to start from
SHAPES = {
    "plain": (6, 4, 1, "loop", (naive, gpipe, one_f_one_b, zb_h1, pipedream)),
    "two": (2, 3, 1, "loop", (naive, gpipe, one_f_one_b, zb_h1, pipedream)),
    "chunks": (2, 4, 2, "loop", (interleaved,)),
    "V": (3, 3, 2, "V", (zb_v,)),
}
LISTS = 150  # of each shape
# Two messages come in another order than they are wanted, in stages 1 and 4: which is named, the order of stages says.
TWO_ERRORS = parse_lists("""
F0 F1 F2 F3 B0 B1 B2 B3
F0 F1 F3 F2 B0 B1 B3 B2
F0 F1 F3 F2 B0 B1 B2 B3
F0 F1 F2 B0 B1 F3 B2 B3
F1 F0 B0 F2 B1 F3 B2 B3
F0 F1 B0 F2 B1 F3 B2 B3
""")


def changed(rows, draw, shape):
    """The lists with a few changes, from none to four: most are wrong then."""
    _, M, v, *_ = shape
    rows = [list(row) for row in rows]
    for _ in range(draw.choice([0, 1, 1, 2, 3, 4])):
        row = draw.choice([row for row in rows if len(row) > 1])
        at = draw.randrange(len(row) - 1)
        kind = draw.randrange(8)
        if kind < 5:
            row[at : at + 2] = reversed(row[at : at + 2])
        elif kind == 5:
            row.insert(draw.randrange(len(row)), row.pop(at))
        elif kind == 6:
            row[at] = Action(draw.choice(KINDS), draw.randrange(M + 1), draw.randrange(v + 1))
        else:
            del row[at]
    return rows


def answer(rows, S, M, v, place, comm):
    """What Python says of the lists, as the page says it."""
    try:
        validate(rows, S, M, v, place=place, comm=comm)
    except ScheduleError as error:
        return dict(
            stage=error.stage, position=error.position, action=str(error.action), why=error.why
        )
    run = simulate(rows, place=place)
    spans = [[[str(s.action), s.start, s.end] for s in row] for row in run.spans]
    return dict(
        time=run.time, bubble=run.bubble, kept=[in_flight(row) for row in rows], spans=spans
    )


ASK = """(rows, comm) => {
  const error = validate(rows, comm), spans = simulate(rows);
  return error || { ...summary(spans), kept: rows.map(inFlight),
    spans: spans.map((row) => row.map(({ action, start, end }) => [written(action), start, end])) };
}"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("editor")
    for name, (S, M, v, place, schedules) in SHAPES.items():
        given = {each.__name__: lists(each, S, M) for each in schedules}
        made = schedule_editor(given, M, v=v, place=place, title=name)
        made.save(folder / f"{name}.html")
    with chromium(folder / "profile") as page:
        for domain in ("Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.folder = folder
        yield page


def opened(page, name, width=900, height=500):
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=height,
        deviceScaleFactor=1,
        mobile=False,
    )
    page.open((page.folder / f"{name}.html").as_uri())
    there = f'document.title === "{name}" && document.querySelectorAll("svg g").length'
    until(name, 30, lambda: page.evaluate(there))
    return page


@pytest.mark.parametrize("name", SHAPES)
def test_the_rules_are_those_of_python(browser, name):
    page = opened(browser, name)
    shape = SHAPES[name]
    S, M, v, place, schedules = shape
    draw = random.Random(0)
    asked = [(TWO_ERRORS, "stream")] if name == "plain" else []
    for k in range(LISTS):
        rows = changed(lists(schedules[k % len(schedules)], S, M), draw, shape)
        asked.append((rows, ("mailbox", "stream")[k % 2]))
    texts = [[[" ".join(map(str, row)) for row in rows], comm] for rows, comm in asked]
    said = page.evaluate(
        f"{json.dumps(texts)}.map(([rows, comm]) => ({ASK})(rows.map(parse), comm))"
    )
    reasons = set()
    for (rows, comm), there in zip(asked, said, strict=True):
        here = answer(rows, S, M, v, place, comm)
        if "time" in here:
            assert there.pop("bubble") == pytest.approx(here.pop("bubble")), rows
        assert there == here, (rows, comm)
        reasons.add(here.get("why", "right").split(":")[0].rstrip("0123456789.")[:14])
    # right ones, and wrong ones of every sort, were compared
    sorts = (
        "right",
        "deadlock",
        "the next messa",
        "this",
        "it needs",
        "there is no",
        "the list ends",
    )
    found = {sort for sort in sorts if any(reason.startswith(sort) for reason in reasons)}
    assert len(found) >= len(sorts) - 1, reasons


def test_words_that_are_no_action(browser):
    page = opened(browser, "two")
    page.evaluate('input(0).value = "F0 X1"; type(0)')
    with pytest.raises(ValueError) as error:
        parse_lists("F0 X1")
    assert verdict(page) == f"stage 0: {error.value}"


def verdict(page):
    return page.evaluate('document.getElementById("verdict").textContent')


def field(page, stage):
    return page.evaluate(f'document.getElementById("stage{stage}").value')


def start(page, name):
    page.evaluate(f'document.getElementById("from").value = "{name}"; begin()')


def read(page):
    return page.evaluate('[...document.querySelectorAll("#readouts b")].map(e => e.textContent)')


def where(page, stage, position):
    return page.evaluate(
        f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('[data-at=\"{stage} {position}\"]')"
        ".getBoundingClientRect())"
    )


def test_typing_changes_the_verdict(browser):
    page = opened(browser, "two")
    start(page, "one_f_one_b")
    rows = lists(one_f_one_b, 2, 3)
    run = simulate(rows)
    assert verdict(page).startswith("This is a schedule")
    assert read(page) == ["yes", f"{run.time:g}", f"{100 * run.bubble:.1f} %", "2, 1"]
    page.evaluate('document.getElementById("stage1").focus(); document.activeElement.select()')
    for letter in "F0 F1 B0 B1":
        page.press(letter)
    assert verdict(page) == "stage 1, position 4, F2: the list ends without this forward"
    assert field(page, 1) == "F0 F1 B0 B1"
    assert read(page) == ["no", "–", "–", "–"]
    for letter in " F2 B2":
        page.press(letter)
    rows[1] = parse_lists("F0 F1 B0 B1 F2 B2")[0]
    run = simulate(rows)
    assert read(page) == ["yes", f"{run.time:g}", f"{100 * run.bubble:.1f} %", "2, 2"]


def test_dragging_an_action_moves_it(browser):
    page = opened(browser, "two")
    start(page, "gpipe")
    x, y = where(page, 1, 3)
    page.mouse("mousePressed", x, y)
    for position in (2, 1):
        page.mouse("mouseMoved", *where(page, 1, position), buttons=1)
    page.mouse("mouseReleased", *where(page, 1, 1))
    assert field(page, 1) == "F0 B0 F1 F2 B1 B2"
    assert verdict(page).startswith("This is a schedule")
    assert page.evaluate('document.activeElement.getAttribute("aria-label")').startswith(
        "stage 1, B0"
    )


def test_arrow_keys_move_it_and_say_what_is_wrong(browser):
    page = opened(browser, "two")
    start(page, "naive")
    page.evaluate("document.querySelector('[data-at=\"0 1\"]').focus()")
    press(page, "ArrowLeft", 37)
    assert field(page, 0) == "B0 F0 F1 B1 F2 B2"
    assert verdict(page) == "stage 0, position 0, B0: it needs F0, which comes later in the list"
    assert page.evaluate('document.querySelector(".wrong[data-at]").dataset.at') == "0 0"
    press(page, "ArrowRight", 39)
    assert verdict(page).startswith("This is a schedule")
    page.evaluate('document.getElementById("stage0").value = "F1 B1 F0 B0 F2 B2"; type(0)')
    assert verdict(page).startswith("stage 1, position 0, F0: deadlock in a circle")
    waiting = page.evaluate('document.querySelectorAll("g.waits").length')
    assert waiting == 11  # all but F1 of stage 0


def press(page, key, code):
    for kind in ("rawKeyDown", "keyUp"):
        page.call(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
        )


def test_in_one_stream_1f1b_hangs(browser):
    page = opened(browser, "two")
    start(page, "one_f_one_b")
    page.evaluate(
        'const e = document.getElementById("comm"); e.value = "stream"; e.dispatchEvent(new Event("change"))'
    )
    with pytest.raises(ScheduleError) as error:
        validate(lists(one_f_one_b, 2, 3), comm="stream")
    assert verdict(page) == str(error.value)
    code = page.evaluate('document.getElementById("python").textContent')
    with pytest.raises(ScheduleError, match="deadlock"):
        exec(code, {})


def test_on_a_telephone_nothing_is_cut_off(browser):
    """Beside the chart, which scrolls to the side."""
    S, M, *_ = SHAPES["plain"]
    tall = schedule_editor({"": lists(naive, S, M)}, M).heights[0]
    page = opened(browser, "plain", 353, tall)
    assert page.evaluate("document.documentElement.scrollWidth") == 353
    bottom = page.evaluate('document.querySelector("details").getBoundingClientRect().bottom')
    assert tall - 60 < bottom <= tall - 8


def test_it_says_nothing_to_the_console(browser):
    browser.evaluate("1")
    loud = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [event for event in browser.events if event[0] in loud] == []
