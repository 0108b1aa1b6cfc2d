"""Whether tests run at their full size: `pytest --full`, which `make proof` gives."""

import os

FULL = os.environ.get("MINIDIST_FULL") == "1"
