"""What a transformer's forward keeps for backward, after the formulas of the literature: fp16, explicit attention.

In the papers' letters, s = T tokens, b = B sequences, h = H, a heads, t tensor-parallel ranks, p stages of a
pipeline; bytes of one layer, Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models", Table 2:

    nothing parallel     sbh(34 + 5as/h)       selective recomputation    without the 5as/h
    tensor parallel      sbh(10 + 24/t + 5as/ht)
    with sequence parallel      sbh(34/t + 5as/ht)       full recomputation      2sbh

34 = 10 that every tensor-parallel rank holds whole (inputs of both norms, of attention and of the MLP, two dropout
masks) + 24 that they split (queries, keys, values, the MLP's inside). 5: softmax 2, its dropout's mask 1 and output 2.
"""

from __future__ import annotations

from minidist.split import uneven
from minidist.study.memory.items import divided
from minidist.study.memory.transformer import RECOMPUTE, Transformer


def activations(
    model: Transformer,
    batch: int,
    tokens: int | None = None,
    tensor: int = 1,
    sequence: bool = False,
    recompute: str = "none",
    dropout: bool = True,
) -> int:
    """Bytes that one rank keeps of one layer for one micro-batch of `batch` sequences, after the paper.

    sequence: what tensor-parallel ranks hold whole is split over the tokens too. dropout=False and a gated model
    extend the formula: a LLaMA layer keeps sbh(16 + 8·ffn/h) + 2as²b.
    Raises ValueError where `tensor` does not divide the heads, or the tokens with `sequence`.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute is one of {', '.join(RECOMPUTE)}, not {recompute!r}")
    t = model.context if tokens is None else tokens
    divided(model.heads, tensor, "heads")
    along = tensor if sequence else 1
    divided(t, along, "tokens")
    x = batch * t * model.hidden
    if recompute == "full":
        return 2 * x // along
    whole = (8 + 2 * dropout) * x
    split = 4 * x + 4 * batch * t * model.kv + (8 if model.gated else 4) * batch * t * model.width
    core = 0 if recompute == "selective" else scores(model, batch, t, dropout)
    return (
        divided(whole, along, "bytes")
        + divided(split, tensor, "bytes")
        + divided(core, tensor, "bytes")
    )


def scores(model: Transformer, batch: int, tokens: int | None = None, dropout: bool = True) -> int:
    """The part of a layer's activations that grows with the square of the tokens: 5as²b, or 2as²b without dropout.

    Selective recomputation gives it up.
    """
    t = model.context if tokens is None else tokens
    return (5 if dropout else 2) * model.heads * t * t * batch


def selective_saving(model: Transformer) -> float:
    """The part of a layer's activations that selective recomputation saves: 65 % for MT-NLG 530B."""
    return 1 - activations(model, 1, recompute="selective") / activations(model, 1)


def embedding_activations(
    model: Transformer, batch: int, tensor: int = 1, micro_batches: int = 1
) -> int:
    """The mask of the embedding's dropout, of all micro-batches in flight, sequence parallel: s·b·h·p/t."""
    return divided(batch * model.context * model.hidden * micro_batches, tensor, "bytes")


def output_activations(model: Transformer, batch: int, tensor: int = 1) -> int:
    """Inputs of the last norm and of the projection, and logits in fp32, sequence parallel: 4sbh(1 + V/h)/t."""
    ends = divided(4 * batch * model.context * model.hidden, tensor, "bytes")
    return ends + logits(batch * model.context, model.vocab, tensor)


def logits(tokens: int, vocab: int, tensor: int = 1, bytes_each: int = 4) -> int:
    """Logits of `tokens` tokens in fp32, split over the vocabulary: 4·V·tokens/t. Their gradient takes as much.

    Where `tensor` does not divide the vocabulary the first part is meant, which is the largest."""
    return tokens * uneven(vocab, tensor)[0] * bytes_each


def rough(model: Transformer, batch: int, tokens: int | None = None) -> int:
    """All layers after ZeRO's footnote 3: about 12·hidden·batch·tokens·layers elements in fp16."""
    return (
        2 * 12 * model.hidden * batch * (model.context if tokens is None else tokens) * model.layers
    )


def in_flight(
    stages: int, micro_batches: int, stage: int = 0, schedule: str = "1f1b", interleave: int = 1
) -> int:
    """How many micro-batches' activations a stage of a pipeline keeps at once, at most.

    "naive" 1, "gpipe" M, "1f1b" the stages from here to the last, at most M. interleave: the stage has that many
    chunks of layers, and this counts chunks: 2(S − stage − 1) + (interleave − 1)S + 1, at most M·interleave. So
    the first stage keeps L(1 + (S − 1)/(S·interleave)) layers' worth, and L without (section 4.2.3).
    Raises ValueError for a stage that does not exist, another schedule, or interleaving without 1F1B.
    """
    if not 0 <= stage < stages:
        raise ValueError(f"there is no stage {stage} among {stages}")
    if schedule not in ("naive", "gpipe", "1f1b"):
        raise ValueError(f"a schedule is naive, gpipe or 1f1b, not {schedule!r}")
    if interleave > 1 and schedule != "1f1b":
        raise ValueError(
            f"only 1f1b is interleaved here, not {schedule} with {interleave} chunks a stage"
        )
    if schedule == "naive":
        return 1
    if schedule == "gpipe":
        return micro_batches
    ahead = (
        stages - stage
        if interleave == 1
        else 2 * (stages - stage - 1) + (interleave - 1) * stages + 1
    )
    return min(ahead, micro_batches * interleave)
