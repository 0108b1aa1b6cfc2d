"""The exercises of lesson 13, ZeRO: who owns what, a sharded step, hooks that free, a layer that is gathered."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from minidist.comm.meter import charges

from ..exam import (
    Case,
    Costly,
    Exam,
    Outcome,
    Prediction,
    Report,
    Wrong,
    alike,
    alone,
    bare,
    clipped,
    close,
    encode,
    few_in_all,
    identical,
    integer,
    integers,
    left_open,
    normal,
    outside_tensors,
    ranked,
    shaped,
    unchanged,
    wrong_means,
)
from ..oracles import zero as oracle
from ..oracles.zero import cut, serial
from .buckets import Network, network, world_of

# ------------------------------------------------------------
# What the exercises of lesson 13 share: what the meter of a World says of this rank's memory, and bytes sent.


FORBIDDEN = (
    "minidist.parallel",
    "minidist.train",
    "minidist.checkpoint",
    "minidist.study",
    "minicheck.oracles.zero",
)
STEPS = 3
BACKWARDS = 3
FRESH = (0, 2)  # before these all gradients are None; the second backward adds to the first
EPSILON = 0.1
WIDE = [
    1,
    0,
    0,
    1,
]  # owners of large parameters: copies in lists are more than all that Python holds beside them


class Adam:
    """The optimizer that answers are given. (torch's own takes seconds to import its compiler, in every process.)

    Beside its large epsilon a sum of gradients steps otherwise than their mean.
    """

    def __init__(self, params: Iterable[Tensor], rate: float = 0.05):
        self.params = list(params)
        self.rate = rate
        self.steps = 0
        if not self.params:
            raise ValueError("optimizer got an empty parameter list")
        self.state: dict[Tensor, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for p in self.params:
            if p.grad is not None:
                mean, square = self.state.setdefault(p, (torch.zeros_like(p), torch.zeros_like(p)))
                mean.lerp_(p.grad, 0.1)
                square.lerp_(p.grad.square(), 0.001)
                wide = (square / (1 - 0.999**self.steps)).sqrt_().add_(EPSILON)
                p.sub_(self.rate / (1 - 0.9**self.steps) * mean / wide)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    @property
    def nbytes(self) -> int:
        """Of its states."""
        return sum(x.nbytes for two in self.state.values() for x in two)


def now() -> dict[str, int]:
    """Live bytes by category on this rank; {} in a real process, which has no meter."""
    found = charges()
    return found[0].ledger.timeline("cpu").at(math.inf) if found else {}


def most(kind: str | None = None, since: int = 0) -> int:
    """The most bytes that were live at once, of one category or of all, after so many changes."""
    found = charges()
    if not found:
        return 0
    line = found[0].ledger.timeline("cpu")
    return int((line.total if kind is None else line.live[kind])[since:].max(initial=0))


def changes() -> int:
    """How many changes the meter has seen on this rank."""
    found = charges()
    return len(found[0].ledger.timeline("cpu")) if found else 0


def same(some: list, others: list) -> bool:
    """Whether they hold the same objects."""
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


class Unseen:
    """What this rank's process holds outside of tensors, where no meter looks; 0 bytes unless it is asked to look."""

    def __init__(self, looks: bool):
        self.looks = looks
        self.start = outside_tensors() if looks else 0

    def more(self) -> int:
        """Bytes more than at the start."""
        return outside_tensors() - self.start if self.looks else 0


def apart(nbytes: int, psi: int, where: str) -> None:
    """Raise Wrong where so many bytes outside of tensors can only be copies of Ψ bytes of numbers."""
    if nbytes > psi // 2:
        raise Costly(
            f"the numbers are right, but {where}{nbytes:,} bytes more are held outside of tensors, and all weights have "
            f"{psi:,}: numbers that are kept in lists or in arrays of NumPy take memory, too."
        )


def sent(outcome: Outcome, least: float, most: float, what: str, hint: str) -> None:
    """Raise Wrong if all ranks together send less than `least` bytes or more than `most`, but for what rounds."""
    nbytes = outcome.nbytes()
    text = f"the numbers are right, but all ranks together send {nbytes:,} bytes, and {what} = "
    if nbytes > most * 1.02 + 64:
        raise Wrong(f"{text}{round(most):,} are enough. {hint}")
    if nbytes < 0.98 * least - 64:
        raise Wrong(
            f"{text}{round(least):,} are the least: do numbers go another way than through messages?"
        )


# ------------------------------------------------------------
# Owners: whole parameters, spread over ranks by bytes.
#
# Looked at: the fullest rank, against largest first, each to the emptiest (Graham 1969: at most 4/3 of the best).


class Owners(Report):
    """`owners(nbytes, n, placed)`: the rank that owns each parameter, balanced by bytes; who is placed stays."""

    name = "owners"
    right = (
        "1 to 8 ranks, up to 60 parameters drawn at random, none, some or all placed: an owner for each, nobody moved, "
        "the fullest rank as full as need be."
    )
    forbidden = FORBIDDEN
    cases = alone(
        {
            "6 new parameters, 3 ranks": ([8, 7, 6, 5, 4, 3], 3, [None] * 6),
            "the largest comes last": ([1, 1, 1, 1, 1, 5], 2, [None] * 6),
            "6 parameters, 3 of them placed on one rank": (
                [8, 7, 6, 5, 4, 3],
                3,
                [0, None, 0, None, 0, None],
            ),
            "12 parameters, 4 ranks, a third placed": (12, 4, 0.3),
            "60 parameters, 8 ranks, half of them placed": (60, 8, 0.5),
            "2 parameters, 4 ranks": (2, 4, 0.0),
            "30 parameters, 1 rank": (30, 1, 0.5),
            "8 equal ones, 3 ranks, 3 placed": (
                [4] * 8,
                3,
                [2, None, 2, None, 1, None, None, None],
            ),
            "no parameter": ([], 2, []),
            "all are placed": ([5, 3, 9], 3, [1, 1, 2]),
            "a few large among small ones": (
                [100, 1, 1, 1, 100, 1, 1, 1, 100, 1, 1, 1],
                3,
                [None, *[0] * 3] * 3,
            ),
            "one of 0 bytes": ([0, 5, 3, 3], 2, [None] * 4),
            "25 parameters, 5 ranks": (25, 5, 0.2),
        }
    )

    def draw(self, case, rng):
        sizes, n, placed = case.given
        if isinstance(sizes, int):
            sizes = (8 * torch.randint(1, 1000, (sizes,), generator=rng) ** 2).tolist()
        if isinstance(placed, float):
            share = torch.rand(len(sizes), generator=rng) < placed
            placed = [integer(rng, 0, n) if there else None for there in share.tolist()]
        return [(sizes, n, placed, integer(rng, 1, 4))]

    def run(self, comm, yours, sizes, n, placed, others):
        mine, where = list(sizes), list(placed)
        owner = yours(mine, n, where)
        for k in range(others):  # of another model
            yours([*sizes, 8 * k], n, [*placed, None])
        return {
            "owner": owner,
            "again": yours(list(sizes), n, list(placed)),
            "other": yours(sizes[::-1], n, placed[::-1]),
            "sizes": mine,
            "placed": where,
        }

    def check(self, case, got, sizes, n, placed, _):
        unchanged(got["sizes"], sizes, "`nbytes`")
        unchanged(got["placed"], placed, "`placed`")
        if encode(bare(got["owner"])) != encode(bare(got["again"])):
            raise Wrong(
                "asked again later, it gives another answer. All ranks call it, and must find the same owners."
            )
        should = "a list of ranks, the owner of each parameter in their order"
        for name, some, where in (("owner", sizes, placed), ("other", sizes[::-1], placed[::-1])):
            owner = list(shaped(got[name], [int], "the result", should))
            self._ranks(owner, some, n)
            self._stay(owner, where)
            self._full(owner, some, n, where)

    def _stay(self, owner, placed):
        for i, rank in enumerate(placed):
            if rank not in (None, owner[i]):
                raise Wrong(
                    f"parameter {i} is placed on rank {rank}, and the result gives it to rank {owner[i]}: its optimizer "
                    "states lie there, so it must stay."
                )

    def _ranks(self, owner, sizes, n):
        if len(owner) != len(sizes):
            raise Wrong(
                f"the result has length {len(owner)}, for {len(sizes)} parameters: a rank for each of them."
            )
        strange = [o for o in owner if not 0 <= o < n]
        if strange:
            raise Wrong(f"{strange[0]} is no rank: with {n} ranks they are 0 to {n - 1}.")

    def _full(self, owner, sizes, n, placed):
        loads = oracle.loads(sizes, owner, n)
        best = oracle.fullest(sizes, n, placed)
        if max(loads) <= best:
            return
        where = f", placed {placed}" if any(rank is not None for rank in placed) else ""
        shown = f"{sizes} bytes on {n} ranks{where}: " if len(sizes) <= 12 else ""
        said = f"{shown}the fullest rank owns {max(loads):,} bytes, and {best:,} are possible by the rule."
        if len(set(owner)) == 1 and n > 1:
            raise Wrong(f"{said} One rank owns all: is its load counted?")
        if owner == oracle.greedy(sizes, n, range(len(sizes)), placed):
            raise Wrong(f"{said} They go in the order of the model: begin with the largest.")
        if owner == oracle.greedy(sizes, n, oracle.largest_first(sizes), placed, counted=False):
            raise Wrong(f"{said} Do the bytes count that were placed before, on rank 0 as well?")
        raise Wrong(
            f"{said} Largest first, each to the rank that has the fewest bytes by then, not the fewest parameters."
        )


# ------------------------------------------------------------
# Stage 1: a step in which each rank keeps the optimizer's states of its part.
#
# Looked at: all weights on all ranks, bytes of optimizer states and of all else (by the meter of the World), bytes sent.
# Each rank's optimizer has a rate of its own. So the owner's step alone is right: whoever steps all parameters on every
# rank gives other weights, wherever the states are hidden.


PLACES = (
    "Is it this parameter's own place in the flat buffer? Are gradients laid out like the parameters, in the order of "
    "their owners?"
)


class Sharded(Exam):
    """`sharded(comm, params, owner, optimizer)`: returns step(), Adam with its states at the owners."""

    name = "sharded"
    right = (
        "n = 1…4, uneven parts, a rank that owns nothing, missing gradients: Adam's serial weights on all ranks, states of the own "
        "part alone, 2(n−1)Ψ numbers sent a step; then 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = ranked(
        lambda n, owners: (
            f"n = {n}, owners {owners}{', a nan' * (n == 1)}{', gradients missing' * (n > 1)}"
            f"{', float32' * (n == 4)}"
        ),
        (
            (3, [0, 1, 2, 2, 1, 0]),
            (2, [1, 0, 0, 1]),
            (4, [0, 1, 2, 3, 3, 2, 1]),
            (3, [0, 2, 0, 2, 2]),
            (1, [0, 0, 0]),
            (2, WIDE),
        ),
    )
    processes = (Case(3, "3 real processes", [2, 0, 1, 1]),)

    def draw(self, case, rng):
        draw = partial(integer, rng)
        times = 5 if case.given is WIDE else 1
        shapes = [
            (times * draw(20, 30), times * draw(20, 30)) if i % 3 else (draw(400, 600),)
            for i in range(len(case.given))
        ]
        dtype = torch.float32 if case.n == 4 else torch.float64
        drawn = lambda: [normal(rng, s, dtype=dtype) for s in shapes]
        values = drawn()
        rates = (
            0.03
            + 0.02 * torch.randperm(case.n, generator=rng)
            + 0.01 * torch.rand(case.n, generator=rng)
        )
        grads = [[drawn() for _ in range(STEPS)] for _ in range(case.n)]
        if case.n == 1:
            grads[0][1][0][3] = math.nan
        for r in range(1, case.n):  # rank 0 has all
            for k in range(STEPS):
                grads[r][k][(r + k) % len(shapes)] = None
        return [
            (values, list(case.given), grads[r], rate, times > 1)
            for r, rate in enumerate(rates.tolist())
        ]

    def world(self, n, args):
        return world_of(n)

    def run(self, comm, yours, values, owner, grads, rate, wide):
        params = [v.clone().requires_grad_() for v in values]
        before = now()
        unseen = Unseen(wide)
        listed = list(params)
        made = []

        def optimizer(some):
            made.append(Adam(some, rate))
            return made[-1]

        step = yours(comm, listed, list(owner), optimizer)
        if not callable(step):
            return {"step": "None" if step is None else type(step).__name__}
        for mine in grads:
            for p, g in zip(params, mine, strict=True):
                p.grad = None if g is None else g.clone()
            step()
        for p in params:
            p.grad = None
        after = now()
        return {
            "params": [p.detach() for p in params],
            "same list": same(listed, params),
            "states": sum(one.nbytes for one in made),
            "more": sum(after.values()) - sum(before.values()),
            "unseen": unseen.more(),
            "metered": bool(after),
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        values, owner, *_ = args[0]
        mine = [[v for v, o in zip(values, owner, strict=True) if o == r] for r in range(case.n)]
        for r, got in enumerate(outcome.results):
            if "step" in got:
                raise Wrong(f"it returns {got['step']}, and should return a function: step().")
            if not got["same list"]:
                raise Wrong(
                    f"rank {r}: the list `params` was changed. It is the parameters' memory that may change."
                )
            self._too_many(r, got["states"], mine[r])
        own = [
            [
                [torch.zeros_like(v) if g is None else g for v, g in zip(values, some)]
                for some in a[2]
            ]
            for a in args
        ]
        means = [
            [sum(some[k][i] for some in own) / case.n for i in range(len(values))]
            for k in range(STEPS)
        ]
        want = oracle.stepped(Adam, values, means, STEPS, [args[o][3] for o in owner])
        looks = self._looks(args, values, means, own)
        for r, got in enumerate(outcome.results):
            for i, right in enumerate(want):
                what = f"rank {r}: params[{i}], which rank {owner[i]} owns, after {STEPS} steps"
                close(got["params"][i], right, what, looks(r, i), PLACES)
        for i in range(len(want)):
            identical([got["params"][i] for got in outcome.results], f"params[{i}]")
        psi = sum(v.nbytes for v in values)
        for r, got in enumerate(outcome.results):
            self._memory(r, got, mine[r], psi)
            apart(got["unseen"], psi, "after the last step ")
        bytes_ = 2 * (case.n - 1) * psi * STEPS
        hint = (
            "A gradient is needed at its owner alone: a flat buffer in the order of the owners, a reduce-scatter and an "
            "all-gather."
        )
        sent(outcome, bytes_, bytes_, f"{STEPS} steps, 2(n−1)Ψ numbers each,", hint)

    def _looks(self, args, values, means, given):
        rates = [args[o][3] for o in args[0][1]]
        summed = oracle.stepped(
            Adam, values, [[g * len(args) for g in some] for some in means], STEPS, rates
        )
        own = [oracle.stepped(Adam, values, some, STEPS, rates) for some in given]
        there = [
            [len(args) / sum(a[2][k][i] is not None for a in args) for i in range(len(values))]
            for k in range(STEPS)
        ]
        among = oracle.stepped(
            Adam,
            values,
            [[g * f for g, f in zip(*two, strict=True)] for two in zip(means, there, strict=True)],
            STEPS,
            rates,
        )
        here = [oracle.stepped(Adam, values, means, STEPS, [a[3]] * len(values)) for a in args]
        return lambda r, i: {
            "It is as it was at the start: does its owner step it, and pass it on?": values[i],
            "It is that of this rank's own gradients: average them at the owner.": own[r][i],
            "It is that of summed gradients: divide by n.": summed[i],
            "It is that of a mean over the ranks that have a gradient: a missing one counts as zeros, so divide by n.": among[
                i
            ],
            **{
                f"It was stepped with rank {s}'s rate: the owner steps it, with the optimizer that is given there, and "
                "passes it on.": w[i]
                for s, w in enumerate(here)
            },
        }

    def _too_many(self, r, states, mine):
        own = 2 * sum(v.nbytes for v in mine)
        if states > own:
            raise Wrong(
                f"rank {r} holds {states:,} bytes of optimizer states, and its own part needs {own:,}: give "
                "the optimizer what this rank owns, and no more."
            )

    def _memory(self, r, got, mine, psi):
        own = 2 * sum(v.nbytes for v in mine)
        if got["states"] < own:
            raise Wrong(
                f"the weights are right, but rank {r} holds {got['states']:,} bytes of optimizer states, and "
                f"{own:,} are needed: use the optimizer that is given, one for all steps."
            )
        if got["metered"] and got["more"] > own + psi // 4 + 1000:
            raise Costly(
                f"the weights are right, but after the last step rank {r} holds {got['more']:,} bytes more "
                f"than at the start, and {own:,} are its states. What else is kept? Parameters should be views "
                "of the flat buffer, and gradients of a step are not needed after it."
            )


# ------------------------------------------------------------
# Stage 2: gradients go to their owners during backward, and are freed elsewhere.
#
# Looked at: who has which gradient afterwards, live bytes of gradients and of all else during backward, bytes sent.


class ToOwners(Exam):
    """`to_owners(comm, params, owner)`: hooks that average each gradient at its owner and free it elsewhere."""

    name = "to_owners"
    right = (
        "n = 1…4, up to 9 layers, three backwards, of which two accumulate: sums of averages at the owners, None elsewhere, freed during backward; "
        "then 2 real processes."
    )
    forbidden = FORBIDDEN
    cases = ranked(
        lambda n, owner: (
            f"n = {n}, {len(owner)} layers{', float32' * (n == 4)}{', a nan in the third backward' * (n == 1)}"
        ),
        (
            (3, [0, 1, 2, 0, 1, 2]),
            (2, [1, 0, 1, 1, 0, 0]),
            (4, [3, 0, 2, 1, 1, 3, 0, 2, 0]),
            (1, [0, 0, 0]),
            (3, [2, 2, 0, 0, 2, 0, 2]),
            (2, WIDE),
        ),
    )
    processes = (Case(2, "2 real processes", [0, 1, 1, 0]),)

    def draw(self, case, rng):
        values, depth = network(1, len(case.given), rng)
        if case.given is WIDE:
            values = [normal(rng, 120 if i else 16, 120) / 9 for i in range(depth)]
        dtype = torch.float32 if case.n == 4 else torch.float64
        # of a rank and backward
        xs = normal(rng, case.n, BACKWARDS, 2, 16).to(dtype)
        values, wide = [v.to(dtype) for v in values], case.given is WIDE
        if case.n == 1:
            xs[0, 2, 0, 0] = math.nan
        return [(values, depth, list(case.given), list(x), wide) for x in xs]

    def world(self, n, args):
        return world_of(n)

    def run(self, comm, yours, values, depth, owner, xs, wide):
        model, unseen = Network(values, depth), Unseen(wide)
        found = []
        # the meter knows a Parameter's gradient
        params, peaks = [nn.Parameter(p.detach()) for p in model.params()], []
        listed, owners = list(params), list(owner)
        yours(comm, listed, owners)
        for k, x in enumerate(xs):
            for p in params if k in FRESH else []:
                p.grad = None
            loss = model.loss(params, x, [0])
            held, start = now(), changes()
            loss.backward()
            del loss
            before = sum(held.values())
            left = sum(now().values()) - before
            peaks.append((most("gradients", start), most(None, start) - before, left))
            found.append([None if p.grad is None else p.grad.clone() for p in params])
        return {
            "found": found,
            "peaks": peaks,
            "kept": all(map(torch.equal, params, values)),
            "same lists": same(listed, params) and owners == owner,
            "unseen": unseen.more(),
            "metered": bool(now()),
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        values, depth, owner, *_ = args[0]
        model, n = Network(values, depth), case.n
        earlier = [torch.zeros_like(v) for v in values]
        cleared = earlier
        for k in range(BACKWARDS):
            own = [model.gradient([a[3][k]], [0]) for a in args]
            if k in FRESH:
                cleared, earlier = earlier, [torch.zeros_like(v) for v in values]
            for r, got in enumerate(outcome.results):
                if not got["kept"]:
                    raise Wrong(
                        f"rank {r}: the parameters themselves were changed. It is p.grad that goes."
                    )
                if not got["same lists"]:
                    raise Wrong(
                        f"rank {r}: `params` or `owner` was changed, and belongs to the caller."
                    )
                for i, o in enumerate(owner):
                    before = earlier[i], cleared[i]
                    self._gradient(r, i, o, got["found"][k][i], [g[i] for g in own], k, *before)
            earlier = [e + sum(g[i] for g in own) / n for i, e in enumerate(earlier)]
        largest, psi = max(v.nbytes for v in values), sum(v.nbytes for v in values)
        for r, got in enumerate(outcome.results):
            mine = sum(v.nbytes for v, o in zip(values, owner, strict=True) if o == r)
            if got["metered"] and n > 1:
                self._memory(r, got["peaks"], mine, largest)
            apart(got["unseen"], psi, "after backward ")
        least = BACKWARDS * (n - 1) * psi
        hint = (
            "A gradient is needed at its owner alone: reduce_(…, root) sends half of an all-reduce."
        )
        said = f"{BACKWARDS} backwards, (n−1)Ψ numbers and a little each,"
        sent(outcome, least, least * (1 + 1 / n), said, hint)

    def _gradient(self, r, i, owner, got, own, k, earlier, cleared):
        which = f"rank {r}, after backward {k + 1}: params[{i}].grad"
        if r != owner:
            if got is not None:
                raise Wrong(
                    f"{which} is a tensor, and rank {owner} owns it: set it to None, so that its memory is "
                    "freed."
                )
            return
        if got is None:
            raise Wrong(f"{which} is None, and this rank owns it: here its average stays.")
        mean = sum(own) / len(own)
        rule = (
            "It is not the mean of the ranks' gradients of this parameter, added to what was there."
        )
        looks = wrong_means(r, own)
        if k == FRESH[-1]:
            looks |= {
                "What was there before the program set p.grad to None is still in it.": cleared
                + mean
            }
        if k not in FRESH:
            looks = {
                "This rank's own gradient was added, not the mean: is the hook called in every backward?": (
                    earlier + own[r]
                ),
                "It is this backward's mean alone: what earlier backwards have left is to be added.": mean,
                "What earlier backwards have left was divided by n with the rest: set it aside, or it is averaged again.": (
                    earlier + sum(own)
                )
                / len(own),
                "What earlier backwards have left counts n times.": earlier * len(own) + mean,
                "Added to what was there are sums, not means.": earlier + sum(own),
            }
        close(got, earlier + mean, which, looks, rule)

    def _memory(self, r, peaks, mine, largest):
        for gradients, more, left in peaks:
            if gradients > mine + 2 * largest:
                raise Costly(
                    f"the gradients are right, but during backward rank {r} holds {gradients:,} bytes of them; "
                    f"its own have {mine:,}, one on its way {largest:,}. Send each in a hook, as soon as it "
                    "is there, and drop it then, not when backward has ended."
                )
            if more > mine + 6 * largest:
                raise Costly(
                    f"the gradients are right, but during backward rank {r} holds {more:,} bytes more than "
                    f"before; its own gradients have {mine:,}. Are copies kept of what was sent?"
                )
            if left > mine + largest // 4 + 500:
                raise Costly(
                    f"the gradients are right, but after backward rank {r} holds {left:,} bytes more than before; its "
                    f"own gradients have {mine:,}. Are copies kept of what was sent?"
                )


# ------------------------------------------------------------
# Stage 3: a layer whose weight is in shards, gathered, used and freed, twice.
#
# Looked at: outputs and gradients, live bytes between forward and backward and at the peak, bytes sent.


DX = "It is dy · W, of this rank's own dy, with the whole weight, and is not averaged."
SHARD = "It should be this rank's part of the mean of dyᵀ·x over the ranks, in the order of the weight's own numbers."


class ShardedLinear(Exam):
    """`sharded_linear(shards, replicas, x, shard, shape)`: x·Wᵀ, of a weight that is gathered in forward and in backward
    among the ranks of a group, and whose gradient is averaged over the groups, too.
    """

    name = "sharded_linear"
    right = (
        "1 to 6 ranks, 1 to 5 shards, 1 to 6 layers, uneven and empty shards: outputs, gradients of inputs and shards, no "
        "weight kept, 3(s−1)Ψ numbers sent in a group and 2(r−1)Ψ between groups; then 4 real processes."
    )
    forbidden = FORBIDDEN
    cases = ranked(
        lambda n, s, layers, small: (
            f"{n // s} replica{'s' * (n > s)} × {s} shard{'s' * (s > 1)}, {layers} "
            f"{'wide ' * (small is None)}layer{'s' * (layers > 1)}"
            f"{' of 3 weights' * bool(small)}{', a nan' * (n == 1)}{', float32' * (n == 4)}"
        ),
        (
            (3, 3, 1, False),
            (6, 3, 2, False),
            (1, 1, 2, False),
            (4, 2, 6, False),
            (5, 5, 1, True),
            (2, 1, 2, False),
            (2, 2, 4, None),
        ),
    )
    processes = (Case(4, "4 real processes, 2 replicas × 2 shards, 2 layers", (2, 2, False)),)

    def draw(self, case, rng):
        s, layers, small = case.given
        widths = [3, 1] if small else integers(rng, 30, 40, layers + 1)
        widths = [3 * width for width in widths] if small is None else widths
        draw = partial(normal, rng, dtype=torch.float32 if case.n == 4 else torch.float64)
        weights = [draw(b, a) / 5 for a, b in pairwise(widths)]
        rows = [1 + (r + 1) % 2 for r in range(case.n)]
        xs, dys = ([draw(count, width) for count in rows] for width in (widths[0], widths[-1]))
        if case.n == 1:
            xs[0][0, 0] = math.nan
        return [
            (
                [cut(w, s)[r % s] for w in weights],
                [tuple(w.shape) for w in weights],
                xs[r],
                dys[r],
                s,
                small is None,
            )
            for r in range(case.n)
        ]

    def world(self, n, args):
        return world_of(n)

    def run(self, comm, yours, shards, shapes, x, dy, s, wide):
        ranks = range(comm.size)
        group = comm.split([r // s for r in ranks])  # of lists, which send nothing
        replicas = comm.split([r % s for r in ranks])
        shards, x = [s.clone().requires_grad_() for s in shards], x.clone().requires_grad_()
        for shard in shards:
            shard.grad = torch.ones_like(shard)  # what another backward left: gradients add up
        dy, unseen = dy.clone(), Unseen(wide)
        held = now()
        start = changes()
        y = x
        for shard, shape in zip(shards, shapes, strict=True):
            y = yours(group, replicas, y, shard, torch.Size(shape))
            if not isinstance(y, Tensor):
                return {"y": y}
        kept, peak = now(), most(None, start)
        more = unseen.more()
        if not y.requires_grad:
            return {"y": y, "cut": True}
        y.backward(dy)
        base = sum(held.values())
        after = sum(now().values())
        return {
            "y": y.detach(),
            "dx": x.grad,
            "dy": dy,
            "grads": [s.grad for s in shards],
            "kept": sum(kept.values()) - base,
            "after": after - base,
            "unseen": max(more, unseen.more()),
            "peak": max(peak, most(None, start)) - base,
            "metered": bool(held),
            "open": left_open(comm) + left_open(group) + left_open(replicas),
        }

    def judge(self, case, args, outcome):
        shapes = args[0][1]
        s = case.given[0]
        replicas = case.n // s
        weights = [
            torch.cat([a[0][i] for a in args[:s]]).reshape(shape) for i, shape in enumerate(shapes)
        ]
        runs = [serial(weights, a[2], a[3]) for a in args]
        for r, got in enumerate(outcome.results):
            y, dx, _ = runs[r]
            close(got["y"], y, f"rank {r}: the output", *self._output(weights, args[r]))
            if "cut" in got:
                raise Wrong(
                    f"rank {r}: the output is right, but has no graph: no gradient can come back through it."
                )
            close(got["dx"], dx, f"rank {r}: the gradient of x", None, DX)
            if not got["dy"].equal(args[r][3]):
                raise Wrong(
                    f"rank {r}: the gradient that came into backward was changed. Others read it, too (the "
                    "other branch of x + f(x), for one): divide what is yours."
                )
            for i in range(len(shapes)):
                self._shard(r, i, got["grads"][i], [run[2][i] for run in runs], s)
        for r, got in enumerate(outcome.results):
            if got["metered"] and s > 1 and not case.given[2]:
                self._memory(r, got, args[r], weights)
        psi = sum(w.nbytes for w in weights)
        for got in outcome.results:
            apart(got["unseen"], psi, "after forward, or backward, ")
        inside, between = 3 * replicas * (s - 1) * psi, 2 * (replicas - 1) * psi
        if replicas > 1:
            crossing = sum(size for src, dst, size in outcome.sent if src // s != dst // s)
            if crossing > between * 1.02 + 64:
                raise Wrong(
                    f"the numbers are right, but {crossing:,} bytes travel between the groups, and 2(r−1)Ψ numbers = "
                    f"{between:,} are enough: after the reduce-scatter a rank has a shard, and only that need be averaged "
                    "over the replicas."
                )
        hint = (
            "Within a group a gather in forward, a gather in backward, a reduce-scatter of the gradient (an all-reduce sends "
            "twice as much); then an all-reduce of the shard among its replicas."
        )
        sent(outcome, inside + between, inside + between, "3r(s−1)Ψ + 2(r−1)Ψ numbers", hint)

    def _output(self, weights, given):
        x, first = given[2], weights[0]
        square = len(weights) == 1 and first.shape[0] == first.shape[1]
        looks = {"It is x·W: as in nn.Linear it should be x·Wᵀ.": x @ first} if square else {}
        return looks, "It should be x·Wᵀ, of the shards of all ranks put together in rank order."

    def _shard(self, r, i, got, own, s):
        part = lambda whole: cut(whole, s)[r % s]
        n, first = len(own), r // s * s
        group, replicas = own[first : first + s], own[r % s :: s]
        want = part(sum(own) / n)
        alike(got, want, f"rank {r}: the gradient of shard {i}")
        looks = {
            "It is as before, nothing was added. Is it returned by backward?": 0 * want,
            "What shard.grad held before is gone: return the gradient, and autograd adds it.": want
            - 1,
            "It is that of this rank's own rows: average it over the ranks.": part(own[r]),
            "It is the mean within this group of shards: average it over the replicas, too.": part(
                sum(group) / s
            ),
            "It is the mean over the replicas alone: the other ranks of this group have rows, too.": part(
                sum(replicas) / len(replicas)
            ),
            "It is the sum over all ranks: divide by n.": part(sum(own)),
            "It is summed over the replicas, and divided by s alone: divide by n = s·r.": part(
                sum(own) / s
            ),
            "It is summed within the group, and divided by r alone: divide by n = s·r.": part(
                sum(own) / len(replicas)
            ),
        }
        close(
            got - 1,
            want,
            f"rank {r}: what backward added to the gradient of shard {i}",
            looks,
            SHARD,
        )

    def _memory(self, r, got, given, weights):
        rows = sum(2 * 8 * w.shape[0] for w in weights)
        largest = max(w.nbytes for w in weights)
        said = f"the numbers are right, but rank {r} holds"
        if got["kept"] > 3 * rows + largest // 4:
            raise Wrong(
                f"{said} {got['kept']:,} bytes more when forward has ended, and its outputs have {rows:,}: "
                "whole weights are kept for backward. Save the shard, and gather again."
            )
        if got["after"] > 3 * rows + largest // 4:
            raise Wrong(
                f"{said} {got['after']:,} bytes more when backward has ended: nothing of it is needed any more, neither a "
                "weight nor its gradient."
            )
        most_ = 3 * rows + sum(s.nbytes for s in given[0]) + 5 * largest
        if got["peak"] > most_:
            raise Wrong(
                f"{said} {got['peak']:,} bytes more at the peak, and {most_:,} are plenty: is every layer's "
                "whole weight, or whole gradient, kept after its use?"
            )


# ------------------------------------------------------------
# Numbers foretold: bytes by stage, bytes sent, GPUs, offload.


def predict_zero(
    psi=13 * 10**9, n=16, large=100 * 10**9, card=32 * 10**9, flops=400 * 10**12, speed=25 * 10**9
):
    """13 B parameters on 16 GPUs, fp16 and Adam: bytes on each by stage, bytes that each sends in a step at stages 2
    and 3; how many GPUs of 32 GB hold the states of 100 B parameters at stage 3; and with optimizer states on the
    hosts, at stage 2, bytes on each GPU and bytes over its link in a step; and the tokens from which on gathers hide.
    """
    ring = (n - 1) / n
    values = {
        "stage_1": 4 * psi + 12 * psi / n,
        "stage_2": 2 * psi + 14 * psi / n,
        "stage_3": 16 * psi / n,
        "sent_2": 2 * 2 * psi * ring,
        "sent_3": 3 * 2 * psi * ring,
        "gpus": 16 * large / card,
        "offloaded": 2 * psi + 2 * psi / n,
        "over_link": 4 * psi / n,
        "tokens": flops / speed * ring,
    }
    giga = "In bytes: 1 GB is 1,000,000,000 of them."
    states = "That counts 8 bytes of states. The fp32 copy of the weights is one, too: 12."
    twelve = "That counts 12 bytes for each parameter. There are 16: weight, gradient, and three fp32 numbers."
    slips = {
        "stage_1": {
            16 * psi / n: "That is stage 3.",
            16 * psi: "That is data parallelism.",
            values["stage_2"]: "That is stage 2: stage 1 keeps whole gradients.",
            4 * psi + 8 * psi / n: states,
            12 * psi / n: "And weights and gradients, 4Ψ.",
            2 * psi + 12 * psi / n: "And gradients, 2Ψ.",
            8 * psi + 8 * psi / n: "Those are fp32 weights.",
        },
        "stage_2": {
            values["stage_1"]: "That is stage 1.",
            values["stage_3"]: "That is stage 3.",
            2 * psi + 12 * psi / n: "And the shard of gradients, 2Ψ/n.",
            2 * psi + 10 * psi / n: states,
        },
        "stage_3": {
            16 * psi: "That is data parallelism.",
            12 * psi / n: states,
            values["stage_2"]: "That is stage 2.",
            14 * psi / n: "And the weights' shard.",
        },
        "sent_2": {
            2 * psi * ring: "Those are numbers: fp16 has two bytes. Or is it half of the step?",
            4 * psi: "Nearly: times (n−1)/n.",
            values["sent_3"]: "That is stage 3.",
            4 * psi * (n - 1): "That is what all ranks send together.",
            8 * psi * ring: "Those are fp32 numbers.",
        },
        "sent_3": {
            values["sent_2"]: "That is stages 1 and 2: parameters are gathered twice.",
            3 * psi * ring: "Those are numbers: how many bytes has one?",
            6 * psi: "Nearly: times (n−1)/n.",
            8
            * psi
            * ring: "Gathered in forward and in backward, and gradients are reduced once: 3Ψ.",
            6 * psi * (n - 1): "That is what all ranks send together.",
        },
        "gpus": {
            2 * large / card: "Gradients and states need room, too.",
            4 * large / card: "Optimizer states need room, too.",
            math.ceil(4 * large / card): "Optimizer states need room, too.",
            12 * large / card: twelve,
            math.ceil(12 * large / card): twelve,
        },
    }
    slips |= _offload_slips(psi, n)
    slips["tokens"] = {
        flops / speed: "Nearly: a rank has its own part already, so times (n−1)/n.",
        flops
        / speed
        * ring
        / 2: "A number has 2 bytes, and a token takes 2 operations with it: they cancel.",
        flops
        / speed
        * ring
        * 2: "A number has 2 bytes, and a token takes 2 operations with it: they cancel.",
        flops / speed * ring / n: "Each GPU needs so many of its own: that is spread over all.",
        flops / speed * ring * n: "On each GPU, not on all together.",
        flops
        / speed
        * 1.5
        * ring: "Forward and backward each hide their own: 2P bytes behind 2PT operations.",
        flops
        / speed
        * 3
        * ring: "Forward hides one gather; backward two, behind twice the operations.",
    }
    for name in values:
        if name == "tokens":
            continue
        slips[name][values[name] / 1e9] = giga if name != "gpus" else "How many GPUs?"
    return values, slips


def _offload_slips(psi, n):
    return {
        "offloaded": {
            2 * psi
            + 14 * psi / n: "That is stage 2 without offload: the states, 12Ψ/n, lie on the hosts.",
            4 * psi: "At stage 2 a GPU keeps the gradients that it owns, 2Ψ/n.",
            2 * psi: "And the gradients that it owns, 2Ψ/n.",
            16 * psi / n: "That is stage 3.",
            2 * psi + 6 * psi / n: "The fp32 copies are the host's, too.",
            4 * psi / n: "The weights are whole on every GPU at stage 2: 2Ψ.",
            12 * psi / n: "That is what a host keeps for each GPU.",
        },
        "over_link": {
            4 * psi: "That is without shards: each host steps its own part alone.",
            2 * psi / n: "That is one way: gradients go down, new weights come up.",
            2 * psi
            + 2 * psi / n: "Only what it owns comes up: the rest comes from the other GPUs.",
            8 * psi / n: "fp16 travels: the host widens, and narrows.",
            6 * psi / n: "fp16 travels, both ways: the host widens, and narrows.",
            12 * psi / n: "The states stay on the host: gradients go down, new weights come up.",
            24 * psi / n: "The states stay on the host: gradients go down, new weights come up.",
        },
    }


PREDICTED = Prediction(
    predict_zero,
    "Bytes by stage, bytes sent, GPUs, offload, within 1 %.",
    {
        "psi": ("{:,} parameters on your GPUs", (7 * 10**9, 20 * 10**9, 30 * 10**9)),
        "n": ("{} GPUs", (8, 32, 64)),
        "large": ("{:,} parameters at stage 3", (60 * 10**9, 150 * 10**9, 200 * 10**9)),
    },
)


# ------------------------------------------------------------
# A bug to find: clipping by the norm of all gradients, of which each rank holds some.
#
# Looked at: the norm that is returned, the gradients, the same factor on all ranks, bytes sent.


class Clip(Exam):
    """`clip(comm, grads, limit)`: scales all ranks' gradients to a norm of at most `limit`; returns what it was."""

    name = "clip"
    right = "n = 1…5, norms above and below the limit, and 0, a rank without gradients: one norm; 3 processes."
    promises = {"cost": 0.25}
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {words}", (count, factor))
        for n, words, count, factor in (
            (3, "a norm above the limit", 3, 0.5),
            (3, "a norm below the limit", 2, 2.0),
            (1, "one rank", 2, 0.3),
            (4, "a norm that is below the limit on each rank alone", 2, 0.75),
            (2, "a rank without gradients", 0, 0.5),
            (5, "5 ranks", 4, 0.1),
            (2, "all gradients are zero", 2, 0.0),
            (3, "a nan on one rank", 2, 0.5),
        )
    )
    processes = (Case(3, "3 real processes", (2, 0.5)),)

    def draw(self, case, rng):
        count, factor = case.given
        draw = lambda i: normal(rng, integer(rng, 3, 9), 1 + i % 2) * bool(factor)
        drawn = [[draw(i).squeeze(1) for i in range(count or r)] for r in range(case.n)]
        if case.n > 2 and oracle.order_hidden(drawn):
            return self.draw(case, rng)
        limit = factor * oracle.norm(g for some in drawn for g in some) or 1.0
        if "nan" in case.what:
            drawn[1][0].view(-1)[0] = math.nan
        return [(some, limit) for some in drawn]

    def run(self, comm, yours, grads, limit):
        mine = [g.clone() for g in grads]
        # the optimizer's memory: `g.data = …` leaves it as it was
        aliases = [g.detach() for g in mine]
        found = yours(comm, mine, limit)
        return {
            "norm": bare(found),
            "grads": dict(enumerate(aliases)),
            "open": left_open(comm),
        }

    def judge(self, case, args, outcome):
        limit = args[0][1]
        want = oracle.norm(g for some, _ in args for g in some)
        each = [oracle.norm(some) for some, _ in args]
        own = [dict(enumerate(some)) for some, _ in args]
        rule = "It is the root of the sum of all squares, of all ranks."

        def told(r, i):
            mine = min(1.0, limit / (each[r] + 1e-6))
            return f"grads[{i}]", {
                1.0: "Nothing was scaled: write in place, g.mul_(…).",
                mine: "That is the factor of this rank's own norm.",
            }

        looks = lambda r: self._looks(r, want, each, limit)
        clipped(outcome, own, limit, want, "rank {}: ".format, looks, rule, told)
        r = 1 % case.n  # where a nan is drawn
        for i, g in own[r].items():
            after = outcome.results[r]["grads"].get(i)
            alike(after, g, f"rank {r}: grads[{i}]")
            if after[g.isnan()].isfinite().any():
                raise Wrong(
                    f"rank {r}: a nan in grads[{i}] is hidden, which hides the worst mistakes."
                )

    def cost(self, case, args, outcome):
        hint = "one number of 8 bytes from each rank to each other."
        few_in_all(outcome, max(2, case.n) * (case.n - 1) * 8, hint)

    def _looks(self, r, want, each, limit):
        return {
            "It is the norm of this rank's gradients alone: each rank would scale by another factor.": each[
                r
            ],
            "It is the sum of the ranks' norms. Squares add up, norms do not.": sum(each),
            "It is the square: the root is missing.": want**2,
            "It is divided by √n: squares add up, and are not averaged.": want / len(each) ** 0.5,
            "It is the norm after clipping: return what it was before.": min(want, limit),
        }
