"""How long a device takes for a product of matrices, and for what is bound by its memory.

    product   launch + max(FLOPs / (η·peak) · waves, bytes / (η·bandwidth))
    passes    launch + bytes / (η·bandwidth)

One constant a device, η: the part of its data sheet, of FLOP/s and of bytes/s alike, that an operation reaches.
What else a product loses follows from its sizes:

    waves   its result is cut into tiles, which the processors take in rounds; the last round is not full. ⌈w⌉/w
    rows    a row that is not a multiple of 16 bytes cannot be loaded for the tensor cores: it runs at fp32's peak

Sources: Williams et al. 2009, the roofline; NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave
quantization, tensor core requirements. η of the A100 was chosen on the published runs (`runs`), one figure for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch

from minidist.comm.cluster import Device

TILES = (128, 256), (256, 128)


@dataclass(frozen=True)
class Accelerator:
    """efficiency: η.  processors: how many tiles are worked on at once; 0: products have no tiles and no rows."""

    efficiency: float
    processors: int = 0


IDEAL = Accelerator(1.0)
"""The data sheet itself: what a World charges."""

ACCELERATORS = {
    "V100 SXM": Accelerator(0.76, 80),
    "A100 SXM": Accelerator(0.76, 108),
    "H100 SXM": Accelerator(0.70, 132),
    "H200 SXM": Accelerator(0.70, 132),
    "B200 SXM": Accelerator(0.68, 148),
}
"""By the name of the device. Other than the A100's, η is an assumption: the A100's times what the best product reaches
of the data sheet, over what it reaches there (hardware.csv, max_achievable_matmul_bf16: 86.9 % on A100, 80.3 % on
H100, 77.6 % on B200); a V100 as an A100."""


@dataclass(frozen=True, eq=False)
class Machine:
    """A device that computes in `dtype`, and what it reaches of its data sheet."""

    device: Device
    accelerator: Accelerator
    dtype: torch.dtype = torch.bfloat16
    launch: float = 0.0

    @classmethod
    def of(
        cls,
        device: Device,
        accelerator: Accelerator | None = None,
        dtype: torch.dtype = torch.bfloat16,
        launch: float | None = None,
    ) -> Machine:
        """The device with its η, and `launch` in place of its own. ValueError for one without η that is given none."""
        if accelerator is None and device.name not in ACCELERATORS:
            raise ValueError(
                f"η is known of {', '.join(ACCELERATORS)}, not of {device.name}: give an Accelerator(η)"
            )
        return cls(
            device,
            accelerator or ACCELERATORS[device.name],
            dtype,
            device.launch if launch is None else launch,
        )

    @property
    def peak(self) -> float:
        """FLOP/s of the data sheet."""
        return self.device.peak(self.dtype)

    def passes(self, nbytes: float, launches: int = 1) -> float:
        """Seconds of `launches` operators that read and write `nbytes` in all."""
        return launches * self.launch + nbytes / (
            self.accelerator.efficiency * self.device.bandwidth
        )

    def product(self, m: int, n: int, k: int, count: int = 1) -> float:
        """Seconds of one operator that makes `count` products, (m, k) by (k, n) each."""
        size = self.dtype.itemsize
        loads = size * count * (m * k + k * n + m * n)
        return self.work(2 * m * n * k * count * self._waves(m, n, count) / self._rows(n, k), loads)

    def work(self, flops: float, nbytes: float) -> float:
        """Seconds of one operator of so many FLOPs and bytes."""
        return max(
            self.passes(nbytes), self.launch + flops / (self.accelerator.efficiency * self.peak)
        )

    def _waves(self, m: int, n: int, count: int) -> float:
        """How much longer for the tiles and rounds that are not full."""
        if not self.accelerator.processors:
            return 1.0
        rounds = (
            ceil(count * ceil(m / a) * ceil(n / b) / self.accelerator.processors) * a * b
            for a, b in TILES
        )
        return min(rounds) * self.accelerator.processors / (count * m * n)

    def _rows(self, n: int, k: int) -> float:
        """The part of the peak that rows of this length leave."""
        whole = all(x * self.dtype.itemsize % 16 == 0 for x in (n, k))
        return (
            1.0
            if whole or not self.accelerator.processors
            else self.device.peak(torch.float32) / self.peak
        )
