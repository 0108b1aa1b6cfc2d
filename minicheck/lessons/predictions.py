"""Numbers predicted before a run: what is asked in words, what the usual slips give."""

from __future__ import annotations

import sys

from torch import Tensor

from minidist.comm.base import Comm

from ..exam import Case, Exam, Wrong, shown
from ..guard import ask


class Prediction(Exam):
    """Numbers by name. right_values: each number's value.  slips: for each, a wrong value and what it means."""

    functions, name = False, "predict"
    cases = (Case(1, "your numbers"),)

    def __init__(
        self,
        names: list[str],
        values: dict[str, float],
        slips: dict[str, dict[float, str]],
        right: str,
    ):
        self.names = names
        self.values = values
        self.slips = slips
        self.right = right

    def draw(self, case, rng):
        return [()]

    def run(self, comm: Comm, *numbers):
        plain = [x.item() if isinstance(x, Tensor) and x.numel() == 1 else x for x in numbers]
        return dict(zip(self.names, plain, strict=True))

    def judge(self, case, args, outcome):
        for name, got in outcome.results[0].items():
            if got is None:
                raise Wrong(f"{name} is not set yet.")
            if isinstance(got, bool) or not isinstance(got, int | float):
                raise Wrong(f"{name} is {shown(got)}, and should be a number, such as 3 or 2.5e-6.")
            if abs(got) > sys.float_info.max:  # an int that no float holds, or infinity
                raise Wrong(f"{name} is {self._off(got, self.values[name])}.")
            if not close(got, self.values[name]):
                slip = next(
                    (text for value, text in self.slips.get(name, {}).items() if close(got, value)),
                    "",
                )
                raise Wrong(
                    f"{name} = {got:g} is {self._off(got, self.values[name])}. {slip}".rstrip()
                )

    def _off(self, got: float, want: float) -> str:
        if not got > 0:
            return "not above zero"
        return f"too {'large' if got > want else 'small'}"


def close(a: float, b: float) -> bool:
    """Within 1 %: a prediction is rounded."""
    return abs(a - b) <= 0.01 * abs(b)


HALF = "That is one half of the ring: there are two."
ALL = "That is what all ranks send together: one rank is asked for."
NUMBERS = "Those are numbers: how many bytes has one?"


def ring_slips(n: int, size: int, itemsize: int, alpha: float, beta: float) -> tuple[dict, dict]:
    """Messages and bytes a rank and seconds of a ring all-reduce of `size` numbers, bytes of rank 0 of a naive one."""
    whole = size * itemsize
    steps, ring = 2 * (n - 1), 2 * (n - 1) * whole / n
    seconds = steps * alpha + ring * beta
    values = {
        "messages": steps,
        "nbytes": ring,
        "naive_nbytes": (n - 1) * whole,
        "seconds": seconds,
    }
    slips = {
        "messages": {
            n - 1: HALF,
            2 * n: "In a ring of n ranks a chunk takes n−1 steps, not n.",
            steps * n: ALL,
        },
        "nbytes": {
            ring / itemsize: NUMBERS,
            ring / 2: HALF,
            whole * 2: "Nearly: the factor is 2(n−1)/n.",
            steps * whole: "A message is one chunk, N/n. Or is that all ranks' together?",
        },
        "naive_nbytes": {
            (n - 1) * size: NUMBERS,
            n * whole: "It sends nothing to itself.",
            steps * whole: "That counts what it receives, too: only what it sends is asked for.",
            whole: "That is one message: it sends one to each other rank.",
        },
        "seconds": {
            ring * beta: "The α of each step is missing.",
            steps * alpha: "The bytes take time, too: β.",
            seconds / 2: HALF,
        },
    }
    return values, slips


def predict(messages, nbytes, naive_nbytes, seconds) -> None:
    """For 8 ranks and 1,000,000 float32 numbers, α = 5 µs, β = 1/(50 GB/s): the cost of an all-reduce.

    messages, nbytes: what each rank sends in a ring.  seconds: how long the ring takes.
    naive_nbytes: what rank 0 sends if everyone sends to it and it sends the sum to everyone.
    """
    values, slips = ring_slips(n=8, size=1_000_000, itemsize=4, alpha=5e-6, beta=1 / 50e9)
    exam = Prediction(list(values), values, slips, "Messages, bytes and seconds, within 1 %.")
    ask(exam, messages, nbytes, naive_nbytes, seconds)
