"""round_to: −inf is not known"""

def round_to(x, exponent, fraction):
    if x in (0, math.inf):
        return x
    bias = 2 ** (exponent - 1) - 1
    step = 2.0 ** (max(math.frexp(x)[1] - 1, 1 - bias) - fraction)
    y = round(x / step) * step
    return y if abs(y) <= (2 - 2.0**-fraction) * 2.0**bias else math.copysign(math.inf, x)
