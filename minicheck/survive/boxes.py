"""The exercise of lesson 18 about resharding: a part of a matrix, put together from the parts that were saved."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike, equal_to
from ..exam import Case, Exam, ask
from ..plain import Other
from ..wrong import Wrong
from .every import FORBIDDEN

Box = tuple[tuple[int, int], tuple[int, int]]  # rows, columns


def cells(shape: tuple[int, int], down: int, across: int) -> list[Box]:
    """A matrix cut into down × across parts, as equal as they can be."""
    cut = lambda size, n: [(size * i // n, size * (i + 1) // n) for i in range(n)]
    return [(rows, columns) for rows in cut(shape[0], down) for columns in cut(shape[1], across)]


class LoadBox(Exam):
    name = "load_box"
    right = "14 pairs of grids, uneven, with replicas and with holes: right numbers, and no byte is read in vain."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(
            1,
            f"saved on {a} × {b}, wanted on {c} × {d}{', each part twice' * (k > 1)}"
            f"{', a part missing' * hole}",
            ((a, b), (c, d), k, hole),
        )
        for a, b, c, d, k, hole in (
            (2, 1, 1, 1, 1, 0),
            (2, 1, 3, 1, 1, 0),
            (1, 1, 2, 2, 1, 0),
            (1, 3, 1, 2, 1, 0),
            (2, 2, 1, 1, 1, 0),
            (2, 2, 3, 3, 1, 0),
            (3, 1, 1, 3, 1, 0),
            (1, 2, 4, 1, 1, 0),
            (7, 1, 2, 1, 1, 0),
            (2, 2, 2, 2, 1, 0),
            (2, 1, 1, 2, 2, 0),
            (2, 2, 3, 1, 3, 0),
            (2, 2, 1, 1, 1, 1),
            (3, 2, 2, 1, 2, 1),
        )
    )

    def draw(self, case, rng):
        saved, wanted, copies, hole = case.given
        one_of = lambda n: int(torch.randint(n, (), generator=rng))
        shape = 7 + one_of(6), 10 + one_of(7)
        parts, boxes = cells(shape, *saved), cells(shape, *wanted)
        lost = one_of(len(parts)) if hole else None
        files = [
            (f"rank-{k * len(parts) + i}", box)
            for k in range(copies)
            for i, box in enumerate(parts)
            if i != lost
        ]
        order = torch.randperm(len(files), generator=rng).tolist()
        return [(numbers(shape, rng), dict(files[i] for i in order), boxes)]

    def run(self, comm: Comm, yours, matrix, files, boxes):
        found = []
        for box in boxes:
            read, log = reader(matrix, files)
            try:
                report = {"value": yours(box, dict(files), read)}
            except ValueError as error:
                report = {"raised": str(error)}
            found.append((report, log))
        return found

    def judge(self, case, args, outcome):
        matrix, files, boxes = args[0]
        if len(outcome.results[0]) != len(boxes):
            raise Wrong("not every box was asked for.")
        for box, (got, log) in zip(boxes, outcome.results[0], strict=True):
            where = f"box {_said(box)}: "
            covered = any_covered(box, files)
            if "raised" in got:
                if covered:
                    raise Wrong(f"{where}raised ValueError: {got['raised']}. It is all there.")
                continue
            if not covered:
                raise Wrong(
                    f"{where}no file has all of it, and there is no ValueError: numbers that nobody saved "
                    "would be trained on."
                )
            _values(where, got["value"], matrix[slice(*box[0]), slice(*box[1])])
            _reads(where, box, files, log)


def numbers(shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    """Random numbers, among them zeros and -1s: no value tells that something is missing."""
    drawn, kind = (
        torch.randn(shape, generator=rng, dtype=torch.float64),
        torch.randint(6, shape, generator=rng),
    )
    return drawn.where(kind > 1, 0.0 - kind.double())


def reader(matrix: Tensor, files: dict[str, Box]):
    """`read` for an answer, and the list of what was read."""
    log: list = []

    def read(name, rows, columns):
        log.append([name, tuple(rows), tuple(columns)])
        (top, bottom), (left, right) = files[name]
        part = matrix[top:bottom, left:right]
        return part[rows[0] : rows[1], columns[0] : columns[1]].clone()

    return read, log


def _said(box: Box) -> str:
    return f"[{box[0][0]}:{box[0][1]}, {box[1][0]}:{box[1][1]}]"


def common(one: Box, other: Box) -> Box:
    """What two boxes share; of a size of 0 or below where they do not meet."""
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def area(box: Box) -> int:
    return max(0, box[0][1] - box[0][0]) * max(0, box[1][1] - box[1][0])


def any_covered(box: Box, files: dict[str, Box]) -> bool:
    """Whether files, equal or apart, have all of a box."""
    return sum(area(common(box, one)) for one in set(files.values())) == area(box)


def _values(where: str, got, want: Tensor) -> None:
    if got is None or isinstance(got, Other) or not isinstance(got, Tensor):
        raise Wrong(f"{where}a tensor is asked for. Is there a `return`?")
    try:
        alike(0, got, want, "it")
    except Wrong as wrong:
        raise Wrong(f"{where}{str(wrong).removeprefix('rank 0: ')}") from None
    if not got.equal(want):
        bad = tuple((got != want).nonzero()[0].tolist())
        words = equal_to(
            got,
            {
                "It is what float32 keeps of it.": want.float().double(),
                "It is what a whole number keeps of it.": want.trunc(),
            },
        ) or (
            "It is zero: was nothing put there?"
            if got[bad] == 0
            else "Rows and columns for `read` count from where the file's box begins, the place in your tensor from where "
            "the wanted box begins."
        )
        raise Wrong(
            f"{where}at {list(bad)} is {got[bad].item()}, and should be {want[bad].item()}. {words}"
        )


def _reads(where: str, box: Box, files: dict[str, Box], log: list) -> None:
    """Raise Wrong for reads of nothing, outside of a file, or of more than is needed."""
    size = 0
    try:
        reads = [
            (name, files[name], tuple(map(int, rows)), tuple(map(int, columns)))
            for name, rows, columns in log
        ]
    except (KeyError, TypeError, ValueError):
        raise Wrong(f"{where}the list of what was read is not what `read` wrote.") from None
    for name, ((top, bottom), (left, right)), rows, columns in reads:
        if not (
            0 <= rows[0] <= rows[1] <= bottom - top
            and 0 <= columns[0] <= columns[1] <= right - left
        ):
            raise Wrong(
                f"{where}rows {rows} and columns {columns} of {name} were read, which has {bottom - top} × "
                f"{right - left}."
            )
        if not area((rows, columns)):
            raise Wrong(f"{where}{name} was opened, and nothing of it is wanted.")
        size += area((rows, columns))
    if size != area(box):
        more = (
            "What several files have is read once."
            if len(set(files.values())) < len(files)
            else "Read the part that is wanted, not the whole file."
        )
        raise Wrong(
            f"{where}the numbers are right, but {size} numbers were read for {area(box)}. {more}"
        )


def load_box(yours) -> None:
    """`load_box(wanted, files, read)`: a part of a matrix, from the files that have parts of it."""
    ask(LoadBox(), yours)
