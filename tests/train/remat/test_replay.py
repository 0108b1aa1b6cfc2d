"""The surroundings of then: random numbers, autocast, function modes; and those of now go on afterwards."""

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from minidist.comm import World
from minidist.train.remat.replay import Replay


def test_numbers_are_drawn_again_and_those_of_now_go_on():
    torch.manual_seed(3)
    own = torch.Generator().manual_seed(4)
    replay = Replay([1, own, torch.ones(2)])
    then = torch.rand(5), torch.rand(5, generator=own)
    expected = torch.Generator().manual_seed(3)
    torch.rand(5, generator=expected)
    with replay.again():
        assert torch.equal(torch.rand(5), then[0]) and torch.equal(
            torch.rand(5, generator=own), then[1]
        )
        torch.rand(100)
    assert torch.equal(torch.rand(5), torch.rand(5, generator=expected))
    with replay.again():
        assert torch.equal(torch.rand(5), then[0])  # as often as one likes


def test_states_are_forgotten_where_nothing_was_drawn():
    torch.manual_seed(3)
    quiet, drawn = Replay(), Replay()
    quiet.forget_random()
    torch.rand(1)
    drawn.forget_random()
    now = torch.get_rng_state()
    with quiet.again():
        assert torch.equal(torch.get_rng_state(), now)
    with drawn.again():
        assert not torch.equal(torch.get_rng_state(), now)


def test_an_exception_leaves_the_numbers_in_order():
    replay = Replay()
    torch.rand(3)
    now = torch.get_rng_state()
    with pytest.raises(KeyError), replay.again():
        raise KeyError
    assert torch.equal(torch.get_rng_state(), now)


def test_each_rank_has_its_own():
    def program(comm):
        torch.manual_seed(comm.rank)
        replay = Replay()
        x = torch.rand(3)
        if comm.rank:
            comm.send(x, 0)
        else:
            comm.recv(torch.empty(3), 1)  # the other rank draws meanwhile
        with replay.again():
            if comm.rank:
                comm.recv(torch.empty(3), 0)
            else:
                comm.send(x, 1)
            return torch.equal(torch.rand(3), x)

    assert World(2).run(program) == [True, True]


def state(device="cpu"):
    return (
        torch.is_autocast_enabled(device),
        torch.get_autocast_dtype(device),
        torch.is_autocast_cache_enabled(),
    )


@pytest.mark.parametrize(
    "then",
    [
        None,
        dict(dtype=torch.bfloat16),
        dict(dtype=torch.float16, cache_enabled=False),
        dict(enabled=False),
    ],
)
@pytest.mark.parametrize("now", [None, dict(dtype=torch.float16)])
def test_autocast(then, now):
    with torch.autocast("cpu", **(then or dict(enabled=False))):
        replay, expected = Replay([torch.ones(1)]), state()
    with torch.autocast("cpu", **(now or dict(enabled=False))):
        before = state()
        with replay.again():
            assert state() == expected
        assert state() == before


class Mode(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.entered = 0

    def __enter__(self):
        self.entered += 1
        return super().__enter__()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("then", [(), (0,), (0, 1), (0, 2, 1)])
@pytest.mark.parametrize("now", [(), (0,), (0, 1), (1, 0)])
def test_function_modes(then, now):
    modes = [Mode() for _ in range(3)]

    def within(numbers, fn):
        if not numbers:
            return fn()
        with modes[numbers[0]]:
            return within(numbers[1:], fn)

    def check():
        with replay.again():
            assert _get_current_function_mode_stack() == [modes[i] for i in then]
        assert _get_current_function_mode_stack() == [modes[i] for i in now]

    replay = within(then, Replay)
    within(now, check)
    assert _get_current_function_mode_stack() == []
    if then == now:
        assert all(mode.entered <= 2 for mode in modes)  # nothing to do


def test_the_default_device_is_a_mode():
    with torch.device("meta"):
        replay = Replay()
    with replay.again():
        assert torch.empty(2).is_meta
    assert not torch.empty(2).is_meta
