"""What a run costs: FLOPs, GPU hours, energy, and how well the machine is used.

    FLOPs = 6·Ψ·tokens          2 forward, 4 backward for each parameter and token (Kaplan et al. 2020, section 2.1)
    GPU hours = FLOPs / (3600 · peak · MFU)

MFU, model FLOPs utilization, counts what the model needs; HFU, hardware FLOPs utilization, also what was
computed again to save memory (Chowdhery et al. 2022, "PaLM", section 4.1 and appendix B). HFU is never the
smaller. PaLM counts attention too: 6Ψ + 12·L·H·T FLOPs a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from minidist.study.memory.transformer import Transformer, flops


def training_flops(params: int, tokens: int) -> int:
    """6·Ψ·tokens."""
    return 6 * params * tokens


def flops_per_token(params: int, layers: int, width: int, tokens: int) -> int:
    """6Ψ + 12·L·width·T: with attention, whose T keys a token are no parameters. width: of all heads together."""
    return 6 * params + 12 * layers * width * tokens


def utilization(flops: int, seconds: float, gpus: int, peak: float) -> float:
    """The part of `gpus` GPUs' `peak` FLOP/s that `flops` in `seconds` make use of."""
    if seconds <= 0 or peak <= 0 or gpus < 1:
        raise ValueError(
            f"a run takes time, on GPUs with a speed: not {seconds} s on {gpus} at {peak} FLOP/s"
        )
    return flops / (seconds * gpus * peak)


def mfu(
    model: Transformer, batch: int, seconds: float, gpus: int = 1, peak: float = 312e12
) -> float:
    """Model FLOPs utilization of a step over `batch` sequences in all. peak: FLOP/s of one GPU, here an A100's."""
    return utilization(flops(model, batch), seconds, gpus, peak)


def hfu(
    model: Transformer,
    batch: int,
    seconds: float,
    gpus: int = 1,
    peak: float = 312e12,
    recompute: str = "full",
    fused_attention: bool = False,
) -> float:
    """Hardware FLOPs utilization: what was computed again counts too."""
    done = flops(model, batch, recompute=recompute, fused_attention=fused_attention)
    return utilization(done, seconds, gpus, peak)


@dataclass(frozen=True)
class RunCost:
    """flops: of the model. gpu_hours, days: on that many GPUs. megawatt_hours: from the wall."""

    flops: int
    gpu_hours: float
    days: float
    megawatt_hours: float


def run_cost(
    params: int,
    tokens: int,
    gpus: int,
    mfu: float = 0.45,
    peak: float = 312e12,
    watts: float = 400.0,
    overhead: float = 1.1,
) -> RunCost:
    """The cost of training `params` parameters on `tokens` tokens with `gpus` GPUs.

    peak: FLOP/s of one GPU. watts: of one GPU; overhead: energy of the building over that of the GPUs (PUE).
    The defaults are an A100 as LLaMA's authors count it (Touvron et al. 2023, section 6). Raises ValueError for
    an MFU that is not above 0 and at most 1.
    """
    if not 0 < mfu <= 1:
        raise ValueError(f"an MFU is above 0 and at most 1, not {mfu}")
    done = training_flops(params, tokens)
    hours = done / (3600 * peak * mfu)
    return RunCost(done, hours, hours / gpus / 24, energy(hours, watts, overhead))


def energy(gpu_hours: float, watts: float = 400.0, overhead: float = 1.1) -> float:
    """Megawatt-hours."""
    return gpu_hours * watts * overhead / 1e6


def implied_mfu(params: int, tokens: int, gpu_hours: float, peak: float = 312e12) -> float:
    """The MFU over a whole run, stops included, that its GPU hours tell of."""
    return utilization(training_flops(params, tokens), 3600 * gpu_hours, 1, peak)
