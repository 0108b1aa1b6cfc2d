"""The trainer: the serial losses on every grid and in every world; goes on where it was; Ctrl-C saves."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time

import pytest

from minidist.checkpoint import Checkpoints, Saved, files
from minidist.checkpoint.checkpoint import read_state
from minidist.comm import World
from tests.comm.torchrun import in_its_place
from tests.examples.scripts import FOLDER, as_torchrun, distance, results, run_here
from tests.repository.files import ROOT
from tests.size import FULL

SCRIPT = "train_gpt.py"
SHORT = [
    "--dtype",
    "float64",
    "--layers",
    "2",
    "--hidden",
    "16",
    "--context",
    "8",
    "--batch",
    "8",
    "--steps",
    "6",
    "--warm-up",
    "2",
    "--lr",
    "0.01",
    "--evaluate-every",
    "3",
    "--sample",
    "6",
    "--peak",
    "1",
]
RUNS = {
    "serial": ["--ranks", "1", "--micro-batches", "4"],
    "world": [
        "--ranks",
        "8",
        "--dp",
        "2",
        "--pp",
        "2",
        "--tp",
        "2",
        "--zero",
        "1",
        "--micro-batches",
        "4",
        "--recompute",
        "full",
        "--sequence-parallel",
    ],
    "uneven": ["--ranks", "3", "--zero", "3"],
    "hybrid": ["--ranks", "6", "--zero", "3", "--replicas", "3"],
    "processes": [
        "--ranks",
        "4",
        "--pp",
        "2",
        "--zero",
        "2",
        "--runner",
        "processes",
        "--micro-batches",
        "2",
    ],
    "context": ["--ranks", "4", "--cp", "4"],
    "tensor and context": [
        "--ranks",
        "4",
        "--tp",
        "2",
        "--cp",
        "2",
        "--runner",
        "processes",
        "--zero",
        "3",
    ],
}
if FULL:
    RUNS |= {
        "context, processes": ["--ranks", "4", "--cp", "4", "--runner", "processes"],
        "tensor and context, world": [
            "--ranks",
            "4",
            "--tp",
            "2",
            "--cp",
            "2",
            "--context-parallel",
            "heads",
        ],
        "contiguous": [
            "--ranks",
            "8",
            "--dp",
            "2",
            "--cp",
            "4",
            "--context-parallel",
            "contiguous",
            "--zero",
            "1",
        ],
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found = results(SCRIPT, {name: [*SHORT, *flags] for name, flags in RUNS.items()}, folder)
    return found | results(
        SCRIPT, {"torchrun": [*SHORT, "--tp", "2"]}, folder, as_torchrun, ranks=2
    )


def test_the_serial_losses(runs, figure):
    for name, run in runs.items():
        figure(
            f"{name}: losses differ from the serial run's by {distance(run, runs['serial']):.1e}"
        )
        assert distance(run, runs["serial"]) < 1e-12, name
        assert abs(run["loss apart"] - runs["serial"]["loss apart"]) < 1e-12
        assert run["sample"] == runs["serial"]["sample"] and run["sample"].startswith("The ")
        assert run["printed"].count("loss on text kept apart") == 2 and "step 6/6" in run["printed"]
    assert runs["serial"]["losses"][-1] < runs["serial"]["losses"][0] - 0.3


def test_it_goes_on_where_it_was_on_another_grid(tmp_path, capsys):
    """The last checkpoint is lost; what the log says of its steps is said again."""
    folder = tmp_path / "run"
    kept = [*SHORT, "--folder", str(folder), "--save-every", "3", "--vocab", "300"]
    whole = results(SCRIPT, {"first": [*kept, "--ranks", "2", "--pp", "2"]}, tmp_path)["first"]
    assert [path.name for path in files.begun(folder)] == ["000001-step-3", "000002-step-6"]
    shutil.rmtree(folder / "000002-step-6")
    again = results(
        SCRIPT, {"again": [*kept, "--ranks", "2", "--tp", "2", "--zero", "1"]}, tmp_path
    )["again"]
    assert "goes on at step 3" in again["printed"] and len(again["losses"]) == 6
    assert distance(whole, again) < 1e-12 and again["sample"] == whole["sample"]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in lines] == again["losses"]
    assert lines[0].keys() == {"step", "loss", "rate", "tokens/s", "MFU", "GB"}
    assert any((folder / "events").iterdir())
    others = (
        ("--layers 1", "'layers': 2}, not of {'layers': 1}"),
        ("--heads 2", "'heads': 4, 'kv-heads': 4}"),
    )
    for flags, says in others:
        with pytest.raises(SystemExit):  # fewer layers, or other heads, would fit what is saved
            run_here(SCRIPT, [*kept, "--ranks", "1", *flags.split()])
        assert says in capsys.readouterr().err


def test_experts_over_ranks_and_their_checkpoints_over_others(tmp_path):
    """Data 2 × expert 2 is the serial run; saved by 3 expert ranks, it goes on with 2 and 2 stages, and with none."""
    eight = [*SHORT, "--experts", "8", "--capacity", "1.25"]
    folders = {name: ["--folder", str(tmp_path / name), "--save-every", "3"] for name in "ab"}
    runs = {
        "serial": [*eight, "--ranks", "1"],
        "world": [*eight, "--ranks", "4", "--ep", "2"],
        "processes": [*eight, "--ranks", "2", "--ep", "2", "--runner", "processes"],
        "three": [*eight, "--ranks", "3", "--ep", "3", "--zero", "1", *folders["a"]],
    }
    found = results(SCRIPT, runs, tmp_path)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        shutil.rmtree(tmp_path / name / "000002-step-6")
    runs = {
        "stages": [*eight, "--ranks", "4", "--ep", "2", "--pp", "2", *folders["a"]],
        "none": [*eight, "--ranks", "1", *folders["b"]],
    }
    again = results(SCRIPT, runs, tmp_path)
    assert all("goes on at step 3" in run["printed"] for run in again.values())
    for name, run in (found | again).items():
        assert distance(run, found["serial"]) < 1e-12, name
    losses = found["serial"]["losses"]
    assert losses[-1] < losses[0] - 0.3


def test_flags_that_changed(tmp_path):
    """They are what the run goes on with, and it says so; the same flags, and nothing is said."""
    folder = tmp_path / "run"
    kept = [*SHORT, "--ranks", "2", "--zero", "1", "--folder", str(folder)]
    runs = {
        "first": [*kept, "--steps", "3"],
        "same": [*kept, "--steps", "3"],
        "other": [*kept, "--lr", "0.5", "--decay", "0"],
    }
    found = results(SCRIPT, runs, tmp_path)
    assert "from here on" not in found["same"]["printed"]
    for words in (
        "--steps is 6 from here on, it was 3",
        "--lr is 0.5 from here on, it was 0.01",
        "--decay is 0.0 from here on, it was 0.1",
    ):
        assert words in found["other"]["printed"]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    whole = results(
        SCRIPT, {"whole": [*SHORT, "--ranks", "1", "--folder", str(tmp_path / "w")]}, tmp_path
    )["whole"]
    rates = [
        json.loads(line)["rate"] for line in (tmp_path / "w" / "log.jsonl").read_text().splitlines()
    ]
    assert [line["rate"] for line in lines[3:]] == pytest.approx([50 * rate for rate in rates[3:]])
    assert lines[0]["loss"] == pytest.approx(whole["losses"][0], rel=1e-12)
    saved = Saved(files.finished(folder)[-1])
    assert {g["weight_decay"] for g in read_state(saved, "optimizer.options")["param_groups"]} == {
        0.0
    }


LLAMA = [
    "--mlp",
    "swiglu",
    "--positions",
    "rotary",
    "--norm",
    "rms",
    "--no-bias",
    "--no-tied",
    "--kv-heads",
    "2",
    "--ffn",
    "20",
]


def test_weights_to_and_from_hugging_faces_layout(tmp_path, capsys):
    """Exported from one grid, they are where another run begins, on any grid; flags of the shape are not needed."""
    kept = ["--ranks", "2", "--tp", "2", "--folder", str(tmp_path / "run")]
    export = ["--export", str(tmp_path / "llama")]
    first = [*SHORT, *LLAMA, *kept, "--steps", "2", *export, "--vocab", "300"]
    found = results(SCRIPT, {"first": first}, tmp_path)["first"]
    begun = [*SHORT, "--weights", str(tmp_path / "llama"), "--ranks"]
    runs = {
        "at once": [*begun, "1", "--steps", "0"],
        "serial": [*begun, "1", "--steps", "2"],
        "grid": [*begun, "4", "--dp", "2", "--pp", "2", "--zero", "3", "--steps", "2"],
    }
    again = results(SCRIPT, runs, tmp_path)
    assert abs(again["at once"]["loss apart"] - found["loss apart"]) < 1e-12
    assert again["at once"]["sample"] == found["sample"]
    assert distance(again["grid"], again["serial"]) < 1e-12
    assert again["serial"]["losses"][0] < found["losses"][0] - 0.1
    for words, says in (
        ([*first], "llama is there already: it makes a new folder"),
        ([*SHORT, *export], "--export writes what --folder has saved, and there is none"),
        ([*SHORT, *kept, "--export", "x", "--mlp", "swiglu"], "no name in Hugging Face's layout"),
        ([*begun, "1", "--context", "9"], "samples of 9 tokens do not fit into the context of"),
        ([*begun, "1", "--vocab", "301"], "the text has 301 tokens, the model in"),
        ([*SHORT, "--weights", str(tmp_path)], "config.json cannot be read"),
    ):
        with pytest.raises(SystemExit):
            run_here(SCRIPT, words)
        assert says in capsys.readouterr().err


def test_one_run_at_a_time(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    alone = runpy.run_path(f"{FOLDER}/alone.py")["alone"]
    with (
        alone(tmp_path),
        pytest.raises(ValueError, match=f"is in use by process {os.getpid()} on .*: one run at"),
    ):
        with alone(tmp_path, wait=0.1):
            pass
    with alone(tmp_path, wait=0):
        assert (tmp_path / "lock").read_text().startswith("process")


def test_checkpoints_of_another_program(tmp_path, capsys):
    World(1).run(lambda comm: Checkpoints(tmp_path, comm).save(1, common={"mine": 1}))
    with pytest.raises(SystemExit):
        run_here(SCRIPT, [*SHORT, "--ranks", "2", "--folder", str(tmp_path)])
    assert "000001-step-1 was saved by another program" in capsys.readouterr().err


def test_what_a_compression_keeps_back_is_saved(tmp_path):
    kept = [
        *SHORT,
        "--ranks",
        "2",
        "--compression",
        "powersgd",
        "--dropout",
        "0.1",
        "--save-every",
        "3",
        "--folder",
    ]
    folder = tmp_path / "run"
    whole = results(SCRIPT, {"first": [*kept, str(folder)]}, tmp_path)["first"]
    shutil.rmtree(folder / "000002-step-6")
    again = results(SCRIPT, {"again": [*kept, str(folder)]}, tmp_path)["again"]
    assert "goes on at step 3" in again["printed"] and again["losses"] == whole["losses"]


def test_the_slurm_script(tmp_path):
    """torchrun, on a SLURM of one node that has two GPUs, as far as the script sees it."""
    for name, does in {
        "scontrol": "echo localhost",
        "srun": 'while [[ $1 == --* ]]; do shift; done; "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.path.dirname(sys.executable), os.environ["PATH"]])
    slurm = {
        "JOB_NAME": "train-gpt",
        "JOB_NODELIST": "node[1]",
        "JOB_ID": "7",
        "NNODES": "1",
        "GPUS_ON_NODE": "2",
    }
    environ = os.environ | {"PATH": path} | {f"SLURM_{key}": value for key, value in slurm.items()}
    words = [
        *SHORT,
        "--sample",
        "0",
        "--folder",
        str(tmp_path / "run"),
        "--json",
        str(tmp_path / "found.json"),
    ]
    subprocess.run(
        ["bash", f"{FOLDER}/train_gpt.slurm", *words],
        env=environ,
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    assert len(json.loads((tmp_path / "found.json").read_text())["losses"]) == 6
    assert [path.name for path in files.finished(tmp_path / "run")] == ["000001-step-6"]


def test_ctrl_c_saves_and_ends(tmp_path):
    folder, words = (
        tmp_path / "run",
        [f"{FOLDER}/{SCRIPT}", *SHORT, "--steps", "1000000", "--folder"],
    )
    command = [
        sys.executable,
        *words,
        str(folder),
        "--ranks",
        "2",
        "--runner",
        "processes",
        "--sample",
        "0",
    ]
    child = subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log, until = folder / "log.jsonl", time.monotonic() + 60
    while time.monotonic() < until and not (log.exists() and log.read_text().count("\n") > 3):
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)  # a terminal and torchrun both send it
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in said
    steps = log.read_text().count("\n")
    assert [path.name for path in files.finished(folder)] == [f"000001-step-{steps}"]
    assert not (folder / "stop").exists()
    assert (
        f"stopped: step {steps} of 1000000 is saved in {folder}, the same command goes on" in said
    )


@pytest.mark.parametrize("runner", ["world", pytest.param("processes", marks=pytest.mark.full)])
def test_ctrl_c_without_a_folder_ends_in_one_sentence(runner):
    words = [
        f"{FOLDER}/{SCRIPT}",
        *SHORT,
        "--steps",
        "1000000",
        "--ranks",
        "2",
        "--runner",
        runner,
        "--sample",
        "0",
    ]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, *words],
        env=environ,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for line in child.stdout:
        if line.startswith("step 3/"):
            break
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert said.splitlines() == ["interrupted: nothing was saved, for want of a --folder"]


def test_a_file_of_flags(tmp_path, capsys):
    file = tmp_path / "run.toml"
    lines = [
        "steps = 3",
        "[model]",
        "layers = 1",
        "hidden = 8",
        "tied = false",
        "context = 8",
        "[grid]",
    ]
    file.write_text("\n".join([*lines, "sequence-parallel = true"]))
    found = results(
        SCRIPT, {"one": ["--ranks", "1", "--config", str(file), "--hidden", "16"]}, tmp_path
    )["one"]
    assert (
        len(found["losses"]) == 3
        and found["parameters"] == 12 * 16**2 + 13 * 16 + 2 * 257 * 16 + 8 * 16 + 2 * 16
    )
    for text, says in (
        ("stepps = 3", "there is no flag --stepps"),
        ("steps = 'x'", "invalid int value: 'x'"),
        ("tied = 1", "tied is true or false, not 1"),
        ("steps", "run.toml: "),
    ):
        file.write_text(text)
        with pytest.raises(SystemExit):
            run_here(SCRIPT, ["--config", str(file)])
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--steps -1", "--steps: at least 0, not -1"),
        ("--save-every 0", "--save-every: at least 1, not 0"),
        ("--lr nan", "--lr: at least 0, not nan"),
        ("--dropout 1", "--dropout: at least 0 and below 1, not 1"),
        ("--ranks 0", "--ranks: at least 1, not 0"),
        ("--temperature -1", "--temperature: at least 0, not -1"),
        ("--algorithm rign", "invalid choice: 'rign'"),
        ("--steps 2.5", "--steps: invalid int value: '2.5'"),
        (
            "--chunks 3",
            "--chunks 3 is for --schedule interleaved; one_f_one_b has 1 chunk on a stage",
        ),
    ],
)
def test_flags_out_of_range(flags, says, capsys):
    with pytest.raises(SystemExit):
        run_here(SCRIPT, flags.split())
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            "--ranks 4 --batch 2",
            "a batch of 2 samples does not make 1 micro-batches on each of 4 data ranks",
        ),
        ("--ranks 2 --pp 3", "2 ranks are not 3×1×1 = 3"),
        ("--heads 3", "3 heads do not split hidden = 128"),
        ("--vocab 10", "--vocab: at least 257, not 10"),
        ("--text nowhere.txt", "--text nowhere.txt: No such file"),
        (
            "--schedule interleaved",
            "--schedule interleaved wants --chunks 2 or more on each stage, not --chunks 1",
        ),
        ("--pp 4 --layers 1", "3 layers do not make 4 stages"),
        ("--zero 1 --compression fp16", "not ZeRO 1"),
        (
            "--ranks 3 --cp 3",
            "128 tokens do not make 6 equal chunks, which 3 ranks of one context take in the order 'zigzag'",
        ),
        ("--ranks 2 --cp 2 --dropout 0.1", "take dropout=0, not 0.1 with cp=2"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence_before_a_rank_starts(flags, says, capsys):
    with pytest.raises(SystemExit) as caught:
        run_here(SCRIPT, flags.split())
    [line] = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and line.startswith("train_gpt.py: error: ") and says in line


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--dp 3 --pp 2", "2 ranks are not 2×3×1"),
        ("--heads 3", "3 heads do not split"),
        ("--vocab 10", "at least 257"),
        ("--text nowhere.txt", "nowhere.txt: No such file"),
    ],
)
def test_under_torchrun_too(flags, says, figure):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *torchrun, f"{FOLDER}/{SCRIPT}", *flags.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    [line] = [line for line in lines if "train_gpt.py: error:" in line]
    figure(f"{flags}: a sentence of ours among {len(lines)} lines of torchrun's")
    assert says in line and done.returncode != 0
    assert not any("ValueError" in line for line in lines)


def test_rank_0_alone_says_it(capfd):
    """Of those that torchrun has started; it ends the others."""
    program = lambda: run_here(SCRIPT, ["--heads", "3"])
    with pytest.raises(Exception, match="SystemExit"):
        in_its_place(program, 2)
    assert capfd.readouterr().err.count("error: 3 heads do not split") <= 1


def test_little_text_large_seeds_and_losses_that_are_none(tmp_path):
    """2 samples are kept apart, for 3 ranks; a date is a seed; NaN is not called a difference of ranks."""
    (tmp_path / "small.txt").write_text("a short text. " * 50)
    small = [
        "--ranks",
        "3",
        "--layers",
        "1",
        "--hidden",
        "16",
        "--heads",
        "2",
        "--context",
        "16",
        "--steps",
        "2",
        "--text",
        str(tmp_path / "small.txt"),
        "--batch",
        "3",
        "--seed",
        "20261123",
    ]
    found = results(SCRIPT, {"small": small}, tmp_path)["small"]
    assert 0 < found["loss apart"] < 10
    with pytest.raises(AssertionError, match=r"the loss of step 2 is (nan|inf): the run diverged"):
        run_here(SCRIPT, [*small, "--lr", "1e30", "--warm-up", "0"])


def test_a_sample_of_the_likeliest_tokens_from_nothing(tmp_path):
    """Without a prompt it begins as documents do; at temperature 0 nothing is drawn."""
    (tmp_path / "texts").mkdir()
    for i in range(40):
        (tmp_path / "texts" / f"{i}.txt").write_text("abc" * 4)
    flags = [
        "--ranks",
        "1",
        "--steps",
        "60",
        "--lr",
        "0.02",
        "--layers",
        "1",
        "--hidden",
        "16",
        "--heads",
        "2",
        "--context",
        "8",
        "--text",
        str(tmp_path / "texts"),
        "--sample",
        "5",
        "--prompt",
        "",
    ]
    found = results(
        SCRIPT, {t: [*flags, "--temperature", t] for t in ("0", "1e-9", "1e-320")}, tmp_path
    )
    assert found["0"]["sample"] == found["1e-9"]["sample"] == found["1e-320"]["sample"] == "abcab"
