"""later: an error of the job is nobody's"""

def later(comm, job, result):
    future = torch.futures.Future()

    def beside(lane):
        job(lane)
        future.set_result(result)

    comm.stream(beside)
    return future
