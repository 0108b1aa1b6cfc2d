"""all_gather: each rank sends its own chunk again and again"""

def all_gather(comm, chunks):
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        into = chunks[(r - step - 1) % n]
        room = torch.empty_like(chunks[(r - 1) % n])
        comm.sendrecv(chunks[r], (r + 1) % n, room, (r - 1) % n)
        if room.shape == into.shape:
            into.copy_(room)
