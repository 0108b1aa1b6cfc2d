"""The frame of every picture: a card to draw on, the palette, and the twin in words.

    ╭──────────────────────────────────╮
    │ title                            │    A `card` is drawn on in inches from its upper left corner. What is
    │ ■ forward  ■ backward            │    finished is a `Picture`: a PNG that shows itself in a notebook, and the
    │ rank 0 ▇▇▇▇ ▇▇▇▇▇▇               │    same in words and numbers, as the image's alternative text.
    ╰──────────────────────────────────╯

A card is light with rounded corners, so that it reads the same in a light and in a dark notebook. Ink on it has a
contrast of 17 to 1, muted ink 5.9 to 1 (WCAG 2.2 asks for 4.5). The hues are those of Okabe and Ito, "Color Universal
Design" (2008), told apart with every common form of colour blindness; the yellow is darkened, so that a line of it
shows. No picture speaks by colour alone.

Figures are made without pyplot, so none is left open to be shown twice, and in the same style whatever the notebook
has chosen. One machine draws the same bytes each time; the words are the same on every machine.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D
from PIL import Image

# ---------------------------------------------------------------------------------------------------------- palette
CARD = "#FBFAF7"
EDGE = "#D8D4CA"
INK = "#12151A"
MUTED = "#5B626C"
FAINT = "#E7E4DC"
WAIT = "#DAD7CF"

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILION = "#D55E00"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
YELLOW = "#C2B000"
GREY = "#8E959C"

HUES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY)
"""Of ranks, by their number, and of whatever has no meaning of its own."""

MEANING = {
    "parameters": BLUE,
    "compute": BLUE,
    "activations": GREEN,
    "forward": GREEN,
    "recomputation": GREEN,
    "gradients": PURPLE,
    "backward": PURPLE,
    "weights": YELLOW,
    "optimizer states": VERMILION,
    "update": VERMILION,
    "optimizer": VERMILION,
    "tensor": ORANGE,
    "pipeline": SKY,
    "data": PURPLE,
    "copy": YELLOW,
    "buffers": SKY,
    "other": GREY,
    "bubble": WAIT,
    "wait": WAIT,
    "send": ORANGE,
    "receive": SKY,
}
"""The colour of what these words name, the same in every picture. What belongs together shares its hue: a forward
makes activations, a backward gradients, an update needs the optimizer's states. "weights" is the half of a backward
that makes their gradients; "tensor", "pipeline" and "data" are the traffic of these parallelisms, and what the last one
sends are gradients."""

# --------------------------------------------------------------------------------------------------- sizes and type
SMALL = 9
TEXT = 10
TITLE = 11.5  # points; nothing is set smaller
LEAST_SHARE = 9 / (SMALL / 72 * 96)
"""Of its width, to which a picture shrinks in a narrow window: there its smallest words are 9 CSS pixels high. Where even
that is too wide, its box scrolls sideways."""
PRINTED = "<style>@media print { .minidist-picture img { min-width: 0 !important } }</style>"
"""Paper does not scroll."""
WIDTH = 9.2  # inches of a full picture
MARGIN = 0.2  # inches of card around the drawing
DPI = 192  # two pixels of the PNG for each pixel on the page
DASHED = (0, (5, 2))

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "text.color": INK,
    "text.hinting": "none",
    "text.parse_math": False,
    "axes.facecolor": "none",
    "axes.edgecolor": EDGE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": SMALL,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": EDGE,
    "ytick.color": EDGE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
}


def hue(i: int) -> str:
    """The hue of rank number i: after eight they come again."""
    return HUES[i % len(HUES)]


def colors(names: Iterable[str]) -> dict[str, str]:
    """The colour of each name: that of its meaning, or else the hues that are free, in turn."""
    names = list(dict.fromkeys(names))
    taken = {MEANING.get(name) for name in names}
    free = [color for color in HUES if color not in taken] or HUES
    plain = [name for name in names if name not in MEANING]
    turns = {name: free[i % len(free)] for i, name in enumerate(plain)}
    return {name: MEANING.get(name) or turns[name] for name in names}


def mix(color: str, amount: float) -> str:
    """`color` thinned to `amount` (0 to 1) on the card, as #RRGGBB."""
    pairs = zip(to_rgb(color), to_rgb(CARD), strict=True)
    return "#" + "".join(f"{round(255 * (amount * a + (1 - amount) * b)):02X}" for a, b in pairs)


def contrast(color: str, ground: str) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2.2, "contrast ratio")."""
    low, high = sorted((_luminance(color), _luminance(ground)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink_on(color: str) -> str:
    """Ink or card, whichever reads better on `color`."""
    return max(INK, CARD, key=lambda ink: contrast(ink, color))


# ------------------------------------------------------------------------------------------------------------ frame
@contextmanager
def card(width: float, height: float, title: str = "") -> Iterator[Card]:
    """An empty card of `width` × `height` inches with its title, and the style of all pictures in force."""
    with matplotlib.style.context(["default", STYLE]):
        yield Card(width, height, title)


class Card:
    """A card that is drawn on. All places and sizes are inches, x from its left edge, y down from its top."""

    def __init__(self, width: float, height: float, title: str):
        self.width = width
        self.height = height
        self.fig = Figure(figsize=(width, height), dpi=DPI, facecolor="none")
        self.place = Affine2D().scale(1, -1).translate(0, height) + self.fig.dpi_scale_trans
        self.box(0.02, 0.02, width - 0.04, height - 0.04, CARD, EDGE, radius=0.09, zorder=-9)
        self.word(MARGIN, 0.28, title, size=TITLE, weight="bold")

    def word(self, x: float, y: float, text: str, size: float = SMALL, ha: str = "left", **style):
        """`text` with the middle of its height at y; ha says whether x is its left, its center or its right.

        halo: a colour around the letters, where lines cross them.
        """
        if "halo" in style:
            style["path_effects"] = [withStroke(linewidth=4, foreground=style.pop("halo"))]
        style = {"va": "center", "fontsize": size, "ha": ha, "transform": self.place, **style}
        self.fig.text(x, y, text, **style)

    def note(self, x: float, y: float, text: str, ha: str = "left", size: float = SMALL) -> None:
        """A word that stands back: the name of a row, a unit, a remark."""
        self.word(x, y, text, size, ha, color=MUTED)

    def box(
        self, x: float, y: float, wide: float, tall: float, face: str, edge: str = "none", **style
    ):
        """A box whose upper left corner is (x, y). radius: of its corners; word: in its middle, where it fits."""
        radius = style.pop("radius", 0.04)
        word = style.pop("word", "")
        style = {"linewidth": 0.9, "transform": self.place, **style}
        shape = f"round,pad=0,rounding_size={radius}" if radius else "square,pad=0"
        patch = FancyBboxPatch((x, y), wide, tall, shape, facecolor=face, edgecolor=edge, **style)
        self.fig.add_artist(patch)
        if word and tall > 0.16 and inches(word) + 0.04 <= wide:
            self.word(x + wide / 2, y + tall / 2, word, ha="center", color=ink_on(face))
        return patch

    def line(self, xs, ys, color: str = MUTED, width: float = 1.0, **style) -> None:
        """A line through the points."""
        style = {"color": color, "linewidth": width, "transform": self.place, **style}
        self.fig.add_artist(Line2D(xs, ys, **style))

    def arrow(self, tail: tuple[float, float], head: tuple[float, float], color: str) -> None:
        """An arrow with a dot at its tail."""
        shape: dict[str, Any] = dict(
            arrowstyle="-|>,head_width=2.2,head_length=5", shrinkA=0, shrinkB=1, lw=1.5
        )
        arrow = FancyArrowPatch(tail, head, color=color, transform=self.place, zorder=3, **shape)
        self.fig.add_artist(arrow)
        self.line([tail[0]], [tail[1]], color, marker="o", markersize=4, zorder=4)

    def key(self, x: float, y: float, colors: dict[str, str]) -> None:
        """What the colours mean: a small box of each with its name, side by side from x on."""
        for name, color in colors.items():
            self.box(x, y - 0.055, 0.2, 0.11, color, radius=0)
            self.word(x + 0.26, y, name)
            x += 0.5 + inches(name)

    def axes(self, left: float, top: float, wide: float, tall: float):
        """Axes whose upper left corner is there."""
        bottom = 1 - (top + tall) / self.height
        size = (wide / self.width, tall / self.height)
        return self.fig.add_axes((left / self.width, bottom, *size))

    def picture(self, *lines: str) -> Picture:
        """The finished picture. lines: its twin in words; empty ones are left out."""
        return Picture(self.fig, "\n".join(text for text in lines if text))


class Picture:
    """A finished drawing: `png` (bytes), `text` (its twin in words and numbers), `save(path)`.

    >>> from minidist.study import bars
    >>> picture = bars({"ring": 6, "tree": 4}, title="Steps of 4 ranks")
    >>> picture  # in a notebook the drawing itself
    Steps of 4 ranks
      ring: 6
      tree: 4
    >>> picture.png[1:4]
    b'PNG'
    """

    def __init__(self, fig: Figure, text: str):
        self.png = _png(fig)
        self.text = text
        # CSS pixels
        self.width, self.height = (round(96 * size) for size in fig.get_size_inches())

    def save(self, path: str | Path) -> None:
        """Write the PNG to `path`, which must end in .png (ValueError)."""
        Path(ending(path, ".png")).write_bytes(self.png)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """An `<img>` with alternative text: of all forms the only one whose words arrive wherever notebooks are shown."""
        least = math.ceil(self.width * LEAST_SHARE)
        style = f"min-width: {least}px; max-width: 100%; height: auto"
        source = f"data:image/png;base64,{base64.b64encode(self.png).decode()}"
        return (
            f'{PRINTED}<div class="minidist-picture" style="overflow-x: auto">'
            f'<img alt="{escape(self.text)}" width="{self.width}" style="{style}" src="{source}"></div>'
        )


def _png(fig: Figure) -> bytes:
    """The 256 commonest colours, exactly; the rest, edges of letters, as the nearest: a quarter of the bytes."""
    canvas, buffer = FigureCanvasAgg(fig), io.BytesIO()
    canvas.draw()
    pixels = np.ascontiguousarray(canvas.buffer_rgba())
    palette, where, often = np.unique(
        pixels.view(np.uint32), return_inverse=True, return_counts=True
    )
    commonest = np.sort(np.argsort(-often, kind="stable")[:256])
    rgba = palette.view(np.uint8).reshape(-1, 4)
    far = ((rgba[:, None].astype(np.int32) - rgba[commonest].astype(np.int32)) ** 2).sum(-1)
    nearest = far.argmin(1)[where].reshape(pixels.shape[:2])
    image = Image.fromarray(nearest.astype(np.uint8)).convert("P")
    image.putpalette(rgba[commonest].tobytes(), "RGBA")
    image.save(buffer, "png", optimize=True)
    return buffer.getvalue()


# ------------------------------------------------------------------------------------------------ checks and numbers
def ending(path: str | Path, suffix: str) -> str | Path:
    """`path`. ValueError where it does not end in `suffix`."""
    if Path(path).suffix.lower() != suffix:
        other = Path(path).suffix or "a name without ending"
        raise ValueError(f"this is saved as {suffix}, not as {other!r}")
    return path


def room(what: str, count: int, most: int) -> None:
    """ValueError unless 1 to `most` of `what` are drawn."""
    if not 0 < count <= most:
        raise ValueError(f"a picture has room for 1 to {most} {what}, and there are {count:,}")


def check_time(end: float) -> None:
    """ValueError where all is over at 0 seconds."""
    if end <= 0:
        raise ValueError("everything is at 0 s: there is no time to draw")


@lru_cache(maxsize=4096)
def inches(text: str, size: float = SMALL, weight: str = "normal") -> float:
    """How wide `text` is, set in `size` points."""
    if not text.strip():
        return 0.0
    face = FontProperties(family=STYLE["font.family"], weight=weight)
    return TextPath((0, 0), text, size=size, prop=face, usetex=False).get_extents().width / 72


TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
FLOP_UNITS = ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"), (1, "FLOP"))
BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


def raised(power: int) -> str:
    """`power` as an exponent: ⁻¹²."""
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def short(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant figures, without an exponent in everyday ranges."""
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}"
    size = math.floor(math.log10(abs(value))) if value else 0
    if not -5 < size < 15:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        power = "10" + raised(int(power))
        return power if mantissa == "1" else f"{mantissa}·{power}"
    out = f"{value:,.{max(0, digits - 1 - size)}f}"
    return out.rstrip("0").rstrip(".") if "." in out else out


def unit_of(largest: float, units: tuple) -> tuple[float, str]:
    """The (scale, name) of `units` in which `largest` is at least 1; the smallest unit if none is."""
    return next((u for u in units if largest >= u[0] * (1 - 1e-9)), units[-1])


def measure(value: float, unit: str | None) -> str:
    """`value` with its unit: "s", "B" and "FLOP" take the prefix that fits, any other is set behind."""
    units = {"s": TIME_UNITS, "B": BYTE_UNITS, "FLOP": FLOP_UNITS}.get(unit or "")
    if units is None:
        return short(value) + (f" {unit}" if unit else "")
    if unit == "B" and isinstance(value, int) and abs(value) < 10_000:
        return f"{value:,} B"
    scale, name = unit_of(abs(value), units) if value else (1, unit)
    return f"{short(value / scale if scale != 1 else value)} {name}"
