"""Out of memory with a third of it free, in the allocations of a real step; and each remedy."""

import pytest

from minidist.study.allocator import CARD, Allocator, MiB, OutOfMemory, backward_in_pieces, replay
from tests.largest import largest
from tests.study.allocator.events import peak


@pytest.fixture(scope="module")
def step():
    return backward_in_pieces()


def test_out_of_memory_with_a_third_free(step):
    memory = Allocator(CARD)
    with pytest.raises(OutOfMemory) as e:
        replay(step, memory)
    assert peak(step) < CARD  # it would fit
    assert e.value.free > CARD / 3 and e.value.largest < e.value.asked < e.value.free
    holes = [b.size for b in memory.blocks if b.state == "free"]
    assert len(holes) > 90 and sum(holes) > 1200 * MiB and largest(holes) < 200 * MiB


@pytest.mark.parametrize("words", [dict(expandable=True), dict(divisions=4)])
def test_settings_that_help(step, words):
    memory = Allocator(CARD, **words)
    replay(step, memory)
    assert memory.asked == sum(b.asked for b in memory.blocks) > 6 * 2**30


@pytest.mark.parametrize("words", [dict(first=True), dict(bucket=25 * MiB)])
def test_programs_that_help(step, words):
    other = backward_in_pieces(**words)
    replay(other, Allocator(CARD))
    assert peak(other) <= peak(step) + 2 * MiB


def test_gradients_made_first_leave_no_holes():
    """The flat buffer is one block, and holds all gradients to the end."""
    blocks = replay(backward_in_pieces(first=True), Allocator(CARD))
    size = 24 * 2 * (12 * 2048 * 2048 + 13 * 2048)
    # and the one to send
    assert sorted(b.asked for b in blocks.values() if b.label == "long-lived") == [size, size]
