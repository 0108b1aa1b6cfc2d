"""broadcast: the library's broadcast does the work"""

import minidist.collectives


def broadcast(comm, x, root):
    minidist.collectives.broadcast_(comm, x, root)
