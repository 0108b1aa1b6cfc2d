"""Mixed precision without a change of the model: each operator's inputs are cast, as its list says.

    with autocast(torch.float16):
        loss = F.cross_entropy(model(x), y)      # linear: fp16.  cross_entropy: fp32
    scaler.scale(loss).backward()                # every gradient in the dtype of what it is the gradient of

A mode of torch *functions*, so the casts come before autograd: it records them, saves the halves, and casts each
gradient back. A dispatch mode would cast below autograd, which then saves fp32 and gets gradients of another dtype.

    x ──cast──> half ──matmul──> half        recorded: ToCopyBackward, MmBackward with its inputs in half

Weights are cast once for each entry, however often they are used (the cast cache). Cost: 2 bytes for each weight
used, and less for each activation saved. Source: Micikevicius et al. 2018, section 3.3; torch.autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache as remember
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from .lists import BLACK, GRAY, WHITE, name_of, names

CAST = (torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)


class autocast(TorchFunctionMode):
    """Run the functions of `white` in `dtype`, those of `black` in fp32, those of `gray` in their widest input's.

    dtype: torch.float16 or torch.bfloat16.  white, black, gray: names, or functions of torch; to add one,
    `autocast(black=BLACK | {"gelu"})`; to move one, take it from the other.  cache: cast an fp32 leaf that requires
    grad once while this context is entered; a leaf that was changed since is cast again, and under no_grad all are.
    enabled: False switches an enclosing autocast off.

    Only the innermost counts. One instance may be entered again, also within itself. float64 is left alone.
    Errors: ValueError for another dtype, or a function on two lists.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.float16,
        white: Iterable[str | Callable] = WHITE,
        black: Iterable[str | Callable] = BLACK,
        gray: Iterable[str | Callable] = GRAY,
        cache: bool = True,
        enabled: bool = True,
    ):
        super().__init__()
        if dtype not in HALVES:
            raise ValueError(f"autocast is to one of {HALVES}, not to {dtype}")
        self.dtype = dtype
        self.cache = cache
        self.enabled = enabled
        self.white = names(white)
        self.black = names(black)
        self.gray = names(gray)
        twice = sorted(self.white & self.black | self.white & self.gray | self.black & self.gray)
        if twice:
            raise ValueError(f"on two lists at once: {', '.join(twice)}")
        self._kept: dict[Tensor, tuple[int, Tensor]] = {}
        # how often it was entered; how many within it do a call in its place
        self._entered = self._silenced = 0

    def __enter__(self) -> autocast:
        self._entered += 1
        return super().__enter__()

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        self._entered -= 1
        if not self._entered:
            self._kept.clear()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, outer = (
            kwargs or {},
            [] if self._silenced else [mode for mode in _autocasts() if mode is not self],
        )
        for mode in outer:
            mode._silenced += 1  # this is the innermost: they get the call next
        try:
            return self._call(func, args, kwargs)
        finally:
            for mode in outer:
                mode._silenced -= 1

    def _call(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        if not self.enabled or self._silenced or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        name = name_of(func)
        if name in self.white:
            args, kwargs = cast((args, kwargs), self._low)
        elif name in self.black:
            args, kwargs = cast((args, kwargs), _single)
        elif name in self.gray:
            args, kwargs = cast((args, kwargs), _to(widest((args, kwargs))))
        elif (inner := opened(func)) is not None:
            return self._within(inner, args, kwargs)
        return func(*args, **kwargs)

    def _low(self, x: Tensor) -> Tensor:
        if not (self.cache and x.is_leaf and x.requires_grad and torch.is_grad_enabled()):
            return x.to(self.dtype)
        version, kept = self._kept.get(x, (None, None))
        if version != x._version:
            version, kept = self._kept[x] = x._version, x.to(self.dtype)
        return kept

    def _within(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        """Call a function written in Python with this mode in force, so that what it calls is cast."""
        super().__enter__()
        try:
            return func(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)


def _autocasts() -> list[autocast]:
    """Those in this thread's stack of modes, the innermost last."""
    return [mode for mode in _get_current_function_mode_stack() if isinstance(mode, autocast)]


def active() -> autocast | None:
    """The autocast in force in this thread: whoever runs a part of the program again later enters it then."""
    return next(reversed(_autocasts()), None)


def cast(value, to: Callable[[Tensor], Tensor]):
    """`value` with `to` applied to each fp32, fp16 and bf16 tensor in it, also in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return to(value) if value.dtype in CAST else value
    if type(value) in (list, tuple):
        return type(value)(cast(v, to) for v in value)
    return {k: cast(v, to) for k, v in value.items()} if type(value) is dict else value


def widest(value) -> torch.dtype:
    """The dtype that holds what all these tensors hold: fp32, unless all are of one half."""
    found: set[torch.dtype] = set()
    cast(value, lambda x: found.add(x.dtype))
    return found.pop() if len(found) == 1 else torch.float32


def _to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(dtype)


_single = _to(torch.float32)


@remember
def opened(func: Callable) -> Callable | None:
    """A function of torch.nn.functional that is written in Python, without the line that hands it to modes whole.

    multi_head_attention_forward is on no list, but the products in it are. None for all other functions.
    """
    asks = [
        n
        for n in getattr(getattr(func, "__code__", None), "co_names", ())
        if n.startswith("has_torch_function")
    ]
    if not asks or func.__module__ not in ("torch.nn.functional", "torch.functional"):
        return None
    inside = func.__globals__ | dict.fromkeys(asks, lambda *tensors: False)
    made = FunctionType(func.__code__, inside, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made
