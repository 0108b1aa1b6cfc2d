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
    bare,
    close,
    holds,
    integer,
    kind_of,
    near,
    normal,
    recognized,
    shaped,
    unchanged,
    uniform,
    unpacked,
)
from ..oracles import operators as oracle

# ------------------------------------------------------------
# Is a tensor near enough to the right one? If not: what does the mistake look like?


STRANGE = (
    "There is inf or nan in it: is m subtracted before exp? Are −inf − −inf and 0 · −inf avoided?"
)
STRANGE_SUMS = f"{STRANGE} Does m start below every number, however small? Where t moves, is s still the old sum?"
STRANGE_TILES = f"{STRANGE} Does m start below every score?"
FORBIDDEN = (
    "minidist.study",
    "minidist.train",
    "minidist.checkpoint",
    "minidist.parallel",
    "minicheck.oracles.operators",
    "minidist.comm.meter",
)


def seen_close(
    got, want: Tensor, name: str, looks: dict[str, Tensor], otherwise: str, strange: str = STRANGE
) -> None:
    """As `close`, of what an answer has computed under the meter."""
    if isinstance(got, Other) and got.kind.startswith("meta"):
        raise Wrong(
            f"{name} came out of no operator that the meter saw: compute it with PyTorch, in the open."
        )

    def mistakes(got):
        table = {text: x for text, x in looks.items() if not near(x, want)}
        return recognized(got, table, strange if not got.isfinite().all() else "")

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
# Numbers of operators: their time on a device that is fed by a CPU, and what fusion saves.


WALLS = ("launch", "memory", "compute")
DEVICES = (
    {"launch": 5e-6, "bandwidth": 3.35e12, "peak": 67e12},
    {"launch": 4e-6, "bandwidth": 0.9e12, "peak": 125e12},
    {"launch": 2e-6, "bandwidth": 0.4e12, "peak": 5e12},
)


class RunAhead(Solo):
    """`run_ahead(kernels, device)`: (seconds, a word for each kernel), where the CPU launches without waiting."""

    name = "run_ahead"
    right = "3 devices, kernels shorter and longer than a launch, asked for or not: seconds, and what each waits for."
    forbidden = FORBIDDEN
    cases = (
        *(Case(1, f"device {i}, {w}-bound kernels", (i, w, 0)) for i in range(3) for w in WALLS),
        Case(1, "all kinds", (0, "", 0)),
        Case(1, "some are asked for", (1, "", 3)),
        Case(1, "long kernels, some are asked for", (2, "compute", 4)),
        Case(1, "no kernel", (0, None, 0)),
    )
    returns = ("the time in seconds", "the list of words")
    given = ("`kernels`", "`device`")

    def draw(self, case, rng):
        i, wall, every = case.given
        device, kernels = DEVICES[i], []
        for k in range(0 if wall is None else 12):
            kind = wall or WALLS[integer(rng, 0, 3)]
            if (
                wall == "" and k < 2
            ):  # a long kernel, and a short one that has been launched meanwhile
                kind = ("memory", "launch")[k]
            longer = device["launch"] * (0.2 + (1.1 + uniform(rng)) * (kind != "launch" or k == 11))
            longer *= 4 if wall == "" and k == 0 else 1
            shorter = longer * (0.3 + 0.5 * uniform(rng))
            memory, compute = (longer, shorter) if kind == "memory" else (shorter, longer)
            asked = bool(every) and k % every == 1
            work = int(memory * device["bandwidth"]), int(compute * device["peak"])
            kernels.append((*work, asked))
        return [(kernels, device)]

    def wants(self, case, args):
        return [dict(zip(self.returns, oracle.run_ahead(*args[0])))]

    def value(self, case, args, rank, name, got, want):
        kernels, device = args[0]
        if name == "the list of words":
            shaped(got, [str], name, 'a list of words, such as "memory"')
            if len(got) != len(want):
                raise Wrong(f"{len(got)} words came, and there are {len(want)} kernels.")
            for i, (found, word) in enumerate(zip(got, want, strict=True)):
                if found != word:
                    raise Wrong(
                        f"the word of kernels[{i}] is {found!r}, and should be {word!r}. {WORDS[word]}"
                    )
            return
        slips = oracle.run_ahead_slips(kernels, device)
        close(got, want, name, slips, "Follow the two clocks through the first three kernels.")


WORDS = {
    "launch": "The device has ended what came before, and is idle until this kernel has been launched, however briefly.",
    "memory": "It was launched in time, and its bytes take longer than its FLOPs.",
    "compute": "It was launched in time, and its FLOPs take longer than its bytes.",
}


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
            kind = ("product", "reduction", "pointwise", "pointwise")[draw(4) if i != 2 else 2]
            recent = names if draw(2) else names[-4:]
            reads = [names[-1], recent[draw(len(recent))]] if i else ["x", "w"]
            if i > 8:
                reads.append(f"t{i - 7}")  # a result of long ago
            operators.append(
                (
                    f"{'op' if draw(2) else 'mm'}{i}",
                    kind,
                    reads,
                    f"t{i}",
                )
            )
            names.append(f"t{i}")
        read = {name for one in operators for name in one[2]}
        wanted = [one[3] for one in operators if one[3] not in read or draw(6) == 0]
        if case.what.startswith("graph 6"):  # nobody needs the last result
            wanted = [name for name in wanted if name != operators[-1][3]]
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
            rule = (
                "Count each tensor from outside once, and each result that is wanted or that any other kernel "
                "reads, however much later."
            )
            if nbytes != should:
                raise Wrong(
                    f"the group {members} moves {nbytes} bytes, and should move {should}. {looks.get(nbytes, rule)}"
                )


def _grouping(names, operators):
    """What is wrong with groups."""
    flat, kinds = [name for group in names for name in group], {one[0]: one[1] for one in operators}
    if flat != list(kinds):
        return "Each operator is in one kernel, and the order is that of the list."
    runs = [[kinds[name] for name in group] for group in names]
    if any("product" in run[1:] for run in runs):
        return "A product begins a kernel."
    if any("product" in run and "reduction" in run for run in runs):
        return "A product's kernel has tiles and no whole rows: a reduction after it begins another kernel."
    if any(run[:1] == ["pointwise"] for run in runs[1:]):
        return "What is pointwise joins the kernel before it, a product's, too."
    return "A reduction joins the kernel before it, unless there is a product in it."


# ------------------------------------------------------------
# A backward of one's own: a gate, nothing kept but what was given.


GATE_OTHERWISE = "Compare with F.gelu(gate) * value and autograd, number by number."


class GeGlu(Report):
    """`geglu(h, b)`: F.gelu(gate) * value of the halves of h + b, whose backward needs h and b alone."""

    name = "geglu"
    right = "5 shapes, float32 and float64, gradients of h and b; nothing is kept but h and b."
    forbidden = FORBIDDEN
    cases = (
        Case(1, "h (6, 8)", ((6, 8), torch.float64, True)),
        Case(1, "h (6,)", ((6,), torch.float64, True)),
        Case(1, "h (2, 5, 4)", ((2, 5, 4), torch.float64, True)),
        Case(1, "float32", ((40, 8), torch.float32, True)),
        Case(1, "h needs no gradient", ((6, 8), torch.float64, False)),
        Case(1, "a nan in h", ((6, 8), torch.float64, True)),
    )

    def draw(self, case, rng):
        shape, dtype, needs = case.given
        out = (*shape[:-1], shape[-1] // 2)
        x, b, dy = (2 * normal(rng, s).to(dtype) for s in (shape, shape[-1:], out))
        if "nan" in case.what:
            x[0, 1] = math.nan
        return [(x, b, dy, needs)]

    def run(self, comm, yours, x, b, dy, needs):
        seen, other = Seen([x, b, dy]), (-x, 2 * b)
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
            try:
                found["grads"] = seen.plain(seen.ask(grads))
            except RuntimeError as error:
                if "invalid gradient at index" not in str(error):
                    raise
                shapes = "the gradients of h and b must have the shapes of h and b, also where h has one dimension"
                raise Unseen(f"{shapes}: {error}").with_traceback(error.__traceback__) from error
        found["given"] = seen.plain([z.detach() for z in (x, b, dy)])
        return found | {"left": seen.left, "may_leave": seen.may_leave}

    def check(self, case, got, x, b, dy, needs):
        seen_close(got["y"], oracle.geglu(x, b), "y", oracle.geglu_looks(x, b), GATE_OTHERWISE)
        for after, before, name in zip(got["given"], (x, b, dy), ("h", "b", "dy"), strict=True):
            unchanged(after, before, name)
        told(got, "y")
        if got["grads"] is None:
            raise Wrong("y has no backward: does geglu call GeGlu.apply, and nothing with no_grad?")
        dx, looks = oracle.dh(dy, x, b), oracle.dh_looks(dy, x, b)
        if needs:
            seen_close(got["grads"][0], dx, "dh", looks, GATE_OTHERWISE)
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
            GATE_OTHERWISE,
        )
        if got["held"] > b.nbytes:
            raise Wrong(
                f"the numbers are right, but {got['held']} bytes are kept for backward beside h and b (what an operator "
                "between two others keeps is one of them): save h and b, and form the rest again, in one backward."
            )


# ------------------------------------------------------------
# Softmax in parts: its entropy, and causal attention in tiles.


SOFTMAX_OTHERWISE = "Check the rule on two parts of three numbers, on paper."


class Entropy(Report):
    """`entropy(parts)`: of the softmax of each row, whose parts come one after the other."""

    name = "entropy"
    right = "rows of 1 to 24 parts, the largest number anywhere, parts of −inf: entropies, in one reading."
    forbidden = FORBIDDEN
    cases = (
        Case(1, "the largest number first", (3, [4, 4, 4], 0, torch.float64)),
        Case(1, "the largest number last", (3, [4, 4, 4], 2, torch.float64)),
        Case(1, "one part, 300 numbers alike, far below 0", (2, [300], 0, torch.float64)),
        Case(1, "one part, one number, lower yet", (2, [1], 0, torch.float64)),
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
        if "lower" in case.what:
            parts[0] = parts[0] - 2.0**40
        if "nan" in case.what:
            parts[2][1, 0] = math.nan
        if "−inf" in case.what:
            parts[0 if "first" in case.what else 1][: rows // 2] = -math.inf
            parts[2][rows - 1, 1] = -math.inf
        return [(parts,)]

    def run(self, comm, yours, parts):
        seen = Seen(parts)
        mine = list(seen.given)
        found = seen.ask(yours, mine)
        return seen.plain({"found": found, "parts": seen.given}) | {
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
        want, looks = oracle.entropy(parts), oracle.entropies(parts)
        seen_close(got["found"], want, "the entropy", looks, SOFTMAX_OTHERWISE, STRANGE_SUMS)
        told(got, "the entropy")
        self._one_by_one(parts, got)

    def _one_by_one(self, parts, got):
        most = max(part.nbytes for part in parts)
        if len(parts) > 3 and got["largest"] > 1.5 * most:
            raise Costly(
                f"the numbers are right, but a tensor of {got['largest']} bytes is made, and the largest part "
                f"has {most}: look at one part at a time."
            )
        if len(parts) > 3 and got["peak"] > 9 * most:
            raise Costly(
                f"the numbers are right, but {got['peak']} bytes are alive at once, and the largest part has "
                f"{most}: look at one part at a time, and keep nothing of it but the three sums."
            )
        twice = [i for at, i in enumerate(got["readings"]) if i in got["readings"][:at]]
        if twice:
            raise Costly(
                f"the numbers are right, but parts[{twice[0]}] is read again after others: m, s and t are to "
                "be taken together, in one reading."
            )


class Attention(Report):
    """`attention(q, k, v, tile)`: causal softmax(qkᵀ/√d)v, in tiles, and m + log s."""

    name = "attention"
    right = "queries, keys and tiles of 8 sizes, large scores, float32: exact, a tile at a time, later keys left out."
    forbidden = FORBIDDEN
    step = 10.0
    sizes = (
        (7, 7, 2, 3),
        (6, 9, 3, 4),
        (5, 5, 4, 64),
        (9, 13, 3, 1),
        (40, 45, 8, 5),
        (70, 75, 8, 20),
        (130, 136, 8, 16),
    )
    cases = (
        *(
            Case(1, f"T = {T}, K = {K}, tile = {tile}", (T, K, d, tile, 1.0, torch.float64))
            for T, K, d, tile in sizes
        ),
        Case(1, "scores of some hundred thousand", (20, 24, 4, 5, 300.0, torch.float64)),
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
        pair = seen.ask(yours, *seen.given, tile)
        names = sorted(name for name in seen.names if "attention" in name)
        # not keys, nor values, nor a number a query
        scores = lambda shape: len(k) in shape and len(shape) > 1 and not {1, q.shape[1]} & {*shape}
        rows = [shape for shape in seen.shapes if tile < len(k) and scores(shape)]
        extents = lambda shape: sorted(size for size in shape if size > 1)
        found = seen.plain({"pair": pair, "given": seen.given}) | {
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
        pair = unpacked(got["pair"], ("the result", "m + log s"))
        want = oracle.attention(q, k, v)
        looks = oracle.attention_looks(q, k, v, tile), oracle.log_looks(q, k)
        for (name, found), right, mistakes in zip(pair.items(), want, looks, strict=True):
            seen_close(
                found,
                right,
                name,
                mistakes,
                "Compare with the naive way on two tiles.",
                STRANGE_TILES,
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
        least, most = oracle.causal_flops(len(q), len(k), q.shape[1], tile)
        if not 0.99 * least <= got["flops"] <= 1.01 * most:
            raise Wrong(
                f"the numbers are right, but the meter saw {got['flops']:,} FLOPs of products, and {most:,} are needed: "
                "two products a tile, each once, and none for a tile whose keys are all later than its queries."
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


RATE, DECAY = 0.1, 0.5


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
    """`flatten(params, decays)`: (flat, grads, end), of which the parameters, and their .grad, are views."""

    name = "flatten"
    right = "8 models: values kept, what decays first, views in order, old memory freed, three steps of SGD with two launches each."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, what, (shapes, decays, special))
        for what, shapes, decays, special in (
            ("a matrix, a bias", ((3, 2), (4,)), "10", ""),
            ("one parameter, which decays", ((5,),), "1", ""),
            ("nothing decays", ((5,), (2, 2)), "00", ""),
            ("a bias first", ((2,), (2, 3), (), (4, 2)), "0101", ""),
            ("kinds alternate", ((7, 3), (3,), (3, 7), (2, 2, 2), (7,)), "10110", ""),
            ("a transposed parameter", ((4, 3), (3,)), "10", "transposed"),
            ("a frozen parameter, old gradients", ((4, 3), (3,), (2, 2)), "101", "frozen"),
            ("a parameter twice", ((4, 3), (3,), (2, 2), (4, 3), (4,)), "10110", "twice"),
        )
    )

    def draw(self, case, rng):
        shapes, decays, special = case.given
        dtype = torch.float32 if len(shapes) == 4 else torch.float64
        values = [normal(rng, shape, dtype=dtype) for shape in shapes]
        decay = [letter == "1" for letter in decays]
        return [(values, decay, special, normal(rng, 3, 99, dtype=dtype))]

    def run(self, comm, yours, values, decay, special, xs):
        seen = Seen([])
        values = [values[0].T, *values[1:]] if special == "transposed" else values
        learns = [not (special == "frozen" and i == 1) for i in range(len(values))]
        params = [nn.Parameter(seen.give(v), learn) for v, learn in zip(values, learns)]
        if special == "frozen":
            for p, v in zip(params, values):
                p.grad = seen.give(v)
        if special == "twice":
            params[3] = params[0]
        mine, given = list(params), list(decay)
        old = [StorageWeakRef(p.untyped_storage()) for p in params]
        triple = seen.ask(yours, mine, given)
        held = seen.alive()
        kinds = [Tensor, Tensor, int]
        if (
            not isinstance(triple, tuple | list)
            or [kind for kind, x in zip(kinds, triple) if isinstance(x, kind)] != kinds
            or len(triple) != 3
        ):
            return {"triple": kind_of(triple)}
        flat, grads, end = triple
        if not all(map(seen.knows, [flat, grads, *params])):
            return {"knows": False}
        same = len(mine) == len(params) and all(a is b for a, b in zip(mine, params, strict=True))
        found = {
            "knows": True,
            "end": int(end),
            "values": seen.plain(params),
            "same": same and given == decay,
            "held": held,
            "trained": [p.requires_grad for p in params] == learns
            and not flat.requires_grad
            and not grads.requires_grad,
            "places": places([p.detach() for p in params], flat),
            "grads": places([p.grad for p in params], grads),
            "pair_like": seen.plain([x.detach() for x in (flat, grads)]),
            "zero": not bool(seen.plain(grads).any()),
            "left": seen.left,
            "may_leave": seen.may_leave,
            "old": [ref.expired() for ref in old],
        }
        steps = [self._step(seen, params, triple, x) for x in seen.give(xs)]
        return found | {"steps": steps}

    def _step(self, seen, params, triple, x):
        """The parameters after a step of SGD on the two buffers."""
        flat, grads, end = triple

        def step():
            grads.zero_()
            losses(params, x).backward()
            flat[:end].mul_(1 - RATE * DECAY)
            flat.add_(grads, alpha=-RATE)

        seen.ask(step)
        return seen.plain(params)

    def check(self, case, got, values, decay, special, xs):
        values = [values[0].T, *values[1:]] if special == "transposed" else values
        places = list(range(len(values)))
        if special == "twice":
            places[3], values = 0, [*values[:3], values[0], *values[4:]]
        if "triple" in got:
            raise Wrong(
                f"the result is {got['triple']}, and should be two tensors and a whole number: flat, grads and end."
            )
        unknown = (
            "flat, grads or a parameter came out of no operator that the meter saw: compute it with "
            "PyTorch, in the open."
        )
        holds(got, {"knows": unknown})
        kinds = [[i for i in dict.fromkeys(places) if decay[i] == kind] for kind in (True, False)]
        order = [*kinds[0], *kinds[1]]
        self._buffers([values[i] for i in order], values, got)
        begins, at = {}, 0
        for i in order:
            begins[i], at = at, at + values[i].numel()
        listed = self._places(places, values, order, begins, got)
        end = sum(values[i].numel() for i in kinds[0])
        if got["end"] != end:
            said = {
                len(kinds[0]): "That is how many parameters decay: their numbers are counted.",
                at - end: "So many numbers do not decay.",
                at: "Those are all numbers.",
            }.get(
                got["end"], "Count the numbers of the parameters that decay, each parameter once."
            )
            raise Wrong(f"end is {got['end']}, and should be {end}. {said}")
        if listed:
            raise Wrong(listed)
        learns = [not (special == "frozen" and i == 1) for i in order]
        self._rest(
            order, places, [values[i] for i in order], [decay[i] for i in order], learns, xs, got
        )

    def _buffers(self, once, values, got):
        row = torch.empty(sum(v.numel() for v in once), dtype=once[0].dtype)
        for x, name in zip(got["pair_like"], ("flat", "grads"), strict=True):
            if len(once) < len(values) and x.numel() == sum(v.numel() for v in values):
                raise Wrong(
                    f"{name} has room for a parameter twice: it stands in the list twice, and must lie in {name} once."
                )
            alike(x, row, f"{name}, all parameters' numbers in a row,")
        holds(
            got,
            {"same": "a list was changed: the model has the old parameters. Set p.data of each."},
        )
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

    def _places(self, places, values, order, begins, got):
        """What is wrong with where the views begin, or ""."""
        in_turn = [sum(values[j].numel() for j in sorted(order) if j < i) for i in places]
        for what, name, buffer in (("places", "p", "flat"), ("grads", "p.grad", "grads")):
            for i, (place, first) in enumerate(zip(got[what], places, strict=True)):
                want = begins[first]
                if place != want:
                    where = f"begins at element {place} of {buffer}"
                    said = "One after the other, in order."
                    if place is None:
                        where = f"is no view of {buffer}"
                        said = f"Is it a copy, or None, or the old one? Set it, for each parameter, to a part of {buffer}."
                    if place is not None and want != in_turn[i] == place:
                        said = (
                            "That is the place in the order of the list: what decays comes first."
                        )
                    elif place is not None and None not in got[what]:
                        said = "First what decays, then the others, each kind in the order of the list."
                    return f"{name} of params[{i}] {where}: it should begin at {want}. {said}"
        return ""

    def _rest(self, order, places, values, decay, learns, xs, got):
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
        leaves = [v.clone().requires_grad_(learn) for v, learn in zip(values, learns)]
        for i, (x, step) in enumerate(zip(xs, got["steps"], strict=True)):
            listed = [leaves[order.index(first)] for first in places]
            trained = [p for p in leaves if p.requires_grad]
            grads = dict(zip(trained, torch.autograd.grad(losses(listed, x), trained)))
            leaves = [
                (
                    p.detach() * (1 - RATE * DECAY * decays) - RATE * grads.get(p, 0 * p.detach())
                ).requires_grad_(p.requires_grad)
                for p, decays in zip(leaves, decay, strict=True)
            ]
            for j, first in enumerate(places):
                seen_close(
                    step[j],
                    leaves[order.index(first)].detach(),
                    f"params[{j}] after step {i + 1}",
                    {},
                    "Does autograd add to grads, and does the step move what the model uses?",
                )


# ------------------------------------------------------------
# Numbers: launches, bytes and memory, foretold.


def predict_operators(weights=10**9, heads=16, T=8192, width=8192):
    """On an H100 by the roofline, 5 µs a launch.

    tensors: at which AdamW's launches take as long as its bytes.  mixed_ms: of one fused step in mixed precision.
    edge: numbers at which a bf16 addition of three takes as long as its launch.  kept_mib: what attention in tiles keeps.
    queries, batch: from which on attention's tiles, and a product with a square matrix, are bound by compute.
    """
    launch, bandwidth = 5e-6, 3.35e12
    single, half = 67e12, 989e12
    ms = lambda nbytes: 1e3 * nbytes * weights / bandwidth
    even = ms(84) / (1e3 * 8 * launch)
    mib = lambda nbytes: heads * T * nbytes / 2**20
    edge = launch * bandwidth / 8
    ridge = half / bandwidth
    batch = ridge * width / (width - 2 * ridge)
    values = {
        "tensors": even,
        "mixed_ms": ms(30) + 1e3 * launch,
        "edge": edge,
        "kept_mib": mib(260),
        "queries": ridge,
        "batch": batch,
    }
    flops = "A number of bf16 has 2 bytes, and takes 2 FLOPs with each query: they cancel."
    slips = {
        "tensors": {
            8 * even: "Those are launches: each tensor has eight.",
            even / 4: NUMBERS,
            even / 3: "Written out it moves 21 numbers a weight, not 7.",
            even / 2: "Numbers of fp32 have 4 bytes.",
        },
        "mixed_ms": {
            ms(
                28
            ): "That is all in fp32, or without the weights in bf16, or with gradients in bf16: gradients 4 bytes, "
            "states and copy 12 read and 12 written, weights in bf16 2.",
            ms(30) / 1e3: "In ms.",
            ms(16): "What is read is written, too: the copy and two states move both ways.",
            ms(32): "The weights in bf16 are only written: the step reads the copy.",
            ms(14): "What is read is written, too: the copy and two states move both ways.",
            ms(22): "The copy moves, too, both ways.",
            ms(84): "In one launch each number is read and written once.",
            ms(12): "Those are read; what is written moves, too.",
            ms(26): "The gradients are read, too.",
        },
        "edge": {
            edge / 2: "bf16 has 2 bytes, not 4.",
            edge * 8: "Those are bytes: four numbers of 2 bytes each.",
            edge * 4: "It reads three and writes one: four numbers each.",
            edge * 2: "A number of bf16 has 2 bytes.",
            edge * 4 / 3: "It reads three and writes one: 8 bytes each.",
            edge * 2 / 3: "It is one operator: no sum of two is written and read again.",
        },
        "kept_mib": {
            mib(256): "And m + log s, one number a query.",
            mib(192): "q, k, v, and the result, too.",
            mib(264): "One number a query: m + log s, not both.",
            mib(196): "The result is kept, too.",
            mib(516): "bf16 has 2 bytes, not 4.",
            mib(260) / heads: "That is one head.",
            mib(260) * 2**20 / 1e6: "Those are MB = 10⁶: a MiB is 2²⁰ bytes.",
            mib(260) * 2**20: "In MiB, of 2²⁰ bytes.",
            mib(2 * T): "Those are the scores: tiles keep none.",
            mib(2 * T + 260): "Tiles keep no scores.",
        },
        "queries": {
            ridge / 2: flops,
            2 * ridge: flops,
            4 * ridge: flops,
            6 * single / bandwidth: "That is fp32, and a square product.",
            single / bandwidth: "989 TFLOP/s in bf16: 67 are those of fp32.",
            3 * ridge: "That is a square product: here k and v alone move.",
        },
        "batch": {
            ridge: "Nearly: the rows move, too, in and out.",
            ridge
            * width
            / (width - ridge): "The rows are read, and the results are written: both move.",
            3 * ridge: "That is a square product: here B is small.",
            ridge / 2: flops,
            2 * ridge: flops,
            single
            / bandwidth
            * width
            / (width - 2 * single / bandwidth): "989 TFLOP/s in bf16: 67 are those of fp32.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_operators,
    "Tensors, times, memory and batches, within 1 %.",
    {
        "weights": ("{:,} weights", (5 * 10**8, 2 * 10**9, 3 * 10**9)),
        "heads": ("{} heads", (8, 24, 32)),
        "T": ("T = {:,}", (2048, 4096, 16384)),
    },
)
