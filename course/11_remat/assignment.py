# %% [markdown] nbgrader={"grade_id": "top"}
# # 11 Memory for compute: exercises
#
# You write a checkpoint for any operands, mend a hidden operand, cut uneven layers into segments, forget only what is cheap to compute, and walk a block back.
#
# Seven exercises, 17 points. After each of the first six, run the check: it reads gradients, counts what is alive and what runs again, and says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The last exercise is graded by hand. What is refused is the library's own (`minidist.train`, `minidist.parallel`), and PyTorch's `checkpoint`.

# %% nbgrader={"grade_id": "setup"}
import torch
from torch import nn

import minicheck as check

from minidist import study

# %% [markdown] nbgrader={"grade_id": "recompute_spec"}
# ## 1 · A checkpoint for any operands (3 points)
#
# The lesson's checkpoint takes one tensor. A layer of a transformer takes several: activations, a mask that needs no gradient, positions that are whole numbers.
#
# | | |
# |---|---|
# | class | `Recompute`, a `torch.autograd.Function`, called by `checkpoint` below |
# | `forward(ctx, fn, alive, *xs)` | returns `fn(*xs)`, a tensor; `alive` is an empty tensor that needs a gradient, and is not used |
# | `xs` | one or more tensors; some need a gradient, some do not, and some hold whole numbers, which cannot have one |
# | `backward(ctx, dy)` | returns as many values as `forward` has inputs: a gradient for each of `xs` that needs one, and None for `fn` and `alive`; what it returns for other `xs`, such as whole numbers, is dropped; `dy` is not changed |
# | `fn` | uses parameters that are not among its inputs, and draws no random numbers |
# | cost | `fn` runs once in forward and once in backward |
# | memory | between the two, of all tensors of `fn` only `xs` are kept; after `backward`, nothing |
#
# **Invariant:** the gradients of `xs` and of the parameters are those of `fn(*xs)`; what stood in `.grad` is added to. One block may be used several times, and one tensor may go into several blocks, or twice into one. Perhaps none of `xs` needs a gradient, and the parameters do. About 9 lines.
#
# <details><summary>Hint</summary>
#
# `ctx.needs_input_grad` has a bool for each input of `forward`, `fn` and `alive` among them. A small graph must end at each of `xs`, also at those that another part of the network has made.
#
# </details>


# %% nbgrader={"grade_id": "recompute", "solution": true}
class Recompute(torch.autograd.Function):
    """fn(*xs), of which only xs are kept; backward runs fn again."""

    @staticmethod
    def forward(ctx, fn, alive, *xs):
        ### BEGIN SOLUTION
        ctx.fn = fn
        ctx.save_for_backward(*xs)
        return fn(*xs)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        xs = [x.detach() for x in ctx.saved_tensors]
        for x, needed in zip(xs, ctx.needs_input_grad[2:]):
            x.requires_grad_(needed)
        with torch.enable_grad():
            y = ctx.fn(*xs)
        y.backward(dy)
        return None, None, *[x.grad for x in xs]
        ### END SOLUTION


def checkpoint(fn, *xs):
    return Recompute.apply(fn, torch.empty(0, requires_grad=True), *xs)


# %% nbgrader={"grade_id": "recompute_test", "points": 3}
check.recompute(Recompute)

# %% [markdown] nbgrader={"grade_id": "recompute_target"}
# **Target:** 18 and 8 activations. Six layers look up rows by their positions, and each keeps three tensors of that size. With checkpoints five inputs are held (the first is data), and the three tensors of one layer.


# %%
def kept(form):
    """Bytes of activations at the peak of a step of six layers, over those of one activation."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()).to("meta") for _ in range(6)]
    positions = torch.zeros(512, dtype=torch.int64, device="meta")
    x = torch.empty(512, 64, device="meta")

    def step():
        y = x
        for layer in layers:
            y = form(lambda y, at, layer=layer: layer(y[at]).sigmoid(), y, positions)
        y.sum().backward()

    return study.measure(step, where="meta").at_peak["activations"] / (512 * 64 * 4)


with check.limit(10):
    yours = round(kept(checkpoint), 1)
study.bars(
    {"all kept": round(kept(lambda fn, *xs: fn(*xs)), 1), "yours": yours},
    title="Activations at the peak",
)

# %% [markdown] nbgrader={"grade_id": "twice_spec"}
# ## 2 · Find the bug (2 points)
#
# `twice(fn, buffers)` makes two functions: `first(*args)` runs fn, and `again(*args)` runs it, on arguments of its own, as the last `first` ran it that was not repeated yet (backward goes through the blocks last first). The next cell was found in somebody's code. It replays random numbers as the lesson does, and they are right. But fn has another hidden operand: `buffers`, tensors that it reads and changes in place whenever it runs, as batch norm does with its running averages.


# %% nbgrader={"grade_id": "twice_broken"}
def twice(fn, buffers):
    """(first, again): again(*args) runs fn as the last first(*args) did that was not repeated yet."""
    states = []

    def first(*args):
        states.append(torch.get_rng_state())
        return fn(*args)

    def again(*args):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(states.pop())
            return fn(*args)

    return first, again


# %%
def averages(make, steps):
    """The running average that is in use in two blocks, for each step, in forward and when backward runs them."""
    average = torch.zeros(1)

    def fn(x):
        used.append(average.item())
        average.mul_(0.5).add_(0.5 * x)

    first, again = make(fn, [average])
    rows = []
    for step in range(steps):
        used = []
        for run in (first, first, again, again):  # two blocks forward, and back
            run(torch.ones(1))
        rows.append([step, *(f"{value:.3f}" for value in used)])
    return study.table(rows, ["step", "block 0", "block 1", "1 again", "0 again"])


averages(twice, 3)

# %% [markdown] nbgrader={"grade_id": "twice_task"}
# A run that is repeated should read the average that it read the first time, and each step should count two batches, not four. Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `twice(fn, buffers)` |
# | `buffers` | a list of tensors, of any dtype; none of them needs a gradient; read and changed in place by fn |
# | returns | `(first, again)`, as above; each runs fn once, and returns what it gives, a tensor |
#
# **Invariant:** `again` finds PyTorch's random generator and the buffers as its `first` found them. Afterwards both are as they were before `again`, also when fn raises an error there; that run then counts as repeated. They stay the same tensors. `first` leaves both where fn does. Nothing that fn was given is kept, only the generator's state and the buffers' values. About 18 lines.
#
# <details><summary>Hint</summary>
#
# Write one function that takes down both, and one that puts both back, with `copy_`. `again` needs each of them twice or once: where?
#
# </details>


# %% nbgrader={"grade_id": "twice", "solution": true}
def twice(fn, buffers):
    """(first, again): again(*args) runs fn as the last first(*args) did that was not repeated yet."""
    ### BEGIN SOLUTION
    states = []

    def look():
        return torch.get_rng_state(), [b.clone() for b in buffers]

    def put(state):
        torch.set_rng_state(state[0])
        for b, value in zip(buffers, state[1]):
            b.copy_(value)

    def first(*args):
        states.append(look())
        return fn(*args)

    def again(*args):
        now = look()
        put(states.pop())
        try:
            return fn(*args)
        finally:
            put(now)

    return first, again
    ### END SOLUTION


# %% nbgrader={"grade_id": "twice_test", "points": 2}
check.twice(twice)

# %% [markdown] nbgrader={"grade_id": "twice_target"}
# **Target:** in each line the two runs of a block have the same number, and block 0 begins with 0, 0.750 and 0.938.

# %%
with check.limit(10):
    rows = averages(twice, 3)
rows

# %% [markdown] nbgrader={"grade_id": "segments_spec"}
# ## 3 · Uneven layers in segments (2 points)
#
# Layers differ: layer l keeps `memories[l]` bytes, its own input among them. The tensor between two layers has `edge` bytes. Cut the layers into segments, and checkpoint each. When backward is in segment j (the first is j = 0), alive are the j inputs of the segments before it, and the bytes of its own layers.
#
# | | |
# |---|---|
# | call | `segments(memories, edge, budget)` |
# | `memories` | a list with one or more whole numbers, each at least 1; **not changed** |
# | `edge` | a whole number, 0 or more |
# | `budget` | how many bytes may be alive at once, 0 or more |
# | returns | the lengths of the segments, the first one first: as few segments as possible, each of 1 layer or more, which add up to all layers |
# | error | `ValueError` if no cut fits |
#
# **Invariant:** j · edge + the bytes of segment j's layers are at most the budget, for each j. The layers stay in their order. About 12 lines.
#
# <details><summary>Hint</summary>
#
# How many layers may segment 0 take? Can it be of use to take fewer than that?
#
# </details>


# %% nbgrader={"grade_id": "segments", "solution": true}
def segments(memories, edge, budget):
    """Lengths of as few segments as possible, of which never more than `budget` bytes are alive."""
    ### BEGIN SOLUTION
    lengths = []
    at = 0
    while at < len(memories):
        room = budget - len(lengths) * edge
        length = 0
        while at < len(memories) and memories[at] <= room:
            room -= memories[at]
            length += 1
            at += 1
        if length == 0:
            raise ValueError(f"layer {at} does not fit into {budget} bytes")
        lengths.append(length)
    return lengths
    ### END SOLUTION


# %% nbgrader={"grade_id": "segments_test", "points": 2}
check.segments(segments)

# %% [markdown] nbgrader={"grade_id": "segments_target"}
# **Target:** 11 for 64 equal layers, as in the lesson. If a quarter of the layers is four times as large, you need 16 wherever they stand; equal segments need 19 if the large ones come first, and 31 if they come last.


# %%
def equal_cut(memories):
    """The least that any number of equal segments needs, where an edge has 1."""
    L = len(memories)
    peaks = []
    for k in (1, 2, 4, 8, 16, 32, 64):
        size = L // k
        peaks.append(max(j + sum(memories[j * size : (j + 1) * size]) for j in range(k)))
    return min(peaks)


def smallest(memories):
    """The smallest budget that is enough for `segments`."""
    for budget in range(1, 1000):
        try:
            segments(memories, 1, budget)
            return budget
        except ValueError:
            pass


SHAPES = {
    "all equal": [1] * 64,
    "large ones first": [4] * 16 + [1] * 48,
    "large ones last": [1] * 48 + [4] * 16,
}
rows = []
with check.limit(10):
    for name, memories in SHAPES.items():
        rows.append((name, sum(memories), equal_cut(memories), smallest(memories)))
study.table(rows, ["64 layers", "all kept", "equal segments", "yours"])

# %% [markdown] nbgrader={"grade_id": "gated_layer_spec"}
# ## 4 · Forget only what is cheap (3 points)
#
# The lesson's `selective` chooses operators of attention. Choose some yourself, in the other half of a modern transformer layer:
#
# ```
# a = x @ w1
# b = x @ w3
# y = (silu(a) * b) @ w2        where silu(a) = a · sigmoid(a)
# ```
#
# Autograd keeps four tensors as wide as a: a, b, silu(a), and silu(a) · b. A checkpoint keeps none of them, and repeats two large products. There is something between: keep **two** of these four, and repeat **no** product.
#
# | | |
# |---|---|
# | class | `GatedLayer`, a `torch.autograd.Function`, called as `GatedLayer.apply(x, w1, w3, w2)` |
# | `x`, `w1`, `w3`, `w2` | (rows, h), (h, wide), (h, wide), (wide, h); all need a gradient, and none is changed |
# | `forward(ctx, x, w1, w3, w2)` | returns y |
# | `backward(ctx, dy)` | returns the gradients of x, w1, w3 and w2; `dy` is not changed |
# | cost | the FLOPs of 3 products of matrices in forward, and of 6 in backward; as many operators on single numbers as you like |
# | memory | between the two, only the four inputs and two tensors of (rows, wide), in the dtype of x; after `backward`, nothing |
#
# **Invariant:** output and gradients are autograd's, but for rounding, whatever numbers x has, also zeros and hundreds. About 14 lines.
#
# <details><summary>Hint</summary>
#
# With s = sigmoid(a): the derivative of silu is s · (1 + a · (1 − s)). Or let autograd make it: detached a and b, `torch.enable_grad()`, and a backward with dy @ w2.T. Which of the six products needs a tensor that you have forgotten?
#
# </details>


# %% nbgrader={"grade_id": "gated_layer", "solution": true}
class GatedLayer(torch.autograd.Function):
    """(silu(x @ w1) * (x @ w3)) @ w2, of which two wide tensors are kept."""

    @staticmethod
    def forward(ctx, x, w1, w3, w2):
        ### BEGIN SOLUTION
        a = x @ w1
        b = x @ w3
        ctx.save_for_backward(x, w1, w3, w2, a, b)
        return (a * a.sigmoid() * b) @ w2
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        x, w1, w3, w2, a, b = ctx.saved_tensors
        s = a.sigmoid()
        silu = a * s
        dw2 = (silu * b).T @ dy
        dwide = dy @ w2.T
        db = dwide * silu
        da = dwide * b * s * (1 + a * (1 - s))
        dw1 = x.T @ da
        dw3 = x.T @ db
        dx = da @ w1.T + db @ w3.T
        return dx, dw1, dw3, dw2
        ### END SOLUTION


# %% nbgrader={"grade_id": "gated_layer_test", "points": 3}
check.gated_layer(GatedLayer)

# %% [markdown] nbgrader={"grade_id": "gated_layer_target"}
# **Target:** yours keeps half of the wide tensors, with the FLOPs of autograd.


# %%
def autograds(x, w1, w3, w2):
    return (nn.functional.silu(x @ w1) * (x @ w3)) @ w2


def wide_and_flops(form):
    """Tensors of (rows, wide) after forward, and FLOPs of forward and backward."""
    shapes = ((512, 128), (128, 512), (128, 512), (512, 128))
    given = [torch.empty(shape, device="meta", requires_grad=True) for shape in shapes]
    found = study.measure(lambda: form(*given).sum().backward(), where="meta")
    end = next(end for phase, _, end in found.phases if phase == "forward")
    kept = found.timeline.at(end - 1e-9)["activations"] - sum(x.nbytes for x in given)
    return round(kept / (512 * 512 * 4)), found.flops


rows = [("autograd", *wide_and_flops(autograds))]
with check.limit(10):
    rows.append(("yours", *wide_and_flops(GatedLayer.apply)))
study.table(rows, ["", "wide tensors kept", "FLOPs of a step"])

# %% [markdown] nbgrader={"grade_id": "reversible_backward_spec"}
# ## 5 · Walk back through a block (3 points)
#
# ```
# y1 = x1 + f(x2)
# y2 = x2 + g(y1)
# ```
#
# | | |
# |---|---|
# | call | `reversible_backward(f, g, y1, y2, dy1, dy2)` |
# | `f`, `g` | modules, with parameters; whether they train, and which parameters do, stays as it is |
# | `y1`, `y2`, `dy1`, `dy2` | outputs and their gradients; not changed, and afterwards none of them needs a gradient |
# | called | also in the `backward` of a Function, where autograd makes no graph unless you say so |
# | returns | `x1, x2, dx1, dx2`, without graphs |
# | afterwards | the gradients of the parameters of f and g are added to their `.grad` |
# | cost | f and g run once each |
#
# **Invariant:** inputs and gradients are those of the block, but for rounding. About 12 lines.
#
# <details><summary>Hint</summary>
#
# First g: take y1 detached, that requires a gradient, and run g on it with a graph. That gives x2; and its backward
# with dy2 gives what comes to y1 through g. Add dy1: that is the whole gradient of y1. Then f in the same way.
#
# </details>


# %% nbgrader={"grade_id": "reversible_backward", "solution": true}
def reversible_backward(f, g, y1, y2, dy1, dy2):
    """(x1, x2, dx1, dx2); the gradients of the parameters are added to theirs."""
    ### BEGIN SOLUTION
    y1 = y1.detach().requires_grad_()
    with torch.enable_grad():
        part = g(y1)
    part.backward(dy2)
    x2 = (y2 - part).detach().requires_grad_()
    dx1 = dy1 + y1.grad
    with torch.enable_grad():
        part = f(x2)
    part.backward(dx1)
    return (y1 - part).detach(), x2.detach(), dx1, dy2 + x2.grad
    ### END SOLUTION


# %% nbgrader={"grade_id": "reversible_backward_test", "points": 3}
check.reversible_backward(reversible_backward)

# %% [markdown] nbgrader={"grade_id": "reversible_backward_target"}
# **Target:** the inputs come back through 50 blocks. The first roundings are amplified on the way; fp64 has digits to
# spare.


# %% tags=["exact-numbers"]
class Shift(nn.Module):
    """A neighbour's number, weighed and cut off."""

    def __init__(self, dtype):
        super().__init__()
        self.w = nn.Parameter(torch.full((8,), 0.3, dtype=dtype))

    def forward(self, x):
        return (self.w * x.roll(1, -1)).clamp(-1, 1)


def errors(dtype, blocks=50):
    made = [[Shift(dtype) for _ in "fg"] for _ in range(blocks)]
    xs, found = [tuple(torch.arange(-32, 32).reshape(2, 4, 8).to(dtype) / 256)], []
    with torch.no_grad():
        for f, g in made:
            y1 = xs[-1][0] + f(xs[-1][1])
            xs.append((y1, xs[-1][1] + g(y1)))
    y, dy = xs.pop(), (torch.ones(4, 8, dtype=dtype),) * 2
    for f, g in reversed(made):
        *y, dx1, dx2 = reversible_backward(f, g, *y, *dy)
        dy = dx1, dx2
        found.append(max((a - b).abs().max().item() for a, b in zip(y, xs.pop())))
    return found


lines = {}
with check.limit(10):
    for name, dtype in (("fp32", torch.float32), ("fp64", torch.float64)):
        lines[name] = range(1, 51), [max(e, 1e-17) for e in errors(dtype)]
study.curves(
    lines,
    logy=True,
    xlabel="blocks back",
    ylabel="largest error (0 is drawn as 1e-17)",
    title="What comes back",
)

# %% [markdown] nbgrader={"grade_id": "predict_remat_spec"}
# ## 6 · Predict, then count (2 points)
#
# 100 equal layers. Each keeps 400 MB (400,000,000 bytes), of which 100 MB are its input. A backward costs two forwards.
#
# - `plain_bytes`: bytes kept without checkpoints
# - `segment_bytes`: at the peak, in 10 equal segments, all but the last checkpointed (the input of the first counts as the others: it is one of the 400 MB of its segment when that runs again)
# - `best`: of the numbers of segments that divide 100, the one that needs the fewest bytes
# - `work`: a step with 10 segments, over a step without checkpoints
# - `halves`: bytes at the peak by halves (lesson, *By halves*), if there are only 64 of these layers
# - `halves_work`: a step of these 64 layers by halves, over a step without checkpoints
# - `share`: the part (0 to 1) of a transformer layer's activations that selective recomputation saves, for 128 heads, 2,048 tokens, and a hidden size of 20,480
# - `uneven`: the fewest activations alive at the peak for 100 layers that keep their input only, if segments may have unequal lengths
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_remat", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_remat.numbers(STUDENT)
plain_bytes = segment_bytes = best = work = halves = halves_work = share = uneven = None
### BEGIN SOLUTION
plain_bytes = 100 * 400e6
segment_bytes = 9 * 100e6 + 10 * 400e6
best = 20
work = (3 + 0.9) / 3
halves = 6 * 100e6 + 400e6
halves_work = (3 + 6 / 2) / 3
share = 64 / (34 + 64)
uneven = 14  # 14 + 13 + … + 1 is 105, and 13 + 12 + … + 1 only 91
### END SOLUTION

# %% nbgrader={"grade_id": "predict_remat_test", "points": 2}
check.predict_remat(
    plain_bytes, segment_bytes, best, work, halves, halves_work, share, uneven, of=STUDENT
)

# %% [markdown] nbgrader={"grade_id": "predict_remat_target"}
# **Target:** your two points on the line, one of them at its lowest.

# %%
ks = [1, 2, 4, 5, 10, 20, 25, 50, 100]
need = [(k - 1) * 100e6 + 100 // k * 400e6 for k in ks]
study.curves(
    {"100 layers": (ks, need)},
    points={"yours": ([10, best], [segment_bytes, need[ks.index(best)]])},
    logx=True,
    yunit="B",
    xlabel="segments",
    ylabel="bytes at the peak",
    title="Segments of 100 layers",
)

# %% [markdown] nbgrader={"grade_id": "how_long_spec"}
# ## 7 · How long may a sequence be? (2 points, graded by hand)
#
# A transformer of 48 layers, with h = 1,600 and a = 25 heads, trains on one GPU with one sequence of s tokens a step. Its model states take 25 GB, and 80 GB are there (1 GB is 10⁹ bytes). Count nothing else but the layers' activations, by the formula of the lesson, sh(34 + 5as/h) bytes for a layer; its input is 2sh of them. A layer's forward takes 24sh² + 4s²h FLOPs, of which the product q·kᵀ is 2s²h; a backward takes two forwards.
#
# There are three ways: keep all; *selective*, where each layer keeps 34sh, and has its 5as² only while its own backward runs; and *full*, where each layer keeps its input, and one layer at a time has all.
#
# **Up to how many tokens does each way fit? What does the cheapest way that fits cost, over a step that keeps all, at 2,000, 8,000 and 16,000 tokens? And which term stops you in the end?**
#
# First draw the memory of the three ways against s, from 1,000 to 32,000, with the line of 80 GB. Then write five to ten sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which the three limits can be read; and the three limits as numbers |
# | ½ | the way and its cost for the three lengths, and why selective recomputation costs more here than in the lesson's layer of 530 B |
# | ½ | what stops selective and full in the end; and how long a sequence could be with full recomputation if a kernel kept no scores at all |

# %% nbgrader={"grade_id": "how_long_plot", "solution": true}
### BEGIN SOLUTION
L = 48
h = 1600
heads = 25


def needs(s, scores=1):
    """Bytes of the three ways; scores=0: attention keeps none."""
    core = scores * 5 * heads * s * s
    rest = 34 * s * h
    return {
        "all kept": 25e9 + L * (rest + core),
        "selective": 25e9 + L * rest + core,
        "full": 25e9 + (L - 1) * 2 * s * h + rest + core,
    }


def limit_of(way, scores=1):
    """The longest sequence that fits, to 10 tokens."""
    return max(s for s in range(10, 400_000, 10) if needs(s, scores)[way] <= 80e9)


for way in needs(1):
    print(f"{way}: {limit_of(way):,} tokens; without scores {limit_of(way, 0):,}")
for s in (2000, 8000, 16000):
    step = 3 * (24 * s * h * h + 4 * s * s * h)
    print(f"{s}: selective +{2 * s * s * h / step:.1%}")
lengths = [1000, 2000, 4000, 8000, 12000, 16000, 24000, 32000]
drawn = {way: (lengths, [needs(s)[way] for s in lengths]) for way in needs(1)}
study.curves(
    {**drawn, "80 GB": (lengths, [80e9] * len(lengths))},
    logx=True,
    logy=True,
    yunit="B",
    xlabel="tokens, s",
    ylabel="memory",
    title="48 layers, h = 1,600, one sequence",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "how_long", "solution": true, "points": 2}
# All kept fits up to 2,810 tokens, selective up to 12,980, and full up to 20,170.
#
# At 2,000 tokens I keep all, and pay nothing. At 8,000 selective recomputation fits, for 7.6 % more FLOPs: it repeats q·kᵀ, 2s²h of the 3 · (24sh² + 4s²h) of a step. At 16,000 only full recomputation fits, for a third more, since each layer runs forward once more. In the lesson's layer of 530 B the same product is 0.3 %, because its share is 2s / (72h + 12s): there h is ten times as large as s, here s is five times as large as h.
#
# Selective recomputation is stopped by two terms: at its limit the 34sh of all layers are 34 GB, and the scores of the one layer in backward 21 GB. With full recomputation, it is the scores alone: 5as² of one layer are 51 of the 55 GB, and all 47 inputs only 3 GB. They grow with the square, so twice the memory would give only 1.4 times the tokens.
#
# If a kernel keeps no scores, full recomputation goes up to 268,550 tokens, 13 times as many. Keeping all then goes up to 21,060, which is more than full recomputation reaches here; and selective recomputation has nothing left to save.
