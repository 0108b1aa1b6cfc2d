"""The faults that `make mutants` plants: each changes one place, and what it makes is Python."""

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants.fault import Fault, techniques
from tests.repository.files import ROOT
from tests.size import FULL

FAULTS = [fault for faults in techniques().values() for fault in faults]


def test_there_are_enough_for_each_technique():
    assert len(FAULTS) >= 200
    assert [name for name, faults in techniques().items() if len(faults) < 3] == []


def test_titles_differ():
    titles = Counter(
        (name, fault.title) for name, faults in techniques().items() for fault in faults
    )
    assert [title for title, times in titles.items() if times > 1] == []


def test_each_changes_one_place_and_leaves_python():
    for fault in FAULTS:
        assert fault.old != fault.new, fault
        planted = fault.planted((ROOT / fault.path).read_text(encoding="utf-8"))
        if fault.path.endswith(".py"):
            ast.parse(planted)


def test_each_names_tests_that_are_there():
    for fault in FAULTS:
        for test in fault.asked:
            path, *names = test.split("::")
            text = (ROOT / path).read_text(encoding="utf-8")
            assert all(f"def {name.partition('[')[0]}(" in text for name in names), fault


def test_all_are_found(figure):
    """At full size all of them, else those of one technique."""
    chosen = [] if FULL else ["naive"]
    command = [sys.executable, "-m", "tests.mutants", *chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    figure(done.stdout.strip())
    print(done.stdout)
    assert done.stdout.rstrip().endswith(" faults, 0 not found") and done.returncode == 0


SPLIT = Fault("", "split.py", "", "", "test_split.py")


@pytest.mark.parametrize(("old", "times"), [("no such text", 0), ("n", None)])
def test_an_edit_that_is_not_unique_is_refused(old, times):
    text = (ROOT / SPLIT.path).read_text(encoding="utf-8")
    with pytest.raises(
        ValueError,
        match=f"stands there {text.count(old) if times is None else times} times, not once",
    ):
        SPLIT._replace(old=old).planted(text)


def test_verdicts(tmp_path):
    """A fault that a test sees, one that it does not, and one that breaks the import."""
    seen = Fault("seen", "decide_for_test.py", "return 1", "return 2", "test_decide_for_test.py")
    verdicts = {}
    copy = mutants.Copy.__new__(mutants.Copy)
    copy.folder = tmp_path
    copy._writes = 0
    copy._whole = ""
    (tmp_path / "minidist").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / seen.path).write_text("def one():\n    return 1\n\n\ndef unseen():\n    return 3\n")
    (tmp_path / "tests" / seen.tests).write_text(
        "import sys\nsys.path.insert(0, 'minidist')\nimport decide_for_test\n\n\n"
        "def test_one():\n    assert decide_for_test.one() == 1\n"
    )
    faults = [
        seen,
        seen._replace(title="unseen", old="return 3", new="return 4"),
        seen._replace(title="broken", old="return 3", new="return ("),
    ]
    for fault in faults:
        copy.plant(fault)
        run = mutants.Run(copy, fault.asked, 60)
        while (verdict := run.verdict()) is None:
            pass
        verdicts[fault.title] = verdict
        copy.heal(fault)
    assert verdicts["seen"] == mutants.FOUND and verdicts["unseen"] == "no test sees it"
    assert verdicts["broken"].startswith("pytest ends with ")
    assert (tmp_path / seen.path).read_text().count("return") == 2
