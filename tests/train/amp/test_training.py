"""Scaled fp16 reaches the fp32 loss, and without the scaler or without masters it does not: small, of the benchmark."""

import math

import pytest
import torch

from benchmarks.amp import jobs, off, reached
from minidist.train.amp import exponents, lost
from tests.largest import smallest


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "steps", "seeds", "worse"), [("digits", 40, (0, 1, 2), 1.0), ("gpt", 30, (0,), 0.05)]
)
def test_scaled_fp16_reaches_the_fp32_loss(name, steps, seeds, worse):
    job = jobs()[name]
    found = {
        way: [reached(job, way, seed, steps) for seed in seeds]
        for way in ("fp32", "O2", "O2, no scaler", "O3")
    }
    exact = found["fp32"]
    assert off(found["O2"], exact) < 0.01 < off(found["O2, no scaler"], exact)
    assert all(b > (1 + worse) * a for a, b in zip(exact, found["O2, no scaler"], strict=True))
    assert smallest(found["O2, no scaler"]) > max(exact)
    assert all(map(math.isnan, found["O3"]))  # Adam divides by eps, which is 0 in fp16


def test_updates_are_lost_where_all_is_half():
    """bf16 with a mean loss and plain SGD: nothing is wrong with the gradients, and O3 learns far less than O2."""
    job = jobs()["updates"]
    exact, with_masters, without = (
        reached(job, way, 0, 200) for way in ("fp32", "O2, bf16", "O3, bf16")
    )
    assert abs(with_masters / exact - 1) < 0.01 and without > 1.05 * exact


def test_what_is_lost_is_seen():
    """The counts tell it before training does: gradients of the first, updates of the other."""
    job, share = jobs()["gpt"], {}
    net = job.model(0)
    job.loss(net(job.judge[0][:8]), job.judge[1][:8]).backward()
    for scale in (1.0, 2.0**16):
        seen = exponents([p.grad for p in net.parameters()], torch.float16, scale)
        share[scale] = (seen.underflow + seen.subnormal) / (seen.total - seen.zeros)
    assert share[1.0] > 0.99 and share[2.0**16] < 0.2

    job = jobs()["updates"]
    net = job.model(0)
    job.loss(net(job.judge[0]), job.judge[1]).backward()
    updates = [0.01 * p.grad for p in net.parameters()]
    assert lost(updates, net.parameters(), torch.bfloat16) > 0.8
    assert lost(updates, net.parameters(), torch.float32) < 0.05
