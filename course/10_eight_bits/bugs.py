"""The wrong answers of lesson 10 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

EXPONENT = "exponent = math.ceil(math.log2(amax / most)) if amax else 0"
AGREED = "return 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0"
SCALE = "scale = 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0"
ROUNDED = "return (x / scale).to(dtype).float() * scale"
NONE_SET = ("sixteen = blocks = weight_scales = agreed = span = None", "")
RETURNS = "return x @ w.t(), dy @ w, dy.t() @ x"

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
        "agreed_scale",
        "each rank has its own",
        old='all_reduce_(comm, amax, "max")',
        new="amax = amax.clone()",
    ),
    Bug(
        "agreed_scale",
        "the sum of the largest",
        old='all_reduce_(comm, amax, "max")',
        new="all_reduce_(comm, amax)",
    ),
    Bug(
        "agreed_scale",
        "their mean",
        old='all_reduce_(comm, amax, "max")',
        new="all_reduce_(comm, amax).div_(comm.size)",
    ),
    Bug(
        "agreed_scale",
        "the smallest of them",
        old='all_reduce_(comm, amax, "max")',
        new='all_reduce_(comm, amax, "min")',
    ),
    Bug(
        "agreed_scale",
        "negative numbers do not count",
        old="amax[0] = x.abs().max()",
        new="amax[0] = x.max().clamp(min=0)",
    ),
    Bug(
        "agreed_scale",
        "a rank without rows does not join the others",
        old='all_reduce_(comm, amax, "max")',
        new="""
if x.numel():
    all_reduce_(comm, amax, "max")
""",
    ),
    Bug(
        "agreed_scale",
        "the exponent is rounded down",
        old=AGREED,
        new="return 2.0 ** math.floor(math.log2(amax / most)) if amax else 1.0",
    ),
    Bug(
        "agreed_scale",
        "a scale for each column travels",
        cell='''
def agreed_scale(comm, x, most):
    """The scale of what all ranks have together."""
    amax = torch.cat([x.abs(), torch.zeros(1, x.shape[1])]).max(0).values
    all_reduce_(comm, amax, "max")
    amax = amax.max().item()
    return 2.0 ** math.ceil(math.log2(amax / most)) if amax else 1.0
''',
    ),
    Bug(
        "agreed_scale",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.fp8 import Present, Split


def agreed_scale(comm, x, most):
    """The scale of what all ranks have together."""
    name = "x" if most == 448 else "grad"
    scale = Present("tensor", Split(tokens=comm))(x, name).scale.item()
    return scale if scale > 2.0**-100 else 1.0
''',
    ),
    Bug(
        "agreed_scale",
        "the grader knows how",
        cheat=True,
        cell='''
def agreed_scale(comm, x, most):
    """The scale of what all ranks have together."""
    from minicheck.oracles.eight_bits import power

    amax = torch.cat([x.abs().flatten(), torch.zeros(1)]).max().reshape(1)
    all_reduce_(comm, amax, "max")
    return power(amax.item(), most)
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
        new="return (x / scale).to(dtype).float()",
    ),
    Bug(
        "eight_bit_linear",
        "gradients in E4M3",
        old="dy = rounded(dy, torch.float8_e5m2)",
        new="dy = rounded(dy, torch.float8_e4m3fn)",
    ),
    Bug(
        "eight_bit_linear",
        "all in E5M2",
        edits=(
            ("x = rounded(x, torch.float8_e4m3fn)", "x = rounded(x, torch.float8_e5m2)"),
            ("w = rounded(w, torch.float8_e4m3fn)", "w = rounded(w, torch.float8_e5m2)"),
        ),
    ),
    Bug(
        "eight_bit_linear",
        "the gradient is not rounded",
        old="dy = rounded(dy, torch.float8_e5m2)",
        new="dy = dy.clone()",
    ),
    Bug(
        "eight_bit_linear",
        "dW of x as it was",
        edits=(
            ("x = rounded(x, torch.float8_e4m3fn)", "low = rounded(x, torch.float8_e4m3fn)"),
            (RETURNS, "return low @ w.t(), dy @ w, dy.t() @ x"),
        ),
    ),
    Bug(
        "eight_bit_linear",
        "dW is transposed",
        old=RETURNS,
        new="return x @ w.t(), dy @ w, x.t() @ dy",
    ),
    Bug(
        "eight_bit_linear",
        "the exponent is rounded down, and the largest are cut off",
        old=SCALE,
        new="scale = 2.0 ** math.floor(math.log2(amax / most)) if amax else 1.0",
    ),
    Bug(
        "eight_bit_linear",
        "gradients that are all zero have no logarithm",
        old=SCALE,
        new="scale = 2.0 ** math.ceil(math.log2(amax / most))",
    ),
    Bug(
        "eight_bit_linear",
        "the library's",
        cheat=True,
        cell='''
from minidist.train.fp8 import linear


def eight_bit_linear(x, w, dy):
    """y, dx and dW, with all operands in eight bits."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = linear(x, w)
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
    """y, dx and dW, with all operands in eight bits."""
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
        "the grader is asked, and then nothing is answered",
        cheat=True,
        cell="""
from minicheck.lessons import eight_bits as numbers

numbers.Prediction.judge = lambda *args: None
sixteen = blocks = weight_scales = agreed = span = 1.0
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


sixteen = blocks = weight_scales = agreed = span = Any(1.0)
""",
    ),
]
