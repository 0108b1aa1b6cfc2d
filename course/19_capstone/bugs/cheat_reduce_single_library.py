"""reduce_single: calls the library's"""

def reduce_single(comm, output, input, op):
    output.copy_(collectives.reduce_scatter(comm, input, op))
