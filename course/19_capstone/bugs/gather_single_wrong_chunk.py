"""gather_single: sends a part that has not come yet"""

def gather_single(comm, output, input):
    n, r, parts = comm.size, comm.rank, output.tensor_split(comm.size)
    parts[r].copy_(input)
    for step in range(n - 1):
        comm.sendrecv(parts[(r + 1 - step) % n], (r + 1) % n, parts[(r - step) % n], (r - 1) % n)
