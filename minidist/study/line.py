"""The house line of every picture: its colours, sizes and type, in one place.

A picture is a light card with rounded corners, so that it reads the same in a light and in a dark
notebook. Ink on the card has a contrast of 17 to 1, muted ink 5.9 to 1 (WCAG 2.2 asks for 4.5).
The hues are those of Okabe and Ito, "Color Universal Design" (2008), told apart with every common
form of colour blindness; the yellow is darkened, so that a line of it shows. No picture speaks by colour alone.
"""

from __future__ import annotations

CARD, EDGE = "#FBFAF7", "#D8D4CA"
INK = "#12151A"
MUTED = "#5B626C"
FAINT = "#E7E4DC"

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILION = "#D55E00"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
YELLOW = "#C2B000"
GREY = "#8E959C"

HUES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GREY)

KINDS = {
    "compute": BLUE,
    "forward": GREEN,
    "backward": PURPLE,
    "update": VERMILION,
    "wait": "#DAD7CF",
    "send": ORANGE,
    "receive": SKY,
}
OTHER_KINDS = (YELLOW, GREY, "#7A4B9A", "#44546A")
"""What a rank is doing; other kinds that a program names take OTHER_KINDS in turn."""

MEMORY = {
    "parameters": BLUE,
    "gradients": ORANGE,
    "optimizer states": GREEN,
    "activations": PURPLE,
    "buffers": SKY,
    "other": GREY,
}
"""What memory is held for; in a stack, from the bottom up."""

LIGHT = {
    "card": CARD,
    "edge": EDGE,
    "ink": INK,
    "muted": MUTED,
    "faint": FAINT,
    "wait": KINDS["wait"],
    "mark": "#B84A00",
}
DARK = {
    "card": "#1B1E23",
    "edge": "#3D424B",
    "ink": "#EDEBE5",
    "muted": "#A6ACB6",
    "faint": "#2C3037",
    "wait": "#4A4F58",
    "mark": "#FF8A3D",
}
"""The card of a page that follows the reader's choice of light or dark; the hues stay."""

DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1.5, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")

SMALL = 9
TEXT = 10
TITLE = 11.5  # points; nothing is set smaller
WIDTH = 9.2  # inches of a full picture
MARGIN = 0.2  # inches of card around the drawing
DPI = 192  # two pixels of the PNG for each pixel on the page
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

RC = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "text.color": INK,
    "text.hinting": "none",
    "text.parse_math": False,
    "axes.facecolor": "none",
    "axes.edgecolor": EDGE,
    "axes.labelcolor": INK,
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
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def hue(i: int) -> str:
    """The hue of rank, or of line, number i: after eight they come again."""
    return HUES[i % len(HUES)]


def mix(color: str, amount: float) -> str:
    """`color` thinned to `amount` (0 to 1) on the card, as #RRGGBB."""
    pairs = zip(_channels(color), _channels(CARD), strict=True)
    return "#" + "".join(f"{round(amount * a + (1 - amount) * b):02X}" for a, b in pairs)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2.2, "contrast ratio")."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink_on(color: str) -> str:
    """Ink or card, whichever reads better on `color`."""
    return max(INK, CARD, key=lambda ink: contrast(ink, color))


def _channels(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def _luminance(color: str) -> float:
    parts = [c / 255 for c in _channels(color)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
