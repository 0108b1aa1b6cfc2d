"""Nothing is printed in a notebook that must be another on the next processor, or at the next run.

What can be told from a cell is looked for here: rounding errors, more digits than a float32 has, the order of a set or
of a folder, times of a clock and numbers of processes that the cell prints. What cannot (a chaotic training, or the
first of two that are equal) is found by `make portable`.
"""

import ast
import re

import nbformat
import nbformat.v4 as v4
import pytest

from conftest import FLOAT, Float
from tests.repository.files import ROOT, repository

SMALLEST, MOST_DIGITS = 1e-6, 7
SET_OF_WORDS = re.compile(r"\{'[^':{}]*'(?:, '[^':{}]*')+\}")
CLOCKS = {
    "time",
    "time_ns",
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "process_time",
    "thread_time",
    "now",
    "today",
    "utcnow",
    "timeit",
    "ctime",
    "strftime",
}
OF_THIS_RUN = {
    "id",
    "hash",
    "getpid",
    "getppid",
    "gettempdir",
    "mkdtemp",
    "gethostname",
    "cpu_count",
    "uuid4",
    "get_num_threads",
    "get_cpu_capability",
}
UNORDERED = {"set", "frozenset", "listdir", "scandir", "iterdir", "glob", "rglob"}
ORDERS = {"sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset"}
SHOWS = {"print", "display", "table", "bars", "curves", "Markdown", "HTML"}


def significant(number):
    """How many digits of a printed float count, without zeros at its ends."""
    return len(str(int(abs(number.value / number.unit))).strip("0"))


def printed(cell):
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield output.evalue
        else:
            yield output.data.get("text/plain", "")


def complaints_of_outputs(cell, exact):
    for text in printed(cell):
        for match in [] if exact else FLOAT.finditer(text):
            number = Float(match[0])
            if 0 < abs(number.value) < SMALLEST and significant(number) > 1:
                yield f"prints {match[0]}, which may be a rounding error: assert that it is small"
            elif significant(number) > MOST_DIGITS:
                yield f"prints {match[0]}, and a float32 has {MOST_DIGITS} digits: print fewer"
        if SET_OF_WORDS.search(text):
            yield f"prints {SET_OF_WORDS.search(text)[0]}, a set, in another order at the next run: sort it"


def name_of(call):
    return (
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    )


def unstable(node, names):
    """Why the value of `node` is another elsewhere, or None. names: those that are assigned in the cell, and why."""
    if isinstance(node, ast.Compare | ast.Lambda | ast.FunctionDef | ast.ClassDef):
        # an assertion with slack is what should be made of a time; a function has not run yet
        return None
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Set | ast.SetComp):
        if not (isinstance(node, ast.Set) and len(node.elts) == 1):
            return "the order of a set"
    if isinstance(node, ast.Call):
        name = name_of(node)
        if name in CLOCKS:
            return f"the clock's {name}()"
        if name in OF_THIS_RUN:
            return f"{name}()"
        found = [why for child in ast.iter_child_nodes(node) if (why := unstable(child, names))]
        if name in ORDERS:
            found = [why for why in found if not why.startswith("the order of")]
        if not found and name in UNORDERED:
            return f"the order of {name}()"
        return found[0] if found else None
    for child in ast.iter_child_nodes(node):
        if why := unstable(child, names):
            return why
    return None


def statements(body):
    """All statements of a cell that run with it, in order, also those in loops and conditions."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(statement, part, []))


def complaints_of_source(cell):
    names = {}
    body = ast.parse(
        "\n".join(line for line in cell.source.splitlines() if not line.startswith(("%", "!")))
    ).body
    for statement in statements(body):
        targets, value = [], None
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
            targets, value = [statement.target], statement.value
        elif isinstance(statement, ast.For):
            targets, value = [statement.target], statement.iter
        if value is not None:
            why = unstable(value, names)
            for target in targets:
                names |= {n.id: why for n in ast.walk(target) if isinstance(n, ast.Name)}
        if isinstance(statement, ast.Expr):
            shown = statement is body[-1] or any(
                isinstance(n, ast.Call) and name_of(n) in SHOWS for n in ast.walk(statement)
            )
            why = unstable(statement.value, names)
            if shown and why:
                yield f"prints {why}, which is another elsewhere: assert what it shows, with slack"


def complaints(cell):
    """What the code cell prints and should not."""
    tags = cell.metadata.get("tags", [])
    if cell.outputs and "nbval-ignore-output" not in tags:
        yield from complaints_of_outputs(cell, exact="exact-numbers" in tags)
        yield from complaints_of_source(cell)


def cells(path):
    return [
        cell
        for cell in nbformat.read(ROOT / path, nbformat.NO_CONVERT).cells
        if cell.cell_type == "code"
    ]


def test_nothing_unstable_is_printed():
    found = [
        f"{path}, code cell {i}: {complaint}"
        for path in repository("notebooks/*.ipynb", "solutions/*.ipynb")
        for i, cell in enumerate(cells(path))
        for complaint in dict.fromkeys(complaints(cell))
    ]
    assert not found, "\n".join(found)


def test_what_is_exact_says_so_only_where_it_must():
    for path in repository("notebooks/*.ipynb", "solutions/*.ipynb"):
        for i, cell in enumerate(cells(path)):
            if "exact-numbers" in cell.metadata.get("tags", []):
                assert list(complaints_of_outputs(cell, exact=False)), (
                    f"{path}, code cell {i} needs no such tag"
                )


def cell(source, output="", tags=()):
    made = v4.new_code_cell(source, execution_count=1, metadata={"tags": list(tags)})
    made.outputs = [v4.new_output("stream", name="stdout", text=output)]
    return made


BAD_OUTPUTS = [
    "off by 1.19e-07",
    "off by 7.45·10⁻⁹ only",
    "-2.2e-16",
    "0.0000001234",
    "0.123456789",
    "12,009.7331",
    "0.30000000000000004",
    "{'a', 'b'}",
    "the ranks {'first', 'second', 'third'} differ",
]
GOOD_OUTPUTS = [
    "below 1e-12",
    "off by less than 10⁻¹²",
    "0.0",
    "0.0000000000",
    "0.1234567",
    "1.5e+12",
    "1,234,567,890",
    "989000000000000.0",
    "0.00012",
    "7.5·10⁻⁵",
    "{'a'}",
    "{'a': 1, 'b': 2}",
    "{}",
    "1.2.3",
]


@pytest.mark.parametrize("output", BAD_OUTPUTS)
def test_an_unstable_output_is_found(output):
    assert list(complaints(cell("f()", output)))
    value = v4.new_code_cell("f()")
    for made in (
        v4.new_output("display_data", data={"text/plain": output}),
        v4.new_output("error", ename="E", evalue=output, traceback=[]),
    ):
        value.outputs = [made]
        assert list(complaints(value))
    assert not list(complaints(cell("f()", output, ["nbval-ignore-output"])))


@pytest.mark.parametrize("output", GOOD_OUTPUTS)
def test_a_stable_output_is_not(output):
    assert not list(complaints(cell("f()", output)))


def test_exact_numbers_may_be_tiny_and_long_and_a_set_may_not():
    assert not list(complaints(cell("f()", "5.960464478e-08", ["exact-numbers"])))
    assert list(complaints(cell("f()", "{'a', 'b'}", ["exact-numbers"])))


@pytest.mark.parametrize(
    "source",
    [
        "start = time.perf_counter()\nrun()\ntook = time.perf_counter() - start\nprint(f'{took:.3f} s')",
        "start = perf_counter()\nrun()\nstudy.bars({'run': perf_counter() - start}, unit='s')",
        "print(time.ctime())",
        "print('started', datetime.now())",
        "took = []\nfor _ in range(3):\n    took += [timeit.timeit(run)]\nstudy.table([took], ['s'])",
        "print(id(x))",
        "x, y = 1, hash('a')\ny",
        "if True:\n    print(os.getpid())",
        "torch.get_num_threads()",
        "print(*{'a', 'b'})",
        "names = set(words)\nfor name in names:\n    print(name)",
        "study.table([(path.name, 1) for path in folder.iterdir()], ['name', 'n'])",
        "files = os.listdir(folder)\nprint(files[0])",
    ],
)
def test_a_source_that_prints_what_is_another_elsewhere_is_found(source):
    assert list(complaints(cell(source)))
    assert not list(complaints(cell(source, tags=["nbval-ignore-output"])))


@pytest.mark.parametrize(
    "source",
    [
        "start = time.perf_counter()\nrun()\nassert time.perf_counter() - start < 5\nprint('in time')",
        "took = time.perf_counter() - start\nprint('in time' if took < 5 else 'late')\nprint(took < 5)",
        "took = time.perf_counter()\ntook = 1\nprint(took)",
        "print(world.time, times['run'], run.id)",
        "os.kill(os.getpid(), 9)\nprint('killed')",
        "print(sorted({'a', 'b'}), len(set(words)), {'a'})",
        "for name in sorted(os.listdir(folder)):\n    print(name)",
        "print(', '.join(sorted(path.name for path in folder.iterdir())))",
        "def f():\n    return time.time()\nprint(1)",
        "%matplotlib inline\nprint(1)",
    ],
)
def test_a_stable_source_is_not(source):
    assert not list(complaints(cell(source, "1")))
