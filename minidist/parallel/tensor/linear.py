"""A linear layer Y = X·Aᵀ + b split over n ranks: by its outputs (the columns of Aᵀ), or by its inputs (its rows).

    ColumnLinear   X whole          A = [A₁; A₂]  (by outputs)     Y split: [X·A₁ᵀ, X·A₂ᵀ]      f before it
    RowLinear      X split          A = [A₁, A₂]  (by inputs)      Y whole: X₁·A₁ᵀ + X₂·A₂ᵀ     g after it

One after the other fit together: what the first leaves split, the second reads split. So two layers, and whatever
works element by element between them, need one all-reduce forward (g) and one backward (f).

b of a ColumnLinear is split with its outputs; that of a RowLinear is whole and added once, after the sum.
Cost of each with N bytes of whole data: one all-reduce, 2(n−1)α + 2(n−1)/n·Nβ; with sequence=True an all-gather
in f's place and a reduce-scatter in g's, which are its two halves. Source: Shoeybi et al. 2019, section 3.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...comm.base import Comm
from ...split import given, uneven
from .operators import (
    copy_to,
    gather_from,
    gather_sequence,
    reduce_from,
    reduce_scatter_sequence,
    scatter_to,
)
from .parts import Cut, join, parameter
from .regather import linear_on_gathered


class ColumnLinear(nn.Module):
    """A linear layer of which every rank computes some outputs: (…, inputs) whole → (…, outputs/n) split.

    inputs, outputs: of the whole layer.  gather_output: put the outputs together, (…, outputs) on every rank.
    sequence: the input is split along its second last dimension, (…, T/n, inputs); n must divide T. regather: then
        keep that part for backward, and gather it once more there, instead of keeping the whole.
    sizes: outputs of each rank; as equal as can be unless given, also where n does not divide them.
    seed, name: the whole weight starts as `initial(seed, name + ".weight", …)`, whatever n is; the bias alike.
    dtype, device: as for nn.Linear; the Comm's device. `weight` (outputs/n, inputs), `bias` (outputs/n): this rank's.
    Raises ValueError for sizes that do not add up to `outputs`, and for regather without sequence.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        comm: Comm,
        bias: bool = True,
        gather_output: bool = False,
        sequence: bool = False,
        sizes: list[int] | None = None,
        seed: int = 0,
        name: str = "",
        dtype: torch.dtype | None = None,
        device=None,
        regather: bool = False,
    ):
        super().__init__()
        if regather and not sequence:
            raise ValueError(
                f"what is not split is not gathered: sequence={sequence}, regather={regather}"
            )
        cut = Cut(0, given(sizes or uneven(outputs, comm.size), outputs, comm.size))
        whole = {"weight": (outputs, inputs)} | ({"bias": (outputs,)} if bias else {})
        self.bias, self.cuts = None, dict.fromkeys(whole, cut)
        for key, shape in whole.items():
            setattr(self, key, parameter(shape, cut, comm, seed, join(name, key), dtype, device))
        self.comm = comm
        self.gather_output = gather_output
        self.sequence = sequence
        self.sizes = cut.sizes
        self.regather = regather

    def forward(self, x: Tensor) -> Tensor:
        if self.regather:
            y = linear_on_gathered(x, self.weight, self.bias, self.comm)  # (…, T, outputs/n)
        else:
            # (…, inputs)
            x = gather_sequence(x, self.comm) if self.sequence else copy_to(x, self.comm)
            y = F.linear(x, self.weight, self.bias)  # (…, outputs/n)
        return gather_from(y, self.comm, -1, self.sizes) if self.gather_output else y


class RowLinear(nn.Module):
    """A linear layer of which every rank reads some inputs: (…, inputs/n) split → (…, outputs) whole.

    inputs, outputs: of the whole layer.  input_is_split: False if every rank has all inputs; then it takes its own.
    sequence: leave the output split along its second last dimension, (…, T/n, outputs); n must divide T.
    sizes: inputs of each rank; as equal as can be unless given, also where n does not divide them.
    seed, name, dtype, device, errors: as for ColumnLinear. `weight` (outputs, inputs/n) is this rank's; `bias`
    (outputs) whole on every rank, the same, and added once.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        comm: Comm,
        bias: bool = True,
        input_is_split: bool = True,
        sequence: bool = False,
        sizes: list[int] | None = None,
        seed: int = 0,
        name: str = "",
        dtype: torch.dtype | None = None,
        device=None,
    ):
        super().__init__()
        cut = Cut(1, given(sizes or uneven(inputs, comm.size), inputs, comm.size))
        self.weight = parameter(
            (outputs, inputs), cut, comm, seed, join(name, "weight"), dtype, device
        )
        self.bias = (
            parameter((outputs,), None, comm, seed, join(name, "bias"), dtype, device)
            if bias
            else None
        )
        self.comm = comm
        self.input_is_split = input_is_split
        self.sequence = sequence
        self.cuts, self.sizes = {"weight": cut}, cut.sizes

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.input_is_split else scatter_to(x, self.comm, -1, self.sizes)  # (…, inputs/n)
        partial = F.linear(x, self.weight)  # (…, outputs)
        y = (
            reduce_scatter_sequence(partial, self.comm)
            if self.sequence
            else reduce_from(partial, self.comm)
        )
        # autocast may have lowered y
        return y if self.bias is None else y + self._bias().to(y.dtype)

    def _bias(self) -> Tensor:
        # With a part of the sequence here, its gradient is a part, too.
        return copy_to(self.bias, self.comm) if self.sequence else self.bias
