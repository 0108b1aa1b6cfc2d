"""gather_single: its own part is not put in"""

def gather_single(comm, output, input):
    n, r, parts = comm.size, comm.rank, output.tensor_split(comm.size)
    for step in range(n - 1):
        comm.sendrecv(parts[(r - step) % n], (r + 1) % n, parts[(r - 1 - step) % n], (r - 1) % n)
