"""The rows of a timeline: their bars, colours of kinds, shades of crowded rows."""

import numpy as np
from matplotlib.figure import Figure

from minidist.comm.trace import Span
from minidist.study import line
from minidist.study.rows import SLICES, bars_of, draw_arrows, kinds_of, rows_of, shades
from tests.study.traces import ring, step


def bars(trace, ranks=(0, 1)):
    return bars_of(trace, trace.spans, set(ranks))


def test_a_row_for_the_spans_and_the_wires_of_each_lane():
    assert [row[:3] for row in rows_of(bars(step()), [1])] == [
        (1, "main", "do"),
        (1, "0", "send"),
        (1, "0", "receive"),
    ]


def test_the_receiving_wire_is_busy_until_arrival():
    assert bars(step())[1, "0", "receive"] == [(2e-3, 3e-3, "receive", "")]


def test_other_ranks_have_no_bars():
    assert {rank for rank, *_ in bars(step(), [1])} == {1}


def test_kinds_keep_their_colours_and_named_ones_get_others():
    trace = step()
    trace.spans += [Span(0, "main", "shuffle", 0, 1, ""), Span(0, "main", "forward", 0, 1, "")]
    kinds = kinds_of({b[2] for row in bars(trace).values() for b in row})
    assert list(kinds) == ["shuffle", "compute", "forward", "wait", "send", "receive"]
    assert kinds["compute"] == line.BLUE
    assert len(set(kinds.values())) == len(kinds)


def test_shades_are_the_share_of_time_that_was_busy():
    bars = [(i / SLICES, (i + 0.5) / SLICES, "send", "") for i in range(SLICES // 2)]
    grid = shades(bars, {"send": "#000000"}, 0.0, 1.0)
    card = np.array([int(line.CARD[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    np.testing.assert_allclose(
        grid[0, : SLICES // 2], np.tile(0.3 * card, (SLICES // 2, 1)), atol=1e-9
    )
    np.testing.assert_allclose(
        grid[0, SLICES // 2 :], np.tile(card, (SLICES - SLICES // 2, 1)), atol=1e-9
    )
    # slices of half the time, the first half of them busy
    half = shades(bars, {"send": "#000000"}, 0.25, 0.75)
    np.testing.assert_allclose(half[0, SLICES // 2 :], np.tile(card, (SLICES // 2, 1)), atol=1e-9)
    assert (half[0, : SLICES // 2] < card - 0.1).any(1).sum() == SLICES // 4


def test_arrows_go_from_the_start_to_the_arrival():
    ax = Figure().add_subplot()
    sent, wires = list(ring(3, steps=1)), {(r, "main", "send"): r for r in range(3)}
    wires |= {(r, "main", "receive"): r + 0.5 for r in range(2)}  # rank 2 is not drawn
    draw_arrows(ax, sent, wires, (1e6, 1e-6))
    lines, heads = ax.collections
    assert [tuple(s[0]) for s in lines.get_segments()] == [(0, 0), (0, 2)]  # 0 → 1 and 2 → 0
    tips = [p.vertices[0] for p in heads.get_paths()]
    np.testing.assert_allclose(tips, [(sent[0].arrived * 1e6, 1.5), (sent[0].arrived * 1e6, 0.5)])
