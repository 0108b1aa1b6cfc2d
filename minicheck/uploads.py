"""Who has handed in what: a folder or a zip, as nbgrader, Canvas or Moodle leave it.

    submitted/STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb               nbgrader
    STUDENT/exercises/ASSIGNMENT/ASSIGNMENT.ipynb               a clone of each student's repository
    STUDENT/anything.ipynb, STUDENT.ipynb                       a folder or a file a student
    lastnamefirstname_[LATE_]ID_FILEID_anything.ipynb           Canvas
    Full Name_ID_assignsubmission_file_/anything.ipynb          Moodle, also without folders

Invariant: nothing is written, no link is followed, and no more of a file is read than a notebook may have. A zip is never
unpacked: its files are read where they lie. Whose file it is, is told by what a student cannot choose.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .submission import Unreadable, contents, taken

MOST_FILES = 20_000
MOST_IN_ALL = 4_000_000_000
MOST_RATIO = 100

CANVAS = re.compile(r"(?P<name>.+?)_(?P<late>LATE_)?(?P<number>\d+)_\d+_(?P<file>.+)")
MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_file(?:_(?P<file>.*))?")


class File(NamedTuple):
    """A file that was handed in; `read` raises Unreadable."""

    name: str
    read: Callable[[], bytes]
    link: bool = False


class Owner(NamedTuple):
    """A student as the folder or the archive names them, and as Canvas or Moodle number them."""

    student: str
    platform: str = ""
    name: str = ""
    number: str = ""


class Submission(NamedTuple):
    """What a student has handed in, and what is odd about how."""

    owner: Owner
    file: File
    odd: list[str]


def submissions(source: Path, assignment: str) -> list[Submission]:
    """Those to `assignment`, in the order of the students' names.

    ValueError or OSError if `source` is neither a folder nor a zip that can be trusted.
    """
    if source.is_dir():
        entries = list(_files_of_folder(source, ()))
    elif zipfile.is_zipfile(source):
        entries = _files_of_zip(source)
    else:
        raise ValueError(f"{source} is neither a folder nor a zip")
    owners: dict[str, Owner] = {}
    files: dict[str, list[File]] = {}
    late = set()
    for parts, file in entries:
        claim = _claim(parts, file, assignment)
        if claim is not None:
            student = claim.owner.student
            owners.setdefault(student, claim.owner)
            files.setdefault(student, []).append(file._replace(name=claim.name))
            late |= {student} if claim.late else set()
    students = sorted(owners, key=lambda student: (student.casefold(), student))
    return [_chosen(owners[s], files[s], assignment, s in late) for s in students]


class Claim(NamedTuple):
    """Whose a file is, how its author called it, and whether it came too late."""

    owner: Owner
    name: str
    late: bool = False


def _claim(parts: tuple[str, ...], file: File, assignment: str) -> Claim | None:
    """None for what is nobody's, or belongs to another assignment."""
    name = parts[-1]
    notebook = name.lower().endswith(".ipynb")
    moodle = MOODLE.fullmatch(parts[0])
    if moodle:
        student = f"{moodle['name']}_{moodle['number']}"
        own_name = (moodle["file"] or name) if len(parts) == 1 else name
        return Claim(Owner(student, "moodle", moodle["name"], moodle["number"]), own_name)
    canvas = CANVAS.fullmatch(name)
    if len(parts) == 1 and canvas:
        student = f"{canvas['name']}_{canvas['number']}"
        owner = Owner(student, "canvas", canvas["name"], canvas["number"])
        return Claim(owner, name, bool(canvas["late"]))
    if len(parts) == 1:
        return Claim(Owner(name.removesuffix(".ipynb")), name) if notebook or file.link else None
    within = assignment in parts[1:-1] or (len(parts) == 2 and notebook)
    link_to_all = file.link and name in (assignment, "exercises")
    ours = within or link_to_all
    return Claim(Owner(parts[0]), name) if ours else None


def _chosen(owner: Owner, files: list[File], assignment: str, late: bool) -> Submission:
    """The notebook to grade: the one with the assignment's name, the last of several."""
    odd = ["handed in late, says Canvas"] if late else []
    notebooks = [f for f in files if f.link or f.name.lower().endswith(".ipynb")]
    if not notebooks:
        names = ", ".join(sorted(f.name for f in files))
        return Submission(owner, File("", partial(_refuse, f"there is no notebook: {names}")), odd)
    named = re.compile(
        rf"(?:.*_)?{re.escape(assignment)}(?:[-_ ]*\(?\d+\)?)?\.ipynb", re.IGNORECASE
    )
    chosen = max(notebooks, key=lambda f: (named.fullmatch(f.name) is not None, _numbers(f.name)))
    if len(notebooks) > 1 and chosen.name != f"{assignment}.ipynb":
        odd.append(f"{len(notebooks)} notebooks were handed in, and {chosen.name} was graded")
    return Submission(owner, chosen, odd)


def _numbers(name: str) -> list[tuple[int, str]]:
    """A key that orders names by their numbers: b-10 comes after b-9."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.findall(r"\d{1,18}|\D+", name)
    ]


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _files_of_folder(
    folder: Path, above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], File]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            parts = (*above, entry.name)
            if _hidden(entry.name):
                continue
            if not entry.is_dir(follow_symlinks=False):
                path = Path(entry.path)
                read = partial(contents, path, path.parents[len(above)])
                yield parts, File(entry.name, read, entry.is_symlink())
            elif len(parts) < 4:
                yield from _files_of_folder(Path(entry.path), parts)


def _refuse(why: str) -> bytes:
    raise Unreadable(why)


def _files_of_zip(source: Path) -> list[tuple[tuple[str, ...], File]]:
    archive = zipfile.ZipFile(source)  # open as long as its files may be read
    entries = archive.infolist()
    if len(entries) > MOST_FILES or sum(e.file_size for e in entries) > MOST_IN_ALL:
        raise ValueError(f"{source} holds too much to be a class's notebooks")
    found = []
    for entry in entries:
        parts = tuple(part for part in re.split(r"[/\\]", entry.filename) if part not in ("", "."))
        if ".." in parts or entry.filename.startswith(("/", "\\")):
            raise ValueError(f"{source} names a file outside of itself: {entry.filename!r}")
        if parts and not entry.is_dir() and not any(map(_hidden, parts)):
            link = stat.S_ISLNK(entry.external_attr >> 16)
            found.append((parts, File(parts[-1], partial(_read_entry, archive, entry), link)))
    tops = {parts[0] for parts, _ in found if len(parts) > 1}
    if len(tops) == 1 and tops <= {"submitted", "submissions", source.stem}:
        found = [(parts[1:] or parts, file) for parts, file in found]
    return found


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise Unreadable("it is a link, and links are not followed")
    if entry.file_size > max(1_000_000, MOST_RATIO * entry.compress_size):
        raise Unreadable(f"it is packed to less than a {MOST_RATIO}th of its size")
    try:
        return taken(archive.open(entry), "it")
    except Unreadable:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise Unreadable(f"it cannot be unpacked: {error}") from None
