"""pipeline: a piece is passed on before it has arrived"""

def pipeline(comm, x, pieces):
    leaving = []
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank < comm.size - 1:
            leaving.append(comm.isend(piece.clone(), comm.rank + 1))
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
    for work in leaving:
        work.wait()
