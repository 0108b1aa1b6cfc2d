"""Which ranks form a node, and who works for whom."""

import pytest
import torch

from minidist.collectives.links import Net, Uniform
from minidist.collectives.nodes import Bundled, Nodes, by_links, of_size
from minidist.comm.base import Link
from minidist.comm.cluster import Cluster


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
    assert by_links(Uniform(1, 1, 1)).members == [[0]]


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
