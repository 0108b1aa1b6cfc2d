# %% [markdown]
# # 11 · Memory for compute
#
# Backward needs what forward has made: the output of each layer, its **activation**. So a network of 64 layers keeps
# 64 of them, and they are what fills the GPU (lesson 01). Keep only every eighth, and compute the others again when
# backward comes to them: at most a third more work. **How many activations are alive at the peak?**

# %%
import torch
from torch import nn

from minidist import study

guess = 8  # activations: change this number

# %% [markdown]
# ## On paper: 9 layers
#
# A layer makes one activation, which its backward needs. Cut nine layers into segments of three: forward keeps what a
# segment begins with, and all of the last segment. Backward takes the last one first, and fills each before it is used.
# **Predict** the peak.


# %%
def on_paper(layers, size):
    """How many activations are alive, step by step, with segments of `size` layers."""
    last = layers - size  # where the last segment begins
    forward = [min(done, last) // size + max(0, done - last) for done in range(1, layers + 1)]
    # inputs before it, and its own
    return forward + [i // size + i % size + 1 for i in reversed(range(layers))]


both = {f"segments of {size}": on_paper(9, size) for size in (9, 3)}
assert [max(row) for row in both.values()] == [9, 5]
study.curves(
    {name: (range(1, 19), row) for name, row in both.items()},
    xlabel="layers forward, then back",
    ylabel="alive",
    title="Nine activations, or five: two inputs, and a segment of three",
)

# %% [markdown]
# There are two ways to pay for memory with compute: batches in small pieces (**accumulation**), and work done again
# (**checkpointing**). Pieces first.
#
# ## Accumulation: six numbers
#
# Cut a batch into k micro-batches, add up their gradients, step once. The memory is that of one micro-batch (metered in
# the last picture). Each loss is a mean, so divide it by k. Then let the six numbers be tokens of three sentences, of
# one, two and three tokens: **predict** what comes out of the same loop.


# %%
def naive(loss, micros):
    for micro in micros:
        (loss(micro) / len(micros)).backward()


def gradient(accumulate, micros, *more):
    w = torch.zeros(1, requires_grad=True)
    accumulate(lambda targets: (w - targets).square().mean() / 2, micros, *more)
    return round(w.grad.item(), 6)


six = torch.tensor([6.0, 6.0, 6.0, 1.0, 1.0, 1.0])
assert gradient(naive, [six]) == gradient(naive, six.split(2)) == -3.5
print("the gradient, of the batch and of 3 micro-batches of 2:", gradient(naive, six.split(2)))


# %%
def by_tokens(loss, micros, weights):
    for micro, weight in zip(micros, weights):
        (loss(micro) * weight / sum(weights)).backward()


sentences = six.split([1, 2, 3])
rows = [
    ("the batch", gradient(naive, [six])),
    ("by micro-batch", gradient(naive, sentences)),
    ("by tokens", gradient(by_tokens, sentences, [1, 2, 3])),
]
assert rows[0][1] == rows[2][1] == -3.5 and rows[1][1] == -4.333333
study.table(rows, ["", "gradient"])

# %% [markdown]
# By micro-batch, the token of the short sentence counts three times as much as one of the long sentence. Nothing fails;
# it is another loss. On a small GPT, with pieces of 48, 4, 30 and 6 letters, and the library's two forms:

# %%
from minidist.models import gpt, mlp
from minidist.tasks import digits, text

net, lengths = gpt(1, 16, 2, vocab=256, context=48, dtype=torch.float64), [48, 4, 30, 6]
pieces = [text()[i : i + n + 1] for i, n in zip(range(0, 4000, 1000), lengths)]
loss = lambda piece, how="mean": nn.functional.cross_entropy(
    net(piece[None, :-1])[0], piece[1:], reduction=how
)
want = torch.autograd.grad(
    sum(loss(piece, "sum") for piece in pieces) / sum(lengths), net.tokens.weight
)[0]

# %%
from minidist.parallel.accumulate import accumulate, accumulate_naive


def off(run, *more):
    """By how many per cent the gradient of the embedding is wrong."""
    net.zero_grad()
    run(loss, pieces, *more)
    return round(100 * ((net.tokens.weight.grad - want).norm() / want.norm()).item(), 1)


wrong = {"by micro-batch": off(accumulate_naive), "by tokens": off(accumulate, lengths)}
assert wrong["by tokens"] == 0 and wrong["by micro-batch"] > 20
study.bars(wrong, unit="%", title="How far the gradient of the embedding is off")

# %% [markdown]
# ## A larger batch wants a larger learning rate
#
# k micro-batches make a batch k times as large, so an epoch has a k-th of the steps. Keep the rate, and the model goes
# a k-th of the way. Rules: k times the rate (**linear**), or √k times (**root**). A linear model on the digits, one
# epoch, micro-batches of 16, five seeds. **Predict** how far the linear rule holds.

# %%
from minidist.train.schedule import scaled

task = digits()
SEEDS = range(5)
KS = (1, 2, 4, 8, 11, 22)


def epoch(seed, k, rate):
    w = torch.zeros(64, 10, dtype=torch.float64, requires_grad=True)
    order = torch.randperm(1437, generator=torch.Generator().manual_seed(seed))[:1408]
    for part in order.split(16 * k):
        (grad,) = torch.autograd.grad(
            nn.functional.cross_entropy(task.x[part] @ w, task.y[part]), w
        )
        w.data -= rate * grad
    return nn.functional.cross_entropy(task.x @ w, task.y).item()


# %%
torch.set_num_threads(1)  # products so small are slower on two cores
rates = {
    "the same": lambda k: 0.2,
    "root": lambda k: scaled(0.2, k, "root").lr,
    "linear": lambda k: scaled(0.2, k, "linear").lr,
}
losses = {
    rule: {k: sorted(epoch(s, k, rate(k)) for s in SEEDS) for k in KS}
    for rule, rate in rates.items()
}
# the worst of one, the best of another
assert losses["linear"][8][4] < losses["root"][8][0] < losses["the same"][8][0]
assert losses["linear"][22][0] > losses["the same"][22][4] > 2
study.curves(
    {rule: (KS, [row[k][2] for k in KS]) for rule, row in losses.items()},
    xlabel="k",
    ylabel="loss after an epoch, median of five seeds",
    title="The linear rule holds, and then it breaks",
)

# %% [markdown]
# The linear rule holds to about k = 11, and at 22 it is worse than no rule, with every seed: try, do not trust. (Adam:
# root, with other betas. Lesson 25 goes further.)
#
# ## Batch norm is not fooled
#
# It normalizes by the mean and the variance of what it sees: a micro-batch. So the outputs are another function's. And
# its running averages move k times a step. One of the two can be mended, by another momentum: 1 − (1 − m)^(1/k).
# **Predict** which.

# %%
from minidist.parallel.accumulate import batch_norm_gap, momentum_for

torch.manual_seed(0)
with_norm = nn.Sequential(
    nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
).double()
x = torch.randn(64, 8, dtype=torch.float64)
gaps = {
    k: (batch_norm_gap(with_norm, x, k), batch_norm_gap(with_norm, x, k, adjusted=True))
    for k in (1, 2, 4, 8)
}
assert abs(momentum_for(0.1, 8) - 0.01308) < 1e-5 and gaps[8][1].mean < 0.02 < 1 < gaps[8][0].mean
assert gaps[8][1].outputs == gaps[8][0].outputs > 1 / 3
rows = [
    (
        k,
        momentum_for(0.1, k),
        *(
            f"{value:.1%}"
            for value in (
                plain.outputs,
                plain.gradients,
                plain.forgotten[1],
                plain.mean,
                mended.mean,
            )
        ),
    )
    for k, (plain, mended) in gaps.items()
]
study.table(
    rows,
    [
        "k",
        "momentum",
        "outputs off",
        "gradients off",
        "old averages left",
        "running mean off",
        "mended",
    ],
)

# %% [markdown]
# The averages can: they are off by 1.5 % in place of 430 %. With 8 micro-batches the outputs stay off by a third and
# more, whatever the momentum. Larger micro-batches help, or another norm, or SyncBatchNorm over ranks (lesson 06).
#
# ## Checkpointing, step 1: run it twice
#
# The micro-batch is 1, and still too large. Then forget: run a block without a graph and keep its input. In backward
# run it again, with a graph. The oracle is the block as it is: the same operators on the same numbers, so gradients
# should be equal **to the bit**.


# %%
class Naive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, x, *_):  # more inputs come in step 3
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)  # in here autograd makes no graph

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.fn(x).backward(dy)
        return None, x.grad, None


# %%
def block(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(dropout), nn.Linear(32, 8))


def gradients(form, dropout=0.0, data=False):
    part, x = block(dropout), torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_(not data)
    form(part, x).square().sum().backward()
    return [p.grad for p in part.parameters()]


plain, equal = lambda fn, *x: fn(*x), lambda some, others: all(map(torch.equal, some, others))
assert equal(gradients(Naive.apply), gradients(plain))
print("equal to the bit")

# %% [markdown]
# ## Step 2: break it with dropout
#
# **Predict:** the same, with dropout of a half. No error comes. What does backward see?


# %%
def masks(form):
    """Which of 16 numbers dropout keeps, in forward and when backward runs it again."""
    kept = []

    def fn(x):
        kept.append(torch.rand(16) < 0.5)  # dropout, by hand
        return x * kept[-1]

    torch.manual_seed(0)
    form(fn, torch.ones(16, requires_grad=True)).sum().backward()
    return ["".join("·#"[int(keep)] for keep in mask) for mask in kept]


assert not equal(gradients(Naive.apply, 0.5), gradients(plain, 0.5))
print("forward {}\nagain   {}\nthe gradients are others".format(*masks(Naive.apply)))

# %% [markdown]
# Backward differentiates another function than forward ran. The loss still falls, a little worse: nobody notices. So
# keep the state of the random generator, and **replay** it; afterwards put back that of the moment, or the next step
# draws the same numbers again.


# %%
class Replayed(Naive):
    @staticmethod
    def forward(ctx, *given):
        ctx.random = torch.get_rng_state()  # 5 kB
        return Naive.forward(ctx, *given)

    @staticmethod
    def backward(ctx, dy):
        with torch.random.fork_rng(devices=[]):  # puts back what was there
            torch.set_rng_state(ctx.random)
            return Naive.backward(ctx, dy)


assert equal(gradients(Replayed.apply, 0.5), gradients(plain, 0.5))
print("forward {}\nagain   {}\nequal to the bit".format(*masks(Replayed.apply)))

# %% [markdown]
# ## Step 3: break it with data
#
# The first block's input is data, which needs no gradient. **Predict:** what do its parameters get?


# %%
def checkpointed(fn, x):
    return Replayed.apply(fn, x, torch.empty(0, requires_grad=True))


one, two = Replayed.apply(block(), torch.ones(4, 8)), checkpointed(block(), torch.ones(4, 8))
print(f"the output needs a gradient: {one.requires_grad}; with one more input: {two.requires_grad}")
assert equal(gradients(checkpointed, 0.5, data=True), gradients(plain, 0.5, data=True))

# %% [markdown]
# **None.** An output needs a gradient if an input does, and autograd does not see the parameters inside `fn`. In a
# network the first block would never learn, in silence. An empty tensor that needs a gradient goes in, and mends it.
#
# ## Step 4: √L segments
#
# One block of everything: 64 activations are back as soon as backward begins. Each layer a block: 64 inputs are kept.
# Between them, with L layers in k segments: k − 1 inputs, and the L/k activations of one segment. The best k is near
# √L. The meter of lesson 01 measures 64 layers, each 34 MB, on the device `"meta"`, which has no data. **Predict** the
# curve.

# %%
from functools import cache, partial, reduce
from itertools import pairwise

from minidist.study import allocator, measure, predict

ROWS, W = 8192, 1024
EDGE = ROWS * W * 4  # bytes of an activation


def chain(widths):
    """A layer between each two widths."""
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(*w, device="meta"), nn.Tanh()) for w in pairwise(widths))
    )


# %%
def step(net, form, width=W):
    """The profile of a forward and backward. (Gradients have their place before it.)"""
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    x = torch.empty(ROWS, width, device="meta")
    return measure(lambda: form(net, x).sum().backward(), where="meta")


@cache
def metered(layers, form):
    """Activations alive at the peak, FLOPs, and the whole profile."""
    found = step(chain([W] * (layers + 1)), form)
    return round(found.at_peak["activations"] / EDGE, 3), found.flops, found


# %%
from minidist.study.predict import segments_bytes, segments_forwards
from minidist.train.remat import checkpoint_sequential

in_segments = {k: lambda net, x, k=k: checkpoint_sequential(net, k, x) for k in (2, 8, 32)}
runs = {k: metered(64, form)[0] for k, form in in_segments.items()}
peaks = {k: segments_bytes(64, k, 1, 1) for k in range(2, 65)}
assert all(runs[k] == peaks[k] for k in runs) and min(peaks.values()) == peaks[8] == 15
name = "(k − 1) + L/k"
study.curves(
    {name: (list(peaks), list(peaks.values()))},
    points={name: (list(runs), list(runs.values()))},
    xlabel="segments, k",
    ylabel="activations at the peak",
    title="64 layers: predicted, and run",
)

# %%
from IPython.display import display

kept_64, in_8 = metered(64, plain), metered(64, in_segments[8])
for title, (_, flops, profile) in (("kept", kept_64), ("8 segments", in_8)):
    title = f"64 layers, {title}: {flops / kept_64[1]:.2f} times the work"
    display(study.memory_timeline(profile, title=title, most=kept_64[2].peak))

# %% [markdown]
# 15 in place of 64. (The line has steps: the largest segment decides.) Forward climbs only a little now, and backward
# is a saw: every tooth is a segment, computed again. The work is that of 64 − 8 layers' forwards more, as the last
# segment was never thrown away. A backward costs two forwards, so it is at most 4/3 of a step.
#
# Or **by halves**: checkpoint the first half, and when it is computed again, its first half. Then log₂ L inputs are
# enough, and at each of log₂ L levels half of the layers run again. **Predict** peak and work for L = 4 … 64.

# %%
from minidist.study.predict import halves_bytes, halves_forwards
from minidist.train.remat import checkpoint_recursive

Ls, forward = (4, 16, 64), 2 * ROWS * W * W
root_segments = lambda net, x: checkpoint_sequential(net, None, x)
ways = {"all kept": plain, "√L segments": root_segments, "by halves": checkpoint_recursive}
ran = {name: [metered(L, form) for L in Ls] for name, form in ways.items()}
for L, (held, flops, _), (root, more, _), (half, most, _) in zip(Ls, *ran.values()):
    assert (held, root, half) == (L, segments_bytes(L, round(L**0.5), 1, 1), halves_bytes(L, 1, 1))
    assert more == flops + segments_forwards(L, round(L**0.5)) * forward <= 1.34 * flops
    assert most == flops + halves_forwards(L) * forward

# %%
from math import log2

fine = range(4, 65)
lines = {
    "all kept": fine,
    "√L segments": [2 * L**0.5 - 1 for L in fine],
    "by halves": [1 + log2(L) for L in fine],
}
display(
    study.curves(
        {name: (fine, line) for name, line in lines.items()},
        xlabel="layers, L",
        points={name: (Ls, [run[0] for run in rows]) for name, rows in ran.items()},
        ylabel="activations at the peak",
        title="L, 2√L − 1, log₂ L + 1: lines predicted, points run",
    )
)
work = {
    f"L = {L}, {name}": round(rows[i][1] / ran["all kept"][i][1], 2)
    for i, L in enumerate(Ls)
    for name, rows in list(ran.items())[1:]
}
study.bars(work, title="FLOPs of a step, over those without checkpoints: √L takes at most 4/3")

# %% [markdown]
# ## Step 5: the best plan
#
# Is that the best? Early segments come last in backward, when few inputs are held, so they may be *longer*: 10, 10, 9,
# 8 … 2 layers need 11 activations. And real layers are uneven. Which segments, and which layers to keep? A **plan**, by
# dynamic programming: after i layers two numbers matter, bytes held and work to repeat. **Predict** where √L lies:

# %%
from minidist.train.remat import plan

widths = [128, 1024, 1024, 256, 256, 1024, 64, 64, 512, 512, 512, 64, 256, 1024, 1024, 128, 128]
edges = [ROWS * w * 4 for w in widths]  # bytes between the 16 layers
costs = [2 * ROWS * a * b for a, b in pairwise(widths)]
# in backward: the output, and both gradients
work = [a + 2 * b for a, b in pairwise(edges)]
uneven = dict(costs=costs, memories=[0] * 16, edges=edges, work=work)


def run_uneven(form):
    found = step(chain(widths), form, widths[0])
    # 8: the loss, twice
    return found.peak - found.at_peak["parameters"] - found.at_peak["gradients"] - 8, found.flops


# %%
most, flops = run_uneven(plain)
equal_ones = [
    run_uneven(lambda net, x, k=k: checkpoint_sequential(net, k, x)) for k in (1, 2, 3, 4, 5, 6)
]
even = torch.linspace(plan(**uneven).peak, most, 30, dtype=torch.float64).long().tolist()
budgets = sorted(even + [peak for peak, _ in equal_ones])
plans = [plan(**uneven, budget=budget) for budget in budgets]
tried = plans[::4]
for p in tried:
    assert run_uneven(lambda net, x, p=p: checkpoint_sequential(net, p, x)) == (
        p.peak,
        flops + p.repeated,
    )
assert all(plan(**uneven, budget=peak).repeated <= total - flops for peak, total in equal_ones)
study.curves(
    {"best plan": ([p.peak for p in plans], [1 + p.repeated / flops for p in plans])},
    points={
        "best plan": ([p.peak for p in tried], [1 + p.repeated / flops for p in tried]),
        "k equal segments": ([a for a, _ in equal_ones], [b / flops for _, b in equal_ones]),
    },
    xunit="B",
    xlabel="peak, beside weights and their gradients",
    ylabel="FLOPs, over those without",
    title="16 uneven layers: what memory costs",
)

# %% [markdown]
# Peak and FLOPs of a plan are those measured, to the byte; and no equal cut lies below the line.
#
# ## Step 6: choose operators, not layers
#
# A transformer's layer keeps sbh(34 + 5as/h) bytes in fp16 (s tokens, b sequences, h numbers each, a heads; lesson 01).
# The second term is the scores of attention, their softmax and its dropout: many bytes, little work. Drop these only:
# **selective** recomputation. Here is a layer of a model of 530 billion parameters (h = 20,480, a = 128, s = 2,048): it
# keeps 34 + 64 = 98 sbh. **Predict** what is left.

# %%
from minidist.models import TransformerLayer
from minidist.train.remat import checkpoint
from minidist.train.selective import ATTENTION, selective


def of_layer(form, core=plain):
    """Of sbh, what is kept after forward; and FLOPs of forward and backward."""
    layer = TransformerLayer(
        20480, 128, dropout=0.1, attention="explicit", device="meta", dtype=torch.float16
    )
    layer.attention.attend = partial(core, layer.attention.attend)
    x = torch.empty(1, 2048, 20480, device="meta", dtype=torch.float16, requires_grad=True)
    found = measure(lambda: form(layer, x).sum().backward(), where="meta")
    end = next(end for phase, _, end in found.phases if phase == "forward")
    # just before backward begins
    return found.timeline.at(end - 1e-9)["activations"] / x.numel(), found.flops


# %%
from minidist.study import published

layers = {
    "all kept": of_layer(plain),
    "selective": of_layer(plain, selective(ATTENTION)),
    "full": of_layer(checkpoint),
}
paper = {
    row["quantity"]: row["value"]
    for row in published("activation_recomputation")
    if "MT" in str(row["model"])
}
(held, flops), (kept, more) = layers["all kept"], layers["selective"]
shape = predict.Transformer(105, 20480, 128, vocab=51200, context=2048)
assert (
    round(held) == 34 + 5 * 128 * 2048 // 20480 == 98
    and round(kept) == 34
    and round(layers["full"][0]) == 2
)
assert paper["selective_saves_activation"] == 65 == round(100 * predict.selective_saving(shape))
assert round(100 * (1 - kept / held)) == 65
assert more / flops - 1 < paper["selective_flops_overhead"] / 100
study.table(
    [
        (name, f"{a:.1f}", f"{1 - a / held:.0%}", f"{b / flops - 1:.1%}")
        for name, (a, b) in layers.items()
    ],
    ["", "kept, in sbh", "saved", "work more"],
    title="A layer of 530 B; the paper: 65 % for 1.6 %",
)

# %% [markdown]
# (34 and 2 sbh as its Table 2 says, and some for the norms. Of work we need less: of the two products only q·kᵀ must
# run again, 0.3 %; both would be 0.5 %. The paper's 1.6 % comes out if attention's products in backward are counted
# again, too.) So checkpoint in full only what does not fit otherwise.
#
# ## Step 7: keep nothing
#
# A **reversible** block cuts its input in two. From the outputs it gets the inputs back:
#
# ```
# y1 = x1 + F(x2)        x2 = y2 − G(y1)
# y2 = x2 + G(y1)        x1 = y1 − F(x2)
# ```
#
# So nothing is kept but the last output. **Predict** the memory of 2, 4 and 8 blocks.

# %%
from minidist.train.reversible import ReversibleBlock, ReversibleSequence


def half():
    return nn.Sequential(nn.LayerNorm(W), nn.Linear(W, W), nn.GELU(), nn.Linear(W, W))


def reversible(blocks, run):
    net = ReversibleSequence(ReversibleBlock(half(), half()) for _ in range(blocks)).to("meta")
    found = step(net, lambda net, x: sum(run(net, *x.chunk(2, -1))), 2 * W)
    return found.at_peak["activations"] / EDGE, found.flops


ordinary = lambda net, *x: reduce(lambda pair, part: part(*pair), net.blocks, x)

# %%
Bs = (2, 4, 8)
kept, reversed_ = ([reversible(B, run) for B in Bs] for run in (ordinary, lambda net, *x: net(*x)))
assert len({round(a, 1) for a, _ in reversed_}) == 1 and kept[2][0] > 3.5 * kept[0][0]
assert all(abs(b / a - 4 / 3) < 1e-3 for (_, a), (_, b) in zip(kept, reversed_))
study.curves(
    {"kept": (Bs, [a for a, _ in kept]), "reversible": (Bs, [a for a, _ in reversed_])},
    xlabel="blocks",
    ylabel="activations at the peak, measured",
    title="Reversible blocks: 4/3 of the work, at any depth",
)

# %% [markdown]
# Exact? (x + f) − f is x on paper, not on a computer: each block adds a rounding, and the way back amplifies those of
# the blocks after it. With `bits`, sums are of multiples of 2^−bits, and exact.

# %% tags=["exact-numbers"]
# of the neighbour; no sums, so every machine rounds alike
shift = lambda x: (0.3 * x.roll(1, -1)).clamp(-1, 1)


def back(blocks, dtype, bits=None):
    block, x = (
        ReversibleBlock(shift, shift, bits),
        tuple(torch.arange(-128, 128).reshape(2, 8, 16).to(dtype) / 1024),
    )
    y = reduce(lambda y, _: block(*y), range(blocks), x)
    y = reduce(lambda y, _: block.inverse(*y), range(blocks), y)
    return max((a - b).abs().max().item() for a, b in zip(x, y))


depths, kinds = (1, 4, 16, 64), {"fp32": torch.float32, "fp64": torch.float64}
errors = {name: (depths, [back(n, dtype) for n in depths]) for name, dtype in kinds.items()}
assert (
    1e-4 < errors["fp32"][1][3] < 1e-3
    and errors["fp64"][1][3] < 1e-11
    and back(64, torch.float32, bits=14) == 0
)
study.curves(
    errors,
    logy=True,
    xlabel="blocks",
    ylabel="largest error of what comes back",
    title="With 14 bits: 0",
)

# %% [markdown]
# ## Break it: out of memory, and most of it free
#
# Checkpointing makes tensors that come and go, between gradients that stay. An allocator puts a gradient where an
# activation just died: **fragmentation**. Small enough to follow: a GPU of 60 MiB, which it gets in segments of 20, a
# line of the picture each. Six activations of 8 MiB and six gradients of 2 come in turn, and the activations go.
# **Predict:** is there place for 12?
#
# What helps? Gradients first, next to each other; or pieces that can be put together. The second cell tries it with a
# recorded step of 1.2 billion parameters, every layer checkpointed, on a GPU of 8 GiB (lesson 01 has its picture).

# %%
from minidist.study.predict import MiB

card = allocator.Allocator(60 * MiB)
pairs = [(card.malloc(8 * MiB, "activations"), card.malloc(2 * MiB, "gradients")) for _ in range(6)]
for activation, _ in pairs:
    card.free(activation)
try:
    card.malloc(12 * MiB)
except allocator.OutOfMemory as why:
    print(why)
allocator.blocks(card, title="48 of 60 MiB are free, and 12 find no place", lines=3)


# %%
def outcome(recording, **words):
    try:
        allocator.replay(recording, allocator.Allocator(allocator.CARD, **words))
        return "fits"
    except allocator.OutOfMemory as why:
        return f"out of memory, {why.free / why.capacity:.0%} free"


recorded, first = allocator.backward_in_pieces(), allocator.backward_in_pieces(first=True)
tried = {
    "as it is": outcome(recorded),
    "sizes rounded, so that holes fit": outcome(recorded, divisions=4),
    "segments that grow": outcome(recorded, expandable=True),
    "one buffer of gradients, first": outcome(first),
}
assert (
    "free" in tried["as it is"]
    and tried["segments that grow"] == tried["one buffer of gradients, first"] == "fits"
)
study.table(list(tried.items()), ["what is done", ""])

# %% [markdown]
# ## When not to use it
#
# **When activations are not the peak.** Checkpointing lowers nothing else. A GPT of 1.5 billion parameters (48 layers,
# h = 1,600), trained with Adam in fp16: how much is saved of *all*, with one sequence of 1,024, and with sixteen?

# %%
gpt2 = predict.Transformer(48, 1600, 25, vocab=50257, context=1024)
states = predict.states(predict.parameters(gpt2)).total
alive = {
    (B, how): 48 * predict.activations(gpt2, B, recompute=how)
    for B in (1, 16)
    for how in ("none", "selective")
}
alive |= {
    (B, "√L"): 6 * predict.activations(gpt2, B, recompute="full") + 7 * predict.activations(gpt2, B)
    for B in (1, 16)
}  # 7 segments of at most 7 layers
share = {
    f"{B} sequence{'s' * (B > 1)}, {how}": 1
    - (states + alive[B, how]) / (states + alive[B, "none"])
    for B in (1, 16)
    for how in ("selective", "√L")
}
study.bars(
    {name: round(100 * part) for name, part in share.items()},
    unit="%",
    title="Saved, of all memory",
)

# %% [markdown]
# **When time is short and memory is not**: a third more work buys nothing if the batch fits. And selective is cheaper
# than √L, which is cheaper than halves. Reversible blocks change the model.
#
# ## The library's version
#
# `checkpoint_reentrant` is ours of step 3, for any number of inputs. A backward within a backward has its price: the
# parameters are out of `autograd.grad`'s sight. `checkpoint` works by **saved-tensor hooks** instead. The graph stays as
# it is; where autograd would keep a tensor, `add` gives it an empty slot. Backward reads the slots, the first `read` has
# all of them filled, and each is emptied at once.

# %%
from minidist.train import remat

assert equal(gradients(checkpoint, 0.5, data=True), gradients(plain, 0.5, data=True))
display(study.source(checkpoint, docstring=False))
study.source(remat.Slots)

# %% [markdown]
# To fill them, the function runs again, and what it saves this time goes where it belongs, in the same order. With the
# last slot filled, the rest of the function is not needed: it is stopped by an exception, which skips for instance the
# last product of a block.

# %%
study.source(remat.fill_by_repeating)

# %% [markdown]
# What `repeat` puts back before it calls the function again: the state of the random generators, as in step 2, autocast
# (lesson 09), and the running averages of batch norm, which count a batch once, though it runs twice.

# %%
study.source(remat.RandomState.again)

# %% [markdown]
# ## On processes, and on a cluster
#
# `DataParallel` averages gradients while backward runs; backward now runs forwards, too. Four processes of this
# machine, micro-batches of 3, 5 and 7 samples, √L segments. Under `torchrun` the same program runs, with
# `program(from_env(), digits())` at the end of a script:
#
# ```
# torchrun --nproc-per-node 4 train.py
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py
# ```

# %%
from minidist.parallel.data import DataParallel


class Checkpointed(nn.Sequential):
    def forward(self, x):
        return checkpoint_sequential(self, None, x)


def program(comm, task):
    net = DataParallel(Checkpointed(*mlp([64, 32, 32, 10], dtype=torch.float64)), comm)
    micros = torch.arange(60)[comm.rank :: comm.size].split([3, 5, 7])
    loss = lambda part: nn.functional.cross_entropy(net(task.x[part]), task.y[part])
    accumulate(loss, micros, [len(part) for part in micros], net)
    return torch.cat([p.grad.flatten() for p in net.parameters()])


# %%
from minidist.comm import launch

serial = mlp([64, 32, 32, 10], dtype=torch.float64)
nn.functional.cross_entropy(serial(task.x[:60]), task.y[:60]).backward()
wanted = torch.cat([p.grad.flatten() for p in serial.parameters()])
assert all((grad - wanted).abs().max() < 1e-12 for grad in launch(program, 4, task))
print("the serial gradient of 60 samples, from four processes")


# %%
def micro_batches(net, x):
    *others, last = x.split(ROWS // 4)
    for part in others:
        net(part).sum().backward()
    return net(last)


answers = {name: int(rows[-1][0]) for name, rows in ran.items()}
answers["best plan"] = plan([1] * 64, [0] * 64, [1] * 65, [0] * 64).peak
answers["4 micro-batches"], work, _ = metered(64, micro_batches)
assert [*answers.values()][:4] == [64, 15, 7, 11] and work == kept_64[1]
study.bars(
    {"your guess": guess} | answers, title="So how many activations are alive, of 64 layers?"
)

# %% [markdown]
# ## Takeaways
#
# - Micro-batches first: they cost no work. Accumulate by what counts (tokens), not by micro-batch. Scale the rate, and
#   try it. Batch norm sees micro-batches.
# - A checkpoint keeps a block's input and runs it again: same numbers, same random numbers, to the bit.
# - √L segments: 2√L − 1 activations in place of L, for at most a third more work. Halves: log₂ L + 1, for more.
# - Uneven layers want a plan; transformers want selective recomputation: 65 % less, for 2 % of work or less.
# - Reversible blocks keep nothing; what comes back is rounded.
# - Lower the peak, or nothing. Free memory in pieces is not memory.
#
# ## Further reading
#
# - paper:chen2016 Sections 3 and 4.
# - paper:korthikanti2023 Table 2, section 5.
# - paper:gomez2017
# - paper:jain2020 Plans for graphs that are no chains.
# - paper:goyal2017 The linear rule; sections 2.1 and 3.
# - paper:ioffe2015
