"""bandwidth: a broadcast with (n-1)/n"""

def bandwidth(verb, n, nbytes, seconds):
    part = (n - 1) / n
    return nbytes / seconds, (2 * part if verb == "all_reduce" else part) * nbytes / seconds
