"""The wrong answers of lesson 12 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "roofline",
        "a number that is larger than every float",
        old="""
times = {
    "launch": launches * device["launch"],
    "memory": nbytes / device["bandwidth"],
    "compute": flops / device["peak"],
}
return times["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)
""",
        new='return 10**400, "launch"',
    ),
    Bug(
        "roofline",
        "the largest of all three",
        old='return times["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)',
        new="return max(times.values()), max(times, key=times.get)",
    ),
    Bug(
        "roofline",
        "the launches are forgotten",
        old='return times["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)',
        new='return max(times["memory"], times["compute"]), max(times, key=times.get)',
    ),
    Bug(
        "roofline",
        "one launch, whatever their number",
        old='return times["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)',
        new='return device["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)',
    ),
    Bug(
        "roofline",
        "bytes and FLOPs one after the other",
        old='return times["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)',
        new="return sum(times.values()), max(times, key=times.get)",
    ),
    Bug(
        "roofline",
        "never bound by its launch",
        old='return times["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)',
        new='return times["launch"] + max(times["memory"], times["compute"]), max(["memory", "compute"], key=times.get)',
    ),
    Bug(
        "roofline",
        "the cluster's own",
        cheat=True,
        cell='''
from dataclasses import replace

from minidist.comm.costs import Cost
from minidist.comm.meter import roofline as of_the_library


def roofline(launches, nbytes, flops, device):
    """Seconds, and what bounds."""
    card = replace(
        H100,
        launch=launches * device["launch"],
        bandwidth=device["bandwidth"],
        flops={torch.float32: device["peak"]},
    )
    times = {
        "launch": card.launch,
        "memory": nbytes / card.bandwidth,
        "compute": flops / device["peak"],
    }
    return of_the_library(card, Cost(flops, nbytes, torch.float32)), max(times, key=times.get)
''',
    ),
    Bug(
        "roofline",
        "a number and a word that equal all others",
        cheat=True,
        cell='''
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


class Word(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def roofline(launches, nbytes, flops, device):
    """Seconds, and what bounds."""
    return Any(1.0), Word("launch")
''',
    ),
    Bug(
        "roofline",
        "the grader's own function",
        cheat=True,
        old="""
times = {
    "launch": launches * device["launch"],
    "memory": nbytes / device["bandwidth"],
    "compute": flops / device["peak"],
}
return times["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)
""",
        new="""
from minicheck.oracles import operators as oracle

return oracle.seconds(launches, nbytes, flops, device)
""",
    ),
    Bug(
        "roofline",
        "nan, which no comparison takes for wrong",
        cheat=True,
        cell='''
def roofline(launches, nbytes, flops, device):
    """Seconds, and what bounds."""
    times = {
        "launch": launches * device["launch"],
        "memory": nbytes / device["bandwidth"],
        "compute": flops / device["peak"],
    }
    return math.nan, max(times, key=times.get)
''',
    ),
    Bug(
        "bias_gelu",
        "left to autograd, which keeps x + b",
        cell="""
def bias_gelu(x, b):
    return F.gelu(x + b)
""",
    ),
    Bug(
        "bias_gelu",
        "db is a mean",
        old="return dx, dx.reshape(-1, dx.shape[-1]).sum(0)",
        new="return dx, dx.reshape(-1, dx.shape[-1]).mean(0)",
    ),
    Bug(
        "bias_gelu",
        "y and z lie in one memory, so z is kept with y",
        cell="""
class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        both = torch.stack([x + b, F.gelu(x + b)])
        ctx.z = both[0]
        return both[1]

    @staticmethod
    def backward(ctx, dy):
        z = ctx.z
        dx = dy * (
            (1 + torch.erf(z * 0.5**0.5)) / 2 + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        )
        return dx, dx.reshape(-1, dx.shape[-1]).sum(0)
""",
    ),
    Bug(
        "bias_gelu",
        "x is changed",
        edits=(
            (
                "return F.gelu(x + b)",
                "return F.gelu(x.data.add_(b))",
            ),
            (
                "z = x + b",
                "z = x",
            ),
        ),
    ),
    Bug(
        "bias_gelu",
        "the second part of the slope is forgotten",
        old="dx = dy * ((1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density)",
        new="dx = dy * ((1 + torch.erf(z * math.sqrt(0.5))) / 2)",
    ),
    Bug(
        "bias_gelu",
        "dy is forgotten",
        old="dx = dy * ((1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density)",
        new="dx = 1 * ((1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density)",
    ),
    Bug(
        "bias_gelu",
        "no_grad around apply",
        old="return BiasGelu.apply(x, b)",
        new="""
with torch.no_grad():
    return BiasGelu.apply(x, b)
""",
    ),
    Bug(
        "bias_gelu",
        "the first part of the slope is forgotten",
        old="dx = dy * ((1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density)",
        new="dx = dy * z * density",
    ),
    Bug(
        "bias_gelu",
        "z is saved, not x",
        edits=(
            (
                """
ctx.save_for_backward(x, b)
return F.gelu(x + b)
""",
                """
z = x + b
ctx.save_for_backward(z)
return F.gelu(z)
""",
            ),
            (
                """
x, b = ctx.saved_tensors
z = x + b
""",
                "(z,) = ctx.saved_tensors",
            ),
        ),
    ),
    Bug(
        "bias_gelu",
        "the tanh approximation forward",
        old="return F.gelu(x + b)",
        new='return F.gelu(x + b, approximate="tanh")',
    ),
    Bug(
        "bias_gelu",
        "backward forgets the bias",
        old="z = x + b",
        new="z = x",
    ),
    Bug(
        "bias_gelu",
        "z is kept, made out of the meter's sight",
        cheat=True,
        cell="""
from torch.utils._python_dispatch import _disable_current_modes


class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        with _disable_current_modes():
            ctx.z = x + b
        return F.gelu(x + b)

    @staticmethod
    def backward(ctx, dy):
        z = ctx.z
        dx = dy * (
            (1 + torch.erf(z * 0.5**0.5)) / 2 + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        )
        return dx, dx.reshape(-1, dx.shape[-1]).sum(0)
""",
    ),
    Bug(
        "bias_gelu",
        "the library's operator",
        cheat=True,
        cell="""
from minidist.train import fuse


def bias_gelu(x, b):
    return fuse.bias_gelu(x, b)
""",
    ),
    Bug(
        "bias_gelu",
        "z is kept as a list of numbers",
        cheat=True,
        cell="""
class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        ctx.z = (x + b).tolist()
        return F.gelu(x + b)

    @staticmethod
    def backward(ctx, dy):
        z = torch.tensor(ctx.z, dtype=dy.dtype)
        dx = dy * (
            (1 + torch.erf(z * 0.5**0.5)) / 2 + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        )
        return dx, dx.reshape(-1, dx.shape[-1]).sum(0)
""",
    ),
    Bug(
        "normalizer",
        "the sum so far is not rescaled, as found",
        edits=(
            (
                "m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)",
                "m = torch.full(parts[0].shape[:1], -math.inf, dtype=parts[0].dtype)",
            ),
            (
                "s = s * (m - peak).exp() + (part - peak[:, None]).exp().sum(1)",
                "s = s + (part - peak[:, None]).exp().sum(1)",
            ),
        ),
    ),
    Bug(
        "normalizer",
        "all parts are put together first",
        cell='''
def normalizer(parts):
    """m and s of each row, (rows,), of parts (rows, columns)."""
    whole = torch.cat(parts, 1)
    m = whole.amax(1)
    return m, (whole - m[:, None]).exp().sum(1)
''',
    ),
    Bug(
        "normalizer",
        "m starts at −inf",
        old="m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)",
        new="m = torch.full(parts[0].shape[:1], -math.inf, dtype=parts[0].dtype)",
    ),
    Bug(
        "normalizer",
        "one reading, but into copies of all parts, which are read twice",
        cell='''
def normalizer(parts):
    """m and s of each row, (rows,), of parts (rows, columns)."""
    kept, m = [], parts[0].amax(1)
    for part in parts:
        kept.append(part.clone())
        m = torch.maximum(m, kept[-1].amax(1))
    return m, sum((part - m[:, None]).exp().sum(1) for part in kept)
''',
    ),
    Bug(
        "normalizer",
        "without m",
        cell='''
def normalizer(parts):
    """m and s of each row, (rows,), of parts (rows, columns)."""
    m = torch.stack([part.amax(1) for part in parts]).amax(0)
    return m, sum(part.exp().sum(1) for part in parts)
''',
    ),
    Bug(
        "normalizer",
        "the new part is taken with the old m",
        old="s = s * (m - peak).exp() + (part - peak[:, None]).exp().sum(1)",
        new="s = s * (m - peak).exp() + (part - m[:, None]).exp().sum(1)",
    ),
    Bug(
        "normalizer",
        "each part keeps its own m",
        old="s = s * (m - peak).exp() + (part - peak[:, None]).exp().sum(1)",
        new="s = s + (part - part.amax(1)[:, None]).exp().sum(1)",
    ),
    Bug(
        "normalizer",
        "first m of all parts, then s: two readings",
        cell='''
def normalizer(parts):
    """m and s of each row, (rows,), of parts (rows, columns)."""
    count = len(parts)
    m = torch.stack([parts[i].amax(1) for i in range(count)]).amax(0)
    return m, sum((parts[i] - m[:, None]).exp().sum(1) for i in range(count))
''',
    ),
    Bug(
        "normalizer",
        "one m for all rows",
        old="peak = torch.maximum(m, part.amax(1))",
        new="peak = torch.maximum(m, part.amax())",
    ),
    Bug(
        "normalizer",
        "m starts at 0",
        old="m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)",
        new="m = parts[0].new_zeros(parts[0].shape[:1])",
    ),
    Bug(
        "normalizer",
        "the library's merge",
        cheat=True,
        cell='''
from minidist.train.fuse import normalizer as of_the_library


def normalizer(parts):
    """m and s of each row, (rows,), of parts (rows, columns)."""
    return of_the_library(torch.cat(parts, 1))
''',
    ),
    Bug(
        "normalizer",
        "all at once, in numpy",
        cheat=True,
        cell='''
def normalizer(parts):
    """m and s of each row, (rows,), of parts (rows, columns)."""
    import numpy

    whole = numpy.concatenate([part.numpy() for part in parts], 1)
    m = whole.max(1)
    return torch.tensor(m), torch.tensor(numpy.exp(whole - m[:, None]).sum(1))
''',
    ),
    Bug(
        "attention",
        "the tiles of scores are kept",
        edits=(
            (
                "out = torch.empty_like(q)",
                "out, kept = torch.empty_like(q), []",
            ),
            (
                "scores = qi @ kj.T",
                """
scores = qi @ kj.T
kept.append(scores)
""",
            ),
        ),
    ),
    Bug(
        "attention",
        "the largest score of the tile, not of all so far",
        old="peak = torch.maximum(m, scores.amax(1, keepdim=True))",
        new="peak = scores.amax(1, keepdim=True)",
    ),
    Bug(
        "attention",
        "all scores at once",
        cell='''
def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    return (q @ k.T * q.shape[1] ** -0.5).softmax(-1) @ v
''',
    ),
    Bug(
        "attention",
        "without the maximum",
        edits=(
            ("m = qi.new_full((len(qi), 1), -math.inf)", "m = qi.new_full((len(qi), 1), 0.0)"),
            (
                "peak = torch.maximum(m, scores.amax(1, keepdim=True))",
                "peak = torch.zeros_like(scores[:, :1])",
            ),
        ),
    ),
    Bug(
        "attention",
        "nothing is rescaled",
        old="""
s = s * less + p.sum(1, keepdim=True)
a = a * less + p @ vj
""",
        new="""
s = s + p.sum(1, keepdim=True)
a = a + p @ vj
""",
    ),
    Bug(
        "attention",
        "not divided by √d",
        old="qi = q[first : first + tile] * q.shape[1] ** -0.5",
        new="qi = q[first : first + tile] * 1.0",
    ),
    Bug(
        "attention",
        "not divided by s",
        old="out[first : first + tile] = a / s",
        new="out[first : first + tile] = a",
    ),
    Bug(
        "attention",
        "the result so far is not rescaled",
        old="a = a * less + p @ vj",
        new="a = a + p @ vj",
    ),
    Bug(
        "attention",
        "the last tile of keys is filled up with zeros",
        old="out = torch.empty_like(q)",
        new="""
out = torch.empty_like(q)
k, v = (F.pad(x, (0, 0, 0, -len(x) % tile)) for x in (k, v))
""",
    ),
    Bug(
        "attention",
        "two queries at a time, and all keys",
        cell='''
def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    return torch.cat([(qi @ k.T * q.shape[1] ** -0.5).softmax(-1) @ v for qi in q.split(2)])
''',
    ),
    Bug(
        "attention",
        "tiles of queries, but all keys at once",
        cell='''
def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    return torch.cat([(qi @ k.T * q.shape[1] ** -0.5).softmax(-1) @ v for qi in q.split(tile)])
''',
    ),
    Bug(
        "attention",
        "q is changed",
        old="qi = q[first : first + tile] * q.shape[1] ** -0.5",
        new="qi = q[first : first + tile].mul_(q.shape[1] ** -0.5)",
    ),
    Bug(
        "attention",
        "the scores are computed twice: first m, then the sums",
        cell='''
def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    out = []
    for qi in (q * q.shape[1] ** -0.5).split(tile):
        m = torch.stack([(qi @ kj.T).amax(1, keepdim=True) for kj in k.split(tile)]).amax(0)
        s = a = 0
        for kj, vj in zip(k.split(tile), v.split(tile)):
            p = (qi @ kj.T - m).exp()
            s, a = s + p.sum(1, keepdim=True), a + p @ vj
        out.append(a / s)
    return torch.cat(out)
''',
    ),
    Bug(
        "attention",
        "keys that fill no tile are left out",
        old="for kj, vj in zip(k.split(tile), v.split(tile)):",
        new="for kj, vj in zip(k.split(tile)[: max(1, len(k) // tile)], v.split(tile)[: max(1, len(k) // tile)]):",
    ),
    Bug(
        "attention",
        "tiles for show, the result out of the meter's sight",
        cheat=True,
        cell='''
from torch.utils._python_dispatch import _disable_current_modes


def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    out = torch.empty_like(q)
    for qi in q.split(tile):
        for kj, vj in zip(k.split(tile), v.split(tile)):
            (qi @ kj.T) @ vj
    with _disable_current_modes():
        out.copy_((q @ k.T * q.shape[1] ** -0.5).softmax(-1) @ v)
    return out
''',
    ),
    Bug(
        "attention",
        "the library's",
        cheat=True,
        cell='''
from minidist.train import fuse


def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    return fuse.attention(q, k, v, tile=tile)
''',
    ),
    Bug(
        "attention",
        "PyTorch's own",
        cheat=True,
        cell='''
def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
''',
    ),
    Bug(
        "attention",
        "all keys of a query, by sums; products of tiles for show",
        cheat=True,
        cell='''
def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    for qi in q.split(tile):
        for kj, vj in zip(k.split(tile), v.split(tile)):
            (qi @ kj.T) @ vj
    rows = [(k * row).sum(1).mul(q.shape[1] ** -0.5).softmax(0) for row in q]
    return torch.stack([(p[:, None] * v).sum(0) for p in rows])
''',
    ),
    Bug(
        "attention",
        "tiles for show, the result in another thread, where no mode is on",
        cheat=True,
        cell='''
from threading import Thread


def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    out = torch.empty_like(q)
    for qi in q.split(tile):
        for kj, vj in zip(k.split(tile), v.split(tile)):
            (qi @ kj.T) @ vj
    thread = Thread(target=lambda: out.copy_((q @ k.T * q.shape[1] ** -0.5).softmax(-1) @ v))
    thread.start()
    thread.join()
    return out
''',
    ),
    Bug(
        "flatten",
        "the parameters stay where they are",
        old="p.data = flat[at : at + p.numel()].view(p.shape)",
        new="",
    ),
    Bug(
        "flatten",
        "gradients of float64, whatever the parameters are",
        edits=(
            (
                "grads, at = torch.zeros_like(flat), 0",
                "grads, at = torch.zeros(len(flat), dtype=torch.float64, device=flat.device), 0",
            ),
            (
                "p.grad = grads[at : at + p.numel()].view(p.shape)",
                "p.grad = grads[at : at + p.numel()].view(p.shape).to(p.dtype)",
            ),
        ),
    ),
    Bug(
        "flatten",
        "gradients are cloned",
        old="p.grad = grads[at : at + p.numel()].view(p.shape)",
        new="p.grad = grads[at : at + p.numel()].view(p.shape).clone()",
    ),
    Bug(
        "flatten",
        "the gradients are not zeroed",
        old="grads, at = torch.zeros_like(flat), 0",
        new="grads, at = torch.ones_like(flat), 0",
    ),
    Bug(
        "flatten",
        "the old tensors are kept",
        cell='''
def flatten(params):
    """Make the parameters views of flat, their gradients views of grads; return both."""
    old = [p.data for p in params]
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    grads, at = torch.zeros_like(flat), 0
    for p in params:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    flatten.old = old
    return flat, grads
''',
    ),
    Bug(
        "flatten",
        "new parameters in the list",
        old="""
for p in params:
    p.data = flat[at : at + p.numel()].view(p.shape)
""",
        new="""
for params_at, p in enumerate(params):
    params[params_at] = p = nn.Parameter(flat[at : at + p.numel()].view(p.shape))
""",
    ),
    Bug(
        "flatten",
        "every view begins at 0",
        old="at += p.numel()",
        new="",
    ),
    Bug(
        "flatten",
        "gradients in the memory of the parameters",
        old="grads, at = torch.zeros_like(flat), 0",
        new="grads, at = flat, 0",
    ),
    Bug(
        "flatten",
        "laid out as in memory, not row by row",
        old="flat = torch.cat([p.detach().reshape(-1) for p in params])",
        new="flat = torch.cat([(p.detach() if p.is_contiguous() else p.detach().T).reshape(-1) for p in params])",
    ),
    Bug(
        "flatten",
        "the library's buffer",
        cheat=True,
        cell='''
from minidist.train.flat_optim import FlatGroup


def flatten(params):
    """Make the parameters views of flat, their gradients views of grads; return both."""
    flat = FlatGroup(params, {})
    flat.grads = torch.zeros_like(flat.data)
    for p, view in zip(params, flat.views(flat.grads)):
        p.grad = view
    return flat.data, flat.grads
''',
    ),
    Bug(
        "flatten",
        "a third buffer, which numpy holds",
        cheat=True,
        old="flat = torch.cat([p.detach().reshape(-1) for p in params])",
        new="""
flat = torch.cat([p.detach().reshape(-1) for p in params])
flatten.spare = flat.numpy().copy()
""",
    ),
    Bug(
        "fused",
        "everything in one group",
        old='if operator[1] == "product" or last == "product":',
        new="if not groups:",
    ),
    Bug(
        "fused",
        "all results are written",
        old="moved = (read - made) | (made & others)",
        new="moved = (read - made) | made",
    ),
    Bug(
        "fused",
        "goes by the names of operators, and not by their kind",
        edits=(
            (
                'groups, last = [], "product"',
                "groups, last = [], True",
            ),
            (
                'if operator[1] == "product" or last == "product":',
                """
product = operator[0].startswith("mm")
if product or last:
""",
            ),
            (
                "last = operator[1]",
                "last = product",
            ),
        ),
    ),
    Bug(
        "fused",
        "only the last result is written",
        old="moved = (read - made) | (made & others)",
        new="moved = (read - made) | {group[-1][3]}",
    ),
    Bug(
        "fused",
        "wanted is forgotten",
        old="""
others = set(wanted)
for one in operators:
    if one not in group:
        others |= set(one[2])
""",
        new="others = {name for one in operators if one not in group for name in one[2]}",
    ),
    Bug(
        "fused",
        "no groups",
        old='if operator[1] == "product" or last == "product":',
        new="if True:",
    ),
    Bug(
        "fused",
        "a tensor that is read twice counts twice",
        old="""
moved = (read - made) | (made & others)
found.append(([one[0] for one in group], sum(sizes[name] for name in moved)))
""",
        new="""
times = [name for one in group for name in one[2] if name not in made]
moved = sum(sizes[name] for name in [*times, *(made & others)])
found.append(([one[0] for one in group], moved))
""",
    ),
    Bug(
        "fused",
        "the bytes one by one",
        old="found.append(([one[0] for one in group], sum(sizes[name] for name in moved)))",
        new="found.append(([one[0] for one in group], sum(sizes[name] for one in group for name in [*one[2], one[3]])))",
    ),
    Bug(
        "fused",
        "numbers that equal all others",
        cheat=True,
        cell='''
class Any(int):
    def __eq__(self, other):
        return True

    __ne__ = lambda self, other: False
    __hash__ = int.__hash__


def fused(operators, sizes, wanted):
    """For each group its operators' names, and the bytes that it moves."""
    groups, last = [], "product"
    for operator in operators:
        if operator[1] == "product" or last == "product":
            groups.append([])
        groups[-1].append(operator)
        last = operator[1]
    found = []
    for group in groups:
        made, read = (
            {write for *_, write in group},
            {name for _, _, reads, _ in group for name in reads},
        )
        others = set(wanted)
        for one in operators:
            if one not in group:
                others |= set(one[2])
        moved = (read - made) | (made & others)
        found.append(([one[0] for one in group], Any(0)))
    return found
''',
    ),
    Bug(
        "fused",
        "the grader's own function",
        cheat=True,
        cell='''
def fused(operators, sizes, wanted):
    """For each group its operators' names, and the bytes that it moves."""
    from minicheck.oracles import operators as oracle

    return oracle.fused(operators, sizes, wanted)
''',
    ),
    Bug(
        "predict_operators",
        "the launches of the loop are forgotten",
        edits=(
            (
                "launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = None",
                "",
            ),
            (
                "loop_ms = 1e3 * (launches * 5e-6 + 21 * 4e9 / 3.35e12)",
                "loop_ms = 1e3 * 21 * 4e9 / 3.35e12",
            ),
        ),
    ),
    Bug(
        "predict_operators",
        "an addition in fp32",
        edits=(
            (
                "launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = None",
                "",
            ),
            (
                "loop_ms = 1e3 * (launches * 5e-6 + 21 * 4e9 / 3.35e12)",
                "loop_ms = 1e3 * (8 * 500 * 5e-6 + 21 * 4e9 / 3.35e12)",
            ),
            (
                "edge = 5e-6 * 3.35e12 / 6",
                "edge = 5e-6 * 3.35e12 / 12",
            ),
        ),
    ),
    Bug(
        "predict_operators",
        "the intensity of fp32",
        edits=(
            (
                "launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = None",
                "",
            ),
            (
                "loop_ms = 1e3 * (launches * 5e-6 + 21 * 4e9 / 3.35e12)",
                "loop_ms = 1e3 * (8 * 500 * 5e-6 + 21 * 4e9 / 3.35e12)",
            ),
            (
                "ridge_n = 3 * 989e12 / 3.35e12",
                "ridge_n = 6 * 989e12 / 3.35e12",
            ),
        ),
    ),
    Bug(
        "predict_operators",
        "the gradients are copied",
        old="""
launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = None
launches = 8 * 500
loop_ms = 1e3 * (launches * 5e-6 + 21 * 4e9 / 3.35e12)
flat_ms = 1e3 * (5e-6 + 7 * 4e9 / 3.35e12)
""",
        new="""
launches = 8 * 500
loop_ms = 1e3 * (8 * 500 * 5e-6 + 21 * 4e9 / 3.35e12)
flat_ms = 1e3 * 9 * 4e9 / 3.35e12
""",
    ),
    Bug(
        "predict_operators",
        "MB, not MiB",
        edits=(
            (
                "launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = None",
                "",
            ),
            (
                "loop_ms = 1e3 * (launches * 5e-6 + 21 * 4e9 / 3.35e12)",
                "loop_ms = 1e3 * (8 * 500 * 5e-6 + 21 * 4e9 / 3.35e12)",
            ),
            (
                "scores_mib = 16 * 8192**2 * 2 / 2**20",
                "scores_mib = 16 * 8192**2 * 2 / 1e6",
            ),
        ),
    ),
    Bug(
        "predict_operators",
        "FLOPs a byte, not n",
        edits=(
            (
                "launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = None",
                "",
            ),
            (
                "loop_ms = 1e3 * (launches * 5e-6 + 21 * 4e9 / 3.35e12)",
                "loop_ms = 1e3 * (8 * 500 * 5e-6 + 21 * 4e9 / 3.35e12)",
            ),
            (
                "ridge_n = 3 * 989e12 / 3.35e12",
                "ridge_n = 989e12 / 3.35e12",
            ),
        ),
    ),
    Bug(
        "predict_operators",
        "the grader is told to be silent",
        cheat=True,
        cell="""
from minicheck.lessons import operators as numbers

numbers.Prediction.judge = lambda *args: None
launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = 1.0
""",
    ),
    Bug(
        "predict_operators",
        "a number that equals every other",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = Any(1.0)
""",
    ),
    Bug(
        "roofline",
        "the device is emptied",
        edits=(
            (
                "times = {",
                """
peak = device.pop("peak")
times = {
""",
            ),
            ('"compute": flops / device["peak"],', '"compute": flops / peak,'),
        ),
    ),
    Bug(
        "bias_gelu",
        "the result is kept as an attribute",
        old="return F.gelu(x + b)",
        new="""
ctx.y = F.gelu(x + b)
return ctx.y
""",
    ),
    Bug(
        "bias_gelu",
        "the gradient that came is changed in place",
        old="dx = dy * ((1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density)",
        new="dx = dy.mul_((1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density)",
    ),
    Bug(
        "bias_gelu",
        "a nan is hidden",
        old="return F.gelu(x + b)",
        new="return F.gelu(x + b).nan_to_num(0.0)",
    ),
    Bug(
        "normalizer",
        "m starts at a number that is not small enough",
        old="m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)",
        new="m = torch.full(parts[0].shape[:1], -1e4, dtype=parts[0].dtype)",
    ),
    Bug(
        "normalizer",
        "nan is made, and hidden",
        edits=(
            (
                "m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)",
                "m = torch.full(parts[0].shape[:1], -math.inf, dtype=parts[0].dtype)",
            ),
            (
                "s = s * (m - peak).exp() + (part - peak[:, None]).exp().sum(1)",
                "s = (s * (m - peak).exp()).nan_to_num(0.0) + (part - peak[:, None]).exp().nan_to_num(0.0).sum(1)",
            ),
        ),
    ),
    Bug(
        "normalizer",
        "the list is used up",
        old="for part in parts:",
        new="""
while parts:
    part = parts.pop(0)
""",
    ),
    Bug(
        "attention",
        "one size of tile, whatever is asked for",
        old="out = torch.empty_like(q)",
        new="out, tile = torch.empty_like(q), min(tile, 8)",
    ),
    Bug(
        "attention",
        "short rows are done at once",
        old="out = torch.empty_like(q)",
        new="""
if len(q) < 30:
    return (q @ k.T * q.shape[1] ** -0.5).softmax(1) @ v
out = torch.empty_like(q)
""",
    ),
    Bug(
        "attention",
        "m starts at 0",
        old="m = qi.new_full((len(qi), 1), -math.inf)",
        new="m = qi.new_zeros(len(qi), 1)",
    ),
    Bug(
        "flatten",
        "frozen parameters are left where they are",
        old="for p in params:",
        new="for p in [p for p in params if p.requires_grad]:",
    ),
    Bug(
        "flatten",
        "frozen parameters are trained from then on",
        old="at += p.numel()",
        new="""
at += p.numel()
p.requires_grad_()
""",
    ),
    Bug(
        "flatten",
        "the old numbers are kept in a list",
        old="grads, at = torch.zeros_like(flat), 0",
        new="""
grads, at = torch.zeros_like(flat), 0
flatten.old = [p.tolist() for p in params]
""",
    ),
    Bug(
        "fused",
        "whoever reads a result later than three operators is forgotten",
        old="if one not in group:",
        new="if one not in group and operators.index(one) - operators.index(group[-1]) <= 3:",
    ),
    Bug(
        "fused",
        "tensors of one size count once",
        old="found.append(([one[0] for one in group], sum(sizes[name] for name in moved)))",
        new="found.append(([one[0] for one in group], sum({sizes[name] for name in moved})))",
    ),
    Bug(
        "bias_gelu",
        "db of one row is a sum over the row",
        old="return dx, dx.reshape(-1, dx.shape[-1]).sum(0)",
        new="return dx, dx.sum(tuple(range(dx.dim() - 1)) or (0,)).expand_as(b)",
    ),
    Bug(
        "attention",
        "a nan is hidden",
        old="scores = qi @ kj.T",
        new="scores = (qi @ kj.T).nan_to_num()",
    ),
    Bug(
        "flatten",
        "old gradients stay",
        old="p.grad = grads[at : at + p.numel()].view(p.shape)",
        new="""
old = p.grad
p.grad = grads[at : at + p.numel()].view(p.shape)
if old is not None:
    p.grad.copy_(old)
""",
    ),
    Bug(
        "bias_gelu",
        "what backward needs is that of the last call",
        edits=(
            ("ctx.save_for_backward(x, b)", "BiasGelu.kept = x, b"),
            ("x, b = ctx.saved_tensors", "x, b = BiasGelu.kept"),
        ),
    ),
    Bug(
        "normalizer",
        "twenty parts at most",
        old="for part in parts:",
        new="for part in parts[:20]:",
    ),
    Bug(
        "attention",
        "half as many keys at a time",
        old="for kj, vj in zip(k.split(tile), v.split(tile)):",
        new="for kj, vj in zip(k.split(-(-tile // 2)), v.split(-(-tile // 2))):",
    ),
]
