"""Trees of ranks: what is inner, what is refused, the double binary tree."""

import pytest

from minidist.collectives.double_tree import trees
from minidist.study import tree
from minidist.study.trees import depths_of, inner_of

BINOMIAL = [-1, 0, 0, 2, 0, 4, 4, 6]


def test_text_of_one_tree():
    assert tree(BINOMIAL, title="Binomial").text == (
        "Binomial\n  tree: 8 ranks, root 0, depth 3, at most 3 children, inner nodes 0, 2, 4, 6"
    )


def test_text_of_two_trees():
    assert tree({"up": [1, 3, 1, -1], "down": [-1, 2, 0, 2]}).text == (
        "Tree of ranks\n"
        "  up: 4 ranks, root 3, depth 2, at most 2 children, inner nodes 1, 3\n"
        "  down: 4 ranks, root 0, depth 2, at most 2 children, inner nodes 0, 2\n"
        "  inner in both: no rank"
    )
    assert tree({"a": [-1, 0], "b": [-1, 0]}).text.endswith("inner in both: 0")


@pytest.mark.parametrize("n", [1, 2, 13, 64])
def test_the_double_binary_tree(n):
    made = tree(trees(n))
    assert "  first tree: " in made.text and "  second tree: " in made.text
    assert made.text.endswith("inner in both: no rank")


def test_drawn_the_same_each_time():
    assert tree(trees(8)).png == tree(trees(8)).png


def test_depths():
    assert depths_of("", BINOMIAL) == [0, 1, 1, 2, 1, 2, 2, 3]
    assert inner_of(BINOMIAL) == {0, 2, 4, 6}
    assert (depths_of("", [-1]), inner_of([-1])) == ([0], set())


def test_every_edge_is_drawn():
    assert tree([-1, 0, 0, 0]).png != tree([-1, 0, 0, 2]).png
    assert tree([-1, 0, 0]).height < tree([-1, 0, 1]).height  # deeper, so taller


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([], "1 to 128 ranks, and there are 0"),
        ([-1] + [0] * 128, "1 to 128 ranks, and there are 129"),
        ([1, 2, 0], "the tree needs one root, a rank whose parent is -1, and has 0"),
        ([-1, -1], "and has 2"),
        ({"odd": [-1, 5]}, "tree 'odd' of 2 ranks: rank 1 has the parent 5"),
        ([-1, 2, 1], "the tree has a circle: from rank 1 upwards there is no root"),
        ([[-1, 0], [-1, 0, 0]], "of the same size, not of 2 and 3"),
        ([[-1], [-1], [-1]], "one tree or two, not 3"),
    ],
)
def test_refused(parents, message):
    with pytest.raises(ValueError, match=message):
        tree(parents)
