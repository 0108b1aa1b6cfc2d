"""Tests that need a sandbox: without bubblewrap they are skipped, but not where the tests are to decide."""

import os
import shutil

import pytest

BWRAP = pytest.mark.skipif(
    shutil.which("bwrap") is None and not os.environ.get("CI"),
    reason="bubblewrap is not installed",
)
