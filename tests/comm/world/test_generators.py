import torch

from minidist.comm.world.generators import Generators


def drawn(seed, n):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)).tolist()


def test_turns_do_not_mix_and_the_process_keeps_its_own():
    torch.manual_seed(3)
    expected = drawn(3, 2)
    assert torch.rand(()).item() == expected[0]
    with Generators(torch.device("meta"), [7, 8, 9]) as generators:
        mine = {rank: [] for rank in (0, 1, 2)}
        for rank in (1, 0, 0, 1, 2, 0, 1, 2, 2):
            generators.turn(rank)
            mine[rank].append(torch.rand(()).item())
    assert mine == {0: drawn(7, 3), 1: drawn(8, 3), 2: drawn(9, 3)}
    assert torch.rand(()).item() == expected[1]


def test_normal_numbers_come_in_pairs_and_their_second_half_is_kept():
    """randn keeps a number for the next call: it is part of the state."""
    expected = [
        torch.randn((), generator=g) for g in [torch.Generator().manual_seed(4)] for _ in range(4)
    ]
    with Generators(torch.device("cpu"), [4, 5]) as generators:
        mine = []
        for _ in range(4):
            generators.turn(0)
            mine.append(torch.randn(()))
            generators.turn(1)
            torch.randn(3)
    assert mine == expected
