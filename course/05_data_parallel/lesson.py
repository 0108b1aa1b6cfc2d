# %% [markdown]
# # 05 · Data parallel
#
# One GPU trains a network on batches of 60 samples. You get three more GPUs and would like to be done in a quarter of the time. The simplest plan is to give each of the four a copy of the network and 15 samples of every batch. Then the copies must be kept from drifting apart, since each of them sees different data.
#
# [Data parallelism](term:data-parallel) is the oldest technique in this course, the most widely used, and the one that is easiest to get slightly wrong. It is also exact: done right, four ranks compute *the same training run* as one. How exact can that be? A number in double precision has about 16 decimal digits. **After five epochs on one rank and five on four, how many digits of the weights agree?**

# %%
guess = 3  # digits that agree: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# The loss of a batch is the mean over its samples, and the derivative of a mean is the mean of the derivatives. So the gradient of a batch is the mean of its samples' gradients. Let a batch have six samples whose gradients, for one particular weight, are 1, 2, 3, 4, 5 and 6. The gradient of the batch is 3.5.
#
# Now three ranks take two samples each. The first finds a mean of 1.5, the second 3.5, the third 5.5. The mean of these three is 3.5 again. Nothing has been lost, and the only thing that the ranks had to tell each other is one number for each weight: an [all-reduce](term:all-reduce).

# %%
import torch
from IPython.display import display

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World

parts = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])]


def own_mean(comm, parts):
    return parts[comm.rank].mean()


def mean_of_means(comm, parts):
    return all_reduce_(comm, parts[comm.rank].mean(), op="mean")


study.holdings(
    {
        "gradients": parts,
        "own mean": World(3).run(own_mean, parts),
        "after the all-reduce": World(3).run(mean_of_means, parts),
    },
    title="The mean of the means is the mean",
)

# %% [markdown]
# **Why the parts must be equal.** Suppose the first rank takes three samples, the second two and the third one. Their means are 2, 4.5 and 6, and the mean of these is 4.17, not 3.5: sample 6 now counts three times as much as sample 1. So for the moment we deal every rank the same number of samples. What to do when that is impossible is the subject of [What needs the whole batch](lesson:whole_batch).
#
# ## The plan of a step
#
# ![One step on two ranks. Both start with the weight 10. Rank 0 computes a gradient of 2 from its half of the batch, rank 1 one of 4. An all-reduce averages them: 3 on both. Each takes the same step, and both have the weight 7.](../course/05_data_parallel/figures/one_step.svg)
#
# Read the picture from left to right. All copies start with equal weights. Each rank runs forward and backward on its own samples and has a gradient of its own. The all-reduce makes the gradients equal. Then each rank takes its step by itself; since weights, gradients and optimizer are all equal, the results are equal too, and no weights ever need to be sent again.
#
# That sentence contains a complete list of what can go wrong, and you should learn it by heart: **equal start, equal gradients, equal steps.** If one of the three is missing, the copies are not copies any more.
#
# ## Dealing out a batch
#
# A [sampler](term:sampler) decides which rank gets which samples. It has to keep two promises. Every rank gets equally many samples of every batch. And taken together they are the batch that one rank would have had, so that training does not depend on the number of ranks. The trick is to shuffle with the same seed everywhere, cut the order into batches, and let each rank take its own slice.
#
# ![Ten samples in batches of four on two ranks. All ranks draw the same permutation, 4 1 7 5 3 9 0 8 6 2, and cut it into 4 1 7 5 and 3 9 0 8; 6 2 is left out. Of each batch rank 0 takes the first half and rank 1 the second.](../course/05_data_parallel/figures/sampler.svg)


# %%
def my_indices(length, batch, comm, seed):
    """This rank's samples of each full batch."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(length, generator=generator)  # the same on every rank
    share = batch // comm.size
    for start in range(0, length - batch + 1, batch):
        whole = order[start : start + batch]
        yield whole[comm.rank * share : (comm.rank + 1) * share]


batches = World(3).run(lambda comm: list(my_indices(14, 6, comm, seed=0)))
owner = {}
for rank, mine in enumerate(batches):
    for part in mine:
        for index in part:
            owner[int(index)] = rank
study.holdings(
    {f"batch {b}": [mine[b] for mine in batches] for b in range(2)},
    owner=lambda word: owner[int(word)],
    title="14 samples, batches of 6, on 3 ranks: who takes which",
)

# %% [markdown]
# The two samples that do not fill a batch are left out. A sampler must also reshuffle in every epoch, with a seed that all ranks compute in the same way, for instance from the number of the epoch. Forgetting this is a well-known slip in PyTorch, where one has to call `set_epoch`: training still works, but it sees the samples in the same order forever. The library's sampler has the same interface, and we shall use it from here on.
#
# ## A task
#
# Our data are 1,437 handwritten digits of 8 × 8 pixels, and 360 others to test on. The network has one hidden layer. We compute in double precision, which nobody does in practice: here it makes rounding so small that any larger difference must be a mistake.

# %% tags=["maintainer"]
from minidist.study.picture import MARGIN, card


def draw_digits(images, classes):
    with card(9.2, 1.5, "Handwritten digits") as sheet:
        for i, (image, digit) in enumerate(zip(images, classes)):
            left = MARGIN + 0.74 * i
            axes = sheet.axes(left, 0.5, 0.62, 0.62)
            axes.imshow(image.view(8, 8), cmap="gray_r")
            axes.axis("off")
            sheet.word(left + 0.31, 1.28, str(int(digit)), ha="center")
        shown = " ".join(str(int(digit)) for digit in classes)
        return sheet.picture("Handwritten digits", f"the first {len(images)} images: {shown}")


# %%
from minidist.models import mlp
from minidist.parallel.data import Sampler
from minidist.tasks import digits

task = digits()
draw_digits(task.x[:12], task.y[:12])

# %% [markdown]
# ## Averaging the gradients
#
# Now the heart of it, in four lines. After the backward pass every parameter has a gradient, and each gradient is averaged over the ranks.

# %%
from torch.nn.functional import cross_entropy


def average_gradients(comm, model):
    for p in model.parameters():
        all_reduce_(comm, p.grad)
        p.grad /= comm.size


def gradients(comm, task, exchange=average_gradients):
    """The gradients of the first batch of 60, as this rank has them in the end."""
    model = mlp([64, 32, 10], dtype=torch.float64)
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    loss = cross_entropy(model(task.x[mine]), task.y[mine])
    loss.backward()
    exchange(comm, model)
    return {name: p.grad for name, p in model.named_parameters()}


# %% [markdown]
# Is it right? The [oracle](term:oracle) is the same function on a single rank, which has the whole batch. We compare gradient by gradient, once without the exchange and once with it.


# %%
def relative_error(found, right):
    return float((found - right).norm() / right.norm())


def no_exchange(comm, model):
    pass


serial = World(1).run(gradients, task)[0]
alone = World(4).run(gradients, task, no_exchange)[3]
averaged = World(4).run(gradients, task)[3]
rows = []
for name, gradient in serial.items():
    before = f"{relative_error(alone[name], gradient):.0%}"
    after = "below 1e-12" if relative_error(averaged[name], gradient) < 1e-12 else "wrong"
    rows.append((name, str(tuple(gradient.shape)), before, after))
study.table(
    rows,
    ["parameter", "shape", "off before the exchange", "off after it"],
    title="Rank 3's gradients against the serial ones",
)

# %% tags=["maintainer"]
assert all(relative_error(averaged[name], gradient) < 1e-12 for name, gradient in serial.items())

# %% [markdown]
# The gradient of 15 samples is a poor estimate of the gradient of 60, off by about its own length. The average of four such poor estimates is not a better estimate: it *is* the gradient of the 60 samples, up to the rounding of double precision.
#
# ## Training
#
# We have equal gradients, and the steps will be equal. The equal start is still missing. Each rank builds its own network, and if its random numbers differ, so do the weights. The remedy is a [broadcast](term:broadcast) of rank 0's parameters before the first step. In the next cell the seeds differ on purpose, so that the broadcast has something to do.
#
# ![Two ranks with equal gradients and different first weights. Left, 10 and 20 become 7 and 17: the difference stays. Right, rank 0's weights were broadcast first: 10 and 10 become 7 and 7.](../course/05_data_parallel/figures/initial_state.svg)
#
# `train` takes the functions for the start and the exchange as arguments. These are the places where we shall break it later.

# %%
from minidist.collectives import broadcast_


def weights_from_rank_0(comm, model):
    for p in model.parameters():
        broadcast_(comm, p.detach())


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(
    comm,
    task,
    epochs=2,
    make_optimizer=sgd,
    start=weights_from_rank_0,
    after_backward=average_gradients,
    after_step=no_exchange,
):
    """Train on this rank's share. Returns the losses and the weights after each step."""
    model = mlp([64, 32, 10], seed=comm.rank, dtype=torch.float64)
    start(comm, model)
    optimizer = make_optimizer(model.parameters())
    sampler = Sampler(len(task.x), 60, comm)
    losses = []
    history = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # another order in every epoch, the same on all ranks
        for mine in sampler:
            optimizer.zero_grad()
            loss = cross_entropy(model(task.x[mine]), task.y[mine])
            loss.backward()
            after_backward(comm, model)
            optimizer.step()
            after_step(comm, model)
            losses.append(loss.item())
            history.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
    return losses, history


# %% [markdown]
# The loss of a batch is the mean of the ranks' losses, just as its gradient is the mean of their gradients.


# %%
def run(n, **choices):
    """Train on n ranks: the loss of every batch, and each rank's weights after every step."""
    results = World(n).run(train, task, **choices)
    losses = []
    for of_step in zip(*(losses for losses, _ in results)):
        losses.append(sum(of_step) / n)
    return losses, [history for _, history in results]


loss_of_one, weights_of_one = run(1, epochs=5)
loss_of_four, weights_of_four = run(4, epochs=5)
steps = list(range(len(loss_of_one)))
study.curves(
    {"1 rank": (steps, loss_of_one)},
    points={"4 ranks": (steps[::4], loss_of_four[::4])},
    xlabel="step",
    ylabel="loss of the batch",
    title="The same training on 1 rank and on 4",
)

# %% [markdown]
# The points lie on the line. Now for the digits:


# %%
def accuracy(weights):
    model = mlp([64, 32, 10], dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    right = model(task.test_x).argmax(1) == task.test_y
    return float(right.double().mean())


last_of_one = weights_of_one[0][-1]
last_of_four = weights_of_four[0][-1]
difference = (last_of_one - last_of_four).abs().max() / last_of_one.abs().max()
agreeing = min(12, int(-torch.log10(difference.clamp(min=1e-16))))

# %% tags=["answer"]
study.reveal(
    guess,
    agreeing,
    study.bars(
        {"your guess": guess, "after five epochs, at least": agreeing},
        target=16,
        note="a float64 has",
        title="Decimal digits of the weights that agree",
    ),
    unit="digits",
    words="The rest is lost to rounding: a sum of four means is not added in the same order as a sum over sixty.",
)

# %% tags=["maintainer"]
assert accuracy(last_of_four) > 0.95 and agreeing >= 12
assert all(torch.equal(history[-1], last_of_four) for history in weights_of_four)

# %% [markdown]
# At least twelve digits agree with the serial run, and among themselves the four copies are equal *bit for bit*. Remember this when you use data parallelism: it is not an approximation. It is the serial program, and whatever differs by more than rounding is a bug.
#
# ## Predict the cost, then count
#
# How much does the exchange cost? Let the gradients have *N* bytes in all, in *P* tensors. A ring sends $2\frac{n-1}{n}N$ bytes from each rank, however the bytes are cut. But the number of messages does depend on it. Our four lines call one all-reduce for each parameter, $2(n-1)P$ messages one after another, and each costs a latency. If all gradients were copied into one buffer first, [coalesced](term:coalescing), there would be only $2(n-1)$:
#
# $$T_\text{one by one} = 2(n-1)\left(P\alpha + \frac Nn\beta\right),\qquad T_\text{coalesced} = 2(n-1)\left(\alpha + \frac Nn\beta\right).$$
#
# As an example take 8 layers of 960 × 960 in single precision, 16 tensors with 29.5 MB. **How much faster is one buffer than 16 tensors, on 16 ranks?**

# %%
guess_faster = 1.1  # times: change this number


# %%
def exchange(comm, coalesced):
    model = mlp([960] * 9, device="meta")
    pieces = [torch.empty_like(p) for p in model.parameters()]
    if coalesced:
        all_reduce_(comm, pieces)  # a list travels in one buffer
    else:
        for piece in pieces:
            all_reduce_(comm, piece)


ALPHA = 5e-6
BETA = 1 / 50e9
N = 4 * 8 * (960 * 960 + 960)
ns = [2, 3, 4, 6, 8, 12, 16]
lines = {}
points = {}
worlds = {}
for name, coalesced, tensors in [("one by one", False, 16), ("coalesced", True, 1)]:
    worlds[name] = [World(n, device="meta") for n in ns]
    for world in worlds[name]:
        world.run(exchange, coalesced)
    lines[name] = ns, [2 * (n - 1) * (tensors * ALPHA + N / n * BETA) for n in ns]
    points[name] = ns, [world.time for world in worlds[name]]

# %% tags=["answer"]
study.reveal(
    guess_faster,
    round(points["one by one"][1][-1] / points["coalesced"][1][-1], 1),
    study.curves(
        lines,
        points=points,
        yunit="s",
        xlabel="ranks, n",
        ylabel="time to average the gradients",
        title="The same bytes: 16 small all-reduces, or one",
    ),
    unit="times",
)

# %% tags=["maintainer"]
for name, tensors in [("one by one", 16), ("coalesced", 1)]:
    for n, world in zip(ns, worlds[name]):
        assert world.trace.messages(0) == 2 * (n - 1) * tensors
        assert world.trace.bytes_sent(0) == 2 * (n - 1) * N // n

# %%
study.timeline(
    {name: worlds[name][2].trace for name in worlds}, title="4 ranks: the gaps are latencies"
)

# %% [markdown]
# Every gap in the upper half is a message that has to start. Look at them closely:

# %%
study.viewer(worlds["one by one"][2].trace, title="One all-reduce after another, on 4 ranks")

# %% [markdown]
# The bytes stay below 2*N* however many ranks there are, while the latencies grow with *n*, times *P*. A real model has hundreds of tensors. [Buckets and overlap](lesson:buckets) looks for the best size of such a buffer, and then hides most of the time behind the backward pass.
#
# ## Break it: equal gradients
#
# We promised three ways to go wrong, and shall take them in turn. First, leave out the division by *n*. The gradient is then *n* times as large, and so is every step. The next run has 12 ranks and a learning rate of 0.1. Which learning rate does it really have?


# %%
def sum_gradients(comm, model):
    for p in model.parameters():
        all_reduce_(comm, p.grad)


def sgd_with(rate):
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9)


by_one = {
    "1 rank, rate 0.1": run(1)[0],
    "1 rank, rate 1.2": run(1, make_optimizer=sgd_with(1.2))[0],
}
summed = run(12, after_backward=sum_gradients)[0]
steps = list(range(len(summed)))
study.curves(
    {name: (steps, losses) for name, losses in by_one.items()},
    points={"12 ranks, rate 0.1, not divided": (steps[::3], summed[::3])},
    xlabel="step",
    ylabel="loss of the batch",
    title="Summed gradients on 12 ranks",
)

# %% [markdown]
# The points lie on the wrong line: twelve ranks without the average are one rank with twelve times the learning rate. The symptom in practice is a run that is fine on one GPU and becomes worse with every GPU that you add. It looks like a bad learning rate, and it is one. With Adam you would not even notice, because Adam divides each gradient by an estimate of its size, and twelve times the gradient makes nearly the same step.
#
# ## Break it: equal steps
#
# Here is a tempting variation. Let every rank step with its own gradient, and average the *weights* afterwards. Is it the same? With plain SGD the new weight is the old one minus the rate times the gradient; the mean of such expressions is the old weight minus the rate times the mean gradient. So it should be. **For which of SGD, SGD with momentum, and Adam is it the same?**

# %%
guess_same = ["SGD", "momentum", "Adam"]  # delete those for which it is not


# %%
def average_weights(comm, model):
    for p in model.parameters():
        all_reduce_(comm, p.detach(), op="mean")


def apart(history, other):
    """The largest difference between two runs after each step; rounding is drawn as 1e-12."""
    return [max(1e-12, float((a - b).abs().max())) for a, b in zip(history, other)]


optimizers = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": sgd,
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.003),
}
distance = {}
for name, make_optimizer in optimizers.items():
    _, right = run(1, make_optimizer=make_optimizer)
    _, found = run(
        4,
        make_optimizer=make_optimizer,
        after_backward=no_exchange,
        after_step=average_weights,
    )
    distance[name] = apart(found[0], right[0])
steps = list(range(1, len(distance["SGD"]) + 1))

# %% tags=["answer"]
study.reveal(
    guess_same,
    ["SGD", "momentum"],
    study.curves(
        {name: (steps, gaps) for name, gaps in distance.items()},
        logy=True,
        xlabel="step",
        ylabel="largest difference from the serial weights",
        title="Weights averaged instead of gradients",
    ),
)

# %% tags=["maintainer"]
assert torch.tensor(distance["SGD"]).max() < 1e-9
assert torch.tensor(distance["momentum"]).max() < 1e-9
assert distance["Adam"][-1] > 1e-4

# %% [markdown]
# SGD is linear in the gradient, with momentum too, and for linear things the mean of the results is the result of the mean. Adam is not linear: it divides by the square root of a mean of squares, and each rank's squares are its own. So averaging weights trains a different network, not the one you wanted. (Averaging weights now and then, on purpose, is a technique of its own: [Send seldom](lesson:local_sgd).)
#
# There is a worse variant, and it has been published more than once. PyTorch's `register_post_accumulate_grad_hook`, a [hook](term:hook), calls a function for a parameter as soon as its gradient is there, which is just what one needs here. But the function receives *the parameter*, not the gradient. Averaging what it receives looks right in the code and averages the weights, before the step. The gradients never meet.
#
# ## Break it: equal start
#
# The third mistake is to forget the broadcast. Let us put it beside the hook that averages the wrong thing, and see how far apart rank 0 and rank 1 are in each case.


# %%
def hook_averages_its_parameter(comm, model):
    weights_from_rank_0(comm, model)

    def hook(p):  # p is the parameter: its gradient would be p.grad
        all_reduce_(comm, p.detach(), op="mean")

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)


cases = {
    "right": weights_of_four,
    "no broadcast": run(4, epochs=5, start=no_exchange)[1],
    "hook averages its parameter": run(
        4, epochs=5, start=hook_averages_its_parameter, after_backward=no_exchange
    )[1],
}
gaps = {}
for name, ranks in cases.items():
    distances = apart(ranks[0], ranks[1])
    gaps[name] = list(range(1, len(distances) + 1)), distances
study.curves(
    gaps,
    logy=True,
    xlabel="step",
    ylabel="largest difference between rank 0 and rank 1",
    title="Replicas that should be equal",
)

# %% [markdown]
# Without the broadcast all ranks add the same steps to different weights. Their distance neither grows nor shrinks: it is what it was at the start. With the wrong hook the ranks move apart by one step and are pulled together before the next.
#
# And would you see it in the result?

# %%
rows = []
for name, ranks in cases.items():
    rows.append([name] + [f"{accuracy(history[-1]):.2f}" for history in ranks])
study.table(
    rows,
    ["after five epochs", *(f"rank {rank}" for rank in range(4))],
    title="Accuracy on the test set",
)

# %% [markdown]
# Hardly. The digits forgive everything, and a real run would save the weights of rank 0 and look at nothing else. This is why such bugs live for years. *Compare the [replicas](term:replica), bit for bit*, every now and then: it costs a hash of the weights and one small all-reduce, and no loss curve shows as much.
#
# ## Break it: one batch more
#
# The last mistake makes itself heard. If one rank has one batch more than the others, because somebody dealt out files instead of samples, it waits in an all-reduce that nobody else joins.

# %%
from minidist.comm import Deadlock


def one_batch_more(comm, task):
    model = mlp([64, 32, 10], dtype=torch.float64)
    for _ in range(3 if comm.rank == 2 else 2):
        cross_entropy(model(task.x[:5]), task.y[:5]).backward()
        average_gradients(comm, model)


try:
    World(3).run(one_batch_more, task)
except Deadlock as error:
    print(error)

# %% [markdown]
# The World says who waits and where. On a cluster you would see a GPU at 100 % (it is waiting busily), and a timeout ten minutes later.
#
# ## The library's file
#
# [minidist/parallel/data.py](file:minidist/parallel/data.py) contains what we have built. Its naive average is ours, with an optional weight for ranks whose numbers of samples differ:

# %%
from minidist.parallel import data

study.source(data.average_gradients, docstring=False)

# %% [markdown]
# The real thing is `DataParallel`, which wraps a module. Its constructor checks that all ranks have built the same model, and then broadcasts parameters and buffers from rank 0, as we did.

# %%
study.source(data.DataParallel.__init__)

# %% [markdown]
# Before the broadcast it makes a *claim* on the parameters. Suppose you run this cell of a notebook twice: without claims, two wrappers would listen to the same parameters, and each would average. The newer wrapper finds the older one by its claim, and the older one lets go.
#
# From then on everything happens in the `Reducer`, which the wrapper shares with other techniques ([reducer.py](file:minidist/parallel/reducer.py)). It uses the very hook that we misused above, and uses it well: the hook receives the parameter and looks at `p.grad`. The first hook of a backward pass asks autograd to call back when that pass ends:

# %%
from minidist.parallel.reducer import Reducer

study.source(Reducer._has_gradient)

# %% [markdown]
# The gradients travel in a few flat buffers while the backward pass is still running. How these **buckets** work, and why they must start in the same order on all ranks, is the [next lesson](lesson:buckets). For now it is enough to see that the wrapper gives the serial gradients, with one line more than the serial program:


# %%
def by_library(comm, task):
    model = data.DataParallel(mlp([64, 32, 10], seed=comm.rank, dtype=torch.float64), comm)
    mine = next(iter(Sampler(len(task.x), 60, comm)))
    cross_entropy(model(task.x[mine]), task.y[mine]).backward()
    return [p.grad for p in model.parameters()]


world = World(4)
found = world.run(by_library, task)
study.messages(
    world.trace,
    clock="steps",
    label=None,
    title="DataParallel: are the models alike? A broadcast, and one all-reduce",
)

# %% tags=["maintainer"]
for grads in found:
    for grad, right in zip(grads, serial.values(), strict=True):
        assert relative_error(grad, right) < 1e-12

# %% [markdown]
# ## In real processes, and on a cluster
#
# Here is the same `train`, for one epoch in four processes:

# %%
from minidist.comm import launch

real = launch(train, 4, task, epochs=1)
last = [history[-1] for _, history in real]
rows = [
    (f"rank {rank}", real.trace.messages(rank), real.trace.bytes_sent(rank)) for rank in range(4)
]
display(study.table(rows, ["", "messages sent", "bytes sent"], title="One epoch on four processes"))
print("replicas equal bit for bit:", all(torch.equal(weights, last[0]) for weights in last))

# %% tags=["maintainer"]
assert relative_error(last[0], weights_of_one[0][len(real[0][0]) - 1]) < 1e-9

# %% [markdown]
# A script of the course does all of this with the library's parts, in any of the three settings. It is [examples/train_digits.py](file:examples/train_digits.py):
#
# ```
# python examples/train_digits.py --ranks 4 --runner world
# python examples/train_digits.py --ranks 4 --runner processes
# torchrun --nproc-per-node 4 examples/train_digits.py
# ```
#
# **When not to use it.** Every rank holds a whole copy of the model and of the optimizer's states. If these do not fit on one card, data parallelism alone will not help ([ZeRO](lesson:zero) will). And each rank needs enough samples of every batch to keep its GPU busy; a batch cannot grow without limit, which is the subject of [Large batches](lesson:large_batches).
#
# ## Takeaways
#
# - The gradient of a batch is the mean of its parts' gradients, if the parts are equally large.
# - Data parallelism is the serial program, up to rounding. Equal start, equal gradients, equal steps make equal copies.
# - A step sends $2\frac{n-1}{n}N$ bytes from each rank. Coalesce the gradients: *P* tensors cost *P* times the latency.
# - A forgotten average amounts to *n* times the learning rate. Averaged weights are right for SGD and wrong for Adam.
# - Loss and accuracy forgive nearly all of these bugs. Compare replicas bit for bit, and gradients with a serial run.
#
# ## Further reading
#
# - paper:dean2012 Copies of the model on parts of the data, before all-reduce.
# - paper:goyal2017 Averages, learning rates, and a section on pitfalls in distributed SGD.
# - paper:li2020 The design of PyTorch's `DistributedDataParallel`: hooks, buckets, `no_sync`.
