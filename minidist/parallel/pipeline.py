"""A model in stages, each on a rank of its own, and one executor that runs every schedule.

    pipeline = Pipeline(part, comm, one_f_one_b, loss_fn)      # `part`: this stage's module
    for x, y in batches:
        pipeline.step(M, x, y)                                 # x is read on the first stage only, y on the last
        optimizer.step(); optimizer.zero_grad()

    stage 0   F0 ─┬─▶ F1 ─┬─▶ …      B0 ◀┐        activations go to the next part of the model, gradients to the one
    stage 1       └▶ F0 ──┴─▶ B0 ─▶ F1 ──┘        before: messages follow from the lists (`schedules.Shape`)

The batch is cut into M micro-batches; each passes through all S stages and back, in the order of the lists. Gradients
add up to that of the mean over the batch, bit for bit as in a serial loop over the micro-batches where a list runs
its backwards in order.

Cost: 2M messages an edge and step, each α + Nβ, hidden behind the computation where that takes longer, and one of 24
bytes forward. Memory: what the schedule keeps. Sources: Huang et al. 2019, "GPipe"; Narayanan et al. 2019, "PipeDream",
section 3.1 (partition); Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters".

In this file: the naive way; a batch in micro-batches; messages; what is kept for a backward; tied parameters; the
executor; forward alone; who gets which layers.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..arguments import function
from ..collectives import all_gather_json, all_reduce_, broadcast_
from ..comm.base import Comm, Recv, Send, Work, describe
from ..train.remat import Replay, restoring
from .halves import Halves
from .schedules import Action, Item, Lists, Schedule, Shape, lists, one_f_one_b
from .validate import validate

# ------------------------------------------------------------
# The naive way: GPipe. All forwards, then all backwards, every message waited for, and told what it looks like.


def naive_step(
    part: nn.Module, comm: Comm, loss_fn: Callable, inputs: list[Tensor], targets: list[Tensor]
) -> list[Tensor]:
    """The gradient of the mean over equal micro-batches; losses on the last stage. One tensor between two stages.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel.pipeline import naive_step
    >>> def program(comm, xs, ys):
    ...     part = mlp([4, 8, 2])[2 * comm.rank : 2 * comm.rank + 2]
    ...     return len(naive_step(part, comm, F.mse_loss, xs, ys))
    >>> World(2).run(program, [torch.ones(2, 4)] * 3, [torch.zeros(2, 2)] * 3)
    [0, 3]
    """
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    passed, losses = [], []
    for x, target in zip(inputs, targets, strict=True):
        if not first:
            (x,) = receive_unknown(comm, comm.rank - 1)
            x.requires_grad_()
        y = part(x)
        if last:
            y = loss_fn(y, target)
            losses.append(y.detach())
        else:
            send_unknown(comm, [y], comm.rank + 1)
        passed.append((x, y))
    for x, y in passed:
        dy = torch.full_like(y, 1 / len(inputs))
        if not last:
            comm.recv(dy, comm.rank + 1)
        y.backward(dy)
        if not first:
            assert x.grad is not None, "this part does not use what it was sent"
            comm.send(x.grad, comm.rank - 1)
    return losses


# ------------------------------------------------------------
# A batch cut into M micro-batches, and the weight of each in the gradient.
#
# The mean over a batch of B samples is the sum of the micro-batches' means, each times its share b/B. So uneven
# micro-batches add up to the gradient of the whole batch, if every loss is multiplied by its share before backward.

Batch = Tensor | tuple[Tensor, ...]


def as_tuple(x) -> tuple[Tensor, ...]:
    """What a module takes or gives, as a tuple."""
    tensors = (x,) if isinstance(x, Tensor) else tuple(x)
    for y in tensors:
        if not isinstance(y, Tensor):
            raise TypeError(f"stages pass tensors to each other, not {type(y).__name__}")
    return tensors


def micro_batches(batch: Batch | list[Batch] | None, M: int, what: str) -> list[tuple[Tensor, ...]]:
    """M tuples of tensors. A list holds them already; all else is cut along the first dimension, the first ones larger.

    Raises ValueError for a batch that is missing or of fewer samples than M, and for a list of another length.

    >>> import torch
    >>> from minidist.parallel.pipeline import micro_batches, shares
    >>> parts = micro_batches(torch.ones(8, 3), M=3, what="inputs")
    >>> [tuple(x.shape) for (x,) in parts], shares(parts)
    ([(3, 3), (3, 3), (2, 3)], [0.375, 0.375, 0.25])
    """
    if batch is None:
        raise ValueError(f"{what} are missing on the stage that needs them")
    if isinstance(batch, list):
        if len(batch) != M:
            raise ValueError(
                f"{what}: a list of {len(batch)} micro-batches was given, and {M} are wanted"
            )
        return [as_tuple(part) for part in batch]
    tensors = as_tuple(batch)
    samples = {_samples(x, what) for x in tensors}
    if len(samples) != 1:
        raise ValueError(
            f"{what}: tensors of {' and '.join(map(str, sorted(samples)))} samples are no batch"
        )
    B = samples.pop()
    if B < M:
        raise ValueError(f"{what}: a batch of {B} samples does not make {M} micro-batches")
    return list(zip(*(x.detach().tensor_split(M) for x in tensors), strict=True))


def _samples(x: Tensor, what: str) -> int:
    if not x.dim():
        raise ValueError(f"{what}: a tensor of 0 dimensions has no samples; 1 is the least")
    return x.shape[0]


def shares(parts: list[tuple[Tensor, ...]]) -> list[float]:
    """The share of each micro-batch in the batch."""
    sizes = [_samples(part[0], "a micro-batch") for part in parts]
    return [size / sum(sizes) for size in sizes]


# ------------------------------------------------------------
# What a message looks like. A receive needs memory before the message comes. Shapes differ between stages, and between
# micro-batches where the batch does not divide, so the receiver cannot guess them; it is told once.

HEADER = 512  # bytes


class Layout(NamedTuple):
    """One tensor of a message. wanted: it has a gradient, which the receiver sends back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    wanted: bool

    def empty(self, device: torch.device) -> Tensor:
        """Memory for it; a leaf that collects its gradient if that is wanted."""
        return torch.empty(self.shape, dtype=self.dtype, device=device, requires_grad=self.wanted)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.shape} {dtype}{' with gradient' * self.wanted}"


def layouts_of(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Layout]:
    """The layout of each tensor."""
    pairs = zip(tensors, wanted, strict=True)
    return [Layout(tuple(x.shape), x.dtype, w) for x, w in pairs]


def tell(comm: Comm, layouts: Sequence[Layout], dst: int, label: str = "layout") -> Work:
    """Start telling a rank what the next message looks like, from host to host."""
    rows = [(x.shape, str(x.dtype).removeprefix("torch."), x.wanted) for x in layouts]
    text = json.dumps(rows).encode()
    if len(text) > HEADER:
        raise ValueError(f"{len(rows)} tensors are too many to be told of in {HEADER} bytes")
    row = torch.frombuffer(bytearray(text.ljust(HEADER)), dtype=torch.uint8)
    return comm.on_host().isend(row, dst, label)


def hear(comm: Comm, src: int, label: str = "layout") -> list[Layout]:
    """What another rank tells."""
    text = comm.on_host().recv(torch.empty(HEADER, dtype=torch.uint8, device="cpu"), src, label)
    rows = json.loads(bytes(text.tolist()))
    return [Layout(tuple(shape), getattr(torch, dtype), wanted) for shape, dtype, wanted in rows]


def send_unknown(comm: Comm, tensors: Sequence[Tensor], dst: int) -> None:
    """Send tensors to a rank that does not know what they look like."""
    layouts = layouts_of(tensors, [False] * len(tensors))
    tell(comm, layouts, dst).wait()
    for x in tensors:
        comm.send(x.detach(), dst, "forward")


def receive_unknown(comm: Comm, src: int) -> list[Tensor]:
    """Receive what `send_unknown` sends."""
    layouts = hear(comm, src)
    return [comm.recv(layout.empty(comm.device), src, "forward") for layout in layouts]


# ------------------------------------------------------------
# Messages. Every edge between two parts of the model, and each direction, has a channel of its own: there are no tags,
# so two stages that share several edges match messages in posting order, and each edge has an order of its own. Over
# NCCL a channel is a stream, too, on which all messages go one way, so that each starts when it is posted.
#
# A send is started and not waited for until it must be over: a stage that waits for each is where pipelines deadlock.
# It is over for sure when a message comes that the receiver sent after it had used ours; waiting for it then costs
# nothing, and its memory is free. Receives are posted in the order of sending, on each edge one ahead of need, so that
# a message comes in while its receiver computes.
#
# The same batch gives the same shapes. So a step begins with an announcement, which travels from the first stage to the
# last: (new, M, samples) in 24 bytes. In a step of a new kind of batch (M, and the shapes of the micro-batches, are
# others than in the step before) each activation is preceded by its layout, and a gradient looks like its activation;
# in the steps after it all stages know what comes.


class Plan(NamedTuple):
    """The lists of all stages, and the positions in them where each item is made, and used by another stage."""

    lists: Lists
    made: dict[Item, int]
    used: dict[Item, int]


def plan(every: Lists, shape: Shape) -> Plan:
    """The plan of these lists."""
    made, used = {}, {}
    for stage, actions in enumerate(every):
        for position, action in enumerate(actions):
            made[shape.gives(stage, action)] = position
            for item in shape.far(stage, action):
                used[item] = position
    return Plan(every, made, used)


class Messages:
    """What a stage sends and receives. Channels are groups of two ranks, made without a message.

    `comm.rank` is the stage.
    """

    def __init__(self, comm: Comm, shape: Shape):
        self.stage = comm.rank
        self.shape = shape
        # by what is sent, and the part that sends it
        self.channels: dict[tuple[str, int], Comm] = {}
        self._layouts: dict[Item, list[Layout]] = {}
        for part in range(shape.last):
            ends = {shape.stage(part), shape.stage(part + 1)}
            for edge in [("a", part), ("g", part + 1)] if len(ends) == 2 else []:
                channel = comm.split([0 if rank in ends else None for rank in range(comm.size)])
                if channel is not None:
                    channel.one_way = True
                    channel.on_host()  # now, while its other end makes it, too
                    self.channels[edge] = channel
        self.forget()

    def forget(self) -> None:
        """Layouts are told again in the next step."""
        # of the batch of the last step, on the first stage
        self._kind: list[list[Layout]] | None = None

    def begin(self, plan: Plan, M: int, inputs: list[tuple[Tensor, ...]]) -> int:
        """Announce a step, and post its first receives. Returns the samples that the first stage was given.

        Raises ValueError where this rank was told another M.
        """
        self._plan = plan
        samples = self._announce(M, inputs)
        if self._new:
            self._layouts = {}
        self._posted: dict[Item, tuple[list[Tensor], Work | None]] = {}
        self._sent: list[tuple[Item, Work]] = []
        self._here: dict[Item, list[Tensor]] = {}
        self._to_come: dict[tuple[str, int], deque[Item]] = {
            edge: deque() for edge in self.channels
        }
        for item in sorted(plan.used, key=lambda item: plan.made[item]):
            if self.shape.goes_to(item) == self.stage:
                self._to_come[item.edge].append(item)
        for edge in self.channels:
            self._post_ahead(edge)
        return samples

    def _announce(self, M: int, inputs: list[tuple[Tensor, ...]]) -> int:
        """Whether the batch is of a new kind, and its samples: the first stage, which alone has `inputs`, tells all."""
        kind = None
        if inputs:
            kind = [layouts_of(xs, [x.requires_grad for x in xs]) for xs in inputs]
            samples = sum(len(xs[0]) for xs in inputs)
            row = torch.tensor([kind != self._kind, M, samples], device="cpu")
        else:
            before = self.channels["a", self.stage - 1]
            row = torch.zeros(3, dtype=torch.int64, device="cpu")
            before.on_host().recv(row, 1 - before.rank, "a step")
        new, first, samples = row.tolist()
        if first != M:
            raise ValueError(
                f"stage {self.stage} was given M = {M}, but stage {self.stage - 1} M = {first}"
            )
        self._announced = []
        if self.stage < self.shape.S - 1:
            after = self.channels["a", self.stage]
            self._announced = [after.on_host().isend(row, 1 - after.rank, "a step")]
        self._new, self._coming_kind = bool(new), kind
        self._kind = None  # until this step has ended well
        return samples

    def end(self) -> None:
        """Wait for the sends that nobody has answered; now all layouts of this kind are known."""
        for work in [*self._announced, *(work for _, work in self._sent)]:
            work.wait()
        self._kind = self._coming_kind

    def send(self, item: Item, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> None:
        """Send an item on its way. wanted: which of its tensors want a gradient back."""
        self._know(item, layouts_of(tensors, wanted))
        channel = self.channels.get(item.edge)
        if channel is None:
            pairs = zip(tensors, wanted, strict=True)
            self._here[item] = [x.detach().requires_grad_(w) for x, w in pairs]
            return
        peer, label = 1 - channel.rank, self._label(item)
        if self._new and item.what == "a":
            told = tell(channel, self._layouts[item], peer, f"layout {label}")
            self._sent.append((item, told))
        if tensors:
            sent = channel.batch([Send(x.detach(), peer, label) for x in tensors])
            self._sent.append((item, sent))
        if item.what == "a":  # what will come back looks alike
            gradient = Item("g", item.micro, item.part + 1)
            back = [x._replace(wanted=False) for x in self._layouts[item] if x.wanted]
            self._know(gradient, back)
            self._post_ahead(gradient.edge)

    def receive(self, item: Item) -> list[Tensor]:
        """Wait for an item. Then sends that are over for sure let go of their memory."""
        if item.edge not in self.channels:
            return self._here.pop(item)
        while item not in self._posted:
            self._post(item.edge)
        tensors, work = self._posted.pop(item)
        if work is not None:
            work.wait()
        self._post_ahead(item.edge)
        source, made = self.shape.stage(item.part), self._plan.made[item]
        waiting, self._sent = self._sent, []
        for sent, work in waiting:
            if self.shape.goes_to(sent) == source and self._plan.used[sent] <= made:
                work.wait()
            else:
                self._sent.append((sent, work))
        return tensors

    def _post(self, edge: tuple[str, int]) -> None:
        """Post the receive that is next on an edge."""
        item = self._to_come[edge].popleft()
        channel, label = self.channels[edge], self._label(item)
        peer = 1 - channel.rank
        if item not in self._layouts:
            self._layouts[item] = hear(channel, peer, f"layout {label}")
        tensors = [layout.empty(channel.device) for layout in self._layouts[item]]
        receives = [Recv(x.detach(), peer, label) for x in tensors]
        self._posted[item] = tensors, channel.batch(receives) if receives else None

    def _post_ahead(self, edge: tuple[str, int]) -> None:
        """Have one receive posted on an edge, if it is known what will come."""
        queue = self._to_come[edge]
        posted = any(item.edge == edge for item in self._posted)
        if queue and not posted and queue[0] in self._layouts:
            self._post(edge)

    def _know(self, item: Item, layouts: list[Layout]) -> None:
        """What an item looks like. ValueError where it was something else in an earlier step of this kind."""
        known = self._layouts.setdefault(item, layouts)
        if layouts != known:
            now, before = (
                ", ".join(map(str, described)) or "no tensor" for described in (layouts, known)
            )
            raise ValueError(
                f"{self._label(item)} gave {now}, but {before} when a batch of these shapes came first: "
                "call forget() on every rank if the model has changed"
            )

    def _label(self, item: Item) -> str:
        """What a message says of itself: the action that made it, "F3", or "F3.1" of a second chunk."""
        kind = "F" if item.what == "a" else "B"
        return str(Action(kind, item.micro, self.shape.chunk(item.part)))


# ------------------------------------------------------------
# What a part of the model keeps of a micro-batch, from its forward to the end of its backward.
#
#     F    leaves where the graph ends (not the outputs themselves: they may go when they are sent), and its inputs
#     B    the graph backwards, whole
#     I W  the same in two, see `halves`
#
# With recomputation F keeps its inputs and the surroundings (random numbers, autocast) only; backward runs F again, and
# leaves running averages alone, which have counted this micro-batch already. Memory: the inputs instead of the graph;
# FLOPs: one forward more. Sources: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4; for
# pipelines Huang et al. 2019, "GPipe", section 2.3.


class Activations:
    """One micro-batch in one part: `run(*inputs)` gives the outputs.

    outputs: there until they are sent.  wanted: which of them have a gradient.  again: the module whose parameters
    `run` uses, to run forward again in backward; None keeps the graph.
    """

    def __init__(
        self,
        run: Callable[..., tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        again: nn.Module | None = None,
    ):
        self.inputs = tuple(inputs)
        self._ends: list[GradientEdge | None]
        self._again = None
        if again is None:
            self.outputs = run(*self.inputs)
            self.wanted = [y.requires_grad for y in self.outputs]
            self._keep_ends(self.outputs)
            return
        self._again = run, Replay(self.inputs)
        with torch.no_grad():
            self.outputs = run(*self.inputs)
        may = any(x.requires_grad for x in (*self.inputs, *again.parameters()))
        self.wanted = [may and y.is_floating_point() for y in self.outputs]  # all that might

    def backward(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """Whole: gradients of the outputs that want one, to those of the inputs that do; parameters' accumulate."""
        ends, grads = self._start(grads)
        if ends:
            torch.autograd.backward(ends, grads)
        wanted = [x for x in self.inputs if x.requires_grad]
        return [torch.zeros_like(x) if x.grad is None else x.grad for x in wanted]

    def backward_input(self, grads: Sequence[Tensor]) -> list[Tensor]:
        """The inputs' gradients only."""
        ends, grads = self._start(grads)
        wanted = [x for x in self.inputs if x.requires_grad]
        self._halves = Halves(ends, wanted)
        of_inputs = self._halves.input(grads)
        self.inputs, self._ends = (), []
        self._again = None
        return [
            torch.zeros_like(x) if g is None else g for x, g in zip(wanted, of_inputs, strict=True)
        ]

    def backward_weight(self) -> None:
        """The weights' gradients only, after `backward_input`."""
        self._halves.weight()

    def _start(self, grads: Sequence[Tensor]) -> tuple[list, list[Tensor]]:
        """Where the graph ends, and the gradients there; the graph is made now if it was not kept."""
        if self._again is not None:
            run, surroundings = self._again
            with surroundings.again(), restoring():
                self._keep_ends(run(*self.inputs))
        pairs = [(e, g) for e, g in zip(self._ends, grads, strict=True) if e is not None]
        return [e for e, _ in pairs], [g for _, g in pairs]

    def _keep_ends(self, outputs: Sequence[Tensor]) -> None:
        """Where the graph ends, for each output that wants a gradient."""
        wanted = [y for y, w in zip(outputs, self.wanted, strict=True) if w]
        self._ends = [get_gradient_edge(y) if y.requires_grad else None for y in wanted]


# ------------------------------------------------------------
# Tied: one parameter on several stages, such as a GPT's token embedding, which is on the first, and again the projection
# on the last. Each stage that holds it has a copy, and a part of the gradient. The copies start equal, and after the
# last backward of a step the parts are summed over the stages that hold it, so that every optimizer takes the same step:
# one all-reduce of the parameter's N bytes, 2(n−1)/n·Nβ between n stages. Source: Megatron-LM's embedding group.
# Invariant: what a gradient held before the step is not summed again.


class Ties:
    """The tied parameters {name: parameter} of this rank. Makes them equal to the first holder's.

    Raises ValueError where a parameter has another shape or dtype on another rank.
    """

    def __init__(self, comm: Comm, tied: Mapping[str, Tensor]):
        self._groups: list[tuple[Tensor, Comm]] = []
        self._before: list[Tensor | None] = []
        everyone = all_gather_json(comm, {name: describe(p) for name, p in tied.items()})
        for name in sorted({name for names in everyone for name in names}):
            descriptions = {
                rank: names[name] for rank, names in enumerate(everyone) if name in names
            }
            first = min(descriptions)
            for rank, description in descriptions.items():
                if description != descriptions[first]:
                    raise ValueError(
                        f"{name} is tied, but {descriptions[first]} on rank {first} and {description} on rank {rank}"
                    )
            group = comm.split([0 if rank in descriptions else None for rank in range(comm.size)])
            if group is not None:
                self._groups.append((tied[name], group))
                broadcast_(group, tied[name].detach())

    @property
    def repeated(self) -> list[Tensor]:
        """Those of this rank that an earlier stage holds, too: who sums over all stages leaves them out."""
        return [p for p, group in self._groups if group.rank]

    def begin(self) -> None:
        """Put aside what gradients hold from earlier steps."""
        self._before = [p.grad for p, _ in self._groups]
        for p, _ in self._groups:
            p.grad = None

    def end(self) -> None:
        """Sum the gradients of this step; a missing one counts as zeros. A frozen parameter has none."""
        for (p, group), before in zip(self._groups, self._before, strict=True):
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                all_reduce_(group, p.grad)
            if before is not None:
                p.grad = before if p.grad is None else before.add_(p.grad)


# ------------------------------------------------------------
# The executor. It walks a stage's list, and each kind of action is a method: `forward` F, `backward` B, `input` I,
# `weight` W, `update` U. Who wants another kind of pipeline subclasses: `module(action)` is what a forward (and its
# recomputation) runs, `share(micro)` the weight of a micro-batch's loss, `check` what a schedule must be.

METHODS = {"F": "forward", "B": "backward", "I": "input", "W": "weight", "U": "update"}


class Pipeline:
    """This rank's stage of a pipeline; rank r of `comm` is stage r.

    chunks: the stage's module, or the list of its v modules. Part c·S + stage of the model is chunk c (with place="V",
    parts go down the stages and up again, see `schedules`). A module takes what the previous one returns: a tensor, or
    several.
    schedule(stage, S, M): returns the stage's list of actions. It is checked, together with the lists of all stages,
    before it first runs. For a schedule that takes more arguments, bind them first: `functools.partial(interleaved,
    v=4)`.
    loss_fn(output, target): the mean loss of a micro-batch; needed on the stage of the last part.
    recompute: keep only the inputs, and run each forward again in the backward.
    tied: {name: parameter} for parameters that other stages hold as well, under the same name.

    peak: during the last step, the largest number of micro-batches whose forward was done but not their backward (each
    of v chunks counts).  spans: (action, start, end) of the last step, in seconds, without the waiting.
    Raises ValueError if ranks have different numbers of chunks, and for ties that do not match; `step` says what it
    raises.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import Pipeline
    >>> def program(comm, x, y):
    ...     part = mlp([4, 8, 2])[2 * comm.rank : 2 * comm.rank + 2]
    ...     pipeline = Pipeline(part, comm, loss_fn=F.mse_loss)
    ...     losses = pipeline.step(3, x, y)
    ...     return pipeline.peak, part[0].weight.grad, losses
    >>> x, y, serial = torch.ones(6, 4), torch.zeros(6, 2), mlp([4, 8, 2])
    >>> F.mse_loss(serial(x), y).backward()
    >>> (peak, grad, _), (last, _, losses) = World(2).run(program, x, y)
    >>> peak, last, len(losses)  # 1F1B keeps S − stage micro-batches, of three
    (2, 1, 3)
    >>> torch.allclose(grad, serial[0].weight.grad, atol=1e-6)
    True
    """

    def __init__(
        self,
        chunks: nn.Module | Sequence[nn.Module],
        comm: Comm,
        schedule: Schedule = one_f_one_b,
        loss_fn: Callable | None = None,
        recompute: bool = False,
        tied: Mapping[str, Tensor] | None = None,
        place: str = "loop",
    ):
        self.chunks = [chunks] if isinstance(chunks, nn.Module) else list(chunks)
        self.comm = comm
        self.schedule = function(
            schedule, "a schedule is a function schedule(stage, S, M), such as schedules.gpipe"
        )
        self.loss_fn = loss_fn
        self.recompute = recompute
        self.stage = comm.rank
        numbers = all_gather_json(comm, len(self.chunks))
        for rank, v in enumerate(numbers):
            if v != numbers[0]:
                raise ValueError(
                    f"rank 0 has {numbers[0]} chunks of the model, rank {rank} has {v}"
                )
        self.shape = Shape(comm.size, 1, len(self.chunks), place).checked()
        self.first_stage = self.stage == 0
        self.end = self.shape.stage(self.shape.last)  # the stage of the last part
        self.last_stage = self.stage == self.end
        self.ties = Ties(comm, tied or {})
        self.messages = Messages(comm, self.shape)
        self._plans: dict[int, Plan] = {}
        self.peak = 0
        self.spans: list[tuple[Action, float, float]] = []
        self.shares: list[float] = []  # of the micro-batches in the batch, where the last part is

    def step(
        self, M: int, inputs: Batch | list | None = None, targets: Batch | list | None = None
    ) -> list[Tensor] | None:
        """One batch through the pipeline and back. Returns the M losses on the stage of the last part, else None.

        inputs: the batch on the first stage, a tensor or a tuple of them, cut along the first dimension; or a list of
        M micro-batches.  targets: the same for the last stage.  Elsewhere neither is looked at.
        Raises ValueError for a batch of fewer samples than M, without a loss_fn on the stage of the last part, and where
        ranks do not agree on M; ScheduleError for a schedule that is wrong.
        """
        plan = self._plan(M)
        self._begin(plan, M, inputs, targets)
        for action in plan.lists[self.stage]:
            getattr(self, METHODS[action.kind])(action)
        self.messages.end()
        self.finish()
        return [self.losses[m] for m in range(M)] if self.last_stage else None

    def finish(self) -> None:
        """End a step, when all gradients are there: add up those of tied parameters."""
        self.ties.end()

    def forward(self, action: Action) -> None:
        """F: receive, compute, send."""
        micro, part = action.micro, self.shape.part(self.stage, action.chunk)
        if part == 0:
            inputs = self.inputs[micro]
        else:
            inputs = self.messages.receive(Item("a", micro, part - 1))
        again = self.chunks[action.chunk] if self.recompute else None
        with self._timed(action):
            passed = Activations(self._run(action), inputs, again)
        self.activations[action[1:]] = passed
        self.peak = max(self.peak, len(self.activations))
        outputs, passed.outputs = passed.outputs, ()
        if part == self.shape.last:
            self.losses[micro] = outputs[0].detach()
        else:
            self.messages.send(Item("a", micro, part), outputs, passed.wanted)

    def backward(self, action: Action) -> None:
        """B: receive the outputs' gradients, compute the inputs' and the weights', send the inputs'."""
        self._back(action, Activations.backward)
        del self.activations[action[1:]]

    def input(self, action: Action) -> None:
        """I: the same without the weights'."""
        self._back(action, Activations.backward_input)

    def weight(self, action: Action) -> None:
        """W: the weights' gradients that I has left. No message."""
        with self._timed(action):
            self.activations.pop(action[1:]).backward_weight()

    def update(self, action: Action) -> None:
        """U: the optimizer's step. Here the caller does it, after the pipeline's."""
        raise ValueError(f"{action}: a pipeline with a flush has no updates within a step")

    def _back(self, action: Action, half: Callable) -> None:
        """A backward, or its first half: receive, compute, send."""
        micro, part = action.micro, self.shape.part(self.stage, action.chunk)
        passed = self.activations[action[1:]]
        if part == self.shape.last:
            grads = [torch.full_like(self.losses[micro], self.share(micro))] * sum(passed.wanted)
        else:
            grads = self.messages.receive(Item("g", micro, part + 1))
        with self._timed(action):
            of_inputs = half(passed, grads)
        if part:
            self.messages.send(Item("g", micro, part), of_inputs, [False] * len(of_inputs))

    @contextmanager
    def _timed(self, action: Action) -> Iterator[None]:
        """What an action computes, without its messages."""
        start = self.comm.now()
        yield
        self.spans.append((action, start, self.comm.now()))

    def module(self, action: Action) -> Callable:
        """What computes this action's forward."""
        return self.chunks[action.chunk]

    def share(self, micro: int) -> float:
        """What a micro-batch's loss is multiplied by: its share of the batch."""
        return self.shares[micro]

    def check(self, every: Lists, shape: Shape) -> None:
        """Raise ScheduleError unless these lists are a schedule."""
        validate(every, shape.S, shape.M, shape.v, place=shape.place)

    def forget(self) -> None:
        """Forget the shapes of messages, so the stages announce them again. Call it on every rank when a model has
        changed: parts of it were frozen, or return other shapes for the same batch."""
        self.messages.forget()

    def _plan(self, M: int) -> Plan:
        """The lists for M micro-batches, checked the first time."""
        if M not in self._plans:
            shape = self.shape._replace(M=M).checked()
            every = lists(self.schedule, shape.S, M)
            self.check(every, shape)
            self._plans[M] = plan(every, shape)
        return self._plans[M]

    def _begin(self, plan: Plan, M: int, inputs, targets) -> None:
        self.activations: dict[tuple[int, int], Activations] = {}
        self.losses: dict[int, Tensor] = {}
        self.peak = 0
        self.spans = []
        self.inputs = micro_batches(inputs, M, "inputs") if self.first_stage else []
        self.targets = micro_batches(targets, M, "targets") if self.last_stage else []
        samples = self.messages.begin(plan, M, self.inputs)
        if self.last_stage:
            if self.loss_fn is None:
                raise ValueError(
                    f"stage {self.stage} has the last part of the model: it needs a loss_fn"
                )
            self.shares, here = shares(self.targets), sum(len(part[0]) for part in self.targets)
            if here != samples:
                raise ValueError(
                    f"the first stage was given {samples} samples, the last {here} targets"
                )
        self.ties.begin()

    def _run(self, action: Action) -> Callable[..., tuple[Tensor, ...]]:
        """The forward of one part, with its loss behind the last one."""
        module = self.module(action)
        if self.shape.part(self.stage, action.chunk) < self.shape.last:
            return lambda *xs: as_tuple(module(*xs))
        target, loss_fn = self.targets[action.micro], self.loss_fn
        assert loss_fn is not None  # `_begin` has asked

        def with_loss(*xs: Tensor) -> tuple[Tensor, ...]:
            loss = loss_fn(module(*xs), target[0] if len(target) == 1 else target)
            if loss.dim():
                raise ValueError(
                    f"loss_fn gave {describe(loss)}: it must be the mean of a micro-batch, one number"
                )
            return (loss,)

        return with_loss


# ------------------------------------------------------------
# Forward alone, to evaluate and to sample: a part waits for the one before it, and messages say what they look like.
# Micro-batches one after the other are still a pipeline: a stage is at the next one while the stage behind it has this.


@torch.no_grad()
def forward(pipeline: Pipeline, x: Tensor | None = None) -> Tensor | None:
    """The last part's output on its stage, None elsewhere. All stages call it. x: on the first stage, the batch.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import Pipeline
    >>> from minidist.parallel.pipeline import forward
    >>> def program(comm, x):
    ...     pipeline = Pipeline(mlp([4, 8, 2])[2 * comm.rank : 2 * comm.rank + 2], comm)
    ...     y = forward(pipeline, x)  # for evaluation: without micro-batches, without a loss
    ...     return None if y is None else tuple(y.shape)
    >>> World(2).run(program, torch.ones(6, 4))
    [None, (6, 2)]
    """
    shape, stage = pipeline.shape, pipeline.stage
    for part in range(shape.last + 1):
        if shape.stage(part) != stage:
            continue
        xs = (x,)
        if part and shape.stage(part - 1) != stage:
            xs = receive_unknown(pipeline.comm, shape.stage(part - 1))
        x = pipeline.module(Action("F", 0, shape.chunk(part)))(*xs)
        if part < shape.last and shape.stage(part + 1) != stage:
            send_unknown(pipeline.comm, as_tuple(x), shape.stage(part + 1))
    return x if pipeline.last_stage else None


# ------------------------------------------------------------
# Which layers a stage gets: the slowest stage sets the pace, so the largest part should be as small as can be.
#
#     costs        1 1 1 4 1 1 1        S = 3: | 1 1 1 | 4 | 1 1 1 |  the largest is 4; by count it would be 6
#
# Parts are contiguous, so a partition is S − 1 cuts. best(s, j), the smallest largest part of the first j layers in s
# parts, is the minimum over i < j of max(best(s − 1, i), cost of layers i … j − 1): O(S·L²) steps for L layers.


def partition(costs: Sequence[float], S: int) -> list[tuple[int, int]]:
    """(first, end) of the layers of each of S stages: contiguous, none empty, the largest sum as small as can be.

    costs: of the layers, in any unit, such as seconds. Of several that are equally good it is the one whose last stages
    are the largest they can be, because the first stages keep the most activations.
    Raises ValueError for fewer layers than stages, and for a negative cost.

    >>> from minidist.parallel import partition
    >>> partition([1, 1, 1, 1, 3, 3], S=3)  # sums of 3, 4 and 3
    [(0, 3), (3, 5), (5, 6)]
    """
    L = len(costs)
    if S < 1 or L < S:
        raise ValueError(f"{L} layers do not make {S} stages of at least one each")
    if min(costs) < 0:
        raise ValueError(f"a layer costs at least 0, not {min(costs)}")
    total = [0, *accumulate(costs)]
    best, cuts = [total], []  # best[s][j]: of the first j layers in s + 1 parts
    for s in range(1, S):
        row, cut = [float("inf")] * (L + 1), [0] * (L + 1)
        for j in range(s + 1, L + 1):
            row[j], cut[j] = min((max(best[-1][i], total[j] - total[i]), i) for i in range(s, j))
        best.append(row)
        cuts.append(cut)
    ends = [L]
    for cut in reversed(cuts):
        ends.append(cut[ends[-1]])
    return list(zip([0, *ends[:0:-1]], reversed(ends), strict=True))


def by_count(model: nn.Sequential) -> list[int]:
    """Every layer costs 1.

    >>> from minidist.models import mlp
    >>> from minidist.parallel import partition
    >>> from minidist.parallel.pipeline import by_count
    >>> partition(by_count(mlp([4, 8, 8, 2])), S=2)  # three linear layers, and two ReLUs
    [(0, 2), (2, 5)]
    """
    return [1] * len(model)


def by_parameters(model: nn.Sequential) -> list[int]:
    """A layer costs the number of its parameters, which optimizer states weigh; a tied one counts wherever it is.

    >>> from minidist.models import mlp
    >>> from minidist.parallel.pipeline import by_parameters
    >>> by_parameters(mlp([4, 8, 8, 2]))
    [40, 0, 72, 0, 18]
    """
    return [sum(p.numel() for p in layer.parameters()) for layer in model]


def by_time(model: nn.Sequential, x: Tensor | tuple[Tensor, ...]) -> list[float]:
    """A layer costs the seconds of its forward and backward on a micro-batch x: median of 5, after one more.

    Gradients, buffers and random numbers are left as they were.

    >>> import torch
    >>> from minidist.models import mlp
    >>> from minidist.parallel.pipeline import by_time
    >>> len(by_time(mlp([4, 8, 8, 2]), torch.ones(16, 4)))  # seconds, of each of the five layers
    5
    """
    surroundings, rows = Replay(as_tuple(x)), []
    for _ in range(6):
        with surroundings.again(), restoring():
            rows.append(_seconds(model, as_tuple(x)))
    return [statistics.median(column) for column in zip(*rows[1:], strict=True)]


def _seconds(model: nn.Sequential, x: tuple[Tensor, ...]) -> list[float]:
    """Seconds of each layer, once."""
    seconds = []
    for layer in model:
        x = tuple(y.detach().requires_grad_(y.is_floating_point()) for y in x)
        start = _now(x)
        out = as_tuple(layer(*x))
        ends = [y for y in out if y.requires_grad]
        leaves = [leaf for leaf in (*x, *layer.parameters()) if leaf.requires_grad]
        if ends:
            torch.autograd.grad(ends, leaves, [torch.ones_like(y) for y in ends], allow_unused=True)
        seconds.append(_now(out) - start)
        x = out
    return seconds


def _now(tensors: Sequence[Tensor]) -> float:
    """Seconds, when all that was started is done."""
    if any(x.is_cuda for x in tensors):
        torch.cuda.synchronize()
    return time.perf_counter()
