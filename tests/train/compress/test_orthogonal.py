"""Orthonormal columns, of the same span, with torch's signs."""

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

from minidist.train.compress.orthogonal import orthogonalize_


@pytest.mark.parametrize("shape", [(5, 1), (5, 2), (7, 3), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_as_torchs(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )
    theirs = x.clone()[None]
    _orthogonalize(theirs)
    ours = orthogonalize_(x.clone()).double()
    bound = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 3e-2}[dtype]
    assert (ours - theirs[0].double()).abs().max() < bound
    assert (ours.T @ ours - torch.eye(shape[1])).abs().max() < 4 * bound


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_of_zeros_nothing_is_nan(columns):
    assert orthogonalize_(torch.zeros(4, columns)).isfinite().all()
