"""Is this a schedule? Checked before it runs, with the first wrong action named.

1  all work is there, once, in an order that a stage can follow
2  it ends: nobody waits for each other in a circle
3  each backward uses the weights that its forward used (of lists with updates)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..arguments import choice
from .schedules import KINDS, Action, Item, Lists, Shape

NOUNS = {
    "F": "forward",
    "B": "backward",
    "I": "backward for the input",
    "W": "backward for the weights",
    "U": "update",
    "a": "activation",
    "g": "gradient",
}
RULES = ("newest", "first", "2bw")
# By which kinds the work of an action may have been done before: a whole backward is both halves.
SAME_WORK = {"F": "F", "B": "BIW", "I": "IB", "W": "WB", "U": "U"}
# One of which kinds must come before it, on its own stage.
NEEDED = {"F": "", "B": "F", "I": "F", "W": "I", "U": "BW"}


class ScheduleError(ValueError):
    """A schedule is wrong. stage, position (from 0 in the stage's list), action: the first wrong one; why: in words.

    An action that is missing at the end of a list has the position behind it.

    >>> from minidist.parallel.schedules import parse
    >>> from minidist.parallel.validate import ScheduleError, validate
    >>> try:
    ...     validate([parse("F0 F1 B0 B1"), parse("F0 B0 B1 F1")])
    ... except ScheduleError as error:
    ...     print(error.stage, error.position, error.action, error.why, sep=" | ")
    1 | 2 | B1 | it needs F1, which comes later in the list
    """

    def __init__(self, stage: int, position: int, action: Action, why: str):
        super().__init__(stage, position, action, why)
        self.stage = stage
        self.position = position
        self.action = action
        self.why = why

    def __str__(self) -> str:
        return f"stage {self.stage}, position {self.position}, {self.action}: {self.why}"


def validate(
    lists: Lists,
    S: int | None = None,
    M: int | None = None,
    v: int = 1,
    *,
    place: str = "loop",
    comm: str = "mailbox",
    stash: bool = True,
    rule: str = "newest",
    group: int | None = None,
    most: int | None = None,
) -> None:
    """Return if the lists of all stages are a schedule; raise ScheduleError, naming the first wrong action, if not.

    S, M: stages and micro-batches; by default the lists', and their highest.  v: chunks a stage.  place: of the chunks.
    comm: how sends and receives queue up, "mailbox" (as in `pipeline`) or "stream", see `check_waits`.
    stash, rule, group, most: of lists with updates, see `check_versions`.
    Raises ValueError where the question is wrong: another number of lists than stages, an unknown rule.

    >>> from minidist.parallel.schedules import lists, one_f_one_b, parse
    >>> from minidist.parallel.validate import validate
    >>> validate(lists(one_f_one_b, S=4, M=8))  # it is one: nothing is said
    >>> validate([parse("F0 B0"), parse("F0")])
    Traceback (most recent call last):
        ...
    minidist.parallel.validate.ScheduleError: stage 1, position 1, B0: the list ends without this backward
    """
    if S is not None and len(lists) != S:
        raise ValueError(f"{len(lists)} lists were given for {S} stages")
    if M is None:
        M = 1 + max((a.micro for actions in lists for a in actions), default=0)
    shape = Shape(len(lists), M, v, place).checked()
    check_work(lists, shape)
    check_waits(lists, shape, comm)
    check_versions(lists, stash, rule, group, most)


# ------------------------------------------------------------
# The work: for every micro-batch and chunk one F, then one B, or one I and after it one W. An update U comes after the
# backward of its micro-batch. Where the next part of the model lies on the same stage, as with one stage or at the tip of
# a V, its F comes after, and its backward before. What other stages do is not looked at here.


def check_work(lists: Lists, shape: Shape) -> None:
    """Raise ScheduleError for the action that stands first in its list among those that are wrong, else return.

    Looked for: work that is missing or done twice, a backward before its forward, what is not in `shape`, as each stage
    by itself sees it. lists: of all stages.

    >>> from minidist.parallel.schedules import Shape, parse
    >>> from minidist.parallel.validate import check_work
    >>> check_work([parse("F0 I0 W0")], Shape(S=1, M=1))  # the two halves of a backward
    >>> check_work([parse("F0 B0 W0")], Shape(S=1, M=1))
    Traceback (most recent call last):
        ...
    minidist.parallel.validate.ScheduleError: stage 0, position 2, W0: this backward for the weights was done before, by B0
    """
    errors = [_first_wrong(stage, actions, shape) for stage, actions in enumerate(lists)]
    wrong = [error for error in errors if error is not None]
    if wrong:
        raise min(wrong, key=lambda error: (error.position, error.stage))


def _first_wrong(stage: int, actions: Sequence[Action], shape: Shape) -> ScheduleError | None:
    done: set[Action] = set()
    for position, action in enumerate(actions):
        why = next(_mistakes(stage, action, done, actions, shape), None)
        if why:
            return ScheduleError(stage, position, action, why)
        done.add(action)
    for micro in range(shape.M):
        for chunk in range(shape.v):
            halves = Action("I", micro, chunk) in done
            for kind in "FIW" if halves else "FB":
                lost = Action(kind, micro, chunk)
                if lost not in done:
                    why = f"the list ends without this {NOUNS[kind]}"
                    return ScheduleError(stage, len(actions), lost, why)
    return None


def _mistakes(
    stage: int, action: Action, done: set[Action], actions: Sequence[Action], shape: Shape
) -> Iterator[str]:
    """What is wrong with an action, as its own stage sees it; of several mistakes the first one counts."""
    kind, micro, chunk = action
    if kind not in KINDS:
        yield f"there is no kind {kind!r}, only {', '.join(KINDS)}"
    if not 0 <= micro < shape.M:
        yield f"there is no micro-batch {micro}, only 0 to {shape.M - 1}"
    if not 0 <= chunk < shape.v:
        yield f"there is no chunk {chunk}, only 0 to {shape.v - 1}"
    for other in SAME_WORK[kind]:
        before = action._replace(kind=other)
        if before in done:
            yield f"this {NOUNS[kind]} was done before, by {before}"
    wanted = [(chunk, NEEDED[kind])]
    for item in shape.needs(stage, action):
        of = shape.chunk(item.part)
        if shape.stage(item.part) == stage and of != chunk:  # the next one in the model lies here
            wanted.append((of, "F" if item.what == "a" else "BI"))
    for of, kinds in wanted:
        needed = [Action(other, micro, of) for other in kinds]
        if needed and done.isdisjoint(needed):
            for need in needed:
                if need in actions:
                    yield f"it needs {need}, which comes later in the list"
            yield f"it needs {needed[0]}, which is missing from the list"


# ------------------------------------------------------------
# Who waits for whom. A stage posts the receive that its next action needs, waits for it, computes, and posts the send
# of the result without waiting. Queues there are:
#
#     mailbox    one for each message: what has come is taken in any order, as by the executor of `pipeline`; only a
#                true circle of dependencies hangs
#     stream     one for all operations of a stage, as on an NCCL stream (`World(n, ordered=True)`): a message passes
#                when its send and its receive are both first, whichever they are. 1F1B hangs, unless each send is grouped with the receive
#                beside it, as in Megatron-LM. S = 2:
#                    stage 0   send F0      send F1   receive B0     send F1 waits for a receive that stands behind
#                    stage 1   receive F0   send B0   receive F1     send B0, which waits for one behind send F1


class Operation(NamedTuple):
    """A send or a receive of `item`, with stage `peer`, for the action at `position` of a stage's list."""

    verb: str
    item: Item
    peer: int
    position: int


def check_waits(lists: Lists, shape: Shape, comm: str = "mailbox") -> None:
    """Raise ScheduleError if a stage does not come to its end: for the first action in the circle of waits.

    comm: "mailbox", where what has come is taken in any order, as in `pipeline`; or "stream", where all sends and receives
    of a stage pass in the order in which they were posted, as on an NCCL stream without groups. ValueError for another.

    >>> from minidist.parallel.schedules import Shape, lists, one_f_one_b
    >>> from minidist.parallel.validate import check_waits
    >>> both = lists(one_f_one_b, S=2, M=4)
    >>> check_waits(both, Shape(S=2, M=4))
    >>> check_waits(both, Shape(S=2, M=4), comm="stream")
    Traceback (most recent call last):
        ...
    minidist.parallel.validate.ScheduleError: stage 0, position 1, F1: deadlock in a circle: ...
    """
    choice(comm, "comm", ("mailbox", "stream"))
    queues = [_operations(stage, actions, shape) for stage, actions in enumerate(lists)]
    sent: set[Item] = set()
    free = set(range(shape.S))  # stages whose first operation may pass
    while free:
        stage = min(free)
        free.remove(stage)
        while queues[stage]:
            here = queues[stage][-1]
            there = queues[here.peer][-1] if queues[here.peer] else None
            if comm == "stream":
                if there is None or there.peer != stage or there.verb == here.verb:
                    break
                if there.item != here.item:
                    raise _mixed_up(lists, here, there)
                queues[here.peer].pop()
            elif here.verb == "receive" and here.item not in sent:
                break
            queues[stage].pop()
            sent.add(here.item)
            free.add(here.peer)
    stuck = {stage: queue[-1] for stage, queue in enumerate(queues) if queue}
    if stuck:
        raise _circle(lists, stuck)


def _operations(stage: int, actions: Sequence[Action], shape: Shape) -> list[Operation]:
    """A stage's sends and receives, the first one last."""
    operations = []
    for position, action in enumerate(actions):
        for item in shape.far(stage, action):
            operations.append(Operation("receive", item, shape.stage(item.part), position))
        item = shape.gives(stage, action)
        peer = shape.goes_to(item)
        if peer not in (None, stage):
            operations.append(Operation("send", item, peer, position))
    return operations[::-1]


def _mixed_up(lists: Lists, a: Operation, b: Operation) -> ScheduleError:
    """A receive meets another send than that of its message: on a stream nothing tells them apart."""
    send, receive = (a, b) if a.verb == "send" else (b, a)
    sent, wanted = lists[receive.peer][send.position], lists[send.peer][receive.position]
    why = (
        f"the next message that comes from stage {receive.peer} is that of its {sent}: messages arrive "
        "in the order they were sent"
    )
    return ScheduleError(send.peer, receive.position, wanted, why)


def _circle(lists: Lists, stuck: dict[int, Operation]) -> ScheduleError:
    """What is wrong: from a stage that is stuck to the one that it waits for, until they come round."""
    path: list[int] = []
    stage = min(stuck)
    while stage not in path:
        path.append(stage)
        stage = stuck[stage].peer
    circle = path[path.index(stage) :]
    first = min(circle, key=lambda s: (stuck[s].position, s))
    turn = circle.index(first)
    waits = []
    for s in circle[turn:] + circle[:turn]:
        verb, item, peer, position = stuck[s]
        what = f"the {NOUNS[item.what]} of micro-batch {item.micro}"
        if verb == "send":
            waits.append(f"stage {s} must send {what} to stage {peer}")
        else:
            waits.append(f"stage {s} waits at {lists[s][position]} for {what} from stage {peer}")
    position = stuck[first].position
    why = f"deadlock in a circle: {'; '.join(waits)}"
    return ScheduleError(first, position, lists[first][position], why)


# ------------------------------------------------------------
# Which weights a micro-batch meets: PipeDream updates after every backward and never waits for the pipeline to empty.
#
# Version k of a stage's weights is there after its k-th update. Which one a forward uses is a rule:
#
#     newest   the stage's own newest (PipeDream): other stages have used others for the same micro-batch
#     first    the one that stage 0 used (PipeDream with vertical sync): the micro-batch carries its number
#     2bw      max(0, g − 1) for the micro-batches of group g (PipeDream-2BW, an update every `group` micro-batches)
#
# A backward with stashing uses its forward's version, so the old one is kept until then; without, the newest of all,
# and its gradient is that of no function. Staleness: how many updates lie between the version that made a gradient and
# the one it is added to. Sources: see `pipedream`.


def updates_before(actions: Sequence[Action]) -> list[int]:
    """For each position of a list, the version that is newest then; and behind the last one.

    >>> from minidist.parallel.schedules import parse
    >>> from minidist.parallel.validate import updates_before
    >>> updates_before(parse("F0 B0 U0 F1"))
    [0, 0, 0, 1, 1]
    """
    return list(accumulate((action.kind == "U" for action in actions), initial=0))


def forward_versions(
    lists: Lists, rule: str = "newest", group: int | None = None
) -> list[dict[int, int]]:
    """For each stage and micro-batch, the version of the weights that its forward uses: 0 before the first update.

    rule: "newest", that of its own stage; "first", the one that stage 0 used; "2bw", max(0, g − 1) for the micro-batches of
    group g.  group: of "2bw", how many micro-batches are between two updates.
    Raises ValueError for another rule, and for "2bw" without a group of at least 1.

    >>> from minidist.parallel.schedules import lists, pipedream
    >>> from minidist.parallel.validate import forward_versions
    >>> run = lists(pipedream, S=2, M=4)
    >>> forward_versions(run)  # stage 0 meets older weights than stage 1
    [{0: 0, 1: 0, 2: 1, 3: 2}, {0: 0, 1: 1, 2: 2, 3: 3}]
    >>> forward_versions(run, "first")[1]
    {0: 0, 1: 0, 2: 1, 3: 2}
    """
    if rule not in RULES:
        raise ValueError(f"a version is chosen by one of {', '.join(RULES)}, not by {rule!r}")
    newest = [_newest_at(actions, "F") for actions in lists]
    if rule == "newest":
        return newest
    if rule == "first":
        return [{m: newest[0][m] for m in row} for row in newest]
    if group is None or group < 1:
        raise ValueError(
            f"2bw updates every `group` micro-batches, at least 1, and group is {group}"
        )
    return [{m: max(0, m // group - 1) for m in row} for row in newest]


def staleness(lists: Lists, rule: str = "newest", group: int | None = None) -> list[dict[int, int]]:
    """For each stage and micro-batch, the updates between the version it used and the one its gradient is added to.

    rule, group, errors: as for `forward_versions`.

    >>> from minidist.parallel.schedules import lists, pipedream
    >>> from minidist.parallel.validate import staleness
    >>> staleness(lists(pipedream, S=2, M=4))
    [{0: 0, 1: 1, 2: 1, 3: 1}, {0: 0, 1: 0, 2: 0, 3: 0}]
    """
    applied = [_newest_at(actions, "BW") for actions in lists]
    used = forward_versions(lists, rule, group)
    return [{m: to[m] - row[m] for m in row} for to, row in zip(applied, used, strict=True)]


def _newest_at(actions: Sequence[Action], kinds: str) -> dict[int, int]:
    """For each micro-batch, the version that is newest at its action of these kinds."""
    pairs = zip(actions, updates_before(actions), strict=False)
    return {action.micro: now for action, now in pairs if action.kind in kinds}


def held(
    lists: Lists, rule: str = "newest", group: int | None = None, stash: bool = True
) -> list[list[int]]:
    """For each stage and after each of its actions, how many versions it must hold.

    The newest, which the next update changes, and every version made that a forward or (with stashing) a backward
    still to come will use.
    rule, group, errors: as for `forward_versions`.  stash: whether old versions are kept for backward.

    >>> from minidist.parallel.schedules import lists, pipedream
    >>> from minidist.parallel.validate import held
    >>> [max(row) for row in held(lists(pipedream, S=3, M=6))]  # S − stage versions of the weights
    [3, 2, 1]
    """
    kinds = "FBIW" if stash else "F"
    rows = []
    for actions, used in zip(lists, forward_versions(lists, rule, group), strict=True):
        last_use = {used[a.micro]: i for i, a in enumerate(actions) if a.kind in kinds}
        live, sizes = {0}, []
        for position, newest in enumerate(updates_before(actions)[1:]):
            live.add(newest)
            live = {v for v in live if v == newest or last_use.get(v, -1) > position}
            sizes.append(len(live))
        rows.append(sizes)
    return rows


def check_versions(
    lists: Lists,
    stash: bool = True,
    rule: str = "newest",
    group: int | None = None,
    most: int | None = None,
) -> None:
    """Raise ScheduleError for the first action that misses its version of the weights; lists without updates pass.

    stash: whether old versions are kept. Without, a backward meets the newest version, and is wrong if its forward
    met another.  rule, group: as for `forward_versions`; a forward is wrong if its version is not made yet.
    most: how many versions a stage may hold; the update that makes one more is wrong.

    >>> from minidist.parallel.schedules import lists, pipedream
    >>> from minidist.parallel.validate import check_versions
    >>> run = lists(pipedream, S=2, M=4)
    >>> check_versions(run)  # with old weights kept
    >>> check_versions(run, stash=False)
    Traceback (most recent call last):
        ...
    minidist.parallel.validate.ScheduleError: stage 0, position 5, B1: its forward used version 0 of the weights, ...
    """
    used, rows = forward_versions(lists, rule, group), held(lists, rule, group, stash)
    for stage, actions in enumerate(lists):
        for position, (action, now) in enumerate(
            zip(actions, updates_before(actions), strict=False)
        ):
            version, why = used[stage][action.micro], None
            if action.kind == "F" and version > now:
                why = f"it needs version {version} of the weights, and only version {now} is there"
            elif action.kind in "BIW" and not stash and version != now:
                why = (
                    f"its forward used version {version} of the weights, and without stashing it "
                    f"would use version {now}"
                )
            elif most is not None and rows[stage][position] > most:
                why = f"with it the stage holds {rows[stage][position]} versions of the weights, {most} at most"
            if why:
                raise ScheduleError(stage, position, action, why)
