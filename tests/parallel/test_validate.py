"""Every schedule is one, for every S and M; and of a wrong one the first wrong action is named."""

import itertools
import pickle
import random
from functools import partial

import pytest
import torch

from minidist.comm import Deadlock, World
from minidist.parallel.schedules import (
    Action,
    Shape,
    gpipe,
    in_flight,
    interleaved,
    lists,
    naive,
    one_f_one_b,
    parse,
    pipedream,
    pipedream_2bw,
    zb_h1,
    zb_h2,
    zb_v,
)
from minidist.parallel.validate import (
    ScheduleError,
    check_work,
    forward_versions,
    held,
    staleness,
    validate,
)

# ------------------------------------------------------------
# The error: what it says, and that it passes between processes.


def test_what_it_says():
    error = ScheduleError(1, 2, Action("B", 3), "it is late")
    assert str(error) == "stage 1, position 2, B3: it is late" and isinstance(error, ValueError)
    assert (error.stage, error.position, error.action, error.why) == (
        1,
        2,
        Action("B", 3),
        "it is late",
    )


def test_it_survives_a_pickle():
    error = ScheduleError(1, 2, Action("B", 3), "it is late")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.action == error.action


# ------------------------------------------------------------
# Every schedule is one, for every S and M; and of a wrong one the first wrong action is named.


SIZES = list(itertools.product(range(1, 9), range(1, 17)))


@pytest.mark.parametrize("schedule", [naive, gpipe, one_f_one_b, zb_h1, zb_h2, pipedream])
def test_every_schedule_is_one(schedule):
    for S, M in SIZES:
        validate(lists(schedule, S, M), S, M)


@pytest.mark.parametrize("v", [1, 2, 3])
def test_every_interleaved_schedule_is_one(v):
    for S, M in SIZES:
        if M % S == 0:
            validate(lists(partial(interleaved, v=v), S, M), S, M, v)


def test_every_v_is_one():
    for S, M in SIZES:
        validate(lists(zb_v, S, M), S, M, 2, place="V")
        assert all(in_flight(each) <= 2 * S for each in lists(zb_v, S, M))
    with pytest.raises(ScheduleError, match="deadlock"):
        validate(lists(zb_v, 2, 4), 2, 4, 2)  # its chunks are not placed as a loop


def wrong(text, **options):
    """The error that `validate` raises for lists written with | between the stages."""
    with pytest.raises(ScheduleError) as error:
        validate([parse(row) for row in text.split("|")], **options)
    return error.value


def test_the_right_one_passes():
    validate([parse("F0 F1 B0 B1"), parse("F0 B0 F1 B1")], 2, 2)
    # whole and split backwards may be mixed
    validate([parse("F0 F1 I0 W0 B1"), parse("F0 B0 F1 I1 W1")], 2, 2)


@pytest.mark.parametrize(
    ("text", "stage", "position", "action", "why"),
    [
        # swapped
        ("F0 F1 B0 B1 | B0 F0 F1 B1", 1, 0, "B0", "it needs F0, which comes later in the list"),
        ("F0 F1 B0 B1 | F0 W0 I0 F1 B1", 1, 1, "W0", "it needs I0, which comes later in the list"),
        # missing
        ("F0 F1 B0 | F0 B0 F1 B1", 0, 3, "B1", "the list ends without this backward"),
        (
            "F0 F1 B0 B1 | F0 I0 F1 B1",
            1,
            4,
            "W0",
            "the list ends without this backward for the weights",
        ),
        ("F0 F1 B0 B1 | F0 B0 B1", 1, 2, "B1", "it needs F1, which is missing from the list"),
        ("F0 F1 B0 B1 | F0 W0 F1 B1", 1, 1, "W0", "it needs I0, which is missing from the list"),
        ("F0 B0 | F0 B0 F1 B1", 0, 2, "F1", "the list ends without this forward"),
        # twice
        ("F0 F1 F1 B0 B1 | F0 B0 F1 B1", 0, 2, "F1", "this forward was done before, by F1"),
        ("F0 F1 B0 B1 | F0 I0 W0 B0 F1 B1", 1, 3, "B0", "this backward was done before, by I0"),
        (
            "F0 F1 B0 B1 | F0 B0 I0 F1 B1",
            1,
            2,
            "I0",
            "this backward for the input was done before, by B0",
        ),
        # nobody can go on
        (
            "F0 B0 F1 B1 | F0 F1 B0 B1",
            0,
            1,
            "B0",
            "deadlock in a circle: stage 0 waits at B0 for the gradient of micro-batch 0 from stage 1; "
            "stage 1 waits at F1 for the activation of micro-batch 1 from stage 0",
        ),
        # unknown
        ("F0 F1 B0 B1 | F0 B0 F1.1 B1", 1, 2, "F1.1", "there is no chunk 1, only 0 to 0"),
    ],
)
def test_the_first_wrong_action_is_named(text, stage, position, action, why):
    error = wrong(text)
    assert (error.stage, error.position, str(error.action), error.why) == (
        stage,
        position,
        action,
        why,
    )
    assert str(error) == f"stage {stage}, position {position}, {action}: {why}"


def test_messages_in_another_order():
    """A stage that keeps what comes until it is wanted does not mind; on a stream it takes what comes next."""
    text = "F0 F1 B0 B1 | F1 F0 B0 B1"
    assert str(wrong(text, comm="stream")) == (
        "stage 1, position 0, F1: the next message that comes from stage 0 is that of its F0: messages "
        "arrive in the order they were sent"
    )
    validate([parse(row) for row in text.split("|")])


def test_the_earliest_of_several_is_named():
    assert wrong("F0 F1 B0 B0 | F0 B0 B1").stage == 1
    assert wrong("F0 F1 B0 | F0 B0 F1").stage == 0


def test_a_micro_batch_too_many():
    assert wrong("F0 F1 B0 B1 | F0 B0 F1 B1", M=1).why == "there is no micro-batch 1, only 0 to 0"
    assert (
        str(wrong("F0 B0 | F0 B0", M=2))
        == "stage 0, position 2, F1: the list ends without this forward"
    )


def test_an_unknown_kind():
    with pytest.raises(
        ScheduleError, match="stage 0, position 0, X0: there is no kind 'X', only F, B, I, W, U"
    ):
        validate([[Action("X", 0)]])


def test_a_deadlock_is_told_from_its_earliest_action():
    error = wrong("F0 F1 B0 F2 B1 B2 | F0 F2 B0 B2 F1 B1")
    assert (error.stage, error.position) == (1, 1)
    assert error.why == (
        "deadlock in a circle: stage 1 waits at F2 for the activation of micro-batch 2 from stage 0; "
        "stage 0 waits at B0 for the gradient of micro-batch 0 from stage 1"
    )


def test_deadlock_of_three_is_told_from_its_first_action():
    error = wrong("F0 B0 F1 B1 | F0 F1 B0 B1 | F0 F1 B0 B1")
    assert (error.stage, error.position) == (0, 1) and error.why.count("waits at") == 2


def test_what_a_stage_keeps():
    for S, M in SIZES:
        for schedule in (one_f_one_b, zb_h1):
            assert all(in_flight(each) <= S for each in lists(schedule, S, M))
    assert in_flight(parse("F0 F1 F2 B0 B1 B2")) == 3
    assert in_flight(parse("F0 F1 I0 F2 W0 I1 W1 I2 W2")) == 3


def test_weights_of_another_version():
    """1F1B without a flush: without stashing the second backward already meets new weights."""
    error = wrong("F0 F1 B0 U0 B1 U1 | F0 B0 U0 F1 B1 U1", stash=False)
    assert str(error) == (
        "stage 0, position 4, B1: its forward used version 0 of the weights, and without stashing it "
        "would use version 1"
    )
    for S, M in itertools.product((1, 2, 3, 8), (1, 2, 3, 5, 16)):
        validate(lists(pipedream, S, M), S, M, most=S)
        if S > 1 and M > 1:
            with pytest.raises(ScheduleError, match=r"B1: its forward used version 0"):
                validate(lists(pipedream, S, M), stash=False)
        if M >= 2 * S - 2 > 0:
            with pytest.raises(ScheduleError, match=f"U.*: with it the stage holds {S} versions"):
                validate(lists(pipedream, S, M), most=S - 1)


def test_a_version_that_is_not_made_yet():
    late = [parse("F0 F1 B0 B1 F2 B2 U2 F3 B3"), parse("F0 B0 F1 B1 F2 B2 U2 F3 B3")]
    with pytest.raises(
        ScheduleError, match="position 4, F2: it needs version 1 of the weights, and only version 0"
    ):
        validate(late, rule="2bw", group=1)


def test_two_versions_are_enough_for_2bw():
    for S in range(1, 9):
        for m in (S, S + 1):
            actions = lists(partial(pipedream_2bw, m=m), S, 4 * m)
            validate(actions, S, 4 * m, rule="2bw", group=m, most=2)
            if S > 1:
                with pytest.raises(ScheduleError, match="1 at most"):
                    validate(actions, S, 4 * m, rule="2bw", group=m, most=1)


@pytest.mark.parametrize(
    ("text", "place", "stage", "position", "action", "why"),
    [
        ("F0.1 F0 B0.1 B0", "loop", 0, 0, "F0.1", "it needs F0, which comes later in the list"),
        ("F0 F0.1 B0 B0.1", "loop", 0, 2, "B0", "it needs B0.1, which comes later in the list"),
        (
            "F0 F0.1 I0 I0.1 W0 W0.1",
            "loop",
            0,
            2,
            "I0",
            "it needs I0.1, which comes later in the list",
        ),
        ("F0 F0.1 B0", "loop", 0, 2, "B0", "it needs B0.1, which is missing from the list"),
        ("F0 F0.1 B0.1 B0 | F0.1 F0 B0 B0.1", "V", 1, 0, "F0.1", "it needs F0, which comes later"),
        ("F0 F0.1 B0.1 B0 | F0 F0.1 B0 B0.1", "V", 1, 2, "B0", "it needs B0.1, which comes later"),
    ],
)
def test_chunks_that_follow_each_other_on_one_stage(text, place, stage, position, action, why):
    """With one stage, or at the tip of a V, no message comes between them."""
    rows = [parse(part) for part in text.split("|")]
    with pytest.raises(ScheduleError) as info:
        validate(rows, M=1, v=2, place=place)
    error = info.value
    assert (error.stage, error.position, str(error.action)) == (stage, position, action)
    assert error.why.startswith(why)


def test_chunks_in_their_order_pass():
    validate([parse("F0 F0.1 B0.1 B0")], M=1, v=2)
    validate([parse("F0 F0.1 I0.1 W0.1 I0 W0")], M=1, v=2)
    validate([parse("F0 F0.1 B0.1 B0"), parse("F0 F0.1 B0.1 B0")], M=1, v=2, place="V")


def test_an_update_before_its_backward():
    assert wrong("F0 U0 B0").why == "it needs B0, which comes later in the list"
    assert wrong("F0 I0 U0 W0").why == "it needs W0, which comes later in the list"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(S=3), "2 lists were given for 3 stages"),
        (dict(M=0), "1 micro-batch, not 0"),
        (dict(place="V"), "not as 'V' of 1"),
        (dict(rule="old"), "not by 'old'"),
        (dict(rule="2bw"), "group is None"),
    ],
)
def test_a_wrong_question(options, words):
    with pytest.raises(ValueError, match=words) as error:
        validate([parse("F0 F1 B0 B1"), parse("F0 B0 F1 B1")], **options)
    assert not isinstance(error.value, ScheduleError)


# ------------------------------------------------------------
# The replay of messages says of a schedule what a World says when ranks really send and receive by it.


START = {"1f1b": one_f_one_b, "gpipe": gpipe, "naive": naive, "zb_h1": zb_h1}


def ways(S):
    """(sender, receiver, direction) of all messages that there may be."""
    pairs = itertools.permutations(range(S), 2)
    return [(*pair, what) for pair, what in itertools.product(pairs, "ag")]


def follow(comm, lists, v, model):
    """A stage that does nothing but pass the messages of its list on: one number each, labelled."""
    S, stage = comm.size, comm.rank
    pairs = ways(S)
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
    into, out = {pair: {} for pair in ways(S)}, {pair: {} for pair in ways(S)}
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


@pytest.mark.parametrize("model", ["mailbox", "stream"])
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


@pytest.mark.parametrize("model", ["mailbox", "stream"])
@pytest.mark.parametrize("S", [2, 3])
def test_chunks_as_in_a_world(S, model):
    for seed in range(6):
        actions, v = mixed(interleaved, S, S, seed, seed)
        assert in_the_replay(actions, v, model) == in_a_world(actions, v, model), actions


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
    with pytest.raises(ValueError, match="'mailbox', 'stream', not 'streams'"):
        validate(lists(naive, 2, 2), comm="streams")


# ------------------------------------------------------------
# Versions of the weights: which are used, which are held, and how stale a gradient is.


def test_versions_by_hand():
    """Two stages: the first has two micro-batches on the way, so its second forward still used version 0."""
    actions = lists(pipedream, 2, 4)
    assert forward_versions(actions) == [{0: 0, 1: 0, 2: 1, 3: 2}, {0: 0, 1: 1, 2: 2, 3: 3}]
    assert forward_versions(actions, "first") == [{0: 0, 1: 0, 2: 1, 3: 2}] * 2
    # F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 B3 U3
    assert held(actions)[0] == [1, 1, 1, 2, 2, 1, 2, 2, 1, 2, 1, 1]
    assert staleness(actions) == [{0: 0, 1: 1, 2: 1, 3: 1}, {0: 0, 1: 0, 2: 0, 3: 0}]


def test_staleness_of_pipedream():
    """S − 1 − stage once the pipeline is full; with vertical sync S − 1 on every stage."""
    for S, M in SIZES:
        both = (staleness(lists(pipedream, S, M), rule) for rule in ("newest", "first"))
        for stage, (own, synced) in enumerate(zip(*both)):
            assert own == {m: min(m, S - 1 - stage) for m in range(M)}
            assert synced == {m: min(m, S - 1) for m in range(M)}


def test_versions_held():
    for S, M in SIZES:
        actions = lists(pipedream, S, M)
        assert all(max(row) == 1 for row in held(actions, stash=False))
        # enough for a stage to have S − 1 micro-batches on the way that all met other weights
        if M >= 2 * S - 2:
            assert [max(row) for row in held(actions)] == [S - stage for stage in range(S)]
            assert [max(row) for row in held(actions, "first")] == [S] * S


@pytest.mark.parametrize("m", [4, 5, 8])
def test_2bw(m):
    """One update behind after the first group, on every stage, and the same version on every stage."""
    actions = lists(partial(pipedream_2bw, m=m), 4, 5 * m)
    for used, stale in zip(*(f(actions, "2bw", m) for f in (forward_versions, staleness))):
        assert used == {i: max(0, i // m - 1) for i in range(5 * m)}
        assert stale == {i: int(i >= m) for i in range(5 * m)}
    assert [max(row) for row in held(actions, "2bw", m)] == [2] * 4


def test_without_updates_there_is_one_version():
    actions = lists(gpipe, 2, 3)
    assert staleness(actions) == [{0: 0, 1: 0, 2: 0}] * 2 and held(actions) == [[1] * 6] * 2


def test_split_backwards():
    assert staleness([parse("F0 I0 F1 I1 W0 U0 W1 U1")]) == [{0: 0, 1: 1}]
    assert held([parse("F0 I0 F1 I1 W0 U0 W1 U1")]) == [[1, 1, 1, 1, 1, 2, 1, 1]]
