"""The right answers of lesson 08's exercises, to compare with. Emptied in the process of an answer: no way to ask."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minidist.comm.base import ANY, Comm, Recv, Send


def owners(sizes: list[int], s: int) -> list[list[tuple[int, int, int]]]:
    """Number by number: who holds it. The first servers hold one more."""
    total = sum(sizes)
    held = [total // s + (server < total % s) for server in range(s)]
    whose = [server for server in range(s) for _ in range(held[server])]
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(s)]
    first = 0
    for param, size in enumerate(sizes):
        mine = whose[first : first + size]
        found_here = {
            server: (mine.index(server), len(mine) - mine[::-1].index(server)) for server in mine
        }
        for server, (a, b) in found_here.items():
            found[server].append((param, a, b))
        first += size
    return found


def in_step(
    comm: Comm, servers: int, w: Tensor, gradient, steps: int, rate: float
) -> Tensor | None:
    """All sends and receives of a step in one batch; a worker's number of samples is the last number of its push."""
    s, n = servers, comm.size - servers
    if comm.rank >= s:
        for _ in range(steps):
            order = [(comm.rank + i) % s for i in range(s)]
            comm.batch([Recv(w.tensor_split(s)[i], i) for i in order]).wait()
            total, samples = gradient(w)
            g = [torch.cat([part, w.new_tensor([samples])]) for part in total.tensor_split(s)]
            comm.batch([Send(g[i], i) for i in order]).wait()
        return None
    mine = w.tensor_split(s)[comm.rank]
    grads = [mine.new_empty(len(mine) + 1) for _ in range(n)]
    for _ in range(steps):
        sends = [Send(mine, s + (comm.rank + i) % n) for i in range(n)]
        comm.batch([*sends, *(Recv(g, s + k) for k, g in enumerate(grads))]).wait()
        total = sum(grads)
        mine -= rate * total[:-1] / total[-1].clamp(min=1)
    return mine


def as_they_come(
    comm: Comm,
    w: Tensor,
    gradient,
    steps: list[int],
    rate: float,
    bound: float = math.inf,
    spare: int = 0,
    damped: bool = False,
) -> list:
    """The server that hears whoever comes first, and waits for each of its answers to leave.

    damped: a gradient that is d updates old is added with the rate divided by 1 + d.
    """
    n = comm.size - 1
    if comm.rank:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return []
    log = []
    clock = [0] * n
    has = [0] * n
    waiting = [k for k in range(n) if steps[k]]
    g = torch.empty_like(w)
    for version in range(sum(steps)):
        running = sorted(c for c, most in zip(clock, steps) if c < most)
        slowest = running[min(spare, len(running) - 1)]
        for k in [k for k in waiting if clock[k] - slowest <= bound]:
            waiting.remove(k)
            has[k] = version
            comm.send(w, k + 1)
        push = comm.irecv(g, ANY)
        push.wait()
        k = push.source - 1
        stale = version - has[k]
        w -= rate / (1 + stale * damped) * g
        log.append((k + 1, stale))
        clock[k] += 1
        waiting += [k] * (clock[k] < steps[k])
    return log
