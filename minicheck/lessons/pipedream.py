"""Graders of lesson 18: lists without a flush, versions of the weights, a stage that keeps them, and two versions.

Lists are read as in lesson 16 (`Lists`); the oracle of late gradients knows neither lists nor stages.
"""

from __future__ import annotations

from functools import partial
from operator import eq

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from minidist.parallel.schedules import Action, in_flight, parse

from ..exam import (
    Case,
    Costly,
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
from ..oracles.pipedream import before, buffered, delayed, late_weights, updated
from .pipelines import CHANGED, NAN_TARGET, Lists, RunStage, in_order, in_time, keeps, said
from .pipelines import FORBIDDEN as BEFORE
from .remat import Made

# ------------------------------------------------------------
# Lists: PipeDream's, and what can be read from any list with updates.
#
# Source: Narayanan et al. 2019, "PipeDream", sections 3.2 and 3.3.


FORBIDDEN = (*BEFORE, "minicheck.oracles.pipedream")


class NoFlush(Lists):
    """`no_flush(stage, S, M)`: a stage's list of words, F, B and U."""

    name = "no_flush"
    forbidden = FORBIDDEN
    right = "1 to 12 stages, 1 to 27 micro-batches: valid, no flush, an update after each backward, S − stage kept."

    kinds = "FBU"

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


class OfLists(Report):
    """An answer reads lists of words. given: (kind, S, M, every)."""

    forbidden = FORBIDDEN
    step = 2.0
    cases = (
        *table(
            lambda kind, S, M, every: f"{said(S, M)}, {NAMES[kind]}, an update every {every}",
            SHAPES,
        ),
        Case(1, "a schedule drawn at random"),
    )

    def rows(self, case, rng):
        """The lists of all stages."""
        pick = partial(integer, rng)
        kind, S, M, every = case.given or ("1f1b", pick(3, 9), pick(9, 24), pick(1, 5))
        return [updated(kind, s, S, M, every) for s in range(S)]


def renumbered(rows: list[list[str]], numbers: list[int]) -> list[list[str]]:
    """The same lists, in which micro-batch m has another number."""
    return [[f"{word[0]}{numbers[int(word[1:])]}" for word in row] for row in rows]


class Staleness(OfLists):
    """`staleness(words)`: for each micro-batch, the updates between its forward and its backward."""

    name = "staleness"
    right = "PipeDream's lists and others, 1 to 8 stages: the updates between a forward and its backward."

    def draw(self, case, rng):
        rows = self.rows(case, rng)
        M = sum(word[0] == "F" for word in rows[0])
        return [(rows if case.given else renumbered(rows, shuffled(rng, M)),)]

    def run(self, comm, yours, rows):
        return [yours(list(row)) for row in rows]

    def check(self, case, found, rows):
        for s, (row, got) in enumerate(zip(rows, found, strict=True)):
            first, second = before(row, "F"), before(row, "B")
            want = [b - f for f, b in zip(first, second, strict=True)]
            looks = {
                "Those are the versions that the forwards meet.": first,
                "Those are the versions that the backwards meet.": second,
                "One too many: the update with the micro-batch's own gradient comes after its backward, and it is "
                "added to what is there then.": [n + 1 for n in want],
            }
            rule = "Count the updates, and nothing else, between F and B of the same micro-batch."
            listed(f"stage {s}", got, want, looks, rule, row)


def listed(whose: str, got, want: list[int], looks: dict, rule: str, row: list[str]) -> None:
    """Raise Wrong unless `got` is the list of numbers `want`."""
    should = "a list of whole numbers, one for each micro-batch"
    got = got.tolist() if isinstance(got, Tensor) else bare(got)
    shaped(got, [int], f"{whose}: the result", should)
    if list(got) != want:
        hint = recognized(list(got), looks, rule, eq)
        raise Wrong(
            f"{whose}: {list(got)}, and should be {want}. {hint}\nits list: {' '.join(row)}"
        )


class Needed(OfLists):
    """`needed(lists, vertical)`: for each stage and micro-batch, the version that its backward needs."""

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

    def run(self, comm, yours, rows, vertical):
        return yours([list(row) for row in rows], vertical)

    def check(self, case, found, rows, vertical):
        typed(found, list | tuple, "the result", "a list for each stage")
        if len(found) != len(rows):
            raise Wrong(f"it returns {len(found)} lists, and there are {len(rows)} stages.")
        own, first = [before(row, "F") for row in rows], before(rows[0], "F")
        for s, (row, got) in enumerate(zip(rows, found, strict=True)):
            looks = {
                "That is the newest version when the backward comes: needed is the one of the forward.": before(
                    row, "B"
                ),
                "That is with vertical sync.": first,
                "That is the stage's own newest: with vertical sync all "
                "stages use the one that stage 0 used.": own[s],
            }
            rule = "A version has the number of updates before the forward that used it: its own, or that of stage 0."
            listed(f"stage {s}", got, first if vertical else own[s], looks, rule, row)


# ------------------------------------------------------------
# A store of versions: what it hands out, and how many versions it keeps alive.
#
# Versions are counted by the memory of tensors of the weights' shape, whoever holds them.


SHAPE = (23, 3)  # nothing else has this shape
LATE = ("F0", "F1", "B1", "U1", "F2", "B2", "U2", "F3", "B0", "U0", "B3", "U3")


class Store(Report):
    """`Store(weight)`: `.forward(m)`, `.backward(m)` and `.update(grad, rate)` of a stage's weights in versions."""

    name = "store"
    right = "lists of 1 to 6 stages: a backward has its forward's weights, no version is changed or kept too long."
    forbidden = FORBIDDEN
    step = 4.0
    cases = (
        *table(
            lambda s, S, M, every: f"stage {s} of {said(S, M)}, an update every {every}",
            (
                (0, 2, 4, 1),
                (0, 1, 3, 1),
                (2, 3, 4, 1),
                (0, 4, 9, 1),
                (1, 4, 8, 2),
                (0, 6, 14, 1),
            ),
        ),
        Case(
            1,
            "a list in which one goes back late, numbers in any order, and inf in a gradient",
            None,
        ),
    )

    def draw(self, case, rng):
        row = (
            updated("1f1b", *case.given) if case.given else renumbered([LATE], shuffled(rng, 4))[0]
        )
        rate = (1 + integer(rng, 0, 7)) / 8
        drawn = lambda: normal(rng, SHAPE)
        grads = [drawn() for word in row if word[0] == "U"]
        if not case.given:
            grads[0][0, 0] = torch.inf
        return [(row, drawn(), grads, rate)]

    def run(self, comm, yours, row, weight, grads, rate):
        mine = weight.clone()
        seen, own = watched(yours, row, mine, grads, rate, holds=False)
        _, counts = watched(yours, row, mine, grads, rate, holds=True)
        return {
            "seen": seen,
            "own": own,
            "counts": counts,
            "weight": mine,
            "changed": changed(yours, row, weight, grads, rate),
        }

    def check(self, case, got, row, weight, grads, rate):
        made = [weight]
        for g in grads:
            made.append(made[-1] - rate * g)
        used, now = before(row, "F"), 0
        for i, (word, found) in enumerate(zip(row, got["seen"], strict=True)):
            m = int(word[1:])
            now += word[0] == "U"
            if word[0] in "FB":
                where = f"action {i}, {word}"
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
        late = kind == "B" and which == now
        hint = " That is the newest: backward needs the weights of its forward." if late else ""
        raise Wrong(f"{where}: the weights should be version {want}, and are {text}{hint}")

    def _counted(self, row, used, own, counts):
        """Raise Wrong if more versions are alive than are needed, or fewer: then some are kept where none looks."""
        last = {used[int(word[1:])]: i for i, word in enumerate(row) if word[0] == "B"}
        now = 0
        for i, (word, alone, count) in enumerate(zip(row, own, counts, strict=True)):
            now += word[0] == "U"
            need = {now} | {v for v, at in last.items() if v < now and at > i}
            text = f"after action {i}, {word}, of {' '.join(row)}, versions needed: {len(need)}, "
            if count > len(need):
                raise Wrong(
                    f"{text}alive: {count}: the newest, and those of backwards still to come. A version is made by an "
                    "update, not for each micro-batch, and goes with its last backward; a gradient goes at once."
                )
            if alone < len(need - {0}):  # version 0 is the caller's tensor
                raise Wrong(
                    f"{text}alive: {alone}: keep versions as the tensors they are, not as a copy in another form."
                )


def walk(store, row: list[str], grads: list[Tensor], rate: float):
    """What a store returns, action by action; for an update, whether the gradient, which nobody else holds, is as it was."""
    steps = iter(grads)
    for word in row:
        if word[0] == "U":
            right = next(steps)
            step = right.clone()
            store.update(step, rate)
            same = step.equal(right)
            del step
            yield same
        else:
            yield (store.forward if word[0] == "F" else store.backward)(int(word[1:]))


def watched(
    yours, row: list[str], weight: Tensor, grads: list[Tensor], rate: float, holds: bool
) -> tuple[list, list[int]]:
    """What a store returns, action by action, and how many versions are alive then.

    holds: whether somebody holds what a forward got until its backward, as autograd does.
    """
    seen = []
    counts = []
    held = {}
    with Made(weight.numel()) as made:
        actions = walk(yours(weight), row, grads, rate)
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


def changed(yours, row: list[str], weight: Tensor, grads: list[Tensor], rate: float) -> str:
    """The first backward that gets other weights than its forward, or whose forward's tensor is not what it was, where
    another store does the same in turn; "" if there is none."""
    held = {}
    others = walk(yours(-weight), row, grads, rate)
    for word, found in zip(row, walk(yours(weight.clone()), row, grads, rate)):
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
# A stage trains without a flush. Lesson 16's, with updates and versions.
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


class RunPipeDream(RunStage):
    """`run_pipedream(down, up, part, words, xs, ys, loss_fn, rate)`: a stage trains; its last weights in `part`."""

    name = "run_pipedream"
    right = (
        "1 to 4 stages, up to 11 micro-batches: the weights of gradients S − 1 − stage updates late, or one more "
        "where updates come later; two messages an edge and micro-batch; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = (
        *(Case(S, said(S, M), ("1f1b", M)) for S, M in ((2, 4), (1, 3), (2, 1), (4, 11))),
        Case(3, f"{said(3, 6)}, each update a forward later", ("late", 6)),
        Case(2, NAN_TARGET, ("1f1b", 2)),
    )
    processes = (Case(3, "3 real processes, 5 micro-batches", ("1f1b", 5)),)

    def draw(self, case, rng):
        kind, M = case.given
        given = super().draw(case._replace(given=("1f1b", M)), rng)
        rows = [updated("1f1b", s, case.n, M, 1) for s in range(case.n)]
        rows = [delayed(row) if kind == "late" else row for row in rows]
        rate = (1 + integer(rng, 0, 4)) / 2  # so that a wrong step is no rounding
        return [
            ([first, first[0].clone(), second], row, xs, ys, rate)
            for row, ((first, second), _, xs, ys) in zip(rows, given)
        ]

    def part(self, weights):
        linear = nn.Linear(*weights[2].shape, bias=False)
        linear.weight = nn.Parameter(weights[2].clone())
        return nn.Sequential(Product(*weights[:2]), nn.Tanh(), linear)

    def run(self, comm, yours, weights, order, xs, ys, rate):
        counts = [0]

        def counted(down, up, part, *rest):
            given = list(part.parameters())
            with Made(given[0].numel()) as made:
                part.register_forward_pre_hook(lambda *_: counts.append(made.alive(given)))
                yours(down, up, part, *rest, rate)

        return super().run(comm, counted, weights, order, xs, ys) | {"versions": max(counts)}

    def judge(self, case, args, outcome):
        kind = case.given[0]
        for s, got in enumerate(outcome.results):
            self._order(s, got["log"], [word for word in args[s][1] if word[0] != "U"])
            holds(got, {"xs": CHANGED}, f"stage {s}: ")
        self._weights(args, [got["weights"] for got in outcome.results], int(kind == "late"))
        self._costs(args, outcome)
        for s, got in enumerate(outcome.results):
            enough = LAYERS * 2 * (2 + in_flight(parse(" ".join(args[s][1]))))
            if outcome.time is not None and got["versions"] > enough:  # in a World
                raise Costly(
                    f"stage {s}: the weights are right, but {got['versions']} tensors of a weight's shape are "
                    f"alive at once, and {enough} are plenty, with gradients. Is an old version kept after the "
                    "backward that needed it?"
                )

    def _weights(self, args, found, more):
        """more: updates by which gradients are later than in PipeDream's own list."""
        S = len(args)
        weights = [own[0] for own in args]
        xs = args[0][2]
        ys = args[-1][3]
        rate = args[0][4]
        want, looks = _expected(S, weights, xs, ys, rate, more)
        # the last stage first: what is wrong goes on to the stages before
        for s in reversed(range(S)):
            for i, (got, right) in enumerate(zip(found[s], want[s], strict=True)):
                start = "They are as they were at the start: put the newest version into `part` at the end."
                slips = {start: weights[s][i]} | {text: rows[s][i] for text, rows in looks.items()}
                late = S - 1 - s + more
                words = f"{late} update{'s' * (late != 1)} late"
                name = ("the first layer's weight", "the first layer's bias", "layer 1")[i]
                what = f"stage {s}: {name}, in the end, with gradients that are {words}"
                close(got, right, what, slips, OWN)


OWN = (
    "Is the backward of each micro-batch made with the weights of its forward, and its gradient added to the newest "
    "weights, once?"
)


def _expected(S, weights, xs, ys, rate, more):
    """The last weights of each stage, and those of some mistakes."""
    own = [S - 1 - s + more for s in range(S)]

    def ends(late=own, rate=rate, **kwargs) -> list:
        run = lambda used, x: (x @ used[0] + used[1]).tanh() @ used[2].T
        return late_weights(run, weights, xs, ys, smooth_l1_loss, late, rate, **kwargs)

    early = "An update was made in B: make it when its U comes, which here is a forward later."
    looks = {early: ends(range(S)[::-1])} if more else {}
    looks |= {
        "Gradients add up over the micro-batches: each update has one micro-batch's.": ends(
            adds_up=True
        ),
        "Each gradient was added to the weights that made it: it goes to the newest.": ends(
            onto_used=True
        ),
        f"The loss was divided by {len(xs)}: here every micro-batch has an update of its own.": ends(
            rate=rate / len(xs)
        ),
        "They are those of a pipeline that never has two micro-batches in flight.": ends([0] * S),
    }
    return ends(), looks


# ------------------------------------------------------------
# Numbers foretold: versions, bytes, staleness, updates.


def predict_pipedream(S=8, stage=2, M=600, m=10, nbytes=100_000_000):
    """8 stages, each with weights of 100 MB, 600 micro-batches: versions and staleness of stage 2; bytes of the weights
    of all stages with stashing, vertical sync and 2BW; updates of 2BW with m = 10.
    """
    stash = nbytes * S * (S + 1) // 2
    vertical = nbytes * S * S
    two = 2 * nbytes * S
    wrong_way = "It is the other way round: the last stage goes back at once."
    forgot, mega = (
        "That is S − 1 + … + 0: the newest version counts, too.",
        "In bytes: 1 MB is 1,000,000 of them.",
    )
    values = {
        "versions": S - stage,
        "stale": S - 1 - stage,
        "stash_bytes": stash,
        "vertical_bytes": vertical,
        "two_bytes": two,
        "updates": M // m,
    }
    slips = {
        "versions": {
            stage + 1: wrong_way,
            S: "That is stage 0.",
            S - stage - 1: "The newest counts, too.",
        },
        "stale": {
            stage: wrong_way,
            S - stage: "The gradient's own update does not count.",
            S - 1: "That is stage 0.",
        },
        "stash_bytes": {
            vertical: "That is vertical sync: later stages need fewer.",
            stash / S: "Of all stages.",
            nbytes * S * (S - 1) // 2: forgot,
            nbytes * S: "That is one version a stage.",
        },
        "vertical_bytes": {
            stash: "That is stashing: here stage S − 1 also waits for stage 0's old versions.",
            vertical / S: "Of all stages.",
            nbytes * S * (S - 1): "The newest counts, too.",
        },
        "two_bytes": {
            two / S: "Of all stages.",
            nbytes * S: "That is one version a stage.",
            stash: "That is stashing.",
            m
            * S
            * nbytes: "m is how many micro-batches share an update, and two versions are enough.",
        },
        "updates": {
            M: "That is PipeDream's: 2BW updates once for m micro-batches.",
            M // S: "m, not S.",
        },
    }
    for name in ("stash_bytes", "vertical_bytes", "two_bytes"):
        slips[name][values[name] / 1e6] = mega
    return values, slips


PREDICTED = Prediction(
    predict_pipedream,
    "Versions, bytes, staleness and updates, within 1 %.",
    {
        "S": ("{} stages", (4, 6, 10)),
        "M": ("{} micro-batches", (300, 420, 900)),
        "m": ("m = {}", (5, 12, 20)),
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
        what = f"micro-batch {i}, group {g}: version {at}, at which its gradient is taken"
        close(w, made[at], what, looks, rule)
