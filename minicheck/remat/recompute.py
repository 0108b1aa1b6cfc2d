"""The exercise of lesson 08 about a checkpoint as an autograd function.

Looked at: gradients; what of the blocks' tensors is alive between forward and backward, and in backward; how often a
block runs. In one case blocks are others when they run again, and that run counts: nothing of the first can be left.
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section 4, Algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minidist.comm.base import Comm

from ..exam import Case, Exam, ask
from ..wrong import Wrong
from .oracle import FORBIDDEN, rerun

ROWS, WIDTH = 7, 5
HINTS = {
    "does not require grad": ". Inside `backward` no graph is made, unless you say so: torch.enable_grad(), "
    "around the call of fn",
    "a second time": ". The x that was saved still has its history: detach it",
    "incorrect number of gradients": ". `backward` returns one for each input of `forward`",
}


class Held(TorchDispatchMode):
    """Notes each memory that is made; `alive(but)` counts those that are still held, but for those of `but`.

    runs: how often a block ran, by its last operator.
    """

    def __init__(self):
        super().__init__()
        self.made, self.runs = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.runs += func is torch.ops.aten.sin.default
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.numel() >= ROWS * WIDTH:
                self.made[x.untyped_storage()._cdata] = StorageWeakRef(x.untyped_storage())
        return out

    def alive(self, but: list[Tensor]) -> int:
        free = {x.untyped_storage()._cdata for x in but}
        return sum(not memory.expired() for key, memory in self.made.items() if key not in free)


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
    y = hidden[-1]
    met = meet(blocks, hidden)
    for block in blocks:
        block.factor = factor
    if isinstance(y, Tensor) and y.requires_grad:
        dy = torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).view_as(y)
        if back is None:
            y.backward(dy)
        else:
            back(order, hidden[:-1], dy)
    grads = [p.grad for pair in weights for p in pair]
    return {
        "y": y if isinstance(y, Tensor) else None,
        "grads": grads,
        "x": x.grad,
        "met": met,
        "calls": [block.calls for block in blocks],
    }


def alike(mine, right: Tensor) -> bool:
    """The same numbers, but for the order of sums."""
    shaped = isinstance(mine, Tensor) and mine.shape == right.shape
    return shaped and torch.allclose(mine, right, rtol=1e-12, atol=1e-12)


class Recompute(Exam):
    name = "recompute"
    right = "1 to 3 blocks, one of them used twice, data or not: the gradients, only inputs kept, a block at a time."
    forbidden = FORBIDDEN
    step = 4.0
    cases = (
        Case(1, "2 blocks", (2, True, 1.0)),
        Case(1, "1 block, used twice", (1, True, 1.0)),
        Case(1, "3 blocks, and the input is data", (3, False, 1.0)),
        Case(1, "2 blocks, three times as large when they run again", (2, True, 3.0)),
    )

    def draw(self, case, rng):
        blocks, learn, factor = case.given
        drawn = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)
        return [
            (
                [(drawn(WIDTH, WIDTH), drawn(WIDTH)) for _ in range(blocks)],
                drawn(ROWS, WIDTH),
                learn,
                factor,
            )
        ]

    def run(self, comm: Comm, yours, *given):
        if not hasattr(yours, "apply"):
            raise TypeError(
                f"Recompute should be a torch.autograd.Function, which has `apply`, and is a "
                f"{type(yours).__name__}"
            )
        form, begins = lambda fn, x: yours.apply(fn, torch.empty(0, requires_grad=True), x), []

        def meet(blocks, hidden):
            for block in blocks:
                block.begin = lambda: begins.append(held.alive(hidden))
            return held.alive(hidden), [list(b.calls) for b in blocks]

        with Held() as held:
            try:
                return chained(form, *given, meet=meet) | {"runs": held.runs, "begins": begins}
            except RuntimeError as error:
                hint = next((hint for words, hint in HINTS.items() if words in str(error)), "")
                error.args = (str(error).partition(". ")[0] + hint,)
                raise

    def judge(self, case, args, outcome):
        got, plain = outcome.results[0], chained(lambda fn, x: fn(x), *args[0])
        want = plain if case.given[2] == 1 else chained(lambda fn, x: fn(x), *args[0], back=rerun)
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
                f"between forward and backward, tensors are alive that are neither input nor output of a "
                f"block: {left}. Keep x, and nothing that fn makes.{graph}"
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
        if want is not plain and all(map(alike, got["grads"], plain["grads"])):
            raise Wrong(
                "fn runs again in backward, but the gradients are those of its first run: so something of that "
                "was kept. Start the backward of what the second run gives."
            )
        self._gradients(got, want)

    def _again(self, calls: list[list[bool]], first: list[int]) -> None:
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

    def _gradients(self, got: dict, want: dict) -> None:
        for i, (mine, right) in enumerate(zip(got["grads"], want["grads"], strict=True)):
            name = f"the {'w' if i % 2 == 0 else 'b'} of block {i // 2}"
            if not isinstance(mine, Tensor) or (i % 2 == 0 and mine.equal(torch.ones_like(mine))):
                raise Wrong(
                    f"{name} gets no gradient: `backward` of what fn gives, in `backward`, adds to those of "
                    "the parameters on its way."
                )
            if i % 2 == 0 and mine.shape == right.shape and mine.equal(right - 1):
                raise Wrong(f"what stood in .grad of {name} before is gone: gradients are added.")
            if not alike(mine, right):
                raise Wrong(
                    f"the gradient of {name} is wrong. Does dy go into the backward, and the gradient of x "
                    "come out of it, for this x alone (detached), and once?"
                )
        if (got["x"] is None) != (want["x"] is None):
            raise Wrong("the input of the first block needs a gradient, and gets none.")
        if want["x"] is not None and not alike(got["x"], want["x"]):
            raise Wrong(
                "the gradients of the parameters are right, but that of the first input is not: `backward` "
                "returns it, once."
            )


def recompute(yours) -> None:
    """`Recompute`, a torch.autograd.Function of (fn, alive, x): keeps x, and runs fn again in backward."""
    ask(Recompute(), yours)
