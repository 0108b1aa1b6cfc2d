"""What the scripts that train a GPT are compared with: the serial model, in a plain loop."""

import torch

from minidist.models import gpt, next_token_loss
from minidist.tasks import text
from minidist.text import Samples
from tests.largest import largest

STEPS, SHORT = (
    12,
    ["--steps", "12", "--batch", "4", "--context", "12", "--hidden", "16", "--heads", "4"],
)


def serial_losses():
    """Of the model that SHORT describes."""
    model = gpt(2, 16, 4, 256, 12, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    samples = Samples(text(), 12)
    for step in range(STEPS):
        x, y = samples(4 * step, 4)
        optimizer.zero_grad()
        loss = next_token_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_losses(runs):
    """Every run's losses are the serial ones and printed by rank 0; the model learns."""
    expected = {"losses": serial_losses()}
    assert expected["losses"][-1] < expected["losses"][0] - 0.5
    for name, run in runs.items():
        worst = largest(abs(a - b) for a, b in zip(run["losses"], expected["losses"], strict=True))
        assert worst < 1e-12, f"{name}: {worst}"
        lines = [line for line in run["printed"].splitlines() if line.startswith("step")]
        assert len(lines) == STEPS and f"{run['losses'][-1]:.12f}" in lines[-1], name
