"""The exercise of lesson 09 about a flat buffer: parameters and gradients as views, a step as one operator."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .judge import FORBIDDEN, close, kind, number, told
from .seen import Seen

RATE = 0.1


def losses(params: list[Tensor], x: Tensor) -> Tensor:
    """Every parameter's gradient is another one each step; an affine map of each is squared."""
    return sum(
        ((p * (i + 1) + x[: p.numel()].view(p.shape)) ** 2).sum() for i, p in enumerate(params)
    )


def places(views: list[Tensor | None], flat: Tensor) -> list[int | None]:
    """Where each view begins in `flat`, in elements; None if it is none of it, or has gaps."""
    key = flat.untyped_storage()._cdata
    inside = lambda x: x is not None and x.untyped_storage()._cdata == key and x.is_contiguous()
    return [x.storage_offset() - flat.storage_offset() if inside(x) else None for x in views]


def shared(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors that have no gaps lie in the same memory, or in parts of it that overlap."""
    same = a.untyped_storage()._cdata == b.untyped_storage()._cdata
    return same and abs(a.storage_offset() - b.storage_offset()) < min(a.numel(), b.numel())


class Flatten(Exam):
    name = "flatten"
    right = "5 models: values kept, views in order, old memory freed, three steps of SGD with two launches each."
    forbidden = FORBIDDEN
    cases = tuple(
        Case(1, f"shapes {shapes}", shapes)
        for shapes in (
            ((3, 2), (4,)),
            ((5,),),
            ((2, 3), (), (1,), (4, 2)),
            ((7, 3), (3, 7), (3,), (2, 2, 2)),
        )
    )
    cases += (Case(1, "a transposed parameter", ((4, 3), (3,), "t")),)

    def draw(self, case, rng):
        shapes = [shape for shape in case.given if shape != "t"]
        dtype = torch.float32 if len(shapes) == 4 else torch.float64
        values = [torch.randn(shape, generator=rng, dtype=dtype) for shape in shapes]
        return [(values, "t" in case.given, torch.randn(3, 99, generator=rng, dtype=dtype))]

    def run(self, comm: Comm, yours, values, transposed, xs):
        seen = Seen([xs])
        values = [values[0].T, *values[1:]] if transposed else values
        params = [nn.Parameter(seen.give(v)) for v in values]
        mine, old = list(params), [StorageWeakRef(p.untyped_storage()) for p in params]
        pair = seen.ask(yours, mine)
        held = seen.alive()
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not all(isinstance(x, Tensor) for x in pair)
        ):
            return {"pair": kind(pair)}
        flat, grads = pair
        if not all(map(seen.knows, [flat, grads, *params])):
            return {"pair": "", "knows": False}
        same = len(mine) == len(params) and all(a is b for a, b in zip(mine, params, strict=True))
        found = {
            "pair": "",
            "knows": True,
            "values": seen.plain(params),
            "same": same,
            "held": held,
            "trained": all(p.requires_grad for p in params)
            and not flat.requires_grad
            and not grads.requires_grad,
            "places": places([p.detach() for p in params], flat),
            "grads": places([p.grad for p in params], grads),
            "shapes": [tuple(x.shape) for x in pair],
            "dtypes": [str(x.dtype) for x in pair],
            "zero": not bool(seen.plain(grads).any()),
            "shared": shared(flat, grads),
            "left": seen.left,
            "may_leave": seen.may_leave,
            "old": [ref.expired() for ref in old],
        }
        return found | {"steps": [self._step(seen, params, flat, grads, x) for x in seen.given[0]]}

    def _step(self, seen, params, flat, grads, x):
        """The parameters after a step of SGD on the two buffers."""

        def step():
            grads.zero_()
            losses(params, x).backward()
            flat.add_(grads, alpha=-RATE)

        seen.ask(step)
        return seen.plain(params)

    def judge(self, case, args, outcome):
        (values, transposed, xs), got = args[0], outcome.results[0]
        values = [values[0].T, *values[1:]] if transposed else values
        if got["pair"] != "":
            raise Wrong(
                f"the result is {got['pair']}, and should be two tensors, flat and grads. Is there a `return`?"
            )
        if not got["knows"]:
            raise Wrong(
                "flat, grads or a parameter came out of no operator that the meter saw: compute it with "
                "PyTorch, in the open."
            )
        self._buffers(values, got)
        for what, name in (("places", "p"), ("grads", "p.grad")):
            at = 0
            for i, (place, value) in enumerate(zip(got[what], values, strict=True)):
                if place != at:
                    where = (
                        "is no view of it"
                        if not number(place)
                        else f"begins at element {place} of it"
                    )
                    raise Wrong(
                        f"{name} of params[{i}] {where}: it should begin at {at}, one after the other, in "
                        "order. Is it a view, or a copy?"
                    )
                at += value.numel()
        self._rest(values, xs, got)

    def _buffers(self, values, got):
        total = sum(v.numel() for v in values)
        for dtype, name in zip(got["dtypes"], ("flat", "grads"), strict=True):
            if dtype != str(values[0].dtype):
                raise Wrong(
                    f"{name} has dtype {dtype}, and should have that of the parameters, {values[0].dtype}."
                )
        for shape, name in zip(got["shapes"], ("flat", "grads"), strict=True):
            if shape != (total,):
                raise Wrong(
                    f"{name} has shape {shape}, and should have {(total,)}: all parameters' numbers, in a row."
                )
        if not got["same"]:
            raise Wrong(
                "the list of parameters was changed: the model has the old ones. Set p.data of each."
            )
        for i, (value, want) in enumerate(zip(got["values"], values, strict=True)):
            looks = {"It is 0: were the values copied?": torch.zeros_like(want)}
            if want.dim() == 2:
                looks["It is transposed: flatten it row by row, as it is read."] = want.T.reshape(
                    want.shape
                )
            close(value, want, f"params[{i}]", looks, "Is each view where its values were put?")
        if got["shared"]:
            raise Wrong("flat and grads lie in the same memory: gradients need their own.")
        if not got["trained"]:
            raise Wrong(
                "a parameter has lost requires_grad, or a buffer has it: the parameters are trained, flat and "
                "grads are memory. Work with p.detach()."
            )

    def _rest(self, values, xs, got):
        if not got["zero"]:
            raise Wrong("grads is not zero at the start: autograd adds to what is there.")
        told(got, "flat")
        if not all(got["old"]):
            raise Wrong(
                f"params[{got['old'].index(False)}]'s old memory is still held: two copies of the weights."
            )
        most = 2 * sum(v.nbytes for v in values)
        if got["held"] > most:
            raise Wrong(
                f"{got['held']} bytes are held afterwards, and {most} are enough: flat, and grads."
            )
        leaves = [v.clone().requires_grad_() for v in values]
        for i, (x, step) in enumerate(zip(xs, got["steps"], strict=True)):
            grads = torch.autograd.grad(losses(leaves, x), leaves)
            leaves = [
                (p - RATE * g).detach().requires_grad_() for p, g in zip(leaves, grads, strict=True)
            ]
            for j, (found, p) in enumerate(zip(step, leaves, strict=True)):
                close(
                    found,
                    p.detach(),
                    f"params[{j}] after step {i + 1}",
                    {},
                    "Does autograd add to grads, and does the step move what the model uses?",
                )


def flatten(yours) -> None:
    """`flatten(params)`: (flat, grads), of which the parameters, and their .grad, are views."""
    ask(Flatten(), yours)
