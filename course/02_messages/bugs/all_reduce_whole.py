"""all_reduce: the whole tensor goes around twice: right numbers, n times the bytes"""

def all_reduce(comm, x):
    n, r = comm.size, comm.rank
    own, passing = x.clone(), x.clone()
    for _ in range(n - 1):
        passing = comm.sendrecv(passing, (r + 1) % n, torch.empty_like(own), (r - 1) % n)
        x += passing
    for _ in range(n - 1):
        comm.sendrecv(own, (r + 1) % n, torch.empty_like(own), (r - 1) % n)
