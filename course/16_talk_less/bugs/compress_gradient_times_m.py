"""compress: the gradient is multiplied with m, too"""

def compress(u, v, g, k, m, limit, n):
    factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
    u.add_(g * factor).mul_(m)
    v.add_(u)
    places = v.abs().topk(k).indices
    values = v[places]
    u[places] = 0
    v[places] = 0
    return values, places
