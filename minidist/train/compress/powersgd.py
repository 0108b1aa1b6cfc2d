"""PowerSGD: each gradient matrix as the product of two thin ones, found by one step of the power iteration.

    M_k (a, b) of rank k            P = Σ_k M_k Q      an all-reduce of r·a numbers, then orthonormal columns
    Q   (b, r) from the last step   Q ← Σ_k M_kᵀ P     an all-reduce of r·b numbers
                                    P Qᵀ ≈ Σ_k M_k     in place of a·b numbers

Both steps are linear in M_k, so a plain all-reduce serves: nothing grows with n. The Q of one step is the start of the
next (warm start), so over the steps it becomes what many iterations would give; what the product misses is fed back.

Cost in numbers a step: r(a+b) instead of ab, all-reduced; 2(n−1)α more. A tensor of fewer than two dimensions, or one
for which that saves less than `min_rate`, is averaged exactly. Source: Vogels et al. 2019, "PowerSGD", Algorithms 1 and
2. The conventions are those of torch's powerSGD_hook: Q made orthonormal as well; matrices (shape[0], rest); random
Qs drawn matrix by matrix, grouped by shape, from a seed that numpy draws for each bucket.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...collectives import all_reduce_
from ...comm.base import Comm
from .base import Lossy, beside, flat
from .orthogonal import orthogonalize_

SEEDS = 1_000_000_000


class PowerSGD(Lossy):
    """Averages of rank `rank`. Torch has matrix_approximation_rank, start_powerSGD_iter, min_compression_rate.

    start: so many steps are averaged exactly before (torch needs 2, its buckets move; here any number goes).
    min_rate: what a matrix must save at least.  error_feedback, warm_start: False switches a part off, to see what it
    is for.  seed: of the first Qs; the same on all ranks.  Raises ValueError for a rank below 1, or a start below 0.
    """

    progress = ("draws",)

    def __init__(
        self,
        rank: int = 1,
        start: int = 0,
        min_rate: float = 2.0,
        error_feedback: bool = True,
        warm_start: bool = True,
        seed: int = 0,
    ):
        if rank < 1 or start < 0:
            raise ValueError(f"the rank is 1 or more, not {rank}, the start 0 or more, not {start}")
        super().__init__()
        self.rank = rank
        self.start = start
        self.min_rate = min_rate
        self.seed = seed
        self.error_feedback, self.warm_start = error_feedback, warm_start
        self.draws, self._seeds = 0, np.random.RandomState(seed)
        self._random: torch.Generator | None = None  # of the bucket at hand, if its Qs are new

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._seeds = np.random.RandomState(self.seed)
        self._seeds.randint(SEEDS, size=self.draws)

    def begin(self, names: set[str]) -> None:
        steps, self._random = [self._steps(name) for name in names], None
        if self.start in steps or (not self.warm_start and max(steps, default=0) > self.start):
            self._draw()
        for name, before in zip(names, steps, strict=True):
            self.of(name)["steps"] = before + 1

    def _steps(self, name: str) -> int:
        """How often the gradient of this name was averaged."""
        return self.of(name).get("steps", 0)

    def _draw(self) -> None:
        """The next of numpy's numbers is the seed of this bucket's Qs."""
        self.draws += 1
        self._random = torch.Generator().manual_seed(int(self._seeds.randint(SEEDS)))

    def is_small(self, name: str, g: Tensor) -> bool:
        if self._steps(name) < self.start or g.ndim < 2:
            return True
        rows, columns = g.shape[0], g.shape[1:].numel()
        return min(rows, columns, self.rank) * (rows + columns) * self.min_rate >= rows * columns

    def compress_(
        self, comm: Comm, grads: Tensor, views: dict[str, Tensor], algorithm: str | None
    ) -> None:
        by_shape: dict[tuple[int, int], list[str]] = {}
        for name, g in views.items():
            if self.error_feedback:
                flat(g).add_(self.kept(name, "error", flat(g)))
            by_shape.setdefault((g.shape[0], g.shape[1:].numel()), []).append(name)
        names = [name for group in by_shape.values() for name in group]
        matrices = [views[name].reshape(len(views[name]), -1) for name in names]
        qs = [orthogonalize_(self._q(name, m)) for name, m in zip(names, matrices, strict=True)]
        ps = [m @ q for m, q in zip(matrices, qs, strict=True)]
        all_reduce_(comm, ps, algorithm=algorithm)
        for m, p, q in zip(matrices, ps, qs, strict=True):
            torch.matmul(m.T, orthogonalize_(p), out=q)
        all_reduce_(comm, qs, algorithm=algorithm)
        for name, p, q in zip(names, ps, qs, strict=True):
            self._take(name, views[name], (p @ q.T).view(views[name].shape), comm.size)

    def _q(self, name: str, matrix: Tensor) -> Tensor:
        """(columns, r): of the last step, or random."""
        state, shape = self.of(name), (matrix.shape[1], min(*matrix.shape, self.rank))
        if not self.warm_start or "q" not in state:
            if self._random is None:  # a parameter that comes late
                self._draw()
            state["q"] = torch.randn(shape, dtype=matrix.dtype, generator=self._random).to(
                matrix.device
            )
        if state["q"].shape != shape:
            raise ValueError(
                f"{name} needs a Q of {shape}, the loaded one has {tuple(state['q'].shape)}: "
                "another model's, or another rank's"
            )
        return beside(matrix, state, "q")

    def _take(self, name: str, g: Tensor, average: Tensor, n: int) -> None:
        """Keep what `average` misses, this rank's n-th part of it; it becomes the gradient."""
        if self.error_feedback:
            torch.sub(g, average, alpha=1 / n, out=g)
            self.kept(name, "error", flat(g)).copy_(flat(g))
        g.copy_(average)
