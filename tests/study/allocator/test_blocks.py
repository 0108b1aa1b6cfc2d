"""The picture of memory: its text exactly, and parts that fill every line."""

import pytest

from minidist.study.allocator import HOLE, REST, Allocator, MiB, blocks, parts_of, pieces_of


def small():
    memory = Allocator(64 * MiB)
    hole, _ = memory.malloc(15 * MiB, "short-lived"), memory.malloc(5, "gradients")
    memory.free(hole)
    memory.malloc(4 * MiB)
    return memory


def test_text():
    assert blocks(small(), title="Memory").text == (
        "Memory\n"
        "67,108,864 B, 18,874,368 B of it in 2 segments\n"
        "  in use: 4,194,304 B\n"
        "  gradients: 512 B\n"
        "  free, in a segment: 14,679,552 B\n"
        "  free, with the driver: 48,234,496 B\n"
        "  2 holes, the largest 12,582,912 B; largest piece 48,234,496 B"
    )
    assert blocks(small()).png.startswith(b"\x89PNG")


def testparts_of():
    assert [(label, first) for label, _, first in parts_of(small())] == [
        ("in use", True),
        (HOLE, False),
        ("gradients", True),
        (HOLE, False),
        (REST, False),
    ]
    grown = Allocator(64 * MiB, expandable=True)
    grown.malloc(3 * MiB, "a")
    assert [(label, size / MiB) for label, size, _ in parts_of(grown)] == [
        ("a", 3),
        (HOLE, 17),
        (REST, 44),
    ]


@pytest.mark.parametrize("rows", [16, 3, 1])
@pytest.mark.parametrize(
    "sizes", [[1000], [1, 999], [500, 500], [63, 1, 62, 300, 574], [333, 333, 334]]
)
def test_pieces_fill_every_line(sizes, rows):
    lines, at = [0.0] * rows, 0
    for size in sizes:
        for row, x, width in pieces_of(at, size, sum(sizes), rows):
            assert width > 0 and x == pytest.approx(lines[row], abs=0.02) and x + width < 1.02
            lines[row] = x + width
        at += size
    assert lines == pytest.approx([1.0] * rows, abs=0.02)


def test_a_line_for_each_segment():
    whole, few = blocks(small()), blocks(small(), lines=4)
    assert few.text == whole.text and few.height < whole.height / 2
    with pytest.raises(ValueError, match="67108864 bytes are drawn in 1 line or more, not in 0"):
        blocks(small(), lines=0)


def test_an_empty_card():
    assert "0 B of it in 0 segments" in blocks(Allocator(MiB)).text
