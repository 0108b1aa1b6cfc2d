"""Lesson 08: other right ways pass, and what is right only for some ranks or times does not.

The usual mistakes are in course/08_server/bugs.py, which tests/bank examines.
"""

import math
import sys
from functools import partial

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome, look
from minicheck.lessons import server
from minicheck.lessons.server import (
    Asynchronous,
    Bounded,
    Gradient,
    Leavers,
    Pieces,
    Synchronous,
    predict_server,
    trajectory,
)
from minicheck.oracles.server import as_they_come, in_step, owners
from minidist.comm import World
from minidist.comm.base import ANY, Recv, Send
from minidist.parallel.server import Partition
from minidist.study.predict import most_stale_bounded, sync_server_seconds
from tests.bank.bank import solved
from tests.minicheck.examined import (
    accepted,
    assert_odd_answers_are_told,
    assert_wrong,
    refused,
    rng,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


@pytest.mark.parametrize("seed", range(10))
def test_the_oracle_cuts_as_the_library(seed):
    sizes = torch.randint(1, 30, (8,), generator=rng(seed)).tolist()
    for s in (1, 2, 5, 9):
        held = Partition([torch.empty(size) for size in sizes], s).pieces
        assert owners(sizes, s) == [[(p.param, p.first, p.end) for p in some] for some in held]


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([[(0, 0, 3)], [(1, 0, 3)]], None),
        ([[(0, 0, 2)], [(0, 2, 3), (1, 0, 3)]], "should be equal"),
        ([[(0, 0, 2), (0, 2, 3)], [(1, 0, 3)]], "cut further"),
        ([[(1, 0, 3)], [(0, 0, 3)]], "not in order"),
        ([[(0, 0, 3)], [(1, 0, 2)]], "element 2 of parameter 1"),
        ([[(0, 0, 3)], [(0, 0, 3), (1, 0, 3)]], "held twice"),
        ([[(0, 0, 4)], [(1, 0, 3)]], "counted within"),
        ([[(0, 0, 3), (1, 0, 0)], [(1, 0, 3)]], "empty"),
        ([[(0, 0, 3)]], "1 lists"),
        ([[(0, 3)], [(1, 0, 3)]], "three integers"),
        ([[(2, 0, 3)], []], "no parameter 2"),
        (None, "None"),
        (3, "type int"),
        ([3, []], "a list of pieces"),
    ],
)
def test_what_makes_pieces_right(pieces, says):
    exam, outcome = Pieces(), Outcome([{"found": pieces, "given": [[3, 3], 2]}], [])
    if says is None:
        return exam.judge(Case(1, ""), [([3, 3], 2)], outcome)
    with pytest.raises(Wrong, match=says):
        exam.judge(Case(1, ""), [([3, 3], 2)], outcome)


def test_an_error_where_there_are_no_ranks_names_none():
    assert_wrong(
        r"^pieces: 4 parameters on 2 servers: your code raised",
        check.pieces,
        [lambda *args: 1 // 0],
    )


def test_the_references_agree_with_the_serial_program():
    """Each oracle, run in its exam's World, passes the exam's own judge; and has the library's time."""
    for exam, answer in (
        (Synchronous(), in_step),
        (Asynchronous(), partial(as_they_come, damped=True)),
        (Leavers(), as_they_come),
    ):
        for case in exam.cases[:4]:
            args = exam.draw(case, rng())
            program = lambda comm, some, exam=exam, answer=answer: exam.run(
                comm, answer, *some[comm.rank]
            )
            results = World(case.n).run(program, args)
            exam.judge(
                case,
                args,
                Outcome(list(results), [(m.src, m.dst, m.nbytes) for m in results.trace]),
            )


def test_the_time_of_a_synchronous_step():
    def program(comm, s):
        in_step(comm, s, torch.ones(1000), lambda w: (w, 1), 1, 0.1)

    for n, s in ((1, 1), (4, 1), (4, 4)):
        world = World(n + s, alpha=1e-6, beta=1e-6)
        world.run(program, s)
        assert world.time == pytest.approx(
            sync_server_seconds(n, s, 4000, 1e-6, 1e-6), rel=0.01
        )  # and the numbers of samples


def test_other_ways_to_serve_in_step(capsys):
    def posted(comm, servers, w, gradient, steps, rate):
        comm = comm.split(0)  # a Comm of its own costs messages, too
        chunks = list(w.tensor_split(servers))
        workers = list(range(servers, comm.size))
        for _ in range(steps):
            if comm.rank < servers:
                first = comm.rank % len(workers)
                samples = {r: w.new_empty(1) for r in workers}
                ops, found = (
                    [Send(chunks[comm.rank], r) for r in workers[first:] + workers[:first]],
                    {},
                )
                for r in workers:
                    found[r] = torch.zeros_like(chunks[comm.rank])
                    ops.append(Recv(found[r], r))
                    ops.append(Recv(samples[r], r))
                comm.batch(ops).wait()
                count = sum(samples.values())
                if count:
                    chunks[comm.rank] = chunks[comm.rank] - rate * sum(found.values()) / count
                continue
            room = [torch.empty_like(chunk) for chunk in chunks]
            mine = sorted(range(servers), key=lambda i: (i - comm.rank) % servers)
            comm.batch([Recv(room[i], i) for i in mine]).wait()
            g, count = gradient(torch.cat(room))
            ops = []
            for i in mine:
                ops += [Send(g.tensor_split(servers)[i], i), Send(w.new_tensor([count]), i)]
            comm.batch(ops).wait()
        return chunks[comm.rank] if comm.rank < servers else None

    check.synchronous(posted)
    assert "synchronous: right." in capsys.readouterr().out


def on_two_channels(comm, w, gradient, steps, rate, bound=math.inf, spare=0):
    """As in the lesson: answers on a Comm of their own, and one to everyone in the end."""
    pushes = comm.split(0)
    answers = comm.split(0)
    n = comm.size - 1
    steps = [steps] * n if isinstance(steps, int) else steps
    if comm.rank:
        for _ in range(steps[comm.rank - 1]):
            pushes.send(gradient(answers.recv(w, 0)), 0)
        answers.recv(w, 0)
        return None
    clock = [0] * n
    has = [0] * n
    waiting = list(range(n))
    log, leaving = [], []
    g = torch.empty_like(w)
    for version in range(sum(steps) + 1):
        least = sorted(c if c < most else math.inf for c, most in zip(clock, steps, strict=True))[
            spare
        ]
        for k in [k for k in waiting if clock[k] == steps[k] or clock[k] - least <= bound]:
            waiting.remove(k)
            has[k] = version
            leaving.append(answers.isend(w.clone(), k + 1))
        if version < sum(steps):
            push = pushes.irecv(g, ANY)
            push.wait()
            k = push.source - 1
            stale = version - has[k]
            w -= rate / (1 + stale * (bound == math.inf)) * g
            log.append((k + 1, stale))
            clock[k] += 1
            waiting.append(k)
    for work in leaving:
        work.wait()
    return log


@pytest.mark.parametrize("exercise", ["asynchronous", "bounded", "leavers"])
def test_other_ways_to_hear_whoever_comes(exercise, capsys):
    getattr(check, exercise)(on_two_channels)
    assert f"{exercise}: right." in capsys.readouterr().out


FITS = [
    lambda comm: comm.size < 4,
    lambda comm: type(comm).__name__ == "WorldComm",
    lambda comm: comm.rank < 2 or comm.size < 4,
]


def doubled(found, times):
    """A gradient, also one that comes with its number of samples, so many times."""
    return (found[0] * times, found[1]) if isinstance(found, tuple) else found * times


@pytest.mark.parametrize("exercise", ["synchronous", "asynchronous", "bounded", "leavers"])
def test_right_for_some_only(exercise):
    right = solved("08_server")[exercise]

    def only(fits):
        def answer(comm, *given):
            given = list(given)
            at = 2 if exercise == "synchronous" else 1
            gradient = given[at]
            given[at] = lambda w: doubled(gradient(w), 1 if fits(comm) else 2)
            return right(comm, *given)

        return answer

    assert accepted(getattr(check, exercise), map(only, FITS)) == []


def outcomes(exam, case, answer):
    args = exam.draw(case, rng())
    world = exam.world(case.n, args)
    results = world.run(lambda comm, some: exam.run(comm, answer, *some[comm.rank]), args)
    return args, Outcome(list(results), [(m.src, m.dst, m.nbytes) for m in world.trace], world.time)


def judged(exam, *one):
    look(exam, [one])


def test_nothing_reported_is_believed():
    """Another order, staleness, weights or number of bytes than follow from each other."""
    exam = Bounded()
    case = exam.cases[2]
    args, outcome = outcomes(exam, case, solved("08_server")["bounded"])
    judged(exam, case, args, outcome)
    first, good = outcome.results[0], list(outcome.results[0]["log"])
    swapped = [good[i + (i == 4) - (i == 5)] for i in range(len(good))]
    for bad, says in (
        ({"log": good[:-1]}, "every push is an"),
        ({"log": [(r, 0) for r, _ in good]}, "staleness"),
        ({"log": [(1, s) for _, s in good]}, "reported as rank 1's"),
        ({"w": first["w"] + 1e-3}, "final w is wrong"),
        ({"log": [(r, float(s)) for r, s in good]}, "two integers"),
        ({"log": None}, "return"),
        ({"log": swapped}, "staleness|never had|version"),
        ({"seen": [1]}, "is the server"),
    ):
        with pytest.raises(Wrong, match=says):
            judged(
                exam,
                case,
                args,
                Outcome([first | bad, *outcome.results[1:]], outcome.sent, outcome.time),
            )
    with pytest.raises(Wrong, match="pushes 0 bytes"):
        judged(exam, case, args, Outcome(outcome.results, [], outcome.time))
    for factor, says in ((2, "are enough"), (0.5, "one worker alone computes")):
        with pytest.raises(Wrong, match=says):
            judged(exam, case, args, Outcome(outcome.results, outcome.sent, factor * outcome.time))


def test_time_and_bytes_of_steps():
    exam = Synchronous()
    case = exam.cases[3]
    args, outcome = outcomes(exam, case, in_step)
    judged(exam, case, args, outcome)
    for time, says, share in (
        (1.3 * outcome.time, "are enough", 0.75),
        (0.1 * outcome.time, "clock set", 0.0),
    ):
        with pytest.raises(Wrong, match=says) as wrong:
            judged(exam, case, args, Outcome(outcome.results, outcome.sent, time))
        assert wrong.value.share == share
    for sent, says, share in (
        ([], "sends 0 bytes", 0.0),
        (outcome.sent * 2, "other servers own", 0.75),
    ):
        with pytest.raises(Wrong, match=says) as wrong:
            judged(exam, case, args, Outcome(outcome.results, sent, outcome.time))
        assert wrong.value.share == share
    assert len(trajectory(args)) == 4 and not trajectory(args, "sum")[1].equal(trajectory(args)[1])


def test_a_gradient_counts_its_calls():
    gradient = Gradient(0.5, torch.zeros(1, 3, dtype=torch.float64), [1e-3])
    assert (
        gradient(torch.ones(3, dtype=torch.float64)).tolist() == [0.5] * 3
        and len(gradient.seen) == 1
    )
    with pytest.raises(ValueError, match="called 2 times, and this worker takes 1 step"):
        gradient(torch.ones(3, dtype=torch.float64))


def test_the_predicted_numbers_are_the_librarys():
    values, slips = predict_server(32, 1e9, 40e-3, 10e-6, 1 / 50e9, 100e-3, 3, 200, 0.05, 4.0)
    fp32 = sync_server_seconds(32, 1, 1e9, 10e-6, 1 / 50e9, 40e-3)
    assert values["half"] == pytest.approx(fp32 - 0.5e9 / 50e9)
    bound = values["bound"]
    assert most_stale_bounded(32, bound) <= 200 < most_stale_bounded(32, bound + 1)
    limits = [2 * math.sin(math.pi / (4 * (values["workers"] - 1 + d) + 2)) / 4 for d in (0, 1)]
    assert limits[0] > 0.05 > limits[1] and values["servers"] == pytest.approx(8)
    assert values["into"] == pytest.approx(4e9) and all(len(some) >= 3 for some in slips.values())
    assert not any(
        abs(wrong - values[name]) <= 0.01 * values[name]
        for name, some in slips.items()
        for wrong in some
    )


STYLES = [
    (
        "pieces",
        "return found",
        "return [[(torch.tensor(a), b, torch.tensor(c)) for a, b, c in x] for x in found]",
    ),
    (
        "synchronous",
        "mine -= rate * added[:-1] / added[-1].clamp(min=1)",
        "mine = mine - rate * added[:-1] / max(1, int(added[-1]))",
    ),
    (
        "synchronous",
        """
sends = [Send(mine, servers + (comm.rank + i) % n) for i in range(n)]
comm.batch(sends + [Recv(push, servers + k) for k, push in enumerate(pushed)]).wait()
""",
        """
works = [comm.irecv(push, servers + k) for k, push in enumerate(pushed)]
works += [comm.isend(mine, servers + (comm.rank + i) % n) for i in range(n)]
for work in works:
    work.wait()
""",
    ),
    (
        "asynchronous",
        "log.append((rank, stale))",
        "log.append((torch.tensor(rank), torch.tensor(stale)))",
    ),
    ("asynchronous", "return log", "return tuple(log)"),
    (
        "bounded",
        "log.append((rank, version - has[rank]))",
        "log.append((rank, torch.tensor(version - has[rank])))",
    ),
    (
        "leavers",
        "log.append((rank, version - has[rank]))",
        "log.append((rank, torch.tensor(version - has[rank])))",
    ),
    (
        "predict_server",
        "gradients = (n - 1) * 3 + 1",
        """
from fractions import Fraction
gradients = Fraction(94)
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("08_server", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(server)
