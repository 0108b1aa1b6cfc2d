# %% [markdown] nbgrader={"grade_id": "top"}
# # 12 Operators and graphs: exercises
#
# You say what an operator is bound by, write one with a backward of its own, put softmax and attention together from
# parts, move a model into one buffer, and fuse a graph.
#
# Seven exercises, 18 points. After each, run the check: it draws its own numbers, and counts what your code makes,
# keeps and multiplies. It says what is wrong. Try as often as you like. What your function prints is not shown there;
# to see it, call it in a cell of your own. What is refused is the library's own (`minidist.train`, `minidist.study`).
# The tensors that it hands out have numbers for PyTorch's operators alone, so numpy gets none.

# %% nbgrader={"grade_id": "setup"}
import math

import torch
import torch.nn.functional as F
from torch import nn

import minicheck as check

from minidist import study
from minidist.comm.cluster import H100

DEVICE = {"launch": H100.launch, "bandwidth": H100.bandwidth, "peak": H100.peak(torch.float32)}

# %% [markdown] nbgrader={"grade_id": "roofline_spec"}
# ## 1 · Three walls (2 points)
#
# | | |
# |---|---|
# | call | `roofline(launches, nbytes, flops, device)` |
# | `launches`, `nbytes`, `flops` | of a kernel, or of several in a row: all together |
# | `device` | a dictionary: `"launch"` in seconds, `"bandwidth"` in bytes/s, `"peak"` in FLOP/s |
# | returns | seconds, and what takes longest of the three: `"launch"`, `"memory"` or `"compute"` |
#
# **Invariant:** bytes and FLOPs go on at the same time; launches come on top. About 4 lines.
#
# <details><summary>Hint</summary>
#
# Three times in a dictionary, by their words. `max(times, key=times.get)` is the word.
#
# </details>


# %% nbgrader={"grade_id": "roofline", "solution": true}
def roofline(launches, nbytes, flops, device):
    """Seconds, and what bounds."""
    ### BEGIN SOLUTION
    times = {
        "launch": launches * device["launch"],
        "memory": nbytes / device["bandwidth"],
        "compute": flops / device["peak"],
    }
    return times["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)
    ### END SOLUTION


# %% nbgrader={"grade_id": "roofline_test", "points": 2}
check.roofline(roofline)

# %% [markdown] nbgrader={"grade_id": "roofline_target"}
# **Target:** products of n × n are bound by their launch at first, and then by compute; memory never has its turn.
# Here in fp32 on an H100.

# %%
with check.limit(10):
    rows = [(n, *roofline(1, 12 * n * n, 2 * n**3, DEVICE)) for n in (64, 256, 1024, 4096)]
study.table(
    [(f"n = {n}", f"{1e6 * time:,.1f}", word) for n, time, word in rows],
    ["product", "µs", "bound by"],
)

# %% [markdown] nbgrader={"grade_id": "bias_gelu_spec"}
# ## 2 · A backward of its own (3 points)
#
# | | |
# |---|---|
# | call | `bias_gelu(x, b)` |
# | `x`, `b` | (…, H) and (H,) |
# | returns | `F.gelu(x + b)`: z · (1 + erf(z/√2)) / 2, with z = x + b |
# | backward | dx = dy · (Φ(z) + z · φ(z)), and db, its sum over all rows |
# | memory | kept for backward are x and b: nothing that you made |
#
# Φ(z) = (1 + erf(z/√2)) / 2, and φ(z) = exp(−z²/2) / √(2π). **Invariant:** backward forms z again. `forward` and
# `backward` stand below; about 6 lines.
#
# <details><summary>Hint</summary>
#
# `ctx.save_for_backward(x, b)` in forward, `x, b = ctx.saved_tensors` in backward. Return (dx, db). The rows of db are
# all but the last dimension: `dx.reshape(-1, dx.shape[-1]).sum(0)`.
#
# </details>


# %% nbgrader={"grade_id": "bias_gelu", "solution": true}
class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        ### BEGIN SOLUTION
        ctx.save_for_backward(x, b)
        return F.gelu(x + b)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        x, b = ctx.saved_tensors
        z = x + b
        density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        dx = dy * ((1 + torch.erf(z * math.sqrt(0.5))) / 2 + z * density)
        return dx, dx.reshape(-1, dx.shape[-1]).sum(0)
        ### END SOLUTION


def bias_gelu(x, b):
    return BiasGelu.apply(x, b)


# %% nbgrader={"grade_id": "bias_gelu_test", "points": 3}
check.bias_gelu(bias_gelu)

# %% [markdown] nbgrader={"grade_id": "bias_gelu_target"}
# **Target:** a bar less. (4,096 × 3,072 numbers; after forward the meter sees what is alive.)


# %%
def alive(fn):
    x, b = (
        torch.empty(*shape, device="meta", requires_grad=True) for shape in ((4096, 3072), (3072,))
    )
    return sum(study.measure(fn, x, b).timeline.at(float("inf")).values()) - x.nbytes - b.nbytes


with check.limit(10):
    yours = alive(bias_gelu)
study.bars(
    {"F.gelu(x + b)": alive(lambda x, b: F.gelu(x + b)), "yours": yours},
    unit="B",
    title="New memory after forward: the result, and what is kept",
)

# %% [markdown] nbgrader={"grade_id": "normalizer_spec"}
# ## 3 · Find the bug (2 points)
#
# A row too long for the chip comes in parts. Of each row m = max x and s = Σ exp(x − m) are wanted. The next cell was
# found in somebody's code. Its test passes.


# %% nbgrader={"grade_id": "normalizer_broken"}
def normalizer(parts):
    """m and s of each row, (rows,), of parts (rows, columns)."""
    m = torch.full(parts[0].shape[:1], -math.inf, dtype=parts[0].dtype)
    s = torch.zeros_like(m)
    for part in parts:
        m = torch.maximum(m, part.amax(1))
        s = s + (part - m[:, None]).exp().sum(1)
    return m, s


# %%
def apart(find, row):
    m, s = find(row.split(2, 1))
    return (m + s.log() - row.logsumexp(1)).abs().max().item()


row = torch.tensor([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]).double()
print(
    f"falling numbers: wrong by {apart(normalizer, row):.2f}; rising: by {apart(normalizer, row.flip(1)):.2f}"
)

# %% [markdown] nbgrader={"grade_id": "normalizer_task"}
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `normalizer(parts)` |
# | `parts` | a list of tensors (rows, columns), of any number of columns |
# | returns | m and s, each (rows,) |
# | memory | one part at a time, in one reading: nothing larger is made |
#
# **Invariant:** after each part, m and s are those of all parts so far. A part may be −inf in a whole row (its keys
# are masked), the first one, too: then it adds nothing. −inf − −inf is nan. Every row has a number somewhere. A nan in a
# row is not hidden: its m and s are nan.
#
# <details><summary>Hint</summary>
#
# What was summed up with the old m is s · exp(old − new). Start with a finite m: `torch.finfo(dtype).min`.
#
# </details>


# %% nbgrader={"grade_id": "normalizer", "solution": true}
def normalizer(parts):
    """m and s of each row, (rows,), of parts (rows, columns)."""
    ### BEGIN SOLUTION
    m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
    s = torch.zeros_like(m)
    for part in parts:
        peak = torch.maximum(m, part.amax(1))
        s = s * (m - peak).exp() + (part - peak[:, None]).exp().sum(1)
        m = peak
    return m, s
    ### END SOLUTION


# %% nbgrader={"grade_id": "normalizer_test", "points": 2}
check.normalizer(normalizer)

# %% [markdown] nbgrader={"grade_id": "normalizer_target"}
# **Target:** right in both directions.

# %%
with check.limit(10):
    print(
        f"falling numbers: wrong by {apart(normalizer, row):.2f}; rising: by {apart(normalizer, row.flip(1)):.2f}"
    )

# %% [markdown] nbgrader={"grade_id": "attention_spec"}
# ## 4 · Attention in tiles (4 points)
#
# | | |
# |---|---|
# | call | `attention(q, k, v, tile)` |
# | `q`, `k`, `v` | (T, d), (K, d), (K, d) |
# | `tile` | so many queries, and so many keys, at a time; it need not divide T or K |
# | returns | softmax(q kᵀ / √d) v, (T, d); every query sees every key |
# | memory | scores: one tile, (tile, tile), at a time; nothing larger than q or k is made |
# | cost | two products a tile, each once: 4TKd FLOPs |
#
# **Invariant:** exact. Scores may be some thousand: exp of them is inf. A nan in a query is not hidden: its row is nan.
# No `scaled_dot_product_attention`. About 12 lines.
#
# <details><summary>Hint</summary>
#
# For a tile of queries keep m, s (a number a row) and a (the result so far, not divided). A tile of keys changes all
# three: rescale s *and* a by exp(old m − new m). Divide at the end.
#
# </details>


# %% nbgrader={"grade_id": "attention", "solution": true}
def attention(q, k, v, tile):
    """softmax(q kᵀ / √d) v in tiles."""
    ### BEGIN SOLUTION
    out = torch.empty_like(q)
    for first in range(0, len(q), tile):
        qi = q[first : first + tile] * q.shape[1] ** -0.5
        m = qi.new_full((len(qi), 1), -math.inf)
        s = qi.new_zeros(len(qi), 1)
        a = torch.zeros_like(qi)
        for kj, vj in zip(k.split(tile), v.split(tile)):
            scores = qi @ kj.T
            peak = torch.maximum(m, scores.amax(1, keepdim=True))
            p, less = (scores - peak).exp(), (m - peak).exp()
            m = peak
            s = s * less + p.sum(1, keepdim=True)
            a = a * less + p @ vj
        out[first : first + tile] = a / s
    return out
    ### END SOLUTION


# %% nbgrader={"grade_id": "attention_test", "points": 4}
check.attention(attention)

# %% [markdown] nbgrader={"grade_id": "attention_target"}
# **Target:** your points on a line that grows by T, not by T².


# %%
def peak_of(fn, T):
    return study.measure(fn, *(torch.empty(T, 64, device="meta") for _ in "qkv")).peak


lengths = [256, 512, 1024, 2048]
naive = [peak_of(lambda q, k, v: (q @ k.T / 8).softmax(-1) @ v, T) for T in lengths]
with check.limit(20):
    yours = [peak_of(lambda q, k, v: attention(q, k, v, 128), T) for T in lengths]
study.curves(
    {"naive": (lengths, naive), "q, k, v, result": (lengths, [16 * T * 64 for T in lengths])},
    points={"yours": (lengths, yours)},
    logx=True,
    logy=True,
    yunit="B",
    xlabel="T",
    ylabel="peak memory",
    title="Attention, one head, d = 64",
)

# %% [markdown] nbgrader={"grade_id": "flatten_spec"}
# ## 5 · One buffer (3 points)
#
# | | |
# |---|---|
# | call | `flatten(params)` |
# | `params` | a list of `nn.Parameter`s of one dtype, of any shapes; one may be transposed in memory, or frozen, or have a gradient |
# | returns | `flat` and `grads`: two tensors (N,), N the sum of their sizes |
# | afterwards | `params[i].data` is a view of `flat`, `.grad` one of `grads`: in order, row by row, no gaps |
# | memory | flat and grads; the old memory of the parameters is free |
#
# **Invariant:** the parameters have their values, shapes and `requires_grad`; `grads` is 0. Then backward adds into
# `grads`, and `flat.add_(grads, alpha=-lr)` is a whole step of SGD: one launch. About 8 lines.
#
# <details><summary>Hint</summary>
#
# `torch.cat([p.detach().reshape(-1) for p in params])` is flat. `flat[at : at + p.numel()].view(p.shape)` is the view
# of p: assign it to `p.data`.
#
# </details>


# %% nbgrader={"grade_id": "flatten", "solution": true}
def flatten(params):
    """Make the parameters views of flat, their gradients views of grads; return both."""
    ### BEGIN SOLUTION
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    grads, at = torch.zeros_like(flat), 0
    for p in params:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grads
    ### END SOLUTION


# %% nbgrader={"grade_id": "flatten_test", "points": 3}
check.flatten(flatten)

# %% [markdown] nbgrader={"grade_id": "flatten_target"}
# **Target:** one launch, for any number of layers.


# %%
def launches_of(layers, one):
    params = [p for _ in range(layers) for p in nn.Linear(8, 8).parameters()]
    flat, grads = flatten(params)
    step = (
        (lambda: flat.add_(grads, alpha=-0.1))
        if one
        else torch.optim.SGD(params, lr=0.1, foreach=False).step
    )
    return study.measure(step, where="cpu").calls


many = [1, 4, 16, 64]
with check.limit(10):
    loop = [launches_of(n, False) for n in many]
    yours = [launches_of(n, True) for n in many]
study.curves(
    {"SGD, a loop": (many, loop), "yours": (many, yours)},
    xlabel="layers",
    ylabel="launches of a step",
    logx=True,
    logy=True,
    title="A step of SGD",
)

# %% [markdown] nbgrader={"grade_id": "fused_spec"}
# ## 6 · Fuse a graph (2 points)
#
# | | |
# |---|---|
# | call | `fused(operators, sizes, wanted)` |
# | `operators` | in order, each `(name, kind, reads, write)`; `reads`: names of tensors; `write`: one name |
# | `kind` | `"product"` or `"pointwise"` |
# | `sizes` | bytes of each tensor, by name |
# | `wanted` | names of results that somebody needs afterwards |
# | returns | for each group, in order, `(names of its operators, bytes that it moves)` |
#
# **Rule:** a product is a group of its own; neighbours that are pointwise are one group. **Bytes:** each tensor that
# comes from outside the group is read once; each result that is wanted, or that another group reads, is written once.
# Nothing else leaves the chip. About 10 lines.
#
# <details><summary>Hint</summary>
#
# First the groups. Then, for each, three sets of names: made inside, read inside, read by all others or wanted.
#
# </details>


# %% nbgrader={"grade_id": "fused", "solution": true}
def fused(operators, sizes, wanted):
    """For each group its operators' names, and the bytes that it moves."""
    ### BEGIN SOLUTION
    groups, last = [], "product"
    for operator in operators:
        if operator[1] == "product" or last == "product":
            groups.append([])
        groups[-1].append(operator)
        last = operator[1]
    found = []
    for group in groups:
        made, read = (
            {write for *_, write in group},
            {name for _, _, reads, _ in group for name in reads},
        )
        others = set(wanted)
        for one in operators:
            if one not in group:
                others |= set(one[2])
        moved = (read - made) | (made & others)
        found.append(([one[0] for one in group], sum(sizes[name] for name in moved)))
    return found
    ### END SOLUTION


# %% nbgrader={"grade_id": "fused_test", "points": 2}
check.fused(fused)

# %% [markdown] nbgrader={"grade_id": "fused_target"}
# **Target:** a transformer's MLP of 1,024 tokens, H = 768: seven launches become four, and half of the pointwise
# operators' bytes are left.

# %%
mlp = [
    ("mm1", "product", ["x", "w1"], "h"),
    ("bias1", "pointwise", ["h", "b1"], "z"),
    ("gelu", "pointwise", ["z"], "y"),
    ("mm2", "product", ["y", "w2"], "o"),
    ("bias2", "pointwise", ["o", "b2"], "o2"),
    ("dropout", "pointwise", ["o2", "mask"], "o3"),
    ("residual", "pointwise", ["o3", "x"], "out"),
]
small, wide = 4 * 1024 * 768, 4 * 1024 * 3072
sizes = dict.fromkeys(["x", "o", "o2", "o3", "mask", "out"], small) | dict.fromkeys(
    ["h", "z", "y"], wide
)
sizes |= {"w1": 4 * 768 * 3072, "w2": 4 * 768 * 3072, "b1": 4 * 3072, "b2": 4 * 768}
each = {name: sum(sizes[t] for t in {*reads, write}) for name, _, reads, write in mlp}
with check.limit(10):
    rows = [
        (" + ".join(names), sum(each[name] for name in names), nbytes)
        for names, nbytes in fused(mlp, sizes, ["out"])
    ]
study.table(rows, ["group", "bytes, one by one", "bytes, fused"])

# %% [markdown] nbgrader={"grade_id": "predict_operators_spec"}
# ## 7 · Predict, then count (2 points)
#
# An H100 by the roofline: 5 µs a launch, 3.35 TB/s, 67 TFLOP/s in fp32, 989 in bf16. A model has 10⁹ weights in 500
# tensors of equal size, fp32, AdamW.
#
# - `launches`: of the plain loop, eight a tensor
# - `loop_ms`: its milliseconds; it moves 21 numbers a weight
# - `flat_ms`: in one launch over a flat buffer, which holds the gradients, too
# - `edge`: how many numbers has a bf16 addition whose bytes take as long as its launch?
# - `scores_mib`: MiB of the scores of 16 heads, T = 8,192, bf16
# - `ridge_n`: from which n on is a bf16 product of n × n bound by compute, and not by memory?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_operators", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_operators.numbers(STUDENT)
launches = loop_ms = flat_ms = edge = scores_mib = ridge_n = None
### BEGIN SOLUTION
launches = 8 * 500
loop_ms = 1e3 * (launches * 5e-6 + 21 * 4e9 / 3.35e12)
flat_ms = 1e3 * (5e-6 + 7 * 4e9 / 3.35e12)
edge = 5e-6 * 3.35e12 / 6
scores_mib = 16 * 8192**2 * 2 / 2**20
ridge_n = 3 * 989e12 / 3.35e12
### END SOLUTION

# %% nbgrader={"grade_id": "predict_operators_test", "points": 2}
check.predict_operators(launches, loop_ms, flat_ms, edge, scores_mib, ridge_n, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_operators_target"}
# **Target:** predicted and counted alike. Counted by the meter, on tensors without numbers.

# %%
params = [nn.Parameter(torch.empty(2 * 10**6, device="meta")) for _ in range(500)]
adamw = torch.optim.AdamW(params, foreach=False)
for _ in range(2):  # the first step makes the states
    for p in params:
        p.grad = torch.empty_like(p)
    counted = study.measure(adamw.step, device=H100.ideal, where="meta")
study.bars(
    {
        "loop, predicted": loop_ms / 1e3,
        "loop, counted": counted.time,
        "flat, predicted": flat_ms / 1e3,
    },
    unit="s",
    title="AdamW of a billion weights on an H100",
)
