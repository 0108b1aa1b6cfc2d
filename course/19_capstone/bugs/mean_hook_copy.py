"""mean_hook: reduces a copy, and gives back the bucket as it was"""

def mean_hook(comm, bucket):
    future = torch.futures.Future()
    x = bucket.buffer()
    all_reduce_(comm, x.clone(), "mean")
    future.set_result(x)
    return future
