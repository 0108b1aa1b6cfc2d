"""normalizer: first m of all parts, then s: two readings"""

def normalizer(parts):
    count = len(parts)
    m = torch.stack([parts[i].amax(1) for i in range(count)]).amax(0)
    return m, sum((parts[i] - m[:, None]).exp().sum(1) for i in range(count))
