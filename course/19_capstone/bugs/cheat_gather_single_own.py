"""gather_single: fills everything with its own"""

def gather_single(comm, output, input):
    output.copy_(input.repeat(comm.size))
