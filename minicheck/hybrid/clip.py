"""The exercise of lesson 15 with a bug: one norm over a grid, on which gradients are parts, copies, ends and replicas.

Looked at: the norm that is returned, every gradient, both the same on all ranks, bytes along data and in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from minidist.comm.base import Comm
from minidist.comm.mesh import Grid, Mesh

from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..plain import real, shown
from ..wrong import Wrong
from . import oracle

STAGES = 8  # of the case in which the first outweighs the others


class ClipGrid(Exam):
    name = "clip_grid"
    right = "Grids of 1 to 8 ranks, above and below the limit, zeros: each gradient counts once; 4 real processes."
    forbidden = oracle.FORBIDDEN
    # factor 0: zeros
    cases = tuple(
        Case(d * p * t, f"dp {d} × pp {p} × tp {t}, {words}", (d, p, t, order, factor))
        for d, p, t, order, factor, words in (
            (2, 2, 2, "pp dp tp", 0.5, "above the limit"),
            (1, 1, 1, "pp dp tp", 0.3, "one rank"),
            (1, 1, 3, "pp dp tp", 0.7, "copies"),
            (1, STAGES, 1, "pp dp tp", 0.6, "tied ends"),
            (4, 1, 1, "pp dp tp", 0.8, "replicas"),
            (2, 2, 2, "tp dp pp", 1.02, "just below the limit"),
            (2, 1, 2, "dp pp tp", 0, "all gradients zero"),
        )
    )
    processes = (Case(4, "4 real processes, pp 2 × tp 2", (1, 2, 2, "pp dp tp", 0.5)),)

    def draw(self, case, rng):
        d, p, t, order, factor = case.given
        grid = Grid(d, p, t, order)
        made = {}
        own = []
        kinds, shapes = oracle.held(grid, rng)
        for rank in range(grid.size):
            at, grads = grid.place(rank), {}
            for name, kind in kinds[rank].items():
                # what two ranks have under one key is equal
                key = (name, at["tp"] if kind in ("split", "tied") else 0)
                if key not in made:
                    scale = 0 if not factor else 3 if kind == "tied" else 1
                    made[key] = (
                        torch.randn(shapes[name], generator=rng, dtype=torch.float64) * scale
                    )
                grads[name] = made[key].clone()
            own.append(grads)
        if p == STAGES:
            _outweighed(own, kinds)
        limit = factor * oracle.norm(grid, own, kinds) or 1.0
        return [(list(case.given), grads, kinds[rank], limit) for rank, grads in enumerate(own)]

    def run(self, comm: Comm, yours, given, grads, kinds, limit):
        mine = {name: g.clone() for name, g in grads.items()}
        kept = {name: g.detach() for name, g in mine.items()}
        found = yours(Mesh(comm, *given[:4]), mine, dict(kinds), limit)
        return {
            "norm": found.item() if isinstance(found, Tensor) and found.numel() == 1 else found,
            "grads": kept,
        }

    def judge(self, case, args, outcome):
        grid, limit = Grid(*case.given[:4]), args[0][3]
        own, kinds = [grads for _, grads, _, _ in args], [kinds for _, _, kinds, _ in args]
        want = oracle.norm(grid, own, kinds)
        for r, got in enumerate(outcome.results):
            self._norm(grid, r, got["norm"], want, own, kinds, limit)
        factor = min(1.0, limit / (want + 1e-6))
        for r, got in enumerate(outcome.results):
            for name, kind in kinds[r].items():
                self._scaled(
                    r,
                    name,
                    kind,
                    oracle.counts(grid, r, kind),
                    got["grads"].get(name),
                    own[r][name],
                    factor,
                )
        for r, got in enumerate(outcome.results):
            if got["norm"] != outcome.results[0]["norm"]:
                raise Wrong(
                    f"the norm is right but for rounding, and rounding differs: {outcome.results[0]['norm']!r} "
                    f"on rank 0, {got['norm']!r} on rank {r}. Does each rank add up in an order of its own? "
                    "Copies would drift apart."
                )
        oracle.copies_agree(grid, [got["grads"] for got in outcome.results], kinds)
        self._traffic(grid, outcome)

    def _norm(self, grid: Grid, r: int, got, want: float, own, kinds, limit: float) -> None:
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Wrong(f"rank {r}: it should return the norm, a number, not {shown(got)}.")
        got = real(got)
        if abs(got - want) <= 1e-12 * want:
            return
        looks = _looks(grid, r, own, kinds, want, limit).items()
        text = next(
            (words for words, x in looks if abs(got - x) <= 1e-5 * x),
            "Who holds a part of it, and who a copy?",
        )
        digits = 12 if abs(got - want) <= 1e-5 * want else 6
        raise Wrong(
            f"rank {r} ({grid.name(r) or 'alone'}): the norm is {got:.{digits}g}, and should be "
            f"{want:.{digits}g}. {text}"
        )

    def _scaled(
        self, r: int, name: str, kind: str, counts: bool, got, g: Tensor, factor: float
    ) -> None:
        alike(r, got, g, f"the gradient of {name}")
        if near(got, factor * g):
            return
        if not g.any():
            raise Wrong(
                f"rank {r}: the gradient of {name} ({kind}) was zero, and is {got.flatten()[0]:g} …. Is a norm "
                "of 0 divided by, or inf multiplied with 0?"
            )
        scale = float((got * g).sum() / (g * g).sum())
        if not near(got, scale * g):
            raise Wrong(
                f"rank {r}: the gradient of {name} is no multiple of what it was: clip the norm, not the "
                "numbers."
            )
        still = (
            "Nothing was scaled: in place, g.mul_(…)."
            if counts
            else "Who does not count a gradient must scale it all the same: copies stay equal."
        )
        text = {
            1.0: still,
            factor**2: "It was scaled twice.",
            factor: "Nearly: is it min(1, limit / (norm + 1e-6)), and nothing rounded?",
        }
        hint = next((words for x, words in text.items() if abs(scale - x) < 1e-6), "")
        if scale > 1:
            hint = "Gradients below the limit stay as they are: the factor is at most 1."
        digits = 12 if abs(scale - factor) < 1e-6 else 6
        raise Wrong(
            f"rank {r}: the gradient of {name} ({kind}) was scaled by {scale:.{digits}g}, and should be by "
            f"{factor:.{digits}g}. {hint}".rstrip()
        )

    def _traffic(self, grid: Grid, outcome) -> None:
        across = [pair for pair in outcome.sent if "dp" in grid.between(*pair[:2])]
        if across:
            raise Wrong(
                f"the numbers are right, but {sum(x for *_, x in across)} bytes go between data ranks: they "
                "have the same gradients. mesh.group('pp', 'tp') are the ranks of one replica."
            )
        n = grid.pp * grid.tp
        most = grid.dp * max(2, n) * (n - 1) * 8
        if outcome.nbytes() > most:
            raise Wrong(
                f"the numbers are right, but all ranks together send {outcome.nbytes()} bytes: one number of 8 "
                f"bytes from each rank of a replica to each other is enough, {most} bytes."
            )


def _outweighed(own: oracle.Grads, kinds: oracle.Kinds) -> None:
    """Each stage's square becomes less than half of the last bit of the first one's: before it they add up, after it
    they vanish, so that an order of addition shows."""
    large = _squares(own[0].values())
    for grads, held in zip(own[1:], kinds[1:], strict=True):
        small = [g for name, g in grads.items() if held[name] != "tied"]
        scale = (0.45 * math.ulp(large) / _squares(small)) ** 0.5
        for g in small:
            g *= scale


def _squares(some: Iterable[Tensor]) -> float:
    return sum(float(g.square().sum()) for g in some)


def _looks(grid: Grid, r: int, own, kinds, want: float, limit: float) -> dict[str, float]:
    """What a wrong norm looks like."""
    part = lambda ranks=None, **more: oracle.norm(grid, own, kinds, ranks, **more)
    each = [
        _squares(own[k].values()) ** 0.5
        for k in range(grid.size)
        if grid.place(k)["dp"] == grid.place(r)["dp"]
    ]
    whole, tied = ("whole", "partial"), ("tied",)
    return {
        "Nearly: is something added up in float32? The gradients are float64.": want,
        "It is the norm after clipping: return what it was before.": min(want, limit),
        "It is the square: the root is missing.": want**2,
        "It is the norm of this rank's gradients alone: each would scale by another factor.": _squares(
            own[r].values()
        )
        ** 0.5,
        "What is whole on every tensor rank was counted on each of them: one of them is enough.": part(
            twice=whole
        ),
        "The tied gradient was counted on the first stage and on the last: once is enough.": part(
            twice=tied
        ),
        "Copies over tp and the tied ends were counted on every rank that holds them.": part(
            twice=whole + tied
        ),
        "The data ranks were counted, too: they are replicas.": want * grid.dp**0.5,
        "Everything was counted wherever it is held: copies, ends and replicas.": part(
            twice=whole + tied
        )
        * grid.dp**0.5,
        "That is this stage's: the other stages have gradients, too.": part(
            oracle.line_of(grid, r, "tp")
        ),
        "That is one tensor rank's: the parts of the others are missing.": part(
            oracle.line_of(grid, r, "pp")
        ),
        "It is the sum of the ranks' norms. Squares add up, norms do not.": sum(each),
        "The tied gradient is in it nowhere.": part(without="tied"),
        "It is an average: squares add up, they are not averaged.": want
        / (grid.pp * grid.tp) ** 0.5,
    }


def clip_grid(yours) -> None:
    """`clip_grid(mesh, grads, kinds, limit)`: scales the gradients of a model on a grid; returns its norm before."""
    ask(ClipGrid(), yours)
