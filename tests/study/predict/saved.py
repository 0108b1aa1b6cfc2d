"""What autograd keeps of `models.gpt`, byte by byte, beside the formula of the paper.

Autograd keeps each tensor that some backward needs, once, however many operators ask for it: the output of GELU is
also the input of the next linear layer. Parameters are kept anyhow and do not count. With fp16, dropout and explicit
attention this is the paper's sbh(34 + 5as/h) and a few small things that it leaves out.

Devices differ: "meta" stands for a GPU, where norms keep fp32 statistics and one operator does attention, with
dropout or without; on a "cpu" that operator knows no dropout, and its explicit stand-in keeps more.
Korthikanti et al. 2022, section 4.1, has the paper's count item by item. `why` says where the two differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from minidist.models import BLOCKS, DEEP
from minidist.study.charts import Table, table
from minidist.study.predict import (
    RECOMPUTE,
    Totals,
    Transformer,
    divided,
    listing,
    parameters,
    states,
)


@dataclass(frozen=True)
class Item:
    """One thing that is kept: bytes `ours` counts and bytes of the `paper`'s formula, and why they differ.

    part: what tensor-parallel ranks do with it: "split"; "scores", split and given up by selective recomputation;
    "tokens", split where the sequence is; "mask", never split and given up with the scores; "whole", neither.
    """

    name: str
    ours: int
    paper: int = 0
    why: str = ""
    part: str = "whole"

    def times(self, n: int) -> Item:
        return replace(self, ours=n * self.ours, paper=n * self.paper)

    def over(self, n: int) -> Item:
        """One rank's part; ValueError where `n` does not divide it."""
        return replace(
            self, ours=divided(self.ours, n, self.name), paper=divided(self.paper, n, self.name)
        )


class Items:
    """Items in order, as a table; `total` sums ours, `paper` the paper's, which is 0 where there is no formula."""

    def __init__(self, items: Iterable[Item], title: str = ""):
        self.items, self.title = tuple(items), title

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    @property
    def total(self) -> int:
        return sum(i.ours for i in self.items)

    @property
    def paper(self) -> int:
        return sum(i.paper for i in self.items)

    def table(self) -> Table:
        if not self.paper:
            return listing({i.name: i.ours for i in self.items}, self.title)
        rows = [
            [i.name, i.ours, i.paper, i.ours - i.paper, i.why * (i.ours != i.paper)]
            for i in self.items
        ]
        rows.append(["total", self.total, self.paper, self.total - self.paper, ""])
        return table(
            rows,
            ["kept for backward", "ours, bytes", "paper, bytes", "difference", "why"],
            title=self.title,
        )

    def __repr__(self) -> str:
        return self.table().text

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


INDEX = 8  # bytes of a token's number
SMALL = "left out as small"
NO_DROPOUT = "no dropout here"
FUSED = "never stored: backward computes it again"


@dataclass(frozen=True)
class Step:
    """One micro-batch through a model, in a dtype of `each` bytes; `wide` is that dtype or fp32, the larger."""

    model: Transformer
    batch: int
    tokens: int
    each: int
    dropout: bool
    attention: str
    device: str

    @property
    def wide(self) -> int:
        return max(self.each, 4)

    @property
    def rows(self) -> int:
        """B·T."""
        return self.batch * self.tokens

    @property
    def x(self) -> int:
        """B·T·H."""
        return self.rows * self.model.hidden

    @property
    def square(self) -> int:
        """The scores of all heads, a·B·T²."""
        return self.rows * self.model.heads * self.tokens

    @property
    def dtype(self) -> str:
        return "" if self.each == 2 else f"{self.each} bytes each, not 2"


def saved(
    model: Transformer,
    batch: int,
    tokens: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    attention: str = "sdpa",
    device: str = "cpu",
    tensor: int = 1,
    sequence: bool = False,
    recompute: str = "none",
) -> Items:
    """What `next_token_loss(gpt(...)(tokens), targets)` keeps for backward: our count, and the paper's.

    tokens: of one sequence, the context if not given. dropout, attention, dtype: as for `models.gpt`. device: "cpu"
    or "meta" (as on a GPU). tensor, sequence, recompute: as for `activations`. Sums over all layers; `saved_layer`
    has one. The batch counts too: `tokens` and `targets` are the caller's, but backward needs them.
    Raises ValueError for another kind of attention, device or model, and where `tensor` does not divide.
    """
    step = _step(model, batch, tokens, dtype, dropout, attention, device)
    layers = [item.times(model.layers) for item in _layer(step, tensor, sequence, recompute)]
    ends = [_on_one_rank(e, tensor, sequence) for e in (_embedding(step), _output(step))]
    return Items(
        [*ends[0], *layers, *ends[1]], f"{model.layers} layers, {batch} × {step.tokens:,} tokens"
    )


def saved_layer(
    model: Transformer,
    batch: int,
    tokens: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    attention: str = "sdpa",
    device: str = "cpu",
    tensor: int = 1,
    sequence: bool = False,
    recompute: str = "none",
) -> Items:
    """What one `models.TransformerLayer` keeps for backward; the paper's column adds up to sbh(34 + 5as/h)."""
    step = _step(model, batch, tokens, dtype, dropout, attention, device)
    return Items(
        _layer(step, tensor, sequence, recompute), f"one layer, {batch} × {step.tokens:,} tokens"
    )


def _step(model, batch, tokens, dtype, dropout, attention, device) -> Step:
    if model.gated or not model.bias or model.width != 4 * model.hidden or model.kv != model.hidden:
        raise ValueError(
            f"this counts a models.gpt without gates, narrow keys and other widths, not {model}"
        )
    if attention not in ("sdpa", "explicit") or device not in ("cpu", "meta"):
        raise ValueError(
            f"attention is sdpa or explicit, on cpu or meta: not {attention!r} on {device!r}"
        )
    tokens = model.context if tokens is None else tokens
    return Step(model, batch, tokens, dtype.itemsize, dropout > 0, attention, device)


def _layer(step: Step, tensor: int, sequence: bool, recompute: str) -> list[Item]:
    if recompute not in RECOMPUTE or (recompute == "selective" and step.attention != "explicit"):
        raise ValueError(
            f"recompute is one of {', '.join(RECOMPUTE)}, selective only where attention is explicit"
        )
    divided(step.model.heads, tensor, "heads")
    e = step.each
    x = step.x
    why = step.dtype
    items = [
        *_norm(step, "norm 1"),
        Item("input of attention", e * x, 2 * x, why, "tokens"),
        *_attention(step),
        Item("input of attention's projection", e * x, 2 * x, why, "split"),
        _mask(step, "mask of attention's dropout"),
        *_norm(step, "norm 2"),
        Item("input of the MLP", e * x, 2 * x, why, "tokens"),
        Item("input of GELU", 4 * e * x, 8 * x, why, "split"),
        Item("input of the MLP's projection", 4 * e * x, 8 * x, why, "split"),
        _mask(step, "mask of the MLP's dropout"),
    ]
    if recompute == "full":
        items = [Item("input of the layer", e * x, 2 * x, why, "tokens")]
    kept = [i for i in items if recompute == "none" or i.part not in ("scores", "mask")]
    return _on_one_rank(kept, tensor, sequence)


def _on_one_rank(items: list[Item], tensor: int, sequence: bool) -> list[Item]:
    ranks = {
        "split": tensor,
        "scores": tensor,
        "tokens": tensor if sequence else 1,
        "mask": 1,
        "whole": 1,
    }
    return [i.over(ranks[i.part]) for i in items]


def _norm(step: Step, name: str) -> list[Item]:
    each = step.each if step.device == "cpu" else step.wide
    return [
        Item(f"input of {name}", step.each * step.x, 2 * step.x, step.dtype, "tokens"),
        Item(f"mean and deviation of {name}", 2 * each * step.rows, 0, SMALL, "tokens"),
    ]


def _mask(step: Step, name: str) -> Item:
    return Item(name, step.x * step.dropout, step.x, "" if step.dropout else NO_DROPOUT, "tokens")


def _attention(step: Step) -> list[Item]:
    if step.attention == "explicit":
        return [
            *_explicit(step, step.each, 1),
            Item("causal mask", step.tokens**2, 0, "one for all heads", "mask"),
        ]
    if step.dropout and step.device == "cpu":
        return _stand_in(step)
    each = step.wide if step.device == "cpu" else 4
    sums = Item("log of each softmax's sum", each * step.square // step.tokens, 0, SMALL, "split")
    seed = Item("state of the random numbers", 24, 0, "to draw the same mask again")
    return [
        Item("queries, keys, values", 3 * step.each * step.x, 6 * step.x, step.dtype, "split"),
        Item("softmax", 0, 2 * step.square, FUSED, "scores"),
        Item("mask of the softmax's dropout", 0, step.square, FUSED, "scores"),
        Item("output of the softmax's dropout", 0, 2 * step.square, FUSED, "scores"),
        sums,
        *([seed] if step.device == "meta" else []),
    ]


def _explicit(step: Step, each: int, mask: int, why: str | None = None) -> list[Item]:
    why = step.dtype if why is None else why
    dropped = why if step.dropout else NO_DROPOUT
    return [
        Item("queries, keys, values", 3 * each * step.x, 6 * step.x, why, "split"),
        Item("softmax", each * step.square, 2 * step.square, why, "scores"),
        Item(
            "mask of the softmax's dropout",
            mask * step.square * step.dropout,
            step.square,
            dropped,
            "scores",
        ),
        Item(
            "output of the softmax's dropout",
            each * step.square * step.dropout,
            2 * step.square,
            dropped,
            "scores",
        ),
    ]


def _stand_in(step: Step) -> list[Item]:
    """PyTorch's own explicit attention on a CPU: in fp32 at least, and its mask holds factors, not bytes."""
    why = "a CPU's fused operator knows no dropout; its stand-in keeps fp32 at least"
    # Values that need no copy are a view, which keeps the queries and keys that it lies among.
    alone = step.each == step.wide and 1 in (step.batch, step.model.heads, step.tokens)
    among = Item(
        "queries and keys before they are scaled", 2 * step.each * step.x * alone, 0, why, "split"
    )
    return [*_explicit(step, step.wide, step.wide, why), among]


def _embedding(step: Step) -> list[Item]:
    return [
        Item("numbers of tokens", INDEX * step.rows, 0, SMALL),
        Item("numbers of positions", INDEX * step.tokens, 0, SMALL),
        _mask(step, "mask of the embedding's dropout"),
    ]


def _output(step: Step) -> list[Item]:
    exact = "" if step.wide == 4 else f"{step.wide} bytes each, not 4"
    size = step.rows * step.model.vocab
    return [
        *_norm(step, "the last norm"),
        Item("input of the vocabulary", step.each * step.x, 2 * step.x, step.dtype, "tokens"),
        Item("log of the probabilities", step.wide * size, 4 * size, exact, "split"),
        Item("numbers of targets", INDEX * step.rows, 0, SMALL),
        Item("sum of the loss's weights", step.wide, 0, SMALL),
    ]


# ------------------------------------------------------------
# The peak of a training step of `models.gpt`: at its turning point, when the loss sends its gradient back.
#
#     forward   activations pile up, to the last logits
#     turn      all of them, and the gradient of the logits twice: of the loss, and of the softmax before it
#     backward  activations go, gradients of parameters come
#
# The turn is the peak where a layer's activations outweigh its gradients, B·T·H·34 against 12H² elements: nearly always.
# It is what `study.meter` finds; in between only the words differ, gradients of activations are "other" there.


def parameter_tensors(model: Transformer) -> int:
    """How many tensors the parameters are in `models.gpt`: 12 a layer. Of each Adam keeps a count of steps, 4 bytes."""
    return 12 * model.layers + model.positions + 1 + 2 + (not model.tied)


@dataclass(frozen=True)
class Peak(Totals):
    """Bytes that are live when the loss sends its gradient back."""

    parameters: int
    optimizer_states: int
    activations: int
    gradients_of_logits: int


def peak(
    model: Transformer,
    batch: int,
    tokens: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    attention: str = "sdpa",
    device: str = "cpu",
    optimizer: str | None = "adam",
) -> Peak:
    """Bytes at the peak of a step of `models.gpt` with `next_token_loss`, all in `dtype`, one process.

    Gradients of parameters were set to None before. optimizer: one of torch's that has made a step already, or
    None. The other words are those of `saved`. Raises ValueError for a dtype of other than 2 or 4 bytes.
    """
    precision = {2: "all 16 bits", 4: "fp32"}.get(dtype.itemsize)
    if precision is None:
        raise ValueError(f"a parameter has 2 or 4 bytes here, not the {dtype.itemsize} of {dtype}")
    tensors = parameter_tensors(model) if device == "cpu" else 0
    kept = states(parameters(model), optimizer or "sgd", precision)
    rows = batch * (model.context if tokens is None else tokens)
    return Peak(
        kept.parameters,
        kept.optimizer_states + 4 * tensors * (optimizer == "adam"),
        saved(
            model, batch, tokens, dtype=dtype, dropout=dropout, attention=attention, device=device
        ).total,
        2 * 4 * rows * model.vocab + 4,  # in fp32, and of the loss itself
    )


# ------------------------------------------------------------
# What autograd keeps of `models.mlp` and `models.resnet`, byte by byte.
#
# A linear layer or a convolution keeps its input, ReLU its output, which is the next one's input: counted once. Batch
# norm keeps its input too, the convolution's output: so a convolutional network holds every image twice at every depth,
# and its activations outgrow its parameters with the second image or so (ResNet-50: 102 MB of parameters in fp32, and
# 86 MB for one image of 224 × 224). Max pooling keeps where each maximum was, 8 bytes. The loss is not counted.


def saved_mlp(sizes: Sequence[int], batch: int, dtype: torch.dtype = torch.float32) -> Items:
    """What `mlp(sizes)(x)` keeps for backward, x of (batch, sizes[0]) included."""
    inputs, *hidden, _ = [batch * size * dtype.itemsize for size in sizes]
    return Items(
        [Item("the batch", inputs), *(Item(f"ReLU {i}", b) for i, b in enumerate(hidden, 1))],
        f"an MLP, batch {batch}",
    )


def saved_resnet(
    depth: int,
    batch: int,
    size: int = 224,
    *,
    classes: int = 1000,
    channels: int = 3,
    width: int = 64,
    small: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Items:
    """What `resnet(depth, ...)(x)` keeps for backward, images x of (batch, channels, size, size) included.

    The words are those of `models.resnet`. On a CPU norms keep statistics in `dtype`, elsewhere in fp32 at least.
    Raises ValueError for another depth.
    """
    if depth not in BLOCKS:
        raise ValueError(
            f"the depth of a ResNet is one of {', '.join(map(str, BLOCKS))}, not {depth}"
        )
    each, deep = dtype.itemsize, depth >= DEEP
    items = [Item("the batch", batch * channels * size**2 * each)]
    side = size if small else -(-size // 2)
    items.append(Item("stem", 2 * batch * width * side**2 * each))
    norms = width  # channels of all batch norms
    if not small:
        side = -(-side // 2)
        items.append(Item("pooling", batch * width * side**2 * (INDEX + each)))
    inputs = width
    for group, blocks in enumerate(BLOCKS[depth]):
        outputs, kept = (4 if deep else 1) * width * 2**group, 0
        for i in range(blocks):
            stride = 2 if group and i == 0 else 1
            elements, normed = _block(inputs, outputs, side, stride, deep)
            kept = kept + batch * elements * each
            norms = norms + normed
            inputs = outputs
            side = -(-side // stride)
        items.append(Item(f"group {group + 1}, {blocks} blocks, {side} × {side}", kept))
    items.append(
        Item(
            "means and deviations of batch norms",
            2 * norms * (each if device == "cpu" else max(each, 4)),
        )
    )
    items.append(Item("input of the classes", batch * inputs * each))
    return Items(items, f"ResNet-{depth}, {batch} × {size} × {size}")


def _block(inputs: int, outputs: int, side: int, stride: int, deep: bool) -> tuple[int, int]:
    """Elements that a block keeps of one image, and channels of its batch norms."""
    before, after = side**2, (-(-side // stride)) ** 2
    # Channels × pixels of each convolution's output, the last one's behind the sum.
    convs = (
        [(outputs // 4, before), (outputs // 4, after), (outputs, after)]
        if deep
        else [(outputs, after)] * 2
    )
    shortcut = [(outputs, after)] * (inputs != outputs or stride > 1)
    elements = sum(2 * c * pixels for c, pixels in convs) + sum(
        c * pixels for c, pixels in shortcut
    )
    return elements, sum(c for c, _ in convs + shortcut)
