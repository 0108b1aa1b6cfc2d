"""The parameter server: synchronous, asynchronous, bounded staleness.

naive.step        one server, synchronous, twenty lines
ParameterServer   several servers, three modes; `train` on every rank gives a `Report` with every `Update`
Partition         which server holds what
cost              seconds and bytes: sync_seconds, async_seconds, wire_bytes
most_stale        how stale a gradient can be under a bound
"""

from .clocks import Clocks, most_stale
from .cost import async_seconds, sync_seconds, wire_bytes
from .parameter_server import ParameterServer, Report
from .partition import Partition
from .serving import Update

__all__ = [
    "Clocks",
    "ParameterServer",
    "Partition",
    "Report",
    "Update",
    "async_seconds",
    "most_stale",
    "sync_seconds",
    "wire_bytes",
]
