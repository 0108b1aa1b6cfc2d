"""Seconds of a step on a grid, part by part, before any run: nothing here is taken from one.

Stage s works f_s + b_s on a micro-batch, messages of tensor parallelism among them; c is a message between stages. Of
1F1B with v chunks a stage, s* the slowest stage:

    M·t_s*                     compute, and tensor parallelism's messages
    Σ t_s / v, s ≠ s*          bubble: the pipeline fills and drains
    2c·(S−1)·(M·v/S + 1)       pipeline: a micro-batch goes down and comes back, S of them are under way. Where
                               messages do not block, 2c·(S−1) and what the slowest stage cannot make up for
    data, optimizer            gradients and parameters of ZeRO's stage; the update

Sources: Narayanan et al. 2021, section 2.2; Korthikanti et al. 2022, section 4 (recomputation, sequence parallel);
Rajbhandari et al. 2020, sections 5 and 7 (ZeRO). The parts add up to the step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from minidist.split import uneven
from minidist.study.memory.grid import Grid, rank_parameters, stage_layers
from minidist.study.memory.states import PRECISIONS
from minidist.study.memory.transformer import Transformer
from minidist.study.plan.kernels import Kernels
from minidist.study.plan.layer import Seconds, embedding, head, layer
from minidist.study.plan.machine import Machine
from minidist.study.plan.network import Network


@dataclass(frozen=True)
class Step:
    """Seconds of a step. recomputation: forwards done again. tensor, pipeline, data: messages that nothing hides."""

    compute: float
    recomputation: float
    bubble: float
    tensor: float
    pipeline: float
    data: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """By name, in order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Stage:
    """Seconds of one stage and micro-batch."""

    compute: float
    again: float
    tensor: float

    @property
    def total(self) -> float:
        return self.compute + self.again + self.tensor


def step(
    model: Transformer, grid: Grid, machine: Machine, kernels: Kernels, network: Network
) -> Step:
    """Seconds of a step of `grid.micro_batches` micro-batches a pipeline. ValueError where the grid does not divide."""
    S = grid.pipeline
    M = grid.micro_batches
    v = grid.interleave
    kinds = _stages(model, grid, machine, kernels, network)
    slowest = max(kinds, key=lambda s: s.total)
    bubble = (sum(s.total * count for s, count in kinds.items()) - slowest.total) / v
    messages = _messages(
        grid, kernels, slowest, bubble * v, _message(model, grid, machine, kernels, network)
    )
    params = max(rank_parameters(model, grid.tensor, S, s) for s in {0, S - 1})
    backward = (slowest.total - slowest.again) * 2 / 3
    return Step(
        M * slowest.compute,
        M * slowest.again,
        bubble,
        M * slowest.tensor,
        messages,
        _data(model, grid, kernels, network, params, backward),
        _optimizer(grid, machine, kernels, params),
    )


def _stages(
    model, grid: Grid, machine: Machine, kernels: Kernels, network: Network
) -> dict[Stage, int]:
    """The different stages, and how many there are of each."""
    b = grid.micro_batch
    t = grid.tensor
    along = grid.along
    one = layer(model, machine, kernels, b, t, along)
    whole = one.forward - kernels.early_stop * one.last
    again = {"none": 0.0, "selective": one.attention, "full": whole}[grid.recompute]
    there, back = _tensor(model, grid, machine, kernels, network)
    ends = {
        0: embedding(model, machine, b, t, along),
        grid.pipeline - 1: head(model, machine, kernels, b, t, along),
    }
    if grid.pipeline == 1:
        ends = {
            0: Seconds(*map(sum, zip(embedding(model, machine, b, t, along), ends[0], strict=True)))
        }
    found: dict[Stage, int] = {}
    for s, layers in enumerate(stage_layers(model.layers, grid.pipeline)):
        end = ends.get(s, Seconds(0.0, 0.0))
        work = layers * (one.forward + one.backward) + end.forward + end.backward
        work += _accumulate(model, grid, machine, s)
        # of the embedding forward, of the projection's input backward
        ones = (s == 0) + (s == grid.pipeline - 1)
        stage = Stage(work, layers * again, layers * (there + back) + ones * there / 2)
        found[stage] = found.get(stage, 0) + 1
    return found


def gradient_bytes(grid: Grid) -> int:
    """Of a parameter's gradient, as it is summed up and sent: in fp32 where there is a flat buffer for it."""
    return 4 if grid.fused else PRECISIONS[grid.precision].gradient


def _accumulate(model, grid: Grid, machine: Machine, stage: int) -> float:
    """Adding a micro-batch's gradients to those of the others: read, read and write. The first has none to add to."""
    params = rank_parameters(model, grid.tensor, grid.pipeline, stage)
    nbytes = params * (PRECISIONS[grid.precision].parameter + 2 * gradient_bytes(grid))
    return (1 - 1 / grid.micro_batches) * machine.passes(nbytes, 12 * model.layers // grid.pipeline)


def _tensor(
    model, grid: Grid, machine: Machine, kernels: Kernels, network: Network
) -> tuple[float, float]:
    """A layer's messages, in forward with what is recomputed, and in backward.

    Two all-reduces forward, two backward; with the sequence split as many all-gathers and reduce-scatters, and one
    all-gather a block more in backward, of what forward did not keep. Full recomputation repeats forward's, but for the
    last where it stops early.
    """
    whole = machine.dtype.itemsize * grid.micro_batch * model.context * model.hidden
    verb = lambda name: network.verb(name, grid.tensor, 1, whole)
    if grid.sequence:
        pair = verb("all_gather") + verb("reduce_scatter")
    else:
        pair = verb("all_reduce")
    return 2 * pair, 2 * pair + (grid.recompute == "full") * (2 - kernels.early_stop) * pair


def _messages(grid: Grid, kernels: Kernels, slowest: Stage, others: float, one: float) -> float:
    """What a step waits for messages between stages. others: seconds of all stages but the slowest.

    Blocking, all of them on a micro-batch's way. Else the first one's, through all chunks, and where S micro-batches
    under way are too few to keep the slowest stage busy; chunks send more, but have more under way.
    """
    S = grid.pipeline
    M = grid.micro_batches
    v = grid.interleave
    if kernels.blocking:
        return 2 * (S - 1) * one * (M * v / S + 1)
    way = 2 * (S * v - 1) * one
    return way + (M - 1) * max(0.0, (others + way - (S - 1) * slowest.total) / S) * (v == 1)


def _message(model, grid: Grid, machine: Machine, kernels: Kernels, network: Network) -> float:
    """Seconds of an activation, or its gradient, between two stages."""
    if grid.pipeline == 1:
        return 0.0
    whole = machine.dtype.itemsize * grid.micro_batch * model.context * model.hidden
    parts = grid.tensor if grid.sequence or kernels.scattered else 1
    gathered = (
        0.0 if grid.sequence or parts == 1 else network.verb("all_gather", grid.tensor, 1, whole)
    )
    return network.send(grid.tensor * grid.data, whole / parts) + gathered


def _data(
    model, grid: Grid, kernels: Kernels, network: Network, params: int, backward: float
) -> float:
    """Gradients to be averaged, and parameters to be handed out, less what the last backward hides."""
    sent, held = gradient_bytes(grid), PRECISIONS[grid.precision].parameter
    verb = lambda name, nbytes: network.verb(name, grid.data, grid.tensor, nbytes)
    times = grid.micro_batches if grid.zero >= 2 else 1
    if grid.zero == 0:
        gradients, handed = verb("all_reduce", params * sent), 0.0
    else:
        reduced = "all_reduce" if kernels.reduced_whole else "reduce_scatter"
        gradients = times * verb(reduced, params * sent)
        handed = verb("all_gather", params * held) * (1 if grid.zero < 3 else 2 * times)
    # with embedding and projection
    blocks = stage_layers(model.layers, grid.pipeline)[0] + 1 + (grid.pipeline == 1)
    hidden = times * backward * (1 - 1 / blocks) * kernels.overlap
    # parameters are gathered a block ahead, in forward, which takes half of backward's time, too
    if grid.zero == 3:
        gradients = gradients + handed
        handed = 0.0
        hidden = 1.5 * hidden
    return max(gradients - hidden, 0.0) + handed + _tied(model, grid, network)


def _tied(model, grid: Grid, network: Network) -> float:
    """The first stage's token embedding and the last one's are one parameter: their gradients are summed."""
    if not model.tied or grid.pipeline == 1:
        return 0.0
    nbytes = uneven(model.vocab, grid.tensor)[0] * model.hidden * gradient_bytes(grid)
    return network.verb("all_reduce", 2, grid.tensor * grid.data * (grid.pipeline - 1), nbytes)


def _optimizer(grid: Grid, machine: Machine, kernels: Kernels, params: int) -> float:
    """Gradients are scaled; every state of the rank's part is read and written, its parameters written."""
    per, part = PRECISIONS[grid.precision], params / (grid.data if grid.zero else 1)
    number = per.master or per.moment
    copies = 2 * (per.gradient + per.parameter + 2 * per.master) if per.master else 0
    return machine.passes(
        kernels.scaling * gradient_bytes(grid) * params + (kernels.adam * number + copies) * part,
        12,
    )
