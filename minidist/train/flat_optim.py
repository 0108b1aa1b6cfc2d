"""SGD and AdamW over one flat buffer: a step is one or two launches, whatever the number of layers.

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

Invariants: a step is that of `SGD` and `AdamW` in `optim`, and so of torch.optim, also for parameters that have no
gradient now and then (their neighbours are stepped in runs); states are those of torch.optim's classes, and each
loads the other's state_dict. fp16 and bf16 are worked on in fp32. Source: Loshchilov and Hutter 2019, algorithm 2.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from ..split import bounds
from .fuse import exact, operator
from .optim import (
    adam_update,
    corrections,
    fractions,
    moments_,
    nesterov_has,
    not_negative,
    refuse,
    with_momentum,
)

# ------------------------------------------------------------
# The steps: each is one operator over flat tensors of N elements.


@operator("sgd_", mutates=("p", "velocity"))
def sgd_(
    p: Tensor,
    velocity: Tensor | None,
    g: Tensor,
    lr: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: float,
    first: bool,
) -> None:
    """velocity: None without momentum. first: nothing is in it yet."""
    wide = exact(p)
    d = exact(g).add(wide, alpha=weight_decay)
    if velocity is not None:
        before = None if first else exact(velocity)
        v, d = with_momentum(d, before, momentum, dampening, nesterov)
        velocity.copy_(v)
    p.copy_(wide.sub_(d, alpha=lr))


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
    """m, v: the averages of g and of g², whose corrections are full1 and full2."""
    wide = [exact(x) for x in (p, m, v)]
    moments_(*wide[1:], exact(g), (beta1, beta2))
    wide[0].sub_(adam_update(*wide, (full1, full2), eps, weight_decay), alpha=lr)
    for x, result in zip((p, m, v), wide, strict=True):
        x.copy_(result)


# ------------------------------------------------------------
# The buffers.


class FlatGroup:
    """Parameters of one dtype on one device as views of one buffer, and their states as views of others.

    data: (N,).  states: name → (N,).  grads: (N,), where gradients lie after `zero_grad(set_to_none=False)`, or None.
    copies: (N,), where a step brings together those that lie elsewhere, or None before the first one.
    """

    def __init__(self, params: list[Tensor], state: dict[Tensor, dict], names: tuple[str, ...]):
        self.params = params
        self.places = [slice(*ends) for ends in bounds([p.numel() for p in params])]
        self.data = torch.cat([p.detach().reshape(-1) for p in params])
        self.states = {name: torch.zeros_like(self.data) for name in names}
        self.grads: Tensor | None = None
        self.copies: Tensor | None = None
        for p, view in zip(params, self.views(self.data), strict=True):
            p.data = view
        for name, flat in self.states.items():
            for p, view in zip(params, self.views(flat), strict=True):
                if state.get(p, {}).get(name) is not None:
                    state[p][name] = view.copy_(state[p][name])

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parts of a flat tensor that belong to the parameters, in their shapes."""
        return [
            flat[place].view(p.shape) for p, place in zip(self.params, self.places, strict=True)
        ]

    def intact(self, names: tuple[str, ...]) -> bool:
        """Whether the states have these names, and nobody has given a parameter other memory."""
        return tuple(self.states) == names and all(_within(self.data, p) for p in self.params)

    def zero_gradients_(self) -> None:
        """Make the gradients views of one buffer of zeros; who has none keeps none."""
        if self.grads is None:
            self.grads = torch.zeros_like(self.data)
        else:
            self.grads.zero_()
        for p, view in zip(self.params, self.views(self.grads), strict=True):
            if p.grad is not None:
                p.grad = view

    def place_of(self, run: slice) -> slice:
        """Where a run of neighbouring parameters lies in the buffers."""
        places = self.places[run]
        return slice(places[0].start, places[-1].stop)

    def gradients_of(self, run: slice) -> Tensor:
        """The gradients of a run of neighbours, flat: where they lie, or a copy, which is one launch."""
        grads = [p.grad for p in self.params[run]]
        place = self.place_of(run)
        if self.grads is not None and all(_within(self.grads, grad) for grad in grads):
            return self.grads[place]
        if self.copies is None:  # and kept: on a CPU new memory costs more than the copy
            self.copies = torch.empty_like(self.data)
        return torch.cat([grad.reshape(-1) for grad in grads], out=self.copies[place])


def _within(flat: Tensor, x: Tensor) -> bool:
    """Whether x lies in the memory of `flat`."""
    return x.untyped_storage()._cdata == flat.untyped_storage()._cdata


# ------------------------------------------------------------
# The optimizers.


class FlatOptimizer(torch.optim.Optimizer):
    """What FlatSGD and FlatAdamW share: buffers, and runs. A subclass names its states, and steps a run."""

    def __init__(self, params, defaults: dict):
        self._buffers: dict[int, list[FlatGroup]] = {}
        super().__init__(params, defaults)

    def __setstate__(self, state: dict) -> None:
        """Copied or loaded states lie elsewhere: the next step makes new buffers."""
        super().__setstate__(state)
        self._buffers = {}

    def _buffers_of(self, i: int) -> list[FlatGroup]:
        """Those of the i-th group, one for each dtype and device; made anew if they are no longer what they were."""
        group = self.param_groups[i]
        names = self._names(group)
        found = self._buffers.get(i, [])
        if not found or not all(buffer.intact(names) for buffer in found):
            kinds: dict[tuple, list[Tensor]] = {}
            for p in group["params"]:
                kinds.setdefault((p.dtype, p.device), []).append(p)
            found = [FlatGroup(params, self.state, names) for params in kinds.values()]
            self._buffers[i] = found
        return found

    @torch.no_grad()
    def step(self, closure=None):
        """One step of every parameter that has a gradient, a dense one. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for i, group in enumerate(self.param_groups):
            refuse(group, "over a flat buffer")
            for buffer in self._buffers_of(i):
                self._step_runs(group, buffer)
        return loss

    def _step_runs(self, group: dict, buffer: FlatGroup) -> None:
        """Step each run of neighbours that have a gradient, and have made as many steps."""
        end = 0
        for steps, neighbours in groupby(map(self._steps_of, buffer.params)):
            run = slice(end, end + len(list(neighbours)))
            end = run.stop
            if steps is None:
                continue
            params = buffer.params[run]
            if steps == 0:
                for name, flat in buffer.states.items():
                    for p, view in zip(params, buffer.views(flat)[run], strict=True):
                        self.state[p][name] = view
            place = buffer.place_of(run)
            states = [flat[place] for flat in buffer.states.values()]
            grads = buffer.gradients_of(run)
            self._step_run(group, params, steps, buffer.data[place], states, grads)

    def _names(self, group: dict) -> tuple[str, ...]:
        """The names of the states of a group."""
        raise NotImplementedError

    def _step_run(
        self,
        group: dict,
        params: list[Tensor],
        steps: int,
        data: Tensor,
        states: list[Tensor],
        grads: Tensor,
    ) -> None:
        """Step parameters, whose flat data these are, for the (steps + 1)-th time."""
        raise NotImplementedError

    def _steps_of(self, p: Tensor) -> int | None:
        """How many steps p has made (with momentum 1 for any number), or None if it has no gradient."""
        state = self.state.get(p, {})
        return None if p.grad is None else int(state.get("step", len(state) > 0))

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


class FlatSGD(FlatOptimizer):
    """`torch.optim.SGD`, with its arguments and states: 1 launch a group, 3N elements, 5N with momentum.

    Raises ValueError for negative values, and for Nesterov without momentum or with dampening.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov:
            nesterov_has(momentum, dampening)
        super().__init__(
            params,
            dict(
                lr=lr,
                momentum=momentum,
                dampening=dampening,
                weight_decay=weight_decay,
                nesterov=nesterov,
            ),
        )

    def _names(self, group: dict) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _step_run(self, group, params, steps, data, states, grads) -> None:
        sgd_(
            data,
            states[0] if states else None,
            grads,
            float(group["lr"]),
            group["momentum"],
            group["dampening"],
            group["nesterov"],
            group["weight_decay"],
            steps == 0,
        )


class FlatAdamW(FlatOptimizer):
    """`torch.optim.AdamW`, with its arguments and states: 1 launch a group, 7N elements.

    A parameter's `step` is a number here and a tensor there; each loads the other's. Raises ValueError for
    negative values, and for betas outside 0 … 1.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        not_negative(lr=lr, eps=eps, weight_decay=weight_decay)
        fractions(betas)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def _names(self, group: dict) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _step_run(self, group, params, steps, data, states, grads) -> None:
        for p in params:
            self.state[p]["step"] = steps + 1
        adamw_(
            data,
            *states,
            grads,
            float(group["lr"]),
            *group["betas"],
            *corrections(group["betas"], steps + 1),
            group["eps"],
            group["weight_decay"],
        )
