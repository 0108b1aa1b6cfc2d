"""A grid of ranks: each axis of parallelism has a Comm of its own, and all of them come from one reshape.

    ranks 0 … 7 as (pp, dp, tp) = (2, 2, 2), the last axis innermost

    pp 0    dp 0: 0 1    dp 1: 2 3        tp  0 1 │ 2 3 │ 4 5 │ 6 7      neighbours in rank order
    pp 1    dp 0: 4 5    dp 1: 6 7        dp  0 2 │ 1 3 │ 4 6 │ 5 7
                                          pp  0 4 │ 1 5 │ 2 6 │ 3 7      far apart

Ranks that are neighbours share a node, so the innermost axis gets the fastest links. Tensor parallelism sends the most,
several times a layer, and nothing hides it; data parallelism as much as the parameters, once a step, behind the
backward; a pipeline the least. Hence the default order, Megatron's: pp, dp, tp, from the outside in.
Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..arguments import whole
from .base import Comm
from .cluster import Cluster

AXES = ("pp", "dp", "tp")


class Grid:
    """dp × pp × tp ranks, data, pipeline and tensor parallel, and other axes by name, such as cp=2 for context.

    order: all axes from the outside in, each once; "pp dp tp" unless given, and others between dp and tp.
    sizes: {axis: its size} in that order; `grid.dp` is one of them. Knows where every rank is, without any Comm. Raises
    ValueError for an axis below 1, for a name that a mesh has for something else, and for an order of other axes.

    >>> from minidist.comm.mesh import Grid
    >>> grid = Grid(dp=2, pp=2, tp=2)
    >>> grid.place(5), grid.rank(pp=1, tp=1)
    ({'pp': 1, 'dp': 0, 'tp': 1}, 5)
    >>> print(grid.draw())
    pp 2 × dp 2 × tp 2 = 8 ranks, the last axis innermost
      pp 0  0 p0 d0 t0  1 p0 d0 t1  2 p0 d1 t0  3 p0 d1 t1
      pp 1  4 p1 d0 t0  5 p1 d0 t1  6 p1 d1 t0  7 p1 d1 t1
    """

    def __init__(
        self,
        dp: int = 1,
        pp: int = 1,
        tp: int = 1,
        order: str | Sequence[str] = AXES,
        **others: int,
    ):
        sizes = {"dp": dp, "pp": pp, "tp": tp} | others
        for axis in others:
            if axis in ("comm", "grid", "sizes", "group") or hasattr(Grid, axis):
                raise ValueError(f"{axis} is no name for an axis: a mesh calls something else so")
        if order is AXES:
            order = [*AXES[:-1], *others, AXES[-1]]
        order = order.split() if isinstance(order, str) else list(order)
        if sorted(order) != sorted(sizes):
            raise ValueError(
                f"the order of a mesh names its {len(sizes)} axes once, {', '.join(sizes)}, "
                f"not these {len(order)}: {', '.join(order)}"
            )
        self.sizes = {
            axis: whole(sizes[axis], f"the axis {axis} of a mesh has at least 1 rank", 1)
            for axis in order
        }
        vars(self).update(self.sizes)  # grid.dp and the others

    def __eq__(self, other) -> bool:
        return isinstance(other, Grid) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes.values())

    def place(self, rank: int) -> dict[str, int]:
        """{axis: where on it}, from the outside in. ValueError for a rank that is not in the grid.

        >>> from minidist.comm.mesh import Grid
        >>> Grid(dp=2, tp=4, cp=2).place(13)
        {'pp': 0, 'dp': 1, 'cp': 1, 'tp': 1}
        """
        if not 0 <= rank < self.size:
            raise ValueError(
                f"rank {rank} is not in a mesh of {self.size} ranks, 0 to {self.size - 1}"
            )
        found = {}
        for axis, size in reversed(self.sizes.items()):
            rank, found[axis] = divmod(rank, size)
        return {axis: found[axis] for axis in self.sizes}

    def rank(self, **place: int) -> int:
        """The rank at a place, with 0 for an axis that is not named. ValueError for a place, or an axis, that is not there.

        >>> from minidist.comm.mesh import Grid
        >>> Grid(dp=2, pp=2, tp=2).rank(dp=1, tp=1)
        3
        """
        number = 0
        for axis, size in self.sizes.items():
            at = place.pop(axis, 0)
            if not 0 <= at < size:
                raise ValueError(f"{axis} has {size} ranks, 0 to {size - 1}, not {at}")
            number = number * size + at
        self._check(*place)
        return number

    def _check(self, *axes: str) -> None:
        unknown = [axis for axis in axes if axis not in self.sizes]
        if unknown:
            known = f"the {len(self.sizes)} axes are {', '.join(self.sizes)}"
            raise ValueError(f"{known}, not {', '.join(unknown)}")

    def colors(self, *axes: str) -> list[int]:
        """A number for each rank: equal where ranks differ along these axes alone.

        >>> from minidist.comm.mesh import Grid
        >>> Grid(dp=2, tp=2).colors("dp")  # ranks 0 and 2 are one group, 1 and 3 the other
        [0, 1, 0, 1]
        """
        self._check(*axes)
        return [self.rank(**self.place(rank) | dict.fromkeys(axes, 0)) for rank in range(self.size)]

    def between(self, src: int, dst: int) -> str:
        """The axis along which two ranks differ; where they do along several, their names with " × " between.

        >>> from minidist.comm.mesh import Grid
        >>> grid = Grid(dp=2, tp=2)
        >>> grid.between(0, 1), grid.between(0, 2), grid.between(0, 3)
        ('tp', 'dp', 'dp × tp')
        """
        a, b = self.place(src), self.place(dst)
        return " × ".join(axis for axis in self.sizes if a[axis] != b[axis])

    def levels(self, cluster: Cluster) -> dict[str, list[str]]:
        """{axis: the levels of `cluster` that its messages pass}, near ones first; of a ring along each axis.

        ValueError if the cluster has fewer ranks than the grid.

        >>> from minidist.comm import Cluster
        >>> from minidist.comm.mesh import Grid
        >>> Grid(dp=2, tp=8).levels(Cluster.dgx_h100(nodes=2))
        {'pp': [], 'dp': ['nic', 'tor'], 'tp': ['nvlink']}
        """
        self.fits(cluster.size)
        passed: dict[str, set[str]] = {axis: set() for axis in self.sizes}
        for rank in range(self.size):
            here = self.place(rank)
            for axis, size in self.sizes.items():
                after = self.rank(**here | {axis: (here[axis] + 1) % size})
                if after != rank:
                    passed[axis].update(cluster.levels(rank, after))
        return {
            axis: [level for level in cluster.links if level in names]
            for axis, names in passed.items()
        }

    def fits(self, room: int) -> None:
        """ValueError unless there is a place for every rank."""
        if room < self.size:
            raise ValueError(f"{self} does not fit on a cluster of {room} ranks")

    def takes(self, ranks: int) -> None:
        """ValueError unless the axes make as many ranks as there are."""
        if self.size != ranks:
            product = "×".join(str(size) for size in self.sizes.values())
            raise ValueError(
                f"{ranks} ranks are not {product} = {self.size}: {self} were asked for"
            )

    def __str__(self) -> str:
        return f"{' × '.join(f'{axis} {size}' for axis, size in self.sizes.items())} = {self.size} ranks"

    def draw(self, cluster: Cluster | None = None) -> str:
        """The grid as text, a line for each node of `cluster`, or for each place on the outermost axis.

        >>> from minidist.comm import Cluster
        >>> from minidist.comm.mesh import Grid
        >>> print(Grid(dp=2, tp=8).draw(Cluster.dgx_h100(nodes=2)))
        pp 1 × dp 2 × tp 8 = 16 ranks, the last axis innermost
          node 0   0 d0 t0   1 d0 t1   2 d0 t2   3 d0 t3   4 d0 t4   5 d0 t5   6 d0 t6   7 d0 t7
          node 1   8 d1 t0   9 d1 t1  10 d1 t2  11 d1 t3  12 d1 t4  13 d1 t5  14 d1 t6  15 d1 t7
          pp over no link
          dp over nic, tor
          tp over nvlink
        """
        outermost = next(iter(self.sizes))
        rows = [f"{self}, the last axis innermost"]
        per = self.size // self.sizes[outermost]
        if cluster is not None:
            self.fits(cluster.size)
            per = cluster.ranks * cluster.devices
        width = max(len(self.name(rank)) for rank in range(self.size))
        for k, first in enumerate(range(0, self.size, per)):
            cells = [
                f"{rank:>{len(str(self.size))}} {self.name(rank):<{width}}"
                for rank in range(first, min(first + per, self.size))
            ]
            rows.append(f"  {'node' if cluster else outermost} {k}  " + "  ".join(cells).rstrip())
        if cluster is not None:
            rows += [
                f"  {axis} over {', '.join(on) or 'no link'}"
                for axis, on in self.levels(cluster).items()
            ]
        return "\n".join(rows)

    def name(self, rank: int) -> str:
        """A rank's place in short, "p0 d1 t0"; axes of one rank are left out.

        >>> from minidist.comm.mesh import Grid
        >>> Grid(dp=2, tp=2).name(3)
        'd1 t1'
        """
        return " ".join(
            f"{axis[0]}{at}" for axis, at in self.place(rank).items() if self.sizes[axis] > 1
        )


class Mesh:
    """The ranks of `comm` as a grid: `mesh.dp`, `mesh.pp`, `mesh.tp` are Comms of the ranks along each axis.

        mesh = Mesh(comm, dp=2, pp=2, tp=2)      # on all ranks; no message
        mesh.tp.rank, mesh.group("pp", "tp")     # where I am; the ranks of one replica of the model
        Mesh(comm, dp=2, cp=4).cp                # any axis has a Comm by its name

    The axes are those of a `Grid`. An axis of one rank is a Comm of one: the serial case.
    comm, grid: all ranks; where each of them is.
    Raises ValueError where the axes do not make as many ranks as there are.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.collectives import all_gather
    >>> from minidist.comm import Mesh
    >>> def program(comm):
    ...     mesh = Mesh(comm, dp=2, tp=2)
    ...     mine = torch.tensor([comm.rank])
    ...     return [all_gather(group, mine).tolist() for group in (mesh.tp, mesh.dp, mesh.pp)]
    >>> World(4).run(program)[3]  # rank 3: its neighbours along tp, dp and pp
    [[2, 3], [1, 3], [3]]
    """

    dp: Comm
    pp: Comm
    tp: Comm

    def __init__(
        self,
        comm: Comm,
        dp: int = 1,
        pp: int = 1,
        tp: int = 1,
        order: str | Sequence[str] = AXES,
        **others: int,
    ):
        self.comm, self.grid = comm, Grid(dp, pp, tp, order, **others)
        self.grid.takes(comm.size)
        self._groups: dict[tuple[str, ...], Comm] = {tuple(self.grid.sizes): comm}
        for axis in ("dp", "pp", "tp", *others):
            setattr(self, axis, self.group(axis))

    def group(self, *axes: str) -> Comm:
        """The ranks that differ from this one along these axes alone, in rank order; of all axes: all ranks.

        Made once, without a message, when all ranks ask for it. ValueError for another axis.

        >>> from minidist import World
        >>> from minidist.comm import Mesh
        >>> def program(comm):
        ...     mesh = Mesh(comm, dp=2, pp=2, tp=2)
        ...     return mesh.group("pp", "tp").members  # one replica of the model
        >>> results = World(8).run(program)
        >>> results[0], results[2]
        ((0, 1, 4, 5), (2, 3, 6, 7))
        """
        colors = self.grid.colors(*axes)
        key = tuple(axis for axis in self.grid.sizes if axis in axes)
        if key not in self._groups:
            self._groups[key] = self.comm.split(colors)
        return self._groups[key]

    def __repr__(self) -> str:
        return f"Mesh({self.grid}; this is rank {self.comm.rank}: {self.grid.name(self.comm.rank) or 'alone'})"
