"""How a program, its arguments and its results travel between the notebook and its ranks.

cloudpickle, with two differences. Tensors that share memory share it on the other side, too (as deepcopy
keeps it in a World); pickle alone would send it twice. And what a module of the user's defines travels as
a cell's definitions do, by value: as it is now, and without running that module again on every rank.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable

import cloudpickle
import torch

from ..program import users

_REGISTERING = threading.Lock()  # cloudpickle's registry belongs to the whole process


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj):
        if isinstance(obj, torch.storage.TypedStorage):  # made anew for each tensor that is pickled
            return _typed, (obj._untyped_storage, obj.dtype)
        # one object for each memory
        if isinstance(obj, torch.UntypedStorage) and obj.device.type == "cpu":
            return _storage, (torch.empty(0, dtype=torch.uint8).set_(obj).numpy().tobytes(),)
        return super().reducer_override(obj)


def _typed(storage: torch.storage.TypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(
        wrap_storage=storage._untyped_storage, dtype=dtype, _internal=True
    )


def _storage(data: bytes) -> torch.storage.TypedStorage:
    """Typed, as torch itself unpickles an untyped one: tensors of the newer dtypes count on it."""
    values = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8)
    )
    return torch.storage.TypedStorage(
        wrap_storage=values.untyped_storage(), dtype=torch.uint8, _internal=True
    )


def dumps(value) -> bytes:
    """`value` for `pickle.loads`."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def dumps_program(program: Callable, args: tuple, kwargs: dict) -> bytes:
    """The program and its arguments, with what the modules of the user's define that they come from."""
    found = {
        sys.modules.get(getattr(x, "__module__", None))
        for x in (program, *args, *kwargs.values())
        if users(x)
    }
    with _REGISTERING:
        known = cloudpickle.list_registry_pickle_by_value()
        modules = [
            m
            for m in found
            if m is not None and m.__name__ != "__main__" and m.__name__ not in known
        ]
        try:
            for module in modules:
                cloudpickle.register_pickle_by_value(module)
            return dumps((program, args, kwargs))
        except Exception as error:
            error.add_note("launch sends the program and its arguments to other processes")
            raise
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
