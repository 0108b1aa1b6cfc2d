"""compress: the values are taken after v was set to 0"""

def compress(u, v, g, k, m, limit, n):
    factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
    u.mul_(m).add_(g * factor)
    v.add_(u)
    places = v.abs().topk(k).indices
    u[places] = 0
    v[places] = 0
    return v[places], places
