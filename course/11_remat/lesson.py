# %% [markdown]
# # 11 · Memory for compute
#
# The backward pass needs what the forward pass has made: for each layer the tensor that went into it, its [activation](term:activation). A network of 64 layers therefore keeps 64 of them until backward has come back to the first layer, and in [The walls](lesson:walls) you saw that they often fill most of the GPU. One way out is to use smaller batches, in pieces whose gradients are added up: that is accumulation, and [What needs the whole batch](lesson:whole_batch) teaches it. But suppose that a single sample is already too large.
#
# Then you can *forget*. Keep only a few activations, throw the others away, and compute them a second time when backward needs them. This is called [activation checkpointing](term:activation-checkpointing), or rematerialization, and it trades memory for compute. How good is the bargain? Take 64 equal layers whose activations are equally large, and allow every layer to run forward at most once more. **How many activations must be alive at the worst moment?**

# %%
guess = 40  # activations, of 64: change this number

# %% [markdown]
# ## On paper: nine layers
#
# Cut a chain of nine layers into three **segments** of three. (An allocator's [segments](term:segment) are something else; we shall meet both.) In forward, keep what each segment begins with, its *checkpoint*, and forget everything inside. In backward, take the last segment first: run its three layers again from the checkpoint, keep their activations this time, go backward through them, and free them. Then do the same with the segment before.
#
# ![A chain of nine layers. Without checkpointing nine activations are kept. With three segments only the three inputs are kept. In backward the last segment runs forward again and then backward, and its activations are freed; then come the second segment and the first.](../course/11_remat/figures/checkpoint_chain.svg)
#
# Follow the picture from top to bottom and count the filled boxes and the dots. The worst moment is the third row: two inputs of other segments and three activations of the segment that has just been computed again, so five instead of nine. The next cell counts step by step. It does not forget the last segment at all, because backward begins there at once.

# %%
from IPython.display import display

from minidist import study


def alive_on_paper(layers, size):
    """Activations alive after each layer's forward, and then at each layer's backward."""
    last = layers - size  # the layer with which the last segment begins
    counts = []
    for done in range(1, layers + 1):
        inputs = min(done, last) // size
        of_last_segment = max(0, done - last)
        counts.append(inputs + of_last_segment)
    for layer in reversed(range(layers)):
        inputs = layer // size  # of the segments before this one
        of_this_segment = layer % size + 1  # those behind it are free again
        counts.append(inputs + of_this_segment)
    return counts


steps = list(range(1, 19))
study.curves(
    {
        "all kept": (steps, alive_on_paper(9, 9)),
        "segments of 3": (steps, alive_on_paper(9, 3)),
    },
    xlabel="nine layers forward, then nine back",
    ylabel="activations alive",
    title="The hill becomes a saw",
)

# %% tags=["maintainer"]
assert max(alive_on_paper(9, 9)) == 9 and max(alive_on_paper(9, 3)) == 5

# %% [markdown]
# ## A checkpoint, naively
#
# How do you make autograd forget? In PyTorch an operator with a backward of its own is a `torch.autograd.Function`. Its `forward` runs without a graph, so nothing that happens inside is remembered unless you save it. Its `backward` receives `dy`, the gradient of the output, and returns one gradient for each input of `forward`. So our forward saves the input and nothing else. Our backward runs the function again, this time *with* a graph, and starts an ordinary backward pass on that small graph.

# %%
import torch
from torch import nn


class Naive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, x, *more):  # the use of `more` comes later
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)  # in here autograd makes no graph

    @staticmethod
    def backward(ctx, dy):
        # detached: the small graph must end here, and not go on into the network
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.fn(x)
        y.backward(dy)  # adds to the parameters' .grad, and fills x.grad
        return None, x.grad, None


def naive_checkpoint(fn, x):
    return Naive.apply(fn, x)


# %% [markdown]
# **Why it is right.** By the chain rule the gradients of a block depend on three things: the function, its input, and the gradient of its output. All three are the same as before. The second run applies the same operators to the same numbers, so it makes the same activations, and the derivatives are evaluated at the same point. There is not even any rounding to excuse: the [oracle](term:oracle) is the block as it is, and the gradients should agree *bit for bit*. We test it on a small block, which can have dropout; and, for later, its input can be data, which needs no gradient.


# %%
def plain(fn, x):
    return fn(x)


def block(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 8))


def gradients(form, dropout=0.0, data=False):
    """The gradients of a block's parameters, when `form` runs it."""
    part = block(dropout)
    x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_(not data)
    form(part, x).square().sum().backward()
    return [p.grad for p in part.parameters()]


def same_bits(form, **choices):
    found = gradients(form, **choices)
    right = gradients(plain, **choices)
    return all(torch.equal(a, b) for a, b in zip(found, right))


print("equal bit for bit:", same_bits(naive_checkpoint))

# %% tags=["maintainer"]
assert same_bits(naive_checkpoint)

# %% [markdown]
# ## Break it: dropout
#
# Now switch on dropout, which sets a random half of the numbers to zero. **What happens?**

# %%
guess_dropout = "an error"  # or "the same gradients", "other gradients"


# %%
def masks(form):
    """Which of 16 numbers dropout keeps, in forward and when backward runs it again."""
    drawn = []

    def dropout_by_hand(x):
        mask = torch.rand(16) < 0.5
        drawn.append("".join("#" if keep else "·" for keep in mask))
        return x * mask

    torch.manual_seed(0)
    form(dropout_by_hand, torch.ones(16, requires_grad=True)).sum().backward()
    return drawn


found_dropout = (
    "the same gradients" if same_bits(naive_checkpoint, dropout=0.5) else "other gradients"
)
forward_mask, again_mask = masks(naive_checkpoint)

# %% tags=["answer"]
study.reveal(
    guess_dropout,
    found_dropout,
    study.table(
        [("forward", forward_mask), ("again, in backward", again_mask)],
        ["run", "numbers that are kept (#)"],
        title="Two runs, two masks",
    ),
    options=["an error", "the same gradients", "other gradients"],
    words="Nothing fails. Backward differentiates another function than the one that forward ran.",
)

# %% [markdown]
# This is the worst kind of bug: the loss usually still falls, a little less well, and nobody looks for the reason. The "same function on the same input" has a hidden third operand, the state of the random generator. So forward must keep that state, and backward must [replay](term:replay) it. And afterwards backward has to put back the state that it found. Otherwise the generator is wound back in every step, and the next forward draws numbers that were already used.


# %%
class Replayed(Naive):
    @staticmethod
    def forward(ctx, *operands):
        ctx.random = torch.get_rng_state()  # 5 kB
        return Naive.forward(ctx, *operands)

    @staticmethod
    def backward(ctx, dy):
        with torch.random.fork_rng(devices=[]):  # puts back what it found
            torch.set_rng_state(ctx.random)
            return Naive.backward(ctx, dy)


def replayed_checkpoint(fn, x):
    return Replayed.apply(fn, x)


forward_mask, again_mask = masks(replayed_checkpoint)
print("forward", forward_mask)
print("again  ", again_mask)
print("equal bit for bit:", same_bits(replayed_checkpoint, dropout=0.5))

# %% tags=["maintainer"]
assert same_bits(replayed_checkpoint, dropout=0.5) and forward_mask == again_mask

# %% [markdown]
# Random numbers are not the only hidden operand. Batch norm moves its running averages each time it runs, so a checkpointed batch norm counts each batch twice; and [autocast](lesson:precision) may be switched off by the time backward runs. The library's version handles both.
#
# ## Break it: data
#
# The first block of a network receives data, and data needs no gradient. **How many of the block's four parameter tensors get a gradient?**

# %%
guess_parameters = 4  # of 4: change this number

# %%
with_data = block()
output = replayed_checkpoint(with_data, torch.ones(4, 8))
if output.requires_grad:
    output.sum().backward()
have_gradients = sum(p.grad is not None for p in with_data.parameters())

# %% tags=["answer"]
study.reveal(
    guess_parameters,
    have_gradients,
    words="Autograd records a Function only if one of its inputs needs a gradient. It does not see the parameters inside the function, so the block is a constant to it.",
)

# %% [markdown]
# In a whole network nothing would fail: the later blocks learn, and the first one never does. The remedy is an empty tensor that needs a gradient and goes in as one input more. It carries no number; it only keeps the Function in the graph.


# %%
def reentrant_checkpoint(fn, x):
    alive = torch.empty(0, requires_grad=True)
    return Replayed.apply(fn, x, alive)


print("equal bit for bit:", same_bits(reentrant_checkpoint, dropout=0.5, data=True))

# %% tags=["maintainer"]
assert have_gradients == 0 and same_bits(reentrant_checkpoint, dropout=0.5, data=True)

# %% [markdown]
# This form is called [reentrant](term:reentrant-checkpointing), because a backward pass enters the autograd engine while another one is running in it.
#
# ## √L segments
#
# Where should the checkpoints be? Look at the extremes first. If the whole network is one block, then all 64 activations come back as soon as backward begins, and nothing is saved. If each layer is a block, 64 inputs are kept, and nothing is saved either. With *L* layers in *k* equal segments, the worst moment has the inputs of the *k* − 1 other segments and the *L*/*k* activations of one segment:
#
# $$\text{alive}(k) = (k-1) + \frac{L}{k}.$$
#
# More segments make the first term larger and the second smaller. The derivative, $1 - L/k^2$, is zero at $k = \sqrt L$, where both terms are about equal and the sum is $2\sqrt L - 1$. That is the whole trick: the memory of a network grows with the root of its depth. **Which k is best for 64 layers?** You can read it from the formula, so let us see whether the formula is right: the meter of [The walls](lesson:walls) measures a real step, on the device `"meta"`, whose tensors have shapes and no data. A layer is a matrix of 1,024 × 1,024 and a tanh, with 34 MB of activations.

# %%
guess_segments = 2  # segments: change this number

# %%
from functools import cache
from itertools import pairwise

from minidist.study import allocator, measure, predict

ROWS = 8192
WIDTH = 1024
EDGE = ROWS * WIDTH * 4  # bytes of an activation


def chain(widths):
    """A layer between each two neighbouring widths."""
    layers = []
    for before, after in pairwise(widths):
        layers.append(nn.Sequential(nn.Linear(before, after, device="meta"), nn.Tanh()))
    return nn.Sequential(*layers)


def profile_of_step(net, form, width=WIDTH):
    """What the meter sees in a forward and a backward."""
    for p in net.parameters():
        p.grad = torch.zeros_like(p)  # so that gradients are there before, and do not count
    x = torch.empty(ROWS, width, device="meta")
    return measure(lambda: form(net, x).sum().backward(), where="meta")


@cache
def measured(layers, form):
    """Activations alive at the peak, FLOPs, and the whole profile."""
    found = profile_of_step(chain([WIDTH] * (layers + 1)), form)
    return round(found.at_peak["activations"] / EDGE, 3), found.flops, found


# %%
def segments_of(k):
    """A form: the chain in k equal segments."""

    def form(net, x):
        size = len(net) // k
        for first in range(0, len(net), size):
            segment = net[first : first + size]
            if first + size < len(net):
                x = reentrant_checkpoint(segment, x)
            else:
                x = segment(x)  # the last one: backward begins here at once
        return x

    return form


in_eight = segments_of(8)
runs = {8: measured(64, in_eight)}
for k in [2, 4, 16, 32]:
    runs[k] = measured(64, segments_of(k))
tried = sorted(runs)


def alive_in_segments(L, k):
    """The worst moment: inputs of the segments before one, and the layers of that one."""
    shorter, longer_ones = divmod(L, k)
    lengths = [shorter + 1] * longer_ones + [shorter] * (k - longer_ones)
    return max(before + length for before, length in enumerate(lengths))


alive_at = {k: alive_in_segments(64, k) for k in range(2, 49)}
valley = [k for k, alive in alive_at.items() if alive == min(alive_at.values())]

# %% tags=["answer"]
study.reveal(
    guess_segments,
    round(64**0.5),
    study.curves(
        {"(k − 1) + L/k": (list(alive_at), list(alive_at.values()))},
        points={"measured": (tried, [runs[k][0] for k in tried])},
        xlabel="segments, k",
        ylabel="activations at the peak",
        title="64 layers: predicted, and run",
    ),
    unit="segments",
    words=f"The valley is flat: any number of segments from {valley[0]} to {valley[-1]} needs no more. The line has steps because 64 layers cannot always be cut into equal segments.",
)

# %% tags=["answer"]
study.reveal(
    guess,
    int(runs[8][0]),
    unit="activations",
    words="This was the question at the top: 7 inputs and the 8 activations of a segment. Segments of unequal lengths can do with a few less, as you will see below.",
)

# %% tags=["maintainer"]
assert all(runs[k][0] == (k - 1) + 64 // k == predict.segments_bytes(64, k, 1, 1) for k in runs)
assert valley == list(range(6, 12)) and runs[8][0] == 15

# %% [markdown]
# Here is the step over time, on a modelled GPU: first with everything kept, then with eight segments, to the same scale. Forward climbs only a little now, one input at a time, and backward is a saw. Every tooth is a segment that is computed again.

# %%
everything = measured(64, plain)
display(study.memory_timeline(everything[2], title="64 layers, everything kept"))
study.memory_timeline(runs[8][2], title="64 layers in 8 segments", most=everything[2].peak)

# %% [markdown]
# In a real network a layer saves more than its input: an attention layer, for instance, saves a dozen tensors. Let a layer save *a* bytes and let the tensor between two layers have *x*. Then $(k-1)x + \frac{L}{k}a$ is least near $k = \sqrt{La/x}$: the more a layer saves, the more segments you want. Drag the ratio and watch the valley move.


# %%
def at_the_peak(k, L, ratio):
    """Alive at the peak, in units of the tensor between two layers; a layer saves `ratio` of it."""
    return {"in segments": (k - 1) + L / k * ratio, "all kept": L * ratio}


study.explore(
    at_the_peak,
    over="k",
    k=[2, 4, 8, 12, 16, 24, 32],
    L=[32, 64, 96, 128],
    ratio=[1, 2, 4, 8, 16],
    labels={"k": "segments", "L": "layers", "ratio": "a layer saves, in tensors"},
    start={"L": 64, "ratio": 1},
    logy=True,
    xlabel="segments, k",
    ylabel="tensors at the peak",
    title="Where is the valley?",
)

# %% [markdown]
# ## What it costs
#
# Every layer that was forgotten runs forward once more. A matrix product of the forward pass has two in backward, one for the gradient of its input and one for that of its weights, so a step is three forwards. **How many times the FLOPs of an ordinary step does one with eight segments have?** Remember that the last segment is not forgotten.

# %%
guess_work = 2.0  # times: change this number

# %% [markdown]
# ### By halves
#
# In the same cell we try a more radical cut. Checkpoint the first *half* of the chain; when that half is computed again, checkpoint *its* first half, and so on. Then $\log_2 L$ inputs are alive and one layer's activation. But the deeper the recursion, the more often the same layer runs: each of the $\log_2 L$ halvings repeats half of all layers, $\frac L2\log_2 L$ forwards in all. The library has both cuts. `checkpoint_sequential` is our loop, which also takes a number that does not divide *L*, and the recursion is short enough to be read here:

# %%
from minidist.train import remat

study.source(remat.checkpoint_recursive, docstring=False)

# %%
from math import log2

from minidist.train.remat import checkpoint_recursive, checkpoint_sequential


def in_root_segments(net, x):
    return checkpoint_sequential(net, None, x)  # None: about √L segments


depths = [4, 16, 64]
ways = {"all kept": plain, "√L segments": in_root_segments, "by halves": checkpoint_recursive}
by_depth = {name: [measured(L, form) for L in depths] for name, form in ways.items()}
fine = list(range(4, 65))
lines = {
    "all kept": (fine, fine),
    "√L segments": (fine, [2 * L**0.5 - 1 for L in fine]),
    "by halves": (fine, [1 + log2(L) for L in fine]),
}
work = {}
for name, results in by_depth.items():
    work[name] = round(results[-1][1] / everything[1], 2)

# %% tags=["answer"]
study.reveal(
    guess_work,
    work["√L segments"],
    study.bars(work, unit="times", title="FLOPs of a step of 64 layers"),
    unit="times",
    words="An ordinary step costs as much as 3 · 64 − 1 = 191 forwards of a layer, since the data need no gradient. 56 layers run once more, which makes 247/191. It is never much more than 4/3. Halves repeat 32 layers for each of six halvings, 192 forwards more.",
)

# %% tags=["maintainer"]
one_forward = 2 * ROWS * WIDTH * WIDTH
for L, whole, root, half in zip(depths, *by_depth.values()):
    assert root[0] == predict.segments_bytes(L, round(L**0.5), 1, 1)
    assert half[0] == predict.halves_bytes(L, 1, 1)
    assert root[1] == whole[1] + predict.segments_forwards(L, round(L**0.5)) * one_forward
    assert half[1] == whole[1] + predict.halves_forwards(L) * one_forward
assert work == {"all kept": 1.0, "√L segments": 1.29, "by halves": 2.01}

# %%
study.curves(
    lines,
    points={name: (depths, [run[0] for run in results]) for name, results in by_depth.items()},
    xlabel="layers, L",
    ylabel="activations at the peak",
    title="L, 2√L − 1, log₂ L + 1: lines predicted, points run",
)

# %% [markdown]
# So 64 layers need 64, 15 or 7 activations, for 1, 1.29 or 2.01 times the work. From 64 to 15 you pay 29 % of a step; from 15 to 7 you pay another 72 %. Halves are worth their price only where nothing else fits.
#
# ## The best plan
#
# Are equal segments best? Early segments come last in backward, when few other inputs are still held, so they may be *longer*. Segment 0 shares the memory with nobody, segment 1 with one input, and so on. Lengths of 10, 10, 9, 8, 7, 6, 5, 4, 3 and 2 add up to 64, and no moment has more than 11 alive. And real layers are not equal: a checkpoint belongs where the tensor between two layers is small, and a cheap layer should be repeated rather than an expensive one.
#
# The library finds the best *plan* by dynamic programming. It goes through the layers from the first to the last. For what comes later only two things about the beginning matter: the bytes that it still holds and the work that it will repeat. So of all plans for the first *i* layers it keeps those that no other plan beats in both. `plan` takes for each layer the cost of its forward and what it saves, the bytes between layers (`edges`), the bytes that its backward needs besides (`work`), and a budget. Here are 16 layers of very different widths. **Where will equal segments lie, compared with the line of best plans?**

# %%
from minidist.train.remat import plan

widths = [128, 1024, 1024, 256, 256, 1024, 64, 64, 512, 512, 512, 64, 256, 1024, 1024, 128, 128]
edges = [ROWS * width * 4 for width in widths]
uneven = {
    "costs": [2 * ROWS * a * b for a, b in pairwise(widths)],
    "memories": [0] * 16,  # tanh keeps its output, which is the next edge
    "edges": edges,
    "work": [a + 2 * b for a, b in pairwise(edges)],  # the output, and both gradients
}


def run_uneven(segments):
    """Bytes beside weights and their gradients at the peak, and FLOPs."""
    found = profile_of_step(
        chain(widths), lambda net, x: checkpoint_sequential(net, segments, x), widths[0]
    )
    own = found.peak - found.at_peak["parameters"] - found.at_peak["gradients"]
    return own - 8, found.flops  # 8 bytes: the loss, and its gradient


equal_cuts = [run_uneven(k) for k in range(1, 7)]
most, least_flops = equal_cuts[0]  # one segment: nothing is forgotten
lowest = plan(**uneven).peak
budgets = [round(lowest + (most - lowest) * i / 15) for i in range(16)]
plans = [plan(**uneven, budget=budget) for budget in budgets]
run_plans = plans[::5]
plan_points = [run_uneven(each) for each in run_plans]

# %%
study.curves(
    {"best plan": ([p.peak for p in plans], [1 + p.repeated / least_flops for p in plans])},
    points={
        "best plan": (
            [peak for peak, _ in plan_points],
            [flops / least_flops for _, flops in plan_points],
        ),
        "k equal segments": (
            [peak for peak, _ in equal_cuts],
            [flops / least_flops for _, flops in equal_cuts],
        ),
    },
    xunit="B",
    xlabel="peak, beside weights and their gradients",
    ylabel="FLOPs, over those without",
    title="16 uneven layers: what memory costs",
)

# %% tags=["maintainer"]
for p, point in zip(run_plans, plan_points):
    assert point == (p.peak, least_flops + p.repeated)
for peak, flops in equal_cuts:
    assert plan(**uneven, budget=peak).repeated <= flops - least_flops
assert plan([1] * 64, [0] * 64, [1] * 65, [0] * 64).peak == 11

# %% [markdown]
# No equal cut lies below the line; none can. The measured points of the plans lie on it: their peak and their FLOPs were predicted exactly. Note how flat the line is on the right: from 321 MB down to 229, which is more than half of all that can be saved, costs 8 % more work.
#
# ## Choose operators, not layers
#
# So far a layer was kept whole or forgotten whole. A transformer's layer offers something better. In fp16 it keeps $sbh\left(34 + 5\frac{as}{h}\right)$ bytes, for *b* sequences of *s* tokens, *h* numbers each and *a* heads; [The walls](lesson:walls) counted them. The second term comes from attention alone: the scores of every token with every other, their softmax, and the dropout on it. These are many bytes, but little work: the product that made them has a small inner size, *h*/*a*, and softmax and dropout are nothing beside the layer's large products.
#
# ![A transformer layer's saved bytes as a bar. 34 parts come from large products and norms and are kept. 64 parts, the scores, softmax and dropout of attention, are forgotten. They are computed again from the queries and keys, which belong to what is kept.](../course/11_remat/figures/selective.svg)
#
# So forget only these: **[selective recomputation](term:selective-recomputation)**. Here is one layer of a model with 530 billion parameters (*h* = 20,480, *a* = 128, *s* = 2,048). It keeps 34 + 64 = 98 *sbh*. **What share of a layer's activations does selective recomputation save, and what does it add to the work?**

# %%
guess_selective = {"saved": 30, "added": 10}  # per cent: change these numbers

# %%
from minidist.models import TransformerLayer
from minidist.train.remat import checkpoint
from minidist.train.selective import ATTENTION, selective


def of_layer(whole_layer=plain, core=None):
    """Bytes kept after forward, in sbh, and FLOPs. `core` is how attention's inner part runs."""
    layer = TransformerLayer(
        20480, 128, dropout=0.1, attention="explicit", device="meta", dtype=torch.float16
    )
    if core is not None:
        inner = layer.attention.attend
        layer.attention.attend = lambda *qkv: core(inner, *qkv)
    x = torch.empty(1, 2048, 20480, device="meta", dtype=torch.float16, requires_grad=True)
    found = measure(lambda: whole_layer(layer, x).sum().backward(), where="meta")
    end_of_forward = next(end for phase, _, end in found.phases if phase == "forward")
    kept = found.timeline.at(end_of_forward - 1e-9)["activations"]
    return kept / x.numel(), found.flops


# ATTENTION lists the operators whose results are forgotten: products of heads, softmax, dropout …
layer_runs = {
    "all kept": of_layer(),
    "selective": of_layer(core=selective(ATTENTION)),
    "full": of_layer(checkpoint),
}
all_bytes, all_flops = layer_runs["all kept"]
layer_rows = []
for name, (kept, flops) in layer_runs.items():
    layer_rows.append(
        (name, f"{kept:.1f}", f"{1 - kept / all_bytes:.0%}", f"{flops / all_flops - 1:.1%}")
    )
selective_bytes, selective_flops = layer_runs["selective"]

# %% tags=["answer"]
study.reveal(
    guess_selective,
    {
        "saved": round(100 * (1 - selective_bytes / all_bytes)),
        "added": round(100 * (selective_flops / all_flops - 1), 1),
    },
    study.table(layer_rows, ["", "kept, in sbh", "saved", "more work"], title="One layer of 530 B"),
    unit="%",
)

# %% tags=["maintainer"]
from minidist.study import published

paper = {
    row["quantity"]: row["value"]
    for row in published("activation_recomputation")
    if "MT" in str(row["model"])
}
assert round(all_bytes) == 98 and round(selective_bytes) == 34
assert round(layer_runs["full"][0]) == 2
assert paper["selective_saves_activation"] == 65 == round(100 * (1 - selective_bytes / all_bytes))
assert selective_flops / all_flops - 1 < paper["selective_flops_overhead"] / 100 == 0.016
assert f"{selective_flops / all_flops - 1:.1%}" == "0.3%"

# %% [markdown]
# The bytes are those of the paper, which reports 65 %. For the work it reports 1.6 %; we need less, 0.3 %, because of attention's two products only the first, *q·k*ᵀ, has to run again. (The 1.6 % come out if attention's products in backward are counted a second time, too.) Full checkpointing saves nearly everything and costs a third. So use selective recomputation first, and full checkpointing only for what then still does not fit.
#
# How can operators be chosen? No function runs twice here. While forward runs, a *dispatch mode* (PyTorch's way to see each operator as it is called) writes down a recipe for each result that is to be forgotten: the operator and its operands. Backward cooks what it needs. Modern attention kernels do the same thing inside the kernel; [Operators and graphs](lesson:operators) builds one, and with it nothing of this section remains to be saved.
#
# ## Keep nothing: reversible blocks
#
# Could one compute activations *backward*, from the output, instead of forward from a checkpoint? For that a block must have an inverse. A [reversible block](term:reversible-block) is built so that it always has one. It cuts its input into two streams and adds to each a function of the other:
#
# ![A reversible block with two streams. Forward, y1 is x1 plus F of x2, and then y2 is x2 plus G of y1. Back, x2 is y2 minus G of y1, and then x1 is y1 minus F of x2.](../course/11_remat/figures/reversible_block.svg)
#
# Try it with numbers. Let F double and G square, and let x₁ = 1, x₂ = 3. Then y₁ = 1 + 6 = 7 and y₂ = 3 + 49 = 52. Back: x₂ = 52 − 49 = 3, and x₁ = 7 − 6 = 1. Squaring has no inverse, and needs none, because G is evaluated at y₁, which is at hand. Only the last output of the whole network has to be kept. **If 2 blocks need some memory at the peak, how many times as much do 8 blocks need?**

# %%
guess_depth = 4.0  # times: change this number

# %%
from minidist.train.reversible import ReversibleBlock, ReversibleSequence


def half_block():
    return nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)
    )


def as_ordinary_blocks(net, x1, x2):
    for each in net.blocks:
        x1, x2 = each(x1, x2)
    return x1, x2


def as_reversible(net, x1, x2):
    return net(x1, x2)


def run_blocks(count, form):
    """Activations at the peak, and FLOPs."""
    blocks = [ReversibleBlock(half_block(), half_block()) for _ in range(count)]
    net = ReversibleSequence(blocks).to("meta")
    found = profile_of_step(net, lambda net, x: sum(form(net, *x.chunk(2, -1))), 2 * WIDTH)
    return found.at_peak["activations"] / EDGE, found.flops


counts = [2, 4, 8]
kept_runs = [run_blocks(count, as_ordinary_blocks) for count in counts]
reversed_runs = [run_blocks(count, as_reversible) for count in counts]

# %% tags=["answer"]
study.reveal(
    guess_depth,
    round(reversed_runs[-1][0] / reversed_runs[0][0], 1),
    study.curves(
        {
            "kept": (counts, [alive for alive, _ in kept_runs]),
            "reversible": (counts, [alive for alive, _ in reversed_runs]),
        },
        xlabel="blocks",
        ylabel="activations at the peak, measured",
        title="Reversible blocks: the same memory at any depth",
    ),
    unit="times",
    words="F and G run once more each, so the work is 4/3 of a step, as with checkpoints.",
)

# %% tags=["maintainer"]
assert len({round(alive, 1) for alive, _ in reversed_runs}) == 1
assert kept_runs[2][0] > 3.5 * kept_runs[0][0]
assert all(abs(b / a - 4 / 3) < 1e-3 for (_, a), (_, b) in zip(kept_runs, reversed_runs))

# %% [markdown]
# The library's block says the same in two methods. `self.part` is what F or G adds, and `self.sum` an addition; they are methods because of what comes next.

# %%
display(study.source(ReversibleBlock.forward))
study.source(ReversibleBlock.inverse, docstring=False)

# %% [markdown]
# A block alone is an ordinary module with ordinary memory. What saves the memory is `ReversibleSequence`: it gives each half of a block a backward of its own, which receives the output from the block behind it, computes the input with a graph for F or G, and hands the input on to the block before it.
#
# ### Break it: rounding
#
# On paper (*x* + *f*) − *f* is *x*. On a computer the sum is rounded, and a little of *x* is lost. Each block adds such an error, and the way back through the remaining blocks amplifies it. There is a remedy: if both streams are multiples of $2^{-14}$, and F and G are rounded to such multiples too, then all sums are exact, like sums of whole numbers, and every bit comes back. The library's blocks do this with `bits=14`.


# %% tags=["exact-numbers"]
def shift(x):
    """A function without sums, so that every machine rounds alike."""
    return (0.3 * x.roll(1, -1)).clamp(-1, 1)


def largest_error(blocks, dtype, bits=None):
    """Forward through the blocks and back: how far is what comes back from the input?"""
    each = ReversibleBlock(shift, shift, bits)
    x = tuple(torch.arange(-128, 128).reshape(2, 8, 16).to(dtype) / 1024)
    y = x
    for _ in range(blocks):
        y = each(*y)
    for _ in range(blocks):
        y = each.inverse(*y)
    return max(float((a - b).abs().max()) for a, b in zip(x, y))


block_counts = [1, 4, 16, 64]
rounding = {
    "fp32": [largest_error(n, torch.float32) for n in block_counts],
    "fp64": [largest_error(n, torch.float64) for n in block_counts],
    "fp32, 14 bits": [largest_error(n, torch.float32, bits=14) for n in block_counts],
}
study.curves(
    {name: (block_counts, [max(e, 1e-20) for e in errors]) for name, errors in rounding.items()},
    logy=True,
    xlabel="blocks",
    ylabel="largest error (0 is drawn as 1e-20)",
    title="What comes back from the outputs",
)

# %% tags=["maintainer"]
assert 1e-4 < rounding["fp32"][3] < 1e-3 and rounding["fp64"][3] < 1e-11
assert rounding["fp32, 14 bits"] == [0, 0, 0, 0]

# %% [markdown]
# With 14 bits the error is exactly zero at every depth; the line lies at the bottom because a logarithmic axis has no zero. In fp32 only two or three digits are left after 64 blocks. The symptom in a real run is a gradient that is a little wrong, in the early layers most, which no loss curve shows: compare it with the ordinary blocks' gradient. And reversible blocks have another price, which no checkpoint has: the network must be built of them from the start. You cannot make an existing model reversible without changing what it computes.
#
# ## Break it: out of memory, with most of it free
#
# Checkpointing makes many tensors that come and go, between gradients that stay. An allocator puts a gradient wherever an activation has just died, and soon the free memory is in pieces. This is [fragmentation](term:fragmentation), which you met in [The walls](lesson:walls). Here it is small enough to follow: a modelled GPU of 60 MiB that hands out its memory in segments of 20. Six activations of 8 MiB and six gradients of 2 MiB come in turn. Then the activations go, so 48 MiB are free. **How large a tensor still finds a place?**

# %%
guess_place = "48 MiB"  # or "20 MiB", "12 MiB", "8 MiB"

# %%
from minidist.study.predict import MiB


def card_with_holes():
    card = allocator.Allocator(60 * MiB)
    activations = []
    for _ in range(6):
        activations.append(card.malloc(8 * MiB, "activations"))
        card.malloc(2 * MiB, "gradients")
    for activation in activations:
        card.free(activation)
    return card


fitting = []
for size in [48, 20, 12, 8]:
    try:
        card_with_holes().malloc(size * MiB)
        fitting.append(size)
    except allocator.OutOfMemory:
        pass

# %% tags=["answer"]
study.reveal(
    guess_place,
    f"{max(fitting)} MiB",
    allocator.blocks(card_with_holes(), title="60 MiB in three segments, 48 of them free", lines=3),
    options=["48 MiB", "20 MiB", "12 MiB", "8 MiB"],
)

# %% tags=["maintainer"]
assert fitting == [8]

# %% [markdown]
# What helps? Either lay the long-lived tensors side by side before the others come, or let the pieces be put together: with *expandable segments* (in PyTorch a setting of the allocator, `expandable_segments:True`) the device maps new memory to the end of a segment that is already there. The next cell replays the recorded allocations of one step of a model with 1.2 billion parameters, with every layer checkpointed, on a modelled GPU of 8 GiB.


# %%
def outcome(recording, **settings):
    try:
        allocator.replay(recording, allocator.Allocator(allocator.CARD, **settings))
        return "fits"
    except allocator.OutOfMemory as why:
        return f"out of memory, with {why.free / why.capacity:.0%} free"


recording = allocator.backward_in_pieces()
gradients_first = allocator.backward_in_pieces(first=True)
tried_out = {
    "as it is": outcome(recording),
    "sizes rounded, so that holes fit": outcome(recording, divisions=4),
    "expandable segments": outcome(recording, expandable=True),
    "one buffer of gradients, made first": outcome(gradients_first),
}
study.table(list(tried_out.items()), ["what is done", "the step"])

# %% tags=["maintainer"]
assert "free" in tried_out["as it is"]
assert tried_out["expandable segments"] == "fits"
assert tried_out["one buffer of gradients, made first"] == "fits"

# %% [markdown]
# ## When not to use it
#
# **When activations are not the peak.** Checkpointing lowers nothing else. Take a GPT of 1.5 billion parameters (48 layers, *h* = 1,600) with Adam in mixed precision, whose model states take 16 bytes per parameter. How much of *all* memory is saved, with one sequence of 1,024 tokens and with sixteen? The cell computes it by formula.

# %%
gpt2 = predict.Transformer(48, 1600, 25, vocab=50257, context=1024)
model_states = predict.states(predict.parameters(gpt2)).total
saved = {}
for sequences in [1, 16]:
    full_layer = predict.activations(gpt2, sequences)
    input_only = predict.activations(gpt2, sequences, recompute="full")
    all_kept = model_states + 48 * full_layer
    selective_only = model_states + 48 * predict.activations(gpt2, sequences, recompute="selective")
    seven_segments = model_states + 6 * input_only + 7 * full_layer  # of 7 layers at most
    saved[f"selective, batch {sequences}"] = round(100 * (1 - selective_only / all_kept))
    saved[f"√L, batch {sequences}"] = round(100 * (1 - seven_segments / all_kept))
study.bars(saved, unit="%", title="Saved, of all memory")

# %% [markdown]
# With one sequence the model states are most of the memory, and even √L segments save less than a quarter of it; with sixteen they save nearly three quarters. Look first at what your peak is made of.
#
# **When memory is not short.** A third more work buys nothing if the batch fits already. If it nearly fits, checkpoint a few layers and not all. And where accumulation is possible it comes first, since it costs no work at all. Checkpointing also raises [HFU](term:hfu) without raising [MFU](term:mfu): the GPU is busier and the model learns no faster.
#
# ## The library's file
#
# [remat.py](file:minidist/train/remat.py) has our reentrant form under the name `checkpoint_reentrant`, for any number of inputs. That form has a weakness: the parameters are out of `autograd.grad`'s sight, and hooks on parameters run in a backward pass within a backward pass. The better form leaves autograd's graph as it is and removes only the tensors in it. PyTorch has [saved-tensor hooks](term:saved-tensor-hook) for this: one function is called with each tensor that an operator saves, and what it returns is stored in its place; a second one is called when backward wants the tensor back.
#
# ![Saved-tensor hooks. Forward saves the tensors a, b and c, and three empty slots are kept instead. Backward asks for c: the function runs again and fills all three slots in order. Then c, b and a are read, and each slot is emptied as it is read.](../course/11_remat/figures/slots.svg)
#
# So `checkpoint` stores an empty slot for every saved tensor:

# %%
study.source(checkpoint, docstring=False)

# %% [markdown]
# `repeatable` takes the tensors out of the operands, and gives a function that runs `fn` on them again. `Save` keeps these tensors in autograd's own way, so that autograd notices if somebody changes them in place. The slots themselves are simple. The first `read` finds its slot empty and has all of them filled; each read empties its slot, so memory falls as backward proceeds.

# %%
study.source(remat.Slots)

# %% [markdown]
# To fill them, the function runs again under hooks of its own, and whatever it saves this time goes into the slots, in the same order. Two details are worth reading. If a tensor has another shape than the first time, the function did not do the same thing twice, and the error says so. And when the last slot is full, the rest of the function is not needed: an exception stops it, which can save the last product of a block.

# %%
study.source(remat.fill_by_repeating)

# %% [markdown]
# The random numbers are replayed as in our version, for all generators of CPU and GPUs, and put back afterwards.

# %%
study.source(remat.RandomState.again)

# %% [markdown]
# The rest is quickly named. `Replay` does the same for autocast, and `restoring` lends batch norm a copy of its running averages. `checkpoint_sequential`, `checkpoint_recursive` and `plan` you have used. Selective recomputation has [selective.py](file:minidist/train/selective.py), with the same slots and with recipes to fill them; reversible blocks have [reversible.py](file:minidist/train/reversible.py). Does the better form agree with the oracle?

# %%
print("equal bit for bit:", same_bits(checkpoint, dropout=0.5, data=True))

# %% tags=["maintainer"]
assert same_bits(checkpoint, dropout=0.5, data=True)

# %% [markdown]
# ## In real processes, and on a cluster
#
# Does it get on with [data parallelism](lesson:data_parallel), which averages gradients *while* backward runs, now that backward runs forwards too? Four real processes, with 15 samples each, against the serial gradient of all 60:

# %%
from torch.nn.functional import cross_entropy

from minidist.comm import launch
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.tasks import digits


class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint_sequential(self, None, x)


def flat_gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def program(comm, task):
    layers = mlp([64, 32, 32, 10], dtype=torch.float64)
    net = DataParallel(Checkpointed(*layers), comm)
    mine = torch.arange(60)[comm.rank :: comm.size]
    cross_entropy(net(task.x[mine]), task.y[mine]).backward()
    return flat_gradient(net)


task = digits()
serial = mlp([64, 32, 32, 10], dtype=torch.float64)
cross_entropy(serial(task.x[:60]), task.y[:60]).backward()
right = flat_gradient(serial)
found = launch(program, 4, task)
print("within rounding:", all(float((g - right).abs().max()) < 1e-12 for g in found))

# %% tags=["maintainer"]
assert all(float((g - right).abs().max()) < 1e-12 for g in found)

# %% [markdown]
# In the course's training script, [examples/train_gpt.py](file:examples/train_gpt.py), it is a flag: `--recompute` takes `none`, `selective` or `full`. (`selective` needs `--attention explicit`, because the script's usual attention is a kernel that keeps no scores.) On one machine, and on two:
#
# ```
# torchrun --nproc-per-node 4 examples/train_gpt.py --dp 4 --attention explicit --recompute selective
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_gpt.py --dp 16 --recompute full
# ```
#
# PyTorch's own version is `torch.utils.checkpoint.checkpoint(fn, x, use_reentrant=False)`, which works with saved-tensor hooks as well.
#
# ## Takeaways
#
# - A checkpoint keeps a block's input and runs the block again in backward: the same operators on the same numbers, so the same gradients bit for bit.
# - Hidden operands must be replayed: random numbers above all, then autocast and running averages. Without that, nothing fails and the gradients are wrong.
# - √L segments keep $2\sqrt L - 1$ activations instead of *L*, for at most a third more work. Halves keep $\log_2 L + 1$, for much more.
# - Uneven layers want a plan. Transformers want selective recomputation: here 65 % less, for 0.3 % more work.
# - Reversible blocks keep nothing, and what comes back is rounded unless sums are exact.
# - Lower the peak, or you have lowered nothing; and free memory in pieces is not free.
#
# ## Further reading
#
# - paper:chen2016 Segments, √L, and the recursion; sections 3 and 4.
# - paper:korthikanti2023 Bytes of a transformer layer (Table 2) and selective recomputation (section 5).
# - paper:gomez2017 Reversible residual networks, with the algorithm of the way back.
# - paper:jain2020 The best plan for graphs that are not chains.
