"""An optimizer over one flat buffer: a torch.optim.Optimizer whose step is one or two launches, whatever the layers.

Problem: a model has hundreds of parameters, most of them small, and an optimizer that goes through them launches
eight operators for each. Idea: the parameters of a group become views of one buffer, so do their states; gradients are
copied into one (1 launch, 2N), or lie there already, and one operator of `steps` does all.

    AdamW on N elements in K parameters     launches                  bytes
    torch.optim, for-loop                   8K                        21N elements
    torch.optim, foreach                    8                         21N
    here                                    1, and 1 for gradients    7N, and 2N

After `zero_grad()` autograd's gradients are copied into their buffer, on a CPU as they come (`slots`). After
`zero_grad(set_to_none=False)`, one launch, they are there, and autograd adds to them, one launch a parameter.
Invariants: step by step what torch.optim does, with parameters that have no gradient now and then, too (their
neighbours are stepped in runs); states and state_dict are those of torch.optim's class, each loads the other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor

from .slots import Slots


class Flat:
    """Parameters of one dtype on one device, one after the other in `data`, (N,); `states` likewise, by name."""

    def __init__(self, params: list[Tensor]):
        self.params = params
        self.ends = [0, *accumulate(p.numel() for p in params)]
        self.data = torch.cat([p.detach().reshape(-1) for p in params])
        self.states: dict[str, Tensor] = {}
        self.slots = Slots(params)
        for p, view in zip(params, self.views(self.data), strict=True):
            p.data = view

    def views(self, flat: Tensor) -> list[Tensor]:
        """Those of a flat tensor, in the shapes of the parameters."""
        return [
            flat[first:end].view(p.shape)
            for p, (first, end) in zip(self.params, pairwise(self.ends), strict=True)
        ]

    def holds(self) -> bool:
        """Whether all parameters still are views of `data`: nobody has given one another memory."""
        key = self.data.untyped_storage()._cdata
        return all(p.untyped_storage()._cdata == key for p in self.params)

    def adopt_(self, state: dict, name: str) -> None:
        """Make `state[p][name]` a view of a flat buffer, for the parameters that have one; the others' part is 0."""
        flat = self.states[name] = torch.zeros_like(self.data)
        for p, view in zip(self.params, self.views(flat), strict=True):
            if state.get(p, {}).get(name) is not None:
                state[p][name] = view.copy_(state[p][name])

    def runs(self, kinds: list) -> Iterator[tuple]:
        """(kind, slice of the buffers, parameters) of neighbours that have the same kind; those of None are left."""
        for kind, run in groupby(range(len(kinds)), kinds.__getitem__):
            run = list(run)
            if kind is not None:
                yield (
                    kind,
                    slice(self.ends[run[0]], self.ends[run[-1] + 1]),
                    [self.params[i] for i in run],
                )


class FlatOptimizer(torch.optim.Optimizer):
    """What FlatSGD and FlatAdamW share: buffers, gathering, runs.

    A subclass says which `names` of states it keeps, and in `_step_run` how to step a run of parameters.
    Raises ValueError for sparse gradients, and for options of torch.optim's class that a loaded state asks for.
    """

    names: tuple[str, ...] = ()

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        # of each group, by its place; built when first wanted, or lost
        self._flats: dict[int, list[Flat]] = {}

    def __init__(self, params, defaults: dict):
        self._flats = {}
        super().__init__(params, defaults)
        for place in range(len(self.param_groups)):
            self.flats(place)

    def flats(self, place: int) -> list[Flat]:
        """The buffers of a group, in order of first appearance; built anew if parameters have got other memory."""
        params = self.param_groups[place]["params"]
        found = self._flats.get(place)
        if (
            found is None
            or sum(len(f.params) for f in found) != len(params)
            or not all(f.holds() for f in found)
        ):
            kinds: dict[tuple, list] = {}
            for p in params:
                kinds.setdefault((p.dtype, p.device), []).append(p)
            found = self._flats[place] = [Flat(of_kind) for of_kind in kinds.values()]
        for flat in found:
            flat.slots.watch()
            for name in self._names(self.param_groups[place]):
                if name not in flat.states:
                    flat.adopt_(self.state, name)
        return found

    @torch.no_grad()
    def step(self, closure=None):
        """One step; `closure` computes the loss again, and it is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for place, group in enumerate(self.param_groups):
            for flat in self.flats(place):
                if any(p.grad is not None and p.grad.is_sparse for p in flat.params):
                    raise ValueError("a flat buffer holds dense gradients: one of these is sparse")
                flat.slots.gather_()
                kinds = [
                    None if p.grad is None else self._kind(self.state.get(p, {}))
                    for p in flat.params
                ]
                for kind, part, params in flat.runs(kinds):
                    self._enter(flat, params, group)
                    states = [flat.states[name][part] for name in self._names(group)]
                    self._step_run(
                        group, kind, flat.data[part], states, flat.slots.buffer[part], params
                    )
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. set_to_none=False zeroes the buffers, a launch each, and gradients stay in them.

        On a CPU the buffers' memory is kept for the next backward, unless somebody holds a gradient that lies there.
        """
        flats = [flat for place in range(len(self.param_groups)) for flat in self.flats(place)]
        for flat in flats:
            if set_to_none:
                flat.slots.drop()
            else:
                flat.slots.gather_()
                flat.slots.buffer.zero_()

    def _names(self, group: dict) -> tuple[str, ...]:
        return self.names

    def _enter(self, flat: Flat, params: list[Tensor], group: dict) -> None:
        """Give parameters that are stepped for the first time their states, as views."""
        for name in self._names(group):
            fresh = [p for p in params if name not in self.state[p]]
            if fresh:
                views = dict(zip(map(id, flat.params), flat.views(flat.states[name]), strict=True))
                for p in fresh:
                    self.state[p][name] = views[id(p)]
