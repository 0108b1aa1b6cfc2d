"""The exercises of lesson 11 about split layers: a linear layer by rows, and an MLP with one all-reduce each way."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..exam import Case, ask
from . import oracle
from .through import HOOKED, OTHER, Through, Want, first, through, ways

RANKS = (2, 3, 4, 1)


class RowLinear(Through):
    name = "row_linear"
    right = "n = 1…4, uneven parts, any shape: the serial layer, each gradient, one all-reduce; then 3 real processes."
    names = ("x", "weight", "bias")
    cases, processes = ways(RANKS), (Case(3, "3 real processes, forward and backward", (True,)),)

    def draw(self, case, rng):
        inputs, outputs = oracle.between(rng, 2 * case.n, 3 * case.n), oracle.between(rng, 3, 6)
        # 0 to 3 dimensions
        rows = [oracle.between(rng, 2, 3) for _ in range((case.n + case.given[-1]) % 4)]
        x, weight, bias = (
            oracle.draw(rng, *s) for s in ((*rows, inputs), (outputs, inputs), (outputs,))
        )
        dy = oracle.draw(rng, *rows, outputs)
        parts = zip(oracle.cut(x, case.n, -1), oracle.cut(weight, case.n, 1), strict=True)
        return [([a, b, bias], dy if case.given[-1] else None) for a, b in parts]

    def wants(self, case, args):
        inputs = [torch.cat([given[k] for given, _ in args], -1) for k in (0, 1)]
        (_, _, bias), dy = args[0]
        zeros = torch.zeros(*inputs[0].shape[:-1], len(bias), dtype=bias.dtype)
        y, (x, weight, bias) = oracle.serial(F.linear, [*inputs, bias], zeros if dy is None else dy)
        cuts = zip(oracle.cut(x, case.n, -1), oracle.cut(weight, case.n, 1), strict=True)
        return [Want(y, {"x": a, "weight": b, "bias": bias}) for a, b in cuts]

    def looks(self, case, args, rank, name, got):
        n, ((x, weight, bias), _) = case.n, args[rank]
        want = self.wants(case, args)[rank]
        if name != "y":
            return first(
                got,
                grad_looks(n, want.grads[name[1:]]) | bias_looks(n, name, want.grads["bias"]),
                "With g after the partial product, and the bias after g, autograd does the rest.",
            )
        own = F.linear(x, weight)
        return first(got, sum_looks(n, want.y, own, bias), "Y = X₀A₀ᵀ + X₁A₁ᵀ + … + b.")

    def budget(self, case, args, rank):
        y = self.wants(case, args)[0].y
        return *[
            oracle.all_reduce_bytes(y, case.n)
        ] * 2, "one all-reduce of Y forward, and none backward"


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
        f"It is divided by {n}.": right / n,
        f"It is {n} times what it should be: is it summed where it is whole already?": n * right,
    }


def grad_looks(n: int, right) -> dict:
    return {
        f"It is {n} times too large: y is the same on every rank, so its gradient is whole already, and backward "
        "adds up once more. Is there an all-reduce in g's backward, or a second f or g?": n * right,
        f"It is {n * n} times too large: backward adds up twice more.": n * n * right,
        f"It is divided by {n}.": right / n,
    }


def bias_looks(n: int, name: str, right) -> dict:
    """What tricks with the bias do to its gradient."""
    return (
        {}
        if "bias" not in name
        else {
            "It is zero: the bias is not used here. If one rank alone adds it, the copies on the others never learn, and "
            "part.": 0 * right
        }
    )


class Mlp(Through):
    name = "mlp"
    right = (
        "n = 1…4, uneven parts: the serial MLP, gradient by gradient, one all-reduce forward and one backward; "
        "then 3 real processes."
    )
    names = ("x", "fc", "fc_bias", "proj", "proj_bias")
    cases, processes = ways(RANKS), RowLinear.processes

    def draw(self, case, rng):
        batch, tokens, hidden = (oracle.between(rng, *size) for size in ((1, 3), (2, 4), (3, 5)))
        x, dy = (oracle.draw(rng, batch, tokens, hidden) for _ in range(2))
        fc, proj = oracle.draw(rng, 4 * hidden, hidden), oracle.draw(rng, hidden, 4 * hidden)
        fc_bias, proj_bias = oracle.draw(rng, 4 * hidden), oracle.draw(rng, hidden)
        parts = zip(
            *(oracle.cut(w, case.n, dim) for w, dim in ((fc, 0), (fc_bias, 0), (proj, 1))),
            strict=True,
        )
        return [([x, *part, proj_bias], dy if case.given[-1] else None) for part in parts]

    def wants(self, case, args):
        dims = {1: 0, 2: 0, 3: 1}  # along which fc, fc_bias and proj are cut
        parts = [[given[k] for given, _ in args] for k in range(5)]
        inputs = [torch.cat(parts[k], dims[k]) if k in dims else parts[k][0] for k in range(5)]
        dy = args[0][1]
        y, grads = oracle.serial(
            oracle.mlp, inputs, torch.zeros_like(inputs[0]) if dy is None else dy
        )
        cuts = [
            oracle.cut(g, case.n, dims[k]) if k in dims else [g] * case.n
            for k, g in enumerate(grads)
        ]
        return [
            Want(y, dict(zip(self.names, mine, strict=True))) for mine in zip(*cuts, strict=True)
        ]

    def run(self, comm, yours, inputs, dy):
        return through(lambda *xs: yours(*xs, comm), inputs, dy, beside=True)  # as in x + mlp(x)

    def looks(self, case, args, rank, name, got):
        inputs, dy = args[rank]
        n, want = case.n, self.wants(case, args)[rank]
        if name == "y":
            return self._output(n, args, rank, want.y, got)
        right, looks = want.grads[name[1:]], {}
        if name == "dx":
            own = oracle.serial(oracle.mlp, inputs, dy)[1][0]
            looks = {
                "It is this rank's part: each rank's features say something of x, and x's gradient is the sum of "
                "what all say. f belongs before fc.": own,
                HOOKED: right + (n - 1) * OTHER,
            }
        return first(
            got,
            looks | grad_looks(n, right) | bias_looks(n, name, right),
            "f before fc, g after proj, and nothing else that talks.",
        )

    def _output(self, n: int, args: list[tuple], rank: int, right, got) -> str:
        inputs, bias = args[rank][0], args[rank][0][4]
        own = oracle.mlp(*inputs[:4], torch.zeros_like(bias))
        hidden = [F.linear(*given[:3]) for given, _ in args]
        proj = [given[3] for given, _ in args]
        other = {
            word: sum(F.linear(act(h), p) for h, p in zip(hidden, proj, strict=True)) + bias
            for word, act in (
                ("There is no GELU.", lambda h: h),
                ("It has ReLU in GELU's place.", F.relu),
                ("It has the exact GELU: approximate='tanh' is asked for.", F.gelu),
            )
        }
        bare = (
            sum(
                F.linear(F.gelu(F.linear(x, fc), approximate="tanh"), p)
                for (x, fc, _, p, _), _ in args
            )
            + bias
        )
        return first(
            got,
            sum_looks(n, right, own, bias) | other | {"fc_bias is missing.": bare},
            "gelu(x·fcᵀ + fc_bias) of this rank's features, times its part of proj, summed over the ranks, "
            "plus proj_bias.",
        )

    def budget(self, case, args, rank):
        one = oracle.all_reduce_bytes(args[0][0][0], case.n)
        return one, 2 * one, "one all-reduce of y forward (g), one of x's gradient backward (f)"


def row_linear(yours) -> None:
    """`row_linear(x, weight, bias, comm)`: a linear layer split by its inputs; the bias once."""
    ask(RowLinear(), yours)


def mlp(yours) -> None:
    """`mlp(x, fc, fc_bias, proj, proj_bias, comm)`: fc by outputs, proj by inputs, one all-reduce each way."""
    ask(Mlp(), yours)
