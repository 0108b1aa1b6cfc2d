"""`python -m minidist.study.plan --model gpt3-175b --cluster h100:128x8 --batch 1536`"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from minidist.study.plan.clusters import MODELS
from minidist.study.plan.plan import plan
from minidist.study.plan.runs import TABLES, errors
from minidist.study.plan.show import errors_table, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a plan, or with --published the errors against published runs. 2 for what cannot be planned."""
    given = _parser().parse_args(arguments)
    try:
        if given.published:
            print("\n\n".join(errors_table(errors(name)).text for name in TABLES))
        else:
            print(text(plan(given.model, given.cluster, given.batch), given.tokens, given.rate))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m minidist.study.plan", description=main.__doc__)
    parser.add_argument("--model", default="gpt3-175b", help=f"one of {', '.join(MODELS)}")
    parser.add_argument(
        "--cluster", default="h100:128x8", help="device:nodes×devices, as h100:128x8"
    )
    parser.add_argument("--batch", type=int, default=1536, help="sequences of a step")
    parser.add_argument("--tokens", type=float, default=300e9, help="of the whole run")
    parser.add_argument(
        "--rate", type=float, default=2.0, help="money a GPU-hour, an assumption to be replaced"
    )
    parser.add_argument(
        "--published", action="store_true", help="the planner against published runs, row by row"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
