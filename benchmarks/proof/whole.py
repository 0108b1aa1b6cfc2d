"""What the whole must show: the issue's items, in its order."""

from __future__ import annotations

from .capstone_items import ddp_and_fsdp, every_call
from .whole_items import grids, kills, planner, regrid, text, two_hosts
from .world import lessons_of

LESSONS = ("15_hybrid", "18_survive", "19_capstone")


def lessons() -> tuple[str, bool]:
    """Item 8: built, tested, banks complete."""
    return lessons_of(LESSONS)


ITEMS = {
    "1 every grid": grids,
    "2 prose": text,
    "3 kills": kills,
    "4 another grid": regrid,
    "5 planner": planner,
    "6 two hosts": two_hosts,
    "7a DDP and FSDP2": ddp_and_fsdp,
    "7b every collective": every_call,
    "8 lessons": lessons,
}
