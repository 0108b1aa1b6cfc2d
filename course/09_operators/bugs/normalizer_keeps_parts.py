"""normalizer: one reading, but into copies of all parts, which are read twice"""

def normalizer(parts):
    kept, m = [], parts[0].amax(1)
    for part in parts:
        kept.append(part.clone())
        m = torch.maximum(m, kept[-1].amax(1))
    return m, sum((part - m[:, None]).exp().sum(1) for part in kept)
