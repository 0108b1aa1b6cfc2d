"""gather_single: clears output, and with it an input that is a view"""

def gather_single(comm, output, input):
    n, r, parts = comm.size, comm.rank, output.tensor_split(comm.size)
    output.zero_()
    parts[r].copy_(input)
    for step in range(n - 1):
        comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)
