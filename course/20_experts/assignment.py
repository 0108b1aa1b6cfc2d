# %% [markdown] nbgrader={"grade_id": "top"}
# # 20 Experts: exercises
#
# You seat the surest tokens first, send a token once to each rank that needs it however many of its experts lie there, bring the sums home, and clip gradients when each rank holds those of other experts. Each is one step beyond what the lesson does, so its code does not pass as it stands.
#
# Six exercises, 16 points. After each of the first five, run the check: it compares your function with one rank that has everything, on 1 to 6 ranks, with uneven parts, then in real processes. It says what is wrong. Try as often as you like. What your function prints is not shown there; to see it, call it in a cell of your own. The last exercise is graded by hand.
#
# You may call `minidist.collectives` and `minidist.split`. What is refused is `minidist.parallel`, `minidist.models` and `minidist.train`.
#
# Everywhere rank r holds the experts `first` to `end − 1`, with `first, end = bounds(uneven(experts, n))[r]`: `uneven(5, 3)` is `[2, 2, 1]`, and `bounds` of it `[(0, 2), (2, 4), (4, 5)]`. There are at least as many experts as ranks.

# %% nbgrader={"grade_id": "setup"}
import torch

import minicheck as check

from minidist import study
from minidist.collectives import all_reduce_, all_to_all
from minidist.comm import World
from minidist.split import bounds, uneven

# %% [markdown] nbgrader={"grade_id": "seated_spec"}
# ## 1 · The surest first (2 points)
#
# An expert takes at most `seats` tokens of a sample. In the lesson they sit down in their order, because a language model must not look ahead. A model of images may look at the whole sample, and there it is better to drop those choices of which the router was least sure.
#
# | | |
# |---|---|
# | call | `seated(choices, gates, experts, seats)`; one rank, no Comm |
# | `choices` | int64, (T, k): the experts of each token of a sample, no expert twice; **not changed** |
# | `gates` | float, (T, k): the gate of each choice; **not changed** |
# | `experts`, `seats` | E, and the seats of each, which may be 0 |
# | returns | bool, (T, k): True where a choice finds a seat |
#
# **Order:** the choice with the largest gate first, whichever token it belongs to. Of equal gates, the one that stands first in `choices.flatten()`. About 7 lines.
#
# <details><summary>Hint</summary>
#
# `gates.flatten().argsort(descending=True, stable=True)` is that order. Of a 0/1 matrix (T·k, E) with a 1 at each choice's expert, in this order, `cumsum(0)` counts who has come so far. What you find then is in the order of the gates, and has to go back to the places of the choices.
#
# </details>


# %% nbgrader={"grade_id": "seated", "solution": true}
def seated(choices, gates, experts, seats):
    """Which choices find a seat, (T, k)."""
    ### BEGIN SOLUTION
    order = gates.flatten().argsort(descending=True, stable=True)
    wanted = choices.flatten()[order]
    chosen = wanted[:, None] == torch.arange(experts)  # (T·k, E)
    so_far = chosen.cumsum(0)
    place = so_far.gather(1, wanted[:, None])[:, 0]  # 1 for the surest
    sits = torch.empty(choices.numel(), dtype=torch.bool)
    sits[order] = place <= seats
    return sits.view(choices.shape)
    ### END SOLUTION


# %% nbgrader={"grade_id": "seated_test", "points": 2}
check.seated(seated)

# %% [markdown] nbgrader={"grade_id": "seated_target"}
# **Target:** three tokens want expert 0, which has two seats. The first of them is the least sure, and is dropped.

# %%
choices = torch.tensor([[0], [0], [1], [1], [0]])
gates = torch.tensor([[0.4], [0.9], [0.6], [0.5], [0.7]])
with check.limit(10):
    found = seated(choices, gates, 2, 2)[:, 0]
study.table(
    [[t, int(choices[t, 0]), float(gates[t, 0]), bool(sits)] for t, sits in enumerate(found)],
    ["token", "expert", "gate", "finds a seat"],
)

# %% [markdown] nbgrader={"grade_id": "dispatch_spec"}
# ## 2 · Once to each rank (4 points)
#
# With eight experts a token, a token often has several experts on one rank. The lesson's dispatch sends a row for each of them. Send each token only **once** to each rank that holds an expert of it, and with it the gates of that rank's experts, so that the rank can multiply and add up by itself.
#
# | | |
# |---|---|
# | call | `dispatch(comm, tokens, choices, gates, experts)` |
# | `tokens` | this rank's tokens, (T, H); T differs from rank to rank, and may be 0; **not changed** |
# | `choices` | int64, (T, k): the experts of each, no expert twice; **not changed** |
# | `gates` | (T, k), of the tokens' dtype, none of them 0; **not changed** |
# | returns | `(received, weights, come)` |
# | `received` | (R, H): the tokens that chose an expert of this rank, each once; those of rank 0 first, then those of rank 1, …, and of a rank in its order |
# | `weights` | (R, own), of the tokens' dtype: for each row the gate of each of this rank's experts, and 0 for an expert that it did not choose |
# | `come` | int64, (n,): how many of the rows came from each rank |
# | cost | to another rank go, for each token that it needs, H numbers and a weight for each of its experts; and a count of 8 bytes |
#
# All ranks call it together. About 14 lines.
#
# <details><summary>Hint</summary>
#
# For each rank: `chosen = choices[..., None] == torch.arange(first, end)` is (T, k, end − first), and `(gates[..., None] * chosen).sum(1)` are the weights. A token goes there if `chosen.any(2).any(1)`. Counts go first, in an `all_to_all` of n numbers. Ranks may hold different numbers of experts, so weights travel as one flat list; `all_to_all(comm, flat, sizes, out_sizes)` takes how many numbers go to each rank and come from each.
#
# </details>


# %% nbgrader={"grade_id": "dispatch", "solution": true}
def dispatch(comm, tokens, choices, gates, experts):
    """The tokens that need this rank, the gates of its experts, and how many came from whom."""
    ### BEGIN SOLUTION
    held = uneven(experts, comm.size)
    own = held[comm.rank]
    rows, weights = [], []
    for first, end in bounds(held):
        chosen = choices[..., None] == torch.arange(first, end)  # (T, k, end − first)
        here = chosen.any(2).any(1)
        rows.append(tokens[here])
        weights.append((gates[..., None] * chosen).sum(1)[here])
    to = [len(part) for part in rows]
    come = all_to_all(comm, torch.tensor(to))
    received = all_to_all(comm, torch.cat(rows), to, come.tolist())
    flat = torch.cat([part.flatten() for part in weights])
    sizes = [part.numel() for part in weights]
    arrived = all_to_all(comm, flat, sizes, (come * own).tolist())
    return received, arrived.view(-1, own), come
    ### END SOLUTION


# %% nbgrader={"grade_id": "dispatch_test", "points": 4}
check.dispatch(dispatch)

# %% [markdown] nbgrader={"grade_id": "dispatch_target"}
# **Target:** three experts on two ranks; rank 0 holds experts 0 and 1, rank 1 expert 2. Token 10 chose 0 and 1, token 11 chose 1 and 2, token 20 chose 2 and 0. Tokens 11 and 20 travel, and 10 stays, as one row.

# %%
tokens = [torch.tensor([[10.0], [11.0]]), torch.tensor([[20.0]])]
wanted = [torch.tensor([[0, 1], [1, 2]]), torch.tensor([[2, 0]])]
shares = [torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([[0.625, 0.375]])]


def there(comm, tokens, wanted, shares):
    r = comm.rank
    received, weights, _ = dispatch(comm, tokens[r], wanted[r], shares[r], 3)
    return received[:, 0], weights


with check.limit(10):
    found = World(2).run(there, tokens, wanted, shares)
for rank, (received, weights) in enumerate(found):
    print(f"rank {rank}: tokens {received.tolist()}, weights {weights.tolist()}")

# %% [markdown] nbgrader={"grade_id": "combine_spec"}
# ## 3 · One sum a rank (3 points)
#
# Each rank has computed, for every row that it received, the sum of its experts by their weights. These sums go home, and those of one token add up.
#
# | | |
# |---|---|
# | call | `combine(comm, results, come, choices, experts)` |
# | `results` | (R, H), in the order of `received`: the sum of this rank's experts for each row, with the weights in it; **not changed** |
# | `come`, `choices`, `experts` | as in exercise 2; **not changed** |
# | returns | (T, H), of the results' dtype: for each of this rank's tokens the sum of the rows that come back for it |
# | cost | a row is sent once, to one rank; nothing else is sent |
#
# About 9 lines.
#
# <details><summary>Hint</summary>
#
# You know without a message which rank sends how many rows back: as many as you sent there. They come in the order of your tokens, so that `out[here] += rows` puts them in their places, if `here` is the mask of the tokens that went to that rank.
#
# </details>


# %% nbgrader={"grade_id": "combine", "solution": true}
def combine(comm, results, come, choices, experts):
    """The sum of what comes back for each of this rank's tokens."""
    ### BEGIN SOLUTION
    went = []
    for first, end in bounds(uneven(experts, comm.size)):
        went.append(((choices >= first) & (choices < end)).any(1))
    counts = [int(here.sum()) for here in went]
    back = all_to_all(comm, results, come.tolist(), counts)
    out = results.new_zeros(len(choices), results.shape[1])
    for here, rows in zip(went, back.split(counts)):
        out[here] += rows
    return out
    ### END SOLUTION


# %% nbgrader={"grade_id": "combine_test", "points": 3}
check.combine(combine)

# %% [markdown] nbgrader={"grade_id": "combine_target"}
# **Target:** experts that do nothing. The weights of each token add up to 1, so each rank has its own tokens again.


# %%
def there_and_back(comm, tokens, wanted, shares):
    r = comm.rank
    received, weights, come = dispatch(comm, tokens[r], wanted[r], shares[r], 3)
    results = received * weights.sum(1, keepdim=True)
    return combine(comm, results, come, wanted[r], 3)[:, 0]


with check.limit(10):
    home = World(2).run(there_and_back, tokens, wanted, shares)
study.holdings(
    {"own tokens": [x[:, 0] for x in tokens], "there and back": list(home)},
    title="Three experts on two ranks",
)

# %% [markdown] nbgrader={"grade_id": "clip_experts_spec"}
# ## 4 · Average and clip (3 points)
#
# n ranks are data × expert ranks: rank d·ep + e holds the experts e, as all ranks with this e do. Each rank has samples of its own, equally many, and the mean of its own loss. Backward has run, through both all-to-alls.
#
# | | |
# |---|---|
# | call | `clip_experts(comm, ep, expert, rest, most)` |
# | `expert` | this rank's gradient of its experts, as backward left it; **not changed** |
# | `rest` | this rank's gradient of everything else, which is whole on every rank; **not changed** |
# | `most` | a number above 0 |
# | returns | `(expert, rest, norm)` |
# | `norm` | a float: the norm of the gradient of the mean of all n ranks' losses, over the whole model: all experts, each once, and the rest, once |
# | `expert`, `rest` | that gradient, of the same dtype; times most/norm if the norm is above `most` |
# | cost | an all-reduce of `expert` among the ranks that hold the same, one of `rest` among all, and all-reduces of a number or two |
#
# `comm.split(colors)`, with a number for each rank, is a Comm of those with the same number. Right within a relative 1e-5. About 9 lines.
#
# <details><summary>Hint</summary>
#
# Average first. Then ask of which ranks' experts the whole model consists, and who has the rest.
#
# </details>


# %% nbgrader={"grade_id": "clip_experts", "solution": true}
def clip_experts(comm, ep, expert, rest, most):
    """The clipped gradients of the mean of all ranks' losses, and the norm that they had."""
    ### BEGIN SOLUTION
    data = comm.split([rank % ep for rank in range(comm.size)])
    replica = comm.split([rank // ep for rank in range(comm.size)])
    expert = all_reduce_(data, expert.clone()) / comm.size
    rest = all_reduce_(comm, rest.clone()) / comm.size
    squares = all_reduce_(replica, expert.double().square().sum())
    norm = float((squares + rest.double().square().sum()).sqrt())
    scale = min(1.0, most / norm)
    return expert * scale, rest * scale, norm
    ### END SOLUTION


# %% nbgrader={"grade_id": "clip_experts_test", "points": 3}
check.clip_experts(clip_experts)

# %% [markdown] nbgrader={"grade_id": "clip_experts_target"}
# **Target:** 2 × 2 ranks. Ranks 0 and 2 hold the same experts: (4 + 8)/4 = 3. Ranks 1 and 3: (6 + 10)/4 = 4. The rest is √11 everywhere. The norm is √(9 + 16 + 11) = 6, and it is clipped to 3: 1.5, 2 and 1.66.


# %%
def four_ranks(comm):
    expert = torch.tensor([[4.0], [6.0], [8.0], [10.0]], dtype=torch.float64)[comm.rank]
    rest = torch.full((1,), 11**0.5, dtype=torch.float64)
    expert, rest, norm = clip_experts(comm, 2, expert, rest, 3.0)
    return [round(float(x), 2) for x in (expert, rest, norm)]


with check.limit(10):
    found = World(4).run(four_ranks)
study.table([[rank, *row] for rank, row in enumerate(found)], ["rank", "experts", "rest", "norm"])

# %% [markdown] nbgrader={"grade_id": "predict_experts_spec"}
# ## 5 · Predict (2 points)
#
# A layer of 32 experts over 8 ranks, 4 on each. A rank has 4,096 tokens, in samples of 1,024; each goes to 2 experts; H = 2,048, 2 bytes a number. Nothing is dropped, and a token's two experts are always different ones; all pairs of them are wanted alike, unless it is said otherwise.
#
# - `rows_away`: how many rows does a rank send away in the lesson's dispatch, a row for each choice?
# - `rows_once`: how many tokens does it send away in exercise 2, on average? (A token that goes to two other ranks counts twice.)
# - `bytes_sent`: how many bytes of rows does a rank send in forward and backward, dispatch and combine together, a row for each choice?
# - `seats`: of an expert in a sample, with a capacity factor of 1.25?
# - `naive`: every rank gathers all tokens, each token once, and the results are summed by a reduce-scatter, by rings. How many times the bytes of `bytes_sent`, forward and backward?
# - `balance`: E·Σ f·P with one expert a token, where half of the experts get all tokens, equally many each, and the router is sure of every choice?
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_experts", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_experts.numbers(STUDENT)
rows_away = rows_once = bytes_sent = seats = naive = balance = None
### BEGIN SOLUTION
n = 8
E = 32
H = 2_048
elsewhere = E - E // n  # experts that are not on a certain rank
rows_away = 4_096 * 2 * (n - 1) / n
rows_once = 4_096 * (n - 1) * (1 - elsewhere / E * (elsewhere - 1) / (E - 1))
bytes_sent = 4 * rows_away * H * 2
seats = 1.25 * 2 * 1_024 / E
naive = n / 2
balance = E * (E / 2) * (2 / E) * (2 / E)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_experts_test", "points": 2}
check.predict_experts(rows_away, rows_once, bytes_sent, seats, naive, balance, of=STUDENT)

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

# %% [markdown] nbgrader={"grade_id": "two_nodes_spec"}
# ## 6 · Over one node or over two? (2 points, graded by hand)
#
# A layer with H = 4,096 has 64 experts, two a token, and is trained on two nodes of 8 GPUs. Within a node a GPU sends 450 GB/s, to the other node 50 GB/s. All numbers that travel have 2 bytes, and a parameter takes 16 bytes of memory with its optimizer's states. Either the 8 GPUs of a node share out the experts, and the two nodes are data parallel; or all 16 GPUs share them out.
#
# **From how many tokens on each GPU is the first way the faster one, if nothing overlaps? What does each take in memory? Which do you take for 4,096 tokens a GPU, and what changes if gradients are accumulated over 16 micro-batches?**
#
# Count only what crosses between the nodes, for it is what takes long. Draw the time of a step's messages on the slow wire against the tokens of a GPU, for both ways, and write five to ten sentences. Here you may use everything.
#
# | points | for |
# |---|---|
# | 1 | a plot with axes and a legend, both lines with their formulas, and the tokens at which they cross, as a number |
# | ½ | the memory of a GPU's experts in either way, and the choice for 4,096 tokens with its two times |
# | ½ | what accumulation changes, and why; and one thing that was left out and would matter |

# %% nbgrader={"grade_id": "two_nodes_plot", "solution": true}
### BEGIN SOLUTION
H = 4_096
E = 64
k = 2
SLOW = 50e9


def within_a_node(tokens, micro_batches=1):
    """Seconds on the slow wire: an all-reduce of a GPU's experts over two nodes, whatever the tokens."""
    experts = E // 8 * 8 * H * H * 2  # bytes of the gradients
    return 2 * (1 / 2) * experts / SLOW


def over_both_nodes(tokens, micro_batches=1):
    """Half of the rows cross, in each of four all-to-alls."""
    return micro_batches * 4 * (1 / 2) * k * tokens * H * 2 / SLOW


tokens = [2**i for i in range(10, 19)]
for t in (4_096, 65_536):
    print(t, f"{within_a_node(t):.4f} s {over_both_nodes(t):.4f} s {over_both_nodes(t, 16):.4f} s")
study.curves(
    {
        "8 GPUs share, 2EH²/W": (tokens, [within_a_node(t) for t in tokens]),
        "16 GPUs share, 4kTH/W": (tokens, [over_both_nodes(t) for t in tokens]),
    },
    logx=True,
    logy=True,
    yunit="s",
    xlabel="tokens of a GPU",
    ylabel="time on the slow wire",
    title="One layer of 64 experts, H = 4,096, on two nodes",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "two_nodes", "solution": true, "points": 2}
# If the 8 GPUs of a node share the experts out, each has 8 of them, 8 · 8H² = 1.07 billion parameters. Their gradients are averaged over two nodes, 2 · ½ · 2.15 GB on the slow wire, 2EH² bytes, which takes 43 ms whatever the tokens are. If all 16 share them out, nothing but rows crosses, half of them in each of four all-to-alls: 4 · ½ · kT · 2H bytes, 4kTH. The lines cross where 4kT = 2EH, at T = EH/(2k) = 65,536 tokens on each GPU.
#
# With 4,096 tokens the rows take 2.7 ms and the gradients 43 ms. So I let all 16 GPUs share the experts. In memory the first way takes 16 bytes times 1.07 billion, 17 GB, and the second 8.6 GB.
#
# Accumulation turns it round, nearly. The gradients are averaged once a step, but the rows travel in each of 16 micro-batches: 43 ms against 43 ms. What counts is the tokens of a step on a GPU, and 16 · 4,096 are just the 65,536 at which the lines cross. With more micro-batches the experts should stay in the node, if there is memory.
#
# Left out is the overlap: gradients can be averaged while backward goes on, and rows cannot travel unless there is something else to compute. That speaks for the node. An unfair router makes the rows cost more, and not the gradients.
