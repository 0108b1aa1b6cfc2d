"""The parameter server: some ranks hold the parameters and step them, the others compute gradients.

    ranks 0 … s−1      servers, N/s bytes of the parameters each, with their optimizer      see `partition`, `serving`
    ranks s … s+n−1    workers 0 … n−1: pull, forward, backward, push                       see `worker`

    mode      a push is              a worker goes on                        gradients are
    "sync"    averaged with all n    when all n have pushed                  of the newest parameters
    "async"   a step of its own      at once                                 stale by any number of updates
    "ssp"     a step of its own      unless it is `bound` ahead of the last  stale by (n−1)(2·bound + 1) at most

Synchronous: the same bits as one rank that adds the n gradients in rank order, and divides. A slow worker stops all in
"sync", nobody in "async", and in "ssp" those who run ahead of it. A worker may die (runners' on_failure="continue"):
that ends "sync", by PeerLost; the others go on, in "ssp" without its clock. A dead server ends any run, by PeerLost.
Sources: Li et al. 2014; Dean et al. 2012, section 4.1; Ho et al. 2013. Cost: see `cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from ...collectives import all_gather_, broadcast_
from ...comm.base import Comm, PeerLost
from .clocks import Clocks
from .partition import Partition
from .serving import Server, Update
from .shard import Factory, Shard
from .worker import Channel, Worker, dead_server


class Report(NamedTuple):
    """What a rank has of a run.

    values: what `step` returned of each batch, on a worker.  updates: every push that was added, in order, on a server.
    lost: {rank: why} of the workers that died, on a server.
    """

    values: list
    updates: list[Update]
    lost: dict[int, str]


class ParameterServer:
    """`module`'s trained parameters on `servers` servers, for the workers among the ranks of `comm`.

        server = ParameterServer(model, comm, lambda p: torch.optim.SGD(p, lr=0.1), mode="ssp", bound=2)

        def step(batch):                            # on a worker: leaves gradients in the model
            x, y = batch
            loss = cross_entropy(model(x), y)
            loss.backward()
            return comm.now(), loss.item()

        report = server.train(batches, step)        # on all ranks; a server does not look at them

    optimizer(pieces): any of torch.optim, over a list of nn.Parameter; on servers.  mode, bound: see above.
    whole: do not cut parameters (an optimizer that looks at rows or norms); servers then hold what fits best.
    worker: this rank's number among the `workers`, None on a server.  server: its number, None on a worker.
    weight: where workers' batches differ in size `step` sets it, on all of them, for a weighted mean ("sync" only).
    All ranks start with rank 0's parameters and buffers; buffers then are each worker's own.
    Over gloo no rank is told of another's death: a server that waits for a dead worker ends by its timeout.
    Raises ValueError if there is no server or no worker, over NCCL, for a bound that the mode lacks or does not have,
    and for a module on another device than the Comm's.
    """

    def __init__(
        self,
        module: nn.Module,
        comm: Comm,
        optimizer: Factory,
        servers: int = 1,
        mode: str = "sync",
        bound: int | None = None,
        whole: bool = False,
    ):
        _check(module, comm, servers, mode, bound)
        self.module = module
        self.comm = comm
        self.servers = servers
        self.workers = comm.size - servers
        self.mode = mode
        self.server = comm.rank if comm.rank < servers else None
        self.worker = None if comm.rank < servers else comm.rank - servers
        self.weight: float | None = None
        broadcast_(comm, [*module.parameters(), *module.buffers()])
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.partition = Partition(self.params, servers, whole)
        channels = [Channel.of(comm, one, servers) for one in range(servers)]
        self._among = comm.split([0 if r < servers else None for r in range(comm.size)])
        if self.server is None:
            self._worker = Worker(self.partition, channels, self.worker)
        else:
            self.shard = Shard(self.partition, self.server, optimizer)
            clocks = Clocks(range(self.workers), bound)
            self._server = Server(self.shard, channels[self.server], clocks, servers, self.server)

    def train(self, batches: Iterable, step: Callable[[Any], Any]) -> Report:
        """Serve, or work: `step(batch)` for each of this worker's `batches`, with a pull before and a push after it.

        Returns when all workers have ended, with the final parameters in `module` on every rank. One call for each
        ParameterServer; a batch is asked for before the step on the one before it.
        Raises PeerLost and ValueError as above; ValueError for a worker without a batch, and for synchronous workers
        with unequally many.
        """
        if self.server is not None:
            self._serve()
            return Report([], self._server.updates, self._server.lost)
        values = []
        for batch, last in with_last(batches):
            self._worker.pull()
            self.module.zero_grad()
            values.append(step(batch))
            if self.weight is not None and self.mode != "sync":
                raise ValueError(
                    f"a weight of {self.weight} has no meaning in mode {self.mode!r}: nothing is averaged"
                )
            self._worker.push(self.weight, last)
        if not values:
            raise ValueError(
                f"worker {self.worker} of {self.workers} has 0 batches: it needs at least 1"
            )
        self._worker.pull()
        return Report(values, [], {})

    def _serve(self) -> None:
        self._server.run(self.mode == "sync")
        flats = self.partition.flatten(self.params)
        for mine, buffer in zip(
            self.partition.chunks(flats, self.server), self.shard.buffers, strict=True
        ):
            mine.copy_(buffer)
        try:
            for chunks in self.partition.by_server(flats):
                all_gather_(self._among, chunks)
        except PeerLost as lost:
            self._server.refuse(lost.rank)
            raise dead_server(lost.rank, self.servers, lost) from lost
        self.partition.spread(flats, self.params)
        self._server.close()


def with_last(batches: Iterable) -> Iterator[tuple[Any, bool]]:
    """Each batch, and whether it is the last one."""
    rest = iter(batches)
    for batch in rest:
        for following in rest:
            yield batch, False
            batch = following
        yield batch, True


def _check(module: nn.Module, comm: Comm, servers: int, mode: str, bound: int | None) -> None:
    if not 1 <= servers < comm.size:
        raise ValueError(
            f"{servers} servers among {comm.size} ranks: at least 1 is a server and 1 a worker"
        )
    if not comm.any_source:
        raise ValueError(
            "a server receives from whichever worker is first, which NCCL cannot: run it over gloo, with "
            'from_env("gloo") and the module on the CPU, or --backend gloo'
        )
    if mode not in ("sync", "async", "ssp"):
        raise ValueError(f'mode is "sync", "async" or "ssp", not {mode!r}')
    if (bound is None) is (mode == "ssp"):
        raise ValueError(
            f'a bound belongs to mode="ssp", which needs one: mode is {mode!r} and bound {bound}'
        )
    for name, p in module.named_parameters():
        if p.device.type != comm.device.type:
            raise ValueError(
                f"{name} is on {p.device}, this Comm passes tensors on {comm.device}: move the module"
            )
