"""The trainer on real text: Python's reference, until it writes like it.

    python -m benchmarks.prose [--quick] [--picture docs/prose.png]

`examples/train_gpt.toml` under torchrun, on two processes. Printed: the loss on text kept apart, by step; the same in
bits a byte, beside what xz needs for that text, and for it behind the other (many passages stand in the reference
twice; xz copies them); a sample, and how many of its words the reference has. --quick: 60 steps.
"""

from __future__ import annotations

import itertools
import lzma
import math
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.options import options
from benchmarks.trainer import EXAMPLES, by_torchrun, flags
from minidist.study import curves
from minidist.text import BPE, documents, packed, split

WORDS = ["--config", str(EXAMPLES / "train_gpt.toml")]


class Prose(NamedTuple):
    """losses: of each step.  apart: loss on text kept apart, by step; both in nats a token.  bits, xz, copied: bits a
    byte of that text, by the model, by xz, and by xz behind the other text.  known: share of the sample's words that
    the reference has."""

    losses: list[float]
    apart: dict[int, float]
    bits: float
    xz: float
    copied: float
    sample: str
    known: float

    def __str__(self) -> str:
        rows = [
            f"step {step:>5}: {loss:.3f} nats a token on text kept apart"
            for step, loss in self.apart.items()
        ]
        bits = f"{self.bits:.2f} bits a byte of it; xz {self.xz:.2f}, behind the other text {self.copied:.2f}"
        known = f"{self.known:.0%} of these words stand in the reference"
        return "\n".join([*rows, bits, "", self.sample, "", known])

    def picture(self):
        """Both losses by step."""
        lines = {
            "text it learns from": (range(1, len(self.losses) + 1), self.losses),
            "text kept apart": (list(self.apart), list(self.apart.values())),
        }
        return curves(
            lines, title="A GPT reads Python's reference", xlabel="step", ylabel="nats a token"
        )


def prose(steps: int | None = None) -> Prose:
    """A run, of as many steps as the file says unless told otherwise."""
    words = [
        *WORDS,
        *([] if steps is None else ["--steps", steps, "--evaluate-every", max(1, steps // 3)]),
    ]
    args = flags(*words)
    with tempfile.TemporaryDirectory() as folder:
        found = by_torchrun(2, Path(folder), *words)
        printed = Path(folder, "printed").read_text()
    apart = {
        int(step): float(loss)
        for step, loss in re.findall(r"step (\d+): loss on text kept apart (\S+)", printed)
    }
    texts = documents(args.text)
    pairs = BPE.learn(texts, args.vocab)
    both = [whole(tokens.tolist(), pairs) for tokens in split(packed(texts, pairs), args.apart)]
    tokens = sum(len(pairs.encode(text)) for text in both[1])
    learned, kept = ("".join(texts).encode() for texts in both)
    bits = found["loss apart"] * tokens / len(kept) / math.log(2)
    said, there = (
        re.findall(r"[a-z]{2,}", some.lower()) for some in (found["sample"], learned.decode())
    )
    known = sum(map(set(there).__contains__, said)) / max(1, len(said))
    return Prose(
        found["losses"], apart, bits, xz(b"", kept), xz(learned, kept), found["sample"], known
    )


def whole(tokens: list[int], pairs: BPE) -> list[str]:
    """The documents in a row of tokens."""
    ends = [-1, *(k for k, token in enumerate(tokens) if token == pairs.end), len(tokens)]
    return [pairs.decode(tokens[a + 1 : b]) for a, b in itertools.pairwise(ends)]


def xz(learned: bytes, kept: bytes) -> float:
    """Bits that each byte of `kept` adds to a file that begins with `learned`."""
    size = lambda data: len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    return 8 * (size(learned + kept) - size(learned)) / len(kept)


def main() -> int:
    args = options(
        __doc__, quick="60 steps", picture={"type": Path, "help": "draw the losses into this file"}
    )
    found = prose(60 if args.quick else None)
    print(found)
    if args.picture:
        found.picture().save(args.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
