"""An examination: what is asked, of which ranks, and what makes an answer right. Subclass `Exam`, and give it a name.

    class Double(Exam):
        name, right = "double", "n = 1…3"
        cases = tuple(Case(n, f"n = {n}") for n in (2, 1, 3))   # each in a World of n ranks
        processes = (Case(2, "2 real processes"),)              # each in n processes of its own
        given = ("x",)                                          # what must not change

        def draw(self, case, rng):                              # in the guard: each rank's arguments
            return [(normal(rng, 4),) for _ in range(case.n)]

        def wants(self, case, args):                            # the oracle: what each rank should find
            return [{"the result": 2 * x} for (x,) in args]

        def mistakes(self, case, args, rank, name, got):        # what the usual ones would give
            return {"It is 3x.": 3 * args[rank][0]}

        def cost(self, case, args, outcome):                    # messages and bytes
            few(outcome, 0, "Nothing need be sent.")

Costs that `promises` names are worth a part of the points. Cases of one kind are a `table`, or `ranked`. An exercise on
one rank is a `Solo`; where `run` reports more than a result, it is a `Report`, whose `check` looks at that. An exercise of
another kind writes `run` and `judge` itself: `run` is called on each rank, beside the answer, and `judge` in the guard,
which the answer never enters.

`draw` draws from a secret seed, after the processes were forked: no rank has another's numbers. `run` gets
what was drawn and returns plain values (`encode`): also the arguments as they are afterwards, where they
must not change, or must. `judge` raises `Wrong`, with the numbers, the rank, and what the mistake looks
like. What `run` returns comes from a process that the answer could have tampered with: `judge` believes
no part of it that it could compute itself. Each lesson's examinations stand in a file of lessons/,
and are functions of `minicheck`, by their names. Who examines how: guard.py and examinee.py.

After it: what passes between a grader and an answer's process, and how a wrong tensor is described.
"""

from __future__ import annotations

import hashlib
import io
import json
import linecache
import math
import re
import traceback
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from minidist.comm.base import Comm
from minidist.comm.cluster import Cluster, Device
from minidist.comm.program import dumps
from minidist.comm.shm import ShmComm
from minidist.comm.world import World

from . import refuse

# ------------------------------------------------------------
# What a check says of a wrong answer.


class Wrong(AssertionError):
    """An answer is wrong; the message says how, in words that teach. A notebook shows the message alone.

    share: of the exercise's points, what the answer earns all the same.
    """

    def __init__(self, words: str, share: float = 0.0):
        super().__init__(words)
        self.share = share

    def _render_traceback_(self) -> list[str]:
        return [f"Wrong: {self}"]


class Costly(Wrong):
    """What it gives is right, but it takes more than it may: bytes, messages, memory or time."""


# ------------------------------------------------------------
# What is asked and what came of it; an answer, packed so that nobody opens it here.


class Case(NamedTuple):
    """One run of an answer on `n` ranks. `what`: its name in messages ("n = 3, 7 numbers"). `given`: for `draw`."""

    n: int
    what: str
    given: Any = None


def alone(rows) -> tuple[Case, ...]:
    """Cases on one rank each, from {what: given}, or from pairs (what, given)."""
    pairs = rows.items() if isinstance(rows, dict) else rows
    return tuple(Case(1, what, given) for what, given in pairs)


def table(what, rows) -> tuple[Case, ...]:
    """A case on one rank for each row, which is its `given`: values, or one. what: its name, a format or a function of them."""
    name = what.format if isinstance(what, str) else what
    return alone((name(*(row if isinstance(row, tuple) else (row,))), row) for row in rows)


def ranked(what, rows) -> tuple[Case, ...]:
    """As `table`, on as many ranks as a row's first value says; `given` are the others, or the other one."""
    cases = table(what, rows)
    return tuple(
        Case(n, name, tuple(rest) if len(rest) > 1 else rest[0]) for _, name, (n, *rest) in cases
    )


class Outcome(NamedTuple):
    """What a case gave: `results[r]` of each rank, and each message that was sent, as (src, dst, bytes).

    time: seconds that the case took on the clock of its World; None in real processes.
    """

    results: list
    sent: list[tuple[int, int, int]]
    time: float | None = None

    def messages(self, rank: int | None = None) -> int:
        """Messages that `rank` sent, or all did."""
        return sum(1 for src, _, _ in self.sent if rank in (None, src))

    def nbytes(self, rank: int | None = None) -> int:
        """Bytes that `rank` sent, or all did."""
        return sum(nbytes for src, _, nbytes in self.sent if rank in (None, src))

    def receivers(self, rank: int) -> list[int]:
        """Ranks that `rank` sent to, without repetition."""
        return sorted({dst for src, dst, _ in self.sent if src == rank})


class Exam:
    """How one exercise is examined; see the module's text. Instances travel to the guard, so keep them small.

    name: of the exercise.  right: what has been tried, for the line that says so.
    returns: names of what an answer returns.  given: of its arguments that must not change, in order ("": this one may).
    replicated: names of results that must be the same on all ranks, bit for bit.
    exact: whether every number must be equal, not only but for rounding.
    promises: what an answer promises besides a right result, {the method that judges it, in the place of `judge`: its share
        of the points}. It raises Costly where the promise is broken: that share is lost, and no other; and Wrong where the
        result cannot have come in a right way, such as with fewer bytes than it needs: then nothing is earned.
    functions: whether the answers are functions.  forbidden: modules whose functions are refused,
        beside torch's collectives.
    step: seconds that one case may take.  load: seconds that the answer may take to be loaded.
    """

    name: str
    right: str
    cases: tuple[Case, ...] = ()
    processes: tuple[Case, ...] = ()
    returns: tuple[str, ...] = ("the result",)
    given: tuple[str, ...] = ()
    replicated: tuple[str, ...] = ()
    promises: dict[str, float] = {}
    exact = False
    functions = True
    forbidden: tuple[str, ...] = ("minidist.collectives", "minidist.parallel")
    step, load = 3.0, 10.0

    def __init_subclass__(cls):
        refuse.loaded(cls.forbidden)

    def draw(self, case: Case, rng: torch.Generator) -> list[tuple]:
        """Each rank's arguments for `run`: plain values."""
        raise NotImplementedError

    def world(self, n: int, args: list[tuple]) -> World:
        """The World of a case, in the answer's process; `args` are what `draw` drew."""
        return World(n)

    def seconds(self, args: list[tuple], answer) -> float:
        """Seconds that a case takes on the clock of its World, with an answer that is known."""
        world = self.world(len(args), args)
        world.run(lambda comm, some: self.run(comm, answer, *some[comm.rank]), args)
        return world.time

    def run(self, comm: Comm, yours, *given):
        """Call the answer on one rank; returns a plain value: what was found, and the arguments as they are now."""
        return {"found": self.call(comm, yours, *given), "given": given, "open": left_open(comm)}

    def call(self, comm: Comm, yours, *given):
        """What the answer finds."""
        return yours(comm, *given)

    def judge(self, case: Case, args: list[tuple], outcome: Outcome) -> None:
        """Raise Wrong unless the outcome is right. `args` are as they were drawn."""
        wants = self.wants(case, args)
        for r, got in enumerate(outcome.results):
            for name, after, before in zip(self.given, got["given"], args[r]):
                if name:
                    unchanged(after, before, f"{self.where(r)}{name}")
            found = unpacked(got["found"], self.returns, self.where(r))
            for name, value in found.items():
                self.value(case, args, r, name, value, wants[r][name])
        for name in self.replicated:
            identical([unpacked(got["found"], self.returns)[name] for got in outcome.results], name)
        if "cost" not in self.promises:
            self.cost(case, args, outcome)

    def where(self, rank: int) -> str:
        """How a message about one rank begins."""
        return f"rank {rank}: " if any(case.n > 1 for case in self.cases) else ""

    def value(self, case, args, rank: int, name: str, got, want) -> None:
        """Raise Wrong unless `got` is `want`."""
        mistakes = partial(self.mistakes, case, args, rank, name)
        (same if self.exact else close)(got, want, self.where(rank) + name, mistakes)

    def wants(self, case: Case, args: list[tuple]) -> list[dict[str, Any]]:
        """What each rank should find, by name: the oracle."""
        raise NotImplementedError

    def mistakes(self, case: Case, args: list[tuple], rank: int, name: str, got):
        """The usual mistakes, {words: what they give}, or what to say of `got`."""
        return None

    def cost(self, case: Case, args: list[tuple], outcome: Outcome) -> None:
        """Raise Costly if the right numbers came with too many messages or bytes."""


COSTLY = 0.5  # of the points, for what is right and takes too much, where an exam does not say how much each cost is worth


def look(exam: Exam, outcomes: Iterable[tuple[Case, list[tuple], Outcome]]) -> None:
    """Raise Wrong unless every case is right; Costly, with the share that is left, where only the costs are not."""
    shares = exam.promises or {"judge": COSTLY}
    broken: dict[str, str] = {}
    for case, args, outcome in outcomes:
        try:
            for promise in ("judge", *exam.promises):
                words = _cost(exam, promise, case, args, outcome)
                if words and promise not in shares:
                    raise Wrong(words)
                if words:
                    broken.setdefault(promise, f"{case.what}: {words}")
                waited(outcome)
        except Wrong as wrong:
            raise Wrong(f"{exam.name}: {case.what}: {wrong}") from None
    if broken:
        share = 1.0 - sum(shares[promise] for promise in broken)
        words = [*broken.values(), f"All else is right: {share:.0%} of the points."]
        raise Costly(f"{exam.name}: " + "\n".join(words), share)


def _cost(exam: Exam, promise: str, case: Case, args: list[tuple], outcome: Outcome) -> str:
    """What takes too much in a case, or "": the result is right."""
    try:
        getattr(exam, promise)(case, args, outcome)
    except Costly as costly:
        return str(costly)
    return ""


FAILED = "the grader itself failed"


def failure(exam: Exam, error: Exception) -> str:
    """What is said of an answer where a grader raises what is not Wrong: whose failure it is, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(Path(__file__).parent)]
    place = f"{Path(own[-1].filename).name}, line {own[-1].lineno}"
    return (
        f"{exam.name}: {FAILED}, and cannot say whether this is right: {type(error).__name__}: {error}, in {place}. "
        "That is no fault of yours: please report it."
    )


class Solo(Exam):
    """An exercise on one rank: its answer gets no Comm."""

    def call(self, comm, yours, *given):
        return yours(*given)


class Report(Solo):
    """Its `run` reports more than a result, and `check` looks at the report."""

    def judge(self, case, args, outcome):
        self.check(case, outcome.results[0], *args[0])

    def check(self, case: Case, got, *given) -> None:
        """Raise Wrong unless the report is right. given: what was drawn."""
        raise NotImplementedError


class Packed(NamedTuple):
    """An answer that must not be opened here. `sources`: the text of the files that it was written in. `number`: the
    answer as a plain value (`encode`), which may be opened; a function is none."""

    data: bytes
    sources: dict[str, list[str]]
    number: bytes


def pack(name: str, answer) -> Packed:
    """`answer` as a fresh process can open it. Wrong if it holds what cannot be sent."""
    if isinstance(answer, Packed):
        return answer
    try:
        return Packed(dumps(answer), _sources(answer), encode(bare(answer)))
    except Exception as error:
        raise Wrong(
            f"{name}: the answer cannot be sent to another process, where it is examined: {error}"
        ) from None


def _sources(answer) -> dict[str, list[str]]:
    """The text of the cells that the answer, and the functions beside it, stand in, so that messages can show lines."""
    if not isinstance(answer, FunctionType):
        return {}
    functions = [f for f in answer.__globals__.values() if isinstance(f, FunctionType)]
    files = {
        f.__code__.co_filename for f in [answer, *functions] if f.__module__ == answer.__module__
    }
    return {file: linecache.getlines(file) for file in files}


# ------------------------------------------------------------
# Plain values as bytes and back: what passes between a grader and the process of an untrusted answer.
#
# Numbers, strings, lists, tuples, dicts and tensors, nothing that could run code when it is read (pickle could); what
# is one of them and more (a Counter, a number of NumPy's, a Fraction) becomes the plain one. Layout: 8 bytes with the
# length of a JSON text, the text, the tensors' bytes one after the other.


FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "bool")
DTYPES = {name: getattr(torch, name) for name in FLOATS + INTEGERS}


@dataclass(frozen=True)
class Other:
    """Stands for a value that is not plain: only the name of its type is known."""

    kind: str

    def __repr__(self) -> str:
        return f"a {self.kind}"


def kind_of(value) -> str:
    """The name of a value's type, as where it came from."""
    if isinstance(value, Other):
        return value.kind
    return "None" if value is None else type(value).__name__


def shown(value) -> str:
    """What came instead of what was asked for, in short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def bare(x):
    """A number that came as a tensor of one element, as Python has it, also in lists; anything else as it is."""
    if isinstance(x, list | tuple):
        return (list if isinstance(x, list) else tuple)(map(bare, x))
    return x.item() if isinstance(x, Tensor) and x.numel() == 1 else x


def real(x: float | Fraction | Decimal) -> float:
    """A number as a float, also one that no float holds."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def encode(value) -> bytes:
    """`value` as bytes; what is not plain becomes `Other`."""
    blobs: list[bytes] = []
    text = json.dumps(_to_json(value, blobs)).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *blobs])


def _to_json(value, blobs: list[bytes]):
    if isinstance(value, Tensor):
        return _tensor_to_json(value, blobs)
    if isinstance(value, numpy.generic | numpy.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Fraction | Decimal):
        value = int(value) if value == int(value) else float(value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [_to_json(v, blobs) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(v, blobs) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_to_json(k, blobs), _to_json(v, blobs)] for k, v in value.items()]}
    return {"other": kind_of(value)}  # a report is passed on by whoever has read it


def _tensor_to_json(x: Tensor, blobs: list[bytes]):
    name = str(x.dtype).removeprefix("torch.")
    if x.layout != torch.strided or x.device.type != "cpu" or name not in DTYPES:
        return {"other": f"{x.device.type} tensor of {name}"}
    plain = x.detach().as_subclass(Tensor).resolve_conj().resolve_neg()
    # A copy, because `contiguous` leaves one number its stride, which may be 2.
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    blobs.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return {"tensor": [name, list(x.shape)]}


def decode(data: bytes):
    """The value of `encode`; ValueError for bytes that are no such value, whatever they are."""
    stream = io.BytesIO(data)
    try:
        size = int.from_bytes(stream.read(8), "little")
        value = _from_json(json.loads(stream.read(size)), stream)
    except Exception as error:
        raise ValueError(f"not a plain value: {error}") from None
    if stream.read(1):
        raise ValueError("bytes are left over")
    return value


def _from_json(value, blobs: io.BytesIO):
    if isinstance(value, list):
        return [_from_json(v, blobs) for v in value]
    if not isinstance(value, dict):
        return value
    [(kind, held)] = value.items()
    if kind == "other":
        return Other(str(held))
    if kind == "tensor":
        return _tensor(*held, blobs)
    return {"tuple": tuple, "dict": dict}[kind](_from_json(held, blobs))


def _tensor(name: str, shape: list[int], blobs: io.BytesIO) -> Tensor:
    dtype = DTYPES[name]
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(blobs.read(size)), dtype=dtype).reshape(shape)


# ------------------------------------------------------------
# What an exam draws. Whole numbers are large, so that sums are exact in any order, and a wrong sum betrays which ranks
# went into it: with n ranks there are few combinations, and one of them fits.


LARGEST = 10**6  # sums of 16 of them are exact in float32


def whole(shape, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """Random whole numbers, exact in float32, float64 and integers."""
    return torch.randint(1, LARGEST, tuple(shape), generator=rng).to(dtype)


def integer(rng: torch.Generator, low: int, high: int) -> int:
    """A random integer, low ≤ x < high."""
    return int(torch.randint(low, high, (), generator=rng))


def integers(rng: torch.Generator, low: int, high: int, count: int) -> list[int]:
    """So many random integers, low ≤ x < high."""
    return torch.randint(low, high, (count,), generator=rng).tolist()


def one_of(n: int, rng: torch.Generator) -> int:
    """A rank; not rank 0, which is special anyhow, if there are others."""
    return integer(rng, min(1, n - 1), n)


def shuffled(rng: torch.Generator, count: int) -> list[int]:
    """0 to count − 1, in a random order."""
    return torch.randperm(count, generator=rng).tolist()


def uniform(rng: torch.Generator) -> float:
    """A random number between 0 and 1."""
    return float(torch.rand((), generator=rng))


def normal(rng: torch.Generator, *shape, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normally distributed numbers; `shape` as torch.randn takes it."""
    return torch.randn(*shape, generator=rng, dtype=dtype)


# ------------------------------------------------------------
# Is a value what it should be? If not: where, and which usual mistake gives exactly this?
#
# Usual mistakes are a table, {words: what the mistake would give}: the first that fits is what the learner reads. It may
# be a function of `got`, asked only for a wrong answer, that returns such a table, or the words, or None.


UNKNOWN = "It looks like no usual mistake."
ROUNDED = "Its first digits are right: is something computed in float32, or rounded, on the way?"
HIDDEN = "A nan or inf that comes in is no longer there: it tells that something has gone wrong. Is it replaced, or left out?"
SLACK = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-4, torch.bfloat16: 1e-4}


def near(got, want, slack: float | None = None) -> bool:
    """Equal but for rounding, which is relative to the largest number; inf and nan stand where they stand in `want`."""
    if not isinstance(want, Tensor):
        slack = 1e-9 if slack is None else slack
        same = got == want or (got != got and want != want)
        return same or (slack > 0 and abs(real(got) - want) <= slack * abs(want) < math.inf)
    if not isinstance(got, Tensor) or got.shape != want.shape:
        return False
    finite = want.isfinite()
    if not finite.all():
        strange = torch.allclose(got[~finite].double(), want[~finite].double(), equal_nan=True)
        return strange and near(got[finite], want[finite], slack)
    slack = SLACK.get(want.dtype, 0.0) if slack is None else slack
    got, want = got.double(), want.double()
    return not want.numel() or bool((got - want).abs().max() <= slack * want.abs().max())


def recognized(got, mistakes, otherwise: str = UNKNOWN, fits=near) -> str:
    """The words of the first of the usual mistakes that gives `got`."""
    found = mistakes(got) if callable(mistakes) else mistakes
    if isinstance(found, dict):
        found = next((words for words, value in found.items() if fits(got, value)), None)
    return found or otherwise


def close(got, want, what: str, mistakes=None, otherwise: str = UNKNOWN, slack=None) -> None:
    """Raise Wrong unless `got` is `want` but for rounding: a tensor of its shape and dtype, or a number.

    what: its name in the message ("rank 1: dx").  mistakes: the usual ones.  slack: how far it may be off, relative to the
    largest number; None: as its dtype rounds.  otherwise: said where no mistake fits.
    """
    if not isinstance(want, Tensor):
        got = number(got, what)
        if not near(got, want, slack):
            if otherwise == UNKNOWN and near(got, want, 2e-4):
                otherwise = ROUNDED
            said = recognized(got, mistakes, otherwise, partial(near, slack=slack))
            raise Wrong(f"{what} is {written(got)}, and should be {written(want)}. {said}")
        return
    alike(got, want, what)
    if not near(got, want, slack):
        looks = recognized(got, mistakes, ROUNDED if near(got, want, 1e-3) else "")
        raise _differs(got, want, what, looks, otherwise)


def same(got, want: Tensor, what: str, mistakes=None, otherwise: str = UNKNOWN) -> None:
    """Raise Wrong unless `got` equals `want` in type, shape, dtype and every number."""
    alike(got, want, what)
    if differ(got, want).any():
        raise _differs(got, want, what, recognized(got, mistakes, "", equal), otherwise)


def _differs(got: Tensor, want: Tensor, what: str, looks: str, otherwise: str) -> Wrong:
    """Where `got` differs most from `want`, by what, and what it looks like; `looks`: the words of a usual mistake."""
    wrong = differ(got, want).reshape(-1)
    off = (got.double() - want.double()).abs().nan_to_num(torch.inf).reshape(-1)
    at = int(torch.where(wrong, 1 + off, 0.0).argmax())
    found, right = (written(x.reshape(-1)[at].item()) for x in (got, want))
    where, colon, name = what.rpartition(": ")
    indexed = got.dim() == 1 and " " not in name
    place = f"{name}[{at}]" if indexed else f"number {at} of {name}" if got.dim() else name
    count = "" if got.numel() == 1 else f" ({int(wrong.sum())} of {got.numel()} numbers are wrong)"
    there = want.isfinite()
    if not there.all() and near(got[there], want[there]) and got[~there].isfinite().any():
        looks = HIDDEN
    elif want.element_size() > 4 and near(got, want, 1e-5):
        looks = ROUNDED
    looks = looks or _in_general(got[there], want[there], otherwise)
    return Wrong(f"{where}{colon}{place} is {found}, and should be {right}{count}. {looks}")


def _in_general(got: Tensor, want: Tensor, otherwise: str) -> str:
    """What can be said of any wrong numbers: they are not finite, or a multiple of the right ones."""
    got, want = got.double(), want.double()
    times = float((got * want).sum() / (want * want).sum())
    if not math.isfinite(times):
        general = "There is inf or nan in it."
    elif near(got, times * want):
        general = f"It is {times:.4g} times what it should be." if got.any() else "It is zero."
    else:
        return otherwise
    return general if otherwise == UNKNOWN else f"{general} {otherwise}"


def differ(got: Tensor, want: Tensor) -> Tensor:
    """Where two tensors of one shape have different numbers; nan is nan."""
    return (got != want) & ~((got != got) & (want != want))


def matches(got: Tensor, want: Tensor) -> bool:
    """As `Tensor.equal`, but nan is nan."""
    return got.shape == want.shape and not bool(differ(got, want).any())


def equal(got, value: Tensor) -> bool:
    """The same, but nothing equals what has no numbers, or is no tensor."""
    return isinstance(got, Tensor) and got.numel() > 0 and matches(got, value)


def first_near(got, slips: dict[float, str], slack: float, otherwise: str = "") -> str:
    """The words of the first of some wrong numbers, {number: words}, that is near."""
    return next((words for value, words in slips.items() if near(got, value, slack)), otherwise)


def written(x: float) -> str:
    """A number as one reads it: 16000000 or 0.4125."""
    most = 2**64 if isinstance(x, int) else 1e16
    return str(int(x)) if x == x and abs(x) < most and int(x) == x else f"{real(x):.8g}"


def number(got, what: str):
    """`got` as Python has it. Wrong unless it is a number."""
    got = bare(got)
    typed(got, int | float, what, "a number")
    return got


def typed(got, kinds, what: str, should: str) -> None:
    """Raise Wrong unless `got` is of one of the `kinds`, which a learner calls `should`; True is no number."""
    if got is None:
        raise Wrong(f"{what} is None. Is there a `return`?")
    if not isinstance(got, kinds) or (isinstance(got, bool) and kinds is not bool):
        raise Wrong(f"{what} is of type {kind_of(got)}, and should be {should}.")


def formed(value, form) -> bool:
    """Whether a value is of a form: a type; [form], so many of them; (form, form), exactly these."""
    if not isinstance(form, list | tuple):
        return type(value) is form
    if not isinstance(value, list | tuple):
        return False
    if isinstance(form, list):
        return all(formed(v, form[0]) for v in value)
    return len(value) == len(form) and all(map(formed, value, form))


def shaped(got, form, what: str, should: str):
    """`got`, its numbers bare. Wrong unless it is of a form, a list as a rule, which a learner calls `should`."""
    found = bare(got)
    if not formed(found, form):
        typed(got, list | tuple, what, should)
        raise Wrong(f"{what} is {shown(got)}, and should be {should}.")
    return found


def unpacked(found, names: tuple[str, ...], where: str = "") -> dict[str, Any]:
    """What was returned, by name. Wrong unless there is a value for each."""
    if len(names) == 1:
        return {names[0]: found}
    should = f"a tuple of {len(names)}: {', '.join(names)}"
    typed(found, tuple | list, f"{where}the result", should)
    if len(found) != len(names):
        raise Wrong(f"{where}the result has {len(found)} values, and should be {should}.")
    return dict(zip(names, found, strict=True))


def entries(found, names: tuple[str, ...], what: str) -> None:
    """Raise Wrong unless `found` is a dict with exactly the keys `names`."""
    listed = ", ".join(map(repr, names))
    typed(found, dict, what, f"a dict with {listed}")
    if set(found) != set(names):
        keys = ", ".join(sorted(map(repr, found))) or "none"
        raise Wrong(f"{what} has the keys {keys}, and should have {listed}.")


def holds(report: dict, words: dict[str, str], where: str = "") -> None:
    """Raise Wrong for the first of what should be true, {its name in the report: what is wrong if not}, that is not."""
    for name, said in words.items():
        if not report[name]:
            raise Wrong(where + said)


def identical(values: list[Tensor], what: str) -> None:
    """Raise Wrong unless all ranks have the same numbers, bit for bit; that they are right but for rounding is known."""
    for r, value in enumerate(values):
        if differ(value, values[0]).any():
            raise Wrong(
                f"{what} is right but for rounding, which differs on rank 0 and rank {r}: it should be the same on "
                "every rank, so add up in the same order."
            )


def alike(got, want: Tensor, what: str) -> None:
    """Raise Wrong unless `got` is a tensor of `want`'s shape and dtype."""
    typed(got, Tensor, what, "a tensor")
    for name, is_, should in (
        ("shape", tuple(got.shape), tuple(want.shape)),
        ("dtype", got.dtype, want.dtype),
    ):
        if is_ != should:
            raise Wrong(f"{what} has {name} {is_}, and should have {should}.")


def left_open(comm: Comm | None, unmet: bool = False) -> int:
    """How many sends, receives and jobs of a stream a rank has posted and not waited for; without a Comm (`Solo`) none.

    unmet: of these, which nobody has met yet; only a World tells.
    """
    if comm is None:
        return 0
    works = comm.endpoint.open if isinstance(comm, ShmComm) else comm._open
    return sum(getattr(work, "parts", 0) > 0 for work in works) if unmet else len(works)


WAIT = "Keep what isend, irecv, batch and stream return, and wait() for each."


def waited(outcome: Outcome) -> None:
    """Raise Wrong if an answer has returned while what it posted may be under way; of runs that report what is `open`."""
    for r, got in enumerate(outcome.results):
        if isinstance(got, dict) and got.get("open"):
            raise Wrong(
                f"the numbers are right, but rank {r} returns without waiting for all that it has posted "
                f"({got['open']}): it may still be under way, and who writes into a tensor that is being sent changes "
                f"what arrives. {WAIT}"
            )


def finished(comm: Comm) -> None:
    """Raise RuntimeError where an answer has returned while others have not met what it has posted: the tensors belong to
    the messages. As `waited`, on the rank itself, for an answer that goes on after other steps."""
    left = left_open(comm, unmet=True)
    if left:
        raise RuntimeError(
            f"it has returned, and nobody has met {left} of its sends and receives. {WAIT}"
        )


def unchanged(after, before, what: str) -> None:
    """Raise Wrong if an argument was written to: a tensor, or any plain value; of a list, which one."""
    if isinstance(before, list) and isinstance(after, list) and len(after) == len(before):
        quote = "`" * what.endswith("`")
        for i, pair in enumerate(zip(after, before)):
            unchanged(*pair, f"{what.removesuffix(quote)}[{i}]{quote}")
    elif encode(after) != encode(before):
        raise Wrong(f"{what} was changed, and belongs to the caller: work on a copy.")


def who(got: Tensor, parts: list[Tensor], rank: int) -> str | None:
    """Which ranks' numbers went into `got`, where rank r's are `parts[r]`: a sentence, or None.

    Tries every combination in which each rank counts 0, 1 or 2 times, and the average.
    """
    n = len(parts)
    if not got.numel() or any(p.shape != got.shape for p in parts):
        return None
    if got.dtype != torch.int64:  # whose numbers no float holds
        got, parts = got.double(), [p.double() for p in parts]
    total = sum(parts)
    if (
        n > 1
        and torch.allclose(got.double() * n, total.double(), rtol=1e-5, atol=n)
        and not equal(got, total)
    ):
        return "It is the average: the sum is asked for."
    for r, part in enumerate(parts):
        if n > 2 and equal(got, n * part):
            return f"It is {n} times rank {r}'s: nothing of the other ranks is in it."
    for times in product((0, 1, 2), repeat=n):
        some = [t * p for t, p in zip(times, parts) if t]  # 0 · nan is nan
        if equal(got, sum(some, torch.zeros_like(got))):
            return _counted(times, rank)
    return None


def _counted(times: tuple[int, ...], rank: int) -> str:
    """What a sum is in which each rank counts so many times."""
    there, absent, twice = (
        [r for r, t in enumerate(times) if t in kind] for kind in ((1, 2), (0,), (2,))
    )
    if not there:
        return "It is zero: was nothing put into it?"
    if len(there) == 1 and not twice:
        if there == [rank]:
            return f"It is rank {rank}'s own, as before: nothing arrived, or what arrived was not used."
        return f"It is rank {there[0]}'s."
    parts = [f"counts {ranks(twice)} twice"] if twice else []
    parts += [f"lacks {ranks(absent)}"] if absent else []
    if not parts:
        return "It is the sum over all ranks."
    hint = " One step short?" if len(absent) == 1 and not twice else ""
    return f"It is a sum that {' and '.join(parts)}.{hint}"


def ranks(some: list[int]) -> str:
    """`rank 1`, `ranks 0, 2 and 3`."""
    if len(some) == 1:
        return f"rank {some[0]}"
    return f"ranks {', '.join(map(str, some[:-1]))} and {some[-1]}"


def wrong_means(rank: int, own: list[Tensor], hint: str = "") -> dict[str, Tensor]:
    """What a mean over all ranks may be instead, where rank r's own tensor is `own[r]`."""
    n, total = len(own), sum(own)
    hint = hint or "nothing was averaged, or not in place, or nobody waited for it."
    there = [r for r in range(n) if own[r].any()]
    found = {
        f"It is the mean over the {len(there)} of {n} ranks that have one: a missing one counts as zeros, and {n} is "
        "what to divide by.": total / max(1, len(there) % n or n),
        f"It is rank {rank}'s own, as before: {hint}": own[rank],
        f"It is {n} times too large: summed, not averaged?": total,
        f"It is {n} times too small: divided by n twice?": total / n**2,
        f"It is rank {rank}'s own, divided by {n}: the other ranks' are not in it.": own[rank] / n,
        "It is zero: was it cleared before the exchange?": torch.zeros_like(total),
    }
    for r in range(n):
        found[f"It is rank {r}'s own: all ranks' are to be averaged."] = own[r]
        found[f"It is rank {r}'s own, divided by {n}."] = own[r] / n
    for counts in list(product((0, 1), repeat=n))[1:-1]:
        some, lacks = ([r for r in range(n) if counts[r] == c] for c in (1, 0))
        part, words = (
            sum(own[r] for r in some),
            f"{ranks(some)} only: {ranks(lacks)} did not get in.",
        )
        found |= {
            f"It is the mean of {words}": part / len(some),
            f"It is the sum of {words}": part,
            f"It is 1/{n} of the sum of {words}": part / n,
        }
    return found


def ring_bytes(tensors: list[Tensor], n: int) -> int:
    """Bytes of one rank in a ring all-reduce of each tensor: 2(n−1)/n·N, chunks rounded up."""
    return sum(2 * (n - 1) * -(-x.numel() // n) * x.element_size() for x in tensors)


def refusal(got: dict, words: list, where: str, why: str) -> None:
    """Raise Wrong unless a ValueError was raised, with all these words or numbers in it: {"refused": its text}."""
    if "refused" not in got:
        raise Wrong(f"{where}{why}: raise a ValueError.")
    said = re.findall(r"\w+", got["refused"])
    missing = [word for word in words if str(word) not in said]
    if missing:
        needed = " and ".join(map(str, words))
        raise Wrong(
            f"{where}the ValueError says {got['refused']!r}. Whoever reads it looks for {needed}, and {missing[0]} is "
            "not in it."
        )


def attempt(due: bool, yours, *given) -> dict:
    """What an answer finds, {"value": …}, or {"refused": the text of its ValueError}, which is raised unless it is due."""
    try:
        return {"value": yours(*given)}
    except ValueError as error:
        if not due:
            raise
        return {"refused": str(error)}


def norm_is(got, want: float, where: str, mistakes, otherwise: str) -> None:
    """Raise Wrong unless `got`, which was returned, is the norm of all gradients. Norms of float64 are exact to 1e-9."""
    got = real(number(got, f"{where}the norm"))
    if near(got, want):
        return
    rounded = near(got, want, 1e-5)
    said = (
        ROUNDED if rounded else recognized(got, mistakes, otherwise, lambda a, b: near(a, b, 1e-5))
    )
    digits = 12 if rounded else 6
    raise Wrong(f"{where}the norm is {got:.{digits}g}, and should be {want:.{digits}g}. {said}")


def scaled(got, g: Tensor, factor: float, what: str, slips: dict[float, str]) -> None:
    """Raise Wrong unless a gradient was scaled in place, as clipping its norm does. slips: wrong factors, in words."""
    alike(got, g, what)
    if near(got, factor * g):
        return
    if not g.any():
        raise Wrong(
            f"{what} was zero, and is {got.flatten()[0]:g} …. Is a norm of 0 divided by, or inf multiplied with 0?"
        )
    scale = float((got * g).sum() / (g * g).sum())
    if not near(got, scale * g):
        raise Wrong(f"{what} is no multiple of what it was: clip the norm, not the numbers.")
    nearly = "Nearly: is it min(1, limit / (norm + 1e-6)), and nothing rounded?"
    hint = first_near(scale, slips | {factor**2: "It was scaled twice.", factor: nearly}, 1e-5)
    if scale > 1 + 1e-6:
        hint = "Gradients below the limit stay as they are: the factor is at most 1."
    digits = 12 if near(scale, factor, 1e-6) else 6
    raise Wrong(
        f"{what} was scaled by {scale:.{digits}g}, and should be by {factor:.{digits}g}. {hint}".rstrip()
    )


def clipped(
    outcome: Outcome, own: list, limit: float, norm: float, where, looks, rule: str, told
) -> None:
    """Raise Wrong unless each rank returned the norm of all gradients, one on all ranks, and scaled its own by it.

    own[r]: gradients by name.  where(r): how a message begins.  looks(r): what a wrong norm may be.  told(r, name): what
    to call a gradient, and its wrong factors.
    """
    first = outcome.results[0]["norm"]
    if not math.isfinite(norm):
        return _told_norm(outcome, where)
    for r, got in enumerate(outcome.results):
        norm_is(got["norm"], norm, where(r), looks(r), rule)
    for r, got in enumerate(outcome.results):
        if got["norm"] != first:
            raise Wrong(
                f"the norm is right but for rounding, and rounding differs: {first!r} on rank 0, {got['norm']!r} on rank "
                f"{r}. Add up once, or in one order on all ranks: copies would drift apart."
            )
        for name, g in own[r].items():
            called, slips = told(r, name)
            factor = min(1.0, limit / (norm + 1e-6))
            scaled(got["grads"].get(name), g, factor, where(r) + called, slips)


def _told_norm(outcome: Outcome, where) -> None:
    """Raise Wrong where the norm of gradients hides that one is inf or nan."""
    for r, got in enumerate(outcome.results):
        number(got["norm"], f"{where(r)}the norm")
        if math.isfinite(real(got["norm"])):
            raise Wrong(
                f"{where(r)}a gradient is inf or nan, and the norm is {got['norm']:g}: it should be inf or nan, on all "
                "ranks, so that whoever reads it sees it."
            )


def outside_tensors() -> int:
    """Bytes that Python holds outside of tensors now, for all ranks of a World: lists, numbers, bytes, NumPy's arrays.

    Counting begins with the first call and slows what follows: for a last case, when all that is imported late is there.
    """
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


def timed(n: int, alpha: float, beta: float, flops: float) -> World:
    """A World in which products and messages cost time, and nothing else does."""
    machine = Device("products", {torch.float64: flops, torch.float32: flops}, 1 << 40, 1e18, 0.0)
    return World(n, cluster=Cluster.uniform(n, alpha, beta, machine))


ELSEWHERE = "is the work done elsewhere, or the clock set?"


def on_time(
    outcome: Outcome, least: float, most: float, enough: float, right: str, hint: str, why=ELSEWHERE
) -> None:
    """Raise Wrong where a World's clock shows less than the `least` that can be, and Costly where more than `most`.

    right: what is, all the same.  hint: for what is late.  why: for what is early.
    """
    took = outcome.time
    if took is not None and took < least:
        raise Wrong(
            f"the World's clock shows {1e3 * took:.3g} ms, and {1e3 * least:.3g} ms are the least that it takes: {why}"
        )
    if took is not None and took > most:
        raise Costly(
            f"{right} right, but on the World's clock it takes {1e3 * took:.3g} ms, and {1e3 * enough:.3g} ms are enough. "
            f"{hint}"
        )


def few_in_all(outcome: Outcome, nbytes: int, hint: str) -> None:
    """Raise Costly if all ranks together send more than so many bytes."""
    sent = outcome.nbytes()
    if sent > nbytes:
        raise Costly(
            f"the numbers are right, but all ranks together send {sent:,} bytes, and {nbytes:,} are enough: {hint}"
        )


def few(outcome: Outcome, nbytes: float, hint: str, messages: float = math.inf) -> None:
    """Raise Costly if a rank sends more than so many bytes, or messages."""
    for r in range(len(outcome.results)):
        for sent, most, units in (
            (outcome.nbytes(r), nbytes, "bytes"),
            (outcome.messages(r), messages, "messages"),
        ):
            if sent > most:
                raise Costly(
                    f"the numbers are right, but rank {r} sends {sent} {units}, and {most} are enough. {hint}"
                )


# ------------------------------------------------------------
# Numbers predicted before a run: what is asked in words, what the usual slips give.


HALF = "That is one half of the ring: there are two."
ALL = "That is what all ranks send together: one rank is asked for."
NUMBERS = "Those are numbers: how many bytes does each of them have?"
OF_ALL = "That is right for the numbers in the text: you have others."
ROUGHLY = 0.01  # a prediction is rounded


def one_spelling(name: str) -> str:
    """A student's name, however it was spaced and capitalized."""
    return " ".join(name.split()).casefold()


class Prediction(Exam):
    """Numbers by name, which are compared where they are asked for: no process of an answer has the right ones.

    figures: a function whose name and docstring are the exercise's, and whose defaults what is given; it returns the
    right values, and the slips of each: {name: {wrong value: what it means}}.
    own: parameters of `figures` that each student has others of: how one is written, and what it may be.
    """

    def __init__(
        self,
        figures: Callable[..., tuple[dict, dict]],
        right: str,
        own: dict[str, tuple[str, Sequence[float]]] | None = None,
    ):
        self.name = figures.__name__
        self.__doc__ = figures.__doc__
        self.right = right
        self.figures = figures
        self.own = own or {}

    def drawn(self, student: str | None) -> dict[str, float]:
        """What a student is asked of, in place of the defaults: for the same name, however it is spaced, the same."""
        if student is not None and not isinstance(student, str):
            raise Wrong(
                f'{self.name}: STUDENT is a name in quotes, as "Ada", not {kind_of(student)}.'
            )
        name = one_spelling(student or "")
        found = {}
        for parameter, (_, choices) in self.own.items() if name else ():
            digest = hashlib.sha256(f"{self.name} {parameter} {name}".encode()).digest()
            found[parameter] = choices[int.from_bytes(digest, "big") % len(choices)]
        return found

    def numbers(self, student: str | None) -> None:
        """Print what a student is asked of; nothing without a name."""
        words = [self.own[name][0].format(value) for name, value in self.drawn(student).items()]
        if words:
            print(f"{student}: in place of the numbers above you have {', '.join(words)}.")

    def compare(self, numbers: list[bytes], student: bytes = encode(None)) -> None:
        """Raise Wrong unless the numbers, as `pack` has them, are the right ones for the student, who is packed, too."""
        try:
            found = [decode(number) for number in numbers]
            own = self.drawn(decode(student))
        except ValueError as error:
            raise Wrong(f"{self.name}: your numbers cannot be read: {error}") from None
        try:
            values, slips = self.figures(**own)
            shared = self.figures()[0] if own else {}
            for name, number in zip(values, found, strict=True):
                known = {shared[name]: OF_ALL} if own else {}
                self.look_at(name, number, values[name], known | slips.get(name, {}))
        except Wrong as wrong:
            raise Wrong(f"{self.name}: your numbers: {wrong}") from None
        except Exception as error:
            raise Wrong(failure(self, error)) from None

    def look_at(self, name: str, found, want: float, slips: dict[float, str]) -> None:
        """Raise Wrong unless one number is right."""
        if found is None:
            raise Wrong(f"{name} is not set yet.")
        typed(found, int | float, name, "a number, such as 3 or 2.5e-6")
        got = real(found)
        if not near(got, want, ROUGHLY):
            off = "not above zero" if not got > 0 else "too large" if got > want else "too small"
            slip = first_near(got, slips, ROUGHLY)
            raise Wrong(f"{name} = {got:g} is {off}. {slip}".rstrip())
