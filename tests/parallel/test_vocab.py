"""A vocabulary on n ranks: its loss is `F.cross_entropy`, its rows are nn.Embedding's; what is no token is refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidist.collectives import all_gather
from minidist.comm import Cluster, Device, World, launch
from minidist.models import gpt, initial
from minidist.parallel import vocab as vocab_file
from minidist.parallel.tensor import shard, unshard
from minidist.parallel.vocab import (
    ColumnEmbedding,
    VocabEmbedding,
    check_tokens,
    gathered_cross_entropy,
    vocab_cross_entropy,
)
from minidist.split import uneven
from tests.largest import largest
from tests.size import FULL

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


def serial_cross_entropy(logits, targets, options=None):
    whole = logits.double().clone().requires_grad_()
    loss = F.cross_entropy(
        whole.view(-1, whole.shape[-1]), targets.view(-1).long(), **(options or {})
    )
    loss = loss.view(targets.shape) if loss.dim() else loss
    weighted(loss).backward()
    return loss.detach(), whole.grad


def worst_cross_entropy(results, expected):
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
        off = worst_cross_entropy(
            [r[name, vocab, i] for r in results], serial_cross_entropy(*given(vocab, i))
        )
        assert off < 1e-12, (name, vocab, OPTIONS[i])


@pytest.mark.parametrize(("run", "n"), [("world", 3), ("world", 4), ("shm", 3), ("shm", 4)])
def test_the_vocabulary_of_gpt_2(run, n, figure):
    logits, targets = tokens(50_257, (9,))
    options = {"label_smoothing": 0.1}
    results = both_ways(run, n, on_part, vocab_cross_entropy, logits, targets, options)
    assert [grad.shape[1] for _, grad in results] == uneven(50_257, n)
    off = worst_cross_entropy(results, serial_cross_entropy(logits, targets, options))
    figure(f"n={n}, {run}: loss and gradient of 50,257 logits are off by {off:.0e}")
    assert off < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}])
def test_logits_of_ten_thousand(dtype, options):
    """Loss: float32's rounding of numbers up to 2e4. Gradient, of numbers up to 1: the type's own rounding."""
    logits, targets = tokens(1001, (6,))
    logits = logits.sign() * 1e4 + logits
    logits[0], logits[1, 500:] = 1e4, -1e4
    results = World(3).run(on_part, vocab_cross_entropy, logits.to(dtype), targets, options)
    loss, grad = serial_cross_entropy(logits.to(dtype), targets, options)
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
    loss, grad = serial_cross_entropy(logits, targets, options | {"reduction": "none"})
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
    expected = serial_cross_entropy(logits, targets, {"reduction": reduction})
    for f in BOTH:
        loss, grad = World(1).run(on_part, f, logits, targets, {"reduction": reduction})[0]
        for got, want in zip((loss, grad), expected, strict=True):
            assert got.shape == want.shape and torch.allclose(got, want, equal_nan=True)


def test_layouts_and_types():
    """Strided logits, targets of other whole types, no leading dimension."""
    logits, targets = tokens(6, (5,), 0)
    expected = serial_cross_entropy(logits, targets)

    def program(comm):
        a, b = 3 * comm.rank, 3 * comm.rank + 3
        part = logits.t().contiguous().t()[:, a:b].detach().requires_grad_()
        loss = vocab_cross_entropy(part, targets.to(torch.int32), comm, 6)
        loss.backward()
        alone = vocab_cross_entropy(logits[0, a:b], targets[0], comm, 6)
        return loss.detach(), part.grad, alone

    results = World(2).run(program)
    assert worst_cross_entropy([r[:2] for r in results], expected) < 1e-12
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
def test_cross_entropy_messages_and_bytes(n, figure):
    """By hand: n−1 messages of three numbers a token; four with smoothing; V is not there, and backward is silent."""
    for vocab in (50_257, 100_514) if FULL else (50, 100, 5000):
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
        figure(
            f"n={n}, {vocab:,} words: {(n - 1) * 20 * 12:,} bytes for 20 tokens, {naive[0][1]:,} by gathering"
        )


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


def test_cross_entropy_meta_costs_the_same():
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
    monkeypatch.setattr(vocab_file, "CACHED", 60)
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


# ------------------------------------------------------------
# Rows of an embedding on n ranks, and the projection tied to them, against nn.Embedding on one.


HIDDEN = 3


def text(vocab, step):
    """Token numbers and targets, (2, 5) each; some tokens several times."""
    random = torch.Generator().manual_seed(step)
    return torch.randint(0, vocab, (2, 2, 5), generator=random)


def serial_embedding(vocab, steps, seed=0):
    """Losses, rows at the end and gradients of the last step, of one rank."""
    rows = nn.Parameter(initial(seed, "tokens.weight", (vocab, HIDDEN)))
    optimizer, losses = torch.optim.SGD([rows], lr=0.5, momentum=0.9), []
    for step in range(steps):
        tokens, targets = text(vocab, step)
        optimizer.zero_grad()
        logits = F.linear(F.embedding(tokens, rows).tanh(), rows)
        losses.append(F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach(), rows.detach(), rows.grad


def split(comm, vocab, steps, layer=VocabEmbedding):
    """The same, split: a look-up and a tied projection."""
    embedding = layer(vocab, HIDDEN, comm, dtype=torch.float64)
    optimizer, losses = torch.optim.SGD(embedding.parameters(), lr=0.5, momentum=0.9), []
    for step in range(steps):
        tokens, targets = text(vocab, step)
        optimizer.zero_grad()
        losses.append(
            vocab_cross_entropy(embedding.project(embedding(tokens).tanh()), targets, comm, vocab)
        )
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach(), embedding.weight.detach(), embedding.weight.grad


def worst_embedding(results, expected):
    got = [results[0][0], *(torch.cat([r[i] for r in results]) for i in (1, 2))]
    assert all(torch.equal(r[0], got[0]) for r in results)
    return largest((g - e).abs().max().item() for g, e in zip(got, expected, strict=True))


@pytest.mark.parametrize(
    ("run", "n"), [*(("world", n) for n in (1, 2, 3, 4, 7)), *(("shm", n) for n in (3, 4))]
)
@pytest.mark.parametrize("vocab", [5, 11])
def test_trained_as_one(run, n, vocab):
    runner = World(n).run if run == "world" else lambda *args: launch(args[0], n, *args[1:])
    results = runner(split, vocab, 4)
    assert [len(r[1]) for r in results] == uneven(vocab, n)
    assert worst_embedding(results, serial_embedding(vocab, 4)) < 1e-12


class Unmasked(VocabEmbedding):
    """Looks up a row of its own for every token."""

    def _own(self, tokens):
        return F.embedding((tokens - self.first) % max(1, len(self.weight)), self.weight)


class WithoutF(VocabEmbedding):
    """The gradient of x is that of this rank's logits alone."""

    def project(self, x):
        return F.linear(x, self.weight)


class Untied(VocabEmbedding):
    """The look-up learns nothing."""

    def _own(self, tokens):
        return super()._own(tokens).detach()


@pytest.mark.parametrize("wrong", [Unmasked, WithoutF, Untied])
def test_a_wrong_variant_is_found(wrong):
    assert worst_embedding(World(3).run(split, 11, 2, wrong), serial_embedding(11, 2)) > 1e-4


def test_starts_as_the_model_of_one_rank():
    """Also in half precision: drawn in float64 and rounded; another seed or name gives other rows."""
    whole = gpt(1, 4, 2, 10, 8, seed=3, dtype=torch.bfloat16).tokens.weight.detach()

    def program(comm, **options):
        weight = VocabEmbedding(10, 4, comm, dtype=torch.bfloat16, **options).weight
        return all_gather(comm, weight.detach(), uneven(10, comm.size))

    for n in (1, 3, 4):
        assert all(torch.equal(rows, whole) for rows in World(n).run(program, seed=3))
    assert not torch.equal(World(2).run(program)[0], whole)
    assert not torch.equal(World(2).run(program, seed=3, name="head")[0], whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_sum_is_exact(dtype):
    """All summands but one are zero: bit for bit the row, whatever lies in the rows that masked tokens would take."""
    tokens = torch.tensor([[0, 3, 6], [6, 4, 1]])

    def program(comm):
        embedding = VocabEmbedding(7, HIDDEN, comm, dtype=dtype)
        if comm.rank == 1:
            embedding.weight.data[0] = torch.inf
        return embedding(tokens).detach()

    whole = initial(0, "tokens.weight", (7, HIDDEN)).to(dtype)
    whole[3] = torch.inf
    assert all(torch.equal(out, whole[tokens]) for out in World(3).run(program))


def test_frozen_rows_and_no_tokens():
    def program(comm):
        embedding = VocabEmbedding(7, HIDDEN, comm).requires_grad_(False)
        x = torch.ones(2, HIDDEN, requires_grad=True)
        embedding.project(x).sum().backward()
        return (
            embedding(torch.zeros(2, 0, dtype=torch.int64)).shape,
            embedding.weight.grad,
            x.grad[0],
        )

    rows = initial(0, "tokens.weight", (7, HIDDEN)).sum(0)
    for shape, grad, dx in World(3).run(program):
        assert (
            shape == (2, 0, HIDDEN)
            and grad is None
            and torch.allclose(dx.double(), rows, rtol=0, atol=1e-6)
        )


@pytest.mark.parametrize("n", [1, 2, 4])
def test_embedding_messages_and_bytes(n):
    """By hand: one all-reduce of (tokens, H) for the look-up, one for the projection's backward."""

    def program(comm, vocab, project, backward):
        embedding = VocabEmbedding(vocab, 8, comm)
        x = torch.ones(6, 8, requires_grad=True)
        out = embedding.project(x) if project else embedding(torch.arange(6))
        if backward:
            out.sum().backward()

    for vocab in (6, 11, 200):
        for project in (False, True):
            for backward in (False, True):
                trace = World(n).run(program, vocab, project, backward).trace
                one = (
                    (2 * (n - 1), 2 * (n - 1) * 6 * 8 // n * 4)
                    if project == backward or not project
                    else (0, 0)
                )
                assert [(trace.messages(r), trace.bytes_sent(r)) for r in range(n)] == [one] * n


def test_taken_apart_and_put_together():
    whole = {"weight": torch.arange(22.0).view(11, 2)}

    def program(comm):
        embedding = VocabEmbedding(11, 2, comm)
        embedding.load_state_dict(shard(whole, embedding, comm))
        return embedding.weight.detach().clone(), unshard(embedding, comm)["weight"]

    results = World(3).run(program)
    assert torch.equal(torch.cat([rows for rows, _ in results]), whole["weight"])
    assert all(torch.equal(again, whole["weight"]) for _, again in results)


def test_embedding_meta_costs_the_same():
    real, meta = World(3), World(3, device="meta")
    assert [rows.shape for _, rows, _ in meta.run(on_meta)] == [
        rows.shape for _, rows, _ in real.run(split, 11, 1)
    ]
    assert real.time == meta.time and real.trace == meta.trace


def on_meta(comm):
    embedding = VocabEmbedding(11, HIDDEN, comm, dtype=torch.float64)
    tokens = torch.zeros(2, 5, dtype=torch.int64, device="meta")
    loss = vocab_cross_entropy(embedding.project(embedding(tokens).tanh()), tokens, comm, 11)
    loss.backward()
    return loss, embedding.weight, embedding.weight.grad


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (-1, 2)])
def test_no_rows_or_columns(sizes):
    with pytest.raises(
        ValueError, match=f"at least 1 row and 1 column, not {sizes[0]} and {sizes[1]}"
    ):
        World(2).run(lambda comm: VocabEmbedding(*sizes, comm))


@pytest.mark.parametrize("token", [-1, 7])
def test_no_token(token):
    with pytest.raises(ValueError, match=f"token {token} is no token of a vocabulary of 7: 0 to 6"):
        World(2).run(lambda comm: VocabEmbedding(7, HIDDEN, comm)(torch.tensor([0, token])))


def columns(comm, vocab, steps, hidden):
    """Losses, columns at the end and gradients of the last step, where a rank has some columns."""
    embedding = ColumnEmbedding(vocab, hidden, comm, dtype=torch.float64)
    optimizer, losses = torch.optim.SGD(embedding.parameters(), lr=0.5, momentum=0.9), []
    for step in range(steps):
        tokens, targets = text(vocab, step)
        optimizer.zero_grad()
        looked_up = embedding(tokens)
        losses.append((looked_up.tanh().sum(-1) - targets).square().mean())
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach(), embedding.weight.detach(), embedding.weight.grad


@pytest.mark.parametrize(
    ("run", "n"), [*(("world", n) for n in (1, 2, 3, 4)), *(("shm", n) for n in (2, 3, 4))]
)
def test_columns_train_as_one(run, n):
    """7 columns on 2, 3 and 4 ranks, and 2 on up to 4, of which some have none."""
    for hidden in (7, 2):
        rows = initial(0, "tokens.weight", (11, hidden))
        serial = nn.Embedding(11, hidden, dtype=torch.float64, _weight=rows)
        optimizer, losses = torch.optim.SGD(serial.parameters(), lr=0.5, momentum=0.9), []
        for step in range(3):
            tokens, targets = text(11, step)
            optimizer.zero_grad()
            losses.append((serial(tokens).tanh().sum(-1) - targets).square().mean())
            losses[-1].backward()
            optimizer.step()
        ranks = both_ways(run, n, columns, 11, 3, hidden)
        assert [weight.shape[1] for _, weight, _ in ranks] == uneven(hidden, n)
        assert all(torch.equal(found, ranks[0][0]) for found, _, _ in ranks)
        found = ranks[0][0], *(torch.cat([r[i] for r in ranks], 1) for i in (1, 2))
        expected = torch.stack(losses).detach(), serial.weight.detach(), serial.weight.grad
        assert all((a - b).abs().max() < 1e-12 for a, b in zip(found, expected, strict=True))


def test_columns_send_half_of_what_rows_send():
    def program(comm, layer):
        layer(12, 8, comm)(torch.arange(12)).sum().backward()

    sent = [World(4).run(program, layer).trace for layer in (ColumnEmbedding, VocabEmbedding)]
    assert [trace.bytes_sent(0) for trace in sent] == [3 * 12 * 8, 2 * 3 * 12 * 8]
    assert [trace.messages(0) for trace in sent] == [3, 6]


def test_no_token_of_columns():
    for token in (-1, 7):
        with pytest.raises(ValueError, match=f"token {token} is no token of a vocabulary of 7"):
            World(2).run(lambda comm, i=token: ColumnEmbedding(7, 2, comm)(torch.tensor([0, i])))
    with pytest.raises(ValueError, match="at least 1 row and 1 column, not 4 and 0"):
        World(2).run(lambda comm: ColumnEmbedding(4, 0, comm))


def test_shows_its_rows():
    assert World(3).run(lambda comm: repr(VocabEmbedding(7, HIDDEN, comm)))[1] == (
        "VocabEmbedding(7, 3, 2 rows from 3 on rank 1)"
    )


# ------------------------------------------------------------
# What is no token is refused, with the number and the vocabulary.


@pytest.mark.parametrize("tokens", [[0, 4], [[2], [3]], [], [-100, 1]])
def test_tokens(tokens):
    for dtype in (torch.int64, torch.int32):
        check_tokens(torch.tensor(tokens, dtype=dtype), 5, "target", -100)


@pytest.mark.parametrize(
    ("tokens", "number"), [([0, 5], 5), ([[2], [-1]], -1), ([7, -1], 7), ([-100], -100)]
)
def test_no_tokens(tokens, number):
    with pytest.raises(
        ValueError, match=f"token {number} is no token of a vocabulary of 5: 0 to 4"
    ):
        check_tokens(torch.tensor(tokens), 5, "token")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_no_numbers(dtype):
    with pytest.raises(ValueError, match=f"a token is .* whole one.*{str(dtype)[6:]}"):
        check_tokens(torch.zeros(2, dtype=dtype), 5, "token")


def test_meta_has_no_values_to_read():
    check_tokens(torch.zeros(2, dtype=torch.int64, device="meta"), 1, "token")
