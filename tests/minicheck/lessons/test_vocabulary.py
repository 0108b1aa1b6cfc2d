"""Lesson 15: other right ways pass, and what is right only for some ranks, sizes or dtypes does not.

The usual mistakes are in course/15_vocabulary/bugs.py, which tests/bank examines.
"""

import re
import sys

import cloudpickle
import pytest
import torch
from torch.nn.functional import cross_entropy

import minicheck as check
from minicheck import Wrong
from minicheck.exam import Case, Outcome
from minicheck.lessons import vocabulary
from minicheck.lessons.vocabulary import (
    LogitsGradient,
    LookUp,
    MergedLoss,
    SplitLoss,
    predict_vocabulary,
)
from minicheck.oracles.vocabulary import IGNORED, Logits, cut, drawn_tokens, silent
from minidist.collectives import all_gather, all_reduce_, reduce_scatter
from minidist.split import bounds, uneven
from tests.minicheck.examined import assert_odd_answers_are_told, verdicts

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as the functions of a notebook travel


def first_end(comm, vocab):
    return bounds(uneven(vocab, comm.size))[comm.rank]


def hit_of(comm, part, targets, vocab):
    first, end = first_end(comm, vocab)
    places = torch.arange(first, end) == targets[:, None]
    return torch.where(places, part, 0).sum(1)


def by_index(comm, rows, tokens, vocab):
    """Only own tokens are looked up."""
    first, end = first_end(comm, vocab)
    out, mine = rows.new_zeros(*tokens.shape, rows.shape[1]), (tokens >= first) & (tokens < end)
    out[mine] = rows[tokens[mine] - first]
    return reduce_scatter(comm, out, sizes=uneven(len(tokens), comm.size))


def one_hot(comm, grad, tokens, vocab):
    first, end = first_end(comm, vocab)
    hot = torch.nn.functional.one_hot(tokens.reshape(-1), vocab)[:, first:end].to(grad.dtype)
    return hot.T @ grad.reshape(-1, grad.shape[-1])


def by_autograd(comm, dlogits, x, rows):
    x, rows = x.clone().requires_grad_(), rows.clone().requires_grad_()
    (x @ rows.T).backward(dlogits)
    return all_reduce_(comm, x.grad), rows.grad


def merged(comm, part, targets, vocab):
    part = part.to(torch.promote_types(part.dtype, torch.float32))
    own = torch.stack([part.logsumexp(1), hit_of(comm, part, targets, vocab)])
    totals, hits = all_gather(comm, own[None]).unbind(1)
    log_total = totals.logsumexp(0)
    return log_total - hits.sum(0), log_total


def two_rounds(comm, part, targets, vocab):
    part = part.to(torch.promote_types(part.dtype, torch.float32))
    m = all_reduce_(comm, part.amax(1), op="max")
    s, hit = all_reduce_(
        comm, [(part - m[:, None]).exp().sum(1), hit_of(comm, part, targets, vocab)]
    )
    return (m - hit) + s.log(), m + s.log()


def by_loss(comm, part, targets, vocab, log_total):
    """PyTorch's backward, of the own logits with the others' sum beside them."""
    counts = targets != IGNORED
    leaf = part.to(log_total.dtype).requires_grad_()
    total = (leaf - log_total[:, None]).exp().sum(1)  # its gradient is the softmax
    ((total - hit_of(comm, leaf, targets, vocab)) * counts).sum().div(counts.sum()).backward()
    return leaf.grad.to(part.dtype)


def padded(losses):
    """An answer to split_loss, of a function without padding."""

    def answer(comm, part, targets, vocab, words):
        first, end = first_end(comm, vocab)
        there = (torch.arange(first, end) < words).expand(part.shape)
        return losses(comm, torch.where(there, part, -torch.inf), targets, vocab)

    return answer


def smoothed(comm, part, targets, vocab, smoothing):
    hit = (1 - smoothing) * hit_of(comm, part, targets, vocab)
    own = torch.stack([part.logsumexp(1), hit + smoothing * part.sum(1) / vocab])
    totals, rest = all_gather(comm, own[None]).unbind(1)
    return totals.logsumexp(0) - rest.sum(0)


RIGHT = [
    ("look_up", by_index),
    ("look_up_gradient", one_hot),
    ("project_backward", by_autograd),
    ("split_loss", padded(merged)),
    ("split_loss", padded(two_rounds)),
    ("logits_gradient", by_loss),
    ("merged_loss", smoothed),
]


def test_other_right_ways(capsys):
    assert verdicts(*[(getattr(check, exercise), answer) for exercise, answer in RIGHT]) == [
        None
    ] * len(RIGHT)
    said = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(": right.")[0] for line in said) == sorted(
        exercise for exercise, _ in RIGHT
    )


def gathers_for_small_vocabularies(comm, part, targets, vocab):
    if vocab > 40:
        return two_rounds(comm, part, targets, vocab)
    whole = all_gather(comm, part.T.contiguous(), sizes=uneven(vocab, comm.size)).T
    whole = whole.to(torch.promote_types(whole.dtype, torch.float32))
    return cross_entropy(whole, targets, reduction="none"), whole.logsumexp(1)


def maximum_of_rank_0(comm, part, targets, vocab):
    """Right for logits near each other: everyone subtracts rank 0's largest."""
    part = part.to(torch.promote_types(part.dtype, torch.float32))
    m = all_gather(comm, part.amax(1)[None])[0]
    s, hit = all_reduce_(
        comm, [(part - m[:, None]).exp().sum(1), hit_of(comm, part, targets, vocab)]
    )
    return m - hit + s.log(), m + s.log()


def other_loss_on_one_rank(comm, part, targets, vocab):
    losses, log_total = two_rounds(comm, part, targets, vocab)
    return losses + (comm.rank == comm.size - 1 and comm.size > 2) * 1e-3, log_total


def writes(comm, part, targets, vocab, words):
    losses = padded(two_rounds)(comm, part, targets, vocab, words)
    part -= part.amax(1, keepdim=True)
    return losses


WRONG = [
    ("split_loss", padded(gathers_for_small_vocabularies), "bytes"),
    ("split_loss", padded(maximum_of_rank_0), "subtract the largest"),
    ("split_loss", padded(other_loss_on_one_rank), r"rank 2: losses\["),
    ("split_loss", writes, "part was changed"),
    ("split_loss", lambda comm, part, *rest: 3, "log_total|losses"),
    ("look_up", lambda comm, rows, *rest: by_index(comm, rows, *rest).float(), "float32"),
    (
        "look_up",
        lambda comm, rows, tokens, vocab: by_index(comm, rows, tokens.reshape(-1), vocab),
        "shape",
    ),
    ("logits_gradient", lambda *args: by_loss(*args) * 1.01, "wrong"),
    (
        "merged_loss",
        lambda comm, part, targets, vocab, smoothing: (
            smoothed(comm, part, targets, vocab, smoothing) + 0 * all_reduce_(comm, part.sum(1))
        ),
        "messages",
    ),
]


def test_what_is_right_only_somewhere():
    found = verdicts(*[(getattr(check, exercise), answer) for exercise, answer, _ in WRONG])
    for (exercise, _, words), wrong in zip(WRONG, found, strict=True):
        assert wrong and re.search(words, wrong), (exercise, words, wrong)


def test_the_cases_hold_what_hurts():
    rng = torch.Generator().manual_seed(0)
    for vocab, n in ((40, 3), (7, 2)):
        tokens, parts = drawn_tokens(vocab, n, (5,), rng), bounds(uneven(vocab, n))
        assert (
            tokens[0] == parts[0][1] - 1 and tokens[1] == parts[-1][0] and tokens[-1] == tokens[0]
        )
    for exam in (SplitLoss(), MergedLoss(), LogitsGradient()):
        dtypes = [case.given[2] for case in exam.cases]
        assert any(case.given[3] == 10_000 for case in exam.cases)
        assert torch.float16 in dtypes or isinstance(exam, MergedLoss)
        assert any(case.given[0] % case.n for case in exam.cases)
        for case in exam.cases:
            whole = torch.cat([args[0] for args in exam.draw(case, rng)], 1)
            assert whole.isnan().sum() == (case.n == 1) and not whole.isinf().any()
            assert whole.shape == (case.given[1], case.given[0])
    assert any(
        args[1].eq(IGNORED).any()
        for case in LogitsGradient.cases
        for args in LogitsGradient().draw(case, rng)
    )


def test_the_oracle():
    """Its numbers are PyTorch's, and none of its mistakes is right."""
    random = torch.Generator().manual_seed(2)
    logits = Logits(
        torch.randn(6, 11, generator=random, dtype=torch.float64),
        torch.tensor([0, 10, 4, 3, 7, 7]),
        3,
    )
    right = logits.totals() - logits.hits()
    assert torch.allclose(
        right, cross_entropy(logits.whole, logits.targets, reduction="none"), rtol=0, atol=1e-12
    )
    assert torch.allclose(sum(logits.hits(r) for r in range(3)), logits.hits(), rtol=0, atol=1e-12)
    for rank in range(3):
        for text, wrong in logits.wrong_losses(rank).items():
            assert (wrong - right).abs().max() > 1e-3, text
        for text, wrong in logits.wrong_totals(rank).items():
            assert (wrong - logits.totals()).abs().max() > 1e-3, text
    assert [p.shape[1] for p in cut(logits.whole, 3, 1)] == [4, 4, 3]


def test_bytes_and_messages_are_judged():
    case = LookUp.cases[0]
    args = LookUp().draw(case, torch.Generator().manual_seed(1))
    want = torch.cat([a[0] for a in args])[args[0][1]]
    results = [{"found": share, "given": a} for share, a in zip(cut(want, 3), args)]
    LookUp().judge(case, args, Outcome(results, [(0, 1, 192)]))
    with pytest.raises(Wrong, match="rank 0 sends 193 bytes"):
        LookUp().judge(case, args, Outcome(results, [(0, 1, 193)]))
    with pytest.raises(Wrong, match="rank 1 sent messages"):
        silent(Outcome([None, None], [(1, 0, 1)]), "why")


def test_predictions():
    """By hand, for other numbers: 4 ranks, 1,024 words of 256 numbers are 1 MiB."""
    values, slips = predict_vocabulary(n=4, vocab=1024, hidden=256)
    assert values == {
        "saved": 0.75,
        "gathered": 3072.0,
        "reduced": 18.0,
        "doubled": 18.0,
        "messages": 12,
        "looked_up": 1536.0,
    }
    assert all(
        abs(slip - values[name]) > 0.02 * values[name]
        for name, own in slips.items()
        for slip in own
    )
    assert Case(1, "x").given is None


def test_odd_answers_are_told():
    assert_odd_answers_are_told(vocabulary)
