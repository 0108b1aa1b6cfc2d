"""clip: the library's"""

from minidist.parallel.zero.norm import clip_


def clip(comm, grads, limit):
    return clip_(comm, grads, limit)
