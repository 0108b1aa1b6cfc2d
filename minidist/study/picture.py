"""What every drawing returns: a `Picture` that shows itself in a notebook, with its text alternative.

Figures are made without pyplot, so none is left open to be shown twice, and in the house line
whatever style the notebook has chosen. One machine draws the same bytes each time; the text is the
same on every machine.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import TextPath
from PIL import Image

from minidist.study import line

TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


class Picture:
    """A finished drawing: `png` (bytes), `text` (its alternative in words and numbers), `save(path)`."""

    def __init__(self, fig: Figure, text: str):
        self.png, self.text = _png(fig), text
        # CSS pixels
        self.width, self.height = (round(96 * inches) for inches in fig.get_size_inches())

    def save(self, path: str | Path) -> None:
        """Write the PNG to `path`, which must end in .png (ValueError)."""
        if Path(path).suffix.lower() != ".png":
            raise ValueError(
                f"a picture is saved as .png, not as {Path(path).suffix or 'a name without ending'!r}"
            )
        Path(path).write_bytes(self.png)

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data = {"image/png": base64.b64encode(self.png).decode(), "text/plain": self.text}
        return data, {"image/png": {"width": self.width, "height": self.height, "alt": self.text}}


def _png(fig: Figure) -> bytes:
    """The 256 commonest colours, exactly; the rest, edges of letters, as the nearest: a quarter of the bytes."""
    canvas, buffer = FigureCanvasAgg(fig), io.BytesIO()
    canvas.draw()
    pixels = np.ascontiguousarray(canvas.buffer_rgba())
    found, where, often = np.unique(pixels.view(np.uint32), return_inverse=True, return_counts=True)
    kept = np.sort(np.argsort(-often, kind="stable")[:256])
    rgba = found.view(np.uint8).reshape(-1, 4)
    far = ((rgba[:, None].astype(np.int32) - rgba[kept].astype(np.int32)) ** 2).sum(-1)
    image = Image.fromarray(
        far.argmin(1)[where].reshape(pixels.shape[:2]).astype(np.uint8)
    ).convert("P")
    image.putpalette(rgba[kept].tobytes(), "RGBA")
    image.save(buffer, "png", optimize=True)
    return buffer.getvalue()


@contextmanager
def sheet(width: float, height: float, title: str = "") -> Iterator[Figure]:
    """An empty card of `width` × `height` inches with its title, and the house line in force."""
    with matplotlib.style.context(["default", line.RC]):
        fig = Figure(figsize=(width, height), dpi=line.DPI, facecolor="none")
        card = dict(
            transform=fig.dpi_scale_trans,
            facecolor=line.CARD,
            edgecolor=line.EDGE,
            linewidth=0.8,
            zorder=-9,
        )
        shape = "round,pad=0,rounding_size=0.09"
        fig.add_artist(
            FancyBboxPatch((0.02, 0.02), width - 0.04, height - 0.04, boxstyle=shape, **card)
        )
        if title:
            where = dict(transform=fig.dpi_scale_trans, ha="left", va="center")
            fig.text(
                line.MARGIN, height - 0.28, title, fontsize=line.TITLE, fontweight="bold", **where
            )
        yield fig


def axes(fig: Figure, left: float, top: float, width: float, height: float, **kwargs):
    """Axes placed in inches from the left and the top of the card."""
    w, h = fig.get_size_inches()
    return fig.add_axes((left / w, 1 - (top + height) / h, width / w, height / h), **kwargs)


@lru_cache(maxsize=4096)
def inches(text: str, size: float = line.TEXT, weight: str = "normal") -> float:
    """How wide `text` is, set in `size` points."""
    face = FontProperties(family=line.RC["font.family"], weight=weight)
    return (
        TextPath((0, 0), text, size=size, prop=face, usetex=False).get_extents().width / 72
        if text.strip()
        else 0.0
    )


def short(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant figures, without an exponent in everyday ranges."""
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}"
    size = math.floor(math.log10(abs(value))) if value else 0
    if not -5 < size < 15:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        power = "10" + str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return power if mantissa == "1" else f"{mantissa}·{power}"
    out = f"{value:,.{max(0, digits - 1 - size)}f}"
    return out.rstrip("0").rstrip(".") if "." in out else out


def unit_of(largest: float, units: tuple) -> tuple[float, str]:
    """The (scale, name) of `units` in which `largest` is at least 1; the smallest unit if none is."""
    return next((u for u in units if largest >= u[0] * (1 - 1e-9)), units[-1])


def measure(value: float, unit: str | None) -> str:
    """`value` with its unit: "s" and "B" take the prefix that fits, any other is set behind."""
    units = {"s": TIME_UNITS, "B": BYTE_UNITS}.get(unit)
    if units is None:
        return short(value) + (f" {unit}" if unit else "")
    if unit == "B" and isinstance(value, int) and abs(value) < 10_000:
        return f"{value:,} B"
    scale, name = unit_of(abs(value), units) if value else (1, unit)
    return f"{short(value / scale if scale != 1 else value)} {name}"
