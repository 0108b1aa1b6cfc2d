"""Buckets: which gradients share one, and gradients that are views of it."""

import random

import pytest
import torch
from torch import nn

from minidist.parallel.buckets import Bucket, assign


@pytest.mark.parametrize(
    ("nbytes", "kinds", "found"),
    [
        ([], "", []),
        ([4], "a", [[0]]),
        ([4, 4, 4, 4, 4, 4], "aaaaaa", [[0], [1, 2, 3], [4, 5]]),  # a small first one
        ([2, 2, 2], "aaa", [[0, 1], [2]]),
        ([40, 4, 4, 40, 4], "aaaaa", [[0], [1, 2], [3], [4]]),  # too large for any
        ([4, 0, 0, 12, 0], "aaaaa", [[0, 1, 2], [3, 4]]),
        ([4, 4, 4, 4], "abab", [[0], [1], [2], [3]]),  # each dtype has a first one
        ([4, 4, 4, 4, 4, 4], "aabaab", [[0], [2], [1, 3, 4], [5]]),  # by when they are complete
    ],
)
def test_assign(nbytes, kinds, found):
    assert assign(nbytes, kinds, 12, 5) == found


def test_every_gradient_has_one_bucket_which_is_not_too_large():
    drawn = random.Random(0)
    for _ in range(200):
        count = drawn.randint(0, 30)
        limit = drawn.randint(1, 60)
        first = drawn.randint(1, 60)
        nbytes = [drawn.choice([0, 1, 4, 20, 70]) for _ in range(count)]
        kinds = [drawn.choice("ab") for _ in range(count)]
        buckets = assign(nbytes, kinds, limit, first)
        assert sorted(i for bucket in buckets for i in bucket) == list(range(count))
        assert [bucket[-1] for bucket in buckets] == sorted(bucket[-1] for bucket in buckets)
        for kind in "ab":
            own = [bucket for bucket in buckets if kinds[bucket[0]] == kind]
            assert [i for bucket in own for i in bucket] == [
                i for i in range(count) if kinds[i] == kind
            ]
            for k, bucket in enumerate(own):
                room = limit if k else min(first, limit)
                total = sum(nbytes[i] for i in bucket)
                assert total <= room or len([i for i in bucket if nbytes[i]]) == 1
                if k + 1 < len(own):  # it is full
                    assert total + nbytes[own[k + 1][0]] > room


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-5, 7)])
def test_a_bucket_without_room(sizes):
    with pytest.raises(ValueError, match=f"bucket has room for at least 1 byte, not {min(sizes)}"):
        assign([4], ["a"], *sizes)


def parameters():
    """Of all kinds of shape and stride."""
    torch.manual_seed(0)
    return [
        nn.Parameter(t)
        for t in (
            torch.randn(2, 3),
            torch.randn(4, 3).t(),
            torch.tensor(1.5),
            torch.randn(0, 3),
            torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        )
    ]


def backward(params):
    sum((p * p).sum() for p in params).backward()
    return [2 * p.detach() for p in params]


def test_gradients_become_views_and_stay():
    params = parameters()
    bucket = Bucket(params)
    assert bucket.buffer.numel() == sum(p.numel() for p in params) + len(params)
    for step in range(3):
        grads = backward(params)
        before = [p.grad for p in params]
        bucket.missing = set(params)
        for p in params:
            bucket.put(p, 0.5)
        assert not bucket.missing
        for i, p in enumerate(params):
            assert torch.equal(p.grad, grads[i] / 2) and p.grad.stride() == before[i].stride()
            assert p.grad.untyped_storage().data_ptr() == bucket.buffer.data_ptr()
            assert step == 0 or p.grad is before[i]  # in place: autograd has added to the view
            p.grad.zero_()
    assert not bucket.grads.any() and bucket.grads.data_ptr() == bucket.buffer.data_ptr()


def test_a_new_gradient_is_moved_and_scaled_and_no_other_memory_is_touched():
    params = parameters()
    bucket, grads = Bucket(params), backward(params)
    bucket.buffer.fill_(7)
    for p in params[1:3]:
        bucket.put(p, 2.0)
    left = bucket.grads[:6], bucket.grads[19:], bucket.flags
    assert all((part == 7).all() for part in left)
    assert torch.equal(params[1].grad, 2 * grads[1]) and torch.equal(params[2].grad, 2 * grads[2])
    assert params[0].grad.untyped_storage().data_ptr() != bucket.buffer.data_ptr()


def test_no_weight_makes_zeros_even_of_nan():
    params = parameters()
    bucket = Bucket(params)
    backward(params)
    params[0].grad.fill_(float("nan"))
    for p in params:
        bucket.put(p, 0.0)
    assert not bucket.grads.any() and all(p.grad is not None for p in params)


def test_flags_say_who_has_a_gradient():
    params = parameters()
    bucket = Bucket(params)
    backward([params[0], params[4]])
    bucket.buffer.fill_(7)
    for p in params:
        bucket.put(p, 1.0)
    bucket.seal()
    assert bucket.flags.tolist() == [1, 0, 0, 0, 1] and not bucket.grads[6:19].any()
    assert [p.grad is None for p in params] == [False, True, True, True, False]
    bucket.flags[1] += 2  # as if two other ranks had one
    bucket.hand_out()
    assert [p.grad is None for p in params] == [False, False, True, True, False]
    bucket.grads.fill_(3)
    assert all((p.grad == 3).all() for p in params if p.grad is not None)


def test_what_was_there_is_not_handed_out_again():
    """A gradient that was sent, and then set to None, stays None."""
    params = parameters()
    bucket = Bucket(params)
    backward(params)
    for p in params:
        bucket.put(p, 1.0)
    bucket.seal()
    params[0].grad = None
    bucket.hand_out()
    assert params[0].grad is None


def test_gradients_with_a_graph_leave_it():
    p = nn.Parameter(torch.tensor([2.0]))
    bucket = Bucket([p])
    p.grad = torch.autograd.grad((p**3).sum(), p, create_graph=True)[0]
    bucket.put(p, 0.5)
    assert p.grad.item() == 6 and not p.grad.requires_grad
