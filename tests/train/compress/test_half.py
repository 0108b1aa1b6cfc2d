"""16 bits: beside PyTorch's own hooks, and what they lose."""

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.parallel.data import DataParallel
from minidist.train.compress import Half
from tests.train.compress.cases import EVERYWHERE, RUNS, Momentum, by_oracle, train, worst


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize(("dtype", "unit"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_within_a_rounding(run, n, dtype, unit):
    """Gradients here are below 2, so an average of n is off by less than 2n roundings, and the learning rate less."""
    results = RUNS[run](n, train, Half(dtype), 1)
    assert worst(results, by_oracle(Momentum(0), n, 1)) < 2 * n * unit * 0.05


def theirs_and_ours(comm):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    def theirs(module):
        model = nn.parallel.DistributedDataParallel(module, process_group=comm.group)
        model.register_comm_hook(comm.group, fp16_compress_hook)
        return model

    found = []
    for wrap in (theirs, lambda module: DataParallel(module, comm, compression=Half())):
        torch.manual_seed(0)
        model = wrap(nn.Linear(20, 30))
        x = torch.randn(4, 20, generator=torch.Generator().manual_seed(comm.rank))
        model(x).square().mean().backward()
        found.append(model.module.weight.grad.clone())
    return found


def test_beside_pytorchs_hook():
    """Bit for bit at two ranks: halving before or after the rounding is the same."""
    for theirs, ours in launch(theirs_and_ours, 2, transport="gloo"):
        assert torch.equal(theirs, ours)


def test_no_overflow_in_the_sum():
    def program(comm):
        layer = nn.Linear(1, 1, bias=False)
        (DataParallel(layer, comm, compression=Half())(torch.ones(1, 1)) * 40_000).sum().backward()
        return layer.weight.grad.item()

    assert World(4).run(program) == [40_000.0] * 4


def test_bf16_has_the_range_of_fp32():
    def program(comm):
        layer = nn.Linear(1, 1, bias=False)
        (
            DataParallel(layer, comm, compression=Half(torch.bfloat16))(torch.ones(1, 1)) * 2.0**20
        ).sum().backward()
        return layer.weight.grad.item()

    assert World(2).run(program) == [2.0**20] * 2


def test_a_dtype_that_is_not_half():
    with pytest.raises(ValueError, match="float32"):
        Half(torch.float32)
