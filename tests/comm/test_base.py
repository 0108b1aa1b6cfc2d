"""What a program may rely on in every world: the same programs in a World, over shared memory and over gloo."""

import pickle
import threading

import pytest
import torch

from minidist.comm import (
    ANY,
    Cluster,
    Comm,
    CommError,
    Deadlock,
    Device,
    Level,
    Link,
    Mismatch,
    PeerLost,
    RankMissing,
    Recv,
    Send,
    Trace,
    World,
    launch,
)
from minidist.comm.base import Host, Side, ThreadLane, describe, mismatch
from minidist.comm.trace import OnHost
from tests.comm.nets import ALPHA, BETA, TOY
from tests.largest import largest

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def tensors():
    """(what is sent, where it is received) of every kind."""
    base = torch.arange(24.0).reshape(4, 6)
    pairs = [(torch.arange(5).to(dtype), torch.zeros(5).to(dtype)) for dtype in DTYPES]
    pairs += [
        (base.t(), torch.zeros(6, 4)),
        (base[:, ::2], torch.zeros(6, 4).t()[:, :3]),
        (base, torch.zeros(6, 4).t()),
        (base[1:3].expand(3, 2, 6), torch.zeros(3, 2, 6)),
        (torch.tensor(7), torch.tensor(0)),
        (torch.zeros(0), torch.zeros(0)),
        (torch.zeros(3, 0, 2), torch.zeros(3, 0, 2)),
        (torch.tensor([1 + 2j, 3 - 4j]).conj(), torch.zeros(2, dtype=torch.complex64)),
        (torch.tensor([1 + 2j]).conj().imag, torch.zeros(1)),
        (torch.tensor([5.0, 6.0], requires_grad=True) * 2, torch.nn.Parameter(torch.zeros(2))),
        (torch.tensor([1 + 2j]), torch.zeros(1, dtype=torch.complex64).conj()),
        (base[1:2, 0], torch.zeros(1, 6)[:, 3]),  # one element is contiguous, whatever its strides
    ]
    return pairs


def bits(x):
    return torch.empty(x.shape, dtype=x.dtype).copy_(x.detach()).view(-1).view(torch.uint8).tolist()


def test_every_kind_of_tensor(run):
    def program(comm):
        for x, into in tensors():
            if comm.rank == 0:
                comm.send(x, 1)
            else:
                assert comm.recv(into, 0) is into
                assert bits(into) == bits(x), (x, into)
        return len(tensors())

    results = run(program, 2)
    assert results == [len(tensors())] * 2
    assert results.trace.messages(link=(0, 1)) == len(tensors())
    assert results.trace.bytes_sent() == sum(x.numel() * x.element_size() for x, _ in tensors())


def test_a_receive_writes_only_its_own_elements(run_fast):
    def program(comm):
        x = torch.full((4, 4), float(comm.rank))
        comm.sendrecv(x[:, 1], 1 - comm.rank, x[:, 2], 1 - comm.rank)
        return x

    zero, one = run_fast(program, 2)
    assert zero.sum(0).tolist() == [0, 0, 4, 0]
    assert one.sum(0).tolist() == [4, 4, 0, 4]


def test_two_way_traffic_of_any_size(run):
    """Both sides send 16 MiB and more than any buffer holds, in a batch; 64 MiB in test_launch."""

    def program(comm):
        got = []
        for length in (1, 0, 1000, 4 << 20):
            x, y = torch.full((length,), float(comm.rank)), torch.empty(length)
            comm.sendrecv(x, 1 - comm.rank, y, 1 - comm.rank)
            got.append((y == 1 - comm.rank).all().item())
        return got

    assert run(program, 2) == [[True] * 4] * 2


def test_a_ring_and_all_pairs(run):
    def program(comm):
        n, r = comm.size, comm.rank
        x = torch.tensor([r])
        comm.sendrecv(x.clone(), (r + 1) % n, x, (r - 1) % n)
        rows = torch.zeros(n, dtype=torch.int64)
        others = [o for o in range(n) if o != r]
        comm.batch(
            [
                *(Recv(rows[o], o) for o in others),
                *(Send(torch.tensor(10 * r + o), o) for o in others),
            ]
        ).wait()
        return x.item(), rows.tolist()

    for r, (x, rows) in enumerate(run(program, 4)):
        assert x == (r - 1) % 4
        assert rows == [10 * o + r if o != r else 0 for o in range(4)]


def test_many_sends_that_nobody_waits_for_come_in_order(run):
    def program(comm):
        if comm.rank == 0:
            for i in range(500):
                comm.isend(torch.tensor([i]), 1)
        else:
            return [comm.recv(torch.tensor([-1]), 0).item() for _ in range(500)]

    assert run(program, 2)[1] == list(range(500))


def test_what_is_not_waited_for_is_finished_before_the_run_ends(run):
    def program(comm):
        x = torch.zeros(1000)
        if comm.rank == 0:
            comm.irecv(x, 1)
        else:
            comm.isend(torch.ones(1000), 0)
        # still empty when it is returned, perhaps; what the rank sees at its end is tested below
        return x

    assert run(program, 2).trace.messages() == 1


def test_done_says_when_wait_would_return_at_once(run):
    def program(comm):
        x = torch.zeros(3)
        work = comm.isend(torch.ones(3), 1) if comm.rank == 0 else comm.irecv(x, 0)
        polls = 0
        while not work.done():
            polls += 1
        assert work.done()
        work.wait()
        return x.sum().item() if comm.rank else 3.0

    assert run(program, 2) == [3.0, 3.0]


def test_a_wildcard_receive_says_whom_it_heard(run):
    def program(comm):
        if comm.rank:
            return comm.send(torch.full((2,), float(comm.rank)), 0)
        heard = []
        for _ in range(2 * (comm.size - 1)):
            x = torch.zeros(2)
            work = comm.irecv(x, ANY) if len(heard) < comm.size - 1 else None
            if work is not None:
                work.wait()
                heard.append((work.source, x[0].item()))
        return sorted(heard)

    assert run(program, 4)[0] == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_split_by_color_and_key(run):
    def program(comm):
        half = comm.split(comm.rank % 2, key=-comm.rank)
        x = torch.tensor([comm.rank])
        if half.size > 1:
            half.sendrecv(x.clone(), (half.rank + 1) % half.size, x, (half.rank - 1) % half.size)
        only = comm.split(0 if comm.rank in (1, 3) else None)
        pair = half.split(0)
        return (
            half.rank,
            half.size,
            x.item(),
            only and (only.rank, only.size),
            (pair.rank, pair.size),
        )

    assert run(program, 5) == [
        (2, 3, 2, None, (2, 3)),  # even: ranks 4, 2, 0 in this order
        (1, 2, 3, (0, 2), (1, 2)),
        (1, 3, 4, None, (1, 3)),
        (0, 2, 1, (1, 2), (0, 2)),
        (0, 3, 0, None, (0, 3)),
    ]


def test_split_by_everyones_colors(run):
    """Without a message, and the groups are those that the ranks' own colors and keys make."""

    def program(comm):
        half = comm.split([r % 2 for r in range(comm.size)], [-r for r in range(comm.size)])
        x = torch.tensor([comm.rank])
        if half.size > 1:
            half.sendrecv(x.clone(), (half.rank + 1) % half.size, x, (half.rank - 1) % half.size)
        only = comm.split([None, 0, None, 0, None])
        return half.rank, half.size, x.item(), only and (only.rank, only.size)

    results = run(program, 5)
    assert results == [
        (2, 3, 2, None),
        (1, 2, 3, (0, 2)),
        (1, 3, 4, None),
        (0, 2, 1, (1, 2)),
        (0, 3, 0, None),
    ]
    assert results.trace.messages() == 5  # the five that were sent in the halves


@pytest.mark.parametrize(("colors", "keys"), [([0], None), ([0, 0, 0], None), ([0, 0], [1])])
def test_split_needs_a_color_and_a_key_for_each_rank(colors, keys):
    with pytest.raises(
        ValueError, match=rf"{len(colors)} colors and {len(keys or [0, 0])} keys.* 2 ranks"
    ):
        World(2).run(lambda comm: comm.split(colors, keys))


def test_what_is_kept_is_made_once_for_each_comm():
    def program(comm):
        made = []
        for _ in range(2):
            comm.keep("list", lambda: made.append(comm.rank) or made)
            comm.keep("nothing", lambda: made.append(None))
        other = comm.split([0] * comm.size)
        other.keep("list", lambda: made.append("other"))
        return comm.keep("list", None), comm.keep("nothing", None)

    assert World(2).run(program) == [([0, None, "other"], None), ([1, None, "other"], None)]


def test_ranks_of_a_world_share_what_is_alike():
    """Group by group, and apart from what each keeps for itself."""

    def program(comm):
        comms = comm, comm.split([r // 2 for r in range(comm.size)]), comm.split([0] * comm.size)
        return [c.keep("who", lambda: comm.rank, alike=True) for c in comms], comm.keep(
            "who", lambda: comm.rank
        )

    alone = [([r] * 3, r) for r in range(4)]
    assert launch(program, 4) == alone
    assert World(4).run(program) == [([0, r // 2 * 2, 0], r) for r in range(4)]


def test_messages_of_two_groups_do_not_mix(run):
    """Two groups of the same ranks and the same color: sent on a then b, received from b then a."""

    def program(comm):
        a, b = comm.split(0), comm.split(0)
        if comm.rank == 0:
            works = [
                a.isend(torch.tensor([1]), 1),
                b.isend(torch.tensor([2]), 1),
                comm.isend(torch.tensor([3]), 1),
            ]
            return [w.wait() for w in works]
        return [c.recv(torch.tensor([0]), 0).item() for c in (comm, b, a)]

    assert run(program, 2)[1] == [3, 2, 1]


def test_stream(run):
    def program(comm):
        peer = 1 - comm.rank

        def job(lane, i):
            log.append(i)
            y = torch.zeros(1)
            lane.sendrecv(torch.tensor([10.0 * comm.rank + i]), peer, y, peer, label="job")
            return y.item()

        log: list = []
        works = [comm.stream(job, i) for i in range(3)]
        other = comm.stream(job, 7, lane=1)
        x = torch.zeros(1)
        # in between, on the program's own channel
        comm.sendrecv(torch.tensor([99.0]), peer, x, peer)
        got = [w.wait() for w in works] + [other.wait(), x.item()]
        assert other.done()
        return got, [i for i in log if i < 7]

    results = run(program, 2)
    assert results == [
        ([10.0, 11.0, 12.0, 17.0, 99.0], [0, 1, 2]),
        ([0.0, 1.0, 2.0, 7.0, 99.0], [0, 1, 2]),
    ]
    assert {m.lane for m in results.trace} == {"main", "lane 0", "lane 1"}
    assert {m.label for m in results.trace} == {"job", None}


def test_an_exception_in_a_stream_job(run_fast):
    def caught(comm):
        def job(lane):
            raise KeyError("in the lane")

        with pytest.raises(KeyError, match="in the lane"):
            comm.stream(job).wait()
        return comm.stream(lambda lane: lane.size).wait()  # the lane goes on

    assert run_fast(caught, 2) == [2, 2]

    def unwaited(comm):
        def job(lane):
            raise KeyError(f"in the lane of {lane.rank}")

        if comm.rank == 1:
            comm.stream(job)

    with pytest.raises(KeyError, match="in the lane of 1") as caught:
        run_fast(unwaited, 2)
    assert caught.value.rank == 1


def test_a_job_that_nobody_waits_for_is_finished(run_fast):
    def program(comm):
        def job(lane):
            for i in range(20):
                lane.sendrecv(torch.tensor([i]), 1 - lane.rank, torch.tensor([0]), 1 - lane.rank)
            lane.batch([Send(torch.ones(2), 1 - lane.rank), Recv(torch.ones(2), 1 - lane.rank)])

        comm.stream(job)

    assert run_fast(program, 2).trace.messages() == 42


def test_link_and_now(run):
    def program(comm):
        before = comm.now()
        comm.sendrecv(torch.ones(10), 1 - comm.rank, torch.ones(10), 1 - comm.rank)
        link = comm.link(1 - comm.rank)
        assert (
            comm.link(1 - comm.rank, src=comm.rank)
            == comm.link(comm.rank, src=1 - comm.rank)
            == link
        )
        for wrong in (dict(dst=2), dict(dst=0, src=2), dict(dst=comm.rank), dict(dst=1, src=1)):
            with pytest.raises(ValueError, match="no link goes"):
                comm.link(**wrong)
        return (
            comm.now() > before,
            isinstance(link, Link) and link.alpha > 0 and link.beta > 0,
            comm.device.type,
        )

    assert run(program, 2) == [(True, True, "cpu")] * 2


def both_sides(error):
    """The message of a mismatch names both ranks and both lines of this file."""
    text = str(error)
    assert "rank 0 sends" in text and "rank 1 receives" in text, text
    assert text.count("test_base.py:") == 2 and "# sends" in text and "# receives" in text, text
    return text


@pytest.mark.parametrize(
    ("sent", "received", "words"),
    [
        (dict(x=torch.ones(3)), dict(x=torch.ones(2)), ["(3,) float32", "(2,) float32"]),
        (dict(x=torch.ones(6)), dict(x=torch.ones(2, 3)), ["(6,) float32", "(2, 3) float32"]),
        (dict(x=torch.ones(2)), dict(x=torch.ones(2).double()), ["float32", "float64"]),
        (
            dict(x=torch.ones(2), label="grad"),
            dict(x=torch.ones(2), label="act"),
            ["labelled 'grad'", "labelled 'act'"],
        ),
        (dict(x=torch.ones(2), label="grad"), dict(x=torch.ones(2)), ["labelled 'grad'"]),
    ],
)
def test_a_mismatch_names_both_sides(run_fast, sent, received, words):
    def program(comm, sent, received):
        if comm.rank == 0:
            comm.isend(**sent, dst=1).wait()  # sends
        else:
            comm.irecv(**received, src=0).wait()  # receives

    with pytest.raises(ValueError) as caught:
        run_fast(program, 2, sent, received)
    text = both_sides(caught.value)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_after_a_mismatch_the_next_message_is_whole(transport):
    def program(comm):
        if comm.rank == 0:
            comm.isend(torch.ones(3), 1).wait()  # sends
            comm.send(torch.ones(2), 1)
        else:
            with pytest.raises(ValueError) as caught:
                comm.irecv(torch.ones(2), 0).wait()  # receives
            # the next message is whole
            return str(caught.value), comm.recv(torch.zeros(2), 0).sum().item()

    text, after = launch(program, 2, transport=transport)[1]
    both_sides(text)
    assert after == 2


def test_ranks_that_do_not_exist(run_fast):
    def program(comm):
        said = []
        for call in (
            lambda: comm.send(torch.ones(1), 2),
            lambda: comm.recv(torch.ones(1), -2),
            lambda: comm.isend(torch.ones(1), comm.rank),
            lambda: comm.isend(torch.ones(1), ANY),
            lambda: comm.batch([Send(torch.ones(1), 1 - comm.rank), Recv(torch.ones(1), 5)]),
        ):
            with pytest.raises(ValueError) as caught:
                call()
            said.append(str(caught.value))
        with pytest.raises(TypeError, match="a tensor, not float"):
            comm.send(1.0, 1 - comm.rank)
        with pytest.raises(ValueError, match="a dense tensor, not a torch"):
            comm.send(torch.eye(2).to_sparse(), 1 - comm.rank)
        with pytest.raises(
            ValueError, match=r"cannot receive into \(4, 3\) float32, which was expanded"
        ):
            comm.recv(torch.ones(3).expand(4, 3), 1 - comm.rank)
        return said

    results = run_fast(program, 2)
    assert results.trace.messages() == 0  # the good half of a bad batch was not sent
    for r, said in enumerate(results):
        assert said[0] == f"rank {r} cannot send to rank 2: there are 2 ranks, 0 to 1"
        assert said[1] == f"rank {r} cannot receive from rank -2: there are 2 ranks, 0 to 1"
        assert said[2] == f"rank {r} cannot send to rank {r}, itself: copy the tensor instead"


def test_one_rank_is_the_serial_case(run):
    def program(comm):
        comm.batch([]).wait()
        assert comm.split(3).size == 1
        return comm.rank, comm.size, comm.stream(lambda lane, x: lane.size + x, 1).wait()

    results = run(program, 1)
    assert results == [(0, 1, 2)]
    assert results.trace.messages() == 0


def test_backward_hooks_communicate(run):
    def program(comm):
        w = torch.tensor([1.0, 2.0], requires_grad=True)

        def hook(p):
            comm.sendrecv(p.grad.clone(), 1 - comm.rank, p.grad, 1 - comm.rank)

        w.register_post_accumulate_grad_hook(hook)
        (w * (comm.rank + 1)).sum().backward()
        return w.grad

    zero, one = run(program, 2)
    assert zero.tolist() == [2, 2] and one.tolist() == [1, 1]


def numbers(comm):
    return torch.rand(3).tolist() + [torch.randint(1000, ()).item()]


def test_each_rank_has_its_own_random_numbers_the_same_in_every_world(run):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    results = run(numbers, 3)
    again = World(3).run(numbers)
    other = World(3, seed=1).run(numbers)
    assert list(results) == list(again)
    assert len({tuple(r) for r in [*results, *other]}) == 6
    assert torch.equal(torch.get_rng_state(), before)


def test_arguments_are_copied(run_fast):
    x = torch.zeros(2)
    model = torch.nn.Linear(2, 2, bias=False)
    tied = [x, x, x[:1]]

    def program(comm, tied, model, *, also):
        tied[0] += 1
        tied.append(comm.rank)
        with torch.no_grad():
            model.weight.fill_(comm.rank)
        return (
            tied[1].tolist(),
            also[0].tolist(),
            tied[2].tolist(),
            len(tied),
            model.weight.sum().item(),
        )

    results = run_fast(program, 2, tied, model, also=tied)
    assert results == [([1, 1], [1, 1], [1], 4, 0), ([1, 1], [1, 1], [1], 4, 4)]
    assert x.tolist() == [0, 0] and len(tied) == 3 and 0 < model.weight.abs().sum() < 4


def test_an_exception_on_rank_2(run):
    class Mine(Exception):
        def __init__(self, a, b):
            super().__init__(a, b)
            self.a, self.b = a, b

    def program(comm):
        if comm.rank == 2:
            raise Mine("loss is", float("inf"))  # here
        comm.recv(torch.ones(1), 2)

    with pytest.raises(Mine) as caught:
        run(program, 4)
    error = caught.value
    assert (error.a, error.b, error.rank) == ("loss is", float("inf"), 2)
    assert error.__notes__ == ["raised on rank 2 of 4"]
    lines = str(error.__cause__) + "".join(str(entry) for entry in caught.traceback)
    assert "test_base.py" in lines and "# here" in lines


def test_peer_lost_and_the_others_go_on(run_fast):
    def program(comm):
        if comm.rank == 2:
            raise ValueError("gone")
        lost = []
        for call in (
            lambda: comm.recv(torch.ones(1), 2),
            lambda: comm.send(torch.ones(1 << 20), 2),
        ):
            with pytest.raises(PeerLost) as caught:
                call()
            lost.append(caught.value.rank)
        comm.sendrecv(torch.ones(1), 1 - comm.rank, torch.ones(1), 1 - comm.rank)
        return lost

    zero, one, two = run_fast(program, 3, on_failure="continue")
    assert zero == one == [2, 2]
    assert type(two) is ValueError and str(two) == "gone" and two.rank == 2


def test_peer_lost_names_the_rank_of_the_comm_that_was_used(run_fast):
    def program(comm):
        odd = comm.split(comm.rank % 2)
        if comm.rank == 3:
            raise ValueError
        if comm.rank == 1:
            with pytest.raises(PeerLost) as caught:
                odd.recv(torch.ones(1), 1)
            return caught.value.rank

    assert run_fast(program, 4, on_failure="continue")[1] == 1


def hear(comm, times):
    """Whom `times` wildcard receives heard; ~r of a rank r that is lost."""
    for _ in range(times):
        work = comm.irecv(torch.zeros(1), ANY)
        try:
            work.wait()
            yield work.source
        except PeerLost as lost:
            yield ~lost.rank


def test_a_wildcard_receive_when_all_others_are_gone(run_fast):
    def program(comm):
        if comm.rank == 2:
            comm.isend(torch.ones(1), 0).wait()
        if comm.rank:
            raise ValueError
        heard = list(hear(comm, 3))
        with pytest.raises(PeerLost):  # nobody is left to wait for
            comm.recv(torch.ones(1), ANY)
        return sorted(heard), heard.index(2) < heard.index(~2)

    assert run_fast(program, 3, on_failure="continue")[0] == ([~2, ~1, 2], True)


def test_a_wildcard_receive_hears_of_each_death_once_on_each_comm(run_fast):
    def program(comm):
        # ranks 4, 3, 1, 0: deaths are told by the Comm's ranks
        group = comm.split([0, 0, 1, 0, 0], [4, 3, 2, 1, 0])
        if comm.rank == 0:
            first = sorted(hear(group, 2))
            comm.send(torch.ones(1), 4)  # which speaks only now
            return first, list(hear(group, 1)), sorted(hear(comm, 3))
        if comm.rank in (1, 3):
            raise ValueError
        if comm.rank == 4:
            comm.recv(torch.ones(1), 0)
            group.send(torch.ones(1), 3)
        if comm.rank == 2:
            comm.send(torch.ones(1), 0)

    assert run_fast(program, 5, on_failure="continue")[0] == ([~2, ~1], [0], [~3, ~1, 2])


def test_the_notebooks_default_dtype_is_the_ranks(run_fast):
    torch.set_default_dtype(torch.float64)
    try:
        assert run_fast(lambda comm: str(torch.ones(1).dtype), 2) == ["torch.float64"] * 2
    finally:
        torch.set_default_dtype(torch.float32)


def leave(comm):
    raise SystemExit(3)


def test_a_rank_that_exits_does_not_end_the_notebook(run_fast):
    with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
        run_fast(leave, 2)


@pytest.mark.parametrize(
    ("n", "kwargs", "words"),
    [
        (0, {}, "at least 1 rank, not 0"),
        (-1, {}, "not -1"),
        ("2", {}, "not '2'"),
        (2, {"on_failure": "stop"}, "not 'stop'"),
    ],
)
def test_arguments_of_a_run(run_fast, n, kwargs, words):
    with pytest.raises(ValueError, match=words):
        run_fast(lambda comm: None, n, **kwargs)


def test_errors_can_be_pickled():
    for error in (PeerLost(2), PeerLost(1, "why"), Deadlock("x"), RankMissing("y"), Mismatch("z")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
    assert pickle.loads(pickle.dumps(PeerLost(2))).rank == 2
    assert issubclass(RankMissing, TimeoutError) and issubclass(RankMissing, Deadlock)
    assert str(PeerLost(2, "it is late")) == "rank 2 is lost: it is late"


def test_one_class_is_caught_where_ranks_disagree_or_one_is_gone(run_fast):
    """Each stays what it was besides."""
    theirs = {
        Deadlock: RuntimeError,
        RankMissing: TimeoutError,
        PeerLost: ConnectionError,
        Mismatch: ValueError,
    }
    assert all(
        issubclass(error, CommError) and issubclass(error, kind) for error, kind in theirs.items()
    )

    def unlike(comm):
        if comm.rank == 0:
            comm.send(torch.ones(2), 1)
        else:
            comm.recv(torch.ones(3), 0)

    def gone(comm):
        if comm.rank == 1:
            comm.recv(torch.ones(1), 0)

    for program in (unlike, gone):
        with pytest.raises(CommError):
            run_fast(program, 2)


def test_describe_and_mismatch():
    assert describe(torch.ones(2, 3)) == "(2, 3) float32"
    assert describe(torch.tensor(True)) == "() bool"
    a = Side(0, (2,), torch.float32, None, None, "a.py:1")
    assert mismatch(a, a._replace(rank=1, where="b.py:2")) is None
    assert mismatch(a, Side(1, (3,), torch.float32, "y", None, "")) == (
        "rank 0 sends (2,) float32\n    at a.py:1\n  but rank 1 receives (3,) float32 labelled 'y'"
    )


def test_a_comm_needs_a_transport():
    with pytest.raises(TypeError):
        Comm()
    assert isinstance(World(1).run(lambda comm: None).trace, Trace)


# ------------------------------------------------------------
# The host as a technique sees it: outside a World it does nothing; in one it tells the two memories apart.


CORES = Device("cores", {torch.float32: 1e9}, 10**9, bandwidth=1e9, launch=1e-3)
PCIE = Level(0.5, 1e-6)


def with_host(n, host=CORES):
    links = {"nic": Level(ALPHA, BETA), "pcie": PCIE}
    return Cluster("hosts", TOY, links, nodes=n, host=host)


def hosted(n=1, where="cpu", host=CORES, **kwargs):
    """A World of ranks with a host each; a copy to or from it takes half a second and a microsecond a byte."""
    cluster = with_host(n, host)
    return World(n, cluster=cluster, device=where, **kwargs)


def down(comm, x):
    with comm.host:
        return torch.empty_like(x, device=comm.host.device).copy_(x)


def there_and_back(comm):
    x = torch.ones(1000, device=comm.device)
    times = [comm.now()]
    there = down(comm, x)
    times.append(comm.now())
    there.add_(there)  # on the host, also outside
    times.append(comm.now())
    x.copy_(there)
    times.append(comm.now())
    x.add_(x)
    return [b - a for a, b in zip(times, [*times[1:], comm.now()], strict=True)], x


SECONDS = [0.5 + 4e-3, 1e-3 + 12e3 / 1e9, 0.5 + 4e-3, 12e3 / 1e11]


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_the_host_and_its_link_take_their_time(where):
    run = hosted(where=where).run(there_and_back)
    seconds, x = run[0]
    assert seconds == pytest.approx(SECONDS, rel=1e-9) and x.device.type == where
    assert where == "meta" or x.tolist() == [4.0] * 1000
    assert [(s.kind, s.name) for s in run.trace.spans][1:] == [
        ("copy", "to host"),
        ("compute", "add_"),
        ("copy", "to device"),
        ("compute", "add_"),
    ]
    there = run.trace.host[0]
    assert (there.down, there.up, there.memory.peak, run.trace.memory[0].peak) == (
        4000,
        4000,
        4000,
        4000,
    )


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_without_a_modelled_host_it_takes_none(where):
    run = World(1, cluster=Cluster.uniform(1, ALPHA, BETA, TOY), device=where).run(there_and_back)
    assert run[0][0] == pytest.approx([0, 0, 0, SECONDS[3]]) and run.trace.host[0].up == 4000
    assert World(1).run(there_and_back)[0][0] == [0.0] * 4
    unused = hosted(where=where).run(lambda comm: torch.ones(3, device=comm.device) + 1)
    assert unused.trace.host == {}


def test_elsewhere_it_does_nothing():
    for seconds, x in launch(there_and_back, 1):
        assert x.tolist() == [4.0] * 1000 and largest(seconds) < 60
    host = Host()
    with host as inside:
        assert inside is host and host.device == torch.device("cpu")
    with pytest.raises(ZeroDivisionError), Host("meta"):
        _ = 1 / 0


def test_a_slow_rank_has_a_slow_host():
    cluster = with_host(2).slow_rank(1, 3)
    (fast, _), (slow, _) = World(2, cluster=cluster).run(there_and_back)
    assert fast == pytest.approx(SECONDS) and slow == pytest.approx([3 * s for s in SECONDS])
    noisy = World(1, cluster=cluster.jitter(0.5, 1)).run(there_and_back)[0][0]
    assert all(abs(a / b - 1) > 1e-3 for a, b in zip(noisy, fast, strict=True))


def test_what_a_lane_does_on_the_host_is_the_lanes():
    def program(comm):
        job = comm.stream(there_and_back)
        torch.ones(1000, device=comm.device)
        before = comm.now()
        job.wait()
        return before, comm.now()

    before, after = hosted().run(program)[0]
    assert before == pytest.approx(4e3 / 1e11) and after == pytest.approx(sum(SECONDS) + 4e3 / 1e11)


def test_the_context_is_the_running_fibers_alone():
    """While a lane is in it, waiting for a message, the program computes on its device."""

    def program(comm):
        def job(lane):
            with lane.host:
                lane.sendrecv(torch.ones(1), 1 - lane.rank, x := torch.empty(1), 1 - lane.rank)
                return x + 1

        work = comm.stream(job)
        torch.ones(1000)
        work.wait()

    run = hosted(2).run(program)
    assert run.trace.memory[0].live["other"].max() == 4000 and run.trace.host[1].memory.peak <= 12


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_operands_on_both_sides(where):
    def program(comm, wrong):
        x = torch.ones(4, device=comm.device)
        there = down(comm, x)
        with comm.host:
            number = torch.ones((), device=comm.host.device)
        x.mul_(number)  # a number goes anywhere
        return wrong(x, there)

    for wrong in (lambda x, y: x + y, lambda x, y: y.add_(x), lambda x, y: torch.cat([x, y])):
        with pytest.raises(RuntimeError, match="has operands on the host and on the device"):
            hosted(where=where).run(program, wrong)
    for fine in (
        lambda x, y: x.copy_(y),
        lambda x, y: y.view(2, 2).clone(),
        lambda x, y: y.double(),
    ):
        hosted(where=where).run(program, fine)


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_an_optimizers_states_are_where_its_parameters_are(where):
    def program(comm):
        x = torch.nn.Parameter(torch.ones(100, device=comm.device))
        with comm.host:
            p = down(comm, x.detach())
            p.grad = torch.ones_like(p)
            optimizer = torch.optim.Adam([p])
            optimizer.step()
        return comm.now()

    run = hosted(where=where).run(program)
    host, device = run.trace.host[0].memory, run.trace.memory[0]
    assert host.live["optimizer states"].max() == 1200 + 4 and host.live["gradients"].max() == 400
    assert device.live["parameters"].max() == 400 and device.live["optimizer states"].max() == 0
    assert {s.kind for s in run.trace.spans if s.name == "addcdiv_"} == {"update"}


def test_traces_tell_hosts_apart():
    one, other = (hosted(2).run(there_and_back).trace for _ in range(2))
    assert one == other and isinstance(one.host[1], OnHost)
    one.host[1] = one.host[1]._replace(up=1)
    assert one != other
    other.merge(one)
    assert other.host[1].up == 1
    other.since(0.25)
    assert other.host[1].memory.times[0] == one.host[1].memory.times[0] - 0.25


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_what_is_made_within_from_the_device_came_over_the_link(where):
    def program(comm, make):
        x = torch.ones(1000, device=comm.device)
        with comm.host:
            return make(x).dtype

    run = hosted(where=where).run(program, lambda x: x.double())
    assert (run.trace.host[0].down, run.trace.host[0].up) == (8000, 0)
    with pytest.raises(RuntimeError, match="add has operands on the host and on the device"):
        hosted(where=where).run(program, lambda x: x + 1)


# ------------------------------------------------------------
# Jobs on threads of a rank.


def test_jobs_run_in_their_order_beside_the_caller():
    unwaited = {}
    go = threading.Event()
    log = []
    lane = ThreadLane("the comm", "lane 0", unwaited)

    def job(comm, i):
        go.wait(5)
        log.append((comm, i, threading.current_thread() is not threading.main_thread()))
        return 10 * i

    works = [lane.submit(job, (i,)) for i in range(4)]
    assert not works[0].done() and len(unwaited) == 4
    go.set()
    assert [w.wait() for w in works] == [0, 10, 20, 30]
    assert log == [("the comm", i, True) for i in range(4)]
    assert all(w.done() for w in works) and not unwaited


def test_an_exception_is_raised_by_wait_and_the_lane_goes_on():
    lane = ThreadLane(None, "lane 0", unwaited := {})
    failed, fine = lane.submit(lambda comm: 1 / 0, ()), lane.submit(lambda comm: 3, ())
    assert fine.wait() == 3 and failed.done() and list(unwaited) == [failed]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failed.wait()


def test_two_lanes_run_side_by_side():
    barrier = threading.Barrier(2, timeout=5)
    works = [
        ThreadLane(None, f"lane {i}", {}).submit(lambda comm: barrier.wait(), ()) for i in range(2)
    ]
    assert sorted(w.wait() for w in works) == [0, 1]
