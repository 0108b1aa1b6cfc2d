"""Lesson 05: other right ways pass, and what is right only for some ranks, models or times does not.

The usual mistakes are in course/05_data_parallel/bugs.py, which tests/bank examines.
"""

import sys

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Outcome, near
from minicheck.lessons import data_parallel
from minicheck.lessons.data_parallel import (
    MODELS,
    cheap,
    drawn,
    gradient,
    predict_step,
    same_gradients,
    samples,
    together,
    trainable,
)
from minidist.collectives import all_gather, all_reduce_, broadcast_
from tests.bank.bank import solved
from tests.minicheck.examined import accepted, assert_odd_answers_are_told, refused
from tests.minicheck.predicted import judge, slips_are_wrong

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def filled(module):
    """The trainable parameters, zeros where a gradient is missing."""
    trained = [p for p in module.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    return trained


def coalesced(comm, module):
    all_reduce_(comm, [p.grad for p in filled(module)], op="mean")


def flat(comm, module):
    trained = filled(module)
    grads = all_reduce_(comm, torch.cat([p.grad.reshape(-1) for p in trained])) / comm.size
    for p, part in zip(trained, grads.split([p.numel() for p in trained]), strict=True):
        p.grad = part.view_as(p)


def divides_first(comm, module):
    for p in filled(module):
        all_reduce_(comm, p.grad.div_(comm.size))


def by_hand(comm, module):
    """A ring of two halves, from messages alone."""
    n, r = comm.size, comm.rank
    for p in filled(module):
        whole = p.grad.reshape(-1)
        chunks = whole.tensor_split(n)
        for step in range(2 * (n - 1)):
            mine, out = chunks[(r - 2 - step) % n], chunks[(r - 1 - step) % n]
            got = comm.sendrecv(out.clone(), (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
            mine.copy_(mine + got if step < n - 1 else got)
        p.grad = whole.view_as(p) / n


def test_other_ways_to_average(capsys):
    assert accepted(check.average_gradients, [coalesced, flat, divides_first, by_hand]) == [
        0,
        1,
        2,
        3,
    ]
    assert capsys.readouterr().out.count("average_gradients: right.") == 4


def test_other_ways_to_do_the_rest(capsys):
    def one_by_one(comm, module):
        for x in [*module.buffers(), *module.parameters()]:
            broadcast_(comm, x, algorithm="naive")

    def batches_of_parts(comm, order, batch):
        if batch % comm.size:
            raise ValueError(f"{comm.size} ranks, {batch} samples")
        whole = order[: len(order) // batch * batch].view(-1, comm.size, batch // comm.size)
        return tuple(part.clone() for part in whole[:, comm.rank])

    def gathers_counts(comm, module, samples):
        counts = all_gather(comm, torch.tensor([samples]))
        for p in module.parameters():
            if p.requires_grad:
                grad = p.grad * samples if samples and p.grad is not None else torch.zeros_like(p)
                p.grad = all_reduce_(comm, grad) / counts.sum()

    def weighs_in_float32(comm, module, samples):
        # of whole numbers: in float32, always
        weight = samples / all_reduce_(comm, torch.tensor([samples]))
        for p in module.parameters():
            if p.requires_grad:
                grad = p.grad * weight if samples and p.grad is not None else torch.zeros_like(p)
                p.grad = all_reduce_(comm, grad)

    def scales_at_the_end(comm, module, loss_fn, micro_batches):
        for p in module.parameters():
            p.grad = None
        for x, y in micro_batches:
            loss_fn(module(x), y).backward()
        for p in filled(module):
            all_reduce_(comm, p.grad.div_(comm.size * len(micro_batches)))

    def tensor_hooks(comm, module):
        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(lambda grad: all_reduce_(comm, grad.clone(), op="mean"))

    check.start_equal(one_by_one)
    check.my_batches(batches_of_parts)
    check.weighted_average_gradients(gathers_counts)
    check.weighted_average_gradients(weighs_in_float32)
    check.accumulate(scales_at_the_end)
    check.average_hooks(tensor_hooks)
    assert capsys.readouterr().out.count(": right.") == 6


def only_for(name, fits):
    """The solution of an exercise where `fits(comm, module)`; else the right messages, and nothing else."""
    right = solved("05_data_parallel")[name]

    def answer(comm, module, *rest):
        kept = [
            (x, x.clone())
            for x in [*(p.grad for p in module.parameters()), *module.state_dict().values()]
            if x is not None
        ]
        right(comm, module, *rest)
        for x, before in kept if not fits(comm, module) else []:
            with torch.no_grad():
                x.copy_(before)

    return answer


FITS = [
    lambda comm, module: comm.rank < comm.size - 1 or comm.size < 4,
    lambda comm, module: comm.size < 5,
    lambda comm, module: type(comm).__name__ == "WorldComm",
    lambda comm, module: type(module).__name__ in ("Plain", "Routed"),
    lambda comm, module: comm.size % 2,
]


@pytest.mark.parametrize("name", ["start_equal", "average_gradients", "weighted_average_gradients"])
def test_right_for_some_only(name):
    assert accepted(getattr(check, name), [only_for(name, fits) for fits in FITS]) == []


@pytest.mark.parametrize("kind", MODELS)
def test_the_oracle_is_the_mean_of_equal_parts(kind):
    rng = torch.Generator().manual_seed(0)
    model, parts = drawn(kind, rng), [samples(3, r, rng) for r in range(4)]
    whole, own = gradient(model, *together(parts)), [gradient(model, *part) for part in parts]
    for name, want in whole.items():
        grads = [torch.zeros_like(model.values[name]) if g[name] is None else g[name] for g in own]
        assert all(g[name] is None for g in own) if want is None else near(sum(grads) / 4, want)
    assert (kind == "routed") == any(
        g is None and whole[name] is not None for name, g in own[1].items()
    )


def test_what_makes_gradients_the_same():
    want = {"w": torch.tensor([1.0, 2.0], dtype=torch.float64), "frozen": None}
    good = {"w": want["w"].clone(), "frozen": None}
    same_gradients([good, dict(good)], want, lambda *_: {})
    for bad, says in [
        ({"w": want["w"] + 1e-12, "frozen": None}, "right but for rounding"),
        (
            {"w": want["w"] + 1e-6, "frozen": None},
            "rank 1: w.grad.* On rank 0 it is right",
        ),
        ({"w": None, "frozen": None}, "is None"),
        ({"w": want["w"].float(), "frozen": None}, "dtype"),
        ({"w": want["w"], "frozen": torch.ones(2)}, "frozen.grad has numbers"),
        ({"w": want["w"], "frozen": torch.zeros(2)}, "on one rank and None on another"),
        ({"w": 3, "frozen": None}, "is of type int"),
        ({}, "other parameters"),
        (None, "other parameters"),
        ({"w": want["w"] * torch.nan, "frozen": None}, "nan"),
        ({"w": want["w"] * 7, "frozen": None}, "7 times what it should be"),
    ]:
        with pytest.raises(Wrong, match=says):
            same_gradients([good, bad], want, lambda *_: {})


def test_what_an_average_may_cost():
    model = drawn("plain", torch.Generator().manual_seed(0), width=4)
    tensors, n = trainable(model), 3
    least = sum(2 * (n - 1) * -(-p.numel() // n) * 8 for p in tensors)
    cheap(Outcome([], [(r, (r + 1) % n, least) for r in range(n)]), n, tensors, [])
    with pytest.raises(Wrong, match="2\\(n−1\\)/n"):
        cheap(Outcome([], [(r, (r + 1) % n, least + 8) for r in range(n)]), n, tensors, [])
    with pytest.raises(Wrong, match="frozen"):
        cheap(Outcome([], [(r, (r + 1) % n, 2 * least) for r in range(n)]), n, tensors, tensors)
    with pytest.raises(Wrong, match="centre of a star"):
        cheap(Outcome([], [(0, 1, 2 * least), (1, 0, least)]), n, tensors, [])


FACTS = predict_step(n=8, tensors=24, parameters=10_000_000, k=4, rate=0.1)
STEP = {"messages": 336, "nbytes": 70e6, "coalesced": 14, "rate": 0.8, "share": 0.125}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"nbytes": 70.3e6}, None),
        ({"messages": 168}, "one half"),
        ({"messages": 384}, "n−1 steps"),
        ({"messages": 14}, "one for each tensor"),
        ({"nbytes": 17.5e6}, "bytes has one"),
        ({"nbytes": 280e6}, "once"),
        ({"nbytes": 40e6}, "factor"),
        ({"coalesced": 336}, "one buffer"),
        ({"rate": 0.1}, "sum of n means"),
        ({"rate": 8}, "Times which"),
        ({"share": 1 / 12}, "rank 0"),
        ({"share": 0.3}, "too large"),
        ({"share": None}, "not set yet"),
    ],
)
def test_predicted_numbers(numbers, says):
    judge(FACTS, STEP | numbers, says)


def test_all_slips_are_wrong_numbers():
    assert FACTS[0] == STEP
    assert slips_are_wrong(FACTS)


STYLES = [
    (
        "my_batches",
        "return [order[start : start + size] for start in starts]",
        "return tuple(order[start : start + size] for start in starts)",
    ),
    (
        "start_equal",
        "broadcast_(comm, [*module.parameters(), *module.buffers()])",
        """
with torch.no_grad():
    for t in [*module.parameters(), *module.buffers()]:
        t.copy_(broadcast_(comm, t.clone()))
""",
    ),
    (
        "average_gradients",
        'all_reduce_(comm, p.grad, op="mean")',
        'comm.stream(all_reduce_, p.grad, "mean").wait()',
    ),
    (
        "average_gradients",
        'all_reduce_(comm, p.grad, op="mean")',
        'p.grad = all_reduce_(comm, p.grad.clone(), op="mean")',
    ),
    (
        "weighted_average_gradients",
        """
if p.grad is None or not samples:
    p.grad = torch.zeros_like(p)
""",
        """
if not samples or p.grad is None:
    p.grad = p.detach() * 0
""",
    ),
    (
        "accumulate",
        "(loss_fn(module(x), y) / len(micro_batches)).backward()",
        """
out = module(x)
loss = loss_fn(out, y) / len(micro_batches)
loss.backward()
""",
    ),
    (
        "average_hooks",
        'all_reduce_(comm, p.grad, op="mean")',
        """
all_reduce_(comm, p.grad)
p.grad /= comm.size
""",
    ),
    (
        "predict_step",
        "share = 1 / 4 * 1 / 2",
        """
from fractions import Fraction
share = Fraction(1, 8)
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("05_data_parallel", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(data_parallel)
