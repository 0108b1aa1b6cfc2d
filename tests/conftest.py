"""The surroundings of all tests."""

import signal


def pytest_configure():
    """Ctrl-C works, also under a shell that started `make test` in the background and told it to ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
