"""The one place that says who owns what: how many rows each rank gets, where they begin, how a parameter is cut.

Convention everywhere: part i belongs to rank i. Uneven splits give the first ranks one more.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from torch import Tensor, nn

from .arguments import whole


def uneven(total: int, n: int) -> list[int]:
    """Sizes of `n` parts of `total`, as equal as can be: `uneven(10, 4) == [3, 3, 2, 2]`. Parts may be empty.

    ValueError for n < 1, for a negative total, and for anything but whole numbers.

    >>> from minidist.split import uneven
    >>> uneven(10, 4), uneven(2, 3)
    ([3, 3, 2, 2], [1, 1, 0])
    """
    n, total = _checked(n, total)
    if n < 1 or total < 0:
        raise ValueError(f"{total} rows do not split over {n} ranks")
    return [total // n + (i < total % n) for i in range(n)]


def even(total: int, n: int, what: str = "rows") -> list[int]:
    """Sizes of `n` equal parts; ValueError if `n` does not divide `total`, which the message calls `what`.

    >>> from minidist.split import even
    >>> even(12, 4)
    [3, 3, 3, 3]
    >>> even(10, 4, "heads")
    Traceback (most recent call last):
    ValueError: 10 heads do not split over 4 ranks: 10 is not a multiple of 4
    """
    n, total = _checked(n, total)
    if n < 1 or total % n:
        raise ValueError(
            f"{total} {what} do not split over {n} ranks: {total} is not a multiple of {n}"
        )
    return [total // n] * n


def checked_sizes(sizes: list[int] | None, total: int | None, n: int) -> list[int]:
    """The caller's `sizes`, checked against `total` and `n`; without any, equal parts.

    ValueError for another number of sizes than `n`, for a negative one, and for a sum that is not `total`; total=None: any
    sum will do.

    >>> from minidist.split import checked_sizes
    >>> checked_sizes([4, 0, 2], total=6, n=3), checked_sizes(None, total=6, n=3)
    ([4, 0, 2], [2, 2, 2])
    """
    if sizes is None:
        assert total is not None, "without sizes, equal parts are parts of a total"
        return even(total, n)
    try:
        sizes = list(sizes)
    except TypeError:
        raise ValueError(
            f"sizes are a list, a number of rows for each of {n} ranks, not {sizes!r}"
        ) from None
    if len(sizes) != n:
        raise ValueError(f"{len(sizes)} sizes were given for {n} ranks")
    sizes = [
        whole(size, f"each of the sizes {sizes} is a number of rows, at least 0", 0)
        for size in sizes
    ]
    if total is not None and sum(sizes) != total:
        raise ValueError(f"the sizes {sizes} add up to {sum(sizes)}, not to {total} rows")
    return sizes


def _checked(n: int, total: int) -> tuple[int, int]:
    return whole(n, "rows are split over a whole number of ranks"), whole(
        total, "a whole number of rows is split"
    )


def bounds(sizes: list[int]) -> list[tuple[int, int]]:
    """(first, end) of each part, where parts have these sizes and follow each other.

    >>> from minidist.split import bounds
    >>> bounds([3, 2])
    [(0, 3), (3, 5)]
    """
    ends = list(accumulate(sizes))
    return list(zip([0, *ends][: len(sizes)], ends, strict=True))


# ------------------------------------------------------------
# How a parameter is cut: along which dimension, and how much of it each rank has.
#
# A split module says it of each of its parameters: `module.cuts = {"weight": Cut(0, [3, 3, 2]), …}`. What is not named
# there is whole on every rank.


class Cut(NamedTuple):
    """A tensor cut along `dim`: rank r has sizes[r] of it.

    >>> import torch
    >>> from minidist.split import Cut
    >>> weight = torch.arange(6).view(3, 2)  # (3, 2)
    >>> cut = Cut(dim=0, sizes=[2, 1])
    >>> [cut.part(weight, rank).tolist() for rank in (0, 1)]
    [[[0, 1], [2, 3]], [[4, 5]]]
    """

    dim: int
    sizes: list[int]

    def part(self, whole: Tensor, rank: int) -> Tensor:
        """The rank's part of `whole`, a view.

        >>> import torch
        >>> from minidist.split import Cut
        >>> weight = torch.zeros(2, 6)
        >>> Cut(1, [3, 3]).part(weight, rank=1).fill_(1.0).shape
        torch.Size([2, 3])
        >>> weight[0].tolist()
        [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
        """
        first, end = bounds(self.sizes)[rank]
        return whole.narrow(self.dim, first, end - first)

    def shape(self, whole: tuple[int, ...], size: int) -> tuple[int, ...]:
        """The shape of `whole` with `size` along the dimension that is cut.

        >>> from minidist.split import Cut
        >>> Cut(1, [3, 3]).shape((2, 6, 5), 3)
        (2, 3, 5)
        """
        return (*whole[: self.dim], size, *whole[self.dim + 1 :])


def join(*names: str) -> str:
    """The name of a parameter within modules, from the names on the way to it; empty ones do not count.

    >>> from minidist.split import join
    >>> join("mlp", "fc", "weight"), join("", "weight")
    ('mlp.fc.weight', 'weight')
    """
    return ".".join(filter(None, names))


def cuts(module: nn.Module) -> dict[str, Cut]:
    """How each split parameter of `module` is cut, by its full name.

    >>> import torch
    >>> from minidist.split import Cut, cuts
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> model[0].cuts = {"weight": Cut(0, [2, 2, 2])}  # as a ColumnLinear says it
    >>> cuts(model)
    {'0.weight': Cut(dim=0, sizes=[2, 2, 2])}
    """
    return {
        join(prefix, name): cut
        for prefix, child in module.named_modules()
        for name, cut in getattr(child, "cuts", {}).items()
    }
