"""later: returns the Work of the lane"""

def later(comm, job, result):
    future = torch.futures.Future()

    def beside(lane):
        try:
            job(lane)
            future.set_result(result)
        except Exception as error:
            future.set_exception(error)

    return comm.stream(beside)
