"""round_to: the largest number instead of inf"""

def round_to(x, exponent, fraction):
    if x == 0 or math.isinf(x):
        return x
    bias = 2 ** (exponent - 1) - 1
    power = max(math.frexp(x)[1] - 1, 1 - bias)
    step = 2.0 ** (power - fraction)
    y = round(x / step) * step
    most = (2 - 2.0**-fraction) * 2.0**bias
    return y if abs(y) <= most else math.copysign(most, x)
