"""Timelines: their rows and words, the viewer's page, and what is refused."""

import io
import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from minidist.comm import World
from minidist.comm.trace import CATEGORIES, Results, Trace
from minidist.parallel.pipedream import PipeDream
from minidist.parallel.schedules import lists, parse, pipedream, zb_h1
from minidist.parallel.simulate import simulate
from minidist.study import stages, timeline, timelines, viewer
from minidist.study.frames import DARK, LIGHT
from minidist.study.picture import BLUE, MEANING, WAIT, contrast
from minidist.study.timelines import (
    ACTIONS,
    MOST_MOMENTS,
    SCRIPTS,
    Chart,
    columns,
    differences,
    draw_arrows,
    kinds_of,
    memory_columns,
    telling,
    tick_of,
    trace_of,
)
from tests.study.frames import Reader, run_of
from tests.study.traces import US, gather, held, remembered, ring, step


# ------------------------------------------------------------------------------------------------------- still pictures
def test_text_of_timeline():
    assert timeline(step(), title="A step").text == (
        "A step\n2 ranks, 4 ms\n  rank 0: compute 4 ms, send 1 ms\n  rank 1: compute 1 ms, wait 2 ms, receive 1 ms"
    )


def test_text_of_two_traces():
    assert timeline({"naive": gather(2), "ring": ring(2)}).text == (
        "Timeline\n"
        "naive: 2 ranks, 1.91 µs\n"
        "  rank 0: receive 954 ns\n"
        "  rank 1: send 954 ns\n"
        "ring: 2 ranks, 1.91 µs\n"
        "  rank 0: send 954 ns, receive 954 ns\n"
        "  rank 1: send 954 ns, receive 954 ns"
    )


def test_many_ranks_are_summed_up_in_text():
    assert timeline(gather(64)).text == (
        "Timeline\n64 ranks, 61 µs\n  send: 0 s to 954 ns a rank, 939 ns on average\n"
        "  receive: 0 s to 60.1 µs a rank, 939 ns on average"
    )
    assert timeline(ring(9)).text == (
        "Timeline\n9 ranks, 15.3 µs\n  send: 7.63 µs on each rank\n  receive: 7.63 µs on each rank"
    )


def test_memory_of_the_rank_with_the_highest_peak():
    said = "  memory of rank 1: peak 5,500 B (parameters 1,000 B, activations 500 B, other 4,000 B), at 2 ms"
    assert timeline(remembered()).text.splitlines()[-1] == said


def test_without_memory():
    none = timeline(remembered(), memory=False)
    assert "memory" not in none.text
    assert none.height < timeline(remembered()).height
    assert none.png == timeline(step()).png


def test_the_first_rank_with_the_highest_peak():
    trace = remembered()
    assert Chart(trace, [0, 1]).memory[0] == 1
    assert Chart(trace, [0]).memory[0] == 0
    assert Chart(step(), [0]).memory is None
    trace.memory[0] = trace.memory[1]
    assert Chart(trace, [1, 0]).memory[0] == 1


def test_memory_under_each_of_two_traces():
    both = timeline({"a": remembered(), "b": step()})
    assert both.text.count("memory of rank") == 1
    assert timeline({"a": step(), "b": step()}).height < both.height


@pytest.mark.parametrize(
    "trace", [step(), remembered(), ring(4), ring(2, steps=150), {"a": gather(5), "b": ring(3)}]
)
def test_drawn_the_same_each_time_timeline(trace):
    first = timeline(trace)
    assert first.png.startswith(b"\x89PNG")
    assert first.png == timeline(trace).png


def test_height_stays_on_a_page():
    assert timeline(ring(64, steps=4)).height < 900
    assert timeline(ring(256, steps=2)).height < 900


@pytest.mark.parametrize(
    ("trace", "kwargs", "message"),
    [
        ({}, {}, "room for 1 to 16 traces, and there are 0"),
        (Trace(2), {}, r"no message and no span of ranks \[0, 1\]"),
        (
            ring(4),
            {"ranks": [3, 4]},
            r"ranks \[3, 4\] are not all in this trace of 4 ranks, 0 to 3",
        ),
    ],
)
def test_refused_timeline(trace, kwargs, message):
    with pytest.raises(ValueError, match=message):
        timeline(trace, **kwargs)


def test_a_trace_without_time_is_refused_timeline():
    still = Trace(2)
    still.add(0, 1, 8, 0, 0, 0)
    with pytest.raises(ValueError, match="there is no time to draw"):
        timeline(still)


def bars(trace, ranks=None):
    return Chart(trace, ranks).bars


def test_a_row_for_the_spans_and_the_wires_of_each_lane():
    places, tall = Chart(step()).rows()
    rows = ("main", "do"), ("0", "send"), ("0", "receive")
    assert list(places) == [(rank, *row) for rank in (0, 1) for row in rows]
    assert list(places.values()) == sorted(places.values())
    assert all(place < tall for place in places.values())


def test_the_receiving_wire_is_busy_until_arrival():
    assert bars(step())[1, "0", "receive"] == [(2e-3, 3e-3, "receive", "")]


def test_other_ranks_have_no_bars():
    assert {rank for rank, *_ in bars(step(), [1])} == {1}


def test_kinds_keep_their_colours_and_named_ones_get_others():
    trace = step()
    for kind in ("shuffle", "forward"):
        trace.spans.add(0, "main", kind, 0, 1, "")
    kinds = kinds_of({b[2] for row in bars(trace).values() for b in row})
    assert list(kinds) == ["shuffle", "compute", "forward", "wait", "send", "receive"]
    assert kinds["compute"] == BLUE
    assert len(set(kinds.values())) == len(kinds)


def test_arrows_go_from_the_start_to_the_arrival():
    ax = Figure().add_subplot()
    sent, wires = list(ring(3, steps=1)), {(r, "main", "send"): r for r in range(3)}
    wires |= {(r, "main", "receive"): r + 0.5 for r in range(2)}  # rank 2 is not drawn
    draw_arrows(ax, sent, wires, 1e-6)
    [arrows] = ax.collections
    tails = arrows.get_offsets().tolist()
    assert tails == [[0, 0], [0, 2]]  # 0 → 1 and 2 → 0
    tips = np.array(tails) + np.array([arrows.U, arrows.V]).T
    np.testing.assert_allclose(tips, [(sent[0].arrived * 1e6, 1.5), (sent[0].arrived * 1e6, 0.5)])


# --------------------------------------------------------------------------------------------------------------- stages
BY_HAND = [[("F0", 0.0, US), ("B0", 4 * US, 6 * US)], [("F0", US, 2 * US), ("B0", 2 * US, 4 * US)]]


def test_text_of_runs_by_hand_on_one_axis():
    assert stages({"by hand": BY_HAND, "again": BY_HAND}, title="Two").text == (
        "Two\n"
        + "\n".join(
            f"{name}: 2 ranks, 5.72 µs\n  rank 0: forward 954 ns, backward 1.91 µs\n"
            "  rank 1: forward 954 ns, backward 1.91 µs"
            for name in ("by hand", "again")
        )
    )


def test_a_simulation_is_drawn_with_its_own_times():
    run = simulate(lists(zb_h1, 2, 3), update=0.5)
    spans = list(trace_of(run).spans)
    assert [(s.rank, s.name, s.start, s.end) for s in spans] == [
        (s.stage, str(s.action), s.start, s.end) for row in run.spans for s in row
    ]
    assert {s.name[0]: s.kind for s in spans} == {"F": "forward", "I": "backward", "W": "weights"}
    assert stages({"": run}).png == timeline({"": trace_of(run)}, title="Stages").png


def trained(comm):
    part = nn.Linear(2, 2, dtype=torch.float64)
    run = PipeDream(part, comm, lambda p: torch.optim.SGD(p, lr=0.1), nn.functional.mse_loss)
    run.run([(torch.ones(1, 2, dtype=torch.float64),) * 2] * 3)
    return run.spans


def test_the_librarys_spans_with_updates():
    spans = list(trace_of(World(2).run(trained)).spans)
    for stage in range(2):
        done = [s for s in spans if s.rank == stage]
        assert [s.name for s in done] == [str(action) for action in pipedream(stage, 2, 3)]
        assert [s.kind for s in done] == [ACTIONS[action.kind] for action in pipedream(stage, 2, 3)]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ({}, "there are 0"),
        ({"a": [[], []]}, "has no message and no span"),
        ({"a": [[], [("X0", 0.0, 1.0)]]}, "stage 1 did 'X0', and actions are F, B, I, W, U"),
        ({"a": [[("", 0.0, 1.0)]]}, "stage 0 did ''"),
    ],
)
def test_what_cannot_be_drawn(runs, words):
    with pytest.raises(ValueError, match=words):
        stages(runs)


def test_every_kind_of_action_has_a_name():
    assert [ACTIONS[action.kind] for action in parse("F0 B0 I0 W0 U0")] == list(ACTIONS.values())


# --------------------------------------------------------------------------------------------------------------- viewer
def test_the_page_holds_the_trace():
    trace = remembered()
    run = run_of(viewer(Results([None, None], trace, 4e-3)).page)
    assert run == run_of(viewer(trace).page)
    assert run["messages"]["count"] == len(trace) and run["spans"]["count"] == len(trace.spans)
    assert run["messages"]["bytes"] == [4096] and run["words"] == [
        "",
        "gradient",
        "backward",
        "recv",
    ]
    assert [kind[0] for kind in run["kinds"]] == ["compute", "wait", "send", "receive"]
    assert run["memory"]["rank"] == 1 and list(run["memory"]["series"]) == ["0", "1"]
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
    assert viewer(trace)._repr_html_() == viewer(trace)._repr_html_()


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
    for color in (MEANING["send"], MEANING["receive"]):
        wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        assert (abs(image.astype(int) - wanted).max(-1) < 60).sum() > 300


def test_the_picture_is_the_timeline_with_arrows():
    for trace in (ring(4), remembered()):
        still = viewer(trace).picture
        plain = timeline(trace)
        assert still.text == plain.text and still.png != plain.png
        assert (still.width, still.height) == (plain.width, plain.height)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (ring(4, steps=5), "the first 9 of 20 messages and spans, up to 3.81 µs"),
        (ring(130, steps=1), "128 of 130 ranks"),
    ],
)
def test_what_is_left_out_is_said(monkeypatch, trace, words):
    monkeypatch.setattr(timelines, "MOST_EVENTS", 9 if trace.n == 4 else 1000)
    made = viewer(trace)
    notes = [attrs for _, attrs in Reader(made.page).texts("p") if attrs.get("role") == "note"]
    assert len(notes) == 1 and f"Shown: {words}" in made.page
    assert f"shown: {words}" in made.text


def test_of_a_small_run_nothing_is_left_out():
    assert "Shown:" not in viewer(ring(4)).page


def test_a_picture_without_arrows_says_so():
    made = viewer(ring(16, steps=30))
    assert "shown: no arrows: 480 messages, and 60 can be told apart" in made.text
    assert "no arrows" not in "".join(f"{a}" for _, a in Reader(made.page).texts("p"))


def test_height_grows_with_the_rows_and_stays_on_a_screen():
    heights = [viewer(ring(n, steps=1)).heights[0] for n in (2, 8, 64, 130)]
    assert heights == sorted(heights) and heights[-1] < 800
    assert viewer(remembered()).heights[0] > viewer(step()).heights[0]


def test_save(tmp_path):
    made = viewer(step())
    made.save(tmp_path / "step.html")
    assert (tmp_path / "step.html").read_text(encoding="utf-8") == made.page
    with pytest.raises(ValueError, match=r"saved as \.html, not as '\.png'"):
        made.save(tmp_path / "step.png")


def test_refused_viewer():
    with pytest.raises(ValueError, match=r"ranks \[4\] are not all in this trace of 4 ranks"):
        viewer(ring(4), ranks=[4])


def test_some_ranks():
    run = run_of(viewer(gather(5), ranks=[0, 2]).page)
    assert run["rows"] == [[0, 0], [2, 0]]
    assert run["messages"]["count"] == 4  # all are sent to rank 0


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_both_themes_can_be_read(theme):
    assert contrast(theme["ink"], theme["card"]) > 7
    assert contrast(theme["muted"], theme["card"]) > 4.5
    assert contrast(theme["muted"], theme["wait"]) > 3  # the names in it
    assert contrast(theme["mark"], theme["card"]) > 4.5
    for color in MEANING.values():
        if color != WAIT:
            assert contrast(color, theme["card"]) > 1.9


# ----------------------------------------------------------------------------------------------- what the page is given
def rows(table):
    """The rows of a table, each a dict, with starts that are distances added up."""
    out = {name: column for name, column in table.items() if name != "count"}
    out["start"] = [sum(out["start"][: i + 1]) for i in range(table["count"])]
    return [dict(zip(out, row, strict=True)) for row in zip(*out.values(), strict=True)]


def told(trace, ranks=None):
    shown = Chart(trace, ranks)
    return shown, json.loads(json.dumps(columns(shown)))


@pytest.mark.parametrize("trace", [step(), gather(5), ring(3), ring(4, nbytes=0)])
def test_messages_and_spans_come_back(trace):
    shown, run = told(trace)
    tick = run["tick"]
    words = run["words"]
    lanes = run["lanes"]
    near = lambda ticks, seconds: abs(ticks * tick - seconds) <= 0.51 * tick
    assert run["messages"]["count"] == len(trace) and run["spans"]["count"] == len(trace.spans)
    for m, row in zip(trace, rows(run["messages"]), strict=True):
        assert (row["src"], row["dst"], row["bytes"]) == (m.src, m.dst, m.nbytes)
        assert (words[row["word"]], lanes[row["lane"]]) == (m.label or "", m.lane)
        assert near(row["start"], m.start) and near(row["start"] + row["busy"], m.sent)
        assert near(row["start"] + row["busy"] + row["flight"], m.arrived)
    for s, row in zip(
        sorted(trace.spans, key=lambda s: (s.start, s.rank)), rows(run["spans"]), strict=True
    ):
        assert (row["rank"], lanes[row["lane"]], words[row["name"]]) == (s.rank, s.lane, s.name)
        assert run["kinds"][row["kind"]][0] == s.kind
        assert near(row["start"], s.start) and near(row["start"] + row["long"], s.end)
    assert near(run["end"], shown.end)


def test_a_row_for_each_rank_and_for_each_of_its_lanes():
    _, run = told(step())
    assert run["lanes"] == ["main", "0"]
    assert run["rows"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert told(step(), ranks=[1])[1]["rows"] == [[1, 0], [1, 1]]
    two_of_three = ring(3)
    two_of_three.add(0, 2, 8, 0.0, US, 2 * US, lane="lane 7")
    assert told(two_of_three)[1]["rows"] == [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]]


def test_differences():
    assert differences([3, 3, 5, 4]) == [3, 0, 2, -1]
    assert differences([]) == []


@pytest.mark.parametrize(
    ("end", "tick"), [(2.0, 1e-9), (1e-3, 1e-9), (5e-5, 1e-10), (1.9e-6, 1e-11)]
)
def test_short_runs_have_finer_ticks(end, tick):
    assert tick_of(end) == pytest.approx(tick)
    assert end / tick_of(end) >= 1e5


@pytest.mark.parametrize(("end", "unit"), [(5e-7, "ns"), (9e-3, "µs"), (2.0, "ms"), (60.0, "s")])
def test_one_unit_for_a_page(end, unit):
    trace = Trace(2)
    trace.add(0, 1, 8, 0.0, end, end)
    assert told(trace)[1]["unit"][0] == unit


def few(monkeypatch, most):
    monkeypatch.setattr(timelines, "MOST_EVENTS", most)


def test_too_many_messages(monkeypatch):
    few(monkeypatch, 9)
    shown = Chart(ring(4, steps=5))
    assert len(shown.messages) == 9
    assert shown.end == 4 * US  # the 10th starts then
    words = "the first 9 of 20 messages and spans, up to 3.81 µs: choose ranks=[…]"
    assert shown.limits == [words]


def test_messages_and_spans_are_cut_at_one_time(monkeypatch):
    trace = ring(2, steps=4)
    for k in range(6):
        trace.spans.add(0, "main", "compute", k * US, (k + 1) * US, "")
    few(monkeypatch, 5)
    shown = Chart(trace)
    assert [len(shown.messages), len(shown.spans), shown.end] == [3, 2, 2 * US]
    assert shown.limits[0].startswith("the first 5 of 14 messages and spans, up to 1.91 µs:")


def test_more_ranks_than_rows():
    shown = Chart(ring(200, steps=1))
    assert shown.ranks == list(range(128))
    assert shown.limits == ["128 of 200 ranks: choose others with ranks=[…]"]
    assert {m.src for m in shown.messages} == {*range(128), 199}  # 199 sends to rank 0
    assert Chart(ring(200, steps=1), range(100, 150)).limits == []


@pytest.mark.parametrize(
    ("trace", "ranks", "message"),
    [
        (Trace(2), None, "no message and no span"),
        (ring(4), [3, 4], r"ranks \[3, 4\] are not all in this trace of 4 ranks, 0 to 3"),
        (ring(4), [], r"ranks \[\] are not all"),
    ],
)
def test_refused_the_page(trace, ranks, message):
    with pytest.raises(ValueError, match=message):
        told(trace, ranks)


def test_a_trace_without_time_is_refused_the_page():
    still = Trace(2)
    still.add(0, 1, 8, 0, 0, 0)
    with pytest.raises(ValueError, match="there is no time to draw"):
        told(still)


def live(table, rank, tick):
    """(seconds, live bytes by category) of each moment that a page is told of."""
    series = table["series"][rank]
    add_up = lambda steps: np.cumsum(steps).tolist()
    names = [name for name, _ in table["categories"]]
    held = zip(*map(add_up, series["live"]), strict=True)
    for time, row in zip(add_up(series["time"]), held, strict=True):
        yield time * tick, {name: nbytes for name, nbytes in zip(names, row, strict=True) if nbytes}


def test_memory_comes_back():
    trace, tick = remembered(), 1e-9
    table, said = memory_columns(trace.memory, tick)
    assert said == [] and table["rank"] == 1
    assert {rank: series["peak"] for rank, series in table["series"].items()} == {0: 1500, 1: 5500}
    for rank, line in trace.memory.items():
        live_at = lambda i, held=line.live: {c: int(held[c][i]) for c in CATEGORIES if held[c][i]}
        wanted = [live_at(i) for i in range(len(line))]
        got = list(live(table, rank, tick))
        assert [bytes_ for _, bytes_ in got] == wanted
        assert [t for t, _ in got] == pytest.approx(line.times.tolist(), abs=tick)


def test_no_memory():
    assert memory_columns({}, 1e-9) == (None, [])
    assert viewer(step()).data["memory"] is None


def test_many_moments_keep_the_peak_and_the_end():
    n = 3 * MOST_MOMENTS
    saw = [(k * 1e-6, "activations", 1000 - 990 * (k % 2) if k % 2 == 0 else -10) for k in range(n)]
    saw[n // 3] = (saw[n // 3][0], "activations", 10**9)
    saw[n // 3 + 1] = (saw[n // 3 + 1][0], "activations", -(10**9))
    memory = held(saw)
    table, said = memory_columns({0: memory}, 1e-9)
    got = [sum(bytes_.values()) for _, bytes_ in live(table, 0, 1e-9)]
    assert max(got) == memory.peak == table["series"][0]["peak"]
    assert got[-1] == memory.total[-1]
    assert len(got) <= MOST_MOMENTS
    assert said == [f"{len(got):,} of {n:,} moments of memory, the highest among them"]


def test_telling():
    assert telling([1, 2, 3], 3) == [0, 1, 2]
    assert telling([5, 9, 1, 2, 3, 8, 0, 4], 4) == [1, 3, 5, 7]
