"""The exercise of lesson 15 with a bug: one norm over a grid, on which gradients are parts, copies, ends and replicas.

Looked at: the norm that is returned, every gradient, one factor on all ranks, bytes along data and in all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...comm.base import Comm
from ...comm.mesh import Grid, Mesh
from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle


class ClipGrid(Exam):
    name = "clip_grid"
    right = "Grids of 1 to 8 ranks, above and below the limit: each gradient counts once; 4 real processes."
    forbidden = oracle.FORBIDDEN
    cases = tuple(Case(d * p * t, f"dp {d} × pp {p} × tp {t}, {words}", (d, p, t, order, factor))
                  for d, p, t, order, factor, words in (
                      (2, 2, 2, "pp dp tp", 0.5, "above the limit"), (1, 1, 1, "pp dp tp", 0.3, "one rank"),
                      (1, 1, 3, "pp dp tp", 0.7, "copies"), (1, 3, 1, "pp dp tp", 0.6, "tied ends"),
                      (4, 1, 1, "pp dp tp", 0.8, "replicas"), (2, 2, 2, "tp dp pp", 1.02, "just below the limit"),
                      (2, 1, 2, "dp pp tp", 3.0, "far below the limit")))  # fmt: skip
    processes = (Case(4, "4 real processes, pp 2 × tp 2", (1, 2, 2, "pp dp tp", 0.5)),)

    def draw(self, case, rng):
        d, p, t, order, factor = case.given
        grid, sizes, made = Grid(d, p, t, order), {}, {}
        own = []
        for rank in range(grid.size):
            at, grads = grid.place(rank), {}
            for name, kind in oracle.held(grid, rank).items():
                key = (name, at["tp"] if kind in ("split", "tied") else 0)  # what two ranks have under one key is equal
                if key not in made:
                    rows = sizes.setdefault(name, int(torch.randint(3, 9, (), generator=rng)))
                    made[key] = torch.randn(rows, generator=rng, dtype=torch.float64) * (3 if kind == "tied" else 1)
                grads[name] = made[key].clone()
            own.append(grads)
        limit = factor * oracle.norm(grid, own)
        return [(list(case.given), grads, oracle.held(grid, rank), limit) for rank, grads in enumerate(own)]

    def run(self, comm: Comm, yours, given, grads, kinds, limit):
        mine = {name: g.clone() for name, g in grads.items()}
        found = yours(Mesh(comm, *given[:4]), dict(mine), dict(kinds), limit)
        return {"norm": found.item() if isinstance(found, Tensor) and found.numel() == 1 else found, "grads": mine}

    def judge(self, case, args, outcome):
        grid, limit = Grid(*case.given[:4]), args[0][3]
        own = [grads for _, grads, _, _ in args]
        want = oracle.norm(grid, own)
        for r, got in enumerate(outcome.results):
            self._norm(grid, r, got["norm"], want, own, limit)
        factor = min(1.0, limit / (want + 1e-6))
        for r, got in enumerate(outcome.results):
            for name, g in own[r].items():
                alike(r, got["grads"][name], g, f"the gradient of {name}")
                if not near(got["grads"][name], _factor(got["grads"][name], g) * g):
                    raise Wrong(f"rank {r}: the gradient of {name} is no multiple of what it was: clip the norm, not "
                                "the numbers.")  # fmt: skip
        for r, got in enumerate(outcome.results):
            for name, g in own[r].items():
                self._scaled(r, name, args[r][2][name], _factor(got["grads"][name], g), factor)
        self._traffic(grid, outcome)

    def _norm(self, grid: Grid, r: int, got, want: float, own, limit: float) -> None:
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Wrong(f"rank {r}: it should return the norm, a number, not {'None' if got is None else 'that'}.")
        if abs(got - want) <= 1e-5 * want:
            return
        text = next((words for words, x in _looks(grid, r, own, want, limit).items() if abs(got - x) <= 1e-5 * x),
                    "Who holds a part of it, and who a copy?")  # fmt: skip
        raise Wrong(f"rank {r} ({grid.name(r) or 'alone'}): the norm is {got:.6g}, and should be {want:.6g}. {text}")

    def _scaled(self, r: int, name: str, kind: str, scale: float, factor: float) -> None:
        if abs(scale - factor) < 1e-6 * factor:
            return
        text = {1.0: "Nothing was scaled: in place, g.mul_(…).", factor**2: "It was scaled twice."}
        hint = next((words for x, words in text.items() if abs(scale - x) < 1e-6), "")
        if abs(scale - 1) < 1e-6 and kind != "split":
            hint = "Who does not count a gradient must scale it all the same: copies stay equal."
        if scale > 1:
            hint = "Gradients below the limit stay as they are: the factor is at most 1."
        raise Wrong(f"rank {r}: the gradient of {name} ({kind}) was scaled by {scale:.6g}, and should be by "
                    f"{factor:.6g}. {hint}".rstrip())  # fmt: skip

    def _traffic(self, grid: Grid, outcome) -> None:
        across = [pair for pair in outcome.sent if "dp" in grid.between(*pair[:2])]
        if across:
            raise Wrong(f"the numbers are right, but {sum(x for *_, x in across)} bytes go between data ranks: they "
                        "have the same gradients. mesh.group('pp', 'tp') are the ranks of one replica.")  # fmt: skip
        n = grid.pp * grid.tp
        most = grid.dp * max(2, n) * (n - 1) * 8
        if outcome.nbytes() > most:
            raise Wrong(f"the numbers are right, but all ranks together send {outcome.nbytes()} bytes: one number of 8 "
                        f"bytes from each rank of a replica to each other is enough, {most} bytes.")  # fmt: skip


def _looks(grid: Grid, r: int, own, want: float, limit: float) -> dict[str, float]:
    """What a wrong norm looks like."""
    squares = lambda ranks: sum(float(g.square().sum()) for k in ranks for g in own[k].values())
    part = lambda **more: oracle.norm(grid, own, **more)
    tp, pp = oracle.line_of(grid, r, "tp"), oracle.line_of(grid, r, "pp")
    each = [squares([k]) ** 0.5 for k in range(grid.size) if grid.place(k)["dp"] == grid.place(r)["dp"]]
    return {
        "It is the norm after clipping: return what it was before.": min(want, limit),
        "It is the square: the root is missing.": want**2,
        "It is the norm of this rank's gradients alone: each would scale by another factor.": squares([r]) ** 0.5,
        "What is whole on every tensor rank was counted on each of them: one of them is enough.": part(copies=True),
        "The tied gradient was counted on the first stage and on the last: once is enough.": part(ends_twice=True),
        "Copies over tp and the tied ends were counted on every rank that holds them.":
            part(copies=True, ends_twice=True),
        "The data ranks were counted, too: they are replicas.": part(replicas=True),
        "Everything was counted wherever it is held: copies, ends and replicas.":
            part(copies=True, ends_twice=True, replicas=True),
        "That is this stage's: the other stages have gradients, too.":
            _counted_of(grid, own, tp) ** 0.5,
        "That is one tensor rank's: the parts of the others are missing.": _counted_of(grid, own, pp) ** 0.5,
        "It is the sum of the ranks' norms. Squares add up, norms do not.": sum(each),
        "The tied gradient is in it nowhere.": (want**2 - sum(
            float(g["tokens"].square().sum()) for k, g in enumerate(own)
            if "tokens" in g and not grid.place(k)["pp"] and not grid.place(k)["dp"])) ** 0.5,
        "It is an average: squares add up, they are not averaged.": want / (grid.pp * grid.tp) ** 0.5,
    }  # fmt: skip


def _factor(got: Tensor, g: Tensor) -> float:
    return float((got * g).sum() / (g * g).sum())


def _counted_of(grid: Grid, own, ranks: list[int]) -> float:
    """The sum of squares that these ranks count."""
    total = 0.0
    for k in ranks:
        at = grid.place(k)
        for name, g in own[k].items():
            kind = oracle.held(grid, k)[name]
            again = (kind in ("whole", "partial") and at["tp"]) or (kind == "tied" and at["pp"])
            total += 0.0 if again else float(g.square().sum())
    return total


def clip_grid(yours) -> None:
    """`clip_grid(mesh, grads, kinds, limit)`: scales the gradients of a model on a grid; returns its norm before."""
    ask(ClipGrid(), yours)
