import torch

from minidist.comm.generators import Generators


def test_a_fresh_state_is_that_of_a_seed():
    generators, kept = Generators(torch.device("cpu")), torch.default_generator.get_state()
    generators.set(generators.fresh(7))
    drawn = torch.rand(5)
    assert torch.equal(drawn, torch.rand(5, generator=torch.Generator().manual_seed(7)))
    generators.set(kept)
    assert torch.equal(generators.get(), kept)


def test_turns_do_not_mix():
    generators, kept = Generators(torch.device("meta")), torch.default_generator.get_state()
    states = [generators.fresh(seed) for seed in (1, 2)]
    drawn = [[], []]
    for turn in range(6):
        generators.set(states[turn % 2])
        drawn[turn % 2].append(torch.rand(()).item())
        states[turn % 2] = generators.get()
    generators.set(kept)
    for seed, mine in enumerate(drawn, start=1):
        assert mine == torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()
