"""The exercises of lesson 09 about numbers of operators: their time on a device, and what fusion saves."""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle
from .judge import FORBIDDEN, kind, number

WALLS = ("launch", "memory", "compute")
DEVICES = (
    {"launch": 5e-6, "bandwidth": 3.35e12, "peak": 67e12},
    {"launch": 4e-6, "bandwidth": 0.9e12, "peak": 125e12},
    {"launch": 2e-6, "bandwidth": 0.4e12, "peak": 5e12},
)


class Roofline(Exam):
    name = "roofline"
    right = "3 devices, 3 walls: seconds, and what bounds."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, f"device {i}, {wall}-bound", (i, wall)) for i in range(3) for wall in WALLS
    )

    def draw(self, case, rng):
        i, wall = case.given
        device, launches = DEVICES[i], int(torch.randint(2, 30, (), generator=rng))
        share = {
            w: 10.0 if w == wall else float(torch.rand((), generator=rng)) * 6 + 2 for w in WALLS
        }
        unit = launches * device["launch"] / share["launch"]
        nbytes, flops = (
            share["memory"] * unit * device["bandwidth"],
            share["compute"] * unit * device["peak"],
        )
        return [(launches, int(nbytes), int(flops), device)]

    def run(self, comm: Comm, yours, launches, nbytes, flops, device):
        return yours(launches, nbytes, flops, device)

    def judge(self, case, args, outcome):
        found, (launches, nbytes, flops, device) = outcome.results[0], args[0]
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise Wrong(
                f"the result is {kind(found)}, and should be seconds and a word. Is there a `return`?"
            )
        (got, word), (want, wall) = found, oracle.seconds(launches, nbytes, flops, device)
        if not number(got) or not isinstance(word, str):
            raise Wrong(
                f"the result is ({kind(got)}, {kind(word)}), and should be a number and a word."
            )
        start = launches * device["launch"]
        memory = nbytes / device["bandwidth"]
        compute = flops / device["peak"]
        looks = {
            start
            + memory
            + compute: "Bytes and FLOPs go on at the same time: the longer of the two counts.",
            device["launch"] + max(memory, compute): "There are several launches.",
            max(memory, compute): "The launches are missing.",
            start + memory: "FLOPs take time, too.",
            start + compute: "Bytes take time, too.",
            max(start, memory, compute): "The launches come on top.",
            start + min(memory, compute): "The longer of the two counts.",
            want * 1e6: "Seconds, not µs.",
            launches * want: "Bytes and FLOPs are those of all launches together.",
            start
            + launches
            * max(memory, compute): "Bytes and FLOPs are those of all launches together.",
        }
        got = max(min(got, 1e300), -1e300)  # an int may be larger than every float
        if not abs(got - want) <= 1e-9 * want:  # nan, too
            said = next(
                (text for value, text in looks.items() if abs(got - value) <= 1e-9 * value), ""
            )
            raise Wrong(
                f"{got:.4g} s, and it should be {want:.4g} s. {said or 'Compare with the formula above.'}"
            )
        if word != wall:
            raise Wrong(
                f"the word is {word!r}, and should be {wall!r}: launches take {start:.3g} s, bytes "
                f"{memory:.3g} s, FLOPs {compute:.3g} s."
            )


class Fused(Exam):
    name = "fused"
    right = "8 graphs: groups, and bytes of each."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, f"graph {i}, {n} operators", n) for i, n in enumerate((1, 3, 6, 6, 9, 9, 12, 12))
    )

    def draw(self, case, rng):
        draw = lambda high: int(torch.randint(high, (), generator=rng))
        names, operators = ["x", "w", "b"], []
        for i in range(case.given):
            product = draw(3) == 0 and i != 2
            recent = names[-4:]
            reads = [recent[-1], recent[draw(len(recent))]] if i else ["x", "w"]
            operators.append(
                (
                    f"{'op' if draw(2) else 'mm'}{i}",
                    "product" if product else "pointwise",
                    reads,
                    f"t{i}",
                )
            )
            names.append(f"t{i}")
        read = {name for one in operators for name in one[2]}
        wanted = [one[3] for one in operators if one[3] not in read or draw(6) == 0]
        sizes = {name: 1000 + 2 ** (i + 3) + draw(7) for i, name in enumerate(names)}
        return [(operators, sizes, wanted)]

    def run(self, comm: Comm, yours, operators, sizes, wanted):
        found = yours(operators, sizes, wanted)
        found = (
            [tuple(one) if isinstance(one, list) else one for one in found]
            if isinstance(found, list)
            else found
        )
        return {"found": found, "given": (operators, sizes, wanted)}

    def judge(self, case, args, outcome):
        (operators, sizes, wanted), got = args[0], outcome.results[0]
        found = got["found"]
        if not isinstance(found, list) or any(
            not isinstance(one, tuple) or len(one) != 2 for one in found
        ):
            raise Wrong(
                f"the result is {kind(found)}, and should be a list of (names, bytes). Is there a `return`?"
            )
        if got["given"] != (operators, sizes, wanted):
            raise Wrong("the arguments were changed, and belong to the caller.")
        want, groups = oracle.fused(operators, sizes, wanted), oracle.runs(operators)
        names, right = [one[0] for one in found], [one[0] for one in want]
        if names != right:
            raise Wrong(
                f"the groups are {names}, and should be {right}. {_grouping(names, operators)}"
            )
        for (_, nbytes), (members, bytes_), group in zip(found, want, groups, strict=True):
            if not number(nbytes) or nbytes != bytes_:
                looks = oracle.byte_looks(group, operators, sizes, wanted)
                said = looks.get(nbytes) if number(nbytes) else None
                shown = nbytes if number(nbytes) else kind(nbytes)
                raise Wrong(
                    f"the group {members} moves {shown} bytes, and should move {bytes_}. "
                    f"{said or 'Count tensors from outside once, and results that somebody outside needs.'}"
                )


def _grouping(names: list, operators: list) -> str:
    """What is wrong with groups."""
    if any(not isinstance(group, list) for group in names):
        return "Each is a list of names."
    flat, kinds = [name for group in names for name in group], {one[0]: one[1] for one in operators}
    if flat != list(kinds):
        return "Each operator is in one group, and the order is that of the list."
    if any(len(group) > 1 and any(kinds[name] == "product" for name in group) for group in names):
        return "A product is a kernel of its own."
    return "Neighbours that are pointwise belong together."


def roofline(yours) -> None:
    """`roofline(launches, nbytes, flops, device)`: (seconds, "launch" | "memory" | "compute")."""
    ask(Roofline(), yours)


def fused(yours) -> None:
    """`fused(operators, sizes, wanted)`: for each group (names, bytes that it moves)."""
    ask(Fused(), yours)
