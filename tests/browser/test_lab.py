"""`make lab` serves the course, and Run All passes in a real browser."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import nbformat
import nbformat.v4 as v4
import pytest

from minidist.study import bars, reveal, viewer
from minidist.study.picture import MEANING
from tests.browser.chromium import chromium, program, until
from tests.repository.files import ROOT
from tests.study.traces import remembered

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

LESSON = "02_messages"
IDLE = 'document.querySelector(".jp-NotebookPanel .jp-Notebook-ExecutionIndicator")?.dataset.status === "idle"'
# A cell with a number has run, one with a star is about to.
BEGUN = '[...document.querySelectorAll(".jp-InputArea-prompt")].some(e => /\\[(\\*|\\d+)\\]/.test(e.textContent))'
RUN_SECONDS = 180
VIEWER = """from minidist.comm.trace import Trace
from minidist.study import bars, reveal, viewer
trace = Trace(2)
trace.add(0, 1, 4096, 1e-3, 2e-3, 3e-3)
trace.spans.add(0, "main", "compute", 0.0, 4e-3, "backward")
display(viewer(trace))
picture = bars({"ring": 75e6}, unit="B", title="Sent")
display(picture, reveal(100e6, 75e6, picture, unit="B"))"""
SHOWN = ".jp-OutputArea-output iframe, .jp-OutputArea-output img"


def cleared(nb):
    """`nb` as a reader meets it who has run nothing: what it holds afterwards, the browser has made."""
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return nb


def failing():
    """A notebook whose second cell fails, so that the third is never run. The first shows a run in the viewer, a picture,
    and an answer; what is saved there comes from elsewhere, so Lab does not trust it."""
    cells = [v4.new_code_cell(source) for source in (VIEWER, "1 / 0", "2")]
    picture = bars({"ring": 75e6}, unit="B", title="Sent")
    for made in (viewer(remembered()), picture, reveal(100e6, 75e6, picture, unit="B")):
        data = {"text/html": made._repr_html_(), "text/plain": made.text}
        cells[0].outputs.append(v4.new_output("display_data", data=data))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What Lab serves here: copies, since Run All and saving must not touch the course."""
    root = tmp_path_factory.mktemp("lab")
    (root / "notebooks").mkdir()
    notebooks = {"00_failing": failing()}
    for path in ROOT.glob("notebooks/*.ipynb"):
        notebooks[path.stem] = cleared(nbformat.read(path, nbformat.NO_CONVERT))
    for name, nb in notebooks.items():
        nbformat.write(nb, root / "notebooks" / f"{name}.ipynb")
    return root


@pytest.fixture(scope="module")
def address(folder):
    """The address that `make lab` prints, with its token."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    flags = f"--no-browser --port={port} --ServerApp.port_retries=0 --ServerApp.root_dir={folder}"
    command = ["make", "lab", f"VENV={sys.prefix}", f"LAB_FLAGS={flags}"]
    # Settings and workspaces of whoever runs this stay out of it.
    home = {
        f"JUPYTER{name}_DIR": str(folder / name.lower())
        for name in ("_CONFIG", "_DATA", "LAB_SETTINGS", "LAB_WORKSPACES")
    }
    log = folder / "log"
    with open(log, "wb") as out:
        lab = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | home,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def printed():
            assert lab.poll() is None, log.read_text()
            return re.search(r"http://\S+/lab\S*\?token=\w+", log.read_text())

        yield until("the address that make lab prints", 300, printed)[0]
    finally:
        os.killpg(lab.pid, signal.SIGINT)
        os.killpg(lab.pid, signal.SIGTERM)
        try:
            lab.wait(20)
        finally:
            if lab.poll() is None:
                os.killpg(lab.pid, signal.SIGKILL)


def run_all(address, folder, name, profile, look=lambda page: None):
    """Open a notebook in Lab, click Run All Cells, save until it has ended. Returns its code cells as saved.
    `look(page)` is called before and after."""
    path = folder / "notebooks" / f"{name}.ipynb"

    def saved(page):
        page.control("s")
        nb = nbformat.read(path, nbformat.NO_CONVERT)
        cells = [c for c in nb.cells if c.cell_type == "code" and c.source.strip()]
        return cells if errors(cells) or all(c.execution_count for c in cells) else None

    def started(page):
        page.click(".lm-MenuBar-itemLabel", "Run")
        page.click(".lm-Menu-itemLabel", "Run All Cells")
        with suppress(TimeoutError):
            return until("the first cell", 10, lambda: page.evaluate(BEGUN))

    with chromium(profile) as page:
        # reset: without the tabs of the notebook before
        page.open(re.sub(r"/lab\S*\?", f"/lab/tree/notebooks/{name}.ipynb?reset&", address))
        until("an idle kernel", 90, lambda: page.evaluate(IDLE))
        look(page)
        until("a run", 30, lambda: started(page))
        cells = until(f"the last cell of {name}", RUN_SECONDS, lambda: saved(page), every=1)
        look(page)
        return cells


def errors(cells):
    """The errors that a cell's tags do not announce."""
    return [
        o.evalue
        for c in cells
        for o in c.outputs
        if o.output_type == "error" and "raises-exception" not in c.metadata.get("tags", [])
    ]


def test_the_address_opens_a_lesson(address, folder):
    assert (
        f"/lab/tree/notebooks/{min(p.stem for p in ROOT.glob('notebooks/*.ipynb'))}.ipynb"
        in address
    )


def test_run_all_passes(address, folder, tmp_path):
    cells = run_all(address, folder, LESSON, tmp_path)
    assert errors(cells) == []
    first = cells[0].execution_count
    assert [c.execution_count for c in cells] == list(range(first, first + len(cells)))


def drawn(page):
    """The element that shows a run, once it has the colours of one."""
    colors = [
        [int(MEANING[kind][i : i + 2], 16) for i in (1, 3, 5)]
        for kind in ("compute", "send", "receive")
    ]

    def seen():
        image = page.pixels(SHOWN)[0].astype(int)
        return all((abs(image - color) < 12).all(-1).sum() > 300 for color in colors)

    until("an output", 30, lambda: page.evaluate(f"!!document.querySelector('{SHOWN}')"))
    until("the colours of a run", 30, seen)
    return page.evaluate(f"document.querySelector('{SHOWN}').tagName")


def told(page):
    """The first line of each image's alternative text, and what is seen of answers."""
    images = "[...document.querySelectorAll('.jp-OutputArea-output img')].map(e => e.alt.split('\\n')[0])"
    folds = "[...document.querySelectorAll('.minidist-answer')].map(e => e.innerText.trim())"
    return page.evaluate(images), page.evaluate(folds)


def test_an_error_is_seen_and_so_are_a_run_a_picture_and_a_guess(address, folder, tmp_path):
    shown = []
    words = []

    def look(page):
        shown.append(drawn(page))
        words.append(told(page))

    cells = run_all(address, folder, "00_failing", tmp_path, look)
    assert errors(cells) == ["division by zero"]
    assert cells[2].execution_count is None
    # The static picture in a notebook that is not trusted; once its cell has run, the page, and its canvas is drawn.
    assert shown == ["IMG", "IFRAME"]
    # In both, pictures tell their words, and the answer is folded.
    guess = ["Your guess: 100 MB. Show the answer"]
    assert words == [(["Timeline", "Sent", "Sent"], guess), (["Sent", "Sent"], guess)]
