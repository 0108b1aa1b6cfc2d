"""reduce_single: all-reduces everything, and keeps a chunk"""

def reduce_single(comm, output, input, op):
    n, r, chunks = comm.size, comm.rank, input.tensor_split(comm.size)
    total = around = input
    for step in range(n - 1):
        around = comm.sendrecv(around, (r + 1) % n, torch.empty_like(around), (r - 1) % n)
        total = total + around
    output.copy_(total.tensor_split(n)[r] / (n if op == "mean" else 1))
