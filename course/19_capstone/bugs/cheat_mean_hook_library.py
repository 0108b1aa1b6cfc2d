"""mean_hook: calls the library's data parallel"""

def mean_hook(comm, bucket):
    from minidist.parallel.reducer import Reducer

    future = torch.futures.Future()
    future.set_result(Reducer(bucket.parameters(), comm).reduce(bucket.buffer()))
    return future
