"""Lesson 27: other right ways pass, odd answers are told, and the oracle agrees with the library.

The usual mistakes are in course/27_field_guide/bugs.py, which tests/bank examines.
"""

import json
import math
import sys
from collections import defaultdict

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck.lessons import field_guide
from minicheck.lessons.field_guide import Cause, Counted, FirstWrong, Guilty, Judged, ToHuggingFace
from minicheck.oracles import field_guide as oracle
from minidist.checkpoint.huggingface import sources
from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.comm.flight import explain, report
from minidist.models import mlp
from minidist.study.compare import AXES, KINDS, compare, record, tolerance
from tests.minicheck.examined import accepted, assert_odd_answers_are_told, refused, rng

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


# ------------------------------------------------------------
# The oracle, and what the library says of the same.


def test_axes_are_the_librarys():
    assert set(oracle.AXES) == set(AXES)
    assert {axis for axis in AXES if AXES[axis][0]} == set(oracle.SAME_ORDER)
    assert [kind for kind in oracle.KINDS if kind != "norm"] == [*KINDS]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_is_allowed_is_the_librarys(dtype):
    x = torch.tensor([0.5, -4.0, math.nan]).to(dtype)
    for terms, modules in ((1, 1), (4096, 12)):
        assert oracle.allowed(x, ["zero"], terms, modules) == pytest.approx(
            4 * tolerance(dtype, terms, modules)
        )


def trained(comm, wrong):
    """Two data-parallel steps, recorded. wrong: the parameter whose gradient is not averaged; "start": another seed."""
    model = mlp([5, 7, 3], seed=comm.rank if wrong == "start" else 0, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = record(model, steps=2)
    random = torch.Generator().manual_seed(1)
    for _ in range(2):
        x = torch.randn(12, 5, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        model(x.chunk(comm.size)[comm.rank]).square().mean().backward()
        for name, p in model.named_parameters():
            if name != wrong:
                all_reduce_(comm, p.grad).div_(comm.size)
        with run.step():
            optimizer.step()
    return run.finished


@pytest.mark.parametrize("wrong", [None, "start", "0.weight", "2.bias"])
def test_the_first_difference_is_the_librarys(wrong):
    serial = World(1).run(trained, None)[0]
    ranks = list(World(3).run(trained, wrong))
    found = compare([serial], ranks)
    first = found.first and (found.step, found.first.kind, found.first.name, found.first.ranks)
    runs = [
        [{key: x for key, x in step.items() if key[0] != "output_grad"} for step in run]
        for run in (serial, *ranks)
    ]
    assert oracle.first_wrong(runs[0], runs[1:], 1e-9) == first


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", Guilty.cases, ids=lambda case: case.what)
def test_who_hangs_is_in_the_librarys_words(case, seed):
    """It says of every call who is in it and who has not come; the guilty ones are in no call."""
    [(dumps,)] = Guilty().draw(case, rng(seed))
    want = oracle.guilty(dumps)
    for dump in dumps.values():
        dump["entries"] = [entry for entry in dump["entries"] if not entry["is_p2p"]]
    lines = explain({r: report(dump) for r, dump in dumps.items()}, case.given[1] * case.given[2])
    if want is None:
        assert not lines
        return
    ranks, group, number = want
    title = dumps[next(iter(dumps))]["pg_config"].get(group, {}).get("desc", "")
    heads = [line for line in lines if line.startswith(f"call {number} of group {title}")]
    assert heads
    if case.given[0].startswith("another"):
        assert any("different calls" in line for line in heads)
        return
    for rank in ranks:
        words = f"  rank {rank} {'has not come to it' if rank in dumps else 'is not heard of'}"
        assert any(line.startswith(words) for line in lines)
        assert not any(line.startswith(f"  rank {rank} is in") for line in lines)


@pytest.mark.parametrize("case", ToHuggingFace.cases)
def test_the_layout_is_the_librarys(case):
    [(ranks, heads)] = ToHuggingFace().draw(case, rng())
    whole = {
        name: oracle.together([parts[name] for parts in ranks], dim)
        for name, dim in zip(oracle.OURS, oracle.CUT, strict=True)
    }
    features, hidden = whole["mlp.fc.weight"].shape
    options = dict(
        vocab=7, layers=1, hidden=hidden, heads=heads, kv_heads=heads, context=5, ffn=features
    )
    options |= dict(gated=False, rotary=False, bias=True, norm="layer", eps=1e-5, tied=True)
    found = oracle.to_hugging_face(ranks, heads)
    for ours, parts in sources(options).items():
        name = ours.removeprefix("layers.0.")
        if name in whole:
            (source,) = parts
            x = whole[name][source.rows]
            theirs = source.name.removeprefix("transformer.h.0.")
            assert torch.equal(found[theirs], x.t() if source.transposed else x)


# ------------------------------------------------------------
# Other right ways.


def judged(serial, parallel, axes, terms, modules):
    """Number by number, in Python."""
    u = {8: 2.0**-53, 4: 2.0**-24}.get(serial.element_size(), 2.0**-9)
    u = 2.0**-11 if serial.dtype == torch.float16 else u
    u = 2.0**-8 if serial.dtype == torch.bfloat16 else u
    pairs = list(zip(serial.flatten().tolist(), parallel.flatten().tolist(), strict=True))
    largest = sorted(abs(x) for x, _ in pairs if math.isfinite(x))[-1]
    sums = any(axis in ("data", "accumulate", "zero", "tensor", "context") for axis in axes)
    allowed = 4 * modules**0.5 * (u + terms**0.5 * min(u, 2.0**-24)) * largest * sums
    worst = "equal"
    for x, y in pairs:
        if x == y or (math.isnan(x) and math.isnan(y)):
            continue
        if not abs(x - y) <= allowed:
            return torch.tensor(allowed, dtype=torch.float64), "wrong"
        worst = "rounding"
    return torch.tensor(allowed, dtype=torch.float64), worst


def first_wrong(serial, ranks, slack):
    """All differences with their place in the order; the parts put together, and the smallest place taken."""
    kinds = ["start", "mask", "output", "loss", "output_grad", "norm", "gradient", "parameter"]
    found = []
    for step in range(len(serial)):
        for at, (kind, name) in enumerate(serial[step]):
            if kind not in kinds:
                continue
            S = torch.cat([x.double().reshape(-1, *x.shape[1:]) for x in serial[step][kind, name]])
            S = S if serial[step][kind, name][0].dim() else S[0]
            there = [r for r in range(len(ranks)) if (kind, name) in ranks[r][step]]
            parts = []
            for r in there:
                calls = ranks[r][step][kind, name]
                parts.append(torch.cat(calls).double() if calls[0].dim() else calls[0].double())
            limit = slack * S.abs().max()
            if all(x.shape == S.shape for x in parts):
                slices = [S] * len(parts)
            else:
                d = next(d for d in range(S.dim()) if parts[0].shape[d] != S.shape[d])
                slices = S.split([x.shape[d] for x in parts], d)
            pairs = zip(there, parts, slices, strict=True)
            off = [r for r, x, s in pairs if not bool(((x - s).abs() <= limit).all())]
            if off:
                place = -at if kind == "gradient" else at
                found.append((step, kinds.index(kind), place, kind, name, off))
    if not found:
        return None
    step, _, _, kind, name, off = min(found)
    return [step, kind, name, off]


def cause(serial, found, own):
    """Counts by least squares."""
    n = len(own)
    near = lambda x, y: float((x - y).abs().max()) <= 1e-6 * float(serial.abs().max())
    P = found[0]
    alike = all(near(P, x) for x in found)
    c = torch.dot(P.flatten(), serial.flatten()) / serial.square().sum()
    if alike and near(P, serial):
        return ["equal", None]
    if alike and near(P, c * serial):
        return "factor", c
    held = [near(x, L) or near(x, L / n) for x, L in zip(found, own, strict=True)]
    if any(held) and all(h or near(x, serial) for h, x in zip(held, found, strict=True)):
        return "missing", [r for r in range(n) if held[r]]
    if not alike:
        return "other", None
    A = torch.stack([L.flatten() / n for L in own], 1)
    k = torch.linalg.lstsq(A, P.reshape(-1, 1)).solution.flatten().round()
    if set(k.tolist()) <= {0, 1, 2} and near(P, (A @ k).view_as(P)):
        return "part", tuple(k.int().tolist())
    rows = len(P) // n
    places = []
    for i in range(n):
        for j in range(n):
            if near(P[i * rows : (i + 1) * rows], serial[j * rows : (j + 1) * rows]):
                places.append(j)
                break
    return ("place", places) if len(places) == n else ("other", None)


def counted(norm, gradients, copies):
    """One gradient after the other."""
    found = [({}, 0.0)]
    for name, g in gradients.items():
        square = torch.linalg.vector_norm(g, dtype=torch.float64).item() ** 2
        found = [
            (counts | {name: k}, total + k * square)
            for counts, total in found
            for k in (0, 1, copies[name])
        ]
    for counts, total in found:
        if abs(total / norm**2 - 1) < 1e-6:
            return counts
    return None


def guilty(dumps):
    """Group by group; who waits is known from each rank's own dump."""
    stuck = {}
    for dump in dumps.values():
        for e in dump["entries"]:
            if not e["is_p2p"] and e["state"] != "completed" and not e["retired"]:
                name = e["process_group"][0]
                stuck[name] = min(stuck.get(name, math.inf), e["collective_seq_id"])
    there = defaultdict(dict)
    for rank, dump in dumps.items():
        for e in dump["entries"]:
            name = e["process_group"][0]
            if not e["is_p2p"] and stuck.get(name) == e["collective_seq_id"]:
                there[name][rank] = e
    for name, entries in there.items():
        kinds = defaultdict(list)
        for rank, e in entries.items():
            kinds[json.dumps([e["profiling_name"], e["input_sizes"], e["input_dtypes"]])].append(
                rank
            )
        if len(kinds) > 1:
            return [min(kinds.values(), key=len), name, stuck[name]]
    ranks = {}
    for dump in dumps.values():
        ranks |= {name: json.loads(c["ranks"]) for name, c in dump["pg_config"].items()}
    inside = {rank for entries in there.values() for rank in entries}
    found = []
    for name, entries in there.items():
        first = min(e["time_created_ns"] for e in entries.values())
        found += [(first, name, r) for r in ranks[name] if r not in inside]
    if not found:
        return None
    name = min(found)[1]
    return [sorted({r for _, _, r in found}), name, stuck[name]]


def to_hugging_face(ranks, heads):
    """Head by head."""
    size = ranks[0]["attention.proj.weight"].shape[0] // heads
    lists = {"weight": [[], [], []], "bias": [[], [], []]}
    for rank in ranks:
        for leaf, of in lists.items():
            for i, rows in enumerate(rank[f"attention.qkv.{leaf}"].split(size)):
                of[i % 3].append(rows)
    joined = {leaf: torch.cat([x for part in of for x in part]) for leaf, of in lists.items()}
    return {
        "mlp.c_proj.bias": ranks[-1]["mlp.proj.bias"],
        "attn.c_attn.weight": joined["weight"].t(),
        "attn.c_attn.bias": joined["bias"],
        "attn.c_proj.weight": torch.cat([r["attention.proj.weight"].t() for r in ranks]),
        "attn.c_proj.bias": ranks[0]["attention.proj.bias"],
        "mlp.c_fc.weight": torch.cat([r["mlp.fc.weight"].t() for r in ranks], 1),
        "mlp.c_fc.bias": torch.cat([r["mlp.fc.bias"] for r in ranks]),
        "mlp.c_proj.weight": torch.cat([r["mlp.proj.weight"].t() for r in ranks]),
    }


WAYS = (judged, first_wrong, cause, counted, guilty, to_hugging_face)


@pytest.mark.parametrize("answer", WAYS, ids=lambda answer: answer.__name__)
def test_other_right_ways(answer):
    assert accepted(getattr(check, answer.__name__), [answer]) == [0]


STYLES = [
    (
        "judged",
        "largest = serial[serial.isfinite()].double().abs().max().item()",
        "largest = serial.double().abs().nan_to_num(0, 0, 0).max().item()",
    ),
    ("first_wrong", "return step, *key, off", "return [step, *key, torch.tensor(off).tolist()]"),
]


def test_other_styles():
    assert refused("27_field_guide", STYLES) == {}


def test_odd_answers_are_told():
    assert_odd_answers_are_told(field_guide)


# ------------------------------------------------------------
# What is drawn can tell the mistakes.


@pytest.mark.parametrize("seed", range(5))
def test_no_difference_is_near_what_is_allowed(seed):
    for case in Judged.cases:
        [(x, y, axes, terms, modules)] = Judged().draw(case, rng(seed))
        most = oracle.allowed(x, axes, terms, modules)
        off = (x.double() - y.double()).abs()
        off = float(off[off.isfinite()].max())
        assert most == 0 or off <= 0.75 * most or off >= 1.3 * most, case.what


@pytest.mark.parametrize("seed", range(5))
def test_parts_are_uneven_and_sides_differ(seed):
    for case in FirstWrong.cases:
        [(serial, _, _)] = FirstWrong().draw(case, rng(seed))
        for step in serial:
            for (x,) in step.values():
                assert not x.dim() or x.shape[0] != x.shape[1]
    for case in ToHuggingFace.cases:
        [(ranks, heads)] = ToHuggingFace().draw(case, rng(seed))
        whole = oracle.to_hugging_face(ranks, heads)
        features, hidden = whole["mlp.c_proj.weight"].shape
        assert len({features, hidden, 3 * hidden, heads, hidden // heads, 3}) >= 5
        square = whole["attn.c_proj.weight"]
        assert not torch.equal(square, square.t())


@pytest.mark.parametrize("seed", range(5))
def test_each_cause_is_what_was_drawn(seed):
    expected = {"exactly": "equal", "everywhere": "place", "factors": "other", "number": "other"}
    for case in Cause.cases:
        kind = case.given[2]
        name, detail = oracle.cause(*Cause().draw(case, rng(seed))[0])
        assert name == expected.get(kind, kind), case.what
        if kind == "place":
            assert detail != sorted(range(len(detail)), key=detail.__getitem__)
    for case in Counted.cases:
        [found] = Counted().wants(case, Counted().draw(case, rng(seed)))
        counts = found["the result"]
        assert (counts and [*counts.values()]) == (case.given[2] and [*case.given[2]])


@pytest.mark.parametrize("seed", range(5))
def test_some_of_those_who_are_waited_for_wait_themselves(seed):
    for case in Guilty.cases:
        [(dumps,)] = Guilty().draw(case, rng(seed))
        want = oracle.guilty(dumps)
        assert len(want[0] if want else ()) == case.given[3], case.what
        if case.given[0] == "a rank stops" and case.given[2] > 1:
            assert oracle.guilty(dumps, chain=False) != want
