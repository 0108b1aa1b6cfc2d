# %% [markdown]
# # 03 · Topology and cost
#
# Two teams rent the same eight machines with eight GPUs each. Both run the ring all-reduce from the last lesson, on the same 64 MB, with the same 64 ranks. Every rank of both teams sends exactly the same number of messages and bytes, and both get the right sum. Yet one team waits several times as long as the other, in every step, for months.
#
# Nothing in the program can explain it. The reason lies in the wires: which GPU is connected to which, through what, and who else uses the same cable. This lesson is about the machines under the messages, and about a model simple enough to predict what they do.
#
# **How many times as long does the slower team wait?** Guess now; you will cause the trouble yourself at the end of the lesson.

# %%
guess = 1.5  # times as long: change this number

# %% [markdown]
# ## On paper: two messages tell you the network
#
# In [Messages](lesson:messages) a message of $N$ bytes took $\alpha + N\beta$ seconds. Suppose somebody hands you a network and does not tell you the two constants. You send 1 MB and it takes 25 µs; you send 2 MB and it takes 45 µs. The second megabyte took 20 µs more, so $\beta$ is 20 µs per MB, a bandwidth of 50 GB/s. And what remains of the first message is the [latency](term:latency), $\alpha$ = 25 − 20 = 5 µs. Two measurements are enough for a straight line.
#
# ![A message of N bytes over time. The sender's port is busy for Nβ while the bytes leave; each byte arrives α after it left, so the last one after α + Nβ. Below, a short message, whose time is nearly all α, and a long one, whose time is nearly all Nβ.](../course/03_topology/figures/alpha_beta.svg)
#
# Try it on a machine. A `World` can be given a `Cluster`, a description of devices and of the wires between them; this one has eight nodes of eight H100 GPUs, four nodes in a rack, with the constants of real hardware. (So the seconds in this lesson are modelled until you measure your own machine at the end.) We send a small and a large message from rank 0 to three other ranks and fit the line.

# %%
import torch

from minidist import study
from minidist.comm import World
from minidist.comm.cluster import Cluster

MB = 10**6


def one_message(comm, dst, nbytes):
    x = torch.empty(nbytes, dtype=torch.uint8, device=comm.device)
    if comm.rank == 0:
        comm.send(x, dst)
    elif comm.rank == dst:
        comm.recv(x, 0)


def fit(cluster, dst):
    """α in seconds and β in seconds per byte between ranks 0 and dst, from two messages."""
    ranks = cluster.size  # as many as there are GPUs
    small = World(ranks, cluster=cluster, device="meta").run(one_message, dst, 1000).time
    large = World(ranks, cluster=cluster, device="meta").run(one_message, dst, 100 * MB).time
    beta = (large - small) / (100 * MB - 1000)
    alpha = small - 1000 * beta
    return alpha, beta


machine = Cluster.dgx_h100(nodes=8)
rows = []
for dst, where in [(1, "same node"), (8, "next node, same rack"), (32, "another rack")]:
    alpha, beta = fit(machine, dst)
    rows.append([f"0 → {dst}", where, round(alpha * 1e6, 1), round(1e-9 / beta, 1)])
study.table(rows, ["ranks", "", "α, µs", "bandwidth, GB/s"], title="Two messages, one line")

# %% [markdown]
# The ranks all look alike to the program, but they are not equally far apart. A message within the node starts in 3.4 µs and travels at 371 GB/s; one that leaves the node needs four times as long to start and travels at about an eighth of the speed. (The 3.4 and 14 µs are the latencies with which NCCL itself reckons when it plans a ring.) The next section opens the machine and looks for the reason.
#
# ## The machine, from near to far
#
# ![Two of the eight GPUs of a node. Each has its own memory, HBM, read at 3,350 GB/s. All GPUs meet at the NVSwitch, 900 GB/s over NVLink. Each shares a PCIe switch with a network card; the PCIe switches hang on the CPU with its memory. With GPUDirect RDMA a message goes from the GPU's memory through the PCIe switch to the card and does not pass the CPU.](../course/03_topology/figures/node.svg)
#
# Start inside the GPU. Its own memory, [HBM](term:hbm) (high-bandwidth memory), sits beside the chip. At 3,350 GB/s for an H100 it is faster than anything else outside the chip, and still it is what most operators wait for.
#
# GPUs of one [node](term:node), that is of one machine, are joined by [NVLink](term:nvlink), cables that exist for nothing else. On an H100 there are 18 of them, 900 GB/s if you add up both directions. They meet in the [NVSwitch](term:nvswitch), so that any two GPUs of the node can talk at full speed while the others do the same. (Not every machine has such a switch. In the nodes on which the language model BLOOM was trained, the four A100 cards are joined to each other directly, by four NVLinks.)
#
# The GPU is connected to the [host](term:host), the CPU and its memory, by [PCIe](term:pcie), the bus for plug-in cards that every PC has. In its fifth generation it has 16 lanes of 32 Gbit/s in each direction. That makes 128 GB/s both ways on the wire, and 126 at most for data, because PCIe packs every 128 bits into 130. In the picture a GPU and a network card hang on one PCIe switch, so what passes between them need not come near the CPU.
#
# The way out of the node is the network card, or [NIC](term:nic). In a machine made for training each GPU has its own, here one for [InfiniBand](term:infiniband) with 400 Gbit/s, which is 50 GB/s in each direction. Note the units: networks are sold in bits, memories in bytes.
#
# The next cell draws the makers' figures, from a table that comes with the package. In its names, SXM is the kind of H100 that is built into such a node, *duplex* means both directions together, and NDR is InfiniBand with 400 Gbit/s for a port of four lanes.

# %%
sold = {}
for row in study.published("hardware"):
    sold[row["device"], row["quantity"]] = row["value"]
speed = {
    "HBM, its own memory": 1000 * sold["H100 SXM", "HBM_bandwidth"],
    "NVLink 4, in the node": sold["NVLink 4 (H100/H200/GH200)", "duplex"],
    "PCIe 5 x16, to the host": sold["PCIe 5 x16", "duplex"],
    "InfiniBand NDR, to other nodes": 2 * sold["IB NDR", "4x_port"] / 8,
}
study.bars(speed, unit="GB/s", title="An H100: the farther out, the slower")

# %% tags=["maintainer"]
assert 2 * 16 * 32 / 8 == 128
assert round(128 * 128 / 130) == sold["PCIe 5 x16", "duplex"]

# %% [markdown]
# The first two steps away from the chip cost a factor of nearly 4 and one of 7; the network is then only a little slower than PCIe, but 33 times slower than the GPU's own memory. If you keep only one picture of a cluster in your head, keep this one: **bytes should stay as near as they can.**
#
# Half of 900 is 450, but our first table says 371 GB/s in one direction; and half of 100 is 50, not 48. The makers count all that passes over the wire, the table only what is left for your bytes. A later section, *Why a faster wire is used less well*, says what takes the rest.
#
# ### Between nodes
#
# ![Two racks with two nodes each. The nodes of a rack are joined by its top-of-rack switch, the racks by a spine switch. Three messages: within a node over NVLink; between two nodes of a rack through both network cards and the top-of-rack switch; and between racks, up to the spine and down again.](../course/03_topology/figures/racks.svg)
#
# The network cards of one [rack](term:rack), a cabinet full of nodes, plug into its [top-of-rack switch](term:top-of-rack-switch). The racks are joined by [spine switches](term:spine-switch) above them. A message to another rack goes up to the spine and down again, and its latency grows with the switches on its way.
#
# How many cables should lead up from a rack? If there are as many going up as there are going down to the nodes, every GPU can talk to any other at full speed at the same time. Such a network is a [fat tree](term:fat-tree), since its branches get thicker towards the root ([Leiserson 1985](paper:leiserson1985)). Switches and optical cables are expensive, though, so many clusters save on them and are [oversubscribed](term:oversubscription): several ranks then share a cable to the spine. In the next picture eight of them do.

# %%
pod = Cluster.dgx_h100(nodes=8, oversubscription=8)
study.cluster(pod, title="Eight nodes of eight H100, four nodes in a rack")

# %% [markdown]
# Read it from the bottom. The small boxes are the 64 GPUs, each with its NVLinks to the NVSwitch of its node. Above are the network cards, one for each GPU, so 32 lines arrive at the switch of a rack; but only four lead on to the spine, and eight ranks share each of them. On the left stand the constants of one line. A message pays the latencies of all levels on its way, and the slowest level sets its bandwidth: from rank 0 to rank 32 that is 14 + 0 + 1 = 15 µs and 48 GB/s, the last row of our first table. (The top-of-rack switch adds nothing because NCCL's 14 µs already contain one switch. The 1 µs of the spine is an assumption: two more switches of half a microsecond each.)
#
# Trees are not the only shape. Jean Zay, the machine on which BLOOM was trained, has four 100 Gbit/s cards of another make, [Omni-Path](term:omni-path), in each node, and its switches form an *enhanced hypercube of eight dimensions*. In a hypercube each switch has a number of eight bits and a cable to every switch whose number differs from its own in exactly one bit, so no two are more than eight cables apart. It is called enhanced because the spare ports of the switches double some of those cables. In a *DGX GH200*, 256 chips reach each other's memory over NVLink alone, as if it were one memory. Huawei's [Ascend](term:ascend) chips come with links of their own, called HCCS, and with their own communication library, HCCL, and so do Baidu's [Kunlun](term:kunlun) chips. The constants differ from machine to machine. The questions stay the same: what is near, what is far, and what is shared?
#
# ### Shortcuts
#
# One more thing decides how fast a message is: how often it is copied on its way. Without help, bytes for another GPU are first copied over PCIe into the host's memory. If the other GPU is in the same node, they are copied from there into its memory, over PCIe again. If it is not, the network card takes them from the host's memory, and on the other side they land in the host's memory, too, and are copied from there.
#
# What does it cost? Take 64 MB. PCIe carries 63 GB/s in one direction, so each copy takes 1.0 ms; the network, with 48 GB/s, takes 1.3 ms. In a node two copies make 2.0 ms, where NVLink needs 0.17. Between nodes, copy, send and copy make 3.4 ms instead of 1.3. (Cut into pieces, one part of the message can be copied while another is on the wire. That hides some of the time, but all eight GPUs still share the host's memory.)
#
# Two shortcuts avoid the host, both under the name [GPUDirect](term:gpudirect). With [P2P](term:p2p) (peer to peer) a GPU reaches straight into the memory of another GPU of the node, over NVLink. With [RDMA](term:rdma) (remote direct memory access) the network card reads and writes the GPU's memory itself: the dashed arrow in the picture of the node. If these are not set up, a cluster still works, but slowly. So the first command to type on a new machine is `nvidia-smi topo -m`. It prints by which path each GPU reaches each other GPU and each card: `NV18` stands for 18 NVLinks and `PIX` for a PCIe switch that they share, while `SYS` means that the way leads through the host's CPUs.
#
# ## When a wire is shared
#
# The [model](term:alpha-beta-model) $\alpha + N\beta$ describes one message on an empty network. Now let everyone send at once. Each of 64 ranks sends 64 MB to the rank that sits `distance` further on; no rank sends or receives more than one message. On the fat tree all distances beyond the node should cost the same. What do you expect on the oversubscribed cluster? Decide before you run it. (`meter=False` tells the World that we want only its messages, not the memory of its ranks or the time that they compute.)


# %%
def everyone_sends(comm, distance, nbytes):
    x = torch.empty(nbytes, dtype=torch.uint8, device=comm.device)
    y = torch.empty_like(x)
    comm.sendrecv(x, (comm.rank + distance) % comm.size, y, (comm.rank - distance) % comm.size)


rows = []
for distance in (1, 8, 32):
    times = []
    for cluster in (machine, pod):
        world = World(64, cluster=cluster, device="meta", meter=False)
        world.run(everyone_sends, distance, 64 * MB)
        times.append(round(world.time * 1e3, 2))
    rows.append([f"to the rank {distance} further on", *times])
study.table(rows, ["64 MB from everyone, ms", "fat tree", "oversubscribed"])

# %% [markdown]
# Let us check the figures. Alone on its way, a message to another node takes 15 µs of latency and 64 MB at 48 GB/s, 1.33 ms: together 1.35 ms, as in the first column. With distance 1 most messages stay in their node. Only the last rank of each node sends out of it, and that decides the time, because everyone waits for the slowest; and of those, only one in each rack goes to the other rack, so it has its cable to itself. With distance 32 every message goes to the other rack, and on the oversubscribed cluster eight of them queue for each cable: 8 · 1.33 ms plus a latency, 10.68 ms. Distance 8 is no better, although now only one node in each rack sends to the other rack: its eight ranks still share one cable, and everybody waits for them.
#
# ![Four ranks of a rack send to another rack at once. Above, each has a cable to the spine of its own, and all are done after one unit of time. Below, they share one cable, pass it one after another, and the last is done after four units.](../course/03_topology/figures/shared_cable.svg)
#
# (A real switch takes a packet of each message in turn, so that all of them crawl and all end late. The last byte arrives at the same time.)
#
# No formula for a single link could have told you. A simulation that knows the wires can, and so can a person who asks of each step: *which cable carries how many of these messages?* The busiest cable decides. Add up the bytes that it has to carry, multiply by its $\beta$, and add one latency.
#
# ## Measuring a collective: two bandwidths
#
# You run an all-reduce of 8 GiB on eight GPUs and it takes 41 ms. Is that good? The program `nccl-tests`, which everyone uses for this, prints two numbers. The first is simple, the size of the tensor divided by the time; it is called [algorithm bandwidth](term:algorithm-bandwidth). The trouble with it is that it falls as ranks are added, even when nothing is wrong, because a ring must send $2\frac{n-1}{n}$ times the tensor. So the second number corrects for that factor:
#
# $$\text{bus bandwidth} = \frac{N}{T}\cdot 2\,\frac{n-1}{n}.$$
#
# For our example: 8.59 GB in 41 ms is an algorithm bandwidth of 210 GB/s; times $2\cdot\frac{7}{8}$ it is a bus bandwidth of 367 GB/s. NVLink is sold as 450 GB/s in one direction, so 81 % of it is in use. That is good, as the next section shows.
#
# [Bus bandwidth](term:bus-bandwidth) is what each wire must have carried per second, at the very least, for the all-reduce to finish in that time: we saw in [Messages](lesson:messages) that no algorithm gets by with fewer bytes. It can be compared with the data sheet of the wire, whatever *n* is. For other collectives the factor is again the least that the busiest rank must send or receive, as a part of *N*: $\frac{n-1}{n}$ for reduce-scatter and all-gather, the halves of an all-reduce, and 1 for broadcast and reduce, where all *N* bytes leave the root or reach it.
#
# The next table has a ring of 8 GiB on 4 to 8 H200 cards (H100 with more memory) as it was [measured](paper:bekman2024), beside a `World` with the same cards. The World's NVLink is as fast as NCCL itself assumes it to be when it plans, 20.6 GB/s for each of the 18 cables. `bandwidth` is the library's: it returns both numbers, first the algorithm bandwidth, then the bus bandwidth.

# %%
from minidist.collectives import all_reduce_, bandwidth


def all_reduce_bytes(comm, nbytes, algorithm="ring"):
    x = torch.empty(nbytes, dtype=torch.uint8, device=comm.device)
    all_reduce_(comm, x, algorithm=algorithm)


def measured_ring(gpu):
    """Bus bandwidth in GB/s by number of GPUs, as it was measured."""
    found = {}
    for row in study.published("nccl"):
        # NVLS is a switch that adds up on the way; it was turned off, and a ring was left
        if row["hw"] == gpu and row["algo"] == "NVLS off (Ring)":
            found[row["ranks"]] = row["value"]
    return found


rows = []
for n, bus in measured_ring("H200").items():
    world = World(n, cluster=Cluster.dgx_h200(), device="meta", meter=False)
    world.run(all_reduce_bytes, 2**33)  # 8 GiB
    modelled = bandwidth("all_reduce", n, 2**33, world.time)[1] / 1e9
    algorithm = bus * n / (2 * (n - 1))
    rows.append((n, algorithm, bus, modelled, f"{modelled / bus - 1:+.1%}"))
study.table(
    rows,
    [
        "H200",
        "algorithm bandwidth, GB/s",
        "bus bandwidth, GB/s",
        "the same in the World",
        "off by",
    ],
)

# %% [markdown]
# From 4 to 8 cards the algorithm bandwidth falls from 242 to 209 GB/s. The bus bandwidth stays put: the wires are used as well as before, the ring only has more to send. And the World, which knows nothing of the measurement, is off by 2 % at most.
#
# ## Why a faster wire is used less well
#
# NVLink 4 is sold as 450 GB/s in each direction, and 366 were measured. Where is the rest? Some of it is lost at any size: headers, flags that say "this buffer is full", waiting for memory. This is the [protocol cost](term:protocol-cost):

# %%
nccl = {row["quantity"]: row["value"] for row in study.published("nccl")}
used = {
    "100 Gbit/s network, as NCCL reckons": nccl["NET_BW_100Gbit"] / (sold["IB EDR", "4x_port"] / 8),
    "NVLink 4, measured on 8 H200": measured_ring("H200")[8]
    / sold["NVLink 4 (H100/H200/GH200)", "unidirectional"],
    "NVLink 5, measured on 8 B200": measured_ring("B200")[8]
    / sold["NVLink 5 (B200)", "unidirectional"],
}
study.bars(
    {name: round(100 * part) for name, part in used.items()},
    unit="%",
    title="How much of the wire's speed is used",
)

# %% [markdown]
# The first bar is an assumption, 12 of 12.5 GB/s, with which NCCL plans on a network of 100 Gbit/s (InfiniBand calls it EDR). The others were measured: 366 of 450 and 682 of 900 GB/s. The wires of a B200 are twice as fast as those of an H200, and what is left for your bytes is not quite twice as much. Headers grow with the bytes, but a flag that has to be written and read, or an access to memory, takes as long as before, and in this time a faster wire could have carried more.
#
# The other reason is latency. In a ring of *n* ranks a message has $N/n$ bytes. It uses its wire for $\frac{N}{n}\beta$ seconds and then makes everyone wait for $\alpha$. So the part of the time in which the wire works is
#
# $$\text{used} = \frac{\frac Nn\beta}{\alpha + \frac Nn\beta} = \frac{N\beta}{n\alpha + N\beta}.$$
#
# This is also the bus bandwidth as a part of $1/\beta$, because all steps of a ring are alike: divide the bytes of one, $N/n$, by its time. For example, an all-reduce of 8 MB on eight B200 sends messages of 1 MB. With 722 GB/s (NCCL's assumption for their NVLink) such a message takes 1.4 µs on the wire, and $\alpha$ is 3.4 µs: 1.4 of 4.8 µs, only 29 %. Half of the wire's speed is used when the two times are equal:
#
# $$\frac{N}{n}\,\beta = \alpha \quad\Longrightarrow\quad N_{1/2} = \frac{n\,\alpha}{\beta}.$$
#
# Notice the $\beta$ in the denominator. If the wire becomes twice as fast and the latency stays the same, a message must be twice as large to use half of it. **How large must a tensor be to use half of NVLink on eight B200 cards?**

# %%
guess_half = 1 * MB  # bytes: change this number

# %%
makes = {"V100": Cluster.dgx1_v100(), "H100": Cluster.dgx_h100(), "B200": Cluster.dgx_b200()}
sizes = [8 * 10**k for k in (4, 6, 8)]  # for the points
fine = [round(10 ** (k / 8)) for k in range(36, 73)]  # for the lines: eight sizes in each decade
lines = {}
points = {}
half = {}
for name, cluster in makes.items():
    alpha, beta = cluster.link(0, 1)  # the constants between two GPUs of a node
    half[name] = round(8 * alpha / beta)
    lines[name] = fine, [100 * size * beta / (8 * alpha + size * beta) for size in fine]
    found = []
    for size in sizes:
        world = World(8, cluster=cluster, device="meta", meter=False)
        world.run(all_reduce_bytes, size)
        found.append(100 * bandwidth("all_reduce", 8, size, world.time)[1] * beta)
    points[name] = sizes, found

# %% tags=["answer"]
picture = study.curves(
    lines,
    points=points,
    logx=True,
    xunit="B",
    yunit="%",
    xlabel="bytes to reduce, N",
    ylabel="bus bandwidth, % of what the protocol leaves",
    title="Eight GPUs: the faster the wire, the more it takes to fill it",
)
study.reveal(
    guess_half,
    half["B200"],
    picture,
    unit="B",
    words="nα/β = 8 · 3.4 µs · 722 GB/s is 20 MB for eight B200, against 3 MB for eight V100, three "
    "generations older. In the picture 100 % is 1/β: what the protocol leaves, not what was sold.",
)

# %% tags=["maintainer"]
assert round(half["B200"] / MB) == 20 and round(half["V100"] / MB) == 3

# %% [markdown]
# On the vertical axis of the next picture is the bus bandwidth itself. The tensor has 10 MB. Does it help more to double the bandwidth of the wire, or to halve the latency? Move the sliders, and guess first.


# %%
def ring_bandwidth(n, N, latency, bandwidth):
    """The bus bandwidth of a ring all-reduce; `bandwidth` is the wire's, both in GB/s."""
    beta = 1e-9 / bandwidth
    return {"bus bandwidth": bandwidth * N * beta / (n * latency + N * beta)}


study.explore(
    ring_bandwidth,
    over="N",
    n=[2, 4, 8, 16, 32],
    N=[digit * 10**k for k in range(4, 10) for digit in (1, 2, 5)],
    latency=[0.85e-6, 1.7e-6, 3.4e-6, 6.8e-6, 13.6e-6],
    bandwidth=[50, 225, 450, 900],
    units={"N": "B", "latency": "s", "bandwidth": "GB/s"},
    labels={"n": "ranks", "N": "bytes to reduce"},
    start={"n": 8, "N": 10**7, "latency": 3.4e-6, "bandwidth": 450},
    unit="GB/s",
    logx=True,
    xlabel="bytes to reduce, N",
    ylabel="bus bandwidth",
    title="How large must a tensor be?",
)

# %% [markdown]
# At 10 MB half the latency helps more: the bus bandwidth rises from 202 to 279 GB/s, with a wire of twice the speed only to 261. At 1 GB it is the other way round. Below *nα*/*β* you pay more for messages than for bytes: ten all-reduces of 1 MB take six times as long as one of 10 MB. This is why every library collects small tensors into large messages, which is the subject of [Buckets and overlap](lesson:buckets).
#
# ## One slow rank
#
# One of the cables is bad: everything that one rank sends and receives takes twice as long. **By what factor does the all-reduce slow down, on 8 ranks and on 128?** Surely one bad cable among 128 cannot matter much.

# %%
guess_slow = {"8 ranks": 1.5, "128 ranks": 1.01}  # times: change these numbers

# %%
ALPHA = 5e-6
BETA = 1 / 50e9


def ring_time(n, slow):
    cluster = Cluster.uniform(n, ALPHA, BETA)
    if slow:
        cluster = cluster.slow_rank(n // 2, 2)  # α and β of its port are doubled
    world = World(n, cluster=cluster, device="meta", meter=False)
    world.run(all_reduce_bytes, n * MB)  # chunks of 1 MB at any n
    return world.time


rows = []
factors = {}
for n in (8, 128):
    healthy = ring_time(n, slow=False)
    sick = ring_time(n, slow=True)
    factors[f"{n} ranks"] = round(sick / healthy, 2)
    lost = (n - 1) * (sick - healthy)
    rows.append((n, healthy * 1e3, sick * 1e3, factors[f"{n} ranks"], lost * 1e3))
table = study.table(
    rows, ["ranks", "healthy, ms", "one is slow, ms", "factor", "lost by the others together, ms"]
)
cluster = Cluster.uniform(8, ALPHA, BETA).slow_rank(4, 2)
sick = World(8, cluster=cluster, device="meta", meter=False).run(all_reduce_bytes, 8 * MB)

# %% tags=["answer"]
study.reveal(
    guess_slow,
    factors,
    [table, study.viewer(sick.trace, title="Rank 4 is slow, and all are late")],
)

# %% [markdown]
# ![An all-reduce on a ring of four ranks in six steps. Above, all ranks are alike, and it ends after six units of time. Below, what rank 2 sends and receives takes twice as long: all ranks go at its pace, although rank 0 never talks to it, and the all-reduce ends after twelve units.](../course/03_topology/figures/slow_rank.svg)
#
# The factor is the same at any *n*. The slow rank has as many steps as everyone else, and each takes twice as long, so it needs twice the time. The others are held up with it, because in a ring everybody waits for two neighbours: rank 5 cannot pass on what rank 4 has not sent, and rank 3 cannot send its next chunk before rank 4 has taken the last one. In the timeline you can watch the delay spread, by one rank in each step: rank 0, four places away, takes three steps at full pace, and after that it waits in every step like the others. A ring, like a chain of people handing on buckets, moves at the pace of its slowest member.
#
# What grows with *n* is the number of ranks that wait: in the same time, the same broken cable wastes 18 times as much on 128 ranks as on 8. (The loss in the table grows even more, because there the all-reduce on 128 ranks also takes 18 times as long.) Such a rank is called a [straggler](term:straggler).
#
# With many ranks it also becomes likely that there *is* one. Suppose each rank is late in one step out of a thousand, independently of the others. It is on time with a chance of 0.999, and all eight are with a chance of $0.999^8$, so on 8 ranks a step has to wait for somebody in 0.8 % of all cases. On 512 ranks the chance that nobody is late is $0.999^{512}$ = 0.6, so it waits in 40 % of them.
#
# ### Noise needs no fault
#
# It does not even take a fault. Each rank computes for a time that varies a little from step to step, and then all wait for the slowest. So the time of a step is the *largest of n random times*. Throw one die, and you get 3.5 on average. Throw three and keep the largest, and the average is 4.96; with eight dice it is 5.72. No die has become any worse.
#
# How much is it for ranks? Let $F(m)$ be the chance that one rank's time is below *m*. All *n* times are below *m* with a chance of $F(m)^n$, so this is the chance that the largest is. The median of the largest is the *m* for which it is one half: $F(m)=\left(\tfrac12\right)^{1/n}$. With eight ranks that is 0.917, so a typical step takes a time that a single rank exceeds only once in twelve steps.
#
# In the next picture the time of a rank is its median times $e^{0.1z}$, where *z* is drawn from a normal distribution, so it varies by about 10 %. In 91.7 % of all draws *z* is below 1.385, and $e^{0.1385}$ is 1.149: on eight ranks a step takes 15 % longer. The line is this calculation for any *n*. The points are runs: in each step a matrix product, with such noise, and then an all-reduce of a single number, which cannot end before everyone has come. `jitter` switches the noise on.

# %%
from itertools import pairwise
from math import exp
from statistics import NormalDist, median


def steps(comm, count):
    """The median time of a step: compute, then wait for everyone."""
    matrix = torch.empty(4096, 4096, device="meta")
    clock = [comm.now()]
    for _ in range(count):
        matrix @ matrix  # takes as long as on an H100, with its noise
        # the least that makes all wait for all; a tree takes few steps, as the next lesson shows
        all_reduce_(comm, torch.empty(1, device="meta"), algorithm="tree")
        clock.append(comm.now())
    return median(end - start for start, end in pairwise(clock))


def noisy_step(n, sigma, count):
    device = Cluster.dgx_h100().device
    cluster = Cluster.uniform(n, ALPHA, BETA, device=device).jitter(sigma)
    return World(n, cluster=cluster, device="meta").run(steps, count)[0]


def largest_of(n):
    """The median of the largest of n draws, in % above the median of one."""
    return 100 * exp(0.1 * NormalDist().inv_cdf(0.5 ** (1 / n))) - 100


ns = [2**k for k in range(10)]
few = [1, 8, 64]
longer = []
for n in few:
    quiet = noisy_step(n, sigma=0, count=1)  # without noise one step is like any other
    noisy = noisy_step(n, sigma=0.1, count=499 // n)
    longer.append(100 * noisy / quiet - 100)
study.curves(
    {"largest of n draws": (ns, [largest_of(n) for n in ns])},
    points={"runs": (few, longer)},
    logx=True,
    yunit="%",
    xlabel="ranks, n",
    ylabel="how much longer a step takes",
    title="The same noise on every rank costs more with more ranks",
)

# %% tags=["maintainer"]
assert round(1 - 0.999**512, 1) == 0.4

# %% [markdown]
# On 64 ranks a step takes a quarter longer than on one, and on 512 a third, although no rank is slower than any other. (The points are medians of 499, 62 and 7 steps; that is why they do not lie quite on the line.) [Petrini, Kerbyson and Pakin](paper:petrini2003) found that noise cost one of the largest supercomputers of its day half of its speed: system daemons woke up for a moment, on some node or other, all the time. [Dean and Barroso](paper:dean2013) describe the same effect in web services.
#
# ## Break it: who is whose neighbour
#
# Now we can cause the trouble of the two teams. Take the oversubscribed cluster and a ring in the order of the ranks. Of the 64 messages in a step, eight leave their nodes and two cross between racks. The second team has numbered its GPUs differently, the way cards are dealt: one to each node in turn, and then again from the first. Here is the difference for two nodes of four GPUs:
#
# ![A ring of eight ranks on two nodes of four GPUs. Left, numbered node by node: only the messages from 3 to 4 and from 7 to 0 leave their node. Right, dealt out, with the even ranks in node 0 and the odd ones in node 1: all eight messages leave their node.](../course/03_topology/figures/numbering.svg)
#
# In code, `comm.split(colours, order)` makes communicators for groups of ranks: those of the same colour form a group, and within it they are numbered by `order`. Here all have the same colour, so that there is one group of all ranks, with other numbers. The all-reduce remains the same program.


# %%
def renumbered(comm, nbytes, order):
    comm = comm.split([0] * comm.size, order)
    all_reduce_bytes(comm, nbytes)


in_order = list(range(64))
# GPU g of node k has been rank 8k + g, and becomes rank 8g + k.
dealt = [rank % 8 * 8 + rank // 8 for rank in range(64)]
times = {}
for name, order in {"in order": in_order, "dealt out": dealt}.items():
    world = World(64, cluster=pod, device="meta", meter=False)
    world.run(renumbered, 64 * MB, order)
    times[name] = world.time
    print(f"{name}: {world.trace.messages():,} messages, {world.trace.bytes_sent():,} bytes")

# %% tags=["answer"]
study.reveal(
    guess,
    round(times["dealt out"] / times["in order"], 1),
    study.bars(times, unit="s", title="A ring of 64 MB on 64 GPUs"),
    words="Both rings have 126 steps with messages of 1 MB. In order, a step takes 15 µs and 1 MB at 48 GB/s, "
    "21 µs: 36 µs together. Dealt out, all 64 messages of a step leave their nodes, and eight GPUs of one "
    "node send to the other rack through the same cable: 8 times 21 µs, 167 µs. (Here the latency is not "
    "added. While one message travels the next is already on the cable, which never rests.) With a larger "
    "tensor the 15 µs would not matter, and the factor would come close to 8.",
)

# %% [markdown]
# You will recognize the symptom: one job is several times slower than another, with the same code on the same machines, and no counter of messages or bytes shows why. Ask who sits where. On a shared cluster a [scheduler](term:scheduler) decides which job gets which nodes, and its launcher numbers the ranks in a way that you did not choose. Every serious launcher has an option for it: in Slurm, `--distribution=block` numbers node by node, and `cyclic` deals out.
#
# ## Who carries the messages in practice
#
# PyTorch does not send messages itself. It uses one of these libraries, and you choose it when you start the ranks, by the `backend` of `torch.distributed.init_process_group`; a [process group](term:process-group) is PyTorch's name for a communicator. Tensors on GPUs go with NCCL and those on CPUs with Gloo; MPI is for clusters that have their own tuned version of it.

# %%
libraries = [
    ("MPI", "mpi", "CPUs, on any network that a cluster has; PyTorch must be built for it"),
    ("Gloo", "gloo", "CPUs, over TCP; comes with PyTorch; also for what lies in the host's memory"),
    ("NCCL", "nccl", "NVIDIA's GPUs, over NVLink and GPUDirect; finds out who is near"),
]
study.table(libraries, ["library", "backend", "when"], title="Who does it in practice")

# %% [markdown]
# ## Your own machine
#
# The same measurement works on real processes, where the clock is a real one. Two processes on your machine send a message back and forth; half of a round trip is one message. Of twenty round trips we take the fastest, because whatever else runs on your machine can only make a message slower. Since your machine is not mine, the cell only prints what should be true of both: a large message has many times the bandwidth of a small one.

# %%
from minidist.comm import launch


def ping_pong(comm, nbytes, repeats=20):
    """Seconds of one message between ranks 0 and 1: the fastest of some round trips, halved."""
    x = torch.zeros(nbytes, dtype=torch.uint8)
    fastest = float("inf")
    for _ in range(repeats):
        start = comm.now()
        if comm.rank == 0:
            comm.send(x, 1)
            comm.recv(x, 1)
        else:
            comm.recv(x, 0)
            comm.send(x, 0)
        fastest = min(fastest, comm.now() - start)
    return fastest / 2


small = launch(ping_pong, 2, 100)[0]  # two processes; what rank 0 returned
large = launch(ping_pong, 2, 4 * MB)[0]
print(
    "4 MB travel at more than 10 times the bandwidth of 100 bytes:",
    4 * MB / large > 10 * 100 / small,
)

# %% [markdown]
# Print `small` and `4 * MB / large` yourself: they are your $\alpha$ in seconds and your bandwidth in bytes per second. On a cluster the same program runs with `ping_pong(from_env(), …)` under torchrun. And this is how to look at a node of eight GPUs with the standard tools; `all_reduce_perf` is part of nccl-tests, and here goes from 1 KiB to 8 GiB, by a factor of 4 each time, on 8 GPUs:
#
# ```
# nvidia-smi topo -m
# ./all_reduce_perf -b 1K -e 8G -f 4 -g 8
# ```
#
# ## The library's file
#
# The model of machines is [minidist/comm/cluster.py](file:minidist/comm/cluster.py). It knows a handful of real ones, each constant with its source, and a cluster of your own can be described in a few lines. What matters for this lesson is how it adds up the levels between two ranks: latencies add, and the slowest link decides the bandwidth.

# %%
study.source(Cluster.link)

# %% [markdown]
# `_path` finds the levels between the two ranks: NVLink, or network card and top-of-rack switch, or these two and the spine. The first of them is the *port*, which belongs to the rank itself; `path.alpha` is the sum of the latencies behind it, and `path.beta` the largest $\beta$ there. `slow` and `whole` are 1 unless you have asked for a slow rank, whose port alone is slow, or for a slow link.
#
# But a link is not all that a message needs. It occupies the sender's port, the receiver's port and every shared wire in between, each for as long as the bytes need on it. `route` lists them, and this is all that the World has to know in order to queue messages where a real network would:

# %%
study.source(Cluster.route)

# %%
for name, beta in pod.route(0, 32).wires:
    print(name, f"{1e-9 / beta:.0f} GB/s")

# %% [markdown]
# These are rank 0's network card, on the way out, and rank 32's, on the way in; then the cable to the spine that ranks 0 to 7 share, and the one down that ranks 32 to 39 share. The last piece is a small table of the factors of bus bandwidth, in [verbs.py](file:minidist/collectives/verbs.py):

# %%
study.source(bandwidth, docstring=False)

# %% [markdown]
# **When not to trust the model.** Real networks lose packets and send them again; senders slow down when the network is full (congestion control); switches choose among several ways (adaptive routing), and sometimes make a message wait for one that is going elsewhere. The World does none of this. Nor does it know switches that add on the way ([NVLS](term:nvls)): each GPU then sends less than a ring must, and the bus bandwidth, which is reckoned for a ring, can be higher than the wire's. For one collective on a quiet network the model is good to a few per cent, as you saw for NVLink. For a busy network at the edge of what it can carry, measure.
#
# ## Takeaways
#
# - A message costs α + *N*β. Two measurements tell you both, and every pair of ranks may have its own.
# - HBM, NVLink, PCIe, network: each is slower than the one before, and the network is 33 times slower than HBM. Keep bytes near.
# - A wire that is shared by eight is eight times slower for each of them, and only a look at the topology tells you.
# - Bus bandwidth can be compared with the data sheet; algorithm bandwidth cannot.
# - A faster wire needs larger messages: half of it is used at *N* = *n*α/β.
# - Everyone waits for the slowest. The more ranks there are, the longer the wait, and the more likely it is that somebody is slow.
# - The same program on the same machines can be several times slower if the ranks are numbered badly.
#
# ## Further reading
#
# - paper:leiserson1985 Why the branches of a network should get thicker.
# - paper:petrini2003 How noise was found to halve a machine's speed.
# - paper:dean2013 Why the slowest of many matters.
# - paper:bekman2024 A book of measured figures, including the NVLink figures used here.
