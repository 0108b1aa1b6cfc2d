"""The exercises of lesson 14, Tensor parallel."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..exam import (
    ALL,
    NUMBERS,
    Case,
    Costly,
    Exam,
    Prediction,
    Wrong,
    attempt,
    close,
    few,
    integer,
    kind_of,
    left_open,
    matches,
    normal,
    ranked,
    refusal,
    ring_bytes,
    same,
    unchanged,
    who,
)
from ..oracles import tensor as oracle

# ------------------------------------------------------------
# An answer run forward, and backward if asked: what it gave, and what became of what it was given.
#
# cases come in pairs: forward alone, whose messages are forward's; then both ways


OTHER = 2.0**19  # what the other reader says of each number
HOOKED = (
    "What another reader says of it was added up, too: a hook on a tensor sees all that is said of it, and in "
    "x + f(x) x has two readers. Only the gradient of what f returns is to be summed."
)
WHOLE = (
    "y is the same on every rank, so its gradient is whole already: what is n times too large was added up once more, by an "
    "all-reduce in g's backward, or a second f or g; and a bias that one rank alone adds does not learn on the others."
)
FORBIDDEN = ("minidist.parallel", "minicheck.oracles.tensor")


class Want(NamedTuple):
    """What a rank should find. grads: by the inputs' names, for those that have one."""

    y: Tensor
    grads: dict[str, Tensor]


def through(function, comm, inputs: list[Tensor], dy: Tensor | None, beside: bool = False) -> dict:
    """Plain values: the output, the inputs' gradients if `dy` is given, and all that was handed in, as it is now.

    function(*inputs, comm). On an even number of ranks before it, on an odd one between its forward and its backward, comes
    another call, on a Comm of this rank alone: what is kept of one call may not speak for another.
    beside: the inputs have another reader, as x has in x + f(x); what it says of them is taken off again.
    """
    leaves = [x.clone().requires_grad_() for x in inputs]
    given = [x.view_as(x) for x in leaves] if beside else leaves
    other = [x.clone() for x in given], comm.split(list(range(comm.size)))
    if comm.size % 2 == 0:
        function(*other[0], other[1])
    y = function(*given, comm)
    if comm.size % 2:
        function(*other[0], other[1])
    linked = isinstance(y, Tensor) and y.requires_grad
    found = {
        "y": y.detach() if isinstance(y, Tensor) else y,
        "linked": linked,
        "dy": dy,
        "grads": None,
    }
    if dy is not None and linked and y.shape == dy.shape:
        found["dy"] = strided(dy)
        others = given if beside else []
        torch.autograd.backward(
            [y, *others], [found["dy"], *[torch.full_like(x, OTHER) for x in others]]
        )
        found["grads"] = [x.grad - OTHER if beside else x.grad for x in leaves]
    return found | {"inputs": [x.detach() for x in leaves], "open": left_open(comm)}


def strided(dy: Tensor) -> Tensor:
    """A copy whose numbers lie in memory as a transposed gradient's do."""
    return dy.mT.contiguous().mT if dy.dim() > 1 else dy.clone()


def with_nan(n: int, x: Tensor) -> Tensor:
    """x, on one rank with a nan in it."""
    if n == 1:
        x.view(-1)[0] = torch.nan
    return x


def dtype_of(case: Case) -> torch.dtype:
    """float64, but for the forward on four ranks: a gradient may be small beside what it was added up from, and all of a
    part of it rounded."""
    return torch.float32 if case.n == 4 and not case.given[-1] else torch.float64


def ways(ns: tuple[int, ...], *given) -> tuple[Case, ...]:
    """For each n: forward alone, then both ways. Case.given: (*given, whether backward)."""
    return tuple(
        Case(n, f"n = {n}, {'forward and backward' if both else 'forward'}", (*given, both))
        for n in ns
        for both in (False, True)
    )


class Through(Exam):
    """An exercise whose answer is a function of tensors and a Comm. names: of its inputs, in order.  rules: said of an
    output ("y") and of gradients ("d", or by name) that are no usual mistake's.

    Each rank's arguments are (inputs, dy, …), dy None for forward alone.
    """

    forbidden = FORBIDDEN
    names: tuple[str, ...] = ("x",)
    # halves of an all-reduce, of n − 1 messages each: forward, and in all
    halves: tuple[int, int]
    beside = False  # whether the inputs have another reader
    rules: dict[str, str]
    processes = (Case(3, "3 real processes, forward and backward", (True,)),)

    def run(self, comm, yours, inputs, dy):
        return through(yours, comm, inputs, dy, self.beside)

    def wants(self, case, args):
        """What each rank should find."""
        raise NotImplementedError

    def looks(self, case, args, rank, name, got):
        """What a wrong output ("y") or gradient ("dx") looks like: {words: what mistakes give}, or words."""
        return {}

    def budget(self, case, args):
        """Bytes that a rank may send forward, and in all; and what they are for."""
        raise NotImplementedError

    def judge(self, case, args, outcome):
        for r, want in enumerate(self.wants(case, args)):
            got = outcome.results[r]
            self._handed_in(r, got, args[r])
            self._told(case, args, r, "y", got["y"], want.y)
            if not got["linked"]:
                raise Wrong(
                    f"rank {r}: the output is right, but autograd does not know where it comes from, so "
                    "backward stops there. Return what Function.apply gives."
                )
            if args[r][1] is not None:
                for name, grad in zip(self.names, got["grads"], strict=True):
                    if grad is None:
                        raise Wrong(
                            f"rank {r}: after backward {name}.grad is None: autograd does not see that {name} "
                            "was used."
                        )
                    self._told(case, args, r, f"d{name}", grad, want.grads[name])
        self._cheap(case, args, outcome)

    def _handed_in(self, rank, got, args):
        for name, x, before in zip(self.names, got["inputs"], args[0], strict=True):
            unchanged(x, before, f"rank {rank}: {name}")
        if args[1] is not None and not (
            isinstance(got["dy"], Tensor) and matches(got["dy"], args[1])
        ):
            raise Wrong(
                f"rank {rank}: the gradient that came into backward was changed. Others read it, too (the "
                "other branch of x + f(x), for one): all_reduce_ works in place, so clone first."
            )

    def _told(self, case, args, rank, name, got, want):
        shown = "the output" if name == "y" else f"the gradient {name}"
        mistakes = partial(self.looks, case, args, rank, name)
        rule = self.rules.get(name, self.rules["d"])
        close(got, want, f"rank {rank}: {shown}", mistakes, rule)

    def _cheap(self, case, args, outcome):
        forward, both, what = self.budget(case, args)
        messages = [(case.n - 1) * count for count in self.halves]
        if args[0][1] is None:
            few(outcome, forward, f"Forward: {what}.", messages[0])
        else:
            few(outcome, both, f"Forward and backward together: {what}.", messages[1])


# ------------------------------------------------------------
# f and g, the two conjugate operators.


OPERATORS_RANKS = (2, 3, 1, 4)


class Operator(Through):
    cases, beside = ways(OPERATORS_RANKS), True

    def drawn(self, case, rng):
        """n + 1 tensors of 0 to 4 dimensions, by n and way."""
        shape = [integer(rng, 2, 6) for _ in range((case.n + case.given[-1] + 1) % 5)]
        drawn = [oracle.whole(rng, *shape, short=case.n == 4) for _ in range(case.n + 1)]
        return [with_nan(case.n, x) for x in drawn[:2]] + drawn[2:]


def together(yours, x: Tensor, comm) -> Tensor | str:
    """f of one tensor, from an f of a list: its numbers go in as three tensors, and are put together again."""
    first, *others = x.reshape(-1).tensor_split(3)
    given = [first[None], *others]
    found = yours(given, comm)
    shapes = [tuple(t.shape) for t in given]
    if not isinstance(found, list | tuple) or not all(isinstance(t, Tensor) for t in found):
        return f"for a list of tensors it returns {kind_of(found)}, and should return a list of tensors."
    if [tuple(t.shape) for t in found] != shapes:
        return f"for tensors of shapes {shapes} it returns {[tuple(t.shape) for t in found]}."
    return torch.cat([t.reshape(-1) for t in found]).view(x.shape)


class CopyTo(Operator):
    """`copy_to(x, comm)`: f, identity forward and all-reduce backward, of a tensor or a list of them."""

    name, halves = "copy_to", (0, 2)
    cases = (
        *Operator.cases,
        *(
            Case(n, f"n = {n}, a list of 3 tensors, forward and backward", ("list", True))
            for n in (2, 3)
        ),
    )
    rules = {
        "y": "Forward hands x on as it is: it is whole on every rank already.",
        "d": "Backward is the all-reduce of the gradients that come in.",
    }
    right = (
        "n = 1…4, any shape, and lists: nothing forward, the sum of all gradients backward, one all-reduce; 3 real "
        "processes."
    )

    def draw(self, case, rng):
        x, *dys = self.drawn(case, rng)
        return [([x], dy if case.given[-1] else None, len(case.given) > 1) for dy in dys]

    def run(self, comm, yours, inputs, dy, several):
        function = partial(together, yours) if several else yours
        return through(function, comm, inputs, dy, self.beside)

    def judge(self, case, args, outcome):
        for r, got in enumerate(outcome.results):
            if isinstance(got["y"], str) and args[r][2]:
                raise Wrong(f"rank {r}: {got['y']}")
        super().judge(case, args, outcome)

    def wants(self, case, args):
        total = sum(dy for _, dy, _ in args) if case.given[-1] else None
        return [Want(x, {"x": total}) for (x,), *_ in args]

    def looks(self, case, args, rank, name, got):
        if name == "y":
            return {}
        grads = [dy for _, dy, _ in args]
        hooked = got.equal(sum(grads) + (case.n - 1) * OTHER)
        return HOOKED if hooked else who(got, grads, rank)

    def budget(self, case, args):
        what = "nothing forward, one all-reduce of x's size and dtype backward, for all tensors of a list together"
        return 0, ring_bytes([args[0][0][0]], case.n), what


class ReduceFrom(Operator):
    """`reduce_from(x, comm)`: g, all-reduce forward and identity backward, which can be differentiated again."""

    cases = (
        *Operator.cases,
        *(Case(n, f"n = {n}, backward through the backward", ("again", True)) for n in (2, 3)),
    )

    name, halves = "reduce_from", (2, 2)
    rules = {
        "y": "Forward is the sum of all ranks' x.",
        "d": "y = x₀ + x₁ + …, so a change of this x changes y once. Every rank has the gradient of y already: hand it on, do "
        "not add it up.",
    }
    right = (
        "n = 1…4, any shape: one all-reduce forward, nothing backward, and one all-reduce in the backward of backward; then "
        "3 real processes."
    )

    def draw(self, case, rng):
        dy, *xs = self.drawn(case, rng)
        said = [oracle.whole(rng, *dy.shape) if len(case.given) > 1 else None for _ in xs]
        return [([x], dy if case.given[-1] else None, v) for x, v in zip(xs, said, strict=True)]

    def run(self, comm, yours, inputs, dy, said):
        found = through(yours, comm, inputs, dy, self.beside) | {"again": None}
        if said is not None and found["linked"]:
            x, came = inputs[0].clone().requires_grad_(), dy.clone().requires_grad_()
            (dx,) = torch.autograd.grad(yours(x, comm), x, came, create_graph=True)
            if dx.requires_grad:
                (found["again"],) = torch.autograd.grad(dx, came, said)
        return found

    def judge(self, case, args, outcome):
        super().judge(case, args, outcome)
        said = [v for *_, v in args]
        for r, got in enumerate(outcome.results if said[0] is not None else []):
            what = f"rank {r}: backward through the backward: the gradient of what came in"
            if got["again"] is None:
                raise Wrong(
                    f"{what} is None: autograd does not know how your backward made x's gradient."
                )
            rule = "x's gradient is a copy of it on each rank, of which each says something else: the sum of all."
            close(got["again"], sum(said), what, partial(who, parts=said, rank=r), rule)

    def _cheap(self, case, args, outcome):
        if args[0][2] is None:
            return super()._cheap(case, args, outcome)
        what = "One all-reduce in each forward, and one in the backward of backward."
        few(outcome, 3 * ring_bytes([args[0][0][0]], case.n), what, 6 * (case.n - 1))

    def wants(self, case, args):
        return [Want(sum(x for (x,), *_ in args), {"x": args[0][1]})] * case.n

    def looks(self, case, args, rank, name, got):
        return who(got, [x for (x,), *_ in args], rank) if name == "y" else {}

    def budget(self, case, args):
        return *[
            ring_bytes([args[0][0][0]], case.n)
        ] * 2, "one all-reduce forward, nothing backward"


# ------------------------------------------------------------
# Split layers: a linear layer by rows, and an MLP with one all-reduce each way.


LAYERS_RANKS = (2, 3, 4, 1)


class RowLinear(Through):
    """`row_linear(x, weight, bias, comm)`: a linear layer split by its inputs; the bias once."""

    name, halves = "row_linear", (2, 2)
    rules = {
        "y": "Y = X₀A₀ᵀ + X₁A₁ᵀ + … + b.",
        "d": f"With g after the partial product, and the bias after g, autograd does the rest. {WHOLE}",
    }
    right = "n = 1…4, uneven parts, any shape: the serial layer, each gradient, one all-reduce; then 3 real processes."
    names = ("x", "weight", "bias")
    cases = ways(LAYERS_RANKS)

    def draw(self, case, rng):
        inputs, outputs = integer(rng, 2 * case.n, 3 * case.n + 1), integer(rng, 3, 7)
        # 0 to 3 dimensions
        rows = [integer(rng, 2, 4) for _ in range((case.n + case.given[-1]) % 4)]
        shapes = (*rows, inputs), (outputs, inputs), (outputs,), (*rows, outputs)
        x, weight, bias, dy = (normal(rng, s, dtype=dtype_of(case)) for s in shapes)
        with_nan(case.n, x)
        parts = zip(oracle.cut(x, case.n, -1), oracle.cut(weight, case.n, 1))
        return [([a, b, bias], dy if case.given[-1] else None) for a, b in parts]

    def wants(self, case, args):
        inputs = [torch.cat([given[k] for given, _ in args], -1) for k in (0, 1)]
        (_, _, bias), dy = args[0]
        y, (x, weight, bias) = oracle.serial(F.linear, [*inputs, bias], dy)
        cuts = zip(oracle.cut(x, case.n, -1), oracle.cut(weight, case.n, 1))
        return [Want(y, {"x": a, "weight": b, "bias": bias}) for a, b in cuts]

    def looks(self, case, args, rank, name, got):
        (x, weight, bias), want = args[rank][0], self.wants(case, args)[rank]
        if name != "y":
            return {}
        parts = [given[:2] for given, _ in args]
        products = [
            F.linear(*cut_again(case.n, r, (a, -1), (b, 1))) for r, (a, b) in enumerate(parts)
        ]
        return sum_looks(case.n, want.y, F.linear(x, weight), bias) | {
            CUT_AGAIN: sum(products) + bias
        }

    def budget(self, case, args):
        y = self.wants(case, args)[0].y
        return *[ring_bytes([y], case.n)] * 2, "one all-reduce of Y forward, and none backward"


CUT_AGAIN = "It is cut once more: the weight that comes in is this rank's part already."


def cut_again(n: int, rank: int, *parts: tuple[Tensor, int]) -> list[Tensor]:
    """Of each rank's part, along a dimension, the part that it would have if this were the whole."""
    return [x.tensor_split(n, dim)[rank] for x, dim in parts]


def sum_looks(n: int, right, own, bias) -> dict:
    """A wrong output of a layer split by inputs. own: this rank's product, without the bias."""
    return {
        f"The bias is in it {n} times: every rank adds it before the sum. Add it once, after g.": right
        + (n - 1) * bias,
        "The bias is missing.": right - bias,
        "It is this rank's product, without a bias: g is missing.": own,
        "It is this rank's product and the bias: g, the sum over the ranks, is missing.": own
        + bias,
        f"It is the mean of the {n} products: a sum is asked for.": (right - bias) / n + bias,
    }


class Mlp(Through):
    """`mlp(x, fc, fc_bias, proj, proj_bias, comm)`: fc by outputs, proj by inputs, one all-reduce each way."""

    name, halves = "mlp", (2, 4)
    rules = {
        "y": "It is gelu(x·fcᵀ + fc_bias) of this rank's features, times its part of proj, summed over the ranks, plus "
        "proj_bias.",
        "d": f"f before fc, g after proj, and nothing else that talks. {WHOLE}",
    }
    right = (
        "n = 1…4, uneven parts: the serial MLP, gradient by gradient, one all-reduce forward and one backward; "
        "then 3 real processes."
    )
    names = ("x", "fc", "fc_bias", "proj", "proj_bias")
    cases, beside = ways(LAYERS_RANKS), True  # as in x + mlp(x)

    def draw(self, case, rng):
        batch, tokens, hidden = (integer(rng, *size) for size in ((1, 4), (2, 5), (3, 6)))
        draw = lambda *shape: normal(rng, *shape, dtype=dtype_of(case))
        x, dy = with_nan(case.n, draw(batch, tokens, hidden)), draw(batch, tokens, hidden)
        fc, proj = draw(4 * hidden, hidden), draw(hidden, 4 * hidden)
        fc_bias, proj_bias = draw(4 * hidden), draw(hidden)
        parts = zip(
            *(oracle.cut(w, case.n, dim) for w, dim in ((fc, 0), (fc_bias, 0), (proj, 1))),
        )
        return [([x, *part, proj_bias], dy if case.given[-1] else None) for part in parts]

    def wants(self, case, args):
        dims = {1: 0, 2: 0, 3: 1}  # along which fc, fc_bias and proj are cut
        parts = [[given[k] for given, _ in args] for k in range(5)]
        inputs = [torch.cat(parts[k], dims[k]) if k in dims else parts[k][0] for k in range(5)]
        y, grads = oracle.serial(oracle.mlp, inputs, args[0][1])
        cuts = [
            oracle.cut(g, case.n, dims[k]) if k in dims else [g] * case.n
            for k, g in enumerate(grads)
        ]
        return [Want(y, dict(zip(self.names, mine))) for mine in zip(*cuts)]

    def looks(self, case, args, rank, name, got):
        inputs, dy = args[rank]
        n, want = case.n, self.wants(case, args)[rank]
        if name == "y":
            own = oracle.mlp(*inputs[:4], torch.zeros_like(inputs[4]))
            exact = sum(F.linear(F.gelu(F.linear(*given[:3])), given[3]) for given, _ in args)
            gelu = "It has the exact GELU: approximate='tanh' is asked for."
            again = []
            for r, ((x, fc, _, proj, _), _) in enumerate(args):
                fc, proj = cut_again(n, r, (fc, 0), (proj, 1))
                again.append(F.linear(F.gelu(F.linear(x, fc)), proj))
            return sum_looks(n, want.y, own, inputs[4]) | {
                gelu: exact + inputs[4],
                f"{CUT_AGAIN} And the biases are missing.": sum(again),
            }
        if name != "dx":
            return {}
        return {
            "It is this rank's part: each rank's features say something of x, and x's gradient is the sum of "
            "what all say. f belongs before fc.": oracle.serial(oracle.mlp, inputs, dy)[1][0],
            HOOKED: want.grads["x"] + (n - 1) * OTHER,
        }

    def budget(self, case, args):
        one = ring_bytes([args[0][0][0]], case.n)
        return one, 2 * one, "one all-reduce of y forward (g), one of x's gradient backward (f)"


# ------------------------------------------------------------
# Taking a fused qkv weight apart by heads.


class MyHeads(Exam):
    """`my_heads(weight, heads, comm)`: this rank's rows of a weight [Q; K; V]."""

    name = "my_heads"
    right = "n = 1…6, 1 to 4 heads a rank, weights and biases; uneven ones refused; then 3 real processes."
    forbidden = FORBIDDEN
    cases = ranked(
        lambda n, heads, size, bias: f"n = {n}, {heads} heads of size {size}{', a bias' * bias}",
        (
            (2, 4, 2, 0),
            (3, 3, 1, 0),
            (2, 4, 3, 1),
            (3, 6, 4, 0),
            (1, 2, 2, 0),
            (6, 6, 2, 1),
            (4, 16, 1, 0),
            (4, 6, 2, 0),
            (3, 4, 3, 0),
        ),
    )
    processes = (Case(3, "3 real processes, 6 heads of size 2", (6, 2, 0)),)

    def draw(self, case, rng):
        heads, size, bias = case.given
        shape = [3 * heads * size] if bias else [3 * heads * size, heads * size]
        return [(with_nan(case.n, oracle.whole(rng, *shape, short=case.n > 3)), heads)] * case.n

    def run(self, comm, yours, x, heads):
        found = attempt(heads % comm.size, yours, x, heads, comm)
        mine = found.get("value")
        storages = [t.untyped_storage() for t in (mine, x) if isinstance(t, Tensor)]
        shared = len({s.data_ptr() for s in storages}) < 2
        return found | {"x": x, "held": storages[0].nbytes(), "shared": shared}

    def judge(self, case, args, outcome):
        (x, heads), n = args[0], case.n
        for r, got in enumerate(outcome.results):
            if heads % n:
                why = f"{heads} heads cannot be dealt out evenly to {n} ranks"
                refusal(got, [heads, n], f"rank {r}: ", why)
                continue
            unchanged(got["x"], x, f"rank {r}: the weight")
            parts = [self._part(x, heads, n, s) for s in range(n)]
            looks, rule = self._looks(x, heads, n, r), self._rule(heads, n, r)
            same(got["value"], parts[r], f"rank {r}: your part", looks, rule)
            if got["shared"] and n == 1:
                raise Wrong(
                    "rank 0: the rows are right, but they are those of the weight itself: who changes them, "
                    "changes it. Give back a copy, on one rank, too."
                )
            if got["held"] > parts[r].nbytes:
                raise Costly(
                    f"rank {r}: the rows are right, but they are a view: {got['held']} bytes stay in memory "
                    f"for {parts[r].nbytes}. Give back a copy, so that the whole can be freed."
                )
        if outcome.messages():
            raise Costly(
                "the rows are right, but messages are sent: every rank has the whole weight."
            )

    def _part(self, x, heads, n, r):
        each, size = heads // n, len(x) // 3 // heads
        return torch.cat([third[r * each * size : (r + 1) * each * size] for third in x.chunk(3)])

    def _rule(self, heads, n, r):
        each = heads // n
        return f"Rank {r} has of Q, then of K, then of V the rows of heads {r * each} to {(r + 1) * each - 1}, in this order."

    def _looks(self, x, heads, n, r):
        rest, each = x.shape[1:], heads // n
        fused = x.view(3, heads, -1, *rest)
        by_head = fused[:, r * each : (r + 1) * each]
        return {
            f"It is the {r}-th of n equal pieces of all 3H rows: of Q, K and V together, not of each. With three ranks "
            "rank 0 would have all queries, and no key.": x.chunk(n)[r],
            "The rows are right, in another order: first all of Q, then of K, then of V.": by_head.transpose(
                0, 1
            ).reshape(-1, *rest),
            f"It has heads {r}, {r + n}, …: a rank's heads lie together.": fused[:, r::n].reshape(
                -1, *rest
            ),
        }


# ------------------------------------------------------------
# A split sequence: the two halves of an all-reduce as operators, and a norm.


class SequencePair(Through):
    """`gather_sequence(x, comm)` and `reduce_scatter_sequence(x, comm)`, along dim 1."""

    name, halves = "sequence_pair", (1, 2)
    rules = {
        "d": "An all-gather puts all ranks' parts one after the other along dim 1, in rank order; a reduce-scatter gives this "
        "rank's part, along dim 1, of the sum; and backward of each is the other."
    }
    right = (
        "n = 1…4: an all-gather and a reduce-scatter along the tokens, each the other's backward, half an "
        "all-reduce each; then 3 real processes."
    )
    cases = tuple(
        case._replace(what=f"{word}_sequence, {case.what}")
        for word in ("gather", "reduce_scatter")
        for case in ways((2, 3, 1, 4), word)
    )
    processes = tuple(
        Case(3, f"{word}_sequence, 3 real processes", (word, True))
        for word in ("gather", "reduce_scatter")
    )

    def draw(self, case, rng):
        word, both = case.given
        batch = 3 if case.n == 4 else case.n * integer(rng, 1, 3)
        tokens = integer(rng, 2, 4)
        hidden = integer(rng, 2, 5)
        part, full = (batch, tokens, hidden), (batch, tokens * case.n, hidden)
        ins, outs = (part, full) if word == "gather" else (full, part)
        whole = lambda shape: with_nan(case.n, oracle.whole(rng, *shape, short=case.n == 4))
        return [([whole(ins)], whole(outs) if both else None, word) for _ in range(case.n)]

    def run(self, comm, gather, scatter, inputs, dy, word):
        yours = gather if word == "gather" else scatter
        return through(yours, comm, inputs, dy)

    def wants(self, case, args):
        xs, dys = [a[0][0] for a in args], [a[1] for a in args]
        if case.given[0] == "gather":
            grads = self._scattered(dys) if case.given[1] else [None] * case.n
            return [Want(torch.cat(xs, 1), {"x": grad}) for grad in grads]
        grad = torch.cat(dys, 1) if case.given[1] else None
        return [Want(y, {"x": grad}) for y in self._scattered(xs)]

    def _scattered(self, xs):
        return oracle.cut(sum(xs), len(xs), 1)

    def looks(self, case, args, rank, name, got):
        n, gathers = case.n, (case.given[0] == "gather") == (name == "y")
        parts = [a[0][0] if name == "y" else a[1] for a in args]
        if gathers:
            whole = torch.cat(parts, 1)
            dim = torch.cat(parts).view_as(whole)
            return {
                "The parts are put together along another dimension, and cut anew: along dim 1 they belong.": dim,
                "It repeats this rank's part: nothing came from the others.": torch.cat(
                    [parts[rank]] * n, 1
                ),
            }
        mine, total = self._scattered(parts)[rank], sum(parts)
        return {
            "It is this rank's part of its own data: those of the other ranks are not added. Each rank's "
            f"{'x' if name == 'y' else 'gradient'} is partial, the whole is their sum: reduce-scatter.": parts[
                rank
            ].chunk(n, 1)[rank],
            "It is cut along another dimension than the tokens, and reshaped: dim 1 is the sequence.": total.reshape(
                n, -1
            )[rank].reshape_as(mine),
        }

    def budget(self, case, args):
        whole = self.wants(case, args)[0].y if case.given[0] == "gather" else args[0][0][0]
        half = ring_bytes([whole], case.n) // 2
        what = "an all-gather or a reduce-scatter sends (n−1)/n·N, half an all-reduce, and there is one each way"
        return half, 2 * half, what


class SequenceNorm(Through):
    """`sequence_norm(x, weight, bias, comm)`: layer norm of this rank's tokens, with the gradients of all."""

    name, halves = "sequence_norm", (0, 4)
    rules = {
        "y": "A token's norm needs that token alone: F.layer_norm of this rank's tokens, its weight and bias as they are.",
        "dx": "A token's gradient comes from its own rank alone: x is split, it needs neither f nor g. Only what is whole on "
        "every rank, and used on a part of the data, needs f.",
        "d": "It is the sum, over all ranks' tokens, of what they say of weight, or bias.",
    }
    right = "n = 1…4: outputs and gradients of the serial norm, 2 all-reduces of H numbers; then 3 real processes."
    names = ("x", "weight", "bias")
    cases, beside = ways((2, 3, 1, 4)), True

    def draw(self, case, rng):
        batch, tokens, hidden = (integer(rng, *size) for size in ((1, 4), (2, 5), (3, 8)))
        draw = lambda *shape: normal(rng, *shape, dtype=dtype_of(case))
        x, dy = (draw(batch, tokens * case.n, hidden) for _ in range(2))
        with_nan(case.n, x.mul_(0.01))  # so small that the epsilon shows
        weight, bias = draw(hidden), draw(hidden)
        parts = zip(oracle.cut(x, case.n, 1), oracle.cut(dy, case.n, 1))
        return [([part, weight, bias], grad if case.given[-1] else None) for part, grad in parts]

    def wants(self, case, args):
        found = [oracle.serial(self._norm, inputs, dy) for inputs, dy in args]
        weight, bias = (sum(grads[k] for _, grads in found) for k in (1, 2))
        return [Want(y, {"x": grads[0], "weight": weight, "bias": bias}) for y, grads in found]

    def _norm(self, x, weight, bias):
        return F.layer_norm(x, weight.shape, weight, bias)

    def looks(self, case, args, rank, name, got):
        inputs, dy = args[rank]
        if name in ("y", "dx"):
            return {}
        right = self.wants(case, args)[rank].grads[name[1:]]
        own = oracle.serial(self._norm, inputs, dy)[1][self.names.index(name[1:])]
        return {
            "It is this rank's own part: the sum over the ranks is missing.": own,
            HOOKED: right + (case.n - 1) * OTHER,
        }

    def budget(self, case, args):
        both = 2 * ring_bytes([args[0][0][1]], case.n)
        return (
            0,
            both,
            "the gradients of weight and bias, H numbers each, are all that has to travel",
        )


# ------------------------------------------------------------
# Numbers: what a tensor-parallel layer sends and holds.


def predict_tensor(n=4, batch=1, tokens=4096, hidden=8192, itemsize=2, alpha=5e-6, beta=1 / 300e9):
    """A layer with H = 8,192 on 4 ranks, B = 1, T = 4,096, bf16, α = 5 µs, β = 1/(300 GB/s), forward and backward.

    messages, nbytes, seconds: of one rank, by rings.  row_first: bytes forward of an MLP with both layers by rows.
    heads: nbytes with twice as many heads.  sequence: nbytes with sequence parallel.  weights: bytes of its matrices.
    """
    size, steps = batch * tokens * hidden * itemsize, 2 * (n - 1)
    ring, weights = 2 * (n - 1) / n * size, 12 * hidden**2 * itemsize
    values = {
        "messages": 4 * steps,
        "nbytes": 4 * ring,
        "seconds": 4 * (steps * alpha + ring * beta),
        "row_first": 5 * ring,
        "heads": 4 * ring,
        "sequence": 4 * ring,
        "weights": weights / n,
    }
    blocks = "A layer has two blocks (attention, MLP), each with one all-reduce forward and one backward: four."
    travel = "Weights never travel here: activations do, B·T·H numbers."
    less = {2 * ring: blocks, ring: blocks}
    slips = {
        "messages": {
            4: "That many all-reduces; each is 2(n−1) messages of a rank.",
            2 * steps: blocks,
            steps: blocks,
            4 * steps * n: ALL,
            8 * n: "In a ring a chunk takes n−1 steps, not n.",
        },
        "nbytes": less
        | {
            4 * ring / itemsize: f"{blocks} Or are those numbers? One has {itemsize} bytes.",
            4 * ring * n: ALL,
            8 * size: "Nearly: the factor is 2(n−1)/n.",
            4 * size: "An all-reduce sends 2(n−1)/n·N a rank.",
            8 * (n - 1) / n * weights: travel,
            2 * (n - 1) / n * weights: travel,
        },
        "seconds": {
            4 * ring * beta: "The α of each step is missing.",
            4 * steps * alpha: "The bytes take time, too: β.",
            steps * alpha + ring * beta: blocks,
            2 * (steps * alpha + ring * beta): blocks,
        },
        "row_first": {
            ring: "That is columns first. Rows first, the sum before GELU has 4H features.",
            4 * ring: "That is the first sum, 4H wide; the second layer has one, too.",
            8 * ring: "The second sum is H wide, as always.",
            10 * ring: "Forward alone is asked for.",
            2 * ring: "There are two sums, but the first is 4H wide.",
        },
        "heads": less
        | {8 * ring: "What travels is B·T·H numbers, however many heads they came from."},
        "sequence": {
            2
            * ring: "A gather and a reduce-scatter are half an all-reduce each, but they are two for one.",
            8 * ring: "Twice as many, but each is half an all-reduce.",
            4 * ring / n: "Activations are divided by n, traffic is not.",
        },
        "weights": {
            weights: "Each rank has an n-th of the matrices.",
            weights / n / itemsize: NUMBERS,
            weights / n / 12: "A layer has 12H² weights: 4H² in attention, 8H² in the MLP.",
            weights * 2 / 3 / n: "That is the MLP alone.",
            weights / 3 / n: "That is attention alone.",
        },
    }
    return values, slips


PREDICTED = Prediction(
    predict_tensor,
    "Messages, bytes, seconds and weights, within 1 %.",
    {
        "n": ("{} ranks", (8, 16)),
        "tokens": ("T = {:,}", (1024, 2048, 6144)),
        "hidden": ("H = {:,}", (4096, 6144, 12288)),
    },
)
