"""Wires: which of them a message finds busy, and for how long it holds them."""

from minidist.comm import Cluster, Level
from minidist.comm.world.routes import Routes, occupy, starts

SHARED = Cluster(
    links={
        "nvlink": Level(1.0, 0.5),
        "nic": Level(2.0, 0.25, share=2),
        "spine": Level(0.0, 1.0, share=4),
    },
    devices=2,
    nodes=4,
    rack=2,
)


def test_a_way_is_the_route_with_its_wires():
    routes = Routes(SHARED)
    way = routes(0, 4)
    assert way[:2] == SHARED.link(0, 4) == (2.0, 1.0)
    assert len({way.out, way.into, *(wire for wire, _ in way.shared)}) == 6 == len(routes.wires)
    # NIC out and in, uplink, downlink
    assert [beta for _, beta in way.shared] == [0.25, 0.25, 1.0, 1.0]
    assert routes(0, 4) == way and len(routes.wires) == 6


def test_pairs_share_what_they_share():
    routes = Routes(SHARED)
    one = routes(0, 4)
    other = routes(1, 5)
    back = routes(5, 1)
    assert one.shared == other.shared and not {one.out, one.into} & {other.out, other.into}
    # duplex
    assert not {back.out, back.into} & {other.out, other.into} and not {*back.shared} & {
        *other.shared
    }
    assert routes(0, 5).out == one.out != routes(0, 1).out  # a port for each level


def test_start_and_occupy():
    routes = Routes(SHARED)
    way = routes(0, 4)
    assert starts(way, 3.0) == 3.0
    assert occupy(way, 8, 3.0) == 11.0  # ports: 8 bytes at the uplink's 1 s
    nic, uplink = way.shared[0][0], way.shared[2][0]
    assert [w.free for w in (way.out, way.into, nic, uplink)] == [11.0, 11.0, 5.0, 11.0]
    assert starts(way, 3.0) == 11.0 and starts(way, 12.0) == 12.0
    assert starts(routes(1, 2), 4.0) == 5.0  # the NIC that it shares with rank 0
    assert starts(routes(2, 4), 4.0) == 11.0  # the uplink
    assert occupy(way, 8, 20.0, factor=1.5) == 32.0 and nic.free == 23.0
