"""What a ledger must hear of and no operator tells: what modules register, optimizers' steps, resized storages.

torch has one set of such hooks for the whole process. They are installed while a `Watch` is entered, and each acts
for the rank in whose thread it is called: for the Charges which that thread has entered.
"""

from __future__ import annotations

import functools

import torch
from torch.nn.modules import module as modules
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .charge import charges
from .ledger import BUFFERS, PARAMETERS


class Watch:
    """The hooks, from `with` to its end. A storage's `resize_` is no operator, so it is wrapped."""

    def __enter__(self) -> Watch:
        self._handles = [
            modules.register_module_parameter_registration_hook(
                functools.partial(_registered, PARAMETERS)
            ),
            modules.register_module_buffer_registration_hook(
                functools.partial(_registered, BUFFERS)
            ),
            register_optimizer_step_pre_hook(functools.partial(_stepping, True)),
            register_optimizer_step_post_hook(functools.partial(_stepping, False)),
        ]
        self._resize = resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = lambda storage, nbytes: _resized(
            storage, resize(storage, nbytes)
        )
        return self

    def __exit__(self, *exception) -> None:
        torch.UntypedStorage.resize_ = self._resize
        for handle in self._handles:
            handle.remove()


def _registered(category: int, module, name: str, x) -> None:
    if x is not None:
        for charge in charges():
            charge.ledger.claim(x, category)


def _stepping(begins: bool, optimizer, args, kwargs) -> None:
    for charge in charges():
        charge.stepping = begins
        if not begins:
            charge.ledger.stepped(optimizer)


def _resized(storage, out):
    for charge in charges():
        charge.ledger.resized(storage)
    return out
