"""round_to: a tie goes towards zero"""

def round_to(x, exponent, fraction):
    if x == 0 or math.isinf(x):
        return x
    bias = 2 ** (exponent - 1) - 1
    power = max(math.frexp(x)[1] - 1, 1 - bias)
    step = 2.0 ** (power - fraction)
    y = math.copysign(math.ceil(abs(x) / step - 0.5) * step, x)
    most = (2 - 2.0**-fraction) * 2.0**bias
    return y if abs(y) <= most else math.copysign(math.inf, x)
