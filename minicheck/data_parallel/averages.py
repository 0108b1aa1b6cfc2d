"""Are the gradients those of the serial program, on every rank? If not: what does the mistake look like?

Also what an average may cost: by rings, 2(n−1) chunks of each tensor, rank by rank (Patarasuk and Yuan 2009).
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from ..compare import UNKNOWN, alike, ranks
from ..exam import Outcome
from ..wrong import Wrong

Grads = dict[str, Tensor | None]
Looks = dict[str, Tensor]  # what it looks like: the numbers that it would be


def near(got: Tensor, want: Tensor) -> bool:
    """Equal but for rounding, which is relative to the largest number."""
    if got.shape != want.shape:
        return False
    slack = 1e-9 if want.dtype == torch.float64 else 1e-4
    return (
        bool((got.double() - want.double()).abs().max() <= slack * want.abs().max())
        if want.numel()
        else True
    )


def same_gradients(found: list, whole: Grads, looks) -> None:
    """Raise Wrong unless every rank found the serial program's gradients, all ranks the same bit for bit.

    looks: (rank, name) → what a wrong gradient may be.
    """
    for r, got in enumerate(found):
        if not isinstance(got, dict) or got.keys() != whole.keys():
            raise Wrong(f"rank {r}: the module has other parameters than before.")
    # rank 0 last: it may be right by being the root
    for r, name in product(reversed(range(len(found))), whole):
        try:
            _same(r, found[r][name], whole[name], name, lambda r=r, name=name: looks(r, name))
        except Wrong as wrong:
            right = [s for s, got in enumerate(found) if _is_right(got[name], whole[name])]
            raise Wrong(f"{wrong}{f' On {ranks(right)} it is right.' if right else ''}") from None
    for r, got in enumerate(found):
        for name, first in found[0].items():
            if isinstance(first, Tensor) != isinstance(got[name], Tensor):
                raise Wrong(
                    f"{name}.grad is a tensor on one rank and None on another: optimizers will differ."
                )
            if isinstance(first, Tensor) and not first.equal(got[name]):
                raise Wrong(
                    f"the gradients are right but for rounding, and rounding differs: {name}.grad is not the "
                    f"same bit for bit on rank 0 and rank {r}. Do the ranks add up in different orders? The "
                    "replicas would drift apart."
                )


def _is_right(got, want: Tensor | None) -> bool:
    return isinstance(got, Tensor) and isinstance(want, Tensor) and near(got, want)


def _same(rank: int, got, want: Tensor | None, name: str, looks) -> None:
    if want is None:
        if got is not None and not (isinstance(got, Tensor) and not got.any()):
            raise Wrong(
                f"rank {rank}: {name}.grad has numbers, but nothing reaches {name}, or it is frozen."
            )
        return
    if got is None:
        raise Wrong(
            f"rank {rank}: {name}.grad is None. Was it cleared? Or does no sample of this rank reach the "
            "parameter? Then it counts as zeros, and gets the average like all others."
        )
    alike(rank, got, want, f"{name}.grad")
    if not near(got, want):
        worst = int((got - want).abs().nan_to_num(torch.inf).argmax())
        value, right = got.reshape(-1)[worst].item(), want.reshape(-1)[worst].item()
        raise Wrong(
            f"rank {rank}: {name}.grad is wrong, its number {worst} is {value:.6g} and should be {right:.6g}. "
            f"{_said(got, want, looks())}"
        )


def _said(got: Tensor, want: Tensor, looks: Looks) -> str:
    if got.isnan().any():
        return "nan · 0 is nan, and nan + 1, too: set a gradient that must not count to zeros, before it is sent."
    found = next((text for text, x in looks.items() if near(got, x)), None)
    if found:
        return found
    times = float((got * want).sum() / (want * want).sum())
    return f"It is {times:.4g} times what it should be." if near(got, times * want) else UNKNOWN


def usual(rank: int, own: list[Tensor], sent: int) -> Looks:
    """What a wrong average of the ranks' own gradients may be. sent: bytes that this rank sent."""
    n, total = len(own), sum(own)
    hint = (
        "nothing was averaged, or the average is not in p.grad."
        if not sent
        else "something was sent, but p.grad is as before: is it p.grad that you average, in place?"
    )
    used = [r for r in range(n) if own[r].any()]
    looks = (
        {}
        if len(used) in (0, n)
        else {
            f"It is the mean over the {len(used)} of {n} ranks that have one: a missing gradient counts as zeros, and {n} "
            "is what to divide by.": total / len(used)
        }
    )
    looks |= {
        f"It is rank {rank}'s own, as after its backward: {hint}": own[rank],
        f"It is {n} times too large: summed, not averaged?": total,
        f"It is {n} times too small: divided by n twice?": total / n**2,
        f"It is rank {rank}'s own, divided by {n}: the other ranks' are not in it.": own[rank] / n,
        "It is zero: was it cleared before the exchange?": torch.zeros_like(total),
    }
    for r in range(n):
        looks[f"It is rank {r}'s own gradient: all ranks' are to be averaged."] = own[r]
    for there in list(product((0, 1), repeat=n))[1:-1]:
        some, part = [r for r in range(n) if there[r]], sum(g for g, t in zip(own, there) if t)
        lacks = [r for r in range(n) if not there[r]]
        for text, x in (
            ("the mean of", part / len(some)),
            ("the sum of", part),
            (f"1/{n} of the sum of", part / n),
        ):
            looks[f"It is {text} {ranks(some)} only: {ranks(lacks)} did not get in."] = x
    return looks


def untouched(found: list, before: dict[str, Tensor], what: str) -> None:
    """Raise Wrong if weights or buffers are not what they were, on any rank."""
    for r, after in enumerate(found):
        for name, x in before.items():
            if (
                not isinstance(after, dict)
                or not isinstance(after.get(name), Tensor)
                or not after[name].equal(x)
            ):
                raise Wrong(f"rank {r}: {name} itself was changed. {what}")


def ring_bytes(tensors: list[Tensor], n: int) -> int:
    """Bytes of one rank in a ring all-reduce of each tensor: 2(n−1)/n·N, chunks rounded up."""
    return sum(2 * (n - 1) * -(-x.numel() // n) * x.element_size() for x in tensors)


def cheap(
    outcome: Outcome, n: int, tensors: list[Tensor], others: list[Tensor], extra: int = 0
) -> None:
    """Raise Wrong if a rank sends more than one average of `tensors` needs, and `extra` bytes.

    others: parameters that need no average.
    """
    most, idle = ring_bytes(tensors, n) + extra, ring_bytes(others, n)
    for r in range(n):
        sent = outcome.nbytes(r)
        if sent <= most:
            continue
        text = f"the numbers are right, but rank {r} sends {sent} bytes, and 2(n−1)/n·N = {most} are enough."
        if idle and sent >= most + idle // 2:
            raise Wrong(f"{text} Is what is frozen averaged, too?")
        star = [s for s in range(n) if outcome.nbytes(s) < sent]
        if n > 2 and star:
            raise Wrong(f"{text} Rank {star[0]} sends less: is rank {r} the centre of a star?")
        if len(outcome.receivers(r)) > 1:
            raise Wrong(
                f"{text} It sends to {ranks(outcome.receivers(r))}: whole gradients, where chunks are enough?"
            )
        raise Wrong(f"{text} Is something averaged twice (a tied parameter?), or gathered whole?")
