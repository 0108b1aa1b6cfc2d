"""Right answers of lesson 27: what rounding allows, the first difference, its cause, a norm's parts, who hangs, a layout.

Each has options for the usual mistakes, so that a grader can say which one an answer looks like.
"""

from __future__ import annotations

import json
import math
from itertools import product

import torch
from torch import Tensor

FORBIDDEN = (
    "minidist.study.compare",
    "minidist.comm.flight",
    "minidist.checkpoint",
    "minicheck.oracles.field_guide",
)

# ------------------------------------------------------------
# What rounding allows.


SAME_ORDER = ("pipeline", "remat")
AXES = (*SAME_ORDER, "data", "accumulate", "zero", "tensor", "context")


def allowed(
    serial: Tensor,
    axes: list[str],
    terms: int,
    modules: int,
    *,
    exact=SAME_ORDER,
    unit: float = 0.5,
    narrow: bool = False,
    root_of_terms: float = 0.5,
    root_of_modules: float = 0.5,
    largest=lambda x: x.abs().max(),
) -> float:
    """How far a number may be off: 4·√D·(u + √K·v) of the largest one.

    unit: of eps, the unit roundoff.  narrow: sums are in the tensor's own dtype.
    """
    if all(axis in exact for axis in axes):
        return 0.0
    u = torch.finfo(serial.dtype).eps * unit
    v = u if narrow else min(u, 2.0**-23 * unit)
    finite = serial[serial.isfinite()].double()
    size = float(largest(finite))
    return 4 * modules**root_of_modules * (u + terms**root_of_terms * v) * size


def verdict(serial: Tensor, parallel: Tensor, most: float) -> str:
    """ "equal", "rounding" or "wrong"."""
    differ = (serial != parallel) & ~(serial.isnan() & parallel.isnan())
    if not differ.any():
        return "equal"
    off = (serial.double() - parallel.double())[differ].abs()
    return "rounding" if bool((off <= most).all()) else "wrong"


# ------------------------------------------------------------
# The first tensor that differs.


KINDS = ("start", "mask", "output", "loss", "output_grad", "norm", "gradient", "parameter")

Run = list[dict[tuple[str, str], list[Tensor]]]


def whole(calls: list[Tensor]) -> Tensor:
    """The calls of a step, one behind the other."""
    return (calls[0] if len(calls) == 1 else torch.cat(calls)).double()


def keys(step: dict, *, kinds=KINDS, backwards=("gradient",), as_recorded=False) -> list:
    """What is compared of a step, in order."""
    if as_recorded:
        return [key for key in step if key[0] in kinds]
    found = []
    for kind in kinds:
        names = [key for key in step if key[0] == kind]
        found += names[::-1] if kind in backwards else names
    return found


def ranks_off(
    serial: Tensor,
    parts: dict[int, Tensor],
    slack: float,
    *,
    absolute=False,
    elementwise=False,
    signed=False,
    nan=False,
) -> list[int]:
    """The ranks whose numbers are off, of those that have some."""
    most = slack * serial.abs() if elementwise else slack * serial.abs().max()
    if absolute:
        most = torch.tensor(slack)
    off = []
    first = [0] * serial.dim()
    for rank, x in parts.items():
        part, bound = serial, most
        cut = [d for d in range(serial.dim()) if x.shape[d] != serial.shape[d]]
        for d in cut:
            part = part.narrow(d, first[d], x.shape[d])
            bound = bound.narrow(d, first[d], x.shape[d]) if elementwise else bound
            first[d] += x.shape[d]
        difference = x - part
        difference = difference if signed else difference.abs()
        within = ~(difference > bound) if nan else difference <= bound
        if not within.all():
            off.append(rank)
    return off


def first_wrong(
    serial: Run,
    ranks: list[Run],
    slack: float,
    *,
    only=None,
    copies=False,
    first_call=False,
    last=False,
    steps=None,
    measure: dict | None = None,
    **order,
):
    """(step, kind, name, ranks) of the first difference, or None.

    only: these ranks are looked at.  copies: parts are passed over.  last: the last difference.  steps: no more
    than so many.
    """
    found = None
    for step, tensors in enumerate(serial[:steps]):
        for key in keys(tensors, **order):
            join = (lambda calls: calls[0].double()) if first_call else whole
            parts = {r: join(run[step][key]) for r, run in enumerate(ranks) if key in run[step]}
            S = join(tensors[key])
            if first_call and any(x.dim() != S.dim() or x.shape != S.shape for x in parts.values()):
                continue
            if copies:
                parts = {r: x for r, x in parts.items() if x.shape == S.shape}
            off = ranks_off(S, parts, slack, **(measure or {}))
            off = off if only is None else [r for r in off if r in only]
            if off:
                found = (step, *key, off)
                if not last:
                    return found
    return found


# ------------------------------------------------------------
# The cause.


def fits(x: Tensor, y: Tensor, size: float) -> bool:
    return bool(((x - y).abs() <= 1e-6 * size).all())


def cause(S: Tensor, found: list[Tensor], own: list[Tensor]):
    """(cause, detail) of a gradient after an exchange."""
    n = len(own)
    size = float(S.abs().max())
    if all(fits(P, S, size) for P in found):
        return "equal", None
    c = float((found[0] * S).sum() / (S * S).sum())
    if all(fits(P, c * S, size) for P in found):
        return "factor", c
    alone = [r for r in range(n) if any(fits(found[r], own[r] / share, size) for share in (1, n))]
    if alone and all(fits(found[r], S, size) for r in range(n) if r not in alone):
        return "missing", alone
    alike = all(fits(P, found[0], size) for P in found)
    for counts in product((0, 1, 2), repeat=n):
        part = sum(count * x for count, x in zip(counts, own)) / n
        if alike and fits(found[0], part, size):
            return "part", [*counts]
    chunks = S.chunk(n)
    moved = [[i for i, c in enumerate(chunks) if fits(x, c, size)] for x in found[0].chunk(n)]
    if alike and all(moved):
        return "place", [at[0] for at in moved]
    return "other", None


# ------------------------------------------------------------
# A norm.


def squares(gradients: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(g.double().square().sum()) for name, g in gradients.items()}


def all_counts(norm: float, gradients: dict[str, Tensor], copies: dict[str, int]) -> list[dict]:
    """How often each gradient may be in a norm: all ways."""
    parts = squares(gradients)
    choices = [sorted({0, 1, copies[name]}) for name in parts]
    found = []
    for counts in product(*choices):
        total = sum(c * x for c, x in zip(counts, parts.values()))
        if math.isclose(total, norm**2, rel_tol=1e-6):
            found.append(dict(zip(parts, counts)))
    return found


# ------------------------------------------------------------
# Who hangs.


def calls(dumps: dict[int, dict]) -> dict[str, dict[int, dict[int, dict]]]:
    """{group: {rank: {number: entry}}}, of collectives."""
    found: dict[str, dict[int, dict[int, dict]]] = {}
    for rank, dump in dumps.items():
        for group in dump["pg_config"]:
            found.setdefault(group, {})[rank] = {}
        for entry in dump["entries"]:
            if not entry["is_p2p"]:
                group = entry["process_group"][0]
                found.setdefault(group, {}).setdefault(rank, {})[entry["collective_seq_id"]] = entry
    return found


def over(entry: dict) -> bool:
    return entry["state"] == "completed" or bool(entry["retired"])


def members(dumps: dict[int, dict], group: str) -> list[int]:
    for dump in dumps.values():
        if group in dump["pg_config"]:
            return json.loads(dump["pg_config"][group]["ranks"])
    return []


def what(entry: dict) -> tuple:
    return entry["profiling_name"], entry["input_sizes"], entry["input_dtypes"]


def hanging(dumps: dict[int, dict]) -> dict[str, int]:
    """{group: its first call that is not over on some rank}."""
    found = {}
    for group, by_rank in calls(dumps).items():
        numbers = set()
        for own in by_rank.values():
            numbers |= {number for number, entry in own.items() if not over(entry)}
        if numbers:
            found[group] = min(numbers)
    return found


def created(entries: dict[int, dict]) -> int:
    return min(entry["time_created_ns"] for entry in entries.values())


def guilty(
    dumps: dict[int, dict], *, chain=True, mismatch=True, ended=True, latest=False, waiting=False
):
    """(ranks, group, number): who is waited for, and in which call; None where nothing hangs.

    chain: who waits elsewhere is not guilty.  mismatch: another call under a number is looked for.  ended: ranks without a
    dump count.  latest: the call is the last one, not the first.  waiting: who waits is named instead.
    """
    by_group = calls(dumps)
    there = {
        (group, number): {r: own[number] for r, own in by_group[group].items() if number in own}
        for group, number in hanging(dumps).items()
    }
    for (group, number), entries in there.items():
        kinds = [what(entry) for entry in entries.values()]
        rare = [r for r, entry in entries.items() if 2 * kinds.count(what(entry)) < len(kinds)]
        if rare and mismatch:
            return sorted(rare), group, number
    busy = set()
    for entries in there.values():
        busy |= {r for r, entry in entries.items() if not over(entry)}
    late = {place: set(members(dumps, place[0])) - set(there[place]) for place in there}
    free = set().union(*late.values()) - (busy if chain else set())
    free = free if ended else free & set(dumps)
    if not free:
        return None
    places = [place for place, ranks in late.items() if ranks & free]
    place = (max if latest else min)(places, key=lambda place: created(there[place]))
    return sorted(there[place] if waiting else free), *place


# ------------------------------------------------------------
# Hugging Face's layout.


OURS = (
    "attention.qkv.weight",
    "attention.qkv.bias",
    "attention.proj.weight",
    "attention.proj.bias",
    "mlp.fc.weight",
    "mlp.fc.bias",
    "mlp.proj.weight",
    "mlp.proj.bias",
)
THEIRS = (
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
)
CUT = (0, 0, 1, None, 0, 0, 1, None)  # along which dimension ranks have a part


def together(parts: list[Tensor], dim: int | None) -> Tensor:
    return parts[0] if dim is None else torch.cat(parts, dim)


def by_what(x: Tensor, heads: int) -> Tensor:
    """Rows q₀ k₀ v₀ q₁ k₁ v₁ as q₀ q₁ k₀ k₁ v₀ v₁."""
    size = len(x) // heads // 3
    rows = [
        slice((3 * head + i) * size, (3 * head + i + 1) * size)
        for i in range(3)
        for head in range(heads)
    ]
    return torch.cat([x[there] for there in rows])


def to_hugging_face(ranks: list[dict[str, Tensor]], heads: int) -> dict[str, Tensor]:
    found = {}
    for ours, theirs, dim in zip(OURS, THEIRS, CUT):
        x = together([parts[ours] for parts in ranks], dim)
        x = by_what(x, heads) if "qkv" in ours else x
        found[theirs] = x.t() if x.dim() == 2 else x
    return found
