"""The exercise of lesson 15 about gradients: each kind over its own axis, once, after the last micro-batch.

Looked at: every gradient, copies equal bit for bit, all micro-batches run, bytes along each axis, messages along data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm
from minidist.comm.mesh import Grid, Mesh

from ..compare import alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from . import oracle


class Synchronize(Exam):
    name = "synchronize"
    right = (
        "Grids of 1 to 12 ranks in several orders, 1 to 4 micro-batches: every gradient, its copies equal bit for "
        "bit, no byte more than needed along any axis; 4 real processes."
    )
    forbidden = oracle.FORBIDDEN
    cases = tuple(
        Case(d * p * t, f"dp {d} × pp {p} × tp {t}, {M} micro-batches", (d, p, t, order, M))
        for d, p, t, order, M in (
            (2, 2, 3, "pp dp tp", 3),
            (1, 1, 1, "pp dp tp", 2),
            (3, 1, 1, "pp dp tp", 2),
            (1, 3, 1, "pp dp tp", 4),
            (1, 1, 3, "pp dp tp", 2),
            (2, 2, 2, "tp dp pp", 2),
            (2, 3, 1, "pp dp tp", 1),
            (2, 1, 3, "tp pp dp", 2),
        )
    )
    processes = (Case(4, "4 real processes, dp 2 × pp 2", (2, 2, 1, "pp dp tp", 3)),)

    def draw(self, case, rng):
        d, p, t, order, M = case.given
        grid, drawn = Grid(d, p, t, order), []
        kinds, shapes = oracle.held(grid, rng)
        part = lambda name: torch.randn(shapes[name], generator=rng, dtype=torch.float64)
        for rank in range(grid.size):
            first, made = grid.rank(**grid.place(rank) | {"tp": 0}), {}
            for name, kind in kinds[rank].items():
                same = kind == "whole" and rank != first  # whole after g: alike on all tensor ranks
                made[name] = (
                    [g.clone() for g in drawn[first][name]]
                    if same
                    else [part(name) for _ in range(M)]
                )
            drawn.append(made)
        return [(list(case.given), made, kinds[rank]) for rank, made in enumerate(drawn)]

    def run(self, comm: Comm, yours, given, parts, kinds):
        d, p, t, order, M = given
        grads, seen = {name: torch.zeros_like(some[0]) for name, some in parts.items()}, []
        kept = {name: g.detach() for name, g in grads.items()}

        def backward(m):
            if not 0 <= m < M:
                raise IndexError(f"there are the micro-batches 0 to {M - 1}, not {m}")
            seen.append(m)
            for name, some in parts.items():
                kept[name].add_(some[m])

        yours(Mesh(comm, d, p, t, order), backward, M, grads, dict(kinds))
        return {"seen": seen, "grads": kept}

    def judge(self, case, args, outcome):
        d, p, t, order, M = case.given
        grid = Grid(d, p, t, order)
        own, kinds = (
            [{name: sum(some) for name, some in parts.items()} for _, parts, _ in args],
            [a[2] for a in args],
        )
        for r, got in enumerate(outcome.results):
            if got["seen"] != list(range(M)):
                raise Wrong(
                    f"rank {r}: backward was called for the micro-batches {got['seen']}, and should be once "
                    f"for each of 0 to {M - 1}, in order."
                )
        for r, got in enumerate(outcome.results):
            for name, kind in kinds[r].items():
                self._gradient(grid, r, name, kind, got["grads"].get(name), own, args)
        oracle.copies_agree(grid, [got["grads"] for got in outcome.results], kinds)
        self._traffic(grid, own, args, outcome)

    def _gradient(self, grid: Grid, r: int, name: str, kind: str, got, own, args) -> None:
        want = oracle.summed(grid, own, r, name, kind)
        alike(r, got, want, f"the gradient of {name} ({kind})")
        if near(got, want):
            return
        text = next(
            (words for words, x in _looks(grid, r, name, kind, own, args).items() if near(got, x)),
            "",
        )
        text = text or "Which ranks have a summand of it, and which a copy?"
        if near(got.float(), want.float()):
            text = "Nearly: is it sent in float32? The gradients are float64."
        worst = int((got - want).abs().nan_to_num(torch.inf).argmax())
        value, right = got.flatten()[worst].item(), want.flatten()[worst].item()
        raise Wrong(
            f"rank {r} ({grid.name(r) or 'alone'}): the gradient of {name} ({kind}) is wrong, its number "
            f"{worst} is {value:.10g}, and should be {right:.10g}. {text}"
        )

    def _traffic(self, grid: Grid, own, args, outcome) -> None:
        M = args[0][0][4]
        sent = oracle.by_axis(grid, outcome.sent)
        ranks = range(grid.size)
        moved = {"dp": oracle.KINDS, "tp": ("partial",), "pp": ("tied",)}
        for axis, kinds in moved.items():
            n = 2 if axis == "pp" else grid.sizes[axis]
            sizes = [
                g.numel() for r in ranks for name, g in own[r].items() if args[r][2][name] in kinds
            ]
            most = lambda numbers, n=n: round(16 * (n - 1) / n * numbers)
            padded = sum(-(-size // n) * n for size in sizes)  # to chunks of one length
            # or a reduce and a broadcast, by rings
            if sent[axis] > most(max(padded, (1 + 1 / n) * sum(sizes))):
                exchange = M == 1 or sent[axis] <= 8 * (n - 1) * sum(sizes)
                text = (
                    "Only the first and the last stage hold tied ones."
                    if axis == "pp"
                    else "Does each rank send all it has to each other? A ring sends chunks."
                    if exchange
                    else f"Once a micro-batch? Once a step is enough, after the last of {M}."
                )
                raise Wrong(
                    f"the numbers are right, but all ranks together send {sent[axis]} bytes along {axis}: "
                    f"{most(sum(sizes))} are enough. {text}"
                )
        others = [axis for axis in sent if axis not in moved and sent[axis]]
        if others:
            raise Wrong(
                f"the numbers are right, but {sent[others[0]]} bytes go across {others[0]}: each kind of "
                "gradient has one axis, and goes along that."
            )
        messages = max(oracle.most(grid, r, outcome, "dp") for r in ranks)
        if messages > 2 * (grid.dp - 1):
            raise Wrong(
                f"the numbers are right, but a rank sends {messages} messages along dp: all its gradients fit "
                f"into one all-reduce, {2 * (grid.dp - 1)} messages. It takes a list, too."
            )


def _looks(grid: Grid, r: int, name: str, kind: str, own, args) -> dict[str, Tensor]:
    """What a wrong gradient looks like."""
    right = oracle.summed(grid, own, r, name, kind)
    last = [{k: some[-1] for k, some in parts.items()} for _, parts, _ in args]
    first = [{k: some[0] for k, some in parts.items()} for _, parts, _ in args]
    less = lambda **left: oracle.summed(grid, own, r, name, kind, **left)
    looks = {"It is the sum over the data ranks: the mean is asked for.": right * grid.dp}
    if kind == "partial":
        looks |= {
            "Each tensor rank saw other tokens: sum over tp.": less(partial=False),
            "Over tp it is a sum, not a mean.": right / grid.tp,
        }
    if kind == "tied":
        looks |= {
            "The other end of the pipeline holds it, too: sum the two.": less(tie=False),
            "Over the two ends it is a sum, not a mean.": right / 2,
            "It was added twice: on one stage there is one copy.": right * 2,
        }
        if grid.place(r)["pp"]:
            looks["That is what the first stage had: the sum belongs on both."] = _other(
                grid, r, own, name
            )
    looks |= {
        "It is this rank's own: nothing of the other data ranks is in it. Is it written in place?": less(
            data=False
        ),
        "Nothing was exchanged at all, or not in place.": own[r][name],
        "It is averaged over dp twice.": right / grid.dp,
    }
    if kind in ("whole", "split"):
        mean = sum(own[k][name] for k in oracle.line_of(grid, r, "tp")) / grid.tp
        looks["It is a mean over tp, and not over dp: the replicas are along dp."] = mean
        over = sum(oracle.summed(grid, own, k, name, kind) for k in oracle.line_of(grid, r, "tp"))
        looks |= {
            "It was summed over tp: copies are right already, and parts are not summands.": over,
            "It was averaged over tp: parts of a matrix are no copies.": over / grid.tp,
        }
    looks |= {
        "It is averaged over all ranks, not over the data ranks.": right * grid.dp / grid.size,
        "Only the last micro-batch is in it.": oracle.summed(grid, last, r, name, kind),
        "Only the first micro-batch is synchronised: what comes after it is this rank's own.": oracle.summed(
            grid, first, r, name, kind
        )
        + own[r][name]
        - first[r][name],
    }
    return looks


def _other(grid: Grid, r: int, own, name: str) -> Tensor:
    first = oracle.ends(grid, r)[0]
    return sum(own[k][name] for k in oracle.line_of(grid, first, "dp")) / grid.dp


def synchronize(yours) -> None:
    """`synchronize(mesh, backward, micro_batches, grads, kinds)`: a step's gradients, as the optimizer wants them."""
    ask(Synchronize(), yours)
