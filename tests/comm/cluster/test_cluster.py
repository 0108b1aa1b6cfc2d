"""Where ranks sit, what lies between them, and what it takes: times in seconds, computed by hand."""

import pytest
import torch

from minidist.comm import Cluster, Device, Level, Link, Recv, Send, World

ALPHA, BETA = 2.0, 0.25  # bytes are multiples of 4, so all times are exact
PLAIN = Level(ALPHA, BETA)
INSIDE = Level(1.0, 0.125)
CORES = Device("cores", {torch.float32: 8e9}, memory=1000, bandwidth=1.0, launch=1.0)


def cluster(devices=1, nodes=1, rack=None, ranks=1, **links):
    """Any link that is not given is plain."""
    return Cluster(
        links=dict.fromkeys(("device", "nvlink", "nic"), PLAIN) | links,
        ranks=ranks,
        devices=devices,
        nodes=nodes,
        rack=rack,
    )


def nbytes(n):
    return torch.zeros(n, dtype=torch.uint8)


def flows(comm, flows):
    """Each rank posts all its flows, (src, dst, bytes), in one batch at time 0, and says when it is done."""
    ops = [Send(nbytes(n), dst) for src, dst, n in flows if src == comm.rank]
    ops += [Recv(nbytes(n), src) for src, dst, n in flows if dst == comm.rank]
    comm.batch(ops).wait()
    return comm.now()


def times(cluster, *pairs, n=8):
    """(start, sent, arrived) of messages of `n` bytes between `pairs`, posted together."""
    world = World(cluster.size, cluster=cluster)
    world.run(flows, [(src, dst, n) for src, dst in pairs])
    found = {(m.src, m.dst): (m.start, m.sent, m.arrived) for m in world.trace}
    return [found[pair] for pair in pairs]


ALONE, SECOND = (0, 2, 4), (2, 4, 6)  # 8 bytes over a plain link, at once or behind another


def test_places():
    c = cluster(ranks=2, devices=4, nodes=6, rack=2)
    assert c.size == 48
    assert [c.place(r) for r in (0, 1, 2, 7, 8, 16, 47)] == [
        (0, 0, 0),
        (0, 0, 0),
        (0, 0, 1),
        (0, 0, 3),
        (0, 1, 0),
        (1, 2, 0),
        (2, 5, 3),
    ]
    assert c.place(47).rack == 2 and c.place(47).node == 5 and c.place(47).device == 3
    assert cluster(nodes=3).place(2) == (0, 2, 0)  # one rack unless told otherwise
    for rank in (-1, 48):
        with pytest.raises(
            ValueError, match=f"rank {rank} is not in this cluster of 48 ranks, 0 to 47"
        ):
            c.place(rank)


def test_levels_and_links():
    """α adds up over the levels of a route, β is the largest."""
    c = cluster(
        ranks=2,
        devices=2,
        nodes=4,
        rack=2,
        device=Level(0.5, 0.1),
        nvlink=INSIDE,
        nic=Level(2.0, 0.25),
        tor=Level(0.5, 0.5),
        spine=Level(4.0, 0.25),
    )
    passed = [c.levels(0, dst) for dst in (1, 2, 4, 8)]
    assert passed == [["device"], ["nvlink"], ["nic", "tor"], ["nic", "tor", "spine"]]
    assert [c.link(0, dst) for dst in (1, 3, 4, 15)] == [
        (0.5, 0.1),
        (1.0, 0.125),
        (2.5, 0.5),
        (6.5, 0.5),
    ]
    assert c.link(15, 0) == c.link(0, 15) and isinstance(c.link(0, 1), Link)
    # switches that take no time of their own
    assert cluster(devices=2, nodes=2, rack=1).link(0, 3) == (2.0, 0.25)
    without = Cluster(links={"pcie": INSIDE}, devices=2)
    assert without.levels(0, 1) == ["pcie"] and without.link(0, 1) == (INSIDE.alpha, INSIDE.beta)


def test_two_flows_through_one_nic_take_twice_as_long():
    shared = cluster(devices=2, nodes=2, nic=Level(ALPHA, BETA, share=2))
    assert times(shared, (0, 2), (1, 3)) == [ALONE, SECOND]
    assert times(shared, (0, 2), (3, 1)) == [ALONE, ALONE]  # the other way
    assert times(cluster(devices=2, nodes=2), (0, 2), (1, 3)) == [ALONE, ALONE]  # a NIC each


def test_a_receiving_nic_is_shared_too():
    shared = cluster(devices=2, nodes=3, nic=Level(ALPHA, BETA, share=2))
    assert times(shared, (2, 0), (4, 1)) == [ALONE, SECOND]
    assert times(shared, (2, 0), (4, 3)) == [ALONE, ALONE]


def test_an_uplink_shared_by_k_ranks():
    """Messages between racks go one after the other; within a rack they are free."""
    k = 3
    c = cluster(nodes=2 * k, rack=k, spine=Level(0.0, BETA, share=k))
    across = [(r, r + k) for r in range(k)]
    assert times(c, *across) == [(2 * i, 2 * i + 2, 2 * i + 4) for i in range(k)]
    assert times(c, (0, 3), (1, 2), (4, 5)) == [ALONE] * 3


def test_a_shared_wire_is_busy_for_its_own_time():
    """Cut-through. Ports: 8 bytes in 2 s. An uplink twice as fast is free after 1, one half as fast makes all wait."""
    fast = cluster(nodes=4, rack=2, spine=Level(0.0, BETA / 2, share=2))
    assert times(fast, (0, 2), (1, 3)) == [(0, 2, 4), (1, 3, 5)]
    slow = cluster(nodes=4, rack=2, spine=Level(0.0, BETA * 2, share=2))
    assert times(slow, (0, 2), (1, 3)) == [(0, 4, 6), (4, 8, 10)]


def test_half_duplex():
    """One wire for both directions: of a port, of a shared NIC; and a message through one bus holds it once."""
    assert times(cluster(devices=2), (0, 1), (1, 0)) == [ALONE, ALONE]
    one_way = Level(ALPHA, BETA, duplex=False)
    assert sorted(times(cluster(devices=2, nvlink=one_way), (0, 1), (1, 0))) == [ALONE, SECOND]
    nic = Level(ALPHA, BETA, duplex=False, share=2)
    assert sorted(times(cluster(devices=2, nodes=2, nic=nic), (0, 2), (3, 1))) == [ALONE, SECOND]
    bus = Level(ALPHA, BETA, duplex=False, share=4)
    assert sorted(times(cluster(devices=4, nvlink=bus), (0, 1), (2, 3))) == [ALONE, SECOND]


def test_a_ring_over_half_duplex_ports_takes_twice_as_long():
    """Even ranks send while odd ones receive, then the other way round."""
    ring = [(r, (r + 1) % 4) for r in range(4)]
    assert times(cluster(devices=4, nvlink=Level(ALPHA, BETA, duplex=False)), *ring) == [
        ALONE,
        SECOND,
        ALONE,
        SECOND,
    ]
    assert times(cluster(devices=4), *ring) == [ALONE] * 4


def test_ports_of_two_levels_are_independent():
    c = cluster(devices=2, nodes=2, nvlink=INSIDE)
    assert times(c, (0, 1), (0, 2)) == [(0, 1, 2), ALONE]  # NVLink and NIC at once
    assert times(c, (0, 2), (0, 3)) == [ALONE, SECOND]  # one NIC


def test_several_ranks_on_one_device():
    c = cluster(ranks=2, devices=2, device=INSIDE)
    assert times(c, (0, 1), (0, 2)) == [(0, 1, 2), ALONE]
    assert c.speed(0) == 0.5 and cluster(devices=4).speed(0) == 1.0


def test_wires_are_granted_in_virtual_time_order():
    """Ranks 0, 1, 2 share a NIC. 2 → 5 holds it until 10; 0 → 3 is posted first but ready at 3, 1 → 4 at 1."""

    def program(comm):
        if comm.rank == 2:
            comm.send(nbytes(40), 5)
        elif comm.rank == 5:
            comm.recv(nbytes(40), 2)
        elif comm.rank < 2:
            comm.send(nbytes(4), comm.rank + 3)
        elif comm.rank == 4:
            comm.send(nbytes(4), 3)  # NVLink: sent at 1, there at 3
            comm.recv(nbytes(4), 1)
        else:
            comm.recv(nbytes(4), 4)
            comm.recv(nbytes(4), 0)

    world = World(6, cluster=cluster(devices=3, nodes=2, nic=Level(ALPHA, BETA, share=3)))
    world.run(program)
    started = sorted((m.start, m.src, m.dst) for m in world.trace)
    assert started == [(0, 2, 5), (0, 4, 3), (10, 1, 4), (11, 0, 3)]


def test_a_world_without_a_cluster_is_a_uniform_one():
    def program(comm):
        for step in range(1, comm.size):
            to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
            comm.sendrecv(nbytes(4 * step), to, nbytes(4 * step), source)
        return comm.link((comm.rank + 1) % comm.size)

    plain, uniform = (
        World(5, alpha=ALPHA, beta=BETA),
        World(5, cluster=Cluster.uniform(5, ALPHA, BETA)),
    )
    assert plain.run(program) == uniform.run(program) == [(ALPHA, BETA)] * 5
    assert plain.trace == uniform.trace and plain.time == uniform.time == sum(
        ALPHA + 4 * k * BETA for k in range(1, 5)
    )
    assert plain.cluster == uniform.cluster and plain.cluster.device is None


@pytest.mark.parametrize("slow", [0, 2, 3])
def test_a_slow_rank(slow):
    """Three times as long in and out; the others' messages take what they took. Its operations, too."""
    c = cluster(devices=4).slow_rank(slow, 3)
    ring = [(r, (r + 1) % 4) for r in range(4)]
    assert times(c, *ring) == [(0, 6, 12) if slow in pair else ALONE for pair in ring]
    assert [c.speed(r) for r in range(4)] == [1 / 3 if r == slow else 1.0 for r in range(4)]
    assert c.slow_rank(slow, 2).link(slow, (slow + 1) % 4) == (6 * ALPHA, 6 * BETA)


def test_a_slow_rank_does_not_slow_what_it_shares():
    """The port is slower; the uplink, slower still, decides the time as before."""
    c = cluster(nodes=4, rack=2, nic=Level(1.0, 0.25), spine=Level(1.0, 1.0, share=2)).slow_rank(
        0, 2
    )
    assert c.link(0, 2) == (3.0, 1.0) and c.link(1, 3) == (2.0, 1.0) and c.link(0, 1) == (2.0, 0.5)
    assert times(c, (0, 2), (1, 3), n=4) == [(0, 4, 7), (4, 8, 10)]


def test_a_slow_link_is_slow_one_way():
    c = cluster(devices=3).slow_link(0, 1, 4)
    assert times(c, (0, 1), (1, 0), (1, 2)) == [(0, 8, 16), ALONE, SECOND]
    assert c.slow_link(0, 1, 2).link(0, 1) == (8 * ALPHA, 8 * BETA)
    assert c.speed(0) == 1.0


def test_jitter():
    """The k-th message of a rank takes its factor, wire time and latency; nothing else changes."""
    c = cluster(devices=3).jitter(0.2, seed=5)
    factors = [c.noise("message", 0, k) for k in range(2)]
    assert len({*factors, c.noise("message", 1, 0), c.noise("operation", 0, 0), 1.0}) == 5
    first, second = 2 * factors[0], 2 * factors[0] + 2 * factors[1]
    assert times(c, (0, 1), (0, 2)) == [
        (0, first, pytest.approx(2 * first, rel=1e-15)),
        (first, second, pytest.approx(second + 2 * factors[1], rel=1e-15)),
    ]
    assert cluster(devices=3).noise("message", 0, 0) == 1.0
    assert times(c.jitter(0.0), (0, 1), (0, 2)) == [ALONE, SECOND]


def test_jitter_is_the_same_every_time():
    def program(comm):
        for _ in range(10):
            comm.sendrecv(
                nbytes(40), (comm.rank + 1) % comm.size, nbytes(40), (comm.rank - 1) % comm.size
            )

    def run(seed):
        world = World(
            6,
            cluster=cluster(devices=3, nodes=2, nic=Level(ALPHA, BETA, share=3)).jitter(0.3, seed),
        )
        world.run(program)
        return world.time, list(world.trace)

    assert run(1) == run(1) and run(1)[0] != run(2)[0]


def test_links_in_groups_and_between_others():
    """`comm.link` speaks of ranks of the comm; any rank can ask for any link."""

    def program(comm):
        half = comm.split(comm.rank % 2)
        return half.link(1, src=0), half.link(half.size - 1, src=1), comm.link(2, src=1)

    c = cluster(devices=2, nodes=3, nvlink=INSIDE).slow_link(0, 2, 2)
    results = World(6, cluster=c).run(program)
    # 0 to 2, 2 to 4, 1 to 2
    assert results[::2] == [((2 * ALPHA, 2 * BETA), (ALPHA, BETA), (ALPHA, BETA))] * 3
    assert results[1::2] == [((ALPHA, BETA), (ALPHA, BETA), (ALPHA, BETA))] * 3


def test_a_world_on_a_cluster_that_is_larger():
    world = World(3, cluster=cluster(devices=2, nodes=4, nvlink=INSIDE))
    assert world.run(lambda comm: comm.link(2, src=0)) == [(ALPHA, BETA)] * 3
    with pytest.raises(
        ValueError, match="9 ranks do not fit on the cluster 'cluster', which has room for 8"
    ):
        World(9, cluster=cluster(devices=2, nodes=4))
    for both in (dict(alpha=1e-6), dict(beta=0.0)):
        with pytest.raises(ValueError, match="a cluster has links of its own"):
            World(2, cluster=cluster(devices=2), **both)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Cluster(devices=2), "2 ranks but no link 'nvlink' or 'pcie', only []"),
        (lambda: Cluster(nodes=2, links={"pcie": PLAIN}), "no link 'nic', only ['pcie']"),
        (lambda: Cluster(ranks=2), "no link 'device'"),
        (lambda: cluster(nodes=0), "at least 1 of its nodes, not 0"),
        (lambda: cluster(rack=0), "at least 1 of its rack, not 0"),
        (lambda: cluster(warp=PLAIN), "not 'warp'"),
        (
            lambda: cluster(devices=4, nic=Level(1, 1, share=3)),
            "3 ranks cannot share a wire of level 'nic', which has 4",
        ),
        (
            lambda: cluster(nodes=4, rack=2, spine=Level(1, 1, share=4)),
            "4 ranks cannot share a wire of level 'spine', ",
        ),
        (lambda: Level(-1, 0), "alpha is a number of seconds, at least 0, not -1"),
        (lambda: Level(0, -2), "beta is a number of seconds a byte, at least 0, not -2"),
        (lambda: Level(0, 0, share=0), "at least 1 rank, not 0"),
        (lambda: cluster(nodes=2).slow_rank(2, 2), "rank 2 is not in this cluster of 2 ranks"),
        (
            lambda: cluster(nodes=2).slow_rank(1, 0.5),
            "slow rank 1 takes at least 1 times as long as the others, not 0.5",
        ),
        (lambda: cluster(nodes=2).slow_link(0, 0, 2), "no route from rank 0 to rank 0"),
        (lambda: cluster(nodes=2).slow_link(0, 5, 2), "rank 5 is not"),
        (lambda: cluster(nodes=2).slow_link(0, 1, float("nan")), "not nan"),
        (lambda: cluster(nodes=2).jitter(-0.1), "0 or more, not -0.1"),
        (lambda: cluster(nodes=2).speed(2), "rank 2 is not"),
        (lambda: Cluster(host=CORES), "a host, cores, but no link 'pcie' to it, only []"),
        (lambda: cluster().part_of_host(0, 1), "the cluster 'cluster' has no host"),
    ],
)
def test_bad_clusters(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert words in str(caught.value)


def test_the_ranks_of_a_node_divide_its_host():
    nodes = Cluster(
        host=CORES,
        ranks=2,
        devices=2,
        nodes=3,
        links=dict.fromkeys(("device", "nic"), PLAIN) | {"pcie": Level(2.0, 0.5, share=4)},
    )
    quarter = Device("cores", {torch.float32: 2e9}, 250, 0.25, launch=1.0)
    # one wire for four ranks
    assert nodes.part_of_host(11, 12) == nodes.part_of_host(0, 6) == (quarter, (2.0, 2.0))
    assert nodes.part_of_host(5, 6) == (CORES.part(2), (2.0, 1.0))  # two ranks on the second node
    assert nodes.part_of_host(0, 1) == (CORES, (2.0, 0.5))
    alone = Cluster.uniform(3, 0.0, 0.0, host=CORES, pcie=Level(1.0, 0.25))
    assert alone.part_of_host(2, 3) == (CORES, (1.0, 0.25)) and alone.slow_rank(1, 2).host is CORES
    assert alone.link(0, 2) == (0.0, 0.0)  # no message passes the host's link


def test_a_cluster_is_shown():
    c = (
        Cluster.dgx1_v100(nodes=8, oversubscription=2)
        .slow_rank(3, 2)
        .slow_link(0, 9, 1.5)
        .jitter(0.1)
    )
    text = str(c)
    assert text.splitlines()[0] == (
        "DGX-1 V100, V100 SXM: 64 ranks = 1 a device × 8 a node × 8 nodes, 4 a rack; "
        "slow: rank 3 × 2, 0 → 9 × 1.5; jitter σ = 0.1"
    )
    assert [row.split()[:3] for row in text.splitlines()[2:]] == [
        ["NVLink/NVSwitch", "3.4", "120.0"],
        ["PCIe", "5.7", "12.0"],
        ["NIC", "14.0", "12.0"],
        ["top-of-rack", "0.0", "12.0"],
        ["spine", "1.0", "12.0"],
    ]
    assert "2 ranks share one" in text and "4 ranks share one" in text
    html = c._repr_html_()
    assert html.count("<tr>") == 6 and "<td>NVLink/NVSwitch</td><td>3.4</td><td>120.0</td>" in html
    assert "no limit" in str(Cluster.uniform(2, 1.0, 0.0)) and "one way at a time" in str(
        Cluster.laptop()
    )
