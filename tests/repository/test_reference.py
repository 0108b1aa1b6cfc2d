"""The reference: every public name has an entry, an example that passes as it is pasted, and names what it raises."""

import ast
import contextlib
import doctest
import html
import importlib.util
import inspect
import os
import random
import re
import sys
import threading
from types import ModuleType

import matplotlib.pyplot as plt
import numpy
import pytest
import torch
from markdown_it import MarkdownIt

from course import reference
from course.reference import PACKAGES, Entry, entries, markdown, members, pages
from tests.repository.files import ROOT
from tests.repository.test_readme import TECHNIQUES

ENTRIES = entries(ROOT)
MODULES = sorted({one.module for one in ENTRIES}.union(PACKAGES))
# The heads of files and packages, which the pages show as well.
HEADS = [
    Entry("", name, sys.modules[name], inspect.getdoc(sys.modules[name]))
    for name in MODULES
    if not any(one.value is sys.modules[name] for one in ENTRIES)
]
MARKDOWN = MarkdownIt("commonmark").enable("table")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# What says that nothing can go wrong, or ends a loop, is no message to a caller.
OURS = {"AssertionError", "NotImplementedError", "StopIteration"}
# What PyTorch's compiler and scikit-learn set for themselves when they are first imported.
LIBRARIES = ("TORCHINDUCTOR_", "KMP_")


def texts_of(one):
    """The docstrings that an entry shows."""
    shown = []
    if one.name and isinstance(one.value, type | ModuleType):
        shown = members(one.value)
    return [one.text, *(text for _, text in shown)]


def title(one):
    return f"{one.module}.{one.name}"


# ------------------------------------------------------------
# What an entry may lack.


def without_example(found):
    return [title(one) for one in found if one.public and not reference.example_of(one.text)]


def raised(node, module):
    """The errors that this code raises itself, by a `raise` or by a check of minidist.arguments."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Raise) and part.exc is not None:
            error = part.exc.func if isinstance(part.exc, ast.Call) else part.exc
            name = ast.unparse(error).rpartition(".")[2]
            if name[0].isupper():  # else it was caught, and goes on
                names.add(name)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
            called = vars(module).get(part.func.id)
            if getattr(called, "__module__", "") == "minidist.arguments":
                names.add("ValueError")
    return names - OURS


def definitions(node):
    return [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def unnamed(found):
    """ "name: error" of each that its docstring does not name.

    What a method raises, its own docstring names or that of its class; what a private one raises, any of the class's.
    """
    missing = []
    for one in filter(lambda one: one.public, found):
        module = sys.modules[one.module]
        tree = reference.tree_of(module)
        if not isinstance(one.value, ModuleType):
            tree = next((n for n in tree.body if getattr(n, "name", "") == one.name), None)
        if tree is None:  # a constant
            continue
        if isinstance(tree, ast.FunctionDef):
            missing += lacking(title(one), raised(tree, module), one.text)
            continue
        everything = "\n".join(texts_of(one))
        for method in definitions(tree):
            if method.name.startswith("_"):
                text = everything
            else:
                text = f"{one.text}\n{ast.get_docstring(method) or ''}"
            missing += lacking(f"{title(one)}.{method.name}", raised(method, module), text)
    return missing


def lacking(name, errors, text):
    return [f"{name}: {error}" for error in sorted(errors) if not re.search(rf"\b{error}\b", text)]


def failures(found):
    """What doctest says of the examples that fail, as they run where nothing is imported."""
    said = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    parser = doctest.DocTestParser()
    for one in found:
        for text in texts_of(one):
            # Names of the file and of other examples are not there: what is shown can be pasted.
            test = parser.get_doctest(text, {"__name__": "__main__"}, title(one), one.file, 0)
            if test.examples:
                runner.run(test, out=said.append)
    return "".join(said)


def state():
    """What an example could leave behind."""
    return {
        "threads of torch": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "TF32": torch.backends.cuda.matmul.allow_tf32,
        "precision": torch.get_float32_matmul_precision(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "folder": os.getcwd(),
        "environment": {k: v for k, v in os.environ.items() if not k.startswith(LIBRARIES)},
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "figures": plt.get_fignums(),
    }


@contextlib.contextmanager
def same_state():
    """Random numbers go on as if nothing had been drawn, and nothing else has changed."""
    before = state()
    drawn = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(drawn[0])
    numpy.random.set_state(drawn[1])
    after = state()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed


# ------------------------------------------------------------
# The package's own entries.


def test_each_public_name_has_one_entry():
    found = {(one.name, id(one.value)) for one in ENTRIES}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            assert (name, id(getattr(module, name))) in found, f"{package}.{name}"
    named = [title(one) for one in ENTRIES]
    for _, name, path, *_ in TECHNIQUES:
        assert path.removesuffix(".py").replace("/", ".") + f".{name}" in named
    assert len(named) == len(set(named))
    assert len([one for one in ENTRIES if one.public]) > 150


def test_each_entry_has_an_example():
    assert not without_example(ENTRIES)


def test_each_error_is_named():
    assert not unnamed(ENTRIES)


@pytest.mark.parametrize("module", MODULES)
def test_examples_pass(module):
    with same_state():
        assert not failures([one for one in [*HEADS, *ENTRIES] if one.module == module])


# ------------------------------------------------------------
# The pages.


@pytest.fixture(scope="module")
def written():
    return pages(ROOT)


def test_each_entry_is_on_a_page_and_each_link_leads_somewhere(written):
    anchors = {}
    for name, text in written.items():
        taken = set()
        unfenced = re.sub(r"^(```+)\w*\n.*?^\1$", "", text, flags=re.M | re.S)
        for heading in re.findall(r"^#{1,3} (.+)$", unfenced, re.M):
            reference.slug(heading, taken)
        anchors[name.removeprefix("reference/")] = taken
    count = 0
    for name, text in written.items():
        for address, _, heading in re.findall(r"(?<!\\)\]\(([^)#]+)(#([^)]+))?\)", text):
            count += 1
            if address.startswith("../"):
                assert (ROOT / address.removeprefix("../")).is_file(), (name, address)
            else:
                assert not heading or heading in anchors[address], (name, address, heading)
    assert count > 300
    for one in filter(lambda one: one.public, ENTRIES):
        assert f"{one.name}`\n" in written[f"reference/{one.page}.md"]
    for name in reference.PAGES:
        assert f"\n{name}\n" in written["reference/index.md"]


def test_pages_are_the_same_each_time(written):
    assert pages(ROOT) == written
    assert " at 0x" not in "".join(written.values())


def shown(text):
    """What a reader of the Markdown sees, without spaces, signs of code, stars and dashes."""
    page = MARKDOWN.render(text)
    return letters(html.unescape(re.sub("<[^>]*>", "", page)))


def letters(text):
    return re.sub(r"[\s`*-]", "", text)


@pytest.mark.parametrize("page", list(reference.PAGES))
def test_nothing_of_a_docstring_is_lost_or_taken_for_markdown(page):
    for one in ENTRIES:
        if one.page != page:
            continue
        for text in texts_of(one):
            assert shown(markdown(text, reference.arguments_of(one.value))) == letters(text)


STRANGE = """What a * b * c and x_i_j, |A| <b> [1] (2) {3} $4$ ^5 ~6~ mean; `a | b`, a "--flag" and *stress*.

# 1 no heading
% no comment
+ no item, 1. no number

    in  a   block: `*<|[`

    goes | on

x: the first.  y, z: two more,
   in two lines.
other: no argument.
Raises ValueError if x < 0 or y > [1].

- an item
- and a second one

>>> print("`a` <b>")
`a` <b>
"""


def test_signs_of_markdown_mean_themselves():
    made = markdown(STRANGE, {"x", "y", "z"}, {"a | b": "page.md#a"})
    assert shown(made) == letters(STRANGE)
    assert "[`a | b`](page.md#a)" in made
    assert (
        "\n- `x`: the first.\n- `y`, `z`: two more, in two lines. other: no argument.\n\nRaises"
        in made
    )
    assert "```text\nin  a   block: `*<|[`\n\ngoes | on\n```" in made
    assert made.endswith('```pycon\n>>> print("`a` <b>")\n`a` <b>\n```')
    page = MARKDOWN.render(made)
    assert "<em>stress</em>" in page
    assert "<h" not in page
    assert page.count("<ul>") == 2


def test_a_signature_is_as_one_would_call_it():
    def sample(
        x: "torch.Tensor", /, *rest, op="sum", n: "int | None" = 26214400
    ) -> "list[torch.Tensor]":
        """A sample."""

    assert reference.signature("sample", sample) == (
        'sample(x: Tensor, /, *rest, op="sum", n: int | None = 25 * 2**20) -> list[Tensor]'
    )
    long = {
        one.name: reference.signature(one.name, one.value) for one in ENTRIES if callable(one.value)
    }
    for name, text in long.items():
        assert text.startswith(name)
        assert "<" not in text, "an object that has no name"
        if "(" in text:
            ast.parse(f"def {text}: pass")


def test_a_set_is_called_by_its_name_because_its_words_have_no_order():
    from minidist.train import amp

    assert amp.WHITE and reference.literal("white", amp.WHITE, amp.autocast) == "WHITE"
    assert reference.literal("none", frozenset(), amp.autocast) == "frozenset()"


def test_a_package_from_elsewhere_is_refused(tmp_path):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        pages(tmp_path)


# ------------------------------------------------------------
# What must be found.

PLANTED = '''
from minidist.arguments import whole


def good(x):
    """Half of x. ValueError for an odd number.

    >>> good = 3
    >>> good
    3
    """
    if x % 2:
        raise ValueError(f"{x} is odd")


def bare(x):
    """Nothing is shown."""


def silent(x):
    """Half of x.

    >>> 1 + 1
    2
    """
    raise KeyError(x)


def checked(x):
    """Half of x.

    >>> 1 + 1
    2
    """
    return whole(x, "x is whole", 1)


def wrong(x):
    """Half of x.

    >>> 1 + 1
    3
    """


def not_alone(x):
    """Its example needs what the file has imported.

    >>> whole(3, "a number")
    3
    """


class Quiet:
    """A class.

    >>> 1
    1
    """

    def __init__(self):
        raise TypeError("never named")

    def method(self):
        """A method whose example fails.

        >>> Quiet
        """
        raise LookupError("never named")

    def named(self):
        """IndexError always."""
        raise IndexError
'''


@pytest.fixture
def planted(tmp_path, monkeypatch):
    file = tmp_path / "planted.py"
    file.write_text(PLANTED)
    spec = importlib.util.spec_from_file_location("planted", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "planted", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(reference, "package_root", lambda: tmp_path)
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == "planted"]
    return [reference.entry("planted", name) for name in own]


def test_a_name_without_an_example_is_found(planted):
    assert without_example(planted) == ["planted.bare"]


def test_an_error_without_a_name_is_found(planted):
    assert unnamed(planted) == [
        "planted.silent: KeyError",
        "planted.checked: ValueError",
        "planted.Quiet.__init__: TypeError",
        "planted.Quiet.method: LookupError",
    ]


def test_an_example_that_fails_is_found(planted):
    by_name = {one.name: failures([one]) for one in planted}
    assert {name for name, said in by_name.items() if said} == {"wrong", "not_alone", "Quiet"}
    assert "Expected:\n    3\nGot:\n    2" in by_name["wrong"]
    assert "NameError" in by_name["not_alone"]


@pytest.mark.parametrize("leak", ["torch.set_grad_enabled(False)", "os.environ['LEFT'] = '1'"])
def test_what_an_example_leaves_behind_is_found(leak, monkeypatch):
    monkeypatch.setenv("LEFT", "0")
    with torch.enable_grad():
        with pytest.raises(AssertionError), same_state():
            exec(leak)


def test_random_numbers_go_on_after_an_example():
    before = torch.get_rng_state(), random.getstate()
    with same_state():
        torch.manual_seed(1)
        random.random()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_the_examples_of_a_file_are_in_its_entries():
    """An example of something that is not public would never run."""
    texts = {text for one in [*HEADS, *ENTRIES] for text in texts_of(one)}
    for file in (ROOT / "minidist").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = inspect.cleandoc(ast.get_docstring(node) or "")
                assert not reference.example_of(text) or text in texts, (
                    file,
                    getattr(node, "name", ""),
                )
