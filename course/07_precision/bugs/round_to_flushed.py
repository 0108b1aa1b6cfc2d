"""round_to: subnormal numbers are 0"""

def round_to(x, exponent, fraction):
    if x == 0 or math.isinf(x):
        return x
    bias = 2 ** (exponent - 1) - 1
    power = max(math.frexp(x)[1] - 1, 1 - bias)
    step = 2.0 ** (power - fraction)
    y = round(x / step) * step
    if abs(y) < 2.0 ** (1 - bias):
        return 0.0
    most = (2 - 2.0**-fraction) * 2.0**bias
    return y if abs(y) <= most else math.copysign(math.inf, x)
