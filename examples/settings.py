"""Flags, their ranges, and a TOML file of them: what stands on the command line comes before what is in the file."""

import argparse
import math
import tomllib
from collections.abc import Callable, Sequence


def settings(
    flags: argparse.ArgumentParser, words: Sequence[str] | None = None
) -> argparse.Namespace:
    """`flags` parsed, with `--config FILE`; what the file says is read as flags are, so it is checked as they are.

    A key is a flag's name, with - or _; tables group keys and mean nothing. Ends the script where a key is no flag.
    """
    flags.add_argument(
        "--config", metavar="FILE", help="TOML: any of these flags, in tables if you like"
    )
    config = argparse.ArgumentParser(add_help=False)
    config.add_argument("--config")
    file = config.parse_known_args(words)[0].config
    if file is None:
        return flags.parse_args(words)
    try:
        with open(file, "rb") as f:
            said = [
                word
                for key, value in leaves(tomllib.load(f))
                for word in spelled(flags, file, key, value)
            ]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        flags.error(f"{file}: {error}")
    return flags.parse_args(words, flags.parse_args(said))


def at_least(low: float, kind: type = int, below: float = math.inf) -> Callable[[str], float]:
    """For a flag's `type`: a number of this kind, from `low` to `below`, which it may not be. Nor is it NaN."""

    def number(word: str) -> float:
        value = kind(word)
        if not low <= value < below:
            limit = "" if below == math.inf else f" and below {below:g}"
            raise argparse.ArgumentTypeError(f"at least {low:g}{limit}, not {word}")
        return value

    number.__name__ = kind.__name__  # as argparse calls it where the word is no number
    return number


def leaves(table: dict) -> list[tuple[str, object]]:
    """Keys and values, those of inner tables too."""
    inner = [
        leaves(value) if isinstance(value, dict) else [(key, value)] for key, value in table.items()
    ]
    return [leaf for some in inner for leaf in some]


def spelled(flags: argparse.ArgumentParser, file: str, key: str, value) -> list[str]:
    """A key and its value as one would type them."""
    flag = "--" + key.replace("_", "-")
    action = next((a for a in flags._actions if flag in a.option_strings), None)
    if action is None or action.dest in ("help", "config"):
        flags.error(f"{file}: there is no flag {flag}")
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            flags.error(f"{file}: {key} is true or false, not {value!r}")
        no = "--no-" + flag[2:]
        return [flag] if value else [no] if no in action.option_strings else []
    return [flag, *map(str, value)] if isinstance(value, list) else [f"{flag}={value}"]
