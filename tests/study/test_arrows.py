"""Arrows between ranks: what they say in text, which step each is in, and what is refused."""

import pytest

from minidist.comm.trace import Trace
from minidist.study import messages
from minidist.study.arrows import _in_steps
from tests.study.traces import US, gather, ring


def steps(trace):
    return {(m.src, m.dst): round(start + 0.88) for m, start, _ in _in_steps(list(trace))[0]}


def test_text_in_time():
    assert messages(ring(2, nbytes=24)).text == (
        "Messages between ranks: 2 ranks, 2 messages, 48 B\n"
        "  0 s to 1.91 µs: 0 → 1, 24 B, chunk 0\n"
        "  0 s to 1.91 µs: 1 → 0, 24 B, chunk 1"
    )


def test_text_in_steps():
    assert messages(gather(3), clock="steps", title="Gather").text == (
        "Gather: 3 ranks, 2 messages, 2,000 B\n  step 1: 1 → 0, 1,000 B\n  step 2: 2 → 0, 1,000 B"
    )


def test_a_step_waits_for_what_its_sender_had_heard():
    chain = Trace(4)
    for r in range(3):
        chain.add(r, r + 1, 8, r * US, r * US + US / 2, (r + 1) * US)
    assert steps(chain) == {(0, 1): 1, (1, 2): 2, (2, 3): 3}


def test_a_ring_has_all_ranks_in_every_step():
    got = sorted(round(start + 0.88) for _, start, _ in _in_steps(list(ring(4)))[0])
    assert got == [1] * 4 + [2] * 4 + [3] * 4


def test_two_pairs_share_a_step():
    pairs = Trace(4)
    pairs.add(0, 1, 8, 0, US, 2 * US)
    pairs.add(2, 3, 8, US / 2, US, 2 * US)
    assert steps(pairs) == {(0, 1): 1, (2, 3): 1}


def test_long_lists_are_cut_in_text_only():
    assert messages(ring(8)).text.endswith("\n  … and 32 more")


@pytest.mark.parametrize("label", ["label", "bytes", None])
@pytest.mark.parametrize("clock", ["time", "steps"])
def test_drawn_the_same_each_time(clock, label):
    first = messages(ring(3), clock=clock, label=label)
    assert first.png == messages(ring(3), clock=clock, label=label).png
    assert first.png.startswith(b"\x89PNG")


def test_labels_are_drawn():
    assert len({messages(ring(3), label=label).png for label in ("label", "bytes", None)}) == 3


def test_some_ranks_of_many():
    made = messages(ring(64, steps=2), ranks=[0, 1, 2])
    assert made.text.startswith("Messages between ranks: 3 ranks, 4 messages, 4,000 B\n")


@pytest.mark.parametrize(
    ("trace", "kwargs", "message"),
    [
        (
            ring(64),
            {},
            r"at most 16 ranks, and there are 64: choose some, such as ranks=\[0, 1, 2, 3\], or draw timeline",
        ),
        (ring(16, steps=20), {}, "1 to 300 arrows, and there are 320"),
        (Trace(2), {}, "there are 0"),
        (ring(4), {"ranks": [0, 4]}, "rank 4 is not in this trace of 4 ranks, 0 to 3"),
        (ring(4), {"ranks": [0, 2]}, "there are 0"),
        (ring(4), {"clock": "wall"}, "not 'wall'"),
        (ring(4), {"label": "size"}, "not 'size'"),
    ],
)
def test_refused(trace, kwargs, message):
    with pytest.raises(ValueError, match=message):
        messages(trace, **kwargs)


def test_a_trace_without_time_is_drawn_in_steps():
    still = Trace(2)
    still.add(0, 1, 8, 0, 0, 0)
    with pytest.raises(ValueError, match='draw them with clock="steps"'):
        messages(still)
    assert "step 1: 0 → 1" in messages(still, clock="steps").text
