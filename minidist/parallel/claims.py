"""Who works on a parameter: each wrapper leaves a claim on its parameters, and whoever comes next finds it there.

A notebook's cell runs again, and `DataParallel(net, comm)` hooks a second time into the parameters that the first one
hooks into: each would average what the other has averaged, 1.5, then 0.75. So:

    p ◀── DataParallel   then DataParallel, the same ranks       replaces it: the older one lets go, and says so if used
                         then DataParallel, other ranks          ValueError
                         then ShardedOptimizer                   ValueError, with what to do instead
                         then OffloadedOptimizer                 goes together: `TOGETHER` lists all that do

Claims lie on the parameters, not in a table of the module: they live as long as these, and a copy of a parameter (by
deepcopy, or in another process) has none. Two Comms of the same ranks are one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from ..comm.base import Comm

# (older, newer): over the same ranks, each does what it does alone.
TOGETHER = {
    ("DataParallel", "OffloadedOptimizer"),
    ("OffloadedOptimizer", "DataParallel"),
    ("FullySharded", "OffloadedOptimizer"),
}
# (older, newer): the newer one is what the older one steps its part with.
INSIDE = {("ShardedOptimizer", "OffloadedOptimizer")}
# (older, newer): the newer one was given the older one to work with.
GIVEN = {("DataParallel", "LocalSGD"), ("OffloadedOptimizer", "LocalSGD")}
# (older, newer): over two groups which have this rank alone in common, such as two axes of a mesh.
CROSSING = {
    ("DataParallel", "LocalSGD"),
    ("LocalSGD", "DataParallel"),
    ("FullySharded", "LocalSGD"),
}

_HYBRID = (
    "for copies of the shards on other ranks there is FullySharded(module, comm, replicas=other)"
)
# What to do instead, whichever came first.
INSTEAD = {
    frozenset({"DataParallel"}): "average over all these ranks at once, by one DataParallel",
    frozenset({"ShardedOptimizer"}): "shard over one group of ranks, by one ShardedOptimizer",
    frozenset({"FullySharded"}): _HYBRID,
    frozenset({"LocalSGD"}): "average over one group of ranks, by one LocalSGD",
    frozenset(
        {"DataParallel", "ShardedOptimizer"}
    ): "the optimizer averages the gradients itself, so leave out the DataParallel",
    frozenset(
        {"DataParallel", "FullySharded"}
    ): f"FullySharded averages the gradients itself, so leave out the DataParallel; {_HYBRID}",
    frozenset(
        {"DataParallel", "OffloadedOptimizer"}
    ): "with in_backward=True gradients leave the device before they can be averaged: take in_backward=False",
    frozenset(
        {"DataParallel", "LocalSGD"}
    ): "LocalSGD averages parameters instead of gradients: leave out the DataParallel, or make it first and hand it "
    "over, LocalSGD(optimizer, comm, H, start, model=DataParallel(module, comm))",
    frozenset(
        {"ShardedOptimizer", "FullySharded"}
    ): "FullySharded shards the optimizer's states, too: give its parameters() to a plain optimizer",
    frozenset(
        {"ShardedOptimizer", "OffloadedOptimizer"}
    ): "to shard what is offloaded, put it inside, with in_backward=False: ShardedOptimizer(params, "
    "partial(OffloadedOptimizer, optimizer_class=…, comm=comm), comm)",
    frozenset(
        {"ShardedOptimizer", "LocalSGD"}
    ): "a ShardedOptimizer averages the gradients of each step, so that no step is local: take one of the two",
    frozenset(
        {"FullySharded", "OffloadedOptimizer"}
    ): "shard first: OffloadedOptimizer(FullySharded(module, comm).parameters(), …)",
    frozenset(
        {"FullySharded", "LocalSGD"}
    ): "LocalSGD averages whole parameters over its ranks, and here each of them has other pieces: take one of the "
    "two, or shard first, and give LocalSGD the ranks that have the same pieces",
    frozenset(
        {"OffloadedOptimizer", "LocalSGD"}
    ): "offload first, and wrap that: LocalSGD(OffloadedOptimizer(params, …), comm, H)",
}


class _Claims(list):
    """The claims on one parameter. They do not travel with a copy of it."""

    def __deepcopy__(self, memo) -> _Claims:
        return _Claims()

    def __reduce__(self):
        return _Claims, ()


class Claim:
    """That of `holder`, a `kind`, over the ranks of `comm` (None: it sends nothing).

    let_go: called when a newer one replaces it, to take its hooks away.  making: set it while the holder makes what it
    steps the parameters with, which may then claim them, too (`INSIDE`).  detail: a word or two for error messages.
    """

    def __init__(
        self,
        holder,
        kind: str,
        comm: Comm | None,
        let_go: Callable[[], None] = lambda: None,
        detail: str = "",
    ):
        self.holder = holder
        self.kind = kind
        self.comm = comm
        self.detail = detail
        self.params: dict[Tensor, None] = {}
        self._masters: list[Tensor] = []
        self._inside: Claim | None = None  # that of the holder which made this one
        self.making = self.replaced = False
        self._let_go = let_go

    def take(self, params: Iterable[Tensor], given: Iterable = ()) -> None:
        """Claim these parameters, also in addition to those before; older claims of the same kind are replaced.

        given: what the holder was handed over to work with (`GIVEN`). Raises ValueError, before anything has changed,
        where somebody else's claim does not go together with this one.
        """
        mine = self.params | dict.fromkeys(params)
        replaced = self.verify(mine, given)
        for claim in claims_of(mine):
            if claim.making and claim is not self:
                self._inside = claim
        for claim in replaced:
            claim.leave()
            claim.replaced = True
            claim._let_go()
        self._write(mine)
        self.params = mine

    def verify(self, mine: Iterable[Tensor], given: Iterable = ()) -> list[Claim]:
        """The claims that this one would replace. Raises ValueError as `take` does, and changes nothing."""
        mine = dict.fromkeys(mine)
        older = [claim for claim in claims_of(mine) if claim is not self]
        replaced = [claim for claim in older if self._replaces(claim, mine)]
        replaced += [claim for claim in older if claim._inside in replaced]
        for claim in older:
            handed = (claim.kind, self.kind) in GIVEN and any(
                holder is claim.holder for holder in given
            )
            if claim not in replaced and not handed and not self._goes_with(claim):
                self._refuse(claim, mine)
        return replaced

    def take_masters(self, masters: Iterable[Tensor]) -> None:
        """Claim the copies that are stepped instead of the parameters."""
        masters = dict.fromkeys(masters)
        for claim in claims_of(masters):
            if claim is not self:
                self._refuse(claim, masters)
        self._write(masters)
        self._masters += masters

    def _write(self, params: Iterable[Tensor]) -> None:
        for p in params:
            found = p.__dict__.setdefault("_claims", _Claims())
            if self not in found:
                found.append(self)

    def leave(self) -> None:
        """Take the claim off its parameters."""
        for p in [*self.params, *self._masters]:
            if self in p.__dict__.get("_claims", ()):
                p.__dict__["_claims"].remove(self)
        self.params, self._masters = {}, []

    def __reduce__(self):
        raise TypeError(
            f"a {self.kind} belongs to its parameters and ranks, and cannot be copied: copy the module "
            "before it is wrapped, or the module inside, and wrap the copy"
        )

    def check(self) -> None:
        """RuntimeError if a newer one has come."""
        if self.replaced:
            raise RuntimeError(
                f"this {self.kind} was replaced by a newer one over the same parameters, and has let go "
                "of them: use the newer one"
            )

    def _replaces(self, older: Claim, mine: dict[Tensor, None]) -> bool:
        return (
            older.kind == self.kind
            and same_group(older.comm, self.comm)
            and older.params.keys() <= mine.keys()
        )

    def _goes_with(self, older: Claim) -> bool:
        pair = older.kind, self.kind
        if pair in TOGETHER:
            return not (older.detail or self.detail) or "FullySharded" in pair
        if pair in INSIDE:
            return older.making and not self.detail
        return pair in CROSSING and crossing(older.comm, self.comm)

    def _refuse(self, older: Claim, mine: dict[Tensor, None]) -> None:
        common = len(older.params.keys() & mine.keys())
        if older.kind == self.kind and same_group(older.comm, self.comm):
            raise ValueError(
                f"{common} of the {len(older.params)} parameters of {older._named()} were given to a "
                "newer one over the same ranks, which would replace only a part of it: make one "
                f"{self.kind} of all of them"
            )
        raise ValueError(
            f"{common} of these {len(mine)} parameters are those of {older._named()} already, and cannot "
            f"be those of {self._named()}, too: {INSTEAD[frozenset({older.kind, self.kind})]} "
            "(a copy.deepcopy of a module is nobody's)"
        )

    def _named(self) -> str:
        article = "an" if self.kind[0] in "AEIOU" else "a"
        ranks = "" if self.comm is None else f" over {self.comm.size} ranks"
        which = members(self.comm)
        return (
            f"{article} {self.kind}{self.detail}{ranks}{'' if which is None else f' {list(which)}'}"
        )


def claims_of(params: Iterable[Tensor]) -> list[Claim]:
    """All claims on these parameters, each once, in the order in which they were made."""
    return list(dict.fromkeys(claim for p in params for claim in p.__dict__.get("_claims", ())))


def members(comm: Comm | None) -> tuple[int, ...] | None:
    """The ranks of `comm` as the whole run numbers them; None where it does not say."""
    return getattr(comm, "members", None)


def same_group(a: Comm | None, b: Comm | None) -> bool:
    """Whether two Comms are of the same ranks. Those that do not say of which are the same only if they are one."""
    return a is b or (members(a) is not None and members(a) == members(b))


def crossing(a: Comm, b: Comm) -> bool:
    """Whether two Comms have this rank in common and no other."""
    if members(a) is None or members(b) is None:
        return False
    return len(set(members(a)) & set(members(b))) == 1
