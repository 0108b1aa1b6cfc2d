"""SyncBatchNorm on parts of a batch is BatchNorm on the whole: outputs, gradients, running statistics."""

import pytest
import torch
from torch import nn

from minidist.collectives import all_reduce_
from minidist.comm import World, launch
from minidist.parallel.batchnorm import SyncBatchNorm, statistics
from minidist.parallel.data import DataParallel
from tests.largest import largest, smallest
from tests.parallel.cases import difference, gradients, replicas_equal

CHANNELS = 3
SHAPES = {
    "1d": (CHANNELS,),
    "1d with length": (CHANNELS, 5),
    "2d": (CHANNELS, 4, 3),
    "3d": (CHANNELS, 2, 3, 2),
}
SERIAL = {
    "1d": nn.BatchNorm1d,
    "1d with length": nn.BatchNorm1d,
    "2d": nn.BatchNorm2d,
    "3d": nn.BatchNorm3d,
}
OPTIONS = [
    {},
    {"affine": False},
    {"momentum": None},
    {"track_running_stats": False},
    {"momentum": 0.3, "eps": 1e-3},
]


def parts(n):
    """Uneven parts, one of them empty from n = 3 on."""
    return [2, 3, 0, 1, 4][:n] if n > 1 else [4]


def batches(shape, sizes, steps, offset=0.0, dtype=torch.float64):
    """For each step x and a factor for the loss, of the whole batch."""
    random = torch.Generator().manual_seed(3)
    made = torch.randn(steps, 2, sum(sizes), *shape, generator=random, dtype=torch.float64)
    return [(x.add(offset).to(dtype), c.to(dtype)) for x, c in made]


def filled(norm):
    """With a weight, a bias and running statistics that are not 1 and 0."""
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for t in [*norm.parameters(), *norm.buffers()]:
            if t.is_floating_point():
                t.copy_(torch.rand(t.shape, generator=random, dtype=torch.float64) + 0.5)
    return norm


def passes(norm, steps):
    """What a norm makes of its batches: outputs and gradients of each step, then the state and an evaluation."""
    seen = []
    for x, c in steps:
        x = x.clone().requires_grad_()
        norm.zero_grad()
        y = norm(x)
        (y * c).sum().backward()
        seen.append((y.detach(), x.grad, gradients(norm)))
    state = {name: t.clone() for name, t in norm.state_dict().items()}
    return seen, state, norm.eval()(steps[0][0]).detach()


def on_parts(
    comm, kind, options, sizes, steps, dtype=torch.float64, offset=0.0, layer=SyncBatchNorm
):
    norm = filled(layer(CHANNELS, comm, **options).to(dtype))
    whole = batches(SHAPES[kind], sizes, steps, offset, dtype)
    first = sum(sizes[: comm.rank])
    seen, state, evaluated = passes(
        norm, [(x[first:][: sizes[comm.rank]], c[first:][: sizes[comm.rank]]) for x, c in whole]
    )
    for _, _, own in seen:  # a rank's share of the sum
        for grad in own.values():
            all_reduce_(comm, grad)
    return seen, state, evaluated


def worst(results, kind, options, sizes, steps, dtype=torch.float64, offset=0.0):
    """The largest difference to one process."""
    serial = filled(SERIAL[kind](CHANNELS, **options).double())
    seen, state, evaluated = passes(
        serial, batches(SHAPES[kind], sizes, steps, offset, torch.float64)
    )
    pairs = []
    for i, (y, dx, own) in enumerate(seen):
        mine = [r[0][i] for r in results]
        pairs += [(torch.cat([m[0] for m in mine]), y), (torch.cat([m[1] for m in mine]), dx)]
        pairs += [(m[2][name], own[name]) for m in mine for name in own]
    for _, mine, _ in results:
        assert list(mine) == list(state)
        pairs += [(mine[name], state[name]) for name in state]
    pairs.append((torch.cat([r[2] for r in results]), evaluated))
    return largest((a.double() - b.double()).abs().max().item() for a, b in pairs)


def every_case(comm, sizes):
    """{case: what this rank saw}."""
    cases = [(kind, 0) for kind in SHAPES] + [("2d", i) for i in range(len(OPTIONS))]
    return {(kind, i): on_parts(comm, kind, OPTIONS[i], sizes, 3) for kind, i in cases}


@pytest.mark.parametrize(
    ("run", "n"), [*(("world", n) for n in (1, 2, 3, 4, 5)), *(("shm", n) for n in (2, 3, 4))]
)
def test_the_serial_norm(run, n):
    runner = World(n).run if run == "world" else lambda *args: launch(args[0], n, *args[1:])
    results = runner(every_case, parts(n))
    for kind, i in results[0]:
        assert worst([r[kind, i] for r in results], kind, OPTIONS[i], parts(n), 3) < 1e-12, (
            kind,
            OPTIONS[i],
        )


def test_equal_parts_and_a_batch_that_others_have_alone():
    for sizes in ([2, 2, 2], [5, 0, 0], [1, 1, 1], [0, 0, 2]):
        results = World(3).run(on_parts, "1d", {}, sizes, 2)
        assert worst(results, "1d", {}, sizes, 2) < 1e-12, sizes


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 0.2), (torch.float16, 0.02)]
)
def test_dtypes(dtype, bound):
    """Bounds: roundings of that dtype, in gradients of sizes up to 10."""
    results = World(3).run(on_parts, "2d", {}, parts(3), 2, dtype)
    assert all(t.dtype == dtype for step in results[0][0] for t in step[:2])
    assert worst(results, "2d", {}, parts(3), 2, dtype) < bound


class Local(nn.BatchNorm2d):
    """Each rank normalizes by its own."""

    def __init__(self, channels, comm, **options):
        super().__init__(channels, **options)


class WithoutBackward(SyncBatchNorm):
    """Right forward, local backward."""

    def forward(self, x):
        y = super().forward(x)
        mean, var, _ = statistics(self.comm, x.detach())
        local = nn.functional.batch_norm(x, mean, var, self.weight, self.bias, False, 0.0, self.eps)
        return local + (y - local).detach()


class Biased(SyncBatchNorm):
    """Running variance of the batch, not of what it is a sample of."""

    def _track(self, mean, unbiased):
        super()._track(mean, unbiased * 0.9)


@pytest.mark.parametrize("wrong", [Local, WithoutBackward, Biased])
def test_a_wrong_variant_is_found(wrong):
    sizes = [2, 3]
    for layer in (SyncBatchNorm, wrong):
        results = World(2).run(on_parts, "2d", {}, sizes, 3, layer=layer)
        off = worst(results, "2d", {}, sizes, 3)
        assert off < 1e-12 if layer is SyncBatchNorm else off > 1e-3


def test_numbers_far_from_zero_do_not_cancel():
    """A mean of 1e6 and a variance of 1 in float64: sums of squares would keep 4 digits of it."""
    x = batches(SHAPES["2d"], [2, 3, 4], 1, offset=1e6)[0][0]
    var = (x - x.mean([0, 2, 3], keepdim=True)).square().mean([0, 2, 3])
    for _, ours, count in World(3).run(
        lambda comm: statistics(comm, x[[0, 2, 5][comm.rank] :][: comm.rank + 2])
    ):
        assert (ours - var).abs().max() < 1e-9 and count == 9 * 12
    assert (x.square().mean([0, 2, 3]) - x.mean([0, 2, 3]).square() - var).abs().max() > 1e-6


def network(norm):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        norm(4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        norm(3),
        nn.Flatten(),
        nn.Linear(12, 2),
    ).double()


def images(size):
    random = torch.Generator().manual_seed(5)
    return torch.randn(size, 2, 5, 5, generator=random, dtype=torch.float64)


def trained(comm, sizes, how):
    """Three steps of SGD of a network under DataParallel; the loss of the whole batch is the mean over samples."""
    model = DataParallel(
        SyncBatchNorm.convert(network(nn.BatchNorm2d), comm), comm, bucket_bytes=300
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first, mine = sum(sizes[: comm.rank]), sizes[comm.rank]
    model.weight = mine if how == "weight" else None
    for _ in range(3):
        optimizer.zero_grad()
        losses = model(images(sum(sizes))[first:][:mine]).square().sum(1)
        (losses.mean() if how != "sum" else losses.sum() / (sum(sizes) / comm.size)).backward()
        optimizer.step()
    return (
        gradients(model.module),
        model.state_dict(),
        replicas_equal(comm, [*model.parameters(), *model.buffers()]),
    )


def trained_serially(size):
    model = network(nn.BatchNorm2d)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(images(size)).square().sum(1).mean().backward()
        optimizer.step()
    return gradients(model), model.state_dict()


@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        ([6], "mean"),
        ([3, 3], "mean"),
        ([2, 4], "sum"),
        ([3, 1, 2], "sum"),
        ([4, 0, 2], "sum"),
        ([2, 2, 2, 2], "mean"),
    ],
)
def test_under_data_parallel(sizes, how):
    grads, state = trained_serially(sum(sizes))
    runs = [World(len(sizes)).run] + [lambda *args: launch(args[0], len(sizes), *args[1:])] * (
        min(sizes) in (0, 3)
    )
    for results in [run(trained, sizes, how) for run in runs]:
        for mine, at_end, same in results:
            assert same and list(at_end) == list(state)
            assert difference(mine, grads) < 1e-12
            assert largest((at_end[k] - state[k]).abs().max() for k in state) < 1e-12


@pytest.mark.parametrize("how", ["mean", "weight"])
def test_uneven_parts_need_the_sum(how):
    """A mean of each part's own is not the mean of all, and a weight after the backward comes too late."""
    grads, _ = trained_serially(6)
    assert (
        smallest(difference(mine, grads) for mine, *_ in World(2).run(trained, [2, 4], how)) > 1e-4
    )


def test_messages_and_bytes():
    def program(comm, steps, needs_grad=True, training=True):
        norm = SyncBatchNorm(64, comm).double().train(training)
        for _ in range(steps):
            norm(
                torch.randn(4, 64, dtype=torch.float64).requires_grad_(needs_grad)
            ).square().sum().backward()

    def one_step(n, *args):
        traces = [World(n).run(program, steps, *args).trace for steps in (2, 1)]
        return [
            (
                traces[0].messages(r) - traces[1].messages(r),
                traces[0].bytes_sent(r) - traces[1].bytes_sent(r),
            )
            for r in range(n)
        ]

    for n in (1, 2, 4):
        forward = (n - 1, (n - 1) * (2 * 64 + 1) * 8)
        assert (
            one_step(n)
            == [(forward[0] + 2 * (n - 1), forward[1] + 2 * (n - 1) * 2 * 64 // n * 8)] * n
        )
        assert one_step(n, False) == [forward] * n  # nobody asks for dx
        assert one_step(n, True, False) == [(0, 0)] * n


def test_meta_costs_the_same():
    def program(comm, device):
        norm = SyncBatchNorm(4, comm, momentum=None, device=device)
        x = torch.ones(comm.rank, 4, 3, device=device, requires_grad=True)
        norm(x).sum().backward()
        return x.grad.shape, norm.running_var.device.type

    real, meta = World(3), World(3, device="meta")
    assert real.run(program, "cpu")[2] == ((2, 4, 3), "cpu") and meta.run(program, "meta")[2] == (
        (2, 4, 3),
        "meta",
    )
    assert real.time == meta.time and real.trace == meta.trace


def test_recomputed_in_backward():
    """Checkpointing runs the forward, messages and all, once more."""

    def program(comm):
        norm = filled(SyncBatchNorm(CHANNELS, comm).double())
        x = batches(SHAPES["2d"], [2, 2], 1)[0][0][2 * comm.rank :][:2].requires_grad_()
        torch.utils.checkpoint.checkpoint(norm, x, use_reentrant=False).pow(3).sum().backward()
        return x.grad

    x = batches(SHAPES["2d"], [2, 2], 1)[0][0].requires_grad_()
    filled(nn.BatchNorm2d(CHANNELS).double())(x).pow(3).sum().backward()
    assert (torch.cat(World(2).run(program)) - x.grad).abs().max() < 1e-12


@pytest.mark.parametrize("sizes", [[1], [1, 0], [0, 0, 1], [0, 0]])
def test_too_few_values(sizes):
    def program(comm, size):
        SyncBatchNorm(3, comm)(torch.ones(sizes[comm.rank], 3, size))

    with pytest.raises(
        ValueError, match=rf"more than 1 value per channel.*{len(sizes)} ranks.*{sum(sizes)}"
    ):
        World(len(sizes)).run(program, 1)
    if sum(sizes):
        World(len(sizes)).run(program, 2)
        with pytest.raises(ValueError, match="more than 1 value"):
            nn.BatchNorm1d(3)(torch.ones(sum(sizes), 3))


@pytest.mark.parametrize("shape", [(5, 4), (3,), (3, 4, 2)])
def test_other_channels(shape):
    with pytest.raises(ValueError, match=rf"3 channels.*\({shape[0]},"):
        World(2).run(lambda comm: SyncBatchNorm(3, comm)(torch.ones(shape)))


def test_convert():
    def program(comm):
        torch.manual_seed(comm.rank)
        shared = nn.BatchNorm1d(4)
        module = nn.ModuleDict(
            {
                "a": nn.Sequential(nn.BatchNorm2d(3, momentum=None, eps=0.1), nn.Linear(2, 2)),
                "b": shared,
                "c": shared,
                "d": nn.BatchNorm3d(5, affine=False).eval(),
                "e": nn.BatchNorm2d(2, track_running_stats=False, dtype=torch.float64),
                "f": nn.InstanceNorm2d(3),
                "g": nn.BatchNorm2d(2),
            }
        )
        module["g"].weight.requires_grad_(False)
        names = list(module.state_dict())
        params = list(module.parameters())
        buffers = list(module.buffers())
        converted = SyncBatchNorm.convert(module, comm)
        assert converted is module and list(module.state_dict()) == names
        assert all(
            a is b
            for a, b in zip(
                [*module.parameters(), *module.buffers()], params + buffers, strict=True
            )
        )
        assert {k: type(m) for k, m in module.items() if k in "bcdefg"} == {
            "f": nn.InstanceNorm2d
        } | dict.fromkeys("bcdeg", SyncBatchNorm)
        a = module["a"][0]
        d = module["d"]
        e = module["e"]
        assert (type(a), a.momentum, a.eps, a.training, a.affine) == (
            SyncBatchNorm,
            None,
            0.1,
            True,
            True,
        )
        assert (
            module["b"] is module["c"] and not d.training and not d.affine and d.track_running_stats
        )
        assert (
            e.running_mean is None
            and not e.track_running_stats
            and not module["g"].weight.requires_grad
        )
        assert SyncBatchNorm.convert(module, comm)["b"] is module["b"]  # again: nothing more to do
        alone = SyncBatchNorm.convert(nn.BatchNorm1d(2), comm)
        return type(alone) is SyncBatchNorm and alone.comm is comm

    assert World(2).run(program) == [True, True]


def test_a_lazy_norm():
    with pytest.raises(ValueError, match="lazy batch norm"):
        World(1).run(lambda comm: SyncBatchNorm.convert(nn.Sequential(nn.LazyBatchNorm1d()), comm))


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str
)
def test_evaluation_in_another_dtype_than_the_parameters(dtypes):
    def program(comm):
        norm = SyncBatchNorm(3, comm, dtype=dtypes[0])
        x = torch.randn(4, 3, dtype=dtypes[1])
        norm(x)
        return norm.eval()(x).dtype

    assert World(2).run(program) == [dtypes[1]] * 2
