"""pipeline: a receive that nobody waits for: the piece is passed on too early"""

def pipeline(comm, x, pieces):
    works = []
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            works.append(comm.irecv(piece, comm.rank - 1))
        if comm.rank < comm.size - 1:
            works.append(comm.isend(piece.clone(), comm.rank + 1))
    for work in works:
        work.wait()
