"""Notebooks are compared as text, except that a float may move a little.

Another processor sums in another order, so printed floats differ in their last digits. nbval passes every output
through `IPyNbCell.sanitize` and then compares with `!=`; here sanitize returns a string that compares with a tolerance.
Integers, versions, labels and all other text must be the same.
"""

import math
import re

pytest_plugins = ["tests.reaper"]
FLOAT = re.compile(r"(?<![\w.])([-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+))(?!\d|\.\d)")
RELATIVE, ABSOLUTE = 1e-3, 1e-9  # a virtual clock counts microseconds: 5e-06 is not 6e-06


class Printed(str):
    """Text whose floats are compared with a tolerance: relative 1e-3, absolute 1e-9."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        if not isinstance(other, str):
            return False
        mine, theirs = FLOAT.split(self), FLOAT.split(other)  # text, float, text, float, ..., text
        return mine[::2] == theirs[::2] and all(
            math.isclose(float(a), float(b), rel_tol=RELATIVE, abs_tol=ABSOLUTE)
            for a, b in zip(mine[1::2], theirs[1::2], strict=True)
        )

    def __ne__(self, other):
        return not self == other


def pytest_configure(config):
    if config.pluginmanager.hasplugin("nbval"):
        from nbval.plugin import IPyNbCell

        sanitize = IPyNbCell.sanitize
        if not getattr(sanitize, "tolerant", False):
            def tolerant(cell, text):
                text = sanitize(cell, text)
                return Printed(text) if isinstance(text, str) else text

            tolerant.tolerant = True
            IPyNbCell.sanitize = tolerant
