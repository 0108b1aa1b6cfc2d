"""learning_rate: the warm-up is forgotten"""

def learning_rate(t, steps, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak."""
    warm = 0
    x = min(1.0, (t - warm) / (steps - warm))
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
