"""What is no token is refused, with the number and the vocabulary."""

import pytest
import torch

from minidist.parallel.vocab.tokens import check_tokens


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
