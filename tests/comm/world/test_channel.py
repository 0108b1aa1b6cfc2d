"""Pairs and streams of a channel."""

import torch

from minidist.comm import Cluster
from minidist.comm.world.channel import Channel, Fifo
from minidist.comm.world.posted import Op
from minidist.comm.world.routes import Routes


def channel():
    return Channel("main/lane 3", Routes(Cluster.uniform(6, 1.0, 1.0)))


def waiting(pair, sending, time):
    op = Op(None, torch.ones(1), None, sending, pair)
    op.time = time
    pair.put(op)
    return op


def test_a_pair_is_found_from_both_ends():
    c = channel()
    group = [5, 1, 3]
    five, three = c.stream(5, group), c.stream(3, group)
    pair = five.pairs[2]  # rank 2 of the group is rank 3 of the World
    assert pair is three.pairs[~0] is five.pairs[2] is c.pair(5, 3)
    assert (pair.src, pair.dst, pair.alpha, pair.beta) == (
        5,
        3,
        1.0,
        1.0,
    ) and pair is not three.pairs[0]
    assert five.pairs == {2: pair} and c.stream(5, group) is five and c.lane == "lane 3"


def test_offers_are_the_oldest_sends_in_order_of_time():
    c = channel()
    late, early = waiting(c.pair(1, 0), True, 2.0), waiting(c.pair(2, 0), True, 1.0)
    waiting(c.pair(1, 0), True, 0.5)  # behind another of its rank
    waiting(c.pair(3, 0), False, 0.0)  # a receive
    waiting(c.pair(0, 1), True, 0.0)  # elsewhere
    tie = waiting(c.pair(4, 0), True, 1.0)
    assert c.offers(0) == [early, tie, late]
    assert c.pair(3, 0).offer() is None and c.pair(5, 0).offer() is None
    assert sum(len(list(queue)) for queue in c.queues()) == 6


def test_first_in_first_out():
    queue = Fifo()
    assert queue.take() is None and list(queue) == []
    taken = []
    for step in range(30):
        queue.put(step)
        if step % 3 == 0:
            taken.append(queue.take())
    assert taken == list(range(10)) and list(queue) == list(range(10, 30)) and queue.first == 10
    queue.keep([n for n in queue if n % 5 == 0])
    assert [queue.take() for _ in range(5)] == [10, 15, 20, 25, None]
    queue.put("again")
    assert queue.first == "again"
