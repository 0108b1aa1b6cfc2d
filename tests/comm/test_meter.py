"""The meter of a World's run: each rank's own time and memory, whoever runs when."""

import copy
import gc
import itertools
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from minidist.collectives import all_reduce_, broadcast_
from minidist.comm import Span, World
from minidist.comm.cluster import H100, Cluster, Device
from minidist.comm.costs import FORMS, Cost, FusedAttention, Product, Results, operator, tensors
from minidist.comm.meter import Charge, Ledger, ModelledHost, charges, roofline
from minidist.comm.trace import CATEGORIES
from minidist.study.meter import measure
from minidist.study.step import Machine
from minidist.train.amp import Masters
from tests.comm.nets import (
    ALPHA,
    BETA,
    HEADS,
    TOY,
    B,
    H,
    Layer,
    T,
    Training,
    allocated,
    convnet,
    mlp,
    seconds_of,
    transformer,
    world,
)
from tests.largest import smallest
from tests.size import FULL


def product(comm):
    return torch.ones(100, 100) @ torch.ones(100, 100)


def train_meter(comm, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(32, 64)).sum().backward()
    optimizer.step()
    return comm.now()


def test_the_meter_is_on_where_there_is_a_device_unless_told():
    assert World(2).run(seconds_of, product) == [0.0, 0.0]
    uniform = Cluster.uniform(2, ALPHA, BETA, device=TOY)
    off = World(2, cluster=uniform, meter=False)
    assert (
        off.run(seconds_of, product) == [0.0, 0.0]
        and off.trace.memory == {}
        and not off.trace.spans
    )
    on = World(2, meter=True)  # no device: no time, but memory
    assert on.run(seconds_of, product) == [0.0, 0.0] and on.trace.memory[1].peak == 3 * 40_000


def test_spans():
    trace = world(2).run(seconds_of, product).trace
    once = 4e4 / 1e11
    assert [s for s in trace.spans if s.rank == 1] == [
        Span(1, "main", "compute", 0.0, once, "ones"),
        Span(1, "main", "compute", once, 2 * once, "ones"),
        Span(1, "main", "compute", 2 * once, 2 * once + 2e6 / 1e12, "mm"),
    ]


def a_step(comm):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(4, 8)).sum()
    job = comm.stream(lambda lane: torch.ones(8) + 1)
    loss.backward()
    job.wait()
    optimizer.step()


def test_spans_say_what_the_rank_was_at():
    trace = world(1).run(a_step).trace
    kinds = [kind for kind, _ in itertools.groupby(s.kind for s in trace.spans if s.lane == "main")]
    assert kinds == ["compute", "backward", "update"]
    assert {s.kind for s in trace.spans if s.lane != "main"} == {"compute"}


def test_a_slow_rank_is_slow_in_computing_too():
    cluster = Cluster.uniform(3, ALPHA, BETA, device=TOY).slow_rank(1, 2.5)
    fast, slow, same = World(3, cluster=cluster).run(seconds_of, product)
    assert fast == same and slow == pytest.approx(2.5 * fast, rel=1e-12)


def test_jitter_is_the_same_in_every_run():
    runs = [
        World(2, cluster=Cluster.uniform(2, ALPHA, BETA, device=TOY).jitter(0.2, seed)).run(
            train_meter, nn.Linear(64, 8)
        )
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] and runs[0].trace == runs[1].trace and runs[0] != runs[2]
    assert runs[0][0] != runs[0][1]  # each rank has its own


def test_a_run_is_the_same_every_time():
    runs = [world(4, on_failure="end").run(train_meter, nn.Linear(64, 8)) for _ in range(2)]
    assert runs[0].trace == runs[1].trace and runs[0].trace.memory[3] == runs[1].trace.memory[3]


def test_only_those_that_are_followed_are_recorded():
    """All are charged: nothing else of a run changes."""

    def program(comm):
        x = torch.ones(64, 64, device="meta", requires_grad=True)
        (x @ x).sum().backward()
        all_reduce_(comm, x.grad)
        return comm.now()

    runs = []
    for followed in (None, [1], ()):
        world = World(3, cluster=Cluster.dgx_h100(), device="meta", followed=followed)
        runs.append((world.run(program), world.trace))
    (all_times, everything), (some_times, one), (no_times, nothing) = runs
    assert all_times == some_times == no_times
    assert list(everything) == list(one) == list(nothing)
    assert list(everything.memory) == [0, 1, 2] and list(one.memory) == [1]
    assert one.memory[1] == everything.memory[1] and one.memory[1].peak > 0
    assert list(one.spans) == [span for span in everything.spans if span.rank == 1]
    assert not nothing.memory and not len(nothing.spans) and len(one.spans)


def test_who_is_followed_is_a_rank():
    with pytest.raises(ValueError, match="rank 3 cannot be followed: there are 3 ranks, 0 to 2"):
        World(3, followed=[0, 3])
    with pytest.raises(ValueError, match="what is followed is a rank, a whole number"):
        World(3, followed=[0.5])


def test_who_uses_its_host_is_followed():
    """What lies on the host is known from the rank's memory."""

    def program(comm):
        with comm.host:
            return torch.ones(3)

    cluster = Cluster.dgx_h100()
    World(2, cluster=cluster, device="meta").run(program)
    with pytest.raises(RuntimeError, match="uses its host's memory, so its own must be followed"):
        World(2, cluster=cluster, device="meta", followed=[0]).run(program)


def test_each_rank_has_its_own_memory():
    def program(comm, given, untouched):
        mine = torch.empty(1000 * (comm.rank + 1))
        broadcast_(comm, given)
        return mine.sum()

    memory = world(3).run(program, torch.ones(500), untouched=[nn.Linear(10, 10)]).trace.memory
    peaks = [4000 * (r + 1) + 2000 + 440 for r in range(3)]
    assert all(peak <= memory[r].peak <= peak + 2000 for r, peak in enumerate(peaks))
    assert [sum(memory[r].at(0.0).values()) for r in range(3)] == peaks
    assert all(memory[r].at(0.0)["parameters"] == 440 for r in range(3))


SECOND = Device("one operator a second", {torch.float32: 1e30}, 10**9, bandwidth=1e30, launch=1.0)


def test_what_dies_while_another_rank_runs_dies_at_its_own_time():
    def program(comm):
        x = torch.empty(1000)
        if comm.rank == 0:  # x dies when rank 1 has received it, at 1 s; rank 2 is at 9 s then
            work, x = comm.isend(x, 1), None
            for _ in range(20):
                torch.ones(1)
            work.wait()
        for _ in range(comm.rank**3 + (comm.rank == 2)):
            torch.ones(1)
        if comm.rank == 1:
            comm.recv(x, 0)
            comm.send(x, 2)
        elif comm.rank == 2:
            comm.recv(x, 1)

    line = world(3, SECOND).run(program).trace.memory[0]
    assert [line.at(t)["other"] // 4000 for t in (0.0, 0.9, 1.1, 19.0)] == [1, 1, 0, 0]


class Cycle:
    def __init__(self, held):
        self.held, self.me = held, self


def test_what_the_collector_finds_dies_after_its_birth_and_before_the_end_of_its_rank():
    def program(comm, wait):
        if comm.rank == 0:
            for _ in range(5):
                torch.ones(1)
            Cycle(torch.empty(1000))  # at 5 s
            if wait:
                comm.recv(torch.empty(1), 1)
        else:
            gc.collect()  # at 0 s
            if wait:
                comm.send(torch.empty(1), 0)

    gc.collect()
    gc.disable()
    try:
        waits, ends = (
            world(2, SECOND).run(program, wait).trace.memory[0] for wait in (True, False)
        )
    finally:
        gc.enable()
    assert (
        smallest(waits.total) >= 0
        and waits.at(4.9)["other"] < 4000
        and waits.at(5.1)["other"] < 4000
    )
    assert waits.peak >= 4000 and ends.total[-1] == 4000


def test_only_the_device_of_the_world_is_followed():
    def program(comm):
        here, elsewhere = torch.ones(10, device="meta"), torch.ones(1000)
        return here + 1, elsewhere + 1

    assert world(1, where="meta").run(program).trace.memory[0].peak == 80


def test_a_failed_run_leaves_nothing_behind():
    def program(comm):
        torch.ones(10)
        if comm.rank == 1:
            raise RuntimeError("on purpose")
        comm.recv(torch.ones(10), 1)

    before = torch.utils._python_dispatch._is_in_torch_dispatch_mode, torch.UntypedStorage.resize_
    with pytest.raises(RuntimeError, match="on purpose"):
        world(3).run(program)
    assert before == (
        torch.utils._python_dispatch._is_in_torch_dispatch_mode,
        torch.UntypedStorage.resize_,
    )
    assert world(3, on_failure="continue").run(program)[1].args == ("on purpose",)
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_a_meter_within_a_metered_rank():
    def program(comm, net):
        x = torch.ones(4, 64)
        profile = measure(lambda: all_reduce_(comm, net(x)))
        return profile.flops, profile.by_operator["addmm"].calls

    results = world(2).run(program, nn.Linear(64, 8))
    assert results == [(2 * 4 * 64 * 8, 1)] * 2
    assert results.trace.memory[0].live["parameters"].max() == (64 + 1) * 8 * 4


# ------------------------------------------------------------
# FLOPs and bytes of operators, against counts made by hand.


aten_flops = torch.ops.aten


def cost(func, *args, **kwargs):
    return cost_of(func, args, kwargs, func(*args, **kwargs))


def cost_of(func, args, kwargs, out):
    known = operator(func)
    return known.cost(args, kwargs, out, *known.operands(args, kwargs, out), Results())


def flops(fn, *args):
    """FLOPs of forward, and of backward."""
    profile = measure(lambda: fn(*args).sum().backward())
    return profile.by_phase["forward"].flops, profile.by_phase["backward"].flops


GPT2 = dict(B=2, T=256, H=768, HEADS=12)
SIZES = [dict(B=B, T=T, H=H, HEADS=HEADS)] + [GPT2] * FULL


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"H={size['H']}")
@pytest.mark.parametrize(
    ("device", "attention", "products"),
    [
        ("cpu", "call", 5),  # fused: its backward forms the scores again
        ("cpu", "written", 4),
        ("meta", "written", 4),
        ("meta", "call", 4),  # PyTorch writes it out there
        ("meta", "operator", 5),
    ],
)
def test_a_transformer_layer(device, attention, products, size, figure):
    B, T, H, HEADS = size.values()
    layer = Layer(attention, H, HEADS).to(device)
    x = torch.ones(B, T, H, device=device, requires_grad=True)
    linear = 2 * B * T * (3 * H * H + H * H + 4 * H * H + 4 * H * H)  # 24·B·T·H²
    one = 2 * B * HEADS * T * T * (H // HEADS)
    forward, backward = flops(layer, x)
    figure(
        f"H={H}, {device}, attention {attention}: FLOPs {forward:,} forward, {backward:,} backward"
    )
    assert (forward, backward) == (linear + 2 * one, 2 * linear + products * one)


def test_the_first_layer_needs_no_gradient_of_its_input():
    assert flops(nn.Linear(8, 5), torch.ones(7, 8)) == (2 * 7 * 8 * 5, 2 * 7 * 8 * 5)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_convolution_costs_as_much_for_each_gradient(groups, device):
    net = nn.Conv2d(4, 8, 3, stride=2, groups=groups, device=device)
    x = torch.ones(2, 4, 9, 11, device=device, requires_grad=True)
    # 2 a product, images, places, outputs, inputs, 3 × 3
    forward = 2 * 2 * (4 * 5) * 8 * (4 // groups) * 9
    assert flops(net, x) == (forward, 2 * forward)
    assert flops(net, x.detach()) == (forward, forward)


def test_a_transposed_convolution():
    x = torch.ones(2, 4, 5, 5, requires_grad=True)
    forward = 2 * 2 * 25 * 4 * 8 * 9  # at the places of its input
    assert flops(nn.ConvTranspose2d(4, 8, 3), x) == (forward, 2 * forward)


M, V = torch.ones(6, 4), torch.ones(4)


@pytest.mark.parametrize(
    ("func", "args", "count"),
    [
        (aten_flops.mm.default, (M, M.t()), 2 * 6 * 4 * 6),
        (aten_flops.addmm.default, (torch.ones(6), M, M.t()), 2 * 6 * 4 * 6),
        (aten_flops.addmm_.default, (torch.ones(6, 6), M, M.t()), 2 * 6 * 4 * 6),
        (aten_flops.mv.default, (M, V), 2 * 24),
        (aten_flops.addmv.default, (torch.ones(6), M, V), 2 * 24),
        (aten_flops.addmv_.default, (torch.ones(6), M, V), 2 * 24),
        (aten_flops.dot.default, (V, V), 8),
        (aten_flops.bmm.default, (torch.ones(5, 6, 4), torch.ones(5, 4, 3)), 2 * 5 * 6 * 4 * 3),
        (
            aten_flops.baddbmm_.default,
            (torch.ones(5, 6, 3), torch.ones(5, 6, 4), torch.ones(5, 4, 3)),
            2 * 5 * 6 * 4 * 3,
        ),
        (
            aten_flops.addbmm.default,
            (torch.ones(6, 3), torch.ones(5, 6, 4), torch.ones(5, 4, 3)),
            2 * 5 * 6 * 4 * 3,
        ),
        (
            aten_flops._int_mm.default,
            (torch.ones(17, 8).char(), torch.ones(8, 8).char()),
            2 * 17 * 8 * 8,
        ),
        (aten_flops.add.Tensor, (M, M), 0),
        (aten_flops._softmax.default, (M, -1, False), 0),
    ],
)
def test_products(func, args, count):
    assert cost(func, *args).flops == count


def test_out_is_no_operand():
    out = torch.empty(6, 6)
    got = cost_of(aten_flops.mm.out, (M, M.t()), {"out": out}, out)
    sizes = Product(6, 6, 4, 1)
    assert got == Cost(2 * 6 * 4 * 6, (24 + 24 + 36) * 4, torch.float32, sizes)


@pytest.mark.parametrize(
    ("func", "args", "sizes"),
    [
        (aten_flops.mm.default, (torch.ones(6, 4), torch.ones(4, 3)), (6, 3, 4, 1)),
        (aten_flops.addmm.default, (torch.ones(3), M, torch.ones(4, 3)), (6, 3, 4, 1)),
        (aten_flops.addmm_.default, (torch.ones(6, 3), M, torch.ones(4, 3)), (6, 3, 4, 1)),
        (aten_flops.bmm.default, (torch.ones(5, 6, 4), torch.ones(5, 4, 3)), (6, 3, 4, 5)),
        (
            aten_flops.baddbmm.default,
            (torch.ones(5, 6, 3), torch.ones(5, 6, 4), torch.ones(5, 4, 3)),
            (6, 3, 4, 5),
        ),
        (aten_flops.mv.default, (M, V), None),
        (aten_flops.add.Tensor, (M, M), None),
    ],
)
def test_sizes_of_products(func, args, sizes):
    assert cost(func, *args).sizes == sizes


@pytest.mark.parametrize("causal", [False, True])
def test_sizes_of_attention(causal):
    """Forward and backward, of 2 sequences with 3 heads of 8 numbers, 6 queries and 6 keys."""
    seen = []

    def note(known, cost, start, end):
        seen.append(cost.sizes)

    shape = dict(device="meta", dtype=torch.bfloat16, requires_grad=True)
    q, k, v = (torch.randn(2, 3, 6, 8, **shape) for _ in range(3))
    with Charge(SimpleNamespace(time=0.0), Ledger(lambda: 0.0), None, note):
        torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0].sum().backward()
    found = [sizes for sizes in seen if sizes is not None]
    assert found == [(6, 6, 6, 8, causal, False), (6, 6, 6, 8, causal, True)]


@pytest.mark.parametrize(
    ("func", "args", "moved"),
    [
        (aten_flops.add.Tensor, (M, M), 3 * 96),
        (aten_flops.add_.Tensor, (M.clone(), M), 3 * 96),  # read, read, written
        (aten_flops.copy_.default, (M.clone(), M), 2 * 96),  # what is overwritten is not read
        (aten_flops.zero_.default, (M.clone(),), 96),
        (
            aten_flops.add.Tensor,
            (M, V.expand(6, 4)),
            2 * 96 + 16,
        ),  # a broadcast operand as it is stored
        (aten_flops._foreach_add_.List, ([M.clone(), V.clone()], [M, V]), 3 * (96 + 16)),
        (aten_flops._foreach_add.List, ([M, V], [M, V]), 3 * (96 + 16)),
        (aten_flops._foreach_copy_.default, ([M.clone(), V.clone()], [M, V]), 2 * (96 + 16)),
        (aten_flops._foreach_zero_.default, ([M.clone(), V.clone()],), 96 + 16),
        # the rows, not the table
        (aten_flops.embedding.default, (torch.ones(1000, 4), torch.tensor([1, 5])), 2 * 32 + 16),
        (
            aten_flops.index_select.default,
            (torch.ones(1000, 4), 0, torch.tensor([1, 5])),
            2 * 32 + 16,
        ),
        (aten_flops.sum.default, (M,), 96 + 4),
        (aten_flops.cat.default, ([M, M],), 4 * 96),
        (aten_flops._to_copy.default, (M,), 2 * 96),
        (aten_flops.ones.default, ([6, 4],), 96),
        (aten_flops.view.default, (M, [24]), 0),
        (aten_flops._unsafe_view.default, (M, [24]), 0),
        (aten_flops.unsafe_split.Tensor, (M, 2), 0),
        (aten_flops.split.Tensor, (M, 2), 0),
        (aten_flops.detach.default, (M,), 0),
        (aten_flops.t_.default, (M.clone(),), 0),
        (aten_flops.empty.memory_format, ([6, 4],), 0),
        (aten_flops.new_empty.default, (M, [6, 4]), 0),
        (aten_flops.empty_like.default, (M,), 0),
    ],
)
def test_bytes(func, args, moved):
    assert cost(func, *args).nbytes == moved


def test_views_and_allocations_are_free_and_nothing_else_is():
    assert all(
        operator(f).free
        for f in (
            aten_flops.t.default,
            aten_flops.empty.memory_format,
            aten_flops.set_.source_Storage,
            aten_flops.resize_.default,
            aten_flops._reshape_alias.default,
        )
    )
    assert not any(
        operator(f).free
        for f in (
            aten_flops.add_.Tensor,
            aten_flops.copy_.default,
            aten_flops.relu_.default,
            aten_flops.clone.default,
            aten_flops.native_dropout.default,
        )
    )


def test_the_dtype_of_the_operands():
    half = torch.ones(4, 4, dtype=torch.bfloat16)
    assert cost(aten_flops.mm.default, half, half).dtype == torch.bfloat16
    assert cost(aten_flops.ones.default, [3]).dtype == torch.float32


def test_operators_that_are_kernels_of_whole_layers():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    by_hand = 2 * 3 * 5 * (3 * 64 + 64 + 2 * 8 * 16) + 2 * (2 * 3 * 5 * 5 * 8)
    x = torch.ones(3, 5, 8)
    with torch.no_grad():
        fused, plain = measure(layer, x), measure(layer.train(), x)
    assert "_transformer_encoder_layer_fwd" in fused.by_operator and "addmm" in plain.by_operator
    assert fused.flops == plain.flops == by_hand
    with torch.no_grad():
        heads = measure(layer.self_attn.eval(), x, x, x)
    assert heads.flops == 2 * 15 * 4 * 64 + 2 * (2 * 3 * 25 * 8)


def test_a_recurrent_layer_counts_its_products_in_one_kernel_and_in_many():
    x = torch.ones(5, 3, 8)
    gates = 2 * 5 * 3 * (4 * 16 * 8 + 4 * 16 * 16)
    step = lambda net, x: measure(lambda: net(x)[0].sum().backward()).by_phase
    one = step(nn.LSTM(8, 16), x.clone().requires_grad_())
    assert (one["forward"].flops, one["backward"].flops) == (gates, 2 * gates)
    assert measure(nn.LSTM(8, 16, device="meta"), x.to("meta")).flops == gates


def test_inference_mode_counts_the_same():
    net, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.ones(5, 8)
    with torch.inference_mode():
        inference = measure(net, x)
    assert inference.flops == measure(net, x).flops == 2 * 5 * 8 * 4
    assert set(inference.by_operator) == {"addmm", "relu"}


def test_tensors_are_found_in_lists_and_sparse_ones_are_not():
    sparse = torch.eye(3).to_sparse()
    assert [len(x) for x in tensors((M, [V, None, (M,)], 3, "x", sparse))] == [6, 4, 6]


# ------------------------------------------------------------
# What is said of operators on meta tensors is what PyTorch says, the first time and every other.


aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def norms(dtype, *lead, shape=(6,), affine=(True, True)):
    """Calls of a layer norm, forward and backward: with all masks."""
    x, like = (
        meta(*lead, *shape, dtype=dtype),
        [meta(*shape, dtype=dtype) if there else None for there in affine],
    )
    _, mean, rstd = aten.native_layer_norm(x, shape, *like, 1e-5)
    yield aten.native_layer_norm.default, (x, shape, *like, 1e-5)
    for mask in ([True, *affine], [False, *affine], [True, False, False]):
        yield (
            aten.native_layer_norm_backward.default,
            (meta(*x.shape, dtype=dtype), x, shape, mean, rstd, *like, mask),
        )


def some_calls(dtype):
    """Calls that give what their operands decide: elements, products, sums, several results, lists."""
    x, y = meta(3, 4, dtype=dtype), meta(3, 4, dtype=dtype)
    square = meta(4, 4, dtype=dtype)
    row = meta(4, dtype=dtype)
    yield from ((aten.add.Tensor, (x, other)) for other in (y, row, 2, square[:3], y.double()))
    yield from ((getattr(aten, name).default, (x,)) for name in ("tanh", "exp", "silu", "gelu"))
    yield aten.tanh.default, (square.t()[1:],)
    yield from ((aten.div.Tensor, (x.int(), other)) for other in (2, 2.0, x))
    yield from ((aten.addmm.default, (row, x, other)) for other in (square, square.t()))
    yield from (
        (aten.sum.dim_IntList, (x, dims, keep)) for dims in ([0], [0, 1]) for keep in (0, 1)
    )
    yield aten.sum.default, (x,)
    yield aten.native_dropout.default, (x, 0.1, True)
    yield aten.cat.default, ([x, square],)
    yield aten._foreach_add.List, ([x, row], [y, row])
    yield from norms(dtype, 2, 3)
    yield from norms(dtype, 0)
    yield from norms(dtype, 5, affine=(True, False))
    yield from norms(dtype, 2, 3, shape=(4, 6))


def form(out):
    return [
        None if x is None else (x.shape, x.stride(), x.dtype, x.device.type)
        for x in (out if isinstance(out, tuple | list) else (out,))
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_pytorch_says(dtype):
    results = Results()
    for func, args in some_calls(dtype):
        first, again = (results.call(operator(func), func, args, {}) for _ in range(2))
        assert form(first) == form(again) == form(func(*args)), func
        stores = [x.untyped_storage()._cdata for x in tensors((first, again, args))]
        assert len(set(stores)) >= len(tensors((first, again))) + 1, func


def test_what_is_known_is_not_asked_again():
    asked = []

    def add(*args, **kwargs):
        asked.append(args)
        return aten.add.Tensor(*args, **kwargs)

    known, results = operator(aten.add.Tensor), Results()
    for scalar in (0.5, 0.25, 2, 2.0, 2, True):
        results.call(known, add, (meta(3), scalar), {})
    assert [args[1] for args in asked] == [0.5, 2, True]
    results.call(known, add, (torch.ones(3), 2), {})
    results.call(known, add, (torch.ones(3), 2), {})
    results.call(known, add, (meta(3), torch.ones(())), {})
    results.call(known, add, (meta(3), torch.ones(())), {})
    assert len(asked) == 3 + 4  # what has values is PyTorch's


def test_the_default_dtype_decides_too():
    results, func = Results(), aten.div.Tensor
    divide = lambda: results.call(operator(func), func, (meta(3).int(), 2), {}).dtype
    assert divide() == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert divide() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_written_in_place_is_itself():
    x, y = meta(3, 4), meta(3, 4)
    add_, add_all_ = aten.add_.Tensor, aten._foreach_add_.List
    results = Results()
    for _ in range(2):
        assert results.call(operator(add_), add_, (x, y), {"alpha": 2}) is x
        assert results.call(operator(add_all_), add_all_, ([x], [y]), {}) is None


def test_views_are_views():
    x, results = meta(3, 4), Results()
    for func in (
        aten.t.default,
        aten.detach.default,
        aten.alias.default,
        aten._unsafe_view.default,
    ):
        for _ in range(2):
            args = (x, [12]) if func is aten._unsafe_view.default else (x,)
            found = results.call(operator(func), func, args, {})
            assert found.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_what_raises_raises_again():
    x, w = meta(3, 4), meta(4)
    results = Results()
    calls = [
        (aten.add.Tensor, (x, meta(3))),
        (aten.native_layer_norm.default, (x, [3], meta(3), None, 1e-5)),
        (aten.addmm.default, (w, x, meta(3, 4))),
        (aten.sum.dim_IntList, (x, [2])),
    ]
    for func, args in calls:
        for _ in range(2):
            with pytest.raises((RuntimeError, IndexError)):
                results.call(operator(func), func, args, {})


def test_flops_are_remembered_by_form():
    """Of PyTorch's operators on meta tensors; as many as there is room for."""
    results, asked = Results(limit=2), []
    known = copy.copy(operator(aten.mm.default))
    known.formula = lambda args, kwargs, out: asked.append(len(args[0])) or 2 * len(args[0])

    def flops(x):
        return results.flops(known, (x, x.t()), {}, None)

    assert [flops(meta(rows, 4)) for rows in (3, 5, 3)] == [6, 10, 6] and asked == [3, 5]
    assert [flops(torch.ones(3, 4)) for _ in range(2)] == [6, 6] and asked == [3, 5, 3, 3]
    flops(meta(7, 4))  # no room: all else is forgotten
    flops(meta(3, 4))
    assert asked == [3, 5, 3, 3, 7, 3]
    known.ours = True
    flops(meta(3, 4))
    assert asked[-2:] == [3, 3]  # what a stranger's operator decides by is its own affair


def test_the_forms_that_were_asked_for_last_are_remembered():
    asked, results = [], Results(limit=3)

    def tanh(x):
        asked.append(len(x))
        return aten.tanh.default(x)

    for length in (1, 2, 3, 1, 4, 1, 2):  # 4 comes in place of 2, which was not asked for as long
        results.call(operator(aten.tanh.default), tanh, (meta(length),), {})
    assert asked == [1, 2, 3, 4, 2] and len(results) == 3


def test_a_long_run_of_ever_other_shapes_keeps_no_more_and_its_end_keeps_nothing():
    def program(comm, steps):
        for step in range(1, steps):
            torch.tanh(torch.empty(step, device="meta"))
        return charges()[0].results

    results = measure(program, None, FORMS + 100).result
    assert len(results) == FORMS
    [results] = World(1, device="meta", meter=True).run(program, 5)
    assert len(results) == 4  # nothing of the run before
    forgotten = weakref.ref(results)
    del results
    gc.collect()
    assert forgotten() is None


def test_ranks_remember_together():
    def program(comm):
        torch.tanh(torch.empty(3, device="meta"))
        return charges()[0].results

    mine, yours = World(2, device="meta", meter=True).run(program)
    assert mine is yours and len(mine) == 1


# ------------------------------------------------------------
# Live memory by category: against the CPU allocator's own record, and case by case.


NETS = {
    "mlp": mlp,
    "convnet": convnet,
    "transformer": transformer,
    "fused": lambda: transformer("call"),
}


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("net", NETS)
def test_a_training_step_against_the_allocator(net, optimizer, figure):
    truth, ours, meta = (
        Training(NETS[net], optimizer, device) for device in ("cpu", "cpu", "meta")
    )
    for _ in range(2):  # in the first step the optimizer's states are born
        before = sum(truth.states().values())
        peak, end = (before + more for more in allocated(truth.step))
        profile = measure(ours.step)
        assert abs(profile.peak / peak - 1) < 1e-3
        assert profile.timeline.total[-1] == end == sum(truth.states().values())
        on_meta = measure(meta.step)
        if net != "fused":  # which PyTorch writes out for meta tensors
            assert abs(on_meta.peak / peak - 1) < 1e-3
        for run, training in ((profile, ours), (on_meta, meta)):
            states, left = training.states(), run.timeline.at(float("inf"))
            batch = states.pop("batch")
            assert {name: left[name] for name in states} == states
            assert left["activations"] + left["other"] == batch
    figure(f"{net}, {optimizer}: peak by the allocator {peak:,} B, by the meter {profile.peak:,} B")


def test_the_meter_itself_keeps_nothing_alive():
    plain, metered = (Training(convnet, "momentum") for _ in range(2))
    assert allocated(plain.step) == allocated(lambda: measure(metered.step))


def test_each_storage_is_counted_once():
    def program():
        x = torch.zeros(1000)
        views = [x.view(10, 100), x[5:], x.detach(), *x.split(100), x.expand(5, 1000)]
        del x
        assert views.pop().shape == (5, 1000)
        return views[1].sum() if views else None  # it begins where no other does

    timeline = measure(program).timeline
    assert timeline.peak == 4004 and timeline.total.tolist()[-1] == 4


def at_peak_ledger(fn, *args):
    return {name: nbytes for name, nbytes in measure(fn, *args).at_peak.items() if nbytes}


class Own(torch.optim.Optimizer):
    """An optimizer of one's own: a copy of the weights in float64, and a list in its state."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state.setdefault("nested", {"list": [torch.zeros_like(p)]})
            state.setdefault("master", p.double()).sub_(p.grad)
            p.copy_(state["master"])


def test_what_an_optimizer_of_ones_own_keeps_in_its_state():
    net = nn.Linear(10, 10)
    optimizer = Own(net.parameters())

    def step():
        net(torch.ones(2, 10)).sum().backward()
        optimizer.step()

    assert measure(step).timeline.at(1.0)["optimizer states"] == 110 * (4 + 8)
    assert (
        at_peak_ledger(lambda given: None, [{"deep": (optimizer,)}])["optimizer states"] == 110 * 12
    )


def test_plain_tensors_that_an_optimizer_steps_are_parameters():
    w = torch.ones(10, 10, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        (torch.ones(3, 10) @ w).sum().backward()
        optimizer.step()

    assert measure(step).timeline.at(1.0) == dict.fromkeys(CATEGORIES, 0) | {
        "parameters": 400,
        "gradients": 400,
        "optimizer states": 400,
    }
    # fp32 copies of the weights, say: no gradient of their own
    copies = torch.optim.SGD([torch.ones(10)], lr=0.1)
    assert at_peak_ledger(lambda given: None, copies) == {"optimizer states": 40}


def test_masters_that_were_made_before_are_states():
    net, x = nn.Linear(10, 10, bias=False).half(), torch.ones(3, 10, dtype=torch.half)
    optimizer = Masters(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    assert at_peak_ledger(lambda given: None, optimizer) == {
        "parameters": 200,
        "optimizer states": 400,
    }
    net(x).sum().backward()
    optimizer.step()
    net.zero_grad()
    for program in (lambda given: None, lambda given: given.step()):
        live = measure(program, optimizer).timeline.at(1.0)
        assert live["parameters"] == 200 and live["optimizer states"] == 400 + 400, program


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_checkpointing_keeps_the_inputs_and_recomputes_the_rest(reentrant):
    blocks = [nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)) for _ in range(6)]
    given = torch.ones(64, 32)

    def step():
        x = given.clone().requires_grad_()
        for block in blocks:
            x = block(x) if reentrant is None else checkpoint(block, x, use_reentrant=reentrant)
        x.sum().backward()

    profile = measure(step)
    kept, inside = 64 * 32 * 4, 64 * 128 * 4  # a block's input; its tanh
    most = profile.timeline.live["activations"].max()
    # Backward reads a block's input and its tanh, and the ones that it starts from are a number.
    assert most == (6 * (kept + inside) if reentrant is None else 6 * kept + inside) + 4
    assert (profile.by_phase["backward"].flops > 2 * profile.by_phase["forward"].flops) is (
        reentrant is not None
    )


def test_activations_are_what_backward_reads():
    w, x = nn.Parameter(torch.ones(10, 10)), torch.ones(5, 10)
    live = measure(lambda: (x @ w).exp().sum().backward()).timeline.live
    # x, the exponentials, and the 1 that backward starts from
    assert live["activations"].max() == 200 + 200 + 4
    assert live["activations"][0] == 200  # the batch, from the start

    w.grad = None

    def unused():
        y = (x @ w).exp().sum()
        del y

    assert at_peak_ledger(unused) == {"parameters": 400, "other": 600}  # nobody ever read them


def test_what_a_function_saves_is_an_activation():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x + 0)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    x = torch.ones(100, requires_grad=True)
    timeline = measure(lambda: Square.apply(x).sum().backward()).timeline
    assert timeline.live["activations"].max() == 400 + 4
    assert timeline.live["gradients"].max() == 0  # of an input: no state of the model


def test_a_buffer_that_backward_reads_is_a_buffer():
    net = nn.Linear(10, 10)
    net.register_buffer("scale", torch.ones(10))
    assert (
        measure(lambda: (net(torch.ones(3, 10)) * net.scale).sum().backward()).at_peak["buffers"]
        == 40
    )


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_that_autograd_steals_or_copies(shared):
    w, v = nn.Parameter(torch.ones(50)), nn.Parameter(torch.ones(50))
    # w + v: one output gradient for both
    loss = lambda: ((w + v) if shared else (2 * w + 3 * v)).exp().sum()
    profile = measure(lambda: loss().backward())
    assert profile.timeline.at(1.0)["gradients"] == 400
    assert w.grad.untyped_storage().data_ptr() != v.grad.untyped_storage().data_ptr()
    # in place, the second time
    assert measure(lambda: loss().backward()).timeline.live["gradients"].max() == 400


def test_a_gradient_that_a_hook_takes_away():
    w, taken = nn.Parameter(torch.ones(50)), []

    def take(p):
        taken.append(p.grad)
        p.grad = None
        torch.zeros(50).sum()  # of the same shape, and no gradient

    handle = w.register_post_accumulate_grad_hook(take)
    timeline = measure(lambda: (2 * w).exp().sum().backward()).timeline
    handle.remove()
    assert timeline.live["gradients"].max() == timeline.at(1.0)["gradients"] == 200


def test_gradients_that_the_program_makes():
    w = nn.Parameter(torch.ones(50))

    def program():
        w.grad = torch.zeros(50)
        with torch.no_grad():
            w.sub_(w.grad)

    assert measure(program).timeline.at(1.0)["gradients"] == 200


def test_gradients_that_are_views_of_a_bucket():
    net, bucket = nn.Linear(10, 10), torch.zeros(110 + 40)
    net.weight.grad, net.bias.grad = bucket[:100].view(10, 10), bucket[100:110]
    assert (
        measure(lambda: net(torch.ones(2, 10)).sum().backward()).timeline.at(1.0)["gradients"]
        == 600
    )


def test_arrays_of_numpy_are_held_while_they_are_used():
    data = np.ones((8, 1000), dtype=np.float32)

    def program():
        for row in data:
            torch.from_numpy(row.copy()).sum()

    assert measure(program).peak <= 2 * 4000 + 8


def test_what_was_there_before_is_there_from_the_start():
    weight, late = torch.ones(1000), torch.ones(500)

    def program():
        x = torch.zeros(10) + 1
        return (x * 2).sum() + weight.sum() + late[:1]

    # and the zeros, which take a moment
    assert measure(program).timeline.at(0.0)["other"] == 6000 + 40
    assert measure(torch.neg, torch.ones(10)).timeline.at(0.0)["other"] == 80


def test_copies_made_in_a_run_are_born_then():
    given, table = nn.Linear(10, 10), torch.ones(100)

    def program():
        torch.ones(10).sum()
        own = copy.deepcopy(given)
        return own, own(torch.ones(10)), copy.deepcopy(table) + 1

    timeline = measure(program).timeline
    assert timeline.at(0.0)["parameters"] == 440 and timeline.at(1.0)["parameters"] == 880
    assert timeline.at(0.0)["other"] == 400 + 40


def test_the_check_of_saved_tensors_still_works():
    x = torch.ones(3, requires_grad=True)

    def program():
        y = x.exp()
        y.mul_(2)
        y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        measure(program)


def test_memory_is_released_without_the_collector():
    def program():
        net = nn.Linear(10, 10)
        y = net(torch.ones(2, 10))
        (y * y).exp().sum().backward()
        return weakref.ref(y.untyped_storage()), weakref.ref(net)

    gc.disable()
    try:
        profile = measure(program)
        assert [ref() for ref in profile.result] == [None, None]
        assert profile.timeline.total[-1] == 0
    finally:
        gc.enable()


def test_sparse_tensors_are_left_out():
    table = nn.Embedding(100, 4, sparse=True)
    timeline = measure(lambda: table(torch.tensor([3, 5])).sum().backward()).timeline
    assert timeline.at(1.0)["parameters"] == 1600


def test_what_is_made_on_the_host_is_not_the_devices():
    host = ModelledHost()
    given = torch.ones(500)

    def program():
        here = torch.ones(100)
        with host:
            there = torch.empty_like(here).copy_(given[:100])
            number = torch.tensor(1.0)
            there.add_(number)
            wide = there.double().repeat(100)  # most memory is there, but not the device's
        return here, wide.add(1), given.sum()

    profile = measure(program)
    assert profile.timeline.at(float("inf"))["other"] == profile.peak == 2000 + 400 + 4
    assert {name: t.calls for name, t in profile.by_operator.items()} == {"ones": 1, "sum": 1}


# ------------------------------------------------------------
# What ranks compute takes virtual time: the roofline of their device, in every fiber, charged to nobody else.


SLOW_START = Device("slow to start", {torch.float32: 1e12}, 10**9, bandwidth=1e11, launch=1e-3)


def test_roofline():
    assert roofline(TOY, Cost(2 * 10**12, 10**9, torch.float32)) == 2.0  # bound by its FLOPs
    assert roofline(TOY, Cost(10**9, 10**11, torch.float32)) == 1.0  # by its bytes
    assert roofline(TOY, Cost(10**12, 0, torch.float64)) == 2.0  # by the peak of its dtype
    assert roofline(SLOW_START, Cost(0, 0, None)) == 1e-3
    ideal = H100.ideal
    assert roofline(ideal, Cost(989 * 10**12, 0, torch.bfloat16)) == 1.0 + H100.launch
    with pytest.raises(ValueError, match="toy has a peak for float32, float64, not for int32"):
        roofline(TOY, Cost(1, 1, torch.int32))


def test_a_device_is_charged_at_what_it_reaches():
    """By the functions of `Device`, of which the planner's `Machine` makes its seconds, too."""
    start = H100.launch
    flops = Cost(989 * 10**12, 0, torch.bfloat16)
    assert roofline(H100, flops) == pytest.approx(1 / H100.efficiency + start)
    moved = Cost(0, 3_350 * 10**9, torch.bfloat16)
    assert roofline(H100, moved) == pytest.approx(1 / H100.streaming + start)
    sizes = Product(1000, 900, 800, 3)
    product = Cost(2 * 3 * 1000 * 900 * 800, 0, torch.bfloat16, sizes)
    assert roofline(H100, product) == Machine(H100).product(1000, 900, 800, 3)
    for backward in (False, True):
        attention = FusedAttention(32, 4096, 4096, 128, True, backward)
        took = roofline(H100, Cost(1, 0, torch.bfloat16, attention))
        assert took == Machine(H100).attention(32, 4096, 128, backward)


PROGRAMS = {
    "a product": (
        lambda comm: (
            torch.ones(100, 100, device=comm.device) @ torch.ones(100, 100, device=comm.device)
        ),
        2 * 4e4 / 1e11 + 2e6 / 1e12,
    ),
    "in place": (
        lambda comm: torch.empty(1000, device=comm.device).add_(
            torch.empty(1000, device=comm.device)
        ),
        3 * 4e3 / 1e11,
    ),
    "views": (
        lambda comm: torch.empty(1000, device=comm.device).view(10, 100).t()[3:].detach(),
        0.0,
    ),
    "nothing": (lambda comm: comm.size, 0.0),
    "host": (
        lambda comm: torch.ones(1000, device="meta" if comm.device.type == "cpu" else "cpu"),
        0.0,
    ),
}


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("what", PROGRAMS)
def test_operators_take_time(what, where):
    fn, seconds = PROGRAMS[what]
    assert world(2, where=where).run(seconds_of, fn) == pytest.approx([seconds] * 2, rel=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.add_(x[:2]),
        lambda x: x.int().add_(x),
        lambda x: x.add_(torch.ones(3, device="meta").to("cpu")),
        lambda x: x.div_(x, rounding_mode="up"),
        lambda x: x.addcmul_(x, x[:2]),
    ],
)
def test_what_does_not_fit_is_refused_on_meta_as_without_a_meter(wrong):
    program = lambda comm: wrong(torch.empty(3, device="meta"))
    with pytest.raises((RuntimeError, ValueError)) as plain:
        World(1, device="meta").run(program)
    with pytest.raises(type(plain.value)) as metered:
        world(1, where="meta").run(program)
    assert str(metered.value) == str(plain.value)


def test_what_fits_is_what_it_is_on_meta():
    def program(comm):
        x, y = torch.empty(3, 4, device="meta"), torch.empty(4, 3, device="meta").t()
        version = x._version
        same = x.add_(y, alpha=2).mul_(0.5).addcmul_(x, y, value=3).lerp_(y, 0.1).div_(2) is x
        w = nn.Parameter(x.clone())
        (w * 1).mul_(y).sum().backward()
        return same, x._version - version, w.grad.shape

    run = world(1, where="meta").run(program)
    assert run == World(1, device="meta").run(program) == [(True, 5, (3, 4))]
    assert [s.name for s in run.trace.spans][:5] == ["add_", "mul_", "addcmul_", "lerp_", "div_"]


def train_charge(comm, net):
    x = torch.empty(32, 64, device=comm.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = comm.now()
    loss = F.mse_loss(net(x), torch.empty(32, 8, device=comm.device))
    forward = comm.now()
    loss.backward()
    backward = comm.now()
    optimizer.step()
    return forward - before, backward - forward, comm.now() - backward


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_forward_backward_and_step_are_charged(where):
    by_flops = Device("toy", {torch.float32: 1e9}, 10**9, bandwidth=1e30)
    once = 2 * 32 * 64 * 8 / 1e9
    forward, backward, step = world(1, by_flops, where).run(
        train_charge, nn.Linear(64, 8).to(where)
    )[0]
    # no gradient of x
    assert (forward, backward) == pytest.approx((once, once), rel=1e-9) and step < 1e-20
    by_launch = Device("toy", {torch.float32: 1e30}, 10**9, bandwidth=1e30, launch=1.0)
    launches = world(1, by_launch, where).run(train_charge, nn.Linear(64, 8).to(where))[0]
    # addmm, mse; the 1 that backward starts from, the gradient of mse, a product, a sum; an addition each
    assert launches == (2.0, 4.0, 2.0)


def test_a_device_without_that_dtype_is_named_with_the_rank():
    with pytest.raises(
        ValueError, match="toy has a peak for float32, float64, not for bfloat16"
    ) as error:
        world(2).run(lambda comm: torch.ones(2, 2).bfloat16() @ torch.ones(2, 2).bfloat16())
    assert error.value.rank == 0


def share(comm, nbytes):
    x = torch.empty(nbytes // 4, device=comm.device)
    start = comm.now()
    all_reduce_(comm, x, algorithm="ring")
    return comm.now() - start


@pytest.mark.parametrize("rendezvous", [True, False])
@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_ring_pays_for_its_additions_and_for_no_copy_of_the_network(n, where, rendezvous):
    nbytes = 48_000 * n
    gamma = 3 / TOY.bandwidth  # an addition in place reads two operands and writes one
    formula = 2 * (n - 1) * ALPHA + 2 * (n - 1) / n * nbytes * BETA + (n - 1) / n * nbytes * gamma
    run = world(n, where=where, rendezvous=rendezvous)
    if rendezvous:
        assert run.run(share, nbytes) == pytest.approx([formula] * n, rel=1e-9)
    results = run.run(share, nbytes)
    assert {s.name for s in results.trace.spans} == {"add_"} and len(results.trace.spans) == n * (
        n - 1
    )
    # The buffers of a rank: what is reduced, and room for a chunk that arrives.
    assert [results.trace.memory[r].peak for r in range(n)] == [nbytes + nbytes // n] * n


def overlap(comm, streamed):
    x, w = torch.empty(1_000_000, device=comm.device), torch.empty(512, 512, device=comm.device)
    job = comm.stream(lambda lane: all_reduce_(lane, x)) if streamed else None
    for _ in range(4):
        w @ w
    if streamed:
        job.wait()
    else:
        all_reduce_(comm, x)
    return comm.now()


def test_a_stream_runs_beside_the_computation():
    products = 4 * 2 * 512**3 / 1e12
    alone = world(2).run(lambda comm: all_reduce_(comm, torch.empty(1_000_000))).time
    after, beside = (world(2).run(overlap, streamed) for streamed in (False, True))
    assert after.time == pytest.approx(products + alone, rel=1e-9)
    assert beside.time == pytest.approx(max(products, alone), rel=1e-9)
    lanes = {(s.lane, s.name) for s in beside.trace.spans if s.rank == 0}
    assert lanes == {("main", "mm"), ("lane 0", "add_")}
    assert any(
        a.start < b.end and b.start < a.end
        for a in beside.trace.spans
        for b in beside.trace.spans
        if (a.lane, b.lane) == ("main", "lane 0") and a.rank == b.rank
    )


def test_what_a_lane_computes_takes_its_own_time():
    def program(comm):
        w = torch.empty(512, 512)
        job = comm.stream(lambda lane: w @ w)
        w @ w
        job.wait()
        return comm.now()

    assert world(1).run(program) == [2 * 512**3 / 1e12]


def test_a_job_starts_when_its_rank_has_asked_for_it():
    """The lane is free after one product; the second job is asked for after three."""

    def program(comm):
        w = torch.empty(512, 512)
        comm.stream(lambda lane: w @ w)
        for _ in range(3):
            w @ w
        return comm.stream(lambda lane: lane.now()).wait()

    assert world(1).run(program) == [3 * 2 * 512**3 / 1e12]


def test_hooks_communicate_and_compute_in_backward():
    def program(comm, net):
        def add_up(p):
            all_reduce_(comm, p.grad)

        for p in net.parameters():
            p.register_post_accumulate_grad_hook(add_up)
        before = comm.now()
        net(torch.ones(4, 64)).sum().backward()
        return comm.now() - before, net.weight.grad.sum().item()

    results = world(3).run(program, nn.Linear(64, 8))
    # two rings of 2(n−1) steps
    assert all(2 * 2 * 2 * ALPHA < seconds < 2.1 * 2 * 2 * ALPHA for seconds, _ in results)
    assert {total for _, total in results} == {3.0 * 4 * 64 * 8}
    assert all(
        results.trace.memory[r].live["gradients"].max() == (64 + 1) * 8 * 4 for r in range(3)
    )


def test_splitting_costs_messages_only():
    assert world(4).run(lambda comm: comm.split(comm.rank % 2).size).trace.spans == []


# ------------------------------------------------------------
# What no operator tells: registered parameters and buffers, resized storages; hooks that come and go.


def at_peak_watch(fn, *args):
    return {name: nbytes for name, nbytes in measure(fn, *args).at_peak.items() if nbytes}


def test_parameters_also_those_that_no_operator_touches():
    def program():
        module = nn.Module()
        module.unused = nn.Parameter(torch.empty(100))
        module.register_buffer("table", torch.empty(50))
        module.table = torch.empty(60)  # replaces it
        return module

    assert at_peak_watch(program) == {"parameters": 400, "buffers": 440}
    assert at_peak_watch(lambda module: torch.ones(1), program()) == {
        "parameters": 400,
        "buffers": 240,
        "other": 4,
    }


@pytest.mark.parametrize(
    ("device", "read", "most"), [("meta", False, 200), ("meta", True, 600), ("cpu", False, 600)]
)
def test_a_parameter_on_meta_that_is_gone_unread_was_only_a_form(device, read, most):
    def program():
        module = nn.Module()
        module.weight = nn.Parameter(torch.empty(100, device=device), requires_grad=False)
        if read:
            module.weight.zero_()
        module.weight = nn.Parameter(torch.empty(50, device=device))
        return module

    assert at_peak_watch(program) == {"parameters": most}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storages_that_are_emptied_and_filled_again(device):
    weight = nn.Parameter(torch.ones(100, 10, device=device))

    def program():
        weight.data.untyped_storage().resize_(0)
        torch.zeros(300, device=device)
        weight.data.untyped_storage().resize_(4000)
        return weight * 2

    timeline = measure(program).timeline
    assert timeline.live["parameters"].tolist()[:2] == [4000, 0] and timeline.peak == 8000
    assert min(timeline.total) == 0


def test_hooks_are_gone_afterwards():
    before = (
        torch.UntypedStorage.resize_,
        len(torch.nn.modules.module._global_buffer_registration_hooks),
    )
    measure(torch.ones, 3)
    assert before == (
        torch.UntypedStorage.resize_,
        len(torch.nn.modules.module._global_buffer_registration_hooks),
    )
    with pytest.raises(TypeError):
        measure(torch.ones, "x")
    assert before[0] == torch.UntypedStorage.resize_


def test_what_operators_give_on_meta_is_remembered_rightly():
    """A factory's numbers decide its shape, and an operator may return its operand or not, as a number says."""

    def program(comm):
        lengths = [len(torch.arange(0.0, end, device="meta")) for end in (10.0, 20.0, 30.0)]
        x = torch.empty(8, 8, device="meta")
        torch.native_dropout(x, 0.0, True)  # gives x itself
        dropped, _ = torch.native_dropout(x, 0.5, True)
        return lengths, dropped is x

    assert World(1, device="meta", meter=True).run(program) == [([10, 20, 30], False)]
