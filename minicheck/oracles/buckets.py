"""The right answers of lesson 06's exercises, to compare with. Emptied in the process of an answer: no way to ask.

The time of a step is never a formula: it is run, on the clock of a World.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.collectives import all_reduce_
from minidist.comm.base import Comm
from minidist.comm.cluster import Cluster, Device
from minidist.comm.world import World

FLOPS = 1e12  # of the device on which `clock` computes


def program(comm: Comm, nbytes: list[int], seconds: list[float], most: int) -> None:
    """Compute for so long, start a bucket, and so on, with at most so many in flight; then wait."""
    works = []
    for size, took in zip(nbytes, seconds):
        a = torch.empty(1, round(took * FLOPS / 2), device="meta")
        _ = a @ a.T
        if len(works) >= most:
            works[-most].wait()
        works.append(comm.stream(all_reduce_, torch.empty(size, dtype=torch.uint8, device="meta")))
    for work in works:
        work.wait()


def clock(
    nbytes: list[int], ready: list[float], n: int, alpha: float, beta: float, most: int
) -> float:
    """Seconds that it takes in a World."""
    machine = Device("products", {torch.float32: FLOPS}, 1 << 40, 1e30, 0.0)
    world = World(n, cluster=Cluster.uniform(n, alpha, beta, machine), device="meta")
    world.run(program, nbytes, [b - a for a, b in zip([0.0, *ready], ready)], most)
    return world.time


def fill(nbytes: list[int], dtypes: list[str], room: int, first: int) -> list[list[int]]:
    """The last gradient first; each bucket takes what fits and has its dtype."""
    buckets: list[list[int]] = []
    for dtype in set(dtypes):
        free, count = -1, 0
        for i in [i for i in reversed(range(len(nbytes))) if dtypes[i] == dtype]:
            if nbytes[i] > free:
                free = room if count else first
                buckets.append([])
                count += 1
            buckets[-1].append(i)
            free -= nbytes[i]
    return sorted(buckets, key=min, reverse=True)


def buckets_hooked(
    comm: Comm, params: list[Tensor], buckets: list[list[int]], most: int, beside: bool = True
):
    """How it may be done: hooks that start buckets in order, and what waits. With `beside` False: all in the end."""
    bucket_of = {params[i]: k for k, bucket in enumerate(buckets) for i in bucket}
    missing = [len(b) for b in buckets]
    works = []
    handles = []

    def start() -> None:
        if len(works) >= most:
            works[-most].wait()
        some = [params[i] for i in buckets[len(works)]]
        for p in some:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        works.append(comm.stream(all_reduce_, [p.grad for p in some], "mean"))

    def hook(p: Tensor) -> None:
        missing[bucket_of[p]] -= 1
        while beside and len(works) < len(buckets) and missing[len(works)] <= 0:
            start()

    def finish() -> None:
        while len(works) < len(buckets):
            start()
        for work in works:
            work.wait()
        works.clear()
        missing[:] = [len(b) for b in buckets]

    handles += [p.register_post_accumulate_grad_hook(hook) for p in params]
    finish.remove = lambda: [h.remove() for h in handles]
    return finish


def accumulated(
    comm: Comm, params: list[Tensor], backwards: list, buckets: list[list[int]], beside: bool = True
):
    """The reference of `accumulate_overlapped`: hooks in the last backward only."""
    for backward in backwards[:-1]:
        backward()
    finish = buckets_hooked(comm, params, buckets, len(buckets), beside)
    backwards[-1]()
    finish()
    finish.remove()
