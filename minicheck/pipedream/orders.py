"""The exercises of lesson 14 about lists: PipeDream's, and what can be read from any list with updates.

Source: Narayanan et al. 2019, "PipeDream", sections 3.2 and 3.3.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm
from minidist.parallel.schedules import Action

from ..exam import Case, Exam, ask
from ..pipelines.orders import in_time, keeps
from ..pipelines.words import FORBIDDEN as BEFORE
from ..pipelines.words import Lists, in_order, said
from ..plain import kind_of
from ..wrong import Wrong
from .oracle import before, updated

FORBIDDEN = (*BEFORE, "minicheck.pipedream.oracle")


class NoFlush(Lists):
    name = "no_flush"
    forbidden = FORBIDDEN
    right = "1 to 12 stages, 1 to 27 micro-batches: valid, no flush, an update after each backward, S − stage kept."

    def allowed(self, stage, action):
        if action.kind not in "FBU":
            raise Wrong(f"stage {stage}: {action} is none of F, B and U: here backwards are whole.")

    def judged(self, lists, S, M):
        for stage, actions in enumerate(lists):
            _updates(stage, actions, M)
        keeps(lists, [min(M, S - stage) for stage in range(S)], "S − stage")
        in_time(
            lists,
            3 * (M + S - 1),
            f"3(M + S − 1) = {3 * (M + S - 1)}",
            "F takes 1, B takes 2, and U nothing",
        )
        for stage, actions in enumerate(lists):
            for kind, noun in (("F", "Forwards come"), ("B", "Backwards come")):
                in_order(stage, actions, kind, noun)


def _updates(stage: int, actions: list[Action], M: int) -> None:
    """Raise Wrong unless each backward is followed by its update at once."""
    count = sum(a.kind == "U" for a in actions)
    if count != M:
        flush = " One update at the end is a flush." if count == 1 else ""
        raise Wrong(
            f"stage {stage}: updates: {count}, for {M} micro-batches. Each micro-batch has its own.{flush}"
        )
    for i, action in enumerate(actions):
        after = actions[i + 1] if i + 1 < len(actions) else None
        if action.kind == "B" and after != Action("U", action.micro):
            raise Wrong(
                f"stage {stage}: after {action} comes {after}, and should come U{action.micro}: what comes "
                "between them meets weights that are older than they need to be."
            )


SHAPES = (
    ("1f1b", 4, 8, 1),
    ("1f1b", 2, 5, 1),
    ("1f1b", 1, 3, 1),
    ("1f1b", 4, 2, 1),
    ("1f1b", 3, 12, 3),
    ("gpipe", 3, 4, 1),
    ("naive", 3, 4, 1),
    ("last in", 2, 13, 1),
    ("1f1b", 6, 20, 2),
)
NAMES = {
    "1f1b": "one forward, one backward",
    "gpipe": "all forwards first",
    "naive": "one micro-batch at a time",
    "last in": "the last forward goes back first",
}


class OfLists(Exam):
    """An answer reads lists of words. given: (kind, S, M, every)."""

    forbidden = FORBIDDEN
    step = 2.0
    cases = (
        *(
            Case(1, f"{said(S, M)}, {NAMES[kind]}, an update every {every}", (kind, S, M, every))
            for kind, S, M, every in SHAPES
        ),
        Case(1, "a schedule drawn at random"),
    )

    def rows(self, case, rng) -> list[list[str]]:
        """The lists of all stages."""
        pick = lambda low, high: int(torch.randint(low, high, (), generator=rng))
        kind, S, M, every = case.given or ("1f1b", pick(3, 9), pick(9, 24), pick(1, 5))
        return [updated(kind, s, S, M, every) for s in range(S)]


class Staleness(OfLists):
    name = "staleness"
    right = "PipeDream's lists and others, 1 to 8 stages: the updates between a forward and its backward."

    def draw(self, case, rng):
        return [(self.rows(case, rng),)]

    def run(self, comm: Comm, yours, rows):
        return [yours(list(row)) for row in rows]

    def judge(self, case, args, outcome):
        for s, (row, got) in enumerate(zip(args[0][0], outcome.results[0], strict=True)):
            first, second = before(row, "F"), before(row, "B")
            want = [b - f for f, b in zip(first, second, strict=True)]
            looks = {
                "Those are the versions that the forwards meet.": first,
                "Those are the versions that the backwards meet.": second,
                "One too many: the update with the micro-batch's own gradient comes after its backward, and it is "
                "added to what is there then.": [n + 1 for n in want],
                "Those are actions between F and B: only updates count.": apart(row),
                "Those are places between F and B: only updates count.": [
                    n + 1 for n in apart(row)
                ],
            }
            listed(f"stage {s}", got, want, looks, " ".join(row))


def apart(row: list[str]) -> list[int]:
    """Actions between a micro-batch's F and its B."""
    return [
        row.index(f"B{m}") - row.index(f"F{m}") - 1
        for m in range(sum(word[0] == "F" for word in row))
    ]


def listed(whose: str, got, want: list[int], looks: dict[str, list[int]], row: str) -> None:
    """Raise Wrong unless `got` is the list of numbers `want`."""
    if got is None:
        raise Wrong(f"{whose}: it returns None. Is there a `return`?")
    if not isinstance(got, list | tuple) or not all(type(n) is int for n in got):
        kind = kind_of(got)
        raise Wrong(
            f"{whose}: here is a {kind}, and should be a list of whole numbers, one for each micro-batch."
        )
    if list(got) != want:
        hint = next((text for text, some in looks.items() if some == list(got)), "")
        raise Wrong(
            f"{whose}: {list(got)}, and should be {want}. {hint}".rstrip() + f"\nits list: {row}"
        )


class Needed(OfLists):
    name = "needed"
    right = (
        "with stashing and with vertical sync, 1 to 8 stages: the version that each backward needs."
    )
    cases = tuple(
        Case(
            1, f"{case.what}, {'vertical sync' if vertical else 'stashing'}", (case.given, vertical)
        )
        for case in OfLists.cases
        for vertical in (False, True)
    )

    def draw(self, case, rng):
        given, vertical = case.given
        return [(self.rows(case._replace(given=given), rng), vertical)]

    def run(self, comm: Comm, yours, rows, vertical):
        return yours([list(row) for row in rows], vertical)

    def judge(self, case, args, outcome):
        (rows, vertical), found = args[0], outcome.results[0]
        if not isinstance(found, list | tuple) or len(found) != len(rows):
            what = (
                "None. Is there a `return`?"
                if found is None
                else f"{found!r:.60}, and not a list for each stage."
            )
            raise Wrong(f"it returns {what}")
        own, first = [before(row, "F") for row in rows], before(rows[0], "F")
        for s, (row, got) in enumerate(zip(rows, found, strict=True)):
            looks = (
                {"That is what the last stage used: stage 0's counts.": own[-1]}
                if vertical and s == 0
                else {}
            )
            looks |= {
                "That is the newest version when the backward comes: needed is the one of the forward.": before(
                    row, "B"
                ),
                "Those are the numbers of the micro-batches.": [*range(len(first))],
                "That is with vertical sync.": first,
                "That is the stage's own newest: with vertical sync all "
                "stages use the one that stage 0 used.": own[s],
            }
            listed(f"stage {s}", got, first if vertical else own[s], looks, " ".join(row))


def no_flush(yours) -> None:
    """`no_flush(stage, S, M)`: a stage's list of words, F, B and U."""
    ask(NoFlush(), yours)


def staleness(yours) -> None:
    """`staleness(words)`: for each micro-batch, the updates between its forward and its backward."""
    ask(Staleness(), yours)


def needed(yours) -> None:
    """`needed(lists, vertical)`: for each stage and micro-batch, the version that its backward needs."""
    ask(Needed(), yours)
