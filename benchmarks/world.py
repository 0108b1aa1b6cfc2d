"""What a World costs: a message, a metered operation, a rank.

    python -m benchmarks.world [--quick]

A message: a ring all-reduce on meta tensors, which computes nothing, over 8 to 1,024 ranks, in turns; seconds of
this process's own time, which equal wall time on a machine that does nothing else (both are shown).
`ratio world_n=1024 VALUE`: the cost of a message there over that at 8 ranks. The meter: forward and backward of a
transformer layer in a World of one rank, with and without. A rank: resident memory while all ranks are alive.
"""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.options import options
from minidist.collectives import all_reduce_, barrier
from minidist.comm import Cluster, World, launch
from minidist.models import TransformerLayer

RANKS = (8, 64, 512, 1024)


def reduce_meta(comm, repeats: int) -> tuple[float, float]:
    """Seconds of `repeats` ring all-reduces: of the wall, of this process."""
    x = torch.empty(1 << 20, device="meta")
    barrier(comm)
    wall, own = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        all_reduce_(comm, x, algorithm="ring")
    return time.perf_counter() - wall, time.process_time() - own


def message_cost(n: int) -> tuple[float, float]:
    """µs a message among `n` ranks: of the wall, of this process. At least 200,000 messages."""
    messages = 2 * (n - 1) * n
    repeats = -(-200_000 // messages)
    seconds = World(n, device="meta").run(reduce_meta, repeats)
    wall, own = (max(column) / (messages * repeats) * 1e6 for column in zip(*seconds, strict=True))
    return wall, own


def messages(ranks: tuple[int, ...] = RANKS, repeats: int = 3) -> dict[int, tuple[float, float]]:
    """Print and return by number of ranks: µs a message of this process's time, and its ratio to the first."""
    rows = []
    for _ in range(repeats):
        rows.append({n: message_cost(n) for n in ranks})
        print(
            "  ".join(
                f"n = {n}: {own:.1f} µs ({wall:.1f} wall)" for n, (wall, own) in rows[-1].items()
            ),
            flush=True,
        )
    own = {n: [row[n][1] for row in rows] for n in ranks}
    ratios = {n: [a / b for a, b in zip(own[n], own[ranks[0]], strict=True)] for n in ranks}
    return {n: (statistics.median(own[n]), statistics.median(ratios[n])) for n in ranks}


def train(comm, layer: torch.nn.Module, x: torch.Tensor, repeats: int) -> list[float]:
    """This process's seconds for each forward and backward, after one to warm up."""
    layer, found = layer.to(comm.device), []
    for _ in range(repeats):
        start = time.process_time()
        layer(x).sum().backward()
        layer.zero_grad()
        found.append(time.process_time() - start)
    return found[1:]


def metered(device: str, repeats: int = 20) -> tuple[float, float]:
    """Median seconds of a layer's forward and backward on `device`, without and with the meter, in turns."""
    with torch.device(device):
        layer, x = TransformerLayer(256, 4), torch.empty(4, 128, 256)
    plain, charged = [], []
    for _ in range(3):
        for meter, times in ((False, plain), (True, charged)):
            times += World(1, cluster=Cluster.dgx_h100(), device=device, meter=meter).run(
                train, layer, x, repeats
            )[0]
    return statistics.median(plain), statistics.median(charged)


def resident() -> int:
    """Bytes of memory that this process holds (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def alive(comm) -> int:
    """What the process holds once every rank has sent and received."""
    barrier(comm)
    return resident()


def memory(comm, ranks: tuple[int, ...]) -> dict[int, float]:
    """Bytes a rank, in a process that has had no larger World before."""
    World(2, device="meta").run(alive)
    found = {}
    for n in ranks:
        before = resident()
        found[n] = (max(World(n, device="meta").run(alive)) - before) / n
    return found


def main(quick: bool) -> None:
    torch.set_num_threads(1)
    ranks = RANKS[:2] if quick else RANKS
    for n, (cost, ratio) in messages(ranks, 1 if quick else 3).items():
        print(f"{n} ranks: {cost:.1f} µs a message")
        print(f"ratio world_n={n} {ratio:.2f}")
    for device in ("cpu", "meta"):
        plain, charged = metered(device)
        print(
            f"a transformer layer, {device}: {plain * 1e3:.2f} ms, metered {charged * 1e3:.2f} ms"
        )
        print(f"ratio meter_{device} {charged / plain:.2f}")
    for n, each in launch(memory, 1, ranks)[0].items():
        print(f"{n} ranks: {each / 1024:,.0f} KiB of memory a rank")


if __name__ == "__main__":
    main(options(__doc__, quick="two numbers of ranks, one repeat").quick)
