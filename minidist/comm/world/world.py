"""Ranks inside the notebook: deterministic, on a virtual clock, traced, with deadlocks explained.

    world = World(4)
    results = world.run(program, *args)     # program(comm, *args) on each rank
    world.time, world.trace                 # virtual seconds; who sent what to whom, when

    World(64, cluster=Cluster.dgx_h100(nodes=8))

Without a cluster every link is alike: a message of N bytes takes alpha + N·beta seconds. Sends are rendezvous
by default: "everyone sends, then receives" is a `Deadlock` here, raised at once. What is posted (`isend`, `irecv`)
matches as in MPI, in whatever order a rank posts it or waits for it; with `ordered` it starts in posting order, and
what would hang on an NCCL stream without groups is a `Deadlock`, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

from ... import arguments
from ..base import Comm, Deadlock, Link, Recv, Send, Work
from ..charge.charge import ModelledHost
from ..cluster import Cluster
from ..cluster.hardware import ends
from ..program import (
    Unchanged,
    caller,
    check_seed,
    copied,
    named,
    never_received,
    own_random,
    refuse_changed,
    seed_of,
    whole,
)
from ..trace import Results, Trace
from .clock import Clock, Ended
from .garbage import aside
from .meter import Meter, NoMeter
from .posted import Job, WorldWork
from .wires import Wires


class World:
    """`n` ranks on a virtual clock.

    n: number of ranks.  alpha: seconds a message takes to start (5e-6).  beta: seconds per byte (1 / 50e9).
    cluster: instead of the two; rank r sits on its r-th place.
    meter: charge what ranks compute to the clock, by the cluster's device, and follow their memory (the trace's
    `memory`); None: if the cluster has a device. Without a device computing takes no time.
    rendezvous: a send starts only when its receive is posted (False: it leaves at once).
    ordered: what a rank posts on one channel starts when all that it posted before has finished, and what belongs
    together must be a `batch`: an NCCL stream without groups. False: all that is posted may match at once, as in MPI.
    seed: of each rank's random numbers.  device: "cpu", "meta" (no data, any size) or "cuda".
    on_failure: "end" the other ranks when one raises, or "continue"; a rank that waits for a dead one
    then gets PeerLost, and the dead one's result is its exception.
    Raises ValueError for n < 1, for more ranks than the cluster has, for a negative time, for links given twice, and
    for what is of another kind than said here.
    """

    def __init__(
        self,
        n: int,
        alpha: float | None = None,
        beta: float | None = None,
        rendezvous: bool = True,
        seed: int = 0,
        device: str = "cpu",
        on_failure: str = "end",
        cluster: Cluster | None = None,
        meter: bool | None = None,
        ordered: bool = False,
    ):
        n = check_runner(n, on_failure)
        arguments.flags(rendezvous=rendezvous, ordered=ordered)
        if meter is not None:
            arguments.flags(meter=meter)
        if cluster is None:
            alpha, beta = 5e-6 if alpha is None else alpha, 1 / 50e9 if beta is None else beta
            cluster = Cluster.uniform(n, alpha, beta)
        elif alpha is not None or beta is not None:
            raise ValueError(
                f"a cluster has links of its own, and alpha={alpha}, beta={beta} were given, too"
            )
        if not isinstance(cluster, Cluster):
            raise ValueError(
                f"a cluster is a Cluster, such as Cluster.dgx_h100(nodes=2), not {cluster!r}"
            )
        if n > cluster.size:
            raise ValueError(
                f"{n} ranks do not fit on the cluster {cluster.name!r}, which has room for {cluster.size}"
            )
        self.n = n
        self.alpha = alpha
        self.beta = beta
        self.cluster = cluster
        self.rendezvous = rendezvous
        self.ordered, self.on_failure = ordered, on_failure
        self.seed, self.device = check_seed(seed), arguments.device(device)
        self.meter = cluster.device is not None if meter is None else meter
        self.time, self.trace = 0.0, Trace(n)

    def run(self, program: Callable, *args, **kwargs) -> Results:
        """Run `program(comm, *args, **kwargs)` on each rank; each gets its own copy of the arguments.

        Returns the ranks' results in rank order, with `.time` and `.trace`. Raises the first exception
        of a rank (its `rank` attribute names it), or Deadlock; nothing is left running either way. ValueError for
        a program that has changed a value of the notebook which it reaches otherwise than as an argument.
        """
        program, args, kwargs = whole(program, args, kwargs)
        reached = Unchanged(program, *args, *kwargs.values())
        copies = [copied(args, kwargs) for _ in range(self.n)]
        run = _Run(self)
        self.trace = run.trace
        with own_random(self.seed), aside(self.n), run.meter, run.clock:
            for rank, arguments in enumerate(copies):
                run.start(rank, program, *arguments)
            del copies
            run.clock.run()
        run.trace.sort()  # not every transfer waits until the clock has come to it
        self.time = max(f.time for f in run.clock.fibers)
        if run.clock.error is not None:
            raise run.clock.error from run.cause()
        if self.on_failure == "end" and run.wires.unread():
            raise never_received(run.wires.unread())
        if not run.failed:
            refuse_changed(reached.changed())
        return Results(run.results, self.trace, self.time)


class _Run:
    """One run of a World: its clock, its wires, its results."""

    def __init__(self, world: World):
        self.world, self.n = world, world.n
        self.clock = Clock(world.n, lambda rank: seed_of(world.seed, rank), world.device)
        self.trace = Trace(world.n)
        # posted, not yet waited for
        self.open: list[dict[WorldWork, None]] = [{} for _ in range(world.n)]
        self.wires = Wires(
            self.clock,
            self.trace,
            world.n,
            world.cluster,
            world.rendezvous,
            world.ordered,
            self.open,
        )
        self.meter = (Meter if world.meter else NoMeter)(
            self.clock, self.trace, world.cluster, world.device.type
        )
        self.steady = _Steady(self.clock)
        self.host = ModelledHost("meta" if world.device.type == "meta" else "cpu")
        self.results: list = [None] * world.n
        self.failed = False  # whether a rank has raised
        # by channel: what ranks keep that is the same for all of them
        self.alike: dict[str, dict] = {}

    def start(self, rank: int, program: Callable, args: tuple, kwargs: dict) -> None:
        comm = WorldComm(self, range(self.n), rank, "main")
        self.meter.given(rank, args, kwargs)
        self.clock.spawn(rank, "main", lambda: self._rank(rank, comm, program, args, kwargs))

    def _rank(
        self, rank: int, comm: WorldComm, program: Callable, args: tuple, kwargs: dict
    ) -> None:
        try:
            # Ranks on one GPU: backward must run in the rank's own thread for its hooks to communicate.
            with (
                self.meter.charged(),
                torch.autograd.set_multithreading_enabled(self.world.device.type != "cuda"),
            ):
                self.results[rank] = program(comm, *args, **kwargs)
                while self.open[rank]:  # nothing that was posted is lost
                    next(iter(self.open[rank])).wait()
        except Ended:
            raise
        except BaseException as error:
            error = named(error, rank, self.n)
            self.failed = True
            if self.world.on_failure == "end":
                self.clock.fail(error)
            else:
                self.results[rank] = error
                self.wires.lost(rank, f"it raised {type(error).__name__}: {error}")
                for fiber in self.clock.fibers:
                    fiber.idle |= fiber.rank == rank  # what its lanes wait for is nobody's concern

    def cause(self) -> BaseException | None:
        """What a Deadlock may come from: the exception of something posted that has not been raised."""
        error = self.clock.error
        works = [w for works in self.open for w in works]
        works += [f.waits for f in self.clock.fibers if isinstance(f.waits, WorldWork)]
        unseen = [w.error for w in works if w.error is not None]
        return unseen[0] if unseen and isinstance(error, Deadlock) else error.__cause__


class WorldComm(Comm):
    """A rank's view of a World, or of a part of it; `ranks` are the group's ranks in the World."""

    def __init__(self, run: _Run, ranks: Sequence[int], rank: int, channel: str):
        self._run = run
        self._ranks = ranks
        self._name = channel
        self.members = tuple(ranks)
        self.rank = rank
        self.size = len(ranks)
        self.device = run.world.device
        self.host = run.host
        self._stream, self._open = (
            run.wires.stream(channel, ranks, ranks[rank]),
            run.open[ranks[rank]],
        )
        self._lanes: dict[int, _Lane] = {}
        self._alike = run.alike.setdefault(channel, {})
        self.steady = run.steady

    def _post_after(self, ops: Sequence[Send | Recv], after: Work) -> Work:
        return self._post(ops, after=after)

    def _post(
        self, ops: Sequence[Send | Recv], waited: bool = False, after: WorldWork | None = None
    ) -> Work:
        run, stream = self._run, self._stream
        clock = run.clock
        if clock.ending:
            raise Ended
        if waited:
            work = WorldWork(clock, len(ops), None, stream)
        else:
            work = WorldWork(clock, len(ops), self._open, stream)
            work.where = caller()  # while it waits, the fiber itself tells
        work.call = self.call
        run.wires.post(stream, ops, work, after)
        return work

    def _subgroup(self, ranks: list[int], name: str) -> Comm:
        return WorldComm(
            self._run,
            [self._ranks[r] for r in ranks],
            ranks.index(self.rank),
            f"{self._name}/{name}",
        )

    def _abandon(self, call: tuple[int, str]) -> None:
        for work in list(self._open):
            if work.stream is self._stream and work.call == call:
                del self._open[work]
                self._run.wires.abandon(self._stream, work)

    def stream(self, fn: Callable, *args, lane: int = 0) -> Work:
        self._run.clock.check()
        if lane not in self._lanes:
            channel = f"{self._name}/lane {lane}"
            comm = WorldComm(self._run, self._ranks, self.rank, channel)
            self._lanes[lane] = _Lane(self._run, self._ranks[self.rank], comm, f"lane {lane}")
        return self._lanes[lane].put(fn, args)

    def link(self, dst: int, src: int | None = None) -> Link:
        src, dst = ends(self, dst, src)
        return self._run.world.cluster.link(self._ranks[src], self._ranks[dst])

    def now(self) -> float:
        self._run.clock.check()
        return self._run.clock.current.time


class _Steady:
    """`Comm.steady` in a World."""

    def __init__(self, clock: Clock):
        self._clock = clock

    def __enter__(self) -> None:
        self._clock.steady(1)

    def __exit__(self, *exception) -> None:
        self._clock.steady(-1)


class _Lane:
    """A fiber that does a rank's `stream` jobs one after the other."""

    def __init__(self, run: _Run, rank: int, comm: WorldComm, name: str):
        self.run = run
        self.rank = rank
        self.comm = comm
        self.jobs: deque = deque()
        self.fiber = run.clock.spawn(rank, name, self._body, run.clock.current.time)
        self.fiber.idle = False

    def put(self, fn: Callable, args: tuple) -> WorldWork:
        work = Job(
            self.run.clock,
            self.run.open[self.rank],
            f"a stream job, {getattr(fn, '__name__', 'job')}",
        )
        self.jobs.append((fn, args, work))
        if self.fiber.idle:
            self.fiber.idle = False
            self.run.clock.wake(self.fiber, self.run.clock.current.time)
        return work

    def _body(self) -> None:
        while True:
            while not self.jobs:
                self.fiber.idle = True
                self.run.clock.block("its next job")
            fn, args, work = self.jobs.popleft()
            # its rank may have computed on, and put it later
            self.fiber.time = max(self.fiber.time, work.posted)
            error = None
            try:
                with self.run.meter.charged():
                    work.result = fn(self.comm, *args)
            except Ended:
                raise
            except BaseException as caught:
                error = caught
            work.finish(self.fiber.time, error)


def check_runner(n: int, on_failure: str) -> int:
    """The arguments that every runner has in common. Returns the number of ranks."""
    if not isinstance(on_failure, str) or on_failure not in ("end", "continue"):
        raise ValueError(f'on_failure is "end" or "continue", not {on_failure!r}')
    return arguments.whole(n, "a run has at least 1 rank", 1)
