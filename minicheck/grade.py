"""A class is graded: `python -m minicheck grade submitted/ --assignment 06_buckets --jobs 4`.

    uploads.py            this file                              tables.py
    who, which file  ──▶  mark, so many at once; journal    ──▶  grades.csv, canvas.csv, moodle.csv, feedback/

Each mark is in the journal, a line, before the next submission of that thread begins. A mark holds for a notebook's
digest and for the digest of what grades it; so a run that was interrupted goes on, and what has changed is graded anew.
A marking that fails is no zero: it has no points, and the teacher is asked to look.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .exam import FAILED, one_spelling
from .notebook import Mark, Marked, is_test
from .sandbox import descendants
from .submission import Unreadable
from .tables import Graded, earned, line
from .uploads import Submission

PACKAGE = Path(__file__).resolve().parent


# ------------------------------------------------------------
# What is asked.


def questions(name: str, solved: Path | None = None) -> dict:
    """The cells of an assignment that ask, as they were handed out; `solved` is a notebook to take them from instead.

    FileNotFoundError if nobody knows the assignment.
    """
    own = PACKAGE.parent / "solutions" / name / f"{name}.ipynb"  # an assignment of a teacher's
    found = [path for path in (PACKAGE / "questions" / f"{name}.json", own) if path.exists()]
    if not solved and not found:
        known = ", ".join(sorted(path.stem for path in (PACKAGE / "questions").glob("*.json")))
        raise FileNotFoundError(f"no assignment is named {name}; there are {known}")
    return json.loads((solved or found[0]).read_text(encoding="utf-8"))


def test_cells(asked: dict) -> dict[str, float]:
    """Of each exercise, its test cell's name and its points."""
    found = [cell["metadata"]["nbgrader"] for cell in asked["cells"] if is_test(cell)]
    return {mark["grade_id"]: mark["points"] for mark in found}


def digest_of_grading(asked: dict) -> str:
    """Another one as soon as a question or a grader is another."""
    digest = hashlib.sha256(json.dumps(asked["cells"], sort_keys=True).encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------
# The journal.


class Journal:
    """Every mark that was ever given in a folder, a line of JSON each; one process at a time writes it.

    `latest` is each student's last line, and `before` what it was when a run last came to its end.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ValueError(f"another run is grading into {path.parent}") from None
        self._lock = threading.Lock()
        self.latest: dict[str, dict] = {}
        self.before: dict[str, dict] = {}
        self._file.seek(0)
        text = self._file.read()
        for record in text.split(b"\n"):
            self._take(record)
        if text and not text.endswith(b"\n"):  # whoever wrote it was ended
            self._file.write(b"\n")

    def _take(self, text: bytes) -> None:
        with contextlib.suppress(ValueError):
            record = json.loads(text)
            if "finished" in record:
                self.before = dict(self.latest)
            else:
                self.latest[record["student"]] = record

    def add(self, record: dict) -> None:
        text = json.dumps(record).encode()
        with self._lock:
            self._file.write(text + b"\n")
            os.fsync(self._file.fileno())
            self._take(text)

    def finish(self) -> None:
        self.add({"finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")})

    def close(self) -> None:
        self._file.close()


def change(before: dict | None, now: dict) -> str | None:
    """What differs between the marks in two lines of a student's in the journal, in words; None if nothing does."""
    if before is None:
        return None
    old, new = (_points_by_exercise(record) for record in (before, now))
    if old == new:
        return None
    exercises = [
        f"{line(exercise)} {old.get(exercise, 0):g} → {new.get(exercise, 0):g}"
        for exercise in {**old, **new}
        if old.get(exercise, 0) != new.get(exercise, 0)
    ]
    why = "what grades it has changed"
    if before["failed"] or now["failed"]:
        why = f"it could not be graded {'before' if before['failed'] else 'now'}"
    elif before["submission"] != now["submission"]:
        why = "it was handed in anew"
    was, is_ = (f"{sum(points.values()):g}" if points else "none" for points in (old, new))
    of_what = f" ({', '.join(exercises)})" if exercises else ""
    return f"{line(now['student'])}: {was} → {is_}{of_what}, because {why}"


def others_numbers(students: Sequence[str], whose: Sequence[str]) -> list[list[str]]:
    """What is odd about whose numbers each student's predictions are of: another's, or, where some give a name, nobody's."""
    names = [one_spelling(name) for name in whose]
    odd: list[list[str]] = []
    for student, name in zip(students, names):
        same = [other for other, its in zip(students, names) if its == name and other != student]
        if name and same:
            odd.append([f"its STUDENT is the same name as in the notebook of {', '.join(same)}"])
        elif any(names) and not name:
            odd.append(["its predictions are of the text's numbers: STUDENT is not set"])
        else:
            odd.append([])
    return odd


def _points_by_exercise(record: dict) -> dict[str, float]:
    """Without any where the marking has failed."""
    marks = [] if record["failed"] else [Mark(*mark) for mark in record["marks"]]
    return {mark.exercise: earned(mark) for mark in marks}


# ------------------------------------------------------------
# The run.


class Stopped(Exception):
    """A run was interrupted; `graded` are in the journal. `stuck`: a thread still waits, so the process must exit."""

    def __init__(self, graded: int, stuck: bool):
        super().__init__(graded, stuck)
        self.graded = graded
        self.stuck = stuck


@dataclass
class Run:
    """One run over the submissions of a class.

    mark: gives a notebook's marks; sandbox: handed to it as it is. again: students who are graded anew in any case.
    say: told a line for each submission. On KeyboardInterrupt all processes that the run has started are ended.
    """

    asked: dict
    out: Path
    mark: Callable[[Path, dict, Any], Marked]
    sandbox: Any = None
    jobs: int = 1
    again: Sequence[str] = ()
    say: Callable[[int, Graded], None] = lambda done, graded: None
    kept: int = 0

    def __post_init__(self) -> None:
        self._tests = test_cells(self.asked)
        self._grading = digest_of_grading(self.asked)
        self._stop = threading.Event()
        self._journal = Journal(self.out / "journal.jsonl")

    def grade(self, submissions: Sequence[Submission]) -> tuple[list[Graded], list[str]]:
        """The marks in the order of the submissions, and which of them changed."""
        others = descendants(os.getpid())
        pool = ThreadPoolExecutor(self.jobs, "grade")
        futures = {pool.submit(self._one, one): one for one in submissions}
        done = 0
        try:
            for future in as_completed(futures):
                graded, fresh = future.result()
                done += 1
                self.kept += not fresh
                if fresh:
                    self.say(done, graded)
        except KeyboardInterrupt:
            stuck = self._end(pool, list(futures), others)
            raise Stopped(done, stuck) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        results = [future.result()[0] for future in futures]
        students = [one.owner.student for one in submissions]
        journal = self._journal
        whose = [journal.latest[student].get("whose", "") for student in students]
        for graded, odd in zip(results, others_numbers(students, whose)):
            graded.odd.extend(odd)
        changes = [change(journal.before.get(s), journal.latest[s]) for s in students]
        self._journal.finish()
        self._journal.close()
        return results, [found for found in changes if found]

    def _end(self, pool: ThreadPoolExecutor, futures: list[Future], others: set[int]) -> bool:
        """End what was started; whether a thread still waits for something."""
        self._stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + 10
        while any(not future.done() for future in futures) and time.monotonic() < until:
            end_processes(others)
            time.sleep(0.02)
        end_processes(others)
        self._journal.close()
        return any(not future.done() for future in futures)

    def _one(self, submission: Submission) -> tuple[Graded, bool]:
        """A submission's marks, and whether they are new."""
        owner = submission.owner
        start = time.monotonic()
        content, refusal = b"", ""
        try:
            content = submission.file.read()
        except Unreadable as why:
            refusal = f"The notebook could not be read: {why}."
        record: dict[str, Any] = {
            "student": owner.student,
            "submission": hashlib.sha256(content + refusal.encode()).hexdigest(),
            "grading": self._grading,
        }
        known = self._journal.latest.get(owner.student)
        if known and self._holds(known, record):
            return _graded(submission, known), False
        record |= self._marked(content) if not refusal else self._refused(refusal)
        record["seconds"] = round(time.monotonic() - start, 1)
        if self._stop.is_set():
            raise InterruptedError
        self._journal.add(record)
        return _graded(submission, record), True

    def _holds(self, known: dict, record: dict) -> bool:
        """Whether a mark of the journal is still this notebook's."""
        same = all(known[key] == record[key] for key in record)
        return same and not known["failed"] and known["student"] not in self.again

    def _marked(self, content: bytes) -> dict:
        try:
            with tempfile.TemporaryDirectory(
                prefix="minicheck-", ignore_cleanup_errors=True
            ) as folder:
                path = Path(folder) / "submission.ipynb"
                path.write_bytes(content)
                marked = self.mark(path, self.asked, self.sandbox)
            marks = [list(mark) for mark in marked.marks]
            if [(mark[0], mark[1]) for mark in marks] != list(self._tests.items()):
                raise ValueError("not every exercise was marked")
            failed = [
                f"look at {m.exercise}: {FAILED}" for m in marked.marks if FAILED in (m.wrong or "")
            ]
            told = _told(marks, marked.notes, [*marked.odd, *failed])
            return told | {"whose": marked.whose}
        except BaseException as error:  # whatever happens here, the others get their marks
            why = f"the marking failed: look at it by hand. {type(error).__name__}: {error}"
            return _told([[*test, "not graded"] for test in self._tests.items()], [], [why], True)

    def _refused(self, why: str) -> dict:
        return _told([[*test, why] for test in self._tests.items()], [], [why])


def _told(
    marks: list[list], notes: Sequence[str], odd: Sequence[str], failed: bool = False
) -> dict:
    return {"marks": marks, "notes": list(notes), "odd": list(odd), "failed": failed}


def _graded(submission: Submission, record: dict) -> Graded:
    marks = [Mark(*mark) for mark in record["marks"]]
    odd = [*submission.odd, *record["odd"]]
    return Graded(
        submission.owner, marks, record["notes"], odd, record["failed"], record["seconds"]
    )


# ------------------------------------------------------------
# What was started ends.


def adopt_orphans() -> None:
    """Processes whose parent has ended become children of this one (Linux), so that `end_processes` finds them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_processes(others: set[int]) -> None:
    """End all descendants but `others`."""
    for _ in range(500):
        left = descendants(os.getpid()) - others
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.01)
