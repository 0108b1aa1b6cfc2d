"""A step of `nbgrader autograde` that examines the answers again, outside the notebook's kernel (notebook.py).

nbgrader believes what its kernel shows, in which a student's cells run beside the tests: there
`check.f = lambda yours: None` would earn all points.

It stands after Execute in `c.Autograde.autograde_preprocessors`, as "minicheck.regrade.Regrade". By then nbgrader
has put the original test cells back. A `check` that is wrong outside is wrong; a test cell of plain asserts keeps
what the kernel said.
"""

from __future__ import annotations

import json

import nbformat
from nbconvert.preprocessors import Preprocessor
from traitlets import Bool

from .notebook import asks, marks


class Regrade(Preprocessor):
    """Marks as wrong each test cell whose answers do not hold outside the notebook's kernel."""

    enabled = Bool(True).tag(config=True)  # nbgrader registers its steps without enabling them

    def preprocess(self, nb, resources):
        notebook = json.loads(nbformat.writes(nb, version=nbformat.NO_CONVERT))
        wrong = {m.grade_id: m.wrong for m in marks(notebook, notebook) if m.wrong}
        for cell in nb.cells:
            text = wrong.get(cell.metadata.get("nbgrader", {}).get("grade_id"))
            if (
                text
                and asks(cell.source)
                and not any(o.output_type == "error" for o in cell.outputs)
            ):
                error = {"ename": "Wrong", "evalue": text, "traceback": [f"Wrong: {text}"]}
                cell.outputs = [nbformat.v4.new_output("error", **error)]
        return nb, resources
