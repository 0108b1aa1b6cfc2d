"""One executor for every schedule: it walks a stage's list of actions, and derives the messages.

    pipeline = Pipeline(part, comm, one_f_one_b, loss_fn)      # `part`: this stage's module
    for x, y in batches:
        pipeline.step(M, x, y)                                 # x counts on the first stage, y on the last
        optimizer.step(); optimizer.zero_grad()

The batch is cut into M micro-batches; each passes through all S stages and back, in the order of the lists. Gradients
add up to that of the mean over the batch, bit for bit as in a serial loop over the micro-batches where a list runs
its backwards in order. Messages of N bytes: 2M an edge and step, and one of 24 bytes forward (`layout`).

Who wants another kind of pipeline subclasses: each kind of action is a method, `forward` "F", `backward` "B", `input`
"I", `weight` "W", `update` "U", called with the Action; `module(action)` is what a forward (and its recomputation)
runs, `share(micro)` the weight of a micro-batch's loss, `check(lists, shape)` what a schedule must be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ...arguments import whole
from ...collectives import all_gather_json
from ...comm.base import Comm, describe
from ..schedules import Action, Item, Schedule, Shape, lists, one_f_one_b
from ..validate import validate
from .batches import Batch, micro_batches, several, shares
from .kept import Kept, Recomputed
from .plan import Plan, plan
from .post import Post
from .ties import Ties, looks

METHODS = {"F": "forward", "B": "backward", "I": "input", "W": "weight", "U": "update"}


class Pipeline:
    """The stage of this rank; rank r of `comm` is stage r.

    chunks: its module, or the list of its v modules; part c·S + stage of the model is chunk c (place="V": down the
    stages and up again, see `schedules`). A module takes what the one before returns: a tensor, or several.
    schedule(stage, S, M): its list of actions. Checked before it first runs, with the lists of all stages.
    loss_fn(output, target): the mean loss of a micro-batch; needed on the stage of the last part.
    recompute: keep only inputs, and run each forward again in backward.
    tied: {name: parameter} of those that other stages hold, too, under the same name.
    ahead: receives posted before they are needed, for each edge.

    peak: the most micro-batches whose forward was done and their backward not, in the last step (with v chunks each
    chunk counts).  spans: (action, start, end) in seconds of the last step, without the waiting.
    Raises ValueError for chunks of another number than on other ranks, for ties that do not match, and for ahead < 0.
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
        ahead: int = 1,
    ):
        self.chunks = [chunks] if isinstance(chunks, nn.Module) else list(chunks)
        self.comm = comm
        self.schedule = schedule
        self.loss_fn = loss_fn
        self.recompute = recompute
        self.stage, self.v, self.place, self.peak = comm.rank, len(self.chunks), place, 0
        self.spans: list[tuple[Action, float, float]] = []
        everyone = all_gather_json(comm, [self.v, looks(tied or {})])
        for rank, (v, _) in enumerate(everyone):
            if v != everyone[0][0]:
                raise ValueError(
                    f"rank 0 has {everyone[0][0]} chunks of the model, rank {rank} has {v}"
                )
        self.ties = Ties(comm, tied or {}, [names for _, names in everyone])
        self._shape = Shape(comm.size, 1, self.v, place).checked()
        ahead = whole(ahead, "at least 0 receives are posted ahead", 0)
        self._post, self._plans = Post(comm, self._shape, ahead), {}
        self.last = comm.size * self.v - 1  # part of the model
        self.first_stage, self.last_stage = (
            self._shape.stage(part) == self.stage for part in (0, self.last)
        )

    def step(self, M: int, inputs: Batch | list | None = None, targets: Batch | list | None = None):
        """One batch through the pipeline and back. Returns the M losses on the stage of the last part, else None.

        inputs: the batch on the first stage, a tensor or a tuple of them, cut along the first dimension; or a list of
        M micro-batches.  targets: likewise on the last stage.  Elsewhere neither is looked at.
        Raises ValueError for a batch of fewer samples than M, and where ranks do not agree; ScheduleError for a
        schedule that is wrong.
        """
        todo = self._plan(M)
        self._begin(todo, M, inputs, targets)
        for action, over in zip(todo.actions, todo.over, strict=True):
            self._over = over
            getattr(self, METHODS[action.kind])(action)
        self._post.end()
        self.ties.end()
        return [self.losses[m] for m in range(M)] if self.last_stage else None

    def forward(self, action: Action) -> None:
        """F: receive, compute, send."""
        part = self._shape.part(self.stage, action.chunk)
        inputs = (
            self.inputs[action.micro]
            if part == 0
            else self._take(Item("a", action.micro, part - 1))
        )
        start = self.comm.now()
        kept = self.kept[action[1:]] = self._run(action, part, inputs)
        self.peak = max(self.peak, len(self.kept))
        outputs, kept.outputs = kept.outputs, ()
        if part == self.last:
            self.losses[action.micro] = outputs[0].detach()
        self.spans.append((action, start, self.comm.now()))
        if part < self.last:
            self._post.put(Item("a", action.micro, part), outputs, kept.wanted)

    def backward(self, action: Action) -> None:
        """B: receive the outputs' gradients, compute the inputs' and the weights', send the inputs'."""
        self._back(action, Kept.backward)
        del self.kept[action[1:]]

    def input(self, action: Action) -> None:
        """I: the same without the weights'."""
        self._back(action, Kept.input)

    def weight(self, action: Action) -> None:
        """W: the weights' gradients that I has left. No message."""
        start = self.comm.now()
        self.kept.pop(action[1:]).weight()
        self.spans.append((action, start, self.comm.now()))

    def update(self, action: Action) -> None:
        """U: the optimizer's step. Here the caller does it, after the pipeline's."""
        raise ValueError(f"{action}: a pipeline with a flush has no updates within a step")

    def module(self, action: Action) -> Callable:
        """What computes this action's forward."""
        return self.chunks[action.chunk]

    def share(self, micro: int) -> float:
        """What a micro-batch's loss is multiplied by: its share of the batch."""
        return self._shares[micro]

    def check(self, all_lists: list[list[Action]], shape: Shape) -> None:
        """Raise ScheduleError unless these lists are a schedule."""
        validate(all_lists, shape.S, shape.M, shape.v, place=shape.place)

    def forget(self) -> None:
        """What was known of messages' shapes is told again. Call it on every rank when a model has changed: parts of it
        were frozen, or return other shapes for the same batch."""
        self._post.forget()

    def _plan(self, M: int) -> Plan:
        """This stage's list and messages for M micro-batches, checked the first time."""
        if M not in self._plans:
            shape, every = (
                self._shape._replace(M=M).checked(),
                lists(self.schedule, self.comm.size, M),
            )
            self.check(every, shape)
            self._plans[M] = plan(every, shape, self.stage)
        return self._plans[M]

    def _begin(self, todo: Plan, M: int, inputs, targets) -> None:
        self.kept: dict[tuple[int, int], Kept] = {}
        self.losses: dict[int, Tensor] = {}
        self.peak = 0
        self.spans = []
        self._over = []
        self.inputs = self._cut(inputs, M, "inputs", self.first_stage)
        self.targets = self._cut(targets, M, "targets", self.last_stage)
        number, samples = self._post.announce(self.inputs, M)
        if self.last_stage:
            if self.loss_fn is None:
                raise ValueError(
                    f"stage {self.stage} has the last part of the model: it needs a loss_fn"
                )
            self._shares, here = shares(self.targets), sum(len(part[0]) for part in self.targets)
            if here != samples:
                raise ValueError(
                    f"the first stage was given {samples} samples, the last {here} targets"
                )
        self.ties.begin()
        self._post.begin(todo, self._shape._replace(M=M), number)

    @staticmethod
    def _cut(batch, M: int, what: str, mine: bool):
        if mine and batch is None:
            raise ValueError(
                f"{what} are missing: the {'first' if what == 'inputs' else 'last'} stage needs them"
            )
        return micro_batches(batch, M, what) if mine else None

    def _run(self, action: Action, part: int, inputs: Sequence[Tensor]) -> Kept:
        """The forward of one part, with its loss behind the last one."""

        def run(module: Callable, *xs: Tensor) -> tuple[Tensor, ...]:
            y = module(*xs)
            if part < self.last:
                return several(y)
            target = self.targets[action.micro]
            loss = self.loss_fn(y, target[0] if len(target) == 1 else target)
            if loss.dim():
                raise ValueError(
                    f"loss_fn gave {describe(loss)}: it must be the mean of a micro-batch, one number"
                )
            return (loss,)

        module = self.module(action)
        if self.recompute:
            return Recomputed(lambda *xs: run(module, *xs), inputs, self.chunks[action.chunk])
        return Kept(lambda *xs: run(module, *xs), inputs)

    def _back(self, action: Action, half: Callable) -> None:
        """A backward, or its first half: receive, compute, send."""
        kept = self.kept[action[1:]]
        part = self._shape.part(self.stage, action.chunk)
        if part == self.last:
            loss = self.losses[action.micro]
            grads = [torch.full_like(loss, self.share(action.micro))] * sum(kept.wanted)
        else:
            grads = self._take(Item("g", action.micro, part + 1))
        start = self.comm.now()
        found = half(kept, grads)
        self.spans.append((action, start, self.comm.now()))
        if part:
            self._post.put(Item("g", action.micro, part), found, [False] * len(found))

    def _take(self, item: Item) -> list[Tensor]:
        """Receive; then the sends that are over for sure let go of their memory."""
        tensors = self._post.take(item)
        for edge, micro in self._over:
            self._post.free(edge, micro)
        return tensors
