"""The first hour on a GPU: what must hold there, step by step, as one table. `make gpu` runs this.

    python -m tests.gpu.first_hour                          # all that this machine's GPUs allow
    python -m tests.gpu.first_hour --only kernels --only overlap
    python -m tests.gpu.first_hour --rehearse 2             # the same on a CPU, over gloo, as if there were 2 GPUs

Each step is a command with a time limit. One that fails, or hangs, is not held, and the next one follows. What a
hanging step has started says in its log at which line it stands, and is killed, down to the last process. The table is
written after every step, so that it is there whatever happens to the machine.

This process imports no PyTorch and touches no GPU: a step that breaks a device breaks no other process.
"""

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests import reaper
from tests.repository.files import ROOT

PYTHON = sys.executable
OUT = ROOT / "build" / "first_hour.md"
WHERE = 3.0  # seconds that processes have to say at which line they stand
SANITIZER = "compute-sanitizer"
# where its programs are, if not on the path
CUDA = (os.environ.get("CUDA_HOME", "/usr/local/cuda"), "/usr/local/cuda")


class Step(NamedTuple):
    """name: for --only, and of its log.  shows: what is true if it holds.  command: its words.  limit: in seconds.

    gpus: how many it needs.  environment: variables of its own.  wants: why else it cannot run here; "" if it can.
    """

    name: str
    shows: str
    command: list[str]
    limit: float
    gpus: int = 1
    environment: dict[str, str] = {}
    wants: Callable[[], str] = lambda: ""


class Row(NamedTuple):
    """One step's line in the table. result: "held", or "not held" or "skipped" with the reason."""

    name: str
    shows: str
    result: str
    seconds: float | None = None
    seen: tuple[str, ...] = ()


def module(name: str, *words: object) -> list[str]:
    return [PYTHON, "-m", name, *map(str, words)]


def ranks(n: int, backend: str, *programs: str) -> list[str]:
    """Programs of tests/gpu/ranks.py, on so many ranks under torchrun."""
    return module(
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        n,
        "-m",
        "tests.gpu.ranks",
        "--backend",
        backend,
        *programs,
    )


def sanitizer() -> str:
    """Where NVIDIA's checker of kernels is; "" where it is not."""
    places = [os.environ.get("PATH", ""), *(os.path.join(root, "bin") for root in CUDA)]
    return shutil.which(SANITIZER, path=os.pathsep.join(places)) or ""


def no_sanitizer() -> str:
    return "" if sanitizer() else f"{SANITIZER} is not there: it comes with the CUDA toolkit"


def no_triton() -> str:
    from importlib.util import find_spec

    return (
        "" if find_spec("triton") else "Triton is not installed, whose interpreter would run them"
    )


def steps(gpus: int, backend: str) -> list[Step]:
    """All steps, in their order, for a machine with so many GPUs."""
    many = max(2, gpus)
    even = max(n for n in (2, 4, 8) if n <= many)  # divides what is trained on
    kernels = module("tests.gpu.test_kernels")
    rehearsed = backend != "nccl"
    interpreted = {"TRITON_INTERPRET": "1"} if rehearsed else {}
    # each tensor in memory of its own, so that a step outside is seen
    alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    runs = lambda name, n: module("tests.gpu.runs", name, "--ranks", n, "--backend", backend)
    return [
        Step(
            "versions",
            "The device multiplies rightly, and PyTorch has the backend and the compiler of kernels.",
            module("tests.gpu.versions", "--backend", backend),
            120,
        ),
        Step(
            "kernels",
            "Every Triton kernel gives what its eager form gives, in float64 to 14 digits.",
            kernels,
            600,
            environment=interpreted,
            wants=no_triton if rehearsed else lambda: "",
        ),
        Step(
            "eight-bits",
            "Products in 8 bits, and in TF32, are on the chip what their emulation gives.",
            module("tests.gpu.eight_bits"),
            300,
        ),
        Step(
            "world",
            "Ranks of a World share the GPU and train as one rank on a CPU; 16 bits come close.",
            runs("world", 1),
            600,
        ),
        Step(
            "one-rank",
            "One rank under torchrun: collectives, and every grid of one rank.",
            ranks(1, backend, "collectives", "grids"),
            300,
        ),
        Step(
            "trainer",
            "The trainer in 16 bits, with ZeRO 3 and recomputation, learns and goes on where it was.",
            runs("trainer", 1),
            300,
        ),
        Step(
            "saving",
            "Saving at every step changes no loss, each checkpoint is whole, and a run goes on from one.",
            runs("saving", 1),
            300,
        ),
        Step(
            "sanitizer",
            "No kernel touches memory that is not its own (compute-sanitizer).",
            [sanitizer() or SANITIZER, "--tool", "memcheck", "--error-exitcode", "9", *kernels],
            900,
            environment=alone,
            wants=no_sanitizer,
        ),
        *(
            Step(
                f"collectives-{n}",
                f"Collectives and posted operations of {n} ranks are right.",
                ranks(n, backend, "collectives", "posted"),
                300,
                n,
            )
            for n in (2, 3, 4, 8)
        ),
        Step(
            "digits",
            "The digits are learnt with the same losses on one rank, over gloo and over NCCL.",
            runs("digits", even),
            300,
            2,
        ),
        *(
            Step(
                f"pipeline-{n}",
                f"Pipelines of {n} stages train as one rank, by every schedule.",
                ranks(n, backend, "pipelines"),
                600,
                n,
            )
            for n in (2, 4)
        ),
        Step(
            "mixed",
            "Data 2 × tensor 2 × ZeRO 3 trains as one rank, ten times one after the other.",
            ranks(4, backend, "mixed"),
            600,
            4,
        ),
        Step(
            "saving-ranks",
            "The same as `saving`, of all ranks at once.",
            runs("saving", even),
            300,
            2,
        ),
        Step(
            "overlap",
            "Buckets that leave during backward are hidden behind it, in a profile.",
            ranks(even, backend, "overlap"),
            300,
            2,
        ),
        Step(
            "bandwidth",
            "Our ring and NCCL's own all-reduce give the same, and how fast each is.",
            ranks(even, backend, "bandwidth"),
            300,
            2,
        ),
        *(
            Step(
                f"grids-{n}",
                f"Every grid of {n} ranks trains as one rank.",
                ranks(n, backend, "grids"),
                600,
                n,
            )
            for n in (2, 3, 4, 8)
        ),
    ]


def run(step: Step, log: Path, number: int) -> Row:
    """Run a step to its end, or its limit, and leave nothing of it running."""
    mark = f"{os.environ[reaper.MARK]}{number}/"
    environment = os.environ | step.environment
    environment |= {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", reaper.MARK: mark}
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        try:
            process = subprocess.Popen(
                step.command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status = process.wait(step.limit)
            result = "held" if status == 0 else f"not held: {ending(status)}"
        except OSError as error:
            result = f"not held: {error}"
        except subprocess.TimeoutExpired:
            result = f"not held: killed at its limit of {step.limit:g} s"
            ask_where(mark)
            process.kill()  # what has a mark goes below; this is ours to wait for
            process.wait()
        finally:
            seconds = time.monotonic() - start
            remove(mark)
    lines = log.read_text(errors="replace").splitlines()
    seen = [line.removeprefix("seen: ") for line in lines if line.startswith("seen: ")]
    if result == "held" and not seen:
        result = "not held: it says nothing of what it saw"
    return Row(step.name, step.shows, result, seconds, tuple(seen))


def ending(status: int) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}"


def ask_where(mark: str) -> None:
    """Let each process of a step that hangs say in its log at which line it stands, as faulthandler does on SIGABRT:
    one after the other, so that their lines stay apart."""
    end = time.monotonic() + WHERE
    for pid in reaper.marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGABRT)
        while pid in reaper.marked(mark) and time.monotonic() < end:
            time.sleep(0.05)


def remove(mark: str) -> None:
    """Kill all that bears the mark. No process is the parent that reap would wait for."""
    reaper.reap(-1, mark)


def probe(folder: Path) -> tuple[list[str], int, str]:
    """The versions, a line each; how many GPUs PyTorch sees; why, where it cannot be told or is none."""
    row = run(Step("probe", "", module("tests.gpu.versions"), 120), folder / "probe.log", 0)
    text = (folder / "probe.log").read_text(errors="replace").splitlines()
    lines = [line.removeprefix("version: ") for line in text if line.startswith("version: ")]
    found = dict(line.split(": ", 1) for line in lines)
    if not lines:
        return lines, 0, f"PyTorch cannot say what it sees ({row.result})"
    if "GPUs" in found:
        return lines, int(found["GPUs"]), ""
    built = "sees none" if found["CUDA"][0].isdigit() else "is built without CUDA"
    return lines, 0, f"PyTorch {found['PyTorch']} {built}"


def table(rows: list[Row], versions: list[str], sentence: str = "") -> str:
    """All that is known so far, as Markdown."""
    cells = [("step", "result", "seconds", "what was seen, or would show")]
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        cells.append((row.name, row.result, seconds, "; ".join(row.seen) or row.shows))
    name, result, seconds, _ = (max(map(len, column)) for column in zip(*cells))
    lines = [f"| {a:{name}} | {b:{result}} | {c:>{seconds}} | {d} |" for a, b, c, d in cells]
    lines.insert(1, f"|{'-' * (name + 2)}|{'-' * (result + 2)}|{'-' * (seconds + 1)}:|---|")
    count = {
        word: sum(row.result.startswith(word) for row in rows)
        for word in ("held", "not held", "skipped")
    }
    return "\n".join(
        [
            "# The first hour on a GPU",
            "",
            *([sentence, ""] if sentence else []),
            *lines,
            "",
            f"{', '.join(f'{number} {word}' for word, number in count.items())}.",
            "",
            *(f"- {line}" for line in versions),
            "",
        ]
    )


def chosen(found: list[Step], only: list[str]) -> list[Step]:
    """The steps of these names, or all. A name stands for those, too, that go on after it with a dash and a number."""
    for name in only:
        if not any(called(step, name) for step in found):
            raise SystemExit(
                f"there is no step {name}: there are {', '.join(step.name for step in found)}"
            )
    return [step for step in found if not only or any(called(step, name) for name in only)]


def called(step: Step, name: str) -> bool:
    base, _, number = step.name.rpartition("-")
    return step.name == name or (base == name and number.isdigit())


def reason(step: Step, gpus: int) -> str:
    """Why a step cannot run here; "" if it can."""
    if gpus == 0:
        return "no GPU is seen"
    if step.gpus > gpus:
        return f"it needs {step.gpus} GPUs, and {gpus} {'is' if gpus == 1 else 'are'} seen"
    return step.wants()


def hour(
    found: list[Step], gpus: int, out: Path, versions: list[str], sentence: str = ""
) -> list[Row]:
    """Run the steps one after the other; the table is in `out` after each of them."""
    rows, logs = [], logs_of(out)
    for number, step in enumerate(found, 1):
        why = reason(step, gpus)
        if why:
            row = Row(step.name, step.shows, f"skipped: {why}")
        else:
            print(f"{step.name} …", end=" ", flush=True)
            row = run(step, logs / f"{step.name}.log", number)
            print(f"{row.result}, {row.seconds:.1f} s", flush=True)
            if row.result != "held":
                print(last_lines(logs / f"{step.name}.log"), flush=True)
        rows.append(row)
        out.write_text(table(rows, versions, sentence), encoding="utf-8")
    return rows


def last_lines(log: Path, count: int = 15) -> str:
    lines = log.read_text(errors="replace").rstrip().splitlines()[-count:]
    return "\n".join([f"  the end of {log}:", *(f"    {line}" for line in lines)])


def logs_of(out: Path) -> Path:
    """The folder of the steps' logs, beside the table."""
    folder = out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main(words: list[str] | None = None, make: Callable[[int, str], list[Step]] = steps) -> int:
    """The exit status: 1 where a step did not hold. make: the steps, of GPUs and a backend."""
    flags = argparse.ArgumentParser(
        description="What must hold on a machine with GPUs, as one table."
    )
    flags.add_argument(
        "--out", type=Path, default=OUT, metavar="FILE", help="the table; logs lie beside it"
    )
    flags.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="of the steps; may be repeated"
    )
    flags.add_argument(
        "--rehearse", type=int, metavar="N", help="on the CPU, over gloo, as if there were N GPUs"
    )
    args = flags.parse_args(words)
    if args.out.suffix == "":
        flags.error(
            f"--out {args.out} is where the logs go: give the table a suffix, as in {args.out}.md"
        )
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    reaper.pytest_configure()  # what this process starts goes when it goes, however it ends
    versions, gpus, why = probe(logs_of(args.out))
    backend, sentence = "nccl", ""
    if args.rehearse:
        gpus, backend = args.rehearse, "gloo"
        sentence = f"A rehearsal: on the CPU, over gloo, as if there were {gpus} GPUs. It shows nothing of any GPU."
    elif not gpus:
        sentence = f"No GPU was found, so none of this was shown: {why}."
    found = chosen(make(gpus, backend), args.only)
    print(sentence, end="\n" if sentence else "", flush=True)
    rows = hour(found, gpus, args.out, versions, sentence)
    print(f"\n{table(rows, versions)}\nwritten to {args.out}")
    return int(any(row.result.startswith("not held") for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
