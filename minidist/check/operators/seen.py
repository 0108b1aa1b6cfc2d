"""What an answer makes, keeps and multiplies: a dispatch mode in its process, below autograd.

Storages are counted once, however many tensors view them, and only those that the answer's operators made.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...comm.charge.flops import operator


class Seen(TorchDispatchMode):
    """flops: of products.  largest: bytes of the largest storage made.  peak: of all alive at once.  names: of
    operators."""

    def __init__(self, given: Any):
        super().__init__()
        self.flops = self.largest = self.peak = 0
        self.names: set[str] = set()
        self.given = [x for x in tree_leaves(given) if isinstance(x, Tensor)]  # held, so that no address comes again
        self.known = {x.untyped_storage()._cdata for x in self.given}
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, known = kwargs or {}, operator(func)
        if known.composite:  # in inference mode operators arrive whole
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        self.names.add(known.name)
        self.flops += known.cost(args, kwargs, out).flops
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in self.known:
                storage = x.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, self.alive())
        return out

    def alive(self, without: Any = ()) -> int:
        """Bytes of what was made and is still held, but for the tensors in `without`."""
        self.made = {key: pair for key, pair in self.made.items() if not pair[0].expired()}
        apart = {x.untyped_storage()._cdata for x in tree_leaves(without) if isinstance(x, Tensor)}
        return sum(nbytes for key, (_, nbytes) in self.made.items() if key not in apart)

    def knows(self, x: Any) -> bool:
        """Whether `x` is a tensor that came out of an operator it saw, or was given."""
        return isinstance(x, Tensor) and x.untyped_storage()._cdata in self.known | self.made.keys()
