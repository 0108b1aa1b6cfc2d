"""Rows of an embedding on n ranks, and the projection tied to them, against nn.Embedding on one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minidist.collectives import all_gather
from minidist.comm import World, launch
from minidist.models import gpt, initial
from minidist.parallel.tensor.parts import shard, unshard
from minidist.parallel.vocab import VocabEmbedding, vocab_cross_entropy
from minidist.split import uneven
from tests.largest import largest

HIDDEN = 3


def text(vocab, step):
    """Token numbers and targets, (2, 5) each; some tokens several times."""
    random = torch.Generator().manual_seed(step)
    return torch.randint(0, vocab, (2, 2, 5), generator=random)


def serial(vocab, steps, seed=0):
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


def worst(results, expected):
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
    assert worst(results, serial(vocab, 4)) < 1e-12


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
    assert worst(World(3).run(split, 11, 2, wrong), serial(11, 2)) > 1e-4


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
def test_messages_and_bytes(n):
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


def test_meta_costs_the_same():
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


def test_shows_its_rows():
    assert World(3).run(lambda comm: repr(VocabEmbedding(7, HIDDEN, comm)))[1] == (
        "VocabEmbedding(7, 3, 2 rows from 3 on rank 1)"
    )
