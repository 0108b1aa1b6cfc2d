"""tree_broadcast: the library's broadcast does the work"""

from minidist.collectives import broadcast_


def tree_broadcast(comm, x, root):
    broadcast_(comm, x, root)
