"""Graders of lesson 16: schedules as lists, a stage that runs one, and what a pipeline costs.

`actions` reads an answer's lists; the library's simulator and validator judge them, outside of the answer's process.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import mse_loss, smooth_l1_loss

from minidist.parallel.schedules import Action, in_flight
from minidist.parallel.simulate import grid, simulate
from minidist.parallel.validate import ScheduleError, validate

from ..exam import (
    Case,
    Costly,
    Exam,
    Prediction,
    Report,
    Wrong,
    alone,
    attempt,
    bare,
    close,
    holds,
    integer,
    left_open,
    matches,
    near,
    normal,
    on_time,
    real,
    shuffled,
    table,
    timed,
    typed,
)
from ..oracles.pipelines import any_order, time_of, whole_gradient, words

# ------------------------------------------------------------
# The lists of a learner: `["F0", "F1", "B0", "B1"]` for each stage, read and validated.


FORBIDDEN = (
    "minidist.parallel",
    "minidist.study",
    "torch.distributed.pipelining",
    "minicheck.oracles.pipelines",
)
# (S, M), clear ones first
SIZES = ((4, 8), (3, 3), (2, 5), (1, 1), (1, 4), (4, 2), (3, 1), (8, 16), (5, 12))


def said(S: int, M: int) -> str:
    """`4 stages, 8 micro-batches`."""
    return f"{S} stage{'s' * (S != 1)}, {M} micro-batch{'es' * (M != 1)}"


class Lists(Exam):
    """An answer is a schedule(stage, S, M). `judged` gets the lists of all stages, once they are valid."""

    forbidden = FORBIDDEN
    kinds: str  # of the actions that are asked for
    sizes: tuple[tuple[int, int], ...] = SIZES
    drawn = 3  # cases with S and M drawn at random

    @property
    def cases(self):
        known = table(lambda S, M: said(S, M), self.sizes)
        return known + (Case(1, "stages and micro-batches drawn at random", None),) * self.drawn

    def draw(self, case, rng):
        S, M = case.given or [integer(rng, low, high) for low, high in ((2, 13), (3, 28))]
        return [(S, M, shuffled(rng, S))]

    def run(self, comm, yours, S, M, order):
        # a stage knows nothing of the others
        lists = {stage: yours(stage, S, M) for stage in order}
        return [lists[stage] for stage in range(S)]

    def judge(self, case, args, outcome):
        S, M, _ = args[0]
        try:
            self.judged(valid(outcome.results[0], self.kinds, S, M), S, M)
        except Wrong as wrong:
            raise Wrong(str(wrong) if case.given else f"{said(S, M)}: {wrong}") from None

    def judged(self, lists, S, M):
        """Raise Wrong unless these valid lists are as good as is asked for."""
        raise NotImplementedError


def valid(words: list, kinds: str, S: int, M: int, v: int = 1) -> list[list[Action]]:
    """The lists of all stages from their words. Wrong for actions of other kinds, and for what is no schedule."""
    lists = [actions(stage, some) for stage, some in enumerate(words)]
    for stage, action in ((s, a) for s, some in enumerate(lists) for a in some):
        if action.kind not in kinds:
            raise Wrong(f"stage {stage}: {action} is none of {', '.join(kinds)}.")
    try:
        validate(lists, S, M, v)
    except ScheduleError as error:
        raise Wrong(f"{error}.") from None
    return lists


def actions(stage: int, words) -> list[Action]:
    """The actions of a stage's words. Wrong for what is no list of words."""
    typed(
        words, list | tuple, f"stage {stage}: the result", 'a list of words, such as ["F0", "B0"]'
    )
    for word in words:
        typed(word, str, f"stage {stage}: what is in the list", 'a word, such as "F0"')
    try:
        found = [Action.parse(word) for word in words]
    except ValueError as error:
        raise Wrong(f"stage {stage}: {error}.") from None
    for action, word in zip(found, words):
        if str(action) != word:
            raise Wrong(f"stage {stage}: a word is {word!r}, and should be {str(action)!r}.")
    return found


def in_order(stage: int, actions: list[Action], kind: str, noun: str) -> None:
    """Raise Wrong unless the actions of a kind are in the order of the micro-batches."""
    micros = [a.micro for a in actions if a.kind == kind]
    for before, after in pairwise(micros):
        if after < before:
            raise Wrong(
                f"stage {stage}: {kind}{after} comes after {kind}{before}. {noun} in the order of the "
                "micro-batches, so that sums of gradients are added as in a serial loop."
            )


# ------------------------------------------------------------
# Time: how long lists take, and numbers foretold.


KINDS = {
    "naive": "one micro-batch at a time",
    "gpipe": "all forwards first",
    "1f1b": "one forward, one backward",
    "ahead": "one forward, one backward, and the first stage's forwards first",
    "any": "in an order drawn at random",
}


class StepTime(Report):
    """`step_time(lists, forward, backward)`: how long the lists of all stages take; ValueError if they hang."""

    name = "step_time"
    right = "1 to 6 stages, three schedules and orders drawn at random, slow and fast stages, and lists that hang."
    forbidden = FORBIDDEN
    step = 2.0
    cases = (
        *table(
            lambda kind, S, M, alike: (
                f"{S} stage{'s' * (S > 1)}, {M} micro-batches, {KINDS[kind]}{', stages alike' * alike}"
            ),
            (
                ("gpipe", 2, 2, True),
                ("naive", 2, 2, True),
                ("1f1b", 2, 3, True),
                ("gpipe", 3, 4, False),
                ("1f1b", 4, 8, False),
                ("1f1b", 1, 3, False),
                ("naive", 3, 2, False),
                ("1f1b", 6, 13, False),
                ("gpipe", 4, 11, False),
                ("any", 3, 4, False),
                ("any", 5, 6, False),
            ),
        ),
        *alone(
            {
                "3 stages that only go forward": "F0 F1 F2 | F0 F1 F2 | F0 F1 F2",
                "2 stages that wait for each other in a circle": "F0 B0 F1 B1 | F0 F1 B0 B1",
                "2 stages, of which one goes back before it goes forward": "F0 F1 B0 B1 | B0 F0 F1 B1",
                "3 stages, of which one leaves a forward out": "F0 F1 B0 B1 | F0 B0 | F0 F1 B0 B1",
                "2 stages, of which the last begins with the last micro-batch": "F0 B0 F1 B1 | F1 B1 F0 B0",
                "2 stages, of which the last has a forward more": "F0 F1 B0 B1 | F0 F1 B0 B1 F2",
            }
        ),
    )

    def draw(self, case, rng):
        if isinstance(case.given, str):
            lists = [row.split() for row in case.given.split(" | ")]
            return [(lists, [1.0] * len(lists), [2.0] * len(lists))]
        kind, S, M, alike = case.given
        lists = (
            [words(kind, stage, S, M) for stage in range(S)]
            if kind != "any"
            else any_order(S, M, rng)
        )
        # in thousandths; in an order drawn at random the first stage's forward takes no time
        drawn = (1 + torch.randint(8000, (2, S), generator=rng).double()) / 1000
        drawn[0, 0] *= kind != "any"
        return [(lists, *([[1.0] * S, [2.0] * S] if alike else drawn.tolist()))]

    def run(self, comm, yours, lists, forward, backward):
        return attempt(True, yours, lists, forward, backward)

    def check(self, case, got, lists, forward, backward):
        want = time_of(lists, forward, backward)
        shown = "\n".join(
            f"stage {s}: {' '.join(row)}; F {forward[s]:g}, B {backward[s]:g}"
            for s, row in enumerate(lists)
        )
        if want is None and "refused" not in got:
            raise Wrong(
                f"these lists hang: a stage waits for what never comes. Raise a ValueError.\n{shown}"
            )
        if want is None:
            return
        if "refused" in got:
            raise Wrong(
                f"it raises ValueError ({got['refused']}), but these lists come to their end.\n{shown}"
            )
        number = bare(got["value"])
        typed(number, int | float, "the result", "a number")
        number = real(number)
        if not near(number, want):
            rule = (
                "Too short: an action waits for the one before it in its list, and for what it needs of a neighbour."
                if number < want
                else "Too long: an action starts as soon as its stage is free and what it needs is there."
            )
            raise Wrong(f"{number:.9g}, and should be {want:g}. {rule}\n{shown}")


def predict_pipeline(S=8, M=32, stage=2, share=0.1):
    """8 stages, 32 micro-batches: bubble, and micro-batches kept by GPipe and by stage 2 of 1F1B; tensors that stage 2
    sends; the smallest M for a bubble of 10 %; how many times as long a step takes with recomputation.
    """
    gpipe = (S - 1) / (M + S - 1)
    enough = round((S - 1) * (1 - share) / share)
    values = {
        "bubble": gpipe,
        "gpipe_keeps": M,
        "keeps": S - stage,
        "messages": 2 * M,
        "enough": enough,
        "longer": 4 / 3,
    }
    slips = {
        "bubble": {
            (S - 1)
            / M: "That is the bubble over the time without it: it is a share of all the time.",
            1 - gpipe: "That is the share of work.",
            (S - 1) / S: "That is the naive pipeline.",
        },
        "gpipe_keeps": {
            S: "That is 1F1B.",
            M + S - 1: "Those are slots of time.",
        },
        "keeps": {
            S: "That is stage 0.",
            stage + 1: "It is the other way round: the last stage can go back at once.",
            S - stage - 1: "Those are the forwards to warm up; one more is under way.",
            M: "That is GPipe.",
        },
        "messages": {
            M: "That is one direction: activations go to the right, and gradients to the left.",
            4 * M: "Half of these it receives.",
            2: "Of one micro-batch; a step has M of them.",
        },
        "enough": {
            round((S - 1) / share): "Nearly: the share is of all the time, M + S − 1.",
            enough + 1: "One less is enough.",
        },
        "longer": {
            5
            / 4: "One more forward is a fourth of the new time; the ratio to the old time is asked for.",
            1 / 3: "That is what is added.",
            2: "A step is a forward and a backward that takes twice as long: three units, not one.",
            3 / 2: "That is how much longer B takes alone: F takes what it did.",
            3 / 4: "It is the other way round: recomputation makes a step longer.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_pipeline,
    "Bubbles, activations, messages and micro-batches, within 1 %.",
    {
        "S": ("{} stages", (4, 6, 12)),
        "M": ("{} micro-batches", (24, 48, 60)),
    },
)


# ------------------------------------------------------------
# Lists: 1F1B written.
#
# Any list that is a schedule, takes no longer than the formula's time, and keeps no more than its bound is right.
# Source: Narayanan et al. 2021, section 2.2.1.


class OneFOneB(Lists):
    """`one_f_one_b(stage, S, M)`: the list of a stage, GPipe's bubble with at most S − stage micro-batches kept."""

    name = "one_f_one_b"
    right = "1 to 12 stages, 1 to 27 micro-batches: valid, GPipe's bubble, at most S − stage micro-batches kept."

    kinds = "FB"

    def judged(self, lists, S, M):
        keeps(lists, [min(M, S - stage) for stage in range(S)], "S − stage")
        in_time(
            lists, 3 * (M + S - 1), f"3(M + S − 1) = {3 * (M + S - 1)}", "F takes 1 and B takes 2"
        )
        for stage, actions in enumerate(lists):
            for kind, noun in (("F", "Forwards come"), ("B", "Backwards come")):
                in_order(stage, actions, kind, noun)


def keeps(lists: list[list[Action]], most: list[int], name: str) -> None:
    """Raise Wrong for a stage that keeps the activations of more micro-batches than it needs to."""
    for stage, actions in enumerate(lists):
        count = in_flight(actions)
        if count > most[stage]:
            raise Wrong(
                f"the lists are valid, but stage {stage} keeps the activations of {count} micro-batches at "
                f"once, and {name} = {most[stage]} are enough.{drawn(lists)}"
            )


def in_time(lists: list[list[Action]], most: float, words: str, units: str) -> None:
    """Raise Wrong if a schedule takes longer."""
    took = simulate(lists).time
    if took > most + 1e-9:
        raise Wrong(
            f"the lists are valid, but the step takes {took:g}, and {words} is enough, where {units}."
            f" Where does a stage wait that need not?{drawn(lists)}"
        )


def drawn(lists: list[list[Action]]) -> str:
    """The grid of small schedules, for a message."""
    picture = grid(lists)
    return f"\n{picture}" if max(map(len, picture.splitlines())) <= 100 else ""


# ------------------------------------------------------------
# A stage runs its list: receive, compute, send, forward and backward.
#
# Looked at: gradients, the order of the work, messages and bytes of each edge, which activations are still in memory, and
# the time, on a clock that knows products only.


WIDTH = 5
PRODUCT = 1e-3  # seconds of a product of matrices


NAN_TARGET = "2 stages, 2 micro-batches, a target that is nan"
CHANGED = "a micro-batch was changed, and belongs to the caller: detach it before requires_grad_."


def part_of(weights: list[Tensor]) -> nn.Sequential:
    """A stage: two layers."""
    first, second = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
    for layer, weight in zip((first, second), weights, strict=True):
        layer.weight = nn.Parameter(weight.clone())
    return nn.Sequential(first, nn.Tanh(), second)


class Activations:
    """The memory of what a stage was sent, and of what it made of it, by micro-batch; `kept`: that of one whose backward
    is over, at a later forward than the next."""

    def __init__(self):
        self.held: dict[str, list[StorageWeakRef]] = {}
        self.over: list[str] = []
        self.kept = ""

    def forward(self, micro: str, *tensors: Tensor) -> None:
        for before in self.over[:-1]:  # names still stand for the tensors of the last one
            if not all(memory.expired() for memory in self.held.get(before, [])):
                self.kept = self.kept or before
        self.held[micro] = [StorageWeakRef(unwrapped(x).untyped_storage()) for x in tensors]


def unwrapped(x: Tensor) -> Tensor:
    """The tensor in what torch.func works with."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


class RunStage(Exam):
    """`run_stage(down, up, part, words, xs, ys, loss_fn)`: a stage runs its list; gradients in `part`."""

    name = "run_stage"
    right = (
        "1 to 4 stages, three schedules, up to 12 micro-batches in any order: the serial gradient, the order of "
        "the list, two messages an edge and micro-batch; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(S, f"{S} stage{'s' * (S > 1)}, {M} micro-batches, {KINDS[kind]}", (kind, M))
        for kind, S, M in (
            ("naive", 2, 2),
            ("gpipe", 2, 3),
            ("1f1b", 2, 3),
            ("1f1b", 3, 4),
            ("1f1b", 1, 3),
            ("gpipe", 3, 12),
            ("1f1b", 4, 12),
            ("ahead", 2, 9),
        )
    )
    cases += (Case(2, NAN_TARGET, ("1f1b", 2)),)
    processes = (
        Case(3, "3 real processes, 5 micro-batches, one forward, one backward", ("1f1b", 5)),
    )

    def draw(self, case, rng):
        kind, M = case.given
        dtype = torch.float32 if M > 9 and kind == "gpipe" else torch.float64
        drawn = lambda *shape: normal(rng, shape, dtype=dtype)
        orders = {kind: range(M) for kind in "FB"}
        if M > 9:
            orders["F"] = orders["B"] = shuffled(rng, M)
            if kind == "gpipe":
                orders["B"] = shuffled(rng, M)
        named = lambda word: f"{word[0]}{orders[word[0]][int(word[1:])]}"
        weights = [[drawn(WIDTH, WIDTH) / 2 for _ in range(2)] for _ in range(case.n)]
        rows = [2 + M % 3] * (M - 1) + [1]  # what is left for the last
        xs, ys = ([drawn(n, WIDTH) for n in rows] for _ in range(2))
        if case.what == NAN_TARGET:
            ys[-1][0, 0] = torch.nan
        blank = [torch.zeros_like(x) for x in xs]
        lists = [[named(word) for word in words(kind, s, case.n, M)] for s in range(case.n)]
        return [
            (weights[s], lists[s], xs if s == 0 else blank, ys if s == case.n - 1 else blank)
            for s in range(case.n)
        ]

    def world(self, n, args):
        rows = len(args[0][2][0])
        return timed(n, 1e-12, 1e-20, 2 * rows * WIDTH**2 / PRODUCT)

    def part(self, weights):
        """The stage that an answer gets."""
        return part_of(weights)

    def run(self, comm, yours, weights, order, xs, ys):
        part = self.part(weights)
        log = []
        activations = Activations()
        kept = [x.clone() for x in xs]
        forwards = iter([word for word in order if word[0] == "F"])

        def watch(module, inputs, output):
            known = (f"F{m}" for m, x in enumerate(xs) if x.equal(inputs[0]))
            micro = next(forwards if down.rank else known, "F?")[1:]
            log.append(f"F{micro}")
            activations.forward(micro, output, *(inputs if down.rank else ()))
            if output.requires_grad:
                output.register_hook(lambda grad: back(micro))

        def back(micro):
            log.append(f"B{micro}")
            activations.over.append(micro)

        part.register_forward_hook(watch)
        down, up = (comm.split([0] * comm.size) for _ in range(2))
        yours(down, up, part, list(order), xs, ys, smooth_l1_loss)
        return {
            "open": left_open(comm),
            "log": log,
            "kept": activations.kept,
            "xs": all(map(torch.equal, xs, kept)) and not any(x.requires_grad for x in xs),
            "grads": [p.grad for p in part.parameters()],
            "weights": [p.detach() for p in part.parameters()],
        }

    def judge(self, case, args, outcome):
        S, (_, M) = case.n, case.given
        xs, ys = args[0][2], args[-1][3]
        total = lambda y, target: len(xs) * y.sum()  # of all outputs of all micro-batches
        want, other, of_sum = (
            whole_gradient([part_of(weights) for weights, *_ in args], xs, ys, loss)
            for loss in (smooth_l1_loss, mse_loss, total)
        )
        for s, got in enumerate(outcome.results):
            self._order(s, got["log"], args[s][1])
            if len(got["weights"]) != len(want[s]):
                raise Wrong(f"stage {s}: `part` has other parameters than before.")
            if not all(
                w.equal(before) for w, before in zip(got["weights"], args[s][0], strict=True)
            ):
                raise Wrong(
                    f"stage {s}: the weights themselves were changed: gradients are asked for."
                )
            holds(got, {"xs": CHANGED}, f"stage {s}: ")
        # the last stage first: a wrong gradient goes on to the stages before
        for s in reversed(range(S)):
            self._gradients(s, M, outcome.results[s]["grads"], want[s], other[s], of_sum[s])
        self._costs(args, outcome)

    def _costs(self, args, outcome):
        """Raise Wrong for messages, memory and time that are not needed; the numbers are right."""
        xs = args[0][2]
        self._messages(outcome, len(args), len(xs), sum(x.nbytes for x in xs))
        for s, got in enumerate(outcome.results):
            m = got["kept"]
            # in real processes a send holds its tensor until it is waited for
            if m and outcome.time is not None:
                raise Wrong(
                    f"stage {s}: the numbers are right, but after B{m} what F{m} was sent, or what it made of it, is "
                    "still in memory. Nothing should hold it then: pop it where it was kept."
                )
        products = ([k * PRODUCT] * len(args) for k in (2, 4))  # of an F, and of a B
        enough = time_of([order for _, order, *_ in args], *products)
        hint = "Does a stage wait for a send before it goes on?"
        on_time(outcome, 0, enough * (1 + 1e-6), enough, "the numbers are", hint)

    def _order(self, stage, log, order):
        if log != order:
            raise Wrong(
                f"stage {stage}: its list is {' '.join(order)}, and it does {' '.join(log) or 'nothing'}. The order is "
                "the list's, whatever the schedule; each F runs `part` once, on its own micro-batch, and each B runs "
                "backward from what that gave."
            )

    def _gradients(self, stage, M, grads, want, other, of_sum):
        for i, (got, right) in enumerate(zip(grads, want, strict=True)):
            if got is None:
                raise Wrong(
                    f"stage {stage}: the gradient of layer {i} is None: nothing has come back to it."
                )
            looks = {
                f"It is {M} times too large: the loss of a batch is the mean over its micro-batches.": right
                * M,
                f"It is {M} times too small: divided by M twice?": right / M,
                "It is that of mse_loss: the loss is `loss_fn`, whatever it is.": other[i],
                "It is that of the sum of the outputs: here the loss is `loss_fn`, divided by M.": of_sum[
                    i
                ],
            }
            rule = (
                "Micro-batches mixed up? Is each gradient from the right used for the output of the same one, and does "
                "the loss compare each output with its own targets? Gradients of all add up."
            )
            close(got, right, f"stage {stage}: the gradient of layer {i}", looks, rule)

    def _messages(self, outcome, S, M, total):
        for s in range(S):
            edges = (s > 0) + (s < S - 1)
            most, nbytes = M * edges, total * edges
            if (outcome.messages(s), outcome.nbytes(s)) != (most, nbytes):
                raise (Costly if outcome.nbytes(s) >= nbytes else Wrong)(
                    f"the gradients are right, but stage {s} sends {outcome.messages(s)} messages with "
                    f"{outcome.nbytes(s)} bytes: {most} with {nbytes} are enough, an activation to the right "
                    "and a gradient to the left for each micro-batch."
                )


# ------------------------------------------------------------
# Parameters that several ranks hold: their gradients are summed over these ranks.
#
# Looked at: the sums, that all holders have the same bits, and the bytes of each rank. The names come in another order
# on each rank, so that who goes by the order of a dictionary makes or uses groups in different orders.


TIED = {
    "one table on both": {"tokens": [0, 1]},
    "one table on the first and the last, and a rank between": {"tokens": [0, 2]},
    "a table on two ranks, a norm on all": {"tokens": [0, 3], "norm": [0, 1, 2, 3]},
    "one table on three of four ranks": {"tokens": [0, 1, 3]},
    "three tables, each on two of three ranks": {"a": [0, 1], "b": [1, 2], "c": [0, 2]},
    "a rank that holds one alone, and one that holds nothing": {"alone": [0], "both": [0, 1]},
    "the last ranks only": {"tokens": [2, 3]},
    "a gradient that is None": {"tokens": [0, 1, 2], "norm": [0, 2]},
    "two dtypes": {"half": [0, 2], "full": [0, 1, 2]},
    "a gradient that is nan": {"tokens": [0, 1]},
}
NO_SUM = "Its gradients are to be summed over the ranks that hold it, whoever they are."


class SumTied(Exam):
    """`sum_tied(comm, holders, tied)`: each p.grad becomes the sum over the ranks that hold the parameter."""

    name = "sum_tied"
    right = (
        "2 to 4 ranks, one to three parameters on one to four of them, gradients that are None: the sums, the same bits "
        "on all holders, a ring's bytes; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"{n} ranks: {what}", what)
        for n, what in zip((2, 3, 4, 4, 3, 3, 4, 3, 3, 2), TIED, strict=True)
    )
    processes = tuple(
        Case(3, f"3 real processes: {what}", what)
        for what in ("three tables, each on two of three ranks", "a gradient that is None")
    )

    def draw(self, case, rng):
        holders = TIED[case.given]
        shapes = {name: (integer(rng, 2, 6), 3) for name in holders}
        args = []
        for rank in range(case.n):
            names = list(holders)
            held = [name for name in names if rank in holders[name]]
            turned = names[rank % len(names) :] + names[: rank % len(names)]
            drawn = {}
            for name in held[::-1] if rank % 2 else held:
                dtype = torch.float32 if name == "half" else torch.float64
                value, grad = (normal(rng, *shapes[name], dtype=dtype) for _ in range(2))
                if case.given == "a gradient that is None" and name == "tokens" and rank == 1:
                    grad = None
                if case.given == "a gradient that is nan" and rank == 1:
                    grad[0, 0] = torch.nan
                drawn[name] = value, grad
            args.append(({name: list(holders[name]) for name in turned}, drawn))
        return args

    def run(self, comm, yours, holders, drawn):
        tied = {}
        for name, (value, grad) in drawn.items():
            tied[name] = nn.Parameter(value.clone())
            tied[name].grad = None if grad is None else grad.clone()
        kept = {name: list(ranks) for name, ranks in holders.items()}
        yours(comm, holders, dict(tied))
        return {
            "grads": {name: p.grad for name, p in tied.items()},
            "weights": {name: p.detach() for name, p in tied.items()},
            "holders": holders == kept,
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        holders = args[0][0]
        for rank, got in enumerate(outcome.results):
            holds(
                got,
                {"holders": "`holders` was changed, and belongs to the caller."},
                f"rank {rank}: ",
            )
            for name, (value, _) in args[rank][1].items():
                if not matches(got["weights"][name], value):
                    raise Wrong(
                        f"rank {rank}: the parameter {name!r} itself was changed: it is p.grad that is summed, and the "
                        "optimizer changes parameters."
                    )
        for name, ranks in holders.items():
            parts = {r: args[r][1][name][1] for r in ranks}
            there = [grad for grad in parts.values() if grad is not None]
            total = torch.stack(there).sum(0)
            for rank in ranks:
                self._gradient(name, rank, ranks, parts, total, outcome)
            bits = [outcome.results[r]["grads"][name] for r in ranks]
            for rank, grad in zip(ranks, bits):
                if not matches(grad, bits[0]):
                    raise Wrong(
                        f"the gradients of {name!r} are right but for rounding, which differs on ranks {ranks[0]} and "
                        f"{rank}: they take different steps, and drift apart. Add up in one order."
                    )
        self._bytes(args, outcome)

    def _gradient(self, name, rank, ranks, parts, total, outcome):
        got = outcome.results[rank]["grads"][name]
        where = f"rank {rank}: the gradient of {name!r}"
        if got is None:
            raise Wrong(
                f"{where} is None, and should be the sum over ranks {ranks}: one that is missing counts as zeros."
            )
        looks = {}
        own = parts[rank]
        if own is not None and len(ranks) > 1:
            looks[f"It is this rank's own part: nothing was added. {NO_SUM}"] = own
        if len(ranks) > 1:
            looks["It is the mean: each holder has a part of one gradient, which is their sum."] = (
                total / len(ranks)
            )
            looks[f"It is {len(ranks)} times too large: summed more than once?"] = total * len(
                ranks
            )
            if own is not None:
                looks["This rank's own part counts twice."] = total + own
                looks["This rank's own part is missing in it."] = total - own
        close(got, total, where, looks, f"It should be the sum over ranks {ranks}, and no others.")

    def _bytes(self, args, outcome):
        """Raise for bytes that are more than a ring's, or fewer than any sum needs."""
        holders = args[0][0]
        needed = 0
        for rank, (_, drawn) in enumerate(args):
            most = 0
            for name, (value, _) in drawn.items():
                k = len(holders[name])
                most += 2 * (k - 1) * -(-value.numel() // k) * value.element_size()
                needed += 2 * (k - 1) * value.nbytes // k
            sent = outcome.nbytes(rank)
            if sent > most:
                who = (
                    "it has nothing to sum with another rank, and should send nothing"
                    if not most
                    else f"{most} are enough: those of a ring among the holders of each parameter"
                )
                raise Costly(
                    f"the sums are right, but rank {rank} sends {sent} bytes: {who}. Is a group made of other ranks, or "
                    "made by messages?"
                )
        total = sum(outcome.nbytes(rank) for rank in range(len(args)))
        if total < needed - 16 * len(args):
            raise Wrong(
                f"the sums are right, but all ranks together send {total} bytes, and no sum comes about with fewer than "
                f"{needed}: have they travelled by another way than messages?"
            )
