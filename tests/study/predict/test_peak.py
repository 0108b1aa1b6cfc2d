"""The meter and the calculators meet on a real small GPT: nothing of either is used by the other."""

import pytest
import torch

from minidist.models import gpt, next_token_loss
from minidist.study.meter import measure
from minidist.study.predict import Transformer, parameters, states
from tests.study.predict.saved import Peak, parameter_tensors, peak, saved

SHAPE = dict(layers=3, hidden=64, heads=4, vocab=256, context=32)
MODEL = Transformer(**SHAPE)
BATCH = 8


def trained(device, dtype, **words):
    """A model and its optimizer after one step, and a batch."""
    net = gpt(**SHAPE, device=device, dtype=dtype, **words)
    optimizer = torch.optim.Adam(net.parameters())
    x, y = (torch.randint(0, SHAPE["vocab"], (BATCH, SHAPE["context"])).to(device) for _ in "xy")
    next_token_loss(net(x), y).backward()
    optimizer.step()
    return net, optimizer, x, y


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("attention", "dropout", "dtype"),
    [
        ("sdpa", 0.0, torch.float32),
        ("sdpa", 0.1, torch.float32),
        ("explicit", 0.1, torch.bfloat16),
        ("explicit", 0.0, torch.float16),
    ],
)
def test_the_meter_measures_what_we_predict(device, attention, dropout, dtype):
    net, optimizer, x, y = trained(device, dtype, attention=attention, dropout=dropout)

    def step():
        optimizer.zero_grad()
        next_token_loss(net(x), y).backward()

    optimizer.zero_grad()
    found = measure(step).at_peak
    ours = peak(MODEL, BATCH, dtype=dtype, dropout=dropout, attention=attention, device=device)
    assert found["parameters"] == ours.parameters and found["gradients"] == 0
    assert found["optimizer states"] == ours.optimizer_states
    assert found["activations"] == pytest.approx(ours.activations, rel=0.01)
    assert sum(found.values()) == pytest.approx(ours.total, rel=0.01)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_model_states_byte_for_byte(device):
    net, optimizer, x, y = trained(device, torch.float32)

    def step():
        optimizer.zero_grad()
        next_token_loss(net(x), y).backward()
        optimizer.step()

    timeline = measure(step).timeline
    left = timeline.at(float("inf"))
    tensors = parameter_tensors(MODEL) if device == "cpu" else 0
    ours = states(parameters(MODEL), "adam", "fp32")
    left["optimizer states"] -= 4 * tensors  # a count of steps for each tensor
    assert {k: left[k] for k in ours.bytes} == ours.bytes
    exact = saved(MODEL, BATCH, device=device).total
    # the loss's own gradient is read as one
    assert exact <= max(timeline.live["activations"]) <= exact + 8


def test_parts():
    ours = peak(MODEL, 2, optimizer=None, device="meta")
    assert isinstance(ours, Peak) and ours.optimizer_states == 0
    assert ours.gradients_of_logits == 2 * 4 * 2 * 32 * 256 + 4
    with pytest.raises(ValueError, match=r"2 or 4 bytes here, not the 8 of torch.float64"):
        peak(MODEL, 1, dtype=torch.float64)
