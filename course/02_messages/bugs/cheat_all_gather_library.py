"""all_gather: the library's ring does the work"""

import minidist.collectives.ring


def all_gather(comm, chunks):
    minidist.collectives.ring.all_gather(comm, list(chunks))
