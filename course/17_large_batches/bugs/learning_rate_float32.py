"""learning_rate: the cosine in float32"""

def learning_rate(t, steps, warm, peak, floor):
    """Warm-up, then a cosine to floor · peak."""
    if t < warm:
        return peak * (t + 1) / warm
    x = min(1.0, (t - warm) / (steps - warm))
    return peak * (floor + (1 - floor) * (1 + float(torch.cos(torch.tensor(math.pi * x)))) / 2)
