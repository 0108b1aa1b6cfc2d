"""PipeDream: a pipeline without a flush. Each stage updates its weights after every backward and never waits.

    pipeline = PipeDream(part, comm, lambda p: SGD(p, lr=0.1), loss_fn)   # `part`: this rank's stage
    losses = pipeline.run(batches)                                        # each (x, y) is a micro-batch

    stage 0  F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 …       F1 used version 0 of the weights, U0 made version 1: B1 must go
    stage 1     F0 B0 U0 F1 B1 U1 F2 B2 U2 …       back through version 0, which was stashed

For a micro-batch number i of a long run, w(v) being all stages' weights of version v:
    stashing        stage s uses its version i − (S − 1 − s) in forward and backward
    vertical sync   all stages use version i − (S − 1): w(t+1) = w(t) − lr·∇f(w(t − S + 1))
    2BW             m micro-batches together, two versions: w(t+1) = w(t) − lr·∇f(w(t − 1))

The bubble is that of the start and the end, for all of the run; the price is memory (`formulas`) and staleness.
Sources: Narayanan et al. 2019, "PipeDream", section 3.3; Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel
DNN Training", section 3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from ...comm.base import Comm
from ..pipeline import Pipeline
from ..schedules import (
    Action,
    ScheduleError,
    forward_versions,
    lists,
    pipedream,
    pipedream_2bw,
    validate,
)
from ..schedules.action import Schedule
from ..schedules.flow import Shape
from .versions import Overwritten, Versions

Factory = Callable[[list[nn.Parameter]], Optimizer]


class PipeDream(Pipeline):
    """Stage `comm.rank` of an asynchronous pipeline.

    module: this stage, with weights of its own (none tied to another stage's).  optimizer(parameters): any of
    torch.optim; it is stepped at every U of the list.  loss_fn(output, target): on the last stage.
    vertical: vertical sync, all stages use for a micro-batch the version that stage 0 had when it entered.
    schedule(stage, S, M): lists with U's, also of one's own.  recompute, ahead: as for `Pipeline`.
    wrong_no_stash: True keeps no old version. Backward then uses weights that its forward did not: WRONG, to be seen.

    staleness[i]: how many updates of this stage lay between the weights that micro-batch i of the last run used and
    those that its gradient was applied to.  versions: see `Versions`; versions.most and versions.most_bytes are the
    last run's.  optimizer: this stage's; None if it has nothing to train.
    Between two runs the pipeline is empty; versions are counted on.
    Raises ValueError for vertical sync without stashing.
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        optimizer: Factory,
        loss_fn: Callable | None = None,
        vertical: bool = False,
        schedule: Schedule = pipedream,
        recompute: bool = False,
        ahead: int = 1,
        wrong_no_stash: bool = False,
    ):
        if vertical and wrong_no_stash:
            raise ValueError(
                "vertical sync means old versions, and wrong_no_stash keeps none: choose one of them"
            )
        super().__init__(module, comm, schedule, loss_fn, recompute, ahead=ahead)
        self.rule, self.group = "first" if vertical else "newest", None
        self.versions = (Overwritten if wrong_no_stash else Versions)(module)
        trained = list(self.versions.parameters.values())
        self.optimizer = optimizer(trained) if trained else None
        self.staleness: list[int] = []

    def run(self, batches: Sequence[tuple]) -> list[Tensor] | None:
        """Train on a stream of micro-batches, (inputs, targets) each; one pass, without a flush.

        The first stage looks at the inputs, the last at the targets, the others only count them. Returns the losses
        of the micro-batches on the last stage (each at the weights that its forward used), else None.
        Errors: as `Pipeline.step`, and ScheduleError for a gradient that no U uses.
        """
        parts = list(zip(*batches, strict=True)) or [(), ()]
        return self.step(len(parts[0]), list(parts[0]), list(parts[1]))

    def forward(self, action: Action) -> None:
        """F: with the version that the rule names."""
        super().forward(action)
        self.versions.done(self._used[action.micro])

    def backward(self, action: Action) -> None:
        """B: with the weights of its F."""
        with self._gathered(action):
            super().backward(action)

    def input(self, action: Action) -> None:
        """I: likewise."""
        super().input(action)
        self.versions.done(self._used[action.micro])

    def weight(self, action: Action) -> None:
        """W: likewise."""
        with self._gathered(action):
            super().weight(action)

    def update(self, action: Action) -> None:
        """U: the gradients gathered since the last one, to the newest weights."""
        start = self.comm.now()
        for micro in self._waiting:
            self.staleness[micro] = self.versions.newest - self._used[micro]
        self._waiting = []
        self.versions.advance(self._optimize)
        self.spans.append((action, start, self.comm.now()))

    def module(self, action: Action) -> Callable:
        """This stage with the weights of a version."""
        tensors = self.versions[self._used[action.micro]]
        return lambda *xs: functional_call(self.chunks[0], tensors, xs)

    def share(self, micro: int) -> float:
        """Each update has one micro-batch's mean gradient."""
        return 1.0

    def check(self, all_lists: list[list[Action]], shape: Shape) -> None:
        """Raise ScheduleError unless these lists are a schedule, in which every gradient is used."""
        # long: a World's ranks check it once
        key = "pipedream", self.rule, self.group, tuple(map(tuple, all_lists))
        self.comm.keep(key, lambda: _check(all_lists, shape, self.rule, self.group), alike=True)

    def _begin(self, todo, M: int, inputs, targets) -> None:
        super()._begin(todo, M, inputs, targets)
        rows = forward_versions(lists(self.schedule, self.comm.size, M), self.rule, self.group)
        self._used = {
            micro: self.versions.newest + version for micro, version in rows[self.stage].items()
        }
        self.versions.begin(Counter(self._used[a.micro] for a in todo.actions if a.kind in "FBIW"))
        self.staleness, self._waiting = [0] * M, []

    @contextmanager
    def _gathered(self, action: Action) -> Iterator[None]:
        """What comes out of a backward is in its version's tensors; it is added up in the module's parameters."""
        version = self._used[action.micro]
        pairs = [(t, self.versions.parameters[name]) for name, t in self.versions[version].items()]
        for tensor, p in pairs:
            tensor.grad = p.grad
        yield
        for tensor, p in pairs:
            p.grad, tensor.grad = tensor.grad, None
        self._waiting.append(action.micro)
        self.versions.done(version)

    def _optimize(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()


class PipeDream2BW(PipeDream):
    """PipeDream with double-buffered weights: an update for every `m` micro-batches, two versions at most.

    m: by default S; the mean of their gradients, each micro-batch counting the same.  All else as in `PipeDream`.
    Raises ValueError for m < S, and `run` for a stream whose length m does not divide.
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        optimizer: Factory,
        loss_fn: Callable | None = None,
        m: int | None = None,
        recompute: bool = False,
        ahead: int = 1,
    ):
        m = comm.size if m is None else m
        pipedream_2bw(comm.rank, comm.size, m, m)  # m ≥ S
        schedule = partial(pipedream_2bw, m=m)
        super().__init__(
            module, comm, optimizer, loss_fn, schedule=schedule, recompute=recompute, ahead=ahead
        )
        self.rule, self.group = "2bw", m

    def share(self, micro: int) -> float:
        """The update has the mean of m gradients."""
        return 1 / self.group


def _check(all_lists: list[list[Action]], shape: Shape, rule: str, group: int | None) -> None:
    validate(all_lists, shape.S, shape.M, rule=rule, group=group)
    for stage, actions in enumerate(all_lists):
        last = max(i for i, a in enumerate(actions) if a.kind in "BW")
        if not any(a.kind == "U" for a in actions[last:]):
            missing = Action("U", actions[last].micro)
            raise ScheduleError(
                stage, len(actions), missing, "the list ends without an update with this gradient"
            )
