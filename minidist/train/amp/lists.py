"""Which operators run in half precision: white, black and gray lists, as apex named them.

    white   products of matrices, convolutions, attention: nearly all FLOPs are here, hardware has them in half and
            sums them up in fp32, and their results stay near their inputs in size. Inputs are cast to half.
    black   what leaves the range (exp, pow, 1/x), what adds up many terms (sums, norms, softmax, losses), and what
            cancels (log near 1). Inputs are cast to fp32, and so is the result.
    gray    takes several tensors and is as exact as its inputs: all are cast to the widest dtype among them.

Any other operator runs in whatever its inputs are: ReLU, dropout, a reshape do as well in half as in fp32, and
a + b of fp16 and fp32 is fp32 by PyTorch's own rule. Batch norm is among these: its kernels take half and add up in
fp32. Left out on purpose: in-place operators and `out=`, whose result has its dtype already; float64, and integers.

An operator is listed by its name, so that x @ y, x.matmul(y), torch.matmul(x, y) and torch.ops.aten.matmul are one.
Source: Micikevicius et al. 2018, section 3.3; PyTorch, "Automatic Mixed Precision package", its lists for CUDA, with
square, mean, var, std, logsumexp and binary_cross_entropy (there an error) added to the black ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WHITE = _words("""
    matmul mm bmm mv addmm addmv addr addbmm baddbmm chain_matmul multi_dot einsum linear prelu
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
""")

BLACK = _words("""
    exp expm1 log log10 log2 log1p pow rpow square reciprocal rdiv rsqrt acos asin cosh sinh tan erfinv softplus
    sum mean var std prod cumsum cumprod logsumexp norm vector_norm matrix_norm dist cdist pdist renorm normalize
    softmax softmin log_softmax layer_norm group_norm rms_norm cosine_similarity
    cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss smooth_l1_loss
    huber_loss kl_div poisson_nll_loss gaussian_nll_loss cosine_embedding_loss hinge_embedding_loss
    margin_ranking_loss multilabel_margin_loss multi_margin_loss soft_margin_loss multilabel_soft_margin_loss
    triplet_margin_loss ctc_loss
""")

GRAY = _words("""
    cat concat stack dot vdot cross tensordot bilinear addcdiv addcmul atan2 grid_sample index_put scatter_add
""")

FAMILIES = ("linalg_", "special_")  # torch.linalg.norm calls itself linalg_norm


def name_of(function: str | Callable) -> str:
    """The name by which a function of torch, a method, an operator or a custom operator is listed.

    `x ** y`: "pow", `torch.linalg.norm`: "norm", `torch.ops.mine.scan.default`: "scan"; in-place ones keep their
    underscore, "add_". A string is its own name.
    """
    name = (function if isinstance(function, str) else getattr(function, "__name__", "")).partition(
        "."
    )[0]
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    for family in FAMILIES:
        name = name.removeprefix(family)
    return name


def names(functions: Iterable[str | Callable]) -> frozenset[str]:
    """The names of a list that may hold functions and names."""
    return frozenset(map(name_of, functions))
