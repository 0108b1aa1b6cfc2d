"""What trains a model that lies on a mesh: one step of it, whatever splits it.

Gradients are averaged over the data ranks, by ZeRO's stage:

    0 1    once a step, and Ψ are kept. At stage 0 while the last backward runs, if a rank has one chunk and whole
           backwards; else after it
    2 3    while the backward of each micro-batch runs: M times a step, but Ψ/n are kept. With v chunks v·M times at
           stage 2, where an optimizer averages all that it steps

Those of a parameter that two stages hold are summed over the two at the end of the step, each part where it is owned:
by the same data rank of both stages (`ShardedOptimizer`, tied).

Invariant: all ranks return the same loss, norm and logits, and replicas stay equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..collectives import all_reduce_, broadcast_
from ..split import uneven
from ..train.amp import LossScaler, Masters
from ..train.checkpoint import Piece, Saved, load, pieces
from ..train.optim import clip_grad_norm_, counted
from .pipeline import Pipeline, forward
from .pipeline.batches import micro_batches, shares
from .reducer import share
from .schedules import Action, lists
from .tensor import gather_from
from .zero import ShardedOptimizer


class Stages(Pipeline):
    """A pipeline whose parts compute within `around`, a context, and whose loss is scaled by `scaler`.

    quiet(action): a context for a backward.  after(): called when gradients of weights are there that came apart from
    the inputs'.
    """

    def __init__(self, *args, scaler: LossScaler, around: AbstractContextManager, **kwargs):
        super().__init__(*args, **kwargs)
        self.scaler, self.around = scaler, around
        self.quiet, self.after = (lambda action: nullcontext()), (lambda: None)

    def module(self, action: Action) -> Callable:
        chunk = super().module(action)

        def run(*inputs):
            with self.around:
                return chunk(*inputs)

        return run

    def backward(self, action: Action) -> None:
        with self.quiet(action):
            super().backward(action)

    def weight(self, action: Action) -> None:
        with self.quiet(action):
            super().weight(action)
        self.after()

    def share(self, micro: int) -> float:
        return super().share(micro) * self.scaler.get_scale()

    def actions(self, M: int) -> tuple[list[Action], bool]:
        """This stage's list, and whether backwards come in two halves, on any stage."""
        every = lists(self.schedule, self.comm.size, M)
        return every[self.stage], any(
            action.kind in "IW" for actions in every for action in actions
        )

    @property
    def shares(self) -> list[float]:
        """Of each micro-batch in the batch; on the last part's stage, after a step."""
        return self._shares if self.last_stage else []

    @property
    def end(self) -> int:
        """The stage of the last part."""
        return self._shape.stage(self.last)


class Engine:
    """`parallelize` makes one. All ranks call the same methods, with their data rank's part of the batch.

        loss = engine.step(x, y, max_norm=1.0)          # x, y: (b, T) token numbers, the same on its pp and tp ranks
        loss = engine.evaluate(x, y)                    # the same without a backward
        logits = engine.logits(x)                       # (b, T, V) on every rank

    `step` is `backward`, `clip`, `update`. A loss is the mean over all data ranks' samples, one number in float64, the
    same on all ranks.  weight: samples behind this data rank's part, given on all of them where they differ.

    module: this rank's chunks.  optimizer: with two `param_groups`, for schedulers; the second has no weight decay.
    pieces(), load(saved): for `train.checkpoint`, on this mesh or another.  scaler, compression: whose state is saved
    beside them.  rename(name): what a parameter of `module` is called in the whole model.
    """

    def __init__(
        self,
        module: nn.ModuleList,
        mesh,
        pipeline: Stages,
        optimizer: Optimizer,
        zero: int,
        data,
        vocab: int,
        micro_batches: int,
        rename: Callable[[str], str],
    ):
        self.module = module
        self.mesh = mesh
        self.pipeline = pipeline
        self.optimizer = optimizer
        self.zero = zero
        self.vocab = vocab
        self.micro_batches = micro_batches
        self.rename = rename
        self.scaler, self.compression = pipeline.scaler, getattr(data, "compression", None)
        self._data = [data] if zero < 3 else list(module)  # who averages
        # which ranks' gradients make a norm
        self._replica = mesh.group("pp", "tp") if zero == 0 else mesh.comm
        self._overlaps = self._arrange(data)

    def _arrange(self, data) -> bool:
        """Tell the pipeline which backwards average gradients. Returns whether that is the step's last one."""
        pipeline = self.pipeline
        mine, halves = pipeline.actions(self.micro_batches)
        overlaps = self.zero == 0 and not halves and pipeline.v == 1
        if self.zero == 3 and halves:
            raise ValueError(
                "ZeRO 3 frees a layer after 1 backward, and this schedule's come in 2 halves, I and W: "
                "take ZeRO 2, or a schedule of whole backwards"
            )
        if self.zero == 2 and halves:  # a W is many backwards, to be averaged once
            pipeline.after = data.average
        if self.zero < 2 + halves:
            pipeline.quiet = lambda action: (
                nullcontext() if overlaps and action == mine[-1] else data.no_sync()
            )
        return overlaps

    def step(
        self, x: Tensor, y: Tensor, max_norm: float | None = None, weight: float | None = None
    ) -> Tensor:
        """One batch: `backward`, `clip` if there is a limit, `update`. Returns the loss before it."""
        loss = self.backward(x, y, weight)
        if max_norm is not None:
            self.clip(max_norm)
        self.update()
        return loss

    def backward(self, x: Tensor, y: Tensor, weight: float | None = None) -> Tensor:
        """Gradients of the mean loss of the batch of all data ranks. Returns that loss."""
        for data in self._data:
            data.weight = weight
        losses = self.pipeline.step(self.micro_batches, x, y)
        if self.zero < 2 and not self._overlaps:
            self._data[0].average()
        return self._everywhere(losses and torch.stack(losses), self.pipeline.shares, weight)

    def _everywhere(
        self, losses: Tensor | None, shares: list[float], weight: float | None
    ) -> Tensor:
        """The mean over micro-batches and data ranks, from the last stage to all."""
        mean = torch.zeros((), dtype=torch.float64, device=self.mesh.comm.device)
        if losses is not None and weight != 0:
            mean = (losses.double() * losses.new_tensor(shares, dtype=torch.float64)).sum()
        if losses is not None:
            all_reduce_(self.mesh.dp, mean.mul_(share(self.mesh.dp, weight)))
        return broadcast_(self.mesh.pp, mean, self.pipeline.end)

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their norm over the whole model is at most `max_norm`. Returns what it was."""
        repeated, tp = self.pipeline.ties.repeated, self.mesh.tp
        self.scaler.unscale_(self.optimizer)
        if isinstance(self.optimizer, ShardedOptimizer):
            mine = counted(self.module, tp, repeated)
            return self.optimizer.clip_grad_norm_(max_norm, comm=self._replica, counted=mine)
        if isinstance(self.optimizer, Masters):
            self.optimizer.gradients()
        return clip_grad_norm_(self.module, max_norm, self._replica, tp, repeated)

    def update(self) -> None:
        """Step, unless fp16 has overflowed somewhere; drop the gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor, weight: float | None = None) -> Tensor:
        """The mean loss of a batch, as `backward` returns it, without dropout; nothing is kept."""
        count, losses = min(self.micro_batches, len(x)), []
        targets = micro_batches(y, count, "targets")
        for (part,), (target,) in zip(micro_batches(x, count, "inputs"), targets, strict=True):
            out = self._forward(part)
            losses += [] if out is None else [self.pipeline.loss_fn(out, target)]
        return self._everywhere(torch.stack(losses) if losses else None, shares(targets), weight)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Of all tokens of the vocabulary, (b, T, V), in float32 at least, on every rank; without dropout."""
        out, pp = self._forward(x), self.mesh.pp
        if out is not None:
            out = gather_from(out, self.mesh.tp, -1, uneven(self.vocab, self.mesh.tp.size))
        dtype = torch.promote_types(next(self.module.parameters()).dtype, torch.float32)
        whole = torch.empty(*x.shape, self.vocab, dtype=dtype, device=pp.device)
        return broadcast_(
            pp, whole if out is None else out.to(dtype).contiguous(), self.pipeline.end
        )

    def _forward(self, x: Tensor) -> Tensor | None:
        training = self.module.training
        self.module.eval()
        try:
            return forward(self.pipeline, x)
        finally:
            self.module.train(training)

    def pieces(self) -> list[Piece]:
        """What this rank has of the model and its optimizer, under the names of the serial ones."""
        return pieces(self.module, self.optimizer, self.rename)

    def load(self, saved: Saved) -> None:
        """Take over what was saved on any mesh, at any stage of ZeRO. On all ranks.

        ValueError where parameters have another dtype: at amp="O2" they are masters in ZeRO 3, elsewhere their halves.
        """
        load(saved, self.module, self.optimizer, self.rename)
