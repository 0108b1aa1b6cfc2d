"""What `nbgrader autograde` does with a submission here: it is repaired before, and examined again after.

`c.Autograde.exporter_class = "minicheck.regrade.Repair"` stands where nbgrader opens a notebook, before any step
that trusts its marks: a cell that lost them, or that is there twice, would stop the whole class with an error
that speaks of old metadata. The student reads at the top of the feedback what was repaired. A notebook that
cannot be read is graded as the release, which is empty. A link beside a notebook is left out: nbgrader would copy what
it names. So is a file timestamp.txt that tells no time: nbgrader would give no mark, or wait for ever.

"minicheck.regrade.Regrade" stands in the place of Execute in `c.Autograde.autograde_preprocessors`. nbgrader's own
would run a stranger's cells in a kernel, as the teacher, and believe what that shows: there `check.f = lambda
yours: None` would earn all points. Here they run in a sandbox, and each answer is examined (notebook.py). By then
nbgrader has put the original test cells back.
"""

from __future__ import annotations

import glob
import json
import os
from functools import partial
from pathlib import Path

import nbformat
from nbconvert.exporters import NotebookExporter
from nbconvert.preprocessors import Preprocessor
from traitlets import Bool, Unicode

from .notebook import examine
from .sandbox import choose
from .submission import Unreadable, contents, read, restored
from .tables import earned


class Repair(NotebookExporter):
    """Opens what a student handed in; what nbgrader wrote itself is opened as ever."""

    def __init__(self, **more):
        super().__init__(**more)
        place = self.parent.coursedir
        folders = place.format_path(place.submitted_directory, "*", place.assignment_id)
        left_out = [glob.escape(path) for path in glob.glob(folders) for path in no_files(path)]
        place.ignore = [*dict.fromkeys([*place.ignore, *left_out])]
        place.get_existing_timestamp = partial(timestamp, place)

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


def no_files(folder: str) -> list[str]:
    """A folder and what lies in it, as far as that is a link or a pipe, and no folder or file; the folder for many of them,
    as nbgrader looks at each of them for each file."""
    found = [folder] if os.path.islink(folder) else []
    for above, _, names in os.walk(folder):
        paths = [os.path.join(above, name) for name in names]
        found += [path for path in paths if os.path.islink(path) or not os.path.isfile(path)]
    return found if len(found) < 20 else [folder]


def timestamp(place, folder):
    """When something was handed in, as nbgrader reads it; None where the file is none, or tells no time."""
    try:
        contents(Path(folder) / "timestamp.txt")
        return type(place).get_existing_timestamp(place, folder)
    except Exception:  # of a time that nobody can read nbgrader makes an error, and no mark
        return None


def _markdown(notebook, text):
    cell = {"cell_type": "markdown", "metadata": {}, "source": text}
    return cell | ({"id": "repaired"} if notebook["nbformat_minor"] >= 5 else {})


class Regrade(Preprocessor):
    """Writes into each test cell what is wrong with the answers. What other cells printed is not kept."""

    enabled = Bool(True).tag(config=True)  # nbgrader registers its steps without enabling them
    engine = Unicode("bwrap", help="what makes the sandboxes").tag(config=True)
    trust_submissions = Bool(False, help="run what students wrote as you, without a sandbox").tag(
        config=True
    )

    def preprocess(self, nb, resources):
        notebook = json.loads(nbformat.writes(nb, version=nbformat.NO_CONVERT))
        sandbox = choose(self.engine, None, self.trust_submissions)
        marked = examine(notebook, notebook, sandbox)
        if marked.odd:
            self.log.warning("Odd: %s", "; ".join(marked.odd))
        said = {mark.grade_id: mark for mark in marked.marks}
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs = []
                name = cell.metadata.get("nbgrader", {}).get("grade_id")
                if name in said:
                    cell.outputs = _outputs(said[name])
        return nb, resources


def _outputs(mark):
    """What nbgrader takes for the mark: an error for nothing, a number for some of the points, anything else for all."""
    make, words = nbformat.v4.new_output, mark.wrong
    if words and not mark.share:
        return [make("error", ename="Wrong", evalue=words, traceback=[f"Wrong: {words}"])]
    stream = make("stream", text=f"{words or 'right'}\n")
    part = make("execute_result", {"text/plain": f"{earned(mark):g}"})
    return [stream, part] if words else [stream]
