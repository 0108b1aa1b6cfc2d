"""Half: gradients travel, and are added, in 16 bits.

fp16 has 11 bits of precision and ends at 65,504; bf16 has 8 bits and the range of fp32. Each rank's part is multiplied
by its share, 1/n, before it is rounded, so the sum does not overflow where the average would not. Rounding does not
hold back anything: there is no error to feed back that would not be another rounding.

    g/n in fp32 ── round ──▶ 16 bits ── all-reduce ──▶ 16 bits ──▶ fp32

Cost: an all-reduce of half the bytes, 2(n−1)α + 2(n−1)/n·(N/2)β. Source: Micikevicius et al. 2018, section 3; the hooks
`fp16_compress_hook` and `bf16_compress_hook` of PyTorch do the same.
"""

from __future__ import annotations

import torch

from ...collectives import all_reduce_
from ...comm.base import Comm
from .base import Compression


class Half(Compression):
    """Averages in `dtype`, torch.float16 or torch.bfloat16. ValueError for another. Keeps nothing."""

    def __init__(self, dtype: torch.dtype = torch.float16):
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"16 bits are torch.float16 or torch.bfloat16, not {dtype}")
        super().__init__()
        self.dtype = dtype

    def average_(self, comm: Comm, bucket, algorithm: str | None) -> None:
        half = bucket.buffer.to(self.dtype)
        all_reduce_(comm, half, algorithm=algorithm)
        bucket.buffer.copy_(half)
