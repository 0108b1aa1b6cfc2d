# %% [markdown]
# # 20 · Experts
#
# Two thirds of a transformer's weights lie in its MLPs, and a larger MLP makes a better model. It also makes a slower one: every token is multiplied by every weight. Eight times the weights are eight times the work.
#
# Must every token use every weight? Suppose that a layer had eight MLPs instead of one, and a small network in front of them that looks at a token and picks the one that suits it. The layer then has eight times the weights, and a token costs what it cost before. The eight MLPs are called [experts](term:expert), the small network the [router](term:router), and the whole a [mixture of experts](term:mixture-of-experts).
#
# Two things make it hard. The experts are too large to lie on every GPU, so that tokens must travel to them. And the router is trained together with the experts, with nothing that tells it to be fair. That is the guess for this lesson. **We train a layer with eight experts, on data that really fall into eight kinds, and let the router do as it likes. How many of the eight experts get any work worth mentioning, one token in a hundred or more?**

# %%
guess = 8  # experts with at least 1 % of the tokens: change this number

# %% [markdown]
# ## On paper: six tokens, four experts
#
# Let a token be two numbers, so that we can draw it. A router is a single matrix with one row for each expert. It multiplies the token by each row, and the expert whose row gives the largest product is the token's choice. With the rows (1, 0), (0, 1), (−1, 0) and (0, −1) the four experts sit in the east, north, west and south:
#
# ![Six tokens as points in a plane, and the router's four rows as arrows to the east, north, west and south. Tokens a and c lie in the east and go to expert 0, d in the north to expert 1, e in the west to expert 2, b and f in the south to expert 3.](../course/20_experts/figures/routing.svg)
#
# Take token a = (2, 1). Its products, the *logits*, are 2, 1, −2 and −1. A softmax turns them into probabilities: $e^2 = 7.39$, $e^1 = 2.72$, 0.14 and 0.37 add up to 10.61, so expert 0 gets 0.70, expert 1 gets 0.26, and the others get almost nothing. Token a goes to expert 0. Work out token f = (1, −3) for yourself before you look.

# %%
import torch
from IPython.display import display
from torch import nn

from minidist import study

tokens = torch.tensor([[2.0, 1.0], [1.0, -2.0], [3.0, 0.0], [-1.0, 2.0], [-2.0, -1.0], [1.0, -3.0]])
compass = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])  # a row for each expert


def route(x, router, k):
    """The experts of each token and their gates, both (T, k), and all probabilities (T, E)."""
    p = (x @ router.T).softmax(-1)  # (T, E)
    gates, choices = p.topk(k)
    if k > 1:
        gates = gates / gates.sum(-1, keepdim=True)
    return choices, gates, p


choices, gates, p = route(tokens, compass, k=1)
rows = []
for t, name in enumerate("abcdef"):
    chances = [f"{chance:.2f}" for chance in p[t]]
    rows.append((name, *chances, int(choices[t, 0]), f"{gates[t, 0]:.2f}"))
columns = ["token", "expert 0", "expert 1", "expert 2", "expert 3", "goes to", "gate"]
study.table(rows, columns, title="Six tokens and their probabilities")

# %% tags=["maintainer"]
assert choices[:, 0].tolist() == [0, 3, 0, 1, 2, 3]
assert [round(float(x), 2) for x in p[0]] == [0.70, 0.26, 0.01, 0.03]

# %% [markdown]
# A token may go to more than one expert. With **[top-k routing](term:top-k-routing)** it takes the k most probable, and the layer's output is their sum, each multiplied by its **[gate](term:gate)**. For k = 2 the two probabilities are divided by their sum: token a mixes 0.73 of expert 0 and 0.27 of expert 1. [Shazeer et al.](paper:shazeer2017) introduced it with k = 2 and more; [the Switch transformer](paper:fedus2021) showed that k = 1 is enough.
#
# **Why multiply by a gate at all,** if with k = 1 there is nothing to mix? Because of the router's gradient. *Which* expert is chosen is a jump, and a jump has no derivative. The size of the gate has one. If y = g · E(x), the derivative of the loss by g is dy · E(x): where the chosen expert helped, the gate is pushed up, and the token will choose it more firmly next time; where it did harm, the gate goes down until another expert wins. This also says why a single gate must *not* be divided by the sum of the chosen ones. It would be g/g = 1, whatever the router does, and the router would learn nothing. That is the reason for the `if k > 1` above, and we shall break it later.
#
# ## A layer on one rank
#
# The naive layer lets every expert compute every token and multiplies by zero what was not chosen. It is right, it is easy to read, and it saves nothing.


# %%
def all_experts(x, router, experts, k):
    """Every expert computes every token: (T, H) to (T, H)."""
    choices, gates, _ = route(x, router, k)
    y = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        gate = (gates * (choices == e)).sum(1)  # (T,), 0 where e was not chosen
        y = y + gate[:, None] * expert(x)
    return y


# %% [markdown]
# The real one sorts. Write all choices in one list, token by token, and sort the list by expert. Then the rows of an expert lie together, the expert computes them in one product, and the results are put back where they came from. In our example the list of choices is 0 3 0 1 2 3, and sorted by expert the tokens are a c d e b f. The sort must be *stable*, so that tokens of one expert stay in their order. Going back is the step that people get wrong: row i of the sorted list belongs to place `order[i]`, so we write *to* these places and do not read from them.


# %%
def sort_rows(x, choices, experts):
    """Rows sorted by expert (T·k, H), where each belongs, and how many each expert has."""
    flat = choices.flatten()
    order = flat.argsort(stable=True)
    counts = flat.bincount(minlength=experts).tolist()
    k = choices.shape[1]
    return x[order // k], order, counts


def unsort(results, order, gates):
    """Each token's sum of results by gates: (T·k, H) to (T, H)."""
    in_order = torch.zeros_like(results).index_copy(0, order, results)
    return (in_order.view(*gates.shape, -1) * gates[..., None]).sum(1)


def sparse_experts(x, router, experts, k):
    """Each expert computes the tokens that chose it: (T, H) to (T, H)."""
    choices, gates, _ = route(x, router, k)
    rows, order, counts = sort_rows(x, choices, len(experts))
    results = []
    for expert, part in zip(experts, rows.split(counts)):
        results.append(expert(part))
    return unsort(torch.cat(results), order, gates)


# %% [markdown]
# The naive layer is the [oracle](term:oracle) of the real one. We give both 96 tokens and eight experts, small MLPs in double precision, and count the FLOPs with `study.measure`.

# %%
from minidist.models import mlp

H = 12


def make_expert(e):
    return mlp([H, 4 * H, H], seed=e, dtype=torch.float64)


generator = torch.Generator().manual_seed(0)
x = torch.randn(96, H, generator=generator, dtype=torch.float64)
router = torch.randn(8, H, generator=generator, dtype=torch.float64)
experts = [make_expert(e) for e in range(8)]
rows = []
for k in (1, 2):
    naive = study.measure(all_experts, x, router, experts, k)
    sparse = study.measure(sparse_experts, x, router, experts, k)
    apart = (all_experts(x, router, experts, k) - sparse_experts(x, router, experts, k)).abs().max()
    same = "equal" if apart < 1e-12 else "different"
    rows.append((k, naive.flops / 1e6, sparse.flops / 1e6, same))
study.table(
    rows,
    ["experts a token", "MFLOP, naive", "MFLOP, sorted", "outputs"],
    title="96 tokens, 8 experts",
)

# %% tags=["maintainer"]
assert all(row[3] == "equal" for row in rows)
assert 7 < rows[0][1] / rows[0][2] < 8.1

# %% [markdown]
# With one expert a token the sorted layer does an eighth of the work, and with two a quarter: k/E, but for the small product of the router.
#
# ## Capacity: who finds a seat
#
# Nothing keeps the router from sending all tokens to one expert. Memory for its rows would have to be reserved for the worst case, and everybody would wait for it. So one may put a limit on it: every expert has so many *seats* for each sample, and a choice that comes when all seats are taken is [dropped](term:dropped-token). The number of seats is the even share times a **[capacity factor](term:capacity-factor)** c,
#
# $$\text{seats} = \left\lceil c \cdot \frac{kT}{E} \right\rceil ,$$
#
# rounded up, where T is the number of tokens in the sample. A dropped choice contributes nothing to the layer's output. The token itself is not lost: around the layer runs the residual connection, so it goes on unchanged by this layer.
#
# Count on paper. Take our six tokens as one sample, with k = 1 and c = 1. Then there are ⌈6/4⌉ = 2 seats, and nobody is dropped. Now let them be *two* samples of three tokens, a b c and d e f. There is ⌈3/4⌉ = 1 seat, and both a and c want expert 0. The first of them sits, and c is dropped.
#
# ![Two samples of three tokens and four experts with one seat each. Token a takes the seat of expert 0, b that of expert 3, and c, which comes after a, finds expert 0 full and is dropped; expert 1 and 2 keep an empty seat. In the second sample d, e and f find seats.](../course/20_experts/figures/seats.svg)
#
# Who comes first matters. We go token by token, so that it never depends on a *later* token whether an earlier one sits. In a language model this is not a detail. If it did depend on later tokens, the layer would tell a token something about the future that it is trained to predict. And we count the seats of each sample for itself, so that a sample gives the same result in whichever batch and on whichever rank it comes.


# %%
def seated(choices, experts, seats):
    """Which choices of one sample find a seat, (T, k)."""
    taken = [0] * experts
    sits = torch.zeros(choices.shape, dtype=torch.bool)
    for t, of_token in enumerate(choices.tolist()):
        for j, e in enumerate(of_token):
            sits[t, j] = taken[e] < seats
            taken[e] += 1
    return sits


choices, gates, _ = route(tokens, compass, k=1)
one_sample = seated(choices, 4, seats=2)
two_samples = torch.cat([seated(choices[:3], 4, seats=1), seated(choices[3:], 4, seats=1)])
rows = []
for t, name in enumerate("abcdef"):
    words = ["sits" if sits[t, 0] else "dropped" for sits in (one_sample, two_samples)]
    rows.append((name, int(choices[t, 0]), *words))
study.table(
    rows,
    ["token", "goes to", "one sample, 2 seats", "two samples, 1 seat"],
    title="Capacity factor 1",
)

# %% tags=["maintainer"]
assert one_sample.all() and two_samples[:, 0].tolist() == [True, True, False, True, True, True]

# %% [markdown]
# A loop over tokens is no way to program a GPU. The library's `Router` counts with a cumulative sum over a table of zeros and ones instead, in which row i says which expert the i-th choice wants: what stands above a choice in its expert's column came before it.

# %%
from minidist.models import Experts, Router

study.source(Router.seated)

# %% [markdown]
# ## Collapse
#
# Now we train. The data are made so that experts must pay: there are eight kinds of inputs, and each kind has a matrix of its own that turns inputs into outputs. Inputs have 16 numbers. And they have something in common, a vector that is added to all of them. Real activations have that too, from biases and norms, and you will see what it does. The layer is the library's `Experts` with its `Router`, so that capacity and losses are there as options; a single expert is an MLP with only 16 hidden features.

# %%
from minidist.models import MLP

KINDS = 8
WIDTH = 16
BATCH = 256


class Kinds:
    """Inputs of eight kinds; the outputs of each kind are a matrix times the input."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.centers = torch.randn(KINDS, WIDTH, generator=generator)
        self.common = torch.randn(WIDTH, generator=generator)
        self.maps = torch.randn(KINDS, WIDTH, WIDTH, generator=generator) / WIDTH**0.5

    def batch(self, generator):
        kind = torch.randint(0, KINDS, (BATCH,), generator=generator)
        noise = torch.randn(BATCH, WIDTH, generator=generator)
        own = self.centers[kind] + 0.3 * noise
        wanted = torch.einsum("tij,tj->ti", self.maps[kind], own)
        return (own + self.common)[None], wanted[None]  # a batch of one sample: (1, T, H)


def layer_of_experts(balance, capacity):
    router = Router(WIDTH, KINDS, top_k=1, balance=balance, z=0.0, capacity=capacity)
    generator = torch.Generator().manual_seed(0)
    nn.init.normal_(router.weight, std=0.3, generator=generator)
    return Experts(router, {str(e): MLP(WIDTH, ffn=WIDTH) for e in range(KINDS)})


def train(layer, steps=400):
    """The loss of each step, and how many tokens each expert had in it."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)
    data = Kinds()
    losses = []
    counts = []
    for _ in range(steps):
        x, wanted = data.batch(generator)
        loss = (layer(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()  # adds the gradient of the router's own losses, if it has any
        optimizer.step()
        losses.append(loss.item())
        counts.append(getattr(layer, "counts", [BATCH]))
    return losses, counts


def mean_of_last(losses):
    return sum(losses[-20:]) / 20


torch.manual_seed(0)
free_losses, free_counts = train(layer_of_experts(balance=0.0, capacity=None))
torch.manual_seed(0)
single_losses, _ = train(MLP(WIDTH, ffn=WIDTH))
busy = sum(count >= BATCH / 100 for count in free_counts[-1])

# %% tags=["answer"]
study.reveal(
    guess,
    busy,
    study.bars(
        {f"expert {e}": count for e, count in enumerate(free_counts[-1])},
        target=BATCH / KINDS,
        note="an even share",
        title="Tokens of each expert in the last of 400 batches of 256",
    ),
    unit="experts",
    words="The other five have had next to nothing in all 400 batches together, less than one token in a thousand, and have never learned anything.",
)

# %% tags=["maintainer"]
totals = sorted(sum(of_step[e] for of_step in free_counts) for e in range(8))
assert sum(totals[:5]) < sum(totals) / 1000
assert busy == 3 and mean_of_last(free_losses) < mean_of_last(single_losses)

# %% [markdown]
# This is **[collapse](term:router-collapse)**. In the first step the common vector decides: with three of the router's rows its product happens to be large, and nearly all tokens go there, then and for ever. These three experts are trained. The others get hardly a token, hence hardly a gradient, and stay as bad as they were. The router's own gradient comes through the gates of the experts that were chosen; where it raises one of these probabilities, it lowers all others, since they add up to one. Nothing ever asks whether another expert would have done better. The rich get richer.
#
# ### A loss that asks for balance
#
# Let $f_e$ be the share of the choices that go to expert e, and $P_e$ the mean probability that the router gives it, both over a sample. The **[balance loss](term:balance-loss)** of the Switch transformer is
#
# $$L_\text{balance} = E \sum_e f_e P_e .$$
#
# If all is even, $f_e = P_e = 1/E$, and the loss is $E \cdot E \cdot 1/E^2 = 1$. If all tokens go to one expert and the router is sure of it, one product is 1, the others are 0, and the loss is E. Why a product of two such similar numbers? Because $f_e$ counts jumps and has no gradient. The gradient goes through $P_e$ alone:
#
# $$\frac{\partial L}{\partial P_e} = E\, f_e .$$
#
# So the probability of each expert is pushed down in proportion to the tokens that it has. Since probabilities add up to one, those of idle experts rise, until a token changes sides. With $f = (2, 1, 1, 2)/6$ our six tokens push experts 0 and 3 down twice as hard as 1 and 2. It is an [auxiliary loss](term:auxiliary-loss): multiplied by a small factor, it is added to the loss that we really care about. The Switch transformer takes 0.01 as the factor. Our run is short, and we compare 0.01 with 0.1.


# %%
def balance_loss(p, choices):
    """E Σ f P of one sample: p is (T, E), choices are (T, k)."""
    experts = p.shape[1]
    f = choices.flatten().bincount(minlength=experts) / choices.numel()
    return experts * (f * p.mean(0)).sum()


choices, _, p = route(tokens, compass, k=1)
even = torch.full((4, 4), 0.25)
sure = torch.eye(4)[[0, 0, 0, 0]]
study.table(
    [
        ("all even", float(balance_loss(even, torch.arange(4)[:, None]))),
        ("our six tokens", round(float(balance_loss(p, choices)), 3)),
        ("all at one of 4, and sure of it", float(balance_loss(sure, torch.zeros(4, 1).long()))),
    ],
    ["", "E Σ f P"],
    title="The balance loss",
)

# %%
torch.manual_seed(0)
_, gentle_counts = train(layer_of_experts(balance=0.01, capacity=None))
torch.manual_seed(0)
fair_losses, fair_counts = train(layer_of_experts(balance=0.1, capacity=None))
steps = list(range(0, 400, 10))
fullest = {
    "no balance loss": (steps, [max(free_counts[s]) / BATCH for s in steps]),
    "factor 0.01": (steps, [max(gentle_counts[s]) / BATCH for s in steps]),
    "factor 0.1": (steps, [max(fair_counts[s]) / BATCH for s in steps]),
    "even": ([0, 390], [1 / KINDS, 1 / KINDS]),
}
study.curves(
    fullest,
    xlabel="step",
    ylabel="share of the fullest expert",
    title="Collapse, and what the balance loss does to it",
    words="Without a balance loss the fullest expert has between half and four fifths of the tokens; with a factor of 0.1 its share falls towards an eighth. With 0.01 it stays near 0.6, and four experts are still idle after 400 steps.",
)

# %% [markdown]
# From here on the factor is 0.1. What is it worth? The next table compares the layer with an MLP of one expert's size, which does the same work for each token, and with one as large as all eight together, which does eight times as much. It also shows what a capacity does to a router that has collapsed: with c = 1.25 an expert has 40 seats. Four experts find work in this run, so that 160 of 256 tokens sit, and 38 % are dropped.

# %%
torch.manual_seed(0)
tight_losses, tight_counts = train(layer_of_experts(balance=0.0, capacity=1.25))
torch.manual_seed(0)
both_losses, both_counts = train(layer_of_experts(balance=0.1, capacity=1.25))
torch.manual_seed(0)
large_losses, _ = train(MLP(WIDTH, ffn=KINDS * WIDTH))


def dropped(counts):
    return f"{1 - sum(counts[-1]) / BATCH:.0%}"


comparison = [
    ("one MLP of an expert's size", mean_of_last(single_losses), 1, "–"),
    ("8 experts, no balance loss", mean_of_last(free_losses), 1, "0%"),
    ("the same, c = 1.25", mean_of_last(tight_losses), 1, dropped(tight_counts)),
    ("8 experts, balance 0.1", mean_of_last(fair_losses), 1, "0%"),
    ("the same, c = 1.25", mean_of_last(both_losses), 1, dropped(both_counts)),
    ("one MLP, 8 times as wide", mean_of_last(large_losses), 8, "–"),
]
study.table(
    [(name, f"{loss:.2f}", work, lost) for name, loss, work, lost in comparison],
    ["layer", "loss at the end", "work a token", "dropped"],
    title="After 400 steps",
)

# %% tags=["maintainer"]
one_, free_, tight_, fair_, both_, large_ = [row[1] for row in comparison]
assert large_ < fair_ < free_ < one_ < tight_
assert sum(count >= BATCH / 100 for count in fair_counts[-1]) == 8
assert sum(count < BATCH / 100 for count in gentle_counts[-1]) == 4
assert 0.55 < sum(max(gentle_counts[s]) for s in range(100, 400)) / 300 / BATCH < 0.67
assert tight_counts[-1].count(40) == 4 and sum(tight_counts[-1]) == 160
assert sum(both_counts[-1]) > 0.95 * BATCH
assert 1.2 < Kinds().batch(torch.Generator().manual_seed(0))[1].square().mean() < 1.4

# %% [markdown]
# Balanced experts halve the loss of collapsed ones, for the same work. The wide MLP is better still, and costs eight times as much: experts are a bargain, not a miracle. And look at the third row. A capacity without balance is worse here than no experts at all, because it drops the tokens that the balance loss would have sent elsewhere. Nearly the whole loss of 0.50 comes from them: our little layer has no residual connection around it, so the output of a dropped token is 0, and it costs the mean square of what was wanted, which is 1.3. The two belong together: **the balance loss makes shares even, and the capacity is the insurance for batches in which they are not.**
#
# A second auxiliary loss often comes with it. The *z-loss* is the mean square of the logsumexp of the logits, with a factor of about 0.001. It keeps logits small, and small logits are rounded less. For the same reason the library's router computes in 32 bits even where the model has 16. And there is a way without any balance loss: [DeepSeek-V3](paper:deepseek2024) adds a number to each expert's logit for the choice alone, and raises or lowers it after each step, as the expert had too few or too many tokens.
#
# ## Experts on several ranks
#
# More experts cost no more work, but they cost memory. With H = 4,096 an MLP has 8H² = 134 million parameters; 64 of them have 8.6 billion, in a *single* layer, and with the 16 bytes of [mixed precision with Adam](lesson:zero) that makes 137 GB. In data parallelism all of it would lie on every rank. **[Expert parallelism](term:expert-parallelism)** shares the experts out: of n ranks each holds E/n experts of every layer, all else is whole everywhere, and every rank still has samples of its own. So a token and its expert are, as a rule, on different ranks.
#
# The naive way needs nothing new. Gather all tokens on all ranks, let each rank compute what its own experts add, and sum the results with a reduce-scatter, which leaves each rank with the sums of its own tokens.

# %%
from minidist.collectives import all_gather, all_reduce_, all_to_all, reduce_scatter
from minidist.comm import World


def gathered_layer(comm, x, router, own, k):
    """The naive way, forward only: `own` are this rank's experts."""
    everyone = all_gather(comm, x)  # (n·T, H)
    choices, gates, _ = route(everyone, router, k)
    first = comm.rank * len(own)
    y = torch.zeros_like(everyone)
    for e, expert in enumerate(own, start=first):
        chosen = (choices == e).any(1)
        gate = (gates * (choices == e)).sum(1)
        y[chosen] += gate[chosen, None] * expert(everyone[chosen])
    return reduce_scatter(comm, y)  # (T, H)


# %% [markdown]
# Every token goes to every rank, although only k experts want it. **On 8 ranks, with k = 1, how many times the bytes does it send that are needed?**

# %%
guess_naive = 2  # times: change this number

# %% [markdown]
# ### Two all-to-alls
#
# What is needed is that each row goes to the rank of its expert, and that each result comes back. Every rank has something for every other: that is the [all-to-all](term:all-to-all) of the lesson on [messages](lesson:messages). The first is called [dispatch](term:dispatch-and-combine), the second combine ([GShard](paper:lepikhin2020)). Here are our six tokens on two ranks, with experts 0 and 1 on rank 0, 2 and 3 on rank 1:
#
# ![Two ranks with two experts and three tokens each. The router sends a to expert 0, b to 3, c to 0, d to 1, e to 2, f to 3. Dispatch, an all-to-all: rank 0 receives a and c for expert 0 and d for expert 1; rank 1 receives e for expert 2, b and f for expert 3. The experts compute. Combine, a second all-to-all, sends every token back.](../course/20_experts/figures/dispatch_and_combine.svg)
#
# Only b and d change ranks here, and each comes home again. How do they know? Rank 0 sorts its rows by expert: a c b. Rows for one rank then lie together, two for itself and one for rank 1. But rank 1 cannot know how many rows will come, since that depends on tokens that it has never seen. So the ranks first tell each other their counts, in an all-to-all of E small integers. After that everything is known, also for the way back, on which the same rows travel in the opposite direction.
#
# **And the backward?** An all-to-all moves rows and changes none. Where row i of the input has become row j of the output, the gradient of output j belongs to input i: the backward sends the gradients back the way the rows came. So the gradient of a dispatch is a combine, and the gradient of a combine is a dispatch. A layer of experts needs four all-to-alls in a step.


# %%
class Exchange(torch.autograd.Function):
    """Send to[r] rows to rank r and receive come[r] rows from it; backward sends gradients home."""

    @staticmethod
    def forward(ctx, rows, comm, to, come):
        ctx.comm = comm
        ctx.to = to
        ctx.come = come
        return all_to_all(comm, rows, to, come)

    @staticmethod
    def backward(ctx, grad):
        back = all_to_all(ctx.comm, grad.contiguous(), ctx.come, ctx.to)
        return back, None, None, None  # no gradients for comm and the two lists


def expert_layer(comm, x, router, own, k):
    """Dispatch, this rank's experts, combine: (T, H) to (T, H)."""
    n = comm.size
    choices, gates, _ = route(x, router, k)
    rows, order, counts = sort_rows(x, choices, n * len(own))

    # 1. how many rows come from each rank for each expert here: (n, own)
    table = all_to_all(comm, torch.tensor(counts)).view(n, len(own)).tolist()
    to = torch.tensor(counts).view(n, len(own)).sum(1).tolist()
    come = [sum(from_rank) for from_rank in table]

    # 2. dispatch
    received = Exchange.apply(rows, comm, to, come)

    # 3. rows lie by rank, then by expert: put those of each expert together, compute, take apart
    sizes = [count for from_rank in table for count in from_rank]
    pieces = list(received.split(sizes))
    for i, expert in enumerate(own):
        of_expert = pieces[i :: len(own)]
        result = expert(torch.cat(of_expert))
        pieces[i :: len(own)] = result.split([len(piece) for piece in of_expert])

    # 4. combine, and back into the order of the tokens
    back = Exchange.apply(torch.cat(pieces), comm, come, to)
    return unsort(back, order, gates)


# %% [markdown]
# Look at step 3 once more. What arrives lies by rank, and for each rank by expert: on rank 0, for instance, rank 0's a c for expert 0, nothing for expert 1, then rank 1's nothing for expert 0, d for expert 1. With two experts here, `pieces[0::2]` are those of expert 0 from all ranks, and `pieces[1::2]` those of expert 1. After the computation the pieces are put back in the places where they were, so that combine sends the right rows to the right rank.
#
# The oracle is the layer on one rank with all samples. Rank r takes the r-th part of the 96 tokens, and all parts of the output together must be the serial output.


# %%
def own_output(comm, layer, k):
    part = x.chunk(comm.size)[comm.rank]
    each = 8 // comm.size
    first = comm.rank * each
    own = [make_expert(e) for e in range(first, first + each)]
    return layer(comm, part, router, own, k).detach()


def verdict(found, right):
    return "equal" if (found - right).abs().max() < 1e-12 else "different"


rows = []
for name, layer in (("gathered", gathered_layer), ("two all-to-alls", expert_layer)):
    words = []
    for n in (1, 2, 4, 8):
        found = torch.cat(list(World(n).run(own_output, layer, 2)))
        words.append(verdict(found, sparse_experts(x, router, experts, 2)))
    rows.append((name, *words))
study.table(
    rows, ["k = 2", "1 rank", "2 ranks", "4 ranks", "8 ranks"], title="Against the serial layer"
)

# %% tags=["maintainer"]
assert all(word == "equal" for row in rows for word in row[1:])

# %% [markdown]
# ## Predict the cost, then count
#
# Let the T tokens of a rank, now those of all its samples, make R = kT rows of H numbers of s bytes. If all experts are wanted alike, a share of (n − 1)/n goes to other ranks, in each of the four all-to-alls, two in forward and two in backward:
#
# $$\text{bytes a step} = 4\,\frac{n-1}{n}\,R\,H\,s, \qquad\text{and } 8\left(E - \frac En\right) \text{ for the counts.}$$
#
# The naive way has four collectives as well: the gather, the reduce-scatter, and in backward one of each again. In each of them a rank sends (n − 1)·T rows, so that with k = 1 it is n times as much. We run forward and backward of the library's two layers on the device `"meta"`, where tensors have shapes and no numbers, and all experts are wanted alike. (The library's naive layer, `GatheredExperts`, gathers the sorted rows, and so pays for each of the k choices.)

# %%
from minidist.models import TransformerLayer
from minidist.parallel.experts import ExpertParallel, GatheredExperts, expert_parallel_


def step(comm, hidden, count, k, kind=ExpertParallel, samples=4, context=1024):
    """Forward and backward of a layer of experts, in bfloat16, without values."""
    how = dict(dtype=torch.bfloat16, device="meta", experts=count, top_k=k)
    layer = TransformerLayer(hidden, 16, **how).mlp
    layer = expert_parallel_(layer, comm, layer=kind)
    x = torch.empty(samples, context, hidden, dtype=torch.bfloat16, device="meta")
    y = layer(x.requires_grad_())
    y.backward(torch.empty_like(y))


ns = [1, 2, 4, 8, 16]
R, HIDDEN = 4 * 1024, 2048
lines = {
    "two all-to-alls": (ns, [4 * (n - 1) / n * R * HIDDEN * 2 for n in ns]),
    "gathered": (ns, [4 * (n - 1) * R * HIDDEN * 2 for n in ns]),
}
sent = {}
for name, kind in (("two all-to-alls", ExpertParallel), ("gathered", GatheredExperts)):
    worlds = [World(n, device="meta") for n in ns]
    for world in worlds:
        world.run(step, HIDDEN, 16, 1, kind)
    sent[name] = (ns, [world.trace.bytes_sent(0) for world in worlds])

# %% tags=["answer"]
study.reveal(
    guess_naive,
    round(sent["gathered"][1][3] / sent["two all-to-alls"][1][3]),
    study.curves(
        lines,
        points=sent,
        yunit="B",
        xlabel="ranks, n",
        ylabel="bytes that a rank sends in a step",
        title="4,096 tokens a rank, k = 1, H = 2,048",
    ),
    unit="times",
    words="n times, on n ranks. What two all-to-alls send hardly depends on n; what is gathered grows with it.",
)

# %% tags=["maintainer"]
for i in range(len(ns)):
    assert abs(sent["two all-to-alls"][1][i] - lines["two all-to-alls"][1][i]) <= 8 * 16
    assert abs(sent["gathered"][1][i] - lines["gathered"][1][i]) <= 16 * 8 * 16

# %% [markdown]
# ### The two all-to-alls on the timeline
#
# Bytes are one thing, time is another. Here is the same layer on four *modelled* H100s with links of 50 GB/s, as between nodes, which compute at 64 % of the data sheet's peak, with H = 4,096 and two experts a token. Look for the four groups of messages: dispatch, combine, and in backward two more, first the gradient of combine and then that of dispatch. (The thin line before the first of them is the counts.) Between them the experts compute. While rows travel, nothing is computed: the experts wait for their rows, and whatever comes after the layer waits for their results. (Some frameworks cut the batch into two halves, so that one half travels while the other is computed. The library does not.)

# %%
from minidist.comm.cluster import H100, Cluster


def modelled(n, bandwidth, latency=5e-6):
    return World(n, cluster=Cluster.uniform(n, latency, 1 / bandwidth, H100), device="meta")


world = modelled(4, 50e9)
world.run(step, 4096, 8, 2)
study.viewer(world.trace, title="A layer of experts on four modelled H100s, forward and backward")

# %% [markdown]
# ### Everybody waits for the fullest
#
# On that timeline all ranks have the same work. Now let a router be unfair, and give it no capacity. On eight ranks with one expert each, half of all rows go to expert 0, and the other half is spread evenly over the other seven. **How many times as long does the layer take as with even shares?**

# %%
guess_longer = 1.5  # times: change this number


# %%
def with_counts(comm, counts, hidden=4096):
    """Dispatch, one expert a rank, combine; counts[r][e] rows of rank r are for expert e."""
    like = dict(dtype=torch.bfloat16, device="meta")
    up = torch.empty(hidden, 4 * hidden, **like)
    down = torch.empty(4 * hidden, hidden, **like)
    to = counts[comm.rank]
    come = [of_rank[comm.rank] for of_rank in counts]
    received = all_to_all(comm, torch.empty(sum(to), hidden, **like), to, come)
    results = (received @ up).relu() @ down
    all_to_all(comm, results, come, to)


even = [[1024] * 8 for _ in range(8)]
unfair = [[4095] + [585] * 7 for _ in range(8)]
worlds = {}
for name, counts in (("even shares", even), ("half to expert 0", unfair)):
    worlds[name] = modelled(8, 50e9)
    worlds[name].run(with_counts, counts)
longer = worlds["half to expert 0"].time / worlds["even shares"].time

# %% tags=["answer"]
study.reveal(
    guess_longer,
    round(longer, 1),
    study.timeline(
        {name: world.trace for name, world in worlds.items()},
        title="The same rows on 8 modelled H100s",
        memory=False,
    ),
    unit="times",
    words="Rank 0 has half of all rows, four times an even share: it receives four times as much in dispatch, computes four times as much, and sends four times as much in combine. The others wait for the rows that come back from it.",
)

# %% tags=["maintainer"]
assert 3.5 < longer < 4.5, longer

# %% [markdown]
# So balance is about more than good use of the weights. *The layer takes as long as its fullest rank*, and the fullest rank is E·f times as full as the mean, with f the share of its expert, if it holds only one. That is the second reason for a capacity: with a factor of 1.25 no expert has more than 1.25 times an even share.
#
# ## When experts pay
#
# An expert's forward does 16H² FLOPs for a row: two matrices with 4H² weights each, and two FLOPs for each weight. Its row, H numbers of two bytes, travels out and home, 4H bytes, but for the n-th part that stays. With F FLOP/s and W bytes a second the all-to-alls take longer than the experts as long as
#
# $$\frac{4H}{W}\cdot\frac{n-1}{n} > \frac{16H^2}{F} \quad\Longleftrightarrow\quad H < \frac{F}{4W}\cdot\frac{n-1}{n} .$$
#
# T, k and E are not in it: each row brings its own work and its own bytes. What counts is the width of the model, and how many FLOPs a device does while a byte travels. **Take 8 modelled H100s, which reach F = 633 TFLOP/s, and 50 GB/s. From which H on do the experts take longer than the messages?**

# %%
guess_H = 1000  # change this number

# %%
F = 0.64 * 989e12
widths = [512, 1024, 2048, 4096, 8192]
lines = {}
points = {}
for bandwidth in (450e9, 50e9):
    name = f"{bandwidth / 1e9:g} GB/s"
    lines[name] = (widths, [F / (4 * bandwidth) * 7 / 8 / h for h in widths])
    ratios = []
    for h in widths:
        world = modelled(8, bandwidth)
        world.run(with_counts, even, h)
        without = modelled(8, 1e18, latency=0.0)  # the same, with messages that take no time
        without.run(with_counts, even, h)
        ratios.append((world.time - without.time) / without.time)
    points[name] = (widths, ratios)
threshold = round(F / (4 * 50e9) * 7 / 8)

# %% tags=["answer"]
study.reveal(
    guess_H,
    threshold,
    study.curves(
        lines,
        points=points,
        logx=True,
        logy=True,
        xlabel="H",
        ylabel="time of messages / time of experts",
        title="8 modelled H100s: lines by the formula, points from runs",
    ),
    words="By NVLink, at 450 GB/s, the formula gives 308. The runs at 50 GB/s cross 1 earlier, near 2,400: an expert also reads and writes what lies between its two products, and the narrower it is, the more this weighs beside its FLOPs. The points at 450 GB/s lie above their line for another reason: each message also has a latency of 5 µs, which the formula leaves out, and at H = 512 that is longer than its bytes take.",
)

# %% tags=["maintainer"]
assert (
    threshold == 2769 and round(threshold * 2 / 3) == 1846 and round(F / (4 * 450e9) * 7 / 8) == 308
)
for name in lines:
    assert 0.9 < points[name][1][-1] / lines[name][1][-1] < 1.1
assert all(run > line for run, line in zip(points["450 GB/s"][1], lines["450 GB/s"][1]))
assert 1024 * 512 * 2 / 450e9 < 5e-6  # a message has 1,024 rows of 512 numbers
for h, above in ((2304, True), (2560, False)):
    world = modelled(8, 50e9)
    world.run(with_counts, even, h)
    without = modelled(8, 1e18, latency=0.0)
    without.run(with_counts, even, h)
    assert (world.time > 2 * without.time) == above, h

# %% [markdown]
# (In backward an expert does twice the work, and the messages are the same again. So over a whole step the ratio is two thirds of this one, and the threshold falls to 1,846.) This is why the ranks that share out the experts are neighbours in a node wherever E/n experts fit on each of them.
#
# Now compare three layers for the same tokens: one MLP; k of E experts on n ranks; and a dense MLP with as many weights as all the experts together, whose weights need no all-to-all but E times the work. Move the sliders. When do experts beat the dense layer of the same size, and when do they cost much more than one MLP?


# %%
def forward_times(H, W, E, k):
    """Milliseconds for 4,096 tokens a rank on 8 ranks, by the formulas above."""
    one = 16 * H * H * 4096 / F
    travels = 4 * H * 4096 * k * 7 / 8 / W
    return {
        "one MLP": 1e3 * one,
        "k of E experts": 1e3 * (k * one + travels),
        "dense, all E": 1e3 * E * one,
    }


study.explore(
    forward_times,
    unit="ms",
    H=[1024, 2048, 4096, 8192],
    W=[25e9, 50e9, 450e9],
    E=[8, 16, 64],
    k=[1, 2, 4],
    units={"W": "B"},
    labels={"W": "W, bytes a second"},
    start={"H": 4096, "W": 50e9, "E": 8, "k": 2},
    title="Forward of a layer, 4,096 tokens a rank on 8 modelled H100s",
)

# %% [markdown]
# **When not to use experts.** When memory is what you lack: experts multiply the weights, the optimizer's states and the checkpoint by E and save only work. When H is small and the links are slow. When few tokens come at a time, as in generating text for one user: an expert's weights, 16H² bytes, are read from memory for a handful of rows, and while the 3.35 TB/s of an H100's memory deliver them, it could have computed F/3.35 TB/s ≈ 190 rows. And when the data do not fall into kinds, each of which is worth an expert. Where training time is what you lack, the gain is real: the authors of the Switch transformer report that pre-training is up to seven times as fast as with dense T5 models, with the same computational resources.
#
# ## Gradients: who averages what
#
# With data and expert parallelism together, ranks form a [grid](term:grid-of-ranks). Let there be 2 × 2 of them. Ranks 0 and 2 hold the same experts, as do ranks 1 and 3. All four have samples of their own.
#
# ![Four ranks as a square. Ranks 0 and 2 hold experts 0 and 1, ranks 1 and 3 experts 2 and 3. Rows travel within the pairs 0 1 and 2 3. Gradients of experts are averaged within the pairs 0 2 and 1 3, those of all else over all four.](../course/20_experts/figures/averages.svg)
#
# We want the gradient of the mean of the four losses, $\frac14(\ell_0 + \ell_1 + \ell_2 + \ell_3)$. The router and everything outside the layer saw only its own rank's tokens. So its gradient is that of its own loss, and it is summed over all four ranks and divided by four, as ever. But expert 0 on rank 0 has computed rows of rank 0 *and* of rank 1, and combine's backward has brought gradients from both. Its gradient is already that of $\ell_0 + \ell_1$, a *sum*. On rank 2 it is that of $\ell_2 + \ell_3$. What is missing is only the sum over 0 and 2, and the division, which is by *four* and not by two. Whoever averages experts over the data ranks, as one averages everything else, gets gradients that are too large by the number of expert ranks.
#
# So an expert's gradient is summed over the data ranks that hold the same expert and divided by n, and that is all there is to it. In bytes, each rank sends $2\frac{d-1}{d}$ of its own experts' gradients and $2\frac{n-1}{n}$ of the rest, if d of the n ranks hold the same experts.


# %%
def average(comm, ep, of_experts, of_rest):
    """From each rank's gradients those of the mean of all ranks' losses; rank d·ep + e has experts e."""
    same_experts = comm.split([rank % ep for rank in range(comm.size)])
    for grad in of_experts:
        all_reduce_(same_experts, grad)
        grad /= comm.size
    for grad in of_rest:
        all_reduce_(comm, grad)
        grad /= comm.size


def gradients(comm, ep, averaging=average):
    """This rank's gradients: of the first of its experts, and of the router."""
    group = comm.split([rank // ep for rank in range(comm.size)])  # rows travel within it
    each = 8 // ep
    first = group.rank * each
    own = [make_expert(e) for e in range(first, first + each)]
    weight = router.clone().requires_grad_()
    y = expert_layer(group, x.chunk(comm.size)[comm.rank], weight, own, 2)
    y.square().mean().backward()
    of_experts = [p.grad for expert in own for p in expert.parameters()]
    averaging(comm, ep, of_experts, [weight.grad])
    return of_experts[0], weight.grad


def average_like_the_rest(comm, ep, of_experts, of_rest):
    same_experts = comm.split([rank % ep for rank in range(comm.size)])
    for grad in of_experts:
        all_reduce_(same_experts, grad, op="mean")
    for grad in of_rest:
        all_reduce_(comm, grad, op="mean")


right_expert, right_router = World(1).run(gradients, 1)[0]
rows = []
for name, averaging in (("divided by n", average), ("mean over data", average_like_the_rest)):
    of_expert, of_router = World(4).run(gradients, 2, averaging)[0]
    factor = float(of_expert.norm() / right_expert.norm())
    rows.append((name, round(factor, 3), verdict(of_router, right_router)))
study.table(
    rows,
    ["data 2 × expert 2", "expert's gradient / serial", "router's gradient"],
    title="Rank 0's gradients against the serial ones",
)

# %% tags=["maintainer"]
assert [row[1] for row in rows] == [1, 2] and all(row[2] == "equal" for row in rows)
assert verdict(World(4).run(gradients, 2)[0][0], right_expert) == "equal"

# %% [markdown]
# **Clipping.** The norm of all gradients takes the same care. An expert's squares are on one of the expert ranks only, so they have to be summed over them. The rest is on every rank, and must be counted once. Suppose that the squares add up to 9 on rank 0's experts, to 16 on rank 1's and to 11 on the rest. The norm is $\sqrt{9 + 16 + 11} = 6$. A rank that looks only at what it has finds $\sqrt{20}$ or $\sqrt{27}$. Then the two ranks scale by different factors, and the copies of the rest drift apart, which no loss curve shows. And whoever sums everything over both ranks counts the rest twice, $\sqrt{47}$.
#
# ## Break it
#
# Here are three mistakes. *A single gate divided by itself* is 1, and the router's gradient is zero: it stays as random as it began, and nothing complains, since the experts learn all the same. *Results read from their places* (`back[order]`) instead of written to them give tokens the results of other tokens. All shapes fit, so that only the oracle sees it. And *a rank that has nothing to send and therefore stays away* leaves the others waiting.

# %%
from minidist.comm import Deadlock


def router_gradient(divide):
    weight = router.clone().requires_grad_()
    choices, gates, _ = route(x, weight, 1)
    if divide:
        gates = gates / gates.sum(-1, keepdim=True)
    rows, order, counts = sort_rows(x, choices, 8)
    results = torch.cat([expert(part) for expert, part in zip(experts, rows.split(counts))])
    unsort(results, order, gates).square().mean().backward()
    return float(weight.grad.norm())


def stays_away(comm):
    """Rank 1 has no tokens in this step, and does not call the layer."""
    if comm.rank != 1:
        own = [make_expert(2 * comm.rank), make_expert(2 * comm.rank + 1)]
        expert_layer(comm, x[:4], router, own, 1)


silent = router_gradient(divide=True) < 1e-12
print("the router's gradient with g/g:", "zero" if silent else "not zero")
choices, gates, _ = route(x, router, 1)
rows, order, counts = sort_rows(x, choices, 8)
print("tokens in their places if read by order:", int((rows[order] == x).all(1).sum()), "of 96")
try:
    World(4).run(stays_away)
except Deadlock as error:
    print(str(error).splitlines()[0].rstrip(":"))

# %% tags=["maintainer"]
assert silent and router_gradient(divide=False) > 1e-3
assert int((rows[order] == x).all(1).sum()) < 20

# %% [markdown]
# So every rank calls every layer of experts, and its backward, in every step, with no rows if it has none.
#
# ## The library's file
#
# [experts.py](file:minidist/parallel/experts.py) starts with our `Exchange`. `sent` and `sent_back` are all-to-alls for a list of tensors, and `conjugate`, which [Tensor parallel](lesson:tensor) explains, makes an autograd function of the two: forward through the first, backward through the second.

# %%
from minidist.parallel import experts as library

study.source(library.exchange)

# %% [markdown]
# A layer on one rank is `Experts` in [models.py](file:minidist/models.py): it routes, sorts, calls `compute` for the sorted rows, and puts them back. `ExpertParallel` is the same layer with another `compute`, so that router, capacity and losses are written only once. It is our steps 2 to 4. (`self.sizes` are the numbers of experts on each rank, which here may differ.)

# %%
study.source(ExpertParallel.compute)

# %% [markdown]
# The counts go first. `decide_all` turns a tensor of numbers into Python's numbers, which on a GPU means waiting for it: the host cannot make room for rows before it knows how many there will be. On `"meta"` there are no numbers, and every rank assumes that the others have counts like its own.

# %%
study.source(ExpertParallel.announced)

# %% [markdown]
# Who averages what is decided here, with two `DataParallel`s of [Buckets and overlap](lesson:buckets): one for the rest over everyone, one for the experts over the data ranks. `mean_of_` gives each expert's parameters a hook that multiplies the gradient by d/n, so that the mean over d ranks becomes our sum divided by n.

# %%
display(study.source(library.ExpertDataParallel.__init__), study.source(library.mean_of_))

# %% [markdown]
# The rest of the file is `expert_parallel_`, which shares out the experts of a whole GPT, `ExpertShardedOptimizer`, which is [ZeRO](lesson:zero) 1 and 2 with the same two groups of ranks, and `repeated`, which tells clipping what an earlier rank has counted already. In a mesh, `Mesh(comm, dp=2, ep=2)`, experts are an axis like any other, and [`parallelize`](lesson:hybrid) does all of this.
#
# ## In real processes, and on a cluster
#
# Our layer on two processes of this machine, forward and backward:

# %%
from minidist.comm import launch

found = launch(gradients, 2, 2)
print("the router's gradient on two processes:", verdict(found[0][1], right_router))
print("the first expert's:", verdict(found[0][0], right_expert))

# %% tags=["maintainer"]
assert verdict(found[0][1], right_router) == verdict(found[0][0], right_expert) == "equal"

# %% [markdown]
# The course's script, [examples/train_gpt.py](file:examples/train_gpt.py), puts experts in every second layer. On one machine with two processes, on one with eight GPUs, and on two:
#
# ```
# python examples/train_gpt.py --runner processes --ranks 2 --ep 2 --experts 8 --capacity 1.25
# torchrun --nproc-per-node 8 examples/train_gpt.py --ep 8 --experts 8 --top-k 1 --capacity 1.25
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 examples/train_gpt.py --dp 2 --ep 8 --experts 64
# ```
#
# ## Takeaways
#
# - A router sends each token to k of E experts. The layer has E times the weights of an MLP and does k times its work.
# - The gate carries the router's gradient. With k = 1 it must not be divided by itself.
# - Without a balance loss the router collapses. E Σ f P is 1 where all is even and E at worst, and its gradient pushes each expert down in proportion to its tokens.
# - Seats are ⌈c·kT/E⌉; a choice that finds none is dropped, and the token goes on by the residual connection.
# - Expert parallelism sends $4\frac{n-1}{n}RHs$ bytes a step, in two all-to-alls forward and two backward. All wait for the fullest rank.
# - Messages take longer than experts below H = F/(4W)·(n−1)/n.
# - An expert's gradient is a sum over the expert ranks already: sum it over those that hold the same, and divide by n.
#
# ## Further reading
#
# - paper:shazeer2017 Top-k gating, and the first losses for balance: sections 2 and 4.
# - paper:lepikhin2020 Capacity, dispatch and combine, and experts on thousands of devices: sections 2 and 3.
# - paper:fedus2021 One expert a token, the balance loss used here: section 2.
# - paper:deepseek2024 Balance without an auxiliary loss, and 256 experts a layer: section 2.
