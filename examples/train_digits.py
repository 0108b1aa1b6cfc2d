"""Train a network on handwritten digits, on any number of ranks, in three worlds. The program is the same.

    python examples/train_digits.py --ranks 4 --runner world        # in this process, on a virtual clock
    python examples/train_digits.py --ranks 4 --runner processes    # processes of this machine
    torchrun --nproc-per-node 4 examples/train_digits.py            # torch.distributed

`--ranks 1` is the serial run; all others print the same losses, to rounding (compare with `--json`).
"""

import hashlib

import torch
from settings import at_least
from started import ended, parsed, parser, run
from torch.nn.functional import cross_entropy

from minidist.collectives import all_gather, all_reduce_
from minidist.models import mlp
from minidist.parallel.data import DataParallel, Sampler
from minidist.split import bounds, uneven
from minidist.tasks import digits


def program(comm, task, epochs, batch, lr, keep_last):
    """One rank's training. Returns losses and accuracies, and a digest of every rank's parameters."""
    task = [t.to(comm.device) for t in task]
    x, y, test_x, test_y = task
    model = DataParallel(
        mlp([64, 128, 10], seed=comm.rank, dtype=x.dtype, device=comm.device), comm
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    sampler = Sampler(len(x), batch, comm, drop_last=not keep_last)
    first, end = bounds(uneven(len(test_x), comm.size))[comm.rank]
    losses, accuracies = [], []
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        # sum of losses, samples, right on the test set
        seen = torch.zeros(3, dtype=torch.float64, device=comm.device)
        for part in sampler:
            optimizer.zero_grad()
            loss = cross_entropy(model(x[part]), y[part], reduction="sum") / max(1, len(part))
            model.weight = len(part) if keep_last else None
            loss.backward()
            optimizer.step()
            seen += seen.new_tensor([loss.item() * len(part), len(part), 0])
        with torch.no_grad():
            seen[2] = (model.module(test_x[first:end]).argmax(1) == test_y[first:end]).sum()
        total, samples, right = all_reduce_(comm, seen).tolist()
        losses.append(total / samples)
        accuracies.append(right / len(test_x))
        if comm.rank == 0:
            print(
                f"epoch {epoch:2}   loss {losses[-1]:.12f}   accuracy {accuracies[-1]:.4f}",
                flush=True,
            )
    digests = all_gather(comm, digest(model)).view(comm.size, -1)
    equal = all(torch.equal(d, digests[0]) for d in digests)
    if comm.rank == 0:
        verdict = "equal bit for bit" if equal else "DIFFERENT"
        print(
            f"ranks: {comm.size}, replicas: {verdict}, sha256 {bytes(digests[0].tolist()).hex()[:16]}"
        )
    return {
        "ranks": comm.size,
        "losses": losses,
        "accuracies": accuracies,
        "replicas_equal": equal,
        "digests": [bytes(d.tolist()).hex() for d in digests],
    }


def digest(model):
    """32 bytes that name the parameters, to the last bit."""
    values = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return torch.tensor(
        list(hashlib.sha256(values).digest()), dtype=torch.uint8, device=model.comm.device
    )


def main():
    flags = parser(__doc__)
    flags.add_argument("--epochs", type=at_least(0), default=12)
    flags.add_argument(
        "--batch", type=at_least(1), default=120, help="samples of a step, all ranks together"
    )
    flags.add_argument("--lr", type=at_least(0, float), default=0.1)
    flags.add_argument(
        "--keep-last",
        action="store_true",
        help="train on the last, smaller batch too, with weights",
    )
    args = parsed(flags)
    if args.batch % args.ranks:
        flags.error(f"--batch {args.batch} is not a multiple of {args.ranks} ranks")
    task = digits(getattr(torch, args.dtype))
    results = run(args, program, task, args.epochs, args.batch, args.lr, args.keep_last)
    return (
        0 if all(result["replicas_equal"] for result in results.values()) else "the replicas differ"
    )


if __name__ == "__main__":
    raise SystemExit(ended(main))
