"""The surroundings of a computation, kept so that it can be done again as it was.

What steers an operator besides its operands: the state of the random generators (dropout must drop the same elements
again), PyTorch's autocast, and the function modes that were active (a default device, an autocast of our own). Those
of the moment are put aside while the old ones are in force, and go on afterwards as if nothing had been.

A state is 5 kB on a CPU, 16 bytes on a GPU. Generators: PyTorch's own of the CPU, of the GPUs that the operands are on
and of the current one, and those among the operands. In a World each rank has its own state in PyTorch's own
generator, so this holds there as it is. NumPy's and Python's generators are not kept; nor are dispatch modes, which
watch and do not steer. Source: Chen et al. 2016, section 4; the pitfall of dropout is known since PyTorch 0.4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

Autocast = tuple[bool, torch.dtype]


class Replay:
    """The surroundings of now. `values`: the operands, tensors or not.  `with replay.again():` puts them in force."""

    def __init__(self, values: Iterable = ()):
        values = list(values)
        self._devices = {"cpu", "cuda"}.union(
            x.device.type for x in values if isinstance(x, Tensor)
        ) - {"meta"}
        self._states = [(random, random.get_state()) for random in _generators(values)]
        self._autocast, self._cached = self._autocast_now(), torch.is_autocast_cache_enabled()
        self._modes = _get_current_function_mode_stack()

    @classmethod
    def bare(cls, values: Iterable = ()) -> Replay:
        """The surroundings of an operator below them all: the random numbers of now, no autocast, no function modes."""
        replay = cls(values)
        replay._autocast = {
            device: (False, dtype) for device, (_, dtype) in replay._autocast.items()
        }
        replay._modes = []
        return replay

    @contextmanager
    def again(self) -> Iterator[None]:
        """In here all is as it was then."""
        now = [(random, random.get_state()) for random, _ in self._states]
        with ExitStack() as stack:
            self._enter_modes(stack)
            self._enter_autocast(stack)
            try:
                _restore(self._states)
                yield
            finally:
                _restore(now)

    def forget_random(self) -> None:
        """Give up the states of generators from which no number was drawn since."""
        changed = lambda random, state: (
            random.get_state().numpy().tobytes() != state.numpy().tobytes()
        )
        self._states = [(random, state) for random, state in self._states if changed(random, state)]

    def _enter_modes(self, stack: ExitStack) -> None:
        """Leave the modes of now as far as they differ, then enter those of then, each as its user did: by `with`."""
        now = _get_current_function_mode_stack()
        if now == self._modes:
            return
        same = next(
            (i for i, (a, b) in enumerate(zip(now, self._modes, strict=False)) if a is not b),
            min(len(now), len(self._modes)),
        )
        for _ in now[same:]:
            stack.callback(_push_mode, _pop_mode())
        for mode in self._modes[same:]:
            stack.enter_context(mode)

    def _enter_autocast(self, stack: ExitStack) -> None:
        if (
            self._autocast != self._autocast_now()
            or self._cached != torch.is_autocast_cache_enabled()
        ):
            for device, (enabled, dtype) in self._autocast.items():
                stack.enter_context(torch.autocast(device, dtype, enabled, self._cached))

    def _autocast_now(self) -> dict[str, Autocast]:
        return {
            device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in self._devices
        }


def _generators(values: list) -> list[torch.Generator]:
    found = [
        torch.default_generator,
        *(value for value in values if isinstance(value, torch.Generator)),
    ]
    if torch.cuda.is_initialized():
        here = {x.device.index for x in values if isinstance(x, Tensor) and x.is_cuda} | {
            torch.cuda.current_device()
        }
        found += [torch.cuda.default_generators[index] for index in sorted(here)]
    return found


def _restore(states: list[tuple[torch.Generator, Tensor]]) -> None:
    for random, state in states:
        random.set_state(state)
