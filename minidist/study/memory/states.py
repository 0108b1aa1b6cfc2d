"""Model states: parameters, gradients and optimizer states, which stay from step to step.

Bytes a parameter, Adam in fp16: 2 + 2 + 12, the last being a copy of the parameter, the momentum and the
variance in fp32. ZeRO divides by the n data-parallel ranks what each of them would otherwise hold whole:

    stage 0: 16Ψ    1: 4Ψ + 12Ψ/n    2: 2Ψ + 14Ψ/n    3: 16Ψ/n

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3.1 and
Figure 1. Ψ is what is left of the model after tensor and pipeline parallelism: those divide gradients and
optimizer states too, which public calculators forget. Invariant: shards of all ranks add up to the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from minidist.split import uneven
from minidist.study.memory.items import Totals


@dataclass(frozen=True)
class Precision:
    """Bytes a parameter: of it and its gradient, of the optimizer's own copies of both, and of each moment."""

    parameter: int
    gradient: int
    master: int = 0
    master_gradient: int = 0
    moment: int = 4


PRECISIONS = {
    "fp32": Precision(4, 4),
    "fp16": Precision(2, 2, master=4),
    "bf16": Precision(2, 2, master=4),
    "bf16, fp32 gradients": Precision(2, 4, master=4),
    "fp16, fp32 gradients in the optimizer": Precision(2, 2, master=4, master_gradient=4),
    "all 16 bits": Precision(2, 2, moment=2),
}
"""Fourth and fifth are Megatron-LM's for bf16 and fp16 (its documentation of the distributed optimizer); the last is
what `model.to(torch.bfloat16)` and any optimizer give."""

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2, "adam 8-bit": 2}
"""How many numbers an optimizer remembers for a parameter."""


@dataclass(frozen=True)
class States(Totals):
    """Bytes of model states on one rank."""

    parameters: int
    gradients: int
    optimizer_states: int


def states(
    params: int,
    optimizer: str = "adam",
    precision: str = "fp16",
    zero: int = 0,
    data: int = 1,
    tensor: int = 1,
    pipeline: int = 1,
    rank: int = 0,
    tensors: int = 0,
) -> States:
    """Bytes of model states on one rank, for `params` parameters in all.

    zero: the stage of ZeRO, 0 (none) to 3, over `data` ranks. The model is divided by `tensor` and `pipeline` first;
    where a division leaves a rest, its first parts have one parameter more (`split.uneven`). `rank` is the
    data-parallel rank; rank 0 holds the most. tensors: parameter tensors, for each of which PyTorch's Adam
    keeps a step count of 4 bytes (in the memory of the CPU, wherever the parameters are); 0 leaves it out, as
    papers do.
    Raises ValueError for an unknown optimizer, precision or stage of ZeRO, or a rank beyond `data`.
    """
    per, moments = known(precision, PRECISIONS, "precision"), known(optimizer, MOMENTS, "optimizer")
    moments *= 1 if optimizer == "adam 8-bit" else per.moment
    if zero not in range(4):
        raise ValueError(f"ZeRO has the stages 0 (none) to 3, not {zero}")
    if not 0 <= rank < data:
        raise ValueError(f"there is no rank {rank} among {data} data-parallel ranks")
    whole = uneven(uneven(params, tensor)[0], pipeline)[0]
    part = uneven(whole, data)[rank]
    return States(
        parameters=per.parameter * (part if zero >= 3 else whole),
        gradients=per.gradient * (part if zero >= 2 else whole),
        optimizer_states=(per.master + per.master_gradient + moments)
        * (part if zero >= 1 else whole)
        + 4 * tensors * (optimizer == "adam"),
    )


def largest(capacity: int, **grid) -> int:
    """The most parameters whose model states fit into `capacity` bytes on every rank: then nothing else does.

    grid: optimizer, precision, zero, data, tensor, pipeline, as for `states`. A card of 32 GB holds
    `largest(32 * GB)`, 2 billion.
    """
    if capacity < 0:
        raise ValueError(f"a memory has at least 0 bytes, not {capacity}")
    low, high = 0, 1
    while states(high, **grid).total <= capacity:
        high *= 2
    while high - low > 1:  # states(low) fits, states(high) does not
        middle = (low + high) // 2
        low, high = (middle, high) if states(middle, **grid).total <= capacity else (low, middle)
    return low


def fused_gradients(params: int, bytes_each: int = 4) -> int:
    """The flat buffer that gradients are copied into to be sent, or their norm taken, in one piece.

    1.5 B parameters in fp32: 6 GB (ZeRO, section 3.2, "temporary buffers").
    """
    return params * bytes_each


def per_parameter(optimizer: str = "adam", precision: str = "fp16") -> dict[str, int]:
    """Bytes a parameter by kind: `{"parameters": 2, "gradients": 2, "optimizer states": 12}`."""
    one = states(1, optimizer, precision)
    return {f.name.replace("_", " "): getattr(one, f.name) for f in fields(one)}


def known(name: str, table: dict, what: str):
    """What the table has of that name. ValueError, which lists its names, where it has none."""
    if name not in table:
        raise ValueError(f"{what} {name!r} is none of {', '.join(map(repr, table))}")
    return table[name]
