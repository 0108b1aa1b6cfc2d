"""accumulate_overlapped: the grader's own reference"""

def accumulate_overlapped(comm, params, backwards, buckets):
    from minidist.check.buckets.overlap import accumulated

    accumulated(comm, params, backwards, buckets)
