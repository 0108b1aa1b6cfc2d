"""What a run takes, predicted: the memory of every rank, FLOPs, hours, money. No code is shared with what is predicted.

    Transformer         the shape of a model; its `parameters`, and the `flops` of a step
    states              bytes of parameters, gradients and optimizer states; ZeRO divides them
    activations         bytes that one layer keeps for backward, after the formula of the literature
    Grid, per_rank      bytes of one rank among data × tensor × pipeline ranks, item by item; `on_host` of its host
    mfu, run_cost…      how well a machine is used, and what a run costs
    zero_kept, bubble, best_bucket, dgc_bytes…    what each way to train in parallel costs, in a section of its own

Letters: B batch, T tokens, H hidden, V vocabulary, L layers, Ψ parameters; the papers' b, s, h, v, l. `tensor` is their
t, `pipeline` their p, `interleave` their m or v. Bytes are integers; GB = 10⁹, GiB = 2³⁰.

>>> from minidist.study import predict
>>> from minidist.study.catalog import MODELS
>>> params = predict.parameters(MODELS["gpt3-175b"])
>>> params
174615846912
>>> predict.per_parameter("adam", "fp16")
{'parameters': 2, 'gradients': 2, 'optimizer states': 12}
>>> predict.listing({"ZeRO 1 on 64 ranks": predict.states(params, zero=1, data=64).total})
                              bytes     GB  GiB
───────────────────────────────────────────────
ZeRO 1 on 64 ranks  731,203,858,944  731.2  681
total               731,203,858,944  731.2  681
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from minidist.collectives.verbs import seconds as collective_seconds
from minidist.split import even, uneven
from minidist.study.charts import Table, table

MB = 10**6
GB = 10**9
TB = 10**12
MiB = 2**20
GiB = 2**30

RECOMPUTE = ("none", "selective", "full")
ATTENTION = ("explicit", "fused")


def divided(total: int, by: int, what: str) -> int:
    """`total / by`, which must come out even: ValueError with both numbers if not."""
    if by < 1 or total % by:
        raise ValueError(
            f"{total} {what} do not split over {by} ranks: {total} is not a multiple of {by}"
        )
    return total // by


def known(name: str, choices: Mapping, what: str):
    """The choice of that name. ValueError, which lists the names, where there is none."""
    if name not in choices:
        raise ValueError(f"{what} {name!r} is none of {', '.join(map(repr, choices))}")
    return choices[name]


def listing(items: Mapping[str, int], title: str = "") -> Table:
    """A table of items with their bytes, in GB and in GiB, so that nobody adds one to the other; the sum comes last."""
    items = {**items, "total": sum(items.values())}
    rows = [[name, nbytes, nbytes / GB, nbytes / GiB] for name, nbytes in items.items()]
    return table(rows, ["", "bytes", "GB", "GiB"], title=title)


@dataclass(frozen=True)
class Totals:
    """For a dataclass whose integer fields are bytes: their sum, and a table of them."""

    @property
    def bytes(self) -> dict[str, int]:
        """The fields, in order, with their names as one reads them."""
        return {f.name.replace("_", " "): getattr(self, f.name) for f in fields(self)}

    @property
    def total(self) -> int:
        return sum(self.bytes.values())

    def table(self) -> Table:
        return listing(self.bytes)

    def __str__(self) -> str:
        return self.table().text

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


# ------------------------------------------------------------
# A transformer: its parameters and floating-point operations, counted exactly.
#
# A layer multiplies T tokens by 12H² weights, 2 FLOPs each: 24·B·T·H² forward; scores and their use take 4·B·T²·H
# more; the vocabulary 2·B·T·H·V. Backward is twice forward (one product for the input, one for the weight), and
# what is recomputed is forward once more. In the letters of the papers (s = T, b or B = B, h = H, l = L):
#
#     parameters  12lh²(1 + 13/12h + (V + s)/12lh)         Narayanan et al., SC21, equation 2
#     FLOPs       96Bslh²(1 + s/6h + V/16lh)               equation 3: with every layer recomputed
#                 72Bslh²(1 + s/6h + V/12lh)               without (Korthikanti et al. 2022, section 5)
#
# Only matrix products count, as in all those papers. Everything is an integer.


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer. The first five, and `tied`, are also what `models.gpt` takes.

    ffn: width of the MLP, 4H if not given. gated: it has a third matrix (SwiGLU). bias: linear layers have
    biases and norms too; False with RMSNorm. positions: learned, T·H parameters. kv_heads: heads of keys and
    values where they are fewer. experts: MLPs in place of one in every second layer, of which a token passes top_k.
    Raises ValueError for less than 1 of anything, and where `heads` does not divide `hidden`, or `kv_heads` not `heads`.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    context: int
    tied: bool = True
    ffn: int | None = None
    gated: bool = False
    bias: bool = True
    positions: bool = True
    kv_heads: int | None = None
    experts: int | None = None
    top_k: int = 2

    def __post_init__(self):
        sizes = ("layers", "hidden", "heads", "vocab", "context", "ffn", "kv_heads")
        for name in (*sizes, "experts", "top_k"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(
                    f"a transformer has at least 1 of each, and {name} = {getattr(self, name)}"
                )
        if self.hidden % self.heads:
            raise ValueError(
                f"{self.heads} heads do not split hidden = {self.hidden}: it is not a multiple"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(
                f"{self.kv_heads} heads of keys and values do not serve {self.heads} heads alike"
            )

    @property
    def width(self) -> int:
        """Of the MLP."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def kv(self) -> int:
        """Columns of keys, or of values."""
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    @property
    def columns(self) -> int:
        """Of a layer's matrices that tensor parallelism splits by columns: queries, keys, values, into the MLP."""
        return self.hidden + 2 * self.kv + self.width * (1 + self.gated)

    @property
    def rows(self) -> int:
        """Of those that it splits by rows: attention's projection, and out of the MLP."""
        return self.hidden + self.width


def layer_matrices(model: Transformer) -> int:
    """Weights of one layer that tokens are multiplied by: 12H² in a GPT."""
    return model.hidden * (model.columns + model.rows)


def layer_parameters(model: Transformer, tensor: int = 1) -> int:
    """All parameters of one layer on one of `tensor` ranks: 12H² + 13H in a GPT on one.

    Norms, and biases that are added after a sum, are not split.
    """
    split = layer_matrices(model) + model.bias * model.columns
    return split // tensor + 2 * model.hidden * (1 + 2 * model.bias)


def mlp_matrices(model: Transformer) -> int:
    """Weights of one MLP."""
    return model.hidden * model.width * (2 + model.gated)


def mlp_parameters(model: Transformer, tensor: int = 1) -> int:
    """Parameters of one MLP on one of `tensor` ranks."""
    split = mlp_matrices(model) + model.bias * model.width * (1 + model.gated)
    return split // tensor + model.bias * model.hidden


def expert_layers(model: Transformer, stages: int = 1, stage: int = 0) -> int:
    """Layers of a stage that have experts: every second one of the model, of which the first has none."""
    layers = stage_layers(model.layers, stages)
    first = sum(layers[:stage])
    return ((first + layers[stage]) // 2 - first // 2) * (model.experts is not None)


def expert_parameters(
    model: Transformer, tensor: int = 1, stages: int = 1, stage: int = 0, expert: int = 1
) -> int:
    """Parameters of experts on a rank, the first of `expert` that share them out: those with the most."""
    own = uneven(model.experts or 0, expert)[0]
    return expert_layers(model, stages, stage) * own * mlp_parameters(model, tensor)


def rank_parameters(
    model: Transformer, tensor: int = 1, stages: int = 1, stage: int = 0, expert: int = 1
) -> int:
    """Parameters of a rank on `stage` of a pipeline. The first tensor-parallel rank, with the most, is meant.

    expert: ranks that share out a layer's experts; routers are whole on each.

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
    count = stage_layers(model.layers, stages)[stage] * layer_parameters(model, tensor)
    if model.experts:
        router = model.hidden * model.experts
        more = router - mlp_parameters(model, tensor)
        count += expert_layers(model, stages, stage) * more
        count += expert_parameters(model, tensor, stages, stage, expert)
    if stage == 0:
        count += vocab + model.positions * model.context * model.hidden
    if stage == stages - 1:
        count += model.hidden * (1 + model.bias) + vocab * (not model.tied or stages > 1)
    return count


def parameters(model: Transformer) -> int:
    """All parameters."""
    return rank_parameters(model)


def stage_layers(layers: int, stages: int) -> list[int]:
    """Layers of each stage; where they do not come out even the ends, which have the vocabulary too, get the fewer."""
    each, rest = divmod(layers, stages)
    more = set([*range(1, stages - 1), 0][:rest])
    return [each + (s in more) for s in range(stages)]


MICRO_BATCHES = 1, 2, 4, 8, 16


def divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def micro_batches(sequences: int) -> list[tuple[int, int]]:
    """How `sequences` of a pipeline and step may be cut: the size of a micro-batch, and how many there are."""
    return [(b, sequences // b) for b in MICRO_BATCHES if sequences % b == 0]


def chunks(model: Transformer, stages: int, micro_batches: int) -> list[int]:
    """How many chunks a stage may have: where stages divide layers and micro-batches, any that divides its layers."""
    if stages == 1 or micro_batches % stages or model.layers % stages:
        return [1]
    return divisors(model.layers // stages)


def attention_flops(model: Transformer, batch: int) -> int:
    """One layer's products of queries with keys, and of weights with values, forward: 4·B·T²·H."""
    return 4 * batch * model.context**2 * model.hidden


def layer_flops(model: Transformer, batch: int) -> int:
    """One layer's FLOPs forward: 24·B·T·H² + 4·B·T²·H in a GPT."""
    return 2 * batch * model.context * layer_matrices(model) + attention_flops(model, batch)


def expert_flops(model: Transformer, batch: int) -> int:
    """What all layers of experts do beside that, forward: top_k MLPs for one, and the routers. 0 in a dense model."""
    if model.experts is None:
        return 0
    weights = (model.top_k - 1) * mlp_matrices(model) + model.hidden * model.experts
    return expert_layers(model) * 2 * batch * model.context * weights


def forward_flops(model: Transformer, batch: int) -> int:
    """FLOPs of a forward pass over `batch` sequences."""
    vocabulary = 2 * batch * model.context * model.hidden * model.vocab
    layers = model.layers * layer_flops(model, batch) + expert_flops(model, batch)
    return layers + vocabulary


def flops(model: Transformer, batch: int, recompute: str = "none") -> int:
    """FLOPs of one step over `batch` sequences, forward and backward.

    recompute: "none" gives the model's FLOPs, which MFU counts; "full" repeats every layer's forward (SC21's
    equation 3), "selective" its two products of attention. Raises ValueError for another word.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute is one of {', '.join(RECOMPUTE)}, not {recompute!r}")
    again = 0
    if recompute == "selective":
        again = model.layers * attention_flops(model, batch)
    if recompute == "full":
        again = model.layers * layer_flops(model, batch) + expert_flops(model, batch)
    return 3 * forward_flops(model, batch) + again


# ------------------------------------------------------------
# Model states: parameters, gradients and optimizer states, which stay from step to step.
#
# Bytes a parameter, Adam in fp16: 2 + 2 + 12, the last being a copy of the parameter, the momentum and the
# variance in fp32. ZeRO divides by the n data-parallel ranks what each of them would otherwise hold whole:
#
#     stage 0: 16Ψ    1: 4Ψ + 12Ψ/n    2: 2Ψ + 14Ψ/n    3: 16Ψ/n
#
# Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3.1 and
# Figure 1. Ψ is what is left of the model after tensor and pipeline parallelism: those divide gradients and
# optimizer states too, which public calculators forget. Invariant: shards of all ranks add up to the whole.


@dataclass(frozen=True)
class Precision:
    """Bytes a parameter: of it and its gradient, of the optimizer's own copies of both, and of each moment."""

    parameter: int
    gradient: int
    master: int = 0
    master_gradient: int = 0
    moment: int = 4


PRECISIONS = {
    "fp32": Precision(4, 4),
    "fp16": Precision(2, 2, master=4),
    "bf16": Precision(2, 2, master=4),
    "bf16, fp32 gradients": Precision(2, 4, master=4),
    "fp16, fp32 gradients in the optimizer": Precision(2, 2, master=4, master_gradient=4),
    "all 16 bits": Precision(2, 2, moment=2),
}
"""Fourth and fifth are Megatron-LM's for bf16 and fp16 (its documentation of the distributed optimizer); the last is
what `model.to(torch.bfloat16)` and any optimizer give."""

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2, "adam 8-bit": 2}
"""How many numbers an optimizer remembers for a parameter."""


@dataclass(frozen=True)
class States(Totals):
    """Bytes of model states on one rank."""

    parameters: int
    gradients: int
    optimizer_states: int


def check_zero(stage: int) -> None:
    """ValueError for what is no stage of ZeRO."""
    if stage not in range(4):
        raise ValueError(f"ZeRO has the stages 0 (none) to 3, not {stage}")


def states(
    params: int,
    optimizer: str = "adam",
    precision: str = "fp16",
    zero: int = 0,
    data: int = 1,
    rank: int = 0,
) -> States:
    """Bytes of model states on one rank that holds `params` parameters.

    zero: the stage of ZeRO, 0 (none) to 3, over `data` ranks. `rank` is the data-parallel rank: where a division
    leaves a rest, the first have one parameter more (`split.uneven`), so rank 0 holds the most.
    Raises ValueError for an unknown optimizer, precision or stage of ZeRO, or a rank beyond `data`.
    """
    per = known(precision, PRECISIONS, "precision")
    moments = known(optimizer, MOMENTS, "optimizer")
    moments *= 1 if optimizer == "adam 8-bit" else per.moment
    check_zero(zero)
    if not 0 <= rank < data:
        raise ValueError(f"there is no rank {rank} among {data} data-parallel ranks")
    part = uneven(params, data)[rank]
    return States(
        parameters=per.parameter * (part if zero >= 3 else params),
        gradients=per.gradient * (part if zero >= 2 else params),
        optimizer_states=(per.master + per.master_gradient + moments)
        * (part if zero >= 1 else params),
    )


def per_parameter(optimizer: str = "adam", precision: str = "fp16") -> dict[str, int]:
    """Bytes a parameter by kind: `{"parameters": 2, "gradients": 2, "optimizer states": 12}`."""
    return states(1, optimizer, precision).bytes


def largest(capacity: int, **words) -> int:
    """The most parameters whose model states fit into `capacity` bytes on every rank: then nothing else does.

    words: optimizer, precision, zero, data, as for `states`. A card of 32 GB holds `largest(32 * GB)`, 2 billion.
    Raises ValueError for less than 0 bytes, and as `states` does.
    """
    if capacity < 0:
        raise ValueError(f"a memory has at least 0 bytes, not {capacity}")
    low = 0
    high = 1
    while states(high, **words).total <= capacity:
        high *= 2
    while high - low > 1:  # states(low) fits, states(high) does not
        middle = (low + high) // 2
        if states(middle, **words).total <= capacity:
            low = middle
        else:
            high = middle
    return low


def fused_gradients(params: int) -> int:
    """The flat fp32 buffer that gradients are copied into to be sent, or their norm taken, in one piece.

    1.5 B parameters: 6 GB (ZeRO, section 3.2, "temporary buffers").
    """
    return 4 * params


# ------------------------------------------------------------
# What a transformer's forward keeps for backward, after the formulas of the literature, in 16 bits.
#
# In the papers' letters, s = T tokens, b = B sequences, h = H, a heads, t tensor-parallel ranks, p stages of a
# pipeline; bytes of one layer, Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
# Models", Table 2:
#
#     nothing parallel     sbh(34 + 5as/h)       selective recomputation    without the 5as/h
#     tensor parallel      sbh(10 + 24/t + 5as/ht)
#     with sequence parallel      sbh(34/t + 5as/ht)       full recomputation      2sbh
#
# 34 = 10 that every tensor-parallel rank holds whole (inputs of both norms, of attention and of the MLP, two dropout
# masks) + 24 that they split (queries, keys, values, the MLP's inside). 5: softmax 2, its dropout's mask 1 and output 2.
#
# That is explicit attention. Where one operator does it (fused), scores are never stored, and so nothing is there that
# selective recomputation could give up: backward makes them again anyway, from queries, keys, values, the output, and the
# logarithm of each softmax's sum, one fp32 number a head and token: 34sbh + 4asb. Dao et al. 2022, "FlashAttention",
# section 3.1; `torch.nn.functional.scaled_dot_product_attention` keeps the same.


def check_recompute(recompute: str, attention: str) -> None:
    """ValueError for a word that is none, and for selective recomputation where attention is fused."""
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute is one of {', '.join(RECOMPUTE)}, not {recompute!r}")
    if attention not in ATTENTION:
        raise ValueError(f"attention is one of {', '.join(ATTENTION)}, not {attention!r}")
    if recompute == "selective" and attention == "fused":
        raise ValueError(
            "selective recomputation gives up attention's scores, and fused attention stores none: "
            "there recompute is none or full"
        )


def activations(
    model: Transformer,
    batch: int,
    tensor: int = 1,
    sequence: bool = False,
    recompute: str = "none",
    dropout: bool = True,
    attention: str = "explicit",
    bits: int = 16,
) -> int:
    """Bytes that one rank keeps of one layer for one micro-batch of `batch` sequences, after the paper.

    sequence: what tensor-parallel ranks hold whole is split over the tokens too. dropout=False, a gated model and
    attention="fused" extend the formula: a LLaMA layer keeps sbh(16 + 8·ffn/h) + 2as²b, and 4asb in place of 2as²b
    where attention is fused. bits=8: the inputs of its four products are kept in 8 bits (`train.fp8`), 27sbh in place of
    34; fused attention keeps its output in 16 beside that.
    Raises ValueError where `tensor` does not divide the heads, or the tokens with `sequence`, and for selective
    recomputation of fused attention.
    """
    check_recompute(recompute, attention)
    divided(model.heads, tensor, "heads")
    along = tensor if sequence else 1
    divided(model.context, along, "tokens")
    rows = batch * model.context
    if recompute == "full":
        return 2 * rows * model.hidden // along
    whole = (8 + 2 * dropout) * rows * model.hidden
    split = 4 * rows * (model.hidden + model.kv) + (8 if model.gated else 4) * rows * model.width
    if attention == "fused":
        split += 4 * rows * model.heads
    elif recompute == "none":
        split += scores(model, batch, dropout)
    if bits == 8:
        whole -= 2 * rows * model.hidden
        split -= rows * (model.width + (model.hidden if attention == "explicit" else -model.hidden))
    return divided(whole, along, "bytes") + divided(split, tensor, "bytes")


def scores(model: Transformer, batch: int, dropout: bool = True) -> int:
    """What grows with the square of the tokens where attention is explicit: 5as²b, or 2as²b without dropout.

    Selective recomputation gives it up.
    """
    return (5 if dropout else 2) * model.heads * model.context**2 * batch


def selective_saving(model: Transformer) -> float:
    """The part of a layer's activations that selective recomputation saves: 65 % for MT-NLG 530B."""
    return 1 - activations(model, 1, recompute="selective") / activations(model, 1)


def rough(model: Transformer, batch: int) -> int:
    """All layers after ZeRO's footnote 3: about 12·hidden·batch·tokens·layers elements in fp16."""
    return 2 * 12 * model.hidden * batch * model.context * model.layers


def embedding_activations(
    model: Transformer, batch: int, tensor: int = 1, micro_batches: int = 1
) -> int:
    """The mask of the embedding's dropout, of all micro-batches in flight, sequence parallel: s·b·h·p/t."""
    return divided(batch * model.context * model.hidden * micro_batches, tensor, "bytes")


def output_activations(model: Transformer, batch: int, tensor: int = 1, along: int = 1) -> int:
    """Inputs of the last norm and of the projection, split over the tokens, and logits in fp32: 4sbh(1 + V/h)/t.

    As much as 16 bits of the logits and of their gradient take, where the loss is one operator.
    """
    inputs = divided(4 * batch * model.context * model.hidden, along, "bytes")
    return inputs + logits(batch * model.context, model.vocab, tensor)


def logits(tokens: int, vocab: int, tensor: int = 1) -> int:
    """Logits of `tokens` tokens in fp32, split over the vocabulary: 4·V·tokens/t. Their gradient takes as much.

    Where `tensor` does not divide the vocabulary the first part is meant, which is the largest.
    """
    return 4 * tokens * uneven(vocab, tensor)[0]


def in_flight(stages: int, micro_batches: int, stage: int = 0, interleave: int = 1) -> int:
    """How many micro-batches' activations a stage of a pipeline under 1F1B keeps at once, at most.

    The stages from here to the last, at most M. interleave: the stage has that many chunks of layers, and this counts
    chunks: 2(S − stage − 1) + (interleave − 1)S + 1, at most M·interleave. So the first stage keeps
    L(1 + (S − 1)/(S·interleave)) layers' worth, and L without (section 4.2.3).
    Raises ValueError for a stage that does not exist.
    """
    if not 0 <= stage < stages:
        raise ValueError(f"there is no stage {stage} among {stages}")
    ahead = stages - stage
    if interleave > 1:
        ahead = 2 * (stages - stage - 1) + (interleave - 1) * stages + 1
    return min(ahead, micro_batches * interleave)


# ------------------------------------------------------------
# The memory of one rank in a grid of data × tensor × pipeline ranks, item by item.
#
# What divides what (Narayanan et al. 2021, section 2; Korthikanti et al. 2022, sections 4.2 and 5; ZeRO, section 5):
#
#     pipeline   layers, so parameters, gradients, optimizer states; in 1F1B not the first stage's activations
#     tensor     matrices, embeddings, the inside of a layer; norms and some biases stay whole on every rank
#     ZeRO       optimizer states (1), gradients (2), parameters (3), over the data-parallel ranks
#
# Parameters are counted stage by stage and tensor by tensor, not by dividing a total. Activations are the paper's
# formula. Two moments may be the fullest:
#
#     turn       the loss sends its gradient back (last stage): all that forward keeps, and the logits
#     backward   a layer has been computed again, and has the gradients of its input, 2sbh, and of the inside of its MLP,
#                2sb·ffn; with ZeRO 2 and 3 the gradients of two blocks are whole, one computed and one on its way
#
# With ZeRO 3 two blocks are gathered, one used and one on its way. What is no layer (embeddings, the last norm, the
# projection) is gathered from the first forward to the last backward, and so are its gradients in backward, as in
# PyTorch's FSDP: Zhao et al. 2023, sections 3.3.1 and 4.2. A block travels in the dtype that it is computed in.
#
# Invariant: on one rank this is `states` and L layers of `activations`, with embedding and output.


@dataclass(frozen=True)
class Grid:
    """How a step is spread over data × tensor × pipeline ranks.

    zero: ZeRO's stage, 0 to 3. micro_batch: sequences in one; micro_batches: how many a pipeline gets in a step.
    sequence: sequence parallel within `tensor`. recompute: "none", "selective", "full". interleave: chunks of a stage.
    fused: gradients are copied into a flat fp32 buffer. precision: as for `states`, with Adam. attention: "explicit",
    with scores in memory, or "fused", without. offload: the optimizer's states lie in the memory of the host. replicas:
    hybrid sharding, ZeRO's shards are holders/replicas, and each is there so often. expert: of the data ranks so many share
    out the experts. context_ranks: they share the tokens of a sequence by ring attention, zigzag; with the data-parallel
    ranks they are the `holders` of a copy of the model. bits: of the layers' products, 16 or 8.
    Raises ValueError for a stage of ZeRO or a word that is none, for selective recomputation of fused attention, for
    replicas, or expert ranks, that do not divide the ranks, for expert ranks with ZeRO 3, replicas or context ranks, and for
    explicit attention in a ring, which keeps no scores.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    micro_batch: int = 1
    micro_batches: int = 1
    sequence: bool = False
    recompute: str = "none"
    interleave: int = 1
    dropout: bool = True
    fused: bool = False
    precision: str = "bf16"
    attention: str = "explicit"
    offload: bool = False
    replicas: int = 1
    expert: int = 1
    context_ranks: int = 1
    bits: int = 16

    def __post_init__(self):
        apart = self.zero < 3 and self.context_ranks == self.replicas == 1
        if self.expert < 1 or self.data % self.expert or (self.expert > 1 and not apart):
            raise ValueError(
                f"{self.expert} ranks that share out experts are no part of {self.data} data-parallel ranks "
                f"with ZeRO {self.zero} in {self.replicas} replicas and {self.context_ranks} context ranks"
            )
        check_zero(self.zero)
        check_recompute(self.recompute, self.attention)
        if self.bits not in (8, 16):
            raise ValueError(f"products are in 8 or 16 bits, not in {self.bits}")
        holders = self.holders
        if self.replicas < 1 or holders % self.replicas or (self.replicas > 1 and not self.zero):
            raise ValueError(
                f"{self.replicas} replicas of ZeRO's shards are no part of {holders} data-parallel ranks "
                f"with ZeRO {self.zero}"
            )
        if self.context_ranks > 1 and self.attention != "fused":
            raise ValueError(
                f"{self.context_ranks} context ranks keep no scores: their attention is fused, not {self.attention}"
            )

    @property
    def ranks(self) -> int:
        return self.holders * self.tensor * self.pipeline

    @property
    def holders(self) -> int:
        """Ranks that have the same part of the model, and average its gradients."""
        return self.data * self.context_ranks

    @property
    def shards(self) -> int:
        """Over how many ranks ZeRO divides."""
        return self.holders // self.replicas

    @property
    def sharding(self) -> str:
        """Where the shards of one copy of the states lie."""
        return "within a node" if self.replicas > 1 else "over all ranks"

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
    gradients_of_activations: int
    mask_after_embedding: int
    output_and_logits: int
    buffers: int


def per_rank(model: Transformer, grid: Grid, stage: int | None = None) -> PerRank:
    """Bytes on one rank of the grid, at the peak: `per_rank(model, Grid(data=8, tensor=4, pipeline=12, zero=1))`.

    stage: of the pipeline; the fullest if not given. Of tensor- and data-parallel ranks the first, with the most.
    Raises ValueError where the grid does not divide the model; uneven layers are allowed without interleaving.
    """
    if stage is None:
        # the first stage, the second, with all its layers and most in flight, or the last
        stages = sorted({0, min(1, grid.pipeline - 1), grid.pipeline - 1})
        return max((per_rank(model, grid, s) for s in stages), key=lambda rank: rank.total)
    parts = divided_states(model, grid, stage)
    params = total_parameters(parts)
    held = [states(count, "adam", grid.precision, grid.zero, ranks) for count, ranks in parts]
    whole, model = model, of_own_tokens(model, grid)
    layer = _layer_kept(model, grid, grid.recompute)
    backward = PerRank(
        sum(part.parameters for part in held),
        sum(part.gradients for part in held),
        0 if grid.offload else sum(part.optimizer_states for part in held),
        activations_of_layers=_layers_held(model, grid, stage) * layer
        + _experts_held(model, grid, stage),
        layer_being_recomputed=_recomputed(model, grid),
        gradients_of_activations=_activation_gradients(model, grid),
        mask_after_embedding=_mask(model, grid) if stage == 0 and grid.dropout else 0,
        output_and_logits=0,
        buffers=_buffers(whole, grid, stage, params, backward=True),
    )
    if stage < grid.pipeline - 1:
        return backward
    # of one micro-batch: the last stage goes backward at once
    turn = replace(
        backward,
        layer_being_recomputed=0,
        gradients_of_activations=0,
        output_and_logits=output_activations(model, grid.micro_batch, grid.tensor, grid.along),
        buffers=_buffers(whole, grid, stage, params, backward=False),
    )
    return max(turn, backward, key=lambda moment: moment.total)


Parts = list[tuple[int, int]]


def divided_states(model: Transformer, grid: Grid, stage: int) -> Parts:
    """(parameters on a rank, number of ranks over which ZeRO divides their states): of all but experts that are shared
    out, and of these."""
    sizes = grid.tensor, grid.pipeline, stage, grid.expert
    params = rank_parameters(model, *sizes)
    if grid.expert == 1:
        return [(params, grid.shards)]
    experts = expert_parameters(model, *sizes)
    return [(params - experts, grid.shards), (experts, grid.data // grid.expert)]


def total_parameters(parts: Parts) -> int:
    """On a rank."""
    return sum(params for params, _ in parts)


def owned_parameters(parts: Parts) -> int:
    """Those whose states a rank has where ZeRO divides them, the first of the ranks."""
    return sum(uneven(params, ranks)[0] for params, ranks in parts)


def of_own_tokens(model: Transformer, grid: Grid) -> Transformer:
    """`model` with a context of the tokens that one context rank has. ValueError where they are no even chunks."""
    if grid.context_ranks == 1:
        return model
    divided(model.context, 2 * grid.context_ranks, "tokens")
    return replace(model, context=model.context // grid.context_ranks)


def on_host(model: Transformer, grid: Grid) -> int:
    """Bytes in the memory of its host that a rank with offload has at most; 0 without.

    In fp32 a copy of each parameter that it owns, the moments, and while the host steps the gradients: 16Ψ in all
    with Adam, a shard's Ψ each where ZeRO divides the states. Ren et al. 2021, section 4.1; `offload_kept` is what stays.
    """
    if not grid.offload:
        return 0
    ends = {0, grid.pipeline - 1, min(1, grid.pipeline - 1)}
    owns = owned_parameters if grid.zero else total_parameters
    owned = max(owns(divided_states(model, grid, s)) for s in ends)
    return offload_kept(owned)["host"] + 4 * owned


def _buffers(model: Transformer, grid: Grid, stage: int, params: int, backward: bool) -> int:
    """A flat copy of all gradients, and what ZeRO has whole for a while: parameters at stage 3, gradients from 2 on.

    params: of the stage. backward: gradients of parameters have come.
    """
    blocks = stage_layers(model.layers, grid.pipeline)[stage]
    block = layer_parameters(model, grid.tensor)
    whole = min(2, blocks) * block + params - blocks * block
    times = (grid.zero == 3) + (backward and grid.zero >= 2)
    flat = fused_gradients(params) if grid.fused else 0
    return flat + times * whole * PRECISIONS[grid.precision].parameter


def _activation_gradients(model: Transformer, grid: Grid) -> int:
    """Of a layer's input, and of the inside of its MLP: both are there when the MLP goes backward."""
    rows = grid.micro_batch * model.context
    inside = divided(2 * rows * model.width, grid.tensor, "bytes")
    return 2 * rows * model.hidden // grid.along + inside


def _layer_kept(model: Transformer, grid: Grid, recompute: str) -> int:
    """Bytes of one layer and micro-batch."""
    sizes = grid.micro_batch, grid.tensor, grid.sequence
    return activations(model, *sizes, recompute, grid.dropout, grid.attention, grid.bits)


def _layers_held(model: Transformer, grid: Grid, stage: int) -> int:
    """Layers' worth of activations on a stage, over all micro-batches in flight."""
    chunks = in_flight(grid.pipeline, grid.micro_batches, stage, grid.interleave)
    if grid.interleave == 1:
        return chunks * stage_layers(model.layers, grid.pipeline)[stage]
    return chunks * even(model.layers, grid.pipeline * grid.interleave, "layers")[0]


def _experts_kept(model: Transformer, grid: Grid) -> int:
    """Bytes that a layer of experts keeps beside a plain one, where all experts are asked for alike.

    The router's input in fp32; each token's rows as they came to its experts, and its summands; inside, top_k MLPs for one.
    """
    rows = grid.micro_batch * model.context
    inside = (8 if model.gated else 4) * rows * model.width
    copies = (4 + model.top_k * (2 + 2)) * rows * model.hidden
    return copies + (model.top_k - 1) * divided(inside, grid.tensor, "bytes")


def _experts_held(model: Transformer, grid: Grid, stage: int) -> int:
    """Over all micro-batches in flight, with what exists again while a layer is computed again."""
    layers = expert_layers(model, grid.pipeline, stage)
    if not layers:
        return 0
    if grid.recompute == "full":
        return _experts_kept(model, grid)
    own = stage_layers(model.layers, grid.pipeline)[stage]
    return math.ceil(_layers_held(model, grid, stage) * layers / own) * _experts_kept(model, grid)


def _recomputed(model: Transformer, grid: Grid) -> int:
    """What exists again while one layer is computed again; its input has been there all the time."""
    if grid.recompute == "full":
        return _layer_kept(model, grid, "none") - _layer_kept(model, grid, "full")
    if grid.recompute == "selective":
        return divided(scores(model, grid.micro_batch, grid.dropout), grid.tensor, "bytes")
    return 0


def _mask(model: Transformer, grid: Grid) -> int:
    """Of all micro-batches in flight; an interleaved first stage runs up to two rounds ahead."""
    batches = in_flight(grid.pipeline, grid.micro_batches)
    if grid.interleave > 1:
        batches = min(grid.micro_batches, 2 * grid.pipeline)
    return embedding_activations(model, grid.micro_batch, grid.along, batches)


# ------------------------------------------------------------
# What a run costs: FLOPs, GPU hours, energy, and how well the machine is used.
#
#     FLOPs = 6·Ψ·tokens          2 forward, 4 backward for each parameter and token (Kaplan et al. 2020, section 2.1)
#     GPU hours = FLOPs / (3600 · peak · MFU)
#
# MFU, model FLOPs utilization, counts what the model needs; HFU, hardware FLOPs utilization, also what was
# computed again to save memory (Chowdhery et al. 2022, "PaLM", section 4.1 and appendix B). HFU is never the
# smaller. PaLM counts attention too: 6Ψ + 12·L·H·T FLOPs a token.

A100_PEAK = 312e12  # FLOP/s of matrix products in 16 bits


def training_flops(params: int, tokens: int) -> int:
    """6·Ψ·tokens."""
    return 6 * params * tokens


def flops_per_token(params: int, layers: int, width: int, tokens: int) -> int:
    """6Ψ + 12·L·width·T: with attention, whose T keys a token are no parameters. width: of all heads together."""
    return 6 * params + 12 * layers * width * tokens


def utilization(flops: int, seconds: float, gpus: int, peak: float) -> float:
    """The part of `gpus` GPUs' `peak` FLOP/s that `flops` in `seconds` make use of.

    With the `flops` of the model this is the MFU, with what was recomputed the HFU.
    Raises ValueError for a run without time, GPUs or speed.
    """
    if seconds <= 0 or peak <= 0 or gpus < 1:
        raise ValueError(
            f"a run takes time, on GPUs with a speed: not {seconds} s on {gpus} at {peak} FLOP/s"
        )
    return flops / (seconds * gpus * peak)


def implied_mfu(params: int, tokens: int, gpu_hours: float, peak: float = A100_PEAK) -> float:
    """The MFU over a whole run, stops included, that its GPU hours tell of."""
    return utilization(training_flops(params, tokens), 3600 * gpu_hours, 1, peak)


# ------------------------------------------------------------
# Activation checkpointing of a chain of L equal layers, with x bytes between two layers (the input of one), and a bytes
# that one layer saves for backward, its input included. Source: Chen et al. 2016, sections 4.1, 4.3 and 4.4.


def segments_bytes(layers: int, segments: int, a: float, x: float) -> float:
    """The most bytes alive at once: the inputs of the segments before one, and all that it saves itself when repeated.

    The first L mod k of k segments have one layer more, so it is the last of these, or the last of all.
    """
    small, longer = divmod(layers, segments)
    last = (segments - 1) * x + small * a
    return max(last, (longer - 1) * x + (small + 1) * a) if longer else last


def segments_forwards(layers: int, segments: int) -> float:
    """Layers whose forward runs once more: all but those of the last segment, which is the smallest."""
    return layers - layers // segments


def halves_bytes(layers: int, a: float, x: float) -> float:
    """By halves: an input for each of the log₂ L halvings, and what one layer saves. (Not a power of two: at most.)"""
    return math.ceil(math.log2(layers)) * x + a


def halves_forwards(layers: int) -> float:
    """By halves, L a power of two: L/2 layers once more for each of log₂ L halvings."""
    return layers / 2 * math.log2(layers)


# ------------------------------------------------------------
# ZeRO and offload. Ψ parameters on n ranks, of which a rank owns Ψ/n; with Adam, 16-bit parameters and gradients, and fp32
# masters:
#
#     stage    a rank keeps, bytes                     a rank sends in a step, numbers
#     0        2Ψ   + 2Ψ   + 12Ψ     = 16Ψ             all-reduce 2Ψ(n−1)/n
#     1        2Ψ   + 2Ψ   + 12Ψ/n   = 4Ψ + 12Ψ/n      reduce-scatter Ψ(n−1)/n, all-gather Ψ(n−1)/n: the same
#     2        2Ψ   + 2Ψ/n + 12Ψ/n   = 2Ψ + 14Ψ/n      the same
#     3        2Ψ/n + 2Ψ/n + 12Ψ/n   = 16Ψ/n           one all-gather more, as parameters are gathered twice: 3Ψ(n−1)/n
#
# FullySharded keeps fp32 shards and casts a block as it is gathered: 4 + 4 + 8 for 2 + 2 + 12, which is the same in sum.
# Without masters, all in fp32: 16Ψ, 8Ψ + 8Ψ/n, 4Ψ + 12Ψ/n, 16Ψ/n. With offload the device keeps 2Ψ + 2Ψ, the host 12Ψ, and
# 4Ψ bytes go over the link in a step.
#
# With F, B, H seconds of forward, backward and the host's update, D down and U up (P tensors of N bytes in all: Pα + Nβ each
# way) an offloaded step takes F + B + D + H + U; delayed, max(F + B, H) + D + U. Where gradients go down within backward,
# they have arrived after F + A, A = max(B + D/P, B/P + D): the longer of the two, and one layer of the other. Then a step
# takes F + A + H + U; delayed, max(max(F + B, H) + U, F + A), as the link serves both ways at once; B is at least A − 2D/P,
# as backward waits while two gradients are on their way.
#
# Sources: Rajbhandari et al. 2020, "ZeRO", sections 3.1, 5 and 7; Zhao et al. 2023, "PyTorch FSDP", section 3.2.2 (replicas);
# Ren et al. 2021, "ZeRO-Offload", sections 3.3 (bytes), 4.1, 4.2 (what overlaps what) and 5.2 (delayed).


def zero_kept(
    stage: int, params: int, owned: int, low: int = 2, wide: int = 4, moments: int = 2
) -> dict[str, int]:
    """Bytes by category, when backward has ended, on a rank that owns `owned` of `params` parameters.

    low: bytes of a parameter and of its gradient.  wide: of its master, if that is another dtype, and of each moment.
    moments: numbers a parameter that the optimizer remembers.  ValueError for a stage that is not 1, 2 or 3.
    """
    if stage not in (1, 2, 3):
        raise ValueError(f"the stages of ZeRO are 1, 2 and 3, not {stage}")
    return {
        "parameters": low * (owned if stage == 3 else params),
        "gradients": low * (params if stage == 1 else owned),
        "optimizer states": wide * (moments + (wide != low)) * owned,
    }


def zero_traffic(stage: int, params: int, n: int, frozen: int = 0, replicas: int = 1) -> Fraction:
    """Numbers that a rank sends in a step, the mean over ranks.

    `params` that train.  frozen: those that stage 3 gathers, twice, and does not reduce.  replicas: with shards, r of
    each of the n, for an all-reduce of its gradients: 2(r−1)/r·Ψ/n more.
    Every backward that is reduced, at stages 2 and 3, costs the gradients' part again.
    """
    check_zero(stage)
    wholes = 2 * params if stage < 3 else 3 * params + 2 * frozen
    within = Fraction(wholes * (n - 1), n)
    return within + Fraction(2 * params * (replicas - 1), n * replicas)


def zero_peak(shards: int, block: int, gradients: int, activations: int, prefetch: int = 1) -> int:
    """The most bytes that a step of stage 3 may take: shards, 1 + prefetch whole blocks, the whole gradients of one, or
    with prefetch of two, and activations.

    shards: of parameters, gradients and states.  block, gradients: of the largest block, in the compute dtype.
    """
    return shards + (1 + prefetch) * block + (2 if prefetch else 1) * gradients + activations


def offload_kept(params: int, low: int = 2, wide: int = 4, moments: int = 2) -> dict[str, int]:
    """Bytes that stay from step to step: "parameters" and "gradients" on the device, "host" for copies and moments.

    low, wide: bytes of a number on the device and on the host.  moments: numbers a parameter that the optimizer keeps.
    """
    return {
        "parameters": low * params,
        "gradients": low * params,
        "host": wide * (1 + moments) * params,
    }


def offload_update_seconds(
    params: int, moved: float, bandwidth: float, low: int = 2, wide: int = 4
) -> float:
    """Seconds of the host's part: it is bound by its memory, of `bandwidth` bytes/s.

    moved: bytes a parameter that the optimizer itself reads and writes (28 for Adam in one pass: four numbers read,
    three written). To widen the gradient and to narrow the new parameter moves low + wide each.
    """
    return params * (moved + 2 * (low + wide)) / bandwidth


def offload_step_seconds(
    forward: float,
    backward: float,
    update: float,
    nbytes: int,
    tensors: int,
    alpha: float,
    beta: float,
    mode: str = "exact",
    in_backward: bool = False,
) -> float:
    """Seconds of a step, one of many alike (of a delayed one: after the warm-up).

    forward, backward: of the device.  update: of the host.  nbytes: of all gradients, in `tensors` of equal size, which
    backward makes one after the other.  alpha, beta: of the host's link, one way.  mode, in_backward: as in
    `OffloadedOptimizer`. ValueError for an unknown mode or no tensor.
    """
    if mode not in ("exact", "delayed") or tensors < 1:
        raise ValueError(
            f"the modes are 'exact' and 'delayed' and there is at least 1 tensor: {mode!r} and "
            f"{tensors} were given"
        )
    up = down = tensors * alpha + nbytes * beta
    computed = forward + backward
    arrived = computed + down
    if in_backward:
        arrived = forward + max(backward + down / tensors, backward / tensors + down)
        # backward waits while two gradients are on their way
        computed = max(computed, arrived - 2 * down / tensors)
    if mode == "exact":
        return arrived + update + up
    free = max(computed, update)  # the device and the host both
    return max(free + up, arrived) if in_backward else free + up + down


# ------------------------------------------------------------
# Pipelines
#
# All stages alike, no time for messages. The time of a step without a bubble is M(T_F + T_I + T_W); a bubble is the
# share of the time that a stage waits.
#
#     naive                   (S−1)/S                                 one micro-batch at a time
#     GPipe, 1F1B             (S−1)/(M+S−1)                           M, and S − stage micro-batches are kept
#     interleaved             (S−1)/(vM+S−1): (S−1)/M, over the time without a bubble, divided by v
#     ZB-H1                   (S−1)(T_F + T_I − T_W) of idle time     S
#     ZB-H2                   (S−1)(T_F + T_I − 2T_W)                 2S − 1
#     ZB-V                    (S−1)(T_I − T_W)                        2S, of half a stage each
#
# Without a flush (PipeDream) weights are held in versions:
#
#                      versions of stage s     staleness             one version for all stages
#     stashing         S − s                   S − 1 − s             no
#     vertical sync    S                       S − 1                 yes
#     2BW              2                       1                     yes
#     no stashing      1                       S − 1 − s             not even for a stage: wrong
#
# Over equal stages these are S(S+1)/2 times the weights of a stage with stashing, S² with vertical sync, 2S with 2BW.
#
# Sources: Huang et al. 2019, "GPipe", section 2.3; Narayanan et al. 2021, "Efficient Large-Scale Language Model
# Training on GPU Clusters", sections 2.2.1 and 2.2.2; Qi et al. 2023, "Zero Bubble Pipeline Parallelism", sections 2
# and 6, table 1; Narayanan et al. 2019, "PipeDream", section 3.3; Narayanan et al. 2021, "Memory-Efficient
# Pipeline-Parallel DNN Training", section 3.1.


def bubble(
    schedule: str,
    S: int,
    M: int,
    v: int = 1,
    forward: float = 1.0,
    input: float = 1.0,
    weight: float = 1.0,
) -> float:
    """The share of the time that a stage waits, by formula.

    schedule: "naive", "gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_h2" or "zb_v"; of the last three,
    `Simulation.cost` is the time. forward, input, weight: T_F, T_I, T_W of a stage.
    ZB-V waits for (S − 1)(T_I − T_W): not at all where all three times are alike.
    Raises ValueError for another name, for M < S (ZB-H2, ZB-V: M < 2S − 1), and for zero bubble where T_W > T_F, so
    that W's hold up what comes after, or where W's last longer than the idle time that they fill (ZB-V: T_F > T_I).
    """
    _check_full(schedule, S, M)
    if schedule == "naive":
        return 1 - 1 / S
    if schedule in ("gpipe", "one_f_one_b", "interleaved"):
        return (S - 1) / (v * M + S - 1)
    if schedule == "zb_v":
        if not weight <= forward <= input:
            raise ValueError(
                "the formula of zb_v is for T_W up to T_F up to T_I, not for "
                f"T_F = {forward:g}, T_I = {input:g}, T_W = {weight:g}"
            )
        # a chunk's times are half of a stage's
        idle = (S - 1) * (input - weight)
        return idle / (idle + M * (forward + input + weight))
    held_back = 1 if schedule == "zb_h1" else 2
    idle = forward + input - held_back * weight
    if weight > forward or idle < 0:
        raise ValueError(
            f"the formula of {schedule} is for T_W up to T_F and {held_back}·T_W up to T_F + T_I, not for "
            f"T_F = {forward:g}, T_I = {input:g}, T_W = {weight:g}"
        )
    return (S - 1) * idle / ((S - 1) * idle + M * (forward + input + weight))


def most_kept(schedule: str, stage: int, S: int, M: int, v: int = 1) -> int:
    """The most micro-batches (of one chunk) whose activations a stage keeps, by formula. Errors: as `bubble`."""
    _check_full(schedule, S, M)
    return {
        "naive": 1,
        "gpipe": M,
        "one_f_one_b": S - stage,
        "zb_h1": S,
        "zb_h2": 2 * S - 1,
        "zb_v": 2 * S,
        "interleaved": min(v * M, 2 * (S - 1 - stage) + (v - 1) * S + 1),
    }[schedule]


def _check_full(schedule: str, S: int, M: int) -> None:
    """ValueError unless M micro-batches fill the pipeline, as the formulas have it."""
    fewest = {"naive": 1, "gpipe": S, "one_f_one_b": S, "interleaved": S, "zb_h1": S}
    fewest |= {"zb_h2": 2 * S - 1, "zb_v": 2 * S - 1}
    if schedule not in fewest:
        raise ValueError(f"there is a formula for {', '.join(fewest)}, not for {schedule!r}")
    if fewest[schedule] > M:
        raise ValueError(
            f"the formula of {schedule} with {S} stages is for at least {fewest[schedule]} micro-batches,"
            f" not {M}"
        )


def most_versions(rule: str, stage: int, S: int) -> int:
    """Versions of the weights that a stage holds at most, the newest among them, in a run that is long enough.

    rule: "stash", "vertical", "2bw" or "no stash". Long enough: 2(S − stage − 1) micro-batches with stashing,
    2(S − 1) with vertical sync, two groups with 2BW.
    Raises ValueError for another name, and for a stage that is not there.
    """
    return _versions(rule, stage, S)[0]


def most_stale(rule: str, stage: int, S: int) -> int:
    """Updates between the weights that a micro-batch's forward used and those its gradient was added to, at most.

    The first S − 1 micro-batches of a run (with 2BW: the first group) are less stale. Errors: as `most_versions`.
    """
    return _versions(rule, stage, S)[1]


def version_bytes(rule: str, stage: int, S: int, nbytes: int) -> int:
    """Memory of all versions of a stage whose weights take `nbytes`, the newest among them."""
    return most_versions(rule, stage, S) * nbytes


def _versions(rule: str, stage: int, S: int) -> tuple[int, int]:
    """Versions held, and staleness."""
    if not 0 <= stage < S:
        raise ValueError(f"there is no stage {stage} in a pipeline of {S} stages, 0 to {S - 1}")
    rows = {
        "stash": (S - stage, S - 1 - stage),
        "vertical": (S, S - 1),
        "2bw": (2, 1),
        "no stash": (1, S - 1 - stage),
    }
    if rule not in rows:
        raise ValueError(f"there is a formula for {', '.join(rows)}, not for {rule!r}")
    return rows[rule]


# ------------------------------------------------------------
# Data parallelism in buckets: when the gradients are averaged, and which bucket size is best.
#
# Backward computes gradients one after the other, T seconds in all. The all-reduce of a bucket of s bytes takes c(s), by a
# ring on n ranks 2(n−1)α + 2(n−1)/n·sβ; it starts when the bucket is complete and the one before it is averaged.
#
#     backward  g4 │ g3 │ g2 │ g1 │                   fast wire: it waits for backward, end = T + c(s)
#     wire         └─ g4 ─┘└─ g3 g2 ─┘└─ g1 ─┘        slow wire: backward is over long before
#
# Large buckets pay few latencies, small ones start early and leave little for the end. With N bytes that are computed
# evenly, the best size is about N·√(2(n−1)α/T) if the wire is slower than backward; else the smallest whose all-reduce is
# over before the next bucket is complete, 2(n−1)α/(T/N − 2(n−1)/n·β).
#
# Source: Li et al. 2020, "PyTorch Distributed", sections 2.2.1, 3.2.2 and 5.3.


def bucketed_seconds(
    sizes: Sequence[int],
    seconds: Sequence[float],
    n: int,
    alpha: float,
    beta: float,
    bucket_bytes: int = 25 << 20,
    first_bucket_bytes: int = 1 << 20,
    overlap: bool = True,
) -> float:
    """Seconds from the start of backward until all gradients are averaged, by rings.

    sizes: bytes of each gradient, in the order in which they become ready (one dtype).  seconds: to compute each.
    n ranks, links of `alpha` seconds and `beta` seconds per byte.  The rest as in `DataParallel`.
    Raises ValueError unless there are as many seconds as sizes.
    """
    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} gradients have a size, but {len(seconds)} a time")
    ready = 0.0
    filled = 0
    limit = min(first_bucket_bytes, bucket_bytes)
    wire = 0.0 if overlap else sum(seconds)  # when it is free

    def averaged() -> float:
        return max(wire, ready) + collective_seconds("all_reduce", "ring", n, filled, alpha, beta)

    for size, took in zip(sizes, seconds, strict=True):
        if filled and filled + size > limit:
            wire = averaged()
            filled, limit = 0, bucket_bytes
        filled += size
        ready += took
    return averaged() if sizes else 0.0


def best_bucket(
    sizes: Sequence[int],
    seconds: Sequence[float],
    n: int,
    alpha: float,
    beta: float,
    candidates: Sequence[int],
) -> int:
    """The one of `candidates` with the smallest `bucketed_seconds`, the first bucket as large as the others.

    Of equally good ones the largest wins, as it sends the fewest messages.
    """

    def time(size: int) -> float:
        return bucketed_seconds(sizes, seconds, n, alpha, beta, size, size)

    return min(candidates, key=lambda size: (time(size), -size))


# ------------------------------------------------------------
# Compression: bytes that all ranks together send for the average of one bucket, by rings, with n of them.
#
#     N numbers of w bytes in P tensors     flags tell which ranks have a gradient, one number a tensor
#     dense      2(n−1)·w(N + P)
#     half       2(n−1)·2(N + P)
#     sign       2(n−1)·wP + n(n−1)·(⌈N/8⌉ + wP)
#     powersgd   2(n−1)·w(P + exact + Σ r(a + b))        over matrices (a, b); exact: numbers in all other tensors
#     dgc        2(n−1)·w(P + exact) + n(n−1)·((w + 2)K + 8⌈N/65536⌉)       exact: numbers in small tensors; K: Σ⌈(1 − sparsity)·length⌉ of the others
#
# An all-reduce sends every number 2(n−1) times, an all-gather every rank's n−1 times. Weights cost 16(n−1) more for each
# backward. Gradients are in fp32: w = 4.


def dense_bytes(shapes: Sequence[Sequence[int]], n: int, w: int = 4) -> int:
    """shapes: of the gradients in a bucket.  w: bytes of a number."""
    return 2 * (n - 1) * w * (sum(map(math.prod, shapes)) + len(shapes))


def half_bytes(shapes: Sequence[Sequence[int]], n: int) -> int:
    return dense_bytes(shapes, n, 2)


def sign_bytes(shapes: Sequence[Sequence[int]], n: int) -> int:
    gathered = math.ceil(sum(map(math.prod, shapes)) / 8) + 4 * len(shapes)
    return 2 * (n - 1) * 4 * len(shapes) + n * (n - 1) * gathered


def powersgd_bytes(shapes: Sequence[Sequence[int]], n: int, rank: int = 1) -> int:
    numbers = len(shapes)
    for shape in shapes:
        rows, columns = (
            (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
        )
        thin = min(rows, columns, rank) * (rows + columns)
        numbers += thin if 2 * thin < rows * columns else rows * columns
    return 2 * (n - 1) * 4 * numbers


def dgc_bytes(
    shapes: Sequence[Sequence[int]], n: int, sparsity: float = 0.999, small: int = 1024
) -> int:
    """At one sparsity."""
    lengths = [math.prod(shape) for shape in shapes]
    exact = sum(length for length in lengths if length < small)
    # rounded up, but not for the last digits of a float: 0.1 % of 1,000 is 1
    exactly = [round((1 - sparsity) * length, 6) for length in lengths if length >= small]
    entries = sum(map(math.ceil, exactly))
    gathered = 6 * entries + 8 * math.ceil(sum(lengths) / 65536) if entries else 0
    return 2 * (n - 1) * 4 * (len(shapes) + exact) + n * (n - 1) * gathered


# ------------------------------------------------------------
# Local SGD: an average of Ψ numbers of s bytes every H steps, instead of one of the gradients in P tensors in each.
#
#     a period of H steps     bytes of all ranks         seconds, by rings
#     data parallel           H · 2(n−1)(Ψ + P)s         H · (T + 2(n−1)α + 2(n−1)/n·(Ψ + P)sβ)
#     Local SGD               2(n−1)Ψs                   H · T + 2(n−1)α + 2(n−1)/n·Ψsβ
#
# T: seconds of a step without messages. So a step costs 1/H of data parallelism's, a little less for the flag that data
# parallelism sends with each tensor. Averaged states count as `copies` of Ψ. Post-local SGD has H = 1 up to the switch.
# AdaComm sends 16 bytes a rank and hop more for each interval; weights cost 8 bytes an average.


def local_sgd_bytes(
    steps: int, H: int, params: int, n: int, itemsize: int = 4, start: int = 0, copies: int = 1
) -> int:
    """Of `steps` steps, all ranks together; in the first `start` of them H is 1.

    copies: 1, and 1 for each state that is averaged too. After the last average there may be up to H − 1 steps that
    nobody hears of.
    """
    early = min(steps, start)
    averages = early + (steps - early) // H
    return 2 * (n - 1) * averages * params * itemsize * copies


# ------------------------------------------------------------
# Parameter server: a step with n workers and s servers, N bytes of parameters, on links of α seconds and β seconds a byte.
#
# A step takes every worker's gradients into the servers and as many parameters out: n·N/s bytes each way on a server's
# wire, the bottleneck where there are fewer servers than workers. C: seconds of computing.
#
#     synchronous, a step alone           C + 2α + 2n·N/s·β
#     one step of many                    C + 2α + min(2n, n + 2s − 1)·N/s·β       one server: (n + 1)Nβ
#     asynchronous, one server            an update every 2α + Nβ, or (C + 3α + 2Nβ)/n where that is longer
#     ring all-reduce                     C + 2(n−1)α + 2(n−1)/n·Nβ                2Nβ at most
#     bounded, `bound` steps apart        a gradient misses at most (n−1)(2·bound + 1) updates of others
#
# In a run the answers leave one after the other, so workers begin one after the other, and their pushes come in while
# the last answers go out: wires carry both ways at once. Asynchronous: a server hears a header, then takes the gradients,
# then hears the next. Exact on links all alike, where s divides n.
#
# The bound: between a worker's pull and its push another one adds at most 2·bound + 1 gradients, as it was `bound` behind
# at worst, and ends up `bound` + 1 ahead, having begun its last step `bound` ahead.
#
# Sources: Li et al. 2014, section 2.2; Ho et al. 2013, sections 2 and 3; Patarasuk and Yuan 2009 for the ring.


def sync_server_seconds(
    n: int,
    s: int,
    nbytes: float,
    alpha: float,
    beta: float,
    compute: float = 0.0,
    headers: tuple[int, int] = (0, 0),
    alone: bool = False,
) -> float:
    """From one synchronous step to the next, in a long run; alone: of a step that all workers begin together.

    headers: bytes beside the gradients of a push to one server, and beside the parameters of its answer.
    Raises ValueError unless 1 ≤ s ≤ n.
    """
    if not 1 <= s <= n:
        raise ValueError(
            f"the formula is for 1 server or more, and as many workers at least: not {n} for {s}"
        )
    push, answer = (nbytes / s + header for header in headers)
    both = n * (push + answer)
    if not alone:
        both = min(both, n * push + (2 * s - 1) * answer)
    return compute + 2 * alpha + both * beta


def async_server_seconds(
    n: int,
    nbytes: float,
    alpha: float,
    beta: float,
    compute: float = 0.0,
    headers: tuple[int, int] = (0, 0),
) -> float:
    """Between two updates by n like workers, once they take turns at one server, whose own step takes no time here."""
    push, answer = (nbytes + header for header in headers)
    turn = 2 * alpha + push * beta
    return max(turn, (turn + compute + alpha + answer * beta) / n)


def most_stale_bounded(n: int, bound: int) -> int:
    """Updates of others that a gradient of one of n workers misses at most, under a bound."""
    return (n - 1) * (2 * bound + 1)


# Tensor parallelism: bytes that the n ranks of a group together send, (in forward, in backward), by rings.
#
# N = B·T·H numbers are the data between blocks. Of N, an all-reduce sends 2(n−1)·N over all ranks, an all-gather or a
# reduce-scatter (n−1)·N; a rank sends an n-th of that. Which a block needs: the table in `parallel.tensor`. Per layer
# and token that is 8(n−1)H numbers, whatever T and the number of heads; nothing depends on how many parameters there are.
# The gradient of the input is among it: the first layer of all sends less where nothing before it learns.


def tensor_layer_bytes(
    n: int,
    batch: int,
    tokens: int,
    hidden: int,
    itemsize: int,
    sequence: bool = False,
    regather: bool = False,
) -> tuple[int, int]:
    """A layer: two blocks, and two norms. Numbers of `itemsize` bytes; sequence, regather: as for `tensor_parallel_`."""
    whole, vector = batch * tokens * hidden * itemsize, hidden * itemsize
    block = 2 * whole + sequence * 2 * vector + regather * whole
    return (n - 1) * 4 * whole, (n - 1) * (2 * block + sequence * 2 * 4 * vector)


# Expert parallelism: bytes that each rank sends for one layer of experts, from how many rows go where.
#
# A rank's rows for experts elsewhere are its away rows, those that come to its experts from elsewhere its visitors. Dispatch
# sends what is away, combine the visitors' results; backward sends the gradients of both the same ways round. Before it
# all each rank tells the others how many rows come for each of their experts, 8 bytes a number. Where all is even, R rows a
# rank, both are R·(n−1)/n. Recomputation in backward repeats forward's.


def expert_layer_bytes(
    counts: Sequence[Sequence[int]], hidden: int, itemsize: int
) -> list[tuple[int, int]]:
    """(forward, backward) of each rank. counts[r][e]: rows of rank r for expert e; experts lie as `uneven` deals them out."""
    n = len(counts)
    experts = len(counts[0])
    sent = []
    first = 0
    for rank, own in enumerate(uneven(experts, n)):
        here = [sum(row[first : first + own]) for row in counts]
        first += own
        away = sum(counts[rank]) - here[rank]
        visitors = sum(here) - here[rank]
        rows = (away + visitors) * hidden * itemsize
        sent.append((rows + 8 * (experts - own), rows))
    return sent


def expert_gradient_bytes(
    experts: int, rest: int, data: int, ranks: int, itemsize: int, tensors: tuple[int, int] = (0, 0)
) -> int:
    """Bytes that data · ranks ranks together send to average gradients, by rings: experts' over `data`, the rest's over all.

    experts, rest: numbers in all experts, and in all else.  ranks: that share out the experts.  tensors: of the two; a
    bucket has a flag for each.
    """
    shared = 2 * (data - 1) * (experts + tensors[0])
    return itemsize * (shared + 2 * (data * ranks - 1) * (rest + tensors[1]))


# ------------------------------------------------------------
# Context parallelism: what attention on n ranks sends, how many pairs of a query and a key each rank computes, and what it
# keeps for backward.
#
# A ring sends the keys and values of all tokens n − 1 times over all ranks, and in backward their gradients as often,
# in 32 bits at least. The naive way gathers them, and scatters the gradients: as often, in their own dtype. With
# all-to-alls on heads each number leaves its rank once, but for those that stay: of T tokens of g groups of heads the
# sum of t_r·g_r, an n-th where all is even.


def context_bytes(
    n: int,
    way: str,
    batch: int,
    tokens: int,
    heads: int,
    groups: int,
    size: int,
    itemsize: int,
) -> tuple[int, int]:
    """(forward, backward): bytes that the attention of a layer sends over all ranks together.

    way: "gathered", "ring" or "heads".  tokens: of the whole sample.  groups: heads of keys and values.  size: of a head.
    Raises ValueError for another way.
    """
    number = batch * size * itemsize
    keys = 2 * groups * tokens * number
    if way == "heads":
        of_rank = [[k // n + (r < k % n) for r in range(n)] for k in (tokens, groups)]
        stay = sum(t * g for t, g in zip(*of_rank, strict=True))
        once = (2 * (heads // groups) + 2) * (tokens * groups - stay) * number
        return once, once
    if way == "gathered":
        return (n - 1) * keys, (n - 1) * keys
    if way != "ring":
        raise ValueError(f"way is 'gathered', 'ring' or 'heads', not {way!r}")
    return (n - 1) * keys, (n - 1) * (keys + keys * max(4, itemsize) // itemsize)


def context_pairs(n: int, order: str, tokens: int) -> list[int]:
    """Pairs of a query and a key that each of n ranks of a causal ring computes: blocks on the diagonal are whole.

    ValueError where n, or in the zigzag order 2n, does not divide the tokens.
    """
    chunks = 2 * n if order == "zigzag" else n
    if tokens % chunks:
        raise ValueError(f"{tokens} tokens are not a multiple of {chunks} chunks")
    block = (tokens // chunks) ** 2
    if order == "zigzag":
        return [(2 * n + 1) * block] * n
    return [(rank + 1) * block for rank in range(n)]


def context_memory(
    n: int, batch: int, tokens: int, heads: int, groups: int, size: int, itemsize: int
) -> int:
    """Bytes that ring attention keeps on a rank for backward: queries, keys, values, the result and log Σ exp.

    ValueError where n does not divide the tokens.
    """
    if tokens % n:
        raise ValueError(f"{tokens} tokens are not a multiple of {n} ranks")
    exact = max(4, itemsize)
    return batch * tokens // n * ((2 * heads + 2 * groups) * size * itemsize + heads * exact)


def ring_seconds(n: int, block: float, exchange: float) -> float:
    """Of a ring whose every block takes `block` seconds to compute, and `exchange` to pass on meanwhile."""
    return block + (n - 1) * max(block, exchange)


# Eight bits: bytes that ranks send to agree on the scales of a linear layer's matrices, over all ranks, by rings.
#
# An all-reduce of k fp32 numbers among n ranks sends 2(n−1)·4k bytes over all of them. d data-parallel ranks have T
# tokens between them, t tensor-parallel ranks the layer's outputs (column) or inputs (row). Scaled by tensor each of x, W
# and dy has one number, agreed along each dimension that is split:
#
#     along T, in t groups        x 1       dy 1                          whatever the layer
#     along in or out, d groups   W 1       column: dy 1    row: x 1
#
# and by row each product has a number for each row of its matrices, agreed along what it contracts over:
#
#     along T, t groups           dW: in of x, out of dy, as many of them as a rank has
#     along in or out, d groups   column, dx: T/d of dy, in of W      row, y: T/d of x, out of W


def amax_bytes(
    inputs: int,
    outputs: int,
    tokens: int,
    data: int = 1,
    tensor: int = 1,
    split: str = "column",
    grain: str = "tensor",
) -> int:
    """Of one linear layer and micro-batch, forward and backward. tokens: of all data-parallel ranks.

    split: "column" or "row", how `tensor` ranks share the layer. grain: "tensor", "row", or "block", whose scales nobody
    else needs. ValueError for another word, and where `tensor` does not divide what is split.
    """
    known(split, {"column": 0, "row": 0}, "split")
    known(grain, {"tensor": 0, "row": 0, "block": 0}, "grain")
    if grain == "block":
        return 0
    along_tokens, along_features = 2 * tensor, 2 * data
    if grain == "row":
        whole, cut = (inputs, outputs) if split == "column" else (outputs, inputs)
        divided(cut, tensor, "features")
        along_tokens = tensor * whole + cut
        along_features = tokens + data * whole
    return 2 * 4 * ((data - 1) * along_tokens + (tensor - 1) * along_features)


# ------------------------------------------------------------
# A step of a grid: bytes that all its ranks together send along each axis, by rings, with the package's own layers.
#
# N = b·T·H numbers of a micro-batch are what layers and stages hand on, 2 bytes each. An all-reduce among n ranks sends
# 2(n−1) times its bytes over all of them. For each micro-batch of each pipeline:
#
#     tensor     the messages of its layers (`tensor_layer_bytes`); an all-reduce of the rows that were looked up, and
#                one of the gradient of the projection's input; three fp32 numbers a token from each rank for the loss.
#                Full recomputation repeats a layer's first all-reduce; the second's result is there
#     pipeline   N from each tensor-parallel rank down every edge between two parts, and N up: with v chunks S·v − 1 edges
#
# and once a step:
#
#     data       an all-reduce of each rank's gradients, with a flag for each of them; or, ZeRO 1, a reduce-scatter and an
#                all-gather of the parameters, without flags; an all-reduce of the loss, on the last stage
#     pipeline   an all-reduce of a tied embedding's gradient between its two stages; 24 bytes from stage to stage that
#                announce the step; the loss, 8 bytes, to all stages, which takes 8·S


def step_bytes(model: Transformer, grid: Grid) -> dict[str, int]:
    """{"tensor", "pipeline", "data"}: bytes of a step in 16 bits over all ranks of the grid, at ZeRO's stage 0 or 1.

    Raises ValueError for another stage, for a sequence that is split over tensor or context ranks, for a model that `models.gpt` does not make unless told
    otherwise, for a vocabulary that does not split evenly, and where the grid does not divide the model.
    """
    t = grid.tensor
    d = grid.data
    S = grid.pipeline
    M = grid.micro_batches
    plain = Transformer(
        model.layers, model.hidden, model.heads, model.vocab, model.context, model.tied
    )
    if grid.zero > 1 or grid.sequence or grid.context_ranks > 1 or model != plain:
        raise ValueError(
            "the bytes of a step are known of a plain GPT at ZeRO 0 or 1, with whole sequences, "
            f"not of {model} on {grid}"
        )
    words = divided(model.vocab, t, "words")
    tokens = grid.micro_batch * model.context
    activation = 2 * tokens * model.hidden
    all_reduce = 2 * (t - 1) * activation
    layer = sum(tensor_layer_bytes(t, grid.micro_batch, model.context, model.hidden, 2))
    layer += (grid.recompute == "full") * all_reduce
    loss = t * (t - 1) * 3 * 4 * tokens
    down_and_up = 2 * activation * t * (S * grid.interleave - 1)
    tied = 2 * 2 * words * model.hidden * t if model.tied else 0
    gradients = 0
    for stage, layers in enumerate(stage_layers(model.layers, S)):
        own_head = stage == S - 1 and (S > 1 or not model.tied)
        tensors = 12 * layers + 2 * (stage == 0) + 2 * (stage == S - 1) + own_head
        gradients += rank_parameters(model, t, S, stage) + (grid.zero == 0) * tensors
    return {
        "tensor": d * M * (model.layers * layer + 2 * all_reduce + loss),
        "pipeline": d * (M * down_and_up + (S > 1) * (tied + t * (24 * (S - 1) + 8 * S))),
        "data": 2 * (d - 1) * t * (2 * gradients + 8),
    }
