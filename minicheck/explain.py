"""What happened to an answer, in a learner's words: exceptions, deadlocks, endless loops, a process that ended."""

from __future__ import annotations

import re

from minidist.comm.program import located, outside


def explain(name: str, what: str, error: dict) -> str:
    """The message for an error that an examinee reported, or that its guard saw (see `_failure`, `report`)."""
    kind = error["kind"]
    if kind == "unwritten":
        return f"{name} is not written yet."
    head, place = f"{name}: {what}: ", _place(error.get("frame"))
    if kind == "deadlock":
        return f"{head}a deadlock. {_hint(error['text'])}\n{error['text']}"
    if kind == "silent":
        return f"{head}no end after {error['text']} s. An endless loop?{place}"
    if kind == "dead":
        return f"{head}your code ended the whole process, or ran out of memory or time (exit, os._exit, a crash)."
    if kind == "nonsense":
        return f"{head}your code answered for the examiner."
    if kind == "large":
        return f"{head}what it returns is too large: {error['text']}."
    who = f"rank {error['rank']} " if error.get("rank") is not None else ""
    if kind == "refused":
        return f"{head}{error['text']}.{place}"
    return f"{head}{who}raised {error['type']}: {error['text']}{place}"


def own_line(frames: list[tuple[str, int, str]]) -> tuple[str, int, str] | None:
    """The first of (file, line, function) that stands neither in this package nor in an installed one."""
    written = [
        f for f in frames if outside([f[:2], ("", 0)]) == f[:2] and not f[0].startswith("<frozen")
    ]
    return written[0] if written else None


def _place(frame) -> str:
    return f"\n  in {frame[2]}, {located(frame[0], frame[1])}" if frame else ""


def _hint(text: str) -> str:
    """What this kind of deadlock usually comes from."""
    waits = re.findall(r"rank \d+ waits for (send|receive)", text)
    if "ended already" in text:
        return (
            "While others have finished, someone waits for a message that is never sent, or sends one that nobody "
            "takes: a step too many, or the wrong partner?"
        )
    if waits and set(waits) == {"send"}:
        return (
            "Every rank waits until its message is taken, and none has posted the receive for it. Start both "
            "together: comm.sendrecv."
        )
    if waits and set(waits) == {"receive"}:
        return (
            "Every rank waits to receive, and none has sent what it waits for. Who begins? Post the send first "
            "(comm.isend), or start both together: comm.sendrecv."
        )
    return "The ranks wait for each other in a circle: does every send meet its receive, in the same order?"
