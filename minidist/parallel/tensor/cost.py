"""What the blocks of a transformer send, as formulas: bytes of all ranks together, by rings.

N = B·T·H numbers are the data between blocks. Of N, an all-reduce sends 2(n−1)·N over all ranks, an all-gather or a
reduce-scatter (n−1)·N; a rank sends an n-th of that.

    block                        forward               backward
    MLP, attention               all-reduce            all-reduce                                4(n−1)N
    with sequence                gather, scatter       gather, scatter; H numbers of the bias    4(n−1)N + 2(n−1)H
    with regather                the same              an all-gather more                        5(n−1)N + 2(n−1)H
    norm, with sequence                                all-reduce of 2H numbers                  4(n−1)H
    MLP, rows first              all-reduce 4N + N     all-gather 4N + N                         15(n−1)N

Per layer and token that is 8(n−1)H numbers, whatever T and the number of heads; nothing depends on how many
parameters there are. The gradient of the input is among it: the first layer of all sends less where nothing before it
learns. Source: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2.
"""

from __future__ import annotations

from typing import NamedTuple


class Traffic(NamedTuple):
    """Bytes that all ranks of the group together send, in forward and in backward."""

    forward: int
    backward: int

    @property
    def total(self) -> int:
        return self.forward + self.backward


def block_bytes(
    n: int,
    batch: int,
    tokens: int,
    hidden: int,
    itemsize: int,
    sequence: bool = False,
    regather: bool = False,
) -> Traffic:
    """An MLP or an attention block on n ranks, with numbers of `itemsize` bytes."""
    whole = batch * tokens * hidden * itemsize
    backward = 2 * whole + sequence * 2 * hidden * itemsize + regather * whole
    return Traffic((n - 1) * 2 * whole, (n - 1) * backward)


def row_first_bytes(n: int, batch: int, tokens: int, hidden: int, itemsize: int) -> Traffic:
    """An MLP block whose first layer is split by rows, too."""
    whole = batch * tokens * hidden * itemsize
    return Traffic((n - 1) * 10 * whole, (n - 1) * 5 * whole)


def layer_bytes(
    n: int,
    batch: int,
    tokens: int,
    hidden: int,
    itemsize: int,
    sequence: bool = False,
    regather: bool = False,
) -> Traffic:
    """A transformer layer: two blocks, and two norms."""
    block = block_bytes(n, batch, tokens, hidden, itemsize, sequence, regather)
    norms = sequence * 2 * 4 * hidden * itemsize
    return Traffic(2 * block.forward, 2 * block.backward + (n - 1) * norms)
