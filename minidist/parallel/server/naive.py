"""The parameter server in twenty lines: rank 0 holds the parameters, all others compute gradients.

    server     p ──► every worker      waits for worker 1, 2, … n: p.grad = (g1 + g2 + … + gn)/n, one step
    worker w          pull, forward, backward ── gw ──► server

Every number passes the server's wire n times in each direction: 2nNβ for N bytes, and each of P parameters is waited
for on its own, (nP + 1)α. Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...comm.base import Comm


def step(comm: Comm, module: nn.Module, optimizer: Optimizer, backward: Callable[[], Any]) -> Any:
    """One synchronous step. On rank 0 `module` holds the parameters, which `optimizer` steps; elsewhere it is unused.

    backward(): leaves the gradients of this worker's part of the batch in `module`, one for each parameter; its result
    is returned, on the server None.
    """
    params, workers = list(module.parameters()), range(1, comm.size)
    if comm.rank > 0:
        for p in params:
            comm.recv(p, 0)
        module.zero_grad()
        result = backward()
        for p in params:
            comm.send(p.grad, 0)
        return result
    for p in params:
        for worker in workers:
            comm.send(p, worker)
    for p in params:
        p.grad = comm.recv(torch.empty_like(p), 1)
        for worker in workers[1:]:
            p.grad += comm.recv(torch.empty_like(p), worker)
        p.grad /= len(workers)
    optimizer.step()
    return None
