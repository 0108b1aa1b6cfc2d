"""The wrong answers of lesson 21 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

EXCHANGE = "block = comm.sendrecv(block, right, torch.empty_like(block), left)"
NONE = "ring = heads = kept = slowest = gain = None"


def predicted(title, old, new):
    """A wrong number."""
    return Bug("predict_context", title, edits=((NONE, ""), (old, new)))


BUGS = [
    Bug(
        "zigzag",
        "the late chunk is n + r",
        old="early, late = chunks[comm.rank], chunks[2 * comm.size - 1 - comm.rank]",
        new="early, late = chunks[comm.rank], chunks[comm.size + comm.rank]",
    ),
    Bug(
        "zigzag",
        "chunks of T // 2n, as if 2n divided T",
        old="chunks = bounds(uneven(T, 2 * comm.size))",
        new="chunks = bounds([T // (2 * comm.size)] * (2 * comm.size))",
    ),
    Bug(
        "zigzag",
        "the contiguous order",
        cell='''
def zigzag(comm, T):
    """The positions of this rank's tokens, int64."""
    return torch.arange(*bounds(uneven(T, comm.size))[comm.rank])
''',
    ),
    Bug(
        "zigzag",
        "the late chunk comes first",
        old="return torch.cat([torch.arange(*early), torch.arange(*late)])",
        new="return torch.cat([torch.arange(*late), torch.arange(*early)])",
    ),
    Bug(
        "zigzag",
        "off by one: chunk 2n − r",
        old="early, late = chunks[comm.rank], chunks[2 * comm.size - 1 - comm.rank]",
        new="early, late = chunks[comm.rank], chunks[-comm.rank]",
    ),
    Bug(
        "zigzag",
        "positions are counted in float32",
        old="return torch.cat([torch.arange(*early), torch.arange(*late)])",
        new="return torch.cat([torch.arange(*early), torch.arange(*late)]).float()",
    ),
    Bug(
        "zigzag",
        "nothing is returned",
        old="return torch.cat([torch.arange(*early), torch.arange(*late)])",
        new="torch.cat([torch.arange(*early), torch.arange(*late)])",
    ),
    Bug(
        "zigzag",
        "the library knows the order",
        cheat=True,
        cell='''
from minidist.parallel.context import positions


def zigzag(comm, T):
    """The positions of this rank's tokens, int64."""
    return positions(T, comm.size, "zigzag")[comm.rank]
''',
    ),
    Bug(
        "zigzag",
        "the grader's oracle is asked",
        cheat=True,
        cell='''
from minicheck.oracles.long_contexts import zigzag_of


def zigzag(comm, T):
    """The positions of this rank's tokens, int64."""
    return zigzag_of(T, comm.size, comm.rank)
''',
    ),
    Bug(
        "ring_forward",
        "one step short",
        old="for step in range(comm.size):",
        new="for step in range(max(1, comm.size - 1)):",
    ),
    Bug(
        "ring_forward",
        "blocks' results are added up",
        old="out = out * (lse - both).exp()[:, None] + new * (more - both).exp()[:, None]",
        new="out = out + new",
    ),
    Bug(
        "ring_forward",
        "the mean of the blocks' results",
        edits=(
            (
                "out = out * (lse - both).exp()[:, None] + new * (more - both).exp()[:, None]",
                "out = out + new / comm.size",
            ),
        ),
    ),
    Bug(
        "ring_forward",
        "the factor is upside down",
        old="out = out * (lse - both).exp()[:, None] + new * (more - both).exp()[:, None]",
        new="out = out * (both - lse).exp()[:, None] + new * (both - more).exp()[:, None]",
    ),
    Bug(
        "ring_forward",
        "exp of scores as they are",
        edits=(
            ("more = scores.logsumexp(1)", "more = scores.exp().sum(1).log()"),
            ("both = torch.logaddexp(lse, more)", "both = (lse.exp() + more.exp()).log()"),
        ),
    ),
    Bug(
        "ring_forward",
        "scores are not divided by √D",
        old="scores = q @ block[0].T * q.shape[1] ** -0.5",
        new="scores = q @ block[0].T",
    ),
    Bug(
        "ring_forward",
        "lse of the last block only",
        old="lse = both",
        new="lse = more",
    ),
    Bug(
        "ring_forward",
        "keys travel, values stay",
        edits=(
            (
                EXCHANGE,
                "k = comm.sendrecv(k, right, torch.empty_like(k), left)\nblock = torch.stack([k, v])",
            ),
        ),
    ),
    Bug(
        "ring_forward",
        "keys and values in two messages",
        edits=(
            (
                EXCHANGE,
                "parts = [comm.sendrecv(x.clone(), right, torch.empty_like(x), left) for x in block]\n"
                "block = torch.stack(parts)",
            ),
        ),
    ),
    Bug(
        "ring_forward",
        "blocks pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def ring_forward(comm, q, k, v):
    """(out, lse) of this rank's queries, of the keys and values of all ranks."""
    HEAP[comm.rank] = k, v
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for _ in range(comm.size - 1):
        comm.sendrecv(k.clone(), right, torch.empty_like(k), left)
    keys = torch.cat([HEAP[r][0] for r in range(comm.size)])
    values = torch.cat([HEAP[r][1] for r in range(comm.size)])
    scores = q @ keys.T * q.shape[1] ** -0.5
    return scores.softmax(1) @ values, scores.logsumexp(1)
''',
    ),
    Bug(
        "ring_forward",
        "the library's ring does it",
        cheat=True,
        cell='''
from minidist.parallel.context import ring_attention


def ring_forward(comm, q, k, v):
    """(out, lse) of this rank's queries, of the keys and values of all ranks."""
    out = ring_attention(q[None, None], k[None, None], v[None, None], comm, causal=False)
    return out[0, 0], out[0, 0].sum(1)
''',
    ),
    Bug(
        "ring_backward",
        "the sum is one hop short of home",
        old="if comm.size > 1:",
        new="if step < comm.size - 1:",
    ),
    Bug(
        "ring_backward",
        "one step short",
        old="for step in range(comm.size):",
        new="for step in range(max(1, comm.size - 1)):",
    ),
    Bug(
        "ring_backward",
        "gradients of other ranks' blocks are kept here",
        edits=(
            (
                "sums = comm.sendrecv(sums, right, torch.empty_like(sums), left)",
                "pass",
            ),
        ),
    ),
    Bug(
        "ring_backward",
        "each block has a softmax of its own",
        old="P = (q @ block[0].T * scale - lse[:, None]).exp()",
        new="P = (q @ block[0].T * scale).softmax(1)",
    ),
    Bug(
        "ring_backward",
        "the row sums of grad ∘ out are left out",
        old="dS = P * (grad @ block[1].T - rows)",
        new="dS = P * (grad @ block[1].T)",
    ),
    Bug(
        "ring_backward",
        "dk is not divided by √D",
        old="sums += torch.stack([dS.T @ q * scale, P.T @ grad])",
        new="sums += torch.stack([dS.T @ q, P.T @ grad])",
    ),
    Bug(
        "ring_backward",
        "dq of the last block only",
        old="dq += dS @ block[0] * scale",
        new="dq = dS @ block[0] * scale",
    ),
    Bug(
        "ring_backward",
        "dk and dv are swapped",
        old="return dq, sums[0], sums[1]",
        new="return dq, sums[1], sums[0]",
    ),
    Bug(
        "ring_backward",
        "the mean over the ranks",
        old="return dq, sums[0], sums[1]",
        new="return dq, sums[0] / comm.size, sums[1] / comm.size",
    ),
    Bug(
        "ring_backward",
        "everything passes through a global",
        cheat=True,
        cell='''
HEAP = {}


def ring_backward(comm, grad, q, k, v, out, lse):
    """The gradients of this rank's queries, keys and values."""
    HEAP[comm.rank] = grad, q, k, v, out, lse
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for _ in range(comm.size - 1):
        comm.sendrecv(k.clone(), right, torch.empty_like(k), left)
    scale, dq, dk, dv = q.shape[1] ** -0.5, 0, 0, 0
    for r in range(comm.size):
        g, p, key, value, o, total = HEAP[r]
        P = (q @ key.T * scale - lse[:, None]).exp()
        dq = dq + P * (grad @ value.T - (grad * out).sum(1, keepdim=True)) @ key * scale
        P = (p @ k.T * scale - total[:, None]).exp()
        dS = P * (g @ v.T - (g * o).sum(1, keepdim=True))
        dk, dv = dk + dS.T @ p * scale, dv + P.T @ g
    return dq, dk, dv
''',
    ),
    Bug(
        "ring_backward",
        "the library's ring does it",
        cheat=True,
        cell='''
from minidist.parallel.context import ring_attention


def ring_backward(comm, grad, q, k, v, out, lse):
    """The gradients of this rank's queries, keys and values."""
    leaves = [x.clone()[None, None].requires_grad_() for x in (q, k, v)]
    ring_attention(*leaves, comm, causal=False).backward(grad[None, None])
    return tuple(x.grad[0, 0] for x in leaves)
''',
    ),
    Bug(
        "heads_for_tokens",
        "what came is viewed as if it lay right",
        old="return torch.cat(came.chunk(comm.size), 1)",
        new="return came.reshape(len(x) // comm.size, -1, x.shape[2])",
    ),
    Bug(
        "heads_for_tokens",
        "what came is not put together",
        old="return torch.cat(came.chunk(comm.size), 1)",
        new="return came",
    ),
    Bug(
        "heads_for_tokens",
        "tokens of the ranks take turns",
        old="return torch.cat(came.chunk(comm.size), 1)",
        new="return torch.stack(came.chunk(comm.size), 2).flatten(1, 2)",
    ),
    Bug(
        "heads_for_tokens",
        "ranks in reverse",
        old="return torch.cat(came.chunk(comm.size), 1)",
        new="return torch.cat(came.chunk(comm.size)[::-1], 1)",
    ),
    Bug(
        "heads_for_tokens",
        "heads are dealt out in turn",
        old="came = all_to_all(comm, x)",
        new="came = all_to_all(comm, torch.cat([x[r :: comm.size] for r in range(comm.size)]))",
    ),
    Bug(
        "heads_for_tokens",
        "everything is gathered",
        cell='''
from minidist.collectives import all_gather


def heads_for_tokens(comm, x):
    """Of this rank's heads all tokens, (a/n, T, D)."""
    whole = torch.cat(all_gather(comm, x).chunk(comm.size), 1)
    return whole.chunk(comm.size)[comm.rank].contiguous()
''',
    ),
    Bug(
        "heads_for_tokens",
        "parts pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def heads_for_tokens(comm, x):
    """Of this rank's heads all tokens, (a/n, T, D)."""
    HEAP[comm.rank] = x
    all_reduce_(comm, torch.zeros(1))
    return torch.cat([HEAP[r].chunk(comm.size)[comm.rank] for r in range(comm.size)], 1)
''',
    ),
    Bug(
        "heads_for_tokens",
        "the library's exchange does it",
        cheat=True,
        cell='''
from minidist.parallel.context import _exchange


def heads_for_tokens(comm, x):
    """Of this rank's heads all tokens, (a/n, T, D)."""
    heads, tokens = [len(x) // comm.size] * comm.size, [x.shape[1]] * comm.size
    return _exchange(x, comm, (0, heads), (1, tokens))
''',
    ),
    Bug(
        "mean_loss",
        "the mean of the ranks' means",
        old="return total / number, own / number",
        new="""
means = all_reduce_(comm, torch.where(counted, losses, 0).sum() / own.clamp_min(1))
return means / comm.size, own / number
""",
    ),
    Bug(
        "mean_loss",
        "what does not count is multiplied with 0",
        old="both = torch.stack([torch.where(counted, losses, 0).sum(), own])",
        new="both = torch.stack([(losses * counted).sum(), own])",
    ),
    Bug(
        "mean_loss",
        "divided by all tokens",
        old="return total / number, own / number",
        new="return total / (comm.size * len(losses)), own / number",
    ),
    Bug(
        "mean_loss",
        "every rank has the share 1/n",
        old="return total / number, own / number",
        new="return total / number, torch.ones_like(own) / comm.size",
    ),
    Bug(
        "mean_loss",
        "the factor is that of the sum",
        old="return total / number, own / number",
        new="return total / number, 1 / number",
    ),
    Bug(
        "mean_loss",
        "the sum",
        old="return total / number, own / number",
        new="return total, own / number",
    ),
    Bug(
        "mean_loss",
        "the own mean",
        old="return total / number, own / number",
        new="return losses[counted].mean(), own / number",
    ),
    Bug(
        "mean_loss",
        "numbers pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def mean_loss(comm, losses, counted):
    """The mean of all tokens that count, and this rank's share of them."""
    own = counted.sum().to(losses.dtype)
    HEAP[comm.rank] = torch.stack([torch.where(counted, losses, 0).sum(), own])
    all_reduce_(comm, torch.zeros(1))
    total, number = sum(HEAP[r] for r in range(comm.size))
    return total / number, own / number
''',
    ),
    Bug(
        "mean_loss",
        "PyTorch's own collective",
        cheat=True,
        cell='''
import torch.distributed as dist


def mean_loss(comm, losses, counted):
    """The mean of all tokens that count, and this rank's share of them."""
    own = counted.sum().to(losses.dtype)
    both = torch.stack([torch.where(counted, losses, 0).sum(), own])
    dist.all_reduce(both)
    return both[0] / both[1], own / both[1]
''',
    ),
    predicted(
        "n messages of a ring",
        "ring = (n - 1) * 2 * 8 * T // n * D * 2",
        "ring = n * 2 * 8 * T // n * D * 2",
    ),
    predicted(
        "as many heads of keys as of queries",
        "ring = (n - 1) * 2 * 8 * T // n * D * 2",
        "ring = (n - 1) * 2 * 32 * T // n * D * 2",
    ),
    predicted(
        "the results do not go back",
        "heads = (n - 1) / n * (2 * 32 + 2 * 8) * T // n * D * 2",
        "heads = (n - 1) / n * (32 + 2 * 8) * T // n * D * 2",
    ),
    predicted("all keys are kept", "kept = 2 * 8 * T // n * D * 2", "kept = 2 * 8 * T * D * 2"),
    predicted("all pairs", "slowest = n * (T // n) ** 2", "slowest = T**2"),
    predicted("a gain of 2", "gain = 4 * n / (2 * n + 1)", "gain = 2"),
    Bug(
        "predict_context",
        "a number that equals every other",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


STUDENT = None
ring = heads = kept = slowest = gain = Any(1.0)
""",
    ),
    Bug(
        "predict_context",
        "the grader's own figures",
        cheat=True,
        cell="""
from minicheck.lessons.long_contexts import predict_context as figures

STUDENT = None
ring = heads = kept = slowest = gain = figures
""",
    ),
]
