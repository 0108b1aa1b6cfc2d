"""Graders of lesson 11: accumulation by tokens, a checkpoint, its random numbers, segments, plans, reversible blocks.

What is kept is counted by the memory of tensors, whoever holds them; what runs again, by calls.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..exam import (
    Case,
    Prediction,
    Report,
    Wrong,
    alone,
    attempt,
    bare,
    close,
    holds,
    integer,
    integers,
    near,
    normal,
    outside_tensors,
    real,
    recognized,
    shaped,
    shown,
    table,
    typed,
    unpacked,
)
from ..oracles.remat import FORBIDDEN, alive, fewest, least, peak_of, rerun

# ------------------------------------------------------------
# Accumulation by tokens.
#
# Looked at: the gradient and the mean, and what is alive of earlier graphs when the next forward begins.
# Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 3.


class _Graph(torch.autograd.Function):
    """Passes a loss on, and saves a tensor for backward, whose memory lives as long as the graph."""

    @staticmethod
    def forward(ctx, x, saved):
        ctx.save_for_backward(saved)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


def mean_loss(w: Tensor, micro: Tensor) -> Tensor:
    """The mean of ½(w·x − 1)² over the tokens; nan where there is none."""
    return (micro[micro.any(1)] @ w - 1).square().mean() / 2


def count(micro: Tensor) -> int:
    """The tokens that count: rows of zeros are padding."""
    return int(micro.any(1).sum())


class AccumulateTokens(Report):
    """`accumulate_tokens(loss, micros, counts)`: gradients of the mean over all tokens; the mean."""

    name = "accumulate_tokens"
    right = "1 to 9 micro-batches of 0 to 40 tokens: the gradient of the mean over tokens, one graph at a time."
    forbidden = FORBIDDEN
    step = 4.0
    cases = table(
        lambda sizes: f"micro-batches of {', '.join(map(str, sizes))} tokens",
        ([3, 3], [1, 2, 3], [40, 5, 17], [7], [4, 0, 9], [5, 1, 1, 8, 2, 30]),
    )
    cases += (
        Case(1, "micro-batches drawn at random", None),
        Case(1, "micro-batches of 2, 0, 3 tokens, one of them nan", [2, 0, 3]),
    )

    def draw(self, case, rng):
        drawn = partial(normal, rng)
        sizes = case.given or [3, *integers(rng, 0, 20, 8)]
        padding = [4, *integers(rng, 0, 5, len(sizes))]
        micros = [
            torch.cat([drawn(n, 5), torch.zeros(more, 5, dtype=torch.float64)])
            for n, more in zip(sizes, padding)
        ]
        if "nan" in case.what:
            micros[2][1, 3] = math.nan
        return [(drawn(5), drawn(5), micros)]

    def run(self, comm, yours, w, before, micros):
        w = w.clone().requires_grad_()
        calls = []
        graphs = []
        w.grad = before.clone()

        def loss(micro):
            index = next((i for i, m in enumerate(micros) if m is micro), -1)
            calls.append((index, sum(graph.expired() for graph in graphs)))
            saved = torch.ones(1, dtype=w.dtype)
            if count(micro):
                graphs.append(StorageWeakRef(saved.untyped_storage()))
            return _Graph.apply(mean_loss(w, micro), saved)

        mine, counts = list(micros), [count(m) for m in micros]
        mean = yours(loss, mine, counts)
        same = counts == [count(m) for m in micros] and list(map(id, mine)) == list(map(id, micros))
        graph = isinstance(mean, Tensor) and mean.requires_grad
        found = {"grad": w.grad, "mean": bare(mean), "calls": calls, "graph": graph}
        return found | {"same": same}

    def check(self, case, got, w, before, micros):
        self._calls(got["calls"], micros)
        holds(got, {"same": "a list that was given was changed, and belongs to the caller."})
        sizes = [count(m) for m in micros]
        k, total = len(micros), sum(sizes)
        share = [n / total for n in sizes]
        mix = lambda parts, weights: sum(p * x for p, x in zip(parts, weights))
        grads = [
            torch.func.grad(mean_loss)(w, m) if count(m) else torch.zeros_like(w) for m in micros
        ]
        want = mix(grads, share)
        looks = {
            "What stood in .grad before is gone: it is added to.": want - before,
            "Every micro-batch counts alike: a token of a short one counts more. Weigh by tokens.": sum(
                grads
            )
            / k,
            "The losses are added up: divide.": sum(grads),
            "Divided by tokens: the loss is a mean already, so multiply by its tokens.": mix(
                grads, [1 / n / total if n else 0 for n in sizes]
            ),
            "Only the last micro-batch is in it.": grads[-1] * share[-1],
        }

        def mistakes(got):
            if got.isnan().any():
                return "It is nan: a micro-batch without tokens has the mean 0/0. Leave it out."
            factor = (got + before - want) / before
            scaled = near(factor, factor[:1].expand_as(factor))
            text = "What stood in .grad before was scaled, too: scale the loss, not .grad."
            return recognized(got, looks, text * scaled)

        typed(got["grad"], Tensor, "after it, .grad", "a tensor: `backward` adds to it")
        what = f"what is added to .grad, the gradient of the mean over all {total} tokens,"
        rule = "Is each loss, a mean, weighted by its part of all the tokens that count, `counts`, and by nothing else?"
        close(got["grad"] - before, want, what, mistakes, rule)
        typed(got["mean"], int | float, "the result", "the mean loss of all tokens, a number")
        if got["graph"]:
            raise Wrong(
                "the mean that it returns has a graph, which keeps activations alive: detach it, or .item()."
            )
        losses = [float(mean_loss(w, m)) if count(m) else 0.0 for m in micros]
        looks = {"That is the mean of the micro-batches' means.": sum(losses) / k}
        rule = "Weigh the losses as you weigh the gradients."
        if math.isnan(real(got["mean"])):
            rule = "Leave out a micro-batch without tokens: its mean is 0/0."
        what = "the gradient is right, but the mean loss"
        close(got["mean"], mix(losses, share), what, looks, rule)

    def _calls(self, calls, micros):
        wanted = [i for i, m in enumerate(micros) if count(m)]
        seen = [i for i, _ in calls if i < 0 or count(micros[i])]
        if sorted(seen) != wanted:
            raise Wrong(
                f"`loss` is called once for each micro-batch ({wanted}), and was called for {seen}."
            )
        for nth, (index, gone) in enumerate(calls):
            before = sum(count(micros[i]) > 0 for i, _ in calls[:nth])
            if gone < before:
                raise Wrong(
                    f"when `loss` is called for micro-batch {index}, {gone} of the {before} graphs before it "
                    f"{'is' if gone == 1 else 'are'} gone: the others hold all that they saved, as in one "
                    "large batch. Each micro-batch has its backward, which frees its graph, before the next "
                    "forward."
                )


# ------------------------------------------------------------
# A checkpoint as an autograd function.
#
# Looked at: gradients; what of the blocks' tensors is alive between forward and backward, and in backward; how often a
# block runs. In one case blocks are others when they run again, and that run counts: nothing of the first can be left.
# Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4, Algorithm 1.


ROWS, WIDTH = 7, 5
HINTS = {
    "does not require grad": ". Inside a `backward` no graph is made, unless you say so: torch.enable_grad(), "
    "around the call",
    "a second time": ". The x that was saved still has its history: detach it",
    "incorrect number of gradients": ". `backward` returns one for each input of `forward`",
}


class Made(TorchDispatchMode):
    """Notes each memory that is made with room for `size` numbers; `alive(but)`: how often they have room in what is
    still held, but for the memories of `but`."""

    def __init__(self, size):
        super().__init__()
        self.size, self.made = size, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.numel() >= self.size:
                memory = x.untyped_storage()
                copies = memory.nbytes() // (self.size * x.itemsize)
                self.made[memory._cdata] = StorageWeakRef(memory), copies
        return out

    def alive(self, but: list[Tensor]) -> int:
        free = {x.untyped_storage()._cdata for x in but}
        return sum(
            copies
            for key, (memory, copies) in self.made.items()
            if key not in free and not memory.expired()
        )


class Held(Made):
    """Of blocks: many small memories count as one large one, and so does what Python holds outside of tensors, if it is
    `deep`. runs: how often a block ran, by its last operator."""

    runs = 0

    def __init__(self, size, deep):
        super().__init__(1)
        self.unit, self.deep = size, deep
        self.start = outside_tensors() if deep else 0

    def alive(self, but: list[Tensor]) -> int:
        """How often `size` numbers have room in what is still held, but for `but`."""
        outside = (outside_tensors() - self.start) // 8 if self.deep else 0
        return (super().alive(but) + max(0, outside)) // self.unit

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.runs += func is torch.ops.aten.sin.default
        return super().__torch_dispatch__(func, types, args, kwargs)


def added(got, right: Tensor, before: int, where: str, name: str, none: str, wrong: str) -> None:
    """Raise Wrong unless a gradient was added to the ones, or zeros, `before` that stood in .grad."""
    if not isinstance(got, Tensor) or (before and got.equal(torch.ones_like(got))):
        raise Wrong(f"{where}{name} gets no gradient: {none}")
    if before and near(got, right) and right.isfinite().all():
        raise Wrong(f"{where}what stood in .grad of {name} before is gone: gradients are added.")
    if not near(got - before, right):
        raise Wrong(f"{where}the gradient of {name} is wrong{wrong}")


class Block:
    """sin of 2 tanh(x w + b) w + b, times `factor`: counts its calls, and whether they made a graph."""

    def __init__(self, w: Tensor, b: Tensor):
        self.w = w
        self.b = b
        self.calls = []
        self.factor = 1.0
        self.begin = lambda: None

    def __call__(self, x: Tensor) -> Tensor:
        self.begin()
        self.calls.append(torch.is_grad_enabled())
        return ((x @ self.w + self.b).tanh() @ self.w * 2 + self.b).sin() * self.factor


def chained(
    form,
    weights: list[tuple[Tensor, Tensor]],
    x: Tensor,
    learn: bool,
    factor: float,
    *,
    meet=lambda *_: None,
    back=None,
) -> dict:
    """Gradients of a chain of blocks. form(block, x).  meet(blocks, hidden): called between forward and backward.

    factor: of the blocks from then on.  back(blocks, inputs, dy): in place of autograd.
    """
    weights = [(w.clone().requires_grad_(), b.clone().requires_grad_()) for w, b in weights]
    for w, _ in weights:
        w.grad = torch.ones_like(w)  # gradients are added
    blocks, x = [Block(w, b) for w, b in weights], x.clone().requires_grad_(learn)
    hidden, order = [x], [*blocks, blocks[0]]  # the first one twice
    for block in order:
        hidden.append(form(block, hidden[-1]))
    y = hidden.pop()
    y = y + 0 if isinstance(y, Tensor) else y  # nobody needs the last block's own result
    met = meet(blocks, [*hidden, y])
    for block in blocks:
        block.factor = factor
    kept = True
    if isinstance(y, Tensor) and y.requires_grad:
        dy = torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).view_as(y)
        before = dy.clone()
        if back is None:
            y.backward(dy)
        else:
            back(order, hidden, dy)
        kept = dy.equal(before)
    grads = [p.grad for pair in weights for p in pair]
    return {
        "y": y if isinstance(y, Tensor) else None,
        "grads": grads,
        "x": x.grad,
        "kept": kept,
        "met": met,
        "calls": [block.calls for block in blocks],
    }


@contextlib.contextmanager
def hints():
    """What torch's errors mean here is said with them."""
    try:
        yield
    except RuntimeError as error:
        hint = next((hint for words, hint in HINTS.items() if words in str(error)), "")
        error.args = (str(error).partition(". ")[0] + hint,)
        raise


def apart(form, pair: tuple[Tensor, Tensor], x: Tensor) -> list[Tensor | None]:
    """Gradients of x and of 2x, which a block takes one after the other; what x gives goes back first. form(block, x)."""
    block = Block(*pair)
    leaves = [x.clone().requires_grad_(), (2 * x).requires_grad_()]
    for y in [form(block, leaf) for leaf in leaves]:
        y.sum().backward()
    return [leaf.grad for leaf in leaves]


class Recompute(Report):
    """`Recompute`, a torch.autograd.Function of (fn, alive, x): keeps x, and runs fn again in backward."""

    name = "recompute"
    right = "1 to 3 blocks, one of them used twice, data or not: the gradients, only inputs kept, a block at a time."
    forbidden = FORBIDDEN
    step = 4.0
    cases = (
        Case(1, "2 blocks", (2, True, 1.0)),
        Case(1, "1 block, used twice", (1, True, 1.0)),
        Case(1, "3 blocks, and the input is data", (3, False, 1.0)),
        Case(1, "2 blocks, three times as large when they run again", (2, True, 3.0)),
        Case(1, "2 blocks of many rows", (2, True, 1.0)),
    )

    def draw(self, case, rng):
        blocks, learn, factor = case.given
        drawn = partial(normal, rng)
        return [
            (
                [(drawn(WIDTH, WIDTH), drawn(WIDTH)) for _ in range(blocks)],
                drawn(300 * ROWS if "many" in case.what else ROWS, WIDTH),
                learn,
                factor,
            )
        ]

    def run(self, comm, yours, *given):
        if not hasattr(yours, "apply"):
            raise TypeError(
                f"Recompute should be a torch.autograd.Function, which has `apply`, and is a "
                f"{type(yours).__name__}"
            )
        form, begins = lambda fn, x: yours.apply(fn, torch.empty(0, requires_grad=True), x), []

        def meet(blocks, hidden):
            weights = [x for block in blocks for x in (block.w, block.b)]

            def alive():
                grads = [x.grad for x in weights if x.grad is not None]
                return held.alive([*hidden, *weights, *grads])

            for block in blocks:
                block.begin = lambda: begins.append(alive())
            return alive(), [list(b.calls) for b in blocks]

        x = given[1]
        with hints():
            with Held(x.numel(), x.numel() > 1000) as held:
                found = chained(form, *given, meet=meet) | {"runs": held.runs, "begins": begins}
            return found | {"apart": apart(form, given[0][0], x)}

    def check(self, case, got, *given):
        run = lambda fn, x: fn(x)
        plain = chained(run, *given)
        want = plain if case.given[2] == 1 else chained(run, *given, back=rerun)
        if not isinstance(got["y"], Tensor):
            raise Wrong("the output is no tensor: `forward` returns fn(x).")
        if not got["y"].equal(plain["y"]):
            raise Wrong("the outputs are not those of the blocks: `forward` returns fn(x).")
        left, calls = got["met"]
        first = [2, *[1] * (len(calls) - 1)]  # calls of each block in forward
        if [len(c) for c in calls] != first:
            raise Wrong(
                f"in forward the blocks run {first} times, and ran {[len(c) for c in calls]} times: each once "
                "for each use."
            )
        if left:
            graph = " Here fn ran with a graph, which keeps them." if any(map(any, calls)) else ""
            raise Wrong(
                f"between forward and backward, tensors (or lists of their numbers) are alive that are neither input nor "
                f"output of a block: {left}. Keep x, and nothing that fn makes, not the result either.{graph}"
            )
        self._again(got["calls"], first)
        if got["runs"] != 2 * sum(first):
            raise Wrong(
                f"all blocks together run {2 * sum(first)} times, forward and backward, and ran {got['runs']} "
                "times."
            )
        more = [n - got["begins"][0] for n in got["begins"]]
        if max(more) > 1:
            raise Wrong(
                f"of blocks whose backward is done {max(more)} tensors are alive when another one runs again: "
                "a block's own should go with its backward. What stays on ctx adds up, and so does a graph "
                "that is retained."
            )
        if want is not plain and all(map(near, got["grads"], plain["grads"])):
            raise Wrong(
                "fn runs again in backward, but the gradients are those of its first run: so something of that "
                "was kept. Start the backward of what the second run gives."
            )
        holds(got, {"kept": "dy was changed, and belongs to others, too: work on a copy."})
        self._gradients(got, want)
        if not all(map(near, got["apart"], apart(run, given[0][0], given[1]))):
            raise Wrong(
                "two blocks apart, of which the first goes back first: the gradients are not those of their own x. What "
                "forward keeps belongs to its ctx."
            )

    def _again(self, calls, first):
        for block, (made, n) in enumerate(zip(calls, first, strict=True)):
            if len(made) != 2 * n:
                data = (
                    " Where x needs no gradient, too: the parameters do."
                    if len(made) < 2 * n
                    else ""
                )
                raise Wrong(
                    f"block {block} is used {n} times, and should run {n} times again in backward, but ran "
                    f"{len(made) - n} times.{data}"
                )
            if not all(made[n:]):
                raise Wrong(
                    f"block {block} runs again without a graph, so no gradient can come: torch.enable_grad()."
                )

    def _gradients(self, got, want):
        for i, (mine, right) in enumerate(zip(got["grads"], want["grads"], strict=True)):
            before = 1 - i % 2
            added(
                mine,
                right - before,
                before,
                "",
                f"the {'b' if i % 2 else 'w'} of block {i // 2}",
                "`backward` of what fn gives, in `backward`, adds to those of the parameters on its way.",
                ". Does dy go into the backward, and the gradient of x come out of it, for this x alone (detached), and "
                "once?",
            )
        if (got["x"] is None) != (want["x"] is None):
            raise Wrong("the input of the first block needs a gradient, and gets none.")
        if want["x"] is not None and not near(got["x"], want["x"]):
            raise Wrong(
                "the gradients of the parameters are right, but that of the first input is not: `backward` "
                "returns it, once."
            )


# ------------------------------------------------------------
# A bug to find: a function that is run again with the random numbers of its first run.
#
# Looked at: what comes out, how often fn runs, and the state of the random generator before and after.


# what the runs are given beside x: what comes out of one is not what comes out of the other
FIRST, AGAIN = 2.0, 4.0


def drop(x: Tensor, scale: float, more: float = 1.0) -> Tensor:
    """Dropout, with the numbers of PyTorch's own generator."""
    return x * (torch.rand(x.shape) < 0.5) * scale * more


def planned(calls: str) -> list[tuple[bool, bool, int]]:
    """Of each call: is it a `first` (F, f) or an `again` (A, a), of which function, and the number of its run."""
    open_runs = {True: [], False: []}
    plan = []
    count = 0
    for call in calls:
        mine = open_runs[call.isupper()]
        if call in "Ff":
            mine.append(count)
            count += 1
        plan.append((call in "Ff", call.isupper(), mine[-1] if call in "Ff" else mine.pop()))
    return plan


class Twice(Report):
    """`twice(fn)`: (first, again), of which `again` runs fn with the random numbers of the last first."""

    name = "twice"
    right = "1 to 4 runs, the last repeated first, of two functions: the same numbers, as if nothing had been."
    forbidden = FORBIDDEN
    step = 2.0
    cases = alone(
        (
            ("1 run", "FA"),
            ("2 runs", "FFAA"),
            ("4 runs, two of them after an `again`", "FFAFFAAA"),
            ("two functions in turn", "FfAafFFaAA"),
            ("6 runs", "FFFFFFAAAAAA"),
        )
    )

    def draw(self, case, rng):
        seed = integer(rng, 0, 10**6)
        xs = [
            normal(rng, 50, dtype=torch.float32)
            for _ in range(sum(call in "Ff" for call in case.given))
        ]
        return [(seed, case.given, xs)]

    def run(self, comm, yours, seed, plan, xs):
        torch.manual_seed(seed)
        ran = []
        outs = []
        states = []
        kept = []

        def fn(x, *more):
            ran.append(next((i for i, y in enumerate(xs) if y.equal(x)), -1))
            return drop(x, *more)

        pairs = {name: yours(fn) for name in (True, False)}
        for is_first, name, i in planned(plan):
            first, again = pairs[name]
            more = () if name else (3.0,)
            torch.rand(3)  # others draw, too
            x = xs[i].clone()
            memory = StorageWeakRef(x.untyped_storage())
            outs.append(first(x, FIRST, *more) if is_first else again(x, AGAIN, *more))
            del x
            kept.append(not memory.expired())
            states.append(torch.get_rng_state())
        return {"outs": outs, "ran": ran, "states": states, "gone": not any(kept)}

    def check(self, case, got, seed, calls, xs):
        plan = planned(calls)
        ys: dict[int, Tensor] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for (is_first, name, i), mine, state in zip(
                plan, got["outs"], got["states"], strict=True
            ):
                torch.rand(3)
                if is_first:
                    ys[i] = drop(xs[i], FIRST, 1.0 if name else 3.0)
                (self._first if is_first else self._again)(i, mine, ys)
                if not isinstance(state, Tensor) or not state.equal(torch.get_rng_state()):
                    raise Wrong(
                        f"after `first`, run {i}, the generator is not where fn leaves it: the next run draws "
                        "the same numbers."
                        if is_first
                        else f"after `again` of run {i} the generator is not "
                        "where it was before it: what comes next draws the same numbers again. Put back the "
                        "state of the moment."
                    )
        if got["ran"] != [i for *_, i in plan]:
            raise Wrong(
                f"`first` runs fn once, and `again` once more, on the arguments that it gets; fn ran for "
                f"{got['ran']}. To keep what it gave would keep the memory, too."
            )
        said = "what fn was run on is still held afterwards: of a run keep the generator's state, and nothing else."
        holds(got, {"gone": said})

    def _first(self, i, mine, ys):
        if not isinstance(mine, Tensor):
            raise Wrong("`first` returns fn(*args), a tensor here.")
        if not mine.equal(ys[i]):
            raise Wrong(
                f"`first`, run {i}: other random numbers than fn draws by itself. Leave the generator as "
                "it is, and only look at its state."
            )

    def _again(self, i, mine, ys):
        if not isinstance(mine, Tensor) or mine.shape != ys[i].shape:
            raise Wrong(
                f"`again` returns {'None' if mine is None else 'something else'}: it returns fn(*args)."
            )
        if mine.equal(ys[i]):
            raise Wrong(
                f"`again` of run {i} returns what `first` gave, and should run fn on its own arguments: "
                f"here fn(x, {AGAIN:g}), where `first` had fn(x, {FIRST:g}). To keep what fn gave would "
                "keep the memory, too."
            )
        if not mine.equal(ys[i] * (AGAIN / FIRST)):
            other = next(
                (
                    f" Those are the random numbers of run {j}: the last run of this fn that was not repeated "
                    "yet is repeated."
                    for j, y in ys.items()
                    if mine.ne(0).equal(y.ne(0))
                ),
                "",
            )
            raise Wrong(
                f"run {i} is repeated with other random numbers than it had.{other} Which state was there "
                "when it began?"
            )


# ------------------------------------------------------------
# A chain of layers: segments within a budget, and the plan that repeats the least.
#
# Source: Chen et al. 2016, sections 3 and 4.


def listed(got: dict, form, should: str, possible: bool, why: str) -> list | None:
    """The list that was returned; None if it is right that there is none. Wrong otherwise."""
    if possible and "refused" in got:
        raise Wrong(f"it can be done, and here is a ValueError: {got['refused'][:80]}")
    if "refused" in got:
        return None
    found = got["value"]
    if not possible:
        raise Wrong(
            f"it cannot be done ({why}), and should be a ValueError; here is {shown(found)}."
        )
    found = [bare(x) for x in found] if isinstance(found, list | tuple) else found
    shaped(found, form, "the result", should)
    return found


class Segments(Report):
    """`segments(L, budget)`: lengths of as few segments as will do within a budget of activations."""

    name = "segments"
    right = "1 to 900 layers: as few segments as the budget allows, the early ones longer; errors where none will do."
    forbidden = FORBIDDEN
    step = 2.0
    cases = table(
        "{} layers, a budget of {}",
        (
            (9, 9),
            (9, 5),
            (10, 4),
            (64, 11),
            (64, 15),
            (1, 1),
            (11, 4),
            (500, 40),
            (861, 41),
            (5, 0),
        ),
    )
    cases += tuple(
        Case(1, f"layers drawn at random, and a budget {text}", off)
        for off, text in ((0, "of just enough"), (4, "of some more"), (-1, "one short"))
    )

    def draw(self, case, rng):
        if isinstance(case.given, tuple):
            return [case.given]
        layers = integer(rng, 20, 900)
        enough = next(b for b in range(1, layers + 1) if fewest(layers, b))
        return [(layers, enough + case.given)]

    def run(self, comm, yours, layers, budget):
        return attempt(True, yours, layers, budget)

    def check(self, case, got, layers, budget):
        need = fewest(layers, budget)
        why = f"{budget} + {budget - 1} + … + 1 layers are fewer than {layers}"
        should = "a list of lengths: a segment has 1 layer or more, in whole numbers"
        found = listed(got, [int], should, need is not None, why)
        if found is None:
            return
        if min(found, default=1) < 1:
            raise Wrong(f"{shown(found)} is no {should[2:]}.")
        if sum(found) != layers:
            ends = (
                " Are these the places where segments end? Lengths are asked for."
                if found[-1:] == [layers]
                else ""
            )
            raise Wrong(f"{shown(found)} are {sum(found)} layers, and there are {layers}.{ends}")
        if peak_of(found) > budget:
            worst = max(range(len(found)), key=lambda i: i + found[i])
            turned = " The other way round it would fit." if peak_of(found[::-1]) <= budget else ""
            raise Wrong(
                f"{shown(found)}: in segment {worst}, {worst} input{'s' * (worst != 1)} of segments before it "
                f"and {found[worst]} activations are alive, more than {budget}.{turned}"
            )
        if len(found) > need:
            raise Wrong(
                f"{shown(found)} are {len(found)} segments, and {need} {'is' if need == 1 else 'are'} enough. "
                "Segment j may have as many as budget − j layers."
            )


class BestPlan(Report):
    """`best_plan(costs, memories, budget)`: which layers to keep, so that the others cost the least."""

    name = "best_plan"
    right = "1 to 40 uneven layers, 12 budgets: nothing fits that repeats less, and errors where nothing fits at all."
    forbidden = FORBIDDEN
    step = 2.0
    cases = (
        Case(1, "4 layers by hand", ([3, 1, 2, 2], [4, 2, 6, 3], 12)),
        Case(1, "2 layers, too large", ([1, 1], [9, 2], 8)),
        *table(
            lambda n, share: f"{n} layers drawn at random, {share:.0%} of what all need",
            (
                (1, 1.0),
                (5, 0.5),
                (8, 0.4),
                (12, 0.7),
                (14, 0.6),
                (14, 0.4),
                (40, 0.5),
                (6, 0.1),
            ),
        ),
    )

    def draw(self, case, rng):
        if len(case.given) == 3:
            return [case.given]
        n, share = case.given
        drawn = lambda high: [1 + int(v) for v in torch.randint(high, (n,), generator=rng)]
        # few sums are alike: exchanging two layers does not lead to the best
        memories = drawn(40 if n > 20 else 900)
        costs = [m + c for m, c in zip(memories, drawn(6))]  # nearly alike: rules of thumb go wrong
        return [
            (costs, memories, max(int(share * sum(memories)), 1 if share < 0.2 else max(memories)))
        ]

    def run(self, comm, yours, costs, memories, budget):
        mine = [list(costs), list(memories)]
        return attempt(True, yours, *mine, budget) | {"given": mine}

    def check(self, case, got, costs, memories, budget):
        if got["given"] != [costs, memories]:
            raise Wrong("a list that was given was changed, and belongs to the caller.")
        want = least(costs, memories, budget)
        given = f"costs {shown(costs)}, memories {shown(memories)}, budget {budget}"
        should = f"a list of {len(costs)} words, True for a layer that is kept, False for one that is repeated"
        why = f"a layer alone needs {max(memories)} bytes, and there are {budget}"
        kept = listed(got, (bool,) * len(costs), should, want is not None, why)
        if kept is None:
            return
        what = f"{given}: with the layers {shown([i for i, k in enumerate(kept) if k])} kept,"
        seen = alive(memories, kept)
        if max(seen) > budget:
            worst = seen.index(max(seen))
            moment = (
                "" if kept[worst] else " (It is repeated, so its bytes are there for the moment.)"
            )
            raise Wrong(
                f"{what} {seen[worst]} bytes are alive at the backward of layer {worst}: the kept ones before it, and "
                f"its own.{moment}"
            )
        again = sum(c for c, k in zip(costs, kept) if not k)
        if again > want:
            last = (
                " The last layer costs nothing to keep: its bytes are there anyway."
                if not kept[-1]
                else ""
            )
            raise Wrong(
                f"{what} {again} is repeated, and {want} is enough.{last} A rule of thumb will not do: compare all "
                "that differ in bytes held."
            )


# ------------------------------------------------------------
# A reversible block: its inputs and their gradients from its outputs.
#
# Looked at: inputs, gradients, and the work: how often f and g run, and how many products of matrices are computed.
# Source: Gomez et al. 2017, "The Reversible Residual Network", Algorithm 1.


NAMES = ("x1", "x2", "the gradient of x1", "the gradient of x2")


PRODUCTS = 12  # of f and g: two in a forward, four in a backward


class Products(TorchDispatchMode):
    """Counts products of matrices, whoever computes them."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


class Part(nn.Module):
    """tanh(x w + b) w. runs: one more entry for each call."""

    def __init__(self, w: Tensor, b: Tensor, runs: list | None = None):
        super().__init__()
        self.w = nn.Parameter(w.clone())
        self.b = nn.Parameter(b.clone())
        self._runs = [] if runs is None else runs

    def forward(self, x: Tensor) -> Tensor:
        self._runs.append(1)
        return (x @ self.w + self.b).tanh() @ self.w


def serial(
    f: Part, g: Part, x1: Tensor, x2: Tensor, dy1: Tensor, dy2: Tensor
) -> tuple[Tensor, ...]:
    """y1, y2, and the gradients of x1 and x2; those of the parameters in .grad."""
    x1, x2 = x1.clone().requires_grad_(), x2.clone().requires_grad_()
    y1 = x1 + f(x2)
    y2 = x2 + g(y1)
    torch.autograd.backward([y1, y2], [dy1, dy2])
    return y1.detach(), y2.detach(), x1.grad, x2.grad


class ReversibleBackward(Report):
    """`reversible_backward(f, g, y1, y2, dy1, dy2)`: x1, x2 and their gradients; the parameters' are added."""

    name = "reversible_backward"
    right = "blocks of 1 to 6 numbers, a nan: inputs and gradients from outputs, f and g once each."
    forbidden = FORBIDDEN
    step = 3.0
    cases = table("{} rows of {}", ((2, 3), (5, 6), (1, 1)))
    cases += alone({"a nan in dy2": (2, 4), "called in a `backward`": (3, 4)})

    def draw(self, case, rng):
        rows, width = case.given
        drawn = partial(normal, rng)
        weights = [(drawn(width, width), drawn(width)) for _ in range(2)]
        x1, x2, dy1, dy2 = (drawn(rows, width) for _ in range(4))
        f, g = (Part(w, b) for w, b in weights)
        y1, y2, _, _ = serial(f, g, x1, x2, dy1, dy2)
        if "nan" in case.what:
            dy2[0, 1] = math.nan
        inside = "`backward`" in case.what
        return [(weights, [y1, y2, dy1, dy2], inside)]  # the inputs stay here

    def run(self, comm, yours, weights, tensors, inside):
        runs: list = []
        made = [Part(w, b, runs) for w, b in weights]
        for module in made:
            module.w.grad = torch.ones_like(module.w)
        mine = [x.clone() for x in tensors]
        with Products() as products, hints(), torch.set_grad_enabled(not inside):
            found = yours(*made, *mine)
        graph = isinstance(found, tuple | list) and any(
            isinstance(x, Tensor) and x.requires_grad for x in found
        )
        return {
            "found": list(found) if isinstance(found, tuple | list) else found,
            "graph": graph,
            "runs": len(runs),
            "products": products.count,
            "grads": [p.grad for m in made for p in m.parameters()],
            "same": all(map(near, mine, tensors)) and not any(x.requires_grad for x in mine),
            "trained": all(m.training and m.w.requires_grad and m.b.requires_grad for m in made),
        }

    def check(self, case, got, weights, tensors, inside):
        y1, y2, dy1, dy2 = tensors
        f, g = (Part(w, b) for w, b in weights)
        with torch.no_grad():
            x2 = y2 - g(y1)
            x1 = y1 - f(x2)
        _, _, dx1, dx2 = serial(f, g, x1, x2, dy1, dy2)
        found, want = got["found"], (x1, x2, dx1, dx2)
        found = unpacked(found, NAMES)
        if not got["same"]:
            raise Wrong("a tensor that was given was changed, and belongs to the caller.")
        told = "f or g is not as it was: whether it trains, and which of its parameters do, is not yours to change."
        holds(got, {"trained": told})
        with torch.no_grad():
            looks = {
                "x1": {
                    "That is y1 + f(x2): subtract.": y1 + f(x2),
                    "f takes x2, which comes first: not y2.": y1 - f(y2),
                },
                "x2": {
                    "That is y2 + g(y1): subtract.": y2 + g(y1),
                    "f and g are exchanged.": y2 - f(y1),
                },
                NAMES[2]: {
                    "That is dy1: y1 goes through g into y2, too.": dy1,
                    "The direct way is missing: dy1.": dx1 - dy1,
                },
                NAMES[3]: {
                    "That is dy2: x2 goes through f into y1, too.": dy2,
                    "The direct way is missing: dy2.": dx2 - dy2,
                },
            }
        for i in (1, 0, 2, 3):  # x1 comes from x2
            rule = (
                "Walk back: x2 first, by y1, and then x1, by x2. Follow each way from it to y1 and y2: gradients of all "
                "ways are added, and through f comes the whole gradient of y1, not dy1 alone."
            )
            close(found[NAMES[i]], want[i], NAMES[i], looks[NAMES[i]], rule)
        self._parameters(got, [*f.parameters(), *g.parameters()])

    def _parameters(self, got, parameters):
        for i, (mine, p) in enumerate(zip(got["grads"], parameters, strict=True)):
            added(
                mine,
                p.grad,
                1 - i % 2,
                "x1, x2 and their gradients are right, but ",
                f"the {'b' if i % 2 else 'w'} of {'fg'[i // 2]}",
                "use `.backward()` in there, which adds to .grad.",
                ": one backward through f, with the whole gradient of y1, and one through g, with dy2.",
            )
        if got["graph"]:
            raise Wrong("what it returns has a graph, which keeps activations alive: detach.")
        if got["runs"] != 2 or got["products"] > PRODUCTS:
            raise Wrong(
                f"f and g should run once each, for the inputs and for the gradients: 2 runs, and {PRODUCTS} "
                f"products of matrices with their backward. Here are {got['runs']} and {got['products']}: that "
                "is more than a third more work."
            )
        if got["products"] < PRODUCTS:
            raise Wrong(
                f"it is right, but only {got['products']} products of matrices were seen, and forward and "
                f"backward of f and g have {PRODUCTS}: what is computed out of sight is not counted."
            )


# ------------------------------------------------------------
# Numbers foretold: bytes, segments, work, a share, a momentum, a rate.


def predict_remat(L=100, a=400e6, x=100e6, k=10, heads=128, s=2048, h=20480, micro=8):
    """100 layers that keep 400 MB each, of which 100 MB are their input: bytes whole and in 10 segments, the best k of
    those that divide 100, the work of 10 segments; bytes of 64 of them by halves; selective's share for 128 heads,
    2,048 tokens, h = 20,480; for 8 micro-batches the momentum of batch norm, and the rate by the root rule.
    """
    peak = lambda n: (n - 1) * x + L / n * a
    best = min((n for n in range(1, L + 1) if L % n == 0), key=peak)
    core = 5 * heads * s / h
    values = {
        "plain_bytes": L * a,
        "segment_bytes": peak(k),
        "best": best,
        "work": (4 - 1 / k) / 3,
        "halves": 6 * x + a,
        "share": core / (34 + core),
        "momentum": 1 - 0.9 ** (1 / micro),
        "rate": 0.1 * micro**0.5,
    }
    slips = {
        "plain_bytes": {
            L * x: "That is their inputs only.",
        },
        "segment_bytes": {
            k * x
            + L / k * a: "The segment that is computed again has its input among its own bytes.",
            k
            * x: "That is the inputs only: one segment is computed again, with all that it keeps.",
            L / k * a: "The inputs of the other segments are held, too.",
            (k - 1) * x + L / k * x: "A layer of the segment keeps 400 MB when it runs again.",
        },
        "best": {
            round(
                L**0.5
            ): "√L is best where a layer keeps its input only. Here it keeps four times as much.",
            5: "The root of L·x/a? It is the other way round.",
        },
        "work": {
            4 / 3: "Nearly: the last segment is not repeated.",
            (4 - 1 / k): "Over a step without: divide by 3.",
            2 - 1 / k: "That is forward only: a step has the backward, too, of two forwards.",
            1.5 - 1 / (2 * k): "A backward costs two forwards, so a step costs three.",
        },
        "halves": {
            6 * x: "And the one layer whose backward comes.",
            7 * x + a: "log₂ 64 is 6.",
            7 * x: "The last layer keeps all of its 400 MB.",
        },
        "share": {
            core / 34: "Of all that is kept: 34 + 5as/h.",
            34 / (34 + core): "That is what stays.",
            100 * core / (34 + core): "A part of 1, not per cent.",
        },
        "momentum": {
            0.1 / micro: "Nearly: 1 − (1 − m)^(1/k).",
            1 - 0.9**micro: "The other way round: a root.",
            0.9 ** (1 / micro): "That is what is left; the momentum is what comes in.",
            0.1 ** (1 / micro): "What is left of the old averages counts: (1 − m).",
        },
        "rate": {
            0.1 * micro: "That is the linear rule.",
            0.1: "That is the rate of one micro-batch.",
            0.1 / micro: "A larger batch wants a larger rate.",
        },
    }
    for name in ("plain_bytes", "segment_bytes", "halves"):
        slips[name] |= {
            values[name] / 1e6: "In bytes: 1 MB is 1,000,000 of them.",
            values[name] / 1e9: "In bytes: 1 GB is 10⁹ of them.",
        }
    return values, slips


PREDICTED = Prediction(
    predict_remat,
    "Bytes, segments, work, share, momentum and rate: within 1 %.",
    {
        "L": ("{} layers", (40, 60, 80)),
        "k": ("{} segments", (4, 5, 20)),
        "heads": ("{} heads", (64, 96, 160)),
        "micro": ("{} micro-batches", (2, 4, 16)),
    },
)
