"""average_gradients: the library's DataParallel does the work"""

from minidist.parallel.data import DataParallel


def average_gradients(comm, module):
    wrapped = DataParallel.__new__(DataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module, wrapped.comm, wrapped.weight, wrapped.algorithm = module, comm, None, None
    wrapped.average()
