"""What the exercises of lesson 19 are held against: lines of a box, messages that are really sent, serial sums."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from minidist.collectives import all_reduce_
from minidist.comm.mesh import Grid, Mesh
from minidist.comm.world import World

from ..exam import Outcome, Wrong, matches, shuffled

FORBIDDEN = (
    "minidist.parallel",
    "minidist.parallelize",
    "minidist.train",
    "minidist.checkpoint",
    "minidist.study",
    "minicheck.oracles.hybrid",
)
KINDS = "split", "whole", "partial", "tied"
Grads = list[dict[str, Tensor]]
Kinds = list[dict[str, str]]


def lines(sizes: dict[str, int]) -> dict[str, list[list[int]]]:
    """The groups of every axis; sizes: from the outside in."""
    box, found = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values()), {}
    for dim, (axis, size) in enumerate(sizes.items()):
        found[axis] = sorted(box.movedim(dim, -1).reshape(-1, size).tolist())
    return found


def skeleton(
    comm, dp: int, pp: int, tp: int, M: int, tokens: int, hidden: int, layers: int
) -> None:
    """All messages of a step and no computing: bf16, on meta tensors."""
    mesh = Mesh(comm, dp, pp, tp)
    x = torch.empty(tokens, hidden, dtype=torch.bfloat16, device="meta")
    part = torch.empty(12 * hidden**2 * layers // (pp * tp), dtype=torch.bfloat16, device="meta")
    stage = mesh.pp.rank
    for before, after in ((stage - 1, stage + 1), (stage + 1, stage - 1)):  # forward, backward
        for _ in range(M):
            if 0 <= before < pp:
                mesh.pp.recv(x, before)
            for _ in range(2 * layers // pp):
                all_reduce_(mesh.tp, x, algorithm="ring")
            if 0 <= after < pp:
                mesh.pp.send(x, after)
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


def held(grid: Grid, rng: torch.Generator) -> tuple[Kinds, dict[str, list[int]]]:
    """Each rank's {name: kind}, the kinds mixed, and {name: shape}: two or three parameters of each kind on a stage,
    tied ones on the first and on the last. Names are drawn, and do not say the kind."""
    one = lambda low, high: int(torch.randint(low, high, (), generator=rng))
    numbers, shapes = shuffled(rng, 900), {}

    def some(*kinds: str) -> dict[str, str]:
        made = [(f"p{100 + numbers.pop()}", kind, k) for kind in kinds for k in range(one(2, 4))]
        shapes.update((name, [one(3, 9), 2][: 1 + k % 2]) for name, _, k in made)
        return {name: kind for name, kind, _ in made}

    tied = some("tied")
    stages = [some(*KINDS[:3]) | (tied if s in (0, grid.pp - 1) else {}) for s in range(grid.pp)]
    return [
        dict(sorted(stages[grid.place(rank)["pp"]].items())) for rank in range(grid.size)
    ], shapes


def counts(grid: Grid, rank: int, kind: str) -> bool:
    """Whether a rank is the one of its replica that counts what several of them hold."""
    at = grid.place(rank)
    return not (at["tp"] if kind in ("whole", "partial") else at["pp"] if kind == "tied" else 0)


def copies_agree(grid: Grid, found: Grads, kinds: Kinds) -> None:
    """Raise Wrong unless what is right but for rounding is the same, bit for bit, wherever it is held."""
    for r, grads in enumerate(found):
        for name, kind in kinds[r].items():
            over_tp = line_of(grid, r, "tp") if kind in ("whole", "partial") else []
            over_pp = ends(grid, r) if kind == "tied" else []
            for k in [*line_of(grid, r, "dp"), *over_tp, *over_pp]:
                if not matches(grads[name], found[k][name]):
                    why = "Do the ranks add up in different orders?"
                    if grid.between(r, k) == "pp":
                        why = (
                            "A list is all-reduced in chunks, each in another order, and the two ends have different "
                            "lists: what must both hold before they add?"
                        )
                    raise Wrong(
                        f"{name} ({kind}) is right but for rounding, and rounding differs: on ranks {r} and "
                        f"{k} it is not the same bit for bit. {why} Copies would drift apart."
                    )


def summed(
    grid: Grid,
    own: Grads,
    rank: int,
    name: str,
    kind: str,
    *,
    tie: bool = True,
    partial: bool = True,
    data: bool = True,
) -> Tensor:
    """A gradient as it should be on a rank; own[r]: of each rank, all micro-batches. The rest leaves out a part."""
    replicas = line_of(grid, rank, "dp") if data else [rank]
    total = torch.zeros_like(own[rank][name])
    for r in replicas:
        whose = line_of(grid, r, "tp") if kind == "partial" and partial else [r]
        whose = ends(grid, r) if kind == "tied" and tie else whose
        total += sum(own[k][name] for k in whose)
    return total / grid.dp if data else total


def norm(
    grid: Grid,
    own: Grads,
    kinds: Kinds,
    twice: tuple[str, ...] = (),
) -> float:
    """The norm of the model's gradients, each counted once; those of the kinds `twice` wherever a replica holds them."""
    total = 0.0
    for rank in range(grid.size):
        for name, kind in kinds[rank].items():
            counted = kind in twice or counts(grid, rank, kind)
            if counted and not grid.place(rank)["dp"]:
                total += float(own[rank][name].square().sum())
    return total**0.5


def factors(gpus: int) -> list[tuple[int, int, int]]:
    """All (dp, pp, tp) whose product is `gpus`."""
    some = [k for k in range(1, gpus + 1) if gpus % k == 0]
    return [(d, p, t) for d, p, t in product(some, some, some) if d * p * t == gpus]
