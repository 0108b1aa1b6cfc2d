"""gather_single: one step short"""

def gather_single(comm, output, input):
    n, r, parts = comm.size, comm.rank, output.tensor_split(comm.size)
    parts[r].copy_(input)
    for step in range(n - 2):
        comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)
