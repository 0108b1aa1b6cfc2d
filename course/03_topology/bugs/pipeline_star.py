"""pipeline: rank 0 sends every piece to everyone itself"""

def pipeline(comm, x, pieces):
    for piece in x.view(-1).tensor_split(pieces):
        if comm.rank > 0:
            comm.recv(piece, 0)
        else:
            for r in range(1, comm.size):
                comm.send(piece, r)
