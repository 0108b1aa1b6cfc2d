"""mean_hook: the future is never set"""

def mean_hook(comm, bucket):
    future = torch.futures.Future()
    x = bucket.buffer()
    all_reduce_(comm, x, "mean")
    if comm.size > 2:
        future.set_result(x)
    return future
