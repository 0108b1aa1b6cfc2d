"""Published figures, as data with their sources; and published bubble rates of pipelines beside those of our simulator.

`published("zero")` gives the rows of a table, `simulated(row)` our bubble rate beside that of a row of
`zero_bubble_rates`. These rows give T_F, T_B (our T_I), T_W and T_comm of a stage, p stages, M micro-batches, and the
bubble rate (cost − M(T_F + T_B + T_W))/cost; cost is the longest time of a stage (Qi et al. 2023, section 5). How each
row is simulated, with what is taken from the paper and its authors' estimator (see the column `source`: `efficiency.py`
and `v_schedule.py` there):

    1F1B, ZB-H1, ZB-H2    our lists with these times; a message takes T_comm and overlaps with computation; the
                          optimizer and the reduction of gradients are left out
    1F1B-I                v = layers/p chunks, each with a v-th of a stage's times, a message between two chunks T_comm;
                          stage 0 waits for the last stage's message with the first micro-batch of each group of p
                          only, and backwards the last stage for stage 0's: so does the estimator
    ZB-1p, ZB-2p          our search with memory for p or 2p micro-batches, of which 32h/(34h + 5as) stays until W
    ZB-V                  our list by hand, two chunks a stage; the published one is a greedy search's for these times
    times "per CHUNK"     as the note of these rows says, a stage's pass is two of them, and messages stay as they are

Where ours and theirs part. 1F1B-I: under their rule not at all, to four digits; where every message is waited for, since
the data are in it, the bubble is 2.9 to 4.2 % larger (`Rate.waiting`). ZB-V: ours waits 2(p−1)(T_B − T_W) + (6p−8)T_comm,
theirs 1.5 to 2.5 % longer. For p = 24, M = 72 the two lists of stage 0, the slowest, are the same for 270 actions of 432,
until few forwards are left; then theirs puts off the W's of the first part of the model, which ours runs at once, and
waits 186.3 ms, ours 181.7. With few stages theirs is the better one: with these times, p = 4 and M = 12 it waits 18.6 ms,
ours 22.4.
"""

from __future__ import annotations

import csv
import re
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

from minidist.parallel.schedules import Action, interleaved, lists, one_f_one_b, zb_h1, zb_h2, zb_v
from minidist.parallel.simulate import search, simulate

NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")


def published(name: str) -> list[dict[str, Any]]:
    """The rows of a table of published figures, as dictionaries: `published("zero")`.

    All tables have the columns source, quantity, value, unit, evidence ("seen", "computed" or from memory) and note.
    Whole numbers are int, other numbers are float, and empty cells are None. Raises ValueError if there is no table of
    this name.

    >>> from minidist.study import published
    >>> for row in published("zero")[:4]:
    ...     print(row["stage"], row["value"], row["unit"])
    baseline 120 GB (1e9)
    Pos 31.4 GB (1e9)
    Pos+g 16.6 GB (1e9)
    Pos+g+p 1.9 GB (1e9)
    """
    folder = files("minidist.study") / "figures"
    names = sorted(f.name.removesuffix(".csv") for f in folder.iterdir() if f.name.endswith(".csv"))
    if name not in names:
        raise ValueError(f"no table of figures is called {name!r}; there are {', '.join(names)}")
    rows = csv.DictReader((folder / f"{name}.csv").read_text(encoding="utf-8").splitlines())
    return [{column: _value(word) for column, word in row.items()} for row in rows]


def _value(word: str) -> Any:
    if not NUMBER.fullmatch(word):
        return word or None
    whole = word.removesuffix(".0")
    return int(whole) if whole.lstrip("+-").isdigit() else float(word)


SCHEDULES = {"1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2, "ZB-V": zb_v}
SEARCHED = {"ZB-1p": 1, "ZB-2p": 2}


class Rate(NamedTuple):
    """A published bubble rate and ours, with the estimator's rule of who waits.

    waiting: ours where every message is waited for, as in a real run. It differs for 1F1B-I, and is the larger one.
    """

    model: str
    p: int
    M: int
    schedule: str
    published: float
    ours: float
    waiting: float

    @property
    def error(self) -> float:
        return self.ours - self.published


def simulated(row: dict) -> Rate:
    """One row, a dictionary as `published` gives it, simulated. ValueError for a schedule that is not built here."""
    p = row["p"]
    M = row["M"]
    schedule = row["schedule"]
    chunks = {"1F1B-I": row["layers"] // p, "ZB-V": 2}.get(schedule, 1)
    passes = 2 if "per CHUNK" in (row["note"] or "") else 1
    columns = {"forward": "T_F_us", "input": "T_B_us", "weight": "T_W_us"}
    times = {name: passes * row[column] / chunks for name, column in columns.items()}
    times["comm"] = row["T_comm_us"]
    if schedule in SEARCHED:
        h = row["hidden"]
        rest = 32 * h / (34 * h + 5 * row["heads"] * row["seq"])
        actions = search(p, M, **times, limit=SEARCHED[schedule] * p, rest=rest)
    elif schedule == "1F1B-I":
        actions = lists(partial(interleaved, v=chunks), p, M)
    elif schedule in SCHEDULES:
        actions = lists(SCHEDULES[schedule], p, M)
    else:
        names = ", ".join([*SCHEDULES, "1F1B-I", *SEARCHED])
        raise ValueError(f"the schedules here are {names}, not {schedule!r}")

    def waits(stage: int, action: Action) -> bool:
        wraps = stage == (0 if action.kind == "F" else p - 1)
        return not wraps or action.micro % p == 0

    place = "V" if schedule == "ZB-V" else "loop"
    waiting = simulate(actions, **times, place=place).bubble_rate
    ours = simulate(actions, **times, waits=waits).bubble_rate if schedule == "1F1B-I" else waiting
    return Rate(row["model"], p, M, schedule, row["value"], ours, waiting)
