"""What the scripts beside this one have in common: the flags that say where ranks run, and the start itself."""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
from settings import at_least, settings

from minidist.comm import World, from_env, launch
from minidist.comm.torchdist import leave
from minidist.tasks import text
from minidist.text import Samples

INTERRUPTED = 130  # the exit status after Ctrl-C
AFTER_RANK_0 = 10.0  # seconds


class Refused(ValueError):
    """What was asked for cannot be done; found by the ranks."""


class Flags(argparse.ArgumentParser):
    """Ends the script with one sentence, once, and the exit status 2: no list of all flags before it."""

    def error(self, message: str) -> NoReturn:
        say(f"{self.prog}: error: {message}  (--help lists the flags)")
        raise SystemExit(2)


def say(sentence: str) -> None:
    """On standard error, by one rank of those that torchrun has started: it ends the others when one has ended."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(AFTER_RANK_0)  # who is still there has found something that rank 0 has not
    print(sentence, file=sys.stderr, flush=True)


def ended(main: Callable[[], int | str]) -> int | str:
    """The exit status of a script, also after Ctrl-C. A rank of torchrun's that has failed ends here and now: others
    may wait for it in a collective, and torchrun ends them when it has ended."""
    try:
        status = main()
    except KeyboardInterrupt:
        say("interrupted: nothing was saved")
        status = INTERRUPTED
    except SystemExit as end:
        status = end.code
    if status not in (None, 0) and "RANK" in os.environ:
        if isinstance(status, str):
            print(status, file=sys.stderr)
        leave(1 if isinstance(status, str) else status)
    return status


def parser(about: str) -> argparse.ArgumentParser:
    """With the flags of every script."""
    flags = Flags(description=about.splitlines()[0])
    flags.add_argument(
        "--ranks", type=at_least(1), help="number of ranks (4); torchrun says it itself"
    )
    flags.add_argument(
        "--runner", choices=["world", "processes", "torchrun"], help="default: world, or torchrun"
    )
    flags.add_argument(
        "--transport", choices=["shm", "gloo"], default="shm", help="of --runner processes"
    )
    flags.add_argument(
        "--backend", choices=["gloo", "nccl"], help="under torchrun; nccl where there are GPUs"
    )
    flags.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    flags.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results of rank 0 there"
    )
    return flags


def of_a_gpt(flags: argparse.ArgumentParser) -> None:
    """The flags of a small GPT that learns a text."""
    flags.add_argument("--steps", type=at_least(0), default=100)
    flags.add_argument("--batch", type=at_least(1), default=8, help="pieces of text in a step")
    flags.add_argument("--context", type=at_least(1), default=32, help="bytes of a piece")
    flags.add_argument("--layers", type=at_least(1), default=2)
    flags.add_argument("--hidden", type=at_least(1), default=32)
    flags.add_argument("--heads", type=at_least(1), default=4)
    flags.add_argument("--lr", type=at_least(0, float), default=0.01)


def batches_of_text(steps: int, batch: int, context: int) -> list[torch.Tensor]:
    """x and y, (steps, batch, context) each: pieces of Python's own reference, in random order; y is one byte later."""
    rows = Samples(text(), context)(0, steps * batch)
    return [row.unflatten(0, (steps, batch)) for row in rows]


def parsed(flags: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, with runner and ranks filled in; ends the script where they do not fit to how it was started."""
    args, started = settings(flags), "RANK" in os.environ
    args.runner = args.runner or ("torchrun" if started else "world")
    if args.runner == "torchrun" and not started:
        flags.error(f"start with: torchrun --nproc-per-node 4 examples/{flags.prog}")
    if started and (
        args.runner != "torchrun" or args.ranks not in (None, int(os.environ["WORLD_SIZE"]))
    ):
        flags.error(
            f"torchrun has started {os.environ['WORLD_SIZE']} ranks: leave out --runner and --ranks"
        )
    if args.json and not args.json.parent.is_dir():
        flags.error(f"--json {args.json}: there is no folder {args.json.parent}")
    args.ranks = int(os.environ["WORLD_SIZE"]) if started else args.ranks or 4
    return args


def run(args: argparse.Namespace, program, *given) -> dict[int, dict]:
    """The results of the ranks that ran here: all, or under torchrun one. Rank 0's are written to --json."""
    if args.runner == "torchrun":
        comm = from_env(args.backend, seed=0)  # as the other two runners have it
        results = {comm.rank: program(comm, *given)}
    elif args.runner == "world":
        results = dict(enumerate(World(args.ranks).run(program, *given)))
    else:
        results = dict(enumerate(launch(program, args.ranks, *given, transport=args.transport)))
    if args.json and 0 in results:
        args.json.write_text(json.dumps(results[0] | {"runner": args.runner}, indent=1))
    return results


def same_losses(results: dict[int, dict]) -> int | str:
    """The exit status: 0 where all ranks that ran here report the same losses, and no loss is NaN or infinite."""
    for result in results.values():
        for step, loss in enumerate(result["losses"], 1):
            if not math.isfinite(loss):
                return f"the loss of step {step} is {loss}: the run diverged"
    return (
        0
        if len({tuple(result["losses"]) for result in results.values()}) == 1
        else "the ranks' losses differ"
    )
