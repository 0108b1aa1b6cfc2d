"""A GPT that knows no parallelism, made ready for a mesh of ranks: each technique in turn, always in this order.

    mesh = Mesh(comm, dp=2, pp=2, tp=2)
    engine = parallelize(gpt(…, device="meta"), mesh, lambda params: AdamW(params, lr=1e-3), micro_batches=4, zero=1)
    for x, y in batches:                           # this data rank's part of each
        loss = engine.step(x, y, max_norm=1.0)

First what is split within a layer, then between layers; what the forward of what is left keeps, and in which precision;
last, who of several holders keeps it. What is split is arranged on the device "meta", and only what a rank holds gets
values. In the style of torchtitan's `parallelize_llama`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .arguments import choice, flags, function, instance, whole
from .checkpoint.checkpoint import load, pieces
from .checkpoint.reshard import Piece, Saved
from .collectives import all_reduce_, broadcast_
from .comm.base import Comm
from .comm.mesh import Mesh
from .decide import decide
from .models import (
    GPT,
    Attention,
    Experts,
    Head,
    SequenceEmbedding,
    TransformerLayer,
    materialize_,
    names,
    sequence,
)
from .parallel.compress import Compression
from .parallel.context import (
    WAYS,
    all_tokens,
    check_chunks,
    context_parallel_,
    order_of,
    own_tokens,
)
from .parallel.data import DataParallel
from .parallel.experts import (
    ExpertDataParallel,
    ExpertShardedOptimizer,
    repeated,
    share_experts_,
)
from .parallel.pipeline import Pipeline, by_parameters, forward, micro_batches, partition, shares
from .parallel.reducer import share
from .parallel.schedules import (
    Action,
    Schedule,
    Shape,
    gpipe,
    interleaved,
    lists,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zb_v,
)
from .parallel.tensor import gather_from, seed_group_, split_
from .parallel.vocab import TensorEmbedding, TensorHead, VocabEmbedding, vocab_cross_entropy
from .parallel.zero import FullySharded, ShardedOptimizer
from .split import uneven
from .train.amp import HALVES, LEVELS, LossScaler, Masters, autocast
from .train.fp8 import GRAINS, eight_bits_
from .train.norm import clip_grad_norm_
from .train.optim import bias_or_norm
from .train.remat import checkpoint
from .train.selective import ATTENTION, selective

# ------------------------------------------------------------
# The steps of `parallelize` that are more than one call: what is asked for, what is kept, and who averages.
#
#     refuse        what does not go together, said before anything is built
#     arranged      a schedule, and the pipeline that it is for
#     stage_chunks  the parts of the model that this stage holds; serial_name: what its parameters are called in the model
#     forms         how a layer's activations are kept: all, without attention's scores, the layer's input alone
#     narrow_       which products are in 8 bits
#     Sharing       who has other tokens, who holds the same, over whom ZeRO divides
#     averaged      who averages the gradients, and the optimizer
#
# Parameters are in two groups, the same two on every mesh, so that an optimizer's state fits wherever it is loaded.


RECOMPUTE = ("none", "selective", "full", "stage")
SCHEDULES = {"1f1b": one_f_one_b} | {
    schedule.__name__: schedule
    for schedule in (naive, gpipe, one_f_one_b, interleaved, zb_h1, zb_h2, zb_v)
}
TOKENS = "tokens.weight"
Rename = Callable[[str], str]
Make = Callable[[list[dict]], Optimizer]


def known(model, optimizer, cost, sequence_parallel: bool, seed: int) -> None:
    """ValueError for arguments of another kind than `parallelize` takes."""
    instance(model, GPT, "parallelize splits a GPT, made by gpt(…)")
    function(
        optimizer,
        "optimizer is a function that makes one of groups of parameters, such as "
        "lambda groups: AdamW(groups, lr=1e-3)",
    )
    function(cost, "cost is a function that gives a number for each part of a model")
    flags(sequence_parallel=sequence_parallel)
    whole(seed, "a seed is a whole number")


def arranged(schedule: str | Schedule, S: int, M: int, chunks: int) -> tuple[Schedule, Shape]:
    """The function, where a word was given, and its pipeline. ValueError for another number of chunks than it has.

    >>> from minidist.parallelize import arranged
    >>> schedule, shape = arranged("gpipe", S=2, M=2, chunks=1)
    >>> [action.kind for action in schedule(0, 2, 2)]
    ['F', 'F', 'B', 'B']
    >>> arranged("interleaved", S=2, M=2, chunks=1)
    Traceback (most recent call last):
    ValueError: schedule='interleaved' wants at least 2 chunks on each stage, and chunks=1: ...
    """
    shape = Shape(S, M, chunks).checked()
    if not callable(schedule):
        schedule = SCHEDULES[choice(schedule, "schedule", SCHEDULES)]
    if schedule is interleaved:
        if chunks < 2:
            raise ValueError(
                "schedule='interleaved' wants at least 2 chunks on each stage, and chunks=1: "
                "take chunks=2, or schedule='1f1b'"
            )
        schedule = partial(interleaved, v=chunks)
    name = getattr(getattr(schedule, "func", schedule), "__name__", "of yours")
    has = 1 + max((action.chunk for action in schedule(0, S, M)), default=0)
    if has != chunks:
        words = f"{has} chunk{'s' if has > 1 else ''} on each stage"
        raise ValueError(
            f"the schedule {name} has {words}, and chunks={chunks}: take chunks={has}, or another schedule"
        )
    return schedule, shape._replace(place="V") if name == "zb_v" else shape


def checked_maker(optimizer: Make) -> Make:
    """`optimizer`, with a ValueError where it makes none."""

    def make(groups: list[dict]) -> Optimizer:
        result = optimizer(groups)
        if not isinstance(result, Optimizer):
            raise ValueError(
                f"optimizer made {type(result).__name__} of the groups of parameters, not an optimizer"
            )
        return result

    return make


def refuse(
    model: GPT,
    shape: Shape,
    recompute: str,
    amp: str,
    half: torch.dtype,
    zero: int,
    compression,
    dp: int = 1,
    replicas: int = 1,
) -> None:
    """ValueError for an option that there is not, and for two that contradict each other.

    >>> from minidist import World
    >>> from minidist.comm.mesh import Mesh
    >>> from minidist.models import gpt
    >>> from minidist.parallelize import parallelize
    >>> from minidist.train import AdamW
    >>> def program(comm):
    ...     model = gpt(2, 16, 2, vocab=32, context=8, device="meta")
    ...     return parallelize(model, Mesh(comm, dp=2), AdamW, recompute="selective")
    >>> World(2).run(program)
    Traceback (most recent call last):
    ValueError: recompute='selective' computes the scores of attention='explicit' again; ...
    """
    if whole(zero, "ZeRO has the stages 0 to 3") not in range(4):
        raise ValueError(f"ZeRO has the stages 0 to 3, not {zero}")
    if whole(replicas, "of ZeRO's shards there is at least 1 replica", 1) > 1 and not zero:
        raise ValueError(
            f"replicas={replicas} are of ZeRO's shards (hybrid sharding), and ZeRO 0 has none: take zero=1, 2 or 3"
        )
    if dp % replicas:
        raise ValueError(f"{replicas} replicas of the shards do not divide {dp} data ranks")
    choice(recompute, "recompute", RECOMPUTE)
    choice(amp, "amp", LEVELS)
    if half not in HALVES:
        raise ValueError(f"half is one of {', '.join(map(str, HALVES))}, not {half!r}")
    if compression is not None and not isinstance(compression, Compression):
        raise ValueError(
            f"compression is a Compression, such as parallel.compress.PowerSGD(2), not {compression!r}"
        )
    wide = {p.dtype for p in model.parameters()}
    if amp != "O0" and wide != {torch.float32}:
        raise ValueError(
            f"amp={amp!r} starts from parameters in float32; this model has {sorted(map(str, wide))}"
        )
    kinds = {part.kind for part in model.modules() if isinstance(part, Attention)}
    if recompute == "selective" and kinds != {"explicit"}:
        raise ValueError(
            "recompute='selective' computes the scores of attention='explicit' again; this model's is "
            "'sdpa', which keeps none"
        )
    tied, S = model.head is None, shape.S
    if compression is not None and zero:
        raise ValueError(
            f"a compression averages whole gradients, as ZeRO 0 has them, not ZeRO {zero}"
        )
    if compression is not None and tied and S > 1:
        raise ValueError(
            f"the token embedding is on 2 of {S} stages: each would compress its gradient by itself, and "
            "the copies would part; take pp=1, or tied=False"
        )
    if zero == 3 and tied and shape.v > 1 and shape.stage(0) == shape.stage(S * shape.v - 1):
        raise ValueError(
            f"stage 0 holds the tied embedding in 2 of its {shape.v} chunks, and ZeRO 3 shards each chunk "
            "by itself: take chunks=1, or tied=False"
        )


def refuse_context(model: GPT, cp: int, way: str, recompute: str) -> None:
    """ValueError for a way of context parallelism that there is not, and for what does not go with `cp` ranks of it."""
    choice(way, "context_parallel", WAYS)
    if cp > 1 and model.dropout.p:
        raise ValueError(
            f"context parallelism drops no weights of attention: take dropout=0, not {model.dropout.p} with cp={cp}"
        )
    if cp > 1 and recompute == "selective":
        raise ValueError(
            f"recompute='selective' computes attention's scores again, and with cp={cp} they are never kept: "
            "take recompute='full', or 'none'"
        )


def stage_chunks(
    parts: Sequence[nn.Module], cuts: Sequence[tuple[int, int]], shape: Shape, stage: int
) -> nn.ModuleList:
    """The chunks of a stage, each a Sequential that keeps the numbers of its parts; cuts: as from `partition`.

    >>> from minidist.models import gpt, sequence
    >>> from minidist.parallel.schedules import Shape
    >>> from minidist.parallelize import stage_chunks
    >>> parts = sequence(gpt(4, 16, 2, vocab=32, context=8, device="meta"))
    >>> cuts = [(0, 2), (2, 3), (3, 4), (4, 6)]  # of 6 parts, for 2 stages with 2 chunks each
    >>> [list(chunk._modules) for chunk in stage_chunks(parts, cuts, Shape(2, 4, 2), stage=1)]
    [['2'], ['4', '5']]
    """
    parts = nn.Sequential(*parts)
    return nn.ModuleList(parts[slice(*cuts[shape.part(stage, chunk)])] for chunk in range(shape.v))


def split_parts_(chunks: nn.ModuleList, model: GPT, comm: Comm, split_tokens: bool) -> None:
    """In place of each part of `model` in the chunks one that is split over the tensor ranks, still without values.

    Modules are copied, for the model stays as it is; parameters are not.
    """
    copies: dict[int, Any] = {id(p): p for p in model.parameters()}
    for chunk in chunks:
        for name, part in chunk.named_children():
            copy: Any = split_(deepcopy(part, copies), comm, split_tokens)
            if isinstance(part, SequenceEmbedding):
                copy = TensorEmbedding(copy, comm, split_tokens)
            elif isinstance(part, Head):
                copy = TensorHead(copy, comm, split_tokens)
            setattr(chunk, name, copy)


def serial_name(name: str, in_model: Mapping[str, str]) -> str:
    """What a parameter of a stage's chunks is called in the GPT: "0.2.norm_1.bias" is "layers.1.norm_1.bias".

    in_model: {name in `sequence(model)`: name in the model}. The chunk may be wrapped in a FullySharded.

    >>> from minidist.models import gpt, names
    >>> from minidist.parallelize import serial_name
    >>> serial_name("0.2.norm_1.bias", names(gpt(2, 16, 2, 32, 8, device="meta")))
    'layers.1.norm_1.bias'
    """
    _, part = name.replace(".module.", ".", 1).split(".", 1)
    return in_model[part]


class Sharing(NamedTuple):
    """Who shares what with this rank. Others have other tokens; of them those on ep have other experts, too.

    tokens     all that have other tokens, of other samples or, on cp, of the same ones    dp × ep × cp
    data       those of them that hold the same parameters                                 dp × cp
    shards     those over which ZeRO divides states, and replicas, which have the same part: data, and none,
               but for hybrid sharding; with ep experts' states over data, all others over tokens
    norm       hold the model once, so that their gradients make a norm

    data 0 1 2 3 with 2 replicas      shards 0 1 │ 2 3, neighbours in a node      replicas 0 2 │ 1 3, between nodes

    >>> from minidist import World
    >>> from minidist.comm.mesh import Mesh
    >>> from minidist.parallelize import Sharing
    >>> def program(comm):
    ...     sharing = Sharing.of(Mesh(comm, dp=4), zero=1, replicas=2)
    ...     return sharing.data.size, sharing.shards.size, sharing.replicas.size
    >>> World(4).run(program)[0]
    (4, 2, 2)
    """

    tokens: Comm
    data: Comm
    shards: Comm
    replicas: Comm | None
    norm: Comm

    @classmethod
    def of(cls, mesh: Mesh, zero: int, replicas: int) -> Sharing:
        """On a mesh, at this stage of ZeRO; on all ranks, no message."""
        data = along(mesh, "dp", "cp")
        apart = along(mesh, "dp", "ep", "cp"), data
        if replicas == 1:
            return cls(*apart, data, None, mesh.comm if zero else along(mesh, "pp", "ep", "tp"))
        n = data.size // replicas
        # of each rank of the mesh, its place among those that hold the same
        groups = mesh.grid.colors(*(axis for axis in ("dp", "cp") if axis in mesh.grid.sizes))
        places = [groups[:rank].count(group) for rank, group in enumerate(groups)]
        return cls(
            *apart,
            data.split([d // n for d in range(data.size)]),
            data.split([d % n for d in range(data.size)]),
            mesh.comm.split([place // n for place in places]),
        )


def along(mesh: Mesh, *axes: str) -> Comm:
    """This rank and those along the axes, of these, that the mesh has.

    >>> from minidist import World
    >>> from minidist.comm.mesh import Mesh
    >>> from minidist.parallelize import along
    >>> def program(comm):
    ...     mesh = Mesh(comm, dp=2, tp=2)
    ...     return along(mesh, "dp", "cp").size, along(mesh, "dp", "tp").size  # this mesh has no cp
    >>> World(4).run(program)[0]
    (2, 4)
    """
    return mesh.group(*(axis for axis in axes if axis in mesh.grid.sizes))


def batch_ranks(mesh: Mesh) -> Comm:
    """The ranks among which a batch is divided: along dp, and along ep where the mesh has it.

    >>> from minidist import World
    >>> from minidist.comm.mesh import Mesh
    >>> from minidist.parallelize import batch_ranks
    >>> def program(comm):
    ...     return batch_ranks(Mesh(comm, dp=2, tp=2)).rank
    >>> list(World(4).run(program))  # who shares a model has the same samples
    [0, 0, 1, 1]
    """
    return along(mesh, "dp", "ep")


def forms(module: nn.Module, recompute: str) -> None:
    """Each layer of `module` keeps for backward what `recompute` leaves it; see `RECOMPUTE`.

    >>> from minidist.models import gpt
    >>> from minidist.parallelize import forms
    >>> model = gpt(2, 16, 2, vocab=32, context=8)
    >>> forms(model, "full")
    >>> [layer.forward.func.__name__ for layer in model.layers]
    ['checkpoint', 'checkpoint']
    """
    form = {"full": checkpoint, "selective": selective(ATTENTION)}.get(recompute)
    if form is None:
        return
    for layer in module.modules():
        if isinstance(layer, TransformerLayer):
            layer.forward = partial(form, layer.forward)  # type: ignore[method-assign]  # its own


def narrow_(module: nn.Module, grain: str, tokens: Comm) -> None:
    """The products of each layer of `module` in 8 bits, those of embedding and head as they were.

    >>> from minidist import World
    >>> from minidist.models import gpt
    >>> from minidist.parallelize import narrow_
    >>> def program(comm):
    ...     model = gpt(1, 16, 2, vocab=32, context=8)
    ...     narrow_(model, "tensor", tokens=comm)
    ...     return [name for name, part in model.named_modules() if "product" in vars(part)]
    >>> World(2).run(program)[0]
    ['layers.0.attention.qkv', 'layers.0.attention.proj', 'layers.0.mlp.fc', 'layers.0.mlp.proj']
    """
    for layer in module.modules():
        if isinstance(layer, TransformerLayer):
            eight_bits_(layer, grain, tokens)


def parameter_groups(
    module: nn.Module, rename: Rename, shapes: Mapping[str, torch.Size]
) -> list[dict]:
    """Two groups of parameters, with weight decay and without; either may be empty on a stage. shapes: of the whole.
    rename: from names in `module` to those of the whole.

    >>> from minidist.models import gpt
    >>> from minidist.parallelize import parameter_groups
    >>> model = gpt(1, 16, 2, vocab=32, context=8)
    >>> shapes = {name: p.shape for name, p in model.named_parameters()}
    >>> [len(group["params"]) for group in parameter_groups(model, str, shapes)]
    [6, 10]
    """
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, p in module.named_parameters():
        serial = rename(name)
        groups[bias_or_norm(serial, shapes[serial])]["params"].append(p)
    return groups


def averaged(
    module: nn.ModuleList,
    groups: list[dict],
    tied: Mapping[str, Tensor],
    sharing: Sharing,
    zero: int,
    masters: bool,
    make: Make,
    compression,
) -> tuple[Optimizer, Any]:
    """The optimizer, and who averages gradients: a DataParallel (with ep two), the optimizer, or `module` itself."""
    experts_apart = sharing.tokens.size > sharing.data.size
    if zero in (1, 2):
        wide, first = torch.float32 if masters else None, list(tied.values())
        optimizer: Any
        if experts_apart:
            optimizer = ExpertShardedOptimizer(
                module, groups, make, sharing.tokens, sharing.data, zero, wide, first
            )
        else:
            optimizer = ShardedOptimizer(
                groups, make, sharing.shards, zero, wide, tied=first, replicas=sharing.replicas
            )
        return optimizer, optimizer
    data: Any = module
    if experts_apart:
        data = ExpertDataParallel(module, sharing.tokens, sharing.data)
    elif zero == 0:
        data = DataParallel(module, sharing.data, compression=compression)
    return Masters(groups, make) if masters and zero == 0 else make(groups), data


def seed_(mesh, seed: int) -> None:
    """Random numbers: the same on all tensor ranks, others for each stage and each part of the batch.

    Ranks of one context have the same: with more than one nothing is dropped, so none are drawn.
    """
    part = batch_ranks(mesh).rank
    seed_group_(mesh.tp, ((seed * 1_000_003 + mesh.pp.rank) * 1_000_003 + part) % 2**63)


def check_experts(
    model: GPT,
    ep: int,
    cp: int,
    zero: int,
    sequence_parallel: bool,
    compression,
    fp8: str | None = None,
    replicas: int = 1,
) -> None:
    """ValueError for what experts do not go with. ep: ranks that share them out; cp: that share a sample's tokens."""
    layers = [part for part in model.modules() if isinstance(part, Experts)]
    if ep > 1 and not layers:
        raise ValueError(f"ep={ep} shares out experts, and this model has none")
    if layers and (sequence_parallel or cp > 1):
        raise ValueError(
            "sequence_parallel and context ranks divide the tokens of a sample, and a router counts whole "
            f"samples: with experts take sequence_parallel=False and cp=1, not {sequence_parallel} and {cp}"
        )
    if layers and fp8 is not None:
        raise ValueError(
            f"fp8={fp8!r} agrees on scales among ranks with other tokens, and each expert has other ones: "
            "with experts take fp8=None"
        )
    if ep > 1 and (zero == 3 or replicas > 1 or compression is not None):
        raise ValueError(
            f"ep={ep} averages experts and the rest apart, over other ranks each: take zero=0, 1 or 2, replicas=1 "
            f"and no compression, not zero={zero}, replicas={replicas}, compression={compression!r}; or ep=1"
        )


# ------------------------------------------------------------
# What trains a model that lies on a mesh: one step of it, whatever splits it.
#
# Gradients are averaged over the data ranks, by ZeRO's stage:
#
#     0 1    once a step, and Ψ are kept. At stage 0 while the last backward runs, if a rank has one chunk and whole
#            backwards; else after it
#     2 3    while the backward of each micro-batch runs: M times a step, but Ψ/n are kept. With v chunks v·M times at
#            stage 2, where an optimizer averages all that it steps
#
# Those of a parameter that two stages hold are summed over the two at the end of the step, each part where it is owned:
# by the same data rank of both stages (`ShardedOptimizer`, tied).
#
# Invariant: all ranks return the same loss, norm and logits, and replicas stay equal bit for bit.


class Stages(Pipeline):
    """A pipeline whose parts compute within `around`, a context, and whose loss is scaled by `scaler`.

    quiet(action): a context for a backward.  after(): called when gradients of weights are there that came apart from
    the inputs'.  average(): called when all are there, and before those of a tied parameter are added up over its
    stages: a mean of sums and a sum of means differ in the last bit, and its copies would drift apart.  factor: of all
    losses of this rank.  parts: the share of each micro-batch in the batch, on every stage: what a layer of experts adds
    to the loss counts as the loss does.
    """

    loss_fn: Callable  # on every stage
    factor: float = 1.0
    parts: Sequence[float] = ()

    def __init__(self, *args, scaler: LossScaler, around: AbstractContextManager, **kwargs):
        super().__init__(*args, **kwargs)
        self.scaler, self.around = scaler, around
        self.quiet = lambda action: nullcontext()
        self.after = self.average = lambda: None

    def module(self, action: Action) -> Callable:
        chunk = super().module(action)

        def run(*inputs):
            with self.around:
                return chunk(*inputs)

        return run

    def backward(self, action: Action) -> None:
        with self.quiet(action):
            super().backward(action)

    def _back(self, action: Action, half: Callable) -> None:
        for part in self.chunks[action.chunk].modules():
            if isinstance(part, Experts):
                part.loss_scale = self.parts[action.micro] * self.scale
        super()._back(action, half)

    def weight(self, action: Action) -> None:
        with self.quiet(action):
            super().weight(action)
        self.after()

    def finish(self) -> None:
        self.average()
        super().finish()

    @property
    def scale(self) -> float:
        """What a loss is multiplied by, beside its share of the batch."""
        return self.scaler.get_scale() * self.factor

    def share(self, micro: int) -> float:
        return super().share(micro) * self.scale

    def actions(self, M: int) -> tuple[list[Action], bool]:
        """This stage's list, and whether backwards come in two halves, on any stage."""
        every = lists(self.schedule, self.comm.size, M)
        return every[self.stage], any(
            action.kind in "IW" for actions in every for action in actions
        )


class Engine:
    """Trains a model that `parallelize` has spread. All ranks call the same methods, with their data rank's part of the
    batch.

        loss = engine.step(x, y, max_norm=1.0)          # x, y: (b, T) token numbers, the same on its pp, cp and tp ranks
        loss = engine.evaluate(x, y)                    # the same without a backward
        logits = engine.logits(x)                       # (b, T, V) on every rank

    `step` runs `backward`, `clip` and `update`, and passes further keywords on to the optimizer's step. A loss is the
    mean over all data ranks' samples, one number in float64, the same on all ranks.  weight: the number of samples in
    this data rank's part; give it on all ranks if these numbers differ.

    module: this rank's chunks.  optimizer: has two `param_groups`, for schedulers; the second has no weight decay.
    pieces(), load(saved): for `checkpoint`, on this mesh or another.  scaler, compression: their states are saved along
    with the pieces.  rename(name): the name that a parameter of `module` has in the whole model.  sharing: see
    `Sharing`.
    ValueError for tokens that do not split into as many parts as there are ranks on cp.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm.mesh import Mesh
    >>> from minidist.models import gpt
    >>> from minidist.parallelize import parallelize
    >>> from minidist.train import AdamW
    >>> def program(comm):
    ...     model = gpt(2, 16, 2, vocab=32, context=8, device="meta")
    ...     engine = parallelize(model, Mesh(comm, tp=2), lambda groups: AdamW(groups, lr=0.01))
    ...     x = torch.arange(32).view(4, 8)
    ...     before = engine.evaluate(x, x)
    ...     for _ in range(5):
    ...         engine.step(x, x, max_norm=1.0)
    ...     held = sum(p.numel() for p in engine.module.parameters())
    ...     return bool(engine.evaluate(x, x) < before), engine.logits(x).shape, held
    >>> World(2).run(program)[0]  # each holds about half of 7,232 parameters
    (True, torch.Size([4, 8, 32]), 3792)
    """

    def __init__(
        self,
        module: nn.ModuleList,
        mesh,
        pipeline: Stages,
        optimizer: Optimizer,
        zero: int,
        data,
        vocab: int,
        micro_batches: int,
        rename: Callable[[str], str],
        sharing: Sharing,
        cp: Comm,
        order: str,
    ):
        self.module = module
        self.mesh = mesh
        self.pipeline = pipeline
        self.optimizer = optimizer
        self.zero = zero
        self.vocab = vocab
        self.micro_batches = micro_batches
        self.rename = rename
        self.scaler, self.compression = pipeline.scaler, getattr(data, "compression", None)
        self._data: list[Any] = [data] if zero < 3 else list(module)  # who averages
        # who has other tokens of this rank's samples, and in which order
        self.sharing = sharing
        self._cp = cp
        self._order = order
        self._arrange(data)

    def _arrange(self, data) -> None:
        """Tell the pipeline what averages gradients, and when."""
        pipeline = self.pipeline
        actions, halves = pipeline.actions(self.micro_batches)
        overlaps = self.zero == 0 and not halves and pipeline.shape.v == 1
        if self.zero == 3 and halves:
            raise ValueError(
                "ZeRO 3 frees a layer after 1 backward, and this schedule's come in 2 halves, I and W: "
                "take ZeRO 2, or a schedule of whole backwards"
            )
        if self.zero == 2 and halves:  # a W is many backwards, to be averaged once
            pipeline.after = data.average
        if self.zero < 2 + halves:
            pipeline.quiet = lambda action: (
                nullcontext() if overlaps and action == actions[-1] else data.no_sync()
            )
        if self.zero < 2 and not overlaps:
            pipeline.average = data.average

    def step(
        self,
        x: Tensor,
        y: Tensor,
        max_norm: float | None = None,
        weight: float | None = None,
        **kwargs,
    ) -> Tensor:
        """Train on one batch: `backward`, `clip` if there is a limit, `update(**kwargs)`. Returns the loss before the
        update."""
        loss = self.backward(x, y, weight)
        if max_norm is not None:
            self.clip(max_norm)
        self.update(**kwargs)
        return loss

    def backward(self, x: Tensor, y: Tensor, weight: float | None = None) -> Tensor:
        """Compute the gradients of the mean loss over the batch of all data ranks. Returns that loss."""
        self.pipeline.parts = shares(micro_batches(x, self.micro_batches, "inputs"))
        everyone = self.sharing.tokens
        if everyone.size == self.sharing.data.size:
            for data in self._data:
                data.weight = weight
        else:
            # before backward: an expert's gradient is of all ranks' tokens
            part = torch.as_tensor(share(everyone, weight), dtype=torch.float64)
            self.pipeline.factor = everyone.size * decide(part, on_meta=1 / everyone.size)
        losses = self.pipeline.step(self.micro_batches, self._own(x), self._own(y))
        return self._everywhere(
            torch.stack(losses) if losses else None, self.pipeline.shares, weight
        )

    def _own(self, x: Tensor) -> Tensor:
        """The tokens of this context rank: (b, T) → (b, T/cp). ValueError where ranks would have different numbers."""
        check_chunks(x.shape[1], self._cp.size, self._order)
        return own_tokens(x, self._cp, self._order)

    def _everywhere(
        self, losses: Tensor | None, shares: list[float], weight: float | None
    ) -> Tensor:
        """The mean over micro-batches and data ranks, from the last stage to all."""
        mean = torch.zeros((), dtype=torch.float64, device=self.mesh.comm.device)
        if losses is not None:
            if weight != 0:
                mean = (losses.double() * losses.new_tensor(shares, dtype=torch.float64)).sum()
            everyone = self.sharing.tokens
            all_reduce_(everyone, mean.mul_(share(everyone, weight)))
        return broadcast_(self.mesh.pp, mean, self.pipeline.end)

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their norm over the whole model is at most `max_norm`. Returns the norm before."""
        tp = self.mesh.tp
        elsewhere = {*self.pipeline.ties.repeated}
        if not self.zero and self.sharing.tokens.size > self.sharing.data.size:
            elsewhere.update(repeated(self.module, self.mesh.group("ep")))
        self.scaler.unscale_(self.optimizer)
        if hasattr(self.optimizer, "gradients"):
            # of masters, or averaged, at their owners alone
            self.optimizer.gradients()
        return clip_grad_norm_(self.module, max_norm, self.sharing.norm, tp, elsewhere)

    def update(self, **kwargs) -> None:
        """Run `optimizer.step(**kwargs)`, unless fp16 has overflowed on some rank, and drop the gradients."""
        self.scaler.step(self.optimizer, **kwargs)
        self.scaler.update()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor, weight: float | None = None) -> Tensor:
        """The mean loss of a batch, as `backward` returns it, without dropout and without keeping anything for a
        backward."""
        # as often on all ranks: a forward may send messages, of ZeRO 3, of experts, or of scales in 8 bits
        least = min(self.micro_batches, len(x))
        agreed = all_reduce_(self.sharing.tokens, torch.tensor(least, device=x.device), "min")
        count, losses = int(decide(agreed, on_meta=least)), []
        targets = micro_batches(self._own(y), count, "targets")
        inputs = micro_batches(self._own(x), count, "inputs")
        for (part,), (target,) in zip(inputs, targets, strict=True):
            out = self._forward(part)
            if out is not None:
                losses.append(self.pipeline.loss_fn(out, target))
        return self._everywhere(torch.stack(losses) if losses else None, shares(targets), weight)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """The logits of the whole vocabulary, (b, T, V), in float32 or wider, on every rank; without dropout."""
        out, pp = self._forward(self._own(x)), self.mesh.pp
        if out is not None:
            out = gather_from(out, self.mesh.tp, -1, uneven(self.vocab, self.mesh.tp.size))
            out = all_tokens(out, self._cp, x.shape[1], self._order)
        dtype = torch.promote_types(next(self.module.parameters()).dtype, torch.float32)
        whole = torch.empty(*x.shape, self.vocab, dtype=dtype, device=pp.device)
        return broadcast_(
            pp, whole if out is None else out.to(dtype).contiguous(), self.pipeline.end
        )

    def _forward(self, x: Tensor) -> Tensor | None:
        training = self.module.training
        self.module.eval()
        try:
            return forward(self.pipeline, x)
        finally:
            self.module.train(training)

    def pieces(self) -> list[Piece]:
        """This rank's pieces of the model and its optimizer, under the names that they have in the serial model."""
        return pieces(self.module, self.optimizer, self.rename)

    def load(self, saved: Saved) -> None:
        """Load what was saved on any mesh, at any stage of ZeRO. All ranks call it.

        ValueError if parameters have a different dtype: at amp="O2", they are the masters with ZeRO 3, and the 16-bit
        values otherwise.
        """
        load(saved, self.module, self.optimizer, self.rename)


# ------------------------------------------------------------
# The roof: every technique in its turn.


def parallelize(
    model: GPT,
    mesh: Mesh,
    optimizer: Callable[[list[dict]], Optimizer],
    *,
    micro_batches: int = 1,
    schedule="1f1b",
    chunks: int = 1,
    cost=by_parameters,
    sequence_parallel: bool = False,
    recompute: str = "none",
    amp: str = "O0",
    half: torch.dtype = torch.bfloat16,
    fp8: str | None = None,
    zero: int = 0,
    replicas: int = 1,
    compression=None,
    seed: int = 0,
    context_parallel: str = "zigzag",
) -> Engine:
    """Spread `model` over the ranks of `mesh`, ready to train: losses and parameters are the same as on one rank.

    model: a model on the device "meta", which costs nothing: each rank makes the initial values of its part from
    `seed`. Or a model with values, from which each rank takes its part. The model itself stays as it is.  optimizer: a
    function that makes an optimizer from groups of parameters.
    micro_batches: micro-batches of a step, for each data rank.  schedule: a function, as for `Pipeline`, or a name such
    as "1f1b" or "gpipe" (see `SCHEDULES`).  chunks: chunks of each stage, for interleaved and zb_v.
    cost: of the parts, as for `partition`.  sequence_parallel: tp also divides the tokens of a sample.
    recompute: "none", "selective" (attention's scores), "full" (whole layers), "stage" (a stage keeps only its inputs).
    A mesh with the axis ep divides a batch among dp × ep ranks and the model's experts, if it has any, over ep; this
    works with ZeRO stages 0, 1 and 2. On the axis cp, ranks share the tokens of a sample.  context_parallel: how their
    attention sees the other ranks' tokens, see `parallel.context.WAYS`.
    amp, half: a level of `train.amp`, and its 16-bit dtype.  fp8: "tensor", "row" or "block" puts the layers' products
    in 8 bits, with one scale for each of these (`train.fp8`).  zero: ZeRO's stage, over dp and cp.  replicas: for
    hybrid sharding, the number of copies of the shards: ZeRO works over dp·cp/replicas neighbours, such as those of a
    node.  compression: see `parallel.compress`.  seed: for initial values and dropout.  Raises ValueError for options
    that do not go together, see `refuse`.
    Collective: all ranks of the mesh call it, with equal arguments.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm.mesh import Mesh
    >>> from minidist.models import gpt
    >>> from minidist.parallelize import parallelize
    >>> from minidist.train import AdamW
    >>> def program(comm, axes, **how):
    ...     mesh = Mesh(comm, **axes)
    ...     model = gpt(2, 16, 2, vocab=32, context=8, device="meta", dtype=torch.float64)
    ...     engine = parallelize(model, mesh, lambda groups: AdamW(groups, lr=0.01), **how)
    ...     x = torch.arange(32).view(4, 8).chunk(mesh.dp.size)[mesh.dp.rank]  # of 4 samples
    ...     return [engine.step(x, x).item() for _ in range(2)]
    >>> alone = World(1).run(program, {"dp": 1})[0]
    >>> spread = World(8).run(program, {"dp": 2, "pp": 2, "tp": 2}, micro_batches=2, zero=1)[0]
    >>> torch.tensor(spread).allclose(torch.tensor(alone))
    True
    """
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"parallelize takes a Mesh, such as Mesh(comm, dp=2), not {type(mesh).__name__}"
        )
    known(model, optimizer, cost, sequence_parallel, seed)
    if fp8 is not None:
        choice(fp8, "fp8", GRAINS)
    schedule, shape = arranged(schedule, mesh.pp.size, micro_batches, chunks)
    cp, ep = along(mesh, "cp"), along(mesh, "ep")
    sharded = mesh.dp.size * cp.size
    refuse(model, shape, recompute, amp, half, zero, compression, sharded, replicas)
    check_experts(model, ep.size, cp.size, zero, sequence_parallel, compression, fp8, replicas)
    refuse_context(model, cp.size, context_parallel, recompute)
    whole, vocab = dict(model.named_parameters()), model.tokens.num_embeddings
    rename = partial(serial_name, in_model=names(model))
    # of the serial model, so the same on all ranks
    parts = sequence(model)
    cuts = partition(cost(parts), shape.S * shape.v)
    # 1 tensor, 2 vocabulary, experts, context, 3 pipeline: what this rank holds is split, and gets its values; no other
    # part does
    module = stage_chunks([*parts], cuts, shape, mesh.pp.rank)
    split_parts_(module, model, mesh.tp, sequence_parallel)
    if ep.size > 1:
        share_experts_(module, ep)
    order = "contiguous"
    if cp.size > 1:
        order = order_of(context_parallel)
        context_parallel_(module, cp, context_parallel)
    level = LEVELS[amp]
    # ZeRO 3 keeps the masters of 16-bit parameters in its shards
    dtype = half if level.half and not (zero == 3 and level.masters) else None
    materialize_(module, seed, rename, whole, mesh.tp.rank, dtype, mesh.comm.device)
    shapes = {name: p.shape for name, p in whole.items()}
    tied_ends = model.head is None
    # where the caller keeps no model it is gone before ranks wait for each other: a World has one for each of them
    del model, parts, whole
    # 4 activation checkpointing, 5 precision: all ranks of the model skip a step together
    forms(module, recompute)
    around = autocast(half) if level.lists else nullcontext()
    scaler = LossScaler(enabled=level.scaled and half == torch.float16, comm=mesh.comm)
    # 6 ZeRO or data parallel, 7 compression
    sharing = Sharing.of(mesh, zero, replicas)
    if fp8 is not None:
        narrow_(module, fp8, sharing.tokens)
    if zero == 3:
        # a tied embedding is a block, so it is cut alike on both its stages
        blocks, compute = (TransformerLayer, VocabEmbedding), half if level.masters else None
        module = nn.ModuleList(
            FullySharded(chunk, sharing.shards, compute, blocks=blocks, replicas=sharing.replicas)
            for chunk in module
        )
    tied = {}
    if tied_ends and mesh.pp.size > 1:
        held = {rename(name): p for name, p in module.named_parameters()}
        tied = {name: p for name, p in held.items() if name == TOKENS}
    groups, make = parameter_groups(module, rename, shapes), checked_maker(optimizer)
    stepper, data = averaged(module, groups, tied, sharing, zero, level.masters, make, compression)
    seed_(mesh, seed)
    pipeline = Stages(
        list(module),
        mesh.pp,
        schedule,
        partial(vocab_cross_entropy, comm=mesh.tp, vocab=vocab),
        recompute == "stage",
        tied,
        shape.place,
        scaler=scaler,
        around=around,
    )
    return Engine(
        module,
        mesh,
        pipeline,
        stepper,
        zero,
        data,
        vocab,
        micro_batches,
        rename,
        sharing,
        cp,
        order,
    )
