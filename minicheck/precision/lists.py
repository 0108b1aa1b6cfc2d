"""The exercise of lesson 07 about lists of functions: a function mode that casts what they are given.

The functions are probes, which keep what reaches them; then a small network, with its gradients.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .oracle import FORBIDDEN

KINDS = ("white", "black", "gray", "unlisted")
NAMES = ("matmul", "softmax", "cat")
f16 = torch.float16
bf16 = torch.bfloat16
f32 = torch.float32
f64 = torch.float64
CAST = (f16, bf16, f32)


def probe(name: str, seen: list):
    """A function that modes see as one of torch's; it keeps the tensors that reach it."""

    def function(*args, **kwargs):
        given = tensors((args, kwargs))
        if has_torch_function(given):
            return handle_torch_function(function, given, *args, **kwargs)
        seen.append(
            [
                [x.clone() for x in given],
                sorted(kwargs),
                [a for a in args if isinstance(a, int | float)],
            ]
        )
        return given[0] * 1

    function.__name__ = name
    return function


def tensors(value) -> list[Tensor]:
    """All tensors in a value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [x for v in value for x in tensors(v)] if isinstance(value, list | tuple) else []


class Autocast(Exam):
    name = "autocast"
    right = "fp16 and bf16, three lists, arguments by name, in lists and tuples, float64 and integers, gradients."
    forbidden = (*FORBIDDEN, "torch.amp.autocast_mode")
    calls = (
        "two tensors",
        "by name",
        "in a list",
        "in a tuple and a number",
        "float64",
        "integers",
        "all in half",
        "both halves",
    )
    cases = (
        *(
            Case(1, f"a{'n' * (kind == 'unlisted')} {kind} function, {what}", (kind, what, dtype))
            for what, dtype in zip(calls, (f16, bf16) * 4)
            for kind in KINDS
        ),
        Case(1, "a network", None),
    )

    def draw(self, case, rng):
        order = torch.randperm(len(NAMES), generator=rng).tolist()
        names = [NAMES[i] + f"_{int(torch.randint(100, (), generator=rng))}" for i in order[:3]]
        names.append(names[0] + "_")  # another name, as torch's in-place functions have
        drawn = lambda dtype, *shape: torch.randn(*shape, generator=rng).to(dtype)
        if case.given is None:
            return [
                (
                    names,
                    "float16",
                    [
                        drawn(f32, 6, 4),
                        drawn(f32, 8, 4),
                        drawn(f32, 3, 8),
                        torch.randint(3, (6,), generator=rng),
                    ],
                )
            ]
        _, what, dtype = case.given
        first = {"float64": f64, "all in half": dtype, "both halves": f16}.get(what, f32)
        x, y = drawn(first, 2, 3), drawn(bf16 if what == "both halves" else dtype, 2, 3)
        if what.startswith("in a"):
            x, y = y, x  # the half comes first
        return [
            (names, str(dtype)[6:], [x, torch.arange(6).view(2, 3) if what == "integers" else y])
        ]

    def run(self, comm: Comm, yours, names, dtype, given):
        dtype = getattr(torch, dtype)
        if len(given) == 4:
            return self._network(yours, dtype, *given)
        seen: list = []
        functions = [probe(name, seen) for name in names]
        mode = yours(dtype, {names[0]}, {names[1]}, {names[2]})
        x, y = given
        out = []
        with mode:
            for f in functions:
                out.append([f(x, y), f(x, other=y), f([x, y]), f((x, y), 3)])
        kind = lambda r: str(r.dtype)[6:] if isinstance(r, Tensor) else "no tensor"
        return {"seen": seen, "kinds": [list(map(kind, some)) for some in out]}

    def _network(self, yours, dtype, x, w, v, target):
        weights = [nn.Parameter(w), nn.Parameter(v)]
        with yours(dtype, {"linear"}, {"cross_entropy"}, {"cat"}):
            h = F.linear(x, weights[0]).relu()
            z = F.linear(h, weights[1])
            loss = F.cross_entropy(z, target)
        if loss.requires_grad:
            loss.backward()
        return {
            "dtypes": [h.dtype == dtype, z.dtype == dtype, loss.dtype == f32],
            "loss": loss.detach(),
            "grads": [p.grad for p in weights],
            "kept": [p.dtype == f32 for p in weights],
        }

    def judge(self, case, args, outcome):
        (_, _, given), got = args[0], outcome.results[0]
        if case.given is None:
            return self._judge_network(given, got)
        kind, what, dtype = case.given
        at, way = KINDS.index(kind), self.calls.index(what) % 4 if what in self.calls[:4] else 0
        if len(got["seen"]) != 16:
            raise Wrong(
                f"16 calls were made, and {len(got['seen'])} have reached their function: call func once each."
            )
        found, keywords, numbers = got["seen"][4 * at + way]
        if keywords != (["other"] if way == 1 else []) or numbers != ([3] if way == 3 else []):
            raise Wrong(
                "an argument that is no tensor, or one by name, was lost on the way: hand all on to func."
            )
        self._received(kind, dtype, given, found)
        returned = got["kinds"][at][way]
        if returned != str(found[0].dtype)[6:]:
            raise Wrong(
                f"the function's result is {str(found[0].dtype)[6:]}, and {returned} comes back: return what "
                "func returns, as it is."
            )

    def _received(
        self, kind: str, dtype: torch.dtype, given: list[Tensor], found: list[Tensor]
    ) -> None:
        wide = {x.dtype for x in given if x.dtype in CAST}
        to = {
            "white": dtype,
            "black": f32,
            "gray": wide.copy().pop() if len(wide) == 1 else f32,
        }.get(kind)
        wants = [x.to(to) if to and x.dtype in CAST else x for x in given]
        rule = {
            "white": f"white: its tensors are cast to {str(dtype)[6:]}",
            "black": "black: its tensors are cast to float32",
            "gray": "gray: its tensors are cast to the widest dtype among them (float32, if two dtypes meet)",
            "unlisted": "on no list: its arguments stay as they are",
        }[kind]
        if len(found) != len(wants):
            raise Wrong(f"{len(wants)} tensors were given, and {len(found)} reached the function.")
        for x, got, want in zip(given, found, wants, strict=True):
            if got.dtype != want.dtype:
                extra = "" if x.dtype in CAST else f" {str(x.dtype)[6:]} is left alone."
                both = ", ".join(str(g.dtype)[6:] for g in given)
                raise Wrong(
                    f"given {both}, a tensor of {str(x.dtype)[6:]} reaches it as {str(got.dtype)[6:]}, and "
                    f"should as {str(want.dtype)[6:]}. The function is {rule}.{extra}"
                )
            if not got.equal(want):
                raise Wrong(
                    f"the numbers that reach it are not those that were given, but for the cast. It is {rule}. "
                    "Is a tensor changed in place, by .data or copy_? Others use it, too."
                )

    def _judge_network(self, given: list[Tensor], got: dict) -> None:
        x, w, v, target = given
        params = [w.clone().requires_grad_(), v.clone().requires_grad_()]
        loss = F.cross_entropy(F.linear(F.linear(x, params[0]).relu(), params[1]), target)
        loss.backward()
        for name, right in zip(
            ("the first layer's output", "the second's", "the loss"), got["dtypes"], strict=True
        ):
            if not right:
                raise Wrong(f"{name} has the wrong dtype: linear is white, cross_entropy is black.")
        if not all(got["kept"]):
            raise Wrong(
                "a parameter has another dtype than before: cast what func is given, not the model."
            )
        if not torch.allclose(got["loss"], loss, rtol=0.02):
            raise Wrong(f"the loss is {got['loss'].item():g}, and {loss.item():g} in fp32.")
        for g, p in zip(got["grads"], params, strict=True):
            if g is None:
                raise Wrong(
                    "a weight has no gradient: was the graph cut, by detach, .data or no_grad? "
                    "`x.to(dtype)` is recorded by autograd."
                )
            off = float((g - p.grad).norm() / p.grad.norm())
            if g.dtype != f32 or not off <= 0.03:
                raise Wrong(
                    f"a weight's gradient, in {str(g.dtype)[6:]}, is {100 * off:.3g} % off that of fp32: "
                    "rounding makes 3 % at most."
                )


def autocast(yours) -> None:
    """`Autocast(dtype, white, black, gray)`: a TorchFunctionMode that casts by the names of functions."""
    ask(Autocast(), yours)
