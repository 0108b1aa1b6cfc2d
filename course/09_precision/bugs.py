"""The wrong answers of lesson 09 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "round_to",
        "a tie goes away from zero",
        old="y = round(x / step) * step",
        new="y = math.copysign(math.floor(abs(x) / step + 0.5) * step, x)",
    ),
    Bug(
        "round_to",
        "the bias is 2^exponent − 1",
        old="bias = 2 ** (exponent - 1) - 1",
        new="bias = 2**exponent - 1",
    ),
    Bug(
        "round_to",
        "it is cut off",
        old="y = round(x / step) * step",
        new="y = int(x / step) * step",
    ),
    Bug(
        "round_to",
        "looks for overflow before it rounds",
        old="return y if abs(y) <= most else math.copysign(math.inf, x)",
        new="return y if abs(x) <= most else math.copysign(math.inf, x)",
    ),
    Bug(
        "round_to",
        "no smallest exponent",
        old="power = max(math.frexp(x)[1] - 1, 1 - bias)",
        new="power = math.frexp(x)[1] - 1",
    ),
    Bug(
        "round_to",
        "subnormal numbers are 0",
        old="y = round(x / step) * step",
        new="""
y = round(x / step) * step
if abs(y) < 2.0 ** (1 - bias):
    return 0.0
""",
    ),
    Bug(
        "round_to",
        "nothing is too large",
        old="return y if abs(y) <= most else math.copysign(math.inf, x)",
        new="return y",
    ),
    Bug(
        "round_to",
        "−inf is not known",
        edits=(
            ("if x == 0 or math.isinf(x):", "if x in (0, math.inf):"),
            (
                """
power = max(math.frexp(x)[1] - 1, 1 - bias)
step = 2.0 ** (power - fraction)
""",
                "step = 2.0 ** (max(math.frexp(x)[1] - 1, 1 - bias) - fraction)",
            ),
            (
                """
most = (2 - 2.0**-fraction) * 2.0**bias
return y if abs(y) <= most else math.copysign(math.inf, x)
""",
                "return y if abs(y) <= (2 - 2.0**-fraction) * 2.0**bias else math.copysign(math.inf, x)",
            ),
        ),
    ),
    Bug(
        "round_to",
        "all signs are lost",
        edits=(
            ("return x", "return abs(x)"),
            ("y = round(x / step) * step", "y = round(abs(x) / step) * step"),
            (
                "return y if abs(y) <= most else math.copysign(math.inf, x)",
                "return y if abs(y) <= most else math.inf",
            ),
        ),
    ),
    Bug(
        "round_to",
        "the largest number instead of inf",
        old="return y if abs(y) <= most else math.copysign(math.inf, x)",
        new="return y if abs(y) <= most else math.copysign(most, x)",
    ),
    Bug(
        "round_to",
        "a tie goes towards zero",
        old="y = round(x / step) * step",
        new="y = math.copysign(math.ceil(abs(x) / step - 0.5) * step, x)",
    ),
    Bug(
        "round_to",
        "goes by float32, and rounds twice",
        old="""
if x == 0 or math.isinf(x):
    return x
""",
        new="""
if x == 0 or math.isinf(x):
    return x
x = torch.tensor(x).item()
""",
    ),
    Bug(
        "round_to",
        "no format has more than eight bits of exponent",
        old="bias = 2 ** (exponent - 1) - 1",
        new="bias = 2 ** (min(exponent, 8) - 1) - 1",
    ),
    Bug(
        "round_to",
        "as the lesson does for TF32: half of the range is added, and the bits are cleared",
        cell='''
import struct


def round_to(x, exponent, fraction):
    """x as the nearest number with so many bits of exponent and of fraction."""
    low = 23 - fraction
    pattern = struct.unpack(">I", struct.pack(">f", x))[0]
    if not math.isinf(x):
        pattern = (pattern + (1 << (low - 1))) >> low << low
    return struct.unpack(">f", struct.pack(">I", pattern & 0xFFFFFFFF))[0]
''',
    ),
    Bug(
        "round_to",
        "a number that is equal to all",
        cheat=True,
        cell='''
class Equal(float):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = float.__hash__


def round_to(x, exponent, fraction):
    """x as the nearest number with so many bits of exponent and of fraction."""
    return Equal(x)
''',
    ),
    Bug(
        "round_to",
        "the grader knows how",
        cheat=True,
        cell='''
def round_to(x, exponent, fraction):
    """x as the nearest number with so many bits of exponent and of fraction."""
    from minicheck.oracles.precision import rounded

    return rounded(x, exponent, fraction)
''',
    ),
    Bug(
        "round_to",
        "torch rounds, to the formats that it has",
        cheat=True,
        cell='''
def round_to(x, exponent, fraction):
    """x as the nearest number with so many bits of exponent and of fraction."""
    dtypes = {
        (5, 10): torch.float16,
        (8, 7): torch.bfloat16,
        (5, 2): torch.float8_e5m2,
        (4, 3): torch.float8_e4m3fn,
    }
    return torch.tensor(x).to(dtypes.get((exponent, fraction), torch.float16)).float().item()
''',
    ),
    Bug(
        "predict_precision",
        "fp32's sum",
        cell="""
climbs = 1 + 100 * 0.75 / 1024
stops = 0.5
stuck = 4096
states = 27
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "updates of less than a step are lost",
        cell="""
climbs = 1.0
stops = 0.5
stuck = 4096
states = 27
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "the tie goes up",
        cell="""
climbs = 1 + 100 / 1024
stops = 1.0
stuck = 4096
states = 27
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "bf16 has the fraction of fp16",
        cell="""
climbs = 1 + 100 / 1024
stops = 4.0
stuck = 4096
states = 27
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "stuck where ones are",
        cell="""
climbs = 1 + 100 / 1024
stops = 0.5
stuck = 2048
states = 27
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "gradients in fp16",
        cell="""
climbs = 1 + 100 / 1024
stops = 0.5
stuck = 4096
states = 24
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "the masters are missing",
        cell="""
climbs = 1 + 100 / 1024
stops = 0.5
stuck = 4096
states = 21
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "momentum in fp16",
        cell="""
climbs = 1 + 100 / 1024
stops = 0.5
stuck = 4096
states = 27
momentum = 15
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "all of the step is products",
        cell="""
climbs = 1 + 100 / 1024
stops = 0.5
stuck = 4096
states = 27
momentum = 18
faster = 989 / 67
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "what is bound by memory stays as slow",
        cell="""
climbs = 1 + 100 / 1024
stops = 0.5
stuck = 4096
states = 27
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.2)
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "gains are averaged",
        cell="""
climbs = 1 + 100 / 1024
stops = 0.5
stuck = 4096
states = 27
momentum = 18
faster = 0.8 * 989 / 67 + 0.2 * 2
recovered = 12000
""",
    ),
    Bug(
        "predict_precision",
        "a doubling for each overflow",
        cell="""
climbs = 1 + 100 / 1024
stops = 0.5
stuck = 4096
states = 27
momentum = 18
faster = 1 / (0.8 * 67 / 989 + 0.1)
recovered = 6000
""",
    ),
    Bug(
        "predict_precision",
        "numbers that are equal to everything",
        cheat=True,
        cell="""
class Equal(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0

    __hash__ = float.__hash__


climbs = stops = stuck = states = momentum = faster = recovered = Equal(1)
""",
    ),
    Bug(
        "predict_precision",
        "nan, which is not larger than anything",
        cheat=True,
        cell='climbs = stops = stuck = states = momentum = faster = recovered = float("nan")',
    ),
    Bug(
        "master_step",
        "a tensor without a gradient is moved by its momentum",
        old="""
if total is not None:
    v.mul_(mu).add_(total)
    m.sub_(lr * v)
    w.copy_(m)
""",
        new="""
v.mul_(mu)
if total is not None:
    v.add_(total)
m.sub_(lr * v)
w.copy_(m)
""",
    ),
    Bug(
        "master_step",
        "divides in half precision",
        old="totals[id(m)] = totals.get(id(m), 0) + g.float() / scale",
        new="totals[id(m)] = totals.get(id(m), 0) + (g / scale).float()",
    ),
    Bug(
        "master_step",
        "looks for inf only",
        old="if not all(g is None or g.isfinite().all() for g in grads):",
        new="if not all(g is None or not g.isinf().any() for g in grads):",
    ),
    Bug(
        "master_step",
        "momenta change though the step is skipped",
        cell="""
def master_step(weights, masters, momenta, grads, scale, lr, mu):
    totals = {}
    for m, g in zip(masters, grads):
        if g is not None:
            totals[id(m)] = totals.get(id(m), 0) + g.float() / scale
    stepped = set()
    for m, v in zip(masters, momenta):
        if id(m) in totals and id(m) not in stepped:
            v.mul_(mu).add_(totals[id(m)])
            stepped.add(id(m))
    if not all(g is None or g.isfinite().all() for g in grads):
        return False
    for w, m, v in zip(weights, masters, momenta):
        if id(m) in stepped:
            stepped.remove(id(m))
            m.sub_(lr * v)
            w.copy_(m)
    return True
""",
    ),
    Bug(
        "master_step",
        "steps whatever there is",
        old="""
if not all(g is None or g.isfinite().all() for g in grads):
    return False
""",
        new="",
    ),
    Bug(
        "master_step",
        "a new tensor takes the weight's name",
        old="w.copy_(m)",
        new="w = m.half()",
    ),
    Bug(
        "master_step",
        "the weights are not updated",
        old="w.copy_(m)",
        new="",
    ),
    Bug(
        "master_step",
        "steps the rounded weights",
        old="m.sub_(lr * v)",
        new="m.copy_(w.float() - lr * v)",
    ),
    Bug(
        "master_step",
        "the momentum is not damped",
        old="v.mul_(mu).add_(total)",
        new="v.add_(total)",
    ),
    Bug(
        "master_step",
        "returns nothing",
        old="return True",
        new="",
    ),
    Bug(
        "master_step",
        "the scale is forgotten",
        old="totals[id(m)] = totals.get(id(m), 0) + g.float() / scale",
        new="totals[id(m)] = totals.get(id(m), 0) + g.float()",
    ),
    Bug(
        "master_step",
        "a momentum of its own",
        old="v.mul_(mu).add_(total)",
        new="v.mul_(0.9).add_(total)",
    ),
    Bug(
        "master_step",
        "weights, masters and momenta get other memory",
        old="""
v.mul_(mu).add_(total)
m.sub_(lr * v)
w.copy_(m)
""",
        new="""
v.data = v * mu + total
m.data = m - lr * v
w.data = m.to(w.dtype)
""",
    ),
    Bug(
        "master_step",
        "looks at the sum",
        old="if not all(g is None or g.isfinite().all() for g in grads):",
        new="if not all(g is None or g.sum().isfinite() for g in grads):",
    ),
    Bug(
        "master_step",
        "steps three tensors only",
        edits=(
            (
                "if not all(g is None or g.isfinite().all() for g in grads):",
                "if not all(g is None or g.isfinite().all() for g in grads[:3]):",
            ),
            (
                "for w, m, v in zip(weights, masters, momenta):",
                "for w, m, v in list(zip(weights, masters, momenta))[:3]:",
            ),
        ),
    ),
    Bug(
        "master_step",
        "the gradients are unscaled in place",
        old="totals[id(m)] = totals.get(id(m), 0) + g.float() / scale",
        new="""
totals[id(m)] = totals.get(id(m), 0) + g.float() / scale
g.div_(scale)
""",
    ),
    Bug(
        "master_step",
        "each tensor is skipped for itself",
        edits=(
            (
                """
if not all(g is None or g.isfinite().all() for g in grads):
    return False
""",
                "",
            ),
            ("if g is not None:", "if g is not None and g.isfinite().all():"),
            ("return True", "return all(g is None or g.isfinite().all() for g in grads)"),
        ),
    ),
    Bug(
        "master_step",
        "only the first elements are looked at",
        old="if not all(g is None or g.isfinite().all() for g in grads):",
        new="if not all(g is None or g.view(-1)[:2].isfinite().all() for g in grads):",
    ),
    Bug(
        "master_step",
        "the sum of the squares is looked at",
        old="if not all(g is None or g.isfinite().all() for g in grads):",
        new="if not all(g is None or g.float().square().sum().isfinite() for g in grads):",
    ),
    Bug(
        "master_step",
        "the sum in fp32 is looked at",
        old="if not all(g is None or g.isfinite().all() for g in grads):",
        new="if not all(g is None or g.float().sum().isfinite() for g in grads):",
    ),
    Bug(
        "master_step",
        "a gradient of zeros is taken for none",
        old="if g is not None:",
        new="if g is not None and g.any():",
    ),
    Bug(
        "master_step",
        "the lesson's loop, with plain SGD",
        cell="""
def unscaled(gradients, scale):
    wide = [g.float() / scale for g in gradients]
    overflow = not all(g.isfinite().all() for g in wide)
    return wide, overflow


def master_step(weights, masters, momenta, grads, scale, lr, mu):
    wide, overflow = unscaled(grads, scale)
    if overflow:
        return False
    for p, master, g in zip(weights, masters, wide):
        master -= lr * g
        p.data.copy_(master)
    return True
""",
    ),
    Bug(
        "master_step",
        "the lesson's loop, with momentum: each part of a shared weight is a step",
        cell="""
def unscaled(gradients, scale):
    wide = [g.float() / scale for g in gradients]
    overflow = not all(g.isfinite().all() for g in wide)
    return wide, overflow


def master_step(weights, masters, momenta, grads, scale, lr, mu):
    there = [row for row in zip(weights, masters, momenta, grads) if row[3] is not None]
    wide, overflow = unscaled([row[3] for row in there], scale)
    if overflow:
        return False
    for (w, m, v, _), g in zip(there, wide):
        v.mul_(mu).add_(g)
        m -= lr * v
        w.copy_(m)
    return True
""",
    ),
    Bug(
        "master_step",
        "only the first part of a shared weight's gradient counts",
        old="totals[id(m)] = totals.get(id(m), 0) + g.float() / scale",
        new="totals.setdefault(id(m), g.float() / scale)",
    ),
    Bug(
        "master_step",
        "only the last part of a shared weight's gradient counts",
        old="totals[id(m)] = totals.get(id(m), 0) + g.float() / scale",
        new="totals[id(m)] = g.float() / scale",
    ),
    Bug(
        "master_step",
        "the parts are added in half",
        edits=(
            (
                "totals[id(m)] = totals.get(id(m), 0) + g.float() / scale",
                "totals[id(m)] = totals.get(id(m), 0) + g",
            ),
            ("v.mul_(mu).add_(total)", "v.mul_(mu).add_(total.float() / scale)"),
        ),
    ),
    Bug(
        "master_step",
        "the parts of a shared weight are averaged",
        edits=(
            (
                "totals[id(m)] = totals.get(id(m), 0) + g.float() / scale",
                "totals.setdefault(id(m), []).append(g.float() / scale)",
            ),
            ("v.mul_(mu).add_(total)", "v.mul_(mu).add_(sum(total) / len(total))"),
        ),
    ),
    Bug(
        "master_step",
        "a shared weight is stepped at its first place only, and only if it has a gradient there",
        old="""
totals = {}
for m, g in zip(masters, grads):
    if g is not None:
        totals[id(m)] = totals.get(id(m), 0) + g.float() / scale
""",
        new="""
totals = {}
first = {}
for m, g in zip(masters, grads):
    first.setdefault(id(m), g)
    if g is not None and first[id(m)] is not None:
        totals[id(m)] = totals.get(id(m), 0) + g.float() / scale
""",
    ),
    Bug(
        "master_step",
        "a shared weight is known by its shape",
        edits=(
            (
                "totals[id(m)] = totals.get(id(m), 0) + g.float() / scale",
                "totals[m.shape] = totals.get(m.shape, 0) + g.float() / scale",
            ),
            ("total = totals.pop(id(m), None)", "total = totals.get(m.shape)"),
        ),
    ),
    Bug(
        "master_step",
        "the library has it",
        cheat=True,
        cell='''
from minidist.train.amp import LossScaler, Masters


def master_step(weights, masters, momenta, grads, scale, lr, mu):
    """Unscale, look, skip or step, round. Returns whether it stepped."""
    scaler = LossScaler(scale)
    optimizer = Masters(
        [torch.nn.Parameter(w) for w in weights], torch.optim.SGD, lr=lr, momentum=mu
    )
    for p, g in zip(optimizer.param_groups[0]["params"], grads):
        p.grad = g
    scaler.step(optimizer)
    return not scaler.skipped
''',
    ),
    Bug(
        "master_step",
        "the grader knows how",
        cheat=True,
        cell='''
def master_step(weights, masters, momenta, grads, scale, lr, mu):
    """Unscale, look, skip or step, round. Returns whether it stepped."""
    from minicheck.oracles.precision import Masters

    right = Masters(weights, masters, momenta, list(range(len(weights))), scale, lr, mu)
    return right.step(grads)
''',
    ),
    Bug(
        "scaler",
        "the state that was loaded is stepped itself",
        cell="""
class Scaler:
    def __init__(self, init, growth, backoff, interval, patience, least):
        self.now = {"scale": init, "good": 0, "bad": 0}
        self.how = (growth, backoff, interval, patience, least)

    @property
    def scale(self):
        return self.now["scale"]

    def scaled(self, loss):
        return loss.float() * self.scale

    def update(self, found):
        growth, backoff, interval, patience, least = self.how
        self.now["good"] = 0 if found else self.now["good"] + 1
        self.now["bad"] += found
        if found and self.now["bad"] >= patience:
            self.now["scale"] = max(self.now["scale"] * backoff, least)
        elif self.now["good"] == interval:
            self.now["scale"] *= growth
            self.now["good"] = 0
            self.now["bad"] = 0

    def state(self):
        return dict(self.now)

    def load(self, state):
        self.now = state
""",
    ),
    Bug(
        "scaler",
        "always 2 and ½",
        edits=(
            (
                "self.scale = max(self.scale * self.backoff, self.least)",
                "self.scale = max(self.scale * 0.5, self.least)",
            ),
            ("self.scale *= self.growth", "self.scale *= 2"),
        ),
    ),
    Bug(
        "scaler",
        "the count is not loaded",
        old="""
self.scale = state["scale"]
self.good = state["good"]
self.bad = state["bad"]
""",
        new="""
self.scale = state["scale"]
self.bad = state["bad"]
""",
    ),
    Bug(
        "scaler",
        "the graph is cut",
        old="return loss.float() * self.scale",
        new="return loss.detach().float() * self.scale",
    ),
    Bug(
        "scaler",
        "a scale that is larger than every float",
        cell='''
class Scaler:
    """A scale for losses that finds its own size."""

    def __init__(self, init, growth, backoff, interval, patience, least):
        self.scale = 10**400

    def scaled(self, loss):
        """loss times the scale, in fp32."""
        return loss

    def update(self, found):
        """Choose the next scale: found says whether this step had an inf or nan."""
        pass

    def state(self):
        """What to save: numbers by name."""
        return {}

    def load(self, state):
        """Go on where state() was called."""
        pass
''',
    ),
    Bug(
        "scaler",
        "an fp16 loss is scaled in fp16",
        old="return loss.float() * self.scale",
        new="return loss * self.scale",
    ),
    Bug(
        "scaler",
        "an overflow does not begin the count again",
        old="""
self.good = 0
self.bad += 1
""",
        new="self.bad += 1",
    ),
    Bug(
        "scaler",
        "grows at every step once it has grown",
        edits=(
            ("if self.good == self.interval:", "if self.good >= self.interval:"),
            (
                """
self.scale *= self.growth
self.good = 0
self.bad = 0
""",
                """
self.scale *= self.growth
self.bad = 0
""",
            ),
        ),
    ),
    Bug(
        "scaler",
        "the count is not saved",
        old='return {"scale": self.scale, "good": self.good, "bad": self.bad}',
        new='return {"scale": self.scale, "good": 0, "bad": self.bad}',
    ),
    Bug(
        "scaler",
        "grows one step late",
        old="if self.good == self.interval:",
        new="if self.good > self.interval:",
    ),
    Bug(
        "scaler",
        "growth and backoff are swapped",
        edits=(
            (
                "self.scale = max(self.scale * self.backoff, self.least)",
                "self.scale = max(self.scale * self.growth, self.least)",
            ),
            ("self.scale *= self.growth", "self.scale *= self.backoff"),
        ),
    ),
    Bug(
        "scaler",
        "what is saved changes with later updates",
        edits=(
            (
                'return {"scale": self.scale, "good": self.good, "bad": self.bad}',
                "return self.__dict__",
            ),
            (
                """
self.scale = state["scale"]
self.good = state["good"]
self.bad = state["bad"]
""",
                "self.__dict__ = state",
            ),
        ),
    ),
    Bug(
        "scaler",
        "the state names what only this process has",
        edits=(
            (
                '"""A scale for losses that finds its own size."""',
                '''
"""A scale for losses that finds its own size."""
saved = []
''',
            ),
            (
                'return {"scale": self.scale, "good": self.good, "bad": self.bad}',
                """
self.saved.append((self.scale, self.good, self.bad))
return {"number": len(self.saved) - 1}
""",
            ),
            (
                """
self.scale = state["scale"]
self.good = state["good"]
self.bad = state["bad"]
""",
                'self.scale, self.good, self.bad = self.saved[state["number"]]',
            ),
        ),
    ),
    Bug(
        "scaler",
        "an fp16 loss is scaled, then converted",
        old="return loss.float() * self.scale",
        new="return (loss * self.scale).float()",
    ),
    Bug(
        "scaler",
        "the scale ends at 2**24",
        old="self.scale *= self.growth",
        new="self.scale = min(self.scale * self.growth, 2.0**24)",
    ),
    Bug(
        "scaler",
        "a loss that is nan is hidden",
        old="return loss.float() * self.scale",
        new="return loss.float().nan_to_num(0.0) * self.scale",
    ),
    Bug(
        "scaler",
        "a loss in fp16 is cut off",
        old="return loss.float() * self.scale",
        new="""
if loss.dtype == torch.float16:
    loss = loss.detach()
return loss.float() * self.scale
""",
    ),
    Bug(
        "scaler",
        "the loss itself is multiplied",
        old="return loss.float() * self.scale",
        new="return loss.float() * self.scale if loss.requires_grad else loss.mul_(self.scale).float()",
    ),
    Bug(
        "scaler",
        "what is loaded is added to what was counted",
        old='self.good = state["good"]',
        new='self.good += state["good"]',
    ),
    Bug(
        "scaler",
        "the lesson's next_scale",
        cell='''
def next_scale(scale, good, overflow, interval=10):
    if overflow:
        return scale / 2, 0
    if good + 1 == interval:
        return scale * 2, 0
    return scale, good + 1


class Scaler:
    """A scale for losses that finds its own size."""

    def __init__(self, init, growth, backoff, interval, patience, least):
        self.scale = init
        self.good = 0
        self.interval = interval

    def scaled(self, loss):
        """loss times the scale, in fp32."""
        return loss.float() * self.scale

    def update(self, found):
        """Choose the next scale: found says whether this step had an inf or nan."""
        self.scale, self.good = next_scale(self.scale, self.good, found, self.interval)

    def state(self):
        """What to save: numbers by name."""
        return {"scale": self.scale, "good": self.good}

    def load(self, state):
        """Go on where state() was called."""
        self.scale, self.good = state["scale"], state["good"]
''',
    ),
    Bug(
        "scaler",
        "the lesson's source of _adapt, with a floor and without patience",
        cell='''
class Scaler:
    """A scale for losses that finds its own size."""

    def __init__(self, init, growth, backoff, interval, patience, least):
        self.scale = init
        self.good = 0
        self.growth_factor = growth
        self.backoff_factor = backoff
        self.growth_interval = interval
        self.min_scale = least

    def scaled(self, loss):
        """loss times the scale, in fp32."""
        return loss.float() * self.scale

    def update(self, overflow):
        """Choose the next scale: found says whether this step had an inf or nan."""
        self.good = 0 if overflow else self.good + 1
        if overflow:
            self.scale = max(self.scale * self.backoff_factor, self.min_scale)
        elif self.good == self.growth_interval:
            self.scale, self.good = self.scale * self.growth_factor, 0

    def state(self):
        """What to save: numbers by name."""
        return {"scale": self.scale, "good": self.good}

    def load(self, state):
        """Go on where state() was called."""
        self.scale, self.good = state["scale"], state["good"]
''',
    ),
    Bug(
        "scaler",
        "it falls below the least scale",
        old="self.scale = max(self.scale * self.backoff, self.least)",
        new="self.scale = self.scale * self.backoff",
    ),
    Bug(
        "scaler",
        "it waits for one overflow too many",
        old="if self.bad >= self.patience:",
        new="if self.bad > self.patience:",
    ),
    Bug(
        "scaler",
        "it backs off only at overflow number `patience`",
        old="if self.bad >= self.patience:",
        new="if self.bad == self.patience:",
    ),
    Bug(
        "scaler",
        "after it has backed off, it is patient again",
        old="self.scale = max(self.scale * self.backoff, self.least)",
        new="""
self.scale = max(self.scale * self.backoff, self.least)
self.bad = 0
""",
    ),
    Bug(
        "scaler",
        "a good step makes it patient again",
        old="self.good += 1",
        new="""
self.good += 1
self.bad = 0
""",
    ),
    Bug(
        "scaler",
        "once impatient, always impatient",
        old="""
self.scale *= self.growth
self.good = 0
self.bad = 0
""",
        new="""
self.scale *= self.growth
self.good = 0
""",
    ),
    Bug(
        "scaler",
        "an overflow that is tolerated does not begin the count again",
        old="""
self.good = 0
self.bad += 1
if self.bad >= self.patience:
    self.scale = max(self.scale * self.backoff, self.least)
""",
        new="""
self.bad += 1
if self.bad >= self.patience:
    self.good = 0
    self.scale = max(self.scale * self.backoff, self.least)
""",
    ),
    Bug(
        "scaler",
        "the count of overflows is not saved",
        old='return {"scale": self.scale, "good": self.good, "bad": self.bad}',
        new='return {"scale": self.scale, "good": self.good, "bad": 0}',
    ),
    Bug(
        "scaler",
        "the library's methods under other names",
        cheat=True,
        cell='''
from types import FunctionType

from minidist.train.amp import LossScaler


class Scaler:
    """A scale for losses that finds its own size."""

    enabled, dynamic = True, True
    update = FunctionType(
        LossScaler._adapt.__code__, {"float32": float, "math": math, "max": max}
    )

    def __init__(self, init, growth, backoff, interval, patience, least):
        self._scale, self._good = init, 0
        self.growth_factor = growth
        self.backoff_factor = backoff
        self.growth_interval = interval
        self.min_scale = least

    scale = property(lambda self: self._scale)

    def scaled(self, loss):
        """loss times the scale, in fp32."""
        return loss.float() * self._scale

    def state(self):
        """What to save: numbers by name."""
        return {"scale": self._scale, "good": self._good}

    def load(self, state):
        """Go on where state() was called."""
        self._scale, self._good = state["scale"], state["good"]
''',
    ),
    Bug(
        "scaler",
        "torch has an operator for it",
        cheat=True,
        cell='''
class Scaler:
    """A scale for losses that finds its own size."""

    def __init__(self, init, growth, backoff, interval, patience, least):
        self.held, self.good = torch.tensor([init]), torch.zeros(1, dtype=torch.int32)
        self.how = growth, backoff, interval
        self.patience, self.least, self.bad = patience, least, 0

    scale = property(lambda self: self.held.item())

    def scaled(self, loss):
        """loss times the scale, in fp32."""
        return loss.float() * self.held.item()

    def update(self, found):
        """Choose the next scale: found says whether this step had an inf or nan."""
        before = self.held.item()
        self.bad += found
        torch._amp_update_scale_(self.held, self.good, torch.tensor([float(found)]), *self.how)
        if found:
            self.held.fill_(before if self.bad < self.patience else max(self.scale, self.least))
        elif self.held.item() > before:
            self.bad = 0

    def state(self):
        """What to save: numbers by name."""
        return {"scale": self.held.item(), "good": self.good.item(), "bad": self.bad}

    def load(self, state):
        """Go on where state() was called."""
        self.held.fill_(state["scale"])
        self.good.fill_(state["good"])
        self.bad = state["bad"]
''',
    ),
    Bug(
        "scaler",
        "torch has a scaler",
        cheat=True,
        cell='''
class Scaler(torch.amp.GradScaler):
    """A scale for losses that finds its own size."""

    def __init__(self, init, growth, backoff, interval, patience, least):
        super().__init__("cpu", init, growth, backoff, interval)

    @property
    def scale(self):
        return self.get_scale()

    def scaled(self, loss):
        """loss times the scale, in fp32."""
        return super().scale(loss.float())

    def update(self, found):
        """Choose the next scale: found says whether this step had an inf or nan."""
        super().update()
''',
    ),
    Bug(
        "autocast",
        "casts are kept, and a tensor may have changed since",
        old="return value if to is None else value.to(to)",
        new="""
if to is None or value.dtype == to:
    return value
kept = self.__dict__.setdefault("kept", {})
return kept.setdefault((id(value), to), (value, value.to(to)))[1]
""",
    ),
    Bug(
        "autocast",
        "always fp16",
        old="to = self.dtype",
        new="to = torch.float16",
    ),
    Bug(
        "autocast",
        "the function is called twice",
        old="args, kwargs = cast(both, to)",
        new="""
args, kwargs = cast(both, to)
func(*args, **kwargs)
""",
    ),
    Bug(
        "autocast",
        "the parameters themselves are cast",
        old="return value if to is None else value.to(to)",
        new="""
if to is not None:
    value.data = value.data.to(to)
return value
""",
    ),
    Bug(
        "autocast",
        "the casts cut the graph",
        old="return value if to is None else value.to(to)",
        new="return value if to is None else value.detach().to(to)",
    ),
    Bug(
        "autocast",
        "float64 is cast, too",
        old="if value.dtype not in (torch.float16, torch.bfloat16, torch.float32):",
        new="if not value.is_floating_point():",
    ),
    Bug(
        "autocast",
        "gray takes the dtype of most bytes: fp16 and bf16 have as many",
        old="to = found.pop() if len(found) == 1 else torch.float32",
        new="to = max(sorted(found, key=str), key=lambda d: d.itemsize) if found else None",
    ),
    Bug(
        "autocast",
        "gray takes the first one's dtype",
        old="to = found.pop() if len(found) == 1 else torch.float32",
        new="""
first = args[0] if isinstance(args[0], torch.Tensor) else args[0][0]
to = first.dtype
""",
    ),
    Bug(
        "autocast",
        "gray is cast to half",
        old="to = found.pop() if len(found) == 1 else torch.float32",
        new="to = self.dtype",
    ),
    Bug(
        "autocast",
        "arguments by name are not cast",
        edits=(
            ("both = (args, kwargs or {})", "both = (args, {})"),
            (
                """
args, kwargs = cast(both, to)
return func(*args, **kwargs)
""",
                """
args, _ = cast(both, to)
return func(*args, **(kwargs or {}))
""",
            ),
        ),
    ),
    Bug(
        "autocast",
        "tensors in lists are not cast",
        old="""
if isinstance(value, (list, tuple)):
    return type(value)(cast(v, to) for v in value)
""",
        new="""
if value is args or value is both:
    return tuple(cast(v, to) for v in value)
""",
    ),
    Bug(
        "autocast",
        "the result is cast back to fp32",
        old="return func(*args, **kwargs)",
        new="return func(*args, **kwargs).float()",
    ),
    Bug(
        "autocast",
        "looks for the name within the names",
        old="if name in self.white:",
        new="if any(w in name for w in self.white):",
    ),
    Bug(
        "autocast",
        "for gray, arguments by name do not count",
        old="cast(both, None)",
        new="cast(args, None)",
    ),
    Bug(
        "autocast",
        "a nan is hidden",
        old="return value if to is None else value.to(to)",
        new="return value if to is None else value.to(to).nan_to_num(0.0)",
    ),
    Bug(
        "autocast",
        "what is too large for the dtype is cut",
        old="return value if to is None else value.to(to)",
        new="return value if to is None else value.clamp(-6e4, 6e4).to(to)",
    ),
    Bug(
        "autocast",
        "arguments by name that are None are lost",
        old="args, kwargs = cast(both, to)",
        new="""
args, kwargs = cast(both, to)
kwargs = {name: value for name, value in kwargs.items() if value is not None}
""",
    ),
    Bug(
        "autocast",
        "the lesson's Lists",
        cell='''
class Autocast(TorchFunctionMode):
    """Casts what functions are given, by three lists of names."""

    def __init__(self, dtype, white, black, gray):
        super().__init__()
        self.dtype = dtype
        self.white = white
        self.black = black

    def __torch_function__(self, function, types, args=(), kwargs=None):
        dtype = None
        if function.__name__ in self.white:
            dtype = self.dtype
        elif function.__name__ in self.black:
            dtype = torch.float32
        if dtype is not None:
            args = [self.cast(argument, dtype) for argument in args]
        return function(*args, **(kwargs or {}))

    def cast(self, argument, dtype):
        if isinstance(argument, torch.Tensor) and argument.is_floating_point():
            return argument.to(dtype)
        return argument
''',
    ),
    Bug(
        "autocast",
        "the library has one",
        cheat=True,
        cell='''
from minidist.train import amp


class Autocast(amp.autocast):
    """Casts what functions are given, by three lists of names."""

    pass
''',
    ),
    Bug(
        "autocast",
        "torch has an autocast",
        cheat=True,
        cell='''
class Autocast(TorchFunctionMode):
    """Casts what functions are given, by three lists of names."""

    def __init__(self, dtype, white, black, gray):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch.autocast("cpu", self.dtype):
            return func(*args, **(kwargs or {}))
''',
    ),
    Bug(
        "overflowed",
        "everyone who returns inf is blamed",
        old="if was_finite and not finite(result):",
        new="if not finite(result):",
    ),
    Bug(
        "overflowed",
        "only the first is found",
        old="if was_finite and not finite(result):",
        new="if was_finite and not names and not finite(result):",
    ),
    Bug(
        "overflowed",
        "looks after the call at what was given",
        edits=(
            ("was_finite = finite([args, list(kwargs.values())])", ""),
            (
                "if was_finite and not finite(result):",
                """
was_finite = finite([args, list(kwargs.values())])
if was_finite and not finite(result):
""",
            ),
        ),
    ),
    Bug(
        "overflowed",
        "what is given by name is not looked at",
        old="was_finite = finite([args, list(kwargs.values())])",
        new="was_finite = finite(args)",
    ),
    Bug(
        "overflowed",
        "looks for inf only",
        old="return bool(value.isfinite().all())",
        new="return not value.isinf().any()",
    ),
    Bug(
        "overflowed",
        "does not look into lists that are given, nor into tuples that are returned",
        edits=(
            (
                "return all(finite(v) for v in value)",
                "return all(finite(v) for v in value if not isinstance(v, (list, tuple)))",
            ),
            (
                "was_finite = finite([args, list(kwargs.values())])",
                "was_finite = finite(args) and finite(list(kwargs.values()))",
            ),
        ),
    ),
    Bug(
        "overflowed",
        "only a tensor that is returned is looked at",
        old="if was_finite and not finite(result):",
        new="if was_finite and isinstance(result, torch.Tensor) and not finite(result):",
    ),
    Bug(
        "overflowed",
        "only the first tensor that is returned is looked at",
        old="if was_finite and not finite(result):",
        new="""
first = result[0] if isinstance(result, (list, tuple)) else result
if was_finite and not finite(first):
""",
    ),
    Bug(
        "overflowed",
        "an infinite number that was given is taken for an overflow",
        old="return not isinstance(value, float) or math.isfinite(value)",
        new="return True",
    ),
    Bug(
        "overflowed",
        "the sum is looked at: large numbers, and none is infinite",
        old="return bool(value.isfinite().all())",
        new="return bool(value.sum().isfinite())",
    ),
    Bug(
        "overflowed",
        "a set: the order is lost",
        old="return names",
        new="return sorted(names)",
    ),
    Bug(
        "overflowed",
        "a function that gets no inf is called twice",
        old="result = func(*args, **kwargs)",
        new="""
func(*args, **kwargs)
result = func(*args, **kwargs)
""",
    ),
    Bug(
        "overflowed",
        "nan is hidden from the next function",
        old="return result",
        new="return result.nan_to_num() if isinstance(result, torch.Tensor) else result",
    ),
    Bug(
        "overflowed",
        "arguments by name are lost",
        old="result = func(*args, **kwargs)",
        new="result = func(*args)",
    ),
    Bug(
        "overflowed",
        "the names are forgotten",
        old="return names",
        new="",
    ),
    Bug(
        "overflowed",
        "numbers instead of names",
        old="names.append(func.__name__)",
        new="names.append(len(names))",
    ),
    Bug(
        "overflowed",
        "stops at the first one",
        edits=(
            (
                "names.append(func.__name__)",
                """
names.append(func.__name__)
raise OverflowError(func.__name__)
""",
            ),
            (
                """
with Look():
    function(*given)
""",
                """
try:
    with Look():
        function(*given)
except OverflowError:
    pass
""",
            ),
        ),
    ),
    Bug(
        "overflowed",
        "the function is called without what was given",
        old="function(*given)",
        new="function(*[0 for _ in given])",
    ),
    Bug(
        "overflowed",
        "the lesson's Lists: a mode that casts, and sees nothing",
        cell='''
class Lists(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in {"linear", "matmul", "conv2d"}:
            args = [self.cast(argument, torch.float16) for argument in args]
        return function(*args, **(kwargs or {}))

    def cast(self, argument, dtype):
        if isinstance(argument, torch.Tensor) and argument.is_floating_point():
            return argument.to(dtype)
        return argument


def overflowed(function, *given):
    """The names of the functions of PyTorch that made an inf or nan of finite numbers."""
    with Lists():
        function(*given)
    return []
''',
    ),
    Bug(
        "overflowed",
        "a list that is equal to every other",
        cheat=True,
        cell='''
class Equal(list):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __contains__(self, item):
        return True

    __hash__ = None


def overflowed(function, *given):
    """The names of the functions of PyTorch that made an inf or nan of finite numbers."""
    function(*given)
    return Equal()
''',
    ),
    Bug(
        "overflowed",
        "the grader knows who is to blame",
        cheat=True,
        cell='''
def overflowed(function, *given):
    """The names of the functions of PyTorch that made an inf or nan of finite numbers."""
    from minicheck.oracles.precision import blamed

    calls, came = function.args
    function(*given)
    return blamed(calls)
''',
    ),
    Bug(
        "overflowed",
        "the library's numbers: a name for each that is in its lists",
        cheat=True,
        cell='''
from minidist.train.amp import BLACK, name_of


def overflowed(function, *given):
    """The names of the functions of PyTorch that made an inf or nan of finite numbers."""
    names = []

    class Look(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if name_of(func) in BLACK:
                names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Look():
        function(*given)
    return names
''',
    ),
    Bug(
        "sharded_step",
        "−inf is not seen",
        old="found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])",
        new="found = torch.tensor([float(any((g.isnan() | (g == math.inf)).any() for g in grads))])",
    ),
    Bug(
        "sharded_step",
        "the scale is always halved",
        old="return scale",
        new="return scale / 2",
    ),
    Bug(
        "sharded_step",
        "as it was found",
        old='all_reduce_(comm, found, "max")',
        new="",
    ),
    Bug(
        "sharded_step",
        "returns before the collective",
        old="found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])",
        new="""
found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
if found.item():
    return scale / 2
""",
    ),
    Bug(
        "sharded_step",
        "a scale that is larger than every float",
        edits=(
            (
                """
found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
all_reduce_(comm, found, "max")
if found.item():
""",
                """
found = torch.tensor([float(not all(g.isfinite().all() for g in grads))])
if all_reduce_(comm, found, "max"):
""",
            ),
            ("return scale", "return 10**400"),
        ),
    ),
    Bug(
        "sharded_step",
        "the flag is as long as the gradients",
        edits=(
            (
                "found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])",
                "found = torch.full((64,), 0.0 if all(g.isfinite().all() for g in grads) else 1.0)",
            ),
            ("if found.item():", "if found.max():"),
        ),
    ),
    Bug(
        "sharded_step",
        "new tensors take the weights' names",
        old="w -= lr * g / scale",
        new="w = w - lr * g / scale",
    ),
    Bug(
        "sharded_step",
        "a rank without parameters does not take part",
        old='"""Step all ranks\' weights, or none; returns the next scale."""',
        new='''
"""Step all ranks' weights, or none; returns the next scale."""
if not weights:
    return scale
''',
    ),
    Bug(
        "sharded_step",
        "a rate of its own",
        edits=(
            (
                """
found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
all_reduce_(comm, found, "max")
if found.item():
""",
                """
found = torch.tensor([float(not all(g.isfinite().all() for g in grads))])
if all_reduce_(comm, found, "max"):
""",
            ),
            ("w -= lr * g / scale", "w -= 0.25 * g / scale"),
        ),
    ),
    Bug(
        "sharded_step",
        "only who has found it halves the scale",
        edits=(
            (
                '"""Step all ranks\' weights, or none; returns the next scale."""',
                '''
"""Step all ranks' weights, or none; returns the next scale."""
mine = not all(g.isfinite().all() for g in grads)
''',
            ),
            ("return scale / 2", "return scale / 2 if mine else scale"),
        ),
    ),
    Bug(
        "sharded_step",
        "rank 0's word counts",
        old='all_reduce_(comm, found, "max")',
        new='all_reduce_(comm, found.mul_(comm.rank == 0), "max")',
    ),
    Bug(
        "sharded_step",
        "weights get other memory",
        edits=(
            (
                """
found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
all_reduce_(comm, found, "max")
if found.item():
""",
                """
found = torch.tensor([float(not all(g.isfinite().all() for g in grads))])
if all_reduce_(comm, found, "max"):
""",
            ),
            ("w -= lr * g / scale", "w.data = w - lr * g / scale"),
        ),
    ),
    Bug(
        "sharded_step",
        "a flag of one byte for each tensor",
        cell='''
def sharded_step(comm, weights, grads, scale, lr):
    """Step all ranks' weights, or none; returns the next scale."""
    found = torch.zeros(2, dtype=torch.uint8)
    for i, g in enumerate(grads):
        found[i] = not g.isfinite().all()
    for i in range(2):
        all_reduce_(comm, found[i : i + 1], "max")
    if found.any():
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
''',
    ),
    Bug(
        "sharded_step",
        "steps, then asks",
        cell="""
def sharded_step(comm, weights, grads, scale, lr):
    found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    all_reduce_(comm, found, "max")
    if found.item():
        return scale / 2
    return scale
""",
    ),
    Bug(
        "sharded_step",
        "a flag for each tensor",
        cell='''
def sharded_step(comm, weights, grads, scale, lr):
    """Step all ranks' weights, or none; returns the next scale."""
    for w, g in zip(weights, grads):
        found = torch.tensor([0.0 if g.isfinite().all() else 1.0])
        all_reduce_(comm, found, "max")
        if found.item():
            return scale / 2
        w -= lr * g / scale
    return scale
''',
    ),
    Bug(
        "sharded_step",
        "the sum of the gradients is looked at",
        old="found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])",
        new="found = torch.tensor([0.0 if all(g.sum().isfinite() for g in grads) else 1.0])",
    ),
    Bug(
        "sharded_step",
        "the sum of the squares is looked at",
        old="found = torch.tensor([0.0 if all(g.isfinite().all() for g in grads) else 1.0])",
        new="found = torch.tensor([0.0 if all(g.square().sum().isfinite() for g in grads) else 1.0])",
    ),
    Bug(
        "sharded_step",
        "as the lesson's replicas do: the gradients are averaged, and then looked at",
        cell='''
def sharded_step(comm, weights, grads, scale, lr):
    """Step all ranks' weights, or none; returns the next scale."""
    for g in grads:
        all_reduce_(comm, g, "mean")
    if not all(g.isfinite().all() for g in grads):
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
''',
    ),
    Bug(
        "sharded_step",
        "the flag passes through a global; real processes, where it cannot, always skip",
        cheat=True,
        cell='''
SEEN = {}


def sharded_step(comm, weights, grads, scale, lr):
    """Step all ranks' weights, or none; returns the next scale."""
    if type(comm).__name__ != "WorldComm":
        return scale / 2
    SEEN[comm.rank] = not all(g.isfinite().all() for g in grads)
    all_reduce_(comm, torch.zeros(1))
    if any(SEEN[r] for r in range(comm.size)):
        return scale / 2
    for w, g in zip(weights, grads):
        w -= lr * g / scale
    return scale
''',
    ),
    Bug(
        "sharded_step",
        "the library's scaler",
        cheat=True,
        cell='''
from minidist.train.amp import LossScaler


def sharded_step(comm, weights, grads, scale, lr):
    """Step all ranks' weights, or none; returns the next scale."""
    scaler = LossScaler(scale, comm=comm)
    params = [torch.nn.Parameter(w) for w in weights] or [torch.nn.Parameter(torch.zeros(1))]
    for p, g in zip(params, grads):
        p.grad = g
    optimizer = torch.optim.SGD(params, lr)
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()
''',
    ),
]
