"""What the whole must show: the issue's items, in its order."""

from __future__ import annotations

from .capstone_items import ddp_and_fsdp, every_call
from .foundation import fresh_clone
from .whole_items import grids, kills, planner, regrid, text, two_hosts
from .world import lessons_of

LESSONS = ("19_hybrid", "26_survive", "28_capstone")


def lessons() -> tuple[str, bool]:
    """Item 8: built, tested, banks complete."""
    return lessons_of(LESSONS)


def make_test() -> tuple[str, bool]:
    """Item 8, its second half: all of it, in a fresh clone."""
    return fresh_clone(minutes=15)


ITEMS = {
    "1 every grid": grids,
    "2 prose": text,
    "3 kills": kills,
    "4 another grid": regrid,
    "5 planner": planner,
    "6 two hosts": two_hosts,
    "7a DDP and FSDP2": ddp_and_fsdp,
    "7b every collective": every_call,
    "8a lessons": lessons,
    "8b make test": make_test,
}
