"""later: an error is told in words that were written beforehand"""

def later(comm, job, result):
    future = torch.futures.Future()

    def beside(lane):
        try:
            job(lane)
            future.set_result(result)
        except Exception:
            future.set_exception(RuntimeError("the wire is cut"))

    comm.stream(beside)
    return future
