"""Where there is no Chromium, its tests are skipped, but not where the tests are to decide."""

import shutil

import pytest

from tests.browser.chromium import chromium, program


def test_a_machine_without_it(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    assert program() is None
    monkeypatch.setenv("CI", "true")
    with pytest.raises(FileNotFoundError, match="chromium"), chromium(tmp_path):
        pass
