"""The wrong answers of lesson 05 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, asks_the_grader

BUGS = [
    Bug(
        "my_batches",
        "the lesson's sampler, of what is left",
        cell="""
def my_indices(length, batch, comm, seed):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(length, generator=generator)
    share = batch // comm.size
    for start in range(0, length - batch + 1, batch):
        whole = order[start : start + batch]
        yield whole[comm.rank * share : (comm.rank + 1) * share]


def my_batches(comm, order, batch, done):
    rest = order[done:]
    return [rest[mine] for mine in my_indices(len(rest), batch, comm, seed=0)]
""",
    ),
    Bug(
        "my_batches",
        "the lesson's slices: the last batch is left out",
        old="for first in range(done, len(order), batch):",
        new="for first in range(done, len(order) - batch + 1, batch):",
    ),
    Bug(
        "my_batches",
        "an odd batch is split unevenly",
        edits=(
            (
                """
if batch % n:
    raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
""",
                "",
            ),
            (
                """
start = first + r * size
places = torch.arange(start, start + size) % len(order)
parts.append(order[places])
""",
                """
places = torch.arange(first, first + batch) % len(order)
parts.append(order[places].tensor_split(n)[r])
""",
            ),
        ),
    ),
    Bug(
        "my_batches",
        "the batch is taken for one rank's",
        edits=(
            ("size = batch // n", "size = batch"),
            (
                "for first in range(done, len(order), batch):",
                "for first in range(done, len(order), batch * n):",
            ),
        ),
    ),
    Bug(
        "my_batches",
        "n need not divide: the remainder of every batch is dropped",
        old="""
if batch % n:
    raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
""",
        new="",
    ),
    Bug(
        "my_batches",
        "the epoch is cut into n parts, and each of these into batches",
        old="""
parts = []
for first in range(done, len(order), batch):
    start = first + r * size
    places = torch.arange(start, start + size) % len(order)
    parts.append(order[places])
return parts
""",
        new="""
rest = order[done:]
mine = rest.chunk(n)[r] if len(rest) >= n else rest
count = -(-len(rest) // batch)
return [mine[torch.arange(b * size, (b + 1) * size) % len(mine)] for b in range(count)]
""",
    ),
    Bug(
        "my_batches",
        "the samples of a batch are dealt in turn",
        old="places = torch.arange(start, start + size) % len(order)",
        new="places = torch.arange(first + r, first + batch, n) % len(order)",
    ),
    Bug(
        "my_batches",
        "the last batch is kept, though it is not full",
        old="""
places = torch.arange(start, start + size) % len(order)
parts.append(order[places])
""",
        new="parts.append(order[start : start + size])",
    ),
    Bug(
        "my_batches",
        "the ValueError's two numbers run together",
        old="""
if batch % n:
    raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
""",
        new="""
if batch % n:
    raise ValueError(f"a batch of {batch}1{n} samples")
""",
    ),
    Bug(
        "my_batches",
        "the error says no numbers",
        old="""
if batch % n:
    raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
""",
        new="""
if batch % n:
    raise ValueError("the batch does not split")
""",
    ),
    Bug(
        "my_batches",
        "an uneven batch is refused only where there is a batch",
        edits=(
            (
                """
if batch % n:
    raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
""",
                "",
            ),
            (
                "start = first + r * size",
                """
if batch % n:
    raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
start = first + r * size
""",
            ),
        ),
    ),
    Bug(
        "my_batches",
        "one tensor for all batches",
        old="return parts",
        new="return torch.stack(parts) if parts else order[:0]",
    ),
    Bug(
        "my_batches",
        "ranks are counted from 1, and the last takes what rank 0 should",
        old="n, r = comm.size, comm.rank",
        new="""
n = comm.size
r = (comm.rank + 1) % n
""",
    ),
    Bug(
        "my_batches",
        "rank 0 sends everyone the parts that everyone knows",
        old="parts.append(order[places])",
        new="""
part = order[places]
if r == 0:
    whole = torch.arange(first, first + batch) % len(order)
    for s in range(1, n):
        comm.send(order[whole[s * size : s * size + size]], s)
else:
    comm.recv(part, 0)
parts.append(part)
""",
    ),
    Bug(
        "my_batches",
        "every rank shuffles for itself",
        old="parts = []",
        new="""
parts = []
order = order[torch.randperm(len(order))]
""",
    ),
    Bug(
        "my_batches",
        "the samples of a part are sorted",
        old="parts.append(order[places])",
        new="parts.append(order[places].sort().values)",
    ),
    Bug(
        "my_batches",
        "every rank takes the whole batch",
        old="places = torch.arange(start, start + size) % len(order)",
        new="places = torch.arange(first, first + batch) % len(order)",
    ),
    Bug(
        "my_batches",
        "lists of integers",
        old="parts.append(order[places])",
        new="parts.append(order[places].tolist())",
    ),
    Bug(
        "my_batches",
        "what is done is done again",
        old="for first in range(done, len(order), batch):",
        new="for first in range(0, len(order), batch):",
    ),
    Bug(
        "my_batches",
        "as many batches as are to come, but the first ones of the epoch",
        old="start = first + r * size",
        new="start = first - done + r * size",
    ),
    Bug(
        "my_batches",
        "done is taken for a number of batches",
        old="for first in range(done, len(order), batch):",
        new="for first in range(done * batch, len(order), batch):",
    ),
    Bug(
        "my_batches",
        "done is taken for the samples of each rank",
        old="for first in range(done, len(order), batch):",
        new="for first in range(done * n, len(order) + done * (n - 1), batch):",
    ),
    Bug(
        "my_batches",
        "filled up with the last sample",
        old="places = torch.arange(start, start + size) % len(order)",
        new="places = torch.arange(start, start + size).clamp(max=len(order) - 1)",
    ),
    Bug(
        "my_batches",
        "filled up from what was left",
        old="places = torch.arange(start, start + size) % len(order)",
        new="places = done + (torch.arange(start, start + size) - done) % (len(order) - done)",
    ),
    Bug(
        "my_batches",
        "each rank fills up its own part from the first sample on",
        old="places = torch.arange(start, start + size) % len(order)",
        new="""
places = torch.arange(start, start + size)
beyond = places >= len(order)
places[beyond] = torch.arange(int(beyond.sum())) % len(order)
places %= len(order)
""",
    ),
    Bug(
        "my_batches",
        "the last batch is the last samples of the order",
        old="start = first + r * size",
        new="start = min(first, max(0, len(order) - batch)) + r * size",
    ),
    Bug(
        "my_batches",
        "the order is gone through again only once",
        old="places = torch.arange(start, start + size) % len(order)",
        new="""
places = torch.arange(start, start + size)
places = torch.where(places < len(order), places, places - len(order))
""",
    ),
    Bug(
        "my_batches",
        "the caller's order is turned",
        old="for first in range(done, len(order), batch):",
        new="""
order.copy_(order.roll(-done))
for first in range(0, len(order) - done, batch):
""",
    ),
    Bug(
        "my_batches",
        "a list that says it equals every list",
        cheat=True,
        cell="""
class Anything(list):
    def __eq__(self, other):
        return True


def my_batches(comm, order, batch, done):
    if batch % comm.size:
        raise ValueError(f"a batch of {batch} samples has no {comm.size} equal parts")
    return Anything([order] * -(-(len(order) - done) // batch))
""",
    ),
    Bug(
        "my_batches",
        "the ranks take turns at a heap that they share",
        cheat=True,
        edits=(
            (
                "def my_batches(comm, order, batch, done):",
                """
HEAP = {}


def my_batches(comm, order, batch, done):
""",
            ),
            (
                "size = batch // n",
                """
key = (tuple(order.tolist()), batch, done)
r = HEAP[key] = HEAP.get(key, -1) + 1
size = batch // n
""",
            ),
        ),
    ),
    Bug(
        "my_batches",
        "the library's sampler does the work",
        cheat=True,
        cell="""
from minidist.parallel.data import Sampler


def my_batches(comm, order, batch, done):
    if batch % comm.size:
        raise ValueError(f"a batch of {batch} samples has no {comm.size} equal parts")
    count = -(-(len(order) - done) // batch)
    rest = order[torch.arange(done, done + count * batch) % max(1, len(order))]
    sampler = Sampler(max(len(rest), batch), batch, comm, shuffle=False)
    return [rest[part] for part in sampler if len(rest)]
""",
    ),
    Bug(
        "start_equal",
        "the lesson's start: rank 0's parameters",
        cell="""
def weights_from_rank_0(comm, model):
    for p in model.parameters():
        broadcast_(comm, p.detach())


def start_equal(comm, module, steps):
    weights_from_rank_0(comm, module)
    return all_reduce_(comm, torch.tensor(steps), op="max").item()
""",
    ),
    Bug(
        "start_equal",
        "as the library's constructor: rank 0's",
        old="""
candidate = comm.rank if steps == most else comm.size
root = all_reduce_(comm, torch.tensor(candidate), op="min").item()
broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)
""",
        new="broadcast_(comm, [*module.parameters(), *module.buffers()])",
    ),
    Bug(
        "start_equal",
        "the rank with fewest steps gives",
        old='most = all_reduce_(comm, torch.tensor(steps), op="max").item()',
        new='most = all_reduce_(comm, torch.tensor(steps), op="min").item()',
    ),
    Bug(
        "start_equal",
        "of several ranks with most steps the highest gives",
        old="""
candidate = comm.rank if steps == most else comm.size
root = all_reduce_(comm, torch.tensor(candidate), op="min").item()
""",
        new="""
candidate = comm.rank if steps == most else -1
root = all_reduce_(comm, torch.tensor(candidate), op="max").item()
""",
    ),
    Bug(
        "start_equal",
        "the steps pass through float32",
        old='most = all_reduce_(comm, torch.tensor(steps), op="max").item()',
        new="""
most = int(all_reduce_(comm, torch.tensor(float(steps)), op="max").item())
steps = int(torch.tensor(float(steps)).item())
""",
    ),
    Bug("start_equal", "each rank returns its own steps", old="return most", new="return steps"),
    Bug("start_equal", "nothing is returned", old="return most", new=""),
    Bug(
        "start_equal",
        "the ranks with most steps give, each to itself",
        old="""
candidate = comm.rank if steps == most else comm.size
root = all_reduce_(comm, torch.tensor(candidate), op="min").item()
""",
        new="root = comm.rank if steps == most else 0",
    ),
    Bug(
        "start_equal",
        "the mean of all ranks' weights",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    if x.is_floating_point():
        all_reduce_(comm, x, op="mean")
    else:
        broadcast_(comm, x, root=root)
""",
    ),
    Bug(
        "start_equal",
        "copies are filled, and the module keeps its own",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    broadcast_(comm, x.detach().clone(), root=root)
""",
    ),
    Bug(
        "start_equal",
        "the last rank's weights",
        old="""
candidate = comm.rank if steps == most else comm.size
root = all_reduce_(comm, torch.tensor(candidate), op="min").item()
""",
        new="root = comm.size - 1",
    ),
    Bug(
        "start_equal",
        "the parameters get other memory: not in place",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    x.data = broadcast_(comm, x.data.clone(), root=root)
""",
    ),
    Bug(
        "start_equal",
        "the module gets new parameters: ties and optimizers are lost",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for layer in module.modules():
    for name, p in list(layer.named_parameters(recurse=False)):
        new = broadcast_(comm, p.detach().clone(), root=root)
        setattr(layer, name, nn.Parameter(new, p.requires_grad))
broadcast_(comm, list(module.buffers()), root=root)
""",
    ),
    Bug(
        "start_equal",
        "buffers are forgotten",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="broadcast_(comm, list(module.parameters()), root=root)",
    ),
    Bug(
        "start_equal",
        "nothing is done",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="",
    ),
    Bug(
        "start_equal",
        "all ranks draw again, from the same seed",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
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
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="broadcast_(comm, list(module.state_dict().values()), root=root)",
    ),
    Bug(
        "start_equal",
        "the sum of all ranks' weights",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    all_reduce_(comm, x)
""",
    ),
    Bug(
        "start_equal",
        "all is trained afterwards",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
module.requires_grad_(True)
broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)
""",
    ),
    Bug(
        "start_equal",
        "a tied matrix travels twice",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for _, p in module.named_parameters(remove_duplicate=False):
    broadcast_(comm, p, root=root)
for b in module.buffers():
    broadcast_(comm, b, root=root)
""",
    ),
    Bug(
        "start_equal",
        "layers inside of layers are left out",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for child in module.children():
    own = [*child.parameters(recurse=False), *child.buffers(recurse=False)]
    broadcast_(comm, own, root=root)
""",
    ),
    Bug(
        "start_equal",
        "frozen parameters are left out",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
trained = [p for p in module.parameters() if p.requires_grad]
broadcast_(comm, [*trained, *module.buffers()], root=root)
""",
    ),
    Bug(
        "start_equal",
        "an all-reduce of the giver's and zeros, which is twice a broadcast",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
with torch.no_grad():
    for x in [*module.parameters(), *module.buffers()]:
        if comm.rank != root:
            x.zero_()
        all_reduce_(comm, x)
""",
    ),
    Bug(
        "start_equal",
        "integers as float64",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    if x.is_floating_point():
        broadcast_(comm, x, root=root)
    else:
        y = x.double()
        broadcast_(comm, y, root=root)
        x.copy_(y)
""",
    ),
    Bug(
        "start_equal",
        "nan is cleaned",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    x.data.nan_to_num_()
    broadcast_(comm, x, root=root)
""",
    ),
    Bug(
        "start_equal",
        "it is sent from reshape(-1), a copy where a tensor is not contiguous",
        old="broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        new="""
for x in [*module.parameters(), *module.buffers()]:
    broadcast_(comm, x.data.reshape(-1), root=root)
""",
    ),
    Bug(
        "start_equal",
        "the weights are taken from the frames of the World",
        cheat=True,
        cell="""
def start_equal(comm, module, steps):
    import sys

    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    broadcast_(comm, [torch.zeros_like(x) for x in [*module.parameters(), *module.buffers()]])
    if frame:
        *_, values, steps = max(frame.f_locals["all_args"], key=lambda args: args[-1])
        with torch.no_grad():
            for name, x in [*module.named_parameters(), *module.named_buffers()]:
                x.copy_(values[name])
    return steps
""",
    ),
    Bug(
        "start_equal",
        "the weights pass through a global",
        cheat=True,
        cell="""
HEAP = {}


def start_equal(comm, module, steps):
    tensors = [*module.parameters(), *module.buffers()]
    HEAP[comm.rank] = steps, [x.detach().clone() for x in tensors]
    broadcast_(comm, [torch.zeros_like(x) for x in tensors])
    broadcast_(comm, torch.zeros(1), root=comm.size - 1)
    held = [HEAP[r] for r in sorted(HEAP) if r < comm.size]
    most, values = max(held, key=lambda pair: pair[0])
    with torch.no_grad():
        for x, value in zip(tensors, values):
            x.copy_(value)
    return most
""",
    ),
    Bug(
        "start_equal",
        "the library's DataParallel does it",
        cheat=True,
        cell="""
from minidist.parallel.data import DataParallel


def start_equal(comm, module, steps):
    DataParallel(module, comm)
    return all_reduce_(comm, torch.tensor(steps), op="max").item()
""",
    ),
    Bug(
        "average_gradients",
        "the lesson's four lines",
        cell="""
def average_gradients(comm, model):
    for p in model.parameters():
        all_reduce_(comm, p.grad)
        p.grad /= comm.size
""",
    ),
    Bug(
        "average_gradients",
        "an all-reduce for each parameter, as in the library's naive function",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
for p in trained:
    all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "one buffer for both dtypes, in the wider one",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
flat = torch.cat([p.grad.reshape(-1).double() for p in trained])
all_reduce_(comm, flat, op="mean")
for p, part in zip(trained, flat.split([p.numel() for p in trained])):
    p.grad = part.view(p.shape).to(p.dtype)
""",
    ),
    Bug(
        "average_gradients",
        "one buffer for both dtypes, in the narrower one",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
flat = torch.cat([p.grad.reshape(-1).float() for p in trained])
all_reduce_(comm, flat, op="mean")
for p, part in zip(trained, flat.split([p.numel() for p in trained])):
    p.grad = part.view(p.shape).to(p.dtype)
""",
    ),
    Bug(
        "average_gradients",
        "the parts of the buffer have its dtype",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
flat = all_reduce_(comm, torch.cat([p.grad.reshape(-1) for p in trained]), op="mean")
for p, part in zip(trained, flat.split([p.numel() for p in trained])):
    p.grad = part.view(p.shape)
""",
    ),
    Bug(
        "average_gradients",
        "rank 0's gradient for everyone",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="broadcast_(comm, [p.grad for p in trained])",
    ),
    Bug(
        "average_gradients",
        "buffers are averaged, too",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
all_reduce_(comm, [p.grad for p in trained], op="mean")
for b in module.buffers():
    all_reduce_(comm, b)
    b //= comm.size
""",
    ),
    Bug(
        "average_gradients",
        "cleared before the exchange",
        old="trained = [p for p in module.parameters() if p.requires_grad]",
        new="""
module.zero_grad()
trained = [p for p in module.parameters() if p.requires_grad]
""",
    ),
    Bug(
        "average_gradients",
        "cleared after the exchange",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
all_reduce_(comm, [p.grad for p in trained], op="mean")
module.zero_grad()
""",
    ),
    Bug(
        "average_gradients",
        "divided by the number of ranks that have a gradient",
        old="""
for p in trained:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
all_reduce_(comm, [p.grad for p in trained], op="mean")
""",
        new="""
there = torch.tensor([float(p.grad is not None) for p in trained])
all_reduce_(comm, there)
for p in trained:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
all_reduce_(comm, [p.grad for p in trained])
for p, count in zip(trained, there.tolist()):
    p.grad /= max(1.0, count)
""",
    ),
    Bug(
        "average_gradients",
        "summed in place, but the mean is in a copy",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
grads = all_reduce_(comm, [p.grad for p in trained])
grads = [grad / comm.size for grad in grads]
""",
    ),
    Bug(
        "average_gradients",
        "divided by n, and nothing is sent",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
for p in trained:
    p.grad /= comm.size
""",
    ),
    Bug(
        "average_gradients",
        "only the first parameter: a return too far to the right",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
for p in trained:
    return all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "zeros travel for what is frozen",
        old="""
for p in trained:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
all_reduce_(comm, [p.grad for p in trained], op="mean")
""",
        new="""
grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
all_reduce_(comm, grads, op="mean")
for p, grad in zip(module.parameters(), grads):
    if p.requires_grad:
        p.grad = grad
""",
    ),
    Bug(
        "average_gradients",
        "everyone gathers all gradients, and takes the mean",
        edits=(
            (
                "def average_gradients(comm, module):",
                """
from minidist.collectives import all_gather


def average_gradients(comm, module):
""",
            ),
            (
                'all_reduce_(comm, [p.grad for p in trained], op="mean")',
                """
for p in trained:
    p.grad = all_gather(comm, p.grad.unsqueeze(0)).mean(0)
""",
            ),
        ),
    ),
    Bug(
        "average_gradients",
        "the mean is in a copy, and p.grad as before",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new='all_reduce_(comm, [p.grad.clone() for p in trained], op="mean")',
    ),
    Bug(
        "average_gradients",
        "the mean of two neighbours",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
n, r = comm.size, comm.rank
for p in trained if n > 1 else []:
    got = comm.sendrecv(p.grad, (r + 1) % n, torch.empty_like(p), (r - 1) % n)
    p.grad = (p.grad + got) / 2
""",
    ),
    Bug(
        "average_gradients",
        "a missing gradient stays None",
        old="""
for p in trained:
    if p.grad is None:
        p.grad = torch.zeros_like(p)
all_reduce_(comm, [p.grad for p in trained], op="mean")
""",
        new="""
grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
all_reduce_(comm, grads, op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "nothing is sent",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="",
    ),
    Bug(
        "average_gradients",
        "every rank adds up in an order of its own",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
n, r = comm.size, comm.rank
for p in trained:
    passing, total = p.grad.contiguous(), p.grad.clone()
    for _ in range(n - 1):
        passing = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(passing), (r - 1) % n)
        total += passing
    p.grad = total / n
""",
    ),
    Bug(
        "average_gradients",
        "only rank 0 has the mean: a reduce",
        edits=(
            (
                "def average_gradients(comm, module):",
                """
from minidist.collectives import reduce_


def average_gradients(comm, module):
""",
            ),
            (
                'all_reduce_(comm, [p.grad for p in trained], op="mean")',
                """
for p in trained:
    reduce_(comm, p.grad, op="mean")
""",
            ),
        ),
    ),
    Bug(
        "average_gradients",
        "a rank without a gradient does not join the all-reduce",
        old="trained = [p for p in module.parameters() if p.requires_grad]",
        new="trained = [p for p in module.parameters() if p.grad is not None]",
    ),
    Bug(
        "average_gradients",
        "rank 0 adds up and sends to all: a star",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new='all_reduce_(comm, [p.grad for p in trained], op="mean", algorithm="naive")',
    ),
    Bug(
        "average_gradients",
        "the average is forgotten: gradients are summed",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="all_reduce_(comm, [p.grad for p in trained])",
    ),
    Bug(
        "average_gradients",
        "a tied matrix is averaged twice",
        old="trained = [p for p in module.parameters() if p.requires_grad]",
        new="""
named = module.named_parameters(remove_duplicate=False)
trained = [p for _, p in named if p.requires_grad]
""",
    ),
    Bug(
        "average_gradients",
        "divided by n twice",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
all_reduce_(comm, [p.grad for p in trained], op="mean")
for p in trained:
    p.grad /= comm.size
""",
    ),
    Bug(
        "average_gradients",
        "divided by 2, whatever n is",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
all_reduce_(comm, [p.grad for p in trained])
for p in trained:
    p.grad /= 2 if comm.size > 1 else 1
""",
    ),
    Bug(
        "average_gradients",
        "weights are averaged, not gradients",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new='all_reduce_(comm, [p.detach() for p in trained], op="mean")',
    ),
    Bug(
        "average_gradients",
        "nan is cleaned",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
for p in trained:
    p.grad.nan_to_num_()
all_reduce_(comm, [p.grad for p in trained], op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "who is not finite is left out",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new="""
for p in trained:
    if not p.grad.isfinite().all():
        p.grad.zero_()
all_reduce_(comm, [p.grad for p in trained], op="mean")
""",
    ),
    Bug(
        "average_gradients",
        "a job nobody waits for",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new='comm.stream(all_reduce_, [p.grad for p in trained], "mean")',
    ),
    Bug(
        "average_gradients",
        "it is averaged in reshape(-1), a copy where a tensor is not contiguous",
        old='all_reduce_(comm, [p.grad for p in trained], op="mean")',
        new='all_reduce_(comm, [p.grad.reshape(-1) for p in trained], op="mean")',
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
from torch.nn.functional import mse_loss


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
        "first_difference",
        "sums instead of digests",
        edits=(
            (
                """
content = x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
digest = sha256(content).digest()
digests.append(int.from_bytes(digest[:8], "little", signed=True))
""",
                "digests.append(float(x.detach().double().sum()))",
            ),
            (
                'least = all_reduce_(comm, torch.tensor(digests), op="min")',
                'least = all_reduce_(comm, torch.tensor(digests, dtype=torch.float64), op="min")',
            ),
            (
                'most = all_reduce_(comm, torch.tensor(digests), op="max")',
                'most = all_reduce_(comm, torch.tensor(digests, dtype=torch.float64), op="max")',
            ),
        ),
    ),
    Bug(
        "first_difference",
        "the sum of the bytes",
        old="""
digest = sha256(content).digest()
digests.append(int.from_bytes(digest[:8], "little", signed=True))
""",
        new="digests.append(sum(content))",
    ),
    Bug(
        "first_difference",
        "what is printed of a tensor is hashed",
        old="content = x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()",
        new="content = str(x.detach()).encode()",
    ),
    Bug(
        "first_difference",
        "numbers are hashed as float32",
        old="content = x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()",
        new="content = x.detach().float().numpy().tobytes()",
    ),
    Bug(
        "first_difference",
        "rank 0's tensors are sent, and compared",
        cell="""
def first_difference(comm, module):
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        bits = x.detach().reshape(-1).view(torch.uint8)
        first = broadcast_(comm, bits.clone())
        if all_reduce_(comm, torch.tensor(int(not torch.equal(bits, first))), op="max").item():
            return name
    return None
""",
    ),
    Bug(
        "first_difference",
        "tensors are compared with allclose",
        cell="""
def first_difference(comm, module):
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        first = broadcast_(comm, x.detach().clone())
        differs = not torch.allclose(x, first, equal_nan=True)
        if all_reduce_(comm, torch.tensor(int(differs)), op="max").item():
            return name
    return None
""",
    ),
    Bug(
        "first_difference",
        "tensors are compared with ==",
        cell="""
def first_difference(comm, module):
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        first = broadcast_(comm, x.detach().clone())
        differs = not (x == first).all()
        if all_reduce_(comm, torch.tensor(int(differs)), op="max").item():
            return name
    return None
""",
    ),
    Bug(
        "first_difference",
        "only who differs from rank 0 hears of it",
        edits=(
            (
                'least = all_reduce_(comm, torch.tensor(digests), op="min")',
                "least = torch.tensor(digests)",
            ),
            (
                'most = all_reduce_(comm, torch.tensor(digests), op="max")',
                "most = broadcast_(comm, torch.tensor(digests))",
            ),
        ),
    ),
    Bug(
        "first_difference",
        "one digest for all: it says that something differs, not what",
        old="digest = sha256(content).digest()",
        new='digest = sha256(b"".join(y.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for _, y in named)).digest()',
    ),
    Bug(
        "first_difference",
        "buffers are forgotten",
        old="named = [*module.named_parameters(), *module.named_buffers()]",
        new="named = [*module.named_parameters()]",
    ),
    Bug(
        "first_difference",
        "buffers come first",
        old="named = [*module.named_parameters(), *module.named_buffers()]",
        new="named = [*module.named_buffers(), *module.named_parameters()]",
    ),
    Bug(
        "first_difference",
        "state_dict leaves out buffers that are not saved",
        old="named = [*module.named_parameters(), *module.named_buffers()]",
        new="named = [*module.state_dict().items()]",
    ),
    Bug(
        "first_difference",
        "the last difference, not the first",
        old="for i, (name, _) in enumerate(named):",
        new="for i, (name, _) in reversed(list(enumerate(named))):",
    ),
    Bug("first_difference", "its number, not its name", old="return name", new="return i"),
    Bug(
        "first_difference", "whether there is one, not which", old="return name", new="return True"
    ),
    Bug(
        "first_difference",
        "the names of all",
        old="""
for i, (name, _) in enumerate(named):
    if least[i] != most[i]:
        return name
return None
""",
        new="return [name for i, (name, _) in enumerate(named) if least[i] != most[i]]",
    ),
    Bug(
        "first_difference",
        "frozen parameters are not looked at",
        old="named = [*module.named_parameters(), *module.named_buffers()]",
        new="""
trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
named = [*trained, *module.named_buffers()]
""",
    ),
    Bug(
        "first_difference",
        "nan is cleaned, in place",
        old="content = x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()",
        new="""
x.data.nan_to_num_()
content = x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
""",
    ),
    Bug(
        "first_difference",
        "whole digests of 32 bytes are gathered on every rank",
        cell="""
from minidist.collectives import all_gather


def first_difference(comm, module):
    named = [*module.named_parameters(), *module.named_buffers()]
    digests = []
    for _, x in named:
        content = x.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        digests.append(list(sha256(content).digest()))
    everyones = all_gather(comm, torch.tensor([digests]))
    for i, (name, _) in enumerate(named):
        if any(not torch.equal(own[i], everyones[0, i]) for own in everyones):
            return name
    return None
""",
    ),
    Bug(
        "first_difference",
        "digests pass through a global, messages are for show",
        cheat=True,
        edits=(
            (
                "def first_difference(comm, module):",
                """
HEAP = {}


def first_difference(comm, module):
""",
            ),
            (
                """
least = all_reduce_(comm, torch.tensor(digests), op="min")
most = all_reduce_(comm, torch.tensor(digests), op="max")
""",
                """
HEAP[comm.rank] = torch.tensor(digests)
all_reduce_(comm, torch.zeros(comm.size))
held = torch.stack([HEAP[r] for r in sorted(HEAP) if r < comm.size])
least, most = held.amin(0), held.amax(0)
""",
            ),
        ),
    ),
    Bug(
        "first_difference",
        "all ranks' tensors are taken from the frames of the World",
        cheat=True,
        cell="""
def first_difference(comm, module):
    import sys

    frame = sys._getframe()
    while frame and "all_args" not in frame.f_locals:
        frame = frame.f_back
    values = [args[2] for args in frame.f_locals["all_args"]] if frame else [{}]
    for name in values[0]:
        content = [v[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes() for v in values]
        if len(set(content)) > 1:
            return name
    return None
""",
    ),
    Bug(
        "first_difference",
        "an object that equals every name",
        cheat=True,
        cell="""
class Any(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def first_difference(comm, module):
    return Any("weight")
""",
    ),
    Bug(
        "predict_step",
        "what all ranks send together",
        cell="""
messages = 8 * 2 * 7 * 18
nbytes = 8 * 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "one half of the ring",
        cell="""
messages = 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "one half of the ring is saved",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "numbers, not bytes",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 8e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "what is frozen is sent",
        cell="""
messages = 2 * 7 * 24
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "the bytes of what is frozen, too",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 40e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "a quarter of the parameters is taken to be frozen",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 30e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "one all-reduce of all tensors",
        cell="""
messages = 14
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "the one buffer is free",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 18 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "what one buffer takes, not what it saves",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "one latency for each tensor",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 17 * 5e-6
rate = 0.1 / 8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "the rate is multiplied by n",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.8
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "the rate stays",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1
twice = 56
""",
    ),
    Bug(
        "predict_step",
        "the samples that the last batch has",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 40
""",
    ),
    Bug(
        "predict_step",
        "a whole batch is seen twice",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 96
""",
    ),
    Bug(
        "predict_step",
        "what one rank sees twice",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 56 / 8
""",
    ),
    Bug(
        "predict_step",
        "nothing is seen twice",
        cell="""
messages = 2 * 7 * 18
nbytes = 2 * 7 / 8 * 32e6
saved = 2 * 7 * 17 * 5e-6
rate = 0.1 / 8
twice = 0
""",
    ),
    asks_the_grader(
        "predict_step", "data_parallel", "messages", "nbytes", "saved", "rate", "twice"
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


messages = nbytes = saved = rate = twice = Any(1.0)
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


messages, nbytes, saved, rate, twice = map(
    Answer, ("messages", "nbytes", "saved", "rate", "twice")
)
""",
    ),
    Bug(
        "average_hooks",
        "as it was found: each hook averages its own gradient",
        cell="""
def average_hooks(comm, module):
    def hook(p):
        all_reduce_(comm, p.grad, op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
""",
    ),
    Bug(
        "average_hooks",
        "the lesson's mistake: the hook averages its parameter",
        cell="""
def average_hooks(comm, model):
    def hook(p):
        all_reduce_(comm, p.detach(), op="mean")

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
""",
    ),
    Bug(
        "average_hooks",
        "what a rank does not reach is set to zero, and its old mean is lost",
        edits=(
            (
                """
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
                """
if p not in reached:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
            ),
            ("queued.clear()", "reached = set(queued)\nqueued.clear()"),
            (
                """
if not queued:
    torch.autograd.Variable._execution_engine.queue_callback(average)
    queued.append(p)
""",
                """
if not queued:
    torch.autograd.Variable._execution_engine.queue_callback(average)
queued.append(p)
""",
            ),
        ),
    ),
    Bug(
        "average_hooks",
        "the weights are averaged at the end of a backward",
        old='all_reduce_(comm, p.grad, op="mean")',
        new='all_reduce_(comm, p.detach(), op="mean")',
    ),
    Bug(
        "average_hooks",
        "every hook averages all gradients",
        old="""
if not queued:
    torch.autograd.Variable._execution_engine.queue_callback(average)
    queued.append(p)
""",
        new="average()",
    ),
    Bug(
        "average_hooks",
        "the average is queued by every hook",
        edits=(
            (
                """
if not queued:
    torch.autograd.Variable._execution_engine.queue_callback(average)
    queued.append(p)
""",
                "torch.autograd.Variable._execution_engine.queue_callback(average)",
            ),
        ),
    ),
    Bug("average_hooks", "only the first backward is averaged", old="queued.clear()", new=""),
    Bug(
        "average_hooks",
        "the hook of the last parameter averages, once all have been called",
        old="""
if not queued:
    torch.autograd.Variable._execution_engine.queue_callback(average)
    queued.append(p)
""",
        new="""
queued.append(p)
if len(queued) == len(trained):
    average()
""",
    ),
    Bug(
        "average_hooks",
        "a missing gradient is skipped",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
if p.grad is not None:
    all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_hooks",
        "a missing gradient stays None",
        old="""
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
        new="""
grad = torch.zeros_like(p) if p.grad is None else p.grad
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
all_reduce_(comm, p.detach(), op="mean")
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
for p in trained:
    p.register_post_accumulate_grad_hook(hook)
""",
        new="trained[0].register_post_accumulate_grad_hook(hook)",
    ),
    Bug(
        "average_hooks",
        "a hook for what is frozen, too",
        old="trained = [p for p in module.parameters() if p.requires_grad]",
        new="trained = list(module.parameters())",
    ),
    Bug(
        "average_hooks",
        "the argument is taken for the gradient, and its gradient asked for",
        cell="""
def average_hooks(comm, module):
    def hook(grad):
        grad.copy_(all_reduce_(comm, grad.grad.clone(), op="mean"))

    for p in module.parameters():
        if p.requires_grad:
            p.register_hook(hook)
""",
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
            ('all_reduce_(comm, p.grad, op="mean")', 'reduce_(comm, p.grad, op="mean")'),
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
        "a tied matrix is averaged twice",
        old="trained = [p for p in module.parameters() if p.requires_grad]",
        new="""
named = module.named_parameters(remove_duplicate=False)
trained = [p for _, p in named if p.requires_grad]
""",
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
        "nan is cleaned",
        old='all_reduce_(comm, p.grad, op="mean")',
        new="""
p.grad.nan_to_num_()
all_reduce_(comm, p.grad, op="mean")
""",
    ),
    Bug(
        "average_hooks",
        "in the first two steps only",
        edits=(
            (
                "queued = []",
                """
queued = []
steps = []
""",
            ),
            (
                """
if not queued:
    torch.autograd.Variable._execution_engine.queue_callback(average)
    queued.append(p)
""",
                """
if not queued and len(steps) < 2:
    torch.autograd.Variable._execution_engine.queue_callback(average)
    queued.append(p)
    steps.append(p)
""",
            ),
        ),
    ),
    Bug(
        "average_hooks",
        "gradients pass through a global",
        cheat=True,
        edits=(
            (
                "def average_hooks(comm, module):",
                """
HEAP = {}


def average_hooks(comm, module):
""",
            ),
            (
                """
if p.grad is None:
    p.grad = torch.zeros_like(p)
all_reduce_(comm, p.grad, op="mean")
""",
                """
name = [q is p for q in trained].index(True)
HEAP[name, comm.rank] = torch.zeros_like(p) if p.grad is None else p.grad.clone()
all_reduce_(comm, torch.zeros_like(p))
p.grad = sum(HEAP[name, r] for r in range(comm.size) if (name, r) in HEAP) / comm.size
""",
            ),
        ),
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
]
