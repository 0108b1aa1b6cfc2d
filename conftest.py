"""Notebooks are compared as text, except that a float may move by one unit in its last digit.

Another processor sums in another order, so what it prints is rounded to the digit beside. nbval passes every output
through `IPyNbCell.sanitize` and then compares with `!=`; here sanitize returns a string that knows its floats.

Two floats are equal if they differ by at most one unit in the last digit printed (of the one that shows more digits:
`short` drops zeros, so that 1.4 stands beside 1.41), or relatively by 1e-3. A number with a point or a power of ten is
a float: 4.07, 1e-05, 4.07·10⁻⁵, 10⁻¹², 1,234.5. Two that end with their point (PyTorch prints whole numbers so: 4.) are
whole, and equal only if they are the same. Integers, versions, labels and all other text must be the same. Only where
a float has become longer or shorter (9.99, 10.00) may the padding of its table have moved.

A page in a frame (`minidist.study.frames`) is compared unpacked: another zlib packs the same in other bytes. Of a picture
the words are compared, which are its alternative text, and not its pixels.
"""

import base64
import os
import re
import zlib
from decimal import Decimal

pytest_plugins = ["tests.reaper"]


def pytest_addoption(parser):
    """`--full`: tests that have a full size run it, as `make proof` does. tests/size.py tells them."""
    parser.addoption("--full", action="store_true", help="the full size of each test that has one")


RELATIVE = Decimal("1e-3")

PIXELS = re.compile(r"(data:image/png;base64,)[\w+/=]+")
POWER = r"(?:\^\{?[-+−]?\d{1,3}\}?|[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3})"  # of ten: ^-5, ^{-5}, ⁻⁵
EXPONENT = rf"(?:[eE][-+]?\d{{1,3}}|[ ]?[·×x*][ ]?10{POWER})"
DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
FLOAT = re.compile(
    rf"(?<![\w.#])([-+−]?(?:{DIGITS}\.\d*{EXPONENT}?|{DIGITS}{EXPONENT}|10{POWER}))(?!\d|\.\d)"
)
AS_PYTHON = str.maketrans("−⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-+-0123456789", ", {}^")


class Float:
    """A float as it was printed: its `value`, and what the last digit counts, its `unit`."""

    def __init__(self, printed: str):
        plain = printed.lower().translate(AS_PYTHON)
        plain = re.sub(r"[·×x*]10(?=[-+\d])", "e", plain)
        if "e" not in plain and "." not in plain:  # a power of ten without a factor
            plain = plain.replace("10", "1e", 1)
        digits, has_exponent, exponent = plain.partition("e")
        decimals = len(digits.partition(".")[2])
        self.value = Decimal(plain)
        self.unit = Decimal(1).scaleb(int(exponent or 0) - decimals)
        self.whole = decimals == 0 and not has_exponent

    def close_to(self, other: "Float") -> bool:
        apart = abs(self.value - other.value)
        if self.whole and other.whole:
            return apart == 0
        return apart <= min(self.unit, other.unit) or apart <= RELATIVE * max(
            abs(self.value), abs(other.value)
        )


def unpadded(text: str) -> str:
    """`text` with one space where there were several, none at a bracket or an end of a line, and short rules."""
    text = re.sub(r"([─=-])\1{2,}", r"\1\1\1", text)
    text = re.sub(r" +", " ", text)
    return re.sub(r"(?<![^\n(\[]) | (?=\n|\Z)", "", text)


class Printed(str):
    """Text whose floats are compared as floats."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        if not isinstance(other, str):
            return False
        ours, theirs = FLOAT.split(self), FLOAT.split(other)  # text, float, text, float, ..., text
        if len(ours) != len(theirs):
            return False
        pairs = list(zip(ours[1::2], theirs[1::2]))
        words, other_words = "\0".join(ours[::2]), "\0".join(theirs[::2])
        if any(len(a) != len(b) for a, b in pairs):
            words, other_words = unpadded(words), unpadded(other_words)
        return words == other_words and all(a == b or Float(a).close_to(Float(b)) for a, b in pairs)

    def __ne__(self, other):
        return not self == other


PACKED = re.compile(r'atob\("([\w+/=]+)"\)')


def unpacked(text: str) -> str:
    """`text` with the page in a frame as it is read, and without the bytes of pictures."""
    page = lambda match: zlib.decompress(base64.b64decode(match[1])).decode()
    return PIXELS.sub(r"\1", PACKED.sub(page, text))


def pytest_configure(config):
    if config.getoption("--full"):
        os.environ["MINIDIST_FULL"] = "1"
    if config.pluginmanager.hasplugin("nbval"):
        from nbval.plugin import IPyNbCell

        sanitize = IPyNbCell.sanitize
        if not getattr(sanitize, "tolerant", False):

            def tolerant(cell, text):
                text = sanitize(cell, text)
                return Printed(unpacked(text)) if isinstance(text, str) else text

            tolerant.tolerant = True
            IPyNbCell.sanitize = tolerant
