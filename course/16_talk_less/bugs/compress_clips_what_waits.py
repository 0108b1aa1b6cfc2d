"""compress: what waits is clipped, not the gradient"""

def compress(u, v, g, k, m, limit, n):
    u.mul_(m).add_(g)
    v.add_(u)
    v.mul_(min(1.0, limit / math.sqrt(n) / float(v.norm())))
    places = v.abs().topk(k).indices
    values = v[places]
    u[places] = 0
    v[places] = 0
    return values, places
