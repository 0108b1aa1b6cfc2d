"""Where a run hangs: explained from recorded dumps, from the recorder itself, and by ranks that ask one another."""

import os
import pickle
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder.components import builder

from minidist.comm import RankMissing, flight, from_env, launch
from minidist.comm.flight import explain, read, recorded, report, unpacked
from tests.comm.dumps import dump, entry, written
from tests.comm.torchrun import in_its_place

ALL = ("0", "default_pg")
HALF = ("7", "mesh_tp")


def explained(folder, entries, groups, n):
    return "\n".join(explain(read(written(folder, entries, groups)), n))


def until(number):
    """Calls that are over, before this number."""
    return [entry(i, "broadcast", line=i) for i in range(1, number)]


# ------------------------------------------------------------
# Recorded dumps.


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_rank_that_has_not_come(tmp_path, n):
    entries = {r: until(3) + [entry(3, "all_reduce", line=30, over=False)] for r in range(n - 1)}
    entries[n - 1] = until(3)
    text = explained(tmp_path, entries, {ALL: range(n)}, n)
    assert text.splitlines()[0] == "call 3 of group default_pg is not over:"
    others = "rank 0 is" if n == 2 else f"{', '.join(map(str, range(n - 2)))} and {n - 2} are"
    assert f"{others} in all_reduce of Float (4) at train.py:30" in text
    assert (
        f"rank {n - 1} has not come to it; its last call there is number 2, broadcast of Float (4) "
        "at train.py:2"
    ) in text


def test_a_rank_that_wrote_nothing(tmp_path):
    entries = {r: [entry(1, "all_reduce", over=False)] for r in (0, 2)}
    text = explained(tmp_path, entries, {ALL: range(3)}, 3)
    assert "ranks 0 and 2 are in all_reduce" in text
    assert "rank 1 is not heard of: it has ended, or its process is stopped" in text


def test_ranks_that_made_different_calls(tmp_path):
    entries = {0: [entry(1, "all_reduce", over=False)], 1: [entry(1, "broadcast", line=9)]}
    text = explained(tmp_path, entries, {ALL: range(2)}, 2)
    assert "call 1 of group default_pg is not over; the ranks have made different calls:" in text
    assert "rank 0 is in all_reduce of Float (4) at train.py:1" in text
    assert "rank 1 is through broadcast of Float (4) at train.py:9" in text


def test_tensors_that_differ_where_they_must_not(tmp_path):
    shapes = {0: (4,), 1: (5,)}
    for name, told in (("all_reduce", True), ("all_to_all", False)):
        entries = {r: [entry(1, name, s, over=False)] for r, s in shapes.items()}
        text = explained(tmp_path, entries, {ALL: range(2)}, 2)
        assert ("different calls" in text) == told
        assert "Float (4)" in text and "Float (5)" in text


def test_the_first_group_that_hangs_comes_first(tmp_path):
    """Ranks 0 and 1 share a tensor group. Rank 1 is in the run's all_reduce; rank 0 waits for it in theirs."""
    entries = {
        0: [entry(1, "all_gather", group=HALF, over=False, at=1, line=5)],
        1: [entry(1, "all_reduce", over=False, at=3, line=8)],
        2: [entry(1, "all_reduce", over=False, at=2, line=8)],
    }
    text = explained(tmp_path, entries, {ALL: range(3), HALF: [0, 1]}, 3)
    tensor, whole = text.index("group mesh_tp"), text.index("call 1 of group default_pg")
    assert tensor < whole
    assert (
        "rank 1 has not come to it; it is in all_reduce of Float (4) at train.py:8, of group "
        "default_pg"
    ) in text[tensor:whole]
    assert "rank 2" not in text[tensor:whole], "it is not in that group"


def test_a_send_whose_receiver_is_elsewhere(tmp_path):
    group = {("3", "pp"): [2, 5]}
    name = ("3", "pp")
    entries = {
        2: [entry(1, "send 0->1", two=True, over=False, group=name, line=4)],
        5: [entry(1, "send 1->0", two=True, over=False, group=name, line=6)],
    }
    text = explained(tmp_path, entries, group, 6)
    assert "rank 2 is in send to rank 5 of Float (4) at train.py:4:" in text
    assert "rank 5 has not come to it; its last call there is number 1, send 1->0" in text
    entries[5][0]["profiling_name"] = "nccl:recv 1<-0"
    text = explained(tmp_path, entries, group, 6)
    assert "rank 5 is in recv 1<-0 of Float (4) at train.py:6" in text


def test_sends_are_counted_for_themselves(tmp_path):
    """Number 1 of them is not number 1 of the collectives."""
    entries = {
        0: [entry(1, "all_reduce", over=False, line=3)],
        1: [entry(1, "send 1->0", two=True, line=4)],
    }
    text = explained(tmp_path, entries, {ALL: range(2)}, 2)
    assert text.endswith("  rank 1 has not come to it") and "send" not in text


def test_of_a_batch_only_its_end_is_ever_over(tmp_path):
    """Its members stay scheduled: a run that is through it does not hang there."""
    names = {0: ["send 0->1", "recv 0<-1"], 1: ["recv 1<-0", "send 1->0"]}
    for over in (True, False):
        entries = {
            r: [
                *(entry(1, name, two=True, over=False) for name in own),
                entry(1, "coalesced", two=True, over=over),
            ]
            for r, own in names.items()
        }
        text = explained(tmp_path, entries, {ALL: range(2)}, 2)
        assert (text == "") == over
    assert "rank 0 is in send to rank 1" in text and "coalesced" not in text


def test_nothing_is_told_of_a_run_that_does_not_hang(tmp_path):
    entries = {r: until(9) for r in range(4)}
    assert explained(tmp_path, entries, {ALL: range(4)}, 4) == ""


def test_pytorch_s_own_reader_takes_these_dumps(tmp_path):
    """And says the same of who is missing."""
    entries = {r: until(3) + [entry(3, "all_reduce", over=False)] for r in range(2)}
    entries[2] = until(3)
    details = {
        f"trace_rank_{rank}": {"rank": rank, **dump(own, {ALL: range(3)})}
        for rank, own in entries.items()
    }
    arguments = type("Arguments", (), {"just_print_entries": False, "verbose": False})
    arguments.mismatch_cap, arguments.allow_incomplete_ranks = 10, False
    found = builder.build_db(details, arguments, "2.10").collectives
    assert [call.missing_ranks for call in found if call.missing_ranks] == [{2}]


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


def test_what_is_no_dump_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="plain values, and this one asks for mkdir"):
        unpacked(pickle.dumps({"pg_config": Harm()}))
    assert not os.path.exists("harmed")
    for text in (b"", b"hello", pickle.dumps([1]), pickle.dumps({"entries": []})):
        with pytest.raises(ValueError, match="not a flight recorder's dump"):
            unpacked(text)
    with pytest.raises(ValueError, match=r"no dump .*trace_rank_0, "):
        read(str(tmp_path / "trace_rank_"))
    (tmp_path / "trace_rank_3").write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"trace_rank_3: this is not"):
        read(str(tmp_path / "trace_rank_"))


# ------------------------------------------------------------
# The recorder of the gloo that is here.


def hangs(comm, folder):
    """Rank 2 does not come to the second all_reduce. Each rank writes its dump."""
    x = torch.ones(4)
    dist.all_reduce(x)
    if comm.rank != 2:
        work = dist.all_reduce(x, async_op=True)
    time.sleep(0.2)
    with open(f"{folder}/trace_rank_{comm.rank}", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace(True, False, False))
    if comm.rank == 0:
        comm.send(x, 2)
    if comm.rank == 2:
        comm.recv(x, 0)
        work = dist.all_reduce(x, async_op=True)
    work.wait()


def test_a_dump_of_gloo_s(tmp_path):
    launch(hangs, 3, str(tmp_path), transport="gloo")
    reports = read(f"{tmp_path}/trace_rank_")
    text = "\n".join(explain(reports, 3))
    assert "call 2 of group default_pg is not over:" in text
    assert "ranks 0 and 1 are in all_reduce of Float (4)" in text
    assert "rank 2 has not come to it; its last call there is number 1, all_reduce" in text
    whole = unpacked((tmp_path / "trace_rank_0").read_bytes())
    made = dump([entry(1, "all_reduce")], {ALL: range(3)})
    assert set(whole) == set(made), "the dumps of these tests have another format"
    assert set(whole["entries"][0]) == set(made["entries"][0]) - {"frames"}
    types = lambda entry: {
        name: type(entry[name]) for name in ("process_group", "retired", "state")
    }
    assert types(whole["entries"][0]) == types(made["entries"][0])
    assert report(whole).calls[1].over is False and report(whole).groups == {"": [0, 1, 2]}


# ------------------------------------------------------------
# Ranks that torchrun has started ask one another.


def waits_in_vain(kind):
    """What each rank is told. Rank n - 1 sleeps; the others wait for it, in a chain or in a collective."""
    comm = from_env("gloo", timeout=1)
    last = comm.size - 1
    try:
        if comm.rank == last:
            time.sleep(4)
        elif kind == "chain":
            comm.recv(torch.ones(1), comm.rank + 1)
        else:
            comm.native.all_reduce(torch.ones(4), "sum")
    except RankMissing as error:
        return str(error)
    return ""


def test_a_rank_says_where_the_one_is_that_it_waits_for(figure):
    first, second, _ = in_its_place(waits_in_vain, 3, "chain")
    assert first.startswith("rank 0 waited 1 s for receive of (1,) float32 from rank 1\n")
    assert "  rank 1 is at test_flight.py" in first and "comm.recv(torch.ones(1)" in first
    assert "rank 2 is at test_flight.py" in second and "time.sleep(4)" in second
    figure("gloo, 3 ranks in a chain: each timeout names the other side's line")


def test_and_of_pytorch_s_own_collectives(figure):
    told = in_its_place(waits_in_vain, 3, "collective")
    for rank in (0, 1):
        assert told[rank].startswith(f"rank {rank} waited 1 s for PyTorch's own all_reduce of 3")
        assert "rank 2 is at test_flight.py" in told[rank] and "time.sleep(4)" in told[rank]
    figure("gloo, a collective of 3 ranks: each timeout names the line of the one that is missing")


def asked_twice():
    """What rank 1 says of itself at two lines."""
    comm = from_env("gloo", timeout=10)
    lines = []
    for _ in range(2):
        if comm.rank == 0:
            lines += comm.run.watch.where([1])
            comm.send(torch.ones(1), 1)
        elif lines:
            comm.recv(torch.ones(1), 0)
        else:
            lines.append(comm.recv(torch.ones(2)[:1], 0))
    return lines


def test_a_rank_that_is_asked_twice():
    first, second = in_its_place(asked_twice, 2)[0]
    assert "rank 1 is at test_flight.py" in first and "torch.ones(2)[:1]" in first
    assert "rank 1 is at test_flight.py" in second and "comm.recv(torch.ones(1), 0)" in second


def tells():
    """As over NCCL: nobody waits on the host, and the recorder alone knows that a call is late."""
    comm = from_env("gloo", timeout=60)
    store = dist.PrefixStore("tells", dist.distributed_c10d._get_default_store())
    told = threading.Event()
    lines = []
    watch = flight.Watch(store, comm.rank, comm.size, 0.5, tells=comm.rank == 0)
    watch._tell = lambda: (lines.extend(watch.explained()), told.set())
    if comm.rank == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        told.wait()
        comm.send(torch.ones(1), 1)
    else:
        comm.recv(torch.ones(1), 0)  # is here until rank 0 has told
        work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    watch.stop()
    return lines, [call.name for call in recorded().calls]


def test_a_late_call_is_told_though_no_host_waits(figure):
    (told, names), (silent, _) = in_its_place(tells, 2)
    assert silent == [] and names == ["all_reduce"]
    assert told[0] == "call 1 of group default_pg is not over:"
    assert told[1].startswith("  rank 0 is in all_reduce of Float (4) at test_flight.py")
    assert told[2].startswith("  rank 1 has not come to it; it is at test_flight.py")
    figure("the recorder alone: " + " ".join(line.strip() for line in told))
