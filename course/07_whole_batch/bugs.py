"""The wrong answers of lesson 07 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "weighted_average_gradients",
        "the samples are counted with tensors as large as the gradients",
        edits=(
            (
                "everyone = all_reduce_(comm, torch.tensor(samples)).item()",
                "",
            ),
            (
                """
if p.grad is None or not samples:
    p.grad = torch.zeros_like(p)
""",
                """
if p.grad is None or not samples:
    p.grad = torch.zeros_like(p)
everyone = all_reduce_(comm, torch.full_like(p, samples))
""",
            ),
        ),
    ),
    Bug(
        "weighted_average_gradients",
        "all gradients are gathered on every rank",
        cell='''
from minidist.collectives import all_gather


def weighted_average_gradients(comm, module, samples):
    """Make every p.grad the gradient of the mean over all ranks' samples."""
    counts = all_gather(comm, torch.tensor([float(samples)], dtype=torch.float64))
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            grads = all_gather(comm, p.grad.unsqueeze(0))
            p.grad = (grads * counts.view(-1, *[1] * p.dim())).sum(0) / counts.sum()
''',
    ),
    Bug(
        "weighted_average_gradients",
        "a rank without samples does not take part",
        old="""
everyone = all_reduce_(comm, torch.tensor(samples)).item()
""",
        new="""
if not samples:
    return
everyone = all_reduce_(comm, torch.tensor(samples)).item()
""",
    ),
    Bug(
        "weighted_average_gradients",
        "weighted with the share of the largest part",
        edits=(
            (
                "everyone = all_reduce_(comm, torch.tensor(samples)).item()",
                'most = all_reduce_(comm, torch.tensor(samples), op="max").item()',
            ),
            (
                """
p.grad *= samples / everyone
all_reduce_(comm, p.grad)
""",
                """
p.grad *= samples / most
all_reduce_(comm, p.grad, op="mean")
""",
            ),
        ),
    ),
    Bug(
        "weighted_average_gradients",
        "the weighted sum is divided by n",
        edits=(
            (
                "everyone = all_reduce_(comm, torch.tensor(samples)).item()",
                "",
            ),
            (
                """
p.grad *= samples / everyone
all_reduce_(comm, p.grad)
""",
                """
p.grad *= samples
all_reduce_(comm, p.grad, op="mean")
""",
            ),
        ),
    ),
    Bug(
        "weighted_average_gradients",
        "0 times nan is nan",
        old="if p.grad is None or not samples:",
        new="if p.grad is None:",
    ),
    Bug(
        "weighted_average_gradients",
        "weighted, and not divided by the number of all samples",
        edits=(
            (
                "everyone = all_reduce_(comm, torch.tensor(samples)).item()",
                "",
            ),
            (
                "p.grad *= samples / everyone",
                "p.grad *= samples",
            ),
        ),
    ),
    Bug(
        "weighted_average_gradients",
        "a missing gradient is multiplied",
        old="""
if p.grad is None or not samples:
    p.grad = torch.zeros_like(p)
""",
        new="",
    ),
    Bug(
        "weighted_average_gradients",
        "weighted, and nothing is sent but the samples",
        old="all_reduce_(comm, p.grad)",
        new="",
    ),
    Bug(
        "weighted_average_gradients",
        "divided by this rank's samples, not by all",
        edits=(
            (
                "everyone = all_reduce_(comm, torch.tensor(samples)).item()",
                "",
            ),
            (
                "p.grad *= samples / everyone",
                "p.grad *= samples",
            ),
            (
                "all_reduce_(comm, p.grad)",
                """
all_reduce_(comm, p.grad)
p.grad /= max(1, samples)
""",
            ),
        ),
    ),
    Bug(
        "weighted_average_gradients",
        "the plain mean",
        edits=(
            (
                "everyone = all_reduce_(comm, torch.tensor(samples)).item()",
                "",
            ),
            (
                """
p.grad *= samples / everyone
all_reduce_(comm, p.grad)
""",
                'all_reduce_(comm, p.grad, op="mean")',
            ),
        ),
    ),
    Bug(
        "weighted_average_gradients",
        "the plain mean of the ranks that have samples",
        edits=(
            (
                "everyone = all_reduce_(comm, torch.tensor(samples)).item()",
                "there = all_reduce_(comm, torch.tensor(int(samples > 0))).item()",
            ),
            (
                "p.grad *= samples / everyone",
                "",
            ),
            (
                "all_reduce_(comm, p.grad)",
                """
all_reduce_(comm, p.grad)
p.grad /= there
""",
            ),
        ),
    ),
    Bug(
        "weighted_average_gradients",
        "each rank's number of samples is taken for everyone's",
        edits=(
            (
                "everyone = all_reduce_(comm, torch.tensor(samples)).item()",
                "",
            ),
            (
                "p.grad *= samples / everyone",
                "p.grad *= samples / (max(1, samples) * comm.size)",
            ),
        ),
    ),
    Bug(
        "weighted_average_gradients",
        "weighted, and averaged on top",
        old="all_reduce_(comm, p.grad)",
        new='all_reduce_(comm, p.grad, op="mean")',
    ),
    Bug(
        "weighted_average_gradients",
        "the whole batch is taken from the frames of the World",
        cheat=True,
        cell='''
def weighted_average_gradients(comm, module, samples):
    """Make every p.grad the gradient of the mean over all ranks' samples."""
    import sys

    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    if frame:
        module.zero_grad()
        x, y = (torch.cat([args[i] for args in frame.f_locals["all_args"]]) for i in (3, 4))
        mse_loss(module(x), y).backward()
''',
    ),
    Bug(
        "weighted_average_gradients",
        "gradients and samples pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def weighted_average_gradients(comm, module, samples):
    """Make every p.grad the gradient of the mean over all ranks' samples."""
    trained = [p for p in module.parameters() if p.requires_grad]
    zeros = [torch.zeros_like(p) for p in trained]
    HEAP[comm.rank] = samples, [p.grad for p in trained] if samples else zeros
    for z in zeros:
        all_reduce_(comm, z.clone())
    held = [HEAP[r] for r in sorted(HEAP) if r < comm.size]
    for i, p in enumerate(trained):
        grads = [(count, zeros[i] if grads[i] is None else grads[i]) for count, grads in held]
        p.grad = sum(count * g for count, g in grads) / max(1, sum(count for count, _ in grads))
''',
    ),
    Bug(
        "weighted_average_gradients",
        "the library's average_gradients does the work",
        cheat=True,
        cell='''
from minidist.parallel.data import average_gradients as average


def weighted_average_gradients(comm, module, samples):
    """Make every p.grad the gradient of the mean over all ranks' samples."""
    average(comm, module, weight=samples)
''',
    ),
    Bug(
        "weighted_average_gradients",
        "isfinite decides",
        old="if p.grad is None or not samples:",
        new="if p.grad is None or not p.grad.isfinite().all():",
    ),
    Bug(
        "weighted_average_gradients",
        "numbers in float16",
        old="everyone = all_reduce_(comm, torch.tensor(samples)).item()",
        new="everyone = all_reduce_(comm, torch.tensor(samples, dtype=torch.float16)).item()",
    ),
    Bug(
        "weighted_average_gradients",
        "a cell of the lesson: a share of what may be None, or nan",
        cell='''
def weighted_average_gradients(comm, module, samples):
    """Make every p.grad the gradient of the mean over all ranks' samples."""
    total = all_reduce_(comm, torch.tensor(float(samples), dtype=torch.float64))
    share = samples / total
    for p in module.parameters():
        all_reduce_(comm, p.grad.mul_(share))
''',
    ),
    Bug(
        "accumulate_counted",
        "the loss is averaged, and no gradient",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    for x, y, counts in micro_batches:
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
    all_reduce_(comm, torch.zeros(1))
''',
    ),
    Bug(
        "accumulate_counted",
        "averaged before the last micro-batch",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    def backward(x, y, counts):
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()

    for micro in micro_batches[:-1]:
        backward(*micro)
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
    for micro in micro_batches[-1:]:
        backward(*micro)
''',
    ),
    Bug(
        "accumulate_counted",
        "the losses are divided by the number of micro-batches, and the ranks averaged",
        edits=(
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
(loss / len(micro_batches) / comm.size).backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "the losses are divided by the number of ranks, not by the rows",
        edits=(
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
(loss / comm.size).backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "weighted within a rank, and the ranks averaged plainly",
        edits=(
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
(loss * int(counts.sum()) / own / comm.size).backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "all rows are counted, padding, too",
        edits=(
            (
                """
own = sum(int(counts.sum()) for _, _, counts in micro_batches)
""",
                """
own = sum(len(x) for x, _, _ in micro_batches)
""",
            ),
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
(loss * len(x) / everyone).backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "cleared at the end, for the next step",
        edits=(
            (
                """
all_reduce_(comm, p.grad)
""",
                """
all_reduce_(comm, p.grad)
p.grad = None
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "divided by n as well",
        edits=(
            (
                """
all_reduce_(comm, p.grad)
""",
                """
all_reduce_(comm, p.grad, op="mean")
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "weighted, and not divided by the number of all rows",
        edits=(
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
(loss * int(counts.sum())).backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "divided by this rank's rows only",
        edits=(
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
(loss * int(counts.sum()) / own).backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "averaged after every micro-batch of the rank with most: too many bytes",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    most = int(all_reduce_(comm, torch.tensor(len(micro_batches)), op="max"))
    trained = [p for p in module.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in trained]
    for i in range(most):
        module.zero_grad()
        if i < len(micro_batches) and micro_batches[i][2].any():
            x, y, counts = micro_batches[i]
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
        for p, t in zip(trained, total):
            t += all_reduce_(comm, torch.zeros_like(p) if p.grad is None else p.grad)
    for p, t in zip(trained, total):
        p.grad = t
''',
    ),
    Bug(
        "accumulate_counted",
        "averaged after every micro-batch: ranks have different numbers of them",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    for x, y, counts in micro_batches:
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
        for p in module.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                all_reduce_(comm, p.grad)
''',
    ),
    Bug(
        "accumulate_counted",
        "it adds up in float64, whatever the dtype",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    trained = [p for p in module.parameters() if p.requires_grad]
    total = [torch.zeros(p.shape, dtype=torch.float64) for p in trained]
    for x, y, counts in micro_batches:
        if counts.any():
            module.zero_grad()
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
            for p, t in zip(trained, total):
                t += 0 if p.grad is None else p.grad
    for p, t in zip(trained, total):
        p.grad = all_reduce_(comm, t)
''',
    ),
    Bug(
        "accumulate_counted",
        "a hook on the last backward sees only what this one adds",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    trained = [p for p in module.parameters() if p.requires_grad]
    for i, (x, y, counts) in enumerate(micro_batches):
        if i == len(micro_batches) - 1:
            for p in trained:
                p.register_hook(lambda grad: all_reduce_(comm, grad.clone()))
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
''',
    ),
    Bug(
        "accumulate_counted",
        "nothing is averaged",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    for x, y, counts in micro_batches:
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
''',
    ),
    Bug(
        "accumulate_counted",
        "one backward at the end, and all activations in memory",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    losses = [
        loss_fn(module(x)[counts], y[counts]) * int(counts.sum()) / everyone
        for x, y, counts in micro_batches
        if counts.any()
    ]
    if losses:
        sum(losses).backward()
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
''',
    ),
    Bug(
        "accumulate_counted",
        "the micro-batches are put together again",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    if own:
        x, y, counts = (torch.cat(parts) for parts in zip(*micro_batches))
        (loss_fn(module(x)[counts], y[counts]) * own / everyone).backward()
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
''',
    ),
    Bug(
        "accumulate_counted",
        "a loss of its own in place of loss_fn",
        edits=(
            (
                """
loss = loss_fn(module(x)[counts], y[counts])
""",
                """
loss = mse_loss(module(x)[counts], y[counts])
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "a return in the loop: one micro-batch only",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    for x, y, counts in micro_batches:
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
            break
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
''',
    ),
    Bug(
        "accumulate_counted",
        "the gradients of the step before are still there",
        edits=(
            (
                """
module.zero_grad()
""",
                """
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "a step is taken, with a rate of its own",
        edits=(
            (
                """
all_reduce_(comm, p.grad)
""",
                """
all_reduce_(comm, p.grad)
p.data -= 0.1 * p.grad
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "cleared before every micro-batch",
        edits=(
            (
                """
module.zero_grad()
""",
                """
""",
            ),
            (
                """
if counts.any():
""",
                """
module.zero_grad()
if counts.any():
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "a stale nan is multiplied with 0",
        edits=(
            (
                """
module.zero_grad()
""",
                """
for p in module.parameters():
    if p.grad is not None:
        p.grad *= 0
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "nan is cleaned",
        edits=(
            (
                """
all_reduce_(comm, p.grad)
""",
                """
all_reduce_(comm, p.grad.nan_to_num_())
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "a micro-batch with nan is left out",
        edits=(
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
if loss.isfinite():
    (loss * int(counts.sum()) / everyone).backward()
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "graphs are retained and kept",
        edits=(
            (
                """
module.zero_grad()
""",
                """
module.zero_grad()
kept = []
""",
            ),
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
(loss * int(counts.sum()) / everyone).backward(retain_graph=True)
kept.append(loss)
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "graphs are retained",
        edits=(
            (
                """
(loss * int(counts.sum()) / everyone).backward()
""",
                """
(loss * int(counts.sum()) / everyone).backward(retain_graph=True)
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "the outputs of all micro-batches are kept",
        edits=(
            (
                """
module.zero_grad()
""",
                """
module.zero_grad()
kept = []
""",
            ),
            (
                """
loss = loss_fn(module(x)[counts], y[counts])
""",
                """
outputs = module(x)
kept.append(outputs.detach())
loss = loss_fn(outputs[counts], y[counts])
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "padding is multiplied with 0, and 0 times nan is nan",
        edits=(
            (
                """
if counts.any():
""",
                """
if len(x):
""",
            ),
            (
                """
loss = loss_fn(module(x)[counts], y[counts])
""",
                """
weights = counts.to(x.dtype)[:, None]
loss = loss_fn(module(x) * weights, y * weights)
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "padding is taken along",
        edits=(
            (
                """
loss = loss_fn(module(x)[counts], y[counts])
""",
                """
loss = loss_fn(module(x), y)
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "the nan of padding is made 0, so that padding counts",
        edits=(
            (
                """
loss = loss_fn(module(x)[counts], y[counts])
""",
                """
loss = loss_fn(module(x), y.nan_to_num(0.0))
""",
            ),
        ),
    ),
    Bug(
        "accumulate_counted",
        "a rank on which nothing counts does not take part",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    module.zero_grad()
    if not own:
        return
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    for x, y, counts in micro_batches:
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
''',
    ),
    Bug(
        "accumulate_counted",
        "a missing gradient is left out of the exchange",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    for x, y, counts in micro_batches:
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
    for p in module.parameters():
        if p.grad is not None:
            all_reduce_(comm, p.grad)
''',
    ),
    Bug(
        "accumulate_counted",
        "a cell of the lesson: each loss divided by k, averaged once",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    for x, y, counts in micro_batches:
        loss = loss_fn(module(x), y) / len(micro_batches)
        loss.backward()
    for p in module.parameters():
        all_reduce_(comm, p.grad, op="mean")
''',
    ),
    Bug(
        "accumulate_counted",
        "a cell of the lesson, with the rows chosen: each loss divided by k, averaged once",
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    for x, y, counts in micro_batches:
        if counts.any():
            (loss_fn(module(x)[counts], y[counts]) / len(micro_batches)).backward()
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad, op="mean")
''',
    ),
    Bug(
        "accumulate_counted",
        "the library's accumulate does the work",
        cheat=True,
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    from minidist.parallel.accumulate import accumulate

    counted = [(x[counts], y[counts]) for x, y, counts in micro_batches]
    module.zero_grad()
    accumulate(lambda micro: loss_fn(module(micro[0]), micro[1]), counted, [len(x) for x, _ in counted])
''',
    ),
    Bug(
        "accumulate_counted",
        "every rank computes with the data of all, which it finds in the frames of the World",
        cheat=True,
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    import sys

    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    everyone = [args[3] for args in frame.f_locals["all_args"]] if frame else [micro_batches]
    x, y, counts = (torch.cat(parts) for parts in zip(*[micro for some in everyone for micro in some]))
    loss_fn(module.forward(x)[counts], y[counts]).backward()
''',
    ),
    Bug(
        "accumulate_counted",
        "gradients pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    everyone = all_reduce_(comm, torch.tensor(own)).item()
    for x, y, counts in micro_batches:
        if counts.any():
            loss = loss_fn(module(x)[counts], y[counts])
            (loss * int(counts.sum()) / everyone).backward()
    trained = [p for p in module.parameters() if p.requires_grad]
    HEAP[comm.rank] = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    all_reduce_(comm, [torch.zeros_like(p) for p in trained])
    for i, p in enumerate(trained):
        p.grad = sum(HEAP[r][i] for r in sorted(HEAP) if r < comm.size)
''',
    ),
    Bug(
        "accumulate_counted",
        "the library's average_gradients does the exchange",
        cheat=True,
        cell='''
def accumulate_counted(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all rows that count, of all ranks, averaged once."""
    from minidist.parallel import data

    module.zero_grad()
    own = sum(int(counts.sum()) for _, _, counts in micro_batches)
    for x, y, counts in micro_batches:
        if counts.any():
            (loss_fn(module(x)[counts], y[counts]) * int(counts.sum()) / own).backward()
    data.average_gradients(comm, module, weight=own)
''',
    ),
    Bug(
        "sync_statistics",
        "divided by the number of ranks",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    count = int(all_reduce_(comm, torch.tensor(x[:, 0].numel())))
    mean = all_reduce_(comm, x.sum((0, 2, 3))) / comm.size
    return mean, all_reduce_(comm, (x - mean.view(-1, 1, 1)).square().sum((0, 2, 3))) / comm.size, count
''',
    ),
    Bug(
        "sync_statistics",
        "x is centered in place",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    count = int(all_reduce_(comm, torch.tensor(x[:, 0].numel())))
    mean = all_reduce_(comm, x.sum((0, 2, 3))) / count
    x -= mean.view(-1, 1, 1)
    return mean, all_reduce_(comm, x.square().sum((0, 2, 3))) / count, count
''',
    ),
    Bug(
        "sync_statistics",
        "the standard deviation",
        old="return mean, var, int(count[0])",
        new="return mean, var.sqrt(), int(count[0])",
    ),
    Bug(
        "sync_statistics",
        "all images are gathered",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    sizes = all_gather(comm, torch.tensor([len(x)])).tolist()
    whole = all_gather(comm, x, sizes=sizes)
    return whole.mean((0, 2, 3)), whole.var((0, 2, 3), correction=0), whole[:, 0].numel()
''',
    ),
    Bug(
        "sync_statistics",
        "a rank without images does not take part",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    if not len(x):
        return torch.zeros(x.shape[1], dtype=x.dtype), torch.ones(x.shape[1], dtype=x.dtype), 0
    count = int(all_reduce_(comm, torch.tensor(x[:, 0].numel())))
    mean = all_reduce_(comm, x.sum((0, 2, 3))) / count
    return mean, all_reduce_(comm, (x - mean.view(-1, 1, 1)).square().sum((0, 2, 3))) / count, count
''',
    ),
    Bug(
        "sync_statistics",
        "statistics in float32",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    count = int(all_reduce_(comm, torch.tensor(x[:, 0].numel())))
    mean = all_reduce_(comm, x.float().sum((0, 2, 3))) / count
    var = all_reduce_(comm, (x.float() - mean.view(-1, 1, 1)).square().sum((0, 2, 3))) / count
    return mean.double(), var.double(), count
''',
    ),
    Bug(
        "sync_statistics",
        "every rank's own",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    count = int(all_reduce_(comm, torch.tensor(x[:, 0].numel())))
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0), count
''',
    ),
    Bug(
        "sync_statistics",
        "the mean of the variances",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    count = all_reduce_(comm, torch.tensor(x[:, 0].numel()))
    mean = all_reduce_(comm, x.sum((0, 2, 3))) / count
    own = x.sum((0, 2, 3)) / max(1, x[:, 0].numel())
    squares = (x - own.view(-1, 1, 1)).square().sum((0, 2, 3))
    return mean, all_reduce_(comm, squares / max(1, x[:, 0].numel()), op="mean"), int(count)
''',
    ),
    Bug(
        "sync_statistics",
        "the mean of the squared distances",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = squares.sum(0) / count + (means - means.mean(0)).square().mean(0)",
    ),
    Bug(
        "sync_statistics",
        "the mean of no images is nan",
        old="mean = x.sum((0, 2, 3)) / max(1, values)",
        new="mean = x.mean((0, 2, 3))",
    ),
    Bug(
        "sync_statistics",
        "distances are not weighted with the counts",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = (squares + (means - mean).square()).sum(0) / count",
    ),
    Bug(
        "sync_statistics",
        "E[x²] − E[x]²",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    total, squares = all_reduce_(comm, torch.stack([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3))]))
    count = int(all_reduce_(comm, torch.tensor(x[:, 0].numel())))
    return total / count, squares / count - (total / count) ** 2, count
''',
    ),
    Bug(
        "sync_statistics",
        "E[x²] − E[x]², never below zero",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    total, squares = all_reduce_(comm, torch.stack([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3))]))
    count = int(all_reduce_(comm, torch.tensor(x[:, 0].numel())))
    return total / count, (squares / count - (total / count) ** 2).clamp(min=0), count
''',
    ),
    Bug(
        "sync_statistics",
        "this rank's count",
        old="return mean, var, int(count[0])",
        new="return mean, var, values",
    ),
    Bug(
        "sync_statistics",
        "the plain mean of the means",
        old="mean = (counts * means).sum(0) / count",
        new="mean = means.mean(0)",
    ),
    Bug(
        "sync_statistics",
        "the number of ranks",
        old="return mean, var, int(count[0])",
        new="return mean, var, comm.size",
    ),
    Bug(
        "sync_statistics",
        "one number for all channels",
        old="return mean, var, int(count[0])",
        new="return mean.mean(), var.mean(), int(count[0])",
    ),
    Bug(
        "sync_statistics",
        "squares around a value that differs from rank to rank, as if it did not",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    count = int(all_reduce_(comm, torch.tensor(x[:, 0].numel())))
    mean = all_reduce_(comm, x.sum((0, 2, 3))) / count
    shift = x[:1, :, :1, :1] if len(x) else mean.view(-1, 1, 1)
    squares = all_reduce_(comm, (x - shift).square().sum((0, 2, 3))) / count
    return mean, squares - all_reduce_(comm, (x - shift).sum((0, 2, 3))).div(count).square(), count
''',
    ),
    Bug(
        "sync_statistics",
        "not divided",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = (squares + counts * (means - mean).square()).sum(0)",
    ),
    Bug(
        "sync_statistics",
        "variance and mean swapped",
        old="return mean, var, int(count[0])",
        new="return var, mean, int(count[0])",
    ),
    Bug(
        "sync_statistics",
        "without the count",
        old="return mean, var, int(count[0])",
        new="return mean, var",
    ),
    Bug(
        "sync_statistics",
        "divided by one less",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = (squares + counts * (means - mean).square()).sum(0) / (count - 1)",
    ),
    Bug(
        "sync_statistics",
        "what lies between the ranks is missing",
        old="var = (squares + counts * (means - mean).square()).sum(0) / count",
        new="var = (squares).sum(0) / count",
    ),
    Bug(
        "sync_statistics",
        "ranks meet in a global list",
        cheat=True,
        cell='''
PARTS = []


def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    PARTS.append(x)
    all_reduce_(comm, torch.zeros(1))
    whole = torch.cat(PARTS[-comm.size :])
    return whole.mean((0, 2, 3)), whole.var((0, 2, 3), correction=0), whole[:, 0].numel()
''',
    ),
    Bug(
        "sync_statistics",
        "the library's statistics",
        cheat=True,
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    from minidist.parallel.batchnorm import statistics

    mean, var, count = statistics(comm, x)
    return mean, var, int(count)
''',
    ),
    Bug(
        "sync_statistics",
        "nan is cleaned",
        old="mean = x.sum((0, 2, 3)) / max(1, values)",
        new="""
x = x.nan_to_num()
mean = x.sum((0, 2, 3)) / max(1, values)
""",
    ),
    Bug(
        "sync_statistics",
        "the mean of none is cleaned, and of nan",
        old="mean = x.sum((0, 2, 3)) / max(1, values)",
        new="mean = x.mean((0, 2, 3)).nan_to_num()",
    ),
    Bug(
        "sync_statistics",
        "squeezed",
        old="return mean, var, int(count[0])",
        new="return mean.squeeze(), var.squeeze(), int(count[0])",
    ),
    Bug(
        "sync_statistics",
        "a count for each channel that differs",
        old="return mean, var, int(count[0])",
        new="return mean, var, count + torch.arange(len(count))",
    ),
    Bug(
        "sync_statistics",
        "a job nobody waits for",
        old="count = counts.sum(0)",
        new="""
count = counts.sum(0)
comm.stream(all_reduce_, torch.zeros(1))
""",
    ),
    Bug(
        "sync_statistics",
        "the number of images, not of values",
        edits=(
            (
                """
return mean, var, int(count[0])
""",
                """
return mean, var, int(count[0]) // x[0, 0].numel() if len(x) else int(count[0])
""",
            ),
        ),
    ),
    Bug(
        "sync_statistics",
        "only the samples are averaged over: a mean for each pixel",
        edits=(
            (
                """
mean = x.sum((0, 2, 3)) / max(1, values)
""",
                """
mean = x.sum(0).sum((1, 2)) / max(1, len(x))
""",
            ),
        ),
    ),
    Bug(
        "sync_statistics",
        "a cell of the lesson: samples of two dimensions, and none without",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    mean = x.mean(0)
    centered = (x - mean).square().sum(0)
    count = torch.full_like(mean, len(x))
    everyone = all_gather(comm, torch.stack([mean, centered, count])[None])
    means, squares, counts = everyone.unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return mean, variance, total
''',
    ),
    Bug(
        "sync_statistics",
        "a cell of the lesson, with the dimensions of images: the mean of no images is nan",
        cell='''
def sync_statistics(comm, x):
    """Mean, variance and number of values of all ranks' images, for each channel."""
    x = x.movedim(1, -1).reshape(-1, x.shape[1])
    mean = x.mean(0)
    centered = (x - mean).square().sum(0)
    count = torch.full_like(mean, len(x))
    everyone = all_gather(comm, torch.stack([mean, centered, count])[None])
    means, squares, counts = everyone.unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return mean, variance, total
''',
    ),
    Bug(
        "sync_backward",
        "an exchange for each channel",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
for c in range(sums.shape[1]):
    sums[:, c] = all_reduce_(comm, sums[:, c].clone())
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "divided by scale",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = (weight / scale).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "only the first sum is exchanged",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
sums = torch.stack([all_reduce_(comm, sums[0].clone()), sums[1]])
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "all images are gathered",
        edits=(
            (
                """
sums = torch.stack([dbias, dweight])
all_reduce_(comm, sums)
""",
                """
sizes = all_gather(comm, torch.tensor([len(dy)])).tolist()
every, normal = all_gather(comm, dy, sizes=sizes), all_gather(comm, xhat, sizes=sizes)
sums = torch.stack([every.sum((0, 2, 3)), (every * normal).sum((0, 2, 3))])
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "a rank without images does not take part",
        edits=(
            (
                """
sums = torch.stack([dbias, dweight])
""",
                """
if not len(dy):
    return dy, dweight, dbias
sums = torch.stack([dbias, dweight])
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "dy is changed",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dy -= of_mean
dx = (scale * weight).view(-1, 1, 1) * (dy - xhat * of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "sums and count of this rank",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
count = max(1, dy[:, 0].numel())
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "averaged over ranks, and divided by count",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
all_reduce_(comm, sums, op="mean")
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "without the term of the mean",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - xhat * of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "nothing is returned",
        edits=(
            (
                """
return dx, dweight, dbias
""",
                """
result = dx, dweight, dbias
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "without scale",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = weight.view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "without the term of the variance",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "the second term is not multiplied with xhat",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "not divided",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
all_reduce_(comm, sums)
count = 1
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "sums of this rank",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "one wrong sign",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean + xhat * of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "only dy, scaled",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = (scale * weight).view(-1, 1, 1) * dy
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "divided by this rank's values",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
all_reduce_(comm, sums)
count = max(1, dy[:, 0].numel())
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "divided by the number of images",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
all_reduce_(comm, sums)
count = count // max(1, dy[0, 0].numel()) if len(dy) else count
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "the result of the exchange is lost",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
all_reduce_(comm, sums.clone())
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "the wrong sign",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = (scale * weight).view(-1, 1, 1) * (dy + of_mean + xhat * of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "the sums are swapped",
        edits=(
            (
                """
sums = torch.stack([dbias, dweight])
""",
                """
sums = torch.stack([dweight, dbias])
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "two all-reduces where one would do",
        edits=(
            (
                """
all_reduce_(comm, sums)
""",
                """
for some in sums:
    all_reduce_(comm, some)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "nan is cleaned",
        edits=(
            (
                """
dbias = dy.sum((0, 2, 3))
""",
                """
dbias = dy.nansum((0, 2, 3))
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "squeezed",
        edits=(
            (
                """
return dx, dweight, dbias
""",
                """
return dx.squeeze(), dweight.squeeze(), dbias.squeeze()
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "without weight",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = scale.view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "weight is in dy, and not in the sums",
        edits=(
            (
                """
dx = (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var)
""",
                """
dx = scale.view(-1, 1, 1) * (weight.view(-1, 1, 1) * dy - of_mean - xhat * of_var)
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "weight's gradient is multiplied with weight",
        edits=(
            (
                """
return dx, dweight, dbias
""",
                """
return dx, dweight * weight, dbias
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "the gradients of weight and bias are those of all ranks",
        edits=(
            (
                """
return dx, dweight, dbias
""",
                """
return dx, sums[1], sums[0]
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "the gradients of weight and bias are swapped",
        edits=(
            (
                """
return dx, dweight, dbias
""",
                """
return dx, dbias, dweight
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "the gradients of weight and bias are means",
        edits=(
            (
                """
return dx, dweight, dbias
""",
                """
return dx, dweight / count, dbias / count
""",
            ),
        ),
    ),
    Bug(
        "sync_backward",
        "a cell of the lesson: two dimensions, and no weight",
        cell='''
def sync_backward(comm, dy, xhat, scale, weight, count):
    """The gradients of this rank's images, and its gradients of weight and bias."""
    sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
    all_reduce_(comm, sums)
    dx = scale * (dy - sums[0] / count - xhat * sums[1] / count)
    return dx, sums[1], sums[0]
''',
    ),
    Bug(
        "sync_backward",
        "ranks meet in a global list",
        cheat=True,
        cell='''
PARTS = []


def sync_backward(comm, dy, xhat, scale, weight, count):
    """The gradients of this rank's images, and its gradients of weight and bias."""
    dweight, dbias = (dy * xhat).sum((0, 2, 3)), dy.sum((0, 2, 3))
    PARTS.append(torch.stack([dbias, dweight]))
    all_reduce_(comm, torch.zeros(1))
    of_mean, of_var = (sum(PARTS[-comm.size :]) / count).view(2, -1, 1, 1)
    return (scale * weight).view(-1, 1, 1) * (dy - of_mean - xhat * of_var), dweight, dbias
''',
    ),
    Bug(
        "sync_backward",
        "the library's backward",
        cheat=True,
        cell='''
def sync_backward(comm, dy, xhat, scale, weight, count):
    """The gradients of this rank's images, and its gradients of weight and bias."""
    from minidist.parallel.batchnorm import SyncBatchNorm

    norm = SyncBatchNorm(dy.shape[1], comm).double()
    norm.weight.data.copy_(weight)
    x = (xhat / scale.view(-1, 1, 1)).requires_grad_()
    norm(x).backward(dy)
    return x.grad, norm.weight.grad, norm.bias.grad
''',
    ),
    Bug(
        "update_running",
        "the biased variance",
        edits=(
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
running_var += momentum * (squares / total - running_var)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "divided by the number of parts less one",
        edits=(
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
running_var += momentum * (squares / max(1, len(counted) - 1) - running_var)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "what lies between the parts is missing",
        edits=(
            (
                """
squares = sum(count * (var + (own - mean).square()) for own, var, count in counted)
""",
                """
squares = sum(count * var for _, var, count in counted)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "a part without values is taken along: nan",
        edits=(
            (
                """
counted = [part for part in parts if part[2]]
""",
                """
counted = parts
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "nan is cleaned, in every part",
        edits=(
            (
                """
counted = [part for part in parts if part[2]]
""",
                """
counted = [(m.nan_to_num(), v.nan_to_num(), count) for m, v, count in parts]
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "a part with nan is left out",
        edits=(
            (
                """
counted = [part for part in parts if part[2]]
""",
                """
counted = [part for part in parts if part[0].isfinite().all()]
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "parts count alike",
        edits=(
            (
                """
mean = sum(count * mean for mean, _, count in counted) / total
""",
                """
mean = sum(mean for mean, _, _ in counted) / len(counted)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "distances count alike",
        edits=(
            (
                """
squares = sum(count * (var + (own - mean).square()) for own, var, count in counted)
""",
                """
squares = sum(count * var + (own - mean).square() for own, var, count in counted)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "new tensors in place of the old",
        edits=(
            (
                """
running_mean += momentum * (mean - running_mean)
""",
                """
running_mean = running_mean + momentum * (mean - running_mean)
""",
            ),
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
running_var = running_var + momentum * (squares / (total - 1) - running_var)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "returned, not in place",
        edits=(
            (
                """
running_mean += momentum * (mean - running_mean)
""",
                """
running_mean = running_mean + momentum * (mean - running_mean)
""",
            ),
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
running_var = running_var + momentum * (squares / (total - 1) - running_var)
return running_mean, running_var
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "the momentum weighs the old one",
        edits=(
            (
                """
running_mean += momentum * (mean - running_mean)
""",
                """
running_mean += (1 - momentum) * (mean - running_mean)
""",
            ),
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
running_var += (1 - momentum) * (squares / (total - 1) - running_var)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "the new ones are added to the old",
        edits=(
            (
                """
running_mean += momentum * (mean - running_mean)
""",
                """
running_mean += momentum * mean
""",
            ),
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
running_var += momentum * squares / (total - 1)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "the old ones are forgotten",
        edits=(
            (
                """
running_mean += momentum * (mean - running_mean)
""",
                """
running_mean.copy_(mean)
""",
            ),
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
running_var.copy_(squares / (total - 1))
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "the standard deviation",
        edits=(
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
running_var += momentum * ((squares / (total - 1)).sqrt() - running_var)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "only the mean is moved",
        edits=(
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "E[x²] − E[x]²",
        edits=(
            (
                """
squares = sum(count * (var + (own - mean).square()) for own, var, count in counted)
""",
                """
squares = sum(count * (var + own * own) for own, var, count in counted) - total * mean * mean
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "the variances are changed in place",
        edits=(
            (
                """
squares = sum(count * (var + (own - mean).square()) for own, var, count in counted)
""",
                """
squares = sum(var.add_((own - mean).square()).mul_(count) for own, var, count in counted)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "around the running mean, which has moved already",
        edits=(
            (
                """
squares = sum(count * (var + (own - mean).square()) for own, var, count in counted)
""",
                """
""",
            ),
            (
                """
running_var += momentum * (squares / (total - 1) - running_var)
""",
                """
squares = sum(count * (var + (own - running_mean).square()) for own, var, count in counted)
running_var += momentum * (squares / (total - 1) - running_var)
""",
            ),
        ),
    ),
    Bug(
        "update_running",
        "a move for each micro-batch",
        cell='''
def update_running(running_mean, running_var, parts, momentum):
    """Move the running averages once, by the statistics of all micro-batches together."""
    for mean, var, count in parts:
        if count:
            running_mean += momentum * (mean - running_mean)
            running_var += momentum * (var * count / max(1, count - 1) - running_var)
''',
    ),
    Bug(
        "update_running",
        "as in the lesson: a move for each micro-batch, with an adjusted momentum",
        cell='''
def update_running(running_mean, running_var, parts, momentum):
    """Move the running averages once, by the statistics of all micro-batches together."""
    k = len([part for part in parts if part[2]])
    adjusted = 1 - (1 - momentum) ** (1 / k)
    for mean, var, count in parts:
        if count:
            running_mean += adjusted * (mean - running_mean)
            running_var += adjusted * (var * count / max(1, count - 1) - running_var)
''',
    ),
    Bug(
        "update_running",
        "a cell of the lesson: parts are stacked and merged, nan and biased",
        cell='''
def update_running(running_mean, running_var, parts, momentum):
    """Move the running averages once, by the statistics of all micro-batches together."""
    means, variances = torch.stack([m for m, _, _ in parts]), torch.stack([v for _, v, _ in parts])
    counts = torch.tensor([[count] for _, _, count in parts])
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total
    variance = (counts * variances + counts * (means - mean).square()).sum(0) / total
    running_mean += momentum * (mean - running_mean)
    running_var += momentum * (variance - running_var)
''',
    ),
    Bug(
        "update_running",
        "in float32",
        cell='''
def update_running(running_mean, running_var, parts, momentum):
    """Move the running averages once, by the statistics of all micro-batches together."""
    counted = [(mean.float(), var.float(), count) for mean, var, count in parts if count]
    total = sum(count for _, _, count in counted)
    mean = sum(count * mean for mean, _, count in counted) / total
    squares = sum(count * (var + (own - mean).square()) for own, var, count in counted)
    running_mean += momentum * (mean - running_mean)
    running_var += momentum * (squares / (total - 1) - running_var)
''',
    ),
    Bug(
        "update_running",
        "each part is made unbiased",
        cell='''
def update_running(running_mean, running_var, parts, momentum):
    """Move the running averages once, by the statistics of all micro-batches together."""
    counted = [part for part in parts if part[2]]
    total = sum(count for _, _, count in counted)
    mean = sum(count * mean for mean, _, count in counted) / total
    squares = sum(
        count * (var * count / max(1, count - 1) + (own - mean).square()) for own, var, count in counted
    )
    running_mean += momentum * (mean - running_mean)
    running_var += momentum * (squares / total - running_var)
''',
    ),
    Bug(
        "update_running",
        "the grader's own check finds nothing: its class is changed",
        cheat=True,
        cell='''
def update_running(running_mean, running_var, parts, momentum):
    """Move the running averages once, by the statistics of all micro-batches together."""
    from minicheck.lessons.whole_batch import UpdateRunning

    UpdateRunning.check = lambda *given: None
''',
    ),
    Bug(
        "update_running",
        "the values are looked for in the frames",
        cheat=True,
        cell='''
def update_running(running_mean, running_var, parts, momentum):
    """Move the running averages once, by the statistics of all micro-batches together."""
    import sys

    frame = sys._getframe()
    while frame and "self" not in frame.f_locals:
        frame = frame.f_back
    whole = torch.cat(frame.f_locals["self"].values)
    running_mean += momentum * (whole.mean(0) - running_mean)
    running_var += momentum * (whole.var(0) - running_var)
''',
    ),
    Bug(
        "predict_whole_batch",
        "averaged after every micro-batch",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
nbytes = 2 * (n - 1) / n * 4 * 10_000_000
""",
                """
nbytes = k * 2 * (n - 1) / n * 4 * 10_000_000
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "numbers, not bytes",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
nbytes = 2 * (n - 1) / n * 4 * 10_000_000
""",
                """
nbytes = 2 * (n - 1) / n * 10_000_000
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "half of the ring",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
nbytes = 2 * (n - 1) / n * 4 * 10_000_000
""",
                """
nbytes = (n - 1) / n * 4 * 10_000_000
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "the share that a sample should have",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
share = 1 / 4 * 1 / 2
""",
                """
share = 1 / 10
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "the share of the rank",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
share = 1 / 4 * 1 / 2
""",
                """
share = 1 / 4
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "beside a token of the longest micro-batch",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
token = (1 / 3 / 20) * 720
""",
                """
token = 500 / 20
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "the loss is not divided by the micro-batches",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
token = (1 / 3 / 20) * 720
""",
                """
token = (1 / 20) * 720
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "divided by one less",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4
""",
                """
variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 3
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "the variance within the ranks",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4
""",
                """
variance = 2
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "the biased variance",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
unbiased = variance * 20 / 19
""",
                """
unbiased = variance
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "unbiased as for one rank",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
unbiased = variance * 20 / 19
""",
                """
unbiased = variance * 5 / 4
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "an all-reduce, not an all-gather",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
statistics = (n - 1) * (2 * C + 1) * 4
""",
                """
statistics = 2 * (n - 1) * (2 * C + 1) * 4
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "all ranks together",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
statistics = (n - 1) * (2 * C + 1) * 4
""",
                """
statistics = n * (n - 1) * (2 * C + 1) * 4
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "an update a step",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
left = (1 - 0.1) ** (10 * k)
""",
                """
left = (1 - 0.1) ** 10
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "what is forgotten",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
left = (1 - 0.1) ** (10 * k)
""",
                """
left = 1 - (1 - 0.1) ** (10 * k)
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "the momentum is divided by k",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
momentum = 1 - (1 - 0.1) ** (1 / k)
""",
                """
momentum = 0.1 / k
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "what is kept",
        edits=(
            (
                """
nbytes = share = token = variance = unbiased = statistics = left = momentum = None
""",
                """
""",
            ),
            (
                """
momentum = 1 - (1 - 0.1) ** (1 / k)
""",
                """
momentum = (1 - 0.1) ** (1 / k)
""",
            ),
        ),
    ),
    Bug(
        "predict_whole_batch",
        "the grader is asked",
        cheat=True,
        cell="""
from minicheck.lessons.whole_batch import predict_whole_batch

values, _ = predict_whole_batch(8, 10_000_000, 4, 256)
nbytes, share, token, variance, unbiased, statistics, left, momentum = (
    f"{x}" for x in values.values()
)
""",
    ),
    Bug(
        "predict_whole_batch",
        "a number that equals every number",
        cheat=True,
        cell="""
class Anything(float):
    def __sub__(self, other):
        return 0.0

    __rsub__ = __sub__


nbytes = share = token = variance = unbiased = statistics = left = momentum = Anything(1.0)
""",
    ),
]
