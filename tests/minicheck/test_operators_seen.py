"""Lesson 09's meter: it counts what PyTorch's operators do, and what they do not do has no numbers."""

from threading import Thread

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from minicheck.operators.seen import Seen, Unseen


def test_seen_counts_storages_once():
    seen = Seen([torch.ones(8)])
    x = seen.given[0]
    with seen:
        y = x + 1
        view = y[:4]
        x.add_(1)
        assert seen.alive() == 32 and seen.alive(y) == 0 and seen.knows(view) and seen.knows(x)
        assert seen.alive(view) == 16  # what else lies in the memory is counted
        z = torch.ones(2, 3) @ torch.ones(3, 4)
        del y
        assert seen.alive(z) == 32  # the view holds it
        del view
        assert seen.alive(z) == 0
    assert seen.flops == 2 * 2 * 3 * 4 and seen.edge == 4 and seen.largest == 48
    assert (
        not seen.knows(torch.ones(1))
        and not seen.knows(torch.ones(1, device="meta"))
        and not seen.knows(3)
    )


def test_seen_computes_what_pytorch_does():
    """Views, in-place operators, factories, an index by a mask, autograd; numbers are those of the real tensors."""

    def work(x):
        w = x.new_zeros(3)
        w += x[0]
        x[1:].mul_(10)
        leaf = x.T.clone().requires_grad_()
        (leaf @ x * leaf.new_full((3, 3), 2.0)).sum().backward()
        parts = torch.cat([part.amax(1, keepdim=True) for part in x.split(1)], 1)
        return [
            w,
            x,
            leaf.grad,
            parts,
            x[x > 2],
            x.sort(1).values,
            torch.tensor([1.0, x.sum().item()]),
        ]

    given = torch.arange(6.0).view(2, 3)
    seen = Seen([given.clone()])
    found, wanted = seen.plain(seen.ask(work, seen.given[0])), work(given)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)) and seen.left == 1


def test_seen_notes_in_which_order_tensors_are_read():
    seen = Seen([torch.ones(2), torch.ones(3)])
    a, b = seen.given
    with seen:
        _ = a.sum() + (a * 2).sum() + b.view(3, 1).sum() + a.amax()
    assert seen.readings == [0, 1, 0]


@pytest.mark.parametrize(
    "leave",
    [lambda x: x.numpy(), lambda x: x.cpu().numpy(), lambda x: x.untyped_storage().tolist()],
)
def test_numbers_do_not_leave(leave):
    seen = Seen([torch.ones(3)])
    with pytest.raises(Unseen, match="numbers leave PyTorch"):
        seen.ask(leave, *seen.given)


def test_numbers_that_leave_are_counted():
    seen = Seen([torch.arange(3.0)])
    assert (
        seen.ask(lambda x: (x.tolist(), float(x[1])), *seen.given) == ([0.0, 1.0, 2.0], 1.0)
        and seen.left == 4
    )


def test_what_is_not_seen_is_nothing():
    def in_a_thread(x, y):
        thread = Thread(target=lambda: y.copy_(x + 1))
        thread.start()
        thread.join()

    def with_modes_off(x, y):
        with _disable_current_modes():
            y.copy_(x + 1)

    for hide in (in_a_thread, with_modes_off):
        seen = Seen([torch.ones(3), torch.zeros(3)])
        seen.ask(hide, *seen.given)
        assert torch.equal(seen.plain(seen.given[1]), torch.zeros(3))
    with _disable_current_modes():
        unknown = seen.given[0] + 1
    with pytest.raises(Unseen, match="no operator that the meter saw"):
        seen.ask(lambda x: unknown + x, seen.given[0])
