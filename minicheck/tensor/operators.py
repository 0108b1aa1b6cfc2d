"""The exercises of lesson 11 about f and g, the two conjugate operators."""

from __future__ import annotations

from ..compare import who
from ..exam import Case, ask
from . import oracle
from .through import HOOKED, OTHER, Through, Want, first, through, ways

RANKS = (2, 3, 1, 4)


class Operator(Through):
    processes = (Case(3, "3 real processes, forward and backward", (True,)),)
    cases = ways(RANKS)

    def run(self, comm, yours, inputs, dy):
        return through(lambda x: yours(x, comm), inputs, dy, beside=True)

    def drawn(self, case, rng):
        """n + 1 tensors of 1 to 4 dimensions, by n and way."""
        shape = [oracle.between(rng, 2, 5) for _ in range(1 + (case.n + case.given[-1]) % 4)]
        return [oracle.whole(rng, *shape, short=case.n == 4) for _ in range(case.n + 1)]


class CopyTo(Operator):
    name = "copy_to"
    right = "n = 1…4, any shape: nothing forward, the sum of all gradients backward, one all-reduce; 3 real processes."

    def draw(self, case, rng):
        x, *dys = self.drawn(case, rng)
        return [([x], dy if case.given[-1] else None) for dy in dys]

    def wants(self, case, args):
        total = sum(dy for _, dy in args) if case.given[-1] else None
        return [Want(x, {"x": total}) for (x,), _ in args]

    def looks(self, case, args, rank, name, got):
        n, x = case.n, args[rank][0][0]
        if name == "y":
            return first(
                got,
                {
                    f"It is {n}·x: x is whole on every rank already, forward adds up nothing.": n
                    * x,
                    f"It is x/{n}: forward hands x on as it is.": x / n,
                },
                "Forward hands x on as it is.",
            )
        grads = [dy for _, dy in args]
        if got.equal(sum(grads) + (n - 1) * OTHER):
            return HOOKED
        return who(got, grads, rank) or "Backward is the all-reduce of the gradients that come in."

    def budget(self, case, args, rank):
        what = "nothing forward, one all-reduce of x's size and dtype backward"
        return 0, oracle.all_reduce_bytes(args[0][0][0], case.n), what


class ReduceFrom(Operator):
    name = "reduce_from"
    right = "n = 1…4, any shape: one all-reduce forward, nothing backward; then 3 real processes."

    def draw(self, case, rng):
        dy, *xs = self.drawn(case, rng)
        return [([x], dy if case.given[-1] else None) for x in xs]

    def wants(self, case, args):
        return [Want(sum(x for (x,), _ in args), {"x": args[0][1]})] * case.n

    def looks(self, case, args, rank, name, got):
        n, dy = case.n, args[rank][1]
        if name == "y":
            return who(got, [x for (x,), _ in args], rank) or "Forward is the sum of all ranks' x."
        looks = {
            f"It is {n} times what came in. y = x₀ + x₁ + …, so a change of this x changes y once. Every rank has "
            "the gradient of y already: hand it on, do not add it up.": n * dy,
            f"It is 1/{n} of what came in: hand it on as it is.": dy / n,
            "It is zero.": 0 * dy,
        }
        return first(got, looks, "Backward hands the gradient on as it is.")

    def budget(self, case, args, rank):
        return *[
            oracle.all_reduce_bytes(args[0][0][0], case.n)
        ] * 2, "one all-reduce forward, nothing backward"


def copy_to(yours) -> None:
    """`copy_to(x, comm)`: f, identity forward and all-reduce backward."""
    ask(CopyTo(), yours)


def reduce_from(yours) -> None:
    """`reduce_from(x, comm)`: g, all-reduce forward and identity backward."""
    ask(ReduceFrom(), yours)
