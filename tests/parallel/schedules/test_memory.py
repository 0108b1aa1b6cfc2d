"""What is kept, counted from a list."""

from minidist.parallel.schedules import in_flight, kept, parse


def test_whole_backwards():
    assert kept(parse("F0 F1 B0 F2 B1 U1 B2")) == [1, 2, 1, 2, 1, 1, 0]
    assert in_flight(parse("F0 F1 B0 F2 B1 B2")) == 2


def test_split_backwards():
    halves = parse("F0 I0 F1 I1 W0 W1")
    assert kept(halves) == [1, 1, 2, 2, 1, 0] and in_flight(halves) == 2
    assert kept(halves, each=10, rest=4) == [10, 4, 14, 8, 4, 0]
    assert kept(halves, each=2, rest=0) == [2, 0, 2, 0, 0, 0]


def test_nothing():
    assert kept([]) == [] and in_flight([]) == 0
