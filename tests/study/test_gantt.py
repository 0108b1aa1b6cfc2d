"""The Gantt chart: times in its text, memory under it, arrows on it, and what is refused."""

import pytest

from minidist.comm.trace import Trace
from minidist.study import timeline
from minidist.study.gantt import MOST_ARROWS
from tests.study.traces import gather, remembered, ring, step


def test_text():
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
    said = "  memory of rank 1: peak 5,500 B at 2 ms (parameters 1,000 B, activations 500 B, other 4,000 B)"
    assert timeline(remembered()).text.splitlines()[-1] == said


def test_memory_of_a_chosen_rank_or_of_none():
    of_0, none = timeline(remembered(), memory=0), timeline(remembered(), memory=False)
    assert of_0.text.splitlines()[-1] == (
        "  memory of rank 0: peak 1,500 B at 1 ms (parameters 1,000 B, activations 500 B)"
    )
    assert "memory" not in none.text
    assert none.height < of_0.height == timeline(remembered()).height
    assert none.png == timeline(step()).png


def test_memory_under_each_of_two_traces():
    both = timeline({"a": remembered(), "b": step()})
    assert both.text.count("memory of rank") == 1
    assert timeline({"a": step(), "b": step()}).height < both.height


def test_arrows():
    plain, arrows = timeline(ring(4)), timeline(ring(4), arrows=True)
    assert plain.text == arrows.text
    assert plain.png != arrows.png


@pytest.mark.parametrize(
    "trace", [step(), remembered(), ring(4), ring(2, steps=150), {"a": gather(5), "b": ring(3)}]
)
def test_drawn_the_same_each_time(trace):
    first = timeline(trace)
    assert first.png.startswith(b"\x89PNG")
    assert first.png == timeline(trace).png


def test_height_stays_on_a_page():
    assert timeline(ring(64, steps=4)).height < 900
    assert timeline(ring(256, steps=2)).height < 900


@pytest.mark.parametrize(
    ("trace", "kwargs", "message"),
    [
        ({}, {}, "at least one trace"),
        (Trace(2), {}, r"no message and no span of ranks \[0, 1\]"),
        (ring(300, steps=1), {}, "at most 256 ranks, and there are 300"),
        (ring(4, steps=100), {"arrows": True}, f"at most {MOST_ARROWS} arrows, and there are 400"),
        (
            remembered(),
            {"memory": 2},
            r"rank 2 has no memory in this trace; those that have: \[0, 1\]",
        ),
        (
            ring(4),
            {"ranks": [3, 4]},
            r"ranks \[3, 4\] are not all in this trace of 4 ranks, 0 to 3",
        ),
    ],
)
def test_refused(trace, kwargs, message):
    with pytest.raises(ValueError, match=message):
        timeline(trace, **kwargs)


def test_a_trace_without_time_is_refused():
    still = Trace(2)
    still.add(0, 1, 8, 0, 0, 0)
    with pytest.raises(ValueError, match="there is no time to draw"):
        timeline(still)
