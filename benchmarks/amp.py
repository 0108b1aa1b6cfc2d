"""Mixed precision: what loss each way reaches, and ours beside torch.amp in time and memory.

    python -m benchmarks.amp [--quick] [--only losses speed]

losses: fp32 and fp16 on the same batches from the same initial weights, five seeds, on the CPU. Each figure is the
loss on fixed data afterwards; `off` is the median over the seeds of |loss / fp32's loss − 1|, `spread` how far the
fp32 losses of the seeds lie apart, (highest − lowest) / lowest. In "digits" and "gpt" each step has the gradient of
one micro-batch as it is in a large batch: a sum over its samples divided by the batch's 2²² samples or tokens
(GPT-3's batch has 3.2 million tokens). Adam takes the same steps whatever that factor is, so fp32 trains as usual,
but gradients are near 2⁻²⁵, where fp16 ends. "updates" has plain SGD with a mean loss at a small rate, where O3 loses
updates: its gradients are large enough, and no scale would help.

speed: a GPT on a GPU, ours (O1, O2) beside torch.autocast and GradScaler: time of a step in ms, median [quartiles],
interleaved; peak bytes by PyTorch's allocator; the loss after each step. Without a GPU it says so, and compares bf16
on the CPU with a small GPT. `ratio NAME VALUE`: PyTorch's time over ours; above 1, ours is faster.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.data_parallel import spread
from benchmarks.options import options
from minidist.models import gpt, mlp, next_token_loss
from minidist.tasks import Task, digits
from minidist.train.amp import LossScaler, exponents, lost, prepare
from tests.largest import largest

SEEDS = (0, 1, 2, 3, 4)
WHOLE = 2**22  # samples or tokens of the batch of which a step here has one micro-batch
f16, bf16 = torch.float16, torch.bfloat16

WAYS = {  # name: level, dtype, whether the loss is scaled
    "fp32": ("O0", f16, True),
    "O1": ("O1", f16, True),
    "O2": ("O2", f16, True),
    "O1, no scaler": ("O1", f16, False),
    "O2, no scaler": ("O2", f16, False),
    "O3": ("O3", f16, True),
    "O2, bf16": ("O2", bf16, True),
    "O3, bf16": ("O3", bf16, True),
}


class Job(NamedTuple):
    """Something to learn: a model and batches by seed, the loss of a micro-batch, an optimizer, data to judge by."""

    model: Callable[[int], nn.Module]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[[list], torch.optim.Optimizer]
    steps: int
    judge: tuple[Tensor, Tensor]
    ways: tuple[str, ...]


def mean_loss(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, -2).float(), y.flatten())


def share_of_the_whole(out: Tensor, y: Tensor) -> Tensor:
    """A micro-batch's part of the mean over the whole batch."""
    return F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="sum") / WHOLE


@cache
def letters() -> Tensor:
    """The Python language reference that ships with CPython, as bytes."""
    return torch.tensor(list("\n".join(topics[key] for key in sorted(topics)).encode()))


def some_text(random: torch.Generator, rows: int, context: int) -> tuple[Tensor, Tensor]:
    """`rows` pieces of text, and what comes after each letter: (rows, context) twice."""
    places = torch.randint(0, len(letters()) - context - 1, (rows, 1), generator=random)
    piece = letters()[places + torch.arange(context + 1)]
    return piece[:, :-1], piece[:, 1:]


@cache
def images() -> Task:
    return digits(torch.float32)


def some_digits(random: torch.Generator, number: int = 128) -> tuple[Tensor, Tensor]:
    chosen = torch.randint(0, len(images().x), (number,), generator=random)
    return images().x[chosen], images().y[chosen]


# eps far below the gradients, which are 2²² / samples times as small as usual
adam = partial(torch.optim.Adam, lr=3e-3, eps=1e-16)
SMALL = ("fp32", "O1", "O2", "O1, no scaler", "O2, no scaler", "O3")


def jobs() -> dict[str, Job]:
    text = some_text(torch.Generator().manual_seed(99), 64, 32)
    layers = [64, 64, 64, 10]
    return {
        "digits": Job(
            lambda seed: mlp(layers, seed),
            some_digits,
            share_of_the_whole,
            adam,
            60,
            images()[:2],
            SMALL,
        ),
        "gpt": Job(
            lambda seed: gpt(2, 32, 2, 256, 32, seed=seed),
            partial(some_text, rows=8, context=32),
            share_of_the_whole,
            adam,
            60,
            text,
            SMALL,
        ),
        "updates": Job(
            lambda seed: mlp(layers, seed),
            some_digits,
            mean_loss,
            partial(torch.optim.SGD, lr=0.01),
            1000,
            images()[:2],
            ("fp32", "O2", "O3", "O2, bf16", "O3, bf16"),
        ),
    }


def reached(job: Job, way: str, seed: int, steps: int | None = None) -> float:
    """The loss on the job's data after its steps; nan and inf where training broke down."""
    level, dtype, scaled = WAYS[way]
    amp = prepare(
        job.model(seed),
        job.optimizer,
        level,
        dtype,
        scaler=None if scaled else LossScaler(enabled=False),
    )
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps or job.steps):
        x, y = job.batch(random)
        with amp.autocast:
            loss = job.loss(amp.model(x), y)
        amp.step(loss)
    with torch.no_grad(), amp.autocast:
        return mean_loss(amp.model(job.judge[0]), job.judge[1]).item()


def off(losses: list[float], exact: list[float]) -> float:
    """The median over the seeds of how far a loss is from fp32's, relative; inf where it is not a number."""
    return statistics.median(
        abs(a / b - 1) if math.isfinite(a) else math.inf for a, b in zip(losses, exact)
    )


def table_of_losses(seeds=SEEDS) -> dict[str, dict[str, list[float]]]:
    """Print every job's table; returns {job: {way: loss of each seed}}. One thread: the models are small."""
    found, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    for name, job in jobs().items():
        print(f"{name}: {job.steps} steps, loss by seed {', '.join(map(str, seeds))}")
        found[name] = {}
        for way in job.ways:
            losses = found[name][way] = [reached(job, way, seed) for seed in seeds]
            exact = found[name]["fp32"]
            word = (
                f"off {off(losses, exact):.2%}"
                if way != "fp32"
                else f"spread {max(exact) / min(exact) - 1:.1%}"
            )
            print(f"  {way:<14} {'  '.join(f'{loss:.4f}' for loss in losses)}   {word}", flush=True)
    print(seen())
    torch.set_num_threads(threads)
    return found


def seen(seed: int = 0) -> str:
    """Why, in counts: gradients of the GPT at its start, and updates halfway through "updates"."""
    job = jobs()["gpt"]
    net = job.model(seed)
    job.loss(net(job.judge[0][:8]), job.judge[1][:8]).backward()
    rows = [exponents([p.grad for p in net.parameters()], f16, scale) for scale in (1.0, 2.0**16)]
    said = [
        f"{r.underflow / r.total:.1%} become 0, {r.subnormal / r.total:.1%} subnormal" for r in rows
    ]
    job = jobs()["updates"]
    net, random = job.model(seed), torch.Generator().manual_seed(seed)
    optimizer = job.optimizer(net.parameters())
    for _ in range(job.steps // 2):
        optimizer.zero_grad()
        x, y = job.batch(random)
        job.loss(net(x), y).backward()
        optimizer.step()
    updates = [-optimizer.param_groups[0]["lr"] * p.grad for p in net.parameters()]
    shares = [f"{lost(updates, net.parameters(), dtype):.1%} in {dtype}" for dtype in (f16, bf16)]
    return (
        f"gradients of the gpt in fp16: {said[0]}; times 2^16: {said[1]}\n"
        f"updates lost halfway through 'updates': {', '.join(shares)}"
    )


# -------------------------------------------------------------------------------------------------------------- speed
class Size(NamedTuple):
    """A GPT and its batch."""

    layers: int
    hidden: int
    heads: int
    context: int
    rows: int


def ours(
    level: str, dtype: torch.dtype, size: Size, device: str
) -> Callable[[Tensor, Tensor], Tensor]:
    amp = prepare(model(size, device), torch.optim.AdamW, level, dtype)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with amp.autocast:
            loss = next_token_loss(amp.model(x), y)
        amp.step(loss)
        return loss.detach()

    return step


def theirs(
    dtype: torch.dtype, size: Size, device: str, enabled: bool = True
) -> Callable[[Tensor, Tensor], Tensor]:
    """torch.autocast, with GradScaler where the dtype needs it; not enabled: fp32."""
    net = model(size, device)
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler(device, enabled=enabled and dtype == f16)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device, dtype) if enabled else nullcontext():
            loss = next_token_loss(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step


def model(size: Size, device: str) -> nn.Module:
    return gpt(size.layers, size.hidden, size.heads, 256, size.context, device=device)


def timed(step: Callable, x: Tensor, y: Tensor, device: str) -> tuple[float, float, int]:
    """Seconds, loss, and peak bytes (0 on the CPU) of one step."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    loss = step(x, y).item()  # waits for the GPU
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return time.perf_counter() - start, loss, peak


def alone(make: Callable, x: Tensor, y: Tensor, device: str) -> int:
    """Peak bytes of the third step of a way that has the GPU for itself."""
    step = make()
    return [timed(step, x, y, device)[2] for _ in range(3)][-1]


def speed(dtype: torch.dtype, size: Size, device: str, repeats: int) -> dict[str, float]:
    """Print a table of the ways; returns {way: torch's median time over its}."""
    x, y = (
        t.to(device) for t in some_text(torch.Generator().manual_seed(0), size.rows, size.context)
    )
    where = dtype, size, device
    makes = {
        "fp32": partial(theirs, *where, enabled=False),
        "torch.amp": partial(theirs, *where),
        "ours, O1": partial(ours, "O1", *where),
        "ours, O2": partial(ours, "O2", *where),
    }
    peaks = {name: alone(make, x, y, device) for name, make in makes.items()}
    steps = {name: make() for name, make in makes.items()}
    times = {}
    curves = {}
    for k in range(3 + repeats):
        for name, step in steps.items():
            seconds, loss, _ = timed(step, x, y, device)
            curves.setdefault(name, []).append(loss)
            if k >= 3:
                times.setdefault(name, []).append(seconds)
    print(
        f"{dtype} on {device}, {size}, a step in ms: median [quartiles], peak bytes, loss after {3 + repeats} steps, "
        "its largest distance from fp32's curve"
    )
    for name, own in times.items():
        far = largest(abs(a / b - 1) for a, b in zip(curves[name], curves["fp32"]))
        memory = f"{peaks[name]:>14,}" if peaks[name] else f"{'not counted':>14}"
        print(
            f"  {name:<10} {spread(own):<26} {memory}  {curves[name][-1]:.4f} {far:.2%}", flush=True
        )
    ratios = {
        name: statistics.median(a / b for a, b in zip(times["torch.amp"], own))
        for name, own in times.items()
    }
    for name in ("ours, O1", "ours, O2"):
        print(f"ratio amp_{name[-2:]}_{str(dtype)[6:]}_{device} {ratios[name]:.3f}")
    return ratios


if __name__ == "__main__":
    args = options(__doc__, only=("losses", "speed"), quick="two seeds, few repeats")
    if "losses" in args.only:
        table_of_losses(SEEDS[:2] if args.quick else SEEDS)
    if "speed" in args.only and torch.cuda.is_available():
        for half in (f16, bf16):
            speed(half, Size(12, 1024, 16, 512, 16), "cuda", 5 if args.quick else 30)
    elif "speed" in args.only:
        print(
            "no GPU here. With one: a GPT of 12 layers, hidden 1,024, in fp16 and bf16, ours (O1 and O2) beside "
            "torch.autocast with GradScaler and fp32: time, memory, loss curve. Instead, small, bf16 on the CPU:"
        )
        torch.set_num_threads(1)
        speed(bf16, Size(2, 128, 4, 64, 4), "cpu", 5 if args.quick else 20)
