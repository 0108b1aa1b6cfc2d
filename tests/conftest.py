"""The surroundings of all tests."""

import fcntl
import gc
import os
import signal
from functools import partial
from pathlib import Path

import pytest


def asks_for_gpus(words, folder, root):
    """Whether one of pytest's arguments, read in `folder`, names a folder of tests for GPUs, or something in it."""
    for word in words:
        path = (Path(folder) / word.split("::")[0]).resolve()
        if path.is_relative_to(root) and "gpu" in path.relative_to(root).parts:
            return True
    return False


def pytest_configure(config):
    """Ctrl-C works, also under a shell that started `make test` in the background and told it to ignore SIGINT.

    GPUs are hidden unless tests/gpu or another folder of that name was asked for: NCCL would want one for each rank.
    Functions of a test file need pytest; to import it in each rank would take a tenth of all the time.
    """
    os.environ["MINIDIST_PRELOAD"] = "pytest _pytest.assertion.rewrite"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not asks_for_gpus(config.args, config.invocation_params.dir, config.rootpath):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays: the collector need not look through it while it comes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """One worker at a time reads a file of tests: the first rewrites its asserts, a third of a second of a large file, and
    the others find them in its compiled file."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with open(collector.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


def pytest_ignore_collect(collection_path, config):
    """`-m alone` reads the few files that say so: importing all takes longer than some of its tests."""
    if config.option.markexpr == "alone" and collection_path.suffix == ".py":
        return True if "mark.alone" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(config, items):
    """What is marked `full` runs at full size only."""
    if not config.getoption("--full"):
        large = [item for item in items if item.get_closest_marker("full")]
        items[:] = [item for item in items if item not in large]
        config.hook.pytest_deselected(items=large)


@pytest.fixture
def figure(record_property):
    """`figure(text)`: what the table of `make proof` shows of this test."""
    return partial(record_property, "figure")


def pytest_collection_finish():
    """What has been imported and collected stays: the collector need not look at it again, test after test. What a test
    leaves seldom needs it, so it comes seldom, too: a twelfth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
