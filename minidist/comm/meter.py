"""What a World's run needs of the meter: a ledger for each rank, a Charge for each of its fibers, and their end."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count

from .charge import KINDS, Charge, Watch, _Outermost, roofline
from .clock import Clock, Fiber
from .cluster import Cluster, HostPart
from .costs import HOST, Cost, Ledger, Operator
from .trace import OnHost, Trace


class Meter:
    """Charges the operators of all ranks of a run on `cluster`, and follows their memory on devices of type `where`.

    A cluster without a device charges no time. When it is left, `trace.memory` holds each rank's timeline,
    `trace.host` what it had on its host, if anything.
    """

    def __init__(self, clock: Clock, trace: Trace, cluster: Cluster, where: str):
        self.clock = clock
        self.trace = trace
        self.cluster = cluster
        self.where = where
        self.ledgers = [Ledger(functools.partial(self._now, rank)) for rank in range(trace.n)]
        self._done = [count() for _ in range(trace.n)]  # operators of each rank
        self._outermost, self._watch = _Outermost(), Watch()

    def __enter__(self) -> Meter:
        self._outermost.__enter__()
        self._watch.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._watch.__exit__(*exception)
        self._outermost.__exit__(*exception)
        for rank, ledger in enumerate(self.ledgers):
            self.trace.memory[rank] = ledger.timeline(self.where)
            if ledger.hosted:
                self.trace.host[rank] = OnHost(ledger.timeline(HOST), *ledger.copied)

    def given(self, rank: int, *arguments) -> None:
        """These are in the rank's memory from the start."""
        self.ledgers[rank].existing(arguments)

    @contextmanager
    def charged(self) -> Iterator[None]:
        """What the running fiber computes in here is charged to it. A rank's memory is followed until its main ends."""
        fiber = self.clock.current
        try:
            with self._charge(fiber):
                yield
        finally:
            if fiber.name == "main":
                self.ledgers[fiber.rank].close()

    def _charge(self, fiber: Fiber) -> Charge:
        device = self.cluster.device
        rank = fiber.rank
        add = self.trace.spans.add
        seconds = (
            None
            if device is None
            else functools.partial(self._seconds, rank, 1 / self.cluster.speed(rank))
        )
        host = None if self.cluster.host is None else self.cluster.part_of_host(rank, self.trace.n)
        beside = None if host is None else functools.partial(self._beside, rank, host)

        def note(known: Operator, cost: Cost, start: float, end: float) -> None:
            if end > start:
                phase = charge.phase
                add(
                    rank,
                    fiber.name,
                    KINDS.get(phase, "copy"),
                    start,
                    end,
                    phase if charge.copying else known.name,
                )

        charge = Charge(fiber, self.ledgers[rank], seconds, note, self.where, beside)
        return charge

    def _seconds(self, rank: int, slowness: float, cost: Cost) -> float:
        return roofline(self.cluster.device, cost) * slowness * self._noise(rank)

    def _beside(self, rank: int, host: HostPart, cost: Cost, copied: bool) -> float:
        alone = (
            host.link.alpha + cost.nbytes * host.link.beta
            if copied
            else roofline(host.device, cost)
        )
        return alone * self.cluster.slow_ranks.get(rank, 1.0) * self._noise(rank)

    def _noise(self, rank: int) -> float:
        """Of the rank's next operator."""
        cluster = self.cluster
        return cluster.noise("operation", rank, next(self._done[rank])) if cluster.sigma else 1.0

    def _now(self, rank: int) -> float:
        """The time of a rank: its running fiber's, else that which the run has reached."""
        current = self.clock.current
        return current.time if current.rank == rank else self.clock.reached


class NoMeter:
    """Where nothing is charged and no memory followed."""

    def __init__(self, clock: Clock, trace: Trace, cluster: Cluster, where: str):
        pass

    def __enter__(self) -> NoMeter:
        return self

    def __exit__(self, *exception) -> None:
        pass

    def given(self, rank: int, *arguments) -> None:
        pass

    def charged(self) -> AbstractContextManager:
        return nullcontext()
