"""pipeline: it does nothing, and rank 0 has its numbers"""

def pipeline(comm, x, pieces):
    return x
