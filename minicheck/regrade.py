"""What `nbgrader autograde` does with a submission here: it is repaired before, and examined again after.

`c.Autograde.exporter_class = "minicheck.regrade.Repair"` stands where nbgrader opens a notebook, before any step
that trusts its marks: a cell that lost them, or that is there twice, would stop the whole class with an error
that speaks of old metadata. The student reads at the top of the feedback what was repaired. A notebook that
cannot be read is graded as the release, which is empty.

"minicheck.regrade.Regrade" stands after Execute in `c.Autograde.autograde_preprocessors`. nbgrader believes what
its kernel shows, in which a student's cells run beside the tests: there `check.f = lambda yours: None` would earn
all points. By then nbgrader has put the original test cells back. A `check` that is wrong outside is wrong
(notebook.py); a test cell of plain asserts keeps what the kernel said.
"""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
from nbconvert.exporters import NotebookExporter
from nbconvert.preprocessors import Preprocessor
from traitlets import Bool

from .notebook import asks, marks
from .submission import Unreadable, read, restored


class Repair(NotebookExporter):
    """Opens what a student handed in; what nbgrader wrote itself is opened as ever."""

    def from_filename(self, filename, resources=None, **kw):
        place = self.parent.coursedir
        names = resources["nbgrader"]
        folder = place.format_path(place.submitted_directory, names["student"], names["assignment"])
        if Path(filename).parent != Path(folder):
            return super().from_filename(filename, resources, **kw)
        handed_out = (
            Path(place.format_path(part, ".", names["assignment"])) / f"{names['notebook']}.ipynb"
            for part in (place.release_directory, place.source_directory)
        )
        asked = read(next(path for path in handed_out if path.exists()))
        try:
            notebook, notes = restored(read(Path(filename), within=Path(folder).parents[1]), asked)
        except Unreadable as error:
            notebook, _ = restored({"cells": []}, asked)
            notes = [f"There is nothing to grade: {error}."]
        if notes:
            self.log.warning("Repaired %s: %s", filename, " ".join(notes))
            text = "**Before it was graded:**\n\n" + "\n".join(f"- {note}" for note in notes)
            notebook["cells"].insert(0, _markdown(notebook, text))
        return self.from_notebook_node(nbformat.from_dict(notebook), resources, **kw)


def _markdown(notebook, text):
    cell = {"cell_type": "markdown", "metadata": {}, "source": text}
    return cell | ({"id": "repaired"} if notebook["nbformat_minor"] >= 5 else {})


class Regrade(Preprocessor):
    """Marks as wrong each test cell whose answers do not hold outside the notebook's kernel."""

    enabled = Bool(True).tag(config=True)  # nbgrader registers its steps without enabling them

    def preprocess(self, nb, resources):
        tests = [cell for cell in nb.cells if _is_test(cell.metadata.get("nbgrader", {}))]
        if not any(asks(cell.source) for cell in tests):
            return nb, resources
        notebook = json.loads(nbformat.writes(nb, version=nbformat.NO_CONVERT))
        wrong = {m.grade_id: m.wrong for m in marks(notebook, notebook) if m.wrong}
        for cell in tests:
            text = wrong.get(cell.metadata["nbgrader"]["grade_id"])
            if (
                text
                and asks(cell.source)
                and not any(o.output_type == "error" for o in cell.outputs)
            ):
                error = {"ename": "Wrong", "evalue": text, "traceback": [f"Wrong: {text}"]}
                cell.outputs = [nbformat.v4.new_output("error", **error)]
        return nb, resources


def _is_test(mark):
    return mark.get("grade") and not mark.get("solution")
