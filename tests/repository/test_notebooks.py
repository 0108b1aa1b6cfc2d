"""The committed notebooks: built from their source, run from top to bottom, without an unexpected error."""

import nbformat
import nbformat.v4 as v4
import pytest

from tests.repository.files import ROOT, repository
from tests.repository.test_build import run

OUTPUT = v4.new_output("stream", name="stdout", text="1\n")
ERROR = v4.new_output("error", ename="E", evalue="", traceback=[])


def complaints(nb):
    """What shows that `nb` was not run, cell by cell from the top, to its end."""
    count = 0
    for i, cell in enumerate(nb.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        count += 1
        if cell.execution_count is None:
            yield f"cell {i} was never run"
        elif cell.execution_count != count:
            yield f"cell {i} was run out of order: {cell.execution_count} instead of {count}"
        failed = any(o.output_type == "error" for o in cell.outputs)
        if failed != ("raises-exception" in cell.metadata.get("tags", [])):
            yield f"cell {i} " + ("failed" if failed else "should fail and did not")


def test_every_cell_was_run():
    found = [
        f"{path}: {c}"
        for path in repository("notebooks/*.ipynb", "solutions/*.ipynb")
        for c in complaints(nbformat.read(ROOT / path, nbformat.NO_CONVERT))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "cell",
    [
        v4.new_code_cell("1"),
        v4.new_code_cell("1", execution_count=2),
        v4.new_code_cell("1", execution_count=1, outputs=[ERROR]),
        v4.new_code_cell(
            "1", execution_count=1, metadata={"tags": ["raises-exception"]}, outputs=[OUTPUT]
        ),
    ],
)
def test_a_bad_cell_is_found(cell):
    assert list(complaints(v4.new_notebook(cells=[cell])))


def test_a_good_notebook_is_not():
    cells = [
        v4.new_markdown_cell("text"),
        v4.new_code_cell("1", execution_count=1, outputs=[OUTPUT]),
        v4.new_code_cell(""),
        v4.new_code_cell(
            "2", execution_count=2, metadata={"tags": ["raises-exception"]}, outputs=[ERROR]
        ),
    ]
    assert not list(complaints(v4.new_notebook(cells=cells)))


def test_nothing_is_stale():
    done = run(ROOT, "--check")
    assert done.returncode == 0, done.stdout
