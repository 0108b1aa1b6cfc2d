"""The wrong answers of lesson 10 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, asks_the_grader, equals_everything

EXPONENT = "exponent = math.ceil(math.log2(amax / most)) if amax else 0"
AGREED = 'all_reduce_(comm, amaxes, "max")'
COLUMN = "columns.append(2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0)"
WHOLE = "whole = 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0"
SCALE = "scale = 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0"
ROUNDED = "rows.append((row / scale).to(dtype).float() * scale)"
FORWARD = "y = rounded(x, forward) @ rounded(w, forward).t()"
INPUT = "dx = rounded(dy, backward) @ rounded(w.t(), forward).t()"
WEIGHT = "dw = rounded(dy.t(), backward) @ rounded(x.t(), forward).t()"
ASKED = ("sixteen", "blocks", "row_scales", "weight_scales", "agreed", "span")
NONE_SET = (" = ".join(ASKED) + " = None", "")

BUGS = [
    Bug(
        "block_scales",
        "the exponent is rounded down",
        old=EXPONENT,
        new="exponent = math.floor(math.log2(amax / most)) if amax else 0",
    ),
    Bug(
        "block_scales",
        "the exponent is rounded to the nearest",
        old=EXPONENT,
        new="exponent = round(math.log2(amax / most)) if amax else 0",
    ),
    Bug(
        "block_scales",
        "negative numbers do not count",
        old="amax = block.abs().max().item()",
        new="amax = max(0.0, block.max().item())",
    ),
    Bug(
        "block_scales",
        "no power of two",
        old="line.append(2.0**exponent)",
        new="line.append(amax / most if amax else 1.0)",
    ),
    Bug(
        "block_scales",
        "the inverse",
        old="line.append(2.0**exponent)",
        new="line.append(2.0**-exponent)",
    ),
    Bug(
        "block_scales",
        "always one power of two more than the largest whole logarithm",
        old=EXPONENT,
        new="exponent = math.floor(math.log2(amax / most)) + 1 if amax else 0",
    ),
    Bug(
        "block_scales",
        "zeros have no logarithm",
        old=EXPONENT,
        new="exponent = math.ceil(math.log2(amax / most))",
    ),
    Bug(
        "block_scales",
        "rows and columns are mistaken",
        edits=(
            ("for strip in x.split(rows, 0):", "for strip in x.split(columns, 0):"),
            ("for block in strip.split(columns, 1):", "for block in strip.split(rows, 1):"),
        ),
    ),
    Bug(
        "block_scales",
        "what is left over belongs to no block",
        old="for block in strip.split(columns, 1):",
        new="for block in strip[:, : strip.shape[1] // columns * columns].split(columns, 1):",
    ),
    Bug(
        "block_scales",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.fp8 import Grain, largest, scale_of


def block_scales(x, rows, columns, most):
    """The smallest power of two for each block, so that its numbers are within most."""
    dtype = torch.float8_e4m3fn if most == 448 else torch.float8_e5m2
    amax = largest(x, Grain(rows, columns))
    return torch.where(amax == 0, 1.0, scale_of(amax, dtype))
''',
    ),
    Bug(
        "block_scales",
        "the grader knows how",
        cheat=True,
        cell='''
def block_scales(x, rows, columns, most):
    """The smallest power of two for each block, so that its numbers are within most."""
    from minicheck.oracles.eight_bits import scales

    return scales(x, rows, columns, most)
''',
    ),
    Bug(
        "block_scales",
        "the lesson's scale for a tensor, for each block",
        cell='''
def scale_for(amax, most):
    smallest = amax / most
    power = torch.exp2(smallest.log2().ceil())
    return torch.where(amax > 0, power, 1.0)


def block_scales(x, rows, columns, most):
    """The smallest power of two for each block, so that its numbers are within most."""
    found = []
    for strip in x.split(rows, 0):
        found.append([scale_for(block.abs().max(), most) for block in strip.split(columns, 1)])
    return torch.tensor(found)
''',
    ),
    Bug(
        "block_scales",
        "the lesson's scale for a tensor, for all",
        cell='''
def block_scales(x, rows, columns, most):
    """The smallest power of two for each block, so that its numbers are within most."""
    amax = x.abs().max()
    scale = 2.0 ** math.ceil(math.log2(amax.item() / most)) if amax else 1.0
    return torch.full((-(-len(x) // rows), -(-x.shape[1] // columns)), scale)
''',
    ),
    Bug(
        "agreed_scales",
        "each rank has its own",
        old=AGREED,
        new="amaxes = amaxes.clone()",
    ),
    Bug(
        "agreed_scales",
        "the sum of the largest",
        old=AGREED,
        new="all_reduce_(comm, amaxes)",
    ),
    Bug(
        "agreed_scales",
        "their mean",
        old=AGREED,
        new="all_reduce_(comm, amaxes).div_(comm.size)",
    ),
    Bug(
        "agreed_scales",
        "the smallest of them",
        old=AGREED,
        new='all_reduce_(comm, amaxes, "min")',
    ),
    Bug(
        "agreed_scales",
        "negative numbers do not count",
        old="amaxes = torch.cat([x.abs(), torch.zeros(1, x.shape[1])]).amax(0)",
        new="amaxes = torch.cat([x, torch.zeros(1, x.shape[1])]).amax(0)",
    ),
    Bug(
        "agreed_scales",
        "a rank without rows does not join the others",
        old=AGREED,
        new="""
if x.numel():
    all_reduce_(comm, amaxes, "max")
""",
    ),
    Bug(
        "agreed_scales",
        "the exponents are rounded down",
        edits=(
            (COLUMN, COLUMN.replace("ceil", "floor")),
            (WHOLE, WHOLE.replace("ceil", "floor")),
        ),
    ),
    Bug(
        "agreed_scales",
        "the exponent of the whole is rounded down",
        old=WHOLE,
        new=WHOLE.replace("ceil", "floor"),
    ),
    Bug(
        "agreed_scales",
        "each column has the scale of the whole",
        old="return whole, torch.tensor(columns)",
        new="return whole, torch.full((len(columns),), whole)",
    ),
    Bug(
        "agreed_scales",
        "the whole has the scale of the first column",
        old="return whole, torch.tensor(columns)",
        new="return columns[0], torch.tensor(columns)",
    ),
    Bug(
        "agreed_scales",
        "the whole first, and then the columns: two all-reduces",
        old=AGREED,
        new="""
whole = amaxes.max().reshape(1)
all_reduce_(comm, whole, "max")
all_reduce_(comm, amaxes, "max")
""",
    ),
    Bug(
        "agreed_scales",
        "one all-reduce for each column",
        old=AGREED,
        new="""
for i in range(len(amaxes)):
    all_reduce_(comm, amaxes[i : i + 1], "max")
""",
    ),
    Bug(
        "agreed_scales",
        "the largest magnitudes of ranks travel a hundred times",
        old=AGREED,
        new="""
many = amaxes.repeat(100)
all_reduce_(comm, many, "max")
amaxes = many[: len(amaxes)]
""",
    ),
    Bug(
        "agreed_scales",
        "the lesson's: amax of this rank's rows, and one scale",
        cell='''
def agreed_scales(comm, x, most):
    """The scale of what all ranks have together, and that of each column."""
    amax = x.abs().max().reshape(1)
    all_reduce_(comm, amax, "max")
    scale = torch.exp2((amax / most).log2().ceil())
    return scale.item(), scale.expand(x.shape[1]).clone()
''',
    ),
    Bug(
        "agreed_scales",
        "zeros have no logarithm",
        edits=((COLUMN, "columns.append(2.0 ** math.ceil(math.log2(amax / most)))"),),
    ),
    Bug(
        "agreed_scales",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.fp8 import E4M3, E5M2, Present, Split, largest, scale_of


def agreed_scales(comm, x, most):
    """The scale of what all ranks have together, and that of each column."""
    name = "x" if most == 448 else "grad"
    present = Present("row", Split(tokens=comm))
    amaxes = present.agreed(largest(x.t(), present.grains[name]), name, turned=True)
    scales = scale_of(amaxes, E4M3 if most == 448 else E5M2).flatten()
    scales = torch.where(scales > 2.0**-100, scales, 1.0)
    return scales.max().item(), scales
''',
    ),
    Bug(
        "agreed_scales",
        "the grader knows how",
        cheat=True,
        cell='''
def agreed_scales(comm, x, most):
    """The scale of what all ranks have together, and that of each column."""
    from minicheck.oracles.eight_bits import power

    amaxes = torch.cat([x.abs(), torch.zeros(1, x.shape[1])]).amax(0)
    all_reduce_(comm, amaxes, "max")
    return power(amaxes.max().item(), most), torch.tensor([power(a, most) for a in amaxes.tolist()])
''',
    ),
    Bug(
        "eight_bit_linear",
        "no scales",
        old=SCALE,
        new="scale = 1.0",
    ),
    Bug(
        "eight_bit_linear",
        "the scales are forgotten after rounding",
        old=ROUNDED,
        new="rows.append((row / scale).to(dtype).float())",
    ),
    Bug(
        "eight_bit_linear",
        "gradients in E4M3",
        old="backward = torch.float8_e5m2",
        new="backward = torch.float8_e4m3fn",
    ),
    Bug(
        "eight_bit_linear",
        "all in E5M2",
        old="forward = torch.float8_e4m3fn",
        new="forward = torch.float8_e5m2",
    ),
    Bug(
        "eight_bit_linear",
        "the formats are exchanged",
        edits=(
            ("forward = torch.float8_e4m3fn", "forward = torch.float8_e5m2"),
            ("backward = torch.float8_e5m2", "backward = torch.float8_e4m3fn"),
        ),
    ),
    Bug(
        "eight_bit_linear",
        "the gradient is not rounded",
        edits=(
            (INPUT, "dx = dy @ rounded(w.t(), forward).t()"),
            (WEIGHT, "dw = dy.t() @ rounded(x.t(), forward).t()"),
        ),
    ),
    Bug(
        "eight_bit_linear",
        "dW of x as it was",
        old=WEIGHT,
        new="dw = rounded(dy.t(), backward) @ x",
    ),
    Bug(
        "eight_bit_linear",
        "W is not rounded",
        edits=(
            (FORWARD, "y = rounded(x, forward) @ w.t()"),
            (INPUT, "dx = rounded(dy, backward) @ w"),
        ),
    ),
    Bug(
        "eight_bit_linear",
        "dW is transposed",
        old="return y, dx, dw",
        new="return y, dx, dw.t()",
    ),
    Bug(
        "eight_bit_linear",
        "the exponent is rounded down, and the largest are cut off",
        old=SCALE,
        new=SCALE.replace("ceil", "floor"),
    ),
    Bug(
        "eight_bit_linear",
        "gradients that are all zero have no logarithm",
        old=SCALE,
        new="scale = 2.0 ** math.ceil(math.log2(amax / most))",
    ),
    Bug(
        "eight_bit_linear",
        "what forward has rounded is taken in backward, too",
        edits=(
            (INPUT, "dx = rounded(dy, backward) @ rounded(w, forward)"),
            (WEIGHT, "dw = rounded(dy, backward).t() @ rounded(x, forward)"),
        ),
    ),
    Bug(
        "eight_bit_linear",
        "x is rounded once, for dW with the scales of tokens",
        old=WEIGHT,
        new="dw = rounded(dy.t(), backward) @ rounded(x, forward)",
    ),
    Bug(
        "eight_bit_linear",
        "dy is rounded once, for dW with the scales of tokens",
        old=WEIGHT,
        new="dw = rounded(dy, backward).t() @ rounded(x.t(), forward).t()",
    ),
    Bug(
        "eight_bit_linear",
        "W is rounded once, for dx with the scales of outputs",
        old=INPUT,
        new="dx = rounded(dy, backward) @ rounded(w, forward)",
    ),
    Bug(
        "eight_bit_linear",
        "the lesson's layer, with one scale for a tensor",
        cell='''
def scaled(x, dtype):
    amax = x.abs().max()
    power = torch.exp2((amax / torch.finfo(dtype).max).log2().ceil())
    scale = torch.where(amax > 0, power, 1.0)
    return (x / scale).to(dtype).float() * scale


class EightBitLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, low):
        low_x = low(x, torch.float8_e4m3fn)
        low_weight = low(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(low_x, low_weight)
        ctx.low = low
        return low_x @ low_weight.t()

    @staticmethod
    def backward(ctx, dy):
        low_x, low_weight = ctx.saved_tensors
        low_dy = ctx.low(dy, torch.float8_e5m2)
        return low_dy @ low_weight, low_dy.t() @ low_x, None


def eight_bit_linear(x, w, dy):
    """y, dx and dW, with all operands in eight bits, by rows."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = EightBitLinear.apply(x, w, scaled)
    y.backward(dy)
    return y.detach(), x.grad, w.grad
''',
    ),
    Bug(
        "eight_bit_linear",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.fp8 import Present, linear


def eight_bit_linear(x, w, dy):
    """y, dx and dW, with all operands in eight bits, by rows."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = linear(x, w, scaling=Present("row"))
    y.backward(dy)
    return y.detach(), x.grad, w.grad
''',
    ),
    Bug(
        "eight_bit_linear",
        "the grader knows how",
        cheat=True,
        cell='''
def eight_bit_linear(x, w, dy):
    """y, dx and dW, with all operands in eight bits, by rows."""
    from minicheck.oracles.eight_bits import gradients

    return gradients(x, w, dy)
''',
    ),
    Bug(
        "delayed_scale",
        "this step's amax counts at once",
        old="amax = max(self.steps, default=0.0)",
        new="amax = max([*self.steps, *self.now], default=0.0)",
    ),
    Bug(
        "delayed_scale",
        "only the last step counts",
        old="amax = max(self.steps, default=0.0)",
        new="amax = self.steps[-1] if self.steps else 0.0",
    ),
    Bug(
        "delayed_scale",
        "nothing is forgotten",
        old="self.steps = [*self.steps, max(self.now)][-self.length :]",
        new="self.steps = [*self.steps, max(self.now)]",
    ),
    Bug(
        "delayed_scale",
        "an inf is remembered",
        edits=(
            (
                "if self.now and all(math.isfinite(amax) for amax in self.now):",
                "if self.now:",
            ),
            (
                "amax = max(self.steps, default=0.0)",
                "amax = min(max(self.steps, default=0.0), 1e30)",
            ),
        ),
    ),
    Bug(
        "delayed_scale",
        "the last tensor of a step counts",
        old="self.steps = [*self.steps, max(self.now)][-self.length :]",
        new="self.steps = [*self.steps, self.now[-1]][-self.length :]",
    ),
    Bug(
        "delayed_scale",
        "what was seen stays for the next step",
        cell='''
class DelayedScale:
    """A scale from the steps before."""

    def __init__(self, length, most):
        self.length = length
        self.most = most
        self.steps = []
        self.now = []

    @property
    def scale(self):
        """The scale of this step."""
        amax = max(self.steps, default=0.0)
        return 2.0 ** math.ceil(math.log2(amax / self.most)) if amax else 1.0

    def see(self, x):
        """Write down the amax of a tensor."""
        self.now.append(x.abs().max().item())

    def step(self):
        """The end of a step."""
        if self.now and all(math.isfinite(amax) for amax in self.now):
            self.steps = [*self.steps, max(self.now)][-self.length :]

    def state(self):
        """The amaxes of the steps that count, for a checkpoint."""
        return list(self.steps)

    def load(self, state):
        """Go on from a checkpoint."""
        self.steps = list(state)
        self.now = []
''',
    ),
    Bug(
        "delayed_scale",
        "a step that sees nothing counts as zero",
        old="if self.now and all(math.isfinite(amax) for amax in self.now):",
        new="""
self.now = self.now or [0.0]
if all(math.isfinite(amax) for amax in self.now):
""",
    ),
    Bug(
        "delayed_scale",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.fp8 import E4M3, E5M2, Delayed, update


class DelayedScale:
    """A scale from the steps before."""

    def __init__(self, length, most):
        dtype = E4M3 if most == 448 else E5M2
        self.inner = Delayed(length, formats={"x": dtype, "weight": dtype, "grad": dtype})

    @property
    def scale(self):
        """The scale of this step."""
        return self.inner(torch.zeros(1, 1), "x", recorded=False).scale.item()

    def see(self, x):
        """Write down the amax of a tensor."""
        self.inner(x, "x")

    def step(self):
        """The end of a step."""
        update([self.inner])

    def state(self):
        """The amaxes of the steps that count, for a checkpoint."""
        return [amax.item() for amax in self.inner.histories["x"].steps]

    def load(self, state):
        """Go on from a checkpoint."""
        self.inner.histories["x"].steps.clear()
        self.inner.histories["x"].steps.extend(torch.tensor([[amax]]) for amax in state)
''',
    ),
    Bug(
        "delayed_scale",
        "the grader knows how",
        cheat=True,
        cell='''
def DelayedScale(length, most):
    """A scale from the steps before."""
    from minicheck.oracles.eight_bits import History

    return History(length, most)
''',
    ),
    Bug(
        "delayed_scale",
        "the checkpoint keeps the largest amax alone",
        old="return list(self.steps)",
        new="return [max(self.steps)] if self.steps else []",
    ),
    Bug(
        "delayed_scale",
        "the checkpoint keeps the scale",
        old="return list(self.steps)",
        new="return [self.scale]",
    ),
    Bug(
        "delayed_scale",
        "the checkpoint is the list itself, which goes on growing",
        edits=(
            ("return list(self.steps)", "return self.steps"),
            (
                "self.steps = [*self.steps, max(self.now)][-self.length :]",
                """
self.steps.append(max(self.now))
self.steps[: -self.length] = []
""",
            ),
        ),
    ),
    Bug(
        "delayed_scale",
        "what is loaded comes behind what was seen before",
        old="self.steps = list(state)",
        new="self.steps = [*self.steps, *state]",
    ),
    Bug(
        "delayed_scale",
        "loading does nothing",
        edits=(("self.steps = list(state)", "pass"),),
    ),
    Bug(
        "delayed_scale",
        "the newest comes first",
        old="return list(self.steps)",
        new="return self.steps[::-1]",
    ),
    Bug(
        "delayed_scale",
        "the lesson's, which writes down each tensor for itself",
        cell='''
from collections import deque


class DelayedScale:
    """A scale from the steps before."""

    def __init__(self, length, most):
        self.history = deque(maxlen=length)
        self.most = most

    @property
    def scale(self):
        """The scale of this step."""
        amax = max(self.history, default=0.0)
        return 2.0 ** math.ceil(math.log2(amax / self.most)) if amax else 1.0

    def see(self, x):
        """Write down the amax of a tensor."""
        amax = x.abs().max().item()
        if math.isfinite(amax):
            self.history.append(amax)

    def step(self):
        """The end of a step."""

    def state(self):
        """The amaxes of the steps that count, for a checkpoint."""
        return list(self.history)

    def load(self, state):
        """Go on from a checkpoint."""
        self.history.clear()
        self.history.extend(state)
''',
    ),
    Bug(
        "predict_eight_bits",
        "what fp32 would keep",
        edits=(NONE_SET, ("sixteen = 2 * tokens * inputs", "sixteen = 4 * tokens * inputs")),
    ),
    Bug(
        "predict_eight_bits",
        "the scales of blocks take no bytes",
        edits=(
            NONE_SET,
            ("blocks = tokens * inputs + 4 * tokens * inputs / 128", "blocks = tokens * inputs"),
        ),
    ),
    Bug(
        "predict_eight_bits",
        "a scale has one byte",
        edits=(
            NONE_SET,
            (
                "blocks = tokens * inputs + 4 * tokens * inputs / 128",
                "blocks = tokens * inputs + tokens * inputs / 128",
            ),
        ),
    ),
    Bug(
        "predict_eight_bits",
        "W in blocks of 1 × 128",
        edits=(
            NONE_SET,
            (
                "weight_scales = (inputs / 128) * (outputs / 128)",
                "weight_scales = inputs * outputs / 128",
            ),
        ),
    ),
    Bug(
        "predict_eight_bits",
        "ranks agree on the scale of W, too",
        edits=(NONE_SET, ("agreed = 2 * 2 * (n - 1) * 4", "agreed = 3 * 2 * (n - 1) * 4")),
    ),
    Bug(
        "predict_eight_bits",
        "each rank sends the number 2(n − 1) times",
        edits=(NONE_SET, ("agreed = 2 * 2 * (n - 1) * 4", "agreed = n * 2 * 2 * (n - 1) * 4")),
    ),
    Bug(
        "predict_eight_bits",
        "down to the smallest number, which has one digit",
        edits=(NONE_SET, ("span = 448 / 2**-6", "span = 448 / 2**-9")),
    ),
    Bug(
        "predict_eight_bits",
        "each matrix is rounded once, by rows",
        edits=(
            NONE_SET,
            ("row_scales = 2 * (tokens + inputs + outputs)", "row_scales = 2 * tokens + outputs"),
        ),
    ),
    Bug(
        "predict_eight_bits",
        "W is rounded once",
        edits=(
            NONE_SET,
            (
                "row_scales = 2 * (tokens + inputs + outputs)",
                "row_scales = 2 * tokens + inputs + outputs",
            ),
        ),
    ),
    Bug(
        "predict_eight_bits",
        "one scale for each matrix",
        edits=(NONE_SET, ("row_scales = 2 * (tokens + inputs + outputs)", "row_scales = 3")),
    ),
    Bug(
        "predict_eight_bits",
        "the grader is asked, and then nothing is answered",
        cheat=True,
        cell="""
from minicheck.lessons import eight_bits as numbers

numbers.Prediction.judge = lambda *args: None
sixteen = blocks = row_scales = weight_scales = agreed = span = 1.0
""",
    ),
    Bug(
        "predict_eight_bits",
        "a number that equals every other",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


sixteen = blocks = row_scales = weight_scales = agreed = span = Any(1.0)
""",
    ),
    asks_the_grader("predict_eight_bits", "eight_bits", *ASKED),
    equals_everything("predict_eight_bits", *ASKED),
]
