"""What `nbgrader autograde` does with a submission here: it is repaired before, and examined again after.

`c.Autograde.exporter_class = "minicheck.regrade.Repair"` stands where nbgrader opens a notebook, before any step
that trusts its marks: a cell that lost them, or that is there twice, would stop the whole class with an error
that speaks of old metadata. The student reads at the top of the feedback what was repaired. A notebook that
cannot be read is graded as the release, which is empty. A link beside a notebook is left out: nbgrader would copy what
it names. So is a file timestamp.txt that tells no time: nbgrader would give no mark, or wait for ever. Above an open answer
stands the picture that its cell `NAME_plot` had when it was handed in, for whoever grades it by hand.

"minicheck.regrade.Regrade" stands in the place of Execute in `c.Autograde.autograde_preprocessors`. nbgrader's own
would run a stranger's cells in a kernel, as the teacher, and believe what that shows: there `check.f = lambda
yours: None` would earn all points. Here they run in a sandbox, and each answer is examined (notebook.py). By then
nbgrader has put the original test cells back.
"""

from __future__ import annotations

import glob
import json
import os
import re
from functools import partial
from pathlib import Path

import nbformat
from nbconvert.exporters import NotebookExporter
from nbconvert.preprocessors import Preprocessor
from traitlets import Bool, Unicode

from .notebook import by_hand, examine
from .sandbox import choose
from .submission import Unreadable, contents, read, restored
from .tables import earned

PNG = re.compile(r'"data:image/png;base64,(iVBORw0KGgo[A-Za-z0-9+/]*={0,2})"')  # as each PNG begins
MOST_PICTURE = 1_000_000  # characters
MOST_PICTURES = 4  # of an answer


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
            answered = read(Path(filename), within=Path(folder).parents[1])
            notebook, notes = restored(answered, asked)
        except Unreadable as error:
            answered = {"cells": []}
            notebook, _ = restored(answered, asked)
            notes = [f"There is nothing to grade: {error}."]
        for exercise in by_hand(asked):
            show_plot(notebook, exercise, answered)
        if notes:
            self.log.warning("Repaired %s: %s", filename, " ".join(notes))
            text = "**Before it was graded:**\n\n" + "\n".join(f"- {note}" for note in notes)
            notebook["cells"].insert(0, _markdown(notebook, text, "repaired"))
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


def show_plot(notebook, exercise, answered):
    """Put the pictures that the cell `EXERCISE_plot` of `answered` shows above the open answer to the exercise."""
    marks = [cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in notebook["cells"]]
    texts = [
        f"![as it was handed in](data:image/png;base64,{p})" for p in plots(answered, exercise)
    ]
    if texts and exercise in marks:
        cell = _markdown(notebook, "\n\n".join(texts), f"{exercise}-handed-in")
        notebook["cells"].insert(marks.index(exercise), cell)


def plots(answered, exercise):
    """The pictures in the outputs of a student's cell `EXERCISE_plot`, in base64; nothing else that stands there."""
    found = []
    for cell in answered["cells"]:
        mark = _part(_part(cell, "metadata"), "nbgrader")
        if mark.get("grade_id") != f"{exercise}_plot" or not isinstance(cell.get("outputs"), list):
            continue
        for output in cell["outputs"]:
            data = _part(output, "data")
            bare = "".join(_text(data.get("image/png")).split())
            found += PNG.findall(f'"data:image/png;base64,{bare}"')
            found += PNG.findall(_text(data.get("text/html")))  # what `study` draws
    return [png for png in found if len(png) <= MOST_PICTURE][:MOST_PICTURES]


def _text(value):
    """A text, which a notebook may have as a list of lines; an empty one of what is none."""
    lines = value if isinstance(value, list) else [value]
    return "".join(line for line in lines if isinstance(line, str))


def _part(value, key):
    """The dictionary that a piece of JSON has under a key; an empty one without."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _markdown(notebook, text, name):
    cell = {"cell_type": "markdown", "metadata": {}, "source": text}
    return cell | ({"id": name} if notebook["nbformat_minor"] >= 5 else {})


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
