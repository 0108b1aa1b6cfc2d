# %% [markdown] nbgrader={"grade_id": "top"}
# # 20 Experts: exercises
#
# A layer has E MLPs, the experts, and each token goes to one or a few of them. You decide who finds a seat, send rows
# to the ranks that hold their experts and back, and average gradients of which each rank has others.
#
# Five exercises, 12 points. After each, run the check: it holds your function against one rank that has everything, on
# 1 to 6 ranks, with uneven parts, then in real processes. It says what is wrong. Try as often as you like.
#
# You may call `minidist.collectives` and `minidist.split`. What is refused here is `minidist.parallel` and
# `minidist.models`.
#
# Everywhere rank r holds the experts `first` to `end − 1`, with `first, end = bounds(uneven(experts, n))[r]`.

# %% nbgrader={"grade_id": "setup"}
import torch

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_, all_to_all
from minidist.comm import World
from minidist.split import bounds, uneven

# %% [markdown] nbgrader={"grade_id": "seated_spec"}
# ## 1 · Seats (2 points)
#
# An expert takes at most `seats` tokens of a sample; a choice that comes later is dropped. Who sits?
#
# | | |
# |---|---|
# | call | `seated(choices, experts, seats)`; one rank, no Comm |
# | `choices` | int64, (T, k): the experts of each token of a sample, the best first, no expert twice; **not changed** |
# | `experts`, `seats` | E, and the seats of each, which may be 0 |
# | returns | bool, (T, k): True where a choice finds a seat |
#
# **Order:** token by token, and of a token the best choice first. So no token hangs on one that comes later. About 4 lines.
#
# <details><summary>Hint</summary>
#
# `choices.flatten()` is that order. Of a 0/1 matrix (T·k, E) with a 1 at each choice's expert, `cumsum(0)` counts who has
# come so far.
#
# </details>


# %% nbgrader={"grade_id": "seated", "solution": true}
def seated(choices, experts, seats):
    """Which choices find a seat, (T, k)."""
    ### BEGIN SOLUTION
    chosen = choices.flatten()[:, None] == torch.arange(experts)  # (T·k, E)
    so_far = chosen.cumsum(0)
    place = so_far.gather(1, choices.flatten()[:, None])  # 1 for the first that came
    return (place <= seats).view(choices.shape)
    ### END SOLUTION


# %% nbgrader={"grade_id": "seated_test", "points": 2}
check.seated(seated)

# %% [markdown] nbgrader={"grade_id": "seated_target"}
# **Target:** with two seats at each of two experts, tokens 0 and 1 find expert 0, and token 4 comes too late.

# %%
choices = torch.tensor([[0], [0], [1], [1], [0]])
study.table(
    [[t, int(choices[t, 0]), bool(sits)] for t, sits in enumerate(seated(choices, 2, 2)[:, 0])],
    ["token", "expert", "finds a seat"],
)

# %% [markdown] nbgrader={"grade_id": "dispatch_spec"}
# ## 2 · Dispatch (3 points)
#
# Each row goes to the rank that holds its expert. Nobody knows yet how many come.
#
# | | |
# |---|---|
# | call | `dispatch(comm, rows, expert, experts)` |
# | `rows` | this rank's rows, (N, H); N differs from rank to rank, and may be 0; **not changed** |
# | `expert` | int64, (N,): the expert of each row; **not changed** |
# | returns | `(received, table)` |
# | `received` | the rows of this rank's experts, one expert after the other; those of an expert by rank, and of a rank in its order |
# | `table` | int64, (n, own): how many rows of each rank are for each of this rank's experts |
# | cost | a row is sent once, to one rank; a count of 8 bytes goes to the rank that it is about |
#
# About 12 lines.
#
# <details><summary>Hint</summary>
#
# Sort the rows by expert (`argsort(stable=True)`): then what goes to one rank lies together, and `all_to_all` takes
# `sizes` and `out_sizes`. An all-to-all of counts comes before it. What comes lies by rank, then by expert:
# `received.split(table.flatten().tolist())` are the pieces, and `pieces[i::own]` those of expert i.
#
# </details>


# %% nbgrader={"grade_id": "dispatch", "solution": true}
def dispatch(comm, rows, expert, experts):
    """The rows of this rank's experts, and how many came from whom for which."""
    ### BEGIN SOLUTION
    sizes = uneven(experts, comm.size)
    own = sizes[comm.rank]
    counts = expert.bincount(minlength=experts)
    table = all_to_all(comm, counts, sizes, [own] * comm.size).view(comm.size, own)
    to = [int(counts[first:end].sum()) for first, end in bounds(sizes)]
    come = table.sum(1).tolist()
    received = all_to_all(comm, rows[expert.argsort(stable=True)], to, come)
    pieces = received.split(table.flatten().tolist())
    ordered = [piece for i in range(own) for piece in pieces[i::own]]
    return torch.cat(ordered), table
    ### END SOLUTION


# %% nbgrader={"grade_id": "dispatch_test", "points": 3}
check.dispatch(dispatch)

# %% [markdown] nbgrader={"grade_id": "dispatch_target"}
# **Target:** three experts on two ranks; rank 0 holds experts 0 and 1, rank 1 expert 2.

# %%
rows = [torch.tensor([[10.0], [11.0], [12.0]]), torch.tensor([[20.0], [21.0]])]
wanted = [torch.tensor([2, 0, 1]), torch.tensor([0, 2])]
found = World(2).run(
    lambda comm, rows, wanted: dispatch(comm, rows[comm.rank], wanted[comm.rank], 3)[0][:, 0],
    rows,
    wanted,
)
study.holdings(
    {"own rows": [x[:, 0] for x in rows], "received": list(found)}, title="Experts 2 0 1 │ 0 2"
)

# %% [markdown] nbgrader={"grade_id": "combine_spec"}
# ## 3 · Combine (3 points)
#
# The experts have computed, and each result goes back to its token.
#
# | | |
# |---|---|
# | call | `combine(comm, results, table, expert, experts)` |
# | `results` | (R, H), in the order of `received`; **not changed** |
# | `table`, `expert`, `experts` | as in exercise 2; **not changed** |
# | returns | the result of each of this rank's rows, (N, H), in the order of `expert` |
# | cost | a result is sent once, to one rank; nothing else is sent |
#
# About 10 lines.
#
# <details><summary>Hint</summary>
#
# Everything backwards: from one expert after the other to one rank after the other, then an all-to-all with the two
# lists of sizes exchanged, then from sorted by expert to the tokens' order: `out[order] = sorted`.
#
# </details>


# %% nbgrader={"grade_id": "combine", "solution": true}
def combine(comm, results, table, expert, experts):
    """The result of each of this rank's rows."""
    ### BEGIN SOLUTION
    n = comm.size
    pieces = results.split(table.T.flatten().tolist())  # by expert, then by rank
    by_rank = [piece for r in range(n) for piece in pieces[r::n]]
    counts = expert.bincount(minlength=experts)
    come = [int(part.sum()) for part in counts.split(uneven(experts, n))]
    back = all_to_all(comm, torch.cat(by_rank), table.sum(1).tolist(), come)
    out = torch.empty_like(back)
    out[expert.argsort(stable=True)] = back
    return out
    ### END SOLUTION


# %% nbgrader={"grade_id": "combine_test", "points": 3}
check.combine(combine)

# %% [markdown] nbgrader={"grade_id": "combine_target"}
# **Target:** experts that do nothing: each rank has its own rows again.


# %%
def there_and_back(comm, rows, wanted):
    received, table = dispatch(comm, rows[comm.rank], wanted[comm.rank], 3)
    return combine(comm, received, table, wanted[comm.rank], 3)[:, 0]


study.holdings(
    {
        "own rows": [x[:, 0] for x in rows],
        "there and back": list(World(2).run(there_and_back, rows, wanted)),
    },
    title="Experts 2 0 1 │ 0 2",
)

# %% [markdown] nbgrader={"grade_id": "average_experts_spec"}
# ## 4 · Who averages what (2 points)
#
# n ranks are data × expert ranks: rank d·ep + e holds the experts e, as all ranks with this e do. Each rank has samples
# of its own, and the mean of its own loss. Backward has run, through both all-to-alls.
#
# | | |
# |---|---|
# | call | `average_experts(comm, ep, expert, rest)` |
# | `expert` | this rank's gradient of its experts; **not changed** |
# | `rest` | that of all else, which is whole on every rank; **not changed** |
# | returns | `(expert, rest)`: the gradients of the mean of all n ranks' losses |
# | cost | an all-reduce of `expert` among the ranks that hold the same, one of `rest` among all |
#
# An expert had the rows of all `ep` ranks of its group, and backward gave it the *sum* of their losses' gradients. About
# 4 lines. `comm.split(colors)`, with a number for each rank, is a Comm of those with the same number.
#
# <details><summary>Hint</summary>
#
# Write down the mean of n losses as a sum, and ask which of its summands are in a rank's gradient already.
#
# </details>


# %% nbgrader={"grade_id": "average_experts", "solution": true}
def average_experts(comm, ep, expert, rest):
    """The gradients of experts and of the rest, of the mean of all ranks' losses."""
    ### BEGIN SOLUTION
    data = comm.split([rank % ep for rank in range(comm.size)])
    expert = all_reduce_(data, expert.clone()) / comm.size
    rest = all_reduce_(comm, rest.clone()) / comm.size
    return expert, rest
    ### END SOLUTION


# %% nbgrader={"grade_id": "average_experts_test", "points": 2}
check.average_experts(average_experts)

# %% [markdown] nbgrader={"grade_id": "average_experts_target"}
# **Target:** 2 × 2 ranks. Ranks 0 and 2 hold the same experts: (1 + 3)/4 = 1; ranks 1 and 3: (2 + 4)/4 = 1.5. The rest
# is 2.5 everywhere.

# %%
found = World(4).run(
    lambda comm: torch.stack(
        average_experts(comm, 2, torch.tensor(comm.rank + 1.0), torch.tensor(comm.rank + 1.0))
    )
)
study.table(
    [[rank, *map(float, both)] for rank, both in enumerate(found)], ["rank", "experts", "rest"]
)

# %% [markdown] nbgrader={"grade_id": "predict_experts_spec"}
# ## 5 · Predict (2 points)
#
# A layer of 64 experts over 8 ranks. A rank has 4,096 tokens, in samples of 1,024; each goes to 2 experts; H = 2,048, 2
# bytes a number. Nothing is dropped, and all experts are asked for alike, unless it is said otherwise.
#
# - `rows_away`: how many rows does a rank send away in dispatch?
# - `bytes_sent`: how many bytes of rows does a rank send in forward and backward, dispatch and combine together?
# - `seats`: of an expert in a sample, with a capacity factor of 1.25?
# - `naive`: every rank gathers all rows, and all results are summed by a reduce-scatter, by rings. How many times the bytes of rows?
# - `balance`: E·Σ f·P with one expert a token, where all go to the same one, and the router is sure of it?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_experts", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_experts.numbers(STUDENT)
rows_away = bytes_sent = seats = naive = balance = None
### BEGIN SOLUTION
n = 8
E = 64
H = 2_048
rows_away = 4_096 * 2 * (n - 1) / n
bytes_sent = 4 * rows_away * H * 2
seats = 1.25 * 2 * 1_024 / E
naive = n
balance = E
### END SOLUTION

# %% nbgrader={"grade_id": "predict_experts_test", "points": 2}
check.predict_experts(rows_away, bytes_sent, seats, naive, balance, of=STUDENT)

# %% [markdown] nbgrader={"grade_id": "predict_experts_target"}
# **Target:** the rows of one all-to-all in a World without data, beside yours.


# %%
def one_dispatch(comm):
    rows = torch.empty(4_096 * 2, 2_048, dtype=torch.bfloat16, device="meta")
    all_to_all(comm, rows)


world = World(8, device="meta")
world.run(one_dispatch)
study.table(
    [["dispatch", (bytes_sent or 0) / 4, world.trace.bytes_sent(0)]], ["bytes", "predicted", "run"]
)
