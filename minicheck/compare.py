"""Is a tensor what it should be? If not: where, and what does the mistake look like?

Numbers are drawn as large whole numbers, so that sums are exact in any order, and a wrong sum betrays
which ranks went into it: with n ranks there are few combinations, and one of them fits.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from .plain import kind_of
from .wrong import Wrong

UNKNOWN = "It looks like no usual mistake."
LARGEST = 10**6  # sums of 16 of them are exact in float32


def whole(shape, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """Random whole numbers, exact in float32, float64 and integers."""
    return torch.randint(1, LARGEST, tuple(shape), generator=rng).to(dtype)


def same(rank: int, got, want: Tensor, name: str, guess=None) -> None:
    """Raise Wrong unless `got` equals `want` in type, shape, dtype and every number.

    name: what it is, in the message ("chunk 1").  guess: got → a sentence on what it looks like, or None.
    """
    alike(rank, got, want, name)
    if got.equal(want):
        return
    where = (got != want).reshape(-1).nonzero()[:, 0].tolist()
    flat, right = got.reshape(-1), want.reshape(-1)
    indexed = got.dim() == 1 and " " not in name
    first = (
        f"{name}[{where[0]}]" if indexed else f"number {where[0]} of {name}" if got.dim() else name
    )
    count = "" if got.numel() == 1 else f" ({len(where)} of {got.numel()} numbers are wrong)"
    text = f"rank {rank}: {first} is {_number(flat[where[0]])}, and should be {_number(right[where[0]])}{count}."
    raise Wrong(f"{text} {(guess(got) if guess else None) or UNKNOWN}")


def _number(x: Tensor) -> str:
    value = x.item()
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return str(int(value)) if whole else f"{value:.8g}"


def alike(rank: int, got, want: Tensor, name: str) -> None:
    """Raise Wrong unless `got` is a tensor of `want`'s shape and dtype."""
    if got is None:
        raise Wrong(f"rank {rank}: {name} is None. Is there a `return`?")
    if not isinstance(got, Tensor):
        kind = kind_of(got)
        raise Wrong(f"rank {rank}: {name} is of type {kind}, and should be a tensor.")
    for what, is_, should in (
        ("shape", tuple(got.shape), tuple(want.shape)),
        ("dtype", got.dtype, want.dtype),
    ):
        if is_ != should:
            raise Wrong(f"rank {rank}: {name} has {what} {is_}, and should have {should}.")


def unchanged(rank: int, after, before: Tensor, name: str) -> None:
    """Raise Wrong if an argument was written to."""
    if not isinstance(after, Tensor) or after.shape != before.shape or not after.equal(before):
        raise Wrong(f"rank {rank}: {name} was changed, and belongs to the caller: work on a copy.")


def who(got: Tensor, parts: list[Tensor], rank: int) -> str | None:
    """Which ranks' numbers went into `got`, where rank r's are `parts[r]`: a sentence, or None.

    Tries every combination in which each rank counts 0, 1 or 2 times, and the average.
    """
    n = len(parts)
    if not got.numel() or any(p.shape != got.shape for p in parts):
        return None
    total = sum(p.double() for p in parts)
    if (
        n > 1
        and torch.allclose(got.double() * n, total, rtol=1e-5, atol=n)
        and not got.double().equal(total)
    ):
        return "It is the average: the sum is asked for."
    for r, part in enumerate(parts):
        if n > 2 and got.equal(n * part):
            return f"It is {n} times rank {r}'s: nothing of the other ranks is in it."
    for times in product((0, 1, 2), repeat=n):
        if got.double().equal(sum(t * p.double() for t, p in zip(times, parts))):
            return _counted(times, rank)
    return None


def _counted(times: tuple[int, ...], rank: int) -> str | None:
    n, there = len(times), [r for r, t in enumerate(times) if t]
    absent, twice = [r for r in range(n) if not times[r]], [r for r in there if times[r] == 2]
    if not there:
        return "It is zero: was nothing put into it?"
    if there == [rank] and not twice:
        return f"It is rank {rank}'s own, as before: nothing arrived, or what arrived was not used."
    if len(there) == 1 and not twice:
        return f"It is rank {there[0]}'s."
    parts = ([f"counts {ranks(twice)} twice"] if twice else []) + (
        [f"lacks {ranks(absent)}"] if absent else []
    )
    hint = " One step short?" if len(absent) == 1 and not twice else ""
    return (
        f"It is a sum that {' and '.join(parts)}.{hint}"
        if parts
        else "It is the sum over all ranks."
    )


def ranks(some: list[int]) -> str:
    """`rank 1`, `ranks 0, 2 and 3`."""
    if len(some) == 1:
        return f"rank {some[0]}"
    return f"ranks {', '.join(map(str, some[:-1]))} and {some[-1]}"


def equal_to(got: Tensor, candidates: dict[str, Tensor]) -> str | None:
    """The first sentence whose tensor `got` equals."""
    return next(
        (
            text
            for text, x in candidates.items()
            if got.shape == x.shape and got.numel() and got.equal(x)
        ),
        None,
    )
