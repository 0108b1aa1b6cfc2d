"""Ranks of any torch.distributed group, as torchrun starts them; and a Comm as such a group, for PyTorch's own."""

from .backend import process_group
from .group import CommGroup
from .torchdist import TorchComm, close, from_env, leave
