"""Every schedule on real stages gives the gradient of a serial loop, bit for bit."""

import functools
import random

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.schedules import Action, Shape, gpipe, in_flight, lists, one_f_one_b, parse
from minidist.parallel.validate import ScheduleError
from tests.parallel.pipeline import cases
from tests.parallel.pipeline.cases import (
    SCHEDULES,
    data,
    difference,
    layers,
    mse,
    own,
    run,
    serial,
    together,
)
from tests.size import FULL

TRANSPORTS = {"processes": "shm", "gloo": "gloo"}
SIZES = [(1, 1), (1, 3), (2, 1), (2, 4), (3, 2), (3, 6), (4, 8), (5, 10)]
if FULL:
    SIZES = [(S, M) for S in range(1, 9) for M in range(1, 17)]


@pytest.mark.parametrize(
    ("name", "S", "M"), [(n, S, M) for n in SCHEDULES for S, M in SIZES if cases.fits(n, S, M)]
)
def test_the_serial_gradient(name, S, M, figure):
    worst, peaks = cases.compared(name, S, M)
    if SIZES[-1] == (S, M):
        figure(f"{name}, {S} stages, {M} micro-batches: off by {worst:.0e}, {peaks} in flight")
    assert worst == 0
    assert peaks == [in_flight(actions) for actions in lists(SCHEDULES[name], S, M)]


def all_schedules(comm, batch, M):
    """{schedule: (losses, gradients)} of two steps each."""
    return {
        name: run(comm, schedule, M, batch, cases.chunks_of(name), steps=2)
        for name, schedule in SCHEDULES.items()
        if cases.fits(name, comm.size, M)
    }


@pytest.mark.parametrize(
    ("transport", "n"), [("processes", 2), ("processes", 3), ("processes", 4), ("gloo", 2)]
)
def test_the_serial_gradient_over_processes(transport, n):
    M, batch = 12, data(26)
    results = launch(all_schedules, n, batch, M, transport=TRANSPORTS[transport])
    for name in SCHEDULES:
        model = layers(n * cases.chunks_of(name))
        for _ in range(2):
            oracle = serial(model, *batch, M)
        losses, found = together([of_rank[name] for of_rank in results])
        assert difference(found, model) == 0 and losses == oracle, name


def orders(S, M, v, seed, place="loop", halves=True):
    """Lists of S stages in one of all the orders that there are, drawn at random."""
    draw, shape = random.Random(seed), Shape(S, M, v, place)
    split = {(m, p): halves and draw.random() < 0.5 for m in range(M) for p in range(S * v)}
    waiting = [Action(k, m, c) for m in range(M) for c in range(v) for k in "FBIW"]
    todo = [
        (stage, a)
        for stage in range(S)
        for a in waiting
        if a.kind == "F" or (a.kind in "IW") == split[a.micro, shape.part(stage, a.chunk)]
    ]
    made, found = set(), [[] for _ in range(S)]
    while todo:
        ready = [(s, a) for s, a in todo if all(need in made for need in shape.needs(s, a))]
        stage, action = pick = draw.choice(ready)
        todo.remove(pick)
        made.add(shape.gives(stage, action))
        found[stage].append(action)
    return found


@pytest.mark.parametrize("seed", range(25))
def test_any_order_that_can_be(seed):
    """Also where a stage uses messages in another order than they are sent. Nothing hangs; nobody waits in vain."""
    draw = random.Random(seed)
    S, M = draw.randint(1, 4), draw.randint(1, 5)
    v, place = draw.choice([(1, "loop"), (2, "loop"), (3, "loop"), (2, "V")])
    every, batch = orders(S, M, v, seed, place), data(M + 1)
    model = layers(S * v)
    serial(model, *batch, M)
    ahead = draw.randint(0, 2)

    def program(comm):
        parts = layers(S * v)
        shape = Shape(S, M, v, place)
        numbers = [shape.part(comm.rank, c) for c in range(v)]
        pipeline = Pipeline(
            [parts[p] for p in numbers],
            comm,
            lambda stage, S, M: every[stage],
            mse,
            place=place,
            ahead=ahead,
        )
        assert pipeline.first_stage == (0 in numbers) and pipeline.last_stage == (
            S * v - 1 in numbers
        )
        pipeline.step(M, batch[0], batch[1])
        return {f"{p}.{name}": w.grad for p in numbers for name, w in parts[p].named_parameters()}

    found = functools.reduce(dict.__or__, World(S).run(program))
    assert difference(found, model) < 1e-14


class Widen(nn.Module):
    """Numbers and two tensors in; numbers, a longer and a shorter tensor out; one input is not used."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width + 1, dtype=torch.float64)

    def forward(self, row, x, unused):
        return row + 1, torch.tanh(self.linear(x)), x.mean(1)


class Begin(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3, dtype=torch.float64)

    def forward(self, row, x):
        return row, x + self.table(row), x.float()


class End(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, row, x, mean):
        return self.scale * x, row, mean


def several(parts, frozen=()):
    torch.manual_seed(1)
    made = [Begin(), *(Widen(3 + i) for i in range(parts - 2)), End()]
    for i in frozen:
        made[i].requires_grad_(False)
    return nn.ModuleList(made)


def loss_of_several(y, target):
    return ((y[0] - target[0][:, None]) ** 2).mean() + (y[1] * y[2]).sum() * 1e-3 * target[1].mean()


@pytest.mark.parametrize("frozen", [(), (0,), (1, 2), (0, 1, 2, 3), (3,)])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "h1"])
def test_several_tensors_and_frozen_stages(name, recompute, frozen):
    S, M = 4, 3
    x = (torch.arange(8) % 7, torch.arange(24, dtype=torch.float64).view(8, 3) / 9)
    y = (torch.linspace(0, 1, 8, dtype=torch.float64), torch.ones(8))
    model, whole = several(S, frozen), []
    for first, end in ((0, 3), (3, 6), (6, 8)):
        out = tuple(one[first:end] for one in x)
        for part in model:
            out = part(*out)
        loss = loss_of_several(out, tuple(one[first:end] for one in y)) * ((end - first) / 8)
        whole.append(loss)
        if loss.requires_grad:
            loss.backward()

    def program(comm):
        part = several(S, frozen)[comm.rank]
        pipeline = Pipeline(part, comm, SCHEDULES[name], loss_of_several, recompute=recompute)
        for _ in range(2):
            for p in part.parameters():
                p.grad = None
            losses = pipeline.step(M, x, y)
        return losses, {f"{comm.rank}.{name}": p.grad for name, p in part.named_parameters()}

    results = World(S).run(program)
    _, found = together(
        [(losses if r == S - 1 else None, grads) for r, (losses, grads) in enumerate(results)]
    )
    for key, p in model.named_parameters():
        assert (p.grad is None) == (found[key] is None), key
        assert p.grad is None or torch.allclose(p.grad, found[key], rtol=1e-13, atol=1e-15), key


def test_micro_batches_of_different_lengths():
    """Given as lists; their shares are by samples."""
    sizes = (2, 5, 1)
    xs, ys = [data(n)[0] for n in sizes], [data(n)[1] for n in sizes]
    model = layers(2)
    for x, y in zip(xs, ys, strict=True):
        (mse(model(x), y) * (len(x) / 8)).backward()
    results = World(2).run(run, one_f_one_b, 3, (xs, ys))
    assert difference(together(results)[1], model) == 0


def test_batches_of_other_sizes_follow_each_other():
    """Another M, another batch, the first again: layouts are told once for each, and hold."""

    def program(comm):
        part = own(comm, layers(comm.size), 1)[0]
        pipeline, found = Pipeline(part, comm, one_f_one_b, mse), []
        for samples, M in ((8, 4), (9, 4), (9, 2), (8, 4), (9, 4)):
            part.zero_grad()
            pipeline.step(M, *data(samples))
            found.append({f"{comm.rank}.{name}": p.grad for name, p in part.named_parameters()})
        return found

    results = World(3).run(program)
    for i, (samples, M) in enumerate(((8, 4), (9, 4), (9, 2), (8, 4), (9, 4))):
        model = layers(3)
        serial(model, *data(samples), M)
        assert (
            difference(functools.reduce(dict.__or__, (found[i] for found in results)), model) == 0
        )


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_messages(name):
    """A step: each activation and each gradient once, and one message of 24 bytes to each stage but the first."""
    S = 3
    M = 6
    v = cases.chunks_of(name)
    batch = data(12)
    once, twice = (World(S).run(run, SCHEDULES[name], M, batch, v, steps).trace for steps in (1, 2))
    first, both = [m.label for m in once], list(twice)
    steady = both[len(first) :]
    labels = sorted(m.label for m in steady)
    edges = S * v - 1
    assert len(steady) == 2 * M * edges + S - 1
    assert sum(m.nbytes for m in steady if m.label == "a step") == 24 * (S - 1)
    assert labels.count("a step") == S - 1 and not any(
        label.startswith("layout") for label in labels
    )
    assert (
        sum(label.startswith("F") for label in labels)
        == sum(label.startswith("B") for label in labels)
        == M * edges
    )
    assert sum(label.startswith("layout F") for label in first) == 2 * M * edges, (
        "length and layout, once"
    )


def test_labels_name_the_action_that_made_the_message():
    trace = World(2).run(run, SCHEDULES["interleaved"], 2, data(4), 2).trace
    sent = {(m.src, m.label) for m in trace if m.label[0] in "FB" and "layout" not in m.label}
    assert sent == {
        (0, "F0"),
        (0, "F1"),
        (1, "F0"),
        (1, "F1"),
        (0, "F0.1"),
        (0, "F1.1"),
        (1, "B0.1"),
        (1, "B1.1"),
        (0, "B0.1"),
        (0, "B1.1"),
        (1, "B0"),
        (1, "B1"),
    }


class Counting(Pipeline):
    """Hears of every action; updates are its own."""

    def update(self, action):
        self.updates.append(action)

    def check(self, every, shape):
        self.updates = []


def test_an_action_is_a_method():
    every = [parse("F0 F1 B0 U0 B1 U1"), parse("F0 B0 F1 B1 U1")]

    def program(comm):
        pipeline = Counting(own(comm, layers(2), 1)[0], comm, lambda stage, S, M: every[stage], mse)
        pipeline.step(2, *data(4))
        with pytest.raises(ValueError, match=r"U0: .* no updates"):
            Pipeline.update(pipeline, Action("U", 0))
        return pipeline.updates, [action for action, *_ in pipeline.spans]

    (first, spans), (second, _) = World(2).run(program)
    assert first == parse("U0 U1") and second == parse("U1") and spans == parse("F0 F1 B0 B1")


def test_spans_are_in_order():
    def program(comm):
        pipeline = Pipeline(own(comm, layers(2), 1)[0], comm, gpipe, mse)
        pipeline.step(3, *data(6))
        return pipeline.spans

    for stage, spans in enumerate(launch(program, 2)):
        assert [action for action, *_ in spans] == gpipe(stage, 2, 3)
        times = [t for _, start, end in spans for t in (start, end)]
        assert times == sorted(times)


def wrong(**changes):
    """What a step of two stages raises."""

    def program(comm):
        v = changes.get("v", (1, 1))[comm.rank]
        loss_fn = changes.get("loss_fn", mse)
        pipeline = Pipeline(
            own(comm, layers(6), v),
            comm,
            changes.get("schedule", one_f_one_b),
            loss_fn,
            ahead=changes.get("ahead", 1),
        )
        x, y = changes.get("x", data(6)[0]), changes.get("y", data(6)[1])
        pipeline.step(changes.get("M", (2, 2))[comm.rank], x, y)

    return lambda: World(2).run(program)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(M=(7, 7)), "6 samples does not make 7 micro-batches"),
        (dict(M=(2, 3)), "M = 3, but stage 0 M = 2"),
        (dict(x=None), "inputs are missing"),
        (dict(y=None), "targets are missing"),
        (dict(y=data(5)[1]), "6 samples, the last 5 targets"),
        (dict(x=(data(6)[0], data(4)[0])), "4 and 6 samples"),
        (dict(x=[data(6)[0]] * 3), "a list of 3 micro-batches was given, and 2"),
        (dict(x=torch.tensor(1.0)), "0 dimensions"),
        (dict(loss_fn=None), "needs a loss_fn"),
        (dict(loss_fn=lambda y, target: y.mean(0)), r"gave \(\d,\) float64: it must be the mean"),
        (dict(v=(1, 2)), "rank 0 has 1 chunks of the model, rank 1 has 2"),
        (dict(schedule=lambda stage, S, M: one_f_one_b(0, S, M)[:-1]), "ends without"),
        (
            dict(schedule=lambda stage, S, M: one_f_one_b(stage, S, M + 1)),
            "no micro-batch 2, only 0 to 1",
        ),
        (dict(schedule=lambda stage, S, M: [Action("B", 0), Action("F", 0)], M=(1, 1)), "needs F0"),
        (dict(M=(0, 0)), "at least 1 .*, not 0"),
        (dict(M=(1.5, 1.5)), r"at least 1 micro-batch, not 1\.5"),
        (dict(ahead=-3), "at least 0 receives are posted ahead, not -3"),
    ],
)
def test_what_cannot_be(changes, words):
    with pytest.raises(ValueError, match=words):
        wrong(**changes)()


def test_a_schedule_that_waits_in_a_circle():
    every = [parse("F0 B0 F1 B1"), parse("F1 B1 F0 B0")]
    with pytest.raises(ScheduleError, match=r"stage [01], position 0"):
        wrong(schedule=lambda stage, S, M: every[stage])()


def test_stages_pass_tensors():
    class Pair(nn.Module):
        def forward(self, x):
            return x, "a word"

    with pytest.raises(TypeError, match="not str"):
        World(2).run(lambda comm: Pipeline(Pair(), comm, gpipe, mse).step(1, *data(2)))


def test_a_model_that_changes():
    """A stage is frozen after the first step: its neighbour expects what was told, and forget() tells it anew."""

    def program(comm, forget):
        part = own(comm, layers(2), 1)[0]
        pipeline = Pipeline(part, comm, gpipe, mse)
        pipeline.step(2, *data(4))
        before = [p.grad.clone() for p in part.parameters()]
        if comm.rank == 0:
            part.requires_grad_(False)
        if forget:
            pipeline.forget()
        part.zero_grad()
        pipeline.step(2, *data(4))
        return before, [p.grad for p in part.parameters()]

    with pytest.raises(ValueError, match=r"F0 gave .* forget"):
        World(2).run(program, False)
    (_, first), (before, after) = World(2).run(program, True)
    assert first == [None, None] and all(
        torch.equal(a, b) for a, b in zip(before, after, strict=True)
    )
