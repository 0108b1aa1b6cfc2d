"""The picture of live memory over time."""

import pytest
import torch

from minidist.comm import Cluster, Device, Trace, World
from minidist.comm.trace import Timeline
from minidist.study import measure, memory_plot, memory_timeline
from tests.comm.nets import Training, mlp

TOY = Device("toy", {torch.float32: 1e12}, 10**9, bandwidth=1e11, launch=1e-6)


def test_a_profile_with_its_phases():
    picture = memory_timeline(measure(Training(mlp, "momentum").step), title="A step")
    rows = picture.text.splitlines()
    assert rows[0] == "A step" and rows[1].startswith("  peak ") and "activations" in rows[1]
    assert [row.split("(")[0] for row in rows[2:5]] == [
        "  after forward ",
        "  after backward ",
        "  after step ",
    ]
    assert rows[5].startswith("  at the end: ") and "optimizer states 340 kB" in rows[5]
    assert picture.png.startswith(b"\x89PNG") and (picture.width, picture.height) == (883, 355)


def test_a_rank_of_a_world():
    def program(comm):
        return (torch.ones(1000 * (comm.rank + 1)) + 1).sum()

    results = World(2, cluster=Cluster.uniform(2, 0.0, 0.0, device=TOY)).run(program)
    for run in (results, results.trace):
        assert (
            "peak 8,000 B" in memory_timeline(run).text
            and "peak 16 kB" in memory_timeline(run, 1).text
        )
    assert (
        memory_timeline(results.trace.memory[1], title="").text
        == memory_timeline(results, 1, title="").text
    )


def test_the_same_run_gives_the_same_picture():
    pictures = [memory_timeline(measure(Training(mlp, "momentum").step)).png for _ in range(2)]
    assert pictures[0] == pictures[1]


def test_pictures_that_share_the_top_of_their_axis(monkeypatch):
    seen = []
    monkeypatch.setattr(memory_plot, "Picture", lambda fig, text: seen.append((fig.axes[0], text)))
    run = measure(Training(mlp, "momentum").step)
    for most in (0, run.peak / 2, run.peak, 4 * run.peak):
        memory_timeline(run, most=most)
    tops = [ax.get_ylim()[1] for ax, _ in seen]
    assert tops[0] == tops[1] == tops[2] and len({text for _, text in seen}) == 1
    (line, *_), below = seen[-1][0].lines, seen[0][0].lines[0]
    assert line.get_ydata()[0] / tops[-1] == pytest.approx(below.get_ydata()[0] / tops[0] / 4)


def test_errors():
    with pytest.raises(ValueError, match="rank 0 has no timeline of its memory; none has one"):
        memory_timeline(Trace(2))
    trace = Trace(2)
    trace.memory[1] = Timeline([0.0, 0.0], [8, -8], [0, 0])
    with pytest.raises(ValueError, match=r"rank 0 has no timeline.*those that have one: \[1\]"):
        memory_timeline(trace)
    with pytest.raises(
        ValueError, match="all 2 changes of memory are at 0 s: there is no time to draw"
    ):
        memory_timeline(trace, 1)
    with pytest.raises(ValueError, match="all 0 changes"):
        memory_timeline(Timeline([], [], []))
