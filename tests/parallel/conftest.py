"""The runners that cost little, as the tests of comm have them."""

from tests.comm.conftest import run_fast  # noqa: F401
