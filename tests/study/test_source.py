"""Library code shown in a lesson: complete, named, readable on its card, and without a docstring if wanted."""

import ast
import functools
import inspect
import re
import sys
from html import unescape

import pytest

from minidist.comm import base, trace
from minidist.study import source
from minidist.study.picture import CARD, contrast
from minidist.study.source import COLORS


def sample(x):
    """What it does.

    More of it.
    """

    y = """a string
of two lines"""  # a comment stays
    return x, y


class Sample:
    """A class."""

    field = 1

    @property
    def half(self) -> float:
        """Half."""
        return self.field / 2

    @functools.lru_cache  # noqa: B019
    def cached(self):
        "One line." ; return 1  # fmt: skip  # noqa: E702

    def only(self):
        """Nothing else."""


class Shown:
    """A class with an example.

    It has a second paragraph.

    >>> Shown().twice(2)
    4
    """

    def twice(self, x):
        """Two times x.

        >>> Shown().twice([1])
        [1, 1]

        >>> Shown().twice("a")
        'aa'
        """
        return 2 * x

    def plain(self):
        """A line, and no example."""
        return """

        >>> a string that is no docstring ends no function"""

    def last(self):
        """Another one.

        It has two paragraphs.
        """


def written(obj):
    """The source of what has no example, or the source without them, line by line."""
    lines = []
    example = False
    for line in inspect.getsource(obj).strip("\n").split("\n"):
        example = example or line.lstrip().startswith(">>> ")
        if example and line.strip() == '"""':
            example = False
            lines.pop()
            if lines[-1].lstrip().startswith('"""'):
                lines[-1] += '"""'
                continue
        if not example:
            lines.append(line)
    return "\n".join(lines)


def shown(made):
    """The code that the HTML shows, without its marks."""
    return unescape(
        re.sub("<[^>]+>", "", re.search("<pre[^>]*>(.*)</pre>", made._repr_html_(), re.S)[1])
    )


@pytest.mark.parametrize("obj", [sample, Sample, base.Comm, base.describe, base.Link, trace.Trace])
def test_nothing_but_examples_is_dropped(obj):
    text = written(obj)
    assert source(obj).text == text == shown(source(obj)) == repr(source(obj))


def test_a_module_is_shown_whole():
    text = written(trace)
    assert source(trace).text == text == shown(source(trace))
    assert source(trace).name == "minidist.comm.trace"


@pytest.mark.parametrize("obj", [base.Comm.split, trace.Trace(1).table, base.Comm.batch])
def test_a_method_stands_at_the_left(obj):
    made = source(obj)
    assert made.text.startswith("def ")
    ast.parse(made.text)
    lines = [t.strip() for t in written(obj).split("\n")]
    assert [t.strip() for t in made.text.split("\n")] == lines


def test_properties_partials_and_wrapped_functions_show_what_was_written():
    assert source(Sample.half).text.startswith("@property\ndef half(self) -> float:\n")
    assert source(functools.partial(sample, 1)).text == source(sample).text
    assert source(Sample.cached).text.startswith("@functools.lru_cache")


def test_name_and_number_of_lines_without_a_path():
    html = source(base.describe)._repr_html_()
    assert "minidist.comm.base.describe · 3 lines<" in html
    assert source(trace.Trace.merge).name == "minidist.comm.trace.Trace.merge"
    assert ".py" not in html
    assert "style=" in html
    assert "class=" not in html


def test_code_of_a_notebook_cell_says_so(monkeypatch):
    monkeypatch.setattr(sample, "__module__", "__main__")
    assert source(sample).name == "sample, defined in this notebook"


def test_docstring_left_out_and_nothing_else():
    assert source(sample, docstring=False).text == (
        'def sample(x):\n    y = """a string\nof two lines"""  # a comment stays\n    return x, y'
    )
    made = source(Sample, docstring=False).text
    assert '"""A class."""' not in made
    assert '"""Half."""' in made
    module = source(trace, docstring=False).text
    assert module.startswith("from __future__ import annotations\n")
    assert source(trace).text.endswith(module)


def test_examples_are_left_out_of_the_object_and_of_what_it_contains():
    made = source(Shown).text
    assert made.startswith(
        'class Shown:\n    """A class with an example.\n\n    It has a second paragraph.\n    """\n\n'
        '    def twice(self, x):\n        """Two times x."""\n        return 2 * x\n\n'
        '    def plain(self):\n        """A line, and no example."""\n        return """\n'
    )
    assert (
        source(Shown.twice).text == 'def twice(self, x):\n    """Two times x."""\n    return 2 * x'
    )
    without = source(Shown, docstring=False).text
    assert without == made.replace(
        '"""A class with an example.\n\n    It has a second paragraph.\n    """\n\n    ', ""
    )
    assert '>>> a string that is no docstring ends no function"""\n\n    def last(self)' in made


def test_a_docstring_that_shares_its_line_or_is_all_there_is_stays():
    assert '"One line." ; return 1' in source(Sample.cached, docstring=False).text
    assert '"""Nothing else."""' in source(Sample.only, docstring=False).text


def test_colours_read_on_the_card():
    used = set(re.findall(r"#[0-9A-Fa-f]{6}", " ".join(COLORS.values())))
    assert len(used) >= 4
    for color in used:
        assert contrast(color, CARD) >= 4.5, color
    assert f"background-color: {CARD}" in source(sample)._repr_html_()
    assert "#0B5C8A" in source(sample)._repr_html_()


def test_without_pygments_the_code_is_plain(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygments", None)
    made = source(sample)
    assert shown(made) == made.text
    assert "<span" not in made._repr_html_()


@pytest.mark.parametrize("obj", [len, 3, "text", base.Link(1, 2), dict])
def test_what_has_no_source_is_refused(obj):
    with pytest.raises(ValueError, match="written in Python, not "):
        source(obj)
