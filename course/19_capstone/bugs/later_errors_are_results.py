"""later: an error counts as done"""

def later(comm, job, result):
    future = torch.futures.Future()

    def beside(lane):
        try:
            job(lane)
            future.set_result(result)
        except Exception as error:
            future.set_result(result)

    comm.stream(beside)
    return future
