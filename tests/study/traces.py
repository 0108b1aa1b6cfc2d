"""Traces made by hand, with times that floats hold exactly."""

from minidist.comm.trace import CATEGORIES, Timeline, Trace

US = 2.0**-20  # about a microsecond


def ring(n, steps=None, nbytes=1000):
    """Every rank sends to the next, `steps` times: 1 unit of sending, 1 of latency."""
    trace = Trace(n)
    for s in range(n - 1 if steps is None else steps):
        for r in range(n):
            trace.add(
                r,
                (r + 1) % n,
                nbytes,
                2 * s * US,
                (2 * s + 1) * US,
                (2 * s + 2) * US,
                f"chunk {(r - s) % n}",
            )
    return trace


def gather(n, nbytes=1000):
    """All send to rank 0, one after the other."""
    trace = Trace(n)
    for r in range(1, n):
        trace.add(r, 0, nbytes, (r - 1) * US, r * US, (r + 1) * US)
    return trace


def step():
    """Two ranks compute, one waits for the other, rank 0 sends on a lane."""
    trace = Trace(2)
    trace.add(0, 1, 4096, 1e-3, 2e-3, 3e-3, "gradient", "0")
    trace.spans.add(0, "main", "compute", 0.0, 4e-3, "backward")
    trace.spans.add(1, "main", "compute", 0.0, 1e-3, "backward")
    trace.spans.add(1, "main", "wait", 1e-3, 3e-3, "recv")
    return trace


def held(changes):
    """A Timeline of (seconds, category, bytes more or less)."""
    times, names, more = zip(*changes, strict=True)
    return Timeline(times, more, [CATEGORIES.index(name) for name in names])


def remembered():
    """`step()`, with memory: rank 1 holds more than rank 0, and most of it for no time at all."""
    trace = step()
    trace.memory[0] = held(
        [(0.0, "parameters", 1000), (1e-3, "activations", 500), (3e-3, "activations", -500)]
    )
    trace.memory[1] = held(
        [
            (0.0, "parameters", 1000),
            (1e-3, "activations", 500),
            (2e-3, "other", 4000),
            (2e-3, "other", -4000),
            (3e-3, "activations", -500),
            (3e-3, "gradients", 1000),
        ]
    )
    return trace
