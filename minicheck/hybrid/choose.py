"""The exercise of lesson 15 about choosing: the fastest grid of a cluster that fits into memory."""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import shown
from ..wrong import Wrong
from . import oracle

FORBIDDEN = ("minidist.comm.mesh", *oracle.FORBIDDEN)
MANY = 64, 8, 64, 48, 512, 2048


def allowed(dp: int, pp: int, tp: int, node: int, heads: int, layers: int, batch: int) -> str:
    """Why a grid cannot be, in words; empty: it can."""
    if node % tp:
        return f"groups of {tp} tensor ranks do not fit into nodes of {node}: some would lie across two"
    if heads % tp:
        return f"{heads} heads do not split over {tp} tensor ranks"
    if layers % pp:
        return f"{layers} layers do not split over {pp} stages"
    if batch % dp:
        return f"{batch} sequences do not split over {dp} replicas"
    return ""


def held(layers: int, hidden: int, tokens: int, dp: int, pp: int, tp: int) -> int:
    """Bytes of a rank of the first stage: states of bf16 and Adam with ZeRO 1, and 2 bytes · (34/tp) a token and layer
    for pp micro-batches under way, scores not kept (Korthikanti et al. 2022, sequence parallel)."""
    psi = 12 * hidden**2 * layers // (pp * tp)
    return 4 * psi + 12 * psi // dp + 34 * tokens * hidden // tp * (layers // pp) * pp


def took(layers: int, hidden: int, tokens: int, batch: int, dp: int, pp: int, tp: int) -> float:
    """Seconds of a step, roughly: 400 TFLOP/s, 370 and 50 GB/s."""
    M, psi = batch // dp, 12 * hidden**2 * layers
    compute = 6 * psi * tokens * M / (pp * tp) / 400e12 * (M + pp - 1) / M
    tensor = 16 * (tp - 1) / tp * tokens * hidden * M * layers / pp / 370e9
    return (
        compute
        + tensor
        + 4 * (dp - 1) / dp * psi / (pp * tp) / 50e9
        + 4 * M * tokens * hidden * (pp > 1) / 50e9
    )


class BestGrid(Exam):
    name = "best_grid"
    right = "Clusters of 1 to 96 GPUs, memory that decides, nodes of 6 and 8, one where nothing fits: the fastest grid."
    forbidden = FORBIDDEN
    # gpus, node, heads, layers, batch, tokens, room
    cases = tuple(
        Case(1, words, given)
        for words, given in (
            ("64 GPUs, enough memory", (*MANY, 1.0)),
            ("64 GPUs, little memory", (*MANY, 0.3)),
            ("64 GPUs, very little memory", (*MANY, 0.05)),
            ("one GPU", (1, 8, 8, 4, 16, 512, 1.0)),
            ("48 GPUs in nodes of 6", (48, 6, 48, 24, 96, 2048, 0.3)),
            ("heads that decide", (64, 8, 12, 24, 64, 2048, 0.1)),
            ("layers that decide", (64, 8, 64, 9, 64, 2048, 0.1)),
            ("a batch that decides", (96, 8, 64, 48, 6, 1024, 1.0)),
            ("nothing fits", (*MANY, 0.0)),
            ("to the byte", (*MANY, "exact")),
        )
    )

    def draw(self, case, rng):
        gpus, node, heads, layers, batch, tokens, room = case.given
        hidden = heads * 128 + 128 * int(torch.randint(0, 9, (), generator=rng))
        table = [
            (
                *one,
                held(layers, hidden, tokens, *one),
                took(layers, hidden, tokens, batch, *one)
                * (1 + 0.02 * float(torch.rand((), generator=rng))),
            )
            for one in oracle.factors(gpus)
            if not allowed(*one, node, heads, layers, batch)
        ]
        sizes = sorted(row[3] for row in table)
        if room == "exact":
            capacity = min(
                table, key=lambda row: row[4] if row[3] > sizes[len(sizes) // 4] else 1e9
            )[3]
        else:
            capacity = sizes[round(room * (len(sizes) - 1))] + 1000 if room else sizes[0] - 1
        return [([gpus, node, heads, layers, batch], [list(row) for row in table], capacity)]

    def run(self, comm: Comm, yours, shape, table, capacity):
        rows, asked = {tuple(row[:3]): row[3:] for row in table}, []
        gpus, node, heads, layers, batch = shape

        def of(dp, pp, tp):
            if dp * pp * tp != gpus:
                raise ValueError(
                    f"{dp}·{pp}·{tp} = {dp * pp * tp} ranks, and there are {gpus} GPUs"
                )
            if (dp, pp, tp) not in rows:
                raise ValueError(
                    f"dp {dp}, pp {pp}, tp {tp}: {allowed(dp, pp, tp, node, heads, layers, batch)}"
                )
            asked.append((dp, pp, tp))
            return rows[dp, pp, tp]

        found = yours(
            *shape,
            lambda dp, pp, tp: of(dp, pp, tp)[0],
            lambda dp, pp, tp: of(dp, pp, tp)[1],
            capacity,
        )
        return found, len(set(asked))

    def judge(self, case, args, outcome):
        shape, table, capacity = args[0]
        got, asked = outcome.results[0]
        fit = [row for row in table if row[3] <= capacity]
        best = min(fit, key=lambda row: row[4], default=None)
        if best is None:
            if got is not None:
                raise Wrong("nothing fits: it should return None.")
            return
        want = tuple(best[:3])
        three = isinstance(got, tuple | list) and len(got) == 3
        if not three or not all(isinstance(k, int | float) for k in got):
            raise Wrong(
                f"it returns {shown(got)}, and should return (dp, pp, tp), three whole numbers"
                f"{': something fits.' if got is None else '.'}"
            )
        if tuple(got) != want:
            self._other(tuple(got), want, table, capacity, shape)
        if asked < len(table):
            raise Wrong(
                f"right, but only {asked} of {len(table)} grids were looked at: on another cluster the best "
                "one may be among the rest."
            )

    def _other(self, got: tuple, want: tuple, table, capacity: int, shape) -> None:
        rows = {tuple(row[:3]): row[3:] for row in table}
        head = f"it returns {got}, and should return {want}. "
        if got not in rows:
            turned = next(
                (
                    p
                    for p in (
                        (got[0], got[2], got[1]),
                        got[::-1],
                        (got[1], got[0], got[2]),
                        (got[2], got[0], got[1]),
                        (got[1], got[2], got[0]),
                    )
                    if p == want
                ),
                None,
            )
            why = (
                allowed(*got, *shape[1:]) if all(isinstance(k, int) and k > 0 for k in got) else ""
            )
            raise Wrong(
                head
                + (
                    "The order is dp, pp, tp."
                    if turned
                    else f"That cannot be: {why or 'not these'}."
                )
            )
        nbytes, seconds = rows[got]
        if sorted(got) == sorted(want) and got != want and nbytes > capacity:
            raise Wrong(
                head
                + f"It needs {nbytes:,} bytes, and there are {capacity:,}. Is the order dp, pp, tp?"
            )
        if nbytes > capacity:
            raise Wrong(head + f"It needs {nbytes:,} bytes, and there are {capacity:,}.")
        why = (
            "It has the fewest bytes, not the fewest seconds. "
            if nbytes == min(row[3] for row in table)
            else ""
        )
        full = "What fits to the last byte, fits. " if rows[want][0] == capacity else ""
        raise Wrong(head + f"{why}{full}It takes {seconds:.3g} s, the other {rows[want][1]:.3g} s.")


def best_grid(yours) -> None:
    """`best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity)`: (dp, pp, tp), or None."""
    ask(BestGrid(), yours)
