"""Ranks and messages: one `Comm`, three worlds behind it.

base        what a technique may know: Comm, Work
world/      ranks in this process, on a virtual clock        cluster/   the machine that it models
processes/  ranks as processes, over shared memory           charge/    what computing costs on it
torchdist/  ranks of torch.distributed, as under torchrun    trace/     what happened
launch      starts processes from a notebook                 program    what ranks may be given to run
host        the machine around a rank's device               lanes      `stream` where time is real
mesh        ranks as a grid, a Comm for each axis
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
from .world.world import World

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
