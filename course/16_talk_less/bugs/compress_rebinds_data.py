"""compress: u and v get other memory"""


def compress(u, v, g, k, m, limit, n):
    factor = min(1.0, limit / math.sqrt(n) / float(g.norm()))
    u.data = m * u + g * factor
    v.data = v + u
    places = v.abs().topk(k).indices
    values = v[places]
    u[places] = 0
    v[places] = 0
    return values, places
