"""What the exercises of lesson 15 are held against: lines of a box, messages that are really sent, serial sums."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from ...collectives import all_reduce_
from ...comm.mesh import Grid, Mesh
from ...comm.world.world import World
from ..exam import Outcome

FORBIDDEN = ("minidist.parallel", "minidist.train", "minidist.study", "minidist.check.hybrid.oracle")
KINDS = "split", "whole", "partial", "tied"


def lines(sizes: dict[str, int]) -> dict[str, list[list[int]]]:
    """The groups of every axis; sizes: from the outside in."""
    box, found = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values()), {}
    for dim, (axis, size) in enumerate(sizes.items()):
        found[axis] = sorted(box.movedim(dim, -1).reshape(-1, size).tolist())
    return found


def skeleton(comm, dp: int, pp: int, tp: int, M: int, tokens: int, hidden: int, layers: int) -> None:
    """All messages of a step and no computing: bf16, on meta tensors."""
    mesh = Mesh(comm, dp, pp, tp)
    x = torch.empty(tokens, hidden, dtype=torch.bfloat16, device="meta")
    part = torch.empty(12 * hidden**2 * layers // (pp * tp), dtype=torch.bfloat16, device="meta")
    first, last = mesh.pp.rank == 0, mesh.pp.rank == pp - 1
    for _ in range(M):
        None if first else mesh.pp.recv(x, mesh.pp.rank - 1)
        for _ in range(2 * layers // pp):
            all_reduce_(mesh.tp, x, algorithm="ring")
        None if last else mesh.pp.send(x, mesh.pp.rank + 1)
    for _ in range(M):
        None if last else mesh.pp.recv(x, mesh.pp.rank + 1)
        for _ in range(2 * layers // pp):
            all_reduce_(mesh.tp, x, algorithm="ring")
        None if first else mesh.pp.send(x, mesh.pp.rank - 1)
    all_reduce_(mesh.dp, part, algorithm="ring")


def counted(dp: int, pp: int, tp: int, *rest: int) -> dict[str, int]:
    """{axis: bytes} that all ranks together send in that step, from the trace of a World."""
    world = World(dp * pp * tp, device="meta")
    world.run(skeleton, dp, pp, tp, *rest)
    return by_axis(Grid(dp, pp, tp), [(m.src, m.dst, m.nbytes) for m in world.trace])


def by_axis(grid: Grid, sent: list[tuple[int, int, int]]) -> dict[str, int]:
    """Bytes that were sent along each axis; across several, under their names."""
    found = dict.fromkeys(("tp", "pp", "dp"), 0)
    for src, dst, nbytes in sent:
        axis = grid.between(src, dst)
        found[axis] = found.get(axis, 0) + nbytes
    return found


def most(grid: Grid, rank: int, outcome: Outcome, axis: str) -> int:
    """Messages of a rank along one axis."""
    return sum(src == rank and grid.between(src, dst) == axis for src, dst, _ in outcome.sent)


def ends(grid: Grid, rank: int) -> list[int]:
    """The ranks that hold this rank's tied parameters: those of the first and of the last stage in its line."""
    here = grid.place(rank)
    return sorted({grid.rank(**here | {"pp": s}) for s in (0, grid.pp - 1)})


def line_of(grid: Grid, rank: int, axis: str) -> list[int]:
    """The ranks of this rank's group."""
    here = grid.place(rank)
    return [grid.rank(**here | {axis: k}) for k in range(grid.sizes[axis])]


def held(grid: Grid, rank: int) -> dict[str, str]:
    """{name: kind} of the parameters on a rank: tied ones on the first stage and on the last."""
    s = grid.place(rank)["pp"]
    found = {f"layer{s}.fc": "split", f"layer{s}.proj_bias": "whole", f"layer{s}.norm": "partial"}
    return found | ({"tokens": "tied"} if s in (0, grid.pp - 1) else {})


def summed(grid: Grid, own: list[dict[str, Tensor]], rank: int, name: str, kind: str, *, tie: bool = True,
           partial: bool = True, mean: bool = True, data: bool = True) -> Tensor:  # fmt: skip
    """A gradient as it should be on a rank; own[r]: of each rank, all micro-batches. The rest leaves out a part."""
    replicas = line_of(grid, rank, "dp") if data else [rank]
    total = torch.zeros_like(own[rank][name])
    for r in replicas:
        whose = line_of(grid, r, "tp") if kind == "partial" and partial else [r]
        whose = ends(grid, r) if kind == "tied" and tie else whose
        total += sum(own[k][name] for k in whose)
    return total / grid.dp if mean and data else total


def norm(grid: Grid, own: list[dict[str, Tensor]], copies: bool = False, ends_twice: bool = False,
         replicas: bool = False) -> float:  # fmt: skip
    """The norm of the model's gradients, each counted once; or with what is there more than once."""
    total = 0.0
    for rank, grads in enumerate(own):
        at = grid.place(rank)
        if at["dp"] and not replicas:
            continue
        for name, g in grads.items():
            kind = held(grid, rank)[name]
            if kind in ("whole", "partial") and at["tp"] and not copies:
                continue
            if kind == "tied" and at["pp"] and not ends_twice:
                continue
            total += float(g.double().square().sum())
    return total**0.5


def factors(gpus: int) -> list[tuple[int, int, int]]:
    """All (dp, pp, tp) whose product is `gpus`."""
    some = [k for k in range(1, gpus + 1) if gpus % k == 0]
    return [(d, p, t) for d, p, t in product(some, some, some) if d * p * t == gpus]
