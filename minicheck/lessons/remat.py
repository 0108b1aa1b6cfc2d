"""Graders of lesson 11: a checkpoint, hidden operands, segments, what is cheap to forget, reversible blocks.

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
from torch.utils.flop_counter import FlopCounterMode

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
    matches,
    near,
    normal,
    outside_tensors,
    shaped,
    shown,
    table,
    typed,
    unpacked,
)
from ..oracles.remat import FORBIDDEN, fewest, peak_of, rerun

# ------------------------------------------------------------
# A checkpoint as an autograd function.
#
# Looked at: gradients; what of the blocks' tensors is alive between forward and backward, and in backward; how often a
# block runs. In one case blocks are others when they run again, and that run counts: nothing of the first can be left.
# Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4, Algorithm 1.


ROWS, WIDTH = 7, 5
HINTS = {
    "can require gradients": ". What holds whole numbers has no gradient: ctx.needs_input_grad says which need one",
    "does not require grad": ". Inside a `backward` no graph is made, unless you say so: torch.enable_grad(), around "
    "all that is to be differentiated. And what has been detached requires a gradient only if you say so",
    "a second time": ". What was saved still has its history: detach it",
    "incorrect number of gradients": ". `backward` returns one for each input of `forward`",
}


class Made(TorchDispatchMode):
    """Notes each memory that is made with room for `size` numbers; `alive(but)`: how often they have room in what is
    still held, but for the memories of `but`. itemsize: of those numbers; else of each tensor's own."""

    def __init__(self, size, itemsize=None):
        super().__init__()
        self.size = size
        self.itemsize = itemsize
        self.made = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.numel() >= self.size:
                memory = x.untyped_storage()
                copies = memory.nbytes() // (self.size * (self.itemsize or x.itemsize))
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

    def __init__(self, size, deep, itemsize=None):
        super().__init__(1, itemsize)
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
    """sin of 2 tanh(x[order] w + b) w + b + shared, times `factor`: counts its calls, and whether they made a graph."""

    def __init__(self, w: Tensor, b: Tensor):
        self.w = w
        self.b = b
        self.calls = []
        self.factor = 1.0
        self.begin = lambda: None

    def __call__(self, x: Tensor, order: Tensor, shared: Tensor) -> Tensor:
        self.begin()
        self.calls.append(torch.is_grad_enabled())
        inner = (x[order] @ self.w + self.b).tanh()
        return (inner @ self.w * 2 + self.b + shared).sin() * self.factor


def chained(
    form,
    weights: list[tuple[Tensor, Tensor]],
    x: Tensor,
    base: Tensor,
    learn: tuple[bool, bool],
    factor: float,
    *,
    meet=lambda *_: None,
    back=None,
) -> dict:
    """Gradients of a chain of blocks. form(block, x, order, shared).  meet(blocks, there): called between forward and
    backward, with the tensors that are there anyway.

    base: all blocks share a tensor that is made of it.  learn: does x need a gradient, and does base?  factor: of the
    blocks from then on.  back(blocks, inputs, dy): in place of autograd.
    """
    weights = [(w.clone().requires_grad_(), b.clone().requires_grad_()) for w, b in weights]
    for w, _ in weights:
        w.grad = torch.ones_like(w)  # gradients are added
    blocks, x = [Block(w, b) for w, b in weights], x.clone().requires_grad_(learn[0])
    base = base.clone().requires_grad_(learn[1])
    shared = base.exp()
    turned = torch.arange(len(x)).flip(0)
    hidden, order = [x], [*blocks, blocks[0]]  # the first one twice
    for block in order:
        hidden.append(form(block, hidden[-1], turned, shared))
    y = hidden.pop()
    y = y + 0 if isinstance(y, Tensor) else y  # nobody needs the last block's own result
    met = meet(blocks, [*hidden, y, base, shared, turned])
    for block in blocks:
        block.factor = factor
    kept = True
    if isinstance(y, Tensor) and y.requires_grad:
        dy = torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).view_as(y)
        before = dy.clone()
        if back is None:
            y.backward(dy)
        else:
            back(order, [(h, turned, shared) for h in hidden], dy)
        kept = dy.equal(before)
    grads = [p.grad for pair in weights for p in pair]
    return {
        "y": y if isinstance(y, Tensor) else None,
        "grads": grads,
        "x": x.grad,
        "base": base.grad,
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


class Alone(Block):
    """A block with one operand, or two."""

    def __call__(self, x: Tensor, shared: Tensor | None = None) -> Tensor:
        shared = torch.zeros_like(self.b) if shared is None else shared
        return super().__call__(x, torch.arange(len(x)), shared)


def apart(form, pair: tuple[Tensor, Tensor], x: Tensor) -> list[Tensor | None]:
    """Gradients of x and of 2x, which a block takes one after the other; what x gives goes back first. And of 3x, which
    is both operands of a block."""
    block = Alone(*(p.clone().requires_grad_() for p in pair))
    leaves = [(n * x).requires_grad_() for n in (1, 2, 3)]
    for y in [form(block, leaf) for leaf in leaves[:2]]:
        y.sum().backward()
    form(block, leaves[2], leaves[2]).sum().backward()
    return [leaf.grad for leaf in leaves]


class Recompute(Report):
    """`Recompute`, a torch.autograd.Function of (fn, alive, *xs): keeps xs, and runs fn again in backward."""

    name = "recompute"
    right = (
        "1 to 3 blocks of three operands, one of them used twice, data or not: the gradients, only inputs kept, a block "
        "at a time."
    )
    forbidden = FORBIDDEN
    step = 4.0
    cases = (
        Case(1, "2 blocks", (2, (True, True), 1.0)),
        Case(1, "1 block, used twice", (1, (True, True), 1.0)),
        Case(1, "2 blocks, and what they share needs no gradient", (2, (True, False), 1.0)),
        Case(1, "2 blocks, and the first x is data", (2, (False, True), 1.0)),
        Case(1, "3 blocks, and all operands of the first are data", (3, (False, False), 1.0)),
        Case(1, "2 blocks, three times as large when they run again", (2, (True, True), 3.0)),
        Case(1, "2 blocks of many rows", (2, (True, True), 1.0)),
    )

    def draw(self, case, rng):
        blocks, learn, factor = case.given
        drawn = partial(normal, rng)
        return [
            (
                [(drawn(WIDTH, WIDTH), drawn(WIDTH)) for _ in range(blocks)],
                drawn(300 * ROWS if "many" in case.what else ROWS, WIDTH),
                drawn(WIDTH),
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
        form = lambda fn, *xs: yours.apply(fn, torch.empty(0, requires_grad=True), *xs)
        begins = []

        def meet(blocks, there):
            weights = [x for block in blocks for x in (block.w, block.b)]

            def alive():
                own = [x for x in (*there, *weights) if isinstance(x, Tensor)]
                grads = [x.grad for x in own if x.is_leaf and x.grad is not None]
                return held.alive([*own, *grads])

            for block in blocks:
                block.begin = lambda: begins.append(alive())
            return alive(), [list(b.calls) for b in blocks]

        x = given[1]
        with hints():
            with Held(x.numel(), x.numel() > 1000) as held:
                found = chained(form, *given, meet=meet) | {"runs": held.runs, "begins": begins}
            return found | {"apart": apart(form, given[0][0], x)}

    def check(self, case, got, *given):
        run = lambda fn, *xs: fn(*xs)
        plain = chained(run, *given)
        want = plain if case.given[2] == 1 else chained(run, *given, back=rerun)
        if not isinstance(got["y"], Tensor):
            raise Wrong("the output is no tensor: `forward` returns fn(*xs).")
        if not got["y"].equal(plain["y"]):
            raise Wrong("the outputs are not those of the blocks: `forward` returns fn(*xs).")
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
                f"output of a block: {left}. Keep xs, and nothing that fn makes, not the result either.{graph}"
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
        *blocks, both = apart(run, given[0][0], given[1])
        if not all(map(near, got["apart"], blocks)):
            raise Wrong(
                "two blocks apart, of which the first goes back first: the gradients are not those of their own x. What "
                "forward keeps belongs to its ctx."
            )
        if not near(got["apart"][2], both):
            raise Wrong(
                "one tensor that is two of xs gets a wrong gradient: `backward` returns for each of them the gradient of "
                "this place alone, and autograd adds them. So detach each place by itself."
            )

    def _again(self, calls, first):
        for block, (made, n) in enumerate(zip(calls, first, strict=True)):
            if len(made) != 2 * n:
                data = (
                    " Where none of xs needs a gradient, too: the parameters do."
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
        if got["x"] is None and want["x"] is not None:
            raise Wrong(
                "the input of the first block needs a gradient, and gets none. Which of xs need one says "
                "ctx.needs_input_grad, not what has been detached."
            )
        for i, (mine, right) in enumerate(zip(got["grads"], want["grads"], strict=True)):
            before = 1 - i % 2
            added(
                mine,
                right - before,
                before,
                "",
                f"the {'b' if i % 2 else 'w'} of block {i // 2}",
                "`backward` of what fn gives, in `backward`, adds to those of the parameters on its way.",
                ". Does dy go into the backward, and do the gradients of these xs alone (detached) come out of it, "
                "once?",
            )
        if want["x"] is not None and not near(got["x"], want["x"]):
            raise Wrong(
                "the gradients of the parameters are right, but that of the first input is not: `backward` "
                "returns it, once."
            )
        if want["base"] is not None and (
            got["base"] is None or not near(got["base"], want["base"])
        ):
            raise Wrong(
                "the gradients of the parameters and of the first operand are right, but that of the last operand, which "
                "all blocks share, is not: `backward` returns a gradient for each of xs that needs one, in their order."
            )


# ------------------------------------------------------------
# A bug to find: a function that is run again with the random numbers and the buffers of its first run.
#
# Looked at: what comes out, how often fn runs, and the random generator's state and the buffers before and after.


# what the runs are given beside x: what comes out of one is not what comes out of the other
FIRST, AGAIN = 2.0, 4.0


def drop(x: Tensor, buffers: list[Tensor], scale: float, more: float = 1.0) -> Tensor:
    """Dropout, with the numbers of PyTorch's own generator, times an average, which moves; runs are counted."""
    out = x * (torch.rand(x.shape) < 0.5) * buffers[0] * scale * more
    buffers[0].mul_(0.75).add_(x.square().mean())
    buffers[1].add_(1)
    return out


def begun() -> list[Tensor]:
    """The buffers of a function that has not run."""
    return [torch.ones(1), torch.zeros((), dtype=torch.int64)]


def planned(calls: str) -> list[tuple[str, bool, int]]:
    """Of each call: its letter (F, f: a first; A, a: an `again`; X: one in which fn raises), is it of the first function,
    and the number of its run."""
    open_runs = {True: [], False: []}
    plan = []
    count = 0
    for call in calls:
        mine = open_runs[call.isupper()]
        if call in "Ff":
            mine.append(count)
            count += 1
        plan.append((call, call.isupper(), mine[-1] if call in "Ff" else mine.pop()))
    return plan


class Twice(Report):
    """`twice(fn, buffers)`: (first, again), of which `again` runs fn with what the last first found."""

    name = "twice"
    right = "1 to 6 runs, the last repeated first, of two functions: the same numbers, as if nothing had been."
    forbidden = FORBIDDEN
    step = 2.0
    cases = alone(
        (
            ("1 run", "FA"),
            ("2 runs", "FFAA"),
            ("4 runs, two of them after an `again`", "FFAFFAAA"),
            ("two functions in turn", "FfAafFFaAA"),
            ("6 runs", "FFFFFFAAAAAA"),
            ("3 runs, and fn raises an error when the second is repeated", "FFFAXA"),
        )
    )

    def draw(self, case, rng):
        seed = integer(rng, 0, 10**6)
        xs = [
            normal(rng, 50, dtype=torch.float32)
            for _ in range(sum(call in "Ff" for call in case.given))
        ]
        return [(seed, case.given, xs)]

    def run(self, comm, yours, seed, calls, xs):
        torch.manual_seed(seed)
        ran: list = []
        outs: list = []
        states: list = []
        moved: list = []
        kept: list = []
        failing = False
        pairs = {}
        buffers = {name: begun() for name in (True, False)}
        for name in (True, False):

            def fn(x, *more, name=name):
                ran.append(next((i for i, y in enumerate(xs) if y.equal(x)), -1))
                out = drop(x, buffers[name], *more)
                if failing:
                    raise ZeroDivisionError("fn fails here")
                return out

            pairs[name] = yours(fn, list(buffers[name]))
        for call, name, i in planned(calls):
            first, again = pairs[name]
            more = () if name else (3.0,)
            torch.rand(3)  # others draw, too
            x = xs[i].clone()
            memory = StorageWeakRef(x.untyped_storage())
            failing = call == "X"
            try:
                outs.append(first(x, FIRST, *more) if call in "Ff" else again(x, AGAIN, *more))
            except ZeroDivisionError:
                outs.append(None)
            del x
            kept.append(not memory.expired())
            states.append(torch.get_rng_state())
            moved.append([[b.clone() for b in buffers[name]] for name in (True, False)])
        gone = not any(kept)
        return {"outs": outs, "ran": ran, "states": states, "moved": moved, "gone": gone}

    def check(self, case, got, seed, calls, xs):
        plan = planned(calls)
        ys: dict[int, Tensor] = {}
        buffers = {name: begun() for name in (True, False)}
        found: dict[int, list[Tensor]] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for (call, name, i), mine, state, moved in zip(
                plan, got["outs"], got["states"], got["moved"], strict=True
            ):
                torch.rand(3)
                if call in "Ff":
                    found[i] = [b.clone() for b in buffers[name]]
                    ys[i] = drop(xs[i], buffers[name], FIRST, 1.0 if name else 3.0)
                    self._first(i, mine, ys)
                elif call != "X":
                    self._again(i, mine, ys)
                self._left(call, i, state, moved, [buffers[True], buffers[False]], found[i])
        if got["ran"] != [i for *_, i in plan]:
            raise Wrong(
                f"`first` runs fn once, and `again` once more, on the arguments that it gets; fn ran for "
                f"{got['ran']}. To keep what it gave would keep the memory, too."
            )
        said = (
            "what fn was run on is still held afterwards: of a run keep the generator's state and the buffers' values, "
            "and nothing else."
        )
        holds(got, {"gone": said})

    def _left(self, call, i, state, moved, buffers, found):
        """The generator and the buffers after a call."""
        when = ", in which fn raises an error," if call == "X" else ""
        if not isinstance(state, Tensor) or not state.equal(torch.get_rng_state()):
            raise Wrong(
                f"after `first`, run {i}, the generator is not where fn leaves it: the next run draws the same numbers."
                if call in "Ff"
                else f"after `again` of run {i}{when} the generator is not where it was before it: what comes next draws "
                "the same numbers again. Put back the state of the moment."
            )
        for mine, right in zip(moved, buffers, strict=True):
            if all(map(near, mine, right)):
                continue
            if call in "Ff":
                raise Wrong(f"after `first`, run {i}, the buffers are not as fn leaves them.")
            if all(map(near, mine, found)):
                said = "They are as the first run found them: the steps since then are forgotten"
            elif int(mine[1]) > int(right[1]):
                said = "This batch is counted twice"
            else:
                said = f"They are {shown([b.tolist() for b in mine])}, and were {shown([b.tolist() for b in right])}"
            raise Wrong(
                f"after `again` of run {i}{when} the buffers are not as they were before it. {said}. Put back the values "
                "of the moment, of each buffer, into the same tensors."
            )

    def _first(self, i, mine, ys):
        if not isinstance(mine, Tensor):
            raise Wrong("`first` returns fn(*args), a tensor here.")
        if not mine.equal(ys[i]):
            draws = mine.shape != ys[i].shape or not mine.ne(0).equal(ys[i].ne(0))
            what = "random numbers" if draws else "buffers"
            raise Wrong(
                f"`first`, run {i}: other {what} than fn has by itself. Leave the generator and the buffers as they are, "
                "and only look at them."
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
        if near(mine, ys[i] * (AGAIN / FIRST)):
            return
        if mine.ne(0).equal(ys[i].ne(0)):
            raise Wrong(
                f"run {i} is repeated with its own random numbers, but fn reads other buffers than it did then. It "
                "changes them in place, so keep copies of their values as they were when the run began, and put them "
                "into the same tensors, with `copy_`, before fn runs again."
            )
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
# A chain of uneven layers: segments within a budget.
#
# Source: Chen et al. 2016, sections 3 and 4.


class Segments(Report):
    """`segments(memories, edge, budget)`: lengths of as few segments as will do within a budget of bytes."""

    name = "segments"
    right = "1 to 150 layers, equal and uneven: as few segments as the budget allows; errors where none will do."
    forbidden = FORBIDDEN
    step = 2.0
    cases = table(
        lambda memories, edge, budget: (
            f"layers of {shown(memories)} bytes, an edge of {edge}, a budget of {budget}"
        ),
        (
            ([1] * 9, 1, 9),
            ([1] * 9, 1, 5),
            ([1] * 10, 1, 4),
            ([4, 1, 1, 4, 2], 1, 6),
            ([4, 1, 1, 4, 2], 1, 5),
            ([3, 3, 8, 1], 2, 9),
            ([7], 5, 7),
            ([7], 1, 6),
            ([1] * 11, 1, 4),
            ([2, 2, 2], 0, 2),
            ([1] * 5, 1, 0),
            ([9, 9, 2, 2, 5], 3, 22),
        ),
    )
    cases += tuple(
        Case(1, f"layers drawn at random, and a budget {text}", off)
        for off, text in ((0, "of just enough"), (40, "of some more"), (-1, "one short"))
    )
    cases += (Case(1, "150 equal layers", ([4] * 150, 1, 50)),)

    def draw(self, case, rng):
        if isinstance(case.given, tuple):
            return [case.given]
        memories = [1 + m for m in integers(rng, 3, 30, integer(rng, 20, 60))]
        edge = integer(rng, 1, 4)
        enough = next(b for b in range(max(memories), 10**6) if fewest(memories, edge, b))
        return [(memories, edge, enough + case.given)]

    def run(self, comm, yours, memories, edge, budget):
        mine = list(memories)
        return attempt(True, yours, mine, edge, budget) | {"same": mine == memories}

    def check(self, case, got, memories, edge, budget):
        holds(got, {"same": "the list that was given was changed, and belongs to the caller."})
        need = fewest(memories, edge, budget)
        if "refused" in got:
            if need is None:
                return
            raise Wrong(
                f"{need} segments fit (edge {edge}, budget {budget}), and here is a ValueError: {got['refused'][:80]}"
            )
        found = got["value"]
        if need is None:
            raise Wrong(f"no cut fits, so it should be a ValueError; here is {shown(found)}.")
        found = [bare(x) for x in found] if isinstance(found, list | tuple) else found
        should = "a list of lengths: a segment has 1 layer or more, in whole numbers"
        shaped(found, [int], "the result", should)
        if min(found, default=1) < 1:
            raise Wrong(f"{shown(found)} is no {should[2:]}.")
        if sum(found) != len(memories):
            ends = (
                " Are these the places where segments end? Lengths are asked for."
                if found[-1:] == [len(memories)]
                else ""
            )
            raise Wrong(
                f"{shown(found)} are {sum(found)} layers, and there are {len(memories)}.{ends}"
            )
        peaks = peak_of(found, memories, edge)
        if max(peaks) > budget:
            worst = peaks.index(max(peaks))
            inputs = f"{worst} input{'s' * (worst != 1)}"
            raise Wrong(
                f"{shown(found)}: in segment {worst}, {inputs} of segments before it, {worst * edge} bytes, and the "
                f"{peaks[worst] - worst * edge} bytes of its own layers are alive, more than {budget}."
            )
        if len(found) > need:
            raise Wrong(
                f"{shown(found)} are {len(found)} segments, and {need} {'is' if need == 1 else 'are'} enough. "
                "Segment j has room for budget − j · edge bytes, and takes layers as long as they fit, the last that "
                "just fits, too."
            )


# ------------------------------------------------------------
# Selective recomputation by hand: a gated layer that keeps two of four wide tensors, and repeats no product.
#
# Source: Korthikanti et al. 2022, section 5; the layer: Shazeer 2020, "GLU Variants Improve Transformer".


class GatedLayer(Report):
    """`GatedLayer`, a torch.autograd.Function of (x, w1, w3, w2): two wide tensors kept, no product repeated."""

    name = "gated_layer"
    right = "7 layers, float64 and float32: output and gradients, two wide tensors kept, 3 products and 6."
    forbidden = FORBIDDEN
    step = 3.0
    cases = table("{} rows, {} wide, inside {}", ((5, 3, 16), (2, 2, 24), (7, 4, 20), (1, 3, 30)))
    cases += (
        Case(1, "a nan in dy", (3, 2, 16)),
        Case(1, "x of zeros, and of hundreds", (3, 2, 18)),
        Case(1, "many rows", (300, 2, 40)),
    )

    def draw(self, case, rng):
        rows, h, wide = case.given
        dtype = torch.float32 if h == 4 else torch.float64
        shapes = (rows, h), (h, wide), (h, wide), (wide, h), (rows, h)
        drawn = [normal(rng, *shape, dtype=dtype) for shape in shapes]
        if "nan" in case.what:
            drawn[-1][0, 1] = math.nan
        if "zeros" in case.what:  # where silu(a) is 0, or sigmoid(a) is 0 or 1 to all digits
            drawn[0][0] = 0
            drawn[0][1] *= 100
        return [tuple(drawn)]

    def run(self, comm, yours, *given):
        if not hasattr(yours, "apply"):
            raise TypeError(
                f"GatedLayer should be a torch.autograd.Function, which has `apply`, and is a {type(yours).__name__}"
            )
        rows, (h, wide) = len(given[0]), given[1].shape
        report = {}
        inputs = [x.clone().requires_grad_() for x in given[:4]]
        dy = given[4].clone()
        with (
            hints(),
            FlopCounterMode(display=False) as both,
            Held(rows * wide, rows > 100, dy.itemsize) as held,
        ):
            y = yours.apply(*inputs)
            if not isinstance(y, Tensor) or not y.requires_grad:
                return {"y": bare(y) if isinstance(y, Tensor) else None, "graph": False}
            report["kept"] = held.alive([*inputs, y])
            forward = both.get_total_flops()
            y.backward(dy)
            grads = [x.grad for x in inputs]
            report["left"] = held.alive([*inputs, y, *(g for g in grads if g is not None)])
        one = 2 * rows * h * wide
        report["products"] = [forward / one, (both.get_total_flops() - forward) / one]
        report["same"] = all(map(matches, [*inputs, dy], given))
        return report | {"y": y.detach(), "grads": grads, "graph": True}

    def check(self, case, got, *given):
        *inputs, dy = given
        x, w1, w3, w2 = leaves = [x.clone().requires_grad_() for x in inputs]
        a, b = x @ w1, x @ w3
        y = (a * a.sigmoid() * b) @ w2
        typed(got["y"], Tensor, "what `forward` returns", "y, a tensor")
        with torch.no_grad():
            looks = {
                "silu(a) is a · sigmoid(a), and not sigmoid(a).": (a.sigmoid() * b) @ w2,
                "It is a = x @ w1 that goes through silu.": (b * b.sigmoid() * a) @ w2,
            }
        close(got["y"], y.detach(), "y", looks, "It is (silu(x @ w1) * (x @ w3)) @ w2.")
        whole = "y has no graph: a torch.autograd.Function makes one when it is called by `apply`."
        holds(got, {"graph": whole})
        holds(got, {"same": "one of the inputs, or dy, was changed: it belongs to the caller."})
        y.backward(dy)
        self._gradients(got["grads"], leaves, a.detach(), b.detach(), dy)
        if got["kept"] > 2:
            raise Wrong(
                f"the gradients are right, but between forward and backward {got['kept']} tensors as wide as a, in the "
                "dtype of x, are alive, and two are enough: from a and b, silu(a) and silu(a) · b are made again without a product. (Did a graph "
                "inside `forward`, or a list, keep the others?)"
            )
        if got["left"]:
            raise Wrong(
                f"after backward there are still tensors as wide as a: {got['left']}. What is saved with "
                "`save_for_backward` goes by itself, and what stays on ctx, or in a graph that is retained, does not."
            )
        forward, backward = got["products"]
        if (forward, backward) != (3, 6):
            why = "Products on the CPU are counted, and what is computed out of sight is not."
            if backward > 6 or forward > 3:
                why = "Keep what large products have made, and forget what is cheap: a checkpoint runs the products again."
            raise Wrong(
                f"the gradients are right, but the FLOPs are those of {forward:g} products in forward and of {backward:g} "
                f"in backward, and should be those of 3 and 6. {why}"
            )

    def _gradients(self, grads, leaves, a, b, dy):
        x, w1, w3, w2 = (leaf.detach() for leaf in leaves)
        s = a.sigmoid()
        dwide = dy @ w2.T
        slope = s * (1 + a * (1 - s))
        da, db = dwide * b * slope, dwide * a * s
        flat = "The derivative of silu is s · (1 + a · (1 − s)), with s = sigmoid(a): silu(a) is a · s, and both change."
        gate = "A product has two ways back: da gets the factor b, and db gets silu(a)."
        both = "x goes into two products, and the gradients of both ways are added."
        looks = {
            "w2": {
                "What went into w2 is silu(a) · b, and not silu(a).": (a * s).T @ dy,
                "What went into w2 is silu(a) · b, and not a · b.": (a * b).T @ dy,
            },
            "w1": {
                f"{flat} Here it is s.": x.T @ (dwide * b * s),
                f"{flat} Here it is s · (1 − s).": x.T @ (dwide * b * s * (1 - s)),
                gate: x.T @ (dwide * slope),
                "That is the gradient of w3.": x.T @ db,
            },
            "w3": {
                gate: x.T @ dwide,
                "db gets silu(a), and not a.": x.T @ (dwide * a),
                "That is the gradient of w1.": x.T @ da,
            },
            "x": {f"{both} Only w1's is here.": da @ w1.T, f"{both} Only w3's is here.": db @ w3.T},
        }
        rule = (
            "Go back step by step, and return the gradients in the order of the inputs: x, w1, w3, w2. If it is nearly "
            "right: was something kept in fewer bits? If it is nan: what do you divide by, or take the logarithm of?"
        )
        for i, name in ((3, "w2"), (1, "w1"), (2, "w3"), (0, "x")):
            none = f"{name} gets no gradient: `backward` returns one for each of x, w1, w3 and w2."
            holds({name: grads[i] is not None}, {name: none})
            close(grads[i], leaves[i].grad, f"the gradient of {name}", looks[name], rule)


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
# Numbers foretold: bytes, segments, work, a share.


def predict_remat(L=100, a=400e6, x=100e6, k=10, heads=128, s=2048, h=20480):
    """100 layers that keep 400 MB each, of which 100 MB are their input: bytes whole and in 10 segments, the best k of
    those that divide 100, the work of 10 segments; bytes and work of 64 of them by halves; selective's share for 128
    heads, 2,048 tokens, h = 20,480; the fewest activations of unequal segments, where a layer keeps one.
    """
    peak = lambda n: (n - 1) * x + L / n * a
    best = min((n for n in range(1, L + 1) if L % n == 0), key=peak)
    core = 5 * heads * s / h
    room = next(b for b in range(L + 1) if b * (b + 1) // 2 >= L)
    values = {
        "plain_bytes": L * a,
        "segment_bytes": peak(k),
        "best": best,
        "work": (4 - 1 / k) / 3,
        "halves": 6 * x + a,
        "halves_work": 2.0,
        "share": core / (34 + core),
        "uneven": room,
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
            7 * a: "Six inputs are held, of 100 MB each, and one layer whole.",
        },
        "share": {
            core / 34: "Of all that is kept: 34 + 5as/h.",
            34 / (34 + core): "That is what stays.",
            100 * core / (34 + core): "A part of 1, not per cent.",
        },
        "halves_work": {
            3.0: "Each of 6 halvings repeats 32 layers, not all 64.",
            4 / 3: "That is with segments: by halves a layer runs more often than twice.",
            4.0: "192 forwards more, over 192 of a step without: a backward costs two forwards.",
            6.0: "Over a step without: divide by 3.",
        },
        "uneven": {
            room
            - 1: f"{room - 1} + {room - 2} + … + 1 is {room * (room - 1) // 2}, fewer than there are layers.",
            2 * math.isqrt(L) - 1: "That is 2√L − 1, with equal segments.",
            math.isqrt(L): "That is √L; the first of unequal segments is longer.",
            L: "That is all of them.",
            (2 * L) ** 0.5: "√(2L), to a whole number of activations that is enough.",
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
    "Bytes, segments, work and share: within 1 %.",
    {
        "L": ("{} layers", (80, 120)),
        "k": ("{} segments", (8, 20)),
        "heads": ("{} heads", (64, 96, 160)),
    },
)
