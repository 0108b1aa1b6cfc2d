"""Is this list a schedule? Checked before it runs, with the first wrong action named.

1  all work is there, once, in an order that a stage can follow      `work`
2  it ends: nobody waits for each other in a circle                  `replay`
3  what is kept stays within a limit                                 `memory`
4  each backward uses the weights that its forward used              `versions`
"""

from __future__ import annotations

from collections.abc import Sequence

from .action import Action
from .error import ScheduleError
from .flow import Shape
from .memory import kept
from .replay import Replay
from .versions import check_versions
from .work import check_work


def validate(
    lists: Sequence[Sequence[Action]],
    S: int | None = None,
    M: int | None = None,
    v: int = 1,
    *,
    place: str = "loop",
    comm: str = "mailbox",
    limit: float | Sequence[float] | None = None,
    each: float = 1.0,
    rest: float | None = None,
    stash: bool = True,
    rule: str = "newest",
    group: int | None = None,
    most: int | None = None,
) -> None:
    """Return if the lists of all stages are a schedule; raise ScheduleError, naming the first wrong action, if not.

    S, M: stages and micro-batches; by default the lists', and their highest.  v: chunks a stage.
    comm: how sends and receives queue up, "mailbox" (as in `pipeline`), "channels" or "stream", see `replay`.
    limit: what a stage may keep, or one limit for each stage, in units of `each`; each, rest: see `kept`.
    stash, rule, group, most: of lists with updates, see `check_versions`.
    Raises ValueError where the question is wrong: another number of lists than stages, an unknown model.
    """
    if S is not None and len(lists) != S:
        raise ValueError(f"{len(lists)} lists were given for {S} stages")
    if M is None:
        M = 1 + max((a.micro for actions in lists for a in actions), default=0)
    shape = Shape(len(lists), M, v, place).checked()
    check_work(lists, shape)
    Replay(lists, shape, comm).check()
    if limit is not None:
        _check_memory(lists, limit, each, rest)
    check_versions(lists, stash, rule, group, most)


def _check_memory(lists, limit: float | Sequence[float], each: float, rest: float | None) -> None:
    """Raise ScheduleError for the first forward that keeps too much."""
    limits = [limit] * len(lists) if isinstance(limit, int | float) else list(limit)
    if len(limits) != len(lists):
        raise ValueError(f"{len(limits)} limits were given for {len(lists)} stages")
    rows = [kept(actions, each, rest) for actions in lists]
    over = [
        (position, stage)
        for stage, row in enumerate(rows)
        for position, now in enumerate(row)
        if now > limits[stage] * (1 + 1e-9)
    ]
    if over:
        position, stage = min(over)
        why = f"with it {rows[stage][position]:g} are kept for backwards to come, and the limit is {limits[stage]:g}"
        raise ScheduleError(stage, position, lists[stage][position], why)
