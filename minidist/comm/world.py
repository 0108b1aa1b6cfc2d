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

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from .. import arguments
from .base import Deadlock
from .clock import Clock, Ended
from .cluster import Cluster
from .meter import Meter, ModelledHost
from .program import (
    Unchanged,
    check_seed,
    copied,
    named,
    never_received,
    own_random,
    refuse_changed,
    seed_of,
    whole,
)
from .trace import Results, Trace
from .wires import Wires, WithoutRngSwap, WorldComm, WorldWork

# ------------------------------------------------------------
# What a large run does not look through for garbage, again and again: all that was there before it.


LARGE = 64  # ranks


@contextmanager
def frozen_gc(n: int) -> Iterator[None]:
    """While a run of `n` ranks makes its objects, Python's collector leaves those of the notebook alone, torch and
    matplotlib among them: a tenth of the time of 1,024 ranks. Who has frozen objects is left alone, too."""
    ours = n >= LARGE and not gc.get_freeze_count()
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


# ------------------------------------------------------------
# The World, and one run of it.


class World:
    """`n` ranks on a virtual clock.

    n: number of ranks.  alpha: seconds that a message takes to start (5e-6).  beta: seconds per byte (1 / 50e9).
    cluster: a cluster whose links replace alpha and beta; rank r sits in its r-th place.
    meter: charge the ranks' computation to the clock, at the speed of the cluster's device, and follow their memory
    (the trace's `memory`). None: do so if the cluster has a device. Without a device, computation takes no time.
    followed: the ranks whose memory and spans are recorded; None: all. The other ranks are charged all the same, and
    each costs a seventh less to simulate.
    rendezvous: a send starts only when its receive has been posted (False: it leaves at once).
    ordered: as on an NCCL stream without groups, an operation on a channel starts only when everything that the rank
    posted there before has finished, so operations that depend on each other must go into one `batch`. False: all
    posted operations may match at once, as in MPI.
    seed: seeds each rank's random numbers.  device: "cpu", "meta" (no data, so tensors of any size) or "cuda".
    on_failure: when one rank raises, "end" the others, or "continue": a rank that waits for the dead one then gets
    PeerLost, and the dead rank's result is its exception.
    Raises ValueError for n < 1, for more ranks than the cluster has, for a negative time, for a cluster together with
    alpha or beta, and for arguments of the wrong kind.

    After a run, `time` holds the virtual seconds until the last rank finished, and `trace` is a `Trace` of what
    happened.

    >>> import torch
    >>> from minidist import World
    >>> def program(comm):
    ...     if comm.rank == 0:
    ...         comm.send(torch.zeros(1000), dst=1)  # 4,000 bytes
    ...     elif comm.rank == 1:
    ...         comm.recv(torch.empty(1000), src=0)
    ...     return comm.now()
    >>> world = World(3, alpha=0.5, beta=0.001)
    >>> world.run(program)  # the last byte leaves at 4.0 and arrives at 4.5
    [4.0, 4.5, 0.0]
    >>> world.time, world.trace.messages(), world.trace.bytes_sent()
    (4.5, 1, 4000)
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
        followed: Iterable[int] | None = None,
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
        self.followed = check_followed(range(n) if followed is None else followed, n)
        self.time, self.trace = 0.0, Trace(n)

    def run(self, program: Callable, *args, **kwargs) -> Results:
        """Run `program(comm, *args, **kwargs)` on each rank; each gets its own copy of the arguments.

        Returns the ranks' results in rank order, with `.time` and `.trace`. Raises the first exception of a rank (its
        attribute `rank` says which one), or Deadlock, also when a message is never received; either way, no rank is
        left running. Raises ValueError if the program uses one of the notebook's modules, optimizers or tensors that
        require grad without getting it as an argument, or changes one of the notebook's values that it did not get as
        an argument; TypeError if it is not a function.

        >>> import torch
        >>> from minidist import World
        >>> def program(comm, x, factor=1):
        ...     x += factor * comm.rank  # the rank's own copy
        ...     return x.tolist()
        >>> x = torch.zeros(2)
        >>> World(3).run(program, x, factor=10)
        [[0.0, 0.0], [10.0, 10.0], [20.0, 20.0]]
        >>> x
        tensor([0., 0.])
        """
        program, args, kwargs = whole(program, args, kwargs)
        reached = Unchanged(program, *args, *kwargs.values())
        copies = [copied(args, kwargs) for _ in range(self.n)]
        run = _Run(self)
        self.trace = run.trace
        with own_random(self.seed), frozen_gc(self.n), run.meter or nullcontext(), run.clock:
            for rank, arguments in enumerate(copies):
                run.start(rank, program, *arguments)
            del copies
            run.clock.run()
        run.trace.sort()  # not every transfer waits until the clock has come to it
        self.time = max(f.time for f in run.clock.fibers)
        error = run.clock.error
        if error is not None:
            raise error from run.cause(error)
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
        self.meter = None
        # in here, what the running fiber computes is charged to it
        self.charged: Callable[[], AbstractContextManager] = nullcontext
        if world.meter:
            self.meter = Meter(
                self.clock, self.trace, world.cluster, world.device.type, world.followed
            )
            self.charged = self.meter.charged
        self.without_rng_swap = WithoutRngSwap(self.clock)
        self.host = ModelledHost("meta" if world.device.type == "meta" else "cpu")
        self.results: list = [None] * world.n
        self.failed = False  # whether a rank has raised
        # by channel: what ranks keep that is the same for all of them
        self.alike: dict[str, dict] = {}

    def start(self, rank: int, program: Callable, args: tuple, kwargs: dict) -> None:
        comm = WorldComm(self, range(self.n), rank, "main")
        if self.meter is not None:
            self.meter.ledgers[rank].existing((args, kwargs))
        self.clock.spawn(rank, "main", lambda: self._rank(rank, comm, program, args, kwargs))

    def _rank(
        self, rank: int, comm: WorldComm, program: Callable, args: tuple, kwargs: dict
    ) -> None:
        try:
            # Ranks on one GPU: backward must run in the rank's own thread for its hooks to communicate.
            with (
                self.charged(),
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

    def cause(self, error: BaseException) -> BaseException | None:
        """What a Deadlock may come from: the exception of something posted that has not been raised."""
        works = [w for works in self.open for w in works]
        works += [f.waits for f in self.clock.fibers if isinstance(f.waits, WorldWork)]
        unseen = [w.error for w in works if w.error is not None]
        return unseen[0] if unseen and isinstance(error, Deadlock) else error.__cause__


def check_runner(n: int, on_failure: str) -> int:
    """The arguments that every runner has in common. Returns the number of ranks."""
    if not isinstance(on_failure, str) or on_failure not in ("end", "continue"):
        raise ValueError(f'on_failure is "end" or "continue", not {on_failure!r}')
    return arguments.whole(n, "a run has at least 1 rank", 1)


def check_followed(ranks: Iterable[int], n: int) -> frozenset[int]:
    """`ranks`, each of them one of n. ValueError for another."""
    for rank in ranks:
        if not 0 <= arguments.whole(rank, "what is followed is a rank, a whole number") < n:
            raise ValueError(f"rank {rank} cannot be followed: there are {n} ranks, 0 to {n - 1}")
    return frozenset(ranks)
