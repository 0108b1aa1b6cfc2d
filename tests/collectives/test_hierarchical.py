"""Any inner and outer algorithm, nodes of any size: right, with few bytes between nodes."""

import pytest
import torch

from minidist.collectives import Hierarchical, all_reduce_
from minidist.collectives.hierarchical import Bundled, Nodes, by_links, having, of_size
from minidist.collectives.links import Net
from minidist.comm import World, launch
from minidist.comm.base import Link
from minidist.comm.cluster import Cluster
from tests.collectives.costs import run
from tests.collectives.oracle import check
from tests.collectives.test_algorithms import wrong

INNER, OUTER = having("reduce_scatter", "all_gather"), having("all_reduce")


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", INNER)
def test_any_inner_and_outer(inner, outer):
    """Nodes of 3, 3 and 2 ranks."""
    assert wrong(World(8).run(check, Hierarchical(inner, outer, 3), lengths=[0, 7, 1001])) == []


@pytest.mark.parametrize(
    ("n", "size"), [(1, 1), (1, 4), (2, 1), (4, 2), (5, 4), (6, 1), (7, 4), (12, 4), (17, 5)]
)
def test_any_nodes(n, size):
    assert wrong(World(n).run(check, Hierarchical("ring", "pipelined", size))) == []


def test_nodes_of_a_cluster():
    world = World(12, cluster=Cluster.dgx_h100(nodes=2))
    assert wrong(world.run(check, "hierarchical", lengths=[0, 7, 1001])) == []


def test_over_processes():
    assert wrong(launch(check, 5, Hierarchical("ring", "ring", 2), lengths=[0, 7, 1001])) == []


@pytest.mark.parametrize(("n", "m"), [(4, 2), (6, 3), (8, 2), (12, 4)])
def test_what_crosses_between_nodes(n, m):
    """Of N bytes a node sends what a ring of the nodes sends, from all its ranks alike."""
    nbytes, k = n * 840 * 8, n // m
    for verb, whole in (
        ("all_reduce", 2 * nbytes),
        ("reduce_scatter", nbytes),
        ("all_gather", nbytes),
    ):
        world = run(n, verb, Hierarchical(size=m), nbytes)
        across = [
            [x.nbytes for x in world.trace if x.src == r and x.dst // m != r // m] for r in range(n)
        ]
        assert [sum(sent) for sent in across] == [(k - 1) * whole // k // m] * n
        within = [
            sum(x.nbytes for x in world.trace if x.src == r and x.dst // m == r // m)
            for r in range(n)
        ]
        assert within == [(m - 1) * whole // m] * n


def test_groups_are_made_once_and_without_a_message():
    def program(comm):
        made = []
        split = type(comm).split
        type(comm).split, kept = lambda self, *args: made.append(args) or split(self, *args), split
        try:
            for _ in range(3):
                all_reduce_(comm, torch.ones(4), algorithm=Hierarchical(size=2))
        finally:
            type(comm).split = kept
        return len(made)

    world = World(1)
    assert world.run(program) == [2]
    world = World(4)
    world.run(lambda comm: Hierarchical(size=2).groups(comm) and None)
    assert len(world.trace) == 0


def test_in_a_stream_beside_the_program():
    def program(comm):
        work = comm.stream(all_reduce_, torch.ones(5), "sum", Hierarchical(size=2))
        here = all_reduce_(comm, torch.full((5,), 2.0), algorithm=Hierarchical(size=2))
        return work.wait().tolist(), here.tolist()

    for results in (World(4).run(program), launch(program, 4)):
        assert results == [([4.0] * 5, [8.0] * 5)] * 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: Hierarchical("tree", "ring"),
            ("naive, ring, halving_doubling, pipelined", "'tree'"),
        ),
        (lambda: Hierarchical("ring", "star"), ("double_tree", "'star'")),
        (
            lambda: World(2).run(
                lambda comm: all_reduce_(comm, torch.ones(1), algorithm=Hierarchical(size=0))
            ),
            ("not 0",),
        ),
        (
            lambda: run(4, "all_gather", Hierarchical("ring", "tree", 2), 64),
            ("'tree'", "all_gather", "ring"),
        ),
    ],
)
def test_refused(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


# ------------------------------------------------------------
# Which ranks form a node, and who works for whom.


def of_cluster(cluster, ranks):
    return by_links(Net(len(ranks), lambda dst, src: cluster.link(ranks[src], ranks[dst]))).members


H100 = Cluster.dgx_h100(nodes=3)


@pytest.mark.parametrize(
    ("cluster", "ranks", "sizes"),
    [
        (H100, range(24), [8, 8, 8]),
        (H100, range(20), [8, 8, 4]),
        (H100, range(17), [8, 8, 1]),
        (H100, range(5), [5]),
        (H100, [0, 1, 8, 9, 16, 17], [2, 2, 2]),
        (H100, [3, 11, 19], [3]),  # one of each node: all links are alike
        (H100.slow_rank(5, 4.0), range(16), [8, 8]),
        (H100.slow_rank(8, 9.0), range(16), [8, 8]),
        (H100.slow_rank(0, 2.0), range(16), [8, 8]),
        (H100.slow_link(2, 3, 5.0), range(16), [8, 8]),
        (H100.jitter(0.3), range(16), [8, 8]),
        (Cluster.dgx1_v100(nodes=2), range(16), [8, 8]),
        (Cluster.uniform(6, 1e-6, 1e-9), range(6), [6]),
        (Cluster.uniform(6, 0, 1e-9), range(6), [6]),
        (Cluster.uniform(6, 0, 0), range(6), [6]),
    ],
)
def test_neighbours_with_the_fastest_links(cluster, ranks, sizes):
    members = of_cluster(cluster, list(ranks))
    assert [len(m) for m in members] == sizes and [r for m in members for r in m] == list(
        range(len(ranks))
    )


def test_links_without_latency_are_told_apart():
    links = {True: Link(0.0, 1e-12), False: Link(0.0, 1e-11)}
    assert by_links(Net(4, lambda dst, src: links[dst // 2 == src // 2])).members == [
        [0, 1],
        [2, 3],
    ]


def test_places_and_peers():
    nodes = Nodes([0, 0, 0, 1, 1])
    assert (
        nodes.members == [[0, 1, 2], [3, 4]]
        and nodes.place == [0, 1, 2, 0, 1]
        and nodes.shards == 2
    )
    assert nodes.bundles == [[[0, 2], [3]], [[1], [4]]]  # rank 2 is left over: rank 0 works for it
    assert [nodes.peers(p) for p in range(2)] == [[0, 3], [1, 4]]


def test_of_size():
    assert of_size(7, 3).members == [[0, 1, 2], [3, 4, 5], [6]] and of_size(2, 9).members == [
        [0, 1]
    ]
    assert by_links(Net(1, None)).members == [[0]]


def test_chunks_bundle_by_bundle():
    chunks = list(torch.arange(10).split([1, 2, 3, 0, 4]))
    bundled = Bundled(Nodes([0, 0, 0, 1, 1]), chunks, True)
    assert [b.tolist() for b in bundled.bundle] == [[0, 3, 4, 5], [1, 2, 6, 7, 8, 9]]
    assert [[part.tolist() for part in parts] for parts in bundled.part] == [
        [[0, 3, 4, 5], []],
        [[1, 2], [6, 7, 8, 9]],
    ]
    bundled.bundle[1].zero_()
    assert chunks[1].tolist() == [1, 2]  # a copy
    bundled.restore()
    assert torch.cat(chunks).tolist() == [0, 0, 0, 3, 4, 5, 0, 0, 0, 0]


def test_what_is_in_order_is_not_copied():
    chunks = list(torch.arange(4).split(2))
    bundled = Bundled(Nodes([0, 0]), chunks, True)
    assert [b.data_ptr() for b in bundled.bundle] == [c.data_ptr() for c in chunks]
