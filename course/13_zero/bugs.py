"""The wrong answers of lesson 13 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "owners",
        "equal runs of the model",
        cell='''
def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    return [i * n // len(nbytes) if rank is None else rank for i, rank in enumerate(placed)]
''',
    ),
    Bug(
        "owners",
        "parameters are counted, not bytes",
        edits=(
            ("loads[owner[i]] += nbytes[i]", "loads[owner[i]] += 1"),
            ("loads[rank] += nbytes[i]", "loads[rank] += 1"),
        ),
    ),
    Bug(
        "owners",
        "a list of positions for each rank",
        cell='''
def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    loads, mine = [0] * n, [[] for _ in range(n)]
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        r = loads.index(min(loads)) if placed[i] is None else placed[i]
        loads[r] += nbytes[i]
        mine[r].append(i)
    return mine
''',
    ),
    Bug(
        "owners",
        "loads stay zero",
        old="loads[owner[i]] += nbytes[i]",
        new="",
    ),
    Bug(
        "owners",
        "in the order of the model",
        old="for i in sorted(new, key=lambda i: -nbytes[i]):",
        new="for i in new:",
    ),
    Bug(
        "owners",
        "nothing is returned",
        old="return owner",
        new="",
    ),
    Bug(
        "owners",
        "random among ranks that are equally full",
        edits=(
            (
                "owner = list(placed)",
                """
import random

owner = list(placed)
""",
            ),
            (
                "owner[i] = loads.index(min(loads))",
                "owner[i] = random.choice([r for r in range(n) if loads[r] == min(loads)])",
            ),
        ),
    ),
    Bug(
        "owners",
        "each rank in turn",
        cell='''
def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    return [i % n if rank is None else rank for i, rank in enumerate(placed)]
''',
    ),
    Bug(
        "owners",
        "the smallest first",
        old="for i in sorted(new, key=lambda i: -nbytes[i]):",
        new="for i in sorted(new, key=lambda i: nbytes[i]):",
    ),
    Bug(
        "owners",
        "sorts what was given",
        cell='''
def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    loads = [0] * n
    for b, rank in zip(nbytes, placed):
        if rank is not None:
            loads[rank] += b
    new = sorted([b for b, rank in zip(nbytes, placed) if rank is None], reverse=True)
    nbytes[:] = new + [b for b, rank in zip(nbytes, placed) if rank is not None]
    owner = []
    for b in new:
        owner.append(loads.index(min(loads)))
        loads[owner[-1]] += b
    return owner + [rank for rank in placed if rank is not None]
''',
    ),
    Bug(
        "owners",
        "which rank is first moves on with the calls: right as often as not",
        cell='''
CALLS = [0]


def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    CALLS[0] += 1
    loads = [0] * n
    owner = list(placed)
    for b, rank in zip(nbytes, placed):
        if rank is not None:
            loads[rank] += b
    new = [i for i, rank in enumerate(placed) if rank is None]
    for i in sorted(new, key=lambda i: -nbytes[i]):
        full = [r for r in range(n) if loads[r] == min(loads)]
        owner[i] = full[(CALLS[0] - 1) // 2 % len(full)]
        loads[owner[i]] += nbytes[i]
    return owner
''',
    ),
    Bug(
        "owners",
        "pasted from the lesson: all are placed anew",
        cell='''
def owners(nbytes, n, placed):
    """The rank that owns each parameter: the largest first, each to the rank with the fewest bytes."""
    loads = [0] * n
    owner = [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += nbytes[i]
    return owner
''',
    ),
    Bug(
        "owners",
        "what is placed does not count",
        old="loads[rank] += nbytes[i]",
        new="pass",
    ),
    Bug(
        "owners",
        "the placed one after the other with the new, from the largest: their bytes come too late",
        cell='''
def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    loads = [0] * n
    owner = list(placed)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        if owner[i] is None:
            owner[i] = loads.index(min(loads))
        loads[owner[i]] += nbytes[i]
    return owner
''',
    ),
    Bug(
        "owners",
        "rank 0 is taken for no rank",
        edits=(
            (
                "new = [i for i, rank in enumerate(placed) if rank is None]",
                "new = [i for i, rank in enumerate(placed) if not rank]",
            ),
            (
                """
if rank is not None:
    loads[rank] += nbytes[i]
""",
                """
if rank:
    loads[rank] += nbytes[i]
""",
            ),
        ),
    ),
    Bug(
        "owners",
        "what was placed is written over",
        old="owner = list(placed)",
        new="owner = placed",
    ),
    Bug(
        "owners",
        "the grader has it",
        cheat=True,
        cell='''
def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    from minicheck.oracles.zero import greedy

    return greedy(nbytes, n, sorted(range(len(nbytes)), key=lambda i: -nbytes[i]), placed)
''',
    ),
    Bug(
        "owners",
        "the library's",
        cheat=True,
        cell='''
def owners(nbytes, n, placed):
    """The rank that owns each parameter; those that are placed stay."""
    from minidist.parallel.zero import best_fit

    loads = [sum(b for b, rank in zip(nbytes, placed) if rank == r) for r in range(n)]
    new = iter(best_fit([b for b, rank in zip(nbytes, placed) if rank is None], loads))
    return [next(new) if rank is None else rank for rank in placed]
''',
    ),
    Bug(
        "sharded",
        "an optimizer of nothing",
        old="inner = optimizer(mine) if mine else None",
        new="inner = optimizer(mine)",
    ),
    Bug(
        "sharded",
        "gradients in the order of the model",
        old="chunks = list(torch.cat([gradient(params[i]) for i in order]).split(lengths))",
        new="chunks = list(torch.cat([gradient(p) for p in params]).split(lengths))",
    ),
    Bug(
        "sharded",
        "gradients of all steps are kept",
        old="""
def step():
    chunks = list(torch.cat([gradient(params[i]) for i in order]).split(lengths))
""",
        new="""
kept = []

def step():
    chunks = list(torch.cat([gradient(params[i]) for i in order]).split(lengths))
    kept.append(torch.cat(chunks))
""",
    ),
    Bug(
        "sharded",
        "own gradients",
        old="""
reduce_scatter_(comm, chunks)
mean = chunks[comm.rank] / comm.size
""",
        new="mean = chunks[comm.rank]",
    ),
    Bug(
        "sharded",
        "an all-reduce of all gradients, then broadcasts",
        cell='''
from minidist.collectives import broadcast_


def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    mine = [p for p, o in zip(params, owner) if o == comm.rank]
    inner = optimizer(mine) if mine else None

    def step():
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad, "mean")
        if inner is not None:
            inner.step()
        for p, root in zip(params, owner):
            broadcast_(comm, p.data, root, algorithm="tree")

    return step
''',
    ),
    Bug(
        "sharded",
        "a new optimizer in every step",
        old="""
if inner is not None:
    inner.step()
""",
        new="""
if mine:
    optimizer(mine).step()
""",
    ),
    Bug(
        "sharded",
        "nothing is passed on",
        old="all_gather_(comm, list(flat.split(lengths)))",
        new="",
    ),
    Bug(
        "sharded",
        "returns nothing",
        cell='''
def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    order = sorted(range(len(params)), key=owner.__getitem__)
    lengths = [sum(params[i].numel() for i in order if owner[i] == r) for r in range(comm.size)]
    flat = torch.cat([params[i].data.flatten() for i in order])
    for i, piece in zip(order, flat.split([params[i].numel() for i in order])):
        params[i].data = piece.view_as(params[i])
    mine = [params[i] for i in order if owner[i] == comm.rank]
    inner = optimizer(mine) if mine else None

    def step():
        missing = torch.zeros_like
        grads = [missing(params[i]) if params[i].grad is None else params[i].grad for i in order]
        chunks = list(torch.cat([g.flatten() for g in grads]).split(lengths))
        reduce_scatter_(comm, chunks)
        mean = chunks[comm.rank] / comm.size
        for p, grad in zip(mine, mean.split([p.numel() for p in mine])):
            p.grad = grad.view_as(p)
        if inner is not None:
            inner.step()
        all_gather_(comm, list(flat.split(lengths)))
''',
    ),
    Bug(
        "sharded",
        "the flat buffer is in the order of the model",
        old="order = sorted(range(len(params)), key=owner.__getitem__)",
        new="order = list(range(len(params)))",
    ),
    Bug(
        "sharded",
        "parameters are no views of the buffer",
        old="params[i].data = piece.view_as(params[i])",
        new="params[i].data.copy_(piece.view_as(params[i]))",
    ),
    Bug(
        "sharded",
        "all ranks step all parameters",
        cell='''
from minidist.collectives import broadcast_


def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    inner = optimizer(list(params))

    def step():
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad, "mean")
        inner.step()

    return step
''',
    ),
    Bug(
        "sharded",
        "pasted from the lesson: every gradient is there",
        old="chunks = list(torch.cat([gradient(params[i]) for i in order]).split(lengths))",
        new="chunks = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))",
    ),
    Bug(
        "sharded",
        "missing gradients are left out: the buffers are of different lengths",
        old="chunks = list(torch.cat([gradient(params[i]) for i in order]).split(lengths))",
        new="""
there = [i for i in order if params[i].grad is not None]
counts = [sum(params[i].numel() for i in there if owner[i] == r) for r in range(comm.size)]
chunks = list(torch.cat([params[i].grad.flatten() for i in there]).split(counts))
""",
    ),
    Bug(
        "sharded",
        "the mean is over the ranks that have a gradient",
        edits=(
            (
                "reduce_scatter_(comm, chunks)",
                """
has = torch.tensor([float(params[i].grad is not None) for i in order]).to(flat)
all_reduce_(comm, has)
reduce_scatter_(comm, chunks)
""",
            ),
            (
                "mean = chunks[comm.rank] / comm.size",
                """
mean = chunks[comm.rank]
""",
            ),
            (
                "p.grad = grad.view_as(p)",
                """
p.grad = grad.view_as(p)
""",
            ),
            (
                "if inner is not None:",
                """
for k, i in enumerate(order):
    if owner[i] == comm.rank:
        params[i].grad.div_(has[k])
if inner is not None:
""",
            ),
        ),
    ),
    Bug(
        "sharded",
        "gradients are summed",
        old="mean = chunks[comm.rank] / comm.size",
        new="mean = chunks[comm.rank]",
    ),
    Bug(
        "sharded",
        "all ranks step everything in numpy, where no meter sees the states; the given optimizer is for show",
        cheat=True,
        cell='''
import numpy as np


def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    mine = [p for p, o in zip(params, owner) if o == comm.rank]
    shown = optimizer([p.detach().clone().requires_grad_() for p in mine]) if mine else None
    rate, count = shown.rate if shown else 0.05, [0]
    means, squares = ([np.zeros(p.shape) for p in params] for _ in range(2))

    def step():
        count[0] += 1
        for p, m, v in zip(params, means, squares):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            g = all_reduce_(comm, p.grad, "mean").numpy()
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            wide = np.sqrt(v / (1 - 0.999 ** count[0])) + 1e-8
            p.data -= torch.from_numpy(rate / (1 - 0.9 ** count[0]) * m / wide)
        if shown:
            for p, q in zip(shown.params, mine):
                p.grad = q.grad
            shown.step()

    return step
''',
    ),
    Bug(
        "sharded",
        "the library's optimizer",
        cheat=True,
        cell='''
def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    from minidist.parallel.zero import ShardedOptimizer

    return ShardedOptimizer(params, torch.optim.Adam, comm, lr=0.05).step
''',
    ),
    Bug(
        "sharded",
        "the oracle steps",
        cheat=True,
        cell='''
def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    from minicheck.oracles.zero import stepped

    def step():
        new = stepped([p.detach() for p in params], [[torch.zeros_like(p) if p.grad is None else p.grad for p in params]], 1)
        for p, x in zip(params, new):
            p.data.copy_(x)

    return step
''',
    ),
    Bug(
        "sharded",
        "states in an Adam of one's own, of all parameters",
        cheat=True,
        cell='''
def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    means = [torch.zeros_like(p) for p in params]
    squares = [torch.zeros_like(p) for p in params]
    count = [0]

    def step():
        count[0] += 1
        for p, m, v in zip(params, means, squares):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad, "mean")
            m.lerp_(p.grad, 0.1)
            v.lerp_(p.grad.square(), 0.001)
            p.data -= (
                0.05 / (1 - 0.9 ** count[0]) * m / ((v / (1 - 0.999 ** count[0])).sqrt() + 1e-8)
            )

    return step
''',
    ),
    Bug(
        "sharded",
        "PyTorch's sharded optimizer",
        cheat=True,
        cell='''
def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(params, torch.optim.Adam, lr=0.05).step
''',
    ),
    Bug(
        "to_owners",
        "pasted from the lesson: what was there before is averaged once more",
        cell='''
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""
    for p, root in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(send_to_owner, comm, root))


def send_to_owner(comm, owner, p):
    """Called when the gradient of p is complete."""
    reduce_(comm, p.grad, owner, algorithm="tree")
    if comm.rank == owner:
        p.grad = p.grad / comm.size
    else:
        p.grad = None
''',
    ),
    Bug(
        "to_owners",
        "what earlier backwards left is forgotten",
        old="""
if earlier is not None:
    p.grad.add_(earlier)
""",
        new="",
    ),
    Bug(
        "to_owners",
        "what earlier backwards left is added before the reduce",
        edits=(
            (
                """
reduce_(comm, p.grad, root)
earlier = before.pop(p)
""",
                """
earlier = before.pop(p)
if earlier is not None:
    p.grad.add_(earlier)
reduce_(comm, p.grad, root)
""",
            ),
            (
                """
p.grad.div_(comm.size)
if earlier is not None:
    p.grad.add_(earlier)
""",
                """
p.grad.div_(comm.size)
""",
            ),
        ),
    ),
    Bug(
        "to_owners",
        "sums are kept beside the parameters, and nobody sees that the program has cleared the gradients",
        cell='''
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, added to what is there, and freed elsewhere."""
    sums = {}

    def clear(p, gradient):
        p.grad = None

    def hook(root, p):
        reduce_(comm, p.grad, root)
        if comm.rank == root:
            sums[p] = sums.get(p, 0) + p.grad / comm.size
            p.grad = sums[p].clone()
        else:
            p.grad = None

    for p, root in zip(params, owner):
        p.register_hook(partial(clear, p))
        p.register_post_accumulate_grad_hook(partial(hook, root))
''',
    ),
    Bug(
        "to_owners",
        "an all-reduce",
        old="reduce_(comm, p.grad, root)",
        new="all_reduce_(comm, p.grad)",
    ),
    Bug(
        "to_owners",
        "everything travels as float64",
        old="""
reduce_(comm, p.grad, root)
earlier = before.pop(p)
if comm.rank == root:
    p.grad.div_(comm.size)
""",
        new="""
total = reduce_(comm, p.grad.double(), root)
earlier = before.pop(p)
if comm.rank == root:
    p.grad = total / comm.size
""",
    ),
    Bug(
        "to_owners",
        "all gradients go when the last is there",
        cell='''
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, added to what is there, and freed elsewhere."""
    before = {}

    def set_aside(p, gradient):
        before[p] = p.grad
        p.grad = None

    def hook(p):
        if p is last():
            for q, root in zip(params, owner):
                reduce_(comm, q.grad, root)
                earlier = before.pop(q)
                if comm.rank == root:
                    q.grad.div_(comm.size)
                    if earlier is not None:
                        q.grad.add_(earlier)
                else:
                    q.grad = None

    def last():
        return list(before)[-1] if len(before) == len(params) else None

    for p in params:
        p.register_hook(partial(set_aside, p))
        p.register_post_accumulate_grad_hook(hook)
''',
    ),
    Bug(
        "to_owners",
        "hooks are removed after the first backward",
        edits=(
            (
                "earlier = before.pop(p)",
                """
earlier = before.pop(p)
for handle in handles.pop(p):
    handle.remove()
""",
            ),
            (
                "for p, root in zip(params, owner):",
                """
handles = {}
for p, root in zip(params, owner):
""",
            ),
            (
                "p.register_hook(partial(set_aside, p))",
                "first = p.register_hook(partial(set_aside, p))",
            ),
            (
                "p.register_post_accumulate_grad_hook(partial(hook, root))",
                "handles[p] = first, p.register_post_accumulate_grad_hook(partial(hook, root))",
            ),
        ),
    ),
    Bug(
        "to_owners",
        "what was sent is kept",
        old="def hook(root, p):",
        new="""
kept = []

def hook(root, p):
    kept.append(p.grad)
""",
    ),
    Bug(
        "to_owners",
        "a loop variable: all go to the last owner",
        edits=(
            ("def hook(root, p):", "def hook(p):"),
            (
                "p.register_post_accumulate_grad_hook(partial(hook, root))",
                "p.register_post_accumulate_grad_hook(hook)",
            ),
        ),
    ),
    Bug(
        "to_owners",
        "nothing is sent",
        edits=(
            ("reduce_(comm, p.grad, root)", ""),
            ("p.grad.div_(comm.size)", "pass"),
        ),
    ),
    Bug(
        "to_owners",
        "nothing is freed",
        old="""
else:
    p.grad = None
""",
        new="""
elif earlier is not None:
    p.grad.add_(earlier)
""",
    ),
    Bug(
        "to_owners",
        "only the owner takes part in the reduce",
        edits=(
            ("reduce_(comm, p.grad, root)", ""),
            (
                "p.grad.div_(comm.size)",
                """
reduce_(comm, p.grad, root)
p.grad.div_(comm.size)
""",
            ),
        ),
    ),
    Bug(
        "to_owners",
        "each rank divides, and the owner again",
        old="def hook(root, p):",
        new="""
def hook(root, p):
    p.grad.div_(comm.size)
""",
    ),
    Bug(
        "to_owners",
        "summed",
        old="p.grad.div_(comm.size)",
        new="pass",
    ),
    Bug(
        "to_owners",
        "zeros in place of None",
        old="""
else:
    p.grad = None
""",
        new="""
else:
    p.grad.zero_()
""",
    ),
    Bug(
        "to_owners",
        "ranks meet in a global list",
        cheat=True,
        edits=(
            (
                "reduce_(comm, p.grad, root)",
                """
places.setdefault(p, len(places))
MET = torch.__dict__.setdefault("met", {})
MET.setdefault((comm.size, places[p]), []).append(p.grad.clone())
p.grad.copy_(sum(MET[comm.size, places[p]][-comm.size :]))
""",
            ),
            (
                "def set_aside(p, gradient):",
                """
places = {}

def set_aside(p, gradient):
""",
            ),
        ),
    ),
    Bug(
        "to_owners",
        "the library's stage 2",
        cheat=True,
        cell='''
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""
    from minidist.parallel.zero import ShardedOptimizer

    ShardedOptimizer(params, torch.optim.SGD, comm, 2, lr=0.1)
''',
    ),
    Bug(
        "sharded_linear",
        "pasted from the lesson: the replicas never meet",
        edits=(
            ("all_reduce_(ctx.replicas, dw)", ""),
            (
                "return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
                "return dx, dw / comm.size, None, None, None",
            ),
        ),
    ),
    Bug(
        "sharded_linear",
        "whole gradients travel between the groups, before they are cut",
        edits=(
            ("all_reduce_(ctx.replicas, dw)", ""),
            (
                "dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))",
                """
whole = all_reduce_(ctx.replicas, dy.T @ x)
dw = reduce_scatter(comm, whole.flatten(), sizes=uneven(ctx.shape.numel(), comm.size))
""",
            ),
        ),
    ),
    Bug(
        "sharded_linear",
        "divided by the shards alone",
        old="return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
        new="return dx, dw / comm.size, None, None, None",
    ),
    Bug(
        "sharded_linear",
        "divided by the replicas alone",
        old="return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
        new="return dx, dw / ctx.replicas.size, None, None, None",
    ),
    Bug(
        "sharded_linear",
        "an all-reduce of the whole gradient",
        old="dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))",
        new="dw = all_reduce_(comm, dy.T @ x).flatten().split(uneven(ctx.shape.numel(), comm.size))[comm.rank]",
    ),
    Bug(
        "sharded_linear",
        "autograd keeps the gathered weight",
        cell='''
def sharded_linear(shards, replicas, x, shard, shape):
    """x·Wᵀ, of a weight in shards, of which there are replicas."""
    return x @ Whole.apply(shard, shards, replicas, shape).T


class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, comm, replicas, shape):
        ctx.comm, ctx.replicas, ctx.sizes = comm, replicas, uneven(shape.numel(), comm.size)
        return all_gather(comm, shard, sizes=ctx.sizes).view(shape)

    @staticmethod
    def backward(ctx, dw):
        part = reduce_scatter(ctx.comm, dw.flatten(), sizes=ctx.sizes) / ctx.comm.size
        return all_reduce_(ctx.replicas, part, "mean"), None, None, None
''',
    ),
    Bug(
        "sharded_linear",
        "divides the gradient that came in, in place, which others read, too",
        edits=(
            (
                "dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))",
                """
dy.div_(comm.size * ctx.replicas.size)
dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))
""",
            ),
            (
                "return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
                "return dx, dw, None, None, None",
            ),
        ),
    ),
    Bug(
        "sharded_linear",
        "the gradient of x is averaged, too",
        old="return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
        new="return dx / comm.size, dw / (comm.size * ctx.replicas.size), None, None, None",
    ),
    Bug(
        "sharded_linear",
        "cut evenly",
        old="return all_gather(comm, shard, sizes=uneven(shape.numel(), comm.size)).view(shape)",
        new="return all_gather(comm, shard, sizes=[shape.numel() // comm.size] * comm.size).view(shape)",
    ),
    Bug(
        "sharded_linear",
        "the gradient of the transposed weight",
        old="dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))",
        new="dw = reduce_scatter(comm, (x.T @ dy).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))",
    ),
    Bug(
        "sharded_linear",
        "own gradients",
        old="dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))",
        new="dw = comm.size * (dy.T @ x).flatten().split(uneven(ctx.shape.numel(), comm.size))[comm.rank]",
    ),
    Bug(
        "sharded_linear",
        "the whole weight is saved",
        edits=(
            (
                "ctx.save_for_backward(x, shard)",
                """
weight = gathered(shards, shard, shape)
ctx.save_for_backward(x, weight)
""",
            ),
            (
                "return x @ gathered(shards, shard, shape).T",
                "return x @ weight.T",
            ),
            (
                """
x, shard = ctx.saved_tensors
comm = ctx.shards
dx = dy @ gathered(comm, shard, ctx.shape)
""",
                """
x, weight = ctx.saved_tensors
comm = ctx.shards
dx = dy @ weight
""",
            ),
        ),
    ),
    Bug(
        "sharded_linear",
        "no gradient for x",
        old="return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
        new="return None, dw / (comm.size * ctx.replicas.size), None, None, None",
    ),
    Bug(
        "sharded_linear",
        "no gradient for the shard",
        old="return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
        new="return dx, None, None, None, None",
    ),
    Bug(
        "sharded_linear",
        "x·W",
        old="return x @ gathered(shards, shard, shape).T",
        new="return x @ gathered(shards, shard, shape)",
    ),
    Bug(
        "sharded_linear",
        "backward sets shard.grad itself: what stood there is lost",
        edits=(
            (
                "ctx.shape = shape",
                """
ctx.shape = shape
ctx.shard = shard
""",
            ),
            (
                "return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
                """
ctx.shard.grad = dw / (comm.size * ctx.replicas.size)
return dx, None, None, None, None
""",
            ),
        ),
    ),
    Bug(
        "sharded_linear",
        "the sum",
        old="return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
        new="return dx, dw, None, None, None",
    ),
    Bug(
        "sharded_linear",
        "the library's",
        cheat=True,
        cell='''
def sharded_linear(shards, replicas, x, shard, shape):
    """x·Wᵀ, of a weight in shards, of which there are replicas."""
    from minidist.parallel.zero import FullySharded

    layer = torch.nn.Linear(shape[1], shape[0], bias=False, dtype=x.dtype)
    layer = FullySharded(layer, shards, replicas=replicas)
    return layer(x)
''',
    ),
    Bug(
        "sharded_linear",
        "the weight is hidden in a list of numbers on ctx",
        cheat=True,
        edits=(
            (
                "return x @ gathered(shards, shard, shape).T",
                """
weight = gathered(shards, shard, shape)
ctx.numbers = weight.tolist()
return x @ weight.T
""",
            ),
            (
                "dx = dy @ gathered(comm, shard, ctx.shape)",
                "dx = dy @ torch.tensor(ctx.numbers, dtype=dy.dtype)",
            ),
        ),
    ),
    Bug(
        "predict_zero",
        "stage 1 like stage 3",
        cell="""
stage_1 = 16 * 13e9 / 16
stage_2 = 37.375e9
stage_3 = 13e9
sent_2 = 48.75e9
sent_3 = 73.125e9
gpus = 50
""",
    ),
    Bug(
        "predict_zero",
        "gradients whole at stage 2",
        cell="""
stage_1 = 61.75e9
stage_2 = 4 * 13e9 + 12 * 13e9 / 16
stage_3 = 13e9
sent_2 = 48.75e9
sent_3 = 73.125e9
gpus = 50
""",
    ),
    Bug(
        "predict_zero",
        "no fp32 copy",
        cell="""
stage_1 = 4 * 13e9 + 8 * 13e9 / 16
stage_2 = 37.375e9
stage_3 = 13e9
sent_2 = 48.75e9
sent_3 = 73.125e9
gpus = 50
""",
    ),
    Bug(
        "predict_zero",
        "numbers, not bytes",
        cell="""
stage_1 = 61.75e9
stage_2 = 37.375e9
stage_3 = 13e9
sent_2 = 2 * 13e9 * 15 / 16
sent_3 = 73.125e9
gpus = 50
""",
    ),
    Bug(
        "predict_zero",
        "with offload, whole gradients on every GPU",
        cell="offloaded = 4 * 13e9",
    ),
    Bug(
        "predict_zero",
        "every host moves all gradients and all weights",
        cell="over_link = 4 * 13e9",
    ),
    Bug(
        "predict_zero",
        "the own part is gathered, too",
        cell="tokens = 400e12 / 25e9",
    ),
    Bug(
        "predict_zero",
        "2 bytes of a number, and the 2 operations of a token forgotten",
        cell="tokens = 2 * 400e12 / 25e9 * 15 / 16",
    ),
    Bug(
        "predict_zero",
        "all three transfers behind the forward",
        cell="tokens = 3 * 400e12 / 25e9 * 15 / 16",
    ),
    Bug(
        "predict_zero",
        "stage 2 sends like stage 3",
        cell="""
stage_1 = 61.75e9
stage_2 = 37.375e9
stage_3 = 13e9
sent_2 = 73.125e9
sent_3 = 73.125e9
gpus = 50
""",
    ),
    Bug(
        "predict_zero",
        "stage 3 sends like stage 2",
        cell="""
stage_1 = 61.75e9
stage_2 = 37.375e9
stage_3 = 13e9
sent_2 = 48.75e9
sent_3 = 48.75e9
gpus = 50
""",
    ),
    Bug(
        "predict_zero",
        "weights alone",
        cell="""
stage_1 = 61.75e9
stage_2 = 37.375e9
stage_3 = 13e9
sent_2 = 48.75e9
sent_3 = 73.125e9
gpus = 2 * 100 / 32
""",
    ),
    Bug(
        "predict_zero",
        "the grader is asked, and answers in words",
        cheat=True,
        cell="""
from minicheck.lessons.zero import predict_zero

values, _ = predict_zero(13 * 10**9, 16, 100 * 10**9, 32 * 10**9)
stage_1, stage_2, stage_3, sent_2, sent_3, gpus, offloaded, over_link, tokens = (
    f"{x}" for x in values.values()
)
""",
    ),
    Bug(
        "predict_zero",
        "a number that equals all",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0


stage_1 = stage_2 = stage_3 = sent_2 = sent_3 = gpus = offloaded = over_link = tokens = Any(1)
""",
    ),
    Bug(
        "clip",
        "small gradients grow",
        old="g.mul_(min(1.0, limit / (float(norm) + 1e-6)))",
        new="g.mul_(limit / (float(norm) + 1e-6))",
    ),
    Bug(
        "clip",
        "as it was found",
        old="""
square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
norm = all_reduce_(comm, square).sqrt()
""",
        new="""
norm = torch.stack([g.norm() for g in grads]).norm()
norm = all_reduce_(comm, norm)
""",
    ),
    Bug(
        "clip",
        "the factor is limit / norm, which a norm of 0 does not have",
        old="g.mul_(min(1.0, limit / (float(norm) + 1e-6)))",
        new="g.mul_(min(1.0, limit / float(norm)))",
    ),
    Bug(
        "clip",
        "squares are added up in float32, and the gradients are float64",
        old="""
square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
norm = all_reduce_(comm, square).sqrt()
""",
        new="norm = all_reduce_(comm, sum((g.float() ** 2).sum() for g in grads) + torch.zeros(())).sqrt()",
    ),
    Bug(
        "clip",
        "all gradients travel",
        old="norm = all_reduce_(comm, square).sqrt()",
        new="norm = all_gather(comm, torch.cat([*grads, torch.zeros(1, dtype=torch.float64)])).norm()",
    ),
    Bug(
        "clip",
        "own norm",
        old="norm = all_reduce_(comm, square).sqrt()",
        new="norm = square.sqrt()",
    ),
    Bug(
        "clip",
        "squares are averaged",
        old="norm = all_reduce_(comm, square).sqrt()",
        new='norm = all_reduce_(comm, square, "mean").sqrt()',
    ),
    Bug(
        "clip",
        "nothing is returned",
        old="return norm",
        new="",
    ),
    Bug(
        "clip",
        "the root is missing",
        old="norm = all_reduce_(comm, square).sqrt()",
        new="norm = all_reduce_(comm, square)",
    ),
    Bug(
        "clip",
        "the factor is limit / norm, and 1 for a norm of 0; the 1e-6 is missing",
        old="g.mul_(min(1.0, limit / (float(norm) + 1e-6)))",
        new="g.mul_(limit / max(limit, float(norm)))",
    ),
    Bug(
        "clip",
        "new tensors take the gradients' places in the list; the optimizer's are as before",
        old="""
for g in grads:
    g.mul_(min(1.0, limit / (float(norm) + 1e-6)))
""",
        new="""
for i, g in enumerate(grads):
    grads[i] = g * min(1.0, limit / (float(norm) + 1e-6))
""",
    ),
    Bug(
        "clip",
        "gradients get other memory by g.data; whoever holds views of them sees nothing",
        old="g.mul_(min(1.0, limit / (float(norm) + 1e-6)))",
        new="g.data = g * min(1.0, limit / (float(norm) + 1e-6))",
    ),
    Bug(
        "clip",
        "each rank adds up the squares in an order of its own, and rounding differs",
        cell='''
def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    own = torch.tensor([sum(float((g**2).sum()) for g in grads)], dtype=torch.float64)
    total = own.clone()
    n = comm.size
    r = comm.rank
    for s in range(1, n):
        total += comm.sendrecv(own, (r + s) % n, torch.empty_like(own), (r - s) % n)
    norm = float(total.sqrt())
    for g in grads:
        g.mul_(min(1.0, limit / (norm + 1e-6)))
    return norm
''',
    ),
    Bug(
        "clip",
        "the norm after clipping",
        old="return norm",
        new="return norm.clamp(max=limit)",
    ),
    Bug(
        "clip",
        "a rank without gradients does not take part",
        old='"""Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""',
        new='''
"""Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
if not grads:
    return torch.zeros(())
''',
    ),
    Bug(
        "clip",
        "a rank without gradients",
        old="""
square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)
norm = all_reduce_(comm, square).sqrt()
""",
        new="""
norm = torch.stack([g.norm() for g in grads]).norm()
norm = all_reduce_(comm, norm ** 2) ** 0.5
""",
    ),
    Bug(
        "clip",
        "scaled twice",
        edits=(
            (
                "square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)",
                "square = sum((g ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)",
            ),
            (
                "g.mul_(min(1.0, limit / (float(norm) + 1e-6)))",
                """
g.mul_(min(1.0, limit / norm))
g.mul_(min(1.0, limit / norm))
""",
            ),
        ),
    ),
    Bug(
        "clip",
        "the grader has the norm",
        cheat=True,
        cell='''
def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    from minicheck.oracles.zero import norm

    own = torch.tensor(norm(grads), dtype=torch.float64)
    total = all_reduce_(comm, own**2) ** 0.5
    for g in grads:
        g.mul_(min(1.0, limit / (float(total) + 1e-6)))
    return total
''',
    ),
    Bug(
        "clip",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.norm import clip_


def clip(comm, grads, limit):
    """Scale the gradients of all ranks to a norm of at most `limit`, in place; returns the norm before."""
    return clip_(comm, grads, limit)
''',
    ),
    Bug(
        "owners",
        "the owners of a model of as many parameters are remembered",
        old="return owner",
        new="""
memory = owners.__dict__.setdefault(len(nbytes), owner)
return memory
""",
    ),
    Bug(
        "owners",
        "one list for all results",
        old="return owner",
        new="""
owners.__dict__.setdefault('kept', [])[:] = owner
return owners.kept
""",
    ),
    Bug(
        "sharded",
        "the list of parameters gets others",
        old="mine = [params[i] for i in order if owner[i] == comm.rank]",
        new="""
params[:] = [p.detach().requires_grad_() for p in params]
mine = [params[i] for i in order if owner[i] == comm.rank]
""",
    ),
    Bug(
        "sharded",
        "a nan is hidden",
        old="mean = chunks[comm.rank] / comm.size",
        new="mean = chunks[comm.rank].nan_to_num(0.0) / comm.size",
    ),
    Bug(
        "sharded",
        "all weights are kept in a list",
        edits=(
            (
                "inner = optimizer(mine) if mine else None",
                """
inner = optimizer(mine) if mine else None
before = flat.tolist()
""",
            ),
            (
                "reduce_scatter_(comm, chunks)",
                """
assert before
reduce_scatter_(comm, chunks)
""",
            ),
        ),
    ),
    Bug(
        "sharded",
        "all weights are kept in an array of NumPy's",
        edits=(
            (
                "inner = optimizer(mine) if mine else None",
                """
inner = optimizer(mine) if mine else None
before = flat.numpy().copy()
""",
            ),
            (
                "reduce_scatter_(comm, chunks)",
                """
assert len(before)
reduce_scatter_(comm, chunks)
""",
            ),
        ),
    ),
    Bug(
        "to_owners",
        "what was sent is kept in a list",
        old="reduce_(comm, p.grad, root)",
        new="""
to_owners.__dict__.setdefault('sent', []).append(p.grad.tolist())
reduce_(comm, p.grad, root)
""",
    ),
    Bug(
        "to_owners",
        "what was sent is kept as bytes",
        old="reduce_(comm, p.grad, root)",
        new="""
to_owners.__dict__.setdefault('sent', []).append(p.grad.numpy().tobytes())
reduce_(comm, p.grad, root)
""",
    ),
    Bug(
        "to_owners",
        "what was sent is kept in half",
        old="reduce_(comm, p.grad, root)",
        new="""
to_owners.__dict__.setdefault('sent', []).append(p.grad.half())
reduce_(comm, p.grad, root)
""",
    ),
    Bug(
        "to_owners",
        "a nan is hidden",
        old="p.grad.div_(comm.size)",
        new="p.grad.div_(comm.size).nan_to_num_(0.0)",
    ),
    Bug(
        "sharded_linear",
        "the weight is kept in a list",
        old="return x @ gathered(shards, shard, shape).T",
        new="""
weight = gathered(shards, shard, shape)
ctx.weight = weight.tolist()
return x @ weight.T
""",
    ),
    Bug(
        "sharded_linear",
        "the weight is kept as bytes",
        old="return x @ gathered(shards, shard, shape).T",
        new="""
weight = gathered(shards, shard, shape)
ctx.weight = weight.numpy().tobytes()
return x @ weight.T
""",
    ),
    Bug(
        "sharded_linear",
        "weights are kept when backward has ended",
        old="dx = dy @ gathered(comm, shard, ctx.shape)",
        new="""
weight = gathered(comm, shard, ctx.shape)
sharded_linear.__dict__.setdefault('kept', []).append(weight)
dx = dy @ weight
""",
    ),
    Bug(
        "sharded_linear",
        "a nan is hidden",
        old="return x @ gathered(shards, shard, shape).T",
        new="return (x @ gathered(shards, shard, shape).T).nan_to_num(0.0)",
    ),
    Bug(
        "clip",
        "a nan is hidden",
        old="square = sum((g.double() ** 2).sum() for g in grads) + torch.zeros((), dtype=torch.float64)",
        new="""
square = sum((g.double() ** 2).nan_to_num(0.0).sum() for g in grads)
square = square + torch.zeros((), dtype=torch.float64)
""",
    ),
    Bug(
        "sharded",
        "the step ends before its sends",
        old="all_gather_(comm, list(flat.split(lengths)))",
        new="""
parts = flat.split(lengths)
others = [r for r in range(comm.size) if r != comm.rank]
for r in others:
    comm.isend(parts[comm.rank], r)
for r in others:
    comm.recv(parts[r], r)
""",
    ),
    Bug(
        "clip",
        "the norm is nan, and the gradients are mended",
        old="g.mul_(min(1.0, limit / (float(norm) + 1e-6)))",
        new="g.mul_(min(1.0, limit / (float(norm) + 1e-6))).nan_to_num_()",
    ),
    Bug(
        "sharded",
        "the buffers are float64 for every model",
        edits=(
            (
                "flat = torch.cat([params[i].data.flatten() for i in order])",
                "flat = torch.cat([params[i].data.flatten().double() for i in order])",
            ),
            (
                "chunks = list(torch.cat([gradient(params[i]) for i in order]).split(lengths))",
                "chunks = list(torch.cat([gradient(params[i]).double() for i in order]).split(lengths))",
            ),
        ),
    ),
    Bug(
        "sharded_linear",
        "the whole weight is float64, whatever the shards are",
        old="return all_gather(comm, shard, sizes=uneven(shape.numel(), comm.size)).view(shape)",
        new="return all_gather(comm, shard.double(), sizes=uneven(shape.numel(), comm.size)).view(shape)",
    ),
    Bug(
        "sharded_linear",
        "the mean is over rows, not over ranks",
        old="return dx, dw / (comm.size * ctx.replicas.size), None, None, None",
        new="""
rows = all_reduce_(ctx.replicas, all_reduce_(comm, torch.tensor([len(x)])))
return dx, dw * len(x) / rows, None, None, None
""",
    ),
    Bug(
        "clip",
        "what is posted is never waited for",
        old="norm = all_reduce_(comm, square).sqrt()",
        new="""
others = [r for r in range(comm.size) if r != comm.rank]
works = [comm.isend(square, r) for r in others]
parts = {r: comm.recv(torch.zeros_like(square), r) for r in others} | {comm.rank: square}
norm = sum(parts[r] for r in range(comm.size)).sqrt()
""",
    ),
]
