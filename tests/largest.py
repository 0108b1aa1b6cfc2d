"""The largest of some numbers, NaN among them: Python's `max` passes over a NaN that does not come first."""

import math


def largest(*values, default=None):
    """As `max`, but NaN where any of the numbers is: so no comparison with a bound is passed by it."""
    numbers = list(values[0]) if len(values) == 1 else list(values)
    if not numbers and default is not None:
        return default
    unknown = [x for x in numbers if math.isnan(x)]
    return unknown[0] if unknown else max(numbers)


def smallest(*values):
    """As `min`, but NaN where any of the numbers is."""
    return -largest(-x for x in (values[0] if len(values) == 1 else values))
