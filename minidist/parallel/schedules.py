"""A schedule is data: for each stage the list of what it does, in order, to which micro-batch.

    F  forward                                     F0 F1 F2 B0 …
    B  backward, whole
    I  backward for the input's gradient only: what the stage before waits for (the zero-bubble paper's "B")
    W  backward for the weights' gradient, after its I, at any time
    U  update of the weights with the gradients so far, the last of them of this micro-batch (PipeDream)

A schedule is a function `schedule(stage, S, M)` that writes the list of one of S stages for M micro-batches. One
executor runs any list (`pipeline`), one clock times it (`simulate`), one validator checks it (`validate`).

    schedule                bubble, a share of the time    activations kept   source
    naive                   (S−1)/S                        1
    gpipe                   (S−1)/(M+S−1)                  M                  Huang et al. 2019, "GPipe", section 2.3
    one_f_one_b             (S−1)/(M+S−1)                  S − stage          Narayanan et al. 2021, section 2.2.1
    interleaved, v chunks   (S−1)/(vM+S−1)                 of a v-th each     Narayanan et al. 2021, section 2.2.2
    zb_h1, zb_h2            a third of 1F1B's, none        S, 2S − 1          Qi et al. 2023, section 2, figure 3
    zb_v                    none                           2S, of half each   Qi et al. 2023, section 6
    pipedream               none after the start           S − stage          Narayanan et al. 2019, section 3
    pipedream_2bw           none after the start           S − stage          Narayanan et al. 2021b, section 3.1

The zero bubbles are those of T_F = T_I = T_W. The model is cut into v·S parts, and each stage holds v of them, its
chunks. Where the parts are:

    loop, part c·S + stage is chunk c        V, v = 2: down the stages, and up again
    S = 3     0 1 2 | 3 4 5                  0 1 2
                                             5 4 3

Sources: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters" (loop); Qi et al. 2023,
"Zero Bubble Pipeline Parallelism" (V); Narayanan et al. 2019, "PipeDream"; Narayanan et al. 2021b, "Memory-Efficient
Pipeline-Parallel DNN Training". The formulas as functions: `study.predict`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ..arguments import whole

KINDS = "FBIWU"
PLACES = ("loop", "V")
WORD = re.compile(rf"([{KINDS}])(\d+)(?:\.(\d+))?")


class Action(NamedTuple):
    """One step of a stage: the kind of work ("F", "B", "I", "W" or "U"), the micro-batch, and one of the stage's
    chunks.

    It is printed as `F3`, or as `F3.1` for a chunk other than 0.

    >>> from minidist.parallel.schedules import Action
    >>> Action("F", micro=3), Action("B", micro=3, chunk=1)
    (F3, B3.1)
    """

    kind: str
    micro: int
    chunk: int = 0

    def __repr__(self) -> str:
        return f"{self.kind}{self.micro}" + f".{self.chunk}" * bool(self.chunk)

    @classmethod
    def parse(cls, word: str) -> Action:
        """`Action.parse("F3.1") == Action("F", 3, 1)`. ValueError for a word that is no action.

        >>> from minidist.parallel.schedules import Action
        >>> Action.parse("F3.1").chunk
        1
        """
        match = WORD.fullmatch(word)
        if not match:
            raise ValueError(
                f"{word!r} is no action: write one of {', '.join(KINDS)}, then the micro-batch, as in F3,"
                " or F3.1 with its chunk"
            )
        return cls(match[1], int(match[2]), int(match[3] or 0))


Schedule = Callable[[int, int, int], list[Action]]
Lists = Sequence[Sequence[Action]]


def parse(text: str) -> list[Action]:
    """A stage's list from its words: `parse("F0 F1 B0 B1")`.

    >>> from minidist.parallel.schedules import parse
    >>> [action.kind for action in parse("F0 F1 B0 B1")]
    ['F', 'F', 'B', 'B']
    """
    return [Action.parse(word) for word in text.split()]


def parse_lists(text: str) -> list[list[Action]]:
    """The lists of all stages from their words, a line each, stage 0 first.

    >>> from minidist.parallel.schedules import parse_lists
    >>> text = '''
    ... F0 F1 B0 B1
    ... F0 B0 F1 B1
    ... '''
    >>> parse_lists(text)[1]
    [F0, B0, F1, B1]
    """
    return [parse(line) for line in text.strip().splitlines()]


def lists(schedule: Schedule, S: int, M: int) -> list[list[Action]]:
    """The lists of all S stages, stage 0 first.

    >>> from minidist.parallel.schedules import lists, one_f_one_b
    >>> for actions in lists(one_f_one_b, S=3, M=4):
    ...     print(*actions)
    F0 F1 F2 B0 F3 B1 B2 B3
    F0 F1 B0 F2 B1 F3 B2 B3
    F0 B0 F1 B1 F2 B2 F3 B3
    """
    return [schedule(stage, S, M) for stage in range(S)]


def activations_kept(actions: Sequence[Action], rest: float = 1.0) -> list[float]:
    """The number of micro-batches whose activations a stage keeps after each action of its list, counting each chunk
    separately.

    rest: the share of a micro-batch's activations that stays between I and W (in a transformer layer, 32h of 34h + 5as
    bytes a token, according to Qi et al. 2023, table 1).

    >>> from minidist.parallel.schedules import activations_kept, parse
    >>> activations_kept(parse("F0 F1 I0 W0 B1"), rest=0.5)
    [1.0, 2.0, 1.5, 1.0, 0.0]
    """
    change = {"F": 1.0, "B": -1.0, "I": rest - 1, "W": -rest, "U": 0.0}
    return list(accumulate(change[action.kind] for action in actions))


def in_flight(actions: Sequence[Action]) -> int:
    """The largest number of forwards in a list whose backward is not complete: the activations kept at the peak.

    >>> from minidist.parallel.schedules import gpipe, in_flight, one_f_one_b
    >>> in_flight(gpipe(0, S=4, M=32)), in_flight(one_f_one_b(0, S=4, M=32))
    (32, 4)
    """
    return int(max(activations_kept(actions), default=0))


# ------------------------------------------------------------
# What flows: an activation "a" of a micro-batch leaves part p of the model with its F and goes to part p + 1's F, a
# gradient "g" leaves part p with its B or I and goes to part p − 1's. Nobody writes down a message: all are read here.


class Item(NamedTuple):
    """What an action leaves behind: "a" or "g" (or "w" and "u", for the own stage only), of a part of the model.

    >>> from minidist.parallel.schedules import Item
    >>> Item("a", micro=3, part=0).edge  # activations of part 0, whichever micro-batch's
    ('a', 0)
    """

    what: str
    micro: int
    part: int

    @property
    def edge(self) -> tuple[str, int]:
        """Where it goes along: what is sent, and the part that sends it."""
        return self.what, self.part


class Shape(NamedTuple):
    """A pipeline: S stages, M micro-batches, v chunks a stage, and where the parts are ("loop" or "V").

    >>> from minidist.parallel.schedules import Action, Shape
    >>> shape = Shape(S=3, M=4, v=2, place="V")  # parts 0 1 2 down, and 3 4 5 up again
    >>> shape.part(stage=0, chunk=1), shape.stage(part=3)
    (5, 2)
    >>> shape.needs(1, Action("F", 0))  # the activation that part 0 sends
    [Item(what='a', micro=0, part=0)]
    """

    S: int
    M: int
    v: int = 1
    place: str = "loop"

    def checked(self) -> Shape:
        """Itself. ValueError for a pipeline that cannot be."""
        S, M, v, place = self
        S = whole(S, "a pipeline has at least 1 stage", 1)
        M = whole(M, "a step has at least 1 micro-batch", 1)
        v = whole(v, "a stage has at least 1 chunk", 1)
        if place not in PLACES or (place == "V" and v != 2):
            raise ValueError(
                f'parts are placed as a "loop", or as a "V" of 2 chunks, not as {place!r} of {v}'
            )
        return Shape(S, M, v, place)

    @property
    def last(self) -> int:
        """The last part of the model."""
        return self.S * self.v - 1

    def part(self, stage: int, chunk: int) -> int:
        """Which part of the model a stage's chunk is."""
        return self.last - stage if self.place == "V" and chunk else chunk * self.S + stage

    def stage(self, part: int) -> int:
        """The stage that holds a part."""
        return self.last - part if self.place == "V" and part >= self.S else part % self.S

    def chunk(self, part: int) -> int:
        """Which of its stage's chunks a part is."""
        return part // self.S

    def gives(self, stage: int, action: Action) -> Item:
        """What `action` leaves behind."""
        what = {"F": "a", "B": "g", "I": "g", "W": "w", "U": "u"}[action.kind]
        return Item(what, action.micro, self.part(stage, action.chunk))

    def needs(self, stage: int, action: Action) -> list[Item]:
        """What must be there before `action`: from its own stage first, then from its neighbour."""
        kind, micro, chunk = action
        part = self.part(stage, chunk)
        before, after = Item("a", micro, part - 1), Item("g", micro, part + 1)
        if kind == "F":
            return [before] if part else []
        if kind in "BI":
            return [Item("a", micro, part)] + [after] * (part < self.last)
        return [Item("g", micro, part)]

    def far(self, stage: int, action: Action) -> list[Item]:
        """What `action` needs from another stage: nothing, or one message."""
        return [item for item in self.needs(stage, action) if self.stage(item.part) != stage]

    def goes_to(self, item: Item) -> int | None:
        """The stage that an item goes to; None from the ends of the model, and for "w" and "u"."""
        if item.what not in "ag":
            return None
        part = item.part + (1 if item.what == "a" else -1)
        return self.stage(part) if 0 <= part <= self.last else None


def shape_of(lists: Lists, place: str = "loop") -> Shape:
    """The pipeline that these lists are for, by the highest numbers in them.

    Raises ValueError for lists without an action, and for a "V" of other than 2 chunks.

    >>> from minidist.parallel.schedules import interleaved, lists, shape_of
    >>> shape_of(lists(interleaved, S=2, M=4))
    Shape(S=2, M=4, v=2, place='loop')
    """
    everything = [action for actions in lists for action in actions]
    if not everything:
        raise ValueError(f"{len(lists)} lists without an action are no schedule")
    micros, chunks = (1 + max(column) for column in zip(*(a[1:] for a in everything), strict=True))
    return Shape(len(lists), micros, chunks, place).checked()


def check_stage(stage: int, S: int, M: int) -> None:
    """What every schedule asks of its arguments."""
    Shape(S, M).checked()
    if not 0 <= whole(stage, f"a stage is a whole number, 0 to {S - 1}") < S:
        raise ValueError(f"there is no stage {stage} in a pipeline of {S} stages, 0 to {S - 1}")


# ------------------------------------------------------------
# Naive, GPipe and 1F1B: three orders of the same work, with a flush (all gradients are in) at the end.
#
#     GPipe   0  F0 F1 F2 .  .  B0 B1 B2       1F1B   0  F0 F1 .  B0 F2 B1 .  B2      S = 2, M = 3
#             1  .  F0 F1 F2 B0 B1 B2 .               1  .  F0 B0 F1 B1 F2 B2 .       ──▶ time
#
# All run the backwards in the order of the micro-batches, so that gradients add up as in a serial loop.


def naive(stage: int, S: int, M: int) -> list[Action]:
    """`F0 B0 F1 B1 …`: one micro-batch at a time through all stages and back. Only one stage is busy at a time; the
    others wait.

    Raises ValueError for a stage that is not 0 … S − 1, and for S or M below 1.

    >>> from minidist.parallel.schedules import naive
    >>> print(*naive(stage=0, S=2, M=3))
    F0 B0 F1 B1 F2 B2
    """
    check_stage(stage, S, M)
    return [Action(kind, m) for m in range(M) for kind in "FB"]


def gpipe(stage: int, S: int, M: int) -> list[Action]:
    """GPipe's list for one stage: all forwards, then all backwards. A stage keeps the activations of M micro-batches.

    stage: from 0.  S: stages.  M: micro-batches of a step.
    Raises ValueError for a stage that is not 0 … S − 1, and for S or M below 1.

    >>> from minidist.parallel.schedules import gpipe
    >>> print(*gpipe(stage=0, S=2, M=3))
    F0 F1 F2 B0 B1 B2
    """
    check_stage(stage, S, M)
    return [Action(kind, m) for kind in "FB" for m in range(M)]


def one_f_one_b(stage: int, S: int, M: int) -> list[Action]:
    """Every backward runs as soon as it can: first come S − 1 − stage forwards to warm up, then a forward and a
    backward in turn, then the remaining backwards. The first gradient comes back only after each of the S − 1 − stage
    later stages has run a forward, and the stage fills this wait with as many forwards of its own.

    stage: from 0.  S: stages.  M: micro-batches of a step. A stage keeps the activations of min(M, S − stage)
    micro-batches.
    Raises ValueError for a stage that is not 0 … S − 1, and for S or M below 1.

    >>> from minidist.parallel.schedules import lists, one_f_one_b
    >>> for actions in lists(one_f_one_b, S=2, M=3):
    ...     print(*actions)
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    check_stage(stage, S, M)
    warm = min(M, S - 1 - stage)
    actions = [Action("F", m) for m in range(warm)]
    for i in range(M - warm):
        actions += [Action("F", warm + i), Action("B", i)]
    return actions + [Action("B", m) for m in range(M - warm, M)]


# ------------------------------------------------------------
# Interleaved 1F1B: each stage holds v chunks of the model, so a micro-batch comes by v times. The pipeline fills after
# S − 1 passes through a chunk, each v times shorter than a stage, and v times as many messages are sent. Micro-batches
# advance in groups of S: S of them through chunk 0, the same S through chunk 1, …, then the next S.
#
#     S = 2, M = 2, v = 2       0  F0   F1   F0.1 F1.1 B0.1 …
#                               1  F0   F1   F0.1 B0.1 F1.1 …


def interleaved(stage: int, S: int, M: int, v: int = 2) -> list[Action]:
    """Interleaved 1F1B with v chunks a stage, in Megatron-LM's order: the list of one stage.

    stage: from 0.  S: stages.  M: micro-batches of a step. A stage keeps the activations of min(vM, 2(S−1−stage) +
    (v−1)S + 1) chunks, each a v-th of a stage.
    Raises ValueError unless S divides M, for v below 1, and for a stage that is not 0 … S − 1.

    >>> from minidist.parallel.schedules import interleaved
    >>> print(*interleaved(stage=1, S=2, M=2, v=2))  # F0.1: micro-batch 0 through the second chunk
    F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1
    """
    check_stage(stage, S, M)
    if v < 1:
        raise ValueError(f"a stage holds at least 1 chunk, not {v}")
    if M % S:
        raise ValueError(
            f"interleaving sends micro-batches in groups of S: {S} stages do not divide {M} micro-batches"
        )
    forwards = [_pass("F", k, S, v) for k in range(M * v)]
    backwards = [_pass("B", k, S, v) for k in range(M * v)]
    warm = min(M * v, 2 * (S - 1 - stage) + (v - 1) * S)
    actions = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        actions += [forward, backward]
    return actions + backwards[M * v - warm :]


def _pass(kind: str, k: int, S: int, v: int) -> Action:
    """The k-th pass of a kind: groups of S micro-batches, through one chunk after the other, backwards last first."""
    group, within = divmod(k, S * v)
    chunk, member = divmod(within, S)
    return Action(kind, group * S + member, chunk if kind == "F" else v - 1 - chunk)


# ------------------------------------------------------------
# Zero bubble: the backward in two. The stage before waits for the input's gradient (I) only; the weights' gradient (W)
# may come at any time. So W's are held back, and fill the time in which a stage would wait at the end.
#
#     h1, S = 3    0  F0 F1 F2 .  .  I0 W0 F3 …         1F1B's order; on every stage the memory of its first
#     M = 4        1  .  F0 F1 .  I0 F2 I1 W0 F3 …      bubble (S−1)(T_F + T_I − T_W)
#                  2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 …
#     h2           twice the forwards to warm up: bubble (S−1)(T_F + T_I − 2·T_W), where each stage begins its next step
#                  as soon as it is done, without waiting for the others
#     V, S = 2     0  F0 F1 F2 F0.1 I0.1 W0.1 F1.1 …    part 0, and part 3 as chunk 1: the first backward begins here,
#                  1  .  F0 F0.1 F1 F1.1 I0.1 …         where 1F1B keeps activations longest


def zb_h1(stage: int, S: int, M: int) -> list[Action]:
    """1F1B with a split backward (I, W), in which stage s holds back s W's. Every stage keeps min(M, S) micro-batches.

    stage: from 0.  S: stages.  M: micro-batches of a step.
    Raises ValueError for a stage that is not 0 … S − 1, and for S or M below 1.

    >>> from minidist.parallel.schedules import lists, one_f_one_b, zb_h1
    >>> from minidist.parallel.simulate import simulate
    >>> print(*zb_h1(stage=1, S=2, M=3))
    F0 I0 F1 I1 W0 F2 I2 W1 W2
    >>> both = [simulate(lists(schedule, S=4, M=8)) for schedule in (one_f_one_b, zb_h1)]
    >>> [round(run.time) for run in both]  # 24 of each is work; 9 idle, then 3
    [33, 27]
    """
    return _zero_bubble(stage, S, M, 1)


def zb_h2(stage: int, S: int, M: int) -> list[Action]:
    """Runs two warm-up forwards for each one of 1F1B, and stage s holds back 2s W's. A stage keeps min(M, 2S − 1)
    micro-batches.

    stage: from 0.  S: stages.  M: micro-batches of a step.
    Raises ValueError for a stage that is not 0 … S − 1, and for S or M below 1.

    >>> from minidist.parallel.schedules import lists, zb_h2
    >>> from minidist.parallel.simulate import simulate
    >>> simulate(lists(zb_h2, S=4, M=8)).bubble_rate  # where a stage begins its next step at once
    0.0
    """
    return _zero_bubble(stage, S, M, 2)


def _zero_bubble(stage: int, S: int, M: int, ahead: int) -> list[Action]:
    """ahead·(S−1−stage) forwards to warm up, then F, I and the W of ahead·stage micro-batches before."""
    check_stage(stage, S, M)
    warm, late = min(M, ahead * (S - 1 - stage)), ahead * stage
    actions = [Action("F", m) for m in range(warm)]
    for i in range(M):
        actions += [Action("F", warm + i)] * (warm + i < M) + [Action("I", i)]
        actions += [Action("W", i - late)] * (i >= late)
    return actions + [Action("W", m) for m in range(max(0, M - late), M)]


def zb_v(stage: int, S: int, M: int) -> list[Action]:
    """ZB-V, for two chunks a stage, placed as a "V". Every stage keeps the activations of at most 2S chunks.

    Each W comes right after its I, except in the last `stage` micro-batches, whose W's fill the end.

    stage: from 0.  S: stages.  M: micro-batches of a step.
    Raises ValueError for a stage that is not 0 … S − 1, and for S or M below 1.

    >>> from minidist.parallel.schedules import zb_v
    >>> print(*zb_v(stage=1, S=2, M=2))  # the tip of the V: parts 1 and 2 of four
    F0 F0.1 F1 F1.1 I0.1 W0.1 I0 W0 I1.1 W1.1 I1 W1
    """
    check_stage(stage, S, M)
    full = max(
        M, 2 * S - 1
    )  # micro-batches that fill the pipeline; of fewer, the order of a full one
    down, up = S - stage, stage
    order = ["F0"] * (2 * down - 1) + ["F1", "F0"] * up + ["F1", "I1", "W1"] * down
    order += ["F0", "I0", "W0", "F1", "I1", "W1"] * (full - 2 * S + stage + 1)
    order += ["I0", "W0", "F1", "I1", "W1"] * (down - 1) + ["I0", "I1"] * up + ["I0", "W0"] * down
    order += ["W1"] * up + ["W0"] * up
    seen: Counter[str] = Counter()
    actions = []
    for word in order:
        actions.append(Action(word[0], seen[word], int(word[1])))
        seen[word] += 1
    return [action for action in actions if action.micro < M]


# ------------------------------------------------------------
# PipeDream: 1F1B that never empties. M is then the number of micro-batches of the whole run.
#
#     PipeDream      an update after every backward, but a micro-batch meets old weights, see `pipedream`
#     PipeDream-2BW  an update after every m ≥ S micro-batches, whose gradients are added up
#
#     S = 2    stage 0  F0 F1 B0 U0 F2 B1 U1 F3 …
#              stage 1  F0 B0 U0 F1 B1 U1 F2 …


def pipedream(stage: int, S: int, M: int) -> list[Action]:
    """1F1B with an update after every backward.

    M: micro-batches of the whole run. Raises ValueError for a stage that is not 0 … S − 1, and for S or M below 1.

    >>> from minidist.parallel.schedules import pipedream
    >>> print(*pipedream(stage=0, S=2, M=3))
    F0 F1 B0 U0 F2 B1 U1 B2 U2
    """
    return _updated(one_f_one_b(stage, S, M), 1)


def pipedream_2bw(stage: int, S: int, M: int, m: int) -> list[Action]:
    """1F1B with an update after every m-th backward. ValueError for m < S, and if m does not divide M.

    >>> from minidist.parallel.schedules import pipedream_2bw
    >>> print(*pipedream_2bw(stage=0, S=2, M=4, m=2))
    F0 F1 B0 F2 B1 U1 F3 B2 B3 U3
    """
    actions = one_f_one_b(stage, S, M)
    if m < S:
        raise ValueError(
            f"with an update every {m} micro-batches, two versions do not do for {S} stages: m ≥ S"
        )
    if M % m:
        raise ValueError(f"{M} micro-batches are not a multiple of the {m} between two updates")
    return _updated(actions, m)


def _updated(actions: list[Action], m: int) -> list[Action]:
    """An update behind every m-th backward."""
    updated = []
    for action in actions:
        updated.append(action)
        if action.kind == "B" and (action.micro + 1) % m == 0:
            updated.append(Action("U", action.micro))
    return updated
