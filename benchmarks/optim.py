"""Large batches: where the linear rule breaks, what LARS and LAMB hold, and what warm-up is for.

    python -m benchmarks.optim [--quick] [--only NAME …]

The digits, a multi-layer perceptron whose initial weights are three times as large as usual, so that the loss is sharp
at the start; 30 epochs whatever the batch, warm-up over a fifth of the steps, then a cosine to 0. SGD with momentum has
a rate of 0.05 at a batch of 32, and k times that (linear) or √k times (root) at 32k. Figures: accuracy on the test
images in percent, one for each of five seeds, which draw the weights and the order.

"linear, k = 8": the rule holds, and without warm-up it does not. From k = 16 on warm-up does not save it.

"critical": steps of plain SGD to a loss of 0.3 with batches of 2 to 512, at the rate that is best for a noise scale of
40 samples, which is about what gradients of 64 samples say on the way there; beside them fewest·(1 + 40/B).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.options import options
from minidist.models import mlp
from minidist.tasks import Task, digits
from minidist.train.optim import LAMB, LARS, SGD, best_rate, groups, steps_ratio
from minidist.train.schedule import cosine, scaled, warm_up

SEEDS = (0, 1, 2, 3, 4)
EPOCHS = 30
WARM = 0.2
RATE = 0.05
BATCH = 32
NOISE = 40
HIGHEST = 0.8
GOAL = 0.3


def sgd(k: int, rule: str) -> Callable:
    return partial(SGD, lr=scaled(RATE, k, rule).lr, momentum=0.9)


lars = partial(LARS, lr=0.2, trust=0.02, weight_decay=1e-4)
lamb = partial(LAMB, lr=0.04)

CASES: dict[str, tuple[int, Callable, float]] = {  # name: k, optimizer, share of warm-up
    "SGD, k = 1": (1, sgd(1, "linear"), WARM),
    "linear, k = 8": (8, sgd(8, "linear"), WARM),
    "linear, k = 8, no warm-up": (8, sgd(8, "linear"), 0.0),
    "linear, k = 16": (16, sgd(16, "linear"), WARM),
    "root, k = 16": (16, sgd(16, "root"), WARM),
    "LARS, k = 16": (16, lars, WARM),
    "LAMB, k = 16": (16, lamb, WARM),
    "linear, k = 32": (32, sgd(32, "linear"), WARM),
    "root, k = 32": (32, sgd(32, "root"), WARM),
    "LARS, k = 32": (32, partial(lars, lr=0.4), WARM),
    "LAMB, k = 32": (32, partial(lamb, lr=0.06), WARM),
}


@cache
def images() -> Task:
    return digits(torch.float32)


def sharp(seed: int) -> nn.Module:
    """The model at its start."""
    model = mlp([64, 128, 128, 10], seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)  # the biases are 0
    return model


def learn(
    make: Callable, batch: int, warm: float = WARM, seed: int = 0, epochs: int = EPOCHS
) -> float:
    """Accuracy on the test images, in percent, after training. make(groups): the optimizer."""
    model = sharp(seed)
    data = images()
    random = torch.Generator().manual_seed(seed)
    optimizer, each = make(groups(model)), len(data.x) // batch
    first = warm * epochs * each
    schedule = LambdaLR(optimizer, warm_up(first, then=cosine(epochs * each - first, floor=0.0)))
    for _ in range(epochs):
        for part in torch.randperm(len(data.x), generator=random).split(batch)[:each]:
            optimizer.zero_grad()
            F.cross_entropy(model(data.x[part]), data.y[part]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return 100 * (model(data.test_x).argmax(1) == data.test_y).double().mean().item()


def reached(name: str, seed: int) -> float:
    """What one of CASES reaches."""
    k, make, warm = CASES[name]
    return learn(make, BATCH * k, warm, seed)


def table(names=tuple(CASES), seeds=SEEDS) -> dict[str, list[float]]:
    """Print and return the accuracies of each seed. One thread: the model is small."""
    found, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    for name in names:
        found[name] = [reached(name, seed) for seed in seeds]
        print(f"  {name:<27}{'  '.join(f'{x:5.1f}' for x in found[name])}", flush=True)
    torch.set_num_threads(threads)
    return found


def steps_to_goal(batch: int, seed: int, most: int = 4000) -> int:
    """Steps of SGD until the loss on all images is below GOAL, looked at about 30 times a doubling of the steps."""
    model = mlp([64, 32, 10], seed)
    data = images()
    random = torch.Generator().manual_seed(seed)
    optimizer = SGD(model.parameters(), lr=best_rate(HIGHEST, batch, NOISE))
    for step in range(most):
        part = torch.randint(len(data.x), (batch,), generator=random)
        optimizer.zero_grad()
        F.cross_entropy(model(data.x[part]), data.y[part]).backward()
        optimizer.step()
        if step % max(1, step // 30) == 0:
            with torch.no_grad():
                if F.cross_entropy(model(data.x), data.y) < GOAL:
                    return step + 1
    raise RuntimeError(f"{most} steps with a batch of {batch} do not reach a loss of {GOAL}")


def critical(
    sizes=(2, 4, 8, 16, 32, 64, 128, 256, 512), seeds=SEEDS[:3]
) -> dict[int, tuple[float, float]]:
    """Print and return, by batch: the mean of the seeds' steps, and what the law says; the fewest steps fit best."""
    means = {
        batch: sum(steps_to_goal(batch, seed) for seed in seeds) / len(seeds) for batch in sizes
    }
    fewest = statistics.geometric_mean(
        mean / steps_ratio(batch, NOISE) for batch, mean in means.items()
    )
    found = {batch: (mean, fewest * steps_ratio(batch, NOISE)) for batch, mean in means.items()}
    for batch, (mean, says) in found.items():
        print(
            f"  batch {batch:>4}: {mean:>6.1f} steps, {fewest:.1f}·(1 + {NOISE}/{batch}) = {says:.1f}",
            flush=True,
        )
    return found


if __name__ == "__main__":
    args = options(__doc__, only=[*CASES, "critical"], quick="two seeds")
    seeds = SEEDS[:2] if args.quick else SEEDS
    table([name for name in args.only if name in CASES], seeds)
    if "critical" in args.only:
        critical(seeds=seeds[:3])
