"""What the tests of costs have in common: one verb run once on meta tensors, and what it sent."""

import torch

from minidist import collectives
from minidist.comm import World

ALPHA, BETA = 3e-6, 2e-9
EVERY = range(1, 65)
SOME = [1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 17, 23]


def run(n, verb, algorithm, nbytes, alpha=ALPHA, beta=BETA, **world):
    """A World in which `verb` ran once, on `nbytes` in all (whose n-th part each rank has, where it gathers)."""
    if "cluster" in world:
        alpha = beta = None
    world = World(n, alpha=alpha, beta=beta, device="meta", **world)
    world.run(program, verb, algorithm, nbytes)
    return world


def program(comm, verb, algorithm, nbytes):
    call = getattr(collectives, verb if hasattr(collectives, verb) else verb + "_")
    if verb == "barrier":
        call(comm, algorithm=algorithm)
    elif verb == "scatter":
        call(
            comm,
            numbers(nbytes) if comm.rank == 0 else None,
            out=numbers(nbytes // comm.size),
            algorithm=algorithm,
        )
    else:
        call(
            comm,
            numbers(nbytes // comm.size if verb in ("all_gather", "gather") else nbytes),
            algorithm=algorithm,
        )


def numbers(nbytes):
    return torch.empty(nbytes // 8, dtype=torch.float64, device="meta")


def sent(world):
    """(messages, bytes) of each rank."""
    return [(world.trace.messages(r), world.trace.bytes_sent(r)) for r in range(world.n)]
