"""Interleaved 1F1B: each stage holds v chunks of the model, so a micro-batch comes by v times.

The pipeline fills after (S−1) passes through a chunk, each v times shorter than a stage: the bubble falls to
(S−1)/(vM+S−1) of the time, and v times as many messages are sent. Micro-batches advance in groups of S: S of them
through chunk 0, the same S through chunk 1, …, then the next S. Backwards the same, last chunk first.

    S = 2, M = 2, v = 2       0  F0   F1   F0.1 F1.1 B0.1 …
    part c·S + stage          1  F0   F1   F0.1 B0.1 F1.1 …

Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2.2, and
Megatron-LM's order (2(S−1−stage) + (v−1)S forwards to warm up).
"""

from __future__ import annotations

from .action import Action, check


def interleaved(stage: int, S: int, M: int, v: int = 2) -> list[Action]:
    """Interleaved 1F1B with v chunks a stage. ValueError unless S divides M.

    min(vM, 2(S−1−stage) + (v−1)S + 1) chunks' activations kept, each of a v-th of a stage.
    """
    check(stage, S, M)
    if v < 1:
        raise ValueError(f"a stage holds at least 1 chunk, not {v}")
    if M % S:
        raise ValueError(
            f"interleaving sends micro-batches in groups of S: {S} stages do not divide {M} micro-batches"
        )
    forwards = [_nth("F", k, S, v) for k in range(M * v)]
    backwards = [_nth("B", k, S, v) for k in range(M * v)]
    warm = min(M * v, 2 * (S - 1 - stage) + (v - 1) * S)
    steady = [a for pair in zip(forwards[warm:], backwards) for a in pair]
    return forwards[:warm] + steady + backwards[M * v - warm :]


def _nth(kind: str, k: int, S: int, v: int) -> Action:
    """The k-th pass of a kind: groups of S micro-batches, through one chunk after the other."""
    group, within = divmod(k, S * v)
    chunk, member = divmod(within, S)
    return Action(kind, group * S + member, chunk if kind == "F" else v - 1 - chunk)
