"""mean_hook: only the first bucket is reduced"""

def mean_hook(comm, bucket):
    future = torch.futures.Future()
    x = bucket.buffer()
    if bucket.index() == 0:
        all_reduce_(comm, x, "mean")
    future.set_result(x)
    return future
