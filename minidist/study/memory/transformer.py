"""A transformer's parameters and floating-point operations, counted exactly.

A layer multiplies T tokens by 12H² weights, 2 FLOPs each: 24·B·T·H² forward; scores and their use take 4·B·T²·H
more; the vocabulary 2·B·T·H·V. Backward is twice forward (one product for the input, one for the weight), and
what is recomputed is forward once more. In the letters of the papers (s = T, b or B = B, h = H, l = L):

    parameters  12lh²(1 + 13/12h + (V + s)/12lh)         Narayanan et al., SC21, equation 2
    FLOPs       96Bslh²(1 + s/6h + V/16lh)               equation 3: with every layer recomputed
                72Bslh²(1 + s/6h + V/12lh)               without (Korthikanti et al. 2022, section 5)

Only matrix products count, as in all those papers. Everything is an integer.
"""

from __future__ import annotations

from dataclasses import dataclass

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer. The first five, and `tied`, are also what `models.gpt` takes.

    ffn: width of the MLP, 4H if not given. gated: it has a third matrix (SwiGLU). bias: linear layers have
    biases and norms too; False with RMSNorm. positions: learned, T·H parameters. kv_heads: heads of keys and
    values where they are fewer. Raises ValueError for less than 1 of anything, and where `heads` does not divide
    `hidden`, or `kv_heads` not `heads`.
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

    def __post_init__(self):
        for name in ("layers", "hidden", "heads", "vocab", "context", "ffn", "kv_heads"):
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


def layer_matrices(model: Transformer) -> int:
    """Weights of one layer that tokens are multiplied by: 12H² in a GPT."""
    h = model.hidden
    return h * (h + 2 * model.kv) + h * h + (3 if model.gated else 2) * h * model.width


def layer_parameters(model: Transformer) -> int:
    """All parameters of one layer: 12H² + 13H in a GPT."""
    h = model.hidden
    biases = (h + 2 * model.kv) + h + model.width * (1 + model.gated) + h
    return layer_matrices(model) + model.bias * biases + 2 * h * (1 + model.bias)


def embedding_parameters(model: Transformer) -> int:
    """Token and position embeddings."""
    return (model.vocab + model.positions * model.context) * model.hidden


def output_parameters(model: Transformer) -> int:
    """The last norm, and the projection to the vocabulary unless it is the token embedding."""
    return model.hidden * (1 + model.bias) + (not model.tied) * model.vocab * model.hidden


def parameters(model: Transformer) -> int:
    """All parameters."""
    return (
        model.layers * layer_parameters(model)
        + embedding_parameters(model)
        + output_parameters(model)
    )


def parameter_tensors(model: Transformer) -> int:
    """How many tensors they are in `models.gpt`: 12 a layer."""
    return 12 * model.layers + model.positions + 1 + 2 + (not model.tied)


def sc21_parameters(model: Transformer) -> int:
    """Equation 2 of SC21, which leaves out the last norm: 2H less than `parameters`."""
    l, h = model.layers, model.hidden
    return 12 * l * h * h + 13 * l * h + (model.vocab + model.context) * h


def forward_flops(model: Transformer, batch: int, tokens: int | None = None) -> int:
    """FLOPs of a forward pass over `batch` sequences of `tokens` (the context if not given)."""
    t = model.context if tokens is None else tokens
    return model.layers * _layer_flops(model, batch, t) + 2 * batch * t * model.hidden * model.vocab


def flops(
    model: Transformer,
    batch: int,
    tokens: int | None = None,
    recompute: str = "none",
    fused_attention: bool = False,
) -> int:
    """FLOPs of one step, forward and backward.

    recompute: "none" gives the model's FLOPs, which MFU counts; "full" repeats every layer's forward (SC21's
    equation 3), "selective" its two products of attention. fused_attention: backward of a fused attention
    operator multiplies queries and keys again, because it kept no scores. Raises ValueError for another word.
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute is one of {', '.join(RECOMPUTE)}, not {recompute!r}")
    t = model.context if tokens is None else tokens
    again = {
        "none": 0,
        "selective": attention_flops(model, batch, t),
        "full": _layer_flops(model, batch, t),
    }[recompute]
    again += attention_flops(model, batch, t) // 2 * fused_attention
    return 3 * forward_flops(model, batch, t) + model.layers * again


def attention_flops(model: Transformer, batch: int, tokens: int) -> int:
    """One layer's products of queries with keys, and of weights with values, forward: 4·B·T²·H."""
    return 4 * batch * tokens * tokens * model.hidden


def published_hardware_flops(model: Transformer, batch: int) -> int:
    """FLOPs of a step with selective recomputation as Korthikanti et al. must have counted: 72BLsh²(1 + s/3h + V/12hL).

    Their Table 5 comes out only with the attention products of the *whole* step counted twice; one forward more,
    `flops(..., recompute="selective")`, gives 1 + 2s/9h and up to 1.3 percentage points less.
    """
    return flops(model, batch) + 3 * model.layers * attention_flops(model, batch, model.context)


def _layer_flops(model: Transformer, batch: int, tokens: int) -> int:
    return 2 * batch * tokens * layer_matrices(model) + attention_flops(model, batch, tokens)
