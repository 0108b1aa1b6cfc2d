"""The simulated allocator: PyTorch's rules one by one, and invariants under random use."""

import random
from itertools import pairwise

import pytest

from minidist.study.allocator import Allocator, GiB, MiB, OutOfMemory, rounded, segment_size


def layout(memory):
    """Sizes in MiB by state, segment by segment: U used, F free, - unmapped."""
    words = {"used": "U", "free": "F", "unmapped": "-"}
    return [
        " ".join(f"{words[b.state]}{b.size / MiB:g}" for b in s.blocks) for s in memory.segments
    ]


@pytest.mark.parametrize(
    ("nbytes", "block"),
    [
        (1, 512),
        (512, 512),
        (513, 1024),
        (1_000_000, 1_000_448),
        (3 * MiB, 3 * MiB),
    ],
)
def test_sizes_are_rounded_to_512_bytes(nbytes, block):
    assert rounded(nbytes) == block
    memory = Allocator(GiB)
    assert (
        memory.malloc(nbytes).size == block and memory.allocated == block and memory.asked == nbytes
    )


def test_rounding_between_powers_of_two():
    # PyTorch's documentation of roundup_power2_divisions: 1,200 with 4 divisions becomes 1,280.
    mib = lambda n, divisions: rounded(n * MiB, divisions) / MiB
    assert [mib(n, 4) for n in (1024, 1200, 1280, 1281, 1700)] == [1024, 1280, 1280, 1536, 1792]
    assert [mib(n, 1) for n in (1024, 1025, 1200)] == [1024, 2048, 2048]
    assert rounded(1025, 4) == 1536  # too small to be divided into four


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2),
        (MiB, 2),
        (MiB + 512, 20),
        (10 * MiB - 512, 20),
        (10 * MiB, 10),
        (10 * MiB + 512, 12),
        (21 * MiB, 22),
    ],
)
def test_segments(size, segment):
    assert segment_size(size) == segment * MiB
    memory = Allocator(GiB)
    memory.malloc(size)
    assert memory.reserved == segment * MiB


def test_blocks_are_cut_from_what_is_free():
    memory = Allocator(GiB)
    a, b = memory.malloc(3 * MiB), memory.malloc(4 * MiB)
    assert layout(memory) == ["U3 U4 F13"]
    memory.malloc(12 * MiB)
    assert layout(memory) == ["U3 U4 U13"]  # a rest of 1 MiB is not cut off
    memory.free(a)
    memory.free(b)
    assert layout(memory) == ["F7 U13"]
    memory.malloc(MiB)  # small: another pool, where all rests are cut off
    assert layout(memory) == ["F7 U13", "U1 F1"]


def test_best_fit_is_the_smallest_hole_then_the_lowest():
    memory = Allocator(GiB)
    blocks = [memory.malloc(n * MiB) for n in (30, 40, 20, 20, 10)]
    for block in blocks:
        memory.free(block)
    taken = memory.malloc(15 * MiB)
    assert taken.segment is blocks[2].segment and taken.start == blocks[2].start
    assert layout(memory) == ["F30", "F40", "U15 F5", "F20", "F10"]


def test_free_neighbours_join_and_segments_do_not():
    memory = Allocator(GiB)
    a, b, c, d = (memory.malloc(5 * MiB) for _ in range(4))
    other = memory.malloc(10 * MiB)
    for block in (a, c, other):
        memory.free(block)
    assert layout(memory) == ["F5 U5 F5 U5", "F10"]
    memory.free(b)
    assert layout(memory) == ["F15 U5", "F10"]
    memory.free(d)
    assert layout(memory) == ["F20", "F10"] and memory.allocated == 0


def test_the_cache_is_kept_until_it_is_needed():
    memory = Allocator(100 * MiB)
    for block in [memory.malloc(n * MiB) for n in (60, 30)]:
        memory.free(block)
    assert memory.reserved == 90 * MiB and memory.largest == 60 * MiB
    memory.malloc(80 * MiB)
    assert layout(memory) == ["U80"]
    memory.empty_cache()
    assert layout(memory) == ["U80"]


def test_a_segment_with_one_live_block_does_not_go_back():
    memory = Allocator(100 * MiB)
    first = memory.malloc(60 * MiB)
    memory.free(first)
    memory.malloc(2 * MiB, "a mouse")
    with pytest.raises(OutOfMemory) as e:
        memory.malloc(70 * MiB)
    assert (e.value.asked, e.value.free, e.value.largest) == (70 * MiB, 98 * MiB, 58 * MiB)
    assert str(e.value) == (
        "out of memory: 70 MiB asked for, and 98 MiB of 100 MiB (98%) are free, "
        "but the largest piece of that has 58 MiB"
    )
    assert layout(memory) == ["U2 F58"] and memory.segments[0].blocks[0].label == "a mouse"


def test_expandable_segments_grow_by_pages_and_give_back_their_middle():
    memory = Allocator(120 * MiB, expandable=True)
    a, b, c = (memory.malloc(n * MiB) for n in (30, 20, 10))
    # of 140 MiB of addresses; three pages of 20 MiB have memory
    assert layout(memory) == ["U30 U20 U10 -80"]
    assert memory.reserved == 60 * MiB
    memory.free(b)
    d = memory.malloc(35 * MiB)  # not into the hole of 20: behind, where addresses go on
    assert layout(memory) == ["U30 F20 U10 U35 F5 -40"] and memory.reserved == 100 * MiB
    memory.empty_cache()
    # no whole page of 20 to 40 or 40 to 60 is free
    assert layout(memory) == ["U30 F20 U10 U35 F5 -40"]
    memory.free(a)
    memory.empty_cache()
    assert layout(memory) == ["-40 F10 U10 U35 F5 -40"]  # two pages went back from the front
    e = memory.malloc(22 * MiB)  # two new pages, at the lowest address with room
    assert layout(memory) == ["U22 F28 U10 U35 F5 -40"]
    for block in (c, d, e):
        memory.free(block)
    memory.empty_cache()
    assert layout(memory) == ["-140"] and memory.reserved == 0


def test_a_block_that_can_grow_is_taken_last():
    memory = Allocator(640 * MiB, expandable=True)
    hole, _, last = (memory.malloc(n * MiB) for n in (60, 20, 40))
    memory.free(hole)
    memory.free(last)
    assert layout(memory) == ["F60 U20 F40 -600"]
    memory.malloc(30 * MiB)
    assert layout(memory) == ["U30 F30 U20 F40 -600"]


def test_pages_of_holes_serve_elsewhere():
    """Two holes of 40 MiB around a live block: no block of 80 fits in, but memory for one is there."""
    fixed, grown = Allocator(640 * MiB), Allocator(640 * MiB, expandable=True)
    for memory in (fixed, grown):
        memory.malloc(520 * MiB)
        memory.free(memory.malloc(120 * MiB))
        first, _, last = (memory.malloc(40 * MiB) for _ in range(3))
        memory.free(first)
        memory.free(last)
    assert layout(fixed) == ["U520", "F40 U40 F40"] and layout(grown) == ["U520 F40 U40 F40 -80"]
    with pytest.raises(OutOfMemory) as e:
        fixed.malloc(80 * MiB)
    assert (e.value.free, e.value.largest) == (80 * MiB, 40 * MiB)
    grown.malloc(80 * MiB)
    assert (
        layout(grown) == ["U520 -40 U40 U80 -40"] and grown.reserved == grown.allocated == 640 * MiB
    )


def attempt(memory, nbytes):
    """(block, None) or (None, error)."""
    try:
        return memory.malloc(nbytes), None
    except OutOfMemory as error:
        return None, error


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("words", [{}, dict(expandable=True), dict(divisions=2)])
def test_invariants(seed, words):
    rng = random.Random(seed)
    memory = Allocator(150 * MiB, **words)
    live = []
    full = 0
    for _ in range(250):
        if live and rng.random() < 0.48:
            memory.free(live.pop(rng.randrange(len(live))))
        else:
            nbytes = rng.choice(
                [rng.randrange(1, MiB), rng.randrange(1, 12 * MiB), rng.randrange(1, 60 * MiB)]
            )
            block, error = attempt(memory, nbytes)
            if error:
                full += 1
                assert error.free == 150 * MiB - memory.allocated
                assert error.largest < rounded(nbytes, memory.divisions) + 20 * MiB
            else:
                live.append(block)
        if rng.random() < 0.02:
            memory.empty_cache()
        assert memory.reserved <= memory.capacity
        assert sorted(b.start for b in live) == sorted(
            b.start for b in memory.blocks if b.state == "used"
        )
        assert memory.allocated == sum(b.size for b in live) <= memory.reserved
        for segment in memory.segments:
            for one, two in pairwise(segment.blocks):
                assert one.end == two.start and (one.state != two.state or one.state == "used")
            assert all(
                b.size > 0 and b.size % 512 == 0 and b.segment is segment for b in segment.blocks
            )
        ends = sorted((s.blocks[0].start, s.blocks[-1].end) for s in memory.segments)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
    assert full
    for block in live:
        memory.free(block)
    memory.empty_cache()
    assert memory.reserved == memory.allocated == memory.asked == 0


def test_bad_use():
    memory = Allocator(GiB)
    block = memory.malloc(5)
    memory.free(block)
    with pytest.raises(ValueError, match="at 0 is free, not in use"):
        memory.free(block)
    with pytest.raises(ValueError, match="at least 1 byte, not 0"):
        memory.malloc(0)
