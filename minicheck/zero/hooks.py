"""The exercise of lesson 10 about stage 2: gradients go to their owners during backward, and are freed elsewhere.

Looked at: who has which gradient afterwards, live bytes of gradients and of all else during backward, bytes sent.
"""

from __future__ import annotations

import torch
from torch import nn

from minidist.comm.base import Comm

from ..buckets.work import Network, looks_of, network, timed
from ..compare import UNKNOWN, alike
from ..data_parallel.averages import near
from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .work import FORBIDDEN, changes, most, now, sent_at_least, sent_at_most


class ToOwners(Exam):
    name = "to_owners"
    right = (
        "n = 1…4, up to 9 layers, two backwards: averages at the owners, None elsewhere, freed during backward; "
        "then 2 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {len(owner)} layers{', float32' * (n == 4)}", owner)
        for n, owner in (
            (3, [0, 1, 2, 0, 1, 2]),
            (2, [1, 0, 1, 1, 0, 0]),
            (4, [3, 0, 2, 1, 1, 3, 0, 2, 0]),
            (1, [0, 0, 0]),
            (3, [2, 2, 0, 0, 2, 0, 2]),
        )
    )
    processes = (Case(2, "2 real processes", [0, 1, 1, 0]),)

    def draw(self, case, rng):
        values, depth = network(1, len(case.given), rng)
        dtype = torch.float32 if case.n == 4 else torch.float64
        # of a rank and backward
        xs = torch.randn(case.n, 2, 2, 16, generator=rng, dtype=torch.float64).to(dtype)
        return [([v.to(dtype) for v in values], depth, list(case.given), list(x)) for x in xs]

    def world(self, n, args):
        return timed(n)

    def run(self, comm: Comm, yours, values, depth, owner, xs):
        model, found = Network(values, depth), []
        # the meter knows a Parameter's gradient
        params, peaks = [nn.Parameter(p.detach()) for p in model.params()], []
        yours(comm, params, list(owner))
        for x in xs:
            for p in params:
                p.grad = None
            loss = model.loss(params, x, [0])
            held, start = now(), changes()
            loss.backward()
            del loss
            peaks.append((most("gradients", start), most(None, start) - sum(held.values())))
            found.append([None if p.grad is None else p.grad.clone() for p in params])
        return {
            "found": found,
            "peaks": peaks,
            "kept": all(map(torch.equal, params, values)),
            "metered": bool(now()),
        }

    def judge(self, case, args, outcome):
        values, depth, owner, _ = args[0]
        model, n = Network(values, depth), case.n
        for k in range(2):
            own = [model.gradient([a[3][k]], [0]) for a in args]
            for r, got in enumerate(outcome.results):
                if not got["kept"]:
                    raise Wrong(
                        f"rank {r}: the parameters themselves were changed. It is p.grad that goes."
                    )
                for i, o in enumerate(owner):
                    self._gradient(r, i, o, got["found"][k][i], [g[i] for g in own], k)
        largest, psi = max(v.nbytes for v in values), sum(v.nbytes for v in values)
        for r, got in enumerate(outcome.results):
            mine = sum(v.nbytes for v, o in zip(values, owner, strict=True) if o == r)
            if got["metered"] and n > 1:
                self._memory(r, got["peaks"], mine, largest)
        sent_at_most(
            outcome,
            2 * (n - 1) * psi * (1 + 1 / n),
            "2 backwards, (n−1)Ψ numbers and a little each,",
            "A gradient is needed at its owner alone: reduce_(…, root) sends half of an all-reduce.",
        )
        sent_at_least(outcome, 2 * (n - 1) * psi, "2 backwards, (n−1)Ψ numbers each,")

    def _gradient(self, r: int, i: int, owner: int, got, own: list, k: int) -> None:
        which = f"rank {r}: after backward {k + 1}, params[{i}].grad"
        if r != owner:
            if got is not None:
                raise Wrong(
                    f"{which} is a tensor, and rank {owner} owns it: set it to None, so that its memory is "
                    "freed."
                )
            return
        if got is None:
            raise Wrong(f"{which} is None, and this rank owns it: here its average stays.")
        alike(r, got, own[0], f"params[{i}].grad")
        if not near(got, sum(own) / len(own)):
            hint = looks_of(got, r, own).replace(
                UNKNOWN, "It is no mean of the ranks' gradients of this parameter."
            )
            raise Wrong(f"{which} is wrong. {hint}")

    def _memory(self, r: int, peaks: list[tuple[int, int]], mine: int, largest: int) -> None:
        for gradients, more in peaks:
            if gradients > mine + 2 * largest:
                raise Wrong(
                    f"the gradients are right, but during backward rank {r} holds {gradients:,} bytes of them; "
                    f"its own have {mine:,}, one on its way {largest:,}. Send each in a hook, as soon as it "
                    "is there, and drop it then, not when backward has ended."
                )
            if more > mine + 6 * largest:
                raise Wrong(
                    f"the gradients are right, but during backward rank {r} holds {more:,} bytes more than "
                    f"before; its own gradients have {mine:,}. Are copies kept of what was sent?"
                )


def to_owners(yours) -> None:
    """`to_owners(comm, params, owner)`: hooks that average each gradient at its owner and free it elsewhere."""
    ask(ToOwners(), yours)
