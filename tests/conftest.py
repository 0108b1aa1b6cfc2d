"""The surroundings of all tests."""

import gc
import signal


def pytest_configure():
    """Ctrl-C works, also under a shell that started `make test` in the background and told it to ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """What has been imported and collected stays: the collector need not look at it again, test after test."""
    gc.collect()
    gc.freeze()
