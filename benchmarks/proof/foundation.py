"""What the foundation must show: the issue's nine items, in its order."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from tests.bank.bank import assignment, planted
from tests.largest import largest

from .comm_items import ITEMS as COMM_ITEMS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _run(command: list[str], **kwargs) -> tuple[int, str, float]:
    start = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **kwargs
    )
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - start


def fresh_clone(minutes: float = math.inf) -> tuple[str, bool]:
    """Item 1: clone, new environment, `make test` (which drives `make lab` in a real browser), and what it may take."""
    folder = tempfile.mkdtemp(prefix="fresh-")
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), f"{folder}/minidist"], check=True)
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        _, _, installing = _run(["make", ".venv/.test"], cwd=f"{folder}/minidist", env=environ)
        code, text, seconds = _run(["make", "test"], cwd=f"{folder}/minidist", env=environ)
        closing = re.findall(r"^=* ?(\d+ (?:passed|failed).* in .*?s)\b", text, re.MULTILINE)
        skipped = [line for line in text.splitlines() if line.startswith("SKIPPED")]
        figure = f"installing: {installing / 60:.1f} min; make test: {seconds / 60:.1f} min, exit code {code}"
        parts = zip(("unit", "alone, with the browser", "notebooks"), closing, strict=False)
        rows = [figure, *(f"{what}: {line}" for what, line in parts)]
        if code:
            print(text[-6000:])
        whole = len(closing) == 3 and all("/gpu/" in line for line in skipped)  # those need a GPU
        held = code == 0 and whole and seconds < 60 * minutes
        return "\n".join([*rows, f"skipped: {len(skipped)}", *skipped]), held
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def digits() -> tuple[str, bool]:
    """Item 2: one script, three worlds, against the serial run."""
    script = str(ROOT / "examples" / "train_digits.py")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        script,
    ]
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "serial": [sys.executable, script, "--ranks", "1"],
            "world": [sys.executable, script, "--ranks", "4", "--runner", "world"],
            "processes": [sys.executable, script, "--ranks", "4", "--runner", "processes"],
            "torchrun": torchrun,
        }
        found = {}
        for name, command in runs.items():
            code, text, seconds = _run([*command, "--json", f"{folder}/{name}.json"])
            if code:
                raise RuntimeError(text[-3000:])
            found[name] = json.loads(pathlib.Path(f"{folder}/{name}.json").read_text()) | {
                "seconds": seconds
            }
    serial = found["serial"]
    rows = []
    held = True
    for name, run in found.items():
        apart = largest(abs(a - b) for a, b in zip(run["losses"], serial["losses"], strict=True))
        held &= apart <= 1e-6 and run["accuracies"][-1] > 0.95 and run["replicas_equal"] is True
        rows.append(
            f"{name}: accuracy {run['accuracies'][-1]:.4f}, losses at most {apart:.1e} from serial, "
            f"replicas equal bit for bit: {run['replicas_equal']}, {run['seconds']:.1f} s"
        )
    return "\n".join(rows), held


def bank_of(lessons: tuple[str, ...], limit: float) -> tuple[str, bool]:
    """All planted bugs of these lessons caught, in three minutes; their notebooks executed, `limit` seconds each."""
    code, text, seconds = _run([sys.executable, "-m", "tests.bank", *lessons], cwd=ROOT)
    rows = [line for line in text.splitlines() if " planted, " in line] + [
        f"bank: {seconds:.0f} s, exit code {code}"
    ]
    held = code == 0 and seconds < 180 and len(rows) == len(lessons) + 1
    for lesson in lessons:
        for notebook in (
            ROOT / "notebooks" / f"{lesson}.ipynb",
            ROOT / "solutions" / lesson / f"{lesson}.ipynb",
        ):
            with tempfile.TemporaryDirectory() as folder:
                convert = [
                    sys.executable,
                    "-m",
                    "nbconvert",
                    "--to",
                    "notebook",
                    "--execute",
                    "--output-dir",
                    folder,
                ]
                code, text, seconds = _run([*convert, str(notebook)])
            held &= code == 0 and seconds < limit
            failed = "" if code == 0 else f", FAILED: {text[-500:]}"
            rows.append(f"{notebook.relative_to(ROOT)}: executed in {seconds:.0f} s{failed}")
    return "\n".join(rows), held


def bank() -> tuple[str, bool]:
    """Item 7: all planted bugs caught; the notebooks' times."""
    return bank_of(("02_messages", "05_data_parallel"), 30)


def _cells(path: pathlib.Path) -> dict[str, dict]:
    """Cells of a notebook by grade_id."""
    cells = json.loads(path.read_text())["cells"]
    return {c["metadata"]["nbgrader"]["grade_id"]: c for c in cells if "nbgrader" in c["metadata"]}


def _submit(course: pathlib.Path, name: str, student: str, answers: dict[str, str]) -> None:
    """The released notebook with some of its answer cells replaced."""
    notebook = json.loads((course / "exercises" / name / f"{name}.ipynb").read_text())
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") in answers:
            cell["source"] = answers[cell["metadata"]["nbgrader"]["grade_id"]]
    path = course / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(notebook))


def nbgrader(name: str = "02_messages") -> tuple[str, bool]:
    """Item 9: the round trip with a right, a half-right and a cheating submission."""
    solved = _cells(ROOT / "solutions" / name / f"{name}.ipynb")
    answers = {
        key: "".join(c["source"])
        for key, c in solved.items()
        if c["metadata"]["nbgrader"].get("solution")
    }
    points = {
        key: c["metadata"]["nbgrader"]["points"]
        for key, c in solved.items()
        if c["metadata"]["nbgrader"].get("grade")
    }
    half = dict(list(answers.items())[: len(answers) // 2])
    cheats = {}
    lesson = ROOT / "course" / name
    for bug in planted(lesson):
        if bug.cheat:
            cheats.setdefault(bug.exercise, bug.code(assignment(lesson).solutions[bug.exercise]))
    with tempfile.TemporaryDirectory() as folder:
        course = pathlib.Path(folder)
        shutil.copy(ROOT / "nbgrader_config.py", course)
        for part in ("solutions", "exercises"):
            shutil.copytree(ROOT / part, course / part)
        grader = [sys.executable, "-m", "nbgrader"]
        environ = os.environ | {
            "JUPYTER_CONFIG_DIR": str(course / ".jupyter"),
            "PYTHONPATH": str(ROOT),
        }
        for student, work in (("right", answers), ("half", half), ("cheat", answers | cheats)):
            _submit(course, name, student, work)
        steps = (
            ["generate_assignment", name, "--force"],
            ["autograde", name],
            ["generate_feedback", name],
            ["export"],
        )
        for step in steps:
            code, text, _ = _run([*grader, *step], cwd=course, env=environ)
            if code:
                raise RuntimeError(text[-3000:])
        with open(course / "grades.csv") as file:
            marks = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    full = sum(points.values())
    for_half = sum(points.get(f"{key}_test", 0) for key in half)
    for_cheat = full - sum(points[f"{key}_test"] for key in cheats)
    figure = f"points of {full:g}: right {marks['right']:g}, half-right {marks['half']:g} (its share: {for_half:g}), "
    figure += f"cheating on {len(cheats)} exercises {marks['cheat']:g} (the others: {for_cheat:g})"
    return figure, marks == {"right": full, "half": for_half, "cheat": for_cheat} and len(
        cheats
    ) > 0


ITEMS = dict(
    sorted(
        {
            "1 fresh clone": fresh_clone,
            "2 digits in three worlds": digits,
            "7 bank and notebooks": bank,
            "9 nbgrader round trip": nbgrader,
            **COMM_ITEMS,
        }.items()
    )
)
