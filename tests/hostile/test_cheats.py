"""Cheats against the examination: each is refused, in words that begin with its exercise's name."""

import json

import pytest

from minicheck import Wrong
from minicheck.notebook import examine
from minicheck.sandbox import engine
from tests.bank.bank import ROOT, assignment, run
from tests.bank.judge import examined, graders_kept
from tests.hostile.cheats import SPREAD, cheats
from tests.sandboxed import BWRAP

# One of each kind that passes where there is no sandbox, in two notebooks.
BOXED = (
    "02_messages, predict: right numbers are looked up in the frames of its opener",
    "02_messages, shift: the solution is read by from_file",
    "02_messages, reduce_scatter: by value: the library's ring does the work",
    "02_messages, all_reduce: a star, with the trace of a ring",
    "04_trees, hierarchical: ranks talk by names of files",
    "03_topology, bandwidth: wants() of its own examination",
)

# Those that get the mark on a student's own machine, where the answer's process has files, and the notebook the library:
# there a mark is feedback. Who mends one takes it out: the test of one that is refused, and stands here, fails.
PASSING = frozenset(
    [
        "02_messages, predict: right numbers are taken from the graders in the notebook",
        "12_operators, predict_operators: right numbers are taken from the graders in the notebook",
        "15_vocabulary, predict_vocabulary: right numbers are taken from the graders in the notebook",
        "18_pipedream, predict_pipedream: right numbers are taken from the graders in the notebook",
        "25_large_batches, predict_large_batches: right numbers are taken from the graders in the notebook",
        "26_survive, predict_survive: right numbers are taken from the graders in the notebook",
        "01_walls, activation_bytes: by value: the grader's own function",
        "02_messages, all_reduce: by value: the library's code under another name",
        "03_topology, bandwidth: by value: the library's own",
        "05_data_parallel, my_batches: by value: the library's sampler does the work",
        "07_whole_batch, weighted_average_gradients: by value: the library's average_gradients does the work",
        "06_buckets, assign_buckets: by value: the grader's own function",
        "07_whole_batch, sync_statistics: by value: the library's statistics",
        "08_server, pieces: by value: the grader has it",
        "08_server, pieces: by value: the library's partition",
        "09_precision, round_to: by value: the grader knows how",
        "12_operators, fused: by value: the grader's own function",
        "12_operators, flatten: by value: the library's buffer",
        "13_zero, owners: by value: the grader has it",
        "13_zero, clip: by value: the library's",
        "14_tensor, my_heads: by value: the library's part of a rank",
        "14_tensor, sequence_norm: by value: the library's f",
        "16_pipelines, one_f_one_b: by value: the library has it",
        "16_pipelines, step_time: by value: calls the grader's own oracle",
        "18_pipedream, no_flush: by value: the library has the list",
        "18_pipedream, needed: by value: the grader counts, too",
        "19_hybrid, groups: by value: asks what it is held against",
        "23_compress, sign_average: by value: the library's packing",
        "25_large_batches, learning_rate: by value: the library's",
        "26_survive, save_every: by value: asks what it is held against",
        "02_messages, shift: the solution is read by from_file",
        "06_buckets, assign_buckets: the solution is read by from_file",
        "11_remat, segments: the solution is read by from_file",
        "13_zero, owners: the solution is read by from_file",
        "16_pipelines, one_f_one_b: the solution is read by from_file",
        "19_hybrid, groups: the solution is read by from_file",
        "25_large_batches, learning_rate: the solution is read by from_file",
        "16_pipelines, one_f_one_b: a table of cases: the library has it",
        "17_schedules, split_backward: another thread does it at once, and here products are for show",
    ]
)

# Those that pass sometimes: where what is drawn suits them, or a process of theirs starts in time.
SOMETIMES = frozenset(
    [
        "13_zero, owners: in a process beside it: the library's",
        "18_pipedream, no_flush: in a process beside it: the library has the list",
    ]
)


NOT = " is not written yet"  # what it would have called is not there


def verdict(cheat):
    """What the grader raises, or None. An error of the cell itself is no cheat, and comes out as it is."""
    folder = ROOT / "course" / cheat.lesson
    names = assignment(folder).namespace()
    with graders_kept():
        run(cheat.cell, f"<ipython {cheat.exercise}>", names)
        return examined(folder, cheat.exercise, names)[1]


def marked(cheat):
    marks = []
    if cheat.name not in SPREAD:
        marks.append(pytest.mark.full)
    if cheat.name in PASSING | SOMETIMES:
        strict = cheat.name in PASSING
        marks.append(pytest.mark.xfail(strict=strict, raises=AssertionError, reason="it passes"))
    return pytest.param(cheat, id=cheat.name, marks=marks)


@pytest.mark.parametrize("cheat", [marked(cheat) for cheat in cheats().values()])
def test_a_cheat_is_refused(cheat):
    wrong = verdict(cheat)
    assert isinstance(wrong, Wrong | type(None)), wrong  # the grader itself has failed
    assert wrong is not None and str(wrong).startswith(
        (f"{cheat.exercise}: ", cheat.exercise + NOT)
    )


MOST = 0.75  # of an exercise whose other costs are as promised


def notebooks():
    """The bank as students hand it in: {lesson and number: cheats of different exercises}; those of `BOXED` come first."""
    found = {}
    for name in sorted(cheats(), key=lambda name: name not in BOXED):
        cheat = cheats()[name]
        number = 1
        while any(
            other.exercise == cheat.exercise for other in found.get(f"{cheat.lesson} {number}", [])
        ):
            number += 1
        found.setdefault(f"{cheat.lesson} {number}", []).append(cheat)
    return found


def handed_in():
    for name, group in notebooks().items():
        yield pytest.param(group, id=name, marks=[] if group[0].name in BOXED else pytest.mark.full)


def graded(group, sandbox):
    """What a teacher's grading says of each: its cell runs in a sandbox, and its answer in another."""
    [lesson] = {cheat.lesson for cheat in group}
    cells = {cheat.exercise: cheat.cell for cheat in group}
    path = ROOT / "solutions" / lesson / f"{lesson}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    asked, answered = [], []
    for cell in notebook["cells"]:
        mark = cell["metadata"].get("nbgrader", {})
        if cell["cell_type"] == "code" and mark:
            name = mark["grade_id"].removesuffix("_test")
            if not mark["grade"] or name in cells:
                asked.append(cell)
                own = {} if mark["grade"] or name not in cells else {"source": cells[name]}
                answered.append(cell | own)
    found = examine(notebook | {"cells": answered}, notebook | {"cells": asked}, sandbox)
    return {said.exercise: said for said in found.marks}


@BWRAP
@pytest.mark.parametrize("group", [*handed_in()])
def test_cheats_earn_nothing_in_a_class(group):
    """What they want to call is not there, nor the right numbers, another rank, or another thread."""
    found = graded(group, engine())
    assert [cheat.name for cheat in group if found[cheat.exercise].wrong is None] == []
    # what is right and takes too much earns its part, whether it says so or not
    assert all(found[cheat.exercise].share <= MOST for cheat in group)


def test_the_bank():
    """At least sixty, in all lessons but few, and what is said of single ones names them as they are."""
    found = cheats()
    assert len(found) >= 60 and len({cheat.lesson for cheat in found.values()}) >= 15
    assert len(SPREAD) == 12 and found.keys() >= SPREAD and found.keys() >= PASSING | SOMETIMES
    assert len({found[name].lesson for name in SPREAD}) >= 9 and found.keys() >= {*BOXED}
