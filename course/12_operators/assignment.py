# %% [markdown] nbgrader={"grade_id": "top"}
# # 12 Operators and graphs: exercises
#
# The lesson counted a launch on top of every kernel, fused a bias with GELU, merged the sums of a softmax, put attention together from tiles, laid a model's parameters in one buffer and grouped a graph's operators around its products. Here each of these goes one step further: the CPU runs ahead of the GPU, an operator has two halves, a third sum comes along, later keys are hidden, only some weights decay, and a product does the work that follows it.
#
# Eight exercises, 20 points. After each of the first seven, run the check: it draws its own numbers, and counts what your code makes, keeps and multiplies. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The eighth is an open question, which your teacher reads.
#
# Inside your functions the library's own answers (`minidist.train`, `minidist.study`) are refused. The tensors that the check hands out show their numbers to PyTorch's operators alone: numpy gets none, and code that takes many numbers out of tensors one by one (with `item()`, `tolist()` or an `if`) is refused. Never change an argument, unless the exercise says so.

# %% nbgrader={"grade_id": "setup"}
import math

import torch
import torch.nn.functional as F
from IPython.display import display
from torch import nn

import minicheck as check

from minidist import study
from minidist.comm.cluster import H100
from minidist.models import TransformerLayer
from minidist.train import fuse

DEVICE = {"launch": H100.launch, "bandwidth": H100.bandwidth, "peak": H100.peak(torch.float32)}

# %% [markdown] nbgrader={"grade_id": "run_ahead_spec"}
# ## 1 · The CPU runs ahead (2 points)
#
# In the lesson each launch comes on top of its kernel's work, as if the CPU waited for every kernel. It does not: it launches one kernel after the other, whether the device is ready or not, and the device starts a kernel as soon as it has been launched and the one before it has ended. Only where the program asks for a number (`.item()`, or an `if` on a tensor) does the CPU wait until the kernel that makes it has ended; then it launches the next.
#
# | | |
# |---|---|
# | call | `run_ahead(kernels, device)` |
# | `kernels` | in order, each `(nbytes, flops, asked)`; `asked`: the CPU waits until this kernel has ended; perhaps an empty list |
# | `device` | a dictionary: `"launch"` in seconds of the CPU, `"bandwidth"` in bytes/s, `"peak"` in FLOP/s |
# | returns | the seconds from the first launch's beginning to the last kernel's end, and a list with a word for each kernel |
# | a word | `"launch"` if the device stood idle before this kernel, for however short a time; otherwise `"memory"` or `"compute"`, whichever takes longer in this kernel |
#
# Bytes and FLOPs of a kernel go on at the same time. The device is idle until the first kernel has been launched. About 12 lines.
#
# <details><summary>Hint</summary>
#
# Two clocks are enough: when the CPU has launched the last kernel, and when the device has ended it.
#
# </details>


# %% nbgrader={"grade_id": "run_ahead", "solution": true}
def run_ahead(kernels, device):
    """Seconds of these kernels in a row, and what each waits for."""
    ### BEGIN SOLUTION
    launched = 0.0
    ended = 0.0
    words = []
    for nbytes, flops, asked in kernels:
        launched += device["launch"]
        memory = nbytes / device["bandwidth"]
        compute = flops / device["peak"]
        if launched > ended:
            words.append("launch")
        else:
            words.append("memory" if memory > compute else "compute")
        ended = max(launched, ended) + max(memory, compute)
        if asked:
            launched = ended
    return ended, words
    ### END SOLUTION


# %% nbgrader={"grade_id": "run_ahead_test", "points": 2}
check.run_ahead(run_ahead)

# %% [markdown] nbgrader={"grade_id": "run_ahead_target"}
# **Target:** twenty additions that follow a large product. While the product is at work their launches cost nothing; an `.item()` after each of them makes every launch count.

# %%
addition = 12 * 2**20, 2**20
product = 12 * 4096**2, 2 * 4096**3
rows = []
with check.limit(10):
    for title, first, asked in [
        ("additions alone", [], False),
        ("after a product", [(*product, False)], False),
        ("after a product, each asked for", [(*product, False)], True),
    ]:
        time, words = run_ahead(first + [(*addition, asked)] * 20, DEVICE)
        rows.append((title, f"{1e6 * time:,.0f}", words.count("launch")))
study.table(rows, ["20 additions of 1,048,576 numbers, fp32", "µs, modelled", "waits for a launch"])

# %% [markdown] nbgrader={"grade_id": "geglu_spec"}
# ## 2 · A gate, with a backward of its own (3 points)
#
# Many transformers have a *gated* MLP: one product makes two halves, and GELU of the first half says how much of the second gets through.
#
# | | |
# |---|---|
# | call | `geglu(h, b)` |
# | `h`, `b` | (…, 2H) and (2H,), of one dtype; `h` may have several dimensions of rows, or none: (2H,) |
# | returns | with z = h + b: gelu(first half of z) · (second half of z), (…, H); gelu is `F.gelu`, with erf |
# | backward | the gradients of h, (…, 2H), and of b, (2H,), which is the sum over all rows (one row, where h has no further dimension); h may need none |
# | memory | h and b are kept for backward, and nothing that you made |
#
# **Invariant:** backward forms again what it needs, from this call's h and b. The incoming gradient is not changed, and a nan is not hidden. Complete `forward` and `backward`. About 12 lines.
#
# <details><summary>Hint</summary>
#
# Two operators, each with a backward of its own, keep the result that lies between them. By the product rule both halves of z have a gradient, and each of them needs the other half. `z.chunk(2, -1)` are the halves, `torch.cat` puts two together. (`x.sum([])`, over no dimension at all, sums over every one.)
#
# </details>


# %% nbgrader={"grade_id": "geglu", "solution": true}
class GeGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, b):
        ### BEGIN SOLUTION
        ctx.save_for_backward(h, b)
        gate, value = (h + b).chunk(2, -1)
        return F.gelu(gate) * value
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        h, b = ctx.saved_tensors
        gate, value = (h + b).chunk(2, -1)
        probability = (1 + torch.erf(gate * math.sqrt(0.5))) / 2
        density = torch.exp(-gate * gate / 2) / math.sqrt(2 * math.pi)
        dgate = dy * value * (probability + gate * density)
        dvalue = dy * gate * probability
        dh = torch.cat([dgate, dvalue], -1)
        return dh, dh.reshape(-1, dh.shape[-1]).sum(0)
        ### END SOLUTION


def geglu(h, b):
    return GeGlu.apply(h, b)


# %% nbgrader={"grade_id": "geglu_test", "points": 3}
check.geglu(geglu)

# %% [markdown] nbgrader={"grade_id": "geglu_target"}
# **Target:** PyTorch's way leaves four times the result in memory after forward; yours leaves the result alone, the mark. (h has 4,096 × 2 · 3,072 numbers.)


# %%
def in_pytorch(h, b):
    gate, value = (h + b).chunk(2, -1)
    return F.gelu(gate) * value


def alive(function):
    h = torch.empty(4096, 6144, device="meta", requires_grad=True)
    b = torch.empty(6144, device="meta", requires_grad=True)
    live = study.measure(function, h, b).timeline.at(float("inf"))
    return sum(live.values()) - h.nbytes - b.nbytes


with check.limit(10):
    yours = alive(geglu)
study.bars(
    {"F.gelu(gate) * value": alive(in_pytorch), "yours": yours},
    unit="B",
    target=4 * 4096 * 3072,
    note="the result",
    title="New memory after forward: the result, and what is kept",
)

# %% [markdown] nbgrader={"grade_id": "entropy_spec"}
# ## 3 · Find the bug: a third sum (2 points)
#
# If attention looks at one key alone, training tends to become unstable. So one watches the *entropy* of the softmax p of each row of scores x, −Σ p log p: it is 0 if one key has everything, and log K if all K keys have the same. With m = max x and s = Σ exp(x − m), log p is x − m − log s. Hence
#
# $$-\sum p \log p = \log s - \frac{t}{s},\qquad t = \sum e^{x - m}\,(x - m).$$
#
# A row comes in parts, and m, s and t are all to be taken in one reading. The function in the next cell was found in somebody's code. It rescales both sums when a larger number comes, as the lesson taught, and it passed its author's test, a row of falling numbers.


# %% nbgrader={"grade_id": "entropy_broken"}
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    m = torch.full(parts[0].shape[:1], -math.inf, dtype=parts[0].dtype)
    s = torch.zeros_like(m)
    t = torch.zeros_like(m)
    for part in parts:
        peak = torch.maximum(m, part.amax(1))
        correction = (m - peak).exp()
        x = part - peak[:, None]
        p = x.exp()
        s = s * correction + p.sum(1)
        t = t * correction + (p * x).sum(1)
        m = peak
    return s.log() - t / s


# %%
def apart(find, row):
    """How far the entropy, found in three parts, is from the whole row's."""
    return (find(row.split(2, 1)) - torch.special.entr(row.softmax(1)).sum(1)).abs().max().item()


row = torch.tensor([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]]).double()
print(f"falling numbers: wrong by {apart(entropy, row):.2f}")
print(f"rising numbers: wrong by {apart(entropy, row.flip(1)):.2f}")

# %% [markdown] nbgrader={"grade_id": "entropy_task"}
# Copy the function, and repair it.
#
# | | |
# |---|---|
# | call | `entropy(parts)` |
# | `parts` | a list of tensors (rows, columns) of one dtype, of any number of columns; neither the list nor a tensor is changed |
# | returns | the entropy of softmax of each whole row, in nats (with the natural logarithm), (rows,), of that dtype |
# | memory | one part at a time, in one reading; nothing larger than a part is made, and at most nine times as much as the largest part is held at once |
#
# **Invariant:** after each part, m, s and t are those of all parts so far. A number may be −inf (its key is masked), and so may all of a row in a part, even in the first: it then adds nothing, for p log p goes to 0 with p. In floating point 0 · −inf and −inf − −inf are nan. Every row has a finite number somewhere, perhaps one far below −10⁹. A nan in a row is not hidden: its entropy is nan.
#
# <details><summary>Hint</summary>
#
# Write t of the old numbers with the new m as a sum, of e^(x − new) · (x − new), and put in x − new = (x − old) + (old − new). Start with a finite m: `torch.finfo(dtype).min`.
#
# </details>


# %% nbgrader={"grade_id": "entropy", "solution": true}
def entropy(parts):
    """The entropy of softmax of each row, (rows,), of parts (rows, columns)."""
    ### BEGIN SOLUTION
    m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
    s = torch.zeros_like(m)
    t = torch.zeros_like(m)
    for part in parts:
        peak = torch.maximum(m, part.amax(1))
        correction = (m - peak).exp()
        x = part - peak[:, None]
        p = x.exp()
        t = (t + s * (m - peak)) * correction + torch.where(p == 0, 0, p * x).sum(1)
        s = s * correction + p.sum(1)
        m = peak
    return s.log() - t / s
    ### END SOLUTION


# %% nbgrader={"grade_id": "entropy_test", "points": 2}
check.entropy(entropy)

# %% [markdown] nbgrader={"grade_id": "entropy_target"}
# **Target:** right in both directions.

# %%
with check.limit(10):
    print(f"falling numbers: wrong by {apart(entropy, row):.2f}")
    print(f"rising numbers: wrong by {apart(entropy, row.flip(1)):.2f}")

# %% [markdown] nbgrader={"grade_id": "attention_spec"}
# ## 4 · Causal attention in tiles (4 points)
#
# The lesson's queries see all keys. In a language model a token sees itself and what stands before it, so about half of the tiles hold nothing that any query may see, and need not be computed at all. Besides, there may be more keys than queries, because those of earlier tokens have been kept.
#
# | | |
# |---|---|
# | call | `attention(q, k, v, tile)` |
# | `q`, `k`, `v` | (T, d), (K, d), (K, d), with T ≤ K: the queries are those of the *last* T of K tokens |
# | `tile` | how many queries, and how many keys, are taken at a time, counted from the first query and the first key; it need not divide T or K |
# | returns | two tensors: the result, (T, d), and m + log s of each query, (T,), which a backward would need |
# | a query | sees the keys of its own token and of all earlier ones; softmax(q kᵀ / √d) goes over these alone |
# | memory | scores: one tile, (tile, tile), at a time; nothing larger than q or k is made |
# | cost | two products for each tile in which some query sees some key, each once: 4 · tile² · d FLOPs, or less; none for the other tiles |
#
# m and s are the largest score, and the sum of exp(score − m), of what the query sees. **Invariant:** exact. Scores may be some hundred thousand, above or below 0, so that exp of them is inf or 0. A nan in a query is not hidden: its row is nan. No `scaled_dot_product_attention`. About 20 lines.
#
# <details><summary>Hint</summary>
#
# Query i is token i + K − T. Which tokens do the first and the last query of a tile belong to? The largest of them says where to stop, the smallest says from where on scores must be masked, with −inf.
#
# </details>


# %% nbgrader={"grade_id": "attention", "solution": true}
def attention(q, k, v, tile):
    """Causal softmax(q kᵀ / √d) v in tiles, and m + log s."""
    ### BEGIN SOLUTION
    out = torch.empty_like(q)
    logs = torch.empty_like(q[:, 0])
    for first in range(0, len(q), tile):
        qi = q[first : first + tile] * q.shape[1] ** -0.5
        token = first + len(k) - len(q)  # of the first of these queries
        m = qi.new_full((len(qi), 1), -math.inf)
        s = qi.new_zeros(len(qi), 1)
        a = torch.zeros_like(qi)
        for start in range(0, token + len(qi), tile):
            kj = k[start : start + tile]
            vj = v[start : start + tile]
            scores = qi @ kj.T
            if start + len(kj) - 1 > token:
                later = torch.ones_like(scores, dtype=torch.bool).triu(token - start + 1)
                scores = scores.masked_fill(later, -math.inf)
            peak = torch.maximum(m, scores.amax(1, keepdim=True))
            p = (scores - peak).exp()
            correction = (m - peak).exp()
            s = s * correction + p.sum(1, keepdim=True)
            a = a * correction + p @ vj
            m = peak
        out[first : first + tile] = a / s
        logs[first : first + tile] = (m + s.log())[:, 0]
    return out, logs
    ### END SOLUTION


# %% nbgrader={"grade_id": "attention_test", "points": 4}
check.attention(attention)

# %% [markdown] nbgrader={"grade_id": "attention_target"}
# **Target:** memory that grows with T and comes near the lower line (with few tokens, the tiles themselves stand out), and FLOPs on the lower line, little more than half of those of full attention.


# %%
def profile_of(function, T):
    return study.measure(function, *(torch.empty(T, 64, device="meta") for _ in "qkv"))


lengths = [256, 512, 1024, 2048]
with check.limit(20):
    yours = [profile_of(lambda q, k, v: attention(q, k, v, 128), T) for T in lengths]
display(
    study.curves(
        {
            "all scores at once": (lengths, [16 * T * 64 + 8 * T * T for T in lengths]),
            "q, k, v, result": (lengths, [16 * T * 64 for T in lengths]),
        },
        points={"yours": (lengths, [profile.peak for profile in yours])},
        logx=True,
        logy=True,
        yunit="B",
        xlabel="T",
        ylabel="peak memory",
        title="Causal attention, one head, d = 64, tiles of 128",
    )
)
study.curves(
    {
        "half, and the diagonal": (lengths, [2 * T * (T + 128) * 64 for T in lengths]),
        "all keys": (lengths, [4 * T * T * 64 for T in lengths]),
    },
    points={"yours": (lengths, [profile.total.flops for profile in yours])},
    logx=True,
    logy=True,
    xlabel="T",
    ylabel="FLOPs",
    title="Of its two products",
)

# %% [markdown] nbgrader={"grade_id": "flatten_spec"}
# ## 5 · One buffer, and some of it decays (3 points)
#
# Weight decay is for matrices; biases and LayerNorm's weights have none. In the order of the model the two kinds alternate, and a flat buffer in that order would need a launch for each change. So what decays goes first. And a weight that is used twice (an embedding that is the last layer, too) stands in the list twice, and must lie in the buffer once.
#
# | | |
# |---|---|
# | call | `flatten(params, decays)` |
# | `params` | a list of `nn.Parameter`s of one dtype, of any shapes; one may be transposed in memory, be frozen (`requires_grad` is False), have a gradient already, or stand there twice; the list is not changed |
# | `decays` | a list of as many bools, the same at both places of a parameter that stands there twice; perhaps all alike |
# | returns | `flat`, `grads` and `end`: two tensors (N,), and a whole number. N is the sum of the sizes of the different parameters, of which `end` belong to those that decay |
# | afterwards | each `p.data` is a view of `flat`, each `p.grad` one of `grads`, at the same place. First come those that decay, then the others, each kind in the order of its first places in the list; row by row, without gaps |
# | memory | flat and grads alone are held; the parameters' old memory and their old gradients are freed |
#
# **Invariant:** the parameters keep their values, shapes and `requires_grad`; `flat` and `grads` need no gradient, and `grads` is 0. Then backward adds into `grads`, and a whole step of SGD is two launches: `flat[:end].mul_(1 - lr * decay)` and `flat.add_(grads, alpha=-lr)`. About 14 lines.
#
# <details><summary>Hint</summary>
#
# First put the different parameters in order, going through `params` twice. (`p in some_list` compares numbers; a dictionary's keys are compared by identity.) Then `torch.cat([p.detach().reshape(-1) for p in order])` is flat.
#
# </details>


# %% nbgrader={"grade_id": "flatten", "solution": true}
def flatten(params, decays):
    """Make the parameters views of flat, their gradients views of grads; return both, and how many numbers decay."""
    ### BEGIN SOLUTION
    order = {}
    for first in (True, False):
        for p, decay in zip(params, decays):
            if decay == first:
                order[p] = decay
    flat = torch.cat([p.detach().reshape(-1) for p in order])
    grads = torch.zeros_like(flat)
    at = 0
    for p in order:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grads, sum(p.numel() for p in order if order[p])
    ### END SOLUTION


# %% nbgrader={"grade_id": "flatten_test", "points": 3}
check.flatten(flatten)

# %% [markdown] nbgrader={"grade_id": "flatten_target"}
# **Target:** two launches, for any number of layers.


# %%
def launches_of(layers, in_one):
    params = []
    for _ in range(layers):
        params += nn.Linear(8, 8).parameters()
    flat, grads, end = flatten(params, [p.dim() > 1 for p in params])

    def step():
        flat[:end].mul_(1 - 0.1 * 0.01)
        flat.add_(grads, alpha=-0.1)

    matrices = {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.01}
    vectors = {"params": [p for p in params if p.dim() == 1]}
    loop = torch.optim.SGD([matrices, vectors], lr=0.1, foreach=False).step
    return study.measure(step if in_one else loop, where="cpu").calls


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
    title="A step of SGD with weight decay",
)

# %% [markdown] nbgrader={"grade_id": "fused_spec"}
# ## 6 · Products that go on (2 points)
#
# By the lesson's rule a product is a kernel of its own. Good libraries do more: before such a kernel writes a tile of its result, it can do pointwise work on it (an *epilogue*). It has tiles and no whole rows, so a reduction, such as the mean of a row, must wait for the next kernel.
#
# | | |
# |---|---|
# | call | `fused(operators, sizes, wanted)` |
# | `operators` | in order, each `(name, kind, reads, write)`; `reads`: names of tensors; `write`: one name |
# | `kind` | `"product"`, `"pointwise"` or `"reduction"` |
# | `sizes` | bytes of each tensor, by name |
# | `wanted` | names of results that somebody needs afterwards |
# | returns | for each kernel, in order, `(names of its operators, bytes that it moves)` |
#
# **Rule:** a product begins a kernel. A reduction begins one if there is a product in the kernel before it; otherwise it joins that kernel. What is pointwise joins the kernel before it. The first operator begins the first kernel. **Bytes:** each tensor that comes from outside the kernel is read once; each result that is wanted, or that another kernel reads, is written once. Nothing else leaves the chip, so a result that nobody needs is not written. About 14 lines.
#
# <details><summary>Hint</summary>
#
# First the groups. Then, for each, three sets of names: made inside, read inside, read by all others or wanted.
#
# </details>


# %% nbgrader={"grade_id": "fused", "solution": true}
def fused(operators, sizes, wanted):
    """For each kernel its operators' names, and the bytes that it moves."""
    ### BEGIN SOLUTION
    groups = []
    for operator in operators:
        kind = operator[1]
        tiles = bool(groups) and groups[-1][0][1] == "product"
        if not groups or kind == "product" or (kind == "reduction" and tiles):
            groups.append([])
        groups[-1].append(operator)
    found = []
    for group in groups:
        made = {write for *_, write in group}
        read = {name for _, _, reads, _ in group for name in reads}
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
# **Target:** a transformer's MLP of 1,024 tokens, H = 768, with the LayerNorm before it (in two operators): nine launches become three.

# %%
mlp = [
    ("statistics", "reduction", ["x"], "stats"),
    ("normalize", "pointwise", ["x", "stats"], "n"),
    ("mm1", "product", ["n", "w1"], "h"),
    ("bias1", "pointwise", ["h", "b1"], "z"),
    ("gelu", "pointwise", ["z"], "y"),
    ("mm2", "product", ["y", "w2"], "o"),
    ("bias2", "pointwise", ["o", "b2"], "o2"),
    ("dropout", "pointwise", ["o2", "mask"], "o3"),
    ("residual", "pointwise", ["o3", "x"], "out"),
]
small = 4 * 1024 * 768
wide = 4 * 1024 * 3072
sizes = dict.fromkeys(["x", "n", "o", "o2", "o3", "mask", "out"], small)
sizes |= dict.fromkeys(["h", "z", "y"], wide)
sizes |= {"stats": 8 * 1024, "w1": 4 * 768 * 3072, "w2": 4 * 768 * 3072}
sizes |= {"b1": 4 * 3072, "b2": 4 * 768}
each = {name: sum(sizes[t] for t in {*reads, write}) for name, _, reads, write in mlp}
rows = []
with check.limit(10):
    for names, nbytes in fused(mlp, sizes, ["out"]):
        rows.append((" + ".join(names), sum(each[name] for name in names), nbytes))
study.table(rows, ["kernel", "bytes, one by one", "bytes, fused"])

# %% [markdown] nbgrader={"grade_id": "predict_operators_spec"}
# ## 7 · Predict, then count (2 points)
#
# An H100 by the lesson's roofline, with each launch on top: 5 µs a launch, 3.35 TB/s, 67 TFLOP/s in fp32, 989 in bf16. A model has 10⁹ weights.
#
# - `tensors`: in how many tensors must the weights lie, so that the launches of AdamW's plain loop in fp32 take as long as its bytes? (Eight operators a tensor; 21 numbers a weight.)
# - `mixed_ms`: milliseconds of one step of Adam in one launch, in mixed precision: the gradients are fp32, and so are the states and a copy of the weights; from the copy the step also writes the weights in bf16
# - `edge`: three bf16 tensors are added in one launch. How many numbers has each, if the bytes take as long as the launch?
# - `kept_mib`: MiB that attention in tiles keeps for backward, of 16 heads, T = 8,192, d = 32, where q, k, v and the result are bf16, and the one number a query is fp32
# - `queries`: from how many queries a tile on is attention's forward bound by compute, in bf16, if k and v are read from memory again for each tile of queries? (All queries see all keys; T is so large that q and the result do not count.)
# - `batch`: from how many rows B on is a bf16 product of (B, 8192) and (8192, 8192) bound by compute? (A server that makes one token for each of B users does such products.)
#
# Write numbers or formulas, right within 1 %; none is to be rounded to a whole number.

# %% nbgrader={"grade_id": "predict_operators", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_operators.numbers(STUDENT)
tensors = mixed_ms = edge = kept_mib = queries = batch = None
### BEGIN SOLUTION
tensors = 21 * 4e9 / 3.35e12 / (8 * 5e-6)
mixed_ms = 1e3 * (5e-6 + (4 + 3 * 4 + 3 * 4 + 2) * 1e9 / 3.35e12)
edge = 5e-6 * 3.35e12 / (4 * 2)
kept_mib = 16 * 8192 * (4 * 32 * 2 + 4) / 2**20
ridge = 989e12 / 3.35e12  # FLOPs a byte
queries = ridge  # 4·t·T·d FLOPs, and 2·T·d numbers of 2 bytes
batch = ridge * 8192 / (8192 - 2 * ridge)  # B·n / (n + 2B) = ridge
### END SOLUTION

# %% nbgrader={"grade_id": "predict_operators_test", "points": 2}
check.predict_operators(tensors, mixed_ms, edge, kept_mib, queries, batch, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_operators_target"}
# **Target:** predicted and counted agree. The meter counts, on tensors without numbers, for 10⁹ weights (so the first line fits these alone, and not weights of your own). At your number of tensors, and at your edge, launches take half of the time and bytes the other half; at your batch, memory and compute take the same time.


# %%
def empty(*shape):
    return torch.empty(*shape, device="meta", dtype=torch.bfloat16)


count = round(tensors)
params = [nn.Parameter(torch.empty(10**9 // count, device="meta")) for _ in range(count)]
adamw = torch.optim.AdamW(params, foreach=False)
for _ in range(2):  # the first step makes the states
    for p in params:
        p.grad = torch.empty_like(p)
    step = study.measure(adamw.step, device=H100.ideal, where="meta")
sums = study.measure(fuse.add3, *[empty(round(edge))] * 3, device=H100.ideal)
mm = study.measure(torch.mm, empty(round(batch), 8192), empty(8192, 8192)).total
launching = [("AdamW's loop", step), ("the addition of three", sums)]
rows = [
    (name, f"{profile.calls * H100.launch / profile.time:.2f} of the time is launches")
    for name, profile in launching
]
rows.append(("the product", f"{mm.flops / mm.nbytes / (989e12 / 3.35e12):.2f} of the ridge"))
study.table(rows, ["", "counted"])

# %% [markdown] nbgrader={"grade_id": "which_cure_spec"}
# ## 8 · Which cure, for how many tokens? (2 points, graded by hand)
#
# A layer of a GPT (`TransformerLayer(768, 12)`, bf16, forward and backward) gets one sample of T tokens, on the lesson's modelled H100 (`H100.ideal`). Two cures are on offer. A **CUDA graph** replays all launches with one call, and leaves every kernel as it is. A **perfect compiler** makes everything vanish but the operators that the meter finds in products and attention, with their launches; it changes none of these.
#
# **Up to how many tokens is the graph the better cure, and from how many on does it win less than 10 %? What is the most that the compiler wins, as a factor, and at how many tokens?**
#
# First draw the time of the layer against T, from 32 to 16,384, for four ways: as it is, with each cure, and with both. Then write five to ten sentences. `study.measure(…).by_operator` has a tally for each operator, with `calls`, `flops` and `seconds`. Call `layer.zero_grad()` before each measurement, or autograd adds to old gradients, with launches of their own.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which the numbers that were asked for can be read; and these numbers |
# | ½ | the reasons: which of launch, memory and compute binds the layer at few, at some and at many tokens, and which of them each cure takes away |
# | ½ | one thing that this model leaves out or gets wrong (exercise 1 has one), and whether it makes the gain of one of the cures larger or smaller, with a reason |

# %% nbgrader={"grade_id": "which_cure_plot", "solution": true}
### BEGIN SOLUTION
IDEAL = H100.ideal
layer = TransformerLayer(768, 12, device="meta", dtype=torch.bfloat16)
many = [2**k for k in range(5, 15)]
times = {"as it is": [], "CUDA graph": [], "compiler": [], "both": []}
for T in many:
    layer.zero_grad()
    samples = torch.empty(1, T, 768, device="meta", dtype=torch.bfloat16)
    profile = study.measure(lambda: layer(samples).sum().backward(), device=IDEAL, where="meta")
    heavy = [
        tally
        for name, tally in profile.by_operator.items()
        if any(word in name for word in ("mm", "attention"))
    ]
    products = sum(tally.seconds for tally in heavy)
    calls = sum(tally.calls for tally in heavy)
    times["as it is"].append(profile.time)
    times["CUDA graph"].append(profile.time - (profile.calls - 1) * IDEAL.launch)
    times["compiler"].append(products)
    times["both"].append(products - (calls - 1) * IDEAL.launch)
    gains = [times["as it is"][-1] / times[name][-1] for name in ("CUDA graph", "compiler")]
    print(f"T = {T}: graph {gains[0]:.2f}, compiler {gains[1]:.2f} times as fast")
study.curves(
    {name: (many, some) for name, some in times.items()},
    logx=True,
    logy=True,
    yunit="s",
    xlabel="tokens",
    ylabel="forward and backward",
    title="A layer with H = 768 on a modelled H100",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "which_cure", "solution": true, "points": 2}
# The graph is the better cure up to about 2,400 tokens, and wins less than 10 % from about 9,000 on. The compiler wins the most, a factor of 2, at 32 to 512 tokens.
#
# Up to some 500 tokens everything in the layer is bound by its launch. 31 launches take 155 µs, whatever T is, and the work takes 14 µs at 32 tokens and 41 µs at 512. The graph takes away 30 of the 31 launches, so the layer is 8.7 times as fast at 32 tokens. The compiler leaves the 14 launches of products and attention, so it cannot win more than 31/14 = 2.2.
#
# From 2,048 tokens on products are bound by compute, which neither cure touches, and from 8,192 on LayerNorm, GELU, additions and sums are bound by memory. The compiler takes these bytes away, too, and still wins a quarter at 8,192 tokens. But attention grows with T², and all else with T: at 16,384 tokens the compiler wins 14 %, and the graph 4 %. With few tokens I take both, which makes the layer 9 times as fast; with many, the compiler.
#
# The model counts each launch on top. In fact the CPU runs ahead (exercise 1), and where kernels take longer than their launches, these are hidden without any cure. At 8,192 tokens the mean kernel works for 42 µs, so most launches are hidden. This makes the gain of the graph smaller than drawn: from some thousand tokens on it wins next to nothing.
