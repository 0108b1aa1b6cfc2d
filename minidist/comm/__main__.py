"""python -m minidist.comm --doctor | --hang PREFIX: what is wrong with this machine, or where a run hangs."""

from __future__ import annotations

import argparse
import sys

from .doctor import examine
from .flight import explain, read


def main(words: list[str] | None = None) -> int:
    """The exit status: 1 if something is wrong, or hangs; 2 for flags or files that are none."""
    flags = argparse.ArgumentParser(prog="python -m minidist.comm", description=__doc__)
    either = flags.add_mutually_exclusive_group(required=True)
    either.add_argument("--doctor", action="store_true", help="look at this machine")
    either.add_argument(
        "--hang",
        metavar="PREFIX",
        help="read the flight recorder's dumps PREFIX0, PREFIX1, …; they begin as TORCH_FR_DUMP_TEMP_FILE says",
    )
    flags.add_argument(
        "--ranks", type=int, help="of the run; as many as there are dumps, unless given"
    )
    args = flags.parse_args(words)
    if args.doctor:
        findings = examine()
        print("\n".join(map(str, findings)))
        return int(any(finding.do for finding in findings))
    try:
        reports = read(args.hang)
    except ValueError as error:
        flags.error(str(error))
    lines = explain(reports, args.ranks or max(reports) + 1)
    print("\n".join(lines or [f"{len(reports)} dumps: no call of theirs is unfinished"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
