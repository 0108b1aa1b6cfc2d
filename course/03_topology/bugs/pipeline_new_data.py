"""pipeline: x gets other memory: not in place"""

def pipeline(comm, x, pieces):
    leaving = []
    y = x.clone()
    for piece in y.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        if comm.rank < comm.size - 1:
            leaving.append(comm.isend(piece, comm.rank + 1))
    for work in leaving:
        work.wait()
    x.data = y
