"""What a rank does that believes to be on a GPU: programs of other tests, as a user with a GPU would write them.

A user makes models and data on the GPU; the programs of these tests name no device. So what *they* make without one is
put on the Comm's device, as in `with comm.device:`, and so is what they are given. What the library makes without a
device stays on the host, where it would be on a machine with GPUs, too: there `nccl_like` refuses it beside the rest.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from unittest import mock

import torch
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

import minidist.comm

TESTS = str(Path(__file__).resolve().parents[1])
PACKAGE = Path(minidist.__file__).parent
MODELS = str(PACKAGE / "models"), str(PACKAGE / "parallel" / "batchnorm.py")
TORCH = str(Path(torch.__file__).parent)


class MadeByTests:
    """Within it PyTorch's functions that make tensors put on `device` what a test makes without naming one: models too,
    whose functions say "cpu" unless told. Other threads are the host's, or the pretence's own."""

    def __init__(self, device: torch.device):
        self.device, self._stack = device, contextlib.ExitStack()

    def __enter__(self) -> None:
        for name in {f.__name__ for f in _device_constructors() if hasattr(f, "__name__")} | {
            "tensor",
            "empty_like",
        }:
            if hasattr(torch, name):
                self._stack.enter_context(
                    mock.patch.object(torch, name, self._maker(name, getattr(torch, name)))
                )

    def __exit__(self, *_) -> None:
        self._stack.close()

    def _maker(self, name: str, made):
        def make(*args, **kwargs):
            test, model = (
                asks() if threading.current_thread() is threading.main_thread() else (False, False)
            )
            named = kwargs.get("device")
            if test and (
                (model and str(named) == "cpu") or (named is None and name != "empty_like")
            ):
                kwargs["device"] = self.device
            return made(*args, **kwargs)

        return make


def asks() -> tuple[bool, bool]:
    """Whether the innermost line that says where tensors are made is a test's, and whether it asks for a model.
    PyTorch's layers say nothing of their own; its optimizers do: a count of steps is on the host."""
    frame, models = sys._getframe(2), False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(TORCH) and "/optim/" in name:
            return False, models
        models = models or name.startswith(MODELS)
        if not name.startswith((TORCH, *MODELS, "<")):
            return name.startswith(TESTS), models
        frame = frame.f_back
    return False, models


def moved(values, device: torch.device):
    """The same with all tensors and modules on `device`."""
    return tree_map(
        lambda x: x.to(device) if isinstance(x, torch.Tensor | torch.nn.Module) else x, values
    )


def move_globals(files, device: torch.device) -> None:
    """Tensors that a test file made when it was imported."""
    for names in files:
        for name, value in list(names.items()):
            if isinstance(value, torch.Tensor):
                names[name] = moved(value, device)


def move_cells(program, device: torch.device) -> None:
    """What a program takes from the test around it."""
    for cell in getattr(program, "__closure__", None) or ():
        cell.cell_contents = moved(cell.cell_contents, device)


def run_all(comm, jobs: list[tuple]) -> list:
    """The result of each job, (name, program, args, kwargs). An exception says in which one it was raised."""
    found = []
    files = [
        vars(module) for name, module in list(sys.modules.items()) if name.startswith("tests.")
    ]
    move_globals(files, comm.device)
    with MadeByTests(comm.device):
        for name, program, args, kwargs in jobs:
            try:
                move_globals([getattr(program, "__globals__", {})], comm.device)
                move_cells(program, comm.device)
                found.append(program(comm, *moved(args, comm.device), **moved(kwargs, comm.device)))
                comm.flush()
            except BaseException as error:
                error.add_note(f"in {name}")
                raise
    return found


def as_script(comm, program, *args):
    """`program(*args)` of a rank that torchrun has started, whose `from_env` gives this Comm."""
    given = lambda *_, **__: comm
    patches = [mock.patch.object(minidist.comm, "from_env", given)]
    patches += (
        [mock.patch.object(sys.modules["started"], "from_env", given)]
        if "started" in sys.modules
        else []
    )
    for patch in patches:
        patch.start()
    try:
        return program(*args)
    finally:
        for patch in patches:
            patch.stop()
