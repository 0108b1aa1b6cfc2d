# %% [markdown] nbgrader={"grade_id": "top"}
# # 01 The walls: exercises
#
# You build the calculators that tell whether a model fits on a card and what its training costs. You find the errors in
# published sums, repair a loop that eats memory, and at the end you find out whether money or memory limits a model.
#
# There are nine exercises, worth 20 points. The last one, worth 2, is open and graded by hand. Each of the others ends
# with a check, which says what is wrong; it tries a function on cases that it draws anew each time. Try as often as you
# like. What your function prints is not shown by a check; to see it, call the function in a cell of your own. A cell
# that draws a picture runs your function in the notebook itself, and ends it if it takes too long.
#
# Units: 1 kB, 1 MB and 1 GB are 10³, 10⁶ and 10⁹ bytes; 1 KiB, 1 MiB and 1 GiB are 2¹⁰, 2²⁰ and 2³⁰ bytes. Bytes are
# integers and must be exact, however large they are; all other numbers must be right except for rounding. In your
# functions the library's calculators and its meter (`minidist.study`) are refused.

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
# | `events` | a list of pairs `(name, nbytes)`, at least one, in the order in which they happen: a tensor is allocated if `nbytes` is above 0, and freed if it is below; **not changed** |
# | returns | a tuple `(most, when, left)` |
# | `most` | the largest number of bytes that are live after an event |
# | `when` | the index of the first event after which that many are live |
# | `left` | a dict with the name and the bytes of each tensor that is still live at the end |
#
# A tensor is freed as a whole. After that its name may come back, with another size. About 7 lines.
#
# <details><summary>Hint</summary>
#
# Go through the events with `enumerate`, which counts them. Keep two things on the way: how many bytes are live, and a
# dict of what is live. If you replace the peak only when there are *more* bytes, the first event that reached it stays.
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
# **Target:** a step of three layers. The line climbs in the forward pass and falls in the backward pass, and your mark
# sits on the summit.

# %%
forward = [("y1", 4000), ("y2", 6000), ("y3", 3000)]
backward = [("g3", 900), ("y3", -3000), ("g2", 1800), ("y2", -6000), ("g1", 1200), ("y1", -4000)]
events = [("w1", 1200), ("w2", 1800), ("w3", 900), *forward, *backward]
live = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
with check.limit(10):
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
# What stays in memory from one step to the next?
#
# | | |
# |---|---|
# | call | `model_states(trained, frozen, optimizer, precision)` |
# | `trained`, `frozen` | numbers of parameters, of which one may be 0; frozen parameters are used, but never updated |
# | `optimizer` | `"sgd"`, `"momentum"` or `"adam"` |
# | `precision` | of all weights and gradients: `"fp32"` or `"fp16"` |
# | returns | a dict with the bytes of `"parameters"`, `"gradients"` and `"optimizer states"`, integers |
# | raises | `ValueError` for any other optimizer or precision, such as `"Adam"` or `"bf16"`; its text contains the unknown word |
#
# For each parameter that it updates, momentum keeps one number in fp32, Adam keeps two, and plain SGD none. With
# `"fp16"`, in mixed precision, the optimizer also keeps a copy in fp32 of each weight that it updates; this copy counts
# among the optimizer states. About 9 lines.
#
# <details><summary>Hint</summary>
#
# One dict leads from the optimizer to its bytes per parameter, another from the precision to the bytes of a weight. A
# frozen parameter has a weight, but neither a gradient nor an optimizer state.
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
# **Target:** the first bar is 112 GB long. The second one shows why people fine-tune small additions to a frozen model:
# here they are 0.2 % of its parameters.

# %%
cases = {
    "7 B, all trained": (7_000_000_000, 0),
    "7 B frozen, 14 M added": (14_000_000, 7_000_000_000),
}
heights = {}
with check.limit(10):
    for word, case in cases.items():
        heights[word] = sum(model_states(*case, "adam", "fp16").values())
study.bars(
    heights,
    unit="B",
    target=80e9,
    note="one card:",
    title="Model states with Adam in mixed precision",
)

# %% [markdown] nbgrader={"grade_id": "activation_bytes_spec"}
# ## 3 · Activations of an MLP (3 points)
#
# A network consists of linear layers, with an activation function between any two of them and `mse_loss` at the end. It
# is being fine-tuned: its first layers are frozen, and only those behind them learn. How many bytes does the forward
# pass keep for the backward pass?
#
# | | |
# |---|---|
# | call | `activation_bytes(batch, sizes, itemsize, activation, frozen)` |
# | `batch` | the number of samples |
# | `sizes` | a list: the numbers of inputs, of units in each hidden layer, and of outputs; 2 numbers or more; **not changed** |
# | `itemsize` | the bytes of a number: 2, 4 or 8 |
# | `activation` | `"relu"` or `"gelu"` |
# | `frozen` | how many linear layers, counted from the first, have frozen weights and biases: none, some or all of them |
# | returns | the bytes of activations at the end of the forward pass, an integer |
#
# Two things are not counted: the weights, which are model states, and the inputs x and the targets y, which are the
# batch itself.
#
# **What is kept.** A linear layer that learns keeps its input, because the gradient of its weights is computed from it.
# `relu` keeps its *output*, which shows where the input was above 0. `gelu` keeps its *input*, from which its
# derivative is computed. `mse_loss` keeps the network's output. A tensor that several of them need is kept only once.
# But whatever the backward pass does not reach keeps nothing, and it goes back no further than to the first layer that
# learns. About 5 lines.
#
# <details><summary>Hint</summary>
#
# Write down a network with two hidden layers: x, linear, y1, relu, h1, linear, y2, relu, h2, linear, out, loss.
# Underline the tensors that somebody keeps. With gelu you underline y1 and y2 as well. Now freeze the first linear
# layer: who still keeps h1, and who was it that kept y1?
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
# **Target:** if all layers learn, gelu's bar is nearly twice as long as relu's: gelu is smoother, and it costs memory.
# The more layers are frozen, the less is kept. If only the last one learns, the two bars are equally long.

# %%
sizes = [784, 4096, 4096, 4096, 10]
heights = {}
with check.limit(10):
    for frozen in (0, 2, 3):
        for word in ("relu", "gelu"):
            heights[f"{word}, {frozen} frozen"] = activation_bytes(512, sizes, 4, word, frozen)
study.bars(heights, unit="B", title="Activations of three hidden layers of 4,096, batch 512")

# %% [markdown] nbgrader={"grade_id": "predict_memory_spec"}
# ## 4 · Predict, then measure (2 points)
#
# An MLP 1500 → 2500 → 2000 → 1000 with GELU between its layers and `mse_loss` at the end has 10,755,500 parameters. Its
# first layer, which has 3,752,500 of them, is frozen. The others are trained in fp32 with Adam, on batches of 2,000
# samples. A matrix product multiplies once and adds once for each weight and each sample.
#
# - `stays`: how many bytes of model states are there after a step?
# - `kept`: how many bytes of activations are there at the end of the forward pass? Count as in exercise 3, without x
#   and y.
# - `backward`: how many FLOPs do the matrix products of the backward pass take? It computes only those whose result is
#   needed.
# - `equal`: with how many samples in a batch would the activations take as many bytes as the model states?
#
# Write numbers or formulas that are right within 1 %. Your functions from above may help.

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
# **Target:** your numbers agree with the meter's. On the device `"meta"` tensors have a shape but no numbers, so this
# step takes no memory at all.


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
    kept = after["activations"] - y.nbytes  # the loss keeps y; the frozen layer keeps no x
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
# A GPT is trained on one card with Adam in mixed precision, which takes 16 bytes per parameter. When the backward pass
# has ended and the activations are gone, all gradients are copied into one buffer in fp32, in which their norm is
# computed.
#
# | | |
# |---|---|
# | call | `largest_model(memory, batch, seq, hidden, heads, vocab)` |
# | `memory` | the bytes of the card |
# | `batch`, `seq`, `hidden`, `heads`, `vocab` | b, s, h, a and V, integers; h is a multiple of a |
# | returns | the largest number of layers that fit, an integer; 0 if not even one does |
#
# Count the following, and nothing else:
#
# - parameters: 12h² + 13h in each layer, and (V + s)·h once, for words and positions
# - activations: s·b·h·(34 + 5as/h) **bytes** in each layer
# - the buffer: 4 bytes per parameter
#
# The model must fit at its peak, wherever in the step that is.
#
# **Invariant:** the answer is right to the byte. On a card with one byte less than L layers need, it is L − 1. About 7
# lines.
#
# <details><summary>Hint</summary>
#
# The layers must fit at two moments. How many fit at the end of the forward pass, and how many when the buffer is
# there? For each of the two subtract what is there only once, and divide the rest by what one more layer needs, with
# `//`. Multiply out the bracket, so that all numbers are integers: 34sbh + 5as²b.
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
# **Target:** 28 layers on 80 GB, and 30 on 80 GiB: so much depends on the unit. GPT-3 has 96 layers, each six times as
# wide.

# %%
shape = dict(batch=4, seq=2048, hidden=2048, heads=16, vocab=50257)
cards = {"32 GB": 32 * 10**9, "80 GB": 80 * 10**9, "80 GiB": 80 * 2**30, "141 GB": 141 * 10**9}
with check.limit(10):
    fitting = {word: largest_model(memory, **shape) for word, memory in cards.items()}
study.bars(fitting, title="Layers of 2,048 that fit, with 4 sequences of 2,048 words")

# %% [markdown] nbgrader={"grade_id": "run_cost_spec"}
# ## 6 · What a run costs (2 points)
#
# How long does a run take, how many hours of GPUs are paid for, and how well are the GPUs used?
#
# | | |
# |---|---|
# | call | `run_cost(parameters, tokens, gpus, peak, achieved, recompute)` |
# | `parameters`, `tokens`, `gpus` | how many there are |
# | `peak` | the FLOP/s that one GPU could do |
# | `achieved` | the FLOP/s that one GPU does, counting everything that it executes |
# | `recompute` | `True` if the forward pass is run once more before the backward pass, to save memory |
# | returns | a dict with four numbers: `"gpu_hours"`, the hours of all GPUs together; `"days"`, how long the run takes; and `"mfu"` and `"hfu"` |
#
# The model needs 6 FLOPs for each parameter and token: 2 in the forward pass and 4 in the backward pass. What is
# recomputed comes on top. All GPUs work at the same time. The **MFU** is what the model needs and the **HFU** is what
# the hardware executes, both as a fraction (0 to 1) of what the GPUs could have done in the time of the run. About 6
# lines.
#
# <details><summary>Hint</summary>
#
# Begin with the seconds that one GPU would need alone: all that is executed, divided by `achieved`. The four numbers
# follow from it.
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
# **Target:** two pairs of numbers that nearly agree. LLaMA's 65 billion parameters read 1.4 trillion tokens, of which
# each of its 2,048 A100 processed 380 a second. BLOOM's step has 2,048 sequences of 2,048 tokens, on 384 A100 and with
# recomputation; its team reports 149 TFLOP/s for each card.

# %%
with check.limit(10):
    llama = run_cost(
        65_200_000_000, 1_400_000_000_000, 2048, 312e12, 6 * 65.2e9 * 380, recompute=False
    )
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
# Here are eight sums as they stand in papers and articles about large models; C and G were really published. Some are
# wrong: they have the wrong unit, a wrong factor, or leave something out. The others are right except for rounding. All
# training is in mixed precision.
#
# | | claim |
# |---|---|
# | A | A layer of GPT-3 (h = 12288, a = 96, b = 1) keeps 3.4 times as many bytes (†) with s = 4096 as with s = 2048. |
# | B | To train one billion parameters on 20 billion tokens takes one A100 (312 TFLOP/s) 11.13 days, at an MFU of 40 %. |
# | C | A vocabulary of 64,000 words, each a vector of 5,120 numbers in fp32, takes 1,250 MB. |
# | D | 7 billion parameters have 112 GB of model states with Adam and 28.5 GB of activations (‡), together 140.5 GB. |
# | E | Two billion parameters, of which 20 million are trained with Adam, have 4.28 GB of model states. |
# | F | With full recomputation, a run with an HFU of 48 % has an MFU of 32 %. |
# | G | If each of 125 layers keeps its input, s·b·h numbers in fp16, they keep 33 GB (b = 32, s = 1024, h = 8192). |
# | H | With SGD and momentum, the model states of 6.67 billion parameters fill a card of 80 GB. |
#
# (†) s·b·h·(34 + 5as/h) for one layer. (‡) As many for each of 32 layers, with b = 1, s = 2048, h = 4096, a = 32.
#
# Write a dict with the letter of each wrong claim, and the number that should stand there instead of the last one: in
# the claim's unit, and within 0.3 %. If A and B were wrong, it could be `{"A": 4.0, "B": 12.5}`.
#
# <details><summary>Hint</summary>
#
# Calculate each sum in bytes, and divide by 10⁹ for GB or by 10⁶ for MB. What do you get if you divide by 2³⁰ or 2²⁰?
# The MFU and the HFU of a run differ by the same factor as two numbers of FLOPs: those that the model needs, and those
# that are executed.
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
# **Target:** four lines. Claim G stands in a famous paper, which says "around 60 GB" about the same model in another
# section: somebody took numbers for bytes.

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
# The next cell was found in somebody's code. After each step it computes the loss of a test set. Its numbers are right,
# but after a while it runs out of memory.


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
# Every step leaves something behind. Copy the function and repair it: two things are held too long, and a third is
# freed too late.
#
# | | |
# |---|---|
# | call | `train_lean(model, optimizer, loss_fn, batches, test)` |
# | `model` | has no gradients and is in the mode `train()` when it comes; some layers may be frozen |
# | `batches`, `test` | a list of pairs (x, y), and one such pair |
# | returns | two lists of **floats**: the loss of each batch before its step, and the loss of the test set after each step, also where it is nan |
# | afterwards | the model has taken the same steps as above, and is in the mode in which it came; what was frozen is still frozen |
# | cost | no more FLOPs than above, and a peak no higher than one forward and backward pass need |
#
# **Invariant:** when the forward pass of a batch begins, nothing is live but the weights, the optimizer states and the
# data. (An output or a loss that a variable of the loop still holds does not count.) An answer that gets all of this
# right and executes more FLOPs earns half of the points.
#
# <details><summary>Hint</summary>
#
# A loss that is a tensor holds its graph, and the graph holds all activations until a backward pass frees them. For the
# test set there is no backward pass. And what is in `p.grad` while the next forward pass runs?
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
# **Target:** hills of the same height, with level ground between them. (The first hill is lower, because momentum comes
# into being with the first step. The pink strip that is always there is the data.)

# %%
with check.limit(30):
    profile = looked_at(train_lean)
memory_timeline(profile, title="Your loop: five steps")

# %% [markdown] nbgrader={"grade_id": "money_or_memory_spec"}
# ## 9 · Money or memory? (2 points, graded by hand)
#
# You rent A100 cards of 80 GB at 2 dollars an hour. Whatever they run, they execute 45 % of their peak of 312 TFLOP/s. You
# train a model of GPT-3's family, as in [the lesson](lesson:walls): with L layers, h = 128L and L heads it has 12h² + 13h
# parameters in each layer and (50,257 + 2,048)·h once. It reads 20 tokens for each parameter, which is about what
# [Hoffmann et al. 2022](paper:hoffmann2022) recommend. Each card holds a copy of the whole model, with Adam in mixed
# precision, and works on one sequence of 2,048 words at a time; count model states and activations, and no buffer.
#
# **Up to which budget is it money that limits the size of the model, and from there on memory? And how do this budget and
# the largest model change if each layer keeps only its input, 2sbh bytes, and the forward pass is run once more?** (The
# backward pass then computes the activations of one layer at a time.)
#
# Answer with a plot and about ten sentences. Your `run_cost` may help. Your teacher gives:
#
# - **1 point for the derivation.** The largest model that fits, for both ways: its layers, its parameters, and the
#   bytes of its model states and its activations. A formula for the price of a model with Ψ parameters, with a reason
#   for each factor, and from it the two budgets in dollars.
# - **1 point for the plot and what it shows.** The size of the largest model against the budget, from 1,000 to 100,000
#   dollars, for both ways, with names and units on both axes; why twice the money does not buy a model of twice the size;
#   between which budgets recomputation makes the model smaller, and from which on larger; and why more cards do not help
#   where memory is the limit.


# %% nbgrader={"grade_id": "money_or_memory_plot", "solution": true}
### BEGIN SOLUTION
S = 2048


def size_and_bytes(layers, recompute):
    """The parameters of the family's model, and the bytes of its states and of its activations at the peak."""
    h = 128 * layers
    parameters = layers * (12 * h * h + 13 * h) + (50_257 + S) * h
    whole_layer = 34 * S * h + 5 * layers * S * S
    activations = layers * 2 * S * h + whole_layer if recompute else layers * whole_layer
    return parameters, 16 * parameters, activations


def price(parameters, recompute):
    """Dollars for 20 tokens per parameter."""
    cost = run_cost(parameters, 20 * parameters, 1, 312e12, 0.45 * 312e12, recompute)
    return 2 * cost["gpu_hours"]


budgets = [10 ** (3 + k / 20) for k in range(41)]
lines = {}
full_at = []
largest = []
for name, recompute in (("keep all", False), ("recompute", True)):
    fitting = [n for n in range(1, 97) if sum(size_and_bytes(n, recompute)[1:]) <= 80 * 10**9]
    most, states, activations = size_and_bytes(fitting[-1], recompute)
    dollars = price(most, recompute)
    print(
        f"{name}: {fitting[-1]} layers, {most / 1e9:.2f} billion parameters, {states / 1e9:.1f} GB "
        f"and {activations / 1e9:.1f} GB, {dollars:,.0f} dollars"
    )
    # the price grows with the square of the size
    sizes = [min(most, most * (budget / dollars) ** 0.5) / 1e9 for budget in budgets]
    lines[name] = (budgets, sizes)
    full_at.append(dollars)
    largest.append(most / 1e9)
study.curves(
    lines,
    points={"the card is full": (full_at, largest)},
    logx=True,
    logy=True,
    xlabel="budget, dollars",
    ylabel="largest model, billion parameters",
    title="Money is the limit, and then memory",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "money_or_memory", "solution": true, "points": 2}
# 26 layers fit if everything is kept: 3.63 billion parameters, with 58.1 GB of model states (16 bytes each) and 20.2 GB
# of activations (26 times 34sbh + 5as²b bytes). If each layer keeps only its input, 28 layers fit: 4.50 billion
# parameters, with 72.1 GB of model states and 1.2 GB of activations, most of which belong to the one layer that is
# being computed again. A model of Ψ parameters takes 6Ψ FLOPs per token, or 8Ψ with recomputation, because the forward
# pass makes up 2Ψ of them. It reads 20Ψ tokens, a card executes 0.45 · 312·10¹² FLOP/s, and 3,600 seconds cost 2
# dollars. So the price is 6Ψ · 20Ψ / (0.45 · 312·10¹²) · 2/3,600 = 4.75·10⁻¹⁶ Ψ² dollars, and a third more with
# recomputation. Money is the limit up to 6,260 dollars if everything is kept, and up to 12,850 dollars with
# recomputation; from there on it is memory.
#
# The price grows with the square of the size, because a larger model costs more per token and also reads more tokens.
# So twice the money buys a model only √2 times as large. Below 6,260 dollars recomputation costs a third more and is
# good for nothing: for the same money the model is √(3/4) times as large, 13 % smaller. It remains the smaller one up
# to 8,350 dollars, which are 4/3 of 6,260. From there on recomputation allows the larger model, in the end 24 % larger,
# for twice the money. Beyond 12,850 dollars both lines are flat. More cards make the run shorter: 3,130 hours of one
# card are 16 days on eight. But each card must hold a copy of the whole model, however many there are. A million
# dollars would pay for 46 billion parameters, whose model states alone would fill nine cards. To spend it, one has to
# cut the model itself.
