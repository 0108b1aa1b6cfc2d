"""learning_rate: the first step has a rate of 0"""

def learning_rate(t, steps, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak."""
    if t < warm:
        return peak * t / warm
    x = min(1.0, (t - warm) / (steps - warm))
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
