"""Forward through the stages without a backward: to evaluate, and to sample.

A part waits for the one before it, and messages say themselves how long they are: a header of 128 bytes before each.
Micro-batches one after the other are still a pipeline: a stage is at the next one while the stage behind it has this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...comm.base import Comm
from ..schedules import Action
from .executor import Pipeline
from .layout import layout, layouts, numbers
from .mail import host

HEADER = 16  # numbers


@torch.no_grad()
def forward(pipeline: Pipeline, x: Tensor | None = None) -> Tensor | None:
    """The last part's output on its stage, None elsewhere. All stages call it. x: on the first stage, the batch."""
    shape, mine = pipeline._shape, pipeline.stage
    for part in range(pipeline.last + 1):
        if shape.stage(part) != mine:
            continue
        if part and shape.stage(part - 1) != mine:
            x = _hear(pipeline.comm, shape.stage(part - 1))
        chunk = next(c for c in range(pipeline.v) if shape.part(mine, c) == part)
        x = pipeline.module(Action("F", 0, chunk))(x)
        if part < pipeline.last and shape.stage(part + 1) != mine:
            _tell(pipeline.comm, x, shape.stage(part + 1))
    return x if pipeline.last_stage else None


def _tell(comm: Comm, x: Tensor, dst: int) -> None:
    row, words = numbers([layout(x, False)]), comm.on_host()
    words.send(torch.tensor(row + [0] * (HEADER - len(row)), device=host(words)), dst, "layout")
    comm.send(x, dst, "forward")


def _hear(comm: Comm, src: int) -> Tensor:
    words = comm.on_host()
    row = words.recv(torch.zeros(HEADER, dtype=torch.int64, device=host(words)), src, "layout")
    (one,) = layouts(row.tolist())
    return comm.recv(one.empty(comm.device), src, "forward")
