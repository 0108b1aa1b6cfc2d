"""Train a small GPT on Python's own reference, each layer split over the ranks, in three worlds.

    python examples/train_tensor.py --ranks 4 --runner world        # in this process, on a virtual clock
    python examples/train_tensor.py --ranks 3 --runner processes    # 4 heads on 3 ranks: uneven
    torchrun --nproc-per-node 4 examples/train_tensor.py            # torch.distributed

`--ranks 1` is the serial run; all others print the same losses, to rounding. Heads and features are split over the
ranks, and so are the rows of the vocabulary: nobody ever has all logits.
"""

import torch
from started import batches_of_text, ended, of_a_gpt, parsed, parser, run, same_losses
from torch import nn

from minidist.models import LayerNorm, TransformerLayer, initial_
from minidist.parallel.tensor import gather_from, scatter_to, tensor_parallel_
from minidist.parallel.vocab import VocabEmbedding, vocab_cross_entropy

VOCAB = 256  # bytes


class TensorGPT(nn.Module):
    """`models.gpt(…, vocab=256)` on the ranks of `comm`, its initial values too: tokens (B, T) → logits (B, T, V/n)."""

    def __init__(self, layers, hidden, heads, context, comm, sequence, dtype):
        super().__init__()
        self.comm, self.sequence = comm, sequence
        self.tokens = VocabEmbedding(VOCAB, hidden, comm, dtype=dtype)
        positions = torch.empty(context, hidden, dtype=dtype, device=comm.device)
        self.positions = nn.Parameter(initial_(positions, 0, "positions.weight"))
        layers = nn.ModuleList(
            TransformerLayer(hidden, heads, dtype=dtype, device="meta") for _ in range(layers)
        )
        self.layers = tensor_parallel_(layers, comm, sequence, name="layers")
        self.norm = LayerNorm(hidden, dtype=dtype, device=comm.device)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]  # (B, T, H)
        x = scatter_to(x, self.comm, 1) if self.sequence else x  # (B, T/n, H)
        for layer in self.layers:
            x = layer(x)
        x = gather_from(x, self.comm, 1) if self.sequence else x
        return self.tokens.project(self.norm(x))


def program(comm, x, y, layers, hidden, heads, lr, sequence, dtype):
    """One rank's training: x and y are (steps, B, T), the same on every rank. Returns losses, and what it holds."""
    x, y = x.to(comm.device), y.to(comm.device)
    model = TensorGPT(layers, hidden, heads, x.shape[2], comm, sequence, getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for step in range(len(x)):
        optimizer.zero_grad()
        loss = vocab_cross_entropy(model(x[step]), y[step], comm, VOCAB)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if comm.rank == 0:
            print(f"step {step + 1:3}   loss {losses[-1]:.12f}", flush=True)
    held = sum(p.numel() for p in model.parameters())
    if comm.rank == 0:
        print(f"ranks: {comm.size}, of which rank 0 holds {held:,} parameters")
    return {"ranks": comm.size, "losses": losses, "parameters": held}


def main():
    flags = parser(__doc__)
    of_a_gpt(flags)
    flags.add_argument(
        "--sequence", action="store_true", help="sequence parallel; the ranks divide the context"
    )
    args = parsed(flags)
    if args.hidden % args.heads:
        flags.error(
            f"--heads {args.heads} do not split --hidden {args.hidden}: it is not a multiple"
        )
    x, y = batches_of_text(args.steps, args.batch, args.context)
    given = args.layers, args.hidden, args.heads, args.lr, args.sequence, args.dtype
    return same_losses(run(args, program, x, y, *given))


if __name__ == "__main__":
    raise SystemExit(ended(main))
