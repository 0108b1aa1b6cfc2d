"""Activation checkpointing: keep the inputs of a function only, and run it again when its backward comes.

    y = checkpoint(block, x)                        instead of                        y = block(x)

    forward     x ──▶ block 0 ──▶ x₁ ──▶ block 1 ──▶ x₂ ──▶ block 2 ──▶ loss          x, x₁ and x₂ are kept
    backward                                         x₂ ──▶ block 2 again, then its backward
                                  x₁ ──▶ block 1 again, then its backward             one block's tensors at a time

Memory: the inputs instead of all that the blocks save, and all of that for one block at a time. Compute: each block's
forward once more, so at most 4/3 of a step whose backward costs two forwards. For a chain of L layers, with x bytes
between layers and a bytes that one layer saves, its input included, the most bytes alive are

    k segments      (k − 1)·x + L/k·a, least near k = √(L·a/x), where it is about 2√(L·a·x)     checkpoint_sequential
    halves          log₂ L · x + a, for L/2·log₂ L layers' forwards more                        checkpoint_recursive
    any segments    by dynamic programming, the least compute within a budget of bytes          plan

The gradients are the same bit for bit: the same operators run on the same operands, and draw the same random numbers.
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", sections 3 and 4.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ..split import bounds, uneven

# ------------------------------------------------------------
# A function that runs again as it ran. Besides its operands it depends on
#
#     random generators     dropout must drop the same elements again, and the program's own numbers go on afterwards
#     autocast              PyTorch's, and function modes: a default device, an autocast of our own (`amp`)
#     buffers of modules    batch norm adds each batch to its running averages, and must not do so twice


class RandomState:
    """The state of the random generators now: `with state.again():` they draw the same numbers once more.

    They are PyTorch's own of the CPU (5 kB) and of each GPU in sight (16 bytes), and those among the operands. In a
    World each rank has its own state in PyTorch's own generator.

    >>> import torch
    >>> from minidist.train.remat import RandomState
    >>> state = RandomState()
    >>> first, second = torch.rand(2), torch.rand(2)
    >>> with state.again():
    ...     repeated = torch.rand(2)
    >>> torch.equal(repeated, first), torch.equal(torch.rand(2), second)
    (True, False)
    """

    def __init__(self, operands: Iterable = ()):
        generators = [torch.default_generator]
        generators += [x for x in operands if isinstance(x, torch.Generator)]
        if torch.cuda.is_initialized():
            generators += torch.cuda.default_generators
        self.states = [(generator, generator.get_state()) for generator in generators]

    @contextmanager
    def again(self) -> Iterator[None]:
        now = [(generator, generator.get_state()) for generator, _ in self.states]
        try:
            for generator, state in self.states:
                generator.set_state(state)
            yield
        finally:
            for generator, state in now:
                generator.set_state(state)


class Replay:
    """All that steers operators now, besides their operands: `with replay.again():` it is in force once more.

    >>> import torch
    >>> from minidist.train import autocast
    >>> from minidist.train.remat import Replay
    >>> x = torch.ones(2, 2)
    >>> with autocast(torch.bfloat16):
    ...     replay = Replay()
    >>> with replay.again():
    ...     print((x @ x).dtype)
    torch.bfloat16
    """

    def __init__(self, operands: Iterable = ()):
        self.random = RandomState(operands)
        self.autocast = [
            (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
            for device in ("cpu", "cuda")
        ]
        self.cache = torch.is_autocast_cache_enabled()
        self.modes = _get_current_function_mode_stack()

    @contextmanager
    def again(self) -> Iterator[None]:
        """A context in which all of it is in force once more."""
        with ExitStack() as stack:
            for _ in _get_current_function_mode_stack():
                stack.callback(_push_mode, _pop_mode())
            for mode in self.modes:
                stack.enter_context(mode)
            for device, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled, self.cache))
            stack.enter_context(self.random.again())
            yield


@contextmanager
def restoring() -> Iterator[None]:
    """Give the buffers of each module that is called in here the values that they had before.

    While it lasts they are copies. Other ranks of a World, which are threads, are left alone.

    >>> import torch
    >>> from torch import nn
    >>> from minidist.train.remat import restoring
    >>> norm = nn.BatchNorm1d(2)
    >>> with restoring():
    ...     y = norm(torch.rand(8, 2))
    ...     counted = norm.num_batches_tracked.item()
    >>> counted, norm.num_batches_tracked.item()
    (1, 0)
    """
    thread = threading.get_ident()
    originals: dict[Tensor, Tensor] = {}

    def lend_copies(module: nn.Module, inputs: tuple) -> None:
        for buffer in module.buffers(recurse=False):
            if threading.get_ident() == thread and buffer not in originals:
                originals[buffer] = buffer.data
                buffer.data = buffer.data.clone()

    hook = register_module_forward_pre_hook(lend_copies)
    try:
        yield
    finally:
        hook.remove()
        for buffer, data in originals.items():
            buffer.data = data


def repeatable(fn: Callable, inputs: tuple, kwargs: dict) -> tuple[list[Tensor], Callable]:
    """The tensors among the operands, also within lists, tuples and dicts; and `repeat(tensors)`, which runs `fn` again
    as it would run now, with a graph.

    `repeat` itself holds none of the tensors: whoever wants them kept saves them in autograd's way, which sees it
    if they are changed in place.

    >>> import torch
    >>> from minidist.train.remat import repeatable
    >>> x = torch.ones(100)
    >>> tensors, repeat = repeatable(torch.dropout, (x, 0.5, True), {})
    >>> first = torch.dropout(x, 0.5, True)
    >>> torch.equal(repeat(tensors), first)
    True
    """
    leaves, structure = tree_flatten((inputs, kwargs))
    replay = Replay(leaves)
    place = object()
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    leaves = [place if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def repeat(tensors: Sequence[Tensor]) -> Any:
        rest = iter(tensors)
        operands = [next(rest) if leaf is place else leaf for leaf in leaves]
        inputs, kwargs = tree_unflatten(operands, structure)
        with replay.again(), restoring(), torch.enable_grad():
            return fn(*inputs, **kwargs)

    return tensors, repeat


# ------------------------------------------------------------
# The naive form: one node of autograd's graph in place of all that the function does.
#
#     forward     run the function without a graph, and save its inputs
#     backward    run it again on detached inputs, with a graph, and start a backward of that within the backward
#                 ("reentrant"): it gives the gradients of the inputs, and adds to those of the parameters on its way
#
# The node is there only if an input of it needs a gradient. Data does not, so the parameters of a first block would
# silently get none: an empty tensor that needs a gradient goes in with the others. What is left to `checkpoint`:
# gradients by `autograd.grad`, hooks on parameters that run once in all, and an early stop of the recomputation.
# Source: Chen et al. 2016, section 4, Algorithm 1.


def checkpoint_reentrant(fn: Callable, *inputs: Tensor) -> Any:
    """`fn(*inputs)`, a tensor or a tuple of tensors, run again in backward.

    Every output of floating point needs a gradient afterwards, even where nothing in `fn` does.
    Raises RuntimeError in backward under `autograd.grad` and `backward(inputs=…)`.

    >>> import torch
    >>> from minidist.train.remat import checkpoint_reentrant
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> checkpoint_reentrant(lambda x: x * x, x).sum().backward()
    >>> x.grad.tolist()
    [2.0, 4.0]
    """
    if not torch.is_grad_enabled():
        return fn(*inputs)
    return Reentrant.apply(fn, torch.empty(0, requires_grad=True), *inputs)


class Reentrant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn: Callable, alive: Tensor, *inputs: Tensor):
        ctx.save_for_backward(*inputs)
        _, ctx.repeat = repeatable(fn, inputs, {})
        return fn(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor):
        if not torch.autograd.Variable._execution_engine.is_checkpoint_valid():
            raise RuntimeError(
                "checkpoint_reentrant adds to .grad in a backward of its own, so autograd.grad and "
                "backward(inputs=…) cannot tell it what to compute: use checkpoint"
            )
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        outputs = tree_leaves(ctx.repeat(inputs))
        pairs = [(y, dy) for y, dy in zip(outputs, grads, strict=True) if y.requires_grad]
        if pairs:
            ys, dys = zip(*pairs, strict=True)
            torch.autograd.backward(ys, dys)
        return None, None, *(x.grad for x in inputs)


# ------------------------------------------------------------
# The real form, by saved-tensor hooks. Autograd's graph is the ordinary one, and only the tensors in it are missing, so
# everything that autograd can do works.
#
# PyTorch calls a pair of hooks for each tensor that an operator saves: `pack` as it is saved, whose result is kept in
# the tensor's place, and `unpack` as backward needs it. Here `pack` leaves an empty slot. The first slot that backward
# reads has all of them filled, in the order in which they were packed, and each is emptied as it is read:
#
#     forward     saves a b c    slots [ ] [ ] [ ]
#     backward    needs c: fn again saves a b c, slots [a] [b] [c]; then c is read, [a] [b] [ ]; then b …
#
# Nothing that is made after the last saved tensor is needed, so the repetition stops there. Autograd's nodes refer to
# their slots and, through `unpack`, to `Slots`, which refers to each slot weakly: a slot goes with its node.
# Source: PyTorch, `torch/utils/checkpoint.py`, note "Nestable Checkpoint".


def checkpoint(fn: Callable, *inputs, **kwargs) -> Any:
    """Return `fn(*inputs, **kwargs)` without saving its tensors for backward: they are computed again there.

    fn: must do the same each time it is called with the same operands; random numbers, autocast, function modes and the
    buffers of modules that it calls are taken care of. Anything else that it changes, it changes twice.  inputs,
    kwargs: anything; tensors are also found in lists, tuples and dicts.
    Memory: the input tensors stay alive until backward has passed, plus 5 kB. In nested calls, the inner call's inputs
    are held only while the outer call is recomputed. Under `torch.no_grad`, fn is simply called.
    In backward, raises RuntimeError (autograd's own) if an input has been changed in place since, and ValueError if fn
    saves different tensors than the first time, or fewer.

    >>> import torch
    >>> from minidist.train import checkpoint
    >>> calls = []
    >>> def square(x):
    ...     calls.append("square")
    ...     return (x * x).sum()
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> checkpoint(square, x).backward()
    >>> x.grad.tolist(), calls  # once in forward, once more in backward
    ([2.0, 4.0], ['square', 'square'])
    """
    if not callable(fn):
        raise ValueError(f"checkpoint(fn, …) calls a function or a module, not {fn!r}")
    if not torch.is_grad_enabled():
        return fn(*inputs, **kwargs)
    tensors, repeat = repeatable(fn, inputs, kwargs)
    saved = Save.apply(torch.empty(0, requires_grad=True), *tensors)
    slots = Slots(partial(fill_by_repeating, repeat, saved))
    with saved_tensors_hooks(lambda x: slots.add((x.shape, x.dtype)), slots.read):
        return fn(*inputs, **kwargs)


class Slot:
    """The place of one saved tensor; `label` tells what belongs there."""

    def __init__(self, label: Any):
        self.label = label
        self.value: Tensor | None = None


class Slots:
    """The places of the tensors that one forward saves. `fill(slots)` gives each a value; None is one that has gone."""

    def __init__(self, fill: Callable[[list[Slot | None]], None]):
        self.fill = fill
        self.references: list[weakref.ref[Slot]] = []

    def add(self, label: Any) -> Slot:
        slot = Slot(label)
        self.references.append(weakref.ref(slot))
        return slot

    def read(self, slot: Slot) -> Tensor:
        if slot.value is None:
            self.fill([reference() for reference in self.references])
        value, slot.value = slot.value, None
        assert value is not None, "fill gives each slot a value"
        return value


def fill_by_repeating(repeat: Callable, saved: Tensor, slots: list[Slot | None]) -> None:
    """Run a function again on what `saved`, a result of Save, holds: what it saves now goes into the slots, in order."""
    node: Any = saved.grad_fn  # which, in PyTorch 2.11, holds tensors only as long as `saved` lives
    filled = 0

    def pack(x: Tensor) -> Tensor:
        nonlocal filled
        slot = slots[filled]
        if slot is not None:
            shape, dtype = slot.label
            if (shape, dtype) != (x.shape, x.dtype):
                raise ValueError(
                    f"tensor {filled} of those saved for backward was {tuple(shape)} {dtype} in "
                    f"forward, and is {tuple(x.shape)} {x.dtype} in its recomputation: the function "
                    "must do the same whenever it is called"
                )
            slot.value = x.detach()
        filled += 1
        if filled == len(slots):
            raise Filled
        return x.detach()  # for a backward within the function

    try:
        with saved_tensors_hooks(pack, lambda x: x):
            repeat(node.saved_tensors)
    except Filled:
        return
    raise ValueError(
        f"forward saved {len(slots)} tensors for backward, its recomputation {filled}: "
        "the function must do the same whenever it is called"
    )


class Filled(BaseException):
    """Every slot has its value: the rest of the function is not needed. Not for the function to catch."""


class Save(torch.autograd.Function):
    """Saves tensors as an operator does: autograd sees if they change, and an outer checkpoint has slots for them."""

    @staticmethod
    def forward(ctx, alive: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return alive.new_empty(0)


# ------------------------------------------------------------
# A chain of layers, in segments of which all but the last are checkpointed: the last one's backward comes at once, so to
# repeat it saves nothing.


class Segment(NamedTuple):
    """Layers `first` to `end` − 1. `repeated`: their forward runs again in backward.

    >>> from minidist.train.remat import Plan, Segment, checkpoint_sequential
    >>> kept = Plan((Segment(0, 2, repeated=False),), peak=0, repeated=0, held=0)
    >>> checkpoint_sequential([abs, float], kept, -3)
    3.0
    """

    first: int
    end: int
    repeated: bool


class Plan(NamedTuple):
    """Segments in order; the most bytes alive in backward; the cost of the forwards that are repeated; and the bytes
    that the segments hold when forward is over.

    >>> from minidist.train.remat import plan
    >>> found = plan([1, 1], memories=[100, 100], edges=[10, 10, 10], work=[0, 0])
    >>> found.peak, found.repeated, found.held  # two inputs, and the tensors of one layer
    (120, 2, 20)
    """

    segments: tuple[Segment, ...]
    peak: float
    repeated: float
    held: float


def checkpoint_sequential(
    functions: Sequence[Callable], segments: int | Plan | None, x: Any
) -> Any:
    """`x` through all functions one after the other, as `nn.Sequential` does, with checkpoints.

    functions: nn.Sequential or a list; each takes what the one before it gives.  segments: how many, as equal as can
    be; None: about √L of them; or a Plan.
    Raises ValueError for more segments than functions, fewer than one, and a plan of another number of layers.

    >>> import torch
    >>> from minidist.train import checkpoint_sequential
    >>> calls = []
    >>> def layer(x):
    ...     calls.append("layer")
    ...     return x.sin()
    >>> x = torch.ones(3, requires_grad=True)
    >>> checkpoint_sequential([layer] * 9, segments=3, x=x).sum().backward()
    >>> len(calls)  # 9 in forward, and 6 again: the last segment is kept
    15
    """
    functions = list(functions)
    if isinstance(segments, Plan):
        cut = segments.segments
    else:
        cut = equal_segments(len(functions), segments)
    planned = sum(end - first for first, end, _ in cut)
    if planned != len(functions):
        raise ValueError(f"the plan is for {planned} layers, there are {len(functions)}")
    for first, end, repeated in cut:
        part = functions[first:end]
        x = checkpoint(run, part, x) if repeated else run(part, x)
    return x


def equal_segments(layers: int, k: int | None) -> list[Segment]:
    """About equal segments of so many layers, all but the last of them repeated. k: how many; None: about √layers.

    ValueError for fewer segments than one, and for more than layers.

    >>> from minidist.train.remat import equal_segments
    >>> [tuple(segment) for segment in equal_segments(5, 2)]
    [(0, 3, True), (3, 5, False)]
    """
    k = max(1, round(math.sqrt(layers))) if k is None else k
    if not 1 <= k <= max(1, layers):
        raise ValueError(f"{layers} functions do not split into {k} segments")
    return [Segment(first, end, end < layers) for first, end in bounds(uneven(layers, k))]


def checkpoint_recursive(functions: Sequence[Callable], x: Any) -> Any:
    """`x` through all functions: the first half is checkpointed, and both halves are again cut in this way.

    >>> import torch
    >>> from minidist.train.remat import checkpoint_recursive
    >>> calls = []
    >>> def layer(x):
    ...     calls.append("layer")
    ...     return x.sin()
    >>> x = torch.ones(3, requires_grad=True)
    >>> checkpoint_recursive([layer] * 8, x).sum().backward()
    >>> len(calls)  # 8, and 8/2 · log₂ 8 again
    20
    """
    functions = list(functions)
    if len(functions) <= 1:
        return run(functions, x)
    half = (len(functions) + 1) // 2
    x = checkpoint(checkpoint_recursive, functions[:half], x)
    return checkpoint_recursive(functions[half:], x)


def run(functions: Sequence[Callable], x: Any) -> Any:
    """`x` through all functions, one after the other.

    >>> from minidist.train.remat import run
    >>> run([abs, float], -3)
    3.0
    """
    for function in functions:
        x = function(x)
    return x


# ------------------------------------------------------------
# The best plan. Layers 0 … L−1 have edges 0 … L between them: edge i is the input of layer i. Until its backward a layer
# that is kept holds its edge and its saved tensors; a segment that is repeated holds its first edge only, and costs the
# forward of its layers once more. Backward runs from the end; at layer l of a segment that begins at s there are
#
#     held by all segments before s  +  Σ (edge i + saved tensors of i, for i = s … l)  +  work of layer l       bytes.
#
# The largest of these is the peak. Dynamic programming goes from the first layer on: after i layers only the bytes held
# and the compute so far matter, and among plans with the same i those that another one beats in both are dropped. So
# the plan is the best of all that repeat a layer at most once.
# Source: Chen et al. 2016, section 3; exact over all segments as Beaumont et al. 2019, "Optimal checkpointing for
# heterogeneous chains", section 4, and Jain et al. 2020, "Checkmate", section 4, do for wider classes.


def plan(
    costs: Sequence[float],
    memories: Sequence[float],
    edges: Sequence[float],
    work: Sequence[float],
    budget: float | None = None,
) -> Plan:
    """The plan that recomputes least among those whose peak is within `budget` bytes; without a budget, the plan with
    the lowest peak.

    costs: the cost of each layer's forward, in FLOPs or seconds, L values.  memories: bytes that each layer saves for
    backward, not counting its input and output.  edges: bytes of each tensor between layers, including the first input
    and the last output, L + 1 values.  work: bytes that each layer's backward needs in addition, such as the gradients
    of its edges.
    Time: O(L²) for each pair (bytes held, compute) that is not beaten, which are few where layers are alike.
    Raises ValueError if nothing fits, naming the least memory that is needed, and if the numbers of values do not
    match.
    Sources: Chen et al. 2016, section 3; Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains",
    section 4.

    >>> from minidist.train.remat import plan
    >>> chain = dict(costs=[1] * 4, memories=[90] * 4, edges=[10] * 5, work=[0] * 4)
    >>> for budget in (400, 300, 200):  # bytes: all is kept, half of it, almost nothing
    ...     found = plan(**chain, budget=budget)
    ...     print(found.peak, found.repeated, [s[:2] for s in found.segments if s.repeated])
    400 0 []
    300 2 [(1, 3)]
    200 3 [(0, 2), (2, 3)]
    """
    L = len(costs)
    if [len(memories), len(edges), len(work)] != [L, L + 1, L]:
        raise ValueError(
            f"{L} costs need {L} memories, {L + 1} edges and {L} values of work, "
            f"not {len(memories)}, {len(edges)} and {len(work)}"
        )

    def search(limit: float, aim: Callable[[Plan], float]) -> Plan:
        """The plan with a peak of at most `limit` of which `aim` is least."""
        plans = [[Plan((), 0, 0, 0)], *([] for _ in costs)]  # plans[i]: of the first i layers
        for first in range(L):
            for before in unbeaten(plans[first], aim):
                _, peak, repeated, held = before
                live = held
                for end in range(first + 1, L + 1):
                    live += edges[end - 1] + memories[end - 1]
                    peak = max(peak, live + work[end - 1])
                    repeated += costs[end - 1]
                    if peak > limit:
                        break
                    segments = (*before.segments, Segment(first, end, True))
                    plans[end].append(Plan(segments, peak, repeated, held + edges[first]))
                    if end == first + 1:  # several kept layers are several segments
                        segments = (*before.segments, Segment(first, end, False))
                        plans[end].append(Plan(segments, peak, before.repeated, live))
        return unbeaten(plans[L], aim)[-1]

    smallest = search(math.inf, lambda plan: plan.peak)
    if budget is None:
        return smallest
    if smallest.peak > budget:
        raise ValueError(
            f"no plan of {L} layers fits into {budget} bytes: {smallest.peak} are needed"
        )
    return search(budget, lambda plan: plan.repeated)


def unbeaten(plans: list[Plan], aim: Callable[[Plan], float]) -> list[Plan]:
    """Those for which no other plan holds as little and has as small an aim, by the bytes that they hold.

    >>> from minidist.train.remat import Plan, unbeaten
    >>> plans = [Plan((), 9, 2, held=10), Plan((), 9, 1, held=20), Plan((), 9, 3, held=20)]
    >>> [(plan.held, plan.repeated) for plan in unbeaten(plans, lambda plan: plan.repeated)]
    [(10, 2), (20, 1)]
    """
    best: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (plan.held, aim(plan))):
        if not best or aim(plan) < aim(best[-1]):
            best.append(plan)
    return best
