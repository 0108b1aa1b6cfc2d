"""The exercise of lesson 04, Data parallel, about the start: all replicas become rank 0's."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..compare import alike
from ..exam import ask
from ..wrong import Wrong
from .averages import near
from .gradients import ReplicaExam, cases, processes
from .replicas import WORDS, Model, drawn, state


class StartEqual(ReplicaExam):
    name = "start_equal"
    right = (
        "n = 1…5, 6 models that start apart, parameters and buffers of rank 0 everywhere, (n−1)(1+1/n)·N bytes in "
        "all; then 2 and 3 real processes."
    )
    cases, processes = cases(tuple(WORDS)), processes("buffers", "tied")

    def draw(self, case, rng):
        dtype = torch.float32 if case.n == 2 else torch.float64
        first = drawn(case.given, rng, dtype)
        return [
            tuple(first),
            *(tuple(drawn(case.given, rng, dtype, first.width)) for _ in range(case.n - 1)),
        ]

    def run(self, comm: Comm, yours, kind, width, values):
        module = Model(kind, width, values).build()
        before = {name: (x, x.detach()) for name, x in state(module).items()}
        flags = [p.requires_grad for p in module.parameters()]
        yours(comm, module)
        after = state(module)
        kept = after.keys() == before.keys() and all(  # no `x.data = …`
            after[name] is x and x.data_ptr() == held.data_ptr()
            for name, (x, held) in before.items()
        )
        return {
            "state": after,
            "kept": kept,
            "flags": flags == [p.requires_grad for p in module.parameters()],
        }

    def judge(self, case, args, outcome):
        all_values = [values for *_, values in args]
        buffers = {name for name, _ in Model(*args[0]).build().named_buffers()}
        for r, got in enumerate(outcome.results):
            for name, want in all_values[0].items():
                x = got["state"].get(name)
                alike(r, x, want, name)
                if not x.equal(want):
                    raise Wrong(
                        f"rank {r}: {name} is not rank 0's. "
                        f"{self._looks(x, [v[name] for v in all_values], r, name in buffers)}"
                    )
            if not got["kept"]:
                raise Wrong(
                    f"rank {r}: the module holds other tensors than before. Whoever has the old ones, an "
                    "optimizer or a tied layer, is left behind. Fill those that are there."
                )
            if not got["flags"]:
                raise Wrong(
                    f"rank {r}: requires_grad is another than before: what was frozen stays frozen."
                )
        most = sum(
            (case.n**2 - 1) * -(-x.numel() // case.n) * x.element_size()
            for x in all_values[0].values()
        )
        if outcome.nbytes() > most:
            raise Wrong(
                f"the numbers are right, but {outcome.nbytes()} bytes are sent in all, and a broadcast of each "
                f"tensor needs {most} at most. Is a tied one sent twice? Does only rank 0 give?"
            )

    def _looks(self, got: Tensor, values: list[Tensor], rank: int, buffer: bool) -> str:
        n = len(values)
        if got.equal(values[rank]):
            what = "a buffer: buffers must start equal, too" if buffer else "a parameter"
            return (
                f"It is rank {rank}'s own, as before. It is {what}. Does it stand in what you send?"
            )
        for r, x in enumerate(values):
            if got.equal(x):
                return f"It is rank {r}'s: rank 0 is the root."
        floats = [x.double() for x in values]
        if near(got.double(), sum(floats) / n):
            return "It is the mean of all ranks': a mean of initial values is no initial value, it is too small."
        if near(got.double(), sum(floats)):
            return "It is the sum of all ranks'."
        return "It is none of the ranks': drawn anew, or written over?"


def start_equal(yours) -> None:
    """`start_equal(comm, module)`: every parameter and buffer becomes rank 0's, in place."""
    ask(StartEqual(), yours)
