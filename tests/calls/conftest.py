"""The same fixtures as for messages: a run in each world."""

from tests.comm.conftest import run, run_fast  # noqa: F401
