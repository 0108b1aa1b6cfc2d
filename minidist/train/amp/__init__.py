"""Mixed precision: half the bytes, twice the FLOP/s and more, and the same loss.

LossScaler            gradients that fp16 can hold, and steps that are skipped where it could not
Masters               parameters in half, stepped in fp32
autocast              each operator in the dtype that its list says: WHITE, BLACK, GRAY
prepare               the four levels O0 to O3 in one call
exponents, lost       what fp16 does to gradients and to updates, counted
"""

from .autocast import active, autocast
from .levels import LEVELS, Prepared, halve_, prepare
from .lists import BLACK, GRAY, WHITE, name_of
from .masters import Masters
from .scaler import LossScaler
from .see import Exponents, exponents, lost

__all__ = [
    "BLACK",
    "GRAY",
    "LEVELS",
    "WHITE",
    "Exponents",
    "LossScaler",
    "Masters",
    "Prepared",
    "active",
    "autocast",
    "exponents",
    "halve_",
    "lost",
    "name_of",
    "prepare",
]
