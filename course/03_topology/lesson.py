# %% [markdown]
# # 03 · Topology and cost
#
# 1,024 ranks add up 1 MB of gradients. From lesson 02 you know a ring that sends the fewest bytes possible.
# A message takes 5 µs to start, and a wire carries 50 GB/s.
# **How many times faster than the ring can it be done?**

# %%
guess = 1.5  # times faster than the ring: change this number

# %% [markdown]
# ## On paper: 3 ranks, 6 numbers
#
# This time count steps, not bytes: messages that have to wait for each other. In a ring everything passes everyone.
# In a **tree** one half gives all it has to the other half, again and again: of four ranks 2 to 0 and 3 to 1, then
# 1 to 0. The sum comes back the same way. With 3 ranks ring and tree take 4 steps. Count for more:

# %%
from itertools import pairwise
from math import exp
from statistics import NormalDist, median

import torch
from IPython.display import display

from minidist import study
from minidist.collectives import all_reduce_, bandwidth, verbs
from minidist.comm import World, launch
from minidist.comm.cluster import Cluster

MB = 10**6
ALPHA = 5e-6
BETA = 1 / 50e9
ns = [3, 4, 8, 64, 1024]
rows = [(n, 2 * (n - 1), 2 * (n - 1).bit_length()) for n in ns]
study.table(rows, ["ranks", "steps of a ring, 2(n−1)", "steps of a tree, 2⌈log2 n⌉"])

# %% [markdown]
# ## A tree
#
# Broadcast first. The naive root sends to all others itself. In a tree those who have the numbers help: `reach` ranks
# have them, and each sends to one `reach` further on. So in each round twice as many have them.


# %%
def tree_broadcast(comm, x):
    reach = 1
    while reach < comm.size:
        if comm.rank < reach and comm.rank + reach < comm.size:
            comm.send(x, comm.rank + reach)
        elif reach <= comm.rank < 2 * reach:
            comm.recv(x, comm.rank - reach)
        reach *= 2


world = World(8)
world.run(tree_broadcast, torch.zeros(6))
study.messages(world.trace, clock="steps", label=None, title="A tree: 1, 2, 4 messages at once")

# %% [markdown]
# The same rounds backwards, with a sum, are a reduce. One after the other, they are an all-reduce.


# %%
def tree_reduce(comm, x):
    reach = 1 << (comm.size - 1).bit_length()
    while reach > 1:
        reach //= 2
        if comm.rank < reach and comm.rank + reach < comm.size:
            x += comm.recv(torch.empty_like(x), comm.rank + reach)
        elif reach <= comm.rank < 2 * reach:
            comm.send(x, comm.rank - reach)


def tree_all_reduce(comm, x):
    tree_reduce(comm, x)
    tree_broadcast(comm, x)
    return x


# %% [markdown]
# Is it right, for our 3 ranks and for others? The oracle is the serial sum.


# %%
def numbers(comm, length=6):
    return torch.arange(1, length + 1) * 10**comm.rank


def verdict(all_reduce, n, length):
    want = sum(torch.arange(1, length + 1) * 10**r for r in range(n))
    got = World(n).run(lambda comm: all_reduce(comm, numbers(comm, length)))
    return "right" if all(torch.equal(x, want) for x in got) else "wrong"


after = World(3).run(lambda comm: tree_all_reduce(comm, numbers(comm)))
display(
    study.holdings(World(3).run(numbers), after, title="All-reduce by a tree: 3 ranks, 6 numbers")
)
rows = [
    [f"n = {n}", *(verdict(tree_all_reduce, n, length) for length in (0, 1, 7))]
    for n in (1, 2, 4, 5, 8, 13)
]
study.table(rows, ["", "length 0", "1", "7"], title="All-reduce by a tree, against the serial sum")

# %% [markdown]
# ## Why rings fail at scale
#
# A ring takes $2(n-1)\left(\alpha + \frac{N}{n}\beta\right)$. The bytes stop growing with n. The latency α does not:
# $2(n-1)\alpha$. A tree takes $2\log_2 n\,(\alpha + N\beta)$ for powers of two. (A third cost, γ seconds to add up
# a byte, is small beside β on a GPU. We leave it out; `cost.seconds(…, gamma=…)` has it.)
# Lines are formulas, points are runs. A ring over 1,024 ranks would be 2 million messages; its points end at 64.


# %%
def seconds(algorithm, n, N, a=ALPHA, b=BETA):
    log = (n - 1).bit_length()  # ⌈log2 n⌉
    return {
        "ring": 2 * (n - 1) * (a + N / n * b),
        "tree": 2 * log * (a + N * b),
        "halving_doubling": 2 * log * a + 2 * (n - 1) / n * N * b,
    }[algorithm]


def reduce_bytes(comm, N, algorithm):
    x = torch.empty(N, dtype=torch.uint8, device=comm.device)
    if algorithm == "tree":
        tree_all_reduce(comm, x)
    else:
        all_reduce_(comm, x, algorithm=algorithm)


def run(algorithm, n, N, **where):
    world = World(n, device="meta", **where)
    world.run(reduce_bytes, N, algorithm)
    return world


# %%
ns, few = [2**k for k in range(1, 11)], {"ring": [2, 8, 64], "tree": [2, 16, 64]}
lines = {name: (ns, [seconds(name, n, 1024) for n in ns]) for name in few}
points = {name: (some, [run(name, n, 1024).time for n in some]) for name, some in few.items()}
assert all(
    abs(t / seconds(name, n, 1024) - 1) < 1e-9
    for name, (some, ts) in points.items()
    for n, t in zip(some, ts)
)
study.curves(
    lines,
    points=points,
    logx=True,
    logy=True,
    yunit="s",
    xlabel="ranks, n",
    ylabel="all-reduce of 1,024 B",
    title="A ring's latency grows with n, a tree's with its logarithm",
)

# %% [markdown]
# ## But a tree sends everything every time
#
# The tree passes all N bytes in every step, the ring a chunk of N/n. So for large N the ring wins.
# Set the two formulas equal, and solve for N. Then run both, on 64 ranks.

# %%
n = 64
cross = (n - 1 - 6) * ALPHA / ((6 - (n - 1) / n) * BETA)  # log2 64 = 6
sizes, fine = [64 * 10**k for k in (3, 6)], [round(10 ** (k / 8)) for k in range(24, 73)]
lines = {name: (fine, [seconds(name, n, N) for N in fine]) for name in ("ring", "tree")}
points = {name: (sizes, [run(name, n, N).time for N in sizes]) for name in lines}
points["crossover, predicted"] = ([cross], [seconds("ring", n, cross)])
study.curves(
    lines,
    points=points,
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title=f"64 ranks: below {cross / MB:.1f} MB the tree wins",
)

# %% [markdown]
# ## Both at once
#
# Look at the tree's picture again: in the last round all ranks work, in the first one only two. **Recursive doubling**
# lets everyone work in every step. Partners exchange all they have, and both add. After the steps with partners 4, 2
# and 1 ranks away, everyone has everything: no way back is needed.


# %%
def recursive_doubling(comm, x):
    distance = comm.size // 2  # of a power of two
    while distance:
        partner = comm.rank ^ distance  # the other one whose number differs in this bit
        x += comm.sendrecv(x, partner, torch.empty_like(x), partner)
        distance //= 2
    return x


assert [verdict(recursive_doubling, n, 7) for n in (1, 2, 4, 8)] == ["right"] * 4
world = World(8)
world.run(recursive_doubling, torch.zeros(6))
study.messages(
    world.trace, clock="steps", label=None, title="A butterfly: everyone works in every step"
)

# %% [markdown]
# It still sends N bytes in each step. But two partners need not both add up everything: one adds the first half,
# the other the second. Then half as much is left for the next step. This is **recursive halving**. Afterwards every
# rank has the sum of 1/n, and the same steps backwards, **doubling**, gather it. Few steps *and* few bytes.
# You will build it in the exercises. Here is the library's, counted:


# %%
def counted(all_reduce, n=64, N=64 * 10**4):
    world = World(n, device="meta")
    world.run(lambda comm: all_reduce(comm, torch.empty(N, dtype=torch.uint8, device="meta")))
    most = lambda count: max(map(count, range(n)))
    return most(world.trace.messages), most(world.trace.bytes_sent), round(world.time * 1e6, 1)


def library(algorithm):
    return lambda comm, x: all_reduce_(comm, x, algorithm=algorithm)


ways = {
    "ring": library("ring"),
    "tree": tree_all_reduce,
    "recursive doubling": recursive_doubling,
    "halving and doubling": library("halving_doubling"),
}
study.table(
    [(name, *counted(way)) for name, way in ways.items()],
    ["640 kB on 64 ranks", "messages of the busiest rank", "bytes it sends", "time, µs"],
)

# %% [markdown]
# ## The answer
#
# On 1,024 ranks. The lines are formulas, the point is a run: halving and doubling, 20 messages a rank.

# %%
n = 1024
lines = {
    name: (fine, [seconds(name, n, N) for N in fine])
    for name in ("ring", "tree", "halving_doubling")
}
points = {"halving_doubling": ([2**20], [run("halving_doubling", n, 2**20).time])}
study.curves(
    lines,
    points=points,
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title="1,024 ranks",
)

# %%
times = (
    seconds("ring", n, MB) / seconds("tree", n, MB),
    seconds("ring", n, MB) / seconds("halving_doubling", n, MB),
)
study.bars(
    {"your guess": guess, "tree": times[0], "halving and doubling": times[1]},
    title=f"1 MB on 1,024 ranks: times faster than a ring, which takes {seconds('ring', n, MB) * 1e3:.1f} ms",
)

# %% [markdown]
# ## The double binary tree
#
# A tree could be fast for large N too, if it sent N in many small pieces: while one piece goes up, the next is already
# on its way. But in a tree half of the ranks are leaves, and a leaf passes nothing on: half of the wires rest. So lay a
# second tree over the first one, whose leaves are the inner ranks of the first. Each tree carries half of the pieces.
# NCCL has used this since 2019. Find rank 5 in the picture: where does it have children?

# %%
from minidist.collectives import double_tree

first, second = double_tree.trees(16)
study.tree(
    {"first tree": first, "second tree": second},
    title="16 ranks in two trees: no rank has children in both",
)

# %%
algorithms = ["ring", "tree", "halving_doubling", "double_tree"]
some, sizes = [10**4, 10**5, 10**6, 10**7], fine[::3]
lines = {
    a: (sizes, [verbs.seconds("all_reduce", a, 64, N, ALPHA, BETA) for N in sizes])
    for a in algorithms
}
points = {"double_tree": (some, [run("double_tree", 64, N).time for N in some])}
assert all(
    mine < 2 * min(best) for mine, *best in zip(*(lines[a][1] for a in reversed(algorithms)))
)
study.curves(
    lines,
    points=points,
    logx=True,
    logy=True,
    xunit="B",
    yunit="s",
    xlabel="bytes to reduce, N",
    ylabel="time of an all-reduce",
    title="64 ranks: a double tree never takes twice the best of these",
)

# %% [markdown]
# Why not halving and doubling always? In theory little beats it: for a tiny N recursive doubling, in half the steps.
# But its partners are far apart, and where n is no power of two, it needs more. So we have to look at real wires.
#
# ## Hardware, from near to far
#
# HBM is the GPU's own memory, PCIe the way to the **host**: the CPU and its memory.
# The makers' figures, both directions together where there are two. PCIe 5 has 16 lanes of 32 Gbit/s, each way, and
# packs 128 bits into 130. From 128 GB/s that leaves:

# %%
assert 2 * 16 * 32 / 8 == 128
sold = {(row["device"], row["quantity"]): row["value"] for row in study.published("hardware")}
assert round(128 * 128 / 130) == sold["PCIe 5 x16", "duplex"]
speed = {
    "HBM, its own memory": 1000 * sold["H100 SXM", "HBM_bandwidth"],
    "NVLink 4, in the node": sold["NVLink 4 (H100/H200/GH200)", "duplex"],
    "PCIe 5 x16, to the host": sold["PCIe 5 x16", "duplex"],
    "InfiniBand NDR, to other nodes": 2 * sold["IB NDR", "4x_port"] / 8,
}
display(study.bars(speed, unit="GB/s", title="An H100: each step outwards costs a factor"))
pod = Cluster.dgx_h100(nodes=8, oversubscription=8)
study.cluster(pod, title="Eight nodes of eight H100, four nodes in a rack")

# %% [markdown]
# From the bottom: in a **node** any two GPUs talk over **NVLink**, wires that meet in an **NVSwitch**. Each GPU has its
# own **NIC**, a network card, here for **InfiniBand**. The NICs of a **rack** meet in the **top-of-rack switch**, the
# racks in the **spine**.
# A **fat tree** has as many wires above each switch as below. That is dear, so many networks are
# *oversubscribed*: here 8 ranks share one wire to the spine.
#
# Two shortcuts keep the host's memory out of it. **GPUDirect P2P**: a GPU writes into its neighbour's memory.
# **GPUDirect RDMA** (remote direct memory access): the NIC reads the GPU's memory itself. Other machines draw the
# borders elsewhere: in a DGX GH200
# 256 chips share one memory over NVLink. Huawei's Ascend has links of its own (HCCS) and a library (HCCL), Baidu's
# Kunlun likewise. α and β differ, the questions remain.


# %%
def laid_out(comm, N, algorithm, order):
    comm = comm.split([0] * comm.size, order) if order else comm  # the same ranks, numbered anew
    all_reduce_(comm, torch.empty(N, dtype=torch.uint8, device=comm.device), algorithm=algorithm)


def on(cluster, algorithm, N, order=None):
    world = World(64, cluster=cluster, device="meta", meter=False)  # count messages only
    world.run(laid_out, N, algorithm, order)
    return world


fat, N = Cluster.dgx_h100(nodes=8), 64 * MB
worlds = {
    name: [on(where, name, N) for where in (fat, pod)]
    for name in ("ring", "tree", "halving_doubling", "hierarchical")
}
rows = [(name, *(world.time * 1e3 for world in both)) for name, both in worlds.items()]
study.table(rows, ["64 MB on 64 GPUs, ms", "fat tree", "8 share a wire to the spine"])

# %% [markdown]
# On a fat tree halving and doubling beats the ring; where wires are shared it is the worst of all. It begins with half
# of everything, from all ranks at once, to far ranks, through the spine. A formula for one link cannot know that
# others use it, too. A flat ring does not care: of its 64 messages in a step two cross the spine.
#
# ## Hierarchical
#
# So let few bytes cross. Add up inside the node, reduce over the nodes, spread inside the node. The naive way
# gives each node a leader. `split` makes groups: ranks of one color.


# %%
def leaders(comm, x, g=8):
    node = comm.split([r // g for r in range(comm.size)])
    place = comm.split([r % g for r in range(comm.size)])
    tree_reduce(node, x)
    if node.rank == 0:
        all_reduce_(place, x)
    tree_broadcast(node, x)
    return x


assert [verdict(lambda comm, x: leaders(comm, x, 2), n, 7) for n in (2, 4, 6)] == ["right"] * 3


# %%
def crossing(world, g=8):
    sent = [0] * world.n
    for m in world.trace:
        sent[m.src] += m.nbytes * (m.src // g != m.dst // g)
    return sum(b > 0 for b in sent), max(sent) / MB


assert sum(pod.place(r).rack != pod.place((r + 1) % 64).rack for r in range(64)) == 2
led = World(64, cluster=fat, device="meta", meter=False)
led.run(lambda comm: leaders(comm, torch.empty(N, dtype=torch.uint8, device="meta")))
ways = {
    "flat ring": worlds["ring"][0],
    "leaders": led,
    "hierarchical, the library's": worlds["hierarchical"][0],
}
study.table(
    [(name, *crossing(world), world.time * 1e3) for name, world in ways.items()],
    ["64 MB on 64 GPUs", "ranks that send to other nodes", "MB each of them sends there", "ms"],
)

# %% [markdown]
# With leaders seven of eight NICs rest. The library cuts first: after a reduce-scatter in the node each rank has
# the sum of an eighth. Then all eight cross at once, each with its piece, and an all-gather in the node
# ends it. You will build it in the exercises.

# %% [markdown]
# ## Predict, then run: to 1,024 ranks
#
# 16 MB on DGX H100 nodes behind a fat tree. Between nodes a message takes 14 µs to start. The formulas are the
# library's: for each step they take its slowest link. Where do ring and tree cross for good? And does
# anything cross the third? (The lines join powers of 2. A tree on 96 GPUs has as many rounds as one on 128.)

# %%
from minidist.collectives.hierarchical import Hierarchical
from minidist.collectives.links import Net


def dgx(n):
    return Cluster.dgx_h100(nodes=max(1, n // 8))


def links(n):
    where = dgx(n)
    return Net(n, lambda dst, src: where.link(src, dst))


halving = "halving_doubling"  # both inside nodes of 8 and between them
three = {"ring": "ring", "tree": "tree", "hierarchical": Hierarchical(halving, halving, 8)}
N, ns = 16 * MB, [8 * 2**k for k in range(8)]
lines = {
    name: (ns, [verbs.predict(links(n), "all_reduce", N, algorithm) for n in ns])
    for name, algorithm in three.items()
}

# %%
few = {"ring": [8, 32, 96], "tree": [8, 32, 96], "hierarchical": [16, 1024]}
points = {
    name: (
        some,
        [
            World(n, cluster=dgx(n), device="meta", meter=False)
            .run(laid_out, N, three[name], None)
            .time
            for n in some
        ],
    )
    for name, some in few.items()
}
assert points["ring"][1][1] < points["tree"][1][1] and points["ring"][1][2] > points["tree"][1][2]
study.curves(
    lines,
    points=points,
    logx=True,
    logy=True,
    yunit="s",
    xlabel="GPUs, n",
    ylabel="all-reduce of 16 MB",
    title="Ring and tree cross near 64 GPUs; cut inside the node first, and neither matters",
)

# %% [markdown]
# ## Bandwidth, and why a faster wire is used less well
#
# How good is a run? `nccl-tests` prints two numbers. **Algorithm bandwidth** is N over seconds. **Bus bandwidth** is
# that times $2(n-1)/n$ for an all-reduce: what each wire carried. Here is a ring of 8 GiB on 4 to 8 H200, as Bekman
# measured it, and as a World says, whose NVLink is as fast as NCCL takes it to be:


# %%
def measured(gpu):
    rows = [r for r in study.published("nccl") if r["hw"] == gpu and r["algo"] == "NVLS off (Ring)"]
    return {r["ranks"]: r["value"] for r in rows}


rows = []
for n, busbw in measured("H200").items():
    world = World(n, cluster=Cluster.dgx_h200(), device="meta", meter=False)
    world.run(laid_out, 2**33, "ring", None)
    ours = bandwidth("all_reduce", n, 2**33, world.time)[1] / 1e9
    rows.append((n, busbw * n / (2 * (n - 1)), busbw, ours, f"{ours / busbw - 1:+.1%}"))
study.table(
    rows, ["H200", "algorithm bandwidth, GB/s", "bus bandwidth, GB/s", "in the World", "off by"]
)

# %% [markdown]
# The first falls with n though nothing is wrong. The second does not, and can be held against the wire, which is sold
# as 450 GB/s each way. Some is lost at every size: headers, flags, waiting for the memory. This **protocol cost** is
# a larger part of a faster wire:

# %%
reckoned = {row["quantity"]: row["value"] for row in study.published("nccl")}
used = {
    "a network of 100 Gbit/s, as NCCL reckons": reckoned["NET_BW_100Gbit"]
    / (sold["IB EDR", "4x_port"] / 8),
    "NVLink 4, measured on 8 H200": measured("H200")[8]
    / sold["NVLink 4 (H100/H200/GH200)", "unidirectional"],
    "NVLink 5, measured on 8 B200": measured("B200")[8] / sold["NVLink 5 (B200)", "unidirectional"],
}
study.bars(
    {name: round(100 * part) for name, part in used.items()},
    unit="%",
    title="How much of the wire's speed is used",
)

# %% [markdown]
# The other reason is α. A chunk of N/n bytes uses its wire to one half if it is as long as the latency:
# $N = n\alpha/\beta$. Twice as fast a wire needs twice as large a message: 20 MB for 8 B200. And for 8 V100?
# (100 % is now what the protocol leaves.)

# %%
makes = {"V100": Cluster.dgx1_v100(), "H100": Cluster.dgx_h100(), "B200": Cluster.dgx_b200()}
sizes = [8 * 10**k for k in (4, 6, 8)]
fine = [round(10 ** (k / 8)) for k in range(36, 73)]
lines = {}
points = {}
for name, where in makes.items():
    a, b = where.link(0, 1)
    lines[name] = fine, [100 * N * b / (8 * a + N * b) for N in fine]
    worlds = [
        World(8, cluster=where, device="meta", meter=False).run(laid_out, N, "ring", None)
        for N in sizes
    ]
    points[name] = (
        sizes,
        [100 * bandwidth("all_reduce", 8, N, w.time)[1] * b for N, w in zip(sizes, worlds)],
    )
assert round(8 * a / b / MB) == 20  # the last one, B200
study.curves(
    lines,
    points=points,
    logx=True,
    xunit="B",
    yunit="%",
    xlabel="bytes to reduce, N",
    ylabel="bus bandwidth, % of the wire's",
    title="8 GPUs: the faster the wire, the more it takes to fill it",
)

# %% [markdown]
# ## One slow rank
#
# One rank has a bad cable: all that it sends and receives takes twice as long. How much longer do 8 ranks take?
# And 256?


# %%
def slowed(n, factor):
    where = Cluster.uniform(n, ALPHA, BETA)
    where = where.slow_rank(n // 2, factor) if factor > 1 else where
    return World(n, cluster=where, device="meta").run(laid_out, MB, "halving_doubling", None).time


rows = [(n, slowed(n, 1) * 1e6, slowed(n, 2) * 1e6) for n in (8, 256)]
display(
    study.table(
        [
            (n, fast, slow, f"{slow / fast:.2f}", (n - 1) * (slow - fast) / 1e3)
            for n, fast, slow in rows
        ],
        ["ranks", "time, µs", "one is slow, µs", "times", "lost by the others together, ms"],
    )
)
where = Cluster.uniform(8, ALPHA, BETA).slow_rank(4, 2)
study.timeline(
    World(8, cluster=where, device="meta").run(laid_out, MB, "halving_doubling", None).trace,
    title="Rank 4 is slow, and all are late",
)

# %% [markdown]
# All take twice as long, at any n: a chain is as fast as its slowest link. What grows is the number of those who wait,
# and the odds that there is one. If each rank is late in one step of 1,000, a step of 512 ranks is late with a
# probability of
# $1 - 0.999^{512}$: 40 %.
#
# **Noise** needs no fault. Every rank computes for a time that varies by some 10 %, and then waits for all. So a step
# takes the *largest* of n random times. The line is the median of all such maxima, a point the median step of a run.

# %%
assert round(1 - 0.999**512, 1) == 0.4


def steps(comm, count):
    a, clock = torch.empty(4096, 4096, device="meta"), [comm.now()]
    for _ in range(count):
        a @ a  # takes the time that an H100 takes, and its noise
        all_reduce_(comm, torch.empty(1, device="meta"), algorithm="tree")
        clock.append(comm.now())
    return median(end - start for start, end in pairwise(clock))


def noisy(n, sigma, count):
    where = Cluster.uniform(n, ALPHA, BETA, device=Cluster.dgx_h100().device).jitter(sigma)
    return World(n, cluster=where, device="meta").run(steps, count)[0]


# %%
ns, few = [2**k for k in range(10)], [1, 8, 64]
lines = {
    "largest of n": (ns, [100 * exp(0.1 * NormalDist().inv_cdf(0.5 ** (1 / n))) - 100 for n in ns])
}
points = {
    "largest of n": (
        few,
        [100 * noisy(n, 0.1, max(5, 499 // n)) / noisy(n, 0.0, 1) - 100 for n in few],
    )
}
study.curves(
    lines,
    points=points,
    logx=True,
    yunit="%",
    xlabel="ranks, n",
    ylabel="how much longer a step takes",
    title="The same noise on every rank costs the more, the more ranks there are",
)

# %% [markdown]
# ## Break it: who is whose neighbour
#
# The same ring on the oversubscribed cluster, but somebody has dealt the ranks out like cards, one to each node in
# turn. Every number is right, every count of messages and bytes is the same.

# %%
dealt = [r % 8 * 8 + r // 8 for r in range(64)]  # the new number of each GPU
worlds = {"in order": on(pod, "ring", 64 * MB), "dealt out": on(pod, "ring", 64 * MB, dealt)}
assert len({(w.trace.messages(), w.trace.bytes_sent()) for w in worlds.values()}) == 1
study.bars(
    {name: world.time for name, world in worlds.items()},
    unit="s",
    title="A ring of 64 MB on 64 GPUs",
)

# %% [markdown]
# The symptom: one job is several times slower than another, with the same code on the same machines. Now all
# 64 messages of a step leave their nodes, and those that cross racks share few wires. Ask who sits where.
#
# ## The library's version
#
# The library's tree numbers the ranks from the root, and serves the largest part of the tree first. `"auto"` asks the
# formulas of the flat algorithms, and of the hierarchical ones with a ring inside the node, and takes one that is
# least, or nearly so. Like any formula of single links it does not see what is shared.

# %%
from minidist.collectives import tree

display(study.source(tree.broadcast, docstring=False), study.source(verbs.fastest))


def chosen(net, N):
    best = verbs.fastest(net, "all_reduce", N)
    return best if isinstance(best, str) else f"hierarchical, {best.outer}"


rows = [
    (f"{net.n} H100", *(chosen(net, N) for N in (10**3, 10**6, 10**9)))
    for net in map(links, (8, 64))
]
study.table(
    rows,
    ["auto", "1 kB", "1 MB", "1 GB"],
    title="What auto takes; hierarchical, with … between the nodes",
)

# %%
words = [
    ("MPI", "mpi", "CPUs, on any network that a cluster has; PyTorch must be built for it"),
    (
        "Gloo",
        "gloo",
        "CPUs, over TCP; comes with PyTorch; also beside NCCL, for what lies in the host's memory",
    ),
    (
        "NCCL",
        "nccl",
        "NVIDIA's GPUs; NVLink and GPUDirect; ring, double tree, or a switch that adds (NVLS)",
    ),
]
study.table(words, ["library", "in torch.distributed", "when"], title="Who does it in practice")

# %% [markdown]
# ## The same program on processes
#
# Four processes over shared memory. Numbers and messages are those of the World.


# %%
def tree_sum(comm):
    return tree_all_reduce(comm, numbers(comm, 1000))


results = {"World": World(4).run(tree_sum), "processes": launch(tree_sum, 4)}
assert all(torch.equal(x, y) for x, y in zip(*results.values()))
rows = [(f"rank {r}", *(found.trace.messages(r) for found in results.values())) for r in range(4)]
study.table(rows, ["messages sent", *results], title="A tree on four ranks")

# %% [markdown]
# On a cluster: `tree_sum(from_env())` in a script, with
#
# ```
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 my_tree.py
# NCCL_ALGO=Ring ./all_reduce_perf -b 1K -e 8G -f 4 -g 8
# ```
#
# The second line is nccl-tests, on one node of 8 GPUs: your curve of bus bandwidth over size. Then `NCCL_ALGO=Tree`.
#
# ## Takeaways
#
# - α counts steps, β counts bytes. A ring has the fewest bytes and $2(n-1)$ steps; a tree $2\log_2 n$ steps and all the
#   bytes in each. Halving and doubling has few of both, and the double binary tree nearly so.
# - Small tensors and many ranks: trees. Large tensors and few ranks: rings. The crossover can be predicted.
# - Wires that are shared change the order. Reduce inside the node first; let every NIC carry its piece.
# - Bus bandwidth can be compared with the wire. With a ring or a tree it is less than the wire's: protocol, and
#   α. (Where the switch adds, NVLS, it can be more.)
# - All wait for the slowest rank. With more ranks there is more often one, and more wait.
#
# ## Further reading
#
# - paper:thakur2005 Which algorithm for which size.
# - paper:sanders2009 The double binary tree.
# - paper:cho2019 All-reduce in nodes.
# - paper:leiserson1985
# - paper:petrini2003 Noise, found.
# - paper:dean2013 Why the slowest of many matters.
# - paper:bekman2024 A book of measured figures, ours of NVLink among them.
