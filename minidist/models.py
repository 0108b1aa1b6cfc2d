"""Models that know of no parallelism.

    mlp                    linear layers with ReLU between them
    gpt, TransformerLayer  a GPT-2, and one of its layers alone; by options what came later
    rotated                queries and keys turned by their positions
    Experts, Router        many MLPs in place of one, of which each token passes a few
    resnet                 a convolutional network with batch norm
    sequence               a GPT as nn.Sequential of its parts, to be cut into stages
    seeded_, materialize_  initial values that do not depend on how a model is split, of a whole and of its parts

Every model is built on any device. On "meta" it has shapes and no numbers, so that GPT-3 costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minidist import arguments
from minidist.arguments import choice, flags, floating, number, whole
from minidist.decide import decide_all
from minidist.split import Cut, bounds, cuts, uneven

# ------------------------------------------------------------
# Initial values that do not depend on how a model is split.
#
# Seeds belong to names: the numbers of a parameter come from (seed, its name), never from how many were drawn
# before. So a model that is cut into parts, on any number of ranks, starts equal to the whole.
#
# Whoever holds a part draws the whole, too: a generator gives its numbers one after the other. But it draws a block of
# rows at a time into one buffer, and cuts the part out of that: 8 MiB beside the part, or 16 rows, whatever the size of
# the whole. The blocks depend on the whole's shape alone.


BLOCK = 1 << 20
"""Numbers of one block, about; 16 rows at least."""

Model = TypeVar("Model", bound=nn.Module)


def generator(seed: int, name: str) -> torch.Generator:
    """Random numbers that belong to `name`, on the CPU.

    >>> import torch
    >>> from minidist.models import generator
    >>> first, again = (torch.rand(3, generator=generator(0, "fc")) for _ in range(2))
    >>> other = torch.rand(3, generator=generator(0, "proj"))
    >>> first.equal(again), first.equal(other)
    (True, False)
    """
    digest = sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def initial(seed: int, name: str, shape: Sequence[int]) -> Tensor:
    """The initial value of a whole parameter, float64 on the CPU, of this shape.

    Matrices, and all with more dimensions: normal, deviation 1/√(inputs of one output) (LeCun et al. 1998,
    section 4.6). Vectors: biases 0, the scales of norms 1.

    >>> from minidist.models import initial
    >>> initial(0, "norm.weight", (3,)).tolist(), initial(0, "fc.bias", (3,)).tolist()
    ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    >>> weight = initial(0, "fc.weight", (400, 100))
    >>> weight.equal(initial(0, "fc.weight", (400, 100))), 0.09 < weight.std() < 0.11
    (True, tensor(True))
    """
    return initial_(torch.empty(shape, dtype=torch.float64), seed, name)


@torch.no_grad()
def initial_(part: Tensor, seed: int, name: str, cut: Cut | None = None, rank: int = 0) -> Tensor:
    """Give `part` its `initial` value, in place, on any device and rounded to its dtype. Returns `part`.

    cut: of the whole parameter, along dimension 0 or 1: `part` is what `rank` has of it. Without a cut it is the whole.
    On the device "meta" there is nothing to draw. Raises ValueError for a part of another size than the cut says.

    >>> import torch
    >>> from minidist.models import initial, initial_
    >>> from minidist.split import Cut
    >>> whole = initial(0, "fc.weight", (5, 4))
    >>> part = torch.empty(2, 4, dtype=torch.float64)  # rank 1 has rows 3 and 4
    >>> initial_(part, 0, "fc.weight", Cut(0, [3, 2]), rank=1).equal(whole[3:])
    True
    """
    dim = first = 0
    shape = part.shape
    if cut is not None:
        dim, (first, end) = cut.dim, bounds(cut.sizes)[rank]
        shape = cut.shape(part.shape, sum(cut.sizes))
        if part.shape[dim] != end - first:
            raise ValueError(
                f"rank {rank} has {end - first} of {shape[dim]} along dimension {dim} of {name}, "
                f"not {part.shape[dim]}"
            )
    if part.is_meta:
        return part
    if part.dim() < 2:
        return part.fill_(float(not name.endswith("bias")))
    for at, rows in _rows(seed, name, shape):
        if dim == 0:
            begin, end = max(at, first), min(at + len(rows), first + len(part))
            if begin < end:
                part[begin - first : end - first] = rows[begin - at : end - at]
        else:
            part[at : at + len(rows)] = rows.narrow(dim, first, part.shape[dim])
    return part


def _rows(seed: int, name: str, shape: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """The whole parameter, float64, in blocks of rows, each with the number of its first row; all in one buffer."""
    wide, drawn = math.prod(shape[1:]), generator(seed, name)
    step = 16 * max(1, BLOCK // (16 * max(1, wide)))
    ends = [*range(step, shape[0], step), shape[0]]
    # torch draws 16 numbers at once: so blocks are as one
    if len(ends) > 1 and (ends[-1] - ends[-2]) * wide < 16:
        del ends[-2]
    sizes = [end - first for first, end in zip([0, *ends], ends, strict=False)]
    buffer = torch.empty((max(sizes), *shape[1:]), dtype=torch.float64)
    for end, size in zip(ends, sizes, strict=True):
        yield end - size, buffer[:size].normal_(generator=drawn).mul_(max(1, wide) ** -0.5)


@torch.no_grad()
def seeded_(module: Model, seed: int = 0) -> Model:
    """Give every parameter of `module` its `initial` value, in place. Returns `module`.

    Drawn in float64 and rounded, so models of all dtypes start as near to each other as they can. The values depend on
    the seed and on the parameter's name and shape, on nothing else.

    >>> from torch import nn
    >>> from minidist.models import seeded_
    >>> both = seeded_(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), seed=1)
    >>> first = seeded_(nn.Sequential(nn.Linear(3, 4)), seed=1)
    >>> both[0].weight.equal(first[0].weight)
    True
    """
    for name, p in module.named_parameters():
        initial_(p, seed, name)
    return module


@torch.no_grad()
def materialize_(
    module: Model,
    seed: int,
    rename: Callable[[str], str] = str,
    whole: Mapping[str, Tensor] | None = None,
    rank: int = 0,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """Give each parameter of a module on "meta" its values on `device`: the part of `rank`, where it is cut.

    rename: from names in `module` to those of the whole model. What has one name there becomes one parameter.
    whole: the whole model's parameters by name. One with values hands its part on; another one, on "meta" or not
    named, stands for its `initial` value.  dtype: instead of theirs.  Returns `module`.
    ValueError where a part has another size than its cut says.

    >>> from minidist.models import gpt, materialize_
    >>> sizes = dict(layers=1, hidden=16, heads=2, vocab=100, context=8)
    >>> model = materialize_(gpt(**sizes, device="meta"), seed=0)
    >>> model.tokens.weight.equal(gpt(**sizes, seed=0).tokens.weight)
    True
    """
    how, parameters = cuts(module), {}
    for name, p in list(module.named_parameters(remove_duplicate=False)):
        serial, cut = rename(name), how.get(name)
        if serial not in parameters:
            source = (whole or {}).get(serial, p)
            values = torch.empty(p.shape, dtype=dtype or source.dtype, device=device)
            if source.is_meta:
                initial_(values, seed, serial, cut, rank)
            else:
                values.copy_(source if cut is None else cut.part(source, rank))
            parameters[serial] = nn.Parameter(values, source.requires_grad)
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, parameters[serial])
    return module


def initialized(module: Model, seed: int, device: str | torch.device) -> Model:
    """A module that was built on the device "meta", on `device` with its initial values.
    ValueError for a device that there is not, and for a seed that is no whole number.

    >>> from torch import nn
    >>> from minidist.models import initialized
    >>> initialized(nn.Linear(3, 2, device="meta"), 0, "cpu").bias.tolist()
    [0.0, 0.0]
    >>> initialized(nn.Linear(3, 2, device="meta"), 0, "meta").bias.is_meta
    True
    """
    place, seed = arguments.device(device), arguments.whole(seed, "a seed is a whole number")
    return module if place.type == "meta" else seeded_(module.to_empty(device=place), seed)


# ------------------------------------------------------------
# The parts of models, built without values where there is nothing to hold them.
#
# nn.Linear draws its initial values at once, also on the device "meta", where they are lost: a World charges the model's
# builder for them. These draw them only where they are kept. `seeded_` gives the models of this file their own.


class _Bare(nn.Module):
    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()  # type: ignore[misc]  # the next class has it


class Linear(_Bare, nn.Linear):
    """nn.Linear; on the device "meta" nothing is drawn.  product: what multiplies; `train.fp8` puts another in its
    place.

    >>> import torch
    >>> from minidist.models import Linear
    >>> layer = Linear(2, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.eye(2))
    >>> layer(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 2.0]]
    >>> layer.product = lambda x, weight, bias: 10 * (x @ weight.T)
    >>> layer(torch.tensor([[1.0, 2.0]])).tolist()
    [[10.0, 20.0]]
    """

    product: Callable[..., Tensor] = staticmethod(F.linear)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


class Embedding(_Bare, nn.Embedding):
    """nn.Embedding; on the device "meta" nothing is drawn.

    >>> import torch
    >>> from minidist.models import Embedding
    >>> tokens = torch.zeros(8, 32, dtype=torch.long, device="meta")
    >>> Embedding(50_000, 4096, device="meta")(tokens).shape
    torch.Size([8, 32, 4096])
    """


class LayerNorm(_Bare, nn.LayerNorm):
    """nn.LayerNorm; on the device "meta" nothing is filled.

    >>> import torch
    >>> from minidist.models import LayerNorm
    >>> [round(x, 2) for x in LayerNorm(2)(torch.tensor([1.0, 3.0])).tolist()]
    [-1.0, 1.0]
    """


class RMSNorm(_Bare, nn.RMSNorm):
    """nn.RMSNorm; on the device "meta" nothing is filled.

    >>> import torch
    >>> from minidist.models import RMSNorm
    >>> [round(x, 2) for x in RMSNorm(2)(torch.tensor([3.0, -3.0])).tolist()]
    [1.0, -1.0]
    """


class Conv2d(_Bare, nn.Conv2d):
    """nn.Conv2d; on the device "meta" nothing is drawn.

    >>> import torch
    >>> from minidist.models import Conv2d
    >>> Conv2d(3, 64, 7, stride=2, padding=3)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 64, 16, 16])
    """


class BatchNorm2d(_Bare, nn.BatchNorm2d):
    """nn.BatchNorm2d; on the device "meta" nothing is filled.

    >>> import torch
    >>> from minidist.models import BatchNorm2d
    >>> y = BatchNorm2d(3)(torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).expand(2, 3, 4, 4))
    >>> [round(x, 2) for x in y[:, 0, 0, 0].tolist()]
    [-1.0, 1.0]
    """


# ------------------------------------------------------------
# Rotary positions: queries and keys are turned by an angle that grows with their position.
#
# Of a head of size D, numbers 2i and 2i+1 are a point of the plane. At position t it is turned by t·θᵢ with
# θᵢ = θ^(−2i/D), where θ is 10,000:
#
#     (a, b) → (a·cos tθᵢ − b·sin tθᵢ, a·sin tθᵢ + b·cos tθᵢ)        as complex numbers: z → z·exp(i·tθᵢ)
#
# The product of a query at t and a key at s then depends on t − s alone, and there is no parameter. Source: Su et al.
# 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", section 3.2.


def rotated(x: Tensor, theta: float = 10_000.0, places: Tensor | None = None) -> Tensor:
    """Queries or keys (…, T, D), each turned by its position, one of `places` (T), 0 … T−1 unless given.

    Angles are in float32 at least.
    theta: the slowest pair turns by about 1/theta a position.  Returns (…, T, D), in the dtype of x.
    Source: Su et al. 2021, "RoFormer", section 3.2.

    >>> import torch
    >>> from minidist.models import rotated
    >>> q, k = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.5, 1.0, 1.5, 2.0]])  # T = 1
    >>> def score(t, s):
    ...     return rotated(q, places=torch.tensor([t])) @ rotated(k, places=torch.tensor([s])).T
    >>> torch.allclose(score(7, 5), score(102, 100), rtol=1e-4)  # only the distance counts
    True
    """
    T, size = x.shape[-2:]
    places = torch.arange(T, device=x.device) if places is None else places
    exact = torch.promote_types(x.dtype, torch.float32)
    speeds = theta ** (-torch.arange(0, size, 2, dtype=exact, device=x.device) / size)  # (D/2)
    angles = places.to(exact)[:, None] * speeds  # (T, D/2)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.unflatten(-1, (size // 2, 2)).unbind(-1)  # each (…, T, D/2)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)


# ------------------------------------------------------------
# A multi-layer perceptron: the smallest model that shows anything.


def mlp(
    sizes: Sequence[int], seed: int = 0, dtype: torch.dtype | None = None, device: str = "cpu"
) -> nn.Sequential:
    """Linear layers with ReLU between them: `mlp([64, 128, 10])` maps (B, 64) to (B, 10).

    sizes: features of the inputs, of each hidden layer, and of the outputs.  seed: of the initial values, which are
    the same on every rank.  dtype: of the parameters; torch's default if None.  device: "cpu", "cuda" or "meta".
    Raises ValueError for fewer than two sizes, a seed that is no whole number, and a device that there is not.

    >>> import torch
    >>> from minidist.models import mlp
    >>> model = mlp([64, 128, 10])
    >>> model(torch.zeros(32, 64)).shape
    torch.Size([32, 10])
    >>> sum(p.numel() for p in model.parameters())  # 64·128 + 128 + 128·10 + 10
    9610
    """
    if len(sizes) < 2:
        raise ValueError(
            f"an MLP has at least 2 sizes, its inputs and its outputs, not {len(sizes)}: {list(sizes)}"
        )
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [Linear(inputs, outputs, dtype=dtype, device="meta"), nn.ReLU()]
    return initialized(nn.Sequential(*layers[:-1]), seed, device)


# ------------------------------------------------------------
# A GPT: token and position embeddings, layers of causal attention and an MLP, and a projection to the vocabulary.
#
#     x = tokens + positions                     (B, T, H)
#     L times:  x = x + attention(norm(x))       norms before, as in GPT-2: the sum x runs through untouched
#               x = x + mlp(norm(x))
#     logits = norm(x) · tokensᵀ                 (B, T, V)
#
# Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3. Parameters:
# L(12H² + 13H) + (V + T)H + 2H with the projection tied to the token embedding. What came later are options: fewer heads
# of keys and values, rotary positions in place of added ones, an MLP with a gate, norms that do not shift. All of them
# together are a LLaMA (Touvron et al. 2023, section 2.2).


class Dropout(nn.Module):
    """Sets a part p to zero. Keeps one byte an element for backward on every device; on a CPU nn.Dropout keeps more.
    Raises ValueError for a p outside 0 … 1.

    >>> import torch
    >>> from minidist.models import Dropout
    >>> dropout, x = Dropout(0.5), torch.ones(1000)
    >>> sorted(set(dropout(x).tolist()))  # what stays is scaled, so that the mean does
    [0.0, 2.0]
    >>> torch.equal(dropout.eval()(x), x)
    True
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = number(p, "dropout is the share that becomes zero, from 0 to 1", 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.native_dropout(x, self.p, True)[0] if self.training and self.p else x

    def drawing(self, function: Callable, *args):
        """`function(*args)`, an operator that drops elements itself."""
        return function(*args)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Attention(nn.Module):
    """Causal attention with `heads` heads, (B, T, H) to (B, T, H).

    attention: "sdpa", one fused operator, or "explicit", every step seen.
    kv_heads: keys and values have fewer heads, each for heads/kv_heads queries (Ainslie et al. 2023, "GQA").
    rotary: queries and keys are turned by their positions; theta: how fast (see `rotated`).  bias: of qkv and proj.
    places: how many tokens there are -> their positions; a rank may have others than the first.
    Raises ValueError where `heads` does not divide `hidden`, or `kv_heads` not `heads`; for rotary positions in heads
    of odd size; and for another word.

    >>> import torch
    >>> from minidist.models import Attention
    >>> attention = Attention(hidden=64, heads=8, kv_heads=2)
    >>> attention.qkv.out_features  # 8 queries, 2 keys and 2 values of 8 numbers each
    96
    >>> x = torch.randn(1, 5, 64)
    >>> attention(x)[:, :3].allclose(attention(x[:, :3]), atol=1e-5)  # no token sees a later one
    True
    """

    places: Callable = staticmethod(torch.arange)

    def __init__(
        self,
        hidden: int,
        heads: int,
        dropout: float = 0.0,
        attention: str = "sdpa",
        kv_heads: int | None = None,
        rotary: bool = False,
        theta: float = 10_000.0,
        bias: bool = True,
        **like,
    ):
        super().__init__()
        hidden = whole(hidden, "a layer has at least 1 hidden feature", 1)
        heads = whole(heads, "attention has at least 1 head", 1)
        groups = heads if kv_heads is None else kv_heads
        groups = whole(groups, "attention has at least 1 head of keys and values", 1)
        flags(rotary=rotary, bias=bias)
        if hidden % heads:
            raise ValueError(f"{heads} heads do not split hidden = {hidden}: it is not a multiple")
        if heads % groups:
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
        self.queries = heads // groups  # of one group: a head of keys and values
        self.groups = groups
        self.kind = attention
        self.rotary = rotary
        self.theta = number(theta, "theta, of rotary positions, is at least 1", 1)
        self.qkv = Linear(hidden, groups * self.rows, bias, **like)
        self.proj = Linear(hidden, hidden, bias, **like)
        self.weights_dropout = Dropout(dropout)
        self.dropout = Dropout(dropout)

    @property
    def rows(self) -> int:
        """Of qkv, for one group: its heads' queries, its key, its value."""
        return (self.queries + 2) * self.size

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H)
        # One group's q, k and v lie together, so a cut through the rows of qkv gives whole heads.
        rows = self.qkv(x).unflatten(-1, (self.groups, self.queries + 2, self.size))
        rows = rows.permute(0, 2, 3, 1, 4)  # (B, groups, queries + 2, T, H/a)
        q, k, v = rows.split((self.queries, 1, 1), 2)
        if self.rotary:
            places = self.places(q.shape[-2], device=x.device)
            q, k = rotated(q, self.theta, places), rotated(k, self.theta, places)
        q, k, v = (x.flatten(1, 2) for x in (q, k, v))  # (B, a, T, H/a), twice (B, groups, T, H/a)
        y = self.weights_dropout.drawing(self.attend, q, k, v)
        return self.dropout(self.proj(y.transpose(1, 2).flatten(2)))  # (B, T, H)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (B, a, T, H/a)
        # each head of keys and values, once for each head of queries that it serves
        k, v = (x[:, :, None].expand(-1, -1, self.queries, -1, -1).flatten(1, 2) for x in (k, v))
        return (self.explicit if self.kind == "explicit" else self.fused)(q, k, v)

    def explicit(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T, size = q.shape[-2:]
        future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
        # (B, a, T, T)
        scores = (q @ k.transpose(-2, -1) * size**-0.5).masked_fill(future, -math.inf)
        return self.weights_dropout(scores.softmax(-1)) @ v

    def fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = self.weights_dropout.p if self.training else 0.0
        # a rank without heads has the empty result at once; PyTorch 2.11 divides by their number
        if q.shape[1] == 0:
            return v
        # PyTorch's choice for meta tensors is the explicit one; a GPU would take this
        if q.is_meta:
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, p, True)[0]
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)


class SwiGLU(nn.Module):
    """silu(gate)·x of pairs (gate, x) that lie side by side: (…, 2F) to (…, F).

    Source: Shazeer 2020, "GLU Variants Improve Transformer".

    >>> import torch
    >>> from minidist.models import SwiGLU
    >>> SwiGLU()(torch.tensor([0.0, 5.0, 100.0, 2.0])).tolist()  # silu(0) = 0, silu(100) = 100
    [0.0, 200.0]
    """

    def forward(self, both: Tensor) -> Tensor:
        # A feature's gate and value lie side by side, so a cut through the rows of fc gives whole features.
        gate, x = both.unflatten(-1, (both.shape[-1] // 2, 2)).unbind(-1)
        return F.silu(gate) * x


class MLP(nn.Module):
    """Two linear layers with F features between them and GELU ("none": exact, or "tanh"); gated: SwiGLU instead.

    ffn: F, 4H if not given. With a gate 8H/3 makes as many parameters as 4H without.  bias: of both.
    Raises ValueError for fewer than 1 feature and for another gelu.

    >>> import torch
    >>> from minidist.models import MLP
    >>> MLP(64)(torch.zeros(2, 16, 64)).shape
    torch.Size([2, 16, 64])
    >>> gated = MLP(64, ffn=192, gated=True, bias=False)
    >>> gated.fc.out_features, gated.proj.in_features
    (384, 192)
    """

    def __init__(
        self,
        hidden: int,
        dropout: float = 0.0,
        gelu: str = "tanh",
        ffn: int | None = None,
        gated: bool = False,
        bias: bool = True,
        **like,
    ):
        super().__init__()
        flags(gated=gated, bias=bias)
        choice(gelu, "gelu", ("tanh", "none"))
        self.ffn = 4 * hidden if ffn is None else whole(ffn, "an MLP has at least 1 feature", 1)
        self.fc = Linear(hidden, (1 + gated) * self.ffn, bias, **like)
        self.act = SwiGLU() if gated else nn.GELU(gelu)
        self.proj = Linear(self.ffn, hidden, bias, **like)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H)
        return self.dropout(self.proj(self.act(self.fc(x))))  # fc: (B, T, F), gated (B, T, 2F)


# ------------------------------------------------------------
# Experts: E MLPs in place of one, of which each token passes k. Parameters grow with E, the work of a token with k alone.
#
#     p = softmax(W·x)                   of a token, (E), in float32 at least: the router
#     chosen                             the k experts with the largest p; of equal ones the first
#     y = Σ gate_e·expert_e(x)           over those chosen; gate_e = p_e for k = 1, else p_e/Σ p over the k
#
# For k = 1 a gate divided by itself would be 1, and the loss would teach the router nothing. Sources: Shazeer et al. 2017,
# "Outrageously Large Neural Networks", section 2 (there with noise); Fedus et al. 2021, "Switch Transformers", section 2.1,
# for k = 1; Lepikhin et al. 2020, "GShard", section 2.2, for experts in every second layer.
#
# Capacity. An expert takes at most C = ⌈c·k·T/E⌉ tokens of a sample, in the order of the tokens; a choice that comes later
# is dropped: its summand is missing, the other gates stay as they are, and a token without any goes on by the residual
# alone. C counts by sample (GShard's "group"), not over a rank's samples, nor over all ranks: so what is dropped does not
# depend on how a batch is cut into micro-batches and ranks, and no message is needed to know it. It costs more drops than
# a count over many samples, whose peaks even out. In the order of tokens, all k choices of one before the next token, no
# token hangs on a later one (GShard seats all first choices first, whose later ones take places of earlier second ones).
#
# Two losses keep the router in order. They add a gradient, times `loss_scale`; the model's output is what it is without.
#
#     balance    E·Σ_e f_e·P_e of a sample, mean over samples; 1 where all is even. f_e: the part of its k·T choices that
#                are e, before drops, a constant; P_e = mean p_e. Its gradient: d/dp_e = E·f_e/T. Fedus, section 2.2
#     z          mean over tokens of (log Σ exp of the logits)²: keeps logits small. Zoph et al. 2022, "ST-MoE", section 3
#
# As means over samples both are the same whoever holds which samples: a weighted average over ranks is exact.


ROUTING = ("top_k", "capacity", "balance", "z")
"""The options of a Router."""


class AddedLoss(torch.autograd.Function):
    """`x` as it is; backward gives `loss` the gradient `layer.loss_scale`, as if it were added to what is trained on.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> from minidist.models import AddedLoss
    >>> x, w = torch.tensor(5.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    >>> y = AddedLoss.apply(x, w * w, SimpleNamespace(loss_scale=1.0))
    >>> y.backward()
    >>> y.item(), x.grad.item(), w.grad.item()
    (5.0, 1.0, 6.0)
    """

    @staticmethod
    def forward(ctx, x: Tensor, loss: Tensor, layer: nn.Module) -> Tensor:
        ctx.layer, ctx.one = layer, torch.ones_like(loss)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        return grad, ctx.one * ctx.layer.loss_scale, None


class Router(Linear):
    """Which k of E experts each token of (B, T, H) goes to.

    Returns choices (B, T, k), numbers of experts, E for one that was dropped; gates (B, T, k); and the added loss.
    capacity: the factor c; None: nothing is dropped.  balance, z: factors of the two losses.
    Raises ValueError for a k that is not in 1 … E, and for factors below 0.
    Sources: Fedus et al. 2021, "Switch Transformers", sections 2.1 and 2.2; Lepikhin et al. 2020, "GShard", section
    2.2; Zoph et al. 2022, "ST-MoE", section 3.

    >>> import torch
    >>> from minidist.models import Router
    >>> router = Router(hidden=4, experts=4, top_k=1, capacity=1.0)
    >>> _ = router.weight.data.copy_(torch.eye(4))  # feature e asks for expert e
    >>> x = torch.eye(4)[[2, 0, 2, 3]][None]  # a sample of 4 tokens; each expert has 1 seat
    >>> choices, gates, loss = router(x)
    >>> choices.flatten().tolist()  # the second one for expert 2 is dropped
    [2, 0, 4, 3]
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        top_k: int = 2,
        capacity: float | None = None,
        balance: float = 0.01,
        z: float = 0.001,
        **like,
    ):
        experts = whole(experts, "a layer has at least 1 expert", 1)
        self.top_k = whole(top_k, "a token goes to at least 1 expert", 1)
        if top_k > experts:
            raise ValueError(f"a token cannot go to {top_k} of {experts} experts")
        if capacity is not None and not number(capacity, "a capacity factor is above 0", 0):
            raise ValueError(f"a capacity factor is above 0, not {capacity}")
        self.capacity = capacity
        self.balance = number(balance, "the factor of the balance loss is at least 0", 0)
        self.z = number(z, "the factor of the z-loss is at least 0", 0)
        super().__init__(hidden, experts, bias=False, **like)

    def forward(  # type: ignore[override]  # nn.Linear returns one tensor
        self, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:  # (B, T, H)
        exact = torch.promote_types(x.dtype, torch.float32)
        # in 16 bits, to which an autocast would lower it, near experts become equal: Fedus et al. 2021, section 2.4
        with torch._C.DisableTorchFunction():
            logits = F.linear(x.to(exact), self.weight.to(exact))  # (B, T, E)
        p = logits.softmax(-1)
        # torch.topk does not say which of equal ones it takes
        p_sorted, order = p.sort(dim=-1, descending=True, stable=True)
        gates, choices = p_sorted[..., : self.top_k], order[..., : self.top_k]  # (B, T, k)
        if self.top_k > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        experts = torch.arange(self.out_features, device=x.device)
        chosen = choices[..., None] == experts  # (B, T, k, E)
        frequency = chosen.to(exact).mean((1, 2))  # (B, E)
        balance = self.out_features * (frequency * p.mean(1)).sum(-1).mean()
        z = logits.logsumexp(-1).square().mean()
        if self.capacity is not None:
            choices = choices.where(self.seated(chosen), self.out_features)
        return choices, gates, self.balance * balance + self.z * z

    def seats(self, tokens: int) -> int:
        """C, of each expert in a sample of so many tokens."""
        assert self.capacity is not None
        return math.ceil(self.capacity * self.top_k * tokens / self.out_features)

    def seated(self, chosen: Tensor) -> Tensor:
        """Which choices find a seat, (B, T, k). chosen: (B, T, k, E), True at the expert of each."""
        before = chosen.flatten(1, 2).cumsum(1).view_as(chosen) - chosen.long()
        return (before * chosen).sum(-1) < self.seats(chosen.shape[1])


class Experts(nn.Module):
    """(B, T, H) to (B, T, H): the sum of each token's experts, by their gates.

    router; experts: the MLPs by number, "0", "1", …, of which a rank may hold some (`parallel.experts`).
    loss_scale: what the loss of these samples is multiplied by before backward, 1 unless somebody says so: the router's
    two losses are, too.  counts: tokens that went to each expert in the last forward;  loss: the added loss of it.
    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2.

    >>> import torch
    >>> from minidist.models import MLP, Experts, Router
    >>> layer = Experts(Router(8, experts=4, top_k=2), {str(e): MLP(8) for e in range(4)})
    >>> layer(torch.randn(2, 16, 8)).shape
    torch.Size([2, 16, 8])
    >>> sum(layer.counts)  # 2 · 16 tokens, each to 2 experts
    64
    """

    def __init__(self, router: Router, experts: Mapping[str, nn.Module]):
        super().__init__()
        self.router = router
        self.experts = nn.ModuleDict(experts)
        self.loss_scale: float | Tensor = 1.0
        self.counts: list[int] = []
        self.loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H)
        choices, gates, loss = self.router(x)
        k, E = self.router.top_k, self.router.out_features
        flat = choices.flatten()  # (B·T·k): the choices, token by token
        self.counts = decide_all(
            (flat == torch.arange(E, device=x.device)[:, None]).sum(1), on_meta=self._even(x)
        )
        # by expert, then by token; those that were dropped come last, and are left out
        order = flat.argsort(stable=True)[: sum(self.counts)]
        rows = x.flatten(0, 1)[order // k]  # (R, H)
        results = self.compute(rows, self.counts)  # (R, H)
        summands = results.new_zeros(flat.numel(), x.shape[-1]).index_copy(0, order, results)
        summands = summands.unflatten(0, choices.shape)  # (B, T, k, H)
        self.loss = loss.detach()
        return AddedLoss.apply((summands * gates.to(summands.dtype)[..., None]).sum(2), loss, self)

    @property
    def idle(self) -> int:
        """Parameters of experts that a token does not pass, all ranks together."""
        one = sum(p.numel() for p in next(iter(self.experts.values())).parameters())
        return (self.router.out_features - self.router.top_k) * one

    def compute(self, rows: Tensor, counts: list[int]) -> Tensor:
        """What the experts make of their rows: (R, H) to (R, H), counts[e] rows for expert e, one expert after the other."""
        parts = zip(self.experts.values(), rows.split(counts), strict=True)
        return torch.cat([expert(part) for expert, part in parts])

    def _even(self, x: Tensor) -> list[int]:
        """Counts where there are no values: as even as can be."""
        B, T, _ = x.shape
        router = self.router
        total = B * T * router.top_k
        if router.capacity is not None:
            total = min(total, B * router.seats(T) * router.out_features)
        return uneven(total, router.out_features)


NORMS: dict[str, Any] = {"layer": LayerNorm, "rms": RMSNorm}


def normalization(hidden: int, norm: str, eps: float, **like) -> LayerNorm | RMSNorm:
    """The norm of a layer's input, (…, H) to (…, H): "layer" of variance and mean, "rms" of the mean square alone.

    "rms" has a scale and no shift: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization". eps: added below
    the root.
    ValueError for another norm and for an eps below 0.

    >>> from minidist.models import normalization
    >>> [name for name, p in normalization(8, "layer", 1e-5).named_parameters()]
    ['weight', 'bias']
    >>> [name for name, p in normalization(8, "rms", 1e-5).named_parameters()]
    ['weight']
    """
    kind = NORMS[choice(norm, "norm", NORMS)]
    return kind(hidden, number(eps, "eps, below the root of a norm, is at least 0", 0), **like)


class TransformerLayer(nn.Module):
    """One layer of a GPT, (B, T, H) to (B, T, H): 12H² + 13H parameters unless an argument from kv_heads on changes it.

    kv_heads, ffn, gated, rotary, theta, bias: as for `Attention` and `MLP`.  norm, eps: as for `normalization`.
    experts: so many MLPs in place of one, with the options of `Router`, top_k, capacity, balance, z.
    dtype, device: as for any module of torch, e.g. GPT-3's layer `TransformerLayer(12288, 96, device="meta")`.
    Raises ValueError where `heads` does not divide `hidden`, or `kv_heads` not `heads`; without experts, for an option
    that there is not.
    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.

    >>> import torch
    >>> from minidist.models import TransformerLayer
    >>> layer = TransformerLayer(hidden=64, heads=4)
    >>> layer(torch.zeros(2, 16, 64)).shape
    torch.Size([2, 16, 64])
    >>> sum(p.numel() for p in layer.parameters()) == 12 * 64**2 + 13 * 64
    True
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
        theta: float = 10_000.0,
        bias: bool = True,
        norm: str = "layer",
        eps: float = 1e-5,
        experts: int | None = None,
        **routing,
    ):
        super().__init__()
        if routing and experts is None:
            raise ValueError(f"a layer without experts has no option {', '.join(routing)}")
        like: dict[str, Any] = dict(dtype=dtype, device=device)
        self.norm_1 = normalization(hidden, norm, eps, **like)
        self.attention = Attention(
            hidden, heads, dropout, attention, kv_heads, rotary, theta, bias, **like
        )
        self.norm_2 = normalization(hidden, norm, eps, **like)
        make_mlp = partial(MLP, hidden, dropout, gelu, ffn, gated, bias, **like)
        self.mlp: nn.Module = make_mlp()
        if experts is not None:
            router = Router(hidden, experts, **routing, **like)
            self.mlp = Experts(router, {str(e): make_mlp() for e in range(experts)})

    def forward(self, x: Tensor) -> Tensor:  # (B, T, H)
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Maps token numbers (B, T) to logits (B, T, V). `gpt` builds one with its initial values, and describes the
    options.
    Its parts are `tokens` and `positions` (embeddings; no positions if rotary), `layers`, `norm` and `head` (None if
    tied). ValueError for arguments that `gpt` refuses, and in forward for more than `context` tokens.

    >>> import torch
    >>> from minidist.models import gpt
    >>> model = gpt(layers=1, hidden=16, heads=2, vocab=100, context=8)
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> x = model.embed(tokens)
    >>> x.shape
    torch.Size([1, 3, 16])
    >>> torch.equal(model.project(model.layers[0](x)), model(tokens))
    True
    """

    places: Callable = staticmethod(torch.arange)  # as in `Attention`

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        vocab: int,
        context: int,
        dropout: float = 0.0,
        tied: bool = True,
        dtype: torch.dtype | None = None,
        device: str | None = None,
        rotary: bool = False,
        norm: str = "layer",
        eps: float = 1e-5,
        experts: int | None = None,
        **options,
    ):
        super().__init__()
        layers = whole(layers, "a GPT has at least 1 layer", 1)
        hidden = whole(hidden, "a layer has at least 1 hidden feature", 1)
        vocab = whole(vocab, "a vocabulary has at least 1 token", 1)
        flags(tied=tied, rotary=rotary)
        floating(
            dtype,
            "the parameters of a GPT are real numbers of 16 bits or more, such as torch.float32",
        )
        like: dict[str, Any] = dict(dtype=dtype, device=device)
        self.context = whole(context, "a context has room for at least 1 token", 1)
        self.tokens = Embedding(vocab, hidden, **like)
        self.positions = None if rotary else Embedding(self.context, hidden, **like)
        self.dropout = Dropout(dropout)
        if experts is not None and layers < 2:
            raise ValueError(f"every second layer has experts, and a GPT of {layers} has none")
        routing = {key: options.pop(key) for key in ROUTING if key in options}
        self.layers = nn.ModuleList(
            TransformerLayer(
                hidden,
                heads,
                dropout,
                rotary=rotary,
                norm=norm,
                eps=eps,
                **options,
                **(dict(experts=experts) | routing if i % 2 or experts is None else {}),
                **like,
            )
            for i in range(layers)
        )
        self.norm = normalization(hidden, norm, eps, **like)
        self.head = None if tied else Linear(hidden, vocab, bias=False, **like)

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T)
        x = self.embed(tokens)  # (B, T, H)
        for layer in self.layers:
            x = layer(x)
        return self.project(x)  # (B, T, V)

    def embed(self, tokens: Tensor) -> Tensor:
        """The input of the first layer: (B, T) to (B, T, H)."""
        T = tokens.shape[-1]
        if self.context < T:
            raise ValueError(f"{T} tokens do not fit into a context of {self.context}")
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(self.places(T, device=tokens.device))
        return self.dropout(x)

    def project(self, x: Tensor) -> Tensor:
        """The logits for the output of the last layer: (B, T, H) to (B, T, V)."""
        return F.linear(self.norm(x), (self.head or self.tokens).weight)


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    context: int,
    *,
    seed: int = 0,
    device: str = "cpu",
    **options,
) -> GPT:
    """A GPT with its initial values: `gpt(layers=2, hidden=64, heads=4, vocab=256, context=32)`.

    It maps token numbers (B, T), T up to `context`, to logits (B, T, V).

    The options are: dropout: a share from 0 to 1. tied: the projection to the vocabulary is the token embedding (True).
    attention: "sdpa" or "explicit". gelu: "tanh" or "none" (exact). kv_heads: the number of heads of keys and values,
    if it is smaller. ffn: features of the MLP, 4H if not given. gated: the MLP is a SwiGLU. rotary: positions rotate
    queries and keys instead of being added to the embedding; theta: how fast. bias: whether linear layers have one.
    norm: "layer" or "rms". eps: of the norms. experts: this many MLPs in every second layer, with the options of a
    Router: top_k, how many experts a token goes to (2); capacity, the factor that limits how many tokens an expert
    takes; balance and z, the weights of its losses. dtype: of the parameters. seed: for the initial values. GPT-3 is
    `gpt(96, 12288, 96, 51200, 2048, device="meta")`.
    Raises ValueError if `heads` does not divide `hidden`, or `kv_heads` does not divide `heads`, for an unknown option,
    and for a value that an option does not take. The model itself raises it for more than `context` tokens.
    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3; with rotary, gated
    and "rms" Touvron et al. 2023, "LLaMA", section 2.2.

    >>> import torch
    >>> from minidist.models import gpt
    >>> model = gpt(layers=2, hidden=64, heads=4, vocab=256, context=32)
    >>> model(torch.zeros(8, 32, dtype=torch.long)).shape
    torch.Size([8, 32, 256])
    >>> large = gpt(24, 1024, 16, 50257, 1024, device="meta")  # shapes alone: no memory, no time
    >>> f"{sum(p.numel() for p in large.parameters()):,}"
    '354,823,168'
    """
    model = GPT(layers, hidden, heads, vocab, context, device="meta", **options)
    return initialized(model, seed, device)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits (B, T, V) against token numbers (B, T), in float32 at least.

    >>> import math
    >>> import torch
    >>> from minidist.models import next_token_loss
    >>> logits, targets = torch.zeros(2, 5, 16), torch.zeros(2, 5, dtype=torch.long)
    >>> math.isclose(next_token_loss(logits, targets), math.log(16), rel_tol=1e-6)  # a mere guess
    True
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.flatten(0, 1).to(exact), targets.flatten())


# ------------------------------------------------------------
# A GPT as a list of its parts, to be cut into stages: embedding, L layers, head.
#
#     parts = sequence(gpt(layers=6, …))       nn.Sequential of 8 parts, the model's own modules and parameters
#     stage = parts[2:5]                       what one stage of a pipeline holds
#
# The head projects with the token embedding where the model is tied, so that parameter is in the first part and in the
# last: whoever cuts between them has two copies, to be kept equal. No part needs another: a stage is made alone, with
# the numbers that the whole model would have had.


class SequenceEmbedding(nn.Module):
    """The first part: token numbers (B, T) to (B, T, H). ValueError for more than `context` tokens.

    >>> import torch
    >>> from minidist.models import SequenceEmbedding, gpt
    >>> model = gpt(layers=1, hidden=16, heads=2, vocab=100, context=8)
    >>> first = SequenceEmbedding(model)
    >>> first(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 16])
    >>> first.tokens is model.tokens
    True
    """

    places: Callable = staticmethod(torch.arange)  # as in `Attention`

    def __init__(self, model: GPT):
        super().__init__()
        self.tokens = model.tokens
        self.positions = model.positions
        self.dropout = model.dropout
        self.context = model.context

    forward = GPT.embed


class Head(nn.Module):
    """The last part: (B, T, H) to logits (B, T, V), with a head of its own or the tokens' embedding.

    >>> import torch
    >>> from minidist.models import Head, gpt
    >>> head = Head(gpt(layers=1, hidden=16, heads=2, vocab=100, context=8))
    >>> head(torch.zeros(1, 3, 16)).shape
    torch.Size([1, 3, 100])
    >>> [name for name, p in head.named_parameters()]  # tied: it projects with the embedding
    ['norm.weight', 'norm.bias', 'tokens.weight']
    """

    def __init__(self, model: GPT):
        super().__init__()
        self.norm = model.norm
        self.head = model.head
        self.tokens = None if model.head else model.tokens

    forward = GPT.project


def sequence(model: GPT) -> nn.Sequential:
    """The parts of `model`, which compute the same, (B, T) to (B, T, V), with its own modules and parameters.

    An nn.Sequential of L + 2 parts, embedding, layers and head, to be cut into stages: `sequence(model)[2:5]`.

    >>> import torch
    >>> from minidist.models import gpt, sequence
    >>> model = gpt(layers=2, hidden=16, heads=2, vocab=100, context=8)
    >>> parts = sequence(model)
    >>> [type(part).__name__ for part in parts]
    ['SequenceEmbedding', 'TransformerLayer', 'TransformerLayer', 'Head']
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> torch.equal(parts[2:](parts[:2](tokens)), model(tokens))
    True
    """
    return nn.Sequential(SequenceEmbedding(model), *model.layers, Head(model))


def names(model: GPT) -> dict[str, str]:
    """{name in `sequence(model)`: name in `model`} of every parameter, the tied one once for each part that has it.

    >>> from minidist.models import gpt, names
    >>> found = names(gpt(layers=2, hidden=16, heads=2, vocab=100, context=8, device="meta"))
    >>> found["0.tokens.weight"], found["3.tokens.weight"]  # tied
    ('tokens.weight', 'tokens.weight')
    >>> found["2.mlp.fc.bias"]
    'layers.1.mlp.fc.bias'
    """
    own = {p: name for name, p in model.named_parameters()}
    return {name: own[p] for name, p in sequence(model).named_parameters(remove_duplicate=False)}


def stage_of(model: GPT, first: int, end: int, seed: int = 0, device: str = "cpu") -> nn.Sequential:
    """Parts `first` to `end` − 1 of a GPT on the meta device, on `device` with their initial values, and no others.

    `stage_of(gpt(…, device="meta"), 2, 5)` has the numbers of `sequence(gpt(…))[2:5]`. The model stays as it is.
    Raises ValueError for parts that there are not.

    >>> from minidist.models import gpt, sequence, stage_of
    >>> sizes = dict(layers=4, hidden=16, heads=2, vocab=100, context=8)
    >>> stage = stage_of(gpt(**sizes, device="meta"), 2, 4)
    >>> whole = sequence(gpt(**sizes))[2:4]
    >>> all(p.equal(q) for p, q in zip(stage.parameters(), whole.parameters(), strict=True))
    True
    """
    parts, known = sequence(model), names(model)
    if not 0 <= first <= end <= len(parts):
        raise ValueError(f"there are no parts {first} to {end} of a model of {len(parts)} parts")
    # a slice of nn.Sequential keeps the numbers of its parts
    part: Any = deepcopy(parts[first:end])
    return materialize_(part, seed, known.__getitem__, device=device)


# ------------------------------------------------------------
# A residual network: convolutions with batch norm, whose activations outweigh its parameters by far.
#
#     image (B, 3, 224, 224) → stem 7×7/2, pool → 4 groups of blocks, each half as high and twice as wide → classes
#     block: x + conv(relu(conv(x))), and for depth 50 and more x + 1×1(relu(3×3(relu(1×1(x)))))
#
# He et al. 2016, "Deep Residual Learning for Image Recognition", Table 1; the stride of a deep block is in its
# 3×3, as torchvision has it. ResNet-50 has 25,557,032 parameters.


BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks in each of the four groups, by depth."""

DEEP = 50
"""From this depth on a block narrows to a quarter and widens again."""


class ConvNorm(nn.Sequential):
    """A convolution without bias, and batch norm.

    >>> import torch
    >>> from minidist.models import ConvNorm
    >>> ConvNorm(3, 16, size=3, stride=2)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 16, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, **like):
        super().__init__(
            Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False, **like),
            BatchNorm2d(outputs, **like),
        )


class Block(nn.Module):
    """A residual block: (B, inputs, h, w) to (B, outputs, h/stride, w/stride).

    deep: three convolutions, of which the middle one has a quarter of the channels; else two.

    >>> import torch
    >>> from minidist.models import Block
    >>> Block(16, 32, stride=2, deep=False)(torch.zeros(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int, deep: bool, **like):
        super().__init__()
        narrow = outputs // 4
        shapes = (
            [(inputs, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, outputs, 1, 1)]
            if deep
            else [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
        )
        self.convs = nn.ModuleList(ConvNorm(*shape, **like) for shape in shapes)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride, **like)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for conv in self.convs[:-1]:
            y = F.relu(conv(y))
        return F.relu(self.convs[-1](y) + self.shortcut(x))


class ResNet(nn.Module):
    """Images (B, channels, h, w) to logits (B, classes). `resnet` builds one with its initial values, and says the
    options. ValueError for a depth that is not in `BLOCKS`.

    >>> import torch
    >>> from minidist.models import ResNet
    >>> model = ResNet(34, classes=10, width=8)
    >>> len(model.blocks), model.fc.in_features
    (16, 64)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int,
        classes: int = 1000,
        channels: int = 3,
        width: int = 64,
        small: bool = False,
        **like,
    ):
        super().__init__()
        if depth not in BLOCKS:
            raise ValueError(
                f"the depth of a ResNet is one of {', '.join(map(str, BLOCKS))}, not {depth}"
            )
        self.small, deep = small, depth >= DEEP
        size, stride = (3, 1) if small else (7, 2)
        self.stem = ConvNorm(channels, width, size, stride, **like)
        blocks, inputs = [], width
        for group, blocks_of_group in enumerate(BLOCKS[depth]):
            outputs = (4 if deep else 1) * width * 2**group
            for i in range(blocks_of_group):
                blocks.append(Block(inputs, outputs, 2 if group and i == 0 else 1, deep, **like))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.fc = Linear(inputs, classes, **like)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x if self.small else F.max_pool2d(x, 3, stride=2, padding=1)
        return self.fc(self.blocks(x).mean((2, 3)))  # (B, classes)


def resnet(depth: int = 50, *, seed: int = 0, device: str = "cpu", **options) -> ResNet:
    """A ResNet-18, -34, -50, -101 or -152 with its initial values: images (B, channels, h, w) to logits (B, classes).

    The options are: classes and channels of the images, 1000 and 3. width: channels of the first group, 64. small: for
    images of a few pixels (3×3 stem, no pooling), as `resnet(18, classes=10, channels=1, width=8, small=True)` for
    digits of 8 × 8. dtype: of the parameters. seed: of the initial values.
    Raises ValueError for another depth, for fewer than 1 class, and for a device that there is not.
    Source: He et al. 2016, "Deep Residual Learning for Image Recognition", table 1.

    >>> import torch
    >>> from minidist.models import resnet
    >>> f"{sum(p.numel() for p in resnet(50, device='meta').parameters()):,}"
    '25,557,032'
    >>> model = resnet(18, classes=10, channels=1, width=8, small=True)
    >>> model(torch.zeros(4, 1, 8, 8)).shape
    torch.Size([4, 10])
    """
    whole(options.get("classes", 1), "a ResNet has at least 1 class", 1)
    model = initialized(ResNet(depth, device="meta", **options), seed, device)
    for module in model.modules():
        if isinstance(module, BatchNorm2d):
            module.reset_parameters()  # its statistics; scale and shift are these values, too
    return model
