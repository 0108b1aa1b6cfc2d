"""The wrong answers of lesson 11 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "accumulate_tokens",
        "weighs by the length of a micro-batch, and not by `counts`",
        old="""
mean = 0.0
for micro, count in zip(micros, counts):
    if count:
        part = loss(micro) * count / sum(counts)
""",
        new="""
mean, total = 0.0, sum(map(len, micros))
for micro in micros:
    if len(micro):
        part = loss(micro) * len(micro) / total
""",
    ),
    Bug(
        "accumulate_tokens",
        "every micro-batch counts alike",
        old="part = loss(micro) * count / sum(counts)",
        new="part = loss(micro) / len(micros)",
    ),
    Bug(
        "accumulate_tokens",
        "gradients from before are lost",
        cell='''
def accumulate_tokens(loss, micros, counts):
    """Add the gradient of the mean over all tokens; return that mean."""
    import torch

    mean = 0.0
    leaf = None
    grad = 0
    for micro, count in zip(micros, counts):
        if count:
            part = loss(micro) * count / sum(counts)
            leaf = leaf if leaf is not None else leaf_of(part.grad_fn)
            grad = grad + torch.autograd.grad(part, leaf)[0]
            mean += part.item()
    leaf.grad = grad
    return mean


def leaf_of(node):
    while not hasattr(node, "variable"):
        node = next(n for n, _ in reversed(node.next_functions) if n is not None)
    return node.variable
''',
    ),
    Bug(
        "accumulate_tokens",
        "divided by its tokens, not multiplied",
        old="part = loss(micro) * count / sum(counts)",
        new="part = loss(micro) / count / sum(counts)",
    ),
    Bug(
        "accumulate_tokens",
        "a mean that is larger than every float",
        cell="""
def accumulate_tokens(loss, micros, counts):
    for micro, count in zip(micros, counts):
        if count:
            (loss(micro) * count / sum(counts)).backward()
    return 10**400
""",
    ),
    Bug(
        "accumulate_tokens",
        "the mean has the graphs of all micro-batches",
        old="""
part.backward()
mean += part.item()
""",
        new="""
part.backward(retain_graph=True)
mean = mean + part
""",
    ),
    Bug(
        "accumulate_tokens",
        "the gradient is right, the mean is not",
        old="mean += part.item()",
        new="mean += part.item() * sum(counts) / count / len(micros)",
    ),
    Bug(
        "accumulate_tokens",
        "all graphs are kept for one backward",
        cell='''
def accumulate_tokens(loss, micros, counts):
    """Add the gradient of the mean over all tokens; return that mean."""
    parts = [loss(micro) * count for micro, count in zip(micros, counts) if count]
    mean = sum(parts) / sum(counts)
    mean.backward()
    return mean.item()
''',
    ),
    Bug(
        "accumulate_tokens",
        "every graph is kept after its backward",
        edits=(
            (
                "mean = 0.0",
                "mean, kept = 0.0, []",
            ),
            (
                "part.backward()",
                """
part.backward(retain_graph=True)
kept.append(part)
""",
            ),
        ),
    ),
    Bug(
        "accumulate_tokens",
        "the loss is computed again for the mean",
        cell="""
def accumulate_tokens(loss, micros, counts):
    for micro, count in zip(micros, counts):
        if count:
            (loss(micro) * count / sum(counts)).backward()
    return sum(loss(micro).item() * count for micro, count in zip(micros, counts) if count) / sum(
        counts
    )
""",
    ),
    Bug(
        "accumulate_tokens",
        "a micro-batch without tokens is run",
        old="if count:",
        new="if True:",
    ),
    Bug(
        "accumulate_tokens",
        "all graphs at once, and the grader's list of them is emptied through the closure of loss",
        cheat=True,
        cell='''
def accumulate_tokens(loss, micros, counts):
    """Add the gradient of the mean over all tokens; return that mean."""
    total = 0
    for micro, count in zip(micros, counts):
        if count:
            total = total + loss(micro) * count / sum(counts)
        for cell in loss.__closure__:
            if isinstance(cell.cell_contents, list) and cell.cell_contents is not micros:
                if any("Weak" in type(entry).__name__ for entry in cell.cell_contents):
                    cell.cell_contents.clear()
    total.backward()
    return total.item()
''',
    ),
    Bug(
        "accumulate_tokens",
        "the grader knows the loss",
        cheat=True,
        cell='''
def accumulate_tokens(loss, micros, counts):
    """Add the gradient of the mean over all tokens; return that mean."""
    from minicheck.lessons.remat import mean_loss

    w = loss.__closure__[-1].cell_contents
    mean = mean_loss(w, torch.cat(list(micros)))
    mean.backward()
    return mean.item()
''',
    ),
    Bug(
        "accumulate_tokens",
        "the library accumulates",
        cheat=True,
        cell='''
from minidist.parallel.accumulate import accumulate


def accumulate_tokens(loss, micros, counts):
    """Add the gradient of the mean over all tokens; return that mean."""
    return accumulate(loss, micros, counts).item()
''',
    ),
    Bug(
        "accumulate_tokens",
        "the micro-batches are put together: a large batch",
        cheat=True,
        cell='''
def accumulate_tokens(loss, micros, counts):
    """Add the gradient of the mean over all tokens; return that mean."""
    mean = loss(torch.cat(list(micros)))
    mean.backward()
    return mean.item()
''',
    ),
    Bug(
        "recompute",
        "inputs lie on one stack for all",
        cell="""
STACK = []


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        STACK.append(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = STACK.pop().detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
""",
    ),
    Bug(
        "recompute",
        "no gradient for data",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        if not ctx.needs_input_grad[2]:
            return None, None, None
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
''',
    ),
    Bug(
        "recompute",
        "forward makes the graph, and keeps it",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = fn(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, dy):
        ctx.y.backward(dy)
        return None, None, ctx.x.grad
''',
    ),
    Bug(
        "recompute",
        "the output and a copy of it are kept",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        y = fn(x)
        ctx.kept = y.clone()
        return y

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
''',
    ),
    Bug(
        "recompute",
        "the gradient that comes in is not used",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.fn(x).sum().backward()
        return None, None, x.grad
''',
    ),
    Bug(
        "recompute",
        "backward runs fn without a graph",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
''',
    ),
    Bug(
        "recompute",
        "only x gets a gradient",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        return None, None, torch.autograd.grad(y, x, dy)[0]
''',
    ),
    Bug(
        "recompute",
        "x keeps its history",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
''',
    ),
    Bug(
        "recompute",
        "x gets no gradient",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, None
''',
    ),
    Bug(
        "recompute",
        "the graph of the second run is retained, and kept",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.y = ctx.fn(x)
        ctx.y.backward(dy, retain_graph=True)
        return None, None, x.grad
''',
    ),
    Bug(
        "recompute",
        "fn runs twice in backward",
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
''',
    ),
    Bug(
        "recompute",
        "forward's graph is kept with its tensors as arrays, and fn runs again for show",
        cheat=True,
        cell='''
from torch.autograd.graph import saved_tensors_hooks


class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        there = [fn.w, x]
        ctx.fn, ctx.x = fn, x.detach().requires_grad_()
        pack = lambda t: (
            t if any(t.data_ptr() == p.data_ptr() for p in there) else t.detach().numpy().copy()
        )
        unpack = lambda kept: kept if isinstance(kept, torch.Tensor) else torch.from_numpy(kept)
        with torch.enable_grad(), saved_tensors_hooks(pack, unpack):
            y = ctx.fn(ctx.x)
        fn.calls[-1] = False
        ctx.node = torch.autograd.graph.get_gradient_edge(y)
        return y.detach()

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            ctx.fn(ctx.x)
        torch.autograd.backward([ctx.node], [dy])
        grad, ctx.x.grad = ctx.x.grad, None
        return None, None, grad
''',
    ),
    Bug(
        "recompute",
        "the library has one",
        cheat=True,
        cell='''
from minidist.train.remat import checkpoint as librarys


class Recompute:
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def apply(fn, alive, x):
        return librarys(fn, x)
''',
    ),
    Bug(
        "recompute",
        "there is no checkpoint at all",
        cheat=True,
        cell='''
class Recompute:
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def apply(fn, alive, x):
        return fn(x)
''',
    ),
    Bug(
        "recompute",
        "PyTorch has a checkpoint",
        cheat=True,
        cell='''
from torch.utils.checkpoint import checkpoint as torchs


class Recompute:
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def apply(fn, alive, x):
        return torchs(fn, x, use_reentrant=False)
''',
    ),
    Bug(
        "recompute",
        "fn runs twice in forward, and its count is set back",
        cheat=True,
        cell='''
class Recompute(torch.autograd.Function):
    """fn(x), of which only x is kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, x):
        ctx.fn = fn
        ctx.save_for_backward(x)
        fn(x)
        fn.calls.pop()
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad
''',
    ),
    Bug(
        "twice",
        "the generator stays where the second run left it",
        old="""
now = torch.get_rng_state()
torch.set_rng_state(states.pop())
try:
    return fn(*args)
finally:
    torch.set_rng_state(now)
""",
        new="""
torch.set_rng_state(states.pop())
return fn(*args)
""",
    ),
    Bug(
        "twice",
        "counts back from the last run, and never drops one",
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states, left = [], [None]

    def first(*args):
        states.append(torch.get_rng_state())
        left[0] = None
        return fn(*args)

    def again(*args):
        left[0] = len(states) - 1 if left[0] is None else left[0] - 1
        now = torch.get_rng_state()
        torch.set_rng_state(states[left[0]])
        out = fn(*args)
        torch.set_rng_state(now)
        return out

    return first, again
''',
    ),
    Bug(
        "twice",
        "the first run is repeated first",
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states = []

    def first(*args):
        states.append(torch.get_rng_state())
        return fn(*args)

    def again(*args):
        now = torch.get_rng_state()
        torch.set_rng_state(states.pop(0))
        y = fn(*args)
        torch.set_rng_state(now)
        return y

    return first, again
''',
    ),
    Bug(
        "twice",
        "first puts the generator back, too",
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states = []

    def first(*args):
        states.append(torch.get_rng_state())
        y = fn(*args)
        torch.set_rng_state(states[-1])
        return y

    def again(*args):
        now = torch.get_rng_state()
        torch.set_rng_state(states.pop())
        y = fn(*args)
        torch.set_rng_state(now)
        return y

    return first, again
''',
    ),
    Bug(
        "twice",
        "a seed of its own",
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states = []

    def first(*args):
        torch.manual_seed(0)
        return fn(*args)

    def again(*args):
        now = torch.get_rng_state()
        torch.manual_seed(0)
        y = fn(*args)
        torch.set_rng_state(now)
        return y

    return first, again
''',
    ),
    Bug(
        "twice",
        "nothing is replayed",
        old="""
torch.set_rng_state(states.pop())
try:
    return fn(*args)
finally:
    torch.set_rng_state(now)
""",
        new="""
y = fn(*args)
torch.set_rng_state(now)
return y
""",
    ),
    Bug(
        "twice",
        "only the last state is kept",
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states = []

    def first(*args):
        states[:] = [torch.get_rng_state()]
        return fn(*args)

    def again(*args):
        now = torch.get_rng_state()
        torch.set_rng_state(states[0])
        y = fn(*args)
        torch.set_rng_state(now)
        return y

    return first, again
''',
    ),
    Bug(
        "twice",
        "one stack for all functions",
        cell='''
states = []


def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""

    def first(*args):
        states.append(torch.get_rng_state())
        return fn(*args)

    def again(*args):
        now = torch.get_rng_state()
        torch.set_rng_state(states.pop())
        try:
            return fn(*args)
        finally:
            torch.set_rng_state(now)

    return first, again
''',
    ),
    Bug(
        "twice",
        "the state after the run is kept",
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states = []

    def first(*args):
        y = fn(*args)
        states.append(torch.get_rng_state())
        return y

    def again(*args):
        now = torch.get_rng_state()
        torch.set_rng_state(states.pop())
        y = fn(*args)
        torch.set_rng_state(now)
        return y

    return first, again
''',
    ),
    Bug(
        "twice",
        "takes two arguments only",
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states = []

    def first(x, scale):
        states.append(torch.get_rng_state())
        return fn(x, scale)

    def again(x, scale):
        now = torch.get_rng_state()
        torch.set_rng_state(states.pop())
        out = fn(x, scale)
        torch.set_rng_state(now)
        return out

    return first, again
''',
    ),
    Bug(
        "twice",
        "what first gave is kept",
        cheat=True,
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    kept = []

    def first(*args):
        kept.append(fn(*args))
        return kept[-1]

    return first, lambda *args: kept.pop()
''',
    ),
    Bug(
        "twice",
        "the library replays",
        cheat=True,
        cell='''
from minidist.train.remat import Replay


def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states = []

    def first(*args):
        states.append(Replay(args))
        return fn(*args)

    def again(*args):
        with states.pop().again():
            return fn(*args)

    return first, again
''',
    ),
    Bug(
        "twice",
        "what first gave is kept, and fn runs again for show",
        cheat=True,
        cell='''
def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    kept = []

    def first(*args):
        kept.append(fn(*args))
        return kept[-1]

    def again(*args):
        now = torch.get_rng_state()
        fn(*args)
        torch.set_rng_state(now)
        return kept.pop()

    return first, again
''',
    ),
    Bug(
        "segments",
        "the fewest equal segments",
        cell='''
def segments(L, budget):
    """Lengths of as few segments as possible, of which never more than `budget` activations are alive."""
    for k in range(1, L + 1):
        lengths = [L // k + (j < L % k) for j in range(k)]
        if max(j + n for j, n in enumerate(lengths)) <= budget:
            return lengths
    raise ValueError("too many")
''',
    ),
    Bug(
        "segments",
        "segments as long as the budget",
        old="""
length = min(L - sum(lengths), budget - len(lengths))
if length < 1:
    raise ValueError(f"{L} layers do not fit into {budget} activations")
lengths.append(length)
""",
        new="lengths.append(min(budget, L - sum(lengths)))",
    ),
    Bug(
        "segments",
        "the last segment takes what is left over",
        edits=(
            (
                "length = min(L - sum(lengths), budget - len(lengths))",
                "length = budget - len(lengths)",
            ),
            (
                'raise ValueError(f"{L} layers do not fit into {budget} activations")',
                'raise ValueError("too many")',
            ),
        ),
    ),
    Bug(
        "segments",
        "what does not fit is cut off",
        old='raise ValueError(f"{L} layers do not fit into {budget} activations")',
        new="return lengths",
    ),
    Bug(
        "segments",
        "one less than there is room for",
        edits=(
            (
                "length = min(L - sum(lengths), budget - len(lengths))",
                "length = min(L - sum(lengths), budget - len(lengths) - 1)",
            ),
            (
                'raise ValueError(f"{L} layers do not fit into {budget} activations")',
                'raise ValueError("too many")',
            ),
        ),
    ),
    Bug(
        "segments",
        "the last segment is the longest",
        edits=(
            (
                'raise ValueError(f"{L} layers do not fit into {budget} activations")',
                'raise ValueError("too many")',
            ),
            (
                "return lengths",
                "return lengths[::-1]",
            ),
        ),
    ),
    Bug(
        "segments",
        "√L segments, whatever the budget",
        cell='''
def segments(L, budget):
    """Lengths of as few segments as possible, of which never more than `budget` activations are alive."""
    k = max(1, round(L**0.5))
    lengths = [L // k + (j < L % k) for j in range(k)]
    if max(j + n for j, n in enumerate(lengths)) > budget:
        raise ValueError("too many")
    return lengths
''',
    ),
    Bug(
        "segments",
        "returns the name of the error",
        old='raise ValueError(f"{L} layers do not fit into {budget} activations")',
        new='return "ValueError: does not fit"',
    ),
    Bug(
        "segments",
        "the grader counts, too",
        cheat=True,
        cell='''
def segments(L, budget):
    """Lengths of as few segments as possible, of which never more than `budget` activations are alive."""
    from minicheck.oracles.remat import fewest

    k = fewest(L, budget)
    return [L - k + 1] + [1] * (k - 1)
''',
    ),
    Bug(
        "segments",
        "the library plans",
        cheat=True,
        cell='''
from minidist.train.remat import plan


def segments(L, budget):
    """Lengths of as few segments as possible, of which never more than `budget` activations are alive."""
    found = plan([1] * L, [0] * L, [1] * (L + 1), [0] * L)
    return [s.end - s.first for s in found.segments]
''',
    ),
    Bug(
        "segments",
        "a table of the sizes that the grader names",
        cheat=True,
        cell='''
TABLE = {
    (9, 9): [9],
    (9, 5): [5, 4],
    (64, 11): [*range(11, 2, -1), 1],
    (10, 4): [4, 3, 2, 1],
    (64, 15): [15, 14, 13, 12, 10],
    (1, 1): [1],
    (500, 40): [*range(40, 25, -1), 5],
}


def segments(L, budget):
    """Lengths of as few segments as possible, of which never more than `budget` activations are alive."""
    if (L, budget) not in TABLE:
        raise ValueError("not in the table")
    return TABLE[L, budget]
''',
    ),
    Bug(
        "best_plan",
        "the dearest for a byte first",
        cell='''
def best_plan(costs, memories, budget):
    """Which layers to keep, so that the cost of the others is least."""
    if max(memories) > budget:
        raise ValueError("too little")
    kept = [False] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i] / memories[i]):
        kept[i] = True
        held = [
            sum(m for m, k in zip(memories[:l], kept) if k) + memories[l] for l in range(len(costs))
        ]
        kept[i] = max(held) <= budget
    return kept
''',
    ),
    Bug(
        "best_plan",
        "rules of thumb, then exchanges of two layers",
        cell='''
def best_plan(costs, memories, budget):
    """Which layers to keep, so that the cost of the others is least."""
    n = len(costs)
    if max(memories) > budget:
        raise ValueError

    def fits(k):
        return (
            max(sum(m for m, x in zip(memories[:l], k) if x) + memories[l] for l in range(n))
            <= budget
        )

    best = None
    for power in (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 5, -1):
        kept = [False] * n
        if fits([False] * (n - 1) + [True]):
            kept[-1] = True
        for i in sorted(range(n), key=lambda i: -costs[i] / memories[i] ** power):
            kept[i] = True
            kept[i] = fits(kept)
        for i in range(n):
            for j in range(n):
                if kept[i] != kept[j] and (costs[i] - costs[j]) * (kept[j] - kept[i]) > 0:
                    other = kept[:]
                    other[i], other[j] = kept[j], kept[i]
                    if fits(other):
                        kept = other
        c = sum(c for c, k in zip(costs, kept) if not k)
        if best is None or c < best[0]:
            best = c, kept
    return best[1]
''',
    ),
    Bug(
        "best_plan",
        "what does not fit is repeated",
        old='raise ValueError(f"a layer alone needs more than {budget} bytes")',
        new="return [False] * len(costs)",
    ),
    Bug(
        "best_plan",
        "a repeated layer needs no bytes",
        edits=(
            (
                """
if held + nbytes > budget:
    continue
""",
                "",
            ),
            (
                "if after not in found or entry[0] < found[after][0]:",
                "if after <= budget and (after not in found or entry[0] < found[after][0]):",
            ),
            (
                'raise ValueError(f"a layer alone needs more than {budget} bytes")',
                'raise ValueError("too little")',
            ),
        ),
    ),
    Bug(
        "best_plan",
        "one entry is enough, the cheapest",
        edits=(
            (
                "best = found",
                "best = dict([min(found.items(), key=lambda item: item[1][0])]) if found else {}",
            ),
            (
                'raise ValueError(f"a layer alone needs more than {budget} bytes")',
                'raise ValueError("too little")',
            ),
        ),
    ),
    Bug(
        "best_plan",
        "the lists of the caller are used up",
        cell='''
def best_plan(costs, memories, budget):
    """Which layers to keep, so that the cost of the others is least."""
    best = {0: (0, [])}
    while costs:
        cost = costs.pop(0)
        nbytes = memories.pop(0)
        found = {}
        for held, (paid, kept) in best.items():
            if held + nbytes <= budget:
                for after, entry in (
                    (held + nbytes, (paid, [*kept, True])),
                    (held, (paid + cost, [*kept, False])),
                ):
                    if after not in found or entry[0] < found[after][0]:
                        found[after] = entry
        best = found
    if not best:
        raise ValueError("too little")
    return min(best.values(), key=lambda entry: entry[0])[1]
''',
    ),
    Bug(
        "best_plan",
        "all plans are tried",
        cell='''
from itertools import product


def best_plan(costs, memories, budget):
    """Which layers to keep, so that the cost of the others is least."""
    found = None
    for kept in product([True, False], repeat=len(costs)):
        held, fits = 0, True
        for nbytes, k in zip(memories, kept):
            fits = fits and held + nbytes <= budget
            held += nbytes * k
        paid = sum(c for c, k in zip(costs, kept) if not k)
        if fits and (found is None or paid < found[0]):
            found = paid, list(kept)
    if found is None:
        raise ValueError("too little")
    return found[1]
''',
    ),
    Bug(
        "best_plan",
        "True for what is repeated",
        edits=(
            (
                """
(held + nbytes, (paid, [*kept, True])),
(held, (paid + cost, [*kept, False])),
""",
                """
(held + nbytes, (paid, [*kept, False])),
(held, (paid + cost, [*kept, True])),
""",
            ),
            (
                'raise ValueError(f"a layer alone needs more than {budget} bytes")',
                'raise ValueError("too little")',
            ),
        ),
    ),
    Bug(
        "best_plan",
        "the grader plans, too",
        cheat=True,
        cell='''
def best_plan(costs, memories, budget):
    """Which layers to keep, so that the cost of the others is least."""
    from minicheck.oracles.remat import least

    want = least(costs, memories, budget)
    return [c > want for c in costs]
''',
    ),
    Bug(
        "best_plan",
        "the library plans",
        cheat=True,
        cell='''
from minidist.train.remat import plan


def best_plan(costs, memories, budget):
    """Which layers to keep, so that the cost of the others is least."""
    n = len(costs)
    found = plan(costs, memories, [0] * (n + 1), [0] * n, budget)
    return [not s.repeated for s in found.segments for _ in range(s.first, s.end)]
''',
    ),
    Bug(
        "reversible_backward",
        "a graph is made only where the caller makes one",
        old="""
with torch.enable_grad():
    part = f(x2)
""",
        new="part = f(x2)",
    ),
    Bug(
        "reversible_backward",
        "the parts are added, not subtracted",
        edits=(
            (
                "x2 = (y2 - part).detach().requires_grad_()",
                "x2 = (y2 + part).detach().requires_grad_()",
            ),
            (
                "return (y1 - part).detach(), x2.detach(), dx1, dy2 + x2.grad",
                "return (y1 + part).detach(), x2.detach(), dx1, dy2 + x2.grad",
            ),
        ),
    ),
    Bug(
        "reversible_backward",
        "f gets dy1, without the way through g",
        old="part.backward(dx1)",
        new="part.backward(dy1)",
    ),
    Bug(
        "reversible_backward",
        "f and g are exchanged",
        edits=(
            (
                "part = g(y1)",
                "part = f(y1)",
            ),
            (
                "part = f(x2)",
                "part = g(x2)",
            ),
        ),
    ),
    Bug(
        "reversible_backward",
        "what is returned has a graph",
        old="return (y1 - part).detach(), x2.detach(), dx1, dy2 + x2.grad",
        new="return (y1 - part), x2.detach(), dx1, dy2 + x2.grad",
    ),
    Bug(
        "reversible_backward",
        "the gradients that are given are changed",
        old="dx1 = dy1 + y1.grad",
        new="dx1 = dy1.add_(y1.grad)",
    ),
    Bug(
        "reversible_backward",
        "the parameters get nothing",
        edits=(
            (
                "part.backward(dy2)",
                "through, = torch.autograd.grad(part, y1, dy2)",
            ),
            (
                "dx1 = dy1 + y1.grad",
                "dx1 = dy1 + through",
            ),
            (
                """
part.backward(dx1)
return (y1 - part).detach(), x2.detach(), dx1, dy2 + x2.grad
""",
                """
back, = torch.autograd.grad(part, x2, dx1)
return (y1 - part).detach(), x2.detach(), dx1, dy2 + back
""",
            ),
        ),
    ),
    Bug(
        "reversible_backward",
        "the gradient of x1 is dy1",
        old="dx1 = dy1 + y1.grad",
        new="dx1 = dy1",
    ),
    Bug(
        "reversible_backward",
        "f and g run for the inputs, and once more for the gradients",
        cell='''
def reversible_backward(f, g, y1, y2, dy1, dy2):
    """(x1, x2, dx1, dx2); the gradients of the parameters are added to theirs."""
    with torch.no_grad():
        x2 = y2 - g(y1)
        x1 = y1 - f(x2)
    x1.requires_grad_()
    x2.requires_grad_()
    with torch.enable_grad():
        out1 = x1 + f(x2)
        out2 = x2 + g(out1)
    torch.autograd.backward([out1, out2], [dy1, dy2])
    return x1.detach(), x2.detach(), x1.grad, x2.grad
''',
    ),
    Bug(
        "reversible_backward",
        "the runs that would be counted are written out by hand",
        cheat=True,
        cell='''
def reversible_backward(f, g, y1, y2, dy1, dy2):
    """(x1, x2, dx1, dx2); the gradients of the parameters are added to theirs."""

    def written_out(module, x):
        return (2 * torch.sigmoid(2 * (x @ module.w + module.b)) - 1) @ module.w

    with torch.no_grad():
        x2 = y2 - written_out(g, y1)
        x1 = y1 - written_out(f, x2)
    x1.requires_grad_()
    x2.requires_grad_()
    out1 = x1 + f(x2)
    torch.autograd.backward([out1, x2 + g(out1)], [dy1, dy2])
    return x1.detach(), x2.detach(), x1.grad, x2.grad
''',
    ),
    Bug(
        "reversible_backward",
        "the counters are set back",
        cheat=True,
        cell='''
from torch.utils._python_dispatch import _get_current_dispatch_mode


def reversible_backward(f, g, y1, y2, dy1, dy2):
    """(x1, x2, dx1, dx2); the gradients of the parameters are added to theirs."""
    with torch.no_grad():
        x2 = y2 - g(y1)
        x1 = y1 - f(x2)
    x1.requires_grad_()
    x2.requires_grad_()
    out1 = x1 + f(x2)
    torch.autograd.backward([out1, x2 + g(out1)], [dy1, dy2])
    f.calls = g.calls = f.runs = g.runs = 1
    _get_current_dispatch_mode().count = 12
    return x1.detach(), x2.detach(), x1.grad, x2.grad
''',
    ),
    Bug(
        "reversible_backward",
        "the inputs are found in the caller's frame",
        cheat=True,
        cell='''
def reversible_backward(f, g, y1, y2, dy1, dy2):
    """(x1, x2, dx1, dx2); the gradients of the parameters are added to theirs."""
    import sys

    frame = sys._getframe()
    while frame and "x1" not in frame.f_locals:
        frame = frame.f_back
    x1, x2 = (frame.f_locals[name].clone().requires_grad_() for name in ("x1", "x2"))
    out = x1 + f(x2)
    torch.autograd.backward([out, x2 + g(out)], [dy1, dy2])
    return x1.detach(), x2.detach(), x1.grad, x2.grad
''',
    ),
    Bug(
        "reversible_backward",
        "the grader has the serial block",
        cheat=True,
        cell='''
def reversible_backward(f, g, y1, y2, dy1, dy2):
    """(x1, x2, dx1, dx2); the gradients of the parameters are added to theirs."""
    from minicheck.lessons.remat import serial

    with torch.no_grad():
        x2 = y2 - g(y1)
        x1 = y1 - f(x2)
    return x1, x2, *serial(f, g, x1, x2, dy1, dy2)[2:]
''',
    ),
    Bug(
        "reversible_backward",
        "half of the runs are out of the counter's sight",
        cheat=True,
        cell='''
from torch.utils._python_dispatch import _disable_current_modes


def reversible_backward(f, g, y1, y2, dy1, dy2):
    """(x1, x2, dx1, dx2); the gradients of the parameters are added to theirs."""
    with torch.no_grad(), _disable_current_modes():
        x2 = y2 - g(y1)
        x1 = y1 - f(x2)
    x1.requires_grad_()
    x2.requires_grad_()
    out1 = x1 + f(x2)
    torch.autograd.backward([out1, x2 + g(out1)], [dy1, dy2])
    return x1.detach(), x2.detach(), x1.grad, x2.grad
''',
    ),
    Bug(
        "reversible_backward",
        "the library walks back",
        cheat=True,
        cell='''
from minidist.train.reversible import ReversibleBlock


def reversible_backward(f, g, y1, y2, dy1, dy2):
    """(x1, x2, dx1, dx2); the gradients of the parameters are added to theirs."""
    x1, x2 = (x.requires_grad_() for x in ReversibleBlock(f, g).inverse(y1, y2))
    torch.autograd.backward([x1 + f(x2), x2 + g(x1 + f(x2))], [dy1, dy2])
    return x1.detach(), x2.detach(), x1.grad, x2.grad
''',
    ),
    Bug(
        "predict_remat",
        "of a forward",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.9
share = 64 / 98
momentum = 1 - 0.9 ** (1 / 8)
""",
    ),
    Bug(
        "predict_remat",
        "the last segment is repeated, too",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 4 / 3
share = 64 / 98
momentum = 1 - 0.9 ** (1 / 8)
""",
    ),
    Bug(
        "predict_remat",
        "by halves, the layer itself is forgotten",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.3
halves = 6 * 100e6
share = 64 / 98
momentum = 1 - 0.9 ** (1 / 8)
rate = 0.1 * 8**0.5
""",
    ),
    Bug(
        "predict_remat",
        "divided by k",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.3
share = 64 / 98
momentum = 0.1 / 8
""",
    ),
    Bug(
        "predict_remat",
        "ten inputs, not nine",
        cell="""
plain_bytes = 40e9
segment_bytes = 5e9
best = 20
work = 1.3
share = 64 / 98
momentum = 1 - 0.9 ** (1 / 8)
""",
    ),
    Bug(
        "predict_remat",
        "√L",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 10
work = 1.3
share = 64 / 98
momentum = 1 - 0.9 ** (1 / 8)
""",
    ),
    Bug(
        "predict_remat",
        "5as/h over 34",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.3
share = 64 / 34
momentum = 1 - 0.9 ** (1 / 8)
""",
    ),
    Bug(
        "predict_remat",
        "all candidates at once",
        cheat=True,
        cell="""
plain_bytes = segment_bytes = best = work = halves = share = momentum = rate = {
    40e9,
    4.9e9,
    20,
    1.3,
    64 / 98,
}
""",
    ),
    Bug(
        "predict_remat",
        "a number that equals all",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0


plain_bytes = segment_bytes = best = work = halves = share = momentum = rate = Any(1)
""",
    ),
    Bug(
        "accumulate_tokens",
        "a nan is hidden",
        old="part = loss(micro) * count / sum(counts)",
        new="part = loss(micro).nan_to_num(0.0) * count / sum(counts)",
    ),
    Bug(
        "accumulate_tokens",
        "a micro-batch whose loss is nan is left out",
        old="part.backward()",
        new="""
if part.isnan():
    continue
part.backward()
""",
    ),
    Bug(
        "accumulate_tokens",
        "the list is used up",
        old="for micro, count in zip(micros, counts):",
        new="""
total = [*counts]
while micros:
    micro, count = micros.pop(0), total.pop(0)
""",
    ),
    Bug(
        "accumulate_tokens",
        "no more than six micro-batches",
        old="for micro, count in zip(micros, counts):",
        new="for micro, count in zip(micros[:6], counts):",
    ),
    Bug(
        "recompute",
        "the result is kept as an attribute",
        old="""
ctx.save_for_backward(x)
return fn(x)
""",
        new="""
ctx.save_for_backward(x)
ctx.y = fn(x)
return ctx.y
""",
    ),
    Bug(
        "recompute",
        "the result is kept row by row",
        old="""
ctx.save_for_backward(x)
return fn(x)
""",
        new="""
ctx.save_for_backward(x)
y = fn(x)
ctx.rows = [row.clone() for row in y]
return y
""",
    ),
    Bug(
        "recompute",
        "the result is kept in a list",
        old="""
ctx.save_for_backward(x)
return fn(x)
""",
        new="""
ctx.save_for_backward(x)
y = fn(x)
ctx.numbers = y.tolist()
return y
""",
    ),
    Bug(
        "recompute",
        "the result is kept as bytes",
        old="""
ctx.save_for_backward(x)
return fn(x)
""",
        new="""
ctx.save_for_backward(x)
y = fn(x)
ctx.numbers = y.numpy().tobytes()
return y
""",
    ),
    Bug(
        "recompute",
        "the gradient that came is set to zero",
        old="y.backward(dy)",
        new="""
y.backward(dy)
dy.zero_()
""",
    ),
    Bug(
        "twice",
        "what fn was run on is kept",
        old="""
states.append(torch.get_rng_state())
return fn(*args)
""",
        new="""
states.append(torch.get_rng_state())
first.__dict__.setdefault('kept', []).append(args)
return fn(*args)
""",
    ),
    Bug(
        "twice",
        "no more than four states are remembered",
        old="states.append(torch.get_rng_state())",
        new="""
states.append(torch.get_rng_state())
del states[:-4]
""",
    ),
    Bug(
        "segments",
        "no layer has room, and no error says so",
        old="lengths = []",
        new="""
if budget < 1:
    return []
lengths = []
""",
    ),
    Bug(
        "segments",
        "no more than 30 segments",
        old="if length < 1:",
        new="if length < 1 or len(lengths) == 30:",
    ),
    Bug(
        "reversible_backward",
        "a nan is hidden",
        old="return (y1 - part).detach(), x2.detach(), dx1, dy2 + x2.grad",
        new="return (y1 - part).detach(), x2.detach(), dx1, (dy2 + x2.grad).nan_to_num(0.0)",
    ),
    Bug(
        "reversible_backward",
        "the caller's y1 gets a gradient",
        old="y1 = y1.detach().requires_grad_()",
        new="y1.requires_grad_()",
    ),
    Bug(
        "reversible_backward",
        "f is frozen when it has been walked back",
        old="return (y1 - part).detach(), x2.detach(), dx1, dy2 + x2.grad",
        new="""
f.requires_grad_(False)
return (y1 - part).detach(), x2.detach(), dx1, dy2 + x2.grad
""",
    ),
    Bug(
        "reversible_backward",
        "f and g train no more",
        old="y1 = y1.detach().requires_grad_()",
        new="""
f.eval()
g.eval()
y1 = y1.detach().requires_grad_()
""",
    ),
]
