"""The exercises of lesson 05 about overlap: hooks that start buckets beside backward, also with micro-batches.

Numbers are held against the mean of all ranks' own gradients; time against a reference on the same clock.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.collectives import all_reduce_
from minidist.comm.base import Comm

from ..compare import UNKNOWN, alike
from ..data_parallel.averages import near
from ..data_parallel.replicas import one_of
from ..exam import Case, Exam, Outcome, ask
from ..wrong import Wrong
from .oracle import accumulated, buckets_hooked
from .work import FORBIDDEN, Network, clock, looks_of, network, reversed_cut, timed

# kind: branches, depth of each, buckets, whether the branches are of one size
KINDS = {
    "chain": (1, 6, 3, False),
    "long": (1, 9, 5, False),
    "orders": (3, 2, 3, True),
    "routed": (2, 3, 3, False),
    "unused": (3, 2, 4, False),
}
WORDS = {
    "chain": "6 layers, 3 buckets",
    "long": "9 layers, 5 buckets",
    "orders": "ranks whose hooks fire in different orders",
    "routed": "a branch that only one rank uses",
    "unused": "a branch that no rank uses",
}
RACE = (
    "It is no mean of the ranks' gradients of this parameter. Did a bucket start before all its gradients were in "
    "p.grad, or did something write to it while it was sent?"
)
SLACK = 0.1  # of the time that overlap saves


def drawn(
    kind: str, n: int, rng: torch.Generator
) -> tuple[Network, list[list[int]], list[list[int]]]:
    """A network, its buckets, and each rank's order of its branches."""
    branches, depth, cuts, same = KINDS[kind]
    model = network(branches, depth, rng, same)
    buckets = reversed_cut(branches * depth, cuts, rng)
    orders = [list(range(branches)) for _ in range(n)]
    if kind == "orders":
        buckets = [
            [k * depth + i for i in reversed(range(depth))] for k in reversed(range(branches))
        ]
        orders = [torch.randperm(branches, generator=rng).tolist() for _ in range(n)]
        orders[-1] = orders[0][::-1]
    if kind == "routed":
        user = one_of(n, rng)
        orders = [[0, 1] if r == user else [0] for r in range(n)]
    if kind in ("routed", "unused"):  # no clock is looked at: buckets of any positions
        anew = torch.randperm(branches * depth, generator=rng).tolist()
        buckets = [[anew[i] for i in bucket] for bucket in buckets]
    if kind == "unused":
        orders = [[0, 2]] * n
    return model, buckets, orders


def means(found: list, own: list[list[Tensor]], said) -> None:
    """Raise Wrong unless every rank has the mean of all ranks' own gradients. said: wrong gradient → words."""
    n = len(own)
    for r in reversed(range(n)):
        for i, first in enumerate(own[0]):
            mine = [grads[i] for grads in own]
            got, want = found[r][i], sum(mine) / n
            if got is None and not want.any():
                continue
            if got is None:
                raise Wrong(
                    f"rank {r}: params[{i}].grad is None. No sample of this rank reaches it, but others' do: "
                    "it counts as zeros here, and gets the mean."
                )
            alike(r, got, first, f"params[{i}].grad")
            if not near(got, want):
                text = looks_of(got, r, mine).replace(UNKNOWN, RACE)
                raise Wrong(f"rank {r}: params[{i}].grad is wrong. {said(r, i, got) or text}")
            if isinstance(found[0][i], Tensor) and not got.equal(found[0][i]):
                raise Wrong(
                    f"params[{i}].grad is right but for rounding, which differs on rank 0 and rank {r}."
                )


def in_time(
    exam: Exam, case: Case, args: list[tuple], outcome: Outcome, beside, after, said: str
) -> None:
    """Raise Wrong if a case takes longer than with overlap. beside, after: answers that do and do not overlap."""
    kind = case.given if isinstance(case.given, str) else case.given[0]
    if outcome.time is None or case.n == 1 or kind not in ("chain", "long"):
        return
    best = clock(exam, args, case.n, beside)
    if outcome.time < 0.98 * best:
        raise Wrong(
            f"the World's clock shows {1e3 * outcome.time:.3g} ms, and {1e3 * best:.3g} ms are the least that "
            "it takes: is the work done elsewhere, or the clock set?"
        )
    if outcome.time <= best + 1e-9:
        return
    late = clock(exam, args, case.n, after)
    if outcome.time <= best + SLACK * (late - best) + 1e-9:
        return
    text = (
        f"the gradients are right, but on the World's clock it takes {1e3 * outcome.time:.3g} ms; "
    )
    if outcome.time < 0.999 * late:
        raise Wrong(
            f"{text}{1e3 * best:.3g} ms are enough, and {1e3 * late:.3g} ms without overlap. Does each bucket "
            "start as soon as it is complete, and all before it?"
        )
    raise Wrong(f"{text}beside backward {1e3 * best:.3g} ms are enough. {said}")


def counted(outcome: Outcome, n: int, all_reduces: int, extra: int = 0) -> None:
    """Raise Wrong for more messages than so many ring all-reduces and `extra`."""
    most = 2 * (n - 1) * (all_reduces + extra)
    for r in range(n):
        if outcome.messages(r) > most:
            raise Wrong(
                f"the gradients are right, but rank {r} sends {outcome.messages(r) - 2 * (n - 1) * extra} "
                f"messages, and {all_reduces} all-reduces, one for each bucket and step, are "
                f"{2 * (n - 1) * all_reduces}. Is something sent twice, or each gradient alone?"
            )


class Overlapped(Exam):
    name = "overlapped"
    right = (
        "n = 1…5, 5 networks, two steps: the means, buckets in one order though hooks fire in another, on the "
        "clock as fast as can be; then 2 and 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {WORDS[kind]}", kind)
        for n, kinds in {
            3: ("chain", "orders", "routed", "unused"),
            2: ("orders",),
            4: ("long",),
            1: ("chain",),
            5: ("orders",),
        }.items()
        for kind in kinds
    )
    processes = (
        Case(3, "3 real processes, a branch that only one rank uses", "routed"),
        Case(2, "2 real processes, 6 layers", "chain"),
    )

    def draw(self, case, rng):
        model, buckets, orders = drawn(case.given, case.n, rng)
        return [
            (
                *model,
                buckets,
                order,
                [torch.randn(8, 16, generator=rng, dtype=torch.float64) for _ in range(2)],
            )
            for order in orders
        ]

    def world(self, n, args):
        return timed(n)

    def run(self, comm: Comm, yours, values, depth, buckets, order, xs):
        model, found = Network(values, depth), []
        params = model.params()
        finish = yours(comm, params, buckets)
        if not callable(finish):
            return {"finish": "None" if finish is None else type(finish).__name__}
        for x in xs:
            for p in params:
                p.grad = None
            model.loss(params, x, order).backward()
            finish()
            found.append([p.grad if p.grad is None else p.grad.clone() for p in params])
        return {
            "found": found,
            "kept": all(p.equal(v) for p, v in zip(params, values, strict=True)),
        }

    def judge(self, case, args, outcome):
        for r, got in enumerate(outcome.results):
            if "finish" in got:
                raise Wrong(
                    f"it returns {got['finish']}, and should return a function: finish(), which waits."
                )
            if not got["kept"]:
                raise Wrong(
                    f"rank {r}: the parameters themselves were changed. It is p.grad that is averaged."
                )
        model = Network(*args[0][:2])
        for step in range(2):
            own = [model.gradient([xs[step]], order) for *_, order, xs in args]
            found = [got["found"][step] for got in outcome.results]
            means(
                found,
                own,
                lambda r, i, got, step=step, own=own: self._said(
                    case, args, step, r, got, own[r][i]
                ),
            )
        counted(outcome, case.n, 2 * len(args[0][2]))
        in_time(
            self,
            case,
            args,
            outcome,
            buckets_hooked,
            lambda *a: buckets_hooked(*a, beside=False),
            "Does a hook wait? Or does everything start in finish()? comm.stream starts a bucket and returns at "
            "once; wait in finish().",
        )

    def _said(
        self, case: Case, args: list[tuple], step: int, rank: int, got: Tensor, own: Tensor
    ) -> str | None:
        if near(got, own):
            which = (
                "Nothing was averaged: do the hooks start anything, and does finish() wait for it?"
            )
            if step:
                which = (
                    "Step 2: in the first it was averaged. Is all set back in finish(): what is missing, what was "
                    "started?"
                )
            return f"It is rank {rank}'s own, as after its backward. {which}"
        if case.given == "orders":
            orders = [a[3][::-1] for a in args]
            return (
                f"The ranks' hooks fire in different orders here: backward reaches the branches in the orders "
                f"{orders}. Bucket k must be the k-th to start on every rank, or one rank's bucket is added to "
                "another's."
            )
        return None


class AccumulateOverlapped(Exam):
    name = "accumulate_overlapped"
    right = (
        "n = 1…4, 1 to 3 micro-batches, two steps: the means, one average's messages, beside the last backward; "
        "then 2 and 3 real processes."
    )
    forbidden = FORBIDDEN
    cases = tuple(
        Case(n, f"n = {n}, {k} micro-batch{'es' * (k > 1)}, {WORDS[kind]}", (kind, k))
        for n, k, kind in (
            (3, 2, "chain"),
            (3, 1, "chain"),
            (4, 3, "long"),
            (1, 2, "chain"),
            (3, 2, "orders"),
        )
    )
    processes = (
        Case(3, "3 real processes, 2 micro-batches", ("chain", 2)),
        Case(2, "2 real processes, 3 micro-batches", ("chain", 3)),
    )

    def draw(self, case, rng):
        kind, k = case.given
        model, buckets, orders = drawn(kind, case.n, rng)
        return [
            (
                *model,
                buckets,
                order,
                [
                    [torch.randn(8, 16, generator=rng, dtype=torch.float64) for _ in range(k)]
                    for _ in range(2)
                ],
            )
            for order in orders
        ]

    def world(self, n, args):
        return timed(n)

    def run(self, comm: Comm, yours, values, depth, buckets, order, steps):
        model = Network(values, depth)
        found = []
        called = []
        params = model.params()

        def micro(x: Tensor) -> None:
            called.append(1)
            loss = model.loss(params, x, order)
            loss.backward()
            all_reduce_(comm, loss.detach().clone())  # for a log; and messages under way get time

        for xs in steps:
            for p in params:
                p.grad = None
            yours(comm, params, [lambda x=x: micro(x) for x in xs], buckets)
            found.append([p.grad if p.grad is None else p.grad.clone() for p in params])
        return {
            "found": found,
            "called": len(called),
            "hooks": sum(
                len(p._post_accumulate_grad_hooks or ()) + len(p._backward_hooks or ())
                for p in params
            ),
        }

    def judge(self, case, args, outcome):
        model = Network(*args[0][:2])
        n = case.n
        k = case.given[1]
        for r, got in enumerate(outcome.results):
            if got["called"] != 2 * k:
                raise Wrong(
                    f"rank {r}: in two steps {2 * k} backwards were given, and {got['called']} were called."
                )
        for step in range(2):
            micro = [[model.gradient([x], order) for x in steps[step]] for *_, order, steps in args]
            own = [[sum(g) for g in zip(*mine, strict=True)] for mine in micro]
            found = [got["found"][step] for got in outcome.results]
            means(
                found,
                own,
                lambda r, i, got, all_=micro: self._said(
                    [[m[i] for m in mine] for mine in all_], r, got
                ),
            )
        counted(outcome, n, 2 * len(args[0][2]), extra=2 * k)
        if any(got["hooks"] for got in outcome.results):
            raise Wrong(
                "the gradients are right, but hooks are left on the parameters: the next step, which registers "
                "its own, would have them twice."
            )
        in_time(
            self,
            case,
            args,
            outcome,
            accumulated,
            lambda *a: accumulated(*a, beside=False),
            "Is the average taken beside the last backward, or after it?",
        )

    def _said(self, micro: list[list[Tensor]], rank: int, got: Tensor) -> str | None:
        n, k = len(micro), len(micro[0])
        for j in range(1, k):
            early, rest = sum(sum(mine[:j]) for mine in micro) / n, sum(micro[rank][j:])
            if near(got, early + rest):
                return (
                    f"The first {j} of {k} micro-batches are averaged, and what was accumulated after that is this "
                    "rank's own: the hooks fired too early."
                )
        if near(got, sum(mine[-1] for mine in micro) / n) and k > 1:
            return "It is the mean of the last micro-batch alone: the others were cleared, or not added."
        words = looks_of(got, rank, [sum(mine) for mine in micro])
        if words == UNKNOWN and k > 1:
            return (
                "Part of it is averaged, and part is not: a bucket must not be sent while a later backward still "
                "adds to it."
            )
        return words


def overlapped(yours) -> None:
    """`overlapped(comm, params, buckets)`: hooks that start each bucket on a lane; returns `finish`, which waits."""
    ask(Overlapped(), yours)


def accumulate_overlapped(yours) -> None:
    """`accumulate_overlapped(comm, params, backwards, buckets)`: one average, beside the last backward."""
    ask(AccumulateOverlapped(), yours)
