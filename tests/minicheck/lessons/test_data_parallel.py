"""Lesson 05: other right ways pass, and what is right only for some ranks, models or times does not.

The usual mistakes are in course/05_data_parallel/bugs.py, which tests/bank examines.
"""

import sys
from hashlib import sha256

import cloudpickle
import pytest
import torch

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Costly, Outcome, near
from minicheck.lessons import data_parallel
from minicheck.lessons.data_parallel import (
    DRIFTS,
    MODELS,
    bits_alike,
    cheap,
    drawn,
    drift_,
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


def by_dtype(module):
    """The gradients, a list for each dtype."""
    groups = {}
    for p in filled(module):
        groups.setdefault(p.dtype, []).append(p)
    return groups.values()


def flat(comm, module):
    for group in by_dtype(module):
        grads = torch.cat([p.grad.reshape(-1) for p in group])
        all_reduce_(comm, grads)
        grads /= comm.size
        for p, part in zip(group, grads.split([p.numel() for p in group]), strict=True):
            p.grad = part.view_as(p)


def divides_first(comm, module):
    for group in by_dtype(module):
        all_reduce_(comm, [p.grad.div_(comm.size) for p in group])


def by_hand(comm, module):
    """A ring of the whole, from messages alone."""
    n = comm.size
    r = comm.rank
    for group in by_dtype(module):
        whole = torch.cat([p.grad.reshape(-1) for p in group])
        chunks = whole.tensor_split(n)
        for step in range(2 * (n - 1)):
            mine = chunks[(r - 2 - step) % n]
            out = chunks[(r - 1 - step) % n]
            got = comm.sendrecv(out.clone(), (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
            mine.copy_(mine + got if step < n - 1 else got)
        for p, part in zip(group, whole.split([p.numel() for p in group]), strict=True):
            p.grad = part.view_as(p) / n


def test_other_ways_to_average(capsys):
    answers = [coalesced, flat, divides_first, by_hand]
    assert accepted(check.average_gradients, answers) == [0, 1, 2, 3]
    assert capsys.readouterr().out.count("average_gradients: right.") == 4


def test_other_ways_to_do_the_rest(capsys):
    def one_by_one(comm, module, steps):
        everyones = all_gather(comm, torch.tensor([steps])).tolist()
        root = everyones.index(max(everyones))
        for x in [*module.buffers(), *module.parameters()]:
            broadcast_(comm, x, root, algorithm="naive")
        return torch.tensor(max(everyones))

    def one_number(comm, module, steps):
        """The steps and the rank in one integer: the lowest rank is the largest."""
        both = steps * comm.size + comm.size - 1 - comm.rank
        most = all_reduce_(comm, torch.tensor([both]), op="max").item()
        root = comm.size - 1 - most % comm.size
        broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)
        return most // comm.size

    def batches_of_a_longer_order(comm, order, batch, done):
        if batch % comm.size:
            raise ValueError(f"{comm.size} ranks, {batch} samples")
        rest = order[done:]
        if not len(rest):
            return ()
        lacks = -len(rest) % batch
        longer = torch.cat([rest, order.repeat(lacks // len(order) + 1)[:lacks]])
        return tuple(longer.view(-1, comm.size, batch // comm.size)[:, comm.rank])

    def digests_of_rank_0(comm, module):
        named = dict([*module.named_parameters(), *module.named_buffers()])
        digests = []
        for x in named.values():
            content = x.detach().contiguous().numpy().tobytes()
            digests.append(int(sha256(content).hexdigest()[:15], 16))
        own = torch.tensor(digests)
        first = broadcast_(comm, own.clone())
        differs = all_reduce_(comm, (own != first).byte(), op="max").tolist()
        return next((name for name, odd in zip(named, differs, strict=True) if odd), None)

    def coalesced_hooks(comm, module):
        calls = []

        def at_the_end():
            coalesced(comm, module)
            calls.clear()

        def hook(grad):
            if not calls:
                torch.autograd.Variable._execution_engine.queue_callback(at_the_end)
            calls.append(grad)

        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(hook)

    check.start_equal(one_by_one)
    check.start_equal(one_number)
    check.my_batches(batches_of_a_longer_order)
    check.first_difference(digests_of_rank_0)
    check.average_hooks(coalesced_hooks)
    assert capsys.readouterr().out.count(": right.") == 5


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


@pytest.mark.parametrize("name", ["start_equal", "average_gradients"])
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
        ({}, "no longer has the parameters"),
        (None, "no longer has the parameters"),
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
    with pytest.raises(Costly, match="2\\(n−1\\)/n"):
        cheap(Outcome([], [(r, (r + 1) % n, least + 8) for r in range(n)]), n, tensors, [])
    with pytest.raises(Costly, match="frozen"):
        cheap(Outcome([], [(r, (r + 1) % n, 2 * least) for r in range(n)]), n, tensors, tensors)
    with pytest.raises(Costly, match="centre of a star"):
        cheap(Outcome([], [(0, 1, 2 * least), (1, 0, least)]), n, tensors, [])


FACTS = predict_step(n=8, tensors=24, parameters=10_000_000, each=12)
STEP = {"messages": 252, "nbytes": 56e6, "saved": 1.19e-3, "rate": 0.0125, "twice": 56}


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, None),
        ({"nbytes": 56.3e6}, None),
        ({"messages": 126}, "one half"),
        ({"messages": 288}, "n−1 steps"),
        ({"messages": 336}, "no gradient"),
        ({"messages": 14}, "one for each tensor"),
        ({"nbytes": 14e6}, "how many bytes"),
        ({"nbytes": 70e6}, "no gradient"),
        ({"nbytes": 52.5e6}, "a fifth of the parameters"),
        ({"nbytes": 32e6}, "factor"),
        ({"saved": 1.26e-3}, "latencies, too"),
        ({"saved": 70e-6}, "how much is saved"),
        ({"rate": 0.1}, "too small"),
        ({"rate": 0.8}, "other way around"),
        ({"rate": 0.125}, "which rate"),
        ({"twice": 40}, "lack"),
        ({"twice": 7}, "of all ranks together"),
        ({"twice": 300}, "too large"),
        ({"twice": None}, "not set yet"),
    ],
)
def test_predicted_numbers(numbers, says):
    judge(FACTS, STEP | numbers, says)


def test_all_slips_are_wrong_numbers():
    assert FACTS[0] == pytest.approx(STEP)
    assert slips_are_wrong(FACTS)


STYLES = [
    ("my_batches", "return parts", "return tuple(parts)"),
    ("my_batches", "parts.append(order[places])", "parts.append(order.clone()[places])"),
    (
        "start_equal",
        "broadcast_(comm, [*module.parameters(), *module.buffers()], root=root)",
        """
with torch.no_grad():
    for t in [*module.parameters(), *module.buffers()]:
        t.copy_(broadcast_(comm, t.clone(), root=root))
""",
    ),
    (
        "average_gradients",
        'all_reduce_(comm, [p.grad for p in trained], op="mean")',
        'comm.stream(all_reduce_, [p.grad for p in trained], "mean").wait()',
    ),
    (
        "average_gradients",
        'all_reduce_(comm, [p.grad for p in trained], op="mean")',
        """
grads = all_reduce_(comm, [p.grad.clone() for p in trained], op="mean")
for p, grad in zip(trained, grads):
    p.grad = grad
""",
    ),
    (
        "first_difference",
        'least = all_reduce_(comm, torch.tensor(digests), op="min")',
        'least = -all_reduce_(comm, -torch.tensor(digests), op="max")',
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
        "rate = 0.1 / n",
        """
from fractions import Fraction
rate = Fraction(1, 80)
""",
    ),
]


def test_right_answers_in_other_styles():
    assert refused("05_data_parallel", STYLES) == {}


def test_whatever_comes_is_told_in_words():
    assert_odd_answers_are_told(data_parallel)


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_replica_that_has_drifted_has_other_bits(drift):
    x = torch.arange(6, dtype=torch.float64).view(2, 3)
    before = x.clone()
    drift_(x, drift)
    assert bits_alike([before, before.t().contiguous().t()]) and not bits_alike([before, x])


def test_each_case_of_a_drift_has_it():
    exam = data_parallel.FirstDifference()
    for case in exam.cases:
        values = [values for *_, values in exam.draw(case, torch.Generator().manual_seed(1))]
        apart = [name for name in values[0] if not bits_alike([v[name] for v in values])]
        _, drift = case.given
        expected = 0 if case.n == 1 or drift is None else 2 if drift == "two" else 1
        assert len(apart) == expected, case
