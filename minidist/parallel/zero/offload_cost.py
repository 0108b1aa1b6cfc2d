"""What offload costs, by formulas that know of no run: bytes on the device and on the host, bytes over the link, time.

Ψ parameters in 16 bits, fp32 copies, Adam: the device keeps 2Ψ + 2Ψ bytes, the host 12Ψ, and 4Ψ go over the link in
a step. With F, B, H seconds of forward, backward and the host's update, D down and U up (P tensors of N bytes in all:
Pα + Nβ each way) a step takes F + B + D + H + U; delayed, max(F + B, H) + D + U. Where gradients go down within
backward, they have arrived after F + A, A = max(B + D/P, B/P + D): the longer of the two, and one layer of the other.
Then a step takes F + A + H + U; delayed, max(max(F + B, H) + U, F + A), as the link serves both ways at once; B is
at least A − 2D/P, as backward waits while two are on their way.

Source: Ren et al. 2021, "ZeRO-Offload", sections 3.3 (bytes), 4.1, 4.2 (what overlaps what) and 5.2 (delayed).
"""

from __future__ import annotations

from .offload import IN_FLIGHT, MODES


def memory(parameters: int, low: int = 2, wide: int = 4, moments: int = 2) -> dict[str, int]:
    """Bytes that stay from step to step: "parameters" and "gradients" on the device, "host" for copies and moments.

    low, wide: bytes of a number on the device and on the host.  moments: numbers a parameter that the optimizer keeps.
    """
    return {
        "parameters": low * parameters,
        "gradients": low * parameters,
        "host": wide * (1 + moments) * parameters,
    }


def traffic(parameters: int, low: int = 2) -> dict[str, int]:
    """Bytes of a step over the host's link: "down" for the gradients, "up" for the parameters."""
    return {"down": low * parameters, "up": low * parameters}


def update_seconds(
    parameters: int, moved: float, bandwidth: float, low: int = 2, wide: int = 4
) -> float:
    """Seconds of the host's part: it is bound by its memory, of `bandwidth` bytes/s.

    moved: bytes a parameter that the optimizer itself reads and writes (28 for Adam in one pass: four numbers read,
    three written). To widen the gradient and to narrow the new parameter moves low + wide each.
    """
    return parameters * (moved + 2 * (low + wide)) / bandwidth


def step_time(
    forward: float,
    backward: float,
    update: float,
    nbytes: int,
    tensors: int,
    alpha: float,
    beta: float,
    mode: str = "exact",
    in_backward: bool = False,
) -> float:
    """Seconds of a step, one of many alike (of a delayed one: after the warm-up).

    forward, backward: of the device.  update: of the host.  nbytes: of all gradients, in `tensors` of equal size, which
    backward makes one after the other.  alpha, beta: of the host's link, one way.  mode, in_backward: as in
    `OffloadedOptimizer`. ValueError for an unknown mode or no tensor.
    """
    if mode not in MODES or tensors < 1:
        raise ValueError(
            f"the modes are {' and '.join(map(repr, MODES))} and there is at least 1 tensor: "
            f"{mode!r} and {tensors} were given"
        )
    up = down = tensors * alpha + nbytes * beta
    computed, arrived = forward + backward, forward + backward + down
    if in_backward:
        arrived = forward + max(backward + down / tensors, backward / tensors + down)
        # backward waits for a slow link
        computed = max(computed, arrived - IN_FLIGHT * down / tensors)
    if mode == "exact":
        return arrived + update + up
    free = max(computed, update)  # the device and the host both
    return max(free + up, arrived) if in_backward else free + up + down
