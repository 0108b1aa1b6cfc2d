"""AdamW over one flat buffer: a step is one or two launches, whatever the number of layers.

Problem: a model has hundreds of parameters, most of them small, and an optimizer that goes through them launches
eight operators for each. Idea: the parameters of a group become views of one buffer, and so do their states. One
operator reads all of them once, and writes them once:

    parameters    │ w1 │b1│ w2   │b2│ w3 │   p.data is a view                          read, written
    states        │ m1 │  │ m2   │  │ m3 │   state[p][name] is a view                  read, written
    gradients     │ g1 │  │ g2   │  │ g3 │   copied at the step, or there already      read

    AdamW on N elements in K parameters     launches                  bytes
    torch.optim, for-loop                   8K                        21N elements
    torch.optim, foreach                    8                         21N
    here                                    1, and 1 for gradients    7N, and 2N

After `zero_grad()` autograd makes each gradient anew, wherever there is memory: the step copies them into a buffer that
nobody else sees, N more of memory. After `zero_grad(set_to_none=False)` they are views of a buffer of zeros, to which
autograd adds, and nothing is copied.

Invariants: a step is that of `AdamW` in `optim`, and so of torch.optim's, also for parameters that have no gradient
now and then (their neighbours are stepped in runs); states are those of torch.optim.AdamW, and each loads the other's
state_dict. fp16 and bf16 are worked on in fp32. Source: Loshchilov and Hutter 2019, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import torch
from torch import Tensor

from ..split import bounds
from .fuse import exact, operator
from .optim import AdamW, adam_update, corrections, moments_

STATES = ("exp_avg", "exp_avg_sq")


@operator("adamw_", mutates=("p", "m", "v"))
def adamw_(
    p: Tensor,
    m: Tensor,
    v: Tensor,
    g: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    full1: float,
    full2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """A step of N elements, in place.

    p, m, v, g: (N,) each: parameters, the averages of g and of g², gradients.  full1, full2: 1 − β₁ᵗ and 1 − β₂ᵗ, how
    full the averages are after t steps.
    """
    wide_p, wide_m, wide_v = (exact(x) for x in (p, m, v))
    moments_(wide_m, wide_v, exact(g), (beta1, beta2))
    update = adam_update(wide_p, wide_m, wide_v, (full1, full2), eps, weight_decay)
    p.copy_(wide_p.sub_(update, alpha=lr))
    m.copy_(wide_m)
    v.copy_(wide_v)


class FlatGroup:
    """Parameters of one dtype on one device as views of one buffer, and their states as views of others.

    data: (N,).  states: (N,) for each of STATES.  grads: (N,), where gradients lie after
    `zero_grad(set_to_none=False)`, or None.  copies: (N,), where a step brings together those that lie elsewhere, or
    None before the first one.

    >>> import torch
    >>> from minidist.train.flat_optim import FlatGroup
    >>> params = [torch.ones(2, 2), torch.zeros(3)]
    >>> group = FlatGroup(params, state={})
    >>> group.data.fill_(7.0).shape, params[1].tolist()
    (torch.Size([7]), [7.0, 7.0, 7.0])
    """

    def __init__(self, params: list[Tensor], state: dict[Tensor, dict]):
        self.params = params
        self.places = [slice(*ends) for ends in bounds([p.numel() for p in params])]
        self.data = torch.cat([p.detach().reshape(-1) for p in params])
        self.states = {name: torch.zeros_like(self.data) for name in STATES}
        self.grads: Tensor | None = None
        self.copies: Tensor | None = None
        for p, view in zip(params, self.views(self.data), strict=True):
            p.data = view
        for name, flat in self.states.items():
            for p, view in zip(params, self.views(flat), strict=True):
                if name in state.get(p, {}):
                    state[p][name] = view.copy_(state[p][name])

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parts of a flat tensor that belong to the parameters, in their shapes."""
        return [
            flat[place].view(p.shape) for p, place in zip(self.params, self.places, strict=True)
        ]

    def zero_gradients_(self) -> None:
        """Make the gradients views of one buffer of zeros; who has none keeps none."""
        self.grads = torch.zeros_like(self.data) if self.grads is None else self.grads.zero_()
        for p, view in zip(self.params, self.views(self.grads), strict=True):
            if p.grad is not None:
                p.grad = view

    def gradients_of(self, run: slice, place: slice) -> Tensor:
        """The gradients of a run of neighbours, flat: where they lie, or a copy, which is one launch."""
        grads = [p.grad for p in self.params[run] if p.grad is not None]
        if self.grads is not None and all(_within(self.grads, grad) for grad in grads):
            return self.grads[place]
        if self.copies is None:  # and kept: on a CPU new memory costs more than the copy
            self.copies = torch.empty_like(self.data)
        return torch.cat([grad.reshape(-1) for grad in grads], out=self.copies[place])


def _within(flat: Tensor, x: Tensor) -> bool:
    """Whether x lies in the memory of `flat`."""
    return x.untyped_storage()._cdata == flat.untyped_storage()._cdata


class FlatAdamW(AdamW):
    """`torch.optim.AdamW`, with its arguments and states: 1 launch a group, 7N elements.

    A parameter's `step` is a number here and a tensor there; each loads the other's. Raises ValueError for
    negative values, and for betas outside 0 … 1.

    >>> import torch
    >>> from minidist.models import mlp
    >>> from minidist.train.flat_optim import FlatAdamW
    >>> model = mlp([4, 8, 2])
    >>> optimizer = FlatAdamW(model.parameters(), lr=1e-3)
    >>> model(torch.ones(3, 4)).sum().backward()
    >>> optimizer.step()
    >>> storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    >>> len(list(model.parameters())), len(storages)  # 4 tensors, views of one buffer
    (4, 1)
    """

    def __init__(self, params: Iterable, *args, **options):
        super().__init__(params, *args, **options)
        self._buffers: dict[int, list[FlatGroup]] = {}

    def __setstate__(self, state: dict) -> None:
        """Copied or loaded states lie elsewhere: the next step makes new buffers."""
        super().__setstate__(state)
        self._buffers = {}

    def _buffers_of(self, i: int) -> list[FlatGroup]:
        """Those of the i-th group, one for each dtype and device; made anew if a parameter was given other memory."""
        buffers = self._buffers.get(i, [])
        intact = [all(_within(buffer.data, p) for p in buffer.params) for buffer in buffers]
        if not intact or not all(intact):
            kinds: dict[tuple, list[Tensor]] = {}
            for p in self.param_groups[i]["params"]:
                kinds.setdefault((p.dtype, p.device), []).append(p)
            buffers = [FlatGroup(params, self.state) for params in kinds.values()]
            self._buffers[i] = buffers
        return buffers

    @torch.no_grad()
    def step(self, closure=None):
        """One step of every parameter that has a gradient, a dense one. Returns the closure's loss."""
        loss = self.evaluate(closure)
        for i, group in enumerate(self.param_groups):
            for buffer in self._buffers_of(i):
                end = 0
                for steps, neighbours in groupby(map(self._steps_of, buffer.params)):
                    run = slice(end, end + len(list(neighbours)))
                    end = run.stop
                    if steps is not None:
                        self._step_run(group, buffer, run, steps + 1)
        return loss

    def _steps_of(self, p: Tensor) -> int | None:
        """How many steps p has made, or None if it has no gradient."""
        return None if p.grad is None else int(self.state.get(p, {}).get("step", 0))

    def _step_run(self, group: dict, buffer: FlatGroup, run: slice, steps: int) -> None:
        """Step a run of neighbours that have a gradient, each for the `steps`-th time."""
        for p in buffer.params[run]:
            self.state[p]["step"] = steps
        if steps == 1:
            for name, flat in buffer.states.items():
                for p, view in zip(buffer.params[run], buffer.views(flat)[run], strict=True):
                    self.state[p][name] = view
        places = buffer.places[run]
        place = slice(places[0].start, places[-1].stop)
        adamw_(
            buffer.data[place],
            *(flat[place] for flat in buffer.states.values()),
            buffer.gradients_of(run, place),
            float(group["lr"]),
            *group["betas"],
            *corrections(group["betas"], steps),
            group["eps"],
            group["weight_decay"],
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. set_to_none=False: the gradients lie in one buffer of zeros, one launch, and stay there."""
        if set_to_none:
            super().zero_grad()
        for i in range(len(self.param_groups)):
            for buffer in self._buffers_of(i):
                if set_to_none:
                    buffer.grads = None
                else:
                    buffer.zero_gradients_()
