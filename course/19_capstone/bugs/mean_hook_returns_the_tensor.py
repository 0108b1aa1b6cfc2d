"""mean_hook: returns the tensor"""

def mean_hook(comm, bucket):
    future = torch.futures.Future()
    x = bucket.buffer()
    all_reduce_(comm, x, "mean")
    future.set_result(x)
    return x
