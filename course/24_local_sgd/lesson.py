# %% [markdown]
# # 24 · Send seldom
#
# Two machines train a network of 1.1 million weights. Its gradients are 4.5 MB in single precision, and the only link between the machines carries 100 Mbit/s, which is 12.5 MB per second. A step computes for 15 ms. Its all-reduce then takes 360 ms, so the machines compute for a twenty-fifth of the time and wait for the rest.
#
# The [lesson before](lesson:compress) made the messages smaller. This one leaves most of them out. Each machine trains by itself for *H* steps, on its own samples, and only then do the machines meet and average their *weights*. The technique is called [local SGD](term:local-sgd), and *H* is its period. **How large must H be, so that the machines compute for at least half of the time?**

# %%
guess_period = 2  # steps between two meetings: change this number

# %% [markdown]
# That question is only about time, and you can answer it in your head. The other question is harder: what does a network lose when its copies go separate ways? Most of this lesson is about that. The answer depends on the data, on the learning rate and on momentum, and we shall derive it for one weight before we look at thousands.
#
# ## The idea
#
# ![Two ranks. Above, data parallelism: an all-reduce of gradients after every step, six in all. Below, local SGD with H = 3: each rank takes three steps alone, and then the parameters are averaged, twice in all. Between two averages the ranks drift apart.](../course/24_local_sgd/figures/steps_alone.svg)
#
# In [data parallelism](lesson:data_parallel) the ranks average gradients and then take equal steps, so their copies of the model never differ. In local SGD each rank takes *H* steps with its own gradients. Its copy drifts away from the others, and the average pulls all copies together again. An average of the weights has as many numbers as an average of the gradients, so each meeting costs what one step of data parallelism costs. There are simply fewer meetings, and so 1/*H* of the messages and 1/*H* of the bytes.
#
# For *H* = 1 nothing has been gained, and for plain SGD nothing has been lost either. If all ranks start a step at *x* and rank *r* has the gradient $g_r$, the average of their new weights is
#
# $$\frac{1}{n}\sum_r (x-\gamma g_r) = x-\gamma\,\frac{1}{n}\sum_r g_r,$$
#
# where γ is the learning rate: one step with the average gradient. For *H* = 2 the second gradient is already computed at a different point on each rank, and the equality no longer holds.
#
# ## By hand: a tug of war
#
# Let there be a single weight *w* and two ranks whose data disagree. Rank 0 has the loss $\frac{1}{2} w^2$, with its minimum at 0. Rank 1 has the loss $\frac{1}{2}\cdot2(w-6)^2$, with its minimum at 6; the factor 2 makes it twice as steep. The gradients are *w* and $2(w-6)$. They cancel where $w + 2(w-6)=0$, at *w* = 4. That is the minimum of the mean loss, and it is where we would like to end up.
#
# We start at that very point and take steps with a rate of ½. At this rate rank 0 halves the distance to its minimum in each step, and rank 1 jumps into its own in a single step. With *H* = 1 they go to 2 and to 6, and the average is 4 again. With *H* = 2 rank 0 goes to 2 and then to 1, while rank 1 goes to 6 and stays there. The average is 3.5. We were at the best point, and local SGD has left it! **Where does it come to rest, with H = 2?**

# %%
guess_rest = 4.0  # the weight: change this number

# %%
import torch

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World

MINIMA = [0.0, 6.0]
STEEPNESS = [1.0, 2.0]


def tug_of_war(comm, H, rate=0.5, periods=8):
    """One weight on two ranks that want different things. Returns it after each average."""
    w = torch.tensor(4.0, dtype=torch.float64)
    seen = [4.0]
    for _ in range(periods):
        for _ in range(H):
            gradient = STEEPNESS[comm.rank] * (w - MINIMA[comm.rank])
            w = w - rate * gradient
        w = all_reduce_(comm, w, op="mean")
        seen.append(float(w))
    return seen


rests = {}
for H in (1, 2, 3, 20):
    rests[f"H = {H}"] = range(9), World(2).run(tug_of_war, H)[0]

# %% tags=["answer"]
study.reveal(
    guess_rest,
    round(rests["H = 2"][1][-1], 2),
    study.curves(
        rests,
        xlabel="averages",
        ylabel="the weight",
        title="Two ranks that want different things",
    ),
    words="It is 24/7. With H = 3 the weight rests at 3.2, and with very long periods at 3, midway between the two minima.",
)

# %% tags=["maintainer"]
ends = [line[1][-1] for line in rests.values()]
assert [round(end, 2) for end in ends] == [4.0, 3.43, 3.2, 3.0]

# %% [markdown]
# **Why it rests there.** A local step multiplies a rank's distance from its own minimum by a fixed factor. If $a_r$ is the steepness and $c_r$ the minimum, the factor is $q_r = 1-\gamma a_r$, and after *H* steps from *w* the rank stands at $c_r + q_r^H(w-c_r)$. The average is at rest if it is *w* again, in other words if the ranks' displacements cancel:
#
# $$\sum_r \left(1-q_r^H\right)(w-c_r) = 0.$$
#
# So *w* is a weighted mean of the ranks' minima, with the weights $1-q_r^H$. For *H* = 1 these are $\gamma a_r$, in proportion to the steepness, and that is right: it is the condition that the gradients cancel. For large *H* all of them approach 1. Every rank reaches its own minimum and stays there, however steep its loss, and the average is the plain mean of the minima. In our example $q_0 = \frac{1}{2}$ and $q_1 = 0$, so for *H* = 2 the weights are ¾ and 1, and $w = 6/(1+\frac{3}{4}) = 24/7$.
#
# ![The weight on a line from 0 to 6. Rank 0's minimum is at 0 and rank 1's at 6. The minimum of the mean loss is at 4, where the pulls of both are equal. With H = 2 the weight rests at 3.43, with H = 3 at 3.2, with very large H at 3, the middle of the two minima.](../course/24_local_sgd/figures/tug_of_war.svg)
#
# The error of this resting place is called [client drift](term:client-drift). To see how large it is, expand the power for small γ:
#
# $$1-(1-\gamma a)^H \approx H\gamma a\left(1-\frac{(H-1)\,\gamma a}{2}\right).$$
#
# The factor in front, $H\gamma a$, is in proportion to the steepness, as it should be. The bracket is the error, and it tells us three things, which the rest of the lesson will confirm on a network.
#
# 1. **No disagreement, no drift.** If all ranks have the same minimum, any weights give the right mean, and if all are equally steep, the weights are the right ones. Ranks whose samples are drawn from one pool have nearly the same loss.
# 2. **The drift grows with γ(H − 1).** Long periods are harmless if the learning rate is small.
# 3. **It does not go away.** More steps do not help; only a smaller γ or a smaller *H* does.
#
# ## A network on three ranks
#
# Now we train a network with 2,410 weights on the digits from [Data parallel](lesson:data_parallel), on three ranks. The samples are dealt out in two ways. *Even* means that each rank has images of all ten classes. *Uneven* is the hard case: the images are sorted by class, so that each rank has only three or four classes and has never seen the others.

# %%
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minidist.models import mlp
from minidist.tasks import digits

task = digits()
sorted_by_class = task.y.argsort(stable=True)


def batches(comm, steps, even):
    """As many batches of 16 as there are steps, from this rank's own part of the images."""
    order = torch.arange(len(task.y)) if even else sorted_by_class
    mine = order.tensor_split(comm.size)[comm.rank]
    generator = torch.Generator().manual_seed(comm.rank)
    for _ in range(steps):
        yield mine[torch.randint(len(mine), (16,), generator=generator)]


# %% [markdown]
# The naive program is the serial one with three more lines. It keeps each rank's weights after every step, *before* a possible average, so that we can see the drift.


# %%
def average_weights(comm, model):
    for p in model.parameters():
        all_reduce_(comm, p.detach(), op="mean")  # in place: the parameter itself


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def local(comm, H, even=True, steps=192, make_optimizer=sgd, average=average_weights):
    """Local SGD. Returns this rank's weights after each step."""
    model = mlp([64, 32, 10], dtype=torch.float64)  # the same on all ranks
    optimizer = make_optimizer(model.parameters())
    history = []
    for t, rows in enumerate(batches(comm, steps, even), start=1):
        optimizer.zero_grad()
        loss = cross_entropy(model(task.x[rows]), task.y[rows])
        loss.backward()
        optimizer.step()
        history.append(parameters_to_vector(model.parameters()).detach())
        if t % H == 0:
            average(comm, model)
    return history


# %% [markdown]
# **Is it right?** The [oracle](term:oracle) is data parallelism on the same batches, with average gradients in every step. For *H* = 1 the derivation above says that the two agree. It also holds with momentum, because momentum is linear in the gradients too. It does not hold for Adam, whose step is not linear. ([Data parallel](lesson:data_parallel) showed the same.)


# %%
def data_parallel(comm, make_optimizer=sgd, steps=48):
    model = mlp([64, 32, 10], dtype=torch.float64)
    optimizer = make_optimizer(model.parameters())
    for rows in batches(comm, steps, even=True):
        optimizer.zero_grad()
        cross_entropy(model(task.x[rows]), task.y[rows]).backward()
        for p in model.parameters():
            all_reduce_(comm, p.grad, op="mean")
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


optimizers = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD with momentum": sgd,
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.003),
}
rows = []
for name, make_optimizer in optimizers.items():
    right = World(3).run(data_parallel, make_optimizer)[0]
    row = [name]
    for H in (1, 4):
        ranks = World(3).run(local, H, steps=48, make_optimizer=make_optimizer)
        average = sum(history[-1] for history in ranks) / 3
        off = float((average - right).norm() / right.norm())
        row.append("below 1e-12" if off < 1e-12 else f"{off:.0%}")
    rows.append(row)
study.table(
    rows,
    ["", "H = 1", "H = 4"],
    title="How far the weights are from data parallelism's after 48 steps",
)

# %% tags=["maintainer"]
assert [row[1] == "below 1e-12" for row in rows] == [True, True, False]
assert all(row[2].endswith("%") for row in rows)

# %% [markdown]
# With *H* = 1 this is data parallelism, except for Adam. With *H* = 4 it is a different computation for every optimizer: the weights differ by up to a seventh of their length. Local SGD is *not exact*. Whether its result is good cannot be read off the weights; we shall have to look at losses.
#
# **The drift.** First we measure the distance between the weights of ranks 0 and 1 after each step.


# %%
def drift(H, even):
    ranks = World(3).run(local, H, even, steps=64)
    return [float((a - b).norm()) for a, b in zip(ranks[0], ranks[1])]


apart = {}
for H in (4, 16):
    for even in (True, False):
        apart[f"H = {H}, {'even' if even else 'uneven'}"] = range(1, 65), drift(H, even)
study.curves(
    apart,
    xlabel="step",
    ylabel="distance between ranks 0 and 1",
    title="Apart, and together again",
)

# %% tags=["maintainer"]
highest = {name: max(line) for name, (_, line) in apart.items()}
assert highest["H = 16, uneven"] > 1.5 * highest["H = 4, uneven"], highest
assert highest["H = 16, uneven"] > 3 * highest["H = 16, even"], highest

# %% [markdown]
# The curves look like saws. Each average brings the ranks together, and in the next period they walk apart again. With a longer period the teeth are higher. With uneven data they are higher still, because there the ranks do not merely have different noise: they are walking towards different goals, each towards a network that knows only that rank's classes.
#
# **The loss.** Now we evaluate the average network on test images of all classes. Training with *H* = 1, which we shall call *dense*, is drawn beside the others. **Up to which of the periods 1, 4, 16 and 64 does the loss at the end stay below one and a half times the dense loss, for even and for uneven data?**

# %%
guess_longest = {"even": 1, "uneven": 1}  # periods: change these numbers


# %%
def test_loss(weights):
    model = mlp([64, 32, 10], dtype=torch.float64)
    vector_to_parameters(weights, model.parameters())
    with torch.no_grad():
        return cross_entropy(model(task.test_x), task.test_y).item()


LOOKS = range(16, 193, 16)  # after these steps we look at the test set


def losses_of_average(ranks):
    """The loss of the average of all ranks' weights, every 16 steps."""
    return [test_loss(sum(history[t - 1] for history in ranks) / len(ranks)) for t in LOOKS]


def at_the_end(losses):
    """The mean of the last three looks: single losses are noisy."""
    return sum(losses[-3:]) / 3


runs = {}
for even in (True, False):
    for H in (1, 4, 16, 64):
        ranks = World(3).run(local, H, even)
        runs["even" if even else "uneven", H] = losses_of_average(ranks)


# %% tags=["maintainer"]
def of_kind(kind):
    return {f"H = {H}": (LOOKS, losses) for (k, H), losses in runs.items() if k == kind}


longest = {}
for kind in ("even", "uneven"):
    most = 1.5 * at_the_end(runs[kind, 1])
    longest[kind] = max(H for H in (1, 4, 16, 64) if at_the_end(runs[kind, H]) <= most)
assert longest == {"even": 64, "uneven": 4}, longest

# %% tags=["answer"]
study.reveal(
    guess_longest,
    longest,
    [
        study.curves(
            of_kind(kind),
            logy=True,
            xlabel="step",
            ylabel="loss on the test set",
            title=f"{kind.capitalize()} data: the loss of the average",
        )
        for kind in ("even", "uneven")
    ],
)

# %% [markdown]
# With even data, *H* = 64 still ends near the dense loss, after only three meetings in 192 steps. With uneven data *H* = 4 is still good, *H* = 16 needs far more steps, and *H* = 64 gets nowhere near it. Its ranks have met three times, and each time they averaged three networks, each of which had forgotten what the others know.
#
# This is our formula at work, and published theory agrees with it. [Stich 2019](paper:stich2019) proved for convex losses and even data that *T* steps need only about $\sqrt T$ meetings to converge as fast as if the ranks had met in every step. For uneven data a term is added that grows with *H*, with γ and with how different the ranks' gradients are.
#
# ## Predict the cost, then run
#
# Let us go back to the link of 100 Mbit/s. A step computes for *C* seconds, and a meeting of *n* ranks over a ring costs what any all-reduce of *N* bytes costs. With a latency of α and β seconds per byte, a step takes on average
#
# $$T(H) = C + \frac{1}{H}\left(2(n-1)\,\alpha + 2\,\frac{n-1}{n}\,N\beta\right).$$
#
# Half of the time is computing when the second term is as large as the first. To check the formula we run the library's `LocalSGD` on a modelled pair of machines, whose link has a latency of 0.1 ms, with the 1.1 million weights as meta tensors. A matrix product that takes 15 ms stands for forward and backward.

# %%
import math

from minidist.comm import Cluster, Device
from minidist.parallel.local_sgd import LocalSGD

ALPHA = 1e-4  # s
BETA = 1 / 12.5e6  # s per byte: 100 Mbit/s
C = 15e-3  # s of computing in a step
N = 4 * 1_126_410  # bytes of the weights
SPEED = 1e12  # FLOP/s
GPU = Device("1 TFLOP/s", flops={torch.float32: SPEED}, memory=10**12, bandwidth=math.inf)


def compute(seconds):
    """Takes that long on the modelled device."""
    m = 1000
    matrix = torch.empty(m, round(seconds * SPEED / (2 * m**2)), device="meta")
    matrix @ matrix.T


def meet_every(comm, H, steps=64):
    model = mlp([64, 1024, 1024, 10], device="meta")
    for p in model.parameters():
        p.grad = torch.empty_like(p)
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), comm, H)
    start = comm.now()
    for _ in range(steps):
        compute(C)
        optimizer.step()
    return (comm.now() - start) / steps


def step_time(H, n=2, N=N, computing=C, bandwidth=1 / BETA, alpha=ALPHA):
    exchange = 2 * (n - 1) * alpha + 2 * (n - 1) / n * N / bandwidth
    return computing + exchange / H


PERIODS = [1, 2, 4, 8, 16, 32, 64]
worlds = {H: World(2, cluster=Cluster.uniform(2, ALPHA, BETA, GPU), device="meta") for H in PERIODS}
measured = [worlds[H].run(meet_every, H)[0] for H in PERIODS]
enough = next(H for H in range(1, 100) if C / step_time(H) >= 0.5)

# %% tags=["answer"]
study.reveal(
    guess_period,
    enough,
    study.curves(
        {
            "predicted": (PERIODS, [step_time(H) for H in PERIODS]),
            "computing alone": ([1, 64], [C, C]),
        },
        points={"World": (PERIODS, measured)},
        logx=True,
        logy=True,
        yunit="s",
        xlabel="H, steps between two averages",
        ylabel="a step",
        title="Two machines with 100 Mbit/s between them",
    ),
    unit="steps",
    words="24 steps of 15 ms take 360 ms, and the exchange takes a little more than that, so with 24 steps computing is just short of half.",
)

# %% tags=["maintainer"]
assert enough == 25, enough
for H, seconds in zip(PERIODS, measured):
    assert abs(seconds / step_time(H) - 1) < 0.01, (H, seconds, step_time(H))

# %% [markdown]
# The World's points lie on the line. The returns diminish: from *H* = 1 to 8 a step becomes six times as fast, from 8 to 64 only three times, and beyond that little is left to save, while the drift keeps growing. Here is the modelled timeline of two machines with *H* = 4. `LocalSGD` begins with a broadcast of rank 0's weights; then you see four steps of computing and one long exchange, twice.

# %%
clock = World(2, cluster=Cluster.uniform(2, ALPHA, BETA, GPU), device="meta")
study.viewer(clock.run(meet_every, 4, steps=8), title="H = 4: four steps, then an average")

# %% [markdown]
# Now drag the sliders. Try the bandwidth of a data centre's network, 25 GB/s, and of [NVLink](term:nvlink), 450 GB/s: for these 4 MB the line becomes flat, and there is next to nothing to gain from meeting seldom.

# %%
study.explore(
    lambda H, n, N, computing, bandwidth: {
        "local SGD": step_time(H, n, N, computing, bandwidth),
        "computing alone": computing,
    },
    over="H",
    H=PERIODS,
    n=[2, 4, 16, 64],
    N=[4 * 10**6, 400 * 10**6, 4 * 10**9],
    computing=[0.015, 0.15, 1.5],
    bandwidth=[12.5e6, 1.25e9, 25e9, 450e9],
    units={"N": "B", "computing": "s", "bandwidth": "B"},
    labels={
        "H": "steps between two averages",
        "n": "ranks",
        "N": "bytes of the weights",
        "computing": "computing of a step",
        "bandwidth": "bytes per second on the link",
    },
    start={"H": 8, "n": 2, "N": 4 * 10**6, "computing": 0.015, "bandwidth": 12.5e6},
    unit="s",
    logx=True,
    logy=True,
    xlabel="H",
    ylabel="a step",
    title="What meeting seldom saves (modelled)",
)

# %% [markdown]
# **Loss against time.** Faster steps are worth nothing if too many more of them are needed. So here are the runs with uneven data once more, with each loss drawn at the time at which the modelled machines would have reached it. (The network is the small one; the seconds are for three ranks on the slow link with 4.5 MB of weights.)


# %%
def seconds(H):
    return [t * step_time(H, n=3) for t in LOOKS]


in_time = {f"H = {H}": (seconds(H), runs["uneven", H]) for H in (1, 4, 16, 64)}
study.curves(
    in_time,
    logx=True,
    logy=True,
    xunit="s",
    xlabel="modelled time",
    ylabel="loss on the test set",
    title="Uneven data: 192 steps each",
)

# %% [markdown]
# As long as the local runs last, one of them is always ahead of dense training, but not always the same one. *H* = 64 has the lead for the first second. Soon it stops improving, and within four seconds both *H* = 16 and *H* = 4 have passed it. In the end *H* = 16 has a loss of 0.24 after 9 s, for which dense training needs about 30 s; but only the two shortest periods get down to 0.12. So the best period changes during a run. The next two techniques change it, in opposite directions.
#
# ## Post-local SGD: meet often first
#
# Early in a run the gradients are large and the rate is high, so the drift is large. Late in a run the rate has been lowered, and by our formula the drift has shrunk with it. [Post-local SGD](term:post-local-sgd) therefore begins with *H* = 1, as data parallelism, and changes to a longer period later. [Lin et al. 2020](paper:lin2020) switch when the learning rate is lowered for the first time. Their main aim was not to save time but to generalize better: as they explain it, the noise of local steps lets a run with large batches end in flatter minima.
#
# The library's `LocalSGD` has an argument for it: `start` is the number of steps with *H* = 1. In the next cell the period becomes 16 after 96 of the 192 steps, on uneven data. In one run the rate stays at 0.1, in the other it falls to 0.01 at that moment. **By what factor does the loss change in the 16 steps after the switch, in each of the two?**

# %%
guess_switch = {"rate 0.1": 1.0, "rate 0.01": 1.0}  # times: change these numbers


# %%
def by_library(comm, H, steps=192, even=False, momentum=0.9, later_rate=0.1, **options):
    """LocalSGD with any of its options; from step 97 on with another rate."""
    model = mlp([64, 32, 10], dtype=torch.float64)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    optimizer = LocalSGD(inner, comm, H, **options)
    history = []
    for t, rows in enumerate(batches(comm, steps, even), start=1):
        if t == 97:
            for group in optimizer.param_groups:
                group["lr"] = later_rate
        optimizer.zero_grad()
        loss = cross_entropy(model(task.x[rows]), task.y[rows])
        loss.backward()
        optimizer.step(loss=loss)  # the loss is for periods that adapt, below
        history.append(parameters_to_vector(model.parameters()).detach())
    return history


post_local = {}
for name, H, start, rate in [
    ("H = 16 from the start, rate 0.01 later", 16, 0, 0.01),
    ("post-local, rate 0.1", 16, 96, 0.1),
    ("post-local, rate 0.01 later", 16, 96, 0.01),
    ("dense, rate 0.01 later", 1, 0, 0.01),
]:
    ranks = World(3).run(by_library, H, start=start, later_rate=rate)
    post_local[name] = losses_of_average(ranks)

# %% tags=["maintainer"]
jump = {}
for rate, name in [
    ("rate 0.1", "post-local, rate 0.1"),
    ("rate 0.01", "post-local, rate 0.01 later"),
]:
    jump[rate] = round(post_local[name][6] / post_local[name][5], 1)
assert jump["rate 0.1"] > 3 and jump["rate 0.01"] < 1
assert (
    abs(
        at_the_end(post_local["post-local, rate 0.01 later"])
        / at_the_end(post_local["dense, rate 0.01 later"])
        - 1
    )
    < 0.05
)

# %% tags=["answer"]
study.reveal(
    guess_switch,
    jump,
    study.curves(
        {name: (LOOKS, losses) for name, losses in post_local.items()},
        logy=True,
        xlabel="step",
        ylabel="loss on the test set",
        title="The period becomes 16 after 96 steps",
    ),
    unit="times",
)

# %% [markdown]
# If the rate stays, the run is thrown back: within one period each rank walks a long way towards its own classes. If the rate falls with the switch, the loss goes on falling and cannot be told from the dense run's, although from here on only every sixteenth step ends with a meeting. The product γ(*H* − 1) is what counts. Notice also the run that had *H* = 16 from the start: when its rate falls it gets better at once, because its resting place moves, but it does not catch up.
#
# Post-local SGD has a price: while *H* is 1 nothing is saved. A run that is dense for half of its steps is at best twice as fast.
#
# ## Adaptive local SGD: meet seldom first
#
# Now we do the opposite. Far from the minimum, what matters is to get ahead quickly, and an error in the resting place is of no importance yet. Near the minimum that error is all that is left. So begin with long periods and shorten them as the loss falls. This is adaptive local SGD; [Wang and Joshi 2019](paper:wang2019) call it [AdaComm](term:adacomm), and they derive the rule by which the period follows the loss.
#
# Fix a time *S* that we are going to spend, and let a step compute for *C* seconds and a meeting take *D*. With the period τ (their name for *H*) there is time for $S/(C+D/\tau)$ steps. The theory of SGD bounds the error after so many steps by two terms. The first is the present loss *F*, divided by the rate and by the number of steps, and the second is the drift, which grows like τ:
#
# $$\text{error} \le \frac{2F}{\gamma S}\left(C+\frac{D}{\tau}\right) + B\,\tau + \text{terms without } \tau.$$
#
# Here *B* collects constants such as the rate, the noise of the gradients and the curvature of the loss, and nobody knows its value. But the sum is smallest where its derivative with respect to τ is zero,
#
# $$-\frac{2FD}{\gamma S\,\tau^2} + B = 0, \qquad\text{so}\qquad \tau = \sqrt{\frac{2D}{\gamma S B}}\,\sqrt F .$$
#
# The unknown constants stand under a root of their own and drop out when we compare with the beginning, where the period was $\tau_0$ and the loss $F_0$:
#
# $$\tau = \left\lceil \sqrt{F/F_0}\;\tau_0 \right\rceil .$$
#
# The first period, $\tau_0$, still has to be chosen. And a loss may stand still for a while, in which case the rule would keep the period where it is. So there is a second clause: if the rule does not give less than the last period, take γ′ = ½ of the last period instead. One more thing must not be overlooked: *all ranks have to choose the same period*, or some would enter an all-reduce that the others never join. Each rank knows only its own loss. So the ranks first agree on the mean of their losses, in an all-reduce of 16 bytes.

# %%
from minidist.parallel.local_sgd import AdaComm


def adaptive(comm, first, interval, even):
    rule = AdaComm(first, interval)
    history = by_library(comm, rule, even=even)
    return history, [(i.step, i.period, i.loss) for i in rule.intervals]


stairs = {}
adaptive_runs = {}
for kind in ("even", "uneven"):
    world = World(3)
    results = world.run(adaptive, 32, 32, kind == "even")
    adaptive_runs[kind] = losses_of_average([history for history, _ in results]), world.trace
    xs = []
    ys = []
    intervals = results[0][1]
    for i, (step, period, _) in enumerate(intervals):
        end = intervals[i + 1][0] if i + 1 < len(intervals) else 192
        xs += [step, end]
        ys += [period, period]
    stairs[kind] = xs, ys
    first, second = [round(loss, 2) for _, _, loss in intervals[:2]]
    print(f"{kind} data: the loss is {first} at first, {second} when the second period begins")
study.curves(stairs, xlabel="step", ylabel="τ", title="The period follows the loss")

# %% tags=["maintainer"]
assert stairs["even"][1][::2] == [32, 18, 8, 4, 2, 1], stairs
assert stairs["uneven"][1][::2] == [32, 31, 25, 21, 11], stairs

# %% [markdown]
# Check the first stair by hand: with even data the loss has fallen from 2.32 to 0.71 in the first 32 steps, and $\lceil\sqrt{0.71/2.32}\cdot 32\rceil = 18$. With uneven data the loss falls slowly, so the periods stay long. That is a weakness of the rule. It assumes that a high loss means "far from the minimum", and here the loss is high *because* the periods are long. A smaller $\tau_0$ avoids the trap. The next table has both.

# %%
rows = []
for name, H in [
    ("H = 1", 1),
    ("H = 4", 4),
    ("H = 16", 16),
    ("adaptive from 16", (16, 32)),
    ("adaptive from 32", (32, 32)),
]:
    world = World(3)
    if isinstance(H, tuple):
        results = world.run(adaptive, *H, even=False)
        losses = losses_of_average([history for history, _ in results])
    else:
        losses = losses_of_average(world.run(by_library, H))
    rows.append((name, world.trace.messages(0), round(at_the_end(losses), 2)))
study.table(
    rows,
    ["uneven data", "messages of rank 0", "loss at the end"],
    title="192 steps on three ranks",
)

# %% tags=["maintainer"]
found = {name: (messages, loss) for name, messages, loss in rows}
assert found["adaptive from 16"][1] < found["H = 16"][1] < found["adaptive from 32"][1], found

# %% [markdown]
# Adaptive from 16 ends at little more than half the loss of 16 throughout, for more than twice the messages. It is no magic: *H* = 4 from the start is better still on this task, for less than twice the messages of the adaptive run. But you would have to know beforehand that 4 is right.
#
# ## Slow momentum
#
# Each rank's momentum remembers its own gradients. What nobody remembers is where the ranks *together* have been going from meeting to meeting. [Slow momentum](term:slow-momentum), SlowMo for short ([Wang et al. 2020](paper:wang2020)), adds exactly that. Consider a whole period as one large step, from the weights *x* after the last average to the average $\bar x$ now. If it had been a step of SGD with the rate γ, its gradient would have been $(x-\bar x)/\gamma$. Treat it as such, and give it a momentum:
#
# $$u \leftarrow \beta u + \frac{x-\bar x}{\gamma}, \qquad x \leftarrow x - \gamma u .$$
#
# ![Slow momentum. Weights x after the last average; two ranks walk apart from x and their average is x bar. The way from x to x bar is a pseudo-gradient. The slow momentum u adds to it a part of the way of the period before, so that the new x lies beyond x bar.](../course/24_local_sgd/figures/slow_momentum.svg)
#
# With β = 0 we get $x\leftarrow\bar x$, plain local SGD. Why divide by γ, only to multiply by it again? Because *u* is kept while γ may change. When the rate falls to a tenth, the ranks will move only about a tenth as far in a period. Without the division *u* would still contain the long moves from before, and the weights would be thrown far beyond the average.
#
# **By hand.** Let γ = 0.1 and β = ½, and let a weight move by −1 in each of three periods of local steps. The pseudo-gradient is 1/0.1 = 10 in each. The slow momentum is 10, then 15, then 17.5, and the weight moves by −1, −1.5 and −1.75. In the limit it moves $1/(1-\beta)$ = 2 times as far as by its local steps alone.
#
# **Is it right?** There is a beautiful oracle. Take *H* = 1 and plain SGD inside. Then $x-\bar x=\gamma\bar g$ with the mean gradient $\bar g$, so $u\leftarrow\beta u+\bar g$ and $x\leftarrow x-\gamma u$. That is data parallelism with momentum β, which we have already.

# %%
with_momentum = World(3).run(data_parallel, sgd)[0]
slow = World(3).run(by_library, 1, steps=48, even=True, momentum=0.0, slow_momentum=0.9)
# the history is read after the average, since the library averages inside of step()
off = float((slow[0][-1] - with_momentum).norm() / with_momentum.norm())
print(
    "SlowMo with H = 1 differs from momentum in data parallelism by",
    "less than 1e-12" if off < 1e-12 else off,
)

# %% tags=["maintainer"]
assert off < 1e-12

# %% [markdown]
# And what becomes of the ranks' own momentum at a meeting? The weights are equal again, while each optimizer still remembers the way that its own rank went. The library's argument `states` offers three choices: *keep* it (nothing is sent), *reset* it to zero (nothing is sent), or *average* it like the weights (twice the bytes, and with Adam's two states three times). Here are all three on uneven data with *H* = 16, and slow momentum beside them.

# %%
choices = {
    "keep": {},
    "reset": {"states": "reset"},
    "average": {"states": "average"},
    "keep, slow momentum ½": {"slow_momentum": 0.5},
}
curves = {"dense": (LOOKS, runs["uneven", 1])}
for name, options in choices.items():
    curves[name] = LOOKS, losses_of_average(World(3).run(by_library, 16, **options))
study.curves(
    curves,
    logy=True,
    xlabel="step",
    ylabel="loss on the test set",
    title="Momentum at a meeting: uneven data, H = 16",
)

# %% tags=["maintainer"]
middle = {name: sum(line[3:9]) / 6 for name, (_, line) in curves.items()}
assert middle["keep, slow momentum ½"] < 0.65 * middle["keep"], middle
assert middle["dense"] < 0.5 * middle["keep, slow momentum ½"]

# %% [markdown]
# Resetting is the worst choice here, because each period has to gather speed again. Averaging the momentum ends where keeping it does, for twice the bytes. Slow momentum lowers the loss by two fifths in the middle of the run and costs no message; by the end of this run its lead is gone. It does cost memory, for *x* and *u*: two more numbers for each weight. It brings the local run closer to the dense one for a while, but not up to it.
#
# ## Break it: rank 0 wins
#
# Somebody writes a broadcast where the average should be. It is an easy slip, since both make the ranks equal. No error appears, the replicas agree, and the loss that rank 0 prints falls nicely. The period is 4, and the data are uneven: rank 0 has the classes 0 to 3. **How many of the 360 test images are taken for a 5 or a higher digit?**

# %%
guess_above = 180  # of 360: change this number

# %%
from minidist.collectives import broadcast_


def rank_0_wins(comm, model):
    for p in model.parameters():
        broadcast_(comm, p.detach())


def answers(weights):
    model = mlp([64, 32, 10], dtype=torch.float64)
    vector_to_parameters(weights, model.parameters())
    return model(task.test_x).argmax(1).bincount(minlength=10).tolist()


broken = World(3).run(local, 4, False, average=rank_0_wins)
said = answers(broken[0][-1])

# %% tags=["answer"]
study.reveal(
    guess_above,
    sum(said[5:]),
    study.bars(
        {f"says {digit}": count for digit, count in enumerate(said)},
        title="360 test images: what the network says",
    ),
    unit="images",
    words="Rank 0 has never seen these digits, and what the others have learned is overwritten at every meeting.",
)

# %% tags=["maintainer"]
assert sum(said[5:]) == 0

# %% [markdown]
# The symptom is a model that is excellent on one rank's data and blind to the rest. With even data the symptom is nearly invisible: you have trained on one machine and heated the room with the others. Three more mistakes raise no error:
#
# - *Every rank draws the same batches*, because all use one seed. The distance between the ranks is then exactly 0 all the time. That looks like perfect agreement, and it means that two of the three machines do nothing useful. A drift of zero is an alarm.
# - **The last period is not averaged.** If 192 steps do not end with a meeting, the ranks have different weights, and whoever saves rank 0's model saves a local one. The library has `average()` for this: call it on all ranks before you evaluate, compare or save.
# - **Statistics are forgotten.** The running means of a batch normalization are not parameters. On each rank they describe that rank's weights and data. Average them too (`average_parameters` takes any tensors), or compute them anew.
#
# In the next cell the average network and rank 0's own are evaluated in the middle of a period, after step 184 of the run with *H* = 16.

# %%
ranks = World(3).run(local, 16, False)
middle_of_period = 184 - 1
rows = [
    ("rank 0 alone", round(test_loss(ranks[0][middle_of_period]), 2)),
    ("the average", round(test_loss(sum(h[middle_of_period] for h in ranks) / 3), 2)),
]
study.table(rows, ["", "loss on the test set"], title="Eight steps after a meeting, uneven data")

# %% [markdown]
# Eight steps alone are enough to make rank 0's network more than five times as bad as the average.
#
# ## The library's file
#
# [minidist/parallel/local_sgd.py](file:minidist/parallel/local_sgd.py) contains all of this. The average is ours, except that the tensors travel in [buckets](lesson:buckets), one all-reduce for many of them. It scales *before* it adds, so that no sum of *n* weights can overflow, and it can weight the ranks by how many samples they have had:

# %%
from minidist.parallel import local_sgd

study.source(local_sgd.average_, docstring=False)

# %% [markdown]
# `LocalSGD` wraps any optimizer, as you have seen, and behaves like one. Its `step` is the body of our loop. At the first step of a period it notes where slow momentum starts from; it lets the wrapped optimizer step, asks the adaptive rule, counts, and averages when the period is over:

# %%
study.source(LocalSGD.step, docstring=False)

# %% [markdown]
# The property `H` is where post-local SGD and the adaptive rule come in, in two lines:

# %%
study.source(LocalSGD.H)

# %% [markdown]
# Slow momentum is one function, which every rank calls for each parameter. All ranks have the same average and the same anchor, our *x*, so they compute the same result without a message. A rate of 0, by which one must not divide, is treated separately:

# %%
study.source(local_sgd.slow_step_)

# %% [markdown]
# The rule of AdaComm comes last; its `ratio` is $F/F_0$:

# %%
study.source(AdaComm._choose)

# %% [markdown]
# The rest of the file agrees on the loss (`AdaComm._agreed`), resets or averages momentum (`averaged_states`), and can save a run in the middle of a period, when every rank has to save its own weights because they differ.
#
# ## On a link that is really slow
#
# In a notebook, `launch` can give real processes a slow wire: with `rate`, what a rank sends leaves it at that many bytes per second. Here are 16 steps of two processes at 400 kB/s. The last column is the least time that the wire needs; the program cannot be faster than that.

# %%
from minidist.comm import launch

RATE = 400e3  # bytes per second
real = {H: launch(local, 2, H, True, 16, rate=RATE) for H in (1, 8)}
rows = []
for H, run in real.items():
    sent = run.trace.bytes_sent(0)
    rows.append((H, run.trace.messages(0), sent, round(sent / RATE, 2)))
study.table(
    rows,
    ["H", "messages of rank 0", "bytes of rank 0", "seconds on the wire"],
    title="Two processes, 16 steps",
)

# %% tags=["maintainer"]
assert rows[0][2] == 8 * rows[1][2]
assert all(run.time > 0.9 * row[3] for run, row in zip(real.values(), rows))
assert real[8].time < real[1].time

# %% [markdown]
# For the link from the beginning of this lesson, `python -m benchmarks.slow_link` splits one machine into two network namespaces, which see each other only over a link of 100 Mbit/s, and trains the 1.1 million weights down to a loss of 0.20. The numbers below were measured with that program; beside them stands what a World predicts.

# %%
measured_on_a_link = [
    ("dense", 20.1, 18.8),
    ("local SGD, H = 8", 3.00, 3.02),
]
rows = [(name, run, said, round(20.1 / run, 1)) for name, run, said in measured_on_a_link]
study.table(
    rows,
    ["", "seconds, measured", "seconds, World", "times as fast as dense"],
    title="Until a loss of 0.20, at 100 Mbit/s",
)

# %% [markdown]
# Both needed 48 steps, so local SGD lost nothing in steps here (the data are even), and it gained a factor of 6.7 in time. The same training, `benchmarks/slow_train.py`, also runs on two machines of your own. Start it on each of them as follows; its arguments are the loss to reach, the largest number of steps, and what to compare:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m benchmarks.slow_train 0.2 320 dense "Local SGD"
# ```
#
# Machines with several GPUs use both techniques: data parallelism inside a machine, where links are fast, and local SGD between the machines. `LocalSGD` takes the communicator of one axis of the [grid](lesson:hybrid), so it can be told to average over the slow axis only. [Douillard et al. 2023](paper:douillard2023) train language models on islands of devices with poor links between them in this way: with *H* = 500, AdamW for the local steps, and slow momentum of Nesterov's kind at the meetings. They call it DiLoCo.
#
# **When not to use it.**
#
# - *On a fast link.* You have seen the flat line: where an all-reduce hides behind the backward pass ([Buckets and overlap](lesson:buckets)), local SGD saves what nobody waits for.
# - *Where the result must equal a single machine's.* It changes the training run. A bug in it cannot be found by comparing with the serial program, except with *H* = 1.
# - *With very uneven data*, such as one language or one hospital on each rank, unless *H* or the rate is small. Shuffle first, if you may.
# - *Where memory is short.* Every rank has the whole model and all optimizer states, since it steps alone. [ZeRO](lesson:zero) over the same ranks is out of the question, and slow momentum needs two more numbers for each weight.
# - *To cure the effects of a large batch.* Together, *n* ranks still process *n* batches in the time of one; [Large batches](lesson:large_batches) is about what that does.
#
# Compression and local steps attack the same bytes. With compression ([Send less](lesson:compress)) the ranks still meet in every step and so pay every latency; local SGD saves latencies as well. Where even 1/*H* of the bytes is too much, an average can be compressed too.
#
# ## Takeaways
#
# - Take *H* steps alone, then average the weights: 1/*H* of the messages and of the bytes. *H* = 1 is data parallelism, for every optimizer that is linear in the gradients.
# - Ranks that want different things drift apart, and the resting place is wrong by an amount that grows with γ(*H* − 1). With even data that amount is small.
# - Post-local SGD begins dense and becomes local when the rate falls. Adaptive local SGD begins with long periods and shortens them with the root of the loss.
# - Slow momentum remembers where the ranks went together. With *H* = 1 it is ordinary momentum.
# - A step takes *C* plus 1/*H* of an exchange. Look at the loss against time: neither the bytes nor the loss per step alone says whether a longer period pays.
# - Average before you evaluate or save, and distrust ranks that never drift.
#
# ## Further reading
#
# - paper:stich2019 Algorithm 1 and the theorem that √T meetings suffice.
# - paper:lin2020 Post-local SGD, and why it generalizes.
# - paper:wang2019 AdaComm, section 4.
# - paper:wang2020 SlowMo, Algorithm 1; what to do with momentum, section 2 and appendix B.
# - paper:douillard2023 Local steps between data centres.
