"""Train a small GPT on Python's own reference, cut into stages, one on each rank, in three worlds.

    python examples/train_pipeline.py --ranks 4 --runner world              # in this process, on a virtual clock
    python examples/train_pipeline.py --ranks 3 --runner processes --schedule zb_h1
    torchrun --nproc-per-node 4 examples/train_pipeline.py                  # torch.distributed

`--ranks 1` is the serial run; all others print the same losses, to rounding. The token embedding is in the first stage
and, as the projection to the vocabulary, in the last: tied, their gradients are summed.
"""

import torch
from settings import at_least
from started import batches_of_text, ended, of_a_gpt, parsed, parser, run, same_losses

from minidist.collectives import all_gather, broadcast_
from minidist.models import gpt, next_token_loss, sequence, stage_of
from minidist.parallel import schedules
from minidist.parallel.pipeline import Pipeline, by_parameters, partition

SCHEDULES = {"1f1b": "one_f_one_b"} | {name: name for name in ("naive", "gpipe", "zb_h1", "zb_h2")}


def program(comm, x, y, shape, schedule, micro_batches, lr):
    """One stage's training: x and y are (steps, B, T), used on the first and the last. Returns losses, and its part."""
    x, y = x.to(comm.device), y.to(comm.device)
    model = gpt(**shape, vocab=256, context=x.shape[2], device="meta")
    first, end = partition(by_parameters(sequence(model)), comm.size)[comm.rank]
    stage = stage_of(model, first, end, device=comm.device)
    # one twice, where both ends are here
    tables = [part.tokens.weight for part in stage if hasattr(part, "tokens")]
    tied = {"tokens": tables[0]} if tables else {}
    pipeline = Pipeline(stage, comm, getattr(schedules, schedule), next_token_loss, tied=tied)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=lr)
    losses = []
    for step in range(len(x)):
        optimizer.zero_grad()
        parts = pipeline.step(micro_batches, x[step], y[step])
        optimizer.step()
        loss = (
            torch.stack(parts).mean()
            if parts
            else torch.empty((), dtype=shape["dtype"], device=comm.device)
        )
        losses.append(broadcast_(comm, loss, root=comm.size - 1).item())
        if comm.rank == 0:
            print(f"step {step + 1:3}   loss {losses[-1]:.12f}", flush=True)
    peaks = all_gather(comm, torch.tensor([pipeline.peak], device=comm.device)).tolist()
    if comm.rank == 0:
        print(
            f"stages: {comm.size}, of which stage 0 has parts {first} to {end - 1}; in flight at most: {peaks}"
        )
    return {"ranks": comm.size, "losses": losses, "parts": [first, end], "peaks": peaks}


def main():
    flags = parser(__doc__)
    flags.add_argument("--schedule", choices=[*SCHEDULES], default="1f1b")
    flags.add_argument(
        "--micro-batches", type=at_least(1), default=4, help="of a step; they divide the batch"
    )
    of_a_gpt(flags)
    args = parsed(flags)
    if args.hidden % args.heads:
        flags.error(
            f"--heads {args.heads} do not split --hidden {args.hidden}: it is not a multiple"
        )
    if args.layers + 2 < args.ranks:
        flags.error(
            f"--layers {args.layers} make {args.layers + 2} parts, fewer than the {args.ranks} stages"
        )
    if args.batch % args.micro_batches:
        flags.error(f"{args.micro_batches} micro-batches do not divide a batch of {args.batch}")
    x, y = batches_of_text(args.steps, args.batch, args.context)
    shape = dict(
        layers=args.layers, hidden=args.hidden, heads=args.heads, dtype=getattr(torch, args.dtype)
    )
    return same_losses(
        run(args, program, x, y, shape, SCHEDULES[args.schedule], args.micro_batches, args.lr)
    )


if __name__ == "__main__":
    raise SystemExit(ended(main))
