"""The parts of a GPT on tensor-parallel ranks, and the values of those parts that a rank holds.

    parts = sequence(gpt(…, device="meta"))            embedding, L layers, head: the serial model, no values
    split_layers(parts, comm)                          1 … L: heads and features over the ranks
    split_vocabulary(parts, comm)                      0 and L + 1: rows of the vocabulary; logits stay split
    chunk = nn.Sequential(*parts[3:5]); fill_(…)       what this rank holds gets its values, and nothing else does

All that is said here is said on the device "meta"; only `fill_` takes memory. Sources: Shoeybi et al. 2019,
"Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.2 (sequence).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..comm.base import Comm
from ..cut import cuts
from ..models import Embedding, Head, LayerNorm, TransformerLayer, initial_
from ..models import SequenceEmbedding as FirstPart
from ..split import bounds
from .schedules import Shape
from .tensor import TensorDropout, TensorLayer, gather_from, scatter_to
from .vocab import VocabEmbedding

META, TOKENS = torch.device("meta"), "tokens.weight"


class VocabProjection(VocabEmbedding):
    """The projection to the vocabulary, (…, H) → (…, V_r): this rank's part of the logits."""

    forward = VocabEmbedding.project


class TensorEmbedding(FirstPart):
    """The first part: tokens (B, T) to (B, T, H), whole on every rank; with sequence=True its part, (B, T/n, H)."""

    def __init__(self, part: FirstPart, comm: Comm, sequence: bool = False):
        nn.Module.__init__(self)
        (vocab, hidden), like = (
            part.tokens.weight.shape,
            dict(dtype=part.tokens.weight.dtype, device=META),
        )
        self.tokens = VocabEmbedding(vocab, hidden, comm, **like)
        self.positions = None if part.positions is None else Embedding(part.context, hidden, **like)
        self.dropout, self.context = TensorDropout(part.dropout.p, comm), part.context
        self.comm, self.sequence = comm, sequence

    def forward(self, tokens: Tensor) -> Tensor:
        x = super().forward(tokens)
        return scatter_to(x, self.comm, 1) if self.sequence else x


class TensorHead(nn.Module):
    """The last part: (B, T, H), or (B, T/n, H), to this rank's part of the logits, (B, T, V_r)."""

    def __init__(self, part: Head, comm: Comm, sequence: bool = False):
        super().__init__()
        self.kind = "head" if part.tokens is None else "tokens"  # its name in the serial model
        weight = getattr(part, self.kind).weight
        like = dict(dtype=weight.dtype, device=META)
        self.norm = LayerNorm(weight.shape[1], **like)
        setattr(self, self.kind, VocabProjection(*weight.shape, comm, **like))
        self.comm, self.sequence = comm, sequence

    def forward(self, x: Tensor) -> Tensor:
        x = gather_from(x, self.comm, 1) if self.sequence else x
        return getattr(self, self.kind)(self.norm(x))


def split_layers(
    parts: nn.Sequential, comm: Comm, sequence: bool = False, regather: bool = False
) -> nn.Sequential:
    """`parts` with a `TensorLayer` for each `TransformerLayer`, on the device "meta". Arguments as there."""
    return nn.Sequential(
        *(
            _layer(part, comm, sequence, regather) if isinstance(part, TransformerLayer) else part
            for part in parts
        )
    )


def _layer(layer: TransformerLayer, comm: Comm, sequence: bool, regather: bool) -> TensorLayer:
    attention, mlp = layer.attention, layer.mlp
    heads = attention.groups * attention.queries
    return TensorLayer(
        heads * attention.size,
        heads,
        comm,
        attention.groups,
        attention.dropout.p,
        attention.kind,
        getattr(mlp.act, "approximate", "none"),
        sequence,
        regather=regather,
        dtype=layer.norm_1.weight.dtype,
        device=META,
        ffn=mlp.ffn,
        gated=mlp.rows == 2,
        rotary=attention.rotary,
    )


def split_vocabulary(parts: nn.Sequential, comm: Comm, sequence: bool = False) -> nn.Sequential:
    """`parts` with their ends split by rows of the vocabulary, on the device "meta"; tied ends are told apart."""
    first, *layers, last = parts
    return nn.Sequential(
        TensorEmbedding(first, comm, sequence), *layers, TensorHead(last, comm, sequence)
    )


def chunks(
    parts: nn.Sequential, cuts: Sequence[tuple[int, int]], shape: Shape, stage: int
) -> nn.ModuleList:
    """The chunks of a stage, each a Sequential that keeps the numbers of its parts; cuts: as from `partition`."""
    return nn.ModuleList(parts[slice(*cuts[shape.part(stage, chunk)])] for chunk in range(shape.v))


def serial_name(name: str, parts: int) -> str:
    """What a parameter of `chunks`, of a model of so many parts, is called in the GPT: "0.2.norm_1.bias" is
    "layers.1.norm_1.bias". The chunk may be wrapped in a FullySharded; the ends have the GPT's own names."""
    _, number, rest = name.replace(".module.", ".", 1).split(".", 2)
    return f"layers.{int(number) - 1}.{rest}" if 0 < int(number) < parts - 1 else rest


def tied(module: nn.Module, rename: Callable[[str], str]) -> dict[str, nn.Parameter]:
    """{name: parameter} of the token embedding, where this rank has it, be it at the first end or at the last."""
    found = [p for name, p in module.named_parameters() if rename(name) == TOKENS]
    return {TOKENS: found[0]} if found else {}


@torch.no_grad()
def fill_(
    stage: nn.Module,
    rename: Callable[[str], str],
    whole: Mapping[str, Tensor],
    comm: Comm,
    seed: int,
    dtype: torch.dtype | None = None,
) -> None:
    """Give each parameter of `stage` its values, on the Comm's device: this rank's part of those in `whole`.

    rename: from names in `stage` to those in `whole`.  whole: the serial model's parameters. On the device "meta" they
    stand for their initial values by `seed`.  dtype: instead of theirs. What has one name there is one parameter here.
    """
    how, made = cuts(stage), {}
    for name, p in list(stage.named_parameters(remove_duplicate=False)):
        serial = rename(name)
        if serial not in made:
            made[serial] = _made(p, how.get(name), whole[serial], serial, comm, seed, dtype)
        owner, _, last = name.rpartition(".")
        setattr(stage.get_submodule(owner), last, made[serial])


def _made(
    p: Tensor, cut, whole: Tensor, name: str, comm: Comm, seed: int, dtype: torch.dtype | None
) -> nn.Parameter:
    values = torch.empty(p.shape, dtype=dtype or whole.dtype, device=comm.device)
    if not whole.is_meta:
        values.copy_(whole if cut is None else cut.part(whole, comm.rank))
    elif cut is None:
        initial_(values, seed, name)
    else:
        initial_(values, seed, name, cut.dim, bounds(cut.sizes)[comm.rank][0], sum(cut.sizes))
    return nn.Parameter(values, whole.requires_grad)
