"""Random numbers where ranks hold the same data, and where each has its own part.

Dropout on whole data must drop the same elements on every rank, or the copies part; on split data it must drop
different ones, or what should be chance is repeated n times.

    seed_group_(comm, seed)          from here on every rank of the group draws the same numbers
    with split_random(comm):         in here each rank draws its own; outside nothing is missing or repeated
        mask = …

The numbers within are seeded by (a number drawn outside, the rank): a stream of their own, made anew each time. So
PyTorch's default generator is all the state there is. What is computed again from a saved state of it draws the same
numbers again, whatever was drawn in between: checkpointing needs to know nothing of this file. Megatron-LM keeps a
second generator for split data, whose state every checkpoint function must save, too (`megatron/core/tensor_parallel/
random.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...comm.base import Comm

_SEEDED = "random numbers of the group"


def seed_group_(comm: Comm, seed: int) -> None:
    """Every rank of `comm` draws the same numbers from here on. Groups with other data take another seed each.

    Call it once, at the start, on every rank of the group of tensor-parallel ranks, before a layer with dropout.
    """
    for random in _generators(comm):
        random.manual_seed(seed)
    comm.keep(_SEEDED, lambda: seed)


def same_random(comm: Comm) -> None:
    """Raises ValueError unless `seed_group_` was called: then ranks would drop different parts of the same data."""
    comm.keep(_SEEDED, _not_seeded)


def _not_seeded():
    raise ValueError(
        "dropout on the ranks of a tensor-parallel group needs random numbers that are the same on all of "
        "them: call seed_group_(comm, seed) first, with the Comm of the layer"
    )


@contextmanager
def split_random(comm: Comm) -> Iterator[None]:
    """In here each rank draws its own random numbers; afterwards all go on as if one number had been drawn."""
    drawn = int(torch.randint(2**62, ()))
    kept = [(random, random.get_state()) for random in _generators(comm)]
    try:
        for random, _ in kept:
            random.manual_seed((drawn * 1_000_003 + comm.rank) % 2**63)
        yield
    finally:
        for random, state in kept:
            random.set_state(state)


def _generators(comm: Comm) -> list[torch.Generator]:
    """PyTorch's default ones of the CPU and of the Comm's device."""
    found = [torch.default_generator]
    if comm.device.type == "cuda":
        torch.cuda.init()
        found.append(torch.cuda.default_generators[comm.device.index or 0])
    return found
