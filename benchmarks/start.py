"""How long until n ranks run: `launch` beside torch.multiprocessing's spawn, in one run.

    python -m benchmarks.start

Both start n ranks that send one message around a ring and return. Medians; `ratio NAME VALUE` is spawn's
time over ours. The first launch of a process starts its server, shown apart.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import torch
import torch.multiprocessing as mp

from minidist.comm import launch


def ring(comm) -> float:
    """One message to the right."""
    x, y = torch.tensor([float(comm.rank)]), torch.empty(1)
    if comm.size > 1:
        comm.sendrecv(x, (comm.rank + 1) % comm.size, y, (comm.rank - 1) % comm.size)
    return y.item()


def spawned(rank: int, n: int, store: str) -> None:
    """The same with torch alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(store, n), rank=rank, world_size=n)
    y = torch.empty(1)
    ops = [
        dist.P2POp(dist.isend, torch.tensor([float(rank)]), (rank + 1) % n),
        dist.P2POp(dist.irecv, y, (rank - 1) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    dist.barrier()
    dist.destroy_process_group()


def seconds(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(repeats: int = 15) -> dict[int, tuple[float, float]]:
    """Print and return (launch, spawn) seconds by number of ranks."""
    print(f"first launch of the process, with its server: {seconds(lambda: launch(ring, 2)):.2f} s")
    found = {}
    for n in (2, 4, 8):
        ours, theirs = [], []
        for repeat in range(repeats):
            ours.append(seconds(lambda n=n: launch(ring, n)))
            if repeat % 5 == 0:
                with tempfile.TemporaryDirectory() as folder:
                    theirs.append(
                        seconds(
                            lambda n=n, folder=folder: mp.spawn(spawned, (n, f"{folder}/store"), n)
                        )
                    )
        found[n] = statistics.median(ours), statistics.median(theirs)
        print(
            f"{n} ranks: launch {found[n][0]:.3f} s (slowest {max(ours):.3f}), mp.spawn {found[n][1]:.2f} s"
        )
    for n, (ours, theirs) in found.items():
        print(f"ratio start_n={n} {theirs / ours:.1f}")
    return found


if __name__ == "__main__":
    measure()
