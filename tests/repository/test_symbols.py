"""docs/symbols.md: every lesson that a letter's row names is there, and has the letter; the rows are in order."""

import re

import pytest

from tests.repository.files import ROOT
from tests.repository.test_terms import prose

ROW = re.compile(r"^\| (\w) \| (.+) \| (.+) \| (\[.+\)) \|$", re.MULTILINE)
NAMED = re.compile(r"\[(\d\d)\]\(\.\./notebooks/(\1_\w+)\.ipynb\)")
TEXT = (ROOT / "docs" / "symbols.md").read_text(encoding="utf-8")
ROWS = ROW.findall(TEXT)
GREEK = {
    **{"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "varepsilon": "ε", "eta": "η"},
    **{"theta": "θ", "lambda": "λ", "mu": "μ", "Sigma": "Σ", "sigma": "σ", "tau": "τ", "Phi": "Φ"},
    "Psi": "Ψ",
}
# What is set as a letter that stands for something: in italics, in a formula, as code.
SET = re.compile(r"\$\$.+?\$\$|\$[^$]+\$|(?<!\*)\*[^*]+\*(?!\*)|`[^`]+`", re.DOTALL)


def uses(letter, text):
    """Whether a lesson's text has a letter that stands for something. A and I are words of English as well."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda command: GREEK.get(command[1], " "), text)
    alone = letter if letter in GREEK.values() else rf"(?<![A-Za-z'’]){letter}(?![A-Za-z])"
    where = " ".join(SET.findall(text)) if letter in "AaI" else text
    return bool(re.search(alone, where))


def test_the_table_is_whole_and_in_order():
    lines = TEXT.split("|---|---|---|---|\n")[1].splitlines()
    assert len(ROWS) == len(lines)
    letters = [letter for letter, *_ in ROWS]
    assert letters == sorted(
        letters, key=lambda letter: (letter.lower() > "z", letter.lower(), letter)
    )
    assert len({(letter, meaning) for letter, meaning, *_ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("letter", "meaning", "unit", "lessons"), ROWS)
def test_each_lesson_uses_the_letter(letter, meaning, unit, lessons):
    named = [folder for _, folder in NAMED.findall(lessons)]
    assert len(named) == lessons.count("](") and named == sorted(named)
    for folder in named:
        text = prose((ROOT / "course" / folder / "lesson.py").read_text(encoding="utf-8"))
        assert uses(letter, text), f"lesson {folder} has no {letter}"


@pytest.mark.parametrize(
    ("letter", "text", "is_used"),
    [
        ("a", "take a look at *a* heads", True),
        ("a", "take a look, at *alpha*", False),
        ("I", "I say that `I` takes long", True),
        ("I", "I say", False),
        ("s", "a rank's bytes", False),
        ("α", r"it takes $2\alpha$", True),
        ("α", r"it takes $2\beta$", False),
        ("T", r"and $T_\text{ring}$", True),
        ("r", r"and $\frac{1}{n}$ [it](term:r)", False),
    ],
)
def test_a_letter_that_is_not_used_is_found(letter, text, is_used):
    assert uses(letter, text) is is_used
