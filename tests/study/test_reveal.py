"""The guess is seen, the answer is folded, and whoever reads the data gets both."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from minidist.study import bars, reveal, table


class Fold(HTMLParser):
    """What of an answer is seen while it is folded, what unfolds, and the data."""

    def __init__(self, made):
        super().__init__()
        self.open = []
        self.seen = ""
        self.folded = ""
        self.images = []
        self.feed(made._repr_html_())
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag == "details":
            self.attrs = dict(attrs)
            self.data = {
                name.removeprefix("data-"): json.loads(value)
                for name, value in attrs
                if name.startswith("data-") and name != "data-kind"
            }
        if tag == "img":
            self.images.append(dict(attrs)["alt"])
        else:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if "details" in self.open and "summary" not in self.open:
            self.folded += text
        else:
            self.seen += text


def test_a_number_with_its_unit():
    made = reveal(100e6, 75e6, unit="B", words="A ring sends\nless.\n\nThat is <all>.")
    assert made.kind == "number"
    assert (
        made.text
        == repr(made)
        == ("Your guess: 100 MB\nThe answer: 75 MB\nA ring sends less.\nThat is <all>.")
    )
    fold = Fold(made)
    assert fold.seen == "Your guess: 100 MB. Show the answer"
    assert "The answer: 75 MB" in fold.folded and "That is <all>." in fold.folded
    assert fold.data == {"answer": 75e6, "guess": 100e6, "unit": "B"}
    assert fold.attrs["class"] == "minidist-answer" and "open" not in fold.attrs


def test_several_numbers_by_name_each_with_its_unit():
    units = {"weights": "B", "step": "s"}
    made = reveal({"weights": 1e9, "step": ...}, {"weights": 2e9, "step": 3e-3}, unit=units)
    assert made.kind == "numbers"
    assert made.text == "Your guess: weights 1 GB, step –\nThe answer: weights 2 GB, step 3 ms"
    fold = Fold(made)
    assert "2 GB" not in fold.seen and "2 GB" in fold.folded and "1 GB" in fold.folded
    assert fold.data["guess"] == {"weights": 1e9, "step": None} and fold.data["unit"] == units


def test_a_choice():
    made = reveal("tree", "ring", options=["ring", "tree"])
    assert made.kind == "choice"
    assert Fold(made).data["options"] == ["ring", "tree"]
    assert Fold(made).seen == "Your guess: tree. Show the answer"


@pytest.mark.parametrize(
    ("guess", "answer", "kind", "text"),
    [
        ("100 MB", 75e6, "number", "Your guess: 100 MB\nThe answer: 75 MB"),
        (torch.tensor(5), np.int64(6), "number", "Your guess: 5 B\nThe answer: 6 B"),
        ("rank 0", "rank 3", "word", "Your guess: rank 0\nThe answer: rank 3"),
        (True, False, "word", "Your guess: True\nThe answer: False"),
        (None, 6, "number", "You have not guessed yet\nThe answer: 6 B"),
        (..., {"a": 6}, "numbers", "You have not guessed yet\nThe answer: a 6 B"),
    ],
)
def test_what_a_guess_may_be(guess, answer, kind, text):
    made = reveal(guess, answer, unit="B")
    assert (made.kind, made.text) == (kind, text)
    assert ("guess" in Fold(made).data) == (guess not in (None, ...))


def test_pictures_and_tables_are_folded_too():
    picture = bars({"ring": 75e6}, unit="B", title="Sent")
    rows = table([[4, 8]], ["ranks", "steps"])
    fold = Fold(reveal(1, 2, [picture, rows]))
    assert fold.images == [picture.text]
    assert "ranks" in fold.folded and fold.seen == "Your guess: 1. Show the answer"
    assert reveal(1, 2, picture).text.endswith("\nSent\n  ring: 75 MB")
    assert reveal(1, 2, picture)._repr_html_() == reveal(1, 2, [picture])._repr_html_()


def test_words_of_a_guess_cannot_write_html():
    fold = Fold(reveal('"><script>', "'&", words="<b>"))
    assert fold.seen == 'Your guess: "><script>. Show the answer'
    assert fold.data == {"guess": '"><script>', "answer": "'&"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: reveal({"a": 1}, {"b": 1}), "has the names 'b', and the guess has 'a'"),
        (lambda: reveal(3, {"b": 1}), "has the names 'b', and the guess has 3"),
        (lambda: reveal("bus", "ring", options=["ring", "tree"]), "'bus' is not among the options"),
        (lambda: reveal("ring", "bus", options=["ring", "tree"]), "'bus' is not among the options"),
        (lambda: reveal(1, float("inf")), "the answer is inf: say it in words"),
        (lambda: reveal(1, {"a": float("nan")}), "the answer is nan: say it in words"),
        (lambda: reveal(1, 2, unit={"a": "B"}), "the units have the names 'a', and the answer has"),
        (lambda: reveal(1, 2, "a word"), "pictures and tables of study, not <class 'str'>"),
    ],
)
def test_what_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
