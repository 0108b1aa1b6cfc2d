"""bucketed: the library's bucket"""

def bucketed(comm, params, buckets):
    from minidist.parallel.buckets import Bucket

    for bucket in buckets:
        made = Bucket([params[i] for i in bucket])
        for i in bucket:
            made.put(params[i], 1 / comm.size)
        all_reduce_(comm, made.buffer)
