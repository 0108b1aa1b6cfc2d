"""Ranks and messages: one `Comm`, three worlds behind it.

base            what a technique may know: Comm, Work; the machine around a rank; `stream` where time is real
program         what a rank is given to run, and the line of it that an error names
world           ranks in this process, on a virtual clock (clock, wires; costs, charge, meter)
cluster         the machine that a World models
shm             ranks as processes, over shared memory (message, supervisor, server)
torchdist       ranks of torch.distributed, as under torchrun (nccl: what NCCL asks for besides)
flight          where such ranks hang, and in which call; doctor: what of a machine makes them
processgroup    a Comm as a process group of PyTorch's own
launch          starts processes from a notebook
mesh            ranks as a grid, a Comm for each axis
trace           what happened: messages, spans, memory, and Perfetto's file of them
"""

from .base import (
    ANY,
    Comm,
    CommError,
    Deadlock,
    Link,
    Mismatch,
    PeerLost,
    RankMissing,
    Recv,
    Send,
    Work,
)
from .cluster import Cluster, Device, Level
from .launch import launch
from .mesh import Mesh
from .torchdist import TorchComm, from_env
from .trace import Message, Results, Span, Trace
from .world import World

__all__ = [
    "ANY",
    "Cluster",
    "Comm",
    "CommError",
    "Deadlock",
    "Device",
    "Level",
    "Link",
    "Mesh",
    "Message",
    "Mismatch",
    "PeerLost",
    "RankMissing",
    "Recv",
    "Results",
    "Send",
    "Span",
    "TorchComm",
    "Trace",
    "Work",
    "World",
    "from_env",
    "launch",
]
