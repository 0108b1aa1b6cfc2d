"""pipeline: the last piece is forgotten"""

def pipeline(comm, x, pieces):
    leaving = []
    for piece in x.view(-1).tensor_split(pieces)[:-1]:
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        if comm.rank < comm.size - 1:
            leaving.append(comm.isend(piece, comm.rank + 1))
    for work in leaving:
        work.wait()
