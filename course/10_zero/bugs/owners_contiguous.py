"""owners: equal runs of the model"""

def owners(nbytes, n):
    return [i * n // len(nbytes) for i in range(len(nbytes))]
