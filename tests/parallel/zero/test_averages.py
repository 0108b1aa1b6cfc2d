"""What is an average, what was added to it, and what was dropped, told apart."""

import gc
import weakref

import torch
from torch import nn

from minidist.parallel.zero.averages import Averages


def given():
    p, averages = nn.Parameter(torch.zeros(2)), Averages()
    averages.give(p, torch.tensor([1.0, 2.0]))
    return p, averages


def test_set_aside_and_added():
    p, averages = given()
    averages.set_aside(p)
    assert p.grad is None
    p.grad = torch.ones(2)
    averages.set_aside(p)  # an increment is not an average
    assert p.grad.tolist() == [1, 1]
    averages.give(p, p.grad * 10)
    assert p.grad.tolist() == [11, 12]
    averages.set_aside(p)
    averages.give(p, None)  # no rank has added anything
    assert p.grad.tolist() == [11, 12]


def test_dropped_in_between():
    p, averages = given()
    averages.set_aside(p)
    p.grad = torch.ones(2)
    p.grad = None
    averages.set_aside(p)
    averages.give(p, torch.ones(2))
    assert p.grad.tolist() == [1, 1]
    averages.set_aside(p)
    averages.forget()
    averages.give(p, None)
    assert p.grad is None


def test_no_memory_is_held():
    """A gradient is known while it is somebody's, also when nothing in Python refers to it, and not longer."""
    p, averages = given()
    gc.collect()
    alive = weakref.ref(p.grad)
    averages.set_aside(p)
    assert p.grad is None and alive() is not None
    averages.give(p, None)
    p.grad = None
    assert alive() is None
