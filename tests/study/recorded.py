"""Small trainings that use an exercise's answer, recorded: for each exercise the number of ranks, and a program
`program(comm, f)` whose serial run is that of the solution on one rank. f: the names of the solved notebook, with the
answer in them. All in float64, so that what rounds more coarsely is seen."""

import math
import warnings
from functools import partial

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.functional import mse_loss, smooth_l1_loss

from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.comm.mesh import Mesh
from minidist.parallel.tensor import copy_to, reduce_from
from minidist.split import bounds, uneven
from minidist.study.compare import record


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def part(x, comm, dim=0):
    """This rank's part, as even as can be, the larger ones first."""
    return x.tensor_split(comm.size, dim)[comm.rank].clone()


# ------------------------------------------------------------
# Data parallel.


class Inner(nn.Module):
    """A layer inside of a layer, a weight that is not contiguous, and a bias that is frozen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 6, dtype=torch.float64).t())
        self.frozen = nn.Parameter(torch.zeros(6, dtype=torch.float64), requires_grad=False)
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float64), persistent=False)

    def forward(self, x):
        return F.linear(x - self.mean, self.weight, self.frozen)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.scale = nn.Parameter(torch.zeros(6, dtype=torch.float64))

    def forward(self, x):
        return self.inner(x).tanh() * self.scale


class Net(nn.Module):
    """A matrix that two layers share, a parameter that samples may not reach, and all that Inner has."""

    def __init__(self, seed=0):
        super().__init__()
        self.tokens = nn.Linear(3, 8, bias=False, dtype=torch.float64)
        self.block = Block()
        self.last = nn.Linear(6, 8, dtype=torch.float64)
        self.back = nn.Linear(3, 8, bias=False, dtype=torch.float64)
        self.back.weight = self.tokens.weight
        self.extra = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        with torch.no_grad():
            for k, x in enumerate([*self.parameters(), *self.buffers()]):
                x.copy_(drawn(*x.shape, seed=100 * seed + k))

    def forward(self, x):
        y = self.last(self.block(self.tokens(x))) @ self.back.weight
        mark = (x[:, :1] > 0).to(x)
        return y + self.extra * mark if mark.any() else y


def batch(step, count=12):
    """The second third of the samples does not reach `extra`."""
    x, y = drawn(count, 3, seed=2 * step + 11), drawn(count, 3, seed=2 * step + 12)
    x[:, 0] = x[:, 0].abs()
    x[count // 3 : 2 * count // 3, 0] *= -1
    return x, y


def descend(module, rate=0.1):
    """A step of SGD."""
    with torch.no_grad():
        for p in module.parameters():
            if p.grad is not None:
                p -= rate * p.grad


def train(run, module, step):
    with run.step():
        descend(module)


def start_equal(comm, f):
    seed = (comm.rank - 1) % comm.size  # rank 1 has what the serial run begins with, and most steps
    module = Net(seed)
    f["start_equal"](comm, module, 10 - seed)
    run = record(module, steps=2)
    for step in range(2):
        x, y = (part(t, comm) for t in batch(step))
        module.zero_grad()
        mse_loss(module(x), y).backward()
        for p in module.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                all_reduce_(comm, p.grad, op="mean")
        train(run, module, step)
    return run.finished


def average_gradients(comm, f):
    module = Net()
    run = record(module, steps=2)
    for step in range(2):
        x, y = (part(t, comm) for t in batch(step))
        module.zero_grad()
        mse_loss(module(x), y).backward()
        f["average_gradients"](comm, module)
        train(run, module, step)
    return run.finished


def weighted_average_gradients(comm, f):
    module = Net()
    run = record(module, steps=2)
    for step in range(2):
        x, y = batch(step, 6)
        sizes = [6] if comm.size == 1 else [3, 2, 1, 0]
        x, y = x.split(sizes)[comm.rank], y.split(sizes)[comm.rank]
        module.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mse_loss(module(x), y).backward()
        for p in module.parameters():
            if p.grad is not None and not len(x):
                p.grad.fill_(torch.nan)
        f["weighted_average_gradients"](comm, module, len(x))
        train(run, module, step)
    return run.finished


def accumulate_counted(comm, f):
    """Two rows of three count, none of the last rank in the second step; the others have nan for a target.

    A rank's micro-batches are of 1, 3 and more rows.
    """
    module = Net()
    run = record(module, steps=2)
    for step in range(2):
        x, y = batch(step, 24)
        counts = torch.arange(24) % 3 > 0
        counts[16:] &= step == 0
        y[~counts] = torch.nan
        rows = [part(t, comm).split([1, 3, len(part(t, comm)) - 4]) for t in (x, y, counts)]
        f["accumulate_counted"](comm, module, smooth_l1_loss, list(zip(*rows, strict=True)))
        train(run, module, step)
    return run.finished


def average_hooks(comm, f):
    module = Net()
    module.extra.requires_grad_(False)
    f["average_hooks"](comm, module)
    run = record(module, steps=3)
    for step in range(3):
        x, y = (part(t, comm) for t in batch(step))
        module.zero_grad()
        mse_loss(module(x), y).backward()
        train(run, module, step)
    return run.finished


def buckets_of(module):
    """Parameters that are trained, and positions: neighbours are not always together."""
    params = [p for p in module.parameters() if p.requires_grad]
    order = list(reversed(range(len(params))))
    return params, [[order[0], order[2]], order[1:2], order[3:]]


def bucketed(comm, f):
    module = Net()
    params, buckets = buckets_of(module)
    run = record(module, steps=2)
    for step in range(2):
        x, y = (part(t, comm) for t in batch(step))
        module.zero_grad()
        mse_loss(module(x), y).backward()
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        f["bucketed"](comm, params, [list(b) for b in buckets], 4)
        train(run, module, step)
    return run.finished


def overlapped(comm, f):
    module = Net()
    params = [p for p in module.parameters() if p.requires_grad]
    order = list(reversed(range(len(params))))
    run = record(module, steps=3)
    finish = f["overlapped"](comm, params, [order[:1], order[1:3], order[3:]], 2)
    for step in range(3):
        x, y = (part(t, comm) for t in batch(step))
        module.zero_grad()
        mse_loss(module(x), y).backward()
        finish()
        train(run, module, step)
    return run.finished


def accumulate_overlapped(comm, f):
    module = Net()
    module.extra.requires_grad_(False)
    params = [p for p in module.parameters() if p.requires_grad]
    order = list(reversed(range(len(params))))
    run = record(module, steps=2)
    for step in range(2):
        module.zero_grad()
        x, y = (part(t, comm) for t in batch(step, 24))
        micro = list(zip(x.tensor_split(4), y.tensor_split(4), strict=True))
        backwards = [partial(backward, module, a, b) for a, b in micro]
        f["accumulate_overlapped"](comm, params, backwards, [order[:1], order[1:3], order[3:]])
        train(run, module, step)
    return run.finished


def backward(module, x, y):
    (mse_loss(module(x), y) / 4).backward()


class Bucket:
    """What DDP hands to a hook."""

    def __init__(self, flat, place):
        self.flat = flat
        self.place = place

    def buffer(self):
        return self.flat

    def index(self):
        return self.place


def mean_hook(comm, f):
    module = Net()
    module.extra.requires_grad_(False)
    params = [p for p in module.parameters() if p.requires_grad]
    run = record(module, steps=2)
    for step in range(2):
        x, y = (part(t, comm) for t in batch(step))
        module.zero_grad()
        mse_loss(module(x), y).backward()
        for place, some in enumerate([params[2:], params[:2]]):
            flat = torch.cat([p.grad.flatten() for p in some])
            value = f["mean_hook"](comm, Bucket(flat, place)).value()
            for p, piece in zip(some, value.view(-1).split([p.numel() for p in some])):
                p.grad = piece.view_as(p)
        train(run, module, step)
    return run.finished


def ddp_ring(comm, f):
    module = Net()
    module.extra.requires_grad_(False)
    params = [p for p in module.parameters() if p.requires_grad]
    run = record(module, steps=2)
    for step in range(2):
        x, y = (part(t, comm) for t in batch(step))
        module.zero_grad()
        mse_loss(module(x), y).backward()
        flat = torch.cat([p.grad.flatten() for p in params]) / comm.size
        for p, piece in zip(params, flat.split([p.numel() for p in params])):
            p.grad = piece.view_as(p)
        f["ddp_ring"](comm, flat, "sum", list(range(comm.size)))
        train(run, module, step)
    return run.finished


# ------------------------------------------------------------
# ZeRO.


def sharded(comm, f):
    module = Net()
    module.block.inner.frozen.requires_grad_(True)
    module.extra.requires_grad_(True)
    params = list(module.parameters())
    owner = [[0, 1, 1, 0, 2, 0, 2][i % 7] % comm.size for i in range(len(params))]
    run = record(module, steps=2)
    step_all = f["sharded"](
        comm, params, owner, lambda some: torch.optim.SGD(some, lr=0.1, momentum=0.9)
    )
    for step in range(2):
        x, y = (part(t, comm) for t in batch(step))
        for p in module.parameters():
            p.grad = torch.zeros_like(p)
        mse_loss(module(x), y).backward()
        step_all()
        for p in module.parameters():
            p.grad = None  # of the owners' alone, and of their shards
        with run.step():
            pass
    return run.finished


def to_owners(comm, f):
    module = Net()
    module.extra.requires_grad_(False)
    params = [p for p in module.parameters() if p.requires_grad]
    owner = [i % comm.size for i in range(len(params))]
    f["to_owners"](comm, params, owner)
    run = record(module, steps=2)
    for step in range(2):
        x, y = (part(t, comm) for t in batch(step))
        module.zero_grad()
        mse_loss(module(x), y).backward()
        with run.step():
            descend(module)
            for p, root in zip(params, owner):
                p.data = broadcast(comm, p.data, root)
    return run.finished


def broadcast(comm, x, root):
    x = x.clone() if comm.rank == root else torch.zeros_like(x)
    return all_reduce_(comm, x)


def clip(comm, f):
    names = {"first": (7, 4), "second": (6, 3), "bias": (8,)}
    run = record(None, steps=2)
    for step, limit in enumerate((1.0, 100.0)):
        grads = {
            name: part(drawn(*shape, seed=step + len(name)), comm) for name, shape in names.items()
        }
        norm = f["clip"](comm, list(grads.values()), limit)
        for name, g in grads.items():
            run.note("gradient", name, g)
        run.note("norm", "norm", torch.tensor(float(norm), dtype=torch.float64))
        run.finish()
    return run.finished


def clip_copies(comm, f):
    shapes = {"first": (7, 4), "norm": (8,), "second": (6, 3), "bias": (5,)}
    run = record(None, steps=2)
    for step, limit in enumerate((1.0, 100.0)):
        whole = {name: drawn(*shape, seed=step + len(name)) for name, shape in shapes.items()}
        copied = [len(shape) == 1 for shape in shapes.values()]
        grads = [
            g.clone() if same else part(g, comm)
            for g, same in zip(whole.values(), copied, strict=True)
        ]
        held = list(grads)
        norm = f["clip_copies"](comm, grads, copied, limit)
        for name, g in zip(whole, held, strict=True):
            run.note("gradient", name, g)
        run.note("norm", "norm", torch.tensor(float(norm), dtype=torch.float64))
        run.finish()
    return run.finished


# ------------------------------------------------------------
# Tensor parallel.


class Call(nn.Module):
    """A function as a module, with parameters by name."""

    def __init__(self, function, **params):
        super().__init__()
        self.function = function
        for name, x in params.items():
            self.register_parameter(name, nn.Parameter(x.clone()))

    def forward(self, x):
        return self.function(x, **dict(self.named_parameters()))


def run_layers(layers, x, target, loss_fn=mse_loss, steps=2):
    """Layers by name, one after the other, on the same data in each step."""
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    run = record(model, steps=steps)
    for step in range(steps):
        model.zero_grad()
        loss_fn(model(x * (step + 1)), target).backward()
        train(run, model, step)
    return run.finished


def total(y, target):
    return ((y - target) ** 2).sum()


def linear(x, w):
    return F.linear(x, w)


def shifted(x, b):
    return x + b


def copy_to_program(comm, f):
    layers = {
        "first": Call(linear, w=drawn(4, 5, seed=1)),
        "f": Call(lambda x: f["copy_to"](x, comm)),
        "column": Call(linear, w=part(drawn(6, 4, seed=2), comm)),
    }
    return run_layers(layers, drawn(2, 3, 5, seed=3), part(drawn(2, 3, 6, seed=4), comm, 2), total)


def columns(comm):
    """A layer cut by its outputs, before what is tested."""
    f = Call(lambda x, w: F.linear(copy_to(x, comm), w), w=part(drawn(7, 5, seed=1), comm))
    return {"column": f, "act": nn.Tanh()}


def reduce_from_program(comm, f):
    def row(x, w):
        return f["reduce_from"](F.linear(x, w), comm)

    layers = columns(comm) | {
        "row": Call(row, w=part(drawn(4, 7, seed=2), comm, 1)),
        "bias": Call(shifted, b=drawn(4, seed=5)),
    }
    return run_layers(layers, drawn(2, 3, 5, seed=3), drawn(2, 3, 4, seed=4))


def row_linear_program(comm, f):
    def row(x, weight, bias):
        return f["row_linear"](x, weight, bias, comm)

    w = part(drawn(4, 6, seed=2), comm, 1)
    layers = {
        "column": Call(
            lambda x, w: F.linear(copy_to(x, comm), w), w=part(drawn(6, 5, seed=1), comm)
        ),
        "row": Call(row, weight=w, bias=drawn(4, seed=5)),
        "scale": Call(lambda x, s: x * s, s=drawn(4, seed=6)),
    }
    return run_layers(layers, drawn(2, 3, 5, seed=3), drawn(2, 3, 4, seed=4))


def mlp_program(comm, f):
    def layer(x, fc, fc_bias, proj, proj_bias):
        return f["mlp"](x, fc, fc_bias, proj, proj_bias, comm)

    mlp = Call(
        layer,
        fc=part(drawn(6, 5, seed=1), comm),
        fc_bias=part(drawn(6, seed=2), comm),
        proj=part(drawn(4, 6, seed=3), comm, 1),
        proj_bias=drawn(4, seed=4),
    )
    layers = {
        "first": Call(linear, w=drawn(5, 5, seed=7)),
        "mlp": mlp,
        "scale": Call(lambda x, s: x * s, s=drawn(4, seed=6)),
    }
    return run_layers(layers, drawn(2, 3, 5, seed=3), drawn(2, 3, 4, seed=4))


def sequence_pair(comm, f):
    def row(x, w):
        return f["reduce_scatter_sequence"](F.linear(x, w), comm)

    layers = {
        "first": Call(lambda x, w: F.linear(x, copy_to(w, comm)), w=drawn(5, 5, seed=7)),
        "gather": Call(lambda x: f["gather_sequence"](x, comm)),
        "column": Call(linear, w=part(drawn(6, 5, seed=1), comm)),
        "row": Call(row, w=part(drawn(4, 6, seed=2), comm, 1)),
    }
    x, target = part(drawn(2, 6, 5, seed=3), comm, 1), part(drawn(2, 6, 4, seed=4), comm, 1)
    return run_layers(layers, x, target, total)


def sequence_norm(comm, f):
    def norm(x, weight, bias):
        return f["sequence_norm"](x, weight, bias, comm)

    layers = {
        "first": Call(lambda x, w: F.linear(x, copy_to(w, comm)), w=drawn(5, 5, seed=7)),
        "norm": Call(norm, weight=drawn(5, seed=1), bias=drawn(5, seed=2)),
    }
    x, target = part(drawn(2, 6, 5, seed=3), comm, 1), part(drawn(2, 6, 5, seed=4), comm, 1)
    return run_layers(layers, x, target, total)


# ------------------------------------------------------------
# The vocabulary split.

VOCAB = 10


def tokens_of(step, count=14):
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(step))


def rows_of(x, comm):
    first, end = bounds(uneven(VOCAB, comm.size))[comm.rank]
    return x[first:end].clone()


def recorded_outputs(outputs, kind="output"):
    """One step with these outputs, by name."""
    run = record(None, steps=1)
    for name, x in outputs.items():
        run.note(kind, name, x)
    run.finish()
    return run.finished


def logits(comm):
    return rows_of(4 * drawn(VOCAB, 14, seed=1), comm).T.contiguous()


def split_loss(comm, f):
    losses, log_total = f["split_loss"](comm, logits(comm), tokens_of(0), VOCAB, VOCAB)
    return recorded_outputs({"log_total": log_total, "losses": losses})


def merged_loss(comm, f):
    losses = f["merged_loss"](comm, logits(comm), tokens_of(0), VOCAB, 0.1)
    return recorded_outputs({"losses": losses})


def look_up(comm, f):
    rows = rows_of(drawn(VOCAB, 5, seed=1), comm)
    found = f["look_up"](comm, rows, tokens_of(0).view(7, 2), VOCAB)
    return recorded_outputs({"embedding": found})


def logits_gradient(comm, f):
    part, targets = logits(comm), tokens_of(0)
    log_total = (4 * drawn(VOCAB, 14, seed=1)).T.logsumexp(1)
    targets[::5] = -100
    grad = f["logits_gradient"](comm, part, targets, VOCAB, log_total)
    return recorded_outputs({"logits": grad}, "gradient")


def look_up_gradient(comm, f):
    grad = f["look_up_gradient"](comm, drawn(2, 7, 5, seed=2), tokens_of(0).view(2, 7), VOCAB)
    return recorded_outputs({"rows": grad}, "gradient")


# ------------------------------------------------------------
# A grid: 3 data × 2 pipeline × 2 tensor ranks. Two gradients of each kind, under names that say nothing.
# The tied one is split over the tensor ranks, too: by words.

CUT = ("split", "tied")
KINDS = {"a": "partial", "b": "partial", "c": "whole", "d": "whole", "e": "split", "g": "split"}
MICRO = 2


def held(mesh):
    """{name: kind} of the gradients of a rank: those of its stage, and the tied one at both ends."""
    names = {}
    for stage in range(2) if mesh.pp.size == 1 else [mesh.pp.rank]:
        names |= {f"{stage}.{name}": kind for name, kind in KINDS.items()}
    return names | {"shared": "tied"}


def synchronize(comm, f):
    mesh = Mesh(comm, *(1, 1, 1) if comm.size == 1 else (3, 2, 2))
    kinds = held(mesh)
    grads = {
        name: torch.zeros(3 if kind in CUT and mesh.tp.size > 1 else 6, 8, dtype=torch.float64)
        for name, kind in kinds.items()
    }
    run = record(None, steps=1)

    def shared(name, kind, m):
        """What this rank's backward of a micro-batch adds: the parts over dp, tp and the ends add up to the serial one."""
        parts = []
        for d in range(3):
            for t in range(2):
                for p in range(2):
                    seed = 1000 * d + 100 * m + 10 * t + p + 7 * sum(map(ord, name))
                    parts.append(((d, t, p), drawn(6, 8, seed=seed)))
        if mesh.comm.size == 1:
            used = {
                "partial": lambda d, t, p: p == 0,
                "tied": lambda d, t, p: t == 0,
            }.get(kind, lambda d, t, p: t == 0 and p == 0)
            return sum(x for at, x in parts if used(*at)) / 3
        (own,) = [
            x
            for (d, t, p), x in parts
            if d == mesh.dp.rank
            and t == (mesh.tp.rank if kind == "partial" else 0)
            and p == (mesh.pp.rank if kind == "tied" else 0)
        ]
        return own.chunk(2)[mesh.tp.rank] if kind in CUT else own

    def backward(m):
        for name, kind in kinds.items():
            added = shared(name, kind, m)
            run.note("local", name, added)
            grads[name] += added

    own = dict(grads)
    f["synchronize"](mesh, backward, MICRO, grads, kinds)
    for name, g in own.items():
        run.note("gradient", name, g)
    run.finish()
    return run.finished


def clip_grid(comm, f):
    mesh = Mesh(comm, *(1, 1, 1) if comm.size == 1 else (3, 2, 2))
    kinds = held(mesh)
    run = record(None, steps=2)
    for step, limit in enumerate((1.0, 100.0)):
        grads = {}
        for name, kind in kinds.items():
            g = drawn(6, 8, seed=step + 7 * sum(map(ord, name)))
            grads[name] = part(g, mesh.tp) if kind in CUT else g.clone()
        norm = f["clip_grid"](mesh, grads, kinds, limit)
        for name, g in grads.items():
            run.note("gradient", name, g)
        run.note("norm", "norm", torch.tensor(float(norm), dtype=torch.float64))
        run.finish()
    return run.finished


# ------------------------------------------------------------
# Statistics of all ranks' samples, and the way back through them. The last rank has no samples.

ROWS = [5, 4, 3, 0]


class Normalize(torch.autograd.Function):
    """(x − mean) / deviation · weight, by the answer's statistics and its gradient. x: (B, C), as images of one pixel."""

    WEIGHT = drawn(4, seed=9)

    @staticmethod
    def forward(ctx, x, comm, f, run):
        mean, var, count = f["sync_statistics"](comm, x[:, :, None, None])
        for name, statistic in (("mean", mean), ("var", var), ("count", count)):
            run.note("output", name, torch.as_tensor(statistic).double())
        scale = (var + 1e-5).rsqrt()
        normal = (x - mean) * scale
        ctx.save_for_backward(normal, scale)
        ctx.rest = comm, f, count
        return normal * Normalize.WEIGHT

    @staticmethod
    def backward(ctx, dy):
        comm, f, count = ctx.rest
        normal, scale = ctx.saved_tensors
        images = [t[:, :, None, None] for t in (dy, normal)]
        dx, _, _ = f["sync_backward"](comm, *images, scale, Normalize.WEIGHT, count)
        return dx[:, :, 0, 0], None, None, None


def normalized(comm, f):
    runs = []
    model = nn.Sequential(
        Call(linear, w=drawn(4, 3, seed=1)),
        Call(lambda x: Normalize.apply(x, comm, f, runs[0])),
        Call(linear, w=drawn(2, 4, seed=2)),
    )
    run = record(model, steps=2)
    runs.append(run)
    sizes = [sum(ROWS)] if comm.size == 1 else ROWS
    for step in range(2):
        x = drawn(sum(ROWS), 3, seed=step + 3).split(sizes)[comm.rank]
        y = drawn(sum(ROWS), 2, seed=step + 5).split(sizes)[comm.rank]
        model.zero_grad()
        total(model(x), y).div(sum(ROWS)).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
        train(run, model, step)
    return run.finished


# ------------------------------------------------------------
# Servers of parameters. What a worker pulls is the parameter after a step. The serial run is what must follow.

SERVERS = 2
WORKERS = 3
PULLS = 4
RATE = 0.25


def slope(w, worker, step):
    return w / 2 + drawn(7, seed=100 * worker + step)


def synchronous(comm, f):
    w = drawn(7, seed=1)
    first = w.clone()
    run = record(None, steps=PULLS)
    weights = []
    if comm.size == 1:
        for step in range(PULLS):
            weights.append(w)
            added = sum((k + 1) * slope(w, k, step) for k in range(WORKERS))
            w = w - RATE * added / sum(k + 1 for k in range(WORKERS))
        parts = {"server": (first, w)}
    else:
        worker = comm.rank - SERVERS
        pushes = []

        def gradient(w):
            weights.append(w.clone())
            pushes.append((worker + 1) * slope(w, worker, len(pushes)))
            return pushes[-1], worker + 1  # samples

        end = f["synchronous"](comm, SERVERS, w, gradient, PULLS, RATE)
        parts = {}
        if worker < 0:
            whole = end.shape == first.shape
            first = first if whole else first.tensor_split(SERVERS)[comm.rank]
            parts = {"server": (first, end)}
    for name, (start, _) in parts.items():
        run.note("start", name, start)
    for step in range(PULLS - 1):
        if weights:
            run.note("start", "w", weights[0])
            run.note("parameter", "w", weights[step + 1])
        if comm.size > 1 and weights:
            run.note("local", "w", pushes[step])
        run.finish()
    for name, (_, end) in parts.items():
        run.note("parameter", name, end)
    run.finish()
    return run.finished


def asynchronous(comm, f):
    """Workers as fast as each other come in turn."""
    w = drawn(7, seed=1)
    first = w.clone()
    run = record(None, steps=PULLS)
    weights = {k: [] for k in range(WORKERS)}
    pushes = []
    if comm.size == 1:
        held = [w] * WORKERS
        for push in range(PULLS * WORKERS):
            step, k = divmod(push, WORKERS)
            weights[k].append(held[k])
            stale = k if step == 0 else WORKERS - 1
            w = w - RATE / (1 + stale) * slope(held[k], k, step)
            held[k] = w
    else:
        worker = comm.rank - 1

        def gradient(w):
            weights[worker].append(w.clone())
            pushes.append(slope(w, worker, len(pushes)))
            return pushes[-1]

        f["asynchronous"](comm, w, gradient, [PULLS] * WORKERS, RATE)
    if comm.rank == 0:
        run.note("start", "server", first)
    for step in range(PULLS):
        for k, versions in weights.items():
            if versions and step == 0:
                run.note("start", f"pulled by {k}", versions[0])
            if versions and step < PULLS - 1:
                run.note("parameter", f"pulled by {k}", versions[step + 1])
            if pushes and k == comm.rank - 1:
                run.note("local", f"pulled by {k}", pushes[step])
        if comm.rank == 0 and step == PULLS - 1:
            run.note("parameter", "server", w)
        run.finish()
    return run.finished


# ------------------------------------------------------------
# Scales and optimizers of pieces.


def piece(x, comm, ranks):
    """This rank's rows, of the first `ranks` ranks; None on others."""
    if comm.size == 1:
        return x.clone()
    return x.tensor_split(ranks)[comm.rank].clone() if comm.rank < ranks else None


def sharded_step(comm, f):
    """inf on one rank, later −inf on another. The last rank has no parameters."""
    shapes = {"first": (7, 4), "second": (5, 3)}
    whole = {name: drawn(*shape, seed=len(name)) for name, shape in shapes.items()}
    weights = {name: piece(x, comm, 3) for name, x in whole.items()}
    weights = {name: w for name, w in weights.items() if w is not None}
    run = record(None, steps=3)
    scale = 8.0
    for name, w in weights.items():
        run.note("start", name, w)
    run.note("start", "scale", torch.tensor([scale], dtype=torch.float64))
    for step in range(3):
        grads = {name: drawn(*shape, seed=step + len(name)) for name, shape in shapes.items()}
        if step > 0:
            grads["second"][2 * step - 2, 1] = math.inf if step == 1 else -math.inf
        grads = [piece(scale * grads[name], comm, 3) for name in weights]
        scale = f["sharded_step"](comm, list(weights.values()), grads, scale, 0.1)
        for name, w in weights.items():
            run.note("parameter", name, w)
        run.note("parameter", "scale", torch.tensor([scale], dtype=torch.float64))
        run.finish()
    return run.finished


def lamb_step(comm, f):
    """Flat pieces. Of the second, rank 0's is zero at the start; the last is zero everywhere."""
    sizes = {"large": 11, "half": 7, "plain": 5, "zero": 4}
    whole = {name: 20 * drawn(size, seed=size) for name, size in sizes.items()}
    whole["half"][:4] = 0
    whole["zero"] *= 0
    weights = [part(x, comm) for x in whole.values()]
    means, squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    plain = [name == "plain" for name in sizes]
    run = record(None, steps=2)
    for name, w in zip(sizes, weights, strict=True):
        run.note("start", name, w)
    for step in range(2):
        grads = [part(drawn(size, seed=10 * step + size), comm) for size in sizes.values()]
        for name, g in zip(sizes, grads, strict=True):
            run.note("gradient", name, g)
        f["lamb_step"](
            comm, weights, grads, means, squares, plain, step + 1, 0.1, (0.9, 0.99), 1e-6, 0.01
        )
        for name, w in zip(sizes, weights, strict=True):
            run.note("parameter", name, w)
        run.finish()
    return run.finished


def sharded_linear(comm, f):
    """Between two layers that are whole on each rank; two micro-batches."""
    shape = torch.Size((7, 5))
    flat = drawn(*shape, seed=2).flatten()
    alone = comm.split(list(range(comm.size)))  # no replicas
    layers = {
        "first": Call(linear, w=drawn(5, 5, seed=1)),
        "sharded": Call(
            lambda x, w: f["sharded_linear"](comm, alone, x, w, shape), w=part(flat, comm)
        ),
        "last": Call(linear, w=drawn(2, 7, seed=3)),
    }
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    run = record(model, steps=2)
    for step in range(2):
        model.zero_grad()
        x, y = (part(drawn(12, k, seed=step + k), comm) for k in (5, 2))
        for a, b in zip(x.tensor_split(2), y.tensor_split(2), strict=True):
            mse_loss(model(a), b).div(2).backward()
        for name, p in model.named_parameters():
            if not name.startswith("sharded") and p.grad is not None:
                all_reduce_(comm, p.grad, "mean")
        train(run, model, step)
    return run.finished


# ------------------------------------------------------------
# Heads, and the projection to a vocabulary.


def attention(x, q, k, v):
    """(T, rows of q): heads of 2."""
    q, k, v = (F.linear(x, w).unflatten(1, (-1, 2)).transpose(0, 1) for w in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)


def my_heads(comm, f):
    """Six heads of 2 in 12 columns."""
    q, k, v = f["my_heads"](drawn(36, 12, seed=1) / 4, 6, comm).chunk(3)
    layers = {
        "attention": Call(lambda x, q, k, v: attention(copy_to(x, comm), q, k, v), q=q, k=k, v=v),
        "proj": Call(
            lambda x, w: reduce_from(F.linear(x, w), comm), w=part(drawn(12, 12, seed=2), comm, 1)
        ),
    }
    return run_layers(layers, drawn(5, 12, seed=3), drawn(5, 12, seed=4))


def project_backward(comm, f):
    dlogits = drawn(14, 9, seed=1).tensor_split(comm.size, 1)[comm.rank].contiguous()
    dx, drows = f["project_backward"](
        comm, dlogits, drawn(14, 5, seed=2), part(drawn(9, 5, seed=3), comm)
    )
    return recorded_outputs({"x": dx, "rows": drows}, "gradient")


# ------------------------------------------------------------
# Pipelines. A stage's modules have the names that they have in the whole model.

WIDTH = 5
STAGES = 3
FORTH = [1, 0, *range(2, 12)]
BACK = [0, 2, 1, *range(3, 12)]


def stage_of(model, comm):
    """This rank's stage, of `STAGES` of two modules each, and the names of its modules in the model."""
    if comm.size == 1:
        return model, lambda name: name
    return model[2 * comm.rank : 2 * comm.rank + 2], lambda name: name or f"stage {comm.rank}"


def layered(seed=0):
    layers = []
    for k in range(STAGES):
        layer = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(drawn(WIDTH, WIDTH, seed=seed + k))
            layer.bias.copy_(drawn(WIDTH, seed=seed + k + 50))
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers)


def micro_batches(step, count):
    """Of 2 and 3 rows in turn."""
    sizes = [2 + m % 2 for m in range(count)]
    xs = [drawn(size, WIDTH, seed=40 * step + m) for m, size in enumerate(sizes)]
    ys = [drawn(size, WIDTH, seed=40 * step + m + 1000) for m, size in enumerate(sizes)]
    return xs, ys


def run_stage(comm, f):
    part, names = stage_of(layered(), comm)
    run = record(part, steps=2, names=names)
    words = [f"F{m}" for m in FORTH] + [f"B{m}" for m in BACK]
    for step in range(2):
        part.zero_grad()
        xs, ys = micro_batches(step, len(FORTH))
        if comm.size == 1:
            losses = [smooth_l1_loss(part(xs[m]), ys[m]) / len(xs) for m in FORTH]
            for m in BACK:
                losses[FORTH.index(m)].backward()
        else:
            down, up = (comm.split([0] * comm.size) for _ in range(2))
            f["run_stage"](down, up, part, words, xs, ys, smooth_l1_loss)
        train(run, part, step)
    return run.finished


def split_backward(comm, f):
    """A block on each of two stages, two micro-batches: weights' gradients are made when all has gone back."""
    weights = [[drawn(WIDTH, WIDTH, seed=10 * s + k) for k in range(2)] for s in range(2)]
    stages = range(2) if comm.size == 1 else [comm.rank]
    run = record(None, steps=1)
    grads = {(s, k): torch.zeros(WIDTH, WIDTH, dtype=torch.float64) for s in stages for k in (0, 1)}
    inputs = []
    for m in range(2):
        x = drawn(4, WIDTH, seed=m + 100)
        hidden = []
        for w1, w2 in weights:
            hidden.append((x, w1, (x @ w1).relu(), w2))
            x = (x @ w1).relu() @ w2
        inputs.append(hidden)
    rest = []
    for m, hidden in enumerate(inputs):
        dy = drawn(4, WIDTH, seed=m + 200)
        for s in reversed(range(2)):
            if s not in stages:
                dy = comm.recv(torch.empty_like(dy), 1) if comm.rank < s else dy
                continue
            dy, later = f["split_backward"](*hidden[s], dy)
            rest.append((s, later))
            if comm.rank == 1:
                comm.send(dy, 0)
        if 0 in stages:
            run.note("gradient", f"input {m}", dy)
    for s, later in rest:
        for k, dw in enumerate(later()):
            run.note("local", f"{s}.w{k + 1}", dw)
            grads[s, k] = grads[s, k] + dw
    for (s, k), grad in grads.items():
        run.note("gradient", f"{s}.w{k + 1}", grad)
    run.finish()
    return run.finished


def run_2bw(comm, f):
    """Weights of the serial run are kept in versions: a group of three uses those of one update ago."""
    M = 6
    part, names = stage_of(layered(), comm)
    run = record(part, steps=1, names=names)
    xs, ys = micro_batches(0, M)
    if comm.size > 1:
        down, up = (comm.split([0] * comm.size) for _ in range(2))
        words = f["updated"](comm.rank, comm.size, M, 3)
        f["run_2bw"](down, up, part, words, xs, ys, smooth_l1_loss, 2 * RATE, 3)
    else:
        versions = [dict(part.named_parameters())]
        for g in range(M // 3):
            used = versions[max(0, g - 1)]
            used = {name: w.detach().requires_grad_() for name, w in used.items()}
            losses = [
                smooth_l1_loss(functional_call(part, used, xs[m]), ys[m])
                for m in range(3 * g, 3 * g + 3)
            ]
            grads = torch.autograd.grad(sum(losses) / 3, list(used.values()))
            newest = zip(versions[-1].items(), grads, strict=True)
            versions.append({name: (w - 2 * RATE * g).detach() for (name, w), g in newest})
        with torch.no_grad():
            for name, p in part.named_parameters():
                p.copy_(versions[-1][name])
    with run.step():
        pass
    return run.finished


# ------------------------------------------------------------
# Experts and long contexts.


def clip_experts(comm, f):
    """Two data × two expert ranks. Each pair has an expert's gradient of its own tokens, and all have the rest's."""
    run = record(None, steps=2)
    for step, most in enumerate((100.0, 0.5)):
        experts = [[drawn(3, 4, seed=100 * step + 10 * d + e) for e in range(2)] for d in range(2)]
        rest = [drawn(5, seed=100 * step + r + 50) for r in range(4)]
        if comm.size == 1:
            found = [sum(torch.cat(own) for own in experts) / 4, sum(rest) / 4]
            norm = torch.cat([x.flatten() for x in found]).norm()
            found = [x * min(1.0, most / norm) for x in found]
        else:
            d, e = divmod(comm.rank, 2)
            for name, x in (("expert", experts[d][e]), ("rest", rest[comm.rank])):
                run.note("local", name, x)
            *found, norm = f["clip_experts"](comm, 2, experts[d][e], rest[comm.rank], most)
        for name, x in zip(("expert", "rest"), found, strict=True):
            run.note("gradient", name, x)
        if step:  # in the first, nothing is clipped, and averages alone count
            run.note("norm", "norm", torch.tensor(float(norm), dtype=torch.float64))
        run.finish()
    return run.finished


def ring_backward(comm, f):
    """Four heads of queries, of which two share a head of keys; (tokens, heads, size)."""
    grad, q, k, v = (drawn(12, heads, 4, seed=s) for s, heads in enumerate((4, 4, 2, 2)))
    queries, keys, values = (
        x.transpose(0, 1) for x in (q, *(y.repeat_interleave(2, 1) for y in (k, v)))
    )
    scores = queries @ keys.mT / 2
    out, lse = (scores.softmax(2) @ values).transpose(0, 1), scores.logsumexp(2).T
    given = [part(x, comm).transpose(0, 1).contiguous() for x in (grad, q, k, v, out, lse)]
    found = [x.transpose(0, 1) for x in f["ring_backward"](comm, *given)]
    return recorded_outputs(dict(zip("qkv", found, strict=True)), "gradient")


def mean_loss(comm, f):
    """Tokens that do not count are many on some ranks, and their losses are inf."""
    model = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(drawn(2, 3, seed=1))
        model.bias.copy_(drawn(2, seed=2))
    run = record(model, steps=2)
    for step in range(2):
        model.zero_grad()
        x, y = (part(drawn(12, k, seed=step + k), comm) for k in (3, 2))
        counted = part(torch.arange(12) % 7 < 4, comm)
        losses = (model(x) - y).square().sum(1)
        losses[counted].mean().backward()
        shown = torch.where(counted, losses.detach(), math.inf)
        loss, share = f["mean_loss"](comm, shown, counted)
        for p in model.parameters():
            all_reduce_(comm, p.grad.mul_(share))
        with run.step(loss=loss):
            descend(model)
    return run.finished


# ------------------------------------------------------------
# Less to send. What each rank sends and keeps is recorded as a row of all ranks'. The serial run is what must follow.

SENDERS = 3
SIZE = 20
MOST = 5


def senders(comm):
    return range(SENDERS) if comm.size == 1 else [comm.rank]


def compress(comm, f):
    state = {r: (torch.zeros(SIZE).double(), torch.zeros(SIZE).double()) for r in senders(comm)}
    run = record(None, steps=4)
    for step in range(4):
        rows = []
        for r, (u, v) in state.items():
            g = drawn(SIZE, seed=10 * step + r) * (0.1 if step == 2 else 1)
            values, places = f["compress"](u, v, g, MOST, 0.9, 1.0, SENDERS)
            rows.append(torch.zeros(SIZE).double().index_put((places,), values))
        run.note("gradient", "sent", torch.stack(rows))
        run.finish()
    return run.finished


def sparse_mean(comm, f):
    run = record(None, steps=2)
    for step in range(2):
        dense = []
        for r in range(SENDERS):
            g = drawn(SIZE, seed=10 * step + r)
            dense.append(torch.where(g.abs() >= g.abs().topk(2 * MOST).values[-1], g, 0.0))
        if comm.size == 1:
            mean = sum(dense) / SENDERS
        else:
            own = dense[comm.rank]
            run.note("local", "mean", own)
            places = own.nonzero().flatten()
            mean = f["sparse_mean"](comm, own[places], places, SIZE)
        run.note("gradient", "mean", mean.view(SIZE))
        run.finish()
    return run.finished


def local_sgd(comm, f):
    """Five steps in periods of two. Recorded when there was an average. The last weight is not contiguous.

    Rank r has r + 1 samples in a step.
    """
    H, steps = 2, 5
    shapes = {"first": (3, 4), "second": (6,), "third": (2, 5)}
    run = record(None, steps=3)
    replicas = []
    for _ in senders(comm):
        params = {name: drawn(*shape, seed=len(name)) for name, shape in shapes.items()}
        params["third"] = params["third"].T.contiguous().T
        replicas.append(params)
    for name, w in replicas[0].items():
        run.note("start", name, w)

    def descend_alone(r, params, t):
        for name, w in params.items():
            g = w.sin() + drawn(*w.shape, seed=100 * r + 10 * t + len(name))
            if comm.size > 1:
                run.note("local", name, g)
            w -= RATE * g

    def note():
        for name, w in replicas[0].items():
            run.note("parameter", name, w)
        run.finish()

    def step(t):
        if t > 0 and t % H == 0:
            note()
        descend_alone(comm.rank, replicas[0], t)
        return comm.rank + 1

    if comm.size > 1:
        f["local_sgd"](comm, list(replicas[0].values()), step, steps, H)
        while run.count < run.steps:
            note()
        return run.finished
    for t in range(steps):
        for r, params in enumerate(replicas):
            descend_alone(r, params, t)
        if (t + 1) % H == 0 or t + 1 == steps:
            for name in shapes:
                total = sum((r + 1) * params[name] for r, params in enumerate(replicas))
                mean = total / sum(range(1, SENDERS + 1))
                for params in replicas:
                    params[name].copy_(mean)
            note()
    return run.finished


def sign_average(comm, f):
    errors = {r: torch.zeros(SIZE, dtype=torch.float64) for r in senders(comm)}
    run = record(None, steps=3)
    run.note("start", "error", torch.stack(list(errors.values())))
    for step in range(3):
        grads = {r: drawn(SIZE, seed=10 * step + r) for r in errors}
        if comm.size == 1:
            sent = {r: g + errors[r] for r, g in grads.items()}
            sent = {r: (2 * (p >= 0) - 1) * p.abs().mean() for r, p in sent.items()}
            mean = sum(sent.values()) / SENDERS
            errors = {r: g + errors[r] - sent[r] for r, g in grads.items()}
        else:
            mean = f["sign_average"](comm, grads[comm.rank], errors[comm.rank])
        run.note("gradient", "mean", mean)
        run.note("parameter", "error", torch.stack(list(errors.values())))
        run.finish()
    return run.finished


# ------------------------------------------------------------
# The collectives of FSDP: gradients by way of the two, in buffers that are there again in the next step.


def gather_single(comm, f):
    run = record(None, steps=2)
    buffer = torch.zeros(3 * 8, dtype=torch.float64)
    for step in range(2):
        grads = [drawn(24, seed=10 * step + r) for r in range(3)]
        mean = sum(grads) / 3
        if comm.size > 1:
            run.note("local", "flat", grads[comm.rank])
            f["gather_single"](comm, buffer.view(-1), mean.chunk(3)[comm.rank].clone())
            mean = buffer
        run.note("gradient", "flat", mean)
        run.finish()
    return run.finished


def reduce_single(comm, f):
    run = record(None, steps=2)
    buffers = {op: torch.zeros(8, dtype=torch.float64) for op in ("mean", "sum")}
    for step in range(2):
        for op, buffer in buffers.items():
            grads = [drawn(24, seed=10 * step + r + 100 * len(op)) for r in range(3)]
            if comm.size == 1:
                run.note("gradient", op, sum(grads) / (3 if op == "mean" else 1))
                continue
            run.note("local", op, grads[comm.rank])
            f["reduce_single"](comm, buffer.view(-1), grads[comm.rank].clone(), op)
            run.note("gradient", op, buffer)
        run.finish()
    return run.finished


PROGRAMS = {
    "start_equal": (3, start_equal),
    "average_gradients": (3, average_gradients),
    "weighted_average_gradients": (4, weighted_average_gradients),
    "accumulate_counted": (3, accumulate_counted),
    "average_hooks": (3, average_hooks),
    "bucketed": (3, bucketed),
    "overlapped": (3, overlapped),
    "accumulate_overlapped": (3, accumulate_overlapped),
    "mean_hook": (3, mean_hook),
    "ddp_ring": (3, ddp_ring),
    "sharded": (3, sharded),
    "to_owners": (3, to_owners),
    "clip": (3, clip),
    "clip_copies": (3, clip_copies),
    "copy_to": (3, copy_to_program),
    "reduce_from": (3, reduce_from_program),
    "row_linear": (3, row_linear_program),
    "mlp": (3, mlp_program),
    "sequence_pair": (3, sequence_pair),
    "sequence_norm": (3, sequence_norm),
    "split_loss": (3, split_loss),
    "merged_loss": (3, merged_loss),
    "look_up": (3, look_up),
    "logits_gradient": (3, logits_gradient),
    "look_up_gradient": (3, look_up_gradient),
    "synchronize": (12, synchronize),
    "clip_grid": (12, clip_grid),
    "sync_statistics": (4, normalized),
    "sync_backward": (4, normalized),
    "synchronous": (SERVERS + WORKERS, synchronous),
    "asynchronous": (1 + WORKERS, asynchronous),
    "sharded_step": (4, sharded_step),
    "lamb_step": (3, lamb_step),
    "sharded_linear": (3, sharded_linear),
    "my_heads": (3, my_heads),
    "project_backward": (3, project_backward),
    "run_stage": (STAGES, run_stage),
    "split_backward": (2, split_backward),
    "run_2bw": (STAGES, run_2bw),
    "clip_experts": (4, clip_experts),
    "ring_backward": (3, ring_backward),
    "mean_loss": (3, mean_loss),
    "compress": (SENDERS, compress),
    "sparse_mean": (SENDERS, sparse_mean),
    "local_sgd": (SENDERS, local_sgd),
    "sign_average": (SENDERS, sign_average),
    "gather_single": (3, gather_single),
    "reduce_single": (3, reduce_single),
}


def runs(exercise, right, answer):
    """The serial run with the solution's names, and the parallel one with the answer's."""
    n, program = PROGRAMS[exercise]
    serial = World(1).run(lambda comm: program(comm, right))
    return list(serial), list(World(n).run(lambda comm: program(comm, answer)))
