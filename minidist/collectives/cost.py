"""What a collective takes: α–β–γ formulas, and the choice of algorithm that follows from them.

α: seconds until a message's last byte arrives after it left; β: seconds a byte on the wire; γ: seconds to combine
a byte. Each formula stands beside its algorithm, in its `Cost`, with its source. A link's two directions are two
wires; a rank's next message may start when the wire is free, before the latency of the last one has passed.
N is the whole: what each rank has before an all-reduce or a reduce-scatter, and after an all-gather.
"""

from __future__ import annotations

from ..comm.base import Comm
from .algorithms import FLAT, having
from .hierarchical import Hierarchical
from .links import Net, Uniform

ALGORITHMS = FLAT | {"hierarchical": Hierarchical()}
# for "auto"
_BETWEEN_NODES = [Hierarchical(outer=name) for name in having("all_reduce") if name != "naive"]


def formula(verb: str, algorithm):
    """The formula of a verb: seconds(net, nbytes, gamma). ValueError if the algorithm has no such verb."""
    verb = verb.removesuffix("_")
    named = {
        name: getattr(one.Cost, verb) for name, one in ALGORITHMS.items() if hasattr(one.Cost, verb)
    }
    if not isinstance(algorithm, str) and hasattr(algorithm.Cost, verb):
        return getattr(algorithm.Cost, verb)
    if algorithm not in named:
        raise ValueError(
            f"there is a formula of {verb} for {', '.join(map(repr, named))}, not for {algorithm!r}"
        )
    return named[algorithm]


def seconds(
    verb: str, algorithm, n: int, nbytes: float, alpha: float, beta: float, gamma: float = 0.0
) -> float:
    """What `verb` takes on n ranks with links all alike. nbytes: N, or 1 for a barrier. algorithm: as verbs take it.

    ValueError if the algorithm has no such verb, or n < 1.
    """
    return formula(verb, algorithm)(Uniform(n, alpha, beta), nbytes, gamma)


def predict(comm: Comm | Net, verb: str, nbytes: float, algorithm, gamma: float = 0.0) -> float:
    """The same for the links that there are: of a Comm, or of a `Net(n, link)`. "auto": the fastest.

    Ring and halving-doubling wait for the slowest link of each step; a tree's levels and a chain's links add up. So it
    is too long where a slow rank is not on the longest path, and too short where links share a wire, or cannot carry
    both ways at once: each is taken for a free one.
    """
    net = comm if isinstance(comm, Net) else Net.of(comm)
    return formula(verb, fastest(net, verb, nbytes) if algorithm == "auto" else algorithm)(
        net, nbytes, gamma
    )


def fastest(comm: Comm | Net, verb: str, nbytes: float):
    """The algorithm for "auto": the first, in the order of `ALGORITHMS`, of those that are predicted to be fastest.

    Within 3 % all count as equal: the earlier ones send fewer messages, each of which costs more than the model says.
    The links, in the order of the ranks, are all that it knows, so all ranks choose the same.
    """
    net, verb = comm if isinstance(comm, Net) else Net.of(comm), verb.removesuffix("_")
    if verb in ("scatter", "all_to_all"):
        # all at once is never slower; and where parts are uneven, ranks know different N
        return "naive"

    def choose():
        have: list = [name for name, module in FLAT.items() if hasattr(module.Cost, verb)]
        if len(Hierarchical().nodes(net).members) > 1:
            have += [a for a in _BETWEEN_NODES if a.outer in having(verb) and hasattr(a.Cost, verb)]
        times = [formula(verb, a)(net, nbytes) for a in have]
        return next(a for a, time in zip(have, times, strict=True) if time <= 1.03 * min(times))

    return net.keep(("fastest", verb, nbytes), choose)


def bandwidth(verb: str, n: int, nbytes: int, seconds: float) -> tuple[float, float]:
    """(algorithm bandwidth, bus bandwidth) in bytes a second, as nccl-tests define them (doc/PERFORMANCE.md).

    Algorithm bandwidth: N over time. Bus bandwidth: what each wire must have carried for that, N being the whole, as
    everywhere here; it can be compared with the hardware's whatever n. ValueError for a verb or an n without one.
    """
    share = (n - 1) / n if n > 0 else 0
    carried = {
        "all_reduce": 2 * share,
        "reduce_scatter": share,
        "all_gather": share,
        "all_to_all": share,
        "broadcast": 1,
        "reduce": 1,
    }
    if verb not in carried or n < 1:
        raise ValueError(
            f"{', '.join(carried)} among 1 rank or more have a bandwidth, not {verb} among {n}"
        )
    return nbytes / seconds, nbytes / seconds * carried[verb]
