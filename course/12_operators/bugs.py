"""The wrong answers of lesson 12 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "run_ahead",
        "pasted from the lesson: each launch on top",
        cell='''
def seconds(launches, nbytes, flops):
    return launches * DEVICE["launch"] + max(nbytes / DEVICE["bandwidth"], flops / DEVICE["peak"])


def run_ahead(kernels, device):
    """Seconds of these kernels in a row, and what each waits for."""
    words = []
    for nbytes, flops, _ in kernels:
        times = {
            "launch": device["launch"],
            "memory": nbytes / device["bandwidth"],
            "compute": flops / device["peak"],
        }
        words.append(max(times, key=times.get))
    time = 0.0
    for nbytes, flops, _ in kernels:
        time += device["launch"] + max(nbytes / device["bandwidth"], flops / device["peak"])
    return time, words
''',
    ),
    Bug(
        "run_ahead",
        "the word is the longest of three, as in the lesson",
        edits=(("if launched > ended:", 'if device["launch"] > max(memory, compute):'),),
    ),
    Bug(
        "run_ahead",
        "the larger of all launches and all work",
        old="return ended, words",
        new="""
work = sum(max(b / device["bandwidth"], f / device["peak"]) for b, f, _ in kernels)
return max(len(kernels) * device["launch"], work), words
""",
    ),
    Bug(
        "run_ahead",
        "the launches are forgotten",
        old='launched += device["launch"]',
        new="launched += 0.0",
    ),
    Bug(
        "run_ahead",
        "one launch, and then it is always ahead",
        old='launched += device["launch"]',
        new='launched = device["launch"]',
    ),
    Bug(
        "run_ahead",
        "bytes and FLOPs one after the other",
        old="ended = max(launched, ended) + max(memory, compute)",
        new="ended = max(launched, ended) + memory + compute",
    ),
    Bug(
        "run_ahead",
        "never bound by its launch",
        old="if launched > ended:",
        new="if False:",
    ),
    Bug(
        "run_ahead",
        "the CPU never waits",
        old="if asked:",
        new="if False:",
    ),
    Bug(
        "run_ahead",
        "the CPU waits for every kernel",
        old="if asked:",
        new="if True:",
    ),
    Bug(
        "run_ahead",
        "the kernel's own time is added to the CPU's clock",
        old="launched = ended",
        new="launched += max(memory, compute)",
    ),
    Bug(
        "run_ahead",
        "the CPU waits until each kernel has begun",
        old="""
ended = max(launched, ended) + max(memory, compute)
if asked:
    launched = ended
""",
        new="""
launched = max(launched, ended)
ended = launched + max(memory, compute)
if asked:
    launched = ended
""",
    ),
    Bug(
        "run_ahead",
        "the CPU waits before the kernel, not after it",
        old="""
ended = max(launched, ended) + max(memory, compute)
if asked:
    launched = ended
""",
        new="""
if asked:
    launched = max(launched, ended)
ended = max(launched, ended) + max(memory, compute)
""",
    ),
    Bug(
        "run_ahead",
        "the time of the last launch",
        old="return ended, words",
        new="return launched, words",
    ),
    Bug(
        "run_ahead",
        "the shorter of the two is named",
        old='words.append("memory" if memory > compute else "compute")',
        new='words.append("memory" if memory < compute else "compute")',
    ),
    Bug(
        "run_ahead",
        "one word for all",
        old="return ended, words",
        new="return ended, max(words, key=words.count, default=None)",
    ),
    Bug(
        "run_ahead",
        "an empty list has no last kernel",
        old="launched = 0.0",
        new="launched = 0.0 * kernels[0][0]",
    ),
    Bug(
        "run_ahead",
        "a number that is larger than every float",
        old="return ended, words",
        new="return 10**400, words",
    ),
    Bug(
        "run_ahead",
        "the device is emptied",
        edits=(
            (
                "words = []",
                """
words = []
peak = device.pop("peak")
""",
            ),
            ('compute = flops / device["peak"]', "compute = flops / peak"),
        ),
    ),
    Bug(
        "run_ahead",
        "the library's roofline, kernel by kernel",
        cheat=True,
        cell='''
from dataclasses import replace

from minidist.comm.costs import Cost
from minidist.comm.meter import roofline as of_the_library


def run_ahead(kernels, device):
    """Seconds of these kernels in a row, and what each waits for."""
    card = replace(
        H100,
        launch=device["launch"],
        bandwidth=device["bandwidth"],
        flops={torch.float32: device["peak"]},
    )
    time = sum(of_the_library(card, Cost(f, b, torch.float32)) for b, f, _ in kernels)
    return time, ["launch"] * len(kernels)
''',
    ),
    Bug(
        "run_ahead",
        "a number and words that equal all others",
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


def run_ahead(kernels, device):
    """Seconds of these kernels in a row, and what each waits for."""
    return Any(1.0), [Word("launch") for _ in kernels]
''',
    ),
    Bug(
        "run_ahead",
        "the grader's own function",
        cheat=True,
        cell='''
def run_ahead(kernels, device):
    """Seconds of these kernels in a row, and what each waits for."""
    from minicheck.oracles import operators as oracle

    return oracle.run_ahead(kernels, device)
''',
    ),
    Bug(
        "run_ahead",
        "nan, which no comparison takes for wrong",
        cheat=True,
        old="return ended, words",
        new="return math.nan, words",
    ),
    Bug(
        "geglu",
        "pasted from the lesson: its operator, and then a product",
        cell="""
class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x, b)
        z = x + b
        return z * (torch.erf(z * 0.5**0.5) + 1) * 0.5

    @staticmethod
    def backward(ctx, dy):
        x, b = ctx.saved_tensors
        z = x + b
        probability = (1 + torch.erf(z * 0.5**0.5)) / 2
        density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        dx = dy * (probability + z * density)
        return dx, dx.reshape(-1, dx.shape[-1]).sum(0)


def geglu(h, b):
    half = b.shape[0] // 2
    return BiasGelu.apply(h[..., :half], b[:half]) * (h[..., half:] + b[half:])
""",
    ),
    Bug(
        "geglu",
        "left to autograd, which keeps what lies between",
        cell="""
def geglu(h, b):
    gate, value = (h + b).chunk(2, -1)
    return F.gelu(gate) * value
""",
    ),
    Bug(
        "geglu",
        "pasted from the lesson: rows are the first dimension",
        old="return dh, dh.reshape(-1, dh.shape[-1]).sum(0)",
        new="return dh, dh.sum(0)",
    ),
    Bug(
        "geglu",
        "db is a mean",
        old="return dh, dh.reshape(-1, dh.shape[-1]).sum(0)",
        new="return dh, dh.reshape(-1, dh.shape[-1]).mean(0)",
    ),
    Bug(
        "geglu",
        "db of one row is a sum over the row",
        old="return dh, dh.reshape(-1, dh.shape[-1]).sum(0)",
        new="return dh, dh.sum(tuple(range(dh.dim() - 1)) or (0,)).expand_as(b)",
    ),
    Bug(
        "geglu",
        "the result and z lie in one memory, so z is kept with it",
        cell="""
class GeGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, b):
        gate, value = (h + b).chunk(2, -1)
        three = torch.stack([gate, value, F.gelu(gate) * value])
        ctx.z = torch.cat([three[0], three[1]], -1)
        return three[2]

    @staticmethod
    def backward(ctx, dy):
        gate, value = ctx.z.chunk(2, -1)
        probability = (1 + torch.erf(gate * math.sqrt(0.5))) / 2
        density = torch.exp(-gate * gate / 2) / math.sqrt(2 * math.pi)
        dgate = dy * value * (probability + gate * density)
        dh = torch.cat([dgate, dy * gate * probability], -1)
        return dh, dh.reshape(-1, dh.shape[-1]).sum(0)


def geglu(h, b):
    return GeGlu.apply(h, b)
""",
    ),
    Bug(
        "geglu",
        "h is changed",
        edits=(
            (
                """
gate, value = (h + b).chunk(2, -1)
return F.gelu(gate) * value
""",
                """
gate, value = h.data.add_(b).chunk(2, -1)
return F.gelu(gate) * value
""",
            ),
        ),
    ),
    Bug(
        "geglu",
        "the second part of the slope is forgotten",
        old="dgate = dy * value * (probability + gate * density)",
        new="dgate = dy * value * probability",
    ),
    Bug(
        "geglu",
        "the first part of the slope is forgotten",
        old="dgate = dy * value * (probability + gate * density)",
        new="dgate = dy * value * gate * density",
    ),
    Bug(
        "geglu",
        "the minus in the exponent is missing",
        old="density = torch.exp(-gate * gate / 2) / math.sqrt(2 * math.pi)",
        new="density = torch.exp(gate * gate / 2) / math.sqrt(2 * math.pi)",
    ),
    Bug(
        "geglu",
        "brackets around the slope are missing",
        old="dgate = dy * value * (probability + gate * density)",
        new="dgate = dy * value * probability + gate * density",
    ),
    Bug(
        "geglu",
        "db is a sum over all dimensions where there are no rows",
        old="return dh, dh.reshape(-1, dh.shape[-1]).sum(0)",
        new="return dh, dh.sum(tuple(range(dh.dim() - 1)))",
    ),
    Bug(
        "geglu",
        "the slope of the gate without the value",
        old="dgate = dy * value * (probability + gate * density)",
        new="dgate = dy * (probability + gate * density)",
    ),
    Bug(
        "geglu",
        "dy is forgotten",
        old="dgate = dy * value * (probability + gate * density)",
        new="dgate = value * (probability + gate * density)",
    ),
    Bug(
        "geglu",
        "the value's gradient is dy",
        old="dvalue = dy * gate * probability",
        new="dvalue = dy",
    ),
    Bug(
        "geglu",
        "the value's gradient has Φ in place of GELU",
        old="dvalue = dy * gate * probability",
        new="dvalue = dy * probability",
    ),
    Bug(
        "geglu",
        "the halves of the gradient are exchanged",
        old="dh = torch.cat([dgate, dvalue], -1)",
        new="dh = torch.cat([dvalue, dgate], -1)",
    ),
    Bug(
        "geglu",
        "GELU of the second half",
        edits=(
            (
                """
gate, value = (h + b).chunk(2, -1)
return F.gelu(gate) * value
""",
                """
value, gate = (h + b).chunk(2, -1)
return F.gelu(gate) * value
""",
            ),
        ),
    ),
    Bug(
        "geglu",
        "no GELU forward",
        old="return F.gelu(gate) * value",
        new="return gate * value",
    ),
    Bug(
        "geglu",
        "the tanh approximation forward",
        old="return F.gelu(gate) * value",
        new='return F.gelu(gate, approximate="tanh") * value',
    ),
    Bug(
        "geglu",
        "a nan is hidden",
        old="return F.gelu(gate) * value",
        new="return (F.gelu(gate) * value).nan_to_num(0.0)",
    ),
    Bug(
        "geglu",
        "no_grad around apply",
        old="return GeGlu.apply(h, b)",
        new="""
with torch.no_grad():
    return GeGlu.apply(h, b)
""",
    ),
    Bug(
        "geglu",
        "z is saved, not h",
        edits=(
            (
                """
ctx.save_for_backward(h, b)
gate, value = (h + b).chunk(2, -1)
return F.gelu(gate) * value
""",
                """
z = h + b
ctx.save_for_backward(z)
gate, value = z.chunk(2, -1)
return F.gelu(gate) * value
""",
            ),
            (
                """
h, b = ctx.saved_tensors
gate, value = (h + b).chunk(2, -1)
""",
                """
(z,) = ctx.saved_tensors
gate, value = z.chunk(2, -1)
""",
            ),
        ),
    ),
    Bug(
        "geglu",
        "backward forgets the bias",
        old="""
h, b = ctx.saved_tensors
gate, value = (h + b).chunk(2, -1)
""",
        new="""
h, b = ctx.saved_tensors
gate, value = h.chunk(2, -1)
""",
    ),
    Bug(
        "geglu",
        "the result is kept as an attribute",
        old="return F.gelu(gate) * value",
        new="""
ctx.y = F.gelu(gate) * value
return ctx.y
""",
    ),
    Bug(
        "geglu",
        "the gradient that came is changed in place",
        edits=(
            (
                "dgate = dy * value * (probability + gate * density)",
                "dgate = value * (probability + gate * density) * dy",
            ),
            ("dvalue = dy * gate * probability", "dvalue = dy.mul_(gate * probability)"),
        ),
    ),
    Bug(
        "geglu",
        "what backward needs is that of the last call",
        edits=(
            ("ctx.save_for_backward(h, b)", "GeGlu.kept = h, b"),
            ("h, b = ctx.saved_tensors", "h, b = GeGlu.kept"),
        ),
    ),
    Bug(
        "geglu",
        "z is kept, made out of the meter's sight",
        cheat=True,
        cell="""
from torch.utils._python_dispatch import _disable_current_modes


class GeGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, b):
        with _disable_current_modes():
            ctx.z = h + b
        gate, value = (h + b).chunk(2, -1)
        return F.gelu(gate) * value

    @staticmethod
    def backward(ctx, dy):
        gate, value = ctx.z.chunk(2, -1)
        probability = (1 + torch.erf(gate * math.sqrt(0.5))) / 2
        density = torch.exp(-gate * gate / 2) / math.sqrt(2 * math.pi)
        dgate = dy * value * (probability + gate * density)
        dh = torch.cat([dgate, dy * gate * probability], -1)
        return dh, dh.reshape(-1, dh.shape[-1]).sum(0)


def geglu(h, b):
    return GeGlu.apply(h, b)
""",
    ),
    Bug(
        "geglu",
        "the library's operator",
        cheat=True,
        cell="""
def geglu(h, b):
    half = b.shape[0] // 2
    return fuse.bias_gelu(h[..., :half], b[:half]) * (h[..., half:] + b[half:])
""",
    ),
    Bug(
        "geglu",
        "z is kept as a list of numbers",
        cheat=True,
        cell="""
class GeGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, b):
        ctx.z = (h + b).tolist()
        gate, value = (h + b).chunk(2, -1)
        return F.gelu(gate) * value

    @staticmethod
    def backward(ctx, dy):
        gate, value = torch.tensor(ctx.z, dtype=dy.dtype).chunk(2, -1)
        probability = (1 + torch.erf(gate * math.sqrt(0.5))) / 2
        density = torch.exp(-gate * gate / 2) / math.sqrt(2 * math.pi)
        dgate = dy * value * (probability + gate * density)
        dh = torch.cat([dgate, dy * gate * probability], -1)
        return dh, dh.reshape(-1, dh.shape[-1]).sum(0)


def geglu(h, b):
    return GeGlu.apply(h, b)
""",
    ),
    Bug(
        "entropy",
        "as found",
        edits=(
            (
                """
m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
""",
                "m = torch.full(parts[0].shape[:1], -math.inf, dtype=parts[0].dtype)",
            ),
            (
                """
t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)
s = s * correction + p.sum(1)
""",
                """
s = s * correction + p.sum(1)
t = t * correction + (p * x).sum(1)
""",
            ),
        ),
    ),
    Bug(
        "entropy",
        "t is rescaled like s",
        old="t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)",
        new="t = t * correction + torch.where(p == 0, 0, p * x).sum(1)",
    ),
    Bug(
        "entropy",
        "pasted from the lesson: nothing is rescaled",
        edits=(
            (
                "t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)",
                "t = t + torch.where(p == 0, 0, p * x).sum(1)",
            ),
            ("s = s * correction + p.sum(1)", "s = s + p.sum(1)"),
        ),
    ),
    Bug(
        "entropy",
        "t is moved with the sum that has been rescaled already",
        edits=(
            (
                """
t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)
s = s * correction + p.sum(1)
""",
                """
s = s * correction + p.sum(1)
t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)
""",
            ),
        ),
    ),
    Bug(
        "entropy",
        "t moves the wrong way",
        old="t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)",
        new="t = (t - s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)",
    ),
    Bug(
        "entropy",
        "t is moved, but not rescaled",
        old="t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)",
        new="t = t + s * (m - peak) * correction + torch.where(p == 0, 0, p * x).sum(1)",
    ),
    Bug(
        "entropy",
        "the sum s is not rescaled",
        old="s = s * correction + p.sum(1)",
        new="s = s + p.sum(1)",
    ),
    Bug(
        "entropy",
        "0 · −inf is nan",
        old="t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)",
        new="t = (t + s * (m - peak)) * correction + (p * x).sum(1)",
    ),
    Bug(
        "entropy",
        "pasted from the lesson: m starts at −inf",
        old="""
m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
""",
        new="m = torch.full(parts[0].shape[:1], -math.inf, dtype=parts[0].dtype)",
    ),
    Bug(
        "entropy",
        "pasted from the lesson: m + log s",
        old="return s.log() - t / s",
        new="return m + s.log()",
    ),
    Bug(
        "entropy",
        "log s alone",
        old="return s.log() - t / s",
        new="return s.log()",
    ),
    Bug(
        "entropy",
        "plus t/s",
        old="return s.log() - t / s",
        new="return s.log() + t / s",
    ),
    Bug(
        "entropy",
        "in bits",
        old="return s.log() - t / s",
        new="return (s.log() - t / s) / math.log(2)",
    ),
    Bug(
        "entropy",
        "all parts are put together first",
        cell='''
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    return torch.special.entr(torch.cat(parts, 1).softmax(1)).sum(1)
''',
    ),
    Bug(
        "entropy",
        "the entropies of the parts are added up",
        cell='''
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    low = torch.finfo(parts[0].dtype).min
    return sum(torch.special.entr(part.clamp(min=low).softmax(1)).sum(1) for part in parts)
''',
    ),
    Bug(
        "entropy",
        "one reading, but into copies of all parts, which are read twice",
        cell='''
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    kept, m = [], parts[0].amax(1)
    for part in parts:
        kept.append(part.clone())
        m = torch.maximum(m, kept[-1].amax(1))
    s = sum((part - m[:, None]).exp().sum(1) for part in kept)
    return sum(torch.special.entr((part - m[:, None]).exp() / s[:, None]).sum(1) for part in kept)
''',
    ),
    Bug(
        "entropy",
        "first m of all parts, then the sums: two readings",
        cell='''
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    m = torch.stack([part.amax(1) for part in parts]).amax(0)
    s = t = 0
    for part in parts:
        p = (part - m[:, None]).exp()
        s = s + p.sum(1)
        t = t - torch.special.entr(p).sum(1)
    return s.log() - t / s
''',
    ),
    Bug(
        "entropy",
        "without m",
        cell='''
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    s = t = 0
    for part in parts:
        p = part.exp()
        s = s + p.sum(1)
        t = t - torch.special.entr(p).sum(1)
    return s.log() - t / s
''',
    ),
    Bug(
        "entropy",
        "the new part is taken with the old m",
        old="x = part - peak[:, None]",
        new="x = part - m[:, None]",
    ),
    Bug(
        "entropy",
        "each part keeps its own m",
        old="x = part - peak[:, None]",
        new="x = part - part.amax(1)[:, None]",
    ),
    Bug(
        "entropy",
        "one m for all rows",
        old="peak = torch.maximum(m, part.amax(1))",
        new="peak = torch.maximum(m, part.amax())",
    ),
    Bug(
        "entropy",
        "m starts at 0",
        old="""
m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
""",
        new="m = parts[0].new_zeros(parts[0].shape[:1])",
    ),
    Bug(
        "entropy",
        "m starts at a number that is not small enough",
        old="""
m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
""",
        new="m = torch.full(parts[0].shape[:1], -1e4, dtype=parts[0].dtype)",
    ),
    Bug(
        "entropy",
        "m starts at minus a billion",
        old="""
m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
""",
        new="m = torch.full(parts[0].shape[:1], -1e9, dtype=parts[0].dtype)",
    ),
    Bug(
        "entropy",
        "t moves without the old sum",
        old="t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)",
        new="""
t = torch.where(s == 0, 0, (t + m - peak) * correction) + torch.where(p == 0, 0, p * x).sum(1)
""",
    ),
    Bug(
        "entropy",
        "nan is made, and hidden",
        old="t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)",
        new="t = ((t + s * (m - peak)) * correction + (p * x).sum(1)).nan_to_num(0.0)",
    ),
    Bug(
        "entropy",
        "the list is used up",
        old="for part in parts:",
        new="""
while parts:
    part = parts.pop(0)
""",
    ),
    Bug(
        "entropy",
        "twenty parts at most",
        old="for part in parts:",
        new="for part in parts[:20]:",
    ),
    Bug(
        "entropy",
        "the library's merge",
        cheat=True,
        cell='''
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    whole = torch.cat(parts, 1)
    m, s = fuse.normalizer(whole)
    return torch.special.entr((whole - m[:, None]).exp() / s[:, None]).sum(1)
''',
    ),
    Bug(
        "entropy",
        "all at once, in numpy",
        cheat=True,
        cell='''
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    import numpy

    whole = torch.tensor(numpy.concatenate([part.numpy() for part in parts], 1))
    return torch.special.entr(whole.softmax(1)).sum(1)
''',
    ),
    Bug(
        "attention",
        "pasted from the lesson: all keys",
        cell='''
def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    results, logs = [], []
    for queries in (q * q.shape[-1] ** -0.5).split(tile):
        m = queries.new_full((len(queries), 1), -math.inf)
        s = queries.new_zeros(len(queries), 1)
        a = torch.zeros_like(queries)
        for keys, values in zip(k.split(tile), v.split(tile)):
            scores = queries @ keys.T
            peak = torch.maximum(m, scores.amax(-1, keepdim=True))
            correction = (m - peak).exp()
            weights = (scores - peak).exp()
            s = s * correction + weights.sum(-1, keepdim=True)
            a = a * correction + weights @ values
            m = peak
        results.append(a / s)
        logs.append((m + s.log())[:, 0])
    return torch.cat(results), torch.cat(logs)
''',
    ),
    Bug(
        "attention",
        "pasted from the lesson: the result alone",
        old="return out, logs",
        new="return out",
    ),
    Bug(
        "attention",
        "all tiles are computed, and later keys masked",
        old="for start in range(0, token + len(qi), tile):",
        new="for start in range(0, len(k), tile):",
    ),
    Bug(
        "attention",
        "query i is taken for token i",
        edits=(
            ("token = first + len(k) - len(q)  # of the first of these queries", "token = first"),
        ),
    ),
    Bug(
        "attention",
        "a query does not see itself",
        edits=(
            (
                "later = torch.ones_like(scores, dtype=torch.bool).triu(token - start + 1)",
                "later = torch.ones_like(scores, dtype=torch.bool).triu(token - start)",
            ),
            ("if start + len(kj) - 1 > token:", "if start + len(kj) > token:"),
        ),
    ),
    Bug(
        "attention",
        "a query sees the next token",
        old="later = torch.ones_like(scores, dtype=torch.bool).triu(token - start + 1)",
        new="later = torch.ones_like(scores, dtype=torch.bool).triu(token - start + 2)",
    ),
    Bug(
        "attention",
        "tiles on the diagonal are not masked",
        old="scores = scores.masked_fill(later, -math.inf)",
        new="scores = scores + 0",
    ),
    Bug(
        "attention",
        "later scores are 0",
        old="scores = scores.masked_fill(later, -math.inf)",
        new="scores = scores.masked_fill(later, 0)",
    ),
    Bug(
        "attention",
        "later scores are −10,000",
        old="scores = scores.masked_fill(later, -math.inf)",
        new="scores = scores.masked_fill(later, -1e4)",
    ),
    Bug(
        "attention",
        "m starts at −10,000",
        old="m = qi.new_full((len(qi), 1), -math.inf)",
        new="m = qi.new_full((len(qi), 1), -1e4)",
    ),
    Bug(
        "attention",
        "tiles are masked where both have the same number",
        old="""
if start + len(kj) - 1 > token:
    later = torch.ones_like(scores, dtype=torch.bool).triu(token - start + 1)
""",
        new="""
if start == first:
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
""",
    ),
    Bug(
        "attention",
        "a mask of all scores is made",
        edits=(
            (
                "out = torch.empty_like(q)",
                """
out = torch.empty_like(q)
whole = torch.ones(len(q), len(k), dtype=torch.bool).triu(len(k) - len(q) + 1)
""",
            ),
            (
                "later = torch.ones_like(scores, dtype=torch.bool).triu(token - start + 1)",
                "later = whole[first : first + tile, start : start + tile]",
            ),
        ),
    ),
    Bug(
        "attention",
        "only tiles before the diagonal",
        old="for start in range(0, token + len(qi), tile):",
        new="for start in range(0, max(token, 1), tile):",
    ),
    Bug(
        "attention",
        "m in place of m + log s",
        old="logs[first : first + tile] = (m + s.log())[:, 0]",
        new="logs[first : first + tile] = m[:, 0]",
    ),
    Bug(
        "attention",
        "log s without m",
        old="logs[first : first + tile] = (m + s.log())[:, 0]",
        new="logs[first : first + tile] = s.log()[:, 0]",
    ),
    Bug(
        "attention",
        "m + s",
        old="logs[first : first + tile] = (m + s.log())[:, 0]",
        new="logs[first : first + tile] = (m + s)[:, 0]",
    ),
    Bug(
        "attention",
        "the tiles of scores are kept",
        edits=(
            ("out = torch.empty_like(q)", "out, kept = torch.empty_like(q), []"),
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
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    scores = q @ k.T * q.shape[1] ** -0.5
    later = torch.ones_like(scores, dtype=torch.bool).triu(len(k) - len(q) + 1)
    scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)
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
s = s * correction + p.sum(1, keepdim=True)
a = a * correction + p @ vj
""",
        new="""
s = s + p.sum(1, keepdim=True)
a = a + p @ vj
""",
    ),
    Bug(
        "attention",
        "the sum so far is not rescaled",
        old="s = s * correction + p.sum(1, keepdim=True)",
        new="s = s + p.sum(1, keepdim=True)",
    ),
    Bug(
        "attention",
        "the result so far is not rescaled",
        old="a = a * correction + p @ vj",
        new="a = a + p @ vj",
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
        "the last tile of keys is filled up with zeros",
        old="out = torch.empty_like(q)",
        new="""
out = torch.empty_like(q)
k, v = (F.pad(x, (0, 0, 0, -len(x) % tile)) for x in (k, v))
""",
    ),
    Bug(
        "attention",
        "two queries at a time, and all their keys",
        cell='''
def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    out, logs = [], []
    for i in range(0, len(q), 2):
        scores = q[i : i + 2] @ k.T * q.shape[1] ** -0.5
        later = torch.ones_like(scores, dtype=torch.bool).triu(i + len(k) - len(q) + 1)
        scores = scores.masked_fill(later, -math.inf)
        out.append(scores.softmax(-1) @ v)
        logs.append(scores.logsumexp(-1))
    return torch.cat(out), torch.cat(logs)
''',
    ),
    Bug(
        "attention",
        "tiles of queries, but all their keys at once",
        cell='''
def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    out, logs = [], []
    for i in range(0, len(q), tile):
        qi = q[i : i + tile]
        last = i + len(k) - len(q) + len(qi)
        scores = qi @ k[:last].T * q.shape[1] ** -0.5
        later = torch.ones_like(scores, dtype=torch.bool).triu(last - len(qi) + 1)
        scores = scores.masked_fill(later, -math.inf)
        out.append(scores.softmax(-1) @ v[:last])
        logs.append(scores.logsumexp(-1))
    return torch.cat(out), torch.cat(logs)
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
        "the scores are computed twice",
        old="scores = qi @ kj.T",
        new="scores = (qi @ kj.T + qi @ kj.T) / 2",
    ),
    Bug(
        "attention",
        "keys that fill no tile are left out",
        old="for start in range(0, token + len(qi), tile):",
        new="""
for start in range(0, max(1, min(token + len(qi), len(k) // tile * tile)), tile):
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
    tile = len(k)
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
        "attention",
        "a nan is hidden",
        old="scores = qi @ kj.T",
        new="scores = (qi @ kj.T).nan_to_num()",
    ),
    Bug(
        "attention",
        "half as many keys at a time",
        edits=(
            (
                "for start in range(0, token + len(qi), tile):",
                """
half = -(-tile // 2)
for start in range(0, token + len(qi), half):
""",
            ),
            ("kj = k[start : start + tile]", "kj = k[start : start + half]"),
            ("vj = v[start : start + tile]", "vj = v[start : start + half]"),
        ),
    ),
    Bug(
        "attention",
        "tiles for show, the result out of the meter's sight",
        cheat=True,
        cell='''
from torch.utils._python_dispatch import _disable_current_modes


def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    out, logs = torch.empty_like(q), torch.empty_like(q[:, 0])
    for i in range(0, len(q), tile):
        for j in range(0, i + len(k) - len(q) + tile, tile):
            (q[i : i + tile] @ k[j : j + tile].T) @ v[j : j + tile]

    def write():
        scores = (q @ k.T * q.shape[1] ** -0.5).tril(len(k) - len(q))
        out.copy_(scores.softmax(-1) @ v)
        logs.copy_(scores.logsumexp(-1))

    with _disable_current_modes():
        write()
    return out, logs
''',
    ),
    Bug(
        "attention",
        "tiles for show, the result in another thread, where no mode is on",
        cheat=True,
        cell='''
from threading import Thread


def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    out, logs = torch.empty_like(q), torch.empty_like(q[:, 0])
    for i in range(0, len(q), tile):
        for j in range(0, i + len(k) - len(q) + tile, tile):
            (q[i : i + tile] @ k[j : j + tile].T) @ v[j : j + tile]

    def write():
        scores = (q @ k.T * q.shape[1] ** -0.5).tril(len(k) - len(q))
        out.copy_(scores.softmax(-1) @ v)
        logs.copy_(scores.logsumexp(-1))

    thread = Thread(target=write)
    thread.start()
    thread.join()
    return out, logs
''',
    ),
    Bug(
        "attention",
        "the library's",
        cheat=True,
        cell='''
def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    scores = q @ k.T * q.shape[1] ** -0.5
    return fuse.attention(q, k, v, tile=tile, causal=True), scores.logsumexp(-1)
''',
    ),
    Bug(
        "attention",
        "PyTorch's own",
        cheat=True,
        cell='''
def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
    scores = (q @ k.T * q.shape[1] ** -0.5).masked_fill(~seen, -math.inf)
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen[None])[0]
    return out, scores.logsumexp(-1)
''',
    ),
    Bug(
        "attention",
        "all keys of a query, by sums; products of tiles for show",
        cheat=True,
        cell='''
def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    out, logs = torch.empty_like(q), torch.empty_like(q[:, 0])
    for i in range(0, len(q), tile):
        for j in range(0, i + len(k) - len(q) + tile, tile):
            (q[i : i + tile] @ k[j : j + tile].T) @ v[j : j + tile]

    tokens = torch.arange(len(k))
    rows = []
    for i, row in enumerate(q):
        scores = (k * row).sum(1).mul(q.shape[1] ** -0.5)
        rows.append(scores.masked_fill(tokens > i + len(k) - len(q), -math.inf))
    for i, scores in enumerate(rows):
        out[i] = (scores.softmax(0)[:, None] * v).sum(0)
        logs[i] = scores.logsumexp(0)
    return out, logs
''',
    ),
    Bug(
        "flatten",
        "in the order of the list, as the lesson's buffer",
        old="""
order = {}
for first in (True, False):
    for p, decay in zip(params, decays):
        if decay == first:
            order[p] = decay
""",
        new="order = dict(zip(params, decays))",
    ),
    Bug(
        "flatten",
        "what does not decay comes first",
        old="for first in (True, False):",
        new="for first in (False, True):",
    ),
    Bug(
        "flatten",
        "the largest come first",
        old="flat = torch.cat([p.detach().reshape(-1) for p in order])",
        new="""
order = dict(sorted(order.items(), key=lambda item: (-item[1], -item[0].numel())))
flat = torch.cat([p.detach().reshape(-1) for p in order])
""",
    ),
    Bug(
        "flatten",
        "a parameter that stands there twice lies there twice",
        cell='''
def flatten(params, decays):
    """Make the parameters views of flat, their gradients views of grads; return both, and how many numbers decay."""
    order = [p for p, decay in zip(params, decays) if decay]
    order += [p for p, decay in zip(params, decays) if not decay]
    flat = torch.cat([p.detach().reshape(-1) for p in order])
    grads = torch.zeros_like(flat)
    at = 0
    for p in order:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grads, sum(p.numel() for p, decay in zip(params, decays) if decay)
''',
    ),
    Bug(
        "flatten",
        "end counts parameters",
        old="return flat, grads, sum(p.numel() for p in order if order[p])",
        new="return flat, grads, sum(order.values())",
    ),
    Bug(
        "flatten",
        "end counts a parameter twice",
        old="return flat, grads, sum(p.numel() for p in order if order[p])",
        new="return flat, grads, sum(p.numel() for p, decay in zip(params, decays) if decay)",
    ),
    Bug(
        "flatten",
        "end is where what does not decay would end",
        old="return flat, grads, sum(p.numel() for p in order if order[p])",
        new="return flat, grads, sum(p.numel() for p in order if not order[p])",
    ),
    Bug(
        "flatten",
        "no end",
        old="return flat, grads, sum(p.numel() for p in order if order[p])",
        new="return flat, grads",
    ),
    Bug(
        "flatten",
        "matrices decay, whatever is said",
        edits=(("if decay == first:", "if (p.dim() > 1) == first:"),),
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
                "grads = torch.zeros_like(flat)",
                "grads = torch.zeros(len(flat), dtype=torch.float64, device=flat.device)",
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
        old="grads = torch.zeros_like(flat)",
        new="grads = torch.ones_like(flat)",
    ),
    Bug(
        "flatten",
        "the old tensors are kept",
        edits=(
            (
                "flat = torch.cat([p.detach().reshape(-1) for p in order])",
                """
flatten.old = [p.data for p in params]
flat = torch.cat([p.detach().reshape(-1) for p in order])
""",
            ),
        ),
    ),
    Bug(
        "flatten",
        "new parameters in the list",
        edits=(
            (
                "p.data = flat[at : at + p.numel()].view(p.shape)",
                """
p = nn.Parameter(flat[at : at + p.numel()].view(p.shape))
params[0] = p
""",
            ),
        ),
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
        old="grads = torch.zeros_like(flat)",
        new="grads = flat",
    ),
    Bug(
        "flatten",
        "laid out as in memory, not row by row",
        old="flat = torch.cat([p.detach().reshape(-1) for p in order])",
        new="""
flat = torch.cat([(p.detach() if p.is_contiguous() else p.detach().T).reshape(-1) for p in order])
""",
    ),
    Bug(
        "flatten",
        "frozen parameters are left where they are",
        old="for p in order:",
        new="for p in [p for p in order if p.requires_grad]:",
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
        "flatten",
        "the old numbers are kept in a list",
        old="grads = torch.zeros_like(flat)",
        new="""
grads = torch.zeros_like(flat)
flatten.old = [p.tolist() for p in params]
""",
    ),
    Bug(
        "flatten",
        "the library's buffer",
        cheat=True,
        cell='''
from minidist.train.flat_optim import FlatGroup


def flatten(params, decays):
    """Make the parameters views of flat, their gradients views of grads; return both, and how many numbers decay."""
    order = {}
    for first in (True, False):
        order |= {p: decay for p, decay in zip(params, decays) if decay == first}
    flat = FlatGroup(list(order), {})
    flat.grads = torch.zeros_like(flat.data)
    for p, view in zip(order, flat.views(flat.grads)):
        p.grad = view
    return flat.data, flat.grads, sum(p.numel() for p in order if order[p])
''',
    ),
    Bug(
        "flatten",
        "a third buffer, which numpy holds",
        cheat=True,
        old="flat = torch.cat([p.detach().reshape(-1) for p in order])",
        new="""
flat = torch.cat([p.detach().reshape(-1) for p in order])
flatten.spare = flat.numpy().copy()
""",
    ),
    Bug(
        "fused",
        "pasted from the lesson: products alone, neighbours between them",
        cell='''
from itertools import groupby


def fused(operators, sizes, wanted):
    """For each kernel its operators' names, and the bytes that it moves."""
    groups = [list(group) for _, group in groupby(operators, lambda one: one[1] == "product")]
    found = []
    for group in groups:
        made = {one[3] for one in group}
        read = {name for one in group for name in one[2]} - made
        written = {
            name
            for name in made
            if name in wanted or any(name in one[2] for one in operators if one not in group)
        }
        found.append(([one[0] for one in group], sum(sizes[name] for name in read | written)))
    return found
''',
    ),
    Bug(
        "fused",
        "a product is alone",
        old='if not groups or kind == "product" or (kind == "reduction" and tiles):',
        new='if not groups or kind == "product" or tiles:',
    ),
    Bug(
        "fused",
        "a reduction joins a product",
        old='if not groups or kind == "product" or (kind == "reduction" and tiles):',
        new='if not groups or kind == "product":',
    ),
    Bug(
        "fused",
        "a reduction always begins a kernel",
        old='if not groups or kind == "product" or (kind == "reduction" and tiles):',
        new='if not groups or kind != "pointwise":',
    ),
    Bug(
        "fused",
        "only the operator before counts, not the kernel",
        old='tiles = bool(groups) and groups[-1][0][1] == "product"',
        new='tiles = bool(groups) and groups[-1][-1][1] == "product"',
    ),
    Bug(
        "fused",
        "a product joins what stands before it",
        old='if not groups or kind == "product" or (kind == "reduction" and tiles):',
        new='if not groups or (kind != "pointwise" and tiles):',
    ),
    Bug(
        "fused",
        "everything in one group",
        old='if not groups or kind == "product" or (kind == "reduction" and tiles):',
        new="if not groups:",
    ),
    Bug(
        "fused",
        "no groups",
        old='if not groups or kind == "product" or (kind == "reduction" and tiles):',
        new="if True:",
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
                "kind = operator[1]",
                'kind = "product" if operator[0].startswith("mm") else operator[1]',
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
        "the last result of a kernel is written, whoever needs it",
        old="moved = (read - made) | (made & others)",
        new="moved = (read - made) | (made & others) | {group[-1][3]}",
    ),
    Bug(
        "fused",
        "wanted is forgotten",
        old="others = set(wanted)",
        new="others = set()",
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
        new="""
found.append(([one[0] for one in group], sum(sizes[name] for one in group for name in [*one[2], one[3]])))
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
        "fused",
        "numbers that equal all others",
        cheat=True,
        edits=(
            (
                "groups = []",
                """
class Any(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__

groups = []
""",
            ),
            (
                "found.append(([one[0] for one in group], sum(sizes[name] for name in moved)))",
                "found.append(([one[0] for one in group], Any(0)))",
            ),
        ),
    ),
    Bug(
        "fused",
        "the grader's own function",
        cheat=True,
        cell='''
def fused(operators, sizes, wanted):
    """For each kernel its operators' names, and the bytes that it moves."""
    from minicheck.oracles import operators as oracle

    return oracle.fused(operators, sizes, wanted)
''',
    ),
    Bug(
        "predict_operators",
        "launches, not tensors",
        old="tensors = 21 * 4e9 / 3.35e12 / (8 * 5e-6)",
        new="tensors = 21 * 4e9 / 3.35e12 / 5e-6",
    ),
    Bug(
        "predict_operators",
        "pasted from the lesson: the flat buffer's seven numbers",
        old="tensors = 21 * 4e9 / 3.35e12 / (8 * 5e-6)",
        new="tensors = 7 * 4e9 / 3.35e12 / (8 * 5e-6)",
    ),
    Bug(
        "predict_operators",
        "pasted from the lesson: seven numbers of fp32",
        old="mixed_ms = 1e3 * (5e-6 + (4 + 3 * 4 + 3 * 4 + 2) * 1e9 / 3.35e12)",
        new="mixed_ms = 1e3 * (5e-6 + 7 * 4e9 / 3.35e12)",
    ),
    Bug(
        "predict_operators",
        "what is written is forgotten",
        old="mixed_ms = 1e3 * (5e-6 + (4 + 3 * 4 + 3 * 4 + 2) * 1e9 / 3.35e12)",
        new="mixed_ms = 1e3 * (5e-6 + 16e9 / 3.35e12)",
    ),
    Bug(
        "predict_operators",
        "the weights in bf16 are read, too",
        old="mixed_ms = 1e3 * (5e-6 + (4 + 3 * 4 + 3 * 4 + 2) * 1e9 / 3.35e12)",
        new="mixed_ms = 1e3 * (5e-6 + 32e9 / 3.35e12)",
    ),
    Bug(
        "predict_operators",
        "an addition in fp32",
        old="edge = 5e-6 * 3.35e12 / (4 * 2)",
        new="edge = 5e-6 * 3.35e12 / 16",
    ),
    Bug(
        "predict_operators",
        "an addition of two",
        old="edge = 5e-6 * 3.35e12 / (4 * 2)",
        new="edge = 5e-6 * 3.35e12 / 6",
    ),
    Bug(
        "predict_operators",
        "MB, not MiB",
        old="kept_mib = 16 * 8192 * (4 * 32 * 2 + 4) / 2**20",
        new="kept_mib = 16 * 8192 * (4 * 32 * 2 + 4) / 1e6",
    ),
    Bug(
        "predict_operators",
        "the scores are kept",
        old="kept_mib = 16 * 8192 * (4 * 32 * 2 + 4) / 2**20",
        new="kept_mib = 16 * 8192**2 * 2 / 2**20",
    ),
    Bug(
        "predict_operators",
        "the result is not kept",
        old="kept_mib = 16 * 8192 * (4 * 32 * 2 + 4) / 2**20",
        new="kept_mib = 16 * 8192 * (3 * 32 * 2 + 4) / 2**20",
    ),
    Bug(
        "predict_operators",
        "the intensity of fp32",
        old="queries = ridge  # 4·t·T·d FLOPs, and 2·T·d numbers of 2 bytes",
        new="queries = 67e12 / 3.35e12",
    ),
    Bug(
        "predict_operators",
        "numbers, not bytes",
        old="queries = ridge  # 4·t·T·d FLOPs, and 2·T·d numbers of 2 bytes",
        new="queries = ridge / 2",
    ),
    Bug(
        "predict_operators",
        "pasted from the lesson: a square product",
        old="queries = ridge  # 4·t·T·d FLOPs, and 2·T·d numbers of 2 bytes",
        new="queries = 3 * ridge",
    ),
    Bug(
        "predict_operators",
        "the rows are forgotten",
        old="batch = ridge * 8192 / (8192 - 2 * ridge)  # B·n / (n + 2B) = ridge",
        new="batch = ridge",
    ),
    Bug(
        "predict_operators",
        "the results are forgotten",
        old="batch = ridge * 8192 / (8192 - 2 * ridge)  # B·n / (n + 2B) = ridge",
        new="batch = ridge * 8192 / (8192 - ridge)",
    ),
    Bug(
        "predict_operators",
        "a square product, whatever B",
        old="batch = ridge * 8192 / (8192 - 2 * ridge)  # B·n / (n + 2B) = ridge",
        new="batch = 3 * ridge",
    ),
    Bug(
        "predict_operators",
        "the grader is told to be silent",
        cheat=True,
        cell="""
from minicheck.lessons import operators as numbers

numbers.Prediction.judge = lambda *args: None
tensors = mixed_ms = edge = kept_mib = queries = batch = 1.0
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


tensors = mixed_ms = edge = kept_mib = queries = batch = Any(1.0)
""",
    ),
]
