"""sign_average: the oracle"""

def sign_average(comm, g, error):
    from minidist.check.talk_less.oracle import signed

    means, errors = signed([list(all_gather(comm, (g + error)[None]))])
    error.copy_(errors[0][comm.rank])
    return means[0]
