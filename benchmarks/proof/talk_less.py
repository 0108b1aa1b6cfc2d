"""What talking less and stepping bigger must show: the issue's six items, in its order."""

from __future__ import annotations

from .compress_items import accuracy, bytes_on_the_wire, each_part, powersgd
from .local_items import post_local, slow
from .optim_items import large_batches, optimizers
from .server_items import server
from .world import lessons_of

LESSONS = ("08_server", "23_compress", "25_large_batches")


def lessons() -> tuple[str, bool]:
    """Item 6: built, tested, banks complete."""
    return lessons_of(LESSONS)


ITEMS = {
    "1 parameter server": server,
    "2a bytes of DGC": bytes_on_the_wire,
    "2b accuracy of DGC": accuracy,
    "2c parts of DGC": each_part,
    "3a PowerSGD": powersgd,
    "3b post-local SGD": post_local,
    "4 optimizers": optimizers,
    "5 slow link": slow,
    "6a lessons": lessons,
    "6b large batches": large_batches,
}
