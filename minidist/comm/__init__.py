"""Ranks and messages: one `Comm`, three worlds behind it."""

from .base import ANY, Comm, Deadlock, Link, PeerLost, RankMissing, Recv, Send, Work
from .cluster import Cluster, Device, Level
from .launch import launch
from .torchdist import TorchComm, from_env
from .trace import Message, Results, Span, Trace
from .world import World

__all__ = ["ANY", "Cluster", "Comm", "Deadlock", "Device", "Level", "Link", "Message", "PeerLost", "RankMissing",
           "Recv", "Results", "Send", "Span", "TorchComm", "Trace", "Work", "World", "from_env", "launch"]  # fmt: skip
