"""Tensor-parallel blocks are the serial ones: outputs, every gradient, messages, and what they keep."""

import functools
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist import models
from minidist.collectives import all_to_all, broadcast_, reduce_
from minidist.comm import World, launch
from minidist.comm.cluster import Cluster, Device
from minidist.models import GPT, MLP, TransformerLayer, initial, seeded_
from minidist.parallel.data import DataParallel
from minidist.parallel.tensor import (
    ColumnLinear,
    RowFirstMLP,
    RowLinear,
    SequenceNorm,
    TensorDropout,
    conjugate,
    copy_to,
    gather_from,
    gather_sequence,
    linear_on_gathered,
    reduce_from,
    reduce_scatter_sequence,
    scatter_to,
    seed_group_,
    shard,
    split_random,
    summed,
    tensor_parallel_,
    unshard,
)
from minidist.split import Cut, cuts, uneven
from minidist.study import predict
from tests.largest import largest
from tests.parallel.tensor_cases import (
    EVERYWHERE,
    HIDDEN,
    RUNS,
    WIDE,
    batch,
    data,
    difference,
    found,
    serial,
    tensor_attention,
    tensor_layer,
    tensor_mlp,
)
from tests.size import FULL
from tests.study.predict.saved import saved_layer

# 12 heads over 2, 3 and 4 ranks; over 5, and 5 heads over any, uneven; 1 group leaves ranks without heads
LAYERS = {
    "heads": (HIDDEN, 12, None),
    "groups": (HIDDEN, 12, 4),
    "one group": (HIDDEN, 12, 1),
    "uneven": (20, 5, None),
    "uneven groups": (20, 10, 5),
}
LAYER_SPLITS = {
    "whole": {},
    "sequence": dict(sequence=True),
    "regather": dict(sequence=True, regather=True),
}


def oracle_layer(name, **options):
    hidden, heads, groups = LAYERS[name]
    make = functools.partial(TransformerLayer, hidden, heads, kv_heads=groups, **options, **WIDE)
    return serial(make, batch(hidden), count=2)


def layers_layer(comm, name, count=2, make=tensor_layer, **options):
    hidden, heads, groups = LAYERS[name]
    return [make(hidden, heads, comm, kv_heads=groups, **options, **WIDE) for _ in range(count)]


def every_layer(comm):
    return {
        (name, split): found(
            layers_layer(comm, name, **options), batch(LAYERS[name][0]), comm, "sequence" in options
        )
        for name in LAYERS
        for split, options in LAYER_SPLITS.items()
        if split == "whole" or name in ("heads", "uneven groups")
    }


@functools.cache
def oracles():
    return {name: oracle_layer(name) for name in LAYERS}


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_the_serial_layer(run, n):
    for mine in RUNS[run](n, every_layer):
        for (name, split), results in mine.items():
            assert difference(results, oracles()[name]) < 1e-12, (name, split)


@pytest.mark.parametrize(
    "options",
    [
        dict(attention="explicit"),
        dict(gelu="none"),
        dict(rotary=True),
        dict(gated=True, ffn=13),
        dict(ffn=2, rotary=True, theta=100.0),
    ],
)
def test_other_options(options):
    for mine in World(3).run(
        lambda comm: found(layers_layer(comm, "groups", **options), batch(), comm)
    ):
        assert difference(mine, oracle_layer("groups", **options)) < 1e-12


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("split", LAYER_SPLITS)
def test_layers_without_biases_and_with_another_norm(split, norm):
    """As in a LLaMA; eps is large enough to be seen."""
    options = dict(bias=False, norm=norm, eps=0.1, gated=True)
    split = LAYER_SPLITS[split]
    for mine in World(3).run(
        lambda comm: found(
            layers_layer(comm, "groups", **options, **split), batch(), comm, "sequence" in split
        )
    ):
        assert difference(mine, oracle_layer("groups", **options)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("split", ["whole", "regather"])
def test_dtypes(dtype, split):
    """Every result is as near to float64's as its dtype allows: a few hundred roundings of its largest number."""
    options = LAYER_SPLITS[split]

    def program(comm):
        block = [tensor_layer(HIDDEN, 12, comm, **options, dtype=dtype)]
        y, grads = found(block, batch().to(dtype), comm, bool(options))
        return y.dtype, y.double(), {name: g.double() for name, g in grads.items()}

    expected, gradients = serial(functools.partial(TransformerLayer, HIDDEN, 12, **WIDE), batch())
    bound = 300 * torch.finfo(dtype).eps
    for kind, y, grads in World(3).run(program):
        assert kind == dtype and (y - expected).abs().max() < bound
        assert all(
            (grads[name] - g).abs().max() < bound * largest(1, g.abs().max())
            for name, g in gradients.items()
        )


class LayerWithoutF(MLP):
    def forward(self, x):
        self.fc.forward = lambda x: torch.nn.functional.linear(x, self.fc.weight, self.fc.bias)
        return super().forward(x)


class AloneNorm(SequenceNorm):
    forward = torch.nn.LayerNorm.forward


def test_mistakes_are_found():
    def program(comm, plant, **options):
        made = layers_layer(comm, "heads", **options)
        for layer in made:
            if plant:
                layer.__dict__["_modules"][plant[0]].__class__ = plant[1]
        return found(made, batch(), comm, "sequence" in options)

    for plant, options in [
        (("mlp", LayerWithoutF), {}),
        (("norm_2", AloneNorm), LAYER_SPLITS["sequence"]),
    ]:
        right, wrong = (World(2).run(program, which, **options)[1] for which in (None, plant))
        assert (
            difference(right, oracles()["heads"]) < 1e-12
            and difference(wrong, oracles()["heads"]) > 1e-3
        )


def counted_layer(program, n=4, **options):
    """Messages and bytes that rank 0 sends in forward, and in both."""
    traces = [World(n).run(program, backward, **options).trace for backward in (False, True)]
    return [(trace.messages(0), trace.bytes_sent(0)) for trace in traces]


def block_program(comm, backward, make, **options):
    block = make(HIDDEN, comm=comm, **options)
    x = torch.ones(
        2, 60 // (comm.size if options.get("sequence") else 1), HIDDEN, requires_grad=True
    )
    y = block(x)
    if backward:
        y.sum().backward()


N = 2 * 60 * HIDDEN * 4  # bytes of the whole data between blocks
RING = 2 * (4 - 1)  # messages of an all-reduce


@pytest.mark.parametrize("make", [tensor_mlp, functools.partial(tensor_attention, heads=12)])
def test_a_block_has_one_all_reduce_forward_and_one_backward(make):
    assert counted_layer(block_program, make=make) == [
        (RING, RING * N // 4),
        (2 * RING, 2 * RING * N // 4),
    ]


def test_a_layer_has_two_and_two():
    make = functools.partial(tensor_layer, heads=12)
    forward, both = counted_layer(block_program, make=make)
    assert forward == (2 * RING, 2 * RING * N // 4) and both == (4 * RING, 4 * RING * N // 4)


def test_sequence_parallel_sends_the_same_bytes_of_activations():
    """An all-gather and a reduce-scatter are an all-reduce; the vectors' gradients come on top."""
    make = functools.partial(tensor_layer, heads=12)
    whole, split = (
        counted_layer(block_program, make=make, sequence=sequence) for sequence in (False, True)
    )
    vectors = RING * 6 * HIDDEN * 4 // 4  # two norms' weights and biases, two biases of RowLinear
    assert split[0] == whole[0]
    assert split[1] == (whole[1][0] + 4 * RING, whole[1][1] + vectors)


def test_rows_first_sums_once_more():
    forward, both = counted_layer(block_program, make=RowFirstMLP)
    assert forward == (2 * RING, RING * (4 * N + N) // 4)
    assert both == (3 * RING, int(1.5 * RING) * (4 * N + N) // 4)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_rows_first_is_the_serial_mlp_too(n):
    for mine in World(n).run(
        lambda comm: found([RowFirstMLP(HIDDEN, comm, **WIDE)], batch(), comm)
    ):
        assert difference(mine, serial(lambda: MLP(HIDDEN, 0.0, "tanh", **WIDE), batch())) < 1e-12


def hybrid(comm):
    """Two copies of a layer on two ranks each: gradients of this rank's part, after the average of the copies."""
    tensor, copies = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    model = DataParallel(torch.nn.Sequential(*layers_layer(tensor, "heads", count=1)), copies)
    (model(batch()[copies.rank :][:1]) * batch(seed=1)[copies.rank :][:1]).sum().backward()
    return (
        {name: p.grad for name, p in model.module.named_parameters()},
        cuts(model.module),
        tensor.rank,
    )


def test_within_data_parallelism():
    whole = serial(functools.partial(TransformerLayer, HIDDEN, 12, **WIDE), batch())[1]
    for grads, how, rank in World(4).run(hybrid):
        for name, grad in grads.items():
            mine = how[name].part(whole[name], rank) if name in how else whole[name]
            assert (2 * grad - mine).abs().max() < 1e-12, name


def by_dtensor(comm, store):
    """Our layer, and PyTorch's DTensor."""
    import torch.distributed as dist
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    dist.init_process_group(
        "gloo", store=dist.FileStore(store, comm.size), rank=comm.rank, world_size=comm.size
    )
    theirs = seeded_(TransformerLayer(HIDDEN, 12, kv_heads=4, **WIDE))
    theirs.attention.groups //= comm.size
    parallelize_module(
        theirs,
        dist.init_device_mesh("cpu", (comm.size,)),
        {
            "attention.qkv": ColwiseParallel(),
            "attention.proj": RowwiseParallel(),
            "mlp.fc": ColwiseParallel(),
            "mlp.proj": RowwiseParallel(),
        },
    )
    x = batch().requires_grad_()
    (theirs(x) * batch(seed=1)).sum().backward()
    grads = {
        name: getattr(p.grad, "to_local", lambda g=p.grad: g)()
        for name, p in theirs.named_parameters()
    }
    ours, again = layers_layer(comm, "groups", count=1)[0], batch().requires_grad_()
    (ours(again) * batch(seed=1)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()
    return [(p.grad - grads[name]).abs().max().item() for name, p in ours.named_parameters()] + [
        (x.grad - again.grad).abs().max().item()
    ]


def test_as_dtensor_does(tmp_path):
    assert largest(map(max, launch(by_dtensor, 2, str(tmp_path / "store"), timeout=60))) < 1e-12


def test_layer_bad_input():
    with pytest.raises(ValueError, match="5 heads do not split hidden = 24"):
        World(2).run(lambda comm: tensor_layer(24, 5, comm))
    with pytest.raises(ValueError, match="5 heads of keys and values do not serve 12 heads"):
        World(2).run(lambda comm: tensor_layer(24, 12, comm, kv_heads=5))
    with pytest.raises(ValueError, match="it needs sequence=True, not False"):
        World(2).run(lambda comm: tensor_layer(24, 12, comm, regather=True))


# ------------------------------------------------------------
# Norms and dropouts on whole data and on a part of the sequence.


AROUND_HIDDEN = 24


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_a_norm_of_parts_of_the_sequence(run, n):
    oracle = found([torch.nn.LayerNorm(AROUND_HIDDEN, **WIDE)], batch())
    for mine in RUNS[run](
        n, lambda comm: found([SequenceNorm(AROUND_HIDDEN, comm, **WIDE)], batch(), comm, True)
    ):
        assert difference(mine, oracle) < 1e-12


def test_its_gradients_travel_in_one_message():
    def program(comm):
        SequenceNorm(AROUND_HIDDEN, comm)(torch.ones(2, 3, AROUND_HIDDEN)).sum().backward()

    trace = World(3).run(program).trace
    assert trace.messages(0) == 2 * 2 and trace.bytes_sent() == 2 * 2 * 2 * AROUND_HIDDEN * 4


def dropped(comm, split, train=True):
    seed_group_(comm, 3)
    drop, x = TensorDropout(0.25, comm, split).train(train), torch.ones(40, 300).requires_grad_()
    y = drop(x)
    y.sum().backward()
    assert torch.equal(x.grad, y)  # what is dropped has no gradient, what is kept 4/3
    return y.detach()


def test_dropout():
    for split in (False, True):
        a, b = World(2).run(dropped, split)
        assert torch.equal(a, b) is not split
        assert a.unique().tolist() == pytest.approx([0, 4 / 3])
        assert (a == 0).float().mean() == pytest.approx(0.25, abs=0.01)
        if split:  # independent: together they drop a 16th
            assert ((a == 0) & (b == 0)).float().mean().item() == pytest.approx(1 / 16, abs=0.01)
    assert all(bool((y == 1).all()) for y in World(2).run(dropped, True, False))


def test_dropout_of_whole_and_split_data_in_turn():
    """What ranks draw for split data in between does not part them."""

    def program(comm):
        seed_group_(comm, 3)
        whole, split = (TensorDropout(0.5, comm, which) for which in (False, True))
        x = torch.ones(4, 60)
        x = gather_from(split(scatter_to(whole(x), comm, 1)), comm, 1)
        return whole(x)

    first, *others = World(3).run(program)
    assert all(torch.equal(first, other) for other in others)


# ------------------------------------------------------------
# The formulas say what the blocks send, byte for byte; neither is computed from the other.


BATCH = 2
TOKENS = 60
COST_HIDDEN = 20  # 10 heads, and 4H over 3 ranks, are uneven


def block_bytes(n, batch, tokens, hidden, itemsize, sequence=False, regather=False):
    """Half a layer without its norms."""
    sizes = n, batch, tokens, hidden, itemsize
    forward, backward = predict.tensor_layer_bytes(*sizes, sequence, regather)
    norms = (n - 1) * sequence * 2 * 4 * hidden * itemsize
    return forward // 2, (backward - norms) // 2


def row_first_bytes(n, batch, tokens, hidden, itemsize):
    whole = batch * tokens * hidden * itemsize
    return (n - 1) * 10 * whole, (n - 1) * 5 * whole


BLOCKS = {
    "mlp": (tensor_mlp, block_bytes),
    "attention": (functools.partial(tensor_attention, heads=10), block_bytes),
    "layer": (
        functools.partial(tensor_layer, heads=10, kv_heads=5),
        predict.tensor_layer_bytes,
    ),
    "row first": (RowFirstMLP, row_first_bytes),
}
COST_SPLITS = [{}, dict(sequence=True), dict(sequence=True, regather=True)]


def sent(n, make, backward, dtype, **options):
    def program(comm):
        tokens = TOKENS // (comm.size if options else 1)
        x = torch.ones(BATCH, tokens, COST_HIDDEN, dtype=dtype, requires_grad=True)
        y = make(COST_HIDDEN, comm=comm, dtype=dtype, **options)(x)
        if backward:
            y.sum().backward()

    return World(n).run(program).trace.bytes_sent()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_bytes(n, figure):
    dtype = torch.float64 if n % 2 else torch.bfloat16
    for name, (make, formula) in BLOCKS.items():
        for options in COST_SPLITS[: 1 if name == "row first" else 3]:
            forward, backward = formula(n, BATCH, TOKENS, COST_HIDDEN, dtype.itemsize, **options)
            total = forward + backward
            assert sent(n, make, True, dtype, **options) == total, (name, options)
            how = ", ".join([name, *options])
            figure(f"n={n}, {how}: {total:,} bytes sent, as by formula")
            assert n != 3 or sent(n, make, False, dtype, **options) == forward, (name, options)


def test_the_ways_compared():
    """Column first sends 4/15 of what rows first do; a sequence split sends the same activations."""
    sizes = 4, 8, 128, 512, 2
    column, rows = block_bytes(*sizes), row_first_bytes(*sizes)
    assert 15 * sum(column) == 4 * sum(rows) and column[0] == column[1]
    split, whole = (predict.tensor_layer_bytes(*sizes, sequence) for sequence in (True, False))
    assert split[0] == whole[0] and split[1] - whole[1] == 2 * 3 * 6 * 512 * 2


# ------------------------------------------------------------
# Both splits of a linear layer are the serial one: outputs, every gradient, initial values, for sizes that hurt.


INPUTS, OUTPUTS = 7, 10  # n = 3, 4 and 5 divide at most one of them


class Gathered(nn.Module):
    def __init__(self, comm, width):
        super().__init__()
        self.comm, self.sizes = comm, uneven(width, comm.size)

    def forward(self, x):
        return gather_from(x, self.comm, -1, self.sizes)


class Scattered(Gathered):
    def forward(self, x):
        return scatter_to(x, self.comm, -1, self.sizes)


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
            column(comm, name="0", **o),
            Gathered(comm, OUTPUTS),
            Scattered(comm, OUTPUTS),
            row(comm, name="1", **o),
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
        (name, learn): numbered(
            found(make(comm, **WIDE), batch(INPUTS), comm, sequence, learn), name
        )
        for name, (make, sequence) in PAIRS.items()
        for learn in (True, False)
    }


def numbered(result, name):
    """What `found` gives, with the second layer called "1", also where other modules stand between."""
    y, grads = result
    last = "3." if name == "gathered between" else "1."
    return y, {k.replace(last, "1."): g for k, g in grads.items()}


@functools.cache
def oracle_linear(learn):
    layers = nn.Linear(INPUTS, OUTPUTS, **WIDE), nn.Linear(OUTPUTS, INPUTS, **WIDE)
    return found(seeded_(nn.Sequential(*layers)), batch(INPUTS), learn=learn)


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_the_serial_layers(run, n):
    for mine in RUNS[run](n, every_pair):
        for (name, learn), results in mine.items():
            assert difference(results, oracle_linear(learn)) < 1e-12, (name, learn)


class BiasOnEveryRank(RowLinear):
    def forward(self, x):
        return reduce_from(nn.functional.linear(x, self.weight, self.bias), self.comm)


class BiasOfMyTokens(RowLinear):
    def forward(self, x):
        y = reduce_scatter_sequence(nn.functional.linear(x, self.weight), self.comm)
        return y + self.bias


class LinearWithoutF(ColumnLinear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


@pytest.mark.parametrize(
    ("first", "second", "sequence"),
    [
        (ColumnLinear, BiasOnEveryRank, False),
        (LinearWithoutF, RowLinear, False),
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
        layer = ColumnLinear(51200, 12288, comm)
        return layer.weight.device.type, layer(torch.empty(2, 51200, device="meta")).shape

    assert World(4, device="meta").run(program) == [("meta", (2, 3072))] * 4


def test_autocast_lowers_the_same():
    def program(comm):
        column, row = ColumnLinear(4, 4, comm), RowLinear(4, 4, comm)
        with torch.autocast("cpu", torch.bfloat16):
            return [y.dtype for y in (column(torch.ones(2, 4)), row(torch.ones(2, 2)))]

    assert World(2).run(program) == [[torch.bfloat16] * 2] * 2


def test_linear_bad_input():
    with pytest.raises(ValueError, match="add up to 9, not to 10"):
        World(2).run(lambda comm: ColumnLinear(4, 10, comm, sizes=[5, 4]))
    with pytest.raises(ValueError, match="3 sizes were given for 2 ranks"):
        World(2).run(lambda comm: RowLinear(10, 4, comm, sizes=[5, 4, 1]))
    with pytest.raises(ValueError, match="it needs sequence=True, not False"):
        World(2).run(lambda comm: ColumnLinear(4, 10, comm, regather=True))
    with pytest.raises(
        ValueError, match="7 rows do not split over 2 ranks: 7 is not a multiple of 2"
    ):
        World(2).run(lambda comm: RowLinear(4, 4, comm, sequence=True)(data(7, 2).float()))


# ------------------------------------------------------------
# What tensor-parallel layers keep for backward, as the meter counts it.


def step(comm, count, sequence=False, regather=False):
    """A step of `count` layers, with dropout-free data (8, 240, 96) on the meta device."""
    blocks = [
        tensor_layer(96, 12, comm, sequence=sequence, regather=regather) for _ in range(count)
    ]
    x = torch.empty(8, 240 // (comm.size if sequence else 1), 96, device="meta", requires_grad=True)
    for block in blocks:
        x = block(x)
    x.sum().backward()


NUMBERS = 24  # bytes that the fused attention keeps to draw its random numbers again


@functools.cache
def kept(n, *args):
    """Bytes of activations of rank 0 at its peak, for one layer more."""
    most = [
        World(n, cluster=Cluster.dgx_h100(), device="meta")
        .run(step, count, *args)
        .trace.memory[0]
        .at_peak
        for count in (1, 2)
    ]
    return most[1]["activations"] - most[0]["activations"]


@pytest.mark.parametrize("n", [2, 3, 4] if FULL else [2, 3])
def test_what_is_kept_between_blocks_is_divided(n, figure):
    """Whole: two norms' inputs and outputs. Split between blocks: their inputs are. Regathered: everything is."""
    serial_layer, data = kept(1) - NUMBERS, 8 * 240 * 96 * 4
    statistics = 2 * 2 * 8 * 240 * 4  # mean and deviation of two norms
    inside = serial_layer - 4 * data - statistics
    assert kept(n) - NUMBERS == 4 * data + statistics + inside // n
    assert kept(n, True) - NUMBERS == 2 * data + (2 * data + statistics + inside) // n
    assert kept(n, True, True) - NUMBERS == serial_layer // n
    figure(
        f"activations of a layer, n={n}: alone {kept(1):,}, split {kept(n):,}, sequence {kept(n, True):,}, "
        f"regathered {kept(n, True, True):,} B"
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_as_the_calculator_of_memory_says(n):
    """The calculator knows nothing of these layers; its sequence parallelism is the paper's, which gathers again."""
    model = predict.Transformer(layers=1, hidden=96, heads=12, vocab=1, context=240)
    for split in (False, True):
        said = saved_layer(model, 8, dtype=torch.float32, device="meta", tensor=n, sequence=split)
        assert kept(n, split, split) == said.total


# ------------------------------------------------------------
# Each operator is linear, its backward is its transpose, and the backward of that is itself again.


OPERATORS_F = 11  # no n divides it
OPERATORS = {  # what goes in, what comes out: "whole", "split" or "partial"
    copy_to: ("whole", "partial"),  # each rank uses it for its own part
    reduce_from: ("partial", "whole"),
    scatter_to: ("whole", "split"),
    gather_from: ("split", "whole"),
    gather_sequence: ("split", "partial"),
    reduce_scatter_sequence: ("partial", "split"),
}


def sample(kind, comm, dim, seed):
    """This rank's (3, 11, 2) of a tensor of that kind, or its part of it."""
    x = data(
        3, OPERATORS_F, 2, seed=seed + (100 * (comm.rank + 1) if kind == "partial" else 0)
    ).transpose(1, dim)
    return x.split(uneven(OPERATORS_F, comm.size), dim)[comm.rank].clone() if kind == "split" else x


def inner(x, y, kind):
    """This rank's part of the inner product; what is whole counts once, on the first rank."""
    return (x * y).sum().item(), kind


def every_operator(comm):
    """{operator, dim: (⟨A·x, y⟩, ⟨x, Aᵀ·y⟩, ⟨x, backward of the backward⟩ of this rank)}."""
    results = {}
    for operator, (before, after) in OPERATORS.items():
        for dim in (0, 1, 2):
            along = (
                () if operator in (copy_to, reduce_from) else (dim, uneven(OPERATORS_F, comm.size))
            )
            x = sample(before, comm, dim, 0).requires_grad_()
            y = sample(after, comm, dim, 1).requires_grad_()
            kept = x.detach().clone()
            out = operator(x, comm, *along)
            assert out.shape == y.shape and torch.equal(x, kept)
            (back,) = torch.autograd.grad(out, x, y, create_graph=True)
            (twice,) = torch.autograd.grad(back, y, x.detach())
            results[operator.__name__, dim] = (
                inner(out, y, after),
                inner(x, back, before),
                inner(twice, y, after),
            )
    return results


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_the_backward_is_the_transpose(run, n):
    ranks = RUNS[run](n, every_operator)
    for case in ranks[0]:
        sums = [
            sum(
                of_rank[case][i][0]
                for of_rank in ranks[: 1 if ranks[0][case][i][1] == "whole" else n]
            )
            for i in range(3)
        ]
        assert max(sums) - min(sums) < 1e-12 * largest(1, abs(sums[0])), (case, sums)


def transposed(comm):
    """The products of differentiable collectives and of their gradients, as `conjugate` makes them."""
    pieces = [1 + comm.rank, 2]  # rows for rank 0 and 1
    back = [1, 2] if comm.rank == 0 else [2, 2]  # rows from rank 0 and 1

    def from_root(xs, comm):
        return [broadcast_(comm, x.clone(), 1) for x in xs]

    def to_root(xs, comm):
        return [reduce_(comm, x.clone(), 1) * (comm.rank == 1) for x in xs]

    def there(xs, comm):
        return [all_to_all(comm, xs[0], pieces, back)]

    def again(xs, comm):
        return [all_to_all(comm, xs[0], back, pieces)]

    results = {}
    for name, forward, backward, rows in [
        ("all-reduce", summed, summed, (5, 5)),
        ("broadcast", from_root, to_root, (5, 5)),
        ("all-to-all", there, again, (sum(pieces), sum(back))),
    ]:
        x = data(rows[0], 3, seed=comm.rank).requires_grad_()
        y = data(rows[1], 3, seed=10 + comm.rank).requires_grad_()
        out = conjugate(x, forward, backward, comm)
        (gradient,) = torch.autograd.grad(out, x, y, create_graph=True)
        (twice,) = torch.autograd.grad(gradient, y, x.detach())
        results[name] = [(a * b).sum().item() for a, b in ((out, y), (x, gradient), (twice, y))]
    return results


@pytest.mark.parametrize("run", RUNS)
def test_differentiable_collectives(run):
    first, second = RUNS[run](2, transposed)
    for name in first:
        there, back, twice = (a + b for a, b in zip(first[name], second[name], strict=True))
        assert abs(there - back) < 1e-12 and abs(there - twice) < 1e-12, name


def test_a_module_with_values_keeps_this_ranks_part():
    """Also what is frozen stays frozen; and every block in a larger module is split."""
    whole = seeded_(nn.ModuleList(TransformerLayer(20, 10, **WIDE) for _ in range(2)), 4)
    whole[1].mlp.fc.weight.requires_grad_(False)
    state = whole.state_dict()

    def program(comm, whole):
        split = tensor_parallel_(whole, comm, sequence=True)
        assert not split[1].mlp.fc.weight.requires_grad and split[0].mlp.fc.weight.requires_grad
        return unshard(split, comm)

    for n in (1, 3):
        for back in World(n).run(program, whole):
            assert all(torch.equal(back[name], x) for name, x in state.items())


def test_forward():
    def program(comm):
        x = data(4, 6) + comm.rank
        return (
            copy_to(x, comm),
            reduce_from(x, comm),
            scatter_to(x, comm),
            gather_from(x, comm, 0),
            gather_sequence(x, comm, 0),
            reduce_scatter_sequence(x, comm, 0),
        )

    a, b = data(4, 6), data(4, 6) + 1
    for rank, mine in enumerate(World(2).run(program)):
        own = (a, b)[rank]
        both = torch.cat([a, b])
        expected = (
            own,
            a + b,
            own[:, 3 * rank : 3 * rank + 3],
            both,
            both,
            (a + b)[2 * rank : 2 * rank + 2],
        )
        assert all(torch.equal(x, y) for x, y in zip(mine, expected, strict=True))


def test_messages():
    """Where an operator sends, its conjugate does not, and the two halves send half each."""

    def program(comm, operator, backward):
        x = data(4, 6).requires_grad_()
        y = operator(x, comm) if operator in (copy_to, reduce_from) else operator(x, comm, 0)
        if backward:
            y.sum().backward()

    whole, sent = 4 * 6 * 8, {}
    for operator in OPERATORS:
        forward, both = (
            World(2).run(program, operator, backward).trace.bytes_sent()
            for backward in (False, True)
        )
        sent[operator] = forward / whole, (both - forward) / whole
    # its x is a part
    assert sent == {
        copy_to: (0, 2),
        reduce_from: (2, 0),
        scatter_to: (0, 1),
        gather_from: (2, 0),
        gather_sequence: (2, 2),
        reduce_scatter_sequence: (1, 1),
    }


def test_lists_travel_together():
    def program(comm):
        xs = [data(3).requires_grad_(), data(2, 2, seed=1).requires_grad_()]
        ys = reduce_from(copy_to(xs, comm), comm)
        sum(y.sum() for y in ys).backward()
        return ys, [x.grad for x in xs]

    results = World(3).run(program)
    assert results.trace.messages(0) == 2 * 4  # two all-reduces, however many tensors
    ys, grads = results[1]
    assert torch.allclose(ys[1], 3 * data(2, 2, seed=1)) and torch.equal(
        grads[0], torch.full((3,), 3.0).double()
    )


def test_gradients_of_others_are_left_alone():
    """An incoming gradient may have other readers, later ones, too, so it must not be summed in place."""

    def program(comm):
        x, other = data(3).requires_grad_(), data(3).requires_grad_()
        later = other * 1  # its backward comes after that of what is made after it
        (copy_to(x, comm) + later).backward(torch.ones(3).double())
        return x.grad, other.grad

    for grad, others in World(2).run(program):
        assert grad.tolist() == [2, 2, 2] and others.tolist() == [1, 1, 1]


def test_operands_of_others_are_left_alone():
    def program(comm):
        x = data(3)
        return reduce_from(x, comm), x

    for total, x in World(2).run(program):
        assert torch.equal(x, data(3)) and torch.equal(total, 2 * data(3))


def test_a_part_does_not_hold_the_whole():
    def program(comm):
        x = data(4, 6).requires_grad_()
        y = gather_from(x, comm, 0)
        y.backward(torch.ones_like(y))
        parts = [scatter_to(x, comm, 0), reduce_scatter_sequence(x, comm, 0), x.grad]
        return [part.untyped_storage().nbytes() / (6 * 8) for part in parts]

    assert World(2).run(program) == [[2, 2, 4]] * 2


@pytest.mark.parametrize("operator", [scatter_to, reduce_scatter_sequence])
def test_sizes_that_do_not_fit(operator):
    with pytest.raises(
        ValueError, match="10 rows do not split over 4 ranks: 10 is not a multiple of 4"
    ):
        World(4).run(lambda comm: operator(data(3, 10, 2), comm, 1))
    with pytest.raises(ValueError, match="add up to 9, not to 10"):
        World(4).run(lambda comm: operator(data(3, 10, 2), comm, 1, [3, 2, 2, 2]))


def test_parts_that_differ_must_be_announced():
    with pytest.raises(ValueError, match=r"sends \(2,\) float64(.|\n)*receives \(3,\)"):
        World(2).run(lambda comm: gather_from(data(3 - comm.rank), comm))


# ------------------------------------------------------------
# Weights taken apart and put together again are the serial model's, for every n, also where sizes are uneven.


# 5 groups and 80 features: 2, 3 and 4 ranks get uneven parts
SHAPE = dict(hidden=20, heads=10, kv_heads=5)


def there_and_back(comm, state):
    """A serial state dict through the ranks, and how many numbers this rank had of it."""
    layer = tensor_layer(20, 10, comm, kv_heads=5, seed=9, **WIDE)
    mine = shard(state, layer, comm)
    layer.load_state_dict(mine)
    del state, mine
    return (
        unshard(layer, comm),
        sum(p.numel() for p in layer.parameters()),
        layer(batch(20)).detach(),
    )


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_apart_and_together(run, n):
    serial = seeded_(TransformerLayer(**SHAPE, **WIDE), 4)
    state, expected = serial.state_dict(), serial(batch(20)).detach()
    ranks = RUNS[run](n, there_and_back, state)
    vectors = 6 * 20  # whole on every rank
    numbers = sum(p.numel() for p in serial.parameters()) - vectors
    assert sum(count - vectors for _, count, _ in ranks) == numbers
    for back, _, y in ranks:
        assert list(back) == list(state) and all(torch.equal(back[k], state[k]) for k in state)
        assert (y - expected).abs().max() < 1e-12


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("sequence", [False, True])
def test_initial_values_are_the_serial_ones(n, sequence):
    """As layer 1 of a GPT, by name."""

    def program(comm):
        model = nn.ModuleDict(
            {
                "layers": nn.ModuleList(
                    tensor_layer(
                        20, 10, comm, kv_heads=5, sequence=sequence, seed=4, name=f"layers.{i}"
                    )
                    for i in range(2)
                )
            }
        )
        return unshard(model, comm)

    serial = seeded_(GPT(2, vocab=7, context=3, **SHAPE), 4).state_dict()
    for mine in World(n).run(program):
        assert len(mine) == 24 and all(torch.equal(x, serial[name]) for name, x in mine.items())
        assert not torch.equal(mine["layers.0.mlp.fc.weight"], mine["layers.1.mlp.fc.weight"])


def test_a_module_may_be_given_and_parts_do_not_hold_the_whole():
    def program(comm, serial):
        layer = tensor_layer(20, 10, comm, kv_heads=5, **WIDE)
        mine = shard(serial, layer, comm)
        return [x.untyped_storage().nbytes() == x.nbytes for x in mine.values()], list(mine)

    for own, names in World(2).run(program, TransformerLayer(**SHAPE, **WIDE)):
        assert all(own) and names == list(TransformerLayer(**SHAPE).state_dict())


def test_what_is_put_together_is_the_callers_own():
    def program(comm):
        layer = tensor_layer(20, 10, comm, kv_heads=5, seed=9)
        before = {name: x.clone() for name, x in layer.state_dict().items()}
        for x in unshard(layer, comm).values():
            x.add_(1)
        return [torch.equal(x, before[name]) for name, x in layer.state_dict().items()]

    for n in (1, 2):
        assert all(all(same) for same in World(n).run(program))


def test_cuts():
    def program(comm):
        return cuts(tensor_layer(20, 10, comm, kv_heads=5))

    found = World(4).run(program)[0]
    assert found["mlp.fc.weight"] == found["mlp.fc.bias"] == (0, [20] * 4) and found[
        "mlp.proj.weight"
    ] == (1, [20] * 4)
    assert found["attention.qkv.weight"] == (0, [16, 8, 8, 8]) and found[
        "attention.proj.weight"
    ] == (1, [8, 4, 4, 4])
    assert len(found) == 6


def test_a_cut():
    whole = torch.arange(10).view(2, 5)
    cut = Cut(1, [2, 0, 3])
    assert [cut.part(whole, r).tolist() for r in range(3)] == [
        [[0, 1], [5, 6]],
        [[], []],
        [[2, 3, 4], [7, 8, 9]],
    ]
    assert cut.shape((2, 5, 4), 3) == (2, 3, 4) and Cut(0, []).shape((7,), 2) == (2,)


def test_parts_bad_input():
    def program(comm, change):
        layer = tensor_layer(20, 10, comm, kv_heads=5)
        state = seeded_(TransformerLayer(**SHAPE)).state_dict()
        change(state)
        shard(state, layer, comm)

    def another(shape, state):
        state["mlp.fc.weight"] = torch.zeros(shape)

    with pytest.raises(ValueError, match=r"missing \['norm_1.bias'\], unknown \[\]"):
        World(2).run(program, lambda state: state.pop("norm_1.bias"))
    with pytest.raises(ValueError, match=r"missing \[\], unknown \['more'\]"):
        World(2).run(program, lambda state: state.update(more=torch.zeros(1)))
    with pytest.raises(
        ValueError, match=r"mlp.fc.weight has shape \(80, 20\) here, but \(40, 20\)"
    ):
        World(2).run(program, functools.partial(another, (40, 20)))


def test_processes_start_alike():
    """Seeds belong to names, in every world."""
    weights = launch(
        lambda comm: unshard(tensor_layer(20, 10, comm, kv_heads=5, name="a"), comm)[
            "mlp.fc.weight"
        ],
        2,
    )
    assert torch.equal(weights[0], initial(0, "a.mlp.fc.weight", (80, 20)).float())


@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_is_made_without_the_whole(sequence, monkeypatch):
    """Beside its own parameters a rank holds a block of rows of the whole, 16 of 256 numbers here."""
    monkeypatch.setattr(models, "BLOCK", 1)

    def program(comm):
        layer = tensor_layer(64, 4, comm, sequence=sequence)
        return layer, sum(p.nbytes for p in layer.parameters())

    world = World(3, cluster=Cluster.dgx_h100(), device="cpu")
    own = world.run(program)
    whole = sum(p.nbytes for p in TransformerLayer(64, 4).parameters())
    for rank, (_, nbytes) in enumerate(own):
        assert nbytes <= world.trace.memory[rank].peak <= nbytes + 16 * 256 * 8 < whole


# ------------------------------------------------------------
# Random numbers: the same where data is whole, different where it is split, and again the same when computed again.


def draws(comm):
    """Whole, split, whole, split and whole numbers."""
    seed_group_(comm, 5)
    numbers = []
    for _ in range(2):
        numbers.append(torch.rand(50))
        with split_random(comm):
            numbers.append(torch.rand(50))
    return [*numbers, torch.rand(50)]


@pytest.mark.parametrize("run", RUNS)
def test_same_and_different(run):
    ranks = RUNS[run](3, draws)
    for i, whole in enumerate((True, False, True, False, True)):
        assert all(torch.equal(ranks[0][i], other[i]) is whole for other in ranks[1:])
    everything = torch.cat([torch.cat(ranks[0]), *(torch.cat([r[1], r[3]]) for r in ranks[1:])])
    # no stream is another one's, or its own again
    assert len(everything.unique()) == len(everything) == 9 * 50


def test_what_is_drawn_within_does_not_matter_outside():
    def program(comm, count):
        seed_group_(comm, 5)
        with split_random(comm):
            torch.rand(count)
        return torch.rand(5)

    assert all(
        torch.equal(*pair)
        for pair in zip(World(2).run(program, 1), World(2).run(program, 99), strict=True)
    )


def test_an_exception_leaves_the_numbers_in_order():
    def program(comm, fail):
        seed_group_(comm, 5)
        with suppress(KeyError), split_random(comm):
            if fail:
                raise KeyError("within")
        return torch.rand(3)

    assert torch.equal(World(1).run(program, True)[0], World(1).run(program, False)[0])


def groups(comm):
    """Two groups of two ranks, with a seed each."""
    group = comm.split(comm.rank // 2)
    seed_group_(group, comm.rank // 2)
    return torch.rand(4)


def test_groups():
    a, b, c, d = World(4).run(groups)
    assert torch.equal(a, b) and torch.equal(c, d) and not torch.equal(a, c)


def layers_random(comm, sequence, dropout=0.3, count=2):
    seed_group_(comm, 8)
    return [
        tensor_layer(24, 12, comm, dropout=dropout, sequence=sequence, **WIDE) for _ in range(count)
    ]


@pytest.mark.parametrize("sequence", [False, True])
def test_copies_stay_copies(sequence):
    first, *others = World(3).run(
        lambda comm: found(layers_random(comm, sequence), batch(), comm, sequence)
    )
    assert all(difference(other, first) == 0 for other in others)


def without_attention_dropout(layer):
    layer.attention.weights_dropout.p = 0.0
    return layer


def test_dropout_on_whole_data_is_the_serial_one():
    def program(comm):
        return found(map(without_attention_dropout, layers_random(comm, False)), batch(), comm)

    serial = [
        without_attention_dropout(seeded_(TransformerLayer(24, 12, dropout=0.3, **WIDE)))
        for _ in range(2)
    ]
    torch.manual_seed(8)
    oracle = found(serial, batch())
    for mine in World(3).run(program):
        assert difference(mine, oracle) < 1e-12


class Checkpointed(torch.nn.Module):
    def __init__(self, layer, reentrant):
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_in_another_order(run, sequence, reentrant):
    """Backward computes the last layer's forward again first; each draws what it has drawn before."""

    def program(comm, again):
        blocks = layers_random(comm, sequence, count=3)
        blocks = [Checkpointed(block, reentrant) for block in blocks] if again else blocks
        y, grads = found(blocks, batch(), comm, sequence)
        return y, {name.replace(".layer", ""): g for name, g in grads.items()}

    plain, again = (RUNS[run](2, program, which) for which in (False, True))
    assert largest(map(difference, plain, again)) < 1e-12


def test_heads_drop_different_weights():
    """All heads are made alike, so that only what they drop can differ."""

    def program(comm):
        layer = layers_random(comm, False, count=1)[0].attention
        layer.dropout.p = 0.0
        with torch.no_grad():
            for p in layer.qkv.parameters():
                p.zero_()
            layer.qkv.bias.fill_(1)
            layer.proj.weight.fill_(1)
        kept = {}
        layer.proj.forward = lambda y: kept.setdefault("heads", y)
        layer(torch.ones(1, 20, 24, **WIDE))
        return kept["heads"]

    heads = World(2).run(program)
    assert not torch.equal(*heads) and heads[0].std() > 0.01


def test_a_split_sequence_drops_different_tokens():
    def program(comm):
        layer = layers_random(comm, True, count=1)[0]
        x = torch.ones(1, 400, 24, **WIDE)
        drops = layer.attention.dropout, layer.mlp.dropout
        return [gather_from(drop(scatter_to(x, comm, 1)), comm, 1) for drop in drops]

    for masks in World(2).run(program):
        for mask in masks:
            assert not torch.equal(mask[:, :200], mask[:, 200:])
            assert (mask == 0).double().mean().item() == pytest.approx(0.3, abs=0.02)


def test_without_the_seed_it_is_refused():
    def program(comm, dropout, train):
        layer = tensor_layer(24, 12, comm, dropout=dropout).train(train)
        return layer(torch.ones(1, 2, 24)).shape

    with pytest.raises(ValueError, match="seed_group_"):
        World(2).run(program, 0.1, True)
    assert World(2).run(program, 0.1, False) == World(2).run(program, 0.0, True) == [(1, 2, 24)] * 2


def test_no_dropout_draws_nothing():
    def program(comm, compute):
        seed_group_(comm, 1)
        if compute:
            tensor_layer(24, 12, comm)(torch.ones(1, 2, 24))
            tensor_layer(24, 12, comm, dropout=0.5).eval()(torch.ones(1, 2, 24))
        return torch.rand(3)

    assert torch.equal(World(1).run(program, True)[0], World(1).run(program, False)[0])


# ------------------------------------------------------------
# The layer that gathers once more: the same numbers, on a lane beside the computation, keeping a part alone.


def counted_regather(layer, *args):
    """Its result, and the bytes that it keeps for backward."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.nbytes) or t, lambda t: t
    ):
        return layer(*args), sum(kept)


def both(comm):
    """Results and gradients with it, and with the operator; and the bytes kept by each."""
    results = []
    for layer in (
        linear_on_gathered,
        lambda x, w, b, comm: F.linear(gather_sequence(x, comm), w, b),
    ):
        x, w = (
            data(2, 4, 3, seed=comm.rank).requires_grad_(),
            data(5, 3, seed=9 + comm.rank).requires_grad_(),
        )
        b = data(5, seed=20).requires_grad_()
        y, kept = counted_regather(layer, x, w, b, comm)
        (y * data(*y.shape, seed=30 + comm.rank)).sum().backward()
        results.append(([y, x.grad, w.grad, b.grad], kept))
    return results


def test_as_the_operator_and_a_linear_layer():
    for n in (1, 2, 3):
        for (mine, kept), (theirs, more) in World(n).run(both):
            assert all((a - b).abs().max() < 1e-12 for a, b in zip(mine, theirs, strict=True))
            assert more - kept == (n - 1) * 2 * 4 * 3 * 8


def test_beside_the_computation():
    trace = World(3).run(both).trace
    lanes = [(m.label, m.lane) for m in trace if m.src == 0]
    assert lanes.count(("all-gather", "lane 0")) == 2  # in backward
    assert lanes.count(("all-gather", "main")) == 4 and lanes.count(("reduce-scatter", "main")) == 4


def test_the_second_gather_takes_no_time_beside_a_product():
    """Each message takes a second, and each product: backward is a product, a reduce-scatter and a product."""
    product = 2 * 8 * 32 * 16  # FLOPs: of 8 tokens, 32 inputs, 16 outputs
    device = Device("products take time", {torch.float32: float(product)}, 1 << 30, 1e30)

    def program(comm):
        shapes = (4, 32), (16, 32), (16,)
        args = [torch.zeros(*shape, device="meta", requires_grad=True) for shape in shapes]
        y = linear_on_gathered(*args, comm)
        start = comm.now()
        y.backward(torch.empty_like(y))
        return comm.now() - start

    world = World(2, cluster=Cluster.uniform(2, 1.0, 1e-30, device), device="meta")
    assert world.run(program) == pytest.approx([3, 3], rel=1e-6)


def test_what_needs_no_gradient_is_not_computed():
    def program(comm, *learn):
        shapes = (2, 3), (4, 3), (4,)
        args = [
            data(*shape).requires_grad_(wanted) for shape, wanted in zip(shapes, learn, strict=True)
        ]
        linear_on_gathered(*args, comm).sum().backward()
        return [arg.grad is not None for arg in args]

    messages = []
    for learn in [(True, True, True), (True, False, True), (False, True, False)]:
        ranks = World(2).run(program, *learn)
        assert ranks == [list(learn)] * 2
        messages.append(ranks.trace.messages(0))
    assert messages == [3, 2, 2]  # the gather of forward; of x's gradient, of the weight's


def test_autocast():
    def program(comm):
        with torch.autocast("cpu", torch.bfloat16):
            (mine, _), (theirs, _) = both(comm)
        return [
            (a.dtype == b.dtype, (a - b).abs().max().item())
            for a, b in zip(mine, theirs, strict=True)
        ]

    for results in World(2).run(program):
        assert all(same and error < 0.1 for same, error in results)


def test_processes():
    for (mine, _), (theirs, _) in launch(both, 2):
        assert all((a - b).abs().max() < 1e-12 for a, b in zip(mine, theirs, strict=True))
