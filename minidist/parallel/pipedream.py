"""PipeDream: a pipeline without a flush. Each stage updates its weights after every backward and never waits.

    pipeline = PipeDream(part, comm, lambda p: SGD(p, lr=0.1), loss_fn)   # `part`: this rank's stage
    losses = pipeline.run(batches)                                        # each (x, y) is a micro-batch

    stage 0  F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 …       F1 used version 0 of the weights, U0 made version 1: B1 must go
    stage 1     F0 B0 U0 F1 B1 U1 F2 B2 U2 …       back through version 0, which was stashed

For a micro-batch number i of a long run, w(v) being all stages' weights of version v:
    stashing        stage s uses its version i − (S − 1 − s) in forward and backward
    vertical sync   all stages use version i − (S − 1): w(t+1) = w(t) − lr·∇f(w(t − S + 1))
    2BW             m micro-batches together, two versions: w(t+1) = w(t) − lr·∇f(w(t − 1))

The bubble is that of the start and the end, for all of the run; the price is memory (S − s versions of stage s, S with
vertical sync, 2 with 2BW) and staleness. A naive way that works does not exist: an optimizer's step beside a graph that
is still to go back is an error, or silently wrong (`Overwritten`).
Sources: Narayanan et al. 2019, "PipeDream", section 3.3; Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel
DNN Training", section 3.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from ..arguments import function
from ..comm.base import Comm
from .pipeline import Pipeline, Plan
from .schedules import Action, Lists, Schedule, Shape, pipedream, pipedream_2bw
from .validate import ScheduleError, forward_versions, validate

# ------------------------------------------------------------
# The weights of a stage in several versions: the newest, and every older one that a micro-batch still needs.
#
# Autograd's graph of a micro-batch holds the weights that its forward used, and an optimizer changes weights in place.
# Three ways to bring the two together, of which the last is taken:
#
#     the parameters themselves in the graph   backward after a step: an error, "modified by an inplace operation"
#     p moves to a copy before the step        nn.Linear's graph keeps the old values, by a view; LayerNorm's and a
#                                              convolution's hold p, and backward reads the new values: no error
#     a tensor for each version in the graph   it shares memory with p until p moves, and is not p
#
# A version that nobody will use again is changed in place: the last stage of PipeDream never copies. Cost: versions·N
# bytes for a stage of N, and N bytes copied at an update that keeps. FLOPs: none.
# Invariant: the newest version is what the module holds. Source: Narayanan et al. 2019, "PipeDream", section 3.3.


class Versions:
    """The trained parameters of `module`, by version; version 0 is there.

    newest: number of updates so far.  most, most_bytes: the most versions held since `begin`, and their memory.

    >>> import torch
    >>> from minidist.parallel.pipedream import Versions
    >>> layer = torch.nn.Linear(2, 1)
    >>> versions = Versions(layer)
    >>> versions.begin({0: 1, 1: 1})  # version 0 will be used once more, and version 1 once
    >>> versions.advance(lambda: layer.weight.data.zero_())
    >>> versions.held, versions[1]["weight"]
    ([0, 1], tensor([[0., 0.]], requires_grad=True))
    >>> versions.done(0)
    >>> versions.held
    [1]
    """

    def __init__(self, module: nn.Module):
        self.module, self.newest = module, 0
        self.begin({})

    def begin(self, uses: Mapping[int, int]) -> None:
        """uses: for each version, old and to come, how often `done` will be called of it."""
        self._uses = Counter(uses)
        self.parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self._tensors = {self.newest: self._seen()}
        self.most = self.most_bytes = 0
        self._count()

    def __getitem__(self, version: int) -> dict[str, Tensor]:
        """{name: tensor} of a version, for `torch.func.functional_call`; gradients arrive in them, leaves."""
        if version not in self._tensors:
            raise ValueError(f"version {version} of the weights is not held, only {self.held}")
        return self._tensors[version]

    @property
    def held(self) -> list[int]:
        """The numbers of the versions held, the newest last."""
        return sorted(self._tensors)

    @property
    def nbytes(self) -> int:
        """Memory of all versions held, the module's own among them; shared memory counts once."""
        sizes = {
            t.untyped_storage()._cdata: t.nbytes
            for tensors in self._tensors.values()
            for t in tensors.values()
        }
        return sum(sizes.values())

    def done(self, version: int) -> None:
        """One use of a version is over; an old one goes with its last use."""
        self._uses[version] -= 1
        self._free()

    def advance(self, step: Callable[[], object]) -> None:
        """Make the next version: `step` changes the module's parameters in place, and no version held."""
        if self._uses[self.newest] > 0:
            self._part()
        step()
        self.newest += 1
        self._tensors[self.newest] = self._seen()
        self._free()
        self._count()

    def _part(self) -> None:
        """Move the parameters to memory of their own; what has been seen of them keeps the old."""
        for p in self.parameters.values():
            p.data = p.data.clone()

    def _seen(self) -> dict[str, Tensor]:
        """The parameters as leaves of their own, in the same memory. `.data`, because what `detach` gives shares the
        counter by which autograd notices a step in place: also of the copy that p has moved to."""
        return {name: p.data.requires_grad_() for name, p in self.parameters.items()}

    def _free(self) -> None:
        for version in self.held:
            if version != self.newest and self._uses[version] <= 0:
                del self._tensors[version]

    def _count(self) -> None:
        self.most, self.most_bytes = (
            max(self.most, len(self._tensors)),
            max(self.most_bytes, self.nbytes),
        )


class Overwritten(Versions):
    """WRONG, to be seen failing: one memory for all versions. A backward after an update reads the newest weights,
    beside activations that older ones made, and autograd does not notice: its counters look at other tensors."""

    def __getitem__(self, version: int) -> dict[str, Tensor]:
        return self._tensors[self.newest]

    def advance(self, step: Callable[[], object]) -> None:
        step()
        self._tensors = {self.newest + 1: self._tensors[self.newest]}
        self.newest += 1


# ------------------------------------------------------------
# The pipeline: the executor of `pipeline`, whose forwards and backwards run with a version, and which updates.

Factory = Callable[[list[nn.Parameter]], Optimizer]


class PipeDream(Pipeline):
    """Stage `comm.rank` of an asynchronous pipeline.

    module: this stage, with weights of its own (none tied to another stage's).  optimizer(parameters): any of
    torch.optim; it is stepped at every U of the list.  loss_fn(output, target): on the last stage.
    vertical: vertical sync, all stages use for a micro-batch the version that stage 0 had when it entered.
    schedule(stage, S, M): lists with U's, also of one's own.  recompute: as for `Pipeline`.
    wrong_no_stash: True keeps no old version. Backward then uses weights that its forward did not: WRONG, to be seen.

    staleness[i]: how many updates of this stage lay between the weights that micro-batch i of the last run used and
    those that its gradient was applied to.  versions: see `Versions`; versions.most and versions.most_bytes are the
    last run's.  optimizer: this stage's; None if it has nothing to train.
    Between two runs the pipeline is empty; versions are counted on.
    Raises ValueError for vertical sync without stashing.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import PipeDream
    >>> def program(comm):
    ...     part = mlp([4, 8, 2])[2 * comm.rank : 2 * comm.rank + 2]
    ...     pipeline = PipeDream(part, comm, lambda p: torch.optim.SGD(p, lr=0.1), F.mse_loss)
    ...     pipeline.run([(torch.ones(1, 4), torch.zeros(1, 2))] * 4)
    ...     return pipeline.staleness, pipeline.versions.most
    >>> World(2).run(program)  # gradients of stage 0 come one update late: it keeps two versions
    [([0, 1, 1, 1], 2), ([0, 0, 0, 0], 1)]
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
        wrong_no_stash: bool = False,
    ):
        if vertical and wrong_no_stash:
            raise ValueError(
                "vertical sync means old versions, and wrong_no_stash keeps none: choose one of them"
            )
        super().__init__(module, comm, schedule, loss_fn, recompute)
        self.rule = "first" if vertical else "newest"
        self.group = 1  # micro-batches, whose mean gradient an update has
        self.versions = (Overwritten if wrong_no_stash else Versions)(module)
        trained = list(self.versions.parameters.values())
        make = function(optimizer, "optimizer is a function that makes one of parameters")
        self.optimizer = make(trained) if trained else None
        self.staleness: list[int] = []
        self._waiting: list[int] = []  # micro-batches of the next update

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
        """I: the inputs' gradients, with the weights of its F."""
        super().input(action)
        self.versions.done(self._used[action.micro])

    def weight(self, action: Action) -> None:
        """W: the weights' gradients, with the weights of its F."""
        with self._gathered(action):
            super().weight(action)

    def update(self, action: Action) -> None:
        """U: the gradients gathered since the last one, to the newest weights."""
        for micro in self._waiting:
            self.staleness[micro] = self.versions.newest - self._used[micro]
        self._waiting = []
        with self._timed(action):
            self.versions.advance(self._optimize)

    def module(self, action: Action) -> Callable:
        """This stage with the weights of a version."""
        tensors = self.versions[self._used[action.micro]]
        return lambda *xs: functional_call(self.chunks[0], tensors, xs)

    def share(self, micro: int) -> float:
        """Each update has the mean gradient of a group."""
        return 1 / self.group

    def check(self, every: Lists, shape: Shape) -> None:
        """Raise ScheduleError unless these lists are a schedule, in which every gradient is used."""
        # long: a World's ranks check it once
        key = "pipedream", self.rule, self.group, tuple(map(tuple, every))
        self.comm.keep(key, lambda: _check(every, shape, self.rule, self.group), alike=True)

    def _begin(self, plan: Plan, M: int, inputs, targets) -> None:
        super()._begin(plan, M, inputs, targets)
        used = forward_versions(plan.lists, self.rule, self.group)[self.stage]
        self._used = {micro: self.versions.newest + version for micro, version in used.items()}
        actions = plan.lists[self.stage]
        self.versions.begin(Counter(self._used[a.micro] for a in actions if a.kind in "FBIW"))
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

    >>> import torch
    >>> import torch.nn.functional as F
    >>> from minidist import World
    >>> from minidist.models import mlp
    >>> from minidist.parallel import PipeDream2BW
    >>> def program(comm):
    ...     part = mlp([4, 8, 2])[2 * comm.rank : 2 * comm.rank + 2]
    ...     pipeline = PipeDream2BW(part, comm, lambda p: torch.optim.SGD(p, lr=0.1), F.mse_loss)
    ...     pipeline.run([(torch.ones(1, 4), torch.zeros(1, 2))] * 6)
    ...     return pipeline.staleness
    >>> World(2).run(program)  # m = 2 micro-batches an update; the same delay on every stage
    [[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        optimizer: Factory,
        loss_fn: Callable | None = None,
        m: int | None = None,
        recompute: bool = False,
    ):
        m = comm.size if m is None else m
        pipedream_2bw(comm.rank, comm.size, m, m)  # m ≥ S
        schedule = partial(pipedream_2bw, m=m)
        super().__init__(module, comm, optimizer, loss_fn, schedule=schedule, recompute=recompute)
        self.rule, self.group = "2bw", m


def _check(every: Lists, shape: Shape, rule: str, group: int) -> None:
    validate(every, shape.S, shape.M, rule=rule, group=group)
    for stage, actions in enumerate(every):
        last = max(i for i, a in enumerate(actions) if a.kind in "BW")
        if not any(a.kind == "U" for a in actions[last:]):
            missing = Action("U", actions[last].micro)
            raise ScheduleError(
                stage, len(actions), missing, "the list ends without an update with this gradient"
            )
