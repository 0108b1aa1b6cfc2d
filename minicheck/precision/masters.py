"""The exercise of lesson 07 about master weights: unscale, look, skip or step, round.

Sequences of steps, so that what an update loses, or a skipped step changes, adds up and shows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..plain import kind_of
from ..wrong import Wrong
from .kernels import NoKernels
from .oracle import FORBIDDEN, SLIPS, Masters

SHAPES = ((3, 4), (5,), (2, 2, 2), (3,))
f16, bf16 = torch.float16, torch.bfloat16
LISTS = ("weights", "masters", "momenta")


class MasterStep(Exam):
    name = "master_step"
    right = "fp16 and bf16, tiny gradients and large ones, no gradient, inf and nan, several steps in a row."
    forbidden = FORBIDDEN
    # what, dtype, scale, size of a gradient times the scale, steps, {step: (tensor, what is planted)}, none of tensor
    kinds = (
        ("one step", f16, 1024.0, 1.0, 1, {}, None),
        ("gradients near 2⁻³⁰", f16, 2.0**20, 2.0**-10, 3, {}, None),
        ("updates below a step of the weights", f16, 256.0, 4.0, 12, {}, None),
        ("no gradient for the second tensor", f16, 256.0, 1.0, 3, {}, 1),
        ("large gradients, all finite", f16, 2.0**16, 40_000.0, 2, {}, None),
        ("an inf in step 1", f16, 2.0**16, 8.0, 3, {1: (0, math.inf)}, None),
        ("a −inf in step 0", f16, 2.0**16, 8.0, 2, {0: (2, -math.inf)}, None),
        ("a nan in step 2", f16, 2.0**16, 8.0, 4, {2: (2, math.nan)}, 0),
        ("bf16", bf16, 1.0, 0.5, 6, {}, None),
    )
    cases = tuple(Case(1, kind[0], kind[1:]) for kind in kinds)

    def draw(self, case, rng):
        dtype, scale, size, steps, planted, none = case.given
        drawn = lambda: [torch.randn(shape, generator=rng) for shape in SHAPES]
        weights = [x.sign() * (1 + x.abs().clamp(max=0.9)) for x in drawn()]
        rate = 2.0**-13 / (size / scale) if "bf16" not in case.what else 2.0**-10
        grads = []
        for step in range(steps):
            now = [(size * (x / x.abs().max())).to(dtype) for x in drawn()]
            if size > 1e4:  # their sum overflows, none of them does
                now = [(size + x.abs()).to(dtype) for x in drawn()]
                now[0].view(-1)[0] = torch.finfo(dtype).max
            if step in planted:
                tensor, value = planted[step]
                now[tensor].view(-1)[1] = value
            grads.append([None if i == none else g for i, g in enumerate(now)])
        momenta = [0.5 * size / scale * x for x in drawn()]
        mu = 0.8 + 0.15 * float(torch.rand((), generator=rng))
        return [
            (
                [w.to(dtype) for w in weights],
                [w + 1e-5 for w in weights],
                momenta,
                grads,
                scale,
                rate,
                mu,
            )
        ]

    def run(self, comm: Comm, yours, weights, masters, momenta, grads, scale, lr, mu):
        kept, steps = [list(some) for some in (weights, masters, momenta)], []
        for step in grads:
            given = [None if g is None else g.clone() for g in step]
            with NoKernels():
                # of the same memory: `w.data = …` does not write
                mine = [[x.detach() for x in some] for some in kept]
                told = yours(*mine, given, scale, lr, mu)
            after = {
                name: [x.clone() for x in some] for name, some in zip(LISTS, kept, strict=True)
            }
            steps.append({"told": told, "grads": given, **after})
        return steps

    def judge(self, case, args, outcome):
        weights, masters, momenta, grads, scale, lr, mu = args[0]
        right = Masters(weights, masters, momenta, scale, lr, mu)
        wrongs = {
            text: Masters(weights, masters, momenta, scale, lr, mu, slip)
            for slip, text in SLIPS.items()
        }
        for i, (now, got) in enumerate(zip(grads, outcome.results[0], strict=True)):
            stepped, where = right.step(now), f"step {i}: "
            for wrong in wrongs.values():
                wrong.step(now)
            self._told(where, got["told"], stepped)
            for name in ("momenta", "masters"):
                self._same(where, name, got, right, wrongs, stepped)
            self._copies(where, got, right)
            if len(got["grads"]) != len(now) or not all(map(same, got["grads"], now)):
                raise Wrong(
                    f"{where}a gradient was changed, and belongs to the caller: its fp32 copy is yours."
                )

    def _told(self, where: str, told, stepped: bool) -> None:
        if told is None:
            raise Wrong(f"{where}it returns None. Return whether it stepped: True or False.")
        if isinstance(told, Tensor) and told.numel() == 1:
            told = bool(told)
        if not isinstance(told, bool):
            kind = kind_of(told)
            raise Wrong(
                f"{where}it returns something of type {kind}, and should return True or False."
            )
        if told and not stepped:
            raise Wrong(f"{where}it says that it stepped, but a gradient is inf or nan.")
        if stepped and not told:
            raise Wrong(
                f"{where}it says that it skipped, but every gradient is finite. Is it their sum that overflows "
                "in fp16? Or does None count? Ask each element: isfinite()."
            )

    def _same(
        self, where: str, name: str, got: dict, right: Masters, wrongs: dict, stepped: bool
    ) -> None:
        for i, (x, want) in enumerate(zip(got[name], getattr(right, name), strict=True)):
            if not isinstance(x, Tensor) or x.shape != want.shape or x.dtype != torch.float32:
                raise Wrong(f"{where}{name}[{i}] is no longer a tensor of float32 with its shape.")
            if close(x, want):
                continue
            found = next(
                (text for text, w in wrongs.items() if close(x, getattr(w, name)[i])), None
            )
            if found is None and not stepped:
                found = "The step is to be skipped: nothing may change."
            found = (
                found
                or "v ← mu·v + g, then master ← master − lr·v, with g in fp32 and divided by the scale."
            )
            raise Wrong(f"{where}{name}[{i}] has {farthest(x, want)}. {found}")

    def _copies(self, where: str, got: dict, right: Masters) -> None:
        for i, (w, m) in enumerate(zip(got["weights"], got["masters"], strict=True)):
            if w.dtype != right.weights[i].dtype or w.shape != m.shape:
                raise Wrong(f"{where}weights[{i}] has another dtype or shape than before.")
            if not w.equal(right.weights[i]) and not w.equal(m.to(w.dtype)):
                found = farthest(w, m.to(w.dtype))
                raise Wrong(
                    f"{where}weights[{i}] is not its master, rounded: it has {found}. The model computes with "
                    "this very tensor: copy into it, in place, after every step."
                )


def farthest(x: Tensor, want: Tensor) -> str:
    """The number of `x` that is farthest from `want`, and what it should be."""
    x, want = x.double().flatten(), want.double().flatten()
    i = int((x - want).abs().nan_to_num(math.inf).argmax())
    return f"a number {x[i]:.8g}, which should be {want[i]:.8g}"


def close(a: Tensor, b: Tensor) -> bool:
    """Equal but for the rounding of fp32, relative to the largest; nan where the other has it."""
    return bool(
        torch.allclose(
            a, b, rtol=1e-6, atol=2e-7 * float(b.abs().nan_to_num(0, 0, 0).max()), equal_nan=True
        )
    )


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """The same bits, or both None."""
    if a is None or b is None:
        return a is b
    return (
        isinstance(a, Tensor)
        and a.dtype == b.dtype
        and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
    )


def master_step(yours) -> None:
    """`master_step(weights, masters, momenta, grads, scale, lr, mu)`: whether it stepped; all in place."""
    ask(MasterStep(), yours)
