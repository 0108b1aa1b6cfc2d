"""The exercise of lesson 01, The walls, about the compute wall: what a run costs.

FLOPs of a run: 6ΨT, or 8ΨT with full recomputation (Narayanan et al. 2021, section 5.1, without attention); MFU and
HFU as Chowdhery et al. 2022, appendix B.
"""

from __future__ import annotations

import torch

from minidist.comm.base import Comm

from ..exam import Case, ask
from . import oracle
from .figures import Sheet, close, entries

PARTS = ("gpu_hours", "days", "mfu", "hfu")


class RunCost(Sheet):
    name = "run_cost"
    right = "12 runs, with and without recomputation: hours, days, MFU and HFU."
    cases = tuple(
        Case(1, f"{'with' if again else 'without'} recomputation", again)
        for again in (False, True) * 6
    )

    def draw(self, case, rng):
        def one(low, high):
            return int(torch.randint(low, high, (), generator=rng))

        peak = one(60, 2000) * 10**12
        return [
            (
                one(10, 5000) * 10**8,
                one(10, 15000) * 10**9,
                one(8, 5000),
                peak,
                peak * one(15, 75) / 100,
                case.given,
            )
        ]

    def run(self, comm: Comm, yours, *given):
        return yours(*given)

    def judge(self, case, args, outcome):
        got, looks = outcome.results[0], _cost_looks(*args[0])
        entries(got, PARTS, "the result")
        for part, want in oracle.cost(*args[0]).items():
            close(
                got[part],
                want,
                repr(part),
                {text: value for text, value in looks[part].items() if value != want},
            )


def _cost_looks(parameters, tokens, gpus, peak, achieved, again) -> dict[str, dict[str, float]]:
    hours, days, mfu, hfu = oracle.cost(parameters, tokens, gpus, peak, achieved, again).values()
    factor = 8 if again else 6
    unused = {
        "Recomputation runs the forward twice: 8 FLOPs a parameter and token, not 6.": 6 / factor,
        "Nothing is recomputed here: 6 FLOPs a parameter and token, not 8.": 8 / factor,
        "That is the forward alone: the backward has twice as many FLOPs.": 2 / factor,
        "Backward is twice the forward: 6 with it, and 2 more if the forward runs again.": 4
        / factor,
        "Recomputation runs a forward more, not a backward: 8, not 12.": 12 / factor,
        "At its peak rate? `achieved` is what a GPU does.": achieved / peak,
    }
    return {
        "gpu_hours": {text: hours * times for text, times in unused.items()}
        | {
            "Those are seconds.": hours * 3600,
            "Those are minutes.": hours * 60,
            "Those are days.": hours / 24,
            "That is how long the run takes: a GPU-hour is one hour of one GPU, so there are more.": hours
            / gpus,
            "`achieved` is one GPU's: do not multiply it by their number.": hours * gpus,
        },
        "days": {text: days * times for text, times in unused.items()}
        | {
            "All GPUs work at the same time.": days * gpus,
            "Those are hours.": days * 24,
            "Those are seconds.": days * 86400,
            "Divided by the GPUs twice?": days / gpus,
        },
        "mfu": {
            "That is the HFU: what is recomputed is no use to the model, and not counted.": hfu,
            "It is upside down.": 1 / mfu,
            "A fraction is asked for, not percent.": 100 * mfu,
            "Both the FLOPs and the time must be those of the run.": mfu * 6 / factor,
            "Nothing is recomputed here: MFU and HFU are the same.": hfu * 6 / 8,
            "More than the hardware does? The model needs fewer FLOPs than are executed.": hfu
            * factor
            / 6,
            "Divided by the GPUs twice?": mfu / gpus,
            "That is a rate, not a fraction of the peak.": mfu * peak,
        },
        "hfu": {
            "That is the MFU: the hardware executes what is recomputed, too.": mfu,
            "It is upside down.": 1 / hfu,
            "A fraction is asked for, not percent.": 100 * hfu,
            "More than was executed? The rate `achieved` counts what is recomputed already.": hfu
            * 8
            / 6,
            "Divided by the GPUs twice?": hfu / gpus,
            "That is a rate, not a fraction of the peak.": hfu * peak,
        },
    }


def run_cost(yours) -> None:
    """`run_cost(parameters, tokens, gpus, peak, achieved, recompute)`: GPU-hours, days, MFU and HFU of a run."""
    ask(RunCost(), yours)
