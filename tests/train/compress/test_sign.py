"""Signs: against the paper's rule in numpy; packed; and what error feedback is for."""

import numpy as np
import pytest
import torch

from minidist.comm import World
from minidist.parallel.data import DataParallel
from minidist.train.compress import Sign
from minidist.train.compress.sign import pack, unpack
from tests.train.compress.cases import EVERYWHERE, RUNS, by_oracle, train, worst


class Oracle:
    """Karimireddy et al. 2019, Algorithm 1, for each rank and tensor."""

    def __init__(self, feedback=True):
        self.errors, self.feedback = {}, feedback

    def __call__(self, step, grads):
        averages = {}
        for rank, of in enumerate(grads):
            for name, g in of.items():
                p = g + self.errors.get((rank, name), 0)
                sent = np.linalg.norm(p.ravel(), 1) / p.size * np.where(p < 0, -1.0, 1.0)
                if self.feedback:
                    self.errors[rank, name] = p - sent
                averages[name] = averages.get(name, 0) + sent
        return averages


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize("feedback", [True, False])
def test_the_papers_rule(run, n, feedback):
    results = RUNS[run](n, train, Sign(feedback))
    assert worst(results, by_oracle(Oracle(feedback), n)) < 1e-12


def test_with_weights():
    assert worst(World(3).run(train, Sign(), 6, True), by_oracle(Oracle(), 3, 6, True)) < 1e-12


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 1001])
def test_packing(length):
    signs = torch.randn(length, generator=torch.Generator().manual_seed(length)) >= 0
    packed = pack(signs)
    assert packed.dtype == torch.uint8 and packed.numel() == -(-length // 8)
    assert torch.equal(unpack(packed, length, torch.float32), signs.float() * 2 - 1)


class Line(torch.nn.Module):
    """A linear function: 200 steps of SGD at a rate of 0.01 move x by −2 times its slope."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.ones(10, dtype=torch.float64))

    def forward(self, slope):
        return (slope * self.x).sum()


def missed(comm, feedback):
    """How far x is from where it should be. One slope is 100 times as steep as the others, and the other way."""
    slope = torch.full((10,), 0.01, dtype=torch.float64)
    slope[0] = -1.0
    line = Line()
    model = DataParallel(line, comm, compression=Sign(feedback))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        model(slope).backward()
        optimizer.step()
    return (line.x.detach() - (1 - 2 * slope)).abs().max().item()


def test_without_error_feedback_all_move_alike():
    with_it, without = (World(2).run(missed, feedback)[0] for feedback in (True, False))
    assert with_it < 0.2 and without > 1
