"""sparse_mean: nothing is exchanged"""

def sparse_mean(comm, values, places, size):
    total = torch.zeros(size, dtype=values.dtype)
    total[places] = values
    return total
