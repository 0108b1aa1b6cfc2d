"""mean_hook: everyone gets the gradients of rank 0"""

def mean_hook(comm, bucket):
    future = torch.futures.Future()
    x = bucket.buffer()
    collectives.broadcast_(comm, x, 0)
    future.set_result(x)
    return future
