"""gather_single: sends to every rank, not to the right"""

def gather_single(comm, output, input):
    n, r, parts = comm.size, comm.rank, output.tensor_split(comm.size)
    parts[r].copy_(input)
    for k in range(1, n):
        comm.sendrecv(parts[r], (r + k) % n, parts[(r - k) % n], (r - k) % n)
