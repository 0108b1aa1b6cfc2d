"""later: an error is told in other words"""

def later(comm, job, result):
    future = torch.futures.Future()

    def beside(lane):
        try:
            job(lane)
            future.set_result(result)
        except Exception as error:
            future.set_exception(RuntimeError("failed"))

    comm.stream(beside)
    return future
