"""Is my run right? A serial and a parallel training run, recorded and compared.

The same lines record both, in any training loop on PyTorch, under torchrun as well:

    run = record(model, "runs/parallel", rank=rank)       # before the first step
    for x, y in batches:
        loss = loss_fn(model(x), y)
        loss.backward()                                   # and what synchronizes, and what clips
        with run.step(loss=loss, norm=norm):
            optimizer.step()

    python -m minidist.study.compare runs/serial runs/parallel

Where a parallel run is wrong, everything after the first mistake is wrong too. So tensors are compared in the order in
which a step makes them, and only the first kind that differs is looked at:

    weights at the start → masks of dropout → outputs, module by module → loss → gradients of outputs, from the loss
    back → norm and gradients of parameters, when they are synchronized → parameters after the step → next step

A rank's tensor may be all of the serial one (a copy), a part of it along some dimension, or a run of its elements, as
ZeRO has them, with padding at the end or without: the shapes tell which, and the possible orders of the parts are
tried. A flat buffer of many parameters is cut into theirs by `Recorder.note_flat`. **The cause** is a hypothesis that
explains the wrong tensor S → P to the last rounding error, tried one by one: P = c·S; the sum or the mean of all ranks'
P is S; each number is right on some rank; P's chunks are S's in another order; and, as a hook sees what each rank's own
backward adds, P = Σ a_r·L_r: which ranks and micro-batches L_r are in P, and how often, is a least-squares problem.

**What rounding allows.** With unit roundoff u, a sum of K numbers in another order differs by about √K·u of their size
(errors are independent: Higham and Mary 2019, "A New Approach to Probabilistic Rounding Error Analysis", theorem 2.4;
at worst by K·u). Matrix products sum in float32 at least, of unit roundoff v ≤ u, and round once, to u. Through D modules
errors add up as √D. So the bound is 4(u√D + v√(KD)) of the tensor's largest number; each step adds as much again. Below
it is noise that an optimizer may enlarge: Adam moves a parameter by the whole rate where its gradient is 0 but for
rounding, as the gradient of a key's bias is. A parameter's bound grows by its update times its gradient's relative
error, or by the largest update where that is above 1/10.

A softmax of n blocks of keys is merged block by block: each merge multiplies by the exponential of a difference of two
log-sums of size ℓ, which is off by 2ℓu, and rounds four times more. So it differs by √n(4 + 2ℓ)u beyond a sum's √K·u,
which is less than the bound where n(4 + 2ℓ)² < 16KD: K is at least the number of all keys, of which n is a small part.

Only some axes can be equal to the last bit: `AXES`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minidist.arguments import whole
from minidist.checkpoint.files import read_box, read_header, safetensors, write

# Whether a run over this axis alone can be equal, bit for bit, to the serial run with the same micro-batches, and why.
AXES = {
    "pipeline": (
        True,
        "each micro-batch meets the same operators, and gradients add up in the same order; but not the sum "
        "of a tied embedding's two gradients, and of a norm over stages",
    ),
    "remat": (True, "the same operators run again on the same numbers"),
    "data": (False, "a gradient's sum over the batch becomes a sum of the ranks' sums"),
    "accumulate": (
        False,
        "a gradient's sum over the batch becomes a sum of the micro-batches' sums",
    ),
    "zero": (False, "as data, whose sums it cuts"),
    "tensor": (False, "a product's sum over its inputs becomes a sum of the ranks' sums"),
    "context": (
        False,
        "a softmax's sum over the keys becomes a sum of the blocks' sums, and is scaled anew with each block",
    ),
}

# What may be the cause, and what to look for.
CAUSES = {
    "start": "The weights are not those of the serial run when training begins. Draw them from the same seed and "
    "broadcast rank 0's, buffers and frozen parameters too, before the first step.",
    "random": "Dropout draws other numbers. On data that all ranks hold, ranks need the same stream of random numbers; on "
    "parts of the data, different ones. To compare with a serial run, switch dropout off.",
    "factor": "Something is summed where a mean belongs, or divided twice: by the number of ranks or of micro-batches.",
    "missing": "An exchange is missing: each rank holds what it computed alone. Look for a parameter or output that no "
    "all-reduce, all-gather or broadcast reaches, or reaches before all of it is there, and for work nobody waits for.",
    "extra": "An exchange too many: what is split over the ranks was added up, as if it were copies.",
    "weight": "Parts of different sizes are averaged as if they were equal. Weigh each with its number of samples.",
    "part": "A part is left out or counted twice: a rank, a micro-batch, the rest that n does not divide, a bias.",
    "place": "The right numbers stand in the wrong place: a chunk, shard or bucket is cut or put together in another order.",
    "norm": "The norm is wrong: a part is left out, or copies are counted on each rank that holds them.",
    "lost": "Nothing arrives: the gradient was cut off from autograd, cleared or never set.",
    "stale": "Numbers of the step before are still there. Clear gradients before each step, not inside of it.",
    "precision": "The difference is that of a narrower format: something travels or is added up in it.",
    "nonfinite": "There is nan or inf, which the serial run does not have: look at divisions by zero and at empty parts.",
    "update": "Gradients are right and parameters are not: look at the optimizer, its states and its learning rate.",
    "replicas": "All is right but for rounding, and copies differ between ranks: each adds up in an order of its own. They "
    "will drift apart. Reduce in one place, and send the result.",
    "other": "No exchange explains it: the layer itself computes something else.",
    "equal": "No difference beyond what rounding allows.",
}

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


# ------------------------------------------------------------
# Record.


def plain(name: str) -> str:
    """A parameter's name without what DDP, FSDP, torch.compile and checkpointing put into it."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS)


def record(
    model: nn.Module | None,
    folder: str | Path | None = None,
    rank: int = 0,
    steps: int = 3,
    names: Callable[[str], str] = plain,
) -> Recorder:
    """Record the next steps of this rank's model. Call it on every rank before the first step.

    folder: each step is written to a file in it when the step is over; None keeps the steps in `finished`.
    names: a function that gives a module's or parameter's name in the serial model, for a pipeline stage that numbers
    its modules from 0 again.
    After `steps` steps the hooks are removed. Raises ValueError if this rank has already recorded a run in that folder.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.study.compare import compare, record
    >>> def program(comm):
    ...     model = mlp([4, 3, 2])
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     run = record(model, rank=comm.rank, steps=1)
    ...     x = torch.arange(32.0).reshape(8, 4).sin()
    ...     model(x.chunk(comm.size)[comm.rank]).square().mean().backward()
    ...     with run.step():  # and nobody averages the gradients
    ...         optimizer.step()
    ...     return run.finished
    >>> report = compare(World(1).run(program), World(2).run(program), axes=["data"])
    >>> report.cause, report.first.name
    ('missing', '2.bias')
    >>> report.words
    "the mean over the ranks is the serial run's"
    """
    rank = whole(rank, "a rank is at least 0", 0)
    steps = whole(steps, "a run is recorded for at least 1 step", 1)
    if folder is not None and any(Path(folder).glob(f"rank-{rank:05}-step-*")):
        raise ValueError(
            f"{folder} holds a recorded run of rank {rank} already: take another folder"
        )
    return Recorder(model, folder, rank, steps, names)


class Recorder:
    """What `record` returns. `finished`: a dictionary for each step, {(kind, name): [a tensor of each call]}."""

    def __init__(self, model, folder, rank: int, steps: int, names: Callable[[str], str]):
        self.model = model
        self.folder = None if folder is None else Path(folder)
        self.rank = rank
        self.steps = steps
        self.names = names
        self.count = 0
        self.tensors: dict[tuple[str, str], list[Tensor]] = {}
        self.finished: list[dict[tuple[str, str], list[Tensor]]] = []
        self.handles: list[Any] = []
        self.flat: set[str] = set()
        if model is not None:
            for name, x in [*model.named_parameters(), *model.named_buffers()]:
                self.note("start", name, x)
            # a wrapper has the name of what it wraps: the last of a name is the model's own
            modules = {names(name): (name, module) for name, module in model.named_modules()}
            for name, module in modules.values():
                hook = partial(self.output, name)
                self.handles.append(module.register_forward_hook(hook))
            for name, p in model.named_parameters():
                if p.requires_grad:
                    hook = partial(self.note_gradient, "local", name)
                    self.handles.append(p.register_hook(hook))

    def note(self, kind: str, name: str, x: Any) -> None:
        """Keep a copy of a tensor of this step, or of this rank's part of it. What has no module calls it itself."""
        if self.count < self.steps:
            x = torch.as_tensor(x).detach()
            x = x.to_local() if hasattr(x, "to_local") else x
            calls = self.tensors.setdefault((kind, self.names(name)), [])
            calls.append(x.to("cpu", copy=True))

    def note_gradient(self, kind: str, name: str, x: Tensor | None) -> None:
        if x is not None:  # where a backward returns None
            self.note(kind, name, x)

    def note_flat(self, kind: str, x: Tensor, first: int) -> None:
        """Keep `x`, this rank's elements of a flat buffer of all parameters, from its number `first` on, as ZeRO has it:
        each parameter's piece by its name, and no padding. `step` then keeps no other "gradient", or "parameter"."""
        self.flat.add(kind)
        end = -first
        for name, p in self.model.named_parameters():
            begin, end = end, end + p.numel()
            piece = x[max(begin, 0) : max(end, 0)]
            if len(piece):
                self.note(kind, name, piece.view_as(p) if len(piece) == p.numel() else piece)

    def output(self, name: str, module: nn.Module, inputs: tuple, outputs: Any) -> None:
        y = outputs[0] if isinstance(outputs, tuple) else outputs
        if not isinstance(y, Tensor):
            return
        # A checkpointed module runs again inside of backward: then only its gradient is new.
        if torch._C._current_graph_task_id() == -1:
            if "Dropout" in type(module).__name__ and module.training:
                self.note("mask", name, (y != 0) | (inputs[0] == 0))
            self.note("output", name, y)
        if y.requires_grad:
            y.register_hook(partial(self.note_gradient, "output_grad", name))

    @contextmanager
    def step(self, loss: Any = None, norm: Any = None) -> Iterator[None]:
        """Wrap the optimizer's step, with the gradients as it will see them. norm: before clipping, if there is one."""
        for kind, x in (("loss", loss), ("norm", norm)):
            if x is not None:
                self.note(kind, kind, torch.as_tensor(x).double())
        named = [] if self.model is None else list(self.model.named_parameters())
        for name, p in named:
            if p.grad is not None and "gradient" not in self.flat:
                self.note("gradient", name, p.grad)
        yield
        for name, p in named:
            if "parameter" not in self.flat:
                self.note("parameter", name, p)
        self.finish()

    def finish(self) -> None:
        """End a step: write its file."""
        if self.count == self.steps:
            return
        if self.folder is None:
            self.finished.append(self.tensors)
        else:
            keys = [(key, i) for key, calls in self.tensors.items() for i in range(len(calls))]
            file = {
                f"{place:06}|{key[0]}|{key[1]}|{i}": self.tensors[key][i]
                for place, (key, i) in enumerate(keys)
            }
            self.folder.mkdir(parents=True, exist_ok=True)
            write(
                self.folder / f"rank-{self.rank:05}-step-{self.count:05}.safetensors",
                safetensors(file),
            )
        self.tensors = {}
        self.count += 1
        if self.count == self.steps:
            for handle in self.handles:
                handle.remove()


FILE = re.compile(r"rank-(\d+)-step-(\d+)\.safetensors")


def load(folder: str | Path) -> list[list[dict]]:
    """The records of all ranks, as `finished`. ValueError where there is none, or ranks do not have the same steps."""
    found: dict[int, dict[int, dict]] = {}
    for path in sorted(Path(folder).glob("rank-*.safetensors")):
        match = FILE.fullmatch(path.name)
        if match is None:
            continue
        tensors: dict[tuple[str, str], list[Tensor]] = {}
        with open(path, "rb") as file:
            for key, entry in sorted(read_header(file).items()):
                _, kind, name, _ = key.split("|")
                x = read_box(file, entry, (0,) * len(entry.shape), entry.shape)
                tensors.setdefault((kind, name), []).append(x)
        rank, step = map(int, match.groups())
        found.setdefault(rank, {})[step] = tensors
    if not found:
        raise ValueError(f"{folder} holds no recorded run: no file rank-*-step-*.safetensors")
    lengths = {rank: len(steps) for rank, steps in found.items()}
    if sorted(found) != list(range(len(found))) or len(set(lengths.values())) > 1:
        raise ValueError(f"{folder} is not whole: steps of each rank {lengths}")
    return [[steps[i] for i in sorted(steps)] for _, steps in sorted(found.items())]


# ------------------------------------------------------------
# What is allowed.


def tolerance(dtype: torch.dtype, terms: int, depth: int) -> float:
    """How much of a tensor's largest number rounding may change: 4(u√D + v√(KD)), for K terms and D modules."""
    u = torch.finfo(dtype).eps / 2
    v = min(u, 2.0**-24)
    return 4 * (u * math.sqrt(depth) + v * math.sqrt(terms * depth))


def join(parts: Sequence[Tensor], shape: torch.Size) -> list[list[Tensor]]:
    """Each way to put parts together into tensors of this shape: cut along a dimension, between neighbours or far
    ranks.

    A way is a list of copies. Parts that have the shape already are copies themselves. Parts of one dimension may be
    runs of elements, cut without regard to rows; parts of the same size may have padding at the end.
    """
    if any(x.dim() != len(shape) for x in parts):
        if any(x.dim() != 1 for x in parts) or not shape:
            return []
        flat = join(parts, torch.Size([shape.numel()]))
        return [[x.view(shape) for x in copies] for copies in flat]
    cut = [d for d in range(len(shape)) if any(x.shape[d] != shape[d] for x in parts)]
    if not cut:
        return [list(parts)]
    ways = []
    for d in cut:
        for copies in [c for c in range(1, len(parts) + 1) if len(parts) % c == 0]:
            each = len(parts) // copies
            neighbours = [parts[i * each : (i + 1) * each] for i in range(copies)]
            for groups in [neighbours, [parts[i::copies] for i in range(copies)]][: min(copies, 2)]:
                sums = {sum(x.shape[d] for x in group) for group in groups}
                rest = [{x.shape[:d] + x.shape[d + 1 :] for x in group} for group in groups]
                padded = {x.shape[d] for x in parts} == {-(-shape[d] // each)}
                if max(map(len, rest)) == 1 and (padded or sums == {shape[d]}):
                    joined = [torch.cat(list(group), d).narrow(d, 0, shape[d]) for group in groups]
                    ways += join(joined, shape)
    return ways


@dataclass
class Difference:
    """A tensor of the serial run, and what it is in the parallel one.

    copies: tensors of its shape, put together from the ranks' parts; owners: which rank each of their numbers is from.
    allowed: how far each number may be off. error: the largest difference. beyond: that in multiples of `allowed`.
    """

    kind: str
    name: str
    serial: Tensor
    copies: list[Tensor]
    owners: list[Tensor]
    allowed: Tensor
    error: float = 0.0
    beyond: float = 0.0
    ranks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for copy, owner in zip(self.copies, self.owners, strict=True):
            off = (copy - self.serial).abs().nan_to_num(math.inf, math.inf)
            times = torch.where(off > 0, off / self.allowed, 0.0)
            self.error = max(self.error, float(off.max()) if off.numel() else 0.0)
            self.beyond = max(self.beyond, float(times.max()) if times.numel() else 0.0)
            self.ranks += owner[times > 1].unique().int().tolist()
        self.ranks = sorted(set(self.ranks))

    def pieces(self) -> list[tuple[int, Tensor, Tensor]]:
        """(rank, its numbers, the serial ones at their place), flat, for each rank that holds some."""
        found = []
        for copy, owner in zip(self.copies, self.owners, strict=True):
            for rank in owner.unique().tolist():
                here = owner == rank
                found.append((int(rank), copy[here], self.serial[here]))
        return found


class Pair:
    """Two runs, and the differences between them, by step and kind."""

    def __init__(
        self,
        serial: Sequence[Sequence[Mapping]],
        parallel: Sequence[Sequence[Mapping]],
        exact: bool,
    ):
        if len(serial) != 1:
            raise ValueError(f"a serial run has 1 rank, not {len(serial)}")
        if len(serial[0]) != len(parallel[0]):
            raise ValueError(
                f"the runs have {len(serial[0])} and {len(parallel[0])} steps: record equally many"
            )
        self.steps = serial[0]
        self.ranks = parallel
        self.exact = exact
        own = {*self.names(0, "gradient"), *self.names(0, "parameter")}
        theirs = self.everywhere(0, "gradient") | self.everywhere(0, "parameter")
        if own and theirs and not own & theirs:
            raise ValueError(
                f"no parameter has one name in both runs, such as {min(own)} and {min(theirs)}: `names` of `record` "
                "gives the names of the serial model"
            )
        outputs = [calls[0] for (kind, _), calls in self.steps[0].items() if kind == "output"]
        starts = [calls[0] for (kind, _), calls in self.steps[0].items() if kind == "start"]
        floats = [x for x in outputs + starts if x.is_floating_point()]
        self.dtype = max(
            (x.dtype for x in floats), key=lambda d: torch.finfo(d).eps, default=torch.float64
        )
        rows = [math.prod(x.shape[:-1]) for x in outputs]
        self.terms = max([1, *rows, *(max(x.shape, default=1) for x in starts)])
        self.depth = max(1, len(outputs))
        self.tolerance = tolerance(self.dtype, self.terms, self.depth)

    @property
    def n(self) -> int:
        return len(self.ranks)

    def names(self, step: int, kind: str) -> list[str]:
        """In the order of the run: the nearer a parameter is to the loss, the sooner its gradient is there."""
        found = [name for k, name in self.steps[step] if k == kind]
        return found[::-1] if kind == "gradient" else found

    def everywhere(self, step: int, kind: str) -> set[str]:
        """The names that the parallel run has, on any rank."""
        found = set()
        for run in self.ranks:
            found |= {name for k, name in run[step] if k == kind}
        return found

    def serial(self, step: int, kind: str, name: str) -> Tensor | None:
        return joined(self.steps[step].get((kind, name), []))

    def parts(self, step: int, kind: str, name: str) -> dict[int, Tensor]:
        """{rank: its part}, of the ranks that have one."""
        found = {r: joined(run[step].get((kind, name), [])) for r, run in enumerate(self.ranks)}
        return {r: x for r, x in found.items() if x is not None}

    def local(self, step: int, name: str) -> list[Sequence[Tensor]]:
        """What each rank's backwards have added to a gradient, micro-batch by micro-batch."""
        return [run[step].get(("local", name), ()) for run in self.ranks]

    def allowed(self, step: int, kind: str, name: str, x: Tensor) -> Tensor:
        """How far each number of the serial tensor may be off."""
        if self.exact or not x.numel():
            return torch.zeros_like(x)
        size = x.abs().max()
        largest = [
            s.abs().max()
            for s in (self.serial(step, kind, k) for k in self.names(step, kind))
            if s is not None and s.numel()
        ]
        u = torch.finfo(self.dtype).eps / 2
        floor = u * math.sqrt(self.terms) * max(largest, default=size)
        bound = torch.full_like(x, (step + 1) * float(self.tolerance * size + floor) + 1e-300)
        if kind == "parameter":
            # What Adam does with a gradient that is 0 but for rounding: any step up to its largest.
            for k in range(step + 1):
                gradient = self.serial(k, "gradient", name)
                if gradient is not None:
                    noise = self.allowed(k, "gradient", name, gradient) / gradient.abs()
                    update = self.update(k, name).abs()
                    bound += 2 * torch.where(noise < 0.1, update * noise, update.max())
        return bound

    def update(self, step: int, name: str) -> Tensor:
        """What the serial step added to a parameter, since the last step that has it, or the start."""
        after = self.serial(step, "parameter", name)
        steps = [k for k in range(step) if ("parameter", name) in self.steps[k]]
        first = self.serial(*(steps[-1], "parameter") if steps else (0, "start"), name)
        assert after is not None and first is not None
        return after - first

    def made(self, step: int, kind: str, name: str) -> Tensor | None:
        """The serial run's tensor; of a parameter what the step added to it. None where there is none."""
        if step < 0 or (kind, name) not in self.steps[step]:
            return None
        return self.update(step, name) if kind == "parameter" else self.serial(step, kind, name)

    def difference(self, step: int, kind: str, name: str) -> Difference | None:
        """The difference when the parts are put together in the best way. None where there is nothing to compare with."""
        x = self.serial(step, kind, name)
        parts = self.parts(step, kind, name)
        if x is None or not parts:
            return None
        allowed = self.allowed(step, kind, name, x)
        marks = [torch.full_like(part, rank) for rank, part in parts.items()]
        found = [
            Difference(kind, name, x, copies, owners, allowed)
            for copies, owners in zip(
                join(list(parts.values()), x.shape), join(marks, x.shape), strict=True
            )
        ]
        best = min(found, key=lambda d: d.beyond, default=None)
        if best is None:
            return Difference(kind, name, x, [], [], allowed, math.inf, math.inf, [*parts])
        split = len(parts) > len(best.copies) or len(self.steps[step].get((kind, name), ())) != len(
            self.ranks[0][step].get((kind, name), ())
        )
        if best.beyond > 1 and kind in ("output", "output_grad") and x.dim() > 1 and split:
            rows = Difference(
                kind,
                name,
                sorted_rows(x),
                [sorted_rows(c) for c in best.copies],
                best.owners,
                allowed,
            )
            best = rows if rows.beyond <= 1 else best
        return best

    def differences(self, step: int, kind: str) -> list[Difference]:
        found = [self.difference(step, kind, name) for name in self.names(step, kind)]
        return [d for d in found if d is not None and d.beyond > 1]


def joined(calls: Sequence[Tensor]) -> Tensor | None:
    """The calls of a step as one tensor in float64, one after the other in dimension 0."""
    if not calls:
        return None
    calls = [x.double() for x in calls]
    return calls[0] if len(calls) == 1 or not calls[0].dim() else torch.cat(list(calls))


def sorted_rows(x: Tensor) -> Tensor:
    """Its rows in an order that depends on their numbers only: who has which samples is the run's own affair."""
    random = torch.Generator().manual_seed(0)
    key = x.flatten(1) @ torch.randn(x[0].numel(), generator=random, dtype=x.dtype)
    return x[key.argsort()]


# ------------------------------------------------------------
# Why.


class Verdict(NamedTuple):
    """A cause and what is seen of it. only: the one rank whose numbers are there, if there is only one."""

    cause: str
    words: str
    only: int | None = None


def fits(x: Tensor, y: Tensor, allowed: Tensor | float) -> bool:
    return x.shape == y.shape and bool(((x - y).abs() <= allowed).all())


def enlarged(allowed: Tensor, c: float) -> Tensor:
    """How far c times a tensor may be off, if the tensor may be off by `allowed`; not less than that."""
    return torch.maximum(allowed, abs(c) * allowed)


def ratio(x: Tensor, y: Tensor) -> float:
    """c for which c·y is nearest to x."""
    return float((x * y).sum() / (y * y).sum().clamp(min=1e-300))


def combination(
    x: Tensor, columns: Mapping[str, Tensor], allowed: Tensor
) -> dict[str, float] | None:
    """a for which Σ a_i·columns_i is x; None if there is none, or x has too few numbers to tell."""
    if not columns or x.numel() < 2 * len(columns):
        return None
    A = torch.stack([*columns.values()], 1)
    if torch.linalg.matrix_rank(A) < len(columns):
        return None
    a = torch.linalg.lstsq(A, x[:, None]).solution[:, 0]
    near = float(allowed.max())
    slack = (1e-6 * x.abs().max()).clamp(8 * near, 1000 * near)
    if not fits(A @ a, x, slack):
        return None
    return {word: 0.0 if abs(c) < 1e-5 else c for word, c in zip(columns, a.tolist(), strict=True)}


def named(c: float, counts: Mapping[str, int], near: float) -> str:
    """A factor in words, if it is the ratio of two counts."""
    words = []
    for (a, x), (b, y) in itertools.permutations(counts.items(), 2):
        if x != y and math.isclose(abs(c), x / y, rel_tol=near):
            words.append(a if b == "1" else f"{a}/{b}")
    words += ["−1"] * math.isclose(c, -1, rel_tol=near)
    return f"{c:.6g}" + (f", which is {words[0]}" if words else "")


def explain(d: Difference, pair: Pair, step: int) -> Verdict:
    """The first hypothesis that a wrong tensor fits."""
    if not d.copies:
        return uncut(d, pair, step)
    for hypothesis in HYPOTHESES:
        verdict = hypothesis(d, pair, step)
        if verdict is not None:
            return verdict
    return Verdict("other", "no hypothesis fits its numbers")


def uncut(d: Difference, pair: Pair, step: int) -> Verdict:
    """Parts that cannot be put together to the serial tensor."""
    parts = pair.parts(step, d.kind, d.name).values()
    shapes = ", ".join(sorted({str(tuple(x.shape)) for x in parts}))
    shapes_of_rows = {x.shape[1:] for x in parts if x.dim()}
    if d.kind == "output" and d.serial.dim() and shapes_of_rows == {d.serial.shape[1:]}:
        rows = sum(len(x) for x in parts)
        return Verdict("part", f"the ranks computed {rows} rows, the serial run {len(d.serial)}")
    return Verdict("other", f"parts {shapes} do not make up {tuple(d.serial.shape)}")


def nonfinite(d: Difference, pair: Pair, step: int) -> Verdict | None:
    bad = [rank for rank, P, S in d.pieces() if not P.isfinite().all() and S.isfinite().all()]
    return Verdict("nonfinite", f"not finite on ranks {bad}") if bad else None


def lost(d: Difference, pair: Pair, step: int) -> Verdict | None:
    pieces = [(rank, P, S) for rank, P, S in d.pieces() if rank in d.ranks and S.any()]
    if not pieces or any((P.abs() > d.allowed.max()).any() for _, P, _ in pieces):
        return None
    if d.kind == "parameter":
        wrong = set(d.ranks)
        others = set(pair.parts(step, d.kind, d.name)) - wrong
        alone = [rank for rank, calls in enumerate(pair.local(step, d.name)) if calls]
        known = pair.serial(step, "gradient", d.name) is not None
        words = f"ranks {d.ranks} have it as it was before the step"
        if not known or wrong & set(pair.parts(step, "gradient", d.name)):
            return Verdict("missing" if others or alone and not known else "update", words)
        if others and wrong & set(alone):
            return Verdict("missing", words)
    return Verdict("lost", f"zero on ranks {d.ranks}")


def factor(d: Difference, pair: Pair, step: int) -> Verdict | None:
    allowed = 4 * d.allowed.max()
    near = max(1e-4, pair.tolerance)
    working = sum(any(kind == "local" for kind, _ in run[step]) for run in pair.ranks)
    counts = {
        "1": 1,
        "n": pair.n,
        "n²": pair.n**2,
        "the number of micro-batches": max([1, *map(len, pair.local(step, d.name))]),
        "the number of ranks with a gradient": max(1, working),
    }
    found = {}
    for rank, P, S in d.pieces():
        c = ratio(P, S)
        if not c or not fits(P, c * S, enlarged(allowed, c)):
            return None
        found[rank] = c
    words = sorted({named(c, counts, near) for c in found.values()})
    if d.serial.numel() == 1 and " " not in words[0]:
        return None
    return Verdict("factor", f"it is the serial run's times {'; '.join(words)}")


def logarithm(d: Difference, pair: Pair, step: int) -> Verdict | None:
    """A factor inside of a logarithm is a constant outside."""
    off = torch.stack(d.copies) - d.serial
    known = [c * math.log(pair.n) for c in (-1, 1)]
    if d.serial.numel() > 1 and any(
        fits(off, torch.full_like(off, c), 4 * d.allowed) for c in known
    ):
        return Verdict("factor", "it is off by log n: a factor n inside of a logarithm")
    return None


def stale(d: Difference, pair: Pair, step: int) -> Verdict | None:
    old = pair.made(step - 1, d.kind, d.name)
    if old is None or d.kind not in ("gradient", "parameter"):
        return None
    if all(fits(P, d.serial + old, 8 * d.allowed) for P in d.copies):
        return Verdict("stale", "it is this step's and the last step's together")
    if all(fits(P, old, 8 * d.allowed) for P in d.copies):
        return Verdict("stale", "it is the last step's")
    return None


def place(d: Difference, pair: Pair, step: int) -> Verdict | None:
    """Chunks in another order; runs or single numbers that stand elsewhere in it or in other tensors of its kind."""
    S = d.serial
    near = d.allowed.max()
    for dim in range(S.dim()):
        for k in {pair.n, S.shape[dim]}:
            chunks = S.tensor_split(k, dim)
            moved = [
                any(fits(piece, c, near) for c in chunks)
                for P in d.copies
                for piece in P.tensor_split(k, dim)
            ]
            if k > 1 and all(moved) and S.numel() > k:
                return Verdict(
                    "place",
                    f"its {k} chunks along dimension {dim} are the serial run's, in other places",
                )
    same = [pair.made(step, d.kind, name) for name in pair.names(step, d.kind)]
    start = [pair.serial(0, "start", name) for name in pair.names(0, "start")]
    pool = torch.cat([x.flatten() for x in [*same, *start, S] if x is not None])
    sparse = (pool.max() - pool.min()) / len(pool) > 1000 * near
    if S.numel() < 3:
        return None
    pieces = [P for _, P, _ in d.pieces()]
    if all((sparse or len(P) > 3) and is_run(P, pool, near) for P in pieces):
        return Verdict("place", "each rank's part stands elsewhere in the serial run")
    pool = pool.sort().values
    flat = torch.cat(pieces)
    at = torch.searchsorted(pool, flat).clamp(1, len(pool) - 1)
    off = torch.minimum((pool[at] - flat).abs(), (pool[at - 1] - flat).abs())
    if not sparse or (off > near).any():
        return None
    return Verdict("place", "its numbers are all in the serial run, and stand elsewhere")


def is_run(x: Tensor, numbers: Tensor, near: Tensor) -> bool:
    """Whether x, but for zeros at its ends, stands in `numbers` in one run."""
    ends = x.nonzero().flatten().tolist()
    x = x[ends[0] : ends[-1] + 1] if ends else x[:0]
    first = numbers[: len(numbers) - len(x) + 1]
    starts = ((first - x[0]).abs() <= near).nonzero().flatten().tolist() if ends else [0]
    return any(fits(x, numbers[i : i + len(x)], near) for i in starts)


def extra(d: Difference, pair: Pair, step: int) -> Verdict | None:
    for P, owners in zip(d.copies, d.owners, strict=True):
        places = [owners == rank for rank in owners.unique()]
        if len(places) < 2 or len({int(here.sum()) for here in places}) > 1:
            return None
        total = torch.stack([d.serial[here] for here in places]).sum(0)
        if not all(fits(P[here], total, 8 * d.allowed.max()) for here in places):
            return None
    return Verdict("extra", "each rank's part is the sum of all ranks' parts")


def vectors(d: Difference, pair: Pair) -> Iterator[tuple[str, Tensor]]:
    """Parameters that may have been added to an output: those as long as its last dimension."""
    for name in pair.names(0, "start"):
        b = pair.serial(0, "start", name)
        if d.kind == "output" and b is not None and b.dim() == 1 and b.shape == d.serial.shape[-1:]:
            yield name, b.expand_as(d.serial)


def bias(d: Difference, pair: Pair, step: int) -> Verdict | None:
    for name, b in vectors(d, pair):
        counts = [ratio(P - d.serial, b) + 1 for P in d.copies]
        if all(
            fits(P, d.serial + (c - 1) * b, 8 * d.allowed)
            for P, c in zip(d.copies, counts, strict=True)
        ):
            return Verdict("part", f"{name} is in it {counts[0]:.4g} times")
    return None


def not_passed_on(d: Difference, pair: Pair, step: int) -> Verdict | None:
    wrong = [(P - d.serial).abs() > d.allowed for P in d.copies]
    if len(wrong) > 1 and not torch.stack(wrong).all(0).any():
        return Verdict(
            "missing", "each of its numbers is right on some rank, and did not come to the others"
        )
    return None


def missing(d: Difference, pair: Pair, step: int) -> Verdict | None:
    """Copies that differ, and together are right."""
    different: list[Tensor] = []
    for P in d.copies:
        if not any(fits(P, other, d.allowed) for other in different):
            different.append(P)
    if len(different) < 2:
        return moved_on(d)
    allowed = 4 * len(different) * d.allowed
    total = torch.stack(different).sum(0)
    if fits(total, d.serial, allowed):
        return Verdict("missing", "the sum over the ranks is the serial run's")
    if fits(total / len(different), d.serial, allowed):
        return Verdict("missing", "the mean over the ranks is the serial run's")
    for name, b in vectors(d, pair):
        rest = total - d.serial
        if fits(rest, ratio(rest, b) * b, allowed):
            return Verdict("missing", f"the sum over the ranks is the serial run's, but for {name}")
    return None


def moved_on(d: Difference) -> Verdict | None:
    """Parts each of which is wrong, and which together hold what they should: it did not reach its owners."""
    pieces = d.pieces()
    if len(d.copies) != 1 or len(pieces) < 2 or len({P.shape for _, P, _ in pieces}) > 1:
        return None
    parts, right = (torch.stack(x).sum(0) for x in list(zip(*pieces, strict=True))[1:])
    if fits(parts, right, 4 * len(pieces) * d.allowed.max()):
        return Verdict("missing", "the sum of the ranks' parts is right, and each part is not")
    return None


def tied(d: Difference, pair: Pair, step: int) -> Verdict | None:
    """A tensor that the serial run has once has two names here, and each has its own part of the gradient."""
    for name in sorted(pair.everywhere(step, d.kind) - set(pair.names(step, d.kind))):
        for other in pair.parts(step, d.kind, name).values():
            if other.shape == d.serial.shape and fits(d.copies[0] + other, d.serial, 8 * d.allowed):
                return Verdict("part", f"the rest of it is in {name}: a tie is lost")
    return None


def ranks_in_it(d: Difference, pair: Pair, step: int) -> Verdict | None:
    """Which ranks' gradients are in it: P = Σ a_r L_r, while S = Σ b_r L_r."""
    return shares(d, pair, step, "rank {0}")


def micro_batches_in_it(d: Difference, pair: Pair, step: int) -> Verdict | None:
    return shares(d, pair, step, "micro-batch {1} of rank {0}")


def own_columns(
    d: Difference, pair: Pair, step: int, word: str, rank: int, ranks: set[int]
) -> dict[str, Tensor]:
    """{name: what each of `ranks` has computed alone} at the place of a rank's numbers, no column twice."""
    here = next(owner == rank for owner in d.owners if (owner == rank).any())
    columns: dict[str, Tensor] = {}
    for r, calls in enumerate(pair.local(step, d.name)):
        for m, x in enumerate(calls):
            # a rank's backward makes the whole gradient, or that of its part
            whole = x.shape == here.shape
            x = x.double()[here] if whole else x.double().flatten()
            if x.numel() == here.sum() and (whole or r in ranks):
                name = word.format(r, m)
                columns[name] = columns[name] + x if name in columns else x
    kept: dict[str, Tensor] = {}
    for name, x in columns.items():
        if x.any() and x.isfinite().all() and not any(torch.equal(x, y) for y in kept.values()):
            kept[name] = x
    return kept


def shares(d: Difference, pair: Pair, step: int, word: str) -> Verdict | None:
    pieces = d.pieces()
    found = {}
    right: dict[str, float] = {}
    for rank, P, S in pieces:
        same = {r for r, _, other in pieces if torch.equal(other, S)}
        same |= set(range(pair.n)) - {r for r, _, _ in pieces}
        columns = own_columns(d, pair, step, word, rank, same)
        should = combination(S, columns, d.allowed)
        shown = combination(P, columns, d.allowed)
        if should is not None and shown is None:
            others = own_columns(d, pair, step, word, rank, set(range(pair.n)))
            mixed = combination(P, others, d.allowed) or {}
            strange = [name for name, c in mixed.items() if c and name not in should]
            if strange:
                return Verdict("extra", f"{', '.join(strange)} has another part, and is in it")
        if P.numel() < 2 * len(columns):
            continue  # too few numbers to tell
        if should is None or shown is None:
            return None
        found[rank] = shown
        right |= should
    if not found:
        return None
    sets = {frozenset(name for name, c in a.items() if c) for a in found.values()}
    there = frozenset().union(*sets)
    own = True
    for rank, a in found.items():
        own = own and all(name.endswith(f"rank {rank}") for name, c in a.items() if c)
    split = len(sets) > 1 and sum(map(len, sets)) == len(there) == len(right)
    if split or own and there and len(right) > max(map(len, sets)):
        return Verdict("missing", "each rank holds its own share of the gradient")
    values = [c for a in found.values() for c in a.values()]
    if values[0] and all(math.isclose(c, values[0], rel_tol=1e-4) for c in values):
        words = ", ".join(f"{c:.3g}" for c in right.values())
        return Verdict("weight", f"all count alike, and should count {words}")

    def off(shares: dict[str, float]) -> float:
        return sum(abs(c - right[name]) for name, c in shares.items())

    worst = max(found.values(), key=off)
    words = "; ".join(
        f"{name}: {c:.3g} for {right[name]:.3g}" for name, c in list(worst.items())[:6]
    )
    sole = [name for name, c in worst.items() if c]
    rank = int(sole[0].split()[-1]) if len(sole) == 1 else None
    return Verdict("part", f"shares of {words}", rank)


def elements(d: Difference, pair: Pair, step: int) -> Verdict | None:
    """Some of its numbers are right, and others are not."""
    wrong = torch.stack([((P - d.serial).abs() > d.allowed).flatten() for P in d.copies])
    count = int(wrong.any(0).sum())
    if not 0 < count <= 0.8 * d.serial.numel():
        return None
    at = wrong.any(0).nonzero()[:, 0]
    return Verdict(
        "part",
        f"{count} of its {d.serial.numel()} numbers are wrong, from {int(at[0])} to {int(at[-1])}",
    )


def unlike(d: Difference, pair: Pair, step: int) -> Verdict | None:
    pairs = itertools.combinations(d.copies, 2)
    if len(d.copies) > 1 and not any(fits(P, other, d.allowed) for P, other in pairs):
        return Verdict("missing", "no rank has what another has")
    return None


def precision(d: Difference, pair: Pair, step: int) -> Verdict | None:
    size = float(d.serial.abs().max())
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        u = torch.finfo(dtype).eps / 2
        limit = 2 * u + tolerance(torch.float32, pair.terms, pair.depth)
        if 2 * u > torch.finfo(pair.dtype).eps and 0.01 * u * size <= d.error <= limit * size:
            return Verdict("precision", f"it is right to {d.error / size:.1e}, as in {dtype}")
    return None


HYPOTHESES = (
    nonfinite,
    lost,
    factor,
    logarithm,
    stale,
    tied,
    place,
    not_passed_on,
    ranks_in_it,
    missing,
    extra,
    bias,
    precision,
    micro_batches_in_it,
    elements,
    unlike,
)


@dataclass
class Report:
    """What `compare` found: a cause of CAUSES, the first difference, if there is one, and how many are like it."""

    cause: str
    step: int = 0
    first: Difference | None = None
    words: str = ""
    like: tuple[str, ...] = ()
    allowance: str = ""

    @property
    def text(self) -> str:
        """The report as one prints it."""
        if self.first is None:
            return f"{self.words or CAUSES[self.cause]}\n{self.allowance}"
        d = self.first
        what = {
            "output_grad": "gradient of the output",
            "start": "weights at the start",
            "parameter": "parameter after the step",
        }
        lines = [
            f"step {self.step}: {what.get(d.kind, d.kind)} of {d.name or 'the model'} {tuple(d.serial.shape)} "
            f"is the first that differs, on ranks {', '.join(map(str, d.ranks))}",
            f"by {d.error:.3g}, {d.beyond:.3g} times what is allowed: {self.allowance}",
            f"likely cause: {self.cause}: {self.words}.",
            CAUSES[self.cause],
        ]
        if len(self.like) > 1:
            lines.append(
                f"{len(self.like)} of this kind are wrong alike: {', '.join(self.like[:6])}"
            )
        return "\n".join(lines)


KINDS = ("start", "mask", "output", "loss", "output_grad", "gradient", "parameter")


def compare(
    serial: str | Path | Sequence, parallel: str | Path | Sequence, axes: Sequence[str] = ()
) -> Report:
    """Compare a parallel run with the serial one: folders of `record`, or its `finished` of each rank.

    axes: of AXES, by which the run is parallel. If all of these can be equal to the last bit, the run must be.
    Raises ValueError for a serial run of several ranks, runs of different lengths, and an unknown axis.
    """
    unknown = [axis for axis in axes if axis not in AXES]
    if unknown:
        raise ValueError(f"axes are {', '.join(AXES)}, not {', '.join(unknown)}")
    runs: list[Any] = [
        load(run) if isinstance(run, str | Path) else run for run in (serial, parallel)
    ]
    exact = bool(axes) and all(AXES[axis][0] for axis in axes)
    pair = Pair(runs[0], runs[1], exact)
    found = first_difference(pair)
    if pair.exact:
        found.allowance = "nothing: it must be equal to the last bit"
    else:
        found.allowance = (
            f"{pair.tolerance:.1e} of a tensor's largest number, for {pair.dtype}, "
            f"sums of {pair.terms} and {pair.depth} modules, more with each step"
        )
    return found


def first_difference(pair: Pair) -> Report:
    for step in range(len(pair.steps)):
        for kind in KINDS:
            found = wrong_of(pair, step, kind)
            report = decide(pair, step, kind, found)
            if report is not None:
                return report
    return apart(pair) or Report("equal")


def wrong_of(pair: Pair, step: int, kind: str) -> list[Difference]:
    """The differences of a kind that do not merely come from how the run is parallel."""
    found = pair.differences(step, kind)
    if kind == "loss" and found and own_losses(pair, step):
        return []
    if kind not in ("output", "output_grad") or not found:
        return found
    # A partial sum is no mistake if it is added up in time: where gradients and parameters are right, or are not known.
    known = [k for k in ("gradient", "parameter") if pair.names(step, k)]
    if known and not any(pair.differences(step, k) for k in known):
        return []
    names = pair.names(step, kind)
    if kind == "output":
        last = [name for name in names if pair.parts(step, kind, name)][-1]
        if last not in {d.name for d in found}:
            return []
        fine = {name for name in names if pair.parts(step, kind, name)} - {d.name for d in found}
        return [d for d in found if not any(inside(d.name, name) for name in fine)]
    found = [d for d in found if not scaled(pair, step, d)]
    bad = {d.name for d in found}
    last = max((i for i, name in enumerate(names) if name not in bad), default=-1)
    return [d for d in found if names.index(d.name) > last]


def inside(name: str, module: str) -> bool:
    return name != module and (not module or name.startswith(f"{module}."))


def own_losses(pair: Pair, step: int) -> bool:
    """Whether each rank has the loss of its own samples, and their mean, weighted or not, is the serial run's."""
    S = pair.serial(step, "loss", "loss")
    parts = pair.parts(step, "loss", "loss")
    rows = {
        r: next((c for (k, _), c in run[step].items() if k == "output"), None)
        for r, run in enumerate(pair.ranks)
    }
    losses = torch.stack([x.mean() for x in parts.values()])
    counts = torch.tensor(
        [float(sum(len(x) for x in rows[r] or () if x.dim())) for r in parts]
    ).double()
    means = [losses.mean()] + [(losses * counts).sum() / counts.sum()] * bool(counts.sum())
    assert S is not None
    return any(fits(mean, S.mean(), pair.allowed(step, "loss", "loss", S).max()) for mean in means)


def scaled(pair: Pair, step: int, d: Difference) -> bool:
    """Whether a gradient of an output is right up to the factor of the first one: each rank has the mean of its samples."""
    first = pair.difference(step, "output_grad", pair.names(step, "output_grad")[0])
    if first is None or not first.copies or not d.copies or not first.serial.any():
        return True
    usual = {rank: ratio(P, S) for rank, P, S in first.pieces()}
    allowed = 4 * d.allowed.max()
    for rank, P, S in d.pieces():
        c = usual.get(rank, 1.0)
        if not fits(P, c * S, enlarged(allowed, c)):
            break
    else:
        return True
    if d.serial.dim() < 2:
        return False
    S = sorted_rows(d.serial)
    c = ratio(sorted_rows(first.copies[0]), sorted_rows(first.serial))
    return all(fits(sorted_rows(P), c * S, enlarged(allowed, c)) for P in d.copies)


def decide(pair: Pair, step: int, kind: str, found: list[Difference]) -> Report | None:
    """The cause of a kind's differences: what explains most of their numbers."""
    if kind == "gradient":
        report = norm(pair, step, found)
        if report is not None:
            return report
        if not found:
            return nowhere(pair, step)
    if not found:
        return None
    if kind in ("start", "mask"):
        copies = found[0].copies
        apart = len(copies) > 1 and not all(torch.equal(c, copies[0]) for c in copies)
        words = "ranks differ from each other" if apart else "no rank differs from the others"
        cause = "start" if kind == "start" else "random"
        moved = place(found[0], pair, step)
        if kind == "start" and moved is not None and all(place(d, pair, step) for d in found):
            cause, words, _ = moved
        return Report(cause, step, found[0], words, tuple(d.name for d in found))
    why = explain_update if kind == "parameter" else explain
    causes = {d.name: why(d, pair, step) for d in found}
    cause = chosen(kind, found, causes)
    like = tuple(name for name, verdict in causes.items() if verdict.cause == cause)
    alone = {"missing" if v.cause == "missing" else v.only for v in causes.values()} - {None}
    if cause == "part" and len(alone) > 1:
        return Report(
            "missing", step, found[0], "each rank updates what it owns by its own gradient", like
        )
    return Report(cause, step, found[0], causes[like[0]].words, like)


def nowhere(pair: Pair, step: int) -> Report | None:
    """A gradient that no rank has, though it has others, and the parameter."""
    there = pair.everywhere(step, "gradient")
    for name in pair.names(step, "gradient"):
        S = pair.serial(step, "gradient", name)
        if (
            there
            and name not in there
            and S is not None
            and S.any()
            and pair.parts(step, "parameter", name)
        ):
            d = Difference("gradient", name, S, [], [], S, math.inf, math.inf, [*range(pair.n)])
            return Report("lost", step, d, "no rank has it", (name,))
    return None


def chosen(kind: str, found: list[Difference], causes: dict[str, Verdict]) -> str:
    """The cause of a whole kind: of outputs the first, as the others follow from it; of the rest, that of most numbers."""
    order = [causes[d.name].cause for d in found]
    known = [cause for cause in order if cause != "other"]
    # A gradient's sum over the ranks stays right all the way back: partial ones are no mistake if the last one is none.
    if kind == "output_grad" and known and known[-1] != "missing":
        known = [cause for cause in known if cause != "missing"]
    if not known:
        return "other"
    if kind in ("output", "output_grad"):
        return known[0]
    if "nonfinite" in known:
        return "nonfinite"
    votes = dict.fromkeys(known, 0)
    for d in found:
        if causes[d.name].cause in votes:
            votes[causes[d.name].cause] += d.serial.numel()
    return max(votes, key=votes.__getitem__)


def explain_update(d: Difference, pair: Pair, step: int) -> Verdict:
    """Of a parameter: what the step added to it is looked at like a gradient, unless its gradient is known to be right."""
    # before this step nothing differs: every rank has the serial run's parameter
    added = pair.update(step, d.name)
    copies = [copy - (d.serial - added) for copy in d.copies]
    update = Difference(d.kind, d.name, added, copies, d.owners, d.allowed)
    verdict = explain(update, pair, step)
    whole = factor(d, pair, step)
    if whole is not None and ", which is" in whole.words:
        return whole
    if not update.serial.any() and verdict.cause != "nonfinite":
        holders = set(pair.parts(step, d.kind, d.name))
        cause = "missing" if holders - set(d.ranks) else "update"
        return Verdict(
            cause, f"it should not change, and does on ranks {d.ranks} of {sorted(holders)}"
        )
    known = pair.parts(step, "gradient", d.name) and verdict.cause not in ("missing", "lost")
    if known or verdict.cause == "factor" and ", which is" not in verdict.words:
        return Verdict("update", verdict.words)
    return verdict


def norm(pair: Pair, step: int, found: list[Difference]) -> Report | None:
    """A wrong norm, and gradients that are right but for the factor by which it scales them."""
    S = pair.serial(step, "norm", "norm")
    d = pair.difference(step, "norm", "norm")
    if S is None or d is None or d.beyond <= 1:
        return None
    norms = {rank: float(P) for rank, P, _ in d.pieces()}
    for g in found:
        for rank, P, G in g.pieces():
            c = ratio(P, G)
            if not fits(P, c * G, enlarged(4 * g.allowed.max(), c)):
                return None
            if c != 1 and math.isclose(
                c - 1, norms.get(rank, math.nan) / float(S) - 1, rel_tol=1e-3
            ):
                return None  # gradients and their norm are too large by the same factor
    verdict = precision(d, pair, step)
    if verdict is not None:
        return Report(verdict.cause, step, d, verdict.words, ("norm",))
    return Report("norm", step, d, counted(pair, step, float(S), norms), ("norm",))


def counted(pair: Pair, step: int, right: float, norms: dict[int, float]) -> str:
    """What is in the norm that should not be, or is not, if one thing explains it."""
    squares = {}
    copies = {}
    shares: dict[int, float] = {}
    for name in pair.names(step, "gradient"):
        d = pair.difference(step, "gradient", name)
        if d is not None:
            squares[name] = float((d.serial**2).sum())
            copies[name] = len(d.copies)
            for rank, _, G in d.pieces():
                shares[rank] = shares.get(rank, 0.0) + float((G**2).sum())
    scale = right**2 / max(sum(squares.values()), 1e-300)
    sums = {
        "it is the root of what it should be the root of, once more squared": right**4,
        "squares are multiplied by n": pair.n * right**2,
        "squares are divided by n": right**2 / pair.n,
        "copies are counted on each rank": scale
        * sum(s * copies[name] for name, s in squares.items()),
    } | {f"{name} is left out": scale * (sum(squares.values()) - s) for name, s in squares.items()}
    if all(
        r in shares and math.isclose(x**2, scale * shares[r], rel_tol=1e-5)
        for r, x in norms.items()
    ):
        return "each rank has the norm of what it holds"
    square = next(iter(norms.values())) ** 2
    words = [word for word, value in sums.items() if math.isclose(square, value, rel_tol=1e-5)]
    return words[0] if words else f"{', '.join(f'{x:.6g}' for x in norms.values())} for {right:.6g}"


def apart(pair: Pair) -> Report | None:
    """Copies that are equal but for rounding, though one exchange should have made them."""
    for step in range(len(pair.steps)):
        for kind in ("norm", "gradient", "parameter"):
            for name in pair.names(step, kind):
                d = pair.difference(step, kind, name)
                if d is not None and any(not torch.equal(c, d.copies[0]) for c in d.copies):
                    errors = [(c - d.copies[0]).abs().max() for c in d.copies]
                    d.error = torch.stack(errors).max().item()
                    return Report("replicas", step, d, "copies are not the same bits", (name,))
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Name the first tensor in which a parallel run differs from the serial one, and the likely cause. Exit status: 0 if
    they are equal within rounding, 1 if not, 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(
        prog="python -m minidist.study.compare", description=main.__doc__
    )
    parser.add_argument("serial", help="folder that `record` wrote with one rank")
    parser.add_argument("parallel", help="folder that it wrote with several")
    parser.add_argument(
        "--axis", action="append", default=[], help=f"by which it is parallel: {', '.join(AXES)}"
    )
    asked = parser.parse_args(arguments)
    try:
        report = compare(asked.serial, asked.parallel, asked.axis)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(report.text)
    return 0 if report.cause == "equal" else 1


if __name__ == "__main__":
    sys.exit(main())
