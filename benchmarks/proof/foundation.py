"""What the foundation must show: the issue's nine items, in its order."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from .comm_items import ITEMS as COMM_ITEMS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _run(command: list[str], **kwargs) -> tuple[int, str, float]:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **kwargs)
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - start


def fresh_clone() -> tuple[str, bool]:
    """Item 1: clone, new environment, `make test` (which drives `make lab` in a real browser)."""
    folder = tempfile.mkdtemp(prefix="fresh-")
    try:
        subprocess.run(["git", "clone", "-q", str(ROOT), f"{folder}/minidist"], check=True)
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        code, text, seconds = _run(["make", "test"], cwd=f"{folder}/minidist", env=environ)
        closing = re.findall(r"=+ (.*(?:passed|failed).*) =+", text)
        browser = re.findall(r"tests/browser\S*", text)
        skipped = [line for line in text.splitlines() if line.startswith("SKIPPED")]
        figure = f"make test with installing: {seconds / 60:.1f} min, exit code {code}: {'; '.join(closing)}"
        if code:
            print(text[-6000:])
        return "\n".join([figure, f"browser test ran: {bool(browser) or 'see closing lines'}", *skipped]), code == 0 and not skipped
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def digits() -> tuple[str, bool]:
    """Item 2: one script, three worlds, against the serial run."""
    script = str(ROOT / "examples" / "train_digits.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", script]
    with tempfile.TemporaryDirectory() as folder:
        runs = {"serial": [sys.executable, script, "--ranks", "1"],
                "world": [sys.executable, script, "--ranks", "4", "--runner", "world"],
                "processes": [sys.executable, script, "--ranks", "4", "--runner", "processes"],
                "torchrun": torchrun}  # fmt: skip
        found = {}
        for name, command in runs.items():
            code, text, seconds = _run([*command, "--json", f"{folder}/{name}.json"])
            if code:
                raise RuntimeError(text[-3000:])
            found[name] = json.loads(pathlib.Path(f"{folder}/{name}.json").read_text()) | {"seconds": seconds}
    serial, rows, held = found["serial"], [], True
    for name, run in found.items():
        apart = max(abs(a - b) for a, b in zip(run["losses"], serial["losses"], strict=True))
        held &= apart <= 1e-6 and run["accuracy"] > 0.95 and run["replicas_equal"] is True
        rows.append(f"{name}: accuracy {run['accuracy']:.4f}, losses at most {apart:.1e} from serial, "
                    f"replicas equal bit for bit: {run['replicas_equal']}, {run['seconds']:.1f} s")  # fmt: skip
    return "\n".join(rows), held


def bank() -> tuple[str, bool]:
    """Item 7: all planted bugs caught; the notebooks' times."""
    code, text, seconds = _run([sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests/bank"], cwd=ROOT)
    rows, held = [line for line in text.splitlines() if "planted" in line] + [f"bank: {seconds:.0f} s, exit code {code}"], code == 0 and seconds < 60
    for notebook in sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*/*.ipynb")]):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--output-dir", folder, str(notebook)]
            code, text, seconds = _run(command)
        held &= code == 0 and seconds < 30
        rows.append(f"{notebook.relative_to(ROOT)}: executed in {seconds:.0f} s" + ("" if code == 0 else f", FAILED: {text[-500:]}"))
    return "\n".join(rows), held


def nbgrader() -> tuple[str, bool]:
    """Item 9: the round trip on lesson 02 with a right, a half-right and a cheating submission."""
    code, text, seconds = _run([sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests/course/test_nbgrader.py"], cwd=ROOT)
    return "\n".join([line for line in text.splitlines() if "points" in line] + [f"{seconds:.0f} s, exit code {code}"]), code == 0


ITEMS = dict(sorted({
    "1 fresh clone": fresh_clone,
    "2 digits in three worlds": digits,
    "7 bank and notebooks": bank,
    "9 nbgrader round trip": nbgrader,
    **COMM_ITEMS,
}.items()))  # fmt: skip
