"""Graders of lesson 27: what rounding allows, where two runs differ first and why, what a norm counts, which rank hangs,
and weights in another layout.

Runs and dumps are drawn, in the form in which `study.compare` and PyTorch's flight recorder write them.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ..exam import (
    Prediction,
    Solo,
    Wrong,
    bare,
    close,
    entries,
    formed,
    integer,
    integers,
    near,
    normal,
    number,
    real,
    recognized,
    same,
    shown,
    shuffled,
    table,
    typed,
    uniform,
)
from ..oracles import field_guide as oracle

F64, F32 = torch.float64, torch.float32
F16, BF16 = torch.float16, torch.bfloat16


class FieldExam(Solo):
    """What lesson 27 shows may not be called."""

    forbidden = oracle.FORBIDDEN


def spread(rng, shape) -> Tensor:
    """Random numbers between −1 and 1."""
    return 2 * torch.rand(shape, generator=rng, dtype=F64) - 1


def sign(rng) -> float:
    return -1.0 if integer(rng, 0, 2) else 1.0


# ------------------------------------------------------------
# Is a difference rounding?


VERDICTS = ("equal", "rounding", "wrong")


class Judged(FieldExam):
    """`judged(serial, parallel, axes, terms, modules)`: (how far a number may be off, the verdict)."""

    name = "judged"
    returns = ("allowed", "verdict")
    given = ("serial", "parallel", "axes")
    right = (
        "four dtypes, all axes, none, differences on both sides of the bound, zeros, nan and inf."
    )
    # what, dtype, axes, terms, modules, by how much of what is allowed one number is off
    cases = table(
        lambda what, dtype, axes, *_: (
            f"{what}, {str(dtype).removeprefix('torch.')}, {' and '.join(axes) or 'no axis'}"
        ),
        (
            ("off by rounding", F32, ("data",), 4096, 12, 0.6),
            ("off by more", F32, ("tensor",), 4096, 12, 1.6),
            ("off by rounding", BF16, ("context",), 10_000, 30, 0.6),
            ("off by more", BF16, ("zero", "data"), 600, 20, 1.7),
            ("off by rounding", F16, ("accumulate",), 50_000, 6, 0.6),
            ("off by more", F64, ("pipeline", "data"), 100, 3, 1.5),
            ("equal", F32, ("pipeline",), 4096, 12, 0.0),
            ("off by little", F32, ("pipeline",), 4096, 12, 0.1),
            ("off by little", BF16, ("pipeline", "remat"), 512, 7, 0.3),
            ("off by little", F64, (), 512, 7, 0.1),
            ("equal", F64, ("tensor", "remat"), 512, 7, 0.0),
            ("off below zero", F32, ("data",), 300, 5, -1.6),
            ("zeros", F32, ("data",), 300, 5, 0.0),
            ("a nan that the serial run does not have", F32, ("data",), 300, 5, math.nan),
            ("an inf that the serial run does not have", F32, ("zero",), 300, 5, math.inf),
            ("a nan that both have", F64, ("tensor",), 300, 5, 0.5),
            ("an inf that both have", F32, ("tensor",), 300, 5, 0.5),
        ),
    )

    def draw(self, case, rng):
        what, dtype, axes, terms, modules, share = case.given
        shape = integer(rng, 3, 6), integer(rng, 7, 10)
        x = (normal(rng, *shape).clamp(-1.9, 1.9) * 2.0 ** integer(rng, -12, 13)).to(dtype)
        x[1, 2] = -1.5 * x.abs().max()  # the largest is negative
        x[2, 1] = x.abs().max() / 8
        x = torch.zeros_like(x) if what == "zeros" else x
        bound = oracle.allowed(x, ["data"], terms, modules)
        y = x.clone()
        if share:
            y[2, 1] += share * bound
        if "both" in what:
            x[0, 0] = y[0, 0] = math.nan if "nan" in what else -math.inf
        return [(x, y, [*axes], terms, modules)]

    def wants(self, case, args):
        x, y, axes, terms, modules = args[0]
        most = oracle.allowed(x, axes, terms, modules)
        return [{"allowed": most, "verdict": oracle.verdict(x, y, most)}]

    def value(self, case, args, rank, name, got, want):
        if name == "allowed":
            return close(got, want, name, partial(self.mistakes, case, args, rank, name), RULE)
        if not isinstance(got, str) or got not in VERDICTS:
            raise Wrong(f"the verdict is {shown(got)}, and should be one of {', '.join(VERDICTS)}.")
        if got != want:
            raise Wrong(
                f"what is allowed is right, and the verdict is {got!r}, and should be {want!r}. {VERDICT}"
            )

    def mistakes(self, case, args, rank, name, got):
        x, _, axes, terms, modules = args[0]
        slip = partial(oracle.allowed, x, axes, terms, modules)
        if all(axis in oracle.SAME_ORDER for axis in axes):
            return (
                "Nothing is allowed here: the same operations run on the same numbers in the same order, so a run must be "
                "equal to the last bit."
            )
        if not math.isfinite(real(got)):
            return "Only finite numbers count for the largest magnitude."
        return {
            "It is 0: one of these axes makes one long sum into several, and then the last digits differ.": 0.0,
            "The unit roundoff is half of `torch.finfo(…).eps`.": slip(unit=1.0),
            "A sum is not added up in 16 bits: √K goes with v, which is 2⁻²⁴ at most.": slip(
                narrow=True
            ),
            "Errors of K terms are independent: they grow as √K, not as K.": slip(
                root_of_terms=1.0
            ),
            "√K is missing: a sum of K terms is off by √K·v.": slip(root_of_terms=0.0),
            "Errors of D modules are independent: they grow as √D, not as D.": slip(
                root_of_modules=1.0
            ),
            "√D is missing: D modules follow each other.": slip(root_of_modules=0.0),
            "It is of the largest number with its sign: the largest magnitude is asked for.": slip(
                largest=lambda finite: finite.max()
            ),
            "It is a share: multiply by the largest magnitude of the serial tensor.": slip(
                largest=lambda finite: 1.0
            ),
            "The factor 4 is missing.": slip() / 4,
        }


RULE = "It is 4·√D·(u + √K·v), times the largest magnitude of the serial tensor."
VERDICT = (
    "'equal' where no number differs, 'rounding' where none is off by more than what is allowed, up or down, else 'wrong'. "
    "A nan or inf at one place of both is no difference; where one run alone has it, the run is wrong."
)


# ------------------------------------------------------------
# The first tensor that differs. Two runs are drawn: random numbers in the form of a record.


MODULES = ("embed", "layers.0", "layers.1", "head")
BY_ROWS = ("mask", "output", "output_grad")
BY_PARAMETER = ("start", "local", "gradient", "parameter")


def names_of(kind: str) -> tuple[str, ...]:
    """In the order in which a step records them."""
    if kind in ("loss", "norm"):
        return (kind,)
    if kind == "mask":
        return ("layers.0", "layers.1")
    return tuple(f"{name}.weight" for name in MODULES) if kind in BY_PARAMETER else MODULES


def keys_of(step: int) -> list[tuple[str, str]]:
    """What a step records, in its order: forward, backward, and what there is when the optimizer steps."""
    found = [("start", name) for name in names_of("start")] if step == 0 else []
    for module in MODULES:
        found += [("mask", module)] if module in names_of("mask") else []
        found += [("output", module)]
    for module in MODULES[::-1]:
        found += [("output_grad", module), ("local", f"{module}.weight")]
    found += [("loss", "loss"), ("norm", "norm")]
    for kind in ("gradient", "parameter"):
        found += [(kind, name) for name in names_of(kind)]
    return found


def sizes(rng, total: int, n: int) -> list[int]:
    """n parts, each of at least one, and not all alike."""
    while True:
        cuts = sorted(at + 1 for at in shuffled(rng, total - 1)[: n - 1])
        found = [end - first for first, end in zip([0, *cuts], [*cuts, total])]
        if n == 1 or len(set(found)) > 1:
            return found


class Layout:
    """Who has which part of what, in a kind of parallel run. micro: how many calls a step has."""

    def __init__(self, kind: str, n: int, rng: torch.Generator):
        self.kind = kind
        self.n = n
        self.micro = 3 if kind == "pipeline" else 2 if kind == "accumulate" else 1
        self.batch = integer(rng, 12, 15)
        self.inputs = integer(rng, 16, 19)
        self.outputs = integer(rng, 20, 23)
        self.rows = sizes(rng, self.batch, n)
        self.inputs_of = sizes(rng, self.inputs, n)
        self.outputs_of = sizes(rng, self.outputs, n)
        self.calls = sizes(rng, self.batch, self.micro)
        self.owner = sorted(integers(rng, 0, n, len(MODULES)))
        self.owner[0], self.owner[-1] = 0, n - 1

    def shape(self, kind: str, name: str) -> tuple[int, ...]:
        if kind in ("loss", "norm"):
            return ()
        return (self.batch if kind in BY_ROWS else self.outputs, self.inputs)

    def cut(self, kind: str, name: str) -> tuple[int, list[int]] | None:
        """(dimension, sizes) of the ranks' parts; None for copies."""
        module = name.removesuffix(".weight")
        if self.kind == "data" and kind in BY_ROWS:
            return 0, self.rows
        if self.kind == "zero" and kind in (*BY_ROWS, "gradient"):
            return 0, self.rows if kind in BY_ROWS else self.outputs_of
        if self.kind == "tensor" and module == "layers.0" and kind != "mask":
            return (1, self.inputs_of) if kind in BY_ROWS else (0, self.outputs_of)
        if self.kind == "tensor" and module == "layers.1" and kind in BY_PARAMETER:
            return 1, self.inputs_of
        return None

    def parts(self, kind: str, name: str, x: Tensor) -> dict[int, list[Tensor]]:
        """Each rank's calls."""
        if self.kind == "pipeline" and kind not in ("loss", "norm"):
            owner = self.owner[MODULES.index(name.removesuffix(".weight"))]
            return {owner: [*x.split(self.calls)] if kind in BY_ROWS else [x]}
        cut = self.cut(kind, name)
        if cut is None:
            split = self.micro > 1 and kind in BY_ROWS
            return {r: [*x.split(self.calls)] if split else [x] for r in range(self.n)}
        dim, parts = cut
        return {r: [part] for r, part in enumerate(x.split(parts, dim))}


class FirstWrong(FieldExam):
    """`first_wrong(serial, ranks, slack)`: (step, kind, name, ranks) of the first difference, or None."""

    name = "first_wrong"
    given = ("serial", "ranks")
    right = "copies, parts by rows and columns, stages with micro-batches, every kind, later steps, nan, and equal runs."
    # how it is parallel, ranks, what is wrong: (step, kind, which name, how many ranks, nan or nothing)
    cases = table(
        lambda layout, n, wrong: (
            f"{layout} on {n} ranks, {'wrong: ' + wrong[0][1] if wrong else 'nothing wrong'}"
        ),
        (
            ("data", 3, ()),
            ("data", 3, ((0, "gradient", 1, 1), (0, "gradient", 3, 1), (0, "parameter", 0, 3))),
            ("data", 2, ((0, "start", 2, 1), (0, "output", 0, 2), (1, "loss", 0, 2))),
            ("data", 3, ((0, "mask", 1, 1), (0, "output", 0, 1))),
            ("tensor", 2, ((0, "output", 1, 1), (0, "output", 3, 2), (0, "gradient", 3, 2))),
            ("tensor", 3, ((1, "gradient", 2, 2), (1, "gradient", 0, 1), (1, "parameter", 0, 1))),
            ("tensor", 3, ((0, "norm", 0, 3), (0, "gradient", 2, 1), (0, "parameter", 2, 1))),
            ("zero", 3, ((1, "gradient", 2, 2), (1, "parameter", 2, 3))),
            ("pipeline", 2, ()),
            (
                "pipeline",
                3,
                ((0, "output_grad", 2, 1), (0, "output_grad", 0, 1), (0, "gradient", 2, 1)),
            ),
            ("pipeline", 2, ((0, "loss", 0, 2), (0, "output_grad", 3, 1))),
            ("pipeline", 2, ((1, "output", 1, 1), (1, "loss", 0, 2))),
            ("accumulate", 1, ((1, "output", 2, 1), (1, "parameter", 0, 1))),
            ("data", 4, ((1, "parameter", 1, 1),)),
            ("zero", 2, ((0, "output", 1, 1, math.nan), (0, "output", 2, 2, math.nan))),
        ),
    )

    def draw(self, case, rng):
        kind, n, wrong = case.given
        layout = Layout(kind, n, rng)
        slack = 1e-6 * (1 + uniform(rng))
        serial = []
        ranks = [[] for _ in range(n)]
        for step in range(2):
            serial.append({})
            for run in ranks:
                run.append({})
            for key in keys_of(step):
                faults = [0]
                for at, what, name, *fault in wrong:
                    if (at, what, names_of(what)[name]) == (step, *key):
                        faults = fault
                S, calls = self._tensor(layout, key, slack, rng, *faults)
                serial[step][key] = [S]
                for r, x in calls.items():
                    ranks[r][step][key] = x
        return [(serial, ranks, slack)]

    def _tensor(self, layout: Layout, key, slack: float, rng, faults: int, off_by: float = 1.0):
        """A tensor of the serial run, and each rank's calls, of which so many ranks' are wrong."""
        kind = key[0]
        shape = layout.shape(*key)
        S = normal(rng, shape) * 10.0 ** integer(rng, -3, 4)
        S = S > 0 if kind == "mask" else S
        size = float(S.abs().max()) if kind != "mask" else 0.0
        parts = layout.parts(*key, S)
        if kind != "mask":
            off = 3 * size if kind == "local" else 0.4 * slack * size
            parts = {
                r: [x + off * spread(rng, x.shape) for x in calls] for r, calls in parts.items()
            }
        order = [sorted(parts)[i] for i in shuffled(rng, len(parts))]
        order.sort(key=lambda r: r == 0)  # who looks at rank 0 alone sees nothing
        for r in order[:faults]:
            x = parts[r][-1].clone()  # of several calls the last
            at = integer(rng, 0, x.numel())
            if kind == "mask":
                x.view(-1)[at].logical_not_()
            else:
                x.view(-1)[at] += off_by * sign(rng) * (20 + 20 * uniform(rng)) * slack * size
            parts[r] = [*parts[r][:-1], x]
        return S, parts

    def wants(self, case, args):
        return [{"the result": oracle.first_wrong(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        got = bare(got)
        if got is not None:
            typed(got, tuple | list, name, "(step, kind, name, ranks), or None")
            if not formed(got, (int, str, str, [int])):
                raise Wrong(
                    f"{name} is {shown(got)}, and should be (step, kind, name, ranks), such as (0, 'loss', 'loss', [1])."
                )
            got = (*got[:3], [*got[3]])
        if got == want:
            return
        if want is not None and got is not None and got[:3] == want[:3]:
            hint = RANKS_OFF
            if sorted(got[3]) == want[3]:
                hint = "They are in another order: the smallest comes first."
            raise Wrong(
                f"{said(want[:3])} is the first that differs, on ranks {want[3]}, not {got[3]}. {hint}"
            )
        looks = self.mistakes(case, args, rank, name, got)
        right = (
            "nothing differs"
            if want is None
            else f"{said(want[:3])} is the first, on ranks {want[3]}"
        )
        yours = (
            "you find nothing" if got is None else f"you find {said(got[:3])}, on ranks {got[3]}"
        )
        raise Wrong(f"{right}, and {yours}. {looks}")

    def mistakes(self, case, args, rank, name, got):
        if got is not None and got[1] not in oracle.KINDS:
            return "Kinds that are not in the list are not compared: `local` is what each rank's own backward adds."
        serial, ranks, _ = args[0]
        order = [
            (step, *key) for step, tensors in enumerate(serial) for key in oracle.keys(tensors)
        ]
        slip = partial(oracle.first_wrong, *args[0])
        looks = list(dict.fromkeys(words for words, how in SLIPS_OF_FIRST if slip(**how) == got))
        if looks and (got is not None or len(looks) == 1):
            return " Or: ".join(looks[:2])  # both give this
        if got is None:
            return "Is every rank looked at, every call, parts along both dimensions, up and down, nan, and every step?"
        if got[:3] not in order:
            return "There is no such tensor in the serial run."
        want = slip()
        if want is not None and order.index(got[:3]) > order.index(want[:3]):
            return (
                "Step by step, kind by kind in the order of the list, names as the serial record has them (`gradient` turned "
                "around): is every rank looked at, every call, parts along both dimensions, up and down?"
            )
        step, *key = got[:3]
        S = oracle.whole(serial[step][tuple(key)])
        parts = [oracle.whole(run[step][tuple(key)]) for run in ranks if tuple(key) in run[step]]
        if any(x.shape != S.shape for x in parts):
            return "There it is right: ranks have uneven parts, and each begins where that of the rank before ends."
        return f"There it is right. {BOUND}"


BOUND = "What is allowed is slack times the largest magnitude of the whole serial tensor, for each of its numbers."
SLIPS_OF_FIRST = (
    (
        "Gradients come from the loss back: the last that was recorded is the first.",
        dict(backwards=()),
    ),
    (
        "Kind by kind, in the order of the list, and not in the order in which the step has recorded them.",
        dict(as_recorded=True),
    ),
    (
        "Outputs' gradients stand in the record from the loss back already: only `gradient` is turned around.",
        dict(backwards=("gradient", "output_grad")),
    ),
    (BOUND, dict(measure=dict(absolute=True))),
    (BOUND, dict(measure=dict(elementwise=True))),
    ("What is too small is wrong, too.", dict(measure=dict(signed=True))),
    (
        "A nan is a difference, and it is not larger than anything: ask whether all are within what is allowed.",
        dict(measure=dict(nan=True)),
    ),
    (
        "Parts have to be compared, too: cut the serial tensor as the ranks are, one rank after the other.",
        dict(copies=True),
    ),
    ("Of several calls all count: put them one behind the other.", dict(first_call=True)),
    ("Only rank 0 was looked at.", dict(only=[0])),
    ("Later steps count, too.", dict(steps=1)),
    ("Everything that comes later is wrong, too: the first is asked for.", dict(last=True)),
)
RANKS_OFF = "Each rank whose own numbers are off by more than what is allowed belongs there, and no other one."


def said(place: tuple) -> str:
    step, kind, name = place
    return f"step {step}, {kind} of {name}" if kind != name else f"step {step}, {kind}"


# ------------------------------------------------------------
# The cause of a wrong gradient.


class Cause(FieldExam):
    """`cause(serial, found, own)`: (cause, detail) of what an exchange made of gradients."""

    name = "cause"
    returns = ("cause", "detail")
    given = ("serial", "found", "own")
    right = "n = 2…4, right ones, factors, shares left out and counted twice, ranks that nothing came to, chunks, others."
    cases = table(
        lambda what, n, *_: f"{what}, n = {n}",
        (
            ("right but for rounding", 3, "equal"),
            ("right to the last bit", 2, "exactly"),
            ("n times too large", 3, "factor", lambda n: n),
            ("n times too small", 4, "factor", lambda n: 1 / n),
            ("nothing is left", 3, "factor", lambda n: 0.0),
            ("the sign is turned", 2, "factor", lambda n: -1.0),
            ("two ranks have their own", 4, "missing", 2, True),
            ("every rank has its own", 3, "missing", 3, True),
            ("every rank has its own, divided by n", 3, "missing", 3, False),
            ("one rank has its own, divided by n", 3, "missing", 1, False),
            ("a rank is left out", 3, "part", (1, 0, 1)),
            ("a rank counts twice", 3, "part", (2, 1, 1)),
            ("one is left out, and one counts twice", 4, "part", (1, 2, 0, 1)),
            ("only one rank is in it", 3, "part", (0, 0, 1)),
            ("chunks have changed places", 3, "place"),
            ("chunks have changed places", 4, "place"),
            ("a chunk is everywhere", 3, "everywhere"),
            ("the layer computes something else", 3, "other"),
            ("ranks have different factors", 3, "factors"),
            ("one number is off", 3, "number"),
        ),
    )

    def draw(self, case, rng):
        _, n, kind, *more = case.given
        shape = n * integer(rng, 3, 5), 7 + 12 * integer(rng, 0, 2)
        own = [normal(rng, *shape) * 10.0 ** integer(rng, -1, 2) for _ in range(n)]
        S = sum(own) / n
        found = [S.clone() for _ in range(n)]
        if kind == "factor":
            found = [more[0](n) * S for _ in own]
        elif kind == "missing":
            count, undivided = more
            for r in shuffled(rng, n)[:count]:
                found[r] = own[r].clone() if undivided else own[r] / n
        elif kind == "part":
            order = shuffled(rng, n)
            part = sum(more[0][order[r]] * own[r] for r in range(n)) / n
            found = [part.clone() for _ in own]
        elif kind in ("place", "everywhere"):
            # three change places in a circle, so that no order is its own inverse
            first, second, third, *rest = shuffled(rng, n)
            to = {first: second, second: third, third: first} | {i: i for i in rest}
            if kind == "everywhere":
                to = dict.fromkeys(range(n), first)
            moved = torch.cat([S.chunk(n)[to[i]] for i in range(n)])
            found = [moved.clone() for _ in own]
        elif kind == "other":
            found = [normal(rng, *shape)] * n
        elif kind == "factors":
            found = [(r + 1) * S for r in range(n)]
        elif kind == "number":
            for x in found:
                x[1, 2] += 3 * S.abs().max()
        if kind != "exactly":
            size = float(S.abs().max())
            found = [x + 1e-9 * size * spread(rng, shape) for x in found]
        return [(S, found, own)]

    def wants(self, case, args):
        return [dict(zip(self.returns, oracle.cause(*args[0])))]

    def value(self, case, args, rank, name, got, want):
        right, detail = oracle.cause(*args[0])
        if name == "cause":
            if not isinstance(got, str) or got not in CAUSES:
                raise Wrong(f"the cause is {shown(got)}, and should be one of {', '.join(CAUSES)}.")
            if got != right:
                raise Wrong(
                    f"it is {right!r}, and you say {got!r}. {right!r} means: {CAUSES[right]}"
                )
            return
        found = [*bare(got)] if isinstance(got, list | tuple) else bare(got)
        fine = found == detail
        if right == "factor":
            number(got, "the detail")
            fine = abs(real(found) - detail) <= 1e-6 * (1 + abs(detail))
        if not fine:
            raise Wrong(
                f"{right!r} is right, its detail is {_brief(found)}, and should be {_brief(detail)}. "
                f"{self._hint(right, found, detail)}"
            )

    def _hint(self, kind: str, found, right) -> str:
        if kind == "factor" and right and near(found, 1 / right, 1e-6):
            return "Upside down: found = c · serial."
        if kind == "place" and formed(found, [int]):
            inverse = sorted(range(len(right)), key=right.__getitem__)
            if found == inverse:
                return "Turned around: of each place it says which chunk of the serial run stands there."
        return DETAILS[kind]


def _brief(detail) -> str:
    return f"{detail:.9g}" if isinstance(detail, float) else shown(detail)


CAUSES = {
    "equal": "every rank's is the serial run's, within 1e-6 of its largest magnitude.",
    "factor": "every rank's is the serial run's times one number c.",
    "missing": "some ranks have their own gradient, whole or divided by n, and the others are right.",
    "part": "all ranks have the same, a sum of ranks' own gradients divided by n, in which not every rank counts once.",
    "place": "all ranks have the same, and each of its n chunks along dimension 0 is a chunk of the serial run's.",
    "other": "none of the five above.",
}
DETAILS = {
    "equal": "There is nothing to say: None.",
    "factor": "It is the c of found = c · serial.",
    "missing": "It lists the ranks that have their own, the smallest first.",
    "part": "It lists for each rank how often it counts: 0, 1 or 2.",
    "place": "Of each of the n places it says which chunk of the serial run stands there.",
    "other": "There is nothing to say: None.",
}


# ------------------------------------------------------------
# What a norm counts.


class Counted(FieldExam):
    """`counted(norm, gradients, copies)`: how often each gradient is in a norm, {name: number}, or None."""

    name = "counted"
    given = ("", "gradients", "copies")
    right = "right norms, parts left out, copies counted on every rank, both at once, 16 bits, and norms that nothing explains."
    # what, copies of each, how often each counts, dtype
    cases = table(
        lambda what, copies, *_: f"{what}, {len(copies)} gradients",
        (
            ("a right norm", (1, 4, 4), (1, 1, 1), F64),
            ("copies on every rank", (1, 4, 1), (1, 4, 1), F64),
            ("two copies on every rank", (1, 3, 3, 1), (1, 3, 3, 1), F32),
            ("a part is left out", (1, 4, 4), (0, 1, 1), F64),
            ("a copy is left out", (1, 2, 2, 1), (1, 1, 0, 1), F64),
            ("both at once", (1, 4, 2, 1, 4), (0, 4, 1, 1, 1), F64),
            ("only one is counted", (1, 1, 1), (0, 1, 0), F32),
            ("large gradients in fp16", (1, 4, 1), (1, 4, 1), F16),
            ("gradients in bf16", (1, 4, 2), (0, 1, 2), BF16),
            ("nothing explains it", (1, 4, 1), None, F64),
        ),
    )

    def draw(self, case, rng):
        _, copies, counts, dtype = case.given
        while True:
            scale = 500.0 if dtype == F16 else 10.0 ** integer(rng, -3, 4)
            names = [f"layers.{i}.{leaf}" for i in range(2) for leaf in ("weight", "bias", "norm")]
            names = [names[i] for i in shuffled(rng, len(names))[: len(copies)]]
            gradients = {
                name: (scale * (0.5 + uniform(rng)) * normal(rng, 5 + i, 3)).to(dtype)
                for i, name in enumerate(names)
            }
            parts = [*oracle.squares(gradients).values()]
            if counts is None:
                norm = math.sqrt(sum(parts) * (0.3 + 0.1 * uniform(rng)))
            else:
                norm = math.sqrt(sum(c * x for c, x in zip(counts, parts)))
            copied = dict(zip(names, copies))
            if len(oracle.all_counts(norm, gradients, copied)) == (counts is not None):
                return [(norm, gradients, copied)]

    def wants(self, case, args):
        found = oracle.all_counts(*args[0])
        return [{"the result": found[0] if found else None}]

    def value(self, case, args, rank, name, got, want):
        gradients = args[0][1]
        if want is None or got is None:
            if (got is None) != (want is None):
                raise Wrong(
                    "no counts explain this norm: None is asked for."
                    if want is None
                    else f"you return None, and {want} explains it. Is each of 0, 1 and its copies tried for every one, and squared "
                    "in float64?"
                )
            return
        entries(got, tuple(gradients), name)
        got = {k: bare(v) for k, v in got.items()}
        for key, count in want.items():
            if got[key] != count:
                raise Wrong(
                    f"of {key} k is {count}, and you say {shown(got[key])}. {self._looks(got, want, args[0])}"
                )

    def _looks(self, got, want, given) -> str:
        norm, gradients, _ = given
        if all(isinstance(c, int | float) for c in got.values()):
            parts = oracle.squares(gradients)
            total = sum(got[k] * parts[k] for k in parts)
            if math.isclose(sum(got[k] * parts[k] ** 0.5 for k in parts), norm, rel_tol=1e-3):
                return "Squares add up, norms do not."
            if total > 0:
                return (
                    f"With your counts the norm would be {total**0.5:.6g}, and it is {norm:.6g}. How often: 1 is right, 0 is left "
                    "out, and `copies[name]` is on every rank that has it."
                )
        return (
            "How often: 1 is right, 0 is left out, and `copies[name]` is on every rank that has it."
        )


# ------------------------------------------------------------
# Who hangs. A program of collectives over a grid is followed, rank by rank, until nobody can go on.


class Guilty(FieldExam):
    """`guilty(dumps)`: (ranks, group, number): whom all wait for, and in which call; None where nothing hangs."""

    name = "guilty"
    given = ("dumps",)
    right = "2 to 12 ranks in one, three and seven groups, stopped, ended and mistaken ranks, chains of groups, full recorders."
    # what, data × tensor ranks, how many ranks are guilty
    cases = table(
        lambda what, data, tensor, _: f"{what}, {data} × {tensor} ranks",
        (
            ("a rank stops", 3, 1, 1),
            ("a rank stops", 2, 2, 1),
            ("a rank stops", 3, 2, 1),
            ("a rank stops", 4, 3, 1),
            ("two ranks stop", 3, 2, 2),
            ("a rank has ended", 3, 2, 1),
            ("a rank has ended", 2, 1, 1),
            ("another size", 4, 1, 1),
            ("another size", 3, 2, 1),
            ("another call", 3, 3, 1),
            ("another dtype", 4, 2, 1),
            ("nothing hangs", 2, 2, 0),
            ("nothing hangs", 3, 1, 0),
        ),
    )

    def draw(self, case, rng):
        what, data, tensor, count = case.given
        while True:
            dumps = Machine(data, tensor, rng).dumps(what, count)
            want = oracle.guilty(dumps)
            chains = oracle.guilty(dumps, chain=False) != want
            # in a larger grid some rank that is waited for waits itself
            if chains or what != "a rank stops" or tensor == 1:
                if len(want[0] if want else ()) == count:
                    return [(dumps,)]

    def wants(self, case, args):
        return [{"the result": oracle.guilty(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        got = bare(got)
        if got is not None:
            typed(got, tuple | list, name, "(ranks, group, number), or None")
            if not formed(got, ([int], str, int)):
                raise Wrong(
                    f"{name} is {shown(got)}, and should be (ranks, group, number), such as ([2], '0', 17)."
                )
            got = ([*got[0]], *got[1:])
        if got == want:
            return
        yours = "you find nothing" if got is None else f"you find {_whom(got)}"
        right = "nothing hangs" if want is None else f"to be found: {_whom(want)}"
        raise Wrong(f"{right}; {yours}. {self._looks(args[0][0], got, want)}")

    def _looks(self, dumps, got, want) -> str:
        if want is None:
            return "A call is over where its state is 'completed' or it is retired; a send or a receive may wait for long."
        slip = partial(oracle.guilty, dumps)
        slips = {
            "Those wait. Who has not come is asked for.": slip(waiting=True),
            "Some of these have not come because they wait themselves, in a call of another group: go on to whom they wait for.": slip(
                chain=False
            ),
            "All have come, and one has made another call under this number: look at name, sizes and dtypes.": slip(
                mismatch=False
            ),
            "They are waited for in several calls: the one is asked for to which a rank came first.": slip(
                latest=True
            ),
            "A rank without a dump has ended, and is waited for.": slip(ended=False),
        }
        found = next((words for words, value in slips.items() if value == got), None)
        if got is None:
            return found or (
                "A call hangs where it is not over on some rank: neither 'completed' nor retired. Sends and receives do not "
                "count. Is a rank missing in it, or in another call?"
            )
        if found is None and got[0] == want[0] and got[1] != want[1]:
            found = "The ranks are right. Of all calls in which somebody waits for one of them, the one that was created first."
        elif found is None and got[0] == want[0]:
            found = "The ranks are right. Numbers are `collective_seq_id`; sends and receives do not count."
        elif found is None and set(got[0]) & {r for r in dumps if r not in want[0]}:
            waits = [r for r in got[0] if r not in want[0]]
            found = (
                f"Ranks {waits} are not: each of them is in its call, or waits for another rank."
            )
        return found or "Is each guilty rank there, once, the smallest first?"


def _whom(found) -> str:
    there, group, number = found
    return f"ranks {there} in call {number} of group {group!r}"


class Machine:
    """A data × tensor grid of ranks and its groups, whose ranks call collectives in the same order."""

    def __init__(self, data: int, tensor: int, rng: torch.Generator):
        self.rng = rng
        self.n = data * tensor
        self.groups: dict[str, tuple[str, list[int]]] = {"0": ("default_pg", [*range(self.n)])}
        if tensor > 1:
            for d in range(data):
                self._add("tensor", [d * tensor + t for t in range(tensor)])
            for t in range(tensor):
                self._add("data", [d * tensor + t for d in range(data)])
        self.begun = {group: 10 * i + integer(rng, 3, 9) for i, group in enumerate(self.groups)}

    def _add(self, what: str, ranks: list[int]) -> None:
        self.groups[str(len(self.groups))] = what, ranks

    def program(self, steps: int) -> list[tuple[str, str, list[int]]]:
        """(kind of group, operation, sizes) of each call; a kind without groups is left out."""
        a, b, c = (1024 * size for size in (3, 5, 7))
        step = [
            ("tensor", "all_reduce", [a]),
            ("tensor", "all_reduce", [b]),
            ("tensor", "all_gather", [b]),
            ("data", "all_reduce", [a, 2]),
            ("data", "all_reduce", [c]),
            ("default_pg", "all_reduce", [1]),
        ]
        there = {what for what, _ in self.groups.values()}
        return [call for call in step * steps if call[0] in there]

    def group_of(self, rank: int, what: str) -> str:
        return next(g for g, (w, ranks) in self.groups.items() if w == what and rank in ranks)

    def dumps(self, what: str, count: int) -> dict[int, dict]:
        """Of all ranks, where `count` ranks do what is said at one place of the program."""
        program = self.program(6)
        wrong = shuffled(self.rng, self.n)[:count]
        places = [i for i in range(len(program)) if i > len(program) // 2]
        if what.startswith("another"):
            members = {i: self.groups[self.group_of(wrong[0], program[i][0])][1] for i in places}
            places = [i for i in places if len(members[i]) > 2]  # so that most have the right call
        elif len(self.groups) > 1:
            places = [i for i in places if program[i][0] == "tensor"]
        place = places[integer(self.rng, 0, len(places))]
        entries = self.follow(program, wrong, place, what)
        found = {}
        for r in range(self.n):
            if what == "a rank has ended" and r in wrong:
                continue
            config = {
                group: {"name": group, "desc": kind, "ranks": str(ranks)}
                for group, (kind, ranks) in self.groups.items()
                if r in ranks
            }
            recorded = entries[r][-integer(self.rng, 12, 20) :]
            found[r] = {"pg_config": config, "entries": recorded}
        return found

    def follow(self, program: list, wrong: list[int], place: int, what: str) -> list[list[dict]]:
        """Each rank's entries, once nobody can go on. Ranks `wrong` do something else at the place: what, or nothing."""
        rng = self.rng
        at = [0] * self.n
        numbers = [dict(self.begun) for _ in range(self.n)]
        entries: list[list[dict]] = [[] for _ in range(self.n)]
        waiting: dict[int, dict] = {}
        clock = 1_795_690_790 * 10**9
        while True:
            ready = [r for r in range(self.n) if r not in waiting and at[r] < len(program)]
            if not what.startswith("another"):
                ready = [r for r in ready if not (r in wrong and at[r] == place)]
            if not ready:
                return entries
            r = ready[integer(rng, 0, len(ready))]
            clock += 1000 * integer(rng, 1, 900)
            kind, name, shape = program[at[r]]
            group = self.group_of(r, kind)
            numbers[r][group] += 1
            call = _entry(group, kind, numbers[r][group], name, shape, clock)
            if r in wrong and at[r] == place:
                call |= self.other(what, shape)
            if integer(rng, 0, 4) == 0:  # a receive, posted ahead
                entries[r].append(
                    _entry("0", "default_pg", at[r], "recv 1<-0", [8], clock, two=True)
                )
            entries[r].append(call)
            waiting[r] = call
            at[r] += 1
            self.meet(group, waiting)

    def other(self, what: str, shape: list[int]) -> dict:
        """What a rank's call has in place of what the others' have."""
        return {
            "another size": {"input_sizes": [[shape[0] + 1, *shape[1:]]]},
            "another call": {"profiling_name": "nccl:reduce_scatter"},
            "another dtype": {"input_dtypes": ["BFloat16"]},
        }[what]

    def meet(self, group: str, waiting: dict[int, dict]) -> None:
        """End a group's call if all of its ranks are in it."""
        ranks = self.groups[group][1]
        calls = [waiting[r] for r in ranks if r in waiting]
        there = [call for call in calls if call["process_group"][0] == group]
        if len(there) < len(ranks) or any(oracle.what(c) != oracle.what(there[0]) for c in there):
            return
        for r in ranks:
            ended = {"state": "completed"} if integer(self.rng, 0, 3) else {"retired": True}
            waiting.pop(r).update(ended)


def _entry(group, description, number, name, shape, created, two=False) -> dict:
    """What a recorder notes of a call that has begun."""
    return {
        "process_group": (group, description),
        "is_p2p": two,
        "collective_seq_id": 0 if two else number,
        "p2p_seq_id": number if two else 0,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [shape],
        "input_dtypes": ["Float"],
        "output_sizes": [shape],
        "output_dtypes": ["Float"],
        "time_created_ns": created,
        "state": "started",
        "retired": False,
    }


# ------------------------------------------------------------
# Weights in Hugging Face's layout.


class ToHuggingFace(FieldExam):
    """`to_hugging_face(ranks, heads)`: a layer's weights by GPT-2's names, from tensor-parallel shards of ours."""

    name = "to_hugging_face"
    given = ("ranks",)
    right = "1 to 4 ranks, heads and features that they share unevenly, fp32, bf16 and fp64; every number."
    cases = table(
        lambda n, heads, dtype: f"n = {n}, {heads} heads, {str(dtype).removeprefix('torch.')}",
        ((1, 3, F32), (2, 4, F32), (2, 3, F64), (3, 4, BF16), (4, 7, F32), (3, 3, F32)),
    )

    def draw(self, case, rng):
        n, heads, dtype = case.given
        size = (5, 8, 11)[integer(rng, 0, 3)]  # never as many as heads, ranks, or q, k and v
        hidden = heads * size
        features = hidden * 2 + integer(rng, 2, 7)
        heads_of = [heads // n + (r < heads % n) for r in range(n)]
        features_of = sizes(rng, features, n)
        whole = {
            "attention.qkv.weight": normal(rng, 3 * hidden, hidden),
            "attention.qkv.bias": normal(rng, 3 * hidden),
            "attention.proj.weight": normal(rng, hidden, hidden),
            "attention.proj.bias": normal(rng, hidden),
            "mlp.fc.weight": normal(rng, features, hidden),
            "mlp.fc.bias": normal(rng, features),
            "mlp.proj.weight": normal(rng, hidden, features),
            "mlp.proj.bias": normal(rng, hidden),
        }
        ranks = [{} for _ in range(n)]
        for (name, x), dim in zip(whole.items(), oracle.CUT):
            cut = (
                [3 * size * h for h in heads_of] if "qkv" in name else [size * h for h in heads_of]
            )
            cut = features_of if "mlp" in name else cut
            parts = [x] * n if dim is None else x.split(cut, dim)
            for rank, part in zip(ranks, parts):
                rank[name] = part.to(dtype).contiguous()
        return [(ranks, heads)]

    def wants(self, case, args):
        return [{"the result": oracle.to_hugging_face(*args[0])}]

    def value(self, case, args, rank, name, got, want):
        entries(got, oracle.THEIRS, name)
        for key, right in want.items():
            typed(got[key], Tensor, key, "a tensor")
            found = got[key]
            looks = self._looks(key, *args[0])
            if found.shape != right.shape:
                words = recognized(found, looks, SHAPES[right.dim()], _same)
                raise Wrong(
                    f"{key} has shape {tuple(found.shape)}, and should have {tuple(right.shape)}. {words}"
                )
            same(found, right, key, looks, LAYOUT[key.split(".")[1]])

    def _looks(self, key, ranks, heads) -> dict[str, Tensor]:
        at = oracle.THEIRS.index(key)
        ours, dim = oracle.OURS[at], oracle.CUT[at]
        parts = [rank[ours] for rank in ranks]
        x = oracle.together(parts, dim)
        looks = {}
        turned = (lambda y: y.t()) if x.dim() == 2 else (lambda y: y)
        if x.dim() == 2:
            plain = oracle.by_what(x, heads) if "qkv" in ours else x
            looks[
                "Their matrices are transposed: they compute x·W, and a linear layer of ours x·Wᵀ."
            ] = plain
        if "qkv" in ours:
            own = [oracle.by_what(part, len(part) * heads // len(x)) for part in parts]
            size = len(x) // heads // 3
            looks |= {
                "Rows lie by head still, q₀ k₀ v₀ q₁ …: all queries come first, then all keys, then all values.": turned(
                    x
                ),
                "Each rank's queries, keys and values lie together: put all ranks' queries first.": turned(
                    torch.cat(own)
                ),
                "Ours has a head's q, k and v together, not all queries first.": turned(
                    torch.cat(
                        [x[(3 * h + i) * size :][:size] for h in range(heads) for i in range(3)]
                    )
                ),
                "The order was turned around: rows 0, 1, 2 … are q₀ k₀ v₀, not q₀ q₁ q₂.": turned(
                    x.unflatten(0, (3, heads, size)).transpose(0, 1).flatten(0, 2)
                ),
                "Keys, queries and values are in another order: queries, keys, values.": turned(
                    torch.cat(oracle.by_what(x, heads).chunk(3)[::-1])
                ),
                "Ranks are in reverse.": turned(oracle.by_what(torch.cat(parts[::-1]), heads)),
            }
        elif dim is None:
            looks |= {
                "It is added up over the ranks: every rank has all of it, a copy.": sum(parts),
                "It is put together from the ranks: every rank has all of it, a copy.": torch.cat(
                    parts
                ),
            }
        else:
            looks["Ranks are in reverse."] = turned(torch.cat(parts[::-1], dim))
        if dim is not None:
            looks["It is rank 0's part alone."] = turned(parts[0])
        return looks


def _same(got, want) -> bool:
    return got.shape == want.shape and torch.equal(got, want)


SHAPES = {
    1: "A bias of a layer that is cut by columns is on every rank; one that is cut by rows is put together.",
    2: "Put the parts together along the dimension in which they are cut, and transpose.",
}
LAYOUT = {
    "c_attn": "Columns are all queries, all keys, all values, each by head; of ours the rows are a head's q, k and v.",
    "c_proj": "It is the transpose of all columns of ours, rank by rank; its bias is every rank's.",
    "c_fc": "It is the transpose of all rows of ours, rank by rank.",
}


# ------------------------------------------------------------
# Numbers.


def predict_field_guide(n=8, terms=1_048_576, gpus=512):
    """What a factor does to two optimizers, what rounding allows, a norm, and what a hang costs."""
    tensor = 4
    rounding = terms**0.5 * 2**-24
    norm = (16 + (tensor - 1) * 1) ** 0.5
    steps = 2_000 / 250
    hours = gpus * 10 / 60
    values = {
        "sgd": n,
        "adam": 1,
        "rounding": rounding,
        "norm": norm,
        "steps": steps,
        "hours": hours,
    }
    slips = {
        "sgd": {
            1: "With SGD a step is the rate times the gradient: it grows as the gradient does.",
            1 / n: f"They are summed, and so {n} times too large.",
            n * n: "Only the gradient is too large, and that once.",
        },
        "adam": {
            n: "Adam divides by the root of the mean square, which is as much larger.",
            n**0.5: "The root of the mean *square*: of n² there.",
            1 / n: "The gradient above and the root below are larger by the same factor.",
        },
        "rounding": {
            terms * 2**-24: "That is at worst: independent errors grow as √K.",
            2 * rounding: "The unit roundoff is half of eps, 2⁻²³.",
            terms**0.5 * 2**-53: "That is fp64.",
            4 * rounding: "Without the factor 4 of a bound.",
        },
        "norm": {
            (16 + tensor)
            ** 0.5: f"Once it counts rightly: it counts {tensor - 1} times too often.",
            4 + (tensor - 1): "Squares add up, norms do not.",
            norm**2: "The root is missing.",
            4: "That is the right one.",
            8: f"Only the LayerNorms' part is counted {tensor} times, not all of it.",
        },
        "steps": {
            2_000: "Those are calls: a step makes 250.",
            2_000 * 250: "Divide by the calls of a step.",
        },
        "hours": {
            gpus * 10: "Those are minutes.",
            10 / 60: "That is of one GPU: all of them wait.",
            gpus * 30 / 60: "10 minutes, not 30.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_field_guide,
    "Updates, rounding, a norm, and what is left of a hang, within 1 %.",
    {
        "n": ("{} ranks", (4, 16, 32)),
        "terms": ("sums of {:,} terms", (65_536, 4_194_304)),
        "gpus": ("{:,} GPUs that hang", (256, 2_048)),
    },
)
