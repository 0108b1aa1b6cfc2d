"""What happens when a hostile submission is marked: whether it got what it is worth, in time, and nothing else changed."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator

from minicheck.notebook import mark
from tests.hostile.outside import Outside
from tests.hostile.submission import EXERCISES, Hostile, questions, write

MOST_WORDS = 20_000  # letters that are said of one submission
UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def faults(hostile: Hostile, outside: Outside, sandbox) -> list[str]:
    """What went wrong, a line each; none if all is as it should be."""
    outside.renew()
    write(hostile, outside.path, outside.out())
    outside.handed_in()
    start = time.monotonic()
    try:
        with limit(hostile.seconds):
            marked = mark(outside.path, questions(), sandbox, outside.folder / "submitted")
    except Exception as error:
        said = [f"no mark, but {type(error).__name__}: {error}"[:500]]
    else:
        said = _told(hostile, outside, marked)
    took = time.monotonic() - start
    late = [f"it took {took:.0f} s"] if took > hostile.seconds else []
    return said + late + outside.faults()


def _told(hostile: Hostile, outside: Outside, marked) -> list[str]:
    """What is wrong with the marks and the words."""
    rights = {m.exercise for m in marked.marks if m.wrong is None}
    words = "\n".join(map(str, [*(m.wrong for m in marked.marks), marked.notes, marked.odd]))
    found = []
    if [m.exercise for m in marked.marks] != list(EXERCISES):
        found.append(f"marks for {[m.exercise for m in marked.marks]}")
    if any(m.points != 2 for m in marked.marks):
        found.append("other points than were asked for")
    found += [f"{name} lost its points: {words[:500]}" for name in sorted(hostile.keeps - rights)]
    found += [f"{name} earned points" for name in sorted(hostile.loses & rights)]
    if not re.search(hostile.says, words, re.IGNORECASE):
        found.append(f"nothing is said of /{hostile.says}/: {words[:500]}")
    if any(m.wrong is not None and not m.wrong.strip() for m in marked.marks):
        found.append("a mark without words")
    if len(words) > MOST_WORDS:
        found.append(f"{len(words)} letters are said")
    unfit = UNFIT.search("\n".join(m.wrong or "" for m in marked.marks))
    if unfit:
        found.append(f"the letter {unfit[0]!r} is shown to a teacher")
    if f"secret-{outside.token}" in words:
        found.append("the words tell a secret")
    return found


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """TimeoutError in this thread, the main one, a while after that many seconds."""

    def late(*_):
        raise TimeoutError(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds + 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
