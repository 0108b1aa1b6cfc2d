"""Every schedule on real stages gives the gradient of a serial loop, bit for bit, in the time and memory that lists say."""

import functools
import itertools
import random
import weakref

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.comm.cluster import Cluster, Device
from minidist.models import gpt, mlp, next_token_loss, sequence
from minidist.parallel.pipeline import (
    Activations,
    Messages,
    Pipeline,
    Ties,
    as_tuple,
    by_count,
    by_parameters,
    by_time,
    forward,
    micro_batches,
    naive_step,
    partition,
    plan,
    shares,
)
from minidist.parallel.schedules import (
    Action,
    Item,
    Shape,
    activations_kept,
    gpipe,
    in_flight,
    interleaved,
    lists,
    naive,
    one_f_one_b,
    parse,
    zb_h1,
    zb_h2,
    zb_v,
)
from minidist.parallel.validate import ScheduleError
from minidist.study import measure
from minidist.study.predict import bubble
from tests.largest import smallest
from tests.one_thread import _one_thread  # noqa: F401
from tests.parallel import pipeline_cases as cases
from tests.parallel.pipeline_cases import (
    SCHEDULES,
    chunks_of,
    data,
    difference,
    gradients,
    layers,
    mse,
    own,
    run,
    serial,
    together,
)
from tests.size import FULL

# ------------------------------------------------------------
# Every schedule on real stages gives the gradient of a serial loop, bit for bit.


TRANSPORTS = {"processes": "shm", "gloo": "gloo"}
SIZES = [(1, 1), (1, 3), (2, 1), (2, 4), (3, 2), (3, 6), (4, 8), (5, 10)]
if FULL:
    SIZES = [(S, M) for S in range(1, 9) for M in range(1, 17)]


FITTING = [
    (name, *size) for name, size in itertools.product(SCHEDULES, SIZES) if cases.fits(name, *size)
]


@pytest.mark.parametrize(("name", "S", "M"), FITTING)
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
    split = {
        key: halves and draw.random() < 0.5 for key in itertools.product(range(M), range(S * v))
    }
    todo = []
    for stage, m, chunk, kind in itertools.product(range(S), range(M), range(v), "FBIW"):
        if kind == "F" or (kind in "IW") == split[m, shape.part(stage, chunk)]:
            todo.append((stage, Action(kind, m, chunk)))
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
    assert sum(label.startswith("layout F") for label in first) == M * edges, "once"


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


# ------------------------------------------------------------
# Messages: read from the lists, whole in any order of use, posted ahead, and over when an answer proves it.


EVERY = [parse("F1 F0 F2 B2 B0 B1"), parse("F0 F1 F2 B2 B0 B1")]


def test_positions():
    found = plan(EVERY, Shape(2, 3))
    assert [found.made["a", m, 0] for m in range(3)] == [1, 0, 2]
    assert [found.used["a", m, 0] for m in range(3)] == [0, 1, 2]
    assert [found.made["g", m, 1] for m in range(3)] == [4, 5, 3]
    assert set(found.used) == {
        Item(what, m, part) for what, part in (("a", 0), ("g", 1)) for m in range(3)
    }


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        (Shape(3, 1), ["a0 g1", "a0 g1 a1 g2", "a1 g2"]),
        (Shape(1, 1, 2), [""]),
        (Shape(2, 1, 2), ["a0 g1 a1 g2 a2 g3"] * 2),
        (Shape(2, 1, 2, "V"), ["a0 g1 a2 g3"] * 2),
    ],
)
def test_each_edge_and_direction_has_a_channel(shape, channels):
    """Made without a message; where two parts that follow each other are one stage's there is none."""

    def program(comm):
        return " ".join(f"{what}{part}" for what, part in Messages(comm, shape).channels)

    results = World(shape.S).run(program)
    assert list(results) == channels and results.trace.messages() == 0


def message(m):
    return [torch.full((m + 1, 2), float(m)), torch.tensor(m)]


def exchange(comm, order, use):
    """Stage 0 sends activations in one order, stage 1 uses them in another; twice. (Receives posted, tensors) of each."""
    every = [[*parse(" ".join(f"F{m}" for m in row))] for row in (order, use)]
    messages, found = Messages(comm, Shape(2, len(order))), []
    for _ in range(2):
        messages.begin(
            plan(every, Shape(2, len(order))),
            len(order),
            [(torch.zeros(1),)] * len(order) if comm.rank == 0 else None,
        )
        for m in order if comm.rank == 0 else use:
            if comm.rank == 0:
                messages.send(Item("a", m, 0), message(m), [True, False])
            else:
                found.append((len(messages._posted), *messages.receive(Item("a", m, 0))))
        messages.end()
    return found


@pytest.mark.parametrize("use", [[0, 2, 1, 3], [3, 1, 2, 0]])
def test_messages_come_whole_in_any_order_of_use(use):
    results = World(2).run(exchange, [0, 2, 1, 3], use)
    for m, (_, *tensors) in zip(use * 2, results[1], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors, message(m), strict=True))
        assert [(x.requires_grad, x.is_leaf) for x in tensors] == [(True, True), (False, True)]
    told = [message.nbytes for message in results.trace if message.label.startswith("layout")]
    assert told == [512] * 4, "in the first step alone"
    assert [len(row) for row in launch(exchange, 2, [0, 1], [1, 0])[1]] == [3] * 4


def test_one_receive_is_posted_ahead_as_soon_as_it_is_known_what_comes():
    results = World(2).run(exchange, [0, 1, 2, 3], [0, 1, 2, 3])
    assert [posted for posted, *_ in results[1]] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_send_is_started_and_not_waited_for():
    """The receiver begins after the sender has sent all."""

    def program(comm):
        aside, order = comm.split(0), range(4)
        every = [parse("F0 F1 F2 F3")] * 2
        messages = Messages(comm, Shape(2, 4))
        if comm.rank == 1:
            aside.recv(torch.zeros(1), 0)
        messages.begin(plan(every, Shape(2, 4)), 4, None if comm.rank else [(torch.zeros(1),)] * 4)
        if comm.rank == 1:
            return [messages.receive(Item("a", m, 0))[0].tolist() for m in order]
        for m in order:
            messages.send(Item("a", m, 0), [torch.full((2,), float(m))], [False])
        aside.send(torch.zeros(1), 1)
        return messages.end()

    assert World(2).run(program)[1] == [[m, m] for m in range(4)]


class WatchedSend:
    """A send; notes whether it was over when somebody began to wait for it."""

    def __init__(self, work, seen):
        self.work, self.seen = work, seen

    def wait(self):
        self.seen.append(self.work.done())
        self.work.wait()


def waits(comm, schedule, M, v):
    """Whether each send was over when it was waited for, before the end of the step."""
    pipeline, seen = Pipeline(own(comm, layers(comm.size * v), v), comm, schedule, mse), []
    for edge, channel in pipeline.messages.channels.items():
        if pipeline.shape.stage(edge[1]) == comm.rank:
            channel.batch = lambda ops, batch=channel.batch: WatchedSend(batch(ops), seen)
    for _ in range(2):
        pipeline.step(M, *data(M))
    known, end = [], pipeline.messages.end
    pipeline.messages.end = lambda: [known.extend(seen), end()]
    seen.clear()
    pipeline.step(M, *data(M))
    return known


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_send_is_waited_for_when_it_is_over(name):
    """All but the last few are, in the order that any list has."""
    M = 12
    for seen in World(3).run(waits, SCHEDULES[name], M, chunks_of(name)):
        assert all(seen)
        assert name in ("gpipe", "interleaved") or len(seen) >= M - 4


def test_kinds_of_batches():
    """Layouts are told when the batch is of another kind than the one before."""

    def program(comm):
        pipeline = Pipeline(own(comm, layers(2), 1)[0], comm, SCHEDULES["1f1b"], mse)
        for samples, M in ((8, 4), (8, 4), (9, 4), (9, 4), (9, 3), (8, 4)):
            pipeline.step(M, *data(samples))

    told = [m.label for m in World(2).run(program).trace if m.label.startswith("layout")]
    assert len(told) == 4 + 4 + 3 + 4


def test_too_many_tensors():
    def program(comm):
        many = torch.nn.Module()
        many.forward = lambda x: (x,) * 40
        Pipeline(many, comm, SCHEDULES["1f1b"], lambda y, target: y[0].mean()).step(1, *data(2))

    with pytest.raises(ValueError, match="40 tensors are too many to be told of in 512 bytes"):
        World(2).run(program)


def naive_gradients(comm, batch, M):
    part = own(comm, layers(comm.size), 1)[0]
    x, y = (whole.chunk(M) for whole in batch)
    losses = naive_step(part, comm, mse, x, y)
    return losses or None, {f"{comm.rank}.{name}": grad for name, grad in gradients(part).items()}


@pytest.mark.parametrize("S", [1, 2, 3, 4])
@pytest.mark.parametrize("M", [1, 4])
def test_the_naive_way(S, M):
    model, batch = layers(S), data(8)
    oracle = serial(model, *batch, M)
    losses, found = together(World(S).run(naive_gradients, batch, M))
    assert losses == oracle and difference(found, model) == 0
    if S == 2:
        assert difference(together(launch(naive_gradients, S, batch, M))[1], model) == 0


# ------------------------------------------------------------
# Micro-batches cover the batch, and their shares add up to it.


@pytest.mark.parametrize(
    ("samples", "M", "sizes"), [(8, 4, [2] * 4), (7, 3, [3, 2, 2]), (3, 3, [1] * 3), (5, 1, [5])]
)
def test_cut(samples, M, sizes):
    x, row = torch.arange(samples * 2.0).view(samples, 2), torch.arange(samples)
    parts = micro_batches((x, row), M, "inputs")
    assert [len(part[0]) for part in parts] == sizes == [len(part[1]) for part in parts]
    assert torch.equal(torch.cat([a for a, _ in parts]), x) and torch.equal(
        torch.cat([b for _, b in parts]), row
    )
    assert shares(parts) == [size / samples for size in sizes]


def test_shares_give_the_mean_of_the_batch():
    x = torch.randn(7, dtype=torch.float64)
    parts = micro_batches(x, 3, "inputs")
    mean = sum(part[0].mean() * share for part, share in zip(parts, shares(parts), strict=True))
    assert abs(mean - x.mean()) < 1e-15


def test_a_list_is_taken_as_it_is():
    parts = micro_batches([torch.zeros(2), (torch.zeros(5), torch.ones(5))], 2, "inputs")
    assert [len(part) for part in parts] == [1, 2] and shares(parts) == [2 / 7, 5 / 7]


def test_no_graph_comes_with_the_batch():
    x = torch.zeros(4, requires_grad=True) * 2
    assert not any(part[0].requires_grad for part in micro_batches(x, 2, "inputs"))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (torch.zeros(3), "3 samples does not make 4"),
        ([torch.zeros(1)] * 3, "list of 3 .* 4"),
        ((torch.zeros(4), torch.zeros(5)), "4 and 5"),
        (torch.tensor(1.0), "0 dimensions"),
    ],
)
def test_batches_that_cannot_be(batch, words):
    with pytest.raises(ValueError, match=words):
        micro_batches(batch, 4, "inputs")


def test_only_tensors_pass():
    assert as_tuple(torch.zeros(1))[0].shape == (1,) and len(as_tuple([torch.zeros(1)] * 2)) == 2
    with pytest.raises(TypeError, match="not int"):
        as_tuple((torch.zeros(1), 3))


# ------------------------------------------------------------
# What a stage keeps of a micro-batch: no more than it must, and for no longer.


WIDTH = 32


class Watched(nn.Module):
    """A layer whose activations are watched, and what it returns, which no graph needs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.most = 0
        self.most_sent = 0
        self.seen = []
        self.sent = []

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        self.seen.append(weakref.ref(y.untyped_storage()))  # tanh keeps its output for backward
        self.most, self.most_sent = (
            max(self.most, self.alive()),
            max(self.most_sent, alive(self.sent)),
        )
        out = y + 1
        self.sent.append(weakref.ref(out.untyped_storage()))
        return out

    def alive(self):
        return alive(self.seen)


def alive(references):
    return sum(reference() is not None for reference in references)


def flat(y, target):
    return (y - target).pow(2).mean()


def watched(comm, schedule, M, v=1, **kwargs):
    parts = [Watched() for _ in range(v)]
    pipeline = Pipeline(parts, comm, schedule, flat, **kwargs)
    x = torch.randn(2 * M, WIDTH)
    pipeline.step(M, x, x)
    del pipeline.activations
    return pipeline.peak, sum(part.most for part in parts), [part.alive() for part in parts]


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "h1", "h2"])
def test_activations_go_with_their_backward(name):
    """Those that the weights' half needs not, with the input's half."""
    S, M = 3, 7
    for stage, (peak, most, left) in enumerate(World(S).run(watched, SCHEDULES[name], M)):
        actions = SCHEDULES[name](stage, S, M)
        assert (
            peak == in_flight(actions)
            and most == max(activations_kept(actions, rest=0))
            and left == [0]
        )


def sent_at_once(comm, names, M):
    """{schedule: the most outputs of this stage that were alive at the beginning of a forward}."""
    found, x = {}, torch.randn(2 * M, WIDTH)
    for name in names:
        part = Watched()
        Pipeline(part, comm, SCHEDULES[name], flat).step(M, x, x)
        found[name] = part.most_sent
    return found


@pytest.mark.parametrize("transport", ["world", "shm", "gloo"])
def test_what_was_sent_goes_when_it_is_answered(transport):
    """Not at the end of the step, and not with a weights' half that comes late."""
    names, M = ["1f1b", "h1", "h2"], 12
    results = (
        World(3).run(sent_at_once, names, M)
        if transport == "world"
        else launch(sent_at_once, 3, names, M, transport=transport)
    )
    for stage, found in enumerate(results[:-1]):
        for name, most in found.items():
            assert most <= max(activations_kept(SCHEDULES[name](stage, 3, M), rest=0)) < M


def test_chunks_count_each():
    S, M = 2, 6
    for stage, (peak, most, left) in enumerate(World(S).run(watched, interleaved, M, 2)):
        assert (
            peak == in_flight(interleaved(stage, S, M))
            and peak <= most <= peak + 1
            and left == [0, 0]
        )


def test_recomputation_keeps_one_graph_at_a_time():
    for peak, most, left in World(3).run(watched, gpipe, 7, recompute=True):
        assert peak == 7 and most == 1 and left == [0]


def peaks(schedule, M, recompute=False):
    """Most live bytes of each of 3 ranks, in a step of M micro-batches of 64 samples."""

    def program(comm):
        part = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(3)))
        pipeline = Pipeline(part, comm, schedule, flat, recompute=recompute)
        empty = [torch.empty(64, WIDTH)] * M  # the batch is not the pipeline's
        pipeline.step(M, empty, empty)
        pipeline.step(M, empty, empty)

    trace = World(3, meter=True).run(program).trace
    return [trace.memory[rank].peak for rank in range(3)]


def test_1f1b_needs_no_more_memory_for_more_micro_batches():
    """Nor do messages pile up: what was sent goes when it is known to have come."""
    few, many = peaks(one_f_one_b, 8), peaks(one_f_one_b, 26)
    assert all(b - a < 24 * 64 for a, b in zip(few, many, strict=True)), "losses only"
    few, many = peaks(gpipe, 6), peaks(gpipe, 24)
    activation = 64 * WIDTH * 4
    assert all(b - a >= 18 * 6 * activation for a, b in zip(few, many, strict=True)), (
        "6 activations a micro-batch"
    )


def test_zero_bubble_keeps_more_than_1f1b_on_the_last_stage_only_as_said():
    one, h1, h2 = (peaks(schedule, 12) for schedule in (one_f_one_b, zb_h1, zb_h2))
    assert one[2] < h1[2] < h2[2] and one[0] < h2[0]


def test_recomputation_keeps_inputs_only():
    activation = 64 * WIDTH * 4
    whole, less = peaks(gpipe, 12), peaks(gpipe, 12, recompute=True)
    assert all(a - b > 11 * 4 * activation for a, b in zip(whole, less, strict=True))


class Drops(nn.Module):
    """Random numbers, running averages, and a count."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, dtype=torch.float64)
        self.norm, self.drop = nn.BatchNorm1d(outputs, dtype=torch.float64), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(torch.relu(self.linear(x))))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "h1", "interleaved"])
def test_recomputation_repeats_the_forward(name):
    """Same random numbers, running averages counted once, and the program's own random numbers go on as they would."""

    def program(comm, recompute):
        torch.manual_seed(comm.rank)
        v = 2 if name == "interleaved" else 1
        widths = [5, *[4] * (comm.size * v - 1), 3]
        mine = own(comm, nn.ModuleList(Drops(a, b) for a, b in itertools.pairwise(widths)), v)
        pipeline = Pipeline(mine, comm, SCHEDULES[name], mse, recompute=recompute)
        losses = [pipeline.step(4, *data(13)) for _ in range(2)]
        return [[gradients(m), dict(m.named_buffers())] for m in mine], losses, torch.rand(3)

    plain, again = (World(2).run(program, recompute) for recompute in (False, True))
    for (parts, losses, drawn), (others, losses_again, drawn_again) in zip(
        plain, again, strict=True
    ):
        assert torch.equal(drawn, drawn_again) and losses == losses_again
        for part, other in zip(parts, others, strict=True):
            for ours, theirs in zip(part, other, strict=True):
                assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_recomputation_runs_forward_once_more():
    x = torch.randn(4, 8, requires_grad=True)
    part = nn.Linear(8, 8)
    run = lambda x: (part(x),)

    def both(again):
        passed = Activations(run, [x], again)
        passed.outputs = ()
        passed.backward([torch.ones(4, 8)])

    assert measure(both, None).flops == 3 * 2 * 4 * 64
    assert measure(both, part).flops == 4 * 2 * 4 * 64


def test_an_input_that_is_not_used_gets_zeros():
    x, z = (torch.ones(2, requires_grad=True) for _ in range(2))
    for half in (Activations.backward, Activations.backward_input):
        found = half(Activations(lambda x, z: (x * 2,), [x, z]), [torch.ones(2)])
        assert torch.equal(found[1], torch.zeros(2)) and torch.equal(
            found[0], torch.full((2,), 2.0)
        )
        x.grad = None


def test_layers_are_not_kept_by_the_pipeline():
    """After a step nothing holds the batch's activations."""

    def program(comm):
        part = own(comm, layers(2), 1)[0]
        pipeline = Pipeline(part, comm, one_f_one_b, mse)
        pipeline.step(3, *data(6))
        return len(pipeline.activations)

    assert World(2).run(program) == [0, 0]


# ------------------------------------------------------------
# Steps on a World's clock: the formulas' bubbles, messages hidden behind computation, tensors without data.


SIDE, ROWS = 64, 16  # a forward of a part is 2·ROWS·WIDTH² FLOPs: 2·ROWS seconds on this device


class Part(nn.Module):
    """One product, behind a parameter that wants its input's gradient: so all parts take the same times."""

    def __init__(self):
        super().__init__()
        self.shift, self.linear = nn.Parameter(torch.zeros(SIDE)), nn.Linear(SIDE, SIDE)

    def forward(self, x):
        return self.linear(x + self.shift)


def loss(y, target):
    return ((y - target) ** 2).mean()


def stepped(comm, schedule, M, v=1):
    pipeline = Pipeline([Part().to(comm.device) for _ in range(v)], comm, schedule, loss)
    x = torch.zeros(ROWS * M, SIDE, device=comm.device)
    for _ in range(2):
        pipeline.step(M, x, x)
    return pipeline.spans


def world(S, alpha=1e-9):
    device = Device("products take time", {torch.float32: float(SIDE**2)}, 1 << 30, 1e30)
    return World(S, cluster=Cluster.uniform(S, alpha, 1e-30, device), device="meta")


def time_and_bubble(spans):
    """Seconds from the first forward to the last action, and the share of it in which stages wait."""
    time = max(end for rank in spans for *_, end in rank) - min(
        start for rank in spans for _, start, _ in rank
    )
    busy = sum(end - start for rank in spans for _, start, end in rank)
    return time, 1 - busy / len(spans) / time


@pytest.mark.parametrize(
    ("name", "schedule", "v"),
    [
        ("naive", naive, 1),
        ("gpipe", gpipe, 1),
        ("one_f_one_b", one_f_one_b, 1),
        ("interleaved", interleaved, 2),
        ("zb_h1", zb_h1, 1),
    ],
)
@pytest.mark.parametrize(("S", "M"), [(1, 2), (2, 4), (4, 8)])
def test_the_bubble_of_the_formula(name, schedule, v, S, M):
    spans = world(S).run(stepped, schedule, M, v)
    time, waits = time_and_bubble(spans)
    assert waits == pytest.approx(bubble(name, S, M, v), abs=1e-6)
    assert time * (1 - waits) == pytest.approx(M * v * 3 * 2 * ROWS, rel=1e-6), (
        "three products for each F and its B"
    )


def test_messages_hide_behind_the_computation():
    """With a message as long as half a forward: posted ahead it is hidden in the steady state."""
    alpha, M = ROWS, 16
    time, _ = time_and_bubble(world(2, alpha).run(stepped, gpipe, M))
    compute = M * 6 * ROWS
    assert time < compute + 12 * ROWS


def test_backward_and_its_halves_take_the_times_of_their_products():
    spans = world(2).run(stepped, zb_h1, 2)
    lengths = {
        action.kind: round((end - start) / (2 * ROWS), 6)
        for rank in spans
        for action, start, end in rank
    }
    assert lengths == {"F": 1, "I": 1, "W": 1}
    spans = world(2).run(stepped, gpipe, 2)
    lengths = {
        action.kind: round((end - start) / (2 * ROWS), 6)
        for rank in spans
        for action, start, end in rank
    }
    assert lengths == {"F": 1, "B": 2}


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_without_data(name):
    """On meta tensors: the same messages."""
    v = cases.chunks_of(name)

    def program(comm):
        mine = [nn.Linear(4, 4, device=comm.device) for _ in range(v)]
        tied = {"bias": mine[0].bias}
        pipeline = Pipeline(
            mine, comm, cases.SCHEDULES[name], loss, recompute=name == "gpipe", tied=tied
        )
        x = torch.empty(9, 4, device=comm.device)
        losses = pipeline.step(4, x, x)
        return pipeline.peak, losses if losses is None else len(losses), mine[0].weight.grad.shape

    labels = []
    for device in ("meta", "cpu"):
        results = World(2, device=device).run(program)
        labels.append(sorted((m.src, m.dst, m.label, m.nbytes) for m in results.trace if m.label))
        assert [losses for _, losses, _ in results] == [None, 4]
    assert labels[0] == labels[1]


# ------------------------------------------------------------
# Forward through the stages alone: the serial outputs, wherever the parts are, and few messages.


RUNS = {
    "world": lambda n, *args: World(n).run(*args),
    "processes": lambda n, forward_program, *args: launch(forward_program, n, *args),
}
FORWARD_SIZES = [5, 7, 4, 6, 3, 8, 2]  # six linear layers


def forward_program(comm, x, v, place):
    layers = [
        layer for layer in mlp(FORWARD_SIZES, dtype=torch.float64) if isinstance(layer, nn.Linear)
    ]
    shape = Shape(comm.size, 1, v, place)
    per = len(layers) // (comm.size * v)
    parts = [nn.Sequential(*layers[shape.part(comm.rank, c) * per :][:per]) for c in range(v)]
    schedule = {
        1: one_f_one_b,
        2: zb_v if place == "V" else interleaved,
        3: lambda *a: interleaved(*a, v=3),
    }[v]
    pipeline = Pipeline(parts, comm, schedule, lambda y, target: y.mean(), place=place)
    found = [forward(pipeline, part if pipeline.first_stage else None) for part in x.split([1, 4])]
    assert all(y is None or not y.requires_grad for y in found)
    return None if found[0] is None else torch.cat(found)


@pytest.mark.parametrize(
    ("run", "S", "v", "place"),
    [
        ("world", 1, 1, "loop"),
        ("world", 3, 1, "loop"),
        ("world", 3, 2, "loop"),
        ("world", 3, 2, "V"),
        ("world", 2, 3, "loop"),
        ("processes", 2, 1, "loop"),
    ],
)
def test_the_serial_outputs(run, S, v, place):
    x = torch.randn(5, 5, dtype=torch.float64)
    y = x
    for layer in mlp(FORWARD_SIZES, dtype=torch.float64):
        y = layer(y) if isinstance(layer, nn.Linear) else y
    end = Shape(S, 1, v, place).stage(S * v - 1)
    for rank, found in enumerate(RUNS[run](S, forward_program, x, v, place)):
        assert (found is None) == (rank != end)
        assert rank != end or (found - y).abs().max() < 1e-14


def test_two_messages_an_edge():
    world = World(3)
    world.run(forward_program, torch.randn(5, 5, dtype=torch.float64), 1, "loop")
    sent = [m for m in world.trace if m.label == "forward"]
    assert [(m.src, m.dst, m.nbytes) for m in sent if m.src == 0] == [
        (0, 1, 4 * 8),
        (0, 1, 4 * 4 * 8),
    ]
    assert (
        len(sent) == 4 == len([m for m in world.trace if m.label == "layout" and m.nbytes == 512])
    )


# ------------------------------------------------------------
# Tied parameters: equal at the start, their gradients summed once over the stages that hold them.


SHAPE = dict(layers=3, hidden=8, heads=2, vocab=13, context=6, dtype=torch.float64)


def batch():
    random = torch.Generator().manual_seed(0)
    return [torch.randint(0, 13, (5, 6), generator=random) for _ in range(2)]


def train(comm, schedule, v, steps):
    """A GPT in S·v parts, started from other seeds on every rank but for what is tied: it becomes rank 0's."""
    parts = sequence(gpt(**SHAPE))
    mine = [
        parts[first:end]
        for first, end in partition([1] * len(parts), comm.size * v)[comm.rank :: comm.size]
    ]
    tables = [p for p in nn.ModuleList(mine).parameters() if p.shape == (13, 8)]
    tied = dict(zip(["tokens"], tables, strict=False))
    if comm.rank:
        for p in tied.values():
            p.data.mul_(2)
    pipeline = Pipeline(mine, comm, schedule, next_token_loss, tied=tied)
    parameters = {id(p): p for chunk in mine for p in chunk.parameters()}.values()
    optimizer = torch.optim.SGD(parameters, lr=0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):  # gradients of two batches accumulate
            pipeline.step(2 * comm.size, *(x.repeat(2, 1) for x in batch()))
        optimizer.step()
    return {
        name: p.detach()
        for chunk in mine
        for name, p in chunk.named_parameters(remove_duplicate=False)
    }


def oracle(M, steps):
    model = gpt(**SHAPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    x, y = (x.repeat(2, 1) for x in batch())
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            for a, b in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
                (next_token_loss(model(a), b) * (len(a) / len(x))).backward()
        optimizer.step()
    return dict(sequence(model).named_parameters(remove_duplicate=False))


@pytest.mark.parametrize(
    ("transport", "n", "schedule", "v"),
    [
        ("world", 1, one_f_one_b, 1),
        ("world", 1, interleaved, 2),
        ("world", 2, interleaved, 2),
        ("world", 2, gpipe, 1),
        ("world", 3, zb_h1, 1),
        ("world", 4, one_f_one_b, 1),
        ("world", 5, zb_h1, 1),
        ("processes", 3, one_f_one_b, 1),
    ],
)
def test_the_serial_steps(transport, n, schedule, v):
    results = (
        World(n).run(train, schedule, v, 3)
        if transport == "world"
        else launch(train, n, schedule, v, 3, transport=TRANSPORTS[transport])
    )
    expected, seen = oracle(2 * n, 3), set()
    for found in results:
        seen |= set(found)
        for name, p in found.items():
            assert (p - expected[name]).abs().max() < 1e-12, name
    assert seen == set(expected)
    named = itertools.chain.from_iterable(found.items() for found in results)
    copies = [p for name, p in named if name.endswith("tokens.weight")]
    assert len(copies) == 2 and torch.equal(*copies), "both copies have taken the same steps"


def sums(comm, holders, grads, before=None, frozen=False):
    """What a rank's gradient is after Ties have begun and ended."""
    p = torch.nn.Parameter(torch.full((2,), float(comm.rank)), requires_grad=not frozen)
    tied = {"p": p} if comm.rank in holders else {}
    ties = Ties(comm, tied)
    if before is not None:
        p.grad = torch.full((2,), before)
    ties.begin()
    if grads[comm.rank] is not None:
        add = torch.full((2,), grads[comm.rank])
        p.grad = add if p.grad is None else p.grad + add
    ties.end()
    return p.detach()[0].item(), None if p.grad is None else p.grad[0].item()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_sums(n):
    grads = [float(2**r) for r in range(n)]
    everyone = range(n)
    assert World(n).run(sums, everyone, grads) == [(0.0, sum(grads))] * n
    assert World(n).run(sums, everyone, grads, 100.0) == [(0.0, 100 + sum(grads))] * n, (
        "not summed again"
    )


def test_some_hold_it_and_some_have_no_gradient():
    assert World(4).run(sums, [1, 3], [1.0, None, 4.0, 8.0]) == [
        (0.0, 1.0),
        (1.0, 8.0),
        (2.0, 4.0),
        (1.0, 8.0),
    ]
    assert World(2).run(sums, [0, 1], [None, None], frozen=True) == [(0.0, None), (0.0, None)]


def test_two_names_are_two_sums():
    def program(comm):
        tied = {name: torch.nn.Parameter(torch.zeros(3)) for name in ("aé", "b")[: comm.rank + 1]}
        ties = Ties(comm, tied)
        ties.begin()
        for name, p in tied.items():
            p.grad = torch.full((3,), 1.0 if name == "b" else 10.0)
        ties.end()
        return {name: p.grad[0].item() for name, p in tied.items()}

    assert World(2).run(program) == [{"aé": 20.0}, {"aé": 20.0, "b": 1.0}]


def test_shapes_that_do_not_match():
    def program(comm):
        tied = {"p": torch.zeros(2 + comm.rank)}
        Ties(comm, tied)

    with pytest.raises(
        ValueError, match=r"p is tied, but \(2,\) float32 on rank 0 and \(3,\) float32 on rank 1"
    ):
        World(2).run(program)


# ------------------------------------------------------------
# The best contiguous partition, beside all that there are.


def every_partition(L, S):
    for cuts in itertools.combinations(range(1, L), S - 1):
        yield list(zip([0, *cuts], [*cuts, L], strict=True))


def largest(costs, parts):
    return max(sum(costs[first:end]) for first, end in parts)


@pytest.mark.parametrize("kind", ["whole", "real", "zeros", "one large"])
def test_no_partition_is_better(kind):
    draw = random.Random(kind)
    for _ in range(40):
        L = draw.randint(1, 9)
        costs = {
            "whole": [draw.randint(1, 9) for _ in range(L)],
            "real": [draw.random() for _ in range(L)],
            "zeros": [draw.choice([0, 0, 3]) for _ in range(L)],
            "one large": [draw.choice([1, 50]) for _ in range(L)],
        }[kind]
        for S in range(1, L + 1):
            parts = partition(costs, S)
            assert parts in list(every_partition(L, S)), "contiguous, none empty, all layers"
            least = min(largest(costs, other) for other in every_partition(L, S))
            assert largest(costs, parts) == pytest.approx(least, rel=1e-12)


def test_by_hand():
    assert partition([1, 1, 1, 4, 1, 1, 1], 3) == [(0, 3), (3, 4), (4, 7)]
    assert partition([1] * 10, 4) == [(0, 2), (2, 4), (4, 7), (7, 10)]


@pytest.mark.parametrize(
    ("costs", "S", "words"),
    [
        ([1, 1], 3, "2 layers do not make 3"),
        ([1], 0, "1 layers do not make 0"),
        ([1, -2, 1], 2, "not -2"),
    ],
)
def test_partitions_that_cannot_be(costs, S, words):
    with pytest.raises(ValueError, match=words):
        partition(costs, S)


def test_parameters_and_count():
    parts = sequence(gpt(layers=2, hidden=8, heads=2, vocab=20, context=4))
    assert by_count(parts) == [1, 1, 1, 1]
    layer = 12 * 64 + 13 * 8
    assert by_parameters(parts) == [24 * 8, layer, layer, 20 * 8 + 2 * 8]


class Slow(nn.Module):
    """Many small products, forward and backward."""

    def __init__(self, times):
        super().__init__()
        self.times, self.weight = times, nn.Parameter(torch.eye(64))

    def forward(self, x):
        for _ in range(self.times):
            x = torch.tanh(x @ self.weight)
        return x


def test_time_is_measured():
    model = nn.Sequential(Slow(1), Slow(60), Slow(1))
    costs = by_time(model, torch.randn(8, 64))
    assert len(costs) == 3 and smallest(costs) > 0
    assert costs[1] > 3 * max(costs[0], costs[2])


def test_measuring_leaves_no_trace():
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: b.clone() for name, b in model.named_buffers()}
    state = torch.get_rng_state()
    assert len(by_time(model, torch.arange(7))) == 4
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert all(p.grad is None for p in model.parameters())
