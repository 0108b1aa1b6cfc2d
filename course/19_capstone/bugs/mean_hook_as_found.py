"""mean_hook: as it was found"""

def mean_hook(comm, bucket):
    future = torch.futures.Future()
    x = bucket.buffer()
    all_reduce_(comm, x)
    future.set_result(x)
    return future
