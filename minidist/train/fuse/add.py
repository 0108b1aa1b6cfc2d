"""Three tensors added in one pass: of a residual block x + attention(x) + mlp(x), or any a + b + c.

Problem: two additions are two launches, and the first one's result goes to memory and comes back.
Idea: the simplest fusion there is: read three, write one.

                launches    bytes, of N elements    temporary memory
    a + b + c   2           6N                      N
    add3        1           4N                      none

Invariant: the sum is taken in float32 at least and rounded once, where fp16 a + b + c rounds twice.
"""

from __future__ import annotations

from torch import Tensor

from .compiled import Kernel, filled
from .operator import alike, differentiable, exact, operator


def add3_plain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The same by PyTorch's operators."""
    return (exact(a) + exact(b) + exact(c)).to(a.dtype)


ADD3 = Kernel(add3_plain, lambda dtype: [filled(*[(1 << 20,)] * 3, dtype=dtype)])


@operator("add3", fake=lambda a, b, c: a.new_empty(a.shape))
def _add3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return ADD3(*(x.reshape(-1) for x in (a, b, c))).view(a.shape)


differentiable(_add3, lambda ctx, dy: (dy, dy, dy), lambda ctx, inputs, output: None)


def add3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a + b + c, of one shape and dtype: (…) → (…). Backward hands the gradient on and launches nothing.

    Raises ValueError for other shapes, dtypes or devices.
    """
    alike("a", a, b=b, c=c)
    return _add3(a, b, c)
