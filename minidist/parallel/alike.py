"""Whether every rank's model has the same parameters and buffers: what data parallelism takes for granted.

Each rank describes them, a line each, and a digest of the lines goes round: one all-reduce of 16 bytes by a tree, which
takes 2·log₂(n) messages one after the other. The lines themselves travel only where the digests differ, to be named.
"""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import nn

from ..arguments import flags
from ..collectives import all_reduce_
from ..comm.base import Comm, describe
from .pipeline.mail import host
from .pipeline.ties import told

SHOWN = 3  # differences that are named


def check_arguments(module, comm, overlap: bool, broadcast_buffers: bool, compression) -> None:
    """ValueError for arguments of another kind than `DataParallel` takes."""
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"DataParallel(module, comm) wraps an nn.Module, not {type(module).__name__}"
        )
    if not isinstance(comm, Comm):
        raise ValueError(
            f"DataParallel(module, comm) averages over the ranks of a Comm, not of {type(comm).__name__}"
        )
    flags(overlap=overlap, broadcast_buffers=broadcast_buffers)
    if compression is not None and not hasattr(compression, "average_"):
        raise ValueError(
            f"compression is a Compression, such as train.compress.PowerSGD(2), not {compression!r}"
        )


def check_alike(comm: Comm, module: nn.Module) -> None:
    """ValueError on every rank, naming what differs, unless the models are alike: names, shapes, dtypes, and order."""
    lines = [f"{kind} {name}, {describe(x)}" for kind, name, x in _tensors(module)]
    digest = int.from_bytes(sha256("\n".join(lines).encode()).digest()[:7], "big")
    words = comm.on_host()
    both = torch.tensor([digest, -digest], device=host(words))
    largest, least = all_reduce_(
        words, both, op="max", algorithm=None if words.native else "tree"
    ).tolist()
    if largest == -least:
        return
    everyone = told(comm, lines)
    rank = next(rank for rank, theirs in enumerate(everyone) if theirs != everyone[0])
    ours, theirs = everyone[0], everyone[rank]
    only = [f"rank 0 alone has {line}" for line in ours if line not in theirs]
    only += [f"rank {rank} alone has {line}" for line in theirs if line not in ours]
    if not only:
        a, b = next(pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1])
        only = [f"they are in another order, where rank 0 has {a}, rank {rank} has {b}"]
    more = f"; and {len(only) - SHOWN} more" if len(only) > SHOWN else ""
    raise ValueError(
        f"the models of rank 0 and rank {rank} differ, with {len(ours)} and {len(theirs)} parameters and "
        f"buffers: {'; '.join(only[:SHOWN])}{more}. Make the same model on every rank."
    )


def _tensors(module: nn.Module):
    for name, p in module.named_parameters():
        yield "parameter" if p.requires_grad else "frozen parameter", name, p
    for name, x in module.named_buffers():
        yield "buffer", name, x
