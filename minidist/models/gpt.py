"""A GPT: token and position embeddings, layers of causal attention and an MLP, and a projection to the vocabulary.

    x = tokens + positions                     (B, T, H)
    L times:  x = x + attention(norm(x))       norms before, as in GPT-2: the sum x runs through untouched
              x = x + mlp(norm(x))
    logits = norm(x) · tokensᵀ                 (B, T, V)

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3. Parameters:
L(12H² + 13H) + (V + T)H + 2H with the projection tied to the token embedding. What came later are options: fewer heads
of keys and values, rotary positions in place of added ones, an MLP with a gate.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidist.arguments import choice, flags, floating, number, whole
from minidist.models.layers import Embedding, LayerNorm, Linear
from minidist.models.rotary import rotated
from minidist.models.seeds import made


class Dropout(nn.Module):
    """Sets a part p to zero. Keeps one byte an element for backward on every device; on a CPU nn.Dropout keeps more."""

    def __init__(self, p: float):
        super().__init__()
        self.p = number(p, "dropout is the share that becomes zero, from 0 to 1", 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.native_dropout(x, self.p, True)[0] if self.training and self.p else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Attention(nn.Module):
    """Causal attention with `heads` heads. attention: "sdpa", one fused operator, or "explicit", every step seen.

    kv_heads: keys and values have fewer heads, each for heads/kv_heads queries (Ainslie et al. 2023, "GQA").
    rotary: queries and keys are turned by their positions (see `rotated`).
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        dropout: float,
        attention: str,
        kv_heads: int | None = None,
        rotary: bool = False,
        **like,
    ):
        super().__init__()
        self.deal(hidden, heads, attention, kv_heads, rotary)
        self.qkv = Linear(hidden, self.groups * self.rows, **like)
        self.proj = Linear(hidden, hidden, **like)
        self.weights_dropout, self.dropout = Dropout(dropout), Dropout(dropout)

    def deal(
        self, hidden: int, heads: int, attention: str, kv_heads: int | None, rotary: bool = False
    ) -> None:
        """Say how many heads there are, of what size, and how they attend. ValueError where that cannot be."""
        hidden = whole(hidden, "a layer has at least 1 hidden feature", 1)
        heads = whole(heads, "attention has at least 1 head", 1)
        groups = (
            heads
            if kv_heads is None
            else whole(kv_heads, "attention has at least 1 head of keys and values", 1)
        )
        flags(rotary=rotary)
        if hidden % heads:
            raise ValueError(f"{heads} heads do not split hidden = {hidden}: it is not a multiple")
        if groups < 1 or heads % groups:
            raise ValueError(
                f"{groups} heads of keys and values do not serve {heads} heads alike: not a multiple"
            )
        if attention not in ("sdpa", "explicit"):
            raise ValueError(f"attention is 'sdpa' or 'explicit', not {attention!r}")
        if rotary and hidden // heads % 2:
            raise ValueError(
                f"rotary positions turn pairs: heads of size {hidden}/{heads} = {hidden // heads} are odd"
            )
        self.size = hidden // heads
        self.queries = heads // groups
        self.groups = groups
        self.kind = attention
        self.rotary = rotary

    @property
    def rows(self) -> int:
        """Of qkv, for one group: its heads' queries, its key, its value."""
        return (self.queries + 2) * self.size

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H)
        # One group's q, k and v lie together, so a cut through the rows of qkv gives whole heads.
        # (B, T, a, 3, H/a)
        rows = self.qkv(x).unflatten(-1, (self.groups, self.queries + 2, self.size))
        parts = rows.permute(0, 2, 3, 1, 4).split((self.queries, 1, 1), 2)
        if self.rotary:
            parts = rotated(parts[0]), rotated(parts[1]), parts[2]
        # 3 × (B, a, T, H/a)
        q, k, v = (part.expand(-1, -1, self.queries, -1, -1).flatten(1, 2) for part in parts)
        return self.dropout(self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2)))  # (B, T, H)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, a, T, H/a)
        return (self.explicit if self.kind == "explicit" else self.fused)(q, k, v)

    def explicit(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T, size = q.shape[-2:]
        future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
        # (B, a, T, T)
        scores = (q @ k.transpose(-2, -1) * size**-0.5).masked_fill(future, -math.inf)
        return self.weights_dropout(scores.softmax(-1)) @ v

    def fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = self.weights_dropout.p if self.training else 0.0
        # PyTorch's choice for meta tensors is the explicit one; a GPU would take this
        if q.is_meta:
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, p, True)[0]
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)


class SwiGLU(nn.Module):
    """silu(gate)·x: Shazeer 2020, "GLU Variants Improve Transformer". (…, 2F) to (…, F)."""

    def forward(self, both: Tensor) -> Tensor:
        # A feature's gate and value lie side by side, so a cut through the rows of fc gives whole features.
        gate, x = both.unflatten(-1, (both.shape[-1] // 2, 2)).unbind(-1)
        return F.silu(gate) * x


class MLP(nn.Module):
    """Two linear layers with F features between them and GELU ("none": exact, or "tanh"); gated: SwiGLU instead.

    ffn: F, 4H if not given. With a gate 8H/3 makes as many parameters as 4H without.
    """

    def __init__(
        self,
        hidden: int,
        dropout: float,
        gelu: str,
        ffn: int | None = None,
        gated: bool = False,
        **like,
    ):
        super().__init__()
        self.widen(hidden, gelu, ffn, gated)
        self.fc, self.proj = (
            Linear(hidden, self.rows * self.ffn, **like),
            Linear(self.ffn, hidden, **like),
        )
        self.dropout = Dropout(dropout)

    def widen(self, hidden: int, gelu: str, ffn: int | None, gated: bool) -> None:
        """Say how many features there are, how many rows of fc each has, and what makes it of them."""
        flags(gated=gated)
        choice(gelu, "gelu", ("tanh", "none"))
        self.ffn = 4 * hidden if ffn is None else whole(ffn, "an MLP has at least 1 feature", 1)
        self.rows = 2 if gated else 1
        self.act = SwiGLU() if gated else nn.GELU(gelu)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H)
        return self.dropout(self.proj(self.act(self.fc(x))))  # fc: (B, T, F), gated (B, T, 2F)


class TransformerLayer(nn.Module):
    """One layer of a GPT, (B, T, H) to (B, T, H): 12H² + 13H parameters unless the last four arguments change it.

    kv_heads, ffn, gated, rotary: as for `Attention` and `MLP`.
    dtype, device: as for any module of torch, e.g. GPT-3's layer `TransformerLayer(12288, 96, device="meta")`.
    Raises ValueError where `heads` does not divide `hidden`, or `kv_heads` not `heads`.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        dropout: float = 0.0,
        attention: str = "sdpa",
        gelu: str = "tanh",
        dtype: torch.dtype | None = None,
        device: str | None = None,
        kv_heads: int | None = None,
        ffn: int | None = None,
        gated: bool = False,
        rotary: bool = False,
    ):
        super().__init__()
        like = dict(dtype=dtype, device=device)
        self.norm_1 = LayerNorm(hidden, **like)
        self.attention = Attention(hidden, heads, dropout, attention, kv_heads, rotary, **like)
        self.norm_2, self.mlp = (
            LayerNorm(hidden, **like),
            MLP(hidden, dropout, gelu, ffn, gated, **like),
        )

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H)
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Token numbers (B, T) to logits (B, T, V). `gpt` builds one with its initial values."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        vocab: int,
        context: int,
        dropout: float = 0.0,
        tied: bool = True,
        attention: str = "sdpa",
        gelu: str = "tanh",
        dtype: torch.dtype | None = None,
        device: str | None = None,
        kv_heads: int | None = None,
        ffn: int | None = None,
        gated: bool = False,
        rotary: bool = False,
    ):
        super().__init__()
        layers = whole(layers, "a GPT has at least 1 layer", 1)
        hidden = whole(hidden, "a layer has at least 1 hidden feature", 1)
        vocab = whole(vocab, "a vocabulary has at least 1 token", 1)
        context = whole(context, "a context has room for at least 1 token", 1)
        flags(tied=tied, rotary=rotary)
        floating(
            dtype,
            "the parameters of a GPT are real numbers of 16 bits or more, such as torch.float32",
        )
        like, self.context = dict(dtype=dtype, device=device), context
        more = like | dict(kv_heads=kv_heads, ffn=ffn, gated=gated, rotary=rotary)
        self.tokens = Embedding(vocab, hidden, **like)
        self.positions = None if rotary else Embedding(context, hidden, **like)
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(
            TransformerLayer(hidden, heads, dropout, attention, gelu, **more) for _ in range(layers)
        )
        self.norm = LayerNorm(hidden, **like)
        self.head = None if tied else Linear(hidden, vocab, bias=False, **like)

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T)
        x = self.embed(tokens)  # (B, T, H)
        for layer in self.layers:
            x = layer(x)
        return self.project(x)  # (B, T, V)

    def embed(self, tokens: Tensor) -> Tensor:
        """What goes into the first layer: (B, T) to (B, T, H)."""
        T = tokens.shape[-1]
        if self.context < T:
            raise ValueError(f"{T} tokens do not fit into a context of {self.context}")
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(T, device=tokens.device))
        return self.dropout(x)

    def project(self, x: Tensor) -> Tensor:
        """Logits of what comes out of the last layer: (B, T, H) to (B, T, V)."""
        return F.linear(self.norm(x), (self.head or self.tokens).weight)


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    context: int,
    dropout: float = 0.0,
    tied: bool = True,
    attention: str = "sdpa",
    gelu: str = "tanh",
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    kv_heads: int | None = None,
    ffn: int | None = None,
    gated: bool = False,
    rotary: bool = False,
) -> GPT:
    """A GPT with its initial values: `gpt(layers=2, hidden=64, heads=4, vocab=256, context=32)`.

    tied: the projection to the vocabulary is the token embedding. attention: "sdpa" or "explicit".
    gelu: "tanh" or "none" (exact). kv_heads: heads of keys and values, if fewer. ffn: features of the MLP, 4H if not
    given. gated: it is SwiGLU. rotary: positions turn queries and keys, and are not added to the embedding.
    GPT-3 is `gpt(96, 12288, 96, 51200, 2048, device="meta")`.
    Raises ValueError where `heads` does not divide `hidden`, or `kv_heads` not `heads`; the model, for more than
    `context` tokens.
    """
    model = GPT(
        layers,
        hidden,
        heads,
        vocab,
        context,
        dropout,
        tied,
        attention,
        gelu,
        dtype,
        "meta",
        kv_heads,
        ffn,
        gated,
        rotary,
    )
    return made(model, seed, device)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits (B, T, V) against token numbers (B, T), in float32 at least."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.flatten(0, 1).to(exact), targets.flatten())
