"""The memory of one rank in a grid of data × tensor × pipeline ranks, item by item.

What divides what (Narayanan et al. 2021, section 2; Korthikanti et al. 2022, sections 4.2 and 5; ZeRO, section 5):

    pipeline   layers, so parameters, gradients, optimizer states; in 1F1B not the first stage's activations
    tensor     matrices, embeddings, the inside of a layer; norms and some biases stay whole on every rank
    ZeRO       optimizer states (1), gradients (2), parameters (3), over the data-parallel ranks

Parameters are counted stage by stage and tensor by tensor, not by dividing a total. Activations are the paper's
formula. Invariant: on one rank this is `states` and L layers of `activations`, with embedding and output.
"""

from __future__ import annotations

from dataclasses import dataclass

from minidist.split import even, uneven
from minidist.study.memory.activations import (
    activations,
    embedding_activations,
    in_flight,
    output_activations,
    scores,
)
from minidist.study.memory.items import Totals, divided
from minidist.study.memory.states import PRECISIONS, fused_gradients, states
from minidist.study.memory.transformer import Transformer


@dataclass(frozen=True)
class Grid:
    """How a step is spread over data × tensor × pipeline ranks.

    zero: ZeRO's stage, 0 to 3. micro_batch: sequences in one; micro_batches: how many a pipeline gets in a step.
    sequence: sequence parallel within `tensor`. recompute: "none", "selective", "full". schedule, interleave: as
    for `in_flight`. fused: gradients are copied into a flat fp32 buffer. optimizer, precision: as for `states`.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    micro_batch: int = 1
    micro_batches: int = 1
    sequence: bool = False
    recompute: str = "none"
    schedule: str = "1f1b"
    interleave: int = 1
    dropout: bool = True
    fused: bool = False
    optimizer: str = "adam"
    precision: str = "bf16"

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def along(self) -> int:
        """Over how many ranks the tokens are split."""
        return self.tensor if self.sequence else 1


@dataclass(frozen=True)
class PerRank(Totals):
    """Bytes on one rank at the peak of a step."""

    parameters: int
    gradients: int
    optimizer_states: int
    activations_of_layers: int
    layer_being_recomputed: int
    mask_after_embedding: int
    output_and_logits: int
    buffers: int


def per_rank(model: Transformer, grid: Grid | None = None, stage: int | None = None) -> PerRank:
    """Bytes on one rank of the grid, at the peak: `per_rank(model, Grid(data=8, tensor=4, pipeline=12, zero=1))`.

    stage: of the pipeline; the fullest if not given. Of tensor- and data-parallel ranks the first, with the most.
    Raises ValueError where the grid does not divide the model; uneven layers are allowed without interleaving.
    """
    grid = Grid() if grid is None else grid
    if stage is None:
        return max(
            (per_rank(model, grid, s) for s in range(grid.pipeline)), key=lambda rank: rank.total
        )
    params = rank_parameters(model, grid.tensor, grid.pipeline, stage)
    kept = states(params, grid.optimizer, grid.precision, grid.zero, grid.data)
    buffer = fused_gradients(params) if grid.fused else 0
    return PerRank(
        kept.parameters,
        kept.gradients,
        kept.optimizer_states,
        activations_of_layers=_layers_held(model, grid, stage)
        * _activations(model, grid, grid.recompute),
        layer_being_recomputed=_recomputed(model, grid),
        mask_after_embedding=_mask(model, grid) if stage == 0 else 0,
        output_and_logits=_output(model, grid) if stage == grid.pipeline - 1 else 0,
        buffers=buffer + _gathered(model, grid),
    )


def rank_parameters(model: Transformer, tensor: int = 1, stages: int = 1, stage: int = 0) -> int:
    """Parameters of a rank on `stage` of a pipeline. The first tensor-parallel rank, with the most, is meant.

    Layers are split by `stage_layers`. The first stage has the embeddings, the last the norm and the projection
    to the vocabulary; a projection that is the token embedding is held once more there if they are two stages.
    Raises ValueError where `tensor` does not divide heads or MLP, or there are more stages than layers.
    """
    divided(model.heads, tensor, "heads")
    divided(model.kv_heads or model.heads, tensor, "heads of keys")
    divided(model.width, tensor, "columns of the MLP")
    if not 1 <= stages <= model.layers:
        raise ValueError(f"{model.layers} layers do not make {stages} stages")
    if not 0 <= stage < stages:
        raise ValueError(f"there is no stage {stage} among {stages}")
    vocab = uneven(model.vocab, tensor)[0] * model.hidden
    count = stage_layers(model.layers, stages)[stage] * _layer(model, tensor)
    if stage == 0:
        count += vocab + model.positions * model.context * model.hidden
    if stage == stages - 1:
        count += model.hidden * (1 + model.bias) + vocab * (not model.tied or stages > 1)
    return count


def stage_layers(layers: int, stages: int) -> list[int]:
    """Layers of each stage; where they do not come out even the ends, which have the vocabulary too, get the fewer."""
    each, rest = divmod(layers, stages)
    more = set([*range(1, stages - 1), 0][:rest])
    return [each + (s in more) for s in range(stages)]


def _layer(model: Transformer, tensor: int) -> int:
    """One rank's parameters of one layer: norms, and biases that are added after a sum, are not split."""
    # split by columns
    h, columns = model.hidden, model.hidden + 2 * model.kv + model.width * (1 + model.gated)
    rows = h + model.width  # split by rows
    return (
        (h * (columns + rows) + columns * model.bias) // tensor
        + 2 * h * model.bias
        + 2 * h * (1 + model.bias)
    )


def _layers_held(model: Transformer, grid: Grid, stage: int) -> int:
    """Layers' worth of activations on a stage, over all micro-batches in flight."""
    chunks = in_flight(grid.pipeline, grid.micro_batches, stage, grid.schedule, grid.interleave)
    if grid.interleave == 1:
        return chunks * stage_layers(model.layers, grid.pipeline)[stage]
    return chunks * even(model.layers, grid.pipeline * grid.interleave, "layers")[0]


def _activations(model: Transformer, grid: Grid, recompute: str) -> int:
    return activations(
        model, grid.micro_batch, None, grid.tensor, grid.sequence, recompute, grid.dropout
    )


def _recomputed(model: Transformer, grid: Grid) -> int:
    """What exists again while one layer is computed again."""
    if grid.recompute == "full":
        return _activations(model, grid, "none")
    again = scores(model, grid.micro_batch, dropout=grid.dropout)
    return divided(again, grid.tensor, "bytes") if grid.recompute == "selective" else 0


def _mask(model: Transformer, grid: Grid) -> int:
    """Of all micro-batches in flight; an interleaved first stage runs up to two rounds ahead."""
    ahead = in_flight(grid.pipeline, grid.micro_batches, 0, grid.schedule)
    batches = ahead if grid.interleave == 1 else min(grid.micro_batches, 2 * grid.pipeline)
    return (
        embedding_activations(model, grid.micro_batch, grid.along, batches) if grid.dropout else 0
    )


def _output(model: Transformer, grid: Grid) -> int:
    """The last norm's and the projection's inputs follow the tokens, the logits are split by vocabulary."""
    batches = in_flight(grid.pipeline, grid.micro_batches, grid.pipeline - 1, grid.schedule)
    inputs = 4 * grid.micro_batch * model.context * model.hidden
    split = output_activations(model, grid.micro_batch, grid.tensor)
    return batches * (split - inputs // grid.tensor + inputs // grid.along)


def _gathered(model: Transformer, grid: Grid) -> int:
    """ZeRO's stage 3 brings a layer's parameters together when they are needed, and the next layer's meanwhile."""
    return (
        2 * _layer(model, grid.tensor) * PRECISIONS[grid.precision].parameter
        if grid.zero == 3
        else 0
    )
