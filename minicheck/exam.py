"""An examination: what is asked, of which ranks, and what makes an answer right. Subclass `Exam`, then `ask`.

    class Double(Exam):
        name, right = "double", "n = 1…3"
        cases = tuple(Case(n, f"n = {n}") for n in (2, 1, 3))   # each in a World of n ranks
        processes = (Case(2, "2 real processes"),)              # each in n processes of its own

        def draw(self, case, rng):                              # in the guard: each rank's arguments
            return [(torch.randint(9, (4,), generator=rng),) for _ in range(case.n)]

        def run(self, comm, yours, x):                          # on each rank, beside the answer
            return yours(comm, x)

        def judge(self, case, args, outcome):                   # in the guard, which the answer never enters
            for r in range(case.n):
                same(self, case, r, outcome.results[r], 2 * args[r][0])

    def double(yours):
        ask(Double(), yours)

`draw` draws from a secret seed, after the processes were forked: no rank has another's numbers. `run` gets
what was drawn and returns plain values (`encode`): also the arguments as they are afterwards, where they
must not change, or must. `judge` raises `Wrong`, with the numbers, the rank, and what the mistake looks
like. What `run` returns comes from a process that the answer could have tampered with: `judge` believes
no part of it that it could compute itself. Each lesson's examinations stand in a file of lessons/,
and their functions in `minicheck`. Who examines how: guard.py and examinee.py.

After it: what passes between a grader and an answer's process, and how a wrong tensor is described.
"""

from __future__ import annotations

import json
import linecache
import math
from dataclasses import dataclass
from itertools import product
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle
import numpy
import torch
from torch import Tensor

from minidist.comm.base import Comm
from minidist.comm.world import World

from . import refuse

# ------------------------------------------------------------
# What a check says of a wrong answer.


class Wrong(AssertionError):
    """An answer is wrong; the message says how, in words that teach. A notebook shows the message alone."""

    def _render_traceback_(self) -> list[str]:
        return [f"Wrong: {self}"]


# ------------------------------------------------------------
# What is asked and what came of it; an answer, packed so that nobody opens it here.


class Case(NamedTuple):
    """One run of an answer on `n` ranks. `what`: its name in messages ("n = 3, 7 numbers"). `given`: for `draw`."""

    n: int
    what: str
    given: Any = None


class Outcome:
    """What a case gave: `results[r]` of each rank, and each message that was sent, as (src, dst, bytes).

    time: seconds that the case took on the clock of its World; None in real processes.
    """

    def __init__(self, results: list, sent: list[tuple[int, int, int]], time: float | None = None):
        self.results = results
        self.sent = sent
        self.time = time

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
    functions: whether the answers are functions.  forbidden: modules whose functions are refused,
        beside torch's collectives.
    step: seconds that one case may take.  load: seconds that the answer may take to be loaded.
    """

    name: str
    right: str
    cases: tuple[Case, ...] = ()
    processes: tuple[Case, ...] = ()
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

    def run(self, comm: Comm, *answers_and_arguments):
        """Call the answer on one rank; returns a plain value."""
        raise NotImplementedError

    def judge(self, case: Case, args: list[tuple], outcome: Outcome) -> None:
        """Raise Wrong unless the outcome is right. `args` are as they were drawn."""
        raise NotImplementedError


class Packed(NamedTuple):
    """An answer that must not be opened here. `sources`: the text of the files that it was written in."""

    data: bytes
    sources: dict[str, list[str]]


def pack(name: str, answer) -> Packed:
    """`answer` as a fresh process can open it. Wrong if it holds what cannot be sent."""
    if isinstance(answer, Packed):
        return answer
    try:
        return Packed(cloudpickle.dumps(answer), _sources(answer))
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
# is one of them and more (a Counter, a number of NumPy's) becomes the plain one. Layout: 8 bytes with the length of a
# JSON text, the text, the tensors' bytes one after the other.


DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
    )
}


@dataclass(frozen=True)
class Other:
    """Stands for a value that is not plain: only the name of its type is known."""

    kind: str

    def __repr__(self) -> str:
        return f"a {self.kind}"


def kind_of(value) -> str:
    """The name of a value's type, as where it came from."""
    return (
        value.kind
        if isinstance(value, Other)
        else "None"
        if value is None
        else type(value).__name__
    )


def shown(value) -> str:
    """What came instead of what was asked for, in short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def real(x: float) -> float:
    """A number as a float, also a whole one that no float holds."""
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
    if isinstance(value, numpy.generic):
        value = value.item()
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
    return {"other": type(value).__name__}


def _tensor_to_json(x: Tensor, blobs: list[bytes]):
    name = str(x.dtype).removeprefix("torch.")
    if x.layout != torch.strided or x.device.type != "cpu" or name not in DTYPES:
        return {"other": f"{x.device.type} tensor of {name}"}
    flat = x.detach().as_subclass(Tensor).resolve_conj().resolve_neg().contiguous().reshape(-1)
    blobs.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return {"tensor": [name, list(x.shape)]}


def decode(data: bytes):
    """The value of `encode`; ValueError for bytes that are no such value."""
    size = int.from_bytes(data[:8], "little")
    try:
        value, rest = _from_json(json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :])
    except (KeyError, TypeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not a plain value: {error}") from None
    if rest.nbytes:
        raise ValueError(f"{rest.nbytes} bytes are left over")
    return value


def _from_json(value, rest: memoryview):
    if isinstance(value, list):
        return _items(value, rest)
    if not isinstance(value, dict):
        return value, rest
    [(kind, held)] = value.items()
    if kind == "other":
        return Other(str(held)), rest
    if kind == "tensor":
        return _tensor(held[0], [int(s) for s in held[1]], rest)
    items, rest = _items(held, rest)
    return {"tuple": tuple, "dict": dict}[kind](items), rest


def _items(values: list, rest: memoryview) -> tuple[list, memoryview]:
    items = []
    for v in values:
        item, rest = _from_json(v, rest)
        items.append(item)
    return items, rest


def _tensor(name: str, shape: list[int], rest: memoryview) -> tuple[Tensor, memoryview]:
    dtype = DTYPES[name]
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > rest.nbytes:
        raise ValueError(f"a tensor of {size} bytes, and {rest.nbytes} bytes of data")
    if not size:
        return torch.empty(shape, dtype=dtype), rest
    return torch.frombuffer(bytearray(rest[:size]), dtype=dtype).reshape(shape), rest[size:]


# ------------------------------------------------------------
# Is a tensor what it should be? If not: where, and what does the mistake look like?
#
# Numbers are drawn as large whole numbers, so that sums are exact in any order, and a wrong sum betrays
# which ranks went into it: with n ranks there are few combinations, and one of them fits.


UNKNOWN = "It looks like no usual mistake."
LARGEST = 10**6  # sums of 16 of them are exact in float32


def whole(shape, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """Random whole numbers, exact in float32, float64 and integers."""
    return torch.randint(1, LARGEST, tuple(shape), generator=rng).to(dtype)


def same(rank: int, got, want: Tensor, name: str, guess=None) -> None:
    """Raise Wrong unless `got` equals `want` in type, shape, dtype and every number.

    name: what it is, in the message ("chunk 1").  guess: got → a sentence on what it looks like, or None.
    """
    alike(rank, got, want, name)
    if got.equal(want):
        return
    where = (got != want).reshape(-1).nonzero()[:, 0].tolist()
    flat, right = got.reshape(-1), want.reshape(-1)
    indexed = got.dim() == 1 and " " not in name
    first = (
        f"{name}[{where[0]}]" if indexed else f"number {where[0]} of {name}" if got.dim() else name
    )
    count = "" if got.numel() == 1 else f" ({len(where)} of {got.numel()} numbers are wrong)"
    text = f"rank {rank}: {first} is {_number(flat[where[0]])}, and should be {_number(right[where[0]])}{count}."
    raise Wrong(f"{text} {(guess(got) if guess else None) or UNKNOWN}")


def _number(x: Tensor) -> str:
    value = x.item()
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return str(int(value)) if whole else f"{value:.8g}"


def alike(rank: int, got, want: Tensor, name: str) -> None:
    """Raise Wrong unless `got` is a tensor of `want`'s shape and dtype."""
    if got is None:
        raise Wrong(f"rank {rank}: {name} is None. Is there a `return`?")
    if not isinstance(got, Tensor):
        kind = kind_of(got)
        raise Wrong(f"rank {rank}: {name} is of type {kind}, and should be a tensor.")
    for what, is_, should in (
        ("shape", tuple(got.shape), tuple(want.shape)),
        ("dtype", got.dtype, want.dtype),
    ):
        if is_ != should:
            raise Wrong(f"rank {rank}: {name} has {what} {is_}, and should have {should}.")


def unchanged(rank: int, after, before: Tensor, name: str) -> None:
    """Raise Wrong if an argument was written to."""
    if not isinstance(after, Tensor) or after.shape != before.shape or not after.equal(before):
        raise Wrong(f"rank {rank}: {name} was changed, and belongs to the caller: work on a copy.")


def who(got: Tensor, parts: list[Tensor], rank: int) -> str | None:
    """Which ranks' numbers went into `got`, where rank r's are `parts[r]`: a sentence, or None.

    Tries every combination in which each rank counts 0, 1 or 2 times, and the average.
    """
    n = len(parts)
    if not got.numel() or any(p.shape != got.shape for p in parts):
        return None
    total = sum(p.double() for p in parts)
    if (
        n > 1
        and torch.allclose(got.double() * n, total, rtol=1e-5, atol=n)
        and not got.double().equal(total)
    ):
        return "It is the average: the sum is asked for."
    for r, part in enumerate(parts):
        if n > 2 and got.equal(n * part):
            return f"It is {n} times rank {r}'s: nothing of the other ranks is in it."
    for times in product((0, 1, 2), repeat=n):
        if got.double().equal(sum(t * p.double() for t, p in zip(times, parts))):
            return _counted(times, rank)
    return None


def _counted(times: tuple[int, ...], rank: int) -> str | None:
    n, there = len(times), [r for r, t in enumerate(times) if t]
    absent, twice = [r for r in range(n) if not times[r]], [r for r in there if times[r] == 2]
    if not there:
        return "It is zero: was nothing put into it?"
    if there == [rank] and not twice:
        return f"It is rank {rank}'s own, as before: nothing arrived, or what arrived was not used."
    if len(there) == 1 and not twice:
        return f"It is rank {there[0]}'s."
    parts = ([f"counts {ranks(twice)} twice"] if twice else []) + (
        [f"lacks {ranks(absent)}"] if absent else []
    )
    hint = " One step short?" if len(absent) == 1 and not twice else ""
    return (
        f"It is a sum that {' and '.join(parts)}.{hint}"
        if parts
        else "It is the sum over all ranks."
    )


def ranks(some: list[int]) -> str:
    """`rank 1`, `ranks 0, 2 and 3`."""
    if len(some) == 1:
        return f"rank {some[0]}"
    return f"ranks {', '.join(map(str, some[:-1]))} and {some[-1]}"


def equal_to(got: Tensor, candidates: dict[str, Tensor]) -> str | None:
    """The first sentence whose tensor `got` equals."""
    return next(
        (
            text
            for text, x in candidates.items()
            if got.shape == x.shape and got.numel() and got.equal(x)
        ),
        None,
    )


def near(got: Tensor, want: Tensor) -> bool:
    """Equal but for rounding, which is relative to the largest number."""
    if got.shape != want.shape:
        return False
    slack = 1e-9 if want.dtype == torch.float64 else 1e-4
    return (
        bool((got.double() - want.double()).abs().max() <= slack * want.abs().max())
        if want.numel()
        else True
    )


def ring_bytes(tensors: list[Tensor], n: int) -> int:
    """Bytes of one rank in a ring all-reduce of each tensor: 2(n−1)/n·N, chunks rounded up."""
    return sum(2 * (n - 1) * -(-x.numel() // n) * x.element_size() for x in tensors)
