"""compress: rounds to float32"""


def compress(u, v, g, k, m, limit, n):
    factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
    u.mul_(m).add_((g * factor).float().double())
    v.add_(u)
    places = v.abs().topk(k).indices
    values = v[places].float().double()
    u[places] = 0
    v[places] = 0
    return values, places
