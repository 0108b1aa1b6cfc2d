"""The exercise of lesson 01, The walls, about model states: parameters, gradients, optimizer states, byte by byte.

The counts are those of Rajbhandari et al. 2020 (ZeRO), section 3.1: Adam in mixed precision has 2 + 2 + 12 bytes a
parameter, of which 12 are the fp32 copy, the momentum and the variance.
"""

from __future__ import annotations

from itertools import product

import torch

from minidist.comm.base import Comm

from ..exam import Case, ask
from ..wrong import Wrong
from . import oracle
from .figures import Sheet, entries, whole

PARTS = ("parameters", "gradients", "optimizer states")
UNKNOWN_WORDS = (("lion", "fp32", "lion"), ("adam", "int8", "int8"))


class ModelStates(Sheet):
    name = "model_states"
    right = "3 optimizers × 2 precisions, frozen parameters, all frozen, sizes up to GPT-3's; unknown words refused."
    cases = tuple(
        Case(1, f"{optimizer}, {precision}", (optimizer, precision, some))
        for some in ("trained", "both", "frozen", "large")
        for optimizer, precision in product(oracle.KEPT, oracle.WEIGHT)
    ) + tuple(
        Case(1, f"{optimizer}, {precision}", (optimizer, precision, "trained"))
        for optimizer, precision, _ in UNKNOWN_WORDS
    )

    def draw(self, case, rng):
        optimizer, precision, some = case.given
        most = 10**12 if some == "large" else 10**6
        trained, frozen = (
            1 + 2 * int(torch.randint(10, most, (), generator=rng)) for _ in range(2)
        )
        trained, frozen = (0 if some == "frozen" else trained), (0 if some == "trained" else frozen)
        return [(trained, frozen, optimizer, precision)]

    def run(self, comm: Comm, yours, *given):
        try:
            return {"states": yours(*given)}
        except ValueError as error:
            return {"refused": str(error)}

    def judge(self, case, args, outcome):
        trained, frozen, optimizer, precision = args[0]
        got = outcome.results[0]
        strange = next((w for o, p, w in UNKNOWN_WORDS if (o, p) == (optimizer, precision)), None)
        if strange:
            return self._refused(got, strange)
        if "refused" in got:
            raise Wrong(f"a ValueError for what should work: {got['refused']}")
        entries(got["states"], PARTS, "the result")
        want = oracle.states(trained, frozen, optimizer, precision)
        for part in PARTS:
            name = f"{part!r}, of {trained:,} trained and {frozen:,} frozen parameters,"
            whole(
                got["states"][part],
                want[part],
                name,
                _looks(part, trained, frozen, optimizer, precision),
            )

    def _refused(self, got: dict, word: str) -> None:
        if "refused" not in got:
            raise Wrong(
                f"there is no {word!r} in the table. A number would be made up: raise a ValueError."
            )
        if word not in got["refused"]:
            raise Wrong(
                f"the ValueError says {got['refused']!r}. Whoever reads it looks for the word {word!r}."
            )


def _looks(part: str, trained: int, frozen: int, optimizer: str, precision: str) -> dict[str, int]:
    every, weight = trained + frozen, oracle.WEIGHT[precision]
    kept, mixed = oracle.KEPT[optimizer], 4 * (precision == "fp16")
    if part == "parameters":
        return {
            "What is frozen is in memory, too.": weight * trained,
            "Those are numbers: how many bytes has one?": every,
            "Weights in fp16 have 2 bytes. Their fp32 copy belongs to the optimizer.": 4 * every,
            "The fp32 copy is not to be counted here: it belongs to the optimizer.": 6 * every,
            "And the fp32 copy, of what is trained, belongs to the optimizer.": 2 * every
            + 4 * trained,
            "Weights in fp32 have 4 bytes.": 2 * every,
            "A byte has 8 bits: were bits counted?": 8 * weight * every,
        }
    if part == "gradients":
        return {
            "What is frozen has no gradient.": weight * every,
            "Those are numbers: how many bytes has one?": trained,
            "Gradients are fp16, like the weights: 2 bytes.": 4 * trained,
            "They are fp16, 2 bytes; and what is frozen has none.": 4 * every,
            "Gradients in fp32 have 4 bytes.": 2 * trained,
            "There is a gradient for each trained parameter.": 0,
        }
    word = {
        "sgd": "Plain SGD keeps nothing but that copy.",
        "momentum": "And momentum keeps one fp32 number.",
        "adam": "And Adam keeps two fp32 numbers: 12 bytes, not 8.",
    }[optimizer]
    if optimizer == "sgd" and precision == "fp32":
        return {
            "Plain SGD keeps nothing, and in fp32 the weights need no second copy.": 4 * trained
        }
    return {
        f"You forgot the fp32 master copy, 4 bytes a parameter. {word}": kept * trained,
        "What is frozen is never updated: no optimizer states.": (kept + mixed) * every,
        "What is frozen is never updated: no fp32 copy of it.": kept * trained + mixed * every,
        "Optimizer states are fp32 beside fp16 weights, too: sums of small steps need the digits.": (
            kept // 2 + mixed
        )
        * trained,
        "Optimizer states are fp32, and so is the copy of the weights: no fp16 in here.": (
            kept + mixed
        )
        // 2
        * trained,
        "In fp32 the weights need no second copy.": (kept + 4) * trained,
        "Adam keeps two numbers for each parameter: mean and variance.": (4 + mixed) * trained,
        "SGD with momentum keeps one number for each parameter.": (8 + mixed) * trained,
        "Plain SGD keeps nothing but the copy.": 8 * trained,
        "Those are numbers: how many bytes has one?": (kept + mixed) // 4 * trained,
        "Gradients and weights are not to be counted here.": (kept + mixed + 2 * weight) * trained,
        "Is there an entry missing from a table? It is 0.": 0,
    }


def model_states(yours) -> None:
    """`model_states(trained, frozen, optimizer, precision)`: bytes of parameters, gradients and optimizer states."""
    ask(ModelStates(), yours)
