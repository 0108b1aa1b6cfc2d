"""The cross-entropy of parts is that of the whole: `F.cross_entropy`, value and gradient, and few bytes."""

import math

import pytest
import torch
import torch.nn.functional as F

from minidist.comm import Cluster, Device, World, launch
from minidist.parallel.vocab import cross_entropy, gathered_cross_entropy, vocab_cross_entropy
from minidist.split import uneven
from tests.largest import largest

BOTH = [vocab_cross_entropy, gathered_cross_entropy]
OPTIONS = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
    {"ignore_index": 3},
    {"reduction": "none", "label_smoothing": 1.0, "ignore_index": -1},
]


def tokens(vocab, shape, ignore_index=-100):
    """Logits of deviation 3, and targets of which some are ignored."""
    random = torch.Generator().manual_seed(vocab)
    logits = 3 * torch.randn(*shape, vocab, generator=random, dtype=torch.float64)
    targets = torch.randint(0, vocab, shape, generator=random)
    targets.view(-1)[1::4] = ignore_index
    return logits, targets


def weighted(losses):
    """One number, in which every loss has another weight."""
    return (losses * torch.arange(1, losses.numel() + 1).view(losses.shape)).sum()


def on_part(comm, f, logits, targets, options=None):
    """(loss, gradient of this rank's part)."""
    vocab = logits.shape[-1]
    part = logits.split(uneven(vocab, comm.size), -1)[comm.rank].clone().requires_grad_()
    loss = f(part, targets, comm, vocab, **(options or {}))
    weighted(loss).backward()
    return loss.detach(), part.grad


def serial(logits, targets, options=None):
    whole = logits.double().clone().requires_grad_()
    loss = F.cross_entropy(
        whole.view(-1, whole.shape[-1]), targets.view(-1).long(), **(options or {})
    )
    loss = loss.view(targets.shape) if loss.dim() else loss
    weighted(loss).backward()
    return loss.detach(), whole.grad


def worst(results, expected):
    """The largest difference; every rank has the same loss, bit for bit."""
    assert all(torch.equal(loss, results[0][0]) or loss.isnan().any() for loss, _ in results)
    got = results[0][0], torch.cat([grad for _, grad in results], -1)
    assert [g.shape for g in got] == [e.shape for e in expected]
    return largest(
        (g.double() - e).abs().max().item() for g, e in zip(got, expected, strict=True) if g.numel()
    )


def both_ways(run, n, *args):
    return (World(n).run if run == "world" else lambda *a: launch(a[0], n, *a[1:]))(*args)


def every_case(comm, vocabs):
    """{case: (loss, gradient)}."""
    cases = [(f, v, i) for f in BOTH for v in vocabs for i in range(len(OPTIONS))]
    return {(f.__name__, v, i): on_part(comm, f, *given(v, i)) for f, v, i in cases}


def given(vocab, i):
    return *tokens(vocab, (2, 3), OPTIONS[i].get("ignore_index", -100)), OPTIONS[i]


@pytest.mark.parametrize(
    ("run", "n"), [*(("world", n) for n in (1, 2, 3, 4, 7)), *(("shm", n) for n in (2, 3))]
)
def test_the_serial_loss(run, n):
    results = both_ways(run, n, every_case, [5, 11])
    for name, vocab, i in results[0]:
        off = worst([r[name, vocab, i] for r in results], serial(*given(vocab, i)))
        assert off < 1e-12, (name, vocab, OPTIONS[i])


@pytest.mark.parametrize(("run", "n"), [("world", 3), ("world", 4), ("shm", 3), ("shm", 4)])
def test_the_vocabulary_of_gpt_2(run, n):
    logits, targets = tokens(50_257, (9,))
    options = {"label_smoothing": 0.1}
    results = both_ways(run, n, on_part, vocab_cross_entropy, logits, targets, options)
    assert [grad.shape[1] for _, grad in results] == uneven(50_257, n)
    assert worst(results, serial(logits, targets, options)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}])
def test_logits_of_ten_thousand(dtype, options):
    """Loss: float32's rounding of numbers up to 2e4. Gradient, of numbers up to 1: the type's own rounding."""
    logits, targets = tokens(1001, (6,))
    logits = logits.sign() * 1e4 + logits
    logits[0], logits[1, 500:] = 1e4, -1e4
    results = World(3).run(on_part, vocab_cross_entropy, logits.to(dtype), targets, options)
    loss, grad = serial(logits.to(dtype), targets, options)
    for mine, _ in results:
        assert mine.dtype == torch.float32 and abs(mine - loss) < 4e-7 * loss
    got = torch.cat([g for _, g in results], -1)
    assert got.dtype == dtype and (got - grad).abs().max() < torch.finfo(dtype).eps


def test_small_losses_keep_their_digits():
    """log s, not (m + log s) − m: beside 1e4 a loss of 1e-3 would be lost in float32."""
    logits = torch.full((1, 9), 1e4 - 9)
    logits[0, 4] = 1e4
    loss, _ = World(3).run(on_part, vocab_cross_entropy, logits, torch.tensor([4]))[2]
    assert math.isclose(loss, math.log1p(8 * math.exp(-9)), rel_tol=1e-3)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}])
def test_logits_of_minus_infinity(options):
    """A masked token; a part that is masked altogether; everything."""
    logits, targets = tokens(9, (4,))
    targets[0], targets[2] = 8, 1
    logits[0, 1], logits[2, 3:6] = -torch.inf, -torch.inf
    results = World(3).run(
        on_part, vocab_cross_entropy, logits, targets, options | {"reduction": "none"}
    )
    loss, grad = serial(logits, targets, options | {"reduction": "none"})
    for mine, _ in results:
        assert torch.allclose(mine, loss, rtol=0, atol=1e-12)
    assert torch.allclose(torch.cat([g for _, g in results], -1), grad, rtol=0, atol=1e-12)
    logits[3] = -torch.inf
    for mine, _ in World(3).run(
        on_part, vocab_cross_entropy, logits, targets, {"reduction": "none"}
    ):
        assert mine.isnan().tolist() == [False] * 3 + [True]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(3,), (0,), (2, 0)])
def test_nothing_to_learn(reduction, shape):
    """All tokens ignored, or none there: PyTorch's answer, which is nan for a mean."""
    logits, targets = tokens(5, shape)
    targets[:] = -100
    expected = serial(logits, targets, {"reduction": reduction})
    for f in BOTH:
        loss, grad = World(1).run(on_part, f, logits, targets, {"reduction": reduction})[0]
        for got, want in zip((loss, grad), expected, strict=True):
            assert got.shape == want.shape and torch.allclose(got, want, equal_nan=True)


def test_layouts_and_types():
    """Strided logits, targets of other whole types, no leading dimension."""
    logits, targets = tokens(6, (5,), 0)
    expected = serial(logits, targets)

    def program(comm):
        a, b = 3 * comm.rank, 3 * comm.rank + 3
        part = logits.t().contiguous().t()[:, a:b].detach().requires_grad_()
        loss = vocab_cross_entropy(part, targets.to(torch.int32), comm, 6)
        loss.backward()
        alone = vocab_cross_entropy(logits[0, a:b], targets[0], comm, 6)
        return loss.detach(), part.grad, alone

    results = World(2).run(program)
    assert worst([r[:2] for r in results], expected) < 1e-12
    assert all(abs(r[2] - F.cross_entropy(logits[0], targets[0])) < 1e-12 for r in results)


def sent(n, f, vocab, count, backward=True, dtype=torch.float32, **options):
    """(messages, bytes) of each rank."""

    def program(comm):
        part = torch.randn(count, uneven(vocab, n)[comm.rank], dtype=dtype).requires_grad_()
        loss = f(part, torch.arange(count), comm, vocab, **options)
        if backward:
            loss.backward()

    trace = World(n).run(program).trace
    return [(trace.messages(r), trace.bytes_sent(r)) for r in range(n)]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_messages_and_bytes(n):
    """By hand: n−1 messages of three numbers a token; four with smoothing; V is not there, and backward is silent."""
    for vocab in (50, 100, 5000):
        for backward in (False, True):
            assert (
                sent(n, vocab_cross_entropy, vocab, 20, backward)
                == [(n - 1, (n - 1) * 20 * 12)] * n
            )
        assert (
            sent(n, vocab_cross_entropy, vocab, 20, label_smoothing=0.1)
            == [(n - 1, (n - 1) * 20 * 16)] * n
        )
        assert (
            sent(n, vocab_cross_entropy, vocab, 20, dtype=torch.bfloat16)
            == [(n - 1, (n - 1) * 20 * 12)] * n
        )
        own = uneven(vocab, n)
        naive = [(n - 1, 20 * 4 * (vocab - own[(r + 1) % n])) for r in range(n)]
        assert sent(n, gathered_cross_entropy, vocab, 20) == naive


def test_no_copy_of_all_logits_in_float32():
    """What forward and backward need beside logits and gradient, of 4 MiB each in bfloat16: blocks of 0.5 MiB."""

    def program(comm):
        part = torch.zeros(256, 8192, dtype=torch.bfloat16, requires_grad=True)
        vocab_cross_entropy(part, torch.arange(256), comm, 8192 * comm.size).backward()

    device = Device("a device", {torch.float32: 1e12, torch.bfloat16: 1e12}, 1 << 30, 1e12)
    world = World(2, cluster=Cluster.uniform(2, 1e-6, 1e-9, device))
    world.run(program)
    for rank in range(2):
        assert 8 << 20 < world.trace.memory[rank].peak < 10 << 20


def test_meta_costs_the_same():
    def program(comm, device):
        part = torch.zeros(8, uneven(11, comm.size)[comm.rank], device=device, requires_grad=True)
        vocab_cross_entropy(
            part, torch.zeros(8, dtype=torch.int64, device=device), comm, 11, label_smoothing=0.1
        ).backward()
        return part.grad.shape

    real, meta = World(3), World(3, device="meta")
    assert real.run(program, "cpu") == meta.run(program, "meta") == [(8, 4), (8, 4), (8, 3)]
    assert real.time == meta.time and real.trace == meta.trace


def test_blocks_do_not_change_the_result(monkeypatch):
    logits, targets = tokens(50, (9,))
    expected = World(2).run(on_part, vocab_cross_entropy, logits, targets, {"label_smoothing": 0.1})
    monkeypatch.setattr(cross_entropy, "CACHED", 60)
    got = World(2).run(on_part, vocab_cross_entropy, logits, targets, {"label_smoothing": 0.1})
    assert all(
        torch.equal(a, b)
        for r, s in zip(got, expected, strict=True)
        for a, b in zip(r, s, strict=True)
    )


def test_a_second_derivative_is_refused():
    def program(comm):
        part = torch.randn(2, 3, requires_grad=True)
        loss = vocab_cross_entropy(part, torch.tensor([0, 1]), comm, 3)
        torch.autograd.grad(loss.square(), part, create_graph=True)[0].sum().backward()

    with pytest.raises(RuntimeError, match="once_differentiable"):
        World(1).run(program)


@pytest.mark.parametrize(
    ("part", "targets", "options", "match"),
    [
        ((4, 5), [0, 1, 2, 3], {}, r"rank \d of 2 holds 3 of 6 logits.*\(4, 5\)"),
        ((4, 6), [0, 1, 2, 3], {}, r"rank \d of 2 holds 3 of 6 logits.*\(4, 6\)"),
        ((4, 3), [0, 1, 2], {}, r"\(4, 3\) float32 and \(3,\) int64"),
        ((4, 3), [0, 1, 6, 3], {}, "target 6 is no token of a vocabulary of 6: 0 to 5"),
        ((4, 3), [0, -1, 2, 3], {}, "target -1 is no token of a vocabulary of 6"),
        ((4, 3), [0, -100, 2, 3], {"ignore_index": -1}, "target -100 is no token"),
        ((4, 3), [0.0, 1.0, 2.0, 3.0], {}, r"whole.*\(4,\) float32"),
        ((4, 3), [0, 1, 2, 3], {"reduction": "max"}, "'mean', 'sum', 'none', not 'max'"),
        ((4, 3), [0, 1, 2, 3], {"label_smoothing": 1.5}, "between 0 and 1, not 1.5"),
    ],
)
@pytest.mark.parametrize("f", BOTH)
def test_wrong_input(f, part, targets, options, match):
    with pytest.raises(ValueError, match=match):
        World(2).run(lambda comm: f(torch.zeros(part), torch.tensor(targets), comm, 6, **options))


def test_logits_that_are_no_floats():
    with pytest.raises(ValueError, match="int64"):
        World(1).run(
            lambda c: vocab_cross_entropy(
                torch.zeros(1, 3, dtype=torch.int64), torch.tensor([0]), c, 3
            )
        )
