"""Small trainings that use an exercise's answer, recorded: for each exercise the number of ranks, and a program
`program(comm, f)` whose serial run is that of the solution on one rank. f: the names of the solved notebook, with the
answer in them. All in float64, so that what rounds more coarsely is seen."""

import warnings
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import mse_loss, smooth_l1_loss

from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.comm.mesh import Mesh
from minidist.parallel.tensor import copy_to
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
    module = Net(seed=comm.rank)
    f["start_equal"](comm, module)
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


def accumulate(comm, f):
    module = Net()
    run = record(module, steps=2)
    for step in range(2):
        x, y = (part(t, comm) for t in batch(step))
        f["accumulate"](
            comm, module, smooth_l1_loss, list(zip(x.split(2), y.split(2), strict=True))
        )
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
        f["bucketed"](comm, params, [list(b) for b in buckets])
        train(run, module, step)
    return run.finished


def overlapped(comm, f):
    module = Net()
    params = [p for p in module.parameters() if p.requires_grad]
    order = list(reversed(range(len(params))))
    run = record(module, steps=3)
    finish = f["overlapped"](comm, params, [order[:1], order[1:3], order[3:]])
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
        f["ddp_ring"](comm, flat, "sum")
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
    losses, log_total = f["split_loss"](comm, logits(comm), tokens_of(0), VOCAB)
    return recorded_outputs({"losses": losses, "log_total": log_total})


def merged_loss(comm, f):
    losses = f["merged_loss"](comm, logits(comm), tokens_of(0), VOCAB)
    return recorded_outputs({"losses": losses})


def look_up(comm, f):
    rows = rows_of(drawn(VOCAB, 5, seed=1), comm)
    found = f["look_up"](comm, rows, tokens_of(0).view(2, 7), VOCAB)
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


PROGRAMS = {
    "start_equal": (3, start_equal),
    "average_gradients": (3, average_gradients),
    "weighted_average_gradients": (4, weighted_average_gradients),
    "accumulate": (3, accumulate),
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
}


def runs(exercise, right, answer):
    """The serial run with the solution's names, and the parallel one with the answer's."""
    n, program = PROGRAMS[exercise]
    serial = World(1).run(lambda comm: program(comm, right))
    return list(serial), list(World(n).run(lambda comm: program(comm, answer)))
