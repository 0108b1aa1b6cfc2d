"""Tensor-parallel blocks are the serial ones: outputs, every gradient, messages, and what they keep."""

import functools

import pytest
import torch

from minidist.comm import World, launch
from minidist.models import TransformerLayer, seeded_
from minidist.models.gpt import MLP
from minidist.parallel.data import DataParallel
from minidist.parallel.tensor import (
    RowFirstMLP,
    SequenceNorm,
    TensorAttention,
    TensorLayer,
    TensorMLP,
    cuts,
)
from tests.largest import largest
from tests.parallel.tensor.cases import (
    EVERYWHERE,
    HIDDEN,
    RUNS,
    WIDE,
    batch,
    difference,
    found,
    serial,
)

# 12 heads over 2, 3 and 4 ranks; over 5, and 5 heads over any, uneven; 1 group leaves ranks without heads
LAYERS = {
    "heads": (HIDDEN, 12, None),
    "groups": (HIDDEN, 12, 4),
    "one group": (HIDDEN, 12, 1),
    "uneven": (20, 5, None),
    "uneven groups": (20, 10, 5),
}
SPLITS = {
    "whole": {},
    "sequence": dict(sequence=True),
    "regather": dict(sequence=True, regather=True),
}


def oracle(name, **options):
    hidden, heads, groups = LAYERS[name]
    make = functools.partial(TransformerLayer, hidden, heads, kv_heads=groups, **options, **WIDE)
    return serial(make, batch(hidden), count=2)


def layers(comm, name, count=2, make=TensorLayer, **options):
    hidden, heads, groups = LAYERS[name]
    return [make(hidden, heads, comm, groups, **options, **WIDE) for _ in range(count)]


def every_layer(comm):
    return {
        (name, split): found(
            layers(comm, name, **options), batch(LAYERS[name][0]), comm, "sequence" in options
        )
        for name in LAYERS
        for split, options in SPLITS.items()
        if split == "whole" or name in ("heads", "uneven groups")
    }


@functools.cache
def oracles():
    return {name: oracle(name) for name in LAYERS}


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
        dict(ffn=2, rotary=True),
    ],
)
def test_other_options(options):
    for mine in World(3).run(lambda comm: found(layers(comm, "groups", **options), batch(), comm)):
        assert difference(mine, oracle("groups", **options)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("split", ["whole", "regather"])
def test_dtypes(dtype, split):
    """Every result is as near to float64's as its dtype allows: a few hundred roundings of its largest number."""
    options = SPLITS[split]

    def program(comm):
        block = [TensorLayer(HIDDEN, 12, comm, **options, dtype=dtype)]
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


class WithoutF(TensorMLP):
    def forward(self, x):
        self.fc.forward = lambda x: torch.nn.functional.linear(x, self.fc.weight, self.fc.bias)
        return super().forward(x)


class AloneNorm(SequenceNorm):
    forward = torch.nn.LayerNorm.forward


def test_mistakes_are_found():
    def program(comm, plant, **options):
        made = layers(comm, "heads", **options)
        for layer in made:
            if plant:
                layer.__dict__["_modules"][plant[0]].__class__ = plant[1]
        return found(made, batch(), comm, "sequence" in options)

    for plant, options in [(("mlp", WithoutF), {}), (("norm_2", AloneNorm), SPLITS["sequence"])]:
        right, wrong = (World(2).run(program, which, **options)[1] for which in (None, plant))
        assert (
            difference(right, oracles()["heads"]) < 1e-12
            and difference(wrong, oracles()["heads"]) > 1e-3
        )


def counted(program, n=4, **options):
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


@pytest.mark.parametrize("make", [TensorMLP, functools.partial(TensorAttention, heads=12)])
def test_a_block_has_one_all_reduce_forward_and_one_backward(make):
    assert counted(block_program, make=make) == [
        (RING, RING * N // 4),
        (2 * RING, 2 * RING * N // 4),
    ]


def test_a_layer_has_two_and_two():
    make = functools.partial(TensorLayer, heads=12)
    forward, both = counted(block_program, make=make)
    assert forward == (2 * RING, 2 * RING * N // 4) and both == (4 * RING, 4 * RING * N // 4)


def test_sequence_parallel_sends_the_same_bytes_of_activations():
    """An all-gather and a reduce-scatter are an all-reduce; the vectors' gradients come on top."""
    make = functools.partial(TensorLayer, heads=12)
    whole, split = (
        counted(block_program, make=make, sequence=sequence) for sequence in (False, True)
    )
    vectors = RING * 6 * HIDDEN * 4 // 4  # two norms' weights and biases, two biases of RowLinear
    assert split[0] == whole[0]
    assert split[1] == (whole[1][0] + 4 * RING, whole[1][1] + vectors)


def test_rows_first_sums_once_more():
    forward, both = counted(block_program, make=RowFirstMLP)
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
    model = DataParallel(torch.nn.Sequential(*layers(tensor, "heads", count=1)), copies)
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
    ours, again = layers(comm, "groups", count=1)[0], batch().requires_grad_()
    (ours(again) * batch(seed=1)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()
    return [(p.grad - grads[name]).abs().max().item() for name, p in ours.named_parameters()] + [
        (x.grad - again.grad).abs().max().item()
    ]


def test_as_dtensor_does(tmp_path):
    assert largest(map(max, launch(by_dtensor, 2, str(tmp_path / "store"), timeout=60))) < 1e-12


def test_bad_input():
    with pytest.raises(ValueError, match="5 heads do not split hidden = 24"):
        World(2).run(lambda comm: TensorLayer(24, 5, comm))
    with pytest.raises(ValueError, match="5 heads of keys and values do not serve 12 heads"):
        World(2).run(lambda comm: TensorLayer(24, 12, comm, 5))
    with pytest.raises(ValueError, match="sequence=False, regather=True"):
        World(2).run(lambda comm: TensorLayer(24, 12, comm, regather=True))
