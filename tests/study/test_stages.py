"""Runs of pipelines as timelines: by hand, the library's, and on paper."""

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.parallel.pipedream import PipeDream
from minidist.parallel.schedules import lists, parse, pipedream, zb_h1
from minidist.parallel.simulate import simulate
from minidist.study import stages, timeline
from minidist.study.stages import KINDS, _trace
from tests.study.traces import US

BY_HAND = [[("F0", 0.0, US), ("B0", 4 * US, 6 * US)], [("F0", US, 2 * US), ("B0", 2 * US, 4 * US)]]


def test_text_of_runs_by_hand_on_one_axis():
    assert stages({"by hand": BY_HAND, "again": BY_HAND}, title="Two").text == (
        "Two\n"
        + "\n".join(
            f"{name}: 2 ranks, 5.72 µs\n  rank 0: forward 954 ns, backward 1.91 µs\n"
            "  rank 1: forward 954 ns, backward 1.91 µs"
            for name in ("by hand", "again")
        )
    )


def test_a_simulation_is_drawn_with_its_own_times():
    run = simulate(lists(zb_h1, 2, 3), update=0.5)
    spans = list(_trace(run).spans)
    assert [(s.rank, s.name, s.start, s.end) for s in spans] == [
        (s.stage, str(s.action), s.start, s.end) for row in run.spans for s in row
    ]
    assert {s.name[0]: s.kind for s in spans} == {"F": "forward", "I": "backward", "W": "weights"}
    assert stages({"": run}).png == timeline({"": _trace(run)}, title="Stages").png


def trained(comm):
    part = nn.Linear(2, 2, dtype=torch.float64)
    run = PipeDream(part, comm, lambda p: torch.optim.SGD(p, lr=0.1), nn.functional.mse_loss)
    run.run([(torch.ones(1, 2, dtype=torch.float64),) * 2] * 3)
    return run.spans


def test_the_librarys_spans_with_updates():
    spans = list(_trace(World(2).run(trained)).spans)
    for stage in range(2):
        done = [s for s in spans if s.rank == stage]
        assert [s.name for s in done] == [str(action) for action in pipedream(stage, 2, 3)]
        assert [s.kind for s in done] == [KINDS[action.kind] for action in pipedream(stage, 2, 3)]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ({}, "at least one trace"),
        ({"a": [[], []]}, "has no message and no span"),
        ({"a": [[], [("X0", 0.0, 1.0)]]}, "stage 1 did 'X0', and actions are F, B, I, W, U"),
        ({"a": [[("", 0.0, 1.0)]]}, "stage 0 did ''"),
    ],
)
def test_what_cannot_be_drawn(runs, words):
    with pytest.raises(ValueError, match=words):
        stages(runs)


def test_every_kind_of_action_has_a_name():
    assert [KINDS[action.kind] for action in parse("F0 B0 I0 W0 U0")] == list(KINDS.values())
