"""LossScaler: step by step with torch.amp.GradScaler, on one rank and on several, and what is refused."""

import math

import pytest
import torch
from torch import nn

from minidist.comm import World, launch
from minidist.models import mlp
from minidist.train.amp import LossScaler, Masters

INF, NAN = math.inf, math.nan
# no powers of two: rounding counts
FACTORS = dict(growth_factor=1.7, backoff_factor=0.3, growth_interval=3)


class Theirs(torch.amp.GradScaler):
    """PyTorch's, with our names for the arguments."""

    def __init__(self, init=2.0**16, **kwargs):
        super().__init__("cpu", init_scale=init, **kwargs)


def model(dtype=torch.float32):
    return mlp([4, 5, 2], dtype=dtype)


def train(make, planted, optimizers=1, clip=None, **options):
    """What is seen after each step, where `planted` is added to a gradient of the optimizer that it names."""
    scaler, net = make(init=2.0**10, **options), model()
    layers = [net[0], net[2]] if optimizers == 2 else [net]
    steppers = [torch.optim.Adam(layer.parameters(), lr=0.1) for layer in layers]
    random, seen = torch.Generator().manual_seed(0), []
    for bad in planted:
        for optimizer in steppers:
            optimizer.zero_grad()
        scaler.scale(net(torch.randn(3, 4, generator=random)).square().mean()).backward()
        if bad is not None:
            which, value = bad
            list(layers[which].parameters())[-1].grad[0] = value
        for optimizer in steppers:
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            scaler.step(optimizer)
        scaler.update()
        seen.append(
            (
                scaler.state_dict(),
                [p.detach().clone() for p in net.parameters()],
                [len(o.state) for o in steppers],
            )
        )
    return seen


PLANTED = {
    "none": [None] * 8,
    "one": [None, None, (0, INF), None, None, None, None],
    "at first": [(0, NAN), (0, -INF), None, None, None, None],
    "in a row": [None, (0, INF), (0, INF), None, (0, NAN), None, None, None, None],
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize(
    "options", [{}, FACTORS, {"enabled": False}], ids=["defaults", "factors", "off"]
)
@pytest.mark.parametrize("clip", [None, 0.05])
def test_step_by_step_as_torch(planted, options, clip):
    planted = [None] * 4 if options == {"enabled": False} else planted
    ours, theirs = (train(make, planted, clip=clip, **options) for make in (LossScaler, Theirs))
    for (state, params, steps), (their_state, their_params, their_steps) in zip(
        ours, theirs, strict=True
    ):
        assert (state, steps) == (their_state, their_steps)
        assert all(map(torch.equal, params, their_params))
    assert len(ours) == len(planted)


@pytest.mark.parametrize("which", [0, 1])
def test_two_optimizers_as_torch(which):
    """The one with the inf is skipped, the other steps, and the scale backs off once."""
    planted = [None, (which, INF), None, None, None]
    ours, theirs = (train(make, planted, optimizers=2, **FACTORS) for make in (LossScaler, Theirs))
    for (state, params, steps), (their_state, their_params, their_steps) in zip(
        ours, theirs, strict=True
    ):
        assert (state, steps) == (their_state, their_steps)
        assert all(map(torch.equal, params, their_params))
    assert ours[1][0]["scale"] == pytest.approx(0.3 * 2**10, rel=1e-6)


def test_the_scale_stops_at_the_largest_of_fp32_as_torch():
    found = [
        train(make, [None] * 120, growth_factor=4.0, growth_interval=1)[-1][0]
        for make in (LossScaler, Theirs)
    ]
    assert found[0] == found[1]
    assert math.isfinite(found[0]["scale"])


def test_the_state_goes_over_to_torch_and_back():
    ours = LossScaler(**FACTORS)
    ours.load_state_dict(train(Theirs, PLANTED["one"], **FACTORS)[-1][0])
    theirs = Theirs()
    theirs.load_state_dict(ours.state_dict())
    assert (
        theirs.state_dict()
        == ours.state_dict()
        == train(LossScaler, PLANTED["one"], **FACTORS)[-1][0]
    )
    assert LossScaler(enabled=False).state_dict() == {}
    with pytest.raises(ValueError, match="0 of its 5 entries"):
        ours.load_state_dict({})


def test_a_static_scale_skips_and_stays():
    before, bad, after = train(LossScaler, [None, (0, INF), None], dynamic=False)
    assert [s["scale"] for s, *_ in (before, bad, after)] == [2**10] * 3
    assert all(map(torch.equal, before[1], bad[1]))
    assert not all(map(torch.equal, bad[1], after[1]))


def test_scale_takes_lists_as_torch():
    values = [torch.ones(2), (torch.tensor(3.0), torch.ones(1, dtype=torch.float16))]
    ours, theirs = (make(init=8.0).scale(values) for make in (LossScaler, Theirs))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert type(ours[1]) is tuple and ours[1][1].dtype == torch.float16
    assert LossScaler(enabled=False).scale(values) is values
    with pytest.raises(ValueError, match="str"):
        LossScaler().scale("abc")


def test_a_new_scale():
    scaler = LossScaler()
    scaler.update(4.0)
    assert scaler.get_scale() == 4 and LossScaler(enabled=False).get_scale() == 1


# ------------------------------------------------------------------------------------------------------ several ranks
def replicas(comm, bad_rank, agree=True):
    """Gradients differ between ranks, as those of parts of a model do; one rank's has an inf in the second step."""
    torch.manual_seed(comm.rank)
    net, scaler = (
        nn.Linear(3, 2),
        LossScaler(init=4.0, growth_interval=2, comm=comm if agree else None),
    )
    optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(net(torch.ones(1, 3)).sum()).backward()
        if step == 1 and comm.rank == bad_rank:
            net.weight.grad[0, 0] = INF
        before = net.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        seen.append((torch.equal(before, net.weight), scaler.get_scale()))
    return seen, scaler.skipped


EXPECTED = [(False, 4.0), (True, 2.0), (False, 2.0), (False, 4.0), (False, 4.0)], 1


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_all_ranks_skip_the_same_step_and_no_other(n):
    for bad_rank in {0, n - 1}:
        assert list(World(n).run(replicas, bad_rank)) == [EXPECTED] * n
    assert (
        list(World(n).run(replicas, n))
        == [([(False, s) for s in (4.0, 8.0, 8.0, 16.0, 16.0)], 0)] * n
    )


def test_over_processes():
    assert list(launch(replicas, 2, 1)) == [EXPECTED] * 2


def test_without_agreement_only_one_skips():
    first, other = World(2).run(replicas, 0, agree=False)
    assert first == EXPECTED and other[1] == 0


def messages(comm, with_gradient):
    """A rank without a gradient of its own joins in."""
    net, scaler = nn.Linear(3, 2), LossScaler(comm=comm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if comm.rank in with_gradient:
        scaler.scale(net(torch.ones(1, 3)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.skipped


@pytest.mark.parametrize("with_gradient", [[0, 1, 2], [1], []])
def test_one_all_reduce_of_four_bytes(with_gradient):
    run = World(3).run(messages, with_gradient)
    assert list(run) == [0, 0, 0]
    assert {m.nbytes for m in run.trace} <= {0, 4} and sum(m.nbytes for m in run.trace) == 2 * 2 * 4


def on_meta(comm):
    net, scaler = mlp([4, 3], device="meta"), LossScaler(comm=comm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler.scale(net(torch.empty(2, 4, device="meta")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.skipped, scaler._good


def test_on_meta_no_step_is_skipped():
    assert list(World(2, device="meta").run(on_meta)) == [(0, 1)] * 2


# ------------------------------------------------------------------------------------------------------------ refused
@pytest.mark.parametrize(
    "wrong",
    [
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"backoff_factor": 0.0},
        {"growth_interval": 0},
        {"init": 0.0},
        {"init": INF},
    ],
)
def test_factors_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        LossScaler(**wrong)


def ready(dtype=torch.float32):
    net, scaler = model(dtype), LossScaler()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler.scale(net(torch.ones(1, 4, dtype=dtype)).sum()).backward()
    return scaler, optimizer


def test_the_order_of_calls():
    scaler, optimizer = ready()
    with pytest.raises(RuntimeError, match="no optimizer"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="unscaled since the last update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    for again in (scaler.unscale_, scaler.step):
        with pytest.raises(RuntimeError, match="stepped since the last update"):
            again(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match="closure"):
        scaler.step(optimizer, closure=lambda: 0)
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="none of the optimizer's parameters has a gradient"):
        scaler.step(optimizer)


def test_gradients_in_fp16_are_refused():
    with pytest.raises(ValueError, match=r"4 of 4 gradients are in fp16.*Masters"):
        LossScaler.unscale_(*ready(torch.float16))
    LossScaler.unscale_(*ready(torch.bfloat16))


def test_a_scale_that_is_of_no_use_ends_in_an_error():
    with pytest.raises(RuntimeError, match="whatever S is"):
        train(LossScaler, [(0, NAN)] * 200)


def test_a_sparse_gradient_and_an_empty_one():
    table, empty = nn.Embedding(5, 2, sparse=True), nn.Parameter(torch.empty(0, 3))
    optimizer, scaler = torch.optim.SGD([table.weight, empty], lr=1.0), LossScaler(init=8.0)
    before = table.weight.detach().clone()
    scaler.scale(table(torch.tensor([1, 1])).sum() + empty.sum()).backward()
    scaler.step(optimizer)
    assert torch.allclose(
        before - table.weight, torch.tensor([[0.0, 0.0], [2.0, 2.0], [0, 0], [0, 0], [0, 0]])
    )


def test_float64_may_be_large():
    p, scaler = nn.Parameter(torch.ones(2, dtype=torch.float64)), LossScaler(init=2.0)
    p.grad = torch.full_like(p, 1e300)
    scaler.step(torch.optim.SGD([p], lr=1e-300))
    assert p.tolist() == pytest.approx([0.5, 0.5]) and scaler.skipped == 0


def test_masters_give_their_gradients_in_fp32():
    net, scaler = model(torch.float16), LossScaler(init=2.0**20)
    optimizer = Masters(net.parameters(), torch.optim.SGD, lr=0.1)
    scaler.scale(net(torch.ones(1, 4, dtype=torch.float16)).float().sum() * 2.0**-28).backward()
    scaler.unscale_(optimizer)
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}
    assert net[2].bias.grad.tolist() == [2.0**-28] * 2  # fp16 has no such number
