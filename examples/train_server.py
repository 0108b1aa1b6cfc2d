"""Train a network on handwritten digits with parameter servers, in three worlds. The program is the same.

    python examples/train_server.py --ranks 4 --servers 1 --runner world         # in this process, on a virtual clock
    python examples/train_server.py --ranks 5 --servers 2 --runner processes --mode async --momentum 0
    torchrun --nproc-per-node 4 examples/train_server.py --backend gloo          # torch.distributed; not over NCCL

Ranks 0 to servers − 1 hold the parameters, the others compute gradients. With `--mode sync` every number of workers
prints the same accuracies, to rounding; the other modes' workers do not wait, and in a World they repeat bit for bit.
"""

import torch
from settings import at_least
from started import ended, parsed, parser, run
from torch.nn.functional import cross_entropy

from minidist.models import mlp
from minidist.parallel.server import ParameterServer
from minidist.split import bounds, uneven
from minidist.tasks import digits


def program(comm, task, servers, mode, bound, epochs, batch, lr, momentum):
    """One rank's part. Returns the test accuracy at the end, and what a server or a worker has seen."""
    x, y, test_x, test_y = (t.to(comm.device) for t in task)
    model = mlp([64, 128, 10], seed=comm.rank, dtype=x.dtype, device=comm.device)
    server = ParameterServer(
        model, comm, lambda p: torch.optim.SGD(p, lr, momentum), servers, mode, bound
    )

    def step(part):
        loss = cross_entropy(model(x[part]), y[part])
        loss.backward()
        server.weight = len(part) if mode == "sync" else None
        return loss.item()

    report = server.train(parts(len(x), batch, epochs, server.worker, server.workers), step)
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).double().mean().item()
    stale = max((update.staleness for update in report.updates), default=None)
    if comm.rank == 0:
        held = ", ".join(f"{nbytes:,}" for nbytes in server.partition.nbytes)
        print(
            f"mode {mode}, {server.workers} workers, {servers} servers with {held} bytes of parameters"
        )
        print(
            f"updates: {len(report.updates)}, stale by at most {stale}; accuracy {accuracy:.4f}",
            flush=True,
        )
    return {
        "ranks": comm.size,
        "accuracy": accuracy,
        "updates": len(report.updates),
        "stale": stale,
        "nbytes": server.partition.nbytes,
        "losses": report.values,
        "weights": [p.detach().double().sum().item() for p in model.parameters()],
    }


def parts(length, batch, epochs, worker, workers):
    """Worker number `worker`'s part of every batch: indices into the data, in another order each epoch."""
    for epoch in range(epochs):
        order = torch.randperm(length, generator=torch.Generator().manual_seed(epoch))
        for whole in order.split(batch)[: length // batch]:
            first, end = bounds(uneven(batch, workers))[worker]
            yield whole[first:end]


def main():
    flags = parser(__doc__)
    flags.add_argument("--servers", type=at_least(1), default=1)
    flags.add_argument("--mode", choices=["sync", "async", "ssp"], default="sync")
    flags.add_argument(
        "--bound", type=at_least(0), help="steps that a worker may be ahead, of --mode ssp"
    )
    flags.add_argument("--epochs", type=at_least(0), default=8)
    flags.add_argument(
        "--batch", type=at_least(1), default=120, help="samples of a step, all workers together"
    )
    flags.add_argument("--lr", type=at_least(0, float), default=0.1)
    flags.add_argument(
        "--momentum",
        type=at_least(0, float, below=1),
        default=0.9,
        help="stale gradients want less: 0 for the other modes",
    )
    args = parsed(flags)
    if not 1 <= args.servers < args.ranks:
        flags.error(
            f"{args.servers} servers among {args.ranks} ranks: at least 1 is a server and 1 a worker"
        )
    task = digits(getattr(torch, args.dtype))
    given = args.servers, args.mode, args.bound, args.epochs, args.batch, args.lr, args.momentum
    results = run(args, program, task, *given)
    same = len({tuple(result["weights"]) for result in results.values()}) == 1
    return 0 if same else "the ranks' parameters differ"


if __name__ == "__main__":
    raise SystemExit(ended(main))
