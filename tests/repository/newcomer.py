"""A newcomer at a terminal, who types what README.md says, and looks at a clock.

`Terminal` is a shell on a pseudo-terminal, wherever it runs: in a home of its own on this machine (`Here`), or in a fresh
Debian root. `front_door` goes from `git clone` to the first right exercise, and says how many minutes each step took.
"""

import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path

import pexpect
import websocket

from tests.repository.debian import pip_settings
from tests.repository.files import ROOT

README = ROOT / "README.md"
FIRST, ASSIGNMENT = "notebooks/01_walls.ipynb", "02_messages"
PROMPT = "[ready]"
ADDRESS = re.compile(r"(http://(?:localhost|127\.0\.0\.1):\d+)/\S*\?token=(\w+)")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SHELL = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
# What a shell that does not know a command says, and what Python says when something breaks.
STUMBLE = re.compile(r"command not found|No such file|Traceback|Permission denied|\bERROR\b|Error:")


@dataclass
class Typed:
    line: str
    code: int
    text: str
    seconds: float


class Terminal:
    """A shell that runs one line after another, as a person types them."""

    def __init__(self, words, cwd=None, env=None):
        self.typed: list[Typed] = []
        self._shell = pexpect.spawn(
            words[0],
            list(words[1:]),
            cwd=cwd,
            env=env,
            encoding="utf-8",
            codec_errors="replace",
            echo=False,
            dimensions=(40, 120),
        )
        self._shell.sendline(f"PS1='{PROMPT}' PS2=")
        self._wait(PROMPT, 60)

    def _wait(self, what, seconds):
        """What is printed before `what` comes."""
        try:
            self._shell.expect_exact(what, timeout=seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            raise AssertionError(f"{what!r} did not come:\n{self._shell.before[-3000:]}") from None
        return plain(self._shell.before)

    def type(self, line, seconds=1800):
        """Run `line` to its end."""
        start = time.monotonic()
        self._shell.sendline(line)
        # An environment that is activated writes its name before the prompt.
        text = self._wait(PROMPT, seconds).removesuffix("(.venv) ")
        took = time.monotonic() - start
        self._shell.sendline("echo code=$?")
        code = int(re.search(r"code=(\d+)", self._wait(PROMPT, 10))[1])
        self.typed.append(Typed(line, code, text, took))
        return self.typed[-1]

    def serve(self, line, seconds=1800):
        """Run `line` until it prints an address; the match, and all that was printed until then."""
        start = time.monotonic()
        self._shell.sendline(line)
        try:
            ended = self._shell.expect([ADDRESS, re.escape(PROMPT)], timeout=seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            ended = True
        if ended:
            raise AssertionError(f"{line}: no address:\n{plain(self._shell.before)[-3000:]}")
        text = plain(self._shell.before).rpartition("\n")[0]
        self.typed.append(Typed(line, 0, text, time.monotonic() - start))
        return self._shell.match[1], self._shell.match[2]

    def stop(self):
        """Ctrl-C, twice as Jupyter asks for it, until the shell is back."""
        for _ in range(2):
            self._shell.sendintr()
            time.sleep(0.5)
        return self._wait(PROMPT, 60)

    def close(self):
        self._shell.close(force=True)


def plain(text):
    """What stays on a terminal: of each line, what was written last."""
    lines = CONTROL.sub("", text.replace("\r\n", "\n")).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


class Here:
    """A new home on this machine, in which a shell knows nothing of the one that started it."""

    def __init__(self, home: Path):
        self.home = home
        (home / ".config" / "pip").mkdir(parents=True)
        (home / ".config" / "pip" / "pip.conf").write_text(pip_settings()[0])

    def terminal(self):
        own = os.path.join(sys.prefix, "bin")
        path = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != own]
        clean = {
            "HOME": str(self.home),
            "PATH": os.pathsep.join(path),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        return Terminal(SHELL, cwd=str(self.home), env=clean)


class InDebian:
    """The home of a user of a Debian root, who is not root."""

    def __init__(self, root, user):
        self._root = root
        self._user = user
        self.home = root.folder / "home" / user

    def terminal(self):
        words = self._root.words(SHELL, self._user, f"/home/{self._user}", terminal=True)
        return Terminal(words)


def commands(text, heading=None, having=None):
    """The lines that a reader types: of the blocks below a heading, or of the one block that has a certain line."""
    if heading:
        text = re.split(
            r"^## ", f"\n{text}".partition(f"\n{heading}\n")[2], maxsplit=1, flags=re.MULTILINE
        )[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in found if language in ("", "sh", "bash")]
    if having:
        blocks = [b for b in blocks if re.search(rf"^{re.escape(having)}\b", b, re.MULTILINE)][:1]
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def ask(address, token, path, body=None):
    """What Jupyter's server answers."""
    request = urllib.request.Request(
        f"{address}/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def wait_for(address, token, seconds=30):
    """Jupyter prints its address a moment before it answers."""
    end = time.monotonic() + seconds
    while True:
        try:
            return ask(address, token, f"lab/tree/{FIRST}?token={token}")
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def first_picture(address, token, path):
    """Run the cells of a lesson one by one, as Lab does, until one shows a picture; its number among the code cells."""
    notebook = json.loads(ask(address, token, f"api/contents/{path}"))["content"]
    asked = {"path": path, "type": "notebook", "name": path, "kernel": {"name": "python3"}}
    session = json.loads(ask(address, token, "api/sessions", asked))
    kernel = session["kernel"]["id"]
    channel = websocket.create_connection(
        f"{address.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels?token={token}",
        timeout=120,
        suppress_origin=True,
    )
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    try:
        for number, source in enumerate(code, 1):
            if any(is_picture(data) for data in shown(channel, source)):
                return number
    finally:
        channel.close()
        request = urllib.request.Request(
            f"{address}/api/sessions/{session['id']}",
            method="DELETE",
            headers={"Authorization": f"token {token}"},
        )
        urllib.request.urlopen(request, timeout=60).close()
    raise AssertionError(f"{path} shows no picture")


def shown(channel, source):
    """What a cell shows, each as its representations by type. AssertionError if it fails."""
    number = uuid.uuid4().hex
    content = {"code": source, "silent": False, "store_history": True, "allow_stdin": False}
    header = {
        "msg_id": number,
        "msg_type": "execute_request",
        "session": number,
        "username": "",
        "version": "5.3",
    }
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
    channel.send(json.dumps(message | {"channel": "shell", "buffers": []}))
    found = []
    while True:
        message = json.loads(channel.recv())
        if message["parent_header"].get("msg_id") != number:
            continue
        kind, content = message["msg_type"], message["content"]
        assert kind != "error", "\n".join(content["traceback"])
        if kind in ("display_data", "execute_result"):
            found.append(content["data"])
        if kind == "status" and content["execution_state"] == "idle":
            return found


def is_picture(data):
    html = data.get("text/html", "")
    return any(kind.startswith("image/") for kind in data) or any(
        mark in html for mark in ("<img", "<svg", "<iframe")
    )


def solve_first(work, solved):
    """Put the solution of the first exercise of an assignment into its copy; the exercise's name."""
    copy, right = (json.loads(path.read_text(encoding="utf-8")) for path in (work, solved))
    marks = [cell["metadata"].get("nbgrader", {}) for cell in right["cells"]]
    name = next(m["grade_id"] for m in marks if m.get("solution"))
    [solution] = [c["source"] for c, m in zip(right["cells"], marks) if m.get("grade_id") == name]
    [mine] = [c for c in copy["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == name]
    assert mine["source"] != solution
    mine["source"] = solution
    work.write_text(json.dumps(copy), encoding="utf-8")
    return name


def front_door(place, repository, say):
    """From nothing to the first right exercise, in `place`. `say(text)` notes what was typed and what it took.

    What is typed are the lines of README.md: those of the block that has `git clone`, whose ADDRESS is that of
    `repository`, and those of the block that has `make work`, in a second terminal.
    """
    text = README.read_text(encoding="utf-8")
    start = time.monotonic()
    minutes = lambda: (time.monotonic() - start) / 60
    first, second = place.terminal(), place.terminal()
    try:
        for line in commands(text, having="git clone"):
            if line != "make lab":
                run(first, line.replace("ADDRESS", repository), say)
                continue
            address, token = first.serve(line)
            note(first.typed[-1], say)
            wait_for(address, token)
            cell = first_picture(address, token, FIRST)
            say(f"first picture: {minutes():.1f} min after git clone, cell {cell} of {FIRST}")
        run(second, "cd ~/minidist", say)
        for line in commands(text, having="make work"):
            if line == f"python -m minicheck {ASSIGNMENT}":
                exercise = solve_first(
                    place.home / "minidist" / "work" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb",
                    ROOT / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb",
                )
                # The others are not answered yet, which the exit code says.
                done = run(second, line, say, code=1)
                assert re.search(rf"^{exercise} +([\d.]+)/\1 +right$", done.text, re.MULTILINE), (
                    done.text
                )
                say(f"first right exercise: {minutes():.1f} min after git clone, {exercise}")
            else:
                run(second, line, say)
        first.stop()
        first.serve("make lab")
        say(f"make lab again: {first.typed[-1].seconds:.0f} s until its address")
        first.stop()
    finally:
        first.close()
        second.close()
    return [*first.typed, *second.typed]


def run(terminal, line, say, code=0):
    done = terminal.type(line)
    if say:
        note(done, say)
    assert done.code == code and not STUMBLE.search(done.text), f"{line}\n{done.text[-3000:]}"
    return done


def note(done, say):
    lines = [line for line in done.text.splitlines() if line.strip()]
    last = lines[-1][:80] if lines else ""
    say(f"$ {done.line}   [{done.seconds:.0f} s] {last}".rstrip())
