"""Submissions that are no notebooks, or are ones that nobody can hold."""

import gzip
import json
import os
import socket
import zipfile

from tests.hostile.submission import ALL, PREDICT, SHIFT, Hostile

UNREAD = r"\w{3,} \w"  # words
DOCUMENT = "JSON|read|notebook"


def text(path, notebook, out):
    path.write_text(json.dumps(notebook), encoding="utf-8")


def unreadable(name: str, tries: str, make, says: str = DOCUMENT) -> Hostile:
    """It earns nothing, and is told why."""
    return Hostile(name, tries, file=make, loses=ALL, says=says)


def bytes_of(data: bytes):
    """Writes these bytes."""
    return lambda path, notebook, out: path.write_bytes(data)


def changed(change):
    """Writes the notebook after `change(notebook)`, which is otherwise right."""

    def make(path, notebook, out):
        change(notebook)
        text(path, notebook, out)

    return make


def link(target: str):
    """A link to a file of the teacher's."""
    return lambda path, notebook, out: path.symlink_to(f"{out['course']}/{target}")


def of_links(path, notebook, out):
    """A folder of links in the place of the folder."""
    path.parent.rmdir()
    path.parent.symlink_to(f"{out['course']}/solutions/02")


def sparse(path, notebook, out):
    text(path, notebook, out)
    os.truncate(path, 3 << 30)


def listening(path, notebook, out):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def zip_bomb(path, notebook, out):
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("02.ipynb", "w") as inner,
    ):
        for _ in range(1 << 10):
            inner.write(bytes(1 << 20))


def gzip_bomb(path, notebook, out):
    path.write_bytes(gzip.compress(json.dumps(notebook).encode()))


def many_cells(notebook):
    cell = {
        "cell_type": "code",
        "metadata": {},
        "source": "x = 1",
        "outputs": [],
        "execution_count": 1,
    }
    notebook["cells"][1:1] = [cell] * 1_000_000


def outputs(notebook):
    shown = {"output_type": "stream", "name": "stdout", "text": "shift: right.\n" * 8_000_000}
    notebook["cells"][4]["outputs"] = [shown]


def long_cell(notebook):
    notebook["cells"][2]["source"] = "x = '" + "y" * 100_000_000 + "'"


def marks_of(cell) -> dict:
    return cell["metadata"]["nbgrader"]


def points(notebook):
    for cell in notebook["cells"]:
        if "points" in cell["metadata"].get("nbgrader", {}):
            marks_of(cell)["points"] = 1e9
            cell["source"] = "pass"
    notebook["cells"][3]["source"] = "def shift(comm, x, places):\n    return x"


def twice(notebook):
    """Both cells of `shift` stand there twice, with the same ids; the first solution is wrong."""
    wrong = json.loads(json.dumps(notebook["cells"][3:5]))
    wrong[0]["source"] = "def shift(comm, x, places):\n    return x"
    notebook["cells"][3:3] = wrong


def strange_ids(notebook):
    for cell, grade_id in zip(notebook["cells"][3:7], ([], {"a": 1}, None, "../../x")):
        marks_of(cell)["grade_id"] = grade_id
        cell["id"] = 7


def strange_metadata(notebook):
    for cell, metadata in zip(
        notebook["cells"], (None, [], "x", 3, {"nbgrader": None}, {"nbgrader": []})
    ):
        cell["metadata"] = metadata


def strange_sources(notebook):
    for cell, source in zip(notebook["cells"][:3], (None, 3, {"a": 1})):
        cell["source"] = source
    notebook["cells"][0] = 5
    notebook["cells"].append({"cell_type": ["code"]})
    notebook["cells"].append({})


def surrogates(notebook):
    notebook["cells"][2]["source"] = "x = '\ud800\udfff'\n# \x00"


def kernel(notebook):
    notebook["metadata"]["kernelspec"] = {"name": "../../x", "argv": ["touch", "/tmp/kernel"]}
    notebook["metadata"]["language_info"] = {"name": "bash"}


def another_format(notebook):
    notebook["worksheets"] = [{"cells": notebook.pop("cells")}]
    notebook["nbformat"] = 3


def no_cells(notebook):
    notebook["cells"] = {"0": notebook["cells"]}


BANK = [
    unreadable(
        "link_to_the_solution",
        "The submission is a link to the solved notebook.",
        link("solutions/02/02.ipynb"),
        "link|file",
    ),
    unreadable(
        "link_to_another",
        "The submission is a link to another student's.",
        link("submitted/alice/02/02.ipynb"),
        "link|file",
    ),
    unreadable(
        "link_to_itself",
        "The submission is a link to itself.",
        link("submitted/mallory/02/02.ipynb"),
        "link|file|read",
    ),
    unreadable(
        "link_without_end",
        "The submission is a link to a device that never ends.",
        lambda path, notebook, out: path.symlink_to("/dev/zero"),
        "link|file|read",
    ),
    unreadable(
        "fifo",
        "The submission is a pipe that nobody writes to.",
        lambda path, notebook, out: os.mkfifo(path),
        "file|pipe|read",
    ),
    unreadable("socket", "The submission is a socket.", listening, "file|socket|read"),
    unreadable(
        "folder",
        "The submission is a folder.",
        lambda path, notebook, out: path.mkdir(),
        "folder|directory|file|read",
    ),
    unreadable(
        "folder_of_links",
        "The folder of the submission is a link to the solution's.",
        of_links,
        "link|file",
    ),
    unreadable(
        "sparse",
        "The submission is three gigabytes of which most are not there.",
        sparse,
        "large|bytes|size|JSON|memory",
    ),
    unreadable("zip_bomb", "The submission is a gigabyte in a megabyte.", zip_bomb),
    unreadable("compressed", "The submission is compressed.", gzip_bomb),
    unreadable("empty", "The submission is an empty file.", bytes_of(b"")),
    unreadable(
        "no_json", "The submission ends in the middle.", bytes_of(b'{"cells": [{"cell_type": "co')
    ),
    unreadable(
        "no_utf8",
        "The submission is no UTF-8.",
        bytes_of(b'{"cells": "\xff\xfe\xc0\x80"}'),
        "UTF|utf|JSON|read|notebook",
    ),
    unreadable("zeros", "The submission is a megabyte of zeros.", bytes_of(bytes(1 << 20))),
    unreadable(
        "deep",
        "The submission is a million lists, one in the other.",
        bytes_of(b"[" * 1_000_000 + b"]" * 1_000_000),
    ),
    unreadable(
        "deep_objects",
        "Its metadata are a million objects, one in the other.",
        bytes_of(b'{"metadata":' * 200_000 + b"1" + b"}" * 200_000),
    ),
    unreadable("a_number", "The submission is JSON, and no notebook.", bytes_of(b"NaN")),
    unreadable(
        "a_large_number",
        "The submission is a number of ten million digits.",
        bytes_of(b"1" * 10_000_000),
    ),
    unreadable("no_cells", "Its cells are an object.", changed(no_cells)),
    Hostile("many_cells", "It has a million cells.", file=changed(many_cells), says=UNREAD),
    Hostile(
        "outputs",
        "Its outputs are a hundred megabytes, and say that it is right.",
        file=changed(outputs),
    ),
    Hostile(
        "long_cell", "One of its lines has a hundred million letters.", file=changed(long_cell)
    ),
    Hostile(
        "points",
        "Its test cells are worth a thousand million points, and test nothing.",
        file=changed(points),
        keeps=PREDICT,
        loses=SHIFT,
    ),
    Hostile(
        "twice",
        "Its cells, with their ids, stand there twice, and the first are wrong.",
        file=changed(twice),
        keeps=PREDICT,
    ),
    Hostile(
        "strange_ids",
        "The ids of its cells are lists, objects and paths.",
        file=changed(strange_ids),
    ),
    Hostile("strange_metadata", "Its metadata are no objects.", file=changed(strange_metadata)),
    Hostile(
        "strange_sources",
        "Its sources are numbers and objects, and some of its cells are none.",
        file=changed(strange_sources),
    ),
    Hostile(
        "surrogates",
        "A source has letters that no file can hold.",
        file=changed(surrogates),
        keeps=ALL,
    ),
    Hostile(
        "kernel_of_its_own",
        "It wants a kernel of its own, which is a command.",
        file=changed(kernel),
        keeps=ALL,
    ),
    Hostile("another_format", "It is of an older format.", file=changed(another_format)),
]
