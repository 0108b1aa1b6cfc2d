"""Whatever an answer does, the check ends within seconds, says so in words, and leaves nothing behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace

import cloudpickle
import psutil
import pytest
import torch

from minicheck import Wrong, ask, examinee, guard
from minicheck.exam import Case, Exam, decode, few, on_time, pack
from minicheck.examinee import explain
from minidist.comm import launch
from tests.minicheck.answers import Double, double
from tests.minicheck.examined import verdicts

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def says(answer):
    with pytest.raises(Wrong) as caught:
        double(answer)
    return str(caught.value)


def test_a_right_answer(capfd):
    double(lambda comm, x: 2 * x)
    assert capfd.readouterr().out == "double: right. n = 2 and 1.\n"


def endless(comm, x):
    while True:
        pass


def sleeps(comm, x):
    time.sleep(100)


def stubborn(comm, x):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(100)


class Impatient(Double):
    step = 0.5


def test_an_endless_answer_is_ended():
    double(lambda comm, x: 2 * x)  # the server of `launch` runs
    start, answers = time.monotonic(), [endless, sleeps, stubborn]
    for answer, text in zip(
        answers, verdicts(*[(partial(ask, Impatient()), a) for a in answers]), strict=True
    ):
        assert (
            "double: n = 2: no end after 0.5 s" in text
            and f"in {answer.__name__}, test_guard.py:" in text
        )
    assert time.monotonic() - start < 30


def in_a_process_only(comm, x):
    if type(comm).__name__ == "ShmComm" and comm.rank == 1:
        comm.recv(x, 0)
    return 2 * x


def exits(comm, x):
    os._exit(0)


def polite_exit(comm, x):
    sys.exit(0)


class Wordless(Exception):
    def __str__(self):
        raise KeyError


def without_words(comm, x):
    raise Wordless


def raises(comm, x):
    return [1][x.numel()]


def unwritten(comm, x):
    raise NotImplementedError


def hoards(comm, x):
    return torch.ones(1 << 40)


def recursive(comm, x):
    return recursive(comm, x)


def threads(comm, x):
    threading.Thread(target=lambda: time.sleep(100)).start()
    return x


ENDS = [
    (exits, "ended the whole process"),
    (polite_exit, "rank 0 raised SystemExit: 0\n  in polite_exit"),
    (raises, "rank 0 raised IndexError"),
    (unwritten, "double is not written yet."),
    (hoards, "raised RuntimeError"),
    (recursive, "raised RecursionError"),
    (threads, "rank 0 has another number"),
    (None, "double is None, not a function"),
    (7, "is int, not a function"),
    (lambda comm: 0, "takes 1 positional argument"),
    (lambda comm, x: None, "another number"),
    (lambda comm, x: "text", "another number"),
    (lambda comm, x: (i for i in x), "another number"),
    (in_a_process_only, "2 real processes: "),
    (lambda comm, x: comm.recv(x, 1 - comm.rank), "a deadlock"),
    (lambda comm, x: comm.send(x, 5), "cannot send to rank 5"),
    (torch.nn.Linear(1, 1).forward, "would share it"),
    (without_words, "raised Wordless: and its words cannot be had"),
]


def test_every_other_end_has_its_message():
    for (answer, text), wrong in zip(
        ENDS, verdicts(*[(double, answer) for answer, _ in ENDS]), strict=True
    ):
        assert wrong and text in wrong, (answer, text, wrong)


def test_a_result_that_is_too_large(monkeypatch):
    said = []
    monkeypatch.setattr(examinee, "MOST", 100)
    examinee._report(
        SimpleNamespace(send=lambda data, seconds: said.append(data)),
        lambda: {"results": "x" * 100},
    )
    words = explain("double", "n = 2", decode(said[0])["error"])
    assert re.search(r"too large: 1\d\d bytes, and at most 100 are looked at\.$", words)


def test_what_cannot_be_sent():
    lock = threading.Lock()
    assert "cannot be sent to another process" in says(lambda comm, x: lock)


def test_prints_are_not_shown(capfd):
    def loud(comm, x):
        print("x" * 100_000)
        os.write(2, b"y" * 100_000)
        return 2 * x

    double(loud)
    shown = capfd.readouterr()
    assert "xx" not in shown.out and "yy" not in shown.err


def test_the_examiner_is_believed_only_outside():
    """An answer that patches its own process earns nothing: judging happens elsewhere."""

    def patches(comm, x):
        import minicheck.exam as compare
        import tests.minicheck.answers as answers

        torch.Tensor.equal = lambda *_: True
        torch.equal = lambda *_: True
        answers.Double.judge = lambda *_: None
        compare.same = lambda *_: None
        return x

    with pytest.raises(Wrong):
        double(patches)


def test_an_answer_cannot_speak_for_the_examiner():
    def writes(comm, x):
        for fd in range(3, 40):
            with contextlib.suppress(OSError):
                os.write(fd, (10).to_bytes(8, "little") + b"x" * 10)
        return x

    with pytest.raises(Wrong):
        double(writes)


def test_nothing_is_left(tmp_path):
    """Not even when the notebook is killed in the middle of an endless answer."""
    code = (
        "import tests.minicheck.test_guard as t; from tests.minicheck.answers import Double; "
        "Double.step = 20; print('ready', flush=True); t.double(t.endless)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "MINIDIST_MARK": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    process.stdout.readline()
    until = time.monotonic() + 30
    # notebook, server, supervisor, guard, examinee
    while time.monotonic() < until and len(marked(tmp_path)) < 5:
        time.sleep(0.02)
    assert len(marked(tmp_path)) >= 5
    process.kill()
    process.wait()
    process.stdout.close()
    while marked(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)
    assert marked(tmp_path) == []


def marked(path):
    """The processes of this test: they have inherited its environment."""
    found = []
    for p in psutil.process_iter():
        try:
            if p.environ().get("MINIDIST_MARK") == str(path) and p.status() != psutil.STATUS_ZOMBIE:
                found.append(p.pid)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            pass
    return found


def orphaned(comm, packed):
    """What the guard says of answers once the process between them is dead: before the first, and while one runs."""
    said = []
    for when in ("show", "fork"):
        with guard.forked(Double()) as nursery:
            ask = nursery.ask

            def killed(what, *given, ask=ask, when=when, pid=nursery.pid, **more):
                if what == when:
                    os.kill(pid, signal.SIGKILL)
                return ask(what, *given, **more)

            nursery.ask = killed
            said += [guard.examined(Double(), nursery, packed, {}) for _ in range(2)]
    return list(map(str, said))


class Silent(Double):
    """It promises to send nothing, and not to be asked for long."""

    promises = {"cost": 0.25, "speed": 0.25}

    def cost(self, case, args, outcome):
        few(outcome, 0, "Nothing need be sent.")

    def speed(self, case, args, outcome):
        on_time(outcome, 0.0, 1.0, 1.0, "it is", "It is early.")


def talks(comm, x):
    if comm.size > 1:
        comm.sendrecv(x, 1 - comm.rank, torch.empty_like(x), 1 - comm.rank)
    return 2 * x


def talks_and_errs(comm, x):
    return talks(comm, x) + (comm.size == 1)


def test_a_right_answer_that_sends_too_much_earns_the_rest():
    """In a World and in processes; one that is wrong in a later case earns nothing."""
    ask(Silent(), lambda comm, x: 2 * x)
    with pytest.raises(Wrong) as caught:
        ask(Silent(), talks)
    assert caught.value.share == 0.75
    assert str(caught.value).splitlines() == [
        "double: n = 2: the numbers are right, but rank 0 sends 32 bytes, and 0 are enough. Nothing need be sent.",
        "All else is right: 75% of the points.",
    ]
    with pytest.raises(Wrong, match="n = 1: rank 0 has another number") as caught:
        ask(Silent(), talks_and_errs)
    assert caught.value.share == 0.0


def test_answers_without_a_parent_are_wrong():
    packed = [pack("double", lambda comm, x: 2 * x).data]
    assert launch(orphaned, 1, packed)[0] == ["double: the examination was ended from outside"] * 4


def test_messages_that_nobody_has_counted_are_not_few():
    """An answer that ends the process which counts them has no right numbers to show."""

    def ended():
        raise EOFError

    nursery = examinee.Nursery(Double())
    nursery.relay = SimpleNamespace(sent=list)
    assert nursery.ask([], 0.1) == {"reports": [], "sent": []}
    nursery.relay = SimpleNamespace(sent=ended)
    assert nursery.ask([], 0.1) == {"error": {"kind": "dead"}}


def test_draws_are_secret():
    """No two are alike, nor do they follow the seed of the process."""

    class Drawn(Exam):
        name, right = "drawn", ""

        def draw(self, case, rng):
            return [(torch.rand(4, generator=rng).tolist(),)]

    drawn = []
    for _ in range(3):
        torch.manual_seed(0)
        drawn.append(str(guard.draw(Drawn(), Case(1, "one"))))
    assert len(set(drawn)) == 3
