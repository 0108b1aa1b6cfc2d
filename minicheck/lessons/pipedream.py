"""Graders of lesson 18: lists without a flush, versions of the weights, a stage that keeps them, and two versions.

The library judges lists, as in `pipelines`; the oracle of late gradients knows neither lists nor stages.
"""

from __future__ import annotations

from functools import partial
from math import pi, sin
from operator import eq

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from minidist.parallel.schedules import Action, in_flight, parse

from ..exam import (
    Case,
    Costly,
    Exam,
    Prediction,
    Report,
    Wrong,
    bare,
    close,
    holds,
    integer,
    near,
    normal,
    recognized,
    shaped,
    shuffled,
    table,
    typed,
    unchanged,
)
from ..oracles.pipedream import before, buffered, holding, late_weights, updated, within
from .pipelines import CHANGED, NAN_TARGET, RunStage, in_order, keeps, said, valid
from .pipelines import FORBIDDEN as BEFORE
from .remat import Made

# ------------------------------------------------------------
# Lists: PipeDream's, and what can be read from any list with updates.
#
# Source: Narayanan et al. 2019, "PipeDream", sections 3.2 and 3.3.


FORBIDDEN = (*BEFORE, "minicheck.oracles.pipedream")


class NoFlush(Exam):
    """`no_flush(stage, S, M, room)`: a stage's list of words, F, B and U, where stages have room for few versions."""

    name = "no_flush"
    forbidden = FORBIDDEN
    right = (
        "1 to 12 stages, 1 to 27 micro-batches, equal and unequal room: valid, no flush, an update after each backward, "
        "as far ahead as the room allows."
    )
    cases = (
        *table(
            lambda S, M, room: f"{said(S, M)}, room for {', '.join(map(str, room))}",
            (
                (4, 8, (4, 3, 2, 1)),
                (4, 8, (2, 2, 2, 2)),
                (1, 3, (2,)),
                (4, 2, (4, 4, 4, 4)),
                (3, 7, (5, 5, 5)),
                (3, 6, (1, 1, 1)),
                (2, 1, (2, 1)),
                (5, 12, (3, 5, 1, 2, 4)),
            ),
        ),
        *(Case(1, "stages, micro-batches and room drawn at random", None),) * 3,
    )

    def draw(self, case, rng):
        if case.given:
            S, M, room = case.given
        else:
            S, M = integer(rng, 3, 13), integer(rng, 3, 28)
            room = [integer(rng, 1, S - stage + 2) for stage in range(S)]
        return [(S, M, list(room), shuffled(rng, S))]

    def run(self, comm, yours, S, M, room, order):
        lists = {stage: yours(stage, S, M, list(room)) for stage in order}
        return [lists[stage] for stage in range(S)]

    def judge(self, case, args, outcome):
        S, M, room, _ = args[0]
        try:
            lists = valid(outcome.results[0], "FBU", S, M)
            for stage, actions in enumerate(lists):
                _updates(stage, actions, M)
                for kind, noun in (("F", "Forwards come"), ("B", "Backwards come")):
                    in_order(stage, actions, kind, noun)
            use = [min(most, S - stage) for stage, most in enumerate(room)]
            keeps(lists, use, "the smaller of its room and S − stage")
            for stage, actions in enumerate(lists):
                _ahead(stage, [str(a) for a in actions], within(stage, S, M, room))
        except Wrong as wrong:
            given = f"{said(S, M)}, room {room}"
            raise Wrong(str(wrong) if case.given else f"{given}: {wrong}") from None


def _updates(stage, actions, M):
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


def _ahead(stage, words, want):
    """Raise Wrong unless as many forwards come first as there is room for, and then one forward and one backward in turn."""
    first, enough = words.index("B0"), want.index("B0")
    if first != enough:
        raise Wrong(
            f"stage {stage}: forwards before B0: {first}, and there is room for {enough}: limits are its room, S − stage, "
            "and what the stages before it send, which have room of their own. Where a stage is less far ahead than it can "
            "be, it waits."
        )
    if words != want:
        raise Wrong(
            f"stage {stage}: after B0 one forward and one backward take turns: {' '.join(words)}."
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
    ("put off", 4, 8, 1),
    ("1f1b", 6, 20, 2),
)
NAMES = {
    "1f1b": "one forward, one backward",
    "gpipe": "all forwards first",
    "naive": "one micro-batch at a time",
    "last in": "the last forward goes back first",
    "put off": "odd stages update a backward later",
}


class OfLists(Report):
    """An answer reads lists of words. given: (kind, S, M, every), and the number of stages of a node."""

    forbidden = FORBIDDEN
    step = 2.0
    cases = (
        *table(
            lambda kind, S, M, every, node: (
                f"{said(S, M)}, {NAMES[kind]}, an update every {every}, nodes of {node}"
            ),
            [(*shape, node) for shape in SHAPES for node in {1, min(2, shape[1]), shape[1]}],
        ),
        *(Case(1, "a schedule drawn at random"),) * 2,
    )

    def draw(self, case, rng):
        pick = partial(integer, rng)
        kind, S, M, every, node = case.given or (
            *("1f1b", pick(4, 9), pick(9, 24), pick(1, 5)),
            pick(2, 3),
        )
        rows = [updated(kind, s, S, M, every) for s in range(S)]
        leader = [s - s % node for s in range(S)]
        return [(rows if case.given else renumbered(rows, shuffled(rng, M)), leader)]

    def run(self, comm, yours, rows, leader):
        mine, whose = [list(row) for row in rows], list(leader)
        return {"got": yours(mine, whose), "kept": (mine, whose) == (rows, leader)}

    def check(self, case, found, rows, leader):
        holds(found, {"kept": "`lists` or `leader` was changed, and belongs to the caller."})
        self.compare(found["got"], rows, leader)

    def compare(self, got, rows, leader):
        """Raise Wrong unless the answer is right."""
        raise NotImplementedError


def renumbered(rows: list[list[str]], numbers: list[int]) -> list[list[str]]:
    """The same lists, in which micro-batch m has another number."""
    return [[f"{word[0]}{numbers[int(word[1:])]}" for word in row] for row in rows]


class Staleness(OfLists):
    """`staleness(lists, leader)`: for each stage and micro-batch, how many updates late its gradient is."""

    name = "staleness"
    right = "PipeDream's lists and others, 1 to 8 stages, nodes of all sizes: the updates from the leader's version to the newest."

    def compare(self, got, rows, leader):
        typed(got, list | tuple, "the result", "a list for each stage")
        if len(got) != len(rows):
            raise Wrong(f"it returns {len(got)} lists, and there are {len(rows)} stages.")
        forward, back = ([before(row, kind) for row in rows] for kind in "FB")
        late = lambda used, s: [b - f for f, b in zip(used, back[s], strict=True)]
        for s, (row, mine) in enumerate(zip(rows, got, strict=True)):
            lead = leader[s]
            want = late(forward[lead], s)
            looks = {
                "Those are the versions that the forwards use.": forward[lead],
                "Those are the versions that the backwards meet.": back[s],
                "One too many: the update with the micro-batch's own gradient comes after its backward, and it is "
                "added to what is there then.": [n + 1 for n in want],
                f"That is without vertical sync: this stage uses the version that stage {lead} used.": late(
                    forward[s], s
                ),
                f"That is with the version of stage 0: the leader of this stage is {lead}.": late(
                    forward[0], s
                ),
                f"That is with the version of the last stage: the leader of this stage is {lead}.": late(
                    forward[-1], s
                ),
                "The backward is looked up in the leader's list: the newest version is this stage's own.": late(
                    forward[lead], lead
                ),
            }
            rule = (
                "For each micro-batch, it is how many U's stand before its B in the stage's own list, less how many stand "
                "before its F in the leader's. Count them: the number of a U is that of a micro-batch."
            )
            listed(f"stage {s}, whose leader is stage {lead}", mine, want, looks, rule, row)


def listed(whose: str, got, want: list[int], looks: dict, rule: str, rows, one="micro-batch"):
    """Raise Wrong unless `got` is the list of numbers `want`."""
    got = got.tolist() if isinstance(got, Tensor) else bare(got)
    shaped(got, [int], f"{whose}: the result", f"a list of whole numbers, one for each {one}")
    if list(got) != want:
        hint = recognized(list(got), looks, rule, eq)
        shown = "\n".join(map(" ".join, rows if isinstance(rows[0], list) else [rows]))
        raise Wrong(f"{whose}: {list(got)}, and should be {want}. {hint}\n{shown}")


class Needed(OfLists):
    """`needed(lists, leader)`: for each stage, how many versions it holds at the peak."""

    name = "needed"
    right = "PipeDream's lists and others, 1 to 8 stages, nodes of all sizes: the versions held at the peak."

    def compare(self, got, rows, leader):
        forward = [before(row, "F") for row in rows]
        peaks = lambda whose, **without: [
            max(holding(row, forward[lead], **without))
            for row, lead in zip(rows, whose, strict=True)
        ]
        own = range(len(rows))
        looks = {
            "The newest version counts, too.": [most - 1 for most in peaks(leader)],
            "A version that a forward still to come will use has to stay as well: a leader's version may be older "
            "than this stage's newest.": peaks(leader, ahead=False),
            "That is without vertical sync: a stage uses the versions that its leader used.": peaks(
                own
            ),
            "That is with the versions of stage 0: each stage has a leader of its own.": peaks(
                [0 for _ in own]
            ),
            "Those are the micro-batches under way: some of them use the same version.": [
                in_flight(parse(" ".join(row))) for row in rows
            ],
            "Those are all versions that are ever made.": [
                1 + sum(word[0] == "U" for word in row) for row in rows
            ],
        }
        rule = "Held are the newest version, and those made before that an F or a B still to come will use."
        listed(f"leaders {leader}", got, peaks(leader), looks, rule, rows, "stage")


# ------------------------------------------------------------
# A store of versions: what it hands out, and how many versions it keeps alive.
#
# Versions are counted by the memory of tensors of the weights' shape, whoever holds them.


SHAPE = (23, 3)  # nothing else has this shape
LATE = ("F2", "F1", "B1", "U1", "F0", "B0", "U0", "F3", "B2", "U2", "B3", "U3")
NUMBERS = [1, 0, 0, 1]  # of the versions that LATE's micro-batches use


class Store(Report):
    """`Store(weight)`: `.forward(m, number)`, `.backward(m)` and `.update(grad, rate)` of a stage with vertical sync."""

    name = "store"
    right = "lists of 1 to 6 stages: the version that is asked for, in backward as in forward; none is changed or kept too long."
    forbidden = FORBIDDEN
    step = 4.0
    cases = (
        *table(
            lambda s, S, M, every: f"stage {s} of {said(S, M)}, an update every {every}",
            (
                (2, 3, 4, 1),
                (0, 2, 4, 1),
                (0, 1, 3, 1),
                (3, 4, 9, 1),
                (1, 4, 8, 2),
                (0, 6, 14, 1),
            ),
        ),
        Case(
            1,
            "micro-batches in another order, one of which goes back late, and inf in a gradient",
            None,
        ),
        Case(1, "one stage, and numbers that skip a version", None),
    )

    def draw(self, case, rng):
        if case.given:
            row = updated("1f1b", *case.given)
            used = before(updated("1f1b", 0, *case.given[1:]), "F")  # those of stage 0
        elif "skip" in case.what:
            row, used = updated("1f1b", 0, 1, 5, 1), [0, 0, 2, 2, 4]
        else:
            row, used = list(LATE), NUMBERS
        rate = (1 + integer(rng, 0, 7)) / 8
        drawn = lambda: normal(rng, SHAPE)
        grads = [drawn() for word in row if word[0] == "U"]
        if "inf" in case.what:
            grads[0][0, 0] = torch.inf
        return [(row, used, drawn(), grads, rate)]

    def run(self, comm, yours, row, used, weight, grads, rate):
        mine = weight.clone()
        steps = row, used, grads, rate
        seen, own = watched(yours, mine, *steps, holds=False)
        _, counts = watched(yours, mine, *steps, holds=True)
        return {
            "seen": seen,
            "own": own,
            "counts": counts,
            "weight": mine,
            "changed": changed(yours, weight, *steps),
        }

    def check(self, case, got, row, used, weight, grads, rate):
        made = [weight]
        for g in grads:
            made.append(made[-1] - rate * g)
        now = 0
        for i, (word, found) in enumerate(zip(row, got["seen"], strict=True)):
            m = int(word[1:])
            now += word[0] == "U"
            if word[0] in "FB":
                asked = f", with number {used[m]}" if word[0] == "F" else ""
                where = f"action {i}, {word}{asked}"
                self._handed(where, found, made, used[m], now, word[0])
        unchanged(got["weight"], weight, "the tensor that was given")
        unchanged(False in got["seen"], False, "a gradient")
        if got["changed"]:
            raise Wrong(
                f"two stores, used in turn: when {got['changed']} of one comes, it gets other weights than "
                f"F{got['changed'][1:]}, or the tensor that F{got['changed'][1:]} got has other numbers now. Autograd holds this "
                "very tensor until then: make the next version elsewhere, and in each store its own."
            )
        self._counted(row, used, got["own"], got["counts"])

    def _handed(self, where, found, made, want, now, kind):
        if isinstance(found, str):
            raise Wrong(
                f"{where}: it returns {found}, and should return the weights, a tensor of shape {SHAPE}."
            )
        found = torch.tensor(found, dtype=torch.float64)
        if near(found, made[want]):
            return
        which = next((k for k, w in enumerate(made) if near(found, w)), None)
        text = (
            "no version that there ever was. Is a tensor changed in place that others need, or is an update not the "
            "newest − rate · grad?"
            if which is None
            else f"version {which}."
        )
        asks = (
            "backward needs the weights of its forward"
            if kind == "B"
            else "here a number is asked for"
        )
        hint = f" That is the newest: {asks}." if which == now else ""
        raise Wrong(f"{where}: the weights should be version {want}, and are {text}{hint}")

    def _counted(self, row, used, own, counts):
        """Raise Wrong if more versions are alive than are needed, or fewer: then some are kept where none looks."""
        now = asked = 0
        under_way = {}
        for i, (word, alone, count) in enumerate(zip(row, own, counts, strict=True)):
            now += word[0] == "U"
            if word[0] == "F":
                asked = under_way[word[1:]] = used[int(word[1:])]
            elif word[0] == "B":
                del under_way[word[1:]]
            need = {*range(asked, now + 1), *under_way.values()}
            text = f"after action {i}, {word}, of {' '.join(row)}, versions needed: {len(need)}, "
            if count > len(need):
                raise Wrong(
                    f"{text}alive: {count}: those from version {asked} on, the last that was asked for, up to the newest, "
                    f"{now}, and those of backwards still to come. A version is made by an update, not for each "
                    "micro-batch; numbers never fall, so what is older goes with its last backward. A gradient goes at once."
                )
            if alone < len(need - {0}):  # version 0 is the caller's tensor
                raise Wrong(
                    f"{text}alive: {alone}: keep each version that a forward may still ask for, or a backward "
                    "still to come will, as the tensor that it is, not as a copy in another form."
                )


def walk(store, row: list[str], used: list[int], grads: list[Tensor], rate: float):
    """What a store returns, action by action; for an update, whether the gradient, which nobody else holds, is as it was."""
    steps = iter(grads)
    for word in row:
        m = int(word[1:])
        if word[0] == "U":
            right = next(steps)
            step = right.clone()
            store.update(step, rate)
            same = step.equal(right)
            del step
            yield same
        else:
            yield store.forward(m, used[m]) if word[0] == "F" else store.backward(m)


def watched(
    yours, weight: Tensor, row: list[str], used: list[int], grads: list[Tensor], rate: float, holds
) -> tuple[list, list[int]]:
    """What a store returns, action by action, and how many versions are alive then.

    holds: whether somebody holds what a forward got until its backward, as autograd does.
    """
    seen = []
    counts = []
    held = {}
    with Made(weight.numel()) as made:
        actions = walk(yours(weight), row, used, grads, rate)
        for word in row:
            found = next(actions)
            seen.append(found if word[0] == "U" else copied(found))
            if word[0] == "F" and holds:
                held[word[1:]] = found
            elif word[0] == "B":
                held.pop(word[1:], None)
            del found
            counts.append(made.alive([weight]))
    return seen, counts


def changed(yours, weight: Tensor, row: list[str], *steps) -> str:
    """The first backward that gets other weights than its forward, or whose forward's tensor is not what it was, where
    another store does the same in turn; "" if there is none."""
    held = {}
    others = walk(yours(-weight), row, *steps)
    for word, found in zip(row, walk(yours(weight.clone()), row, *steps)):
        if word[0] == "F":
            held[word[1:]] = found, copied(found)
        elif word[0] == "B":
            had, numbers = held.pop(word[1:])
            if not copied(had) == copied(found) == numbers:
                return word
        next(others)
    return ""


def copied(found) -> list | str:
    """The numbers that were returned; what has none, in words."""
    if isinstance(found, Tensor) and found.shape == SHAPE:
        return found.tolist()
    if isinstance(found, Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    return "None" if found is None else f"something of type {type(found).__name__}"


# ------------------------------------------------------------
# A stage trains with two versions. `run_stage` of lesson 16, with updates of groups.
#
# Looked at: the last weights, the order of the work, messages, and how many graphs and versions are alive.


LAYERS = 2


class Product(nn.Module):
    """x·w + b. Its graph holds the parameter itself, as a layer norm's does; nn.Linear's holds a view of old numbers."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone())

    def forward(self, x):
        return x @ self.weight + self.bias


class RunTwoVersions(RunStage):
    """`run_2bw(down, up, part, words, xs, ys, loss_fn, rate, m)`: a stage trains in groups; its last weights in `part`."""

    name = "run_2bw"
    right = (
        "1 to 4 stages, up to 11 micro-batches in groups of 1 to 4: the weights of mean gradients one update late; two "
        "versions, two messages an edge and micro-batch; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = (
        *(
            Case(S, f"{said(S, M)}, groups of {m}", (M, m))
            for S, M, m in ((2, 4, 2), (1, 3, 1), (2, 1, 2), (4, 11, 4), (3, 9, 4))
        ),
        Case(2, NAN_TARGET, (2, 2)),
    )
    processes = (Case(3, "3 real processes, 7 micro-batches, groups of 3", (7, 3)),)

    def draw(self, case, rng):
        M, m = case.given
        given = super().draw(case._replace(given=("1f1b", M)), rng)
        rate = (1 + integer(rng, 0, 4)) / 2  # so that a wrong step is no rounding
        return [
            (
                *([first, first[0].clone(), second], updated("1f1b", s, case.n, M, m)),
                *(xs, ys, rate, m),
            )
            for s, ((first, second), _, xs, ys) in enumerate(given)
        ]

    def part(self, weights):
        linear = nn.Linear(*weights[2].shape, bias=False)
        linear.weight = nn.Parameter(weights[2].clone())
        return nn.Sequential(Product(*weights[:2]), nn.Tanh(), linear)

    def run(self, comm, yours, weights, order, xs, ys, *rest):
        counts = [0]

        def counted(down, up, part, *given):
            start = list(part.parameters())
            with Made(start[0].numel()) as made:
                part.register_forward_pre_hook(lambda *_: counts.append(made.alive(start)))
                yours(down, up, part, *given, *rest)

        return super().run(comm, counted, weights, order, xs, ys) | {"versions": max(counts)}

    def judge(self, case, args, outcome):
        for s, got in enumerate(outcome.results):
            self._order(s, got["log"], [word for word in args[s][1] if word[0] != "U"])
            holds(got, {"xs": CHANGED}, f"stage {s}: ")
        self._weights(args, [got["weights"] for got in outcome.results])
        self._costs(args, outcome)
        for s, got in enumerate(outcome.results):
            enough = 4 * LAYERS
            if outcome.time is not None and got["versions"] > enough:  # in a World
                raise Costly(
                    f"stage {s}: the weights are right, but {got['versions']} tensors of a weight's shape are "
                    f"alive in a forward, and {enough} are plenty for {LAYERS} layers: two versions, the sum of a group's "
                    "gradients, and the last gradients. Is an old version kept after the group that needed it, or one for "
                    "each micro-batch? Or has an update a graph, which holds all versions before it? Detach a new version."
                )

    def _weights(self, args, found):
        S = len(args)
        weights = [own[0] for own in args]
        xs, ys = args[0][2], args[-1][3]
        rate, m = args[0][4:]
        want, looks = _expected(S, weights, [own[1] for own in args], xs, ys, rate, m)
        # the last stage first: what is wrong goes on to the stages before
        for s in reversed(range(S)):
            for i, (got, right) in enumerate(zip(found[s], want[s], strict=True)):
                start = "They are as they were at the start: put the newest version into `part` at the end."
                slips = {start: weights[s][i]} | {text: rows[s][i] for text, rows in looks.items()}
                name = ("the first layer's weight", "the first layer's bias", "layer 1")[i]
                close(got, right, f"stage {s}: {name}, in the end", slips, OWN)


OWN = (
    "Is every gradient of group g made at version max(0, g − 1), in forward and in backward, and the mean of as many as "
    "there are added to the newest weights, once?"
)


def _expected(S, weights, words, xs, ys, rate, m):
    """The last weights of each stage, and those of some mistakes."""
    late = lambda behind: [[max(0, i // m - behind) for i in range(len(xs))]] * S
    newest = [before(row, "F") for row in words]

    def ends(met=None, rate=rate, group=m, **wrong) -> list:
        met = met or late(1)
        run = lambda used, x: (x @ used[0] + used[1]).tanh() @ used[2].T
        return late_weights(run, weights, xs, ys, smooth_l1_loss, met, rate, group, **wrong)

    looks = {
        "The gradients of a group were added up, and not divided by how many there are.": ends(
            rate=rate, mean=False
        ),
        "An update had the gradient of its last micro-batch alone: it is the mean of its group.": ends(
            only_last=True
        ),
        "Each forward used the newest version, and each update the gradient of its last micro-batch alone: that is the "
        "lesson's stage with stashing.": ends(newest, only_last=True),
        "Each forward used the newest version: the micro-batches of a group meet different ones, on different "
        "stages, too. Group g uses version max(0, g − 1).": ends(newest),
        "Gradients of the groups before were added up, too: each update has its own group's.": ends(
            adds_up=True
        ),
        "Each gradient was added to the weights that made it, and the update before is lost: it goes to the newest.": ends(
            onto_used=True
        ),
        "The gradients are never late: no pipeline that goes on has version g when group g enters.": ends(
            late(0)
        ),
        "The gradients are two updates late: version g − 1 is there when group g enters.": ends(
            late(2)
        ),
        f"The loss was divided by {len(xs)}: the mean is over a group.": ends(rate=rate / len(xs)),
        "Each micro-batch made an update of its own: words has a U for each group.": ends(
            rate=rate, group=1
        ),
    }
    return ends(), looks


# ------------------------------------------------------------
# Numbers foretold: versions, bytes, staleness, updates.


def predict_pipedream(S=8, stage=2, M=600, m=10, nbytes=100_000_000):
    """8 stages of 100 MB, stage 0 with 200 MB, 600 micro-batches, Adam: bytes of stage 2; of all versions with stashing,
    vertical sync and 2BW; the updates of 2BW with m = 10, its gain in time, and the largest rate beside stashing's.
    """
    stash = nbytes * (S * (S + 1) // 2 + S)
    vertical = nbytes * (S + 1) * S
    two = 2 * nbytes * (S + 1)
    versions = S - stage
    flush = M / m * (m + S - 1)
    limit = lambda late: 2 * sin(pi / (4 * late + 2))
    alike = "Stage 0 has twice as many weights."
    values = {
        "stage_bytes": (versions + 2) * nbytes,
        "stash_bytes": stash,
        "vertical_bytes": vertical,
        "two_bytes": two,
        "updates": M // m,
        "gain": flush / (M + S - 1),
        "rates": limit(1) / limit(S - 1),
    }
    slips = {
        "stage_bytes": {
            versions * nbytes: "Adam's two moments are missing.",
            3
            * versions
            * nbytes: "Adam's moments belong to the newest version: they are held once.",
            (versions + 3) * nbytes: "Stages are numbered from 0.",
            (stage + 3) * nbytes: "It is the other way round: the last stage goes back at once.",
            (S + 2) * nbytes: "That is with the versions of stage 0.",
            (versions + 1)
            * nbytes: "The newest version counts, too; or Adam has two moments, not one.",
        },
        "stash_bytes": {
            vertical: "That is vertical sync: later stages need fewer.",
            nbytes * S * (S + 1) / 2: alike,
            nbytes
            * (S * (S - 1) / 2 + S - 1): "That is S − 1 + … + 0: the newest version counts, too.",
            nbytes * (S + 1): "That is one version a stage.",
            nbytes * (S * (S + 1) / 2 + 1): "Of stage 0's weights every version is twice as large.",
        },
        "vertical_bytes": {
            stash: "That is stashing: here the last stage also waits for stage 0's old versions.",
            nbytes * S * S: alike,
            nbytes * S: "Of all stages.",
            nbytes * (S + 1) * (S - 1): "The newest counts, too.",
        },
        "two_bytes": {
            2 * nbytes: "Of all stages.",
            2 * nbytes * S: alike,
            nbytes * (S + 1): "That is one version a stage.",
            stash: "That is stashing.",
            m
            * (S + 1)
            * nbytes: "m is how many micro-batches share an update, and two versions are enough.",
        },
        "updates": {
            M: "That is PipeDream's: 2BW updates once for m micro-batches.",
            M // S: "m, not S.",
            M // m * S: "Of one stage, not of all.",
        },
        "gain": {
            (m + S - 1) / m: "That is of an endless stream: this one has to be filled once, too.",
            (M + S - 1) / flush: "It is the other way round: how many times as fast is 2BW?",
            M / m * m / (M + S - 1): "The steps with a flush have a bubble each.",
        },
        "rates": {
            limit(0) / limit(S - 1): "2BW's gradients are late, too: by one update.",
            limit(
                S - 1
            ): "That is the rate itself, for stashing: how many times as large is 2BW's?",
            limit(S - 1) / limit(1): "It is the other way round.",
            limit(1)
            / limit(
                0
            ): "That stage is not late at all: look for the one that is late by most updates.",
            limit(1) / limit(S): "The gradients of stage 0 are S − 1 updates late.",
            S - 1: "That is the ratio of how late they are: the rate goes with 2·sin(π/(4d + 2)).",
        },
    }
    for name in ("stage_bytes", "stash_bytes", "vertical_bytes", "two_bytes"):
        slips[name][values[name] / 1e6] = "In bytes: 1 MB is 1,000,000 of them."
    return values, slips


PREDICTED = Prediction(
    predict_pipedream,
    "Bytes of versions, updates, the gain in time, and the largest rates, within 1 %.",
    {
        "S": ("{} stages", (4, 6, 10)),
        "M": ("{} micro-batches", (120, 180, 240)),
        "m": ("m = {}", (12, 15, 20)),
    },
)


# ------------------------------------------------------------
# A bug to find: PipeDream-2BW's two versions, on one rank.
#
# Looked at: at which weights each gradient is asked for, and what comes out.
# Source: Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1.


def slope(w: Tensor, x: Tensor) -> Tensor:
    """The gradient of ½(w·x − 1)²."""
    return (w @ x - 1) * x


class TwoVersions(Report):
    """`two_versions(weight, grad, xs, rate, m)`: the weights after PipeDream-2BW."""

    name = "two_versions"
    right = "1 to 6 groups of 1 to 5 micro-batches: gradients one update late, of the mean, added to the newest."
    forbidden = FORBIDDEN
    step = 2.0
    cases = table(
        lambda groups, m: f"{groups} group{'s' * (groups > 1)} of {m}",
        ((1, 2), (2, 2), (3, 1), (4, 3), (6, 5), (3, 4)),
    )

    def draw(self, case, rng):
        groups, m = case.given
        drawn = lambda: normal(rng, 4)
        xs = [drawn() for _ in range(groups * m)]
        if groups == 3:  # of the last group
            xs[-1][0] = torch.inf
        return [(drawn(), xs, (1 + integer(rng, 0, 4)) / 16, m)]

    def run(self, comm, yours, weight, xs, rate, m):
        asked, mine = [], weight.clone()

        def grad(w, x):
            asked.append((w.detach().clone(), x.clone()))
            return slope(w, x)

        end = yours(mine, grad, list(xs), rate, m)
        return {"end": end, "asked": asked, "weight": mine}

    def check(self, case, got, weight, xs, rate, m):
        unchanged(got["weight"], weight, "the weight that was given")
        made = [buffered(weight, slope, xs[:at], rate, m) for at in range(0, len(xs) + 1, m)]
        asked = got["asked"]
        if [x.tolist() for _, x in asked] != [x.tolist() for x in xs]:
            raise Wrong(
                f"{len(xs)} gradients are asked for, one of each micro-batch, in order, and here are "
                f"{len(asked)} calls of `grad`, or other micro-batches, or another order."
            )
        for i, (w, _) in enumerate(asked):
            summed = buffered(weight, slope, xs[: max(0, i // m - 1) * m], rate * m, m)
            self._at(i, i // m, w, made, summed)
        older = {
            f"They are version {k}, and {len(made) - 1} is the newest.": x
            for k, x in enumerate(made[:-1])
        }
        rule = "Is the last group's gradient added to the newest weights, divided by m?"
        close(got["end"], made[-1], "what it returns", older, rule)

    def _at(self, i, g, w, made, summed):
        looks = {
            "That is version g, the newest: on stage 0 of a pipeline it is not there yet.": made[g],
            "The gradients were added up, and not divided by m.": summed,
            "It is the version at the start.": made[0],
        }
        rule = "Is each update made from the newest weights, and from the gradients of its own group alone?"
        at = max(0, g - 1)
        what = f"micro-batch {i}, group {g}: version {at}, at which its gradient is taken,"
        close(w, made[at], what, looks, rule)
