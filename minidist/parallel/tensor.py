"""Tensor parallelism: the matrices of a layer are split over the ranks, and with them its heads and features.

copy_to, reduce_from, scatter_to, gather_from         between whole and split data; each with its conjugate
gather_sequence, reduce_scatter_sequence              the same where the sequence is split
ColumnLinear, RowLinear                               a linear layer by its outputs, by its inputs
TensorMLP, TensorAttention, TensorLayer               the parts of models.gpt; RowFirstMLP for comparison
shard, unshard, parameter                             weights taken apart, and put together
seed_group_, split_random                             random numbers: alike on all ranks, or each rank's own
TensorDropout, SequenceNorm                           dropout and layer norm around the split layers
block_bytes, row_first_bytes, layer_bytes             what they send, as formulas
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..collectives import all_gather, all_reduce_, reduce_scatter
from ..comm.base import Comm, describe
from ..cut import Cut, cuts, join
from ..models import MLP, Attention, Dropout, LayerNorm, TransformerLayer, initial_
from ..split import bounds, checked_sizes, uneven

# ------------------------------------------------------------
# The operators between split and whole: each is an autograd function, and its backward is another one of them.
#
# A tensor is *whole* on all ranks (replicated), *split* along a dimension, or *partial*: the whole is the sum over
# the ranks. A loss that every rank computes from whole tensors counts once.
#
#     operator                   forward                    backward, its conjugate      bytes a rank, by a ring
#     copy_to            (f)     whole: nothing             all-reduce                   0 and 2(n−1)/n·N
#     reduce_from        (g)     partial: all-reduce        nothing                      2(n−1)/n·N and 0
#     scatter_to                 whole: my part             all-gather                   0 and (n−1)/n·N
#     gather_from                split: all-gather          my part                      (n−1)/n·N and 0
#     gather_sequence            split: all-gather          reduce-scatter               (n−1)/n·N and (n−1)/n·N
#     reduce_scatter_sequence    partial: reduce-scatter    all-gather                   (n−1)/n·N and (n−1)/n·N
#
# Invariant: a backward is the transpose of its forward, ⟨A·x, y⟩ = ⟨x, Aᵀ·y⟩; what is whole counts once. Sources:
# Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.2, for the last pair, there g and ḡ.


class _Copy(Function):
    @staticmethod
    def forward(ctx, comm: Comm, *xs: Tensor):
        ctx.comm = comm
        return tuple(x.view_as(x) for x in xs)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, *_Reduce.apply(ctx.comm, *grads)


class _Reduce(Function):
    @staticmethod
    def forward(ctx, comm: Comm, *xs: Tensor):
        ctx.comm = comm
        # Copies: what others hold must not change under them, and an incoming gradient may have several readers.
        return tuple(
            all_reduce_(comm, [x.clone(memory_format=torch.contiguous_format) for x in xs])
        )

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return None, *_Copy.apply(ctx.comm, *grads)


class _Scatter(Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Comm, dim: int, sizes: list[int] | None):
        sizes = _sizes(x, comm, dim, sizes)
        ctx.call = comm, dim, sizes
        first, end = bounds(sizes)[comm.rank]
        # the whole can be freed
        return x.narrow(dim, first, end - first).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Gather.apply(grad, *ctx.call), None, None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Comm, dim: int, sizes: list[int] | None):
        ctx.call = comm, dim, sizes
        return gather_rows(comm, x, dim, sizes)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _Scatter.apply(grad, *ctx.call), None, None, None


class _GatherPartial(_Gather):
    @staticmethod
    def backward(ctx, grad: Tensor):
        return _ReduceScatter.apply(grad, *ctx.call), None, None, None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx, x: Tensor, comm: Comm, dim: int, sizes: list[int] | None):
        sizes = _sizes(x, comm, dim, sizes)
        ctx.call = comm, dim, sizes
        return reduce_scatter_rows(comm, x, dim, sizes)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _GatherPartial.apply(grad, *ctx.call), None, None, None


def _sizes(x: Tensor, comm: Comm, dim: int, sizes: list[int] | None) -> list[int]:
    """The parts of `x` along `dim`; ValueError if they do not fit."""
    return checked_sizes(sizes, x.shape[dim], comm.size)


def gather_rows(comm: Comm, x: Tensor, dim: int, sizes: list[int] | None = None) -> Tensor:
    """All ranks' parts along `dim`, in rank order; no autograd."""
    return all_gather(comm, x.movedim(dim, 0).contiguous(), sizes).movedim(0, dim).contiguous()


def reduce_scatter_rows(comm: Comm, x: Tensor, dim: int, sizes: list[int] | None = None) -> Tensor:
    """This rank's part along `dim` of the sum over the ranks; no autograd."""
    return (
        reduce_scatter(comm, x.movedim(dim, 0).contiguous(), sizes=sizes)
        .movedim(0, dim)
        .contiguous()
    )


def copy_to(x: Tensor | list[Tensor], comm: Comm):
    """f, before the parts of a split layer read `x`, which is whole: (…) → (…), without a message.

    Backward all-reduces: a rank's gradient is what its part of the layer says, the whole gradient is their sum.
    A list's gradients travel in one message. Of parameters that all ranks hold, but use on parts of the data,
    it makes the gradients whole.
    """
    return list(_Copy.apply(comm, *x)) if isinstance(x, list | tuple) else _Copy.apply(comm, x)[0]


def reduce_from(x: Tensor | list[Tensor], comm: Comm):
    """g, after a split layer whose results are partial: their sum over the ranks, (…) → (…).

    Backward hands the gradient on, without a message: every rank's summand has the gradient of the sum.
    """
    return (
        list(_Reduce.apply(comm, *x)) if isinstance(x, list | tuple) else _Reduce.apply(comm, x)[0]
    )


def scatter_to(x: Tensor, comm: Comm, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """This rank's part of `x`, which is whole: (…, F) → (…, F/n), or sizes[rank] of it; no message.

    Backward all-gathers. Raises ValueError where n does not divide F and `sizes` does not say who gets what.
    """
    return _Scatter.apply(x, comm, dim, sizes)


def gather_from(x: Tensor, comm: Comm, dim: int = -1, sizes: list[int] | None = None) -> Tensor:
    """All ranks' parts, in rank order, whole: (…, F/n) → (…, F) by an all-gather. `sizes`: where parts differ.

    Backward takes this rank's part of the gradient, without a message: what follows is done alike on every rank,
    so its gradient is whole already. Where what follows is split, too, take `gather_sequence`.
    """
    return _Gather.apply(x, comm, dim, sizes)


def gather_sequence(x: Tensor, comm: Comm, dim: int = -2, sizes: list[int] | None = None) -> Tensor:
    """Before the parts of a split layer read a sequence of which a rank has a part: (B, T/n, H) → (B, T, H).

    Forward all-gathers. Backward reduce-scatters: each rank's gradient is partial, as in `copy_to`.
    """
    return _GatherPartial.apply(x, comm, dim, sizes)


def reduce_scatter_sequence(
    x: Tensor, comm: Comm, dim: int = -2, sizes: list[int] | None = None
) -> Tensor:
    """After a split layer whose results are partial: of their sum this rank's part, (B, T, H) → (B, T/n, H).

    Backward all-gathers. Raises ValueError where n does not divide T and `sizes` does not say who gets what.
    """
    return _ReduceScatter.apply(x, comm, dim, sizes)


# ------------------------------------------------------------
# Which part of a parameter a rank has: what a serial model's weights are taken apart by, and put together.
#
# A split module says how each of its parameters is cut: `module.cuts = {"weight": Cut(0, [3, 3, 2]), …}`. What is not
# named there is whole on every rank. Names are the serial module's, so a state dict of the whole model serves all n:
#
#     layer.load_state_dict(shard(serial.state_dict(), layer, comm))      taken apart
#     serial.load_state_dict(unshard(layer, comm))                        put together
#
# Seeds belong to names: a whole parameter's initial value is `initial(seed, name, shape)`, and a rank cuts its part
# out of it, block by block. So for every n the model starts equal to the serial one, without a message.


def parameter(
    shape: tuple[int, ...],
    cut: Cut | None,
    comm: Comm,
    seed: int,
    name: str,
    dtype: torch.dtype | None = None,
    device=None,
) -> nn.Parameter:
    """This rank's part of a parameter whose whole has this shape, with its initial value. `cut` None: all of it."""
    mine = shape if cut is None else cut.shape(shape, cut.sizes[comm.rank])
    made = torch.empty(mine, dtype=dtype, device=comm.device if device is None else device)
    if cut is None:
        return nn.Parameter(initial_(made, seed, name))
    first, _ = bounds(cut.sizes)[comm.rank]
    return nn.Parameter(initial_(made, seed, name, cut.dim, first, shape[cut.dim]))


def shard(
    state: Mapping[str, Tensor] | nn.Module, like: nn.Module, comm: Comm
) -> dict[str, Tensor]:
    """This rank's part of a serial model's state dict (or of the model), for `like.load_state_dict`. No message.

    Raises ValueError for a name that is missing or too much, and for a shape that is not that of the whole.
    """
    whole = state.state_dict() if isinstance(state, nn.Module) else state
    mine, how = like.state_dict(), cuts(like)
    if whole.keys() != mine.keys():
        missing, unknown = sorted(mine.keys() - whole.keys()), sorted(whole.keys() - mine.keys())
        raise ValueError(f"the two models differ: missing {missing}, unknown {unknown}")
    for name, part in mine.items():
        cut = how.get(name)
        expected = (
            tuple(part.shape) if cut is None else cut.shape(tuple(part.shape), sum(cut.sizes))
        )
        if tuple(whole[name].shape) != expected:
            raise ValueError(
                f"the whole of {name} has shape {expected} here, but {describe(whole[name])} was given"
            )
    return {
        name: (how[name].part(x, comm.rank) if name in how else x).clone()
        for name, x in whole.items()
    }


@torch.no_grad()
def unshard(module: nn.Module, comm: Comm) -> dict[str, Tensor]:
    """The state dict of the serial model, on every rank: an all-gather for each parameter that is split.

    What is whole on every rank is this rank's own. All ranks must call it.
    """
    how = cuts(module)
    return {
        name: gather_from(x, comm, *how[name]) if name in how else x.clone()
        for name, x in module.state_dict().items()
    }


# ------------------------------------------------------------
# Random numbers where ranks hold the same data, and where each has its own part.
#
# Dropout on whole data must drop the same elements on every rank, or the copies part; on split data it must drop
# different ones, or what should be chance is repeated n times.
#
#     seed_group_(comm, seed)          from here on every rank of the group draws the same numbers
#     with split_random(comm):         in here each rank draws its own; outside nothing is missing or repeated
#         mask = …
#
# The numbers within are seeded by (a number drawn outside, the rank): a stream of their own, made anew each time. So
# PyTorch's default generator is all the state there is. What is computed again from a saved state of it draws the same
# numbers again, whatever was drawn in between: checkpointing needs to know nothing of it. Megatron-LM keeps a
# second generator for split data, whose state every checkpoint function must save, too (`megatron/core/tensor_parallel/
# random.py`).


_SEEDED = "random numbers of the group"


def seed_group_(comm: Comm, seed: int) -> None:
    """Every rank of `comm` draws the same numbers from here on. Groups with other data take another seed each.

    Call it once, at the start, on every rank of the group of tensor-parallel ranks, before a layer with dropout.
    """
    for random in _generators(comm):
        random.manual_seed(seed)
    comm.keep(_SEEDED, lambda: seed)


def same_random(comm: Comm) -> None:
    """Raises ValueError unless `seed_group_` was called: then ranks would drop different parts of the same data."""
    comm.keep(_SEEDED, _not_seeded)


def _not_seeded():
    raise ValueError(
        "dropout on the ranks of a tensor-parallel group needs random numbers that are the same on all of "
        "them: call seed_group_(comm, seed) first, with the Comm of the layer"
    )


@contextmanager
def split_random(comm: Comm) -> Iterator[None]:
    """In here each rank draws its own random numbers; afterwards all go on as if one number had been drawn."""
    drawn = int(torch.randint(2**62, ()))
    kept = [(random, random.get_state()) for random in _generators(comm)]
    try:
        for random, _ in kept:
            random.manual_seed((drawn * 1_000_003 + comm.rank) % 2**63)
        yield
    finally:
        for random, state in kept:
            random.set_state(state)


def _generators(comm: Comm) -> list[torch.Generator]:
    """PyTorch's default ones of the CPU and of the Comm's device."""
    found = [torch.default_generator]
    if comm.device.type == "cuda":
        torch.cuda.init()
        found.append(torch.cuda.default_generators[comm.device.index or 0])
    return found


# ------------------------------------------------------------
# A linear layer on a gathered sequence that keeps only its own part of it for backward.
#
# What the sequence-parallel operators leave undivided is the gathered input (B, T, H): the layer needs it for its
# weight's gradient. Here each rank keeps its part (B, T/n, H) and gathers once more in backward, on a lane of its own,
# beside the product for the input's gradient. Then all that a transformer layer keeps is divided by n.
#
#     forward    X = all-gather(x);  Y = X·Aᵀ + b
#     backward   all-gather(x) beside dY·A;  dx = reduce-scatter(dY·A);  dA = dYᵀ·X;  db = Σ dY
#
# Cost: (n−1)/n·N bytes more than without. Source: Korthikanti et al. 2022, section 4.2.2, whose all-gather in backward
# this is, overlapped as there.


class _Linear(Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, comm: Comm) -> Tensor:
        ctx.comm = comm
        ctx.save_for_backward(x, weight)
        return F.linear(gather_rows(comm, x, -2), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        again = ctx.comm.stream(all_gather, x.movedim(-2, 0).contiguous()) if of_weight else None
        # (…, T/n, inputs)
        mine = reduce_scatter_rows(ctx.comm, grad @ weight.to(grad.dtype), -2) if of_x else None
        flat = grad.flatten(0, -2)  # (B·T, outputs/n)
        for_weight = flat.t() @ _flat(again.wait()).to(grad.dtype) if of_weight else None
        return mine, for_weight, flat.sum(0) if of_bias else None, None


def _flat(rows: Tensor) -> Tensor:
    """(T, …, inputs), as rows are gathered, to (…·T, inputs)."""
    return rows.movedim(0, -2).flatten(0, -2)


def linear_on_gathered(x: Tensor, weight: Tensor, bias: Tensor | None, comm: Comm) -> Tensor:
    """`F.linear(gather_sequence(x, comm), weight, bias)`, (…, T/n, inputs) → (…, T, outputs/n), keeping `x` alone."""
    return _Linear.apply(x, weight, bias, comm)


# ------------------------------------------------------------
# A linear layer Y = X·Aᵀ + b split over n ranks: by its outputs (the columns of Aᵀ), or by its inputs (its rows).
#
#     ColumnLinear   X whole          A = [A₁; A₂]  (by outputs)     Y split: [X·A₁ᵀ, X·A₂ᵀ]      f before it
#     RowLinear      X split          A = [A₁, A₂]  (by inputs)      Y whole: X₁·A₁ᵀ + X₂·A₂ᵀ     g after it
#
# One after the other fit together: what the first leaves split, the second reads split. So two layers, and whatever
# works element by element between them, need one all-reduce forward (g) and one backward (f).
#
# b of a ColumnLinear is split with its outputs; that of a RowLinear is whole and added once, after the sum.
# Cost of each with N bytes of whole data: one all-reduce, 2(n−1)α + 2(n−1)/n·Nβ; with sequence=True an all-gather
# in f's place and a reduce-scatter in g's, which are its two halves. Source: Shoeybi et al. 2019, section 3.


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
        cut = Cut(0, checked_sizes(sizes or uneven(outputs, comm.size), outputs, comm.size))
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
        cut = Cut(1, checked_sizes(sizes or uneven(inputs, comm.size), inputs, comm.size))
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


# ------------------------------------------------------------
# Dropout and layer norm around the split layers, where a rank has all of the data, or a part of the sequence.
#
# On whole data they are the serial ones, done alike on every rank: the same work n times, and the same memory.
# Sequence parallelism does them on a part of the sequence, so that what they keep for backward is divided by n. Then
#
#     dropout   draws other numbers on every rank
#     norm      has seen a part of the tokens: the gradients of its scale and shift are summed over the ranks,
#               one all-reduce of 2H numbers
#
# Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.2.


class TensorDropout(Dropout):
    """Sets a part p to zero. split: the data is split, so each rank draws its own numbers; else all draw the same.

    Raises ValueError in training with p > 0 unless `seed_group_` was called.
    """

    def __init__(self, p: float, comm: Comm, split: bool = False):
        super().__init__(p)
        self.comm, self.split = comm, split

    def forward(self, x: Tensor) -> Tensor:
        with self.numbers():
            return super().forward(x)

    def numbers(self):
        """A context that draws the right random numbers, where it draws any."""
        if not (self.training and self.p):
            return nullcontext()
        same_random(self.comm)
        return split_random(self.comm) if self.split else nullcontext()


class SequenceNorm(LayerNorm):
    """Layer norm on a part of the sequence, (…, T/n, H): the gradients of weight and bias are those of all tokens."""

    def __init__(self, hidden: int, comm: Comm, dtype=None, device=None):
        super().__init__(hidden, dtype=dtype, device=comm.device if device is None else device)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = copy_to([self.weight, self.bias], self.comm)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


# ------------------------------------------------------------
# A transformer's layer split over n ranks: the serial model's own code, with other linear layers in it.
#
#     x ─┬─ norm ─ f ─ qkv (columns: whole heads) ─ attention ─ proj (rows) ─ g ─┬─ norm ─ f ─ fc ─ gelu ─ proj ─ g ─┬─
#        └───────────────────────────────────────────────────────────────────────┴───────────────────────────────────┴─
#        whole                     split over heads                       whole              split              whole
#
# A block has one all-reduce forward and one backward, a layer two and two. sequence=True keeps what is whole above as
# parts of the sequence, (B, T/n, H): f becomes an all-gather and g a reduce-scatter, the same bytes, and what the norms
# and dropouts keep is divided by n. Formulas: see `layer_bytes`. Sources: Shoeybi et al. 2019, "Megatron-LM",
# section 3; Korthikanti et al. 2022, section 4.2.2.


class TensorMLP(MLP):
    """The MLP of a transformer: fc by columns, proj by rows; GELU between them works on F/n features of this rank.

    (B, T, H) → (B, T, H), whole; with sequence=True (B, T/n, H). One all-reduce forward (g), one backward (f).
    The F features are split as evenly as can be, also where n does not divide them. Arguments as for `TensorLayer`.
    """

    def __init__(
        self,
        hidden: int,
        comm: Comm,
        dropout: float = 0.0,
        gelu: str = "tanh",
        sequence: bool = False,
        seed: int = 0,
        name: str = "",
        regather: bool = False,
        ffn: int | None = None,
        gated: bool = False,
        **like,
    ):
        nn.Module.__init__(self)  # not the serial layer's weights, only its forward
        self.widen(hidden, gelu, ffn, gated)
        dealt = uneven(self.ffn, comm.size)  # features of each rank
        split = dict(sequence=sequence, seed=seed, **like)
        self.fc = ColumnLinear(
            hidden,
            self.rows * self.ffn,
            comm,
            sizes=[self.rows * k for k in dealt],
            name=join(name, "fc"),
            regather=regather,
            **split,
        )
        self.proj = RowLinear(self.ffn, hidden, comm, sizes=dealt, name=join(name, "proj"), **split)
        self.dropout = TensorDropout(dropout, comm, split=sequence)


class RowFirstMLP(MLP):
    """The other way, to compare: fc by rows, so its results must be summed before GELU, which is not linear.

    Two all-reduces forward, the first of them 4H wide, and an all-gather for each backward: 15/4 of the bytes of
    TensorMLP. GELU is done on all 4H features by every rank.
    """

    def __init__(
        self,
        hidden: int,
        comm: Comm,
        dropout: float = 0.0,
        gelu: str = "tanh",
        seed: int = 0,
        name: str = "",
        **like,
    ):
        nn.Module.__init__(self)
        self.widen(hidden, gelu, None, False)
        split = dict(input_is_split=False, seed=seed, **like)
        self.fc = RowLinear(hidden, self.ffn, comm, name=join(name, "fc"), **split)
        self.proj = RowLinear(self.ffn, hidden, comm, name=join(name, "proj"), **split)
        self.dropout = TensorDropout(dropout, comm)


class TensorAttention(Attention):
    """Causal attention split by heads: each rank's heads attend on their own, without a message.

    (B, T, H) → (B, T, H), whole; with sequence=True (B, T/n, H). qkv is cut by columns, proj by rows. What is dealt
    out are groups: a head of keys and values with its queries, `kv_heads` of them (all heads unless given), as evenly
    as can be; a rank beyond the last has none, and adds zeros. Arguments as for `TensorLayer`.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        comm: Comm,
        kv_heads: int | None = None,
        dropout: float = 0.0,
        attention: str = "sdpa",
        sequence: bool = False,
        seed: int = 0,
        name: str = "",
        regather: bool = False,
        rotary: bool = False,
        **like,
    ):
        nn.Module.__init__(self)
        self.deal(hidden, heads, attention, kv_heads, rotary)
        dealt = uneven(self.groups, comm.size)  # groups of each rank
        split = dict(sequence=sequence, seed=seed, **like)
        self.qkv = ColumnLinear(
            hidden,
            self.groups * self.rows,
            comm,
            sizes=[k * self.rows for k in dealt],
            name=join(name, "qkv"),
            regather=regather,
            **split,
        )
        self.proj = RowLinear(
            hidden,
            hidden,
            comm,
            sizes=[k * self.queries * self.size for k in dealt],
            name=join(name, "proj"),
            **split,
        )
        self.groups = dealt[comm.rank]
        self.weights_dropout = TensorDropout(dropout, comm, split=True)
        self.dropout = TensorDropout(dropout, comm, split=sequence)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, a/n, T, H/a)
        with self.weights_dropout.numbers():  # the fused operator draws them itself
            return super().attend(q, k, v)


class TensorLayer(TransformerLayer):
    """`models.TransformerLayer` on the ranks of `comm`: (B, T, H) → (B, T, H), the same on every rank.

    hidden, heads, kv_heads, dropout, attention, gelu, ffn, gated, rotary: of the whole layer, as there.
    sequence: data between the blocks is split, (B, T/n, H) → (B, T/n, H); ValueError where n does not divide T.
        Before the first layer `scatter_to(x, comm, 1)`, after the last `gather_from(x, comm, 1)`.
    regather: with sequence, keep nothing whole for backward, for an all-gather more in the backward of each block.
    seed, name: of the initial values, which are those of the serial model with this seed and name ("" alone,
        "layers.0" in a GPT).  dtype, device: as there; the Comm's device.
    Heads and features need not be multiples of n. Parameters have the serial names: see `shard`, `unshard`.
    With dropout call `seed_group_(comm, seed)` first. Raises ValueError as TransformerLayer does.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        comm: Comm,
        kv_heads: int | None = None,
        dropout: float = 0.0,
        attention: str = "sdpa",
        gelu: str = "tanh",
        sequence: bool = False,
        seed: int = 0,
        name: str = "",
        regather: bool = False,
        dtype: torch.dtype | None = None,
        device: str | None = None,
        ffn: int | None = None,
        gated: bool = False,
        rotary: bool = False,
    ):
        nn.Module.__init__(self)
        like = dict(dtype=dtype, device=comm.device if device is None else device)
        split = dict(sequence=sequence, seed=seed, regather=regather, **like)
        norms = [
            SequenceNorm(hidden, comm, **like) if sequence else LayerNorm(hidden, **like)
            for _ in range(2)
        ]
        self.norm_1 = norms[0]
        self.attention = TensorAttention(
            hidden,
            heads,
            comm,
            kv_heads,
            dropout,
            attention,
            name=join(name, "attention"),
            rotary=rotary,
            **split,
        )
        self.norm_2 = norms[1]
        self.mlp = TensorMLP(
            hidden, comm, dropout, gelu, name=join(name, "mlp"), ffn=ffn, gated=gated, **split
        )


# ------------------------------------------------------------
# What the blocks of a transformer send, as formulas: bytes of all ranks together, by rings.
#
# N = B·T·H numbers are the data between blocks. Of N, an all-reduce sends 2(n−1)·N over all ranks, an all-gather or a
# reduce-scatter (n−1)·N; a rank sends an n-th of that.
#
#     block                        forward               backward
#     MLP, attention               all-reduce            all-reduce                                4(n−1)N
#     with sequence                gather, scatter       gather, scatter; H numbers of the bias    4(n−1)N + 2(n−1)H
#     with regather                the same              an all-gather more                        5(n−1)N + 2(n−1)H
#     norm, with sequence                                all-reduce of 2H numbers                  4(n−1)H
#     MLP, rows first              all-reduce 4N + N     all-gather 4N + N                         15(n−1)N
#
# Per layer and token that is 8(n−1)H numbers, whatever T and the number of heads; nothing depends on how many
# parameters there are. The gradient of the input is among it: the first layer of all sends less where nothing before it
# learns. Source: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2.


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
