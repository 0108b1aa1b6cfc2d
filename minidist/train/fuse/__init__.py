"""Operators that do in one launch what PyTorch does in several; each is a custom operator with its cost.

add3, bias_gelu, layer_norm, softmax, cross_entropy, attention     functions, differentiable; X_plain: unfused
FlatSGD, FlatAdamW                                                 optimizers over one flat buffer
warm, cool, backend                                                compile for the CPU, forget it, say what runs
"""

from .add import add3, add3_plain
from .flash import attention, attention_plain
from .gelu import bias_gelu, bias_gelu_plain
from .kernels import backend, cool, warm
from .loss import cross_entropy, cross_entropy_plain
from .norm import layer_norm, layer_norm_plain
from .online import softmax, softmax_plain
from .optimizers import FlatAdamW, FlatSGD

__all__ = [
    "FlatAdamW",
    "FlatSGD",
    "add3",
    "add3_plain",
    "attention",
    "attention_plain",
    "backend",
    "bias_gelu",
    "bias_gelu_plain",
    "cool",
    "cross_entropy",
    "cross_entropy_plain",
    "layer_norm",
    "layer_norm_plain",
    "softmax",
    "softmax_plain",
    "warm",
]
