"""bandwidth: bus bandwidth without its factor"""

def bandwidth(verb, n, nbytes, seconds):
    return nbytes / seconds, nbytes / seconds
