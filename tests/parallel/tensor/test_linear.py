"""Both splits of a linear layer are the serial one: outputs, every gradient, initial values, for sizes that hurt."""

import functools

import pytest
import torch
from torch import nn

from minidist.comm import World
from minidist.models import initial, seeded_
from minidist.parallel.tensor import ColumnLinear, RowLinear, reduce_from
from tests.parallel.tensor.cases import EVERYWHERE, RUNS, WIDE, batch, data, difference, found

INPUTS, OUTPUTS = 7, 10  # n = 3, 4 and 5 divide at most one of them


column, row = (
    functools.partial(ColumnLinear, INPUTS, OUTPUTS),
    functools.partial(RowLinear, OUTPUTS, INPUTS),
)
PAIRS = {  # all are Linear(7, 10), Linear(10, 7)
    "column, row": (
        lambda comm, **o: [column(comm, name="0", **o), row(comm, name="1", **o)],
        False,
    ),
    "gathered between": (
        lambda comm, **o: [
            column(comm, gather_output=True, name="0", **o),
            row(comm, input_is_split=False, name="1", **o),
        ],
        False,
    ),
    "sequence": (
        lambda comm, **o: [
            column(comm, sequence=True, name="0", **o),
            row(comm, sequence=True, name="1", **o),
        ],
        True,
    ),
    "regather": (
        lambda comm, **o: [
            column(comm, sequence=True, regather=True, name="0", **o),
            row(comm, sequence=True, name="1", **o),
        ],
        True,
    ),
    "sizes": (
        lambda comm, **o: [
            column(comm, sizes=[0] * (comm.size - 1) + [10], name="0", **o),
            row(comm, sizes=[0] * (comm.size - 1) + [10], name="1", **o),
        ],
        False,
    ),
}


def every_pair(comm):
    return {
        (name, bias, learn): found(
            make(comm, bias=bias, **WIDE), batch(INPUTS), comm, sequence, learn
        )
        for name, (make, sequence) in PAIRS.items()
        for bias, learn in ((True, True), (True, False), (False, True))
    }


@functools.cache
def oracle(bias, learn):
    layers = nn.Linear(INPUTS, OUTPUTS, bias, **WIDE), nn.Linear(OUTPUTS, INPUTS, bias, **WIDE)
    return found(seeded_(nn.Sequential(*layers)), batch(INPUTS), learn=learn)


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_the_serial_layers(run, n):
    for mine in RUNS[run](n, every_pair):
        for (name, bias, learn), results in mine.items():
            assert difference(results, oracle(bias, learn)) < 1e-12, (name, bias, learn)


class BiasOnEveryRank(RowLinear):
    def forward(self, x):
        return reduce_from(nn.functional.linear(x, self.weight, self.bias), self.comm)


class BiasOfMyTokens(RowLinear):
    def _bias(self):
        return self.bias


class WithoutF(ColumnLinear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


@pytest.mark.parametrize(
    ("first", "second", "sequence"),
    [
        (ColumnLinear, BiasOnEveryRank, False),
        (WithoutF, RowLinear, False),
        (ColumnLinear, BiasOfMyTokens, True),
    ],
)
def test_a_mistake_is_found(first, second, sequence):
    def program(comm, first, second):
        some = dict(comm=comm, sequence=sequence, **WIDE)
        layers = first(INPUTS, OUTPUTS, name="0", **some), second(OUTPUTS, INPUTS, name="1", **some)
        nn.init.ones_(layers[1].bias)
        return found(layers, batch(INPUTS), comm, sequence)

    right, wrong = (
        World(3).run(program, *layers)[1] for layers in ((ColumnLinear, RowLinear), (first, second))
    )
    assert difference(right, wrong) > 1e-3


def test_one_all_reduce_each():
    """Column: nothing forward, one all-reduce backward. Row: one forward, nothing backward."""

    def program(comm, layer, width, backward):
        y = layer(12, 12, comm)(torch.ones(2, width, requires_grad=True))
        if backward:
            y.sum().backward()

    sent = lambda *args: World(3).run(program, *args).trace.messages(0)
    assert (sent(ColumnLinear, 12, False), sent(ColumnLinear, 12, True)) == (0, 4)
    assert (sent(RowLinear, 4, False), sent(RowLinear, 4, True)) == (4, 4)


def test_initial_values_are_cut_out_of_the_whole():
    def program(comm):
        made = [
            layer(5, 7, comm, seed=3, name="a.b", **WIDE) for layer in (ColumnLinear, RowLinear)
        ]
        return [(m.weight.detach(), m.bias.detach()) for m in made]

    whole = initial(3, "a.b.weight", (7, 5))
    for n in (1, 2, 3, 4, 8):
        columns, rows = zip(*World(n).run(program), strict=True)
        assert torch.equal(torch.cat([w for w, _ in columns]), whole)
        assert torch.equal(torch.cat([w for w, _ in rows], 1), whole)
        assert all(b.shape == (7,) for _, b in rows) and sum(len(b) for _, b in columns) == 7


def test_a_meta_layer_has_no_numbers():
    def program(comm):
        layer = ColumnLinear(51200, 12288, comm, gather_output=True)
        return layer.weight.device.type, layer(torch.empty(2, 51200, device="meta")).shape

    assert World(4, device="meta").run(program) == [("meta", (2, 12288))] * 4


def test_autocast_lowers_the_same():
    def program(comm):
        column, row = ColumnLinear(4, 4, comm), RowLinear(4, 4, comm)
        with torch.autocast("cpu", torch.bfloat16):
            return [y.dtype for y in (column(torch.ones(2, 4)), row(torch.ones(2, 2)))]

    assert World(2).run(program) == [[torch.bfloat16] * 2] * 2


def test_bad_input():
    with pytest.raises(ValueError, match="add up to 9, not to 10"):
        World(2).run(lambda comm: ColumnLinear(4, 10, comm, sizes=[5, 4]))
    with pytest.raises(ValueError, match="3 sizes were given for 2 ranks"):
        World(2).run(lambda comm: RowLinear(10, 4, comm, sizes=[5, 4, 1]))
    with pytest.raises(ValueError, match="sequence=False, regather=True"):
        World(2).run(lambda comm: ColumnLinear(4, 10, comm, regather=True))
    with pytest.raises(
        ValueError, match="7 rows do not split over 2 ranks: 7 is not a multiple of 2"
    ):
        World(2).run(
            lambda comm: RowLinear(4, 4, comm, input_is_split=False, sequence=True)(
                data(7, 4).float()
            )
        )
