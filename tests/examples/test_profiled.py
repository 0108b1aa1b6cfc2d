"""--profile: ours and PyTorch's profiler's trace of the same steps have the same phases, in the same order."""

import json

import pytest

from tests.examples.scripts import as_torchrun, results, run_here
from tests.examples.test_train_gpt import SCRIPT, SHORT

GRID = ["--pp", "2", "--micro-batches", "2", "--batch", "4", "--steps", "4", "--sample", "0"]
# of a step: on each stage of 1F1B with two micro-batches; a phase comes before those within it
FIRST = ["forward", "forward", "backward", "backward"]
LAST = ["forward", "backward", "forward", "backward"]


def annotations(path):
    """(name, start, end, thread) of phases, in the order of their starts, in a file of the Trace Event format; µs."""
    events = json.loads(path.read_text())["traceEvents"]
    kinds = ("phase", "user_annotation")
    found = [event for event in events if event.get("ph") == "X" and event.get("cat") in kinds]
    spans = [(e["name"], e["ts"], e["ts"] + e["dur"], e["tid"]) for e in found]
    return sorted(spans, key=lambda span: (span[1], -span[2])), events


def check(folder, rank, steps):
    ours, events = annotations(folder / "profile" / f"ours-rank{rank}.json")
    theirs, operators = annotations(folder / "profile" / f"torch-rank{rank}.json")
    names = {span[0] for span in ours}
    middle = LAST if rank else FIRST
    expected = ["step", "data", *middle, "clip", "update"] * steps
    assert [span[0] for span in ours] == expected
    assert [span[0] for span in theirs if span[0] in names] == expected
    for spans in (ours, [span for span in theirs if span[0] in names]):
        assert len({span[3] for span in spans}) == 1, "all of a rank's phases lie in one row"
        whole = [span for span in spans if span[0] == "step"]
        for _, start, end, _ in spans:
            inside = [w for w in whole if w[1] - 1 <= start and end <= w[2] + 1]
            assert start <= end and len(inside) == 1
    messages = [event for event in events if event.get("cat") == "message"]
    assert sum(event["args"]["bytes"] for event in messages) > 0
    assert any(event.get("name") == "aten::addmm" for event in operators)
    assert ours[0][1] >= 0
    return ours, theirs


@pytest.mark.parametrize("world", [pytest.param("processes", marks=pytest.mark.full), "torchrun"])
def test_both_traces_have_the_same_phases(world, tmp_path, figure):
    flags = [*SHORT, *GRID, "--folder", str(tmp_path / "run"), "--profile", "2"]
    if world == "processes":
        run_here(SCRIPT, [*flags, "--ranks", "2", "--runner", "processes"])
    else:
        as_torchrun(SCRIPT, flags, 2)
    for rank in range(2):
        ours, theirs = check(tmp_path / "run", rank, 2)
        shares = [
            sum(end - start for name, start, end, _ in spans if name == "forward")
            / sum(end - start for name, start, end, _ in spans if name == "step")
            for spans in (ours, theirs)
        ]
        assert abs(shares[0] - shares[1]) < 0.1
        figure(f"{world}, rank {rank}: forward is {shares[0]:.3f} of a step, and {shares[1]:.3f}")


def test_a_profile_changes_no_loss(tmp_path):
    serial = [*SHORT, "--ranks", "1", "--runner", "processes", "--steps", "3"]
    kept = ["--folder", str(tmp_path / "run"), "--profile", "9"]
    runs = {"plain": serial, "profiled": [*serial, *kept]}
    found = results(SCRIPT, runs, tmp_path)
    assert found["plain"]["losses"] == found["profiled"]["losses"]
    names = ["step", "data", "forward", "backward", "clip", "update"]
    for kind in ("ours", "torch"):
        spans, _ = annotations(tmp_path / "run" / "profile" / f"{kind}-rank0.json")
        found = [span[0] for span in spans if span[0] in names]
        assert found == names * 2, "a run that ends before is written, too"


@pytest.mark.parametrize("flags", [["--folder", "run"], ["--runner", "processes"]])
def test_what_a_profile_needs(flags, capsys):
    with pytest.raises(SystemExit):
        run_here(SCRIPT, [*SHORT, "--ranks", "1", "--profile", "1", *flags])
    assert "add --runner processes" in capsys.readouterr().err
