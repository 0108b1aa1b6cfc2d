"""Offload: the optimizer's states lie in the memory of the host, and its step runs on the host's cores.

A GPU's memory is small, a host's is large: of Adam's 16Ψ bytes in mixed precision only parameters and gradients, 4Ψ,
stay on the device. In a step the gradients go down (2Ψ bytes), the host updates its fp32 copies, and the new
parameters come up (2Ψ). In mode "exact" the device waits; "delayed", it computes on, one update behind:

    device  F0 B0 │g0↓│ F1 B1 │↑θ1 g1↓│ F2 B2 │↑θ2 g2↓│      θk: after k updates. The first and the second
    host          │ update 0  │       │ update 1  │          forward use θ0, the third θ1, and so on

Sources: Ren et al. 2021, "ZeRO-Offload", sections 3, 4 and 5.2; Rajbhandari et al. 2021, "ZeRO-Infinity", 5.2.
Cost of a step with D seconds down and U up, an update of H and C of computing: C + D + H + U, delayed
max(C, H) + D + U. Invariants: exact is the plain optimizer, bit for bit; delayed, gradient k is taken at θ(k−1) and makes
θ(k+1) from θk; between two steps no parameter changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..arguments import choice, floating, whole
from ..comm.base import Comm, Host, Work
from .reducer import Claim, check_dense, check_devices
from .zero import options

# ------------------------------------------------------------
# The host's side: copies of the parameters, gradients as they come down, the plain optimizer, its step.
#
# Nothing is converted on its way: a copy between dtypes would travel in the wider one. So a gradient comes down as it is
# (2 bytes a parameter in fp16) and grows on the host; a new parameter shrinks there, then goes up. In a World what lies
# here is the host's by `comm.host`, and so are its time and its memory. From a GPU a gradient is on its way into pinned
# memory, which the GPU can write by itself, until its event has come.


class Hosted:
    """`optimizer`, of `optimizer_class`, on copies of the parameters of `groups` in the memory of `host`.

    dtype: of the copies; None: each has its parameter's.  masters: parameter -> copy.  gradients: parameter -> what
    comes down.  arriving: events after which it has come, from a GPU.  fresh: parameter -> its next value, still on the
    host; None once all are on the device.
    """

    def __init__(
        self,
        groups: list[dict],
        optimizer_class: Callable,
        host: Host,
        dtype: torch.dtype | None,
        **kwargs,
    ):
        self.host = host
        self.dtype = dtype
        self.masters: dict[Tensor, Tensor] = {}
        self.gradients: dict[Tensor, Tensor] = {}
        self.arriving: list = []
        self.fresh: dict[Tensor, Tensor] | None = None
        with host:
            self.optimizer = optimizer_class([self._copied(group) for group in groups], **kwargs)

    def join(self, groups: list[dict]) -> None:
        """Take over groups, and parameters in them, that are new."""
        theirs = self.optimizer.param_groups
        for group, there in zip(groups, theirs, strict=False):
            there["params"] = self._copied(group)["params"]
        with self.host:
            for group in groups[len(theirs) :]:
                self.optimizer.add_param_group(self._copied(group))

    def _copied(self, group: dict) -> dict:
        for p in group["params"]:
            if p not in self.masters:
                with self.host:
                    self.masters[p] = self._wide(self._here(p.detach()), p)
        return group | {"params": [self.masters[p] for p in group["params"]]}

    def _wide(self, x: Tensor, p: Tensor) -> Tensor:
        return x.to(self.dtype or p.dtype)

    @torch.no_grad()
    def _coming(self, x: Tensor) -> Tensor:
        """A copy in the host's memory, to be read after `_arrive`."""
        with self.host:
            copy = torch.empty_like(x, device=self.host.device, pin_memory=x.is_cuda)
            copy.copy_(x, non_blocking=x.is_cuda)
        if x.is_cuda:
            stream = torch.cuda.current_stream(x.device)
            x.record_stream(stream)
            self.arriving.append(stream.record_event())
        return copy

    def _arrive(self) -> None:
        """What is on its way has come."""
        arriving, self.arriving = self.arriving, []
        for event in arriving:
            event.synchronize()

    def _here(self, x: Tensor) -> Tensor:
        """A copy in the host's memory, all of it there."""
        copy = self._coming(x)
        self._arrive()
        return copy

    def take(self, p: Tensor, grad: Tensor) -> None:
        """The gradient of `p` comes down, and is added to one that is here already, in the masters' dtype."""
        check_dense(grad, f"a parameter of shape {tuple(p.shape)}")
        new, before = self._coming(grad), self.gradients.get(p)
        if before is not None:
            self._arrive()
            with self.host, torch.no_grad():
                new = self._wide(before, p) + new
        self.gradients[p] = new

    def taken(self) -> tuple[dict[Tensor, Tensor], list]:
        """All gradients, and what is to be waited for before they are read; the next ones may come meanwhile."""
        gradients = self.gradients, self.arriving
        self.gradients, self.arriving = {}, []
        return gradients

    @torch.no_grad()
    def update(
        self, lane: Comm, gradients: dict[Tensor, Tensor], arriving: list, options: list[dict]
    ) -> None:
        """A step of the optimizer with these gradients (taken out of the dict) and these options of its groups."""
        for event in arriving:
            event.synchronize()
        with self.host:
            for group, changed in zip(self.optimizer.param_groups, options, strict=True):
                group.update(changed)
            updated = [p for p in self.masters if p in gradients]
            for p in updated:
                self.masters[p].grad = self._wide(gradients.pop(p), p)
            self.optimizer.step()
            for p in updated:
                self.masters[p].grad = None
            self.narrow(updated)

    @torch.no_grad()
    def narrow(self, updated: list[Tensor]) -> None:
        """The masters of these parameters are their next values."""
        with self.host:
            self.fresh = {}
            for p in updated:
                value = self.masters[p].to(p.dtype)
                self.fresh[p] = value.pin_memory() if p.is_cuda else value

    @torch.no_grad()
    def up(self) -> None:
        """The next values of the parameters go to the device."""
        fresh, self.fresh = self.fresh or {}, None
        for p in list(fresh):
            p.copy_(fresh.pop(p), non_blocking=p.is_cuda)

    @torch.no_grad()
    def follow(self, p: Tensor) -> None:
        """Others have changed `p`: where it is no longer its rounded master, the master becomes it."""
        if self.fresh is not None:
            self.fresh.pop(p, None)
        now, master = self._here(p.detach()), self.masters[p]
        with self.host:
            master.copy_(torch.where(now == master.to(p.dtype), master, now.to(master.dtype)))


# ------------------------------------------------------------
# The device's side: an optimizer over the parameters, which sends gradients down and takes parameters up.


MODES = ("exact", "delayed")
UPDATES, COPIES = 1, 2  # lanes: on one the host steps, on the other gradients go down in backward
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

    Parameters that others change in place (a broadcast, load_state_dict) are followed at the next step.
    `state` and `param_groups` are those of the plain optimizer, so schedulers work; `state_dict` can be loaded by it,
    and the other way round. To shard as well: ShardedOptimizer(params, partial(OffloadedOptimizer,
    optimizer_class=Adam, comm=comm), comm): each rank's host then steps its shard only, and `finish` is its, too.
    Made again over the same parameters, it replaces the older one. It goes with SyncBatchNorm, with DataParallel (not
    with in_backward), over the parameters() of FullySharded, and inside a LocalSGD (parallel/reducer.py).
    Raises ValueError for an unknown mode, warmup < 0, a parameter elsewhere than on the Comm's device, a master_dtype
    without fractions, a sparse gradient.

    >>> import torch
    >>> from minidist import World
    >>> from minidist.parallel import OffloadedOptimizer
    >>> def program(comm, mode):
    ...     p = torch.nn.Parameter(torch.tensor(3.0))
    ...     optimizer = OffloadedOptimizer([p], torch.optim.SGD, comm, mode, warmup=0, lr=1.0)
    ...     seen = []
    ...     for _ in range(3):
    ...         p.grad = torch.tensor(1.0)
    ...         optimizer.step()
    ...         seen.append(p.item())
    ...     optimizer.finish()
    ...     return seen, p.item()
    >>> World(1).run(program, "exact")[0]
    ([2.0, 1.0, 0.0], 0.0)
    >>> World(1).run(program, "delayed")[0]  # an update comes a step later, the last by `finish`
    ([3.0, 2.0, 1.0], 0.0)
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
        **kwargs,
    ):
        choice(mode, "mode", MODES)
        whole(warmup, "a warm-up has at least 0 steps", 0)
        floating(master_dtype, "the host's copies have a floating dtype")
        super().__init__(params, {})
        check_devices(comm, ((f"parameter {i}", p) for i, p in enumerate(self._params())))
        self._claim = Claim(
            self, "OffloadedOptimizer", None, self._unwatch, " with in_backward=True" * in_backward
        )
        self._claim.take(self._params())
        self.comm = comm
        self.mode = mode
        self.warmup = warmup
        self.in_backward = in_backward
        self.steps = 0
        self._update: Work | None = None  # what the host is doing
        self._copies: list[Work] = []  # gradients on their way down
        self._watched: dict[Tensor, RemovableHandle] = {}
        self._versions: dict[Tensor, int] = {}  # of the parameters as the host knows them
        self.hosted = Hosted(self.param_groups, optimizer_class, comm.host, master_dtype, **kwargs)
        self.defaults = self.hosted.optimizer.defaults
        self._sent: list[dict] = [{} for _ in self.param_groups]  # options at the last step
        self._joined()
        # on every rank, also one that will have no gradient
        comm.on_host().stream(_open, lane=UPDATES).wait()
        if in_backward:
            comm.stream(_open, lane=COPIES).wait()

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def add_param_group(self, param_group: dict) -> None:
        """One more group. Between steps; what the host still computes is waited for."""
        super().add_param_group(param_group)
        if hasattr(self, "hosted"):  # else torch's own constructor calls it
            self._claim.check()
            self._claim.take(self._params())
            self._settle()
            self.hosted.join(self.param_groups)
            self._sent.append({})
            self._joined()

    def _joined(self) -> None:
        """The host has copies of all parameters."""
        self._claim.take_masters(self.hosted.masters.values())
        self._see()
        self._pull()
        for p in self._params() if self.in_backward else ():
            if p.requires_grad and p not in self._watched:
                self._watched[p] = p.register_post_accumulate_grad_hook(self._send)

    def _unwatch(self) -> None:
        """Hear of no gradient any more."""
        for handle in self._watched.values():
            handle.remove()
        self._watched = {}

    def _see(self) -> None:
        self._versions = {p: p._version for p in self._params()}

    def _follow(self) -> None:
        """Where others have changed parameters since, the host goes on from these."""
        changed = [p for p, version in self._versions.items() if p._version != version]
        if changed:
            self._settle()
            for p in changed:
                self.hosted.follow(p)
            self._see()

    def _send(self, p: Tensor) -> None:
        """Send the gradient down. A lane holds the arguments of its last job, so they are in a list to be emptied."""
        while len(self._copies) >= IN_FLIGHT:  # a slow link must not let them pile up
            self._copies.pop(0).wait()
        assert p.grad is not None, "the hook is called when the gradient has been added"
        gradient, p.grad = [p.grad], None
        self._copies.append(
            self.comm.stream(lambda lane: self.hosted.take(p, gradient.pop()), lane=COPIES)
        )

    def _arrive(self) -> None:
        while self._copies:
            self._copies.pop(0).wait()

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
        gradients, arriving = self._gradients()
        self._sent = [options(group) for group in self.param_groups]
        self._update = self.comm.on_host().stream(
            self.hosted.update, gradients, arriving, self._sent, lane=UPDATES
        )
        self.steps += 1
        if self.mode == "exact" or self.steps <= self.warmup:
            self.finish()
        return loss

    def _join(self) -> None:
        """Copies also of parameters that were put into a group by its owner."""
        if any(p not in self.hosted.masters for p in self._params()):
            self.hosted.join(self.param_groups)
            self._see()

    def _gradients(self) -> tuple[dict[Tensor, Tensor], list]:
        """All gradients, on the host, which then has none: the next ones may come while it uses these."""
        self._arrive()
        for p in self._params():
            if p.grad is not None:
                self.hosted.take(p, p.grad)
        return self.hosted.taken()

    def finish(self) -> None:
        """What the host computes is waited for, and put in place: after the last step of "delayed", before a look."""
        self._claim.check()
        self._follow()
        self._settle()
        self.hosted.up()
        self._see()

    def _settle(self) -> None:
        """The host has nothing to do; what it has computed has not gone up."""
        if self._update is not None:
            work, self._update = self._update, None
            work.wait()
            self._pull()

    def _pull(self) -> None:
        """Options that the host's optimizer has changed, and its states, show here."""
        hosted, missing = self.hosted.optimizer, object()
        for group, there, sent in zip(
            self.param_groups, hosted.param_groups, self._sent, strict=True
        ):
            group.update({k: v for k, v in options(there).items() if sent.get(k, missing) is not v})
        for p, master in self.hosted.masters.items():
            if master in hosted.state:
                self.state[p] = hosted.state[master]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As for any optimizer; gradients that came down in backward are forgotten, too."""
        self._arrive()
        self.hosted.gradients = {}
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
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
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """That of this class or of the plain optimizer. Masters that it does not have follow the parameters as they
        are now: load those first."""
        self._claim.check()
        self._settle()
        self._join()
        self._follow()
        self.hosted.fresh = None
        with self.comm.host:
            self.hosted.optimizer.load_state_dict(
                {key: state_dict[key] for key in ("state", "param_groups")}
            )
        self.state.clear()
        self._sent = [{} for _ in self.param_groups]
        self._pull()
        params, more = self._params(), state_dict.get("offload", {"steps": 0, "pending": False})
        with self.comm.host:
            for i, master in state_dict.get("masters", {}).items():
                self.hosted.masters[params[i]].copy_(master)
        self.steps = more["steps"]
        if more["pending"]:
            self.hosted.narrow(params)


def _open(lane: Comm) -> None:
    """The first job of a lane."""
