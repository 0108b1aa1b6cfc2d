# %% [markdown]
# # 04 · Collectives at scale
#
# The ring of [Messages](lesson:messages) sends the fewest bytes that are possible, and for large tensors on eight GPUs nothing beats it. So let us use it on 1,024 ranks, to add up 1 MB of gradients. A message takes 5 µs to start, and a wire carries 50 GB/s. The bytes are nearly nothing, 2 MB for each rank: they should take 40 µs. But the ring has 2 · 1,023 steps, one after another, and each of them costs a latency. That makes 10 *milliseconds*.
#
# This lesson builds the algorithms that take over where the ring fails: trees, recursive halving and doubling, the double binary tree, and hierarchies that follow the machine. At the end you will be able to say which of them wins, from nothing but the number of ranks, the bytes and the network.
#
# **How many times faster than the ring can 1 MB be reduced on 1,024 ranks?**

# %%
guess = 5  # times faster: change this number

# %% [markdown]
# ## On paper: count steps, not bytes
#
# In the last lessons we counted what each rank sends. This time count *steps*: messages each of which has to wait for the one before. In a ring everything passes everyone, which takes $2(n-1)$ steps.
#
# Now think of a knockout tournament. With eight players, four games are played at once, then two, then one: three rounds instead of seven games one after another. Add up numbers in the same way. Of eight ranks, four send all they have to the other four, which add it to their own; then two of those four send to the other two; then one to one. After three rounds one rank has the sum, and three rounds in the opposite direction bring it to everyone. A [tree](term:tree) takes $2\lceil\log_2 n\rceil$ steps.

# %%
import torch
from IPython.display import display

from minidist import study

rows = []
for n in (3, 4, 8, 64, 1024):
    rounds = (n - 1).bit_length()  # log2 n, rounded up
    rows.append((n, 2 * (n - 1), 2 * rounds))
study.table(rows, ["ranks", "steps of a ring, 2(n−1)", "steps of a tree, 2⌈log2 n⌉"])

# %% [markdown]
# Twenty steps instead of two thousand: this is the whole reason for what follows. The rest of the lesson is about what a tree costs in return, and how to get that back.
#
# ## A tree
#
# ![A binomial tree on eight ranks. Reduce, three rounds: 1 sends to 0, 3 to 2, 5 to 4, 7 to 6; then 2 to 0 and 6 to 4; then 4 to 0, which has the sum. Broadcast, three rounds: 0 to 4; then 0 to 2 and 4 to 6; then 0 to 1, 2 to 3, 4 to 5, 6 to 7.](../course/04_trees/figures/tree_rounds.svg)
#
# Start with the reduce, the upper half of the picture. In the first round every odd rank sends to its left neighbour and is done. The even ranks remain, and among them every second one sends to the one before, 2 ranks away. In the round after that the distance is 4. So in the round with distance *d* only multiples of *d* are still in the game: those that are multiples of 2*d* receive, the others send. (A tree that is made in this way is called a [binomial tree](term:binomial-tree).)


# %%
from minidist.comm import World


def tree_reduce(comm, x):
    """Leave the sum over all ranks in x on rank 0. On other ranks x holds a part of it."""
    distance = 1
    while distance < comm.size:
        # if n is no power of two, the rank that would send may not exist
        if comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            arriving = torch.empty_like(x)
            comm.recv(arriving, comm.rank + distance)
            x += arriving
        elif comm.rank % (2 * distance) == distance:
            comm.send(x, comm.rank - distance)
        distance *= 2


# %% [markdown]
# A broadcast is the same film run backwards: the largest distance first, and whoever received now sends. Look at what it gains over the naive root, which sends *n* − 1 messages through its own wire. Here those who already have the numbers help, and in every round twice as many have them. An all-reduce is a reduce followed by a broadcast.


# %%
def tree_broadcast(comm, x):
    """Fill x on every rank with rank 0's, in ⌈log2 n⌉ rounds."""
    distance = 1
    while distance < comm.size:
        distance *= 2
    while distance > 1:
        distance //= 2
        if comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            comm.send(x, comm.rank + distance)
        elif comm.rank % (2 * distance) == distance:
            comm.recv(x, comm.rank - distance)


def tree_all_reduce(comm, x):
    tree_reduce(comm, x)
    tree_broadcast(comm, x)
    return x


world = World(8)
world.run(tree_broadcast, torch.zeros(6))
study.messages(world.trace, clock="steps", label=None, title="A tree: 1, 2, then 4 messages")

# %% [markdown]
# Is it right? The oracle is the serial sum, and the sizes are those that hurt: numbers of ranks that are no power of two, a length of zero, a length below the number of ranks.


# %%
def numbers(rank, length=6):
    return torch.arange(1, length + 1) * 10**rank


def verdict(all_reduce, n, length):
    serial = sum(numbers(rank, length) for rank in range(n))
    results = World(n).run(lambda comm: all_reduce(comm, numbers(comm.rank, length)))
    return "right" if all(torch.equal(x, serial) for x in results) else "wrong"


rows = []
for n in (1, 2, 3, 5, 8, 13):
    rows.append([f"n = {n}"] + [verdict(tree_all_reduce, n, length) for length in (0, 1, 7)])
study.table(rows, ["", "length 0", "length 1", "length 7"], title="The tree and its oracle")

# %% [markdown]
# ## What a tree costs
#
# The ring takes $2(n-1)\left(\alpha + \frac{N}{n}\beta\right)$. For a tree, each of $2\lceil\log_2 n\rceil$ rounds carries the whole tensor, because a rank passes on the complete sum of its branch:
#
# $$T_\text{tree} = 2\lceil\log_2 n\rceil\,(\alpha + N\beta).$$
#
# (There is a third cost, γ seconds to add up a byte. On a GPU it is small beside β, and we leave it out.) Compare what happens as *n* grows, for a message so small that only latency counts. A ring over 1,024 ranks would be two million messages, so its points end at 64.

# %%
from minidist.collectives import all_reduce_

MB = 10**6
ALPHA = 5e-6
BETA = 1 / 50e9


def seconds(algorithm, n, nbytes, alpha=ALPHA, beta=BETA):
    """The formulas of this lesson. For the last one, which comes below, n is a power of two."""
    rounds = (n - 1).bit_length()
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return 2 * rounds * (alpha + nbytes * beta)
    if algorithm == "halving_doubling":
        return 2 * rounds * alpha + 2 * (n - 1) / n * nbytes * beta


def reduce_bytes(comm, nbytes, algorithm):
    """All-reduce that many bytes: with our tree, or with the library's algorithm of that name."""
    x = torch.empty(nbytes, dtype=torch.uint8, device=comm.device)
    if algorithm == "tree":
        tree_all_reduce(comm, x)
    else:
        all_reduce_(comm, x, algorithm=algorithm)


def time_of(algorithm, n, nbytes):
    return World(n, device="meta").run(reduce_bytes, nbytes, algorithm).time


# %% tags=["maintainer"]
def draw_times(lines, points, title, xlabel="bytes to reduce, N", ylabel="time of an all-reduce"):
    """Lines are formulas and points are runs, on logarithmic axes."""
    return study.curves(
        lines,
        points=points,
        logx=True,
        logy=True,
        xunit="B" if xlabel.startswith("bytes") else "",
        yunit="s",
        xlabel=xlabel,
        ylabel=ylabel,
        title=title,
    )


# %%
ns = [2**k for k in range(1, 11)]
few = {"ring": [2, 8, 64], "tree": [2, 16, 64]}  # where we run it
lines = {}
points = {}
for name, ran in few.items():
    lines[name] = ns, [seconds(name, n, 1024) for n in ns]
    points[name] = ran, [time_of(name, n, 1024) for n in ran]
draw_times(
    lines,
    points,
    "A ring's latency grows with n, a tree's with its logarithm",
    xlabel="ranks, n",
    ylabel="all-reduce of 1,024 B",
)

# %% tags=["maintainer"]
for name, (ran, times) in points.items():
    assert all(abs(t / seconds(name, n, 1024) - 1) < 1e-9 for n, t in zip(ran, times))

# %% [markdown]
# This is why rings fail at scale. The bytes stop growing with *n*, but the latency does not.
#
# The tree has its own trouble, of course: it sends all *N* bytes in every round, where the ring sends $N/n$ in a step. For large tensors the ring must win again. **On 64 ranks, from how many bytes on?** You can find it exactly by setting the two formulas equal.

# %%
guess_crossing = 100_000  # bytes: change this number

# %%
n = 64
# 2(n−1)(α + N/n β) = 12(α + Nβ), solved for N; 12 is 2 log2 64
crossing = (2 * (n - 1) - 12) * ALPHA / ((12 - 2 * (n - 1) / n) * BETA)
sizes = [64 * 10**3, 64 * 10**6]  # for the points
fine = [round(10 ** (k / 8)) for k in range(24, 73)]  # 1 kB to 1 GB, eight sizes in each decade
lines = {name: (fine, [seconds(name, n, size) for size in fine]) for name in ("ring", "tree")}
points = {name: (sizes, [time_of(name, n, size) for size in sizes]) for name in lines}

# %% tags=["answer"]
study.reveal(
    guess_crossing,
    round(crossing),
    draw_times(lines, points, "64 ranks: lines are formulas, points are runs"),
    unit="B",
    words="126 (α + Nβ/64) = 12 (α + Nβ), so 114 α = 10.03 Nβ, and α/β is 250 kB.",
)

# %% [markdown]
# ## Few steps and few bytes: recursive halving and doubling
#
# Look again at the picture of the tree's messages. In the last round everyone works, but in the first only two ranks do. All the others stand idle, and this is where the bytes could go.
#
# First, let everyone work in every round. Ranks form pairs, and both partners send all they have to each other and add. After a round with the partner that is 4 ranks away, one with the partner 2 away and one with the neighbour, everyone has the sum: no way back is needed. The sum that a rank holds covers twice as many ranks after each round, so this is an all-reduce by [recursive doubling](term:recursive-doubling); its picture is called a [butterfly](term:butterfly).
#
# Who is whose partner? Write rank 5 in binary, 101, and turn over the bit that stands for the distance. With distance 4 the partner is 001 = 1, with 2 it is 111 = 7, with 1 it is 100 = 4. In Python `rank ^ distance` turns over this bit; turned over again, it leads back, so partners agree on each other.


# %%
def recursive_doubling(comm, x):
    """n is a power of two."""
    distance = comm.size // 2
    while distance >= 1:
        partner = comm.rank ^ distance
        arriving = torch.empty_like(x)
        comm.sendrecv(x, partner, arriving, partner)
        x += arriving
        distance //= 2
    return x


world = World(8)
world.run(recursive_doubling, torch.zeros(6))
study.messages(
    world.trace, clock="steps", label=None, title="A butterfly: everyone works in every step"
)

# %% tags=["maintainer"]
assert [verdict(recursive_doubling, n, 7) for n in (1, 2, 4, 8)] == ["right"] * 4

# %% [markdown]
# This takes half as many rounds as the tree, but still *N* bytes in each. Now comes the decisive thought. Two partners that have exchanged everything both add up everything: they do the same work twice. Let them share it. One of them adds up the first half of the vector, the other the second. Each then needs to receive only the half that it is in charge of, so each sends only half. And in the next round the vector that a rank is still working on is only half as long.
#
# ![Recursive halving and doubling on four ranks. Halving: ranks 0 and 2, and 1 and 3, exchange halves and add; then 0 and 1, and 2 and 3, exchange quarters. Now rank i has the finished chunk i. Doubling: the same partners in the opposite order, handing back quarters, then halves.](../course/04_trees/figures/halving_doubling.svg)
#
# With four ranks and chunks 0 to 3: ranks 0 and 2 are partners first. Rank 0 keeps chunks 0 and 1 and gives away 2 and 3; rank 2 does the opposite. Then rank 0 meets rank 1, keeps chunk 0 and gives away chunk 1. Chunk 0 has now collected everything: rank 0's own, rank 2's directly, and rank 1's, which already contained rank 3's. A rank keeps the upper half where its bit is 1, and else the lower: rank 2 = 10 keeps the upper half and then the lower half of that, chunk 2. So, as in the ring, chunk *i* is finished at rank *i*, and what we have done is a reduce-scatter. It is called [recursive halving](term:recursive-halving), and all of it [halving-doubling](term:halving-doubling): the way back is an all-gather with the same partners in the opposite order, in which each rank gives away all that it has, twice as much in every step. (This half is called recursive doubling as well, because the pieces double; but nothing is added here.)


# %%
def halve(comm, x):
    """Reduce-scatter. Returns what was kept and what was given away in each step."""
    part = x
    steps = []
    distance = comm.size // 2
    while distance >= 1:
        partner = comm.rank ^ distance
        lower, upper = part.tensor_split(2)
        if comm.rank & distance:  # this rank is the upper one of the two
            keep, give = upper, lower
        else:
            keep, give = lower, upper
        arriving = torch.empty_like(keep)
        comm.sendrecv(give, partner, arriving, partner)
        keep += arriving
        steps.append((partner, keep, give))
        part = keep
        distance //= 2
    return steps


def halving_doubling(comm, x):
    """All-reduce; n is a power of two."""
    steps = halve(comm, x)
    for partner, kept, given in reversed(steps):
        comm.sendrecv(kept, partner, given, partner)  # views: what arrives stands in its place in x
    return x


rows = []
for n in (1, 2, 4, 8):
    rows.append([f"n = {n}"] + [verdict(halving_doubling, n, length) for length in (0, 1, 7)])
study.table(rows, ["", "length 0", "length 1", "length 7"], title="Halving and doubling")

# %% [markdown]
# **What it costs.** There are $2\log_2 n$ steps. The halving sends $\frac N2 + \frac N4 + \cdots + \frac Nn = \frac{n-1}{n}N$ bytes, and so does the doubling:
#
# $$T = 2\log_2 n\;\alpha + 2\,\frac{n-1}{n}\,N\beta.$$
#
# It has the steps of a tree and the bytes of a ring, both at once. Let us count all four on 64 ranks.


# %%
def counted(all_reduce, n=64, nbytes=640_000):
    world = World(n, device="meta")
    world.run(lambda comm: all_reduce(comm, torch.empty(nbytes, dtype=torch.uint8, device="meta")))
    messages = max(world.trace.messages(rank) for rank in range(n))
    sent = max(world.trace.bytes_sent(rank) for rank in range(n))
    return messages, sent, round(world.time * 1e6, 1)


candidates = {
    "ring": lambda comm, x: all_reduce_(comm, x, algorithm="ring"),
    "tree": tree_all_reduce,
    "butterfly": recursive_doubling,
    "halving and doubling": halving_doubling,
}
study.table(
    [(name, *counted(candidate)) for name, candidate in candidates.items()],
    ["640 kB on 64 ranks", "messages sent by the busiest rank", "bytes it sends", "time, µs"],
)

# %% [markdown]
# The butterfly has 6 rounds where the tree has 12 (the tree's root receives in six of them and sends in six). Halving and doubling also has 12 steps, and sends as few bytes as the ring. Now we can answer the question from the beginning, on 1,024 ranks. Lines are formulas; the point is a run of halving and doubling, with 20 messages for each rank.

# %%
n = 1024
names = ["ring", "tree", "halving_doubling"]
lines = {name: (fine, [seconds(name, n, size) for size in fine]) for name in names}
points = {"halving_doubling": ([2**20], [time_of("halving_doubling", n, 2**20)])}
faster = {
    "your guess": guess,
    "tree": seconds("ring", n, MB) / seconds("tree", n, MB),
    "halving and doubling": seconds("ring", n, MB) / seconds("halving_doubling", n, MB),
}

# %% tags=["answer"]
study.reveal(
    guess,
    round(faster["halving and doubling"]),
    [
        draw_times(lines, points, "1,024 ranks"),
        study.bars(faster, title="1 MB on 1,024 ranks: times faster than a ring"),
    ],
    unit="times",
    words="Halving and doubling takes 20 α and not quite 2 Nβ, 100 + 40 µs; the ring takes 10.3 ms, nearly all "
    "of it latency.",
)

# %% [markdown]
# **If *n* is not a power of two,** some ranks have no partner. The usual remedy is to *fold* the surplus: with 6 ranks, ranks 1 and 3 first give everything to ranks 0 and 2, which act for both, and four ranks remain. At the end ranks 1 and 3 are told the result. This costs two more messages of the full length, as many bytes again as all the rest, which is why such numbers of ranks are unpopular.
#
# In theory little can beat halving and doubling. Why, then, is it not what everyone uses? Look at the partners. In the first step, half of the vector goes from *every* rank to a rank that is *n*/2 away, as far as possible. On the formula's network all distances are alike. On yours they are not, and we shall come back to it.
#
# ## The double binary tree
#
# NCCL goes another way, the [double binary tree](term:double-binary-tree). It starts from a tree and asks why a tree is slow for large tensors. There are two reasons, and each has a cure.
#
# The first is that all of *N* passes every level before the next level begins. The cure is to *cut the tensor into pieces*. While the second piece climbs from the leaves to the first level, the first piece is already on its way from there to the second.
#
# ![A tensor is sent up three levels of a tree. As a whole it takes four units of time on each level, one level after another: twelve units. Cut into four pieces, piece 1 passes the second level while piece 2 passes the first, and all are at the top after six units.](../course/04_trees/figures/pieces.svg)
#
# In the picture the first piece is at the top after 3 units instead of 12, and then one more arrives in every unit. Once the pieces are flowing, all levels work at once, and with many pieces the time is hardly more than that of *N* bytes through one wire, however deep the tree is.
#
# The second reason remains. In a binary tree half of the ranks are leaves. A leaf sends its own numbers up and receives the result; it forwards nothing, so in a broadcast its wire *out* is never used. Meanwhile an inner rank has two children and sends everything twice. Half of the ranks do double work, and the other half do none. The cure is to lay *a second tree over the first, whose leaves are the inner ranks of the first*. Each tree carries half of the pieces. Then every rank is an inner rank in one tree and a leaf in the other. In a broadcast it sends one half of the tensor to two children, *N* bytes, and receives each half once, *N* bytes: all wires are equally busy.
#
# ![Two trees over eight ranks. In the first the ranks stand in order at positions 1 to 8; odd positions are leaves, so ranks 0, 2, 4 and 6. The second is the mirror image, in which ranks 7, 5, 3 and 1 are leaves. Every rank is a leaf in one tree and an inner rank in the other.](../course/04_trees/figures/double_tree.svg)
#
# **What it costs.** On the way down every wire carries *N* bytes, $N\beta$ seconds. To this we must add the time until the first piece reaches the last rank, after *h* messages one behind the other; *h* is a little more than the depth of the tree. How short should a piece be? The library keeps two under way: while the latency of one passes, the next already leaves, and the wire does not rest if that takes as long as the latency. So let a piece take $\alpha$ on the wire: there are $N\beta/\alpha$ of them. The first has arrived after $h(\alpha+\alpha)$, and then one more each $\alpha$, $N\beta-\alpha$ for all the others. That makes $N\beta + (2h-1)\alpha$ down, and the same up before it:
#
# $$T_\text{double tree} \approx 2N\beta + (4h-2)\,\alpha.$$
#
# On 64 ranks *h* is 8. An all-reduce of 10 MB should take 2 · 200 + 30 · 5 = 550 µs; look for it in the plot below. These are the bytes of a ring with a quarter of its 126 latencies. (A tensor so small that it goes in one piece for each tree takes about $2h\alpha$, here 80 µs.)
#
# **How does one find the second tree?** Write the ranks in a row, at positions 1 to *n*, and build the tree of a binary search over them: the odd positions are leaves, positions 2, 6, 10, … stand above two leaves, positions 4, 12, … above two of those, and so on. The height of a position is the number of zeros at the end of its binary form. In the first tree rank *r* stands at position *r* + 1, so the even ranks are its leaves. For the second tree read the row from the other end, so that rank *r* stands at position *n* − *r*. If *n* is even, the two positions add up to *n* + 1, an odd number. So one of them is odd and a leaf, and the rank has children in the other tree only. (If *n* is odd, the row is rotated by one place instead.)
#
# And who is a rank's parent? Position 6 = 110 has height 1. Two positions away, on either side, stand 4 = 100 and 8 = 1000, and only one of them, 4, has height 2: that is the parent. Beside 5 = 101 stand 4 and 6 = 110, and only 6 has height 1. Both follow from one rule: clear the lowest 1 and set the next higher bit. (If the result lies beyond *n*, only clear the bit.) The construction is from [Sanders, Speck and Träff 2009](paper:sanders2009); NCCL has used it since 2019 ([Jeaugey](paper:jeaugey2019)).

# %%
from minidist.collectives import double_tree

first, second = double_tree.trees(16)
study.tree(
    {"first tree": first, "second tree": second},
    title="16 ranks in two trees: no rank has children in both",
)

# %% tags=["maintainer"]
for n in range(1, 40):
    first, second = double_tree.trees(n)
    inner = [{parent for parent in tree if parent >= 0} for tree in (first, second)]
    assert not inner[0] & inner[1]

# %% [markdown]
# Find rank 5 in both trees: where does it have children, and where is it a leaf? (In the first it stands above 4 and 6; in the second it is a leaf below 6.) The library also has to see to it that a rank never has to send two pieces in the same step. It gives each edge the even or the odd steps, so that the two edges by which pieces leave a rank take turns, and so do the two by which they enter. (Now and then a piece must wait for its turn, and therefore *h* is 8 and not 6.)
#
# How good is it? Here are the four algorithms on 64 ranks. The lines are the library's formulas, the points runs of the double tree.

# %%
from minidist.collectives import verbs

algorithms = ["ring", "tree", "halving_doubling", "double_tree"]
sizes = [10**4, 10**5, 10**6, 10**7]  # for the points
coarse = fine[::3]
lines = {}
for name in algorithms:
    times = [verbs.seconds("all_reduce", name, 64, size, ALPHA, BETA) for size in coarse]
    lines[name] = coarse, times
points = {"double_tree": (sizes, [time_of("double_tree", 64, size) for size in sizes])}
draw_times(
    lines, points, "64 ranks: the double tree never takes twice as long as the best of the others"
)

# %% tags=["maintainer"]
for i in range(len(coarse)):
    best = min(lines[name][1][i] for name in algorithms[:3])
    assert lines["double_tree"][1][i] < 2 * best
assert abs(points["double_tree"][1][-1] - (2 * 10**7 * BETA + 30 * ALPHA)) < 1e-9
assert double_tree.trees(16)[0][4:7] == [5, 3, 5] and double_tree.trees(16)[1][5] == 6

# %% [markdown]
# For every size it stays within a factor of two of the best. And unlike halving and doubling it exchanges most of its messages between ranks that are near each other: half of a tree's edges join neighbours, and a quarter ranks that are two apart.
#
# ## Back to real wires
#
# So far every pair of ranks had a link of its own, and all links were alike. In [Topology and cost](lesson:topology) you saw what the machine looks like. Which algorithm wins on eight nodes of eight H100, once on a fat tree and once where eight ranks share each cable to the spine? Decide which will be the slowest in the second case before you run it.

# %%
guess_worst = "tree"  # the slowest on the oversubscribed cluster: ring, tree or halving_doubling

# %%
from minidist.comm.cluster import Cluster


def run_on(cluster, all_reduce, nbytes):
    """The World that has all-reduced that many bytes on 64 ranks of a cluster."""

    def program(comm):
        all_reduce(comm, torch.empty(nbytes, dtype=torch.uint8, device=comm.device))

    world = World(64, cluster=cluster, device="meta", meter=False)
    world.run(program)
    return world


def library(algorithm):
    return lambda comm, x: all_reduce_(comm, x, algorithm=algorithm)


fat = Cluster.dgx_h100(nodes=8)
pod = Cluster.dgx_h100(nodes=8, oversubscription=8)
rows = []
for name in ("ring", "tree", "halving_doubling", "double_tree"):
    times = [run_on(cluster, library(name), 64 * MB).time * 1e3 for cluster in (fat, pod)]
    rows.append((name, *times))
slowest = max(rows, key=lambda row: row[2])[0]

# %% tags=["answer"]
study.reveal(
    guess_worst,
    slowest,
    study.table(rows, ["64 MB on 64 GPUs, ms", "fat tree", "8 share a cable to the spine"]),
    words="Halving and doubling begins with half of everything, from all ranks at once, to ranks as far "
    "away as possible: through the spine. 32 MB at 48 GB/s take 0.67 ms on a cable of their own and 5.33 ms "
    "where eight ranks share it, and the same once more on the way back: that is the whole difference, 9.3 ms. "
    "The others do not notice. Of a ring's 64 messages in a step only two cross between racks, and trees send "
    "few so far. The tree is slow on both: six of its 12 rounds carry all 64 MB between nodes, 1.33 ms each.",
)

# %% tags=["maintainer"]
racks = [pod.place(rank).rack for rank in range(64)]
assert sum(racks[rank] != racks[(rank + 1) % 64] for rank in range(64)) == 2

# %% [markdown]
# ## Hierarchical
#
# If far wires are slow, let few bytes use them. The machine itself suggests how: add up inside each node, where NVLink is fast, then reduce over the nodes, then spread the result inside each node.
#
# ![Hierarchical all-reduce on four ranks in two nodes. First a reduce-scatter in each node, over its fast links; then all-reduces between the nodes, of ranks 0 and 2, and of ranks 1 and 3; last an all-gather in each node. The slow network carries each number once, not once for every rank.](../course/04_trees/figures/hierarchical.svg)
#
# The naive way appoints a leader for each node, who speaks for it. It needs two communicators for each rank, which `comm.split` makes as in the last lesson: ranks of the same colour form a group.


# %%
def with_leaders(comm, x, per_node=8):
    # this rank's node, and the ranks that have the same place in the other nodes
    node = comm.split([rank // per_node for rank in range(comm.size)])
    same_place = comm.split([rank % per_node for rank in range(comm.size)])
    tree_reduce(node, x)
    if node.rank == 0:
        all_reduce_(same_place, x)  # the leaders among themselves, in a ring
    tree_broadcast(node, x)
    return x


# %% [markdown]
# Seven of eight network cards rest while the leaders work, though each GPU has one. So the better way cuts the tensor first. Follow the picture, in which a node has two ranks and the tensor two parts, *a* and *b*. A reduce-scatter inside the node leaves rank 0 with its node's sum of *a*, 11, and rank 1 with that of *b*, 22. Then all ranks cross at the same time: 0 and 2 add up *a* between the nodes, 11 + 1100, while 1 and 3 do the same with *b*. An all-gather inside the node puts the parts together. With eight ranks in a node, each crosses with an eighth.


# %%
from minidist.collectives import all_gather, reduce_scatter


def hierarchical(comm, x, per_node=8):
    """The length of x is a multiple of per_node."""
    node = comm.split([rank // per_node for rank in range(comm.size)])
    same_place = comm.split([rank % per_node for rank in range(comm.size)])
    share = reduce_scatter(node, x)  # one of per_node parts, summed over the node
    all_reduce_(same_place, share)  # now summed over all
    x.copy_(all_gather(node, share))
    return x


def crossing_bytes(world, per_node=8):
    """How many ranks send to other nodes, and the MB that the busiest of them sends there."""
    sent = [0] * world.n
    for message in world.trace:
        if message.src // per_node != message.dst // per_node:
            sent[message.src] += message.nbytes
    return sum(nbytes > 0 for nbytes in sent), max(sent) / MB


rows = []
for name, all_reduce in {
    "flat ring": library("ring"),
    "leaders": with_leaders,
    "cut first": hierarchical,
}.items():
    world = run_on(fat, all_reduce, 64 * MB)
    oversubscribed = run_on(pod, all_reduce, 64 * MB).time * 1e3
    rows.append((name, *crossing_bytes(world), world.time * 1e3, oversubscribed))
study.table(
    rows,
    [
        "64 MB on 64 GPUs",
        "ranks that send to other nodes",
        "MB each of them sends there",
        "ms, fat tree",
        "ms, shared cables",
    ],
)

# %% tags=["maintainer"]
for all_reduce in (with_leaders, hierarchical):
    for n in (2, 4, 6):
        assert verdict(lambda comm, x: all_reduce(comm, x, 2), n, 8) == "right"

# %% [markdown]
# **What it costs.** Let there be *g* ranks in each of *m* nodes, and rings everywhere. Inside the node, reduce-scatter and all-gather together are a ring of *g* ranks with all *N* bytes, over NVLink; between the nodes there is a ring of *m* ranks with $N/g$ bytes:
#
# $$T = 2(g-1)\left(\alpha_\text{in} + \frac Ng\,\beta_\text{in}\right) + 2(m-1)\left(\alpha_\text{out} + \frac N{gm}\,\beta_\text{out}\right).$$
#
# Here that is 14 · (3.4 + 21.6) + 14 · (15 + 20.8) = 851 µs. The slow network carries only $2\frac{m-1}{m}\cdot\frac{N}{g}$ bytes for each rank, 14 MB, a ninth of what the busiest ranks of the flat ring send. The leaders send $2\frac{m-1}{m}N$ = 112 MB. Where cables are shared, the eighths of one node have to queue for them, and even so the algorithm is well ahead of the ring.
#
# Now everything on one plot, up to 1,024 GPUs: 16 MB on nodes of eight H100 behind a fat tree, where a message between nodes takes 14 µs to start, or 15 between racks. The formulas are the library's. `Net` is how they see a cluster, as a number of ranks and a function that says which link joins two of them, and in each step they take the slowest link that is in use. `Hierarchical` names an algorithm for inside the nodes, one for between them, and the ranks of a node; here it is halving and doubling in both places.

# %%
from minidist.collectives.hierarchical import Hierarchical
from minidist.collectives.links import Net


def nodes_for(n):
    return Cluster.dgx_h100(nodes=max(1, n // 8))


def links_of(n):
    cluster = nodes_for(n)
    return Net(n, lambda dst, src: cluster.link(src, dst))


three = {
    "ring": "ring",
    "tree": "tree",
    "hierarchical": Hierarchical("halving_doubling", "halving_doubling", 8),
}
ns = [8 * 2**k for k in range(8)]
few = {"ring": [8, 32, 64], "tree": [8, 32, 64], "hierarchical": [16, 1024]}  # where we run it
lines = {}
points = {}
for name, algorithm in three.items():
    lines[name] = ns, [verbs.predict(links_of(n), "all_reduce", 16 * MB, algorithm) for n in ns]
    times = []
    for n in few[name]:
        world = World(n, cluster=nodes_for(n), device="meta", meter=False)
        times.append(world.run(reduce_bytes, 16 * MB, algorithm).time)
    points[name] = few[name], times
draw_times(
    lines,
    points,
    "Ring and tree cross; cut inside the node first, and neither matters",
    xlabel="GPUs, n",
    ylabel="all-reduce of 16 MB",
)

# %% tags=["maintainer"]
assert points["ring"][1][1] < points["tree"][1][1]
assert points["ring"][1][2] > points["tree"][1][2]

# %% [markdown]
# From 8 to 16 GPUs the ring has to leave its node, and each of its steps takes 35 µs instead of 9. After that it grows with *n*. Up to 32 GPUs ring and tree are close to each other, and from 64 on the tree is ahead for good. On 1,024 the ring takes 31 ms, the tree 5.2, and the hierarchy 0.39.
#
# ## Which one, when?
#
# With `all_reduce_(comm, x, algorithm="auto")` the library evaluates the formulas of all its algorithms and takes the fastest, and so do NCCL and MPI in their own ways. Here is what it chooses:


# %%
def chosen(net, nbytes):
    best = verbs.fastest(net, "all_reduce", nbytes)
    return best if isinstance(best, str) else f"hierarchical, {best.outer} between nodes"


rows = []
for n in (8, 64):
    rows.append([f"{n} H100"] + [chosen(links_of(n), nbytes) for nbytes in (10**3, 10**6, 10**9)])
study.table(rows, ["", "1 kB", "1 MB", "1 GB"], title="What auto takes")

# %% [markdown]
# As a rule of thumb: small tensors and many ranks want few steps, so trees; large tensors and few ranks want few bytes, so rings; large tensors on several nodes want a hierarchy. (Some entries are draws. For 1 MB on 64 GPUs, flat halving and doubling and the best hierarchy are both predicted to take 143 µs; for 1 kB, tree and halving and doubling take equally long. Whatever is within 3 % of the fastest counts as equal, and of those `auto` takes the simplest.) [Thakur, Rabenseifner and Gropp 2005](paper:thakur2005) turned this into a table of sizes that many MPI libraries have followed since. **When not to trust it:** a formula of single links does not see what is shared. If your cables are shared, measure or simulate.
#
# Try it yourself. The sliders change the number of ranks, the latency and the bandwidth of a network whose links are all alike.


# %%
def all_reduce_seconds(n, N, latency, bandwidth):
    names = ("ring", "tree", "halving_doubling")
    return {name: seconds(name, n, N, latency, 1e-9 / bandwidth) for name in names}


study.explore(
    all_reduce_seconds,
    over="N",
    n=[2, 4, 8, 16, 64, 256, 1024],
    N=[10**k for k in range(3, 10)],
    latency=[1e-6, 5e-6, 20e-6],
    bandwidth=[5, 50, 400],
    units={"N": "B", "latency": "s", "bandwidth": "GB/s"},
    labels={"n": "ranks", "N": "bytes to reduce"},
    start={"n": 64, "latency": 5e-6, "bandwidth": 50},
    unit="s",
    logx=True,
    logy=True,
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title="Which algorithm?",
)

# %% [markdown]
# ## Break it
#
# Trees have their own classic mistakes. In the commonest one the reduce runs its rounds in the same order as the broadcast, instead of backwards. With two ranks there is only one round, so the order cannot be wrong. What do you expect with more?


# %%
def rounds_in_the_wrong_order(comm, x):
    distance = 1
    while distance < comm.size:
        distance *= 2
    while distance > 1:  # should go from the smallest distance to the largest
        distance //= 2
        if comm.rank % (2 * distance) == 0 and comm.rank + distance < comm.size:
            arriving = torch.empty_like(x)
            comm.recv(arriving, comm.rank + distance)
            x += arriving
        elif comm.rank % (2 * distance) == distance:
            comm.send(x, comm.rank - distance)
    tree_broadcast(comm, x)
    return x


rows = []
for name, candidate in {
    "tree": tree_all_reduce,
    "rounds in the wrong order": rounds_in_the_wrong_order,
}.items():
    rows.append([name] + [verdict(candidate, n, 7) for n in (1, 2, 3, 4, 8)])
study.table(rows, ["", "n = 1", "n = 2", "n = 3", "n = 4", "n = 8"])

# %%
start = [numbers(rank) for rank in range(4)]
wrong = World(4).run(lambda comm: rounds_in_the_wrong_order(comm, numbers(comm.rank)))
study.holdings(start, wrong, title="Rounds in the wrong order: who is missing?")

# %% [markdown]
# Two ranks hide this bug, and even three do, because both others then report straight to rank 0, whatever the order. Only with four does it show. Read the digits. With four ranks the result contains the ones, the tens and the hundreds, but no thousands: rank 3 gave its numbers to rank 2 only after rank 2 had reported to rank 0. All ranks agree with each other, and all are wrong. It gets worse with more ranks. With the largest distance first, everyone reports before anything has arrived from below, so that rank 0 adds a single rank's share in each of $\log_2 n$ rounds to its own: on 8 ranks it has 4 shares, on 64 only 7. Training goes on all the same, with smaller gradients; with Adam, which divides each gradient by its own usual size, you would not even see that. You would just train on a ninth of your data, and weeks may pass before anybody notices.
#
# ## The same program in real processes
#
# `launch` runs the tree in four processes, as it ran the ring in [Messages](lesson:messages). We count the messages that each rank sends, in the World and there.

# %%
from minidist.comm import launch


def tree_sum(comm):
    return tree_all_reduce(comm, numbers(comm.rank, 1000))


runs = {"World": World(4).run(tree_sum), "processes": launch(tree_sum, 4)}
rows = []
for rank in range(4):
    rows.append([f"rank {rank}"] + [run.trace.messages(rank) for run in runs.values()])
study.table(rows, ["messages sent", *runs], title="A tree on four ranks")

# %% tags=["maintainer"]
assert all(torch.equal(x, y) for x, y in zip(*runs.values(), strict=True))

# %% [markdown]
# Six messages, as it should be: 1, 2 and 3 send one each in the reduce, rank 0 sends two in the broadcast and rank 2 one. On a cluster, a script calls `tree_sum(from_env())` under torchrun, as in [examples/ring.py](file:examples/ring.py). With NCCL you can choose the algorithm by an environment variable and compare with the curves of this lesson:
#
# ```
# NCCL_ALGO=Ring ./all_reduce_perf -b 1K -e 8G -f 4 -g 8
# NCCL_ALGO=Tree ./all_reduce_perf -b 1K -e 8G -f 4 -g 8
# ```
#
# ## The library's files
#
# Each algorithm has a file of its own, with its cost formula beside it. [tree.py](file:minidist/collectives/tree.py) numbers ranks from the root, so that any rank can be the root: *v* is this number. The parent of *v* is *v* without its lowest 1, as in our tree: 6 = 110 hears from 4 = 100. `children` are the distances of its children, the nearest first, and `flat` is the tensor as one long row.

# %%
from minidist.collectives import tree

study.source(tree.broadcast, docstring=False)

# %% [markdown]
# It serves the child with the largest branch first, since that branch has the longest way to go. [halving_doubling.py](file:minidist/collectives/halving_doubling.py) has our `halve` with one addition, the folding of ranks beyond a power of two. `group.p` is that power of two, and `group.acts` says whether this rank is one of the *p* that go on; with 6 ranks *p* is 4, and ranks 1 and 3 do not act. `ends` says where the *p* chunks begin and end.

# %%
from minidist.collectives import halving_doubling as library_halving

study.source(library_halving.all_reduce, docstring=False)

# %% [markdown]
# The two trees of [double_tree.py](file:minidist/collectives/double_tree.py) come from the rule for the parent. `position & -position` is the lowest 1 of a binary number; `^ bit` clears it, and `| bit << 1` sets the next higher one. In `trees`, positions count from 1 and ranks from 0; the root's parent is `NOBODY`, −1. If *n* is odd, `r or n` is the row that was rotated: rank 0 has gone from the front to position *n*.

# %%
display(study.source(double_tree._parent), study.source(double_tree.trees))

# %% [markdown]
# And [hierarchical.py](file:minidist/collectives/hierarchical.py) puts any two of the others together: `within` is the algorithm inside a node and `outer` the one between nodes. `group.inner` and `group.outer` are our `node` and `same_place`. (Where nodes differ in size, the ranks that are left over have no `group.outer`.)

# %%
study.source(Hierarchical.all_reduce)

# %% [markdown]
# [verbs.py](file:minidist/collectives/verbs.py) chooses. `having` names the algorithms that have this verb; if there are several nodes, hierarchies with each of them between the nodes are candidates as well. All ranks see the same links and so choose the same, and `net.keep` remembers the choice:

# %%
study.source(verbs.fastest)

# %% [markdown]
# ## Takeaways
#
# - α counts steps, β counts bytes. A ring has the fewest bytes and $2(n-1)$ steps; a tree has $2\log_2 n$ steps with all the bytes in each.
# - Recursive halving and doubling has the steps of a tree and the bytes of a ring, but sends the bytes far.
# - A double binary tree cuts the tensor into pieces and uses all wires; on 64 ranks it takes less than twice as long as the best, at any size.
# - Where wires are shared the order changes. Reduce inside the node first, and let every network card carry its piece.
# - Small tensors and many ranks: trees. Large tensors and few ranks: rings. Large tensors on several nodes: a hierarchy.
# - Test trees with at least four ranks: with two or three, every order of rounds is right.
#
# ## Further reading
#
# - paper:thakur2005 Which algorithm for which size: section 4.
# - paper:rabenseifner2004 Recursive halving and doubling.
# - paper:sanders2009 The double binary tree.
# - paper:jeaugey2019 The same in NCCL, measured on up to 24,576 GPUs.
# - paper:cho2019 All-reduce in nodes and between them.
# - paper:chan2007 All collectives and their costs, side by side.
