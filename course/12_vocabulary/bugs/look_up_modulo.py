"""look_up: token mod V_r, and no mask"""

def look_up(comm, rows, tokens, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (tokens < first) | (tokens >= end)
    found = rows[tokens % len(rows)]
    return all_reduce_(comm, found)
