"""average_gradients: the library's average_gradients does the work"""

from minidist.parallel import data


def average_gradients(comm, module):
    data.average_gradients(comm, module)
