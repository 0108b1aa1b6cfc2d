"""A caching allocator, simulated: why memory runs out while a third of it is free.

Asking the driver for memory is slow, so PyTorch asks for *segments*, cuts *blocks* from them, and keeps both when a
tensor dies. A block cannot span two segments, and a segment goes back only when nothing in it lives. So short-lived
tensors among long-lived ones leave holes that nothing large fits into. The rules of CUDACachingAllocator.cpp:

    size      rounded up to 512 bytes; up to 1 MiB is "small", in segments of 2 MiB
    segment   20 MiB for blocks below 10 MiB, else the size rounded up to 2 MiB
    choice    best fit: the smallest free block that is large enough, of these the lowest
    split     if the rest is at least 512 bytes (small), or more than 1 MiB (large)
    full      all free segments go back to the driver, then one more try

`expandable`: one segment a kind, grown by pages (2 or 20 MiB), that gives back pages from its middle too.
Invariant: blocks lie side by side, and no two free ones are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from minidist.study.memory.items import MiB, sized

GRAIN = 512  # bytes; every block is a multiple
SMALL = MiB
SMALL_SEGMENT = 2 * MiB
LARGE_SEGMENT = 20 * MiB
ROUND_LARGE = 2 * MiB
OWN_SEGMENT = 10 * MiB  # blocks from here on get a segment of their own size


class OutOfMemory(RuntimeError):
    """No block of `asked` bytes, though `free` are free: the largest piece for a block of its kind has `largest`."""

    def __init__(self, asked: int, free: int, largest: int, capacity: int):
        self.asked = asked
        self.free = free
        self.largest = largest
        self.capacity = capacity
        want, left, piece, whole = (
            sized(nbytes, capacity) for nbytes in (asked, free, largest, capacity)
        )
        super().__init__(
            f"out of memory: {want} asked for, and {left} of {whole} ({free / capacity:.0%}) are free, but the largest "
            f"piece of that has {piece}"
        )


@dataclass(eq=False)
class Block:
    """A part of a segment. state: "used", "free" (cached), or "unmapped" (addresses without memory)."""

    start: int
    size: int
    segment: Segment = field(repr=False)
    state: str = "free"
    label: str = ""
    asked: int = 0

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(eq=False)
class Segment:
    """Blocks side by side."""

    small: bool
    blocks: list[Block] = field(default_factory=list, repr=False)

    def bytes(self, *states: str) -> int:
        return sum(b.size for b in self.blocks if b.state in states)

    def join_(self) -> None:
        """Free neighbours, and unmapped ones, become one block."""
        joined: list[Block] = []
        for block in self.blocks:
            if joined and joined[-1].state == block.state != "used":
                joined[-1].size += block.size
            else:
                joined.append(block)
        self.blocks = joined

    def cut_(self, block: Block, *at: int) -> list[Block]:
        """The block becomes several, that begin at its start and at each of the addresses `at` within it."""
        ends = [a for a in at if block.start < a < block.end]
        parts = [
            Block(a, b - a, self, block.state)
            for a, b in zip([block.start, *ends], [*ends, block.end], strict=True)
        ]
        i = self.blocks.index(block)
        self.blocks[i : i + 1] = parts
        return parts


def rounded(nbytes: int, divisions: int = 0) -> int:
    """The size of the block for `nbytes`. divisions: steps between two powers of two, 0 for 512 bytes everywhere."""
    if divisions and nbytes > GRAIN * divisions:
        return up(nbytes, 2 ** (nbytes.bit_length() - 1) // divisions)
    return up(nbytes, GRAIN)


def up(n: int, multiple: int) -> int:
    """`n`, rounded up."""
    return -(-n // multiple) * multiple


def segment_size(size: int) -> int:
    """What the driver is asked for when a block of `size` bytes needs a new segment."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else up(size, ROUND_LARGE)


class Allocator:
    """`malloc(nbytes) -> Block` and `free(block)` over `capacity` bytes, as on a GPU.

    expandable: PyTorch's setting expandable_segments:True. divisions: its roundup_power2_divisions, a power of two:
    sizes are rounded up to one of so many between two powers of two, so that holes fit again; 0 for 512 bytes.
    """

    def __init__(self, capacity: int, expandable: bool = False, divisions: int = 0):
        self.capacity = capacity
        self.expandable = expandable
        self.divisions = divisions
        self.segments: list[Segment] = []
        self._address = 0

    @property
    def blocks(self) -> list[Block]:
        return [b for s in self.segments for b in s.blocks]

    @property
    def allocated(self) -> int:
        """Bytes of blocks in use."""
        return sum(s.bytes("used") for s in self.segments)

    @property
    def asked(self) -> int:
        """Bytes in use as they were asked for: less than `allocated` by what rounding wastes."""
        return sum(b.asked for b in self.blocks)

    @property
    def reserved(self) -> int:
        """Bytes taken from the driver, in use or cached."""
        return sum(s.bytes("used", "free") for s in self.segments)

    @property
    def available(self) -> int:
        """Bytes that are not in use, cached here or still with the driver."""
        return self.capacity - self.allocated

    @property
    def largest(self) -> int:
        """The largest piece of those: a cached block, or what the driver has left."""
        return self._largest(self.blocks)

    def _largest(self, blocks: list[Block]) -> int:
        return max(self.capacity - self.reserved, *(b.size for b in blocks if b.state == "free"), 0)

    def malloc(self, nbytes: int, label: str = "") -> Block:
        """A block for `nbytes`. Raises OutOfMemory, and ValueError for less than one byte."""
        if nbytes < 1:
            raise ValueError(f"a block has at least 1 byte, not {nbytes}")
        size = rounded(nbytes, self.divisions)
        block = self._best_fit(size) or self._grow(size)
        if block is None:
            self.empty_cache()
            block = self._grow(size)
        if block is None:
            raise OutOfMemory(
                nbytes, self.available, self._largest(self._kind(size)), self.capacity
            )
        rest = block.size - size
        if rest >= (GRAIN if block.segment.small or self.expandable else SMALL + 1):
            block = block.segment.cut_(block, block.start + size)[0]
        block.state = "used"
        block.label = label
        block.asked = nbytes
        return block

    def free(self, block: Block) -> None:
        """The block is free, and one with its free neighbours. Raises ValueError if it is not in use."""
        if block.state != "used":
            raise ValueError(
                f"the block of {block.size} bytes at {block.start} is {block.state}, not in use"
            )
        block.state = "free"
        block.label = ""
        block.asked = 0
        block.segment.join_()

    def empty_cache(self) -> None:
        """Give back to the driver what no tensor needs: free segments, or the free pages of expandable ones."""
        if not self.expandable:
            self.segments = [s for s in self.segments if s.bytes("used")]
        for segment in self.segments if self.expandable else []:
            page, origin = segment_size(1 if segment.small else SMALL + 1), segment.blocks[0].start
            for block in [b for b in segment.blocks if b.state == "free"]:
                first = origin + up(block.start - origin, page)
                last = origin + (block.end - origin) // page * page
                for part in segment.cut_(block, first, last) if first < last else []:
                    part.state = "unmapped" if first <= part.start < last else "free"
            segment.join_()

    def _best_fit(self, size: int) -> Block | None:
        def fit(block: Block) -> tuple[int, int]:
            """A block that can grow counts as large as it can be: it is taken last."""
            i = block.segment.blocks.index(block) + 1 if self.expandable else 0
            after = block.segment.blocks[i : i + 1] if i else []
            return block.size + sum(b.size for b in after if b.state == "unmapped"), block.start

        fits = [b for b in self._kind(size) if b.state == "free" and b.size >= size]
        return min(fits, key=fit, default=None)

    def _kind(self, size: int) -> list[Block]:
        """The blocks of small segments, or of large ones."""
        return [b for s in self.segments if s.small == (size <= SMALL) for b in s.blocks]

    def _grow(self, size: int) -> Block | None:
        """A free block of at least `size` with memory from the driver, or None if that has too little."""
        if self.expandable:
            return self._grow_by_pages(size)
        new = segment_size(size)
        return (
            self._segment(size <= SMALL, new).blocks[0]
            if self.reserved + new <= self.capacity
            else None
        )

    def _segment(self, small: bool, size: int, state: str = "free") -> Segment:
        segment = Segment(small)
        segment.blocks.append(Block(self._address, size, segment, state))
        self._address += size
        self.segments.append(segment)
        return segment

    def _grow_by_pages(self, size: int) -> Block | None:
        small = size <= SMALL
        page = segment_size(1 if small else SMALL + 1)
        if not self._kind(size):  # addresses cost nothing: more of them than there is memory
            self._segment(small, up(self.capacity + self.capacity // 8, page), "unmapped")
        chain = self._room(size)
        needed, have = [], 0
        for block in chain:
            needed.append(
                min(up(size - have, page), block.size) if block.state == "unmapped" else 0
            )
            have += needed[-1] or block.size
        if not chain or self.reserved + sum(needed) > self.capacity:
            return None
        segment, start = chain[0].segment, chain[0].start
        for block, more in zip(chain, needed, strict=True):
            if more:
                segment.cut_(block, block.start + more)[0].state = "free"
        segment.join_()
        return next(b for b in segment.blocks if b.start == start)

    def _room(self, size: int) -> list[Block]:
        """The lowest neighbours, free or unmapped and the latter among them, with `size` bytes of addresses."""
        blocks = self._kind(size)
        for i, block in enumerate(blocks):
            if block.state == "unmapped":
                first = i - 1 if i and blocks[i - 1].state == "free" else i
                chain: list[Block] = []
                for b in takewhile(lambda b: b.state != "used", blocks[first:]):
                    chain.append(b)
                    if sum(c.size for c in chain) >= size:
                        return chain
        return []
