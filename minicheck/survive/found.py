"""The exercise of lesson 18 about finding: the newest checkpoint that is whole, and why the others are not used."""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle
from .damage import DAMAGE
from .disk import CHANGES, honest, watched
from .every import FORBIDDEN
from .parts import random_bytes


class Newest(Exam):
    name = "newest"
    right = "16 kinds of damage to the newest, to the two newest, and to all: each named; nothing read twice."
    forbidden = FORBIDDEN
    cases = (
        *(Case(1, what, (what,)) for what in DAMAGE),
        Case(1, "an empty disk"),
        Case(1, "the two newest are damaged", ("a bit of a part is flipped",) * 2),
        Case(1, "all are damaged", ("a part is cut off",) * 4),
    )

    def draw(self, case, rng):
        steps, files = _steps(rng) if case.given else [], {}
        for step in steps:
            ranks = int(torch.randint(2, 6, (), generator=rng))
            files |= oracle.checkpoint(
                step,
                [
                    random_bytes(int(torch.randint(40, 80, (), generator=rng)), rng)
                    for _ in range(ranks)
                ],
            )
        for what, step in zip(case.given or (), steps):
            DAMAGE[what](files, step)
        return [({name: data.decode("latin-1") for name, data in files.items()},)]

    def run(self, comm: Comm, yours, files):
        disk, log = watched({name: data.encode("latin-1") for name, data in files.items()})
        return {"found": yours(disk), "log": log}

    def judge(self, case, args, outcome):
        files = {name: data.encode("latin-1") for name, data in args[0][0].items()}
        got, log = outcome.results[0]["found"], honest(outcome.results[0]["log"])
        want, refused = oracle.newest(files)
        if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[1], dict):
            raise Wrong("a pair is asked for, (step or None, {file: what is wrong}).")
        step, said = got
        if type(step) not in (int, type(None)) or step != want:
            raise Wrong(
                f"the newest whole checkpoint is {want}, not {step!r:.60}. {_look(step, files, refused)}"
            )
        for name in [*refused, *said]:
            if not isinstance(name, str):
                raise Wrong(
                    f"{name!r:.60} is a key of the dict: its keys are names of files, such as '50/rank-0'."
                )
            word = said.get(name)
            if type(word) not in (str, type(None)) or word != refused.get(name):
                raise Wrong(
                    f"of {name:.60} it says {word!r:.60}, and should {refused.get(name)!r}. "
                    f"{_means(name, refused.get(name), files)}"
                )
        _cost(log, files, want, refused)


def _steps(rng: torch.Generator) -> list[int]:
    """Four steps, the newest first; as words, the oldest comes after all others."""
    within = lambda low, high, n: (low + torch.randperm(high - low, generator=rng)[:n]).tolist()
    return [*within(100, 200, 1), *sorted(within(10, 100, 2), reverse=True), *within(2, 10, 1)]


def _cost(log: list, files: dict, want: int | None, refused: dict) -> None:
    """Raise Wrong if a file was changed, or not read as it should be."""
    read = [name for _, call, name, _ in log if call == "read"]
    changed = [name for _, call, name, _ in log if call in CHANGES]
    twice = next((name for name in read if read.count(name) > 1), None)
    sized = next((name for name in read if refused.get(name) == "size"), None)
    if changed:
        raise Wrong(
            f"the answers are right, but {changed[0]} was changed: looking changes nothing."
        )
    if twice:
        raise Wrong(
            f"the answers are right, but {twice} was read {read.count(twice)} times: a checkpoint has TB."
        )
    for name in files:
        step, what = name.split("/")
        if int(step) == want and name not in read:
            raise Wrong(
                f"the answers are right, but {name} was never read with disk.read: {want} is whole if each "
                "file of it is."
            )
        if want is not None and int(step) < want and name in read:
            raise Wrong(
                f"the answers are right, but {name} was read: the search ends at {want}, the newest that is "
                "whole."
            )
        if what != "manifest" and f"{step}/manifest" in refused and name in read:
            raise Wrong(
                f"the answers are right, but {name} was read: the manifest is {refused[f'{step}/manifest']}, "
                "so that its parts are not looked at."
            )
    if sized:
        raise Wrong(
            f"the answers are right, but {sized} was read: disk.size tells without reading that it is cut."
        )


def _look(got, files: dict, refused: dict) -> str:
    if got is None:
        return "Is an older one looked at when the newest is damaged?"
    if not isinstance(got, int):
        return "A step is an int."
    if f"{got}/manifest" not in files:
        return "That one has no manifest: it was never finished."
    wrong = {name: why for name, why in refused.items() if name.startswith(f"{got}/")}
    if wrong:
        name, why = next(iter(wrong.items()))
        return f"In {got} something is wrong: {name} ({why}). {_means(name, why, files)}"
    return "Compare steps as numbers: as words, '9' comes after '100'."


def _means(name: str, why: str | None, files: dict) -> str:
    if why is None:
        return (
            "An unfinished save is no damaged one: it is not mentioned."
            if name.split("/")[0] + "/manifest" not in files
            else "That file is whole, or nobody had to look at it."
        )
    return {
        "missing": 'Each rank below "ranks" has a part, step/rank-r: named in the manifest, and on the disk.',
        "size": "Its size is not the manifest's.",
        "checksum": "Its size is right; zlib.crc32 of it is not.",
        "foreign": 'It is readable, and its "step" is not that of its folder.',
        "damaged": "It is no JSON with step, ranks and files. (Whoever runs or unpickles it might not see that, "
        "and does what it says.)",
    }[why]


def newest(yours) -> None:
    """`newest(disk)`: the newest whole checkpoint's step, and what is wrong with the files of those after it."""
    ask(Newest(), yours)
