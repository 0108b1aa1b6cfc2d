# %% [markdown] nbgrader={"grade_id": "top"}
# # 27 From here to your cluster: exercises
#
# On a cluster nobody tells you that a run is wrong, or who has stopped. You compare a parallel run with a serial one, name
# what went wrong, find the rank that all others wait for, and take the weights to where others can load them.
#
# Eight exercises, 23 points; the last one, worth 2, is open and graded by hand. After each of the others, run the check: it draws
# runs, dumps and sizes of its own, and says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The library's own answers
# are refused: `minidist.study.compare`, `minidist.comm.flight` and `minidist.checkpoint`. All exercises
# run on one rank, on what many ranks have written down.

# %% nbgrader={"grade_id": "setup"}
import itertools
import json
import math

import torch
from IPython.display import display

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_
from minidist.comm import World
from minidist.models import mlp
from minidist.study.compare import record

# %% [markdown] nbgrader={"grade_id": "judged_spec"}
# ## 1 · Is it rounding? (2 points)
#
# The lesson derived how far sums in another order may be apart, as a share of the largest number. Here is what a tool
# needs beyond that: which runs may not differ at all, what the largest number is where some are not finite, and a verdict.
# A serial and a parallel run both have some tensor, and its digits differ. Say how far a number may be off, and what kind
# of difference this is.
#
# | | |
# |---|---|
# | call | `judged(serial, parallel, axes, terms, modules)` |
# | `serial`, `parallel` | two tensors of one shape and dtype, fp64, fp32, bf16 or fp16; **not changed** |
# | `axes` | what is done differently in the parallel run: a list of some of "data", "accumulate", "zero", "tensor", "context", "pipeline", "remat"; may be empty; **not changed** |
# | `terms`, `modules` | K, how many terms the longest sum has; D, through how many modules the numbers went |
# | returns | `(allowed, verdict)`: how far a number may be off, a float; "equal", "rounding" or "wrong" |
#
# **Allowed** is 0 where no axis changes the order of a sum: then the same operations run on the same numbers. Which axes
# leave all sums as they are is for you to say. (The serial run beside a pipeline has the same micro-batches; the one beside a
# run that accumulates has the whole batch at once.) A single axis that changes a sum is enough for this, where u is the unit
# roundoff of the dtype:
#
# - A sum of K terms in another order is off by √K·v, where v is the unit roundoff of the format in which it is added up:
#   that of the dtype, but no coarser than that of fp32. A module rounds each of its results once to the dtype, which adds u.
# - That is the error of one module, u + √K·v. Those of D modules are independent.
# - Four times the error of all is allowed, relative to the largest magnitude among the serial tensor's finite numbers.
#
# **Verdict:** "equal" if no number differs; "rounding" if none is off by more than what is allowed; else "wrong". A nan or
# the same inf at one place of both is no difference; one that only one run has is wrong. About 12 lines.
#
# <details><summary>Hint</summary>
#
# The unit roundoff is half of `torch.finfo(dtype).eps`, the distance from 1 to the next number. Independent errors add up
# as their squares do. Subtract in float64.
#
# </details>


# %% nbgrader={"grade_id": "judged", "solution": true}
def judged(serial, parallel, axes, terms, modules):
    """How far a number may be off, and what the difference is."""
    ### BEGIN SOLUTION
    allowed = 0.0
    if not set(axes) <= {"pipeline", "remat"}:
        u = torch.finfo(serial.dtype).eps / 2
        v = min(u, 2.0**-24)
        largest = serial[serial.isfinite()].double().abs().max().item()
        allowed = 4 * math.sqrt(modules) * (u + math.sqrt(terms) * v) * largest
    both_nan = serial.isnan() & parallel.isnan()
    differ = (serial != parallel) & ~both_nan
    if not differ.any():
        return allowed, "equal"
    off = (serial.double() - parallel.double())[differ].abs()
    return allowed, "rounding" if (off <= allowed).all() else "wrong"
    ### END SOLUTION


# %% nbgrader={"grade_id": "judged_test", "points": 2}
check.judged(judged)

# %% [markdown] nbgrader={"grade_id": "judged_target"}
# **Target:** what is allowed of numbers up to 1, for 12 modules, by the length of the sum. In 16 bits it is the rounding of
# the results that counts, in fp32 the sums.

# %%
one = torch.ones(1)
lengths = [4**k for k in range(12)]
allowed = {}
with check.limit(10):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = one.to(dtype)
        bounds = [judged(x, x, ["data"], K, 12)[0] for K in lengths]
        allowed[str(dtype).removeprefix("torch.")] = (lengths, bounds)
study.curves(
    allowed,
    xlabel="terms of the sum",
    ylabel="allowed",
    logx=True,
    logy=True,
    title="What rounding may do",
)

# %% [markdown] nbgrader={"grade_id": "first_wrong_spec"}
# ## 2 · The first tensor that differs (4 points)
#
# After the first mistake everything is wrong. So the first tensor that differs says the most. The naive search of the lesson
# looked at whole tensors of rank 0 alone; yours puts together what the ranks have, be it whole or in parts, in one
# micro-batch or several.
#
# | | |
# |---|---|
# | call | `first_wrong(serial, ranks, slack)` |
# | `serial` | a list of steps; a step is `{(kind, name): [tensor, …]}`, in the order in which it was recorded; **not changed** |
# | `ranks` | the same of each rank: `ranks[r][step]`; **not changed** |
# | `slack` | how far a number may be off, as a share of the largest magnitude of the serial tensor that it belongs to; a nan is off |
# | returns | `(step, kind, name, ranks)`: of the first difference, and on which ranks there is one, in order; or `None` |
#
# **Order:** step by step; in a step kind by kind: "start", "mask", "output", "loss", "output_grad", "norm", "gradient",
# "parameter"; of a kind the names as the serial record has them. Only "gradient" is turned around: it was written down
# after backward, and those next to the loss were there first. Other kinds, such as "local", are not compared.
#
# **Tensors:** several tensors under one key are a step's micro-batches: concatenate them along dimension 0.
# A rank may have more of them than the serial run. The result either has the serial shape, and is a copy; or it is a part,
# along the one dimension in which it is smaller: the parts of all ranks, concatenated in the order of the ranks, are the
# whole tensor. Under one key all ranks have copies, or all have parts, which may be uneven. A rank has nothing under the keys of
# another stage. Masks are of bool, all else of fp64; loss and norm have no dimension. About 25 lines.
#
# <details><summary>Hint</summary>
#
# A function of its own for the keys of a step, in order, and one for the ranks that are off. For parts: keep in mind where
# the next rank's part begins, and take as much of the serial tensor with `narrow(dim, first, size)`.
#
# </details>


# %% nbgrader={"grade_id": "first_wrong", "solution": true}
def first_wrong(serial, ranks, slack):
    """Where two runs differ first: (step, kind, name, ranks), or None."""
    ### BEGIN SOLUTION
    kinds = ("start", "mask", "output", "loss", "output_grad", "norm", "gradient", "parameter")

    def whole(calls):
        return (calls[0] if len(calls) == 1 else torch.cat(calls)).double()

    def in_order(tensors):
        found = []
        for kind in kinds:
            keys = [key for key in tensors if key[0] == kind]
            if kind == "gradient":
                keys.reverse()
            found += keys
        return found

    def ranks_off(S, parts):
        allowed = slack * S.abs().max()
        off = []
        first = 0
        for rank, x in parts.items():
            part = S
            for d in range(S.dim()):
                if x.shape[d] != S.shape[d]:
                    part = S.narrow(d, first, x.shape[d])
                    first += x.shape[d]
            if not ((x - part).abs() <= allowed).all():
                off.append(rank)
        return off

    for step, tensors in enumerate(serial):
        for key in in_order(tensors):
            parts = {r: whole(run[step][key]) for r, run in enumerate(ranks) if key in run[step]}
            off = ranks_off(whole(tensors[key]), parts)
            if off:
                return step, *key, off
    return None
    ### END SOLUTION


# %% nbgrader={"grade_id": "first_wrong_test", "points": 4}
check.first_wrong(first_wrong)

# %% [markdown] nbgrader={"grade_id": "first_wrong_target"}
# **Target:** three data-parallel ranks forget to average the gradient of one bias. `record` writes both runs down; yours
# finds the bias, and every rank, since each has its own.


# %%
def train(comm, forgotten):
    """Two steps of a small network, on this rank's rows; the gradient of `forgotten` is not averaged."""
    model = mlp([5, 7, 3], seed=0, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = record(model, steps=2)
    random = torch.Generator().manual_seed(1)
    for _ in range(2):
        x = torch.randn(12, 5, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        loss = model(x.chunk(comm.size)[comm.rank]).square().mean()
        loss.backward()
        for name, p in model.named_parameters():
            if name != forgotten:
                all_reduce_(comm, p.grad).div_(comm.size)
        with run.step(loss=all_reduce_(comm, loss.detach().clone()).div_(comm.size)):
            optimizer.step()
    # a rank's outputs have the gradients of its own mean, n times as large: they are left out
    return [{key: x for key, x in step.items() if key[0] != "output_grad"} for step in run.finished]


alone = World(1).run(train, None)[0]
rows = []
for name in (None, "2.bias", "0.weight"):
    beside = list(World(3).run(train, name))
    with check.limit(10):
        rows.append((name or "nothing", str(first_wrong(alone, beside, 1e-9))))
study.table(rows, ["forgotten", "the first difference"])

# %% [markdown] nbgrader={"grade_id": "cause_spec"}
# ## 3 · Its cause (4 points)
#
# A gradient is the first that differs. Beside what each rank has after the exchange, the record has what its own backward
# gave it before. What has been done to them?
#
# | | |
# |---|---|
# | call | `cause(serial, found, own)` |
# | `serial` | S, the serial run's gradient, fp64, of 2 dimensions; n divides the first; **not changed** |
# | `found` | a list of n tensors: P, after the exchange, of each rank; **not changed** |
# | `own` | a list of n tensors: L, before it; their mean is S; **not changed** |
# | returns | `(cause, detail)`, the first line of the table that fits |
#
# | cause | what is so | detail |
# |---|---|---|
# | "equal" | P = S on every rank | `None` |
# | "factor" | P = c·S on every rank, with one c | c, a float |
# | "missing" | on some ranks P = L or P = L/n of the same rank, on all others P = S | those ranks, in order |
# | "part" | P is the same on all ranks, Σ k·L/n, where each rank's own counts k = 0, 1 or 2 times | the list of k, one for each rank |
# | "place" | P is the same on all ranks, and each of its n chunks along dimension 0 is a chunk of S | for each place, which chunk of S stands there |
# | "other" | none of these | `None` |
#
# Two tensors are the same if no number is off by more than 1e-6 of the largest magnitude of S. n is 2 to 4. About 25 lines.
#
# <details><summary>Hint</summary>
#
# For P = c·S the c is Σ P·S / Σ S·S. There are 3ⁿ lists of k: `itertools.product((0, 1, 2), repeat=n)`.
#
# </details>


# %% nbgrader={"grade_id": "cause", "solution": true}
def cause(serial, found, own):
    """What an exchange has made of the ranks' own gradients."""
    ### BEGIN SOLUTION
    n = len(own)
    allowed = 1e-6 * serial.abs().max()

    def same(x, y):
        return bool(((x - y).abs() <= allowed).all())

    c = float((found[0] * serial).sum() / serial.square().sum())
    if all(same(P, serial) for P in found):
        return "equal", None
    if all(same(P, c * serial) for P in found):
        return "factor", c
    alone = []
    for r, (P, L) in enumerate(zip(found, own, strict=True)):
        if same(P, L) or same(P, L / n):
            alone.append(r)
    others = [P for r, P in enumerate(found) if r not in alone]
    if alone and all(same(P, serial) for P in others):
        return "missing", alone
    if not all(same(P, found[0]) for P in found):
        return "other", None
    for counts in itertools.product((0, 1, 2), repeat=n):
        part = sum(k * L for k, L in zip(counts, own, strict=True)) / n
        if same(found[0], part):
            return "part", list(counts)
    order = []
    for piece in found[0].chunk(n):
        order += [i for i, chunk in enumerate(serial.chunk(n)) if same(piece, chunk)][:1]
    if len(order) == n:
        return "place", order
    return "other", None
    ### END SOLUTION


# %% nbgrader={"grade_id": "cause_test", "points": 4}
check.cause(cause)

# %% [markdown] nbgrader={"grade_id": "cause_target"}
# **Target:** mistakes of an all-reduce on three ranks, and what your function calls them.

# %%
random = torch.Generator().manual_seed(0)
own = [torch.randn(6, 5, generator=random, dtype=torch.float64) for _ in range(3)]
S = sum(own) / 3
mistakes = {
    "the sum, not the mean": [3 * S] * 3,
    "nobody has waited for it": own,
    "the ring is one step short": [S, S, own[2] / 3],
    "rank 1's gradient is not ready": [(own[0] + own[2]) / 3] * 3,
    "chunks are put back one place on": [S.roll(2, 0)] * 3,
}
rows = []
for title, found in mistakes.items():
    with check.limit(10):
        name, detail = cause(S, found, own)
    rows.append((title, name, f"{detail:g}" if isinstance(detail, float) else str(detail)))
study.table(rows, ["on three ranks", "cause", "detail"])

# %% [markdown] nbgrader={"grade_id": "counted_spec"}
# ## 4 · What a norm counts (2 points)
#
# All gradients are right, and the norm by which they are clipped is not: a part is left out, or a tensor of which several
# ranks hold copies is counted on each of them.
#
# | | |
# |---|---|
# | call | `counted(norm, gradients, copies)` |
# | `norm` | what the parallel run says, a float |
# | `gradients` | `{name: tensor}`, whole and right, in fp64, fp32, bf16 or fp16; at most five; **not changed** |
# | `copies` | `{name: how many ranks hold a copy of it}`, 1 for what is cut among the ranks; **not changed** |
# | returns | `{name: k}`: how often each counts, so that norm² = Σ k·‖gradient‖², where k is 0, 1 or its number of copies; `None` if there are no such k |
#
# Squares are equal if they differ by less than one in a million. There is at most one way to choose them all. About 10 lines.


# %% nbgrader={"grade_id": "counted", "solution": true}
def counted(norm, gradients, copies):
    """How often each gradient counts in a norm."""
    ### BEGIN SOLUTION
    names = list(gradients)
    squares = [float(gradients[name].double().square().sum()) for name in names]
    choices = [{0, 1, copies[name]} for name in names]
    for counts in itertools.product(*choices):
        total = sum(k * square for k, square in zip(counts, squares, strict=True))
        if math.isclose(total, norm**2, rel_tol=1e-6):
            return dict(zip(names, counts, strict=True))
    return None
    ### END SOLUTION


# %% nbgrader={"grade_id": "counted_test", "points": 2}
check.counted(counted)

# %% [markdown] nbgrader={"grade_id": "counted_target"}
# **Target:** two tensor-parallel ranks have a part of a matrix each, and copies of a LayerNorm and of a bias. Four norms, and
# what is in them.

# %%
gradients = {"matrix": torch.full((3, 3), 2.0), "LayerNorm": torch.ones(5), "bias": torch.ones(3)}
copies = {"matrix": 1, "LayerNorm": 2, "bias": 2}
rows = []
for square in (44, 49, 41, 39):
    with check.limit(10):
        found = counted(math.sqrt(square), gradients, copies)
    rows.append((f"√{square}", *((found or {}).get(name, "") for name in gradients)))
study.table(rows, ["norm", *gradients])

# %% [markdown] nbgrader={"grade_id": "guilty_spec"}
# ## 5 · Who hangs (4 points)
#
# A watchdog has ended the run, and left PyTorch's flight recorder of each rank. Nearly all ranks are in a call that is not
# over. Which ranks do they wait for? In the lesson there was one group, and whoever had not come to its call was guilty. With
# several groups most of those who have not come are waiting themselves.
#
# | | |
# |---|---|
# | call | `guilty(dumps)` |
# | `dumps` | `{rank: dump}`; a rank that ended before the others has left none; **not changed** |
# | returns | `(ranks, group, number)`: the guilty ranks, in order, and the group's name and the number of the call; `None` where nothing hangs |
#
# A dump has `dump["pg_config"][group]["ranks"]`, the ranks of each group that this rank is in, as JSON: `"[0, 2]"`. And it
# has `dump["entries"]`, its last calls, in order (the recorder is a ring: the first ones are overwritten). Of an entry you
# need
#
# | | |
# |---|---|
# | `["process_group"][0]` | the name of its group |
# | `["collective_seq_id"]` | its number: call number i of a group is one call of all its ranks |
# | `["is_p2p"]` | True for a send or a receive, which may well have been posted ahead: pass them over |
# | `["profiling_name"]`, `["input_sizes"]`, `["input_dtypes"]` | which call it is |
# | `["state"]`, `["retired"]` | it is over if the state is "completed" or it is retired |
# | `["time_created_ns"]` | when its rank came to it |
#
# 1. A group hangs in its first call that is not over on some rank.
# 2. If its ranks have made different calls under that number (another name, other sizes or dtypes), that is the call. Guilty
#    are the ranks whose call fewer than half of those that came have made. There is at most one such group.
# 3. If there is none: ranks of a hanging group that have no entry under that number have not come. Some of them cannot: they
#    wait in the hanging call of another group. The others are guilty.
# 4. These may be waited for in several calls. Of these, take the one to which some rank came first.
#
# About 35 lines.
#
# <details><summary>Hint</summary>
#
# First make `{(group, number): {rank: entry}}` of all collectives, and the ranks of each group from whatever dump has it. Then
# the hanging calls, one for each group. Then who waits in any of them.
#
# </details>


# %% nbgrader={"grade_id": "guilty", "solution": true}
def guilty(dumps):
    """Whom all ranks wait for, and in which call."""
    ### BEGIN SOLUTION
    members = {}
    calls = {}
    for rank, dump in dumps.items():
        for group, config in dump["pg_config"].items():
            members[group] = json.loads(config["ranks"])
        for entry in dump["entries"]:
            if not entry["is_p2p"]:
                place = entry["process_group"][0], entry["collective_seq_id"]
                calls.setdefault(place, {})[rank] = entry

    def over(entry):
        return entry["state"] == "completed" or entry["retired"]

    def what(entry):
        return entry["profiling_name"], entry["input_sizes"], entry["input_dtypes"]

    hanging = {}
    for group, number in sorted(calls, key=lambda place: place[1]):
        entries = calls[group, number]
        if group not in hanging and not all(over(entry) for entry in entries.values()):
            hanging[group] = number
    waiting = set()
    late = {}
    for group, number in hanging.items():
        entries = calls[group, number]
        kinds = [what(entry) for entry in entries.values()]
        rare = [r for r, entry in entries.items() if kinds.count(what(entry)) < len(kinds) / 2]
        if rare:
            return sorted(rare), group, number
        waiting |= {r for r, entry in entries.items() if not over(entry)}
        late[group] = set(members[group]) - set(entries)
    ranks = set().union(*late.values()) - waiting
    found = []
    for group, number in hanging.items():
        if late[group] & ranks:
            created = min(entry["time_created_ns"] for entry in calls[group, number].values())
            found.append((created, group, number))
    if not found:
        return None
    _, group, number = min(found)
    return sorted(ranks), group, number
    ### END SOLUTION


# %% nbgrader={"grade_id": "guilty_test", "points": 4}
check.guilty(guilty)

# %% [markdown] nbgrader={"grade_id": "guilty_target"}
# **Target:** four ranks, data 2 × tensor 2. Rank 3 reads a file. Rank 2 waits for it in group 2, rank 0 waits for rank 2 in
# group 3, and rank 1 for rank 3 in group 4.


# %%
def entry(group, number, over, created):
    return {
        "process_group": (group, ""),
        "collective_seq_id": number,
        "is_p2p": False,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "state": "completed" if over else "started",
        "retired": over,
        "time_created_ns": created,
    }


groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
entries = {
    0: [entry("1", 5, True, 10), entry("3", 8, False, 30)],
    1: [entry("1", 5, True, 11), entry("4", 6, False, 31)],
    2: [entry("2", 5, False, 12)],
    3: [entry("2", 4, True, 2)],
}
dumps = {
    rank: {
        "pg_config": {g: {"ranks": str(ranks)} for g, ranks in groups.items() if rank in ranks},
        "entries": own,
    }
    for rank, own in entries.items()
}
with check.limit(10):
    found = guilty(dumps)
study.table([[str(found)]], ["guilty: ranks, group, number"])

# %% [markdown] nbgrader={"grade_id": "to_hugging_face_spec"}
# ## 6 · To Hugging Face's layout (3 points)
#
# The lesson put one whole matrix into GPT-2's order. Here each tensor-parallel rank has its part of a layer, under our names.
# Put the parts together as GPT-2 has them in Hugging Face's `transformers`: weights and biases, those that are cut and those
# that every rank has.
#
# | | |
# |---|---|
# | call | `to_hugging_face(ranks, heads)` |
# | `ranks` | of each rank `{our name: its part}`; **not changed** |
# | `heads` | of all ranks together; the first ranks may have one more than the others |
# | returns | `{their name: tensor}`, with all eight names, in the same dtype |
#
# With the hidden size H, heads of size D = H/heads, and F features in the MLP:
#
# | ours | whole | cut along | theirs | shape |
# |---|---|---|---|---|
# | `attention.qkv.weight`, `.bias` | (3H, H), (3H,) | rows, so that a rank has whole heads | `attn.c_attn.weight`, `.bias` | (H, 3H), (3H,) |
# | `attention.proj.weight` | (H, H) | columns | `attn.c_proj.weight` | (H, H) |
# | `attention.proj.bias` | (H,) | not: each rank has a copy | `attn.c_proj.bias` | (H,) |
# | `mlp.fc.weight`, `.bias` | (F, H), (F,) | rows | `mlp.c_fc.weight`, `.bias` | (H, F), (F,) |
# | `mlp.proj.weight` | (H, F) | columns | `mlp.c_proj.weight` | (F, H) |
# | `mlp.proj.bias` | (H,) | not: each rank has a copy | `mlp.c_proj.bias` | (H,) |
#
# Ours computes x·Wᵀ, theirs x·W. The rows of our `qkv` are one head after the other, of each its D rows of queries, then its
# D of keys, then its D of values. Theirs has all heads' queries first, then all keys, then all values. About 15 lines.
#
# <details><summary>Hint</summary>
#
# `x.unflatten(0, (heads, 3, -1))` names what the rows are; `transpose` changes two of the dimensions, `flatten(0, 2)` makes
# rows of them again. It works for weights and biases.
#
# </details>


# %% nbgrader={"grade_id": "to_hugging_face", "solution": true}
def to_hugging_face(ranks, heads):
    """A layer's weights by the names and in the layout of GPT-2."""
    ### BEGIN SOLUTION
    layers = {
        "attention.qkv": ("attn.c_attn", "rows"),
        "attention.proj": ("attn.c_proj", "columns"),
        "mlp.fc": ("mlp.c_fc", "rows"),
        "mlp.proj": ("mlp.c_proj", "columns"),
    }
    found = {}
    for ours, (theirs, cut) in layers.items():
        weight = torch.cat([rank[f"{ours}.weight"] for rank in ranks], 0 if cut == "rows" else 1)
        bias = ranks[0][f"{ours}.bias"]
        if cut == "rows":
            bias = torch.cat([rank[f"{ours}.bias"] for rank in ranks])
        if ours == "attention.qkv":
            weight = weight.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            bias = bias.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        found[f"{theirs}.weight"] = weight.t().contiguous()
        found[f"{theirs}.bias"] = bias.clone()
    return found
    ### END SOLUTION


# %% nbgrader={"grade_id": "to_hugging_face_test", "points": 3}
check.to_hugging_face(to_hugging_face)

# %% [markdown] nbgrader={"grade_id": "to_hugging_face_target"}
# **Target:** two heads of size 2 on two ranks. The numbers say whose they are: tens 1, 2 and 3 for query, key and value, units for
# the head.

# %%
names = ("attention.qkv", "attention.proj", "mlp.fc", "mlp.proj")
parts = []
for head in range(2):
    qkv = torch.tensor([10.0, 10, 20, 20, 30, 30]) + head
    shapes = {
        "attention.qkv": (6, 4),
        "attention.proj": (4, 2),
        "mlp.fc": (3, 4),
        "mlp.proj": (4, 3),
    }
    part = {f"{name}.weight": torch.zeros(shapes[name]) for name in names}
    part |= {f"{name}.bias": torch.zeros(shapes[name][0]) for name in names}
    parts.append(part | {"attention.qkv.bias": qkv})
with check.limit(10):
    theirs = to_hugging_face(parts, 2)
biases = {f"rank {r}": part["attention.qkv.bias"] for r, part in enumerate(parts)}
biases["c_attn.bias"] = theirs["attn.c_attn.bias"]
study.table(
    [(name, " ".join(str(int(x)) for x in bias)) for name, bias in biases.items()], ["", "bias"]
)

# %% [markdown] nbgrader={"grade_id": "predict_field_guide_spec"}
# ## 7 · Predict (2 points)
#
# - `sgd`: on 8 ranks gradients are summed, and should be averaged. How many times too large is a step of SGD, without
#   momentum?
# - `adam`: and a step of Adam, where all gradients have been so from the start, and ε is negligible?
# - `rounding`: a sum of 1,048,576 terms is added up in fp32, in another order. By what share of its size is it off, if errors
#   are independent: √K·u?
# - `norm`: the norm of all gradients is 4, that of the LayerNorms' alone is 1. 4 tensor-parallel ranks hold copies of
#   these, and each counts its own. What does the run say the norm is?
# - `steps`: the flight recorder keeps the last 2,000 calls of a rank, of which a step makes 250. How many steps are in it?
# - `hours`: 512 GPUs hang until the watchdog ends the run after 10 minutes. How many GPU-hours is that?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_field_guide", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_field_guide.numbers(STUDENT)
sgd = adam = rounding = norm = steps = hours = None
### BEGIN SOLUTION
sgd = 8
adam = 1
rounding = math.sqrt(1_048_576) * 2**-24
norm = math.sqrt(4**2 + (4 - 1) * 1**2)
steps = 2_000 / 250
hours = 512 * 10 / 60
### END SOLUTION

# %% nbgrader={"grade_id": "predict_field_guide_test", "points": 2}
check.predict_field_guide(sgd, adam, rounding, norm, steps, hours, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_field_guide_target"}
# **Target:** both optimizers, with gradients that are 8 times too large, beside yours.


# %%
def step_of(optimizer, factor):
    """How far one step moves a parameter whose gradient is `factor`."""
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    p.grad = torch.full_like(p, factor)
    optimizer([p], lr=0.1).step()
    return -p.item()


rows = []
for name, optimizer, yours in (("SGD", torch.optim.SGD, sgd), ("Adam", torch.optim.Adam, adam)):
    rows.append((name, yours, round(step_of(optimizer, 8.0) / step_of(optimizer, 1.0), 3)))
study.table(rows, ["a step of", "predicted", "times as large"])

# %% [markdown] nbgrader={"grade_id": "how_long_a_timeout_spec"}
# ## 8 · How long should the timeout be? (2 points, graded by hand)
#
# A run on 512 GPUs hangs once every two days. Then all of it stands still until the watchdog's timeout T is over, and a
# restart from the last checkpoint costs another 12 minutes, with the work that is done again. A short T has a price, too: 24
# times a day a checkpoint is saved, during which the others wait for the slowest rank. That takes 20 s on average, and longer
# than t with probability exp(−t/20 s). If it takes longer than T, the watchdog ends a healthy run, at the same price.
#
# **How many minutes a day does the timeout cost, as a function of T, and which T is best?** NCCL's default in PyTorch is 10
# minutes, gloo's 30: how many GPU-hours a day would your T save beside each?
#
# First draw the cost against T, from half a minute to half an hour, with the parts that it consists of. Then write five to ten
# sentences.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes, units and a legend, from which the best T can be read; this T within 10 %, and both savings |
# | ½ | which part decides on either side of the best T, and how it moves if the saves become slower or hangs rarer, with a reason |
# | ½ | one thing that this model leaves out, and in which direction it moves the best T |

# %% nbgrader={"grade_id": "how_long_a_timeout_plot", "solution": true}
### BEGIN SOLUTION
RESTART = 12 * 60.0  # seconds


def lost(T):
    """Seconds a day: hangs, and healthy runs that are ended."""
    hangs = 0.5 * (T + RESTART)
    false_alarms = 24 * math.exp(-T / 20) * (T + RESTART)
    return hangs, false_alarms


timeouts = [30 * 1.05**k for k in range(85)]
hangs = [lost(T)[0] for T in timeouts]
false_alarms = [lost(T)[1] for T in timeouts]
both = [sum(lost(T)) for T in timeouts]
best = min(timeouts, key=lambda T: sum(lost(T)))
display(
    study.curves(
        {
            "both": (timeouts, both),
            "hangs": (timeouts, hangs),
            "false alarms": (timeouts[:40], false_alarms[:40]),
        },
        logx=True,
        logy=True,
        xunit="s",
        yunit="s",
        xlabel="timeout, T",
        ylabel="lost in a day",
        title="What a timeout costs",
    )
)
print(f"best T: {best:.0f} s, which costs {sum(lost(best)) / 60:.1f} minutes a day")
for name, T in (("NCCL's", 600), ("gloo's", 1800)):
    print(
        f"{name} {T / 60:.0f} minutes: {512 * (sum(lost(T)) - sum(lost(best))) / 3600:.0f} GPU-hours more"
    )
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "how_long_a_timeout", "solution": true, "points": 2}
# The best timeout is about two and a half minutes.
#
# A day costs 0.5·(T + 720 s) for hangs and 24·exp(−T/20 s)·(T + 720 s) for healthy runs that are ended. At the best T an
# extra second costs half a second a day for hangs, and saves as much in false alarms, so that 24·exp(−T/20)·(T + 720)/20 is
# about 0.5, which gives T = 153 s. Such a day costs 7.4 minutes. Ten minutes would cost some 30 GPU-hours a day more, half an
# hour some 116.
#
# Below the best T the false alarms decide, and they grow e-fold with every 20 s; above it only the hangs count, and the cost
# rises slowly, in a straight line. So it is better to be a minute above the best T than half a minute below. If a save took
# 40 s on average, the best T would be nearly twice as long, since only T/40 s counts in the exponential. With hangs ten times
# as rare it would grow by 20 s · ln 10 = 46 s only.
#
# The model leaves out that pauses have long tails: the first step compiles and may take minutes, and a file system can stand
# still. An exponential distribution thinks this impossible, so the true best T is longer. One can have both: a long timeout
# for the first steps and around saves, and a short one for the rest.
