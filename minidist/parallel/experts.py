"""Expert parallelism: each of n ranks holds E/n of a layer's experts, and tokens travel to theirs and back.

With more experts a GPT grows without more work for a token, but every data rank would hold all of them. Here the ranks
of the axis `ep`, which have samples of their own as data ranks do, share them out:

    rank   its tokens go to        dispatch: all-to-all     experts           combine: all-to-all
    0      a→0  b→3  c→0           a c │ d                  0 1 of a c d      a b c, each with its gate
    1      d→1  e→2  f→3           b   │ e f                2 3 of b e f      d e f

    x ─ router ─ sort by expert ─ all-to-all ─ MLPs ─ all-to-all ─ back in order ─ Σ gates ─ y

The all-to-alls are uneven: how many rows go where depends on the tokens, so ranks first tell each other, E numbers
each. The slowest rank is the one whose experts are asked for most, and all wait for it: that is what the balance loss
and the capacity are for (`models.Router`).

Cost in bytes sent by a rank whose tokens make R rows of H numbers of s bytes, balanced: Rs·H·(n−1)/n for each of four
all-to-alls, dispatch and combine, forward and backward, and 8·(E − E/n) to announce them. The naive way gathers all rows
everywhere: n times as much. `study.predict.expert_layer_bytes` has the formula for any counts.

Gradients. An expert's rows come from all n ranks, so backward gives it the *sum* of their losses' gradients; everything
else has its own rank's gradient. For the mean over ranks, an expert's gradient is therefore divided by n and averaged
over the data ranks that hold the same expert, and everything else is averaged over data and expert ranks together
(`ExpertDataParallel`; with ZeRO 1 and 2 `ExpertShardedOptimizer`, which divides the states among the same ranks). Ranks
with different numbers of samples must weight their losses before backward: afterwards an expert's gradient can no
longer be taken apart.

Invariant: outputs and gradients are those of the serial layer, except for the order of sums within an expert's
gradient.
Sources: Lepikhin et al. 2020, "GShard", sections 2.2 and 3; Fedus et al. 2021, "Switch Transformers", section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..collectives import all_gather, all_to_all
from ..comm.base import Comm
from ..decide import decide_all
from ..models import Experts, Router, materialize_
from ..split import bounds, join, uneven
from .data import DataParallel
from .tensor import conjugate, gather_sequence, reduce_scatter_sequence
from .zero import ShardedOptimizer, by_number, copy_options, numbered, options

# ------------------------------------------------------------
# Rows that travel. An all-to-all is a permutation of all ranks' rows, so its transpose is the one that sends them back.


def sent(xs: list[Tensor], comm: Comm, to: list[int], come: list[int]) -> list[Tensor]:
    """Send to[r] rows of each tensor to rank r, and receive come[r] rows from it."""
    return [all_to_all(comm, x, to, come) for x in xs]


def sent_back(xs: list[Tensor], comm: Comm, to: list[int], come: list[int]) -> list[Tensor]:
    """Send what `sent` has sent back to where it came from."""
    return [all_to_all(comm, x, come, to) for x in xs]


def exchange(rows: Tensor, comm: Comm, to: list[int], come: list[int]) -> Tensor:
    """Send to[r] rows to rank r, get come[r] from it: (Σ to, H) → (Σ come, H), by rank. Backward sends gradients back."""
    return conjugate(rows, sent, sent_back, comm, to, come)


# ------------------------------------------------------------
# The layer, of which a rank holds some experts: made of the serial one, still on "meta". Router and the rest of the model are
# whole on every rank.


class ExpertParallel(Experts):
    """An Experts layer whose experts are shared out over the ranks of `comm`, as evenly as can be, in their order.

    (B, T, H) → (B, T, H): of this rank's samples, whose number may differ from rank to rank. Every rank must call it,
    and its backward. Raises ValueError for fewer experts than ranks.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import gpt
    >>> from minidist.parallel import expert_parallel_
    >>> def program(comm):
    ...     model = gpt(2, 8, 2, vocab=16, context=4, experts=3, device="meta")
    ...     layer = expert_parallel_(model, comm).layers[1].mlp
    ...     return layer.sizes, tuple(layer(torch.ones(1 + comm.rank, 4, 8)).shape)
    >>> World(2).run(program)  # three experts on two ranks; samples of their own
    [([2, 1], (1, 4, 8)), ([2, 1], (2, 4, 8))]
    """

    def __init__(self, router: Router, experts: Mapping[str, nn.Module], comm: Comm):
        number = router.out_features
        if number < comm.size:
            raise ValueError(f"{number} experts do not split over {comm.size} ranks: one has none")
        self.sizes = uneven(number, comm.size)
        first, end = bounds(self.sizes)[comm.rank]
        super().__init__(router, {str(e): experts[str(e)] for e in range(first, end)})
        self.comm = comm

    def compute(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Dispatch, the experts of this rank, combine."""
        table = self.announced(rows, counts)
        to = [sum(counts[first:end]) for first, end in bounds(self.sizes)]
        come = [sum(row) for row in table]
        received = exchange(rows, self.comm, to, come)
        # from each rank, for each expert: an expert's rows are put together, and taken apart again
        pieces = received.split([count for row in table for count in row])
        own = len(self.experts)
        results: list[Tensor] = [rows] * len(pieces)
        for i, expert in enumerate(self.experts.values()):
            result = expert(torch.cat(pieces[i::own]))
            results[i::own] = result.split([row[i] for row in table])
        return exchange(torch.cat(results), self.comm, come, to)

    def announced(self, rows: Tensor, counts: list[int]) -> list[list[int]]:
        """How many rows come from each rank for each expert here: (n, own). An all-to-all of E numbers."""
        first, end = bounds(self.sizes)[self.comm.rank]
        own, n = end - first, self.comm.size
        numbers = torch.tensor(counts, device=rows.device)
        come = all_to_all(self.comm, numbers, self.sizes, [own] * n)
        flat = decide_all(come, on_meta=counts[first:end] * n)
        return [flat[r * own : (r + 1) * own] for r in range(n)]


class GatheredExperts(ExpertParallel):
    """The naive way: every rank gathers all ranks' rows, computes those of its experts, and all results are summed.

    A ring sends (n−1)/n·N of the N bytes of all rows for each gather and each sum: n times what goes to its experts alone.
    """

    def compute(self, rows: Tensor, counts: list[int]) -> Tensor:
        n, number = self.comm.size, len(counts)
        gathered = all_gather(self.comm, torch.tensor(counts, device=rows.device))
        flat = decide_all(gathered, on_meta=counts * n)
        totals = [sum(flat[r * number : (r + 1) * number]) for r in range(n)]
        pieces = gather_sequence(rows, self.comm, 0, totals).split(flat)  # by rank, by expert
        results = [torch.zeros_like(piece) for piece in pieces]
        for name, expert in self.experts.items():
            mine = slice(int(name), None, number)
            result = expert(torch.cat(pieces[mine]))
            results[mine] = result.split(flat[mine])
        return reduce_scatter_sequence(torch.cat(results), self.comm, 0, totals)


def share_experts_(
    module: nn.Module, comm: Comm, layer: type[ExpertParallel] = ExpertParallel
) -> nn.Module:
    """Replace each Experts layer by one whose experts are shared out over `comm`, still without values.

    Returns `module`, or what takes its place where it is such a layer itself.
    """
    if isinstance(module, ExpertParallel):
        raise ValueError("the experts of this layer are shared out already")
    if isinstance(module, Experts):
        return layer(module.router, dict(module.experts.items()), comm)
    for name, part in list(module.named_children()):
        setattr(module, name, share_experts_(part, comm, layer))
    return module


def expert_parallel_(
    module: nn.Module,
    comm: Comm,
    seed: int = 0,
    name: str = "",
    layer: type[ExpertParallel] = ExpertParallel,
) -> nn.Module:
    """Share out the experts of a GPT, a TransformerLayer or a module of them over the ranks of `comm`, in place.

        model = expert_parallel_(gpt(…, experts=8, device="meta"), comm)

    module: on the device "meta", and each rank makes the initial values of what it holds; or with values, of which each
    rank takes over its own. Names are the serial module's: `layers.1.mlp.experts.5.fc.weight` is on the rank that has
    expert 5.
    seed, name: of the initial values.  layer: ExpertParallel, or GatheredExperts. Returns `module`, or what takes its
    place where it is a layer of experts itself.
    Raises ValueError for a module without experts, and for fewer experts than ranks.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.models import gpt
    >>> from minidist.parallel import expert_parallel_
    >>> def program(comm):
    ...     model = gpt(2, 8, 2, vocab=16, context=4, experts=4, device="meta")
    ...     model = expert_parallel_(model, comm)
    ...     logits = model(torch.tensor([[1, 2, 3, 4]]) + comm.rank)  # each rank has its own sample
    ...     names = [name for name, _ in model.named_parameters() if name.endswith("fc.weight")]
    ...     return [name for name in names if "experts" in name], tuple(logits.shape)
    >>> for names, shape in World(2).run(program):
    ...     print(names, shape)
    ['layers.1.mlp.experts.0.fc.weight', 'layers.1.mlp.experts.1.fc.weight'] (1, 4, 16)
    ['layers.1.mlp.experts.2.fc.weight', 'layers.1.mlp.experts.3.fc.weight'] (1, 4, 16)
    """
    if not any(isinstance(part, Experts) for part in module.modules()):
        raise ValueError(
            f"a {type(module).__name__} has no experts to share out over {comm.size} ranks"
        )
    whole = {join(name, key): p for key, p in module.named_parameters()}
    module = share_experts_(module, comm, layer)
    return materialize_(module, seed, partial(join, name), whole, device=comm.device)


def expert_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """{name: parameter} of those experts of `module` that are shared out: other ranks hold others."""
    found = {}
    for prefix, layer in module.named_modules():
        if isinstance(layer, ExpertParallel):
            for name, p in layer.experts.named_parameters():
                found[join(prefix, "experts", name)] = p
    return found


def repeated(module: nn.Module, comm: Comm) -> list[nn.Parameter]:
    """The parameters that an earlier rank of `comm` counts in a norm: on rank 0 none, elsewhere all but experts."""
    own = set(expert_parameters(module).values())
    return [p for p in module.parameters() if comm.rank and p not in own]


# ------------------------------------------------------------
# Who averages what. With data d and expert e, ranks 0 … 3 as (d, e):
#
#     rank 0 (0, 0)    experts 0 1        experts are averaged over        0 2 │ 1 3        the data ranks
#     rank 1 (0, 1)    experts 2 3        all else over                    0 1 2 3
#     rank 2 (1, 0)    experts 0 1
#     rank 3 (1, 1)    experts 2 3        bytes of a step:  2(d−1)/d·N_experts/e + 2(de−1)/(de)·N_rest


class _Part(nn.Module):
    """Some parameters of a module, in its order."""

    def __init__(self, named: Mapping[str, nn.Parameter]):
        super().__init__()
        for name, p in named.items():
            self.register_parameter(name.replace(".", "/"), p)


class _Parts:
    """What averages experts and the rest of a module separately, each by a part of its own."""

    parts: list[Any]

    def average(self) -> None:
        """Do what the end of a backward does, for a rank whose backward reaches no parameter."""
        for part in self.parts:
            part.average()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it backwards add to gradients, and nothing is averaged."""
        with ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.no_sync())
            yield


def mean_of_(experts: Iterable[nn.Parameter], everyone: Comm, data: Comm) -> None:
    """From now on the average over `data` of these experts' gradients is that of the mean loss of `everyone`."""
    for p in experts:
        p.register_hook(partial(torch.mul, other=data.size / everyone.size))


class ExpertDataParallel(_Parts):
    """Averages the gradients of `module` while a backward runs, as DataParallel does, experts and the rest separately.

    everyone: all ranks that have samples of their own, data and expert ranks.  data: those of them that hold the same
    experts. Afterwards each gradient is that of the mean of all ranks' losses. Ranks whose numbers of samples differ
    multiply their loss by n·samples/(all samples) before backward.  options, and errors: of DataParallel.
    The module is called as before, since this is no wrapper; `no_sync` and `average` are those of DataParallel.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import Mesh
    >>> from minidist.models import gpt
    >>> from minidist.parallel import ExpertDataParallel, expert_parallel_
    >>> def program(comm):
    ...     mesh = Mesh(comm, dp=2, ep=2)
    ...     model = expert_parallel_(gpt(2, 8, 2, 16, 4, experts=4, device="meta"), mesh.ep)
    ...     ExpertDataParallel(model, mesh.group("dp", "ep"), mesh.dp)
    ...     model(torch.tensor([[1, 2, 3, 4]]) + comm.rank).square().sum().backward()
    ...     expert = next(iter(model.layers[1].mlp.experts.values()))
    ...     return model.tokens.weight.grad, expert.fc.weight.grad
    >>> (a, e0), (b, e1), (c, e2), (d, e3) = World(4).run(program)
    >>> torch.equal(a, b), torch.equal(a, c), torch.equal(a, d)  # over all ranks
    (True, True, True)
    >>> torch.equal(e0, e2), torch.equal(e1, e3), torch.equal(e0, e1)  # over those with this expert
    (True, True, False)
    """

    def __init__(self, module: nn.Module, everyone: Comm, data: Comm, **options):
        experts = expert_parameters(module)
        rest = {name: p for name, p in module.named_parameters() if name not in experts}
        self.parts = [DataParallel(_Part(rest), everyone, **options)]
        if experts:
            self.parts.append(DataParallel(_Part(experts), data, **options))
        mean_of_(experts.values(), everyone, data)


class ExpertShardedOptimizer(_Parts, Optimizer):
    """ZeRO 1 or 2 where experts are shared out: two ShardedOptimizers, which look like one.

        optimizer = ExpertShardedOptimizer(module, module.parameters(), AdamW, everyone, data, stage=2)

    The states of a rank's experts are divided among `data`, the ranks that hold them as well, and all other states
    among `everyone`; each average is taken over the same ranks: see ExpertDataParallel. Groups and states have the
    numbers that `params` have.

    params: of `module`, or groups of them.  optimizer_class, stage, master_dtype: of ShardedOptimizer.  tied: of those
    that are not experts. A learning rate is changed in `param_groups`, on all ranks.  Errors: of ShardedOptimizer.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.comm import Mesh
    >>> from minidist.models import gpt
    >>> from minidist.parallel import ExpertShardedOptimizer, expert_parallel_
    >>> def program(comm):
    ...     mesh = Mesh(comm, dp=2, ep=2)
    ...     model = expert_parallel_(gpt(2, 8, 2, 16, 4, experts=4, device="meta"), mesh.ep)
    ...     params, everyone = list(model.parameters()), mesh.group("dp", "ep")
    ...     optimizer = ExpertShardedOptimizer(model, params, torch.optim.AdamW, everyone, mesh.dp)
    ...     model(torch.tensor([[1, 2, 3, 4]]) + comm.rank).square().sum().backward()
    ...     optimizer.step()
    ...     experts = [p for name, p in model.named_parameters() if "experts" in name]
    ...     return sum(map(optimizer.steps, experts)), len(experts)
    >>> World(4).run(program)  # each rank steps half of its experts' parameters
    [(4, 8), (4, 8), (4, 8), (4, 8)]
    """

    def __init__(
        self,
        module: nn.Module,
        params: Iterable,
        optimizer_class: Callable[..., Optimizer],
        everyone: Comm,
        data: Comm,
        stage: int = 1,
        master_dtype: torch.dtype | None = None,
        tied: Collection[Tensor] = (),
    ):
        super().__init__(params, {})
        experts = set(expert_parameters(module).values())
        rest = {p for group in self.param_groups for p in group["params"]} - experts
        self.parts = []
        for own, comm in ((rest, everyone), (experts, data)):
            groups = [
                options(group) | {"params": [p for p in group["params"] if p in own]}
                for group in self.param_groups
            ]
            if any(group["params"] for group in groups):
                self.parts.append(
                    ShardedOptimizer(groups, optimizer_class, comm, stage, master_dtype, tied=tied)
                )
        mean_of_(experts, everyone, data)
        copy_options(self.parts[0].param_groups, self.param_groups)

    def gradients(self) -> list[Tensor]:
        """This rank's averaged gradients as `step()` will use them. All ranks call it."""
        return [grad for part in self.parts for grad in part.gradients()]

    def step(self, **kwargs) -> None:  # type: ignore[override]  # without a closure
        """Average what is not averaged, step what this rank owns, and give it to the others."""
        for part in self.parts:
            copy_options(self.param_groups, part.param_groups)
            part.step(**kwargs)
        copy_options(self.parts[0].param_groups, self.param_groups)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or make those that are there zeros."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def steps(self, p: Tensor) -> bool:
        """Whether a parameter is this rank's to step, or nobody's yet."""
        return all(part.steps(p) for part in self.parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parameters that this rank holds; all ranks call it."""
        return self._joined([part.state_dict() for part in self.parts])

    def own_state_dict(self) -> dict[str, Any]:
        """The part of it that this rank owns, without messages: what a checkpoint saves."""
        states = [part.own_state_dict() for part in self.parts]
        return self._joined(states) | {"owner": states[0]["owner"]}

    def _joined(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        joined: dict[str, Any] = {}
        for part, state in zip(self.parts, states, strict=True):
            numbers = self._numbers(part)
            for key in state.keys() - {"param_groups", "owner"}:
                entries = joined.setdefault(key, {})
                for i, x in by_number(state[key]).items():
                    entries[numbers[i] if isinstance(i, int) else i] = x
        return joined | {"param_groups": numbered(self.param_groups)}

    def _numbers(self, part: ShardedOptimizer) -> list[int]:
        """The number that each of the part's parameters has here."""
        params = [p for group in self.param_groups for p in group["params"]]
        index = {p: i for i, p in enumerate(params)}
        return [index[p] for p in part.names()]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state_dict, of which a rank reads what it owns; on all ranks. ValueError for other groups."""
        for part in self.parts:
            places = {number: i for i, number in enumerate(self._numbers(part))}
            own: dict[str, Any] = {}
            for key in state_dict.keys() - {"param_groups", "owner"}:
                entries = by_number(state_dict[key]).items()
                own[key] = {
                    places.get(i, i): x for i, x in entries if i in places or not isinstance(i, int)
                }
            own["param_groups"] = [
                options(group) | {"params": [places[i] for i in group["params"] if i in places]}
                for group in state_dict["param_groups"]
            ]
            if part is self.parts[0] and "owner" in state_dict:
                own["owner"] = state_dict["owner"]
            part.load_state_dict(own)
        copy_options(self.parts[0].param_groups, self.param_groups)
