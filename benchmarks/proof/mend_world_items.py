"""Mend, the items of the World: the order of posted operations, and interrupts."""

from __future__ import annotations

from functools import partial

from minidist.comm import Deadlock, World, launch
from tests.comm.test_posted_order import (
    CASES,
    actions_of,
    messages_of,
    one_after_another,
    random_program,
)
from tests.comm.test_posted_order import random_programs as several
from tests.comm.test_wires import hangs
from tests.comm.test_world import interrupted_interrupt


def in_world(program, n, *args, timeout):
    return World(n).run(program, *args)


def posted_operations() -> tuple[str, bool]:
    """Item 5: every case and 36 random programs in each world; then which of them an ordered World stops."""
    rows, held = [], True
    for name, run in {
        "World": in_world,
        "shared memory": launch,
        "gloo": partial(launch, transport="gloo"),
    }.items():
        compared, wrong = 0, ""
        for n in (2, 3, 4):
            try:
                compared += sum(run(one_after_another, n, CASES, timeout=15))
                compared += sum(run(several, n, range(12), timeout=15))
            except Exception as error:
                wrong = f"; {n} ranks: {type(error).__name__}: {str(error).splitlines()[0]}"
                break
        held &= not wrong
        rows.append(
            f"{name}: {compared:,} messages of {len(CASES)} cases and 12 random programs, on 2, 3 and 4 ranks, "
            f"hold what their senders had{wrong}"
        )
    stopped = []
    foreseen = []
    programs = [(seed, 2 + seed % 12, n) for seed in range(30) for n in (2, 3, 4)]
    for seed, count, n in programs:
        messages = messages_of(seed, n, count)
        foreseen.append(hangs(n, messages, [actions_of(seed, rank, messages) for rank in range(n)]))
        try:
            World(n, ordered=True).run(random_program, seed, count)
            stopped.append(False)
        except Deadlock:
            stopped.append(True)
    rows.append(
        f"World(n, ordered=True): {sum(stopped)} of {len(programs)} random programs are a Deadlock, "
        f"{sum(foreseen)} by a model of queues; the same ones: {stopped == foreseen}"
    )
    return "\n".join(rows), held and stopped == foreseen and 0 < sum(stopped) < len(programs)


def interrupts() -> tuple[str, bool]:
    """Item 11: a real SIGINT; Worlds inside of Worlds, three kinds of programs and a call that cannot be stopped."""
    rows, held = [], True
    programs = ("computes", "talks", "in_a_lane", "sleeps")
    for depth in (1, 2, 3):
        found = interrupted_interrupt([(depth, what) for what in programs])
        for what, (took, threads, later, right) in zip(programs, found, strict=True):
            held &= took < 1 and later == [] and right and (what == "sleeps" or threads == [])
        took = ", ".join(
            f"{what} {row[0]:.2f} s" for what, row in zip(programs, found, strict=True)
        )
        left = sum(len(row[2]) for row in found)
        good = all(row[3] for row in found)
        rows.append(
            f"{depth} deep: {took}; threads left: {left}; random numbers and the next run right: {good}"
        )
    return "\n".join(rows), held
