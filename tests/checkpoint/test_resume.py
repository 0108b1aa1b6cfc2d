"""Stopped and resumed is the same as never stopped: every bit of it, with all that a program remembers."""

import pytest
import torch
from torch import nn

from minidist.checkpoint import Checkpoints, load, pieces, random_state, set_random_state
from minidist.parallel.compress import PowerSGD
from minidist.parallel.data import DataParallel, Sampler
from minidist.parallel.zero import FullySharded, ShardedOptimizer
from minidist.train.amp import LossScaler
from tests.checkpoint import cases
from tests.parallel.cases import SAMPLES, data, made, mse

EVERYWHERE = pytest.mark.parametrize(
    ("where", "n"), [*(("world", n) for n in (1, 2, 3, 4)), ("processes", 2)]
)
STEPS, BATCH = 7, 12


class Program:
    """Training with dropout, a schedule, a loss scale that grows, and error feedback or a sharded optimizer."""

    def __init__(self, comm, how, seed):
        torch.manual_seed(seed + 10 * comm.rank)
        self.comm = comm
        self.how = how
        self.compression = None
        self.step = 0
        self.module = nn.Sequential(made("mlp", seed), nn.Dropout(0.25))
        model, adam = self.module, torch.optim.AdamW
        if how == "compressed":
            self.compression = PowerSGD(rank=1)
            model = DataParallel(model, comm, compression=self.compression)
            self.optimizer = adam(self.module.parameters(), lr=0.05)
        elif how == "fully":
            model = self.module = FullySharded(model, comm)
            self.optimizer = adam(model.parameters(), lr=0.05)
        else:
            self.optimizer = ShardedOptimizer(model.parameters(), adam, comm, 2, lr=0.05)
        self.model, self.scaler = model, LossScaler(8.0, growth_interval=2, comm=comm)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)

    def train(self, steps):
        """On shuffled batches, from wherever the epoch is. Returns the losses."""
        losses, (x, y) = [], data()
        for _ in range(steps):
            sampler = Sampler(SAMPLES, BATCH, self.comm, seed=1)
            sampler.set_epoch(self.step // (SAMPLES // BATCH))
            part = list(sampler)[self.step % len(sampler)]
            self.optimizer.zero_grad()
            loss = mse(self.model(x[part]), y[part])
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            self.step += 1
            losses.append(loss.item())
        return losses

    def save(self, checkpoints):
        common = {"scaler": self.scaler.state_dict(), "schedule": self.schedule.state_dict()}
        own = {
            "random": random_state(),
            "feedback": self.compression and self.compression.state_dict(),
        }
        checkpoints.save(self.step, pieces(self.module, self.optimizer), common, own, wait=False)

    def load(self, checkpoints):
        found = checkpoints.latest()
        common, own = checkpoints.common(found), checkpoints.own(found)
        load(found, self.module, self.optimizer)
        self.scaler.load_state_dict(common["scaler"])
        self.schedule.load_state_dict(common["schedule"])
        if self.compression:
            self.compression.load_state_dict(own["feedback"])
        set_random_state(own["random"])
        self.step = found.step

    def end(self):
        """All that is left of a run."""
        state = self.optimizer.state_dict()["state"]
        return (
            [p.detach().clone() for p in self.module.parameters()],
            [x for of in state.values() for x in of.values()],
            self.scaler.state_dict(),
            torch.rand(2),
        )


def undisturbed(comm, how):
    program = Program(comm, how, 0)
    return program.train(STEPS), program.end()


def first(comm, how, folder, steps):
    program = Program(comm, how, 0)
    losses = program.train(steps)
    checkpoints = Checkpoints(folder, comm)
    program.save(checkpoints)
    program.train(1)  # while it is written; lost
    checkpoints.wait()
    return losses


def second(comm, how, folder, forget=None):
    program = Program(comm, how, 1)  # other values, other random numbers
    program.load(Checkpoints(folder, comm))
    if forget == "random":
        torch.manual_seed(3)
    if forget == "feedback":
        program.compression.load_state_dict(program.compression.state_dict() | {"parameters": {}})
    return program.train(STEPS - program.step), program.end()


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@EVERYWHERE
@pytest.mark.parametrize("how", ["compressed", "zero", "fully"])
def test_every_bit(tmp_path, where, n, how):
    run = cases.RUNS[where]
    oracle = run(n, undisturbed, how)
    losses = run(n, first, how, tmp_path, 4)
    for (whole, end), before, (after, again) in zip(
        oracle, losses, run(n, second, how, tmp_path), strict=True
    ):
        assert before + after == whole
        assert same(end, again)


@pytest.mark.parametrize("forget", ["random", "feedback"])
def test_what_is_forgotten_shows(tmp_path, forget):
    run = cases.RUNS["world"]
    oracle = run(2, undisturbed, "compressed")
    run(2, first, "compressed", tmp_path, 4)
    assert not any(map(same, oracle, run(2, second, "compressed", tmp_path, forget)))
