"""The wrong answers of lesson 13 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "owners",
        "equal runs of the model",
        cell='''
def owners(nbytes, n):
    """The rank that owns each parameter."""
    return [i * n // len(nbytes) for i in range(len(nbytes))]
''',
    ),
    Bug(
        "owners",
        "parameters are counted, not bytes",
        old="loads[owner[i]] += nbytes[i]",
        new="loads[owner[i]] += 1",
    ),
    Bug(
        "owners",
        "a list of positions for each rank",
        cell='''
def owners(nbytes, n):
    """The rank that owns each parameter."""
    loads, mine = [0] * n, [[] for _ in range(n)]
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        r = loads.index(min(loads))
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
        old="for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):",
        new="for i in range(len(nbytes)):",
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
        old="""
loads, owner = [0] * n, [0] * len(nbytes)
for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
    owner[i] = loads.index(min(loads))
""",
        new="""
import random

loads, owner = [0] * n, [0] * len(nbytes)
for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
    owner[i] = random.choice([r for r in range(n) if loads[r] == min(loads)])
""",
    ),
    Bug(
        "owners",
        "each rank in turn",
        cell='''
def owners(nbytes, n):
    """The rank that owns each parameter."""
    return [i % n for i in range(len(nbytes))]
''',
    ),
    Bug(
        "owners",
        "the smallest first",
        old="for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):",
        new="for i in sorted(range(len(nbytes)), key=lambda i: nbytes[i]):",
    ),
    Bug(
        "owners",
        "sorts what was given",
        cell='''
def owners(nbytes, n):
    """The rank that owns each parameter."""
    nbytes.sort(reverse=True)
    loads, owner = [0] * n, []
    for b in nbytes:
        owner.append(loads.index(min(loads)))
        loads[owner[-1]] += b
    return owner
''',
    ),
    Bug(
        "owners",
        "which rank is first moves on with the calls: right as often as not",
        cell='''
CALLS = [0]


def owners(nbytes, n):
    """The rank that owns each parameter."""
    CALLS[0] += 1
    loads = [0] * n
    owner = [0] * len(nbytes)
    shift = (CALLS[0] - 1) // 2
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        least = loads.index(min(loads))
        owner[i] = (least + shift) % n
        loads[least] += nbytes[i]
    return owner
''',
    ),
    Bug(
        "owners",
        "the grader has it",
        cheat=True,
        cell='''
def owners(nbytes, n):
    """The rank that owns each parameter."""
    from minicheck.oracles.zero import greedy

    return greedy(nbytes, n, sorted(range(len(nbytes)), key=lambda i: -nbytes[i]))
''',
    ),
    Bug(
        "owners",
        "the library's",
        cheat=True,
        cell='''
def owners(nbytes, n):
    """The rank that owns each parameter."""
    from minidist.parallel.zero import best_fit

    return best_fit(nbytes, [0] * n)
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
        old="chunks = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))",
        new="chunks = list(torch.cat([p.grad.flatten() for p in params]).split(lengths))",
    ),
    Bug(
        "sharded",
        "gradients of all steps are kept",
        old="""
def step():
    chunks = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))
""",
        new="""
kept = []

def step():
    chunks = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))
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
        chunks = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))
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
            all_reduce_(comm, p.grad, "mean")
        inner.step()

    return step
''',
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
        new = stepped([p.detach() for p in params], [[p.grad for p in params]], 1)
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
        "an all-reduce",
        old="reduce_(comm, p.grad, root)",
        new="all_reduce_(comm, p.grad)",
    ),
    Bug(
        "to_owners",
        "everything travels as float64",
        old="""
reduce_(comm, p.grad, root)
if comm.rank == root:
    p.grad.div_(comm.size)
else:
    p.grad = None
""",
        new="""
total = reduce_(comm, p.grad.double(), root)
p.grad = total / comm.size if comm.rank == root else None
""",
    ),
    Bug(
        "to_owners",
        "all gradients go when the last is there",
        cell='''
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""
    seen = []

    def hook(p):
        seen.append(p)
        if len(seen) == len(params):
            for q, root in zip(params, owner):
                reduce_(comm, q.grad, root)
                if comm.rank == root:
                    q.grad.div_(comm.size)
                else:
                    q.grad = None
            seen.clear()

    for p in params:
        p.register_post_accumulate_grad_hook(hook)
''',
    ),
    Bug(
        "to_owners",
        "hooks are removed after the first backward",
        cell='''
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""

    def hook(root, p):
        handles.pop(p).remove()
        reduce_(comm, p.grad, root)
        if comm.rank == root:
            p.grad.div_(comm.size)
        else:
            p.grad = None

    handles = {}
    for p, root in zip(params, owner):
        handles[p] = p.register_post_accumulate_grad_hook(partial(hook, root))
''',
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
        cell='''
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""
    for p, root in zip(params, owner):

        def hook(p):
            reduce_(comm, p.grad, root)
            if comm.rank == root:
                p.grad.div_(comm.size)
            else:
                p.grad = None

        p.register_post_accumulate_grad_hook(hook)
''',
    ),
    Bug(
        "to_owners",
        "nothing is sent",
        old="""
reduce_(comm, p.grad, root)
if comm.rank == root:
    p.grad.div_(comm.size)
else:
""",
        new="if comm.rank != root:",
    ),
    Bug(
        "to_owners",
        "nothing is freed",
        old="""
else:
    p.grad = None
""",
        new="",
    ),
    Bug(
        "to_owners",
        "only the owner takes part in the reduce",
        cell='''
def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""

    def hook(root, p):
        if comm.rank == root:
            reduce_(comm, p.grad, root)
            p.grad.div_(comm.size)
        else:
            p.grad = None

    for p, root in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(hook, root))
''',
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
        old="p.grad = None",
        new="p.grad.zero_()",
    ),
    Bug(
        "to_owners",
        "ranks meet in a global list",
        cheat=True,
        cell='''
MET = {}


def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""

    def hook(i, p):
        MET.setdefault((comm.size, i), []).append(p.grad.clone())
        p.grad = sum(MET[comm.size, i]) / comm.size if owner[i] == comm.rank else None

    for i, p in enumerate(params):
        p.register_post_accumulate_grad_hook(partial(hook, i))
''',
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
        "an all-reduce of the whole gradient",
        old="dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))",
        new="dw = all_reduce_(comm, dy.T @ x).flatten().split(uneven(ctx.shape.numel(), comm.size))[comm.rank]",
    ),
    Bug(
        "sharded_linear",
        "autograd keeps the gathered weight",
        cell='''
def sharded_linear(comm, x, shard, shape):
    """x·Wᵀ, of a weight in shards."""
    return x @ Whole.apply(shard, comm, shape).T


class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, comm, shape):
        ctx.comm, ctx.sizes = comm, uneven(shape.numel(), comm.size)
        return all_gather(comm, shard, sizes=ctx.sizes).view(shape)

    @staticmethod
    def backward(ctx, dw):
        return reduce_scatter(ctx.comm, dw.flatten(), sizes=ctx.sizes) / ctx.comm.size, None, None
''',
    ),
    Bug(
        "sharded_linear",
        "divides the gradient that came in, in place, which others read, too",
        old="""
dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))
return dx, dw / comm.size, None, None
""",
        new="""
dy.div_(comm.size)
dw = reduce_scatter(comm, (dy.T @ x).flatten(), sizes=uneven(ctx.shape.numel(), comm.size))
return dx, dw, None, None
""",
    ),
    Bug(
        "sharded_linear",
        "the gradient of x is averaged, too",
        old="return dx, dw / comm.size, None, None",
        new="return dx / comm.size, dw / comm.size, None, None",
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
weight = gathered(comm, shard, shape)
ctx.save_for_backward(x, weight)
""",
            ),
            (
                "return x @ gathered(comm, shard, shape).T",
                "return x @ weight.T",
            ),
            (
                """
(x, shard), comm = ctx.saved_tensors, ctx.comm
dx = dy @ gathered(comm, shard, ctx.shape)
""",
                """
(x, weight), comm = ctx.saved_tensors, ctx.comm
dx = dy @ weight
""",
            ),
        ),
    ),
    Bug(
        "sharded_linear",
        "no gradient for x",
        old="return dx, dw / comm.size, None, None",
        new="return None, dw / comm.size, None, None",
    ),
    Bug(
        "sharded_linear",
        "no gradient for the shard",
        old="return dx, dw / comm.size, None, None",
        new="return dx, None, None, None",
    ),
    Bug(
        "sharded_linear",
        "x·W",
        old="return x @ gathered(comm, shard, shape).T",
        new="return x @ gathered(comm, shard, shape)",
    ),
    Bug(
        "sharded_linear",
        "backward sets shard.grad itself: what stood there is lost",
        cell='''
def sharded_linear(comm, x, shard, shape):
    """x·Wᵀ, of a weight in shards."""
    return Gathered.apply(x, shard, comm, shape)


def gathered(comm, shard, shape):
    return all_gather(comm, shard.detach(), sizes=uneven(shape.numel(), comm.size)).view(shape)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, comm, shape):
        ctx.x = x.detach()
        ctx.shard = shard
        ctx.comm = comm
        ctx.shape = shape
        return x @ gathered(comm, shard, shape).T

    @staticmethod
    def backward(ctx, dy):
        dx = dy @ gathered(ctx.comm, ctx.shard, ctx.shape)
        dw = reduce_scatter(
            ctx.comm, (dy.T @ ctx.x).flatten(), sizes=uneven(ctx.shape.numel(), ctx.comm.size)
        )
        ctx.shard.grad = dw / ctx.comm.size
        return dx, None, None, None
''',
    ),
    Bug(
        "sharded_linear",
        "the sum",
        old="return dx, dw / comm.size, None, None",
        new="return dx, dw, None, None",
    ),
    Bug(
        "sharded_linear",
        "the library's",
        cheat=True,
        cell='''
def sharded_linear(comm, x, shard, shape):
    """x·Wᵀ, of a weight in shards."""
    from minidist.parallel.zero import FullySharded

    layer = FullySharded(torch.nn.Linear(shape[1], shape[0], bias=False, dtype=x.dtype), comm)
    return layer(x)
''',
    ),
    Bug(
        "sharded_linear",
        "the weight is hidden in a list of numbers on ctx",
        cheat=True,
        edits=(
            (
                """
ctx.comm, ctx.shape = comm, shape
return x @ gathered(comm, shard, shape).T
""",
                """
ctx.comm, ctx.shape, weight = comm, shape, gathered(comm, shard, shape)
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
stage_1, stage_2, stage_3, sent_2, sent_3, gpus, offloaded, over_link = (
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


stage_1 = stage_2 = stage_3 = sent_2 = sent_3 = gpus = offloaded = over_link = Any(1)
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
        old="return x @ gathered(comm, shard, shape).T",
        new="""
weight = gathered(comm, shard, shape)
ctx.weight = weight.tolist()
return x @ weight.T
""",
    ),
    Bug(
        "sharded_linear",
        "the weight is kept as bytes",
        old="return x @ gathered(comm, shard, shape).T",
        new="""
weight = gathered(comm, shard, shape)
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
        old="return x @ gathered(comm, shard, shape).T",
        new="return (x @ gathered(comm, shard, shape).T).nan_to_num(0.0)",
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
                "chunks = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))",
                "chunks = list(torch.cat([params[i].grad.flatten().double() for i in order]).split(lengths))",
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
        old="return dx, dw / comm.size, None, None",
        new="""
rows = all_reduce_(comm, torch.tensor([len(x)]))
return dx, dw * len(x) / rows, None, None
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
