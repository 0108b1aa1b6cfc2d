"""A transformer's layer split over n ranks: the serial model's own code, with other linear layers in it.

    x ─┬─ norm ─ f ─ qkv (columns: whole heads) ─ attention ─ proj (rows) ─ g ─┬─ norm ─ f ─ fc ─ gelu ─ proj ─ g ─┬─
       └───────────────────────────────────────────────────────────────────────┴───────────────────────────────────┴─
       whole                     split over heads                       whole              split              whole

A block has one all-reduce forward and one backward, a layer two and two. sequence=True keeps what is whole above as
parts of the sequence, (B, T/n, H): f becomes an all-gather and g a reduce-scatter, the same bytes, and what the norms
and dropouts keep is divided by n. The formulas stand in cost.py. Sources: Shoeybi et al. 2019, "Megatron-LM",
section 3; Korthikanti et al. 2022, section 4.2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...comm.base import Comm
from ...models.gpt import MLP, Attention, TransformerLayer
from ...models.layers import LayerNorm
from ...split import uneven
from .around import SequenceNorm, TensorDropout
from .linear import ColumnLinear, RowLinear
from .parts import join


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
