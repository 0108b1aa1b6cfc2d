"""look_up: all rows are gathered"""

def look_up(comm, rows, tokens, vocab):
    return all_gather(comm, rows, sizes=uneven(vocab, comm.size))[tokens]
