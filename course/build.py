"""Build the notebooks of the course from their text.

    python course/build.py [--check] [--jobs N] [NN ...]

    course/NN_topic/lesson.py      -> notebooks/NN_topic.ipynb             executed, with outputs
    course/NN_topic/assignment.py  -> solutions/NN_topic/NN_topic.ipynb    executed, with outputs
                                   -> exercises/NN_topic/NN_topic.ipynb    what nbgrader makes of the solution

A source is in jupytext's percent format; tags and nbgrader's metadata stand in the cell markers. Of the latter only
`grade_id` and what differs from a locked cell is written: `"solution": true`, or `"points": 2`. What a cell links to is
resolved, and a lesson gets a head and a foot: course/links.py says how. A cell with the tag `maintainer` or `answer`
shows its output alone.

Invariants: building twice on one machine gives the same bytes; what has not changed is not run again; a notebook is
fresh exactly when its cells are those of its source, with the links that lead to what is there now, and its digest is
that of the source, of these cells and of this file.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert import NotebookExporter
from nbformat import NotebookNode
from traitlets.config import PyFileConfigLoader

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `python course/build.py` looks beside this file only

from course.links import BuildError, Links  # noqa: E402

FOLDERS = ("notebooks", "solutions", "exercises")
CELL_TIMEOUT = 120

ANSI = re.compile(r"\x1b\[[0-9;]*m")
HIDDEN = {"maintainer", "answer"}  # tags of cells that show their output and not their source
WIDGET = "application/vnd.jupyter.widget-view+json"
# What another run or another machine would print differently.
UNSTABLE = re.compile(
    r" at 0x[0-9a-f]{4,}|(?<![\w.~])(?:~|/(?:tmp|home|root|usr|opt|Users|private|var))/\S*"
)


def sources(root: Path, numbers: list[str]) -> list[Path]:
    """The lessons and assignments under `root`, in order; only those of the lessons `numbers` if any are given."""
    found = [
        p for p in root.glob("course/[0-9]*_*/*.py") if p.name in ("lesson.py", "assignment.py")
    ]
    missing = [n for n in numbers if not any(p.parent.name.startswith(f"{n}_") for p in found)]
    if missing:
        raise BuildError(f"no lesson {', '.join(missing)} under {root / 'course'}")
    return sorted(p for p in found if not numbers or p.parent.name.split("_")[0] in numbers)


def targets(root: Path, source: Path) -> list[Path]:
    """The notebooks that `source` becomes: the executed one first, then the exercise of an assignment."""
    name = source.parent.name
    if source.name == "lesson.py":
        return [root / "notebooks" / f"{name}.ipynb"]
    return [root / folder / name / f"{name}.ipynb" for folder in ("solutions", "exercises")]


# ---------------------------------------------------------------------------------------------- text -> notebook
def read(root: Path, source: Path) -> NotebookNode:
    """`source` as a notebook that was not run, with the same ids and metadata at every reading."""
    text = source.read_text(encoding="utf-8")
    nb = jupytext.reads(text, fmt="py:percent")
    for i, cell in enumerate(nb.cells):
        cell.metadata.pop("lines_to_next_cell", None)
        cell.id = f"{source.stem}-{source.parent.name.split('_')[0]}-{i:03d}"
        if "nbgrader" in cell.metadata:
            cell.metadata.nbgrader = graded(cell.metadata.nbgrader)
        if HIDDEN & set(cell.metadata.get("tags", [])):
            cell.metadata.jupyter = {"source_hidden": True}
    link(root, source, nb)
    shown = "".join(cell.source for cell in nb.cells)
    digest = hashlib.sha256(
        text.encode() + shown.encode() + Path(__file__).read_bytes()
    ).hexdigest()
    nb.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {
                "file_extension": ".py",
                "mimetype": "text/x-python",
                "name": "python",
            },
            "minidist": {"source": source.relative_to(root).as_posix(), "sha256": digest},
        }
    )
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nb


def link(root: Path, source: Path, nb: NotebookNode) -> None:
    """Resolve the links of a notebook's text cells; put a head below its title, and a foot below a lesson."""
    links = Links(root)
    row = links.row(source.parent.name)
    inside = source.relative_to(root)
    up = "../" * (len(targets(root, source)[0].relative_to(root).parts) - 1)
    for i, cell in enumerate(nb.cells):
        if cell.cell_type == "markdown":
            try:
                cell.source = links.resolve(cell.source, up)
            except BuildError as e:
                raise BuildError(f"{inside}: cell {i}: {e}") from None
    title = nb.cells[0] if nb.cells else nbformat.v4.new_markdown_cell()
    if title.cell_type != "markdown" or not title.source.startswith("# "):
        raise BuildError(f"{inside}: cell 0 does not begin with a title, `# {row}`")
    is_lesson = source.name == "lesson.py"
    head = links.head(row, up) if is_lesson else links.assignment_head(row, up)
    first, _, rest = title.source.partition("\n")
    title.source = f"{first}\n\n{head}\n{rest}".rstrip()
    if is_lesson:
        foot = nbformat.v4.new_markdown_cell(links.foot(row, up), id=f"lesson-{row.number}-foot")
        nb.cells.append(foot)


def graded(given: dict) -> dict:
    """nbgrader's metadata in full: a cell with points is graded, and what is not a solution is locked."""
    solution = given.get("solution", False)
    whole = {
        "schema_version": 3,
        "grade": "points" in given,
        "solution": solution,
        "locked": not solution,
    }
    return whole | {"task": False} | given


# ------------------------------------------------------------------------------------------------------- execute
def execute(root: Path, source: Path, folder: Path) -> NotebookNode:
    """The notebook of `source`, run in `folder` (where Jupyter runs it too), its outputs made reproducible."""
    nb = read(root, source)
    metadata = copy.deepcopy(nb.metadata)
    folder.mkdir(parents=True, exist_ok=True)
    client = NotebookClient(
        nb,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    # A profile of one's own, and a backend other than the notebook's, would show in the outputs.
    env = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}
    begun = []
    client.on_cell_start = lambda cell, cell_index: begun.append(cell_index)
    try:
        with tempfile.TemporaryDirectory() as profile:
            client.execute(env=env | {"IPYTHONDIR": profile})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as e:
        raise BuildError(f"{source.relative_to(root)}: cell {begun[-1]} failed\n{e}") from None
    nb.metadata = metadata
    for i, cell in enumerate(nb.cells):
        if cell.cell_type == "code":
            settle(cell, f"{source.relative_to(root)}: cell {i}", root)
    return nb


def settle(cell: NotebookNode, where: str, root: Path) -> None:
    """Take out of a cell's outputs what changes from run to run; refuse what cannot be taken out."""
    failed = any(o.output_type == "error" for o in cell.outputs)
    if "raises-exception" in cell.metadata.get("tags", []) and not failed:
        raise BuildError(f"{where} is tagged raises-exception, and raised nothing")
    for output in cell.outputs:
        # only the notebook's own lines: the library's move with every version
        if output.output_type == "error":
            output.traceback = [
                t for t in output.traceback if not ANSI.sub("", t).startswith("File ")
            ]
            texts = [output.evalue, *output.traceback]
        elif output.output_type == "stream":
            texts = [output.text]
        else:
            output.data.pop(WIDGET, None)
            texts = [
                v
                for kind, v in output.data.items()
                if isinstance(v, str) and not kind.startswith("image/")
            ]
        for text in texts:
            plain = ANSI.sub("", text)
            bad = UNSTABLE.search(plain) or re.search(re.escape(str(root)) + r"\S*", plain)
            if bad:
                raise BuildError(
                    f"{where} prints {bad[0].strip()!r}, which is another on the next machine or run"
                )


# ------------------------------------------------------------------------------------------- solution -> exercise
def release(root: Path, solution: NotebookNode, name: str) -> str:
    """What `nbgrader generate_assignment` writes for `solution`: its own steps and configuration, but no database."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.preprocessors import SaveCells

    config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
    config.Exporter.default_preprocessors = []
    exporter = NotebookExporter(config=config)
    for step in GenerateAssignment(config=config).preprocessors:
        if step is not SaveCells:
            exporter.register_preprocessor(step, enabled=True)
    resources = {
        "unique_key": name,
        "metadata": {"name": name, "path": str(root / "solutions" / name)},
    }
    return exporter.from_notebook_node(copy.deepcopy(solution), resources=resources)[0]


# ----------------------------------------------------------------------------------------------- write and check
def write(path: Path, text: str) -> None:
    """Write `text` at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8", newline="\n")
    part.replace(path)


def text_of(nb: NotebookNode) -> str:
    return nbformat.writes(nb, version=nbformat.NO_CONVERT) + "\n"


def unrun(nb: NotebookNode) -> NotebookNode:
    nb = copy.deepcopy(nb)
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return nb


def stale(root: Path, source: Path) -> list[Path]:
    """Those of the source's notebooks that are missing, or not what the source says."""
    first, *rest = targets(root, source)
    if not first.exists():
        return [first, *rest]
    built = nbformat.read(first, nbformat.NO_CONVERT)
    if text_of(unrun(built)) != text_of(read(root, source)):
        return [first, *rest]
    return [
        p
        for p in rest
        if not p.exists() or p.read_text(encoding="utf-8") != release(root, built, p.stem)
    ]


def orphans(root: Path) -> list[Path]:
    """Notebooks that no source makes."""
    made = {path for source in sources(root, []) for path in targets(root, source)}
    found = {p for folder in FOLDERS for p in root.glob(f"{folder}/**/*.ipynb")}
    return sorted(p for p in found - made if ".ipynb_checkpoints" not in p.parts)


def build(root: Path, source: Path, force: bool) -> str:
    """Bring the notebooks of `source` up to date. Returns a line that says what was done."""
    start = time.monotonic()
    first, *rest = old = targets(root, source)
    todo = old if force else stale(root, source)
    if first in todo:
        write(first, text_of(execute(root, source, first.parent)))
    for path in rest:
        if path in todo:
            write(path, release(root, nbformat.read(first, nbformat.NO_CONVERT), path.stem))
    names = ", ".join(p.relative_to(root).as_posix() for p in todo or old)
    return f"built  {names}  ({time.monotonic() - start:.1f} s)" if todo else f"fresh  {names}"


def attempt(root: Path, source: Path, force: bool) -> tuple[bool, str]:
    try:
        return True, build(root, source, force)
    except BuildError as e:
        return False, f"failed {e}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Build the notebooks of the course from their text."
    )
    parser.add_argument("numbers", nargs="*", metavar="NN", help="only these lessons")
    parser.add_argument(
        "--check",
        action="store_true",
        help="build nothing; name what is stale, exit with 1 if any is",
    )
    parser.add_argument(
        "--force", action="store_true", help="build again what is fresh: the package has changed"
    )
    parser.add_argument("--jobs", type=int, default=1, help="so many notebooks at a time")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    root = args.root.resolve()
    try:
        chosen = sources(root, args.numbers)
    except BuildError as e:
        parser.error(str(e))
    extra = [] if args.numbers else orphans(root)
    for path in extra:
        print(f"{path.relative_to(root)} has no source under course/")
    if args.check:
        try:
            old = [path for source in chosen for path in stale(root, source)]
        except BuildError as e:
            print(e)
            return 1
        for path in old:
            print(f"{path.relative_to(root)} is stale: run `make build`")
        return int(bool(old or extra))
    with ProcessPoolExecutor(max_workers=args.jobs) as pool:
        run = pool.map if args.jobs > 1 else map
        results = run(attempt, [root] * len(chosen), chosen, [args.force] * len(chosen))
        good = [print(line, flush=True) or ok for ok, line in results]
    return int(not all(good) or bool(extra))


if __name__ == "__main__":
    sys.exit(main())
