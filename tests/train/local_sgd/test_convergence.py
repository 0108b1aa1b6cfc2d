"""Local SGD learns as data parallelism does, with a fraction of the bytes; variants that are wrong do not."""

import torch
from torch.nn.functional import cross_entropy

from minidist.collectives import broadcast_
from minidist.comm import World
from minidist.models import mlp
from minidist.tasks import digits
from minidist.train.local_sgd import LocalSGD

RANKS = 3
SEEDS = range(5)
STEPS = 40
BATCH = 16


class OnlyAtTheEnd(LocalSGD):
    """Each rank trains alone; one average at the very end."""

    def average(self):
        if self.steps == STEPS:
            super().average()


class FirstWins(LocalSGD):
    """All take the parameters of rank 0 instead of the average."""

    def average(self):
        broadcast_(self.comm, list(self._moved))
        self.since = 0


def trained(comm, task, seed, wrap=LocalSGD, H=4, **options):
    """The loss on the test set. Rank r has the images of few classes: those of the sorted data's r-th part."""
    order = task.y.argsort(stable=True)
    mine = order[comm.rank * len(order) // comm.size : (comm.rank + 1) * len(order) // comm.size]
    module = mlp([64, 32, 10], seed=seed)
    optimizer = wrap(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), comm, H, **options)
    random = torch.Generator().manual_seed(seed * comm.size + comm.rank)
    for _ in range(STEPS):
        part = mine[torch.randint(len(mine), (BATCH,), generator=random)]
        optimizer.zero_grad()
        loss = cross_entropy(module(task.x[part]), task.y[part])
        loss.backward()
        optimizer.step(loss=loss)
    optimizer.average()
    with torch.no_grad():
        return cross_entropy(module(task.test_x), task.test_y).item()


def losses(task, **options):
    return [World(RANKS).run(trained, task, seed, **options)[0] for seed in SEEDS]


def test_it_learns_and_wrong_variants_do_not():
    """By more than the spread of five seeds of either."""
    task = digits(torch.float32)
    right, wrong = losses(task), [losses(task, wrap=wrap) for wrap in (OnlyAtTheEnd, FirstWins)]
    # the other's are from 5 to 10
    spread = max(max(found) - min(found) for found in (right, wrong[0]))
    assert min(map(min, wrong)) - max(right) > spread
