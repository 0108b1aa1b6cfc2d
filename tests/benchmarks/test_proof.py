"""The table of a proof: its tests are there, and it tells how each has ended, and what it has shown."""

from xml.etree import ElementTree

import pytest

from benchmarks.proof.__main__ import run_tests, show, told
from benchmarks.proof.items import PROOFS
from tests.repository.files import ROOT

REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="figure" value="n=2: 0.5&#10;n=3: 0.7"/></properties></testcase>
<testcase name="b"/>{}</testsuite></testsuites>"""
SHOWN = "n=2: 0.5\nn=3: 0.7\n"


def test_every_test_is_there():
    words = []
    for items in PROOFS.values():
        for _, *tests in items.values():
            words += [word for word in tests if "/" in word]
    for path, *names in [word.split("::") for word in words]:
        assert (ROOT / path).exists(), path
        for name in names:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {name.partition('[')[0]}(" in text, (path, name)


def test_each_item_says_what_its_figure_means():
    for items in PROOFS.values():
        for means, *tests in items.values():
            assert means and tests and all(isinstance(word, str) for word in tests)


@pytest.mark.parametrize(
    ("case", "rows", "held"),
    [
        ("", "2 passed", True),
        (
            '<testcase name="c"><skipped message="no GPU is seen"/></testcase>',
            "skipped: c: no GPU is seen\n2 passed, 1 skipped",
            True,
        ),
        (
            '<testcase name="c"><skipped message="there is no tc"/></testcase>',
            "skipped: c: there is no tc\n2 passed, 1 skipped",
            False,
        ),
        (
            '<testcase name="c"><failure message="1 != 2&#10;more"/></testcase>',
            "failure: c: 1 != 2\n2 passed, 1 failure",
            False,
        ),
    ],
)
def test_how_tests_ended(case, rows, held):
    cases = [*ElementTree.fromstring(REPORT.format(case)).iter("testcase")]
    assert told(cases, True) == (SHOWN + rows, held) and told(cases, False)[1] is False


def test_nothing_shows_nothing():
    assert told([], True) == ("no test ran", False)


def test_a_real_one():
    figure, held = run_tests(
        "tests/collectives/test_ring.py::test_the_bandwidth_inside_a_node_is_what_was_measured"
    )
    assert held and "8 H200s: bus bandwidth" in figure and figure.endswith("\n1 passed")


def test_an_unknown_name():
    with pytest.raises(
        SystemExit, match="no proof is named 'foundations'; there are: foundation, "
    ):
        show("foundations", [], False)
