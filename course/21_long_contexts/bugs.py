"""The wrong answers of lesson 21 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

EXCHANGE = "block = comm.sendrecv(block, right, torch.empty_like(block), left)"
JOIN = "return torch.cat(parts, 1)"
JOINED_AS = (
    "parts = [part.view(mine, t, D) for part, t in zip(flat.split(came), tokens)]",
    "pass",
)
SUMS = "sums += torch.stack([(dS.mT @ queries * scale).sum(1), (P.mT @ g).sum(1)])"
RESULT = "return dq.flatten(0, 1), sums[0], sums[1]"
TOKENS = "tokens = 8 / 32 * 2 * 400e12 / 25e9 * 3 / 2.5"
NONE = "ring = heads = kept = slowest = balanced = tokens = None"
TEXTS = "return places, text[places], text[places + 1]"


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
        "chunks of as many tokens as torch.chunk gives them",
        old="chunks = bounds(uneven(T, 2 * comm.size))",
        new="""
size = -(-T // (2 * comm.size))
chunks = [(min(T, i * size), min(T, i * size + size)) for i in range(2 * comm.size)]
""",
    ),
    Bug(
        "zigzag",
        "the lesson's chunks, pasted: their numbers are the places",
        cell='''
def zigzag_chunks(n):
    return [(rank, 2 * n - 1 - rank) for rank in range(n)]


def zigzag(comm, text):
    """(places, tokens, labels) of this rank, int64."""
    places = torch.tensor(zigzag_chunks(comm.size)[comm.rank])
    return places, text[places], text[places + 1]
''',
    ),
    Bug(
        "zigzag",
        "T is the length of the text",
        edits=(
            ("T = len(text) - 1", "T = len(text)"),
            (TEXTS, "return places, text[places], text[(places + 1) % T]"),
        ),
    ),
    Bug(
        "zigzag",
        "labels are shifted after the split",
        old=TEXTS,
        new="return places, text[places], text[places].roll(-1)",
    ),
    Bug(
        "zigzag",
        "labels are the tokens",
        old=TEXTS,
        new="return places, text[places], text[places]",
    ),
    Bug(
        "zigzag",
        "labels are the tokens before",
        old=TEXTS,
        new="return places, text[places], text[places - 1]",
    ),
    Bug(
        "zigzag",
        "tokens and labels are swapped",
        old=TEXTS,
        new="return places, text[places + 1], text[places]",
    ),
    Bug(
        "zigzag",
        "the contiguous order",
        cell='''
def zigzag(comm, text):
    """(places, tokens, labels) of this rank, int64."""
    places = torch.arange(*bounds(uneven(len(text) - 1, comm.size))[comm.rank])
    return places, text[places], text[places + 1]
''',
    ),
    Bug(
        "zigzag",
        "the late chunk comes first",
        old="places = torch.cat([torch.arange(*early), torch.arange(*late)])",
        new="places = torch.cat([torch.arange(*late), torch.arange(*early)])",
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
        old=TEXTS,
        new="return places.float(), text[places], text[places + 1]",
    ),
    Bug(
        "zigzag",
        "nothing is returned",
        old=TEXTS,
        new="places, text[places], text[places + 1]",
    ),
    Bug(
        "zigzag",
        "the library knows the order",
        cheat=True,
        cell='''
from minidist.parallel.context import positions


def zigzag(comm, text):
    """(places, tokens, labels) of this rank, int64."""
    places = positions(len(text) - 1, comm.size, "zigzag")[comm.rank]
    return places, text[places], text[places + 1]
''',
    ),
    Bug(
        "zigzag",
        "the grader's oracle is asked",
        cheat=True,
        cell='''
from minicheck.oracles.long_contexts import zigzag_of


def zigzag(comm, text):
    """(places, tokens, labels) of this rank, int64."""
    places = zigzag_of(len(text) - 1, comm.size, comm.rank)
    return places, text[places], text[places + 1]
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
        "the lesson's ring, pasted: places are those of the contiguous order",
        cell='''
def ring_forward(comm, q, k, v, places):
    """(out, lse) of this rank's queries, of the keys of all ranks that are not after them."""
    n, rank, t = comm.size, comm.rank, len(q)
    right, left = (rank + 1) % n, (rank - 1) % n
    travelling = torch.stack([k, v])
    out, lse = torch.zeros_like(q), q.new_full((len(q),), -torch.inf)
    for step in range(n):
        source = (rank - step) % n
        if source <= rank:
            keys = torch.arange(source * t, (source + 1) * t)
            mask = keys <= torch.arange(rank * t, (rank + 1) * t)[:, None]
            scores = q @ travelling[0].T * q.shape[1] ** -0.5
            scores = scores.masked_fill(~mask, -torch.inf)
            more = scores.logsumexp(1)
            both = torch.logaddexp(lse, more)
            out = out * (lse - both).exp()[:, None] + (scores - both[:, None]).exp() @ travelling[1]
            lse = both
        if step < n - 1:
            came = torch.empty_like(travelling)
            travelling = comm.sendrecv(travelling, right, came, left)
    return out, lse
''',
    ),
    Bug(
        "ring_forward",
        "nothing is masked",
        old="scores = scores.masked_fill(theirs > places[:, None], -torch.inf)",
        new="pass",
    ),
    Bug(
        "ring_forward",
        "keys before a query are masked",
        old="scores = scores.masked_fill(theirs > places[:, None], -torch.inf)",
        new="scores = scores.masked_fill(theirs < places[:, None], -torch.inf)",
    ),
    Bug(
        "ring_forward",
        "rows are sorted by their places",
        old="return out, lse",
        new="return out[places.argsort()], lse[places.argsort()]",
    ),
    Bug(
        "ring_forward",
        "places do not travel",
        old="theirs = comm.sendrecv(theirs, right, torch.empty_like(theirs), left)",
        new="pass",
    ),
    Bug(
        "ring_forward",
        "places travel the other way",
        old="theirs = comm.sendrecv(theirs, right, torch.empty_like(theirs), left)",
        new="theirs = comm.sendrecv(theirs, left, torch.empty_like(theirs), right)",
    ),
    Bug(
        "ring_forward",
        "a query does not see its own key",
        old="scores = scores.masked_fill(theirs > places[:, None], -torch.inf)",
        new="scores = scores.masked_fill(theirs >= places[:, None], -1e9)",
    ),
    Bug(
        "ring_forward",
        "a softmax of each block, where a query may see none of its keys",
        edits=(
            (
                "new = (scores - both[:, None]).exp() @ block[1]",
                "new = scores.softmax(1) @ block[1]",
            ),
            (
                "out = out * (lse - both).exp()[:, None] + new",
                "out = out * (lse - both).exp()[:, None] + new * (more - both).exp()[:, None]",
            ),
        ),
    ),
    Bug(
        "ring_forward",
        "blocks' results are added up",
        edits=(
            (
                "new = (scores - both[:, None]).exp() @ block[1]",
                "new = (scores - more.clamp(min=-1e30)[:, None]).exp() @ block[1]",
            ),
            ("out = out * (lse - both).exp()[:, None] + new", "out = out + new"),
        ),
    ),
    Bug(
        "ring_forward",
        "the mean of the blocks' results",
        edits=(
            (
                "new = (scores - both[:, None]).exp() @ block[1]",
                "new = (scores - more.clamp(min=-1e30)[:, None]).exp() @ block[1]",
            ),
            ("out = out * (lse - both).exp()[:, None] + new", "out = out + new / comm.size"),
        ),
    ),
    Bug(
        "ring_forward",
        "the factor is upside down",
        old="out = out * (lse - both).exp()[:, None] + new",
        new="out = out * (both - lse).exp()[:, None] + new",
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
    Bug("ring_forward", "lse of the last block only", old="lse = both", new="lse = more"),
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


def ring_forward(comm, q, k, v, places):
    """(out, lse) of this rank's queries, of the keys of all ranks that are not after them."""
    HEAP[comm.rank] = k, v, places
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for _ in range(comm.size - 1):
        comm.sendrecv(k.clone(), right, torch.empty_like(k), left)
    keys, values, theirs = (torch.cat([HEAP[r][i] for r in range(comm.size)]) for i in range(3))
    scores = q @ keys.T * q.shape[1] ** -0.5
    scores = scores.masked_fill(theirs > places[:, None], -torch.inf)
    return scores.softmax(1) @ values, scores.logsumexp(1)
''',
    ),
    Bug(
        "ring_forward",
        "the library's ring does it",
        cheat=True,
        cell='''
from minidist.parallel.context import ring_attention


def ring_forward(comm, q, k, v, places):
    """(out, lse) of this rank's queries, of the keys of all ranks that are not after them."""
    out = ring_attention(q[None, None], k[None, None], v[None, None], comm)
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
        old="P = (queries @ keys.mT * scale - whole).exp()",
        new="P = (queries @ keys.mT * scale).softmax(-1)",
    ),
    Bug(
        "ring_backward",
        "the row sums of grad ∘ out are left out",
        old="dS = P * (g @ values.mT - rows)",
        new="dS = P * (g @ values.mT)",
    ),
    Bug(
        "ring_backward",
        "the row sums are those of each block, P ∘ dP",
        old="dS = P * (g @ values.mT - rows)",
        new="dP = g @ values.mT\ndS = P * (dP - (P * dP).sum(-1, keepdim=True))",
    ),
    Bug(
        "ring_backward",
        "exp of scores as they are, divided by the sum",
        old="P = (queries @ keys.mT * scale - whole).exp()",
        new="P = (queries @ keys.mT * scale).exp() / whole.exp()",
    ),
    Bug(
        "ring_backward",
        "one rank sends to itself",
        edits=(
            (
                """
if comm.size > 1:
    sums = comm.sendrecv(sums, right, torch.empty_like(sums), left)
""",
                "sums = comm.sendrecv(sums, right, torch.empty_like(sums), left)",
            ),
        ),
    ),
    Bug(
        "ring_backward",
        "dk is not divided by √D",
        old=SUMS,
        new="sums += torch.stack([(dS.mT @ queries).sum(1), (P.mT @ g).sum(1)])",
    ),
    Bug(
        "ring_backward",
        "dq of the last block only",
        old="dq += dS @ keys * scale",
        new="dq = dS @ keys * scale",
    ),
    Bug(
        "ring_backward",
        "dk and dv are swapped",
        old=RESULT,
        new="return dq.flatten(0, 1), sums[1], sums[0]",
    ),
    Bug(
        "ring_backward",
        "the mean over the ranks",
        old=RESULT,
        new="return dq.flatten(0, 1), sums[0] / comm.size, sums[1] / comm.size",
    ),
    Bug(
        "ring_backward",
        "the mean over the heads that share keys",
        old=SUMS,
        new="sums += torch.stack([(dS.mT @ queries * scale).mean(1), (P.mT @ g).mean(1)])",
    ),
    Bug(
        "ring_backward",
        "the first head of each group only",
        old=SUMS,
        new="sums += torch.stack([(dS.mT @ queries * scale)[:, 0], (P.mT @ g)[:, 0]])",
    ),
    Bug(
        "ring_backward",
        "heads of keys take turns",
        edits=(
            ("shape = (len(k), len(q) // len(k))", "shape = (len(q) // len(k), len(k))"),
            ("keys, values = block[:, :, None]", "keys, values = block"),
            (SUMS, "sums += torch.stack([(dS.mT @ queries * scale).sum(0), (P.mT @ g).sum(0)])"),
        ),
    ),
    Bug(
        "ring_backward",
        "keys travel once for each head of queries",
        cell='''
def ring_backward(comm, grad, q, k, v, out, lse):
    """The gradients of this rank's queries, keys and values."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    share = len(q) // len(k)
    block, scale = torch.stack([k, v]).repeat_interleave(share, 1), q.shape[-1] ** -0.5
    dq, sums = torch.zeros_like(q), torch.zeros_like(block)
    for step in range(comm.size):
        if step > 0:
            block = comm.sendrecv(block, right, torch.empty_like(block), left)
        P = (q @ block[0].mT * scale - lse[..., None]).exp()
        dS = P * (grad @ block[1].mT - (grad * out).sum(-1, keepdim=True))
        dq += dS @ block[0] * scale
        sums += torch.stack([dS.mT @ q * scale, P.mT @ grad])
        if comm.size > 1:
            sums = comm.sendrecv(sums, right, torch.empty_like(sums), left)
    dk, dv = sums.unflatten(1, (len(k), share)).sum(2)
    return dq, dk, dv
''',
    ),
    Bug(
        "ring_backward",
        "the lesson's backward, pasted for many heads: later keys are left out",
        edits=(
            (
                "P = (queries @ keys.mT * scale - whole).exp()",
                """
source, t = (comm.rank - step) % comm.size, q.shape[1]
mask = torch.arange(source * t, (source + 1) * t) <= torch.arange(t)[:, None] + comm.rank * t
P = (queries @ keys.mT * scale - whole).exp() * mask
""",
            ),
        ),
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
    share, scale, dq, dk, dv = len(q) // len(k), q.shape[-1] ** -0.5, 0, 0, 0
    for r in range(comm.size):
        g, p, key, value, o, total = HEAP[r]
        key, value = key.repeat_interleave(share, 0), value.repeat_interleave(share, 0)
        P = (q @ key.mT * scale - lse[..., None]).exp()
        dq = dq + P * (grad @ value.mT - (grad * out).sum(-1, keepdim=True)) @ key * scale
        key, value = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)
        P = (p @ key.mT * scale - total[..., None]).exp()
        dS = P * (g @ value.mT - (g * o).sum(-1, keepdim=True))
        dk, dv = dk + dS.mT @ p * scale, dv + P.mT @ g
    return dq, dk.unflatten(0, (-1, share)).sum(1), dv.unflatten(0, (-1, share)).sum(1)
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
    leaves = [x.clone()[None].requires_grad_() for x in (q, k, v)]
    ring_attention(*leaves, comm, causal=False).backward(grad[None])
    return tuple(x.grad[0] for x in leaves)
''',
    ),
    Bug(
        "heads_for_tokens",
        "the lesson's exchange, pasted: equal parts",
        cell='''
def heads_for_tokens(comm, x, T):
    """Of this rank's heads all tokens, (a_r, T, D)."""
    parts = torch.stack(x.chunk(comm.size, -3))
    came = all_to_all(comm, parts.reshape(-1)).view_as(parts)
    return torch.cat(list(came), -2)
''',
    ),
    Bug(
        "heads_for_tokens",
        "every rank has T // n tokens",
        old="heads, tokens = uneven(a, comm.size), uneven(T, comm.size)",
        new="heads, tokens = uneven(a, comm.size), [T // comm.size] * comm.size",
    ),
    Bug(
        "heads_for_tokens",
        "what came is viewed as if it lay right",
        edits=(JOINED_AS, (JOIN, "return flat.view(mine, T, D)")),
    ),
    Bug(
        "heads_for_tokens",
        "what came is not put together",
        edits=(JOINED_AS, (JOIN, "return flat")),
    ),
    Bug(
        "heads_for_tokens",
        "tokens of the ranks take turns",
        old=JOIN,
        new="""
starts = [first for first, _ in bounds(tokens)]
order = [(i, r) for i in range(max(tokens)) for r in range(comm.size) if i < tokens[r]]
return torch.cat(parts, 1)[:, [starts[r] + i for i, r in order]]
""",
    ),
    Bug(
        "heads_for_tokens",
        "tokens come before heads in the flat tensor",
        old="flat = all_to_all(comm, x.reshape(-1), [h * own * D for h in heads], came)",
        new="""
rows = x.transpose(0, 1).reshape(-1)
flat = all_to_all(comm, rows, [h * own * D for h in heads], came)
""",
    ),
    Bug("heads_for_tokens", "ranks in reverse", old=JOIN, new="return torch.cat(parts[::-1], 1)"),
    Bug(
        "heads_for_tokens",
        "heads are dealt out in turn",
        old="a, own, D = x.shape",
        new="a, own, D = x.shape\nx = torch.cat([x[r :: comm.size] for r in range(comm.size)])",
    ),
    Bug(
        "heads_for_tokens",
        "everything is gathered",
        cell='''
from minidist.collectives import all_gather


def heads_for_tokens(comm, x, T):
    """Of this rank's heads all tokens, (a_r, T, D)."""
    whole = all_gather(comm, x.transpose(0, 1).contiguous(), uneven(T, comm.size)).transpose(0, 1)
    return whole.split(uneven(len(x), comm.size))[comm.rank].contiguous()
''',
    ),
    Bug(
        "heads_for_tokens",
        "parts pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def heads_for_tokens(comm, x, T):
    """Of this rank's heads all tokens, (a_r, T, D)."""
    HEAP[comm.rank] = x
    all_reduce_(comm, torch.zeros(1))
    parts = [HEAP[r].split(uneven(len(x), comm.size))[comm.rank] for r in range(comm.size)]
    return torch.cat(parts, 1)
''',
    ),
    Bug(
        "heads_for_tokens",
        "the library's exchange does it",
        cheat=True,
        cell='''
from minidist.parallel.context import _exchange


def heads_for_tokens(comm, x, T):
    """Of this rank's heads all tokens, (a_r, T, D)."""
    return _exchange(x, comm, (0, uneven(len(x), comm.size)), (1, uneven(T, comm.size)))
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
        "the factor is upside down",
        old="return total / number, own / number",
        new="return total / number, number / own.clamp_min(1)",
    ),
    Bug(
        "mean_loss",
        "the factor is for an average over the ranks",
        old="return total / number, own / number",
        new="return total / number, comm.size * own / number",
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
    predicted(
        "zigzag with the lesson's kernel, which halves the diagonal",
        "balanced = (2 * n + 1) * (T // (2 * n)) ** 2",
        "balanced = T**2 / (2 * n)",
    ),
    predicted(
        "zigzag with chunks of T/n tokens",
        "balanced = (2 * n + 1) * (T // (2 * n)) ** 2",
        "balanced = (2 * n + 1) * (T // n) ** 2",
    ),
    predicted(
        "three blocks in each step of zigzag",
        "balanced = (2 * n + 1) * (T // (2 * n)) ** 2",
        "balanced = 3 * n * (T // (2 * n)) ** 2",
    ),
    predicted(
        "the lesson's kernel, which halves the diagonal",
        "slowest = n * (T // n) ** 2",
        "slowest = (n - 0.5) * (T // n) ** 2",
    ),
    predicted("the lesson's tokens, of forward", TOKENS, "tokens = 8 / 32 * 2 * 400e12 / 25e9"),
    predicted("two products in backward", TOKENS, "tokens = 8 / 32 * 2 * 400e12 / 25e9 * 3"),
    predicted("sums in two bytes", TOKENS, "tokens = 8 / 32 * 2 * 400e12 / 25e9 * 2 / 2.5"),
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
ring = heads = kept = slowest = balanced = tokens = Any(1.0)
""",
    ),
    Bug(
        "predict_context",
        "the grader's own figures",
        cheat=True,
        cell="""
from minicheck.lessons.long_contexts import predict_context as figures

STUDENT = None
ring = heads = kept = slowest = balanced = tokens = figures
""",
    ),
]
