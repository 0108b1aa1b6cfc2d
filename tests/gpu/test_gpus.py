"""The programs of the first hour, small: on a CPU over gloo, and on GPUs where pytest is asked for tests/gpu.

Ranks of a World share one device. Those that stand in torchrun's place have each its own, over NCCL: one rank, and as
many as there are GPUs.
"""

import pytest
import torch

from minidist.comm import from_env
from tests.comm.torchrun import in_its_place
from tests.examples.scripts import as_torchrun
from tests.gpu import eight_bits, ranks, runs, versions

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
SEEN = pytest.mark.skipif(not GPUS, reason="no GPU is seen: where there is one, `make gpu`")
DEVICES = ["cpu", pytest.param("cuda", marks=SEEN)]


def over(*numbers, gloo=2):
    """A test over gloo, and over NCCL where there are so many GPUs."""
    nccl = [
        pytest.param(
            "nccl", n, marks=pytest.mark.skipif(n > GPUS, reason=f"{n} GPUs, and {GPUS} seen")
        )
        for n in numbers
    ]
    return pytest.mark.parametrize(("backend", "n"), [("gloo", gloo), *nccl])


def found(backend, name):
    """One rank's finds, and its device: as torchrun would have it, without its start."""
    comm = from_env(backend)
    return ranks.PROGRAMS[name].run(comm), comm.device.type


def seen(name, backend, n):
    """What the ranks' finds show."""
    finds, devices = zip(*in_its_place(found, n, backend, name), strict=True)
    assert set(devices) == {"cuda" if backend == "nccl" else "cpu"}
    return ranks.PROGRAMS[name].check(list(finds))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", runs.SHARED)
def test_ranks_of_a_world_share_one(device, name):
    runs.shared(device, name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", runs.LEVELS)
def test_half_precision(device, level):
    runs.half(device, level)


@SEEN
def test_the_generator_of_a_gpu_goes_on():
    runs.generator_goes_on()


@over(1, 2, 3, 4, 8)
def test_collectives(backend, n):
    assert f"ranks: {n}, collectives: 9" in seen("collectives", backend, n)


@over(2, 3, 4, 8)
def test_posted_operations(backend, n):
    assert "all came right" in seen("posted", backend, n)


@over(1, 2, 3, 4, 8)
def test_grids(backend, n):
    assert f"ranks: {n}, grids: " in seen("grids", backend, n)


@over(2, 4)
def test_pipelines(backend, n):
    each = 2 if backend == "nccl" else 1
    assert f"stages: {n}, pipelines: {each * len(ranks.SCHEDULES)}," in seen(
        "pipelines", backend, n
    )


@over(4, gloo=4)
def test_data_and_tensor_ranks_with_zero_3(backend, n):
    times = 10 if backend == "nccl" else 2
    assert f"runs: {times}," in seen("mixed", backend, n)


@over(2, 4)
def test_overlap(monkeypatch, backend, n):
    if backend == "gloo":  # ranks share the cores, and with whatever else runs
        monkeypatch.setattr(ranks, "LEAST_HIDDEN", 0.02)
    assert "hidden are" in seen("overlap", backend, n)


@over(2, 4)
def test_bandwidth(backend, n):
    assert "MiB: ring" in seen("bandwidth", backend, n)


@over(1, 2, 4)
def test_the_trainer(backend, n, tmp_path):
    assert "6 steps with a stop" in runs.trainer(as_torchrun, n, backend, tmp_path)


@over(1, 2, 4)
def test_saving(backend, n, tmp_path):
    assert f"ranks: {n}, checkpoints: 6," in runs.saving(as_torchrun, n, backend, tmp_path)


@over(2, 4)
def test_digits(backend, n, tmp_path):
    assert f"ranks: {n}, over gloo" in runs.digits(as_torchrun, n, backend, tmp_path)


@pytest.mark.parametrize("device", DEVICES)
def test_versions(device):
    told = versions.versions()
    assert told["PyTorch"] == torch.__version__ and ("GPU 0" in told) == bool(GPUS)
    assert versions.works("gloo" if device == "cpu" else "nccl").startswith(f"{device} multiplies")
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        versions.works("no backend")


def test_eight_bits(capsys):
    """On a CPU beside PyTorch's kernels for it; on a GPU beside the chip's."""
    eight_bits.main()
    assert capsys.readouterr().out.startswith("seen: ")
