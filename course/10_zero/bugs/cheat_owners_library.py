"""owners: the library's"""

def owners(nbytes, n):
    from minidist.parallel.zero.layout import best_fit

    return best_fit(nbytes, [0] * n)
