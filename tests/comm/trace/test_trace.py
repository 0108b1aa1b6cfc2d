"""The record of a run: counted, drawn, merged."""

import pytest
import torch

from minidist.comm import Message, Results, Span, Trace, World
from minidist.comm.trace.timeline import Timeline


def sample():
    trace = Trace(3)
    trace.add(0, 1, 8, 1e-6, 2e-6, 7e-6)
    trace.add(1, 2, 4096, 2e-6, 3e-6, 8e-6, "grad", "lane 0")
    trace.add(0, 1, 16, 3e-6, 4e-6, 9e-6, "grad")
    trace.add(0, 2, 0, 4e-6, 4e-6, 9e-6)
    return trace


def test_messages_come_back_as_they_were():
    trace = sample()
    assert len(trace) == 4
    assert list(trace)[1] == Message(1, 2, 4096, 2e-6, 3e-6, 8e-6, "grad", "lane 0")
    assert [m.label for m in trace] == [None, "grad", "grad", None]


def test_counts():
    trace = sample()
    assert trace.bytes_sent() == 8 + 4096 + 16
    assert [trace.bytes_sent(r) for r in range(3)] == [24, 4096, 0]
    assert trace.bytes_sent(link=(0, 1)) == 24 and trace.bytes_sent(link=(1, 0)) == 0
    assert trace.bytes_sent(1, link=(0, 1)) == 0
    assert (
        trace.messages() == 4 and trace.messages(rank=0) == 3 and trace.messages(link=(0, 2)) == 1
    )
    assert isinstance(trace.bytes_sent(), int) and Trace(1).bytes_sent() == 0


@pytest.mark.parametrize("kwargs", [dict(rank=3), dict(rank=-1), dict(link=(0, 3))])
def test_a_rank_that_is_not_in_it(kwargs):
    with pytest.raises(ValueError, match="not in this trace of 3 ranks, 0 to 2"):
        sample().bytes_sent(**kwargs)
    with pytest.raises(ValueError, match="not in this trace of 3 ranks"):
        sample().messages(**kwargs)


def test_big_numbers():
    trace = Trace(2)
    trace.add(0, 1, 175 * 10**12, 0.0, 1.0, 1.0)
    assert trace.bytes_sent() == 175 * 10**12


def test_merge_and_begin_at_the_origin():
    trace, other = Trace(3), Trace(3)
    trace.add(0, 1, 8, 12.0, 13.0, 13.0, "b")
    trace.spans.append(Span(0, "main", "compute", 13.0, 14.0, "x"))
    other.add(2, 0, 8, 11.0, 13.0, 14.0, "a", "lane 1")
    other.add(1, 0, 8, 11.0, 13.0, 14.0, "b")
    other.spans.append(Span(1, "main", "wait", 12.0, 14.0, ""))
    trace.merge(other)
    trace.since(10.0)
    assert list(trace) == [
        Message(1, 0, 8, 1.0, 3.0, 4.0, "b", "main"),
        Message(2, 0, 8, 1.0, 3.0, 4.0, "a", "lane 1"),
        Message(0, 1, 8, 2.0, 3.0, 3.0, "b", "main"),
    ]
    assert trace.spans == [
        Span(1, "main", "wait", 2.0, 4.0, ""),
        Span(0, "main", "compute", 3.0, 4.0, "x"),
    ]


def test_sorted_by_start_then_by_ranks():
    trace, rows = (
        Trace(3),
        [(1, 2, 8, 2.0), (2, 0, 8, 1.0), (1, 0, 16, 1.0), (1, 0, 8, 1.0), (0, 1, 8, 0.0)],
    )
    trace.sort()
    assert list(trace) == []
    for src, dst, nbytes, start in rows:
        trace.add(src, dst, nbytes, start, start + 1, start + 2, str(nbytes), f"lane {src}")
    trace.sort()
    assert [m[:4] for m in trace] == [rows[4], rows[2], rows[3], rows[1], rows[0]]
    assert all(
        m.label == str(m.nbytes) and m.lane == f"lane {m.src}" and m.arrived == m.start + 2
        for m in trace
    )


def test_it_can_grow_while_it_is_read():
    trace = sample()
    seen = [
        trace.add(*m) or (trace.bytes_sent(), trace.messages())
        for m, _ in zip(trace, range(2), strict=False)
    ]
    assert seen == [(4128, 5), (8224, 6)] and len(trace) == 6


def test_memory_is_merged_moved_and_compared():
    trace, other = Trace(2), Trace(2)
    trace.memory[0], other.memory[1] = Timeline([10.0], [8], [0]), Timeline([11.0], [16], [5])
    trace.merge(other)
    trace.since(10.0)
    assert {r: t.times.tolist() for r, t in trace.memory.items()} == {0: [0.0], 1: [1.0]}
    assert [trace.memory[r].peak for r in range(2)] == [8, 16]
    assert trace != Trace(2)


def test_equal():
    one, two = sample(), sample()
    assert one == two and one != "trace"
    two.spans.append(Span(0, "main", "compute", 0.0, 1.0, ""))
    assert one != two
    three = sample()
    three.add(0, 1, 8, 0, 0, 0)
    assert one != three


def test_tables():
    text = str(sample()).splitlines()
    assert text[0].split() == ["start", "µs", "arrived", "µs", "from", "→", "to", "bytes", "label"]
    assert text[2].split() == ["2.00", "8.00", "1", "→", "2", "4,096", "grad"]
    assert sample().table(most=3).splitlines()[-1] == "… and 1 more"
    assert repr(sample()) == "Trace(3 ranks, 4 messages, 4,120 bytes)"
    html = sample()._repr_html_()
    assert html.count("<tr>") == 5 and "4,096" in html and "more" not in html


def test_a_label_is_text_in_html():
    trace = Trace(2)
    trace.add(0, 1, 8, 0.0, 0.0, 0.0, "<b>")
    assert "<b>" not in trace._repr_html_()


def test_results_are_a_list():
    results = Results([1, 2], sample(), 0.5)
    assert results == [1, 2] and results.time == 0.5 and len(results.trace) == 4


def test_bytes_are_counted_once_at_the_sender(run):
    def program(comm):
        comm.sendrecv(torch.ones(3), 1 - comm.rank, torch.ones(3), 1 - comm.rank, label="x")
        if comm.rank == 0:
            comm.send(torch.ones(5, dtype=torch.int8), 1)
        else:
            comm.recv(torch.ones(5, dtype=torch.int8), 0)

    results = run(program, 2)
    assert (results.trace.bytes_sent(0), results.trace.bytes_sent(1), results.trace.messages()) == (
        17,
        12,
        3,
    )
    assert sorted((m.src, m.dst, m.nbytes, m.label or "", m.lane) for m in results.trace) == [
        (0, 1, 5, "", "main"),
        (0, 1, 12, "x", "main"),
        (1, 0, 12, "x", "main"),
    ]
    assert all(0 <= m.start <= m.sent <= m.arrived <= results.time for m in results.trace)
    starts = [m.start for m in results.trace]
    assert starts == sorted(starts)
    again = World(2).run(program)
    assert again.trace.bytes_sent() == results.trace.bytes_sent()
