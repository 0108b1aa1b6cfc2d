"""later: does no job, and says it did"""

def later(comm, job, result):
    future = torch.futures.Future()
    comm.stream(lambda lane: future.set_result(result))
    return future
