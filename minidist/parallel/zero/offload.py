"""Offload: the optimizer's states lie in the memory of the host, and its step runs on the host's cores.

A GPU's memory is small, a host's is large: of Adam's 16Ψ bytes in mixed precision only parameters and gradients, 4Ψ,
stay on the device. In a step the gradients go down (2Ψ bytes), the host updates its fp32 copies, and the new
parameters come up (2Ψ). In mode "exact" the device waits; "delayed", it computes on, one update behind:

    device  F0 B0 │g0↓│ F1 B1 │↑θ1 g1↓│ F2 B2 │↑θ2 g2↓│      θk: after k updates. The first and the second
    host          │ update 0  │       │ update 1  │          forward use θ0, the third θ1, and so on

Sources: Ren et al. 2021, "ZeRO-Offload", sections 3, 4 and 5.2; Rajbhandari et al. 2021, "ZeRO-Infinity", 5.2.
Cost of a step with D seconds down and U up, an update of H and C of computing: C + D + H + U, delayed
max(C, H) + D + U (`offload_cost`). Invariants: exact is the plain optimizer, bit for bit; delayed, gradient k is taken
at θ(k−1) and makes θ(k+1) from θk; between two steps no parameter changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ...comm.base import Comm
from ..claims import Claim
from .offload_host import Hosted
from .state import options

MODES = ("exact", "delayed")
IN_FLIGHT = 2  # gradients on their way down while backward makes another


class OffloadedOptimizer(torch.optim.Optimizer):
    """`optimizer_class(params, **kwargs)`, whose states and whose step are the host's. Each rank has its own.

    params: on `comm.device`: tensors, (name, tensor) pairs or groups, as for any optimizer.
    mode: "exact", or "delayed": from step `warmup` on, `step` k returns while the host still computes; what it gives is
    used from forward k + 2 on, as `step` k + 1 puts it in place. `finish` does so after the last one.
    warmup: how many steps are exact first, as early gradients change fast (the paper: 40).
    master_dtype: of the host's copies of the parameters, such as float32 for float16 ones; None: the parameters' own.
    in_backward: each gradient goes down while backward goes on, and leaves the device: `p.grad` is None after it, so
    nothing may need it there (clipping, loss scaling, DataParallel). Several backwards before a step add up.
    lane: of `comm.stream`, on which the host steps; with `in_backward` the next one, too, for the gradients.

    Parameters that others change in place (a broadcast, load_state_dict) are followed at the next step; call `refresh`
    where that does not show, and `finish` before: what the host still computes would be lost.
    `state` and `param_groups` are those of the plain optimizer, so schedulers work; `state_dict` can be loaded by it,
    and the other way round. To shard as well: ShardedOptimizer(params, partial(OffloadedOptimizer,
    optimizer_class=Adam, comm=comm), comm): each rank's host then steps its shard only, and `finish` is its, too.
    Made again over the same parameters, it replaces the older one. It goes with SyncBatchNorm, with DataParallel (not
    with in_backward), over the parameters() of FullySharded, and inside a LocalSGD (parallel/claims.py).
    Raises ValueError for an unknown mode, warmup < 0, a parameter elsewhere than on the Comm's device, a master_dtype
    without fractions, a sparse gradient.
    """

    def __init__(
        self,
        params: Iterable,
        optimizer_class: Callable,
        comm: Comm,
        mode: str = "exact",
        warmup: int = 40,
        master_dtype: torch.dtype | None = None,
        in_backward: bool = False,
        lane: int = 1,
        **kwargs,
    ):
        if mode not in MODES:
            raise ValueError(f"the modes are {' and '.join(map(repr, MODES))}, not {mode!r}")
        if warmup < 0:
            raise ValueError(f"a warm-up has at least 0 steps, not {warmup}")
        if master_dtype is not None and not master_dtype.is_floating_point:
            raise ValueError(f"the host's copies have a floating dtype, not {master_dtype}")
        super().__init__(params, {})
        for p in self._params():
            if p.device.type != comm.device.type:
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} is on {p.device}, this Comm's device is "
                    f"{comm.device}: move it there first"
                )
        self._claim = Claim(
            self, "OffloadedOptimizer", None, self._unwatch, " with in_backward=True" * in_backward
        )
        self._claim.take(self._params())
        self.comm = comm
        self.mode = mode
        self.warmup = warmup
        self.lane = lane
        self.in_backward = in_backward
        self.steps = 0
        self._update = None
        self._copies = []
        self._watched = {}
        self._versions: dict[Tensor, int] = {}
        self.hosted = Hosted(self.param_groups, optimizer_class, comm.host, master_dtype, **kwargs)
        self._claim.take_masters(self.hosted.masters.values())
        self._seen()
        self.defaults = self.hosted.optimizer.defaults
        self._sent = [{} for _ in self.param_groups]
        self._pull()
        # on every rank, also one that will have no gradient
        comm.on_host().stream(_open, lane=lane).wait()
        if in_backward:
            comm.stream(_open, lane=lane + 1).wait()
        self._watch()

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _watch(self) -> None:
        for p in self._params() if self.in_backward else ():
            if p.requires_grad and p not in self._watched:
                self._watched[p] = p.register_post_accumulate_grad_hook(self._ready)

    def _unwatch(self) -> None:
        """Hear of no gradient any more."""
        for handle in self._watched.values():
            handle.remove()
        self._watched = {}

    def _seen(self) -> None:
        """The parameters are as the host knows them."""
        self._versions = {p: p._version for p in self._params()}

    def _follow(self) -> None:
        """Where others have changed parameters since, the host goes on from these."""
        changed = [p for p, version in self._versions.items() if p._version != version]
        if changed:
            self._settle()
            for p in changed:
                self.hosted.overtaken(p)
            self._seen()

    def _ready(self, p: Tensor) -> None:
        """Send the gradient down. A lane holds the arguments of its last job, so they are in a list to be emptied."""
        while len(self._copies) >= IN_FLIGHT:  # a slow link must not let them pile up
            self._copies.pop(0).wait()
        gradient, p.grad = [p.grad], None
        self._copies.append(
            self.comm.stream(lambda lane: self.hosted.take(p, gradient.pop()), lane=self.lane + 1)
        )

    def add_param_group(self, param_group: dict) -> None:
        """One more group. Between steps; what the host still computes is waited for."""
        super().add_param_group(param_group)
        if hasattr(self, "hosted"):  # else torch's own constructor calls it
            self._claim.check()
            self._claim.take(self._params())
            self._settle()
            self.hosted.follow(self.param_groups)
            self._claim.take_masters(self.hosted.masters.values())
            self._seen()
            self._sent.append({})
            self._pull()
            self._watch()

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """The gradients go down, the host starts on them; what it has computed before, or exact: now, comes up.

        closure: computes the loss (and gradients), which is returned.
        """
        self._claim.check()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.finish()
        self._join()
        gradients, self._sent = self._gradients(), [options(group) for group in self.param_groups]
        self._update = self.comm.on_host().stream(
            self.hosted.update, *gradients, self._sent, lane=self.lane
        )
        self.steps += 1
        if self.mode == "exact" or self.steps <= self.warmup:
            self.finish()
        return loss

    def _join(self) -> None:
        """Copies also of parameters that were put into a group by its owner."""
        if any(p not in self.hosted.masters for p in self._params()):
            self.hosted.follow(self.param_groups)
            self._seen()

    def _gradients(self) -> tuple[dict[Tensor, Tensor], list]:
        """All gradients, on the host, which then has none: the next ones may come while it uses these."""
        self._arrive()
        for p in self._params():
            if p.grad is not None:
                self.hosted.take(p, p.grad)
        return self.hosted.taken()

    def _arrive(self) -> None:
        while self._copies:
            self._copies.pop(0).wait()

    def finish(self) -> None:
        """What the host computes is waited for, and put in place: after the last step of "delayed", before a look."""
        self._claim.check()
        self._follow()
        self._settle()
        self.hosted.up()
        self._seen()

    def _settle(self) -> None:
        """The host has nothing to do; what it has computed has not gone up."""
        if self._update is not None:
            work, self._update = self._update, None
            work.wait()
            self._pull()

    def _pull(self) -> None:
        """Options that the host's optimizer has changed, and its states, show here."""
        hosted = self.hosted.optimizer
        for group, there, sent in zip(
            self.param_groups, hosted.param_groups, self._sent, strict=True
        ):
            missing = object()
            group.update({k: v for k, v in options(there).items() if sent.get(k, missing) is not v})
        for p, master in self.hosted.masters.items():
            if master in hosted.state:
                self.state[p] = hosted.state[master]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As for any optimizer; gradients that came down in backward are forgotten, too."""
        self._arrive()
        self.hosted.gradients = {}
        super().zero_grad(set_to_none)

    def refresh(self) -> None:
        """Others have written the parameters: they are what the host goes on from. Its states stay."""
        self._claim.check()
        self._settle()
        self.hosted.refresh()
        self._seen()

    def state_dict(self) -> dict:
        """What the plain optimizer's would be, and {"masters": {index: tensor}, "offload": {"steps", "pending"}}: how
        many there were, and whether an update waits for the next. With the parameters, all that a run needs to go on
        bit for bit."""
        self._follow()
        self._settle()
        self._join()
        masters = {i: self.hosted.masters[p] for i, p in enumerate(self._params())}
        more = {"steps": self.steps, "pending": self.hosted.fresh is not None}
        return super().state_dict() | {"masters": masters, "offload": more}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """That of this class or of the plain optimizer. Masters that it does not have become the parameters as they
        are now: load those first."""
        self._claim.check()
        self._settle()
        self._join()
        hosted = self.hosted.optimizer
        with self.comm.host:
            hosted.load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.state.clear()
        self._sent = [{} for _ in self.param_groups]
        self._pull()
        self.hosted.refresh()
        self._seen()
        params, more = self._params(), state_dict.get("offload", {"steps": 0, "pending": False})
        with self.comm.host:
            for i, master in state_dict.get("masters", {}).items():
                self.hosted.masters[params[i]].copy_(master)
        self.steps = more["steps"]
        if more["pending"]:
            self.hosted.narrow(params)


def _open(lane: Comm) -> None:
    """The first job of a lane."""
