"""In place of torchrun: forked ranks that find what it leaves them. To start it costs seconds for each rank's torch."""

import os
import socket

from minidist.comm import from_env, launch


def in_its_place(program, ranks, *args):
    """Each rank's result of `program(*args)`; a rank's process ends with it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return launch(started, ranks, program, args, str(port))


def over_nccl_like(program, ranks, *args, checked=None, timeout=20.0):
    """Each rank's result of `program(comm, *args)`, where `comm` believes that it goes over NCCL: see `nccl_like`."""
    return in_its_place(on_nccl_like, ranks, program, args, checked, timeout)


def on_nccl_like(program, args, checked, timeout):
    from tests.comm import nccl_like

    comm = from_env(nccl_like.NAME, checked=checked, timeout=timeout)
    value = program(comm, *args)
    comm.flush()
    return nccl_like.given_back(value)


def started(comm, program, args, port):
    rank, size = str(comm.rank), str(comm.size)
    os.environ.update(
        RANK=rank,
        WORLD_SIZE=size,
        LOCAL_RANK=rank,
        LOCAL_WORLD_SIZE=size,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )
    return program(*args)
