"""pipeline: pieces are sent from the last and received from the first"""

def pipeline(comm, x, pieces):
    leaving, parts = [], x.view(-1).tensor_split(pieces)
    for i, piece in enumerate(parts):
        if comm.rank > 0:
            comm.recv(piece, comm.rank - 1)
        if comm.rank < comm.size - 1:
            leaving.append(comm.isend(parts[-1 - i] if comm.rank == 0 else piece, comm.rank + 1))
    for work in leaving:
        work.wait()
