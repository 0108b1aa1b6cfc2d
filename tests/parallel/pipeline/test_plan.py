"""Messages derived from lists: each in the order of sending, and over when an answer proves it."""

import pytest

from minidist.parallel.pipeline.plan import edges, label, plan
from minidist.parallel.schedules import (
    Item,
    Shape,
    gpipe,
    interleaved,
    lists,
    naive,
    one_f_one_b,
    parse,
    zb_h1,
)


def short(edge):
    return f"{edge.what}{edge.part}"


def plans(schedule, S, M, v=1):
    every = lists(schedule, S, M)
    return [plan(every, Shape(S, M, v), stage) for stage in range(S)]


def test_edges():
    assert [(short(e), e.src, e.dst) for e in edges(Shape(3, 1))] == [
        ("a0", 0, 1),
        ("g1", 1, 0),
        ("a1", 1, 2),
        ("g2", 2, 1),
    ]
    assert [(e.src, e.dst) for e in edges(Shape(2, 1, 2)) if e.what == "a"] == [
        (0, 1),
        (1, 0),
        (0, 1),
    ]
    assert [(e.src, e.dst) for e in edges(Shape(2, 1, 2, "V")) if e.what == "a"] == [
        (0, 1),
        (1, 1),
        (1, 0),
    ]
    assert edges(Shape(1, 4)) == []


def test_order_is_the_senders():
    every = [parse("F1 F0 F2 B2 B0 B1"), parse("F0 F1 F2 B2 B0 B1")]
    first, second = (plan(every, Shape(2, 3), stage) for stage in (0, 1))
    assert {short(e): o for e, o in second.order.items()} == {"a0": [1, 0, 2]}
    assert {short(e): o for e, o in first.order.items()} == {"g1": [2, 0, 1]}


def over(found):
    return {
        str(action): sorted(f"{short(e)}:{m}" for e, m in some)
        for action, some in zip(found.actions, found.over, strict=True)
        if some
    }


def test_over_by_hand():
    """Stage 0's F1 was used before stage 1 sent the gradient of micro-batch 1; its gradients are never answered."""
    first, second = plans(one_f_one_b, 2, 3)
    assert over(first) == {"B0": ["a0:0"], "B1": ["a0:1"], "B2": ["a0:2"]}
    assert over(second) == {"F2": ["g1:0"]}, (
        "stage 0 sends F2 after B0; F1 was sent before, and after B1 there is none"
    )
    first, second = plans(gpipe, 2, 2)
    assert over(first) == {"B0": ["a0:0", "a0:1"]}, (
        "stage 1 has used both when it sends its first gradient"
    )
    assert over(second) == {}


@pytest.mark.parametrize("schedule", [naive, gpipe, one_f_one_b, zb_h1, interleaved])
@pytest.mark.parametrize(("S", "M"), [(1, 2), (2, 4), (3, 6), (4, 8)])
def test_a_send_is_over_only_when_its_receiver_has_it(schedule, S, M):
    """Run the lists by hand, in the order of one global clock, and look at what has been used."""
    v = 2 if schedule is interleaved else 1
    shape, every = Shape(S, M, v), lists(schedule, S, M)
    found = plans(schedule, S, M, v)
    place = [0] * S
    made = set()
    used = set()
    freed = set()
    sent = set()
    while any(place[s] < len(every[s]) for s in range(S)):
        for stage in range(S):  # as far ahead as it can: what is over must hold for every order
            while place[stage] < len(every[stage]):
                action = every[stage][place[stage]]
                if any(need not in made for need in shape.needs(stage, action)):
                    break
                used |= {(need.what, need.part, need.micro) for need in shape.far(stage, action)}
                for edge, micro in found[stage].over[place[stage]]:
                    key = edge.what, edge.part, micro
                    assert edge.src == stage and key in used and key in sent and key not in freed
                    freed.add(key)
                item = shape.gives(stage, action)
                made.add(item)
                sent.add((item.what, item.part, item.micro))
                place[stage] += 1
    if schedule is one_f_one_b and S > 1:
        assert len(freed) > 2 * (S - 1) * M - S * S, "only the last few are not answered"


def test_labels():
    shape = Shape(2, 4, 2)
    assert [label(Item("a", 3, part), shape) for part in range(3)] == ["F3", "F3", "F3.1"]
    assert [label(Item("g", 3, part), shape) for part in range(1, 4)] == ["B3", "B3.1", "B3.1"]
    assert label(Item("a", 0, 2), Shape(2, 1, 2, "V")) == "F0.1"
