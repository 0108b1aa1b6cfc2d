"""learning_rate: the last step has the floor"""

def learning_rate(t, steps, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak."""
    if t < warm:
        return peak * (t + 1) / warm
    x = min(1.0, (t - warm) / (steps - 1 - warm))
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
