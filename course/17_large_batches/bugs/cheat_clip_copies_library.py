"""clip_copies: the library's"""

from minidist.parallel.zero.norm import clip_


def clip_copies(comm, grads, copied, limit):
    counted = [g for g, same in zip(grads, copied) if comm.rank == 0 or not same]
    return clip_(comm, grads, limit, counted=counted)
