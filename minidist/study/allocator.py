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

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from minidist.comm.costs import called, operator
from minidist.models import TransformerLayer
from minidist.study.picture import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MARGIN,
    MEANING,
    MUTED,
    PURPLE,
    SKY,
    VERMILION,
    WIDTH,
    YELLOW,
    Card,
    Picture,
    card,
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
        return [b for b in self.blocks if b.segment.small == (size <= SMALL)]

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


# ------------------------------------------------------------
# What a program allocates and frees, in order: the input of the simulated allocator.
#
# A dispatch mode sees every operator's result. A storage that is new was allocated; when the last tensor of it dies, it
# is freed. So the order is the real one, on any device and on "meta" for models that no memory here would hold.
# What an operator takes and gives back within itself is not seen.

BEFORE = "there before"


@dataclass(frozen=True)
class Event:
    """Tensor number `tensor` takes `nbytes` bytes, or frees them where `nbytes` is 0. `operator` made it."""

    tensor: int
    nbytes: int
    operator: str


class Recording:
    """Events in order. `lasting`: the numbers of tensors that nobody freed. `peak`: most bytes alive at once."""

    def __init__(self, events: list[Event]):
        self.events = events
        made = {e.tensor for e in events if e.nbytes}
        self.lasting = made - {e.tensor for e in events if not e.nbytes}

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def peak(self) -> int:
        alive = {}
        now = 0
        most = 0
        for e in self.events:
            now += e.nbytes - (0 if e.nbytes else alive.pop(e.tensor))
            if e.nbytes:
                alive[e.tensor] = e.nbytes
            most = max(most, now)
        return most


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.events: list[Event] = []
        self.alive: dict[int, int] = {}  # storage -> tensor number
        self.count, self.on = 0, True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = called(operator(func), func, args, kwargs or {})
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
            weakref.finalize(storage, self.gone, storage._cdata, self.count).atexit = False

    def gone(self, key: int, tensor: int) -> None:
        del self.alive[key]
        if self.on:
            self.events.append(Event(tensor, 0, "free"))


def record(fn: Callable, *args, there: Iterable[Tensor] = ()) -> Recording:
    """Run `fn(*args)` and record what it allocates and frees, forward and backward.

    there: tensors that live before, a model's parameters say: they are allocated first. They and the result of `fn`
    outlive the recording.
    """
    recorder = _Recorder()
    recorder.see(there, BEFORE)
    with recorder:
        result = fn(*args)
    recorder.on = False
    del result
    return Recording(recorder.events)


def replay(recording: Recording, memory: Allocator) -> dict[int, Block]:
    """Allocate and free in the recorded order. Returns the blocks of tensors that are still alive.

    Blocks are labelled "there before", "long-lived" or "short-lived", the last if their tensor dies in the recording.
    Raises OutOfMemory where the allocator does, which is then as it was at that moment.
    """
    blocks: dict[int, Block] = {}
    for e in recording:
        if e.nbytes:
            kind = "long-lived" if e.tensor in recording.lasting else "short-lived"
            blocks[e.tensor] = memory.malloc(e.nbytes, BEFORE if e.operator == BEFORE else kind)
        else:
            memory.free(blocks.pop(e.tensor))
    return blocks


# ------------------------------------------------------------
# Out of memory with a third of it free: a training step that breaks memory into pieces, and what helps.
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


def backward_in_pieces(*, first: bool = False, bucket: int | None = None) -> Recording:
    """The allocations of a training step of 24 transformer layers, fp16, every layer recomputed; run on meta tensors.

    It has 1.2 B parameters: `replay` it into an `Allocator(CARD)`. first: all gradients are views of one
    buffer that was made before. bucket: the buffer for sending is at most so many bytes, reused; None: all at once.
    """
    like = dict(device="meta", dtype=torch.float16)
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

# lines of a picture, if not said; inches of one, and between two
LINES = 16
TALL = 0.2
BETWEEN = 0.07
HOLE, REST = "free, in a segment", "free, with the driver"
# of what has no meaning of its own; none is near the hatching of a hole
HUES = (BLUE, GREEN, PURPLE, YELLOW, SKY)


def blocks(memory: Allocator, *, title: str = "", lines: int = LINES) -> Picture:
    """Draw all `memory.capacity` bytes, in so many lines as one reads: what is in use by label, and what is free.

    A dark mark is where a segment begins. Segments are drawn in the order in which they were taken, addresses
    without memory not at all; what the driver still has comes last. Raises ValueError for lines < 1.
    """
    if lines < 1:
        raise ValueError(f"{memory.capacity} bytes are drawn in 1 line or more, not in {lines}")
    parts = [*_parts(memory)]
    sums = _sums(parts)
    room = WIDTH - 2 * MARGIN
    head, tall = (0.62 if title else 0.25), lines * (TALL + BETWEEN)
    with card(WIDTH, head + tall + 0.5, title) as sheet:
        styles = _styles(sums)
        at = 0
        for label, size, first in parts:
            pieces = list(_pieces(at, size, memory.capacity, lines))
            for row, x, width in pieces:
                y = head + row * (TALL + BETWEEN)
                sheet.box(MARGIN + x * room, y, width * room, TALL, radius=0, **styles[label])
            if first:
                row, x, _ = pieces[0]
                y = head + row * (TALL + BETWEEN) - 0.02
                sheet.box(MARGIN + x * room, y, 0.012, TALL + 0.04, INK, radius=0)
            at += size
        _legend(sheet, sums, styles, memory.capacity)
        return sheet.picture(title, *_text(memory, sums))


def _parts(memory: Allocator):
    """(label, bytes, whether a segment begins here) of each part, as they are drawn."""
    for segment in memory.segments:
        mapped = [b for b in segment.blocks if b.state != "unmapped"]
        for i, block in enumerate(mapped):
            yield _label(block), block.size, i == 0
    if memory.reserved < memory.capacity:
        yield REST, memory.capacity - memory.reserved, False


def _label(block: Block) -> str:
    return HOLE if block.state == "free" else block.label or "in use"


def _sums(parts: list[tuple[str, int, bool]]) -> dict[str, int]:
    """Bytes by label; what is free comes last."""
    found = dict.fromkeys(label for label, _, _ in parts)
    order = [*(w for w in found if w not in (HOLE, REST)), *(w for w in (HOLE, REST) if w in found)]
    return {word: sum(size for label, size, _ in parts if label == word) for word in order}


def _styles(sums: dict[str, int]) -> dict[str, dict]:
    """How each label is drawn: in the colour of its meaning, a hole hatched."""
    used = [word for word in sums if word not in (HOLE, REST)]
    hole = dict(face=mix(VERMILION, 0.14), edge=mix(VERMILION, 0.75), hatch="//////", linewidth=0.5)
    faces = {}
    for i, word in enumerate(used):
        faces[word] = dict(face=mix(MEANING.get(word, HUES[i % len(HUES)]), 0.75))
    return faces | {HOLE: hole, REST: dict(face=FAINT)}


def _pieces(at: int, size: int, capacity: int, lines: int):
    """(line, start, width) of the parts of a block that lie on different lines, in parts of a line's length."""
    while size > 0:
        row = at * lines // capacity
        end = min(at + size, -(-(row + 1) * capacity // lines))
        yield row, at * lines / capacity - row, (end - at) * lines / capacity
        at, size = end, size - (end - at)


def _legend(sheet: Card, sums: dict[str, int], styles: dict[str, dict], capacity: int) -> None:
    x = MARGIN
    for word, size in sums.items():
        text = f"{word} {sized(size, capacity)}"
        sheet.box(x, sheet.height - 0.38, 0.24, TALL, radius=0, **styles[word])
        sheet.word(x + 0.31, sheet.height - 0.28, text, color=MUTED)
        x += inches(text) + 0.6


def _text(memory: Allocator, sums: dict[str, int]):
    holes = sorted((b.size for b in memory.blocks if b.state == "free"), reverse=True)
    segments = f"{memory.reserved:,} B of it in {len(memory.segments)} segments"
    yield f"{memory.capacity:,} B, {segments}"
    for word, size in sums.items():
        yield f"  {word}: {size:,} B"
    if holes:
        largest = f"the largest {holes[0]:,} B; largest piece {memory.largest:,} B"
        yield f"  {len(holes)} holes, {largest}"
