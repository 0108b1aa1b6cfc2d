"""Published bubble rates of pipelines beside those of our simulator: `python -m minidist.study.bubbles`.

The rows of `zero_bubble_rates` give T_F, T_B (our T_I), T_W and T_comm of a stage, p stages, M micro-batches, and
the bubble rate (cost − M(T_F + T_B + T_W))/cost; cost is the longest time of a stage (Qi et al. 2023, section 5).
How each row is simulated, with what is taken from the paper and its authors' estimator (see the column `source`):

    1F1B, ZB-H1, ZB-H2    our lists with these times; a message takes T_comm and overlaps with computation; the
                          optimizer and the reduction of gradients are left out
    1F1B-I                v = layers/p chunks, each with a v-th of a stage's times, a message between two chunks T_comm
    ZB-1p, ZB-2p          our search with memory for p or 2p micro-batches, of which 32h/(34h + 5as) stays until W
    ZB-V                  our list by hand, two chunks a stage; the published one was searched for these times
    times "per CHUNK"     as the note of these rows says, a stage's pass is two of them, and messages stay as they are
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from minidist.parallel.schedules import Action, interleaved, lists, one_f_one_b, zb_h1, zb_h2, zb_v
from minidist.parallel.simulate import search, simulate
from minidist.study.charts import Table, table
from minidist.study.published import published

BY_HAND = {"1F1B": one_f_one_b, "1F1B-I": interleaved, "ZB-H1": zb_h1, "ZB-H2": zb_h2, "ZB-V": zb_v}
SEARCHED = {"ZB-1p": 1, "ZB-2p": 2}


class Rate(NamedTuple):
    """A published bubble rate and ours.

    as_published: ours with the estimator's own rule of who waits. It differs for 1F1B-I: there the first stage waits
    for the last one's message with the first micro-batch of each group of p only (backwards likewise). Ours waits for
    every message, since the data are in it, and so has more bubble.
    """

    model: str
    p: int
    M: int
    schedule: str
    published: float
    ours: float
    as_published: float

    @property
    def error(self) -> float:
        return self.ours - self.published


def published_bubbles() -> list[Rate]:
    """Every published row of a schedule that is built here, simulated."""
    return [
        simulated(row)
        for row in published("zero_bubble_rates")
        if row["schedule"] in (*BY_HAND, *SEARCHED)
    ]


def simulated(row: dict) -> Rate:
    """One row, a dictionary as `published` gives it, simulated. ValueError for a schedule that is not built here."""
    p = row["p"]
    M = row["M"]
    schedule = row["schedule"]
    v, place = {"1F1B-I": (row["layers"] // p, "loop"), "ZB-V": (2, "V")}.get(schedule, (1, "loop"))
    passes = 2 if "per CHUNK" in (row["note"] or "") else 1
    columns = {"forward": "T_F_us", "input": "T_B_us", "weight": "T_W_us"}
    times = {name: passes * row[column] / v for name, column in columns.items()} | {
        "comm": row["T_comm_us"]
    }
    if schedule in SEARCHED:
        h = row["hidden"]
        a = row["heads"]
        s = row["seq"]
        actions = search(
            p, M, **times, limit=SEARCHED[schedule] * p, rest=32 * h / (34 * h + 5 * a * s)
        )
    elif schedule in BY_HAND:
        actions = lists(
            partial(interleaved, v=v) if schedule == "1F1B-I" else BY_HAND[schedule], p, M
        )
    else:
        raise ValueError(
            f"the schedules here are {', '.join([*BY_HAND, *SEARCHED])}, not {schedule!r}"
        )

    def waits(stage: int, action: Action) -> bool:
        wraps = stage == (0 if action.kind == "F" else p - 1)
        return not wraps or action.micro % p == 0

    ours = simulate(actions, **times, place=place).bubble_rate
    theirs = simulate(actions, **times, waits=waits).bubble_rate if schedule == "1F1B-I" else ours
    return Rate(row["model"], p, M, schedule, row["value"], ours, theirs)


def bubble_table(rates: list[Rate]) -> Table:
    """Published and simulated bubble rates, with each row's error."""
    rows = [
        [
            r.model,
            r.p,
            r.M,
            r.schedule,
            *(f"{x:.4f}" for x in (r.published, r.ours)),
            f"{r.error:+.5f}",
            f"{r.as_published:.4f}",
            f"{r.as_published - r.published:+.5f}",
        ]
        for r in rates
    ]
    names = [
        "model",
        "p",
        "M",
        "schedule",
        "published",
        "ours",
        "error",
        "waiting as published",
        "error",
    ]
    return table(rows, names, title="Bubble rates: the share of cost without work")


if __name__ == "__main__":
    print(bubble_table(published_bubbles()))
