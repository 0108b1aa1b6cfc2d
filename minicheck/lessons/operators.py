"""Graders of lesson 12: operators and graphs.

`Seen` counts what an answer makes, keeps and multiplies; the oracle has the right numbers, and those of mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import gelu
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from minidist.comm.costs import operator, tensors

from ..exam import (
    NUMBERS,
    Case,
    Costly,
    Other,
    Prediction,
    Report,
    Solo,
    Wrong,
    alike,
    alone,
    bare,
    close,
    holds,
    integer,
    kind_of,
    near,
    normal,
    recognized,
    shaped,
    typed,
    unchanged,
    uniform,
)
from ..oracles import operators as oracle

# ------------------------------------------------------------
# Is a tensor near enough to the right one? If not: what does the mistake look like?


STRANGE = "There is inf or nan in it: is m subtracted before exp? And is −inf − −inf avoided?"
FORBIDDEN = (
    "minidist.study",
    "minidist.train",
    "minidist.checkpoint",
    "minidist.parallel",
    "minicheck.oracles.operators",
    "minidist.comm.meter",
)


def seen_close(got, want: Tensor, name: str, looks: dict[str, Tensor], otherwise: str) -> None:
    """As `close`, of what an answer has computed under the meter."""
    if isinstance(got, Other) and got.kind.startswith("meta"):
        raise Wrong(
            f"{name} came out of no operator that the meter saw: compute it with PyTorch, in the open."
        )

    def mistakes(got):
        table = {text: x for text, x in looks.items() if not near(x, want)}
        return recognized(got, table, STRANGE if not got.isfinite().all() else "")

    close(got, want, name, mistakes, otherwise)


def told(seen: dict, name: str) -> None:
    """Raise Wrong where a result was made of numbers taken out of tensors."""
    if seen["left"] > seen["may_leave"]:
        raise Wrong(
            f"{name} is right, but {seen['left']} numbers were taken out of tensors (item(), or an if), one by "
            "one: compute with whole tensors."
        )


# ------------------------------------------------------------
# What an answer makes, keeps and multiplies, in a process of its own, where numbers exist for the meter alone.
#
# Problem: a dispatch mode sees PyTorch's operators, but an answer may switch it off, start a thread, or go to numpy.
# Idea: the answer gets meta tensors, which have no numbers. The mode has those, a memory for each meta storage, and does
# every operator on them. What is computed out of its sight is computed on nothing.
#
# Storages are counted once, however many tensors view them, and only those that the answer's operators made.


LEAVES = "_local_scalar_dense"  # `x.item()`, `float(x)`, `if x:`
NO_NUMBERS = ("meta", "unallocated")  # what PyTorch says where numpy, or a list, wants numbers


class Unseen(ValueError):
    """Something was not done by PyTorch's operators, before the meter's eyes."""


class Memory(NamedTuple):
    """The numbers of a meta storage, which is alive until `of` has expired. made: bytes, 0 if it was given."""

    of: StorageWeakRef
    numbers: UntypedStorage
    made: int


class Seen(TorchDispatchMode):
    """flops: of products.  edge: the largest extent of a product's matrix.  largest: bytes of the largest storage made.
    peak: of all alive at once.  names: of operators.  left: numbers that were taken out of tensors, of which so many
    may_leave.  shapes: of what was made.  readings: the places in `given` of the tensors that were read, in turn."""

    def __init__(self, given: list[Tensor]):
        super().__init__()
        self.flops = self.edge = self.largest = self.peak = self.left = 0
        self.names: set[str] = set()
        self.shapes: set[tuple[int, ...]] = set()
        self.readings: list[int] = []
        self._memory: dict[int, Memory] = {}
        self.given = [self.give(x) for x in given]
        self.may_leave = max(16, sum(x.numel() for x in given) // 4)
        self._places = {x.untyped_storage()._cdata: i for i, x in enumerate(self.given)}

    def ask(self, yours: Callable, *args: Any) -> Any:
        """The answer's result for tensors of `given`. Unseen where it wants their numbers elsewhere."""
        try:
            with self, _Lists(self):
                return yours(*args)
        except (NotImplementedError, RuntimeError, TypeError) as error:
            if not any(word in str(error) for word in NO_NUMBERS):
                raise
            told = (
                "numbers leave PyTorch here: compute with its operators alone, which the meter sees"
            )
            raise Unseen(told).with_traceback(error.__traceback__) from error

    def give(self, x: Tensor) -> Tensor:
        """A meta tensor with the numbers of `x`, for the answer; nobody else holds it."""
        return self._meta(x, {}, made=False)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, known = kwargs or {}, operator(func)
        if known.composite:  # in inference mode operators arrive whole
            with self:
                return func.decompose(*args, **kwargs)
        if torch.Tag.inplace_view in func.tags:  # numbers stay where they are
            return func(*args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs = kwargs | {"device": "cpu"}
        read = [x for x in tensors((args, *kwargs.values())) if x.is_meta]
        real = {id(x): self._real(x) for x in read}
        numbers = lambda x: real.get(id(x), x)
        given, options = (
            _mapped(args, numbers),
            {key: _mapped(value, numbers) for key, value in kwargs.items()},
        )
        found = func(*given, **options)
        self._count(known, read, given, options, found)
        same = {id(real[id(x)]): x for x in read}  # what is changed in place is returned
        homes = {real[id(x)].untyped_storage()._cdata: x for x in read}
        out = _mapped(
            found, lambda y: same[id(y)] if id(y) in same else self._meta(y, homes, made=True)
        )
        self.peak = max(self.peak, self.alive())
        return out

    def _count(self, known, read: list[Tensor], args: tuple, kwargs: dict, out: Any) -> None:
        self.names.add(known.name)
        self.left += known.name == LEAVES
        if known.formula is not None:
            self.flops += known.formula(args, kwargs, out)
            self.edge = max(self.edge, *(size for x in tensors((args, out)) for size in x.shape))
        if not known.free:
            self.shapes.update(tuple(x.shape) for x in tensors((out,)))
            places = (self._places.get(x.untyped_storage()._cdata) for x in read)
            self.readings += [i for i in places if i is not None and self.readings[-1:] != [i]]

    def _meta(self, y: Tensor, homes: dict[int, Tensor], made: bool) -> Tensor:
        """A tensor without numbers that lies as `y` does; in one of `homes`, which lie in the same memory, or anew."""
        numbers = y.untyped_storage()
        home = homes.get(numbers._cdata)
        if home is None:
            home = homes[numbers._cdata] = torch.empty(
                numbers.nbytes(), dtype=torch.uint8, device="meta"
            )
            memory = Memory(
                StorageWeakRef(home.untyped_storage()), numbers, numbers.nbytes() * made
            )
            self._memory[home.untyped_storage()._cdata] = memory
            self.largest = max(self.largest, memory.made)
        with torch.inference_mode(False):  # where the answer is in it, a view could not be one
            empty = torch.empty(0, dtype=y.dtype, device="meta")
            return empty.set_(home.untyped_storage(), y.storage_offset(), y.shape, y.stride())

    def _real(self, x: Tensor) -> Tensor:
        if not self.knows(x):
            raise Unseen(
                "a tensor came out of no operator that the meter saw: compute it with PyTorch, in the open"
            )
        numbers = self._memory[x.untyped_storage()._cdata].numbers
        return torch.empty(0, dtype=x.dtype).set_(numbers, x.storage_offset(), x.shape, x.stride())

    def knows(self, x: Any) -> bool:
        """Whether `x` is a tensor that came out of an operator it saw, or was given."""
        memory = (
            self._memory.get(x.untyped_storage()._cdata)
            if isinstance(x, Tensor) and x.is_meta
            else None
        )
        return memory is not None and not memory.of.expired()

    def alive(self, without: Any = None) -> int:
        """Bytes of what was made and is still held, but for the numbers of `without`."""
        for key in [key for key, memory in self._memory.items() if memory.of.expired()]:
            del self._memory[key]
        apart = self.knows(without) and self._memory[without.untyped_storage()._cdata].made
        return sum(memory.made for memory in self._memory.values()) - (
            without.nbytes if apart else 0
        )

    def plain(self, value: Any) -> Any:
        """A copy of `value`, tensors with the numbers that they have now; what the meter does not know is left."""
        with _disable_current_modes():
            return _mapped(value, lambda x: self._real(x).clone() if self.knows(x) else x)


class _Lists(TorchFunctionMode):
    """`x.tolist()`, which is no operator: numbers leave, and are counted."""

    def __init__(self, seen: Seen):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not Tensor.tolist:
            return func(*args, **(kwargs or {}))
        self.seen.left += args[0].numel()
        return self.seen.plain(args[0]).tolist()


def _mapped(value, fn):
    """`value` with `fn` done to its tensors, also to those in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return fn(value)
    if type(value) is dict:
        return {key: _mapped(one, fn) for key, one in value.items()}
    return (
        type(value)([_mapped(one, fn) for one in value]) if type(value) in (list, tuple) else value
    )


# ------------------------------------------------------------
# Numbers of operators: their time on a device, and what fusion saves.


WALLS = ("launch", "memory", "compute")
DEVICES = (
    {"launch": 5e-6, "bandwidth": 3.35e12, "peak": 67e12},
    {"launch": 4e-6, "bandwidth": 0.9e12, "peak": 125e12},
    {"launch": 2e-6, "bandwidth": 0.4e12, "peak": 5e12},
)


class Roofline(Solo):
    """`roofline(launches, nbytes, flops, device)`: (seconds, "launch" | "memory" | "compute")."""

    name = "roofline"
    right = "3 devices, 3 walls: seconds, and what bounds."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, f"device {i}, {wall}-bound", (i, wall)) for i in range(3) for wall in WALLS
    )

    def draw(self, case, rng):
        i, wall = case.given
        device, launches = DEVICES[i], integer(rng, 2, 30)
        share = {w: 10.0 if w == wall else uniform(rng) * 6 + 2 for w in WALLS}
        unit = launches * device["launch"] / share["launch"]
        nbytes, flops = (
            share["memory"] * unit * device["bandwidth"],
            share["compute"] * unit * device["peak"],
        )
        return [(launches, int(nbytes), int(flops), device)]

    returns = ("the time in seconds", "the word")
    given = ("`launches`", "`nbytes`", "`flops`", "`device`")

    def wants(self, case, args):
        return [dict(zip(self.returns, oracle.seconds(*args[0])))]

    def value(self, case, args, rank, name, got, want):
        launches, nbytes, flops, device = args[0]
        start = launches * device["launch"]
        memory = nbytes / device["bandwidth"]
        compute = flops / device["peak"]
        if name == "the word":
            typed(got, str, name, 'a word, such as "memory"')
            if got != want:
                raise Wrong(
                    f"the word is {got!r}, and should be {want!r}: launches take {start:.3g} s, bytes "
                    f"{memory:.3g} s, FLOPs {compute:.3g} s."
                )
            return
        slips = {
            "Bytes and FLOPs go on at the same time: the longer of the two counts.": start
            + memory
            + compute,
            "There are several launches.": device["launch"] + max(memory, compute),
            "The launches are missing.": max(memory, compute),
            "The launches come on top.": max(start, memory, compute),
            "Bytes and FLOPs are those of all launches together. Only the launches are many.": start
            + launches * max(memory, compute),
        }
        close(got, want, name, slips, "Compare with the formula above.")


class Fused(Solo):
    """`fused(operators, sizes, wanted)`: for each group (names, bytes that it moves)."""

    name = "fused"
    right = "8 graphs: groups, and bytes of each."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, f"graph {i}, {n} operators", n) for i, n in enumerate((1, 3, 6, 6, 9, 9, 16, 20))
    )

    def draw(self, case, rng):
        draw = lambda high: integer(rng, 0, high)
        names, operators = ["x", "w", "b"], []
        for i in range(case.given):
            product = draw(3) == 0 and i != 2
            recent = names if draw(2) else names[-4:]
            reads = [names[-1], recent[draw(len(recent))]] if i else ["x", "w"]
            if i > 8:
                reads.append(f"t{i - 7}")  # a result of long ago
            operators.append(
                (
                    f"{'op' if draw(2) else 'mm'}{i}",
                    "product" if product else "pointwise",
                    reads,
                    f"t{i}",
                )
            )
            names.append(f"t{i}")
        read = {name for one in operators for name in one[2]}
        wanted = [one[3] for one in operators if one[3] not in read or draw(6) == 0]
        alike = case.what.startswith("graph 5")  # its bytes do not tell tensors apart
        sizes = {
            name: 1000 + (not alike) * (2 ** (i + 3) + draw(7)) for i, name in enumerate(names)
        }
        return [(operators, sizes, wanted)]

    given = ("`operators`", "`sizes`", "`wanted`")

    def wants(self, case, args):
        return [{"the result": oracle.fused(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        operators, sizes, wanted = args[0]
        got = bare(got)
        shaped(got, [([str], int)], name, "a list of (names, bytes), each names in a list")
        names, right = ([list(one[0]) for one in some] for some in (got, want))
        if names != right:
            raise Wrong(
                f"the groups are {names}, and should be {right}. {_grouping(names, operators)}"
            )
        groups = oracle.runs(operators)
        for (_, nbytes), (members, should), group in zip(got, want, groups, strict=True):
            looks = oracle.byte_looks(group, operators, sizes, wanted)
            rule = "Count tensors from outside once, and results that somebody outside needs."
            if nbytes != should:
                raise Wrong(
                    f"the group {members} moves {nbytes} bytes, and should move {should}. {looks.get(nbytes, rule)}"
                )


def _grouping(names, operators):
    """What is wrong with groups."""
    flat, kinds = [name for group in names for name in group], {one[0]: one[1] for one in operators}
    if flat != list(kinds):
        return "Each operator is in one group, and the order is that of the list."
    if any(len(group) > 1 and any(kinds[name] == "product" for name in group) for group in names):
        return "A product is a kernel of its own."
    return "Neighbours that are pointwise belong together."


# ------------------------------------------------------------
# A backward of one's own: bias and GELU, nothing kept but what was given.


GELU_OTHERWISE = "Compare with F.gelu(x + b), number by number."


class BiasGelu(Report):
    """`bias_gelu(x, b)`: F.gelu(x + b), whose backward needs x and b alone."""

    name = "bias_gelu"
    right = "5 shapes, float32 and float64, gradients of x and b; nothing is kept but x and b."
    forbidden = FORBIDDEN
    cases = (
        Case(1, "x (6, 4)", ((6, 4), torch.float64, True)),
        Case(1, "x (3,)", ((3,), torch.float64, True)),
        Case(1, "x (2, 5, 4)", ((2, 5, 4), torch.float64, True)),
        Case(1, "float32", ((40, 8), torch.float32, True)),
        Case(1, "x needs no gradient", ((6, 4), torch.float64, False)),
        Case(1, "a nan in x", ((6, 4), torch.float64, True)),
    )

    def draw(self, case, rng):
        shape, dtype, needs = case.given
        x, b, dy = (2 * normal(rng, s).to(dtype) for s in (shape, shape[-1:], shape))
        if "nan" in case.what:
            x[0, 1] = math.nan
        return [(x, b, dy, needs)]

    def run(self, comm, yours, x, b, dy, needs):
        seen, other = Seen([x, b, dy]), (dy, 2 * b)
        x, b, dy = seen.given
        leaves = [x.requires_grad_(), b.requires_grad_()] if needs else [b.requires_grad_()]
        y = seen.ask(yours, x, b)
        found = {"y": seen.plain(y.detach() if isinstance(y, Tensor) else y), "grads": None}
        if isinstance(y, Tensor) and y.requires_grad:
            y = seen.ask(torch.add, y, 0)  # from here on nobody needs y itself
            found["held"] = seen.alive(y)
            seen.ask(
                yours, *map(seen.give, other)
            )  # what is kept of one call does not speak for another
            grads = partial(torch.autograd.grad, y, leaves, dy, allow_unused=True)
            found["grads"] = seen.plain(seen.ask(grads))
        found["given"] = seen.plain([z.detach() for z in (x, b, dy)])
        return found | {"left": seen.left, "may_leave": seen.may_leave}

    def check(self, case, got, x, b, dy, needs):
        seen_close(got["y"], gelu(x + b), "y", oracle.gelu_looks(x, b), GELU_OTHERWISE)
        for after, before, name in zip(got["given"], (x, b, dy), ("x", "b", "dy"), strict=True):
            unchanged(after, before, name)
        told(got, "y")
        if got["grads"] is None:
            raise Wrong(
                "y has no backward: does bias_gelu call BiasGelu.apply, and nothing with no_grad?"
            )
        dx, looks = dy * oracle.slope(x + b), oracle.dx_looks(dy, x, b)
        if needs:
            seen_close(got["grads"][0], dx, "dx", looks, GELU_OTHERWISE)
        rows = lambda z: z.reshape(-1, z.shape[-1])
        db = rows(dx).sum(0)
        seen_close(
            got["grads"][-1],
            db,
            "db",
            {text: rows(look).sum(0) for text, look in looks.items()}
            | {
                "It is the mean over rows: the sum is asked for.": rows(dx).mean(0),
                "That is one row's.": rows(dx)[0],
                "That is minus the right one.": -db,
            },
            GELU_OTHERWISE,
        )
        if got["held"] > b.nbytes:
            raise Costly(
                f"the numbers are right, but {got['held']} bytes are kept for backward beside x and b (y is one of "
                "them, if it is kept): save x and b, and form x + b again."
            )


# ------------------------------------------------------------
# Softmax in parts: its two numbers, and attention in tiles.


SOFTMAX_OTHERWISE = "Check the rule on two parts of three numbers, on paper."


class Normalizer(Report):
    """`normalizer(parts)`: (m, s) of each row, whose parts come one after the other."""

    name = "normalizer"
    right = (
        "rows of 1 to 24 parts, the largest number anywhere, parts of −inf: m and s in one reading."
    )
    forbidden = FORBIDDEN
    cases = (
        Case(1, "the largest number first", (3, [4, 4, 4], 0, torch.float64)),
        Case(1, "the largest number last", (3, [4, 4, 4], 2, torch.float64)),
        Case(1, "one part, 300 numbers alike, far below 0", (2, [300], 0, torch.float64)),
        Case(
            1,
            "24 uneven parts, large numbers",
            (5, [3, 1, 4, 1, 5, 9, 2, 6] * 3, 14, torch.float64),
        ),
        Case(1, "float32", (4, [6, 6, 3], 1, torch.float32)),
        Case(1, "a part of −inf in the middle", (4, [3, 3, 3], 2, torch.float64)),
        Case(1, "a part of −inf first", (4, [3, 3, 3], 1, torch.float64)),
        Case(1, "a nan", (4, [3, 3, 3], 1, torch.float64)),
    )

    def draw(self, case, rng):
        rows, sizes, top, dtype = case.given
        level = 1000 * normal(rng, rows, 1) * ("large numbers" in case.what)
        parts = [(level + normal(rng, rows, size)).to(dtype) for size in sizes]
        if top or len(sizes) > 1:
            parts[top][:, 0] += 3
        if "below" in case.what:
            parts[0] = -1e6 * parts[0][:, :1].abs().expand_as(parts[0])
        if "nan" in case.what:
            parts[2][1, 0] = math.nan
        if "−inf" in case.what:
            parts[0 if "first" in case.what else 1][: rows // 2] = -math.inf
        return [(parts,)]

    def run(self, comm, yours, parts):
        seen = Seen(parts)
        mine = list(seen.given)
        pair = seen.ask(yours, mine)
        m, s = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (pair, None)
        return seen.plain({"m": m, "s": s, "parts": seen.given}) | {
            "same": len(mine) == len(parts),
            "largest": seen.largest,
            "peak": seen.peak,
            "readings": seen.readings,
            "left": seen.left,
            "may_leave": seen.may_leave,
        }

    def check(self, case, got, parts):
        unchanged(got["parts"], parts, "parts")
        holds(got, {"same": "the list of parts was changed, and belongs to the caller."})
        m, s = oracle.normalizer(parts)
        looks = {
            "That is the last part's.": parts[-1].amax(1),
        }
        seen_close(got["m"], m, "m", looks, "It is the largest number of each row.")
        seen_close(got["s"], s, "s", oracle.sums(parts), SOFTMAX_OTHERWISE)
        told(got, "s")
        self._one_by_one(parts, got)

    def _one_by_one(self, parts, got):
        most = max(part.nbytes for part in parts)
        if len(parts) > 3 and got["largest"] > 1.5 * most:
            raise Costly(
                f"the numbers are right, but a tensor of {got['largest']} bytes is made, and the largest part "
                f"has {most}: look at one part at a time."
            )
        if len(parts) > 3 and got["peak"] > 6 * most:
            raise Costly(
                f"the numbers are right, but {got['peak']} bytes are alive at once, and the largest part has "
                f"{most}: look at one part at a time, and keep m and s alone."
            )
        twice = [i for at, i in enumerate(got["readings"]) if i in got["readings"][:at]]
        if twice:
            raise Costly(
                f"the numbers are right, but parts[{twice[0]}] is read again after others: m and s are to be "
                "taken together, in one reading."
            )


class Attention(Report):
    """`attention(q, k, v, tile)`: softmax(qkᵀ/√d)v, in tiles."""

    name = "attention"
    right = "queries, keys and tiles of 8 sizes, large scores, float32: exact, a tile at a time."
    forbidden = FORBIDDEN
    step = 10.0
    sizes = (
        (7, 7, 2, 3),
        (6, 9, 3, 4),
        (5, 5, 4, 64),
        (9, 13, 3, 1),
        (40, 45, 8, 5),
        (70, 75, 8, 20),
        (136, 130, 8, 16),
    )
    cases = (
        *(
            Case(1, f"T = {T}, K = {K}, tile = {tile}", (T, K, d, tile, 1.0, torch.float64))
            for T, K, d, tile in sizes
        ),
        Case(1, "scores of some thousand", (20, 24, 4, 5, 40.0, torch.float64)),
        Case(1, "float32, a nan in q", (20, 24, 4, 5, 2.0, torch.float32)),
    )

    def draw(self, case, rng):
        T, K, d, _, scale, dtype = case.given
        drawn = [normal(rng, rows, d).to(dtype) for rows in (T, K, K)]
        drawn[1][-1] += drawn[0].mean(0)
        if scale > 10:  # of one half of the queries all scores are above 0, of the other below
            drawn[:2] = [x.abs() for x in drawn[:2]]
            drawn[0][T // 2 :] *= -1
        if "nan" in case.what:
            drawn[0][3, 1] = math.nan
        return [(drawn[0] * scale * 1.5, drawn[1] * scale, drawn[2], case.given[3])]

    def run(self, comm, yours, q, k, v, tile):
        seen = Seen([x.clone() for x in (q, k, v)])
        out = seen.ask(yours, *seen.given, tile)
        names = sorted(name for name in seen.names if "attention" in name)
        # not keys, nor values, nor a number a query
        scores = lambda shape: len(k) in shape and len(shape) > 1 and not {1, q.shape[1]} & {*shape}
        rows = [shape for shape in seen.shapes if tile < len(k) and scores(shape)]
        extents = lambda shape: sorted(size for size in shape if size > 1)
        found = seen.plain({"out": out, "given": seen.given}) | {
            "names": names,
            "rows": max(rows, default=None),
            "tiled": extents((min(tile, len(q)), min(tile, len(k)))) in map(extents, seen.shapes),
        }
        return found | {
            key: getattr(seen, key)
            for key in ("flops", "edge", "largest", "peak", "left", "may_leave")
        }

    def check(self, case, got, q, k, v, tile):
        for after, before, name in zip(got["given"], (q, k, v), "qkv", strict=True):
            unchanged(after, before, name)
        seen_close(
            got["out"],
            oracle.attention(q, k, v),
            "the result",
            oracle.attention_looks(q, k, v, tile),
            "Compare with the naive way on two tiles of one query.",
        )
        told(got, "the result")
        if got["names"]:
            raise Wrong(f"{got['names'][0]} is PyTorch's own: the exercise is about building it.")
        self._products(q, k, tile, got)
        if len(q) >= 40:
            self._memory(q, k, tile, got)

    def _products(self, q, k, tile, got):
        rows, edge = got["rows"], max(min(tile, max(len(q), len(k))), q.shape[1])
        if rows or got["edge"] > edge:
            made = (
                f"scores {rows} are made" if rows else f"a product has an extent of {got['edge']}"
            )
            raise Wrong(
                f"the numbers are right, but {made}, and a tile has ({tile}, {tile}): take {tile} queries and "
                f"{tile} keys at a time."
            )
        if not got["tiled"]:
            raise Wrong(
                f"the numbers are right, but no scores ({tile}, {tile}) are made: take {tile} queries and {tile} keys at "
                "a time, as the call says."
            )
        want = 4 * len(q) * len(k) * q.shape[1]
        if not 0.99 * want <= got["flops"] <= 1.01 * want:
            raise Wrong(
                f"the numbers are right, but the meter saw {got['flops']:,} FLOPs of products, and {want:,} "
                "are needed: two products a tile, each once."
            )

    def _memory(self, q, k, tile, got):
        most, whole = max(q.nbytes, k.nbytes), len(q) * len(k) * q.itemsize
        if got["largest"] > most:
            raise Costly(
                f"the numbers are right, but a tensor of {got['largest']:,} bytes is made, and q has {most:,}: "
                f"a tile of scores has {tile * tile * q.itemsize:,}, all scores {whole:,}."
            )
        if got["peak"] > 8 * most:
            raise Costly(
                f"the numbers are right, but {got['peak']:,} bytes are alive at once, and {8 * most:,} are "
                "plenty: are tiles of scores kept?"
            )


# ------------------------------------------------------------
# A flat buffer: parameters and gradients as views, a step as one operator.


RATE = 0.1


def losses(params: list[Tensor], x: Tensor) -> Tensor:
    """Every parameter's gradient is another one each step; an affine map of each is squared."""
    return sum(
        ((p * (i + 1) + x[: p.numel()].view(p.shape)) ** 2).sum() for i, p in enumerate(params)
    )


def places(views: list[Tensor | None], flat: Tensor) -> list[int | None]:
    """Where each view begins in `flat`, in elements; None if it is none of it, or has gaps."""
    key = flat.untyped_storage()._cdata
    inside = lambda x: x is not None and x.untyped_storage()._cdata == key and x.is_contiguous()
    return [x.storage_offset() - flat.storage_offset() if inside(x) else None for x in views]


class Flatten(Report):
    """`flatten(params)`: (flat, grads), of which the parameters, and their .grad, are views."""

    name = "flatten"
    right = "6 models: values kept, views in order, old memory freed, three steps of SGD with two launches each."
    forbidden = FORBIDDEN
    cases = alone(
        (f"shapes {shapes}", shapes)
        for shapes in (
            ((3, 2), (4,)),
            ((5,),),
            ((2, 3), (), (1,), (4, 2)),
            ((7, 3), (3, 7), (3,), (2, 2, 2)),
        )
    )
    cases += (
        Case(1, "a transposed parameter", ((4, 3), (3,), "t")),
        Case(1, "a frozen parameter, old gradients", ((4, 3), (3,), (2, 2), "f")),
    )

    def draw(self, case, rng):
        shapes = [shape for shape in case.given if shape not in ("t", "f")]
        dtype = torch.float32 if len(shapes) == 4 else torch.float64
        values = [normal(rng, shape, dtype=dtype) for shape in shapes]
        learns = [not ("f" in case.given and i == 1) for i in range(len(shapes))]
        return [(values, "t" in case.given, learns, normal(rng, 3, 99, dtype=dtype))]

    def run(self, comm, yours, values, transposed, learns, xs):
        seen = Seen([])
        values = [values[0].T, *values[1:]] if transposed else values
        params = [nn.Parameter(seen.give(v), learn) for v, learn in zip(values, learns)]
        if not all(learns):
            for p, v in zip(params, values):
                p.grad = seen.give(v)
        mine, old = list(params), [StorageWeakRef(p.untyped_storage()) for p in params]
        pair = seen.ask(yours, mine)
        held = seen.alive()
        if (
            not isinstance(pair, tuple | list)
            or [isinstance(x, Tensor) for x in pair] != [True] * 2
        ):
            return {"pair": kind_of(pair)}
        flat, grads = pair
        if not all(map(seen.knows, [flat, grads, *params])):
            return {"knows": False}
        same = len(mine) == len(params) and all(a is b for a, b in zip(mine, params, strict=True))
        found = {
            "knows": True,
            "values": seen.plain(params),
            "same": same,
            "held": held,
            "trained": [p.requires_grad for p in params] == learns
            and not flat.requires_grad
            and not grads.requires_grad,
            "places": places([p.detach() for p in params], flat),
            "grads": places([p.grad for p in params], grads),
            "pair_like": seen.plain([x.detach() for x in pair]),
            "zero": not bool(seen.plain(grads).any()),
            "left": seen.left,
            "may_leave": seen.may_leave,
            "old": [ref.expired() for ref in old],
        }
        steps = [self._step(seen, params, flat, grads, x) for x in seen.give(xs)]
        return found | {"steps": steps}

    def _step(self, seen, params, flat, grads, x):
        """The parameters after a step of SGD on the two buffers."""

        def step():
            grads.zero_()
            losses(params, x).backward()
            flat.add_(grads, alpha=-RATE)

        seen.ask(step)
        return seen.plain(params)

    def check(self, case, got, values, transposed, learns, xs):
        values = [values[0].T, *values[1:]] if transposed else values
        if "pair" in got:
            raise Wrong(
                f"the result is {got['pair']}, and should be two tensors, flat and grads. Is there a `return`?"
            )
        unknown = (
            "flat, grads or a parameter came out of no operator that the meter saw: compute it with "
            "PyTorch, in the open."
        )
        holds(got, {"knows": unknown})
        self._buffers(values, got)
        for what, name in (("places", "p"), ("grads", "p.grad")):
            at = 0
            for i, (place, value) in enumerate(zip(got[what], values, strict=True)):
                if place != at:
                    where = (
                        "is no view of it" if place is None else f"begins at element {place} of it"
                    )
                    raise Wrong(
                        f"{name} of params[{i}] {where}: it should begin at {at}, one after the other, in "
                        "order. Is it a view, or a copy?"
                    )
                at += value.numel()
        self._rest(values, learns, xs, got)

    def _buffers(self, values, got):
        row = torch.empty(sum(v.numel() for v in values), dtype=values[0].dtype)
        for x, name in zip(got["pair_like"], ("flat", "grads"), strict=True):
            alike(x, row, f"{name}, all parameters' numbers in a row,")
        old = "the list of parameters was changed: the model has the old ones. Set p.data of each."
        holds(got, {"same": old})
        for i, (value, want) in enumerate(zip(got["values"], values, strict=True)):
            looks = {"It is 0: were the values copied?": torch.zeros_like(want)}
            if want.dim() == 2:
                looks["It is transposed: flatten it row by row, as it is read."] = want.T.reshape(
                    want.shape
                )
            seen_close(
                value, want, f"params[{i}]", looks, "Is each view where its values were put?"
            )
        trained = (
            "a parameter's requires_grad is not what it was, or a buffer has it: parameters are trained as before, "
            "flat and grads are memory. Work with p.detach()."
        )
        holds(got, {"trained": trained})

    def _rest(self, values, learns, xs, got):
        holds(
            got,
            {
                "zero": "grads is not zero at the start, or lies in flat: autograd adds to what is there."
            },
        )
        told(got, "flat")
        if not all(got["old"]):
            raise Wrong(
                f"params[{got['old'].index(False)}]'s old memory is still held: two copies of the weights."
            )
        most = 2 * sum(v.nbytes for v in values)
        if got["held"] > most:
            raise Wrong(
                f"{got['held']} bytes are held afterwards, and {most} are enough: flat, and grads."
            )
        leaves = [v.clone().requires_grad_() for v in values]
        for i, (x, step) in enumerate(zip(xs, got["steps"], strict=True)):
            grads = torch.autograd.grad(losses(leaves, x), leaves)
            leaves = [
                (p - RATE * learn * g).detach().requires_grad_()
                for p, g, learn in zip(leaves, grads, learns, strict=True)
            ]
            for j, (found, p) in enumerate(zip(step, leaves, strict=True)):
                seen_close(
                    found,
                    p.detach(),
                    f"params[{j}] after step {i + 1}",
                    {},
                    "Does autograd add to grads, and does the step move what the model uses?",
                )


# ------------------------------------------------------------
# Numbers: launches, bytes and memory, foretold.


def predict_operators(weights=10**9, tensors=500, heads=16, T=8192):
    """On an H100 by the roofline, 5 µs a launch: 10⁹ weights in 500 tensors, AdamW in fp32.

    launches: of the plain loop.  loop_ms: its milliseconds.  flat_ms: over a flat buffer that holds the gradients, too.
    edge: numbers at which a bf16 addition takes as long as its launch.  scores_mib: MiB of the scores of 16 heads,
    T = 8,192, bf16.  ridge_n: from which n on a bf16 product of n × n is bound by compute.
    """
    launch = 5e-6
    bandwidth = 3.35e12
    single = 67e12
    half = 989e12
    # ms
    start, move = (
        1e3 * 8 * tensors * launch,
        lambda numbers: 1e3 * numbers * weights * 4 / bandwidth,
    )
    scores = heads * T * T * 2 / 2**20
    edge = launch * bandwidth / 6
    ridge = 3 * half / bandwidth
    values = {
        "launches": 8 * tensors,
        "loop_ms": start + move(21),
        "flat_ms": move(7) + 1e3 * launch,
        "edge": edge,
        "scores_mib": scores,
        "ridge_n": ridge,
    }
    slips = {
        "launches": {
            tensors: "That is one a tensor: AdamW written out has eight.",
            8: "That is foreach: the loop goes through the tensors.",
            21 * tensors: "21 are the numbers moved: launches are eight a tensor.",
        },
        "loop_ms": {
            start: "Those are the launches alone: the bytes come on top.",
            move(21): "Those are the bytes alone: each launch comes on top.",
            start + move(7): "Written out it moves 21 numbers a weight, not 7.",
            max(start, move(21)): "A launch comes on top of its bytes.",
            (start + move(21)) / 1e3: "In ms.",
            start + move(21) / 4: NUMBERS,
            start / 8 + move(21): "Eight launches a tensor.",
        },
        "flat_ms": {
            move(9): "Nothing is to be copied: the gradients are in the buffer already.",
            move(21): "In one pass each number is read and written once: 7.",
            move(7) / 4: NUMBERS,
            move(7) / 1e3: "In ms.",
            move(4): "What is written moves, too: p, m and v.",
            move(7) + start: "One launch is left.",
        },
        "edge": {
            edge / 2: "bf16 has 2 bytes, not 4.",
            edge * 6: "Those are bytes: three numbers of 2 bytes each.",
            edge * 3: "It reads two and writes one: three numbers each.",
            edge * 2: "It reads two and writes one: 6 bytes each.",
            edge * 1.5: "It reads two and writes one.",
        },
        "scores_mib": {
            scores / 2: "bf16 has 2 bytes.",
            scores * 2: "bf16 has 2 bytes, not 4.",
            scores / heads: "That is one head.",
            scores * 2**20 / 1e6: "Those are MB = 10⁶: a MiB is 2²⁰ bytes.",
            scores * 2**20: "In MiB, of 2²⁰ bytes.",
            scores / 1024: "Those are GiB.",
        },
        "ridge_n": {
            6 * half / bandwidth: "bf16 has 2 bytes, and a product 2n³ FLOPs: intensity is n/3.",
            half
            / bandwidth: "Those are FLOPs a byte: a product of n × n has 2n³ FLOPs and 6n² bytes.",
            6 * single / bandwidth: "That is fp32.",
            3 * single / bandwidth: "989 TFLOP/s in bf16: 67 are those of fp32.",
            ridge / 3: "Three matrices move.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_operators,
    "Launches, times and memory, within 1 %.",
    {
        "tensors": ("{} tensors", (200, 300, 800)),
        "heads": ("{} heads", (8, 24, 32)),
        "T": ("T = {:,}", (2048, 4096, 16384)),
    },
)
