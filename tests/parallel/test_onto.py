"""The steps of `parallelize` by themselves."""

import torch

from minidist.comm import World
from minidist.comm.mesh import Mesh
from minidist.parallel.onto import seed_


def test_random_numbers_differ_by_stage_and_by_data_rank():
    """And not by tensor rank: what all of a group hold, all of it drop alike."""

    def program(comm):
        mesh = Mesh(comm, dp=2, pp=2, tp=2)
        seed_(mesh, 5)
        return (mesh.dp.rank, mesh.pp.rank), torch.rand(4)

    drawn = {}
    for place, numbers in World(8).run(program):
        drawn.setdefault(place, []).append(tuple(numbers.tolist()))
    assert all(len(both) == 2 and both[0] == both[1] for both in drawn.values())
    assert len({both[0] for both in drawn.values()}) == len(drawn) == 4
