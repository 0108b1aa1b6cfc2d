"""GPUs are hidden from tests, unless those that are for them were asked for."""

import os
import subprocess
import sys

import pytest

from tests.conftest import asks_for_gpus
from tests.repository.files import ROOT


@pytest.mark.parametrize(
    ("folder", "words", "asked"),
    [
        (".", ["tests/gpu"], True),
        (".", ["tests/comm", "tests/gpu"], True),
        (".", ["tests/comm", "tests/gpu/test_kernels.py::test_kernels"], True),
        (".", ["./tests/gpu/"], True),
        ("tests/gpu", ["."], True),
        ("tests", ["gpu/test_kernels.py"], True),
        (".", [str(ROOT / "tests/gpu")], True),
        (".", ["tests/gpu/test_gpus.py::test_grids[nccl-2]"], True),
        (".", ["tests"], False),
        (".", ["tests/train"], False),
        (".", ["tests/study/test_meter.py::test_gpu"], False),
        (".", [], False),
        ("/gpu", ["tests"], False),
        (".", ["/gpu/tests/comm"], False),
    ],
)
def test_which_words_ask_for_gpus(folder, words, asked):
    assert asks_for_gpus(words, ROOT / folder, ROOT) == asked


def test_a_clone_in_a_folder_of_that_name_does_not_ask():
    assert not asks_for_gpus(["tests/comm"], "/data/gpu/minidist", "/data/gpu/minidist")
    assert asks_for_gpus(["tests/gpu"], "/data/gpu/minidist", "/data/gpu/minidist")


@pytest.mark.parametrize(("folder", "seen"), [("tests/gpu", "7"), ("tests/collectives", "")])
def test_what_pytest_leaves_of_them(folder, seen, tmp_path):
    """In a run of its own, that collects nothing: the variable as it is when pytest has been configured."""
    (tmp_path / "told.py").write_text(
        "import os\n\n\ndef pytest_sessionstart():\n"
        "    print('GPUs:', os.environ['CUDA_VISIBLE_DEVICES'] or 'none')\n"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "7", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-s",
            "-p",
            "told",
            "-p",
            "no:cacheprovider",
            "--ignore-glob=*.py",
            folder,
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert f"GPUs: {seen or 'none'}" in done.stdout, done.stdout + done.stderr
