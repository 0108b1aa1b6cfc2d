"""A table in text and in HTML."""

import pytest

from minidist.study import table

MADE = table(
    [["naive", 3_000_000, 1.23456], ["a < b", 15, None]],
    ["algorithm", "bytes", "seconds"],
    title="Costs",
)


def test_text():
    assert (
        MADE.text
        == repr(MADE)
        == (
            "Costs\n"
            "algorithm      bytes  seconds\n"
            "─────────────────────────────\n"
            "naive      3,000,000    1.235\n"
            "a < b             15        –"
        )
    )


def test_html_follows_the_theme_and_escapes():
    html = MADE._repr_html_()
    assert "a &lt; b" in html
    assert html.count("<tr>") == 3
    assert "text-align: right" in html
    assert "color: #" not in html
    assert "background" not in html


def test_words_and_truth_values_are_set_to_the_left():
    assert table([[True, None], [False, None]], ["ok", "empty"]).right == [False, False]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1 cells, but there are 2 columns: a, b"):
        table([[1, 2], [3]], ["a", "b"])
