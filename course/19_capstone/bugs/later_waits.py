"""later: waits for the job before it returns"""

def later(comm, job, result):
    future = torch.futures.Future()

    def beside(lane):
        try:
            job(lane)
            future.set_result(result)
        except Exception as error:
            future.set_exception(error)

    comm.stream(beside).wait()
    return future
