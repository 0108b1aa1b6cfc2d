"""Averages of gradients that send less than the gradients: what `DataParallel(module, comm, compression=…)` takes.

    Dense()             everything, by an all-reduce: the same as no compression
    Half(dtype)         everything, in 16 bits                        exact but for the rounding
    Sign()              one bit a number and a scale                  error feedback
    PowerSGD(rank)      two thin matrices instead of each matrix      error feedback, warm start
    DGC(sparsity)       the largest 0.1 % of all numbers              momentum correction and factor masking, warm-up
    cost                the bytes of each, as formulas

`base` says what a compression is handed, and what it saves.
"""

from .base import Compression, Dense
from .dgc import DGC
from .half import Half
from .powersgd import PowerSGD
from .sign import Sign

__all__ = ["DGC", "Compression", "Dense", "Half", "PowerSGD", "Sign"]
