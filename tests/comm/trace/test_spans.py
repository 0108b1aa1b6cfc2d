"""Spans in columns are a list of Span to whoever reads them."""

import pickle
import sys

import pytest

from minidist.comm import Span
from minidist.comm.trace.spans import Spans

A, B = Span(0, "main", "compute", 0.0, 1.0, "mm"), Span(3, "lane 0", "wait", 0.5, 2.0, "")


def test_they_come_back_as_they_were():
    spans = Spans([A, B])
    spans.append(A)
    spans.add(1, "main", "compute", 1.0, 1.5, "mm")
    spans += [B]
    assert list(spans) == spans[:] == [A, B, A, Span(1, "main", "compute", 1.0, 1.5, "mm"), B]
    assert len(spans) == 5 and spans[1] == spans[-1] == B and spans[1:3] == [B, A]
    assert all(isinstance(s, Span) for s in spans) and repr(spans) == "Spans(5)"
    with pytest.raises(IndexError):
        spans[5]


def test_equal_to_a_list_and_to_themselves():
    assert Spans([A, B]) == [A, B] == list(Spans([A, B])) and Spans([A, B]) == Spans([A, B])
    assert Spans([A, B]) != Spans([B, A]) and Spans() == [] and not Spans() and Spans() != "spans"
    spans = Spans([A])
    spans += spans
    assert spans == [A, A]


def test_they_travel_between_processes():
    assert pickle.loads(pickle.dumps(Spans([A, B]))) == [A, B]


def test_one_takes_24_bytes():
    spans = Spans()
    for i in range(10_000):
        spans.add(i % 7, "main", "compute", i, i + 1, "add_")
    room = sys.getsizeof(spans._rows)
    assert 24 * 10_000 <= room < 28 * 10_000 and len(spans._words) == 1
