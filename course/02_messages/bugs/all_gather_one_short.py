"""all_gather: one step too few"""

def all_gather(comm, chunks):
    n, r = comm.size, comm.rank
    for step in range(n - 2):
        comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, chunks[(r - step - 1) % n], (r - 1) % n)
