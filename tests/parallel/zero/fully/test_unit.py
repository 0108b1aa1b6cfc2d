"""When a block is whole: recomputation, blocks called twice, no graph, exceptions, inputs and outputs of any form."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist.comm import World, launch
from minidist.parallel.zero.fully import FullySharded
from tests.parallel.zero.fully.cases import OPTIMIZERS, Block, far, rows, tower

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(2)).double()
HOW = ["plain", "inside", "inside reentrant", "outside", "outside reentrant", "segments", "twice"]


def trained(comm, how, around=False, prefetch=1, steps=3):
    model = FullySharded(tower(how, comm.rank), comm, blocks=Block, prefetch=prefetch)
    opt = OPTIMIZERS["momentum"](model.parameters())
    for _ in range(steps):
        opt.zero_grad()
        x = rows(comm, X)
        out = checkpoint(model, x, use_reentrant=False) if around else model(x)
        out.square().mean().backward()
        opt.step()
        assert not any(unit.whole for unit in model.units)
    return model.full_state_dict()


@functools.cache
def oracle(how):
    model = tower(how)
    opt = OPTIMIZERS["momentum"](model.parameters())
    for _ in range(3):
        opt.zero_grad()
        model(X).square().mean().backward()
        opt.step()
    return model.state_dict()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", [1, 3])
def test_recomputed_and_called_twice(how, n):
    for state in World(n).run(trained, how, prefetch=n % 3 + 1):
        assert far(state, oracle(how)) < 1e-14


@pytest.mark.parametrize(
    "how", ["inside ours", "inside ours reentrant", "outside ours", "outside ours reentrant"]
)
def test_recomputed_by_our_own_checkpoint(how):
    for state in World(3).run(trained, how):
        assert far(state, oracle("plain")) < 1e-14


@pytest.mark.parametrize("how", ["plain", "outside"])
def test_the_whole_recomputed(how):
    for state in World(2).run(trained, how, True):
        assert far(state, oracle(how)) < 1e-14


def test_over_processes():
    for state in launch(trained, 2, "outside"):
        assert far(state, oracle("outside")) < 1e-14


@pytest.mark.parametrize(
    ("how", "times"),
    [
        ("plain", 3),
        ("inside", 3),
        ("outside", 3),
        ("outside reentrant", 4),
        ("inside ours", 3),
        ("inside ours reentrant", 3),
        ("outside ours", 3),
        ("outside ours reentrant", 4),
        ("twice", 5),
    ],
)
def test_traffic_with_recomputation(how, times):
    """A block whose backward has begun is whole already; one recomputed before it is gathered once more."""
    sent = []
    for steps in (1, 2):
        world = World(3)
        world.run(trained, how, steps=steps)
        sent.append(world.trace.bytes_sent())
    outer, blocks = 2 * 5 * 6, 4 * (5 * 10 + 10 + 10 * 5 + 5)  # elements
    assert sent[1] - sent[0] == 8 * 2 * (3 * outer + times * blocks)


class Recursive(nn.Module):
    """Calls itself within its forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x, depth=2):
        x = torch.tanh(self.layer(x))
        return torch.tanh(self.layer(self(x, depth - 1))) if depth else x


def test_a_block_that_calls_itself():
    def program(comm, sharded):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 5), Recursive()).double()
        model = FullySharded(module, comm, blocks=Recursive) if sharded else module
        model(rows(comm, X)).square().mean().backward()
        return [p.grad for p in module.parameters()]

    for p, *pieces in zip(
        World(1).run(program, False)[0], *World(2).run(program, True), strict=True
    ):
        assert (torch.cat(pieces) - p.reshape(-1)).abs().max() < 1e-14


def graphless(comm, how):
    model = FullySharded(tower(seed=1), comm, blocks=Block)
    model.train(how != "eval")
    context = {
        "eval": torch.no_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "graph": torch.enable_grad,
    }[how]
    with context():
        out = model(X)
    whole = [unit.whole for unit in model.units]
    model(X).sum().backward()  # as if nothing had been
    return out.detach().clone(), whole, [p.grad.abs().sum().item() for p in model.parameters()]


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference", "graph"])
def test_without_a_backward(how):
    module = tower(seed=1)
    expected = module(X)
    for out, whole, grads in World(2).run(graphless, how):
        assert torch.equal(out, expected)
        assert not any(whole) and sum(grads) > 0


class Fails(nn.Module):
    """Raises where it is told to, once."""

    def __init__(self, place):
        super().__init__()
        self.layers, self.place = nn.ModuleList(Block(5) for _ in range(3)), place

    def forward(self, x):
        x = self.layers[1](self.layers[0](x))
        if self.place == "forward":
            raise KeyError("forward")
        if self.place == "backward":
            x = x * 1.0
            x.register_hook(lambda grad: {}["backward"])
        return self.layers[2](x)


def after_an_error(comm, place):
    torch.manual_seed(comm.rank)
    module = Fails(place).double()
    model = FullySharded(
        module, comm, blocks=lambda m: isinstance(m, Block) or m is module.layers[2].b
    )
    with pytest.raises(KeyError):
        model(rows(comm, X)).square().mean().backward()
    whole = [unit.whole for unit in model.units]
    module.place = None
    model.zero_grad()
    model(rows(comm, X)).square().mean().backward()
    return whole, [None if p.grad is None else p.grad for p in model.parameters()]


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize(
    "run", [lambda *args: World(2).run(*args), lambda *args: launch(args[0], 2, *args[1:])]
)
def test_after_an_error(place, run):
    torch.manual_seed(0)
    module = Fails(None).double()
    module(X).square().mean().backward()
    results = run(after_an_error, place)
    assert place == "backward" or not any(w for whole, _ in results for w in whole)
    for p, *pieces in zip(module.parameters(), *(grads for _, grads in results), strict=True):
        assert (torch.cat(pieces) - p.grad.reshape(-1)).abs().max() < 1e-14


class Forms(nn.Module):
    """Takes and gives nested containers, keywords, what is no tensor, and one input as it is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, pair, *, scale, extra=None):
        x, rest = pair["x"], pair["rest"]
        y = self.layer(x) * scale
        return {"y": (y, [rest, None]), "name": "forms"}, y.detach(), extra


def forms(comm, sharded):
    torch.manual_seed(0)
    block = Forms().double()
    block = FullySharded(block, comm) if sharded else block
    x = X.clone().requires_grad_()
    found, constant, extra = block({"x": x * 2, "rest": x}, scale=3, extra="as it is")
    (found["y"][0].sum() + found["y"][1][0].square().sum()).backward()
    return x.grad, found["name"], extra, constant.requires_grad


def test_forms_of_inputs_and_outputs():
    ours, plain = World(2).run(forms, True), World(1).run(forms, False)[0]
    for mine in ours:
        assert torch.equal(mine[0], plain[0]) and mine[1:] == plain[1:]


def dropout(comm):
    module = tower("dropout", comm.rank)
    model = FullySharded(module, comm, blocks=Block)
    torch.manual_seed(7)
    model(X).square().mean().backward()
    return [p.grad for p in model.parameters()]


def test_recomputation_draws_the_same_numbers():
    """Gathering between forward and its repetition draws none."""
    module = tower("dropout")
    torch.manual_seed(7)
    module(X).square().mean().backward()
    for p, *pieces in zip(module.parameters(), *World(2).run(dropout), strict=True):
        assert (torch.cat(pieces) - p.grad.reshape(-1)).abs().max() < 1e-14


def test_a_block_that_changes_its_input_in_place_is_refused():
    """By torch: the one who gave the input could not know."""

    def program(comm):
        model = nn.Sequential(
            nn.Linear(5, 5), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 5))
        )
        FullySharded(model, comm, blocks=nn.Sequential)(X.float()).sum().backward()

    with pytest.raises(RuntimeError, match="modified inplace"):
        World(2).run(program)
