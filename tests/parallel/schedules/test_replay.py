"""The replay of messages says of a schedule what a World says when ranks really send and receive by it."""

import random

import pytest
import torch

from minidist.comm import Deadlock, World
from minidist.parallel.schedules import (
    ScheduleError,
    gpipe,
    interleaved,
    lists,
    naive,
    one_f_one_b,
    parse,
    validate,
    zb_h1,
)
from minidist.parallel.schedules.flow import Shape
from minidist.parallel.schedules.replay import MODELS
from minidist.parallel.schedules.work import check_work

START = {"1f1b": one_f_one_b, "gpipe": gpipe, "naive": naive, "zb_h1": zb_h1}


def follow(comm, lists, v, model):
    """A stage that does nothing but pass the messages of its list on: one number each, labelled."""
    S, stage = comm.size, comm.rank
    pairs = [(a, b, what) for a in range(S) for b in range(S) for what in "ag" if a != b]
    apart = model != "stream"
    edges = {
        pair: comm.split([0 if r in pair[:2] else None for r in range(S)]) if apart else None
        for pair in pairs
    }
    into, out = messages(lists, v)
    sends = []
    order = {pair: list(out[pair].values()) for pair in pairs}
    came = set()

    def lane(pair):
        """The Comm for a message, and the other side's rank in it."""
        return (
            (edges[pair], 1 - edges[pair].rank)
            if apart
            else (comm, pair[0] if stage == pair[1] else pair[1])
        )

    def receive(pair, label):
        through, peer = lane(pair)
        through.recv(torch.zeros(1), peer, label=label)

    for position in range(len(lists[stage])):
        for pair in pairs:
            label = into[pair].get(position) if pair[1] == stage else None
            while label and model == "mailbox" and label not in came:
                came.add(order[pair][0])
                receive(pair, order[pair].pop(0))
            if label and model != "mailbox":
                receive(pair, label)
        for pair in pairs:
            if pair[0] == stage and position in out[pair]:
                through, peer = lane(pair)
                sends.append(through.isend(torch.zeros(1), peer, label=out[pair][position]))
    for work in sends:
        work.wait()


def messages(lists, v):
    """For each (sender, receiver, direction), {position in the list: label} of what is received, and what is sent."""
    S = len(lists)
    into, out = (
        {(a, b, what): {} for a in range(S) for b in range(S) for what in "ag"} for _ in range(2)
    )
    for stage, actions in enumerate(lists):
        for position, (kind, micro, chunk) in enumerate(actions):
            part, what, step = chunk * S + stage, *(("a", 1) if kind == "F" else ("g", -1))
            if 0 <= part - step < S * v and kind != "W":
                into[(part - step) % S, stage, what][position] = f"{what} {micro} {part}"
            if 0 <= part + step < S * v and kind != "W":
                out[stage, (part + step) % S, what][position] = f"{what} {micro} {part + step}"
    return into, out


def in_a_world(actions, v, model):
    """What becomes of the lists: "runs", "deadlock" or "order", where messages come in another order."""
    try:
        World(len(actions), ordered=model == "stream").run(follow, actions, v, model)
    except Deadlock:
        return "deadlock"
    except Exception as error:
        return "order" if "labelled" in str(error) else repr(error)
    return "runs"


def in_the_replay(actions, v, model):
    try:
        validate(actions, v=v, comm=model)
    except ScheduleError as error:
        return "deadlock" if "deadlock" in error.why else "order"
    return "runs"


def mixed(schedule, S, M, swaps, seed):
    """The lists of a schedule with some neighbours exchanged, still with each stage's own order right."""
    draw, result = random.Random(seed), lists(schedule, S, M)
    v = 1 + max(a.chunk for a in result[0])
    while swaps:
        stage = draw.randrange(S)
        at = draw.randrange(len(result[stage]) - 1)
        other = [list(row) for row in result]
        other[stage][at : at + 2] = reversed(other[stage][at : at + 2])
        try:
            check_work(other, Shape(S, M, v))
        except ScheduleError:
            continue
        result, swaps = other, swaps - 1
    return result, v


@pytest.mark.parametrize("model", MODELS)
def test_as_in_a_world(model):
    seen = []
    for seed in range(40):
        name = sorted(START)[seed % 4]
        actions, v = mixed(START[name], 2 + seed % 2, 3, seed % 5, seed)
        said = in_the_replay(actions, v, model)
        assert said == in_a_world(actions, v, model), (name, actions)
        seen.append(said)
    every = {"runs", "deadlock", "order"} - ({"order"} if model == "mailbox" else set())
    assert {*seen} == every  # so that each answer was compared


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("S", [2, 3])
def test_chunks_as_in_a_world(S, model):
    for seed in range(6):
        actions, v = mixed(interleaved, S, S, seed, seed)
        assert in_the_replay(actions, v, model) == in_a_world(actions, v, model), actions


def test_an_activation_may_overtake_a_gradient():
    """Stage 0 sends the gradient of B0.1 before the activation of F1.1; stage 1 takes them the other way round."""
    row = "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1"
    actions = [parse(row)] * 2
    assert in_the_replay(actions, 2, "channels") == in_a_world(actions, 2, "channels") == "runs"


def test_1f1b_hangs_in_one_stream():
    with pytest.raises(ScheduleError) as error:
        validate(lists(one_f_one_b, 2, 3), comm="stream")
    assert str(error.value) == (
        "stage 0, position 1, F1: deadlock in a circle: stage 0 must send the activation of micro-batch 1 to stage 1; "
        "stage 1 must send the gradient of micro-batch 0 to stage 0"
    )
    for schedule in (naive, gpipe):
        validate(lists(schedule, 4, 8), comm="stream")


def test_no_such_model():
    with pytest.raises(ValueError, match="mailbox, channels, stream, not as 'streams'"):
        validate(lists(naive, 2, 2), comm="streams")
