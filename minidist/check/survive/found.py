"""The exercise of lesson 18 about finding: the newest checkpoint that is whole, and why the others are not used."""

from __future__ import annotations

import json
import pickle
from zlib import crc32

import torch

from ...comm.base import Comm
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle
from .disk import CHANGES, Disk
from .every import FORBIDDEN
from .parts import random_bytes

RANKS = 3


def _edit(disk: dict, step: int, **changes) -> None:
    """Other entries in a manifest that stays readable."""
    name = f"{step}/manifest"
    disk[name] = json.dumps(json.loads(disk[name]) | changes).encode()


def _cut(files, step):
    files[f"{step}/rank-1"] = files[f"{step}/rank-1"][:-1]


def _flip(files, step):
    name = f"{step}/rank-2"
    data = bytearray(files[name])
    data[len(data) // 2] ^= 1
    files[name] = bytes(data)


def _gone(files, step):
    del files[f"{step}/rank-1"]


def _unfinished(files, step):
    del files[f"{step}/manifest"]


def _manifest_cut(files, step):
    files[f"{step}/manifest"] = files[f"{step}/manifest"][:-7]


def _foreign(files, step):
    files[f"{step}/manifest"] = files["40/manifest"]


def _rank_unlisted(files, step):
    sums = json.loads(files[f"{step}/manifest"])["files"]
    _edit(files, step, files={name: pair for name, pair in sums.items() if not name.endswith("-2")})


def _elsewhere(files, step):
    """A manifest that names the parts of another checkpoint, which are whole."""
    sums = {f"40/rank-{r}": [len(files[f"40/rank-{r}"]), crc32(files[f"40/rank-{r}"])] for r in range(RANKS)}
    _edit(files, step, files=sums)


def _pickled(files, step):
    name = f"{step}/manifest"
    files[name] = pickle.dumps(json.loads(files[name]))


def _program(files, step):
    """Python that gives the right dictionary, and does something else on the way."""
    name = f"{step}/manifest"
    files[name] = b"print('hello') or " + files[name]


def _a_list(files, step):
    files[f"{step}/manifest"] = b"[1, 2, 3]"


def _nothing(files, step):
    """It stays as it is."""


def _wrong_all(files, step):
    _cut(files, step)
    _flip(files, step)


DAMAGE = {"nothing is wrong": _nothing, "a part is cut off": _cut, "a bit of a part is flipped": _flip,
          "a part is gone": _gone, "a save was not finished": _unfinished, "a manifest is cut off": _manifest_cut,
          "a manifest of another step": _foreign, "a manifest that lists 2 of 3 ranks": _rank_unlisted,
          "a manifest that lists another step's parts": _elsewhere, "a manifest that was pickled": _pickled,
          "a manifest that is a program": _program, "a manifest that is a list": _a_list,
          "two parts are damaged": _wrong_all}  # fmt: skip


class Newest(Exam):
    name = "newest"
    right = "13 kinds of damage to the newest, to the two newest, and to all: each named; nothing read twice."
    forbidden = FORBIDDEN
    cases = (*(Case(1, what, (what, (100,))) for what in DAMAGE), Case(1, "an empty disk", ("", ())),
             Case(1, "the two newest are damaged", ("a bit of a part is flipped", (90, 100))),
             Case(1, "all are damaged", ("a part is cut off", (9, 40, 90, 100))))  # fmt: skip

    def draw(self, case, rng):
        what, steps = case.given
        files: dict[str, bytes] = {}
        for step in (9, 40, 90, 100) if what else ():  # as words, "9" comes last
            files |= oracle.checkpoint(step, [random_bytes(int(torch.randint(40, 80, (), generator=rng)), rng)
                                              for _ in range(RANKS)])  # fmt: skip
        for step in steps:
            DAMAGE[what](files, step)
        return [({name: data.decode("latin-1") for name, data in files.items()},)]

    def run(self, comm: Comm, yours, files):
        disk = Disk({name: data.encode("latin-1") for name, data in files.items()})
        return {"found": yours(disk), "log": disk.log}

    def judge(self, case, args, outcome):
        files = {name: data.encode("latin-1") for name, data in args[0][0].items()}
        got, log = outcome.results[0]["found"], outcome.results[0]["log"]
        want, refused = oracle.newest(files)
        if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[1], dict):
            raise Wrong("a pair is asked for, (step or None, {file: what is wrong}).")
        if got[0] != want or isinstance(got[0], bool):
            raise Wrong(f"the newest whole checkpoint is {want}, not {got[0]!r}. {_look(got[0], files, refused)}")
        for name in {**refused, **got[1]}:
            if got[1].get(name) != refused.get(name):
                raise Wrong(f"of {name} it says {got[1].get(name)!r}, and should {refused.get(name)!r}. "
                            f"{_means(name, refused.get(name), files)}")  # fmt: skip
        self._cost(log, want, refused)

    def _cost(self, log: list, want: int | None, refused: dict) -> None:
        read = [name for _, call, name, _ in log if call == "read"]
        changed = [name for _, call, name, _ in log if call in CHANGES]
        twice = next((name for name in read if read.count(name) > 1), None)
        parts = [f"{want}/rank-{r}" for r in range(RANKS)] if want is not None else []
        unread = next((name for name in parts if name not in read), None)
        sized = next((name for name in read if refused.get(name) == "size"), None)
        if changed:
            raise Wrong(f"the answers are right, but {changed[0]} was changed: looking changes nothing.")
        if twice:
            raise Wrong(f"the answers are right, but {twice} was read {read.count(twice)} times: a checkpoint has TB.")
        if unread:
            raise Wrong(f"the answers are right, but {unread} was never read with disk.read: whose checksum is it?")
        if sized:
            raise Wrong(f"the answers are right, but {sized} was read: disk.size tells without reading that it is cut.")
        old = [name for name in read if name.startswith("40/")]
        if old and not any(name.startswith("90/") for name in refused):
            raise Wrong(f"the answers are right, but {old[0]} was read: the search ends at the newest that is whole.")


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
        return ("An unfinished save is no damaged one: it is not mentioned." if name.split("/")[0] + "/manifest" not in
                files else "That file is whole, or nobody had to look at it.")  # fmt: skip
    return {"missing": "Each rank below \"ranks\" has a part, step/rank-r: named in the manifest, and on the disk.",
            "size": "Its size is not the manifest's.", "checksum": "Its size is right; zlib.crc32 of it is not.",
            "foreign": "It is readable, and its \"step\" is not that of its folder.",
            "damaged": "It is no JSON with step, ranks and files. (Whoever runs or unpickles it might not see that, "
            "and does what it says.)"}[why]  # fmt: skip


def newest(yours) -> None:
    """`newest(disk)`: the newest whole checkpoint's step, and what is wrong with the files of those after it."""
    ask(Newest(), yours)
