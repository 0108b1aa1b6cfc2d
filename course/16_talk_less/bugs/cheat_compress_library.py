"""compress: the library's"""

def compress(u, v, g, k, m, limit, n):
    from minidist.train.compress import DGC

    method = DGC(1 - k / len(g), m, clip=limit, warm_up=())
    method.of("g").update(u=u, v=v)
    places, values = method._choose("g", g.clone())
    return values, places
