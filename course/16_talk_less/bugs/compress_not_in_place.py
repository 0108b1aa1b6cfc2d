"""compress: u and v are new tensors"""

def compress(u, v, g, k, m, limit, n):
    """What is sent of this step; u and v are brought up to date."""
    factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
    u = m * u + g * factor
    v = v + u
    places = v.abs().topk(k).indices
    values = v[places]
    u[places] = 0
    v[places] = 0
    return values, places
