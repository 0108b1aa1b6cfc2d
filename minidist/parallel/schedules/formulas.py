"""What the papers say of the schedules: bubble and activations kept, from S, M and v, without looking at a list.

All stages alike, no time for messages. The time of a step without a bubble is M(T_F + T_I + T_W); a bubble is the
share of the time that a stage waits.

    naive                   (S−1)/S                                 one micro-batch at a time
    GPipe, 1F1B             (S−1)/(M+S−1)                           M, and S − stage micro-batches are kept
    interleaved             (S−1)/(vM+S−1): (S−1)/M, over the time without a bubble, divided by v
    ZB-H1                   (S−1)(T_F + T_I − T_W) of idle time     S
    ZB-H2                   (S−1)(T_F + T_I − 2T_W)                 2S − 1
    ZB-V                    0 if T_F = T_I = T_W                    2S, of half a stage each

Sources: Huang et al. 2019, section 2.3; Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
Clusters", sections 2.2.1 and 2.2.2; Qi et al. 2023, sections 2 and 6, table 1.
"""

from __future__ import annotations


def bubble(
    schedule: str,
    S: int,
    M: int,
    v: int = 1,
    forward: float = 1.0,
    input: float = 1.0,
    weight: float = 1.0,
) -> float:
    """The share of the time that a stage waits, by formula.

    schedule: "naive", "gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_h2" or "zb_v"; of the last three,
    `Simulation.cost` is the time. forward, input, weight: T_F, T_I, T_W of a stage.
    Raises ValueError for another name, for M < S (ZB-H2, ZB-V: M < 2S − 1), and for zero bubble where T_W > T_F, so
    that W's hold up what comes after, or where W's last longer than the idle time that they fill (ZB-V: unequal times).
    """
    _applies(schedule, S, M)
    whole = forward + input + weight
    if schedule == "naive":
        return 1 - 1 / S
    if schedule in ("gpipe", "one_f_one_b", "interleaved"):
        return (S - 1) / (v * M + S - 1)
    if schedule == "zb_v":
        if not forward == input == weight:
            raise ValueError(
                f"the formula of zb_v is for T_F = T_I = T_W, not {forward:g}, {input:g}, {weight:g}"
            )
        return 0.0
    held_back = 1 if schedule == "zb_h1" else 2
    idle = forward + input - held_back * weight
    if weight > forward or idle < 0:
        raise ValueError(
            f"the formula of {schedule} is for T_W up to T_F and {held_back}·T_W up to T_F + T_I, not for "
            f"T_F = {forward:g}, T_I = {input:g}, T_W = {weight:g}"
        )
    return (S - 1) * idle / ((S - 1) * idle + M * whole)


def most_kept(schedule: str, stage: int, S: int, M: int, v: int = 1) -> int:
    """The most micro-batches (of one chunk) whose activations a stage keeps, by formula. Errors: as `bubble`."""
    _applies(schedule, S, M)
    rows = {
        "naive": 1,
        "gpipe": M,
        "one_f_one_b": S - stage,
        "zb_h1": S,
        "zb_h2": 2 * S - 1,
        "zb_v": 2 * S,
        "interleaved": min(v * M, 2 * (S - 1 - stage) + (v - 1) * S + 1),
    }
    return rows[schedule]


def _applies(schedule: str, S: int, M: int) -> None:
    fewest = {
        "naive": 1,
        "gpipe": S,
        "one_f_one_b": S,
        "interleaved": S,
        "zb_h1": S,
        "zb_h2": 2 * S - 1,
        "zb_v": 2 * S - 1,
    }
    if schedule not in fewest:
        raise ValueError(f"there is a formula for {', '.join(fewest)}, not for {schedule!r}")
    if fewest[schedule] > M:
        raise ValueError(
            f"the formula of {schedule} with {S} stages is for at least {fewest[schedule]} micro-batches,"
            f" not {M}"
        )
