# %% [markdown]
# # 01 · The walls
#
# A graphics card has 32 GB of memory. A number in half precision takes 2 bytes.
# **How many parameters may a network have, if this card is to train it?**
#
# You need no GPU, and no knowledge of clusters. Run the cells from top to bottom (Shift+Enter), and before each one
# guess what comes out. Write your first guess into the next cell; the answer stands on a plot further down, beside it.

# %%
guess = 16_000_000_000  # parameters: change this number

# %% [markdown]
# ## On paper: 3 layers, 6 numbers
#
# The smallest deep network: three weights in a row, each multiplies what comes in. Its batch has two samples.
# How does a weight learn? Its gradient is *what came in* times *what comes back*. So every layer must keep what came
# in, two numbers, until the backward pass comes by. Three layers keep six.

# %%
from minidist import study

w = [2, 3, 4]
kept = [[1, 5]]
grads = {}
rows = []
for i in range(3):
    rows.append([f"forward {i + 1}", str(kept)[1:-1], "", 3 + 2 * len(kept)])
    kept.append([w[i] * number for number in kept[-1]])
outputs, back = kept.pop(), [1, 1]  # the loss is the sum of the outputs
for i in reversed(range(3)):
    grads[f"w{i + 1}"] = sum(came * went for came, went in zip(kept.pop(), back))
    back = [w[i] * number for number in back]
    rows.append(
        [f"backward {i + 1}", str(kept)[1:-1], str(grads)[1:-1], 3 + 2 * len(kept) + len(grads)]
    )
study.table(
    rows,
    ["", "kept for the backward", "gradients", "numbers, with 3 weights"],
    title="A step, on paper",
)

# %% [markdown]
# Read the last column: 5, 7, 9, then 8, 7, 6. Memory **climbs** through the forward, **peaks** where it ends, and
# **falls** through the backward. Is it so in a real network?
#
# ## Measured
#
# Here is a training step, as everybody writes it, and a network with six hidden layers. It learns handwritten digits,
# all 1,437 in one batch. `measure` watches every operator that PyTorch runs: who allocates, who frees, and for what.
# It needs no change in the step.

# %%
from functools import partial

import torch
from torch.nn.functional import cross_entropy, mse_loss

from minidist.models import TransformerLayer, gpt, mlp, next_token_loss, resnet
from minidist.study import allocator, predict
from minidist.study.charts import memory_timeline
from minidist.study.predict import GB, MiB
from minidist.study.meter import measure
from minidist.study.literature import published
from minidist.tasks import digits


# %%
def step(model, optimizer, x, y, loss_fn):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()


def profile(model, make, x, y, loss_fn, step=step):
    arguments = model, make(model.parameters()), x, y, loss_fn
    step(*arguments)  # the first step makes the optimizer's states
    return measure(step, *arguments)


# %%
task, sizes = digits(torch.float32), [64, 256, 256, 256, 256, 256, 256, 10]
x = task.x.clone()
y = task.y.clone()
network = mlp(sizes)
small = profile(network, torch.optim.Adam, x, y, cross_entropy)
memory_timeline(small, title="A training step of an MLP: the hill")

# %% [markdown]
# The hill from the table. (The time is that of a modelled GPU; the bytes are those of this machine.)
# What do you see in it?
#
# - **Model states** stay from step to step: parameters, gradients, and what the optimizer keeps. Adam keeps two numbers
#   for each parameter.
# - **Activations** are what the forward keeps for the backward.
# - **Temporary buffers** come and go: gradients of outputs, results in between. The meter calls them "other".
#
# The pink strip that stays at the end is the batch itself. Two things are missing: the **buffers** of a module, which
# are not trained (batch norm's running means), and **fragmentation**. We shall meet both.
#
# ## The formula beside it
#
# How many bytes should it be? With Ψ parameters in fp32, 4 bytes each, 4Ψ of weights, 4Ψ of gradients, 8Ψ for Adam.
# A linear layer keeps its input. ReLU keeps its output, which is the next layer's input: the same tensor, kept once.
# We ask the meter at the end of each phase.

# %%
at = {phase: small.timeline.at(end) for phase, _, end in small.phases}
psi, batch = sum(p.numel() for p in network.parameters()), len(x)
expected = {
    "parameters": 4 * psi,
    "gradients": 4 * psi,
    "optimizer states": 8 * psi,
    "activations": 4 * batch * sum(sizes),
}
found = at["step"] | {"activations": at["forward"]["activations"]}
assert all(abs(found[part] / nbytes - 1) < 0.002 for part, nbytes in expected.items())
study.table(
    [[part, nbytes, found[part], found[part] - nbytes] for part, nbytes in expected.items()],
    ["bytes", "formula", "measured", "difference"],
    title=f"Ψ = {psi:,}, batch {batch:,}",
)

# %% [markdown]
# Where are the few bytes from? Adam counts its steps, 4 bytes for each of 14 tensors. The loss keeps
# its log-probabilities, which the formula has, and also the labels, 8 bytes for each of 1,437.
#
# An independent witness: autograd itself says what it saves, if one asks.

# %%
saved, own = {}, {p.untyped_storage()._cdata for p in network.parameters()}


def save(tensor):
    saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
    return tensor


with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
    cross_entropy(network(x), y)
witness = sum(storage.nbytes() for key, storage in saved.items() if key not in own)

assert abs(witness - found["activations"]) <= 8  # two numbers of the loss
study.bars(
    {"formula": expected["activations"], "meter": found["activations"], "autograd": witness},
    unit="B",
    title="Activations at the end of the forward",
)

# %% [markdown]
# ## Only the peak counts
#
# A card overflows at one moment. Which of these changes lowers the peak, and which does not? Guess, then run.


# %%
def frees_at_end(model, optimizer, x, y, loss_fn):
    step(model, optimizer, x, y, loss_fn)
    optimizer.zero_grad()  # gradients are freed earlier: now, not at the next step


adam, sgd = torch.optim.Adam, partial(torch.optim.SGD, lr=0.1)
half = x[: batch // 2].clone(), y[: batch // 2].clone()
ways = {
    "as it was": (adam, x, y),
    "half the batch": (adam, *half),
    "SGD, no states": (sgd, x, y),
    "both": (sgd, *half),
}
peaks = {word: profile(mlp(sizes), *way, cross_entropy).peak for word, way in ways.items()}
peaks["gradients freed at the end"] = profile(
    mlp(sizes), adam, x, y, cross_entropy, frees_at_end
).peak
study.bars(peaks, unit="B", target=small.peak / 2, note="half of it", title="Peak of a step")

# %% [markdown]
# Nothing that happens off the peak matters. And to halve the need, activations *and* states must go down: either half
# alone is not enough.
#
# ## Two kinds of networks
#
# On the device `"meta"` a tensor has a shape and no numbers. So the meter can watch the step of a network that no
# memory here would hold. First a convolutional network: a ResNet of 101 layers, widened to 0.1 billion parameters, with
# SGD and momentum, on 16 images of 416 × 416.

# %%
momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
images, classes = (
    torch.empty(16, 3, 416, 416, device="meta"),
    torch.empty(16, dtype=torch.long, device="meta"),
)
assert predict.states(10**8, "momentum", "fp32").total == 1.2 * GB
convolutional = profile(
    resnet(101, width=96, device="meta"), momentum, images, classes, cross_entropy
)
memory_timeline(convolutional, title="A ResNet of 0.1 billion parameters")

# %% [markdown]
# Activations are nearly all of it, and after the step hardly anything is left. A deeper network of that size,
# ResNeSt-269, has 111 million parameters. With 12 bytes each it keeps 1.3 GB after a step; its activations are more.
#
# Now **one** of the 96 layers of GPT-3, with two sequences of 2,048 words. It is trained in **mixed precision**:
# weights and gradients have 2 bytes, but Adam's numbers have 4. They are sums of many small steps, which half precision
# would round away. For the same reason Adam keeps a copy of the weights in 4 bytes.


# %%
class MixedAdam(torch.optim.Optimizer):  # without the corrections of the first steps
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            zeros = partial(torch.zeros_like, p, dtype=torch.float32)
            state = self.state[p] = self.state[p] or dict(
                weights=p.float(), mean=zeros(), square=zeros()
            )
            grad = p.grad.float()
            state["mean"].lerp_(grad, 0.1)
            state["square"].lerp_(grad.square_(), 0.001)
            p.copy_(
                state["weights"].addcdiv_(
                    state["mean"], state["square"].sqrt().add_(1e-8), value=-1e-3
                )
            )


# %%
def gpt3_layer(batch, tokens=2048, dropout=0.1):
    layer = TransformerLayer(
        12288, 96, dropout, attention="explicit", dtype=torch.float16, device="meta"
    )
    words = torch.empty(batch, tokens, 12288, dtype=torch.float16, device="meta")
    return profile(layer, MixedAdam, words, None, lambda out, _: out.sum())


transformer = gpt3_layer(2)
memory_timeline(transformer, title="One layer of GPT-3")

# %% [markdown]
# Here the model states are most of it, and gradients come faster than activations go: the peak has moved into the
# backward. Model states are matrices, and matrices split well: give half of the columns to each of
# two cards, and each does half of the work (lesson 14). The pixels of an image need their neighbours, and split badly.
# It is one reason why language models could grow a thousandfold.


# %%
def parts(p):
    states = p.at_peak["parameters"] + p.at_peak["gradients"] + p.at_peak["optimizer states"]
    left = sum(p.timeline.at(p.time).values())
    return [
        p.peak / GB,
        *(f"{part / p.peak:.0%}" for part in (states, p.at_peak["activations"])),
        left / GB,
    ]


study.table(
    [["ResNet", *parts(convolutional)], ["layer of GPT-3", *parts(transformer)]],
    ["", "peak, GB", "model states", "activations", "left after it, GB"],
    title="What the peak is made of",
)

# %% [markdown]
# ## Bytes per parameter
#
# So how much is it per parameter? Predict the last column before you run the cell. The meter counts what stays after
# the step of a network; the library's formula stands beside it.


# %%
def stays(make, dtype):
    model, words = (
        mlp([1024] * 9, dtype=dtype, device="meta"),
        torch.empty(1, 1024, dtype=dtype, device="meta"),
    )
    after = profile(model, make, words, words.clone(), mse_loss).timeline.at(float("inf"))
    count = sum(p.numel() for p in model.parameters())
    return [
        round(after[part] / count, 2) for part in ("parameters", "gradients", "optimizer states")
    ]


# %%
ways = {
    ("sgd", "fp32"): sgd,
    ("momentum", "fp32"): momentum,
    ("adam", "fp32"): adam,
    ("adam", "fp16"): MixedAdam,
}
rows = []
for (optimizer, precision), make in ways.items():
    measured = stays(make, {"fp32": torch.float32, "fp16": torch.float16}[precision])
    expected = predict.per_parameter(optimizer, precision)
    assert measured == list(expected.values())
    rows.append([f"{optimizer}, {precision}", *measured, sum(expected.values())])
study.table(
    rows,
    ["bytes per parameter", "parameters", "gradients", "optimizer", "all"],
    title="Model states",
)

# %% [markdown]
# **16 bytes** with Adam, in either precision. Half precision halves the activations, and makes the products fast; of
# model states it saves nothing. So 1.5 billion parameters need 24 GB, and GPT-3's 175 billion 2.8 TB.
#
# And the question? 32 GB over 16 bytes: 2 billion parameters, and then nothing else. With all else beside them, the
# authors of ZeRO (a paper of 2020; lesson 13) measured how many they could train.

# %%
[measured] = [
    row["value"]
    for row in published("zero")
    if row["table_or_figure"] == "Table 2"
    and row["MP"] == 1
    and row["stage"] == "baseline"
    and row["quantity"] == "measured_max_model_size"
]
assert (
    predict.states(175 * 10**9).total == 2800 * GB and predict.states(15 * 10**8).total == 24 * GB
)
study.bars(
    {
        "your guess": guess,
        "2 bytes each": 32 * GB // 2,
        "with training: 16 bytes": predict.largest(32 * GB),
        "measured (ZeRO, Table 2)": measured * 10**9,
    },
    title="Parameters on a card of 32 GB",
)

# %% [markdown]
# ## What a transformer keeps
#
# How many bytes of activations has a layer? Go through it, as Korthikanti et al. did: s words in a sequence,
# b sequences, h numbers for a word, a heads, each of which compares every word with every other. It is
# $sbh\left(34 + 5\frac{as}{h}\right)$ bytes in half precision.
# The first part grows with the words. The second, the heads' tables of each word against each, grows with their
# **square**. The line is the formula, the points are measured.


# %%
def formula(s, b=1, h=12288, a=96, square=5):
    return s * b * h * 34 + square * a * s * s * b


def kept(s):
    p = gpt3_layer(1, s)
    return p.timeline.at(p.phases[0][2])["activations"]  # phases[0]: the forward


lengths, fine = [512, 1024, 2048, 3072, 4096], range(256, 4097, 256)
points = [kept(s) for s in lengths]
assert all(abs(point / formula(s) - 1) < 0.002 for s, point in zip(lengths, points))

# %%
lines = {
    "formula": (fine, [formula(s) for s in fine]),
    "without the square": (fine, [formula(s, square=0) for s in fine]),
}
study.curves(
    lines,
    points={"counted": (lengths, points)},
    yunit="B",
    xlabel="words in a sequence, s",
    ylabel="bytes of activations",
    title="One sequence in one layer of GPT-3",
)

# %% [markdown]
# ## Units: find the error
#
# 1 GB is 10⁹ bytes, 1 GiB is 2³⁰: 7 % more. Makers of cards and papers use both, and call both GB. A published sum for
# a model of 13 billion parameters (40 layers, b = 1, s = 1024, h = 5120, a = 40): "208 GB of model states and 14.5 GB
# of activations make **222.5 GB**." What is wrong?

# %%
states, activations = predict.states(13 * 10**9).total, 40 * formula(1024, 1, 5120, 40)
predict.listing(
    {"model states": states, "activations": activations}, title="13 billion parameters, both units"
)

# %% [markdown]
# 208 are GB, 14.5 are GiB. The sum is 223.5 GB, or 208.2 GiB; 222.5 is neither. From here on **GB is 10⁹**, bytes are
# integers, and a unit stands behind every number.
#
# ## Temporary buffers
#
# Many small operations are slow, so libraries copy all gradients into one flat buffer: to send them, or to take their
# norm. In fp32 it takes 4 bytes a parameter, on top of all else. ZeRO's authors add up the training of GPT-2, with
# 1.5 billion parameters. (For activations they take a rough 24·sbh a layer; our formula gives more.)

# %%
gpt2 = predict.Transformer(layers=48, hidden=1600, heads=16, vocab=50257, context=1024)
predict.listing(
    {
        "model states": predict.states(15 * 10**8).total,
        "activations, 32 sequences of 1,024": predict.rough(gpt2, 32),
        "gradients in one buffer": predict.fused_gradients(15 * 10**8),
    },
    title="GPT-2, for a card of 32 GB",
)

# %% [markdown]
# Three entries, and each alone is a good part of the card, or more. (Lesson 11 lowers the second: it throws activations
# away, and computes them again.)
#
# ## Break it: out of memory, with more than a third free
#
# Asking the driver for memory is slow. So PyTorch keeps what was freed, and cuts new tensors out of it. But a tensor
# needs its bytes **in one piece**. We record a training step of 1.2 billion parameters, with every allocation in its
# order, and replay it in a simulated allocator, on a card of 8 GiB, of which the driver keeps 0.25 GiB. At the end the
# step asks for one buffer for all gradients, in fp16. (A **segment** is what came from the driver at one time; black
# lines part them.)

# %%
recording, card = allocator.backward_in_pieces(), allocator.Allocator(allocator.CARD)
try:
    allocator.replay(recording, card)
except allocator.OutOfMemory as why:
    print(why)
allocator.blocks(card, title="The card when it gives up")

# %% [markdown]
# That is **fragmentation**: gradients, which stay, were put between activations, which went. What is free, in
# holes and with the driver, adds up to more than enough, and no piece is large enough. Three ways out:


# %%
def outcome(recording, **settings):
    try:
        allocator.replay(recording, allocator.Allocator(allocator.CARD, **settings))
        return "fits"
    except allocator.OutOfMemory as why:
        return f"out of memory, {why.free / why.capacity:.0%} free"


ways = {
    "as it was": outcome(recording),
    "segments that can grow": outcome(recording, expandable=True),
    "one buffer for all gradients, made before": outcome(allocator.backward_in_pieces(first=True)),
    "smaller pieces, of 200 MiB": outcome(allocator.backward_in_pieces(bucket=200 * MiB)),
}
study.table(list(ways.items()), ["", "1.2 billion parameters on 8 GiB"])

# %% [markdown]
# ## How large a model fits?
#
# Put it together: 16 bytes for each parameter, and the activations of a sequence of 2,048 words. Models of growing
# size, from GPT-3's family. Where do the lines cross the cards?

# %%
# layers, hidden, heads
family = [(12, 768, 12), (24, 1536, 16), (32, 2560, 32), (40, 5120, 40), (96, 12288, 96)]
shapes = [predict.Transformer(*shape, vocab=50257, context=2048) for shape in family]
states = [predict.states(predict.parameters(shape)).total for shape in shapes]
total = [
    held + shape.layers * predict.activations(shape, batch=1) for held, shape in zip(states, shapes)
]

billions = [held / 16e9 for held in states]  # of parameters
lines = {"model states": (billions, states), "with activations": (billions, total)}
cards = {f"a card of {size} GB": ([0.1, 200], [size * GB] * 2) for size in (32, 80, 141)}
study.curves(
    lines | cards,
    logx=True,
    logy=True,
    yunit="B",
    xlabel="parameters, billion",
    ylabel="bytes to train",
    title="GPT-3's family against one card",
)

# %% [markdown]
# The model states of GPT-3 alone fill 35 cards of 80 GB. That is the **memory wall**.
#
# ## The compute wall
#
# How much work is it? We count **FLOPs**, additions and multiplications of numbers, and **tokens**, the words or pieces
# of words that are read. A product of matrices multiplies and adds once for each parameter and token: 2 FLOPs. The
# backward is twice as much, for it makes two gradients: of the weights, and of what came in. So training Ψ parameters
# on T tokens takes **6ΨT** FLOPs. Is it so?


# %%
def flops_of(layers, hidden, heads, tokens=1024):
    model = gpt(layers, hidden, heads, 50257, tokens, device="meta")
    words = torch.empty(1, tokens, dtype=torch.long, device="meta")
    work = measure(lambda: next_token_loss(model(words), words).backward()).flops
    return sum(p.numel() for p in model.parameters()), work


psis, work = zip(
    *[flops_of(*shape) for shape in [(4, 1024, 16), (12, 768, 12), (24, 1024, 16), (24, 2048, 16)]]
)
assert all(1.08 < flops / (6 * psi * 1024) < 1.18 for psi, flops in zip(psis, work))
billions, tera = [psi / 1e9 for psi in psis], [flops / 1e12 for flops in work]
study.curves(
    {"6ΨT": (billions, [6 * psi * 1024 / 1e12 for psi in psis])},
    points={"counted": (billions, tera)},
    xlabel="parameters Ψ, billion",
    ylabel="TFLOP of a step of 1,024 tokens",
    title="Four GPTs",
)

# %% [markdown]
# Nearly. The 8 to 17 % more are mostly attention: each word looks at all the others, without a parameter.
#
# GPT-3 read 300 billion tokens. How long would **one** card take? An A100 could do 312·10¹² FLOPs a second. What a run
# gets out of its cards is the **MFU**, model FLOPs utilization: the FLOPs that the model needs, over those that the
# cards could have done in that time.

# %%
gpt3, year = predict.training_flops(174_600_000_000, 300 * 10**9), 365.25 * 24 * 3600
one = {"MFU 100 %": gpt3 / 312e12 / year, "MFU 45 %": gpt3 / (0.45 * 312e12) / year}
study.bars(
    {word: round(years) for word, years in one.items()}, unit="years", title="GPT-3 on one A100"
)

# %% [markdown]
# What real runs cost, in published hours of A100 cards:

# %%
every = published("training_runs")
gpus = {row["model"]: row["gpus"] for row in every if row["gpus"]}


def cost(row):
    name = row["model"]
    hours = row["value"]
    tokens = row["tokens"]
    psi = row["params"] or int(name[:-1].replace("-", " ").split()[-1]) * 10**9
    mfu = f"{predict.implied_mfu(psi, tokens, hours):.0%}" if tokens else None
    days = f"{hours / gpus[name] / 24:.0f} on {gpus[name]:,}" if name in gpus else None
    return [name, psi / 1e9, tokens and tokens / 1e12, hours, mfu, round(hours / 8766), days]


# %%
runs = [
    row
    for row in every
    if row["quantity"] == "gpu_hours"
    and row["model"].startswith(("LLaMA", "OPT", "BLOOM", "Llama 2 7"))
]
study.table(
    [cost(row) for row in runs],
    [
        "run",
        "Ψ, billion",
        "tokens, trillion",
        "GPU-hours",
        "MFU",
        "years of one GPU",
        "days on its GPUs",
    ],
    title="Training runs on A100",
)

# %% [markdown]
# That is the **compute wall**. To save memory a run may compute its activations twice. The hardware then does more than
# the model needs, and its utilization, the **HFU**, is higher than the MFU.

# %%
used = {
    f"{row['model']}, {row['quantity']}": row["value"]
    for row in every
    if row["quantity"] in ("MFU", "HFU")
}
study.bars(used, unit="%", title="Utilization, as the authors of PaLM report it")

# %% [markdown]
# One works against the wall on three levels:
#
# - **operators**: fewer and larger ones, nearer to the data (lesson 12);
# - **graphs**: the same work in a better order, fused, overlapped with messages (06, 12);
# - **the task**: which work on which card, and how much memory for how much time (11, 16, 19, 26).
#
# ## Four ranks
#
# Both walls say: many cards. The simplest way: each of four **ranks** has a copy of the network, and a quarter of the
# batch. Which part of its memory falls? `World(4)` runs a program four times, each time with another number,
# `comm.rank`. How ranks talk to each other is the next lesson.

# %%
from minidist.comm import World, launch


def my_peak(comm, x, y):
    mine = slice(comm.rank, None, comm.size)
    p = profile(mlp(sizes), adam, x[mine].clone(), y[mine].clone(), cross_entropy)
    return p.at_peak["parameters"] + p.at_peak["optimizer states"], p.at_peak["activations"], p.peak


worlds = {n: World(n).run(my_peak, x, y) for n in (1, 2, 4)}
study.table(
    [[f"{n} rank{'s' * (n > 1)}", *ranks[0]] for n, ranks in worlds.items()],
    ["bytes of rank 0", "weights and optimizer", "activations", "peak"],
    title="Each rank has a copy",
)

# %% [markdown]
# The activations fall with n. The model states do not: a copy is a copy. Data parallelism (lesson 05) breaks the
# compute wall, not the memory wall. To share the states out is what lesson 13 will change.
#
# The same program, in four real processes of this machine:

# %%
real = launch(my_peak, 4, x, y)
assert list(real) == list(worlds[4])
study.table(
    [[f"rank {r}", *found] for r, found in enumerate(real)],
    ["bytes", "weights and optimizer", "activations", "peak"],
    title="Four processes",
)

# %% [markdown]
# And on a cluster, where a script calls `my_peak(from_env(), x, y)`:
#
# ```
# torchrun --nproc-per-node 4 my_peak.py
# ```
#
# ## The library's version
#
# The calculators of this lesson are in `minidist/study/predict.py`; they also know what is still to come, n ranks and
# all ways to split a model. How many parameters fit is found by halving:

# %%
study.source(predict.largest, docstring=False)

# %% [markdown]
# ## Takeaways
#
# - A step's memory is model states, activations and temporary buffers. It peaks where the forward ends, or soon
#   after.
# - Only the peak counts, and both halves of it: states, and activations.
# - With Adam it is 16 bytes a parameter. 32 GB hold 2 billion parameters, and then nothing else.
# - A convolutional network is nearly all activations. A transformer is matrices, and those can be split.
# - What is free must be free in one piece.
# - Training takes 6ΨT FLOPs: years to centuries of one card. An MFU of 40 to 50 % is good.
# - Copies share the work, not the model states.
#
# ## Further reading
#
# - paper:rajbhandari2020 Section 3: where did all the memory go?
# - paper:korthikanti2023 The formula.
# - paper:chowdhery2023 MFU and HFU, appendix B.
# - paper:kaplan2020 6ΨT, section 2.1.
# - paper:touvron2023 What it cost.
# - paper:zhang2020
