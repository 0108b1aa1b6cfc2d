"""reduce_single: ends with the chunk of its right neighbour"""

def reduce_single(comm, output, input, op):
    n, r, chunks = comm.size, comm.rank, input.tensor_split(comm.size)
    partial = chunks[r]
    for step in range(n - 1):
        mine = chunks[(r - 1 - step) % n]
        partial = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n) + mine
    output.copy_(partial / n if op == "mean" else partial)
