"""average_hooks: the library's DataParallel does the work"""

from minidist.parallel.data import DataParallel


def average_hooks(comm, module):
    DataParallel(module, comm, broadcast_buffers=False)
