"""What one operation costs on a modelled device, and what memory it leaves: FLOPs, bytes, and who holds what.

Operator, Cost    the FLOPs and bytes of an operation, from its shapes
given             what an operation without data gives, where PyTorch itself is slow to say it
Ledger            live bytes by category over time, from storages that are born and die
"""

from __future__ import annotations

import math
import weakref
from array import array
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

from .trace import CATEGORIES, Timeline

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


class Cost(NamedTuple):
    """FLOPs and bytes of a call, and the dtype of its operands, whose peak applies (None: no operand)."""

    flops: int
    nbytes: int
    dtype: torch.dtype | None


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
    "mkldnn_rnn_layer": _rnn,
    "mkldnn_rnn_layer_backward": lambda *args: 2 * _rnn(*args),
    "_native_multi_head_attention": _multi_head,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
"""Products that PyTorch's counter does not know, or counts wrongly: the positional arguments -> FLOPs."""

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
    lies where its operand lies; `composite`: it is made of others."""

    __slots__ = (
        "changed",
        "composite",
        "formula",
        "free",
        "gathers",
        "moved",
        "name",
        "outs",
        "overwrites",
        "view",
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
        self.moved = getattr(func, "bytes_moved", None)

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

    def cost(self, args: tuple, kwargs: Mapping[str, Any], out: Any) -> Cost:
        """The cost of a call that returned `out`."""
        return self.cost_of(args, kwargs, out, *self.operands(args, kwargs, out))

    def cost_of(self, args, kwargs, out, read: list[Tensor], written: list[Tensor]) -> Cost:
        """The same, where the operands have been told apart already."""
        if self.free:
            return Cost(0, 0, None)
        flops = 0 if self.formula is None else self.formula(args, kwargs, out)
        dtype = (read or written)[0].dtype if read or written else None
        if self.moved is not None:
            return Cost(flops, self.moved(*args, **kwargs, out_val=out), dtype)
        given = stored(written)
        taken = stored(read[len(tensors(args[:1])) :] if self.overwrites else read)
        if self.gathers:
            taken -= max(0, stored(read[:1]) - given)
        return Cost(flops, taken + given, dtype)


@cache
def operator(func) -> Operator:
    """What is known of `func`, a torch._ops.OpOverload."""
    return Operator(func)


def _formula(packet, name: str) -> Callable[[tuple, Mapping, Any], int] | None:
    """FLOPs of a call from its arguments and its result; None where there are none. `addmm_` counts as `addmm`."""
    name = name.removesuffix("_")
    if name in LACKING:
        return lambda args, kwargs, out, count=LACKING[name]: count(*args)
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
# What an operator gives on meta tensors, where that is plain: a shape and a dtype.
#
# PyTorch finds it in Python, step by step, with all its checks: 5 ms for the backward of a layer norm, a hundred times
# the cost of charging it, and most of the time in which a large model is simulated. Here are the operators that a
# transformer's training repeats. Whatever is not of the plainest form (contiguous, one dtype, sizes that match) is
# left to PyTorch, with its errors.


IN_PLACE = {"add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_"}
ALIKE = {
    "add",
    "sub",
    "mul",
    "div",
    "addcmul",
    "addcdiv",
    "lerp",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "neg",
    "exp",
    "log",
    "abs",
    "sigmoid",
    "tanh",
    "relu",
    "silu",
    "sigmoid_backward",
    "tanh_backward",
    "threshold_backward",
    "silu_backward",
}


def called(known: Operator, func, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """What `func(*args, **kwargs)` returns, of which `known` is known."""
    out = None if known.outs else given(known.name, args, kwargs)
    return func(*args, **kwargs) if out is None else out


def given(name: str, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """What `name(*args, **kwargs)` gives on meta tensors; None: ask PyTorch."""
    if name in IN_PLACE:
        return args[0] if _fit(*args, *kwargs.values()) else None
    if name in ALIKE:
        return _alike(*args, *kwargs.values())
    rule = RULES.get(name)
    return None if rule is None else rule(*args, **kwargs)


def _fit(x: Tensor, *others) -> bool:
    """Whether an operator on each element of `x`, and of `others`, has only its sizes to check, and they are right."""
    if not isinstance(x, Tensor) or not x.is_meta:
        return False
    dtype, shape = x.dtype, x.shape
    if not dtype.is_floating_point or 0 in x.stride():
        return False
    for y in others:
        if not isinstance(y, Tensor):
            if type(y) not in (int, float):
                return False
        elif not y.is_meta or y.dtype != dtype or y.shape != shape:
            return False
    return True


def _plain(*xs) -> bool:
    """Whether all tensors among `xs` are contiguous ones on meta, of one floating dtype."""
    tensors = [x for x in xs if isinstance(x, Tensor)]
    return (
        bool(tensors)
        and tensors[0].dtype.is_floating_point
        and all(x.is_meta and x.is_contiguous() and x.dtype == tensors[0].dtype for x in tensors)
    )


def _alike(*args) -> Tensor | None:
    return torch.empty_like(args[0]) if _fit(*args) and _plain(*args) else None


def _gelu(*args, approximate: str = "none"):
    return _alike(*args) if approximate in ("none", "tanh") else None


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
):
    k, shape = len(shape), tuple(shape)
    if not _plain(x, weight, bias) or x.shape[-k:] != shape or not _sized(shape, weight, bias):
        return None
    rows = (*x.shape[:-k], *[1] * k)
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.empty_like(x), x.new_empty(rows, dtype=wide), x.new_empty(rows, dtype=wide)


def _layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: list[bool],
):
    if (
        not _plain(grad, x, weight, bias)
        or grad.shape != x.shape
        or not _sized(tuple(shape), weight, bias)
    ):
        return None
    if (mask[1] and weight is None) or (mask[2] and bias is None):
        return None
    return tuple(
        torch.empty_like(y) if wanted else None
        for y, wanted in zip((x, weight, bias), mask, strict=True)
    )


def _sized(shape: tuple[int, ...], *xs: Tensor | None) -> bool:
    return all(x is None or x.shape == shape for x in xs)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1):
    if not (
        bias.dtype == a.dtype == b.dtype
        and a.is_meta
        and b.is_meta
        and bias.is_meta
        and bias.is_contiguous()
    ):
        return None
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or bias.shape != b.shape[1:]:
        return None
    return a.new_empty(a.shape[0], b.shape[1]) if a.dtype.is_floating_point else None


def _sum(x: Tensor, dim: list[int] | None = None, keepdim: bool = False, *, dtype=None):
    if not dim or dtype is not None or not _plain(x) or not all(-x.ndim <= d < x.ndim for d in dim):
        return None
    gone = {d % x.ndim for d in dim}
    if len(gone) < len(dim):
        return None
    sizes = [1 if d in gone else size for d, size in enumerate(x.shape) if keepdim or d not in gone]
    return x.new_empty(sizes)


RULES = {
    "gelu": _gelu,
    "gelu_backward": _gelu,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "addmm": _addmm,
    "sum": _sum,
}


# ------------------------------------------------------------
# The live memory of a rank, by category, without a call in the program.
#
# A `Charge` shows the ledger every operator's operands and results. Each *storage* is counted once, however many
# tensors view it, from its birth (or from the start, if it is first seen as an operand) until it dies or is resized.
# What it is for becomes known later, and then holds for its whole life:
#
#     parameters        an nn.Parameter, or what a torch.optim.Optimizer steps and requires grad
#     gradients         of parameters: what autograd accumulates, what is in p.grad
#     optimizer states  in the `state` of an Optimizer, also of a class derived from it
#     activations       made before backward (or recomputed in it) and read by it: what was saved for it
#     buffers           of an nn.Module                other   temporary results, output gradients, batches
#
# Saved tensors are recognized as backward reads them: torch's hooks for them switch off its check that none was
# changed since. So what forward keeps for a backward that never comes is "other". Source: ZeRO, 2020, section 3.


PARAMETERS, GRADIENTS, STATES, ACTIVATIONS, BUFFERS, OTHER = range(len(CATEGORIES))
# the strongest claim to a storage holds: a buffer that backward reads is a buffer
STRENGTH = (5, 4, 3, 1, 2, 0)
HOST = "host"  # the name of its memory, beside the types of torch's devices
AT_START = -math.inf  # of what is first seen as an operand: before all that is known


class _Held(weakref.ref):
    """A live storage: `index` is its row in the ledger, `key` its address, `forward` that no backward made it."""

    __slots__ = ("born", "forward", "index", "key", "nbytes")


class Ledger:
    """The storages of a rank; `now()` is its time in seconds."""

    def __init__(self, now: Callable[[], float]):
        self._now = now
        self._live: dict[int, _Held] = {}
        self._category, self._device = bytearray(), bytearray()  # of each storage
        self._devices: dict[str, int] = {}
        # of each change
        self._times = array("d")
        self._which = array("q")
        self._change = array("q")
        self._accumulated: tuple | None = None
        self._open = True
        self.hosted = False  # whether anything has lain in the host's memory
        self.copied = [0, 0]  # bytes from the device to the host, and back

    def existing(self, value, seen: set[int] | None = None) -> None:
        """Count the tensors, modules and optimizers in `value`, and in containers within it, from time 0."""
        seen = set() if seen is None else seen
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Tensor):
            self.claim(value, PARAMETERS if isinstance(value, nn.Parameter) else OTHER, 0.0)
            self._gradient(value)
        elif isinstance(value, nn.Module):
            for buffer in value.buffers():
                self.claim(buffer, BUFFERS, 0.0)
            for p in value.parameters():
                self.existing(p, seen)
        elif isinstance(value, torch.optim.Optimizer):
            self.stepped(value, 0.0)
            for inner in vars(value).values():  # what it wraps steps copies of the weights
                if isinstance(inner, torch.optim.Optimizer):
                    self.existing(inner, seen)
        elif isinstance(value, (dict, list, tuple, set, frozenset)):
            for item in value.values() if isinstance(value, dict) else value:
                self.existing(item, seen)

    def on_host(self, x: Tensor, new: bool) -> bool:
        """Whether `x` lies in the host's memory; `new` is the answer for one that has not been seen."""
        held = self._live.get(x.untyped_storage()._cdata)
        return new if held is None else self._device[held.index] == self._devices.get(HOST)

    def saw(
        self,
        read: list[Tensor],
        written: list[Tensor],
        start: float,
        name: str = "",
        host: bool = False,
        nothing_new: bool = False,
    ) -> None:
        """An operator that began at `start` has read and written, or given, these dense tensors.

        host: what it gave is in the host's memory.  nothing_new: it gave no memory that it had not read."""
        if not self._open:
            return
        node = torch._C._current_autograd_node()
        accumulates = node is not None and type(node).__name__ == "AccumulateGrad"
        forward = node is None or torch.is_grad_enabled()
        for x in read:
            fresh = host and name == "lift_fresh"  # torch.tensor(…): the first that is seen of it
            held = self._hold(x, AT_START if name != "set_" else start, True, fresh)
            if type(x) is not Tensor and isinstance(x, nn.Parameter):
                self._claim(held, PARAMETERS)
                self._gradient(x)
            elif held.forward and not forward and not accumulates:
                self._claim(held, ACTIVATIONS)
        if not nothing_new:
            for x in written:
                self._hold(x, start, forward, host)
        if accumulates:
            self._accumulates(node.variable, written)

    def claim(self, x: Tensor, category: int, since: float | None = None) -> None:
        """`x` belongs to `category`. If it has not been seen it is there since `since` seconds, or now."""
        if self._open and x.layout is torch.strided:
            self._claim(self._hold(x, self._now() if since is None else since, True), category)

    def stepped(self, optimizer: torch.optim.Optimizer, since: float | None = None) -> None:
        """Find the states of an optimizer."""
        for value in [v for state in optimizer.state.values() for v in _values(state)]:
            if isinstance(value, Tensor):
                self.claim(value, STATES, since)
        for p in [p for group in optimizer.param_groups for p in group["params"]]:
            # an fp32 copy of the weights is a state
            self.claim(p, PARAMETERS if p.requires_grad else STATES, since)
            self._gradient(p)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """The storage may have another size now."""
        held = self._live.get(storage._cdata)
        if held is not None and held.nbytes != storage.nbytes():
            self._changed(self._now(), held.index, storage.nbytes() - held.nbytes)
            held.nbytes = storage.nbytes()

    def close(self) -> None:
        """Nothing is recorded from now on: the program is over."""
        self._live.clear()
        self._open = False

    def __bool__(self) -> bool:
        """Whether it has ever held anything."""
        return bool(self._category)

    def timeline(self, device: str | None = None) -> Timeline:
        """Live bytes on devices of this type ("cpu", "meta", "cuda"), or on the `HOST`; None: on the type with the
        highest peak."""
        columns = self._times, self._change, self._which, self._category, self._device
        wanted = [device] if device else self._devices.keys() - {HOST}
        found = [
            Timeline.of(*columns, name, code)
            for name, code in self._devices.items()
            if name in wanted
        ]
        return max(
            found, key=lambda timeline: timeline.peak, default=Timeline([], [], [], device or "cpu")
        )

    def _hold(self, x: Tensor, born: float, forward: bool, host: bool = False) -> _Held:
        storage = x.untyped_storage()
        key = storage._cdata
        held = self._live.get(key)
        if held is None:
            return self._enter(storage, key, HOST if host else x.device.type, born, forward)
        if held.nbytes != storage.nbytes():
            self.resized(storage)
        return held

    def _enter(self, storage, key: int, device: str, born: float, forward: bool) -> _Held:
        if born == AT_START and not storage.resizable():
            born = self._now()  # not torch's own memory (numpy's, a file's): held since it is used
        held = self._live[key] = _Held(storage, self._died)
        held.key = key
        held.index = len(self._category)
        held.nbytes = storage.nbytes()
        held.born, held.forward = born, forward
        self.hosted |= device == HOST
        self._category.append(OTHER)
        self._device.append(self._devices.setdefault(device, len(self._devices)))
        self._changed(born, held.index, held.nbytes)
        return held

    def _died(self, held: _Held) -> None:
        if self._live.get(held.key) is held:
            del self._live[held.key]
            # The collector may find it while another rank runs, whose time is another.
            self._changed(max(self._now(), held.born), held.index, -held.nbytes)

    def _changed(self, time: float, index: int, nbytes: int) -> None:
        self._times.append(time)
        self._which.append(index)
        self._change.append(nbytes)

    def _claim(self, held: _Held, category: int) -> None:
        if STRENGTH[category] > STRENGTH[self._category[held.index]]:
            self._category[held.index] = category

    def _gradient(self, leaf: Tensor) -> None:
        grad = leaf.grad if leaf.is_leaf else None
        if grad is not None:
            self.claim(grad, GRADIENTS, AT_START)

    def _accumulates(self, leaf: Tensor, written: list[Tensor]) -> None:
        """Autograd adds to the gradient of `leaf`, or steals or copies the first one; then come the user's hooks."""
        if self._category[self._hold(leaf, AT_START, True).index] != PARAMETERS:
            return  # the input of a pipeline's stage, say
        backward = torch._C._current_graph_task_id(), id(leaf)
        if leaf.grad is not None:
            self.claim(leaf.grad, GRADIENTS)
        elif backward != self._accumulated:
            for x in written:
                self.claim(x, GRADIENTS)
        self._accumulated = backward


def _values(state):
    """Everything in a state: a tensor, a number, or containers of them."""
    if isinstance(state, dict):
        return [v for value in state.values() for v in _values(value)]
    if isinstance(state, (list, tuple)):
        return [v for value in state for v in _values(value)]
    return [state]
