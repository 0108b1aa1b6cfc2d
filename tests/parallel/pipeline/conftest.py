"""Small tensors: threads would only wait for each other."""

from tests.models.conftest import _one_thread  # noqa: F401
