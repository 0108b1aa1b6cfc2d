"""all_gather: everyone sends to everyone, not around the ring"""

def all_gather(comm, chunks):
    n, r = comm.size, comm.rank
    for k in range(1, n):
        comm.sendrecv(chunks[r], (r + k) % n, chunks[(r - k) % n], (r - k) % n)
