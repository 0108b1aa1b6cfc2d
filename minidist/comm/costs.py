"""What one call of an operator costs on a modelled device, FLOPs and bytes, and what it gives on meta tensors.

A World's meter charges it (`comm.meter`); `study.measure` adds it up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import (
    bmm_flop,
    flop_registry,
    mm_flop,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

# ------------------------------------------------------------
# What one call of an operator costs: floating point operations, and bytes moved.
#
# Below autograd every call is one aten operator, forward and backward alike, with its arguments at hand.
#
# FLOPs, as papers count them: products of matrices, convolutions and attention, 2·m·n·k for (m, k) by (k, n), by
# PyTorch's own formulas (`torch.utils.flop_counter`) and, below, for what those lack. All else counts 0: it is bound
# by its bytes. Causal attention counts in full. The backward of fused attention forms the scores again: 5 products,
# where the backward of written-out attention has 4.
#
# Bytes: each operand is read once and each result written once; an operand changed in place is both, unless it is
# only overwritten. A broadcast operand counts what is stored, a gather reads what it gives. A view, and memory that is
# only allotted, cost nothing. (A kernel's workspace is not seen.) Source: Williams et al. 2009, the roofline model.
#
# A custom operator of another cost says so: FLOPs to torch's `register_flop_formula`, bytes by a function
# `bytes_moved(*arguments, out_val)`, set on its overload before the first call.


class Product(NamedTuple):
    """So many `products` of matrices in one call, (m, k) by (k, n) each."""

    m: int
    n: int
    k: int
    products: int


class FusedAttention(NamedTuple):
    """Of `heads` heads, those of all sequences, of `d` numbers each."""

    heads: int
    queries: int
    keys: int
    d: int
    causal: bool
    backward: bool


class Cost(NamedTuple):
    """FLOPs and bytes of a call, and the dtype of its operands, whose peak applies (None: no operand).

    sizes: what decides beside, of a product or of fused attention; None where nothing does.
    """

    flops: int
    nbytes: int
    dtype: torch.dtype | None
    sizes: Product | FusedAttention | None = None


def _attention(q, k, v, *_):
    return sdpa_flop_count(q.shape, k.shape, v.shape)


def _attention_backward(grad, q, k, v, *_):
    return sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape)


def _convolution_backward(
    grad, x, w, _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, mask
):
    """As much as forward for each of the two gradients. (PyTorch's own counts that of the weights `groups` times.)"""
    places = prod((x if transposed else grad).shape[2:])
    return (mask[0] + mask[1]) * 2 * x.shape[0] * places * w.numel()


def _rnn(x, *weights):
    """One layer, both products of every time step: x is (T, B, inputs), the weights (4·hidden, inputs or hidden)."""
    return 2 * x.shape[0] * x.shape[1] * (weights[0].numel() + weights[1].numel())


def _multi_head(q, k, v, embed, heads, qkv_weight, qkv_bias, out_weight, *_):
    """Inference in one kernel, of q, k, v (B, T, H): the four projections and the attention between."""
    shape = (q.shape[0], heads, q.shape[1], embed // heads)
    return 2 * q.shape[:2].numel() * (qkv_weight.numel() + out_weight.numel()) + sdpa_flop_count(
        shape, shape, shape
    )


def _encoder_layer(x, embed, heads, *weights):
    mlp = 2 * x.shape[:2].numel() * (weights[11].numel() + weights[13].numel())
    return _multi_head(x, x, x, embed, heads, *weights[:3]) + mlp


LACKING: dict[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "convolution_backward": _convolution_backward,
    "mv": lambda matrix, vector: 2 * matrix.numel(),
    "addmv": lambda x, matrix, vector: 2 * matrix.numel(),
    "dot": lambda x, y: 2 * x.numel(),
    "vdot": lambda x, y: 2 * x.numel(),
    "addbmm": lambda x, a, b: bmm_flop(a.shape, b.shape),
    "_addmm_activation": lambda x, a, b: mm_flop(a.shape, b.shape),
    "_int_mm": lambda a, b: mm_flop(a.shape, b.shape),
    "_scaled_mm_v2": lambda a, b, *_: mm_flop(a.shape, b.shape),
    "mkldnn_rnn_layer": _rnn,
    "mkldnn_rnn_layer_backward": lambda *args: 2 * _rnn(*args),
    "_native_multi_head_attention": _multi_head,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
"""Products that PyTorch's counter does not know, or counts wrongly: the positional arguments -> FLOPs."""


def _one(a, b) -> Product:
    return Product(a.shape[0], b.shape[1], a.shape[1], 1)


def _many(a, b) -> Product:
    return Product(a.shape[1], b.shape[2], a.shape[2], a.shape[0])


PRODUCTS: dict[str, Callable[..., Product]] = {
    "mm": lambda a, b, *_: _one(a, b),
    "addmm": lambda x, a, b, *_: _one(a, b),
    "_addmm_activation": lambda x, a, b, *_: _one(a, b),
    "_scaled_mm_v2": lambda a, b, *_: _one(a, b),
    "bmm": lambda a, b, *_: _many(a, b),
    "baddbmm": lambda x, a, b, *_: _many(a, b),
}
"""The positional arguments of a product -> its sizes."""

# views without saying so
FREE = {"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "record_stream"}
OVERWRITE = {
    "copy_",
    "fill_",
    "zero_",
    "normal_",
    "uniform_",
    "bernoulli_",
    "random_",
    "exponential_",
    "log_normal_",
    "cauchy_",
    "geometric_",
}
GATHER = {"embedding", "gather", "index", "index_select", "take"}

SEQUENCES = (list, tuple)


class Operator:
    """What is known of an operator before it is called. `free`: it moves nothing; `view`: what it gives
    lies where its operand lies; `composite`: it is made of others; `ours`: it is not PyTorch's;
    `repeats`: on meta tensors of the same form it gives the same form."""

    __slots__ = (
        "changed",
        "composite",
        "formula",
        "free",
        "gathers",
        "moved",
        "name",
        "ours",
        "outs",
        "overwrites",
        "repeats",
        "sizes",
        "view",
        "writes",
    )

    def __init__(self, func):
        schema = func._schema
        self.name = name = schema.name.partition("::")[2]
        self.composite = func.has_kernel_for_dispatch_key(
            torch.DispatchKey.CompositeImplicitAutograd
        )
        self.view = func.is_view
        self.free = (
            self.view
            or torch.Tag.inplace_view in func.tags
            or name in FREE
            or name.removeprefix("new_").startswith("empty")
        )
        self.overwrites, self.gathers = name.removeprefix("_foreach_") in OVERWRITE, name in GATHER
        written = [
            (i, a)
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        ]
        self.outs = {a.name for _, a in written if a.kwarg_only}  # out=: written, not read
        # in place, and not returned
        self.changed = [] if schema.returns else [i for i, _ in written]
        self.formula = _formula(func.overloadpacket, name)
        self.sizes = PRODUCTS.get(name.removesuffix("_")) or _attention_sizes(name, schema)
        self.moved = getattr(func, "bytes_moved", None)
        aliases = any(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        )
        self.ours = ours = not schema.name.startswith("aten::")
        of_tensors = any("Tensor" in str(a.type) for a in schema.arguments)  # arange is of floats
        self.repeats = of_tensors and not (
            ours or self.composite or self.free or self.outs or aliases
        )
        self.writes = bool(written)

    def operands(
        self, args: tuple, kwargs: Mapping[str, Any], out: Any
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What a call that returned `out` read, and what it wrote or gave."""
        read, written = tensors(args), tensors((out,))
        if kwargs:
            read += tensors(kwargs[k] for k in kwargs if k not in self.outs)
        if self.changed:
            written += tensors(args[i] for i in self.changed)
        return read, written

    def cost(
        self, args, kwargs, out, read: list[Tensor], written: list[Tensor], results: Results
    ) -> Cost:
        """The cost of a call that returned `out`, of these operands. results: they remember its FLOPs."""
        if self.free:
            return Cost(0, 0, None)
        flops = results.flops(self, args, kwargs, out)
        dtype = (read or written)[0].dtype if read or written else None
        if self.moved is not None:
            return Cost(flops, self.moved(*args, **kwargs, out_val=out), dtype)
        given = stored(written)
        taken = stored(read[len(tensors(args[:1])) :] if self.overwrites else read)
        if self.gathers:
            taken -= max(0, stored(read[:1]) - given)
        sizes = None if self.sizes is None else self.sizes(*args)
        return Cost(flops, taken + given, dtype, sizes)


@cache
def operator(func) -> Operator:
    """What is known of `func`, a torch._ops.OpOverload."""
    return Operator(func)


def _attention_sizes(name: str, schema) -> Callable[..., FusedAttention] | None:
    """The positional arguments of PyTorch's fused attention -> its sizes; None for another operator."""
    if not name.startswith("_scaled_dot_product_") or "math" in name:
        return None
    names = [argument.name for argument in schema.arguments]
    backward = name.endswith("_backward")
    first = names.index("query")
    place = names.index("is_causal")

    def sizes(*args) -> FusedAttention:
        q, k = args[first], args[first + 1]
        causal = len(args) > place and args[place]
        heads = q.shape[:-2].numel()
        return FusedAttention(heads, q.shape[-2], k.shape[-2], q.shape[-1], causal, backward)

    return sizes


def _formula(packet, name: str) -> Callable[[tuple, Mapping, Any], int] | None:
    """FLOPs of a call from its arguments and its result; None where there are none. `addmm_` counts as `addmm`."""
    name = name.removesuffix("_")
    if name in LACKING:
        lacking = LACKING[name]
        return lambda args, kwargs, out: lacking(*args)
    count = flop_registry.get(packet) or flop_registry.get(getattr(torch.ops.aten, name, None))
    return count and (lambda args, kwargs, out: count(*args, **kwargs, out_val=out))


def tensors(values: Iterable) -> list[Tensor]:
    """The dense tensors among `values` and in the lists and tuples among them, in order."""
    found = []
    for value in values:
        if isinstance(value, Tensor):
            if value.layout is torch.strided:
                found.append(value)
        elif isinstance(value, SEQUENCES):
            found += tensors(value)
    return found


def stored(tensors: Iterable[Tensor]) -> int:
    """Bytes of memory that each covers, at most, together: an expanded one covers no more than its storage."""
    nbytes = 0
    for x in tensors:
        nbytes += x.nbytes if x.is_contiguous() else min(x.nbytes, x.untyped_storage().nbytes())
    return nbytes


# ------------------------------------------------------------
# What an operator gives on meta tensors: shapes and dtypes, which are the same every time.
#
# PyTorch finds them in Python, step by step, with all its checks: 5 ms for the backward of a layer norm, a hundred times
# the cost of charging it, and most of the time in which a large model is simulated. So what an operator of PyTorch's
# gave is remembered by the form of its operands, and made anew. The first call, and every one that raises, is PyTorch's.
# A run remembers by itself: when it is over, all of it is forgotten.


PLAIN = (Tensor, nn.Parameter)  # of no class that answers for itself
FORMS = 4096  # remembered at most: a step of a large model has some hundreds


class _Form(NamedTuple):
    """All that an operator on meta tensors can see of one."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class _Number(NamedTuple):
    """A number, or nothing, in place of a tensor."""

    value: int | float | None


class Results:
    """What operators gave on meta tensors, by operator and form: the `limit` that were asked for last."""

    def __init__(self, limit: int = FORMS):
        self.limit = limit
        self._gave: OrderedDict[tuple, Any] = OrderedDict()
        self._flops: dict[tuple, int] = {}

    def __len__(self) -> int:
        return len(self._gave)

    def flops(self, known: Operator, args: tuple, kwargs: Mapping[str, Any], out: Any) -> int:
        """Of a call that returned `out`; 0 where `known` has no formula.

        PyTorch's counter takes longer for a product than all else that a World does with it.
        """
        if known.formula is None:
            return 0
        form = None if known.ours else _form((args, *kwargs.items()))
        if form is None:
            return known.formula(args, kwargs, out)
        form = known, form
        if form not in self._flops:
            if len(self._flops) == self.limit:
                self._flops.clear()
            self._flops[form] = known.formula(args, kwargs, out)
        return self._flops[form]

    def call(self, known: Operator, func, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        """What `func(*args, **kwargs)` returns, of which `known` is known."""
        form = _form((args, *kwargs.items())) if known.repeats else None
        if form is None:
            return func(*args, **kwargs)
        form = known, form, torch.get_default_dtype()
        if form not in self._gave:
            out = func(*args, **kwargs)
            self._gave[form] = _remembered(out, args if known.writes else ())
            if len(self._gave) > self.limit:
                self._gave.popitem(last=False)
            return out
        self._gave.move_to_end(form)
        gave = self._gave[form]
        return _again(gave, args) if gave is not None else func(*args, **kwargs)


def _form(value) -> Any:
    """What of an argument decides what is given; None where it is not known to repeat: a tensor with data."""
    if type(value) in PLAIN:
        if not value.is_meta or value.layout is not torch.strided:
            return None
        return _Form(value.shape, value.stride(), value.dtype)
    if isinstance(value, Tensor):
        return None
    if isinstance(value, SEQUENCES):
        forms = tuple(map(_form, value))
        return None if None in forms else forms
    # numbers decide by their kind, whole ones by their value, too
    return float if type(value) is float else (type(value), value)


def _remembered(out, args: tuple) -> Any:
    """The form of a result: an operand is its place among `args`. None where it holds what cannot be made anew."""
    if isinstance(out, SEQUENCES):
        forms = [_remembered(x, args) for x in out]
        return None if None in forms else type(out)(forms)
    if out is None or type(out) in (int, float):
        return _Number(out)
    if not isinstance(out, Tensor):
        return None
    for place, x in enumerate(args):
        if out is x:
            return place
    return _form(out)


def _again(form, args: tuple) -> Any:
    """A result of this form."""
    if isinstance(form, _Form):
        return torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
    if isinstance(form, int):
        return args[form]
    if isinstance(form, _Number):
        return form.value
    return type(form)([_again(each, args) for each in form])
