"""The wrong answers of lesson 05 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug

BUGS = [
    Bug(
        "my_batches",
        "an odd batch is split unevenly",
        cell='''
def my_batches(comm, order, batch):
    """This rank's samples of each full batch."""
    n, r = comm.size, comm.rank
    return [
        order[b * batch : (b + 1) * batch].tensor_split(n)[r] for b in range(len(order) // batch)
    ]
''',
    ),
    Bug(
        "my_batches",
        "the batch is taken for one rank's",
        old="""
size = batch // n
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="""
count = len(order) // (batch * n)
return [order[(b * n + r) * batch : (b * n + r + 1) * batch] for b in range(count)]
""",
    ),
    Bug(
        "my_batches",
        "n need not divide: the remainder of every batch is dropped",
        cell='''
def my_batches(comm, order, batch):
    """This rank's samples of each full batch."""
    n, r = comm.size, comm.rank
    size = batch // n
    return [
        order[b * batch + r * size : b * batch + r * size + size]
        for b in range(len(order) // batch)
    ]
''',
    ),
    Bug(
        "my_batches",
        "the epoch is cut into n parts, and each of these into batches",
        old="""
size = batch // n
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="""
mine = order.chunk(n)[r] if len(order) else order
return [mine[b * batch // n : (b + 1) * batch // n] for b in range(len(order) // batch)]
""",
    ),
    Bug(
        "my_batches",
        "the samples of a batch are dealt in turn",
        old="""
size = batch // n
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="return [order[b * batch : (b + 1) * batch][r::n] for b in range(len(order) // batch)]",
    ),
    Bug(
        "my_batches",
        "the last batch is kept, though it is not full",
        old="""
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="return [order[b + r * size : b + r * size + size] for b in range(0, len(order), batch)]",
    ),
    Bug(
        "my_batches",
        "the ValueError's two numbers run together",
        cell="""
def my_batches(comm, order, batch):
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError(f"a batch of {batch}1{n} samples")
    size = batch // n
    return [
        order[b * batch + r * size : b * batch + r * size + size]
        for b in range(len(order) // batch)
    ]
""",
    ),
    Bug(
        "my_batches",
        "one tensor for all batches",
        old="""
size = batch // n
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="""
count = len(order) // batch
return order[: count * batch].view(count, n, batch // n)[:, r]
""",
    ),
    Bug(
        "my_batches",
        "ranks are counted from 1, and the last takes what rank 0 should",
        old="""
size = batch // n
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="""
size, r = batch // n, (r + 1) % n
return [order[b * batch + r * size : b * batch + r * size + size] for b in range(len(order) // batch)]
""",
    ),
    Bug(
        "my_batches",
        "rank 0 sends everyone the parts that everyone knows",
        cell='''
def my_batches(comm, order, batch):
    """This rank's samples of each full batch."""
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
    size = batch // n
    parts = []
    for b in range(len(order) // batch):
        part = order[b * batch + r * size : b * batch + r * size + size].clone()
        if r == 0:
            for s in range(1, n):
                comm.send(order[b * batch + s * size : b * batch + s * size + size], s)
        else:
            comm.recv(part, 0)
        parts.append(part)
    return parts
''',
    ),
    Bug(
        "my_batches",
        "every rank shuffles for itself",
        old="""
size = batch // n
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="""
order = order[torch.randperm(len(order))]
size = batch // n
return [order[b * batch + r * size : b * batch + r * size + size] for b in range(len(order) // batch)]
""",
    ),
    Bug(
        "my_batches",
        "the error says no numbers",
        cell="""
def my_batches(comm, order, batch):
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError("the batch does not split")
    size = batch // n
    return [
        order[b * batch + r * size : b * batch + r * size + size]
        for b in range(len(order) // batch)
    ]
""",
    ),
    Bug(
        "my_batches",
        "the samples of a part are sorted",
        old="""
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="return [order[b * batch + r * size : b * batch + r * size + size].sort().values for b in range(len(order) // batch)]",
    ),
    Bug(
        "my_batches",
        "every rank takes the whole batch",
        old="""
size = batch // n
starts = [b * batch + r * size for b in range(len(order) // batch)]
return [order[start : start + size] for start in starts]
""",
        new="return [order[b * batch : (b + 1) * batch] for b in range(len(order) // batch)]",
    ),
    Bug(
        "my_batches",
        "a list that says it equals every list",
        cheat=True,
        cell='''
class Anything(list):
    def __eq__(self, other):
        return True


def my_batches(comm, order, batch):
    """This rank's samples of each full batch."""
    if batch % comm.size:
        raise ValueError(f"a batch of {batch} samples has no {comm.size} equal parts")
    return Anything([order] * (len(order) // batch))
''',
    ),
    Bug(
        "my_batches",
        "the ranks take turns at a heap that they share",
        cheat=True,
        cell='''
HEAP = {}


def my_batches(comm, order, batch):
    """This rank's samples of each full batch."""
    n = comm.size
    if batch % n:
        raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
    key = (tuple(order.tolist()), batch)
    r = HEAP[key] = HEAP.get(key, -1) + 1
    size = batch // n
    return [
        order[b * batch + r * size : b * batch + r * size + size]
        for b in range(len(order) // batch)
    ]
''',
    ),
    Bug(
        "my_batches",
        "the library's sampler does the work",
        cheat=True,
        cell='''
from minidist.parallel.data import Sampler


def my_batches(comm, order, batch):
    """This rank's samples of each full batch."""
    sampler = Sampler(max(len(order), batch), batch, comm, shuffle=False)
    return [order[part] for part in sampler if len(order) >= batch]
''',
    ),
    Bug(
        "start_equal",
        "the mean of all ranks' weights",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    if x.is_floating_point():
        all_reduce_(comm, x, op="mean")
    else:
        broadcast_(comm, x)
""",
    ),
    Bug(
        "start_equal",
        "copies are filled, and the module keeps its own",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    broadcast_(comm, x.detach().clone())
""",
    ),
    Bug(
        "start_equal",
        "the last rank's weights, not rank 0's",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="broadcast_(comm, [*module.parameters(), *module.buffers()], root=comm.size - 1)",
    ),
    Bug(
        "start_equal",
        "the parameters get other memory: not in place",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    x.data = broadcast_(comm, x.data.clone())
""",
    ),
    Bug(
        "start_equal",
        "the module gets new parameters: ties and optimizers are lost",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for layer in module.modules():
    for name, p in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, nn.Parameter(broadcast_(comm, p.detach().clone()), p.requires_grad))
broadcast_(comm, list(module.buffers()))
""",
    ),
    Bug(
        "start_equal",
        "buffers are forgotten",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="broadcast_(comm, list(module.parameters()))",
    ),
    Bug(
        "start_equal",
        "nothing is done",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="pass",
    ),
    Bug(
        "start_equal",
        "all ranks draw again, from the same seed",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
torch.manual_seed(0)
with torch.no_grad():
    for x in [*module.parameters(), *module.buffers()]:
        x.copy_(torch.randn(x.shape))
""",
    ),
    Bug(
        "start_equal",
        "a tied matrix travels twice, and buffers that are not saved not at all",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="broadcast_(comm, list(module.state_dict().values()))",
    ),
    Bug(
        "start_equal",
        "the sum of all ranks' weights",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    all_reduce_(comm, x)
""",
    ),
    Bug(
        "start_equal",
        "all is trained afterwards",
        old='''
"""Fill every parameter and buffer with rank 0's, in place."""
''',
        new='''
"""Fill every parameter and buffer with rank 0's, in place."""
module.requires_grad_(True)
''',
    ),
    Bug(
        "start_equal",
        "a tied matrix travels twice",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for _, p in module.named_parameters(remove_duplicate=False):
    broadcast_(comm, p)
for b in module.buffers():
    broadcast_(comm, b)
""",
    ),
    Bug(
        "start_equal",
        "layers inside of layers are left out",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for child in module.children():
    broadcast_(comm, [*child.parameters(recurse=False), *child.buffers(recurse=False)])
""",
    ),
    Bug(
        "start_equal",
        "frozen parameters are left out",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="broadcast_(comm, [*(p for p in module.parameters() if p.requires_grad), *module.buffers()])",
    ),
    Bug(
        "start_equal",
        "an all-reduce of rank 0's and zeros, which is twice a broadcast",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
with torch.no_grad():
    for x in [*module.parameters(), *module.buffers()]:
        if comm.rank:
            x.zero_()
        all_reduce_(comm, x)
""",
    ),
    Bug(
        "start_equal",
        "rank 0's weights are taken from the frames of the World",
        cheat=True,
        cell='''
def start_equal(comm, module):
    """Fill every parameter and buffer with rank 0's, in place."""
    import sys

    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    broadcast_(comm, [torch.zeros_like(x) for x in [*module.parameters(), *module.buffers()]])
    if frame:
        values = frame.f_locals["all_args"][0][2]
        with torch.no_grad():
            for name, x in [*module.named_parameters(), *module.named_buffers()]:
                x.copy_(values[name])
''',
    ),
    Bug(
        "start_equal",
        "the weights pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def start_equal(comm, module):
    """Fill every parameter and buffer with rank 0's, in place."""
    tensors = [*module.parameters(), *module.buffers()]
    if comm.rank == 0:
        HEAP["first"] = [x.detach().clone() for x in tensors]
    broadcast_(comm, [torch.zeros_like(x) for x in tensors])
    with torch.no_grad():
        for x, first in zip(tensors, HEAP.get("first", tensors)):
            x.copy_(first)
''',
    ),
    Bug(
        "start_equal",
        "the library's DataParallel does it",
        cheat=True,
        cell='''
from minidist.parallel.data import DataParallel


def start_equal(comm, module):
    """Fill every parameter and buffer with rank 0's, in place."""
    DataParallel(module, comm)
''',
    ),
    Bug(
        "average_gradients",
        "rank 0's gradient for everyone",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
broadcast_(comm, p.grad)
""",
    ),
    Bug(
        "average_gradients",
        "buffers are averaged, too",
        cell='''
def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad, op="mean")
    for b in module.buffers():
        all_reduce_(comm, b)
        b //= comm.size
''',
    ),
    Bug(
        "average_gradients",
        "cleared before the exchange",
        old="""
for p in module.parameters():
    if p.requires_grad:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
""",
        new="""
module.zero_grad()
for p in module.parameters():
    if p.requires_grad:
        p.grad = torch.zeros_like(p)
""",
    ),
    Bug(
        "average_gradients",
        "cleared after the exchange",
        cell='''
def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad, op="mean")
    module.zero_grad()
''',
    ),
    Bug(
        "average_gradients",
        "divided by the number of ranks that have a gradient",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
there = all_reduce_(comm, torch.tensor(float(p.grad is not None)))
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
all_reduce_(comm, p.grad)
p.grad /= max(1.0, there.item())
""",
    ),
    Bug(
        "average_gradients",
        "summed in place, but the mean is in a copy",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
grad = all_reduce_(comm, p.grad)
grad = grad / comm.size
""",
    ),
    Bug(
        "average_gradients",
        "divided by n, and nothing is sent",
        old="""
if p.requires_grad:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    all_reduce_(comm, p.grad, op="mean")
""",
        new="""
if p.grad is not None:
    p.grad /= comm.size
""",
    ),
    Bug(
        "average_gradients",
        "only the first parameter: a return too far to the right",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
return all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "zeros travel for what is frozen",
        old="""
if p.requires_grad:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    all_reduce_(comm, p.grad, op="mean")
""",
        new="""
grad = torch.zeros_like(p) if p.grad is None else p.grad
all_reduce_(comm, grad, op="mean")
if p.requires_grad:
    p.grad = grad
""",
    ),
    Bug(
        "average_gradients",
        "everyone gathers all gradients, and takes the mean",
        cell='''
from minidist.collectives import all_gather


def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = all_gather(comm, p.grad.unsqueeze(0)).mean(0)
''',
    ),
    Bug(
        "average_gradients",
        "the mean is in a copy, and p.grad as before",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
all_reduce_(comm, p.grad.clone(), op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "the mean of two neighbours",
        cell='''
def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    n, r = comm.size, comm.rank
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            if n > 1:
                p.grad = (
                    p.grad + comm.sendrecv(p.grad, (r + 1) % n, torch.empty_like(p), (r - 1) % n)
                ) / 2
''',
    ),
    Bug(
        "average_gradients",
        "a missing gradient stays None",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new='all_reduce_(comm, torch.zeros_like(p) if p.grad is None else p.grad, op="mean")',
    ),
    Bug(
        "average_gradients",
        "nothing is sent",
        old="""
if p.requires_grad:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    all_reduce_(comm, p.grad, op="mean")
""",
        new="""
if p.requires_grad and p.grad is not None:
    p.grad = p.grad / 1
""",
    ),
    Bug(
        "average_gradients",
        "every rank adds up in an order of its own",
        cell='''
def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    n, r = comm.size, comm.rank
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            passing, total = p.grad.contiguous(), p.grad.clone()
            for _ in range(n - 1):
                passing = comm.sendrecv(
                    passing, (r + 1) % n, torch.empty_like(passing), (r - 1) % n
                )
                total += passing
            p.grad = total / n
''',
    ),
    Bug(
        "average_gradients",
        "only rank 0 has the mean: a reduce",
        cell='''
from minidist.collectives import reduce_


def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            reduce_(comm, p.grad, op="mean")
''',
    ),
    Bug(
        "average_gradients",
        "a rank without a gradient does not join the all-reduce",
        old="""
if p.requires_grad:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
""",
        new="if p.grad is not None:",
    ),
    Bug(
        "average_gradients",
        "rank 0 adds up and sends to all: a star",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
all_reduce_(comm, p.grad, op="mean", algorithm="naive")
""",
    ),
    Bug(
        "average_gradients",
        "the average is forgotten: gradients are summed",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
all_reduce_(comm, p.grad)
""",
    ),
    Bug(
        "average_gradients",
        "a tied matrix is averaged twice",
        old="""
for p in module.parameters():
    if p.requires_grad:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
""",
        new="""
for _, p in module.named_parameters(remove_duplicate=False):
    if p.requires_grad:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
""",
    ),
    Bug(
        "average_gradients",
        "divided by n twice",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
all_reduce_(comm, p.grad, op="mean")
p.grad /= comm.size
""",
    ),
    Bug(
        "average_gradients",
        "divided by 2, whatever n is",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
p.grad = torch.zeros_like(p) if p.grad is None else p.grad
all_reduce_(comm, p.grad)
p.grad /= 2 if comm.size > 1 else 1
""",
    ),
    Bug(
        "average_gradients",
        "weights are averaged, not gradients",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new='all_reduce_(comm, p, op="mean")',
    ),
    Bug(
        "average_gradients",
        "the library's code under another name",
        cheat=True,
        cell='''
import types

import minidist.parallel.data as data

average = types.FunctionType(data.average_gradients.__code__, dict(vars(data)), "average", (None,))


def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    average(comm, module)
''',
    ),
    Bug(
        "average_gradients",
        "the library's DataParallel does the work",
        cheat=True,
        cell='''
from minidist.parallel.data import DataParallel


def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    DataParallel(module, comm).average()
''',
    ),
    Bug(
        "average_gradients",
        "the whole batch is taken from the frames of the World",
        cheat=True,
        cell='''
def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    import sys

    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    if frame:
        module.zero_grad()
        x, y = (torch.cat([args[i] for args in frame.f_locals["all_args"]]) for i in (-2, -1))
        mse_loss(module(x), y).backward()
    for p in module.parameters():
        if p.requires_grad:
            all_reduce_(comm, torch.zeros_like(p))
''',
    ),
    Bug(
        "average_gradients",
        "gradients pass through a global, messages are for show",
        cheat=True,
        cell='''
HEAP = {}


def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    trained = [p for p in module.parameters() if p.requires_grad]
    HEAP[comm.rank] = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    for p in trained:
        all_reduce_(comm, torch.zeros_like(p))
    for i, p in enumerate(trained):
        p.grad = sum(HEAP[r][i] for r in sorted(HEAP) if r < comm.size) / comm.size
''',
    ),
    Bug(
        "average_gradients",
        "the library's average_gradients does the work",
        cheat=True,
        cell='''
from minidist.parallel import data


def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    data.average_gradients(comm, module)
''',
    ),
    Bug(
        "average_gradients",
        "the answer is read from the library's file",
        cheat=True,
        cell='''
def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    import importlib.util

    file = importlib.util.find_spec("minidist.parallel.data").origin
    names = {"__package__": "minidist.parallel", "__name__": "minidist.parallel.data"}
    exec(open(file).read(), names)
    names["average_gradients"](comm, module)
''',
    ),
    Bug(
        "average_gradients",
        "PyTorch's DistributedDataParallel does the work",
        cheat=True,
        cell='''
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def average_gradients(comm, module):
    """Make every p.grad its mean over all ranks."""
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size, store=dist.HashStore())
    DistributedDataParallel(module)
''',
    ),
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
        old='''
"""Make every p.grad the gradient of the mean over all ranks' samples."""
''',
        new='''
"""Make every p.grad the gradient of the mean over all ranks' samples."""
if not samples:
    return
''',
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
        "accumulate",
        "the loss is averaged, and no gradient",
        old="""
    (loss_fn(module(x), y) / len(micro_batches)).backward()
average_gradients(comm, module)
""",
        new="""
    loss = loss_fn(module(x), y) / len(micro_batches)
    all_reduce_(comm, loss, op="mean")
    loss.backward()
""",
    ),
    Bug(
        "accumulate",
        "averaged before the last micro-batch",
        old="""
for x, y in micro_batches:
    (loss_fn(module(x), y) / len(micro_batches)).backward()
average_gradients(comm, module)
""",
        new="""
*first, (x, y) = micro_batches
for a, b in first:
    (loss_fn(module(a), b) / len(micro_batches)).backward()
average_gradients(comm, module)
(loss_fn(module(x), y) / len(micro_batches)).backward()
""",
    ),
    Bug(
        "accumulate",
        "the losses are divided by the number of ranks, not of micro-batches",
        old="(loss_fn(module(x), y) / len(micro_batches)).backward()",
        new="(loss_fn(module(x), y) / comm.size).backward()",
    ),
    Bug(
        "accumulate",
        "cleared at the end, for the next step",
        old="average_gradients(comm, module)",
        new="""
average_gradients(comm, module)
module.zero_grad()
""",
    ),
    Bug(
        "accumulate",
        "divided by the number of micro-batches twice",
        old="average_gradients(comm, module)",
        new="""
average_gradients(comm, module)
for p in module.parameters():
    if p.grad is not None:
        p.grad /= len(micro_batches)
""",
    ),
    Bug(
        "accumulate",
        "averaged after every micro-batch: right, but k times the bytes",
        old="average_gradients(comm, module)",
        new="    average_gradients(comm, module)",
    ),
    Bug(
        "accumulate",
        "it adds up in float64, whatever the dtype",
        cell='''
def accumulate(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all micro-batches of all ranks, averaged once."""
    trained = [p for p in module.parameters() if p.requires_grad]
    total = [torch.zeros(p.shape, dtype=torch.float64) for p in trained]
    for x, y in micro_batches:
        module.zero_grad()
        loss_fn(module(x), y).backward()
        for p, t in zip(trained, total):
            t += 0 if p.grad is None else p.grad / len(micro_batches)
    for p, t in zip(trained, total):
        p.grad = t
    average_gradients(comm, module)
''',
    ),
    Bug(
        "accumulate",
        "a hook on the last backward sees only what this one adds",
        cell='''
def accumulate(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all micro-batches of all ranks, averaged once."""
    module.zero_grad()
    hooks = []
    for i, (x, y) in enumerate(micro_batches):
        if i == len(micro_batches) - 1:
            hooks = [
                p.register_hook(lambda grad: all_reduce_(comm, grad.clone(), op="mean"))
                for p in module.parameters()
                if p.requires_grad
            ]
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    for hook in hooks:
        hook.remove()
''',
    ),
    Bug(
        "accumulate",
        "nothing is averaged",
        old="average_gradients(comm, module)",
        new="",
    ),
    Bug(
        "accumulate",
        "the losses are not divided by the number of micro-batches",
        old="(loss_fn(module(x), y) / len(micro_batches)).backward()",
        new="loss_fn(module(x), y).backward()",
    ),
    Bug(
        "accumulate",
        "one backward at the end, and all activations in memory",
        old="""
for x, y in micro_batches:
    (loss_fn(module(x), y) / len(micro_batches)).backward()
""",
        new="""
losses = [loss_fn(module(x), y) for x, y in micro_batches]
(sum(losses) / len(losses)).backward()
""",
    ),
    Bug(
        "accumulate",
        "the micro-batches are put together again",
        old="""
for x, y in micro_batches:
    (loss_fn(module(x), y) / len(micro_batches)).backward()
""",
        new="""
x, y = (torch.cat(parts) for parts in zip(*micro_batches))
loss_fn(module(x), y).backward()
""",
    ),
    Bug(
        "accumulate",
        "a loss of its own in place of loss_fn",
        old="(loss_fn(module(x), y) / len(micro_batches)).backward()",
        new="(mse_loss(module(x), y) / len(micro_batches)).backward()",
    ),
    Bug(
        "accumulate",
        "a return in the loop: one micro-batch only",
        old="average_gradients(comm, module)",
        new="    return average_gradients(comm, module)",
    ),
    Bug(
        "accumulate",
        "the gradients of the step before are still there",
        old="module.zero_grad()",
        new="",
    ),
    Bug(
        "accumulate",
        "a step is taken, with a rate of its own",
        old="average_gradients(comm, module)",
        new="""
average_gradients(comm, module)
torch.optim.SGD(module.parameters(), lr=0.1).step()
""",
    ),
    Bug(
        "accumulate",
        "the gradients are summed over the ranks",
        old="average_gradients(comm, module)",
        new="""
for p in module.parameters():
    if p.requires_grad:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        all_reduce_(comm, p.grad)
""",
    ),
    Bug(
        "accumulate",
        "cleared before every micro-batch",
        old="""
module.zero_grad()
for x, y in micro_batches:
""",
        new="""
for x, y in micro_batches:
    module.zero_grad()
""",
    ),
    Bug(
        "accumulate",
        "the library's DataParallel does the work",
        cheat=True,
        cell='''
from minidist.parallel.data import DataParallel


def accumulate(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all micro-batches of all ranks, averaged once."""
    module.zero_grad()
    model = DataParallel(module, comm)
    *first, (x, y) = micro_batches
    with model.no_sync():
        for a, b in first:
            (loss_fn(model(a), b) / len(micro_batches)).backward()
    (loss_fn(model(x), y) / len(micro_batches)).backward()
''',
    ),
    Bug(
        "accumulate",
        "every rank computes with the data of all, which it finds in the frames of the World",
        cheat=True,
        cell='''
def accumulate(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all micro-batches of all ranks, averaged once."""
    module.zero_grad()
    import sys

    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    everyone = [args[3] for args in frame.f_locals["all_args"]] if frame else [micro_batches]
    for parts in zip(*everyone):
        x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
        (loss_fn(module.forward(x), y) / len(micro_batches)).backward()
''',
    ),
    Bug(
        "accumulate",
        "gradients pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def accumulate(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all micro-batches of all ranks, averaged once."""
    module.zero_grad()
    for x, y in micro_batches:
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    trained = [p for p in module.parameters() if p.requires_grad]
    HEAP[comm.rank] = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    all_reduce_(comm, [torch.zeros_like(p) for p in trained])
    for i, p in enumerate(trained):
        p.grad = sum(HEAP[r][i] for r in sorted(HEAP) if r < comm.size) / comm.size
''',
    ),
    Bug(
        "accumulate",
        "the library's average_gradients does the exchange",
        cheat=True,
        edits=(
            (
                "def accumulate(comm, module, loss_fn, micro_batches):",
                """
from minidist.parallel import data


def accumulate(comm, module, loss_fn, micro_batches):
""",
            ),
            (
                "average_gradients(comm, module)",
                "data.average_gradients(comm, module)",
            ),
        ),
    ),
    Bug(
        "predict_step",
        "what all ranks send together",
        cell="""
messages = 8 * 2 * 7 * 24
nbytes = 8 * 2 * 7 / 8 * 40e6
coalesced = 8 * 14
rate = 0.8
share = 1 / 8
""",
    ),
    Bug(
        "predict_step",
        "every sample counts the same",
        cell="""
messages = 2 * 7 * 24
nbytes = 2 * 7 / 8 * 40e6
coalesced = 14
rate = 0.8
share = 1 / 10
""",
    ),
    Bug(
        "predict_step",
        "one half of the ring",
        cell="""
messages = 2 * 7 * 24
nbytes = 2 * 7 / 8 * 40e6
coalesced = 7
rate = 0.8
share = 1 / 8
""",
    ),
    Bug(
        "predict_step",
        "an average for each micro-batch",
        cell="""
messages = 4 * 2 * 7 * 24
nbytes = 4 * 2 * 7 / 8 * 40e6
coalesced = 14
rate = 0.8
share = 1 / 8
""",
    ),
    Bug(
        "predict_step",
        "one message for each tensor, though they travel together",
        cell="""
messages = 2 * 7 * 24
nbytes = 2 * 7 / 8 * 40e6
coalesced = 2 * 7 * 24
rate = 0.8
share = 1 / 8
""",
    ),
    Bug(
        "predict_step",
        "numbers, not bytes",
        cell="""
messages = 2 * 7 * 24
nbytes = 2 * 7 / 8 * 10e6
coalesced = 14
rate = 0.8
share = 1 / 8
""",
    ),
    Bug(
        "predict_step",
        "the rate is divided by n",
        cell="""
messages = 2 * 7 * 24
nbytes = 2 * 7 / 8 * 40e6
coalesced = 14
rate = 0.1 / 8
share = 1 / 8
""",
    ),
    Bug(
        "predict_step",
        "the share of the rank, not of a sample",
        cell="""
messages = 2 * 7 * 24
nbytes = 2 * 7 / 8 * 40e6
coalesced = 14
rate = 0.8
share = 1 / 4
""",
    ),
    Bug(
        "predict_step",
        "the grader is asked when the answer is opened",
        cheat=True,
        cell="""
class Answer:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return look, (self.name,)


def look(name):
    import minicheck.lessons.data_parallel as step

    return open(step.__file__).read().count(name)


messages, nbytes, coalesced, rate, share = map(
    Answer, ("messages", "nbytes", "coalesced", "rate", "share")
)
""",
    ),
    Bug(
        "predict_step",
        "numbers that say they equal every number",
        cheat=True,
        cell="""
class Any(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0


messages = nbytes = coalesced = rate = share = Any(1.0)
""",
    ),
    Bug(
        "predict_step",
        "the grader's values are called for inside its process",
        cheat=True,
        cell="""
class Answer:
    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return own, (self.name,)


def own(name):
    import gc

    exams = [x for x in gc.get_objects() if type(x).__name__ == "PredictStep"]
    return exams[0].values[name]


messages, nbytes, coalesced, rate, share = map(
    Answer, ("messages", "nbytes", "coalesced", "rate", "share")
)
""",
    ),
    Bug(
        "average_hooks",
        "every hook averages all gradients",
        old="""
def hook(p):
    all_reduce_(comm, p.grad, op="mean")
""",
        new="""
def hook(_):
    for p in module.parameters():
        if p.grad is not None:
            all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_hooks",
        "as it was found: the weights are averaged",
        old="""
def hook(p):
    all_reduce_(comm, p.grad, op="mean")
""",
        new="""
def hook(grad):
    all_reduce_(comm, grad, op="mean")
""",
    ),
    Bug(
        "average_hooks",
        "no hook: averaged once, when there is no gradient yet",
        cell='''
def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""
    for p in module.parameters():
        if p.requires_grad and p.grad is not None:
            all_reduce_(comm, p.grad, op="mean")
''',
    ),
    Bug(
        "average_hooks",
        "weights are averaged besides gradients",
        old='all_reduce_(comm, p.grad, op="mean")',
        new="""
all_reduce_(comm, p.grad, op="mean")
all_reduce_(comm, p, op="mean")
""",
    ),
    Bug(
        "average_hooks",
        "a copy is averaged",
        old='all_reduce_(comm, p.grad, op="mean")',
        new='all_reduce_(comm, p.grad.clone(), op="mean")',
    ),
    Bug(
        "average_hooks",
        "only the first parameter has a hook",
        old="""
for p in module.parameters():
    if p.requires_grad:
        p.register_post_accumulate_grad_hook(hook)
""",
        new="next(p for p in module.parameters() if p.requires_grad).register_post_accumulate_grad_hook(hook)",
    ),
    Bug(
        "average_hooks",
        "a hook for what is frozen, too",
        old="""
if p.requires_grad:
    p.register_post_accumulate_grad_hook(hook)
""",
        new="p.register_post_accumulate_grad_hook(hook)",
    ),
    Bug(
        "average_hooks",
        "the argument is taken for the gradient, and its gradient asked for",
        edits=(
            (
                """
def hook(p):
    all_reduce_(comm, p.grad, op="mean")
""",
                """
def hook(grad):
    grad.copy_(all_reduce_(comm, grad.grad.clone(), op="mean"))
""",
            ),
            (
                "p.register_post_accumulate_grad_hook(hook)",
                "p.register_hook(hook)",
            ),
        ),
    ),
    Bug(
        "average_hooks",
        "the hook takes itself off after the first backward",
        cell='''
def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""
    for p in module.parameters():
        if p.requires_grad:

            def hook(p, handle=[]):
                all_reduce_(comm, p.grad, op="mean")
                handle.pop().remove()

            hook.__defaults__[0].append(p.register_post_accumulate_grad_hook(hook))
''',
    ),
    Bug(
        "average_hooks",
        "only rank 0 has the mean",
        edits=(
            (
                "def average_hooks(comm, module):",
                """
from minidist.collectives import reduce_


def average_hooks(comm, module):
""",
            ),
            (
                'all_reduce_(comm, p.grad, op="mean")',
                'reduce_(comm, p.grad, op="mean")',
            ),
        ),
    ),
    Bug(
        "average_hooks",
        "the average is forgotten",
        old='all_reduce_(comm, p.grad, op="mean")',
        new="all_reduce_(comm, p.grad)",
    ),
    Bug(
        "average_hooks",
        "a tied matrix has two hooks",
        old="for p in module.parameters():",
        new="for _, p in module.named_parameters(remove_duplicate=False):",
    ),
    Bug(
        "average_hooks",
        "divided by n twice",
        old='all_reduce_(comm, p.grad, op="mean")',
        new="""
all_reduce_(comm, p.grad, op="mean")
p.grad /= comm.size
""",
    ),
    Bug(
        "average_hooks",
        "gradients pass through a global",
        cheat=True,
        cell='''
HEAP = {}


def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""

    def hook(p, i):
        HEAP[i, comm.rank] = p.grad.clone()
        all_reduce_(comm, torch.zeros_like(p))
        p.grad = sum(HEAP[i, r] for r in range(comm.size) if (i, r) in HEAP) / comm.size

    for i, p in enumerate(module.parameters()):
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p, i=i: hook(p, i))
''',
    ),
    Bug(
        "average_hooks",
        "the library's DataParallel does the work",
        cheat=True,
        cell='''
from minidist.parallel.data import DataParallel


def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""
    DataParallel(module, comm, broadcast_buffers=False)
''',
    ),
    Bug(
        "average_hooks",
        "PyTorch's DistributedDataParallel does the work",
        cheat=True,
        cell='''
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def average_hooks(comm, module):
    """From now on every backward averages the gradients over all ranks."""
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size, store=dist.HashStore())
    DistributedDataParallel(module)
''',
    ),
    Bug(
        "my_batches",
        "lists of integers",
        old="return [order[start : start + size] for start in starts]",
        new="return [order[start : start + size].tolist() for start in starts]",
    ),
    Bug(
        "my_batches",
        "an uneven batch is refused only where there is a full one",
        cell='''
def my_batches(comm, order, batch):
    """This rank's samples of each full batch."""
    n, parts = comm.size, []
    for b in range(len(order) // batch):
        if batch % n:
            raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
        parts.append(order[b * batch : (b + 1) * batch].view(n, -1)[comm.rank])
    return parts
''',
    ),
    Bug(
        "start_equal",
        "integers as float64",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for t in [*module.parameters(), *module.buffers()]:
    if t.is_floating_point():
        broadcast_(comm, t)
    else:
        y = t.double()
        broadcast_(comm, y)
        t.copy_(y)
""",
    ),
    Bug(
        "start_equal",
        "nan is cleaned",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for t in [*module.parameters(), *module.buffers()]:
    t.data.nan_to_num_()
    broadcast_(comm, t)
""",
    ),
    Bug(
        "start_equal",
        "it is sent from reshape(-1), a copy where a tensor is not contiguous",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()])",
        new="""
for t in [*module.parameters(), *module.buffers()]:
    broadcast_(comm, t.data.reshape(-1))
""",
    ),
    Bug(
        "average_gradients",
        "nan is cleaned",
        old='all_reduce_(comm, p.grad, op="mean")',
        new="""
p.grad.nan_to_num_()
all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "who is not finite is left out",
        old='all_reduce_(comm, p.grad, op="mean")',
        new="""
if not p.grad.isfinite().all():
    p.grad.zero_()
all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "a job nobody waits for",
        old='all_reduce_(comm, p.grad, op="mean")',
        new='comm.stream(all_reduce_, p.grad, "mean")',
    ),
    Bug(
        "average_gradients",
        "it is averaged in reshape(-1), a copy where a tensor is not contiguous",
        old='all_reduce_(comm, p.grad, op="mean")',
        new='all_reduce_(comm, p.grad.reshape(-1), op="mean")',
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
        "accumulate",
        "a stale nan is multiplied with 0",
        old="module.zero_grad()",
        new="""
for p in module.parameters():
    if p.grad is not None:
        p.grad *= 0
""",
    ),
    Bug(
        "accumulate",
        "nan is cleaned",
        old="average_gradients(comm, module)",
        new="""
for p in module.parameters():
    if p.grad is not None:
        p.grad.nan_to_num_()
average_gradients(comm, module)
""",
    ),
    Bug(
        "accumulate",
        "a micro-batch with nan is left out",
        old="(loss_fn(module(x), y) / len(micro_batches)).backward()",
        new="""
loss = loss_fn(module(x), y) / len(micro_batches)
if loss.isfinite():
    loss.backward()
""",
    ),
    Bug(
        "accumulate",
        "graphs are retained and kept",
        edits=(
            (
                "module.zero_grad()",
                """
module.zero_grad()
kept = []
""",
            ),
            (
                "(loss_fn(module(x), y) / len(micro_batches)).backward()",
                """
loss = loss_fn(module(x), y) / len(micro_batches)
loss.backward(retain_graph=True)
kept.append(loss)
""",
            ),
        ),
    ),
    Bug(
        "accumulate",
        "graphs are retained",
        old="(loss_fn(module(x), y) / len(micro_batches)).backward()",
        new="""
loss = loss_fn(module(x), y) / len(micro_batches)
loss.backward(retain_graph=True)
""",
    ),
    Bug(
        "accumulate",
        "the outputs of all micro-batches are kept",
        cell='''
def accumulate(comm, module, loss_fn, micro_batches):
    """Make every p.grad the gradient over all micro-batches of all ranks, averaged once."""
    module.zero_grad()
    outputs = []
    for x, y in micro_batches:
        out = module(x)
        outputs.append(out.detach())
        (loss_fn(out, y) / len(micro_batches)).backward()
    average_gradients(comm, module)
''',
    ),
    Bug(
        "average_hooks",
        "nan is cleaned",
        old='all_reduce_(comm, p.grad, op="mean")',
        new="""
p.grad.nan_to_num_()
all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_hooks",
        "in the first steps of the pair only",
        cell="""
def average_hooks(comm, module):
    handles = []
    def hook(p):
        all_reduce_(comm, p.grad, op="mean")
        seen.append(p)
        if len(seen) == 2 * len(handles):
            for h in handles:
                h.remove()
    seen = []
    for p in module.parameters():
        if p.requires_grad:
            handles.append(p.register_post_accumulate_grad_hook(hook))
""",
    ),
]
