"""accumulate_tokens: all graphs are kept for one backward"""

def accumulate_tokens(loss, micros, counts):
    parts = [loss(micro) * count for micro, count in zip(micros, counts) if count]
    mean = sum(parts) / sum(counts)
    mean.backward()
    return mean.item()
