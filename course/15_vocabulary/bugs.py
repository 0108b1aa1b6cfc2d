"""The wrong answers of lesson 15 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "look_up",
        "the first word of the next rank counts as own",
        old="elsewhere = (tokens < first) | (tokens >= end)",
        new="elsewhere = (tokens < first) | (tokens > end)",
    ),
    Bug(
        "look_up",
        "parts of V // n, as if n divided V",
        old="first, end = bounds(uneven(vocab, comm.size))[comm.rank]",
        new="first, end = comm.rank * (vocab // comm.size), (comm.rank + 1) * (vocab // comm.size)",
    ),
    Bug(
        "look_up",
        "the first own word is left out",
        old="elsewhere = (tokens < first) | (tokens >= end)",
        new="elsewhere = (tokens <= first) | (tokens >= end)",
    ),
    Bug(
        "look_up",
        "all rows are gathered",
        cell='''
def look_up(comm, rows, tokens, vocab):
    """The rows of this rank's share of the tokens, (T_r, …, H)."""
    shares = uneven(len(tokens), comm.size)
    return all_gather(comm, rows, sizes=uneven(vocab, comm.size))[tokens.split(shares)[comm.rank]]
''',
    ),
    Bug(
        "look_up",
        "sends the rows as float32",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0).float(), sizes=shares).double()",
    ),
    Bug(
        "look_up",
        "the argument is written to: rows are masked in place",
        old="found = rows[(tokens - first).clamp(0, end - first - 1)]",
        new="""
tokens -= first
found = rows[tokens.clamp_(0, end - first - 1)]
""",
    ),
    Bug(
        "look_up",
        "the largest over the ranks, and not the sum",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new='return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), op="max", sizes=shares)',
    ),
    Bug(
        "look_up",
        "the largest instead of the sum, over parts without a mask",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new='return reduce_scatter(comm, found, op="max", sizes=shares)',
    ),
    Bug(
        "look_up",
        "the mean over the ranks",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new='return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), op="mean", sizes=shares)',
    ),
    Bug(
        "look_up",
        "token mod V_r, and no mask",
        old="""
found = rows[(tokens - first).clamp(0, end - first - 1)]
return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)
""",
        new="""
found = rows[tokens % len(rows)]
return reduce_scatter(comm, found, sizes=shares)
""",
    ),
    Bug(
        "look_up",
        "tokens of other ranks get the nearest row",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new="return reduce_scatter(comm, found, sizes=shares)",
    ),
    Bug(
        "look_up",
        "nothing is returned",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new="reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
    ),
    Bug(
        "look_up",
        "every rank keeps its own",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new="return found.masked_fill(elsewhere[..., None], 0).split(shares)[comm.rank]",
    ),
    Bug(
        "look_up",
        "tokens of other ranks get row 0",
        old="""
found = rows[(tokens - first).clamp(0, end - first - 1)]
return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)
""",
        new="""
found = rows[(tokens - first).masked_fill(elsewhere, 0)]
return reduce_scatter(comm, found, sizes=shares)
""",
    ),
    Bug(
        "look_up",
        "tokens of one dimension or two only",
        cell='''
def look_up(comm, rows, tokens, vocab):
    """The rows of this rank's share of the tokens, (T_r, …, H)."""
    shares = uneven(len(tokens), comm.size)
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    if tokens.dim() == 1:
        elsewhere = ((tokens < first) | (tokens >= end))[:, None]
    else:
        elsewhere = ((tokens < first) | (tokens >= end))[:, :, None]
    found = rows[(tokens - first).clamp(0, end - first - 1)]
    return reduce_scatter(comm, found.masked_fill(elsewhere, 0), sizes=shares)
''',
    ),
    Bug(
        "look_up",
        "rows pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def look_up(comm, rows, tokens, vocab):
    """The rows of this rank's share of the tokens, (T_r, …, H)."""
    shares = uneven(len(tokens), comm.size)
    HEAP[comm.rank] = rows
    all_reduce_(comm, torch.zeros(1))
    return torch.cat([HEAP[r] for r in range(comm.size)])[tokens.split(shares)[comm.rank]]
''',
    ),
    Bug(
        "look_up",
        "the library's embedding does it",
        cheat=True,
        cell='''
from minidist.parallel.vocab import VocabEmbedding


def look_up(comm, rows, tokens, vocab):
    """The rows of this rank's share of the tokens, (T_r, …, H)."""
    shares = uneven(len(tokens), comm.size)
    embedding = VocabEmbedding(vocab, rows.shape[1], comm, dtype=rows.dtype)
    embedding.weight.data.copy_(rows)
    return embedding(tokens).detach().split(shares)[comm.rank]
''',
    ),
    Bug(
        "look_up_gradient",
        "+= with a list of indices adds once",
        old="""
return grad.new_zeros(end - first, grad.shape[-1]).index_add_(
    0, tokens[mine] - first, grad[mine]
)
""",
        new="""
out = grad.new_zeros(end - first, grad.shape[-1])
out[tokens[mine] - first] += grad[mine]
return out
""",
    ),
    Bug(
        "look_up_gradient",
        "the whole gradient is added up over the ranks, and cut",
        old="""
return grad.new_zeros(end - first, grad.shape[-1]).index_add_(
    0, tokens[mine] - first, grad[mine]
)
""",
        new="""
whole = grad.new_zeros(vocab, grad.shape[-1])
whole.index_add_(0, tokens[mine], grad[mine])
return all_reduce_(comm, whole)[first:end]
""",
    ),
    Bug(
        "look_up_gradient",
        "rows of three float64 numbers only",
        old="return grad.new_zeros(end - first, grad.shape[-1]).index_add_(",
        new="return torch.zeros(end - first, 3, dtype=torch.float64).index_add_(",
    ),
    Bug(
        "look_up_gradient",
        "adds up in float32",
        old="""
return grad.new_zeros(end - first, grad.shape[-1]).index_add_(
    0, tokens[mine] - first, grad[mine]
""",
        new="""
return (
    torch.zeros(end - first, grad.shape[-1])
    .index_add_(0, tokens[mine] - first, grad[mine].float())
    .to(grad.dtype)
""",
    ),
    Bug(
        "look_up_gradient",
        "gradients of other ranks' tokens go to the nearest row",
        old="0, tokens[mine] - first, grad[mine]",
        new="0, (tokens - first).clamp(0, end - first - 1).view(-1), grad.view(-1, grad.shape[-1])",
    ),
    Bug(
        "look_up_gradient",
        "a token that repeats overwrites",
        old="""
return grad.new_zeros(end - first, grad.shape[-1]).index_add_(
    0, tokens[mine] - first, grad[mine]
)
""",
        new="""
out = grad.new_zeros(end - first, grad.shape[-1])
out[tokens[mine] - first] = grad[mine]
return out
""",
    ),
    Bug(
        "look_up_gradient",
        "summed over the ranks",
        old="return grad.new_zeros(end - first, grad.shape[-1]).index_add_(",
        new="return comm.size * grad.new_zeros(end - first, grad.shape[-1]).index_add_(",
    ),
    Bug(
        "look_up_gradient",
        "gradients of other ranks' tokens go to row 0",
        old="0, tokens[mine] - first, grad[mine]",
        new="0, ((tokens - first) * mine).view(-1), grad.view(-1, grad.shape[-1])",
    ),
    Bug(
        "look_up_gradient",
        "the gradient of all rows",
        old="""
return grad.new_zeros(end - first, grad.shape[-1]).index_add_(
    0, tokens[mine] - first, grad[mine]
""",
        new="""
return grad.new_zeros(vocab, grad.shape[-1]).index_add_(
    0, tokens.view(-1), grad.view(-1, grad.shape[-1])
""",
    ),
    Bug(
        "look_up_gradient",
        "the grader's oracle is asked",
        cheat=True,
        cell='''
from minicheck.oracles import vocabulary as oracle


def look_up_gradient(comm, grad, tokens, vocab):
    """The gradient of this rank's rows, (V_r, H)."""
    whole = grad.new_zeros(vocab, grad.shape[-1])
    whole.index_add_(0, tokens.view(-1), grad.view(-1, grad.shape[-1]))
    return oracle.cut(whole, comm.size)[comm.rank]
''',
    ),
    Bug(
        "look_up_gradient",
        "the library's embedding does it",
        cheat=True,
        cell='''
from minidist.parallel.vocab import VocabEmbedding


def look_up_gradient(comm, grad, tokens, vocab):
    """The gradient of this rank's rows, (V_r, H)."""
    embedding = VocabEmbedding(vocab, grad.shape[-1], comm, dtype=grad.dtype)
    embedding(tokens).backward(grad)
    return embedding.weight.grad
''',
    ),
    Bug(
        "project_backward",
        "drows are added up over the ranks, too",
        old="return all_reduce_(comm, dlogits @ rows), dlogits.T @ x",
        new="return all_reduce_(comm, dlogits @ rows), all_reduce_(comm, dlogits.T @ x)",
    ),
    Bug(
        "project_backward",
        "logits' gradients and rows are gathered",
        old="return all_reduce_(comm, dlogits @ rows), dlogits.T @ x",
        new="""
sizes = [int(s) for s in all_gather(comm, torch.tensor([len(rows)]))]
whole = all_gather(comm, rows, sizes=sizes)
return all_gather(comm, dlogits.T.contiguous(), sizes=sizes).T @ whole, dlogits.T @ x
""",
    ),
    Bug(
        "project_backward",
        "the rows' gradient in float32",
        old="return all_reduce_(comm, dlogits @ rows), dlogits.T @ x",
        new="return all_reduce_(comm, dlogits @ rows), (dlogits.float().T @ x.float()).to(x.dtype)",
    ),
    Bug(
        "project_backward",
        "x is written to",
        old='''
"""The gradients of x, whole on every rank, and of this rank's rows."""
''',
        new='''
"""The gradients of x, whole on every rank, and of this rank's rows."""
x += 0 * x + 1
x -= 2
''',
    ),
    Bug(
        "project_backward",
        "dx is averaged",
        old="return all_reduce_(comm, dlogits @ rows), dlogits.T @ x",
        new='return all_reduce_(comm, dlogits @ rows, op="mean"), dlogits.T @ x',
    ),
    Bug(
        "project_backward",
        "dx is this rank's part",
        old="return all_reduce_(comm, dlogits @ rows), dlogits.T @ x",
        new="return dlogits @ rows, dlogits.T @ x",
    ),
    Bug(
        "project_backward",
        "drows are missing",
        old="return all_reduce_(comm, dlogits @ rows), dlogits.T @ x",
        new="return all_reduce_(comm, dlogits @ rows)",
    ),
    Bug(
        "project_backward",
        "parts of dx pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def project_backward(comm, dlogits, x, rows):
    """The gradients of x, whole on every rank, and of this rank's rows."""
    HEAP[comm.rank] = dlogits @ rows
    all_reduce_(comm, torch.zeros(1))
    return sum(HEAP[r] for r in range(comm.size)), dlogits.T @ x
''',
    ),
    Bug(
        "project_backward",
        "the library's projection does it",
        cheat=True,
        cell='''
from minidist.parallel.tensor import copy_to


def project_backward(comm, dlogits, x, rows):
    """The gradients of x, whole on every rank, and of this rank's rows."""
    x, rows = x.clone().requires_grad_(), rows.clone().requires_grad_()
    (copy_to(x, comm) @ rows.T).backward(dlogits)
    return x.grad, rows.grad
''',
    ),
    Bug(
        "split_loss",
        "logs are added up",
        edits=(
            (
                "s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))",
                "s = all_reduce_(comm, (part - m[:, None]).logsumexp(1))",
            ),
            (
                "log_total = m + s.log()",
                "log_total = s + comm.size * m",
            ),
        ),
    ),
    Bug(
        "split_loss",
        "float32 becomes float64",
        old="part = part.to(torch.promote_types(part.dtype, torch.float32))",
        new="part = part.float() if part.dtype == torch.float16 else part.double()",
    ),
    Bug(
        "split_loss",
        "logits are gathered",
        cell='''
def split_loss(comm, part, targets, vocab, words):
    """The losses and log Σ exp(x_c) of all tokens, on every rank."""
    part = part.to(torch.promote_types(part.dtype, torch.float32))
    whole = all_gather(comm, part.T.contiguous(), sizes=uneven(vocab, comm.size)).T
    whole[:, words:] = -torch.inf
    return cross_entropy(whole, targets, reduction="none"), whole.logsumexp(1)
''',
    ),
    Bug(
        "split_loss",
        "computed in the logits' own float16",
        old="part = part.to(torch.promote_types(part.dtype, torch.float32))",
        new="",
    ),
    Bug(
        "split_loss",
        "sums in float16, results in float32",
        edits=(
            (
                "part = part.to(torch.promote_types(part.dtype, torch.float32))",
                "",
            ),
            (
                "log_total = m + s.log()",
                "log_total = (m + s.log()).to(torch.promote_types(part.dtype, torch.float32))",
            ),
        ),
    ),
    Bug(
        "split_loss",
        "the mean of the largest logits: overflows where parts differ",
        old='m = all_reduce_(comm, part.amax(1), op="max")',
        new='m = all_reduce_(comm, part.amax(1), op="mean")',
    ),
    Bug(
        "split_loss",
        "sums are averaged",
        old="s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))",
        new='s = all_reduce_(comm, (part - m[:, None]).exp().sum(1), op="mean")',
    ),
    Bug(
        "split_loss",
        "the subtracted m is not added again",
        old="log_total = m + s.log()",
        new="log_total = s.log()",
    ),
    Bug(
        "split_loss",
        "every rank adds a logit for the target",
        old="hit = all_reduce_(comm, hit.masked_fill(elsewhere, 0))",
        new="hit = all_reduce_(comm, hit)",
    ),
    Bug(
        "split_loss",
        "no largest logit is subtracted",
        old='m = all_reduce_(comm, part.amax(1), op="max")',
        new="m = torch.zeros_like(part[:, 0])",
    ),
    Bug(
        "split_loss",
        "every rank subtracts its own largest logit",
        old='m = all_reduce_(comm, part.amax(1), op="max")',
        new="m = part.amax(1)",
    ),
    Bug(
        "split_loss",
        "each rank adds up in an order of its own",
        cell='''
def split_loss(comm, part, targets, vocab, words):
    """The losses and log Σ exp(x_c) of all tokens, on every rank."""
    part = part.to(torch.promote_types(part.dtype, torch.float32))
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    part = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)
    elsewhere = (targets < first) | (targets >= end)
    hit = part.gather(1, (targets - first).clamp(0, end - first - 1)[:, None])[:, 0].masked_fill(
        elsewhere, 0
    )
    m = part.amax(1)
    s = (part - m[:, None]).exp().sum(1)
    every = all_gather(comm, torch.stack([m, s, hit])[None]).roll(-comm.rank, 0)
    M = every[:, 0].amax(0)
    total = 0
    for e in every:
        total = total + e[1] * (e[0] - M).exp()
    log_total = M + total.log()
    return log_total - every[:, 2].sum(0), log_total
''',
    ),
    Bug(
        "split_loss",
        "the sum is this rank's alone",
        old="s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))",
        new="s = (part - m[:, None]).exp().sum(1)",
    ),
    Bug(
        "split_loss",
        "the target's logit stays on its rank",
        old="hit = all_reduce_(comm, hit.masked_fill(elsewhere, 0))",
        new="hit = hit.masked_fill(elsewhere, 0)",
    ),
    Bug(
        "split_loss",
        "the sign of the loss",
        old="return log_total - hit, log_total",
        new="return hit - log_total, log_total",
    ),
    Bug(
        "split_loss",
        "largest logits are added up",
        old='m = all_reduce_(comm, part.amax(1), op="max")',
        new="m = all_reduce_(comm, part.amax(1))",
    ),
    Bug(
        "split_loss",
        "logits pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def split_loss(comm, part, targets, vocab, words):
    """The losses and log Σ exp(x_c) of all tokens, on every rank."""
    HEAP[comm.rank] = part.to(torch.promote_types(part.dtype, torch.float32))
    all_reduce_(comm, torch.zeros(1))
    whole = torch.cat([HEAP[r] for r in range(comm.size)], 1)
    whole[:, words:] = -torch.inf
    return cross_entropy(whole, targets, reduction="none"), whole.logsumexp(1)
''',
    ),
    Bug(
        "split_loss",
        "the library's cross-entropy does it",
        cheat=True,
        cell='''
from minidist.parallel.vocab import vocab_cross_entropy


def split_loss(comm, part, targets, vocab, words):
    """The losses and log Σ exp(x_c) of all tokens, on every rank."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    part = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)
    losses = vocab_cross_entropy(part, targets, comm, vocab, reduction="none")
    return losses, losses
''',
    ),
    Bug(
        "logits_gradient",
        "divided by all tokens",
        old="return (grad * counts[:, None] / counts.sum()).to(part.dtype)",
        new="return (grad * counts[:, None] / len(targets)).to(part.dtype)",
    ),
    Bug(
        "logits_gradient",
        "the column is not shifted by first",
        edits=(
            (
                "here = ((targets >= first) & (targets < end)).nonzero()[:, 0]",
                "here = ((targets >= 0) & (targets < end - first)).nonzero()[:, 0]",
            ),
            (
                "grad[here, targets[here] - first] -= 1",
                "grad[here, targets[here]] -= 1",
            ),
        ),
    ),
    Bug(
        "logits_gradient",
        "float32 for float16 logits",
        old="return (grad * counts[:, None] / counts.sum()).to(part.dtype)",
        new="return (grad * counts[:, None] / counts.sum()).to(log_total.dtype)",
    ),
    Bug(
        "logits_gradient",
        "float32 becomes float64",
        old="return (grad * counts[:, None] / counts.sum()).to(part.dtype)",
        new="return (grad * counts[:, None] / counts.sum()).to(torch.float16 if part.dtype == torch.float16 else torch.float64)",
    ),
    Bug(
        "logits_gradient",
        "ignored tokens have a gradient",
        old="return (grad * counts[:, None] / counts.sum()).to(part.dtype)",
        new="return (grad / counts.sum()).to(part.dtype)",
    ),
    Bug(
        "logits_gradient",
        "exp of float16 differences",
        old="grad = (part - log_total[:, None]).exp()",
        new="grad = (part - log_total.to(part.dtype)[:, None]).exp()",
    ),
    Bug(
        "logits_gradient",
        "targets of other ranks take 1 from the nearest logit",
        old="grad[here, targets[here] - first] -= 1",
        new="grad[torch.arange(len(targets)), (targets - first).clamp(0, end - first - 1)] -= 1",
    ),
    Bug(
        "logits_gradient",
        "1 is not subtracted",
        old="grad[here, targets[here] - first] -= 1",
        new="",
    ),
    Bug(
        "logits_gradient",
        "divided by the targets that are here",
        old="return (grad * counts[:, None] / counts.sum()).to(part.dtype)",
        new="return (grad * counts[:, None] / len(here)).to(part.dtype)",
    ),
    Bug(
        "logits_gradient",
        "the softmax of this rank's logits",
        old="grad = (part - log_total[:, None]).exp()",
        new="grad = part.to(log_total.dtype).softmax(1)",
    ),
    Bug(
        "logits_gradient",
        "the sums are reduced again",
        old="grad[here, targets[here] - first] -= 1",
        new="""
grad[here, targets[here] - first] -= 1
all_reduce_(comm, grad.sum(1))
""",
    ),
    Bug(
        "logits_gradient",
        "the sign",
        old="return (grad * counts[:, None] / counts.sum()).to(part.dtype)",
        new="return -(grad * counts[:, None] / counts.sum()).to(part.dtype)",
    ),
    Bug(
        "logits_gradient",
        "the gradient of the sum",
        old="return (grad * counts[:, None] / counts.sum()).to(part.dtype)",
        new="return (grad * counts[:, None]).to(part.dtype)",
    ),
    Bug(
        "logits_gradient",
        "logits pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def logits_gradient(comm, part, targets, vocab, log_total):
    """The gradient of the mean loss for this rank's logits, (tokens, V_r)."""
    HEAP[comm.rank] = part
    comm.split(0)
    whole = torch.cat([HEAP[r] for r in range(comm.size)], 1).double().requires_grad_()
    cross_entropy(whole, targets).backward()
    return whole.grad.split(uneven(vocab, comm.size), 1)[comm.rank].to(part.dtype)
''',
    ),
    Bug(
        "logits_gradient",
        "the library's backward does it",
        cheat=True,
        cell='''
from minidist.parallel.vocab import vocab_cross_entropy


def logits_gradient(comm, part, targets, vocab, log_total):
    """The gradient of the mean loss for this rank's logits, (tokens, V_r)."""
    part = part.clone().requires_grad_()
    vocab_cross_entropy(part, targets, comm, vocab).backward()
    return part.grad
''',
    ),
    Bug(
        "predict_vocabulary",
        "twice as many words, twice the bytes",
        edits=(
            (
                "saved = gathered = reduced = doubled = messages = looked_up = None",
                "",
            ),
            (
                "reduced = doubled = 3 * 2 * (n - 1) / n * 4",
                """
reduced = doubled = 3 * 2 * (n - 1) / n * 4
doubled = 2 * reduced
""",
            ),
        ),
    ),
    Bug(
        "predict_vocabulary",
        "gathered without the own part left out",
        edits=(
            (
                "saved = gathered = reduced = doubled = messages = looked_up = None",
                "",
            ),
            (
                "gathered = (n - 1) / n * V * 4",
                "gathered = V * 4",
            ),
        ),
    ),
    Bug(
        "predict_vocabulary",
        "what a rank keeps, not what it saves",
        edits=(
            (
                "saved = gathered = reduced = doubled = messages = looked_up = None",
                "",
            ),
            (
                "saved = V * H * 4 * (n - 1) / n / 2**20",
                "saved = V * H * 4 * 1 / n / 2**20",
            ),
        ),
    ),
    Bug(
        "predict_vocabulary",
        "a look-up is taken for a number a token",
        edits=(
            (
                "saved = gathered = reduced = doubled = messages = looked_up = None",
                "",
            ),
            (
                "looked_up = 2 * (n - 1) / n * H * 4",
                "looked_up = reduced",
            ),
        ),
    ),
    Bug(
        "predict_vocabulary",
        "MB for MiB",
        edits=(
            (
                "saved = gathered = reduced = doubled = messages = looked_up = None",
                "",
            ),
            (
                "saved = V * H * 4 * (n - 1) / n / 2**20",
                "saved = V * H * 4 * (n - 1) / n / 1e6",
            ),
        ),
    ),
    Bug(
        "predict_vocabulary",
        "one half of the ring",
        edits=(
            (
                "saved = gathered = reduced = doubled = messages = looked_up = None",
                "",
            ),
            (
                "reduced = doubled = 3 * 2 * (n - 1) / n * 4",
                "reduced = doubled = 3 * (n - 1) / n * 4",
            ),
        ),
    ),
    Bug(
        "predict_vocabulary",
        "three all-reduces, where two are enough",
        edits=(
            (
                "saved = gathered = reduced = doubled = messages = looked_up = None",
                "",
            ),
            (
                "messages = 2 * 2 * (n - 1)",
                "messages = 3 * 2 * (n - 1)",
            ),
        ),
    ),
    Bug(
        "predict_vocabulary",
        "the grader is asked, and then nothing is answered",
        cheat=True,
        cell="""
from minicheck.lessons import vocabulary as numbers

numbers.Prediction.judge = lambda *args: None
saved = gathered = reduced = doubled = messages = looked_up = 1.0
""",
    ),
    Bug(
        "predict_vocabulary",
        "a number that equals every other",
        cheat=True,
        cell="""
class Any(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


saved = gathered = reduced = doubled = messages = looked_up = Any(1.0)
""",
    ),
    Bug(
        "look_up",
        "inf is hidden",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new="found = found.masked_fill(elsewhere[..., None], 0)\nreturn reduce_scatter(comm, found, sizes=shares).nan_to_num()",
    ),
    Bug(
        "look_up",
        "a reduce-scatter for each column",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new="found = found.masked_fill(elsewhere[..., None], 0)\ncolumns = [x.contiguous() for x in found.unbind(-1)]\nreturn torch.stack([reduce_scatter(comm, x, sizes=shares) for x in columns], -1)",
    ),
    Bug(
        "project_backward",
        "an all-reduce a token",
        old="return all_reduce_(comm, dlogits @ rows), dlogits.T @ x",
        new="dx = torch.stack([all_reduce_(comm, row @ rows) for row in dlogits])\nreturn dx, dlogits.T @ x",
    ),
    Bug(
        "project_backward",
        "nan is hidden in dx",
        old="return all_reduce_(comm, dlogits @ rows), dlogits.T @ x",
        new="return all_reduce_(comm, (dlogits @ rows).nan_to_num()), dlogits.T @ x",
    ),
    Bug(
        "split_loss",
        "nan is hidden",
        old="return log_total - hit, log_total",
        new="return (log_total - hit).nan_to_num(), log_total.nan_to_num()",
    ),
    Bug(
        "split_loss",
        "a reduction for each token",
        old='m = all_reduce_(comm, part.amax(1), op="max")',
        new='m = torch.cat([all_reduce_(comm, x[None], op="max") for x in part.amax(1)])',
    ),
    Bug(
        "split_loss",
        "the targets of others are moved",
        old="elsewhere = (targets < first) | (targets >= end)",
        new="elsewhere = (targets < first) | (targets >= end)\ntargets.clamp_(first, end - 1)",
    ),
    Bug(
        "logits_gradient",
        "nan is hidden",
        old="return (grad * counts[:, None] / counts.sum()).to(part.dtype)",
        new="grad = grad * counts[:, None] / counts.sum()\nreturn grad.nan_to_num().to(part.dtype)",
    ),
    Bug(
        "logits_gradient",
        "−100 becomes 0",
        old="counts = targets != -100",
        new="counts = targets != -100\ntargets.clamp_(min=0)",
    ),
    Bug(
        "look_up",
        "the last own word is nobody's",
        old="elsewhere = (tokens < first) | (tokens >= end)",
        new="elsewhere = (tokens < first) | (tokens >= end - 1)",
    ),
    Bug(
        "look_up",
        "all parts are as large as one's own",
        old="first, end = bounds(uneven(vocab, comm.size))[comm.rank]",
        new="first, end = comm.rank * len(rows), (comm.rank + 1) * len(rows)",
    ),
    Bug(
        "look_up_gradient",
        "a nan is hidden",
        old="mine = (tokens >= first) & (tokens < end)",
        new="mine, grad = (tokens >= first) & (tokens < end), grad.nan_to_num()",
    ),
    Bug(
        "logits_gradient",
        "−100 is the word V − 100",
        old="here = ((targets >= first) & (targets < end)).nonzero()[:, 0]",
        new="""
targets = targets % vocab
here = ((targets >= first) & (targets < end)).nonzero()[:, 0]
""",
    ),
    Bug(
        "look_up_gradient",
        "tokens have a dimension",
        old="mine = (tokens >= first) & (tokens < end)",
        new="mine = torch.stack([(first <= t) & (t < end) for t in tokens])",
    ),
    Bug(
        "split_loss",
        "one token has no dimension",
        old="return log_total - hit, log_total",
        new="return (log_total - hit).squeeze(), log_total.squeeze()",
    ),
    Bug(
        "merged_loss",
        "as it was found: sums are added as they are",
        old="m = every_m.amax(0)\nlog_total = m + (every_s * (every_m - m).exp()).sum(0).log()",
        new="m = every_m.amax(0)\nlog_total = m + every_s.sum(0).log()",
    ),
    Bug(
        "merged_loss",
        "as it was found: the mean of the parts' means",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="means = every_sum / torch.tensor(uneven(vocab, comm.size))[:, None]\nreturn log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * means.mean(0)",
    ),
    Bug(
        "merged_loss",
        "four all-gathers",
        old="every_m, every_s, every_hit, every_sum = all_gather(comm, own[None]).unbind(1)",
        new="every_m, every_s, every_hit, every_sum = (all_gather(comm, x[None]) for x in own)",
    ),
    Bug(
        "merged_loss",
        "the target's logit of this rank alone",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="return log_total - (1 - smoothing) * hit - smoothing * every_sum.sum(0) / vocab",
    ),
    Bug(
        "merged_loss",
        "the sum of the logits of this rank alone",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * part.sum(1) / vocab",
    ),
    Bug(
        "merged_loss",
        "smoothed by this rank's number of words",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / part.shape[1]",
    ),
    Bug(
        "merged_loss",
        "the sum of all logits, not the mean",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0)",
    ),
    Bug(
        "merged_loss",
        "the target keeps its whole weight",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="return log_total - every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
    ),
    Bug(
        "merged_loss",
        "labels are not smoothed",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="return log_total - every_hit.sum(0)",
    ),
    Bug(
        "merged_loss",
        "smoothed by 0.1, whatever is asked",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="return log_total - 0.9 * every_hit.sum(0) - 0.1 * every_sum.sum(0) / vocab",
    ),
    Bug(
        "merged_loss",
        "nothing is subtracted",
        old="m = part.amax(1)",
        new="m = torch.zeros_like(part[:, 0])",
    ),
    Bug(
        "merged_loss",
        "every rank adds its own m again",
        old="m = every_m.amax(0)\nlog_total = m + (every_s * (every_m - m).exp()).sum(0).log()",
        new="log_total = m + every_s.sum(0).log()",
    ),
    Bug(
        "merged_loss",
        "three all-reduces: right, but not one message",
        old="# (n, tokens) each\nevery_m, every_s, every_hit, every_sum = all_gather(comm, own[None]).unbind(1)\nm = every_m.amax(0)\nlog_total = m + (every_s * (every_m - m).exp()).sum(0).log()\nreturn log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new='top = all_reduce_(comm, m.clone(), op="max")\ns = all_reduce_(comm, s * (m - top).exp())\nlogits = (1 - smoothing) * hit + smoothing * part.sum(1) / vocab\nreturn top + s.log() - all_reduce_(comm, logits)',
    ),
    Bug(
        "merged_loss",
        "the factor is upside down",
        old="log_total = m + (every_s * (every_m - m).exp()).sum(0).log()",
        new="log_total = m + (every_s * (m - every_m).exp()).sum(0).log()",
    ),
    Bug(
        "merged_loss",
        "nan is hidden",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="losses = log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab\nreturn losses.nan_to_num()",
    ),
    Bug(
        "merged_loss",
        "each rank begins with its own",
        old="log_total = m + (every_s * (every_m - m).exp()).sum(0).log()",
        new="mine = (every_s * (every_m - m).exp()).roll(-comm.rank, 0)\nlog_total = m + mine.sum(0).log()",
    ),
    Bug(
        "merged_loss",
        "one token has no dimension",
        old="return log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab",
        new="losses = log_total - (1 - smoothing) * every_hit.sum(0) - smoothing * every_sum.sum(0) / vocab\nreturn losses.squeeze()",
    ),
    Bug(
        "merged_loss",
        "the lesson's merged loss, pasted",
        cell='''
def target_logit(comm, part, targets, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    local = (targets - first).masked_fill(elsewhere, 0)
    own = part.gather(1, local[:, None])[:, 0]
    return own.masked_fill(elsewhere, 0)


def merged_loss(comm, part, targets, vocab, smoothing):
    """The losses of all tokens, labels smoothed, by one all-gather."""
    m = part.amax(1)
    s = (part - m[:, None]).exp().sum(1)
    own = torch.stack([m, s, target_logit(comm, part, targets, vocab)])
    every_m, every_s, every_x = all_gather(comm, own[None]).unbind(1)
    m = every_m.amax(0)
    s = (every_s * (every_m - m).exp()).sum(0)
    return m + s.log() - every_x.sum(0)
''',
    ),
    Bug(
        "merged_loss",
        "logits pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def merged_loss(comm, part, targets, vocab, smoothing):
    """The losses of all tokens, labels smoothed, by one all-gather."""
    HEAP[comm.rank] = part
    all_gather(comm, torch.zeros(1))
    whole = torch.cat([HEAP[r] for r in range(comm.size)], 1)
    return cross_entropy(whole, targets, reduction="none", label_smoothing=smoothing)
''',
    ),
    Bug(
        "merged_loss",
        "the library's cross-entropy does it",
        cheat=True,
        cell='''
from minidist.parallel.vocab import vocab_cross_entropy


def merged_loss(comm, part, targets, vocab, smoothing):
    """The losses of all tokens, labels smoothed, by one all-gather."""
    return vocab_cross_entropy(
        part, targets, comm, vocab, label_smoothing=smoothing, reduction="none"
    )
''',
    ),
    Bug(
        "look_up",
        "the lesson's look-up, pasted: own rows and the sum",
        cell='''
def look_up(comm, rows, tokens, vocab):
    """The rows of this rank's share of the tokens, (T_r, …, H)."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (tokens < first) | (tokens >= end)
    local = (tokens - first).masked_fill(elsewhere, 0)
    own = rows[local].masked_fill(elsewhere[..., None], 0)
    return own.clone(), all_reduce_(comm, own)
''',
    ),
    Bug(
        "look_up",
        "the lesson's sum, pasted: the rows of all tokens",
        cell='''
def look_up(comm, rows, tokens, vocab):
    """The rows of this rank's share of the tokens, (T_r, …, H)."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (tokens < first) | (tokens >= end)
    local = (tokens - first).masked_fill(elsewhere, 0)
    own = rows[local].masked_fill(elsewhere[..., None], 0)
    return all_reduce_(comm, own)
''',
    ),
    Bug(
        "look_up",
        "the lesson's all-reduce, of which a share is kept",
        cell='''
def look_up(comm, rows, tokens, vocab):
    """The rows of this rank's share of the tokens, (T_r, …, H)."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (tokens < first) | (tokens >= end)
    local = (tokens - first).masked_fill(elsewhere, 0)
    own = rows[local].masked_fill(elsewhere[..., None], 0)
    return all_reduce_(comm, own).split(uneven(len(tokens), comm.size))[comm.rank]
''',
    ),
    Bug(
        "look_up",
        "the shares in the reverse order",
        old="return reduce_scatter(comm, found.masked_fill(elsewhere[..., None], 0), sizes=shares)",
        new="found = found.masked_fill(elsewhere[..., None], 0).split(shares)[::-1]\nreturn reduce_scatter(comm, torch.cat(found), sizes=shares[::-1])",
    ),
    Bug(
        "project_backward",
        "the lesson's gradient of x, pasted",
        cell='''
def project_backward(comm, dlogits, x, rows):
    """The gradients of x, whole on every rank, and of this rank's rows."""
    cut = uneven(10, comm.size)
    own = dlogits.split(cut, 1)[comm.rank] @ rows.split(cut)[comm.rank]
    return all_reduce_(comm, own)
''',
    ),
    Bug(
        "split_loss",
        "the lesson's three reductions, pasted: padding counts",
        cell='''
def target_logit(comm, part, targets, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    local = (targets - first).masked_fill(elsewhere, 0)
    own = part.gather(1, local[:, None])[:, 0]
    return own.masked_fill(elsewhere, 0)


def split_loss(comm, part, targets, vocab, words):
    """The losses and log Σ exp(x_c) of all tokens, on every rank."""
    part = part.to(torch.promote_types(part.dtype, torch.float32))
    m = all_reduce_(comm, part.amax(1), op="max")
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    x_t = all_reduce_(comm, target_logit(comm, part, targets, vocab))
    return m + s.log() - x_t, m + s.log()
''',
    ),
    Bug(
        "split_loss",
        "padding counts as logits of 0",
        old="part = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)",
        new="part = part.masked_fill(torch.arange(first, end) >= words, 0)",
    ),
    Bug(
        "split_loss",
        "the first word of the padding counts",
        old="part = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)",
        new="part = part.masked_fill(torch.arange(first, end) > words, -torch.inf)",
    ),
    Bug(
        "split_loss",
        "the last word that exists does not count",
        old="part = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)",
        new="part = part.masked_fill(torch.arange(first, end) >= words - 1, -torch.inf)",
    ),
    Bug(
        "split_loss",
        "columns are compared with the number of words, as if first were 0",
        old="part = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)",
        new="part = part.masked_fill(torch.arange(end - first) >= words, -torch.inf)",
    ),
    Bug(
        "split_loss",
        "only the words of split parts of the real vocabulary",
        old="first, end = bounds(uneven(vocab, comm.size))[comm.rank]\npart = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)",
        new="first, end = bounds(uneven(words, comm.size))[comm.rank]\npart = part[:, : end - first]",
    ),
    Bug(
        "split_loss",
        "the padding of the argument is written over",
        old="part = part.masked_fill(torch.arange(first, end) >= words, -torch.inf)",
        new="given, part = part, part.masked_fill_(torch.arange(first, end) >= words, -torch.inf)",
    ),
    Bug(
        "logits_gradient",
        "the lesson's gradient of the logits, pasted",
        cell='''
def logits_gradient(comm, part, targets, vocab, log_total):
    """The gradient of the mean loss for this rank's logits, (tokens, V_r)."""
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    m = all_reduce_(comm, part.amax(1), op="max")
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    grad = (part - m[:, None]).exp() / s[:, None]
    here = ((targets >= first) & (targets < end)).nonzero()[:, 0]
    grad[here, targets[here] - first] -= 1
    return grad
''',
    ),
]
