"""The wrong answers of lesson 11 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "recompute",
        "the lesson's, for one tensor",
        cell="""
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, x, *more):
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)
        return None, None, x.grad, None
""",
    ),
    Bug(
        "recompute",
        "the lesson's, and the other operands as they were",
        cell="""
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, x, *more):
        ctx.fn, ctx.more = fn, more
        ctx.save_for_backward(x)
        return fn(x, *more)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x, *ctx.more)
        y.backward(dy)
        return None, None, x.grad, *[None] * len(ctx.more)
""",
    ),
    Bug(
        "recompute",
        "the lesson's, and the other operands are constants",
        cell="""
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, x, *more):
        ctx.fn, ctx.more = fn, [m.detach() for m in more]
        ctx.save_for_backward(x)
        return fn(x, *more)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x, *ctx.more)
        y.backward(dy)
        return None, None, x.grad, *[None] * len(ctx.more)
""",
    ),
    Bug(
        "recompute",
        "every operand is said to need a gradient",
        old="""
for x, needed in zip(xs, ctx.needs_input_grad[2:]):
    x.requires_grad_(needed)
""",
        new="""
for x in xs:
    x.requires_grad_()
""",
    ),
    Bug(
        "recompute",
        "only floating-point operands that come first get a gradient",
        old="return None, None, *[x.grad for x in xs]",
        new="return None, None, xs[0].grad, *[None] * (len(xs) - 1)",
    ),
    Bug(
        "recompute",
        "the gradients are shifted by one",
        old="return None, None, *[x.grad for x in xs]",
        new="""
grads = [x.grad for x in xs if x.grad is not None]
return None, None, *grads, *[None] * (len(xs) - len(grads))
""",
    ),
    Bug(
        "recompute",
        "whether a gradient is needed is read one place too early",
        old="""
for x, needed in zip(xs, ctx.needs_input_grad[2:]):
    x.requires_grad_(needed)
""",
        new="""
for x, needed in zip(xs, ctx.needs_input_grad[1:]):
    x.requires_grad_(needed and x.is_floating_point())
""",
    ),
    Bug(
        "recompute",
        "inputs lie on one stack for all",
        cell="""
STACK = []


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, *xs):
        ctx.fn = fn
        STACK.append(xs)
        return fn(*xs)

    @staticmethod
    def backward(ctx, dy):
        xs = [x.detach() for x in STACK.pop()]
        for x, needed in zip(xs, ctx.needs_input_grad[2:]):
            x.requires_grad_(needed)
        with torch.enable_grad():
            y = ctx.fn(*xs)
        y.backward(dy)
        return None, None, *[x.grad for x in xs]
""",
    ),
    Bug(
        "recompute",
        "no gradient for data",
        old="xs = [x.detach() for x in ctx.saved_tensors]",
        new="""
if not any(ctx.needs_input_grad[2:]):
    return (None,) * len(ctx.needs_input_grad)
xs = [x.detach() for x in ctx.saved_tensors]
""",
    ),
    Bug(
        "recompute",
        "forward makes the graph, and keeps it",
        edits=(
            (
                """
ctx.save_for_backward(*xs)
return fn(*xs)
""",
                """
ctx.needed = ctx.needs_input_grad[2:]
ctx.xs = [x.detach() for x in xs]
for x, needed in zip(ctx.xs, ctx.needed):
    x.requires_grad_(needed)
with torch.enable_grad():
    ctx.y = fn(*ctx.xs)
return ctx.y.detach()
""",
            ),
            (
                """
xs = [x.detach() for x in ctx.saved_tensors]
for x, needed in zip(xs, ctx.needs_input_grad[2:]):
    x.requires_grad_(needed)
with torch.enable_grad():
    y = ctx.fn(*xs)
y.backward(dy)
""",
                """
xs = ctx.xs
ctx.y.backward(dy)
""",
            ),
        ),
    ),
    Bug(
        "recompute",
        "the output and a copy of it are kept",
        old="""
ctx.save_for_backward(*xs)
return fn(*xs)
""",
        new="""
ctx.save_for_backward(*xs)
y = fn(*xs)
ctx.kept = y.clone()
return y
""",
    ),
    Bug(
        "recompute",
        "the result is kept as an attribute",
        old="""
ctx.save_for_backward(*xs)
return fn(*xs)
""",
        new="""
ctx.save_for_backward(*xs)
y = fn(*xs)
ctx.y = y
return y
""",
    ),
    Bug(
        "recompute",
        "the result is kept row by row",
        old="""
ctx.save_for_backward(*xs)
return fn(*xs)
""",
        new="""
ctx.save_for_backward(*xs)
y = fn(*xs)
ctx.rows = [row.clone() for row in y]
return y
""",
    ),
    Bug(
        "recompute",
        "the result is kept in a list",
        old="""
ctx.save_for_backward(*xs)
return fn(*xs)
""",
        new="""
ctx.save_for_backward(*xs)
y = fn(*xs)
ctx.numbers = y.tolist()
return y
""",
    ),
    Bug(
        "recompute",
        "the result is kept as bytes",
        old="""
ctx.save_for_backward(*xs)
return fn(*xs)
""",
        new="""
ctx.save_for_backward(*xs)
y = fn(*xs)
ctx.numbers = y.numpy().tobytes()
return y
""",
    ),
    Bug(
        "recompute",
        "the gradient that comes in is not used",
        old="y.backward(dy)",
        new="y.backward(torch.ones_like(dy))",
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
        "recompute",
        "backward runs fn without a graph",
        old="""
with torch.enable_grad():
    y = ctx.fn(*xs)
""",
        new="y = ctx.fn(*xs)",
    ),
    Bug(
        "recompute",
        "only xs get gradients",
        old="y.backward(dy)",
        new="""
wanted = [x for x in xs if x.requires_grad]
for x, grad in zip(wanted, torch.autograd.grad(y, wanted, dy) if wanted else []):
    x.grad = grad
""",
    ),
    Bug(
        "recompute",
        "xs keep their history",
        old="""
xs = [x.detach() for x in ctx.saved_tensors]
for x, needed in zip(xs, ctx.needs_input_grad[2:]):
    x.requires_grad_(needed)
""",
        new="xs = ctx.saved_tensors",
    ),
    Bug(
        "recompute",
        "xs get no gradient",
        old="return None, None, *[x.grad for x in xs]",
        new="return None, None, *[None for x in xs]",
    ),
    Bug(
        "recompute",
        "the graph of the second run is retained, and kept",
        old="""
with torch.enable_grad():
    y = ctx.fn(*xs)
y.backward(dy)
""",
        new="""
with torch.enable_grad():
    ctx.y = ctx.fn(*xs)
ctx.y.backward(dy, retain_graph=True)
""",
    ),
    Bug(
        "recompute",
        "fn runs twice in backward",
        old="""
with torch.enable_grad():
    y = ctx.fn(*xs)
""",
        new="""
with torch.enable_grad():
    ctx.fn(*xs)
    y = ctx.fn(*xs)
""",
    ),
    Bug(
        "recompute",
        "forward's graph is kept with its tensors as arrays, and fn runs again for show",
        cheat=True,
        cell="""
from torch.autograd.graph import saved_tensors_hooks


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, alive, *xs):
        there = [fn.w, *xs]
        ctx.fn, ctx.xs = fn, [x.detach() for x in xs]
        for x, needed in zip(ctx.xs, ctx.needs_input_grad[2:]):
            x.requires_grad_(needed)
        pack = lambda t: (
            t if any(t.data_ptr() == p.data_ptr() for p in there) else t.detach().numpy().copy()
        )
        unpack = lambda kept: kept if isinstance(kept, torch.Tensor) else torch.from_numpy(kept)
        with torch.enable_grad(), saved_tensors_hooks(pack, unpack):
            y = ctx.fn(*ctx.xs)
        fn.calls[-1] = False
        ctx.node = torch.autograd.graph.get_gradient_edge(y)
        return y.detach()

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            ctx.fn(*ctx.xs)
        torch.autograd.backward([ctx.node], [dy])
        grads = [x.grad for x in ctx.xs]
        del ctx.xs
        return None, None, *grads
""",
    ),
    Bug(
        "recompute",
        "the library has one",
        cheat=True,
        cell="""
from minidist.train.remat import checkpoint as librarys


class Recompute:
    @staticmethod
    def apply(fn, alive, *xs):
        return librarys(fn, *xs)
""",
    ),
    Bug(
        "recompute",
        "there is no checkpoint at all",
        cheat=True,
        cell="""
class Recompute:
    @staticmethod
    def apply(fn, alive, *xs):
        return fn(*xs)
""",
    ),
    Bug(
        "recompute",
        "PyTorch has a checkpoint",
        cheat=True,
        cell="""
from torch.utils.checkpoint import checkpoint as torchs


class Recompute:
    @staticmethod
    def apply(fn, alive, *xs):
        return torchs(fn, *xs, use_reentrant=False)
""",
    ),
    Bug(
        "recompute",
        "fn runs twice in forward, and its count is set back",
        cheat=True,
        old="""
ctx.save_for_backward(*xs)
return fn(*xs)
""",
        new="""
ctx.save_for_backward(*xs)
fn(*xs)
fn.calls.pop()
return fn(*xs)
""",
    ),
    Bug(
        "recompute",
        "a tensor that is two of xs is detached once, and its gradient counts twice",
        old="""
xs = [x.detach() for x in ctx.saved_tensors]
""",
        new="""
seen = {}
xs = [seen.setdefault(x.data_ptr(), x.detach()) for x in ctx.saved_tensors]
""",
    ),
    Bug(
        "recompute",
        "what is detached is asked whether it needs a gradient",
        old="""
for x, needed in zip(xs, ctx.needs_input_grad[2:]):
    x.requires_grad_(needed)
""",
        new="""
for x in xs:
    x.requires_grad_(x.requires_grad)
""",
    ),
    Bug(
        "recompute",
        "the sum that is differentiated is made without a graph",
        old="""
y.backward(dy)
""",
        new="""
(y * dy).sum().backward()
""",
    ),
    Bug(
        "twice",
        "the lesson's: random numbers only",
        cell='''
def twice(fn, buffers):
    """(first, again): again(*args) runs fn as the last first(*args) did that was not repeated yet."""
    states = []

    def first(*args):
        states.append(torch.get_rng_state())
        return fn(*args)

    def again(*args):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(states.pop())
            return fn(*args)

    return first, again
''',
    ),
    Bug(
        "twice",
        "the buffers are put back afterwards, but fn reads those of now",
        old="""
now = look()
put(states.pop())
try:
    return fn(*args)
finally:
    put(now)
""",
        new="""
now = look()
torch.set_rng_state(states.pop()[0])
try:
    return fn(*args)
finally:
    put(now)
""",
    ),
    Bug(
        "twice",
        "the buffers stay as the first run found them",
        old="""
now = look()
put(states.pop())
try:
    return fn(*args)
finally:
    put(now)
""",
        new="""
now = look()
state = states.pop()
put(state)
try:
    return fn(*args)
finally:
    put((now[0], state[1]))
""",
    ),
    Bug(
        "twice",
        "the buffers stay where the second run left them",
        old="""
now = look()
put(states.pop())
try:
    return fn(*args)
finally:
    put(now)
""",
        new="""
now = look()
put(states.pop())
try:
    return fn(*args)
finally:
    torch.set_rng_state(now[0])
""",
    ),
    Bug(
        "twice",
        "the buffers are kept, and not their values",
        old="return torch.get_rng_state(), [b.clone() for b in buffers]",
        new="return torch.get_rng_state(), list(buffers)",
    ),
    Bug(
        "twice",
        "only the first buffer is put back",
        old="for b, value in zip(buffers, state[1]):",
        new="for b, value in zip(buffers[:1], state[1]):",
    ),
    Bug(
        "twice",
        "other tensors take the buffers' places in the list",
        old="b.copy_(value)",
        new="buffers[[b is other for other in buffers].index(True)] = value",
    ),
    Bug(
        "twice",
        "an error in fn leaves everything where it was then",
        old="""
now = look()
put(states.pop())
try:
    return fn(*args)
finally:
    put(now)
""",
        new="""
now = look()
put(states.pop())
y = fn(*args)
put(now)
return y
""",
    ),
    Bug(
        "twice",
        "the generator stays where the second run left it",
        old="""
now = look()
put(states.pop())
try:
    return fn(*args)
finally:
    put(now)
""",
        new="""
now = look()
put(states.pop())
try:
    return fn(*args)
finally:
    put((torch.get_rng_state(), now[1]))
""",
    ),
    Bug(
        "twice",
        "counts back from the last run, and never drops one",
        edits=(
            ("states = []", "states, left = [], [None]"),
            (
                """
states.append(look())
return fn(*args)
""",
                """
states.append(look())
left[0] = None
return fn(*args)
""",
            ),
            (
                "put(states.pop())",
                """
left[0] = len(states) - 1 if left[0] is None else left[0] - 1
put(states[left[0]])
""",
            ),
        ),
    ),
    Bug(
        "twice",
        "the first run is repeated first",
        old="put(states.pop())",
        new="put(states.pop(0))",
    ),
    Bug(
        "twice",
        "first puts the generator back, too",
        old="""
states.append(look())
return fn(*args)
""",
        new="""
states.append(look())
y = fn(*args)
torch.set_rng_state(states[-1][0])
return y
""",
    ),
    Bug(
        "twice",
        "first puts the buffers back, too",
        old="""
states.append(look())
return fn(*args)
""",
        new="""
states.append(look())
y = fn(*args)
put((torch.get_rng_state(), states[-1][1]))
return y
""",
    ),
    Bug(
        "twice",
        "a seed of its own",
        edits=(
            (
                """
states.append(look())
return fn(*args)
""",
                """
states.append(look())
torch.manual_seed(0)
return fn(*args)
""",
            ),
            (
                "put(states.pop())",
                """
put(states.pop())
torch.manual_seed(0)
""",
            ),
        ),
    ),
    Bug(
        "twice",
        "nothing is replayed",
        old="put(states.pop())",
        new="states.pop()",
    ),
    Bug(
        "twice",
        "only the last state is kept",
        edits=(
            (
                """
states.append(look())
return fn(*args)
""",
                """
states[:] = [look()]
return fn(*args)
""",
            ),
            ("put(states.pop())", "put(states[0])"),
        ),
    ),
    Bug(
        "twice",
        "the state after the run is kept",
        old="""
states.append(look())
return fn(*args)
""",
        new="""
y = fn(*args)
states.append(look())
return y
""",
    ),
    Bug(
        "twice",
        "what fn was run on is kept",
        old="""
states.append(look())
return fn(*args)
""",
        new="""
states.append(look())
first.__dict__.setdefault('kept', []).append(args)
return fn(*args)
""",
    ),
    Bug(
        "twice",
        "no more than four states are remembered",
        old="""
states.append(look())
return fn(*args)
""",
        new="""
states.append(look())
del states[:-4]
return fn(*args)
""",
    ),
    Bug(
        "twice",
        "takes two arguments only",
        edits=(
            ("def first(*args):", "def first(x, scale):"),
            (
                """
states.append(look())
return fn(*args)
""",
                """
states.append(look())
return fn(x, scale)
""",
            ),
            ("def again(*args):", "def again(x, scale):"),
            (
                """
    return fn(*args)
finally:
""",
                """
    return fn(x, scale)
finally:
""",
            ),
        ),
    ),
    Bug(
        "twice",
        "one stack for all functions",
        cell="""
states = []


def twice(fn, buffers):
    def look():
        return torch.get_rng_state(), [b.clone() for b in buffers]

    def put(state):
        torch.set_rng_state(state[0])
        for b, value in zip(buffers, state[1]):
            b.copy_(value)

    def first(*args):
        states.append(look())
        return fn(*args)

    def again(*args):
        now = look()
        put(states.pop())
        try:
            return fn(*args)
        finally:
            put(now)

    return first, again
""",
    ),
    Bug(
        "twice",
        "what first gave is kept",
        cheat=True,
        cell="""
def twice(fn, buffers):
    kept = []

    def first(*args):
        kept.append(fn(*args))
        return kept[-1]

    return first, lambda *args: kept.pop()
""",
    ),
    Bug(
        "twice",
        "the library replays",
        cheat=True,
        cell="""
from minidist.train.remat import Replay


def twice(fn, buffers):
    states = []

    def first(*args):
        states.append((Replay(args), [b.clone() for b in buffers]))
        return fn(*args)

    def again(*args):
        replay, values = states.pop()
        now = [b.clone() for b in buffers]
        for b, value in zip(buffers, values):
            b.copy_(value)
        with replay.again():
            y = fn(*args)
        for b, value in zip(buffers, now):
            b.copy_(value)
        return y

    return first, again
""",
    ),
    Bug(
        "twice",
        "what first gave is kept, and fn runs again for show",
        cheat=True,
        edits=(
            (
                """
states.append(look())
return fn(*args)
""",
                """
states.append(fn(*args))
return states[-1]
""",
            ),
            ("put(states.pop())", "y = states.pop()"),
            (
                """
    return fn(*args)
finally:
""",
                """
    fn(*args)
    return y
finally:
""",
            ),
        ),
    ),
    Bug(
        "twice",
        "after an error in fn the generator is put back, and the buffers are not",
        cell="""
def twice(fn, buffers):
    states = []

    def first(*args):
        states.append((torch.get_rng_state(), [b.clone() for b in buffers]))
        return fn(*args)

    def again(*args):
        random, old = states.pop()
        now = [b.clone() for b in buffers]
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(random)
            for b, value in zip(buffers, old):
                b.copy_(value)
            y = fn(*args)
        for b, value in zip(buffers, now):
            b.copy_(value)
        return y

    return first, again
""",
    ),
    Bug(
        "segments",
        "the fewest equal segments",
        cell="""
def segments(memories, edge, budget):
    L = len(memories)
    for k in range(1, L + 1):
        lengths = [L // k + (j < L % k) for j in range(k)]
        ends = [sum(lengths[: j + 1]) for j in range(k)]
        if all(
            j * edge + sum(memories[end - n : end]) <= budget
            for j, (n, end) in enumerate(zip(lengths, ends))
        ):
            return lengths
    raise ValueError("too many")
""",
    ),
    Bug(
        "segments",
        "√L segments, whatever the budget",
        cell="""
def segments(memories, edge, budget):
    L = len(memories)
    for k in [max(1, round(L**0.5))]:
        lengths = [L // k + (j < L % k) for j in range(k)]
        ends = [sum(lengths[: j + 1]) for j in range(k)]
        if all(
            j * edge + sum(memories[end - n : end]) <= budget
            for j, (n, end) in enumerate(zip(lengths, ends))
        ):
            return lengths
    raise ValueError("too many")
""",
    ),
    Bug(
        "segments",
        "the lesson's lengths for equal layers",
        cell="""
def segments(memories, edge, budget):
    lengths, left = [], len(memories)
    while left:
        length = min(left, budget - len(lengths))
        if length < 1:
            raise ValueError("too many")
        lengths.append(length)
        left -= length
    return lengths
""",
    ),
    Bug(
        "segments",
        "inputs of other segments are forgotten",
        old="room = budget - len(lengths) * edge",
        new="room = budget",
    ),
    Bug(
        "segments",
        "the segment's own input counts twice",
        old="room = budget - len(lengths) * edge",
        new="room = budget - (len(lengths) + 1) * edge",
    ),
    Bug(
        "segments",
        "an edge has one byte",
        old="room = budget - len(lengths) * edge",
        new="room = budget - len(lengths)",
    ),
    Bug(
        "segments",
        "a layer that just fits is left for the next segment",
        old="while at < len(memories) and memories[at] <= room:",
        new="while at < len(memories) and memories[at] < room:",
    ),
    Bug(
        "segments",
        "what does not fit is cut off",
        old='raise ValueError(f"layer {at} does not fit into {budget} bytes")',
        new="return lengths",
    ),
    Bug(
        "segments",
        "what does not fit is put in all the same",
        old='raise ValueError(f"layer {at} does not fit into {budget} bytes")',
        new="length, at = 1, at + 1",
    ),
    Bug(
        "segments",
        "returns the name of the error",
        old='raise ValueError(f"layer {at} does not fit into {budget} bytes")',
        new="return 'ValueError: does not fit'",
    ),
    Bug(
        "segments",
        "the last segment is the longest",
        old="return lengths",
        new="return lengths[::-1]",
    ),
    Bug(
        "segments",
        "the places where segments end",
        old="lengths.append(length)",
        new="lengths.append(at)",
    ),
    Bug(
        "segments",
        "the layers are sorted",
        old="lengths = []",
        new="""
memories = sorted(memories)
lengths = []
""",
    ),
    Bug(
        "segments",
        "the list is used up",
        cell="""
def segments(memories, edge, budget):
    lengths = []
    while memories:
        room, length = budget - len(lengths) * edge, 0
        while memories and memories[0] <= room:
            room -= memories.pop(0)
            length += 1
        if length == 0:
            raise ValueError("it does not fit")
        lengths.append(length)
    return lengths
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
        "no more than three segments",
        old="if length == 0:",
        new="if length == 0 or len(lengths) == 3:",
    ),
    Bug(
        "segments",
        "the grader counts, too",
        cheat=True,
        cell="""
def segments(memories, edge, budget):
    from minicheck.oracles.remat import fewest

    k = fewest(memories, edge, budget)
    return [len(memories) - k + 1] + [1] * (k - 1)
""",
    ),
    Bug(
        "segments",
        "the library plans",
        cheat=True,
        cell="""
from minidist.train.remat import plan


def segments(memories, edge, budget):
    n = len(memories)
    found = plan([1] * n, memories, [edge] * (n + 1), [0] * n, budget)
    return [s.end - s.first for s in found.segments]
""",
    ),
    Bug(
        "segments",
        "a table of the layers that the grader names",
        cheat=True,
        cell="""
TABLE = {
    (9, 1, 9): [9],
    (9, 1, 5): [5, 4],
    (10, 1, 4): [4, 3, 2, 1],
    (5, 1, 6): [3, 2],
    (4, 2, 9): [2, 1, 1],
    (1, 5, 7): [1],
}


def segments(memories, edge, budget):
    if (len(memories), edge, budget) not in TABLE:
        raise ValueError("not in the table")
    return TABLE[len(memories), edge, budget]
""",
    ),
    Bug(
        "gated_layer",
        "the lesson's checkpoint: the products run again",
        cell="""
class Naive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *xs):
        ctx.save_for_backward(*xs)
        return whole(*xs)

    @staticmethod
    def backward(ctx, dy):
        xs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            y = whole(*xs)
        y.backward(dy)
        return tuple(x.grad for x in xs)


def whole(x, w1, w3, w2):
    return (nn.functional.silu(x @ w1) * (x @ w3)) @ w2


GatedLayer = Naive
""",
    ),
    Bug(
        "gated_layer",
        "b is computed again",
        edits=(
            (
                """
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
                """
ctx.save_for_backward(x, w1, w3, w2, a)
return (a * a.sigmoid() * b) @ w2
""",
            ),
            (
                "x, w1, w3, w2, a, b = ctx.saved_tensors",
                """
x, w1, w3, w2, a = ctx.saved_tensors
b = x @ w3
""",
            ),
        ),
    ),
    Bug(
        "gated_layer",
        "silu(a) is kept as well",
        edits=(
            (
                """
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
                """
silu = a * a.sigmoid()
ctx.save_for_backward(x, w1, w3, w2, a, b, silu)
return (silu * b) @ w2
""",
            ),
            (
                "x, w1, w3, w2, a, b = ctx.saved_tensors",
                "x, w1, w3, w2, a, b, silu = ctx.saved_tensors",
            ),
        ),
    ),
    Bug(
        "gated_layer",
        "all four are kept, as autograd does",
        edits=(
            (
                """
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
                """
s = a.sigmoid()
wide = a * s * b
ctx.save_for_backward(x, w1, w3, w2, a, b, s, wide)
return wide @ w2
""",
            ),
            (
                """
x, w1, w3, w2, a, b = ctx.saved_tensors
s = a.sigmoid()
""",
                "x, w1, w3, w2, a, b, s, wide = ctx.saved_tensors",
            ),
            ("dw2 = (silu * b).T @ dy", "dw2 = wide.T @ dy"),
        ),
    ),
    Bug(
        "gated_layer",
        "one of them is kept on ctx, and stays",
        edits=(
            (
                """
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
                """
ctx.a = a
ctx.save_for_backward(x, w1, w3, w2, b)
return (a * a.sigmoid() * b) @ w2
""",
            ),
            (
                "x, w1, w3, w2, a, b = ctx.saved_tensors",
                """
x, w1, w3, w2, b = ctx.saved_tensors
a = ctx.a
""",
            ),
        ),
    ),
    Bug(
        "gated_layer",
        "one is kept as a list of numbers",
        old="""
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
        new="""
ctx.numbers = [(a * a.sigmoid()).tolist(), a.tolist()]
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
    ),
    Bug(
        "gated_layer",
        "a and silu(a) · b are kept, and b is what a division leaves",
        edits=(
            (
                "ctx.save_for_backward(x, w1, w3, w2, a, b)",
                "ctx.save_for_backward(x, w1, w3, w2, a, a * a.sigmoid() * b)",
            ),
            (
                """
x, w1, w3, w2, a, b = ctx.saved_tensors
s = a.sigmoid()
silu = a * s
""",
                """
x, w1, w3, w2, a, wide = ctx.saved_tensors
s = a.sigmoid()
silu = a * s
b = wide / silu
""",
            ),
        ),
    ),
    Bug(
        "gated_layer",
        "sigmoid(a) and b are kept, and a is made of it by a logarithm",
        edits=(
            (
                "ctx.save_for_backward(x, w1, w3, w2, a, b)",
                "ctx.save_for_backward(x, w1, w3, w2, a.sigmoid(), b)",
            ),
            (
                """
x, w1, w3, w2, a, b = ctx.saved_tensors
s = a.sigmoid()
""",
                """
x, w1, w3, w2, s, b = ctx.saved_tensors
a = torch.logit(s)
""",
            ),
        ),
    ),
    Bug(
        "gated_layer",
        "all are kept, two in one complex tensor",
        cheat=True,
        edits=(
            (
                """
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
                """
s = a.sigmoid()
ctx.save_for_backward(x, w1, w3, w2, torch.complex(a, b), torch.complex(s, a * s))
return (a * s * b) @ w2
""",
            ),
            (
                """
x, w1, w3, w2, a, b = ctx.saved_tensors
s = a.sigmoid()
silu = a * s
""",
                """
x, w1, w3, w2, pair, other = ctx.saved_tensors
a, b = pair.real, pair.imag
s, silu = other.real, other.imag
""",
            ),
        ),
    ),
    Bug(
        "gated_layer",
        "the derivative of a sigmoid",
        old="da = dwide * b * s * (1 + a * (1 - s))",
        new="da = dwide * b * s * (1 - s)",
    ),
    Bug(
        "gated_layer",
        "a · s as if s were a constant",
        old="da = dwide * b * s * (1 + a * (1 - s))",
        new="da = dwide * b * s",
    ),
    Bug(
        "gated_layer",
        "da without the gate",
        old="da = dwide * b * s * (1 + a * (1 - s))",
        new="da = dwide * s * (1 + a * (1 - s))",
    ),
    Bug(
        "gated_layer",
        "db without silu(a)",
        old="db = dwide * silu",
        new="db = dwide",
    ),
    Bug(
        "gated_layer",
        "db with a",
        old="db = dwide * silu",
        new="db = dwide * a",
    ),
    Bug(
        "gated_layer",
        "x gets one way only",
        old="dx = da @ w1.T + db @ w3.T",
        new="dx = da @ w1.T",
    ),
    Bug(
        "gated_layer",
        "the gate is missing in w2's gradient",
        old="dw2 = (silu * b).T @ dy",
        new="dw2 = silu.T @ dy",
    ),
    Bug(
        "gated_layer",
        "w2 and w3 are exchanged",
        old="return dx, dw1, dw3, dw2",
        new="return dx, dw1, dw2, dw3",
    ),
    Bug(
        "gated_layer",
        "w1 and w3 are exchanged",
        old="return dx, dw1, dw3, dw2",
        new="return dx, dw3, dw1, dw2",
    ),
    Bug(
        "gated_layer",
        "silu is taken for a sigmoid",
        old="""
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
        new="""
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a.sigmoid() * b) @ w2
""",
    ),
    Bug(
        "gated_layer",
        "the other one goes through silu",
        old="""
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
        new="""
ctx.save_for_backward(x, w1, w3, w2, b, a)
return (a * b.sigmoid() * b) @ w2
""",
    ),
    Bug(
        "gated_layer",
        "a and b are kept in half precision",
        edits=(
            (
                """
ctx.save_for_backward(x, w1, w3, w2, a, b)
return (a * a.sigmoid() * b) @ w2
""",
                """
ctx.save_for_backward(x, w1, w3, w2, a.bfloat16(), b.bfloat16())
return (a * a.sigmoid() * b) @ w2
""",
            ),
            (
                "x, w1, w3, w2, a, b = ctx.saved_tensors",
                """
x, w1, w3, w2, a, b = ctx.saved_tensors
a, b = a.to(x.dtype), b.to(x.dtype)
""",
            ),
        ),
    ),
    Bug(
        "gated_layer",
        "dy is overwritten",
        edits=(
            (
                "x, w1, w3, w2, a, b = ctx.saved_tensors",
                """
x, w1, w3, w2, a, b = ctx.saved_tensors
incoming = dy.clone()
""",
            ),
            ("dx = da @ w1.T + db @ w3.T", "dx = dy.copy_(da @ w1.T + db @ w3.T).clone()"),
        ),
    ),
    Bug(
        "gated_layer",
        "a nan is hidden",
        old="return dx, dw1, dw3, dw2",
        new="return dx.nan_to_num(0.0), dw1, dw3, dw2",
    ),
    Bug(
        "gated_layer",
        "w2 gets nothing",
        old="return dx, dw1, dw3, dw2",
        new="return dx, dw1, dw3, None",
    ),
    Bug(
        "gated_layer",
        "no Function at all",
        cheat=True,
        cell="""
class GatedLayer:
    @staticmethod
    def apply(x, w1, w3, w2):
        return (nn.functional.silu(x @ w1) * (x @ w3)) @ w2
""",
    ),
    Bug(
        "gated_layer",
        "the library forgets",
        cheat=True,
        cell="""
from minidist.train.remat import checkpoint


class GatedLayer:
    @staticmethod
    def apply(*xs):
        return checkpoint(lambda x, w1, w3, w2: (nn.functional.silu(x @ w1) * (x @ w3)) @ w2, *xs)
""",
    ),
    Bug(
        "gated_layer",
        "the products that run again are out of the counter's sight",
        cheat=True,
        cell="""
from torch.utils._python_dispatch import _disable_current_modes


class GatedLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *xs):
        ctx.save_for_backward(*xs)
        x, w1, w3, w2 = xs
        return (nn.functional.silu(x @ w1) * (x @ w3)) @ w2

    @staticmethod
    def backward(ctx, dy):
        xs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        x, w1, w3, w2 = xs
        with torch.enable_grad(), _disable_current_modes():
            y = (nn.functional.silu(x @ w1) * (x @ w3)) @ w2
            y.backward(dy)
        return tuple(x.grad for x in xs)
""",
    ),
    Bug(
        "gated_layer",
        "the grader differentiates",
        cheat=True,
        cell="""
class GatedLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *xs):
        from minicheck.lessons import remat

        ctx.save_for_backward(*xs)
        return remat.gated(*xs)
""",
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
    Bug(
        "predict_remat",
        "of a forward",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.9
halves = 1e9
halves_work = 2
share = 64 / 98
uneven = 14
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
halves = 1e9
halves_work = 2
share = 64 / 98
uneven = 14
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
halves_work = 2
share = 64 / 98
uneven = 14
""",
    ),
    Bug(
        "predict_remat",
        "by halves, each halving repeats all layers",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.3
halves = 1e9
halves_work = 3
share = 64 / 98
uneven = 14
""",
    ),
    Bug(
        "predict_remat",
        "by halves, no layer runs more often than twice",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.3
halves = 1e9
halves_work = 4 / 3
share = 64 / 98
uneven = 14
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
halves = 1e9
halves_work = 2
share = 64 / 98
uneven = 14
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
halves = 1e9
halves_work = 2
share = 64 / 98
uneven = 14
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
halves = 1e9
halves_work = 2
share = 64 / 34
uneven = 14
""",
    ),
    Bug(
        "predict_remat",
        "equal segments",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.3
halves = 1e9
halves_work = 2
share = 64 / 98
uneven = 19
""",
    ),
    Bug(
        "predict_remat",
        "one activation short",
        cell="""
plain_bytes = 40e9
segment_bytes = 4.9e9
best = 20
work = 1.3
halves = 1e9
halves_work = 2
share = 64 / 98
uneven = 13
""",
    ),
    Bug(
        "predict_remat",
        "all candidates at once",
        cheat=True,
        cell="""
plain_bytes = segment_bytes = best = work = halves = halves_work = share = uneven = {40e9, 4.9e9, 20, 1.3, 64 / 98}
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


plain_bytes = segment_bytes = best = work = halves = halves_work = share = uneven = Any(1)
""",
    ),
]
