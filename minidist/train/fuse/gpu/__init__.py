"""The operators for a GPU, in Triton: `triton`, which PyTorch's CUDA builds bring along, is imported with this package.

A function here is the kernel of the operator of its name, with the same arguments. Rows and flat buffers pass by in
blocks; all sums are in float32, in float64 of float64. The kernels are held against the eager forms in Triton's
interpreter (TRITON_INTERPRET=1), which needs no GPU; nothing here has been run, or timed, on a GPU.
"""

from .flash import attention, attention_backward
from .online import cross_entropy, cross_entropy_backward, softmax, softmax_backward
from .pointwise import adamw_, add3, momentum_, sgd_
from .rows import bias_gelu, bias_gelu_backward, layer_norm, layer_norm_backward

__all__ = [
    "adamw_",
    "add3",
    "attention",
    "attention_backward",
    "bias_gelu",
    "bias_gelu_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "layer_norm",
    "layer_norm_backward",
    "momentum_",
    "sgd_",
    "softmax",
    "softmax_backward",
]
