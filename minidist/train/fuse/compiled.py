"""Kernels for the CPU: functions of tensors that PyTorch's C++ backend compiles, and that run as they are until then.

Problem: eager PyTorch writes every intermediate result to memory and reads it back. `torch.compile` turns a function
of tensors into one loop, but the first kernel takes some 20 s to compile, each further one 2 s; of what was compiled
once on a machine, 4 s and 0.3 s remain (PyTorch keeps it in its cache: $TORCHINDUCTOR_CACHE_DIR, or the system's
folder for temporary files; nothing is written elsewhere).
Idea: nobody waits unasked. A kernel runs in its eager form until `warm()` has compiled it, for one dtype, any shape
and all threads of the process; every process warms for itself.

Invariants: compiled and eager form are one function, so they differ by rounding only. One thread at a time compiles
or runs: `torch.compile` is not for two threads at once, and a kernel has all cores anyhow. Modes (a meter, autocast)
see the operator that a kernel is in, never its inside. Ansel et al. 2024, "PyTorch 2", sections 3 and 4.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import types
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

LOCK = threading.RLock()


class Kernel:
    """`eager`, a function of tensors, flags and tuples of numbers; compiled for some dtypes of its first argument.

    examples: dtype -> argument tuples to compile for, all flags among them. No two sizes in them are equal by chance,
    since the compiler would take them for one; they are as large as those of real calls, by which it shapes loops.
    wide: it is only ever given float32 and longer.
    """

    def __init__(
        self, eager: Callable, examples: Callable[[torch.dtype], list[tuple]], wide: bool = False
    ):
        self.eager = eager
        self.examples = examples
        self.wide = wide
        self.compiled: dict[torch.dtype, Callable] = {}

    def __call__(self, *args):
        fn = self.compiled.get(args[0].dtype) if args[0].device.type == "cpu" else None
        if fn is None:
            return self.eager(*args)
        # The same state of the dispatcher, wherever called from: PyTorch takes another one for another program.
        with (
            LOCK,
            torch.no_grad(),
            torch._C.DisableTorchFunction(),
            torch._C._AutoDispatchBelowADInplaceOrView(),
        ):
            return fn(*map(_plain, args))

    def ready(self, dtype: torch.dtype) -> bool:
        """Whether it is compiled for tensors of `dtype`."""
        return self._dtype(dtype) in self.compiled

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.promote_types(dtype, torch.float32) if self.wide else dtype

    def compile_(self, dtype: torch.dtype) -> None:
        """Compile for `dtype`, if it is not. Raises what the compiler raises, and is then as before."""
        dtype = self._dtype(dtype)
        with LOCK:
            if dtype in self.compiled:
                return
            # a copy for each dtype: PyTorch compiles a code eight times at most
            code = self.eager.__code__.replace()
            own = types.FunctionType(
                code, self.eager.__globals__, self.eager.__name__, self.eager.__defaults__
            )
            self.compiled[dtype] = torch.compile(own, dynamic=True, fullgraph=True)
            try:
                for args in self.examples(dtype):
                    self(*args)
            except BaseException:
                del self.compiled[dtype]
                raise


def _plain(value):
    """Without a history; numbers as a tensor, so that another learning rate is not another program."""
    if isinstance(value, Tensor):
        return value.detach()
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, tuple) else value


def filled(*shapes: tuple, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Tensors of ones for examples, each in memory of its own: the place in a shared one would be part of a program."""
    return tuple(torch.ones(shape, dtype=dtype) for shape in shapes)


def compiler() -> str | None:
    """The C++ compiler that `torch.compile` would call ($CXX, or the system's), or None if there is none."""
    return shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))


def compile_all(kernels: Iterable[Kernel], dtypes: Iterable[torch.dtype]) -> str:
    """Compile each for each dtype: "compiled", or "eager: " and why it is that."""
    if compiler() is None:
        return f"eager: there is no C++ compiler {os.environ.get('CXX') or 'g++'!r} on the path"
    for kernel in kernels:
        for dtype in dtypes:
            try:
                kernel.compile_(dtype)
            except torch._dynamo.exc.TorchDynamoException as error:
                return f"eager: {kernel.eager.__name__} of {dtype} did not compile: {error}"
    return "compiled"
