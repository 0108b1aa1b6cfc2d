"""On GPUs (`make gpu`) what the other tests show on the CPU. Here, too, each program runs on the CPU first, over gloo.

Ranks of a World share one GPU. Under torchrun each has its own, over NCCL: one rank, and as many as there are GPUs.
"""

import json

import pytest
import torch

from minidist.collectives import all_reduce_, all_to_all, broadcast_, reduce_scatter
from minidist.comm import World, from_env
from tests import parallelized
from tests.comm import test_posted_order
from tests.comm.torchrun import in_its_place
from tests.examples.scripts import as_torchrun, results
from tests.test_parallelize import CASES, STEPS

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
SEEN = pytest.mark.skipif(not GPUS, reason="no GPU is seen: where there is one, `make gpu`")
DEVICES = ["cpu", pytest.param("cuda", marks=SEEN)]
OVER = [("gloo", 2), *(pytest.param("nccl", n, marks=pytest.mark.skipif(n > GPUS, reason=f"{n} GPUs, and {GPUS} seen"))
                       for n in (1, 2, 3, 4, 8))]  # fmt: skip


def on_a_grid(comm, name):
    (dp, pp, tp), shape, options = CASES[name]
    return parallelized.train(comm, dict(dp=dp, pp=pp, tp=tp), shape, options, STEPS)


def compare(name, found):
    loss, parameter = parallelized.gaps(found, *parallelized.serial(CASES[name][1], STEPS))
    assert loss < 1e-10, (name, loss)
    assert parameter < 1e-9, (name, parameter)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["one rank, zero 3", "dp 2, pp 2, overlapped", "tp 2", "zero 2", "all at once"])
def test_ranks_of_a_world_share_one(device, name):
    n = parallelized.ranks(dict(enumerate(CASES[name][0])))
    compare(name, World(n, device=device).run(on_a_grid, name))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_half_precision(device, level):
    shape = parallelized.SHAPE | dict(dtype=torch.float32)
    [(losses, _)] = World(1, device=device).run(parallelized.train, dict(dp=1), shape, dict(amp=level), STEPS)
    whole, _ = parallelized.serial(shape, STEPS)
    assert all(0 < abs(a - b) < 0.03 for a, b in zip(losses, whole, strict=True)), (losses, whole)  # not in 32 bits


def collectives(backend):
    """The device, and each result's largest difference from what the ranks' numbers make, added in rank order."""
    comm = from_env(backend)
    n, r = comm.size, comm.rank
    xs = [torch.randn(12 * n, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in range(n)]
    mine, total = (lambda: xs[r].clone().to(comm.device)), sum(xs)
    found = {f"all_reduce, {algorithm}": all_reduce_(comm, mine(), algorithm=algorithm).cpu() - total
             for algorithm in ("native", "ring", "tree", "halving_doubling", "auto")}  # fmt: skip
    for algorithm in ("native", "ring"):
        part = reduce_scatter(comm, mine(), algorithm=algorithm)
        found[f"reduce_scatter, {algorithm}"] = part.cpu() - total.chunk(n)[r]
    found["broadcast"] = broadcast_(comm, mine(), n - 1).cpu() - xs[n - 1]
    found["all_to_all"] = all_to_all(comm, mine()).cpu() - torch.cat([x.chunk(n)[r] for x in xs])
    return comm.device.type, {name: gap.abs().max().item() for name, gap in found.items()}


@pytest.mark.parametrize(("backend", "n"), OVER)
def test_collectives(backend, n):
    for device, gaps in in_its_place(collectives, n, backend):
        assert device == ("cuda" if backend == "nccl" else "cpu")
        assert all(gap < 1e-13 for gap in gaps.values()), gaps


POSTED = ("send_first", "receive_first_waits_crossed", "many_outstanding", "mixed_sizes", "a_batch_between",
          "a_collective_between", "polled")  # fmt: skip


def in_any_order(backend):
    """How many messages came right: over NCCL what is posted starts together, at the first wait."""
    comm = from_env(backend)
    cases = [getattr(test_posted_order, name) for name in POSTED]
    return sum(test_posted_order.compare(case(comm)) for case in cases) if comm.size > 1 else 0


@pytest.mark.parametrize(("backend", "n"), OVER)
def test_posted_operations(backend, n):
    assert all(count > 0 for count in in_its_place(in_any_order, n, backend)) or n == 1


def on_their_own(backend, name):
    return on_a_grid(from_env(backend), name)


@pytest.mark.parametrize(("backend", "n"), OVER)
def test_grids(backend, n):
    for name, (axes, _, _) in CASES.items():
        if parallelized.ranks(dict(enumerate(axes))) == n and (n < 8 or name in ("zero 3", "all at once")):
            compare(name, in_its_place(on_their_own, n, backend, name))


@pytest.mark.parametrize(("backend", "n"), OVER)
def test_the_trainer(backend, n, tmp_path):
    """In 16 bits, whole layers computed again, ZeRO: saved, gone on with, and what it says of the device."""
    shape = ["--layers", "2", "--hidden", "32", "--context", "16", "--batch", str(2 * n), "--sample", "4"]
    flags = [*shape, "--zero", "2", "--amp", "O2", "--recompute", "full", "--backend", backend, "--folder",
             str(tmp_path / "run")]  # fmt: skip
    runs = {steps: [*flags, "--steps", steps] for steps in ("3", "6")}
    found = results("train_gpt.py", runs, tmp_path, as_torchrun, ranks=n)
    assert "goes on at step 3" in found["6"]["printed"] and found["6"]["losses"][:3] == found["3"]["losses"]
    assert found["6"]["losses"][-1] < found["6"]["losses"][0]
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert len(lines) == 6 and all(line["MFU"] > 0 and line["tokens/s"] > 0 for line in lines)
