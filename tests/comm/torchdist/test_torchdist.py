"""Any torch.distributed group as a Comm: groups that exist already, and torchrun."""

import pytest
import torch
import torch.distributed as dist

from minidist.comm import ANY, TorchComm, World, from_env, launch
from tests.comm.torchrun import in_its_place


def program():
    comm = from_env(seed=7)
    n, r = comm.size, comm.rank
    x = torch.tensor([r])
    y = comm.sendrecv(x, (r + 1) % n, torch.zeros_like(x), (r - 1) % n)
    half = comm.split(r % 2, key=-r)
    lane = comm.stream(
        lambda c: c.sendrecv(x, (r + 1) % n, torch.zeros_like(x), (r - 1) % n).item()
    )
    total = torch.ones(2)
    comm.native.all_reduce(total, "sum")
    try:
        if r == 0:
            comm.send(torch.ones(2), 1)
        else:
            comm.recv(torch.ones(3), 0) if r == 1 else None
        said = "agreed"
    except ValueError as error:
        said = "refused" if "rank 0 sends (2,)" in str(error) else str(error)
    number = torch.rand(1).item()
    again = from_env().rank  # a second time is the same
    return (
        r,
        n,
        type(comm).__name__,
        y.item(),
        half.rank,
        half.size,
        lane.wait(),
        total.sum().item(),
        said,
        again,
        number,
    )


def test_from_env(capsys):
    """Under torchrun itself: tests/examples."""
    numbers = World(3, seed=7).run(lambda comm: torch.rand(1).item())
    assert list(in_its_place(program, 3)) == [
        (r, 3, "TorchComm", (r - 1) % 3, half, 2 - r % 2, (r - 1) % 3, 6.0, said, r, numbers[r])
        for r, half, said in [(0, 1, "agreed"), (1, 0, "refused"), (2, 0, "agreed")]
    ]
    assert "Warning" not in capsys.readouterr().err


def test_from_env_outside_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node 4"):
        from_env()
    for name, value in {"RANK": "0", "WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "64"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"64 ranks on this machine and \d GPUs"):
        from_env(backend="nccl")
    for name, value in {
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        RuntimeError, match=r"--max-restarts 3: .* TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    ):
        from_env()
    assert not dist.is_initialized()


def test_groups_that_exist_already():
    def program(comm):
        group = dist.new_group([1, 3])
        everyone = TorchComm()
        x = torch.tensor([comm.rank])
        around = everyone.sendrecv(
            x, (comm.rank + 1) % 4, torch.zeros_like(x), (comm.rank - 1) % 4
        ).item()
        if comm.rank % 2 == 0:
            return around
        pair = TorchComm(group)
        y = pair.sendrecv(x, 1 - pair.rank, torch.zeros_like(x), 1 - pair.rank)
        any_ = torch.zeros(1)
        if pair.rank == 1:
            pair.send(torch.ones(1), 0)
            source = None
        else:
            work = pair.irecv(any_, ANY)
            work.wait()
            source = work.source
        alone = pair.split(pair.rank)
        reverse = pair.split(0, key=-pair.rank)
        z = reverse.sendrecv(x, 1 - reverse.rank, torch.zeros_like(x), 1 - reverse.rank)
        pair.native.all_reduce(x, "sum")
        return around, pair.rank, y.item(), source, alone.size, reverse.rank, z.item(), x.item()

    assert launch(program, 4, transport="gloo") == [
        3,
        (0, 0, 3, 1, 1, 1, 3, 4),
        1,
        (2, 1, 1, None, 1, 0, 1, 4),
    ]


def test_works_are_waited_for_in_any_order():
    def program(comm):
        xs = [torch.zeros(1) for _ in range(4)]
        works = [
            comm.isend(torch.tensor([float(i)]), 1) if comm.rank == 0 else comm.irecv(x, 0)
            for i, x in enumerate(xs)
        ]
        for i in (2, 0, 3, 1):
            if i == 3:
                while not works[i].done():  # a thread reads the headers that come before
                    pass
            works[i].wait()
            works[i].wait()  # waiting twice is waiting once
        return [x.item() for x in xs]

    assert launch(program, 2, transport="gloo")[1] == [0, 1, 2, 3]


def test_checked_or_not():
    def program(comm):
        plain = TorchComm(checked=False)
        assert comm.checked and not plain.checked
        x = torch.full((2,), float(comm.rank))
        work = plain.irecv(x, ANY) if comm.rank else plain.isend(x, 1)
        work.wait()
        strided = torch.zeros(2, 2)[:, 0]
        if comm.rank:
            plain.recv(strided, 0)
        else:
            plain.send(torch.ones(2), 1)
        return work.source, x.tolist(), strided.tolist()

    assert launch(program, 2, transport="gloo")[1] == (0, [0, 0], [1, 1])


def test_a_header_needs_gloo():
    class Other:
        pass

    with pytest.raises((ValueError, TypeError, RuntimeError)):
        TorchComm(Other(), checked=True)
