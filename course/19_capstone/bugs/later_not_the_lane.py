"""later: the job gets comm, in the lane's thread"""

def later(comm, job, result):
    future = torch.futures.Future()

    def beside(lane):
        try:
            job(comm)
            future.set_result(result)
        except Exception as error:
            future.set_exception(error)

    comm.stream(beside)
    return future
