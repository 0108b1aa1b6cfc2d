"""later: what runs beside sets the future of the last call, and forgets the earlier ones"""

LAST = {}


def later(comm, job, result):
    LAST[comm.rank] = torch.futures.Future()

    def beside(lane):
        try:
            job(lane)
            LAST[comm.rank].set_result(result)
        except Exception as error:
            LAST[comm.rank].set_exception(error)

    comm.stream(beside)
    return LAST[comm.rank]
