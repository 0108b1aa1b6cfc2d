"""Lesson 20: other right ways pass, and odd answers are told.

The usual mistakes are in course/20_experts/bugs.py, which tests/bank examines.
"""

import torch

from minicheck.lessons import experts
from minicheck.lessons.experts import AverageExperts, Dispatch, Seated
from minicheck.oracles import experts as oracle
from tests.minicheck.examined import assert_odd_answers_are_told, refused, rng

STYLES = [
    (
        "seated",
        "return (place <= seats).view(choices.shape)",
        """
taken = [0] * experts
found = []
for choice in choices.flatten().tolist():
    found.append(taken[choice] < seats)
    taken[choice] += found[-1]
return torch.tensor(found, dtype=torch.bool).view(choices.shape)
""",
    ),
    (
        "dispatch",
        "ordered = [piece for i in range(own) for piece in pieces[i::own]]",
        """
whose = torch.arange(own).repeat(comm.size).repeat_interleave(table.flatten())
ordered = [received[whose.argsort(stable=True)]]
""",
    ),
    ("combine", "out = torch.empty_like(back)", "out = torch.zeros(len(expert), 3).to(back)"),
    (
        "average_experts",
        "expert = all_reduce_(data, expert.clone()) / comm.size",
        'expert = all_reduce_(data, expert / ep, op="mean")',
    ),
]


def test_other_right_ways():
    assert refused("20_experts", STYLES) == {}


def test_odd_answers_are_told():
    assert_odd_answers_are_told(experts)


def test_what_is_drawn_can_tell_the_mistakes():
    """The two orders of seats differ, a rank has no row, an expert has none, and gradients differ from rank to rank."""
    exam = Seated()
    choices, count, seats = exam.draw(exam.cases[1], rng())[0]
    assert not torch.equal(
        oracle.seated(choices, count, seats), oracle.seated(choices, count, seats, by_choice=True)
    )
    exam = Dispatch()
    args = exam.draw(exam.cases[1], rng())
    assert not len(args[1][0]) and not any((a[1] == 1).any() for a in args)
    exam = AverageExperts()
    wants = exam.wants(exam.cases[2], exam.draw(exam.cases[2], rng()))
    first, second, third, *_ = [want["the gradient of the experts"] for want in wants]
    assert torch.equal(first, third) and not torch.equal(first, second)
