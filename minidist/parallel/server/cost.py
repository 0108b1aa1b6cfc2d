"""What a step costs with n workers and s servers, N bytes of parameters, on links of α seconds and β seconds a byte.

A step takes every worker's gradients into the servers and as many parameters out: n·N/s bytes each way on a server's
wire, the bottleneck where there are fewer servers than workers. C: seconds of computing.

    synchronous, a step alone           C + 2α + 2n·N/s·β
    one step of many                    C + 2α + min(2n, n + 2s − 1)·N/s·β       one server: (n + 1)Nβ
    asynchronous, one server            an update every 2α + Nβ, or (C + 3α + 2Nβ)/n where that is longer
    ring all-reduce                     C + 2(n−1)α + 2(n−1)/n·Nβ                collectives/ring.py: 2Nβ at most

In a run the answers leave one after the other, so workers begin one after the other, and their pushes come in while
the last answers go out: wires carry both ways at once. Asynchronous: a server hears a header, then takes the gradients,
then hears the next. Exact on links all alike, where s divides n. Sources: Li et al. 2014, section 2.2; Hockney 1994 for
links; Patarasuk and Yuan 2009 for the ring.
"""

from __future__ import annotations

ANSWER_HEADER = 16  # bytes: two numbers


def push_header(pieces: int) -> int:
    """Bytes: two numbers, and one for each piece that the server holds."""
    return 8 * (2 + pieces)


def sync_seconds(
    n: int,
    s: int,
    nbytes: float,
    alpha: float,
    beta: float,
    compute: float = 0.0,
    pieces: int = 0,
    alone: bool = False,
) -> float:
    """From one synchronous step to the next, in a long run; alone: of a step that all workers begin together.

    pieces: of each server, for the bytes of headers; 0 counts none.
    Raises ValueError unless 1 ≤ s ≤ n.
    """
    _check(n, s)
    into, out = _bytes(nbytes / s, pieces)
    both = n * (into + out) if alone else min(n * (into + out), n * into + (2 * s - 1) * out)
    return compute + 2 * alpha + both * beta


def async_seconds(
    n: int, nbytes: float, alpha: float, beta: float, compute: float = 0.0, pieces: int = 0
) -> float:
    """Between two updates by n like workers, once they take turns at one server. Its own step takes no time here.

    Arguments and errors: as above.
    """
    _check(n, 1)
    into, out = _bytes(nbytes, pieces)
    turn = 2 * alpha + into * beta
    return max(turn, (turn + compute + alpha + out * beta) / n)


def wire_bytes(
    n: int, s: int, nbytes: float, steps: int = 1, pieces: int = 0
) -> tuple[float, float]:
    """What passes the wire of each server in `steps` steps of n workers: (bytes in, bytes out). Errors: as above."""
    _check(n, s)
    into, out = _bytes(nbytes / s, pieces)
    return steps * n * into, steps * n * out


def _bytes(part: float, pieces: int) -> tuple[float, float]:
    """Of a push to one server, and of its answer."""
    return (part + push_header(pieces), part + ANSWER_HEADER) if pieces else (part, part)


def _check(n: int, s: int) -> None:
    if not 1 <= s <= n:
        raise ValueError(
            f"the formulas are for 1 server or more, and as many workers at least: not {n} for {s}"
        )
