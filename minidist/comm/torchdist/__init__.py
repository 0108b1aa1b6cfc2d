"""Ranks of any torch.distributed group, as torchrun starts them."""

from .torchdist import TorchComm, close, from_env
