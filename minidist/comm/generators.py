"""torch's random numbers belong to the process; the ranks of a World share it, so they take turns with them.

`Generators` reads, sets and makes the state of all generators that a program on `device` draws from: a
tensor, or a pair of them where there is a GPU's beside the CPU's. A turn costs under 1 µs.
"""

from __future__ import annotations

import torch


class Generators:
    """`get()` and `set(state)` are bound once: they run at every hand-over between ranks."""

    def __init__(self, device: torch.device):
        cpu = torch.default_generator
        self._devices = ["cpu"]
        self.get, self.set = cpu.get_state, cpu.set_state
        if device.type == "cuda":
            gpu = torch.cuda.default_generators[device.index or 0]
            self._devices.append(gpu.device)
            self.get = lambda: (cpu.get_state(), gpu.get_state())
            self.set = lambda both: (cpu.set_state(both[0]), gpu.set_state(both[1]))

    def fresh(self, seed: int):
        """The state after seeding with `seed`."""
        states = [torch.Generator(device).manual_seed(seed).get_state() for device in self._devices]
        return states[0] if len(states) == 1 else tuple(states)
