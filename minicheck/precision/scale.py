"""The exercise of lesson 07 about a dynamic scale: it grows, backs off, and goes on where it was saved."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import Other, kind_of
from ..wrong import Wrong
from .kernels import NoKernels
from .oracle import COUNTING, FORBIDDEN, scales
from .rounding import bare


class Scaler(Exam):
    name = "scaler"
    right = "growth and back-off, overflows in a row and at the end of an interval, a loss in fp16, saved and loaded."
    forbidden = FORBIDDEN
    # what, (init, growth, backoff, interval), overflows; None: drawn
    kinds = (
        ("3 good steps", (8.0, 2.0, 0.5, 3), "..."),
        ("an overflow", (8.0, 2.0, 0.5, 3), "..x...."),
        ("saved after 4 good steps of 5", (8.0, 2.0, 0.5, 5), "......"),
        ("two overflows in a row", (2.0**16, 2.0, 0.5, 2), ".xx...."),
        ("other factors", (100.0, 3.0, 0.25, 2), "..x....x"),
        ("no step is good", (4.0, 2.0, 0.5, 5), "xxxx"),
        ("30 steps drawn at random", (2.0**10, 2.0, 0.5, 3), None),
        ("40 steps drawn at random", (2.0**12, 4.0, 0.5, 4), None),
    )
    cases = tuple(Case(1, what, rest) for what, *rest in kinds)
    processes = (Case(2, "saved in one process, loaded in another", ((4.0, 2.0, 0.5, 4), None)),)

    def draw(self, case, rng):
        how, marks = case.given
        count = 40 if "40" in case.what else 30
        found = (
            [m == "x" for m in marks]
            if marks
            else (torch.rand(count, generator=rng) < 0.15).tolist()
        )
        at = 4 if "saved" in case.what else int(torch.randint(1, len(found), (), generator=rng))
        if case.n == 2:
            return [(how, found[:at]), (how, found[at:])]
        loss = 1 + torch.rand((), generator=rng)
        return [(how, found, at, loss, loss.to(torch.float16) * 4)]

    def run(self, comm: Comm, yours, how, found, *rest):
        with NoKernels():
            return (
                self._alone(yours, how, found, *rest)
                if rest
                else self._handed_on(comm, yours, how, found)
            )

    def _handed_on(self, comm: Comm, yours, how, found):
        """Rank 0 saves, rank 1 loads: nothing passes from one to the other but the state, as a JSON file has it."""
        size, mine = torch.zeros(1, dtype=torch.int64), yours(*how)
        if comm.rank:
            comm.recv(size, 0)
            text = torch.empty(int(size), dtype=torch.uint8)
            comm.recv(text, 0)
            mine.load(json.loads(bytes(text.tolist())))
        resumed = [bare(mine.scale)]
        for bad in found:
            mine.update(bad)
            resumed.append(bare(mine.scale))
        if not comm.rank:
            text = torch.tensor(list(json.dumps(mine.state()).encode()), dtype=torch.uint8)
            comm.send(size.fill_(len(text)), 1)
            comm.send(text, 1)
        return resumed

    def _alone(self, yours, how, found, at, loss, half):
        whole = yours(*how)
        one = yours(*how)
        seen = []
        first = bare(whole.scale)
        for bad in found:
            whole.update(bad)
            seen.append(bare(whole.scale))
        for bad in found[:at]:
            one.update(bad)
        state = one.state()
        one.update(True)  # what was saved stays as it is
        other = yours(1.0, how[1], how[2], how[3])
        other.load(state)
        resumed = [bare(other.scale)]
        for bad in found[at:]:
            other.update(bad)
            resumed.append(bare(other.scale))
        fresh, leaf = yours(*how), loss.clone().requires_grad_()
        back = fresh.scaled(leaf)
        if isinstance(back, Tensor) and back.requires_grad:
            back.backward()
        return {
            "first": first,
            "seen": seen,
            "state": state,
            "resumed": resumed,
            "grad": leaf.grad,
            "scaled": [fresh.scaled(loss), fresh.scaled(half)],
        }

    def judge(self, case, args, outcome):
        if case.n == 2:
            (how, found), (_, later) = args
            return self._resumed(
                how, found + later, len(found), {"state": {}, "resumed": outcome.results[1]}
            )
        (how, found, at, loss, half), got = args[0], outcome.results[0]
        marks = "".join("x" if bad else "." for bad in found)
        want = scales(*how, found)
        seen = [number(s) for s in got["seen"]]
        if number(got["first"]) != how[0]:
            raise Wrong(
                f"before any update, scale is {shown(got['first'])}, and should be {how[0]:g}."
            )
        if seen != want:
            i = next(i for i, (a, b) in enumerate(zip(seen, want)) if a != b)
            slips = {text: scales(*how, found, slip) for slip, text in COUNTING.items()}
            slips |= {
                "The factors are the other way round: an overflow makes it smaller.": scales(
                    how[0], how[2], how[1], how[3], found
                ),
                "The factors are those that are given, not 2 and ½.": scales(
                    how[0], 2.0, 0.5, how[3], found
                ),
            }
            hint = next(
                (text for text, wrong in slips.items() if wrong == seen),
                self._hint(found[i], marks[: i + 1]),
            )
            raise Wrong(
                f"steps {marks} (x: overflow), growth {how[1]:g}, backoff {how[2]:g}, interval {how[3]}: "
                f"after step {i} the scale is {shown(got['seen'][i])}, and should be {want[i]:g}. "
                f"{hint}"
            )
        self._scaled(how[0], got["scaled"], loss, half)
        if got["grad"] is None or not got["grad"].equal(torch.tensor(how[0])):
            raise Wrong(
                "scaled(loss) gives the right number, but backward from it does not reach the loss, with a "
                "gradient of the scale: multiply the tensor itself."
            )
        self._resumed(how, found, at, got)

    def _hint(self, bad: bool, marks: str) -> str:
        if bad:
            return "An overflow multiplies it by backoff, each."
        return "It grows after `interval` good steps in a row, counted from the last change."

    def _scaled(self, scale: float, scaled: list, loss: Tensor, half: Tensor) -> None:
        for x, given in zip(scaled, (loss, half), strict=True):
            if not isinstance(x, Tensor):
                kind = kind_of(x)
                what = "None. Is there a `return`?" if x is None else f"something of type {kind}."
                raise Wrong(
                    f"scaled(loss) returns {what} It should return a tensor: backward begins there."
                )
            want = given.float() * scale
            if x.dtype != torch.float32 or not torch.allclose(x, want, rtol=1e-6):
                name = str(given.dtype).removeprefix("torch.")
                hint = (
                    "It is not multiplied."
                    if torch.allclose(x.float(), given.float())
                    else "It is divided."
                    if torch.allclose(x.float(), given.float() / scale)
                    else ""
                )
                if given.dtype == torch.float16:
                    hint = "A loss in fp16 would overflow when it is multiplied: convert it to fp32 first."
                raise Wrong(
                    f"scaled(loss) of a loss of {given.item():g} in {name}, scale {scale:g}, is "
                    f"{x.double().mean():g} in {str(x.dtype)[6:]}, and should be {want.item():g} in float32. "
                    f"{hint}".rstrip()
                )

    def _resumed(self, how: tuple, found: list[bool], at: int, got: dict) -> None:
        if not plain(got["state"]):
            raise Wrong(
                "state() returns what cannot be written to a JSON file: numbers by name are enough."
            )
        whole = scales(*how, found)
        want = [whole[at - 1], *whole[at:]]
        seen = [number(s) for s in got["resumed"]]
        if seen != want:
            alone = [whole[at - 1], *scales(whole[at - 1], *how[1:], found[at:])]
            first = seen[0] != want[0]
            hint = (
                "The scale is not in the state, or not loaded. Or has a later update changed what was saved?"
                if first
                else "The count of good steps belongs to the state: it began again at 0."
                if seen == alone
                else "After load it must go on as if nothing had been."
            )
            marks = "".join("x" if bad else "." for bad in found)
            raise Wrong(
                f"steps {marks}, saved after {at} and loaded into another scaler: its scale goes "
                f"{got['resumed']}, and should go {want}. {hint}"
            )


def number(x) -> float:
    """A scale as a number; nan for anything else."""
    return float(x) if isinstance(x, int | float) and not isinstance(x, bool) else float("nan")


def shown(x) -> str:
    """A scale, or what came in its place, for a message."""
    return f"something of type {x.kind}" if isinstance(x, Other) else repr(x)


def plain(x) -> bool:
    """Whether JSON could hold it."""
    if isinstance(x, dict):
        return all(isinstance(k, str) and plain(v) for k, v in x.items())
    if isinstance(x, list | tuple):
        return all(map(plain, x))
    return x is None or isinstance(x, int | float | str)


def scaler(yours) -> None:
    """`Scaler(init, growth, backoff, interval)`: `.scale`, `.scaled`, `.update`, `.state`, `.load`."""
    ask(Scaler(), yours)
