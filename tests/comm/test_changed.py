"""What a program reaches of the notebook it may read, not change: a World's ranks would share the change."""

import random
import re
from collections import Counter, defaultdict, deque

import numpy as np
import pytest
import torch

from minidist.comm import World
from minidist.comm import program as ranks_program
from minidist.models import mlp

COUNT = 0
LOSSES: list[float] = []


class Meter:
    total = 0

    def __init__(self):
        self.steps, self.losses = 0, []


def appends(comm):
    LOSSES.append(comm.rank)
    return len(LOSSES)


def binds_a_global(comm):
    global COUNT
    COUNT += 1
    return COUNT


def counts_in_a_default(comm, seen=[]):  # noqa: B006
    seen.append(comm.rank)


def changing() -> dict:
    """{what: (the name that the message must have, a program that changes it)}."""
    x = torch.ones(1)
    table = {"steps": 0}
    nested = {"a": [[1.0]]}
    names = set()
    array = np.zeros(3)
    queue = deque([1])
    tally = Counter()
    lists = defaultdict(list)
    meter = Meter()
    rng = np.random.default_rng(0)
    generator = torch.Generator()
    dice = random.Random(0)
    count = 0
    tensors = [torch.zeros(2)]
    buffer = torch.zeros(3)
    raw = bytearray(2)
    big = torch.zeros(300_000)

    def rebinds(comm):
        nonlocal count
        count += 1

    def adds(comm):
        x.add_(1)
        return x.item()

    def deep(comm):
        nested["a"][0][0] = 2.0

    def collective(comm):
        comm.sendrecv(
            torch.ones(3) + comm.rank,
            (comm.rank + 1) % comm.size,
            buffer,
            (comm.rank - 1) % comm.size,
        )

    def by_helper(comm):
        deep(comm)

    def sets_in_a_tensor_of_a_list(comm):
        tensors[0][1] = 1

    def steps(comm):
        meter.steps += 1

    def of_the_class(comm):
        Meter.total += 1

    return {
        "tensor": ("'x' (Tensor)", adds),
        "a large tensor": ("'big' (Tensor)", lambda comm: big.mul_(2)),
        "tensor received into": ("'buffer' (Tensor)", collective),
        "tensor in a list": ("'tensors' (Tensor)", sets_in_a_tensor_of_a_list),
        "global list": ("'LOSSES' (list)", appends),
        "global number": ("'COUNT' (global or outer name)", binds_a_global),
        "number of an outer function": ("'count' (global or outer name)", rebinds),
        "default": ("'seen' (list)", counts_in_a_default),
        "dict": ("'table' (dict)", lambda comm: table.update(steps=1)),
        "nested": ("'nested' (list)", deep),
        "by a helper": ("'nested' (list)", by_helper),
        "set": ("'names' (set)", lambda comm: names.add(comm.rank)),
        "bytearray": ("'raw' (bytearray)", lambda comm: raw.append(1)),
        "deque": ("'queue' (deque)", lambda comm: queue.popleft() if queue else None),
        "counter": ("'tally' (Counter)", lambda comm: tally.update("a")),
        "defaultdict": ("'lists' (defaultdict)", lambda comm: lists["a"]),
        "array": ("'array' (ndarray)", lambda comm: array.__setitem__(0, 1)),
        "attribute": ("'steps' (attribute)", steps),
        "attribute of a class": ("'total' (attribute)", of_the_class),
        "list of an object": ("'losses' (list)", lambda comm: meter.losses.append(1)),
        "NumPy's generator": ("'rng' (Generator)", lambda comm: rng.random() and None),
        "torch's generator": (
            "'generator' (Generator)",
            lambda comm: torch.rand(1, generator=generator),
        ),
        "Python's generator": ("'dice' (Random)", lambda comm: dice.random()),
    }


@pytest.mark.parametrize("what", changing())
def test_a_change_is_named(run_fast, what):
    words, program = changing()[what]
    with pytest.raises(
        ValueError, match=f"the program changed {re.escape(words)} of the notebook"
    ) as caught:
        run_fast(program, 2)
    assert "Return it instead" in str(caught.value)


def test_a_change_is_named_over_gloo(run):
    total = torch.zeros(1)

    def program(comm):
        total.add_(comm.rank)

    with pytest.raises(ValueError, match=r"the program changed 'total' \(Tensor\) of the notebook"):
        run(program, 3)


def test_what_one_rank_alone_changes_is_named(run_fast):
    first, last = [], {}

    def program(comm):
        if comm.rank == 0:
            first.append(1)
        if comm.rank == 2:
            last["a"] = 1

    with pytest.raises(ValueError, match=r"'first' \(list\), 'last' \(dict\) of the notebook"):
        run_fast(program, 3)


def test_a_world_of_one_rank_is_no_exception(run_fast):
    seen = []
    with pytest.raises(ValueError, match=r"'seen' \(list\)"):
        run_fast(lambda comm: seen.append(1), 1)


class Slower(torch.optim.SGD):
    """Torch's Optimizer puts another `step` into its class when the first one is made."""

    def step(self, closure=None):
        super().step(closure)


def test_a_class_may_be_made_for_the_first_time(run_fast):
    def program(comm):
        w = torch.ones(1, requires_grad=True)
        w.sum().backward()
        Slower([w], lr=0.5).step()
        return w.item()

    assert run_fast(program, 2) == [0.5, 0.5]


class Settings:
    def __init__(self):
        self.rates = [0.1, float("nan")]
        self.name = "a"
        self.table = {"x": torch.ones(3), 1: np.ones(2)}


def test_reading_is_free(run_fast):
    x = torch.arange(4.0)
    array = np.arange(3)
    settings = Settings()
    pairs = [(1, [2, float("nan")]), {3}]
    many, empty = list(range(200_000)), []

    def program(comm):
        model, own = mlp([2, 2]), []
        own.append(x[comm.rank].item() + array.sum() + len(many) + len(empty))
        total = (
            x.clone().add_(1).sum()
            + x.view(2, 2).sum()
            + settings.table["x"].sum()
            + x.numpy().sum()
        )
        model(x[:2])
        return own[0], total.item(), next(iter(pairs))[0], settings.rates[0]

    first = run_fast(program, 2)
    assert run_fast(program, 2) == first
    assert first[1][0] == 200_000 + 3 + 1.0


def test_arguments_are_copies_and_may_be_changed(run_fast):
    def program(comm, seen, x):
        seen.append(comm.rank)
        return len(seen), x.add_(comm.rank).item()

    seen, x = [], torch.ones(1)
    assert run_fast(program, 3, seen, x) == [(1, 1.0), (1, 2.0), (1, 3.0)]
    assert not seen and x.item() == 1


def test_a_program_that_raises_keeps_its_own_error(run_fast):
    seen = []

    def program(comm):
        seen.append(1)
        if comm.rank == 1:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_fast(program, 2)


def test_failures_go_on_and_are_results(run_fast):
    seen = []

    def program(comm):
        seen.append(1)
        if comm.rank == 1:
            raise KeyError("mine")
        return comm.rank

    results = run_fast(program, 2, on_failure="continue")
    assert results[0] == 0 and isinstance(results[1], KeyError)


def test_a_run_after_a_refused_one_is_right(run_fast):
    seen = []

    def program(comm, spoil):
        if spoil:
            seen.append(comm.rank)
        return comm.sendrecv(
            torch.tensor([comm.rank]), 1 - comm.rank, torch.zeros(1).long(), 1 - comm.rank
        ).item()

    with pytest.raises(ValueError, match="'seen'"):
        run_fast(program, 2, True)
    assert run_fast(program, 2, False) == [1, 0]


def test_what_is_compared_costs_little(monkeypatch):
    """Each value is looked at once before a run and once after it, however many ranks there are."""
    data = [torch.zeros(1000) for _ in range(500)]
    table = {i: i for i in range(50_000)}
    looked = []
    look = ranks_program._entries

    def counted(value):
        looked.append(id(value))
        return look(value)

    def program(comm):
        return data[0][0].item() + table[1]

    monkeypatch.setattr(ranks_program, "_entries", counted)
    for n in (1, 64):
        looked.clear()
        World(n).run(program)
        assert set(Counter(looked).values()) == {2} and {id(table), *map(id, data)} <= set(looked)
