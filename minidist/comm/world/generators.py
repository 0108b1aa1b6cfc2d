"""torch's random generators belong to the process; the ranks of a World share it, so they take turns with them."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Generators:
    """The state of all generators that a program on `device` draws from, for each rank: `turn(rank)` puts it in.

    A state is a tensor of 5 kB (a pair of tensors where there is a GPU), so a turn that changes nothing is free,
    and what draws no numbers need not have one. While entered, the process's own state is kept aside.
    """

    def __init__(self, device: torch.device, seeds: Iterable[int]):
        cpu = torch.default_generator
        devices = ["cpu"]
        self._get, self._set = cpu.get_state, cpu.set_state  # bound once: they run at every turn
        if device.type == "cuda":
            gpu = torch.cuda.default_generators[device.index or 0]
            devices.append(gpu.device)
            self._get = lambda: (cpu.get_state(), gpu.get_state())
            self._set = lambda both: (cpu.set_state(both[0]), gpu.set_state(both[1]))
        self._states = [_fresh(devices, seed) for seed in seeds]
        self._rank: int | None = None  # whose turn it is; its place in `_states` is out of date

    def turn(self, rank: int) -> None:
        """From here on numbers are drawn for `rank`."""
        if rank != self._rank:
            if self._rank is not None:
                self._states[self._rank] = self._get()
            self._set(self._states[rank])
            self._rank = rank

    def __enter__(self) -> Generators:
        self._kept = self._get()
        return self

    def __exit__(self, *exception) -> None:
        self._set(self._kept)


def _fresh(devices: list, seed: int):
    """The state after seeding with `seed`."""
    states = [torch.Generator(device).manual_seed(seed).get_state() for device in devices]
    return states[0] if len(states) == 1 else tuple(states)
