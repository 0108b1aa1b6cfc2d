"""The exercises of lesson 01, The walls, about numbers: sums from the literature with errors, and a step foretold.

The claims stand in the assignment. Each is recalculated here from what it says of itself; published in Rajbhandari et
al. 2020 (ZeRO), sections 3 and 6.1, and in write-ups that `minidist/study/figures/claims_checked.csv` lists.
"""

from __future__ import annotations

from minidist.comm.base import Comm

from ..exam import Case, ask
from ..prediction import Prediction
from ..wrong import Wrong
from . import oracle
from .figures import Sheet, kind, shown

# as published
CLAIMS = {"A": 24.0, "B": 2.0, "C": 1250.0, "D": 222.5, "E": 6.0, "F": 2720.0, "G": 33.0, "H": 1.2}


def near(a: float, b: float) -> bool:
    """Within 0.3 %: the smallest of the errors is 0.5 %."""
    return abs(a - b) <= 0.003 * abs(b)


class FindErrors(Sheet):
    name, functions = "find_errors", False
    cases = (Case(1, "your list"),)
    right = "Those claims are wrong, and the others hold."

    def draw(self, case, rng):
        return [()]

    def run(self, comm: Comm, errors):
        return errors

    def judge(self, case, args, outcome):
        got, figures = outcome.results[0], oracle.claims()
        if got is None:
            raise Wrong("errors is not set yet.")
        if not isinstance(got, dict):
            raise Wrong(f"errors is {kind(got)}, and should be a dict: letter → the right figure.")
        strange = [letter for letter in got if letter not in CLAIMS]
        if strange:
            raise Wrong(f"there is no claim {strange[0]!r}: the letters are A to H, as strings.")
        wrong = [letter for letter in CLAIMS if not near(CLAIMS[letter], figures[letter])]
        for letter, figure in got.items():
            if letter not in wrong:
                raise Wrong(f"claim {letter} holds: {shown(CLAIMS[letter])} is what comes out.")
            if isinstance(figure, bool) or not isinstance(figure, int | float):
                raise Wrong(
                    f"the figure of {letter} is {kind(figure)}, and should be a number, in the claim's unit."
                )
            if not near(figure, figures[letter]):
                slip = next(
                    (
                        text
                        for value, text in oracle.claim_slips()[letter].items()
                        if near(figure, value)
                    ),
                    "",
                )
                size = "large" if figure > figures[letter] else "small"
                raise Wrong(
                    f"claim {letter} is wrong, but {figure:g} is too {size}. {slip}".rstrip()
                )
        if len(got) < len(wrong):
            raise Wrong(
                f"what you say is right, but {len(wrong)} claims are wrong, and you name {len(got)}. Calculate "
                "each in bytes, then divide by the unit that it names."
            )


class PredictMemory(Prediction):
    """Its numbers are not in the examination that travels: they come when it judges."""

    name, forbidden = "predict_memory", Sheet.forbidden

    def judge(self, case, args, outcome):
        self.values, self.slips = oracle.step([1000, 2000, 2000, 1000], 4000)
        super().judge(case, args, outcome)


def find_errors(errors) -> None:
    """`errors`: a dict with each wrong claim's letter and the figure that it should have, in the claim's unit."""
    ask(FindErrors(), errors)


def predict_memory(stays, kept, forward, equal) -> None:
    """A training step of an MLP 1000 → 2000 → 2000 → 1000 with ReLU, fp32, Adam, 4,000 samples: foretold, within 1 %.

    stays: bytes that are live after the step.  kept: bytes of activations at the end of forward.
    forward: FLOPs of the forward.  equal: the batch whose activations take as much as what stays.
    """
    names = ["stays", "kept", "forward", "equal"]
    ask(
        PredictMemory(names, {}, {}, "Bytes, FLOPs and the batch, within 1 %."),
        stays,
        kept,
        forward,
        equal,
    )
