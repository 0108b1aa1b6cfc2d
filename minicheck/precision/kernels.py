"""What PyTorch has of a scaler below its Python classes, `torch._amp_update_scale_` for one: refused in an answer."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

from ..refuse import LIBRARYS, Refused


class NoKernels(TorchDispatchMode):
    """While it is entered, an operator of torch's own loss scaling raises Refused."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_amp_" in func.name():
            raise Refused(LIBRARYS)
        return func(*args, **(kwargs or {}))
