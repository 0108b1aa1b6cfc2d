"""Run what one capability must show at the tests' full size, and print a table: item, figure, held or not.

    python -m benchmarks.proof foundation [item …] [--again]

An item is a list of tests (`items.py`); its figure is what they hand to `figure` (tests/conftest.py), and how they
ended. It holds if all pass, and none is skipped for want of anything but a GPU, or Triton, which comes with it.
Resumable: what has been shown for the sources as they are is kept in `.proof/`, and not run again until they change
(or with --again). Exit code 0 only if every item held.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from .items import PROOFS

ROOT = Path(__file__).resolve().parents[2]


def digest() -> str:
    """Of the tracked and new files that git does not ignore, as they are on disk."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = hashlib.sha256()
    for name in sorted(names.stdout.splitlines()):
        if (ROOT / name).is_file():
            found.update(name.encode() + (ROOT / name).read_bytes())
    return found.hexdigest()


def run_tests(*words: str) -> tuple[str, bool]:
    """The figure of pytest's arguments `words`, and whether it holds."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "--full", "-q", "-p", "no:cacheprovider"]
        command += ["-o", "junit_family=xunit1"]  # which has a place for figures
        environ = os.environ | ({"OMP_NUM_THREADS": "1"} if "-n" in words else {})
        run = subprocess.run(
            [*command, f"--junitxml={report}", *words],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        if run.returncode:
            print(run.stdout[-6000:])
        cases = [*ElementTree.parse(report).iter("testcase")] if report.exists() else []
    return told(cases, run.returncode == 0)


def told(cases: list[ElementTree.Element], held: bool) -> tuple[str, bool]:
    """The figure of the test cases of a JUnit report."""
    rows, ends = [], collections.Counter()
    for case in cases:
        rows += [x.get("value") for x in case.iter("property") if x.get("name") == "figure"]
        end = "passed"
        for bad in case.findall("failure") + case.findall("error") + case.findall("skipped"):
            end, why = bad.tag, bad.get("message", "").partition("\n")[0]
            held &= end == "skipped" and any(name in why for name in ("GPU", "Triton"))
            rows.append(f"{end}: {case.get('name')}: {why}")
        ends[end] += 1
    counted = ", ".join(f"{count} {end}" for end, count in ends.items())
    return "\n".join([*rows, counted or "no test ran"]), held and bool(cases)


def show(name: str, wanted: list[str], again: bool) -> bool:
    """Run what is not yet shown, keep it, print the table."""
    if name not in PROOFS:
        raise SystemExit(f"no proof is named {name!r}; there are: {', '.join(PROOFS)}")
    items = PROOFS[name]
    path = ROOT / ".proof" / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    sources = digest()
    if kept.get("sources") != sources or again:
        kept = {"sources": sources, "items": {}}
    for title, (_, *words) in items.items():
        if title in kept["items"] or (wanted and not any(title.startswith(w) for w in wanted)):
            continue
        print(f"── {title}", flush=True)
        start = time.perf_counter()
        figure, held = run_tests(*words)
        seconds = round(time.perf_counter() - start, 1)
        kept["items"][title] = {"figure": figure, "held": held, "seconds": seconds}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(kept, indent=1))
    print()
    for title, (means, *_) in items.items():
        row = kept["items"].get(title)
        print(
            f"{'held' if row and row['held'] else 'NOT HELD' if row else 'not run':<9} {title}: {means}"
        )
        for line in row["figure"].splitlines() if row else []:
            print(f"          {line}")
    return all(kept["items"].get(title, {}).get("held") for title in items)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("items", nargs="*", help="only items whose title begins so")
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    sys.exit(0 if show(args.name, args.items, args.again) else 1)
