"""Which operators get a recipe, and what it needs."""

import torch

from minidist.train.remat.tape import Kept, Made, Tape, leaves, uses

aten = torch.ops.aten


def record(fn, *repeated, factories=True):
    tape = Tape(uses(lambda func: func.overloadpacket in repeated), factories)
    with tape:
        results = fn()
    return [tape.find(x) for x in results], results


def names(made):
    """The operators behind a recipe, the last one first."""
    found, left = [], [made.node]
    while left:
        node = left.pop(0)
        found.append(node.func.overloadpacket.__name__)
        left += node.parents
    return found


def test_named_operators_and_views_of_what_they_make():
    x = torch.ones(2, 3)

    def fn():
        a = x.exp()
        b = a.t()[1:].sin()
        return a, b, b + 1, x.t(), (b + 1).exp()

    (a, b, c, d, e), _ = record(fn, aten.exp, aten.sin)
    assert names(a) == ["exp"] and names(b) == ["sin", "slice", "t", "exp"] and c is d is None
    # of the sum, which is kept
    assert names(e) == ["exp"] and [type(leaf) for leaf in leaves(e.node._args)] == [Kept]
    assert isinstance(b, Made) and b.node.parents[0].order == b.node.order - 1


def test_never_what_changes_an_operand_or_leaves_memory_as_it_is():
    def fn():
        a = torch.ones(3).exp()
        b = a.exp()
        a.add_(1)
        return a, b, torch.empty(3), torch.ones(2), a.sin()

    listed = (aten.exp, aten.add_, aten.empty, aten.ones, aten.sin)
    (a, b, c, d, e), _ = record(fn, *listed)
    assert (
        a is c is None
        and names(b) == ["exp", "exp", "ones"]
        and names(d) == ["ones"]
        and names(e) == ["sin"]
    )
    assert record(fn, *listed, factories=False)[0][3] is None


def test_a_recipe_gives_the_tensor_again_with_its_random_numbers():
    x = torch.ones(50)
    torch.manual_seed(0)
    (made,), (y,) = record(lambda: [aten.native_dropout(x, 0.5, True)[0]], aten.native_dropout)
    torch.manual_seed(9)
    assert torch.equal(made.node.run({})[made.index], y)


def test_memory_that_is_used_again_is_another_tensor():
    tape = Tape(uses(lambda func: True), True)
    with tape:
        key = torch.ones(3).untyped_storage()._cdata
    for _ in range(100):
        x = torch.ones(3)
        if x.untyped_storage()._cdata == key:
            break
    assert tape.find(x) is None
