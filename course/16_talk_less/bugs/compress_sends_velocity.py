"""compress: u is sent"""

def compress(u, v, g, k, m, limit, n):
    """What is sent of this step; u and v are brought up to date."""
    factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
    u.mul_(m).add_(g * factor)
    v.add_(u)
    places = v.abs().topk(k).indices
    values = u[places]
    u[places] = 0
    v[places] = 0
    return values, places
