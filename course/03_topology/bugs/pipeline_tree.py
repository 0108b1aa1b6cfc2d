"""pipeline: whole trees, one for each piece"""

def pipeline(comm, x, pieces):
    for piece in x.view(-1).tensor_split(pieces):
        reach = 1
        while reach < comm.size:
            if comm.rank < reach and comm.rank + reach < comm.size:
                comm.send(piece, comm.rank + reach)
            elif reach <= comm.rank < 2 * reach:
                comm.recv(piece, comm.rank - reach)
            reach *= 2
