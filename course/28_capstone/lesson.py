# %% [markdown]
# # 28 · Capstone
#
# PyTorch's `DistributedDataParallel`, or DDP, consists of thousands of lines of Python and C++ that sort gradients into [buckets](term:bucket), hang [hooks](term:hook) on parameters and hide communication behind the backward pass. Not one of these lines adds the gradients of two ranks. To get that done, DDP turns to a [process group](term:process-group), an object with some thirty methods, and the same object serves PyTorch's sharded training, FSDP2.
#
# In this last lesson you write that object. Your ring from [Messages](lesson:messages) will do the adding, and PyTorch's own code, unchanged, will train on it: in a World, on sixteen modelled GPUs, and in real processes. How much is there to write? **Of the thirty methods, how many different ones does a training step of DDP call?**

# %%
guess_methods = 10  # change this number

# %% [markdown]
# ## When and how
#
# It pays to see first why there is such an object at all. Distributed training has to answer two questions that have little to do with each other. *When* must numbers travel, and which ones? That depends on the technique: DDP sends a bucket as soon as its last gradient is there, and FSDP2 fetches a layer just before it is used. *How* do they travel? That depends on the machine: on a ring, on a tree, over NVLink or over a socket. The process group is the door between the two. Code above it decides when, code below it decides how, and either side can be replaced without the other noticing.
#
# ![Three layers. On top DDP and FSDP2 decide when numbers travel. In the middle stands the process group, with four of its methods: allreduce, broadcast, all-gather and reduce-scatter. Below it your ring and a Comm decide how they travel. A call goes down, and a Work comes back up at once.](../course/28_capstone/figures/the_door.svg)
#
# NCCL and gloo, PyTorch's own libraries for GPUs and CPUs, are such lower halves, called *backends*. We shall put ours in their place.
#
# ## By hand: 3 ranks, 6 numbers
#
# The lower half comes first, and you know it already. Three ranks hold six numbers each, cut into three chunks of two. In the first $n-1$ = 2 steps each rank sends a chunk to its right neighbour and combines the one that arrives from the left with its own. Then every rank has one chunk that is finished, and in 2 more steps the finished chunks go around. Each rank sends 4 messages of 2 numbers.
#
# Only the argument `op` is new. DDP wants sums, but a process group may be asked for a maximum or a product as well. These operations have in common that the order of the ranks does not matter (apart from rounding), which is all that a ring needs.

# %%
from functools import partial

import torch

from minidist import collectives, study
from minidist.comm import Cluster, World, launch
from minidist.comm.cluster import H100

COMBINE = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}


def ring(comm, x, op):
    """Replace x, one flat tensor, by the combination of all ranks' x."""
    n = comm.size
    r = comm.rank
    right = (r + 1) % n
    left = (r - 1) % n
    chunks = x.tensor_split(n)  # views: what is written into them is written into x
    for step in range(n - 1):
        own = chunks[(r - 2 - step) % n]
        arrived = torch.empty_like(own)
        comm.sendrecv(chunks[(r - 1 - step) % n], right, arrived, left)
        COMBINE[op](own, arrived, out=own)
    for step in range(n - 1):  # chunk r is finished here: pass finished chunks on
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)


ROWS = [[1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60], [600, 500, 400, 300, 200, 100]]


def six_numbers(comm, op):
    x = torch.tensor(ROWS[comm.rank])
    ring(comm, x, op)
    return x.tolist()


sums = World(3).run(six_numbers, "sum")
largest = World(3).run(six_numbers, "max")

# %% jupyter={"source_hidden": true}
study.holdings(
    {
        "before": [[str(x) for x in row] for row in ROWS],
        "sum": [[str(x) for x in row] for row in sums],
        "max": [[str(x) for x in row] for row in largest],
    },
    arrows=False,
    title="Two rings over the same numbers",
)

# %% tags=["maintainer"]
assert all(row == [611, 522, 433, 344, 255, 166] for row in sums)
assert all(row == [600, 500, 400, 300, 200, 100] for row in largest)
assert [sums.trace.messages(rank) for rank in range(3)] == [4, 4, 4]

# %% [markdown]
# ## Now, but later
#
# The second half of what we need is about time. In [Buckets and overlap](lesson:buckets) you saw why an all-reduce must not stop the program: DDP calls `allreduce` in the middle of the backward, and the backward has to go on. So the method must return *before* it has done what it was asked to do. But what can it return? The sum does not exist yet.
#
# It returns a claim check. When you hand in your coat, you get a ticket at once and the coat later, and nobody confuses the two. In programming, the ticket for a value that does not exist yet is called a [future](term:future). It begins empty. At some later time somebody puts the value in, which is called *setting* the future. Everyone who holds the future can do three things: ask whether it has been set, leave a function that is to be called as soon as it is, or wait. Here is the whole idea without the waiting, in a few lines:


# %%
class TinyFuture:
    """A place for a value that comes later."""

    def __init__(self):
        self.is_set = False
        self.value = None
        self.callbacks = []

    def set_result(self, value):
        self.value = value
        self.is_set = True
        for callback in self.callbacks:
            callback(value)

    def then(self, callback):
        """Call `callback(value)` as soon as there is a value, which may be now."""
        if self.is_set:
            callback(self.value)
        else:
            self.callbacks.append(callback)


coat = TinyFuture()
coat.then(lambda value: print("the callback is given", value))
print("set?", coat.is_set)
coat.set_result("a coat")
print("set?", coat.is_set)

# %% [markdown]
# The function, or *callback*, was left before there was a value, and ran the moment there was one. Note who runs it: whoever sets the future runs it, inside `set_result`. A callback that is slow or fails is therefore the setter's problem, which will matter below.
#
# PyTorch wraps one more object around a future. What a method of a process group returns is called a [Work](term:work), and it stands for a collective under way. `work.get_future()` gives its future, whose value is the list of result tensors, and `work.wait()` is for a program that has nothing else to do. DDP needs both. Its C++ code waits on futures, because a future can be chained: "when the sum is there, divide it". Python code that calls `dist.all_reduce(x, async_op=True)` gets the Work and calls `wait`.
#
# **When does `wait` return?** It returns when the results are in the tensors, not when the call was made and not when this rank's last message has *left*. If the work is over already, it returns at once. Suppose that the call comes at 0 ms, the ring needs 4 ms, and the program computes for 3 ms of its own before it waits. The wait then takes the 1 ms that is left. With 5 ms of computation it would take no time at all.
#
# ![Time runs from left to right. The program calls allreduce, gets a Work back at once, goes on with its backward, and then waits until the ring in the lane has ended. The ring runs beside the backward. The future is empty while the ring runs and is set when it ends; only then does wait return.](../course/28_capstone/figures/a_future.svg)
#
# Let us run a case like this on three modelled H100s. `comm.stream` starts a job in a [lane](term:lane), a second line of work of the same rank with a channel of its own, and returns a handle that can be waited for. The job is a ring over 40 MB, and at its end it sets the future. The tensors are on the device `"meta"`: they have no numbers, but what they cost is charged to a virtual clock. The bytes on the wire are $2(n-1)/n$ · 40 MB = 53.3 MB at 25 GB/s, which takes 2.13 ms; with four latencies of 20 µs and the time for the sums, the ring ends after about 2.25 ms. The computation is one matrix product, for which the modelled card needs 1.3 ms. **How long does the program stand in `wait`?**

# %%
guess_wait = 2.2  # ms: change this number


# %%
def start(comm, x):
    """Begin the ring over x in a lane. Its handle, and a future whose value will be x."""
    future = TinyFuture()

    def job(lane):
        ring(lane, x, "sum")
        future.set_result(x)

    return comm.stream(job), future


def call_compute_wait(comm):
    gradient = torch.empty(10_000_000, device=comm.device)  # 40 MB
    weights = torch.empty(2940, 2940, device=comm.device)
    times = [comm.now()]
    work, future = start(comm, gradient)
    times.append(comm.now())
    weights @ weights  # the backward goes on
    times.append(comm.now())
    was_set = future.is_set
    work.wait()
    times.append(comm.now())
    return times, was_set, future.is_set


cards = Cluster.uniform(3, 20e-6, 1 / 25e9, H100)
waiting = World(3, cluster=cards, device="meta").run(call_compute_wait)
times, set_before, set_after = waiting[0]

# %% tags=["answer"]
steps = ["the call returns after", "the backward takes", "wait takes"]
milliseconds = [1e3 * (times[i + 1] - times[i]) for i in range(3)]
study.reveal(
    guess_wait,
    round(milliseconds[2], 2),
    [
        study.table(
            [(name, round(ms, 2)) for name, ms in zip(steps, milliseconds)],
            ["", "ms"],
            title="Modelled H100, 40 MB on a ring of three",
        ),
        study.table(
            [("before wait", set_before), ("after wait", set_after)], ["", "the future is set"]
        ),
    ],
    unit="ms",
    words="The wait takes what is left of the ring when the backward is over, and nothing more.",
)

# %% tags=["maintainer"]
assert milliseconds[0] == 0 and not set_before and set_after
assert 1.25 < milliseconds[1] < 1.35, milliseconds

# %% [markdown]
# In the timeline below, look for the moment when the product (`mm`) ends and the rank begins to wait for its lane.

# %%
study.viewer(waiting, title="The call is back at once; the ring goes on in the lane")

# %% [markdown]
# On a GPU there is a twist that surprises many people. The program does not compute there itself; it *puts* work into the GPU's [stream](term:stream), a queue. NCCL's `wait` puts a mark into that queue, "do not go on before the all-reduce has ended", and returns immediately. The numbers are then safe for everything that the *GPU* does afterwards, but Python itself has not waited for anything. Gloo's `wait`, and ours, stop the program itself, because on a CPU there is no queue.
#
# Now we come to PyTorch's own future, `torch.futures.Future`. It is `TinyFuture` with locks and with a `wait`, so that one thread may set it while another waits. Two details differ. Its callbacks are called with the *future*, not with the value, so that they can find out about an error; and its `then` returns a new future, whose value will be what the callback returns. This is how "divide the sum when it is there" is chained:

# %%
total = torch.futures.Future()
mean = total.then(lambda done: done.value() / 4)
print("set?", total.done(), mean.done())
total.set_result(10.0)
print("set?", total.done(), mean.done(), "and the mean is", mean.wait())

# %% [markdown]
# ## Naive first: a process group with nothing in it
#
# `dist.ProcessGroup` is a C++ class from which one can derive in Python. When DDP, in C++, calls a method, PyTorch checks whether the Python class has it. So we can begin with nothing, see what DDP asks for, and add it.

# %%
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from minidist.models import mlp
from minidist.tasks import digits


def network():
    return mlp([64, 32, 10], dtype=torch.float64)


class Empty(dist.ProcessGroup):
    def __init__(self, comm):
        super().__init__(comm.rank, comm.size)
        self.comm = comm
        self.calls = []  # what has been asked for


def wrapped(comm, group_class):
    return DDP(network(), process_group=group_class(comm))


try:
    World(2).run(wrapped, Empty)
except RuntimeError as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# There is no Python method, so PyTorch looks for a C++ backend in its place, finds none, and says so. The message is worth remembering, because it does *not* name the method that is missing.
#
# The first thing that we need is a Work. In a World we can be simple: our methods do everything before they return, so the future is set from the start, and `wait` has nothing to wait for. This is correct but gives up all overlap, which is what makes it the naive version.


# %%
class Done(dist.Work):
    """A work that was over before anyone asked."""

    def __init__(self, result):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout=None):
        return True

    def get_future(self):
        return self.future


class Three(Empty):
    """A process group with the three methods that DDP calls."""

    def allgather(self, outputs, inputs, opts=None):
        """outputs[0][r] becomes what rank r has in inputs[0]."""
        self.calls.append("allgather")
        rows = collectives.all_gather(self.comm, inputs[0][None])
        for output, row in zip(outputs[0], rows):
            output.copy_(row)
        return Done(outputs)

    def broadcast(self, tensors, opts=None):
        """tensors[0] becomes the root's."""
        self.calls.append("broadcast")
        collectives.broadcast_(self.comm, tensors[0], opts.rootRank)
        return Done(tensors)

    def allreduce(self, tensors, opts=None):
        """tensors[0] becomes the sum. (opts.reduceOp says what is asked for: of gradients always a sum.)"""
        self.calls.append("allreduce")
        ring(self.comm, tensors[0].view(-1), "sum")
        return Done(tensors)


# %% [markdown]
# The signatures look odd, with lists of tensors where one would do, because they are older than most of PyTorch: in those days a single process drove several GPUs, and passed one tensor for each.
#
# ### Is it right?
#
# The task is the handwritten digits again, in double precision, with 96 samples in a step. Each of three ranks in a World takes every third sample. The oracle is one rank that has all of them. DDP divides each gradient by n *before* it calls `allreduce`, so that the sum is the mean.

# %%
task = digits()


def train(comm, model, steps=12, batch=96):
    """SGD on this rank's part of each batch; the mean loss of the ranks in each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch)[comm.rank :: comm.size]
        optimizer.zero_grad()
        loss = cross_entropy(model(task.x[rows]), task.y[rows])
        loss.backward()
        optimizer.step()
        mean = collectives.all_reduce_(comm, loss.detach().clone(), "mean")
        losses.append(mean.item())
    return losses


def train_serially(comm):
    return train(comm, network())


def train_on_three(comm):
    model = wrapped(comm, Three)
    at_start = list(model.process_group.calls)
    losses = train(comm, model)
    return losses, at_start, model.process_group.calls[len(at_start) :]


serial = World(1).run(train_serially)[0]
losses, at_start, in_steps = World(3).run(train_on_three)[0]


def apart(numbers, others):
    """How far two lists of numbers are apart. In double precision, below 1e-12 is rounding."""
    largest = max(abs(a - b) for a, b in zip(numbers, others))
    return "below 1e-12" if largest < 1e-12 else f"{largest:.2g}"


print("losses of DDP on our ring and of one rank, largest difference:", apart(losses, serial))

# %% [markdown]
# PyTorch's DDP has trained on a class of some twenty lines. And which methods did it call?

# %% tags=["answer"]
names = ("allgather", "broadcast", "allreduce")
study.reveal(
    guess_methods,
    1,
    study.table(
        [(name, at_start.count(name), in_steps.count(name)) for name in names],
        ["method", "when DDP is made", "in 12 steps"],
        title="What DDP asks of a process group",
    ),
    words="It is allreduce. (The two broadcasts come once, after the first backward.)",
)

# %% tags=["maintainer"]
assert apart(losses, serial) == "below 1e-12"
assert set(in_steps) == {"allreduce", "broadcast"} and in_steps.count("allreduce") == 12
assert in_steps.count("broadcast") == 2 and set(at_start) == {"allgather", "broadcast"}

# %% [markdown]
# Each call has its reason. When DDP is made, the ranks compare how many parameters they have (`allgather`) and whether their shapes are those of rank 0 (`broadcast`), and then they take over rank 0's parameters (`broadcast`), because replicas must begin equal. After the first backward DDP lays its buckets out anew in the order in which gradients really became ready. Ranks may have seen different orders, so rank 0 broadcasts its order and then the sizes of its buckets; you know from [Buckets and overlap](lesson:buckets) what happens otherwise. From then on a step is `allreduce`, once for each bucket.
#
# ## What it costs: predict, then count
#
# A ring sends $2\frac{n-1}{n}N$ bytes from each rank, whatever calls it. DDP has 2,410 parameters of 8 bytes to average here. If they lie in b buckets, a rank sends $2(n-1)\,b$ messages. `bucket_cap_mb` sets the size of a bucket, 25 MiB by default, which is far more than all we have. **How many messages does each of 4 ranks send in a step if a bucket holds 1 KiB?** (The layers have 64 · 32 weights and 32 biases, then 32 · 10 and 10. A gradient is never cut in two.)

# %%
guess_messages = 6  # as with one bucket: change this number

# %% [markdown]
# `CommGroup` from the library is our `Three` with all methods. The functions that do the work are handed to it, and we hand it a ring that notes how long its tensors are. (`overlap=False` says that its methods end before they return, as ours do.) We look at the third step, when the buckets have found their order.

# %%
from minidist.comm.processgroup import CommGroup, process_group


def third_step(comm, cap=25.0, own_ring=ring):
    """When the third step begins, and the numbers in each of its buckets."""
    sizes = []

    def noting_ring(comm, x, op):
        sizes.append(len(x))
        own_ring(comm, x, op)

    group = CommGroup(comm, collectives, overlap=False, all_reduce_=noting_ring)
    model = DDP(network(), process_group=group, bucket_cap_mb=cap)
    for _ in range(3):
        begin = comm.now()
        sizes.clear()
        model(task.x[:4]).sum().backward()
    return begin, list(sizes)


def sent(n, cap=25.0):
    """Bytes and messages that rank 0 sends in the third step, and the sizes of the buckets."""
    results = World(n).run(third_step, cap)
    begin, sizes = results[0]
    own = [m for m in results.trace if m.src == 0 and m.start >= begin]
    return sum(m.nbytes for m in own), len(own), sizes


ranks = [2, 3, 4, 6, 8]
counted = [sent(n)[0] for n in ranks]
predicted = [2 * (n - 1) / n * 2410 * 8 for n in ranks]
caps = {"25 MiB, the default": 25.0, "1 KiB": 2**-10, "64 B": 2**-14}
rows = []
for name, cap in caps.items():
    nbytes, messages, sizes = sent(4, cap)
    rows.append((name, ", ".join(map(str, sizes)), messages, nbytes))

# %% tags=["answer"]
study.reveal(
    guess_messages,
    rows[1][2],
    study.table(
        rows,
        ["bucket_cap_mb", "numbers in each bucket", "messages a rank", "bytes a rank"],
        title="Buckets of DDP, 4 ranks",
    ),
    unit="messages",
    words=f"{len(rows[1][1].split(','))} buckets, and 2(n−1) = 6 messages for each.",
)

# %% tags=["maintainer"]
for _, sizes, messages, _ in rows:
    assert messages == 6 * len(sizes.split(","))
assert all(abs(a - b) <= 2 * n * 8 for a, b, n in zip(counted, predicted, ranks))

# %% [markdown]
# Smaller buckets change nothing about the bytes and everything about the messages, each of which pays a latency. What they buy is overlap. Here are the bytes over the number of ranks, predicted as a line and counted as points:

# %%
study.curves(
    {"2(n−1)/n · N": (ranks, predicted)},
    points={"2(n−1)/n · N": (ranks, counted)},
    xlabel="ranks",
    yunit="B",
    ylabel="a rank sends in a step",
    title="PyTorch's DDP, counted message by message",
)

# %% [markdown]
# ### Any algorithm, any machine
#
# Since *how* is below the door, we may exchange it. Let us run PyTorch's DDP on two modelled nodes of eight H100s each, with three algorithms from [Collectives at scale](lesson:trees). The bucket holds 19 kB. **Which algorithm is fastest?** (Naive means that rank 0 receives everything, one message after the other, and sends the sum to all.)

# %%
guess_algorithm = "ring"  # "naive", "ring" or "halving_doubling"


# %%
def seconds(algorithm):
    """Of the third step's all-reduce on sixteen modelled GPUs."""
    world = World(16, cluster=Cluster.dgx_h100(nodes=2))
    all_reduce = partial(collectives.all_reduce_, algorithm=algorithm)
    results = world.run(third_step, own_ring=all_reduce)
    messages = [m for m in results.trace if m.start >= results[0][0]]
    return max(m.arrived for m in messages) - min(m.start for m in messages)


found = {name: seconds(name) for name in ("naive", "ring", "halving_doubling")}

# %% tags=["answer"]
study.reveal(
    guess_algorithm,
    min(found, key=found.get),
    study.bars(found, unit="s", title="A bucket of PyTorch's DDP on 16 modelled GPUs"),
    options=list(found),
    words="For so small a bucket, latency is all that counts. The ring has 30 messages in a row and loses even to the naive way; halving-doubling has 2·log₂16 = 8.",
)

# %% tags=["maintainer"]
assert min(found, key=found.get) == "halving_doubling" and max(found, key=found.get) == "ring"

# %% [markdown]
# These sixteen GPUs do not exist, and DDP's C++ code has not noticed.
#
# ## The real version: return first, finish later
#
# So much for the naive Work, which is over before it is returned. Now we write a real one. The recipe is `start` from above with PyTorch's future in place of the tiny one: begin the ring in a lane, return at once, and set the future at the end. Only one question is left, and it is the one that takes an afternoon: *what if the ring fails?* A wire is cut, a rank has died, the shapes do not match. The future will never have its value, and whoever waits for it must be told.
#
# A future has a method for this, `set_exception`, and in Python it does what one expects: `wait` raises the error. C++, however, sees something else. In the version of PyTorch that this course uses (2.13), a future that was given an exception *from Python* counts in C++ as a future with a value, and the value is the exception object. DDP takes it for the tensor that it wanted, and the process crashes. A future fails on both sides only if a callback of `then` raises. So the trick is to set one future in any case, and to hand out another, which is chained to it.
#
# (The two classes stand inside a function for a practical reason. `launch` has to send our program to other processes, and a class that derives from a class of C++ cannot be sent. The function can, and it makes the classes on arrival. The methods that we do not write ourselves, such as broadcast and allgather, are taken from `CommGroup`.)


# %%
def overlapping_group(comm, own_ring=ring):
    """A process group whose all-reduces run in a lane, beside the program."""

    class Later(dist.Work):
        """A collective under way in a lane."""

        def __init__(self, job, result):
            super().__init__()
            errors = []
            ended = torch.futures.Future()  # is set when the job has ended, well or badly

            def run(lane):
                try:
                    job(lane)
                except Exception as error:
                    errors.append(error)
                ended.set_result(None)

            def outcome(ended):
                if errors:
                    raise errors[0]
                return result

            self.future = ended.then(outcome)  # fails, in C++ too, if `outcome` raises
            self.work = comm.stream(run)

        def get_future(self):
            return self.future

        def wait(self, timeout=None):
            self.work.wait()
            self.future.wait()  # set by now; raises what went wrong
            return True

    class Overlapping(CommGroup):
        def allreduce(self, tensors, opts=None):
            def job(lane):
                own_ring(lane, tensors[0].view(-1), "sum")

            return Later(job, tensors)

    return Overlapping(comm, collectives)


# %% [markdown]
# Why is this right when several buckets are under way? Jobs of one lane run one after the other, in the order of the calls, and DDP starts its buckets in the same order on all ranks. So the k-th ring of one rank always meets the k-th ring of the others. And no ring can meet the program's own messages, because a lane has its own channel.
#
# A World's ranks share one virtual clock, which cannot move on while C++ code blocks in `wait`; therefore this version needs real processes, which `launch` starts. Let us compare all weights after twelve steps with gloo's. We make two buckets, so that there is something to overlap.


# %%
def train_on(comm, make_group=None):
    group = make_group(comm) if make_group else dist.group.WORLD  # without one: gloo's own
    model = DDP(network(), process_group=group, bucket_cap_mb=2**-10)
    train(comm, model)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


gloo = {n: launch(train_on, n, transport="gloo")[0] for n in (2, 3)}
ours = {n: launch(train_on, n, overlapping_group)[0] for n in (2, 3)}
rows = [
    (2, apart(ours[2], gloo[2]), "yes" if ours[2] == gloo[2] else "no"),
    (3, apart(ours[3], gloo[3]), "not promised"),
]
study.table(
    rows,
    ["ranks", "all weights: our ring against gloo", "equal, bit for bit"],
    title="Twelve steps in float64, real processes",
)

# %% tags=["maintainer"]
assert rows == [(2, "below 1e-12", "yes"), (3, "below 1e-12", "not promised")]

# %% [markdown]
# On two ranks all bits are equal, because a + b = b + a holds in floating point too. On three, (a + b) + c need not equal a + (b + c), so the last bits depend on the order in which a backend adds, and no particular order is promised. (If you compare, you may find all bits equal here: gloo's all-reduce of a small tensor is a ring as well.) So do not expect two backends to agree to the last bit; expect each to give *all its ranks* the same bits.
#
# And what becomes of an error? Let the ring fail on both ranks, in the lane, while DDP is in the middle of its backward. The line below is from the error that `backward` raised, where C++ had waited for the future:


# %%
def cut_ring(comm, x, op):
    raise OSError("the wire is cut")


def first_backward(comm):
    model = DDP(network(), process_group=overlapping_group(comm, cut_ring))
    try:
        model(task.x[:4]).sum().backward()
    except Exception as error:
        return next(line for line in str(error).splitlines() if "wire" in line)


print(launch(first_backward, 2)[0])

# %% [markdown]
# ## FSDP2: two more methods
#
# DDP keeps everything on every rank. `fully_shard`, PyTorch's FSDP2, keeps 1/n of each layer on each rank, which is stage 3 of [ZeRO](lesson:zero). Its calls follow from that. Before a layer computes, its parameters have to be gathered from all ranks; afterwards they are freed. In the backward they are needed again, so they are gathered again. And when the layer's gradients are there, a reduce-scatter adds them up and leaves to each rank the part that it owns.
#
# ![Three layers over time. In the forward each layer is gathered, used and freed: gather 1, forward 1, gather 2, forward 2, gather 3, forward 3. In the backward layer 3 comes first: gather 3, backward 3; then gather 2, before the gradients of layer 3 are scattered, and so on.](../course/28_capstone/figures/sharded_step.svg)
#
# One detail is left to order. The backward of layer 2 needs its parameters, and the gradients of layer 3 want to go to their owners; both use the network. Which should go first? The gather: the GPU stands still without the parameters, while nobody is in a hurry for the gradients. Fetching something before it is needed is called [prefetching](term:prefetch). (The same happens in the forward on a GPU: Python runs ahead of the card, so the gather of layer 2 already travels while layer 1 computes.)
#
# **For three layers, how many collectives does FSDP2 call in one forward and backward?**

# %%
guess_calls = 6  # change this number

# %% [markdown]
# The two collectives are the halves of the ring. FSDP2 hands over its tensors as flat as we could wish, since it has padded every parameter so that n divides it. The library hands them to us as n chunks, and each of our functions works on them in place: after the gather all chunks are filled, and after the reduce-scatter chunk r is finished on rank r.


# %%
def all_gather_(comm, chunks):
    """chunks[r] is filled on rank r; afterwards all are, everywhere."""
    n = comm.size
    r = comm.rank
    for step in range(n - 1):
        outgoing = chunks[(r - step) % n]
        incoming = chunks[(r - 1 - step) % n]
        comm.sendrecv(outgoing, (r + 1) % n, incoming, (r - 1) % n, label="gather")


def reduce_scatter_(comm, chunks, op):
    """chunks[r] becomes, on rank r, the combination of all ranks' chunks[r]."""
    n = comm.size
    r = comm.rank
    for step in range(n - 1):
        outgoing = chunks[(r - 1 - step) % n]
        own = chunks[(r - 2 - step) % n]
        arrived = torch.empty_like(own)
        comm.sendrecv(outgoing, (r + 1) % n, arrived, (r - 1) % n, label="reduce")
        COMBINE[op](own, arrived, out=own)


# %% [markdown]
# FSDP2 wants its ranks laid out in a `DeviceMesh`, a grid of ranks with names, and a mesh looks its groups up by name in `torch.distributed`. So a bare `CommGroup` is not enough here. The library's `process_group` makes one that `torch.distributed` knows. It is called like `CommGroup`, in real processes only.

# %%
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def sharded(model, group):
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def calls_of_a_step(comm):
    calls = []

    def noting_gather(comm, chunks):
        calls.append("gather")
        all_gather_(comm, chunks)

    def noting_scatter(comm, chunks, op):
        calls.append("scatter")
        reduce_scatter_(comm, chunks, op)

    own = {"all_gather_": noting_gather, "reduce_scatter_": noting_scatter}
    group = process_group(comm, overlap=False, **own)
    loss = sharded(mlp([64, 32, 32, 10], dtype=torch.float64), group)(task.x[:4]).sum()
    in_forward = len(calls)
    loss.backward()
    return calls[:in_forward], calls[in_forward:]


forward_calls, backward_calls = launch(calls_of_a_step, 2)[0]

# %% tags=["answer"]
study.reveal(
    guess_calls,
    len(forward_calls) + len(backward_calls),
    study.table(
        [("forward", ", ".join(forward_calls)), ("backward", ", ".join(backward_calls))],
        ["", "calls, in this order"],
        title="What FSDP2 asks of a process group, 3 layers",
    ),
    unit="calls",
    words="Three gathers forward, three gathers backward, three reduce-scatters. In the backward the next gather comes before the scatter.",
)

# %% tags=["maintainer"]
assert forward_calls == ["gather"] * 3
assert backward_calls == ["gather", "gather", "scatter", "gather", "scatter", "scatter"]

# %% [markdown]
# Does it train? The oracles are gloo once more, and the serial run.


# %%
def train_sharded(comm, ours):
    own = {"all_gather_": all_gather_, "reduce_scatter_": reduce_scatter_}
    group = process_group(comm, **own) if ours else dist.group.WORLD
    return train(comm, sharded(network(), group))


gloo_sharded = {n: launch(train_sharded, n, False, transport="gloo")[0] for n in (2, 3)}
runs = {n: launch(train_sharded, n, True) for n in (2, 3)}
rows = []
for n in (2, 3):
    rows.append((n, apart(runs[n][0], gloo_sharded[n]), apart(runs[n][0], serial)))
study.table(
    rows,
    ["ranks", "losses against gloo's", "against one rank's"],
    title="FSDP2 on our collectives",
)

# %% tags=["maintainer"]
assert runs[2][0] == gloo_sharded[2]
assert all(row[1:] == ("below 1e-12", "below 1e-12") for row in rows)

# %% [markdown]
# ### What sharding costs
#
# Each gather and each reduce-scatter is half a ring: n − 1 messages and $\frac{n-1}{n}$ of the layer's bytes. DDP pays two halves and FSDP2 three: gather, gather and scatter. So FSDP2 sends $3\frac{n-1}{n}N$, half as much again as DDP; in return, the memory of parameters, gradients and optimizer states is divided by n. On top of this comes the padding: 32 rows do not split evenly over 3 ranks, and are rounded up to 33.


# %%
def padded_numbers(n):
    """All parameters, with the rows of each rounded up to a multiple of n."""
    total = 0
    for p in network().parameters():
        rows = -(-len(p) // n) * n
        total += rows * p[0].numel()
    return total


ranks = [2, 3, 4, 8, 16, 32]
lines = {
    "DDP": (ranks, [2 * (n - 1) / n * 2410 * 8 for n in ranks]),
    "FSDP2": (ranks, [3 * (n - 1) / n * padded_numbers(n) * 8 for n in ranks]),
}
per_step = {}
for n, run in runs.items():
    own = [m.nbytes for m in run.trace if m.src == 0 and m.label in ("gather", "reduce")]
    per_step[n] = sum(own) / 12
study.curves(
    lines,
    points={"FSDP2": (list(per_step), list(per_step.values()))},
    xlabel="ranks",
    yunit="B",
    ylabel="a rank sends in a step",
    title="Predicted (lines), and counted under FSDP2 (points)",
)

# %% tags=["maintainer"]
assert all(per_step[n] == 3 * (n - 1) / n * padded_numbers(n) * 8 for n in (2, 3))

# %% [markdown]
# On our tiny network padding adds 30 % at 32 ranks, where 10 rows become 32. In a large network it is negligible. Latency is not, because FSDP2 calls collectives for each *layer*, and DDP for each *bucket*. Drag the sliders and see when the gap between the lines grows beyond a factor of 1½. The model has 32 layers, DDP's buckets hold 25 MiB, and nothing is overlapped here.


# %%
def communication(n, parameters, alpha, beta):
    """Modelled seconds on a ring, nothing overlapped: 32 layers, four bytes a number."""
    N = 4 * parameters
    half_ring = (n - 1) / n * N / (beta * 1e9)
    buckets = max(1, round(N / (25 * 2**20)))
    return {
        "DDP": 2 * half_ring + buckets * 2 * (n - 1) * alpha * 1e-6,
        "FSDP2": 3 * half_ring + 32 * 3 * (n - 1) * alpha * 1e-6,
    }


study.explore(
    communication,
    title="A step's messages, 32 layers",
    over="n",
    xlabel="ranks",
    ylabel="communication in a step",
    unit="s",
    logx=True,
    n=[2, 4, 8, 16, 32, 64, 128, 256],
    parameters=[10**6, 10**7, 10**8, 10**9],
    alpha=[2, 5, 20, 80],
    beta=[5, 25, 100, 450],
    labels={"alpha": "α, µs", "beta": "bandwidth, GB/s"},
    start={"parameters": 10**8, "alpha": 20, "beta": 25},
)

# %% [markdown]
# ## Break it: the ring that stops one step early
#
# Somebody's ring makes one step too few in its second half. Every rank is left with one chunk that is only partly summed. **Does DDP raise an error, does the loss explode, or neither?**

# %%
guess_symptom = "an error"  # or "the loss explodes", or "neither"


# %%
def short_ring(comm, x, op):
    n = comm.size
    r = comm.rank
    chunks = x.tensor_split(n)
    for step in range(n - 1):
        own = chunks[(r - 2 - step) % n]
        arrived = torch.empty_like(own)
        comm.sendrecv(chunks[(r - 1 - step) % n], (r + 1) % n, arrived, (r - 1) % n)
        COMBINE[op](own, arrived, out=own)
    for step in range(n - 2):  # wrong: n − 1
        comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - 1 - step) % n], (r - 1) % n)


def train_and_compare(comm, own_ring):
    """The losses, and in each step how far this replica's weights are from rank 0's."""
    group = CommGroup(comm, collectives, overlap=False, all_reduce_=own_ring)
    model = DDP(network(), process_group=group)
    distances = []

    def compare(module, inputs):
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        of_rank_0 = collectives.broadcast_(comm, weights.clone())
        distances.append(float((weights - of_rank_0).norm()))

    model.register_forward_pre_hook(compare)
    return train(comm, model), distances


variants = {"right": ring, "a step short": short_ring}
results = {name: World(4).run(train_and_compare, own) for name, own in variants.items()}
steps = list(range(1, 13))
loss_lines = {name: (steps, result[0][0]) for name, result in results.items()}
distance_lines = {name: (steps, result[3][1]) for name, result in results.items()}

# %% tags=["answer"]
losses_drawn = study.curves(loss_lines, xlabel="step", ylabel="loss", title="The loss, 4 ranks")
distances_drawn = study.curves(
    distance_lines,
    xlabel="step",
    ylabel="distance between replicas 0 and 3",
    title="How far replicas are apart",
)
study.reveal(
    guess_symptom,
    "neither",
    [losses_drawn, distances_drawn],
    options=["an error", "the loss explodes", "neither"],
    words="The loss falls almost as it should. Only a comparison of the replicas shows that they drift apart.",
)

# %% tags=["maintainer"]
assert max(results["right"][3][1]) == 0 and results["a step short"][3][1][-1] > 0.01

# %% [markdown]
# Nothing warns you. DDP compares the replicas once, when it is made, and then only their shapes. So compare weights across ranks *bit for bit* now and then. A checksum is enough, and comparing it takes only a tiny message.
#
# ## Break it: the future that lies
#
# The second mistake is about time. DDP has a side door for people who only want to change what happens to a bucket: `register_comm_hook(state, hook)`. DDP calls `hook(state, bucket)` instead of `allreduce`, and uses the value of the future that the hook returns as the gradients. (With a hook DDP does not divide by n, so the hook must.) What if the hook sets its future before the ring has ended?
#
# So that the outcome does not depend on who is faster, the ring in the next cell does not begin before `go` is given. The honest hook gets it before the backward, the lying one after the backward, as on a slow network.

# %%
from threading import Event


def make_hook(comm, go, works, lies):
    def hook(state, bucket):
        x = bucket.buffer()

        def job(lane):
            go.wait()
            collectives.all_reduce_(lane, x, "mean")

        works.append(comm.stream(job))
        if not lies:
            works[-1].wait()
        future = torch.futures.Future()
        future.set_result(x)
        return future

    return hook


def first_gradient(comm, lies):
    go = Event()
    works = []
    model = DDP(network(), process_group=process_group(comm, collectives))
    model.register_comm_hook(None, make_hook(comm, go, works, lies))
    if not lies:
        go.set()
    rows = torch.arange(1400)[comm.rank :: comm.size]
    cross_entropy(model(task.x[rows]), task.y[rows]).backward()
    gradient = model.module[0].weight.grad.clone()  # what the optimizer would use
    go.set()
    for work in works:
        work.wait()
    return gradient


model = network()
cross_entropy(model(task.x[:1400]), task.y[:1400]).backward()
right = model[0].weight.grad


def same(a, b):
    return "yes" if (a - b).norm() < 1e-10 else "no"


rows = []
for name, lies in {"when the ring has ended": False, "at once": True}.items():
    a, b = launch(first_gradient, 2, lies)
    rows.append((name, same(a, b), same(a, right), same((a + b) / 2, right)))
study.table(
    rows,
    ["the future is set", "ranks agree", "rank 0 has the mean", "mean of both is right"],
    title="The gradient after the first backward, 2 ranks",
)

# %% tags=["maintainer"]
assert rows[0][1:] == ("yes", "yes", "yes") and rows[1][1:] == ("no", "no", "yes")

# %% [markdown]
# The last column shows what has happened: each rank has its *own* gradient, whose mean would be right if anyone had taken it. Each rank trains on its own gradients, and no error is raised. What makes this bug vicious is that on a fast network the ring usually wins the race, so most steps are right.
#
# Here are the mistakes that people make in a process group, and their symptoms:
#
# | mistake | symptom |
# |---|---|
# | a method is missing | "No backend type associated with device type cpu" when the method is first called |
# | `allreduce` divides as well | gradients that are n times too short; with Adam hardly visible |
# | the ring is a step short | no error, and the replicas drift apart |
# | the future is set too early | no error, and the replicas drift apart, differently in each run |
# | the future is never set | the backward hangs at its end |
# | `set_exception` instead of `then` | the process crashes in C++ without a Python traceback |
# | buckets start in another order on one rank | shapes that do not match, or sums of different layers |
#
# ## When not to do this
#
# Do not train on GPUs with it. NCCL adds while it copies, inside one kernel, and knows the machine's wires. A ring made of separate sends and sums cannot compete, and our group refuses GPU tensors anyway. If you only want to change *what* travels, for instance to send gradients in fewer bits ([Send less](lesson:compress)), use a hook: it gets the bucket, and you need no group. If you want to change *when* something travels, a process group is the wrong place, because DDP decides when to call it. A process group of your own is good for what we did here: learning exactly what DDP and FSDP2 do, counting it, running it on machines that you do not have, and trying an algorithm under real training code before anyone writes it in CUDA.
#
# ## The library's file
#
# ![Layers of software, from above: a training script; PyTorch's DDP or FSDP2; a process group, here CommGroup; your all-reduce, reduce-scatter and all-gather on a ring; a Comm with isend and irecv; and below it a World, processes or torchrun, which carry the messages.](../course/28_capstone/figures/stack.svg)
#
# [minidist/comm/processgroup.py](file:minidist/comm/processgroup.py) has four parts. The first is our `Later`, as a Work and a function that starts it. You will recognize `outcome`; what is new is that the job may also be done here and now, which is what a World needs.

# %%
from minidist.comm import processgroup

study.source(processgroup.start_collective)

# %% [markdown]
# (`run` calls `outcome` once more at its end, so that the lane itself fails too, and whoever calls `wait` gets the error from there.) The second part consists of the methods. Each translates PyTorch's arguments and hands the work on:

# %%
study.source(CommGroup.allreduce)

# %% [markdown]
# `_reduction` reads the name of the operation from `opts`. An average (`ReduceOp.AVG`) is a sum, divided afterwards by `parts`, so your ring never has to know it. `_verb` finds the function that does the work: first it looks among the functions that were handed in by name, such as `all_reduce_=ring`, then in `verbs`, a module such as `minidist.collectives`. If there is none, its error names what is missing, which PyTorch's did not. `_by_dtype` makes one flat tensor out of several, since a message has one dtype. FSDP2's methods are the third part:

# %%
study.source(CommGroup.reduce_scatter)

# %% [markdown]
# It copies first (`torch.cat`), because our ring works in place and the caller's input must stay as it is. Our own `reduce_scatter_` above was called from here. The last part makes a group that `torch.distributed` knows by name:

# %%
study.source(process_group)

# %% [markdown]
# The first group of a process becomes the default group of `torch.distributed`. There is no meeting of the ranks to arrange, since the Comm's ranks have met already. FSDP2 may need groups of *some* ranks, for copies of shards on a grid of two dimensions. Then `torch.distributed` calls `_create` for each such group, and `_create` cuts a smaller Comm out of the large one.
#
# ## On real machines
#
# A [launch](term:launch) over gloo's sockets in place of shared memory changes the Comm under our ring and nothing above it:

# %%
over_sockets = launch(train_on, 2, overlapping_group, transport="gloo")[0]
print("the same weights as with gloo's own all-reduce:", over_sockets == gloo[2])

# %% tags=["maintainer"]
assert over_sockets == gloo[2]

# %% [markdown]
# [examples/train_ddp.py](file:examples/train_ddp.py) does the same as a program of its own: it runs PyTorch's DDP, or with `--fsdp` its FSDP2, on the ring of this lesson. Under torchrun, `from_env` takes the rank and the addresses from the environment. Start it as follows on one machine, or on each of two:
#
# ```
# torchrun --nproc-per-node 4 examples/train_ddp.py --fsdp
# torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_ddp.py
# ```
#
# You began this course with a message from one rank to another. By now you have written everything that lies between that message and PyTorch's own trainers.
#
# ## Takeaways
#
# - A process group is the door between *when* numbers travel (DDP, FSDP2) and *how* (a ring, NCCL).
# - A step of DDP calls one method, a step of FSDP2 two others.
# - A future is the ticket for a value that does not exist yet. A Work is a collective under way, and `wait` returns when the results are there; on a GPU, when the stream has been told to wait for them.
# - Errors must reach C++ as well: let a callback of `then` raise.
# - Two backends agree bit for bit on two ranks. On three or more, expect differences in rounding, since the order of addition may differ.
# - Each rank sends $2\frac{n-1}{n}N$ bytes in a step of DDP, and $3\frac{n-1}{n}N$ and padding in a step of FSDP2.
# - A wrong collective need not raise an error. Compare replicas bit for bit.
#
# ## Further reading
#
# - paper:li2020 Section 3: how DDP is built, and its process groups in 3.3.
# - paper:zhao2023 Section 3: what FSDP gathers and when.
# - paper:rajbhandari2020 Section 7: why sharding costs one and a half times the bytes.
# - paper:patarasuk2009 The ring, and why no algorithm sends fewer bytes.
