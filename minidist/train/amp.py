"""Mixed precision: half the bytes, twice the FLOP/s and more, and the same loss.

LossScaler            gradients that fp16 can hold, and steps that are skipped where it could not
Masters               parameters in half, stepped in fp32
autocast              each operator in the dtype that its list says: WHITE, BLACK, GRAY
prepare               the four levels O0 to O3 in one call
tf32, tf32_products   what "fp32" is on a tensor core, bit for bit, and its switch; `fp32_products` says how it stands
exponents, lost       what fp16 does to gradients and to updates, counted
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache as remember
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ..arguments import choice
from ..collectives import all_reduce_
from ..comm.base import Comm
from ..decide import decide

# ------------------------------------------------------------
# Which operators run in half precision: white, black and gray lists, as apex named them.
#
#     white   products of matrices, convolutions, attention: nearly all FLOPs are here, hardware has them in half and
#             sums them up in fp32, and their results stay near their inputs in size. Inputs are cast to half.
#     black   what leaves the range (exp, pow, 1/x), what adds up many terms (sums, norms, softmax, losses), and what
#             cancels (log near 1). Inputs are cast to fp32, and so is the result.
#     gray    takes several tensors and is as exact as its inputs: all are cast to the widest dtype among them.
#
# Any other operator runs in whatever its inputs are: ReLU, dropout, a reshape do as well in half as in fp32, and
# a + b of fp16 and fp32 is fp32 by PyTorch's own rule. Batch norm is among these: its kernels take half and add up in
# fp32. Left out on purpose: in-place operators and `out=`, whose result has its dtype already; float64, and integers.
#
# An operator is listed by its name, so that x @ y, x.matmul(y), torch.matmul(x, y) and torch.ops.aten.matmul are one.
# Source: Micikevicius et al. 2018, section 3.3; PyTorch, "Automatic Mixed Precision package", its lists for CUDA, with
# square, mean, var, std, logsumexp and binary_cross_entropy (there an error) added to the black ones.


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

    >>> import torch
    >>> from minidist.train.amp import name_of
    >>> name_of(torch.Tensor.__matmul__), name_of(torch.linalg.norm), name_of("relu_")
    ('matmul', 'norm', 'relu_')
    """
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    name, _, _ = name.partition(".")  # without the overload
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    for family in FAMILIES:
        name = name.removeprefix(family)
    return name


# ------------------------------------------------------------
# Mixed precision without a change of the model: each operator's inputs are cast, as its list says.
#
#     with autocast(torch.float16):
#         loss = F.cross_entropy(model(x), y)      # linear: fp16.  cross_entropy: fp32
#     scaler.scale(loss).backward()                # every gradient in the dtype of what it is the gradient of
#
# A mode of torch *functions*, so the casts come before autograd: it records them, saves the halves, and casts each
# gradient back. A dispatch mode would cast below autograd, which then saves fp32 and gets gradients of another dtype.
#
#     x ──cast──> half ──matmul──> half        recorded: ToCopyBackward, MmBackward with its inputs in half
#
# Weights are cast once for each entry, however often they are used (the cast cache). Cost: 2 bytes for each weight
# used, and less for each activation saved. Source: Micikevicius et al. 2018, section 3.3; torch.autocast.


CAST = (torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)


class autocast(TorchFunctionMode):
    """Run the functions of `white` in `dtype`, those of `black` in fp32, and those of `gray` in the dtype of their
    widest input.

    dtype: torch.float16 or torch.bfloat16.  white, black, gray: names, or functions of torch; `autocast(black=BLACK |
    {"gelu"})` adds one; to move a function, also take it off its old list.  enabled: False switches an enclosing
    autocast off.

    An fp32 leaf that requires grad is cast once while this context is entered; it is cast again if it has been changed
    since, and on every use under no_grad. Only the innermost autocast counts. The same instance may be entered again,
    even within itself. float64 is left alone. Raises ValueError for any other dtype, and for a function on two lists.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.3.

    >>> import torch
    >>> from minidist.train import autocast
    >>> x = torch.ones(2, 2)
    >>> with autocast(torch.bfloat16):
    ...     y = x @ x  # white
    ...     z = y.exp()  # black
    ...     s = torch.stack([y, z])  # gray
    >>> y.dtype, z.dtype, s.dtype
    (torch.bfloat16, torch.float32, torch.float32)
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.float16,
        white: Iterable[str | Callable] = WHITE,
        black: Iterable[str | Callable] = BLACK,
        gray: Iterable[str | Callable] = GRAY,
        enabled: bool = True,
    ):
        super().__init__()
        if dtype not in HALVES:
            raise ValueError(f"autocast is to one of {HALVES}, not to {dtype}")
        self.dtype = dtype
        self.enabled = enabled
        self.white, self.black, self.gray = (set(map(name_of, x)) for x in (white, black, gray))
        twice = sorted(self.white & self.black | self.white & self.gray | self.black & self.gray)
        if twice:
            raise ValueError(f"on two lists at once: {', '.join(twice)}")
        self._casts: dict[Tensor, tuple[int, Tensor]] = {}  # a leaf's version, and its cast
        self._entered = 0  # how often
        self._silenced = 0  # by how many within it that do a call in its place

    def __enter__(self) -> autocast:
        self._entered += 1
        return super().__enter__()

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        self._entered -= 1
        if not self._entered:
            self._casts.clear()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._silenced:
            return func(*args, **kwargs)
        outer = [mode for mode in autocasts() if mode is not self]
        for mode in outer:  # this is the innermost, and they get the call next
            mode._silenced += 1
        try:
            return self._call(func, args, kwargs)
        finally:
            for mode in outer:
                mode._silenced -= 1

    def _call(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        name = name_of(func)
        if not self.enabled or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        if name in self.white:
            args, kwargs = cast((args, kwargs), self._low)
        elif name in self.black:
            args, kwargs = cast((args, kwargs), lambda x: x.float())
        elif name in self.gray:
            dtype = widest((args, kwargs))
            args, kwargs = cast((args, kwargs), lambda x: x.to(dtype))
        else:
            body = opened(func)
            if body is not None:
                return self._within(body, args, kwargs)
        return func(*args, **kwargs)

    def _low(self, x: Tensor) -> Tensor:
        if not (x.is_leaf and x.requires_grad and torch.is_grad_enabled()):
            return x.to(self.dtype)
        if x not in self._casts or self._casts[x][0] != x._version:
            self._casts[x] = x._version, x.to(self.dtype)
        return self._casts[x][1]

    def _within(self, func: Callable, args: tuple, kwargs: dict) -> Any:
        """Call a function written in Python with this mode in force, so that what it calls is cast."""
        super().__enter__()
        try:
            return func(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)


def autocasts() -> list[autocast]:
    """Those that this thread has entered, the innermost last.

    >>> import torch
    >>> from minidist.train.amp import autocast, autocasts
    >>> with autocast(torch.bfloat16):
    ...     print([mode.dtype for mode in autocasts()])
    [torch.bfloat16]
    """
    return [mode for mode in _get_current_function_mode_stack() if isinstance(mode, autocast)]


def cast(value, to: Callable[[Tensor], Any]):
    """`value` with `to` applied to each fp32, fp16 and bf16 tensor in it, also in lists, tuples and dictionaries.

    >>> import torch
    >>> from minidist.train.amp import cast
    >>> x, y, n = cast([torch.zeros(2), {"y": torch.zeros(2)}, 5], lambda x: x.half())
    >>> x.dtype, y["y"].dtype, n
    (torch.float16, torch.float16, 5)
    """
    if isinstance(value, Tensor):
        return to(value) if value.dtype in CAST else value
    if type(value) in (list, tuple):
        return type(value)(cast(v, to) for v in value)
    return {k: cast(v, to) for k, v in value.items()} if type(value) is dict else value


def widest(value) -> torch.dtype:
    """The dtype that holds what all these tensors hold: fp32, unless all are of one half.

    >>> import torch
    >>> from minidist.train.amp import widest
    >>> half, bf16 = torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)
    >>> widest([half, half]), widest([half, bf16])
    (torch.float16, torch.float32)
    """
    dtypes: set[torch.dtype] = set()
    cast(value, lambda x: dtypes.add(x.dtype))
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


@remember
def opened(func: Callable) -> Callable | None:
    """A function of torch.nn.functional that is written in Python, without the line that hands it to modes whole.

    multi_head_attention_forward is on no list, but the products in it are. None for all other functions.
    """
    used = getattr(getattr(func, "__code__", None), "co_names", ())
    asks = [name for name in used if name.startswith("has_torch_function")]
    if not asks or func.__module__ not in ("torch.nn.functional", "torch.functional"):
        return None
    inside = func.__globals__ | dict.fromkeys(asks, lambda *tensors: False)
    whole = FunctionType(func.__code__, inside, func.__name__, func.__defaults__, func.__closure__)
    whole.__kwdefaults__ = func.__kwdefaults__
    return whole


# ------------------------------------------------------------
# Master weights: parameters in fp16 or bf16 that compute, and copies of them in fp32 that the optimizer steps.
#
# An update is often a thousandth of its weight. fp16 has 11 bits: w + u with |u| < 2⁻¹²·|w| is w again, and the update
# is lost, every time. So the sum is formed, and kept, in fp32, and only its rounding computes:
#
#     fp16 weight ──forward, backward──> fp16 gradient ──> fp32 gradient ──optimizer──> fp32 master ──> fp16 weight
#
# Cost: 4 bytes a parameter beside the 2 + 2 of parameter and gradient in fp16; with AdamW's two states 16 in all. At the
# step the gradients are there in fp32 too, each freed in fp16 as it is converted (unless it lies in a bucket).
# Invariant: after a step every parameter is its master, rounded. Source: Micikevicius et al. 2018, section 3.1.


class Masters(Optimizer):
    """Any optimizer, stepping copies of the parameters in `dtype`.

        model.half()
        optimizer = Masters(model.parameters(), torch.optim.AdamW, lr=1e-3)

    params: as for any optimizer: parameters, or groups. Those that are in `dtype`, or wider, are stepped as they are.
    optimizer_class: a class, or a function of groups, called with the masters and `kwargs`. inner: what it made.
    param_groups: of the parameters, with the inner optimizer's options; a scheduler may change them. state: of the
    masters.  `masters()`: the masters, in order.

    `gradients()`, or `LossScaler.unscale_`, puts gradients in `dtype` into `p.grad`: from then until the step they
    can be clipped and looked at as usual. Parameters that others change (load_state_dict, broadcast) are followed:
    where a parameter is no longer its rounded master, the master becomes the parameter.
    Raises ValueError for a dtype that is not of floating point.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.1.

    >>> import torch
    >>> from minidist.train import SGD, Masters
    >>> w = torch.ones(1, dtype=torch.float16, requires_grad=True)
    >>> optimizer = Masters([w], SGD, lr=2.0**-13)
    >>> for _ in range(8):  # each update by itself is too small for fp16: 1 + 2⁻¹³ is 1
    ...     w.grad = -torch.ones_like(w)
    ...     optimizer.step()
    >>> w.item() == 1 + 2**-10, optimizer.masters()[0].dtype
    (True, torch.float32)
    """

    def __init__(
        self,
        params: Iterable,
        optimizer_class: Callable[..., Optimizer],
        dtype: torch.dtype = torch.float32,
        **kwargs,
    ):
        if not dtype.is_floating_point:
            raise ValueError(f"masters have a floating-point dtype, not {dtype}")
        self.dtype = dtype
        # of each parameter, when it was equal to its rounded master
        self._versions: dict[Tensor, int] = {}
        super().__init__(params, {})
        groups = [
            {**group, "params": [self._master(p) for p in group["params"]]}
            for group in self.param_groups
        ]
        self.inner: Optimizer = optimizer_class(groups, **kwargs)
        _options(self.inner.param_groups, self.param_groups)
        self.defaults, self.state = self.inner.defaults, self.inner.state

    def __getstate__(self) -> dict[str, Any]:
        # torch's knows no more than groups and states; a scheduler's `step` stays with this one
        own = ("inner", "dtype", "_versions")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Parameters to step from now on; their masters are made here."""
        super().add_param_group(group)
        if hasattr(self, "inner"):  # else these are the first ones, and `__init__` goes on
            group = self.param_groups[-1]
            masters = [self._master(p) for p in group["params"]]
            self.inner.add_param_group({**group, "params": masters})
            _options(self.inner.param_groups[-1:], [group])

    def _master(self, p: Tensor) -> Tensor:
        self._versions[p] = p._version
        return p if p.dtype.itemsize >= self.dtype.itemsize else p.detach().to(self.dtype)

    def masters(self) -> list[Tensor]:
        """What the inner optimizer steps, in the order of the groups; a wide parameter is its own master.

        Parameters that were put at the end of a group by its owner get theirs here.
        """
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner["params"] += map(self._master, group["params"][len(inner["params"]) :])
        return [m for group in self.inner.param_groups for m in group["params"]]

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """(parameter, master) of those that have one."""
        params = [p for group in self.param_groups for p in group["params"]]
        return [(p, m) for p, m in zip(params, self.masters(), strict=True) if p is not m]

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """The gradients in the dtype of the masters, which are in `p.grad` from now on."""
        for p, m in self._pairs():
            if p.grad is not None and p.grad.dtype != m.dtype:
                p.grad_dtype = None  # else torch insists on the parameter's dtype
                p.grad = p.grad.to(m.dtype)
        return stored_gradients(self)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the masters with the gradients, and round them into the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.gradients()
        self._follow()
        for p, m in self._pairs():
            m.grad = p.grad
        _options(self.param_groups, self.inner.param_groups)
        self.inner.step()
        _options(self.inner.param_groups, self.param_groups)
        for _, m in self._pairs():
            m.grad = None
        self._round()
        return loss

    def _follow(self) -> None:
        """Take over what others have written into the parameters; masters of all else keep their bits."""
        for p, m in self._pairs():
            if p._version != self._versions[p]:
                m.copy_(torch.where(m.to(p.dtype) == p, m, p.to(m.dtype)))

    def _round(self) -> None:
        pairs = self._pairs()
        if pairs:
            params, masters = zip(*pairs, strict=True)
            torch._foreach_copy_(params, masters)
        self._versions = {p: p._version for group in self.param_groups for p in group["params"]}

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, which can load it, and "masters". (A copy of what the parameters cannot hold.)"""
        return self.inner.state_dict() | {"masters": [m.detach() for m in self.masters()]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Masters are rounded into the parameters. The inner class's own state_dict has none: these stay as they are.

        Raises ValueError for another number of masters.
        """
        masters = self.masters()
        values = state_dict.get("masters", masters)
        if len(values) != len(masters):
            raise ValueError(f"{len(values)} values were given for {len(masters)} masters")
        self.inner.load_state_dict(state_dict)
        self.state = self.inner.state
        _options(self.inner.param_groups, self.param_groups)
        if "masters" in state_dict:
            for m, value in zip(masters, values, strict=True):
                m.copy_(value)
            self._round()


def stored_gradients(optimizer: Optimizer) -> list[Tensor]:
    """`p.grad` of each parameter that has one, in the order of the groups.

    >>> import torch
    >>> from minidist.train import SGD
    >>> from minidist.train.amp import stored_gradients
    >>> w, b = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
    >>> w.sum().backward()
    >>> [g.tolist() for g in stored_gradients(SGD([w, b]))]
    [[1.0, 1.0]]
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad for p in params if p.grad is not None]


def _options(source: list[dict], to: list[dict]) -> None:
    """Learning rates and all other options of the groups, but not their parameters."""
    for a, b in zip(source, to, strict=True):
        b.update({key: value for key, value in a.items() if key != "params"})


# ------------------------------------------------------------
# Loss scaling: multiply the loss by S, so that small gradients do not become zero in fp16; divide by S in fp32.
#
# Backward is linear in the gradient of the loss, so every gradient comes out S times as large. fp16 holds nothing
# below 2⁻²⁵ and nothing above 65,504, so S is chosen as large as can be without overflow:
#
#     scale(loss).backward()     gradients are S times as large, in fp16
#     unscale_(optimizer)        times 1/S in fp32; is any of them inf or nan?     (once a step; then clip, if you clip)
#     step(optimizer)            the optimizer's step, or none if one was found: on all ranks or on none
#     update()                   one found: S ← S·backoff; after `growth_interval` in a row without: S ← S·growth
#
# Cost: one reading of each gradient, one all-reduce of 4 bytes. Invariant: a skipped step changes no parameter and no
# state of the optimizer. Source: Micikevicius et al. 2018, "Mixed Precision Training", sections 3.2 and 4 (dynamic);
# the numbers are those of torch.amp.GradScaler.


UNSCALED, STEPPED = "unscaled", "stepped"


class LossScaler:
    """Scales a loss, and steps optimizers only if their gradients are finite on every rank.

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)                     # only if the gradients are clipped, or looked at
        scaler.step(optimizer)
        scaler.update()

    init: the first scale S.  growth_factor (> 1), backoff_factor (< 1): S is multiplied by the one after
    growth_interval updates in a row without an inf, and by the other after an inf.  min_scale: S does not fall below
    it; steps that still overflow are skipped.  enabled: False only steps, without scaling.  dynamic: False keeps S
    constant; a step with an inf is still skipped.  comm: the ranks that step together; they agree on whether one of
    them has found an inf, with one all-reduce for each optimizer. None: each rank decides alone, which is right only if
    all ranks see the same gradients.

    With several optimizers, call `step` for each, then `update` once. An optimizer that keeps its gradients elsewhere
    has a method `gradients()`, which brings them there and returns them (see Masters). On meta tensors no step is
    skipped. skipped: the number of steps skipped so far. Raises ValueError for factors that do not grow or do not back
    off, for a gradient in fp16 (dividing it in fp16 would lose what scaling saved: use Masters), and if there is no
    gradient at all; RuntimeError if the calls come in a different order, and if S would become 0.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", sections 3.2 and 4.

    >>> import torch
    >>> from minidist.train import SGD, LossScaler
    >>> w = torch.tensor([1.0], requires_grad=True)
    >>> optimizer, scaler = SGD([w], lr=0.5), LossScaler(init=4.0)
    >>> for loss in (w.sum(), (w * float("inf")).sum()):
    ...     scaler.scale(loss).backward()
    ...     gradient = w.grad.item()
    ...     scaler.step(optimizer)
    ...     scaler.update()
    ...     optimizer.zero_grad()
    ...     print(gradient, w.item(), scaler.get_scale(), scaler.skipped)
    4.0 0.5 4.0 0
    inf 0.5 2.0 1
    """

    def __init__(
        self,
        init: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        comm: Comm | None = None,
        dynamic: bool = True,
        min_scale: float = 0.0,
    ):
        if not (
            growth_factor > 1
            and 0 < backoff_factor < 1
            and growth_interval >= 1
            and 0 < init < math.inf
        ):
            raise ValueError(
                f"S must start finite and above 0, grow by a factor above 1 after 1 step or more and back off by one "
                f"below 1, not start at {init}, grow by {growth_factor} after {growth_interval}, back off by "
                f"{backoff_factor}"
            )
        if not 0 <= min_scale <= init:
            raise ValueError(
                f"the smallest S is at least 0 and at most the first one, {init}: not {min_scale}"
            )
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.min_scale = min_scale
        self.enabled = enabled
        self.comm = comm
        self.dynamic = dynamic
        self.skipped = 0
        self._scale, self._good = float32(init), 0
        # of each optimizer since the last update: what was done, whether there was an inf
        self._progress: dict[int, tuple[str, bool]] = {}

    def get_scale(self) -> float:
        """The scale S; 1 if scaling is off."""
        return self._scale if self.enabled else 1.0

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times S."""
        return loss * self._scale if self.enabled else loss

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of `optimizer` by S, in place, and check whether all are finite. Call it at most once a
        step."""
        if not self.enabled:
            return
        if id(optimizer) in self._progress:
            stage, _ = self._progress[id(optimizer)]
            raise RuntimeError(
                f"this optimizer was already {stage} since the last update(): unscale_ comes once, before step"
            )
        grads = gradients(optimizer)
        if not grads and self.comm is None:
            raise ValueError(
                "none of the optimizer's parameters has a gradient: was scale(loss).backward() called?"
            )
        if grads:
            torch._foreach_mul_(grads, float32(1 / self._scale))
        self._progress[id(optimizer)] = UNSCALED, self._agree(grads)

    def _agree(self, grads: list[Tensor]) -> bool:
        """Whether a gradient of any rank is inf or nan."""
        grads = [g for g in grads if g.numel()]
        device = self.comm.device if self.comm is not None else grads[0].device if grads else None
        flag = torch.zeros((), device=device)
        if grads:
            largest = torch._foreach_norm(grads, math.inf)  # of a gradient with a nan: nan
            finite = torch.stack([x.isfinite().to(device) for x in largest])
            flag = finite.all().logical_not().to(torch.float32)
        if self.comm is not None:
            all_reduce_(self.comm, flag, "max")
        return bool(decide(flag, on_meta=False))

    def step(self, optimizer: Optimizer, *args, **kwargs) -> Any:
        """Run `optimizer.step(…)` with gradients divided by S, and return its result; if one is inf or nan, do not
        step, and return None."""
        if not self.enabled:
            return optimizer.step(*args, **kwargs)
        if args or "closure" in kwargs:
            raise RuntimeError(
                "a closure computes gradients within step(), where they cannot be checked before it"
            )
        if id(optimizer) not in self._progress:
            self.unscale_(optimizer)
        stage, overflow = self._progress[id(optimizer)]
        if stage == STEPPED:
            raise RuntimeError(
                "this optimizer was already stepped since the last update(): step comes once"
            )
        self._progress[id(optimizer)] = STEPPED, overflow
        self.skipped += overflow
        return None if overflow else optimizer.step(**kwargs)

    def update(self) -> None:
        """Choose the next S from what the steps since the last update have found."""
        if not self.enabled:
            return
        if not self._progress:
            raise RuntimeError("no optimizer was unscaled or stepped since the last update()")
        if self.dynamic:
            self._adapt(any(overflow for _, overflow in self._progress.values()))
        self._progress.clear()

    def _adapt(self, overflow: bool) -> None:
        self._good = 0 if overflow else self._good + 1
        if overflow:
            smaller = max(float32(self._scale * self.backoff_factor), float32(self.min_scale))
            if smaller == 0:
                raise RuntimeError(
                    f"S = {self._scale} was not small enough: gradients are inf or nan whatever S is"
                )
            self._scale = smaller
        elif self._good == self.growth_interval:
            grown = float32(self._scale * self.growth_factor)
            self._scale, self._good = grown if math.isfinite(grown) else self._scale, 0

    def state_dict(self) -> dict[str, Any]:
        """What to save, under the names of torch's GradScaler, which can load it; empty if scaling is off."""
        if not self.enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._good,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of this class or of torch's GradScaler."""
        if not self.enabled:
            return
        if not state:
            raise ValueError("the state has 0 of its 5 entries: it was saved while scaling was off")
        self._scale, self._good = float32(state["scale"]), state["_growth_tracker"]
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval = state["growth_interval"]


def gradients(optimizer: Optimizer) -> list[Tensor]:
    """The gradients that `optimizer.step()` will apply; of sparse ones the values. ValueError for one in fp16.

    >>> import torch
    >>> from minidist.train import SGD
    >>> from minidist.train.amp import gradients
    >>> w = torch.ones(2, dtype=torch.float16, requires_grad=True)
    >>> w.sum().backward()
    >>> gradients(SGD([w]))
    Traceback (most recent call last):
    ValueError: 1 of 1 gradients are in fp16, and lose what scaling saved if divided there: ...
    """
    if hasattr(optimizer, "gradients"):
        grads = optimizer.gradients()
    else:
        grads = stored_gradients(optimizer)
    grads = [g._values() if g.is_sparse else g for g in grads]
    low = sum(g.dtype == torch.float16 for g in grads)
    if low:
        raise ValueError(
            f"{low} of {len(grads)} gradients are in fp16, and lose what scaling saved if divided there: "
            "step fp32 copies of the parameters, Masters(params, optimizer_class, …)"
        )
    return grads


def float32(x: float) -> float:
    """`x` rounded to fp32, as the scale of torch's GradScaler is, which lies in a tensor; inf above its range.

    >>> from minidist.train.amp import float32
    >>> float32(1e39), float32(2**24 + 1)
    (inf, 16777216.0)
    """
    return ctypes.c_float(x).value


# ------------------------------------------------------------
# Four ways to mix precision, from all fp32 to all half, chosen in one call. The names are apex's.
#
#     level   parameters              forward              the optimizer steps       loss scaling (fp16)
#     O0      fp32                    fp32                 the parameters            none
#     O1      fp32                    by lists (autocast)  the parameters            dynamic
#     O2      half, batch norm fp32   half                 fp32 masters              dynamic
#     O3      half                    half                 the halves themselves     none
#
# "fp32" is TF32 in products on a GPU where that is switched on (`fp32_products` says so), whatever the level.
#
# O1 is the safe one, O2 saves more memory and casts less, O3 is the speed to compare the others with: it trains only
# where neither gradients nor updates are too small. bf16 has the range of fp32, so no level scales its loss.
#
#     amp = prepare(model, lambda params: torch.optim.SGD(params, lr=0.1), level="O2")
#     with amp.autocast:
#         loss = F.cross_entropy(amp.model(x), y)
#     amp.step(loss)
#
# Source: NVIDIA apex, `apex.amp`, "opt_levels".


class Level(NamedTuple):
    """What a level does.

    >>> from minidist.train.amp import LEVELS
    >>> LEVELS["O1"]
    Level(lists=True, half=False, wide_norms=False, masters=False, scaled=True)
    """

    lists: bool  # autocast in forward
    half: bool  # parameters and inputs
    wide_norms: bool  # except those of batch norm
    masters: bool
    scaled: bool


LEVELS = {
    "O0": Level(lists=False, half=False, wide_norms=False, masters=False, scaled=False),
    "O1": Level(lists=True, half=False, wide_norms=False, masters=False, scaled=True),
    "O2": Level(lists=False, half=True, wide_norms=True, masters=True, scaled=True),
    "O3": Level(lists=False, half=True, wide_norms=False, masters=False, scaled=False),
}


class Prepared(NamedTuple):
    """A model, its optimizer, its scaler, and the context for forward and loss; `step(loss)` does the rest.

    >>> from minidist.models import mlp
    >>> from minidist.train import SGD, prepare
    >>> levels = ("O0", "O1", "O2", "O3")
    >>> make = lambda params: SGD(params, lr=0.1)
    >>> [type(prepare(mlp([4, 2]), make, level).optimizer).__name__ for level in levels]
    ['SGD', 'SGD', 'Masters', 'SGD']
    """

    model: nn.Module
    optimizer: Optimizer
    scaler: LossScaler
    autocast: autocast

    def step(self, loss: Tensor) -> None:
        """Backward, step or skip, choose the scale, drop the gradients."""
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def prepare(
    model: nn.Module,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    level: str = "O1",
    dtype: torch.dtype = torch.float16,
    comm: Comm | None = None,
    scaler: LossScaler | None = None,
) -> Prepared:
    """`model`, in fp32, made ready for a level, in place.

        O0    fp32 alone
        O1    parameters in fp32, each operator by the lists of `autocast`, the loss scaled
        O2    parameters in half, batch norm in fp32, the optimizer steps fp32 masters, the loss scaled
        O3    all in half, the optimizer steps the halves themselves

    optimizer: makes one from parameters.  dtype: of the halves.  comm: of the ranks that step together, which
    skip a step all or none.  scaler: instead of the level's own. An optimizer that has masters of its own, such as a
    ShardedOptimizer with a master_dtype, goes with O3 and a scaler.
    In half, a forward casts its inputs to half and its results to fp32, for the loss.
    Raises ValueError for an unknown level or dtype, or a model that is not in fp32.
    Source: NVIDIA apex, `apex.amp`, "opt_levels".

    >>> import torch
    >>> from minidist.models import mlp
    >>> from minidist.train import SGD, prepare
    >>> amp = prepare(mlp([4, 8, 2]), lambda params: SGD(params, lr=0.1), level="O2")
    >>> with amp.autocast:
    ...     y = amp.model(torch.ones(3, 4))
    ...     loss = y.square().mean()
    >>> amp.model[0].weight.dtype, y.dtype, amp.optimizer.masters()[0].dtype
    (torch.float16, torch.float32, torch.float32)
    >>> amp.step(loss)
    """
    if level not in LEVELS or dtype not in HALVES:
        raise ValueError(
            f"the levels are {', '.join(LEVELS)} in one of {HALVES}, not {level!r} in {dtype}"
        )
    other = {p.dtype for p in model.parameters()} - {torch.float32}
    if other:
        raise ValueError(
            f"a model is prepared from fp32; this one has parameters in {sorted(map(str, other))}"
        )
    chosen = LEVELS[level]
    params = [p for p in model.parameters() if p.requires_grad]
    if chosen.half:
        halve_(model, dtype, chosen.wide_norms)
        half = lambda module, args, kwargs: cast((args, kwargs), lambda x: x.to(dtype))
        model.register_forward_pre_hook(half, with_kwargs=True)
        model.register_forward_hook(lambda module, args, out: cast(out, lambda x: x.float()))
    if chosen.masters:
        # from the halves: ranks that get theirs by broadcast have the same
        stepping = Masters(params, optimizer)
    else:
        stepping = optimizer(params)
    own = LossScaler(enabled=chosen.scaled and dtype == torch.float16, comm=comm)
    return Prepared(model, stepping, scaler or own, autocast(dtype, enabled=chosen.lists))


@torch.no_grad()
def halve_(
    model: nn.Module, dtype: torch.dtype = torch.float16, wide_norms: bool = True
) -> nn.Module:
    """Parameters and buffers of `model` in `dtype`, in place; wide_norms: all but those of batch norm.

    Parameters stay the same objects, so tied ones stay tied. Batch norm keeps running means, to which each batch
    adds a little, and so loses in half what updates lose.
    Gradients are dropped.  Returns `model`.

    >>> import torch
    >>> from torch import nn
    >>> from minidist.train.amp import halve_
    >>> model = halve_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), torch.bfloat16)
    >>> model[0].weight.dtype, model[1].running_mean.dtype
    (torch.bfloat16, torch.float32)
    """
    for module in model.modules():
        if wide_norms and isinstance(module, _BatchNorm):
            continue
        for p in module.parameters(recurse=False):
            p.data, p.grad = p.data.to(dtype), None
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = cast(buffer, lambda x: x.to(dtype))
    return model


# ------------------------------------------------------------
# TF32: what "fp32" means on a tensor core. Tensors stay fp32 in memory; a product reads 10 bits of fraction of each.
#
#     fp32    sign, 8 bits of exponent, 23 of fraction     relative steps of 2⁻²³     H100: 67 TFLOP/s, without tensor cores
#     TF32    sign, 8 bits of exponent, 10 of fraction     relative steps of 2⁻¹⁰     H100: 494.5 TFLOP/s, half of bf16's
#
# The range is fp32's, so nothing is scaled; the precision is fp16's. Products of two such numbers are exact in fp32, and
# are summed up there. No bytes are saved: not in memory, not in messages. PyTorch has it on for convolutions and off for
# products of matrices, unless told otherwise: `tf32_products`.
#
# Who rounds, and how, is the kernel's choice:
#
#     "away"    to the nearest, ties away from zero: `cvt.rna.tf32.f32`, from sm_80 on, what kernels use that round at all
#     "even"    to the nearest, ties to even: `cvt.rn.tf32.f32`, from sm_90 on
#     "zero"    the 13 low bits are ignored: what tensor cores do with fp32 as it lies in memory
#
# Sources: NVIDIA, PTX ISA, `cvt` (versions 7.0 and 7.8); PyTorch, "Numerical accuracy" ("only the first 10 bits of the
# input mantissa are read") and "CUDA semantics", TF32; for rates hardware.csv.

TF32_UNUSED = 13
"""Bits of fp32's fraction that TF32 does not have."""

TIES = ("away", "even", "zero")


def tf32(x: Tensor, ties: str = "away") -> Tensor:
    """fp32 numbers rounded to TF32, bit for bit, still in fp32. inf and nan stay.

    ties: "away", to the nearest and from zero between two; "even", to the nearest and to the even one; "zero", cut off.

    Beyond the largest number, 2¹²⁸ − 2¹¹⁷, rounding to the nearest gives inf. ValueError for another dtype or word.
    Source: NVIDIA, PTX ISA, `cvt`.

    >>> import torch
    >>> from minidist.train.amp import tf32
    >>> x = torch.tensor([1 + 2.0**-11])  # half a step of TF32 above 1
    >>> tf32(x, "away").item() == 1 + 2**-10, tf32(x, "even").item(), tf32(x, "zero").item()
    (True, 1.0, 1.0)
    """
    choice(ties, "ties", TIES)
    if x.dtype != torch.float32:
        raise ValueError(f"TF32 is read from torch.float32, not from {x.dtype}")
    unit = 1 << TF32_UNUSED
    bits = x.view(torch.int32)
    if ties == "away":
        bits = bits + unit // 2
    elif ties == "even":
        bits = bits + (unit // 2 - 1) + (bits >> TF32_UNUSED & 1)
    # sign and magnitude lie apart, so this goes towards zero on both sides
    return torch.where(x.isfinite(), (bits & -unit).view(torch.float32), x)


def tf32_matmul(a: Tensor, b: Tensor, ties: str = "away") -> Tensor:
    """a @ b of fp32 matrices as a tensor core multiplies them, emulated: both rounded, products and sums in fp32.

    >>> import torch
    >>> from minidist.train.amp import tf32_matmul
    >>> a = torch.tensor([[1 + 2.0**-12]])
    >>> tf32_matmul(a, a).item()  # in fp32 it is 1 + 2⁻¹¹
    1.0
    """
    with autocast(enabled=False):
        return tf32(a, ties) @ tf32(b, ties)


def fp32_products() -> str:
    """What products of fp32 matrices are on this process's GPUs, as they are switched now: "tf32", or "fp32".

    PyTorch's old switch (`allow_tf32`) cannot be read where the new one (`fp32_precision`) was set; so this reads the
    new one, which follows the old.

    >>> from minidist.train.amp import fp32_products, tf32_products
    >>> with tf32_products(False):
    ...     print(fp32_products())
    fp32
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "fp32"


@contextmanager
def tf32_products(on: bool = True) -> Iterator[None]:
    """In here products of fp32 matrices on GPUs are TF32's, or are not. A setting of the whole process, not of a rank.

    By the old switch, which sets the new one as well: after the new one alone PyTorch's `allow_tf32` and
    `get_float32_matmul_precision` raise.
    on: False switches TF32 off. Afterwards it is as it was.
    Source: PyTorch, "CUDA semantics", TF32.

    >>> from minidist.train.amp import fp32_products, tf32_products
    >>> with tf32_products():
    ...     print(fp32_products())
    ...     with tf32_products(False):
    ...         print(fp32_products())
    tf32
    fp32
    """
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.allow_tf32 = on
    try:
        yield
    finally:
        switch.allow_tf32 = before == "tf32"
        switch.fp32_precision = before


# ------------------------------------------------------------
# What half precision does to numbers, counted: gradients that it cannot hold, updates that it loses.
#
#     fp16    sign, 5 bits of exponent, 10 of fraction: 2⁻¹⁴ (normal), 2⁻²⁴ (smallest) … 65,504, relative steps of 2⁻¹⁰
#     bf16    sign, 8 bits of exponent,  7 of fraction: 2⁻¹²⁶ … 3.4·10³⁸, relative steps of 2⁻⁷
#
# Half the smallest number, and less, becomes zero: gradients underflow. Half a step of a weight, and less, added to it
# gives the same weight: the update is lost. Source: Micikevicius et al. 2018, sections 3.1 and 3.2, figures 2b and 3.


class Exponents(NamedTuple):
    """Numbers by their exponent, and what becomes of them in `dtype`. All are counts.

    counts: {e: how many |x| from 2^e to below 2^(e+1)}, in order of e, as they are before rounding.
    zeros: 0 already.  bad: inf or nan already.
    Of those in `counts`: normal, subnormal (kept with fewer bits), underflow (become 0), overflow (become inf).

    >>> import torch
    >>> from minidist.train.amp import exponents
    >>> found = exponents(torch.tensor([3.0, 2.0, 0.0, 1e-12]))
    >>> found.counts[1], found.zeros, found.underflow, found.total
    (2, 1, 1, 4)
    """

    dtype: torch.dtype
    counts: dict[int, int]
    zeros: int
    bad: int
    normal: int
    subnormal: int
    underflow: int
    overflow: int

    @property
    def total(self) -> int:
        """All elements."""
        return self.zeros + self.bad + sum(self.counts.values())


def exponents(
    tensors: Tensor | Iterable[Tensor], dtype: torch.dtype = torch.float16, scale: float = 1.0
) -> Exponents:
    """Count the elements of `tensors` (gradients, say; None among them is passed over) times `scale` by exponent.

    Give gradients of fp32, of which `dtype` has lost nothing yet.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2 and figure 3.

    >>> import torch
    >>> from minidist.train.amp import exponents
    >>> grads = [torch.tensor([1.0, 2.0**-15]), torch.tensor([2.0**-30, 1e6])]
    >>> found = exponents(grads)
    >>> found.normal, found.subnormal, found.underflow, found.overflow
    (1, 1, 1, 1)
    >>> exponents(grads, torch.bfloat16).normal  # it has the range of fp32
    4
    """
    x = _flat(tensors) * scale
    finite = x[x.isfinite() & (x != 0)].abs()
    _, powers = torch.frexp(finite)  # |x| = m·2^p with m from 1/2 to below 1
    powers, counts = torch.unique(powers - 1, return_counts=True)
    rounded, tiny = finite.to(dtype).double(), torch.finfo(dtype).tiny
    under, over = int((rounded == 0).sum()), int(rounded.isinf().sum())
    sub = int((rounded < tiny).sum()) - under
    by_power = dict(zip(powers.tolist(), counts.tolist(), strict=True))
    zeros, bad = int((x == 0).sum()), int(x.isfinite().logical_not().sum())
    return Exponents(
        dtype, by_power, zeros, bad, len(finite) - under - over - sub, sub, under, over
    )


def lost(
    updates: Tensor | Iterable[Tensor],
    weights: Tensor | Iterable[Tensor],
    dtype: torch.dtype = torch.float16,
) -> float:
    """The share, 0 to 1, of the updates that are not 0 which leave their weight in `dtype` as it is.

    updates: what is added to the weights, of the same sizes. Raises ValueError for other sizes.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.1 and figure 2b.

    >>> import torch
    >>> from minidist.train.amp import lost
    >>> lost(updates=torch.tensor([2.0**-12, 2.0**-8]), weights=torch.ones(2))
    0.5
    """
    u, w = _flat(updates), _flat(weights)
    if u.shape != w.shape:
        raise ValueError(f"{u.numel()} updates do not fit {w.numel()} weights")
    w = w.to(dtype)
    moves = u != 0
    stays = moves & ((w.double() + u).to(dtype) == w)
    return stays.sum().item() / max(1, moves.sum().item())


def _flat(tensors: Tensor | Iterable[Tensor]) -> Tensor:
    """All elements in one row, in float64."""
    tensors = [tensors] if isinstance(tensors, Tensor) else [x for x in tensors if x is not None]
    nothing = torch.empty(0, dtype=torch.float64)
    return torch.cat([nothing, *(x.detach().cpu().double().flatten() for x in tensors)])
