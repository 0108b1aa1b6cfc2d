"""Run the items of one capability and print a table: item, figure, held or not.

    python -m benchmarks.proof foundation [item …] [--again]

Resumable: what has been shown for the sources as they are is kept in `.proof/`, and not run again until
they change (or with --again). Exit code 0 only if every item held.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


def show(name: str, wanted: list[str], again: bool) -> bool:
    """Run what is not yet shown, keep it, print the table."""
    try:
        items = importlib.import_module(f"benchmarks.proof.{name.replace('-', '_')}").ITEMS
    except ModuleNotFoundError as error:
        known = sorted(
            p.stem
            for p in pathlib.Path(__file__).parent.glob("[a-z]*.py")
            if not p.stem.endswith("_items")
        )
        raise SystemExit(
            f"no proof is named {name!r}; there are: {', '.join(known)} ({error})"
        ) from None
    path = ROOT / ".proof" / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    sources = digest()
    if kept.get("sources") != sources or again:
        kept = {"sources": sources, "items": {}}
    for title, run in items.items():
        if title in kept["items"] or (wanted and not any(title.startswith(w) for w in wanted)):
            continue
        print(f"── {title}", flush=True)
        start = time.perf_counter()
        try:
            figure, held = run()
        except Exception:
            traceback.print_exc()
            figure, held = "it raised; see above", False
        kept["items"][title] = {
            "figure": figure,
            "held": bool(held),
            "seconds": round(time.perf_counter() - start, 1),
        }
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(kept, indent=1))
    print()
    for title in items:
        row = kept["items"].get(title)
        print(f"{'held' if row and row['held'] else 'NOT HELD' if row else 'not run':<9} {title}")
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
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # NCCL would want a GPU for each rank
    sys.exit(0 if show(args.name, args.items, args.again) else 1)
