"""The same test in every world: `run(program, n, *args)`."""

import functools

import pytest

from minidist.comm import World, launch


def in_world(program, n, *args, on_failure="end", seed=0, timeout=None, **kwargs):
    """`timeout` is for the other two: in a World nobody waits for long."""
    return World(n, on_failure=on_failure, seed=seed).run(program, *args, **kwargs)


RUNNERS = {"world": in_world, "shm": launch, "gloo": functools.partial(launch, transport="gloo")}


@pytest.fixture(params=RUNNERS)
def run(request):
    """Each way to run a program."""
    return RUNNERS[request.param]


@pytest.fixture(params=["world", "shm"])
def run_fast(request):
    """The two ways that cost little."""
    return RUNNERS[request.param]
