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

>>> from minidist.study import allocator
>>> memory = allocator.Allocator(40 * 2**20)
>>> blocks = [memory.malloc(9 * 2**20) for _ in range(4)]  # two in each segment of 20 MiB
>>> memory.free(blocks[0])
>>> memory.free(blocks[2])
>>> memory.available // 2**20, memory.largest // 2**20
(22, 9)
>>> memory.malloc(16 * 2**20)
Traceback (most recent call last):
    ...
minidist.study.allocator.OutOfMemory: out of memory: 16 MiB asked for, and 22 MiB of 40 MiB (55%) are free, but the largest piece of that has 9 MiB
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from minidist.arguments import whole
from minidist.comm.costs import Results, operator
from minidist.models import TransformerLayer
from minidist.study.picture import (
    FAINT,
    GREY,
    INK,
    MARGIN,
    WIDTH,
    Picture,
    card,
    colors,
    inches,
    mix,
)
from minidist.study.predict import GiB, MiB

GRAIN = 512  # bytes; every block is a multiple
SMALL = MiB
SMALL_SEGMENT = 2 * MiB
LARGE_SEGMENT = 20 * MiB
ROUND_LARGE = 2 * MiB
OWN_SEGMENT = 10 * MiB  # blocks from here on get a segment of their own size


def sized(nbytes: int, whole: int) -> str:
    """`nbytes` in GiB; in MiB where the `whole` that it is a part of has less than one GiB."""
    return f"{nbytes / GiB:.2f} GiB" if whole >= GiB else f"{nbytes / MiB:.4g} MiB"


class OutOfMemory(RuntimeError):
    """No block of `asked` bytes, though `free` are free: the largest piece for a block of its kind has `largest`."""

    def __init__(self, asked: int, free: int, largest: int, capacity: int):
        self.asked = asked
        self.free = free
        self.largest = largest
        self.capacity = capacity
        super().__init__(
            f"out of memory: {sized(asked, capacity)} asked for, and {sized(free, capacity)} of "
            f"{sized(capacity, capacity)} ({free / capacity:.0%}) are free, but the largest piece of that has "
            f"{sized(largest, capacity)}"
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
        edges = [block.start, *(a for a in at if block.start < a < block.end), block.end]
        parts = [Block(a, b - a, self, block.state) for a, b in pairwise(edges)]
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


def page_size(small: bool) -> int:
    """By which an expandable segment grows."""
    return SMALL_SEGMENT if small else LARGE_SEGMENT


class Allocator:
    """`malloc(nbytes) -> Block` and `free(block)` over `capacity` bytes, as on a GPU.

    expandable: PyTorch's setting expandable_segments:True. divisions: its roundup_power2_divisions, a power of two:
    sizes are rounded up to one of so many between two powers of two, so that holes fit again; 0 for 512 bytes.
    """

    def __init__(self, capacity: int, expandable: bool = False, divisions: int = 0):
        self.capacity = whole(capacity, "a device has at least 1 byte", 1)
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
            return
        for segment in self.segments:
            page, origin = page_size(segment.small), segment.blocks[0].start
            for block in [b for b in segment.blocks if b.state == "free"]:
                first = origin + up(block.start - origin, page)
                last = origin + (block.end - origin) // page * page
                if first < last:
                    for part in segment.cut_(block, first, last):
                        part.state = "unmapped" if first <= part.start < last else "free"
            segment.join_()

    def _kind(self, size: int) -> list[Block]:
        """The blocks of small segments, or of large ones."""
        return [b for b in self.blocks if b.segment.small == (size <= SMALL)]

    def _best_fit(self, size: int) -> Block | None:
        """The smallest that is large enough, of these the lowest; one that can grow counts as large as it can be."""
        blocks = self._kind(size)
        fits = []
        for block, behind in zip_longest(blocks, blocks[1:]):
            if block.state == "free" and block.size >= size:
                growth = behind.size if behind and behind.state == "unmapped" else 0
                fits.append((block.size + growth, block.start, block))
        return min(fits)[-1] if fits else None

    def _grow(self, size: int) -> Block | None:
        """A free block of at least `size` with memory from the driver, or None if that has too little."""
        if self.expandable:
            return self._grow_by_pages(size)
        new = segment_size(size)
        if self.reserved + new > self.capacity:
            return None
        return self._new_segment(size <= SMALL, new, "free").blocks[0]

    def _new_segment(self, small: bool, size: int, state: str) -> Segment:
        segment = Segment(small)
        segment.blocks.append(Block(self._address, size, segment, state))
        self._address += size
        self.segments.append(segment)
        return segment

    def _grow_by_pages(self, size: int) -> Block | None:
        """Give memory to the first pages of the lowest neighbours, free or unmapped, that have `size` addresses."""
        page = page_size(size <= SMALL)
        if not self._kind(size):  # addresses cost nothing: more of them than there is memory
            addresses = up(self.capacity + self.capacity // 8, page)
            self._new_segment(size <= SMALL, addresses, "unmapped")
        for used, neighbours in groupby(self._kind(size), key=lambda b: b.state == "used"):
            unused = list(neighbours)
            if used or sum(b.size for b in unused) < size:
                continue
            missing = size
            more: dict[Block, int] = {}
            for block in unused:
                if block.state == "unmapped" and missing > 0:
                    more[block] = min(up(missing, page), block.size)
                missing -= more.get(block, block.size)
            if self.reserved + sum(more.values()) > self.capacity:
                return None
            start, segment = unused[0].start, unused[0].segment
            for block, nbytes in more.items():
                segment.cut_(block, block.start + nbytes)[0].state = "free"
            segment.join_()
            return next(b for b in segment.blocks if b.start == start)
        return None


# ------------------------------------------------------------
# What a program allocates and frees, in order: the input of the simulated allocator.
#
# A dispatch mode sees every operator's result. A storage that is new was allocated; when the last tensor of it dies, it
# is freed. So the order is the real one, on any device and on "meta" for models that no memory here would hold.
# What an operator takes and gives back within itself is not seen.

BEFORE = "there before"


class Event(NamedTuple):
    """Tensor number `tensor` takes `nbytes` bytes, or frees them where `nbytes` is 0. `operator` made it."""

    tensor: int
    nbytes: int
    operator: str


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.alive: dict[int, int] = {}  # storage -> tensor number
        self.count = 0
        self.results = Results()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = self.results.call(operator(func), func, args, kwargs or {})
        self.see(tree_leaves(out), str(func))
        return out

    def see(self, leaves: Iterable, operator: str) -> None:
        for tensor in leaves:
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is None or not storage.nbytes() or storage._cdata in self.alive:
                continue
            self.count += 1
            self.alive[storage._cdata] = self.count
            self.events.append(Event(self.count, storage.nbytes(), operator))
            weakref.finalize(storage, self.gone, storage._cdata).atexit = False

    def gone(self, key: int) -> None:
        self.events.append(Event(self.alive.pop(key), 0, "free"))


def record(fn: Callable, *args, there: Iterable[Tensor] = ()) -> list[Event]:
    """Run `fn(*args)` and record what it allocates and frees, in order, forward and backward.

    there: tensors that exist beforehand, such as a model's parameters: they are recorded as allocated first. They and
    the result of `fn` outlive the recording.
    """
    recorder = _Recorder()
    recorder.see(there, BEFORE)
    with recorder:
        result = fn(*args)
    events = list(recorder.events)
    del result
    return events


def replay(events: Sequence[Event], memory: Allocator) -> dict[int, Block]:
    """Allocate and free in the recorded order. Returns the blocks of tensors that are still alive.

    Blocks are labelled "there before", "long-lived" or "short-lived", the last if their tensor dies in the recording.
    Raises OutOfMemory where the allocator does, which is then as it was at that moment.
    """
    freed = {event.tensor for event in events if not event.nbytes}
    blocks: dict[int, Block] = {}
    for event in events:
        if not event.nbytes:
            memory.free(blocks.pop(event.tensor))
            continue
        label = "short-lived" if event.tensor in freed else "long-lived"
        if event.operator == BEFORE:
            label = BEFORE
        blocks[event.tensor] = memory.malloc(event.nbytes, label)
    return blocks


# ------------------------------------------------------------
# Out of memory with two fifths of it free: a training step that breaks memory into pieces, and what helps.
#
# Backward, with layers recomputed, allocates in turn what lives for a moment (a layer's activations and their gradients)
# and what stays (gradients of parameters). A gradient goes where an activation just died, and what is left of that
# block is too small for the next activation, which takes new memory. In the end a flat buffer for all gradients is
# asked for: enough is free, but not in one piece (ZeRO, section 3.2, "memory fragmentation", and section 6.3, M_D).
#
# What helps: gradients in one buffer made beforehand, M_D; expandable segments; sizes rounded, so that holes fit
# again; and asking for less at a time, buckets.

SHAPE = (4, 2752, 2048, 16)  # batch, tokens, hidden, heads
CARD = 8 * GiB - 256 * MiB  # a card of 8 GiB, of which the driver and the kernels take a part


def backward_in_pieces(*, first: bool = False, bucket: int | None = None) -> list[Event]:
    """The allocations of a training step of 24 transformer layers, fp16, every layer recomputed; run on meta tensors.

    It has 1.2 B parameters: `replay` it into an `Allocator(CARD)`. first: all gradients are views of one
    buffer that was made before. bucket: the buffer for sending is at most so many bytes, reused; None: all at once.
    """
    like: dict[str, Any] = dict(device="meta", dtype=torch.float16)
    batch, tokens, hidden, heads = SHAPE
    model = nn.ModuleList(TransformerLayer(hidden, heads, **like) for _ in range(24))
    params = list(model.parameters())
    sizes = [p.numel() for p in params]

    def step() -> torch.Tensor:
        if first:
            flat = torch.empty(sum(sizes), **like)
            for p, part in zip(params, flat.split(sizes), strict=True):
                p.grad = part.view_as(p)
        x = torch.empty(batch, tokens, hidden, requires_grad=True, **like)
        for layer in model:
            x = checkpoint(layer, x, use_reentrant=False)
        x.sum().backward()
        del x
        return torch.empty(sum(sizes) if bucket is None else bucket // 2, **like)

    return record(step, there=params)


# ------------------------------------------------------------
# A picture of the allocator's memory: blocks as they lie, in lines, and the holes between them.

# inches of a line, and between two
TALL = 0.2
BETWEEN = 0.07
ROOM = WIDTH - 2 * MARGIN
HOLE, REST = "free, in a segment", "free, with the driver"


def blocks(memory: Allocator, *, title: str = "", lines: int = 16) -> Picture:
    """Draw all `memory.capacity` bytes, in so many lines as one reads: what is in use by label, and what is free.

    A dark mark is where a segment begins. Segments are drawn in the order in which they were taken, addresses
    without memory not at all; what the driver still has comes last. Raises ValueError for lines < 1.
    """
    if lines < 1:
        raise ValueError(f"{memory.capacity} bytes are drawn in 1 line or more, not in {lines}")
    parts = parts_of(memory)
    labels = dict.fromkeys(label for label, _, _ in parts)
    free = [label for label in (HOLE, REST) if label in labels]
    used = [label for label in labels if label not in free]
    styles: dict[str, dict[str, Any]] = {
        label: dict(face=mix(color, 0.75)) for label, color in colors(used).items()
    }
    styles[HOLE] = dict(face=FAINT, edge=GREY, hatch="//////", linewidth=0.5)
    styles[REST] = dict(face=FAINT)
    head = 0.62 if title else 0.25
    height = head + lines * (TALL + BETWEEN) + 0.5
    text = [
        f"{memory.capacity:,} B, {memory.reserved:,} B of it in {len(memory.segments)} segments"
    ]
    with card(WIDTH, height, title) as sheet:
        at = 0
        for label, size, first in parts:
            for row, x, width in pieces_of(at, size, memory.capacity, lines):
                left, wide = MARGIN + x * ROOM, width * ROOM
                y = head + row * (TALL + BETWEEN)
                sheet.box(left, y, wide, TALL, radius=0, **styles[label])
                if first:
                    sheet.box(left, y - 0.02, 0.012, TALL + 0.04, INK, radius=0)
                    first = False
            at += size
        x = MARGIN
        for label in used + free:
            nbytes = sum(size for name, size, _ in parts if name == label)
            words = f"{label} {sized(nbytes, memory.capacity)}"
            sheet.box(x, height - 0.38, 0.24, TALL, radius=0, **styles[label])
            sheet.note(x + 0.31, height - 0.28, words)
            x += inches(words) + 0.6
            text.append(f"  {label}: {nbytes:,} B")
        holes = [size for label, size, _ in parts if label == HOLE]
        if holes:
            words = f"the largest {max(holes):,} B; largest piece {memory.largest:,} B"
            text.append(f"  {len(holes)} holes, {words}")
        return sheet.picture(title, *text)


def parts_of(memory: Allocator) -> list[tuple[str, int, bool]]:
    """(label, bytes, whether a segment begins here) of each part, as they are drawn."""
    parts = []
    for segment in memory.segments:
        mapped = [b for b in segment.blocks if b.state != "unmapped"]
        for block in mapped:
            label = HOLE if block.state == "free" else block.label or "in use"
            parts.append((label, block.size, block is mapped[0]))
    if memory.reserved < memory.capacity:
        parts.append((REST, memory.capacity - memory.reserved, False))
    return parts


def pieces_of(at: int, size: int, capacity: int, lines: int) -> Iterator[tuple[int, float, float]]:
    """(line, start, width) of the parts of a block that lie on different lines, in parts of a line's length."""
    while size > 0:
        row = at * lines // capacity
        end = min(at + size, -(-(row + 1) * capacity // lines))
        yield row, at * lines / capacity - row, (end - at) * lines / capacity
        at, size = end, size - (end - at)
