"""Which weights a micro-batch meets: PipeDream updates after every backward and never waits for the pipeline to empty.

Version k of a stage's weights is there after its k-th update. Which one a forward uses is a rule:

    newest   the stage's own newest (PipeDream): other stages have used others for the same micro-batch
    first    the one that stage 0 used (PipeDream with vertical sync): the micro-batch carries its number
    2bw      max(0, g − 1) for the micro-batches of group g (PipeDream-2BW, an update every `group` micro-batches)

A backward with stashing uses its forward's version, so the old one is kept until then; without, the newest of all,
and its gradient is that of no function. Staleness: how many updates lie between the version that made a gradient and
the one it is added to; S − 1 − stage for PipeDream, S − 1 with vertical sync, 1 for 2BW.

Sources: Narayanan et al. 2019, "PipeDream", section 3.3; Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel
DNN Training" (2BW), section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from .action import Action
from .error import ScheduleError

RULES = ("newest", "first", "2bw")
Lists = Sequence[Sequence[Action]]


def updates_before(actions: Sequence[Action]) -> list[int]:
    """For each position of a list, the version that is newest then; and behind the last one."""
    counts = [0]
    for action in actions:
        counts.append(counts[-1] + (action.kind == "U"))
    return counts


def forward_versions(
    lists: Lists, rule: str = "newest", group: int | None = None
) -> list[dict[int, int]]:
    """For each stage and micro-batch, the version of the weights that its forward uses."""
    if rule not in RULES:
        raise ValueError(f"a version is chosen by one of {', '.join(RULES)}, not by {rule!r}")
    if rule == "2bw" and (group is None or group < 1):
        raise ValueError(
            f"2bw updates every `group` micro-batches, at least 1, and group is {group}"
        )
    newest = [
        {a.micro: now for a, now in zip(actions, updates_before(actions)) if a.kind == "F"}
        for actions in lists
    ]
    if rule == "newest":
        return newest
    return [
        {m: newest[0][m] if rule == "first" else max(0, m // group - 1) for m in row}
        for row in newest
    ]


def staleness(lists: Lists, rule: str = "newest", group: int | None = None) -> list[dict[int, int]]:
    """For each stage and micro-batch, the updates between the version it used and the one its gradient is added to."""
    return [
        {m: _applied(actions)[m] - version for m, version in used.items()}
        for actions, used in zip(lists, forward_versions(lists, rule, group))
    ]


def _applied(actions: Sequence[Action]) -> dict[int, int]:
    """For each micro-batch, the version that its gradient is added to, by the next update after its backward."""
    return {a.micro: now for a, now in zip(actions, updates_before(actions)) if a.kind in "BW"}


def held(
    lists: Lists, rule: str = "newest", group: int | None = None, stash: bool = True
) -> list[list[int]]:
    """For each stage and after each of its actions, how many versions it must hold.

    The newest, which the next update changes, and every version made that a forward or (with stashing) a backward
    still to come will use.
    """
    return [
        _held(actions, used, stash)
        for actions, used in zip(lists, forward_versions(lists, rule, group))
    ]


def _held(actions: Sequence[Action], used: dict[int, int], stash: bool) -> list[int]:
    counts, last = updates_before(actions), {}
    for position, action in enumerate(actions):
        if action.kind == "F" or (stash and action.kind in "BIW"):
            last[used[action.micro]] = position
    live, sizes = {0}, []
    for position, now in enumerate(counts[1:]):
        live = {
            version
            for version in live | {now}
            if version == now or last.get(version, -1) > position
        }
        sizes.append(len(live))
    return sizes


def check_versions(
    lists: Lists,
    stash: bool = True,
    rule: str = "newest",
    group: int | None = None,
    most: int | None = None,
) -> None:
    """Raise ScheduleError for the first action that misses its version of the weights; lists without updates pass.

    stash: whether old versions are kept. Without, a backward meets the newest version, and is wrong if its forward
    met another.  rule, group: see above; a forward is wrong if its version is not made yet.
    most: how many versions a stage may hold; the update that makes one more is wrong.
    """
    used, rows = forward_versions(lists, rule, group), held(lists, rule, group, stash)
    for stage, actions in enumerate(lists):
        for position, (action, now) in enumerate(zip(actions, updates_before(actions))):
            its, holds = used[stage].get(action.micro), rows[stage][position]
            why = None
            if action.kind == "F" and its > now:
                why = f"it needs version {its} of the weights, and only version {now} is there"
            elif action.kind in "BIW" and not stash and its != now:
                why = f"its forward used version {its} of the weights, and without stashing it would use version {now}"
            elif most is not None and holds > most:
                why = f"with it the stage holds {holds} versions of the weights, {most} at most"
            if why:
                raise ScheduleError(stage, position, action, why)
