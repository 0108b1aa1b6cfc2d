"""look_up: parts of V // n, as if n divided V"""

def look_up(comm, rows, tokens, vocab):
    first, end = comm.rank * (vocab // comm.size), (comm.rank + 1) * (vocab // comm.size)
    elsewhere = (tokens < first) | (tokens >= end)
    found = rows[(tokens - first).clamp(0, end - first - 1)]
    return all_reduce_(comm, found.masked_fill(elsewhere[..., None], 0))
