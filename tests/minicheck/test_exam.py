"""What a wrong value looks like; and plain values survive the way to another process."""

import math
import pickle
import re
import tracemalloc
from collections import Counter, defaultdict, deque
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from types import SimpleNamespace

import numpy
import pytest
import torch

import minicheck
from minicheck.exam import (
    DTYPES,
    HIDDEN,
    UNKNOWN,
    Case,
    Costly,
    Exam,
    Other,
    Outcome,
    Prediction,
    Report,
    Wrong,
    attempt,
    bare,
    clipped,
    close,
    decode,
    encode,
    entries,
    few,
    finished,
    formed,
    holds,
    identical,
    left_open,
    look,
    near,
    norm_is,
    on_time,
    outside_tensors,
    ranked,
    recognized,
    refusal,
    same,
    scaled,
    shaped,
    table,
    unchanged,
    unpacked,
    waited,
    who,
    whole,
    wrong_means,
)
from minicheck.guard import grader, graders
from minidist.comm.world import World

RNG = torch.Generator().manual_seed(0)
A, B, C = (whole((5,), torch.float32, RNG) for _ in range(3))


@pytest.mark.parametrize(
    ("got", "rank", "says"),
    [
        (A + B + C, 0, "the sum over all ranks"),
        (A + B, 0, "lacks rank 2"),
        (A + 2 * B + C, 0, "counts rank 1 twice"),
        (2 * A + B, 1, "counts rank 0 twice and lacks rank 2"),
        (A, 0, "own, as before"),
        (A, 1, "It is rank 0's"),
        ((A + B + C) / 3, 0, "average"),
        (3 * A, 0, "3 times rank 0's"),
        (0 * A, 0, "zero"),
        (2 * C, 0, "lacks ranks 0 and 1"),
    ],
)
def test_which_ranks_went_into_it(got, rank, says):
    assert says in who(got, [A, B, C], rank)


@pytest.mark.parametrize("got", [A - B, A + 1, torch.full((5,), float("nan")), A[:0]])
def test_what_fits_nothing(got):
    assert who(got, [A, B, C] if len(got) else [A[:0]] * 3, 0) is None


class Dear(Exam):
    """Judged by what an outcome has for results: what each of judge, bytes and time raise, if anything."""

    name, right = "dear", ""
    promises = {"bytes": 0.5, "time": 0.25}

    def judge(self, case, args, outcome, which=0):
        raised = outcome.results[which]
        if raised:
            raise raised(f"of {('judge', 'bytes', 'time')[which]}")

    def bytes(self, *one):
        self.judge(*one, which=1)

    def time(self, *one):
        self.judge(*one, which=2)


@pytest.mark.parametrize(
    ("cases", "share", "says"),
    [
        ([(None, Costly, None)], 0.5, "dear: 1: of bytes\nAll else is right: 50% of the points."),
        (
            [(None, None, None), (None, None, Costly)],
            0.75,
            "dear: 2: of time\nAll else is right: 75% of the points.",
        ),
        (
            [(None, Costly, None), (None, Costly, Costly)],
            0.25,
            "dear: 1: of bytes\n2: of time\nAll else is right: 25% of the points.",
        ),
        ([(None, Costly, None), (Wrong, None, None)], 0.0, "dear: 2: of judge"),
        ([(None, Wrong, None)], 0.0, "dear: 1: of bytes"),
        ([(Costly, None, None)], 0.0, "dear: 1: of judge"),
    ],
)
def test_a_promise_is_worth_its_share(cases, share, says):
    outcomes = [(Case(1, str(i)), [()], Outcome(list(of), [])) for i, of in enumerate(cases, 1)]
    with pytest.raises(Wrong) as caught:
        look(Dear(), outcomes)
    assert caught.value.share == pickle.loads(pickle.dumps(caught.value)).share == share
    assert str(caught.value) == says
    look(Dear(), [(Case(1, "1"), [()], Outcome([None] * 3, []))])


def test_promises_are_there_and_leave_points_for_the_result():
    exams = [
        g.exam
        for g in vars(minicheck).values()
        if hasattr(g, "exam") and hasattr(g.exam, "promises")
    ]
    assert any(exam.promises for exam in exams)
    for exam in exams:
        assert sum(exam.promises.values()) < 1 and all(
            hasattr(exam, name) for name in exam.promises
        )


def test_same_says_where():
    wrong = A.clone()
    wrong[3] = 0.5
    with pytest.raises(
        Wrong, match=r"rank 2: x\[3\] is 0.5, and should be \d+ \(1 of 5 numbers are wrong\)"
    ):
        same(wrong, A, "rank 2: x")
    with pytest.raises(Wrong, match=r"number 1 of the result"):
        same(torch.tensor([[1, 9]]), torch.tensor([[1, 2]]), "rank 0: the result")
    with pytest.raises(Wrong, match="is nan, and"):
        same(torch.tensor(float("nan")), torch.tensor(1.0), "x")
    same(A.clone(), A, "x")
    for judge in (same, close):
        with pytest.raises(
            Wrong, match=r"x\[2\] is 9, and should be 2 \(2 of 3 numbers are wrong\)"
        ):
            judge(torch.tensor([3.0, 1.0, 9.0]), torch.tensor([2.0, 1.0, 2.0]), "x")


def test_nan_equals_nan_and_whoever_hides_it_hears_so():
    had = torch.tensor([NAN, 2.0, -INF])
    for judge in (same, close):
        judge(had.clone(), had, "x")
        with pytest.raises(Wrong, match=re.escape(HIDDEN)):
            judge(had.nan_to_num(), had, "x")
        with pytest.raises(Wrong, match=r"x\[1\] is 3, and should be 2 \(1 of 3"):
            judge(torch.tensor([NAN, 3.0, -INF]), had, "x")
    identical([had, had.clone()], "x")
    with pytest.raises(Wrong, match="rank 0 and rank 1"):
        identical([had, had.nan_to_num()], "x")


def test_a_tensor_of_one_element_is_a_number():
    close(torch.tensor(2.5), 2.5, "x")
    assert bare([torch.tensor(1), (torch.tensor([2.5]), "a")]) == [1, (2.5, "a")]
    assert bare(torch.tensor([1, 2])).tolist() == [1, 2]


def test_same_asks_the_guess_and_admits_that_it_does_not_know():
    with pytest.raises(Wrong, match="It is B"):
        same(B, A, "x", {"It is C.": C, "It is B.": B, "It is B again.": B})
    with pytest.raises(Wrong, match=UNKNOWN):
        same(A + 1, A, "x", lambda got: who(got, [A, B, C], 0))


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (None, "Is there a `return`"),
        ([1], "is of type list"),
        (A[:2], "shape"),
        (A.double(), "dtype"),
        (3, "is of type int"),
    ],
)
def test_same_looks_at_the_type_first(got, says):
    with pytest.raises(Wrong, match=says):
        same(got, A, "x")


def test_unchanged():
    unchanged(A.clone(), A, "x")
    unchanged([1, (2,)], [1, (2,)], "x")
    for after in (A + 1, A[:2], None):
        with pytest.raises(Wrong, match="belongs to the caller"):
            unchanged(after, A, "x")
    for after, before, name, says in (
        ([1, 2, 3], [1, 2], "x", "x was changed"),
        ([A, A + 1], [A, A], "rank 0: x", r"rank 0: x\[1\] was changed"),
        ([[1], [3]], [[1], [2]], "`x`", r"`x\[1\]\[0\]` was changed"),
    ):
        with pytest.raises(Wrong, match=says):
            unchanged(after, before, name)


NAN, INF = float("nan"), float("inf")
D = torch.tensor([1.0, -2.0, 1e3], dtype=torch.float64)


def with_(value, at=1):
    return D.index_fill(0, torch.tensor(at), value)


@pytest.mark.parametrize(
    ("got", "want", "slack", "is_near"),
    [
        (D + 1e-7, D, None, True),
        (D + 1e-5, D, None, False),
        (D.float() + 1e-2, D.float(), None, True),
        (D + 1, D, 0.01, True),
        (D[:2], D, None, False),
        (with_(NAN), D, None, False),
        (with_(INF), D, None, False),
        (with_(NAN), with_(NAN), None, True),
        (with_(NAN), with_(INF), None, False),
        (with_(INF), with_(-INF), None, False),
        (with_(INF) + 1, with_(INF), None, False),
        (D, with_(NAN), None, False),
        (D[:0], D[:0], None, True),
        (torch.tensor([2**60]), torch.tensor([2**60]), None, True),
        (torch.tensor([3]), torch.tensor([4]), None, False),
        (None, D, None, False),
        (0.1 + 0.2, 0.3, None, True),
        (0.30001, 0.3, None, False),
        (NAN, 0.3, None, False),
        (NAN, NAN, None, True),
        (0.3, NAN, None, False),
        (INF, 0.3, None, False),
        (0.3, INF, None, False),
        (-INF, INF, 0.01, False),
        (INF, INF, None, True),
        (10**400, 3.0, None, False),
        (2**53 + 1, 2**53, 0, False),
        (3.02, 3, 0.01, True),
    ],
)
def test_what_is_near(got, want, slack, is_near):
    assert near(got, want, slack) is is_near


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (2 * D, "rank 1: dx[2] is 2000, and should be 1000 (3 of 3 numbers are wrong). Twice."),
        (
            with_(NAN),
            "dx[1] is nan, and should be -2 (1 of 3 numbers are wrong). There is inf or nan in it. Is it",
        ),
        (with_(INF), "dx[1] is inf, and"),
        (-D, "A function."),
        (D + 1e-4, "first digits"),
        (with_(NAN, 0), "Not a number."),
        (D.float(), "has dtype torch.float32, and should have torch.float64"),
        (None, "is None. Is there a `return`?"),
    ],
)
def test_close_says_where_and_which_usual_mistake_it_is(got, says):
    table = {"Twice.": 2 * D, "Twice again.": 2 * D, "Not a number.": with_(NAN, 0)}
    mistakes = (lambda got: "A function.") if got is not None and got.equal(-D) else table
    with pytest.raises(Wrong, match=re.escape(says)):
        close(got, D, "rank 1: dx", mistakes, "Is it the rule?")
    close(D * (1 + 1e-10), D, "dx", table)


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (6.0, "it is 6, and should be 3. Twice."),
        (10**400, "it is inf, and should be 3. Compare."),
        (NAN, "it is nan, and should be 3. Compare."),
        (None, "it is None"),
        (True, "it is of type bool, and should be a number"),
        ("3", "it is of type str"),
    ],
)
def test_numbers_are_compared_likewise(got, says):
    with pytest.raises(Wrong, match=re.escape(says)):
        close(got, 3, "it", {"Twice.": 6}, "Compare.")
    close(3.0, 3, "it")


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (2 * D, "2 times too large: summed"),
        (D / 2, "2 times too small"),
        (D + 5, "rank 1's own, as before: nothing was averaged"),
        (D - 5, "rank 0's own: all ranks' are"),
        ((D + 5) / 2, "rank 1's own, divided by 2"),
        (0 * D, "zero: was it cleared"),
    ],
)
def test_what_a_wrong_mean_may_be(got, says):
    table = wrong_means(1, [D - 5, D + 5])
    assert says in recognized(got, table)


def test_a_mean_over_those_that_have_one():
    some = [D, 0 * D, 2 * D]
    assert "over the 2 of 3 ranks" in recognized(1.5 * D, wrong_means(0, some))
    assert "lacks" not in recognized(D / 3, wrong_means(0, some))
    assert recognized(D + 0.5, wrong_means(0, some)) == UNKNOWN


def test_a_function_of_what_was_found_may_say_it():
    assert recognized(D, lambda got: {"D.": got}) == "D."
    assert recognized(D, lambda got: "Words.") == "Words."
    assert recognized(D, lambda got: None, "Else.") == "Else."
    assert recognized(D, None) == UNKNOWN
    assert recognized(3, {"Three.": 3}, fits=lambda a, b: a == b) == "Three."


def test_a_refusal_names_what_is_wrong():
    refusal({"refused": "4 heads, 3 ranks"}, [4, 3], "", "it does not divide")
    with pytest.raises(Wrong, match="rank 0: it does not divide: raise a ValueError"):
        refusal({"found": 1}, [4, 3], "rank 0: ", "it does not divide")
    with pytest.raises(Wrong, match="looks for 4 and 3, and 3 is not in it"):
        refusal({"refused": "4 heads, 13 ranks"}, [4, 3], "", "it does not divide")


def test_values_by_name():
    assert unpacked(3, ("x",)) == {"x": 3}
    assert unpacked([1, 2], ("x", "y")) == {"x": 1, "y": 2}
    for found, says in ((None, "Is there a `return`"), (D, "type Tensor"), ((1,), "has 1 values")):
        with pytest.raises(Wrong, match=says):
            unpacked(found, ("x", "y"))
    entries({"b": 1, "a": 2}, ("a", "b"), "it")
    for found, says in ((None, "Is there a"), ([1], "type list"), ({"a": 1, 3: 2}, "keys")):
        with pytest.raises(Wrong, match=says):
            entries(found, ("a", "b"), "it")


def test_the_same_on_all_ranks():
    identical([D, D.clone()], "x")
    with pytest.raises(
        Wrong, match="x is right but for rounding, which differs on rank 0 and rank 1"
    ):
        identical([D, D + 1e-12], "x")


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (D, "Nothing was scaled"),
        (D / 4, "scaled twice"),
        (2 * D, "at most 1"),
        (D.clamp(-1, 1), "no multiple"),
        (0.5000001 * D, "Nearly"),
        (None, "is None"),
    ],
)
def test_what_clipping_does_to_a_gradient(got, says):
    with pytest.raises(Wrong, match=says):
        scaled(got, D, 0.5, "g", {1.0: "Nothing was scaled."})
    scaled(D / 2, D, 0.5, "g", {})
    with pytest.raises(Wrong, match="was zero"):
        scaled(0 * D + NAN, 0 * D, 0.5, "g", {})


def test_a_norm():
    norm_is(5.0, 5.0, "", {}, "")
    for got, says in ((None, "None"), (25.0, "the root"), (5.00001, "first digits"), (7.0, "Rule")):
        with pytest.raises(Wrong, match=says):
            norm_is(got, 5.0, "rank 0: ", {"It is the square: the root is missing.": 25.0}, "Rule.")


class Table(Exam):
    """`table(x, y)`: 2x, and their sum."""

    name, right = "table", "n = 2."
    cases = (Case(2, "n = 2"),)
    returns, given = ("double", "total"), ("x", "")
    replicated = ("total",)

    def wants(self, case, args):
        total = sum(y for _, y in args)
        return [{"double": 2 * x, "total": total} for x, _ in args]

    def mistakes(self, case, args, rank, name, got):
        return {"It is 3x.": 3 * args[rank][0]} if name == "double" else None

    def cost(self, case, args, outcome):
        few(outcome, 8, "Why?")


@pytest.mark.parametrize(
    ("double", "total", "x", "sent", "says"),
    [
        (2 * D, 3 * D, D, 8, None),
        (3 * D, 3 * D, D, 8, r"rank 0: double\[2\] is 3000, and should be 2000 .* It is 3x."),
        (2 * D, 4 * D, D, 8, "rank 0: total.* It is 1.333 times what it should be"),
        (2 * D, 3 * D * (1 + 1e-12), D, 8, "total is right but for rounding"),
        (2 * D, 3 * D, D + 1, 8, "rank 0: x was changed"),
        (2 * D, 3 * D, D, 9, "rank 0 sends 9 bytes, and 8 are enough. Why"),
    ],
)
def test_an_examination_as_a_table(double, total, x, sent, says):
    args = [(D, D), (D, 2 * D)]
    good = {"found": (2 * D, 3 * D), "given": (D, 5 * D)}  # y may change
    outcome = Outcome([{"found": (double, total), "given": (x, D)}, good], [(0, 1, sent)])
    if says is None:
        return Table().judge(Table.cases[0], args, outcome)
    with pytest.raises(Wrong, match=says):
        Table().judge(Table.cases[0], args, outcome)


def test_the_function_of_an_examination():
    table = grader(Table())
    assert table.__name__ == "table" and table.__doc__.startswith("`table(x, y)`")


def test_cases_as_a_table():
    assert table("{} layers of {}", ((2, 3), (4, 5))) == (
        Case(1, "2 layers of 3", (2, 3)),
        Case(1, "4 layers of 5", (4, 5)),
    )
    assert table(lambda sizes: f"sizes {sizes}", ([1, 2],)) == (Case(1, "sizes [1, 2]", [1, 2]),)
    assert ranked("n = {}, {} steps", ((3, 2), (1, 4))) == (
        Case(3, "n = 3, 2 steps", 2),
        Case(1, "n = 1, 4 steps", 4),
    )
    assert ranked("{}{}{}", ((3, 2, 1),)) == (Case(3, "321", (2, 1)),)


def test_a_lesson_s_graders():
    class Named(Exam):
        name, right = "named", ""

    class Base(Exam):
        pass

    def predict_it(n=2):
        """What is asked."""
        return {"twice": 2 * n}, {"twice": {n: "once"}}

    lesson = SimpleNamespace(a=Named, b=Base, c=Exam, d=Prediction(predict_it, ""), e=predict_it)
    found = graders(lesson)
    assert sorted(found) == ["named", "predict_it"]
    assert found["predict_it"].__doc__ == "What is asked."


def test_a_prediction_that_fails_is_no_fault_of_the_numbers():
    def broken(n=2):
        """What is asked."""
        return {"twice": {}["no"]}, {}

    numbers = [encode(4)]
    with pytest.raises(
        Wrong, match=r"^broken: the grader itself failed, .*KeyError: 'no', in exam.py"
    ):
        Prediction(broken, "").compare(numbers)
    with pytest.raises(Wrong, match=r"^broken: your numbers cannot be read: "):
        Prediction(broken, "").compare([numbers[0][:-1]])


def test_a_report_is_checked_with_what_was_drawn():
    class Kept(Report):
        name = right = ""

        def check(self, case, got, x, y):
            assert (got, x, y) == ("found", 1, 2)

    assert Kept().call(None, lambda *given: given, 1, 2) == (1, 2)
    Kept().judge(Case(1, ""), [(1, 2)], Outcome(["found"], []))


def test_what_a_report_holds():
    holds({"a": True, "b": [1]}, {"a": "no a", "b": "no b"})
    with pytest.raises(Wrong, match=r"^rank 1: no b$"):
        holds({"a": True, "b": []}, {"a": "no a", "b": "no b"}, "rank 1: ")


@pytest.mark.parametrize(
    ("value", "form", "is_formed"),
    [
        (3, int, True),
        (True, int, False),
        ([1, 2], [int], True),
        ((), [int], True),
        ([1, 2.0], [int], False),
        ([[1], (2, 3)], [[int]], True),
        ([(1, "a")], [(int, str)], True),
        ([(1, "a", 2)], [(int, str)], False),
        ("ab", [str], False),
        (None, [int], False),
    ],
)
def test_forms(value, form, is_formed):
    assert formed(value, form) == is_formed
    if is_formed:
        assert shaped(value, form, "the result", "a list") == value
        return
    with pytest.raises(Wrong, match="the result is"):
        shaped(value, form, "the result", "a list")


def test_numbers_in_other_styles_are_numbers():
    plain = decode(encode([Fraction(1, 2), Fraction(6, 3), Decimal("0.5"), Decimal(2)]))
    assert plain == [0.5, 2, 0.5, 2]
    assert [type(x) for x in plain] == [float, int, float, int]
    assert bare(([torch.tensor(3)], torch.tensor([2.5]))) == ([3], 2.5)
    assert shaped([(torch.tensor(1), 2)], [(int, int)], "the result", "a list") == [(1, 2)]
    close(torch.tensor(0.5, dtype=torch.float64), 0.5, "x")


def test_nan_is_nan_and_must_not_be_hidden():
    want = torch.tensor([torch.nan, 1.0, 2.0])
    for check in (close, same):
        check(want.clone(), want, "x")
        with pytest.raises(
            Wrong,
            match=re.escape(f"x[0] is 0, and should be nan (1 of 3 numbers are wrong). {HIDDEN}"),
        ):
            check(want.nan_to_num(), want, "x")
    close(math.nan, math.nan, "x")
    with pytest.raises(Wrong, match="x is 0, and should be nan"):
        close(0.0, math.nan, "x")
    identical([want, want.clone()], "x")
    assert who(want * 4, [want, want * 3], 0) == "It is the sum over all ranks."


def test_who_counts_whole_numbers_that_no_float_holds():
    parts = [torch.tensor([2**60 + 1]), torch.tensor([2**50 + 3])]
    assert who(parts[0].double().long(), parts, 0) is None
    assert who(2 * parts[0] + parts[1], parts, 0) == "It is a sum that counts rank 0 twice."
    with pytest.raises(Wrong, match=f"is {2**60}, and should be {2**60 + 1}"):
        same(parts[0].double().long(), parts[0], "x")


def test_what_nobody_waits_for_is_told():
    def run(comm, waits):
        work = comm.isend(torch.ones(2), 1 - comm.rank)
        comm.recv(torch.empty(2), 1 - comm.rank)
        if waits:
            work.wait()
        return {"open": left_open(comm)}

    waited(Outcome(list(World(2).run(run, True)), []))
    with pytest.raises(Wrong, match="rank 0 returns without waiting for all that it has posted"):
        waited(Outcome(list(World(2).run(run, False)), []))
    with pytest.raises(Wrong, match="dear: 1: the numbers are right, but rank 1 returns without"):
        look(Dear(), [(Case(1, "1"), [()], Outcome([None, {"open": 1}, None], []))])


def test_who_returns_before_its_sends_are_met_is_told():
    def run(comm, early):
        work = comm.isend(torch.ones(2), 1 - comm.rank)
        if early:
            finished(comm)
        comm.recv(torch.empty(2), 1 - comm.rank)
        work.wait()
        finished(comm)

    World(2).run(run, False)
    with pytest.raises(RuntimeError, match="nobody has met 1 of its sends"):
        World(2).run(run, True)


def test_a_refusal_is_caught_where_it_is_due():
    def refuses(x):
        raise ValueError("odd")

    assert attempt(True, refuses, 1) == {"refused": "odd"}
    assert attempt(False, lambda x: x, 1) == {"value": 1}
    with pytest.raises(ValueError, match="odd"):
        attempt(False, refuses, 1)


@pytest.mark.parametrize(
    ("took", "says"),
    [
        (2.0, None),
        (2.2, None),
        (0.9, "clock set"),
        (2.5, "2e\\+03 ms are enough. Why"),
        (None, None),
    ],
)
def test_time_on_the_clock(took, says):
    outcome = Outcome([], [], took)
    if says is None:
        return on_time(outcome, 1.0, 2.2, 2.0, "the numbers are", "Why?")
    with pytest.raises(Wrong, match=says):
        on_time(outcome, 1.0, 2.2, 2.0, "the numbers are", "Why?")


def test_clipped_gradients():
    grads = [{"a": torch.full((4,), 3.0, dtype=torch.float64)}, {"b": torch.ones(1).double() * 8}]
    looks = lambda r: {"It is this rank's own.": 6.0 + 2 * r}
    told = lambda r, name: (name, {1.0: "Nothing was scaled."})

    def judged(*found):
        results = [{"norm": norm, "grads": some} for norm, some in found]
        clipped(Outcome(results, []), grads, 5.0, 10.0, "rank {}: ".format, looks, "All.", told)

    half = [{name: g * 5 / (10 + 1e-6) for name, g in some.items()} for some in grads]
    judged((10.0, half[0]), (10.0, half[1]))
    for norms, some, says in (
        ((10.0, 8.0), half, "rank 1: the norm is 8, and should be 10. It is this rank's own"),
        ((10.0, 10.0 + 1e-12), half, "rounding differs"),
        ((10.0, 10.0), [half[0], grads[1]], "rank 1: b was scaled by 1, .*Nothing was scaled"),
        ((10.0, 10.0), [half[0], {}], "rank 1: b is None"),
    ):
        with pytest.raises(Wrong, match=says):
            judged(*zip(norms, some, strict=True))


@pytest.mark.parametrize("norm", [3.0, 0.0])
def test_a_norm_hides_no_nan(norm):
    def judged(*norms):
        outcome = Outcome([{"norm": norm, "grads": {}} for norm in norms], [])
        clipped(outcome, [{}, {}], 5.0, NAN, "rank {}: ".format, None, "", None)

    judged(NAN, INF)
    with pytest.raises(Wrong, match=f"rank 1: a gradient is inf or nan, and the norm is {norm:g}"):
        judged(NAN, norm)


def test_a_number_may_come_as_a_tensor():
    one = torch.tensor(2.5)
    assert bare(one) == 2.5 and bare([one, (torch.ones(1, dtype=torch.bool), "x")]) == [
        2.5,
        (True, "x"),
    ]
    assert bare(RNG) is RNG and bare(torch.ones(2)).equal(torch.ones(2))
    close(one, 2.5, "x")
    with pytest.raises(Wrong, match=r"x is 2\.5, and should be 3"):
        close(one, 3, "x")


def test_what_python_holds_outside_of_tensors():
    """A list of numbers, their bytes and an array of NumPy's are seen, and a tensor is not."""
    traced = tracemalloc.is_tracing()
    try:
        start = outside_tensors()
        x = torch.rand(100_000)
        assert outside_tensors() - start < x.nbytes // 4
        for hide in (
            torch.Tensor.tolist,
            lambda x: x.numpy().copy(),
            lambda x: x.numpy().tobytes(),
        ):
            hidden = hide(x)
            assert outside_tensors() - start >= x.nbytes
            del hidden
        assert outside_tensors() - start < x.nbytes // 4
    finally:
        if not traced:
            tracemalloc.stop()


def test_few_messages_and_bytes():
    outcome = Outcome([None, None], [(0, 1, 8), (1, 0, 16)])
    few(outcome, 16, "", 1)
    with pytest.raises(Wrong, match="rank 1 sends 16 bytes, and 8 are enough"):
        few(outcome, 8, "Why?")
    with pytest.raises(Wrong, match="rank 0 sends 1 messages, and 0 are enough"):
        few(outcome, 16, "", 0)


def test_whole_numbers_are_exact_in_any_order():
    xs = [whole((1000,), torch.float32, RNG) for _ in range(16)]
    assert sum(xs).equal(sum(xs[::-1])) and sum(xs).double().equal(sum(x.double() for x in xs))


# ------------------------------------------------------------
# Plain values survive the way to another process; anything else is named, never opened.


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -2.5, "α", [], [1, [2, "x"]], (1, (2,)), {"a": 1, 2: [None]}, float("inf")],
)
def test_round_trip(value):
    back = decode(encode(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_tensors(dtype, shape):
    x = torch.randint(0, 2, shape).to(dtype)
    back = decode(encode({"x": [x, x]}))["x"]
    assert all(b.dtype == dtype and b.shape == x.shape and b.equal(x) for b in back)


def test_a_strided_tensor_and_a_parameter():
    x = torch.arange(12.0).reshape(3, 4)
    assert decode(encode(x.T[::2])).equal(x.T[::2])
    one = torch.arange(2.0)[::2]  # PyTorch calls it contiguous, and its stride is 2
    assert decode(encode(one)).equal(one)
    assert decode(encode(torch.nn.Parameter(x))).equal(x)


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, {1, 2}, torch.empty(2, device="meta"), torch.eye(2).to_sparse()]
)
def test_what_is_not_plain_is_only_named(value):
    assert isinstance(decode(encode([value]))[0], Other)


class Pretends(float):
    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Pretends(1), 1.0),
        (numpy.float64(2.5), 2.5),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(-3), -3),
        (numpy.bool_(True), True),
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (deque([1]), Other("deque")),
        (numpy.ones(2), Other("ndarray")),
        (numpy.array(2.5), 2.5),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        (IntEnum("E", "A").A, 1),
        (Fraction(6, 2), 3),
        ({numpy.int64(1): "x"}, {1: "x"}),
    ],
)
def test_a_subclass_becomes_the_plain_one(value, plain):
    back = decode(encode(value))
    assert type(back) is type(plain) and back == plain
    assert not isinstance(back, tuple)


def plain(text, blobs=b""):
    """As `encode` would write it."""
    return len(text).to_bytes(8, "little") + text.encode() + blobs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x05" + bytes(7) + b"[1, 2",
        encode([1]) + b"x",
        b"\xff" * 8,
        encode(torch.ones(4))[:-1],
        encode({"a": 1}).replace(b"dict", b"dirt"),
        plain('{"tensor": []}'),
        plain('{"tensor": ["float32", [1099511627776, 1099511627776, 0]]}'),
        plain('{"tensor": ["float32", [Infinity]]}'),
        plain('{"tensor": ["float32", [1e30]]}'),
        plain('{"tensor": ["float32", [-1]]}'),
        plain('{"tensor": ["float32", [9]]}'),
        plain('{"dict": [[[], 1]]}'),
        plain("[" * 100_000),
    ],
)
def test_nonsense_is_a_value_error(data):
    with pytest.raises(ValueError):
        decode(data)
