"""bandwidth: the library's own"""

def bandwidth(verb, n, nbytes, seconds):
    from minidist import collectives

    return collectives.bandwidth(verb, n, nbytes, seconds)
