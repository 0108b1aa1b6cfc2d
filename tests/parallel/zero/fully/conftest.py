"""Small tensors, many ranks: threads would only wait for each other."""

from tests.one_thread import _one_thread  # noqa: F401
