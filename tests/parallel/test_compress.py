"""Compressed gradients: what holds for every compression, then each one against its paper or PyTorch's hook."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import World, launch
from minidist.models import generator, mlp
from minidist.parallel.compress import (
    BLOCK,
    DGC,
    Dense,
    Half,
    PowerSGD,
    Sign,
    orthogonalize_,
    pack_signs,
    pack_sparse,
    unpack_signs,
    unpack_sparse,
    wanted,
)
from minidist.parallel.data import DataParallel
from minidist.study.predict import (
    dense_bytes,
    dgc_bytes,
    half_bytes,
    powersgd_bytes,
    sign_bytes,
)
from tests.largest import largest
from tests.parallel.cases import difference, replicas_equal
from tests.parallel.compress_cases import (
    EVERYWHERE,
    RUNS,
    Momentum,
    by_oracle,
    loss_of,
    net,
    train,
    worst,
)
from tests.size import FULL

MAKE = {
    "dense": Dense,
    "half": Half,
    "sign": Sign,
    "powersgd": lambda: PowerSGD(2),
    "dgc": lambda: DGC(0.9, small=30, clip=0.5),
}


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize("weighted", [False, True])
def test_dense_is_the_average(run, n, weighted):
    results = RUNS[run](n, train, Dense(), 4, weighted)
    assert worst(results, by_oracle(Momentum(0), n, 4, weighted)) < 1e-14


def resumed(comm, make, first, steps, through):
    """The parameters after `first + steps`, saved and loaded after `first` of them."""

    def some(model, begin, end):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(begin, end):
            if hasattr(model.compression, "set_epoch"):
                model.compression.set_epoch(step // 2)
            optimizer.zero_grad()
            loss_of(model, comm.rank, step).backward()
            optimizer.step()

    model = DataParallel(net(), comm, compression=make())
    some(model, 0, first)
    if through:
        saved = copy.deepcopy((model.state_dict(), model.compression.state_dict()))
        model = DataParallel(net(5), comm, compression=make())
        model.load_state_dict(saved[0])
        model.compression.load_state_dict(saved[1])
    some(model, first, first + steps)
    return [p.detach() for p in model.parameters()], copy.deepcopy(model.compression.state_dict())


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("name", MAKE)
def test_resumed_bit_for_bit(name):
    runs = [World(3).run(resumed, MAKE[name], 2, 3, through) for through in (False, True)]
    for one, other in zip(*runs, strict=True):
        assert difference(one[0], other[0]) == 0 and equal(one[1], other[1])


@pytest.mark.parametrize("name", ["sign", "powersgd", "dgc"])
def test_without_its_state_it_goes_another_way(name):
    def forgetful():
        made = MAKE[name]()
        made.load_state_dict = lambda state: None
        return made

    runs = [World(2).run(resumed, make, 3, 3, True)[0][0] for make in (MAKE[name], forgetful)]
    assert difference(*runs) > 1e-5


def test_loading_what_another_kept():
    with pytest.raises(ValueError, match=r"kept by Sign.*DGC"):
        DGC().load_state_dict(Sign().state_dict())

    def program(comm):
        compression = Sign()
        compression.load_state_dict(
            {
                "kind": "Sign",
                "parameters": {"first.weight": {"error": torch.zeros(7)}},
            }
        )
        train(comm, compression, 1)

    with pytest.raises(
        ValueError, match=r"first\.weight needs a kept error of shape \(240,\).*\(7,\)"
    ):
        World(2).run(program)


def test_a_loaded_state_is_a_copy():
    one, two = Sign(), Sign()
    one.state["w"] = {"error": torch.zeros(3)}
    two.load_state_dict(one.state_dict())
    two.state["w"]["error"].add_(1)
    assert one.state["w"]["error"].sum() == 0


def accumulated(comm, make, how):
    """The gradients after two micro-batches in one of several ways, twice, and what is kept."""
    model = DataParallel(net(), comm, compression=make())
    for step in range(2):
        one, two = (lambda i=i: loss_of(model, comm.rank, 2 * step + i) / 2 for i in (1, 2))  # noqa: B023
        model.zero_grad(set_to_none=how != "zeros")
        if how == "no_sync":
            with model.no_sync():
                one().backward()
            two().backward()
        else:
            (one() + two()).backward()
        if how == "average again":
            model.average()
    return [
        p.grad.clone() for p in model.parameters() if p.grad is not None
    ], model.compression.state_dict()


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("how", ["no_sync", "average again", "zeros"])
def test_accumulation(name, how):
    for one, other in zip(
        World(3).run(accumulated, MAKE[name], "at once"),
        World(3).run(accumulated, MAKE[name], how),
        strict=True,
    ):
        assert len(one[0]) == 7 and difference(one[0], other[0]) < (
            2e-3 if name == "half" else 1e-13
        )
        for param, kept in one[1]["parameters"].items():
            for what in kept.keys() & {"error", "u", "v"}:
                assert torch.allclose(kept[what], other[1]["parameters"][param][what], atol=1e-13)


@pytest.mark.parametrize("name", ["sign", "dgc"])
def test_two_backwards_add_two_averages(name):
    """What was averaged is not compressed a second time."""

    def program(comm, twice):
        model, total = DataParallel(net(), comm, compression=MAKE[name]()), 0
        for step in range(3):
            if not twice:
                model.zero_grad()
            loss_of(model, comm.rank, step).backward()
            total = total * (not twice) + model.module.first.weight.grad
        return total

    runs = [World(2).run(program, twice) for twice in (False, True)]
    assert (runs[0][0] - runs[1][0]).abs().max() < 1e-14


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(
    "options", [{"overlap": False, "bucket_bytes": 1}, {"algorithm": "halving_doubling"}]
)
def test_buckets_and_algorithms_do_not_matter(name, options):
    """Nor overlap, but for rounding."""
    runs = [
        World(4).run(train, MAKE[name](), 3, False, False, o)
        for o in ({"bucket_bytes": 25 << 20}, options)
    ]
    assert all(same for results in runs for _, same, _ in results)
    assert difference(runs[0][0][0][-1], runs[1][0][0][-1]) < (1e-3 if name == "half" else 1e-12)


class Branches(torch.nn.Module):
    """Each rank takes the branch of its choice."""

    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Linear(12, 12) for _ in range(3))

    def forward(self, x, which):
        return self.branches[which](x)


@pytest.mark.parametrize("name", MAKE)
def test_what_no_rank_has_waits(name):
    """Branch 2 has a gradient in the first step, then none: None for the optimizer, and what is kept does not move."""

    def program(comm):
        torch.manual_seed(0)
        model = DataParallel(Branches().double(), comm, compression=MAKE[name]())
        seen = []
        for which in (2, comm.rank, comm.rank, 2):
            model.zero_grad()
            model(
                torch.ones(2, 12, dtype=torch.float64) * (comm.rank + 1), which
            ).square().mean().backward()
            seen.append([p.grad is not None for b in model.module.branches for p in b.parameters()])
            kept = model.compression.state.get("branches.2.weight", {})
            seen.append({what: x.clone() for what, x in kept.items()})
        return seen, replicas_equal(comm, [p.grad for p in model.module.branches[2].parameters()])

    for seen, same in World(2).run(program):
        assert same and seen[0::2] == [
            [False] * 4 + [True] * 2,
            [True] * 4 + [False] * 2,
            [True] * 4 + [False] * 2,
            [False] * 4 + [True] * 2,
        ]
        assert equal(seen[1], seen[3]) and equal(seen[1], seen[5])


@pytest.mark.parametrize("name", MAKE)
def test_meta_sends_the_same(name):
    def program(comm, device):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Linear(20, 14)).to(device)
        model = DataParallel(layers, comm, compression=MAKE[name]())
        for _ in range(2):
            model(torch.ones(2, 12, device=device)).sum().backward()

    real, meta = World(3).run(program, "cpu"), World(3, device="meta").run(program, "meta")
    assert real.trace == meta.trace


# ------------------------------------------------------------
# Sparse vectors, there and back, in the bytes that are said.


@pytest.mark.parametrize("length", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0, 0.001, 1])
def test_there_and_back(length, dtype, share):
    count = min(length, 1 + int(share * length)) if share else 0
    random = torch.Generator().manual_seed(length)
    places = torch.randperm(length, generator=random)[:count].sort().values
    values = torch.randn(count, generator=random).to(dtype)
    packed = pack_sparse(values, places, length)
    assert packed.dtype == torch.uint8
    assert packed.numel() == count * (dtype.itemsize + 2) + 8 * -(-length // BLOCK)
    back = unpack_sparse(
        torch.cat([packed[:1], packed])[1:], count, length, dtype
    )  # at an odd address
    assert torch.equal(back[0], values) and torch.equal(back[1], places)


def test_only_in_the_last_block():
    places = torch.tensor([2 * BLOCK, 3 * BLOCK - 1])
    assert torch.equal(
        unpack_sparse(pack_sparse(torch.ones(2), places, 3 * BLOCK), 2, 3 * BLOCK, torch.float32)[
            1
        ],
        places,
    )


# ------------------------------------------------------------
# The formulas, by hand; and what is counted on the wire equals them.


SIZES = [30, 50, 20, 3]
SHAPES = [p.shape for p in mlp(SIZES).parameters()]
LARGE = [64, 1024, 1024, 10]  # 1.1 million weights


def test_by_hand():
    shapes = [(100, 50), (100,)]
    assert dense_bytes(shapes, 4) == 2 * 3 * 4 * 5102
    assert half_bytes(shapes, 4) == 2 * 3 * 2 * 5102
    assert sign_bytes(shapes, 4) == 2 * 3 * 4 * 2 + 4 * 3 * (638 + 8)
    assert powersgd_bytes(shapes, 4, 2) == 2 * 3 * 4 * (2 + 100 + 2 * 150)
    assert dgc_bytes(shapes, 4, 0.99) == 2 * 3 * 4 * (2 + 100) + 4 * 3 * (6 * 50 + 8)
    assert dgc_bytes(shapes, 4, 0.99, small=9999) == 2 * 3 * 4 * (2 + 5100)
    assert dgc_bytes([(1000,), (1001,), (11, 100)], 2, small=0) == 2 * 4 * 3 + 2 * (6 * 5 + 8)
    # 3·23 numbers would not save half
    assert powersgd_bytes([(3, 4, 5), ()], 2, 8) == 2 * 4 * (2 + 61)


def steps(comm, compression, sizes, device, count, dtype=torch.float32):
    model = DataParallel(
        mlp(sizes, dtype=dtype, device=device),
        comm,
        bucket_bytes=1 << 30,
        first_bucket_bytes=1 << 30,
        compression=compression,
    )
    x = torch.ones(2, sizes[0], dtype=dtype, device=device)
    for step in range(count):
        model.zero_grad()
        model(x * (comm.rank + step)).square().sum().backward()


def a_step(n, *args, **kwargs):
    """Bytes of the second step, all ranks together."""
    device = args[-1]
    more, less = (
        World(n, device=device).run(steps, *args, c, **kwargs).trace.bytes_sent() for c in (2, 1)
    )
    return more - less


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_counted(n, device):
    for compression, said in [
        (Dense(), dense_bytes(SHAPES, n)),
        (Half(), half_bytes(SHAPES, n)),
        (Sign(), sign_bytes(SHAPES, n)),
        (PowerSGD(1), powersgd_bytes(SHAPES, n)),
        (PowerSGD(4), powersgd_bytes(SHAPES, n, 4)),
        (DGC(0.99, small=60, warm_up=()), dgc_bytes(SHAPES, n, 0.99, 60)),
        (DGC(0.9, small=0, clip=1, warm_up=(), masking=False), dgc_bytes(SHAPES, n, 0.9, 0)),
    ]:
        assert a_step(n, compression, SIZES, device) == said


def test_counted_in_float64():
    """6 tensors of 2,633 numbers, one of at least 1,024: of its 1,500 numbers 15 are sent."""
    counted = a_step(3, DGC(0.99, warm_up=()), SIZES, "cpu", dtype=torch.float64)
    assert counted == 2 * 2 * 8 * (6 + 1133) + 3 * 2 * (10 * 15 + 8)
    counted = a_step(3, Sign(), SIZES, "cpu", dtype=torch.float64)
    assert counted == 2 * 2 * 8 * 6 + 3 * 2 * (330 + 8 * 6)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_million_weights_at_every_sparsity_of_the_warm_up(n, figure):
    shapes = [p.shape for p in mlp(LARGE, device="meta").parameters()]
    for sparsity in (0.75, 0.9375, 0.984375, 0.996, 0.999) if n == 2 or FULL else (0.999,):
        counted = a_step(n, DGC(sparsity, warm_up=()), LARGE, "meta")
        assert counted == dgc_bytes(shapes, n, sparsity)
    dense = a_step(n, None, LARGE, "meta")
    figure(f"n={n}: {counted:,} B a step at 99.9 %, as by formula; dense {dense:,}")
    assert n != 2 or 400 * counted <= dense


def test_a_million_weights_of_values():
    """Beside the meta device: the same, of a real step."""
    for n in (1, 2, 3, 4) if FULL else (2,):
        assert a_step(n, DGC(warm_up=()), LARGE, "cpu") == a_step(n, DGC(warm_up=()), LARGE, "meta")


# ------------------------------------------------------------
# Deep gradient compression: step by step what the paper's algorithms do, written again in numpy; each part matters.


SMALL = 30  # numbers: the biases and the scale


class DgcOracle:
    """Lin et al. 2018, Algorithms 4 and 5 (Algorithm 1 without momentum), node by node, threshold and mask."""

    def __init__(self, sparsities, m=0.9, masking=True, clip=None):
        self.sparsities = sparsities
        self.m = m
        self.masking = masking
        self.clip = clip
        self.small = Momentum(m)
        self.U = {}
        self.V = {}

    def __call__(self, step, grads):
        sparsity = self.sparsities[min(step, len(self.sparsities) - 1)]
        if self.clip:
            grads = [self.clipped(of, len(grads)) for of in grads]
        exact = {name for name, g in grads[0].items() if g.size < SMALL}
        averages = self.small(
            step, [{name: of[name] for name in of if name in exact} for of in grads]
        )
        for node, of in enumerate(grads):
            for name in of.keys() - exact:
                averages[name] = averages.get(name, 0) + self.sparse(
                    (node, name), of[name], sparsity
                )
        return averages

    def clipped(self, grads, nodes):
        threshold, norm = (
            self.clip * nodes**-0.5,
            np.sqrt(sum((g**2).sum() for g in grads.values())),
        )
        return {
            name: g * (threshold / norm if norm > threshold else 1) for name, g in grads.items()
        }

    def sparse(self, key, G, sparsity):
        U, V = self.U.get(key, np.zeros(G.shape)), self.V.get(key, np.zeros(G.shape))
        U = self.m * U + G
        V = V + U
        sent = -int(-G.size * round(1000 * (1 - sparsity)) // 1000)
        threshold = np.sort(np.abs(V).ravel())[::-1][sent - 1]
        mask = np.abs(V) >= threshold
        self.V[key] = np.where(mask, 0, V)
        self.U[key] = np.where(mask, 0, U) if self.masking else U
        return np.where(mask, V, 0)


WARM = (0.5, 0.75, 0.9, 0.95)
CASES = {
    "plain": ({}, {}),
    "no masking": ({"masking": False}, {"masking": False}),
    "no momentum": ({"momentum": 0}, {"m": 0}),
    "clipped": ({"clip": 0.3}, {"clip": 0.3}),
    "clipped, another momentum": ({"clip": 0.1, "momentum": 0.7}, {"clip": 0.1, "m": 0.7}),
}


def compression(**options):
    return DGC(0.97, warm_up=WARM, small=SMALL, **options)


@pytest.mark.parametrize("case", CASES)
def test_the_papers_algorithm_on_one_rank(case):
    ours, theirs = CASES[case]
    results = World(1).run(train, compression(**ours), 20, False, True)
    # the norm is divided by with 1e-6 more, as torch does
    bound = 1e-5 if "clip" in theirs else 1e-12
    assert worst(results, by_oracle(DgcOracle((*WARM, 0.97), **theirs), 1, 20)) < bound


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize("case", ["plain", "clipped, another momentum"])
def test_over_ranks(run, n, case):
    ours, theirs = CASES[case]
    results = RUNS[run](n, train, compression(**ours), 6, False, True)
    assert worst(results, by_oracle(DgcOracle((*WARM, 0.97), **theirs), n)) < (
        1e-5 if "clip" in theirs else 1e-12
    )


@pytest.mark.parametrize("case", ["plain", "clipped"])
def test_dgc_with_weights(case):
    ours, theirs = CASES[case]
    results = World(3).run(train, compression(**ours), 6, True, True)
    expected = by_oracle(DgcOracle((*WARM, 0.97), **theirs), 3, 6, True)
    assert worst(results, expected) < (1e-5 if "clip" in theirs else 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_each_part_makes_a_difference(case):
    """Ten times the bound at least: a part that does nothing would be found."""
    if case != "plain":
        plain, other = (
            World(2).run(train, compression(**CASES[c][0]), 6, False, True)[0][0][-1]
            for c in ("plain", case)
        )
        assert difference(plain, other) > 1e-4


def test_everything_sent_and_nothing_masked_is_momentum_sgd():
    results = World(3).run(train, DGC(0, masking=False, warm_up=(), small=0))
    assert worst(results, by_oracle(Momentum(0.9), 3)) < 1e-12


def conserved(comm):
    """The sum of what was sent and is kept, minus that of the gradients."""
    grads = {"w": torch.zeros(40, 50, dtype=torch.float64)}
    bucket = Bucket(grads)
    ours = DGC(0.95, momentum=0, warm_up=())
    total = 0
    given = 0
    for step in range(5):
        g = torch.randn(
            40,
            50,
            generator=torch.Generator().manual_seed(step * 7 + comm.rank),
            dtype=torch.float64,
        )
        grads["w"].copy_(g)
        given = given + g
        ours.average_(comm, bucket, None)
        total = total + grads["w"]
    return total, given, ours.state["w"]["v"].view(40, 50)


class Bucket:
    """What a compression sees of one."""

    def __init__(self, views):
        self.views, (self.grads,) = views, (g.view(-1) for g in views.values())
        self.flags = torch.ones(1, dtype=torch.float64)

    def there(self):
        return set(self.views)


@pytest.mark.parametrize("n", [1, 3])
def test_nothing_is_lost(n):
    results = World(n).run(conserved)
    given, kept = (sum(r[i] for r in results) for i in (1, 2))
    for total, _, _ in results:
        assert torch.equal(total, results[0][0])
        assert (total + kept - given).abs().max() < 1e-12
    assert (kept != 0).any()


def test_a_part_of_a_number_is_sent_whole():
    """As in the authors' code, ⌈ratio·length⌉; and no more where a float only comes out too large."""
    for ratio, sparsity in ((1, 0.999), (10, 0.99), (4, 0.996), (250, 0.75)):
        for length in (1, 2, 30, 999, 1000, 1001, 1999, 3000, 123_456, 1_000_000, 1_000_000_001):
            up = -(-length * ratio // 1000)
            assert wanted(length, sparsity) == up and wanted(length, 0) == length
            if length <= 1_000_000:
                assert dgc_bytes([(length,)], 2, sparsity, 0) == 8 + 2 * (
                    6 * up + 8 * -(-length // 65536)
                )


def test_the_sparsity_of_an_epoch():
    ours = DGC()
    seen = []
    for epoch in range(6):
        ours.set_epoch(epoch)
        seen.append(ours.sparsity)
    assert seen == [0.75, 0.9375, 0.984375, 0.996, 0.999, 0.999]


def test_clipping_waits_for_the_whole_gradient():
    """Nothing is sent before the end of backward; without it the first bucket is."""

    def program(comm, clip):
        model = DataParallel(net(), comm, bucket_bytes=1, compression=DGC(0.9, clip=clip))
        started = []
        model.module.first.bias.register_post_accumulate_grad_hook(
            lambda p: started.append(model._reducer._started)
        )
        for step in range(2):
            model.zero_grad()
            loss_of(model, comm.rank, step).backward()
        return started[-1]

    assert World(2).run(program, 1.0)[0] == 0 < World(2).run(program, None)[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sparsity": 1.0}, "sparsity.*1.0"),
        ({"warm_up": (-0.1,)}, "sparsity.*-0.1"),
        ({"momentum": 1}, "momentum.*1"),
        ({"clip": 0}, "clip.*0"),
    ],
)
def test_dgc_what_cannot_be(options, words):
    with pytest.raises(ValueError, match=words):
        DGC(**options)


# ------------------------------------------------------------
# 16 bits: beside PyTorch's own hooks, and what they lose.


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize(("dtype", "unit"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_within_a_rounding(run, n, dtype, unit):
    """Gradients here are below 2, so an average of n is off by less than 2n roundings, and the learning rate less."""
    results = RUNS[run](n, train, Half(dtype), 1)
    assert worst(results, by_oracle(Momentum(0), n, 1)) < 2 * n * unit * 0.05


def theirs_and_ours(comm):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    def theirs(module):
        model = nn.parallel.DistributedDataParallel(module, process_group=comm.group)
        model.register_comm_hook(comm.group, fp16_compress_hook)
        return model

    found = []
    for wrap in (theirs, lambda module: DataParallel(module, comm, compression=Half())):
        torch.manual_seed(0)
        model = wrap(nn.Linear(20, 30))
        x = torch.randn(4, 20, generator=torch.Generator().manual_seed(comm.rank))
        model(x).square().mean().backward()
        found.append(model.module.weight.grad.clone())
    return found


def test_half_beside_pytorchs_hook():
    """Bit for bit at two ranks: halving before or after the rounding is the same."""
    for theirs, ours in launch(theirs_and_ours, 2, transport="gloo"):
        assert torch.equal(theirs, ours)


def test_no_overflow_in_the_sum():
    def program(comm):
        layer = nn.Linear(1, 1, bias=False)
        (DataParallel(layer, comm, compression=Half())(torch.ones(1, 1)) * 40_000).sum().backward()
        return layer.weight.grad.item()

    assert World(4).run(program) == [40_000.0] * 4


def test_bf16_has_the_range_of_fp32():
    def program(comm):
        layer = nn.Linear(1, 1, bias=False)
        (
            DataParallel(layer, comm, compression=Half(torch.bfloat16))(torch.ones(1, 1)) * 2.0**20
        ).sum().backward()
        return layer.weight.grad.item()

    assert World(2).run(program) == [2.0**20] * 2


def test_a_dtype_that_is_not_half():
    with pytest.raises(ValueError, match="float32"):
        Half(torch.float32)


# ------------------------------------------------------------
# Orthonormal columns, of the same span.


@pytest.mark.parametrize("shape", [(5, 1), (5, 2), (7, 3), (4, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_orthonormal_columns_of_the_same_span(shape, dtype):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)
    ours, x = orthogonalize_(x.clone()).double(), x.double()
    bound = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 3e-2}[dtype]
    assert (ours.T @ ours - torch.eye(shape[1])).abs().max() < 4 * bound
    assert (ours @ (ours.T @ x) - x).abs().max() < 8 * bound


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_of_zeros_nothing_is_nan(columns):
    assert orthogonalize_(torch.zeros(4, columns)).isfinite().all()


# ------------------------------------------------------------
# PowerSGD: beside PyTorch's hook, and against the paper's algorithm in numpy.


class PowersgdOracle:
    """Vogels et al. 2019, Algorithms 1 and 2, for matrices that are worth it: the mean over all nodes at each place."""

    def __init__(self, rank, feedback=True):
        self.rank = rank
        self.Q = {}
        self.errors = {}
        self.feedback = feedback

    def __call__(self, step, grads):
        n, averages = len(grads), Momentum(0)(step, grads)
        for name in averages:
            if averages[name].ndim < 2:
                continue
            rows = averages[name].shape[0]
            M = [
                n * of[name].reshape(rows, -1) + self.errors.get((k, name), 0)
                for k, of in enumerate(grads)
            ]
            columns = M[0].shape[1]
            if 2 * self.rank * (rows + columns) >= rows * columns:
                continue
            if name not in self.Q:
                self.Q[name] = torch.randn(
                    columns, self.rank, generator=generator(0, name), dtype=torch.float64
                ).numpy()
            P = self.orthogonal(sum(m @ self.orthogonal(self.Q[name]) for m in M) / n)
            self.Q[name] = sum(m.T @ P for m in M) / n
            product = P @ self.Q[name].T
            if self.feedback:
                self.errors.update({(k, name): m - product for k, m in enumerate(M)})
            averages[name] = product.reshape(averages[name].shape)
        return averages

    def orthogonal(self, P):
        columns = []
        for p in P.T:
            for c in columns:
                p = p - (c @ p) * c
            columns.append(p / np.sqrt(p @ p))
        return np.stack(columns, 1)


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
@pytest.mark.parametrize("rank", [1, 2])
def test_the_papers_algorithm(run, n, rank):
    results = RUNS[run](n, train, PowerSGD(rank))
    assert worst(results, by_oracle(PowersgdOracle(rank), n)) < 1e-10


def test_error_feedback_makes_a_difference():
    with_it, without = (by_oracle(PowersgdOracle(1, feedback), 3) for feedback in (True, False))
    assert difference(with_it[-1], without[-1]) > 1e-4


def test_with_the_rank_of_the_gradient_it_is_exact():
    """Three ranks with one sample each: the rank of the mean is 3."""

    def program(comm, compression):
        model = DataParallel(mlp([30, 40], dtype=torch.float64), comm, compression=compression)
        for step in range(3):
            random = torch.Generator().manual_seed(10 * step + comm.rank)
            x = torch.randn(1, 30, generator=random, dtype=torch.float64)
            model.zero_grad()
            model(x).square().sum().backward()
        return [p.grad for p in model.parameters()]

    two, three, exact = (
        World(3).run(program, how)[0] for how in (PowerSGD(2), PowerSGD(3), Dense())
    )
    assert difference(three, exact) < 1e-10 < 1e-3 < difference(two, exact)


def torchs(module, comm, rank, start):
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
        PowerSGDState,
        powerSGD_hook,
    )

    model = nn.parallel.DistributedDataParallel(module, process_group=comm.group)
    model.register_comm_hook(PowerSGDState(comm.group, rank, start, random_seed=0), powerSGD_hook)
    return model


class AsTorchs(PowerSGD):
    """Exact for `start` steps, as torch's must be until its buckets are laid out; then from the Qs that torch's draws."""

    def __init__(self, rank, start):
        super().__init__(rank)
        self.exact = start

    def average_(self, comm, bucket, algorithm):
        self.exact -= 1
        if self.exact >= 0:
            all_reduce_(comm, bucket.buffer)
            return
        if self.exact == -1:
            self.draw({name: g for name, g in bucket.views.items() if not self._is_small(g)})
        super().average_(comm, bucket, algorithm)

    def draw(self, matrices):
        """All of one shape after the other, in the order of the bucket."""
        random = torch.Generator().manual_seed(np.random.RandomState(0).randint(1_000_000_000))
        for shape in dict.fromkeys(g.shape for g in matrices.values()):
            for name in [name for name, g in matrices.items() if g.shape == shape]:
                q = torch.randn(shape[1], self.rank, generator=random, dtype=torch.float64)
                self.state[name] = {"q": q}


def ours(module, comm, rank, start):
    return DataParallel(module, comm, compression=AsTorchs(rank, start))


def trained(comm, wrap, options, steps=20):
    """One bucket: with several, torch's hook waits for gloo in gloo's own two threads, and may hang."""
    model = wrap(mlp([16, 40, 40, 24, 10], dtype=torch.float64), comm, *options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x = torch.randn(
            8,
            16,
            generator=torch.Generator().manual_seed(10 * step + comm.rank),
            dtype=torch.float64,
        )
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


OPTIONS = {"rank 1": (1, 2), "rank 3": (3, 3), "rank 2, later": (2, 4)}  # rank, start


def beside(comm, cases):
    """{case: how far ours are from torch's after 20 steps}, and how far torch's are from exact averages."""
    found = {
        case: difference(*(trained(comm, wrap, OPTIONS[case]) for wrap in (ours, torchs)))
        for case in cases
    }
    exact = difference(*(trained(comm, ours, (1, start)) for start in (2, 99)))
    return found, exact


@pytest.mark.parametrize("n", [2, 3, 4] if FULL else [2, 3])
def test_powersgd_beside_pytorchs_hook(n, figure):
    for found, exact in launch(
        beside, n, list(OPTIONS) if n == 2 or FULL else ["rank 1"], transport="gloo"
    ):
        figure(f"n={n}: apart {largest(found.values()):.1e}; from exact averages {exact:.1e}")
        assert largest(found.values()) < 1e-6 < 1e-3 < exact


def test_a_parameter_that_comes_late_begins_alike():
    def program(comm):
        net = mlp([20, 30, 20], seed=comm.rank)
        net[2].requires_grad_(False)
        model = DataParallel(net, comm, compression=PowerSGD(2))
        for step in range(4):
            net[2].requires_grad_(step > 1)
            model.zero_grad()
            model(torch.ones(2, 20)).square().sum().backward()
        return model.compression.state["2.weight"]["q"]

    assert torch.equal(*World(2).run(program))


def test_a_layer_that_is_not_reached_is_not_nan():
    def program(comm):
        net = mlp([20, 30, 20])
        model = DataParallel(net, comm, compression=PowerSGD(2))
        for _ in range(2):
            (model(torch.ones(2, 20)) * 0).sum().backward()
        return [p.grad for p in net.parameters()]

    assert all((g == 0).all() for g in World(2).run(program)[0])


def test_powersgd_what_cannot_be():
    with pytest.raises(ValueError, match="not 0"):
        PowerSGD(0)


# ------------------------------------------------------------
# How many are the largest.


@pytest.mark.parametrize(
    ("length", "sparsity", "k"),
    [
        (1000, 0.999, 1),
        (1_000_000, 0.999, 1000),
        (10, 0.999, 1),
        (64, 0.75, 16),
        (5, 0.0, 5),
    ],
)
def test_how_many(length, sparsity, k):
    assert wanted(length, sparsity) == k


# ------------------------------------------------------------
# Signs: against the paper's rule in numpy; packed; and what error feedback is for.


class SignOracle:
    """Karimireddy et al. 2019, Algorithm 1, for each rank and tensor."""

    def __init__(self):
        self.errors = {}

    def __call__(self, step, grads):
        averages = {}
        for rank, of in enumerate(grads):
            for name, g in of.items():
                p = g + self.errors.get((rank, name), 0)
                sent = np.linalg.norm(p.ravel(), 1) / p.size * np.where(p < 0, -1.0, 1.0)
                self.errors[rank, name] = p - sent
                averages[name] = averages.get(name, 0) + sent
        return averages


@pytest.mark.parametrize(("run", "n"), EVERYWHERE)
def test_the_papers_rule(run, n):
    results = RUNS[run](n, train, Sign())
    assert worst(results, by_oracle(SignOracle(), n)) < 1e-12


def test_sign_with_weights():
    assert worst(World(3).run(train, Sign(), 6, True), by_oracle(SignOracle(), 3, 6, True)) < 1e-12


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 1001])
def test_packing(length):
    signs = torch.randn(length, generator=torch.Generator().manual_seed(length)) >= 0
    packed = pack_signs(signs)
    assert packed.dtype == torch.uint8 and packed.numel() == -(-length // 8)
    assert torch.equal(unpack_signs(packed, length, torch.float32), signs.float() * 2 - 1)


class Line(torch.nn.Module):
    """A linear function: 200 steps of SGD at a rate of 0.01 move x by −2 times its slope."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.ones(10, dtype=torch.float64))

    def forward(self, slope):
        return (slope * self.x).sum()


def missed(comm, feedback):
    """How far x is from where it should be. One slope is 100 times as steep as the others, and the other way."""
    slope = torch.full((10,), 0.01, dtype=torch.float64)
    slope[0] = -1.0
    line = Line()
    model = DataParallel(line, comm, compression=Sign())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        model(slope).backward()
        optimizer.step()
        if not feedback:
            model.compression.state.clear()
    return (line.x.detach() - (1 - 2 * slope)).abs().max().item()


def test_without_error_feedback_all_move_alike():
    with_it, without = (World(2).run(missed, feedback)[0] for feedback in (True, False))
    assert with_it < 0.2 and without > 1
