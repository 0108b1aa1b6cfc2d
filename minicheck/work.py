"""The work of somebody who studies alone: copies of the assignments that are theirs, and how far they have come.

    exercises/NN_name/     as the course hands it out; an update of the course changes it
    work/NN_name/          the student's copy, from `make work`; git ignores it, and `renew` alone changes what is there
    work/.minicheck.json   what each copy was taken from, and the marks of what has been examined

Invariant: no word of a student's is lost. A copy is replaced only while it is as it was handed out; `renew` puts the
answers into the new text, and the old notebook stays beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .grade import digest_of_grading, questions
from .notebook import ROOT, Mark, by_hand, examine, grade_id_of, is_test, nbgrader_of, source_of
from .submission import Unreadable, read, restored
from .tables import earned

STATE = ".minicheck.json"
MARKS = {"right": "✓", "in part": "◐", "wrong": "✗", "not begun": "·", "answered": "○"}
DONE = ("right", "answered")


class Exercise(NamedTuple):
    """state: a key of MARKS; an open question is "not begun" or "answered". why: what is wrong with a wrong answer."""

    name: str
    state: str
    got: float
    of: float
    why: str = ""
    by_hand: bool = False


# ------------------------------------------------------------
# Which notebook.


def assignments(root: Path = ROOT) -> list[str]:
    """The names of all assignments, in the order of the course."""
    return sorted(p.stem for p in root.glob("exercises/*/*.ipynb") if p.stem == p.parent.name)


def named(name: str, root: Path = ROOT) -> Path | None:
    """The notebook of `06_buckets`, `buckets` or `06`: the one in work/ if there is one, then the one handed out."""
    found = [known for known in assignments(root) if name in (known, *known.split("_", 1))]
    return _at(root, found[0]) if found else None


def _at(root: Path, name: str) -> Path:
    own = root / "work" / name / f"{name}.ipynb"
    return own if own.exists() else root / "exercises" / name / f"{name}.ipynb"


# ------------------------------------------------------------
# What a copy was taken from.


def _state(root: Path) -> dict:
    """`taken` by assignment: `cells`, the digest of each source by the cell's identifier; `parts`; `begun`, whether the
    copy had answers from the start. And `marks`."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads((root / "work" / STATE).read_text(encoding="utf-8"))
    return {"taken": {}, "marks": {}}


def _write(path: Path, content: dict) -> None:
    """At once or not at all: whoever interrupts it has the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, path)


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _solves(cell: dict) -> bool:
    return bool(nbgrader_of(cell).get("solution"))


def _cells(notebook: dict) -> dict[str, str]:
    return {
        cell.get("id", str(i)): _digest(source_of(cell)) for i, cell in enumerate(notebook["cells"])
    }


def _parts(handed_out: dict, asked: dict) -> dict[str, str]:
    """Of each exercise the digest of all that is said and asked, up to its test cell; answers count as they were asked."""
    stubs = {grade_id_of(cell): source_of(cell) for cell in asked["cells"]}
    found: dict[str, str] = {}
    texts: list[str] = []
    for cell in handed_out["cells"]:
        texts.append(stubs.get(grade_id_of(cell), "") if _solves(cell) else source_of(cell))
        if _asks(cell, asked):
            found[_exercise(cell)] = _digest(*texts)
            texts.clear()
    return found


def changes(name: str, root: Path = ROOT) -> list[str]:
    """The exercises of a copy that the course has changed, added or left out since it was taken."""
    taken = _state(root)["taken"].get(name)
    if taken is None:
        return []
    old, new = taken["parts"], _parts(_handed_out(root, name), questions(name))
    return [exercise for exercise in {**old, **new} if old.get(exercise) != new.get(exercise)]


def _handed_out(root: Path, name: str) -> dict:
    return read(root / "exercises" / name / f"{name}.ipynb")


# ------------------------------------------------------------
# `make work`: copies, and what has changed since.


def take(root: Path = ROOT) -> Iterator[str]:
    """Copy each assignment that has no copy yet, and say what has happened, a line each."""
    state = _state(root)
    fresh = 0
    for name in assignments(root):
        own = root / "work" / name / f"{name}.ipynb"
        taken = state["taken"].get(name)
        if not own.exists():
            fresh += 1
            _copy(root, name, state)
            continue
        changed = changes(name, root)
        if changed:
            if not taken["begun"] and _cells(read(own)) == taken["cells"]:
                _copy(root, name, state)
                yield f"{name} has changed ({', '.join(changed)}); you had not begun it, so you have the new one."
            else:
                yield (
                    f"{name} has changed: {', '.join(changed)}. Your work is as it was. To have your answers in the "
                    f"new text: make work RENEW={name}"
                )
    if fresh:
        yield f"{fresh} assignments were copied to work/. What you write there is yours: git and updates leave it alone."
    _write(root / "work" / STATE, state)


def _copy(root: Path, name: str, state: dict) -> None:
    """All that lies beside the notebook comes with it."""
    shutil.copytree(root / "exercises" / name, root / "work" / name, dirs_exist_ok=True)
    _take(root, name, state)


def _take(root: Path, name: str, state: dict) -> None:
    handed_out, asked = _handed_out(root, name), questions(name)
    cells = _cells(handed_out)
    # somebody may have worked in exercises/ before
    begun = any(_begun(handed_out, asked).values())
    begun |= not all(identifier.startswith("assignment-") for identifier in cells)
    parts = _parts(handed_out, asked)
    state["taken"][name] = {"cells": cells, "parts": parts, "begun": begun}


def renew(name: str, root: Path = ROOT) -> Path:
    """Put the answers of a copy, and the cells that were added, into what the course hands out now.

    Returns where the old notebook lies. ValueError if there is no copy.
    """
    own = root / "work" / name / f"{name}.ipynb"
    state = _state(root)
    if not own.exists() or name not in state["taken"]:
        raise ValueError(f"work/{name} is not there, or was not made by `make work`")
    answered, handed_out = read(own), _handed_out(root, name)
    known = set(state["taken"][name]["cells"].values())
    answers: dict[str, str] = {}
    added: dict[str, list[dict]] = {}
    place = ""
    for cell in restored(answered, handed_out)[0]["cells"]:
        if not cell.get("id", "").startswith("handed-in-"):
            place = cell["id"]
            answers[place] = source_of(cell)
        elif _digest(source_of(cell)) not in known:
            added.setdefault(place, []).append(cell)
    cells = added.get("", [])
    for cell in handed_out["cells"]:
        if _solves(cell):
            cell["source"] = answers.get(cell["id"], cell["source"])
        cells = [*cells, cell, *added.get(cell["id"], [])]
    number = 1 + sum(1 for _ in own.parent.glob("*.before-*.ipynb"))
    old = own.with_name(f"{name}.before-{number}.ipynb")
    shutil.copy(own, old)
    _write(own, {**handed_out, "cells": cells})
    _take(root, name, state)
    _write(root / "work" / STATE, state)
    return old


# ------------------------------------------------------------
# `python -m minicheck`: how far one has come.


def look(
    name: str, root: Path = ROOT, say: Callable[[str], None] = lambda name: None
) -> list[Exercise]:
    """The exercises of an assignment as they stand now. say: told its name before it is examined, which takes a while.

    Nothing runs of a notebook without answers, or of one that has been examined before and has not changed since.
    """
    asked = questions(name)
    answered = read(_at(root, name))
    begun = _begun(answered, asked)
    state = _state(root)
    code = _digest(*[source_of(c) for c in answered["cells"] if c["cell_type"] == "code"])
    key = [code, digest_of_grading(asked)]
    known = state["marks"].get(name, {"key": None, "marks": []})
    to_examine = [
        exercise for exercise in begun if begun[exercise] and exercise not in by_hand(asked)
    ]
    if known["key"] != key and to_examine:
        say(name)
        known = {"key": key, "marks": [list(m) for m in examine(answered, asked, None).marks]}
        state["marks"][name] = known
        _write(root / "work" / STATE, state)
    marks = {}
    if known["key"] == key:
        marks = {mark.exercise: mark for mark in (Mark(*given) for given in known["marks"])}
    return [
        Exercise(exercise, "answered" if begun[exercise] else "not begun", 0, of, by_hand=True)
        if exercise in by_hand(asked)
        else _examined(exercise, of, begun[exercise], marks.get(exercise))
        for exercise, of in _worth(asked).items()
    ]


def _examined(exercise: str, of: float, begun: bool, mark: Mark | None) -> Exercise:
    if not begun or mark is None:
        return Exercise(exercise, "not begun", 0, of)
    if not mark.wrong:
        return Exercise(exercise, "right", of, of)
    got = earned(mark)
    return Exercise(exercise, "in part" if got else "wrong", got, of, mark.wrong)


def _worth(asked: dict) -> dict[str, float]:
    """The points of each exercise, open ones as well, in order."""
    return {
        _exercise(cell): nbgrader_of(cell)["points"]
        for cell in asked["cells"]
        if _asks(cell, asked)
    }


def _asks(cell: dict, asked: dict) -> bool:
    """Whether an exercise ends with this cell."""
    return is_test(cell) or grade_id_of(cell) in by_hand(asked)


def _exercise(test: dict) -> str:
    return grade_id_of(test).removesuffix("_test")


def _begun(answered: dict, asked: dict) -> dict[str, bool]:
    """Of each exercise, whether one of its answers is no longer as it was handed out."""
    mine = _answers(answered, asked)
    stubs = _answers({**asked, "metadata": {"kernelspec": {}}}, asked)  # as somebody hands it in
    found: dict[str, bool] = {}
    written = False
    for cell in asked["cells"]:
        written |= mine.get(grade_id_of(cell)) != stubs.get(grade_id_of(cell))
        if _asks(cell, asked):
            found[_exercise(cell)] = written
            written = False
    return found


def _answers(notebook: dict, asked: dict) -> dict[str, str]:
    """The source of each cell for an answer, as `restored` finds it."""
    cells = restored(notebook, asked)[0]["cells"]
    return {grade_id_of(cell): source_of(cell).strip() for cell in cells if _solves(cell)}


def overview(
    root: Path = ROOT, width: int = 100, say: Callable[[str], None] = lambda name: None
) -> Iterator[str]:
    """All exercises, how each stands, and what is next, line by line."""
    names = assignments(root)
    widest = max(map(len, names), default=0)
    got = of = 0.0
    found: dict[str, list[Exercise]] = {}
    for name in names:
        try:
            exercises = found[name] = look(name, root, say)
        except Unreadable as why:
            yield f"{name:<{widest}}  cannot be read: {why}"
            continue
        graded = [e for e in exercises if not e.by_hand]
        points, most = sum(e.got for e in graded), sum(e.of for e in graded)
        got, of = got + points, of + most
        words = [f"{MARKS[e.state]} {e.name}" for e in exercises]
        yield from _wrapped(f"{name:<{widest}}  {points:>4g}/{most:<3g}", words, width)
    yield ""
    yield "   ".join(f"{sign} {state}" for state, sign in MARKS.items())
    yield f"{got:g} of {of:g} points."
    yield from _next(root, found)
    for name in names:
        changed = changes(name, root)
        if changed:
            yield f"{name} has changed since you took it ({', '.join(changed)}): make work RENEW={name}"


def _wrapped(head: str, words: list[str], width: int) -> Iterator[str]:
    line = head
    for word in words:
        if len(line) + 2 + len(word) > width and line.strip():
            yield line
            line = " " * len(head)
        line = f"{line}  {word}"
    yield line


def _next(root: Path, found: dict[str, list[Exercise]]) -> Iterator[str]:
    """The first exercise that is left of an assignment that is begun; else of the first that is not."""
    left = {name: [e for e in found[name] if e.state not in DONE] for name in found}
    open_ones = [name for name in found if left[name]]
    if not open_ones:
        yield "All is done."
        return
    begun = [name for name in open_ones if any(e.state != "not begun" for e in found[name])]
    name = [*begun, *open_ones][0]
    exercise = left[name][0]
    path = _at(root, name).relative_to(root)
    yield f"Next: {exercise.name} in {path}, after the lesson in notebooks/{name}.ipynb"
    if exercise.why:
        yield f"It is not right yet: {exercise.why}"
