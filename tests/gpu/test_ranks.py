"""What the first hour checks, it would find: wrong finds, and what a profile shows, made by hand."""

import copy
import json
import math

import pytest
import torch

from tests.gpu import ranks, runs
from tests.gpu.ranks import hidden_shares, spans
from tests.parallelized import SHAPE, serial
from tests.test_parallelize import STEPS


@pytest.mark.parametrize("gap", [1e-12, math.inf, math.nan])
def test_a_wrong_collective_is_found(gap):
    with pytest.raises(AssertionError, match=r"rank 1: .*broadcast"):
        ranks.right([{"broadcast": 0.0, "all_to_all": 0.0}, {"broadcast": gap, "all_to_all": 0.0}])


def test_messages_that_did_not_come_are_found():
    with pytest.raises(AssertionError):
        ranks.all_came([14, 0])


def whole(shape):
    """What one rank finds that trains as the serial run: its losses, and all parameters."""
    losses, params = serial(shape, STEPS)
    return losses, [(name, [0] * p.dim(), p) for name, p in params.items()]


@pytest.mark.parametrize("program", ["grids", "pipelines", "mixed"])
@pytest.mark.parametrize("wrong", ["loss", "parameter", "missing"])
def test_another_training_is_found(program, wrong):
    shape = {"grids": SHAPE, "pipelines": ranks.DEEP, "mixed": ranks.FOUR}[program]
    find = {
        "grids": lambda both: {"one rank": both},
        "pipelines": lambda both: {"gpipe": both},
        "mixed": lambda both: [both],
    }[program]
    check = ranks.PROGRAMS[program].check
    losses, params = whole(shape)
    assert "as one rank does" in check([find((losses, params))])
    losses, params = copy.deepcopy((losses, params))
    if wrong == "loss":
        losses[-1] += 1e-9
    elif wrong == "parameter":
        params[3][2].view(-1)[0] += 1e-8
    else:
        del params[3]
    with pytest.raises(AssertionError):
        check([find((losses, params))])


def kernel(name, start, length):
    return dict(cat="kernel", name=name, ts=start, dur=length)


def test_what_a_profile_of_a_gpu_shows():
    """Of 30 µs of communication, two pieces of which overlap, 10 lie beside computation, of which there are 40."""
    events = [
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 15),
        kernel("ncclDevKernel_SendRecv", 10, 10),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100, 10),
        kernel("sm90_xmma_gemm_f32", 15, 30),
        kernel("vectorized_elementwise_kernel", 17, 8),
        kernel("sm90_xmma_gemm_f32", 95, 10),
        dict(cat="cpu_op", name="aten::mm", ts=0, dur=1000),
        dict(cat="kernel", name="nccl without an end", ts=0),
        dict(name="gloo:all_reduce", ts=50, dur=40, cat="cpu_op"),
    ]
    communication, computation = spans(events)
    assert len(communication) == 3 and len(computation) == 3
    assert hidden_shares(communication, computation) == pytest.approx((10 / 30, 10 / 30))
    assert hidden_shares(computation, communication) == pytest.approx((10 / 40, 10 / 30))


def test_what_a_profile_of_a_cpu_shows():
    events = [dict(name="gloo:send", ts=0, dur=10), dict(name="aten::addmm", ts=5, dur=100)]
    assert hidden_shares(*spans(events)) == (0.5, 0.5)
    assert hidden_shares(*spans(events[1:])) is None and hidden_shares(*spans(events[:1])) is None


@pytest.mark.parametrize(
    ("early", "late", "words"),
    [
        ((0.0, 0.0), (0.0, 0.0), "hidden are 0%"),
        ((0.1, 0.15), (0.0, 0.1), "hidden are 10% .*, 15% of what could"),
        ((0.6, 0.6), (0.7, 0.7), "60% of what could be; .* 70%"),
        (None, (0.0, 0.0), "is not in the profile"),
    ],
)
def test_what_hides_nothing_is_found(early, late, words):
    good = {"during backward": (0.5, 0.9), "after it": (0.0, 0.0)}
    assert "hidden are 50% of the communication, 90% of what could be" in ranks.is_hidden(
        [good, good]
    )
    with pytest.raises(AssertionError, match=words):
        ranks.is_hidden([good, {"during backward": early, "after it": late}])


def test_wrong_results_have_no_bandwidth():
    found = {2**20: {"ring": 1e-3, "native": 5e-4}}
    assert ranks.measured([(found, True)] * 4) == "1 MiB: ring 1.57, native 3.15 GB/s, over 4 ranks"
    with pytest.raises(AssertionError, match="wrong result"):
        ranks.measured([(found, True), (found, False)])


def test_the_generator_of_a_gpu_that_does_not_go_on_is_found(monkeypatch):
    """With the CPU's generator in the place of a GPU's."""
    state = lambda: {"cuda": [torch.get_rng_state()]}
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda n, device: rand(n))
    monkeypatch.setattr(runs, "random_state", state)
    monkeypatch.setattr(
        runs, "set_random_state", lambda state: torch.set_rng_state(state["cuda"][0])
    )
    runs.generator_goes_on()
    monkeypatch.setattr(runs, "set_random_state", lambda state: None)
    with pytest.raises(AssertionError):
        runs.generator_goes_on()


def pretended(**changed):
    """In place of torchrun: a run of a script that ends at once, with these results."""

    def run(script, arguments, ranks):
        file = arguments[arguments.index("--json") + 1]
        steps = int(arguments[arguments.index("--steps") + 1]) if "--steps" in arguments else 3
        found = (
            dict(losses=[1.0 / (i + 1) for i in range(steps)], ranks=ranks, replicas_equal=True)
            | changed
        )
        with open(file, "w") as f:
            json.dump(found, f)
        return "goes on at step 3"

    return run


@pytest.mark.parametrize("changed", [{}, {"replicas_equal": False}, {"ranks": 1}])
def test_other_digits_are_found(changed, tmp_path, monkeypatch):
    """The losses of a run that did not learn, or of replicas that have parted."""
    right = changed != {}
    monkeypatch.setattr(
        runs, "run_here", lambda script, arguments: pretended()(script, arguments, 1)
    )
    if right:
        assert "the losses of one" in runs.digits(pretended(), 2, "nccl", tmp_path)
    else:
        changed = {"losses": [1.0, 0.5, 1 / 3 + 1e-6]}
    with pytest.raises(AssertionError):
        runs.digits(pretended(**changed), 2, "nccl", tmp_path)


def test_a_trainer_that_does_not_learn_is_found(tmp_path):
    with pytest.raises(AssertionError):
        runs.trainer(pretended(losses=[1.0] * 6), 1, "nccl", tmp_path)


def test_checkpoints_that_are_not_there_are_found(tmp_path):
    with pytest.raises(AssertionError):
        runs.saving(pretended(), 2, "nccl", tmp_path)
