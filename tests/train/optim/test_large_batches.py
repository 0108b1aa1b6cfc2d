"""On the digits, small: the linear rule breaks at k = 16, LARS and LAMB hold; without warm-up it breaks at k = 8."""

import pytest
import torch

from benchmarks.optim import reached
from tests.largest import smallest


@pytest.fixture(scope="module")
def accuracy():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda name: reached(name, 2)
    torch.set_num_threads(threads)


def test_the_linear_rule_breaks_and_trust_ratios_hold(accuracy):
    assert accuracy("linear, k = 16") < 80
    assert smallest(accuracy("LARS, k = 16"), accuracy("LAMB, k = 16")) > 92


def test_warm_up(accuracy):
    assert accuracy("linear, k = 8, no warm-up") < 80 < 92 < accuracy("linear, k = 8")
