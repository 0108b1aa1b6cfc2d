"""normalizer: each part keeps its own m"""

def normalizer(parts):
    m = torch.full(parts[0].shape[:1], torch.finfo(parts[0].dtype).min, dtype=parts[0].dtype)
    s = torch.zeros_like(m)
    for part in parts:
        peak = torch.maximum(m, part.amax(1))
        s = s + (part - part.amax(1)[:, None]).exp().sum(1)
        m = peak
    return m, s
