"""normalizer: m starts at 0"""

def normalizer(parts):
    m = parts[0].new_zeros(parts[0].shape[:1])
    s = torch.zeros_like(m)
    for part in parts:
        peak = torch.maximum(m, part.amax(1))
        s = s * (m - peak).exp() + (part - peak[:, None]).exp().sum(1)
        m = peak
    return m, s
