"""ring_sum: it adds row by row: a tensor without a dimension has none"""

def ring_sum(comm, x):
    n, r = comm.size, comm.rank
    total, passing = x.clone(), x
    for _ in range(n - 1):
        passing = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
        for i in range(len(total)):
            total[i] += passing[i]
    return total
