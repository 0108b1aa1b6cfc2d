# %% [markdown] nbgrader={"grade_id": "top"}
# # 01 The walls: exercises
#
# You build the calculators that tell whether a model fits, and what its training costs. You find errors in published
# sums, and a loop that eats memory.
#
# Eight exercises, 18 points. After each, run the check: it tries your function on cases that it draws anew each time,
# and says what is wrong. Try as often as you like. What your function prints is not shown there.
#
# Units: 1 kB, MB, GB are 10³, 10⁶, 10⁹ bytes; 1 KiB, MiB, GiB are 2¹⁰, 2²⁰, 2³⁰. Bytes are integers, and exact.
# The library's calculators (`minidist.study`) are refused in your functions.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch.nn import GELU, Linear, Sequential
from torch.nn.functional import cross_entropy, mse_loss

import minicheck as check

from minidist import study
from minidist.models import mlp
from minidist.study.charts import memory_timeline
from minidist.study.meter import measure
from minidist.tasks import digits

# %% [markdown] nbgrader={"grade_id": "peak_spec"}
# ## 1 · The peak (2 points)
#
# A program's tensors come and go. How much memory does it need?
#
# | | |
# |---|---|
# | call | `peak(events)` |
# | `events` | a list of pairs `(name, nbytes)` in order: allocated if above 0, freed if below; **not changed** |
# | returns | a tuple `(most, when, left)` |
# | `most` | the most bytes that were live after any event |
# | `when` | the index of the event that reached it first |
# | `left` | a dict: the name and bytes of each tensor that was never freed |
#
# There is at least one event. A name may come back after it was freed, with another size. About 7 lines.
#
# <details><summary>Hint</summary>
#
# Keep two things while you go through the events: the sum, and a dict of what is live. `enumerate` counts the events.
# Above the peak so far: only then replace it.
#
# </details>


# %% nbgrader={"grade_id": "peak", "solution": true}
def peak(events):
    """The most live bytes, the index of the event that first reaches them, and what is left, by name."""
    ### BEGIN SOLUTION
    total = 0
    most = 0
    when = 0
    live = {}
    for i, (name, nbytes) in enumerate(events):
        total += nbytes
        live[name] = live.get(name, 0) + nbytes
        if total > most:
            most, when = total, i
    return most, when, {name: nbytes for name, nbytes in live.items() if nbytes}
    ### END SOLUTION


# %% nbgrader={"grade_id": "peak_test", "points": 2}
check.peak(peak)

# %% [markdown] nbgrader={"grade_id": "peak_target"}
# **Target:** a step of three layers. The forward climbs, the backward falls, and your mark sits on the summit.

# %%
forward = [("y1", 4000), ("y2", 6000), ("y3", 3000)]
backward = [("g3", 900), ("y3", -3000), ("g2", 1800), ("y2", -6000), ("g1", 1200), ("y1", -4000)]
events = [("w1", 1200), ("w2", 1800), ("w3", 900), *forward, *backward]
live = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
most, when, left = peak(events)
study.curves(
    {"live": (range(len(events)), live)},
    points={"your peak": ([when], [most])},
    yunit="B",
    xlabel="event",
    ylabel="live bytes",
    title=f"A training step; what stays: {', '.join(left)}",
)

# %% [markdown] nbgrader={"grade_id": "model_states_spec"}
# ## 2 · Model states (2 points)
#
# What stays in memory from step to step?
#
# | | |
# |---|---|
# | call | `model_states(trained, frozen, optimizer, precision)` |
# | `trained`, `frozen` | numbers of parameters; frozen ones are used, but never updated |
# | `optimizer` | `"sgd"`, `"momentum"` or `"adam"` |
# | `precision` | of weights and gradients: `"fp32"` or `"fp16"` |
# | returns | a dict with the bytes of `"parameters"`, `"gradients"` and `"optimizer states"`, integers |
# | raises | `ValueError` for any other optimizer or precision; its text has the word |
#
# Momentum keeps one fp32 number for each parameter that it updates, Adam two, plain SGD none. With `"fp16"` (mixed
# precision) the optimizer also keeps an fp32 copy of each weight that it updates; it counts among its states.
# About 9 lines.
#
# <details><summary>Hint</summary>
#
# A dict from the optimizer's word to its bytes a parameter, another from the precision's to those of a weight.
# Frozen: a weight, no gradient, nothing for the optimizer.
#
# </details>


# %% nbgrader={"grade_id": "model_states", "solution": true}
def model_states(trained, frozen, optimizer, precision):
    """Bytes of parameters, gradients and optimizer states."""
    ### BEGIN SOLUTION
    kept, weight = {"sgd": 0, "momentum": 4, "adam": 8}, {"fp32": 4, "fp16": 2}
    if optimizer not in kept:
        raise ValueError(f"no optimizer is called {optimizer!r}")
    if precision not in weight:
        raise ValueError(f"no precision is called {precision!r}")
    copy = 4 if precision == "fp16" else 0
    return {
        "parameters": weight[precision] * (trained + frozen),
        "gradients": weight[precision] * trained,
        "optimizer states": (kept[optimizer] + copy) * trained,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "model_states_test", "points": 2}
check.model_states(model_states)

# %% [markdown] nbgrader={"grade_id": "model_states_target"}
# **Target:** the first bar at 112 GB. The second is why people fine-tune small additions to a frozen model: here 0.2 %
# of its parameters.

# %%
cases = {
    "7 B, all trained": (7_000_000_000, 0),
    "7 B frozen, 14 M added": (14_000_000, 7_000_000_000),
}
study.bars(
    {word: sum(model_states(*case, "adam", "fp16").values()) for word, case in cases.items()},
    unit="B",
    target=80e9,
    note="one card:",
    title="Model states with Adam in mixed precision",
)

# %% [markdown] nbgrader={"grade_id": "activation_bytes_spec"}
# ## 3 · Activations of an MLP (3 points)
#
# Linear layers, an activation function between them, and `mse_loss` at the end. The network is fine-tuned: its first
# layers are frozen, and only those behind them learn. What does the forward keep for the backward, to the byte?
#
# | | |
# |---|---|
# | call | `activation_bytes(batch, sizes, itemsize, activation, frozen)` |
# | `sizes` | a list: of the inputs, the hidden layers, the outputs; at least 2; **not changed** |
# | `itemsize` | bytes of a number |
# | `activation` | `"relu"` or `"gelu"` |
# | `frozen` | how many linear layers, from the first on, have frozen weights and biases: none, some or all |
# | returns | bytes of activations when the forward ends, an integer |
#
# Not counted: weights, which are model states; the inputs x and the targets y, which are the batch itself.
#
# **What is kept.** A linear layer that learns keeps its input: the gradient of the weights is made of it. `relu` keeps
# its *output*, which says where the input was above 0. `gelu` keeps its *input*: its derivative is made of that.
# `mse_loss` keeps the network's output. The same tensor is kept once, whoever asks for it. But all this is kept only
# where the backward comes by, and it goes back no further than to the first layer that learns. About 5 lines.
#
# <details><summary>Hint</summary>
#
# Draw two hidden layers: x, linear, y1, relu, h1, linear, y2, relu, h2, linear, out, loss. Underline what somebody
# keeps. With gelu, underline y1 and y2, too. Now freeze the first linear layer: who still keeps h1, and who kept y1?
#
# </details>


# %% nbgrader={"grade_id": "activation_bytes", "solution": true}
def activation_bytes(batch, sizes, itemsize, activation, frozen):
    """Bytes that an MLP's forward keeps for its backward."""
    ### BEGIN SOLUTION
    if frozen == len(sizes) - 1:
        return 0
    first = sizes[frozen] if frozen else 0
    tensors = {"relu": 1, "gelu": 2}[activation]
    return batch * itemsize * (first + tensors * sum(sizes[frozen + 1 : -1]) + sizes[-1])
    ### END SOLUTION


# %% nbgrader={"grade_id": "activation_bytes_test", "points": 3}
check.activation_bytes(activation_bytes)

# %% [markdown] nbgrader={"grade_id": "activation_bytes_target"}
# **Target:** with all layers learning, gelu is near twice as long as relu. It is smoother, and it costs memory. The more
# layers are frozen, the less is kept; if only the last one learns, the two are equal.

# %%
sizes = [784, 4096, 4096, 4096, 10]
study.bars(
    {
        f"{word}, {frozen} frozen": activation_bytes(512, sizes, 4, word, frozen)
        for frozen in (0, 2, 3)
        for word in ("relu", "gelu")
    },
    unit="B",
    title="Activations of three hidden layers of 4,096, batch 512",
)

# %% [markdown] nbgrader={"grade_id": "predict_memory_spec"}
# ## 4 · Predict, then measure (2 points)
#
# An MLP 1500 → 2500 → 2000 → 1000 with GELU and `mse_loss` has 10,755,500 parameters, 3,752,500 of them in its first
# layer, which is frozen. The others are trained in fp32 with Adam, on batches of 2,000 samples. A product multiplies and
# adds once for each weight and sample.
#
# - `stays`: how many bytes of model states are there after a step?
# - `kept`: how many bytes of activations are there when the forward ends? As in exercise 3, without x and y.
# - `backward`: how many FLOPs has the backward? It makes the products of which something is needed, and no others.
# - `equal`: at which batch do activations take as many bytes as model states?
#
# Write numbers or formulas, right within 1 %. Your functions from above may help.

# %% nbgrader={"grade_id": "predict_memory", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_memory.numbers(STUDENT)
stays = kept = backward = equal = None
### BEGIN SOLUTION
parameters = 10_755_500
frozen = 3_752_500
batch = 2000
# the second layer's input, what comes into its GELU and out of it, the last output
sample = 4 * (2500 + 2 * 2000 + 1000)
stays = 4 * parameters + 12 * (parameters - frozen)
kept = batch * sample
# nobody needs a gradient of the second layer's input
backward = 2 * batch * (2500 * 2000 + 2 * 2000 * 1000)
equal = stays / sample
### END SOLUTION

# %% nbgrader={"grade_id": "predict_memory_test", "points": 2}
check.predict_memory(stays, kept, backward, equal, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_memory_target"}
# **Target:** your numbers beside the meter's. On the device `"meta"` tensors have a shape and no numbers, so the step
# takes no memory at all.


# %%
def step(batch):
    """Bytes that stay, bytes that the forward keeps, FLOPs of the backward: as measured."""
    layers = [Linear(1500, 2500, device="meta"), GELU(), Linear(2500, 2000, device="meta"), GELU()]
    model = Sequential(*layers, Linear(2000, 1000, device="meta"))
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    x, y = torch.empty(batch, 1500, device="meta"), torch.empty(batch, 1000, device="meta")
    profile = measure(lambda: (mse_loss(model(x), y).backward(), optimizer.step()))
    after, end = profile.timeline.at(profile.phases[0][2]), profile.timeline.at(profile.time)
    states = sum(end[part] for part in ("parameters", "gradients", "optimizer states"))
    kept = after["activations"] - y.nbytes  # the loss keeps y, and the frozen layer no x
    return states, kept, profile.by_phase["backward"].flops


measured, (same_states, same_kept, _) = step(2000), step(round(equal))
rows = [
    ["MB of model states", stays / 1e6, measured[0] / 1e6],
    ["MB of activations", kept / 1e6, measured[1] / 1e6],
    ["GFLOP of the backward", backward / 1e9, measured[2] / 1e9],
    ["activations / model states, at your batch", 1.0, same_kept / same_states],
]
study.table(rows, ["", "predicted", "measured"])

# %% [markdown] nbgrader={"grade_id": "largest_model_spec"}
# ## 5 · How many layers fit? (2 points)
#
# A GPT on one card, trained with Adam in mixed precision: 16 bytes a parameter. When the backward has ended, and the
# activations are gone, all gradients are copied into one fp32 buffer, to compute their norm.
#
# | | |
# |---|---|
# | call | `largest_model(memory, batch, seq, hidden, heads, vocab)` |
# | `memory` | bytes of the card |
# | returns | the most layers that fit, an integer; 0 if not even one does |
#
# With b, s, h, a, V for batch, seq, hidden, heads, vocab, count this and nothing else:
#
# - parameters: 12h² + 13h in each layer; (V + s)·h once, for words and positions
# - activations: s·b·h·(34 + 5as/h) **bytes** in each layer
# - the buffer: 4 bytes a parameter
#
# The model must fit at its peak, wherever in the step that is.
#
# **Invariant:** to the byte. One byte less than L layers need, and L−1 is the answer. About 7 lines.
#
# <details><summary>Hint</summary>
#
# Two moments, and the layers must fit at both: how many fit at the end of the forward, how many with the buffer? For
# each, what is there once is taken off first. Divide the rest by what one more layer needs, with `//`. Multiply out the
# bracket, so that all numbers are whole: 34sbh + 5as²b.
#
# </details>


# %% nbgrader={"grade_id": "largest_model", "solution": true}
def largest_model(memory, batch, seq, hidden, heads, vocab):
    """How many transformer layers fit on a card, with all that their training needs."""
    ### BEGIN SOLUTION
    once = (vocab + seq) * hidden
    layer = 12 * hidden * hidden + 13 * hidden
    activations = 34 * seq * batch * hidden + 5 * heads * seq * seq * batch
    forward = (memory - 16 * once) // (16 * layer + activations)
    buffer = (memory - 20 * once) // (20 * layer)
    return max(0, min(forward, buffer))
    ### END SOLUTION


# %% nbgrader={"grade_id": "largest_model_test", "points": 2}
check.largest_model(largest_model)

# %% [markdown] nbgrader={"grade_id": "largest_model_target"}
# **Target:** 28 layers on 80 GB, 30 on 80 GiB: that is what mixing the units costs. GPT-3 has 96 layers, six times as
# wide.

# %%
shape = dict(batch=4, seq=2048, hidden=2048, heads=16, vocab=50257)
cards = {"32 GB": 32 * 10**9, "80 GB": 80 * 10**9, "80 GiB": 80 * 2**30, "141 GB": 141 * 10**9}
study.bars(
    {word: largest_model(memory, **shape) for word, memory in cards.items()},
    title="Layers of 2,048 that fit, with 4 sequences of 2,048 words",
)

# %% [markdown] nbgrader={"grade_id": "run_cost_spec"}
# ## 6 · What a run costs (2 points)
#
# | | |
# |---|---|
# | call | `run_cost(parameters, tokens, gpus, peak, achieved, recompute)` |
# | `peak` | FLOP/s that one GPU could do |
# | `achieved` | FLOP/s that one GPU does, all that it executes |
# | `recompute` | `True` if the forward is run once more before the backward, to save memory |
# | returns | a dict with `"gpu_hours"`, `"days"`, `"mfu"`, `"hfu"` |
#
# The model needs 6 FLOPs for each parameter and token: 2 in forward, 4 in backward. What is recomputed comes on top.
# The GPUs work at the same time. The **MFU** is what the model needs, the **HFU** what the hardware executes, both as a
# fraction (0 to 1) of what the GPUs could do in the time of the run. About 6 lines.
#
# <details><summary>Hint</summary>
#
# First the seconds that one GPU alone would take: all that is executed, over `achieved`. All else is made of it.
#
# </details>


# %% nbgrader={"grade_id": "run_cost", "solution": true}
def run_cost(parameters, tokens, gpus, peak, achieved, recompute):
    """GPU-hours, days, MFU and HFU of a run."""
    ### BEGIN SOLUTION
    needed = 6 * parameters * tokens
    executed = needed + (2 * parameters * tokens if recompute else 0)
    seconds = executed / achieved
    return {
        "gpu_hours": seconds / 3600,
        "days": seconds / 3600 / 24 / gpus,
        "mfu": needed / seconds / peak,
        "hfu": executed / seconds / peak,
    }
    ### END SOLUTION


# %% nbgrader={"grade_id": "run_cost_test", "points": 2}
check.run_cost(run_cost)

# %% [markdown] nbgrader={"grade_id": "run_cost_target"}
# **Target:** two pairs of near numbers. LLaMA's 65 billion parameters read 1.4 trillion tokens; each of 2,048 A100 took
# 380 tokens a second. BLOOM's step is 2,048 sequences of 2,048 tokens on 384 A100, with recomputation; its team reports
# 149 TFLOP/s on each.

# %%
llama = run_cost(65_200_000_000, 1_400_000_000_000, 2048, 312e12, 6 * 65.2e9 * 380, recompute=False)
bloom = run_cost(176_247_271_424, 2048 * 2048, 384, 312e12, 149.02e12, recompute=True)
rows = [
    ["LLaMA-65B, days", llama["days"], 21],
    ["BLOOM, seconds a step", bloom["days"] * 86400, 105],
    ["LLaMA-65B, MFU in %", 100 * llama["mfu"], None],
    ["BLOOM, MFU in %", 100 * bloom["mfu"], None],
]
study.table(rows, ["", "your formula", "published"])

# %% [markdown] nbgrader={"grade_id": "find_errors_spec"}
# ## 7 · Find the errors (2 points)
#
# Eight sums, as papers and write-ups about large models have them; C and G were published. Some are wrong: a unit, a
# factor, a forgotten part. The others hold, but for rounding. Training is in mixed precision.
#
# | | claim |
# |---|---|
# | A | A layer of GPT-3 (h = 12288, a = 96, b = 1) keeps 3.4 times as many bytes (†) with s = 4096 as with s = 2048. |
# | B | One billion parameters that read 20 billion tokens at an MFU of 40 % take one A100 (312 TFLOP/s) 11.13 days. |
# | C | A vocabulary of 64,000 words, each a vector of 5,120 numbers in fp32, takes 1,250 MB. |
# | D | 7 billion parameters: 112 GB of model states with Adam and 28.5 GB of activations (‡), together 140.5 GB. |
# | E | Two billion parameters, of which 20 million are trained, with Adam, have 4.28 GB of model states. |
# | F | With full recomputation, a run with an HFU of 48 % has an MFU of 32 %. |
# | G | 125 layers keep their inputs, s·b·h numbers in fp16 each: 33 GB (b = 32, s = 1024, h = 8192). |
# | H | With SGD and momentum, the model states of 6.67 billion parameters fill a card of 80 GB. |
#
# (†) s·b·h·(34 + 5as/h). (‡) 32 layers of as many, b = 1, s = 2048, h = 4096, a = 32.
#
# Write a dict: each wrong claim's letter, and the figure that it should have, in the claim's unit, within 0.3 %. For
# instance `{"A": 4.0, "B": 12.5}`.
#
# <details><summary>Hint</summary>
#
# Calculate each in bytes. Then divide by 10⁹ for GB, by 10⁶ for MB. What do you get with 2³⁰ or 2²⁰? A run's
# utilizations are to each other as its FLOPs: how many does the model need, and how many are executed?
#
# </details>

# %% nbgrader={"grade_id": "find_errors", "solution": true}
errors = None
### BEGIN SOLUTION
layer = 34 * 2048 * 4096 + 5 * 32 * 2048 * 2048
errors = {
    "C": 4 * 64_000 * 5_120 / 1e6,
    "D": (16 * 7e9 + 32 * layer) / 1e9,
    "F": 48 * 6 / 8,
    "G": 2 * 125 * 1024 * 32 * 8192 / 1e9,
}
### END SOLUTION

# %% nbgrader={"grade_id": "find_errors_test", "points": 2}
check.find_errors(errors)

# %% [markdown] nbgrader={"grade_id": "find_errors_target"}
# **Target:** four lines. G stands in a famous paper, which says "around 60 GB" of the same model in another section:
# numbers were taken for bytes.

# %%
claimed = {"C": 1250, "D": 140.5, "F": 32, "G": 33}
study.table(
    [
        [letter, claimed.get(letter), figure, f"{claimed.get(letter, 0) / figure - 1:+.1%}"]
        for letter, figure in sorted(errors.items())
    ],
    ["claim", "claimed", "yours", "off by"],
)

# %% [markdown] nbgrader={"grade_id": "train_lean_spec"}
# ## 8 · Find the bugs: a loop that eats memory (3 points)
#
# The next cell was found in somebody's code. After each step it looks at the loss of a test set. It gives the right
# numbers, and runs out of memory after a while.


# %% nbgrader={"grade_id": "train_lean_broken"}
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    losses, tests = [], []
    for x, y in batches:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        tests.append(loss_fn(model(test[0]), test[1]))
    return losses, tests


# %%
def looked_at(train):
    """The memory of five steps on the handwritten digits, 250 a batch."""
    task, model = digits(torch.float32), mlp([64, 128, 128, 128, 128, 128, 128, 10])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [(x.clone(), y.clone()) for x, y in zip(task.x.split(250)[:5], task.y.split(250))]
    return measure(
        train, model, optimizer, cross_entropy, batches, (task.test_x.clone(), task.test_y.clone())
    )


memory_timeline(looked_at(train_lean), title="The loop as it was found: five steps")

# %% [markdown] nbgrader={"grade_id": "train_lean_task"}
# Every step leaves something behind. Copy the function, and repair it: two things are held too long, and a third is
# freed too late.
#
# | | |
# |---|---|
# | call | `train_lean(model, optimizer, loss_fn, batches, test)` |
# | `model` | without gradients, and in `train()`, when it comes |
# | `batches`, `test` | a list of pairs (x, y), and one pair |
# | returns | two lists of **floats**: the loss of each batch before its step, and of the test set after each step, also where it is nan |
# | afterwards | the model has taken the same steps as above, in the mode in which it came; what was frozen is frozen |
# | cost | no more FLOPs than above; a peak no higher than one forward and backward need |
#
# **Invariant:** when a training forward begins, nothing is live but the weights, the optimizer states and the data. (What
# a variable of the loop still holds of one output or loss does not count.)
#
# <details><summary>Hint</summary>
#
# A loss that is a tensor holds its graph, and the graph holds all activations until a backward frees them. The test set
# has no backward. And what is in `p.grad` while the next forward runs?
#
# </details>


# %% nbgrader={"grade_id": "train_lean", "solution": true}
def train_lean(model, optimizer, loss_fn, batches, test):
    """The loss of each batch, and of the test set after each step."""
    ### BEGIN SOLUTION
    losses, tests = [], []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            tests.append(loss_fn(model(test[0]), test[1]).item())
    return losses, tests
    ### END SOLUTION


# %% nbgrader={"grade_id": "train_lean_test", "points": 3}
check.train_lean(train_lean)

# %% [markdown] nbgrader={"grade_id": "train_lean_target"}
# **Target:** hills of one height, and level ground between them. (The first is lower: momentum comes with its step.
# The pink that always stays is the data.)

# %%
memory_timeline(looked_at(train_lean), title="Your loop: five steps")
