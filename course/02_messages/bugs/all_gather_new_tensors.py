"""all_gather: the list gets new tensors, and the caller's are as before"""

def all_gather(comm, chunks):
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        i = (r - step - 1) % n
        chunks[i] = comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, torch.empty_like(chunks[i]), (r - 1) % n)
