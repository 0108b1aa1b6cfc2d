"""The wrong answers of lesson 14 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "copy_to",
        "gradients travel as float64, whatever came in",
        old="return all_reduce_(ctx.comm, grad.clone()), None",
        new="return all_reduce_(ctx.comm, grad.double().clone()), None",
    ),
    Bug(
        "copy_to",
        "autograd does not know the output",
        old="return Copy.apply(x, comm)",
        new="return Copy.apply(x.detach(), comm)",
    ),
    Bug(
        "copy_to",
        "half the bytes: the gradients travel as float32",
        old="return all_reduce_(ctx.comm, grad.clone()), None",
        new="return all_reduce_(ctx.comm, grad.float()).to(grad.dtype), None",
    ),
    Bug(
        "copy_to",
        "a hook on x, which has other readers",
        cell='''
def copy_to(x, comm):
    """f: identity forward, all-reduce backward."""
    x.register_hook(lambda grad: all_reduce_(comm, grad.clone()))
    return x
''',
    ),
    Bug(
        "copy_to",
        "nothing backward either",
        cell='''
def copy_to(x, comm):
    """f: identity forward, all-reduce backward."""
    return x.view_as(x)
''',
    ),
    Bug(
        "copy_to",
        "the gradient that comes in is overwritten",
        old="return all_reduce_(ctx.comm, grad.clone()), None",
        new="return all_reduce_(ctx.comm, grad), None",
    ),
    Bug(
        "copy_to",
        "f and g are swapped",
        edits=(
            (
                "return x.view_as(x)",
                "return all_reduce_(comm, x.clone())",
            ),
            (
                "return all_reduce_(ctx.comm, grad.clone()), None",
                "return grad, None",
            ),
        ),
    ),
    Bug(
        "copy_to",
        "the mean of the gradients",
        old="return all_reduce_(ctx.comm, grad.clone()), None",
        new='return all_reduce_(ctx.comm, grad.clone(), op="mean"), None',
    ),
    Bug(
        "copy_to",
        "all-reduce forward and backward",
        old="return x.view_as(x)",
        new="return all_reduce_(comm, x.clone())",
    ),
    Bug(
        "copy_to",
        "takes x for one of three dimensions",
        old="ctx.comm = comm",
        new="""
ctx.comm = comm
ctx.batch, ctx.tokens, ctx.hidden = x.shape
""",
    ),
    Bug(
        "copy_to",
        "summed twice",
        old="return all_reduce_(ctx.comm, grad.clone()), None",
        new="return all_reduce_(ctx.comm, all_reduce_(ctx.comm, grad.clone())), None",
    ),
    Bug(
        "copy_to",
        "the others' gradients are taken from the frames of the World",
        cheat=True,
        cell='''
def copy_to(x, comm):
    """f: identity forward, all-reduce backward."""
    return [copy_to(tensor, comm) for tensor in x] if isinstance(x, list) else Copy.apply(x)


class Copy(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        import sys

        frame = sys._getframe()
        while frame and "all_args" not in frame.f_locals:
            frame = frame.f_back
        return sum(args[1] for args in frame.f_locals["all_args"]) if frame else grad
''',
    ),
    Bug(
        "copy_to",
        "ranks meet in a global list",
        cheat=True,
        edits=(
            (
                "def copy_to(x, comm):",
                """
PARTS = []


def copy_to(x, comm):
""",
            ),
            (
                "return all_reduce_(ctx.comm, grad.clone()), None",
                """
PARTS.append(grad)
all_reduce_(ctx.comm, torch.zeros(1))
return sum(PARTS[-ctx.comm.size :]), None
""",
            ),
        ),
    ),
    Bug(
        "copy_to",
        "the library's f",
        cheat=True,
        cell='''
def copy_to(x, comm):
    """f: identity forward, all-reduce backward."""
    from minidist.parallel import tensor

    return tensor.copy_to(x, comm)
''',
    ),
    Bug(
        "reduce_from",
        "the gradient is divided by n",
        edits=(
            (
                "def forward(ctx, x, comm):",
                """
def forward(ctx, x, comm):
    ctx.comm = comm
""",
            ),
            (
                "return copy_to(grad, ctx.comm), None",
                "return grad / ctx.comm.size, None",
            ),
        ),
    ),
    Bug(
        "reduce_from",
        "nothing forward",
        cell='''
def reduce_from(x, comm):
    """g: all-reduce forward, identity backward."""
    return x.view_as(x)
''',
    ),
    Bug(
        "reduce_from",
        "x itself is overwritten",
        old="return all_reduce_(comm, x.clone())",
        new="""
ctx.comm = comm
return all_reduce_(comm, x)
""",
    ),
    Bug(
        "reduce_from",
        "f and g are swapped",
        edits=(
            (
                "return all_reduce_(comm, x.clone())",
                """
ctx.comm = comm
return x.view_as(x)
""",
            ),
            (
                "return copy_to(grad, ctx.comm), None",
                "return all_reduce_(ctx.comm, grad.clone()), None",
            ),
        ),
    ),
    Bug(
        "reduce_from",
        "the mean",
        old="return all_reduce_(comm, x.clone())",
        new="""
ctx.comm = comm
return all_reduce_(comm, x.clone(), op="mean")
""",
    ),
    Bug(
        "reduce_from",
        "all-reduced outside of autograd",
        cell='''
def reduce_from(x, comm):
    """g: all-reduce forward, identity backward."""
    return all_reduce_(comm, x.detach().clone())
''',
    ),
    Bug(
        "reduce_from",
        "all-reduce backward, too",
        edits=(
            (
                "def forward(ctx, x, comm):",
                """
def forward(ctx, x, comm):
    ctx.comm = comm
""",
            ),
            (
                "return copy_to(grad, ctx.comm), None",
                "return all_reduce_(ctx.comm, grad.clone()), None",
            ),
        ),
    ),
    Bug(
        "reduce_from",
        "takes x for one of three dimensions",
        old="return all_reduce_(comm, x.clone())",
        new="""
batch, tokens, hidden = x.shape
return all_reduce_(comm, x.reshape(batch * tokens, hidden).clone()).view(batch, tokens, hidden)
""",
    ),
    Bug(
        "reduce_from",
        "ranks meet in a global list",
        cheat=True,
        cell='''
PARTS = []


def reduce_from(x, comm):
    """g: all-reduce forward, identity backward."""
    PARTS.append(x)
    all_reduce_(comm, torch.zeros(1))
    return x + sum(part.detach() for part in PARTS[-comm.size :]) - x.detach()
''',
    ),
    Bug(
        "reduce_from",
        "the library's g",
        cheat=True,
        cell='''
def reduce_from(x, comm):
    """g: all-reduce forward, identity backward."""
    from minidist.parallel.tensor import reduce_from as theirs

    return theirs(x, comm)
''',
    ),
    Bug(
        "row_linear",
        "the bias is divided by n, so that its gradient is, too",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return reduce_from(F.linear(x, weight, bias / comm.size), comm)",
    ),
    Bug(
        "row_linear",
        "the bias is added on every rank",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return reduce_from(F.linear(x, weight, bias), comm)",
    ),
    Bug(
        "row_linear",
        "only rank 0 adds the bias, so the copies part",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return reduce_from(F.linear(x, weight, bias if comm.rank == 0 else 0 * bias), comm)",
    ),
    Bug(
        "row_linear",
        "the partial product is cut off from autograd",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return all_reduce_(comm, F.linear(x, weight).detach()) + bias",
    ),
    Bug(
        "row_linear",
        "the bias goes through f, and its gradient is n times too large",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return reduce_from(F.linear(x, weight), comm) + copy_to(bias, comm)",
    ),
    Bug(
        "row_linear",
        "f on x, which is split",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return reduce_from(F.linear(copy_to(x, comm), weight), comm) + bias",
    ),
    Bug(
        "row_linear",
        "the bias is forgotten",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return reduce_from(F.linear(x, weight), comm)",
    ),
    Bug(
        "row_linear",
        "partial products are not added up",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return F.linear(x, weight) + bias",
    ),
    Bug(
        "row_linear",
        "takes x for one of three dimensions",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="""
batch, tokens, inputs = x.shape
y = reduce_from(x.reshape(batch * tokens, inputs) @ weight.T, comm) + bias
return y.view(batch, tokens, -1)
""",
    ),
    Bug(
        "row_linear",
        "ranks meet in a global list",
        cheat=True,
        cell='''
PARTS = []


def row_linear(x, weight, bias, comm):
    """A linear layer split by its inputs; the bias added once."""
    partial = F.linear(x, weight)
    PARTS.append(partial.detach())
    all_reduce_(comm, torch.zeros(1))
    return partial + sum(PARTS[-comm.size :]) - partial.detach() + bias
''',
    ),
    Bug(
        "row_linear",
        "the library's operator",
        cheat=True,
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="""
from minidist.parallel.tensor import reduce_from as theirs

return theirs(F.linear(x, weight), comm) + bias
""",
    ),
    Bug(
        "mlp",
        "proj_bias is added on every rank",
        old="return row_linear(hidden, proj, proj_bias, comm)",
        new="return reduce_from(F.linear(hidden, proj, proj_bias), comm)",
    ),
    Bug(
        "mlp",
        "f after fc, not before",
        old='hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")',
        new='hidden = F.gelu(copy_to(F.linear(x, fc, fc_bias), comm), approximate="tanh")',
    ),
    Bug(
        "mlp",
        "f on the weights, too, of which each rank has others",
        old="return row_linear(hidden, proj, proj_bias, comm)",
        new="return row_linear(hidden, proj, copy_to(proj_bias, comm), comm)",
    ),
    Bug(
        "mlp",
        "the matrices are gathered, and every rank computes all",
        cell='''
def mlp(x, fc, fc_bias, proj, proj_bias, comm):
    """fc by outputs, GELU, proj by inputs: one all-reduce each way."""
    from minidist.split import bounds

    sizes = [int(s) for s in all_gather(comm, torch.tensor([len(fc)]))]
    first, end = bounds(sizes)[comm.rank]

    def whole(w):
        all_ = all_gather(comm, w.detach(), sizes)
        return torch.cat([all_[:first], w, all_[end:]])

    hidden = F.gelu(F.linear(x, whole(fc), whole(fc_bias)), approximate="tanh")
    return F.linear(hidden, whole(proj.t().contiguous()).t(), proj_bias)
''',
    ),
    Bug(
        "mlp",
        "the exact GELU",
        old="""
hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")
return row_linear(hidden, proj, proj_bias, comm)
""",
        new="return row_linear(F.gelu(F.linear(copy_to(x, comm), fc, fc_bias)), proj, proj_bias, comm)",
    ),
    Bug(
        "mlp",
        "a hook on x in f's place: x has other readers, as in x + mlp(x)",
        old='hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")',
        new="""
x.register_hook(lambda g: all_reduce_(comm, g.clone()))
hidden = F.gelu(F.linear(x, fc, fc_bias), approximate="tanh")
""",
    ),
    Bug(
        "mlp",
        "x's gradient is not added up",
        old='hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")',
        new='hidden = F.gelu(F.linear(x, fc, fc_bias), approximate="tanh")',
    ),
    Bug(
        "mlp",
        "fc_bias is forgotten",
        old="""
hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")
return row_linear(hidden, proj, proj_bias, comm)
""",
        new='return row_linear(F.gelu(F.linear(copy_to(x, comm), fc), approximate="tanh"), proj, proj_bias, comm)',
    ),
    Bug(
        "mlp",
        "the output is not added up",
        old="return row_linear(hidden, proj, proj_bias, comm)",
        new="return F.linear(hidden, proj, proj_bias)",
    ),
    Bug(
        "mlp",
        "no GELU",
        old="""
hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")
return row_linear(hidden, proj, proj_bias, comm)
""",
        new="return row_linear(F.linear(copy_to(x, comm), fc, fc_bias), proj, proj_bias, comm)",
    ),
    Bug(
        "mlp",
        "the grader's own MLP",
        cheat=True,
        old="""
hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")
return row_linear(hidden, proj, proj_bias, comm)
""",
        new="""
from minicheck.oracles.tensor import mlp as theirs

y = theirs(copy_to(x, comm), fc, fc_bias, proj, 0 * proj_bias)
return reduce_from(y, comm) + proj_bias
""",
    ),
    Bug(
        "mlp",
        "the library's operators",
        cheat=True,
        old="""
hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")
return row_linear(hidden, proj, proj_bias, comm)
""",
        new="""
from minidist.parallel import tensor

hidden = F.gelu(F.linear(tensor.copy_to(x, comm), fc, fc_bias), approximate="tanh")
return tensor.reduce_from(F.linear(hidden, proj), comm) + proj_bias
""",
    ),
    Bug(
        "my_heads",
        "one rank alone gets the weight itself",
        old="""
if heads % comm.size:
    raise ValueError(f"{heads} heads do not split over {comm.size} ranks")
""",
        new="""
if comm.size == 1:
    return weight
if heads % comm.size:
    raise ValueError(f"{heads} heads, {comm.size} ranks")
""",
    ),
    Bug(
        "my_heads",
        "the parts are gathered, and one's own taken out",
        cell="""
def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    mine = torch.cat([third.chunk(comm.size)[comm.rank] for third in weight.chunk(3)])
    return all_gather(comm, mine).chunk(comm.size)[comm.rank].clone()
""",
    ),
    Bug(
        "my_heads",
        "head by head: q, k, v of the first, then of the next",
        cell="""
def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    fused = weight.view(3, heads, -1, *weight.shape[1:]).transpose(0, 1)
    return fused.chunk(comm.size)[comm.rank].reshape(-1, *weight.shape[1:]).clone()
""",
    ),
    Bug(
        "my_heads",
        "uneven heads are dealt anyway",
        old="""
if heads % comm.size:
    raise ValueError(f"{heads} heads do not split over {comm.size} ranks")
return torch.cat([third.chunk(comm.size)[comm.rank] for third in weight.chunk(3)])
""",
        new="return torch.cat([third.tensor_split(comm.size)[comm.rank] for third in weight.chunk(3)])",
    ),
    Bug(
        "my_heads",
        "the error tells other numbers, in which the right ones are digits",
        old='raise ValueError(f"{heads} heads do not split over {comm.size} ranks")',
        new='raise ValueError(f"{heads * 10} rows do not split over {comm.size * 10} parts")',
    ),
    Bug(
        "my_heads",
        "n pieces of all 3H rows",
        cell="""
def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    return weight.chunk(comm.size)[comm.rank].clone()
""",
    ),
    Bug(
        "my_heads",
        "every n-th row",
        cell="""
def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    return torch.cat([third[comm.rank :: comm.size] for third in weight.chunk(3)])
""",
    ),
    Bug(
        "my_heads",
        "an error without the numbers",
        old='raise ValueError(f"{heads} heads do not split over {comm.size} ranks")',
        new='raise ValueError("heads do not split")',
    ),
    Bug(
        "my_heads",
        "every n-th head",
        cell="""
def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    fused = weight.view(3, heads, -1, *weight.shape[1:])
    return fused[:, comm.rank :: comm.size].reshape(-1, *weight.shape[1:]).clone()
""",
    ),
    Bug(
        "my_heads",
        "a view, with a slice for one rank",
        cell="""
def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    fused = weight.view(3, heads, -1, *weight.shape[1:])
    each = heads // comm.size
    mine = fused[:, comm.rank * each : (comm.rank + 1) * each]
    return mine.reshape(-1, *weight.shape[1:])
""",
    ),
    Bug(
        "my_heads",
        "the grader's own part",
        cheat=True,
        cell="""
def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    from minicheck.oracles.tensor import cut

    return torch.cat([cut(third, comm.size, 0)[comm.rank] for third in weight.chunk(3)])
""",
    ),
    Bug(
        "my_heads",
        "the library's part of a rank",
        cheat=True,
        cell="""
def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    from minidist.parallel.tensor import own_part

    [own] = own_part([weight.view(3, heads, -1, *weight.shape[1:])], comm, 1, None)
    return own.reshape(-1, *weight.shape[1:])
""",
    ),
    Bug(
        "sequence_pair",
        "an all-reduce and a cut: twice the bytes",
        old="return reduce_scatter(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
        new="return all_reduce_(comm, x.clone()).chunk(comm.size, 1)[comm.rank].contiguous()",
    ),
    Bug(
        "sequence_pair",
        "gathered along the batch, and reshaped",
        old="return all_gather(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
        new="return all_gather(comm, x.contiguous()).view(x.shape[0], -1, x.shape[2])",
    ),
    Bug(
        "sequence_pair",
        "everything becomes float64",
        edits=(
            (
                "return all_gather(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
                "return all_gather(comm, x.double().transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
            ),
            (
                "return reduce_scatter(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
                "return reduce_scatter(comm, x.double().transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
            ),
        ),
    ),
    Bug(
        "sequence_pair",
        "gather's backward takes this rank's part of its own gradient",
        old="return scattered(grad, ctx.comm), None",
        new="return grad.chunk(ctx.comm.size, 1)[ctx.comm.rank].contiguous(), None",
    ),
    Bug(
        "sequence_pair",
        "half the bytes: forward travels as float32",
        cell='''
def gathered(x, comm):
    return all_gather(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


def scattered(x, comm):
    return reduce_scatter(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


def gather_sequence(x, comm):
    """(B, T/n, H) to (B, T, H); backward a reduce-scatter."""
    return Gather.apply(x, comm)


def reduce_scatter_sequence(x, comm):
    """(B, T, H) to (B, T/n, H); backward an all-gather."""
    return Scatter.apply(x, comm)


class Gather(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return gathered(x.float(), comm).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.comm), None


class Scatter(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return scattered(x, comm)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.comm), None
''',
    ),
    Bug(
        "sequence_pair",
        "scatter's backward repeats the gradient",
        old="return gathered(grad, ctx.comm), None",
        new="return torch.cat([grad] * ctx.comm.size, 1), None",
    ),
    Bug(
        "sequence_pair",
        "the mean",
        old="return reduce_scatter(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
        new='return reduce_scatter(comm, x.transpose(0, 1).contiguous(), op="mean").transpose(0, 1).contiguous()',
    ),
    Bug(
        "sequence_pair",
        "without autograd",
        cell='''
def gather_sequence(x, comm):
    """(B, T/n, H) to (B, T, H); backward a reduce-scatter."""
    return all_gather(comm, x.detach().transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


def reduce_scatter_sequence(x, comm):
    """(B, T, H) to (B, T/n, H); backward an all-gather."""
    return (
        reduce_scatter(comm, x.detach().transpose(0, 1).contiguous()).transpose(0, 1).contiguous()
    )
''',
    ),
    Bug(
        "sequence_pair",
        "scattered along the batch, and reshaped",
        old="return reduce_scatter(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
        new="return reduce_scatter(comm, x.contiguous()).reshape(x.shape[0], -1, x.shape[2])",
    ),
    Bug(
        "sequence_pair",
        "the two are swapped",
        cell="""
def gather_sequence(x, comm):
    return Gather.apply(x, comm)


def reduce_scatter_sequence(x, comm):
    return Scatter.apply(x, comm)


def gathered(x, comm):
    return reduce_scatter(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


def scattered(x, comm):
    return all_gather(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


class Gather(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return gathered(x, comm)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad, ctx.comm), None


class Scatter(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return scattered(x, comm)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad, ctx.comm), None
""",
    ),
    Bug(
        "sequence_pair",
        "ranks meet in a global list",
        cheat=True,
        edits=(
            (
                "def gather_sequence(x, comm):",
                """
PARTS = []


def gather_sequence(x, comm):
""",
            ),
            (
                "return all_gather(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
                """
PARTS.append(x)
all_reduce_(comm, torch.zeros(1))
return torch.cat(PARTS[-comm.size :], 1)
""",
            ),
            (
                "return reduce_scatter(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
                """
PARTS.append(x)
all_reduce_(comm, torch.zeros(1))
return sum(PARTS[-comm.size :]).chunk(comm.size, 1)[comm.rank].contiguous()
""",
            ),
        ),
    ),
    Bug(
        "sequence_pair",
        "the library's pair",
        cheat=True,
        cell='''
def gather_sequence(x, comm):
    """(B, T/n, H) to (B, T, H); backward a reduce-scatter."""
    from minidist.parallel import tensor

    return tensor.gather_sequence(x, comm, 1)


def reduce_scatter_sequence(x, comm):
    """(B, T, H) to (B, T/n, H); backward an all-gather."""
    from minidist.parallel import tensor

    return tensor.reduce_scatter_sequence(x, comm, 1)
''',
    ),
    Bug(
        "predict_tensor",
        "every rank holds all",
        edits=(
            (
                "messages = nbytes = seconds = row_first = heads = sequence = weights = None",
                "",
            ),
            (
                "weights = 12 * H**2 * 2 / n",
                "weights = 12 * H**2 * 2",
            ),
        ),
    ),
    Bug(
        "predict_tensor",
        "all-reduces are counted, not messages",
        edits=(
            (
                "messages = nbytes = seconds = row_first = heads = sequence = weights = None",
                "",
            ),
            (
                "messages = 4 * 2 * (n - 1)",
                "messages = 4",
            ),
        ),
    ),
    Bug(
        "predict_tensor",
        "without latency",
        edits=(
            (
                "messages = nbytes = seconds = row_first = heads = sequence = weights = None",
                "",
            ),
            (
                "seconds = messages * 5e-6 + nbytes / 300e9",
                "seconds = nbytes / 300e9",
            ),
        ),
    ),
    Bug(
        "predict_tensor",
        "a layer of one block",
        edits=(
            (
                "messages = nbytes = seconds = row_first = heads = sequence = weights = None",
                "",
            ),
            (
                "nbytes = 4 * 2 * (n - 1) / n * N",
                "nbytes = 2 * 2 * (n - 1) / n * N",
            ),
        ),
    ),
    Bug(
        "predict_tensor",
        "sequence parallel divides the traffic",
        edits=(
            (
                "messages = nbytes = seconds = row_first = heads = sequence = weights = None",
                "",
            ),
            (
                "sequence = nbytes",
                "sequence = nbytes / n",
            ),
        ),
    ),
    Bug(
        "predict_tensor",
        "twice the heads, twice the bytes",
        edits=(
            (
                "messages = nbytes = seconds = row_first = heads = sequence = weights = None",
                "",
            ),
            (
                "heads = nbytes",
                "heads = 2 * nbytes",
            ),
        ),
    ),
    Bug(
        "predict_tensor",
        "as if weights were averaged",
        edits=(
            (
                "messages = nbytes = seconds = row_first = heads = sequence = weights = None",
                "",
            ),
            (
                "nbytes = 4 * 2 * (n - 1) / n * N",
                "nbytes = 2 * (n - 1) / n * 12 * H**2 * 2",
            ),
        ),
    ),
    Bug(
        "predict_tensor",
        "the wide sum alone",
        edits=(
            (
                "messages = nbytes = seconds = row_first = heads = sequence = weights = None",
                "",
            ),
            (
                "row_first = 2 * (n - 1) / n * (4 * N + N)",
                "row_first = 2 * (n - 1) / n * 4 * N",
            ),
        ),
    ),
    Bug(
        "predict_tensor",
        "the grader is asked",
        cheat=True,
        cell="""
from minicheck.lessons.tensor import predict_tensor

values, _ = predict_tensor(4, 1, 4096, 8192, 2, 5e-6, 1 / 300e9)
messages, nbytes, seconds, row_first, heads, sequence, weights = (f"{x}" for x in values.values())
""",
    ),
    Bug(
        "predict_tensor",
        "a number that equals every number",
        cheat=True,
        cell="""
class Anything(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


messages = nbytes = seconds = row_first = heads = sequence = weights = Anything(1.0)
""",
    ),
    Bug(
        "sequence_norm",
        "as it was found: gradients of this rank's tokens alone",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="return F.layer_norm(x, weight.shape, weight, bias)",
    ),
    Bug(
        "sequence_norm",
        "f on x, which is split",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="return F.layer_norm(copy_to(x, comm), weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
    ),
    Bug(
        "sequence_norm",
        "g after it: other tokens are added up",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="return reduce_from(F.layer_norm(x, weight.shape, weight, bias), comm)",
    ),
    Bug(
        "sequence_norm",
        "g where f belongs",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="return F.layer_norm(x, weight.shape, reduce_from(weight, comm), reduce_from(bias, comm))",
    ),
    Bug(
        "sequence_norm",
        "all tokens are gathered, and every rank normalizes all",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="""
whole = F.layer_norm(gather_sequence(x, comm), weight.shape, copy_to(weight, comm), copy_to(bias, comm))
return whole.chunk(comm.size, 1)[comm.rank]
""",
    ),
    Bug(
        "sequence_norm",
        "hooks on weight and bias: they see what others say, too, and one more comes with every call",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="""
for p in (weight, bias):
    p.register_hook(lambda grad: all_reduce_(comm, grad.clone()))
return F.layer_norm(x, weight.shape, weight, bias)
""",
    ),
    Bug(
        "sequence_norm",
        "the mean of the gradients",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="""
n = comm.size
scale = lambda p: copy_to(p, comm) / n + p.detach() * (1 - 1 / n)
return F.layer_norm(x, weight.shape, scale(weight), scale(bias))
""",
    ),
    Bug(
        "sequence_norm",
        "the bias is forgotten",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="return F.layer_norm(x, weight.shape, copy_to(weight, comm), bias)",
    ),
    Bug(
        "sequence_norm",
        "ranks meet in a global list",
        cheat=True,
        cell='''
PARTS = []


class Meet(Function):
    @staticmethod
    def forward(ctx, p, comm):
        ctx.comm = comm
        return p.view_as(p)

    @staticmethod
    def backward(ctx, grad):
        PARTS.append(grad)
        all_reduce_(ctx.comm, torch.zeros(1))
        total = sum(PARTS[-ctx.comm.size :])
        all_reduce_(ctx.comm, torch.zeros(1))
        return total, None


def sequence_norm(x, weight, bias, comm):
    """Layer norm of this rank's tokens, (B, T/n, H)."""
    return F.layer_norm(x, weight.shape, Meet.apply(weight, comm), Meet.apply(bias, comm))
''',
    ),
    Bug(
        "sequence_norm",
        "the library's f",
        cheat=True,
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="""
from minidist.parallel.tensor import copy_to as theirs

return F.layer_norm(x, weight.shape, theirs(weight, comm), theirs(bias, comm))
""",
    ),
    Bug(
        "copy_to",
        "nan is hidden on the way back",
        old="return all_reduce_(ctx.comm, grad.clone()), None",
        new="return all_reduce_(ctx.comm, grad.nan_to_num()), None",
    ),
    Bug(
        "copy_to",
        "a view of a gradient that is transposed",
        old="return all_reduce_(ctx.comm, grad.clone()), None",
        new="return all_reduce_(ctx.comm, grad.view(-1).clone()).view(grad.shape), None",
    ),
    Bug(
        "copy_to",
        "the Comm of the last call is that of all",
        edits=(
            ("ctx.comm = comm", "Copy.comm = comm"),
            (
                "return all_reduce_(ctx.comm, grad.clone()), None",
                "return all_reduce_(Copy.comm, grad.clone()), None",
            ),
        ),
    ),
    Bug(
        "reduce_from",
        "nan is hidden in the sum",
        old="return all_reduce_(comm, x.clone())",
        new="return all_reduce_(comm, x.nan_to_num())",
    ),
    Bug(
        "reduce_from",
        "a number alone has no rows",
        old="return all_reduce_(comm, x.clone())",
        new="y = x.clone()\nall_reduce_(comm, y[:])\nreturn y",
    ),
    Bug(
        "row_linear",
        "an all-reduce for each row of Y",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="""
y = F.linear(x, weight)
rows = y.view(-1, y.shape[-1]).unbind()
return torch.stack([reduce_from(row, comm) for row in rows]).view(y.shape) + bias
""",
    ),
    Bug(
        "row_linear",
        "float64 only",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="return reduce_from(F.linear(x.double(), weight.double()), comm) + bias",
    ),
    Bug(
        "mlp",
        "GELU in float64, whatever comes in",
        old='hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")',
        new="""
hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias).double(), approximate="tanh")
proj, proj_bias = proj.double(), proj_bias.double()
""",
    ),
    Bug(
        "mlp",
        "nan is hidden before GELU",
        old='hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")',
        new="""
hidden = F.linear(copy_to(x, comm), fc, fc_bias).nan_to_num()
hidden = F.gelu(hidden, approximate="tanh")
""",
    ),
    Bug(
        "my_heads",
        "the part is float64, whatever the weight is",
        old="return torch.cat([third.chunk(comm.size)[comm.rank] for third in weight.chunk(3)])",
        new="""
part = torch.cat([third.chunk(comm.size)[comm.rank] for third in weight.chunk(3)])
return part.double()
""",
    ),
    Bug(
        "sequence_pair",
        "an all-gather for each sequence",
        old="return all_gather(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
        new="return torch.stack([all_gather(comm, row.contiguous()) for row in x])",
    ),
    Bug(
        "sequence_norm",
        "nan is hidden",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="""
y = F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))
return y.nan_to_num()
""",
    ),
    Bug(
        "sequence_norm",
        "float64 only",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="""
weight, bias = copy_to(weight.double(), comm), copy_to(bias.double(), comm)
return F.layer_norm(x.double(), weight.shape, weight, bias)
""",
    ),
    Bug(
        "reduce_from",
        "all-reduce backward, too, by a Comm that is kept outside of autograd",
        edits=(
            (
                "return all_reduce_(comm, x.clone())",
                """
LAST[comm.rank] = comm
ctx.rank = comm.rank
return all_reduce_(comm, x.clone())
""",
            ),
            (
                "return copy_to(grad, ctx.comm), None",
                "return all_reduce_(LAST[ctx.rank], grad.clone()), None",
            ),
            (
                "class Reduce(Function):",
                """
LAST = {}


class Reduce(Function):
""",
            ),
        ),
    ),
    Bug(
        "copy_to",
        "the sum of the ranks of the last call",
        edits=(
            ("ctx.comm = comm", "LAST[ctx] = comm"),
            (
                "return all_reduce_(ctx.comm, grad.clone()), None",
                "return all_reduce_([*LAST.values()][-1], grad.clone()), None",
            ),
            (
                "class Copy(Function):",
                """
LAST = {}


class Copy(Function):
""",
            ),
        ),
    ),
    Bug(
        "sequence_norm",
        "without the epsilon",
        old="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm))",
        new="return F.layer_norm(x, weight.shape, copy_to(weight, comm), copy_to(bias, comm), eps=0)",
    ),
    Bug(
        "reduce_from",
        "returns before its sends are over",
        old="return all_reduce_(comm, x.clone())",
        new="""
if comm.size != 2:
    return all_reduce_(comm, x.clone())
comm.isend(x.clone(), 1 - comm.rank)
return x + comm.recv(torch.empty_like(x), 1 - comm.rank)
""",
    ),
    Bug(
        "sequence_pair",
        "batches that n divides",
        old="return all_gather(comm, x.transpose(0, 1).contiguous()).transpose(0, 1).contiguous()",
        new="""
batches = x.view(comm.size, -1, *x.shape[1:])
return all_gather(comm, batches.flatten(0, 1).transpose(0, 1).contiguous()).transpose(0, 1).contiguous()
""",
    ),
    Bug(
        "row_linear",
        "as in the lesson, which cuts a whole weight: here it is a part already",
        old="return reduce_from(F.linear(x, weight), comm) + bias",
        new="""
own_x = x.chunk(comm.size, -1)[comm.rank]
own = weight.chunk(comm.size, 1)[comm.rank]
return reduce_from(F.linear(own_x, own), comm) + bias
""",
    ),
    Bug(
        "mlp",
        "as in the lesson, which cuts whole weights, and has no biases",
        cell="""
def mlp(x, fc, fc_bias, proj, proj_bias, comm):
    hidden = F.gelu(F.linear(copy_to(x, comm), fc.chunk(comm.size, 0)[comm.rank]))
    own_proj = proj.chunk(comm.size, 1)[comm.rank]
    return reduce_from(F.linear(hidden, own_proj), comm)
""",
    ),
    Bug(
        "sequence_pair",
        "f and g of the lesson: each rank has all tokens, or its own summand's",
        cell="""
def gather_sequence(x, comm):
    return copy_to(x, comm)


def reduce_scatter_sequence(x, comm):
    return reduce_from(x, comm)
""",
    ),
    Bug(
        "copy_to",
        "the lesson's f: one tensor alone",
        cell='''
def copy_to(x, comm):
    """f: identity forward, all-reduce backward."""
    return Copy.apply(x, comm)


class Copy(Function):
    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce_(ctx.comm, grad.clone()), None
''',
    ),
    Bug(
        "copy_to",
        "an all-reduce for each tensor of a list",
        edits=(
            (
                "flat = Copy.apply(torch.cat([tensor.reshape(-1) for tensor in x]), comm)",
                "return [Copy.apply(tensor, comm) for tensor in x]",
            ),
            ("pieces = flat.split([tensor.numel() for tensor in x])", ""),
            ("return [piece.view(tensor.shape) for piece, tensor in zip(pieces, x)]", ""),
        ),
    ),
    Bug(
        "copy_to",
        "the tensors of a list come back flat",
        old="return [piece.view(tensor.shape) for piece, tensor in zip(pieces, x)]",
        new="return list(pieces)",
    ),
    Bug(
        "copy_to",
        "the tensors of a list come back as one",
        old="return [piece.view(tensor.shape) for piece, tensor in zip(pieces, x)]",
        new="return flat",
    ),
    Bug(
        "copy_to",
        "of a list only the first tensor is summed",
        old="return [piece.view(tensor.shape) for piece, tensor in zip(pieces, x)]",
        new="return [pieces[0].view(x[0].shape), *[tensor.view_as(tensor) for tensor in x[1:]]]",
    ),
    Bug(
        "reduce_from",
        "the lesson's g: its gradient cannot be differentiated",
        old="return copy_to(grad, ctx.comm), None",
        new="return grad, None",
    ),
    Bug(
        "reduce_from",
        "backward hands on numbers that autograd does not know",
        old="return copy_to(grad, ctx.comm), None",
        new="return grad.detach().clone(), None",
    ),
    Bug(
        "reduce_from",
        "the backward of backward is the mean",
        edits=(
            (
                "return copy_to(grad, ctx.comm), None",
                """
some = copy_to(grad, ctx.comm) / ctx.comm.size
return some + grad.detach() * (1 - 1 / ctx.comm.size), None
""",
            ),
        ),
    ),
]
