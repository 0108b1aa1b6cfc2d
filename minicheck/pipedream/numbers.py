"""The exercise of lesson 14 in which numbers are foretold: versions, bytes, staleness, updates."""

from __future__ import annotations

from ..exam import ask
from ..prediction import Prediction


class PredictPipeDream(Prediction):
    name = "predict_pipedream"


def version_slips(S: int, stage: int, M: int, m: int, nbytes: int) -> tuple[dict, dict]:
    """Versions and staleness of a stage, bytes of all stages by rule, updates of 2BW."""
    stash = nbytes * S * (S + 1) // 2
    vertical = nbytes * S * S
    two = 2 * nbytes * S
    wrong_way = "It is the other way round: the last stage goes back at once."
    forgot, mega = (
        "That is S − 1 + … + 0: the newest version counts, too.",
        "In bytes: 1 MB is 1,000,000 of them.",
    )
    values = {
        "versions": S - stage,
        "stale": S - 1 - stage,
        "stash_bytes": stash,
        "vertical_bytes": vertical,
        "two_bytes": two,
        "updates": M // m,
    }
    slips = {
        "versions": {
            stage + 1: wrong_way,
            S: "That is stage 0.",
            S - stage - 1: "The newest counts, too.",
        },
        "stale": {
            stage: wrong_way,
            S - stage: "The gradient's own update does not count.",
            S - 1: "That is stage 0.",
        },
        "stash_bytes": {
            vertical: "That is vertical sync: later stages need fewer.",
            stash / S: "Of all stages.",
            nbytes * S * (S - 1) // 2: forgot,
            nbytes * S: "That is one version a stage.",
        },
        "vertical_bytes": {
            stash: "That is stashing: here stage S − 1 also waits for stage 0's old versions.",
            vertical / S: "Of all stages.",
            nbytes * S * (S - 1): "The newest counts, too.",
        },
        "two_bytes": {
            two / S: "Of all stages.",
            nbytes * S: "That is one version a stage.",
            stash: "That is stashing.",
            m
            * S
            * nbytes: "m is how many micro-batches share an update, and two versions are enough.",
        },
        "updates": {
            M: "That is PipeDream's: 2BW updates once for m micro-batches.",
            M // S: "m, not S.",
        },
    }
    for name in ("stash_bytes", "vertical_bytes", "two_bytes"):
        slips[name][values[name] / 1e6] = mega
    return values, slips


def predict_pipedream(versions, stale, stash_bytes, vertical_bytes, two_bytes, updates) -> None:
    """8 stages, each with weights of 100 MB, 600 micro-batches: versions and staleness of stage 2; bytes of the weights
    of all stages with stashing, vertical sync and 2BW; updates of 2BW with m = 10.
    """
    values, slips = version_slips(S=8, stage=2, M=600, m=10, nbytes=100_000_000)
    exam = PredictPipeDream(
        list(values), values, slips, "Versions, bytes, staleness and updates, within 1 %."
    )
    ask(exam, versions, stale, stash_bytes, vertical_bytes, two_bytes, updates)
