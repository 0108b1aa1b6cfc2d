"""The techniques of large-scale training, from scratch on PyTorch tensors: one program, three worlds.

    from minidist import World, launch, from_env

    World(4).run(program)        # ranks in this process, on a virtual clock
    launch(program, 4)           # processes of this machine
    program(from_env())          # under torchrun, on any number of machines

comm          ranks and messages: one Comm, three worlds behind it
collectives   all-reduce and its kin, built from send and receive
train         what one rank does for itself: precision, memory for compute, fused operators, optimizers
parallel      what many ranks do together: data, shards, tensors, pipelines, servers, compression
checkpoint    sharded checkpoints, loaded onto another grid, too
parallelize   one function that puts a model onto a grid of ranks
study         pictures, formulas and the planner; no technique needs it

>>> import torch
>>> from minidist import World
>>> from minidist.collectives import all_reduce_
>>> def program(comm):
...     gradient = torch.tensor([1.0, 2.0]) * comm.rank
...     return all_reduce_(comm, gradient, "mean").tolist()
>>> World(4).run(program)
[[1.5, 3.0], [1.5, 3.0], [1.5, 3.0], [1.5, 3.0]]
"""

import sys

__version__ = "1.0.0"

if sys.platform == "win32":
    raise ImportError(
        "minidist runs on Linux and macOS, and on Windows inside WSL, the Linux that Windows offers: open PowerShell as "
        "administrator, type `wsl --install`, and install the course in there. Ranks are processes that hand open files "
        "to each other, and graders end what takes too long with SIGALRM; Windows itself has neither."
    )

from .comm import World, from_env, launch

__all__ = ["World", "from_env", "launch"]
