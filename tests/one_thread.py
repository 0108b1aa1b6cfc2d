"""Small tensors: threads would only wait for each other. A conftest, or a file of tests, that imports it has one thread."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
